//! Everything is shared by everybody: what an operating system does by default.

use crate::Policy;
use surefoot_server::{Action, ActionKind, Allocation, Because, Change, Observation, Plan, Platform};

/// No partitioning.
pub struct Unmanaged {
    everything: Change,
}

impl Unmanaged {
    pub fn new(platform: &Platform) -> Self {
        Unmanaged { everything: Change::cores_and_ways(&Allocation::everything(platform)) }
    }
}

impl Policy for Unmanaged {
    fn name(&self) -> &str {
        "unmanaged"
    }

    fn step(&mut self, _now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        for s in seen.services.iter().filter(|s| !s.placed || self.everything.alters(&s.allocation)) {
            plan.changes.insert(s.id.clone(), self.everything.clone());
            let mut because = Because::seen(s);
            because.bind("this policy partitions nothing");
            plan.actions.push(Action {
                service: s.id.clone(),
                kind: ActionKind::Place,
                why: "unmanaged: everything, shared with everybody".into(),
                because,
            });
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;

    /// Every service holds everything, and once that is so nothing changes any more.
    #[test]
    fn everything_is_shared_once_and_for_all() {
        let p = Platform::regular("t", 8, 2, 11, 2.0);
        let mut plant = Plant::new(&p).lc("a", 2.0, 5.0).be("x");
        let mut policy = Unmanaged::new(&p);
        let plan = policy.step(0, &plant.observe());
        assert_eq!(plan.changes.len(), 2);
        plant.apply(&plan);
        assert!(plant.observe().services.iter().all(|s| s.allocation == Allocation::everything(&p)));
        assert!(policy.step(100, &plant.observe()).is_empty());
    }
}
