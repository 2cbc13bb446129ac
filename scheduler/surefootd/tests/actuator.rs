//! `surefootd actuate` as root and `surefootd run` as nobody, on cgroups of this host that the test makes and removes.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::node::{may_run, Cgroup, Running, StandIn};
use common::{ok, one_line, path, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use surefoot_linux::actuator::RemoteFiles;
use surefoot_linux::files::Files;
use surefoot_linux::safe::{Op, SafeLayout};

const NOBODY: u32 = 65_534;

/// A folder where nobody finds the binary, the configuration and a state folder of its own.
struct Stage {
    dir: tempfile::TempDir,
    binary: PathBuf,
}

impl Stage {
    fn new(cgroup: &Cgroup) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let binary = dir.path().join("surefootd");
        // By another process: a file that is open for writing in a child that another test just forked cannot be run.
        let built = std::env::var_os("SUREFOOT_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_surefootd").into());
        assert!(Command::new("cp").arg(built).arg(&binary).status().unwrap().success());
        let (state, locks) = (dir.path().join("state"), dir.path().join("locks"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&locks).unwrap();
        fs::set_permissions(&locks, fs::Permissions::from_mode(0o1777)).unwrap();
        chown(&state, Some(NOBODY), Some(NOBODY)).unwrap();
        let node = format!(
            "metrics_port = 0\nstate_dir = \"state\"\ncpus = \"0-1\"\n[actuator]\nsocket = \"sock\"\nuser = \"{NOBODY}\"\nstate_dir = \"held\"\n\
             [[service]]\nservice = \"job\"\nkind = \"lc\"\nqos_target_ms = 10.0\ncgroup = \"/{}\"\n",
            cgroup.name
        );
        fs::write(dir.path().join("node.toml"), node).unwrap();
        Stage { dir, binary }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With a folder of locks of the stage's own, where the kernel lets a test have one: this host's is not the test's to change.
    fn command(&self, args: &[&str], who: Who) -> Command {
        let user = format!("setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups");
        let mut c = match (namespaces(), who) {
            (true, _) => {
                let mut c = Command::new("unshare");
                let user = if who == Who::Nobody { &user } else { "" };
                let line = format!("mount --bind {} /run/lock && exec {user} \"$0\" \"$@\"", path(&self.at("locks")));
                c.args(["--mount", "sh", "-c", &line]).arg(&self.binary);
                c
            }
            (false, Who::Root) => Command::new(&self.binary),
            (false, Who::Nobody) => {
                let mut c = Command::new(&self.binary);
                c.uid(NOBODY).gid(NOBODY);
                c
            }
        };
        c.args(args).env("SUREFOOT_LOG", "info").current_dir(self.dir.path());
        c
    }

    fn with_config(&self, args: &[&str], who: Who) -> Command {
        let mut c = self.command(args, who);
        c.args(["--config", path(&self.at("node.toml"))]);
        c
    }

    fn actuate(&self) -> Running {
        Running::start(self.with_config(&["actuate"], Who::Root), "serving user 65534 (")
    }

    /// As nobody, in no group but its own.
    fn daemon(&self, policy: &str) -> Command {
        self.with_config(&["run", "--server", "local", "--policy", policy], Who::Nobody)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Who {
    Root,
    Nobody,
}

/// Whether a process here may have mounts of its own.
fn namespaces() -> bool {
    Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|s| s.success())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A daemon of user nobody sets a cgroup that is root's, through the actuator, gives it back when it ends, and says goodbye.
#[test]
fn a_daemon_without_rights_controls_a_cgroup() {
    let Some(hierarchies) = may_run("a_daemon_without_rights_controls_a_cgroup") else { return };
    let cgroup = Cgroup::new(&hierarchies, "run");
    let stage = Stage::new(&cgroup);
    let (cpus, quota_us) = (cgroup.cpus(), cgroup.quota_us());
    // Without an actuator it says what to do.
    let out = stage.daemon("parties-be").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("actuator") && said.contains("systemctl start"), "{said}");
    let mut actuator = stage.actuate();
    for policy in ["unmanaged", "parties-be"] {
        let mut daemon = Running::start(stage.daemon(policy), " on local:");
        let touched = || fs::read_to_string(stage.at("state/journal.jsonl")).is_ok_and(|j| j.contains("\"touch\""));
        if policy == "parties-be" {
            until("a plan of parties", touched);
            until("its quota or CPUs", || (cgroup.cpus(), cgroup.quota_us()) != (cpus.clone(), quota_us));
        }
        let said = daemon.end(nix::sys::signal::Signal::SIGTERM);
        assert!(!said.contains("ERROR") && !said.contains("refused"), "{said}");
        assert_eq!((cgroup.cpus(), cgroup.quota_us()), (cpus.clone(), quota_us), "{policy}");
        assert!(!stage.at("held/safe-layout").exists());
    }
    let said = actuator.end(nix::sys::signal::Signal::SIGTERM);
    for measure in ["capabilities: none left", "no-new-privileges: in force", "serving process"] {
        assert!(said.contains(measure), "{measure}: {said}");
    }
    for measure in ["landlock", "seccomp"] {
        if !said.contains(&format!("{measure}: in force")) {
            eprintln!("NOT RUN: {measure}: this kernel lacks it");
        }
    }
}

/// A daemon that is killed leaves its cgroup as it was before it came, by the actuator's doing alone.
#[test]
fn a_killed_daemon_leaves_the_safe_layout() {
    let Some(hierarchies) = may_run("a_killed_daemon_leaves_the_safe_layout") else { return };
    let cgroup = Cgroup::new(&hierarchies, "kill");
    let stage = Stage::new(&cgroup);
    let before = (cgroup.cpus(), cgroup.quota_us());
    let mut actuator = stage.actuate();
    let mut daemon = Running::start(stage.daemon("parties-be"), " on local:");
    until("a plan of parties", || (cgroup.cpus(), cgroup.quota_us()) != before);
    assert!(stage.at("held/safe-layout").exists());
    let killed = Instant::now();
    daemon.end(nix::sys::signal::Signal::SIGKILL);
    until("the safe layout", || (cgroup.cpus(), cgroup.quota_us()) == before);
    eprintln!("safe layout in force {:.2} s after the kill", killed.elapsed().as_secs_f64());
    let said = actuator.end(nix::sys::signal::Signal::SIGTERM);
    assert!(said.contains("putting its safe layout in force") && said.contains(" 0 failed") && !said.contains("refused"), "{said}");
}

/// The actuator of a running host has no capability, no new privileges and a filter, by the kernel's own word.
#[test]
fn the_actuator_holds_no_capability() {
    let Some(hierarchies) = may_run("the_actuator_holds_no_capability") else { return };
    let cgroup = Cgroup::new(&hierarchies, "caps");
    let stage = Stage::new(&cgroup);
    let mut actuator = stage.actuate();
    let of = |file: String| {
        move |name: &str| {
            let status = fs::read_to_string(&file).unwrap();
            status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t")).unwrap().to_string()
        }
    };
    let pid = actuator.child.id();
    let field = of(format!("/proc/{pid}/status"));
    // Itself and the thread for writes that take their time.
    assert_eq!(field("Threads"), "2");
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let field = of(format!("{}/status", task.unwrap().path().display()));
        for caps in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(field(caps).bytes().all(|b| b == b'0'), "{caps} {}", field(caps));
        }
        // Its first deed is to give up system calls.
        until("a filter", || field("Seccomp") == of(format!("/proc/{pid}/status"))("Seccomp"));
        assert_eq!(field("NoNewPrivs"), "1");
    }
    eprintln!("actuator: RSS {} kB, seccomp mode {}", field("VmRSS").trim().trim_end_matches(" kB"), field("Seccomp"));
    actuator.end(nix::sys::signal::Signal::SIGTERM);
}

/// Whoever can write the configuration could say what root writes: such a file is refused, and so is one without a table.
#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    let refused = |mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        one_line(&run(&["actuate", "--list", "--config", path(&file)]))
    };
    fs::write(&file, "[actuator]\nuser = \"0\"\ncgroups = [\"/docker/*\"]\n").unwrap();
    let (code, said) = refused(0o666);
    assert!(code == 2 && said.contains("can be written by others") && said.contains("chmod go-w"), "{said}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let list = ok(&["actuate", "--list", "--config", path(&file)]);
    assert!(list.contains("cgroup: /docker/*") && list.contains("cpu.max") && !list.contains("cgroup.procs"), "{list}");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (code, said) = refused(0o644);
    assert!(code == 2 && said.contains("the folder can be written by others"), "{said}");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&file, "[actuator]\nuser = \"no-such-user-here\"\n").unwrap();
    assert!(refused(0o644).1.contains("useradd --system no-such-user-here"));
    fs::write(&file, "seed = 1\n").unwrap();
    assert!(refused(0o644).1.contains("actuator: is missing"));
    if nix::unistd::geteuid().is_root() {
        chown(&file, Some(NOBODY), None).unwrap();
        assert!(refused(0o644).1.contains("belongs to user 65534"));
    }
}

/// The journal of a daemon that was killed, and its cgroup: what `reset` gives back through the actuator as the same user.
#[test]
fn reset_works_without_rights() {
    let Some(hierarchies) = may_run("reset_works_without_rights") else { return };
    let cgroup = Cgroup::new(&hierarchies, "reset");
    let stage = Stage::new(&cgroup);
    let (cpus, quota_us) = (cgroup.cpus(), cgroup.quota_us());
    let mut actuator = stage.actuate();
    let mut daemon = Running::start(stage.daemon("parties-be"), " on local:");
    until("a plan of parties", || (cgroup.cpus(), cgroup.quota_us()) != (cpus.clone(), quota_us));
    daemon.end(nix::sys::signal::Signal::SIGKILL);
    let out = stage.with_config(&["reset", "--server", "local", "--json"], Who::Nobody).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(said["restored"], serde_json::json!(["job"]));
    assert_eq!((cgroup.cpus(), cgroup.quota_us()), (cpus, quota_us));
    actuator.end(nix::sys::signal::Signal::SIGTERM);
}

/// A daemon without rights and a controller of root's notice each other on the same CPUs, though the folder of locks is root's alone: the
/// actuator has made what its client needs, and nobody else can hold a lock there.
#[test]
fn two_controllers_of_a_cpu_notice_each_other() {
    let Some(hierarchies) = may_run("two_controllers_of_a_cpu_notice_each_other") else { return };
    if !namespaces() {
        return eprintln!("NOT RUN: two_controllers_of_a_cpu_notice_each_other: no mount namespaces here");
    }
    let cgroup = Cgroup::new(&hierarchies, "notice");
    let stage = Stage::new(&cgroup);
    let node = fs::read_to_string(stage.at("node.toml")).unwrap();
    let of_root = node.split_once("[actuator]").zip(node.split_once("[[service]]"));
    let of_root = of_root.map(|((head, _), (_, service))| format!("{head}[[service]]{service}").replace("\"state\"", "\"other\"")).unwrap();
    fs::write(stage.at("other.toml"), of_root).unwrap();
    let of_root = ["run", "--server", "local", "--policy", "parties-be", "--duration-s", "1", "--config"];
    let second = || stage.command(&of_root, Who::Root).arg(stage.at("other.toml")).output().unwrap();
    let mut actuator = stage.actuate();
    let locks = stage.at("locks/surefoot");
    assert_eq!(fs::metadata(&locks).unwrap().permissions().mode() & 0o7777, 0o755);
    // Any user may knock, and only root and the daemon's group come in.
    let knock = |uid: u32| {
        let mut c = Command::new("flock");
        let held = c.args(["--nonblock", path(&locks.join("cpus")), "true"]).uid(uid).gid(uid).output().unwrap();
        held.status.success()
    };
    assert!(!knock(12_345));
    let mut daemon = Running::start(stage.daemon("parties-be"), " on local:");
    let out = second();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(
        out.status.code() == Some(1) && said.contains("CPU 0: another Surefoot process (pid ") && said.contains("Stop that one"),
        "{said}"
    );
    let noted = daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert!(!noted.contains("would not be noticed"), "{noted}");
    // Gone with its holder, and the next one is root's.
    let out = second();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    actuator.end(nix::sys::signal::Signal::SIGTERM);
}

/// Every file of a cgroup that can be read and written, and of a resctrl every setting, with what it says.
fn settings(dirs: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    for dir in dirs {
        for e in fs::read_dir(dir).unwrap().flatten().filter(|e| e.path().is_file()) {
            let writable = e.metadata().unwrap().permissions().mode() & 0o222 != 0;
            // Counters count on, and processes of this host come and go.
            let counts = e.path().ends_with("resctrl/tasks")
                || ["usage", "failcnt", "stat", "memory_pressure"].iter().any(|w| e.file_name().to_string_lossy().contains(w));
            if let Ok(text) = fs::read_to_string(e.path()) {
                if writable && !counts {
                    all.insert(e.path(), text);
                }
            }
        }
    }
    all
}

fn differences(was: &BTreeMap<PathBuf, String>, is: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let all: std::collections::BTreeSet<&PathBuf> = was.keys().chain(is.keys()).collect();
    let differ = all.into_iter().filter(|k| was.get(*k) != is.get(*k));
    differ.map(|k| format!("{}: was {:?}, is {:?}", k.display(), was.get(k), is.get(k))).collect()
}

/// Whoever has taken over the decider and speaks for it on the socket, in every word that there is, takes nothing from others: no file of a cgroup
/// or a group that is not its own is another; and a second after it has gone nothing of it is left, whatever layout it left behind.
#[test]
fn an_attacker_on_the_socket_takes_nothing_and_leaves_nothing() {
    let name = "an_attacker_on_the_socket_takes_nothing_and_leaves_nothing";
    let Some(hierarchies) = may_run(name) else { return };
    if !Path::new("/dev/fuse").exists() {
        return eprintln!("NOT RUN: {name}: needs /dev/fuse (modprobe fuse)");
    }
    let (own, other) = (Cgroup::new(&hierarchies, "attacked"), Cgroup::new(&hierarchies, "beside"));
    let stage = Stage::new(&own);
    let mount = stage.at("resctrl");
    fs::create_dir(&mount).unwrap();
    let platform = "[cpu]\nphysical_cores = 2\n[llc]\nways = 11\nmb_per_way = 2.0\ndomains = 1\n[mem]\nmba = true\n";
    fs::write(stage.at("platform.toml"), platform).unwrap();
    let stand_in = StandIn::start(&mount, &stage.at("platform.toml"));
    let node = fs::read_to_string(stage.at("node.toml")).unwrap();
    fs::write(stage.at("node.toml"), format!("resctrl = \"resctrl\"\n{node}")).unwrap();
    fs::create_dir(mount.join("vm")).unwrap();
    fs::write(mount.join("vm/schemata"), "L3:0=700\n").unwrap();
    fs::write(mount.join("vm/tasks"), other.process.id().to_string()).unwrap();

    let (of_own, of_others) = (own.dirs.to_vec(), [other.dirs.to_vec(), vec![mount.clone(), mount.join("vm")]].concat());
    let (own_before, others_before) = (settings(&of_own), settings(&of_others));
    for leaves in ["nothing", "a goodbye", "a false layout"] {
        let mut actuator = stage.actuate();
        let line = RemoteFiles::connect(&stage.at("sock")).unwrap();
        let (cpus, shares) = (own.dirs[0].join("cpuset.cpus"), own.dirs[1].join("cpu.shares"));
        let op = |path: &Path, text: &str| Op::Write { path: path.into(), text: text.into() };
        let layout = match leaves {
            "nothing" => None,
            "a goodbye" => Some(vec![]),
            _ => Some(vec![op(&cpus, "0"), op(&shares, "2"), op(&own.dirs[1].join("cpu.cfs_quota_us"), "1000")]),
        };
        layout.iter().for_each(|ops| line.keep_safe(&SafeLayout::new(ops.clone())).unwrap());
        let _ = line.make_dir(&mount.join("surefoot.a"));
        let groups = [of_others.as_slice(), &of_own, &[mount.join("surefoot.a"), mount.join("mon_groups/x")]].concat();
        let own_tid = own.process.id().to_string();
        let values = ["0", "1", "0-1", "\n", "2", "99999", "-1", "1000", "exclusive", "L3:0=1\n", "L3:0=7ff\n", "1,1", &own_tid];
        for dir in &groups {
            let mut files: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
            files.extend(["cpus", "cpus_list", "mode", "schemata", "tasks", "cpuset.cpu_exclusive"].map(|f| dir.join(f)));
            for file in &files {
                values.iter().for_each(|v| drop(line.write(file, v)));
                let _ = (line.make_dir(file), line.remove_dir(file), line.rename(file, &mount.join("surefoot.b")));
            }
        }
        (0..40).for_each(|n| drop(line.make_dir(&mount.join(format!("surefoot.x{n}")))));
        assert_eq!(differences(&others_before, &settings(&of_others)), Vec::<String>::new(), "{leaves}");
        let classes =
            || fs::read_dir(&mount).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().starts_with("surefoot.")).count();
        let most = classes();
        assert_ne!(settings(&of_own), own_before, "what it may do, it does");
        drop(line);
        let left = || settings(&of_own) == own_before && classes() == 0;
        let deadline = Instant::now() + Duration::from_secs(20);
        while !left() {
            assert!(Instant::now() < deadline, "{leaves}: {:#?}, {} classes", differences(&own_before, &settings(&of_own)), classes());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(differences(&others_before, &settings(&of_others)), Vec::<String>::new(), "{leaves}");
        assert!(most <= 2, "one service: {most} classes");
        actuator.end(nix::sys::signal::Signal::SIGTERM);
    }
    drop(stand_in);
}
