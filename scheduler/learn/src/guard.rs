//! The guard of on-line learning: an update that makes things worse on experience held back from training is refused.
//!
//! One transition of every `every` is held back (which one of them is drawn by its number, so that services taking turns all
//! have their share). After `window` steps of learning the networks are compared with those before the window, on all that is
//! held back, in units of Q:
//!
//! * temporal-difference error: root mean square of Q(s, a) - y, the largest tenth left out, y from the networks before the
//!   window;
//! * worth of the policy (DDPG): mean Q(s, pi(s)) (+ its entropy term), by the critic before the window.
//!
//! What a window loses is added up and what it gains is taken off, down to 0: so small losses cannot add up unnoticed either.
//! A window that loses is kept while the sum stays within `tolerance` times the scale: the spread of the held-back returns plus the error
//! before the window. Otherwise weights, targets and optimiser go back to where they were before it. Until it is judged a window is not
//! acted upon.
//!
//! The guard cannot tell bad experience from a changed world: what is wrong for as long as the held-back pool remembers
//! becomes the new normal. Limits of what is remembered at all (`reward_limit`) are its other half.

use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Settings of the guard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    /// One transition of so many is held back; 0 = none, and no guard.
    pub every: usize,
    /// Held-back transitions kept; the oldest is overwritten.
    pub keep: usize,
    /// Below so many nothing can be judged, and a window is kept unjudged.
    pub least: usize,
    /// Steps of learning that are judged together.
    pub window: u32,
    /// Largest sum of losses, as a share of [`Score::scale`].
    pub tolerance: f32,
    /// A reward beyond +- this is not remembered: the papers' rewards stay below 30.
    pub reward_limit: f32,
}

impl Default for Guard {
    fn default() -> Self {
        Guard { every: 8, keep: 512, least: 16, window: 16, tolerance: 0.2, reward_limit: 100.0 }
    }
}

impl Guard {
    /// No transition is held back and every step is kept.
    pub fn off() -> Self {
        Guard { every: 0, ..Guard::default() }
    }

    /// Whether the transition of this number, from 0, is held back.
    pub(crate) fn holds_back(&self, number: u64) -> bool {
        let n = self.every as u64;
        n > 0 && Rng::new(number / n).below(self.every) as u64 == number % n
    }
}

/// Held-back experience before and after a window, in units of Q.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    pub td_before: f32,
    pub td_after: f32,
    /// Worth of the policy; both 0 where the guard judges by the error alone (DQN).
    pub worth_before: f32,
    pub worth_after: f32,
    /// Spread of the held-back returns y, plus `td_before`: what losses are measured against.
    pub scale: f32,
}

impl Score {
    /// Error and worth lost (negative: gained).
    fn lost(&self) -> [f32; 2] {
        [self.td_after - self.td_before, self.worth_before - self.worth_after]
    }
}

/// Running sums of what was lost since the best.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Losses([f32; 2]);

impl Losses {
    /// The sums with this window in them, if it may be kept.
    pub fn with(&self, score: &Score, tolerance: f32) -> Option<Losses> {
        let lost = score.lost();
        let limit = tolerance * score.scale;
        let sums = [0, 1].map(|i| (self.0[i] + lost[i]).max(0.0));
        // A sum from a time of wider returns must not stop a window that gains. What is not a number is no gain.
        (0..2).all(|i| lost[i] <= 0.0 || lost[i].is_finite() && sums[i] <= limit).then_some(Losses(sums))
    }
}

/// What became of experience and updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Windows kept, refused by the guard, and kept without enough held-back experience to judge.
    pub kept: u64,
    pub refused: u64,
    pub unjudged: u64,
    /// Steps of learning whose loss or weights were not finite.
    pub broken: u64,
    /// Transitions not remembered: a value not finite or out of range.
    pub left_out: u64,
}

/// Share of the largest values that a trimmed mean leaves out.
const TRIMMED: f32 = 0.1;

/// Root of the mean square of `errors` without the largest tenth; overwrites them. 0 of none.
pub(crate) fn trimmed_rms(errors: &mut [f32]) -> f32 {
    errors.iter_mut().for_each(|e| *e *= *e);
    errors.sort_unstable_by(f32::total_cmp);
    let n = errors.len() - (errors.len() as f32 * TRIMMED) as usize;
    (errors[..n].iter().sum::<f32>() / n.max(1) as f32).sqrt()
}

/// Distance from the median as [`trimmed_rms`]; overwrites `values`.
pub(crate) fn spread(values: &mut [f32]) -> f32 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f32::total_cmp);
    let median = values[values.len() / 2];
    values.iter_mut().for_each(|v| *v -= median);
    trimmed_rms(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exactly one of every eight is held back, and not always the same one: services that take turns all have their share.
    #[test]
    fn one_of_every_n_is_held_back() {
        let guard = Guard::default();
        let held: Vec<u64> = (0..8 * 200).filter(|&i| guard.holds_back(i)).collect();
        assert_eq!(held.len(), 200);
        assert!(held.iter().enumerate().all(|(block, i)| i / 8 == block as u64));
        for turn in 0..8 {
            let share = held.iter().filter(|i| **i % 8 == turn).count();
            assert!((10..50).contains(&share), "place {turn}: {share} of 200");
        }
        assert!(!(0..100).any(|i| Guard::off().holds_back(i)));
    }

    /// Losses add up and gains take off; one refused leaves the sum alone; what is not a number is refused.
    #[test]
    fn small_losses_add_up() {
        let score =
            |td: f32, worth: f32| Score { td_before: 1.0, td_after: 1.0 + td, worth_before: 2.0, worth_after: 2.0 - worth, scale: 10.0 };
        // Limit: 0.1 x 10 = 1.
        let once = Losses::default().with(&score(0.75, -9.0), 0.1).unwrap();
        assert_eq!(once, Losses([0.75, 0.0]));
        assert_eq!(once.with(&score(0.5, 0.0), 0.1), None);
        assert_eq!(once.with(&score(-0.5, 0.25), 0.1), Some(Losses([0.25, 0.25])));
        assert_eq!(Losses([5.0, 0.0]).with(&score(-1.0, 0.0), 0.1), Some(Losses([4.0, 0.0])), "a gain is never refused");
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(Losses::default().with(&score(bad, 0.0), 0.1), None);
            assert_eq!(Losses::default().with(&score(0.0, bad), 0.1), None);
            assert_eq!(Losses::default().with(&Score { scale: f32::NAN, ..score(0.1, 0.0) }, 0.1), None);
        }
    }

    /// 20 values: the two largest are left out, whatever they are.
    #[test]
    fn a_trimmed_mean_is_not_moved_by_a_few() {
        let mut v: Vec<f32> = (0..18).map(|i| [3.0, -4.0][i % 2]).chain([1e30, f32::INFINITY]).collect();
        assert_eq!(trimmed_rms(&mut v), 12.5f32.sqrt());
        assert_eq!(trimmed_rms(&mut []), 0.0);
        // Median 5 (the upper one); distances 5 4 3 2 1 0 1 2 3, and 1e9 - 5, which is left out: squares sum to 69.
        let mut v = vec![1e9, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 7.0, 6.0, 8.0];
        assert_eq!(spread(&mut v), (69.0f32 / 9.0).sqrt());
        assert_eq!(spread(&mut []), 0.0);
    }
}
