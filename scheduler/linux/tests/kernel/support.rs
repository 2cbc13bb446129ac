//! Groups and processes that leave nothing behind, and what the kernel says of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_linux::cgroup::{Cgroup, Mounts};
use surefoot_linux::{LocalServer, Root};
use surefoot_server::{Allocation, CpuSet, Server};

pub const MOUNT: &str = "/sys/fs/cgroup";
/// Far more than anything here takes on a loaded machine in software emulation.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a helper process is to do: see [`helper`].
pub const ROLE: &str = "SUREFOOT_KERNEL_ROLE";
pub const MIB: u64 = 1 << 20;

/// Poll until `holds`.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How often a test does what it does at random, from the environment; few by default, so that `make test-kernel` stays short.
pub fn times(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |n| n.parse().unwrap())
}

/// Of every process of this machine alike, and of the kernel's trace.
pub fn now_us() -> u64 {
    Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap()).as_micros() as u64
}

pub fn set(cpus: &str) -> CpuSet {
    CpuSet::parse(cpus).unwrap()
}

/// These CPUs alone, and everything else.
pub fn hold(s: &LocalServer, cpus: &str) -> Allocation {
    Allocation { cpus: set(cpus), shared_cpus: CpuSet::empty(), ..Allocation::everything(s.platform()) }
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_string()
}

/// One write(2), as a shell's echo would do it: not by the code under test.
pub fn write(path: impl AsRef<Path>, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// A cgroup for one test, gone after it with everything in it.
pub struct Group(pub PathBuf);

impl Group {
    /// `name` may have slashes: what is above it gets the controllers, and goes too.
    pub fn new(name: &str) -> Group {
        let mut at = PathBuf::from(MOUNT);
        for part in name.split('/') {
            // A small kernel has no `io`.
            let there = read(at.join("cgroup.controllers"));
            for controller in there.split(' ').filter(|c| ["cpu", "cpuset", "memory", "io"].contains(c)) {
                write(at.join("cgroup.subtree_control"), &format!("+{controller}")).unwrap();
            }
            at.push(part);
            if !at.is_dir() {
                fs::create_dir(&at).unwrap();
            }
        }
        Group(at)
    }

    pub fn name(&self) -> String {
        format!("/{}", self.0.strip_prefix(MOUNT).unwrap().display())
    }

    /// As the code under test sees it.
    pub fn cgroup(&self) -> Cgroup {
        Mounts::read(&Root::default()).named(&self.name()).unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn says(&self, file: &str) -> String {
        read(self.file(file))
    }

    pub fn number(&self, file: &str) -> u64 {
        self.says(file).parse().unwrap()
    }

    /// `key` of a file of "key value" lines.
    pub fn keyed(&self, file: &str, key: &str) -> u64 {
        let text = self.says(file);
        text.lines().find_map(|l| l.strip_prefix(key)?.trim().parse().ok()).unwrap_or_else(|| panic!("{file}: no {key} in {text}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut at = self.0.clone();
        while at != Path::new(MOUNT) {
            let _ = write(at.join("cgroup.kill"), "1");
            let end = Instant::now() + PATIENCE;
            while at.is_dir() && fs::remove_dir(&at).is_err() && Instant::now() < end {
                if fs::read_dir(&at).is_ok_and(|mut d| d.any(|e| e.is_ok_and(|e| e.path().is_dir()))) {
                    return; // Another test's group is below: it removes the rest.
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            at.pop();
        }
    }
}

/// A process of ours with one role, in a group before it starts with it.
pub struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    pub fn start(group: &Group, role: &str) -> Process {
        Process::start_as(group, "support::helper", role)
    }

    /// `helper` is another test that does nothing without a role.
    pub fn start_as(group: &Group, helper: &str, role: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", helper, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        write(group.file("cgroup.procs"), &child.id().to_string()).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        writeln!(stdin).unwrap();
        let mut p = Process { stdin: Some(stdin), child };
        // It says when its role has begun; where it is killed before, that is the end of it.
        let mut out = BufReader::new(p.child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            if out.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
        }
        p
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn tids(&self) -> Vec<u32> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// A line of /proc/PID/task/TID/status; None where the thread has ended.
    pub fn status(&self, tid: u32, key: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid())).ok()?;
        text.lines().find_map(|l| Some(l.strip_prefix(key)?.strip_prefix(':')?.trim().to_string()))
    }

    /// Resident memory, bytes.
    pub fn resident(&self) -> u64 {
        let text = self.status(self.pid(), "VmRSS").unwrap();
        text.trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// CPU that a thread ran on last.
    pub fn ran_on(&self, tid: u32) -> Option<u32> {
        let text = fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.pid())).ok()?;
        // Field 39, counted after the name, which may hold spaces.
        text.rsplit_once(") ")?.1.split(' ').nth(36)?.parse().ok()
    }

    /// Pages of its memory on a NUMA node.
    pub fn pages_on(&self, node: u32) -> u64 {
        let key = format!("N{node}=");
        let of =
            |l: &str| l.split(' ').filter(|_| l.contains("anon=")).filter_map(|w| w.strip_prefix(&key)?.parse::<u64>().ok()).sum::<u64>();
        read(format!("/proc/{}/numa_maps", self.pid())).lines().map(of).sum()
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The signal that ended it.
    pub fn killed_by(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        until("the process has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().signal()
    }

    pub fn kill(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What this helper process is to be, once its parent says so; None where it was started alone.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    std::io::stdin().read_line(&mut String::new()).unwrap();
    Some(role)
}

/// Not a test: what helper processes run. Ends when its parent does.
#[test]
#[ignore = "the helper process of the other tests; does nothing when run alone"]
fn helper() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let n: u64 = words[1].parse().unwrap();
    let mut held: Vec<u8> = vec![];
    match words[0] {
        "burn" => {
            for _ in 0..n {
                std::thread::spawn(|| loop {
                    std::hint::spin_loop();
                });
            }
        }
        // Threads that live for a moment, always `n` of them.
        "churn" => {
            for _ in 0..n {
                std::thread::spawn(|| loop {
                    let _ = std::thread::spawn(std::thread::yield_now).join();
                });
            }
        }
        // Memory that compresses to a third: the first third of each page is random.
        "hold" => {
            let mut x = 0x9e37_79b9_7f4a_7c15u64;
            held = vec![7u8; n as usize];
            for page in held.chunks_mut(4096) {
                for b in page.iter_mut().take(1365) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    *b = x as u8;
                }
            }
        }
        // So many bytes, of which the first so many are touched all the time.
        "hot" => {
            let (mut pages, hot) = (vec![7u8; n as usize], words[2].parse::<usize>().unwrap());
            std::thread::spawn(move || loop {
                pages[..hot].iter_mut().step_by(4096).for_each(|b| *b = std::hint::black_box(b.wrapping_add(1)));
                std::thread::sleep(Duration::from_millis(50));
            });
        }
        "serve" => serve(n, words[2], words[3]),
        "touch" => touch(n, words[2].parse().unwrap(), words[3].into()),
        other => panic!("no role {other}"),
    }
    println!("ready");
    // Until the parent closes the pipe or is gone.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::hint::black_box(held.len());
}

/// Numbers that look random, the same for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From `low` to below `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low)
    }
}

/// Pages that compress to somewhat more than half (1.9 : 1, of which the first half is random), touched all the time by `threads` threads: an
/// operation reads sixteen pages and writes one, then there is a pause of a millisecond. Pages are drawn with a skew: six of ten from the first
/// tenth, every page now and then. Into the file `says` go the number of operations and the longest so far, microseconds, one that has not ended yet included.
fn touch(bytes: u64, threads: u64, says: PathBuf) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    const WORDS: usize = 4096 / 8;
    let (pages, mut dice) = (bytes as usize / 4096, Dice(0x9e37_79b9_7f4a_7c15));
    let mut memory: Vec<AtomicU64> = Vec::with_capacity(pages * WORDS);
    memory.extend((0..pages * WORDS).map(|i| AtomicU64::new(if i % WORDS < WORDS / 2 { dice.roll() } else { 7 })));
    let memory: &'static [AtomicU64] = memory.leak();
    let begun: &'static Instant = Box::leak(Box::new(Instant::now()));
    let (ops, worst): (&'static AtomicU64, &'static AtomicU64) = (Box::leak(Box::default()), Box::leak(Box::default()));
    // When the operation of each thread began, microseconds; 0: it has a pause.
    let at: &'static [AtomicU64] = (0..threads).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    let now = || begun.elapsed().as_micros() as u64 + 1;
    for (n, mine) in at.iter().enumerate() {
        std::thread::spawn(move || {
            let mut dice = Dice(n as u64 + 0x2545_f491_4f6c_dd1d);
            loop {
                let start = now();
                mine.store(start, Relaxed);
                let mut any = || (0..3).fold(pages as u64, |below, _| (below * dice.between(0, 1 << 20)) >> 20) as usize * WORDS;
                let sum: u64 = (0..16).map(|_| memory[any() + WORDS - 1].load(Relaxed)).sum();
                memory[any() + WORDS - 1].store(sum % 2 + 7, Relaxed);
                worst.fetch_max(now() - start, Relaxed);
                ops.fetch_add(1, Relaxed);
                mine.store(0, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    }
    std::thread::spawn(move || loop {
        let now = now();
        let under_way = at.iter().map(|a| a.load(Relaxed)).filter(|a| *a > 0).map(|a| now.saturating_sub(a)).max();
        worst.fetch_max(under_way.unwrap_or(0), Relaxed);
        // Whole at each look.
        let new = says.with_extension("new");
        let _ = fs::write(&new, format!("{} {}", ops.load(Relaxed), worst.load(Relaxed))).and_then(|()| fs::rename(&new, &says));
        std::thread::sleep(Duration::from_millis(50));
    });
}

/// A service that answers `rps` requests a second, for ten seconds out of twenty four times as many, with two threads, from the intended
/// send time on; its latency goes to the feed's socket at `feed` ten times a second.
fn serve(rps: u64, service: &str, feed: &str) {
    use base64::Engine;
    use hdrhistogram::serialization::{Serializer, V2Serializer};
    use std::collections::VecDeque;
    use std::sync::{Arc, Condvar, Mutex};
    type Shared = Arc<(Mutex<(VecDeque<Instant>, hdrhistogram::Histogram<u64>)>, Condvar)>;
    let shared: Shared = Arc::new((Mutex::new((VecDeque::new(), hdrhistogram::Histogram::new(3).unwrap())), Condvar::new()));
    for _ in 0..2 {
        let shared = shared.clone();
        std::thread::spawn(move || loop {
            let mut held = shared.0.lock().unwrap();
            let sent = loop {
                match held.0.pop_front() {
                    Some(sent) => break sent,
                    None => held = shared.1.wait(held).unwrap(),
                }
            };
            drop(held);
            (0..200_000).for_each(|i: u32| {
                std::hint::black_box(i);
            });
            let took = sent.elapsed().as_nanos() as u64;
            shared.0.lock().unwrap().1.record(took.max(1)).unwrap();
        });
    }
    let (service, feed) = (service.to_string(), feed.to_string());
    std::thread::spawn(move || {
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        let (began, mut next, mut window) = (Instant::now(), Instant::now(), Instant::now());
        loop {
            let rate = if began.elapsed().as_secs() % 20 < 10 { rps } else { 4 * rps };
            while next <= Instant::now() {
                shared.0.lock().unwrap().0.push_back(next);
                shared.1.notify_one();
                next += Duration::from_nanos(1_000_000_000 / rate);
            }
            if window.elapsed() >= Duration::from_millis(100) {
                let mut held = shared.0.lock().unwrap();
                let (waiting, done) = (held.0.len(), std::mem::replace(&mut held.1, hdrhistogram::Histogram::new(3).unwrap()));
                drop(held);
                let mut bytes = vec![];
                V2Serializer::new().serialize(&done, &mut bytes).unwrap();
                let text = base64::engine::general_purpose::STANDARD.encode(bytes);
                let (ms, count) = (window.elapsed().as_millis(), done.len());
                let said =
                    format!(r#"{{"service":"{service}","window_ms":{ms},"count":{count},"histogram":"{text}","outstanding":{waiting}}}"#);
                window = Instant::now();
                // The daemon may not be there yet, or any more.
                let _ = socket.send_to(said.as_bytes(), &feed);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}

/// What is set in every group below the mount: each file that can be written, its counters and commands apart.
pub fn settings() -> BTreeMap<PathBuf, String> {
    fn walk(dir: &Path, all: &mut BTreeMap<PathBuf, String>) {
        for e in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            let (path, name) = (e.path(), e.file_name().to_string_lossy().into_owned());
            let m = e.metadata().unwrap();
            if m.is_dir() {
                all.insert(path.clone(), "folder".into());
                walk(&path, all);
            } else if dir == Path::new(MOUNT) && (name == "cgroup.procs" || name == "cgroup.threads") {
                // Who is in no group: the kernel's threads, and ours.
            } else if m.permissions().mode() & 0o200 != 0 && !name.ends_with(".pressure") && !name.ends_with(".peak") {
                // A command file cannot be read.
                if let Ok(text) = fs::read_to_string(&path) {
                    all.insert(path, text);
                }
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(Path::new(MOUNT), &mut all);
    all
}
