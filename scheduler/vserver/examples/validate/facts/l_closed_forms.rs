//! Waiting times against closed forms: M/M/k, and M/D/1 (Pollaczek-Khinchine).

use super::lab::Lab;
use super::{Fact, Kind};
use surefoot_vserver::math::erlang_c;
use surefoot_vserver::queue::{wait_law, Moments, Part, Station, ABOVE};

/// The wait after a very long time; service of 1 ms, `scv` of arrivals and service together.
fn settled(k: u32, rho: f64, scv: f64) -> Part {
    let st = Station::new(rho * f64::from(k) / 1e-3, 1e-3, k, scv, f64::INFINITY);
    let (at, law, _) = st.advance(Moments::default(), 1e7);
    wait_law(at, law, ABOVE)
}

pub fn facts(_: &mut Lab) -> Vec<Fact> {
    let m_m_k = [(1, 0.5), (1, 0.9), (4, 0.8), (12, 0.9), (36, 0.95)].map(|(k, rho)| m_m_k(k, rho));
    let m_d_1 = [0.5, 0.8, 0.95].map(m_d_1);
    m_m_k.into_iter().chain(m_d_1).collect()
}

/// Given that a request waits, its wait is exponential of mean S / (k (1 - rho)).
fn m_m_k(k: u32, rho: f64) -> Fact {
    let (c, scale) = (erlang_c(k, rho), 1e-3 / (f64::from(k) * (1.0 - rho)));
    let (mean, p99) = (c * scale, (c / 0.01).ln().max(0.0) * scale);
    let w = settled(k, rho, 2.0);
    let two = |a: f64, b: f64| format!("{:.4}, {:.4}", 1e3 * a, 1e3 * b);
    Fact::new(
        Kind::Check,
        "M/M/k closed form",
        format!("k={k} rho={rho}: mean wait, p99 wait (ms)"),
        two(mean, p99),
        two(w.mean, w.q[2]),
        (w.mean / mean - 1.0).abs() < 0.005 && (w.q[2] - p99).abs() <= 0.005 * p99.max(1e-9),
    )
}

fn m_d_1(rho: f64) -> Fact {
    let mean_ms = rho / (2.0 * (1.0 - rho));
    let text = format!("rho={rho}: mean wait (ms)");
    Fact::near(Kind::Check, "M/D/1 closed form", text, mean_ms, 1.02, 1e3 * settled(1, rho, 1.0).mean)
}
