//! A daemon that is killed at random instants, on real cgroups and on the stand-in for resctrl: the next one goes on with what
//! is in force, nothing leaks, and a reset leaves exactly what was there before Surefoot came; also where a start, a stop or a reset
//! is what was interrupted, and not by a kill alone.
//!
//! 20 instants each; `SUREFOOT_KILLS=300` (make test-kills) for more. `SUREFOOT_BINARY` is another build to play this to, and
//! `SUREFOOT_KILLS_SEED` another course of events.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use base64::Engine as _;
use common::node::{may_run, mounted, Cgroup, Running, StandIn};
use common::{path, root};
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{mount, umount2, MntFlags, MsFlags};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_learn::rng::Rng;

const SERVICES: [(&str, &str); 4] = [("front", "lc"), ("store", "lc"), ("batch", "be"), ("index", "be")];
/// Groups of somebody else, who has a thread in each: in resctrl's root, and among its monitoring groups.
const OTHERS: [&str; 2] = ["vm", "mon_groups/vm"];

/// Here two services are in these groups as well.
const WAY_OUT: &str = "way-out";

fn instants() -> u32 {
    std::env::var("SUREFOOT_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(20)
}

/// One test at a time. A child closes what it has inherited while it becomes another program, and the kernel asks the stand-in about each file
/// of its mount; which at the same moment may be looking at that very child, and waits until it has become one.
static STAGE: Mutex<()> = Mutex::new(());

/// The build that this is played to.
fn surefootd() -> Command {
    let binary = std::env::var_os("SUREFOOT_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_surefootd").into());
    let mut c = Command::new(binary);
    c.current_dir(root()).env_remove("SUREFOOT_PROFILES").env("SUREFOOT_LOG", "info");
    c
}

/// A file that must be there. Where it is not, what is there instead tells who took it: the group, the whole mount or its folder.
fn look(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|e| {
        let around: Vec<String> = file.ancestors().skip(1).take(3).map(|d| format!("{} {:?}", d.display(), names(d))).collect();
        panic!("{}: {e}; {}; {}", file.display(), around.join("; "), fs::read_to_string("/proc/thread-self/mounts").unwrap_or_default())
    })
}

fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

/// Control groups below a mount.
fn groups(mount: &Path) -> Vec<String> {
    names(mount).into_iter().filter(|n| mount.join(n).join("schemata").is_file() && n != "info").collect()
}

/// Latency that is for some seconds above its target and for some below, each service in its own time: the policy gives and takes.
fn feed(socket: PathBuf, stop: Arc<AtomicBool>) {
    let mut random = Rng::new(77);
    let to = UnixDatagram::unbound().unwrap();
    let mut slow = SERVICES.map(|_| false);
    while !stop.load(Ordering::Relaxed) {
        for (n, (id, _)) in SERVICES.iter().enumerate().filter(|(_, s)| s.1 == "lc") {
            let mut h: Histogram<u64> = Histogram::new(3).unwrap();
            // A change every 3 s: three times the window of a p99.
            slow[n] ^= random.below(150) == 0;
            let most = if slow[n] { 40 } else { 1 };
            (0..200).for_each(|_| h.record((1 + random.below(most) as u64) * 1_000_000).unwrap());
            let mut raw = vec![];
            V2Serializer::new().serialize(&h, &mut raw).unwrap();
            let text = base64::engine::general_purpose::STANDARD.encode(raw);
            let datagram = format!(r#"{{"service":"{id}","t_ms":0,"window_ms":20,"count":200,"unit":"ns","histogram":"{text}"}}"#);
            // Between a kill and the next start nobody listens.
            let _ = to.send_to(datagram.as_bytes(), &socket);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// How many groups can still be made: what leaked is missing.
fn free_classes(mount: &Path) -> usize {
    let made: Vec<PathBuf> = (0..).map(|n| mount.join(format!("probe{n}"))).take_while(|p| fs::create_dir(p).is_ok()).collect();
    made.iter().for_each(|p| fs::remove_dir(p).unwrap());
    made.len()
}

/// RMIDs that were freed wait until their lines have left the cache.
fn settled_classes(mount: &Path, want: usize) -> usize {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let free = free_classes(mount);
        if free == want || Instant::now() > deadline {
            return free;
        }
        std::thread::yield_now();
    }
}

fn wait(duration: Duration) {
    let until = Instant::now() + duration;
    while Instant::now() < until {
        std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// A host of four services with values of their own, a mounted stand-in for resctrl with groups of somebody else, a node.toml, and a
/// state folder on a small file system of its own.
struct Stage {
    dir: tempfile::TempDir,
    mount: PathBuf,
    stand_in: Option<StandIn>,
    cgroups: Vec<Cgroup>,
    before: BTreeMap<String, String>,
    free: usize,
    stop: Arc<AtomicBool>,
    feeder: Option<JoinHandle<()>>,
    /// Has a thread in each of [`OTHERS`].
    bystanders: Vec<Child>,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    /// None where this host lacks what it takes, which is said.
    fn new(test: &str, tag: &str, actuator: bool) -> Option<Self> {
        let hierarchies = may_run(test)?;
        if !Path::new("/dev/fuse").exists() {
            eprintln!("NOT RUN: {test}: needs /dev/fuse (modprobe fuse)");
            return None;
        }
        let alone = STAGE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for d in ["resctrl", "state"] {
            fs::create_dir(at(d)).unwrap();
        }
        mount(Some("tmpfs"), &at("state"), Some("tmpfs"), MsFlags::empty(), Some("size=1m,mode=755")).unwrap();
        fs::write(at("platform.toml"), "[cpu]\nphysical_cores = 2\n[llc]\nways = 11\nmb_per_way = 2.0\ndomains = 1\n[mem]\nmba = true\n")
            .unwrap();
        let mount = at("resctrl");
        let stand_in = StandIn::start(&mount, &at("platform.toml"));
        assert!(mounted(&mount));
        let bystanders: Vec<Child> = OTHERS.iter().map(|_| Command::new("sleep").arg("3600").spawn().unwrap()).collect();
        for (group, thread) in OTHERS.iter().zip(&bystanders) {
            fs::create_dir(mount.join(group)).unwrap();
            fs::write(mount.join(group).join("tasks"), thread.id().to_string()).unwrap();
        }
        fs::write(mount.join(OTHERS[0]).join("schemata"), "L3:0=700\n").unwrap();

        let cgroups: Vec<Cgroup> = SERVICES.iter().map(|(id, _)| Cgroup::new(&hierarchies, &format!("{tag}-{id}"))).collect();
        // Each its own: what is given back to the wrong one shows.
        for (n, c) in cgroups.iter().enumerate() {
            for (file, value) in [
                ("cpu.cfs_period_us", 100_000 + 10_000 * n as i64),
                ("cpu.cfs_quota_us", if n == 0 { -1 } else { 120_000 + 1_000 * n as i64 }),
                ("cpu.shares", 700 + 111 * n as i64),
            ] {
                fs::write(c.dirs[1].join(file), value.to_string()).unwrap();
            }
        }
        let mut node = "metrics_port = 0\nstate_dir = \"state\"\ncpus = \"0-1\"\ninterval_ms = 20\nresctrl = \"resctrl\"\n".to_string();
        if actuator {
            node += "[actuator]\nsocket = \"sock\"\nuser = \"0\"\nstate_dir = \"held\"\n";
        }
        for ((id, kind), c) in SERVICES.iter().zip(&cgroups) {
            let target = if *kind == "lc" { "qos_target_ms = 10.0\n" } else { "" };
            node += &format!("[[service]]\nid = \"{id}\"\nservice = \"{id}\"\nkind = \"{kind}\"\n{target}cgroup = \"/{}\"\n", c.name);
        }
        fs::write(at("node.toml"), node).unwrap();
        if tag == WAY_OUT {
            // Somebody else has threads of the first service and of the first job.
            for (group, n) in OTHERS.iter().zip([0, 2]) {
                fs::write(mount.join(group).join("tasks"), cgroups[n].process.id().to_string()).unwrap();
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let feeder = {
            let (socket, stop) = (at("state/feed.sock"), stop.clone());
            std::thread::spawn(move || feed(socket, stop))
        };
        let free = free_classes(&mount);
        let (stand_in, feeder) = (Some(stand_in), Some(feeder));
        let mut stage = Stage { dir, mount, stand_in, cgroups, before: BTreeMap::new(), free, stop, feeder, bystanders, _alone: alone };
        stage.before = stage.tree();
        Some(stage)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut c = surefootd();
        c.args(args).args(["--config", path(&self.at("node.toml"))]);
        c
    }

    fn daemon(&self) -> Command {
        self.command(&["run", "--server", "local", "--policy", "parties-be"])
    }

    fn out(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn must(&self, args: &[&str]) -> String {
        let out = self.out(args);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{args:?}: {said}");
        said
    }

    /// Everything that control may change: cgroup files of the services, and resctrl's groups with their files; and where each thread is.
    fn tree(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for c in &self.cgroups {
            for (dir, file) in
                [(0, "cpuset.cpus"), (0, "cpuset.mems"), (1, "cpu.cfs_quota_us"), (1, "cpu.cfs_period_us"), (1, "cpu.shares")]
            {
                let file = c.dirs[dir].join(file);
                all.insert(path(&file).to_string(), look(&file));
            }
        }
        let ours = self.cgroups.iter().map(|c| &c.process).chain(&self.bystanders);
        let tids: BTreeSet<String> = ours.map(|p| p.id().to_string()).collect();
        let controls = groups(&self.mount).into_iter().map(|g| self.mount.join(g)).chain([self.mount.clone()]);
        for group in controls.collect::<Vec<_>>() {
            let monitors = group.join("mon_groups");
            for dir in names(&monitors).into_iter().map(|m| monitors.join(m)).chain([group.clone()]) {
                // Other processes of this machine come and go.
                let tasks = look(&dir.join("tasks"));
                let tasks: Vec<&str> = tasks.lines().filter(|t| tids.contains(*t)).collect();
                all.insert(format!("{}/tasks", path(&dir)), tasks.join(" "));
            }
            for file in ["schemata", "mode", "cpus"] {
                all.insert(path(&group.join(file)).into(), look(&group.join(file)));
            }
        }
        all
    }

    /// What is not as it was before Surefoot came.
    fn changed(&self) -> Vec<String> {
        let now = self.tree();
        let names: BTreeSet<&String> = self.before.keys().chain(now.keys()).collect();
        let of = |m: &BTreeMap<String, String>, k: &String| m.get(k).map_or("nothing".into(), |t| t.trim().to_string());
        let differ = names.into_iter().filter(|k| self.before.get(*k) != now.get(*k));
        differ.map(|k| format!("{k}: was {}, is {}", of(&self.before, k), of(&now, k))).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.feeder.take().map(JoinHandle::join);
        for p in &mut self.bystanders {
            let _ = p.kill();
            let _ = p.wait();
        }
        drop(self.stand_in.take());
        let _ = umount2(&self.at("state"), MntFlags::MNT_DETACH);
    }
}

#[test]
fn killed_at_any_instant_the_node_goes_on() {
    let Some(stage) = Stage::new("killed_at_any_instant_the_node_goes_on", "kill", false) else { return };
    let kills = instants();
    let mut random = Rng::new(0x6b11);
    let mut states = BTreeSet::new();
    let (mut most, mut resumed) = (0, 0);
    for n in 0..kills {
        let mut d = Running::start(stage.daemon(), " on local:");
        wait(Duration::from_micros(random.below(2_000_000) as u64));
        let said = d.end(Signal::SIGKILL);
        resumed += u32::from(said.contains("going on with the allocations"));
        let now = stage.tree();
        for ((id, _), c) in SERVICES.iter().zip(&stage.cgroups) {
            assert_ne!(c.cpus(), "", "kill {n}: {id} has no CPU");
            let tid = c.process.id().to_string();
            let within = |k: &&String| k.ends_with("/tasks") && !k.contains("mon_groups");
            let holders = now.iter().filter(|(k, v)| within(k) && v.split(' ').any(|t| t == tid)).count();
            assert_eq!(holders, 1, "kill {n}: {id} is in {holders} groups: {now:#?}");
        }
        let ours: Vec<String> = groups(&stage.mount).into_iter().filter(|g| !OTHERS.contains(&g.as_str())).collect();
        assert!(ours.len() <= SERVICES.len() && ours.iter().all(|g| g.starts_with("surefoot.")), "kill {n}: {ours:?}");
        most = most.max(ours.len());
        states.insert(format!("{now:?}"));
    }
    assert!(resumed + 2 >= kills, "{resumed} of {kills} went on");
    assert!(states.len() as u32 > kills / 6 && most >= 2, "{} different states, at most {most} groups: too little happened", states.len());

    // Nobody left: the safe layout frees LC services, a reset everything.
    stage.must(&["reset", "--safe"]);
    let now = stage.tree();
    for ((id, kind), c) in SERVICES.iter().zip(&stage.cgroups).filter(|((_, kind), _)| *kind == "lc") {
        for (file, was) in stage.before.iter().filter(|(k, _)| k.contains(&c.name)) {
            assert_eq!(now[file], *was, "{id} ({kind})");
        }
        let tasks = &now[&format!("{}/tasks", path(&stage.mount))];
        assert!(tasks.split(' ').any(|t| t == c.process.id().to_string()), "{id} is not back in the default group");
    }
    stage.must(&["reset"]);
    assert_eq!(stage.changed(), Vec::<String>::new());
    assert_eq!(settled_classes(&stage.mount, stage.free), stage.free, "classes leaked");
    let mount = stage.mount.clone();
    drop(stage);
    assert!(!mounted(&mount), "the test leaves {} mounted", mount.display());
}

/// What is going on when it is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum During {
    Start,
    Run,
    Stop,
    Reset,
}

/// What is wrong with the host meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Well,
    /// Another process has the lock of resctrl, all the time.
    LockHeld,
    /// The disk of the state folder has no byte left.
    DiskFull,
    /// Nobody reads what is printed any more.
    StdoutClosed,
    /// resctrl is not mounted any more where the daemon sees it.
    ResctrlUnmounted,
    /// The same of the hierarchy of cpusets.
    CpusetUnmounted,
}

const DURING: [During; 4] = [During::Start, During::Run, During::Stop, During::Reset];
const HOSTS: [Host; 6] = [Host::Well, Host::LockHeld, Host::DiskFull, Host::StdoutClosed, Host::ResctrlUnmounted, Host::CpusetUnmounted];

/// A process whose words are kept, killed in its time or let end.
struct Doomed {
    child: Child,
    said: JoinHandle<String>,
}

impl Doomed {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut from = child.stderr.take().unwrap();
        let said = std::thread::spawn(move || std::io::read_to_string(&mut from).unwrap_or_default());
        Doomed { child, said }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Killed after so long, where it has not ended by then. Whether it was, and its words.
    fn end(mut self, after: Duration) -> (bool, String) {
        let until = Instant::now() + after;
        let ended = loop {
            if self.child.try_wait().unwrap().is_some() {
                break true;
            }
            if Instant::now() >= until {
                break false;
            }
            std::thread::park_timeout(Duration::from_micros(200));
        };
        let _ = kill(self.pid(), Signal::SIGKILL);
        self.child.wait().unwrap();
        (!ended, self.said.join().unwrap())
    }

    /// Ended by itself, or this test fails.
    fn ended(self) -> (Option<i32>, String) {
        let mut child = self.child;
        let deadline = Instant::now() + Duration::from_secs(60);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                panic!("it does not end: {}", self.said.join().unwrap());
            }
            std::thread::park_timeout(Duration::from_millis(1));
        };
        (status.code(), self.said.join().unwrap())
    }
}

/// `command` where nothing that is mounted or unmounted is seen by others.
fn apart(command: Command) -> Command {
    let mut c = Command::new("unshare");
    c.args(["--mount", "--propagation", "private", "--"]).arg(command.get_program()).args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        c.current_dir(dir);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(v) => c.env(key, v),
            None => c.env_remove(key),
        };
    }
    c
}

/// A pipe whose reader has gone.
fn closed_pipe() -> Stdio {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    write.into()
}

impl Stage {
    /// One instant: a daemon (and a reset) that is interrupted, what systemd does then, and a reset by hand. Returns what was played, and
    /// whether a kill came before the end.
    fn instant(&self, n: u32, random: &mut Rng, mut actuator: Option<&mut Running>) -> (During, Host, bool) {
        let (during, host) = (DURING[random.below(4)], HOSTS[if random.below(2) == 0 { 0 } else { 1 + random.below(5) }]);
        let us = |random: &mut Rng, most: usize| Duration::from_micros(random.below(most) as u64);
        let what = format!("instant {n}: {during:?}, {host:?}");
        let held = (host == Host::LockHeld).then(|| Flock::lock(File::open(&self.mount).unwrap(), FlockArg::LockExclusive).unwrap());
        let mut said = String::new();
        let unmounts = match host {
            Host::ResctrlUnmounted => Some(self.mount.clone()),
            Host::CpusetUnmounted => self.cgroups[0].dirs[0].parent().map(Path::to_path_buf),
            _ => None,
        };

        let mut daemon = self.daemon();
        if host == Host::StdoutClosed {
            daemon.stdout(closed_pipe());
        } else {
            daemon.stdout(Stdio::null());
        }
        let d = Doomed::start(if unmounts.is_some() { apart(daemon) } else { daemon });
        let pid = d.pid();
        // It is up when there is a plan, or the last one again.
        let journal = self.at("state/journal.jsonl");
        let before = fs::metadata(&journal).map_or(0, |m| m.len());
        if during != During::Start {
            let deadline = Instant::now() + Duration::from_secs(30);
            while fs::metadata(&journal).map_or(0, |m| m.len()) == before {
                assert!(Instant::now() < deadline && kill(pid, None).is_ok(), "{what}: no plan: {}", d.ended().1);
                std::thread::park_timeout(Duration::from_millis(2));
            }
            wait(us(random, 600_000));
        }
        let fill = (host == Host::DiskFull).then(|| {
            let file = self.at("state/fill");
            let mut f = File::create(&file).unwrap();
            while f.write(&[0; 4096]).is_ok() {}
            file
        });
        if let Some(at) = &unmounts {
            // Before it is what it is to become it may still be where others see what it sees.
            let binary = PathBuf::from(self.daemon().get_program()).canonicalize().unwrap();
            let deadline = Instant::now() + Duration::from_secs(30);
            while fs::read_link(format!("/proc/{pid}/exe")).ok() != Some(binary.clone()) {
                assert!(Instant::now() < deadline, "{what}: no {}", binary.display());
                std::thread::park_timeout(Duration::from_micros(200));
            }
            let own = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).unwrap();
            assert_ne!(own(&pid.to_string()), own("self"), "{what}: this would be unmounted for everybody");
            let pid = pid.to_string();
            let done = Command::new("nsenter").args(["--target", &pid, "--mount", "umount", "--lazy", path(at)]).output().unwrap();
            assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
            wait(us(random, 200_000));
        }
        let mut within = true;
        let mut doomed = |d: Doomed, after: Duration| {
            let (killed, words) = d.end(after);
            within &= killed;
            words
        };
        match during {
            During::Start => said += &doomed(d, us(random, 150_000)),
            During::Run => said += &doomed(d, Duration::ZERO),
            During::Stop => {
                kill(pid, Signal::SIGTERM).unwrap();
                // Sometimes it is let finish, and is then judged by itself.
                let whole = random.below(4) == 0;
                if whole {
                    let (code, words) = d.ended();
                    let left = self.changed();
                    let alone = unmounts.is_none();
                    assert!(left.is_empty() || !alone, "{what}: it ended with {code:?} and left {left:#?}: {words}");
                    assert!(left.is_empty() || words.contains("cgroup") || words.contains("resctrl"), "{what}: {left:#?}: {words}");
                    said += &words;
                    within = false;
                } else {
                    said += &doomed(d, us(random, 40_000));
                }
            }
            During::Reset => {
                said += &doomed(d, Duration::ZERO);
                let mut reset = self.command(&["reset"]);
                reset.stdout(if host == Host::StdoutClosed { closed_pipe() } else { Stdio::null() });
                said += &doomed(Doomed::start(reset), us(random, 120_000));
            }
        }
        // As systemd does after each of these; it may be killed as well.
        if random.below(5) > 0 {
            let mut safe = self.command(&["reset", "--safe"]);
            safe.stdout(Stdio::null());
            let safe = Doomed::start(safe);
            said += &if random.below(4) == 0 { safe.end(us(random, 8_000)).1 } else { safe.ended().1 };
        }
        if let Some(a) = actuator.as_deref_mut() {
            // The dead man's switch: a second after its client has gone, or when it comes again itself.
            if random.below(3) == 0 {
                said += &a.end(Signal::SIGKILL);
                *a = self.actuator();
            }
            if random.below(2) == 0 {
                wait(Duration::from_millis(900) + us(random, 400_000));
            }
        }
        // Most times somebody resets by hand; else the next daemon goes on.
        match (random.below(4), actuator) {
            (0, _) => {}
            (1, Some(a)) => {
                // Root itself, while no actuator runs: the next one must not know better.
                said += &a.end(Signal::SIGKILL);
                self.reset(&what, &mut said);
                *a = self.actuator();
                wait(Duration::from_millis(1_200));
                assert_eq!(self.changed(), Vec::<String>::new(), "{what}: the next actuator\n{said}");
            }
            _ => self.reset(&what, &mut said),
        }
        if let Some(file) = fill {
            fs::remove_file(file).unwrap();
        }
        drop(held);
        (during, host, within)
    }

    fn reset(&self, what: &str, said: &mut String) {
        let out = self.out(&["reset"]);
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        *said += &words;
        let left = self.changed();
        assert!(out.status.success() && left.is_empty(), "{what}: {:?}, left {left:#?}\n{said}", out.status.code());
        assert!(!self.at("state/safe.json").exists(), "{what}: a layout is left\n{said}");
    }

    fn actuator(&self) -> Running {
        Running::start(self.command(&["actuate"]), "serving user 0 (")
    }
}

/// Whatever interrupts a start, a run, a stop or a reset (a kill; a lock that somebody holds, a full disk, a closed pipe, an unmounted
/// hierarchy), and whoever puts the safe layout in force then: a reset leaves every value of every cgroup, every group of resctrl and
/// every thread where it was before Surefoot came.
#[test]
fn whatever_interrupts_it_everything_is_given_back() {
    play("whatever_interrupts_it_everything_is_given_back", WAY_OUT, false);
}

/// The same through the actuator, which puts a layout in force itself when its client is gone, and is sometimes killed as well.
#[test]
fn through_the_actuator_everything_is_given_back() {
    play("through_the_actuator_everything_is_given_back", "actuated", true);
}

fn play(test: &str, tag: &str, actuator: bool) {
    let Some(stage) = Stage::new(test, tag, actuator) else { return };
    let seed = std::env::var("SUREFOOT_KILLS_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(0x5eed);
    let mut random = Rng::new(seed);
    let mut running = actuator.then(|| stage.actuator());
    let (mut played, mut within): (BTreeMap<(During, Host), u32>, BTreeMap<During, u32>) = Default::default();
    for n in 0..instants() {
        let (during, host, killed) = stage.instant(n, &mut random, running.as_mut());
        *played.entry((during, host)).or_default() += 1;
        *within.entry(during).or_default() += u32::from(killed);
    }
    stage.reset("in the end", &mut String::new());
    if let Some(mut a) = running {
        a.end(Signal::SIGTERM);
        assert_eq!(stage.changed(), Vec::<String>::new(), "the actuator's last word");
    }
    assert_eq!(settled_classes(&stage.mount, stage.free), stage.free, "classes leaked");
    eprintln!("{test}: killed within {within:?} of {played:?}");
}

/// What a run of some seconds came to: ticks, plans, and whether plans were refused or ways given.
struct Run {
    ticks: u64,
    plans: u64,
    refused: usize,
    most_groups: usize,
    said: String,
}

impl Stage {
    fn run_for(&self, s: u32) -> Run {
        let mut c = self.daemon();
        c.args(["--duration-s", &s.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = c.spawn().unwrap();
        let mut most_groups = 0;
        while child.try_wait().unwrap().is_none() {
            most_groups = most_groups.max(groups(&self.mount).iter().filter(|g| g.starts_with("surefoot.")).count());
            // Each look is work for the stand-in that the daemon waits for.
            std::thread::park_timeout(Duration::from_millis(250));
        }
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{said}");
        let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let refused = said.matches("plan not applied").count();
        Run { ticks: v["ticks"].as_u64().unwrap(), plans: v["phases"]["apply"]["count"].as_u64().unwrap(), refused, most_groups, said }
    }
}

/// Any user who can look into the folder of resctrl may lock it, alone or with others, for ever: control loses no tick by it, no plan is
/// refused, services get their ways after a bounded wait, and everything is given back.
#[test]
fn a_lock_that_anybody_holds_stops_nothing() {
    use std::os::unix::fs::PermissionsExt;
    let Some(stage) = Stage::new("a_lock_that_anybody_holds_stops_nothing", "lock", false) else { return };
    fs::set_permissions(stage.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let free = stage.run_for(4);
    assert!(free.refused == 0 && free.most_groups > 0 && free.plans > 0, "{}", free.said);
    for how in ["--exclusive", "--shared"] {
        let mut holder = Command::new("setpriv");
        holder.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "flock", "--no-fork", how, path(&stage.mount)]);
        let mut holder = holder.args(["sh", "-c", "echo held; exec sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 4];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut said).unwrap();
        let held = stage.run_for(4);
        holder.kill().unwrap();
        holder.wait().unwrap();
        eprintln!("{how}: {} of {} ticks, {} and {} plans, {} classes", held.ticks, free.ticks, held.plans, free.plans, held.most_groups);
        // A wait of a second in each plan and each look at threads would leave a tenth of them; other work on this host may take many too.
        assert!(held.ticks * 4 >= free.ticks, "{how}: {} ticks, {} without a holder: {}", held.ticks, free.ticks, held.said);
        assert!(held.refused == 0 && held.most_groups > 0 && held.plans > 0, "{how}: {}", held.said);
        assert_eq!(held.said.matches("are changed without it").count(), 1, "{how}: {}", held.said);
        assert_eq!(stage.changed(), Vec::<String>::new(), "{how}");
    }
}
