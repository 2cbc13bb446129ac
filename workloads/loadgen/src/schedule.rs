//! When each request is due: an absolute-time schedule, a pure function of seed and load profile.
//!
//! Request `i` draws everything it needs (gap, key, operation, thread) from a counter-based generator (SplitMix64's finaliser over
//! seed, stream and `i`), so the schedule does not depend on the number of threads, on timing, or on a library's version.
//! Load steps use time rescaling: unit-rate gaps are stretched by the rate in force, which is exact across a step for Poisson arrivals.

use crate::error::{bad, LoadgenError};
use serde::{Deserialize, Serialize};

/// The law of the gaps between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Exponential gaps: what many independent users look like.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// From `at_ns` on, `rps` requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub at_ns: u64,
    pub rps: f64,
}

/// Piecewise constant load. Times count from the end of the warm-up; the warm-up runs at the first step's rate.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadProfile(Vec<Step>);

impl LoadProfile {
    /// # Errors
    /// `BadInput` if a rate is not finite and positive.
    pub fn constant(rps: f64) -> Result<Self, LoadgenError> {
        Self::new(vec![Step { at_ns: 0, rps }])
    }

    /// # Errors
    /// `BadInput` if empty, not starting at 0, not rising in time, or with a rate that is not finite and positive.
    pub fn new(steps: Vec<Step>) -> Result<Self, LoadgenError> {
        match steps.first() {
            None => return Err(bad("--load: no steps; give for example 0s:2000,10s:6000")),
            Some(s) if s.at_ns != 0 => return Err(bad("--load: the first step must start at 0s, e.g. 0s:2000,10s:6000")),
            _ => {}
        }
        for s in &steps {
            if !(s.rps.is_finite() && s.rps > 0.0) {
                return Err(bad(format!("load {} requests per second is not positive: give --rps or --load a rate above 0", s.rps)));
            }
            if s.rps > 5e6 {
                return Err(bad(format!("load {} requests per second is beyond one client (limit 5000000): lower --rps or --load", s.rps)));
            }
        }
        if steps.windows(2).any(|w| w[1].at_ns <= w[0].at_ns) {
            return Err(bad("--load: step times must rise, e.g. 0s:2000,10s:6000"));
        }
        Ok(LoadProfile(steps))
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Requests expected in the first `duration_ns` after the warm-up.
    pub fn expected(&self, duration_ns: u64) -> f64 {
        self.0
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let end = self.0.get(i + 1).map_or(duration_ns, |n| n.at_ns.min(duration_ns));
                end.saturating_sub(s.at_ns) as f64 * 1e-9 * s.rps
            })
            .sum()
    }
}

/// One request's place in the schedule. Times are ns from the start of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub index: u64,
    pub intended_ns: u64,
}

const STREAM_GAP: u64 = 1;
const STREAM_THREAD: u64 = 2;
const STREAM_OP: u64 = 3;
const STREAM_KEY: u64 = 4;

/// SplitMix64's finaliser.
fn finalise(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `index`th 64-bit number of one of the seed's independent streams.
pub fn draw(seed: u64, stream: u64, index: u64) -> u64 {
    let base = finalise(seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    finalise(base.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Uniform on (0, 1].
pub fn unit(x: u64) -> f64 {
    ((x >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Which of `threads` sends request `index`. A random split of Poisson arrivals is Poisson again.
pub fn owner(seed: u64, index: u64, threads: usize) -> usize {
    if threads == 1 {
        0
    } else {
        (draw(seed, STREAM_THREAD, index) % threads as u64) as usize
    }
}

/// Is request `index` a SET?
pub fn is_set(seed: u64, index: u64, set_ratio: f64) -> bool {
    set_ratio > 0.0 && unit(draw(seed, STREAM_OP, index)) <= set_ratio
}

/// The key that request `index` asks for, uniform over the key space.
pub fn key_of(seed: u64, index: u64, key_space: u64) -> u64 {
    draw(seed, STREAM_KEY, index) % key_space.max(1)
}

/// Iterator over all arrivals of a stream, in order.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    steps: Vec<Step>,
    step: usize,
    end_ns: u64,
    seed: u64,
    index: u64,
    at_ns: f64,
}

impl Schedule {
    /// A stream of `warmup_ns + duration_ns`.
    pub fn new(arrivals: Arrivals, load: &LoadProfile, warmup_ns: u64, duration_ns: u64, seed: u64) -> Self {
        let mut steps = load.steps().to_vec();
        for s in steps.iter_mut().skip(1) {
            s.at_ns += warmup_ns;
        }
        Schedule { arrivals, steps, step: 0, end_ns: warmup_ns + duration_ns, seed, index: 0, at_ns: 0.0 }
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mut gap = match self.arrivals {
            Arrivals::Poisson => -unit(draw(self.seed, STREAM_GAP, self.index)).ln(),
            Arrivals::Constant => 1.0,
        };
        loop {
            let per_ns = self.steps[self.step].rps * 1e-9;
            let step_end = self.steps.get(self.step + 1).map_or(f64::INFINITY, |s| s.at_ns as f64);
            let at = self.at_ns + gap / per_ns;
            if at < step_end {
                self.at_ns = at;
                break;
            }
            gap -= (step_end - self.at_ns) * per_ns;
            self.at_ns = step_end;
            self.step += 1;
        }
        if self.at_ns >= self.end_ns as f64 {
            return None;
        }
        let arrival = Arrival { index: self.index, intended_ns: self.at_ns as u64 };
        self.index += 1;
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    fn poisson(rps: f64, seconds: u64, seed: u64) -> Vec<Arrival> {
        let load = LoadProfile::constant(rps).unwrap();
        Schedule::new(Arrivals::Poisson, &load, 0, seconds * SEC, seed).collect()
    }

    /// The same seed gives the same schedule, another seed another one.
    #[test]
    fn the_seed_fixes_the_schedule() {
        assert_eq!(poisson(1000.0, 5, 7), poisson(1000.0, 5, 7));
        assert_ne!(poisson(1000.0, 5, 7), poisson(1000.0, 5, 8));
    }

    /// Splitting over threads neither loses nor moves a request.
    #[test]
    fn threads_partition_one_schedule() {
        let whole = poisson(1000.0, 5, 7);
        let mut parts: Vec<Arrival> = (0..3).flat_map(|t| whole.iter().copied().filter(move |a| owner(7, a.index, 3) == t)).collect();
        parts.sort_by_key(|a| a.index);
        assert_eq!(parts, whole);
    }

    /// Poisson counts and gaps have the right mean and variance.
    #[test]
    fn poisson_gaps_have_mean_and_deviation_of_one_period() {
        let all = poisson(1000.0, 200, 3);
        let n = all.len() as f64;
        // 200,000 expected, standard deviation sqrt(200,000) = 447; four of them.
        assert!((n - 200_000.0).abs() < 4.0 * 447.0, "{n}");
        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].intended_ns - w[0].intended_ns) as f64 * 1e-6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((var - 1.0).abs() < 0.03, "{var}");
    }

    /// A load step changes the rate at its instant, warm-up excluded from the count of time.
    #[test]
    fn load_steps_take_effect_at_their_time() {
        let load = LoadProfile::new(vec![Step { at_ns: 0, rps: 100.0 }, Step { at_ns: 2 * SEC, rps: 1000.0 }]).unwrap();
        let all: Vec<u64> = Schedule::new(Arrivals::Constant, &load, SEC, 3 * SEC, 1).map(|a| a.intended_ns).collect();
        // Warm-up 1 s and 2 s at 100, then 1 s at 1000.
        let before = all.iter().filter(|&&t| t < 3 * SEC).count();
        let after = all.len() - before;
        assert!((299..=300).contains(&before), "{before}");
        assert!((999..=1001).contains(&after), "{after}");
        assert_eq!(load.expected(3 * SEC), 1200.0);
    }

    /// Rates that mean nothing are refused.
    #[test]
    fn a_rate_must_be_positive() {
        for rps in [0.0, -5.0, f64::NAN, f64::INFINITY] {
            assert!(LoadProfile::constant(rps).is_err(), "{rps}");
        }
        assert!(LoadProfile::new(vec![]).is_err());
        assert!(LoadProfile::new(vec![Step { at_ns: 5, rps: 1.0 }]).is_err());
    }
}
