//! The invariant rule against recorded answers of Vowpal Wabbit (scripts/harvest/vowpal_wabbit.py).

#![allow(clippy::disallowed_methods, reason = "a test's inputs are its own")]

use serde_json::Value;
use surefoot_harvest::cost::Cost;
use surefoot_harvest::learner::{Learner, Rule};

/// Predicted costs of every class, of two streams at two rates: as Vowpal Wabbit has them to its six printed digits.
#[test]
fn costs_are_those_of_vowpal_wabbit() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/vowpal_wabbit.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let cores = all["cores"].as_u64().unwrap() as u32;
    let mut compared = 0;
    for stream in all["streams"].as_array().unwrap() {
        let mut learner = Learner::new(cores, Rule::Invariant, stream["rate"].as_f64().unwrap());
        let windows: Vec<Vec<f64>> = serde_json::from_value(stream["windows"].clone()).unwrap();
        for (n, pair) in windows.windows(2).enumerate() {
            let mut x = [1.0f32; 6];
            x.iter_mut().zip(&pair[0][..5]).for_each(|(x, v)| *x = *v as f32);
            for (k, want) in stream["costs"][n.to_string()].as_array().into_iter().flatten().enumerate() {
                let (got, want) = (f64::from(learner.cost(k as u32 + 1, &x)), want.as_f64().unwrap());
                assert!((got - want).abs() <= 1e-3 + 1e-3 * want.abs(), "window {n}, class {}: {got}, want {want}", k + 1);
                compared += 1;
            }
            let peak = pair[1][5] as u32;
            learner.train(&x, |k| Cost::Skewed.at(k, peak, cores as f32));
        }
    }
    assert_eq!(compared, 2 * 30 * 10);
}
