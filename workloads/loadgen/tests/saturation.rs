//! The saturation search against queueing theory, in virtual time: it must find the load at which 1 % of the requests are slower than the
//! target, which for M/M/1, M/D/1 and M/M/4 can be calculated.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::theory::{mmk_cdf, Md1};
use std::sync::atomic::AtomicBool;
use surefoot_loadgen::driver::{drive, Limits};
use surefoot_loadgen::random::draw;
use surefoot_loadgen::record::{Recorder, RecorderConfig};
use surefoot_loadgen::saturate::{search, Finding, Limit, Look, Probe, Settings};
use surefoot_loadgen::sim::{SimClock, SimServer, Work};
use surefoot_loadgen::verdict::Rules;
use surefoot_loadgen::{Arrivals, LoadProfile, LoadgenError, Schedule};

/// Mean work per request.
const WORK_NS: f64 = 1e6;

struct Simulated {
    servers: usize,
    fixed: bool,
    target_ms: f64,
}

impl Probe for Simulated {
    fn look(&mut self, rps: f64, duration_ns: u64, seed: u64) -> Result<Look, LoadgenError> {
        // 2000 mean works: some relaxation times at the loads in question.
        let warmup_ns = (2000.0 * WORK_NS) as u64;
        let clock = SimClock::default();
        let work = if self.fixed { Work::Fixed { ns: WORK_NS as u64 } } else { Work::Exponential { mean_ns: WORK_NS } };
        let mut server = SimServer::new(clock.clone(), self.servers, work, draw(seed, 50, 0));
        let window_ns = 10_000_000_000;
        let end_ns = warmup_ns + duration_ns;
        let limits = Limits { outstanding_cap: 100_000, window_ns, end_ns, grace_ns: 2_000_000_000, client_late_ns: 1_000_000 };
        let config = RecorderConfig {
            warmup_ns,
            duration_ns,
            window_ns,
            threads: 1,
            confidence: 0.95,
            independent: false,
            rules: Rules::default(),
            target_ns: Some((self.target_ms * 1e6) as u64),
            start_ns: 0,
        };
        let mut recorder = Recorder::new(config, |_, _| {});
        let schedule = Schedule::new(Arrivals::Poisson, &LoadProfile::constant(rps)?, warmup_ns, duration_ns, draw(seed, 51, 0));
        drive(schedule, &clock, &mut server, &limits, &mut recorder, &AtomicBool::new(false))?;
        let s = recorder.finish(false);
        let share = s.target.unwrap();
        assert_eq!(share.count, s.counts.all());
        Ok(Look {
            rps,
            duration_ns,
            seed,
            offered_rps: s.offered_rps,
            achieved_rps: s.achieved_rps,
            completed: s.counts.completed,
            count: share.count,
            above: share.above,
            effective_count: share.effective_count,
            p50_ms: s.response_time.p50.value_ms,
            p95_ms: s.response_time.p95.value_ms,
            p99_ms: s.response_time.p99.value_ms,
            verdict: s.verdict.kind,
            reason: s.verdict.reason,
        })
    }
}

/// The load per server at which 1 % of the requests take longer than the target, by bisection.
fn exact_load(below: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.01, 0.99);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if below(middle) >= 0.99 {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

fn check(servers: usize, fixed: bool, target_works: f64, exact: f64, seed: u64) {
    let capacity_rps = servers as f64 / (WORK_NS * 1e-9);
    let target_ms = target_works * WORK_NS * 1e-6;
    let times = Settings { shortest_ns: 5_000_000_000, longest_ns: 640_000_000_000, ..Settings::default() };
    let s = Settings { target_ms, from_rps: 100.0, resolution: 0.03, points: 6, seed, ..times };
    let found = search(&mut Simulated { servers, fixed, target_ms }, &s, |_| {}).unwrap();
    let edge = exact * capacity_rps;
    let max = found.max_load_rps.unwrap();
    println!(
        "{}/{servers}: max load {max} rps, exact {edge:.1}, beyond {:?}, knee {:?}",
        if fixed { "M/D" } else { "M/M" },
        found.beyond_rps,
        found.knee
    );
    // Sure to hold, so not above the edge (0.5 %: one chance in many searches, and the histogram's digits); and near it.
    assert!(max <= 1.005 * edge && max >= 0.93 * edge, "{max} {edge}");
    assert!((found.observed_max_rps.unwrap() / edge - 1.0).abs() < 0.05, "{:?} {edge}", found.observed_max_rps);
    assert!(found.beyond_rps.unwrap() >= 0.995 * edge, "{:?} {edge}", found.beyond_rps);
    assert_eq!(found.limited_by, Limit::Service);
    // Every finding is on the right side of the edge.
    for p in &found.curve {
        match p.finding {
            Finding::Holds => assert!(p.rps <= 1.005 * edge, "{p:?}"),
            Finding::Fails => assert!(p.rps >= 0.995 * edge, "{p:?}"),
            _ => assert!((p.rps / edge - 1.0).abs() < 0.08, "undecided far from the edge: {p:?}"),
        }
    }
    // The curve has a knee, where it is still within the target or near it.
    assert!(found.knee.is_some_and(|k| k.rps > 0.2 * edge && k.rps < 1.3 * edge), "{:?}", found.knee);
    if servers > 1 {
        return;
    }
    // The same seed, the same search.
    assert_eq!(search(&mut Simulated { servers, fixed, target_ms }, &s, |_| {}).unwrap(), found);
}

/// P(T > t) = e^-(1 - load) t, so the edge is at 1 - ln 100 / t.
#[test]
fn mm1() {
    let edge = exact_load(|load| mmk_cdf(1, load, 12.0));
    assert!((edge - (1.0 - 100f64.ln() / 12.0)).abs() < 1e-9);
    check(1, false, 12.0, edge, 1);
}

#[test]
fn md1() {
    check(1, true, 5.0, exact_load(|load| Md1::new(load).cdf(5.0)), 2);
}

#[test]
fn mm4() {
    check(4, false, 6.0, exact_load(|load| mmk_cdf(4, load, 6.0)), 3);
}
