//! Memory: what a platform has to share out, and what a service is seen to use.

use serde::{Deserialize, Serialize};

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
    /// Bytes that were taken and have not come back, uncompressed, in the pool or on the device (`memory.swap.current`
    /// less `swapcached` of `memory.stat`, before Linux 5.12 without that).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped_bytes: Option<u64>,
    /// Bytes that were touched within the last while, which a host looks at every few minutes (DAMON, generations of the LRU, `clear_refs`, or at most
    /// so much by refaults).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
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

/// One reading of [`MemoryView`], as pages and metrics show it.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Its field in files, and the end of its metric's name (`surefoot_memory_KEY`, in base units).
    pub key: &'static str,
    /// As the help of metrics says it.
    pub words: &'static str,
    pub of: fn(&MemoryView) -> Option<f64>,
}

/// In the order of the fields.
pub static READINGS: [Reading; 9] = [
    Reading {
        key: "in_use_bytes",
        words: "memory that counts towards the limit, compressed copies included",
        of: |m| m.in_use_bytes.map(|b| b as f64),
    },
    Reading { key: "pool_bytes", words: "compressed copies of pages (zswap)", of: |m| m.pool_bytes.map(|b| b as f64) },
    Reading { key: "stored_bytes", words: "what the compressed copies stand for", of: |m| m.stored_bytes.map(|b| b as f64) },
    Reading {
        key: "swapped_bytes",
        words: "what was taken and has not come back, uncompressed, in zswap or on the swap device",
        of: |m| m.swapped_bytes.map(|b| b as f64),
    },
    Reading {
        key: "working_set_bytes",
        words: "what was touched within the last while, wherever it is",
        of: |m| m.working_set_bytes.map(|b| b as f64),
    },
    Reading { key: "pool_swap_ins_per_s", words: "pages that came back from zswap, per second", of: |m| m.pool_swap_ins_per_s },
    Reading { key: "disk_swap_ins_per_s", words: "pages that came back from the swap device, per second", of: |m| m.disk_swap_ins_per_s },
    Reading {
        key: "refaults_per_s",
        words: "anonymous pages that came back soon after they were taken, per second",
        of: |m| m.refaults_per_s,
    },
    Reading { key: "stall_frac", words: "share of the time in which some task waited for memory", of: |m| m.stall_frac },
];

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

    /// Bytes of all pages, wherever they are: resident, in the pool and on the device. More than the working set where pages are never touched;
    /// without swap's own count, those in the pool stand for all that was taken.
    pub fn footprint_bytes(&self) -> Option<u64> {
        let resident = self.in_use_bytes?.saturating_sub(self.pool_bytes.unwrap_or(0));
        Some(resident + self.swapped_bytes.or(self.stored_bytes).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

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

    /// The list of readings has every field, under its name.
    #[test]
    fn every_field_is_in_the_list() {
        let all = MemoryView {
            in_use_bytes: Some(1),
            pool_bytes: Some(2),
            stored_bytes: Some(3),
            swapped_bytes: Some(4),
            working_set_bytes: Some(9),
            pool_swap_ins_per_s: Some(5.0),
            disk_swap_ins_per_s: Some(6.0),
            refaults_per_s: Some(7.0),
            stall_frac: Some(0.5),
        };
        let told = READINGS.each_ref().map(|r| (r.key.to_string(), (r.of)(&all).unwrap()));
        let written: serde_json::Map<String, serde_json::Value> = serde_json::from_value(serde_json::to_value(all).unwrap()).unwrap();
        let mut written: Vec<(String, f64)> = written.into_iter().map(|(key, v)| (key, v.as_f64().unwrap())).collect();
        written.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut told = told.to_vec();
        told.sort_by(|a, b| a.1.total_cmp(&b.1));
        assert_eq!(told, written);
        assert!(READINGS.iter().all(|r| (r.of)(&MemoryView::default()).is_none()));
    }

    /// 30 GB under a limit of 20, of which 6 are a pool for 11 GB, and 5 more on the device; without swap's count these are not seen.
    #[test]
    fn a_footprint_is_all_pages() {
        let seen =
            MemoryView { in_use_bytes: Some(20 * GB), pool_bytes: Some(6 * GB), stored_bytes: Some(11 * GB), ..MemoryView::default() };
        assert_eq!(seen.footprint_bytes(), Some(25 * GB));
        assert_eq!(MemoryView { swapped_bytes: Some(16 * GB), ..seen }.footprint_bytes(), Some(30 * GB));
        assert_eq!(MemoryView { swapped_bytes: Some(16 * GB), ..MemoryView::default() }.footprint_bytes(), None);
        assert_eq!(MemoryView { in_use_bytes: Some(GB), ..MemoryView::default() }.footprint_bytes(), Some(GB));
    }

    /// 19 GB in 10 GB of pool are 1.9 to 1; an empty pool has no ratio.
    #[test]
    fn a_ratio_needs_a_pool() {
        let pool = |pool_bytes| MemoryView { pool_bytes: Some(pool_bytes), stored_bytes: Some(19 * GB), ..MemoryView::default() };
        assert_eq!((pool(10 * GB).compression_ratio(), pool(0).compression_ratio()), (Some(1.9), None));
    }
}
