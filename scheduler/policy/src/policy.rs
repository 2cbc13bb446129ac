//! The port of a policy.

use crate::pace::Pace;
use crate::remote::asked::Asked;
use std::collections::BTreeMap;
use surefoot_server::{Change, Observation, Plan, Resource, ServiceId};

/// Decides what every service of one server holds.
pub trait Policy {
    fn name(&self) -> &str;

    /// Told before the first step how often there will be one, ms; 100 where nothing is said.
    ///
    /// # Errors
    /// Why it cannot work so, and what it can work with.
    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        Pace::every(interval_ms).map(|_| ())
    }

    /// The resources that its plans may name; no other policy beside it owns one of them. A plan that names another one is refused.
    fn owns(&self) -> &[Resource] {
        &Resource::CORES_AND_WAYS
    }

    /// Called with what was seen since the last call; an empty plan changes nothing.
    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan;

    /// Called when the plan of a step is in force: work that no service waits for, such as a step of learning. True where there was some.
    ///
    /// What `step` would decide does not depend on whether this is called: work that was left is done at the start of the next step.
    fn between(&mut self) -> bool {
        false
    }

    /// What became of its questions, of a policy that another process decides for; None: it decides itself.
    fn asked(&self) -> Option<Asked> {
        None
    }
}

/// What is wanted of each service that is here and does not hold it yet.
pub(crate) fn ask_for(wanted: &BTreeMap<ServiceId, Change>, seen: &Observation, plan: &mut Plan) {
    for s in &seen.services {
        if let Some(change) = wanted.get(&s.id).filter(|c| !s.placed || c.alters(&s.allocation)) {
            plan.changes.insert(s.id.clone(), change.clone());
        }
    }
}
