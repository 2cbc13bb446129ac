//! A v2 host with two NUMA nodes and a systemd unit, as files.

use super::*;
use crate::root::tests::tree;
use std::fs;
use surefoot_server::{Change, Limit};

const UNIT: &str = "/sys/fs/cgroup/system.slice/redis.service";

struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    state: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let mut files: Vec<(String, String)> = vec![
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu io memory\n".into()),
            ("/sys/devices/system/cpu/online".into(), "0-7\n".into()),
        ];
        for (file, text) in [
            ("cpuset.cpus", "0-7"),
            ("cpuset.mems", "0-1"),
            ("cpuset.cpus.partition", "member"),
            ("cpu.max", "max 100000"),
            ("cpu.weight", "100"),
            ("memory.max", "max"),
            ("memory.high", "max"),
            ("memory.zswap.max", "max"),
            ("memory.current", "1048576"),
            ("cgroup.procs", "42"),
        ] {
            files.push((format!("{UNIT}/{file}"), format!("{text}\n")));
        }
        for (node, free_kb) in [(0, 1 << 20), (1, 512)] {
            let dir = format!("/sys/devices/system/node/node{node}");
            files.push((format!("{dir}/cpulist"), format!("{}-{}\n", node * 4, node * 4 + 3)));
            files.push((format!("{dir}/meminfo"), format!("Node {node} MemFree:  {free_kb} kB\nNode {node} Inactive(file): 0 kB\n")));
        }
        let (dir, root) = tree(&files);
        Host { _dir: dir, root, state: tempfile::tempdir().unwrap() }
    }

    fn open(&self, partitions: bool) -> LocalServer {
        let config = LocalConfig { root: self.root.clone(), partitions, look_every: Duration::ZERO, ..LocalConfig::new(self.state.path()) };
        let mut s = LocalServer::open(config).unwrap();
        s.adopt("redis", "redis", Kind::Lc { qos_target_ms: 1.0 }, 1, Target::Unit("redis.service".into())).unwrap();
        s
    }

    fn says(&self, file: &str) -> String {
        self.root.read(format!("{UNIT}/{file}")).unwrap()
    }

    fn everything(&self) -> Vec<String> {
        ["cpuset.cpus", "cpuset.mems", "cpuset.cpus.partition", "cpu.max", "cpu.weight", "memory.max", "memory.zswap.max"]
            .map(|f| self.says(f))
            .to_vec()
    }
}

fn plan(s: &LocalServer, cpus: &str) -> Plan {
    let all = Allocation::everything(s.platform());
    let a = Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..all };
    Plan::whole(BTreeMap::from([("redis".into(), a)]))
}

/// Until what runs on the side has ended.
fn settle(s: &mut LocalServer, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "not within 30 s");
        s.observe();
        std::thread::yield_now();
    }
}

/// A unit is placed by its name; what a daemon-reload overwrites is put back at the next tick and counted; reset gives back what
/// was there before, not what was overwritten with.
#[test]
fn what_systemd_overwrites_is_put_back() {
    let host = Host::new();
    let before = host.everything();
    let mut s = host.open(false);
    s.apply(&plan(&s, "0-1")).unwrap();
    assert_eq!(host.says("cpuset.cpus"), "0-1");
    s.observe();
    assert!(s.foreign_changes().is_empty());
    fs::write(host.root.path(format!("{UNIT}/cpuset.cpus")), "0-7\n").unwrap();
    fs::write(host.root.path(format!("{UNIT}/cpu.max")), "max 100000\n").unwrap();
    s.observe();
    assert_eq!((host.says("cpuset.cpus").as_str(), host.says("cpu.max").as_str()), ("0-1", "max 10000"));
    assert_eq!(s.foreign_changes(), BTreeMap::from([(("redis", Knob::Cpus), 1), (("redis", Knob::Quota), 1)]));
    s.reset().unwrap();
    settle(&mut s, || host.everything() == before);
    fs::write(host.root.path(format!("{UNIT}/cpuset.cpus")), "3\n").unwrap();
    s.observe();
    assert_eq!(host.says("cpuset.cpus"), "3", "what was given back is nobody's business");
}

/// Memory follows the CPUs to their node while there is room for it (1 MiB in use: 1 GiB free on node 0, half a MiB on node 1).
#[test]
fn memory_follows_where_there_is_room() {
    let host = Host::new();
    let mut s = host.open(false);
    s.apply(&plan(&s, "1-2")).unwrap();
    settle(&mut s, || host.says("cpuset.mems") == "0");
    s.apply(&plan(&s, "4-5")).unwrap();
    settle(&mut s, || host.says("cpuset.mems") == "0-1");
    s.apply(&plan(&s, "3-4")).unwrap();
    s.observe();
    assert_eq!(host.says("cpuset.mems"), "0-1", "CPUs of both nodes");
    s.apply(&plan(&s, "0")).unwrap();
    settle(&mut s, || host.says("cpuset.mems") == "0");
    s.reset().unwrap();
    assert_eq!(host.says("cpuset.mems"), "0-1");
}

/// Free memory that the kernel keeps free is no room, pages that are there already need none, and what was taken under a limit comes back.
#[test]
fn a_node_is_not_filled_to_its_marks() {
    let host = Host::new();
    let mut s = host.open(false);
    let zones = |pages: u64| {
        format!("Node 0, zone   DMA\n  pages free 9\n        high     {pages}\n  pagesets\n      high:  99999999\nNode 1, zone Normal\n        high 77\n")
    };
    let put = |path: &str, text: String| crate::root::tests::put(&host.root, path, &text);
    let of = |s: &LocalServer| {
        let group = Mounts::read(&host.root).named("/system.slice/redis.service").unwrap();
        let a = Allocation { cpus: CpuSet::range(1, 3), ..Allocation::everything(s.platform()) };
        let mut promised = vec![];
        let mut is_0 = || s.nodes_for("redis", &group, &a, &mut promised).is_some_and(|n| n.to_string() == "0");
        (is_0(), is_0())
    };
    s.apply(&plan(&s, "3-4")).unwrap();
    assert_eq!(of(&s), (true, true));
    let free_kb: u64 =
        host.root.read("/sys/devices/system/node/node0/meminfo").unwrap().split_whitespace().nth(3).unwrap().parse().unwrap();
    // The service has a MiB, and the kernel leaves one and a half: nothing for a second one.
    put("/proc/zoneinfo", zones((free_kb - 1536) / 4));
    assert_eq!(of(&s), (true, false));
    put("/proc/zoneinfo", zones((free_kb - 512) / 4));
    assert_eq!(of(&s), (false, false));
    // Most of it is there.
    put(&format!("{UNIT}/memory.numa_stat"), format!("anon N0={} N1=4096\nfile N0=0 N1=0\nkernel N0=9 N1=9\n", (1 << 20) - 4096));
    assert_eq!(of(&s), (true, true));
    // A MiB of it is out, and comes back.
    put(&format!("{UNIT}/memory.stat"), "zswap 0\nzswapped 0\n".into());
    put(&format!("{UNIT}/memory.swap.current"), "1048576\n".into());
    s.observe();
    assert_eq!(of(&s), (false, false));
}

/// A limit below what is in use is not a write of the plan: it is reached on the side, or not at all, and given back with the rest.
#[test]
fn a_limit_below_use_is_reached_on_the_side() {
    let host = Host::new();
    let mut s = host.open(false);
    let mut p = plan(&s, "0-1");
    p.adjust("redis", |a| a.mem_limit_bytes = Some(4 << 20));
    s.apply(&p).unwrap();
    assert_eq!(host.says("memory.max"), (4 << 20).to_string(), "above what is in use: at once");
    p.adjust("redis", |a| a.mem_limit_bytes = Some(64 << 10));
    s.apply(&p).unwrap();
    assert_eq!(host.says("memory.max"), (4 << 20).to_string());
    // The kernel gets there.
    fs::write(host.root.path(format!("{UNIT}/memory.current")), "65536\n").unwrap();
    settle(&mut s, || host.says("memory.max") == (64 << 10).to_string());
    assert_eq!(host.says("memory.high"), "max");
    s.reset().unwrap();
    assert_eq!(host.says("memory.max"), "max");
}

/// A plan that leaves a memory limit alone leaves alone what takes memory for it, and does not begin anew what was given up. Another limit
/// does both.
#[test]
fn a_plan_of_cores_does_not_disturb_a_slow_lowering() {
    let host = Host::new();
    let mut s = host.open(false);
    let mut p = plan(&s, "0-1");
    p.adjust("redis", |a| a.mem_limit_bytes = Some(64 << 10));
    // 1 MiB is in use, and nothing takes it: that is given up after two seconds.
    s.apply(&p).unwrap();
    let begun = s.keeper.lowering("redis");
    assert!(begun.is_some());
    let cores = |s: &LocalServer, cpus: &str| {
        Plan::cores_and_ways(plan(s, cpus).changes.iter().map(|(id, c)| (id.clone(), c.whole().unwrap())).collect())
    };
    for cpus in ["2-3", "4-5"] {
        s.apply(&cores(&s, cpus)).unwrap();
        assert_eq!((host.says("cpuset.cpus").as_str(), s.keeper.lowering("redis")), (cpus, begun));
    }
    let end = Instant::now() + Duration::from_secs(30);
    while s.keeper.lowering("redis").is_some() {
        assert!(Instant::now() < end, "it was to be given up");
        s.observe();
        std::thread::sleep(Duration::from_millis(10));
    }
    s.apply(&cores(&s, "0-1")).unwrap();
    s.observe();
    assert_eq!((s.keeper.lowering("redis"), host.says("memory.max").as_str()), (None, "max"));
    p.adjust("redis", |a| a.mem_limit_bytes = Some(128 << 10));
    s.apply(&p).unwrap();
    let anew = s.keeper.lowering("redis");
    assert!(anew.is_some() && anew != begun);
    p.adjust("redis", |a| a.mem_limit_bytes = Some(256 << 10));
    s.apply(&p).unwrap();
    assert!(s.keeper.lowering("redis").is_some_and(|t| Some(t) != anew));
    s.reset().unwrap();
    assert_eq!(host.says("memory.max"), "max");
}

/// A limit that nothing reached is told, with the one in force, and tried again after a pause that doubles. Once it is in force it is told no
/// more.
#[test]
fn a_limit_that_was_given_up_is_told_and_tried_again() {
    let host = Host::new();
    let mut s = host.open(false);
    let mut p = plan(&s, "0-1");
    p.adjust("redis", |a| a.mem_limit_bytes = Some(4 << 20));
    s.apply(&p).unwrap();
    p.adjust("redis", |a| a.mem_limit_bytes = Some(64 << 10));
    s.apply(&p).unwrap();
    let told = |s: &LocalServer| s.limits().into_iter().find(|l| l.cause.contains("4194304 bytes") && l.kept);
    assert!(told(&s).is_none(), "it is on its way");
    for seconds in [4, 8] {
        let end = Instant::now() + Duration::from_secs(30);
        while s.keeper.lowering("redis").is_some() {
            assert!(Instant::now() < end, "it was to be given up");
            s.observe();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(told(&s).is_some_and(|l| l.service == "redis"), "{:?}", s.limits());
        assert!(s.bounds()["redis"].why.iter().any(|why| why.contains("4194304 bytes")), "{:?}", s.bounds());
        let begun = Instant::now();
        let end = begun + Duration::from_secs(30);
        while s.keeper.lowering("redis").is_none() {
            assert!(Instant::now() < end, "it was to be tried again");
            s.observe();
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(begun.elapsed() >= Duration::from_secs(seconds - 1) && told(&s).is_some(), "{:?}", begun.elapsed());
    }
    fs::write(host.root.path(format!("{UNIT}/memory.current")), "65536\n").unwrap();
    settle(&mut s, || host.says("memory.max") == (64 << 10).to_string());
    s.observe();
    assert!(s.limits().is_empty() && s.foreign_changes().is_empty(), "{:?}", s.limits());
    s.reset().unwrap();
    assert_eq!(host.says("memory.max"), "max");
}

/// The tick that hears of a failed lowering gives the pages room: it does not wait for the next look.
#[test]
fn a_failed_lowering_makes_room_at_once() {
    let host = Host::new();
    let mut s = host.open(false);
    s.config.look_every = Duration::from_secs(3600);
    let mut p = plan(&s, "0-1");
    p.adjust("redis", |a| a.mem_limit_bytes = Some(4 << 20));
    s.apply(&p).unwrap();
    p.adjust("redis", |a| a.mem_limit_bytes = Some(64 << 10));
    s.apply(&p).unwrap();
    // Long enough for it to end, with nobody looking.
    std::thread::sleep(Duration::from_secs(4));
    // Without swap nothing of 8 MiB may go.
    let put = |path: String, text: &str| fs::write(host.root.path(path), text).unwrap();
    put("/proc/meminfo".into(), "MemTotal: 4194304 kB\nSwapFree: 0 kB\n");
    put(format!("{UNIT}/memory.swap.current"), "0\n");
    put(format!("{UNIT}/memory.stat"), "active_anon 8388608\ninactive_anon 0\n");
    s.observe();
    assert_eq!(host.says("memory.max"), (9 << 20).to_string());
    s.reset().unwrap();
}

/// A plan of cores and ways says nothing about memory: limits that another plan set stay, through a restart too, until a plan lifts them.
#[test]
fn a_memory_limit_survives_a_plan_of_cores_and_ways() {
    let host = Host::new();
    let mut s = host.open(false);
    let mut first = plan(&s, "0-1");
    first.adjust("redis", |a| (a.mem_limit_bytes, a.zswap_max_bytes) = (Some(64 << 20), Some(16 << 20)));
    s.apply(&first).unwrap();
    let cores_and_ways = |s: &LocalServer, cpus: &str| {
        Plan::cores_and_ways(plan(s, cpus).changes.iter().map(|(id, c)| (id.clone(), c.whole().unwrap())).collect())
    };
    let limits = || [host.says("memory.max"), host.says("memory.zswap.max")];
    let set = [(64 << 20).to_string(), (16 << 20).to_string()];
    s.apply(&cores_and_ways(&s, "2-3")).unwrap();
    assert_eq!((host.says("cpuset.cpus").as_str(), limits()), ("2-3", set.clone()));
    let told = s.observe().get("redis").unwrap().allocation.clone();
    assert_eq!((told.mem_limit_bytes, told.zswap_max_bytes), (Some(64 << 20), Some(16 << 20)));
    // And the other way round: a limit moves no CPU.
    let limit = |to: Limit| {
        let change = Change { mem_limit: Some(to), ..Change::default() };
        Plan { changes: BTreeMap::from([("redis".into(), change)]), ..Plan::default() }
    };
    s.apply(&limit(Limit::Bytes(32 << 20))).unwrap();
    assert_eq!((host.says("cpuset.cpus").as_str(), host.says("memory.max")), ("2-3", (32 << 20).to_string()));
    drop(s);
    let mut s = host.open(false);
    s.resume().unwrap();
    s.apply(&cores_and_ways(&s, "4-5")).unwrap();
    assert_eq!((host.says("cpuset.cpus").as_str(), limits()), ("4-5", [(32 << 20).to_string(), set[1].clone()]));
    s.apply(&limit(Limit::None)).unwrap();
    assert_eq!((host.says("cpuset.cpus").as_str(), limits()), ("4-5", ["max".to_string(), set[1].clone()]));
}

/// Only where it is asked for, and only for a service alone on its CPUs; taken away before CPUs move, and with the rest.
#[test]
fn partitions_are_made_where_asked_for() {
    let host = Host::new();
    let before = host.everything();
    let mut s = host.open(true);
    s.apply(&plan(&s, "0-1")).unwrap();
    assert_eq!(host.says("cpuset.cpus.partition"), "root");
    s.apply(&plan(&s, "2-3")).unwrap();
    assert_eq!(host.says("cpuset.cpus.partition"), "root");
    let mut shared = plan(&s, "0-3");
    shared.adjust("redis", |a| a.shared_cpus = a.cpus);
    s.apply(&shared).unwrap();
    assert_eq!(host.says("cpuset.cpus.partition"), "member");
    s.apply(&plan(&s, "2")).unwrap();
    // A neighbour's write made it invalid: one attempt, then plain CPUs.
    fs::write(host.root.path(format!("{UNIT}/cpuset.cpus.partition")), "root invalid (not exclusive)\n").unwrap();
    s.observe();
    assert_eq!(host.says("cpuset.cpus.partition"), "root");
    assert_eq!(s.foreign_changes()[&("redis", Knob::Partition)], 1);
    s.reset().unwrap();
    settle(&mut s, || host.everything() == before);
}

/// A unit that does not run, one without the controllers, and one that is no service are named with what to do.
#[test]
fn units_that_cannot_be_had_are_explained() {
    let host = Host::new();
    let bare = host.root.path("/sys/fs/cgroup/system.slice/bare.service");
    fs::create_dir_all(bare).unwrap();
    let mut s = host.open(false);
    let mut says = |unit: &str| s.adopt("x", "x", Kind::Be, 1, Target::Unit(unit.into())).unwrap_err().to_string();
    assert!(says("none.service").contains("systemctl status none.service") && says("none.service").contains("Units of users"));
    let bare = says("bare.service");
    assert!(bare.contains("/system.slice/bare.service") && bare.contains("systemctl set-property --runtime bare.service"), "{bare}");
    assert!(says("redis").contains("redis.service"));
    s.reset().unwrap();
    drop(s);
    // v1 has no such folders.
    fs::write(host.root.path("/sys/fs/cgroup/cgroup.controllers"), "\n").unwrap();
    let mut s =
        LocalServer::open(LocalConfig { root: host.root.clone(), look_every: Duration::ZERO, ..LocalConfig::new(host.state.path()) })
            .unwrap();
    let e = s.adopt("x", "x", Kind::Be, 1, Target::Unit("redis.service".into())).unwrap_err().to_string();
    assert!(e.contains("cgroup v2 only"), "{e}");
}
