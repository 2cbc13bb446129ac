//! Algorithm 3 of the OSML+ paper, lines 1 to 11: resources for one service from BE jobs, then from neighbours as Model-B allows.
//!
//! The best fit itself (line 10) is in [`crate::deprive`], sharing (line 13) in [`super::share`]. Not in the paper: the least that a
//! service must have is taken from the best-off where Model-B gives no leave.

use super::*;
use crate::books::qos_by_thumb;
use crate::deprive::{best_fit, Donor, Offer};
use surefoot_server::Text;

/// Busy share of the cores left to who misses its target: below it what it loses stood idle.
const IDLE_SHARE: f64 = 0.4;
/// What is of no use is dearer than nothing, and cheaper than all that is used: a share of QoS, as a slowdown.
const PRICE_OF_USELESS: f64 = 0.02;

/// Ways that Model-B sees next to no use of may go from who misses its target, unless it is slow: the share of QoS there that must be left.
const USELESS_SHARE: f64 = 0.98;

/// Whether it misses its target, and so can lose only what it has no use of: cores that it leaves idle, ways without which Model-B
/// expects no less.
fn misses(s: &ServiceView) -> bool {
    s.qos().is_some_and(|q| q < 1.0)
}

impl OsmlPlus {
    /// Give `more` to a service: from what is free (idle, BE jobs), else by depriving LC services.
    pub(super) fn obtain(&mut self, now_ms: u64, id: &str, more: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let lack = more.minus(self.books.free());
        if !lack.is_zero() && !self.deprive_for(now_ms, id, lack, seen, plan) {
            return false;
        }
        if self.books.grow(id, more) {
            self.changed(now_ms, id);
            return true;
        }
        false
    }

    pub(super) fn could_deprive(&self, whom: &str, lack: Amount, seen: &Observation) -> bool {
        lack.is_zero() || {
            let donors: Vec<Donor> = seen.lc().filter(|s| s.id != whom).map(|s| self.donor(s, lack)).collect();
            best_fit(&donors, lack).is_some()
        }
    }

    /// Deprive at most three LC services of exactly `lack`. False (and nothing changed) if there is no allowable solution.
    pub(super) fn deprive_for(&mut self, now_ms: u64, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let donors: Vec<Donor> = seen.lc().filter(|s| s.id != whom).map(|s| self.donor(s, lack)).filter(|d| !d.offers.is_empty()).collect();
        let Some(solution) = best_fit(&donors, lack) else { return false };
        let p = self.books.platform.clone();
        let others: Vec<(ServiceId, Text)> = seen
            .lc()
            .filter(|s| s.id != whom)
            .map(|s| match (solution.iter().find(|g| g.0 == s.id), donors.iter().any(|d| d.id == s.id)) {
                (Some((_, offer)), _) => (s.id.clone(), format!("it gives {} too", words(offer.amount, &p)).into()),
                (None, true) => (s.id.clone(), "it would lose more QoS, or one service more would be disturbed".into()),
                (None, false) => (s.id.clone(), self.why_it_gives_nothing(s, lack)),
            })
            .collect();
        for (id, offer) in solution {
            let mut because = seen.get(&id).map_or_else(Because::default, |s| self.because(s, Self::keeps(s)));
            let what = words(offer.amount, &p);
            let useless_only = seen.get(&id).is_some_and(misses);
            let why = if useless_only && offer.amount.ways > 0 {
                because.reject("Model-B's QoS as it is", "the target is missed; what counts is that it is as high on less");
                because.say("measured", "QoS as it is", offer.qos, "");
                let held = self.books.usable(&id);
                let on = |a| seen.get(&id).map_or(f64::NAN, |s| self.b(s, a).unwrap_or(f64::NAN));
                because.say("Model-B", "QoS with it", on(held), "");
                because.say("Model-B", format!("QoS without {what}"), on(held.minus(offer.amount)), "");
                format!("{what} to {whom}; Model-B: of no use, QoS {:.2} as it is", offer.qos)
            } else if useless_only {
                because.reject("Model-B", "it is not asked: the target is missed as it is, and not for want of the cores that stand idle");
                because.say("measured", "QoS as it is", offer.qos, "");
                let busy = self.lives.get(&id).and_then(|l| l.smooth().cpu_usage_cores).unwrap_or(f64::NAN);
                because.say("measured", "busy cores", busy, "cores");
                format!("{what} to {whom}; measured: they are left idle, QoS {:.2} as it is", offer.qos)
            } else {
                let by = seen.get(&id).map_or("Model-B", |s| self.says_qos(&mut because, s));
                because.say(by, format!("QoS without {what}"), offer.qos, "");
                because.say(by, "slowdown", 100.0 * offer.slowdown, "%");
                format!("{what} to {whom}; {by}: QoS {:.2} left", offer.qos)
            };
            because.predict(offer.qos, self.models.qos_cap());
            for (other, why) in others.iter().filter(|o| o.0 != id) {
                because.reject(format!("from {other}"), why.clone());
            }
            let keeps = if useless_only { "what it has use of".into() } else { format!("QoS {}", self.set.neighbour_qos) };
            because.bind(format!("{whom} lacks {} of what is free; a neighbour keeps {keeps}", words(lack, &p)));
            self.books.shrink(&id, offer.amount);
            // Who misses its target anyway loses only what it does not use: nothing to watch for.
            if seen.get(&id).is_some_and(|s| s.qos_met() == Some(true)) {
                self.watch(now_ms, &id, offer.amount, None, Some(whom.into()));
            } else {
                self.changed(now_ms, &id);
            }
            act(plan, &id, ActionKind::Deprive, why, because);
            if !useless_only {
                plan.reports.push(Report::ExpectedSlowdown { service: id, qos: offer.qos });
            }
        }
        true
    }

    /// What a neighbour can be deprived of with an allowable QoS.
    fn donor(&self, s: &ServiceView, need: Amount) -> Donor {
        let mut donor = Donor { id: s.id.clone(), offers: vec![] };
        let Some(life) = self.lives.get(&s.id) else { return donor };
        // Unknown, still watched or new: nothing.
        let (Some(qos), None, false) = (s.qos(), &life.watch, life.asleep()) else { return donor };
        let has = self.books.usable(&s.id);
        let limit = need.at_most(self.books.spare(&s.id)).at_most(has.minus(life.floor));
        let busy = life.smooth().cpu_usage_cores;
        if misses(s) {
            // Its target is missed, but not for want of cores: those that it leaves idle it will not miss.
            for cores in 1..=limit.cores {
                let left = self.cores(has.minus(Amount::new(cores, 0)));
                if busy.is_some_and(|b| b / left < IDLE_SHARE) {
                    donor.offers.push(Offer { amount: Amount::new(cores, 0), qos, slowdown: PRICE_OF_USELESS });
                }
            }
            // A slow service works off a queue that Model-B does not see: without its ways that will grow, and tell seconds later.
            if let Some(now) = self.b(s, has).ok().filter(|_| !is_slow(s)) {
                for ways in 1..=limit.ways {
                    let amount = Amount::new(0, ways);
                    if self.b(s, has.minus(amount)).is_ok_and(|q| q >= USELESS_SHARE * now) {
                        donor.offers.push(Offer { amount, qos, slowdown: PRICE_OF_USELESS });
                    }
                }
            }
            return donor;
        }
        for cores in 0..=limit.cores {
            let left = self.cores(has.minus(Amount::new(cores, 0)));
            if cores > 0 && busy.is_some_and(|b| b / left > self.set.busy) {
                break;
            }
            for ways in 0..=limit.ways {
                let amount = Amount::new(cores, ways);
                if amount.is_zero() {
                    continue;
                }
                let Some((_, predicted)) = self.qos_on_less(s, has.minus(amount)) else { return donor };
                if predicted < self.set.neighbour_qos {
                    break;
                }
                donor.offers.push(Offer { amount, qos: predicted, slowdown: (1.0 - predicted / qos).clamp(0.0, 1.0) });
            }
        }
        donor
    }

    /// Units from the services with most QoS to spare, whatever Model-B says; unknown latency gives nothing.
    pub(super) fn take_from_best_off(&mut self, now_ms: u64, whom: &str, mut lack: Amount, seen: &Observation, plan: &mut Plan) {
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            while !unit.at_most(lack).is_zero() {
                let spare = |s: &&ServiceView| s.id != whom && unit.fits_in(self.books.spare(&s.id)) && s.qos().is_some();
                let best = seen.lc().filter(spare).max_by(|a, b| a.qos().partial_cmp(&b.qos()).expect("known, not NaN"));
                let Some(id) = best.map(|s| s.id.clone()) else { break };
                let mut because = seen.get(&id).map_or_else(Because::default, |s| self.because(s, Self::keeps(s)));
                for s in seen.lc().filter(|s| s.id != id && s.id != whom) {
                    let why: Text = match s.qos() {
                        None => "its latency is unknown".into(),
                        Some(_) if !unit.fits_in(self.books.spare(&s.id)) => "it holds the least already".into(),
                        Some(q) => format!("QoS {q:.2}: it has less to spare").into(),
                    };
                    because.reject(format!("from {}", s.id), why);
                }
                because.bind(format!("{whom} lacks {} of the least", words(lack, &self.books.platform)));
                self.books.shrink(&id, unit);
                self.changed(now_ms, &id);
                act(plan, &id, ActionKind::Deprive, format!("best off: {} to {whom}", words(unit, &self.books.platform)), because);
                lack = lack.minus(unit);
            }
        }
    }

    /// Where no model can say what a neighbour would lose, nobody is known to need more than an equal share: those who hold most beyond
    /// it give of that; unknown latency gives nothing.
    pub(super) fn take_beyond_share(&mut self, now_ms: u64, whom: &str, lack: Amount, share: Amount, seen: &Observation, plan: &mut Plan) {
        let mut given: BTreeMap<ServiceId, Amount> = BTreeMap::new();
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            let of = |a: Amount| if unit.cores > 0 { a.cores } else { a.ways };
            for _ in 0..of(lack) {
                let beyond = |s: &&ServiceView| of(self.books.slot(&s.id).map_or(Amount::default(), |x| x.own).minus(share));
                let gives = |s: &&ServiceView| s.id != whom && s.qos().is_some() && beyond(s) > 0 && unit.fits_in(self.books.spare(&s.id));
                let Some(id) = seen.lc().filter(gives).max_by_key(beyond).map(|s| s.id.clone()) else { break };
                self.books.shrink(&id, unit);
                let all = given.entry(id).or_default();
                *all = all.plus(unit);
            }
        }
        for (id, amount) in given {
            let mut because = self.because_of(seen, &id, HoldsIf::NotJudged);
            because.reject("Model-B", "it has no answer; a rule of thumb stands in");
            because.bind(format!("an equal share is {}, and {whom} is new", words(share, &self.books.platform)));
            self.changed(now_ms, &id);
            let left = self.books.slot(&id).map_or(Amount::default(), |s| s.own);
            if let Some(qos) = seen.get(&id).and_then(ServiceView::qos) {
                let qos = qos_by_thumb(qos, left.plus(amount), left);
                plan.reports.push(Report::ExpectedSlowdown { service: id.clone(), qos });
            }
            let what = words(amount, &self.books.platform);
            act(plan, &id, ActionKind::Deprive, format!("more than an equal share: {what} to {whom}"), because);
        }
    }
}
