//! SmartHarvest's Algorithm 1: learn on line how many cores the next window needs (section 3). What the paper leaves open, and
//! what was decided, is in docs/smartharvest.md.

use crate::cost::Cost;
use crate::guard::Short;
use crate::learner::{Learner, Rule};
use crate::said::{Tally, Why};
use crate::settings::Settings;
use crate::window::{Features, Running};

/// The learner, the window that goes on, and the short-term safeguard.
#[derive(Clone, Debug)]
pub struct Smart {
    s: Settings,
    cores: u32,
    cost: Cost,
    learner: Learner,
    window: Running,
    short: Short,
    /// Features of the last whole window.
    before: Option<Features>,
}

impl Smart {
    pub fn new(cores: u32, s: &Settings) -> Self {
        Smart {
            s: *s,
            cores,
            cost: Cost::of(s.learn.cost),
            learner: Learner::new(cores, Rule::of(s.learn.rule), s.learn.rate),
            window: Running::new(cores, &s.window),
            short: Short::new(cores, &s.guard),
            before: None,
        }
    }

    /// A reading in the time after a move: it belongs to the window that comes.
    pub fn read(&mut self, now_us: u64, busy: u32) {
        self.short.add(now_us, busy);
        self.window.readings.add(busy);
    }

    /// One reading. The cores to keep from now on, and why; None: the window goes on.
    pub fn poll(&mut self, now_us: u64, busy: u32, exhausted: bool, stopped: bool, tally: &mut Tally) -> Option<(u32, Why)> {
        self.short.add(now_us, busy);
        let is_over = self.window.poll(now_us, busy);
        if exhausted {
            // The true peak is not known: nothing is learnt from this window.
            self.window.end();
            self.short.judge(None, tally);
            return Some((if stopped { self.cores } else { self.short.enough() }, Why::Exhausted));
        }
        if !is_over {
            return None;
        }
        let (features, peak) = (self.window.readings.features(), self.window.readings.peak());
        self.window.end();
        self.short.judge(Some(peak), tally);
        if let Some(before) = self.before {
            let under = self.s.learn.under as f32 * self.cores as f32;
            self.learner.train(&before, |k| self.cost.at(k, peak, under));
            tally.trained += 1;
        }
        self.before = features;
        let x = features.filter(|_| !stopped && tally.trained >= u64::from(self.s.learn.warm_windows));
        let Some(x) = x else { return Some((self.cores, if stopped { Why::Stopped } else { Why::Warm })) };
        let keep = self.learner.best(&x);
        self.short.choose(keep, tally);
        Some((keep, Why::Predicted))
    }
}
