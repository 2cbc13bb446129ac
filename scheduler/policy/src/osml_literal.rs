//! The steps of the OSML+ paper (2025) and nothing else: Algorithms 1 to 3 as they are printed, with the same models as [`crate::osml_plus`].
//!
//! What control adds there is left out here, so that a comparison says what it is worth. Line numbers are the paper's.
//!
//! * **Algorithm 1**: a newcomer is mapped on what is idle (line 2), Model-A is asked (3, 4), its OAA is given from what is idle (5, 6); what is lacking of
//!   it comes by Algorithm 3 (8, 9), and where that fails the RCliff is the alternative (6). BE jobs share what LC services do not use (12 to 17).
//! * **Algorithm 2**, every step, for each service that misses its target or holds more than its OAA (Sec. 3.3): the likeliest of Model-C's seven actions is
//!   conducted (4 to 10), whatever it is. What was taken is withdrawn where its service misses its target within the second that judges it (11).
//! * **Algorithm 3**: from BE jobs (2, 3), else from at most three neighbours of which Model-B predicts that they go on meeting their targets (5 to 11),
//!   else the neighbour with the least slowdown shares (13), as far as the upper scheduler's standing answer allows.
//! * **Model-C** learns after each step in which it was asked. Its pool keeps the probabilities that the actor gave, not the action that came of them.
//!
//! Ours, because the paper is silent: how long a newcomer is watched, the noise of exploration, and the standing answer are those of [`crate::osml_plus`];
//! of several newcomers each has an equal part of what is idle; with nothing idle, neighbours give the least by Algorithm 3.

use crate::books::{Amount, Books};
use crate::deprive::{best_fit, Donor, Offer};
use crate::models::{Experience, Models, State};
use crate::osml_plus::{act, doubtful, is_slow, words, Settings, CORES_DOWN, CORES_UP, IDLE, MBA_DOWN, MBA_UP, WAYS_DOWN, WAYS_UP};
use crate::pace::Pace;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_learn::rng::Rng;
use surefoot_learn::ACTIONS;
use surefoot_server::{ActionKind, Because, HoldsIf, Observation, Plan, Platform, Question, Report, ServiceId, ServiceView};

/// What was taken is watched for the window by which QoS is judged.
const WATCH_MS: u64 = 1000;
/// QoS that Model-B must predict for a neighbour that gives: its target is met.
const ALLOWED_QOS: f64 = 1.0;
const ACTION_NAMES: [&str; ACTIONS] =
    ["cores up", "cores down", "ways up", "ways down", "memory bandwidth up", "memory bandwidth down", "idle"];

/// What is remembered of one LC service.
#[derive(Clone, Debug, Default)]
struct Life {
    sampled_since_ms: Option<u64>,
    oaa: Option<Amount>,
    /// Until when, and what it lost.
    watch: Option<(u64, Amount, Option<u8>)>,
    reported: bool,
}

/// An action of Model-C that waits for its reward.
struct Pending {
    id: ServiceId,
    before: State,
    action: usize,
    vector: [f32; ACTIONS],
    predicted_met: bool,
}

/// The policy.
pub struct OsmlLiteral {
    set: Settings,
    models: Box<dyn Models>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    pending: Vec<Pending>,
    rng: Rng,
    to_learn: bool,
}

impl OsmlLiteral {
    pub fn new(platform: &Platform, models: Box<dyn Models>, settings: Settings, seed: u64) -> Self {
        OsmlLiteral {
            set: settings,
            models,
            books: Books::new(platform),
            lives: BTreeMap::new(),
            pending: vec![],
            rng: Rng::new(seed),
            to_learn: false,
        }
    }

    fn b(&self, s: &ServiceView, a: Amount) -> Option<f64> {
        let q = self.models.qos(&s.service, &State::of(s), self.books.platform.cores(a.cores), f64::from(a.ways));
        q.ok().filter(|q| q.is_finite())
    }

    fn words(&self, a: Amount) -> String {
        words(a, &self.books.platform)
    }

    /// What a step rests on, with Model-B on what is held and on what would be.
    fn because(&self, s: &ServiceView, to: Amount, holds_if: HoldsIf) -> Because {
        let mut b = Because::seen(s).expect(holds_if);
        let has = self.books.usable(&s.id);
        match (self.b(s, has), self.b(s, to)) {
            (Some(now), Some(then)) => {
                b.say("Model-B", format!("QoS on {}, as it is", self.words(has)), now, "");
                b.say("Model-B", format!("QoS on {}", self.words(to)), then, "");
                b.predict(then, self.models.qos_cap());
            }
            _ => b.reject("Model-B", "has no answer"),
        }
        b
    }

    /// Algorithm 2, line 11.
    fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let Some((until_ms, lost, mba_pct)) = life.watch else { continue };
            if s.qos_met() != Some(false) {
                life.watch = life.watch.filter(|_| now_ms < until_ms);
                continue;
            }
            life.watch = None;
            let back = lost.at_most(self.books.free());
            if !back.is_zero() {
                self.books.grow(&s.id, back);
            }
            if let Some(pct) = mba_pct {
                self.books.set_mba(&s.id, pct);
            }
            let mut because = self.because(s, self.books.usable(&s.id), HoldsIf::P99Falls);
            because.bind("Algorithm 2, line 11: withdrawn if the QoS is violated");
            act(plan, &s.id, ActionKind::Rollback, format!("QoS violated after the loss: {} back", self.words(back)), because);
        }
    }

    /// Algorithm 1, line 2.
    fn map_on_idle(&mut self, now_ms: u64, seen: &Observation, arrived: &[ServiceId], plan: &mut Plan) {
        for (i, id) in arrived.iter().enumerate() {
            let least = self.books.least();
            let lack = least.minus(self.books.free());
            if !lack.is_zero() {
                self.ask_neighbours(now_ms, id, lack, seen, plan);
            }
            let (left, free) = ((arrived.len() - i) as u32, self.books.free());
            let part = Amount::new(free.cores / left, free.ways / left).at_least(least);
            if self.books.admit(id, part) {
                self.lives.insert(id.clone(), Life { sampled_since_ms: Some(now_ms), ..Life::default() });
                let mut because = seen.get(id).map_or_else(Because::default, Because::seen).expect(HoldsIf::NotJudged);
                because.bind("Algorithm 1, line 2: a newcomer is mapped on what is idle");
                act(plan, id, ActionKind::Place, format!("new: on idle resources, {}", self.words(part)), because);
            } else if !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// Algorithm 1, lines 3 to 10.
    fn place(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for s in seen.lc() {
            let Some(since_ms) = self.lives.get(&s.id).and_then(|l| l.sampled_since_ms) else { continue };
            let wait_ms = if is_slow(s) { self.set.sample_slow_ms } else { self.set.sample_ms };
            if now_ms < since_ms + wait_ms || s.latency_unknown() {
                continue;
            }
            let life = self.lives.entry(s.id.clone()).or_default();
            life.sampled_since_ms = None;
            // Without an answer it keeps what was idle.
            let Ok(area) = self.models.area(&s.service, &State::of(s)) else { continue };
            let p = &self.books.platform;
            let (least, total) = (self.books.least(), self.books.total());
            let units = |cores: f64| (cores / p.core_step).round().clamp(1.0, f64::from(total.cores)) as u32;
            let ways = |w: Option<f64>| w.map_or(0, |w| w.round().clamp(0.0, f64::from(total.ways)) as u32);
            let oaa = Amount::new(units(area.oaa_cores), ways(area.oaa_ways)).at_least(least).at_most(total);
            let rcliff = Amount::new(units(area.rcliff_cores), ways(area.rcliff_ways)).at_least(least).at_most(oaa);
            life.oaa = Some(oaa);
            let held = self.books.usable(&s.id);
            let lack = oaa.minus(held.plus(self.books.free()));
            let mut because = self.because(s, oaa, HoldsIf::Qos { at_least: 1.0 });
            because.say("Model-A", "cores of the OAA", area.oaa_cores, "cores");
            because.say("Model-A", "ways of the OAA", area.oaa_ways.unwrap_or(0.0), "ways");
            let fits = lack.is_zero() || self.ask_neighbours(now_ms, &s.id, lack, seen, plan);
            let held = self.books.usable(&s.id);
            // What is shared counts as held.
            let own = |all: Amount| all.minus(held.minus(self.books.slot(&s.id).map_or(held, |x| x.own)));
            let room = held.plus(self.books.free());
            let to = match () {
                () if fits => oaa,
                () if rcliff.fits_in(room) => rcliff,
                () => oaa.at_most(room),
            };
            let own = own(to).at_least(least);
            if !fits {
                because.reject("its OAA", "neither idle resources nor neighbours have it");
                because.bind(if to == rcliff { "line 6: the RCliff is the alternative" } else { "what is idle" });
            }
            if !rcliff.fits_in(to) {
                let why = format!("{} wanted, {} got", self.words(oaa), self.words(to));
                plan.reports.push(Report::CannotPlace { service: s.id.clone(), why });
            }
            self.books.set(&s.id, own);
            act(plan, &s.id, ActionKind::Place, format!("Model-A: OAA {}: {}", self.words(oaa), self.words(to)), because);
        }
    }

    /// Algorithm 3, lines 5 to 14: what neither idle resources nor BE jobs have. False, and nothing changed, if nobody has it.
    fn ask_neighbours(&mut self, now_ms: u64, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let donors: Vec<Donor> = seen.lc().filter(|s| s.id != whom).map(|s| self.donor(s, lack)).filter(|d| !d.offers.is_empty()).collect();
        let Some(solution) = best_fit(&donors, lack) else { return self.share(whom, lack, seen, plan) };
        for (id, offer) in solution {
            let Some(s) = seen.get(&id) else { continue };
            let has = self.books.usable(&id);
            let mut because = self.because(s, has.minus(offer.amount), HoldsIf::Qos { at_least: ALLOWED_QOS });
            because.bind(format!(
                "{whom} lacks {} of what is idle; at most three neighbours that go on meeting their targets",
                self.words(lack)
            ));
            self.books.shrink(&id, offer.amount);
            if let Some(life) = self.lives.get_mut(&id) {
                life.watch = Some((now_ms + WATCH_MS, offer.amount, None));
            }
            act(
                plan,
                &id,
                ActionKind::Deprive,
                format!("{} to {whom}; Model-B: QoS {:.2} left", self.words(offer.amount), offer.qos),
                because,
            );
            plan.reports.push(Report::ExpectedSlowdown { service: id, qos: offer.qos });
        }
        true
    }

    /// Lines 7 and 8: all that a neighbour can be deprived of with an allowable QoS.
    fn donor(&self, s: &ServiceView, need: Amount) -> Donor {
        let mut donor = Donor { id: s.id.clone(), offers: vec![] };
        let asleep = self.lives.get(&s.id).is_none_or(|l| l.sampled_since_ms.is_some());
        let (Some(qos), false) = (s.qos(), asleep) else { return donor };
        let has = self.books.usable(&s.id);
        let limit = need.at_most(self.books.spare(&s.id));
        for cores in 0..=limit.cores {
            for ways in 0..=limit.ways {
                let amount = Amount::new(cores, ways);
                let Some(then) = self.b(s, has.minus(amount)).filter(|q| !amount.is_zero() && *q >= ALLOWED_QOS) else { continue };
                donor.offers.push(Offer { amount, qos: then, slowdown: (1.0 - then / qos.max(1e-9)).clamp(0.0, 1.0) });
            }
        }
        donor
    }

    /// Line 13.
    fn share(&mut self, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let lack = Amount::new(if self.books.platform.by_quota() { 0 } else { lack.cores }, lack.ways);
        if lack.is_zero() || self.books.slot(whom).is_none() || self.books.common_of(whom).is_some() {
            return false;
        }
        // Two users of one CPU or way have about half of it each.
        let half = Amount::new(lack.cores.div_ceil(2), lack.ways.div_ceil(2));
        let able = |s: &&ServiceView| {
            s.id != whom
                && !seen.denied(whom, &s.id)
                && s.qos().is_some()
                && lack.fits_in(self.books.spare(&s.id))
                && self.books.common_of(&s.id).is_none()
        };
        let after = |s: &ServiceView| self.b(s, self.books.usable(&s.id).minus(half)).filter(|q| *q >= self.set.shared_qos);
        let slowdown = |s: &ServiceView, then: f64| 1.0 - then / s.qos().unwrap_or(1.0).max(1e-9);
        let all = seen.lc().filter(able).filter_map(|s| Some((s, after(s)?)));
        let Some((owner, qos)) = all.min_by(|a, b| slowdown(a.0, a.1).total_cmp(&slowdown(b.0, b.1))) else { return false };
        let mut because = self.because(owner, self.books.usable(&owner.id).minus(half), HoldsIf::Qos { at_least: self.set.shared_qos });
        because.bind("line 13: nobody can be deprived of it; the least slowdown shares");
        let why = format!("{}: line 13: no service can be deprived of it", self.words(lack));
        let question = Question { service: whom.into(), with: owner.id.clone(), qos, why };
        if !plan.may_share(seen, question) || !self.books.share(&owner.id, whom, lack) {
            return false;
        }
        act(plan, &owner.id, ActionKind::Share, format!("{} shared with {whom}", self.words(lack)), because);
        plan.reports.push(Report::ExpectedSlowdown { service: owner.id.clone(), qos });
        true
    }

    /// Algorithm 2 for one service.
    fn adjust(&mut self, now_ms: u64, s: &ServiceView, seen: &Observation, plan: &mut Plan) {
        let state = State::of(s);
        let Ok(said) = self.models.act(&s.service, &state) else { return };
        let noisy = said.map(|p| (p + (self.set.noise * self.rng.normal()) as f32).clamp(0.0, 1.0));
        let has_mba = self.books.platform.mba.is_some();
        let has_ways = self.books.platform.ways() > 0;
        let there = |a: &usize| match *a {
            WAYS_UP | WAYS_DOWN => has_ways,
            MBA_UP | MBA_DOWN => has_mba,
            _ => true,
        };
        let Some(action) = (0..ACTIONS).filter(there).max_by(|a, b| noisy[*a].total_cmp(&noisy[*b])) else { return };
        self.to_learn = true;
        let has = self.books.usable(&s.id);
        let (core, way) = (Amount::new(1, 0), Amount::new(0, 1));
        let to = match action {
            CORES_UP => has.plus(core),
            CORES_DOWN => has.minus(core),
            WAYS_UP => has.plus(way),
            WAYS_DOWN => has.minus(way),
            _ => has,
        };
        let met = s.qos_met() == Some(true);
        let up = matches!(action, CORES_UP | WAYS_UP | MBA_UP);
        let mut because = self.because(s, to, if up { HoldsIf::P99Falls } else { HoldsIf::Qos { at_least: 1.0 } });
        for (name, p) in ACTION_NAMES.iter().zip(noisy) {
            because.say("Model-C", *name, f64::from(p), "");
        }
        because.bind("Algorithm 2, line 4: the likeliest action, whatever it is");
        let predicted_met = self.b(s, to).is_some_and(|q| q >= 1.0);
        let done = match action {
            CORES_UP | WAYS_UP => {
                let unit = to.minus(has);
                let lack = unit.minus(self.books.free());
                let got = to.fits_in(self.books.total()) && (lack.is_zero() || self.ask_neighbours(now_ms, &s.id, lack, seen, plan));
                // What was shared is no unit of its own.
                got && (self.books.grow(&s.id, unit) || self.books.usable(&s.id) != has)
            }
            CORES_DOWN | WAYS_DOWN => {
                let unit = has.minus(to);
                let gave = self.books.shrink(&s.id, unit);
                self.watch(now_ms, &s.id, (unit, None), gave);
                gave
            }
            MBA_UP | MBA_DOWN => {
                let held = self.books.slot(&s.id).map_or(100, |x| x.mba_pct);
                let next = self.books.mba_step(held, action == MBA_UP);
                if let Some(pct) = next {
                    self.books.set_mba(&s.id, pct);
                }
                self.watch(now_ms, &s.id, (Amount::default(), Some(held)), next.is_some() && action == MBA_DOWN);
                next.is_some()
            }
            _ => false,
        };
        if done || action == IDLE {
            self.remember(s, state, action, noisy, predicted_met);
        }
        if done {
            let kind = if up { ActionKind::Grow } else { ActionKind::Shrink };
            let why = format!("QoS {:.2}; Model-C: {}", s.qos().unwrap_or(0.0), ACTION_NAMES[action]);
            act(plan, &s.id, kind, why, because);
        } else if let Some(life) = self.lives.get_mut(&s.id).filter(|l| up && !met && !l.reported && !plan.waits_for_word(&s.id)) {
            life.reported = true;
            let why = format!("QoS {:.2}: neither idle resources nor neighbours have what Model-C wants", s.qos().unwrap_or(0.0));
            plan.reports.push(Report::Migrate { service: s.id.clone(), why });
        }
    }

    fn watch(&mut self, now_ms: u64, id: &str, (lost, mba_pct): (Amount, Option<u8>), gave: bool) {
        if let Some(life) = self.lives.get_mut(id).filter(|_| gave) {
            life.watch = Some((now_ms + WATCH_MS, lost, mba_pct));
        }
    }

    fn remember(&mut self, s: &ServiceView, before: State, action: usize, vector: [f32; ACTIONS], predicted_met: bool) {
        if !doubtful(s) {
            self.pending.push(Pending { id: s.id.clone(), before, action, vector, predicted_met });
        }
    }

    /// Sec. 3.2: the reward of what was done in the step before.
    fn credit(&mut self, seen: &Observation) {
        let known: Vec<f64> = seen.lc().filter(|s| !doubtful(s)).filter_map(ServiceView::qos).collect();
        let (total, rest) = (self.books.total(), self.books.rest());
        let mut unused = vec![f64::from(rest.cores) / f64::from(total.cores.max(1))];
        if total.ways > 0 {
            unused.push(f64::from(rest.ways) / f64::from(total.ways));
        }
        for p in std::mem::take(&mut self.pending) {
            let Some(s) = seen.get(&p.id).filter(|s| s.qos().is_some() && !doubtful(s)) else { continue };
            let reward = if known.iter().any(|q| *q < 1.0) {
                f64::from(u8::from(p.predicted_met)) + known.iter().map(|q| q.min(1.0)).sum::<f64>() / known.len() as f64
            } else {
                2.0 + unused.iter().sum::<f64>() / unused.len() as f64
            };
            self.models.remember(&Experience { before: p.before, action: p.action, vector: Some(p.vector), reward, after: State::of(s) });
        }
    }

    /// The least that BE jobs keep, from whoever holds most; unknown latency gives nothing.
    fn least_for_be(&mut self, seen: &Observation) {
        let lacks = self.books.be_lacks();
        for (unit, mut n) in [(Amount::new(1, 0), lacks.cores), (Amount::new(0, 1), lacks.ways)] {
            while n > 0 {
                let may = |id: &str| seen.get(id).is_some_and(|s| s.qos().is_some());
                let holds = |a: Amount| if unit.cores > 0 { a.cores } else { a.ways };
                let gives = self.books.slots().iter().filter(|s| may(&s.id) && unit.fits_in(self.books.spare(&s.id)));
                let Some(id) = gives.max_by_key(|s| holds(s.own)).map(|s| s.id.clone()) else { break };
                self.books.shrink(&id, unit);
                n -= 1;
            }
        }
    }
}

impl Policy for OsmlLiteral {
    fn name(&self) -> &str {
        "osml-plus-literal"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        Pace::every(interval_ms).map(|_| ())
    }

    fn between(&mut self) -> bool {
        let to_learn = std::mem::take(&mut self.to_learn);
        if to_learn {
            self.models.learn();
        }
        to_learn
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        self.between();
        let mut plan = Plan::default();
        let news = self.books.follow(seen);
        self.lives.retain(|id, _| seen.get(id).is_some());
        // Who was here before this policy, and holds its own.
        for s in seen.lc().filter(|s| self.books.slot(&s.id).is_some()) {
            self.lives.entry(s.id.clone()).or_default().reported &= !s.at_ease();
        }
        self.credit(seen);
        self.withdraw(now_ms, seen, &mut plan);
        self.least_for_be(seen);
        for id in &news.be_arrived {
            let mut because = seen.get(id).map_or_else(Because::default, Because::seen).expect(HoldsIf::NotJudged);
            because.bind("Algorithm 1, lines 12 to 17: what LC services do not use, shared with other BE jobs");
            act(&mut plan, id, ActionKind::Place, "BE: what LC services do not use".into(), because);
        }
        self.map_on_idle(now_ms, seen, &news.lc_arrived, &mut plan);
        self.place(now_ms, seen, &mut plan);
        let mut order: Vec<&ServiceView> = seen
            .lc()
            .filter(|s| self.books.slot(&s.id).is_some() && s.qos().is_some())
            .filter(|s| {
                let Some(life) = self.lives.get(&s.id).filter(|l| l.sampled_since_ms.is_none() && l.watch.is_none()) else { return false };
                let over = life.oaa.is_some_and(|oaa| !self.books.usable(&s.id).minus(oaa).is_zero());
                s.qos_met() == Some(false) || over
            })
            .collect();
        order.sort_by(|a, b| a.qos().partial_cmp(&b.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for s in order {
            self.adjust(now_ms, s, seen, &mut plan);
        }
        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
#[path = "osml_literal_tests.rs"]
mod tests;
