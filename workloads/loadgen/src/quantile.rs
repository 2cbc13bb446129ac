//! Percentiles with their sample count, an interval from order statistics, and whether they exist at all.
//!
//! The interval for the q-quantile of n independent samples is [X(l), X(u)]: l and u are the ranks that a Binomial(n, q) count stays
//! between with the wanted confidence. It needs no assumption on the latency's law. When u would lie beyond n, the data cannot bound
//! the quantile from above: it is *not resolvable* (95 %: p99 needs 368 samples, p99.9 needs 3,688).
//!
//! Latencies of neighbouring requests are alike (they queue behind one another), so n samples tell less than n independent ones, and
//! the plain interval is too narrow. Run-level intervals therefore use an effective count n / d, where d is the design effect: the
//! variance of the share of samples above the quantile, as seen between [`BATCHES`] consecutive batches, over its binomial value
//! (never below 1, widened by Student's t for the number of batches). Windows of 100 ms are too short for that and use d = 1.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Consecutive batches for the design effect.
pub const BATCHES: usize = 32;

/// Can the data bound this percentile?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resolution {
    Valid,
    NotResolvable,
}

/// One percentile. Milliseconds; `None` where there is none (never 0).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quantile {
    /// Level, e.g. 0.99.
    pub q: f64,
    /// The sample quantile; `None` without samples, or if it falls among requests that never got a reply.
    pub value_ms: Option<f64>,
    pub lower_ms: Option<f64>,
    pub upper_ms: Option<f64>,
    /// Samples, lost requests included (they count as slower than every reply).
    pub count: u64,
    /// Independent samples that these are worth; see the module doc.
    pub effective_count: u64,
    pub verdict: Resolution,
}

/// Summary of one of the latencies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    /// Requests that got no usable reply; they count as infinitely slow.
    pub lost: u64,
    pub mean_ms: Option<f64>,
    pub max_ms: Option<f64>,
    pub p50: Quantile,
    pub p95: Quantile,
    pub p99: Quantile,
    pub p999: Quantile,
}

/// ln Γ(x), Lanczos (g = 7, n = 9).
fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = C[0] + (1..9).map(|i| C[i] / (x + i as f64)).sum::<f64>();
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction.
fn beta_inc(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_inc(b, a, 1.0 - x);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let tiny = 1e-300;
    let (mut c, mut d) = (1.0, 1.0 - (a + b) * x / (a + 1.0));
    d = 1.0 / if d.abs() < tiny { tiny } else { d };
    let mut h = d;
    for m in 1..200_000 {
        let m = m as f64;
        for even in [true, false] {
            let k = if even {
                m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
            } else {
                -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
            };
            d = 1.0 + k * d;
            d = 1.0 / if d.abs() < tiny { tiny } else { d };
            c = 1.0 + k / c;
            c = if f64::abs(c) < tiny { tiny } else { c };
            h *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    front * h
}

/// P(Binomial(n, p) <= k).
pub fn binomial_cdf(k: i64, n: u64, p: f64) -> f64 {
    if k < 0 {
        0.0
    } else if k as u64 >= n {
        1.0
    } else {
        beta_inc((n - k as u64) as f64, k as f64 + 1.0, 1.0 - p)
    }
}

/// Standard normal quantile (Acklam's approximation, relative error below 1.2e-9).
#[allow(clippy::unreadable_literal, clippy::excessive_precision)]
pub fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.383577518672690e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 5] =
        [-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01, -1.328068155288572e+01];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 4] = [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00];
    if p < 0.02425 {
        let q = (-2.0 * p.ln()).sqrt();
        (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5]) / ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1.0)
    } else if p > 1.0 - 0.02425 {
        -normal_quantile(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q
            / (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1.0)
    }
}

/// Student's t quantile (Cornish-Fisher; within 0.5 % from 10 degrees of freedom on).
pub fn student_quantile(p: f64, dof: f64) -> f64 {
    let z = normal_quantile(p);
    let (z3, z5) = (z.powi(3), z.powi(5));
    z + (z3 + z) / (4.0 * dof) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * dof * dof)
}

/// Ranks (1-based) of the order statistics that bound the q-quantile of n independent samples; `None` for a bound that does not exist.
pub fn order_ranks(n: u64, q: f64, confidence: f64) -> (Option<u64>, Option<u64>) {
    if n == 0 {
        return (None, None);
    }
    let alpha = 1.0 - confidence;
    // Smallest k with P(Bin <= k) >= target, from a normal guess onwards.
    let smallest = |target: f64| -> i64 {
        let mean = n as f64 * q;
        let sd = (mean * (1.0 - q)).sqrt();
        let mut k = (mean + normal_quantile(target) * sd).round().clamp(0.0, n as f64) as i64;
        while k > 0 && binomial_cdf(k - 1, n, q) >= target {
            k -= 1;
        }
        while binomial_cdf(k, n, q) < target {
            k += 1;
        }
        k
    };
    // P(Bin <= l - 1) <= alpha / 2, l as large as possible.
    let mut lower = smallest(alpha / 2.0);
    if binomial_cdf(lower, n, q) <= alpha / 2.0 {
        lower += 1;
    }
    // P(Bin <= u - 1) >= 1 - alpha / 2, u as small as possible.
    let upper = smallest(1.0 - alpha / 2.0) + 1;
    let lower = (lower >= 1).then_some(lower as u64);
    let upper = (upper as u64 <= n).then_some(upper as u64);
    (lower, upper)
}

/// Values at ascending 1-based ranks, in one pass; a rank beyond the histogram's count gives `None`.
fn at_ranks(h: &Histogram<u64>, ranks: &mut [(u64, Option<u64>)]) {
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|&i| ranks[i].0);
    let mut next = 0;
    let mut seen = 0;
    for v in h.iter_recorded() {
        seen += v.count_since_last_iteration();
        while next < order.len() && ranks[order[next]].0 <= seen {
            ranks[order[next]].1 = Some(h.median_equivalent(v.value_iterated_to()));
            next += 1;
        }
        if next == order.len() {
            return;
        }
    }
}

/// The value at level `q` of a histogram's own samples.
pub fn plain_quantile_ns(h: &Histogram<u64>, q: f64) -> Option<u64> {
    let mut rank = [((q * h.len() as f64).ceil().max(1.0) as u64, None)];
    at_ranks(h, &mut rank);
    rank[0].1
}

/// Independent samples that the batches' samples are worth for a quantile at `value_ns`.
fn effective_count(batches: &[(&Histogram<u64>, u64)], total: u64, value_ns: u64, confidence: f64) -> u64 {
    let used: Vec<(f64, f64)> = batches
        .iter()
        .map(|(h, lost)| {
            let n = h.len() + lost;
            // The histogram's own bucket edge, so that every batch cuts at the same place.
            let cut = h.highest_equivalent(value_ns);
            (n as f64, (n - h.count_between(0, cut).min(h.len())) as f64)
        })
        .filter(|(n, _)| *n > 0.0)
        .collect();
    let b = used.len() as f64;
    let n: f64 = used.iter().map(|u| u.0).sum();
    let share = used.iter().map(|u| u.1).sum::<f64>() / n.max(1.0);
    if b < 8.0 || share <= 0.0 || share >= 1.0 {
        return total;
    }
    let var = b / (b - 1.0) * used.iter().map(|(n, k)| (k - share * n).powi(2)).sum::<f64>() / (n * n);
    let level = 0.5 + confidence / 2.0;
    let widen = (student_quantile(level, b - 1.0) / normal_quantile(level)).powi(2);
    let design = (var / (share * (1.0 - share) / n) * widen).max(1.0);
    (total as f64 / design).floor().max(1.0) as u64
}

/// How many samples lie above a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareAbove {
    /// Samples, lost requests included.
    pub count: u64,
    /// Above the bound (to the histogram's three digits), or lost.
    pub above: u64,
    /// Independent samples that they are worth, at the bound and at their own p99, whichever is fewer.
    pub effective_count: u64,
}

/// Count what lies above `bound_ns`. `batches`: as for [`summarise`].
pub fn share_above(h: &Histogram<u64>, lost: u64, batches: &[(&Histogram<u64>, u64)], bound_ns: u64, confidence: f64) -> ShareAbove {
    let count = h.len() + lost;
    let below = h.count_between(0, h.highest_equivalent(bound_ns)).min(h.len());
    let worth = |at_ns| if batches.is_empty() { count } else { effective_count(batches, count, at_ns, confidence) };
    // None above the bound says nothing about how such requests come; those at the p99 do.
    let effective_count = plain_quantile_ns(h, 0.99).map_or(count, |p99| worth(p99).min(worth(bound_ns)));
    ShareAbove { count, above: count - below, effective_count }
}

/// Summarise a histogram of ns. `batches`: consecutive parts of the same samples with their lost counts; empty = take samples as independent.
pub fn summarise(h: &Histogram<u64>, lost: u64, batches: &[(&Histogram<u64>, u64)], confidence: f64) -> Latency {
    let total = h.len() + lost;
    let ms = |ns: u64| ns as f64 * 1e-6;
    let quantile = |q: f64| {
        let mut point = [((q * total as f64).ceil().max(1.0) as u64, None)];
        at_ranks(h, &mut point);
        let value = point[0].1;
        let effective = match value {
            Some(v) if !batches.is_empty() => effective_count(batches, total, v, confidence),
            _ => total,
        };
        let (lower, upper) = order_ranks(effective, q, confidence);
        let scale = total as f64 / effective.max(1) as f64;
        let mut bounds = [
            (lower.map_or(0, |l| ((l as f64 * scale).floor() as u64).clamp(1, total)), None),
            (upper.map_or(u64::MAX, |u| ((u as f64 * scale).ceil() as u64).min(total)), None),
        ];
        if lower.is_none() {
            bounds[0].0 = u64::MAX;
        }
        at_ranks(h, &mut bounds);
        let (lower_ns, upper_ns) = (bounds[0].1, bounds[1].1);
        let resolved = value.is_some() && lower_ns.is_some() && upper_ns.is_some();
        Quantile {
            q,
            value_ms: value.map(ms),
            lower_ms: lower_ns.map(ms),
            upper_ms: upper_ns.map(ms),
            count: total,
            effective_count: effective,
            verdict: if resolved { Resolution::Valid } else { Resolution::NotResolvable },
        }
    };
    Latency {
        count: h.len(),
        lost,
        mean_ms: (!h.is_empty()).then(|| h.mean() * 1e-6),
        max_ms: (!h.is_empty()).then(|| ms(h.max())),
        p50: quantile(0.5),
        p95: quantile(0.95),
        p99: quantile(0.99),
        p999: quantile(0.999),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{draw, unit};

    /// Against the sum of exact terms.
    #[test]
    fn binomial_cdf_is_exact() {
        for (n, p) in [(10u64, 0.5), (100, 0.99), (368, 0.99), (2000, 0.999)] {
            let mut term = (1.0f64 - p).powi(n as i32);
            if term == 0.0 {
                continue;
            }
            let mut sum = 0.0;
            for k in 0..=n {
                sum += term;
                let got = binomial_cdf(k as i64, n, p);
                assert!((got - sum).abs() < 1e-9, "n {n} p {p} k {k}: {got} {sum}");
                term *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
            }
        }
        // Large n, at the mean: about one half.
        assert!((binomial_cdf(99_000_000, 100_000_000, 0.99) - 0.5).abs() < 1e-3);
    }

    /// 1 - q^n >= 0.975 first at n = ceil(ln 0.025 / ln q): p99 368, p99.9 3688, p50 6.
    #[test]
    fn a_percentile_needs_enough_samples() {
        for (q, need) in [(0.5, 6), (0.99, 368), (0.999, 3688)] {
            assert_eq!(order_ranks(need - 1, q, 0.95).1, None, "{q}");
            assert_eq!(order_ranks(need, q, 0.95).1, Some(need), "{q}");
        }
    }

    /// Textbook: the median of 20 samples lies between the 6th and the 15th with 95.9 %.
    #[test]
    fn median_of_twenty() {
        assert_eq!(order_ranks(20, 0.5, 0.95), (Some(6), Some(15)));
    }

    #[test]
    fn normal_and_student_tables() {
        assert!((normal_quantile(0.975) - 1.959_964).abs() < 1e-5);
        assert!((normal_quantile(0.005) + 2.575_829).abs() < 1e-5);
        assert!((student_quantile(0.975, 31.0) - 2.0395).abs() < 2e-3);
        assert!((student_quantile(0.995, 31.0) - 2.744).abs() < 3e-3);
    }

    /// The stated 95 % interval covers the true p99 of independent samples about 95 % of the time.
    #[test]
    fn interval_covers_as_stated() {
        let (runs, n) = (600, 2000);
        let truth_ms = -(0.01f64).ln();
        let mut hit = 0;
        for run in 0..runs {
            let mut h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
            for i in 0..n {
                h.record((-unit(draw(run, 9, i)).ln() * 1e6) as u64 + 1).unwrap();
            }
            let p99 = summarise(&h, 0, &[], 0.95).p99;
            assert_eq!(p99.verdict, Resolution::Valid);
            let covered = p99.lower_ms.unwrap() <= truth_ms && truth_ms <= p99.upper_ms.unwrap();
            hit += u32::from(covered);
        }
        // Order-statistic intervals cover at least 95 %; 600 runs have a standard deviation of 0.9 %.
        let share = f64::from(hit) / runs as f64;
        assert!((0.93..=0.985).contains(&share), "{share}");
    }

    /// Lost requests are slower than every reply: enough of them and the percentile is gone, not better.
    #[test]
    fn lost_requests_push_percentiles_up() {
        let mut h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
        for i in 1..=9800u64 {
            h.record(i * 1000).unwrap();
        }
        let l = summarise(&h, 200, &[], 0.95);
        assert_eq!(l.p99.value_ms, None);
        assert_eq!(l.p99.verdict, Resolution::NotResolvable);
        // Rank 9500 of 10000.
        assert!((l.p95.value_ms.unwrap() - 9.5).abs() < 0.01);
    }

    /// Samples above a bound are counted with those that were lost, and bursts of them are worth fewer.
    #[test]
    fn samples_above_a_bound() {
        let part = |slow: u64| {
            let mut h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
            h.record_n(1_000_000, 1000 - slow).unwrap();
            h.record_n(20_000_000, slow).unwrap();
            h
        };
        let share = |parts: &[Histogram<u64>]| {
            let mut all = part(0);
            all.reset();
            parts.iter().for_each(|p| all.add(p).unwrap());
            let batches: Vec<(&Histogram<u64>, u64)> = parts.iter().map(|p| (p, 0)).collect();
            share_above(&all, 0, &batches, 10_000_000, 0.95)
        };
        // 20 a batch in each of 32, or all of them in two.
        let even = share(&(0..32).map(|_| part(20)).collect::<Vec<_>>());
        assert_eq!(even, ShareAbove { count: 32_000, above: 640, effective_count: 32_000 });
        let bursts = share(&(0..32).map(|i| part(if i % 16 == 0 { 320 } else { 0 })).collect::<Vec<_>>());
        assert_eq!((bursts.count, bursts.above), (32_000, 640));
        assert!(bursts.effective_count < 320, "{}", bursts.effective_count);
        assert_eq!(share_above(&part(7), 5, &[], 10_000_000, 0.95), ShareAbove { count: 1005, above: 12, effective_count: 1005 });
        // A sample in the bound's own bucket is not above it.
        assert_eq!(share_above(&part(7), 0, &[], 20_000_000, 0.95).above, 0);
    }

    /// No samples: nothing, and never zero.
    #[test]
    fn nothing_is_not_zero() {
        let h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
        let l = summarise(&h, 0, &[], 0.95);
        assert_eq!((l.mean_ms, l.max_ms, l.p50.value_ms, l.p99.upper_ms), (None, None, None, None));
    }
}
