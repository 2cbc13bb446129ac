//! Memory: what a platform has to share out, what a service is seen to use, and which limits may be in force together.
//!
//! What must hold of the limits of a plan ([`check_limits`], [`check_sum`]):
//!
//! - A limit on memory is above 0. That on the pool of compressed pages may be 0: the service has none then.
//! - The pool is a part of the memory under the limit (COSMOS, Eq. 2), so its limit is no higher than the other.
//! - Limits that are set add up to no more than the platform has, where that is known.
//!
//! A service without a limit counts for nothing in that sum. What it uses now is no promise: the same plan would be right at one moment
//! and wrong at the next. A policy that wants the sum to hold for all gives each of them a limit.

use crate::allocation::Allocation;
use crate::platform::Platform;
use crate::sound::{ensure, Unsound};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// More than any server has, bytes (2^50).
const MOST_BYTES: u64 = 1 << 50;

/// Memory that services and jobs may share out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes, without what is reserved for the system.
    pub capacity_bytes: u64,
}

/// What one service does with memory. What cannot be measured is None, never 0.
///
/// Levels are those of the last look. Rates are of the time between the last two looks, which a host takes once a second.
/// Sources on a host: cgroup v2, by the names of its files. Pages are the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryView {
    /// Bytes that count towards the limit: resident pages, page cache, and the compressed copies (`memory.current`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use_bytes: Option<u64>,
    /// Bytes of compressed copies, a part of the above (`memory.stat`: `zswap`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_bytes: Option<u64>,
    /// Bytes that these copies stand for, uncompressed (`memory.stat`: `zswapped`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Pages that came back from the pool, 1/s (`memory.stat`: `zswpin`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_swap_ins_per_s: Option<f64>,
    /// Pages that came back from the swap device, 1/s (`memory.stat`: `pswpin`, which a group has since Linux 6.14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_swap_ins_per_s: Option<f64>,
    /// Anonymous pages that came back soon after they were taken, 1/s, from wherever (`memory.stat`: `workingset_refault_anon`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refaults_per_s: Option<f64>,
    /// Share of the time in which some task waited for memory, 0 to 1 (`memory.pressure`: `some`). Linux 6.1 leaves out waits for the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall_frac: Option<f64>,
}

impl MemoryView {
    /// True where nothing could be measured.
    pub fn is_unknown(&self) -> bool {
        *self == MemoryView::default()
    }

    /// How many bytes one byte of the pool stands for; None while the pool is empty.
    pub fn compression_ratio(&self) -> Option<f64> {
        let pool = self.pool_bytes.filter(|p| *p > 0)?;
        Some(self.stored_bytes? as f64 / pool as f64)
    }

    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let MemoryView { in_use_bytes, pool_bytes, stored_bytes, pool_swap_ins_per_s, disk_swap_ins_per_s, refaults_per_s, stall_frac } =
            self;
        for bytes in [in_use_bytes, pool_bytes, stored_bytes].into_iter().flatten() {
            ensure(*bytes <= MOST_BYTES, "services.memory", || format!("{bytes} bytes"))?;
        }
        for rate in [pool_swap_ins_per_s, disk_swap_ins_per_s, refaults_per_s].into_iter().flatten() {
            ensure(rate.is_finite() && *rate >= 0.0, "services.memory", || format!("{rate} pages a second"))?;
        }
        let share = stall_frac.unwrap_or(0.0);
        ensure((0.0..=1.0).contains(&share), "services.memory.stall_frac", || format!("is {share}"))
    }
}

impl Memory {
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let bytes = self.capacity_bytes;
        ensure((1..=MOST_BYTES).contains(&bytes), "memory.capacity_bytes", || format!("is {bytes}, 1 to {MOST_BYTES} can be"))
    }
}

/// Check the limits of one service.
///
/// # Errors
/// One line: what is wrong, what would be right.
pub fn check_limits(id: &str, a: &Allocation) -> Result<(), String> {
    let Some(limit) = a.mem_limit_bytes else { return Ok(()) };
    if limit == 0 {
        return Err(format!("{id}: memory limit of 0 bytes. Give it more, or lift the limit"));
    }
    match a.zswap_max_bytes.filter(|pool| *pool > limit) {
        Some(pool) => {
            Err(format!("{id}: zswap limit of {pool} bytes, but the pool is part of its {limit} bytes of memory. Give at most these"))
        }
        None => Ok(()),
    }
}

/// Check that the limits that are set fit into the memory of a platform together; those of one whose memory is unknown always do.
///
/// # Errors
/// One line: by how much they do not, and the service with the highest limit.
pub fn check_sum(p: &Platform, all: &BTreeMap<String, Allocation>) -> Result<(), String> {
    let limits = || all.iter().filter_map(|(id, a)| Some((a.mem_limit_bytes?, id)));
    let sum = limits().fold(0, |sum: u64, (bytes, _)| sum.saturating_add(bytes));
    let (Some(memory), Some((most, id))) = (p.memory, limits().max()) else { return Ok(()) };
    let have = memory.capacity_bytes;
    if sum <= have {
        return Ok(());
    }
    let n = limits().count();
    let by = sum - have;
    Err(format!(
        "{id}: memory limit of {most} bytes, the highest of {n}, which add up to {by} bytes more than the {have} of {}. Lower some of them",
        p.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    fn limited(mem_limit_bytes: Option<u64>, zswap_max_bytes: Option<u64>) -> Allocation {
        Allocation { mem_limit_bytes, zswap_max_bytes, ..Allocation::everything(&Platform::regular("t", 4, 1, 0, 0.0)) }
    }

    /// A limit is above 0 and the pool inside it; no pool at all, a pool as large as the limit, and no limit are sound.
    #[test]
    fn the_pool_is_inside_the_limit() {
        let says = |mem, pool| check_limits("web", &limited(mem, pool)).err();
        for (mem, pool) in [(None, None), (None, Some(GB)), (Some(GB), None), (Some(GB), Some(GB)), (Some(GB), Some(0)), (Some(1), None)] {
            assert_eq!(says(mem, pool), None, "{mem:?} {pool:?}");
        }
        assert_eq!(says(Some(0), None).unwrap(), "web: memory limit of 0 bytes. Give it more, or lift the limit");
        let beyond = says(Some(100), Some(101)).unwrap();
        assert_eq!(beyond, "web: zswap limit of 101 bytes, but the pool is part of its 100 bytes of memory. Give at most these");
    }

    /// 20 + 40 GB fit into 60 and one byte more does not; a service without a limit counts for nothing; an unknown capacity bounds nothing.
    #[test]
    fn limits_add_up_to_what_there_is() {
        let mut p = Platform::regular("t", 4, 1, 0, 0.0);
        let all = |web: u64| {
            let limits = [("job", Some(20 * GB)), ("rest", None), ("web", Some(web))];
            limits.map(|(id, limit)| (id.to_string(), limited(limit, None))).into()
        };
        assert_eq!(check_sum(&p, &all(u64::MAX)), Ok(()));
        p.memory = Some(Memory { capacity_bytes: 60 * GB });
        assert_eq!(check_sum(&p, &all(40 * GB)), Ok(()));
        let e = check_sum(&p, &all(40 * GB + 1)).unwrap_err();
        let line = "web: memory limit of 42949672961 bytes, the highest of 2, which add up to 1 bytes more than the 64424509440 of t. \
                    Lower some of them";
        assert_eq!(e, line);
        // Sums beyond 64 bits are sums, too.
        assert!(check_sum(&p, &all(u64::MAX)).is_err());
    }

    /// What is unknown is left out of a file and read as unknown; what is known comes back to the bit.
    #[test]
    fn unknown_is_not_written() {
        let text = |m: &MemoryView| serde_json::to_string(m).unwrap();
        assert_eq!(text(&MemoryView::default()), "{}");
        let some = MemoryView { pool_bytes: Some(0), stall_frac: Some(0.1), ..MemoryView::default() };
        assert_eq!(text(&some), r#"{"pool_bytes":0,"stall_frac":0.1}"#);
        assert_eq!(serde_json::from_str::<MemoryView>(&text(&some)).unwrap(), some);
        assert!(MemoryView::default().is_unknown() && !some.is_unknown());
    }

    /// 19 GB in 10 GB of pool are 1.9 to 1; an empty pool has no ratio.
    #[test]
    fn a_ratio_needs_a_pool() {
        let pool = |pool_bytes| MemoryView { pool_bytes: Some(pool_bytes), stored_bytes: Some(19 * GB), ..MemoryView::default() };
        assert_eq!((pool(10 * GB).compression_ratio(), pool(0).compression_ratio()), (Some(1.9), None));
    }

    /// Readings that nothing can show are named.
    #[test]
    fn unsound_readings_are_named() {
        let says = |m: MemoryView| m.check().err().map(|(field, _)| field);
        let none = MemoryView::default();
        assert_eq!(says(MemoryView { in_use_bytes: Some(GB), stall_frac: Some(1.0), ..none }), None);
        assert_eq!(says(MemoryView { stall_frac: Some(1.1), ..none }), Some("services.memory.stall_frac"));
        assert_eq!(says(MemoryView { refaults_per_s: Some(-1.0), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { pool_swap_ins_per_s: Some(f64::NAN), ..none }), Some("services.memory"));
        assert_eq!(says(MemoryView { in_use_bytes: Some(u64::MAX), ..none }), Some("services.memory"));
    }
}
