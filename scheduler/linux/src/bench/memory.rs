//! Limits on the memory of the service that is measured: when they are in force, and what can be seen of them.
//!
//! A limit below what is in use is reached in steps ([`crate::memory`]), and one below what the pages need is raised ([`crate::floor`]). So a
//! case waits for its limit, and its samples say which one they are of.

use super::LocalBench;
use crate::cgroup::{Knob, Version};
use crate::local::{Limit, Value};
use std::time::{Duration, Instant};
use surefoot_server::memory::READINGS;
use surefoot_server::{MemoryView, Server, ServiceView};

/// A limit is waited for at most so long: 2 % of what is in use go in a tenth of a second where the service lets them.
const MOVES: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// The kernel rounds limits to its pages, the largest of which are these.
const PAGE_BYTES: u64 = 64 << 10;

/// Limits that a case asks for; None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BenchMemory {
    pub limit_bytes: Option<u64>,
    pub pool_bytes: Option<u64>,
}

/// What a service had in one sample, and what was seen of it; readings are taken once a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    pub limit_bytes: Option<u64>,
    pub pool_bytes: Option<u64>,
    pub seen: MemoryView,
}

impl LocalBench {
    /// Until the limit is in force, or the one that stands in its place. What to say of one that is not; None: it is.
    pub(super) fn wait_for_memory(&mut self, id: &str, asked: BenchMemory) -> Option<String> {
        let wanted = asked.limit_bytes?;
        let begun = Instant::now();
        loop {
            // Each look tends what is on its way.
            self.server.observe();
            let limit = self.server.memory_in_force(id).0;
            let other = self.other_limit(id);
            if limit.is_some_and(|b| b <= wanted + PAGE_BYTES) || other.as_ref().is_some_and(|l| !l.kept) && limit.is_some() {
                return None;
            }
            // It is tried again later than any case waits.
            if let Some(l) = other.filter(|l| l.kept) {
                return Some(format!("the limit on memory was refused: {}", l.cause));
            }
            if begun.elapsed() >= MOVES || !self.server.observe().services.iter().any(|v| v.id == id) {
                return Some(format!("the limit on memory was not in force after {} s", begun.elapsed().as_secs()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Why another limit stands in place of the one that was asked for.
    fn other_limit(&self, id: &str) -> Option<Limit> {
        let of_memory = |v: Value| matches!(v, Value::Knob(Knob::Memory | Knob::Zswap));
        self.server.limits().into_iter().find(|l| l.service == id && of_memory(l.value))
    }

    pub(super) fn memory_of(&self, v: &ServiceView) -> Option<Kept> {
        if !self.looks_at_memory {
            return None;
        }
        let (limit_bytes, pool_bytes) = self.server.memory_in_force(&v.id);
        Some(Kept { limit_bytes, pool_bytes, seen: v.memory })
    }

    /// What is to be said of the memory of a case: another limit than asked for, and what cannot be seen here.
    pub(super) fn memory_note(&self, id: &str, seen: &MemoryView) -> Option<String> {
        let version = self.server.cgroup_version();
        let all = [self.other_limit(id).map(|l| l.cause), untold(version, seen)];
        let said: Vec<String> = all.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// Why readings are missing; None: none are.
fn untold(version: Option<Version>, seen: &MemoryView) -> Option<String> {
    let missing: Vec<&str> = READINGS.iter().filter(|r| (r.of)(seen).is_none()).map(|r| r.key).collect();
    if missing.is_empty() {
        return None;
    }
    let who = if version == Some(Version::V2) { "this kernel does not tell" } else { "cgroups of version 1 do not tell" };
    Some(format!("{who} {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is missing is named, and whose doing it is.
    #[test]
    fn missing_readings_are_named() {
        let whole = MemoryView {
            in_use_bytes: Some(1),
            pool_bytes: Some(0),
            stored_bytes: Some(0),
            swapped_bytes: Some(0),
            pool_swap_ins_per_s: Some(0.0),
            disk_swap_ins_per_s: Some(0.0),
            refaults_per_s: Some(0.0),
            stall_frac: Some(0.0),
        };
        assert_eq!(untold(Some(Version::V2), &whole), None);
        let old = MemoryView { disk_swap_ins_per_s: None, stall_frac: None, ..whole };
        assert_eq!(untold(Some(Version::V2), &old).as_deref(), Some("this kernel does not tell disk_swap_ins_per_s, stall_frac"));
        let v1 = untold(Some(Version::V1), &MemoryView { in_use_bytes: Some(1), ..MemoryView::default() }).unwrap();
        assert!(v1.starts_with("cgroups of version 1 do not tell pool_bytes, ") && !v1.contains("in_use"), "{v1}");
    }
}
