//! The generator against queueing theory, in virtual time: schedule, driver and recorder are the ones that measure real servers;
//! only the clock and the server are simulated, so nothing here depends on this machine's speed.
//!
//! Waiting times of neighbouring requests are strongly correlated, so a binomial interval over all samples would be far too narrow.
//! Each case therefore runs [`REPLICATIONS`] independent streams. The share of samples below the analytic quantile, one number per
//! replication, gives a Student interval q +- h; the analytic 99 % interval of the quantile is [F^-1(q - h), F^-1(q + h)], and the
//! generator's own p50, p99 and p99.9 (from its merged histograms) must lie in it.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::theory::{invert, mmk_cdf, Md1};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use surefoot_loadgen::driver::{drive, Limits, Mark, Sample, Sink};
use surefoot_loadgen::quantile::{plain_quantile_ns, student_quantile};
use surefoot_loadgen::random::draw;
use surefoot_loadgen::record::{Latencies, Recorder, RecorderConfig, Summary};
use surefoot_loadgen::sim::{SimClock, SimServer, Work};
use surefoot_loadgen::verdict::{Rules, VerdictKind};
use surefoot_loadgen::{Arrivals, LoadProfile, Schedule};

const REPLICATIONS: u64 = 32;

/// Samples per replication: near capacity they are worth far fewer independent ones.
fn samples(load: f64) -> f64 {
    if load > 0.8 {
        600_000.0
    } else {
        100_000.0
    }
}

/// Mean work per request.
const WORK_NS: f64 = 1e6;
/// Three significant digits.
const HISTOGRAM_ERROR: f64 = 0.001;

/// Records, and keeps the raw times beside.
struct Tee<S: Sink> {
    recorder: S,
    raw: Rc<RefCell<Vec<Sample>>>,
    from_ns: u64,
}

impl<S: Sink> Sink for Tee<S> {
    fn sample(&mut self, s: &Sample) {
        self.recorder.sample(s);
        if s.intended_ns >= self.from_ns {
            self.raw.borrow_mut().push(*s);
        }
    }
    fn mark(&mut self, mark: Mark) {
        self.recorder.mark(mark);
    }
}

#[derive(Clone, Copy)]
struct Case {
    servers: usize,
    fixed: bool,
    load: f64,
    pipeline: usize,
}

struct Run {
    raw: Vec<Sample>,
    latencies: Latencies,
    summary: Summary,
}

fn rps(case: Case) -> f64 {
    case.load * case.servers as f64 / (WORK_NS * 1e-9)
}

fn simulate(case: Case, samples: f64, seed: u64, independent: bool) -> Run {
    let load = LoadProfile::constant(rps(case)).unwrap();
    // 20,000 mean works of warm-up: many relaxation times even at load 0.9 (about 400 works).
    let warmup_ns = (20_000.0 * WORK_NS) as u64;
    let duration_ns = (samples / rps(case) * 1e9) as u64;
    let clock = SimClock::default();
    let work = if case.fixed { Work::Fixed { ns: WORK_NS as u64 } } else { Work::Exponential { mean_ns: WORK_NS } };
    let mut server = SimServer::new(clock.clone(), case.servers, work, draw(seed, 50, 0)).with_pipeline(case.pipeline);
    let limits = Limits {
        outstanding_cap: 1_000_000,
        window_ns: 20_000_000_000,
        end_ns: warmup_ns + duration_ns,
        grace_ns: 10_000_000_000,
        client_late_ns: 1_000_000,
    };
    let config = RecorderConfig {
        warmup_ns,
        duration_ns,
        window_ns: limits.window_ns,
        threads: 1,
        confidence: 0.95,
        independent,
        rules: Rules::default(),
        target_ns: None,
        start_ns: 0,
    };
    let raw = Rc::new(RefCell::new(Vec::new()));
    let recorder = Recorder::new(config, |_, _| {});
    let mut sink = Tee { recorder, raw: raw.clone(), from_ns: warmup_ns };
    let schedule = Schedule::new(Arrivals::Poisson, &load, warmup_ns, duration_ns, draw(seed, 51, 0));
    let stop = AtomicBool::new(false);
    drive(schedule, &clock, &mut server, &limits, &mut sink, &stop).unwrap();
    let latencies = sink.recorder.latencies().clone();
    let summary = sink.recorder.finish(false);
    let raw = raw.take();
    assert_eq!(raw.len() as u64, summary.counts.all(), "a request was lost or counted twice");
    assert_eq!(summary.counts.lost(), 0);
    Run { raw, latencies, summary }
}

type Cdf<'a> = &'a dyn Fn(f64) -> f64;
type Pick = fn(&Latencies) -> &hdrhistogram::Histogram<u64>;

/// Does each reported percentile lie in its analytic 99 % interval? Times in works.
fn outside(case: Case, cdf: Cdf, seed: u64, pick: Pick) -> Vec<String> {
    const LEVELS: [f64; 3] = [0.5, 0.99, 0.999];
    let exact: Vec<f64> = LEVELS.iter().map(|&q| invert(cdf, q)).collect();
    let mut shares = vec![Vec::new(); LEVELS.len()];
    let mut merged: Option<hdrhistogram::Histogram<u64>> = None;
    for r in 0..REPLICATIONS {
        let run = simulate(case, samples(case.load), draw(seed, 52, r), false);
        for (i, x) in exact.iter().enumerate() {
            // A little more than the clock's resolution, so that the atom of M/D/1 at one work counts as "not above".
            let cut = x * WORK_NS + 1.5;
            let below = run.raw.iter().filter(|s| s.response_ns() as f64 <= cut).count();
            shares[i].push(below as f64 / run.raw.len() as f64);
        }
        match &mut merged {
            None => merged = Some(pick(&run.latencies).clone()),
            Some(m) => m.add(pick(&run.latencies)).unwrap(),
        }
    }
    let merged = merged.unwrap();
    let n = REPLICATIONS as f64;
    let mut wrong = Vec::new();
    for (i, &q) in LEVELS.iter().enumerate() {
        let mean = shares[i].iter().sum::<f64>() / n;
        let var = shares[i].iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let h = student_quantile(0.995, n - 1.0) * (var / n).sqrt();
        let low = invert(cdf, q - h) * (1.0 - HISTOGRAM_ERROR);
        let high = invert(cdf, (q + h).min(1.0 - 1e-9)) * (1.0 + HISTOGRAM_ERROR);
        let got = plain_quantile_ns(&merged, q).unwrap() as f64 / WORK_NS;
        let line = format!(
            "{}/{} load {} p{}: {got:.4} works, exact {:.4}, 99 % interval [{low:.4}, {high:.4}]",
            if case.fixed { "M/D" } else { "M/M" },
            case.servers,
            case.load,
            q * 100.0,
            exact[i]
        );
        println!("{line}");
        // An interval that could hold anything would prove nothing.
        assert!(high - low < 0.25 * exact[i], "interval too wide to mean much: {line}");
        if !(low..=high).contains(&got) {
            wrong.push(line);
        }
    }
    wrong
}

const LOADS: [f64; 3] = [0.3, 0.6, 0.9];

/// Response times through an M/M/1 server are exponential with rate (1 - load).
#[test]
fn mm1() {
    for load in LOADS {
        let case = Case { servers: 1, fixed: false, load, pipeline: usize::MAX };
        let cdf = move |t: f64| 1.0 - (-(1.0 - load) * t).exp();
        assert_eq!(outside(case, &cdf, 1, |l| &l.response), Vec::<String>::new());
    }
}

/// Response times through an M/D/1 server follow Crommelin's distribution.
#[test]
fn md1() {
    for load in LOADS {
        let case = Case { servers: 1, fixed: true, load, pipeline: usize::MAX };
        let exact = Md1::new(load);
        assert_eq!(outside(case, &|t| exact.cdf(t), 2, |l| &l.response), Vec::<String>::new());
    }
}

/// Response times through an M/M/4 server follow the closed form with Erlang's C.
#[test]
fn mm4() {
    for load in LOADS {
        let case = Case { servers: 4, fixed: false, load, pipeline: usize::MAX };
        let cdf = move |t: f64| mmk_cdf(4, load, t);
        assert_eq!(outside(case, &cdf, 3, |l| &l.response), Vec::<String>::new());
    }
}

/// With one request in flight at a time the queue stands in the client, and the response time is still the M/M/1's: waiting for the
/// server counts wherever it happens. The service time (what closed-loop tools report) misses all of it.
#[test]
fn queueing_in_the_client_counts() {
    let case = Case { servers: 1, fixed: false, load: 0.6, pipeline: 1 };
    let cdf = |t: f64| 1.0 - (-0.4 * t).exp();
    assert_eq!(outside(case, &cdf, 4, |l| &l.response), Vec::<String>::new());
    let wrong = outside(case, &cdf, 4, |l| &l.service);
    assert_eq!(wrong.len(), 3, "the check cannot tell service time from response time");
}

/// The analytic formulas, against values that need no simulation.
#[test]
fn the_formulas_agree_with_known_values() {
    for load in LOADS {
        // M/D/1: P(W = 0) = 1 - load, mean wait load / (2 (1 - load)); the mean as the integral of 1 - F.
        let m = Md1::new(load);
        assert!((m.cdf(1.0) - (1.0 - load)).abs() < 1e-12);
        let dt = 1e-3;
        let mean: f64 = (0..200_000).map(|i| (1.0 - m.cdf(1.0 + (f64::from(i) + 0.5) * dt)) * dt).sum();
        assert!((mean - load / (2.0 * (1.0 - load))).abs() < 1e-4, "{load} {mean}");
        // M/M/k with k = 1 is the exponential one.
        for t in [0.1, 1.0, 10.0] {
            let exact = 1.0 - (-(1.0 - load) * t).exp();
            assert!((mmk_cdf(1, load, t) - exact).abs() < 1e-9);
        }
    }
    // Erlang C of 4 servers at a = 2.4: 0.2870 (tables); P(T > 0) = 1.
    let wait_mean = {
        let dt = 1e-3;
        let mean: f64 = (0..100_000).map(|i| (1.0 - mmk_cdf(4, 0.6, (f64::from(i) + 0.5) * dt)) * dt).sum();
        mean - 1.0
    };
    // Mean wait = C / (k (1 - load)).
    assert!((wait_mean * 1.6 - 0.2870).abs() < 1e-3, "{}", wait_mean * 1.6);
}

/// The report's 95 % interval for p99 covers the truth in about 95 % of runs although samples are correlated; the plain binomial
/// interval does not.
#[test]
fn stated_confidence_holds_under_correlation() {
    let case = Case { servers: 1, fixed: false, load: 0.8, pipeline: usize::MAX };
    let truth_ms = 100f64.ln() / 0.2 * WORK_NS * 1e-6;
    let runs = 200;
    let covered = |independent: bool| {
        (0..runs)
            .filter(|&r| {
                let s = simulate(case, 60_000.0, draw(5, 53, r), independent).summary;
                let p = s.response_time.p99;
                p.lower_ms.unwrap() <= truth_ms && p.upper_ms.is_none_or(|u| truth_ms <= u)
            })
            .count() as f64
            / runs as f64
    };
    let (batches, plain) = (covered(false), covered(true));
    println!("coverage of the 95 % interval: with effective count {batches}, plain {plain}");
    assert!(batches >= 0.90, "{batches}");
    assert!(plain < 0.60, "{plain}");
}

/// Below capacity a run is valid; above it the backlog grows, and the verdict says whose fault it is.
#[test]
fn verdicts_in_virtual_time() {
    let valid = Case { servers: 1, fixed: true, load: 0.6, pipeline: usize::MAX };
    let s = simulate(valid, 50_000.0, 6, false).summary;
    assert_eq!(s.verdict.kind, VerdictKind::Valid, "{}", s.verdict.reason);
    // The windows' verdicts are of the same mind.
    assert_eq!(s.windows.server_overloaded + s.windows.client_limited, 0);
    let s = simulate(valid, 300.0, 6, false).summary;
    assert_eq!(s.verdict.kind, VerdictKind::NotResolvable, "{}", s.verdict.reason);
}

/// 5 % above capacity: no percentile of it is taken for a valid one.
#[test]
fn overload_is_named() {
    let clock = SimClock::default();
    let mut server = SimServer::new(clock.clone(), 1, Work::Fixed { ns: 1_000_000 }, 1);
    let duration_ns = 20_000_000_000;
    let window_ns = 100_000_000;
    let limits = Limits { outstanding_cap: 1_000_000, window_ns, end_ns: duration_ns, grace_ns: 5_000_000_000, client_late_ns: 1_000_000 };
    let config = RecorderConfig {
        warmup_ns: 0,
        duration_ns,
        window_ns,
        threads: 1,
        confidence: 0.95,
        independent: false,
        rules: Rules::default(),
        target_ns: None,
        start_ns: 0,
    };
    let load = LoadProfile::constant(1050.0).unwrap();
    let run = |cap: usize, server: &mut SimServer, clock: &SimClock| {
        let mut recorder = Recorder::new(config, |_, _| {});
        let schedule = Schedule::new(Arrivals::Poisson, &load, 0, duration_ns, 9);
        let limits = Limits { outstanding_cap: cap, ..limits };
        drive(schedule, clock, server, &limits, &mut recorder, &AtomicBool::new(false)).unwrap();
        recorder.finish(false)
    };
    let s = run(1_000_000, &mut server, &clock);
    assert_eq!(s.verdict.kind, VerdictKind::ServerOverloaded, "{}", s.verdict.reason);
    // 50 requests a second pile up for 20 s.
    assert!((700..1300).contains(&s.backlog_growth), "{}", s.backlog_growth);

    // A cap of 100: the rest is dropped, counted, and slower than every reply.
    let clock = SimClock::default();
    let mut server = SimServer::new(clock.clone(), 1, Work::Fixed { ns: 1_000_000 }, 1);
    let s = run(100, &mut server, &clock);
    assert_eq!(s.verdict.kind, VerdictKind::ServerOverloaded);
    assert!(s.counts.dropped_server > 500 && s.counts.dropped_client == 0, "{:?}", s.counts);
    assert_eq!(s.response_time.p99.value_ms, None);
    assert_eq!(s.response_time.lost, s.counts.dropped_server);
}

/// A 200 ms freeze at 1000 requests per second, constant gaps and 0.1 ms of work: the answer can be written down.
#[test]
fn a_freeze_is_counted_in_full() {
    let clock = SimClock::default();
    let mut server = SimServer::new(clock.clone(), 1, Work::Fixed { ns: 100_000 }, 1).with_pipeline(1).frozen(1_000_050_000, 1_200_050_000);
    let limits = Limits {
        outstanding_cap: 10_000,
        window_ns: 100_000_000,
        end_ns: 3_000_000_000,
        grace_ns: 1_000_000_000,
        client_late_ns: 1_000_000,
    };
    let config = RecorderConfig {
        warmup_ns: 0,
        duration_ns: 3_000_000_000,
        window_ns: 100_000_000,
        threads: 1,
        confidence: 0.95,
        independent: false,
        rules: Rules::default(),
        target_ns: None,
        start_ns: 0,
    };
    let windows = Rc::new(RefCell::new(Vec::new()));
    let seen = windows.clone();
    let recorder = Recorder::new(config, move |w, _| seen.borrow_mut().push(w.clone()));
    let raw = Rc::new(RefCell::new(Vec::new()));
    let mut sink = Tee { recorder, raw: raw.clone(), from_ns: 0 };
    let load = LoadProfile::constant(1000.0).unwrap();
    let schedule = Schedule::new(Arrivals::Constant, &load, 0, 3_000_000_000, 1);
    drive(schedule, &clock, &mut server, &limits, &mut sink, &AtomicBool::new(false)).unwrap();
    let raw = raw.take();
    // The request of t = 1.000 s is caught half way: 200.1 ms. The i-th after it (1 ms later each) waits for those before it:
    // 200.1 + 0.1 i - i ms, until that falls to 0.1 ms: i = 222.
    let slow: Vec<u64> = raw.iter().map(|s| s.response_ns()).filter(|&r| r > 150_000).collect();
    assert_eq!(slow.len(), 223, "{:?}", &slow[slow.len() - 3..]);
    assert_eq!(slow[0], 200_100_000);
    for (i, r) in slow.iter().enumerate() {
        let expected = 200_100_000 - 900_000 * i as i64;
        assert!((*r as i64 - expected).abs() <= 2, "{i}: {r} {expected}");
    }
    // Only one request was in service meanwhile: service time alone hides the stall.
    assert_eq!(raw.iter().filter(|s| s.service_ns() > 1_000_000).count(), 1);
    let s = sink.recorder.finish(false);
    assert!(s.response_time.p999.value_ms.unwrap() > 190.0);
    assert!(s.service_time.p999.value_ms.unwrap() < 1.0);
    // The window in the middle of the freeze: nothing came back, everything was offered, the backlog shows.
    let w = windows.borrow()[11].clone();
    assert_eq!((w.completed, w.offered), (0, 100));
    assert!(w.outstanding >= 199 && w.oldest_ms.unwrap() > 150.0, "{} {:?}", w.outstanding, w.oldest_ms);
    assert_eq!(w.verdict.kind, VerdictKind::ServerOverloaded);
    // Every request is in exactly one window.
    let total: u64 = windows.borrow().iter().map(|w| w.completed).sum();
    assert_eq!(total, raw.len() as u64);
}
