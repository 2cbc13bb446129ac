//! Hardware counters of a service: cycles, instructions and LLC misses by perf_event_open(2).
//!
//! By cgroup where the kernel can (one event a CPU), else by thread with inheritance. Counters that had to share the PMU are
//! scaled by enabled / running time; one that never ran is unknown.

#![allow(unsafe_code, reason = "perf_event_open, and the descriptor that it returns")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
use surefoot_io::input::{self, KERNEL_BYTES};
use surefoot_server::CpuSet;

/// `struct perf_event_attr`, first published size (64 bytes).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

const TYPE_HARDWARE: u32 = 0;
#[cfg(test)]
const TYPE_SOFTWARE: u32 = 1;
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
const CACHE_MISSES: u64 = 3;
/// In the order of the fields of [`Counts`].
const EVENTS: [u64; 3] = [CYCLES, INSTRUCTIONS, CACHE_MISSES];
/// read(2) gives value, time enabled, time running.
const FORMAT_TIMES: u64 = 1 | 2;
/// With [`FORMAT_TIMES`]: number of events, time enabled, time running, and the value of each.
const FORMAT_GROUP: u64 = 8;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const OPEN_PID_CGROUP: libc::c_ulong = 1 << 2;
const OPEN_CLOEXEC: libc::c_ulong = 1 << 3;

fn open(kind: u32, config: u64, pid: i32, cpu: i32, group: Option<&File>, more: Attr, extra: libc::c_ulong) -> io::Result<File> {
    let attr = Attr { kind, size: std::mem::size_of::<Attr>() as u32, config, flags: more.flags | FLAG_EXCLUDE_HV, ..more };
    let group = group.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: `attr` lives through the call and states its own size; the kernel returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, pid, cpu, group, extra | OPEN_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor of our own, just opened.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Counts so far; None where the PMU has no such event or gave it no time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub cycles: Option<f64>,
    pub instructions: Option<f64>,
    pub llc_misses: Option<f64>,
}

/// Value scaled for the time in which it was not counted.
fn scaled(value: u64, enabled: u64, running: u64) -> Option<f64> {
    match (enabled, running) {
        // Never scheduled in: a thread that has not run has counted nothing, one that has was not counted.
        (0, _) => Some(0.0),
        (_, 0) => None,
        (e, r) => Some(value as f64 * (e as f64 / r as f64).max(1.0)),
    }
}

fn words<const N: usize>(file: &mut File) -> Option<[u64; N]> {
    let mut buf = [0u8; 64];
    file.read_exact(&mut buf[..8 * N]).ok()?;
    Some(std::array::from_fn(|i| u64::from_ne_bytes(buf[8 * i..8 * i + 8].try_into().unwrap_or_default())))
}

/// Events of one CPU or thread, opened in the order of [`EVENTS`]; the first is always there.
#[derive(Debug)]
struct Sensor {
    /// None: a thread, wherever it runs.
    cpu: Option<u32>,
    /// Where the kernel reads them together, one read of the first tells all.
    together: bool,
    events: [Option<File>; EVENTS.len()],
    seen: Option<[Option<f64>; EVENTS.len()]>,
}

impl Sensor {
    fn read(&mut self) -> Option<[Option<f64>; EVENTS.len()]> {
        if !self.together {
            return Some(self.events.each_mut().map(|f| {
                let [value, enabled, running] = words(f.as_mut()?)?;
                scaled(value, enabled, running)
            }));
        }
        let there = self.events.each_ref().map(Option::is_some);
        let leader = self.events[0].as_mut()?;
        // How many, time enabled, time running, and a value of each.
        let head: Vec<u64> = match there.iter().filter(|t| **t).count() {
            1 => words::<4>(leader)?.into(),
            2 => words::<5>(leader)?.into(),
            _ => words::<6>(leader)?.into(),
        };
        let mut values = head[3..].iter();
        Some(there.map(|t| t.then(|| values.next()).flatten().and_then(|v| scaled(*v, head[1], head[2]))))
    }
}

/// Open counters of one service.
#[derive(Debug, Default)]
pub struct Counters {
    sensors: Vec<Sensor>,
    /// Where it ran until the last reading.
    ran_on: Option<CpuSet>,
}

impl Counters {
    /// All processes of a cgroup, on these CPUs. `dir` is its folder in the perf_event hierarchy (v2: any).
    ///
    /// # Errors
    /// The kernel's, for cycles; other events may be missing.
    pub fn of_cgroup(dir: &Path, cpus: &CpuSet) -> io::Result<Self> {
        let group = File::open(dir)?;
        let attr = || Attr { read_format: FORMAT_TIMES | FORMAT_GROUP, ..Attr::default() };
        let one = |c: u32| {
            let event =
                |config, leader: Option<&File>| open(TYPE_HARDWARE, config, group.as_raw_fd(), c as i32, leader, attr(), OPEN_PID_CGROUP);
            let first = event(EVENTS[0], None)?;
            let rest = [1, 2].map(|i| event(EVENTS[i], Some(&first)).ok());
            let [second, third] = rest;
            Ok(Sensor { cpu: Some(c), together: true, events: [Some(first), second, third], seen: None })
        };
        Ok(Counters { sensors: cpus.iter().map(one).collect::<io::Result<_>>()?, ran_on: None })
    }

    /// These threads, and all that they start from now on. The kernel reads inherited events only one by one.
    ///
    /// # Errors
    /// The kernel's, for cycles; other events may be missing.
    pub fn of_threads(tids: &[u32]) -> io::Result<Self> {
        let attr = || Attr { read_format: FORMAT_TIMES, flags: FLAG_INHERIT, ..Attr::default() };
        let mut sensors = vec![];
        for t in tids {
            let event = |config| open(TYPE_HARDWARE, config, *t as i32, -1, None, attr(), 0);
            match event(EVENTS[0]) {
                // It has ended since it was listed.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                first => {
                    let events = [Some(first?), event(EVENTS[1]).ok(), event(EVENTS[2]).ok()];
                    sensors.push(Sensor { cpu: None, together: false, events, seen: None });
                }
            }
        }
        Ok(Counters { sensors, ran_on: None })
    }

    /// Counts until now of a service that is kept on these CPUs; None: it may run on any.
    ///
    /// Reading a counter interrupts its CPU, so that those where the service cannot have run since are not asked.
    pub fn read(&mut self, on: Option<&CpuSet>) -> Counts {
        let before = std::mem::replace(&mut self.ran_on, on.copied());
        let may_run = |cpu: Option<u32>| match (cpu, on, &before) {
            (Some(c), Some(on), Some(before)) => on.contains(c) || before.contains(c),
            _ => true,
        };
        let mut sum = [(!self.sensors.is_empty()).then_some(0.0); EVENTS.len()];
        for s in &mut self.sensors {
            if s.seen.is_none() || may_run(s.cpu) {
                s.seen = s.read();
            }
            let seen = s.seen.unwrap_or_default();
            sum = std::array::from_fn(|i| Some(sum[i]? + seen[i]?));
        }
        Counts { cycles: sum[0], instructions: sum[1], llc_misses: sum[2] }
    }
}

/// As many open files as this process may have: counters take three for each CPU and service.
pub fn allow_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through both calls. Where they are refused the limit stays as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Whether this process may count cycles at all.
///
/// # Errors
/// Why not.
pub fn probe() -> Result<(), NoCounters> {
    open(TYPE_HARDWARE, CYCLES, 0, -1, None, Attr::default(), 0).map(|_| ()).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => NoCounters::Absent,
        Some(libc::EACCES | libc::EPERM) => {
            let level = input::text(Path::new("/proc/sys/kernel/perf_event_paranoid"), KERNEL_BYTES).unwrap_or_default();
            NoCounters::Refused(format!("not allowed (kernel.perf_event_paranoid = {})", level.trim()))
        }
        _ => NoCounters::Refused(format!("perf_event_open: {e}")),
    })
}

/// Why nothing can be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoCounters {
    /// There are none, whoever asks.
    Absent,
    /// The kernel does not let this process; in one line.
    Refused(String),
}

impl std::fmt::Display for NoCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NoCounters::Absent => f.write_str("this machine has no performance counters (most virtual machines)"),
            NoCounters::Refused(why) => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that ran a quarter of the time counts four times; one that never ran is unknown.
    #[test]
    fn multiplexing_is_corrected() {
        assert_eq!(scaled(100, 40, 10), Some(400.0));
        assert_eq!(scaled(100, 10, 10), Some(100.0));
        assert_eq!(scaled(0, 40, 0), None);
        assert_eq!(scaled(0, 0, 0), Some(0.0));
    }

    /// The attribute structure has the size the kernel first published.
    #[test]
    fn the_attribute_has_the_published_size() {
        assert_eq!(std::mem::size_of::<Attr>(), 64);
    }

    fn software(config: u64, leader: Option<&File>, read_format: u64) -> io::Result<File> {
        open(TYPE_SOFTWARE, config, 0, -1, leader, Attr { read_format, ..Attr::default() }, 0)
    }

    /// Without events there is no count; software events count work of ours, one by one and read together, where the kernel has
    /// perf events at all.
    #[test]
    fn counting_works_where_there_is_something_to_count() {
        assert_eq!(Counters::default().read(None), Counts::default());
        // Task clock (nanoseconds on CPU) and page faults need no PMU.
        let (clock, faults) = (1, 2);
        match software(clock, None, FORMAT_TIMES) {
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)), "{e}"),
            Ok(one) => {
                let together = FORMAT_TIMES | FORMAT_GROUP;
                let leader = software(clock, None, together).unwrap();
                let second = software(faults, Some(&leader), together).unwrap();
                for (together, events) in [(false, [Some(one), None, None]), (true, [Some(leader), None, Some(second)])] {
                    let sensor = Sensor { cpu: None, together, events, seen: None };
                    let mut c = Counters { sensors: vec![sensor], ran_on: None };
                    let before = c.read(None);
                    assert_eq!((before.instructions, before.llc_misses.is_some()), (None, together));
                    // More than an allocator keeps at hand: its pages are new.
                    drop(std::hint::black_box(vec![1u8; 40 << 20]));
                    let after = c.read(None);
                    assert!(after.cycles > before.cycles && (!together || after.llc_misses > before.llc_misses), "{after:?}");
                }
            }
        }
        // Either hardware counts, or the reason is one line.
        if let Err(why) = probe() {
            assert_eq!(why.to_string().lines().count(), 1);
        }
    }

    /// A CPU is asked while the service may run there and once after it has left; then its last count stands.
    #[test]
    fn cpus_without_the_service_are_left_alone() {
        let clock = match software(1, None, FORMAT_TIMES) {
            Ok(f) => f,
            Err(e) => return eprintln!("NOT RUN: this kernel opens no perf events: {e}"),
        };
        let sensor = Sensor { cpu: Some(3), together: false, events: [Some(clock), None, None], seen: None };
        let mut c = Counters { sensors: vec![sensor], ran_on: None };
        let mut read = |on: u32| {
            let on = CpuSet::range(on, on + 1);
            c.read(Some(&on));
            c.sensors[0].seen.unwrap()[0].unwrap()
        };
        let (first, there) = (read(3), read(3));
        let left = read(0);
        assert!(first < there && there < left);
        assert_eq!((read(0), read(1)), (left, left));
        assert!(read(3) > left);
    }
}
