//! A daemon that is killed at random instants, on real cgroups and on the stand-in for resctrl: the next one goes on with what
//! is in force, nothing leaks, and a reset leaves exactly what was there before Surefoot came.
//!
//! 20 kills; `SUREFOOT_KILLS=200` (make test-kills) for more.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use base64::Engine as _;
use common::node::{may_run, mounted, Cgroup, Running, StandIn};
use common::{ok, path, surefootd};
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_learn::rng::Rng;

const SERVICES: [(&str, &str); 4] = [("front", "lc"), ("store", "lc"), ("batch", "be"), ("index", "be")];

/// Everything that control may change: cgroup files of the services, and resctrl's groups with their files.
fn tree(cgroups: &[Cgroup], mount: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for c in cgroups {
        for (dir, file) in [(0, "cpuset.cpus"), (0, "cpuset.mems"), (1, "cpu.cfs_quota_us"), (1, "cpu.cfs_period_us"), (1, "cpu.shares")] {
            let file = c.dirs[dir].join(file);
            all.insert(path(&file).to_string(), look(&file));
        }
    }
    let tids: BTreeSet<String> = cgroups.iter().map(|c| c.process.id().to_string()).collect();
    for group in groups(mount).into_iter().map(|g| mount.join(g)).chain([mount.to_path_buf()]) {
        let name = path(&group).to_string();
        all.insert(format!("{name}/schemata"), look(&group.join("schemata")));
        let tasks = look(&group.join("tasks"));
        // Other processes of this machine come and go.
        let ours: Vec<&str> = tasks.lines().filter(|t| tids.contains(*t)).collect();
        all.insert(format!("{name}/tasks"), ours.join(" "));
        let monitored: Vec<String> = names(&group.join("mon_groups"));
        all.insert(format!("{name}/mon_groups"), monitored.join(" "));
    }
    all
}

/// A file that must be there. Where it is not, what is there instead tells who took it: the group, the whole mount or its folder.
fn look(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|e| {
        let around: Vec<String> = file.ancestors().skip(1).take(3).map(|d| format!("{} {:?}", d.display(), names(d))).collect();
        panic!("{}: {e}; {}; {}", file.display(), around.join("; "), fs::read_to_string("/proc/self/mounts").unwrap_or_default())
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

#[test]
fn killed_at_any_instant_the_node_goes_on() {
    let Some(hierarchies) = may_run("killed_at_any_instant_the_node_goes_on") else { return };
    let kills: u32 = std::env::var("SUREFOOT_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(20);
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("resctrl");
    fs::create_dir(&mount).unwrap();
    fs::write(
        dir.path().join("platform.toml"),
        "[cpu]\nphysical_cores = 2\n[llc]\nways = 11\nmb_per_way = 2.0\ndomains = 1\n[mem]\nmba = true\n",
    )
    .unwrap();
    if !Path::new("/dev/fuse").exists() {
        eprintln!("NOT RUN: killed_at_any_instant_the_node_goes_on: needs /dev/fuse (modprobe fuse)");
        return;
    }
    let stand_in = StandIn::start(&mount, &dir.path().join("platform.toml"));
    assert!(mounted(&mount));

    let cgroups: Vec<Cgroup> = SERVICES.iter().map(|(id, _)| Cgroup::new(&hierarchies, &format!("kill-{id}"))).collect();
    let mut node = "metrics_port = 0\nstate_dir = \"state\"\ncpus = \"0-1\"\ninterval_ms = 20\nresctrl = \"resctrl\"\n".to_string();
    for ((id, kind), c) in SERVICES.iter().zip(&cgroups) {
        let target = if *kind == "lc" { "qos_target_ms = 10.0\n" } else { "" };
        node += &format!("[[service]]\nid = \"{id}\"\nservice = \"{id}\"\nkind = \"{kind}\"\n{target}cgroup = \"/{}\"\n", c.name);
    }
    let config = dir.path().join("node.toml");
    fs::write(&config, node).unwrap();

    let before = tree(&cgroups, &mount);
    let free = free_classes(&mount);
    let stop = Arc::new(AtomicBool::new(false));
    let feeder = {
        let (socket, stop) = (dir.path().join("state/feed.sock"), stop.clone());
        std::thread::spawn(move || feed(socket, stop))
    };

    let mut random = Rng::new(0x6b11);
    let mut states = BTreeSet::new();
    let (mut most, mut resumed) = (0, 0);
    let daemon = || {
        let mut d = surefootd();
        d.args(["run", "--server", "local", "--policy", "parties", "--config", path(&config)]).env("SUREFOOT_LOG", "info");
        d
    };
    for n in 0..kills {
        let mut d = Running::start(daemon(), " on local:");
        let until = Instant::now() + Duration::from_micros(random.below(2_000_000) as u64);
        while Instant::now() < until {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
        }
        let said = d.end(nix::sys::signal::Signal::SIGKILL);
        resumed += u32::from(said.contains("going on with the allocations"));
        let now = tree(&cgroups, &mount);
        for ((id, _), c) in SERVICES.iter().zip(&cgroups) {
            assert_ne!(c.cpus(), "", "kill {n}: {id} has no CPU");
            let tid = c.process.id().to_string();
            let holders = now.iter().filter(|(k, v)| k.ends_with("/tasks") && v.split(' ').any(|t| t == tid)).count();
            assert_eq!(holders, 1, "kill {n}: {id} is in {holders} groups: {now:#?}");
        }
        let ours = groups(&mount);
        assert!(ours.len() <= SERVICES.len() && ours.iter().all(|g| g.starts_with("surefoot.")), "kill {n}: {ours:?}");
        most = most.max(ours.len());
        states.insert(format!("{now:?}"));
    }
    assert!(resumed + 2 >= kills, "{resumed} of {kills} went on");
    assert!(states.len() as u32 > kills / 6 && most >= 2, "{} different states, at most {most} groups: too little happened", states.len());

    // Nobody left: the safe layout frees LC services, a reset everything.
    ok(&["reset", "--safe", "--config", path(&config)]);
    for ((id, kind), c) in SERVICES.iter().zip(&cgroups).filter(|((_, kind), _)| *kind == "lc") {
        let now = tree(&cgroups, &mount);
        for (file, was) in before.iter().filter(|(k, _)| k.contains(&c.name)) {
            assert_eq!(now[file], *was, "{id} ({kind})");
        }
        let tasks = &now[&format!("{}/tasks", path(&mount))];
        assert!(tasks.split(' ').any(|t| t == c.process.id().to_string()), "{id} is not back in the default group");
    }
    ok(&["reset", "--config", path(&config)]);
    assert_eq!(tree(&cgroups, &mount), before);
    assert_eq!(settled_classes(&mount, free), free, "classes leaked");
    stop.store(true, Ordering::Relaxed);
    feeder.join().unwrap();
    drop(stand_in);
    assert!(!mounted(&mount), "the test leaves {} mounted", mount.display());
}
