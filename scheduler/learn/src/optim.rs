//! Optimisers on flat weights: Adam and RMSProp, as PyTorch's defaults have them.
//!
//! Coefficients are found in f64 and then rounded: 1 - 0.999 and 0.999^t lose digits in f32.
//!
//! A gradient or mean below 1e-7 eps moves a weight by less than 1e-7 of a full step and is taken as 0: the means of a neuron
//! that is off for good would otherwise end as denormals, with which processors calculate a hundred times more slowly.

use crate::wide::wide;

/// Adam (Kingma and Ba, 2015) with bias correction.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    pub rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    steps: i32,
    m: Vec<f32>,
    v: Vec<f32>,
}

impl Adam {
    /// Beta 0.9 and 0.999, eps 1e-8.
    pub fn new(rate: f64, params: usize) -> Self {
        Adam { rate, beta1: 0.9, beta2: 0.999, eps: 1e-8, steps: 0, m: vec![0.0; params], v: vec![0.0; params] }
    }

    /// One step down the gradient. Both slices have the network's length.
    pub fn step(&mut self, params: &mut [f32], grads: &[f32]) {
        assert!(params.len() == self.m.len() && grads.len() == self.m.len(), "Adam: lengths differ");
        self.steps = self.steps.saturating_add(1);
        let step = (self.rate / (1.0 - self.beta1.powi(self.steps))) as f32;
        let c2 = (1.0 - self.beta2.powi(self.steps)).sqrt() as f32;
        let (new1, keep2, new2, eps) = ((1.0 - self.beta1) as f32, self.beta2 as f32, (1.0 - self.beta2) as f32, self.eps as f32);
        adam(params, grads, &mut self.m, &mut self.v, [new1, keep2, new2, step, c2, eps]);
    }

    pub(crate) fn copy_from(&mut self, other: &Adam) {
        self.steps = other.steps;
        self.m.copy_from_slice(&other.m);
        self.v.copy_from_slice(&other.v);
    }
}

/// RMSProp (Tieleman and Hinton, 2012), not centred, without momentum.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsProp {
    pub rate: f64,
    /// Share of the old mean square that is kept.
    pub alpha: f64,
    pub eps: f64,
    v: Vec<f32>,
}

impl RmsProp {
    /// Alpha 0.99, eps 1e-8.
    pub fn new(rate: f64, params: usize) -> Self {
        RmsProp { rate, alpha: 0.99, eps: 1e-8, v: vec![0.0; params] }
    }

    /// One step down the gradient. Both slices have the network's length.
    pub fn step(&mut self, params: &mut [f32], grads: &[f32]) {
        assert!(params.len() == self.v.len() && grads.len() == self.v.len(), "RMSProp: lengths differ");
        let (rate, keep, new, eps) = (self.rate as f32, self.alpha as f32, (1.0 - self.alpha) as f32, self.eps as f32);
        rmsprop(params, grads, &mut self.v, [keep, new, rate, eps]);
    }

    pub(crate) fn copy_from(&mut self, other: &RmsProp) {
        self.v.copy_from_slice(&other.v);
    }
}

/// Share of eps below which a gradient counts as 0.
const LEAST: f32 = 1e-7;

/// `x`, or 0 where it is smaller than `least`.
#[inline(always)]
pub(crate) fn from(least: f32, x: f32) -> f32 {
    if x.abs() < least {
        0.0
    } else {
        x
    }
}

wide! {
    fn adam / adam_plain(params: &mut [f32], grads: &[f32], m: &mut [f32], v: &mut [f32], with: [f32; 6]) {
        let [new1, keep2, new2, step, c2, eps] = with;
        let (least, least2) = (LEAST * eps, LEAST * eps * LEAST * eps);
        for (((p, g), m), v) in params.iter_mut().zip(grads).zip(m).zip(v) {
            let g = from(least, *g);
            *m = from(least, *m + new1 * (g - *m));
            *v = from(least2, keep2 * *v + new2 * g * g);
            *p -= step * *m / (v.sqrt() / c2 + eps);
        }
    }
}

wide! {
    fn rmsprop / rmsprop_plain(params: &mut [f32], grads: &[f32], v: &mut [f32], with: [f32; 4]) {
        let [keep, new, rate, eps] = with;
        let (least, least2) = (LEAST * eps, LEAST * eps * LEAST * eps);
        for ((p, g), v) in params.iter_mut().zip(grads).zip(v) {
            let g = from(least, *g);
            *v = from(least2, keep * *v + new * g * g);
            *p -= rate * g / (v.sqrt() + eps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adam's first step is rate * sign(gradient): m / c1 = g and sqrt(v) / c2 = |g|. The second, with the same gradient, too.
    #[test]
    fn adam_known_answer() {
        let (mut adam, mut p) = (Adam::new(0.1, 2), [1.0f32, 1.0]);
        adam.step(&mut p, &[3.0, -0.5]);
        assert!((p[0] - 0.9).abs() < 1e-6 && (p[1] - 1.1).abs() < 1e-6, "{p:?}");
        adam.step(&mut p, &[3.0, -0.5]);
        assert!((p[0] - 0.8).abs() < 1e-6 && (p[1] - 1.2).abs() < 1e-6, "{p:?}");
        // Then a gradient of 0: m = 0.9 * 0.19 * 3 = 0.513, / (1 - 0.729) = 1.892989;
        // v = 0.999 * 0.001999 * 9 = 0.01797301, / (1 - 0.997002999) = 5.997002, root 2.448878; step 0.1 * 0.773003.
        adam.step(&mut p, &[0.0, 0.0]);
        assert!((p[0] - 0.722_699_7).abs() < 1e-5, "{p:?}");
    }

    /// Of a neuron that is off for good nothing is left in the end, and no denormals on the way.
    #[test]
    fn means_without_gradients_end_at_zero() {
        let (mut adam, mut rms, mut p) = (Adam::new(0.1, 1), RmsProp::new(0.1, 1), [1.0f32]);
        adam.step(&mut p, &[1e-3]);
        rms.step(&mut p, &[1e-3]);
        for _ in 0..80_000 {
            adam.step(&mut p, &[0.0]);
            rms.step(&mut p, &[0.0]);
            assert!([adam.m[0], adam.v[0], rms.v[0]].iter().all(|x| *x == 0.0 || x.is_normal()));
        }
        assert_eq!((adam.m[0], adam.v[0], rms.v[0]), (0.0, 0.0, 0.0));
        // A gradient that is not a number still shows.
        adam.step(&mut p, &[f32::NAN]);
        assert!(p[0].is_nan());
    }

    /// First step: v = 0.01 g^2, so rate * g / (0.1 |g|) = 10 rate. Second, gradient 4 after 3: v = 0.99 * 0.09 + 0.01 * 16
    /// = 0.2491, root 0.499099; step 0.01 * 4 / 0.499099 = 0.0801444. A gradient of 0 moves nothing.
    #[test]
    fn rmsprop_known_answer() {
        let (mut rms, mut p) = (RmsProp::new(0.01, 2), [1.0f32, 1.0]);
        rms.step(&mut p, &[3.0, 0.0]);
        assert!((p[0] - 0.9).abs() < 1e-6 && p[1] == 1.0, "{p:?}");
        rms.step(&mut p, &[4.0, 0.0]);
        assert!((p[0] - 0.819_855_6).abs() < 1e-6, "{p:?}");
    }
}
