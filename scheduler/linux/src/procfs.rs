//! Memory, frequency and process facts from procfs and cpufreq.

#![allow(unsafe_code, reason = "sysconf, pidfd_open and sched_getaffinity")]

use crate::root::Root;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use surefoot_server::features::{core_freq_mhz, Frequency};
use surefoot_server::{CpuSet, Waits};

/// A page of this host, bytes.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf only reads a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}

/// A page of this host, MB (2^20 bytes).
pub fn page_mb() -> f64 {
    page_bytes() as f64 / f64::from(1 << 20)
}

/// Virtual and resident memory of some processes, MB (2^20 bytes); None where none of them is left.
pub fn memory_mb(root: &Root, pids: &[u32]) -> Option<(f64, f64)> {
    let page = page_mb();
    let mut sum: Option<(f64, f64)> = None;
    for pid in pids {
        let Some(text) = root.read(format!("/proc/{pid}/statm")) else { continue };
        let mut pages = text.split_whitespace().map(|t| t.parse::<f64>().ok());
        let (Some(Some(virt)), Some(Some(res))) = (pages.next(), pages.next()) else { continue };
        let (v, r) = sum.unwrap_or((0.0, 0.0));
        sum = Some((v + virt * page, r + res * page));
    }
    sum
}

/// Memory of this host, bytes, without what the kernel itself took at its start; None where it does not say.
///
/// In a container lxcfs may show the container's limit in `/proc/meminfo`. It shows the files of the NUMA nodes as they are.
pub fn memory_bytes(root: &Root) -> Option<u64> {
    let total = |text: String| {
        let kb = text.lines().find_map(|l| l.split_once("MemTotal:"))?.1.trim().strip_suffix("kB")?;
        kb.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let nodes = root.read("/sys/devices/system/node/online").and_then(|t| CpuSet::of_kernel(&t).ok()).unwrap_or_default();
    let of_nodes = nodes.iter().filter_map(|n| total(root.read(format!("/sys/devices/system/node/node{n}/meminfo"))?));
    let shown = root.read("/proc/meminfo").and_then(total)?;
    Some(shown.max(of_nodes.fold(0, u64::saturating_add)))
}

/// Bits of a set of CPUs as the kernel gives it: as many as any kernel has (NR_CPUS of x86-64). It refuses buffers that are too short.
const MOST_CPUS: usize = 8192;

/// CPUs on line that a process (0: this thread) may run on, by the kernel's own word; None where it does not tell.
pub fn may_run_on(pid: u32) -> Option<CpuSet> {
    let mut bits = [0u64; MOST_CPUS / 64];
    let pid = libc::c_long::from(i32::try_from(pid).ok()?);
    // SAFETY: plain bits, whose size is stated; the kernel says how many bytes it wrote.
    let n = unsafe { libc::syscall(libc::SYS_sched_getaffinity, pid, std::mem::size_of_val(&bits), bits.as_mut_ptr()) };
    if n <= 0 {
        return None;
    }
    Some((0..CpuSet::CAPACITY).filter(|c| bits[*c as usize / 64] >> (c % 64) & 1 == 1).collect())
}

/// Frequencies at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frequencies {
    of: BTreeMap<u32, Frequency>,
}

impl Frequencies {
    /// Of all CPUs by `/proc/cpuinfo`, which is one read; of those of `cpus` that it does not have (Arm; in a container lxcfs shows fewer)
    /// by cpufreq.
    ///
    /// Some kernels (4.13 to 5.17) sleep 10 ms over each of cpufreq's files and once over the whole of `/proc/cpuinfo`.
    pub fn read(root: &Root, cpus: &CpuSet) -> Self {
        let mut of = cpuinfo(root);
        let khz = |c: u32| root.read(format!("{}/scaling_cur_freq", cpufreq(c)))?.parse::<f64>().ok();
        let missing: Vec<u32> = cpus.iter().filter(|c| !of.contains_key(c)).collect();
        of.extend(missing.into_iter().filter_map(|c| Some((c, Frequency::Measured(khz(c)? / 1000.0)))));
        Frequencies { of }
    }

    /// Mean over some CPUs, MHz ([`core_freq_mhz`]); None where the host shows none of them.
    pub fn mean_mhz(&self, cpus: &CpuSet) -> Option<f64> {
        core_freq_mhz(cpus.iter().filter_map(|c| self.of.get(&c).copied()))
    }

    /// Whether any of these CPUs is measured.
    pub fn measures(&self, cpus: &CpuSet) -> bool {
        cpus.iter().any(|c| matches!(self.of.get(&c), Some(Frequency::Measured(_))))
    }
}

fn cpufreq(cpu: u32) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq")
}

/// "cpu MHz" of each CPU in `/proc/cpuinfo`.
///
/// The kernel's figure comes of the counters APERF and MPERF, else of cpufreq's driver. Without either it is that of the data sheet.
fn cpuinfo(root: &Root) -> BTreeMap<u32, Frequency> {
    let (mut cpu, mut mhz, mut counted) = (None, BTreeMap::new(), BTreeSet::new());
    for line in root.read("/proc/cpuinfo").unwrap_or_default().lines() {
        let Some((k, v)) = line.split_once(':') else { continue };
        match k.trim() {
            "processor" => cpu = v.trim().parse::<u32>().ok(),
            "cpu MHz" => mhz.extend(cpu.zip(v.trim().parse::<f64>().ok())),
            "flags" if v.split_whitespace().any(|f| f == "aperfmperf") => counted.extend(cpu),
            _ => {}
        }
    }
    let measured = |c: &u32| counted.contains(c) || root.files.is_dir(&root.path(cpufreq(*c)));
    mhz.into_iter().map(|(c, mhz)| (c, if measured(&c) { Frequency::Measured(mhz) } else { Frequency::Nominal(mhz) })).collect()
}

/// Start time of a process in clock ticks since boot: with the pid it names a process for good.
pub fn start_time(root: &Root, pid: u32) -> Option<u64> {
    // The command's name, in brackets, may hold blanks.
    let stat = root.read(format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// The CPU on which a thread runs at this instant, or would if it had one; Some(None): it sleeps. None where there is no such thread.
pub fn runs_on(root: &Root, tid: u32) -> Option<Option<u32>> {
    let stat = root.read(format!("/proc/{tid}/stat"))?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let runs = fields.next()? == "R";
    let cpu = fields.nth(35)?.parse().ok()?;
    Some(runs.then_some(cpu))
}

/// Time that a thread was ready and had no CPU, ns, and how often it was given one, since its start.
///
/// None where the kernel does not count it (CONFIG_SCHED_INFO): each field is 0 then, also of threads that have run.
pub fn waited(root: &Root, tid: u32) -> Option<(u64, u64)> {
    waited_of(root, &tid.to_string())
}

/// The same of a folder of /proc.
pub(crate) fn waited_of(root: &Root, tid: &str) -> Option<(u64, u64)> {
    let text = root.read(format!("/proc/{tid}/schedstat"))?;
    let mut fields = text.split_whitespace().map(|t| t.parse::<u64>().ok());
    let (ran, waited, times) = (fields.next()??, fields.next()??, fields.next()??);
    ((ran, waited, times) != (0, 0, 0)).then_some((waited, times))
}

/// What threads wait for CPUs, from one look at their files to the next.
#[derive(Debug, Default)]
pub struct FileWaits {
    /// Time that each thread has waited, ns, and how often it was given a CPU; None before the first look.
    before: Option<BTreeMap<u32, (u64, u64)>>,
}

impl FileWaits {
    /// Of these threads since the last look, and nothing at the first one; None where the files of none can be read.
    pub fn look(&mut self, root: &Root, tids: &[u32]) -> Option<Waits> {
        let now: BTreeMap<u32, (u64, u64)> = tids.iter().filter_map(|t| Some((*t, waited(root, *t)?))).collect();
        if now.is_empty() && !tids.is_empty() {
            return None;
        }
        let mut sum = Waits::default();
        if let Some(before) = &self.before {
            for (tid, (ns, times)) in &now {
                // A thread that was born since has waited for all that it has.
                let (ns_then, times_then) = before.get(tid).copied().unwrap_or_default();
                sum.dispatches += times.saturating_sub(times_then);
                sum.total_us += ns.saturating_sub(ns_then) as f64 * 1e-3;
            }
        }
        self.before = Some(now);
        Some(sum)
    }
}

/// Whether a process has ended and only waits for its parent to ask: a zombie, of whose threads none is left.
pub fn is_zombie(root: &Root, pid: u32) -> bool {
    let Some(stat) = root.read(format!("/proc/{pid}/stat")) else { return false };
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let state = fields.next();
    // A first thread that has ended while others go on has this state too.
    let threads: Option<u32> = fields.nth(16).and_then(|n| n.parse().ok());
    matches!(state, Some("Z" | "X" | "x")) && threads.is_none_or(|n| n <= 1)
}

/// A process, named for good.
#[derive(Debug)]
pub struct Process {
    pub pid: u32,
    pub start_ticks: u64,
    /// Readable once it has ended (pidfd_open(2), Linux 5.3); None in tests and on older kernels.
    end: Option<OwnedFd>,
}

impl Process {
    /// None where there is no such process, or it has ended and its parent has not asked for it yet.
    pub fn find(root: &Root, pid: u32) -> Option<Self> {
        if is_zombie(root, pid) {
            return None;
        }
        // SAFETY: the kernel returns a new descriptor or -1.
        let fd = if root.is_host() { unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } } else { -1 };
        // SAFETY: a descriptor of our own, just opened.
        let end = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) });
        // Read after it was opened: of the process that it stands for, or of none.
        Some(Process { pid, start_ticks: start_time(root, pid)?, end })
    }

    /// The same without a hold on it, which is an open file: its end is seen by its start time.
    pub fn let_go(self) -> Self {
        Process { end: None, ..self }
    }

    pub fn is_held(&self) -> bool {
        self.end.is_some()
    }

    pub fn has_ended(&self, root: &Root) -> bool {
        Self::have_ended(root, &[self])[0]
    }

    /// Of each of these whether it has ended: one call of the kernel for all that are held.
    pub fn have_ended(root: &Root, these: &[&Self]) -> Vec<bool> {
        let mut asked: Vec<PollFd> = these.iter().filter_map(|p| p.until_end()).collect();
        if !asked.is_empty() && poll(&mut asked, PollTimeout::ZERO).is_err() {
            return vec![false; these.len()];
        }
        let mut said = asked.iter().map(|p| p.any().unwrap_or(false));
        let unheld = |p: &Self| start_time(root, p.pid) != Some(p.start_ticks) || is_zombie(root, p.pid);
        these.iter().map(|p| if p.is_held() { said.next().unwrap_or(false) } else { unheld(p) }).collect()
    }

    /// Another file that is readable once it has ended; None where it is not held.
    pub fn end(&self) -> Option<OwnedFd> {
        self.end.as_ref()?.try_clone().ok()
    }

    /// What to poll for its end; None where it is not held.
    pub fn until_end(&self) -> Option<PollFd<'_>> {
        self.end.as_ref().map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN))
    }
}

/// One capability set ("CapEff", "CapPrm", ...) of the status file of a process or thread, a bit for each capability; None where it is
/// not shown.
pub fn capabilities(status: &str, set: &str) -> Option<u64> {
    let hex = |line: &str| u64::from_str_radix(line.strip_prefix(set)?.strip_prefix(':')?.trim(), 16).ok();
    status.lines().find_map(hex)
}

/// Whether a process listens on a TCP port for connections to 127.0.0.1; None where the kernel does not say.
pub fn listens(root: &Root, port: u16) -> Option<bool> {
    const LISTEN: &str = "0A";
    // 127.0.0.1 and any address; of IPv6 any address and mapped ones, as 32-bit words of this machine's byte order.
    const REACHED: [&str; 4] = ["0100007F", "00000000", "00000000000000000000000000000000", "0000000000000000FFFF00000100007F"];
    let of = |file: &str| {
        let text = root.read(file)?;
        let line = |l: &str| {
            let mut words = l.split_whitespace().skip(1);
            let (address, at) = words.next()?.split_once(':')?;
            let state = words.nth(1)?;
            Some(state == LISTEN && REACHED.contains(&address) && u16::from_str_radix(at, 16) == Ok(port))
        };
        Some(text.lines().skip(1).any(|l| line(l) == Some(true)))
    };
    match (of("/proc/net/tcp"), of("/proc/net/tcp6")) {
        (None, None) => None,
        (four, six) => Some(four == Some(true) || six == Some(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::tests::tree;

    /// Listeners on 127.0.0.1 and on any address count, of both versions; connections, other ports and other addresses do not.
    #[test]
    fn listeners_are_found() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let line = |local: &str, state: &str| format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 1\n");
        let of = |four: &str, six: &str| {
            let file = |name: &str, lines: &str| (format!("proc/net/{name}"), format!("{head}{lines}"));
            let (_dir, root) = tree(&[file("tcp", four), file("tcp6", six)]);
            listens(&root, 0x1234)
        };
        let any = "00000000000000000000000000000000:1234";
        assert_eq!([of(&line("0100007F:1234", "0A"), ""), of(&line("00000000:1234", "0A"), ""), of("", &line(any, "0A"))], [Some(true); 3]);
        let others = [line("0100007F:1234", "01"), line("0100007F:1235", "0A"), line("0101A8C0:1234", "0A"), "cut".into()].concat();
        assert_eq!(of(&others, &others), Some(false));
        assert_eq!(listens(&tree(&[]).1, 0x1234), None);
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        assert_eq!(listens(&Root::default(), port), Some(true));
        drop(here);
        assert_eq!(listens(&Root::default(), port), Some(false));
    }

    /// Each set by its name, 64 bits of it; a line that is cut off, or another set whose name begins alike, is none.
    #[test]
    fn capability_sets_go_by_name() {
        let status = "Name:\tx\nCapInh:\t0000000000000000\nCapEff:\t000001ffffffffff\nCapEffX:\t1\nCapBnd:\tzz\n";
        let of = |set| capabilities(status, set);
        assert_eq!([of("CapInh"), of("CapEff"), of("CapBnd"), of("CapAmb"), of("Cap")], [Some(0), Some(0x1ff_ffff_ffff), None, None, None]);
    }

    /// Pages become MB and processes add up; a process that has gone is left out; none left is unknown.
    #[test]
    fn memory_adds_up() {
        // 256 pages of 4 KiB are 1 MB.
        let (_dir, root) = tree(&[("/proc/7/statm".into(), "512 256 9 0 0 0 0\n".into()), ("/proc/8/statm".into(), "256 256 9\n".into())]);
        let scale = page_mb() * 256.0;
        assert_eq!(memory_mb(&root, &[7, 8, 9]), Some((3.0 * scale, 2.0 * scale)));
        assert_eq!(memory_mb(&root, &[9]), None);
    }

    /// /proc/cpuinfo comes first, cpufreq second, and a host without either has no frequency. A figure that nothing measures, as in a virtual
    /// machine, is nominal.
    #[test]
    fn frequency_from_either_source() {
        let info = |flags: &str| {
            let of = |c: u32, mhz: u32| format!("processor\t: {c}\ncpu MHz\t\t: {mhz}.0\nflags\t\t: fpu{flags} sse\n\n");
            ("/proc/cpuinfo".to_string(), of(0, 2000) + &of(1, 3000))
        };
        let cpufreq = |cpu: u32| (format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq"), "1200000\n".to_string());
        let (both, second) = (CpuSet::range(0, 2), CpuSet::range(1, 2));
        let read = |files: &[(String, String)]| {
            let (_dir, root) = tree(files);
            let f = Frequencies::read(&root, &both);
            (f.mean_mhz(&both), f.mean_mhz(&second), f.measures(&second))
        };
        assert_eq!(read(&[info("")]), (Some(2500.0), Some(3000.0), false));
        assert_eq!(read(&[info(" aperfmperf")]), (Some(2500.0), Some(3000.0), true));
        assert_eq!(read(&[info(""), cpufreq(0), cpufreq(1)]), (Some(2500.0), Some(3000.0), true));
        assert_eq!(read(&[info(""), cpufreq(0)]), (Some(2000.0), Some(3000.0), false));
        let arm = ("/proc/cpuinfo".to_string(), "processor\t: 0\nBogoMIPS\t: 50.00\n".to_string());
        assert_eq!(read(&[arm, cpufreq(0)]), (Some(1200.0), None, false));
    }

    /// A zombie has ended, also for whoever holds no descriptor of it; one whose other threads go on has not, and no more has one that sleeps.
    #[test]
    fn zombies_have_ended() {
        let stat = |state: &str, threads: u32| format!("5 (a ) Z) {state} {}{threads} 0 4711 0", "0 ".repeat(16));
        for (state, threads, ended) in [("Z", 1, true), ("Z", 0, true), ("X", 0, true), ("Z", 3, false), ("S", 1, false), ("R", 8, false)] {
            let (_dir, root) = tree(&[("/proc/5/stat".into(), stat("S", 1))]);
            let held = Process::find(&root, 5).unwrap();
            std::fs::write(root.path("/proc/5/stat"), stat(state, threads)).unwrap();
            assert_eq!(start_time(&root, 5), Some(4711));
            assert_eq!(held.has_ended(&root), ended, "{state} {threads}");
            assert_eq!((is_zombie(&root, 5), Process::find(&root, 5).is_none()), (ended, ended), "{state} {threads}");
        }
    }

    /// The start time is found behind any command name.
    #[test]
    fn start_time_behind_odd_names() {
        let stat = format!("5 (a ) b) S {} 4711 0", (1..=18).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        let (_dir, root) = tree(&[("/proc/5/stat".into(), stat)]);
        assert_eq!(start_time(&root, 5), Some(4711));
    }

    /// A process of this host has ended when it ends, also before its parent has asked; one of a tree when its start time has gone.
    #[test]
    fn ends_are_seen() {
        let host = Root::default();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let p = Process::find(&host, child.id()).unwrap();
        assert!(!p.has_ended(&host));
        drop(child.stdin.take());
        while !p.has_ended(&host) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(p.has_ended(&host) && Process::find(&host, child.id()).is_none());
        let stat = |start: u32| format!("5 (a) {}{start} 0", "S ".repeat(19));
        let (_dir, root) = tree(&[("/proc/5/stat".into(), stat(4711))]);
        let p = Process::find(&root, 5).unwrap();
        assert!(!p.has_ended(&root));
        std::fs::write(root.path("/proc/5/stat"), stat(4712)).unwrap();
        assert!(p.has_ended(&root));
    }
}
