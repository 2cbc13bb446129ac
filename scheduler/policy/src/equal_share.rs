//! Equal shares: cores and ways split equally among the LC services and the BE jobs as one, whenever services come or go.
//!
//! What any partitioning must beat: it isolates, and knows nothing. Memory bandwidth is not throttled. What does not divide stays
//! with the BE jobs, or goes one by one to the LC services in their order where there are none. Nothing is taken from a service
//! whose latency is unknown: the split is finished when it speaks.

use crate::books::{Amount, Books};
use crate::Policy;
use surefoot_server::{Action, ActionKind, Because, HoldsIf, Observation, Plan, Platform, Report, ServiceId, ServiceView};

/// The policy.
pub struct EqualShare {
    books: Books,
}

impl EqualShare {
    pub fn new(platform: &Platform) -> Self {
        EqualShare { books: Books::new(platform) }
    }

    /// What each LC service is to hold.
    fn shares(&self, seen: &Observation) -> Vec<(ServiceId, Amount)> {
        let lc: Vec<&ServiceView> = seen.lc().collect();
        let holders = (lc.len() + usize::from(self.books.has_be())).max(1) as u32;
        let total = self.books.total();
        let more = |total: u32, i: usize| total / holders + u32::from(!self.books.has_be() && (i as u32) < total % holders);
        let share = |i: usize| Amount::new(more(total.cores, i), more(total.ways, i)).at_least(self.books.least());
        lc.iter().enumerate().map(|(i, s)| (s.id.clone(), share(i))).collect()
    }

    fn act(&self, seen: &Observation, id: &str, kind: ActionKind, share: Amount, holders: usize, plan: &mut Plan) {
        let Some(s) = seen.get(id) else { return };
        let mut because = Because::seen(s).expect(HoldsIf::Qos { at_least: 1.0 });
        because.say("equal share", "core units", f64::from(share.cores), "");
        because.say("equal share", "ways", f64::from(share.ways), "");
        because.bind("everybody gets the same, whatever the need");
        let why = format!("one of {holders} equal shares: {} core units, {} ways", share.cores, share.ways);
        plan.actions.push(Action { service: id.into(), kind, why, because });
    }
}

impl Policy for EqualShare {
    fn name(&self) -> &str {
        "equal-share"
    }

    fn step(&mut self, _now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        self.books.follow(seen);
        let shares = self.shares(seen);
        let holders = shares.len() + usize::from(self.books.has_be());
        let silent = |id: &str| seen.get(id).is_some_and(ServiceView::latency_unknown);
        // First those who hold too much give, then newcomers are placed, then those who hold too little grow.
        for (id, share) in &shares {
            let Some(own) = self.books.slot(id).map(|s| s.own) else { continue };
            let less = own.at_most(*share);
            if less != own && !silent(id) && self.books.set(id, less) {
                self.act(seen, id, ActionKind::Shrink, less, holders, &mut plan);
            }
        }
        for (id, share) in shares.iter().filter(|(id, _)| self.books.slot(id).is_none()).cloned().collect::<Vec<_>>() {
            if self.books.admit(&id, share) {
                self.act(seen, &id, ActionKind::Place, share, holders, &mut plan);
            } else if !self.books.is_crowded(&id) {
                self.books.crowd_in(&id);
                let why = format!("no room for one of {holders} equal shares");
                plan.reports.push(Report::CannotPlace { service: id, why });
            }
        }
        for (id, share) in &shares {
            let Some(own) = self.books.slot(id).map(|s| s.own) else { continue };
            let more = own.at_least(*share);
            if more != own && self.books.set(id, more) {
                self.act(seen, id, ActionKind::Grow, more, holders, &mut plan);
            }
        }
        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;
    use surefoot_server::Kind;

    fn step(plant: &mut Plant, policy: &mut EqualShare) -> Plan {
        plant.tick();
        let plan = policy.step(plant.t_ms, &plant.observe());
        plant.apply(&plan);
        plan
    }

    fn held(plant: &Plant) -> Vec<(f64, f64)> {
        plant.tenants.iter().map(|t| (plant.cores(&t.id), plant.ways(&t.id))).collect()
    }

    /// Shares follow who is there, the jobs being one holder, and nothing else moves them: not even a target that is missed.
    #[test]
    fn shares_change_only_when_services_come_or_go() {
        let p = Platform::regular("t", 12, 1, 9, 2.0);
        let mut plant = Plant::new(&p).lc("a", 9.0, 5.0).lc("b", 1.0, 5.0);
        let mut policy = EqualShare::new(&p);
        step(&mut plant, &mut policy);
        assert_eq!(held(&plant), [(6.0, 5.0), (6.0, 4.0)]);
        for _ in 0..50 {
            assert!(step(&mut plant, &mut policy).is_empty());
        }
        assert!(!plant.all_met());
        plant.add("x", Kind::Be, 0.0);
        plant.add("y", Kind::Be, 0.0);
        step(&mut plant, &mut policy);
        assert_eq!(held(&plant), [(4.0, 3.0); 4]);
        plant.tenants.remove(0);
        step(&mut plant, &mut policy);
        // What does not divide is the jobs'.
        assert_eq!(held(&plant), [(6.0, 4.0), (6.0, 5.0), (6.0, 5.0)]);
    }

    /// A silent service keeps what it has; when it speaks the split is finished.
    #[test]
    fn the_silent_give_nothing() {
        let p = Platform::regular("t", 12, 1, 9, 2.0);
        let mut plant = Plant::new(&p).lc("a", 1.0, 10.0);
        let mut policy = EqualShare::new(&p);
        step(&mut plant, &mut policy);
        plant.tenant("a").silent = true;
        plant.add("b", Kind::Lc { qos_target_ms: 10.0 }, 1.0);
        let reports: usize = (0..20).map(|_| step(&mut plant, &mut policy).reports.len()).sum();
        assert_eq!((plant.cores("a"), plant.ways("a"), reports), (12.0, 9.0, 1));
        plant.tenant("a").silent = false;
        step(&mut plant, &mut policy);
        assert_eq!(held(&plant), [(6.0, 5.0), (6.0, 4.0)]);
    }
}
