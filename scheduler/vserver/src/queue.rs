//! Waiting time of a station and composition of response times (SPEC.md, sections 5 and 6).
//!
//! A station is G/G/k with FCFS. V, the time until a newcomer would be served, is treated as reflected Brownian motion
//! with drift `rho - 1` and variance rate `S (scv_a + scv_s) / k`; its first two moments (m, v) are the whole state.
//! Times in seconds.

use crate::math::{erlang_c, upper_z, Cell, QUANTILES};
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

    /// Share of requests that wait in equilibrium.
    pub fn erlang(&self) -> f64 {
        self.erlang
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
        let mut walks = Vec::new();
        let outlook = self.look_ahead(from, t_s, &mut walks);
        walk_all(&mut walks);
        self.arrive(&outlook, &walks, t_s)
    }

    /// First half of [`Station::advance_half_and_full`]: what has to be walked is added to `walks`.
    pub(crate) fn look_ahead(&self, from: Moments, t_s: f64, walks: &mut Vec<Walk>) -> Outlook {
        Relaxation::new(self.rho - 1.0, self.s2).half_and_full(from, t_s, walks)
    }

    /// Second half, when the walks have come to their ends.
    pub(crate) fn arrive(&self, outlook: &Outlook, walks: &[Walk], t_s: f64) -> [(Moments, Law, f64); 2] {
        [self.bounded(outlook.half.moments(walks), 0.5 * t_s), self.bounded(outlook.full.moments(walks), t_s)]
    }

    /// Finite accumulation, and the law that goes with the moments.
    fn bounded(&self, mut at: Moments, t_s: f64) -> (Moments, Law, f64) {
        let mut lost = 0.0;
        if at.m > self.cap_s {
            lost = ((at.m - self.cap_s) / (self.rho * t_s).max(1e-12)).min(1.0);
            at.v *= (self.cap_s / at.m).powi(2);
            at.m = self.cap_s;
        }
        (at, self.law_at(at), lost)
    }

    /// The law that goes with the moments.
    pub(crate) fn law_at(&self, at: Moments) -> Law {
        let (mut waits, mut ell) = (1.0, at.m);
        if self.rho < 1.0 && at.m > 0.0 {
            ell = self.s2 / (2.0 * (1.0 - self.rho));
            waits = 1.0 - (1.0 - self.erlang) * (ell / at.m).min(1.0);
        }
        Law { waits, ell, cap_s: self.cap_s }
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
    Relaxation::new(mu, s2).run(from, t_end)
}

/// The drift's constants.
#[derive(Clone, Copy, Debug)]
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

    /// State after `t_end`.
    fn run(&self, from: Moments, t_end: f64) -> Moments {
        let mut walk = Walk::new(*self, from, t_end, None);
        while walk.step() {}
        walk.end()
    }
}

/// One integration, step by step (Heun): the state after `t_end`, and after `mark` on the way (a step that would cross it is cut for
/// that answer only).
///
/// A step waits for the one before it. Two walks side by side ([`walk_all`]) keep the processor busy meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    r: Relaxation,
    at: Moments,
    t: f64,
    t_end: f64,
    /// Infinite once it has been passed, or if there is none.
    mark: f64,
    steps_left: u32,
    /// Nothing is reflected from here on.
    leaves: bool,
    cell: Cell,
    /// State, reflection and time left where the step began that crosses the mark.
    crossing: (Moments, f64, f64),
}

/// Most steps of a walk.
const MOST_STEPS: u32 = 200;

impl Walk {
    fn new(r: Relaxation, from: Moments, t_end: f64, mark: Option<f64>) -> Self {
        let mut w = Walk {
            r,
            at: from,
            t: 0.0,
            t_end,
            mark: mark.unwrap_or(f64::INFINITY),
            steps_left: MOST_STEPS,
            leaves: false,
            cell: Cell::of(1.0),
            crossing: (from, 0.0, 0.0),
        };
        if t_end <= 0.0 {
            w.steps_left = 0;
        } else if r.forgets(from, t_end) {
            w.at = r.equilibrium();
            w.steps_left = 0;
        } else {
            let t0 = t_end.min(0.02 * r.tau);
            if from.m * from.m < r.s2 * t0 * 2.0 / PI {
                // Leave the origin as a half-normal law.
                w.at = Moments { m: (2.0 * r.s2 * t0 / PI).sqrt(), v: r.s2 * t0 * (1.0 - 2.0 / PI) };
                w.t = t0;
            }
        }
        w
    }

    /// False at the end, and from then on.
    #[inline(always)]
    fn step(&mut self) -> bool {
        let rem = self.t_end - self.t;
        if self.steps_left == 0 || rem <= 0.0 {
            self.steps_left = 0;
            return false;
        }
        self.steps_left -= 1;
        let Relaxation { mu, s2, .. } = self.r;
        let Moments { m, v } = self.at;
        let inv_m = 1.0 / m;
        let c = v * inv_m * inv_m;
        if mu >= 0.0 && c < 0.03 {
            self.leaves = true;
            self.steps_left = 0;
            return false;
        }
        let r = self.r.reflection(self.at, inv_m, c, &mut self.cell);
        if mu < 0.0 && ((mu + r) * rem).abs() < STILL * m && ((s2 - 2.0 * m * r) * rem).abs() < STILL * v {
            self.steps_left = 0;
            return false;
        }
        let mut dt = 0.25 * m * m * self.r.inv_s2;
        if mu != 0.0 {
            dt = dt.min(0.25 * m.max(0.25 * s2 * self.r.inv_abs_mu) * self.r.inv_abs_mu);
        }
        if mu < 0.0 && c < 0.03 {
            dt = dt.max(0.5 * m * self.r.inv_abs_mu);
        }
        if mu < 0.0 && c > 1.0 {
            dt = dt.max(0.05 * v.sqrt() * self.r.inv_abs_mu);
        }
        dt = dt.min(rem);
        if self.t + dt >= self.mark {
            self.crossing = (self.at, r, self.mark - self.t);
            self.mark = f64::INFINITY;
        }
        self.at = self.r.heun(self.at, r, dt, &mut self.cell);
        self.t += dt;
        true
    }

    fn end(&self) -> Moments {
        if self.leaves {
            self.left_for(self.t_end - self.t)
        } else {
            self.at
        }
    }

    /// State at the mark; at the end, if that came first.
    fn at_mark(&self) -> Moments {
        let (at, r, dt) = self.crossing;
        if self.mark == f64::INFINITY {
            self.r.heun(at, r, dt, &mut Cell::of(1.0))
        } else if self.leaves {
            self.left_for(self.mark - self.t)
        } else {
            self.at
        }
    }

    /// Far from zero and leaving.
    fn left_for(&self, dt: f64) -> Moments {
        Moments { m: self.at.m + self.r.mu * dt, v: self.at.v + self.r.s2 * dt }
    }
}

impl Relaxation {
    #[inline(always)]
    fn heun(&self, at: Moments, r1: f64, dt: f64, cell: &mut Cell) -> Moments {
        let Moments { m, v } = at;
        let (mu, s2) = (self.mu, self.s2);
        let m1 = (m + dt * (mu + r1)).max(1e-12);
        let v1 = (v + dt * (s2 - 2.0 * m * r1)).max(0.0);
        let inv_m1 = 1.0 / m1;
        let r2 = self.reflection(Moments { m: m1, v: v1 }, inv_m1, v1 * inv_m1 * inv_m1, cell);
        Moments { m: (m + 0.5 * dt * (2.0 * mu + r1 + r2)).max(1e-12), v: (v + dt * (s2 - m * r1 - m1 * r2)).max(0.0) }
    }

    /// r = s2/2 x density at zero.
    #[inline(always)]
    fn reflection(&self, at: Moments, inv_m: f64, c: f64, cell: &mut Cell) -> f64 {
        if c <= EXPONENTIAL || self.mu >= 0.0 {
            return 0.5 * self.s2 * cell.g_of(c) * inv_m;
        }
        let (p, b) = tail_split(at, self.ell);
        -self.mu * (1.0 - p + p * self.ell / b)
    }
}

/// Take every walk to its end, two at a time.
pub(crate) fn walk_all(walks: &mut [Walk]) {
    let mut open = walks.iter_mut().filter(|w| w.steps_left > 0);
    let (mut one, mut other) = (open.next(), open.next());
    while let (Some(a), Some(b)) = (&mut one, &mut other) {
        let (mut x, mut y) = (**a, **b);
        let (x_goes, y_goes) = loop {
            let goes = (x.step(), y.step());
            if !(goes.0 && goes.1) {
                break goes;
            }
        };
        (**a, **b) = (x, y);
        if !x_goes {
            one = open.next();
        }
        if !y_goes {
            other = open.next();
        }
    }
    if let Some(last) = one.or(other) {
        let mut x = *last;
        while x.step() {}
        *last = x;
    }
}

/// States of a station after half a time and after all of it: known at once, or at the end of walks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    half: Ahead,
    full: Ahead,
}

#[derive(Clone, Copy, Debug)]
enum Ahead {
    Known(Moments),
    /// Index of the walk.
    End(usize),
    Mark(usize),
}

impl Ahead {
    fn moments(self, walks: &[Walk]) -> Moments {
        match self {
            Ahead::Known(at) => at,
            Ahead::End(i) => walks[i].end(),
            Ahead::Mark(i) => walks[i].at_mark(),
        }
    }
}

impl Relaxation {
    /// State after `t_end / 2` and after `t_end`, as two separate calls would give them; walks are added to the list.
    fn half_and_full(&self, from: Moments, t_end: f64, walks: &mut Vec<Walk>) -> Outlook {
        let half = 0.5 * t_end;
        let mut set_out = |t: f64, mark: Option<f64>| {
            walks.push(Walk::new(*self, from, t, mark));
            walks.len() - 1
        };
        if self.forgets(from, t_end) {
            let all = Ahead::Known(self.equilibrium());
            return Outlook { half: if self.forgets(from, half) { all } else { Ahead::End(set_out(half, None)) }, full: all };
        }
        if half < 0.02 * self.tau {
            // The first step would differ.
            return Outlook { half: Ahead::End(set_out(half, None)), full: Ahead::End(set_out(t_end, None)) };
        }
        let walk = set_out(t_end, Some(half));
        Outlook { half: Ahead::Mark(walk), full: Ahead::End(walk) }
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

/// Shares of requests above [`QUANTILES`].
pub const ABOVE: [f64; 3] = [1.0 - QUANTILES[0], 1.0 - QUANTILES[1], 1.0 - QUANTILES[2]];

/// The wait as a part: its mean, and the waits that shares `above` of the requests exceed ([`ABOVE`], or what one tick shows of it).
pub fn wait_law(at: Moments, law: Law, above: [f64; 3]) -> Part {
    let waits = law.waits.max(1e-12);
    let q = above.map(|p| law.cap_s.min(wait_quantile(p / waits, at, law.ell)));
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
