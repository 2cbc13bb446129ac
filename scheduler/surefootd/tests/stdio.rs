//! Whatever becomes of standard output and standard error, nothing is kept from being given back, control goes on, and nothing
//! panics: a reader that has gone, one that reads nothing, a full disk, descriptors that are closed, Ctrl-C to a whole pipeline.

#![allow(unsafe_code, reason = "descriptors are closed, and a signal asked for, between fork and exec")]
#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::node::{may_run, Cgroup, StandIn};
use common::{one_line, path, root, surefootd};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A pipe whose reader has gone.
fn closed() -> Stdio {
    let (from, to) = nix::unistd::pipe().unwrap();
    drop(from);
    to.into()
}

/// A pipe that is full and that nobody reads; its reader is kept.
fn stuck(readers: &mut Vec<OwnedFd>) -> Stdio {
    let (from, to) = nix::unistd::pipe().unwrap();
    let flags = nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(&to, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    let mut file = File::from(to.as_fd().try_clone_to_owned().unwrap());
    while file.write(&[b'x'; 4096]).is_ok() {}
    nix::fcntl::fcntl(&to, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    readers.push(from);
    to.into()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// It ends by itself, in time.
fn wait(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            let threads = fs::read_dir(format!("/proc/{}/task", child.id())).into_iter().flatten().flatten();
            let at = |t: &Path, name: &str| fs::read_to_string(t.join(name)).unwrap_or_default();
            let where_they_are: Vec<String> = threads
                .map(|t| format!("{} in {}: {}", at(&t.path(), "comm").trim(), at(&t.path(), "wchan"), at(&t.path(), "stack")))
                .collect();
            let _ = child.kill();
            let _ = child.wait();
            panic!("it does not end: {where_they_are:#?}");
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

static ALONE: Mutex<()> = Mutex::new(());

/// Two services on this machine, with resctrl's stand-in, and a daemon's configuration for them.
struct Host {
    /// One at a time: they claim the same CPUs.
    _alone: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    cgroups: Vec<Cgroup>,
    before: BTreeMap<PathBuf, String>,
    port: u16,
    _stand_in: StandIn,
}

impl Host {
    fn new(test: &str) -> Option<Self> {
        let hierarchies = may_run(test)?;
        if !Path::new("/dev/fuse").exists() {
            eprintln!("NOT RUN: {test}: needs /dev/fuse (modprobe fuse)");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().join("resctrl");
        fs::create_dir(&mount).unwrap();
        let platform = "[cpu]\nphysical_cores = 2\n[llc]\nways = 11\nmb_per_way = 2.0\ndomains = 1\n[mem]\nmba = true\n";
        fs::write(dir.path().join("platform.toml"), platform).unwrap();
        let stand_in = StandIn::start(&mount, &dir.path().join("platform.toml"));
        let services = [("front", "lc"), ("batch", "be")];
        let cgroups: Vec<Cgroup> = services.iter().map(|(id, _)| Cgroup::new(&hierarchies, &format!("{test}-{id}"))).collect();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut node = format!("metrics_port = {port}\nstate_dir = \"state\"\ncpus = \"0-1\"\ninterval_ms = 20\nresctrl = \"resctrl\"\n");
        for ((id, kind), c) in services.iter().zip(&cgroups) {
            let target = if *kind == "lc" { "qos_target_ms = 10.0\n" } else { "" };
            node += &format!("[[service]]\nid = \"{id}\"\nservice = \"{id}\"\nkind = \"{kind}\"\n{target}cgroup = \"/{}\"\n", c.name);
        }
        fs::write(dir.path().join("node.toml"), node).unwrap();
        let mut host = Host { _alone: alone, dir, cgroups, before: BTreeMap::new(), port, _stand_in: stand_in };
        host.before = host.tree();
        Some(host)
    }

    /// All that control may change.
    fn tree(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        for c in &self.cgroups {
            for (dir, file) in [(0, "cpuset.cpus"), (0, "cpuset.mems"), (1, "cpu.cfs_quota_us"), (1, "cpu.shares")] {
                let file = c.dirs[dir].join(file);
                all.insert(file.clone(), fs::read_to_string(&file).unwrap());
            }
        }
        let mount = self.dir.path().join("resctrl");
        all.insert(mount.join("schemata"), fs::read_to_string(mount.join("schemata")).unwrap());
        for entry in fs::read_dir(&mount).unwrap().flatten() {
            all.insert(entry.path(), String::new());
        }
        all
    }

    fn daemon(&self) -> Command {
        let mut c = surefootd();
        c.args(["run", "--die-with-parent", "--server", "local", "--policy", "equal-share", "--config"]);
        c.arg(self.dir.path().join("node.toml"));
        c.env("SUREFOOT_LOG", "trace").stdin(Stdio::null());
        // Tests that run under `nohup` hand on that it is ignored, which the daemon heeds.
        let heard = || {
            for s in [Signal::SIGHUP, Signal::SIGQUIT] {
                // SAFETY: the default action is no handler of ours.
                unsafe { nix::sys::signal::signal(s, nix::sys::signal::SigHandler::SigDfl) }?;
            }
            Ok(())
        };
        // SAFETY: signal is async-signal-safe.
        unsafe { c.pre_exec(heard) };
        c
    }

    /// Until something of ours is in force, and then some ticks more: control goes on.
    fn under_control(&self, child: &mut Child, what: &str) {
        let mut goes_on = || {
            let status = child.try_wait().unwrap();
            assert_eq!(status, None, "{what}: the daemon has ended");
            self.ticks()
        };
        until(&format!("{what}: nothing comes under control"), || goes_on().is_some() && self.tree() != self.before);
        let ticks = goes_on().unwrap_or(0);
        until(&format!("{what}: control stands still"), || goes_on() > Some(ticks + 20));
    }

    fn ticks(&self) -> Option<u64> {
        let at = format!("http://127.0.0.1:{}", self.port);
        let out = surefootd().args(["top", "--json", "--url", &at]).stderr(Stdio::null()).output().unwrap();
        serde_json::from_slice::<serde_json::Value>(&out.stdout).ok()?["ticks"].as_u64()
    }

    fn given_back(&self, what: &str) {
        assert_eq!(self.tree(), self.before, "{what}: not everything is given back");
        assert!(!self.dir.path().join("state/safe.json").exists(), "{what}: a safe layout is left");
    }
}

/// A daemon gives everything back and goes on controlling until then, whatever its standard output and standard error are.
#[test]
fn a_daemon_gives_back_whatever_its_output_is() {
    let Some(host) = Host::new("stdio-run") else { return };
    let mut readers = vec![];
    let cases: [(&str, Stdio, Stdio, Signal); 7] = [
        ("readers that have gone", closed(), closed(), Signal::SIGTERM),
        ("standard output that has gone", closed(), Stdio::null(), Signal::SIGINT),
        ("readers that read nothing", stuck(&mut readers), stuck(&mut readers), Signal::SIGTERM),
        ("a log that nobody reads", Stdio::null(), stuck(&mut readers), Signal::SIGINT),
        ("a full disk", full(), full(), Signal::SIGTERM),
        ("a terminal that has gone", closed(), closed(), Signal::SIGHUP),
        ("nothing special", Stdio::null(), Stdio::null(), Signal::SIGQUIT),
    ];
    for (what, out, err, signal) in cases {
        let mut child = host.daemon().stdout(out).stderr(err).spawn().unwrap();
        host.under_control(&mut child, what);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let status = wait(&mut child);
        host.given_back(what);
        // A disk that takes no result is said by the code; a reader that does not want it is no failure.
        let code = if what == "a full disk" { 1 } else { 0 };
        assert_eq!(status.code(), Some(code), "{what}: {status:?}");
    }
}

/// A daemon that is started without standard input, output and error takes no other file for them, and gives everything back.
#[test]
fn a_daemon_without_descriptors_gives_back() {
    let Some(host) = Host::new("stdio-closed") else { return };
    let mut command = host.daemon();
    // SAFETY: close is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            (0..3).for_each(|fd| assert_eq!(libc::close(fd), 0));
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    host.under_control(&mut child, "closed descriptors");
    let state = fs::read_dir(host.dir.path().join("state")).unwrap().flatten().map(|e| e.path());
    let logged = state.filter(|p| p.is_file()).any(|p| fs::read_to_string(p).is_ok_and(|t| t.contains("INFO")));
    assert!(!logged, "a line of the log went into a file of the state");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
    let status = wait(&mut child);
    host.given_back("closed descriptors");
    assert_eq!(status.code(), Some(0), "{status:?}");
}

/// Ctrl-C to a whole pipeline ends its reader first or last: the machine gets everything back.
#[test]
fn ctrl_c_to_a_pipeline_gives_back() {
    let Some(host) = Host::new("stdio-pipeline") else { return };
    for reader in ["tee /dev/null", "head -n 1"] {
        let mut command = Command::new("/bin/sh");
        let line = format!("exec 3>&1; ({} 2>&1; echo $? >code) | {reader} >/dev/null", shell(&host.daemon()));
        command.args(["-c", &line]).current_dir(host.dir.path()).process_group(0).stdin(Stdio::null());
        command.env("SUREFOOT_LOG", "trace").env_remove("SUREFOOT_PROFILES").stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl is async-signal-safe.
        unsafe { command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into)) };
        let code = host.dir.path().join("code");
        let _ = fs::remove_file(&code);
        let mut child = command.spawn().unwrap();
        host.under_control(&mut child, reader);
        // As a terminal does it: to everybody.
        nix::sys::signal::killpg(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        wait(&mut child);
        until(&format!("{reader}: not everything is given back: {:?}, at first {:?}", host.tree(), host.before), || {
            host.tree() == host.before
        });
        host.given_back(reader);
    }
}

/// A command as a shell's line.
fn shell(c: &Command) -> String {
    let word = |w: &std::ffi::OsStr| format!("'{}'", w.to_str().unwrap());
    std::iter::once(word(c.get_program())).chain(c.get_args().map(word)).collect::<Vec<_>>().join(" ")
}

/// A recording that has no room ends the recording and not the run: every tick is there, and the exit code says that the file is not whole.
#[test]
fn a_recording_without_room_ends_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4k", "none", path(&small)]).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|s| s.success()) {
        return eprintln!("NOT RUN: a_recording_without_room_ends_no_run: no file system can be mounted here");
    }
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let config = dir.path().join("node.toml");
    fs::write(&config, format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\n", path(&workload))).unwrap();
    let mut wrong = vec![];
    for option in ["--events", "--stream"] {
        let mut c = surefootd();
        c.args(["run", "--policy", "parties-be", "--server", "virtual:server-1", "--duration-s", "30", "--config", path(&config)]);
        let out = c.args([option, path(&small.join("r.jsonl")), "--overwrite"]).env("SUREFOOT_LOG", "off").output().unwrap();
        let (code, said) = (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned());
        let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        if code != Some(1) || !said.contains("the disk is full") || said.lines().count() != 1 || summary["ticks"].as_u64() < Some(300) {
            wrong.push(format!("{option}: {code:?} {said} {summary}"));
        }
    }
    assert!(Command::new("umount").arg(&small).status().unwrap().success());
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// What a killed daemon left is given back by a reset whose readers have gone, or read nothing.
#[test]
fn a_reset_gives_back_before_it_prints() {
    let Some(host) = Host::new("stdio-reset") else { return };
    let mut readers = vec![];
    for (what, out, err) in
        [("readers that have gone", closed(), closed()), ("readers that read nothing", stuck(&mut readers), stuck(&mut readers))]
    {
        let mut child = host.daemon().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        host.under_control(&mut child, what);
        kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        let mut reset = surefootd();
        reset.args(["reset", "--config"]).arg(host.dir.path().join("node.toml")).env("SUREFOOT_LOG", "trace").stdout(out).stderr(err);
        let mut reset = reset.spawn().unwrap();
        until(&format!("{what}: not everything is given back"), || host.tree() == host.before);
        // It waits for its reader, but for nothing else: the lock is free.
        let mut again = host.daemon().args(["--duration-s", "1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert_eq!(wait(&mut again).code(), Some(0), "{what}");
        host.given_back(what);
        if what == "readers that have gone" {
            assert_eq!(wait(&mut reset).code(), Some(0), "{what}");
        } else {
            kill(Pid::from_raw(reset.id() as i32), Signal::SIGKILL).unwrap();
            reset.wait().unwrap();
        }
    }
}

/// What a command prints may go to a reader that has gone (that is no failure), to a full disk (that is one, in one line), or
/// nowhere; what it writes besides is whole.
#[test]
fn results_that_nobody_takes_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| path(&dir.path().join(n)).to_string();
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    fs::write(at("node.toml"), format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\njournal = \"j.jsonl\"\n", path(&workload)))
        .unwrap();
    let short = "platform = \"server-1\"\nduration_s = 2\n[[lc]]\nservice = \"moses\"\nload = 0.3\n";
    fs::write(at("w.toml"), short).unwrap();
    let run =
        format!("run --policy parties-be --server virtual:server-1 --config {} --stream {} --overwrite", at("node.toml"), at("s.jsonl"));
    let commands = [
        run,
        format!("replay {}", at("s.jsonl")),
        format!("explain --file {}", at("j.jsonl")),
        format!("record --server virtual:server-1 --config {} --out {} --overwrite", at("node.toml"), at("r.parquet")),
        format!("eval --workloads {} --policies parties-be --platform server-1 --out {} --overwrite", at("w.toml"), at("eval")),
        format!("sweep examples/demo-virtual.toml --server virtual:server-1 --out {} --part 1/64", at("sweep")),
        "sweep examples/demo-virtual.toml --server virtual:server-1 --plan".into(),
        format!("oracle --workload {} --platform server-1", at("w.toml")),
        "check --server virtual:server-1".into(),
        "check --json".into(),
        "schema".into(),
        "reset --server virtual:server-1".into(),
        "run --help".into(),
    ];
    for line in &commands {
        let run = |out: Stdio, err: Stdio| {
            let sweeps = line.starts_with("sweep") && line.contains("--out");
            if sweeps {
                let _ = fs::remove_dir_all(at("sweep"));
            }
            let mut c = surefootd();
            c.args(line.split(' ')).stdout(out).stderr(err).env("SUREFOOT_LOG", "off");
            let out = c.spawn().unwrap().wait_with_output().unwrap();
            if sweeps {
                let manifest: serde_json::Value = serde_json::from_slice(&fs::read(at("sweep/manifest.json")).unwrap()).unwrap();
                assert_eq!(manifest["complete"], true);
            }
            out
        };
        let gone = run(closed(), closed());
        assert_eq!((gone.status.code(), gone.status.signal()), (Some(0), None), "{line}");
        let none = run(full(), Stdio::piped());
        // What else it has to say on standard error comes before.
        let said = String::from_utf8_lossy(&none.stderr).into_owned();
        let last = said.lines().last().unwrap_or_default();
        assert!(
            none.status.code() == Some(1) && last.starts_with("surefootd: standard output: cannot be written: No space"),
            "{line}: {said}"
        );
    }
    // Whole in spite of it.
    for file in ["r.parquet", "eval/rows.parquet"] {
        assert!(dir.path().join(file).exists(), "{file}");
    }
    assert!(!dir.path().join("eval/eval.partial.jsonl").exists());
}

/// The stand-in for resctrl is mounted and unmounted whatever its standard error is.
#[test]
fn the_stand_in_needs_no_reader() {
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("NOT RUN: the_stand_in_needs_no_reader: needs root and /dev/fuse");
        return;
    }
    let mut readers = vec![];
    for err in [closed(), stuck(&mut readers), full()] {
        let dir = tempfile::tempdir().unwrap();
        let mut c = surefootd();
        c.args(["resctrlfs", "--die-with-parent", "--platform", "server-1"]).arg(dir.path()).stdout(Stdio::null()).stderr(err);
        let mut child = c.spawn().unwrap();
        until("nothing is mounted", || dir.path().join("schemata").exists());
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert_eq!(wait(&mut child).code(), Some(0));
        assert!(!common::node::mounted(dir.path()));
    }
}

/// A second daemon on one journal or one stream is refused, and hears who is there.
#[test]
fn two_daemons_do_not_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| path(&dir.path().join(n)).to_string();
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    fs::write(at("a.toml"), format!("workload = \"{}\"\nmetrics_port = 0\njournal = \"j.jsonl\"\n", path(&workload))).unwrap();
    fs::write(at("b.toml"), format!("workload = \"{}\"\nmetrics_port = 0\n", path(&workload))).unwrap();
    let run = |config: &str, more: &[&str]| {
        let mut c = surefootd();
        c.args(["run", "--die-with-parent", "--policy", "unmanaged", "--server", "virtual:server-1", "--config", &at(config)]).args(more);
        c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c
    };
    let stream = at("s.jsonl");
    let mut first = run("a.toml", &["--stream", &stream]).spawn().unwrap();
    until("it does not begin", || fs::metadata(&stream).is_ok_and(|m| m.len() > 0) && Path::new(&at("j.jsonl")).exists());
    let held = fs::read(&stream).unwrap();
    let who = format!("surefootd (pid {}) writes there", first.id());
    for (config, more, file) in
        [("a.toml", &[][..], "j.jsonl"), ("b.toml", &["--stream", &stream], "s.jsonl"), ("b.toml", &["--events", &stream], "s.jsonl")]
    {
        let (code, line) = one_line(&run(config, more).output().unwrap());
        assert!(code == 1 && line.contains(&who) && line.contains(&at(file)), "{code} {line}");
    }
    assert!(fs::read(&stream).unwrap().starts_with(&held), "what the first recorded is there");
    kill(Pid::from_raw(first.id() as i32), Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut first).code(), Some(0));
}
