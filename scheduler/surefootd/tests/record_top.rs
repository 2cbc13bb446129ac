//! `surefootd record` and `surefootd top`, on virtual servers.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]
#![allow(unsafe_code, reason = "a pseudo terminal")]

mod common;

use arrow_array::{Array, Float64Array, Int64Array, StringArray};
use common::{ok, one_line, path, root, run, surefootd};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// A node.toml for a workload of the demo: a service and a job, and a second service from 2 s on.
fn config(dir: &Path, more: &str) -> String {
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let file = dir.join("node.toml");
    fs::write(&file, format!("workload = \"{}\"\n{more}\n", path(&workload))).unwrap();
    path(&file).into()
}

fn lines(file: &Path) -> Vec<Value> {
    fs::read_to_string(file).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn batches(file: &Path) -> Vec<arrow_array::RecordBatch> {
    ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap().build().unwrap().map(|b| b.unwrap()).collect()
}

/// Start the binary and wait for a line on its standard error.
fn start(args: &[&str], until: &str) -> Child {
    let mut child = surefootd().env("SUREFOOT_LOG", "info").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(until) {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "{args:?} ended before \"{until}\"");
    }
    child
}

/// Ask it to end; its standard output.
fn terminate(child: Child) -> String {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{:?}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// A recording holds what the daemon saw at every tick, and Parquet what JSON lines hold.
#[test]
fn a_recording_is_what_the_daemon_saw() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (config, events) = (config(dir.path(), "realtime = false\nmetrics_port = 0\nseed = 7"), at("events.jsonl"));
    let common = ["--server", "virtual:server-1", "--config", &config, "--duration-s", "5"];
    ok(&[&["run", "--policy", "unmanaged", "--events", path(&events)], &common[..]].concat());
    ok(&[&["record", "--out", path(&at("r.jsonl"))], &common[..]].concat());
    let said: Value = serde_json::from_str(&ok(&[&["record", "--json", "--out", path(&at("r.parquet"))], &common[..]].concat())).unwrap();

    let (seen, recorded) = (lines(&events), lines(&at("r.jsonl")));
    // Ticks 0 to 50 of a service and a job, and from 2 s on of a second service.
    assert_eq!((seen.len(), recorded.len()), (133, 133));
    for (e, r) in seen.iter().zip(&recorded) {
        let same = [
            ("service", "case_id"),
            ("t_ms", "t_ms"),
            ("p99_ms", "latency_p99_ms"),
            ("achieved_rps", "achieved_rps"),
            ("mba_pct", "mba_pct"),
            ("feed", "feed"),
        ];
        for (a, b) in same {
            assert_eq!(e[a], r[b], "{a} at {}", e["t_ms"]);
        }
        assert_eq!(e["count"].as_i64().unwrap_or(0), r["count"].as_i64().unwrap());
        for (name, value) in e["features"].as_object().unwrap() {
            assert_eq!(*value, r[name], "{name} at {}", e["t_ms"]);
        }
        assert_eq!(r["neighbours"].as_array().unwrap().len(), if r["t_ms"].as_i64() < Some(2000) { 1 } else { 2 });
    }
    assert!(recorded.iter().any(|r| r["latency_p99_ms"].as_f64() > Some(0.0) && r["verdict"] == "valid"));

    assert_eq!((&said["rows"], &said["observations"], &said["ended"]), (&133.into(), &51.into(), &"duration".into()));
    let mut n = 0;
    for b in batches(&at("r.parquet")) {
        let float = |name: &str| b.column_by_name(name).unwrap().as_any().downcast_ref::<Float64Array>().unwrap().clone();
        let id = b.column_by_name("case_id").unwrap().as_any().downcast_ref::<StringArray>().unwrap().clone();
        let t_ms = b.column_by_name("t_ms").unwrap().as_any().downcast_ref::<Int64Array>().unwrap().clone();
        for i in 0..b.num_rows() {
            let r = &recorded[n];
            assert_eq!((id.value(i), t_ms.value(i)), (r["case_id"].as_str().unwrap(), r["t_ms"].as_i64().unwrap()));
            for name in ["rps", "ipc", "mbl_mbps", "nb_cores", "latency_p99_ms"] {
                let column = float(name);
                // Reading a number from text may cost its last bit.
                let (got, want) = (column.is_valid(i).then(|| column.value(i)), r[name].as_f64());
                let same = got.zip(want).map_or(got == want, |(g, w)| (g - w).abs() <= 1e-12 * w.abs());
                assert!(same, "{name} in row {n}: {got:?}, not {want:?}");
            }
            n += 1;
        }
    }
    assert_eq!(n, 133);
}

/// SIGTERM ends a recording with a whole file under its own name.
#[test]
fn a_signal_leaves_a_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.parquet");
    let config = config(dir.path(), "realtime = true");
    let child = start(&["record", "--json", "--server", "virtual:server-1", "--config", &config, "--out", path(&file)], "recording");
    let said: Value = serde_json::from_str(&terminate(child)).unwrap();
    assert_eq!(said["ended"], "signal");
    let rows: usize = batches(&file).iter().map(|b| b.num_rows()).sum();
    assert!(rows >= 2 && said["rows"] == rows, "{rows} {said}");
    assert!(!dir.path().join("r.parquet.tmp").exists());
}

/// What cannot be recorded is one line that names the remedy, and leaves no file.
#[test]
fn bad_input_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "");
    let out = dir.path().join("no/such/r.parquet");
    let bad = |args: &[&str], why: &str| {
        let (code, text) = one_line(&run(&[&["record"], args].concat()));
        assert!(code == 2 && text.contains(why), "{code} {text}");
    };
    bad(&["--server", "virtual:server-1", "--config", &config, "--out", path(&out)], "Make it first");
    bad(&["--server", "virtual:server-1", "--config", &config, "--out", path(dir.path())], "is a folder");
    let out = dir.path().join("r.parquet");
    bad(&["--server", "virtual:server-1", "--out", path(&out)], "--config: is missing, and with it `workload`");
    bad(&["--server", "local", "--out", path(&out)], "[[service]]");
    bad(&["--server", "nowhere", "--out", path(&out)], "virtual:PLATFORM");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only node.toml");
}

/// A running daemon shows itself; one that has ended is said to be gone.
#[test]
fn top_shows_a_running_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(dir.path(), &format!("metrics_port = {port}"));
    // Said after the first tick.
    let shadow = ["--shadow", "equal-share"];
    let run_it = [&["run", "--policy", "unmanaged", "--server", "virtual:server-1", "--config", &config], &shadow[..]].concat();
    let child = start(&run_it, "2 of 3 services");
    let url = format!("http://127.0.0.1:{port}");
    let status: Value = serde_json::from_str(&ok(&["top", "--json", "--url", &url])).unwrap();
    let frame = ok(&["top", "--once", "--config", &config]);
    let (code, text) = one_line(&run(&["top", "--url", &url]));
    terminate(child);

    assert_eq!((&status["policy"], &status["platform"]), (&"unmanaged".into(), &"server-1".into()));
    let services = status["services"].as_array().unwrap();
    assert_eq!(services.len(), 2);
    assert_eq!((&services[0]["cores"], &services[0]["ways"]), (&status["cores"], &status["ways"]));
    assert_eq!(status["actions"].as_array().unwrap().len(), 2);
    assert!(["fresh", "idle"].contains(&services[0]["feed"].as_str().unwrap()), "{}", services[0]);
    assert_eq!(services[1]["feed"], "not-needed");
    assert!(frame.starts_with("surefoot  unmanaged on server-1"), "{frame}");
    for s in services {
        assert!(frame.lines().any(|l| l.starts_with(s["id"].as_str().unwrap()) && l.contains("████████████")), "{frame}");
    }
    // Of 36 cores, which the LC service holds alone under nobody, an equal share takes some.
    let looks_on = &status["shadows"][0];
    assert!(looks_on["so_far"]["policy"] == "equal-share" && looks_on["cores"].as_f64() > Some(1.0), "{looks_on}");
    assert_eq!((&looks_on["so_far"]["disagreement_frac"], &looks_on["regret_qos"]), (&1.0.into(), &Value::Null));
    assert!(frame.lines().any(|l| l.starts_with("equal-share") && l.contains("100.0 %")), "{frame}");
    assert!(frame.contains("place     …        unmanaged: everything") && !frame.contains('\u{1b}'), "{frame}");
    // The tests run without a terminal.
    assert!(code == 2 && text.contains("--once"), "{text}");

    let (code, text) = one_line(&run(&["top", "--once", "--url", &url]));
    assert!(code == 1 && text.contains("no daemon answers") && text.contains("surefootd run"), "{text}");
}

/// Beside 50 clients that say nothing, or what they say byte by byte, or never read, metrics, status and top answer in time.
#[test]
fn slow_clients_silence_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(dir.path(), &format!("metrics_port = {port}"));
    let child = start(&["run", "--policy", "unmanaged", "--server", "virtual:server-1", "--config", &config], "of 3 services");
    let connect = || std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut slow: Vec<std::net::TcpStream> = (0..50).map(|_| connect()).collect();
    for round in 0..5 {
        for (n, client) in slow.iter_mut().enumerate().filter(|(n, _)| n % 3 > 0) {
            // Who was cut off meanwhile is no client any more.
            let _ = client.write_all(if n % 3 == 1 { b"G" } else { b"GET /metrics HTTP/1.1\r\n\r\n" });
        }
        for page in ["/metrics", "/status"] {
            let mut asks = connect();
            // A client's patience: what answers one after the other takes a second or more for each of the 50.
            asks.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            write!(asks, "GET {page} HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = String::new();
            asks.read_to_string(&mut answer).unwrap_or_else(|e| panic!("{page}, round {round}: {e}"));
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{page}: {answer}");
        }
        // It gives up by itself.
        assert!(ok(&["top", "--once", "--config", &config]).starts_with("surefoot  unmanaged"));
    }
    drop(slow);
    terminate(child);
}

/// A terminal of so many columns and rows, and a program in it.
struct Terminal {
    keys: File,
    drawn: Receiver<Vec<u8>>,
    /// All that was drawn since the last wait.
    text: String,
    child: Child,
    /// The program's side, which keeps the settings.
    inside: OwnedFd,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: 30, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointers are to locals; a null name and null settings are allowed.
        assert_eq!(unsafe { libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) }, 0);
        // SAFETY: two descriptors of our own, just opened.
        let (keys, inside) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let end = || Stdio::from(inside.try_clone().unwrap());
        let mut command = surefootd();
        command.args(args).stdin(end()).stdout(end()).stderr(Stdio::piped());
        // SAFETY: both calls may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let (send, drawn) = channel();
        let mut from = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut chunk = [0; 65536];
            while let Ok(n) = from.read(&mut chunk) {
                if send.send(chunk[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keys, drawn, text: String::new(), child, inside }
    }

    /// Until this has been drawn.
    fn wait(&mut self, what: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        // What comes after it in the same frame may be waited for next.
        let end = loop {
            if let Some(at) = self.text.find(what) {
                break at + what.len();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.drawn.recv_timeout(left) {
                Ok(more) => self.text += &String::from_utf8_lossy(&more),
                Err(e) => panic!("\"{what}\" is not drawn ({e}): {:?}", self.text),
            }
        };
        self.text.drain(..end);
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: sets the size from a struct that lives through the call.
        assert_eq!(unsafe { libc::ioctl(self.keys.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    fn echoes(&self) -> bool {
        // SAFETY: zeroes are a valid termios, which the call fills.
        let mut t: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::tcgetattr(self.inside.as_raw_fd(), &mut t) }, 0);
        t.c_lflag & libc::ECHO != 0
    }
}

/// In a terminal top draws live, follows its size, says when the daemon is gone and finds it again; q ends it and gives the
/// terminal back as it was.
#[test]
fn top_lives_in_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config(dir.path(), &format!("metrics_port = {port}"));
    let daemon = || start(&["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", &config], "2 of 3 services");
    let child = daemon();
    let mut top = Terminal::start(&["top", "--config", &config]);
    // The other screen, and a frame in it: a bar, and the head of the wide form.
    top.wait("\u{1b}[?1049h");
    top.wait("P99 (half height: target)");
    assert!(!top.echoes());
    top.resize(80, 24);
    top.wait("P99 ms/TARGET QOS");
    top.resize(140, 30);
    top.wait("P99 (half height: target)");
    terminate(child);
    top.wait("no daemon answers");
    let child = daemon();
    // Drawn over the complaint: what differs, which is the head line's time at least, and then a full frame after a resize.
    top.resize(141, 30);
    top.wait("P99 (half height: target)");
    top.keys.write_all(b"q").unwrap();
    top.wait("\u{1b}[?1049l");
    assert!(top.child.wait().unwrap().success() && top.echoes());
    terminate(child);
}
