//! Limits on the memory of the service that is measured: when they are in force, and what can be seen of them.
//!
//! A limit below what is in use is reached in steps ([`crate::memory`]), and one below what the pages need is raised ([`crate::floor`]). So a
//! case waits for its limit, and its samples say which one they are of. It is set once the service has what it is to hold: what it needs
//! is not known before, and a service that fills up under a limit below that is killed. A case whose limit does not come fails.

use super::LocalBench;
use crate::cgroup::{Knob, Version};
use crate::local::{Limit, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use surefoot_server::memory::READINGS;
use surefoot_server::{Change, MemoryView, Plan, Server, ServerError, ServiceView};

/// A limit is waited for at most so long: 2 % of what is in use go in a tenth of a second where the service lets them.
pub(super) const MOVES: Duration = Duration::from_secs(60);
/// Looks at which a raised limit has to be the same: no step takes so long.
const STAYS: u32 = 20;
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
    /// Give the service that is measured its limits, and wait until they are in force, or until the one is that its pages need.
    ///
    /// # Errors
    /// They are not: [`ServerError::Unavailable`], with the kernel's cause where it told one.
    pub(super) fn limit_memory(&mut self, id: &str, asked: BenchMemory) -> Result<(), ServerError> {
        let change = Change { mem_limit: Some(asked.limit_bytes.into()), zswap_max: Some(asked.pool_bytes.into()), ..Change::default() };
        self.server.apply(&Plan { changes: BTreeMap::from([(id.into(), change)]), ..Plan::default() })?;
        let Some(wanted) = asked.limit_bytes else { return Ok(()) };
        let (begun, mut before, mut same) = (Instant::now(), None, 0);
        loop {
            // Each look tends what is on its way.
            let there = self.server.observe().services.iter().any(|v| v.id == id);
            let (limit, other) = (self.server.memory_in_force(id).0, self.other_limit(id));
            if limit.is_some_and(|b| b <= wanted + PAGE_BYTES) {
                return Ok(());
            }
            // A limit that is raised comes down in steps, too: it is there once it stays.
            same = if limit.is_some() && limit == before { same + 1 } else { 0 };
            before = limit;
            let kept = other.as_ref().is_some_and(|l| l.kept);
            if same >= STAYS && other.is_some() && !kept {
                return Ok(());
            }
            if kept || !there || begun.elapsed() >= MOVES {
                let cause = other.map_or_else(|| format!("{limit:?} bytes after {} s", begun.elapsed().as_secs()), |l| l.cause);
                let remedy = "Give a higher limit, or more swap space".into();
                return Err(ServerError::Unavailable { what: format!("a limit of {wanted} bytes on the memory of {id}"), cause, remedy });
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
    // A look at a working set takes longer than a case.
    let looked_for = READINGS.iter().filter(|r| r.key != "working_set_bytes");
    let missing: Vec<&str> = looked_for.filter(|r| (r.of)(seen).is_none()).map(|r| r.key).collect();
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
            working_set_bytes: None,
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
