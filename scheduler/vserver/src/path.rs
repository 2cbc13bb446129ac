//! One path of the work ahead of a newcomer, drawn instant by instant: what a seeded run shows of a station near saturation.
//!
//! A law says how long requests wait in the mean of all runs. One run of a second sees one path: for long stretches nothing waits, and then
//! everything. Near saturation the path forgets its past more slowly than windows of a second pass, so the law is not what a window shows.
//!
//! The path is reflected Brownian motion, as the law is ([`crate::queue`]). Its next value is drawn exactly, however far away: the end of the
//! free path is normal, and its lowest point between two ends has a known law (Asmussen, Glynn and Pitman, Annals of Applied Probability
//! 1995, section 3). Seconds throughout.

use crate::math::{Draws, QUANTILES};
use crate::queue::{Part, Station};

/// Points in one segment, and in one relaxation time.
const LEAST_POINTS: f64 = 12.0;
pub(crate) const MOST_POINTS: f64 = 32.0;
const PER_RELAXATION: f64 = 2.0;
/// A station that forgets its past this many times in a segment shows its law there.
const FORGETFUL: f64 = 64.0;
/// Share of requests that wait below which waits move no p99.
const SELDOM: f64 = 0.002;
/// Waits, in mean waits of the equilibrium, up to which the share that does not wait is taken off the work ahead; beyond twice this nothing is.
const NEAR: f64 = 6.0;
/// Relaxation times that two instants have to be apart to count as two observations of the wait.
const APART: f64 = 1.0;

/// How a station's work ahead of a newcomer goes on from a known value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    drift: f64,
    s2: f64,
    cap_s: f64,
    /// Mean in equilibrium, and what of the work ahead keeps no request waiting; 0 beyond saturation.
    ell: f64,
    free_s: f64,
    pub points: u32,
}

impl Path {
    /// None where a segment shows the law.
    pub fn of(st: &Station, from_s: f64, h: f64) -> Option<Path> {
        let (drift, s2) = (st.rho() - 1.0, st.s2());
        if s2 <= 0.0 {
            return None;
        }
        let (mut ell, mut free_s) = (0.0, 0.0);
        if drift < 0.0 {
            ell = s2 / (-2.0 * drift);
            let far = from_s > 2.0 * NEAR * ell;
            if !far && (st.erlang() < SELDOM || h * drift * drift > FORGETFUL * s2) {
                return None;
            }
            free_s = -ell * st.erlang().max(1e-12).ln();
        }
        let points = (PER_RELAXATION * h * drift * drift / s2).clamp(LEAST_POINTS, MOST_POINTS) as u32;
        Some(Path { drift, s2, cap_s: st.cap_s, ell, free_s, points })
    }

    /// The work ahead after `dt`, and what of it was lost at the cap.
    pub fn next(&self, v: f64, dt: f64, draws: Draws, k: u64) -> (f64, f64) {
        let x = self.drift * dt + (self.s2 * dt).sqrt() * draws.gauss(2 * k);
        let lowest = 0.5 * (x - (x * x - 2.0 * self.s2 * dt * draws.uniform(2 * k + 1).ln()).sqrt());
        let v = x + v.max(-lowest);
        (v.min(self.cap_s), (v - self.cap_s).max(0.0))
    }

    /// How long a newcomer waits: in equilibrium exactly as many wait as the law says, and behind a backlog all wait for all of it.
    pub fn wait_s(&self, v: f64) -> f64 {
        let over = v - self.free_s;
        if over <= 0.0 {
            return 0.0;
        }
        over + self.free_s * (over / (NEAR * self.ell.max(f64::MIN_POSITIVE)) - 1.0).clamp(0.0, 1.0)
    }
}

/// Mean and percentiles of waits and their weights; sorts.
pub(crate) fn part_of(waits: &mut [(f64, f64)]) -> Part {
    waits.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = waits.iter().map(|x| x.1).sum();
    if all <= 0.0 {
        return Part::default();
    }
    let mean = waits.iter().map(|(w, x)| w * x).sum::<f64>() / all;
    let mut q = [0.0; 3];
    let (mut k, mut sum, mut before) = (0, 0.0, (0.0, waits[0].0));
    for (wait, weight) in waits.iter() {
        // In the middle of its weight.
        let here = (sum + 0.5 * weight) / all;
        while k < q.len() && QUANTILES[k] <= here {
            let share = if here > before.0 { (QUANTILES[k] - before.0) / (here - before.0) } else { 1.0 };
            q[k] = before.1 + (wait - before.1) * share;
            k += 1;
        }
        sum += weight;
        before = (here, *wait);
    }
    q[k..].fill(before.1);
    Part { mean, q }
}

/// Share of requests above a percentile's wait that one tick shows, where `p` are above it in the mean: instants of one relaxation time
/// show the same, so the share scatters as that of few requests does. `z` is a standard normal number.
pub(crate) fn share_above(st: &Station, tick_s: f64, p: f64, z: f64) -> f64 {
    let drift = st.rho() - 1.0;
    let n = tick_s * drift * drift / (APART * st.s2());
    let a = p * n + 0.5;
    // Wilson and Hilferty's gamma law.
    let x = (1.0 - 1.0 / (9.0 * a) + z / (3.0 * a.sqrt())).max(0.05);
    (a / n * x * x * x).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(rho: f64) -> Station {
        Station::new(rho * 8.0 / 1e-3, 1e-3, 8, 1.5, 1.0)
    }

    /// Shares of instants at which a newcomer waits for more than 0 and for more than each of some times.
    fn shares(st: &Station, dt: f64, n: u64, over_s: [f64; 2]) -> [f64; 3] {
        let path = Path::of(st, 1.0, 0.1).unwrap();
        let (mut v, mut seen) = (0.0, [0.0; 3]);
        let draws = Draws::new(&[7, n]);
        for k in 0..n {
            v = path.next(v, dt, draws, k).0;
            let wait_s = path.wait_s(v);
            seen.iter_mut().zip([0.0, over_s[0], over_s[1]]).for_each(|(s, over)| *s += f64::from(u8::from(wait_s > over)) / n as f64);
        }
        seen
    }

    /// As many wait, and for as long, as the law of the equilibrium says, however far apart the instants are.
    #[test]
    fn a_long_path_shows_the_law() {
        let st = station(0.9);
        let ell = st.s2() / 0.2;
        for (dt, n) in [(2e-3, 400_000), (20e-3, 100_000), (200e-3, 40_000)] {
            let got = shares(&st, dt, n, [ell, 2.0 * ell]);
            let want = [st.erlang(), st.erlang() * (-1f64).exp(), st.erlang() * (-2f64).exp()];
            for (g, w) in got.iter().zip(want) {
                assert!((g / w - 1.0).abs() < 0.06, "{dt} s: {got:?}, the law has {want:?}");
            }
        }
    }

    /// Behind a backlog all wait for all of it; nothing goes over the cap, and what does is lost.
    #[test]
    fn a_backlog_is_waited_for() {
        let path = Path::of(&station(0.9), 0.5, 0.1).unwrap();
        assert!((path.wait_s(0.5) - 0.5).abs() < 1e-12);
        assert!((0..1000).all(|k| path.wait_s(f64::from(k) * 1e-4) <= path.wait_s(f64::from(k + 1) * 1e-4)));
        let path = Path::of(&station(3.0), 0.9, 0.1).unwrap();
        let (v, lost_s) = path.next(0.95, 0.1, Draws::new(&[1]), 0);
        assert!(v == 1.0 && (lost_s - 0.15).abs() < 0.05, "{v} {lost_s}");
    }

    /// Where requests seldom wait, or the past is soon forgotten, there is no path to draw.
    #[test]
    fn the_law_is_shown_far_from_saturation() {
        assert!(Path::of(&station(0.2), 0.0, 0.1).is_none());
        assert!(Path::of(&station(0.5), 0.0, 10.0).is_none());
        assert!(Path::of(&Station::new(0.0, 0.0, 1, 0.0, 1.0), 0.0, 0.1).is_none());
    }

    /// Percentiles by weight.
    #[test]
    fn percentiles_follow_weights() {
        let mut waits: Vec<(f64, f64)> = (0..1000).map(|i| (f64::from(i), 1.0)).chain([(5000.0, 1000.0)]).collect();
        let part = part_of(&mut waits);
        assert!((part.mean - 2749.75).abs() < 1e-9 && part.q[1] > 3000.0, "{part:?}");
        let mut even: Vec<(f64, f64)> = (0..1000).map(|i| (f64::from(i), 2.0)).collect();
        let q = part_of(&mut even).q;
        assert!((q[0] - 499.5).abs() < 1.0 && (q[1] - 949.5).abs() < 1.0 && (q[2] - 989.5).abs() < 1.0, "{q:?}");
        assert_eq!(part_of(&mut []), Part::default());
    }

    /// Few observations scatter around the law's share, and many show it.
    #[test]
    fn shares_above_scatter_as_few_observations_do() {
        let st = station(0.6);
        let of = |tick_s: f64| {
            let all: Vec<f64> = (0..2000).map(|k| share_above(&st, tick_s, 0.01, Draws::new(&[3]).gauss(k))).collect();
            let mean = all.iter().sum::<f64>() / 2000.0;
            (mean, (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2000.0).sqrt())
        };
        let (few, many) = (of(0.1), of(100.0));
        assert!((many.0 / 0.01 - 1.0).abs() < 0.02 && many.1 < 0.002, "{many:?}");
        assert!(few.0 > 0.008 && few.0 < 0.03 && few.1 > 0.004, "{few:?}");
    }
}
