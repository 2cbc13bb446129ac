//! Bursty arrivals: a Markov-modulated Poisson process. The rate jumps between states, each with a factor on the wanted rate and an
//! exponential dwell time; after a dwell the next state is any other with equal chance.
//!
//! Such a chain spends in each state a share of time proportional to its dwell time. The factors are scaled so that their mean by
//! these shares is 1, and the first state is drawn by the same shares: the expected rate is the wanted one at every instant.
//! States and dwells are a function of the seed alone, so a load change does not move the bursts.

use crate::error::{bad, LoadgenError};
use crate::random::{draw, unit};
use serde::{Deserialize, Serialize};

const STREAM_DWELL: u64 = 5;
const STREAM_STATE: u64 = 6;
const MAX_STATES: usize = 64;
const MIN_DWELL_NS: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Of the wanted rate.
    pub factor: f64,
    /// Mean time in the state, ms.
    pub dwell_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mmpp {
    pub states: Vec<State>,
}

/// Where the chain is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position {
    jumps: u64,
    state: usize,
    /// It leaves the state then.
    pub until_ns: f64,
}

impl Mmpp {
    /// States as (relative rate, mean dwell time in ns); the rates are scaled to a mean of 1.
    ///
    /// # Errors
    /// `BadInput` naming the state that makes no sense.
    pub fn new(states: &[(f64, u64)]) -> Result<Self, LoadgenError> {
        if !(2..=MAX_STATES).contains(&states.len()) {
            return Err(bad(format!("--states: {} states; give 2 to {MAX_STATES}, e.g. 0.5:900ms,5:100ms", states.len())));
        }
        for &(rate, dwell_ns) in states {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(bad(format!("--states rate {rate} is not a factor: give 0 or more, e.g. 0.5:900ms,5:100ms")));
            }
            if dwell_ns < MIN_DWELL_NS {
                return Err(bad("dwell times must be at least 1ms, e.g. --burst-dwell 200ms"));
            }
        }
        let time: f64 = states.iter().map(|s| s.1 as f64).sum();
        let mean = states.iter().map(|s| s.0 * s.1 as f64).sum::<f64>() / time;
        if mean <= 0.0 {
            return Err(bad("--states: every rate is 0; give at least one above 0, e.g. 0:900ms,1:100ms"));
        }
        Ok(Mmpp { states: states.iter().map(|s| State { factor: s.0 / mean, dwell_ms: s.1 as f64 * 1e-6 }).collect() })
    }

    /// Two states: bursts of `factor` times the mean for `dwell_ns` on average and for `share` of the time, calm in between.
    ///
    /// # Errors
    /// `BadInput` if the bursts alone would exceed the mean, or a number makes no sense.
    pub fn bursty(factor: f64, share: f64, dwell_ns: u64) -> Result<Self, LoadgenError> {
        if !(share > 0.0 && share < 1.0) {
            return Err(bad(format!("--burst-share {share} is not between 0 and 1 (e.g. 0.1)")));
        }
        if !(factor.is_finite() && factor > 1.0) {
            return Err(bad(format!("--burst-factor {factor}: a burst is above the mean; give more than 1 (e.g. 4)")));
        }
        if factor * share > 1.0 {
            return Err(bad(format!(
                "--burst-factor {factor} for --burst-share {share} of the time is more than the mean: give a factor of at most {}",
                1.0 / share
            )));
        }
        let calm = (1.0 - factor * share) / (1.0 - share);
        Self::new(&[(calm, (dwell_ns as f64 * (1.0 - share) / share) as u64), (factor, dwell_ns)])
    }

    fn dwell_ns(&self, state: usize, seed: u64, jumps: u64) -> f64 {
        -unit(draw(seed, STREAM_DWELL, jumps)).ln() * self.states[state].dwell_ms * 1e6
    }

    /// At time 0, as if it had run for ever.
    pub fn start(&self, seed: u64) -> Position {
        let time: f64 = self.states.iter().map(|s| s.dwell_ms).sum();
        let mut left = unit(draw(seed, STREAM_STATE, 0)) * time;
        let last = self.states.len() - 1;
        let state = self.states[..last]
            .iter()
            .position(|s| {
                left -= s.dwell_ms;
                left <= 0.0
            })
            .unwrap_or(last);
        Position { jumps: 0, state, until_ns: self.dwell_ns(state, seed, 0) }
    }

    /// Jump until the chain's state holds beyond `at_ns`.
    pub fn follow(&self, p: &mut Position, seed: u64, at_ns: f64) {
        while p.until_ns <= at_ns {
            p.jumps += 1;
            let other = (draw(seed, STREAM_STATE, p.jumps) % (self.states.len() as u64 - 1)) as usize;
            p.state = if other >= p.state { other + 1 } else { other };
            p.until_ns += self.dwell_ns(p.state, seed, p.jumps);
        }
    }

    pub fn factor(&self, p: &Position) -> f64 {
        self.states[p.state].factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors have a mean of 1 by share of time, whatever was given.
    #[test]
    fn the_mean_is_kept() {
        let two = Mmpp::bursty(4.0, 0.1, 200_000_000).unwrap();
        // Calm: (1 - 0.4) / 0.9 of the mean for 1.8 s on average.
        assert!((two.states[0].factor - 2.0 / 3.0).abs() < 1e-9 && (two.states[0].dwell_ms - 1800.0).abs() < 1e-3);
        assert!((two.states[1].factor - 4.0).abs() < 1e-9);
        let three = Mmpp::new(&[(0.0, 3_000_000), (7.0, 1_000_000), (1.0, 9_000_000)]).unwrap();
        let time: f64 = three.states.iter().map(|s| s.dwell_ms).sum();
        assert!((three.states.iter().map(|s| s.factor * s.dwell_ms).sum::<f64>() / time - 1.0).abs() < 1e-12);
    }

    /// The share of time in each state, over many seeds and from the first instant on, is that of the dwell times.
    #[test]
    fn the_chain_is_stationary_from_the_start() {
        let m = Mmpp::new(&[(1.0, 2_000_000), (2.0, 3_000_000), (0.0, 5_000_000)]).unwrap();
        for at_ns in [0.0, 4e6, 1e9] {
            let mut seen = [0.0; 3];
            for seed in 0..10_000 {
                let mut p = m.start(seed);
                m.follow(&mut p, seed, at_ns);
                seen[p.state] += 1.0;
            }
            for (got, share) in seen.iter().zip([0.2, 0.3, 0.5]) {
                // Standard deviation of the count at most 50; four of them.
                assert!((got - share * 10_000.0f64).abs() < 200.0, "{at_ns}: {seen:?}");
            }
        }
    }

    #[test]
    fn bursts_that_make_no_sense() {
        for (factor, share, dwell) in
            [(1.0, 0.1, 1e8), (f64::NAN, 0.1, 1e8), (20.0, 0.1, 1e8), (2.0, 0.0, 1e8), (2.0, 1.0, 1e8), (2.0, 0.1, 1.0)]
        {
            assert!(Mmpp::bursty(factor, share, dwell as u64).is_err(), "{factor} {share}");
        }
        assert!(Mmpp::bursty(20.0, 0.1, 100_000_000).unwrap_err().to_string().contains("at most 10"));
        assert!(Mmpp::new(&[(1.0, 1_000_000)]).is_err() && Mmpp::new(&[(0.0, 1_000_000), (0.0, 1_000_000)]).is_err());
    }
}
