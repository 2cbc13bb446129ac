//! Latency and verdict of a whole case from the windows of its samples. The load generator's own report cannot give them: it was told
//! its warm-up before anybody knew how long the settling would take. Statistics and rules are the load generator's, so that there is one
//! of each; what only the client can know (whether it kept its schedule) comes from its report.

use crate::feed::Interval;
use hdrhistogram::Histogram;
use surefoot_loadgen::quantile::summarise;
use surefoot_loadgen::verdict::{judge, Evidence, Rules, VerdictKind};
use surefoot_server::{Latency, Verdict};

/// Confidence of the intervals, as everywhere.
const CONFIDENCE: f64 = 0.95;

/// What the client says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// Why it was at its limit; None: it kept its schedule.
    pub limited: Option<String>,
    /// p99 of its own send lag.
    pub lag_p99_ms: Option<f64>,
    /// Its limit.
    pub lag_limit_ms: f64,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    /// None without answers, or where the p99 falls among requests that were lost.
    pub latency: Option<Latency>,
    pub verdict: Verdict,
    pub reason: String,
    pub offered_rps: f64,
}

fn histogram(w: &Interval) -> Histogram<u64> {
    // Bounds and digits are constants that the crate takes.
    let mut h = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap_or_else(|_| Histogram::new(3).expect("three digits"));
    for c in &w.counts.cells {
        h.saturating_record_n(c.ns.max(1), c.count);
    }
    h
}

/// Judge the windows of the samples; `outstanding_before`: requests unanswered when the first one began.
pub fn whole(windows: &[Interval], outstanding_before: u64, client: &Client) -> Whole {
    let parts: Vec<(Histogram<u64>, u64)> = windows.iter().map(|w| (histogram(w), w.errors + w.dropped)).collect();
    let batches: Vec<(&Histogram<u64>, u64)> = parts.iter().map(|(h, lost)| (h, *lost)).collect();
    let mut all = histogram(&Interval::default());
    for (h, _) in &parts {
        // Same bounds.
        let _ = all.add(h);
    }
    let sum = |of: fn(&Interval) -> u64| windows.iter().map(of).fold(0u64, u64::saturating_add);
    let (offered, errors, dropped) = (sum(|w| w.offered), sum(|w| w.errors), sum(|w| w.dropped));
    let response = summarise(&all, errors + dropped, &batches, CONFIDENCE);
    let defaults = Rules::default();
    let rules = Rules { lag_floor_ms: client.lag_limit_ms, ..defaults };
    let evidence = Evidence {
        window: false,
        offered,
        late_past_end: 0,
        completed: all.len(),
        errors,
        dropped_server: dropped,
        dropped_client: 0,
        unfinished: 0,
        backlog_growth: windows.last().map_or(0, |w| w.outstanding as i64) - outstanding_before as i64,
        mean_outstanding: sum(|w| w.outstanding) as f64 / windows.len().max(1) as f64,
        client_lag_p99_ms: client.lag_p99_ms,
        undelayed_p99_ms: None,
        response: &response,
        // Its report has judged it.
        client: None,
    };
    let found = judge(&evidence, &rules);
    let (verdict, reason) = match &client.limited {
        Some(why) => (Verdict::ClientLimited, why.clone()),
        None => (verdict_of(found.kind), found.reason),
    };
    let span_s = sum(|w| w.window_ms).max(1) as f64 * 1e-3;
    let latency = || {
        Some(Latency {
            count: response.count,
            mean_ms: response.mean_ms?,
            p50_ms: response.p50.value_ms?,
            p95_ms: response.p95.value_ms?,
            p99_ms: response.p99.value_ms?,
            p99_low_ms: response.p99.lower_ms,
            p99_high_ms: response.p99.upper_ms,
            achieved_rps: response.count as f64 / span_s,
            errors,
            verdict,
        })
    };
    Whole { latency: latency(), verdict, reason, offered_rps: offered as f64 / span_s }
}

fn verdict_of(kind: VerdictKind) -> Verdict {
    match kind {
        VerdictKind::Valid => Verdict::Valid,
        VerdictKind::ClientLimited => Verdict::ClientLimited,
        VerdictKind::ServerOverloaded => Verdict::ServerOverloaded,
        VerdictKind::NotResolvable => Verdict::NotResolvable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{Cell, Counts};

    const PUNCTUAL: Client = Client { limited: None, lag_p99_ms: Some(0.1), lag_limit_ms: 1.0 };

    /// A window of 400 requests: so many of 5 ms and of 8 ms, the others of 1 ms.
    fn window_of(slow: u64, slower: u64, outstanding: u64) -> Interval {
        let cell = |ms: u64, count| Cell { ns: ms * 1_000_000, count };
        let cells = Box::new([cell(1, 400 - slow - slower), cell(5, slow), cell(8, slower)]);
        Interval { window_ms: 100, counts: Counts { cells, total: 400, sum_ns: 0.0 }, offered: 400, outstanding, ..Interval::default() }
    }

    fn window(outstanding: u64) -> Interval {
        window_of(6, 4, outstanding)
    }

    /// Percentiles are those of all windows together, with an interval; the rates are per second.
    #[test]
    fn windows_add_up() {
        let w = whole(&vec![window(3); 10], 3, &PUNCTUAL);
        let l = w.latency.unwrap();
        assert_eq!((l.count, w.verdict, l.achieved_rps, w.offered_rps), (4000, Verdict::Valid, 4000.0, 4000.0));
        assert!((l.p50_ms - 1.0).abs() < 0.01 && (l.p99_ms - 5.0).abs() < 0.01 && l.p99_high_ms.is_some(), "{l:?}");
    }

    /// A backlog that grew while sampling is overload, one that was there before is not; the client's own word comes first.
    #[test]
    fn the_backlog_of_the_samples_counts() {
        let growing: Vec<Interval> = (1..=10).map(|i| window(100 * i)).collect();
        assert_eq!(whole(&growing, 0, &PUNCTUAL).verdict, Verdict::ServerOverloaded);
        assert_eq!(whole(&vec![window(1000); 10], 1000, &PUNCTUAL).verdict, Verdict::Valid);
        let late = Client { limited: Some("late".into()), ..PUNCTUAL };
        assert_eq!((whole(&growing, 0, &late).verdict, whole(&growing, 0, &late).reason.as_str()), (Verdict::ClientLimited, "late"));
    }

    /// Slow replies that come in bursts are worth less than as many independent ones; too few bound no p99; none have no latency.
    #[test]
    fn what_the_samples_are_worth() {
        // The same 60 + 40 slow replies, in one window or in all ten.
        let bursts: Vec<Interval> = (0..10).map(|i| if i == 4 { window_of(60, 40, 3) } else { window_of(0, 0, 3) }).collect();
        let (burst, even) = (whole(&bursts, 3, &PUNCTUAL), whole(&vec![window(3); 10], 3, &PUNCTUAL));
        assert!(burst.verdict == Verdict::NotResolvable && even.verdict == Verdict::Valid, "{burst:?} {even:?}");
        assert_eq!(whole(&vec![Interval { window_ms: 100, ..Interval::default() }; 5], 0, &PUNCTUAL).latency, None);
    }
}
