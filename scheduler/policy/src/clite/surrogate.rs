//! What CLITE believes about partitions that it has not tried: a Gaussian process over its samples, and expected improvement.
//!
//! The process is that of the crate `friedrich` with its Matern 5/2 kernel: one length scale for all dimensions (no relevance by
//! dimension), inputs in 0..1, scores standardised. Its own fit of parameters is not used (docs/decisions/gaussian-process.md):
//! the length scale with the largest marginal likelihood is taken from [`LENGTH_SCALES`], the likelihood being the product of what
//! the process predicts for each sample from those before it, and the amplitude follows in closed form.

use friedrich::gaussian_process::GaussianProcess;
use friedrich::kernel::Matern2;
use friedrich::prior::ZeroPrior;

/// Tried in turn; 1 is the length of an edge of the space.
pub const LENGTH_SCALES: [f64; 7] = [0.08, 0.15, 0.25, 0.4, 0.7, 1.2, 2.0];
/// Standard deviation of a sample's noise, of that of the scores: a p99 of a second or two is not exact.
const NOISE: f64 = 0.1;
/// Stands in for a pivot that rounding made negative: without it the crate panics.
const PIVOT: f64 = 1e-9;

type Process = GaussianProcess<Matern2, ZeroPrior>;

/// Scores as a function of partitions, with doubt.
pub struct Surrogate {
    process: Process,
    mean: f64,
    /// Standard deviation of the scores, times the square root of the fitted amplitude.
    spread: f64,
    deviation: f64,
    pub length_scale: f64,
}

fn process(length_scale: f64, points: Vec<Vec<f64>>, scores: Vec<f64>) -> Process {
    GaussianProcess::new(ZeroPrior {}, Matern2::new(length_scale, 1.0), NOISE, Some(PIVOT), points, scores)
}

impl Surrogate {
    /// None without samples.
    pub fn fit(points: &[Vec<f64>], scores: &[f64]) -> Option<Self> {
        if points.is_empty() || points.len() != scores.len() || !scores.iter().all(|s| s.is_finite()) {
            return None;
        }
        let n = scores.len() as f64;
        let mean = scores.iter().sum::<f64>() / n;
        // Equal scores would leave nothing to scale by.
        let deviation = (scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n).sqrt().max(1e-3);
        let scaled: Vec<f64> = scores.iter().map(|s| (s - mean) / deviation).collect();
        let fits = LENGTH_SCALES.iter().map(|l| (*l, likelihood(*l, points, &scaled)));
        let (length_scale, (_, amplitude)) = fits.max_by(|a, b| a.1 .0.total_cmp(&b.1 .0))?;
        let process = process(length_scale, points.to_vec(), scaled);
        Some(Surrogate { process, mean, spread: deviation * amplitude.sqrt(), deviation, length_scale })
    }

    /// Mean and standard deviation of the score at each point.
    pub fn predict(&self, points: &Vec<Vec<f64>>) -> Vec<(f64, f64)> {
        if points.is_empty() {
            return vec![];
        }
        let (means, variances) = self.process.predict_mean_variance(points);
        means.iter().zip(&variances).map(|(m, v)| (self.mean + m * self.deviation, v.max(0.0).sqrt() * self.spread)).collect()
    }
}

/// Logarithm of the marginal likelihood (without constants) at the best amplitude, and that amplitude (a variance).
fn likelihood(length_scale: f64, points: &[Vec<f64>], scores: &[f64]) -> (f64, f64) {
    // p(y1) p(y2 | y1) p(y3 | y1, y2) ...; alone the first one has variance 1 and noise.
    let first = 1.0 + NOISE * NOISE;
    let (mut errors, mut logs) = (scores[0] * scores[0] / first, first.ln());
    let mut so_far = process(length_scale, vec![points[0].clone()], vec![scores[0]]);
    for (x, y) in points.iter().zip(scores).skip(1) {
        let (mean, variance) = so_far.predict_mean_variance(x);
        let variance = variance.max(0.0) + NOISE * NOISE;
        errors += (y - mean).powi(2) / variance;
        logs += variance.ln();
        so_far.add_samples(x, y);
    }
    let n = scores.len() as f64;
    // Amplitude a maximises -n/2 ln a - errors / 2a.
    let amplitude = (errors / n).max(1e-6);
    (-0.5 * (n * amplitude.ln() + logs), amplitude)
}

/// Expected improvement over `best` by more than `margin`, of a score of this mean and standard deviation.
pub fn expected_improvement((mean, deviation): (f64, f64), best: f64, margin: f64) -> f64 {
    let gain = mean - best - margin;
    if deviation < 1e-9 {
        return gain.max(0.0);
    }
    let z = gain / deviation;
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    (gain * normal_cdf(z) + deviation * density).max(0.0)
}

/// Standard normal distribution function, off by less than 7.5e-8 (Abramowitz and Stegun, 26.2.17).
fn normal_cdf(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly;
    if z >= 0.0 {
        1.0 - tail
    } else {
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected improvement of a standard normal score over its own mean is the density at 0; of a sure thing it is its gain.
    #[test]
    fn expected_improvement_has_known_values() {
        assert!((expected_improvement((0.0, 1.0), 0.0, 0.0) - 0.398_942_28).abs() < 1e-6);
        // z = 1: 1 x 0.841345 + 0.241971.
        assert!((expected_improvement((1.0, 1.0), 0.0, 0.0) - 1.083_315_5).abs() < 1e-6);
        assert_eq!(expected_improvement((0.7, 0.0), 0.5, 0.1), 0.7 - 0.5 - 0.1);
        assert_eq!(expected_improvement((0.5, 0.0), 0.5, 0.1), 0.0);
    }

    /// The product of predictions is the likelihood of two points in closed form.
    #[test]
    fn the_likelihood_is_that_of_two_points() {
        // Matern 5/2 at distance 0.3, length 0.4: x = sqrt(5) 0.75, k = (1 + x + x^2 / 3) exp(-x).
        let x = 5f64.sqrt() * 0.75;
        let k = (1.0 + x + x * x / 3.0) * (-x).exp();
        let (d, y) = (1.0 + NOISE * NOISE, [0.8, -0.3]);
        let determinant = d * d - k * k;
        let errors = (d * y[0] * y[0] - 2.0 * k * y[0] * y[1] + d * y[1] * y[1]) / determinant;
        let amplitude = errors / 2.0;
        let (log, a) = likelihood(0.4, &[vec![0.1], vec![0.4]], &y);
        assert!((a - amplitude).abs() < 1e-12, "{a} {amplitude}");
        assert!((log + 0.5 * (2.0 * amplitude.ln() + determinant.ln())).abs() < 1e-12, "{log}");
    }

    /// It returns to its samples, doubts most far from them, and finds the smoother length scale for the smoother function.
    #[test]
    fn it_learns_a_function() {
        let points: Vec<Vec<f64>> = (0..21).map(|i| vec![f64::from(i) / 20.0]).collect();
        let of = |f: &dyn Fn(f64) -> f64| points.iter().map(|p| f(p[0])).collect::<Vec<f64>>();
        let smooth = Surrogate::fit(&points, &of(&|x| 0.3 + 0.2 * x)).unwrap();
        let rough = Surrogate::fit(&points, &of(&|x| 0.3 + 0.2 * (25.0 * x).sin())).unwrap();
        assert!(smooth.length_scale > rough.length_scale, "{} {}", smooth.length_scale, rough.length_scale);
        let at = smooth.predict(&vec![vec![0.5], vec![3.0]]);
        assert!((at[0].0 - 0.4).abs() < 0.01, "{at:?}");
        assert!(at[1].1 > 5.0 * at[0].1, "{at:?}");
        assert!(Surrogate::fit(&[], &[]).is_none() && Surrogate::fit(&[vec![0.0]], &[f64::NAN]).is_none());
        // The same point twice, with two scores, is no failure.
        assert!(Surrogate::fit(&[vec![0.5], vec![0.5], vec![0.5]], &[0.1, 0.2, 0.2]).is_some());
    }
}
