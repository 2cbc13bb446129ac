//! What an upper scheduler hears of an overloaded node: the socket of `surefootd run`, on virtual servers.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{one_line, path, root, surefootd};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// More than Server 1 carries, until one leaves.
const WORKLOAD: &str =
    "platform = \"server-1\"\nduration_s = 60\n[[lc]]\nservice = \"moses\"\nload = 0.9\n[[lc]]\nservice = \"xapian\"\nload = 0.9\n\
    [[lc]]\nservice = \"img-dnn\"\nload = 0.9\narrive_s = 5\n[[lc]]\nservice = \"specjbb\"\nload = 0.9\narrive_s = 10\nleave_s = 40\n\
    [[be]]\njob = \"blackscholes\"\n";

/// A node.toml of that workload, with so much more.
fn node(dir: &Path, upper: &str) -> Command {
    fs::write(dir.join("w.toml"), WORKLOAD).unwrap();
    let text = format!("workload = \"w.toml\"\nrealtime = false\nmetrics_port = 0\njournal = \"d.jsonl\"\n{upper}");
    fs::write(dir.join("node.toml"), text).unwrap();
    let vectors = root().join("tests/vectors");
    let mut command = surefootd();
    command.args(["run", "--policy", "osml-plus", "--server", "virtual:server-1", "--config", path(&dir.join("node.toml"))]);
    command.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))]);
    command
}

/// Connected before the second tick: at the end of the first one the daemon says that it is ready, to a service manager that does not
/// listen before that.
fn from_the_first_tick(dir: &Path, command: &mut Command) -> (Vec<Value>, String) {
    let manager = dir.join("notify");
    let notify = UnixDatagram::bind(&manager).unwrap();
    notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Until the kernel takes no more: whoever sends next has to wait.
    let full = UnixDatagram::unbound().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.send_to(b"x", &manager).is_ok() {}
    let mut child = child_of(command.env("NOTIFY_SOCKET", &manager).env("SUREFOOT_LOG", "info"));
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let (mut said, mut line) = (String::new(), String::new());
    while !line.contains("upper schedulers: ") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended without a socket: {said}");
        said += &line;
    }
    let client = UnixStream::connect(dir.join("upper.sock")).unwrap();
    let drain = std::thread::spawn(move || {
        let mut text = [0; 16];
        while !text.starts_with(b"STOPPING=1") {
            match notify.recv(&mut text) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                told => drop(told.expect("it ends within a minute")),
            }
        }
    });
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        log.read_to_string(&mut rest).unwrap();
        rest
    });
    let heard = BufReader::new(client).lines().map(|l| serde_json::from_str(&l.unwrap()).unwrap()).collect();
    assert!(child.wait().unwrap().success());
    drain.join().unwrap();
    (heard, said + &rest.join().unwrap())
}

fn child_of(command: &mut Command) -> std::process::Child {
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// An overloaded node tells over its socket who cannot be placed, who would best leave and who will be slower, each once when it
/// begins and once when it ends; the log says the same, the journal every report, and the file goes with the daemon.
#[test]
fn an_overloaded_node_tells_its_upper_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    // As kill -9 leaves it.
    drop(UnixListener::bind(dir.path().join("upper.sock")).unwrap());
    let (heard, log) = from_the_first_tick(dir.path(), &mut node(dir.path(), "[upper]\nsocket = \"upper.sock\"\n"));
    assert!(!dir.path().join("upper.sock").exists());

    let hello = &heard[0];
    assert_eq!((&hello["event"], &hello["schema"], &hello["seq"], &hello["in_force"]), (&"hello".into(), &1.into(), &0.into(), &0.into()));
    assert_eq!((&hello["policy"], &hello["platform"]), (&"osml-plus".into(), &"server-1".into()));
    assert!(hello["t_ms"].as_u64().is_some_and(|t| t <= 100), "{hello}");
    // Replay: what is in force after each event.
    let mut in_force: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut begun: BTreeMap<&str, u64> = BTreeMap::new();
    for (n, e) in heard[1..].iter().enumerate() {
        assert_eq!(e["seq"], n + 1, "{e}");
        let text = |key: &str| e[key].as_str().unwrap_or_else(|| panic!("{key}: {e}")).to_string();
        let (t_ms, since_ms) = (e["t_ms"].as_u64().unwrap(), e["since_ms"].as_u64().unwrap());
        assert!(!text("why").is_empty() && e["at_ms"].is_null(), "{e}");
        if e["event"] == "resolved" {
            assert_eq!(in_force.remove(&(text("service"), text("of"))), Some(since_ms), "{e}");
        } else {
            assert_eq!(e["qos"].is_number(), e["event"] == "expected-slowdown", "{e}");
            let before = in_force.insert((text("service"), text("event")), since_ms);
            // Told again only because it has changed.
            assert_eq!(since_ms, before.unwrap_or(t_ms), "{e}");
            *begun.entry(e["event"].as_str().unwrap()).or_default() += u64::from(before.is_none());
        }
    }
    let has = |event: &str, service: &str| heard.iter().any(|e| e["event"] == event && e["service"] == service);
    assert!(has("cannot-place", "specjbb") && has("migrate", "moses") && has("expected-slowdown", "xapian"), "{begun:?}");
    // It has left at 40 s, and with it all that was said of it.
    let left = heard.iter().find(|e| e["event"] == "resolved" && e["service"] == "specjbb" && e["why"] == "it has left").unwrap();
    assert_eq!(left["t_ms"], 40_000);
    assert!(!in_force.keys().any(|(service, _)| service == "specjbb"));
    // A minute of six hundred ticks is a few dozen lines.
    assert!(heard.len() < 100, "{}", heard.len());

    let journal = fs::read_to_string(dir.path().join("d.jsonl")).unwrap();
    let reports = |kind: &str| journal.matches(&format!("\"report\":\"{kind}\"")).count() as u64;
    for (event, n) in begun {
        assert!(reports(event) >= n, "{event}: {} reports, {n} times told", reports(event));
    }
    assert!(log.contains("moses had better migrate: QoS") && log.contains("cannot place specjbb: "), "{log}");
}

/// A virtual server has a socket where it is named, and not where it is turned off.
#[test]
fn there_is_a_socket_where_it_is_asked_for() {
    for upper in ["", "[upper]\n", "[upper]\non = false\nsocket = \"upper.sock\"\n"] {
        let dir = tempfile::tempdir().unwrap();
        assert!(node(dir.path(), upper).args(["--duration-s", "1"]).output().unwrap().status.success());
        let names = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name());
        assert_eq!(names.filter(|n| n.to_string_lossy().contains("sock")).count(), 0, "{upper}");
    }
}

/// A daemon that was killed leaves its file, which the next one replaces; who connects and does not read is no hindrance.
#[test]
fn a_killed_daemon_leaves_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = node(dir.path(), "[upper]\nsocket = \"upper.sock\"\n");
    command.env("SUREFOOT_LOG", "info").args(["--duration-s", "1000000"]);
    let wait = |command: &mut Command| {
        let mut child = child_of(command);
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("upper schedulers: ") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended without a socket");
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let _never_read = UnixStream::connect(dir.path().join("upper.sock")).unwrap();
        let client = UnixStream::connect(dir.path().join("upper.sock")).unwrap();
        let mut hello = String::new();
        BufReader::new(client).read_line(&mut hello).unwrap();
        assert!(hello.starts_with("{\"event\":\"hello\","), "{hello}");
        child
    };
    let mut killed = wait(&mut command);
    kill(Pid::from_raw(killed.id() as i32), Signal::SIGKILL).unwrap();
    killed.wait().unwrap();
    assert!(fs::symlink_metadata(dir.path().join("upper.sock")).unwrap().file_type().is_socket());
    let mut second = wait(&mut command);
    // Beside one that lives there is no second, with a journal of its own either.
    let config = dir.path().join("node.toml");
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("d.jsonl", "e.jsonl")).unwrap();
    let (code, said) = one_line(&command.env("SUREFOOT_LOG", "off").output().unwrap());
    assert!(code == 1 && said.contains("another process listens there"), "{said}");
    kill(Pid::from_raw(second.id() as i32), Signal::SIGTERM).unwrap();
    assert!(second.wait().unwrap().success());
    assert!(!dir.path().join("upper.sock").exists());
}

/// Where the upper scheduler is asked before services share, and nobody answers, what node.toml says for that case is done; a client
/// hears the questions.
#[test]
fn silence_is_answered_as_configured() {
    let shares = |unanswered: &str| {
        let dir = tempfile::tempdir().unwrap();
        let upper = format!("[upper]\nsocket = \"upper.sock\"\nask = true\nunanswered = \"{unanswered}\"\n");
        let (heard, log) = from_the_first_tick(dir.path(), &mut node(dir.path(), &upper));
        let asked: Vec<&Value> = heard.iter().filter(|e| e["event"] == "question").collect();
        assert!(!asked.is_empty() && asked.iter().all(|e| e["what"] == "share" && e["answer_ms"] == 300), "{heard:?}");
        assert!(heard.iter().skip(1).enumerate().all(|(n, e)| e["seq"] == n + 1), "{heard:?}");
        assert!(log.contains("no upper scheduler has answered within 300 ms"), "{log}");
        let journal = fs::read_to_string(dir.path().join("d.jsonl")).unwrap();
        journal.matches("\"action\":\"share\"").count()
    };
    assert_eq!(shares("deny"), 0);
    assert!(shares("allow") > 0);
}
