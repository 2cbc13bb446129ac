//! How good a sample was: CLITE's score, 0 to 1.

/// Below 1/2 while a QoS target is missed: half of the geometric mean of min(1, target / p99) over the LC services. From 1/2 where
/// all are met: half of the geometric mean of the performance (`worth`, 0 to 1, relative to the best seen) is added: that of the BE
/// jobs, or of the LC services where there are none.
pub fn score(qos: &[f64], worth: &[f64]) -> f64 {
    if qos.iter().any(|q| *q < 1.0) {
        return 0.5 * geometric_mean(qos);
    }
    0.5 + 0.5 * geometric_mean(worth)
}

/// Of values capped at 1; 1 of none.
fn geometric_mean(of: &[f64]) -> f64 {
    let logs: f64 = of.iter().map(|x| x.clamp(1e-6, 1.0).ln()).sum();
    (logs / of.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two halves of the scale, by hand.
    #[test]
    fn scores_have_known_values() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        // One of two misses its target four times: sqrt(1 x 1/4) / 2. How far the other one meets its own counts for nothing.
        close(score(&[3.0, 0.25], &[1.0]), 0.25);
        close(score(&[1.0, 0.25], &[0.1]), 0.25);
        // A miss by a hair is below any partition that meets all.
        assert!(score(&[0.999], &[1.0]) < score(&[1.0], &[0.0]));
        // All met: jobs at 0.4 and 0.9 of what they did alone: 0.6.
        close(score(&[1.0, 2.0], &[0.4, 0.9]), 0.8);
        close(score(&[], &[0.5]), 0.75);
        close(score(&[1.5], &[]), 1.0);
    }
}
