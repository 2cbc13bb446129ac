//! Our own law: lend as much as a budget of waits allows.
//!
//! A share of the dispatches may wait long. Each dispatch pays this share into the budget, each long wait takes one out. A full
//! budget lends all but the usual peak, an empty one lends nothing, and in between the cores kept lie in between. So the share
//! of long waits cannot stay above the bound, however bursts come, and no model of them is needed. SmartHarvest's learner knows
//! peaks only: it cannot tell a peak that makes nothing wait from one that harms.

use crate::guard::Short;
use crate::said::{Tally, Why};
use crate::settings::Settings;
use crate::window::Running;
use surefoot_server::lease::wait_bounds_us;
use surefoot_server::Waits;

/// The budget, the window that goes on, and the peaks of the windows before.
#[derive(Clone, Debug)]
pub struct Budget {
    s: Settings,
    cores: u32,
    /// Long waits that may still come.
    left: f64,
    /// Dispatches a second, lately.
    rate: f64,
    looked_us: Option<u64>,
    /// Mean busy cores, lately.
    busy: f64,
    window: Running,
    short: Short,
    /// How often each peak of a window came, old windows counting less.
    peaks: Vec<f32>,
}

impl Budget {
    pub fn new(cores: u32, s: &Settings) -> Self {
        Budget {
            s: *s,
            cores,
            left: 0.0,
            rate: 0.0,
            looked_us: None,
            busy: 0.0,
            window: Running::new(cores, &s.window),
            short: Short::new(cores, &s.guard),
            peaks: vec![0.0; cores as usize + 1],
        }
    }

    /// Whether waits are to be read now: once a window.
    pub fn is_due(&mut self, now_us: u64) -> bool {
        now_us >= *self.looked_us.get_or_insert(now_us) + (self.s.window.length_ms * 1e3) as u64
    }

    /// What was read.
    pub fn look(&mut self, now_us: u64, waits: &Waits) {
        let passed_s = now_us.saturating_sub(self.looked_us.replace(now_us).unwrap_or(now_us)) as f64 * 1e-6;
        if passed_s <= 0.0 {
            return;
        }
        let all = waits.dispatches as f64;
        let weight = 1.0 - (-passed_s / self.s.budget.length_s).exp();
        self.rate += weight * (all / passed_s - self.rate);
        // What is long is told by how long a thread runs at a time.
        let run_us = if self.rate > 0.0 { self.busy * 1e6 / self.rate } else { 0.0 };
        let bounds_us = wait_bounds_us();
        let at = bounds_us.iter().position(|b| *b >= self.s.budget.long * run_us).unwrap_or(bounds_us.len() - 1);
        // Where sums alone are known, as many long ones as could make the sum.
        let long = waits.over.map_or(waits.total_us / bounds_us[at], |n| n[at] as f64);
        let most = self.most();
        self.left = (self.left + self.s.budget.share * all - long).clamp(-most * self.s.budget.debt, most);
    }

    /// What a full budget holds.
    fn most(&self) -> f64 {
        (self.s.budget.share * self.rate * self.s.budget.length_s).max(1.0)
    }

    /// A reading in the time after a move.
    pub fn read(&mut self, now_us: u64, busy: u32) {
        self.short.add(now_us, busy);
        self.window.readings.add(busy);
    }

    /// The cores that are enough where those at hand were not.
    pub fn enough(&self) -> u32 {
        self.short.enough()
    }

    /// The cores to keep from now on, and why; None: the window goes on.
    pub fn poll(&mut self, now_us: u64, busy: u32, exhausted: bool, tally: &mut Tally) -> Option<(u32, Why)> {
        self.short.add(now_us, busy);
        let is_over = self.window.poll(now_us, busy);
        if !exhausted && !is_over {
            return None;
        }
        let readings = &self.window.readings;
        let peak = readings.peak() + u32::from(exhausted);
        let fades = (-self.s.window.length_ms * 1e-3 / self.s.budget.length_s).exp();
        self.busy += (1.0 - fades) * (readings.mean() - self.busy);
        self.peaks.iter_mut().for_each(|n| *n *= fades as f32);
        self.peaks[(peak as usize).min(self.cores as usize)] += 1.0;
        self.window.end();
        self.short.judge((!exhausted).then_some(peak), tally);
        if exhausted {
            return Some((self.enough(), Why::Exhausted));
        }
        let full = (self.left / self.most()).clamp(0.0, 1.0);
        let usual = f64::from(self.usual());
        let keep = (usual + (1.0 - full) * (f64::from(self.cores) - usual)).ceil() as u32;
        self.short.choose(keep, tally);
        Some((keep, Why::Budget))
    }

    /// The peak that a share of the windows do not exceed.
    fn usual(&self) -> u32 {
        let all: f32 = self.peaks.iter().sum();
        let mut seen = 0.0;
        self.peaks
            .iter()
            .position(|n| {
                seen += n;
                seen >= all * self.s.budget.usual as f32
            })
            .unwrap_or(self.cores as usize) as u32
    }
}
