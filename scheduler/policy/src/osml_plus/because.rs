//! What OSML+ tells of its actions: what was seen, what Models A, B and C said, and why not otherwise.
//!
//! Asked only where an action is taken. Nothing here decides.

use super::bandwidth::MbaStep;
use super::*;
use surefoot_server::Text;

/// Model-C's actions in words, in their order.
pub(super) const ACTION_NAMES: [&str; 7] =
    ["cores up", "cores down", "ways up", "ways down", "memory bandwidth up", "memory bandwidth down", "idle"];

/// A growing step that was in question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    pub action: usize,
    pub unit: Amount,
    /// What the service would hold.
    pub to: Amount,
    /// Within the server, and within what is sensible.
    pub within: bool,
    /// Free, or to be had from neighbours.
    pub can: bool,
    /// By Model-B and plain signs.
    pub gain: f64,
    /// Not from a neighbour for next to nothing.
    pub worth: bool,
    pub banned: bool,
}

impl OsmlPlus {
    /// What a step for this service rests on, with the features as they are averaged. Before the step is taken: it forgets them.
    pub(super) fn because(&self, s: &ServiceView, holds_if: HoldsIf) -> Because {
        let mut b = Because::seen(s).expect(holds_if);
        if let (Some(seen), Some(life)) = (&mut b.seen, self.lives.get(&s.id).filter(|l| !l.features.is_empty())) {
            (seen.features, seen.intervals) = (life.smooth(), life.features.len() as u32);
        }
        b
    }

    pub(super) fn because_of(&self, seen: &Observation, id: &str, holds_if: HoldsIf) -> Because {
        seen.get(id).map_or_else(Because::default, |s| self.because(s, holds_if))
    }

    /// Who gives and meets its target is to go on meeting it.
    pub(super) fn keeps(s: &ServiceView) -> HoldsIf {
        if s.qos_met() == Some(true) {
            HoldsIf::Qos { at_least: 1.0 }
        } else {
            HoldsIf::P99Stays
        }
    }

    /// Model-B on what the service holds and on `to`; the prediction is corrected by its error on the present.
    pub(super) fn say_b(&self, b: &mut Because, s: &ServiceView, has: Amount, to: Amount) {
        let p = &self.books.platform;
        let cap = self.models.qos_cap();
        let (now, then) = (self.b(s, has), self.b(s, to));
        if let Ok(q) = &now {
            b.say("Model-B", format!("QoS on {}, as it is", words(has, p)), *q, "");
        }
        match &then {
            Ok(q) => b.say("Model-B", format!("QoS on {}", words(to, p)), *q, ""),
            Err(e) => b.reject("Model-B", format!("has no answer: {e}")),
        }
        if let (Ok(now), Ok(then), Some(seen)) = (now, then, self.recent_qos(s)) {
            let corrected = then + seen.min(cap) - now.min(cap);
            b.say("Model-B", format!("QoS on {}, corrected by its error now", words(to, p)), corrected, "");
            b.predict(corrected, cap);
        }
    }

    /// Who says what QoS a loss would leave, or a gain bring.
    pub(super) fn who_says_qos(&self, s: &ServiceView) -> &'static str {
        if self.b(s, self.books.usable(&s.id)).is_ok() {
            "Model-B"
        } else {
            "rule of thumb"
        }
    }

    /// The same; where that is not Model-B, why not.
    pub(super) fn says_qos(&self, b: &mut Because, s: &ServiceView) -> &'static str {
        if let Err(e) = self.b(s, self.books.usable(&s.id)) {
            b.reject("Model-B", format!("has no answer: {e}; a rule of thumb stands in"));
        }
        self.who_says_qos(s)
    }

    /// Model-A's answer, or that it had none.
    pub(super) fn say_target(&self, b: &mut Because, t: &Target) {
        let Some(a) = t.area else {
            b.reject("Model-A", t.why.clone());
            return;
        };
        b.say("Model-A", "OAA", a.oaa_cores, "cores");
        b.say("Model-A", "OAA", a.oaa_ways.unwrap_or(f64::NAN), "ways");
        b.say("Model-A", "bandwidth in the OAA", a.oaa_mbps.unwrap_or(f64::NAN), "MB/s");
        b.say("Model-A", "RCliff", a.rcliff_cores, "cores");
        b.say("Model-A", "RCliff", a.rcliff_ways.unwrap_or(f64::NAN), "ways");
    }

    /// Model-C's actor, with its noise, and its critic.
    pub(super) fn say_c(&mut self, b: &mut Because, s: &ServiceView, proposal: &[f64; 7], actions: impl Iterator<Item = usize>) {
        let state = self.state(s);
        for action in actions {
            if *proposal == [0.0; 7] {
                b.reject("Model-C", "has no answer; a rule of thumb stands in");
                return;
            }
            b.say("Model-C", format!("p({}), with noise", ACTION_NAMES[action]), proposal[action], "");
            if let Some(q) = self.models.worth(&s.service, &state, action) {
                b.say("Model-C", format!("Q({})", ACTION_NAMES[action]), q, "");
            }
        }
    }

    /// Why there is no more memory bandwidth to be had.
    pub(super) fn reject_mba_step(&self, b: &mut Because, mba: &MbaStep) {
        if !mba.possible() {
            let why = if mba.throttle_be { "the BE jobs have the least" } else { "not throttled, and BE jobs do not contend for memory" };
            b.reject(ACTION_NAMES[MBA_UP], if self.books.platform.mba.is_some() { why } else { "this host has no MBA" });
        }
    }

    /// Why a neighbour gives nothing.
    pub(super) fn why_it_gives_nothing(&self, s: &ServiceView, need: Amount) -> Text {
        let Some(life) = self.lives.get(&s.id) else { return "it is not known yet".into() };
        let Some(qos) = s.qos() else { return "its latency is unknown".into() };
        if life.asleep() {
            return "it is new, and still watched".into();
        }
        if life.watch.is_some() {
            return "it is under watch since its last loss".into();
        }
        let has = self.books.usable(&s.id);
        let limit = need.at_most(self.books.spare(&s.id)).at_most(has.minus(life.floor));
        if limit.is_zero() {
            return if life.floor.is_zero() { "it holds the least already".into() } else { "losing it hurt before".into() };
        }
        if qos < 1.0 {
            return format!("it misses its target itself (QoS {qos:.2}), and has use of what it holds").into();
        }
        let unit = if limit.cores > 0 { Amount::new(1, 0) } else { Amount::new(0, 1) };
        match self.b_corrected(s, has.minus(unit)) {
            Ok(q) => {
                format!("Model-B: QoS {q:.2} without {}, {:.2} is allowable", words(unit, &self.books.platform), self.set.neighbour_qos)
                    .into()
            }
            Err(e) => format!("QoS {qos:.2}, and Model-B has no answer: {e}").into(),
        }
    }

    /// What speaks against every growing step but the one that is taken.
    pub(super) fn reject_steps(&self, b: &mut Because, chosen: usize, tried: &[Tried], proposal: &[f64; 7], best_gain: f64) {
        for t in tried.iter().filter(|t| t.action != chosen) {
            let why: Text = match t {
                Tried { within: false, .. } => {
                    "more than the server has, or than half beyond an OAA that Model-B holds for sufficient".into()
                }
                Tried { can: false, .. } => "not free, and no neighbour can allowably be deprived of it".into(),
                Tried { worth: false, .. } => format!("not free, and gain {:.2} is too little to ask a neighbour for it", t.gain).into(),
                Tried { banned: true, .. } => "three of these steps have not lowered p99: left alone for a while".into(),
                t if t.gain < 0.5 * best_gain => format!("gain {:.2}, less than half of the best ({best_gain:.2})", t.gain).into(),
                t => format!("Model-C: p {:.2}, less than {:.2}", proposal[t.action], proposal[chosen]).into(),
            };
            b.reject(format!("{}, to {}", ACTION_NAMES[t.action], words(t.to, &self.books.platform)), why);
        }
        b.reject(ACTION_NAMES[IDLE], "who is under-provisioned never idles");
    }
}
