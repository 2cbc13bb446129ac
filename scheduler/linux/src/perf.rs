//! Hardware counters of a service: cycles, instructions and LLC misses by perf_event_open(2).
//!
//! The kernel's generic event "cache misses" counts misses of the last-level cache on Intel only: on AMD's Zen it counts those of the
//! L2, on Arm those of the L1. [`Misses`] says what is counted instead.
//!
//! By cgroup where the kernel can (one event a CPU), else by thread with inheritance. Counters that had to share the PMU are
//! scaled by enabled / running time; one that never ran is unknown.

#![allow(unsafe_code, reason = "perf_event_open, the descriptor that it returns, and the CPUID instruction")]

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
/// Events of one sensor at most: cycles, instructions, and those that add up to LLC misses.
const MOST_EVENTS: usize = 4;
/// The first of those.
const MISSES: usize = 2;

/// Kind and number of an event, as the kernel takes them.
type Event = (u32, u64);

/// Which processor this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    Intel,
    /// AMD, or Hygon, whose processors are AMD's first Zen.
    Amd {
        family: u32,
        model: u32,
    },
    Arm,
    Other,
}

/// How misses of the last-level cache are counted for a task or a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misses {
    /// Their sum; none: this processor's are not known.
    pub events: &'static [Event],
    /// What is counted, in words.
    pub what: &'static str,
}

const TYPE_CACHE: u32 = 3;
const TYPE_RAW: u32 = 4;
/// Last-level cache, read, miss.
const CACHE_LL_READ_MISS: u64 = 2 | 1 << 16;

/// An event of AMD's core PMU with its unit mask.
const fn amd(event: u64, umask: u64) -> Event {
    (TYPE_RAW, event | umask << 8)
}

const INTEL_MISSES: &[Event] = &[(TYPE_HARDWARE, CACHE_MISSES)];
const ARM_MISSES: &[Event] = &[(TYPE_CACHE, CACHE_LL_READ_MISS)];
const ZEN_MISSES: &[Event] = &[amd(0x43, 0x58), amd(0x72, 0xff)];
const ZEN3_MISSES: &[Event] = &[amd(0x44, 0x5c), amd(0x72, 0x1f)];
const ZEN4_MISSES: &[Event] = &[amd(0x44, 0xdc), amd(0x72, 0x1f)];

impl Misses {
    /// The L3's own PMU (amd_l3) counts a whole core complex and no task. The core's events tell where data came from. Facts: perf's
    /// tables (tools/perf/pmu-events/arch/x86/amdzen1 to amdzen5), which are those of AMD's processor programming references.
    ///
    /// PMCx043 (Zen 1 and 2: demand) and PMCx044 (from Zen 3 on: any) count fills of the L1 data cache by source: 0x04 a cache of
    /// another complex near, 0x08 memory near, 0x10 a cache of another complex far, 0x40 memory far, 0x80 from Zen 4 on other memory (CXL).
    /// PMCx072 counts prefetches into the L2 that miss the L3: from Zen 3 on 0x1f are those of the L2's own prefetchers, as those of the L1
    /// are fills. Fetches of code are in neither.
    pub fn of(processor: Processor) -> Self {
        const FILLS: &str = "data fills from beyond the L3, and L2 prefetches that miss it";
        let (events, what) = match processor {
            Processor::Intel => (INTEL_MISSES, "the architectural event LLC misses"),
            Processor::Arm => (ARM_MISSES, "reads that miss the last-level cache"),
            Processor::Amd { family: 0x17 | 0x18, .. } => (ZEN_MISSES, FILLS),
            Processor::Amd { family: 0x19, model: 0x00..=0x0f | 0x20..=0x5f } => (ZEN3_MISSES, FILLS),
            // Zen 4, Zen 5, and what keeps their numbers.
            Processor::Amd { family: 0x19.., .. } => (ZEN4_MISSES, FILLS),
            Processor::Amd { .. } | Processor::Other => {
                (&[][..], "not known: the kernel's generic event is another cache's on this processor")
            }
        };
        Misses { events, what }
    }
}

/// The processor that this runs on, by its own word.
#[cfg(target_arch = "x86_64")]
pub fn processor() -> Processor {
    use std::arch::x86_64::__cpuid;
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has these two leaves.
    let (vendor, version) = unsafe { (__cpuid(0), __cpuid(1)) };
    let name: Vec<u8> = [vendor.ebx, vendor.edx, vendor.ecx].iter().flat_map(|w| w.to_le_bytes()).collect();
    let (family, model) = (version.eax >> 8 & 0xf, version.eax >> 4 & 0xf);
    let extended = (version.eax >> 20 & 0xff, version.eax >> 16 & 0xf);
    match name.as_slice() {
        b"GenuineIntel" => Processor::Intel,
        b"AuthenticAMD" | b"HygonGenuine" if family == 0xf => {
            Processor::Amd { family: family + extended.0, model: model | extended.1 << 4 }
        }
        b"AuthenticAMD" => Processor::Amd { family, model },
        _ => Processor::Other,
    }
}

#[cfg(target_arch = "aarch64")]
pub fn processor() -> Processor {
    Processor::Arm
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn processor() -> Processor {
    Processor::Other
}

/// What a sensor counts, in the order of [`Sensor::events`].
fn events(misses: &Misses) -> Vec<Event> {
    let first = [(TYPE_HARDWARE, CYCLES), (TYPE_HARDWARE, INSTRUCTIONS)];
    first.into_iter().chain(misses.events.iter().copied()).take(MOST_EVENTS).collect()
}
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

/// Events of one CPU or thread; the first is always there.
#[derive(Debug)]
struct Sensor {
    /// None: a thread, wherever it runs.
    cpu: Option<u32>,
    /// Where the kernel reads them together, one read of the first tells all.
    together: bool,
    events: [Option<File>; MOST_EVENTS],
    seen: Option<[Option<f64>; MOST_EVENTS]>,
}

impl Sensor {
    fn read(&mut self) -> Option<[Option<f64>; MOST_EVENTS]> {
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
            3 => words::<6>(leader)?.into(),
            _ => words::<7>(leader)?.into(),
        };
        let mut values = head[3..].iter();
        Some(there.map(|t| t.then(|| values.next()).flatten().and_then(|v| scaled(*v, head[1], head[2]))))
    }
}

/// Open counters of one service.
#[derive(Debug, Default)]
pub struct Counters {
    sensors: Vec<Sensor>,
    /// How many events LLC misses are the sum of.
    misses: usize,
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
        let misses = Misses::of(processor());
        let all = events(&misses);
        let one = |c: u32| {
            let event = |(kind, config): Event, leader: Option<&File>| {
                open(kind, config, group.as_raw_fd(), c as i32, leader, attr(), OPEN_PID_CGROUP)
            };
            let first = event(all[0], None)?;
            let mut opened: [Option<File>; MOST_EVENTS] = Default::default();
            for (i, e) in all.iter().enumerate().skip(1) {
                opened[i] = event(*e, Some(&first)).ok();
            }
            opened[0] = Some(first);
            Ok(Sensor { cpu: Some(c), together: true, events: opened, seen: None })
        };
        Ok(Counters { sensors: cpus.iter().map(one).collect::<io::Result<_>>()?, misses: misses.events.len(), ran_on: None })
    }

    /// These threads, and all that they start from now on. The kernel reads inherited events only one by one.
    ///
    /// # Errors
    /// The kernel's, for cycles; other events may be missing.
    pub fn of_threads(tids: &[u32]) -> io::Result<Self> {
        let attr = || Attr { read_format: FORMAT_TIMES, flags: FLAG_INHERIT, ..Attr::default() };
        let mut sensors = vec![];
        let misses = Misses::of(processor());
        let all = events(&misses);
        for t in tids {
            let event = |(kind, config): Event| open(kind, config, *t as i32, -1, None, attr(), 0);
            match event(all[0]) {
                // It has ended since it was listed.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                first => {
                    let mut events: [Option<File>; MOST_EVENTS] = Default::default();
                    events[0] = Some(first?);
                    for (i, e) in all.iter().enumerate().skip(1) {
                        events[i] = event(*e).ok();
                    }
                    sensors.push(Sensor { cpu: None, together: false, events, seen: None });
                }
            }
        }
        Ok(Counters { sensors, misses: misses.events.len(), ran_on: None })
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
        let mut sum = [(!self.sensors.is_empty()).then_some(0.0); MOST_EVENTS];
        for s in &mut self.sensors {
            if s.seen.is_none() || may_run(s.cpu) {
                s.seen = s.read();
            }
            let seen = s.seen.unwrap_or_default();
            sum = std::array::from_fn(|i| Some(sum[i]? + seen[i]?));
        }
        // All of them or none: a part of the misses is no count of them.
        let misses: Option<f64> = sum[MISSES..].iter().take(self.misses).copied().sum();
        Counts { cycles: sum[0], instructions: sum[1], llc_misses: misses.filter(|_| self.misses > 0) }
    }
}

/// As many open files as this process may have: counters take up to four for each CPU and service.
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

    /// LLC misses are those of the last-level cache on each kind of processor: never the generic event but on Intel, where it is that; what
    /// is not known is not counted. Numbers as in perf's tables: event in the low byte, unit mask above it.
    #[test]
    fn misses_are_those_of_the_last_level_cache() {
        let of = |p| Misses::of(p).events;
        let zen = |family, model| of(Processor::Amd { family, model });
        assert_eq!(of(Processor::Intel), [(TYPE_HARDWARE, CACHE_MISSES)]);
        // Zen 1 and 2, Hygon; Zen 3 (Milan, Vermeer); Zen 4 (Genoa, Raphael, Bergamo); Zen 5.
        for (family, model) in [(0x17, 0x01), (0x17, 0x31), (0x17, 0x71), (0x18, 0x00)] {
            assert_eq!(zen(family, model), [(TYPE_RAW, 0x5843), (TYPE_RAW, 0xff72)]);
        }
        for model in [0x01, 0x08, 0x21, 0x50] {
            assert_eq!(zen(0x19, model), [(TYPE_RAW, 0x5c44), (TYPE_RAW, 0x1f72)]);
        }
        for (family, model) in [(0x19, 0x11), (0x19, 0x61), (0x19, 0xa0), (0x1a, 0x02), (0x1a, 0x44)] {
            assert_eq!(zen(family, model), [(TYPE_RAW, 0xdc44), (TYPE_RAW, 0x1f72)]);
        }
        assert_eq!(of(Processor::Arm), [(TYPE_CACHE, 0x10002)]);
        for unknown in [Processor::Other, Processor::Amd { family: 0x15, model: 2 }] {
            assert!(of(unknown).is_empty() && Misses::of(unknown).what.contains("not known"));
        }
        assert!(Misses::of(processor()).events.len() + MISSES <= MOST_EVENTS);
    }

    /// Two events add up to the misses; where one of the two cannot be counted, and where none is known, the misses are unknown.
    #[test]
    fn a_part_of_the_misses_is_no_count() {
        let seen =
            |third, fourth| Sensor { cpu: None, together: false, events: Default::default(), seen: Some([None, None, third, fourth]) };
        let count = |misses, third, fourth| {
            let mut c = Counters { sensors: vec![seen(third, fourth)], misses, ran_on: None };
            // Its CPU is none of those where it may have run, so that what was seen stands.
            c.sensors[0].cpu = Some(3);
            c.ran_on = Some(CpuSet::range(0, 1));
            c.read(Some(&CpuSet::range(0, 1))).llc_misses
        };
        assert_eq!(count(2, Some(30.0), Some(12.0)), Some(42.0));
        assert_eq!((count(2, Some(30.0), None), count(1, Some(30.0), None), count(0, Some(30.0), None)), (None, Some(30.0), None));
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
                for (together, events) in [(false, [Some(one), None, None, None]), (true, [Some(leader), None, Some(second), None])] {
                    let sensor = Sensor { cpu: None, together, events, seen: None };
                    let mut c = Counters { sensors: vec![sensor], misses: 1, ran_on: None };
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
        let sensor = Sensor { cpu: Some(3), together: false, events: [Some(clock), None, None, None], seen: None };
        let mut c = Counters { sensors: vec![sensor], misses: 1, ran_on: None };
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
