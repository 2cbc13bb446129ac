//! Leases of CPUs: what is lent moves without a plan, and comes back whatever ends it.

use super::lend::{looks_on, MOST_SILENT};
use super::*;
use crate::files::{HostFiles, SharedFiles};
use crate::root::tests::{put, tree};
use crate::safe::SafeLayout;
use crate::testing::{outlived, Cpusets, Faulty};
use std::fs;
use std::sync::{Arc, Mutex};
use surefoot_server::{Change, LendError, Lender, Lent};
use surefoot_vserver::{BurstWorkload, PrimaryVm, Reassignment, VirtualLender};

const LC: Kind = Kind::Lc { qos_target_ms: 1.0 };
const IDS: [(&str, Kind, &str); 3] = [("web", LC, "0-3"), ("db", LC, "4-5"), ("batch", Kind::Be, "6")];

/// Eight CPUs, of which the last is not managed, and a cgroup of version 2 for each service.
struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    faulty: Arc<Faulty>,
    /// Writes after which two services were on one CPU.
    overlaps: Arc<Mutex<Vec<String>>>,
    state: tempfile::TempDir,
}

fn list(root: &Root, id: &str) -> CpuSet {
    // Of a group that has gone it is empty.
    CpuSet::parse(&root.read(format!("/sys/fs/cgroup/{id}/cpuset.cpus")).unwrap_or_default()).unwrap()
}

impl Host {
    fn new() -> Self {
        let mut files: Vec<(String, String)> = vec![
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu memory\n".into()),
            ("/sys/fs/cgroup/cpuset.cpus.effective".into(), "0-7\n".into()),
            ("/sys/devices/system/cpu/online".into(), "0-7\n".into()),
            ("/sys/devices/system/cpu/present".into(), "0-7\n".into()),
        ];
        for (n, (id, ..)) in IDS.iter().enumerate() {
            for (file, text) in [
                ("cpuset.cpus", "0-7"),
                ("cpuset.cpus.partition", "member"),
                ("cpu.max", "max 100000"),
                ("cpu.weight", "100"),
                ("memory.current", "4096"),
                ("memory.max", "max"),
                ("memory.high", "max"),
                ("memory.zswap.max", "max"),
                ("cgroup.procs", &(n + 1).to_string()),
                ("cgroup.threads", &format!("{}\n{}", n * 10 + 1, n * 10 + 2)),
            ] {
                files.push((format!("/sys/fs/cgroup/{id}/{file}"), format!("{text}\n")));
            }
        }
        let (dir, root) = tree(&files);
        let overlaps = Arc::new(Mutex::new(vec![]));
        let (seen, at) = (overlaps.clone(), root.clone());
        let look = move |path: &Path| {
            let [web, db, batch] = IDS.map(|(id, ..)| list(&at, id));
            let apart = [(web, db), (web, batch), (db, batch)].iter().all(|(x, y)| x.intersection(*y).is_empty());
            if !apart && path.ends_with("cpuset.cpus") {
                seen.lock().unwrap().push(format!("web {web}, db {db}, batch {batch}"));
            }
        };
        let files: SharedFiles = Arc::new(Cpusets { inner: root.files.clone(), v1: false });
        let faulty = Faulty::watched(files, Box::new(look));
        let root = Root::with(root.path("/"), faulty.clone());
        Host { _dir: dir, root, faulty, overlaps, state: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> LocalServer {
        let config = LocalConfig {
            root: self.root.clone(),
            managed: Some(CpuSet::range(0, 7)),
            partitions: true,
            look_every: Duration::ZERO,
            ..LocalConfig::new(self.state.path())
        };
        let mut s = LocalServer::open(config).unwrap();
        for (id, kind, _) in IDS {
            s.adopt(id, id, kind, 1, Target::Cgroup(format!("/{id}").into())).unwrap();
        }
        s
    }

    /// With a plan in force, which moved everybody once.
    fn server(&self) -> LocalServer {
        let mut s = self.open();
        s.apply(&plan(&s, &IDS.map(|(id, _, cpus)| (id, cpus)))).unwrap();
        self.overlaps.lock().unwrap().clear();
        s
    }

    /// The process was killed: its files are all that is left of it.
    fn outlives(&mut self) {
        self.faulty.arm(BTreeMap::new());
        let left = tempfile::tempdir().unwrap();
        for file in ["journal.jsonl", crate::safe::FILE] {
            fs::copy(self.state.path().join(file), left.path().join(file)).unwrap();
        }
        self.state = left;
    }

    fn cpus(&self) -> [String; 3] {
        IDS.map(|(id, ..)| list(&self.root, id).to_string())
    }

    fn partition(&self, id: &str) -> String {
        self.root.read(format!("/sys/fs/cgroup/{id}/cpuset.cpus.partition")).unwrap()
    }

    fn journal(&self) -> Vec<String> {
        fs::read_to_string(self.state.path().join("journal.jsonl")).unwrap().lines().map(str::to_string).collect()
    }

    fn never_overlapped(&self) {
        assert_eq!(*self.overlaps.lock().unwrap(), Vec::<String>::new());
    }
}

fn plan(s: &LocalServer, of: &[(&str, &str)]) -> Plan {
    let all = Allocation::everything(s.platform());
    let with = |cpus: &str| Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..all.clone() };
    Plan::whole(of.iter().map(|(id, cpus)| (id.to_string(), with(cpus))).collect())
}

fn limit(id: &str, bytes: u64) -> Plan {
    let limit = Change { mem_limit: Some(Some(bytes).into()), ..Change::default() };
    Plan { changes: BTreeMap::from([(id.into(), limit)]), ..Plan::default() }
}

fn lease(cpus: &str) -> Lease {
    Lease { lender: "web".into(), borrower: "batch".into(), cpus: CpuSet::parse(cpus).unwrap() }
}

/// Cores move to and fro by two writes each, the giver's first. The journal has one line, the keeper takes none of it for interference, and
/// what somebody else sets is put back to what is lent.
#[test]
fn cores_are_lent_without_a_plan() {
    let host = Host::new();
    let mut s = host.server();
    assert_eq!(host.partition("web"), "root");
    let before = host.journal().len();
    let mut lender = s.grant(lease("1-3")).unwrap();
    assert_eq!((host.partition("web"), host.partition("db")), ("member".into(), "root".into()));
    for (n, web, batch) in
        [(2, "0-1", "2-3,6"), (3, "0", "1-3,6"), (1, "0-2", "3,6"), (1, "0-2", "3,6"), (0, "0-3", "6"), (2, "0-1", "2-3,6")]
    {
        assert_eq!(lender.lend(n), Ok(Lent { cores: n, to_come: 0, returning: 0 }));
        assert_eq!(host.cpus(), [web, "4-5", batch]);
        s.observe();
        assert_eq!(host.cpus(), [web, "4-5", batch]);
    }
    assert!(s.foreign_changes().is_empty(), "{:?}", s.foreign_changes());
    assert_eq!((host.journal().len() - before, host.partition("web")), (1, "member".into()));
    assert_eq!(s.leases(), [(lease("1-3"), CpuSet::range(2, 4))]);
    assert_eq!(IDS.map(|(id, ..)| s.is_in_a_lease(id)), [true, false, true]);
    put(&host.root, "/sys/fs/cgroup/web/cpuset.cpus", "0-7\n");
    s.observe();
    assert_eq!((host.cpus(), s.foreign_changes().len()), (["0-1", "4-5", "2-3,6"].map(String::from), 1));
    assert_eq!(lender.lend(4), Err(LendError::TooMany { asked: 4, most: 3 }));
    // What a policy sees is what it gave.
    assert_eq!(s.observe().get("web").unwrap().allocation.cpus, CpuSet::range(0, 4));
    host.overlaps.lock().unwrap().clear();
    drop(lender);
    host.never_overlapped();
    assert_eq!(host.cpus(), ["0-3", "4-5", "6"]);
}

/// A plan of other services, or of other resources, leaves a lease; one that moves either service's CPUs ends it with everything back first.
#[test]
fn a_plan_of_its_cpus_ends_a_lease() {
    let host = Host::new();
    let mut s = host.server();
    let mut lender = s.grant(lease("2-3")).unwrap();
    lender.lend(2).unwrap();
    s.apply(&plan(&s, &[("db", "4")])).unwrap();
    host.overlaps.lock().unwrap().clear();
    for id in ["web", "batch"] {
        s.apply(&limit(id, 1 << 20)).unwrap();
    }
    host.never_overlapped();
    assert!(s.foreign_changes().is_empty(), "{:?}", s.foreign_changes());
    assert_eq!((host.cpus(), lender.lend(1).unwrap().cores), (["0-1", "4", "2-3,6"].map(String::from), 1));
    lender.lend(2).unwrap();
    host.overlaps.lock().unwrap().clear();
    s.apply(&plan(&s, &[("web", "0-2"), ("batch", "5-6")])).unwrap();
    assert_eq!((host.cpus(), s.leases()), (["0-2", "4", "5-6"].map(String::from), vec![]));
    host.never_overlapped();
    let ended = lender.lend(1).unwrap_err();
    assert!(ended.to_string().contains("the lease of web has ended: a plan changes the CPUs"), "{ended}");
    assert!(lender.busy().is_err() && lender.waits().is_err());
    // A lender of before takes nothing from one of now.
    let mut next = s.grant(lease("1-2")).unwrap();
    next.lend(1).unwrap();
    assert!(lender.lend(0).is_err());
    drop(lender);
    assert_eq!(host.cpus(), ["0-1", "4", "2,5-6"]);
    assert_eq!(s.grant(lease("2")).unwrap().lend(1).unwrap().cores, 1);
    assert!(next.lend(1).is_err());
    s.observe();
    assert_eq!(host.partition("web"), "member", "the lease that its lender let go of ends only with its silence");
}

/// A thread of its own lends as it likes while the control loop looks, and plans what is not CPUs: no core is ever in two lists.
#[test]
fn a_lender_and_the_loop_do_not_meet() {
    let host = Host::new();
    let mut s = host.server();
    let mut lender = s.grant(lease("1-3")).unwrap();
    let lends = std::thread::spawn(move || {
        (0..600).for_each(|n| assert_eq!(lender.lend(n * 7 % 4).unwrap().cores, n * 7 % 4));
        lender
    });
    let mut n = 0;
    while !lends.is_finished() {
        s.apply(&limit(["web", "batch"][n % 2], (n as u64 + 1) << 20)).unwrap();
        s.observe();
        n += 1;
    }
    assert_eq!(lends.join().unwrap().lend(0).unwrap().cores, 0);
    host.never_overlapped();
    assert!(n > 0 && s.foreign_changes().is_empty(), "{n}: {:?}", s.foreign_changes());
    assert_eq!((host.cpus(), s.leases().len()), (["0-3", "4-5", "6"].map(String::from), 1));
}

/// A group that was made anew under its name is another's: nothing is written into it, and the other service has all that it had.
#[test]
fn a_group_made_anew_is_left_alone() {
    for id in ["web", "batch"] {
        let host = Host::new();
        let mut s = host.server();
        let mut lender = s.grant(lease("2-3")).unwrap();
        lender.lend(2).unwrap();
        let at = host.root.path(format!("/sys/fs/cgroup/{id}"));
        // Its number is not given away meanwhile.
        let old = host.root.path("/sys/fs/cgroup/old");
        fs::rename(&at, &old).unwrap();
        fs::create_dir(&at).unwrap();
        for file in fs::read_dir(&old).unwrap().map(|f| f.unwrap().file_name()) {
            fs::copy(old.join(&file), at.join(&file)).unwrap();
        }
        put(&host.root, &format!("/sys/fs/cgroup/{id}/cpuset.cpus"), "0-7\n");
        lender.lend(1).unwrap();
        s.observe();
        let (web, batch) = if id == "web" { ("0-7", "6") } else { ("0-3", "0-7") };
        assert_eq!((host.cpus(), s.leases()), ([web, "4-5", batch].map(String::from), vec![]));
    }
}

/// Either service may go, be given back or be stopped: the other one has all that it had.
#[test]
fn a_lease_ends_with_either_service() {
    for id in ["web", "batch"] {
        let host = Host::new();
        let mut s = host.server();
        let mut lender = s.grant(lease("2-3")).unwrap();
        lender.lend(2).unwrap();
        s.stop(id).unwrap();
        let (web, batch) = if id == "web" { ("0-7", "6") } else { ("0-3", "0-7") };
        assert_eq!((host.cpus(), s.leases()), ([web, "4-5", batch].map(String::from), vec![]));
        assert!(lender.lend(1).is_err());
        // Of an ended service the group is gone, too.
        let host = Host::new();
        let mut s = host.server();
        let mut lender = s.grant(lease("2-3")).unwrap();
        lender.lend(2).unwrap();
        fs::remove_dir_all(host.root.path(format!("/sys/fs/cgroup/{id}"))).unwrap();
        let other = if id == "web" { "batch" } else { "web" };
        let gone = lender.lend(1);
        s.observe();
        assert_eq!((list(&host.root, other).to_string(), s.leases()), (if id == "web" { "6" } else { "0-3" }.into(), vec![]), "{gone:?}");
    }
}

/// A lender that hangs, and one whose thread has ended.
#[test]
fn a_silent_lender_lends_nothing() {
    let host = Host::new();
    let mut s = host.server();
    let mut lender = s.grant(lease("2-3")).unwrap();
    lender.lend(2).unwrap();
    s.observe_at(Instant::now(), 100);
    assert_eq!(s.leases().len(), 1);
    s.observe_at(Instant::now() + MOST_SILENT * 2, 200);
    assert_eq!((host.cpus(), s.leases()), (["0-3", "4-5", "6"].map(String::from), vec![]));
    assert!(lender.lend(1).unwrap_err().to_string().contains("silent for more than 1 s"));
    assert_eq!(host.partition("web"), "root");
    // Its number is no longer in the books.
    drop(lender);
    s.observe();
    assert_eq!(host.cpus(), ["0-3", "4-5", "6"]);
}

/// A write that the kernel refuses changes nothing; what cannot be put back at the end either is put back by the keeper.
#[test]
fn a_refused_move_changes_nothing() {
    let ebusy = |n: u64| BTreeMap::from([(n, libc::EBUSY)]);
    for (from, to) in [(1, 2), (2, 1), (2, 0), (0, 2)] {
        for n in 0..2 {
            let host = Host::new();
            let mut s = host.server();
            let mut lender = s.grant(lease("2-3")).unwrap();
            lender.lend(from).unwrap();
            let before = host.cpus();
            host.faulty.arm(ebusy(n));
            let refused = lender.lend(to).unwrap_err();
            assert!(refused.to_string().contains("As many cores are lent as before"), "{refused}");
            assert_eq!((host.cpus(), &s.leases()[0].1.len()), (before, &from));
            assert_eq!(lender.lend(to).unwrap().cores, to);
            host.never_overlapped();
        }
    }
    let host = Host::new();
    let mut s = host.server();
    s.grant(lease("2-3")).map(|mut l| l.lend(2).map(|_| std::mem::forget(l))).unwrap().unwrap();
    host.faulty.arm((0..8).map(|n| (n, libc::EBUSY)).collect());
    s.end_leases("the test says so", |_| true);
    let ended = |host: &Host| host.journal().iter().any(|l| l.contains("lease-end"));
    assert_eq!((s.leases().len(), ended(&host)), (1, false), "it has not ended before all is back");
    host.faulty.arm(BTreeMap::new());
    s.observe();
    assert!(ended(&host));
    assert_eq!((host.cpus(), s.leases()), (["0-3", "4-5", "6"].map(String::from), vec![]));
}

/// A daemon that is killed while cores are lent, at any write: the safe layout, a reset and the next run each bring all of them back.
///
/// A reset and the next run say once that the lease has ended.
#[test]
fn a_kill_brings_everything_back() {
    for way in ["safe", "reset", "resume"] {
        for at in 0..6 {
            let mut host = Host::new();
            let mut s = host.server();
            let mut lender = s.grant(lease("1-3")).unwrap();
            host.faulty.die_at(at);
            outlived(|| [2, 3, 1].iter().try_for_each(|n| lender.lend(*n).map(|_| ())));
            std::mem::forget((lender, s));
            host.outlives();
            let held = |id: &str| list(&host.root, id).to_string();
            match way {
                "safe" => {
                    let layout = SafeLayout::load(&host.state.path().join(crate::safe::FILE)).unwrap().unwrap();
                    assert_eq!(layout.put_in_force(&HostFiles).failed, Vec::<String>::new());
                    assert_eq!((held("web"), held("batch")), ("0-7".into(), "6".into()));
                }
                "reset" => {
                    let mut s = host.open();
                    assert_eq!(s.reset().unwrap().leases_ended, [lease("1-3")]);
                    assert_eq!(host.cpus(), ["0-7"; 3]);
                    assert_eq!(s.reset().unwrap().leases_ended, []);
                }
                _ => {
                    let mut s = host.open();
                    assert_eq!(s.resume().unwrap().given_back.leases_ended, [lease("1-3")]);
                    assert_eq!((host.cpus(), s.leases()), (["0-3", "4-5", "6"].map(String::from), vec![]));
                    drop(s);
                    assert_eq!(host.open().resume().unwrap().given_back.leases_ended, []);
                }
            }
        }
    }
}

/// What must not be lent is refused with nothing changed, and nothing in the journal.
#[test]
fn a_lease_that_cannot_be_is_refused() {
    let host = Host::new();
    let mut s = host.open();
    assert!(s.grant(lease("2-3")).unwrap_err().to_string().contains("web is not placed"));
    drop(s);
    let mut s = host.server();
    let before = (host.journal(), host.cpus());
    for (lender, borrower, cpus, why) in [
        ("web", "batch", "4", "web does not hold CPU 4 for itself alone"),
        ("web", "batch", "0-3", "web would have no core left"),
        ("web", "web", "2", "cannot lend to itself"),
        ("web", "nobody", "2", "nobody is not placed"),
    ] {
        let refused = s.grant(Lease { lender: lender.into(), borrower: borrower.into(), ..lease(cpus) }).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.ends_with("Nothing was changed."), "{refused}");
    }
    assert_eq!((host.journal(), host.cpus()), before);
    let _lender = s.grant(lease("2-3")).unwrap();
    let lend = |s: &mut LocalServer, lender: &str, borrower: &str, cpus: &str| {
        s.grant(Lease { lender: lender.into(), borrower: borrower.into(), ..lease(cpus) }).unwrap_err().to_string()
    };
    let refused = lend(&mut s, "db", "web", "5");
    assert!(refused.contains("db to web: a service lends or borrows, not both"), "{refused}");
    // Two may lend to one.
    let mut second = s.grant(Lease { lender: "db".into(), ..lease("5") }).unwrap();
    second.lend(1).unwrap();
    assert_eq!(host.cpus(), ["0-3", "4", "5-6"]);
    let host = Host::new();
    let mut s = host.server();
    s.apply(&plan(&s, &[("db", "4"), ("batch", "5-6")])).unwrap();
    let _lender = s.grant(lease("2-3")).unwrap();
    let refused = lend(&mut s, "batch", "db", "6");
    assert!(refused.contains("batch to db: a service lends or borrows, not both"), "{refused}");
}

/// What may be lent is all but one of the lender's own cores, beside those that it shares.
#[test]
fn a_lender_could_lend_all_but_one_core() {
    let host = Host::new();
    let mut s = host.server();
    assert_eq!(s.could_lend("web", "batch"), Ok((lease("1-3"), 4)));
    s.apply(&plan(&s, &[("web", "0")])).unwrap();
    assert!(s.could_lend("web", "batch").unwrap_err().contains("web has one whole core for itself alone"));
    assert!(s.could_lend("web", "nobody").is_err());
}

/// Threads that run are counted by core, of the lender's own; waits are those since the last look, of new threads all.
#[test]
fn threads_that_run_and_wait_are_seen() {
    let host = Host::new();
    let mut s = host.server();
    let mut lender = s.grant(lease("2-3")).unwrap();
    let unknown = lender.busy().unwrap_err().to_string();
    assert!(unknown.contains("what runs of web cannot be told here: no /proc/TID/stat"), "{unknown}");
    assert!(lender.waits().unwrap_err().to_string().contains("/proc/TID/schedstat"));
    let thread = |tid: u32, state: &str, cpu: u32, ns: u64, times: u64| {
        put(&host.root, &format!("/proc/{tid}/stat"), &format!("{tid} (a) b) {state} {}{cpu} 0 0\n", "0 ".repeat(35)));
        put(&host.root, &format!("/proc/{tid}/schedstat"), &format!("5 {ns} {times}\n"));
    };
    thread(1, "R", 0, 1000, 10);
    thread(2, "R", 3, 2000, 20);
    assert_eq!((lender.busy().unwrap(), lender.waits().unwrap().dispatches), (2, 0));
    lender.lend(1).unwrap();
    assert_eq!(lender.busy().unwrap(), 1, "CPU 3 is lent");
    thread(2, "S", 1, 5000, 21);
    thread(9, "R", 0, 7000, 3);
    put(&host.root, "/sys/fs/cgroup/web/cgroup.threads", "1\n2\n9\n");
    let waits = lender.waits().unwrap();
    assert_eq!((lender.busy().unwrap(), waits.dispatches, waits.long(), waits.total_us), (1, 4, None, 10.0));
}

/// What both sides of the port say to one script.
#[test]
fn both_sides_lend_alike() {
    let script = |lender: &mut dyn Lender| {
        let mut said = vec![format!("{:?}", lender.lend(4))];
        for cores in [0, 3, 1, 2, 0] {
            let asked = lender.lend(cores).map(|_| ());
            lender.advance_to(lender.now_us() + 1);
            said.push(format!("{asked:?} {:?} {:?}", lender.lend(cores), lender.busy().map(|_| ())));
        }
        said
    };
    let host = Host::new();
    (1..3).for_each(|tid| put(&host.root, &format!("/proc/{tid}/stat"), &format!("{tid} (a) S {}0 0\n", "0 ".repeat(35))));
    let mut s = host.server();
    let mut here = s.grant(lease("1-3")).unwrap();
    let vm = PrimaryVm { cores: 4, poll_us: 50.0, window_ms: 25.0, dispatch_us: 0.0, quantum_ms: 10.0, cold_us: 0.0 };
    let at_once = Reassignment::constant(0.0);
    let idle = BurstWorkload {
        name: "idle".into(),
        qps: 0.0,
        task_us: 1.0,
        fanout: 1,
        scv_service: 0.0,
        scv_arrival: 1.0,
        wake_us: 0.0,
        threads: None,
        pinned: false,
        bursts: None,
        paper_mean: None,
        paper_peak: None,
    };
    let mut there = VirtualLender::new(lease("1-3"), &vm, &idle, at_once, 1);
    let (mut real, mut virtual_) = (script(&mut here), script(&mut there));
    s.end_leases("the test says so", |_| true);
    there.end("the test says so");
    real.push(format!("{:?} {:?}", here.lend(1), here.busy()));
    virtual_.push(format!("{:?} {:?}", there.lend(1), there.busy()));
    assert_eq!(real, virtual_);
    assert_eq!(here.lease(), there.lease());
}

/// Looks come from CPUs that are no service's, else from those of other services, never from the lender's.
#[test]
fn looks_come_from_elsewhere() {
    let set = |text: &str| CpuSet::parse(text).unwrap();
    assert_eq!(looks_on(set("0-7"), set("0-6"), set("0-3")), set("7"));
    assert_eq!(looks_on(set("0-7"), set("0-7"), set("0-3")), set("4-7"));
    // An operator keeps the daemon on CPUs of its own.
    assert_eq!(looks_on(set("2-5"), set("0-7"), set("0-3")), set("4-5"));
    assert!(looks_on(set("0-3"), set("0-7"), set("0-3")).is_empty());
}
