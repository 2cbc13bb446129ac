//! Feeds as they are in the wild, heard by a real daemon: several senders of one service, several processes behind one page, pages that name their
//! unit, and pages that change now and then. Each ends with the truth, or with a doubt that is told and leaves the service what it has.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use base64::Engine as _;
use common::node::{may_run, Cgroup, Running};
use common::{path, surefootd};
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One daemon at a time has this machine's CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

/// Requests so far within 1, 5, 10, 50, 250 and 1000 ms: quick ones of 1 ms, slow ones of 100 ms.
fn page(quick: u64, slow: u64) -> String {
    let all = quick + slow;
    let line = |le: &str| format!("req_seconds_bucket{{le=\"{le}\"}} {}\n", if le < "0.1" { quick } else { all });
    let buckets: String = ["0.001", "0.005", "0.01", "0.05", "0.25", "1.0"].map(line).concat();
    let sum = quick as f64 * 1e-3 + slow as f64 * 0.1;
    format!(
        "# TYPE req_seconds histogram\n{buckets}req_seconds_bucket{{le=\"+Inf\"}} {all}\nreq_seconds_count {all}\nreq_seconds_sum {sum}\n"
    )
}

/// A service's page, made anew for each scrape from the number of the scrape and the seconds since the first.
fn serve(make: impl Fn(u64, f64) -> String + Send + 'static) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://127.0.0.1:{}/metrics", listener.local_addr().unwrap().port());
    let begun = Instant::now();
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().flatten().enumerate() {
            let mut stream: TcpStream = stream;
            let body = make(n as u64, begun.elapsed().as_secs_f64());
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    url
}

/// A daemon with one LC service (target 10 ms) under `parties-be`.
struct Node {
    daemon: Running,
    cgroup: Cgroup,
    dir: tempfile::TempDir,
    port: u16,
    _machine: MutexGuard<'static, ()>,
}

impl Node {
    fn start(test: &str, of_web: &str) -> Option<Self> {
        let hierarchies = may_run(test)?;
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let cgroup = Cgroup::new(&hierarchies, &format!("doubt-{}", &test[..12]));
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let at = &cgroup.name;
        let text = format!(
            "metrics_port = {port}\nstate_dir = \"state\"\njournal = \"journal.jsonl\"\n[[service]]\nservice = \"web\"\nkind = \"lc\"\n\
             qos_target_ms = 10.0\ncgroup = \"/{at}\"\n{of_web}\n"
        );
        fs::write(dir.path().join("node.toml"), text).unwrap();
        let mut c = surefootd();
        c.args(["run", "--server", "local", "--policy", "parties-be", "--config", path(&dir.path().join("node.toml"))])
            .env("SUREFOOT_LOG", "info");
        let daemon = Running::start(c, " on local:");
        Some(Node { daemon, cgroup, dir, port, _machine: machine })
    }

    fn get(&self, what: &str) -> String {
        let mut s = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        s.write_all(format!("GET {what} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut page = String::new();
        s.read_to_string(&mut page).unwrap();
        page.split_once("\r\n\r\n").unwrap().1.to_string()
    }

    /// What is known of the service now, and how many ticks were late.
    fn status(&self) -> (Value, u64) {
        let all: Value = serde_json::from_str(&self.get("/status")).unwrap();
        (all["services"][0].clone(), all["late_ticks"].as_u64().unwrap())
    }

    /// The first status that is so, or the last one.
    fn until(&self, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let now = self.status().0;
            if is_so(&now) {
                return now;
            }
            assert!(Instant::now() < deadline, "{now}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// All states of so many further ticks.
    fn watch(&self, ticks: u64) -> Vec<Value> {
        let tick = |all: &Value| all["ticks"].as_u64().unwrap();
        let read = || serde_json::from_str::<Value>(&self.get("/status")).unwrap();
        let (first, mut seen) = (tick(&read()), vec![]);
        loop {
            let all = read();
            seen.push(all["services"][0].clone());
            if tick(&all) >= first + ticks {
                return seen;
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn end(mut self) -> (String, tempfile::TempDir) {
        let said = self.daemon.end(nix::sys::signal::Signal::SIGTERM);
        (said, self.dir)
    }
}

fn near(v: &Value, want: f64, part: f64) -> bool {
    v.as_f64().is_some_and(|v| (v / want - 1.0).abs() <= part)
}

/// Two workers behind one page, each with its own counts, are no service that answers in a millisecond: the feed is doubtful, is told with the
/// remedy in the log, the metrics, the status and by explain, and the service keeps every CPU. One registry for both is believed.
#[test]
fn workers_that_answer_by_turns_are_doubted() {
    // A million quick answers behind each, and now every answer takes 100 ms.
    let url = serve(|n, s| if n % 2 == 0 { page(1_000_000, (s * 25.0) as u64) } else { page(900_000, (s * 25.0) as u64) });
    let Some(node) = Node::start(
        "workers_that_answer_by_turns_are_doubted",
        &format!("prometheus = {{ url = \"{url}\", histogram = \"req_seconds\" }}"),
    ) else {
        return;
    };
    let cpus = node.cgroup.cpus();
    node.until(|s| s["feed"] == "doubtful");
    for s in node.watch(80) {
        assert_eq!((&s["feed"], &s["doubt"], &s["p99_ms"]), (&"doubtful".into(), &"workers".into(), &Value::Null), "{s}");
    }
    assert_eq!(node.cgroup.cpus(), cpus, "nothing is taken from it");
    let metrics = node.get("/metrics");
    for line in [
        "surefoot_latency_doubtful{service=\"web\",kind=\"lc\"} 1",
        "surefoot_latency_doubt{service=\"web\",kind=\"lc\",why=\"workers\"} 1",
        "surefoot_latency_known{service=\"web\",kind=\"lc\"} 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}\n{metrics}");
    }
    // Never known is not 0 s of violation.
    assert!(!metrics.contains("surefoot_qos_violation_seconds_total{service=\"web\"}"), "{metrics}");
    let (said, dir) = node.end();
    let told: Vec<&str> = said.lines().filter(|l| l.contains("WARN") && l.contains("doubtful")).collect();
    assert_eq!(told.len(), 1, "{said}");
    assert!(told[0].contains("multi-process registry") && told[0].contains("url = ["), "{said}");
    let explained = surefootd().args(["explain", "--file", path(&dir.path().join("journal.jsonl"))]).output().unwrap();
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    assert!(explained.contains("web: latency doubtful: its counts fall to and fro"), "{explained}");

    let url = serve(|_, s| page(1_900_000, 2 * (s * 25.0) as u64));
    let of_web = format!("prometheus = {{ url = \"{url}\", histogram = \"req_seconds\" }}");
    let Some(node) = Node::start("one_registry_is_believed", &of_web) else { return };
    // Between 50 and 250 ms, missed for certain.
    let s = node.until(|s| s["feed"] == "fresh" && near(&s["achieved_rps"], 50.0, 0.2));
    assert!(s["p99_ms"].as_f64().is_some_and(|p99| (50.0..=250.0).contains(&p99)), "{s}");
}

/// A page of each of two processes adds up to the service: its rate is the sum, and its p99 that of both. One that cannot be read is a doubt.
#[test]
fn pages_of_several_processes_add_up() {
    let quick = serve(|_, s| page(1_000_000 + (s * 400.0) as u64, 0));
    let slow = serve(|_, s| page(900_000, (s * 100.0) as u64));
    let urls = format!("prometheus = {{ url = [\"{quick}\", \"{slow}\"], histogram = \"req_seconds\" }}");
    let Some(node) = Node::start("pages_of_several_processes_add_up", &urls) else { return };
    let s = node.until(|s| s["feed"] == "fresh" && near(&s["achieved_rps"], 500.0, 0.1));
    assert!(s["p99_ms"].as_f64().is_some_and(|p99| (50.0..=250.0).contains(&p99)), "{s}");
    drop(node);
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let urls = format!("prometheus = {{ url = [\"{quick}\", \"http://127.0.0.1:{closed}/\"], histogram = \"req_seconds\" }}");
    let Some(node) = Node::start("a_page_of_several_is_not_read", &urls) else { return };
    node.until(|s| s["feed"] == "doubtful" && s["doubt"] == "pages");
}

/// A histogram that says that it is in milliseconds is read in milliseconds; a configuration that says otherwise is a doubt.
#[test]
fn a_page_in_milliseconds_is_read_so() {
    let in_ms = || {
        serve(|_, s| {
            let n = (s * 500.0) as u64;
            let line = |le: &str| format!("req_milliseconds_bucket{{le=\"{le}\"}} {}\n", if le == "1.0" { 0 } else { n });
            let buckets = ["1.0", "2.5", "5.0", "10.0", "25.0", "+Inf"].map(line).concat();
            format!("# UNIT req_milliseconds milliseconds\n{buckets}req_milliseconds_count {n}\nreq_milliseconds_sum {}\n# EOF\n", 2 * n)
        })
    };
    let of_web = format!("prometheus = {{ url = \"{}\", histogram = \"req_milliseconds\" }}", in_ms());
    let Some(node) = Node::start("a_page_in_milliseconds_is_read_so", &of_web) else { return };
    let s = node.until(|s| s["feed"] == "fresh" && near(&s["achieved_rps"], 500.0, 0.2));
    assert!(s["p99_ms"].as_f64().is_some_and(|p99| (1.0..=2.5).contains(&p99)), "{s}");
    drop(node);
    let of_web = format!("prometheus = {{ url = \"{}\", histogram = \"req_milliseconds\", unit = \"s\" }}", in_ms());
    let Some(node) = Node::start("another_unit_is_a_doubt", &of_web) else { return };
    node.until(|s| s["feed"] == "doubtful" && s["doubt"] == "unit");
    let (said, _dir) = node.end();
    assert!(said.contains("unit = \"s\" in node.toml, and its # UNIT is milliseconds"), "{said}");
}

/// A page that is made anew every three seconds is believed at that pace: once its pace is known it is neither silent in between nor has it seconds
/// without answers.
#[test]
fn a_page_has_its_own_pace() {
    let url = serve(|_, s| page((s / 3.0).floor() as u64 * 1500, 0));
    let of_web = format!("prometheus = {{ url = \"{url}\", histogram = \"req_seconds\" }}");
    let Some(node) = Node::start("a_page_has_its_own_pace", &of_web) else { return };
    node.until(|s| s["feed"] == "fresh" && near(&s["achieved_rps"], 500.0, 0.25));
    // Its pace is known from its second change on.
    node.watch(35);
    let seen = node.watch(100);
    let fresh: Vec<&Value> = seen.iter().filter(|s| s["feed"] == "fresh").collect();
    // On a busy machine a scrape may be late now and then.
    assert!(fresh.len() * 10 >= seen.len() * 7, "{} of {}", fresh.len(), seen.len());
    assert!(fresh.iter().all(|s| near(&s["achieved_rps"], 500.0, 0.5)), "{fresh:?}");
}

/// Not a test: a process that sends.
#[test]
#[ignore = "a process of the other tests"]
fn sender_process() {
    let Ok(socket) = std::env::var("SENDER_SOCKET") else { return };
    let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
    h.record_n(2_000_000, 50).unwrap();
    let mut raw = vec![];
    V2Serializer::new().serialize(&h, &mut raw).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(raw);
    let what = format!(r#"{{"service":"web","window_ms":100,"count":50,"histogram":"{text}"}}"#);
    let to = UnixDatagram::unbound().unwrap();
    let begun = Instant::now();
    for n in 1u32.. {
        std::thread::park_timeout((begun + Duration::from_millis(100) * n).saturating_duration_since(Instant::now()));
        if to.send_to(what.as_bytes(), &socket).is_err() {
            return;
        }
    }
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three processes that each send 500 answers a second are a service of 1500; when one ends, of 1000; when it is started again, of 1500 as before.
#[test]
fn senders_add_up() {
    let Some(node) = Node::start("senders_add_up_", "") else { return };
    let socket = node.dir.path().join("state/feed.sock");
    let start = || {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "sender_process", "--ignored"]).env("SENDER_SOCKET", &socket).stdout(Stdio::null());
        Ends(c.spawn().unwrap())
    };
    let is = |rps: f64| move |s: &Value| s["feed"] == "fresh" && near(&s["achieved_rps"], rps, 0.2);
    let mut senders: Vec<Ends> = (0..3).map(|_| start()).collect();
    node.until(is(1500.0));
    let seen = node.watch(30);
    let right = seen.iter().filter(|s| is(1500.0)(s)).count();
    assert!(right * 10 >= seen.len() * 7, "{right} of {}", seen.len());
    senders.pop();
    node.until(is(1000.0));
    senders.push(start());
    node.until(is(1500.0));
    let s = node.status().0;
    assert!(s["p99_ms"].as_f64().is_some_and(|p99| (1.9..=2.1).contains(&p99)), "{s}");
}
