//! Latency and verdict of a whole case from the windows of its samples. The load generator's own report cannot give them: it was told
//! its warm-up before it was known how long the settling would take. Statistics and rules are the load generator's, so that there is one
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
    /// Rate that another program than surefoot-loadgen was asked for; no other source tells whether it sent so much.
    pub asked_rps: Option<f64>,
}

/// Another program may offer so much less than it was asked for: those of [`surefoot_loadgen`] complete 99 % at least.
const SHORT_SHARE: f64 = 0.01;
/// So much more; some send what they are behind in bursts.
const BEYOND_SHARE: f64 = 0.1;
/// Standard deviations of a Poisson count that chance may explain, as for the backlog of a run.
const CHANCE: f64 = 4.0;

/// What the load had come to when the samples began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Before {
    /// Requests that were unanswered then.
    pub outstanding: u64,
    /// Requests that its windows had told of, and the time that these were of.
    pub told: u64,
    pub span_ms: u64,
}

impl Before {
    /// With one more window that ended before the samples began.
    pub fn and(self, w: &Interval) -> Self {
        let told = w.offered.max(w.counts.total.saturating_add(w.errors).saturating_add(w.dropped));
        Before { outstanding: w.outstanding, told: self.told.saturating_add(told), span_ms: self.span_ms.saturating_add(w.window_ms) }
    }
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

/// Judge the windows of the samples; `before`: what the load had come to when the first one began.
pub fn whole(windows: &[Interval], before: Before, client: &Client) -> Whole {
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
        backlog_growth: windows.last().map_or(0, |w| w.outstanding as i64) - before.outstanding as i64,
        mean_outstanding: sum(|w| w.outstanding) as f64 / windows.len().max(1) as f64,
        client_lag_p99_ms: client.lag_p99_ms,
        undelayed_p99_ms: None,
        response: &response,
        // Its report has judged it.
        client: None,
    };
    let found = judge(&evidence, &rules);
    let span_s = sum(|w| w.window_ms).max(1) as f64 * 1e-3;
    // A closed loop has no backlog: what it could not send shows in nothing but its rate.
    let sent = offered.max(all.len().saturating_add(errors).saturating_add(dropped));
    let (verdict, reason) = match (&client.limited, verdict_of(found.kind)) {
        (Some(why), _) => (Verdict::ClientLimited, why.clone()),
        (None, kind @ (Verdict::Valid | Verdict::NotResolvable)) => {
            let nothing = || windows.is_empty().then(|| (Verdict::NotResolvable, NO_WINDOW.to_string()));
            let other_rate = || client.asked_rps.and_then(|asked_rps| other_rate(asked_rps, sent, span_s, before));
            nothing().or_else(other_rate).unwrap_or((kind, found.reason))
        }
        (None, kind) => (kind, found.reason),
    };
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

const NO_WINDOW: &str = "none of the load generator's windows lies within the samples; measure longer, or let it tell the feed more often";

/// What it means that a program offered another rate than it was asked for; None: it did as it was asked, as far as chance lets one see.
fn other_rate(asked_rps: f64, sent: u64, span_s: f64, before: Before) -> Option<(Verdict, String)> {
    let chance_rps = |span_s: f64| CHANCE * (asked_rps / span_s).sqrt();
    let beyond = |told: u64, span_s: f64| told as f64 / span_s - asked_rps > BEYOND_SHARE * asked_rps + chance_rps(span_s);
    let told_rps = sent as f64 / span_s;
    let said = format!("{told_rps:.1} requests a second were sent where {asked_rps:.1} were asked for");
    if asked_rps - told_rps > SHORT_SHARE * asked_rps + chance_rps(span_s) {
        return Some((Verdict::ServerOverloaded, format!("{said}: service or load generator did not keep up")));
    }
    if !beyond(sent, span_s) {
        return None;
    }
    // One that is behind makes up for it as soon as it can: in all it has sent no more than it was asked to.
    let all = sent.saturating_add(before.told);
    if before.span_ms > 0 && !beyond(all, span_s + before.span_ms as f64 * 1e-3) {
        return Some((Verdict::ServerOverloaded, format!("{said}: they were due before, when the service did not keep up")));
    }
    Some((Verdict::ClientLimited, format!("{said}: the load generator does not keep to its rate")))
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

    const PUNCTUAL: Client = Client { limited: None, lag_p99_ms: Some(0.1), lag_limit_ms: 1.0, asked_rps: None };

    fn before(outstanding: u64) -> Before {
        Before { outstanding, ..Before::default() }
    }

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
        let w = whole(&vec![window(3); 10], before(3), &PUNCTUAL);
        let l = w.latency.unwrap();
        assert_eq!((l.count, w.verdict, l.achieved_rps, w.offered_rps), (4000, Verdict::Valid, 4000.0, 4000.0));
        assert!((l.p50_ms - 1.0).abs() < 0.01 && (l.p99_ms - 5.0).abs() < 0.01 && l.p99_high_ms.is_some(), "{l:?}");
    }

    /// A backlog that grew while sampling is overload, one that was there before is not; the client's own word comes first.
    #[test]
    fn the_backlog_of_the_samples_counts() {
        let growing: Vec<Interval> = (1..=10).map(|i| window(100 * i)).collect();
        assert_eq!(whole(&growing, before(0), &PUNCTUAL).verdict, Verdict::ServerOverloaded);
        assert_eq!(whole(&vec![window(1000); 10], before(1000), &PUNCTUAL).verdict, Verdict::Valid);
        let late = Client { limited: Some("late".into()), ..PUNCTUAL };
        assert_eq!(
            (whole(&growing, before(0), &late).verdict, whole(&growing, before(0), &late).reason.as_str()),
            (Verdict::ClientLimited, "late")
        );
    }

    /// Of another program the rate is all that tells whether it did as it was asked: a closed loop that falls behind is overload, whatever
    /// its latencies say; one that ignores the rate is the client's fault. What chance explains is neither.
    #[test]
    fn a_program_that_sends_another_rate_is_found_out() {
        let asked = |asked_rps: f64| {
            let client = Client { lag_p99_ms: None, asked_rps: Some(asked_rps), ..PUNCTUAL };
            whole(&vec![window(3); 10], before(3), &client)
        };
        // 4000 requests in a second; chance explains 4 x 63.
        assert_eq!((asked(4000.0).verdict, asked(4250.0).verdict, asked(3500.0).verdict), (Verdict::Valid, Verdict::Valid, Verdict::Valid));
        let (short, beyond) = (asked(4400.0), asked(3200.0));
        assert!(short.verdict == Verdict::ServerOverloaded && short.reason.contains("4000.0 requests a second were sent where 4400.0"));
        assert!(beyond.verdict == Verdict::ClientLimited && beyond.reason.contains("does not keep to its rate"), "{beyond:?}");
        // One that does not tell what it offers is judged by what it got.
        let silent: Vec<Interval> = (0..10).map(|_| Interval { offered: 0, ..window(0) }).collect();
        let client = Client { lag_p99_ms: None, asked_rps: Some(4400.0), ..PUNCTUAL };
        assert_eq!(whole(&silent, before(0), &client).verdict, Verdict::ServerOverloaded);
    }

    /// A program that was held up sends what it owes in a burst. That is no client which ignores its rate, unless it sent too much in all.
    #[test]
    fn what_was_due_before_is_the_services_fault() {
        let after = |windows: usize, each: u64| {
            let one = Interval { offered: each, counts: Counts::default(), ..window(0) };
            let before = (0..windows).fold(before(0), |before, _| before.and(&one));
            let client = Client { lag_p99_ms: None, asked_rps: Some(3000.0), ..PUNCTUAL };
            whole(&vec![window(3); 10], before, &client)
        };
        // 4000 in the second of the samples; 1500 in the second before.
        let (held, eager) = (after(10, 150), after(10, 300));
        assert!(held.verdict == Verdict::ServerOverloaded && held.reason.contains("due before"), "{held:?}");
        assert!(eager.verdict == Verdict::ClientLimited && eager.reason.contains("does not keep to its rate"), "{eager:?}");
        assert_eq!(after(0, 0).verdict, Verdict::ClientLimited);
    }

    /// A load generator that tells the feed more rarely than the samples are long has measured nothing of them, and that is said.
    #[test]
    fn without_a_window_nothing_is_known() {
        let w = whole(&[], before(0), &Client { asked_rps: Some(100.0), ..PUNCTUAL });
        assert!(w.verdict == Verdict::NotResolvable && w.latency.is_none() && w.reason.contains("measure longer"), "{w:?}");
    }

    /// Slow replies that come in bursts are worth less than as many independent ones; too few bound no p99; none have no latency.
    #[test]
    fn what_the_samples_are_worth() {
        // The same 60 + 40 slow replies, in one window or in all ten.
        let bursts: Vec<Interval> = (0..10).map(|i| if i == 4 { window_of(60, 40, 3) } else { window_of(0, 0, 3) }).collect();
        let (burst, even) = (whole(&bursts, before(3), &PUNCTUAL), whole(&vec![window(3); 10], before(3), &PUNCTUAL));
        assert!(burst.verdict == Verdict::NotResolvable && even.verdict == Verdict::Valid, "{burst:?} {even:?}");
        assert_eq!(whole(&vec![Interval { window_ms: 100, ..Interval::default() }; 5], before(0), &PUNCTUAL).latency, None);
    }
}
