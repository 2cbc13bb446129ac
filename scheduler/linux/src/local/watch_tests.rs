//! resctrl's model, in which somebody changes what is ours.

use super::*;
use crate::cgroup::tests::v1;
use crate::files::Files;
use crate::root::tests::put;
use crate::testing::{intel, ModelFiles};
use std::fs;

/// A v1 host with two services, `c` (threads 42, 43) and `d` (50), and eleven ways in each of `domains` L3 domains.
struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    state: tempfile::TempDir,
    model: ModelFiles,
}

impl Host {
    fn new(domains: u32) -> Self {
        let (dir, root) = v1();
        let put = |path: &str, text: &str| put(&root, path, text);
        put("/sys/devices/system/cpu/online", "0-7\n");
        put("/sys/devices/system/cpu/possible", "0-7\n");
        (0..8).for_each(|cpu| put(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/level"), "3\n"));
        (0..8u32).for_each(|cpu| put(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/id"), &format!("{}\n", cpu / 4 % domains)));
        put("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus", "0-7\n");
        put("/sys/fs/cgroup/cpuset/docker/d/cpuset.cpus", "0-7\n");
        put("/sys/fs/cgroup/cpuset/docker/d/tasks", "50\n");
        put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_quota_us", "-1\n");
        put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_period_us", "100000\n");
        ["c", "d"].iter().for_each(|id| put(&format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.shares"), "1024\n"));
        let (model, root) = ModelFiles::mount(&root, intel(domains, 11), "");
        [42, 43, 50].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
        Host { _dir: dir, root, state: tempfile::tempdir().unwrap(), model }
    }

    /// Placed: `c` with ways 3-5, `d` with 6-8.
    fn server(&self) -> LocalServer {
        let config = LocalConfig {
            root: self.root.clone(),
            mem_bw_mbps: Some(1e5),
            look_every: Duration::ZERO,
            ..LocalConfig::new(self.state.path())
        };
        let mut s = LocalServer::open(config).unwrap();
        for id in ["c", "d"] {
            s.adopt(id, id, Kind::Be, 1, Target::Cgroup(format!("/docker/{id}").into())).unwrap();
        }
        let plan = self.plan(&s, 0x38, 0x1c0);
        s.apply(&plan).unwrap();
        s.observe();
        s
    }

    fn plan(&self, s: &LocalServer, c: u32, d: u32) -> Plan {
        let all = Allocation::everything(s.platform());
        let with = |cpus: &str, ways: u32| Allocation {
            cpus: CpuSet::parse(cpus).unwrap(),
            shared_cpus: CpuSet::empty(),
            ways: vec![ways; all.ways.len()],
            shared_ways: vec![0; all.ways.len()],
            mba_pct: 50,
            ..all.clone()
        };
        let allocations = BTreeMap::from([("c".into(), with("0-2", c)), ("d".into(), with("3-5", d))]);
        Plan::whole(allocations)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path("/sys/fs/resctrl").join(path)
    }

    fn says(&self, path: &str) -> String {
        self.root
            .read(format!("/sys/fs/resctrl/{path}"))
            .map_or_else(|| "nothing".into(), |t| t.split_whitespace().collect::<Vec<_>>().join(" ").replace("= ", "="))
    }

    /// As somebody else does it.
    fn set(&self, path: &str, text: &str) {
        self.model.write(&self.at(path), text).unwrap_or_else(|e| panic!("{path} <- {text:?}: {e}"));
    }

    fn groups(&self, tid: u32) -> String {
        self.model.machine().task_groups(tid).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// What a class is, and where the threads are.
    fn state(&self) -> Vec<String> {
        let files = ["schemata", "mode", "cpus_list", "tasks", "mon_groups/c/tasks"].map(|f| self.says(&format!("surefoot.c/{f}")));
        files.into_iter().chain([42, 43, 50].map(|t| self.groups(t))).collect()
    }
}

fn held(s: &mut LocalServer, id: &str) -> (Vec<u32>, u8) {
    let seen = s.observe();
    let a = &seen.get(id).unwrap().allocation;
    (a.ways.clone(), a.mba_pct)
}

/// Whatever somebody does to a class of ours, its monitoring group or its threads is undone at the next look and counted for its service, and for
/// no other.
#[test]
fn what_somebody_changes_in_resctrl_is_put_back() {
    let host = Host::new(2);
    // Somebody has narrowed the default group: else no group could be made exclusive.
    host.set("schemata", "L3:0=600;1=600\n");
    host.model.make_dir(&host.at("other")).unwrap();
    host.set("other/schemata", "L3:0=600;1=600\n");
    let mut s = host.server();
    let before = host.state();
    assert_eq!(before[0], "MB:0=50;1=50 L3:0=038;1=038");
    let remove = |dir: &str| host.model.remove_dir(&host.at(dir)).unwrap();
    let interferes: [(&str, &dyn Fn()); 9] = [
        ("schemata of its class", &|| host.set("surefoot.c/schemata", "L3:0=7\n")),
        ("schemata of its class", &|| host.set("surefoot.c/schemata", "MB:1=100\n")),
        ("mode of its class", &|| host.set("surefoot.c/mode", "exclusive\n")),
        ("CPUs of its class", &|| host.set("surefoot.c/cpus_list", "6-7\n")),
        ("class of its threads", &|| host.set("tasks", "42\n")),
        ("class of its threads", &|| host.set("other/tasks", "43\n")),
        ("monitoring group", &|| remove("surefoot.c/mon_groups/c")),
        ("class", &|| remove("surefoot.c")),
        ("class of its threads", &|| {
            remove("surefoot.c");
            host.model.make_dir(&host.at("surefoot.c")).unwrap();
        }),
    ];
    for (n, (what, interfere)) in interferes.iter().enumerate() {
        interfere();
        assert_ne!(host.state(), before, "{n}: {what}");
        host.model.machine().advance(10_000);
        // A second change of the same kind is left alone for a second.
        let end = Instant::now() + Duration::from_secs(30);
        while host.state() != before {
            assert!(Instant::now() < end, "{n}: {what}: {:?}", host.state());
            s.observe();
        }
        assert_eq!((held(&mut s, "c"), held(&mut s, "d")), ((vec![0x38; 2], 50), (vec![0x1c0; 2], 50)));
    }
    let counts = s.foreign_class_changes();
    for (what, _) in interferes {
        assert!(counts.get(&("c", what)).is_some_and(|n| *n >= 1), "{what}: {counts:?}");
    }
    assert!(counts.keys().all(|(id, _)| *id == "c"), "{counts:?}");
    assert!(s.foreign_changes().is_empty());
    s.reset().unwrap();
    assert_eq!(host.says("surefoot.c/schemata"), "nothing");
    assert_eq!(host.says("schemata"), "MB:0=100;1=100 L3:0=600;1=600", "not ours to change");
}

/// CPUs that were all off line for a moment bring back a domain with every way and all bandwidth: ours are set there again, and until they are
/// what is told is what there is.
#[test]
fn a_domain_that_comes_back_has_our_ways_again() {
    let host = Host::new(2);
    let mut s = host.server();
    host.set("surefoot.c/schemata", "L3:1=7ff\nMB:1=100\n");
    s.observe();
    assert_eq!(host.says("surefoot.c/schemata"), "MB:0=50;1=50 L3:0=038;1=038");
    // It comes back at once: two who do so do not fight at every look, but what is told is what is there.
    for mask in ["7f8", "7f0"] {
        host.set("surefoot.c/schemata", &format!("L3:1={mask}\nMB:1=100\n"));
        s.observe();
    }
    assert_eq!(host.says("surefoot.c/schemata"), "MB:0=50;1=100 L3:0=038;1=7f0");
    assert_eq!(held(&mut s, "c").0, [0x38, 0x7f0]);
    assert!(s.observe().get("c").unwrap().features.alloc_ways.unwrap() > 3.0);
    let end = Instant::now() + Duration::from_secs(30);
    while held(&mut s, "c").0 != [0x38, 0x38] {
        assert!(Instant::now() < end, "{}", host.says("surefoot.c/schemata"));
    }
    assert_eq!(host.says("surefoot.c/schemata"), "MB:0=50;1=50 L3:0=038;1=038");
}

/// While resctrl is not mounted every service reaches all ways, which is what is told; CPUs go on; mounted again, also with the same options,
/// the classes are made again.
#[test]
fn without_a_mount_everybody_has_all_ways() {
    let host = Host::new(1);
    let mut s = host.server();
    let mounts = fs::read_to_string(host.root.path("/proc/mounts")).unwrap();
    host.model.machine().umount().unwrap();
    fs::write(host.root.path("/proc/mounts"), "").unwrap();
    assert_eq!((held(&mut s, "c"), held(&mut s, "d")), ((vec![0x7ff], 100), (vec![0x7ff], 100)));
    let mut plan = host.plan(&s, 0x38, 0x1c0);
    plan.adjust("c", |a| a.cpus = CpuSet::parse("0-1").unwrap());
    s.apply(&plan).unwrap();
    assert_eq!(host.root.read("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus").unwrap(), "0-1");
    let (ways, _) = held(&mut s, "c");
    assert_eq!(ways, [0x7ff]);
    host.model.machine().mount("", false).unwrap();
    fs::write(host.root.path("/proc/mounts"), mounts).unwrap();
    s.observe();
    assert_eq!((host.says("surefoot.c/schemata").as_str(), host.groups(42).as_str()), ("MB:0=50 L3:0=038", "res:surefoot.c mon:c"));
    assert_eq!(held(&mut s, "c"), (vec![0x38], 50));
    s.reset().unwrap();
    assert_eq!(host.root.read("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus").unwrap(), "0-7");
}

/// Mounted anew with bandwidth in another unit: what is kept from then on is of that unit. 50 % of 100 GB/s are 50e9 / 2^20 = 47,684 MB/s.
#[test]
fn another_unit_is_kept_in_that_unit() {
    let host = Host::new(1);
    let mut s = host.server();
    let line = {
        let mut m = host.model.machine();
        m.umount().unwrap();
        m.mount("mba_MBps", false).unwrap();
        format!("resctrl /sys/fs/resctrl resctrl rw,relatime{} 0 0\n", m.mount_options().unwrap_or_default())
    };
    fs::write(host.root.path("/proc/mounts"), line).unwrap();
    s.observe();
    assert_eq!((host.says("surefoot.c/schemata").as_str(), s.resctrl_changed()), ("MB:0=47684 L3:0=038", None));
    host.set("surefoot.c/schemata", "MB:0=100\n");
    s.observe();
    s.observe();
    assert_eq!((host.says("surefoot.c/schemata").as_str(), held(&mut s, "c")), ("MB:0=47684 L3:0=038", (vec![0x38], 50)));
}

/// A thread that enters a service later from a group of somebody else goes back there as one that was there from the start, also from a process
/// that knows only the journal; one that somebody moved out of our class was not there before.
#[test]
fn threads_that_enter_later_go_back_too() {
    let host = Host::new(1);
    host.model.make_dir(&host.at("vm")).unwrap();
    let mut s = host.server();
    host.model.machine().spawn(44, 44, 1, 0);
    host.set("vm/tasks", "44\n");
    host.set("vm/tasks", "42\n");
    fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/c/tasks"), "42\n43\n44\n").unwrap();
    s.observe();
    assert!([42, 43, 44].iter().all(|t| host.groups(*t) == "res:surefoot.c mon:c"));
    drop(s);
    let config = LocalConfig { root: host.root.clone(), ..LocalConfig::new(host.state.path()) };
    LocalServer::open(config).unwrap().reset().unwrap();
    assert_eq!([42, 43, 44].map(|t| host.groups(t)), ["res:/ mon:", "res:/ mon:", "res:vm mon:"]);
}

/// The default group is not ours to change: what somebody sets it to is what those in it are said to hold. CPUs of their monitoring groups are
/// taken back, and threads that were moved out of it come back.
#[test]
fn services_in_the_default_group_are_told_what_it_has() {
    let host = Host::new(1);
    (0..7).for_each(|n| host.model.make_dir(&host.at(&format!("other{n}"))).unwrap());
    let mut s = host.server();
    assert_eq!(held(&mut s, "c").0, [0x7ff]);
    host.set("schemata", "L3:0=7f\n");
    assert_eq!(held(&mut s, "c").0, [0x7f]);
    host.set("mon_groups/surefoot.c/cpus_list", "1\n");
    host.set("other0/tasks", "42\n");
    s.observe();
    assert_eq!((host.says("mon_groups/surefoot.c/cpus_list").as_str(), host.groups(42).as_str()), ("", "res:/ mon:surefoot.c"));
    assert_eq!((host.says("schemata").as_str(), host.groups(50).as_str()), ("MB:0=100 L3:0=07f", "res:/ mon:surefoot.d"));
}

/// A plan that comes before the look sets what somebody changed, and it is counted all the same.
#[test]
fn a_plan_counts_what_it_finds_changed() {
    let host = Host::new(1);
    let mut s = host.server();
    host.set("surefoot.c/schemata", "L3:0=7\n");
    let mut plan = host.plan(&s, 0x38, 0x1c0);
    plan.adjust("d", |a| a.ways = vec![0xc0]);
    s.apply(&plan).unwrap();
    assert_eq!(host.says("surefoot.c/schemata"), "MB:0=50 L3:0=038");
    assert_eq!(s.foreign_class_changes(), BTreeMap::from([(("c", "schemata of its class"), 1)]));
    s.observe();
    assert_eq!(s.foreign_class_changes().len(), 1);
}
