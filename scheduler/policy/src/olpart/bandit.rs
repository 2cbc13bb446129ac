//! LinUCB with an estimate for each arm: what an arm is worth in a context, and how little that is known.

use surefoot_learn::rng::Rng;

/// The arms of one resource of one job.
#[derive(Clone, Debug)]
pub struct Bandit {
    dims: usize,
    arms: Vec<Arm>,
}

/// A ridge regression of rewards on contexts.
#[derive(Clone, Debug)]
struct Arm {
    /// Inverse of the identity plus the sum of x x', row by row.
    inverse: Vec<f64>,
    /// Sum of rewards times x.
    b: Vec<f64>,
}

impl Bandit {
    pub fn new(arms: usize, dims: usize) -> Self {
        let identity = (0..dims * dims).map(|i| f64::from(u8::from(i % (dims + 1) == 0))).collect();
        Bandit { dims, arms: vec![Arm { inverse: identity, b: vec![0.0; dims] }; arms] }
    }

    /// Upper confidence bounds of all arms.
    pub fn bounds(&self, x: &[f64], alpha: f64) -> Vec<f64> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let bound = |arm: &Arm| {
            let with_x = arm.times(x);
            dot(&with_x, &arm.b) + alpha * dot(&with_x, x).max(0.0).sqrt()
        };
        self.arms.iter().map(bound).collect()
    }

    /// What an arm brought. The inverse follows by Sherman and Morrison.
    pub fn update(&mut self, arm: usize, x: &[f64], reward: f64) {
        let dims = self.dims;
        let Some(arm) = self.arms.get_mut(arm) else { return };
        let v = arm.times(x);
        let scale = 1.0 + v.iter().zip(x).map(|(v, x)| v * x).sum::<f64>();
        for (i, row) in arm.inverse.chunks_exact_mut(dims).enumerate() {
            for (cell, vj) in row.iter_mut().zip(&v) {
                *cell -= v[i] * vj / scale;
            }
        }
        for (b, x) in arm.b.iter_mut().zip(x) {
            *b += reward * x;
        }
    }
}

impl Arm {
    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.inverse.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }
}

/// The largest; of equals one by chance.
pub fn best(of: &[f64], rng: &mut Rng) -> usize {
    let top = of.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let equals: Vec<usize> = (0..of.len()).filter(|i| of[*i] == top).collect();
    equals.get(rng.below(equals.len().max(1))).copied().unwrap_or(0)
}

/// Cores for each job from its candidates, together at most `total`, each at least one: the combination with the largest sum of bounds.
///
/// A candidate that is too large is cut to what is left when the jobs after it keep one each.
pub fn beam(total: u32, candidates: &[Vec<u32>], bounds: &[Vec<f64>]) -> Vec<u32> {
    let jobs = candidates.len() as u32;
    let mut all: Vec<Vec<u32>> = vec![vec![]];
    for (job, of) in candidates.iter().enumerate() {
        let extend = |so_far: &Vec<u32>| {
            let left = total.saturating_sub(so_far.iter().sum::<u32>()).saturating_sub(jobs - job as u32 - 1).max(1);
            of.iter().map(|c| so_far.iter().copied().chain([(*c).clamp(1, left)]).collect()).collect::<Vec<Vec<u32>>>()
        };
        all = all.iter().flat_map(extend).collect();
    }
    let worth = |cores: &[u32]| cores.iter().zip(bounds).map(|(c, b)| b.get(*c as usize - 1).copied().unwrap_or(0.0)).sum::<f64>();
    all.into_iter().max_by(|a, b| worth(a).total_cmp(&worth(b))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: one dimension, x = 1. After two rewards of 3 the estimate is 6 / 3, and the doubt sqrt(1 / 3).
    #[test]
    fn a_bound_is_estimate_and_doubt() {
        let mut b = Bandit::new(2, 1);
        (0..2).for_each(|_| b.update(0, &[1.0], 3.0));
        let bounds = b.bounds(&[1.0], 1.0);
        assert!((bounds[0] - (2.0 + (1.0f64 / 3.0).sqrt())).abs() < 1e-12 && (bounds[1] - 1.0).abs() < 1e-12, "{bounds:?}");
    }

    /// It learns which arm is good in which context.
    #[test]
    fn the_best_arm_depends_on_the_context() {
        let mut b = Bandit::new(2, 2);
        for i in 0..40 {
            let x = if i % 2 == 0 { [1.0, 0.0] } else { [0.0, 1.0] };
            for arm in 0..2 {
                b.update(arm, &x, if arm == i % 2 { 1.0 } else { -1.0 });
            }
        }
        let best_in = |x: &[f64]| best(&b.bounds(x, 0.01), &mut Rng::new(1));
        assert_eq!((best_in(&[1.0, 0.0]), best_in(&[0.0, 1.0])), (0, 1));
    }

    /// Cores never exceed what there is, and everybody has one.
    #[test]
    fn a_beam_cuts_what_does_not_fit() {
        let bounds = vec![vec![0.0, 0.0, 1.0, 2.0], vec![0.0, 5.0, 0.0, 0.0], vec![0.1, 0.0, 0.0, 0.0]];
        let got = beam(6, &[vec![4, 3], vec![2, 4], vec![4, 1]], &bounds);
        // 3 + 2 + 1 with 1 + 5 + 0.1; 4 for the first leave one for the second, which then has nothing of its 5.
        assert_eq!(got, [3, 2, 1]);
        assert_eq!(beam(3, &[vec![9], vec![9], vec![9]], &bounds), [1, 1, 1]);
    }
}
