//! What a step pays: a weighted sum of parts, each of which is also told apart.

use surefoot_learn::dqn::reward_of;
use surefoot_server::names::suggest;
use surefoot_server::{Amount, Observation};
use surefoot_workload::judge::Marks;

/// In the place of a number that is not known, or that a row or a server has none of. No part but `model_c`, which is always known, is ever below 0.
pub const UNKNOWN: f64 = -1.0;

/// Parts that can be weighted, in order.
pub const PARTS: [&str; 10] =
    ["emu", "emu_cosmos", "be_throughput", "be_throughput_met", "violations", "excess", "lc_cores", "lc_ways", "moved", "model_c"];
/// What is told beside them.
pub const BESIDE: [&str; 3] = ["reward", "offered_load", "t_ms"];
/// Numbers of a step that are not of one service.
pub const MARKS: usize = BESIDE.len() + PARTS.len();

/// Weights of [`PARTS`].
pub type Weights = [f64; PARTS.len()];

/// Sums that have a name.
pub const NAMED: [(&str, &[(&str, f64)]); 4] = [
    ("emu", &[("emu", 1.0), ("be_throughput_met", 1.0)]),
    ("emu-cosmos", &[("emu_cosmos", 1.0)]),
    ("safe", &[("emu", 1.0), ("be_throughput_met", 1.0), ("excess", -1.0)]),
    ("model-c", &[("model_c", 1.0)]),
];

/// # Errors
/// One line for a part that there is none of, or a weight that is no number.
pub fn weights<'a>(parts: impl IntoIterator<Item = (&'a str, f64)>) -> Result<Weights, String> {
    let mut all = Weights::default();
    for (name, weight) in parts {
        let Some(i) = PARTS.iter().position(|p| *p == name) else {
            return Err(format!("reward: no part \"{name}\". {} There are: {}", suggest(name, PARTS.into_iter()), PARTS.join(", ")));
        };
        if !weight.is_finite() {
            return Err(format!("reward: {name}: {weight} is no weight. Give a number"));
        }
        all[i] = weight;
    }
    Ok(all)
}

/// # Errors
/// One line for an unknown name.
pub fn named(name: &str) -> Result<Weights, String> {
    let known = || NAMED.iter().map(|(n, _)| *n);
    match NAMED.iter().find(|(n, _)| *n == name) {
        Some((_, parts)) => weights(parts.iter().copied()),
        None => Err(format!(
            "reward: unknown name \"{name}\". {} Give one of {}, or weights",
            suggest(name, known()),
            known().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// What one step came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Held by LC services, as shares of the server.
    pub held: (f64, f64),
    /// Cores and ways that changed hands, as a share of all.
    pub moved: f64,
    /// Sum over LC services of Model-C's reward.
    pub model_c: f64,
}

impl Step {
    /// An LC service whose p99 was and is so, ms, and which went from one holding to another.
    pub fn of_service(&mut self, p99_ms: Option<(f64, f64)>, from: Amount, to: Amount) {
        let more = to.cores as i32 - from.cores as i32 + to.ways as i32 - from.ways as i32;
        self.model_c += reward_of(p99_ms.map_or(0.0, |(was, is)| was - is), more);
    }

    /// The marks of a step: reward, offered load and time, then [`PARTS`]. A part that a server has none of is [`UNKNOWN`], and pays nothing.
    pub fn marks(&self, seen: &Observation, marks: &Marks, weights: &Weights) -> [f64; MARKS] {
        let late = seen.lc().filter_map(|s| s.qos()).filter(|q| *q < 1.0);
        let (violations, excess) = late.fold((0.0, 0.0), |(n, sum), q| (n + 1.0, sum + 1.0 - q));
        let parts = [
            marks.emu,
            marks.emu_cosmos,
            marks.be_throughput.unwrap_or(UNKNOWN),
            marks.be_throughput_met.unwrap_or(UNKNOWN),
            violations,
            excess,
            self.held.0,
            self.held.1,
            self.moved,
            self.model_c,
        ];
        // Model-C's is always known, and may come to the same number.
        let is_known = |name: &str, x: f64| x != UNKNOWN || name == "model_c";
        let pays = PARTS.iter().zip(&parts).zip(weights).filter(|((name, x), w)| **w != 0.0 && is_known(name, **x));
        let reward = pays.map(|((_, x), w)| x * w).sum();
        let mut all = [0.0; MARKS];
        all[..BESIDE.len()].copy_from_slice(&[reward, marks.offered, seen.t_ms as f64]);
        all[BESIDE.len()..].copy_from_slice(&parts);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A named reward is a sum of parts that there are, and what is not there is named with what is.
    #[test]
    fn rewards_have_parts() {
        for (name, _) in NAMED {
            assert!(named(name).unwrap().iter().any(|w| *w != 0.0));
        }
        assert!(named("emuu").unwrap_err().contains("Did you mean \"emu\"?"));
        assert!(weights([("emus", 1.0)]).unwrap_err().contains("There are: emu,"));
        assert!(weights([("emu", f64::NAN)]).is_err());
    }

    /// Model-C's reward: 8 ms faster for 2 more cores and 1 more way is ln 9 - 3; of an unknown latency only what is taken counts.
    #[test]
    fn model_c_is_paid_for_speed_and_thrift() {
        let mut step = Step::default();
        step.of_service(Some((10.0, 2.0)), Amount::new(3, 3), Amount::new(5, 4));
        assert!((step.model_c - (9f64.ln() - 3.0)).abs() < 1e-12);
        step = Step::default();
        step.of_service(None, Amount::new(3, 3), Amount::new(2, 3));
        assert_eq!(step.model_c, 1.0);
    }
}
