//! Against a real memcached and a real redis. Ignored by a plain `cargo test`, because they need the Debian packages `memcached` and
//! `redis-server`; the project's test command runs them with `cargo test --release -p surefoot-loadgen -- --include-ignored`.
//! A missing program fails the test, with the package's name.
//!
//! Other processes may keep this client from sending on time. A run that is `client-limited` says so and is repeated
//! (common/punctual.rs says when that is given up, and how loudly).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]
#![allow(unsafe_code, reason = "kill of a child of its own")]

mod common;

use common::punctual::first_punctual;
use common::{gaps_s, kolmogorov_smirnov, Server};
use std::sync::atomic::AtomicBool;
use std::sync::Mutex;
use std::time::Duration;
use surefoot_loadgen::driver::Sample;
use surefoot_loadgen::protocol::ProtocolKind;
use surefoot_loadgen::report::Report;
use surefoot_loadgen::{run, Config, LoadProfile, VerdictKind};

const MS: u64 = 1_000_000;

/// One at a time: two generators at once would be measuring each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn config(server: &Server, rps: f64, seconds: u64) -> Config {
    let load = LoadProfile::constant(rps).unwrap();
    let mut c = Config::new(server.address, ProtocolKind::Memcached, load);
    c.duration_ns = seconds * 1000 * MS;
    c.warmup_ns = 300 * MS;
    c.keep_samples = true;
    c
}

/// A run in which the client kept its schedule and the server was not kept from its CPU; None if the host lets neither. `what` the test
/// would have shown.
fn punctual(c: &Config, what: &str) -> Option<Vec<Sample>> {
    first_punctual(what, || {
        let out = run(c, &AtomicBool::new(false)).unwrap();
        let r = &out.report;
        // The verdict allows more lag where the server is slow; a server that does next to nothing is slow only if it does not run.
        let (lag, slow) = (r.client_lag.p99.value_ms.unwrap(), r.service_time.p99.value_ms.unwrap());
        match r.verdict.kind {
            VerdictKind::ClientLimited => Err(r.verdict.reason.clone()),
            _ if lag > 1.0 || slow > 20.0 => Err(format!("p99 of the client's lag {lag} ms, of the server's answers {slow} ms")),
            _ => Ok(out.samples.unwrap()),
        }
    })
}

/// A run of which all but a few replies came before its last request was due: the achieved rate counts no later ones. A client that is late
/// by milliseconds changes no rate, so its verdict is not asked for.
fn complete(c: &Config, what: &str) -> Option<Report> {
    first_punctual(what, || {
        let out = run(c, &AtomicBool::new(false)).unwrap();
        let samples = out.samples.unwrap();
        let end = samples.iter().map(|s| s.intended_ns).max().unwrap();
        let after = samples.iter().filter(|s| s.done_ns > end).count();
        match after as f64 <= 0.005 * samples.len() as f64 {
            true => Ok(out.report),
            false => Err(format!("{after} of {} replies came after the last request was due", samples.len())),
        }
    })
}

/// The achieved rate is within 1 % of the offered one, with GETs and SETs, and every GET finds its key.
#[test]
#[ignore = "needs memcached (apt-get install memcached)"]
fn achieved_rate_is_the_offered_rate() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let server = Server::memcached();
    let mut c = config(&server, 4000.0, 5);
    c.set_ratio = 0.1;
    let Some(r) = complete(&c, "the achieved rate is the offered rate") else { return };
    assert!((r.achieved_rps / r.offered_rps - 1.0).abs() < 0.01, "{} {}", r.achieved_rps, r.offered_rps);
    // The drawn rate itself: 20,000 requests, standard deviation 0.7 %.
    assert!((r.offered_rps / r.nominal_rps - 1.0).abs() < 0.03, "{} {}", r.offered_rps, r.nominal_rps);
    assert_eq!((r.misses, r.errors, r.dropped_server, r.unfinished), (0, 0, 0, 0));
}

/// Requests leave with exponential gaps (Kolmogorov-Smirnov, 1 %): by the schedule, which no host can spoil, and as really sent.
#[test]
#[ignore = "needs memcached (apt-get install memcached)"]
fn gaps_are_exponential() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let server = Server::memcached();
    let rps = 500.0;
    let exponential = |x: f64| 1.0 - (-rps * x).exp();
    let intended = |samples: &[Sample]| kolmogorov_smirnov(gaps_s(samples.iter().map(|s| s.intended_ns).collect()), exponential);
    let c = config(&server, rps, 4);
    let samples = run(&c, &AtomicBool::new(false)).unwrap().samples.unwrap();
    assert!(samples.len() > 1800);
    let a = intended(&samples);
    println!("Kolmogorov-Smirnov sqrt(n) D: intended {a:.3} (1 % limit 1.63)");
    assert!(a < 1.63, "{a}");
    // The test can tell: with constant gaps it is far off.
    let constant = Config { arrivals: surefoot_loadgen::Arrivals::Constant, ..c.clone() };
    let samples = run(&constant, &AtomicBool::new(false)).unwrap().samples.unwrap();
    assert!(intended(&samples) > 10.0);

    let Some(samples) = punctual(&c, "requests leave with exponential gaps") else { return };
    let b = kolmogorov_smirnov(gaps_s(samples.iter().map(|s| s.sent_ns).collect()), exponential);
    println!("Kolmogorov-Smirnov sqrt(n) D: sent {b:.3} (1 % limit 1.63)");
    assert!(b < 1.63, "{b}");
}

/// memcached stopped (SIGSTOP) for 200 ms: the p99.9 of the response time shows it.
#[test]
#[ignore = "needs memcached (apt-get install memcached)"]
fn a_stopped_memcached_shows_in_p999() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let server = Server::memcached();
    let c = config(&server, 2000.0, 4);
    // None: so slow that the quantile has no upper end.
    let p999_ms = |r: &Report| r.response_time.p999.value_ms.unwrap_or(f64::INFINITY);
    let calm = p999_ms(&run(&c, &AtomicBool::new(false)).unwrap().report);
    let pid = server.process.0.id() as libc::pid_t;
    let stop = AtomicBool::new(false);
    let out = std::thread::scope(|s| {
        let running = s.spawn(|| run(&c, &stop));
        // Some time into the run; the length of the stop is the experiment.
        std::thread::sleep(Duration::from_millis(1500));
        // SAFETY: signals to a child of this test that has not been waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        std::thread::sleep(Duration::from_millis(200));
        // SAFETY: as above.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        running.join().unwrap().unwrap()
    });
    let r = out.report;
    let p999 = p999_ms(&r);
    println!("p99.9 calm {calm:.3} ms, with a stop of 200 ms {p999:.3} ms; {:?}", r.verdict);
    // 8000 requests, 400 due during the stop: p99.9 is the 8th slowest, about 196 ms.
    assert!(p999 >= 150.0, "{p999}");
    let slow = out.samples.unwrap().iter().filter(|s| s.response_ns() >= 50 * MS).count();
    // Those due in the first 150 ms: 300, standard deviation 17; a late SIGCONT adds some.
    assert!(slow >= 215, "{slow}");
    assert_eq!(r.completed, r.offered);
}

/// Redis answers the same generator.
#[test]
#[ignore = "needs redis-server (apt-get install redis-server)"]
fn redis_answers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let server = Server::redis();
    let mut c = config(&server, 2000.0, 2);
    c.protocol = ProtocolKind::Resp;
    c.set_ratio = 0.2;
    let Some(r) = complete(&c, "redis answers at the offered rate") else { return };
    assert_eq!((r.misses, r.errors, r.unfinished), (0, 0, 0), "{:?}", r.first_error);
    assert!((r.achieved_rps / r.offered_rps - 1.0).abs() < 0.01);
}
