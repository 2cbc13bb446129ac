//! When is the warm-up over? `--warmup auto` asks this rule after every window and begins to measure when it says so.
//!
//! The series: mean response time of consecutive blocks, a block being one window or as many as hold [`MIN_REPLIES`] replies. Values
//! above the series' 90th percentile count as that percentile, so that rare stalls of a host do not look like a change.
//! The rule, from [`MIN_BLOCKS`] blocks on:
//!
//! 1. MSER (White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997): of all cuts, take
//!    the one after which the squared standard error of the mean is least, sum (x - mean)^2 / n^2. What lies before it is the transient.
//!    A transient longer than half the series is not over. (MSER-5 averages five observations first; a block here averages more.)
//! 2. The two halves of what is left agree: their means differ by no more than 5 % or by what chance explains (99 %, Welch's t). This
//!    finds the slow drift that MSER takes for noise.
//!
//! Blocks that queue behind one another are alike, so chance explains more than Welch's t allows: near overload the rule is late rather
//! than early. A server whose backlog grows never settles. Bursty or swinging load changes the response time by itself: give a fixed
//! warm-up there.

use crate::quantile::student_quantile;
use serde::{Deserialize, Serialize};

pub const MIN_BLOCKS: usize = 20;
pub const MIN_REPLIES: u64 = 10;
/// Least blocks after a cut: the standard error of fewer means nothing.
const MIN_TAIL: usize = 5;
const AGREE_SHARE: f64 = 0.05;
const CONFIDENCE: f64 = 0.99;

/// What the rule says of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Answer {
    /// The first so many blocks were the transient; the rest is level.
    Settled(usize),
    TooShort,
    /// The best cut leaves less than half.
    Changing,
    /// The halves of the rest differ by this share of their mean.
    Drifting(f64),
}

/// Judge a series by the rule of the module doc.
pub fn judge(series: &[f64]) -> Answer {
    let n = series.len();
    if n < MIN_BLOCKS {
        return Answer::TooShort;
    }
    let mut sorted = series.to_vec();
    sorted.sort_by(f64::total_cmp);
    let top = sorted[n * 9 / 10];
    let x: Vec<f64> = series.iter().map(|v| v.min(top)).collect();
    let cut = mser(&x);
    if cut > n / 2 {
        return Answer::Changing;
    }
    let rest = &x[cut..];
    let (a, b) = rest.split_at(rest.len() / 2);
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error2(a), mean_and_error2(b));
    let apart = (mean_a - mean_b).abs();
    let level = 0.5 * (mean_a + mean_b).abs();
    let t = student_quantile(0.5 + CONFIDENCE / 2.0, (rest.len() - 2) as f64);
    if apart > (AGREE_SHARE * level).max(t * (error_a + error_b).sqrt()) {
        return Answer::Drifting(apart / level);
    }
    Answer::Settled(cut)
}

fn mean_and_error2(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / ((n - 1.0) * n))
}

/// The cut with the least standard error of the mean behind it; the earliest of equal ones.
fn mser(x: &[f64]) -> usize {
    let n = x.len();
    // Around the mean, so that squares lose no digits.
    let mean = x.iter().sum::<f64>() / n as f64;
    // Errors nearer to each other than rounding makes them are equal.
    let grain = 1e-12 * x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n * n) as f64;
    let (mut sum, mut squares) = (0.0, 0.0);
    let mut best = (f64::INFINITY, 0);
    for d in (0..n).rev() {
        let v = x[d] - mean;
        sum += v;
        squares += v * v;
        let left = (n - d) as f64;
        let error = (squares - sum * sum / left).max(0.0) / (left * left);
        if n - d >= MIN_TAIL && error <= best.0 + grain {
            best = (error.min(best.0), d);
        }
    }
    best.1
}

/// Gathers windows into blocks.
#[derive(Debug, Default)]
pub struct Detector {
    blocks: Vec<f64>,
    /// Last window of each block.
    ends: Vec<u64>,
    sum: f64,
    count: u64,
    last: Option<Answer>,
}

impl Detector {
    /// Add window number `window` (from 0): the mean response time of its replies and how many they are.
    pub fn window(&mut self, window: u64, mean_ms: Option<f64>, count: u64) -> Answer {
        if let Some(mean) = mean_ms {
            self.sum += mean * count as f64;
            self.count += count;
        }
        if self.count >= MIN_REPLIES {
            self.blocks.push(self.sum / self.count as f64);
            self.ends.push(window);
            (self.sum, self.count) = (0.0, 0);
            self.last = Some(judge(&self.blocks));
        }
        self.last.unwrap_or(Answer::TooShort)
    }

    /// What became of it, for the report. `window_ms`: length of a window.
    pub fn report(&self, limit_ms: f64, window_ms: f64) -> WarmupReport {
        let answer = self.last.unwrap_or(Answer::TooShort);
        let (settled, transient_ms, reason) = match answer {
            Answer::Settled(0) => (true, Some(0.0), "the response time was level from the start".to_string()),
            Answer::Settled(cut) => {
                let ms = (self.ends[cut - 1] + 1) as f64 * window_ms;
                (true, Some(ms), format!("the response time was level after {ms:.0} ms"))
            }
            Answer::TooShort => {
                let seen = self.blocks.len();
                (false, None, format!("{seen} of {MIN_BLOCKS} blocks of {MIN_REPLIES} replies came by the limit; raise --warmup-limit"))
            }
            Answer::Changing => {
                (false, None, "the response time still changed at the limit; raise --warmup-limit or lower the load".into())
            }
            Answer::Drifting(share) => {
                (false, None, format!("the response time still drifted by {:.0} % at the limit; raise --warmup-limit", share * 100.0))
            }
        };
        WarmupReport { settled, limit_ms, transient_ms, blocks: self.blocks.len(), reason }
    }
}

/// How a warm-up that was to end by itself ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WarmupReport {
    /// False: it ended at the limit, and the measured time may hold some of it.
    pub settled: bool,
    pub limit_ms: f64,
    /// Length of the transient; the warm-up itself is longer, because it takes time to see that it is over.
    pub transient_ms: Option<f64>,
    pub blocks: usize,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{draw, unit};

    /// Standard normal numbers (Box and Muller).
    fn noise(seed: u64, i: u64) -> f64 {
        (-2.0 * unit(draw(seed, 1, i)).ln()).sqrt() * (std::f64::consts::TAU * unit(draw(seed, 2, i))).cos()
    }

    /// When the rule first says settled, and the transient it saw.
    fn settles(make: impl Fn(u64) -> f64, blocks: u64) -> Option<(u64, usize)> {
        let mut series = Vec::new();
        (0..blocks).find_map(|i| {
            series.push(make(i));
            match judge(&series) {
                Answer::Settled(cut) => Some((i + 1, cut)),
                _ => None,
            }
        })
    }

    /// A level series is settled as soon as it may be, for nearly every seed.
    #[test]
    fn a_level_series_settles_at_once() {
        assert_eq!(settles(|_| 3.0, 100), Some((20, 0)));
        let soon = (0..200).filter(|&s| settles(|i| 5.0 + 0.5 * noise(s, i), 100).is_some_and(|(n, _)| n <= 30)).count();
        assert!(soon >= 180, "{soon}");
    }

    /// After a step the series settles when about as much of the new level was seen, never before the step, and the cut is at the step.
    #[test]
    fn a_step_is_cut_off() {
        for seed in 0..50 {
            let (n, cut) = settles(|i| if i < 30 { 10.0 } else { 2.0 } + 0.1 * noise(seed, i), 300).unwrap();
            // While the old level is all there is, it is level: the rule cannot know. So look from the step on.
            assert!(n <= 32 || (60..=80).contains(&n), "{seed}: {n} {cut}");
            let series: Vec<f64> = (0..100).map(|i| if i < 30 { 10.0 } else { 2.0 } + 0.1 * noise(seed, i)).collect();
            let cuts = (50..=100).filter_map(|n| match judge(&series[..n]) {
                Answer::Settled(cut) => Some((n, cut)),
                _ => None,
            });
            let (n, cut) = cuts.min().unwrap_or_else(|| panic!("{seed}: never"));
            assert!(n >= 60 && (30..=n / 2).contains(&cut), "{seed}: {n} {cut}");
            assert!(!matches!(judge(&series[..45]), Answer::Settled(_)), "{seed}");
        }
    }

    /// A cache that fills: the response time falls exponentially. It is not settled while more than a twentieth of the way is left.
    #[test]
    fn an_exponential_transient_is_waited_for() {
        for seed in 0..50 {
            let (n, _) = settles(|i| 2.0 + 8.0 * (-(i as f64) / 10.0).exp() + 0.05 * noise(seed, i), 300).unwrap();
            let left = 8.0 * (-(n as f64) / 10.0f64).exp() / 2.0;
            assert!(left < 0.05 && n < 120, "{seed}: {n} {left}");
        }
    }

    /// A backlog that grows, and a slow drift within the noise of the blocks, never settle.
    #[test]
    fn drift_never_settles() {
        assert_eq!(settles(|i| 1.0 + i as f64, 400), None);
        for seed in 0..20 {
            assert_eq!(settles(|i| 10.0 + 0.3 * i as f64 + 0.3 * noise(seed, i), 200), None, "{seed}");
            // Half of the level in 100 blocks, noise of 3 %.
            let series: Vec<f64> = (0..100).map(|i| 10.0 + 0.05 * i as f64 + 0.3 * noise(seed, i)).collect();
            assert!(!matches!(judge(&series), Answer::Settled(_)), "{seed}: {:?}", judge(&series));
        }
    }

    /// A level that jumps up and down for ever is not level.
    #[test]
    fn long_waves_never_settle() {
        assert_eq!(settles(|i| if i / 40 % 2 == 0 { 1.0 + 0.01 * i as f64 } else { 5.0 }, 30), None);
        for n in [60u64, 100, 140, 180] {
            let series: Vec<f64> = (0..n).map(|i| if i / 40 % 2 == 0 { 1.0 } else { 5.0 }).collect();
            assert!(!matches!(judge(&series), Answer::Settled(_)), "{n}: {:?}", judge(&series));
        }
    }

    /// Rare stalls of a host, however long, do not keep a warm-up from ending.
    #[test]
    fn stalls_do_not_count() {
        for seed in 0..20 {
            let stall = |i| if draw(seed, 3, i).is_multiple_of(30) { 80.0 } else { 0.0 };
            let (n, _) = settles(|i| 2.0 + 0.1 * noise(seed, i) + stall(i), 200).unwrap();
            assert!(n <= 60, "{seed}: {n}");
        }
    }

    /// Windows with few replies are put together, and the report counts the transient in windows.
    #[test]
    fn windows_become_blocks() {
        let mut d = Detector::default();
        // Four replies a window: three windows a block. The first 8 blocks are slow.
        let mut settled = None;
        for w in 0..300 {
            let slow = if w < 24 { 9.0 } else { 1.0 };
            if let Answer::Settled(cut) = d.window(w, Some(slow), 4) {
                settled = Some((w, cut));
                break;
            }
        }
        assert_eq!(settled, Some((59, 8)));
        let r = d.report(60_000.0, 100.0);
        assert_eq!((r.settled, r.transient_ms, r.blocks), (true, Some(2400.0), 20));
        let mut silent = Detector::default();
        for w in 0..100 {
            assert_eq!(silent.window(w, None, 0), Answer::TooShort);
        }
        let r = silent.report(10_000.0, 100.0);
        assert!(!r.settled && r.transient_ms.is_none() && r.reason.contains("--warmup-limit"));
    }
}
