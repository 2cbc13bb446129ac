//! What a group does with memory: levels of one instant, and rates between two.
//!
//! For `memory.stat` the kernel adds up the counters of all CPUs. So it is read with what changes slowly, once a second.
//! Only cgroup v2 tells of the pool and of faults; v1 has what is in use.

use crate::cgroup::Cgroup;
use std::time::Instant;
use surefoot_server::MemoryView;

/// Figures of one instant; None where the kernel does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryReading {
    pub at: Instant,
    pub in_use_bytes: Option<u64>,
    pub pool_bytes: Option<u64>,
    pub stored_bytes: Option<u64>,
    pub swapped_bytes: Option<u64>,
    /// Pages since the group was made.
    pub pool_ins: Option<u64>,
    pub disk_ins: Option<u64>,
    pub refaults: Option<u64>,
    /// Microseconds in which some task waited for memory, since the group was made.
    pub stalled_us: Option<u64>,
}

impl MemoryReading {
    /// `stalled_us`: of the group's `memory.pressure`, which is read with those of other resources.
    pub fn of(group: &Cgroup, stalled_us: Option<u64>, at: Instant) -> Self {
        let stat = group.memory_stat().unwrap_or_default();
        let of = |key: &str| value(&stat, key);
        MemoryReading {
            at,
            in_use_bytes: group.memory_bytes(),
            pool_bytes: of("zswap"),
            stored_bytes: of("zswapped"),
            // A copy in swap of a page that is in memory counts in both.
            swapped_bytes: group.swapped_bytes().map(|slots| slots.saturating_sub(of("swapcached").unwrap_or(0))),
            pool_ins: of("zswpin"),
            // Of a group since Linux 6.14; until then only of the host.
            disk_ins: of("pswpin"),
            refaults: of("workingset_refault_anon"),
            stalled_us,
        }
    }

    fn counters(&self) -> [Option<u64>; 4] {
        [self.pool_ins, self.disk_ins, self.refaults, self.stalled_us]
    }

    /// True where a counter went back: the group was made anew, and what it counts now is not of the time since `before`.
    fn begins_anew(&self, before: &Self) -> bool {
        self.counters().into_iter().zip(before.counters()).any(|(now, then)| now.zip(then).is_some_and(|(now, then)| now < then))
    }

    /// Levels of now, and rates since `before`; None without one.
    pub fn view(&self, before: Option<&Self>) -> MemoryView {
        let before = before.filter(|b| self.at > b.at && !self.begins_anew(b));
        let per_s = |of: fn(&Self) -> Option<u64>| {
            let before = before?;
            Some((of(self)? - of(before)?) as f64 / self.at.duration_since(before.at).as_secs_f64())
        };
        MemoryView {
            in_use_bytes: self.in_use_bytes,
            pool_bytes: self.pool_bytes,
            stored_bytes: self.stored_bytes,
            swapped_bytes: self.swapped_bytes,
            working_set_bytes: None,
            pool_swap_ins_per_s: per_s(|r| r.pool_ins),
            disk_swap_ins_per_s: per_s(|r| r.disk_ins),
            refaults_per_s: per_s(|r| r.refaults),
            // The two files are not read at one instant: a little more than all of the time can come out.
            stall_frac: per_s(|r| r.stalled_us).map(|us| (us * 1e-6).min(1.0)),
        }
    }
}

/// Number of a key in lines of "key number".
pub(crate) fn value(stat: &str, key: &str) -> Option<u64> {
    stat.lines().find_map(|l| l.split_once(' ').filter(|(k, _)| *k == key)?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::{v1, v2};
    use crate::cgroup::Mounts;
    use crate::root::tests::put;
    use std::time::Duration;

    /// As Linux 6.1 writes it, cut short: no `pswpin`, and `workingset_refault_file` beside that of anonymous pages.
    const STAT: &str = "anon 57671680\nfile 4096\nzswap 20971520\nzswapped 39845888\nworkingset_refault_anon 18484\n\
                        workingset_refault_file 3\npgmajfault 7\nzswpin 18500\nzswpout 33000\n";

    /// Levels at once, rates from the second reading on; what a kernel does not count is unknown, and the rest is known all the same.
    #[test]
    fn levels_and_rates_are_read_by_key() {
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        let stat = "/sys/fs/cgroup/app.slice/c/memory.stat";
        let at = Instant::now();
        assert_eq!(MemoryReading::of(&c, None, at).view(None), MemoryView { in_use_bytes: Some(8192), ..MemoryView::default() });
        put(&root, stat, STAT);
        put(&root, "/sys/fs/cgroup/app.slice/c/memory.swap.current", "50331648\n");
        let first = MemoryReading::of(&c, Some(9), at);
        let levels = MemoryView {
            in_use_bytes: Some(8192),
            pool_bytes: Some(20_971_520),
            stored_bytes: Some(39_845_888),
            swapped_bytes: Some(50_331_648),
            ..MemoryView::default()
        };
        assert_eq!(first.view(None), levels);
        assert_eq!(levels.compression_ratio(), Some(1.9));
        // 100 and 50 pages in two seconds, of which half was spent waiting.
        put(&root, stat, &STAT.replace("zswpin 18500", "zswpin 18600").replace("18484", "18534"));
        let second = MemoryReading::of(&c, Some(1_000_009), at + Duration::from_secs(2));
        let rates = MemoryView { pool_swap_ins_per_s: Some(50.0), refaults_per_s: Some(25.0), stall_frac: Some(0.5), ..levels };
        assert_eq!(second.view(Some(&first)), rates);
    }

    /// A page that came back and has its slot still is in memory, and not out (Linux 6.1 keeps such copies).
    #[test]
    fn a_page_with_a_copy_is_not_out() {
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        let g = "/sys/fs/cgroup/app.slice/c";
        put(&root, &format!("{g}/memory.swap.current"), "5000\n");
        let seen = |stat: &str| {
            put(&root, &format!("{g}/memory.stat"), stat);
            MemoryReading::of(&c, None, Instant::now()).view(None)
        };
        assert_eq!((seen("swapcached 3000\n").swapped_bytes, seen("anon 1\n").swapped_bytes), (Some(2000), Some(5000)));
        // 8192 in use and 2000 out; the two files are not read at one instant.
        assert_eq!((seen("swapcached 3000\n").footprint_bytes(), seen("swapcached 6000\n").swapped_bytes), (Some(10_192), Some(0)));
    }

    /// One counter that went back tells that all of them began anew: no rate for that interval, also not of a counter that has gone further
    /// by now, and none between two readings of one instant.
    #[test]
    fn a_group_made_anew_has_no_rates_for_a_while() {
        let at = Instant::now();
        let reading = |s: u64, pool_ins: u64, stalled_us: u64| MemoryReading {
            at: at + Duration::from_secs(s),
            in_use_bytes: None,
            pool_bytes: None,
            stored_bytes: None,
            swapped_bytes: None,
            pool_ins: Some(pool_ins),
            disk_ins: None,
            refaults: Some(pool_ins),
            stalled_us: Some(stalled_us),
        };
        let (old, anew, later) = (reading(0, 1000, 5), reading(1, 20, 90), reading(2, 60, 90));
        assert!(anew.view(Some(&old)).is_unknown() && anew.view(Some(&anew)).is_unknown());
        let seen = later.view(Some(&anew));
        assert_eq!((seen.pool_swap_ins_per_s, seen.stall_frac, seen.disk_swap_ins_per_s), (Some(40.0), Some(0.0), None));
    }

    /// v1 says what is in use, and nothing of a pool, even where its statistics have a line of that name.
    #[test]
    fn v1_has_what_is_in_use() {
        let (_dir, root) = v1();
        let add = "32 1 0:4 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let mounts = root.read("/proc/self/mountinfo").unwrap() + "\n" + add;
        put(&root, "/proc/self/mountinfo", &mounts);
        put(&root, "/proc/42/cgroup", "4:memory:/docker/c\n3:cpuset:/docker/c\n2:cpuacct:/docker/c\n1:cpu:/docker/c\n0::/\n");
        put(&root, "/sys/fs/cgroup/memory/docker/c/memory.usage_in_bytes", "4096\n");
        put(&root, "/sys/fs/cgroup/memory/docker/c/memory.stat", STAT);
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        let seen = MemoryReading::of(&c, None, Instant::now()).view(None);
        assert_eq!(seen, MemoryView { in_use_bytes: Some(4096), ..MemoryView::default() });
    }
}
