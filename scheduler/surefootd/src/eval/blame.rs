//! Which violations a policy caused itself: the virtual server is asked where every LC service would settle before and after a plan.
//!
//! A service that would have met its target had the plan not been applied, and will not with it, was taken across its cliff. Its
//! violations are the policy's own from there until it meets its target again. A service that was missing its target anyway (a load that
//! has risen, an arrival that took nothing away) is not the policy's doing.

use crate::stage::virtual_target::VirtualTarget;
use std::collections::BTreeSet;
use surefoot_server::{Allocation, Observation, Plan, Server, ServerError, ServiceId, ServiceView};
use surefoot_vserver::{Steady, VirtualServer};

pub struct Blame {
    steady: Steady,
    guilty: BTreeSet<ServiceId>,
    /// Ticks of violation that the policy caused.
    pub ticks: u64,
    /// Times that an LC service was taken from and thereby taken across its cliff, and all LC services together hold less of what
    /// it lost: a reclaim for BE jobs, or for no service.
    pub crossings: i64,
    /// The same where other LC services got it.
    pub deprivals: i64,
}

impl Blame {
    /// Of a run with this seed, whose host it is.
    pub fn new(at: &VirtualTarget, seed: u64) -> Self {
        Blame { steady: Steady::on_host(at.profile.clone(), Some(seed)), guilty: BTreeSet::new(), ticks: 0, crossings: 0, deprivals: 0 }
    }

    /// Apply a plan, and see which services it takes across a cliff.
    ///
    /// # Errors
    /// What the server says; nothing has changed then.
    pub fn apply(&mut self, server: &mut VirtualServer, seen: &Observation, plan: &Plan) -> Result<(), ServerError> {
        let before = server.settled_qos(&mut self.steady);
        server.apply(plan)?;
        let after = server.settled_qos(&mut self.steady);
        let sum = change_of_all(seen, plan);
        for (id, was) in before {
            let Some(is) = after.get(&id).filter(|is| was >= 1.0 && **is < 1.0) else { continue };
            let busy = seen.get(&id).and_then(|s| Some(s.features.cpu_usage_cores? / s.allocation.cores()));
            let qos = seen.get(&id).and_then(ServiceView::qos);
            tracing::debug!(service = id, was, is, busy, qos, t_ms = seen.t_ms, "taken across its cliff by a plan");
            let lost = seen.get(&id).filter(|s| s.placed).and_then(|s| Some(change(&s.allocation, &plan.wants(&id, &s.allocation)?)));
            if let Some(lost) = lost.filter(|l| l.iter().any(|x| *x < LESS)) {
                let reclaimed = lost.iter().zip(&sum).any(|(mine, all)| *mine < LESS && *all < LESS);
                *(if reclaimed { &mut self.crossings } else { &mut self.deprivals }) += 1;
            }
            self.guilty.insert(id);
        }
        Ok(())
    }

    /// A tick in which this service missed its target.
    pub fn violated(&mut self, id: &str) {
        self.ticks += u64::from(self.guilty.contains(id));
    }

    /// A service that meets its target again, and would go on to, ends the blame for it.
    pub fn heal(&mut self, server: &VirtualServer, seen: &Observation) {
        self.guilty.retain(|id| seen.get(id).is_some());
        if self.guilty.iter().any(|id| seen.get(id).is_some_and(|s| s.qos_met() == Some(true))) {
            let settled = server.settled_qos(&mut self.steady);
            let well =
                |id: &ServiceId| seen.get(id).is_some_and(|s| s.qos_met() == Some(true)) && settled.get(id).is_none_or(|q| *q >= 1.0);
            self.guilty.retain(|id| !well(id));
        }
    }
}

/// Less than this is rounding.
const LESS: f64 = -1e-6;

/// What LC services hold more together with this plan, resource by resource.
fn change_of_all(seen: &Observation, plan: &Plan) -> Vec<f64> {
    let mut sum = vec![];
    for s in seen.lc() {
        let Some(now) = plan.wants(&s.id, &s.allocation) else { continue };
        let mut more = if s.placed { change(&s.allocation, &now) } else { held(&now) };
        if !s.placed {
            // What a newcomer used until now it was not given; bandwidth is not divided.
            more[0] = 0.0;
        }
        sum.resize(more.len().max(sum.len()), 0.0);
        sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    sum
}

fn change(was: &Allocation, is: &Allocation) -> Vec<f64> {
    held(was).iter().zip(held(is)).map(|(was, is)| is - was).collect()
}

/// Per cent of bandwidth, cores, ways of each domain.
fn held(a: &Allocation) -> Vec<f64> {
    [f64::from(a.mba_pct), a.cores()].into_iter().chain(a.ways.iter().map(|m| f64::from(m.count_ones()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::run::TICK_MS;
    use surefoot_server::{Change, CpuSet, Tick};

    /// A service alone on 8 cores of server-1, and plans that give it others.
    struct Scene {
        server: VirtualServer,
        blame: Blame,
        allocation: Allocation,
    }

    impl Scene {
        fn new(load: f64) -> Self {
            let at = VirtualTarget::of_platform("server-1", None).unwrap();
            let target = at.target();
            let mut server = VirtualServer::new(at.profile.clone(), Some(1));
            let rps = target.services["xapian"].max_load_rps.unwrap() * load;
            server.add(0, "xapian", at.profiles.service("xapian").unwrap().clone(), rps, 36).unwrap();
            server.advance(Tick { ms: TICK_MS });
            let mut allocation = Allocation::everything(&at.platform);
            (allocation.shared_cpus, allocation.shared_ways) = (CpuSet::empty(), vec![0; allocation.ways.len()]);
            let mut scene = Scene { server, blame: Blame::new(&at, 1), allocation };
            scene.hold(36);
            scene
        }

        fn hold(&mut self, cores: u32) {
            self.allocation.cpus = CpuSet::range(0, cores);
            let mut plan = Plan::default();
            plan.changes.insert("xapian".into(), Change::all(&self.allocation));
            let seen = self.server.observe();
            self.blame.apply(&mut self.server, &seen, &plan).unwrap();
        }

        fn run(&mut self, ticks: u32) {
            for _ in 0..ticks {
                self.server.advance(Tick { ms: TICK_MS });
                let seen = self.server.observe();
                for s in seen.lc().filter(|s| s.qos_met() == Some(false)) {
                    self.blame.violated(&s.id);
                }
                self.blame.heal(&self.server, &seen);
            }
        }
    }

    /// Taken across the cliff: one crossing, and every missed tick is the policy's own until the target is met again.
    #[test]
    fn a_plan_across_the_cliff_is_blamed_until_the_service_has_recovered() {
        let mut s = Scene::new(0.6);
        s.run(20);
        assert_eq!((s.blame.crossings, s.blame.ticks), (0, 0));
        s.hold(2);
        s.run(20);
        let missed = s.blame.ticks;
        assert!(s.blame.crossings == 1 && missed > 5, "{} {missed}", s.blame.crossings);
        s.hold(36);
        s.run(100);
        let recovering = s.blame.ticks;
        assert!(recovering > missed && s.blame.guilty.is_empty(), "{recovering} {missed}");
        s.run(50);
        assert_eq!((s.blame.ticks, s.blame.crossings), (recovering, 1));
    }

    /// What went to another LC service is a deprivation, what went to no service a reclaim.
    #[test]
    fn a_loss_to_another_service_is_not_a_reclaim() {
        for to_another in [false, true] {
            let mut s = Scene::new(0.6);
            let at = VirtualTarget::of_platform("server-1", None).unwrap();
            s.server.add(200, "login", at.profiles.service("login").unwrap().clone(), 10.0, 4).unwrap();
            s.allocation.ways = vec![0xffff0];
            s.hold(20);
            s.run(5);
            let mut plan = Plan::default();
            let mut other = s.allocation.clone();
            (other.cpus, other.ways) = (CpuSet::range(20, 24), vec![0xf]);
            plan.changes.insert("login".into(), Change::all(&other));
            s.server.apply(&plan).unwrap();
            s.run(40);
            let seen = s.server.observe();
            assert_eq!(seen.lc().filter(|s| s.placed && s.qos_met() == Some(true)).count(), 2);
            s.allocation.cpus = CpuSet::range(0, 2);
            plan.changes.insert("xapian".into(), Change::all(&s.allocation));
            other.cpus = CpuSet::range(2, if to_another { 24 } else { 4 });
            plan.changes.insert("login".into(), Change::all(&other));
            s.blame.apply(&mut s.server, &seen, &plan).unwrap();
            assert_eq!((s.blame.crossings, s.blame.deprivals), if to_another { (0, 1) } else { (1, 0) });
        }
    }

    /// A service that misses its target on everything there is was not harmed by getting less.
    #[test]
    fn overload_is_nobodys_doing() {
        let mut s = Scene::new(1.5);
        s.run(20);
        s.hold(30);
        s.run(20);
        assert_eq!((s.blame.crossings, s.blame.ticks), (0, 0));
    }
}
