//! What a policy reports, as events.
//!
//! A report speaks of an instant and may come again at every tick; an upper scheduler wants to hear when a condition begins, when it
//! changes so that it matters, and when it has ended. [`Conditions`] makes one of the other and touches nothing.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use surefoot_server::window::reach_ms;
use surefoot_server::{ActionKind, FeedState, Observation, Plan, Report, ServiceId};

/// Of the lines on the socket; other fields may be added without a new number.
pub const SCHEMA: u32 = 1;
/// A service is well again when it has met its target for so long: converged (docs/oracle.md), not lucky.
const WELL_MS: u64 = 3000;
/// Between two words on one condition.
const CHANGE_MS: u64 = 1000;
/// Predictions that are closer than this are the same.
const SAME_QOS: f64 = 0.1;

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    CannotPlace,
    ExpectedSlowdown,
    Migrate,
    Withheld,
    Resolved,
}

impl What {
    pub const ALL: [What; 5] = [What::CannotPlace, What::ExpectedSlowdown, What::Migrate, What::Withheld, What::Resolved];

    pub fn as_str(self) -> &'static str {
        match self {
            What::CannotPlace => "cannot-place",
            What::ExpectedSlowdown => "expected-slowdown",
            What::Migrate => "migrate",
            What::Withheld => "withheld",
            What::Resolved => "resolved",
        }
    }
}

/// One line for the upper scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub event: What,
    /// From 1 on in a run, without gaps.
    pub seq: u64,
    /// Since the first tick of the run, as in the journal.
    pub t_ms: u64,
    /// The same since 1970, UTC; None on a virtual server that runs faster than time.
    pub at_ms: Option<u64>,
    pub service: ServiceId,
    /// What has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<What>,
    /// When the condition began; equal to `t_ms` in its first event.
    pub since_ms: u64,
    /// Predicted: target / p99, or what is left of 1 (as the policy reports it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<f64>,
    pub why: String,
}

/// A condition in force.
#[derive(Clone, Debug)]
struct Open {
    /// As last told.
    told: Event,
    /// As last reported.
    qos: Option<f64>,
    why: String,
    reported_ms: u64,
    /// It has been seen as a service since it was reported.
    here: bool,
    well_since_ms: Option<u64>,
}

impl Open {
    /// What is reported now differs from what was told, so that it matters: numbers in a reason move all the time.
    fn changed(&self) -> bool {
        match (self.qos, self.told.qos) {
            (Some(now), Some(then)) => (now - then).abs() >= SAME_QOS,
            _ => !same_words(&self.why, &self.told.why),
        }
    }
}

fn same_words(a: &str, b: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_ascii_digit() && !".-".contains(*c)).collect::<Vec<_>>();
    a == b || words(a) == words(b)
}

/// The conditions in force, by service.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    seq: u64,
    open: BTreeMap<(ServiceId, What), Open>,
}

impl Conditions {
    /// How many conditions of each kind are in force, by [`What`].
    pub fn counts(&self) -> [u64; 4] {
        let mut in_force = [0; 4];
        self.open.keys().for_each(|(_, what)| in_force[*what as usize] += 1);
        in_force
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The number of a line that is told of no condition.
    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// What is in force, as last told, the oldest word first.
    pub fn in_force(&self) -> Vec<&Event> {
        let mut all: Vec<&Event> = self.open.values().map(|o| &o.told).collect();
        all.sort_by_key(|e| e.seq);
        all
    }

    /// What a tick changes: of the plan its reports, and why its actions deprive or share; `refused` where it was not put in force.
    pub fn tick(&mut self, t_ms: u64, seen: &Observation, plan: &Plan, refused: bool, at_ms: impl Fn() -> Option<u64>) -> Vec<Event> {
        if self.open.is_empty() && plan.reports.is_empty() {
            return vec![];
        }
        let mut events = vec![];
        for r in &plan.reports {
            let (what, service, qos, why) = match r {
                Report::CannotPlace { service, why } => (What::CannotPlace, service, None, why.clone()),
                Report::Migrate { service, why } => (What::Migrate, service, None, why.clone()),
                Report::Withheld { service, why } => (What::Withheld, service, None, why.clone()),
                // No service has lost anything.
                Report::ExpectedSlowdown { .. } if refused => continue,
                Report::ExpectedSlowdown { service, qos } => (What::ExpectedSlowdown, service, Some(*qos), loss(plan, service)),
            };
            let open = self.open.entry((service.clone(), what)).or_insert_with(|| {
                self.seq += 1;
                let of = None;
                let service = service.clone();
                let told = Event { event: what, seq: self.seq, t_ms, at_ms: at_ms(), service, of, since_ms: t_ms, qos, why: why.clone() };
                events.push(told.clone());
                Open { told, qos, why: String::new(), reported_ms: t_ms, here: false, well_since_ms: None }
            });
            (open.qos, open.why, open.reported_ms, open.well_since_ms) = (qos, why, t_ms, None);
        }
        self.open.retain(|_, o| {
            let seq = self.seq + 1;
            if let Some(why) = over(o, t_ms, seen) {
                let of = Some(o.told.event);
                let (service, since_ms) = (o.told.service.clone(), o.told.since_ms);
                events.push(Event { event: What::Resolved, seq, t_ms, at_ms: at_ms(), service, of, since_ms, qos: None, why });
                self.seq = seq;
                return false;
            }
            if o.changed() && t_ms >= o.told.t_ms + CHANGE_MS {
                o.told = Event { seq, t_ms, at_ms: at_ms(), qos: o.qos, why: o.why.clone(), ..o.told.clone() };
                events.push(o.told.clone());
                self.seq = seq;
            }
            true
        });
        events
    }
}

/// Why a service is expected to slow down: what was done to it.
fn loss(plan: &Plan, service: &str) -> String {
    let takes = |k: ActionKind| matches!(k, ActionKind::Deprive | ActionKind::Share);
    let action = plan.actions.iter().rev().find(|a| a.service == service && takes(a.kind));
    action.map_or_else(|| "it gives or shares what it holds".into(), |a| a.why.clone())
}

/// Why a condition has ended; None while it holds.
fn over(o: &mut Open, t_ms: u64, seen: &Observation) -> Option<String> {
    if o.reported_ms == t_ms {
        o.here |= seen.get(&o.told.service).is_some();
        return None;
    }
    let Some(s) = seen.get(&o.told.service) else {
        return match o.here {
            true => Some("it has left".into()),
            // Not of one service: it holds as long as it is said.
            false => (t_ms >= o.reported_ms + WELL_MS).then(|| format!("not so for {} s", WELL_MS / 1000)),
        };
    };
    o.here = true;
    if o.told.event == What::Withheld {
        let over = !s.latency_unknown() && !seen.bounds.contains_key(&s.id);
        return over.then(|| "its latency is known, and nothing bounds what may be set of it".into());
    }
    let idle = matches!(s.feed, FeedState::Idle | FeedState::NotNeeded);
    if !idle && s.qos_met() != Some(true) {
        o.well_since_ms = None;
        return None;
    }
    // A window that reaches further back still shows what was before.
    let long_ms = WELL_MS.max(s.window.as_ref().map_or(0, reach_ms));
    let well = t_ms >= *o.well_since_ms.get_or_insert(t_ms) + long_ms;
    well.then(|| if idle { "nothing waits for it".into() } else { format!("it has met its target for {:.0} s", long_ms as f64 / 1000.0) })
}
