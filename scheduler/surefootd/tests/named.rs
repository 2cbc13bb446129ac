//! `surefootd sweep` of services that the campaign names itself (`[[service]]`): no container engine is asked for anything.

#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a test's input and output are its own")]

mod common;

use common::node::{may_run, Cgroup};
use common::{one_line, path, root, run, surefootd};
use serde_json::Value;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What every campaign here begins with; `more` follows.
fn campaign(dir: &Path, sweep: &str, more: &str) -> PathBuf {
    let file = dir.join("c.toml");
    let text = format!(
        "name = \"named\"\n[targets]\nlocal = true\n[sweep]\n{sweep}\n[sampling]\nwarmup_ms = 200\nsamples = 3\ninterval_ms = 100\n{more}"
    );
    fs::write(&file, text).unwrap();
    file
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

const LC: &str = "kind = \"lc\"\nqos_target_ms = 50.0";
const LOADED: &str = "loadgen = { protocol = \"memcached\", connections = 2, args = [\"--key-space\", \"100\"] }";

/// What cannot be is refused in the plan, with the line, the field and the remedy, before anything is started or made.
#[test]
fn what_cannot_be_is_refused_in_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let kv = |more: &str| format!("[[service]]\nservice = \"kv\"\n{more}\n");
    let command = format!("{LC}\ncommand = [\"memcached\", \"-p\", \"{{port}}\"]\nport = 21290\n{LOADED}");
    let of_pid = format!("{LC}\npid = 1\nport = 21290\n{LOADED}");
    let one = "services = [\"kv\"]\nrps = [100]\nways = \"all\"";
    let cases: [(String, String, i32, &str); 18] = [
        (one.into(), kv(&of_pid), 2, "service.threads: is missing: it runs already"),
        (
            format!("{one}\nthreads = [1, 2]"),
            kv(&format!("{of_pid}\nthreads = 2")),
            2,
            "sweep.threads: 1, 2 of \"kv\" (process 1) cannot be set: it runs already. Leave threads out, or write 2",
        ),
        (
            format!("{one}\nthreads = \"cores\""),
            kv(&format!("{of_pid}\nthreads = 2")),
            2,
            "sweep.threads: \"cores\" of \"kv\" (process 1) cannot be set",
        ),
        (format!("{one}\nthreads = [1, 2]"), kv(&command), 2, "its command has no {threads}"),
        (one.into(), kv(&format!("{LC}\npid = 1\nthreads = 1\nport = 21290")), 2, "service.loadgen: is missing: nothing says how"),
        (one.into(), kv(&format!("{LC}\npid = 1\nthreads = 1\n{LOADED}")), 2, "service.port: is missing"),
        (one.into(), kv(&format!("{of_pid}\ncommand = [\"memcached\"]")), 2, "more than one of container, cgroup, unit, pid and command"),
        (one.into(), kv(&command.replace("{port}", "{prot}")), 2, "service.command: \"{prot}\" has an unknown placeholder"),
        (
            one.into(),
            kv(&command.replace("\"memcached\", \"-p\"", "\"./memcached\", \"-p\"")),
            2,
            "service.command: \"./memcached\" is no program",
        ),
        (
            one.into(),
            kv(&format!("{command}\nthreads = 1").replace("\"memcached\", \"-p\"", "\"no-such-program\", \"-p\"")),
            1,
            "there is no such program",
        ),
        (
            one.into(),
            kv(&format!("{command}\nfeed = {{ anybody = true }}")),
            2,
            "service.feed: a campaign's load generator tells the latency",
        ),
        (
            one.into(),
            kv(&command.replace("\"memcached\", connections", "\"wrk2\", connections")),
            2,
            "service.loadgen: protocol = \"wrk2\"",
        ),
        (
            one.into(),
            kv(&command
                .replace("\"memcached\", connections", "\"exec\", command = [\"x\", \"{rate}\"], connections")
                .replace(", args = [\"--key-space\", \"100\"]", "")),
            2,
            "service.loadgen: loadgen.command: \"{rate}\" has an unknown placeholder",
        ),
        (
            one.into(),
            kv(&command
                .replace("\"memcached\", connections", "\"exec\", command = [\"no-such-generator\", \"{rps}{feed}\"], connections")
                .replace(", args = [\"--key-space\", \"100\"]", "")
                .replace("\"-p\"", "\"-t\", \"{threads}\", \"-p\"")),
            1,
            "load generator no-such-generator of kv",
        ),
        (
            one.into(),
            kv(&format!("{LC}\ncgroup = \"/no/such/group\"\nthreads = 1\nport = 21290\n{LOADED}")),
            1,
            "cgroup /no/such/group of kv",
        ),
        ("services = [\"web\"]\nrps = [100]".into(), kv(&format!("{command}\nthreads = 1")), 2, "unknown service \"web\""),
        ("services = [\"kv\"]".into(), kv(&format!("{command}\nthreads = 1")), 2, "no RPS levels for \"kv\""),
        (
            "services = [\"job\"]\nrps = [100]".into(),
            "[[service]]\nservice = \"job\"\nkind = \"be\"\ncommand = [\"sleep\", \"9\"]\n".into(),
            2,
            "It is a BE job",
        ),
    ];
    for (sweep, more, code, words) in cases {
        let file = campaign(dir.path(), &sweep, &more);
        let (is, said) = one_line(&run(&["sweep", path(&file), "--server", "local", "--plan", "--cpus", "0"]));
        assert!(is == code && said.contains(words), "{words}: {is} {said}");
        assert!(code == 1 || words.starts_with("unknown") || said.contains("c.toml"), "{said}");
    }
    let virtual_too =
        fs::read_to_string(campaign(dir.path(), one, &kv(&command))).unwrap().replace("local = true", "virtual = [\"server-1\"]");
    fs::write(dir.path().join("v.toml"), virtual_too).unwrap();
    let (code, said) = one_line(&run(&["sweep", path(&dir.path().join("v.toml")), "--server", "virtual:server-1", "--plan"]));
    assert!(code == 2 && said.contains("the virtual server server-1 knows its profiles only"), "{said}");
}

/// Where the load generators run, and with how many threads, is the campaign's to say: the plan shows it, and refuses what cannot be.
#[test]
fn load_generators_are_placed_by_the_campaign() {
    let dir = tempfile::tempdir().unwrap();
    let kv = format!("[[service]]\nservice = \"kv\"\n{LC}\ncommand = [\"sleep\", \"9\"]\nthreads = 1\nport = 21290\n{LOADED}\n");
    let sweep = "services = [\"kv\"]\nrps = [100]";
    let plan = |table: &str, more: &[&str]| {
        let file = campaign(dir.path(), sweep, &format!("{kv}[loadgen]\n{table}\n"));
        run(&[&["sweep", path(&file), "--server", "local", "--plan"], more].concat())
    };
    for (table, words) in [
        ("cpus = \"0\"", "loadgen.cpus: \"0\": the services have 0 too (--cpus 0). Give the load generators CPUs of their own"),
        ("cpus = \"1000\"", "loadgen.cpus: \"1000\": this host has"),
        ("cpus = \"x\"", "is not a CPU or a range of CPUs"),
        ("cpus = \"\"", "loadgen.cpus: names no CPU. Write a list of CPUs"),
        ("cpus = 1", "loadgen.cpus: invalid type: integer"),
        ("threads = 0", "loadgen.threads: 0 is out of range. Give a whole number from 1 to 256"),
        ("threads = 3", "loadgen.threads: 3, but kv has 2 connections, and each thread needs one. Give at most 2"),
        ("host = \"lab-2\"", "unknown field `host`"),
    ] {
        let (code, said) = one_line(&plan(table, &["--cpus", "0"]));
        assert!(code == 2 && said.contains("c.toml:") && said.contains(words), "{table}: {said}");
    }
    let of = |table: &str, more: &[&str]| {
        let out = plan(table, &[more, &["--json"]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).unwrap()["loadgen"].clone()
    };
    assert_eq!(of("", &[]), serde_json::json!({}));
    assert_eq!(of("threads = 2", &[]), serde_json::json!({ "threads": 2 }));
    let file = campaign(dir.path(), sweep, &kv).with_file_name("v.toml");
    fs::write(&file, "name = \"v\"\n[targets]\nvirtual = [\"server-1\"]\n[sweep]\nservices = \"all\"\n[loadgen]\nthreads = 2\n").unwrap();
    let (code, said) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-1", "--plan"]));
    assert!(code == 2 && said.contains("loadgen: a virtual server has no load generator"), "{said}");
    // The services have what the load generators leave.
    let last = std::thread::available_parallelism().unwrap().get() - 1;
    if last > 0 {
        let text = String::from_utf8(plan("cpus = \"0\"\nthreads = 2", &[]).stdout).unwrap();
        assert!(text.contains("load generators on CPUs 0 with 2 sending threads each"), "{text}");
        assert_eq!(of("cpus = \"0\"", &[]), serde_json::json!({ "cpus": "0" }));
        let (code, said) = one_line(&plan(&format!("cpus = \"0-{last}\""), &[]));
        assert!(code == 2 && said.contains("leaves no CPU to the services"), "{said}");
    }
}

/// A node.toml says with the same reader that a command is for campaigns.
#[test]
fn a_command_is_no_service_of_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    fs::write(&file, format!("state_dir = \"s\"\n[[service]]\nservice = \"kv\"\n{LC}\ncommand = [\"memcached\"]\n")).unwrap();
    let (code, said) = one_line(&run(&["run", "--policy", "unmanaged", "--server", "local", "--config", path(&file)]));
    assert!(code == 2 && said.contains("node.toml:2: service.command: is for campaigns"), "{said}");
}

/// memcached in the cgroup of a test, on a port of its own.
struct Memcached(Child);

impl Memcached {
    fn start(cgroup: &Cgroup, port: u16) -> Self {
        let child = Command::new("memcached")
            .args(["-u", "root", "-l", "127.0.0.1", "-t", "1", "-p", &port.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .expect("memcached is installed (scripts/deps.sh)");
        let this = Memcached(child);
        let pid = this.0.id().to_string();
        cgroup.dirs.iter().for_each(|d| fs::write(d.join("cgroup.procs"), &pid).unwrap());
        until("memcached answers", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        this
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, is: impl FnMut() -> bool) {
    until_within(Duration::from_secs(120), what, is);
}

fn until_within(longest: Duration, what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + longest;
    while !is() {
        assert!(Instant::now() < deadline, "in {longest:?}: {what}");
        std::thread::yield_now();
    }
}

/// Groups that a sweep made for commands.
fn groups_of_commands(hierarchies: &(PathBuf, PathBuf), id: &str) -> Vec<String> {
    let names = [&hierarchies.0, &hierarchies.1].into_iter().flat_map(|h| fs::read_dir(h).unwrap());
    let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.starts_with("surefoot-") && !n.starts_with("surefoot-test-") && n.ends_with(id)).collect()
}

/// One sweep at a time has this machine's CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

struct Bed {
    _machine: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    hierarchies: (PathBuf, PathBuf),
    // Before its cgroup, which cannot go while it is there.
    _memcached: Memcached,
    cgroup: Cgroup,
    file: PathBuf,
    command: String,
}

/// A service in a cgroup, and one that is a command with threads, beside each other; `loaded`: how the command is.
fn bed(test: &str, loaded: &str) -> Option<Bed> {
    let hierarchies = may_run(test)?;
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("NOT RUN: {test}: needs memcached");
        return None;
    }
    let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new(&hierarchies, test);
    let (port, other) = (free_port(), free_port());
    let memcached = Memcached::start(&cgroup, port);
    let command = format!("cmd{}", std::process::id());
    let more = format!(
        "[[service]]\nservice = \"kv\"\n{LC}\ncgroup = \"/{}\"\nthreads = 1\nport = {port}\nrps_levels = [200]\n{LOADED}\n\
         [[service]]\nservice = \"{command}\"\n{LC}\ncommand = [\"memcached\", \"-u\", \"root\", \"-l\", \"127.0.0.1\", \"-t\", \"{{threads}}\", \"-p\", \
         \"{{port}}\"]\nport = {other}\nrps_levels = [200]\n{loaded}\n",
        cgroup.name
    );
    let sweep = "services = \"all\"\ncores = [0.3, 0.6]\nneighbours = { count = [0, 1] }";
    let file = campaign(dir.path(), sweep, &more);
    Some(Bed { _machine: machine, dir, hierarchies, cgroup, _memcached: memcached, file, command })
}

impl Bed {
    fn sweep(&self, name: &str, resume: bool) -> Command {
        let mut c = surefootd();
        let (out, state) = (self.dir.path().join(name), self.dir.path().join("state"));
        c.args(["sweep", path(&self.file), "--server", "local", "--cpus", "1", "--json", "--progress", "none", "--tries", "1"]);
        c.args(["--out", path(&out), "--state", path(&state)]);
        // An engine that is asked anything fails.
        c.env("SUREFOOT_ENGINE", "/bin/false").env("SUREFOOT_LOADGEN", loadgen());
        if resume {
            c.arg("--resume");
        }
        c
    }

    fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.path().join("out/journal.jsonl")).unwrap_or_default();
        text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
    }

    /// What the service had before is in force, and nothing of the command is left.
    fn is_as_before(&self, before: &(String, i64)) {
        assert_eq!(&(self.cgroup.cpus(), self.cgroup.quota_us()), before);
        assert_eq!(groups_of_commands(&self.hierarchies, &self.command), Vec::<String>::new());
        assert!(!self.dir.path().join("state/safe.json").exists());
    }

    fn before(&self) -> (String, i64) {
        (self.cgroup.cpus(), self.cgroup.quota_us())
    }
}

fn loadgen() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_surefootd")).with_file_name("surefoot-loadgen");
    if beside.exists() {
        return beside;
    }
    root().join("target/release/surefoot-loadgen")
}

/// A service by its cgroup and one by its command are swept alone and beside each other without any container engine: every case comes to
/// rows with the threads, cores and neighbours that it says; at the end the one has what it had, and nothing of the other is left.
#[test]
fn services_without_containers_are_swept() {
    let Some(bed) = bed("named-sweep", LOADED) else { return };
    let before = bed.before();
    let out = bed.sweep("out", false).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    bed.is_as_before(&before);
    let journal = bed.journal();
    // Two services x two loads of neighbours (none, one) x two numbers of cores, some of which a neighbour leaves no room for.
    assert_eq!(journal.len(), 8, "{journal:?}");
    let states: Vec<&str> = journal.iter().map(|l| l["state"].as_str().unwrap()).collect();
    assert!(states.iter().filter(|s| **s != "infeasible").count() >= 6, "{states:?}");
    assert!(!states.contains(&"failed"), "{journal:?}");
    let manifest: Value = serde_json::from_slice(&fs::read(bed.dir.path().join("out/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["services"]["kv"]["qos_target_ms"], 50.0);
    assert_eq!(manifest["spec"]["service"][0]["target"]["cgroup"], format!("/{}", bed.cgroup.name));
    let rows: u64 = manifest["shards"].as_array().unwrap().iter().map(|s| s["rows"].as_u64().unwrap()).sum();
    assert!(rows >= 18, "{rows}");
}

/// Any program that tells the feed loads a service: it is given rate, seed, port, time, service and socket, and its windows come to the
/// same rows. One that fails, or tells nothing, is said to, in its own last words.
#[test]
fn another_generator_loads_a_service() {
    let exec =
        |program: &str, args: &str| format!("loadgen = {{ protocol = \"exec\", connections = 2, command = [\"{program}\", {args}] }}");
    let args =
        "\"--protocol\", \"memcached\", \"--key-space\", \"100\", \"--target\", \"127.0.0.1:{port}\", \"--rps\", \"{rps}\", \"--seed\", \
                \"{seed}\", \"--duration\", \"{duration_ms}ms\", \"--warmup\", \"0s\", \"--service\", \"{service}\", \"--feed\", \"{feed}\", \"--connections\", \
                \"{connections}\"";
    let Some(bed) = bed("named-exec", &exec(path(&loadgen()), args)) else { return };
    let before = bed.before();
    let out = bed.sweep("out", false).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    bed.is_as_before(&before);
    let states: Vec<String> = bed.journal().iter().map(|l| l["state"].as_str().unwrap().to_string()).collect();
    assert!(states.iter().filter(|s| *s == "measured").count() >= 4 && !states.iter().any(|s| s == "failed"), "{:?}", bed.journal());
    // The same command with a generator that only complains.
    let text = fs::read_to_string(&bed.file).unwrap();
    let at = text.rfind("loadgen = ").unwrap();
    let complains = exec("/bin/sh", "\"-c\", \"echo no {rps} for {feed} >&2; exit 3\"");
    fs::write(&bed.file, format!("{}{complains}\n", &text[..at])).unwrap();
    let out = bed.sweep("second", false).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned()
        + &fs::read_to_string(bed.dir.path().join("second/journal.jsonl")).unwrap_or_default();
    assert!(said.contains("no 200 for /"), "{said}");
    bed.is_as_before(&before);
}

/// Loads are found of a service by its cgroup, and of a command under another generator: each has a max load of its own before its first case,
/// cases have shares of it, and a sweep that is killed among the cases looks for none again.
#[test]
fn loads_are_found_here() {
    let args = "\"--protocol\", \"memcached\", \"--key-space\", \"100\", \"--target\", \"127.0.0.1:{port}\", \"--rps\", \"{rps}\", \"--seed\", \
                \"{seed}\", \"--duration\", \"{duration_ms}ms\", \"--warmup\", \"0s\", \"--service\", \"{service}\", \"--feed\", \"{feed}\", \"--connections\", \
                \"{connections}\"";
    let exec = format!("loadgen = {{ protocol = \"exec\", connections = 2, command = [\"{}\", {args}] }}", path(&loadgen()));
    let Some(bed) = bed("named-found", &exec) else { return };
    let before = bed.before();
    // A target that only a queue misses, whatever else this machine does.
    let text = fs::read_to_string(&bed.file).unwrap().replace("neighbours = { count = [0, 1] }", "rps = \"saturation:30,60\"");
    fs::write(&bed.file, text.replace("qos_target_ms = 50.0", "qos_target_ms = 2000.0")).unwrap();
    let mut sweep = bed.sweep("out", false).stdout(Stdio::null()).spawn().unwrap();
    let manifest = || -> Option<Value> { serde_json::from_slice(&fs::read(bed.dir.path().join("out/manifest.json")).ok()?).ok() };
    let found = || manifest().map_or(vec![], |m| m["max_loads"].as_array().cloned().unwrap_or_default());
    until_within(Duration::from_secs(600), "one max load is found", || !found().is_empty());
    sweep.kill().unwrap();
    sweep.wait().unwrap();
    let first = found()[0].clone();
    let out = bed.sweep("out", true).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    bed.is_as_before(&before);
    let all = found();
    assert_eq!((all.len(), &all[0]), (2, &first), "it stays as it was first found");
    let services: Vec<&str> = all.iter().filter_map(|m| m["service"].as_str()).collect();
    assert!(services.contains(&"kv") && services.contains(&bed.command.as_str()), "{services:?}");
    for m in &all {
        let looks = m["looks"].as_array().unwrap();
        assert!(m["max_load_rps"].as_f64().is_some_and(|r| r > 0.0) && looks.len() >= 2, "{m}");
        assert!((0.0..=1.0).contains(&m["others_frac"].as_f64().unwrap()), "{m}");
    }
    let states: Vec<String> = bed.journal().iter().map(|l| l["state"].as_str().unwrap().to_string()).collect();
    assert!(states.len() == 8 && !states.iter().any(|s| s == "failed" || s == "infeasible"), "{:?}", bed.journal());
}

/// A sweep that is killed leaves no process of a command for long: the first one ends with it, and the next sweep of the same state folder
/// ends what that one had started, gives the others what they had, and measures what was missing.
#[test]
fn a_killed_sweep_of_named_services_goes_on() {
    let Some(bed) = bed("named-kill", LOADED) else { return };
    let before = bed.before();
    let mut sweep = bed.sweep("out", false).stdout(Stdio::null()).spawn().unwrap();
    // In the middle of the cases: something of ours is in force, and the command runs.
    until("the command is started", || !groups_of_commands(&bed.hierarchies, &bed.command).is_empty());
    sweep.kill().unwrap();
    sweep.wait().unwrap();
    let out = bed.sweep("out", true).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    bed.is_as_before(&before);
    assert_eq!(bed.journal().len(), 8);
    // And without another sweep: reset does it.
    let state = bed.dir.path().join("state");
    let mut again = bed.sweep("second", false).stdout(Stdio::null()).spawn().unwrap();
    until("the command is started again", || !groups_of_commands(&bed.hierarchies, &bed.command).is_empty());
    again.kill().unwrap();
    again.wait().unwrap();
    let out = surefootd().env("SUREFOOT_ENGINE", "/bin/false").args(["reset", "--state", path(&state), "--json"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["commands_ended"], serde_json::json!([bed.command]));
    bed.is_as_before(&before);
}
