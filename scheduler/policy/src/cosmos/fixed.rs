//! `cosmos-static`: one state for good. The paper's EX-L, EX-M and EX-H (Sec. VI-D) and its *exhaustive* are this policy, each with the state that
//! a search through all of them found best (`cargo run --example cosmos`). The state is settings of `cosmos` (`cosmos.fixed.cores` and two more).

use super::groups::{limit, pool, shares, Groups};
use super::settings::Fixed;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{Action, ActionKind, Because, Change, HoldsIf, Limit, Observation, Plan, Platform, Report, Resource, ServiceId};

const GB: f64 = (1u64 << 30) as f64;
const OWNS: [Resource; 3] = super::OWNS;

/// The policy.
pub struct Static {
    set: Fixed,
    groups: Groups,
    /// Bytes that limits share out; None where the platform's memory is unknown.
    capacity: Option<f64>,
    wanted: BTreeMap<ServiceId, Change>,
}

impl Static {
    pub fn new(platform: &Platform, set: Fixed) -> Self {
        let capacity = platform.memory.map(|m| m.capacity_bytes as f64);
        Static { set, groups: Groups::new(platform), capacity, wanted: BTreeMap::new() }
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
        let Some(capacity) = self.capacity else { return };
        let (m, of_pool) = ((self.set.memory_gb * GB).min(capacity), self.set.pool_gb.min(self.set.memory_gb) * GB);
        for (ids, memory, compressed) in [(&self.groups.lc, m, of_pool), (&self.groups.be, capacity - m, 0.0)] {
            let sizes: Vec<f64> = ids.iter().map(|id| seen.get(id).and_then(|s| s.memory.footprint_bytes()).unwrap_or(0) as f64).collect();
            for (id, share) in ids.iter().zip(shares(&sizes)) {
                let Some(change) = self.wanted.get_mut(id) else { continue };
                let limits: (Limit, Limit) = (limit(memory * share), pool(compressed * share));
                (change.mem_limit, change.zswap_max) = (Some(limits.0), Some(limits.1));
            }
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
        if self.groups.follow(seen) {
            self.lay_out(seen, &mut plan);
            for s in &seen.services {
                let mut because = Because::seen(s).expect(if s.is_lc() { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::NotJudged });
                because.say("cosmos.fixed", "core units of the LC services", f64::from(self.cores()), "");
                because.say("cosmos.fixed", "M, their memory", self.set.memory_gb, "GB");
                because.say("cosmos.fixed", "the pool within it", self.set.pool_gb, "GB");
                because.bind("this policy changes nothing while no service comes or goes");
                let why = "one state for good".into();
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Place, why, because });
            }
        }
        for s in &seen.services {
            if let Some(change) = self.wanted.get(&s.id).filter(|c| !s.placed || c.alters(&s.allocation)) {
                plan.changes.insert(s.id.clone(), change.clone());
            }
        }
        plan
    }
}
