//! The two safeguards of SmartHarvest (section 3.4): the latest peak, and how long virtual CPUs wait for a core.

use crate::said::{Stop, Tally};
use crate::settings;
use surefoot_server::Waits;

/// Parts of the time in which the latest peak is looked for.
const PARTS: usize = 64;
/// Longest stop of the long-term safeguard, s.
const MOST_STOP_S: f64 = 3600.0;

/// Most busy cores of the latest time. Whole parts are forgotten, one by one: a peak is known for its time, and for up to a 64th of it longer.
#[derive(Clone, Debug)]
pub struct LatestPeak {
    part_us: u64,
    peaks: [u32; PARTS + 1],
    /// Number of the part that goes on.
    part: u64,
}

impl LatestPeak {
    /// Of the last `length_s`.
    pub fn new(length_s: f64) -> Self {
        LatestPeak { part_us: ((length_s * 1e6 / PARTS as f64) as u64).max(1), peaks: [0; PARTS + 1], part: 0 }
    }

    pub fn add(&mut self, now_us: u64, busy: u32) {
        let part = now_us / self.part_us;
        let passed = (part.saturating_sub(self.part) as usize).min(PARTS + 1);
        for n in 0..passed {
            self.peaks[((part - n as u64) % (PARTS as u64 + 1)) as usize] = 0;
        }
        self.part = self.part.max(part);
        let now = &mut self.peaks[(self.part % (PARTS as u64 + 1)) as usize];
        *now = (*now).max(busy);
    }

    pub fn peak(&self) -> u32 {
        self.peaks.iter().copied().max().unwrap_or(0)
    }
}

/// The short-term safeguard of a law that chooses cores for a window: what is enough where the choice was not.
#[derive(Clone, Debug)]
pub struct Short {
    latest: LatestPeak,
    cores: u32,
    aggressive: bool,
    /// Cores that were chosen for the window that goes on.
    chosen: Option<u32>,
}

impl Short {
    pub fn new(cores: u32, s: &settings::Guard) -> Self {
        Short { latest: LatestPeak::new(s.peak_s), cores, aggressive: s.aggressive == 1, chosen: None }
    }

    pub fn add(&mut self, now_us: u64, busy: u32) {
        self.latest.add(now_us, busy);
    }

    /// The cores that are enough where those at hand were not.
    pub fn enough(&self) -> u32 {
        if self.aggressive {
            self.cores
        } else {
            (self.latest.peak() + 1).min(self.cores)
        }
    }

    /// So many cores are the choice for the next window.
    pub fn choose(&mut self, cores: u32, tally: &mut Tally) {
        self.chosen = Some(cores);
        tally.predicted += 1;
    }

    /// The end of the window: its peak; None: its cores were exhausted, so the choice was too small.
    pub fn judge(&mut self, peak: Option<u32>, tally: &mut Tally) {
        let Some(chosen) = self.chosen.take() else { return };
        tally.short += u64::from(peak.is_none_or(|p| chosen < p));
        tally.spare += u64::from(peak.map_or(0, |p| chosen.saturating_sub(p)));
    }
}

/// Whether virtual CPUs have waited too long, look after look.
#[derive(Clone, Copy, Debug)]
pub struct WaitGuard {
    s: settings::Guard,
    next_us: Option<u64>,
    /// Looks in a row that were too long.
    bad: u32,
    stopped_until_us: u64,
    /// How long that stop is, s; 0 before the first.
    stopped_s: f64,
    /// Of looks with too few dispatches to judge, which count in the next.
    few: Waits,
    last: Option<Stop>,
}

impl WaitGuard {
    pub fn new(s: settings::Guard) -> Self {
        WaitGuard { s, next_us: None, bad: 0, stopped_until_us: 0, stopped_s: 0.0, few: Waits::default(), last: None }
    }

    /// Whether waits are to be read now. The first look is a whole period after the start.
    pub fn is_due(&mut self, now_us: u64) -> bool {
        if self.s.waits == 0 {
            return false;
        }
        let next_us = *self.next_us.get_or_insert(now_us + self.period_us());
        now_us >= next_us
    }

    /// What was read. True: all cores must come back now. While nothing is lent anyhow, what waits says nothing of lending.
    pub fn look(&mut self, now_us: u64, waits: &Waits) -> bool {
        self.next_us = Some(now_us + self.period_us());
        if self.stops(now_us) {
            (self.bad, self.few) = (0, Waits::default());
            return false;
        }
        let waits = std::mem::take(&mut self.few).and(waits);
        if waits.dispatches < self.s.least_dispatches {
            self.few = waits;
            return false;
        }
        let all = waits.dispatches as f64;
        let is_long = match waits.long() {
            // Few dispatches have more than their share by chance.
            Some(long) => long > 0 && long as f64 >= self.s.long_share * all + self.s.sure * (self.s.long_share * all).sqrt(),
            None => waits.total_us >= self.s.mean_wait_us * all,
        };
        self.bad = if is_long { self.bad + 1 } else { 0 };
        if self.bad < self.s.looks {
            return false;
        }
        self.bad = 0;
        let again = self.stopped_s > 0.0 && now_us.saturating_sub(self.stopped_until_us) as f64 <= self.stopped_s * 1e6;
        self.stopped_s = if again { (self.stopped_s * self.s.stop_grows).min(MOST_STOP_S) } else { self.s.stop_s };
        self.stopped_until_us = now_us + (self.stopped_s * 1e6) as u64;
        self.last = Some(Stop { at_us: now_us, waits, stop_s: self.stopped_s });
        true
    }

    /// Whether nothing may be lent now.
    pub fn stops(&self, now_us: u64) -> bool {
        now_us < self.stopped_until_us
    }

    /// The last time that lending was stopped.
    pub fn last(&self) -> Option<Stop> {
        self.last
    }

    fn period_us(&self) -> u64 {
        (self.s.waits_ms * 1e3) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::lease::WAIT_BOUNDS;

    /// A peak counts for its time, and not much longer, however the readings lie.
    #[test]
    fn a_peak_is_forgotten_after_its_time() {
        let mut p = LatestPeak::new(1.0);
        assert_eq!(p.peak(), 0);
        p.add(500_000, 7);
        p.add(1_501_000, 2);
        assert_eq!(p.peak(), 7);
        p.add(1_516_000, 2);
        assert_eq!(p.peak(), 2);
        p.add(60_000_000, 1);
        assert_eq!(p.peak(), 1);
        // A clock that stands still or runs backwards loses nothing.
        p.add(59_000_000, 5);
        assert_eq!(p.peak(), 5);
    }

    fn waits(dispatches: u64, long: Option<u64>, total_us: f64) -> Waits {
        Waits { dispatches, over: long.map(|n| [n; WAIT_BOUNDS]), total_us }
    }

    /// Two looks in a row stop lending for ten seconds; one, or few dispatches, do not.
    #[test]
    fn long_waits_stop_lending() {
        let mut g = WaitGuard::new(settings::Guard { sure: 0.0, ..settings::Guard::default() });
        assert!(!g.is_due(0) && !g.is_due(499_999) && g.is_due(500_000));
        let long = waits(1000, Some(10), 0.0);
        assert!(!g.look(500_000, &long));
        assert!(!g.is_due(900_000) && g.is_due(1_000_000));
        assert!(!g.look(1_000_000, &waits(1000, Some(9), 0.0)));
        assert!(!g.look(2_500_000, &long) && !g.stops(2_500_000));
        assert_eq!(g.last(), None);
        assert!(g.look(3_000_000, &long));
        assert_eq!(g.last(), Some(Stop { at_us: 3_000_000, waits: long, stop_s: 10.0 }));
        assert!(!g.look(3_500_000, &long) && !g.look(4_000_000, &long), "it has stopped already");
        assert!(g.stops(3_000_001) && g.stops(12_999_999) && !g.stops(13_000_000));
        // It needs two looks again.
        assert!(!g.look(13_000_000, &long));
        // With 16 deviations 10 and 16 times the root of 10 are few of 1,000.
        let mut g = WaitGuard::new(settings::Guard::default());
        let twice = |g: &mut WaitGuard, n| (0..2).map(|_| g.look(1, &waits(1000, Some(n), 0.0))).last();
        assert_eq!([60, 61].map(|n| twice(&mut g, n)), [Some(false), Some(true)]);
    }

    /// Few dispatches are judged together with those of the next looks: a light load is guarded, too. A stop forgets them.
    #[test]
    fn few_dispatches_are_added_up() {
        let mut g = WaitGuard::new(settings::Guard::default());
        let few = waits(40, Some(30), 0.0);
        let looks: Vec<bool> = (1..=6).map(|n| g.look(n * 500_000, &few)).collect();
        assert_eq!(looks, [false, false, false, false, false, true]);
        assert_eq!(g.last().map(|s| (s.waits.dispatches, s.waits.long())), Some((120, Some(90))));
        g.look(3_500_000, &few);
        let looks: Vec<bool> = (27..=32).map(|n| g.look(n * 500_000, &few)).collect();
        assert_eq!(looks, [false, false, false, false, false, true]);
    }

    /// A stop that comes soon after the last one is longer; after a good time stops are short again.
    #[test]
    fn stops_grow_while_they_come_one_after_the_other() {
        let mut g = WaitGuard::new(settings::Guard { stop_grows: 2.0, ..settings::Guard::default() });
        let long = waits(1000, Some(500), 0.0);
        let mut stop = |at_s: f64| {
            (0..2).for_each(|n| {
                g.look((at_s * 1e6) as u64 + n, &long);
            });
            g.last().unwrap().stop_s
        };
        assert_eq!([1.0, 12.0, 33.0, 74.0].map(&mut stop), [10.0, 20.0, 40.0, 80.0]);
        assert_eq!([400.0, 421.0].map(&mut stop), [10.0, 10.0]);
    }

    /// Where sums alone are known the mean counts; a setting turns the guard off.
    #[test]
    fn sums_and_no_guard() {
        let mut g = WaitGuard::new(settings::Guard::default());
        assert!(!g.look(1, &waits(1000, None, 10_000.0)));
        assert!(g.look(2, &waits(1000, None, 10_000.0)));
        assert!(!g.look(3, &waits(1000, None, 9_999.0)));
        let mut off = WaitGuard::new(settings::Guard { waits: 0, ..settings::Guard::default() });
        assert!(!off.is_due(10_000_000));
    }
}
