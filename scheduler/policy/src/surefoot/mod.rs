//! Surefoot: one plan for all services, in few steps, and nothing taken that might hurt.
//!
//! Our own policy, on OSML+'s framework (Models A and B, [`Books`], the guard). What it does otherwise than `osml-plus`:
//!
//! * **Joint plans.** Every decision chooses a cell (cores, ways) for all services at once: for each service Model-B gives the
//!   smallest cells with enough predicted QoS ([`Surefoot::choices`]), dynamic programming the cheapest set that fits
//!   ([`joint`]). Cores for one and ways for the other come out by themselves, where one step at a time gets stuck.
//! * **Few changes.** A service jumps; it does not walk. After a disturbance (arrival, leave, load, violation) there are at most
//!   [`Settings::refines`] further plans that take something, then one in [`Settings::calm_every_ms`].
//! * **What was seen counts more than what is predicted** ([`ledger`]): a cell that missed forbids all smaller ones at that load,
//!   one that met vouches for all larger ones.
//! * **Confidence.** Model-B's error on each service is followed; what is taken must be predicted with a margin of so many errors.
//!   A model that is wrong (of another platform, broken) soon predicts nothing that is believed, and nothing is taken any more.
//! * **Prices.** Every core and way has a price, and nearness to the target a price of risk. Without BE jobs resources cost half as much,
//!   and services keep more distance from their cliffs; they are not free, since fewer busy cores clock higher.
//! * **Contended memory.** A service that misses its target on idle cores and a cell that Model-B holds for sufficient is taken to
//!   wait for memory: BE jobs' bandwidth goes down before the service is enlarged. In peace it goes up again in one step to what memory
//!   has room for ([`Surefoot::raise`]); what somebody suffered from is approached by halves.
//! * **Who stands by.** Whatever is taken is felt by those, too, from whom it was not taken: clocks fall, siblings are busy. Services
//!   with busy cores get some of it first ([`Role::Firm`]), and a BE share that hurt somebody is remembered.
//! * **Bursts.** Who was well here at this load may miss its target for three intervals before it gets more.
//! * **Slow services** (a target of a second or more, or too few requests for a p99). A queue of their first seconds stays with them for
//!   minutes, and what they answer now they began long ago. They begin with more, grow as soon as all their cores are busy, and give
//!   nothing before they have been well for ten seconds.
//! * **Spared.** Who was hurt by a loss, or needed more, gives nothing to BE jobs for a while (but to newcomers, to those who miss their
//!   targets, and for the least that BE jobs keep).
//!
//! Model-C is not asked: with joint plans there is no single step to choose. A model that cannot answer is replaced by rules of
//! thumb, and the action says so: who needs gets cores no busier than 60 % or a quarter more of both, QoS is taken to fall with the
//! square of what is left of cores and of ways. Unknown latency neither grows nor shrinks.

mod cells;
pub mod joint;
pub mod ledger;
mod settings;

use crate::books::{qos_by_thumb, Amount, Books};
use crate::models::{Area, Models, State};
use crate::osml_plus::{doubtful, mean, words};
use crate::Policy;
use cells::*;
use joint::{cheapest, Choice};
use ledger::Ledger;
pub use settings::Settings;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use surefoot_server::{
    Action, ActionKind, Because, Features, HoldsIf, Latency, Observation, Plan, Platform, Report, ServiceId, ServiceView, Verdict,
};

/// Intervals over which features are averaged.
const SMOOTH: usize = 5;
/// Change of throughput from one interval to the next that is not noise where requests are many; of few, four standard deviations.
const JUMP: f64 = 0.2;
/// The same, from where nothing is taken until it is known.
const RISE: f64 = 0.06;
/// QoS target from where a service is slow.
const SLOW_MS: f64 = 1000.0;
/// It gives nothing before it has met its target for so long on what it has.
const SLOW_CALM_MS: u64 = 10_000;
/// Share of the peak memory bandwidth above which memory may be what is waited for, and up to which it is filled.
const CONTENDED: f64 = 0.6;
/// Steps of BE bandwidth in one raise where nobody counts what memory carries.
const RAISE_STEPS: usize = 4;
/// Requests over which their rate is averaged, and the length of an interval.
const MEAN_OF: f64 = 400.0;
const INTERVAL_S: f64 = 0.1;
/// Intervals that a service which was well on what it holds may miss its target before it gets more.
const BURST: u32 = 3;
/// The window of latencies, with some time for what was under way.
const WINDOW_MS: u64 = 1200;
/// Between two looks at what could be taken, the first time.
const LOOK_MS: u64 = 250;
/// Between two tries to help a service by giving it less.
const STUCK_MS: u64 = 20_000;
/// Gain in price for which somebody is left short.
const MUCH_BETTER: f64 = 0.5;
/// Risk of a blind cell that is good enough not to ask others.
const ENOUGH: f64 = 2.0;
/// In a plan for others, what it costs to move a service that is well.
const STAY: f64 = 0.5;

/// Something was taken: what was held before, and until when it is given back at the first sign of harm.
#[derive(Clone, Copy, Debug)]
struct Watch {
    until_ms: u64,
    before: Amount,
    /// It went to another service, which needed it: only the loser's own harm counts.
    given: bool,
    /// Until then the window remembers a miss from before.
    window_from_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    mean_ms: f64,
    p99_ms: f64,
}

/// What is remembered of one LC service.
#[derive(Clone, Debug)]
struct Life {
    /// Watched since; None once models have placed it.
    new_since_ms: Option<u64>,
    changed_ms: u64,
    features: VecDeque<Features>,
    points: VecDeque<Point>,
    /// Requests/s, smoothed; and those that the present cell was chosen for.
    rps: f64,
    planned_rps: f64,
    /// Intervals of which that is the mean.
    heard: f64,
    /// Intervals in a row with a p99 above the target (the window's, where an interval has too few requests for one).
    strikes: u32,
    met_since_ms: Option<u64>,
    missed_since_ms: Option<u64>,
    ledger: Ledger,
    /// Model-B's relative error on this service, smoothed; and the QoS that it predicted of the present cell.
    error: f64,
    predicted: Option<f64>,
    watch: Option<Watch>,
    hurts: u32,
    /// Nothing is taken from it just because all is well before this.
    spared_until_ms: u64,
    stuck_until_ms: u64,
    /// Enlargements in a row that were not enough.
    more: u32,
    reported: bool,
    /// It has met its target here for as long as a window is.
    was_well: bool,
}

impl Life {
    fn new(now_ms: u64, first_error: f64) -> Self {
        Life {
            new_since_ms: None,
            changed_ms: now_ms,
            features: VecDeque::new(),
            points: VecDeque::new(),
            rps: 0.0,
            planned_rps: 0.0,
            heard: 0.0,
            strikes: 0,
            met_since_ms: None,
            missed_since_ms: None,
            ledger: Ledger::default(),
            error: first_error,
            predicted: None,
            watch: None,
            hurts: 0,
            spared_until_ms: 0,
            stuck_until_ms: 0,
            more: 0,
            reported: false,
            was_well: false,
        }
    }

    fn is_new(&self) -> bool {
        self.new_since_ms.is_some()
    }
}

/// The BE jobs' memory bandwidth: since when it is what it is, and what was learnt about it.
#[derive(Clone, Copy, Debug, Default)]
struct Bandwidth {
    changed_ms: u64,
    /// How long the next raise waits.
    wait_ms: u64,
    /// The last raise is watched: since when, and what was before.
    raised: Option<(u64, u8)>,
    /// Somebody suffered from so much, per cent.
    bad_pct: Option<u8>,
}

/// The policy.
pub struct Surefoot {
    set: Settings,
    models: Box<dyn Models>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    /// Plans that may still take something, and when the next one may.
    refines: u32,
    refine_ms: u64,
    setbacks: u32,
    /// Looks in a row at what could be taken that found nothing.
    looks: u32,
    /// No plan before that leaves somebody short, and none for who misses its target, after one that brought nothing.
    poor_ms: u64,
    try_ms: u64,
    be_mba: Bandwidth,
    /// What BE jobs held when a service suffered that nothing had been taken from, and until when that counts.
    be_bad: Option<(Amount, u64)>,
}

impl Surefoot {
    pub fn new(platform: &Platform, models: Box<dyn Models>, settings: Settings) -> Self {
        Surefoot {
            set: settings,
            models,
            books: Books::new(platform),
            lives: BTreeMap::new(),
            refines: 0,
            refine_ms: 0,
            setbacks: 0,
            looks: 0,
            poor_ms: 0,
            try_ms: 0,
            be_mba: Bandwidth::default(),
            be_bad: None,
        }
    }

    /// What LC services may hold together.
    fn pool(&self) -> Amount {
        self.books.slots().iter().fold(self.books.free(), |sum, s| sum.plus(s.own))
    }

    fn look(&mut self, now_ms: u64, seen: &Observation) {
        for s in seen.lc() {
            let own = self.books.usable(&s.id);
            let first_error = self.set.first_error;
            let life = self.lives.entry(s.id.clone()).or_insert_with(|| Life::new(now_ms, first_error));
            // After a jump of load what was averaged is of another service.
            let jumped = |l: &Latency| (l.achieved_rps / life.rps - 1.0).abs() > JUMP.max(4.0 / (l.count as f64).sqrt());
            if s.interval.is_some_and(|l| l.count >= 50 && life.rps > 0.0 && jumped(&l)) {
                life.features.clear();
                life.rps = 0.0;
            }
            life.features.push_back(s.features);
            if life.features.len() > SMOOTH {
                life.features.pop_front();
            }
            if let Some(l) = s.interval {
                life.points.push_back(Point { mean_ms: l.mean_ms, p99_ms: l.p99_ms });
                if life.points.len() > SMOOTH {
                    life.points.pop_front();
                }
                // Few requests, much chance: the mean goes back over as many intervals as hold some hundred of them.
                life.heard = if life.rps == 0.0 { 1.0 } else { life.heard + 1.0 };
                let weight = (life.rps * INTERVAL_S / MEAN_OF).clamp(0.005, 0.3).max(1.0 / life.heard);
                life.rps += weight * (l.achieved_rps - life.rps);
            }
            // Too few requests for an interval's own p99: the window speaks.
            let resolved = s.interval.zip(s.qos_target_ms()).filter(|(l, _)| !is_slow(s) && l.verdict != Verdict::NotResolvable);
            let high = resolved.map_or(s.qos_met() == Some(false), |(l, t)| l.p99_ms > t);
            life.strikes = if high { life.strikes + 1 } else { 0 };
            match s.qos_met() {
                Some(true) => {
                    life.met_since_ms.get_or_insert(now_ms);
                    life.missed_since_ms = None;
                }
                Some(false) => {
                    life.met_since_ms = None;
                    life.missed_since_ms.get_or_insert(now_ms);
                }
                None => (life.met_since_ms, life.missed_since_ms) = (None, None),
            }
            life.reported &= !s.at_ease();
            life.was_well |= life.met_since_ms.is_some_and(|t| now_ms >= t + WINDOW_MS);
            // The window lies wholly behind the change: what was predicted can be judged, what is seen can be kept.
            let Some(qos) = s.qos().filter(|_| now_ms >= life.changed_ms + WINDOW_MS) else { continue };
            if qos >= 1.0 {
                life.more = 0;
            }
            if doubtful(s) {
                continue;
            }
            // What a slow service answers now it may have begun before.
            let heard = !is_slow(s) || now_ms >= life.changed_ms + SLOW_CALM_MS;
            if qos >= 1.0 && heard && self.books.slot(&s.id).is_some() {
                life.ledger.note(now_ms, own, life.rps, qos, self.set.grudge_ms);
            }
            if let Some(predicted) = life.predicted.filter(|_| heard) {
                life.predicted = None;
                let cap = self.models.qos_cap();
                let error = (qos.min(cap) - predicted.min(cap)).abs() / predicted.clamp(1.0, cap);
                life.error = (0.7 * life.error + 0.3 * error).min(2.0);
            }
        }
    }

    /// `stay` is what it costs to move a service at all. A cell for everybody that fits together: (service, cell), or None where nothing fits.
    fn joint(&self, all: &[Asked], role: impl Fn(&ServiceView, &Life) -> Role, pass: Pass, stay: f64) -> Option<Vec<(ServiceId, Cell)>> {
        let pool = self.pool();
        let mut ids = vec![];
        let mut cells: Vec<Vec<Cell>> = vec![];
        for asked in all {
            let role = role(asked.s, asked.life);
            if self.books.slot(&asked.s.id).is_none() && role != Role::Blind {
                continue;
            }
            cells.push(self.choices(asked, role, pool, pass));
            ids.push(asked.s.id.clone());
        }
        let priced: Vec<Vec<Choice>> = ids
            .iter()
            .zip(&cells)
            .map(|(id, cells)| {
                let held = self.books.usable(id);
                let price = |c: &Cell| self.price(*c) - if c.held == held { stay } else { 0.0 };
                cells.iter().map(|c| Choice { held: c.held, price: price(c) }).collect()
            })
            .collect();
        let picks = cheapest(&priced, pool)?;
        Some(ids.into_iter().zip(picks).enumerate().map(|(k, (id, i))| (id, cells[k][i])).collect())
    }

    /// Put a joint choice into the books. True if anything changed.
    fn carry_out(&mut self, now_ms: u64, seen: &Observation, chosen: &[(ServiceId, Cell)], why: &str, plan: &mut Plan) -> bool {
        let moves: Vec<(ServiceId, Cell, Amount)> = chosen
            .iter()
            .map(|(id, c)| (id.clone(), *c, self.books.usable(id)))
            .filter(|(id, c, held)| c.held != *held || self.books.slot(id).is_none())
            .collect();
        if moves.is_empty() {
            return false;
        }
        let somebody_gains = moves.iter().any(|(_, c, held)| !c.held.fits_in(*held));
        let p = self.books.platform.clone();
        for (id, cell, held) in &moves {
            let (Some(s), Some(life)) = (seen.get(id), self.lives.get(id)) else { continue };
            let lost = held.minus(cell.held);
            let kind = if life.is_new() || self.books.slot(id).is_none() {
                ActionKind::Place
            } else if lost.is_zero() {
                ActionKind::Grow
            } else if somebody_gains {
                ActionKind::Deprive
            } else {
                ActionKind::Shrink
            };
            let blind = self.books.slot(id).is_none();
            let qos = cell.qos.max(0.0);
            let holds_if = match (blind, qos < 1.0) {
                (true, _) => HoldsIf::NotJudged,
                (_, false) => HoldsIf::Qos { at_least: 1.0 },
                // A step on the way; or somebody is left short.
                _ if lost.is_zero() => HoldsIf::P99Falls,
                _ => HoldsIf::Qos { at_least: qos },
            };
            let mut because = self.because(now_ms, s, life, Some(*cell).filter(|_| !blind)).expect(holds_if);
            if blind {
                because.reject("its OAA at once", format!("models are asked after {} ms on known resources", self.set.sample_ms));
            } else {
                because.predict(qos, self.models.qos_cap());
                because.reject(
                    format!("stay on {}", words(*held, &p)),
                    if lost.is_zero() { "too little" } else { "costs more than it is worth" },
                );
            }
            let others: Vec<&str> = moves.iter().filter(|(o, ..)| o != id).map(|(o, ..)| o.as_str()).collect();
            let with = if others.is_empty() { String::new() } else { format!(", together with {}", others.join(", ")) };
            because.bind(format!("the cheapest cells for all services that fit{with}"));
            let expected = if blind { String::new() } else { format!(", QoS {qos:.2} expected") };
            let text = format!("{why}: {} -> {}{expected}", words(*held, &p), words(cell.held, &p));
            plan.actions.push(Action { service: id.clone(), kind, why: text, because });
        }
        // First make room.
        for (id, cell, held) in &moves {
            if self.books.slot(id).is_some() {
                self.books.set(id, cell.held.at_most(*held));
            }
        }
        for (id, cell, held) in &moves {
            let blind = self.books.slot(id).is_none();
            let done = if blind { self.books.admit(id, cell.held) } else { self.books.set(id, cell.held) };
            let (Some(s), Some(life)) = (seen.get(id), self.lives.get_mut(id).filter(|_| done)) else { continue };
            let was_new = life.is_new();
            life.new_since_ms = blind.then_some(now_ms);
            life.changed_ms = now_ms;
            life.planned_rps = life.rps;
            life.predicted = (!blind).then_some(cell.qos);
            let lost = held.minus(cell.held);
            // Whose target was missed before has nothing to go back to.
            let well = s.qos_met() == Some(true) && life.strikes == 0;
            let watched = !blind && !lost.is_zero() && (well || was_new);
            let (watch_ms, window_ms) =
                if is_slow(s) { (SLOW_CALM_MS + self.set.watch_ms, SLOW_CALM_MS) } else { (self.set.watch_ms, WINDOW_MS) };
            life.watch = watched.then_some(Watch {
                until_ms: now_ms + watch_ms,
                before: *held,
                given: somebody_gains,
                window_from_ms: if well { now_ms } else { now_ms + window_ms },
            });
            // Readings of another allocation; the last is kept as the foot of a slope.
            life.features.clear();
            life.strikes = 0;
            let kept = life.points.len().saturating_sub(1);
            life.points.drain(..kept);
        }
        true
    }

    /// What an action for this service rests on.
    fn because(&self, now_ms: u64, s: &ServiceView, life: &Life, to: Option<Cell>) -> Because {
        let mut b = Because::seen(s);
        if let Some(seen) = b.seen.as_mut().filter(|_| !life.features.is_empty()) {
            (seen.features, seen.intervals) = (mean(&life.features), life.features.len() as u32);
        }
        let asked = self.ask(now_ms, s, life);
        if let Some(a) = asked.area {
            b.say("Model-A", "OAA", a.oaa_cores, "cores");
            b.say("Model-A", "OAA", a.oaa_ways.unwrap_or(f64::NAN), "ways");
            b.say("Model-A", "RCliff", a.rcliff_cores, "cores");
            b.say("Model-A", "RCliff", a.rcliff_ways.unwrap_or(f64::NAN), "ways");
        }
        if let Some(why) = &asked.mute {
            b.reject("Models A and B", format!("{why}; a rule of thumb stands in"));
        }
        let p = &self.books.platform;
        if let Ok(q) = self.b(s, &asked.state, asked.held) {
            b.say("Model-B", format!("QoS on {}, as it is", words(asked.held, p)), q, "");
        }
        if let Some(cell) = to {
            if let Ok(q) = self.b(s, &asked.state, cell.held) {
                b.say("Model-B", format!("QoS on {}", words(cell.held, p)), q, "");
            }
            b.say("ledger and Model-B", format!("QoS on {}, corrected by what was seen", words(cell.held, p)), cell.qos, "");
        }
        b.say("confidence", "Model-B's relative error on this service", life.error, "");
        b.say("confidence", "QoS required of what is taken", self.required(life), "");
        b
    }

    /// A disturbance: a few plans may take something again.
    fn disturbed(&mut self, now_ms: u64) {
        self.refines = self.set.refines;
        self.refine_ms = now_ms;
        (self.setbacks, self.looks) = (0, 0);
    }

    /// The first BE job beside LC services: room for what nobody has measured yet, and less bandwidth to begin with.
    fn first_company(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if self.books.platform.mba.is_some() {
            while let Some(pct) = self.books.mba_step(self.books.be_mba_pct, false).filter(|p| *p >= self.set.be_first_pct) {
                self.books.be_mba_pct = pct;
            }
            self.be_mba = Bandwidth { changed_ms: now_ms, wait_ms: self.set.be_raise_ms, ..Bandwidth::default() };
        }
        for s in seen.lc() {
            let (Some(own), Some(life)) = (self.books.slot(&s.id).map(|s| s.own), self.lives.get(&s.id)) else { continue };
            if life.is_new() {
                continue;
            }
            let part = |n: u32| (f64::from(n) * self.set.company).ceil() as u32;
            let more = Amount::new(part(own.cores), part(own.ways)).at_most(self.books.free());
            let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::Qos { at_least: 1.0 });
            because.reject("wait and see", "siblings, frequency and memory are shared with a BE job from now on");
            because.bind(format!("{:.0} % of what it holds", 100.0 * self.set.company));
            if !more.is_zero() && self.books.grow(&s.id, more) {
                let why = format!("the first BE job comes: {} more until it is seen how they get along", words(more, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Grow, why, because });
                self.lives.entry(s.id.clone()).and_modify(|l| {
                    l.changed_ms = now_ms;
                    l.features.clear();
                    l.predicted = None;
                    l.watch = None;
                });
            }
        }
    }

    // ---- arrivals -------------------------------------------------------------------------------------------------

    /// New services: cells of which nothing is known, beside what the others need.
    fn place_new(&mut self, now_ms: u64, seen: &Observation, arrived: &BTreeSet<ServiceId>, plan: &mut Plan) {
        self.disturbed(now_ms);
        let asked = self.ask_all(now_ms, seen);
        let blindly = self.is_blind(&asked);
        let with = |new: &BTreeSet<ServiceId>| {
            PASSES.into_iter().find_map(|pass| {
                let role = |s: &ServiceView, l: &Life| self.role(now_ms, s, l, |s| new.contains(&s.id).then_some(Role::Blind));
                // Half an equal share is enough to begin with; less is not, if it is from what is free, or if nobody knows who could give more.
                let believed = match pass {
                    Pass::Free => false,
                    Pass::Trade => !blindly,
                    Pass::Poor => true,
                };
                let fine = |all: &Vec<(ServiceId, Cell)>| believed || all.iter().all(|(_, c)| c.risk.is_none_or(|r| r <= ENOUGH));
                self.joint(&asked, role, pass, STAY).filter(fine)
            })
        };
        let mut new = arrived.clone();
        let mut chosen = with(&new);
        // Who was moved in this very step gives nothing in it, but may in the next. Else as many are placed as fit.
        let just_moved = asked.iter().any(|a| a.life.features.is_empty() && self.books.slot(&a.s.id).is_some());
        while chosen.is_none() && !just_moved && new.len() > 1 {
            new.pop_last();
            chosen = with(&new);
        }
        drop(asked);
        if let Some(chosen) = chosen {
            self.carry_out(now_ms, seen, &chosen, "new services", plan);
        }
        let just_moved = self.lives.iter().any(|(id, l)| l.features.is_empty() && self.books.slot(id).is_some());
        for id in arrived.iter().filter(|_| !just_moved) {
            if self.books.slot(id).is_none() && !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// No model answers for anybody here. Whose readings this very step has emptied (a rollback) may have models all the same.
    fn is_blind(&self, asked: &[Asked]) -> bool {
        let mut here = asked.iter().filter(|a| self.books.slot(&a.s.id).is_some() && !a.life.features.is_empty()).peekable();
        here.peek().is_some() && here.all(|a| a.mute.is_some())
    }

    /// The role of a service in a plan for others: it may give while it is well, and keeps what it has otherwise.
    fn role(&self, now_ms: u64, s: &ServiceView, life: &Life, of: impl Fn(&ServiceView) -> Option<Role>) -> Role {
        if let Some(role) = of(s) {
            return role;
        }
        // What a slow service answers now says nothing yet about the cell that it has.
        let settled = !is_slow(s) || life.is_new() || life.met_since_ms.is_some_and(|t| now_ms >= t.max(life.changed_ms) + SLOW_CALM_MS);
        let well = s.qos().is_some_and(|q| q >= self.set.comfort_qos) && life.strikes == 0 && settled;
        if s.latency_unknown() || s.qos().is_none() || life.features.is_empty() {
            Role::Keeps
        } else if well && !life.is_new() && (life.watch.is_none() || life.features.len() >= 4) {
            Role::MayGive
        } else {
            Role::Strained
        }
    }

    /// All its cores are busy: a queue grows, whatever latency shows.
    fn is_saturated(&self, s: &ServiceView) -> bool {
        let Some(life) = self.lives.get(&s.id).filter(|l| l.features.len() >= 3) else { return false };
        let cores = self.books.platform.cores(self.books.usable(&s.id).cores);
        mean(&life.features).cpu_usage_cores.is_some_and(|b| b > SATURATED * cores)
    }

    /// New services that have been watched long enough.
    fn ready(&self, now_ms: u64, seen: &Observation) -> BTreeSet<ServiceId> {
        let ripe = |s: &&ServiceView| {
            let Some(life) = self.lives.get(&s.id) else { return false };
            let Some(since) = life.new_since_ms.filter(|_| !s.latency_unknown() && !life.features.is_empty()) else { return false };
            let slow = s.window.is_none() || is_slow(s);
            now_ms >= since + if slow && !self.is_saturated(s) { self.set.sample_slow_ms } else { self.set.sample_ms }
        };
        seen.lc().filter(ripe).map(|s| s.id.clone()).collect()
    }

    // ---- more -----------------------------------------------------------------------------------------------------

    /// Services that miss their target and will go on to, and those that meet it by a hair.
    fn needy(&mut self, now_ms: u64, seen: &Observation) -> (BTreeSet<ServiceId>, BTreeSet<ServiceId>) {
        let (mut missing, mut uneasy) = (BTreeSet::new(), BTreeSet::new());
        let stuck: BTreeSet<ServiceId> = seen.lc().filter(|s| self.is_stuck(now_ms, s)).map(|s| s.id.clone()).collect();
        for s in seen.lc() {
            let held = self.books.usable(&s.id);
            if self.books.slot(&s.id).is_none() {
                continue;
            }
            let slow = is_slow(s);
            let saturated = self.is_saturated(s);
            let (patience_ms, settle_ms) = if slow && !saturated {
                (self.set.patience_slow_ms, self.set.settle_slow_ms)
            } else {
                (self.set.patience_ms, self.set.settle_ms)
            };
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let (Some(qos), Some(target_ms)) = (s.qos(), s.qos_target_ms()) else { continue };
            if life.is_new() || now_ms < life.changed_ms + settle_ms || stuck.contains(&s.id) {
                continue;
            }
            let vouched = life.ledger.vouches(now_ms, held, life.rps).is_some() && !life.ledger.forbids(now_ms, held, life.rps, 1.0);
            let saturated = saturated && !vouched;
            // What was well here at this load until now is a burst, if it soon ends: it is in the window for as long as the window is.
            let patient = if vouched { BURST } else { 0 };
            let lasts = life.missed_since_ms.is_some_and(|t| !vouched || now_ms >= t + WINDOW_MS + 100 * u64::from(BURST));
            if saturated || life.strikes > 1 + patient || qos < 1.0 && (life.strikes > patient || lasts && life.strikes > 0) {
                let recent = life.missed_since_ms.is_none_or(|t| now_ms < t + patience_ms);
                if !saturated && recent && draining(life, target_ms, patience_ms) {
                    continue;
                }
                if now_ms >= self.try_ms {
                    life.more += 1;
                    life.ledger.note(now_ms, held, life.rps, qos.min(0.99), self.set.grudge_ms);
                }
                life.spared_until_ms = life.spared_until_ms.max(now_ms + self.set.spare_ms);
                missing.insert(s.id.clone());
            } else if qos >= 1.0 && qos < self.set.comfort_qos && now_ms >= life.changed_ms + WINDOW_MS {
                life.spared_until_ms = life.spared_until_ms.max(now_ms + self.set.spare_ms);
                life.ledger.note(now_ms, held, life.rps, qos, self.set.grudge_ms);
                uneasy.insert(s.id.clone());
            }
        }
        (missing, uneasy)
    }

    fn enlarge(&mut self, now_ms: u64, seen: &Observation, missing: &BTreeSet<ServiceId>, plan: &mut Plan) {
        let role = |s: &ServiceView, l: &Life| self.role(now_ms, s, l, |s| missing.contains(&s.id).then_some(Role::Needs));
        // Nothing is moved about that helps none of them.
        let helps = |all: &Vec<(ServiceId, Cell)>| {
            let gains = |(id, c): &(ServiceId, Cell)| {
                missing.contains(id) && (self.lives.get(id).is_some_and(Life::is_new) || !c.held.fits_in(self.books.usable(id)))
            };
            all.iter().any(gains)
        };
        let well = |all: &Vec<(ServiceId, Cell)>| all.iter().all(|(id, c)| c.qos >= 1.0 || !missing.contains(id));
        let asked = self.ask_all(now_ms, seen);
        let free = self.joint(&asked, role, Pass::Free, STAY);
        let mut chosen = free.clone().filter(well).or_else(|| self.joint(&asked, role, Pass::Trade, STAY).filter(well));
        let mut poor = false;
        if chosen.is_none() && now_ms >= self.poor_ms {
            // Not everybody can have enough. Whom to leave short is decided seldom, and only where that is much better than now.
            let now: f64 = asked.iter().map(|a| self.price(a.now())).sum();
            let better = |all: &Vec<(ServiceId, Cell)>| all.iter().map(|(_, c)| self.price(*c)).sum::<f64>() < now - MUCH_BETTER;
            chosen = self.joint(&asked, role, Pass::Poor, STAY).filter(better);
            poor = chosen.is_some();
            if let Some(chosen) = &mut chosen {
                self.return_the_rest(&asked, chosen);
            }
        }
        let chosen = chosen.or(free).filter(helps);
        drop(asked);
        if poor {
            self.poor_ms = now_ms + self.set.poor_every_ms;
        }
        // Who is to make do with less than it needs: said where it comes about.
        let short: Vec<Report> = chosen
            .iter()
            .flatten()
            .filter(|(id, c)| poor && c.qos < 1.0 && !self.books.usable(id).fits_in(c.held))
            .map(|(id, c)| Report::ExpectedSlowdown { service: id.clone(), qos: c.qos.max(0.0) })
            .collect();
        let done = chosen.is_some_and(|c| self.carry_out(now_ms, seen, &c, "target missed", plan));
        if done {
            plan.reports.extend(short);
        }
        if !done {
            self.try_ms = now_ms + self.set.settle_ms;
        }
        for id in missing {
            let Some(life) = self.lives.get_mut(id) else { continue };
            if !done && life.more >= 4 && !life.reported {
                life.reported = true;
                plan.reports.push(if life.was_well {
                    let why = "it misses its target, and no plan for all services gives it more".to_string();
                    Report::Migrate { service: id.clone(), why }
                } else {
                    let why = "it has missed its target since it came, and no plan for all services gives it more".to_string();
                    Report::CannotPlace { service: id.clone(), why }
                });
            }
        }
    }

    /// Who is left short keeps what nobody else needs of what it held.
    fn return_the_rest(&self, asked: &[Asked], chosen: &mut [(ServiceId, Cell)]) {
        let given = chosen.iter().fold(Amount::default(), |sum, (_, c)| sum.plus(c.held));
        let mut rest = self.pool().minus(given);
        for (id, cell) in chosen.iter_mut().filter(|(_, c)| c.qos < 1.0) {
            let back = self.books.usable(id).minus(cell.held).at_most(rest);
            let Some(of) = asked_of(asked, id).filter(|_| !back.is_zero()) else { continue };
            let held = cell.held.plus(back);
            *cell = Cell::new(held, of.on(held));
            rest = rest.minus(back);
        }
    }

    /// Something was taken, and somebody suffers since: give it back.
    fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) -> bool {
        let hurt = |me: &Self, s: &ServiceView| {
            let Some(l) = me.lives.get(&s.id).filter(|l| !l.is_new()) else { return false };
            let window = now_ms >= l.watch.map_or(l.changed_ms + WINDOW_MS, |w| w.window_from_ms);
            l.strikes >= 2 || window && s.qos_met() == Some(false)
        };
        let sufferer = seen.lc().find(|s| hurt(self, s)).map(|s| s.id.clone());
        let mut done = false;
        let be = self.books.has_be();
        if sufferer.is_some() && self.lives.values().any(|l| l.watch.is_some_and(|w| !w.given)) {
            self.refine_ms = now_ms + (self.set.setback_ms << self.setbacks.min(4));
            self.setbacks += 1;
            // Somebody from whom nothing was taken: it is what BE jobs do with what they got.
            let taken_ms = self.lives.values().filter(|l| l.watch.is_some_and(|w| !w.given)).map(|l| l.changed_ms).min().unwrap_or(now_ms);
            let stood_by =
                |s: &ServiceView| hurt(self, s) && self.lives.get(&s.id).is_some_and(|l| l.watch.is_none() && l.changed_ms < taken_ms);
            if be && seen.lc().any(stood_by) {
                self.be_bad = Some((self.books.rest(), now_ms + (self.set.grudge_ms << self.setbacks.min(3))));
            }
        }
        for s in seen.lc() {
            let Some(watch) = self.lives.get(&s.id).and_then(|l| l.watch) else { continue };
            let own = hurt(self, s);
            let Some(whose) = (if own { Some(s.id.clone()) } else { sufferer.clone().filter(|_| !watch.given) }) else {
                if now_ms >= watch.until_ms {
                    self.lives.entry(s.id.clone()).and_modify(|l| l.watch = None);
                }
                continue;
            };
            let held = self.books.usable(&s.id);
            let back = watch.before.at_least(held).minus(held).at_most(self.books.free());
            let Some(life) = self.lives.get(&s.id) else { continue };
            let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::P99Falls);
            because.reject("wait until the watch ends", format!("{whose} misses its target since"));
            because.bind(format!("it held {} before", words(watch.before, &self.books.platform)));
            let grown = !back.is_zero() && self.books.grow(&s.id, back);
            let grudge = self.set.grudge_ms << life.hurts.min(3);
            if let Some(life) = self.lives.get_mut(&s.id) {
                life.watch = None;
                let expected = life.predicted.take().unwrap_or(1.0 + self.set.margin).clamp(1.0, AMPLE);
                life.changed_ms = now_ms;
                life.features.clear();
                if own {
                    life.hurts += 1;
                    life.spared_until_ms = life.spared_until_ms.max(now_ms + if be { grudge / 4 } else { grudge });
                    // It was predicted to be well there. Half of what one learns is about the next prediction.
                    life.error = (0.5 * life.error + 0.5 * (expected - s.qos().unwrap_or(0.0)).max(0.0) / expected).min(2.0);
                    let qos = s.qos().unwrap_or(0.9).min(0.99);
                    life.ledger.note(now_ms, held, life.rps, qos, grudge);
                }
            }
            if grown {
                done = true;
                let why = format!("{whose} misses its target since the loss: {} back", words(back, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Rollback, why, because });
            }
        }
        done
    }

    // ---- less -----------------------------------------------------------------------------------------------------

    /// It has been given more time and again, its cores are idle, and it misses its target all the same.
    fn is_stuck(&self, now_ms: u64, s: &ServiceView) -> bool {
        let Some(life) = self.lives.get(&s.id) else { return false };
        let busy = mean(&life.features).cpu_usage_cores;
        let idle = busy.is_some_and(|b| b < IDLE * self.books.platform.cores(self.books.usable(&s.id).cores));
        life.more >= 3 && idle && s.qos_met() == Some(false) && now_ms >= (life.changed_ms + 1500).max(life.stuck_until_ms)
    }

    /// All are well: a plan that takes what nobody needs, for BE jobs or for those who come.
    fn refine(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What was averaged says nothing about a load that has just begun to rise.
        let rises = |s: &ServiceView, l: &Life| {
            s.interval.is_some_and(|i| i.count >= 50 && i.achieved_rps / l.rps - 1.0 > RISE.max(2.5 / (i.count as f64).sqrt()))
        };
        let calm = |s: &ServiceView| {
            self.lives.get(&s.id).is_some_and(|l| {
                !l.is_new()
                    && !rises(s, l)
                    && l.watch.is_none()
                    && l.strikes == 0
                    && l.features.len() >= 3
                    && l.met_since_ms.is_some_and(|t| now_ms >= t.max(l.changed_ms) + self.set.calm_ms)
            })
        };
        let stuck: BTreeSet<ServiceId> = seen.lc().filter(|s| self.is_stuck(now_ms, s)).map(|s| s.id.clone()).collect();
        if now_ms < self.refine_ms
            || seen
                .lc()
                .any(|s| s.latency_unknown() || self.books.slot(&s.id).is_none() || !calm(s) && s.qos().is_some() && !stuck.contains(&s.id))
        {
            return;
        }
        let spared = |s: &ServiceView| s.qos().is_none() || self.lives.get(&s.id).is_some_and(|l| now_ms < l.spared_until_ms);
        // Who only stands by feels what becomes of the cores that others lose: BE jobs make clocks fall and siblings busy, and without
        // them the same work goes on, on fewer siblings.
        let tight = |s: &ServiceView| {
            let cores = self.books.platform.cores(self.books.usable(&s.id).cores);
            let busy = self.lives.get(&s.id).and_then(|l| mean(&l.features).cpu_usage_cores);
            busy.is_some_and(|b| b > self.set.busy * cores)
        };
        let role = |s: &ServiceView| {
            if stuck.contains(&s.id) {
                Some(Role::Stuck)
            } else if tight(s) {
                Some(Role::Firm)
            } else {
                spared(s).then_some(Role::Keeps)
            }
        };
        let asked = self.ask_all(now_ms, seen);
        let stay = self.price_of_moving();
        let mut chosen = self.joint(&asked, |s, l| self.role(now_ms, s, l, role), Pass::Trade, stay).unwrap_or_default();
        self.leave_be_less(now_ms, &asked, &mut chosen);
        let moved = |(id, c): &&(ServiceId, Cell)| c.held != self.books.usable(id);
        let gain: f64 = chosen.iter().filter(moved).filter_map(|(id, c)| self.gain(asked_of(&asked, id)?, c)).sum();
        let takes = chosen.iter().any(|(id, c)| !self.books.usable(id).fits_in(c.held));
        drop(asked);
        // While nothing is gained it is looked at ever more seldom.
        self.looks += 1;
        self.refine_ms = now_ms + (LOOK_MS << self.looks.min(5));
        if gain < self.set.least_gain || !takes {
            return;
        }
        let why = if stuck.is_empty() { "all targets met" } else { "more has not helped: fewer busy cores clock higher" };
        if self.carry_out(now_ms, seen, &chosen, why, plan) {
            for id in &stuck {
                self.lives.entry(id.clone()).and_modify(|l| {
                    (l.watch, l.predicted, l.more) = (None, None, 0);
                    l.stuck_until_ms = now_ms + STUCK_MS;
                });
            }
            (self.refines, self.looks) = (self.refines.saturating_sub(1), 0);
            self.refine_ms = now_ms + if self.refines > 0 { self.set.calm_ms } else { self.set.calm_every_ms };
        }
    }

    /// Without BE jobs what is taken is for nobody yet, and costs as little as it is worth.
    fn price_of_moving(&self) -> f64 {
        let by_services = (self.set.price_move * self.lives.len() as f64).min(self.set.price_move_most);
        if self.books.has_be() {
            by_services.max(self.set.least_gain)
        } else {
            self.set.least_gain
        }
    }

    /// What a service's cell would save in price over what it holds; None while its latency is unknown.
    fn gain(&self, asked: &Asked, to: &Cell) -> Option<f64> {
        Some(self.price(Cell::new(asked.held, asked.qos?.min(AMPLE))) - self.price(*to))
    }

    /// BE jobs had so much once that somebody suffered who only stood by: no more than half way there. The least gains go first.
    fn leave_be_less(&self, now_ms: u64, asked: &[Asked], chosen: &mut [(ServiceId, Cell)]) {
        let Some((bad, _)) = self.be_bad.filter(|(_, until_ms)| now_ms < *until_ms) else { return };
        let rest = self.books.rest().cores;
        let most = rest + bad.cores.saturating_sub(rest) / 2;
        let held = |id: &ServiceId| self.books.usable(id).cores;
        loop {
            let given: u32 = chosen.iter().map(|(id, c)| held(id).saturating_sub(c.held.cores)).sum();
            let taken: u32 = chosen.iter().map(|(id, c)| c.held.cores.saturating_sub(held(id))).sum();
            if taken <= given + self.books.free().cores && (rest + given).saturating_sub(taken) <= most {
                return;
            }
            let gives = |(_, (id, c)): &(usize, &(ServiceId, Cell))| c.held.cores < held(id);
            let gain = |(id, c): &(ServiceId, Cell)| asked_of(asked, id).and_then(|a| self.gain(a, c)).unwrap_or(0.0);
            let least = chosen.iter().enumerate().filter(gives).min_by(|a, b| gain(a.1).total_cmp(&gain(b.1))).map(|(i, _)| i);
            // Nobody gives any more: nor does anybody get.
            let Some(i) = least.or_else(|| chosen.iter().position(|(id, c)| c.held.cores > held(id))) else { return };
            let Some(asked) = asked_of(asked, &chosen[i].0) else { return };
            chosen[i].1 = asked.now();
        }
    }

    /// Contended memory: less bandwidth for BE jobs, and back again in peace.
    fn bandwidth(&mut self, now_ms: u64, seen: &Observation, missing: &mut BTreeSet<ServiceId>, plan: &mut Plan) {
        if !self.books.has_be() {
            return;
        }
        let Some(be) = seen.be().next() else { return };
        let peak = self.books.platform.mem_bw_mbps;
        // None: not counted, or a counter that says nothing.
        let sum = |all: &mut dyn Iterator<Item = &ServiceView>| all.map(|s| s.features.mbl_mbps).sum::<Option<f64>>().filter(|x| *x > 0.0);
        let used = sum(&mut seen.services.iter());
        let contended = used.zip(peak).is_some_and(|(used, peak)| used >= CONTENDED * peak);
        let carries = used.map_or("memory is not counted".to_string(), |x| format!("memory carries {x:.0} MB/s"));
        let waits = |id: &ServiceId| {
            let (Some(s), Some(life)) = (seen.get(id), self.lives.get(id)) else { return false };
            let asked = self.ask(now_ms, s, life);
            let idle = asked.busy().is_some_and(|b| b / self.books.platform.cores(asked.held.cores) < 0.8);
            idle && self.b(s, &asked.state, asked.held).is_ok_and(|q| q >= self.required(life))
        };
        let now_pct = self.books.be_mba_pct;
        if let Some(id) = missing.first().filter(|_| contended && now_ms >= self.be_mba.changed_ms + self.set.settle_ms).cloned() {
            let down = |pct: u8| self.books.mba_step(pct, false);
            if let Some(pct) = down(now_pct).map(|p| down(p).unwrap_or(p)) {
                let mut because = Because::seen(be);
                // Whether that was it shows before anything else is tried for those who wait for memory.
                let waiting: Vec<ServiceId> = missing.iter().filter(|id| waits(id)).cloned().collect();
                self.books.be_mba_pct = pct;
                let wait_ms = (self.be_mba.wait_ms * 2).clamp(5_000, 240_000);
                self.be_mba = Bandwidth { changed_ms: now_ms, wait_ms, raised: None, bad_pct: Some(now_pct) };
                for id in waiting {
                    because.reject(format!("more for {id}"), "Model-B holds what it has for sufficient, and its cores are not busy");
                    missing.remove(&id);
                }
                because.bind(carries);
                let why = format!("{id} misses its target while memory is contended: bandwidth {pct} %");
                plan.actions.push(Action { service: be.id.clone(), kind: ActionKind::Shrink, why, because });
                return;
            }
        }
        if seen.lc().any(ServiceView::latency_unknown) {
            return;
        }
        // What a raise may have done: whoever was moved since has another reason.
        let still = |s: &ServiceView, since_ms: u64| self.lives.get(&s.id).is_some_and(|l| !l.is_new() && l.changed_ms <= since_ms);
        let worst_of = |since_ms: u64| seen.lc().filter(|s| still(s, since_ms)).filter_map(ServiceView::qos).fold(f64::INFINITY, f64::min);
        let suffers = self.be_mba.raised.filter(|(t, _)| worst_of(*t) < 1.0 && (contended || peak.is_none() || used.is_none()));
        if self.be_mba.raised.is_some_and(|(t, _)| now_ms >= t + self.set.be_raise_ms) {
            self.be_mba.raised = None;
        }
        let worst = worst_of(now_ms);
        let (pct, kind) = if let Some((_, before)) = suffers {
            (before.min(now_pct), ActionKind::Rollback)
        } else if now_pct < 100
            && self.be_mba.raised.is_none()
            && worst >= 1.2
            && !seen.lc().any(|s| self.lives.get(&s.id).is_none_or(Life::is_new))
            && now_ms >= self.be_mba.changed_ms + self.be_mba.wait_ms
        {
            let by_be = sum(&mut seen.be());
            (self.raise(now_ms, used.zip(by_be).zip(peak).map(|((all, be), peak)| (CONTENDED * peak - (all - be)) / be)), ActionKind::Grow)
        } else {
            return;
        };
        if pct == now_pct {
            return;
        }
        self.books.be_mba_pct = pct;
        let grown = kind == ActionKind::Grow;
        self.be_mba.changed_ms = now_ms;
        self.be_mba.raised = grown.then_some((now_ms, now_pct));
        if !grown {
            self.be_mba.wait_ms = (self.be_mba.wait_ms * 2).clamp(10_000, 240_000);
            self.be_mba.bad_pct = Some(now_pct);
        }
        let mut because = Because::seen(be);
        because.bind(format!("the worst QoS is {worst:.2}; {carries}"));
        plan.actions.push(Action { service: be.id.clone(), kind, why: format!("QoS {worst:.2}: memory bandwidth {pct} %"), because });
    }

    /// The BE jobs' next bandwidth: what memory has room for (so many times what they use), where that is not known a large step, and
    /// half way to what somebody suffered from.
    fn raise(&mut self, now_ms: u64, room: Option<f64>) -> u8 {
        let now = self.books.be_mba_pct;
        let steps: Vec<u8> = std::iter::successors(Some(now), |p| self.books.mba_step(*p, true)).collect();
        let step = |n: usize| steps.get(n).or(steps.last()).copied().unwrap_or(now);
        let up_to = |most: f64| steps.iter().copied().filter(|p| f64::from(*p) <= most).max().unwrap_or(now);
        if let Some(bad) = self.be_mba.bad_pct.filter(|bad| *bad > now) {
            let half = up_to(f64::from(now) + f64::from(bad - now) / 2.0);
            if half > now || now_ms < self.be_mba.changed_ms + self.set.calm_every_ms {
                return half;
            }
            self.be_mba.bad_pct = None;
            return up_to(f64::from(bad));
        }
        room.map_or(step(RAISE_STEPS), |room| up_to(f64::from(now) * room).max(step(1)))
    }
}

/// What is asked about one of them.
fn asked_of<'a, 's>(asked: &'a [Asked<'s>], id: &ServiceId) -> Option<&'a Asked<'s>> {
    asked.iter().find(|a| a.s.id == *id)
}

/// So few requests, or such long ones, that an interval says nothing about them.
fn is_slow(s: &ServiceView) -> bool {
    s.qos_target_ms().is_some_and(|t| t >= SLOW_MS) || s.window.is_some_and(|w| w.verdict == Verdict::NotResolvable)
}

/// The backlog shrinks, and will be gone in time; or only the window remembers it.
fn draining(life: &Life, target_ms: f64, patience_ms: u64) -> bool {
    let n = life.points.len();
    if n < 3 {
        return false;
    }
    let (first, last) = (life.points[n - 3], life.points[n - 1]);
    if last.p99_ms <= target_ms {
        return true;
    }
    let fall_ms = (first.mean_ms - last.mean_ms) / 2.0;
    let left = last.p99_ms - target_ms;
    // Within the time that is given it must be seen to fall.
    fall_ms > 60.0 / patience_ms as f64 * first.mean_ms && left / fall_ms * 100.0 <= patience_ms as f64
}

impl Policy for Surefoot {
    fn name(&self) -> &str {
        "surefoot"
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let news = self.books.follow(seen);
        self.lives.retain(|id, _| seen.get(id).is_some());
        self.look(now_ms, seen);
        if !news.left.is_empty() || !news.be_arrived.is_empty() {
            self.disturbed(now_ms);
            // Another company.
            self.be_bad = None;
            self.be_mba.bad_pct = None;
        }
        for id in &news.be_arrived {
            let mut because = seen.get(id).map_or_else(Because::default, Because::seen);
            because.bind("LC services come first");
            let why = "BE: what LC services do not hold, shared with other BE jobs".to_string();
            plan.actions.push(Action { service: id.clone(), kind: ActionKind::Place, why, because });
        }
        if !news.be_arrived.is_empty() && seen.be().count() == news.be_arrived.len() {
            self.first_company(now_ms, seen, &mut plan);
        }
        let lacks = self.books.be_lacks();
        if !lacks.is_zero() {
            self.make_room_for_be(now_ms, seen, lacks, &mut plan);
        }
        let rolled_back = self.withdraw(now_ms, seen, &mut plan);
        let moved = self.load_moved(now_ms, seen);
        if moved {
            self.disturbed(now_ms);
        }
        let arrived: BTreeSet<ServiceId> = news.lc_arrived.iter().cloned().collect();
        let room = self.books.least().fits_in(self.books.free());
        let waiting = arrived.iter().any(|id| room || !self.books.is_crowded(id));
        let (mut missing, uneasy) = self.needy(now_ms, seen);
        self.bandwidth(now_ms, seen, &mut missing, &mut plan);
        let ready = self.ready(now_ms, seen);
        if waiting {
            self.place_new(now_ms, seen, &arrived, &mut plan);
        } else if !ready.is_empty() || !missing.is_empty() && now_ms >= self.try_ms {
            let all: BTreeSet<ServiceId> = ready.union(&missing).cloned().collect();
            if !missing.is_empty() {
                self.refines = self.set.refines;
            }
            self.enlarge(now_ms, seen, &all, &mut plan);
            // Placed, be it where it was.
            for id in &ready {
                self.lives.entry(id.clone()).and_modify(|l| l.new_since_ms = None);
            }
        } else if !uneasy.is_empty() {
            self.comfort(now_ms, seen, &uneasy, &mut plan);
        } else if !rolled_back {
            self.refine(now_ms, seen, &mut plan);
        }

        match self.books.plan(seen) {
            Ok(p) => plan.allocations = p.allocations,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

impl Surefoot {
    /// Throughput has moved since the cells were chosen; true if somebody's has fallen, which leaves something over.
    fn load_moved(&mut self, now_ms: u64, seen: &Observation) -> bool {
        let mut moved = false;
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id).filter(|l| !l.is_new() && l.planned_rps > 0.0) else { continue };
            let change = life.rps / life.planned_rps - 1.0;
            if change.abs() > self.set.load_change && s.qos_met() == Some(true) {
                life.planned_rps = life.rps;
                if change < 0.0 {
                    moved = true;
                } else {
                    // Who rises may go on to: nothing is taken on what was measured before.
                    self.refine_ms = self.refine_ms.max(now_ms + self.set.calm_ms);
                    self.refines = self.set.refines;
                }
            }
        }
        moved
    }

    /// Met by a hair: more from what is free, from nobody else.
    fn comfort(&mut self, now_ms: u64, seen: &Observation, uneasy: &BTreeSet<ServiceId>, plan: &mut Plan) {
        let role = |s: &ServiceView, _: &Life| if uneasy.contains(&s.id) { Role::Needs } else { Role::Keeps };
        if let Some(chosen) = self.joint(&self.ask_all(now_ms, seen), role, Pass::Free, STAY) {
            self.carry_out(now_ms, seen, &chosen, "met by a hair", plan);
        }
    }

    /// BE jobs came, and not even the least is left for them: those with most QoS to spare give.
    fn make_room_for_be(&mut self, now_ms: u64, seen: &Observation, mut lacks: Amount, plan: &mut Plan) {
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            while !unit.at_most(lacks).is_zero() {
                let may = |s: &&ServiceView| s.qos().is_some() && unit.fits_in(self.books.spare(&s.id));
                let Some(s) = seen.lc().filter(may).max_by(|a, b| a.qos().unwrap_or(0.0).total_cmp(&b.qos().unwrap_or(0.0))) else { break };
                let Some(life) = self.lives.get(&s.id) else { break };
                let mut because = self.because(now_ms, s, life, None).expect(HoldsIf::P99Stays);
                because.bind("the BE jobs lack the least");
                let why = format!("best off: {} to the BE jobs", words(unit, &self.books.platform));
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Deprive, why, because });
                self.books.shrink(&s.id, unit);
                self.lives.entry(s.id.clone()).and_modify(|l| l.changed_ms = now_ms);
                lacks = lacks.minus(unit);
            }
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
