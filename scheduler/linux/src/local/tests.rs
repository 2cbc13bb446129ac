#![allow(unsafe_code, reason = "a test that acts as another user")]

use super::recover::OWED_EVERY;
use super::*;
use crate::cgroup::tests::v1;
use crate::files::Files;
use crate::journal::Former;
use crate::root::tests::put;
use std::fs;
use std::sync::Arc;
use surefoot_server::Llc;

/// A v1 host with 4 CPUs and cgroups `/docker/c` (process 42) and `/docker/d`; quotas in steps of 0.1 core.
struct Host {
    _dir: tempfile::TempDir,
    root: Root,
    state: tempfile::TempDir,
}

const BE: Kind = Kind::Be;

impl Host {
    fn new() -> Self {
        let (dir, root) = v1();
        let put = |path: &str, text: &str| put(&root, path, text);
        put("/sys/devices/system/cpu/online", "0-3\n");
        put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_quota_us", "-1\n");
        put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_period_us", "100000\n");
        put("/sys/fs/cgroup/cpuset/docker/d/cpuset.cpus", "0-3\n");
        ["c", "d"].iter().for_each(|id| put(&format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.shares"), "1024\n"));
        Host { _dir: dir, root, state: tempfile::tempdir().unwrap() }
    }

    fn open(&self) -> LocalServer {
        LocalServer::open(LocalConfig { root: self.root.clone(), look_every: Duration::ZERO, ..LocalConfig::new(self.state.path()) })
            .unwrap()
    }

    fn server(&self) -> LocalServer {
        let mut s = self.open();
        for id in ["c", "d"] {
            s.adopt(id, id, BE, 1, Target::Cgroup(format!("/docker/{id}").into())).unwrap();
        }
        s
    }

    fn weight(&self, id: &str) -> String {
        self.root.read(format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.shares")).unwrap()
    }

    fn values(&self, id: &str) -> [String; 3] {
        ["cpuset/docker/ID/cpuset.cpus", "cpu/docker/ID/cpu.cfs_quota_us", "cpu/docker/ID/cpu.cfs_period_us"]
            .map(|f| self.root.read(format!("/sys/fs/cgroup/{}", f.replace("ID", id))).unwrap())
    }
}

fn quota(s: &LocalServer, cores: &[(&str, f64)]) -> Plan {
    let everything = Allocation::everything(s.platform());
    let allocations = cores.iter().map(|(id, q)| (id.to_string(), Allocation { quota_cores: Some(*q), ..everything.clone() })).collect();
    Plan::whole(allocations)
}

/// A plan reaches the kernel's files, a second time it changes nothing, and reset gives back what was there before.
#[test]
fn plans_reach_the_kernel_and_reset_gives_back() {
    let host = Host::new();
    let mut s = host.server();
    let plan = quota(&s, &[("c", 0.5), ("d", 2.0)]);
    assert_eq!(s.apply(&plan).unwrap().changed, ["c", "d"]);
    // Managed are CPUs 0-2: the last is for the load generator. 0.5 core are 5 ms in 10 ms.
    assert_eq!(host.values("c"), ["0-2", "5000", "10000"]);
    assert_eq!(s.apply(&plan).unwrap(), Applied::default());
    let seen = s.observe();
    assert!(seen.get("c").unwrap().placed && seen.get("c").unwrap().features.nb_cores == Some(2.0));
    assert_eq!(s.reset().unwrap().restored, ["c", "d"]);
    assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);
    assert!(!s.observe().get("c").unwrap().placed);
}

/// A BE job on quota waits for LC services that share its CPUs; without quota it has its former weight again.
#[test]
fn be_jobs_get_the_least_weight() {
    let host = Host::new();
    let mut s = host.open();
    s.adopt("c", "c", Kind::Lc { qos_target_ms: 1.0 }, 1, Target::Cgroup("/docker/c".into())).unwrap();
    s.adopt("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
    let everything = Allocation::everything(s.platform());
    let unmanaged = Plan::whole(["c", "d"].map(|id| (id.to_string(), everything.clone())).into());
    s.apply(&unmanaged).unwrap();
    assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
    let plan = quota(&s, &[("c", 0.5), ("d", 0.5)]);
    s.apply(&plan).unwrap();
    assert_eq!([host.weight("c"), host.weight("d")], ["1024", "2"]);
    s.apply(&unmanaged).unwrap();
    assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
    s.apply(&plan).unwrap();
    drop(s);
    host.open().reset().unwrap();
    assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
}

/// A process that died left its changes behind; the next one knows from the journal what to give back.
#[test]
fn a_new_process_gives_back_what_a_dead_one_took() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.2)])).unwrap();
    drop(s);
    assert_eq!(host.values("d"), ["0-2", "2000", "10000"]);
    // One hierarchy alone proves nothing: the other may hold a quota of ours.
    fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpuset/docker/c")).unwrap();
    assert!(host.open().reset().unwrap_err().to_string().contains("/docker/c"));
    fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpu/docker/c")).unwrap();
    let report = host.open().reset().unwrap();
    // "d" was given back by the first attempt already.
    assert_eq!((report.restored, report.gone), (vec![], vec!["c".to_string()]));
    assert_eq!(host.values("d"), ["0-3", "-1", "100000"]);
    assert_eq!(host.open().reset().unwrap(), ResetReport::default());
}

/// When one write of a plan fails, what was written before it is taken back and the error names the file.
#[test]
fn a_failed_write_takes_everything_back() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
    // A kernel file that can be read but takes no write.
    let file = host.root.path("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_quota_us");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/proc/version", &file).unwrap();
    let err = s.apply(&quota(&s, &[("c", 0.3), ("d", 0.4)])).unwrap_err();
    assert!(matches!(err, ServerError::Write { .. }) && err.to_string().contains("cpu.cfs_quota_us"), "{err}");
    assert_eq!(host.values("c"), ["0-2", "5000", "10000"]);
    assert_eq!(s.observe().get("c").unwrap().allocation.quota_cores, Some(0.5));
}

/// Plans that break a rule, ids and targets that make no sense: one line each, and nothing is written.
#[test]
fn bad_input_changes_nothing() {
    let host = Host::new();
    let mut s = host.server();
    let before = host.values("c");
    let mut says = |p: Plan| s.apply(&p).unwrap_err().to_string();
    let all = Allocation { cpus: CpuSet::range(0, 4), ..Allocation::everything(&host_platform()) };
    assert!(says(Plan::whole(BTreeMap::from([("x".into(), all.clone())]))).contains("There are: c, d"));
    assert!(says(Plan::whole(BTreeMap::from([("c".into(), all)]))).contains("CPU 3 is not managed"));
    let zswap = Allocation { zswap_max_bytes: Some(1 << 20), ..Allocation::everything(&host_platform()) };
    assert!(says(Plan::whole(BTreeMap::from([("c".into(), zswap)]))).contains("zswap limit"));
    assert_eq!(host.values("c"), before);
    let mut adopt = |id: &str, t: Target| s.adopt(id, "x", BE, 1, t).unwrap_err().to_string();
    assert!(adopt("c", Target::Pid(42)).contains("taken"));
    assert!(adopt("../x", Target::Pid(42)).contains("letters"));
    assert!(adopt("e", Target::Cgroup("/".into())).contains("root"));
    assert!(adopt("e", Target::Cgroup("/docker/none".into())).contains("not there"));
    assert!(adopt("e", Target::Pid(7)).contains("process 7"));
    let err = LocalServer::open(LocalConfig { root: host.root.clone(), ..LocalConfig::new(host.state.path()) }).unwrap_err();
    assert!(err.to_string().contains("another Surefoot process"), "{err}");
}

fn host_platform() -> Platform {
    Platform { managed: CpuSet::range(0, 3), core_step: 0.1, mba: None, ..Platform::regular("local", 4, 1, 0, 0.0) }
}

/// CPU time becomes a rate between two observations; what the host cannot measure stays unknown.
#[test]
fn features_are_rates_or_unknown() {
    let host = Host::new();
    let mut s = host.server();
    assert_eq!(s.observe().get("c").unwrap().features.cpu_usage_cores, None);
    // An hour of CPU time more.
    fs::write(host.root.path("/sys/fs/cgroup/cpuacct/docker/c/cpuacct.usage"), "3600005000000\n").unwrap();
    let f = s.observe().get("c").unwrap().features;
    assert!(f.cpu_usage_cores.unwrap() > 1.0 && f.alloc_cores == Some(3.0));
    assert_eq!((f.alloc_ways, f.alloc_cache_mb, f.mbl_mbps, f.core_freq_mhz), (None, None, None, None));
    // A counter that went back gives no rate.
    fs::write(host.root.path("/sys/fs/cgroup/cpuacct/docker/c/cpuacct.usage"), "0\n").unwrap();
    assert_eq!(s.observe().get("c").unwrap().features.cpu_usage_cores, None);
}

/// A service whose cgroup or process has gone leaves the observation, and can be given back no more.
#[test]
fn ended_services_leave() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5)])).unwrap();
    fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpuset/docker/c")).unwrap();
    let ids: Vec<String> = s.observe().services.into_iter().map(|v| v.id).collect();
    assert_eq!(ids, ["d"]);
    // The other hierarchy follows a moment later: until then it may hold a quota of ours.
    assert!(s.touched.contains_key("c"));
    fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpu/docker/c")).unwrap();
    (0..OWED_EVERY).for_each(|_| drop(s.observe()));
    assert!(s.touched.is_empty() && !host.state.path().join(crate::safe::FILE).exists());
    assert_eq!(s.reset().unwrap(), ResetReport::default());
}

/// An engine whose containers are folders (tests/engine.sh).
fn fake_engine() -> Engine {
    Engine::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine.sh")).unwrap()
}

fn former(target: Target, start_ticks: Option<u64>) -> Former {
    Former {
        target,
        start_ticks,
        group: None,
        cgroup: None,
        threads: BTreeMap::new(),
        saved: BTreeMap::from([(Knob::Quota, "max 100000".into())]),
    }
}

/// What cannot be asked has not gone: its values stay in the journal, and the others are given back all the same.
#[test]
fn only_what_has_gone_is_released() {
    let host = Host::new();
    let stat = |start: u32| {
        let text = format!("42 (c) S {} {start} 0\n", (1..=18).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        fs::write(host.root.path("/proc/42/stat"), text).unwrap();
    };
    stat(4711);
    let mut s = host.open();
    s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap();
    s.adopt("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
    assert_eq!(s.touched["c"].start_ticks, Some(4711));
    drop(s);
    // Its cgroup is there, but one of its hierarchies does not show it.
    let (cgroup, aside) = (host.root.path("/sys/fs/cgroup/cpuset/docker/c"), host.root.path("/sys/fs/aside"));
    fs::rename(&cgroup, &aside).unwrap();
    let mut s = host.open();
    let err = s.reset().unwrap_err().to_string();
    assert!(err.contains("/docker/c of c"), "{err}");
    let quota_us = |id| host.root.read(format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.cfs_quota_us")).unwrap();
    assert_eq!((quota_us("c").as_str(), quota_us("d").as_str()), ("5000", "-1"));
    drop(s);
    fs::rename(&aside, &cgroup).unwrap();
    let mut s = host.open();
    assert_eq!(s.reset().unwrap().restored, ["c"]);
    assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);

    // Another process with the same id is left alone.
    s.touched.insert("c".into(), former(Target::Pid(42), Some(4711)));
    stat(4712);
    fs::write(host.root.path("/sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us"), "7000").unwrap();
    s.touched.insert("no-process".into(), former(Target::Pid(43), None));
    s.touched.insert("no-cgroup".into(), former(Target::Cgroup("/docker/x".into()), None));
    s.engine = Some(fake_engine());
    s.touched.insert("no-container".into(), former(Target::Container("/nonexistent/c".into()), None));
    assert_eq!(s.reset().unwrap().gone, ["c", "no-cgroup", "no-container", "no-process"]);
    assert_eq!(host.values("c")[1], "7000");

    // An engine that does not answer proves nothing.
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("down"), "").unwrap();
    s.touched.insert("c".into(), former(Target::Container(dir.path().display().to_string()), None));
    let err = s.reset().unwrap_err().to_string();
    assert!(err.contains("Cannot connect") && s.touched.contains_key("c"), "{err}");
}

/// Docker's default, an empty list of CPUs, comes back as all that are on line; what the engine keeps is read back.
#[test]
fn an_engines_empty_list_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    [("cpus", ""), ("quota", "0"), ("period", "0"), ("shares", "0")].iter().for_each(|(n, t)| put(n, t));
    let container = dir.path().display().to_string();
    let control = Control::Engine { engine: fake_engine(), container, all: CpuSet::range(0, 4) };
    let before: Vec<String> = [Knob::Cpus, Knob::Quota].iter().map(|k| control.get(*k).unwrap()).collect();
    assert_eq!(before, ["", "max 100000"]);
    control.set(Knob::Cpus, "1").unwrap();
    control.set(Knob::Quota, "5000 10000").unwrap();
    assert_eq!((control.get(Knob::Cpus).as_deref(), control.get(Knob::Quota).as_deref()), (Some("1"), Some("5000 10000")));
    control.set(Knob::Cpus, &before[0]).unwrap();
    control.set(Knob::Quota, &before[1]).unwrap();
    assert_eq!((control.get(Knob::Cpus).as_deref(), control.get(Knob::Quota).as_deref()), (Some("0-3"), Some("max 100000")));
    assert_eq!(control.get(Knob::Weight).as_deref(), Some("1024"));
    control.set(Knob::Weight, control.least_weight()).unwrap();
    assert_eq!(control.get(Knob::Weight).as_deref(), Some("2"));
    put("deaf", "");
    let err = control.set(Knob::Cpus, "2").unwrap_err().to_string();
    assert!(err.contains("\"2\"") && err.contains("\"0-3\""), "{err}");
}

/// Without the right to write cgroup files both adopting and placing say so in one line, with the remedy, and change nothing.
#[test]
fn no_permission_is_one_clear_line() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new();
    fs::set_permissions(host.root.path("/"), fs::Permissions::from_mode(0o755)).unwrap();
    for id in ["c", "d"] {
        for f in ["cpuset/docker/ID/cpuset.cpus", "cpu/docker/ID/cpu.cfs_quota_us", "cpu/docker/ID/cpu.cfs_period_us"] {
            let path = host.root.path(format!("/sys/fs/cgroup/{}", f.replace("ID", id)));
            fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
        }
    }
    let (c, d) = (host.values("c"), host.values("d"));
    let mut s = host.open();
    std::os::unix::fs::chown(host.state.path(), Some(65_534), None).unwrap();
    // Held by us already, with its rights withdrawn later: control is taken as given.
    let group = s.mounts.named("/docker/d").unwrap();
    let as_nobody = |s: &mut LocalServer| {
        // SAFETY: sets the file system user of this thread alone, which ends here; root's right to every file goes with it.
        unsafe { libc::setfsuid(65_534) };
        let denied = fs::OpenOptions::new().write(true).open(group.cpuset.join("cpuset.cpus")).unwrap_err();
        assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied, "the test needs files that cannot be written");
        assert!(group.file(Knob::Cpus).is_some(), "the test needs files that can be seen");
        let adopting = s.adopt("c", "c", BE, 1, Target::Cgroup("/docker/c".into())).unwrap_err();
        let by_pid = s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap_err();
        let placing = s.apply(&quota(s, &[("d", 0.5)])).unwrap_err();
        [adopting, by_pid, placing].map(|e| e.to_string())
    };
    let files = Control::Files(group.clone());
    s.services.insert("d".into(), held(&s.platform, files));
    let said = std::thread::scope(|t| t.spawn(|| as_nobody(&mut s)).join()).unwrap();
    for (text, of) in said.iter().zip(["cgroup /docker/c of c", "process 42 of c", "CPUs of d"]) {
        assert!(text.contains(of) && text.contains("Run as root") && text.contains("Delegate=yes"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert_eq!((host.values("c"), host.values("d")), (c, d));
    assert_eq!(s.names(), "d");
    assert!(!s.services["d"].placed);
}

/// A BE job under given control.
fn held(platform: &Platform, control: Control) -> Service {
    Service {
        service: "d".into(),
        kind: BE,
        threads: 1,
        target: Target::Cgroup("/docker/d".into()),
        control,
        cgroup: None,
        identity: None,
        claim: None,
        process: None,
        launched: None,
        started: None,
        port: None,
        allocation: Allocation::everything(platform),
        placed: false,
        usage: None,
        counters: None,
        traffic: Traffic::default(),
        memory_mb: None,
        pressure: BTreeMap::new(),
        memory: MemoryView::default(),
        memory_read: None,
        looked: None,
        last: None,
        dead_counter: DeadCounter::default(),
    }
}

/// Watching needs no right to write, writes no file, sees the CPUs and the quota that others give, and refuses plans.
#[test]
fn watching_writes_nothing() {
    fn tree(dir: &Path) -> Vec<(PathBuf, std::time::SystemTime, Vec<u8>)> {
        let mut all = vec![];
        for e in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            let m = e.metadata().unwrap();
            if m.is_dir() {
                all.extend(tree(&e.path()));
            } else {
                all.push((e.path(), m.modified().unwrap(), fs::read(e.path()).unwrap()));
            }
        }
        all.sort();
        all
    }
    let host = Host::new();
    let config = LocalConfig { root: host.root.clone(), look_every: Duration::ZERO, ..LocalConfig::new(host.state.path()) };
    let found = LocalServer::look(&config).unwrap();
    let mut s = LocalServer::watch_found(config, found).unwrap();
    let before = tree(&host.root.path("/"));
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(host.root.path("/"), fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |s: &mut LocalServer| {
        // SAFETY: sets the file system user of this thread alone, which ends here.
        unsafe { libc::setfsuid(65_534) };
        s.watch("c", "web", BE, 1, Target::Cgroup("/docker/c".into())).unwrap();
        s.watch("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
        s.observe()
    };
    let seen = std::thread::scope(|t| t.spawn(|| as_nobody(&mut s)).join()).unwrap();
    // CPUs 0-3 of 0-2 managed: no bound.
    assert_eq!(seen.get("c").unwrap().allocation, Allocation::everything(s.platform()));
    let err = s.apply(&quota(&s, &[("d", 0.5)])).unwrap_err().to_string();
    assert!(err.contains("only watched"), "{err}");
    assert_eq!(tree(&host.root.path("/")), before);
    assert!(s.touched.is_empty());

    // Somebody else confines it: 2 CPUs, then half a core.
    fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus"), "1,3\n").unwrap();
    assert_eq!(s.observe().get("c").unwrap().features.alloc_cores, Some(2.0));
    fs::write(host.root.path("/sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us"), "50000\n").unwrap();
    let seen = s.observe();
    assert_eq!((seen.get("c").unwrap().features.alloc_cores, seen.get("d").unwrap().features.nb_cores), (Some(0.5), Some(0.5)));
}

/// What was never set here is not given back either: an operator may have changed it meanwhile.
#[test]
fn only_what_was_set_is_given_back() {
    let host = Host::new();
    let mut s = host.open();
    s.adopt("c", "c", Kind::Lc { qos_target_ms: 1.0 }, 1, Target::Cgroup("/docker/c".into())).unwrap();
    s.apply(&quota(&s, &[("c", 0.5)])).unwrap();
    let shares = host.root.path("/sys/fs/cgroup/cpu/docker/c/cpu.shares");
    fs::write(&shares, "2048").unwrap();
    s.reset().unwrap();
    assert_eq!((host.weight("c").as_str(), host.values("c")[1].as_str()), ("2048", "-1"));
}

/// Two services on one cgroup, or one inside another's, would undo each other's values.
#[test]
fn a_cgroup_is_one_service() {
    let host = Host::new();
    for (file, text) in
        [("cpuset/docker/cpuset.cpus", "0-3"), ("cpu/docker/cpu.cfs_quota_us", "-1"), ("cpu/docker/cpu.cfs_period_us", "100000")]
    {
        fs::write(host.root.path(format!("/sys/fs/cgroup/{file}")), text).unwrap();
    }
    let mut s = host.server();
    for (path, with) in [("/docker/c", "c"), ("/docker", "c")] {
        let err = s.adopt("again", "again", BE, 1, Target::Cgroup(path.into())).unwrap_err().to_string();
        assert!(err.contains("again and") && err.contains(with), "{err}");
    }
    assert!(!s.has("again"));
}

/// A cgroup that is made anew under the same name is another service: the first has ended, and nothing of it is given to the second.
#[test]
fn a_cgroup_made_anew_is_another_service() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
    let dir = host.root.path("/sys/fs/cgroup/cpuset/docker/c");
    let kept = dir.with_extension("before");
    fs::rename(&dir, &kept).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("cpuset.cpus"), "0-1\n").unwrap();
    let seen = s.observe();
    assert!(seen.get("c").is_none() && seen.get("d").is_some());
    s.adopt("c", "c", BE, 1, Target::Cgroup("/docker/c".into())).unwrap();
    s.apply(&quota(&s, &[("c", 0.3)])).unwrap();
    // While nobody looked.
    drop(s);
    fs::rename(&dir, dir.with_extension("second")).unwrap();
    fs::rename(&kept, &dir).unwrap();
    fs::write(dir.join("cpuset.cpus"), "3\n").unwrap();
    let mut next = host.server();
    next.resume().unwrap();
    next.reset().unwrap();
    assert_eq!(host.values("c")[0], "3");
}

/// A hierarchy that is unmounted ends no service and takes no value along: the next plan fails, a stop names what it could not give back,
/// and a reset gives it back once the hierarchy is there again.
#[test]
fn an_unmounted_hierarchy_ends_nothing() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
    let (mount, aside) = (host.root.path("/sys/fs/cgroup"), host.root.path("/sys/fs/aside"));
    let (mounts, kept) = (host.root.path("/proc/self/mountinfo"), host.root.path("/proc/self/kept"));
    let unmount = || {
        fs::rename(&mount, &aside).unwrap();
        fs::create_dir(&mount).unwrap();
        fs::rename(&mounts, &kept).unwrap();
    };
    let mount_again = || {
        fs::remove_dir(&mount).unwrap();
        fs::rename(&aside, &mount).unwrap();
        fs::rename(&kept, &mounts).unwrap();
    };
    unmount();
    assert_eq!(s.observe().services.len(), 2);
    assert!(s.apply(&quota(&s, &[("c", 0.3)])).is_err());
    mount_again();
    s.apply(&quota(&s, &[("c", 0.3)])).unwrap();
    unmount();
    let said = s.reset().unwrap_err().to_string();
    assert!(said.contains("/docker/c of c") && said.contains("Mount cgroups"), "{said}");
    drop(s);
    let said = host.open().reset().unwrap_err().to_string();
    assert!(said.contains("/docker/c of c"), "{said}");
    mount_again();
    assert_eq!(host.values("c"), ["0-2", "3000", "10000"]);
    assert_eq!(host.open().reset().unwrap().restored, ["c", "d"]);
    assert_eq!((host.values("c"), host.values("d")), (host.values("d"), ["0-3", "-1", "100000"].map(String::from)));
    assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
}

/// A cgroup that outlives the process by which it was named gets its values back all the same, also from a process that knows only the
/// journal.
#[test]
fn a_cgroup_that_outlives_its_process_gets_its_values_back() {
    let host = Host::new();
    let mut s = host.open();
    s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap();
    s.apply(&quota(&s, &[("c", 0.5)])).unwrap();
    drop(s);
    fs::remove_dir_all(host.root.path("/proc/42")).unwrap();
    assert_eq!(host.open().reset().unwrap().restored, ["c"]);
    assert_eq!((host.values("c"), host.weight("c").as_str()), (["0-3", "-1", "100000"].map(String::from), "1024"));
}

/// A value that is not taken back at the end of a service stays in the journal and in the layout, is tried again, and is forgotten only then.
#[test]
fn what_is_owed_to_a_service_that_ended_is_not_forgotten() {
    let mut host = Host::new();
    let faulty = crate::testing::Faulty::new(host.root.files.clone());
    host.root = Root::with(host.root.path("/"), faulty.clone());
    let stat = |state: char| {
        let text = format!("42 (c) {state} 4711 {}\n", (1..=30).map(|_| "4711").collect::<Vec<_>>().join(" "));
        fs::write(host.root.path("/proc/42/stat"), text).unwrap();
    };
    stat('S');
    let mut s = host.open();
    s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap();
    s.apply(&quota(&s, &[("c", 0.5)])).unwrap();
    fs::remove_file(host.root.path("/proc/42/stat")).unwrap();
    faulty.arm((0..1000).map(|n| (n, libc::EIO)).collect());
    assert!(s.observe().services.is_empty());
    assert_eq!(host.values("c")[1], "5000");
    assert!(s.touched.contains_key("c") && host.state.path().join(crate::safe::FILE).exists());
    // Whoever comes instead finds it in the journal.
    assert!(fs::read_to_string(host.state.path().join("journal.jsonl")).unwrap().lines().all(|l| !l.contains("release")));
    faulty.arm(BTreeMap::new());
    (0..OWED_EVERY).for_each(|_| drop(s.observe()));
    assert_eq!((host.values("c"), host.weight("c").as_str()), (["0-3", "-1", "100000"].map(String::from), "1024"));
    assert!(s.touched.is_empty() && !host.state.path().join(crate::safe::FILE).exists());
}

/// A cgroup made anew under the name of one that was held: nothing of the first is put in force for it, by whoever looks first.
#[test]
fn a_namesake_gets_nothing_of_the_first() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
    drop(s);
    for (dir, files) in [("cpuset", &["cpuset.cpus"][..]), ("cpu", &["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"][..])] {
        let dir = host.root.path(format!("/sys/fs/cgroup/{dir}/docker/c"));
        fs::rename(&dir, dir.with_extension("before")).unwrap();
        fs::create_dir(&dir).unwrap();
        files.iter().for_each(|f| fs::write(dir.join(f), if *f == "cpuset.cpus" { "1" } else { "77777" }).unwrap());
    }
    let its_own = (["1", "77777", "77777"].map(String::from), "77777".to_string());
    let safe = || crate::safe::SafeLayout::load(&host.state.path().join(crate::safe::FILE)).unwrap().unwrap();
    let now = || (host.values("c"), host.weight("c"));
    assert!(safe().put_in_force(host.root.files.as_ref()).gone >= 5);
    assert_eq!(now(), its_own);
    // Adopted, and dead before the first plan.
    drop(host.server());
    safe().put_in_force(host.root.files.as_ref());
    assert_eq!(now(), its_own);
    let mut s = host.server();
    s.resume().unwrap();
    s.apply(&quota(&s, &[("c", 0.3)])).unwrap();
    s.reset().unwrap();
    assert_eq!((now(), host.values("d")), (its_own, ["0-3", "-1", "100000"].map(String::from)));
}

/// Another process holds the lock of resctrl, alone or with other readers, and does not let go: plans of CPUs are applied at once, ways after
/// a bounded wait beside the loop, no plan is refused, and everything is given back.
#[test]
fn a_lock_that_is_held_stops_nothing() {
    use nix::fcntl::FlockArg::{LockExclusive, LockShared};
    for how in [LockExclusive, LockShared] {
        let mut host = Host::new();
        let (files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
        [42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
        host.root = root;
        // What is locked is a folder of this host.
        let dir = host.root.path("/sys/fs/resctrl");
        fs::create_dir_all(&dir).unwrap();
        let _held = Flock::lock(File::open(&dir).unwrap(), how).unwrap();
        let config =
            LocalConfig { root: host.root.clone(), in_a_loop: true, look_every: Duration::ZERO, ..LocalConfig::new(host.state.path()) };
        let mut s = LocalServer::open(config).unwrap();
        s.adopt("c", "c", BE, 1, Target::Cgroup("/docker/c".into())).unwrap();
        let ways = |s: &LocalServer, cores, ways| {
            let mut plan = quota(s, &[("c", cores)]);
            plan.adjust("c", |a| (a.ways, a.shared_ways, a.mba_pct) = (vec![ways], vec![0], 50));
            plan
        };
        let mask = || host.root.read("/sys/fs/resctrl/surefoot.c/schemata").and_then(|t| Some(t.rsplit_once('=')?.1.to_string()));
        s.apply(&ways(&s, 0.5, 0x38)).unwrap();
        assert_eq!((host.values("c")[1].as_str(), mask()), ("5000", None));
        // What is told is what it has, not what it was promised.
        let held = |s: &mut LocalServer| s.observe().get("c").unwrap().allocation.ways.clone();
        assert_eq!(held(&mut s), [0x7ff]);
        // A plan of ways that nobody could have is refused at once, whoever has the lock.
        assert!(s.apply(&ways(&s, 0.5, 0x1000)).unwrap_err().to_string().contains("0x1000"));
        let mut looks = 0;
        while mask().is_none() {
            // CPUs go on.
            s.apply(&ways(&s, 0.1 * f64::from(1 + looks % 9), 0x38)).unwrap();
            assert_eq!(host.values("c")[1], (1000 * (1 + looks % 9)).to_string());
            s.advance(Tick { ms: 10 });
            s.observe();
            looks += 1;
            assert!(looks < 3000, "ways never came");
        }
        assert!(looks > 3, "waited for nobody");
        assert_eq!((mask().as_deref(), held(&mut s)), (Some("038"), vec![0x38]));
        // From then on without a wait.
        s.apply(&ways(&s, 0.5, 0x7)).unwrap();
        assert_eq!(mask().as_deref(), Some("007"));
        assert!(s.unlocked_changes() >= 2);
        assert_eq!(s.reset().unwrap().groups_removed, ["c"]);
        assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);
    }
}

/// Threads that somebody else had put into a group of resctrl are there again in the end, whoever gives back: a reset, a later process, the
/// layout left behind. Where this process could not put them back they stay, and what the service holds is what that group has.
#[test]
fn threads_go_back_to_groups_of_others() {
    for (writable, by_layout) in [(true, false), (true, true), (false, false)] {
        let mut host = Host::new();
        let (files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
        [42, 43, 50].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
        host.root = root;
        fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/d/tasks"), "50\n").unwrap();
        let mount = host.root.path("/sys/fs/resctrl");
        let at = |p: &str| mount.join(p);
        for (group, tids) in [("vm", &[42][..]), ("mon_groups/watch", &[43][..]), ("job", &[50][..])] {
            files.make_dir(&at(group)).unwrap();
            tids.iter().for_each(|t| files.write(&at(group).join("tasks"), &format!("{t}\n")).unwrap());
        }
        files.write(&at("job/schemata"), "L3:0=600\n").unwrap();
        let groups = || [42, 43, 50].map(|t| files.machine().task_groups(t).unwrap().replace('\n', " "));
        let before = groups();
        assert_eq!(before, ["res:vm mon: ", "res:/ mon:watch ", "res:job mon: "]);
        if !writable {
            host.root = Root::with(host.root.path("/"), Arc::new(crate::testing::Shut(host.root.files.clone())));
        }
        let mut s = host.server();
        let mut plan = quota(&s, &[("c", 0.5), ("d", 0.5)]);
        ["c", "d"].iter().for_each(|id| plan.adjust(id, |a| (a.ways, a.shared_ways) = (vec![0x38], vec![0x38])));
        s.apply(&plan).unwrap();
        if !writable {
            assert_eq!(groups(), before);
            assert_eq!(s.observe().get("d").unwrap().allocation.ways, [0x600]);
            s.reset().unwrap();
            assert_eq!(groups(), before);
            continue;
        }
        assert!(groups().iter().all(|g| g.starts_with("res:surefoot.")), "{:?}", groups());
        drop(s);
        if by_layout {
            let layout = crate::safe::SafeLayout::load(&host.state.path().join(crate::safe::FILE)).unwrap().unwrap();
            // BE jobs stay.
            assert_eq!(layout.put_in_force(host.root.files.as_ref()).failed, Vec::<String>::new());
            assert!(groups().iter().all(|g| g.starts_with("res:surefoot.")), "{:?}", groups());
        }
        // One of them has gone meanwhile, and a group.
        host.root.files.remove_dir(&at("job")).unwrap();
        host.open().reset().unwrap();
        assert_eq!(groups(), ["res:vm mon: ", "res:/ mon:watch ", "res:/ mon: "]);
    }
}

/// Ways go into a group of the service's own, and reset removes it.
#[test]
fn ways_go_through_resctrl() {
    let mut host = Host::new();
    let (files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
    [42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
    host.root = root;
    let read = |path: &str| host.root.read(format!("/sys/fs/resctrl/surefoot.c/{path}")).unwrap();
    let mut s = host.server();
    assert_eq!(s.platform().llc.map(|l: Llc| l.ways), Some(11));
    let mut plan = quota(&s, &[("c", 0.5)]);
    plan.adjust("c", |a| (a.ways, a.shared_ways, a.mba_pct) = (vec![0x38], vec![0], 50));
    s.apply(&plan).unwrap();
    assert_eq!(read("schemata"), "MB:0= 50\n    L3:0=038");
    assert_eq!(read("tasks"), "42\n43");
    let f = s.observe().get("c").unwrap().features;
    assert_eq!((f.alloc_ways, f.alloc_cache_mb), (Some(3.0), Some(6.0)));
    assert_eq!(s.reset().unwrap().groups_removed, ["c"]);
    // Where the kernel refuses the ways the whole plan is taken back.
    let mount = host.root.path("/sys/fs/resctrl");
    (0..7).for_each(|n| host.root.files.make_dir(&mount.join(format!("other{n}"))).unwrap());
    s.apply(&plan).unwrap();
    // No class is left: it has the default group's ways, and that shows.
    assert!(s.layout.in_default.contains("c") && s.observe().get("c").unwrap().allocation.ways == [0x7ff]);
}

/// A host with resctrl: `c` has threads 42 and 43, `d` thread 50; and a plan that gives each ways of its own.
fn with_resctrl(hardware: surefoot_resctrlfs::hardware::Hardware) -> (Host, crate::testing::ModelFiles, LocalServer, Plan) {
    let mut host = Host::new();
    let (files, root) = crate::testing::ModelFiles::mount(&host.root, hardware, "");
    [42, 43, 50].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
    host.root = root;
    fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/d/tasks"), "50\n").unwrap();
    let s = host.server();
    let mut plan = quota(&s, &[("c", 0.5), ("d", 0.5)]);
    for (id, ways) in [("c", 0x38), ("d", 0x7)] {
        plan.adjust(id, |a| (a.ways, a.shared_ways) = (vec![ways], vec![0]));
    }
    (host, files, s, plan)
}

/// A thread that leaves the cgroup of its service leaves its class too, for the group of others that it came from or the default one; one
/// that is in the cgroup stays.
#[test]
fn who_leaves_a_cgroup_leaves_its_class() {
    for came_from_vm in [false, true] {
        let (host, files, mut s, plan) = with_resctrl(crate::testing::intel(1, 11));
        if came_from_vm {
            let vm = host.root.path("/sys/fs/resctrl/vm");
            files.make_dir(&vm).unwrap();
            [42, 43].iter().for_each(|t| files.write(&vm.join("tasks"), &format!("{t}\n")).unwrap());
        }
        s.apply(&plan).unwrap();
        let group = |t: u32| files.machine().task_groups(t).unwrap().lines().next().unwrap().to_string();
        assert_eq!([42, 43, 50].map(group), ["res:surefoot.c", "res:surefoot.c", "res:surefoot.d"]);
        fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/c/tasks"), "42\n").unwrap();
        (0..20).for_each(|_| drop(s.observe()));
        assert_eq!([42, 43, 50].map(group), ["res:surefoot.c", if came_from_vm { "res:vm" } else { "res:/" }, "res:surefoot.d"]);
    }
}

/// Where monitoring ids have run out it is they that are told, not classes: monitoring groups of services are given up for classes, and what
/// is short until the cache has forgotten their ids is shared until then.
#[test]
fn ids_that_run_out_are_told_as_ids() {
    assert!(super::ways::shortage(Some(Cause::OutOfRmids)).contains("monitoring ids (RMIDs) have run out"));
    assert!(super::ways::shortage(Some(Cause::RmidsInLimbo)).contains("not free yet"));
    assert!(super::ways::shortage(None).contains("classes"));
    let mut hardware = crate::testing::intel(1, 11);
    // The default group's, one for a class and one for its service.
    hardware.monitoring.as_mut().unwrap().rmids = 3;
    let (host, files, mut s, plan) = with_resctrl(hardware);
    let monitors = |class: &str| host.root.files.folders(&host.root.path(format!("/sys/fs/resctrl/surefoot.{class}/mon_groups")));
    let first = Plan { changes: plan.changes.clone().into_iter().filter(|(id, _)| id == "c").collect(), ..Plan::default() };
    s.apply(&first).unwrap();
    assert_eq!((monitors("c"), s.short_of), (vec!["c".to_string()], None));
    s.apply(&plan).unwrap();
    assert!(matches!(s.short_of, Some(Cause::OutOfRmids | Cause::RmidsInLimbo)), "{:?}", s.short_of);
    assert!(monitors("c").is_empty());
    assert_eq!(s.foreign_class_changes(), BTreeMap::new(), "given up, not taken away");
    files.machine().advance(10_000);
    (0..60).for_each(|_| drop(s.observe()));
    s.apply(&Plan::default()).unwrap();
    assert_eq!((s.layout.classes.len(), s.short_of, monitors("c").len() + monitors("d").len()), (2, None, 0));
    assert_eq!(s.foreign_class_changes(), BTreeMap::new(), "given up, not taken away");
}

/// Once there are enough ids a service has its counters again, though its class came first.
#[test]
fn monitors_come_back_with_the_ids() {
    let mut hardware = crate::testing::intel(1, 11);
    hardware.monitoring.as_mut().unwrap().rmids = 4;
    let (host, files, mut s, plan) = with_resctrl(hardware);
    let at = |name: &str| host.root.path(format!("/sys/fs/resctrl/{name}"));
    ["x", "y", "z"].iter().for_each(|name| files.make_dir(&at(&format!("mon_groups/{name}"))).unwrap());
    let one = Plan { changes: plan.changes.into_iter().filter(|(id, _)| id == "c").collect(), ..Plan::default() };
    s.apply(&one).unwrap();
    assert!(s.short_of.is_some() && s.layout.classes.is_empty());
    // As much as a class needs, and later the rest: what was looked for in between found nothing.
    let mut freed = |name: &str, ticks: usize| {
        files.remove_dir(&at(&format!("mon_groups/{name}"))).unwrap();
        files.machine().advance(10_000);
        for _ in 0..ticks {
            drop(s.observe());
            s.apply(&Plan::default()).unwrap();
        }
        let monitored = host.root.files.folders(&at("surefoot.c/mon_groups"));
        (s.layout.classes.len(), monitored.len())
    };
    assert_eq!((freed("x", 60), freed("y", 60)), ((1, 0), (1, 1)));
}

/// A thread that is born while its parent is moved joins a monitoring group by way of the control group, and fails nothing.
#[test]
fn a_child_that_is_born_meanwhile_is_no_failure() {
    let (host, files, mut s, plan) = with_resctrl(crate::testing::intel(1, 11));
    s.apply(&plan).unwrap();
    // As the kernel leaves it: in the cgroup, with the group that its parent was in before.
    files.machine().spawn(44, 44, 1, 0);
    fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/c/tasks"), "42\n43\n44\n").unwrap();
    let r = s.resctrl.clone().unwrap();
    let moved = r.gather(&host.root.path("/sys/fs/resctrl/surefoot.c/mon_groups/c"), &|| vec![42, 43, 44]).map_err(|r| r.error);
    assert!(moved.is_ok_and(|m| m.settled), "a child in another control group");
    assert_eq!(files.machine().task_groups(44).unwrap().lines().next(), Some("res:surefoot.c"));
    // One that has gone elsewhere since it was listed is nobody's to move.
    let listed = std::cell::Cell::new(false);
    let tids = || if listed.replace(true) { vec![] } else { vec![4711] };
    assert!(r.gather(&host.root.path("/sys/fs/resctrl/surefoot.c"), &tids).is_ok());
}

/// resctrl that is mounted after the start is told, so that the server is opened anew with it; where another controller has it nothing is.
#[test]
fn a_late_mount_of_resctrl_is_told() {
    let mut host = Host::new();
    let (_files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
    host.root = root;
    let mounts = host.root.path("/proc/mounts");
    let line = fs::read_to_string(&mounts).unwrap();
    fs::write(&mounts, "").unwrap();
    let mut s = host.server();
    s.observe();
    assert_eq!((s.platform().ways(), s.resctrl_changed()), (0, None));
    fs::write(&mounts, &line).unwrap();
    s.observe();
    assert!(s.resctrl_changed().unwrap().contains("was mounted at") && s.resctrl_changed().unwrap().contains("after the start"));
    s.resctrl_changed = None;
    s.resctrl_left = true;
    s.observe();
    assert_eq!(s.resctrl_changed(), None);
    drop(s);
    assert_eq!(host.open().platform().ways(), 11);
}

/// A full disk of the state folder stops no plan: it is in force, that is known and told, and once there is room everything is on the disk: a
/// process that comes after a kill gives back what was there before.
#[test]
fn a_full_disk_stops_no_control() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("NOT RUN: a_full_disk_stops_no_control: needs root, to mount a small tmpfs");
    }
    let mut host = Host::new();
    let small = host.state.path().join("small");
    fs::create_dir(&small).unwrap();
    let run = |program: &str, args: &[&str]| std::process::Command::new(program).args(args).arg(&small).status().is_ok_and(|s| s.success());
    assert!(run("mount", &["-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs"]));
    struct Unmount(PathBuf);
    impl Drop for Unmount {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _unmount = Unmount(small.clone());
    let state = std::mem::replace(&mut host.state, tempfile::tempdir_in(&small).unwrap());
    let mut s = host.server();
    let stuffing = small.join("stuffing");
    // Until nothing fits any more, whatever is left of the last page.
    let full = fs::write(&stuffing, vec![7u8; 1 << 20]).unwrap_err();
    assert!(crate::journal::is_full(&full), "{full}");
    for cores in [0.5, 0.4, 0.3] {
        s.apply(&quota(&s, &[("c", cores), ("d", cores)])).unwrap();
        s.observe();
    }
    assert_eq!(host.values("c"), ["0-2", "3000", "10000"]);
    assert!(s.is_disk_behind() && s.told_full);
    fs::remove_file(&stuffing).unwrap();
    (0..=OWED_EVERY).for_each(|_| drop(s.observe()));
    assert!(!s.is_disk_behind() && !s.told_full);
    // As after a kill.
    drop(s);
    let mut later = host.server();
    assert_eq!(later.resume().unwrap().adopted, ["c", "d"]);
    assert_eq!(host.values("d"), ["0-2", "3000", "10000"]);
    assert_eq!(later.reset().unwrap().restored, ["c", "d"]);
    assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);
    drop((later, std::mem::replace(&mut host.state, state)));
}

/// resctrl is unmounted and mounted anew: classes are made again at the next look, with what it offers now (CDP halves the classes and
/// doubles the lines); where ways or steps are others, the server says that it must be opened anew.
#[test]
fn a_remount_of_resctrl_is_followed() {
    let mut host = Host::new();
    let (files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
    [42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
    host.root = root;
    let read = |path: &str| host.root.read(format!("/sys/fs/resctrl/surefoot.c/{path}"));
    let remount = |options: &str| {
        let mut m = files.machine();
        m.umount().unwrap();
        m.mount(options, false).unwrap();
        let line = format!("resctrl /sys/fs/resctrl resctrl rw,relatime{} 0 0\n", m.mount_options().unwrap_or_default());
        fs::write(host.root.path("/proc/mounts"), line).unwrap();
    };
    let mut s = host.server();
    let mut plan = quota(&s, &[("c", 0.5)]);
    plan.adjust("c", |a| (a.ways, a.shared_ways, a.mba_pct) = (vec![0x38], vec![0], 50));
    s.apply(&plan).unwrap();
    let closids = |s: &LocalServer| s.resctrl.as_ref().unwrap().info().num_closids;
    assert_eq!((read("schemata").as_deref(), closids(&s)), (Some("MB:0= 50\n    L3:0=038"), 8));

    // The same options: only the groups are lost.
    remount("");
    assert_eq!(read("tasks"), None);
    s.observe();
    assert_eq!((read("schemata").as_deref(), read("tasks").as_deref()), (Some("MB:0= 50\n    L3:0=038"), Some("42\n43")));

    remount("cdp");
    s.observe();
    assert!(s.resctrl.as_ref().unwrap().info().cdp());
    let schemata = read("schemata").unwrap();
    assert!(schemata.contains("L3CODE:0=038") && schemata.contains("L3DATA:0=038"), "{schemata}");
    assert_eq!(s.resctrl_changed(), None);

    // In MB/s, with no peak known, there are no steps in per cent.
    remount("mba_MBps");
    s.observe();
    assert!(s.resctrl_changed().unwrap().contains("mounted anew"), "{:?}", s.resctrl_changed());

    // Not mounted at all: what there was is kept in mind, for the errors to speak of.
    fs::write(host.root.path("/proc/mounts"), "").unwrap();
    s.observe();
    assert!(s.resctrl.is_some());
}

/// A host with two L3 caches of four CPUs, and resctrl of `hardware` on it.
fn two_caches(hardware: surefoot_resctrlfs::Hardware) -> (Host, crate::testing::ModelFiles) {
    let mut host = Host::new();
    for cpu in 0..4u32 {
        for (file, text) in [("level", "3".to_string()), ("id", (cpu / 2).to_string()), ("size", "22528K".to_string())] {
            put(&host.root, &format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/{file}"), &format!("{text}\n"));
        }
    }
    let (files, root) = crate::testing::ModelFiles::mount(&host.root, hardware, "");
    [42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
    host.root = root;
    (host, files)
}

/// Somebody's group that has these ways of each of `domains` domains alone.
fn exclusive(host: &Host, group: &str, mask: u32, domains: u32, default: u32) {
    let at = |p: &str| host.root.path(format!("/sys/fs/resctrl/{p}"));
    let line = |mask: u32| format!("L3:{}\n", (0..domains).map(|d| format!("{d}={mask:x}")).collect::<Vec<_>>().join(";"));
    host.root.files.write(&at("schemata"), &line(default)).unwrap();
    host.root.files.make_dir(&at(group)).unwrap();
    host.root.files.write(&at(&format!("{group}/schemata")), &line(mask)).unwrap();
    host.root.files.write(&at(&format!("{group}/mode")), "exclusive\n").unwrap();
}

/// Beside an exclusive group the platform offers the ways that are left, and whatever a plan makes of them comes in force there, is told in
/// the plan's own words, and is gone after a reset; the group keeps what it has.
#[test]
fn ways_beside_an_exclusive_group_are_placed() {
    for domains in [1, 2] {
        let (host, _files) = two_caches(crate::testing::intel(domains, 11));
        exclusive(&host, "kvm", 0x00f, domains, 0x7f0);
        let mut s = host.server();
        let p = s.platform().clone();
        assert_eq!((p.ways(), p.l3_domains(), p.mb_per_way()), (7, domains, 2.0));
        let n = domains as usize;
        let mut plan = quota(&s, &[("c", 0.5), ("d", 0.5)]);
        for (id, mask) in [("c", 0x03), ("d", 0x7c)] {
            plan.adjust(id, |a| (a.ways, a.shared_ways) = (vec![mask; n], vec![0; n]));
        }
        s.apply(&plan).unwrap();
        let line = |group: &str| host.root.read(format!("/sys/fs/resctrl/{group}/schemata")).unwrap();
        let shown = |mask: &str| (0..domains).map(|d| format!("{d}={mask}")).collect::<Vec<_>>().join(";");
        for (group, mask) in [("surefoot.c", "030"), ("surefoot.d", "7c0"), ("kvm", "00f")] {
            assert!(line(group).ends_with(&format!("L3:{}", shown(mask))), "{}", line(group));
        }
        for _ in 0..30 {
            let seen = s.observe();
            assert_eq!(seen.get("c").unwrap().allocation.ways, vec![0x03; n]);
            assert_eq!((seen.check(&p), s.resctrl_changed()), (Ok(()), None));
            assert_eq!(s.apply(&plan).unwrap(), Applied::default());
        }
        // Who comes next goes on from there.
        drop(s);
        let mut s = host.server();
        assert_eq!(s.resume().unwrap().adopted, ["c", "d"]);
        assert!(line("surefoot.d").ends_with(&format!("L3:{}", shown("7c0"))));
        assert_eq!(s.reset().unwrap().groups_removed, ["c", "d"]);
        assert!(line("kvm").ends_with(&format!("L3:{}", shown("00f"))));
    }
}

/// An exclusive group that comes or goes changes what is on offer: where fewer or more ways are left the server says so after some looks,
/// who takes what, and no plan is refused for ever; where as many are left, only others, the classes move there.
#[test]
fn an_exclusive_group_that_comes_later_is_told() {
    let (host, _files) = two_caches(crate::testing::intel(2, 11));
    let mut s = host.server();
    let put = |s: &mut LocalServer, mask: u32| {
        let mut plan = quota(s, &[("c", 0.5)]);
        plan.adjust("c", |a| (a.ways, a.shared_ways) = (vec![mask; 2], vec![0; 2]));
        s.apply(&plan)
    };
    put(&mut s, 0x030).unwrap();
    let class = || host.root.read("/sys/fs/resctrl/surefoot.c/schemata").unwrap();
    exclusive(&host, "kvm", 0x00f, 2, 0x7f0);
    // It is not asked for against the kernel, which would refuse.
    let said = put(&mut s, 0x0ff).unwrap_err().to_string();
    assert!(said.contains("exclusive group kvm") && class().ends_with("L3:0=030;1=030"), "{said} {}", class());
    (0..3).for_each(|_| drop(s.observe()));
    let said = s.resctrl_changed().unwrap().to_string();
    assert!(
        said.contains("11 ways were on offer and 7 are now") && said.contains("exclusive group kvm has ways 0xf of L3 domain 0"),
        "{said}"
    );
    drop(s);
    // Opened anew it goes by what is left. What was in force had other numbers: it is placed anew.
    let mut s = host.server();
    s.resume().unwrap();
    put(&mut s, 0x07f).unwrap();
    assert!(class().ends_with("L3:0=7f0;1=7f0"), "{}", class());
    // As many ways, but others: four at the top instead of four at the bottom.
    put(&mut s, 0x007).unwrap();
    let at = |p: &str| host.root.path(format!("/sys/fs/resctrl/{p}"));
    host.root.files.remove_dir(&at("kvm")).unwrap();
    exclusive(&host, "vm", 0x780, 2, 0x07f);
    s.observe();
    assert!(class().ends_with("L3:0=007;1=007") && s.resctrl_changed().is_none(), "{}", class());
    assert_eq!(s.observe().get("c").unwrap().allocation.ways, [0x7, 0x7]);
    host.root.files.remove_dir(&at("vm")).unwrap();
    (0..3).for_each(|_| drop(s.observe()));
    assert!(s.resctrl_changed().unwrap().contains("7 ways were on offer and 11 are now (nobody holds ways alone)"));
}

/// Where others hold every way there are no classes, and services are placed all the same: their CPUs are theirs.
#[test]
fn without_a_way_left_cpus_are_placed() {
    let (host, _files) = two_caches(crate::testing::intel(2, 11));
    exclusive(&host, "kvm", 0x3ff, 2, 0x400);
    let at = |p: &str| host.root.path(format!("/sys/fs/resctrl/{p}"));
    host.root.files.write(&at("mode"), "exclusive\n").unwrap();
    let mut s = host.server();
    assert_eq!((s.platform().ways(), s.platform().mba), (0, None));
    let plan = quota(&s, &[("c", 0.5)]);
    s.apply(&plan).unwrap();
    (0..5).for_each(|_| drop(s.observe()));
    assert_eq!((host.values("c")[1].as_str(), s.resctrl_changed()), ("5000", None));
    assert!(!host.root.files.is_dir(&at("surefoot.c")));
    s.reset().unwrap();
}

/// resctrl with one L3 domain on a host with two caches (the documented stand-in of server-1), or with two on a host that shows one: plans
/// go by what both can tell apart, and every domain that resctrl has gets its mask.
#[test]
fn other_domains_than_the_cpus_have_are_managed() {
    for (domains, shown) in [(1, "L3:0=038"), (3, "L3:0=038;1=038;2=038")] {
        let (host, _files) = two_caches(crate::testing::intel(domains, 11));
        let mut s = host.server();
        let n = s.platform().l3_domains() as usize;
        let mut plan = quota(&s, &[("c", 0.5)]);
        plan.adjust("c", |a| (a.ways, a.shared_ways) = (vec![0x38; n], vec![0; n]));
        s.apply(&plan).unwrap();
        let line = host.root.read("/sys/fs/resctrl/surefoot.c/schemata").unwrap();
        assert!(line.ends_with(shown), "{line}");
        assert_eq!(s.observe().get("c").unwrap().allocation.ways, vec![0x38; n]);
        s.reset().unwrap();
    }
}

/// Ticks stay on one grid, also after a step that took longer than a tick.
#[test]
fn ticks_stay_on_their_grid() {
    let host = Host::new();
    let mut s = host.open();
    s.advance(Tick { ms: 4 });
    let first = s.next_tick.unwrap();
    for spin in [0u32, 3, 0, 2] {
        let until = Instant::now() + Duration::from_millis(4) * spin;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        s.advance(Tick { ms: 4 });
        assert!(Instant::now() >= s.next_tick.unwrap());
        assert_eq!((s.next_tick.unwrap() - first).as_nanos() % 4_000_000, 0);
    }
}
