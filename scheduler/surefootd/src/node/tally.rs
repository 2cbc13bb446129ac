//! What policies in the shadow have said so far, of a run (`surefootd run`, `top`) or of a stream of one (`surefootd replay`).

use serde::{Deserialize, Serialize};
use surefoot_policy::Opinion;

/// Sums of one shadow's opinions.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    ticks: u64,
    plans: u64,
    otherwise: u64,
    cores: f64,
    ways: f64,
    /// None until Model-B has answered.
    regret_qos: Option<f64>,
}

/// One shadow over all its ticks (docs/shadow.md): what is no count is a mean over these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shadowed {
    pub policy: String,
    /// Ticks on which it would have taken a step.
    pub ticks_with_a_plan: u64,
    /// Share of the ticks on which some LC service would hold other cores or ways under it.
    pub disagreement_frac: f64,
    pub disagreement_cores: f64,
    pub disagreement_ways: f64,
    /// None without a Model-B, or where it had no answer.
    pub regret_qos: Option<f64>,
}

impl Tally {
    pub fn add(&mut self, o: &Opinion) {
        self.ticks += 1;
        self.plans += u64::from(o.step);
        self.otherwise += u64::from(o.cores > 0.0 || o.ways > 0.0);
        self.cores += o.cores;
        self.ways += o.ways;
        if let Some(r) = o.regret_qos {
            *self.regret_qos.get_or_insert(0.0) += r;
        }
    }

    pub fn plans(&self) -> u64 {
        self.plans
    }

    /// Over time, QoS x s, at so many seconds a tick.
    pub fn regret_qos_s(&self, tick_s: f64) -> f64 {
        self.regret_qos.unwrap_or(0.0) * tick_s
    }

    pub fn of(&self, policy: &str) -> Shadowed {
        let per_tick = |sum: f64| sum / self.ticks.max(1) as f64;
        Shadowed {
            policy: policy.into(),
            ticks_with_a_plan: self.plans,
            disagreement_frac: per_tick(self.otherwise as f64),
            disagreement_cores: per_tick(self.cores),
            disagreement_ways: per_tick(self.ways),
            regret_qos: self.regret_qos.map(per_tick),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means over all ticks, also over those on which nothing was known; unknown is not 0.
    #[test]
    fn sums_and_means() {
        let opinion = |cores, ways, regret_qos, step| Opinion { cores, ways, regret_qos, step, be_cores: 1.0 };
        let mut t = Tally::default();
        assert_eq!(t.of("a"), Shadowed { policy: "a".into(), ..Shadowed::default() });
        t.add(&opinion(0.0, 0.0, None, false));
        assert_eq!((t.of("a").disagreement_frac, t.of("a").regret_qos), (0.0, None));
        t.add(&opinion(2.0, 0.0, Some(0.4), true));
        t.add(&opinion(0.0, 1.0, Some(0.2), false));
        t.add(&opinion(0.0, 0.0, Some(0.0), true));
        let of = t.of("a");
        assert_eq!((of.ticks_with_a_plan, of.disagreement_frac, of.disagreement_cores, of.disagreement_ways), (2, 0.5, 0.5, 0.25));
        assert!((of.regret_qos.unwrap() - 0.15).abs() < 1e-12 && (t.regret_qos_s(0.1) - 0.06).abs() < 1e-12);
    }
}
