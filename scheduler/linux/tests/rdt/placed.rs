//! Services in classes, on a kernel that answers: what a plan says is what the kernel holds, and everything is given back. Each test
//! goes through every mount that the hardware takes.

use crate::bed::{bandwidth, groups_of, masks, set, tree, Bandwidth, Machine, Mounted, Other};
use crate::support::{read, Group, Process};
use std::collections::BTreeSet;
use std::time::Duration;
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::{Allocation, Kind, Mba, Plan, Server};

const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };
/// MB/s of memory bandwidth where the kernel counts in absolute units.
const PEAK_MBPS: f64 = 1e5;

struct Node {
    server: LocalServer,
    _state: tempfile::TempDir,
}

fn config(state: &std::path::Path) -> LocalConfig {
    LocalConfig { mem_bw_mbps: Some(PEAK_MBPS), look_every: Duration::ZERO, ..LocalConfig::new(state) }
}

impl Node {
    fn open() -> Node {
        let state = tempfile::tempdir().unwrap();
        Node { server: LocalServer::open(config(state.path())).unwrap(), _state: state }
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
        self.server.apply(&Plan { allocations, ..Plan::default() }).unwrap();
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

/// The platform is that of the hardware, with each mount; where a limit is absolute, per cent need the peak.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn the_platform_is_that_of_the_hardware() {
    let m = Machine::here();
    for options in m.mounts() {
        let _mounted = Mounted::with(options);
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
}

/// Masks of each domain and bandwidth are in force as a plan says them, for every thread, move with the next plan, and are given back
/// with nothing left, while the group of somebody else beside them is never touched.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_plan_is_in_force_as_written_and_given_back() {
    let m = Machine::here();
    for options in m.mounts() {
        let _mounted = Mounted::with(options);
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
}
