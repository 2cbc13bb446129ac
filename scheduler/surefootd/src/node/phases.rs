//! What the daemon itself costs: time to observe, to decide, to apply and to learn; CPU time and memory of the process.

#![allow(unsafe_code, reason = "sysconf")]

use hdrhistogram::Histogram;
use serde_json::{json, Value};
use std::path::Path;
use std::time::{Duration, Instant};
use surefoot_io::input::{self, KERNEL_BYTES};

/// Longest time that is told apart from longer ones.
const MOST_NS: u64 = 60_000_000_000;

/// One part of every tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Observe,
    Decide,
    /// Only of ticks with a plan.
    Apply,
    /// Only of ticks after which a policy learnt; the plan is in force by then.
    Learn,
    /// Only of looks at how models do, once a second; the plan is in force by then.
    Watch,
}

impl Phase {
    pub const ALL: [Phase; 5] = [Phase::Observe, Phase::Decide, Phase::Apply, Phase::Learn, Phase::Watch];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Observe => "observe",
            Phase::Decide => "decide",
            Phase::Apply => "apply",
            Phase::Learn => "learn",
            Phase::Watch => "watch",
        }
    }
}

/// Durations by phase, to two digits.
#[derive(Debug)]
pub struct Phases([Histogram<u64>; Phase::ALL.len()]);

impl Default for Phases {
    fn default() -> Self {
        // Two digits up to a minute: 30 kB each, made once.
        let histogram = || Histogram::new_with_bounds(100, MOST_NS, 2).unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        Phases(Phase::ALL.map(|_| histogram()))
    }
}

impl Phases {
    pub fn record(&mut self, phase: Phase, took: Duration) {
        self.0[phase as usize].saturating_record(took.as_nanos() as u64);
    }

    /// Seconds at a quantile; None where the phase never ran.
    pub fn quantile_s(&self, phase: Phase, q: f64) -> Option<f64> {
        let h = &self.0[phase as usize];
        (!h.is_empty()).then(|| h.value_at_quantile(q) as f64 * 1e-9)
    }

    pub fn count(&self, phase: Phase) -> u64 {
        self.0[phase as usize].len()
    }

    /// p50 and p99 of each phase, microseconds.
    pub fn json(&self) -> Value {
        let us = |p, q| self.quantile_s(p, q).map(|s| (s * 1e7).round() / 10.0);
        Phase::ALL.iter().map(|p| (p.name(), json!({ "count": self.count(*p), "p50_us": us(*p, 0.5), "p99_us": us(*p, 0.99) }))).collect()
    }
}

/// Run some work and say how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    let result = work();
    (result, begin.elapsed())
}

/// CPU time so far in seconds, and resident memory in bytes, of this process; None where /proc does not say.
pub fn own_cost() -> (Option<f64>, Option<u64>) {
    // SAFETY: sysconf only reads constants.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    let own = |name: &str| input::text(Path::new(&format!("/proc/self/{name}")), KERNEL_BYTES).ok();
    let cpu_s = own("stat").and_then(|t| {
        let fields: Vec<&str> = t.rsplit_once(')')?.1.split_whitespace().collect();
        let time = |i: usize| fields.get(i)?.parse::<f64>().ok();
        Some((time(11)? + time(12)?) / ticks.max(1) as f64)
    });
    let rss = own("statm").and_then(|t| {
        let pages: u64 = t.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * page.max(1) as u64)
    });
    (cpu_s, rss)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a phase took is found again to two digits; a phase that never ran has no figure.
    #[test]
    fn durations_are_kept() {
        let mut phases = Phases::default();
        let begin = Instant::now();
        let (x, took) = timed(|| (0..2000u64).map(std::hint::black_box).sum::<u64>());
        assert!(x == 1999 * 1000 && took <= begin.elapsed());
        let took = Duration::from_nanos(1_234_567);
        phases.record(Phase::Decide, took);
        let kept = phases.quantile_s(Phase::Decide, 0.99).unwrap();
        assert!((kept / took.as_secs_f64() - 1.0).abs() < 0.02, "{kept} {took:?}");
        assert_eq!((phases.quantile_s(Phase::Apply, 0.5), phases.count(Phase::Decide)), (None, 1));
        assert_eq!(phases.json()["apply"]["p99_us"], Value::Null);
    }

    /// This process has used some CPU time and some memory.
    #[test]
    fn own_cost_is_known() {
        let (cpu_s, rss) = own_cost();
        assert!(cpu_s.unwrap() >= 0.0 && rss.unwrap() > 100_000);
    }
}
