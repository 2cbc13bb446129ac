//! The port of a policy.

use surefoot_server::{Observation, Plan};

/// Decides what every service of one server holds.
pub trait Policy {
    fn name(&self) -> &str;

    /// Called every 100 ms with what was seen since the last call; an empty plan changes nothing.
    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan;
}
