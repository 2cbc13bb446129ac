//! Services of a campaign that have no container, on cgroup v2 and resctrl as the kernel has them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_linux::{CommandSpec, LocalConfig, LocalServer, Target};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Server};

const CGROUPS: &str = "/sys/fs/cgroup";
const RESCTRL: &str = "/sys/fs/resctrl";
const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().into()
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is() {
        assert!(Instant::now() < deadline, "in two minutes: {what}");
        std::thread::yield_now();
    }
}

/// A plan that gives a service these CPUs and ways.
fn plan(s: &LocalServer, id: &str, cpus: &str, ways: u32) -> Plan {
    let cpus = CpuSet::parse(cpus).unwrap();
    let all = Allocation::everything(s.platform());
    let a = Allocation {
        cpus,
        shared_cpus: CpuSet::empty(),
        ways: vec![ways; all.ways.len()],
        shared_ways: vec![0; all.ways.len()],
        quota_cores: s.platform().by_quota().then_some(1.0),
        ..all
    };
    Plan::whole([(id.to_string(), a)].into())
}

fn groups_of_ours() -> Vec<PathBuf> {
    let entries = fs::read_dir(CGROUPS).unwrap().chain(fs::read_dir(RESCTRL).unwrap());
    entries.map(|e| e.unwrap().path()).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("surefoot"))).collect()
}

fn shell(script: &str) -> CommandSpec {
    let command = ["sh", "-c", script].map(String::from).to_vec();
    CommandSpec { id: "cmd".into(), service: "cmd".into(), kind: LC, threads: 1, port: None, command }
}

/// A command runs in a cgroup of its own with the CPUs and ways that a plan gives it, and so does what it starts; all of it ends with the
/// service, and with nobody else.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_command_has_a_cgroup_and_ends_with_it() {
    let state = tempfile::tempdir().unwrap();
    let open = || LocalServer::open(LocalConfig::new(state.path())).unwrap();
    let mut s = open();
    s.run_command(&shell("sleep 600 & sleep 600 & wait")).unwrap();
    let group = groups_of_ours().into_iter().find(|p| p.starts_with(CGROUPS)).expect("a group of the command's");
    until("the shell and what it started are there", || read(group.join("cgroup.procs")).lines().count() == 3);
    s.apply(&plan(&s, "cmd", "0-1", 0x3)).unwrap();
    assert_eq!(read(group.join("cpuset.cpus")), "0-1");
    let class = Path::new(RESCTRL).join("surefoot.cmd");
    assert!(read(class.join("schemata")).lines().any(|l| l.contains("L3:0=") && l.ends_with('3')), "{}", read(class.join("schemata")));
    assert_eq!(read(class.join("tasks")).lines().count(), 3);
    // A process with another state folder ends nothing of it.
    let first = read(group.join("cgroup.procs"));
    let other = tempfile::tempdir().unwrap();
    let mut later = LocalServer::open_to_reset(LocalConfig::new(other.path())).unwrap();
    assert_eq!(later.reset().unwrap().commands_ended, Vec::<String>::new());
    assert_eq!(read(group.join("cgroup.procs")), first);
    s.stop("cmd").unwrap();
    assert_eq!(groups_of_ours(), Vec::<PathBuf>::new());
}

/// A service that runs already has its class while it is held, and its process leaves the class with the cgroup; given back, it has what it
/// had before.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn who_leaves_a_cgroup_leaves_its_class() {
    struct Group(PathBuf, Vec<Child>);
    impl Drop for Group {
        fn drop(&mut self) {
            for child in &mut self.1 {
                let _ = child.kill();
                let _ = child.wait();
            }
            let _ = fs::remove_dir(&self.0);
        }
    }
    let _ = fs::write(format!("{CGROUPS}/cgroup.subtree_control"), "+cpu +cpuset +memory");
    let at = Path::new(CGROUPS).join("leaves");
    fs::create_dir(&at).unwrap();
    let mut group = Group(at.clone(), vec![]);
    for _ in 0..2 {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        fs::write(at.join("cgroup.procs"), child.id().to_string()).unwrap();
        group.1.push(child);
    }
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig::new(state.path())).unwrap();
    s.adopt("web", "web", LC, 1, Target::Cgroup("/leaves".into())).unwrap();
    s.apply(&plan(&s, "web", "0-1", 0x3)).unwrap();
    let tasks = || read(Path::new(RESCTRL).join("surefoot.web/tasks"));
    until("both are in the class", || tasks().lines().count() == 2);
    let (stays, leaves) = (group.1[0].id().to_string(), group.1[1].id().to_string());
    fs::write(format!("{CGROUPS}/cgroup.procs"), &leaves).unwrap();
    until("the one that left is given back", || {
        s.observe();
        tasks() == stays
    });
    assert!(read(Path::new(RESCTRL).join("tasks")).lines().any(|l| l == leaves));
    s.reset().unwrap();
    assert!(!Path::new(RESCTRL).join("surefoot.web").exists());
}
