//! Hardware counters of a service: cycles, instructions and LLC misses by perf_event_open(2).
//!
//! By cgroup where the kernel can (one event a CPU), else by thread with inheritance. Counters that had to share the PMU are
//! scaled by enabled / running time; one that never ran is unknown.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;
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
/// read(2) gives value, time enabled, time running.
const FORMAT_TIMES: u64 = 1 | 2;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_HV: u64 = 1 << 6;
const OPEN_PID_CGROUP: libc::c_ulong = 1 << 2;
const OPEN_CLOEXEC: libc::c_ulong = 1 << 3;

fn open(kind: u32, config: u64, pid: i32, cpu: i32, extra: libc::c_ulong) -> io::Result<File> {
    let attr = Attr {
        kind,
        size: std::mem::size_of::<Attr>() as u32,
        config,
        read_format: FORMAT_TIMES,
        flags: FLAG_EXCLUDE_HV | if extra == 0 { FLAG_INHERIT } else { 0 },
        ..Attr::default()
    };
    // SAFETY: `attr` lives through the call and states its own size; the kernel returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, pid, cpu, -1, extra | OPEN_CLOEXEC) };
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

fn sum(files: &mut [File]) -> Option<f64> {
    if files.is_empty() {
        return None;
    }
    files.iter_mut().try_fold(0.0, |s, f| {
        let mut buf = [0u8; 24];
        f.read_exact(&mut buf).ok()?;
        let word = |i: usize| u64::from_ne_bytes(buf[8 * i..8 * i + 8].try_into().unwrap_or_default());
        Some(s + scaled(word(0), word(1), word(2))?)
    })
}

/// Open counters of one service.
#[derive(Debug, Default)]
pub struct Counters {
    cycles: Vec<File>,
    instructions: Vec<File>,
    llc_misses: Vec<File>,
}

impl Counters {
    /// All processes of a cgroup, on these CPUs. `dir` is its folder in the perf_event hierarchy (v2: any).
    ///
    /// # Errors
    /// The kernel's, for cycles; other events may be missing.
    pub fn of_cgroup(dir: &Path, cpus: &CpuSet) -> io::Result<Self> {
        let group = File::open(dir)?;
        let all = |config| -> io::Result<Vec<File>> {
            cpus.iter().map(|c| open(TYPE_HARDWARE, config, group.as_raw_fd(), c as i32, OPEN_PID_CGROUP)).collect()
        };
        Self::with(all)
    }

    /// These threads, and all that they start from now on.
    ///
    /// # Errors
    /// The kernel's, for cycles; other events may be missing.
    pub fn of_threads(tids: &[u32]) -> io::Result<Self> {
        let all = |config| -> io::Result<Vec<File>> {
            let mut files = vec![];
            for t in tids {
                match open(TYPE_HARDWARE, config, *t as i32, -1, 0) {
                    // It has ended since it was listed.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    other => files.push(other?),
                }
            }
            Ok(files)
        };
        Self::with(all)
    }

    fn with(all: impl Fn(u64) -> io::Result<Vec<File>>) -> io::Result<Self> {
        Ok(Counters {
            cycles: all(CYCLES)?,
            instructions: all(INSTRUCTIONS).unwrap_or_default(),
            llc_misses: all(CACHE_MISSES).unwrap_or_default(),
        })
    }

    pub fn read(&mut self) -> Counts {
        Counts { cycles: sum(&mut self.cycles), instructions: sum(&mut self.instructions), llc_misses: sum(&mut self.llc_misses) }
    }
}

/// Whether this process may count cycles at all.
///
/// # Errors
/// Why not, in one line.
pub fn probe() -> Result<(), String> {
    open(TYPE_HARDWARE, CYCLES, 0, -1, 0).map(|_| ()).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => "this machine has no performance counters (most virtual machines)".into(),
        Some(libc::EACCES | libc::EPERM) => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            format!("not allowed (kernel.perf_event_paranoid = {})", level.trim())
        }
        _ => format!("perf_event_open: {e}"),
    })
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

    /// Without events there is no count; a software event counts work of ours where the kernel has perf events at all.
    #[test]
    fn counting_works_where_there_is_something_to_count() {
        assert_eq!(Counters::default().read(), Counts::default());
        // Task clock: nanoseconds on CPU, needs no PMU.
        match open(TYPE_SOFTWARE, 1, 0, -1, 0) {
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)), "{e}"),
            Ok(f) => {
                let mut files = [f];
                let before = sum(&mut files).unwrap();
                let mut x = 1u64;
                while sum(&mut files).unwrap() - before < 1e6 {
                    x = std::hint::black_box(x.wrapping_mul(3));
                }
            }
        }
        // Either hardware counts, or the reason is one line.
        if let Err(why) = probe() {
            assert!(!why.is_empty() && why.lines().count() == 1);
        }
    }
}
