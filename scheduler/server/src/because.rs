//! Why an action was taken, as data: what was seen, what models said, what was rejected and why, and what is expected of it.
//!
//! Filled only where an action is taken, so that leaving things alone costs nothing, and bounded ([`MOST_SAID`],
//! [`MOST_REJECTED`]): a record of an action has a size.

use crate::features::Features;
use crate::held::Held;
use crate::observation::{ServiceView, Verdict};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A word of the program, or one that was put together.
pub type Text = Cow<'static, str>;

pub const MOST_SAID: usize = 16;
pub const MOST_REJECTED: usize = 12;
/// p99 may rise by this share where it is to stay as it is: less is noise.
const NOISE: f64 = 0.1;

/// What an action rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Because {
    /// The service that the action concerns, as it was seen before; None for one that could not be seen yet.
    pub seen: Option<Seen>,
    /// What models said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<Said>,
    /// What else could have been done, and why it was not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<Rejected>,
    /// The limit that kept the action from being larger, or another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<Text>,
    pub expected: Expected,
}

/// A service as it was seen when the decision was taken. What is unknown is None.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Of the window by which QoS is judged.
    pub p99_ms: Option<f64>,
    pub qos_target_ms: Option<f64>,
    /// Target / p99.
    pub qos: Option<f64>,
    pub verdict: Option<Verdict>,
    /// Requests in the window.
    pub count: Option<u64>,
    pub achieved_rps: Option<f64>,
    pub instr_per_s: Option<f64>,
    /// In force.
    #[serde(flatten)]
    pub held: Held,
    /// As the policy used them.
    pub features: Features,
    /// Intervals of which the features are the mean.
    pub intervals: u32,
}

impl Seen {
    /// With the features of the last interval.
    pub fn of(s: &ServiceView) -> Self {
        Seen {
            p99_ms: s.window.map(|w| w.p99_ms),
            qos_target_ms: s.qos_target_ms(),
            qos: s.qos(),
            verdict: s.window.map(|w| w.verdict),
            count: s.window.map(|w| w.count),
            achieved_rps: s.window.map(|w| w.achieved_rps),
            instr_per_s: s.instr_per_s,
            held: Held::of(&s.allocation),
            features: s.features,
            intervals: 1,
        }
    }
}

/// One number that a model gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// "Model-A", "Model-B", "Model-C", or the name of a rule.
    pub by: Text,
    pub what: Text,
    pub value: f64,
    /// "cores", "ways", "MB/s", ...; "" for a ratio or a probability.
    #[serde(skip_serializing_if = "str::is_empty", default)]
    pub unit: Text,
}

/// What was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    pub what: Text,
    pub why: Text,
}

/// What an action is to bring about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expected {
    /// Predicted QoS (target / p99) once the action shows; None where no model said any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos: Option<f64>,
    /// The p99 that this means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    #[serde(flatten)]
    pub holds_if: HoldsIf,
}

/// When an expectation counts as fulfilled, by the window after the action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "holds_if", rename_all = "kebab-case")]
pub enum HoldsIf {
    /// Nothing is expected of this service (a BE job, a step on the way).
    #[default]
    NotJudged,
    /// QoS is at least this.
    Qos { at_least: f64 },
    /// p99 is lower than before, or the target is met.
    P99Falls,
    /// p99 is not higher than before (but for a tenth, which is noise), or the target is met.
    P99Stays,
}

impl HoldsIf {
    /// Whether that came; None where it cannot be said.
    pub fn judge(self, p99_before_ms: Option<f64>, p99_after_ms: Option<f64>, qos_after: Option<f64>) -> Option<bool> {
        let met = qos_after.map(|q| q >= 1.0);
        let below = |factor: f64| Some(p99_after_ms? < p99_before_ms? * factor);
        match self {
            HoldsIf::NotJudged => None,
            HoldsIf::Qos { at_least } => qos_after.map(|q| q >= at_least),
            HoldsIf::P99Falls if met == Some(true) => met,
            HoldsIf::P99Falls => below(1.0),
            HoldsIf::P99Stays if met == Some(true) => met,
            HoldsIf::P99Stays => below(1.0 + NOISE),
        }
    }
}

impl Because {
    /// Resting on this sight of a service.
    pub fn seen(s: &ServiceView) -> Self {
        Because { seen: Some(Seen::of(s)), ..Because::default() }
    }

    /// A model's answer. What is not a number is no answer.
    pub fn say(&mut self, by: &'static str, what: impl Into<Text>, value: f64, unit: &'static str) {
        if self.said.len() < MOST_SAID && value.is_finite() {
            self.said.push(Said { by: by.into(), what: what.into(), value, unit: unit.into() });
        }
    }

    pub fn reject(&mut self, what: impl Into<Text>, why: impl Into<Text>) {
        if self.rejected.len() < MOST_REJECTED {
            self.rejected.push(Rejected { what: what.into(), why: why.into() });
        }
    }

    /// What bound, where nothing has been named yet.
    pub fn bind(&mut self, what: impl Into<Text>) {
        self.bound.get_or_insert_with(|| what.into());
    }

    pub fn expect(mut self, holds_if: HoldsIf) -> Self {
        self.expected.holds_if = holds_if;
        self
    }

    /// A predicted QoS; above `cap` a model knows only that the target is met.
    pub fn predict(&mut self, qos: f64, cap: f64) {
        let qos = qos.min(cap).max(0.0);
        if !qos.is_finite() {
            return;
        }
        self.expected.qos = Some(qos);
        let target_ms = self.seen.and_then(|s| s.qos_target_ms).filter(|_| qos > 0.0 && qos < cap);
        self.expected.p99_ms = target_ms.map(|t| t / qos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every expectation is judged by its own rule, and what is not known is not judged.
    #[test]
    fn expectations_have_rules() {
        let judge = |h: HoldsIf, before: f64, after: f64| h.judge(Some(before), Some(after), Some(10.0 / after));
        assert_eq!(judge(HoldsIf::Qos { at_least: 0.8 }, 5.0, 12.0), Some(true));
        assert_eq!(judge(HoldsIf::Qos { at_least: 1.0 }, 5.0, 12.0), Some(false));
        // Met is enough, however high it was before; missed must have fallen.
        assert_eq!((judge(HoldsIf::P99Falls, 5.0, 9.0), judge(HoldsIf::P99Falls, 40.0, 30.0)), (Some(true), Some(true)));
        assert_eq!((judge(HoldsIf::P99Falls, 30.0, 30.0), judge(HoldsIf::P99Stays, 30.0, 30.0)), (Some(false), Some(true)));
        assert_eq!((judge(HoldsIf::P99Stays, 30.0, 32.9), judge(HoldsIf::P99Stays, 30.0, 33.1)), (Some(true), Some(false)));
        assert_eq!(judge(HoldsIf::NotJudged, 30.0, 3.0), None);
        assert_eq!(HoldsIf::P99Falls.judge(None, Some(30.0), Some(0.3)), None);
        assert_eq!(HoldsIf::Qos { at_least: 1.0 }.judge(Some(3.0), None, None), None);
    }

    /// What was seen is written as before there were limits, byte for byte, and read back from it; a limit comes after the bandwidth.
    #[test]
    fn what_is_held_stands_among_what_was_seen() {
        let held = Held { cores: 5.0, ways: Some(3.5), mba_pct: 90, ..Held::default() };
        let seen = Seen { instr_per_s: Some(1e9), held, intervals: 2, ..Seen::default() };
        let text = serde_json::to_string(&seen).unwrap();
        assert!(text.contains(r#","instr_per_s":1000000000.0,"cores":5.0,"ways":3.5,"mba_pct":90,"features":{"#), "{text}");
        assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), seen);
        let limited = Seen { held: Held { mem_limit_bytes: Some(u64::MAX), ..held }, ..seen };
        let text = serde_json::to_string(&limited).unwrap();
        assert!(text.contains(r#","mba_pct":90,"mem_limit_bytes":18446744073709551615,"features":{"#), "{text}");
        assert_eq!(serde_json::from_str::<Seen>(&text).unwrap(), limited);
    }

    /// Whatever a policy pours in, a record has a size, and no number that JSON does not know.
    #[test]
    fn records_are_bounded() {
        let mut b = Because::default();
        for i in 0..1000 {
            b.say("Model-B", format!("QoS on {i}"), f64::from(i), "");
            b.reject(format!("{i}"), "too much");
            b.bind("the first");
        }
        assert_eq!((b.said.len(), b.rejected.len(), b.bound.as_deref()), (MOST_SAID, MOST_REJECTED, Some("the first")));
        let mut b = Because::default();
        b.say("Model-A", "OAA", f64::NAN, "cores");
        b.predict(f64::INFINITY, f64::INFINITY);
        assert_eq!(b, Because::default());
        // Above the cap a model says only "met": no p99 follows.
        b.seen = Some(Seen { qos_target_ms: Some(10.0), ..Seen::default() });
        b.predict(3.0, 2.0);
        assert_eq!((b.expected.qos, b.expected.p99_ms), (Some(2.0), None));
        b.predict(1.25, 2.0);
        assert_eq!((b.expected.qos, b.expected.p99_ms), (Some(1.25), Some(8.0)));
    }
}
