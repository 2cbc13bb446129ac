//! Surefoot: one plan for all services, in few steps, and nothing taken that might hurt.
//!
//! Our own policy, on OSML+'s framework (Models A and B, [`Books`], the guard). What it does otherwise than `osml-plus`:
//!
//! * **Joint plans.** Every decision chooses a cell (cores, ways) for all services at once: for each service Model-B gives the
//!   smallest cells with enough predicted QoS ([`Surefoot::choices`]), dynamic programming the cheapest set that fits
//!   ([`joint`]). Cores for one and ways for the other come out by themselves, where one step at a time gets stuck.
//! * **Few changes.** A service jumps; it does not walk. After a disturbance (arrival, leave, load, violation) there are at most
//!   [`settings::Patience::refines`] further plans that take something, then one in [`settings::Memory::grudge_ms`].
//! * **What was seen counts more than what is predicted** ([`ledger`]): a cell that missed forbids all smaller ones at that load,
//!   one that met vouches for all larger ones.
//! * **Confidence.** Model-B's error on each service is followed; what is taken must be predicted with a margin of so many errors.
//!   A model that is wrong (of another platform, broken) soon predicts nothing that is believed, and nothing is taken any more.
//!   An error that lets nothing be offered fades: else it could not be refuted. Model-A's corners come down to what a service is seen
//!   to be well on ([`Asked::corners`]): else a service that was thought to need more than it has would give nothing.
//! * **Prices.** Every core and way has a price, and nearness to the target a price of risk. Without BE jobs resources cost a third.
//!   Then services keep more distance from their cliffs. They are not free, since fewer busy cores clock higher.
//! * **Contended memory.** A service may miss its target on idle cores, on a cell that Model-B holds for sufficient. Then it is taken to
//!   wait for memory: BE jobs' bandwidth goes down before the service is enlarged. In peace it goes up in one step to what memory
//!   has room for ([`Surefoot::raise`]). What a service suffered from is approached by halves.
//! * **Bystanders.** A service feels what others lose: clocks fall, siblings are busy. A bystander with busy cores gets some of
//!   it first ([`Role::Firm`]). A BE share that hurt a service is remembered.
//! * **Bursts.** A service that was well here at this load may miss its target for three intervals before it gets more.
//! * **Slow services** (a target of a second or more, or too few requests for a p99). A queue of their first seconds stays with them for
//!   minutes, and their answers now were begun long ago. So they begin with more, and give nothing before they have been well for ten
//!   seconds. When all their cores are busy they count as far behind and grow, be it by less than a step. Where not all can have
//!   enough, a queue is the worse the fewer cores it has; so later newcomers begin on little.
//! * **Not enough for all.** Which service to leave short is decided seldom, and ever more so while nothing happens. It is decided only
//!   where that is much better than now, and said to the upper scheduler. Newcomers with cold caches do not decide it, unless a slow
//!   service waits. No service loses for it what none gets ([`Surefoot::divide_the_rest`]). Where it is not decided, a service that
//!   misses its target gets what others are predicted not to need, be it too little: with a queue, down to a core.
//! * **A floor.** More that did not lower a p99 is given back, and asked for again seldom ([`futile`]).
//! * **Newcomers.** Where all have enough, what others give for newcomers and these do not use yet stays free for them. No service is
//!   moved far for it.
//!
//! Words of this policy alone:
//!
//! | word | meaning |
//! | --- | --- |
//! | cell | so many cores and ways for one service |
//! | firm up | give a bystander cores, so that it can bear busier siblings and lower clocks |
//! | grudge | how long a cell that missed is not tried again |
//! | company | what the services that share clocks, siblings and memory with one do |
//! | spared | a service that was hurt by a loss, or needed more: it gives nothing to BE jobs for a while |
//! | crowded | a newcomer for which there is no room |
//! | poor plan | a plan for a server on which not all can have enough |
//!
//! What a plan is for has a file each: [`arrive`], [`more`], [`less`], [`withdraw`], [`futile`], [`bandwidth`]. The cells to choose from
//! are in [`cells`].
//!
//! `surefoot-memory` is the same with memory and pools in the joint plan ([`pages`]). One list has the price of a core, a way, bandwidth, memory and
//! pool ([`settings::Prices`]).
//!
//! Model-C is not asked: with joint plans there is no single step to choose. A model that cannot answer is replaced by rules of
//! thumb, and the action says so: a service that needs more gets cores no busier than 60 % or a quarter more of both, QoS is taken to fall with the
//! square of what is left of cores and of ways, until losses have shown another power. Unknown latency neither grows nor shrinks.

mod arrive;
mod bandwidth;
mod cells;
mod futile;
pub mod joint;
pub mod ledger;
mod less;
mod more;
mod pacing;
mod pages;
pub mod settings;
mod withdraw;

use crate::books::{qos_by_thumb, share_left, Amount, Books};
use crate::models::{Area, Models, State};
use crate::osml_plus::{doubtful, mean, words};
use crate::pace::Pace;
use crate::Policy;
use cells::*;
use futile::{Climb, Futile};
use joint::{cheapest, Choice};
use ledger::Ledger;
use pacing::paced;
use pages::Pages;
pub use settings::Settings;
use settings::{part_up, DOUBLINGS, LEAST_POWER, MISSED_QOS, POWER, WINDOW_MS};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use surefoot_server::{
    Action, ActionKind, Because, Features, HoldsIf, Latency, Observation, Plan, Platform, Report, Resource, ServiceId, ServiceView, Verdict,
};

/// A target of so much or more makes a service slow, ms.
const SLOW_TARGET_MS: f64 = 1000.0;
/// The average error of Model-B, at most: without a ceiling on what it answers one reading could forbid everything.
const MOST_ERROR: f64 = 2.0;
/// Half of an error is forgotten in this time while it lets Model-B offer nothing, ms.
const FORGET_MS: f64 = 20_000.0;
/// QoS as a share of itself that enlargements must have brought: less may be chance, of a p99.
const VAIN_GAIN: f64 = 0.25;
/// Weight of one interval in the mean throughput, at least: no mean is of more than twenty seconds.
const LEAST_WEIGHT: f64 = 0.005;

/// What `surefoot-memory` decides.
const OWNS: [Resource; 5] = [Resource::Cpu, Resource::Llc, Resource::MemoryBandwidth, Resource::Memory, Resource::Zswap];

/// Something was taken: what was held before, and until when it is given back at the first sign of harm.
#[derive(Clone, Copy, Debug)]
struct Watch {
    until_ms: u64,
    before: Amount,
    /// It went to another service, which needed it: only the loser's own harm counts.
    given: bool,
    /// QoS before; None where it was not well.
    qos: Option<f64>,
    /// Until then the window still holds requests from before the change.
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
    /// When the error was last looked at, while it keeps Model-B from offering anything.
    distrusted_ms: Option<u64>,
    watch: Option<Watch>,
    /// With which power of the share that is left its QoS falls, as losses have shown; for where no model answers.
    power: f64,
    hurts: u32,
    /// Losses at this load that were too much; and that it holds what a loss left, and nothing has been given back.
    regrets: u32,
    lost: bool,
    /// Nothing is taken from it just because all is well before this.
    spared_until_ms: u64,
    /// Enlargements in a row that were not enough.
    more: u32,
    climb: Option<Climb>,
    /// More did not help; and how often that was found at this load.
    futile: Option<Futile>,
    futiles: u32,
    reported: bool,
    /// It has met its target here for as long as a window is.
    was_well: bool,
}

impl Life {
    fn new(now_ms: u64, set: &Settings) -> Self {
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
            ledger: Ledger::new(set),
            error: set.first_error(),
            predicted: None,
            distrusted_ms: None,
            watch: None,
            power: POWER,
            hurts: 0,
            regrets: 0,
            lost: false,
            spared_until_ms: 0,
            more: 0,
            climb: None,
            futile: None,
            futiles: 0,
            reported: false,
            was_well: false,
        }
    }

    /// It needs more than it holds: if that is what a loss left, at the load of then, that was too much.
    fn regret(&mut self, set: &Settings) {
        self.regrets += u32::from(self.lost && self.load_change().abs() <= set.readings.load_change);
        self.lost = false;
        self.power = POWER;
    }

    /// Of the throughput since the present cell was chosen.
    fn load_change(&self) -> f64 {
        self.rps / self.planned_rps - 1.0
    }

    /// An error so large that no answer of Model-B's is enough is never refuted: nothing is offered, and nothing judged. So it fades
    /// until the largest answer is enough.
    fn forget(&mut self, now_ms: u64, cap: f64, set: &settings::Trust) {
        let offers_nothing = 1.0 + set.errors * self.error >= cap;
        let since_ms = self.distrusted_ms.replace(now_ms).filter(|_| offers_nothing);
        if let Some(since_ms) = since_ms {
            self.error *= 0.5_f64.powf((now_ms - since_ms) as f64 / FORGET_MS);
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
    /// A service suffered from so much, per cent.
    bad_pct: Option<u8>,
}

/// The policy.
pub struct Surefoot {
    given: Settings,
    /// As given, with counts of intervals as long as `pace` says.
    set: Settings,
    pace: Pace,
    models: Box<dyn Models>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    /// Plans that may still take something, and when the next one may.
    refines: u32,
    refine_ms: u64,
    setbacks: u32,
    /// Looks in a row at what could be taken that found nothing.
    vain_looks: u32,
    /// No plan before that leaves a service short; and none before `try_ms` is for a missed target, after one that brought nothing.
    poor_ms: u64,
    /// Plans that left a service short since the last disturbance.
    poor_plans: u32,
    try_ms: u64,
    /// No service is asked again before that to make room for a newcomer that found none.
    again_ms: u64,
    be_mba: Bandwidth,
    /// What BE jobs held when a service suffered that nothing had been taken from, and until when that counts.
    be_bad: Option<(Amount, u64)>,
    /// Memory, where it is planned, too (`surefoot-memory`).
    pages: Option<Pages>,
    owns_memory: bool,
}

impl Surefoot {
    pub fn new(platform: &Platform, models: Box<dyn Models>, settings: Settings) -> Self {
        Surefoot {
            given: settings,
            set: settings,
            pace: Pace::default(),
            models,
            books: Books::new(platform),
            lives: BTreeMap::new(),
            refines: 0,
            refine_ms: 0,
            setbacks: 0,
            vain_looks: 0,
            poor_ms: 0,
            poor_plans: 0,
            try_ms: 0,
            again_ms: 0,
            be_mba: Bandwidth::default(),
            be_bad: None,
            pages: None,
            owns_memory: false,
        }
    }

    /// The policy `surefoot-memory`: memory and pools are planned together with cells. A host whose memory is unknown has cells alone, as under `surefoot`.
    pub fn with_memory(platform: &Platform, models: Box<dyn Models>, settings: Settings, shared: crate::cosmos::Settings) -> Self {
        let pages = platform.memory.map(|m| Pages::new(m.capacity_bytes as f64, shared));
        let settings = if pages.is_some() { settings.with_memory() } else { settings };
        Surefoot { owns_memory: true, pages, ..Surefoot::new(platform, models, settings) }
    }

    /// What LC services may hold together.
    fn pool(&self) -> Amount {
        self.books.slots().iter().fold(self.books.free(), |sum, s| sum.plus(s.own))
    }

    fn look(&mut self, now_ms: u64, seen: &Observation) {
        let (set, pace) = (self.set, self.pace);
        for s in seen.lc() {
            let own = self.books.usable(&s.id);
            let life = self.lives.entry(s.id.clone()).or_insert_with(|| Life::new(now_ms, &set));
            // After a jump of load what was averaged is of another service.
            let jumped = |l: &Latency| set.is_jump(l.achieved_rps / life.rps - 1.0, l.count);
            if s.interval.is_some_and(|l| l.count > 0 && life.rps > 0.0 && jumped(&l)) {
                life.features.clear();
                life.rps = 0.0;
            }
            life.features.push_back(s.features);
            if life.features.len() > set.readings.smooth_intervals {
                life.features.pop_front();
            }
            if let Some(l) = s.interval {
                life.points.push_back(Point { mean_ms: l.mean_ms, p99_ms: l.p99_ms });
                if life.points.len() > set.readings.smooth_intervals {
                    life.points.pop_front();
                }
                // Few requests, much chance: the mean goes back over as many intervals as hold some hundred of them.
                life.heard = if life.rps == 0.0 { 1.0 } else { life.heard + 1.0 };
                let (least, most) = (pace.weight(LEAST_WEIGHT), set.latest_weight());
                let weight = (life.rps * (pace.interval_ms() as f64 / 1000.0) / set.mean_requests())
                    .clamp(least.min(most), most)
                    .max(1.0 / life.heard);
                life.rps += weight * (l.achieved_rps - life.rps);
            }
            // Too few requests for an interval's own p99: the window speaks.
            let resolved = s.interval.zip(s.qos_target_ms()).filter(|(l, _)| !set.is_slow(s) && l.verdict != Verdict::NotResolvable);
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
                life.climb = None;
            }
            if doubtful(s) {
                continue;
            }
            // What a slow service answers now it may have begun before.
            let heard = !set.is_slow(s) || now_ms >= life.changed_ms + set.patience.slow_ms;
            if qos >= 1.0 && heard && self.books.slot(&s.id).is_some() {
                life.ledger.note(now_ms, own, life.rps, qos, set.memory.grudge_ms);
            }
            let cap = self.models.qos_cap();
            // Of a cell that was to miss, or at a load that is gone, a prediction says nothing about cells that are to suffice.
            let judged = |predicted: &f64| heard && *predicted >= 1.0 && life.load_change().abs() <= set.readings.load_change;
            if heard && life.predicted.is_some_and(|p| !judged(&p)) {
                life.predicted = None;
            }
            life.forget(now_ms, cap, &set.trust);
            if let Some(predicted) = life.predicted.filter(|_| heard) {
                life.predicted = None;
                let error = (qos.min(cap) - predicted.min(cap)).abs() / predicted.clamp(1.0, cap);
                life.error = ((1.0 - set.trust.weight) * life.error + set.trust.weight * error).min(MOST_ERROR);
            }
        }
    }

    /// Throughput has moved since the cells were chosen; true if one has fallen, which leaves something over.
    fn load_moved(&mut self, now_ms: u64, seen: &Observation) -> bool {
        let mut moved = false;
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id).filter(|l| !l.is_new() && l.planned_rps > 0.0) else { continue };
            let change = life.load_change();
            if change.abs() > self.set.readings.load_change && s.qos_met() == Some(true) {
                life.planned_rps = life.rps;
                (life.regrets, life.lost) = (0, false);
                life.power = POWER;
                if change < 0.0 {
                    moved = true;
                } else {
                    // A load that rises may go on to: nothing is taken on what was measured before.
                    self.refine_ms = self.refine_ms.max(now_ms + WINDOW_MS);
                    self.refines = self.set.patience.refines;
                }
            }
        }
        moved
    }

    /// A cell for each service, which fit together; None where nothing fits. `stay` is what it costs to move a service at all.
    fn joint(&self, all: &[Asked], role: impl Fn(&ServiceView, &Life) -> Role, pass: Pass, stay: f64) -> Option<Vec<(ServiceId, Cell)>> {
        let pool = self.pool();
        let here = |(asked, role): &(&Asked, Role)| self.books.slot(&asked.s.id).is_some() || *role == Role::Blind;
        let roles: Vec<(&Asked, Role)> = all.iter().map(|a| (a, role(a.s, a.life))).filter(here).collect();
        let of_all = roles.iter().fold(Amount::default(), |sum, (a, role)| sum.plus(self.least_of(a, *role, pass)));
        let mut ids = vec![];
        let mut cells: Vec<Vec<Cell>> = vec![];
        for (asked, role) in roles {
            // What the others will not go below is not to be had.
            let most = pool.minus(of_all.minus(self.least_of(asked, role, pass)));
            let mut of_one = self.choices(asked, role, pool, most, pass);
            if let Some(pages) = &self.pages {
                of_one.extend(pages.offers(self, asked, role, pass, &of_one));
            }
            cells.push(of_one);
            ids.push(asked.s.id.clone());
        }
        let mut priced: Vec<Vec<Choice>> = ids
            .iter()
            .zip(&cells)
            .map(|(id, cells)| {
                let held = self.books.usable(id);
                let price = |c: &Cell| self.price(*c) - if c.held == held && c.units == 0 { stay } else { 0.0 };
                // From the least that is offered of memory on.
                let least = cells.iter().map(|c| c.units).min().unwrap_or(0);
                cells.iter().map(|c| Choice { held: c.held, memory: (c.units - least) as u32, price: price(c) }).collect()
            })
            .collect();
        let mut units = 0;
        if let Some(pages) = &self.pages {
            let (jobs, all) = pages.offers_of_jobs(self, &cells);
            units = all;
            priced.push(jobs);
        }
        let picks = cheapest(&priced, pool, units)?;
        Some(ids.into_iter().zip(picks).enumerate().map(|(k, (id, i))| (id, cells[k][i])).collect())
    }

    /// Put a joint choice into the books. True if anything changed.
    fn carry_out(&mut self, now_ms: u64, seen: &Observation, chosen: &[(ServiceId, Cell)], why: &str, plan: &mut Plan) -> bool {
        let moves: Vec<(ServiceId, Cell, Amount)> = chosen
            .iter()
            .map(|(id, c)| (id.clone(), *c, self.books.usable(id)))
            .filter(|(id, c, held)| c.held != *held || self.books.slot(id).is_none())
            .collect();
        let memory = self.move_memory(now_ms, seen, chosen, why, plan);
        if moves.is_empty() {
            return memory;
        }
        let somebody_gains = moves.iter().any(|(_, c, held)| !c.held.fits_in(*held));
        let p = self.books.platform.clone();
        let mut actions: BTreeMap<&ServiceId, Action> = BTreeMap::new();
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
                // A step on the way; or a service is left short.
                _ if lost.is_zero() => HoldsIf::P99Falls,
                _ => HoldsIf::Qos { at_least: qos },
            };
            let mut because = self.because(now_ms, s, life, Some(*cell).filter(|_| !blind)).expect(holds_if);
            if blind {
                because.reject("its OAA at once", format!("models are asked after {} ms on known resources", self.set.patience.sample_ms));
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
            actions.insert(id, Action { service: id.clone(), kind, why: text, because });
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
            plan.actions.extend(actions.remove(id));
            let was_new = life.is_new();
            life.new_since_ms = blind.then_some(now_ms);
            life.changed_ms = now_ms;
            life.planned_rps = life.rps;
            life.predicted = (!blind).then_some(cell.qos.max(0.0));
            let lost = held.minus(cell.held);
            // A service whose target was missed before has nothing to go back to.
            let well = s.qos_met() == Some(true) && life.strikes == 0;
            let watched = !blind && !lost.is_zero() && (well || was_new);
            life.lost = well && !was_new && cell.qos >= 1.0 && cell.held.fits_in(*held);
            let (watch_ms, window_ms) = if self.set.is_slow(s) {
                (self.set.patience.slow_ms + self.set.patience.watch_ms, self.set.patience.slow_ms)
            } else {
                (self.set.patience.watch_ms, WINDOW_MS)
            };
            life.watch = watched.then_some(Watch {
                until_ms: now_ms + watch_ms,
                before: *held,
                given: somebody_gains,
                qos: s.qos().filter(|_| well),
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
        if let Some(why) = &asked.no_answer {
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
            b.say("ledger and Model-B", format!("QoS on {}, corrected by what was seen", words(cell.held, p)), cell.qos.max(0.0), "");
        }
        b.say("confidence", "Model-B's relative error on this service", life.error, "");
        b.say("confidence", "QoS required of what is taken", self.required(life), "");
        b
    }

    /// A disturbance: a few plans may take something again.
    fn disturbed(&mut self, now_ms: u64) {
        self.refines = self.set.patience.refines;
        self.refine_ms = now_ms;
        (self.setbacks, self.vain_looks, self.poor_plans) = (0, 0, 0);
        self.poor_ms = self.poor_ms.min(now_ms + self.set.patience.again_ms);
    }

    /// The role of a service in a plan for others: it may give while it is well, and keeps what it has otherwise.
    fn role(&self, now_ms: u64, s: &ServiceView, life: &Life, of: impl Fn(&ServiceView) -> Option<Role>) -> Role {
        if let Some(role) = of(s) {
            return role;
        }
        // What a slow service answers now says nothing yet about the cell that it has.
        let calm_ms = self.set.patience.slow_ms;
        let settled =
            !self.set.is_slow(s) || life.is_new() || life.met_since_ms.is_some_and(|t| now_ms >= t.max(life.changed_ms) + calm_ms);
        let well = s.qos().is_some_and(|q| q >= self.set.comfort_qos()) && life.strikes == 0 && settled;
        if s.latency_unknown() || s.qos().is_none() || life.features.is_empty() || life.futile.is_some() {
            Role::Keeps
        } else if well && !life.is_new() && (life.watch.is_none() || life.features.len() >= self.set.readings.enough_intervals) {
            Role::MayGive
        } else {
            Role::Strained
        }
    }

    /// All its cores are busy: a queue grows, whatever latency shows.
    fn is_saturated(&self, s: &ServiceView) -> bool {
        self.lives.get(&s.id).is_some_and(|l| l.features.len() >= self.set.readings.enough_intervals)
            && self.is_busier(s, self.set.busy.full)
    }

    /// Of its cores more than this share is busy.
    fn is_busier(&self, s: &ServiceView, share: f64) -> bool {
        let cores = self.books.platform.cores(self.books.usable(&s.id).cores);
        self.lives.get(&s.id).and_then(|l| mean(&l.features).cpu_usage_cores).is_some_and(|b| b > share * cores)
    }
}

/// What is asked about one of them.
fn asked_of<'a, 's>(asked: &'a [Asked<'s>], id: &ServiceId) -> Option<&'a Asked<'s>> {
    asked.iter().find(|a| a.s.id == *id)
}

impl Settings {
    /// Those of `surefoot-memory`.
    fn with_memory(mut self) -> Self {
        let p = self.pages;
        (self.busy.most_beside_be, self.prices.r#move) = (p.busy, p.moves * self.prices.r#move);
        (self.patience.refines, self.memory.grudge_ms) = (p.plans, p.forget_ms);
        self
    }

    /// Before what failed is tried again: what was seen on a cell is just forgotten.
    fn again_ms(&self) -> u64 {
        self.memory.grudge_ms + 1000
    }

    /// So few requests, or such long ones, that an interval says nothing about them.
    fn is_slow(&self, s: &ServiceView) -> bool {
        s.qos_target_ms().is_some_and(|t| t >= SLOW_TARGET_MS) || s.window.is_some_and(|w| w.verdict == Verdict::NotResolvable)
    }
}

impl Policy for Surefoot {
    fn name(&self) -> &str {
        if self.owns_memory {
            "surefoot-memory"
        } else {
            "surefoot"
        }
    }

    fn owns(&self) -> &[Resource] {
        if self.owns_memory {
            &OWNS
        } else {
            &Resource::CORES_AND_WAYS
        }
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        let pace = Pace::every(interval_ms)?;
        self.set = paced(&self.given, pace);
        self.pace = pace;
        Ok(())
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let news = self.books.follow(seen);
        self.lives.retain(|id, _| seen.get(id).is_some());
        self.look(now_ms, seen);
        if let Some(pages) = &mut self.pages {
            pages.look(now_ms, seen, &self.set.pages);
        }
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
        let shortfall = self.books.be_lacks();
        if !shortfall.is_zero() {
            self.make_room_for_be(now_ms, seen, shortfall, &mut plan);
        }
        let rolled_back = self.withdraw(now_ms, seen, &mut plan);
        let moved = self.load_moved(now_ms, seen);
        if moved {
            self.disturbed(now_ms);
        }
        let arrived: BTreeSet<ServiceId> = news.lc_arrived.iter().cloned().collect();
        // Others may make room by now for a newcomer that found none. Where nothing is free that is asked seldom.
        let room = self.books.least().fits_in(self.books.free()) || now_ms >= self.again_ms;
        let waiting = arrived.iter().any(|id| room && self.books.unit_is_left_for(id) || !self.books.is_crowded(id));
        self.give_back(now_ms, seen, &mut plan);
        let (mut missing, uneasy) = self.needy(now_ms, seen);
        self.bandwidth(now_ms, seen, &mut missing, &mut plan);
        let ready = self.ready(now_ms, seen);
        if waiting {
            self.place_new(now_ms, seen, &arrived, &mut plan);
        } else if !ready.is_empty() || !missing.is_empty() && now_ms >= self.try_ms {
            let all: BTreeSet<ServiceId> = ready.union(&missing).cloned().collect();
            if !missing.is_empty() {
                self.refines = self.set.patience.refines;
            }
            let decided = self.enlarge(now_ms, seen, &all, &mut plan);
            // Placed, be it where it was.
            for id in ready.iter().filter(|_| decided) {
                self.lives.entry(id.clone()).and_modify(|l| l.new_since_ms = None);
            }
        } else if !uneasy.is_empty() {
            self.comfort(now_ms, seen, &uneasy, &mut plan);
        } else if !rolled_back {
            self.refine(now_ms, seen, &mut plan);
        }
        self.rebalance(now_ms, seen, &mut plan);

        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        if let Some(pages) = &self.pages {
            pages.plan(seen, &mut plan);
        }
        plan
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
