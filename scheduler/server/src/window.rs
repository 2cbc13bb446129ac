//! The window that QoS is judged by: how long it is, what verdict it has; and its percentiles from those of its intervals.
//!
//! Where whole histograms are at hand (linux), they are merged and this is not needed. The virtual server reports each
//! 100 ms interval as count, p50, p95 and p99: the window is the mixture of these laws, each with its upper tail
//! interpolated in log probability (exact for exponential tails), weighted with the counts.

use crate::observation::{Latency, Verdict};

/// Length of the window on which QoS is judged (design: p99 over the last second).
pub const WINDOW_MS: u64 = 1000;
/// Where a second has too few requests for a p99 the window grows up to this, ms.
///
/// Five requests a second reach [`MIN_COUNT_P99`] in it, which are the slowest services of the papers at a third of their load. In ten
/// seconds they have 50, whose p99 is their slowest: one request in a hundred late would be a miss of the target.
pub const LONGEST_WINDOW_MS: u64 = 20_000;
/// Without a word from its feed for longer than this a service's latency is unknown, ms.
pub const SILENT_MS: u64 = 1000;
/// Below this many requests a control window has no p99 (a policy cannot wait for an interval).
pub const MIN_COUNT_P99: u64 = 100;
/// Fewest requests with which the 95 % interval of a p99 has an upper end: 1 - 0.99^n >= 0.975. Below it a sample of a
/// campaign is not resolvable.
pub const MIN_COUNT_P99_INTERVAL: u64 = 368;

/// A service that completes less than this share of what is offered is overloaded: its queue grows, so its p99 does.
///
/// 1 %: the verdicts of samples and of load generators are that strict, and a model learns from them what a policy is to meet.
pub const LEAST_COMPLETED: f64 = 0.99;

/// Whether a service is overloaded. `lost_frac`: the share of the offered requests that is lost.
pub fn overloaded(achieved_rps: f64, offered_rps: f64, lost_frac: f64) -> bool {
    achieved_rps < LEAST_COMPLETED * offered_rps || lost_frac > 1.0 - LEAST_COMPLETED
}

/// Length of the window that QoS is judged by, ms: the last second, longer by whole seconds until it counts [`MIN_COUNT_P99`]
/// requests. `count_within`: requests that completed in the last so many ms.
pub fn span_ms(mut count_within: impl FnMut(u64) -> u64) -> u64 {
    let mut span_ms = WINDOW_MS;
    while span_ms < LONGEST_WINDOW_MS && count_within(span_ms) < MIN_COUNT_P99 {
        span_ms += WINDOW_MS;
    }
    span_ms
}

/// Milliseconds that a window reaches back: a second, or longer where a second has too few requests.
pub fn reach_ms(w: &Latency) -> u64 {
    let long_ms = w.count as f64 / w.achieved_rps * 1000.0;
    if long_ms.is_finite() {
        WINDOW_MS.max(long_ms.round() as u64)
    } else {
        WINDOW_MS
    }
}

/// The verdict on several intervals taken together, which have `count` requests.
///
/// One interval rarely has enough requests for a p99 of its own; together they may, so that is counted again. What the client spoilt
/// says nothing of the server, so that comes first.
pub fn verdict(of: impl Iterator<Item = Verdict> + Clone, count: u64) -> Verdict {
    let worst = [Verdict::ClientLimited, Verdict::ServerOverloaded].into_iter().find(|v| of.clone().any(|o| o == *v));
    worst.unwrap_or(if count >= MIN_COUNT_P99 { Verdict::Valid } else { Verdict::NotResolvable })
}

const LN2: f64 = std::f64::consts::LN_2;
const LN5: f64 = 1.609_437_912_434_100_3;
const LN20: f64 = 2.995_732_273_553_991;
/// ln 0.01 as f64 rounds it.
const LN_P99: f64 = -4.605_170_185_988_091;

/// P(latency > x) of one interval.
fn upper(l: &Latency, x_ms: f64) -> f64 {
    let (p50, p95, p99) = (l.p50_ms, l.p95_ms, l.p99_ms);
    if x_ms < p50 {
        return if p50 > 0.0 { 1.0 - 0.5 * x_ms / p50 } else { 1.0 };
    }
    let between = |lo: f64, hi: f64, from: f64, to: f64| {
        let share = if hi > lo { (x_ms - lo) / (hi - lo) } else { 1.0 };
        (from + share.min(1.0) * (to - from)).exp()
    };
    if x_ms < p95 {
        between(p50, p95, -LN2, -LN20)
    } else if x_ms < p99 {
        between(p95, p99, -LN20, LN_P99)
    } else if p99 > p95 {
        0.01 * (-(x_ms - p99) / (p99 - p95) * LN5).exp()
    } else if x_ms > p99 {
        0.0
    } else {
        0.01
    }
}

/// Density of [`upper`] at `x_ms`, given its value `u` there, per ms.
fn density(l: &Latency, x_ms: f64, u: f64) -> f64 {
    let (p50, p95, p99) = (l.p50_ms, l.p95_ms, l.p99_ms);
    if x_ms < p50 {
        0.5 / p50
    } else if x_ms < p95 {
        u * (LN20 - LN2) / (p95 - p50)
    } else if p99 > p95 {
        u * LN5 / (p99 - p95)
    } else {
        0.0
    }
}

/// Several intervals, weighted with their counts.
struct Mixture<'a> {
    intervals: &'a [Latency],
    total: f64,
    /// All percentiles finite and in order: the tail falls with x.
    ordered: bool,
}

impl<'a> Mixture<'a> {
    fn new(intervals: &'a [Latency]) -> Self {
        let in_order = |l: &Latency| 0.0 <= l.p50_ms && l.p50_ms <= l.p95_ms && l.p95_ms <= l.p99_ms && l.p99_ms < f64::INFINITY;
        Mixture { intervals, total: intervals.iter().map(|l| l.count as f64).sum(), ordered: intervals.iter().all(in_order) }
    }

    fn tail(&self, x_ms: f64) -> f64 {
        self.intervals.iter().map(|l| l.count as f64 * upper(l, x_ms)).sum::<f64>() / self.total
    }

    fn tail_and_density(&self, x_ms: f64) -> (f64, f64) {
        let (mut tail, mut slope) = (0.0, 0.0);
        for l in self.intervals {
            let u = upper(l, x_ms);
            tail += l.count as f64 * u;
            slope += l.count as f64 * density(l, x_ms, u);
        }
        (tail / self.total, slope / self.total)
    }

    /// Bisection to the last bit; the tail is evaluated only where [`Mixture::bracket`] leaves a doubt.
    fn quantile(&self, upper_p: f64, guess_ms: f64) -> Option<f64> {
        // Without completions, or with counts that are no number.
        if self.total.is_nan() || self.total <= 0.0 {
            return None;
        }
        let mut hi = self.intervals.iter().map(|l| l.p99_ms).fold(1e-6, f64::max);
        let mut lo = 0.0;
        // Beyond every p99 there is hardly more than 1 % left.
        let surely_low = self.ordered && upper_p > 0.011;
        while !surely_low && self.tail(hi) > upper_p && hi < 1e12 {
            lo = hi;
            hi *= 2.0;
        }
        let (surely_above, surely_below) =
            if self.ordered { self.bracket(upper_p, guess_ms, lo, hi) } else { (f64::NEG_INFINITY, f64::INFINITY) };
        for _ in 0..60 {
            let mid = 0.5 * (lo + hi);
            if mid == lo || mid == hi {
                break;
            }
            if mid <= surely_above || (mid < surely_below && self.tail(mid) > upper_p) {
                lo = mid;
            } else {
                hi = mid;
            }
        }
        Some(hi)
    }

    /// Two points close to the quantile, with the tail above `upper_p` at the first and below it at the second by more than
    /// rounding can make up: at or beyond them there is nothing to evaluate. Newton steps on the logarithm of the tail, in
    /// which exponential tails are straight.
    fn bracket(&self, upper_p: f64, guess_ms: f64, lo: f64, hi: f64) -> (f64, f64) {
        // Error of `tail`: a few units in the last place of each term, and one for each addition; twice, for two points.
        let doubt = 4e-15 + 2.5e-16 * self.intervals.len() as f64;
        let (mut above, mut below) = (f64::NEG_INFINITY, f64::INFINITY);
        let (mut lo, mut hi) = (lo, hi);
        let mut x = guess_ms;
        for _ in 0..60 {
            if !(x > lo && x < hi) {
                x = 0.5 * (lo + hi);
            }
            let (tail, density) = self.tail_and_density(x);
            if tail > upper_p {
                lo = x;
            } else {
                hi = x;
            }
            if tail > upper_p * (1.0 + doubt) {
                above = x;
            } else if tail < upper_p * (1.0 - doubt) {
                below = x;
            }
            let step = (tail / upper_p).ln() * tail / density;
            x += step;
            if step.abs() < 1e-8 * x {
                // The next point is exact to rounding. Step aside on either side, as far as the doubt reaches.
                let aside = (2.0 * doubt * tail / density).max(4.0 * f64::EPSILON * x);
                for far in [1.0, 100.0] {
                    if above < x - far * aside && self.tail(x - far * aside) > upper_p * (1.0 + doubt) {
                        above = x - far * aside;
                    }
                    if below > x + far * aside && self.tail(x + far * aside) < upper_p * (1.0 - doubt) {
                        below = x + far * aside;
                    }
                    if above > x - 101.0 * aside && below < x + 101.0 * aside {
                        break;
                    }
                }
                break;
            }
            if hi - lo < 1e-13 * hi {
                break;
            }
        }
        (above, below)
    }
}

/// Quantile of the mixture of intervals; `upper_p` = 0.01 for p99.
pub fn mixture_quantile(intervals: &[Latency], upper_p: f64) -> Option<f64> {
    Mixture::new(intervals).quantile(upper_p, 0.0)
}

/// What a window tells of response times beside their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tells {
    #[default]
    All,
    /// p50 and p95 are NaN: each percentile costs a microsecond.
    P99,
}

/// The window that a list of intervals makes, oldest first; None without completions.
pub fn merge(intervals: &[Latency], interval_ms: f64) -> Option<Latency> {
    merge_told(intervals, interval_ms, Tells::All)
}

/// The same, as far as it is to be told.
pub fn merge_told(intervals: &[Latency], interval_ms: f64, tells: Tells) -> Option<Latency> {
    let count: u64 = intervals.iter().map(|l| l.count).sum();
    let errors = intervals.iter().map(|l| l.errors).sum();
    let mixture = Mixture::new(intervals);
    // The mean of the intervals' own is close, unless one of them is slow.
    let mean = |of: fn(&Latency) -> f64| intervals.iter().map(|l| of(l) * l.count as f64).sum::<f64>() / count.max(1) as f64;
    Some(Latency {
        count,
        mean_ms: mean(|l| l.mean_ms),
        p50_ms: if tells == Tells::All { mixture.quantile(0.5, mean(|l| l.p50_ms))? } else { f64::NAN },
        p95_ms: if tells == Tells::All { mixture.quantile(0.05, mean(|l| l.p95_ms))? } else { f64::NAN },
        p99_ms: mixture.quantile(0.01, mean(|l| l.p99_ms))?,
        p99_low_ms: None,
        p99_high_ms: None,
        achieved_rps: count as f64 / (intervals.len() as f64 * interval_ms * 1e-3),
        errors,
        verdict: verdict(intervals.iter().map(|l| l.verdict), count),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponential(count: u64, mean_ms: f64) -> Latency {
        let q = |p: f64| -mean_ms * p.ln();
        Latency {
            count,
            mean_ms,
            p50_ms: q(0.5),
            p95_ms: q(0.05),
            p99_ms: q(0.01),
            p99_low_ms: None,
            p99_high_ms: None,
            achieved_rps: 0.0,
            errors: 0,
            verdict: Verdict::Valid,
        }
    }

    /// Ten equal intervals make a window with the same percentiles.
    #[test]
    fn equal_intervals_keep_their_percentiles() {
        let w = merge(&[exponential(100, 2.0); 10], 100.0).unwrap();
        assert!((w.p99_ms / (2.0 * 100f64.ln()) - 1.0).abs() < 1e-6, "{w:?}");
        assert_eq!((w.count, w.achieved_rps), (1000, 1000.0));
    }

    /// One interval of ten that is 100 times slower owns the p99: P(X > x) = 0.1 exp(-x / 200 ms) = 0.01 at 460.5 ms.
    #[test]
    fn a_slow_interval_owns_the_p99() {
        let mut v = vec![exponential(100, 2.0); 9];
        v.push(exponential(100, 200.0));
        let p99 = merge(&v, 100.0).unwrap().p99_ms;
        assert!((p99 - 200.0 * 10f64.ln()).abs() < 1.0, "{p99}");
    }

    /// Evaluating the tail only where it is in doubt changes no bit of the answer: plain bisection gives the same, whatever the
    /// intervals are.
    #[test]
    fn quantiles_are_those_of_plain_bisection() {
        let plain = |intervals: &[Latency], p: f64| {
            let mix = Mixture::new(intervals);
            let (mut lo, mut hi) = (0.0, intervals.iter().map(|l| l.p99_ms).fold(1e-6, f64::max));
            while mix.tail(hi) > p && hi < 1e12 {
                lo = hi;
                hi *= 2.0;
            }
            for _ in 0..60 {
                let mid = 0.5 * (lo + hi);
                if mix.tail(mid) > p {
                    lo = mid;
                } else {
                    hi = mid;
                }
            }
            hi
        };
        let mut bits = 1u64;
        let mut random = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (bits >> 11) as f64 / (1u64 << 53) as f64
        };
        for round in 0..3000 {
            let spread = [0.01, 1.0, 12.0][round % 3];
            let n = [10, 1, 3, 200][round % 4];
            let list: Vec<Latency> = (0..n)
                .map(|_| {
                    let mean_ms = (spread * (random() - 0.5)).exp();
                    let mut l = exponential((random() * 700.0) as u64, mean_ms);
                    // Laws of other shapes: gaps, steps, and no spread at all.
                    match (random() * 8.0) as u32 {
                        0 => l.p99_ms = l.p95_ms,
                        1 => l.p95_ms = l.p50_ms,
                        2 => (l.p50_ms, l.p95_ms, l.p99_ms) = (mean_ms, mean_ms, mean_ms),
                        3 => l.p50_ms = 0.0,
                        4 => l.p95_ms = l.p50_ms + random() * (l.p99_ms - l.p50_ms),
                        _ => {}
                    }
                    l
                })
                .collect();
            let Some(w) = merge(&list, 100.0) else { continue };
            for (p, got) in [(0.5, w.p50_ms), (0.05, w.p95_ms), (0.01, w.p99_ms)] {
                assert_eq!(got.to_bits(), plain(&list, p).to_bits(), "round {round}, upper {p}");
                assert_eq!(mixture_quantile(&list, p), Some(got));
            }
        }
    }

    /// A window grows by whole seconds until it counts enough, up to its longest.
    #[test]
    fn a_window_grows_until_it_counts_enough() {
        let of = |rps: u64| span_ms(|ms| rps * ms / 1000);
        assert_eq!([200, 100, 99, 50, 34, 10, 5, 4, 0].map(of), [1000, 1000, 2000, 2000, 3000, 10_000, 20_000, 20_000, 20_000]);
    }

    /// 1 % less than offered is still met, and so is a loss of 1 %.
    #[test]
    fn overload_begins_below_99_of_100() {
        let of = |done: f64, lost: f64| overloaded(done, 1000.0, lost);
        assert_eq!([of(990.0, 0.0), of(989.0, 0.0), of(1000.0, 0.0099), of(1000.0, 0.011)], [false, true, false, true]);
    }

    /// What the client spoilt comes before overload, whichever came first; enough requests together are enough.
    #[test]
    fn the_worst_verdict_is_that_of_all() {
        use Verdict::{ClientLimited, NotResolvable, ServerOverloaded, Valid};
        let of = |list: &[Verdict], count| verdict(list.iter().copied(), count);
        assert_eq!(of(&[ServerOverloaded, ClientLimited, Valid], 1000), ClientLimited);
        assert_eq!(
            (of(&[Valid, ServerOverloaded], 1), of(&[NotResolvable; 2], 100), of(&[Valid], 99)),
            (ServerOverloaded, Valid, NotResolvable)
        );
    }

    /// A window without completions has no latency.
    #[test]
    fn nothing_completed_is_unknown() {
        assert!(merge(&[], 100.0).is_none());
        assert!(merge(&[exponential(0, 1.0)], 100.0).is_none());
    }
}
