//! `cosmos-static`: one state for good. The paper's EX-L, EX-M and EX-H (Sec. VI-D) and its *exhaustive* are this policy, each with the state that
//! a search through all of them found best (`cargo run --example cosmos`). The state is settings of `cosmos` (`cosmos.fixed.cores` and two more).

use super::groups::{divide, Groups};
use super::settings::{Fixed, Settings};
use super::{GB, OWNS};
use crate::policy::ask_for;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{Action, ActionKind, Because, Change, HoldsIf, Observation, Plan, Platform, Report, Resource, ServiceId};

/// The policy.
pub struct Static {
    set: Fixed,
    groups: Groups,
    /// Bytes that limits share out; None where the platform's memory is unknown.
    capacity: Option<f64>,
    /// Share of them that the jobs have at least.
    be_memory: f64,
    /// Footprints of all were known when memory was divided.
    read: bool,
    wanted: BTreeMap<ServiceId, Change>,
}

impl Static {
    pub fn new(platform: &Platform, set: &Settings) -> Self {
        let capacity = platform.memory.map(|m| m.capacity_bytes as f64);
        let (set, be_memory) = (set.fixed, set.least.be_memory);
        Static { set, groups: Groups::new(platform), capacity, be_memory, read: false, wanted: BTreeMap::new() }
    }

    /// Cores of the LC services: at least one each, and one for the jobs.
    fn cores(&self) -> u32 {
        self.set.cores.min(self.groups.most_lc(1)).max(self.groups.least_lc())
    }

    fn lay_out(&mut self, seen: &Observation, plan: &mut Plan) {
        if !self.groups.divides() {
            self.wanted = self.groups.everything(self.capacity.is_some());
            return;
        }
        match self.groups.cores(seen, self.cores()) {
            Ok(all) => self.wanted = all,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        if let Some(capacity) = self.capacity {
            let memory = (self.set.memory_gb * GB).min(capacity * (1.0 - self.be_memory));
            let of_lc = [memory, (self.set.pool_gb * GB).min(memory)];
            divide(&self.groups, seen, of_lc, capacity, &mut self.wanted);
        }
    }
}

impl Policy for Static {
    fn name(&self) -> &str {
        "cosmos-static"
    }

    fn owns(&self) -> &[Resource] {
        &OWNS
    }

    fn step(&mut self, _now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let read = seen.services.iter().all(|s| s.memory.footprint_bytes().is_some());
        // Memory is divided by footprints, so those that come later are followed once.
        if self.groups.follow(seen) || read && !self.read {
            self.read = read;
            self.lay_out(seen, &mut plan);
            for s in &seen.services {
                let mut because = Because::seen(s).expect(if s.is_lc() { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::NotJudged });
                because.say("cosmos.fixed", "core units of the LC services", f64::from(self.cores()), "");
                because.say("cosmos.fixed", "M, their memory", self.set.memory_gb, "GiB");
                because.say("cosmos.fixed", "the pool within it", self.set.pool_gb, "GiB");
                because.bind("this policy changes nothing while no service comes or goes");
                let why = "one state for good".into();
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Place, why, because });
            }
        }
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}
