//! What is granted, lent, taken back and said, on a host of files. The threads of lenders are real, the clock of ticks is the test's.

use super::*;
use std::fs;
use std::path::Path;
use std::sync::{Condvar, MutexGuard};
use std::time::{Duration, Instant};
use surefoot_linux::{LocalConfig, Root, Target};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Waits};

const IDS: [(&str, Kind, &str); 2] = [("web", Kind::Lc { qos_target_ms: 1.0 }, "0-3"), ("batch", Kind::Be, "6")];

/// Eight CPUs, of which the last is not managed; two groups of cgroup v2 with a thread in each.
struct Host {
    dir: tempfile::TempDir,
    _state: tempfile::TempDir,
    server: LocalServer,
    lending: Lending,
    now_ms: u64,
}

fn put(at: &Path, path: &str, text: &str) {
    let path = at.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

impl Host {
    fn new(policy: &str, drive: Drive) -> Self {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = dir.path();
        put(at, "proc/self/mountinfo", "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
        put(at, "sys/fs/cgroup/cgroup.controllers", "cpuset cpu memory");
        put(at, "sys/devices/system/cpu/online", "0-7");
        for (n, (id, ..)) in IDS.iter().enumerate() {
            let threads = [("cgroup.procs", (n + 1).to_string()), ("cgroup.threads", (n + 1).to_string())];
            let plain = [
                ("cpuset.cpus", "0-7"),
                ("cpu.max", "max 100000"),
                ("cpu.weight", "100"),
                ("memory.current", "4096"),
                ("memory.max", "max"),
            ];
            let files = plain.map(|(file, text)| (file, text.to_string())).into_iter().chain(threads);
            files.for_each(|(file, text)| put(at, &format!("sys/fs/cgroup/{id}/{file}"), &text));
        }
        let config = LocalConfig { root: Root::at(at), managed: Some(CpuSet::range(0, 7)), ..LocalConfig::new(state.path()) };
        let mut server = LocalServer::open(config).unwrap();
        for (id, kind, _) in IDS {
            server.adopt(id, id, kind, 1, Target::Cgroup(format!("/{id}").into())).unwrap();
        }
        let settings = surefoot_harvest::Settings::default();
        let lend = Lend { lender: "web".into(), borrower: "batch".into(), policy: policy.into(), poll_ms: 1.0, settings };
        let mut lending = Lending::new(&[lend]);
        lending.drive = drive;
        let mut host = Host { dir, _state: state, server, lending, now_ms: 0 };
        host.runs("S", 0);
        host.apply(&IDS.map(|(id, _, cpus)| (id, cpus)));
        host
    }

    /// The lender's thread: its state, and its CPU. The file is whole at any instant, as the kernel's is.
    fn runs(&self, state: &str, cpu: u32) {
        put(self.dir.path(), "proc/1/new", &format!("1 (web) {state} {}{cpu} 0 0", "0 ".repeat(35)));
        fs::rename(self.dir.path().join("proc/1/new"), self.dir.path().join("proc/1/stat")).unwrap();
    }

    fn apply(&mut self, of: &[(&str, &str)]) {
        let all = Allocation::everything(self.server.platform());
        let with = |cpus: &str| Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..all.clone() };
        self.server.apply(&Plan::whole(of.iter().map(|(id, cpus)| (id.to_string(), with(cpus))).collect())).unwrap();
    }

    fn tick(&mut self) -> LendStatus {
        let seen = self.server.observe();
        self.lending.tick(self.now_ms, &seen, &mut self.server);
        self.lending.status().remove(0)
    }

    /// Ticks at one instant until something holds.
    fn until(&mut self, what: &str, holds: impl Fn(&Self, &LendStatus) -> bool) -> LendStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.tick();
            if holds(self, &status) {
                return status;
            }
            assert!(Instant::now() < deadline, "not {what}: {:?} {status:?}", self.cpus());
            std::thread::yield_now();
        }
    }

    fn cpus(&self) -> [String; 2] {
        IDS.map(|(id, ..)| fs::read_to_string(self.dir.path().join(format!("sys/fs/cgroup/{id}/cpuset.cpus"))).unwrap().trim().into())
    }

    fn holds(&self, web: &str, batch: &str) -> bool {
        self.cpus() == [web, batch]
    }
}

/// A lease for what is in force: idle cores go to the BE job and come back when the lender is busy. A plan of its CPUs ends it with the lists
/// of the plan, and the next tick grants another. At the end each has what the plan gave, and after a reset what it had at first.
#[test]
fn idle_cores_are_lent_and_come_back() {
    let mut host = Host::new("fixed-buffer-1", surefoot_harvest::drive);
    let status = host.until("all but one core lent", |h, s| h.holds("0", "1-3,6") && s.cores == 3);
    assert_eq!((status.most_cores, status.leases, status.why_not), (3, 1, None));
    host.runs("R", 0);
    let status = host.until("a core back", |h, s| h.holds("0-1", "2-3,6") && s.cores == 2);
    assert!(status.moves >= 2, "{status:?}");
    host.apply(&[("web", "0-2")]);
    assert!(host.holds("0-2", "6"), "{:?}", host.cpus());
    let status = host.until("lent anew", |h, s| h.holds("0-1", "2,6") && s.cores == 1);
    assert_eq!((status.most_cores, status.leases), (2, 2));
    // What was counted under the first lease is not lost.
    assert!(status.moves >= 3, "{status:?}");
    assert!(host.server.foreign_changes().is_empty(), "{:?}", host.server.foreign_changes());
    host.lending = Lending::new(&[]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !host.holds("0-2", "6") {
        assert!(Instant::now() < deadline, "{:?}", host.cpus());
        std::thread::yield_now();
    }
    host.server.reset().unwrap();
    assert!(host.holds("0-7", "0-7"), "{:?}", host.cpus());
}

/// A reset while cores are lent gives everything back at once, and the thread lends no more.
#[test]
fn a_reset_does_not_wait_for_the_thread() {
    let mut host = Host::new("fixed-buffer-1", surefoot_harvest::drive);
    host.until("lent", |h, _| h.holds("0", "1-3,6"));
    host.server.reset().unwrap();
    assert!(host.holds("0-7", "0-7"), "{:?}", host.cpus());
    let loan = host.lending.entries[0].loan.take().unwrap();
    assert!(matches!(loan.thread.join().unwrap(), Err(LendError::Ended { .. })));
    assert!(host.holds("0-7", "0-7"), "{:?}", host.cpus());
}

/// A lender with one core has nothing to lend, which is said; nothing is tried before both services are placed.
#[test]
fn a_single_core_is_not_lent() {
    let mut host = Host::new("fixed-buffer-1", surefoot_harvest::drive);
    host.apply(&[("web", "0")]);
    let status = host.tick();
    assert_eq!((status.leases, status.most_cores), (0, 0));
    assert!(status.why_not.unwrap().contains("web has one whole core for itself alone, and a lender keeps one"));
    host.apply(&[("web", "0-1")]);
    let status = host.tick();
    assert_eq!((status.leases, status.most_cores, status.why_not), (1, 1, None));
    host.server.stop("batch").unwrap();
    let status = host.until("ended", |_, s| s.most_cores == 0 && s.why_not.as_ref().is_some_and(|w| w == "batch is not placed"));
    assert_eq!(status.leases, 1);
    assert!(host.holds("0-1", "0-7"), "{:?}", host.cpus());
}

/// A policy that fails ends its thread: everything is back, why is said, and the next lease waits, twice as long after each fault.
#[test]
fn a_fault_gives_everything_back() {
    fn dies(lender: &mut dyn Lender, _: &mut Harvester, _: u64) -> Result<(), LendError> {
        lender.lend(2)?;
        panic!("the test says so")
    }
    let mut host = Host::new("fixed-buffer-1", dies);
    for (n, pause_ms) in [(1, 1000), (2, 2000), (3, 4000)] {
        let status = host.until("ended", |_, s| s.leases == n && s.why_not.is_some());
        let why = status.why_not.unwrap();
        assert!(why.contains("a fault of surefootd") && why.ends_with(&format!("(next attempt in {} s)", pause_ms / 1000)), "{why}");
        assert!(host.holds("0-3", "6") && !host.server.is_in_a_lease("web"), "{:?}", host.cpus());
        host.now_ms += pause_ms - 1;
        assert_eq!(host.tick().leases, n);
        host.now_ms += 1;
        assert_eq!(host.tick().leases, n + 1);
    }
}

/// Threads that cannot be seen: the lender's thread ends with that reason.
#[test]
fn threads_that_cannot_be_seen_end_a_lease() {
    let mut host = Host::new("smartharvest", surefoot_harvest::drive);
    fs::remove_file(host.dir.path().join("proc/1/stat")).unwrap();
    let status = host.until("ended", |_, s| s.leases == 1 && s.why_not.is_some());
    assert!(status.why_not.unwrap().contains("what runs of web cannot be told here"));
    assert!(host.holds("0-3", "6"), "{:?}", host.cpus());
}

static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

fn gate() -> MutexGuard<'static, bool> {
    GATE.0.lock().unwrap()
}

/// A thread that hangs keeps nothing: a plan has its CPUs at once, nothing counts as lent, and no second thread comes beside it.
#[test]
fn a_thread_that_hangs_has_no_successor() {
    fn hangs(lender: &mut dyn Lender, _: &mut Harvester, _: u64) -> Result<(), LendError> {
        lender.lend(2)?;
        let open = GATE.1.wait_while(gate(), |open| !*open).unwrap();
        drop(open);
        lender.lend(2).map(|_| ())
    }
    let mut host = Host::new("fixed-buffer-1", hangs);
    host.until("lent", |h, _| h.holds("0-1", "2-3,6"));
    host.apply(&[("web", "0-2")]);
    assert!(host.holds("0-2", "6"), "{:?}", host.cpus());
    for _ in 0..20 {
        let status = host.tick();
        assert_eq!((status.leases, status.cores, status.most_cores, status.why_not.as_deref()), (1, 0, 0, Some(OVER)));
    }
    *gate() = true;
    GATE.1.notify_all();
    let status = host.until("granted anew", |_, s| s.leases == 2);
    assert_eq!(status.why_not, None);
}

/// A stop by the long-term safeguard is counted.
#[test]
fn stops_are_counted() {
    fn waits(lender: &mut dyn Lender, harvester: &mut Harvester, _: u64) -> Result<(), LendError> {
        if harvester.tally().stops == 0 {
            let long = Waits { dispatches: 1000, over: None, total_us: 1e9 };
            (0..2).for_each(|_| harvester.waited(lender.now_us(), &long));
        }
        std::thread::yield_now();
        Ok(())
    }
    let mut host = Host::new("smartharvest", waits);
    let status = host.until("counted", |_, s| s.stops == 1);
    assert_eq!((status.leases, status.cores, status.why_not), (1, 0, None));
    host.tick();
    assert_eq!(host.lending.entries[0].loan.as_ref().unwrap().stops_said, 1);
}
