//! What in a feed speaks against its own reading, and for how long that counts.
//!
//! A reading that contradicts itself is not mended: either half may be right. It is doubtful, nothing is taken from its service, and
//! it is believed again by itself, [`HOLD_MS`] after the last evidence. No window reaches further back, so none holds what was doubted.

use std::collections::{BTreeMap, VecDeque};
use surefoot_server::window::{LONGEST_WINDOW_MS, MIN_COUNT_P99};
use surefoot_server::{Doubt, FeedState, Latency};

/// A doubt lasts so long after its last evidence.
pub(super) const HOLD_MS: u64 = LONGEST_WINDOW_MS;
/// No server lets half of its answers wait for longer: ten minutes. A unit that is wrong by a factor of a million does.
const SLOWEST_MS: f64 = 600_000.0;
/// No answer takes less: a system call alone takes about as long, and an answer takes several.
const FASTEST_MS: f64 = 1e-3;
/// A rate that is so many times that of the minute before is doubted. A thousand times is a unit that was mistaken, less the noise of counts;
/// a hundred times is a flash crowd.
const LEAP: f64 = 500.0;
/// A leap that lasts for so long is how the service now is.
const CUSTOM_MS: u64 = 60_000;
/// Rates that are remembered, one a second; and the last of them, which a leap may already have reached.
const SLOTS: usize = 60;
const SLOT_MS: u64 = 1000;
const UNSETTLED: usize = 2;
/// Requests of the minute before without which there is no rate to compare with; and the seconds of it.
const LEAST_BEFORE: f64 = 100.0;
const LEAST_SLOTS: usize = 3;

/// Something that speaks against a reading: what it is, and what was found and is to be done, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub doubt: Doubt,
    pub said: String,
}

impl Evidence {
    pub fn new(doubt: Doubt, said: String) -> Self {
        Evidence { doubt, said }
    }
}

/// Response times that no server has.
pub(super) fn of_times(l: &Latency) -> Option<Evidence> {
    if l.count > 0 && l.p50_ms > SLOWEST_MS {
        let said = format!("half of its answers take more than {:.0} s. Check the unit that its times are in", SLOWEST_MS * 1e-3);
        return Some(Evidence::new(Doubt::Slow, said));
    }
    if l.count > 0 && l.p99_ms < FASTEST_MS {
        let said = format!("99 of 100 answers take less than {} ns. Check the unit that its times are in", FASTEST_MS * 1e6);
        return Some(Evidence::new(Doubt::Fast, said));
    }
    None
}

/// The rate of the minute before, to compare with.
#[derive(Debug, Default)]
pub(super) struct Custom {
    slots: VecDeque<f64>,
    slot_ms: Option<u64>,
    leap_ms: Option<u64>,
}

impl Custom {
    /// Look at the rate of the last second; None where nothing was answered.
    pub fn see(&mut self, now_ms: u64, window: Option<&Latency>) -> Option<Evidence> {
        let rps = window.map_or(0.0, |w| w.achieved_rps);
        let before = self.before();
        let leaps = window.is_some_and(|w| w.count >= MIN_COUNT_P99) && before.is_some_and(|b| rps > LEAP * b);
        if leaps {
            let since_ms = *self.leap_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(since_ms) < CUSTOM_MS {
                let before = before.unwrap_or(0.0);
                let said = format!("{rps:.0} answers a second after {before:.0} in the minute before. Check what its sender counts");
                return Some(Evidence::new(Doubt::Rate, said));
            }
            self.slots.clear();
        }
        self.leap_ms = None;
        if self.slot_ms.is_none_or(|t| now_ms >= t.saturating_add(SLOT_MS)) {
            self.slot_ms = Some(now_ms);
            if self.slots.len() == SLOTS {
                self.slots.pop_front();
            }
            self.slots.push_back(rps);
        }
        None
    }

    /// The middle one of the rates before, where there are enough requests for one.
    fn before(&self) -> Option<f64> {
        let n = self.slots.len().saturating_sub(UNSETTLED);
        let mut rates: Vec<f64> = self.slots.iter().take(n).copied().collect();
        rates.sort_by(f64::total_cmp);
        rates.get(n / 2).copied().filter(|r| n >= LEAST_SLOTS && r * n as f64 >= LEAST_BEFORE)
    }
}

/// The doubts of one service.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<Doubt, Held>);

#[derive(Debug)]
struct Held {
    since_ms: u64,
    last_ms: u64,
    said: String,
}

impl Doubts {
    /// Take evidence: it counts from now on, with the words of its first time.
    pub fn see(&mut self, now_ms: u64, evidence: Evidence) {
        let held = self.0.entry(evidence.doubt).or_insert(Held { since_ms: now_ms, last_ms: now_ms, said: evidence.said });
        held.last_ms = held.last_ms.max(now_ms);
    }

    /// The oldest doubt that holds.
    pub fn state(&mut self, now_ms: u64) -> Option<FeedState> {
        self.0.retain(|_, h| now_ms.saturating_sub(h.last_ms) < HOLD_MS);
        let oldest = self.0.iter().min_by_key(|(_, h)| h.since_ms);
        oldest.map(|(why, h)| FeedState::Doubtful { since_ms: h.since_ms, why: *why })
    }

    pub fn said(&self, why: Doubt) -> Option<&str> {
        self.0.get(&why).map(|h| h.said.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::Verdict;

    fn latency(p50_ms: f64, p99_ms: f64, rps: f64) -> Latency {
        Latency {
            count: rps as u64,
            mean_ms: p50_ms,
            p50_ms,
            p95_ms: p99_ms,
            p99_ms,
            p99_low_ms: None,
            p99_high_ms: None,
            achieved_rps: rps,
            errors: 0,
            verdict: Verdict::Valid,
        }
    }

    /// Times that no server has are doubted; slow and fast ones that some have are not.
    #[test]
    fn times_that_no_server_has_are_doubted() {
        let of = |p50, p99| of_times(&latency(p50, p99, 500.0)).map(|e| e.doubt);
        // 2 ms taken for seconds in a unit of ns, and the other way round.
        assert_eq!((of(2e9, 4e9), of(2e-6, 4e-6)), (Some(Doubt::Slow), Some(Doubt::Fast)));
        assert_eq!([of(0.001, 0.002), of(2.0, 5.0), of(60_000.0, 300_000.0), of(1.0, 1e6)], [None; 4]);
        assert_eq!(of_times(&latency(0.0, 0.0, 0.0)), None);
    }

    /// A rate a thousand times that of the minute before is doubted for a minute, then it is the custom; a flash crowd, a start after silence and a
    /// service of a few requests are not doubted.
    #[test]
    fn a_leap_of_the_rate_is_doubted_for_a_minute() {
        // Doubted looks, ten a second, of so many seconds at each rate; the window holds the last second.
        let doubted = |rates: &[(u64, f64)]| {
            let (mut c, mut now_ms, mut n, mut last) = (Custom::default(), 0, 0, 0.0);
            for (seconds, rps) in rates {
                for tick in 0..seconds * 10 {
                    let mixed = last + (rps - last) * (tick.min(10) as f64 / 10.0);
                    n += u32::from(c.see(now_ms, Some(&latency(1.0, 2.0, mixed))).is_some());
                    now_ms += 100;
                }
                last = *rps;
            }
            n
        };
        let whole = doubted(&[(20, 50.0), (90, 50_000.0)]);
        assert!((590..=605).contains(&whole), "{whole}");
        // Its end ends it.
        let short = doubted(&[(20, 50.0), (10, 50_000.0), (50, 50.0)]);
        assert!((90..=110).contains(&short), "{short}");
        assert_eq!(doubted(&[(20, 50.0), (60, 10_000.0), (20, 50.0)]), 0);
        assert_eq!(doubted(&[(60, 0.0), (20, 50_000.0)]), 0);
        assert_eq!(doubted(&[(20, 1.0), (20, 10_000.0)]), 0);
    }

    /// A doubt ends by itself when its evidence has; the oldest one is told.
    #[test]
    fn a_doubt_ends_with_its_evidence() {
        let mut d = Doubts::default();
        assert_eq!(d.state(0), None);
        d.see(1000, Evidence::new(Doubt::Slow, "first".into()));
        d.see(2000, Evidence::new(Doubt::Slow, "second".into()));
        d.see(3000, Evidence::new(Doubt::Rate, "other".into()));
        assert_eq!((d.state(3000), d.said(Doubt::Slow)), (Some(FeedState::Doubtful { since_ms: 1000, why: Doubt::Slow }), Some("first")));
        assert_eq!(d.state(2000 + HOLD_MS), Some(FeedState::Doubtful { since_ms: 3000, why: Doubt::Rate }));
        assert_eq!(d.state(3000 + HOLD_MS), None);
    }
}
