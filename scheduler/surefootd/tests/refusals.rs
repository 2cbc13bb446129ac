//! `surefootd run` where the kernel refuses the value of one service: on cgroups of this host that the test makes and removes.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use base64::Engine as _;
use common::node::{may_run, Running};
use common::path;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Daemons of these tests manage the same CPUs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Groups below one of our own in cpuset and cpu, with processes in them; all go with this value.
struct Tree {
    name: String,
    roots: [PathBuf; 2],
    made: Vec<String>,
    processes: Vec<Child>,
    dir: tempfile::TempDir,
}

impl Tree {
    fn new(tag: &str) -> Option<Self> {
        let (cpuset, cpu) = may_run(tag)?;
        let dir = tempfile::tempdir().unwrap();
        let name = format!("surefoot-test-{}-{tag}", std::process::id());
        let mut t = Tree { name, roots: [cpuset, cpu], made: vec![], processes: vec![], dir };
        t.group("");
        fs::create_dir(t.dir.path().join("locks")).unwrap();
        Some(t)
    }

    fn at(&self, hierarchy: usize, group: &str) -> PathBuf {
        self.roots[hierarchy].join(&self.name).join(group)
    }

    /// A group with the CPUs of the one above it.
    fn group(&mut self, group: &str) {
        (0..2).for_each(|h| fs::create_dir(self.at(h, group)).unwrap());
        for f in ["cpuset.cpus", "cpuset.mems"] {
            let above = fs::read_to_string(self.at(0, group).join("..").join(f)).unwrap();
            fs::write(self.at(0, group).join(f), above).unwrap();
        }
        self.made.push(group.into());
    }

    /// The same with a process in it.
    fn busy(&mut self, group: &str) {
        self.group(group);
        let p = Command::new("sleep").arg("600").spawn().unwrap();
        (0..2).for_each(|h| fs::write(self.at(h, group).join("cgroup.procs"), p.id().to_string()).unwrap());
        self.processes.push(p);
    }

    fn put(&self, hierarchy: usize, file: &str, text: &str) {
        fs::write(self.at(hierarchy, file), text).unwrap_or_else(|e| panic!("{file} <- {text}: {e}"));
    }

    fn says(&self, hierarchy: usize, file: &str) -> String {
        fs::read_to_string(self.at(hierarchy, file)).unwrap().trim().into()
    }

    fn quota_us(&self, group: &str) -> i64 {
        self.says(1, &format!("{group}/cpu.cfs_quota_us")).parse().unwrap()
    }

    /// A node.toml of these services, each a group.
    fn node(&self, cpus: &str, services: &[(&str, &str)]) -> PathBuf {
        let mut text = format!("state_dir = \"state\"\nmetrics_port = 0\ncpus = \"{cpus}\"\n");
        for (id, group) in services {
            text += &format!("[[service]]\nservice = \"{id}\"\nkind = \"lc\"\nqos_target_ms = 10.0\ncgroup = \"/{}/{group}\"\n", self.name);
        }
        let file = self.dir.path().join("node.toml");
        fs::write(&file, text).unwrap();
        file
    }

    /// The binary with a folder of locks of its own: this host's may be another test's.
    fn surefootd(&self, args: &[&str]) -> Command {
        let built = std::env::var_os("SUREFOOT_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_surefootd").into());
        let own = Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|s| s.success());
        let mut c = if own {
            let mut c = Command::new("unshare");
            let line = format!("mount --bind {} /run/lock && exec \"$0\" \"$@\"", path(&self.dir.path().join("locks")));
            c.args(["--mount", "sh", "-c", &line]).arg(built);
            c
        } else {
            Command::new(built)
        };
        c.args(args).arg("--config").arg(self.dir.path().join("node.toml"));
        c.env("SUREFOOT_LOG", "info").current_dir(self.dir.path());
        c
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for p in &mut self.processes {
            let _ = p.kill();
            let _ = p.wait();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        for group in self.made.iter().rev() {
            for h in 0..2 {
                let d = self.at(h, group);
                while fs::remove_dir(&d).is_err() && d.exists() && Instant::now() < deadline {
                    std::thread::yield_now();
                }
            }
        }
    }
}

/// A window of 100 ms with answers of 2 ms.
fn datagram(service: &str) -> String {
    let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
    h.record_n(2_000_000, 40).unwrap();
    let mut raw = vec![];
    V2Serializer::new().serialize(&h, &mut raw).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(raw);
    format!(r#"{{"service":"{service}","window_ms":100,"count":40,"unit":"ns","histogram":"{text}"}}"#)
}

/// Run a daemon, with latency for these services, until `done` or a minute is over; then it is asked to end.
fn run_until(t: &Tree, policy: &str, services: &[&str], mut done: impl FnMut() -> bool) -> (bool, Output) {
    let mut child =
        t.surefootd(&["run", "--server", "local", "--policy", policy]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let socket = t.dir.path().join("state/feed.sock");
    let sender = UnixDatagram::unbound().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut is_done = false;
    while !is_done && Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        for s in services {
            let _ = sender.send_to(datagram(s).as_bytes(), &socket);
        }
        std::thread::sleep(Duration::from_millis(100));
        is_done = done();
    }
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::SIGTERM);
    (is_done, child.wait_with_output().unwrap())
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn summary(out: &Output) -> serde_json::Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(out)))
}

/// What bounds a service by the summary of its run: value, cause and remedy.
fn bounds(out: &Output, service: &str) -> Vec<String> {
    let all = summary(out);
    let of = all["bounded"].as_array().unwrap().iter().filter(|b| b["service"] == service);
    of.map(|b| format!("{}: {}. {}", b["value"].as_str().unwrap(), b["cause"].as_str().unwrap(), b["remedy"].as_str().unwrap())).collect()
}

fn ok(out: &Output) -> bool {
    out.status.success()
}

fn contains(all: &[String], parts: &[&str]) -> bool {
    all.iter().any(|b| parts.iter().all(|p| b.contains(p)))
}

/// `explain` and `check --config` name the bound with its true cause.
fn told(t: &Tree, parts: &[&str]) {
    let out = t.surefootd(&["explain"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(parts.iter().all(|p| text.contains(p)), "explain: {text} {}", said(&out));
    let out = t.surefootd(&["check"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(text.contains("bounds-bad") && parts.iter().all(|p| text.contains(p)), "check: {text} {}", said(&out));
}

/// A group below one service is wider than what is to be set: that service keeps those CPUs, has its quota, and is named with the group that
/// is wider; its neighbour is placed under every policy, and nobody's run fails.
#[test]
fn a_wider_group_below_stops_one_service() {
    let _alone = alone();
    for policy in ["parties-be", "equal-share"] {
        let Some(mut t) = Tree::new("wider") else { return };
        t.busy("good");
        t.group("bad");
        t.busy("bad/c1");
        t.node("0", &[("bad", "bad"), ("good", "good")]);
        let all = t.says(0, "bad/cpuset.cpus");
        assert_ne!(all, "0", "the test needs a host of two CPUs");
        let (done, out) = run_until(&t, policy, &["bad", "good"], || {
            t.quota_us("good") > 0 && t.says(0, "good/cpuset.cpus") == "0" && t.quota_us("bad") > 0
        });
        assert!(done && ok(&out), "{policy}: {}", said(&out));
        let c1 = format!("{}/bad/c1", t.name);
        assert!(contains(&bounds(&out, "bad"), &["CPUs: ", &c1, &format!("on CPUs {all}"), "echo"]), "{policy}: {}", said(&out));
        assert_eq!(summary(&out)["never_placed"], serde_json::json!([]), "{policy}");
        assert_eq!((t.says(0, "bad/cpuset.cpus"), t.quota_us("bad"), t.quota_us("good")), (all.clone(), -1, -1), "{policy}: given back");
        told(&t, &[&c1, "bad"]);
    }
}

/// The group above one service has less than what is to be set: that service gets as much as it may have, and is named with that group.
#[test]
fn less_quota_above_stops_one_service() {
    let _alone = alone();
    for policy in ["parties-be", "equal-share"] {
        let Some(mut t) = Tree::new("quota") else { return };
        t.busy("good");
        t.group("small");
        t.put(1, "small/cpu.cfs_quota_us", "50000");
        t.busy("small/bad");
        t.node("0-1", &[("bad", "small/bad"), ("good", "good")]);
        let mut most = 0.0f64;
        let (done, out) = run_until(&t, policy, &["bad", "good"], || {
            let (q, p) = (t.quota_us("small/bad"), t.says(1, "small/bad/cpu.cfs_period_us").parse::<f64>().unwrap());
            most = most.max(q as f64 / p);
            t.quota_us("good") > 0 && q > 0
        });
        assert!(done && ok(&out) && most <= 0.5, "{policy}: {most} {}", said(&out));
        let small = format!("{}/small", t.name);
        assert!(contains(&bounds(&out, "bad"), &["CPU quota: ", &small, "0.5 cores", "echo -1"]), "{policy}: {}", said(&out));
        told(&t, &[&small, "0.5 cores"]);
    }
}

/// The group above one service has none of the managed CPUs: that service is never placed, which the run says at its end and by its exit code;
/// its neighbour is.
#[test]
fn a_service_on_other_cpus_is_told_and_the_others_are_placed() {
    let _alone = alone();
    for policy in ["parties-be", "equal-share"] {
        let Some(mut t) = Tree::new("other") else { return };
        t.busy("good");
        t.group("away");
        t.put(0, "away/cpuset.cpus", "1");
        t.busy("away/bad");
        t.node("0", &[("bad", "away/bad"), ("good", "good")]);
        let mut ticks = 0;
        let (done, out) = run_until(&t, policy, &["bad", "good"], || {
            ticks += u32::from(t.quota_us("good") > 0 && t.says(0, "good/cpuset.cpus") == "0");
            ticks > 5
        });
        assert!(done, "{policy}: {}", said(&out));
        assert_eq!(out.status.code(), Some(1), "{policy}: {}", said(&out));
        let last = said(&out).lines().last().unwrap().to_string();
        assert!(
            last.contains("\"bad\" was never placed") && last.contains("away, has only CPUs 1") && last.contains("echo"),
            "{policy}: {last}"
        );
        assert_eq!(summary(&out)["never_placed"], serde_json::json!(["bad"]), "{policy}");
        told(&t, &["away, has only CPUs 1"]);
    }
}

/// A quota of a group below one service is more than what is to be set of it (v1 refuses that): the service has at least that, and the
/// neighbour its own.
#[test]
fn more_quota_below_stops_one_service() {
    let _alone = alone();
    let Some(mut t) = Tree::new("below") else { return };
    t.busy("good");
    t.group("bad");
    t.busy("bad/c1");
    t.put(1, "bad/c1/cpu.cfs_quota_us", "120000");
    t.node("0-1", &[("bad", "bad"), ("good", "good")]);
    let (done, out) = run_until(&t, "parties-be", &["bad", "good"], || t.quota_us("good") > 0);
    assert!(done && ok(&out), "{}", said(&out));
    assert!(contains(&bounds(&out, "bad"), &["CPU quota: ", "bad/c1", "1.2 cores"]), "{}", said(&out));
}

/// A bound that appears while a daemon runs (a group below is made and widened) is found, and ends with its cause.
#[test]
fn a_bound_that_comes_and_goes_is_followed() {
    let _alone = alone();
    let Some(mut t) = Tree::new("comes") else { return };
    t.busy("good");
    t.group("small");
    t.busy("small/bad");
    t.node("0-1", &[("bad", "small/bad"), ("good", "good")]);
    let parent = t.at(1, "small/cpu.cfs_quota_us");
    let write = |text: &str| fs::write(Path::new(&parent), text);
    let mut step = 0;
    let (done, out) = run_until(&t, "unmanaged", &["bad", "good"], || {
        match step {
            // Placed, without a quota of its own: the group above may have any.
            0 => step += u32::from(t.says(0, "good/cpuset.cpus") == "0-1" && write("50000").is_ok()),
            _ => step += 1,
        }
        step > 10 && {
            write("-1").unwrap();
            true
        }
    });
    assert!(done && ok(&out), "{}", said(&out));
}

/// Two CPUs are too few to lend one: `check` says so beforehand, the daemon once, and it runs as it would have run without.
#[test]
fn a_host_with_nothing_to_lend_says_so_once() {
    let _alone = alone();
    let Some(mut t) = Tree::new("lend") else { return };
    for group in ["web", "batch"] {
        t.busy(group);
    }
    let node = t.node("0-1", &[("web", "web")]);
    let more = format!("[[service]]\nservice = \"batch\"\nkind = \"be\"\ncgroup = \"/{}/batch\"\n", t.name);
    let lend = "[[lend]]\nlender = \"web\"\nborrower = \"batch\"\n";
    fs::write(&node, fs::read_to_string(&node).unwrap() + &more + lend).unwrap();
    let check = t.surefootd(&["check"]).output().unwrap();
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    let line = check.lines().find(|l| l.contains("lend-web ")).unwrap();
    assert!(line.contains("no  lend-web") && line.contains("it takes 3 whole cores, and services have 2 here"), "{line}");
    // How threads are seen, and at what price; or why not.
    let line = check.lines().find(|l| l.contains("lend-readings-web")).unwrap();
    let is_seen = line.contains("by programs in the kernel (BPF): ") && !line.contains("no  lend");
    assert!(is_seen || line.contains("no  lend-readings-web") && line.contains("(no BPF: "), "{line}");
    let run = t.surefootd(&["run", "--server", "local", "--policy", "parties-be", "--duration-s", "20"]);
    let mut daemon = Running::start(run, "web lends nothing to batch");
    let said = daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(said.matches("lends nothing").count(), 1, "{said}");
    for group in ["web", "batch"] {
        assert_eq!((t.says(0, &format!("{group}/cpuset.cpus")), t.quota_us(group)), (t.says(0, "cpuset.cpus"), -1), "{group}: {said}");
    }
}
