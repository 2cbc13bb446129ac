//! What a service had before comes back as it was, whoever gives it back and whatever is off line or taken at that moment.

use super::recover::OWED_EVERY;
use super::*;
use crate::actuator::record::knob_of;
use crate::actuator::Record;
use crate::files::{Files, HostFiles};
use crate::root::tests::{put, tree};
use crate::safe::SafeLayout;
use crate::testing::{intel, Cpusets, ModelFiles};
use std::sync::Arc;

const BE: Kind = Kind::Be;
const LC: Kind = Kind::Lc { qos_target_ms: 1.0 };

struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    state: tempfile::TempDir,
    partitions: bool,
}

impl Host {
    /// Four CPUs that are on line, of `possible`; `lists`: cpuset.cpus of /docker, of /docker/a and of /docker/b.
    fn v2(possible: &str, lists: [&str; 3]) -> Self {
        let mut files: Vec<(String, String)> = vec![
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu io memory\n".into()),
            ("/sys/fs/cgroup/cpuset.cpus.effective".into(), "0-3\n".into()),
            ("/sys/fs/cgroup/cpuset.mems.effective".into(), "0-1\n".into()),
            ("/sys/devices/system/cpu/possible".into(), format!("{possible}\n")),
            ("/sys/devices/system/cpu/online".into(), "0-3\n".into()),
            ("/sys/devices/system/node/possible".into(), "0-2\n".into()),
            ("/sys/fs/cgroup/docker/cpuset.cpus".into(), format!("{}\n", lists[0])),
            ("/sys/fs/cgroup/docker/cpuset.cpus.effective".into(), "0-3\n".into()),
            ("/sys/fs/cgroup/docker/cpuset.mems".into(), "\n".into()),
            ("/sys/fs/cgroup/docker/cpuset.mems.effective".into(), "0-1\n".into()),
        ];
        for node in 0..2 {
            let dir = format!("/sys/devices/system/node/node{node}");
            files.push((format!("{dir}/cpulist"), format!("{}-{}\n", node * 2, node * 2 + 1)));
            files.push((format!("{dir}/meminfo"), format!("Node {node} MemFree: 1048576 kB\n")));
        }
        for (id, cpus) in ["a", "b"].iter().zip(&lists[1..]) {
            for (file, text) in [
                ("cpuset.cpus", *cpus),
                ("cpuset.cpus.partition", "member"),
                ("cpuset.mems", ""),
                ("cpu.max", "max 100000"),
                ("cpu.weight", "100"),
                ("memory.current", "4096"),
                ("cgroup.procs", "42"),
            ] {
                files.push((format!("/sys/fs/cgroup/docker/{id}/{file}"), format!("{text}\n")));
            }
        }
        let (dir, root) = tree(&files);
        let root = Root::with(root.path("/"), Arc::new(Cpusets { inner: root.files.clone(), v1: false }));
        Host { _dir: dir, root, state: tempfile::tempdir().unwrap(), partitions: false }
    }

    /// The same of version 1, where `/docker` and its services have four CPUs.
    fn v1() -> Self {
        let (dir, root) = crate::cgroup::tests::v1();
        let host = Host { _dir: dir, root, state: tempfile::tempdir().unwrap(), partitions: false };
        host.put("/sys/devices/system/cpu/online", "0-3");
        host.put("/sys/devices/system/cpu/present", "0-3");
        ["cpuset.cpus", "docker/cpuset.cpus"].iter().for_each(|f| host.put(&format!("/sys/fs/cgroup/cpuset/{f}"), "0-3"));
        for id in ["a", "b"] {
            host.put(&format!("/sys/fs/cgroup/cpuset/docker/{id}/cpuset.cpus"), "0-3");
            for (file, text) in [("cfs_quota_us", "-1"), ("cfs_period_us", "100000"), ("shares", "1024")] {
                host.put(&format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.{file}"), text);
            }
        }
        let root = Root::with(host.root.path("/"), Arc::new(Cpusets { inner: host.root.files.clone(), v1: true }));
        Host { root, ..host }
    }

    fn put(&self, path: &str, text: &str) {
        put(&self.root, path, &format!("{text}\n"));
    }

    /// As version 1 does it: a CPU that goes off line leaves every list, and comes back into none but the root's.
    fn lose_cpu_3(&self) {
        self.put("/sys/devices/system/cpu/online", "0-2");
        for file in ["cpuset.cpus", "docker/cpuset.cpus", "docker/a/cpuset.cpus", "docker/b/cpuset.cpus"] {
            let path = format!("/sys/fs/cgroup/cpuset/{file}");
            let left = CpuSet::parse(&self.root.read(&path).unwrap()).unwrap().intersection(CpuSet::range(0, 3));
            self.put(&path, &left.to_string());
        }
    }

    fn have_cpu_3_again(&self) {
        self.put("/sys/devices/system/cpu/online", "0-3");
        ["cpuset.cpus", "docker/cpuset.cpus"].iter().for_each(|f| self.put(&format!("/sys/fs/cgroup/cpuset/{f}"), "0-3"));
    }

    fn open(&self) -> LocalServer {
        let config = LocalConfig {
            root: self.root.clone(),
            managed: Some(CpuSet::range(0, 3)),
            partitions: self.partitions,
            look_every: Duration::ZERO,
            ..LocalConfig::new(self.state.path())
        };
        LocalServer::open(config).unwrap()
    }

    fn server(&self, kind: Kind) -> LocalServer {
        let mut s = self.open();
        for id in ["a", "b"] {
            s.adopt(id, id, kind, 1, Target::Cgroup(format!("/docker/{id}").into())).unwrap();
        }
        s
    }

    fn cpus(&self, id: &str) -> String {
        let dir = if self.root.path("/sys/fs/cgroup/cpuset").is_dir() { "cpuset/" } else { "" };
        self.root.read(format!("/sys/fs/cgroup/{dir}docker/{id}/cpuset.cpus")).unwrap()
    }

    fn layout(&self) -> Option<SafeLayout> {
        SafeLayout::load(&self.state.path().join(crate::safe::FILE)).unwrap()
    }
}

fn plan(s: &LocalServer, of: &[(&str, &str)]) -> Plan {
    let all = Allocation::everything(s.platform());
    let with = |cpus: &str| Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..all.clone() };
    Plan::whole(of.iter().map(|(id, cpus)| (id.to_string(), with(cpus))).collect())
}

fn until(s: &mut LocalServer, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < end, "not within 30 s");
        s.observe();
    }
}

/// An empty list that cannot be emptied comes back as what it stood for: the own list of the nearest group above that has one, else every CPU
/// and node that there can be; never what was in force at that moment, which leaves out what is off line or taken. By a reset, by a later
/// process, and by the layout.
#[test]
fn an_empty_list_comes_back_as_what_it_stood_for() {
    for (above, stood_for) in [("", "0-7"), ("0-5", "0-5")] {
        for way in ["reset", "later", "layout", "stop"] {
            let host = Host::v2("0-7", [above, "", ""]);
            let mut s = host.server(LC);
            s.apply(&plan(&s, &[("a", "0-1"), ("b", "2")])).unwrap();
            let mems = || host.root.read("/sys/fs/cgroup/docker/a/cpuset.mems").unwrap();
            until(&mut s, || mems() == "0");
            // A partition of somebody, or a core that was parked.
            ["", "docker/"].iter().for_each(|g| host.put(&format!("/sys/fs/cgroup/{g}cpuset.cpus.effective"), "0-1"));
            s.apply(&plan(&s, &[("a", "0"), ("b", "2")])).unwrap();
            match way {
                "reset" => drop(s.reset().unwrap()),
                "stop" => ["a", "b"].iter().for_each(|id| s.stop(id).unwrap()),
                "later" => {
                    drop(s);
                    host.open().reset().unwrap();
                }
                _ => {
                    let report = host.layout().unwrap().put_in_force(host.root.files.as_ref());
                    assert_eq!(report.failed, Vec::<String>::new());
                }
            }
            assert_eq!((host.cpus("a").as_str(), host.cpus("b").as_str(), mems().as_str()), (stood_for, stood_for, "0-2"), "{way}");
        }
    }
}

/// Version 1: a CPU that is off line when a service leaves, and that the kernel has taken from the group above, is owed to it. It has the others
/// at once, the journal and the layout keep the whole list, and it comes back when it can.
#[test]
fn a_cpu_that_was_off_line_is_owed() {
    for way in ["stop", "reset", "layout"] {
        let host = Host::v1();
        let mut s = host.server(BE);
        s.apply(&plan(&s, &[("a", "0"), ("b", "1")])).unwrap();
        host.lose_cpu_3();
        match way {
            "stop" => {
                s.stop("a").unwrap();
                assert_eq!((host.cpus("a").as_str(), host.cpus("b").as_str()), ("0-2", "1"));
                (0..3 * OWED_EVERY).for_each(|_| drop(s.observe()));
                assert_eq!(host.cpus("a"), "0-2");
                assert!(s.touched.contains_key("a") && !s.has("a"));
                host.have_cpu_3_again();
                (0..OWED_EVERY).for_each(|_| drop(s.observe()));
                assert_eq!(host.cpus("a"), "0-3");
                assert!(!s.touched.contains_key("a"));
                host.lose_cpu_3();
                host.have_cpu_3_again();
            }
            "reset" => {
                let said = s.reset().unwrap_err().to_string();
                assert!(said.contains("but for 3") && said.contains("cpuset.cpus") && said.contains("surefootd reset"), "{said}");
                drop(s);
            }
            _ => {
                drop(s);
                let mut all = host.layout().unwrap();
                // As for LC services.
                all.ops.retain(|op| op.path().ends_with("cpuset.cpus"));
                all.ops.iter_mut().for_each(|op| {
                    if let crate::safe::Op::Write { text, .. } = op {
                        *text = "0-3".into();
                    }
                });
                let report = all.put_in_force(host.root.files.as_ref());
                assert!(report.failed.len() == 2 && report.failed[0].contains("without 3"), "{report:?}");
            }
        }
        if way != "stop" {
            assert_eq!((host.cpus("a").as_str(), host.cpus("b").as_str()), ("0-2", "0-2"), "{way}");
            // Not yet.
            assert!(host.open().reset().unwrap_err().to_string().contains("but for 3"));
            assert!(host.layout().is_some());
            host.have_cpu_3_again();
            assert_eq!(host.open().reset().unwrap().restored, ["a", "b"], "{way}");
            assert_eq!((host.cpus("a").as_str(), host.cpus("b").as_str()), ("0-3", "0-3"));
            assert_eq!((host.layout(), host.open().touched.len()), (None, 0));
        }
    }
}

/// Version 1: what nobody was in had an empty list, which a group with processes cannot have: it gets the list of the group above.
#[test]
fn an_empty_list_of_version_1_comes_back() {
    let host = Host::v1();
    host.put("/sys/fs/cgroup/cpuset/docker/cpuset.cpus", "0-2");
    host.put("/sys/fs/cgroup/cpuset/docker/a/cpuset.cpus", "");
    host.put("/sys/fs/cgroup/cpuset/docker/b/cpuset.cpus", "0-2");
    let mut s = host.server(LC);
    s.apply(&plan(&s, &[("a", "0"), ("b", "1")])).unwrap();
    let layout = host.layout().unwrap();
    s.reset().unwrap();
    assert_eq!(host.cpus("a"), "0-2");
    host.put("/sys/fs/cgroup/cpuset/docker/a/cpuset.cpus", "1");
    assert_eq!(layout.put_in_force(host.root.files.as_ref()).failed, Vec::<String>::new());
    assert_eq!(host.cpus("a"), "0-2");
}

/// Version 1: a later process that finds a service no longer configured, and a CPU of it off line, starts all the same, and gives it back later.
#[test]
fn what_is_owed_keeps_no_run_from_starting() {
    let host = Host::v1();
    let mut s = host.server(BE);
    s.apply(&plan(&s, &[("a", "0"), ("b", "1")])).unwrap();
    drop(s);
    host.lose_cpu_3();
    let mut s = host.open();
    s.adopt("b", "b", BE, 1, Target::Cgroup("/docker/b".into())).unwrap();
    assert_eq!(s.resume().unwrap().adopted, ["b"]);
    assert_eq!((host.cpus("a").as_str(), host.cpus("b").as_str()), ("0-2", "1"));
    host.have_cpu_3_again();
    (0..OWED_EVERY).for_each(|_| drop(s.observe()));
    assert_eq!(host.cpus("a"), "0-3");
    s.reset().unwrap();
    assert_eq!(host.cpus("b"), "0-3");
}

/// With CPU partitions the layout of LC services is what they had before they came, not what partitions have left over; partitions end before any
/// list comes back; a service that leaves ends those of the others, whose CPUs it gets back.
#[test]
fn the_layout_knows_nothing_of_partitions() {
    let host = Host { partitions: true, ..Host::v2("0-3", ["0-3", "", "0-3"]) };
    let mut s = host.server(LC);
    let kind = |id: &str| host.root.read(format!("/sys/fs/cgroup/docker/{id}/cpuset.cpus.partition")).unwrap();
    s.apply(&plan(&s, &[("a", "0"), ("b", "1")])).unwrap();
    assert_eq!((kind("a").as_str(), kind("b").as_str()), ("root", "root"));
    // What two partitions leave; a plan that moves no CPU keeps them.
    host.put("/sys/fs/cgroup/docker/cpuset.cpus.effective", "2-3");
    let mut other = plan(&s, &[("a", "0"), ("b", "1")]);
    other.adjust("a", |a| a.mba_pct = 100);
    s.apply(&other).unwrap();
    s.safe = None;
    s.record_safe_layout(&s.layout.clone()).unwrap();
    let layout = host.layout().unwrap();
    let writes: Vec<(PathBuf, String)> = layout
        .ops
        .iter()
        .filter_map(|op| match op {
            crate::safe::Op::Write { path, text } => Some((path.clone(), text.trim().to_string())),
            crate::safe::Op::RemoveDir { .. } => None,
        })
        .collect();
    let first = writes.iter().position(|(p, _)| p.ends_with("cpuset.cpus")).unwrap();
    assert!(writes[..first].iter().filter(|(p, t)| p.ends_with("cpuset.cpus.partition") && t == "member").count() == 2, "{writes:?}");
    let of = |id: &str| {
        writes.iter().filter(|(p, t)| p.ends_with(format!("{id}/cpuset.cpus")) && !t.is_empty()).map(|w| w.1.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b")), (vec!["0-3"], vec!["0-3"]));
    assert_eq!(layout.put_in_force(host.root.files.as_ref()).failed, Vec::<String>::new());
    assert_eq!((host.cpus("a").as_str(), kind("a").as_str(), kind("b").as_str()), ("0-3", "member", "member"));

    s.apply(&plan(&s, &[("a", "1"), ("b", "2")])).unwrap();
    s.observe();
    assert_eq!(kind("b"), "root");
    s.stop("a").unwrap();
    assert_eq!((host.cpus("a").as_str(), kind("a").as_str(), kind("b").as_str()), ("0-3", "member", "member"));
    s.observe();
    assert_eq!((kind("b").as_str(), host.cpus("b").as_str()), ("root", "2"));
    assert!(s.foreign_changes().is_empty(), "{:?}", s.foreign_changes());
    s.reset().unwrap();
    assert_eq!((host.cpus("b").as_str(), kind("b").as_str()), ("0-3", "member"));
}

/// A service that has CPUs of its own by `cpuset.cpus.exclusive` would get those as a partition, and not what it was given: it is none.
#[test]
fn a_partition_of_other_cpus_is_none() {
    let host = Host { partitions: true, ..Host::v2("0-3", ["0-3", "0-3", "0-3"]) };
    let mut s = host.server(LC);
    s.apply(&plan(&s, &[("a", "0"), ("b", "1")])).unwrap();
    let kind = |id: &str| host.root.read(format!("/sys/fs/cgroup/docker/{id}/cpuset.cpus.partition")).unwrap();
    assert_eq!((kind("a").as_str(), kind("b").as_str()), ("root", "root"));
    s.apply(&plan(&s, &[("a", "1"), ("b", "0")])).unwrap();
    // The kernel's answer to a partition: its exclusive CPUs.
    host.put("/sys/fs/cgroup/docker/a/cpuset.cpus.effective", "3");
    s.end_partitions();
    s.observe();
    assert_eq!((kind("a").as_str(), kind("b").as_str()), ("member", "root"));
}

/// Threads go back to groups of others also from a class that others are still in, and from the default group.
#[test]
fn threads_go_back_from_a_shared_class() {
    for others in [6, 7] {
        let mut host = Host::v2("0-3", ["0-3", "0-3", "0-3"]);
        let (model, root) = ModelFiles::mount(&host.root, intel(1, 11), "");
        [42, 43].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
        ["a", "b"].iter().zip([42, 43]).for_each(|(id, t)| host.put(&format!("/sys/fs/cgroup/docker/{id}/cgroup.threads"), &t.to_string()));
        host.root = root;
        let at = |p: &str| host.root.path("/sys/fs/resctrl").join(p);
        // One class is left for two jobs, or none.
        (0..others).for_each(|n| model.make_dir(&at(&format!("vm{n}"))).unwrap());
        [42, 43].iter().for_each(|t| model.write(&at("vm0/tasks"), &format!("{t}\n")).unwrap());
        let group = |t: u32| model.machine().task_groups(t).unwrap().split_whitespace().next().unwrap_or_default().to_string();
        let mut s = host.server(BE);
        let mut both = plan(&s, &[("a", "0"), ("b", "1")]);
        [("a", 0x3), ("b", 0xc)].into_iter().for_each(|(id, ways)| both.adjust(id, |a| (a.ways, a.shared_ways) = (vec![ways], vec![0])));
        s.apply(&both).unwrap();
        let place = group(42);
        assert!(place == group(43) && place != "res:vm0", "{place}");
        s.stop("a").unwrap();
        assert_eq!((group(42), group(43)), ("res:vm0".to_string(), place));
        s.reset().unwrap();
        assert_eq!((group(42).as_str(), group(43).as_str()), ("res:vm0", "res:vm0"));
    }
}

/// What the actuator recorded comes back as far as it can, is named where it cannot, and is not forgotten before it is whole.
#[test]
fn the_actuators_record_owes_it_too() {
    let host = Host::v1();
    let dir = tempfile::tempdir().unwrap();
    let mut record = Record::open(File::open(dir.path()).unwrap().into(), "boot", host.root.files.clone(), host.root.clone()).unwrap();
    let path = host.root.path("/sys/fs/cgroup/cpuset/docker/a/cpuset.cpus");
    let (key, group) = knob_of(&path, &host.root.files, &Mounts::read(&host.root)).unwrap();
    record.before(&key, &group).unwrap();
    group.set(Knob::Cpus, "0").unwrap();
    host.lose_cpu_3();
    let report = record.put_back(&BTreeMap::new());
    assert!(report.failed.len() == 1 && report.failed[0].contains("without 3"), "{report:?}");
    assert!(host.cpus("a") == "0-2" && record.knows(&key));
    host.have_cpu_3_again();
    assert_eq!(record.put_back(&BTreeMap::new()).failed, Vec::<String>::new());
    assert!(host.cpus("a") == "0-3" && !record.knows(&key));
}

/// The file is written as anybody's shell would: not by the code under test.
#[test]
fn the_stand_in_for_cpusets_refuses_as_the_kernel_does() {
    let host = Host::v1();
    let file = host.root.path("/sys/fs/cgroup/cpuset/docker/a/cpuset.cpus");
    host.put("/sys/fs/cgroup/cpuset/docker/cpuset.cpus", "0-2");
    let errno = |text: &str| host.root.files.write(&file, text).err().and_then(|e| e.raw_os_error());
    assert_eq!((errno("\n"), errno("0-3"), errno("0-2")), (Some(libc::ENOSPC), Some(libc::EACCES), None));
    assert!(HostFiles.read(&file).is_ok());
}
