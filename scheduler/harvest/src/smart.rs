//! SmartHarvest's Algorithm 1: learn on line how many cores the next window needs (section 3). What the paper leaves open, and
//! what was decided, is in docs/smartharvest.md.

use crate::cost::Cost;
use crate::guard::LatestPeak;
use crate::learner::{Learner, Rule};
use crate::said::{Tally, Why};
use crate::settings::Settings;
use crate::window::{Features, Readings};

/// The learner, the window that goes on, and the short-term safeguard.
#[derive(Clone, Debug)]
pub struct Smart {
    s: Settings,
    cores: u32,
    cost: Cost,
    learner: Learner,
    readings: Readings,
    latest: LatestPeak,
    /// Features of the last whole window.
    before: Option<Features>,
    /// Cores that the learner chose for the window that goes on.
    chosen: Option<u32>,
    from_us: Option<u64>,
}

impl Smart {
    pub fn new(cores: u32, s: &Settings) -> Self {
        Smart {
            s: *s,
            cores,
            cost: Cost::of(s.learn.cost),
            learner: Learner::new(cores, Rule::of(s.learn.rule), s.learn.rate),
            readings: Readings::new(cores),
            latest: LatestPeak::new(s.guard.peak_s),
            before: None,
            chosen: None,
            from_us: None,
        }
    }

    /// A reading in the time after a move: it belongs to the window that comes.
    pub fn read(&mut self, now_us: u64, busy: u32) {
        self.latest.add(now_us, busy);
        self.readings.add(busy);
    }

    /// One reading. The cores to keep from now on, and why; None: the window goes on.
    pub fn poll(&mut self, now_us: u64, busy: u32, exhausted: bool, stopped: bool, tally: &mut Tally) -> Option<(u32, Why)> {
        let from_us = *self.from_us.get_or_insert(now_us);
        self.read(now_us, busy);
        if exhausted {
            // The true peak is not known: nothing is learnt from this window.
            self.end_window();
            tally.short += u64::from(self.chosen.take().is_some());
            let keep = if self.s.guard.aggressive == 1 { self.cores } else { self.latest.peak() + 1 };
            return Some((if stopped { self.cores } else { keep }, Why::Exhausted));
        }
        if now_us < from_us + (self.s.window.length_ms * 1e3) as u64 {
            return None;
        }
        let (features, peak) = (self.readings.features(), self.readings.peak());
        self.end_window();
        if let Some(chosen) = self.chosen.take() {
            tally.short += u64::from(chosen < peak);
            tally.spare += u64::from(chosen.saturating_sub(peak));
        }
        if let Some(before) = self.before {
            let under = self.s.learn.under as f32 * self.cores as f32;
            self.learner.train(&before, |k| self.cost.at(k, peak, under));
            tally.trained += 1;
        }
        self.before = features;
        let x = features.filter(|_| !stopped && tally.trained >= u64::from(self.s.learn.warm_windows));
        let Some(x) = x else { return Some((self.cores, if stopped { Why::Stopped } else { Why::Warm })) };
        let keep = self.learner.best(&x);
        self.chosen = Some(keep);
        tally.predicted += 1;
        Some((keep, Why::Predicted))
    }

    fn end_window(&mut self) {
        self.readings.clear();
        self.from_us = None;
    }
}
