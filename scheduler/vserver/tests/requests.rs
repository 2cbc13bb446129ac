//! Request-by-request simulation against queueing theory and against the reference prototype.
//!
//! Each figure is the mean of independent runs with its standard error; it must lie within 4 standard errors of the closed
//! form (1 run in 16,000 would not), and the standard error must be small, or the bound could not fail.

use surefoot_vserver::math::erlang_c;
use surefoot_vserver::requests::{quantiles, Arrivals, Fcfs, RequestModel, Response, ServiceTimes};

const RUNS: u64 = 16;
const SERVICE_S: f64 = 1e-3;

/// Mean and standard error of N figures over runs with seeds of their own.
fn estimate<const N: usize>(runs: u64, figures: impl Fn(u64) -> [f64; N]) -> [(f64, f64); N] {
    let all: Vec<[f64; N]> = (1..=runs).map(figures).collect();
    let n = runs as f64;
    std::array::from_fn(|i| {
        let mean = all.iter().map(|x| x[i]).sum::<f64>() / n;
        let var = all.iter().map(|x| (x[i] - mean).powi(2)).sum::<f64>() / (n - 1.0);
        (mean, (var / n).sqrt())
    })
}

fn agrees((mean, error): (f64, f64), want: f64) -> bool {
    (mean - want).abs() <= 4.0 * error
}

/// `figures` of the responses from the 20,000th on, each against its `want`; a standard error is at most `precision` of it.
fn check<const N: usize>(model: &RequestModel, requests: usize, figures: impl Fn(&[Response]) -> [f64; N], want: [f64; N], precision: f64) {
    let got = estimate(RUNS, |seed| figures(&model.run(seed).skip(20_000).take(requests).collect::<Vec<_>>()));
    for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
        assert!(got.1 <= precision * want, "{model:?}, figure {i}: standard error {} is too large to tell from {want}", got.1);
        assert!(agrees(got, want), "{model:?}, figure {i}: {} +- {}, want {want}", got.0, got.1);
    }
}

fn mean_of(x: &[Response], f: fn(&Response) -> f64) -> f64 {
    x.iter().map(f).sum::<f64>() / x.len() as f64
}

fn quantiles_of<const N: usize>(x: &[Response], f: fn(&Response) -> f64, q: [f64; N]) -> [f64; N] {
    quantiles(&mut x.iter().map(f).collect::<Vec<_>>(), q).unwrap()
}

/// G/G/k at load `rho` per server.
fn at_load(k: u32, rho: f64, scv_service: f64, scv_arrival: f64) -> RequestModel {
    RequestModel::new(rho * f64::from(k) / SERVICE_S, SERVICE_S, k, scv_service, scv_arrival)
}

/// M/M/1: the response is exponential of mean S / (1 - rho).
#[test]
fn m_m_1_response_is_exponential() {
    for rho in [0.5, 0.8] {
        let scale = SERVICE_S / (1.0 - rho);
        let figures = |x: &[Response]| {
            let [p50, p99] = quantiles_of(x, |r| r.response_s, [0.5, 0.99]);
            [mean_of(x, |r| r.response_s), p50, p99]
        };
        check(&at_load(1, rho, 1.0, 1.0), 200_000, figures, [scale, 2f64.ln() * scale, 100f64.ln() * scale], 0.02);
    }
}

/// M/M/k: a share C (Erlang C) waits, an exponential of mean S / (k (1 - rho)) if at all.
#[test]
fn m_m_k_waits_follow_erlang_c() {
    for (k, rho) in [(4u32, 0.8), (12, 0.9), (36, 0.95)] {
        let c = erlang_c(k, rho);
        let scale = SERVICE_S / (f64::from(k) * (1.0 - rho));
        let figures = |x: &[Response]| {
            let waits = x.iter().filter(|r| r.wait_s > 0.0).count() as f64 / x.len() as f64;
            [waits, mean_of(x, |r| r.wait_s), quantiles_of(x, |r| r.wait_s, [0.99])[0]]
        };
        check(&at_load(k, rho, 1.0, 1.0), 300_000, figures, [c, c * scale, scale * (c / 0.01).ln()], 0.05);
    }
}

/// M/G/1: mean wait = rho S (1 + scv) / (2 (1 - rho)) (Pollaczek-Khinchine): deterministic, lognormal.
#[test]
fn m_g_1_follows_pollaczek_khinchine() {
    for (rho, scv) in [(0.5, 0.0), (0.8, 0.0), (0.9, 0.0), (0.6, 0.3), (0.8, 2.0)] {
        let want = rho * SERVICE_S * (1.0 + scv) / (2.0 * (1.0 - rho));
        check(&at_load(1, rho, scv, 1.0), 300_000, |x| [mean_of(x, |r| r.wait_s)], [want], 0.03);
    }
}

/// Geometric batches of mean b before one exponential server: mean response = b S / (1 - rho), b = (scv_arrival + 1) / 2.
#[test]
fn batches_follow_their_closed_form() {
    for (rho, scv_arrival) in [(0.5, 2.0), (0.7, 5.0)] {
        let want = 0.5 * (scv_arrival + 1.0) * SERVICE_S / (1.0 - rho);
        check(&at_load(1, rho, 1.0, scv_arrival), 300_000, |x| [mean_of(x, |r| r.response_s)], [want], 0.03);
    }
}

/// The same laws as the reference prototype, whose random numbers are others: mean, p50, p95, p99 of the response (ms).
///
/// Its figures: 12 runs of 100,000 requests, the first fifth dropped, with their standard errors.
#[test]
fn long_runs_agree_with_the_prototype() {
    for (k, rho, scv_service, scv_arrival, theirs) in [
        (1, 0.8, 1.0, 1.0, [(5.0123, 0.0254), (3.4763, 0.0192), (15.0697, 0.1328), (22.9094, 0.3902)]),
        (6, 0.6, 0.5, 1.0, [(1.06332, 0.00078), (0.87952, 0.00051), (2.43833, 0.00318), (3.70142, 0.00718)]),
        (6, 0.9, 0.15, 1.0, [(1.72309, 0.01004), (1.47106, 0.00470), (3.67267, 0.03920), (5.33194, 0.12547)]),
        (12, 0.8, 1.5, 1.0, [(1.17547, 0.00517), (0.80437, 0.00293), (3.37607, 0.02030), (6.14462, 0.02480)]),
        (24, 0.9, 0.3, 2.0, [(1.29473, 0.00728), (1.14923, 0.00470), (2.62814, 0.02579), (3.53999, 0.03471)]),
    ] {
        let model = at_load(k, rho, scv_service, scv_arrival);
        let ours = estimate(RUNS, |seed| {
            let x: Vec<Response> = model.run(seed).skip(20_000).take(100_000).collect();
            let [p50, p95, p99] = quantiles_of(&x, |r| r.response_s, [0.5, 0.95, 0.99]);
            [mean_of(&x, |r| r.response_s), p50, p95, p99].map(|s| s * 1e3)
        });
        both_agree(&model, ours, theirs, 0.03);
    }
}

/// So is a drain: 6 servers at 0.8 with a second of work each, 3 s later (60 runs of the prototype).
#[test]
fn a_drain_agrees_with_the_prototype() {
    let model = RequestModel { start_work_s: 1.0, ..RequestModel::new(2400.0, 2e-3, 6, 0.3, 1.0) };
    let ours = estimate(60, |seed| {
        let x: Vec<Response> = model.run(seed).take_while(|r| r.arrival_s < 3.05).filter(|r| r.arrival_s > 3.0).collect();
        let [p50, p95] = quantiles_of(&x, |r| r.response_s, [0.5, 0.95]);
        [p50 * 1e3, p95 * 1e3]
    });
    both_agree(&model, ours, [(390.26, 4.17), (399.68, 4.20)], 0.02);
}

/// Two estimates of the same figures: within 4 standard errors of their difference, which are at most `precision`.
fn both_agree<const N: usize>(model: &RequestModel, ours: [(f64, f64); N], theirs: [(f64, f64); N], precision: f64) {
    for (ours, theirs) in ours.into_iter().zip(theirs) {
        let error = ours.1.hypot(theirs.1);
        assert!(error < precision * theirs.0, "{model:?}: {ours:?} and {theirs:?} are too uncertain");
        assert!(agrees((ours.0, error), theirs.0), "{model:?}: {ours:?}, the prototype has {theirs:?}");
    }
}

/// A request ends with the last of its tasks: three exponential tasks on idle servers take S (1 + 1/2 + 1/3).
#[test]
fn a_request_takes_as_long_as_its_slowest_task() {
    // One request per 1000 services: they hardly ever meet.
    let model = RequestModel { fanout: 3, ..RequestModel::new(1.0, SERVICE_S, 12, 1.0, 1.0) };
    check(&model, 50_000, |x| [mean_of(x, |r| r.response_s)], [SERVICE_S * (1.0 + 0.5 + 1.0 / 3.0)], 0.005);
    // On one server they follow each other.
    let model = RequestModel { servers: 1, scv_service: 0.0, ..model };
    let quiet = model.run(1).take(1000).filter(|r| (r.response_s - 3.0 * SERVICE_S).abs() < 1e-12).count();
    assert!(quiet > 980, "{quiet}");
}

/// The bounds can fail: an error of 10 % in the variability of service, or of 2 % in the load, is found.
#[test]
fn the_bounds_find_a_wrong_law() {
    let wait = |rho, scv| {
        let model = at_load(1, rho, scv, 1.0);
        estimate(RUNS, |seed| [mean_of(&model.run(seed).skip(20_000).take(300_000).collect::<Vec<_>>(), |r| r.wait_s)])[0]
    };
    let want = 0.5 * SERVICE_S / (2.0 * (1.0 - 0.5));
    assert!(agrees(wait(0.5, 0.0), want));
    assert!(!agrees(wait(0.5, 0.1), want));
    assert!(!agrees(wait(0.51, 0.0), want));
}

/// The rate, the batches and the service times have the moments that they are asked for.
#[test]
fn moments_are_those_asked_for() {
    let mut arrivals = Arrivals::new(2000.0, 2.4, 3);
    let (mut requests, mut batches) = (0.0, 0.0);
    for b in arrivals.by_ref().take_while(|b| b.at_s < 500.0) {
        requests += b.requests as f64;
        batches += 1.0;
    }
    // Standard error of a batch-Poisson count: sqrt(scv / n) = 0.15 %; of the mean geometric batch about 0.1 %.
    assert!((requests / 1e6 - 1.0).abs() < 0.006, "{requests}");
    assert!((requests / batches / 1.7 - 1.0).abs() < 0.004, "{}", requests / batches);
    for scv in [0.0, 0.06, 0.5, 1.0, 2.0] {
        let law = ServiceTimes::new(2.0, scv, 9);
        let n = 400_000u32;
        let x: Vec<f64> = (0..u64::from(n)).map(|i| law.of(i)).collect();
        let mean = x.iter().sum::<f64>() / f64::from(n);
        let var = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean / 2.0 - 1.0).abs() <= 4.0 * (scv / f64::from(n)).sqrt() + 1e-12, "scv {scv}: mean {mean}");
        // The variance of a variance needs fourth moments; lognormal at 2.0 has heavy ones.
        assert!((var / 4.0 - scv).abs() <= 0.06 * scv + 1e-12, "scv {scv}: {}", var / 4.0);
    }
}

/// A change of rate takes effect at once and leaves the arrivals Poisson: 1000/s for 100 s, none for 50 s, 4000/s for 100 s.
#[test]
fn the_rate_may_change_at_any_time() {
    let mut arrivals = Arrivals::new(1000.0, 1.0, 5);
    let count = |arrivals: &mut Arrivals, until_s: f64| {
        let mut n = 0;
        while arrivals.next_s() < until_s {
            n += arrivals.next().map_or(0, |b| b.requests);
        }
        n as f64
    };
    let first = count(&mut arrivals, 100.0);
    arrivals.set_rate_rps(0.0, 100.0);
    assert_eq!(count(&mut arrivals, 150.0), 0.0);
    assert_eq!(arrivals.next(), None);
    arrivals.set_rate_rps(4000.0, 150.0);
    let last = count(&mut arrivals, 250.0);
    // Four standard deviations of a Poisson count.
    assert!((first - 1e5).abs() < 4.0 * 1e5f64.sqrt(), "{first}");
    assert!((last - 4e5).abs() < 4.0 * 4e5f64.sqrt(), "{last}");
}

/// Servers that start with work: no request is served before it is done, and an idle station catches up.
#[test]
fn work_from_before_is_served_first() {
    let model = RequestModel { start_work_s: 0.5, ..RequestModel::new(10.0, SERVICE_S, 2, 0.0, 1.0) };
    let seen: Vec<Response> = model.run(4).take_while(|r| r.arrival_s < 3.0).collect();
    let early = seen.iter().filter(|r| r.arrival_s < 0.5).collect::<Vec<_>>();
    assert!(early.len() > 1);
    for (i, r) in early.iter().enumerate() {
        // Two at a time from 0.5 s on.
        let begin_s = 0.5 + (i / 2) as f64 * SERVICE_S;
        assert!((r.arrival_s + r.wait_s - begin_s).abs() < 1e-12, "{i}: {r:?}");
    }
    assert!(seen.iter().filter(|r| r.arrival_s > 1.0).all(|r| r.wait_s <= SERVICE_S), "a backlog that never ends");
}

/// First come, first served by hand: tasks of 3 s at 0, 1, 2, 9 s on two servers begin at 0, 1, 3, 9.
#[test]
fn first_come_first_served() {
    let mut station = Fcfs::new(2, 0.0);
    let begins: Vec<(f64, f64)> = [0.0, 1.0, 2.0, 9.0].into_iter().map(|t| station.serve(t, 3.0)).collect();
    assert_eq!(begins, [(0.0, 3.0), (1.0, 4.0), (3.0, 6.0), (9.0, 12.0)]);
}

/// A seed gives the same bits; another seed another run; the servers do not change what arrives.
#[test]
fn runs_follow_from_the_seed() {
    let model = at_load(6, 0.9, 0.3, 2.0);
    let run = |m: &RequestModel, seed| m.run(seed).take(1000).collect::<Vec<_>>();
    assert_eq!(run(&model, 1), run(&model, 1));
    assert_ne!(run(&model, 1), run(&model, 2));
    let wide = RequestModel { servers: 60, ..model };
    for (a, b) in run(&model, 1).iter().zip(run(&wide, 1)) {
        assert_eq!(a.arrival_s, b.arrival_s);
        let (x, y) = (a.response_s - a.wait_s, b.response_s - b.wait_s);
        assert!((x - y).abs() < 1e-12 && a.wait_s >= b.wait_s, "{a:?} {b:?}");
    }
}

/// No load, no request; without values no quantile; else linear between ranks as NumPy does.
#[test]
fn edges() {
    assert_eq!(at_load(3, 0.0, 1.0, 1.0).run(1).next(), None);
    assert_eq!(quantiles(&mut [], [0.5]), None);
    // Ranks 0..=3: the median is between 2 and 3, q = 0.9 at rank 2.7 between 3 and 10.
    assert_eq!(quantiles(&mut [10.0, 1.0, 3.0, 2.0], [0.0, 0.5, 1.0]), Some([1.0, 2.5, 10.0]));
    assert!((quantiles(&mut [10.0, 1.0, 3.0, 2.0], [0.9]).unwrap()[0] - 7.9).abs() < 1e-12);
}
