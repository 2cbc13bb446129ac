//! Services in classes, on a kernel that answers: what a plan says is what the kernel holds, and everything is given back, with whichever
//! options resctrl is mounted.

use crate::bed::{bandwidth, groups_of, masks, options, set, tree, Bandwidth, Machine, NothingLeft, Other, RESCTRL};
use crate::support::{read, until, Group, Process};
use std::collections::BTreeSet;
use std::time::Duration;
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::{Allocation, Kind, Mba, Plan, Server};

const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };
/// MB/s of memory bandwidth where the kernel counts in absolute units.
const PEAK_MBPS: f64 = 1e5;

struct Node {
    server: LocalServer,
    state: tempfile::TempDir,
    _nothing_left: NothingLeft,
}

fn config(state: &std::path::Path) -> LocalConfig {
    LocalConfig { mem_bw_mbps: Some(PEAK_MBPS), look_every: Duration::ZERO, ..LocalConfig::new(state) }
}

impl Node {
    fn open() -> Node {
        let state = tempfile::tempdir().unwrap();
        Node { server: LocalServer::open(config(state.path())).unwrap(), state, _nothing_left: NothingLeft }
    }

    fn adopt(&mut self, id: &str, kind: Kind, p: &Process) {
        self.server.adopt(id, id, kind, 1, Target::Pid(p.pid())).unwrap();
    }

    /// Its CPUs shared with all, its ways in all domains moved up by one from domain to domain.
    fn hold(&self, ways: u32, mba_pct: u8) -> Allocation {
        let p = self.server.platform();
        let ways: Vec<u32> = (0..p.l3_domains()).map(|d| ways << d).collect();
        let quota_cores = p.by_quota().then_some(1.0);
        Allocation { quota_cores, shared_ways: vec![0; ways.len()], ways, mba_pct, ..Allocation::everything(p) }
    }

    fn apply(&mut self, of: &[(&str, Allocation)]) {
        let allocations = of.iter().map(|(id, a)| (id.to_string(), a.clone())).collect();
        self.server.apply(&Plan::whole(allocations)).unwrap();
    }

    /// What it says a service holds.
    fn says(&mut self, id: &str) -> Allocation {
        self.server.observe().get(id).unwrap().allocation.clone()
    }
}

/// Every thread of a process is in these groups.
fn assert_in(p: &Process, groups: &str) {
    let all: BTreeSet<String> = p.tids().into_iter().filter_map(groups_of).collect();
    assert_eq!(all, BTreeSet::from([groups.to_string()]));
}

/// The group that a process is in, as the kernel names it; the default one is "".
fn class(p: &Process) -> String {
    let groups = groups_of(p.pid()).unwrap();
    groups.split(' ').next().unwrap().trim_start_matches("res:").trim_matches('/').to_string()
}

/// What a service is said to hold is what the kernel gives to the group that its threads are in.
fn assert_told(node: &mut Node, id: &str, p: &Process) {
    let said = node.says(id);
    assert_eq!(said.ways, masks(&class(p)), "{id} is in \"{}\"", class(p));
}

/// Groups of others until the kernel has no more; why it had no more.
fn exhaust(folder: &str) -> (Vec<Other>, std::io::ErrorKind) {
    let mut all = vec![];
    loop {
        match Other::make(&format!("{folder}other{}", all.len())) {
            Ok(group) => all.push(group),
            // RMIDs of groups that were removed a moment ago come back when the cache has forgotten them.
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            Err(e) => return (all, e.kind()),
        }
        assert!(all.len() < 1000, "no end of groups");
    }
}

/// The platform is that of the hardware, with each mount; where a limit is absolute, per cent need the peak.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn the_platform_is_that_of_the_hardware() {
    let m = Machine::here();
    let options = options();
    let node = Node::open();
    let p = node.server.platform();
    let llc = p.llc.unwrap();
    assert_eq!((p.logical_cpus(), p.l3_domains() as usize, llc.ways), (m.cpus, m.l3_domains, m.ways), "{options}");
    let bytes: f64 = read("/sys/devices/system/cpu/cpu0/cache/index3/size").trim_end_matches('K').parse::<f64>().unwrap() * 1024.0;
    assert_eq!(llc.mb_per_way, bytes / f64::from(1 << 20) / f64::from(m.ways), "{options}");
    let mba = (m.bandwidth != Bandwidth::None).then_some(Mba { min_pct: 10, step_pct: 10 });
    assert_eq!(p.mba, mba, "{options}");
    let classes = if options == "cdp" { m.classes_with_cdp } else { m.classes };
    let r = surefoot_linux::resctrl::Resctrl::find(&surefoot_linux::Root::default()).unwrap();
    assert_eq!(r.info().num_closids, classes, "{options}");
    assert_eq!(r.info().monitoring.as_ref().unwrap().num_rmids, m.rmids, "{options}");
    assert!((r.info().cdp(), r.is_stand_in()) == (options == "cdp", false));
}

/// Masks of each domain and bandwidth are in force as a plan says them, for every thread, move with the next plan, and are given back
/// with nothing left, while the group of somebody else beside them is never touched.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_plan_is_in_force_as_written_and_given_back() {
    let m = Machine::here();
    let options = options();
    let other = Other::make("somebody").unwrap();
    let lines = if options == "cdp" { vec!["L3CODE", "L3DATA"] } else { vec!["L3"] };
    lines.iter().for_each(|l| set("somebody", &format!("{l}:0=f0")));
    let before = tree();
    let (a, b) = (Group::new("web"), Group::new("job"));
    let (web, job) = (Process::start(&a, "burn 0"), Process::start(&b, "burn 0"));
    let mut node = Node::open();
    node.adopt("web", LC, &web);
    node.adopt("job", Kind::Be, &job);
    assert_eq!(tree(), before, "{options}: adopting changes nothing");
    let limit = |pct: u8| if m.bandwidth == Bandwidth::None { 100 } else { pct };
    // Apart, overtaking each other, changed in bandwidth alone, the whole cache for one.
    let plans = [(0x7, 0x38, 60), (0x70, 0x7, 60), (0x70, 0x7, 30), (0x7, 0x1f8, 100)];
    let mut limits = vec![];
    for (ways, others, pct) in plans {
        let said = format!("{options} {ways:#x} {others:#x} {pct}");
        let (of_web, of_job) = (node.hold(ways, 100), node.hold(others, limit(pct)));
        node.apply(&[("web", of_web.clone()), ("job", of_job.clone())]);
        assert_eq!((masks("surefoot.web"), masks("surefoot.job")), (of_web.ways.clone(), of_job.ways.clone()), "{said}");
        assert_in(&web, "res:surefoot.web mon:web");
        assert_in(&job, "res:surefoot.job mon:job");
        let (held_web, held_job) = (node.says("web"), node.says("job"));
        assert_eq!((held_web.ways, held_job.ways, held_job.mba_pct), (of_web.ways, of_job.ways, of_job.mba_pct), "{said}");
        let in_force = bandwidth("surefoot.job");
        assert_eq!(bandwidth("surefoot.web"), bandwidth(""), "{said}: 100 % is no limit, as of the default group");
        if m.bandwidth == Bandwidth::Percent && options != "mba_MBps" {
            assert_eq!(in_force, vec![u64::from(pct); m.l3_domains], "{said}");
        }
        assert!(in_force.windows(2).all(|w| w[0] == w[1]), "{said}: {in_force:?}");
        limits.extend(in_force.first().copied());
    }
    // In whichever unit: half as much is half, rounded up, and no limit is that of the default group.
    if let [sixty, again, thirty, none] = limits[..] {
        assert!(sixty == again && (sixty.div_ceil(2)..=sixty.div_ceil(2) + 1).contains(&thirty), "{options}: {limits:?}");
        assert_eq!(none, bandwidth("")[0], "{options}: {limits:?}");
    }
    let report = node.server.reset().unwrap();
    assert_eq!(report.restored, ["job", "web"], "{options}");
    assert_eq!(tree(), before, "{options}");
    [&web, &job].iter().for_each(|p| assert_in(p, "res:/ mon:"));
    drop(other);
}

/// Where groups of others leave two classes for three services, each is in some class or the default group, what it is said to hold is what
/// the kernel gives it, no group of others is touched; each has a class of its own again when there is room.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn classes_that_run_out_are_shared_and_come_back() {
    let m = Machine::here();
    let options = options();
    let (mut others, why) = exhaust("");
    assert_eq!(why, std::io::ErrorKind::StorageFull, "{options}");
    assert_eq!(others.len() as u32 + 1, if options == "cdp" { m.classes_with_cdp } else { m.classes }, "{options}");
    others.truncate(others.len() - 2);
    let before = tree();
    let groups: Vec<Group> = ["a", "b", "job"].map(Group::new).into();
    let all: Vec<Process> = groups.iter().map(|g| Process::start(g, "burn 0")).collect();
    let mut node = Node::open();
    for (id, p, kind) in [("a", &all[0], LC), ("b", &all[1], LC), ("job", &all[2], Kind::Be)] {
        node.adopt(id, kind, p);
    }
    let plan = [("a", node.hold(0x3, 100)), ("b", node.hold(0xc, 100)), ("job", node.hold(0x10, 100))];
    node.apply(&plan);
    // The two LC services share: their ways are one block, and the job keeps off them.
    assert_eq!((class(&all[0]), masks(&class(&all[0]))), (class(&all[1]), node.hold(0xf, 100).ways), "{options}");
    assert_eq!(masks(&class(&all[2])), plan[2].1.ways, "{options}");
    ["a", "b", "job"].iter().zip(&all).for_each(|(id, p)| assert_told(&mut node, id, p));
    drop(others.pop());
    let mut looks = 0;
    until("each has a class of its own", || {
        node.server.observe();
        node.apply(&[]);
        looks += 1;
        class(&all[0]) != class(&all[1])
    });
    println!("{options}: a class of its own again after {looks} looks");
    ["a", "b", "job"].iter().zip(&all).zip(&plan).for_each(|((id, p), (_, wanted))| {
        assert_eq!(masks(&class(p)), wanted.ways, "{options} {id}");
        assert_told(&mut node, id, p);
    });
    node.server.reset().unwrap();
    let gone = others.len();
    let after = tree();
    let left: Vec<_> = before.iter().filter(|(path, text)| after.get(*path) != Some(*text)).map(|(path, _)| path.clone()).collect();
    let removed = format!("{RESCTRL}/other{gone}");
    assert!(left.iter().all(|path| path.starts_with(&removed)) && after.len() < before.len(), "{options}: {left:?}");
}

/// Without an RMID a service has its ways and its threads their class, only no counter; with one again it counts.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn rmids_that_run_out_cost_counters_alone() {
    let m = Machine::here();
    let before = tree();
    let class_of_others = Other::make("other").unwrap();
    let (others, _) = exhaust("mon_groups/");
    // Each group has one, also the default one and that of the others.
    assert_eq!(others.len() as u32 + 2, m.rmids);
    let g = Group::new("web");
    let p = Process::start(&g, "burn 1");
    let mut node = Node::open();
    node.adopt("web", LC, &p);
    // A class needs an RMID of its own: with none left the service stays where it is, and that is what is said.
    node.apply(&[("web", node.hold(0x7, 100))]);
    assert_told(&mut node, "web", &p);
    drop(others);
    drop(class_of_others);
    // A freed RMID waits until the cache has forgotten it.
    until("it has its class and counters", || {
        node.apply(&[("web", node.hold(0x7, 100))]);
        let seen = node.server.observe();
        groups_of(p.pid()).is_some_and(|g| g == "res:surefoot.web mon:web")
            && seen.get("web").unwrap().features.mbl_mbps.is_some_and(|b| b > 0.0)
    });
    assert_in(&p, "res:surefoot.web mon:web");
    assert_told(&mut node, "web", &p);
    node.server.reset().unwrap();
    assert_eq!(tree(), before);
}

/// Threads that are born while their service's class changes are in the class, like the others.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn threads_born_during_a_move_are_in_the_class() {
    let (g, h) = (Group::new("churn"), Group::new("beside"));
    let (p, q) = (Process::start(&g, "churn 3"), Process::start(&h, "burn 0"));
    let mut node = Node::open();
    node.adopt("churn", LC, &p);
    node.adopt("beside", LC, &q);
    let mut seen = 0;
    for round in 0..8 {
        // Into a class, and back to the default group.
        let ways = [0x3, 0xc][round % 2];
        node.apply(&[("churn", node.hold(ways, 100)), ("beside", node.hold(ways << 4, 100))]);
        // Those whose parent was not moved yet follow at a look.
        until("every thread is in the class", || {
            node.server.observe();
            let all: Vec<String> = p.tids().into_iter().filter_map(groups_of).collect();
            seen += all.len();
            all.iter().all(|groups| groups == "res:surefoot.churn mon:churn")
        });
        node.server.reset().unwrap();
        for groups in p.tids().into_iter().filter_map(groups_of) {
            assert_eq!(groups, "res:/ mon:", "round {round}");
        }
    }
    assert!(seen >= 16, "only {seen} threads were looked at");
}

/// A node that died leaves its plan in force; the next one with its state folder gives everything back.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn what_a_dead_node_left_is_given_back() {
    let options = options();
    let before = tree();
    let g = Group::new("web");
    let p = Process::start(&g, "burn 0");
    let mut node = Node::open();
    node.adopt("web", LC, &p);
    let plan = node.hold(0x38, 100);
    node.apply(&[("web", plan.clone())]);
    let Node { server, state, _nothing_left } = node;
    drop(server);
    assert_eq!(masks("surefoot.web"), plan.ways, "{options}");
    assert_in(&p, "res:surefoot.web mon:web");
    let mut next = LocalServer::open(config(state.path())).unwrap();
    let report = next.reset().unwrap();
    assert_eq!((report.groups_removed, tree()), (vec!["web".to_string()], before), "{options}");
    assert_in(&p, "res:/ mon:");
}

/// Counters are the service's own: one that runs has bandwidth and cache of its class, one that sleeps beside it has none.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn counters_are_those_of_the_service() {
    let options = options();
    let (a, b) = (Group::new("busy"), Group::new("idle"));
    let (p, q) = (Process::start(&a, "burn 1"), Process::start(&b, "burn 0"));
    let mut node = Node::open();
    node.adopt("busy", LC, &p);
    node.adopt("idle", LC, &q);
    node.apply(&[("busy", node.hold(0x7, 100)), ("idle", node.hold(0x38, 100))]);
    node.server.observe();
    // The processor's model moves two bytes a nanosecond for each thread that runs; a sleeper's few wakes are far below.
    until("the busy one has bandwidth", || {
        let seen = node.server.observe();
        seen.get("busy").unwrap().features.mbl_mbps.is_some_and(|b| b > 0.0)
    });
    let sum = |group: &str, file: &str| -> u64 {
        let data = std::fs::read_dir(format!("{RESCTRL}/surefoot.{group}/mon_groups/{group}/mon_data")).unwrap();
        data.map(|d| read(d.unwrap().path().join(file)).parse::<u64>().unwrap()).sum()
    };
    let (busy, idle) = (sum("busy", "mbm_total_bytes"), sum("idle", "mbm_total_bytes"));
    assert!(busy > 10 * idle, "{options}: busy {busy}, idle {idle} bytes");
    node.server.reset().unwrap();
}
