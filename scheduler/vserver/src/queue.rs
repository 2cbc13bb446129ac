//! Waiting time of a station and composition of response times (SPEC.md, sections 5 and 6).
//!
//! A station is G/G/k with FCFS. V, the time until a newcomer would be served, is treated as reflected Brownian motion
//! with drift `rho - 1` and variance rate `S (scv_a + scv_s) / k`; its first two moments (m, v) are the whole state.
//! Times in seconds.

use crate::math::{erlang_c, g_of, upper_z, QUANTILES};
use std::f64::consts::PI;

/// Mean and variance of V.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    pub m: f64,
    pub v: f64,
}

/// One station for one case or segment.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    pub lambda_rps: f64,
    pub service_s: f64,
    pub servers: u32,
    /// Arrival + service squared coefficient of variation.
    pub scv: f64,
    /// Longest possible wait (finite accumulation), seconds.
    pub cap_s: f64,
    rho: f64,
    s2: f64,
    erlang: f64,
}

impl Station {
    pub fn new(lambda_rps: f64, service_s: f64, servers: u32, scv: f64, cap_s: f64) -> Self {
        let k = f64::from(servers);
        let rho = lambda_rps * service_s / k;
        let erlang = erlang_c(servers, rho);
        Station { lambda_rps, service_s, servers, scv, cap_s, rho, s2: service_s * scv / k, erlang }
    }

    pub fn rho(&self) -> f64 {
        self.rho
    }

    /// Variance rate of V.
    pub fn s2(&self) -> f64 {
        self.s2
    }

    /// The station `t_s` seconds later: state, law of the wait, share of the offered work that was lost.
    pub fn advance(&self, from: Moments, t_s: f64) -> (Moments, Law, f64) {
        self.bounded(relax(from, self.rho - 1.0, self.s2, t_s), t_s)
    }

    /// [`Station::advance`] by `t_s / 2` and by `t_s`.
    pub fn advance_half_and_full(&self, from: Moments, t_s: f64) -> [(Moments, Law, f64); 2] {
        let (half, full) = Relaxation::new(self.rho - 1.0, self.s2).half_and_full(from, t_s);
        [self.bounded(half, 0.5 * t_s), self.bounded(full, t_s)]
    }

    /// Finite accumulation, and the law that goes with the moments.
    fn bounded(&self, mut at: Moments, t_s: f64) -> (Moments, Law, f64) {
        let mut lost = 0.0;
        if at.m > self.cap_s {
            lost = ((at.m - self.cap_s) / (self.rho * t_s).max(1e-12)).min(1.0);
            at.v *= (self.cap_s / at.m).powi(2);
            at.m = self.cap_s;
        }
        let (mut waits, mut ell) = (1.0, at.m);
        if self.rho < 1.0 && at.m > 0.0 {
            ell = self.s2 / (2.0 * (1.0 - self.rho));
            waits = 1.0 - (1.0 - self.erlang) * (ell / at.m).min(1.0);
        }
        (at, Law { waits, ell, cap_s: self.cap_s }, lost)
    }
}

/// Law of the wait at one instant, together with the moments.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    /// P(W > 0).
    pub waits: f64,
    /// Mean wait of those near the empty state, seconds.
    pub ell: f64,
    pub cap_s: f64,
}

/// Law with squared CV above 1 (a backlog almost drained): share exponential of mean b, the rest exponential of mean ell.
fn tail_split(at: Moments, ell: f64) -> (f64, f64) {
    let x = at.m - ell;
    if x <= 1e-9 * ell {
        return (0.0, ell);
    }
    let b = (0.5 * (at.v + at.m * at.m) - ell * ell) / x - ell;
    ((x / (b - ell)).min(1.0), b)
}

/// Squared CV up to which a law counts as not wider than the exponential. The equilibrium (v = m^2) sits right on the
/// border, and after a change of workers it is scaled by k and k^2: rounding must not decide on which side it falls.
const EXPONENTIAL: f64 = 1.0 + 1e-12;

/// Near equilibrium the law may stop moving: relative change over the whole rest of the time that counts as none.
const STILL: f64 = 1e-9;

/// Moments of reflected Brownian motion (drift `mu`, variance rate `s2`) `t_end` seconds later: dm/dt = mu + r,
/// dv/dt = s2 - 2 m r, r = s2/2 x density at zero, with a two-moment closure for the density.
pub fn relax(from: Moments, mu: f64, s2: f64, t_end: f64) -> Moments {
    Relaxation::new(mu, s2).run(from, t_end, None).0
}

/// The drift's constants.
#[derive(Clone, Copy)]
struct Relaxation {
    mu: f64,
    s2: f64,
    tau: f64,
    /// Mean in equilibrium, if mu < 0.
    ell: f64,
    inv_s2: f64,
    inv_abs_mu: f64,
}

impl Relaxation {
    fn new(mu: f64, s2: f64) -> Self {
        let tau = if mu != 0.0 { s2 / (mu * mu) } else { f64::INFINITY };
        Relaxation { mu, s2, tau, ell: s2 / (-2.0 * mu), inv_s2: 1.0 / s2, inv_abs_mu: 1.0 / mu.abs() }
    }

    /// Long enough to forget the start.
    fn forgets(&self, from: Moments, t_end: f64) -> bool {
        let drift = -self.mu;
        drift > 0.0 && t_end > (from.m + 3.0 * (from.v + self.s2 * from.m / drift).sqrt()) / drift + 12.0 * self.tau
    }

    fn equilibrium(&self) -> Moments {
        Moments { m: self.ell, v: self.ell * self.ell }
    }

    /// State after `t_end / 2` and after `t_end`, as two separate calls would give them.
    fn half_and_full(&self, from: Moments, t_end: f64) -> (Moments, Moments) {
        let half = 0.5 * t_end;
        if self.forgets(from, t_end) {
            return (if self.forgets(from, half) { self.equilibrium() } else { self.run(from, half, None).0 }, self.equilibrium());
        }
        if half < 0.02 * self.tau {
            // The first step would differ.
            return (self.run(from, half, None).0, self.run(from, t_end, None).0);
        }
        let (full, at_half) = self.run(from, t_end, Some(half));
        (at_half, full)
    }

    /// State after `t_end`, and after `mark` on the way (a step that would cross it is cut for that answer only).
    fn run(&self, from: Moments, t_end: f64, mark: Option<f64>) -> (Moments, Moments) {
        let Moments { mut m, mut v } = from;
        if t_end <= 0.0 {
            return (from, from);
        }
        if self.forgets(from, t_end) {
            return (self.equilibrium(), self.equilibrium());
        }
        let Relaxation { mu, s2, .. } = *self;
        let mut t = 0.0;
        let t0 = t_end.min(0.02 * self.tau);
        if m * m < s2 * t0 * 2.0 / PI {
            // Leave the origin as a half-normal law.
            m = (2.0 * s2 * t0 / PI).sqrt();
            v = s2 * t0 * (1.0 - 2.0 / PI);
            t = t0;
        }
        let mut mark = mark;
        let mut at_mark = Moments { m, v };
        for _ in 0..200 {
            let rem = t_end - t;
            if rem <= 0.0 {
                break;
            }
            let inv_m = 1.0 / m;
            let c = v * inv_m * inv_m;
            if mu >= 0.0 && c < 0.03 {
                // Far from zero and leaving.
                let after = |dt: f64| Moments { m: m + mu * dt, v: v + s2 * dt };
                return (after(rem), mark.map_or(at_mark, |x| after(x - t)));
            }
            let r = self.reflection(m, v, inv_m, c);
            if mu < 0.0 && ((mu + r) * rem).abs() < STILL * m && ((s2 - 2.0 * m * r) * rem).abs() < STILL * v {
                break;
            }
            let mut dt = 0.25 * m * m * self.inv_s2;
            if mu != 0.0 {
                dt = dt.min(0.25 * m.max(0.25 * s2 * self.inv_abs_mu) * self.inv_abs_mu);
            }
            if mu < 0.0 && c < 0.03 {
                dt = dt.max(0.5 * m * self.inv_abs_mu);
            }
            if mu < 0.0 && c > 1.0 {
                dt = dt.max(0.05 * v.sqrt() * self.inv_abs_mu);
            }
            dt = dt.min(rem);
            if let Some(x) = mark {
                if t + dt >= x {
                    at_mark = self.heun(m, v, r, x - t);
                    mark = None;
                }
            }
            Moments { m, v } = self.heun(m, v, r, dt);
            t += dt;
        }
        let end = Moments { m, v };
        (end, if mark.is_some() { end } else { at_mark })
    }

    fn heun(&self, m: f64, v: f64, r1: f64, dt: f64) -> Moments {
        let (mu, s2) = (self.mu, self.s2);
        let m1 = (m + dt * (mu + r1)).max(1e-12);
        let v1 = (v + dt * (s2 - 2.0 * m * r1)).max(0.0);
        let inv_m1 = 1.0 / m1;
        let r2 = self.reflection(m1, v1, inv_m1, v1 * inv_m1 * inv_m1);
        Moments { m: (m + 0.5 * dt * (2.0 * mu + r1 + r2)).max(1e-12), v: (v + dt * (s2 - m * r1 - m1 * r2)).max(0.0) }
    }

    /// r = s2/2 x density at zero.
    fn reflection(&self, m: f64, v: f64, inv_m: f64, c: f64) -> f64 {
        if c <= EXPONENTIAL || self.mu >= 0.0 {
            return 0.5 * self.s2 * g_of(c) * inv_m;
        }
        let (p, b) = tail_split(Moments { m, v }, self.ell);
        -self.mu * (1.0 - p + p * self.ell / b)
    }
}

/// Upper `p`-quantile in units of the mean of the law with squared CV `c` <= 1 (c = 1 exponential, c -> 0 normal).
pub fn wait_shape(p: f64, c: f64) -> f64 {
    let c = c.clamp(0.0, 1.0);
    if c == 1.0 {
        // w = 1 below: the exponential, without the powers.
        return (1.0 + (-p.ln() - 1.0)).max(0.0);
    }
    let w = c.powf(1.25);
    (1.0 + c.sqrt() * ((1.0 - w) * upper_z(p) + w * (-p.ln() - 1.0))).max(0.0)
}

/// As many digits as the reference has.
#[allow(clippy::approx_constant)]
const QUARTER_PI: f64 = 0.785398;

/// Upper `p`-quantile of V given that it is not zero, seconds.
pub fn wait_quantile(p: f64, at: Moments, ell: f64) -> f64 {
    if at.m <= 0.0 || p >= 1.0 {
        return 0.0;
    }
    let m2 = at.m * at.m;
    if at.v <= m2 || at.m <= ell {
        return at.m * wait_shape(p, at.v / m2);
    }
    let (share, b) = tail_split(at, ell);
    // Shape of the rest: exponential at c = 1, half-normal when c is large.
    let (half, w) = (QUARTER_PI * share, m2 / at.v);
    let mut tail = 0.0;
    if share > p {
        tail = w * b * (share / p).ln();
    }
    if half > p {
        tail += (1.0 - w) * 1.595769 * b * upper_z(0.5 * p / half);
    }
    (-ell * p.ln()).max(tail)
}

/// Mean and quantiles ([`QUANTILES`]) of one part of a response time, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    pub mean: f64,
    pub q: [f64; 3],
}

/// The wait as a part; `floor_p` limits how far into the tail one path can reach within a window.
pub fn wait_law(at: Moments, law: Law, floor_p: f64) -> Part {
    let waits = law.waits.max(1e-12);
    let q = QUANTILES.map(|q| law.cap_s.min(wait_quantile((1.0 - q).max(floor_p) / waits, at, law.ell)));
    Part { mean: waits * at.m, q }
}

/// `upper_z(1 - q)` of the reported percentiles.
fn z_of_quantiles() -> [f64; 3] {
    static Z: std::sync::OnceLock<[f64; 3]> = std::sync::OnceLock::new();
    *Z.get_or_init(|| QUANTILES.map(|q| upper_z(1.0 - q)))
}

/// Quantiles of a lognormal law of mean 1.
pub fn lognormal_factors(scv: f64) -> [f64; 3] {
    let s = scv.ln_1p().sqrt();
    z_of_quantiles().map(|z| (s * z - s * s / 2.0).exp())
}

/// A fixed delay.
pub fn fixed(delay: f64) -> Part {
    Part { mean: delay, q: [delay; 3] }
}

/// Exponential delay of mean `d` that strikes with probability `p`.
pub fn exp_mix(p: f64, d: f64) -> Part {
    let p = p.min(1.0);
    Part { mean: p * d, q: QUANTILES.map(|q| if p > 1.0 - q { d * (p / (1.0 - q)).ln() } else { 0.0 }) }
}

/// Sum of independent parts: means add up, deviations from them combine as a signed root sum of squares.
///
/// Two passes over the parts in one: the deviations need only each part's own mean.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compose {
    mean: f64,
    y: [f64; 3],
}

impl Compose {
    pub fn add(&mut self, part: &Part) {
        self.mean += part.mean;
        for (y, q) in self.y.iter_mut().zip(part.q) {
            let d = q - part.mean;
            *y += d * d.abs();
        }
    }

    pub fn total(&self) -> Part {
        Part { mean: self.mean, q: self.y.map(|y| (self.mean + y.abs().sqrt().copysign(y)).max(0.0)) }
    }
}
