//! Policies in the shadow of the one that acts: they decide on the same observations, and nothing of it is done.
//!
//! How far apart they are from the acting one is their *disagreement*: cores and ways that an LC service would hold otherwise. What
//! the acting one loses by not doing as they say is the *regret*, as Model-B sees it (nobody can see what was not done): QoS, capped
//! at 1, that is predicted on what a shadow would give less what is there now, summed over LC services, losses too; what several hold is
//! divided among them. And the cores that BE jobs would hold on top.
//!
//! A shadow's own steps never come true, so it would soon decide for a server that there is not. Every [`RENEW_MS`] it begins anew
//! from what is in force: its opinion is always on the next few seconds from here.

use crate::models::{Models, State};
use crate::remote::asked::Asked;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{Allocation, Change, Observation, Plan, ServiceId};

/// A shadow begins anew from what is in force after so long.
pub const RENEW_MS: u64 = 10_000;

/// A new policy of one kind, as often as it is asked for.
pub type Maker = Box<dyn FnMut() -> Result<Box<dyn Policy>, String>>;

/// What one shadow says of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Opinion {
    /// Whether it would take a step now ([`Plan::is_step`]).
    pub step: bool,
    /// Cores and ways, summed over LC services, by which what it wants differs from what is in force.
    pub cores: f64,
    pub ways: f64,
    /// Regret in QoS: 0 where the shadow's plan is no better by Model-B's word; None without a Model-B, or where it has no answer.
    pub regret_qos: Option<f64>,
    /// Cores that BE jobs would hold on top of what they hold; negative: fewer.
    pub be_cores: f64,
}

struct Shadow {
    name: String,
    make: Maker,
    policy: Box<dyn Policy>,
    since_ms: Option<u64>,
    wants: BTreeMap<ServiceId, Change>,
}

/// All shadows of one node.
pub struct Shadows {
    all: Vec<Shadow>,
    judge: Option<Box<dyn Models>>,
}

impl Shadows {
    /// `judge`: whose Model-B says what would have been.
    ///
    /// # Errors
    /// What a maker says.
    pub fn new(makers: Vec<(String, Maker)>, judge: Option<Box<dyn Models>>) -> Result<Self, String> {
        let one = |(name, mut make): (String, Maker)| Ok(Shadow { policy: make()?, name, make, since_ms: None, wants: BTreeMap::new() });
        Ok(Shadows { all: makers.into_iter().map(one).collect::<Result<_, String>>()?, judge })
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What became of the questions to those that another process decides for, by name.
    pub fn asked(&self) -> impl Iterator<Item = (&str, Asked)> {
        self.all.iter().filter_map(|s| Some((s.name.as_str(), s.policy.asked()?)))
    }

    /// Ask everybody. Names and opinions in the order in which the shadows were given, with the plans as they were made.
    ///
    /// # Errors
    /// What a maker says; it said nothing of the kind before.
    pub fn step(&mut self, now_ms: u64, seen: &Observation) -> Result<Vec<(&str, Opinion, Plan)>, String> {
        let judge = self.judge.as_deref();
        let mut out = vec![];
        // The upper scheduler was asked by the acting policy: to a shadow it says nothing, and what a shadow would ask for is taken as allowed.
        let alone = seen.words.is_some().then(|| Observation { words: None, ..seen.clone() });
        let seen = alone.as_ref().unwrap_or(seen);
        for shadow in &mut self.all {
            if *shadow.since_ms.get_or_insert(now_ms) + RENEW_MS <= now_ms {
                shadow.policy = (shadow.make)()?;
                shadow.since_ms = Some(now_ms);
                shadow.wants.clear();
            }
            let plan = shadow.policy.step(now_ms, seen);
            shadow.policy.between();
            shadow.wants.retain(|id, _| seen.get(id).is_some());
            for (id, change) in &plan.changes {
                let wanted = shadow.wants.remove(id).unwrap_or_default();
                shadow.wants.insert(id.clone(), wanted.and(change.clone()));
            }
            let wants = Plan { changes: shadow.wants.clone(), ..Plan::default() }.allocations(seen);
            out.push((shadow.name.as_str(), opinion(seen, &wants, &plan, judge), plan));
        }
        Ok(out)
    }
}

fn opinion(seen: &Observation, wants: &BTreeMap<ServiceId, Allocation>, plan: &Plan, judge: Option<&dyn Models>) -> Opinion {
    let mut o = Opinion { step: plan.is_step(), regret_qos: judge.map(|_| 0.0), ..Opinion::default() };
    let cores = |a: &Allocation| a.cores();
    let all: Vec<&Allocation> = seen.services.iter().map(|s| wants.get(&s.id).unwrap_or(&s.allocation)).collect();
    for (s, &wanted) in seen.services.iter().zip(&all).filter(|(s, _)| s.is_lc()) {
        let differs = wanted != &s.allocation;
        o.cores += (cores(wanted) - cores(&s.allocation)).abs();
        o.ways += (wanted.n_ways() - s.allocation.n_ways()).abs();
        let (Some(qos), Some(judge), true) = (s.qos(), judge, differs) else { continue };
        let (cores, ways) = own_part(wanted, &all);
        let there = judge.qos(&s.service, &State::of(s), cores, ways).ok().filter(|q| q.is_finite());
        o.regret_qos = o.regret_qos.zip(there).map(|(sum, q)| sum + q.min(1.0) - qos.min(1.0));
    }
    o.regret_qos = o.regret_qos.map(|sum| sum.max(0.0));
    // BE jobs hold together what they hold.
    let be = |of: &dyn Fn(&ServiceId, &Allocation) -> f64| seen.be().map(|s| of(&s.id, &s.allocation)).fold(0.0, f64::max);
    o.be_cores = be(&|id, a| wants.get(id).map_or(a.cores(), Allocation::cores)) - be(&|_, a| a.cores());
    o
}

/// Cores and ways of an allocation, which is one of all; of what several services hold, equal parts.
fn own_part(a: &Allocation, all: &[&Allocation]) -> (f64, f64) {
    let part = |holds: &dyn Fn(&Allocation) -> bool| 1.0 / all.iter().filter(|o| holds(o)).count() as f64;
    let cpus: f64 = a.cpus.iter().map(|cpu| part(&|o| o.cpus.contains(cpu))).sum();
    let of_domain = |(i, mask): (usize, &u32)| -> f64 {
        let holds = |o: &Allocation, way: u32| o.ways.get(i).is_some_and(|m| m >> way & 1 == 1);
        (0..32).filter(|way| mask >> way & 1 == 1).map(|way| part(&|o| holds(o, way))).sum()
    };
    let ways: f64 = a.ways.iter().enumerate().map(of_domain).sum();
    let whole = f64::from(a.cpus.len().max(1));
    (a.cores() * cpus / whole, ways / a.ways.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perfect::Perfect;
    use crate::testing::Plant;
    use crate::{by_name, ModelSet};
    use surefoot_server::{CpuSet, Platform};

    fn models_of(plant: &Plant) -> ModelSet {
        ModelSet { plus: Some(Box::new(Perfect::of(plant))), osml: None }
    }

    fn shadows(p: &Platform, plant: &Plant, names: &[&str]) -> Shadows {
        let maker = |name: &&str| {
            let (name, p, twin) = (name.to_string(), p.clone(), plant.twin());
            let make: Maker = {
                let name = name.clone();
                Box::new(move || by_name(&name, &p, models_of(&twin), 1))
            };
            (name, make)
        };
        Shadows::new(names.iter().map(maker).collect(), Some(Box::new(Perfect::of(plant)))).unwrap()
    }

    /// A server left to itself: who would partition it disagrees, and by Model-B's word the starved service would be better off.
    #[test]
    fn shadows_disagree_with_neglect_and_regret_it() {
        let p = Platform::regular("t", 16, 1, 11, 2.0);
        let mut plant = Plant::new(&p).lc("a", 5.0, 10.0).lc("b", 5.0, 10.0).be("x");
        let mut all = shadows(&p, &plant, &["unmanaged", "surefoot"]);
        let mut acting = by_name("unmanaged", &p, ModelSet::default(), 1).unwrap();
        let (mut worst, mut cores) = (0.0f64, 0.0f64);
        for _ in 0..30 {
            plant.tick();
            let seen = plant.observe();
            let said = all.step(plant.t_ms, &seen).unwrap();
            assert_eq!((said[0].1.cores, said[0].1.ways), (0.0, 0.0), "the same policy agrees with itself");
            worst = worst.max(said[1].1.regret_qos.unwrap());
            cores = cores.max(said[1].1.cores);
            plant.apply(&acting.step(plant.t_ms, &seen));
        }
        assert!(worst > 0.3 && cores >= 4.0, "{worst} {cores}");
    }

    /// Who would let everybody have everything gives nobody more: each has its part of it. And what one would lose counts against what
    /// another would gain.
    #[test]
    fn sharing_everything_is_no_gain() {
        let p = Platform::regular("t", 16, 1, 11, 2.0);
        let mut plant = Plant::new(&p).lc("a", 9.0, 10.0).lc("b", 9.0, 10.0).be("x");
        let mut all = shadows(&p, &plant, &["unmanaged", "equal-share"]);
        let mut acting = by_name("surefoot", &p, models_of(&plant), 1).unwrap();
        let mut regret = [0.0f64; 2];
        for t in 0..100 {
            plant.tick();
            let seen = plant.observe();
            for (sum, (_, o, _)) in regret.iter_mut().zip(all.step(plant.t_ms, &seen).unwrap()) {
                *sum += if t > 50 { o.regret_qos.unwrap() } else { 0.0 };
            }
            plant.apply(&acting.step(plant.t_ms, &seen));
        }
        assert!(!plant.all_met());
        assert_eq!(regret, [0.0; 2]);
        let hold = |lo, hi, ways| Allocation { cpus: CpuSet::range(lo, hi), ways: vec![ways], ..Allocation::everything(&p) };
        let two = [hold(0, 8, 0b1111), hold(4, 12, 0b0110)];
        assert_eq!(two.each_ref().map(|a| own_part(a, &two.each_ref())), [(6.0, 3.0), (6.0, 1.0)]);
    }

    /// A shadow begins anew from what is in force, and its steps are never applied.
    #[test]
    fn a_shadow_is_renewed() {
        let p = Platform::regular("t", 16, 1, 11, 2.0);
        let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
        let mut all = shadows(&p, &plant, &["parties"]);
        let mut acting = by_name("surefoot", &p, models_of(&plant), 1).unwrap();
        let mut apart = vec![];
        for _ in 0..400 {
            plant.tick();
            let seen = plant.observe();
            apart.push(all.step(plant.t_ms, &seen).unwrap()[0].1.cores);
            plant.apply(&acting.step(plant.t_ms, &seen));
        }
        // PARTIES walks on by itself for ten seconds, and is brought back then.
        let back = apart.windows(2).filter(|w| w[0] > 1.0 && w[1] == 0.0).count();
        assert!(back >= 2, "{apart:?}");
    }
}
