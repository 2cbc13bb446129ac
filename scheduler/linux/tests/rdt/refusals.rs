//! One refusal stops one service: cgroup v2 takes values that do not come into force, and resctrl refuses.

use crate::support::{read, until, write, Group, Process};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::bounding::keep;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::validate::validate;
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Server, ServiceId};

const RESCTRL: &str = "/sys/fs/resctrl";
const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };

/// A resctrl group of somebody else, gone after the test.
struct Foreign(PathBuf);

impl Foreign {
    fn new(name: &str) -> Self {
        let at = PathBuf::from(RESCTRL).join(name);
        std::fs::create_dir(&at).unwrap();
        Foreign(at)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Two services and their processes.
struct Two {
    _processes: [Process; 2],
    server: LocalServer,
    _state: tempfile::TempDir,
}

impl Two {
    fn new(bad: &Group, good: &Group) -> Self {
        let processes = [bad, good].map(|g| Process::start(g, "burn 0"));
        let state = tempfile::tempdir().unwrap();
        let mut server = LocalServer::open(LocalConfig { look_every: Duration::ZERO, ..LocalConfig::new(state.path()) }).unwrap();
        for (id, g) in [("bad", bad), ("good", good)] {
            server.adopt(id, id, LC, 1, Target::Cgroup(g.name().into())).unwrap();
        }
        Two { _processes: processes, server, _state: state }
    }

    /// Each one core and three ways; quotas where they are given.
    fn plan(&self, quota: Option<f64>) -> Plan {
        let p = self.server.platform();
        let cores = if p.by_quota() { 5 } else { 1 };
        let holding = |id: &&str| Holding { members: vec![id.to_string()], cores, ways: 3.min(p.ways()), mba_pct: 100 };
        let mut allocations = pack(p, &BTreeMap::new(), &["bad", "good"].iter().map(holding).collect::<Vec<_>>(), &[]).unwrap();
        allocations.values_mut().for_each(|a| a.quota_cores = quota.or(a.quota_cores));
        Plan::whole(allocations)
    }

    /// As a daemon does: the plan is made anew around what is seen, for three ticks at most.
    fn place(&mut self, wanted: &Plan) -> BTreeMap<ServiceId, Allocation> {
        let (mut said, mut worst) = (vec![], Duration::ZERO);
        for _ in 0..3 {
            let seen = self.server.observe();
            let around = keep(self.server.platform(), &seen, wanted.clone()).plan;
            let begun = Instant::now();
            let applied = self.server.apply(&around);
            worst = worst.max(begun.elapsed());
            match applied {
                Ok(_) => {
                    println!("applied after {} refusals, the slowest apply took {worst:?}: {said:?}", said.len());
                    let seen = self.server.observe();
                    let all: BTreeMap<_, _> =
                        seen.services.iter().filter(|v| v.placed).map(|v| (v.id.clone(), v.allocation.clone())).collect();
                    validate(self.server.platform(), &all).unwrap();
                    assert_eq!(all.len(), 2);
                    return all;
                }
                Err(e) => said.push(e.to_string()),
            }
        }
        panic!("not in three ticks: {said:?}");
    }

    fn why(&self) -> String {
        let one = |l: surefoot_linux::local::Limit| format!("{} {}: {}. {}", l.service, l.value.name(), l.cause, l.remedy);
        self.server.limits().into_iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

/// The group above has other CPUs, or less quota; a burst is more than the quota: the service gets what it may have and the tree's word is
/// told, its neighbour has CPUs of its own and its class.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn what_the_groups_above_bound_stops_one_service() {
    let (above, bad, good) = (Group::new("small"), Group::new("small/bad"), Group::new("good"));
    write(above.file("cpuset.cpus"), "1").unwrap();
    write(above.file("cpu.max"), "50000 100000").unwrap();
    let mut two = Two::new(&bad, &good);
    let held = two.place(&two.plan(Some(1.0)));
    assert_eq!(held["bad"].cpus, CpuSet::range(1, 2));
    assert!(held["bad"].quota_cores.is_none_or(|q| q <= 0.5), "{held:?}");
    assert!(held["good"].cpus.intersection(held["bad"].cpus).is_subset(&held["good"].shared_cpus));
    assert_eq!((bad.says("cpuset.cpus.effective").as_str(), good.says("cpu.max").as_str()), ("1", "10000 10000"));
    let why = two.why();
    assert!(why.contains("small, has only CPUs 1") && why.contains("small, has a quota of 0.5 cores"), "{why}");
    if two.server.platform().ways() > 0 {
        assert!(PathBuf::from(RESCTRL).join("surefoot.good").is_dir() && PathBuf::from(RESCTRL).join("surefoot.bad").is_dir());
    }
    // The cause goes, and the bound with it.
    write(above.file("cpuset.cpus"), &read("/sys/devices/system/cpu/online")).unwrap();
    write(above.file("cpu.max"), "max 100000").unwrap();
    two.server.observe();
    assert!(two.server.limits().iter().all(|l| l.service != "bad"), "{}", two.why());
    let wanted = two.plan(Some(1.0));
    assert_eq!(two.place(&wanted)["bad"].quota_cores, Some(1.0));
    two.server.reset().unwrap();
}

/// A burst that is more than the quota is refused (EINVAL): the service has no less than that.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_burst_stops_one_service() {
    let (bad, good) = (Group::new("bad"), Group::new("good"));
    write(bad.file("cpu.max"), "200000 100000").unwrap();
    write(bad.file("cpu.max.burst"), "15000").unwrap();
    let mut two = Two::new(&bad, &good);
    let held = two.place(&two.plan(Some(1.0)));
    assert!(held["bad"].quota_cores.is_none_or(|q| q >= 1.5) && held["good"].quota_cores == Some(1.0), "{held:?}");
    assert!(two.why().contains("its burst is 15000 us") && two.why().contains("echo 0"), "{}", two.why());
    two.server.reset().unwrap();
}

/// Ways that somebody else has taken alone since the start are refused for whoever was to have them, and for nobody else.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn refused_ways_stop_one_service() {
    let (bad, good) = (Group::new("bad"), Group::new("good"));
    let mut two = Two::new(&bad, &good);
    if two.server.platform().ways() < 7 {
        println!("no ways here");
        return;
    }
    let wanted = two.plan(None);
    let (theirs, ours) = (wanted.changes["bad"].whole().unwrap().ways, wanted.changes["good"].whole().unwrap().ways);
    assert_eq!(theirs[0] & ours[0], 0);
    // Exclusive needs ways that no other group has, the default group included.
    let rest = |m: u32| ((1 << two.server.platform().ways()) - 1) & !m;
    let line = |m: u32| {
        let text = read(format!("{RESCTRL}/schemata"));
        let l3 = text.lines().find(|l| l.trim().starts_with("L3")).unwrap();
        let (name, domains) = l3.trim().split_once(':').unwrap();
        let all: Vec<String> = domains.split(';').map(|d| format!("{}={m:x}", d.split_once('=').unwrap().0.trim())).collect();
        format!("{name}:{}\n", all.join(";"))
    };
    let before = read(format!("{RESCTRL}/schemata"));
    write(format!("{RESCTRL}/schemata"), &line(rest(theirs[0]))).unwrap();
    let foreign = Foreign::new("theirs");
    write(foreign.0.join("schemata"), &line(theirs[0])).unwrap();
    write(foreign.0.join("mode"), "exclusive\n").unwrap();
    let held = two.place(&wanted);
    assert_ne!(held["bad"].ways, theirs);
    assert_eq!(held["good"].ways[0].count_ones(), ours[0].count_ones());
    assert!(PathBuf::from(RESCTRL).join("surefoot.good").is_dir());
    assert!(two.why().contains("bad ways: "), "{}", two.why());
    two.server.reset().unwrap();
    drop(foreign);
    before
        .lines()
        .filter(|l| l.trim().starts_with("L3"))
        .for_each(|l| write(format!("{RESCTRL}/schemata"), &format!("{}\n", l.trim())).unwrap());
    until("the group is gone", || !PathBuf::from(RESCTRL).join("theirs").exists());
}
