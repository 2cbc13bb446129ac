//! The command line: one line for each mistake, the right exit code, nothing half-written.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]
#![allow(unsafe_code, reason = "kill of a child of its own")]

mod common;

use common::punctual::first_punctual;
use common::{receive, Running};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use surefoot_loadgen::feed::FeedDatagram;
use surefoot_loadgen::inproc::{Behaviour, InProcessServer};
use surefoot_loadgen::protocol::ProtocolKind;
use surefoot_loadgen::saturate::{Limit, Saturation};
use surefoot_loadgen::Report;

fn loadgen(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_surefoot-loadgen")).args(args).output().unwrap()
}

fn one_error(args: &[&str], code: i32, says: &[&str]) {
    let out = loadgen(args);
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(out.stdout.is_empty(), "{args:?}");
    for part in says {
        assert!(err.contains(part), "{args:?}: `{part}` missing in: {err}");
    }
}

/// Bad input: exit code 2, and the line names the option and the remedy.
#[test]
fn bad_input_is_one_line_and_two() {
    let t = "127.0.0.1:11211";
    one_error(&["--target", t, "--rps", "5", "--protocol", "ftp"], 2, &["--protocol", "memcached, resp or http"]);
    one_error(&["--target", t, "--rps", "-5"], 2, &["-5", "above 0"]);
    one_error(&["--target", t, "--rps", "0"], 2, &["above 0"]);
    one_error(&["--target", t, "--load", "0s:2000,5s:-1"], 2, &["-1", "above 0"]);
    one_error(&["--target", t], 2, &["--rps", "--load"]);
    one_error(&["--rps", "5"], 2, &["--target"]);
    one_error(&["--target", "127.0.0.1", "--rps", "5"], 2, &["HOST:PORT"]);
    one_error(&["--target", "192.0.2.1:80", "--rps", "5"], 2, &["192.0.2.1", "--allow-remote"]);
    one_error(&["--target", t, "--rps", "5", "--duration", "soon"], 2, &["--duration", "10s"]);
    one_error(&["--target", t, "--rps", "5", "--set-ratio", "2"], 2, &["--set-ratio"]);
    one_error(&["--target", t, "--rps", "5", "--cpu", "9999-0"], 2, &["--cpu"]);
    one_error(&["--target", t, "--rps", "5", "--threads", "0"], 2, &["--threads"]);
    one_error(&["--target", t, "--rps", "5", "--threads", "4", "--connections", "2"], 2, &["--connections"]);
    one_error(&["--target", t, "--rps", "5", "--protocol", "http", "--path", "a b"], 2, &["--path"]);
    one_error(&["--target", t, "--rps", "5", "--arrivals", "fair"], 2, &["poisson, constant or bursty"]);
    one_error(&["--target", t, "--rps", "5", "--burst-factor", "3"], 2, &["--arrivals bursty"]);
    one_error(&["--target", t, "--rps", "5", "--arrivals", "bursty", "--burst-factor", "30"], 2, &["--burst-factor", "at most 10"]);
    one_error(&["--target", t, "--rps", "5", "--arrivals", "bursty", "--states", "1:1s"], 2, &["--states", "2 to 64"]);
    one_error(&["--target", t, "--rps", "5", "--diurnal", "0.5"], 2, &["--diurnal", "0.6:10min"]);
    one_error(&["--target", t, "--load-file", "no/such.csv"], 2, &["no/such.csv", "SECONDS,RPS"]);
    one_error(&["--target", t, "--rps", "5", "--load-file", "x"], 2, &["--load-file"]);
    one_error(&["--target", t, "--rps", "5", "--warmup", "auto", "--warmup-limit", "long"], 2, &["--warmup-limit"]);
    one_error(&["saturate", "--target", t], 2, &["--help"]);
    one_error(&["saturate", "--target", t, "--qos-target-ms", "0"], 2, &["--qos-target-ms", "above 0"]);
    one_error(&["saturate", "--target", t, "--qos-target-ms", "5", "--resolution", "0"], 2, &["--resolution"]);
    one_error(&["saturate", "--target", t, "--qos-target-ms", "5", "--rps", "5"], 2, &["--rps"]);
    one_error(&["saturate", "--qos-target-ms", "5"], 2, &["--target"]);
    one_error(&["--target", t, "--rps", "5", "--qos-target-ms", "-1"], 2, &["--help"]);
    one_error(&["windows", "no/such.jsonl"], 2, &["no/such.jsonl", "--windows"]);
    one_error(&["--target", t, "--rps", "5", "--nonsense"], 2, &["--nonsense", "--help"]);
    one_error(&["--target", t, "--rps", "many"], 2, &["many"]);
}

/// Nothing listens: exit code 1, the address and what to check; no file is left behind.
#[test]
fn refused_connection() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report.json");
    let windows = dir.path().join("windows.jsonl");
    let (o, w) = (out.to_str().unwrap(), windows.to_str().unwrap());
    one_error(
        &["--target", &address, "--rps", "5", "--out", o, "--windows", w],
        1,
        &[&format!("nothing listens on {address}"), "start the service or check --target"],
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Files that the caller names are made, not taken: what is no plain file, what is read, and what is there already stays, unless told so;
/// and that is said before anything is sent.
#[test]
fn files_in_the_way_stay() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let fifo = std::ffi::CString::new(at("fifo")).unwrap();
    // SAFETY: a string that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    std::fs::write(at("old"), "precious").unwrap();
    std::fs::write(at("day.csv"), "time_s,rps\n0,5\n").unwrap();
    std::os::unix::fs::symlink(at("old"), at("link")).unwrap();
    // Nothing listens: whoever came so far would say that.
    let (fixed, trace) = (["--target", "127.0.0.1:1", "--rps", "5"], ["--target", "127.0.0.1:1", "--load-file", &at("day.csv")]);
    for option in ["--out", "--windows"] {
        for (name, words) in [("fifo", "is a FIFO and no plain file"), ("link", "is a link"), ("old", "is there already. Give --overwrite")]
        {
            one_error(&[&fixed[..], &[option, &at(name)]].concat(), 2, &[option, words]);
        }
        one_error(&[&trace[..], &["--overwrite", option, &at("day.csv")]].concat(), 2, &[option, "(--load-file "]);
        one_error(&[&fixed[..], &["--overwrite", option, &at("old")]].concat(), 1, &["nothing listens"]);
    }
    one_error(&[&fixed[..], &["--out", &at("new"), "--windows", &at("new")]].concat(), 2, &["name one file"]);
    let search = ["saturate", "--target", "127.0.0.1:1", "--qos-target-ms", "5"];
    one_error(&[&search[..], &["--out", &at("old")]].concat(), 2, &["--out", "is there already"]);
    one_error(&[&search[..], &["--overwrite", "--journal", &at("old"), "--out", &at("old")]].concat(), 2, &["--out", "(--journal "]);
    for (name, words) in [("fifo", "is a FIFO"), ("link", "is a link")] {
        one_error(&[&search[..], &["--journal", &at(name)]].concat(), 2, &["--journal", words]);
    }
    assert_eq!((std::fs::read_to_string(at("old")).unwrap().as_str(), std::fs::read_dir(dir.path()).unwrap().count()), ("precious", 4));
}

/// The wrong protocol is told, not measured.
#[test]
fn wrong_protocol_is_named() {
    let server = InProcessServer::start(ProtocolKind::Resp, Behaviour::default()).unwrap();
    let target = server.address.to_string();
    let behaviour = Behaviour { value_bytes: 5, ..Behaviour::default() };
    let http = InProcessServer::start(ProtocolKind::Http, behaviour).unwrap();
    drop(http);
    let out =
        loadgen(&["--target", &target, "--rps", "200", "--protocol", "http", "--duration", "200ms", "--warmup", "0s", "--grace", "100ms"]);
    assert_eq!(out.status.code(), Some(1));
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("no request to"), "{err}");
}

/// A server half as fast as the load is still at the requests of the warm-up when the run ends: overloaded, not silent.
#[test]
fn an_overloaded_server_is_not_silent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    // Answers one request for every two that it gets.
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut answers = stream.try_clone().unwrap();
        for (n, line) in BufReader::new(stream).lines().enumerate() {
            if line.is_err() || n % 2 == 1 && answers.write_all(b"END\r\n").is_err() {
                return;
            }
        }
    });
    let load = ["--target", &target, "--rps", "1000", "--protocol", "memcached", "--no-preload", "--set-ratio", "0"];
    let shape = ["--connections", "1", "--pipeline", "1000", "--warmup", "400ms", "--duration", "100ms", "--grace", "0s", "--json"];
    let out = loadgen(&[&load[..], &shape[..]].concat());
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{err}");
    let report: Report = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report.completed == 0 && report.unfinished > 0 && report.achieved_rps > 0.0, "{report:?}");
    server.join().unwrap();
}

/// A run prints and writes the same report; a missing feed reader costs one warning and is counted.
#[test]
fn report_to_stdout_and_file() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.json");
    let feed = dir.path().join("nobody.sock");
    let out = loadgen(&[
        "--target",
        &server.address.to_string(),
        "--load",
        "0s:500,300ms:1500",
        "--duration",
        "600ms",
        "--warmup",
        "100ms",
        "--service",
        "memcached",
        "--json",
        "--out",
        path.to_str().unwrap(),
        "--feed",
        feed.to_str().unwrap(),
    ]);
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{err}");
    assert_eq!(err.matches("warning").count(), 1, "{err}");
    let printed: Report = serde_json::from_slice(&out.stdout).unwrap();
    let written: Report = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(printed, written);
    assert!(printed.feed_undelivered.unwrap() >= 7 && printed.feed_delivered == Some(0));
    assert_eq!(printed.nominal_rps, 1000.0);
    assert_eq!(printed.load.len(), 2);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "a temporary file was left");
}

/// An interrupt ends the run early with a report that says so.
#[test]
fn interrupt_still_reports() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("feed.sock");
    let reader = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_surefoot-loadgen"))
        .args(["--target", &server.address.to_string(), "--rps", "500", "--duration", "600s", "--warmup", "0s", "--json"])
        .args(["--feed", socket.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Running(child);
    // Two windows in, by its own word.
    let mut buf = vec![0; 64 * 1024];
    receive(&reader, &mut buf);
    receive(&reader, &mut buf);
    // SAFETY: a child of this test that has not been waited for.
    unsafe { libc::kill(child.0.id() as libc::pid_t, libc::SIGINT) };
    let mut text = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let r: Report = serde_json::from_str(&text).unwrap();
    assert!(r.interrupted && r.completed > 0 && r.duration_ms < 60_000.0, "{r:?}");
    assert_eq!(r.completed, r.offered);
}

/// Commands on stdin: each is answered on stderr, and the end of stdin ends nothing.
#[test]
fn commands_on_stdin() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_surefoot-loadgen"))
        .args([
            "--target",
            &server.address.to_string(),
            "--rps",
            "500",
            "--duration",
            "400ms",
            "--warmup",
            "0s",
            "--json",
            "--control",
            "-",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"faster\nrps 900").unwrap();
    let out = child.wait_with_output().unwrap();
    let err = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(0), "{err}");
    assert!(err.contains("error: `faster` is no command: write rps 12000, status or stop\n") && err.contains("ok rps 900 from "), "{err}");
    let r: Report = serde_json::from_slice(&out.stdout).unwrap();
    assert!(!r.interrupted && r.commands.len() == 1 && r.commands[0].rps == 900.0, "{:?}", r.commands);
    assert!(r.nominal_rps >= 500.0 && r.nominal_rps < 900.0, "{}", r.nominal_rps);
}

/// A search over a real socket: the bound holds easily, so it is the result, and every run of it is in the journal.
#[test]
fn a_search_writes_its_curve() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (curve, journal) = (dir.path().join("curve.json"), dir.path().join("search.jsonl"));
    let address = server.address.to_string();
    let args = ["saturate", "--target", &address, "--qos-target-ms", "60000", "--from", "1000", "--max-rps", "3000"];
    let times = ["--shortest", "50ms", "--longest", "2s", "--warmup", "0s", "--points", "0", "--lag-limit-ms", "60000"];
    let files = ["--overwrite", "--out", curve.to_str().unwrap(), "--journal", journal.to_str().unwrap()];
    // A noisy machine may leave a rate undecided, and the search goes on below it.
    let searched = first_punctual("a search up to its bound takes three rates", || {
        let _ = std::fs::remove_file(&journal);
        let out = loadgen(&[&args[..], &times, &files].concat());
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(0), "{err}");
        let found: Saturation = serde_json::from_slice(&std::fs::read(&curve).unwrap()).unwrap();
        let rates: Vec<f64> = found.curve.iter().map(|p| p.rps).collect();
        match rates == [1000.0, 2000.0, 3000.0] {
            true => Ok((found, err, out.stdout)),
            false => Err(err),
        }
    });
    let Some((found, err, stdout)) = searched else { return };
    assert_eq!(found.observed_max_rps, Some(3000.0), "{err}");
    assert_eq!((found.limited_by, err.matches(" above)").count()), (Limit::MaxRps, 3), "{err}");
    let said = String::from_utf8(stdout).unwrap();
    assert!(said.contains(&found.summary), "{said}");
    // A file of somebody else's is no journal, with or without lines, and stays as it is.
    let foreign = dir.path().join("foreign.json");
    for text in ["{\"a\": 1}", "{\"a\":\n1}\n"] {
        std::fs::write(&foreign, text).unwrap();
        let refused = loadgen(&[&args[..], &times, &["--journal", foreign.to_str().unwrap()]].concat());
        assert_eq!((refused.status.code(), std::fs::read_to_string(&foreign).unwrap().as_str()), (Some(1), text));
    }
    // Once more from the journal: the same, and without a service to load.
    drop(server);
    std::fs::remove_file(&curve).unwrap();
    let again = loadgen(&[&args[..], &times, &files].concat());
    assert_eq!(again.status.code(), Some(0), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(serde_json::from_slice::<Saturation>(&std::fs::read(&curve).unwrap()).unwrap(), found);
}

/// Windows of a load generator that is not here come to a feed's socket here, each once; what writes no windows is an error that says so,
/// and whoever ends the relay ends its command.
#[test]
fn a_relay_passes_windows_on() {
    let server = InProcessServer::start(ProtocolKind::Resp, Behaviour { value_bytes: 10, ..Behaviour::default() }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("feed.sock");
    let feed = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let (at, program) = (socket.to_str().unwrap(), env!("CARGO_BIN_EXE_surefoot-loadgen"));
    let target = server.address.to_string();
    let far = ["--target", &target, "--protocol", "resp", "--rps", "500", "--no-preload", "--service", "far", "--feed", "-"];
    fn relay<'a>(at: &'a str, command: &[&'a str]) -> Vec<&'a str> {
        [&["relay", "--feed", at, "--"], command].concat()
    }
    let out = loadgen(&relay(at, &[&[program], &far[..], &["--warmup", "0s", "--duration", "500ms"]].concat()));
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    feed.set_nonblocking(true).unwrap();
    let mut buf = vec![0; 256 * 1024];
    let all: Vec<FeedDatagram> =
        std::iter::from_fn(|| feed.recv(&mut buf).ok().map(|n| serde_json::from_slice(&buf[..n]).unwrap())).collect();
    assert!(all.len() >= 5 && all.iter().all(|d| d.service == "far"), "{all:?}");
    // 250 expected, standard deviation 16.
    let (offered, answered) = (all.iter().map(|d| d.offered).sum::<u64>(), all.iter().map(|d| d.count).sum::<u64>());
    assert!((170..330).contains(&offered) && answered <= offered, "{offered} {answered}");

    one_error(&["relay", "--feed", at], 2, &["--help"]);
    one_error(&relay(at, &["/no/such/program"]), 1, &["/no/such/program", "is it installed?"]);
    one_error(&relay(at, &["sh", "-c", "exit 3"]), 1, &["exit status: 3"]);
    one_error(&relay(at, &["true"]), 1, &["wrote no window", "--feed -"]);
    one_error(&relay(at, &["echo", "hello"]), 1, &["\"hello\" is no window", "--feed -"]);
    one_error(&["--target", &target, "--rps", "5", "--feed", "-", "--json"], 2, &["--feed -", "--out FILE"]);

    // Ten minutes, but for whoever ends it.
    let long = [&[program], &far[..], &["--duration", "600s"]].concat();
    let mut running = Running(Command::new(program).args(relay(at, &long)).spawn().unwrap());
    feed.set_nonblocking(false).unwrap();
    receive(&feed, &mut buf);
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(running.0.id() as libc::pid_t, libc::SIGTERM) };
    common::until(|| running.0.try_wait().unwrap().is_some_and(|s| s.success()));
    // And so does a reader that goes.
    let mut running = Running(Command::new(long[0]).args(&long[1..]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"service\":\"far\""), "{first}");
    common::until(|| running.0.try_wait().unwrap().is_some());
}
