//! `surefootd eval` and `surefootd run` on virtual servers, as a process.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, one_line, path, root, run, surefootd};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const WORKLOAD: &str = r#"
platform = "server-1"
duration_s = 20
[[lc]]
service = "moses"
load = 0.4
[[lc.change]]
at_s = 8
load = 0.5
[[lc]]
service = "img-dnn"
rps = 2000
arrive_s = 2
leave_s = 15
[[be]]
job = "blackscholes"
arrive_s = 1
"#;

fn workload(dir: &Path, text: &str) -> PathBuf {
    let file = dir.join("w.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Rows of rows.csv without the two measured columns, by name.
fn rows(out: &Path) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(out.join("rows.csv")).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|l| {
            // The one quoted cell holds commas and doubled quotes only.
            let mut cells: Vec<String> = vec![];
            let (mut cell, mut quoted) = (String::new(), false);
            for c in l.chars() {
                match c {
                    '"' => quoted = !quoted,
                    ',' if !quoted => cells.push(std::mem::take(&mut cell)),
                    c => cell.push(c),
                }
            }
            cells.push(cell);
            assert_eq!(cells.len(), names.len());
            let named = names.iter().map(|n| n.to_string()).zip(cells);
            named.filter(|(n, _)| !n.starts_with("decision_us")).collect()
        })
        .collect()
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(n, _)| n == name).unwrap().1
}

/// One row per workload x policy x seed, equal whatever the number of threads; time lines of the first seed.
#[test]
fn rows_are_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let all = ["1", "3"].map(|threads| {
        let out = dir.path().join(threads);
        // A blank after a comma is none of a name's.
        let args = ["--policies", "unmanaged, parties-be", "--platform", "server-1", "--seeds", "2", "--threads", threads];
        let said = ok(&[&["eval", "--workloads", path(&file)], &args[..], &["--out", path(&out)]].concat());
        assert!(said.starts_with("runs with seed 1 of 2:\n") && said.contains("\nall runs:\n"), "{said}");
        assert!(said.contains(" crossings ") && said.contains("\ncrossings A+B: "), "what a+b is stands below the table: {said}");
        assert!(out.join("timelines.parquet").metadata().unwrap().len() > 0);
        (rows(&out), fs::read(out.join("timelines.parquet")).unwrap())
    });
    assert_eq!(all[0].0.len(), 4);
    assert_eq!(all[0], all[1]);
    let parties = all[0].0.iter().find(|r| cell(r, "policy") == "parties-be").unwrap();
    assert_eq!(cell(parties, "converged"), "true");
    // After 15 s only moses is left: EMU is its load.
    assert_eq!(cell(parties, "emu").parse::<f64>().map(|x| x > 0.49 && x <= 0.8), Ok(true), "{}", cell(parties, "emu"));
    // All that is offered can be met.
    let number = |name: &str| cell(parties, name).parse::<f64>().unwrap();
    assert!((number("oracle_emu") - number("offered_load")).abs() < 1e-9 && number("emu") <= number("oracle_emu") + 1e-9);
    let unmanaged = all[0].0.iter().find(|r| cell(r, "policy") == "unmanaged").unwrap();
    let violation = |r: &[(String, String)]| cell(r, "qos_violation_s").parse::<f64>().unwrap();
    assert!(violation(parties) < violation(unmanaged));
    assert_eq!(cell(unmanaged, "converged"), "false");
    assert_eq!(cell(unmanaged, "convergence_s"), "");
}

/// Loads with shapes: the same rows and time lines on one thread and on two, other ones for other seeds, and a bad shape is refused.
#[test]
fn shaped_loads_are_deterministic() {
    let dir = tempfile::tempdir().unwrap();
    let shapes =
        "load = 0.4\n[lc.bursts]\nlevels = [0.8, 1.6]\ndwell_s = [1.5, 0.5]\n[lc.day]\nday_s = 20\ntrace = \"autothrottle-noisy\"\n";
    let text = WORKLOAD.replacen("load = 0.4\n", shapes, 1);
    let file = workload(dir.path(), &text);
    let all = ["1", "2"].map(|threads| {
        let out = dir.path().join(threads);
        let args = ["--policies", "unmanaged,parties-be", "--platform", "server-1", "--seeds", "2", "--threads", threads];
        ok(&[&["eval", "--workloads", path(&file)], &args[..], &["--out", path(&out)]].concat());
        let what: Value = serde_json::from_str(&fs::read_to_string(out.join("eval.json")).unwrap()).unwrap();
        assert_eq!(what["traces"]["autothrottle-noisy"].as_str().map(str::len), Some(64));
        (rows(&out), fs::read(out.join("timelines.parquet")).unwrap())
    });
    assert_eq!(all[0], all[1]);
    let of = |policy: &str, name: &str| {
        all[0].0.iter().filter(|r| cell(r, "policy") == policy).map(|r| cell(r, name).to_string()).collect::<Vec<_>>()
    };
    // What is offered is the seed's, whatever the policy; no one partition is best for it.
    let offered = of("parties-be", "offered_load");
    assert!(offered == of("unmanaged", "offered_load") && offered[0] != offered[1], "{offered:?}");
    assert_eq!(of("parties-be", "oracle_emu"), ["", ""]);
    let number = |name: &str| of("parties-be", name)[0].parse::<f64>().unwrap();
    assert!(number("be_throughput_met") <= number("be_throughput") && number("window_requests") >= 100.0);
    let file = workload(dir.path(), &text.replace("[1.5, 0.5]", "[1.5, 50]"));
    let out = dir.path().join("bad");
    let args = ["eval", "--workloads", path(&file), "--policies", "parties-be", "--platform", "server-1", "--out", path(&out)];
    let (code, says) = one_line(&run(&args));
    assert!(code == 2 && says.contains("w.toml:") && says.contains("lc.bursts.dwell_s: 50 is out of range. Give 0.1 to 10"), "{says}");
}

/// Progress for programs, as of a sweep: JSON lines from 0 to all.
#[test]
fn progress_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let args = ["--policies", "unmanaged", "--platform", "server-1", "--seeds", "2", "--progress", "json"];
    let out = run(&[&["eval", "--workloads", path(&file), "--out", path(&dir.path().join("out"))], &args[..]].concat());
    assert!(out.status.success());
    let lines: Vec<Value> = String::from_utf8(out.stderr).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines[0]["done"], &lines[0]["planned"]), (&"start".into(), &0.into(), &2.into()));
    assert_eq!((&lines.last().unwrap()["event"], &lines.last().unwrap()["done"]), (&"end".into(), &2.into()));
}

/// Every example workload is valid on the platform that it names.
#[test]
fn examples_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let set = root().join("workloads/sets/demo");
    let args =
        ["eval", "--workloads", path(&set), "--policies", "unmanaged", "--platform", "server-1", "--json", "--out", path(dir.path())];
    let v: Value = serde_json::from_str(&ok(&args)).unwrap();
    assert!(v["workloads"].as_u64().unwrap() >= 6);
}

/// Each kind of bad input: exit code 2, one line, file, field and remedy; no output folder.
#[test]
fn bad_workloads() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let cases = [
        ("\"moses\"", "\"mosse\"", "lc.service", "Did you mean \"moses\"?"),
        ("\"moses\"", "\"stream\"", "lc.service", "[[be]]"),
        ("\"blackscholes\"", "\"blacksholes\"", "be.job", "Did you mean \"blackscholes\"?"),
        ("\"blackscholes\"", "\"moses\"", "be.job", "[[lc]]"),
        ("rps = 2000", "rps = -2000", "lc.rps", "above 0"),
        ("rps = 2000", "load = 0.3\nrps = 2000", "lc.load", "not both"),
        ("load = 0.4", "load = 0", "lc.load", "above 0"),
        ("load = 0.4", "", "lc.load", "either load or rps"),
        ("load = 0.4", "load = 0.4\nthreads = 0", "lc.threads", "1 to 4096"),
        ("load = 0.4", "load = 0.4\nws_gb = 0", "lc.ws_gb", "0.001 to 100000"),
        ("load = 0.4", "load = 0.4\nws_gb = 4", "lc.ws_gb", "Leave ws_gb out"),
        ("\"blackscholes\"", "\"blackscholes\"\nws_gb = -1", "be.ws_gb", "0.001 to 100000"),
        ("load = 0.4", "load = 0.4\nprio = 1", "prio", "unknown field"),
        ("duration_s = 20", "duration_s = 0", "duration_s", "1 to 86400"),
        ("duration_s = 20", "", "duration_s", "missing field"),
        ("at_s = 8", "at_s = 80", "lc.change.at_s", "less than duration_s"),
        ("leave_s = 15", "leave_s = 1", "lc.leave_s", "later time"),
        ("arrive_s = 1\n", "arrive_s = -1\n", "be.arrive_s", "less than duration_s"),
    ];
    for (from, to, field, remedy) in cases {
        assert!(WORKLOAD.contains(from), "{from}");
        let file = workload(dir.path(), &WORKLOAD.replacen(from, to, 1));
        let args = ["eval", "--workloads", path(&file), "--policies", "parties-be", "--platform", "server-1", "--out", path(&out)];
        let (code, says) = one_line(&run(&args));
        assert_eq!(code, 2, "{says}");
        assert!(says.contains("w.toml") && says.contains(field) && says.contains(remedy), "{to}: {says}");
        assert!(!out.exists(), "{to}");
    }
    // What the file itself lacks is no other field's fault.
    let file = workload(dir.path(), WORKLOAD.replacen("duration_s = 20", "", 1).trim_start());
    let args = ["eval", "--workloads", path(&file), "--policies", "parties-be", "--platform", "server-1", "--out", path(&out)];
    let (_, says) = one_line(&run(&args));
    assert!(says.contains("w.toml: missing field `duration_s`. Mend it") && !says.contains("platform:"), "{says}");
    let file = workload(dir.path(), WORKLOAD);
    let eval = |policies: &str, more: &[&str]| {
        let args = ["eval", "--workloads", path(&file), "--policies", policies, "--platform", "server-1", "--out", path(&out)];
        one_line(&run(&[&args[..], more].concat()))
    };
    let (code, says) = eval("parteis", &[]);
    assert!(code == 2 && says.contains("parteis") && says.contains("parties-be"), "{says}");
    let (code, says) = eval("osml-plus", &[]);
    assert!(code == 2 && says.contains("--bundle"), "{says}");
    let (code, says) = eval("osml-plus", &["--bundle", "/nowhere/b.tar"]);
    assert!(code == 2 && says.contains("/nowhere/b.tar") && says.contains("surefoot bundle build"), "{says}");
    let (code, says) = eval("parties-be", &["--profiles", "/nowhere"]);
    assert!(code == 2 && says.contains("/nowhere"), "{says}");
}

fn node(dir: &Path, more: &str) -> PathBuf {
    let file = dir.join("node.toml");
    fs::write(&file, format!("workload = \"w.toml\"\njournal = \"decisions.jsonl\"\n{more}")).unwrap();
    file
}

/// A port that nobody uses just now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The daemon on a virtual server: metrics, journal, time line, sd_notify, and a clean end on SIGTERM.
#[test]
fn daemon_runs_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    workload(dir.path(), WORKLOAD);
    let port = free_port();
    let config = node(dir.path(), &format!("metrics_port = {port}\n"));
    let socket = dir.path().join("notify.sock");
    let notify = UnixDatagram::bind(&socket).unwrap();
    notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let events = dir.path().join("events.jsonl");
    let mut child = surefootd()
        .args(["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", path(&config), "--events", path(&events)])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "400000")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut buffer = [0; 256];
    let mut told = |want: &str| loop {
        let n = match notify.recv(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            told => told.expect("the daemon tells within a minute"),
        };
        let text = String::from_utf8_lossy(&buffer[..n]).into_owned();
        if text.starts_with(want) {
            return;
        }
        assert!(text.starts_with("WATCHDOG=1"), "{text}");
    };
    told("READY=1");
    told("WATCHDOG=1");
    let get = |what: &str| {
        let mut s = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(s, "GET {what} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        s.read_to_string(&mut text).unwrap();
        text
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let text = get("/metrics");
        if text.contains("surefoot_p99_seconds{service=\"moses\",kind=\"lc\"}")
            && text.contains("surefoot_actions_total{action=\"place\"} ")
            && !text.contains("{action=\"place\"} 0\n")
        {
            assert!(text.starts_with("HTTP/1.1 200 OK") && text.contains("surefoot_cores{service=\"moses\",kind=\"lc\"}"), "{text}");
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get("/other").starts_with("HTTP/1.1 404"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success());
    told("STOPPING=1");
    let lines = |p: &Path| -> Vec<Value> { fs::read_to_string(p).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect() };
    let decisions = lines(&dir.path().join("decisions.jsonl"));
    assert!(decisions.iter().any(|d| d["action"] == "place" && d["why"].as_str().is_some_and(|w| !w.is_empty())));
    let moments = lines(&events);
    assert!(moments.iter().any(|m| m["service"] == "moses" && m["p99_ms"].is_number() && m["load"].is_number()));
}

/// The daemon ends by itself after --duration-s, or with the workload; as fast as it can where told so.
#[test]
fn daemon_ends_with_its_time() {
    let dir = tempfile::tempdir().unwrap();
    workload(dir.path(), WORKLOAD);
    let config = node(dir.path(), "metrics_port = 0\nrealtime = false\n");
    let args = ["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", path(&config)];
    let v: Value = serde_json::from_str(&ok(&args)).unwrap();
    assert_eq!(v["ticks"], 200);
    let v: Value = serde_json::from_str(&ok(&[&args[..], &["--duration-s", "5"]].concat())).unwrap();
    assert_eq!(v["ticks"], 50);
}

/// A workload of another platform is run where `--server` says, and what it was written for is said as eval says it.
#[test]
fn a_workload_of_another_platform_is_named() {
    let dir = tempfile::tempdir().unwrap();
    workload(dir.path(), WORKLOAD);
    let config = node(dir.path(), "metrics_port = 0\nrealtime = false\n");
    let said = |server: &str| {
        let out = run(&["run", "--policy", "parties-be", "--server", server, "--duration-s", "1", "--config", path(&config)]);
        assert!(out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    assert_eq!(said("virtual:server-1"), "");
    let other = said("virtual:server-2");
    assert!(other.contains("WARN") && other.contains("workload w: written for server-1, run on server-2"), "{other}");
}

/// Where metrics are is said once everything is checked, and not before: who reads it finds a daemon there.
#[test]
fn metrics_are_announced_last() {
    let dir = tempfile::tempdir().unwrap();
    workload(dir.path(), WORKLOAD);
    let port = free_port();
    let config = node(dir.path(), &format!("metrics_port = {port}\nrealtime = false\n"));
    let said = |more: &[&str]| {
        let args = ["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", path(&config)];
        let out = surefootd().env("SUREFOOT_LOG", "info").args(args).args(more).output().unwrap();
        String::from_utf8(out.stderr).unwrap()
    };
    let announced = format!("metrics: http://127.0.0.1:{port}/metrics");
    let good = said(&["--duration-s", "1"]);
    assert!(good.contains(&announced), "{good}");
    // xapian and blackscholes come later.
    assert!(good.contains("parties-be on server-1: 1 of 3 services"), "{good}");
    for bad in [["--shadow", "partes"], ["--profiles", "/nowhere"], ["--events", "/proc/none/e"]] {
        let said = said(&bad);
        assert!(!said.contains(&announced) && said.contains(bad[1]), "{said}");
    }
}

/// The example of a virtual server runs as it is shipped, with its paths; its journal is read back by the same file. Services, which
/// only a local run has, are named as ignored.
#[test]
fn the_virtual_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (examples, shipped) = (dir.path().join("examples"), root().join("examples/node-virtual.toml"));
    fs::create_dir(&examples).unwrap();
    std::os::unix::fs::symlink(root().join("workloads").canonicalize().unwrap(), dir.path().join("workloads")).unwrap();
    let file = examples.join("node-virtual.toml");
    // Other tests and daemons may have the port, and a second need not take one.
    let text = fs::read_to_string(shipped).unwrap().replace("realtime = true", "realtime = false");
    let text = text.replace("metrics_port = 19464", "metrics_port = 0");
    assert!(text.contains("\nrealtime = false") && text.contains("\nmetrics_port = 0"), "{text}");
    let run = |more: &str| {
        fs::write(&file, format!("{text}{more}")).unwrap();
        let args = ["run", "--server", "virtual:server-1", "--policy", "parties-be", "--duration-s", "5", "--config", path(&file)];
        let out = surefootd().args(args).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success(), "{said}");
        let v: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(v["ticks"], 50);
        said
    };
    assert_eq!(run(""), "");
    let out = common::run(&["explain", "--config", path(&file)]);
    let (table, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success() && table.contains(" place "), "{table}{said}");
    assert_eq!(said.trim_end(), format!("surefootd: reading {}", examples.join("node-virtual.jsonl").display()));
    let said = run("[[service]]\nservice = \"memcached\"\n[[service]]\nservice = \"stream\"\nid = \"bully\"\n");
    assert!(said.contains("WARN") && said.contains("node-virtual.toml: service: memcached, bully: ignored"), "{said}");
}

/// A metrics port in use, and each bad node.toml: one line that names the field.
#[test]
fn bad_nodes() {
    let dir = tempfile::tempdir().unwrap();
    workload(dir.path(), WORKLOAD);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let start = |more: &str, server: &str| {
        let config = node(dir.path(), more);
        one_line(&run(&["run", "--policy", "parties-be", "--server", server, "--config", path(&config)]))
    };
    let (code, says) = start(&format!("metrics_port = {port}\n"), "virtual:server-1");
    assert!(code == 1 && says.contains("metrics_port") && says.contains(&port.to_string()) && says.contains("another"), "{says}");
    let cases = [
        ("metrics_port = 70000\n", "metrics_port", "0 to 65535"),
        ("cpus = \"0-x\"\n", "cpus", "Write e.g."),
        ("colour = 1\n", "colour", "unknown field"),
        ("[[service]]\nservice = \"a\"\n[[service]]\nservice = \"a\"\n", "service.id", "twice"),
        ("[[service]]\nservice = \"a\"\nkind = \"lc\"\npid = 1\n", "service.qos_target_ms", "p99 target"),
        ("[[service]]\nservice = \"a\"\nkind = \"be\"\npid = 1\ncontainer = \"x\"\n", "service", "Keep one"),
        ("[[service]]\nservice = \"a\"\nthreads = 0\n", "service.threads", "1 to 1024"),
    ];
    for (more, field, remedy) in cases {
        let (code, says) = start(more, "local");
        assert!(code == 2 && says.contains("node.toml") && says.contains(field) && says.contains(remedy), "{says}");
    }
    let (_, says) = start("colour = 1\n", "local");
    assert_eq!(says.matches("realtime").count(), 1, "the fields that there are, once: {says}");
    let (_, says) = start("realtyme = true\n", "local");
    assert!(says.contains("Did you mean \"realtime\"?"), "{says}");
    let (code, says) = start("", "local");
    assert!(code == 2 && says.contains("[[service]]"), "{says}");
    let (code, says) = one_line(&run(&["run", "--policy", "parties-be", "--server", "virtual:server-1"]));
    assert!(code == 2 && says.contains("workload"), "{says}");
}

/// The hidden schema names every column that is written.
#[test]
fn schema_is_what_is_written() {
    let v: Value = serde_json::from_str(&ok(&["schema", "--json"])).unwrap();
    let names = |k: &str| -> Vec<String> { v[k].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap().into()).collect() };
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    ok(&["eval", "--workloads", path(&file), "--policies", "unmanaged", "--platform", "server-1", "--out", path(dir.path())]);
    let csv = fs::read_to_string(dir.path().join("rows.csv")).unwrap();
    assert_eq!(csv.lines().next().unwrap().split(',').collect::<Vec<_>>(), names("eval"));
    let parquet = |f: &str| -> Vec<String> {
        let file = fs::File::open(dir.path().join(f)).unwrap();
        let r = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        r.schema().fields().iter().map(|f| f.name().clone()).collect()
    };
    assert_eq!(parquet("rows.parquet"), names("eval"));
    assert_eq!(parquet("timelines.parquet"), names("timelines"));
    // 36 of every campaign, 17 of those with limits on memory (docs/sweep-output.md).
    assert_eq!(names("samples").len(), 36 + 17);
}

/// A virtual server needs no reset, and check says what a platform has.
#[test]
fn check_and_reset_of_virtual_servers() {
    let v: Value = serde_json::from_str(&ok(&["check", "--server", "virtual:server-2", "--json"])).unwrap();
    let of = |n: &str| v["capabilities"].as_array().unwrap().iter().find(|c| c["name"] == n).unwrap().clone();
    let facts = serde_json::json!({ "name": "server-2", "cores": 64, "core_step": 1.0, "ways": 12, "mb_per_way": 4.0, "mba": true });
    assert_eq!(v["platform"], facts);
    assert!(of("cpus")["detail"].as_str().unwrap().starts_with("64 "));
    assert!(of("l3-cat")["detail"].as_str().unwrap().contains("12 ways"));
    assert_eq!(ok(&["reset", "--server", "virtual:server-2"]).lines().count(), 1);
}

/// Untruths reach policies and nobody else: a bundle of another platform is taken only on demand, the misled decide otherwise than they
/// would, nobody's plan is refused, and the same seed misleads in the same way.
#[test]
fn policies_can_be_misled() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let vectors = root().join("tests/vectors");
    let eval = |platform: &str, harm: &[&str], out: &str| {
        let mut c = surefootd();
        c.args(["eval", "--workloads", path(&file), "--policies", "osml-plus,surefoot", "--platform", platform]);
        c.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))]);
        let done = c.args(["--out", path(&dir.path().join(out))]).args(harm).output().unwrap();
        let csv = fs::read_to_string(dir.path().join(out).join("rows.csv")).unwrap_or_default();
        // Without the columns that are measured time.
        let rows: Vec<String> = csv.lines().map(|l| l.split(',').take(14).collect::<Vec<_>>().join(",")).collect();
        (done, rows)
    };
    let (done, plain) = eval("server-1", &[], "plain");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for harm in ["shuffled-a", "dead-feed", "no-counters", "no-c", "uniform-c"] {
        let (done, rows) = eval("server-1", &["--harm", harm], harm);
        assert!(done.status.success(), "{harm}: {}", String::from_utf8_lossy(&done.stderr));
        assert_ne!(rows, plain, "{harm}");
        assert_eq!(eval("server-1", &["--harm", harm], &format!("{harm}-again")).1, rows, "{harm}");
        let whole = fs::read_to_string(dir.path().join(harm).join("rows.csv")).unwrap();
        let at = whole.lines().next().unwrap().split(',').position(|c| c == "refused_plans").unwrap();
        let from_end = whole.lines().next().unwrap().split(',').count() - at;
        assert!(whole.lines().skip(1).all(|l| l.rsplit(',').nth(from_end - 1) == Some("0")), "{harm}: {whole}");
    }
    let (refused, _) = eval("server-2", &[], "other");
    assert_eq!(one_line(&refused).0, 2);
    let (refused, _) = eval("server-1", &["--harm", "no-models"], "none");
    let (code, says) = one_line(&refused);
    assert!(code == 2 && says.contains("--harm no-models: no model is asked. Leave --bundle out"), "{says}");
    // What is not foreign is no untruth, and its rows would be read as robustness.
    let (refused, _) = eval("server-1", &["--harm", "foreign-bundle"], "own");
    let (code, says) = one_line(&refused);
    assert!(code == 2 && says.contains("--bundle is for server-1, and not foreign there"), "{says}");
    let (taken, rows) = eval("server-2", &["--harm", "foreign-bundle"], "other");
    assert!(taken.status.success() && rows.len() == 3, "{}", String::from_utf8_lossy(&taken.stderr));
}

/// What Model-C experienced is kept, a file a run, also of actions at random; it is the same each time, and changes no row. Where there
/// is none, or a file would be lost, one line says so.
#[test]
fn experience_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let vectors = root().join("tests/vectors");
    let eval = |policies: &str, more: &[&str], out: &str| {
        let mut c = surefootd();
        c.args(["eval", "--workloads", path(&file), "--policies", policies, "--platform", "server-1", "--seeds", "2"]);
        c.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))]);
        c.args(["--out", path(&dir.path().join(out))]).args(more).output().unwrap()
    };
    let rows = |out: &str| {
        let csv = fs::read_to_string(dir.path().join(out).join("rows.csv")).unwrap();
        csv.lines().map(|l| l.split(',').take(14).collect::<Vec<_>>().join(",")).collect::<Vec<_>>()
    };
    let kept = |folder: &str| {
        let files = fs::read_dir(dir.path().join(folder)).unwrap().map(|e| e.unwrap().path());
        files.map(|f| (f.file_name().unwrap().to_owned(), fs::read(&f).unwrap())).collect::<std::collections::BTreeMap<_, _>>()
    };
    let at = |name: &str| path(&dir.path().join(name)).to_string();
    assert!(eval("parties-be,osml-plus", &[], "plain").status.success());
    for (name, harm) in [("own", &[][..]), ("random", &["--harm", "uniform-c"])] {
        let (one, two) = (format!("{name}-1"), format!("{name}-2"));
        for out in [&one, &two] {
            let done = eval("parties-be,osml-plus", &[&["--experience", &at(&format!("e-{out}"))], harm].concat(), out);
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        let (mine, again) = (kept(&format!("e-{one}")), kept(&format!("e-{two}")));
        // Of each seed of the policy that learns.
        assert_eq!(mine.len(), 2);
        assert!(mine.keys().all(|f| f.to_str().unwrap().contains("--osml-plus--")) && mine == again);
        assert!(mine.values().all(|bytes| surefoot_learn::experience::is_experience(bytes)));
        assert_eq!(rows(&one) == rows("plain"), name == "own");
    }
    for (policies, more, says) in [
        ("parties-be,surefoot", vec![], "--experience: no policy of --policies teaches OSML+'s Model-C"),
        ("osml-plus", vec!["--harm", "no-c"], "--experience: with --harm no-c there is no Model-C to teach"),
        ("osml-plus", vec![], ".safetensors: is there already. Give --overwrite"),
    ] {
        let (code, said) = one_line(&eval(policies, &[vec!["--experience", &at("e-own-1")], more].concat(), "refused"));
        assert!(code == 2 && said.contains(says) && !dir.path().join("refused").exists(), "{said}");
    }
}

/// `--set` changes what the policy does and is recorded with the rows; the default by name changes nothing; what cannot be set is one line.
#[test]
fn settings_of_a_policy_can_be_set_and_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let vectors = root().join("tests/vectors");
    let eval = |policies: &str, set: &[&str], out: &str| {
        let mut c = surefootd();
        c.args(["eval", "--workloads", path(&file), "--policies", policies, "--platform", "server-1"]);
        c.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))]);
        let done = c.args(["--out", path(&dir.path().join(out))]).args(set.iter().flat_map(|s| ["--set", s])).output().unwrap();
        (done, dir.path().join(out))
    };
    let read = |out: &Path| serde_json::from_str::<Value>(&fs::read_to_string(out.join("eval.json")).unwrap()).unwrap();
    let (done, plain) = eval("surefoot", &[], "plain");
    assert!(done.status.success() && read(&plain).get("settings").is_none(), "{}", String::from_utf8_lossy(&done.stderr));
    let (_, same) = eval("surefoot", &["surefoot.be.company=0.5"], "same");
    assert_eq!((rows(&same), read(&same).get("settings")), (rows(&plain), None));
    let (done, other) = eval("surefoot", &["surefoot.blind.shares=1", "surefoot.company=4"], "other");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let set = serde_json::json!({ "surefoot.be.company": [4.0], "surefoot.blind.shares": [1.0] });
    assert_eq!(read(&other)["settings"], set);
    assert_ne!(rows(&other), rows(&plain));
    for (policies, set, said) in [
        (
            "surefoot",
            vec!["surefoot.be.compny=1"],
            "--set surefoot.be.compny: there is no such setting. Did you mean \"surefoot.be.company\"?",
        ),
        (
            "surefoot",
            vec!["surefoot.be.company=9"],
            "--set surefoot.be.company: 9 is out of its bounds. Give one number from 0 to 4 (share)",
        ),
        ("surefoot", vec!["surefoot.company=1", "surefoot.be.company=2"], "--set surefoot.be.company: is set twice"),
        ("parties-be", vec!["surefoot.company=1"], "--set surefoot.be.company: surefoot is not among --policies"),
    ] {
        let (done, out) = eval(policies, &set, "refused");
        let (code, says) = one_line(&done);
        assert!(code == 2 && says.contains(said) && !out.exists(), "{set:?}: {says}");
    }
}

/// Harm to models is none to who has none: that is said once, of those alone, and the rows are those of an honest run.
#[test]
fn who_cannot_be_misled_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = workload(dir.path(), WORKLOAD);
    let vectors = root().join("tests/vectors");
    let eval = |policies: &str, harm: &[&str]| {
        let out = dir.path().join(format!("{policies}{}", harm.concat()));
        let mut c = surefootd();
        c.args(["eval", "--workloads", path(&file), "--policies", policies, "--platform", "server-1", "--seeds", "2"]);
        c.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))]);
        let done = c.args(["--out", path(&out)]).args(harm).output().unwrap();
        assert!(done.status.success());
        let csv = fs::read_to_string(out.join("rows.csv")).unwrap();
        let rows: Vec<String> = csv.lines().map(|l| l.split(',').take(14).collect::<Vec<_>>().join(",")).collect();
        (String::from_utf8(done.stderr).unwrap(), rows)
    };
    let (said, honest) = eval("parties-be,equal-share", &[]);
    assert_eq!(said, "");
    for harm in ["shuffled-a", "foreign-bundle"] {
        let (said, rows) = eval("parties-be,equal-share", &["--harm", harm]);
        assert!(said.lines().count() == 1 && said.contains("WARN") && said.contains(&format!("--harm {harm}")), "{said}");
        assert!(said.contains("honest run: parties-be, equal-share"), "{said}");
        assert_eq!(rows, honest, "{harm}");
    }
    let (said, _) = eval("unmanaged,surefoot", &["--harm", "shuffled-a"]);
    assert!(said.trim_end().ends_with(": unmanaged"), "{said}");
    // The policy takes the bundle, and asks A and B alone.
    let (said, of_surefoot) = eval("surefoot", &["--harm", "no-c"]);
    assert!(said.contains("--harm no-c: does nothing to policies without a Model-C") && said.contains("honest run: surefoot"), "{said}");
    assert_eq!(of_surefoot, eval("surefoot", &[]).1);
    // The other service is one that the bundle's models were not made for: who asks them is told.
    let (said, _) = eval("surefoot", &["--harm", "shuffled-a"]);
    assert!(said.lines().count() == 1 && said.contains("img-dnn: not among the services"), "{said}");
    assert_eq!(eval("unmanaged", &["--harm", "dead-feed"]).0, "");
}

/// Working sets of a workload file are its own: what does not fit in the machine is paged.
#[test]
fn working_sets_are_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let violation_s = |lc_gb: f64, be_gb: f64| {
        let text = format!(
            "duration_s = 60\n[[lc]]\nservice = \"memcached-lancet\"\nload = 0.2\nws_gb = {lc_gb}\n[[be]]\njob = \"stream\"\nws_gb = {be_gb}\n"
        );
        let (file, out) = (workload(dir.path(), &text), dir.path().join(format!("out-{lc_gb}")));
        let args = ["eval", "--workloads", path(&file), "--policies", "equal-share", "--platform", "cosmos-server", "--out", path(&out)];
        ok(&args);
        let rows = fs::read_to_string(out.join("rows.csv")).unwrap();
        let column = rows.lines().next().unwrap().split(',').position(|c| c == "qos_violation_s").unwrap();
        rows.lines().nth(1).unwrap().split(',').nth(column).unwrap().parse::<f64>().unwrap()
    };
    // The job touches its memory more often, so it is the service that loses its own.
    let (fits, does_not) = (violation_s(30.0, 20.0), violation_s(51.1, 27.0));
    assert!(fits < 3.0 && does_not > 20.0, "{fits} {does_not}");
}
