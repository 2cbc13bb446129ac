//! What a thread asks of the scheduler, what it got, and whether the kernel stopped it for using too much real time.

#![allow(unsafe_code, reason = "scheduling policy of the calling thread")]

use crate::pace::RealtimeLimit;
use std::path::Path;
use surefoot_io::input::{self, KERNEL_BYTES};

fn read(root: &Path, file: &str) -> Option<String> {
    input::text(&root.join(file), KERNEL_BYTES).ok()
}

/// The limit on real time that counts here: the machine's, or that of this process's control group (version 1) if it is tighter.
/// The usual one where the kernel tells none. `root` is `/`.
pub fn limit(root: &Path) -> RealtimeLimit {
    let kernel = |name: &str| read(root, &format!("proc/sys/kernel/sched_rt_{name}_us")).unwrap_or_default();
    let machine = RealtimeLimit::parse(&kernel("runtime"), &kernel("period")).unwrap_or_default();
    let groups = read(root, "proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|c| c == "cpu").then_some(path)
    });
    let group = ["cpu", "cpu,cpuacct"].iter().find_map(|mount| {
        let of = |name: &str| read(root, &format!("sys/fs/cgroup/{mount}{}/cpu.rt_{name}_us", path?));
        RealtimeLimit::parse(&of("runtime")?, &of("period")?)
    });
    let share = |l: &RealtimeLimit| l.runtime_ns as f64 / l.period_ns.max(1) as f64;
    group.filter(|g| share(g) < share(&machine)).unwrap_or(machine)
}

fn set_policy(policy: i32, priority: i32) -> bool {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: a plain system call on the calling thread; `param` outlives it.
    unsafe { libc::sched_setscheduler(0, policy, &param) == 0 }
}

/// The priority with which the calling thread runs before ordinary ones, by its own doing or by that of its parent; none: it does not.
pub fn priority() -> Option<i32> {
    // SAFETY: a plain system call on the calling thread.
    let on = matches!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_FIFO | libc::SCHED_RR);
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: a system call on the calling thread that fills `param`.
    (on && unsafe { libc::sched_getparam(0, &mut param) } == 0).then_some(param.sched_priority)
}

/// Let the calling thread go first. Refused without CAP_SYS_NICE.
pub fn take(priority: i32) -> bool {
    set_policy(libc::SCHED_FIFO, priority) || self::priority().is_some()
}

/// Make the calling thread an ordinary one.
pub fn give_back() {
    if priority().is_some() {
        set_policy(libc::SCHED_OTHER, 0);
    }
}

/// Before other ordinary threads, where that is allowed.
pub fn before_others() {
    // SAFETY: a plain system call on the calling thread; a refusal changes nothing.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// (time on a CPU, time ready but without one) of the calling thread so far, ns; none if the kernel does not keep it.
pub fn schedstat() -> Option<(u64, u64)> {
    let text = read(Path::new("/"), "proc/thread-self/schedstat")?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Finds stops by the kernel: gaps of about the length that its limit makes, in which a thread with real-time priority was ready and
/// had no CPU. A gap in which the thread was not made to wait is another's doing: a hypervisor's, or a signal's.
#[derive(Debug)]
pub struct Stops {
    least_ns: u64,
    /// Time ready without a CPU, up to `read_ns`.
    waited_ns: Option<u64>,
    read_ns: Option<u64>,
    pub count: u64,
    pub stopped_ns: u64,
}

/// The account of waiting is brought up to date so often: small waits of an hour are not the wait of one gap.
const READ_EVERY_NS: u64 = 1_000_000_000;
/// The shortest stop, whatever the kernel's numbers: any scheduler makes a thread wait for some ms.
const LEAST_STOP_NS: u64 = 5_000_000;

impl Stops {
    pub fn new(limit: RealtimeLimit) -> Self {
        Stops { least_ns: (limit.stop_ns() / 2).max(LEAST_STOP_NS), waited_ns: None, read_ns: None, count: 0, stopped_ns: 0 }
    }

    /// The thread came `gap_ns` later than it should have. `waited` reads the time ready without a CPU. Returns whether it was stopped.
    pub fn gap(&mut self, now_ns: u64, gap_ns: u64, waited: impl FnOnce() -> Option<u64>) -> bool {
        let long = gap_ns >= self.least_ns;
        if !long && self.read_ns.is_some_and(|read_ns| now_ns.saturating_sub(read_ns) < READ_EVERY_NS) {
            return false;
        }
        let before = std::mem::replace(&mut self.waited_ns, waited());
        self.read_ns = Some(now_ns);
        let waited_ns = self.waited_ns.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        let stopped = long && waited_ns >= gap_ns / 2;
        if stopped {
            self.count += 1;
            self.stopped_ns += gap_ns;
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The tighter of machine and control group counts; without either, what kernels come with.
    #[test]
    fn the_tighter_limit_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(limit(dir.path()), RealtimeLimit::default());
        write("proc/sys/kernel/sched_rt_runtime_us", "none");
        assert_eq!(limit(dir.path()), RealtimeLimit::default());
        write("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
        write("proc/sys/kernel/sched_rt_period_us", "1000000\n");
        let runtime_ms = || limit(dir.path()).runtime_ns / MS;
        assert_eq!(runtime_ms(), 950);
        write("proc/self/cgroup", "4:memory:/m\n2:cpu,cpuacct:/lab\n0::/\n");
        assert_eq!(runtime_ms(), 950);
        write("sys/fs/cgroup/cpu,cpuacct/lab/cpu.rt_runtime_us", "600000\n");
        write("sys/fs/cgroup/cpu,cpuacct/lab/cpu.rt_period_us", "1000000\n");
        assert_eq!(runtime_ms(), 600);
        write("sys/fs/cgroup/cpu,cpuacct/lab/cpu.rt_runtime_us", "990000\n");
        assert_eq!(runtime_ms(), 950);
    }

    /// A long gap spent ready without a CPU is a stop; a long gap of another cause, a short one, and many small waits are none.
    #[test]
    fn stops_are_told_from_other_gaps() {
        let mut s = Stops::new(RealtimeLimit::default());
        assert!(!s.gap(0, 0, || Some(0)));
        // 50 ms, all of them waited for.
        assert!(s.gap(100 * MS, 50 * MS, || Some(50 * MS)));
        // A hypervisor's: no wait came on top.
        assert!(!s.gap(200 * MS, 50 * MS, || Some(51 * MS)));
        // A busy machine's; it is not even looked up.
        assert!(!s.gap(300 * MS, 3 * MS, || panic!()));
        // 40 ms of small waits in two seconds, then a gap that was not waited for.
        assert!(!s.gap(2_300 * MS, 0, || Some(91 * MS)));
        assert!(!s.gap(2_400 * MS, 45 * MS, || Some(92 * MS)));
        assert!(!s.gap(2_500 * MS, 45 * MS, || None));
        assert_eq!((s.count, s.stopped_ns), (1, 50 * MS));
    }

    /// The kernel's figures are of this thread: they grow while it works.
    #[test]
    fn schedstat_grows_with_work() {
        let Some(before) = schedstat() else {
            // A kernel without CONFIG_SCHED_INFO; the report then says null.
            assert!(!Path::new("/proc/thread-self/schedstat").exists());
            return;
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while schedstat().is_none_or(|now| now.0 < before.0 + 1_000_000) {
            assert!(std::time::Instant::now() < deadline, "no CPU time in 20 s of work");
        }
    }
}
