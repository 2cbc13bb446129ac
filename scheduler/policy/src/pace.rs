//! How often a policy is called, and what that makes of a time.

use std::ops::RangeInclusive;

/// Steps that any policy can work with, ms. Latency is judged by the last second: with a slower step most of it would be seen by nobody.
pub const INTERVALS_MS: RangeInclusive<u64> = 10..=1000;

/// Time between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    interval_ms: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { interval_ms: Self::USUAL_MS }
    }
}

impl Pace {
    /// The step that weights are given for.
    pub const USUAL_MS: u64 = 100;

    /// # Errors
    /// The bounds, in words, where the step is outside of them.
    pub fn every(interval_ms: u64) -> Result<Self, String> {
        let (least, most) = (INTERVALS_MS.start(), INTERVALS_MS.end());
        match INTERVALS_MS.contains(&interval_ms) {
            true => Ok(Pace { interval_ms }),
            false => Err(format!("{interval_ms} ms: policies judge by the last second. Give {least} to {most}")),
        }
    }

    pub fn interval_ms(self) -> u64 {
        self.interval_ms
    }

    /// Steps in so many ms; at least one.
    pub fn steps(self, ms: u64) -> usize {
        usize::try_from((ms + self.interval_ms / 2) / self.interval_ms).unwrap_or(usize::MAX).max(1)
    }

    /// Weight of the newest value in a running mean, of which `usual` is the weight at [`Self::USUAL_MS`]: the mean reaches back as far.
    pub fn weight(self, usual: f64) -> f64 {
        match self.interval_ms {
            Self::USUAL_MS => usual,
            ms => 1.0 - (1.0 - usual).powf(ms as f64 / Self::USUAL_MS as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mean of steps twice as long weighs two usual steps at once; a time is never less than one step.
    #[test]
    fn times_stay_times() {
        let p = Pace::every(200).unwrap();
        let (a, b) = (Pace::default().weight(0.3), p.weight(0.3));
        assert!((1.0 - b - (1.0 - a) * (1.0 - a)).abs() < 1e-12);
        assert_eq!((Pace::default().steps(500), p.steps(500), p.steps(50), Pace::every(10).unwrap().steps(300)), (5, 3, 1, 30));
        assert!(Pace::every(9).is_err() && Pace::every(60_000).unwrap_err().contains("10 to 1000"));
    }
}
