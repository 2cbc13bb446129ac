//! Percentiles over the last second from the percentiles of its intervals.
//!
//! Where whole histograms are at hand (linux), they are merged and this is not needed. The virtual server reports each
//! 100 ms interval as count, p50, p95 and p99: the window is the mixture of these laws, each with its upper tail
//! interpolated in log probability (exact for exponential tails), weighted with the counts.

use crate::observation::{Latency, Verdict};

/// Length of the window on which QoS is judged (design: p99 over the last second).
pub const WINDOW_MS: u64 = 1000;
/// Below this many requests a control window has no p99 (a policy cannot wait for an interval).
pub const MIN_COUNT_P99: u64 = 100;
/// Fewest requests with which the 95 % interval of a p99 has an upper end: 1 - 0.99^n >= 0.975. Below it a sample of a
/// campaign is not resolvable.
pub const MIN_COUNT_P99_INTERVAL: u64 = 368;

/// P(latency > x) of one interval.
fn upper(l: &Latency, x_ms: f64) -> f64 {
    const LN20: f64 = 2.995_732_273_553_991;
    const LN5: f64 = 1.609_437_912_434_100_3;
    let (p50, p95, p99) = (l.p50_ms, l.p95_ms, l.p99_ms);
    if x_ms < p50 {
        return if p50 > 0.0 { 1.0 - 0.5 * x_ms / p50 } else { 1.0 };
    }
    let between = |lo: f64, hi: f64, from: f64, to: f64| {
        let share = if hi > lo { (x_ms - lo) / (hi - lo) } else { 1.0 };
        (from + share.min(1.0) * (to - from)).exp()
    };
    if x_ms < p95 {
        between(p50, p95, 0.5f64.ln(), -LN20)
    } else if x_ms < p99 {
        between(p95, p99, -LN20, 0.01f64.ln())
    } else if p99 > p95 {
        0.01 * (-(x_ms - p99) / (p99 - p95) * LN5).exp()
    } else if x_ms > p99 {
        0.0
    } else {
        0.01
    }
}

/// Quantile of the mixture of intervals; `upper_p` = 0.01 for p99.
pub fn mixture_quantile(intervals: &[Latency], upper_p: f64) -> Option<f64> {
    let total: f64 = intervals.iter().map(|l| l.count as f64).sum();
    if total <= 0.0 {
        return None;
    }
    let tail = |x: f64| intervals.iter().map(|l| l.count as f64 * upper(l, x)).sum::<f64>() / total;
    let mut hi = intervals.iter().map(|l| l.p99_ms).fold(1e-6, f64::max);
    let mut lo = 0.0;
    while tail(hi) > upper_p && hi < 1e12 {
        lo = hi;
        hi *= 2.0;
    }
    for _ in 0..60 {
        let mid = 0.5 * (lo + hi);
        if tail(mid) > upper_p {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    Some(hi)
}

/// The window that a list of intervals makes, oldest first; None without completions.
pub fn merge(intervals: &[Latency], interval_ms: f64) -> Option<Latency> {
    let count: u64 = intervals.iter().map(|l| l.count).sum();
    let errors = intervals.iter().map(|l| l.errors).sum();
    let quantile = |p| mixture_quantile(intervals, p);
    let worst = intervals.iter().map(|l| l.verdict).find(|v| !matches!(v, Verdict::Valid | Verdict::NotResolvable));
    let enough = if count >= MIN_COUNT_P99 { Verdict::Valid } else { Verdict::NotResolvable };
    Some(Latency {
        count,
        mean_ms: intervals.iter().map(|l| l.mean_ms * l.count as f64).sum::<f64>() / count.max(1) as f64,
        p50_ms: quantile(0.5)?,
        p95_ms: quantile(0.05)?,
        p99_ms: quantile(0.01)?,
        p99_low_ms: None,
        p99_high_ms: None,
        achieved_rps: count as f64 / (intervals.len() as f64 * interval_ms * 1e-3),
        errors,
        verdict: worst.unwrap_or(enough),
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

    /// A window without completions has no latency.
    #[test]
    fn nothing_completed_is_unknown() {
        assert!(merge(&[], 100.0).is_none());
        assert!(merge(&[exponential(0, 1.0)], 100.0).is_none());
    }
}
