//! The model's waiting times against queueing theory.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::platform;
use std::path::Path;
use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::queue::{wait_law, Moments, Station, ABOVE};
use surefoot_vserver::{Plant, Profile, Tenant};

/// M/M/k in the long run: P(W > t) = C exp(-k (1 - rho) t / S), so the p-quantile is ln(C / (1 - p)) S / (k (1 - rho)).
#[test]
fn m_m_k_is_exact() {
    let service_s = 2e-3;
    for (k, rho, c) in [(1u32, 0.5, 0.5), (1, 0.9, 0.9), (2, 0.5, 1.0 / 3.0), (4, 0.9, 0.787_753_264_294_7)] {
        let st = Station::new(rho * f64::from(k) / service_s, service_s, k, 2.0, 1e9);
        let (at, law, lost) = st.advance(Moments::default(), 1e4);
        let w = wait_law(at, law, ABOVE);
        let scale = service_s / (f64::from(k) * (1.0 - rho));
        assert!((w.mean / (c * scale) - 1.0).abs() < 1e-9, "M/M/{k} at {rho}: mean {}", w.mean);
        for (got, upper) in w.q.iter().zip([0.5, 0.05, 0.01]) {
            let want = if c > upper { scale * (c / upper).ln() } else { 0.0 };
            assert!((got - want).abs() < 1e-6 * scale, "M/M/{k} at {rho}: {got}, want {want}");
        }
        assert_eq!(lost, 0.0);
    }
}

/// M/D/1: mean wait = rho S / (2 (1 - rho)) (Pollaczek-Khinchine with no variance of service).
#[test]
fn m_d_1_mean_is_exact() {
    let service_s = 1e-3;
    for rho in [0.1, 0.5, 0.9, 0.99] {
        let (at, law, _) = Station::new(rho / service_s, service_s, 1, 1.0, 1e9).advance(Moments::default(), 1e5);
        let mean = wait_law(at, law, ABOVE).mean;
        let want = rho * service_s / (2.0 * (1.0 - rho));
        assert!((mean / want - 1.0).abs() < 1e-9, "M/D/1 at {rho}: {mean}, want {want}");
    }
}

/// In overload the backlog grows by (rho - 1) a second: 20 % too much for 30 s is a wait of 6 s.
#[test]
fn overload_grows_with_time() {
    let st = Station::new(6000.0, 1e-3, 5, 1.5, 1e9);
    let (at, law, _) = st.advance(Moments::default(), 30.0);
    let mean = wait_law(at, law, ABOVE).mean;
    assert!((mean / 6.0 - 1.0).abs() < 0.01, "{mean}");
}

/// A queue with a bound never lets a request wait longer, and says what it lost.
#[test]
fn a_bounded_queue_loses_work() {
    let st = Station::new(2000.0, 1e-3, 1, 2.0, 0.05);
    let (at, law, lost) = st.advance(Moments::default(), 10.0);
    assert!(at.m <= 0.05 && lost > 0.9 * 0.5, "{at:?} {lost}");
    assert!(wait_law(at, law, ABOVE).q.iter().all(|q| *q <= 0.05));
}

/// Half and full step in one pass equal two separate calls.
#[test]
fn half_and_full_agree_with_two_calls() {
    for rho in [0.0, 0.3, 0.8, 0.99, 1.0, 1.01, 1.5] {
        for (m, v) in [(0.0, 0.0), (1e-4, 1e-8), (0.01, 0.0), (0.5, 0.01), (0.01, 1e-3), (20.0, 1.0)] {
            for t in [1e-4, 0.02, 0.1, 5.0] {
                let st = Station::new(rho * 2000.0, 2e-3, 4, 1.4, 1e9);
                let from = Moments { m, v };
                let both = st.advance_half_and_full(from, t);
                for (got, dt) in both.iter().zip([0.5 * t, t]) {
                    let want = st.advance(from, dt);
                    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs() + 1e-15;
                    assert!(
                        close(got.0.m, want.0.m) && close(got.0.v, want.0.v),
                        "rho {rho} from {from:?} for {dt}: {got:?}, want {want:?}"
                    );
                }
            }
        }
    }
}

/// A service at low rates is simulated request by request: M/G/1 with Poisson arrivals. Mean response = service + fixed +
/// rho S (1 + scv) / (2 (1 - rho)).
#[test]
fn requests_one_by_one_follow_pollaczek_khinchine() {
    let text = std::fs::read_to_string(common::here("profiles/services/sphinx.toml")).unwrap();
    let profile = Arc::new(Profile::parse(Path::new("sphinx.toml"), &text).unwrap());
    let queue = &profile.lc().unwrap().queue;
    let p = platform("server-1");
    let tenant = |rps| Tenant::new(profile.clone(), rps, 1, CpuSet::range(0, 1), 0xfffff);
    let speed = |rps| {
        let mut s = surefoot_vserver::Solver::new(p.clone());
        s.solve(&[tenant(rps)], None);
        s.speeds()[0]
    };
    let rps = 0.6 / speed(0.1).service_s;
    let r = speed(rps);
    let rho = rps * r.service_s;
    let dispatch = queue.dispatch_us * 1e-6 * p.cpu.cpi_scale * 2.8 / r.freq_ghz;
    let want_ms = 1e3 * (r.service_s * (1.0 + rho * (1.0 + queue.scv_service) / (2.0 * (1.0 - rho))) + queue.net_us * 1e-6 + dispatch);
    // Ticks as long as a hundred services, so that speeds settle within them.
    let mut plant = Plant::new(p.clone(), Some(7), 50.0 / rps);
    plant.add("sphinx", tenant(rps), true).unwrap();
    let (mut sum, mut n) = (0.0, 0.0);
    for _ in 0..2000 {
        plant.step();
        let list = plant.requests_ms(0).unwrap();
        sum += list.iter().sum::<f64>();
        n += list.len() as f64;
    }
    // 100,000 requests; their waits are correlated over some ten services: standard error about 1 %.
    assert!((n / 100_000.0 - 1.0).abs() < 0.02, "{n} requests");
    assert!((sum / n / want_ms - 1.0).abs() < 0.05, "mean {} ms, want {want_ms}", sum / n);
}
