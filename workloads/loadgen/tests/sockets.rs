//! Real sockets and real time, against the server in this process. What is asserted holds on a slow and busy machine too.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::punctual::first_punctual;
use common::receive;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use surefoot_loadgen::driver::{Fate, Sample};
use surefoot_loadgen::feed::{decode_histogram, FeedDatagram};
use surefoot_loadgen::inproc::{Behaviour, InProcessServer};
use surefoot_loadgen::protocol::ProtocolKind;
use surefoot_loadgen::quantile::summarise;
use surefoot_loadgen::report::{Phase, WindowLine, WindowReport};
use surefoot_loadgen::schedule::{owner, Cursor, Plan};
use surefoot_loadgen::windows::merge;
use surefoot_loadgen::{run, Config, LoadProfile, RunOutput, Schedule};

const MS: u64 = 1_000_000;

fn config(server: &InProcessServer, kind: ProtocolKind, rps: f64, duration_ms: u64) -> Config {
    let mut c = Config::new(server.address, kind, LoadProfile::constant(rps).unwrap());
    c.duration_ns = duration_ms * MS;
    c.warmup_ns = 200 * MS;
    c.grace_ns = 10_000 * MS;
    c.connections = 4;
    c.preload = false;
    c.keep_samples = true;
    c
}

fn go(c: &Config) -> (RunOutput, Vec<Sample>) {
    let mut out = run(c, &AtomicBool::new(false)).unwrap();
    let samples = out.samples.take().unwrap();
    (out, samples)
}

/// A server that stands still for 200 ms shows in the response times of every request that was due meanwhile; the service time alone
/// shows it in the few that were in flight.
#[test]
fn a_frozen_server_cannot_hide() {
    let freeze = Some((2000, Duration::from_millis(200)));
    let behaviour = Behaviour { value_bytes: 100, freeze, close_after: None };
    let (rps, connections) = (2000.0, 4);
    let longest = |samples: &[Sample]| *samples.iter().max_by_key(|s| s.service_ns()).unwrap();
    // A host that stops either side for as long as the freeze hides it from this test.
    let measured = first_punctual("a server that stands still shows in the response times", || {
        let server = InProcessServer::start(ProtocolKind::Resp, behaviour.clone()).unwrap();
        let mut c = config(&server, ProtocolKind::Resp, rps, 3000);
        (c.pipeline, c.connections) = (1, connections);
        let (out, samples) = go(&c);
        let (lag_ms, frozen_ms) = (out.report.client_lag.p99.value_ms.unwrap(), longest(&samples).service_ns() / MS);
        if lag_ms > 1.0 || frozen_ms > 260 {
            return Err(format!("p99 of the client's lag {lag_ms} ms, longest service time {frozen_ms} ms"));
        }
        Ok((out, samples))
    });
    let Some((out, samples)) = measured else { return };
    assert_eq!(out.report.completed, out.report.offered);

    let frozen = longest(&samples);
    assert!(frozen.service_ns() >= 200 * MS, "{}", frozen.service_ns());
    // Its service time has the freeze and what the host kept either side from running, before it and after: the server was asleep from 200 ms
    // before the reply at the latest to 60 ms before it at the earliest. What was due in the first 90 ms of that waited at least 50 ms more.
    let from = frozen.done_ns - 200 * MS;
    let due: Vec<&Sample> = samples.iter().filter(|s| (from..from + 90 * MS).contains(&s.intended_ns)).collect();
    // 180 expected, standard deviation 13.
    assert!((due.len() as f64 - 0.09 * rps).abs() < 5.0 * 13.0, "{}", due.len());
    assert!(due.iter().all(|s| s.response_ns() >= 50 * MS));
    // Few requests were in service then: one on each connection.
    let in_service = samples.iter().filter(|s| s.service_ns() >= 190 * MS).count();
    assert!((1..=connections).contains(&in_service), "{in_service}");

    let r = out.report;
    assert!(r.response_time.max_ms.unwrap() >= 190.0);
    // 6000 samples, about 200 of them above 100 ms: far more than one in 1000.
    assert!(r.response_time.p999.value_ms.unwrap() >= 150.0, "{:?}", r.response_time.p999);
    // The wait was for the server, and the client is not blamed for it.
    assert!(r.send_lag.p999.value_ms.unwrap() >= 100.0);
}

/// Every request of the schedule is sent once, in every protocol, over several threads.
#[test]
fn each_scheduled_request_ends_once() {
    for kind in [ProtocolKind::Memcached, ProtocolKind::Resp, ProtocolKind::Http] {
        let behaviour = Behaviour { value_bytes: 3000, ..Behaviour::default() };
        let server = InProcessServer::start(kind, behaviour).unwrap();
        let mut c = config(&server, kind, 3000.0, 800);
        c.threads = 2;
        c.set_ratio = 0.3;
        c.preload = kind != ProtocolKind::Http;
        c.key_space = 300;
        let (out, mut samples) = go(&c);
        samples.sort_by_key(|s| s.index);
        let scheduled: Vec<u64> =
            Schedule::new(c.arrivals.clone(), &c.load, c.warmup_ns, c.duration_ns, c.seed).map(|a| a.intended_ns).collect();
        let sent: Vec<u64> = samples.iter().map(|s| s.intended_ns).collect();
        assert_eq!(sent, scheduled, "{kind:?}");
        assert!(samples.iter().all(|s| s.fate == Fate::Ok), "{kind:?} {:?}", out.report.first_error);
        assert!(samples.iter().all(|s| s.sent_ns >= s.intended_ns && s.done_ns >= s.sent_ns));
        assert_eq!(out.report.errors + out.report.reconnects, 0);
    }
}

/// An HTTP server that closes connections politely (nginx does after 1000 requests) costs reconnects, not errors.
#[test]
fn polite_closes_are_not_errors() {
    let behaviour = Behaviour { value_bytes: 10, close_after: Some(50), ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Http, behaviour).unwrap();
    let mut c = config(&server, ProtocolKind::Http, 1000.0, 800);
    c.pipeline = 4;
    let (out, samples) = go(&c);
    assert!(samples.iter().all(|s| s.fate == Fate::Ok), "{:?}", out.report.first_error);
    assert!(out.report.reconnects >= 10, "{}", out.report.reconnects);
}

/// A server that goes away makes errors and drops, never silence: every request is accounted for, and the run is not valid.
#[test]
fn a_lost_server_is_counted() {
    let freeze = Some((300, Duration::from_millis(1)));
    let behaviour = Behaviour { value_bytes: 10, freeze, close_after: None };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let mut c = config(&server, ProtocolKind::Memcached, 1000.0, 1500);
    c.grace_ns = 100 * MS;
    c.max_outstanding = 200;
    let stop = AtomicBool::new(false);
    let out = std::thread::scope(|s| {
        let running = s.spawn(|| run(&c, &stop));
        std::thread::sleep(Duration::from_millis(700));
        drop(server);
        running.join().unwrap().unwrap()
    });
    let r = out.report;
    assert_eq!(r.completed + r.errors + r.dropped_server + r.dropped_client + r.unfinished, r.offered);
    assert!(r.dropped_server + r.dropped_client > 100, "{r:?}");
    assert!(r.first_error.is_some());
    assert_ne!(r.verdict.kind.as_str(), "valid");
    assert_eq!(r.response_time.p99.value_ms, None, "lost requests are slower than every reply");
}

/// The feed's and the window file's histograms and counts add up to the run.
#[test]
fn feed_and_windows_add_up() {
    let behaviour = Behaviour { value_bytes: 100, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Resp, behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("feed.sock");
    let reader = UnixDatagram::bind(&socket).unwrap();
    let mut c = config(&server, ProtocolKind::Resp, 2000.0, 800);
    c.service = "redis".into();
    c.feed = Some(socket);
    c.windows = Some(dir.path().join("windows.jsonl"));
    let reading = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut buf = vec![0; 256 * 1024];
        // 0.2 s + 0.8 s in windows of 100 ms.
        while all.len() < 10 {
            let n = receive(&reader, &mut buf);
            all.push(serde_json::from_slice::<FeedDatagram>(&buf[..n]).unwrap());
        }
        // The reader stays open: the grace period has windows too.
        (all, reader)
    });
    let (out, samples) = go(&c);
    let (datagrams, reader) = reading.join().unwrap();
    // What came after the last request was due: replies to the last ones, in the time that those took.
    reader.set_nonblocking(true).unwrap();
    let mut buf = vec![0; 256 * 1024];
    let rest: Vec<FeedDatagram> =
        std::iter::from_fn(|| reader.recv(&mut buf).ok().map(|n| serde_json::from_slice(&buf[..n]).unwrap())).collect();
    let (due_ns, replied_ns) = (samples.iter().map(|s| s.intended_ns).max().unwrap(), samples.iter().map(|s| s.done_ns).max().unwrap());
    let grace_ms: u64 = rest.iter().map(|d| d.window_ms).sum();
    assert!(grace_ms <= (replied_ns - due_ns) / MS + 100, "{rest:?}");
    let mut replies = 0;
    for (i, d) in datagrams.iter().enumerate() {
        assert_eq!((d.service.as_str(), d.unit.as_str(), d.window_ms), ("redis", "ns", 100));
        assert_eq!(decode_histogram(&d.histogram).unwrap().len(), d.count);
        // t_ms rises by exactly one window.
        assert_eq!(d.t_ms, datagrams[0].t_ms + 100 * i as u64);
        replies += d.count;
    }
    let offered: u64 = datagrams.iter().map(|d| d.offered).sum();
    assert_eq!(offered, samples.len() as u64);
    let text = std::fs::read_to_string(dir.path().join("windows.jsonl")).unwrap();
    // Merged windows are the run's own samples, bucket for bucket; the measured ones are the default.
    let file = dir.path().join("windows.jsonl");
    let merged = merge(&file, Some((0.0, f64::INFINITY)), 0.95).unwrap();
    let mut exact = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
    samples.iter().for_each(|s| exact.record(s.response_ns().max(1)).unwrap());
    let own = summarise(&exact, 0, &[], 0.95);
    let r = merged.response_time;
    assert_eq!((r.count, r.p50.value_ms, r.p99.value_ms, r.max_ms), (own.count, own.p50.value_ms, own.p99.value_ms, own.max_ms));
    assert_eq!((merged.offered, merged.completed), (samples.len() as u64, samples.len() as u64));
    let measured = merge(&file, None, 0.95).unwrap();
    assert_eq!((measured.windows, measured.from_ms, measured.to_ms), (8, 200.0, 1000.0));
    assert_eq!(merge(&file, Some((200.0, 1000.0)), 0.95).unwrap(), measured);
    let e = merge(&file, Some((5e6, 6e6)), 0.95).unwrap_err();
    assert!(e.exit_code() == 2 && e.to_string().contains("--from"), "{e}");
    let lines: Vec<WindowLine> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().all(|l| l.nominal_rps == if l.window.phase == Phase::Grace { 0.0 } else { 2000.0 }), "{lines:?}");
    let windows: Vec<WindowReport> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(windows.iter().map(|w| w.completed).sum::<u64>(), samples.len() as u64);
    assert!(replies <= samples.len() as u64);
    assert_eq!(windows.iter().filter(|w| w.phase == Phase::WarmUp).count(), 2);
    assert_eq!(windows.iter().filter(|w| w.phase == Phase::Measure).count(), 8);
    assert_eq!(out.report.feed_undelivered, Some(0));
    assert_eq!(out.report.feed_delivered, Some(windows.len() as u64));
}

/// A rate set on command holds from its announced time on: what was sent is, request by request, the schedule that a plan with these
/// changes gives, and the report and the windows say so.
#[test]
fn a_load_set_on_command_is_the_schedules() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Resp, behaviour).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut c = config(&server, ProtocolKind::Resp, 500.0, 600_000);
    c.threads = 2;
    c.control = Some(dir.path().join("control.sock"));
    c.windows = Some(dir.path().join("windows.jsonl"));
    let path = c.control.clone().unwrap();
    let commanding = std::thread::spawn(move || {
        let stream = common::connect(&path);
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut ask = |text: &str| {
            writeln!(&stream, "{text}").unwrap();
            lines.next().unwrap().unwrap()
        };
        assert_eq!(ask("rps fast"), "error: `fast` is not a number: write rps 12000");
        assert!(ask("rps 3000").starts_with("ok rps 3000 from "));
        // Until it is in force, by the run's own word; then once more, and the end.
        common::until(|| ask("status").ends_with(" 3000 rps"));
        assert!(ask("rps 1000").starts_with("ok rps 1000 from "));
        common::until(|| ask("status").ends_with(" 1000 rps"));
        let now_s = |text: &str| text.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap();
        let then = now_s(&ask("status"));
        // Half a second of the stream at the last rate.
        common::until(|| now_s(&ask("status")) > then + 0.5);
        assert_eq!(ask("stop"), "ok stopping");
    });
    let (out, mut samples) = go(&c);
    commanding.join().unwrap();
    let r = out.report;
    assert!(r.interrupted && r.errors == 0);
    let rates: Vec<f64> = r.commands.iter().map(|c| c.rps).collect();
    assert_eq!(rates, [3000.0, 1000.0]);
    let at_ns = |ms: f64| ((ms + r.warmup_ms) * 1e6).round() as u64;
    let plan = Plan {
        arrivals: c.arrivals.clone(),
        load: c.load.clone(),
        seed: c.seed,
        warmup_ns: c.warmup_ns,
        end_ns: c.warmup_ns + c.duration_ns,
        changes: r.commands.iter().map(|c| (at_ns(c.at_ms), c.rps)).collect(),
    };
    let mut cursor = Cursor::start(&plan);
    samples.sort_by_key(|s| s.intended_ns);
    // Two threads hear of the stop at slightly different times, so the last requests may be one thread's only.
    let last =
        (0..2).map(|t| samples.iter().filter(|s| owner(c.seed, s.index, 2) == t).map(|s| s.intended_ns).max().unwrap()).min().unwrap();
    let sent: Vec<(u64, u64)> = samples.iter().map(|s| (s.index, s.intended_ns)).filter(|s| s.1 <= last).collect();
    let scheduled: Vec<(u64, u64)> =
        std::iter::from_fn(|| cursor.advance(&plan)).map(|a| (a.index, a.intended_ns)).take_while(|a| a.1 <= last).collect();
    assert_eq!(sent, scheduled);
    let text = std::fs::read_to_string(dir.path().join("windows.jsonl")).unwrap();
    let lines: Vec<WindowLine> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(lines.iter().any(|l| l.nominal_rps.round() == 1000.0), "the last rate is in the windows");
    assert!(!dir.path().join("control.sock").exists());
}

/// `--warmup auto` measures from the end of a window on, for the whole duration, whatever the response times did.
#[test]
fn an_automatic_warmup_ends_and_is_reported() {
    let behaviour = Behaviour { value_bytes: 10, ..Behaviour::default() };
    let server = InProcessServer::start(ProtocolKind::Memcached, behaviour).unwrap();
    let mut c = config(&server, ProtocolKind::Memcached, 1000.0, 300);
    c.window_ns = 10 * MS;
    c.warmup_auto = true;
    c.warmup_ns = 4000 * MS;
    c.threads = 2;
    let (out, samples) = go(&c);
    let r = out.report;
    let w = r.warmup.unwrap();
    assert_eq!(w.limit_ms, 4000.0);
    // 20 blocks of 10 replies at 1000 rps are 200 ms; a noisy machine may need all of the limit, and then says so.
    assert!(r.warmup_ms >= 200.0 && (w.settled || r.warmup_ms == 4000.0), "{w:?} {}", r.warmup_ms);
    assert_eq!(r.duration_ms, 300.0);
    let (from, to) = ((r.warmup_ms * 1e6) as u64, ((r.warmup_ms + 300.0) * 1e6) as u64);
    assert_eq!(from % c.window_ns, 0);
    let measured = samples.iter().filter(|s| s.intended_ns >= from).count() as u64;
    assert_eq!((r.offered, r.completed), (measured, measured));
    assert!(samples.iter().all(|s| s.intended_ns < to), "the stream ends with the measured time");
    assert_eq!(r.nominal_rps.round(), 1000.0);
}
