//! Who holds how much: counts of core units, ways and bandwidth, from which a [`Plan`] is made.
//!
//! Policies think in counts; [`surefoot_server::layout::pack`] turns them into CPUs and masks. The books keep what must
//! always hold: counts never exceed the platform, every LC service has at least one core unit and `min_ways` of its own,
//! BE jobs share one holding, get all that nobody else holds, and keep one unit and `min_ways`.
//!
//! By quota everybody in force needs a unit, with a slot or without, and no plan can send anybody away again. Units for those in force
//! therefore come before newcomers': a plan that left one of them out would be refused, and so would all that follow it.

use std::collections::BTreeMap;
use surefoot_server::layout::{pack, Holding, Share};
use surefoot_server::validate::validate;
pub use surefoot_server::Amount;
use surefoot_server::{Allocation, Observation, Plan, Platform, ServiceId};

/// QoS on `to` of a service that holds `held`, where no model says: it falls with the square of what is left of cores and of ways.
pub fn qos_by_thumb(qos: f64, held: Amount, to: Amount) -> f64 {
    qos * share_left(held, to).powi(2)
}

/// What is left of cores, times what is left of ways.
pub fn share_left(held: Amount, to: Amount) -> f64 {
    let left = |to: u32, held: u32| if held > 0 { f64::from(to) / f64::from(held) } else { 1.0 };
    left(to.cores, held.cores) * left(to.ways, held.ways)
}

/// What one LC service holds alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub id: ServiceId,
    pub own: Amount,
    pub mba_pct: u8,
}

/// What two LC services use together, besides what each holds alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Whose resources these are, and who may use them too.
    pub owner: ServiceId,
    pub guest: ServiceId,
    pub amount: Amount,
}

/// The counts of one server.
#[derive(Clone, Debug)]
pub struct Books {
    pub platform: Platform,
    slots: Vec<Slot>,
    commons: Vec<Common>,
    be: Vec<ServiceId>,
    /// Memory bandwidth of the BE jobs, per cent.
    pub be_mba_pct: u8,
    /// LC services for which not even the least is left; they use somebody else's holding too.
    crowd: Vec<ServiceId>,
    /// Services that had been placed at the last look.
    in_force: Vec<ServiceId>,
    /// Most core units that a bounded service can make use of: more would be withheld from it, and nobody else's.
    most: BTreeMap<ServiceId, u32>,
}

/// What came and went since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// LC services without a slot, in the order of the observation.
    pub lc_arrived: Vec<ServiceId>,
    pub be_arrived: Vec<ServiceId>,
    pub left: Vec<ServiceId>,
}

impl Books {
    pub fn new(platform: &Platform) -> Self {
        let platform = platform.clone();
        let (slots, commons, be, crowd, in_force, most) = Default::default();
        Books { platform, slots, commons, be, be_mba_pct: 100, crowd, in_force, most }
    }

    /// The least that a service may hold.
    pub fn least(&self) -> Amount {
        Amount::new(1, self.platform.min_ways())
    }

    /// The least that all BE jobs together keep: they share a CPU, but a quota is split among them.
    fn be_least(&self) -> Amount {
        let members = if self.platform.by_quota() { self.be.len() as u32 } else { u32::from(self.has_be()) };
        Amount::new(members, if members > 0 { self.platform.min_ways() } else { 0 })
    }

    pub fn total(&self) -> Amount {
        Amount::new(self.platform.core_units(), self.platform.ways())
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn slot(&self, id: &str) -> Option<&Slot> {
        self.slots.iter().find(|s| s.id == id)
    }

    fn slot_mut(&mut self, id: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.id == id)
    }

    pub fn commons(&self) -> &[Common] {
        &self.commons
    }

    /// The one sharing that a service takes part in, if any.
    pub fn common_of(&self, id: &str) -> Option<&Common> {
        self.commons.iter().find(|c| c.owner == id || c.guest == id)
    }

    pub fn has_be(&self) -> bool {
        !self.be.is_empty()
    }

    /// All that a service may use: its own and what it shares.
    pub fn usable(&self, id: &str) -> Amount {
        let own = self.slot(id).map_or(Amount::default(), |s| s.own);
        self.common_of(id).map_or(own, |c| own.plus(c.amount))
    }

    fn held(&self) -> Amount {
        let own = self.slots.iter().fold(Amount::default(), |a, s| a.plus(s.own));
        self.commons.iter().fold(own, |a, c| a.plus(c.amount))
    }

    /// What no LC service holds: idle, or with the BE jobs.
    pub fn rest(&self) -> Amount {
        self.total().minus(self.held())
    }

    /// What can be had without touching an LC service: idle, or from BE jobs beyond the least that they keep.
    pub fn free(&self) -> Amount {
        self.rest().minus(self.be_least())
    }

    /// Follow arrivals and departures. What a vanished service held becomes idle (shared resources go back to the other).
    ///
    /// A placed service that the books do not know (the policy has just been started) is taken over as it stands if that
    /// fits; otherwise it counts as arrived.
    pub fn follow(&mut self, seen: &Observation) -> News {
        let mut news = News::default();
        let gone = |id: &ServiceId| seen.get(id).is_none();
        news.left.extend(self.slots.iter().map(|s| &s.id).chain(&self.be).chain(&self.crowd).filter(|id| gone(id)).cloned());
        self.slots.retain(|s| !gone(&s.id));
        self.be.retain(|id| !gone(id));
        self.crowd.retain(|id| !gone(id));
        self.in_force = seen.services.iter().filter(|s| s.placed).map(|s| s.id.clone()).collect();
        self.most = seen.bounds.iter().map(|(id, b)| (id.clone(), b.most_units(&self.platform))).collect();
        let (ended, kept): (Vec<_>, Vec<_>) = self.commons.drain(..).partition(|c| gone(&c.owner) || gone(&c.guest));
        self.commons = kept;
        for c in ended {
            if let Some(s) = self.slot_mut(&c.owner) {
                s.own = s.own.plus(c.amount);
            }
        }
        for s in seen.be().filter(|s| !self.be.contains(&s.id)) {
            news.be_arrived.push(s.id.clone());
        }
        self.be.extend(news.be_arrived.iter().cloned());
        for s in seen.lc() {
            if self.slot(&s.id).is_some() {
                continue;
            }
            let a = &s.allocation;
            let own = Amount::new(self.platform.units(a.cores()), a.n_ways().round() as u32);
            let alone = a.shared_cpus.is_empty() && a.shared_ways.iter().all(|m| *m == 0) || self.platform.by_quota();
            let sound = a.cpus.is_subset(&self.platform.managed) && self.least().fits_in(own) && own.fits_in(self.free());
            if s.placed && alone && sound && !self.crowd.contains(&s.id) {
                self.slots.push(Slot { id: s.id.clone(), own, mba_pct: a.mba_pct });
            } else {
                news.lc_arrived.push(s.id.clone());
            }
        }
        news
    }

    fn most_cores(&self, id: &str) -> u32 {
        self.most.get(id).copied().unwrap_or(u32::MAX)
    }

    /// Whether by quota a unit is left for one more slot, besides those of everybody in force without one.
    pub fn unit_is_left_for(&self, id: &str) -> bool {
        let others = self.in_force.iter().filter(|o| *o != id && self.slot(o).is_none()).count();
        !self.platform.by_quota() || self.slots.len() + others < self.total().cores as usize
    }

    /// Give a slot to an LC service that has none, from what is free. False (and nothing changed) if that is not there.
    pub fn admit(&mut self, id: &str, own: Amount) -> bool {
        let own = Amount::new(own.cores.min(self.most_cores(id)), own.ways);
        if self.slot(id).is_some() || !self.least().fits_in(own) || !own.fits_in(self.free()) || !self.unit_is_left_for(id) {
            return false;
        }
        self.crowd.retain(|c| c != id);
        self.slots.push(Slot { id: id.into(), own, mba_pct: 100 });
        true
    }

    /// No slot can be had: the service uses the BE jobs' holding too, or else the largest LC holding.
    pub fn crowd_in(&mut self, id: &str) {
        if self.slot(id).is_none() && !self.crowd.iter().any(|c| c == id) {
            self.crowd.push(id.into());
        }
    }

    pub fn is_crowded(&self, id: &str) -> bool {
        self.crowd.iter().any(|c| c == id)
    }

    /// Who comes before whom, of services without a slot: those in force, whom no plan can send away, then those that have waited longest.
    pub fn turn(&self, id: &ServiceId) -> (bool, usize) {
        (!self.in_force.contains(id), self.crowd.iter().position(|c| c == id).unwrap_or(usize::MAX))
    }

    /// More for a service from what is free. False (and nothing changed) if that is not there.
    pub fn grow(&mut self, id: &str, by: Amount) -> bool {
        let most = self.most_cores(id);
        if !by.fits_in(self.free()) || by.cores > 0 && self.slot(id).is_some_and(|s| s.own.cores + by.cores > most) {
            return false;
        }
        match self.slot_mut(id) {
            Some(s) => {
                s.own = s.own.plus(by);
                true
            }
            None => false,
        }
    }

    /// Less for a service; what it gives up becomes free. False (and nothing changed) if less than the least would be left.
    pub fn shrink(&mut self, id: &str, by: Amount) -> bool {
        let least = self.least();
        match self.slot_mut(id) {
            Some(s) if least.plus(by).fits_in(s.own) => {
                s.own = s.own.minus(by);
                true
            }
            _ => false,
        }
    }

    /// Set what a service holds alone. False (and nothing changed) if it is too little, or more than is free.
    pub fn set(&mut self, id: &str, own: Amount) -> bool {
        let own = Amount::new(own.cores.min(self.most_cores(id)), own.ways);
        let Some(old) = self.slot(id).map(|s| s.own) else { return false };
        if !self.least().fits_in(own) || !own.minus(old).fits_in(self.free()) {
            return false;
        }
        if let Some(s) = self.slot_mut(id) {
            s.own = own;
        }
        true
    }

    /// What a service could give up.
    pub fn spare(&self, id: &str) -> Amount {
        self.slot(id).map_or(Amount::default(), |s| s.own.minus(self.least()))
    }

    pub fn set_mba(&mut self, id: &str, pct: u8) {
        if let Some(s) = self.slot_mut(id) {
            s.mba_pct = pct;
        }
    }

    /// One step of memory bandwidth from `pct`, up or down; None at the end of the scale or where the host has no MBA.
    pub fn mba_step(&self, pct: u8, up: bool) -> Option<u8> {
        let m = self.platform.mba?;
        // 10 % by the OSML+ paper; the next multiple where the hardware is coarser.
        let step = m.step_pct.max(1).max(10 / m.step_pct.max(1) * m.step_pct.max(1));
        if up {
            (pct < 100).then(|| pct.saturating_add(step).min(100))
        } else {
            let next = pct.saturating_sub(step) / m.step_pct.max(1) * m.step_pct.max(1);
            (next >= m.min_pct && next < pct).then_some(next)
        }
    }

    /// Let `guest` use a part of what `owner` holds (OSML+ paper, Algorithm 3, line 13).
    ///
    /// False (and nothing changed) if the owner would have less than the least alone, if either already shares (masks have no
    /// gaps: a service shares ways with one other), or for cores on a host that hands out quota (quota is a sum, not a place).
    pub fn share(&mut self, owner: &str, guest: &str, amount: Amount) -> bool {
        let taken = self.common_of(owner).is_some() || self.common_of(guest).is_some();
        let by_quota = self.platform.by_quota() && amount.cores > 0;
        if owner == guest || taken || by_quota || amount.is_zero() || self.slot(guest).is_none() || !self.shrink(owner, amount) {
            return false;
        }
        self.commons.push(Common { owner: owner.into(), guest: guest.into(), amount });
        true
    }

    /// End a sharing: the owner has its resources back. The guest gets as much from what is free if `repay`.
    pub fn unshare(&mut self, id: &str, repay: bool) -> bool {
        let Some(i) = self.commons.iter().position(|c| c.owner == id || c.guest == id) else { return false };
        if repay && !self.commons[i].amount.fits_in(self.free()) {
            return false;
        }
        let c = self.commons.remove(i);
        if let Some(s) = self.slot_mut(&c.owner) {
            s.own = s.own.plus(c.amount);
        }
        if repay {
            self.grow(&c.guest, c.amount);
        }
        true
    }

    /// What the BE jobs still lack of the least that they keep.
    pub fn be_lacks(&self) -> Amount {
        self.be_least().minus(self.rest())
    }

    /// The plan that puts the books in force; names only services whose allocation changes.
    ///
    /// # Errors
    /// One line from `pack`, or that quotas do not suffice for those in force; neither can happen while the books' invariants hold.
    pub fn plan(&self, seen: &Observation) -> Result<Plan, String> {
        let mut holdings: Vec<Holding> = self
            .slots
            .iter()
            .map(|s| Holding { members: vec![s.id.clone()], cores: s.own.cores, ways: s.own.ways, mba_pct: s.mba_pct })
            .collect();
        let shares: Vec<Share> = self
            .commons
            .iter()
            .filter_map(|c| {
                let at = |id: &str| self.slots.iter().position(|s| s.id == id);
                Some(Share { between: (at(&c.owner)?, at(&c.guest)?), cores: c.amount.cores, ways: c.amount.ways })
            })
            .collect();
        let in_force: BTreeMap<ServiceId, Allocation> =
            seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        let rest = self.rest();
        let by_quota = self.platform.by_quota();
        // In force, and the policy (just started) has not come to them yet.
        let unasked = seen.lc().filter(|s| s.placed && self.slot(&s.id).is_none() && !self.is_crowded(&s.id)).count();
        // A newcomer for whom there is no quota leaves those who came before where they are.
        let mut to_spare = usize::MAX;
        if by_quota {
            let stay = self.be.iter().chain(&self.crowd).filter(|id| in_force.contains_key(*id)).count();
            to_spare = (self.total().cores as usize).saturating_sub(self.slots.len() + stay + unasked);
        }
        let mut may_have = |id: &ServiceId| {
            let stays = in_force.contains_key(id);
            let may = stays || to_spare > 0;
            to_spare -= usize::from(may && !stays);
            may
        };
        let be_fits = self.has_be() && self.least().fits_in(rest);
        let mut homeless = self.crowd.clone();
        if be_fits {
            let room = if by_quota { rest.cores as usize } else { usize::MAX };
            let (mut members, mut late) = (vec![], vec![]);
            for id in &self.be {
                let of = if members.len() < room && may_have(id) { &mut members } else { &mut late };
                of.push(id.clone());
            }
            homeless.extend(late);
            holdings.push(Holding { members, cores: rest.cores, ways: rest.ways, mba_pct: self.be_mba_pct });
        } else {
            homeless.extend(self.be.iter().cloned());
        }
        let mut idle = if be_fits { 0 } else { rest.cores };
        // The last resort: use a holding together. Quota is split among members: each needs a unit.
        for id in homeless {
            let best = |holdings: &[Holding], room: &dyn Fn(&Holding) -> bool| {
                let hosts = (0..holdings.len()).rev().filter(|i| room(&holdings[*i]));
                hosts.max_by_key(|i| (be_fits && *i + 1 == holdings.len(), holdings[*i].cores))
            };
            if let Some(host) = best(&holdings, &|h| !by_quota || h.members.len() < h.cores as usize) {
                if may_have(&id) {
                    holdings[host].members.push(id);
                }
            } else if in_force.contains_key(&id) && !holdings.is_empty() {
                // Its host has shrunk since: it brings a unit along.
                let host = best(&holdings, &|_| idle > 0).ok_or_else(|| format!("{id}: no core unit is left, and it is in force"))?;
                idle -= 1;
                holdings[host].cores += 1;
                holdings[host].members.push(id);
            }
        }
        let mut plan = Plan::cores_and_ways(pack(&self.platform, &in_force, &holdings, &shares)?);
        plan.changes.retain(|id, change| in_force.get(id).is_none_or(|now| change.alters(now)));
        if unasked > 0 {
            // What they hold looks free, and is not: nobody moves into it before the policy has said where they go.
            if validate(&self.platform, &plan.layout(seen)).is_err() {
                plan.changes.clear();
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{be, lc, observation, Plant};
    use proptest::prelude::*;
    use surefoot_server::Kind;

    fn books() -> Books {
        Books::new(&Platform::regular("t", 10, 1, 11, 2.0))
    }

    /// BE jobs hold all that LC services do not, and keep one unit and the least ways.
    #[test]
    fn be_jobs_get_the_rest_and_keep_the_least() {
        let mut b = books();
        b.follow(&observation(vec![be("x"), lc("a")]));
        // 10 cores, 11 ways; 1 and 1 stay with the BE job.
        assert_eq!(b.free(), Amount::new(9, 10));
        assert!(!b.admit("a", Amount::new(10, 3)));
        assert!(b.admit("a", Amount::new(4, 3)));
        assert_eq!(b.rest(), Amount::new(6, 8));
        assert!(!b.grow("a", Amount::new(6, 0)));
        assert!(b.grow("a", Amount::new(5, 0)));
        assert_eq!(b.rest().cores, 1);
    }

    /// What a service that left had held is idle again; what it had borrowed is the owner's again.
    #[test]
    fn a_service_that_leaves_leaves_its_resources() {
        let mut b = books();
        b.follow(&observation(vec![lc("a"), lc("b")]));
        assert!(b.admit("a", Amount::new(6, 6)) && b.admit("b", Amount::new(4, 5)));
        assert!(b.share("a", "b", Amount::new(2, 1)));
        assert_eq!((b.usable("a"), b.usable("b")), (Amount::new(6, 6), Amount::new(6, 6)));
        assert_eq!(b.free(), Amount::default());
        let news = b.follow(&observation(vec![lc("a")]));
        assert_eq!(news.left, ["b"]);
        assert_eq!((b.usable("a"), b.free()), (Amount::new(6, 6), Amount::new(4, 5)));
    }

    /// An LC service never falls below one unit and the least ways.
    #[test]
    fn the_least_stays() {
        let mut b = books();
        b.follow(&observation(vec![lc("a")]));
        assert!(b.admit("a", Amount::new(2, 1)));
        assert!(!b.shrink("a", Amount::new(0, 1)) && !b.shrink("a", Amount::new(2, 0)));
        assert!(b.shrink("a", Amount::new(1, 0)) && !b.set("a", Amount::new(0, 1)));
    }

    /// Bandwidth moves by 10 %, or by the hardware's step where that is coarser; never out of range.
    #[test]
    fn bandwidth_steps_stay_on_the_scale() {
        let mut b = books();
        assert_eq!((b.mba_step(100, false), b.mba_step(100, true)), (Some(90), None));
        assert_eq!((b.mba_step(10, false), b.mba_step(95, true)), (None, Some(100)));
        b.platform.mba = Some(surefoot_server::Mba { min_pct: 20, step_pct: 20 });
        assert_eq!((b.mba_step(100, false), b.mba_step(20, false)), (Some(80), None));
        b.platform.mba = None;
        assert_eq!(b.mba_step(50, true), None);
    }

    /// A service that a restarted policy finds placed is taken over as it stands.
    #[test]
    fn a_restarted_policy_takes_over_what_it_finds() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let mut plant = Plant::new(&p).lc("a", 2.0, 5.0).lc("b", 2.0, 5.0);
        let mut b = Books::new(&p);
        let seen = plant.observe();
        b.follow(&seen);
        assert!(b.admit("a", Amount::new(3, 4)) && b.admit("b", Amount::new(2, 2)));
        plant.apply(&b.plan(&seen).unwrap());
        let mut fresh = Books::new(&p);
        assert!(fresh.follow(&plant.observe()).lc_arrived.is_empty());
        assert_eq!((fresh.usable("a"), fresh.usable("b")), (Amount::new(3, 4), Amount::new(2, 2)));
        assert!(fresh.plan(&plant.observe()).unwrap().is_empty());
    }

    /// With more services than ways the last ones use another's holding too, and the plan is valid.
    #[test]
    fn more_services_than_ways_crowd_in() {
        let p = Platform::regular("t", 10, 1, 2, 2.0);
        let mut plant = Plant::new(&p).lc("a", 1.0, 5.0).lc("b", 1.0, 5.0).lc("c", 1.0, 5.0);
        let mut b = Books::new(&p);
        let seen = plant.observe();
        for id in b.follow(&seen).lc_arrived {
            if !b.admit(&id, Amount::new(3, 1)) {
                b.crowd_in(&id);
            }
        }
        plant.apply(&b.plan(&seen).unwrap());
        let (a, c) = (&plant.observe().get("a").unwrap().allocation.clone(), &plant.observe().get("c").unwrap().allocation.clone());
        assert_eq!(a, c);
    }

    /// Five services on a quota of four units, one after the other: the fifth goes on running everywhere, and takes nobody's place.
    #[test]
    fn a_newcomer_without_quota_leaves_everybody_in_place() {
        let p = Platform { core_step: 0.25, ..Platform::regular("t", 1, 1, 2, 2.0) };
        let (mut plant, mut b) = (Plant::new(&p), Books::new(&p));
        for (i, id) in ["x", "a", "b", "c", "y"].into_iter().enumerate() {
            plant.add(id, if id < "x" { Kind::Lc { qos_target_ms: 5.0 } } else { Kind::Be }, 1.0);
            let seen = plant.observe();
            for id in b.follow(&seen).lc_arrived {
                if !b.admit(&id, Amount::new(1, 1)) {
                    b.crowd_in(&id);
                }
            }
            plant.apply(&b.plan(&seen).unwrap());
            assert_eq!(plant.observe().services.iter().filter(|s| s.placed).count(), (i + 1).min(4));
        }
        assert!(b.plan(&plant.observe()).unwrap().is_empty());
    }

    /// One that uses a holding too keeps its unit when the holder is down to its last: the unit is an idle one.
    #[test]
    fn a_guest_keeps_its_unit_when_the_host_shrinks() {
        let p = Platform { core_step: 0.25, ..Platform::regular("t", 2, 1, 1, 2.0) };
        let (mut plant, mut b) = (Plant::new(&p).lc("a", 1.0, 5.0).lc("b", 1.0, 5.0), Books::new(&p));
        let seen = plant.observe();
        b.follow(&seen);
        assert!(b.admit("a", Amount::new(4, 1)) && !b.admit("b", Amount::new(1, 1)));
        b.crowd_in("b");
        plant.apply(&b.plan(&seen).unwrap());
        assert_eq!((plant.cores("a"), plant.cores("b")), (0.5, 0.5));
        assert!(b.shrink("a", Amount::new(3, 0)));
        plant.apply(&b.plan(&plant.observe()).unwrap());
        assert_eq!((plant.cores("a"), plant.cores("b")), (0.25, 0.25));
    }

    proptest! {
        // A fixed seed: the same cases every time.
        #![proptest_config(ProptestConfig {
            cases: 1000,
            failure_persistence: None,
            rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
            ..ProptestConfig::default()
        })]

        /// Whoever comes and goes, whatever a policy does to its books, and if it is started anew and waits before it places those
        /// that it could not take over: there is a plan, and no server refuses it.
        #[test]
        fn no_plan_is_ever_refused(
            // Quotas are scarce where there is one CPU.
            (cores, ways, core_step) in (prop_oneof![1..3u32, 1..9u32], 0..5u32, prop_oneof![Just(1.0), Just(0.25), Just(0.1)]),
            acts in prop::collection::vec((0..9u8, 0..8usize, 0..8usize, (0..5u32, 0..3u32)), 1..60),
        ) {
            let p = Platform { core_step, ..Platform::regular("t", cores, 1, ways, 2.0) };
            let (mut plant, mut b) = (Plant::new(&p), Books::new(&p));
            for (what, who, other, amount) in acts {
                let ids = ["a", "b", "c", "d", "e", "f", "x", "y"];
                let (id, other, amount) = (ids[who], ids[other], Amount::new(amount.0, amount.1));
                let here = plant.tenants.iter().any(|t| t.id == id);
                match what {
                    0..=2 if !here => plant.add(id, if id < "x" { Kind::Lc { qos_target_ms: 5.0 } } else { Kind::Be }, 1.0),
                    0 => plant.tenants.retain(|t| t.id != id),
                    3 => drop(b.grow(id, amount)),
                    4 => drop(b.shrink(id, amount)),
                    5 => drop(b.set(id, amount)),
                    6 => drop(b.share(id, other, amount)),
                    7 => drop(b.unshare(id, other < "d")),
                    8 => b = Books::new(&p),
                    _ => {}
                }
                let seen = plant.observe();
                let arrived = b.follow(&seen).lc_arrived;
                for id in arrived.iter().filter(|_| what != 8) {
                    if !b.admit(id, b.least().plus(amount)) {
                        b.crowd_in(id);
                    }
                }
                let plan = b.plan(&seen);
                prop_assert!(plan.is_ok(), "{:?}", plan);
                plant.apply(&plan.unwrap());
                // Everybody has been asked, and nobody is a guest: everybody holds what the books say.
                let no_guests = b.crowd.is_empty() && b.be_lacks().is_zero();
                if no_guests && seen.lc().all(|s| b.slot(&s.id).is_some()) {
                    for s in b.slots() {
                        prop_assert!((plant.cores(&s.id) - p.cores(b.usable(&s.id).cores)).abs() < 1e-9, "{:?}", s);
                    }
                }
            }
        }
    }
}
