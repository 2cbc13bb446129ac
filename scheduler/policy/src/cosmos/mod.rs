//! COSMOS: cores, memory and a pool of compressed pages for an LC service and a BE job (Algorithms 1 and 2 of the COSMOS paper).
//!
//! What must hold: limits that are set add up to the machine's memory and no more; the pool lies inside its limit; no limit of an LC service is below
//! what all of its pages compress to; nothing is taken from a service of unknown latency; once a state is kept, nothing moves until load,
//! footprint, ratio, mix or QoS change.
//!
//! A *state* is cores, memory M and pool of the LC services; the jobs have the rest. With w the footprint and gamma the compression ratio
//!
//! ```text
//! pool = min((w - M) / (gamma - 1), M)                                             (Eq. 2)
//! ```
//!
//! because M - pool resident bytes and gamma x pool compressed ones then cover w.
//!
//! Algorithm 1: explore states, one a period, and keep the best one that meets the target. Algorithm 2 chooses the next one:
//!
//! * **memory**: M begins at what the jobs' footprint leaves (R2), at least w / gamma (R1), and grows by 5 % of w while the target is missed;
//! * **cores**: from the first state that meets it on, one core after the other goes to the jobs while the target is met and their throughput
//!   rises. A miss gives M another 5 % of w, since less compressed memory makes fewer cores do. No rise ends the search.
//!
//! What the paper leaves open is decided in docs/cosmos.md, point by point.

pub mod fixed;
pub(crate) mod groups;
pub mod per_service;
mod settings;
pub(crate) mod sizes;
pub mod slack;

#[cfg(test)]
mod tests;

pub use settings::{Fixed, Judge, Least, Ratio, Readapt, Settings, Step};
pub use sizes::largest_pool;

use crate::pace::Pace;
use crate::policy::ask_for;
use crate::Policy;
use groups::{limit, pool, shares, Gathered, Groups, Limits};
use sizes::{Resident, Sizes, Withheld};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use surefoot_server::{
    Action, ActionKind, Because, Change, HoldsIf, Limit, Observation, Plan, Platform, Report, Resource, ServiceId, ServiceView,
};

pub(crate) const GB: f64 = (1u64 << 30) as f64;
/// What this policy decides.
const OWNS: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Zswap];
/// Standard deviations of a number of requests: a change of load within them is none.
const LOAD_SIGMAS: f64 = 3.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The search goes on.
    Exploration,
    /// A state is kept.
    Idle,
}

/// Why a kept state is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    Load,
    /// Footprint or compression ratio.
    Sizes,
    Missed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sub {
    Memory,
    Cores,
}

/// One state.
#[derive(Clone, Debug, PartialEq)]
struct State {
    /// Core units of the LC services.
    cores: u32,
    /// Bytes of memory of the LC services; None: no limits, the kernel divides.
    memory: Option<f64>,
    /// It begins the search of memory: M follows from footprints, and is computed anew with them.
    first: bool,
    /// What M comes to for each service and job.
    limits: Limits,
}

/// What has to be different for so many periods before a state is given up.
#[derive(Clone, Copy, Debug, Default)]
struct Streaks {
    load: u32,
    /// The load has risen, and the target is met by less than the margin.
    tight: u32,
    sizes: u32,
    /// Periods that missed the target, less what was forgiven.
    misses: f64,
    /// The target was met although no state is known that meets it.
    well: u32,
}

/// The policy.
pub struct Cosmos {
    pace: Pace,
    set: Settings,
    groups: Groups,
    /// Bytes that limits share out; None where the platform's memory is unknown.
    capacity: Option<f64>,
    phase: Phase,
    sub: Sub,
    current: State,
    best: Option<(State, f64)>,
    /// Whether the last judged state met the target with more throughput than any before.
    rose: bool,
    /// States judged since the last reset.
    explored: u32,
    sizes: Sizes,
    resident: Resident,
    /// Memory of the current state has moved by less than the least since the last look.
    at_rest: bool,
    since_ms: u64,
    /// Times that the current state's limits were computed anew.
    anew: u32,
    /// Core units that the LC services hold while memory of the current state still moves; None: those of the state.
    meanwhile: Option<u32>,
    /// The fewest core units that met the target in this search.
    enough: Option<u32>,
    /// The search began with fewer than all cores.
    short_cut: bool,
    /// Core units below which the target is known to be missed.
    floor: u32,
    /// The most core units that missed the target in this search.
    missed: u32,
    /// Core units of the state before, where many were taken at once.
    leapt_from: Option<u32>,
    next_ms: u64,
    /// Periods of the current state that were read.
    read: usize,
    /// Of these periods, and of the last one alone.
    judged: Gathered,
    period: Gathered,
    period_ms: u64,
    /// Requests a second that the search began with, or that the kept state was found at; None: not known yet.
    load: Option<f64>,
    kept: Sizes,
    streaks: Streaks,
    margin: f64,
    told: bool,
    withheld: Withheld,
    /// Limits were asked for and never came into force: cores alone are searched until services or jobs come or go.
    cores_alone: bool,
    wanted: BTreeMap<ServiceId, Change>,
}

impl State {
    /// What it is to the LC services after another one.
    fn against(&self, before: &State, lc: &[ServiceId]) -> ActionKind {
        // Without a limit it may have everything.
        let of = |s: &State, id: &ServiceId| s.limits.get(id).and_then(|(limit, _)| limit.bytes()).map_or(f64::INFINITY, |b| b as f64);
        let limits = |s: &State| lc.iter().map(|id| of(s, id)).sum::<f64>();
        let has_less = match self.cores.cmp(&before.cores) {
            Ordering::Equal => limits(self) < limits(before),
            order => order == Ordering::Less,
        };
        if has_less {
            ActionKind::Shrink
        } else {
            ActionKind::Grow
        }
    }
}

impl Cosmos {
    pub fn new(platform: &Platform, settings: Settings) -> Self {
        Cosmos {
            pace: Pace::default(),
            set: settings,
            groups: Groups::new(platform),
            capacity: platform.memory.map(|m| m.capacity_bytes as f64),
            phase: Phase::Exploration,
            sub: Sub::Memory,
            current: State { cores: 0, memory: None, first: false, limits: Limits::new() },
            best: None,
            rose: false,
            explored: 0,
            sizes: Sizes::default(),
            resident: Resident::default(),
            at_rest: false,
            since_ms: 0,
            anew: 0,
            meanwhile: None,
            enough: None,
            short_cut: false,
            floor: 0,
            missed: 0,
            leapt_from: None,
            next_ms: 0,
            read: 0,
            judged: Gathered::default(),
            period: Gathered::default(),
            period_ms: 0,
            load: None,
            kept: Sizes::default(),
            streaks: Streaks::default(),
            margin: settings.judge.margin,
            told: false,
            withheld: Withheld::default(),
            cores_alone: false,
            wanted: BTreeMap::new(),
        }
    }

    fn most_cores(&self) -> u32 {
        self.groups.most_lc(self.set.least.be_cores).max(self.groups.least_lc())
    }

    /// Bytes of each LC service below which its limit does not go (R1); None where sizes are not known.
    fn floors(&self) -> Option<Vec<f64>> {
        self.groups.lc.iter().map(|id| Some(self.sizes.compressed(id)? * self.set.least.compressed)).collect()
    }

    /// Least and most memory of the LC services; None where sizes are not known, limits are not taken, or not even all pages compressed fit.
    fn bounds(&self) -> Option<(f64, f64)> {
        let most = self.capacity.filter(|_| !self.cores_alone)? * (1.0 - self.set.least.be_memory);
        let least: f64 = self.floors()?.iter().sum();
        (least <= most).then_some((least, most))
    }

    /// Whether states that cannot be the best are left out (the paper's optimisation, Sec. V-B and VI-C).
    fn skips(&self) -> bool {
        self.set.step.skips > 0
    }

    /// M of the first state: the jobs' footprint fits (R2), and all of the LC services' compressed (R1). Without skipping the least.
    fn first_memory(&self) -> Option<f64> {
        let (least, most) = self.bounds()?;
        let left = self.capacity? - self.sizes.sum(&self.groups.be)?;
        Some(if self.skips() { left.clamp(least, most) } else { least })
    }

    /// Limits of every service and job where the LC services have `memory`. Each has its floor, and by what lies above it the rest; jobs have theirs by
    /// footprint.
    fn limits(&self, memory: Option<f64>) -> Limits {
        let (Some(capacity), Some(m)) = (self.capacity, memory) else {
            return self.groups.lc.iter().chain(&self.groups.be).map(|id| (id.clone(), (Limit::None, Limit::None))).collect();
        };
        let mut all = Limits::new();
        let lc = self.sizes.of(&self.groups.lc);
        let floors = self.floors().unwrap_or_else(|| vec![0.0; lc.len()]);
        let least: f64 = floors.iter().sum();
        let above: Vec<f64> = lc.iter().zip(&floors).map(|(w, floor)| (w - floor).max(0.0)).collect();
        for ((id, share), floor) in self.groups.lc.iter().zip(shares(&above)).zip(&floors) {
            let own = if m >= least { floor + (m - least) * share } else { m * floor / least };
            all.insert(id.clone(), self.sizes.limits(id, own, &self.set));
        }
        for (id, share) in self.groups.be.iter().zip(shares(&self.sizes.of(&self.groups.be))) {
            // The jobs' pages go to the device: the pool's gain is the LC services' (docs/cosmos.md, point 8).
            all.insert(id.clone(), (limit((capacity - m) * share), pool(0.0)));
        }
        all
    }

    fn state(&self, cores: u32, memory: Option<f64>, first: bool) -> State {
        State { cores, memory, first, limits: self.limits(memory) }
    }

    /// Everything that a search has found is forgotten. The next one begins with `cores` of the LC services and does not go below `floor`.
    fn reset(&mut self, now_ms: u64, (cores, floor): (u32, u32)) {
        (self.phase, self.sub) = (Phase::Exploration, Sub::Memory);
        (self.best, self.rose, self.explored, self.load, self.told) = (None, false, 0, None, false);
        (self.enough, self.short_cut, self.floor) = (None, cores < self.most_cores(), floor);
        (self.missed, self.leapt_from) = (0, None);
        // Sizes that are known need not be measured again: the search of memory begins at once.
        let memory = self.first_memory();
        let next = self.state(cores, memory, memory.is_some());
        self.enter(next, now_ms);
    }

    /// Cores that a search begins with after a kept state was given up (those that were kept, by load, and some more), and the fewest that it tries:
    /// what missed the target does so under more load, too. All cores, and no such bound, where sizes have changed or no state was kept.
    fn first_cores(&self, given_up: GivenUp, load_now: f64) -> (u32, u32) {
        let (Some((best, _)), Some(was), Phase::Idle, true) = (&self.best, self.load, self.phase, self.skips()) else {
            return (self.most_cores(), 0);
        };
        let (by_load, floor) = match given_up {
            GivenUp::Sizes => return (self.most_cores(), 0),
            GivenUp::Load if load_now >= was => (load_now / was.max(1e-9), best.cores + u32::from(self.streaks.misses >= 1.0)),
            // Fewer cores serve less of a load each: as much of it for each core as has missed the target misses it again.
            // What is held was enough for more.
            GivenUp::Load if self.missed > 0 => (1.0, ((f64::from(self.missed) * load_now / was).floor() as u32 + 1).min(best.cores)),
            GivenUp::Load => (1.0, 0),
            GivenUp::Missed => (1.0, best.cores + 1),
        };
        let cores = f64::from(best.cores) * by_load.max(1.0) + f64::from(self.set.readapt.more_cores);
        ((cores.ceil() as u32).clamp(self.groups.least_lc(), self.most_cores()), floor)
    }

    /// Cores after the first state of a search, where all cores met the target: as many as are busy for a part of the time, and some more.
    fn by_use(&self) -> Option<u32> {
        let (all, skips) = (self.best.is_none() && self.current.cores == self.most_cores(), self.skips());
        let busy = self.judged.busy_cores().filter(|_| all && skips)?;
        let cores = (busy / self.set.step.first_busy / self.groups.platform.core_step).ceil() as u32 + self.set.readapt.more_cores;
        let cores = cores.max(self.groups.least_lc()).max(self.floor);
        (cores + self.set.step.cores < self.current.cores).then_some(cores)
    }

    /// From here on `next` is wanted.
    fn enter(&mut self, next: State, now_ms: u64) {
        let moves = next.limits != self.current.limits;
        self.at_rest = !moves || next.memory.is_none();
        // Memory takes its time. Until it is there, a state with fewer cores than are known to be enough would miss the target.
        self.meanwhile = self.enough.filter(|enough| !self.at_rest && *enough > next.cores);
        self.current = next;
        self.since_ms = now_ms;
        self.anew = 0;
        self.read = 0;
        self.judged = Gathered::default();
        self.streaks = Streaks::default();
    }

    /// Memory of the current state is there, or has been waited for long enough.
    fn arrived(&self, now_ms: u64) -> bool {
        self.at_rest || now_ms - self.since_ms >= self.set.judge.most_wait_ms
    }

    fn settled(&self, now_ms: u64) -> bool {
        self.meanwhile.is_none() && now_ms - self.since_ms > self.set.judge.settle_ms && self.arrived(now_ms)
    }

    /// Limits in force that sizes of now no longer bear out; None: they do.
    fn stale(&self, now_ms: u64) -> Option<State> {
        if self.anew >= self.set.judge.anew || now_ms - self.since_ms < self.set.judge.settle_ms {
            return None;
        }
        self.by_sizes_of_now(&self.current)
    }

    /// A state whose limits sizes of now no longer bear out, with those that they do; None: they bear it out.
    fn by_sizes_of_now(&self, state: &State) -> Option<State> {
        let memory = state.memory?;
        let Some((least, most)) = self.bounds() else {
            // A floor that does not fit is no limit: the kernel divides.
            return (self.floors().is_some() || self.cores_alone).then(|| self.state(state.cores, None, false));
        };
        let now = if state.first { self.first_memory()? } else { memory.clamp(least, most) };
        let next = State { cores: state.cores, memory: Some(now), first: state.first, limits: self.limits(Some(now)) };
        let bytes = |l: Limit| l.bytes().unwrap_or(0) as f64;
        let off = |id: &ServiceId| {
            // A small service beside a large one is no reason to move both.
            let group = if self.groups.lc.contains(id) { &self.groups.lc } else { &self.groups.be };
            let w = self.sizes.sum(group).unwrap_or(f64::INFINITY);
            let (is, was) = (next.limits.get(id)?, state.limits.get(id)?);
            Some((bytes(is.0) - bytes(was.0)).abs().max((bytes(is.1) - bytes(was.1)).abs()) > self.set.judge.same * w)
        };
        let any = next.limits.keys().any(|id| off(id).unwrap_or(true));
        any.then_some(next)
    }

    /// A period has passed.
    fn look(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        self.sizes.measure(seen, &self.set);
        let rests = self.resident.rests(seen, &self.sizes, self.set.judge.rest);
        self.at_rest |= rests && now_ms - self.since_ms >= self.set.step.period_ms;
        let period = std::mem::take(&mut self.period);
        let length_s = (now_ms - std::mem::replace(&mut self.period_ms, now_ms)) as f64 / 1000.0;
        let Some(qos) = period.qos(seen) else {
            // Of unknown latency nothing follows.
            return;
        };
        if let Some(given_up) = self.readapts(&period, (qos, period.miss(seen)), length_s) {
            let cores = self.first_cores(given_up, period.requests() / length_s);
            let why = match self.phase {
                Phase::Exploration => "the load has changed: the search begins anew",
                Phase::Idle => "the kept state no longer fits: the search begins anew",
            };
            self.reset(now_ms, cores);
            self.act(seen, ActionKind::Grow, why, HoldsIf::Qos { at_least: 1.0 }, "all variables are reset (Algorithm 1)", plan);
            return;
        }
        if self.phase == Phase::Idle {
            return;
        }
        if self.sub == Sub::Memory && self.current.memory.is_none() && self.first_memory().is_some() {
            // The initial state is for measuring sizes alone.
            self.explored += 1;
            let next = self.state(self.current.cores, self.first_memory(), true);
            self.enter(next, now_ms);
            let bound = "the jobs' footprint fits (R2), and all of the LC services' pages do, compressed (R1)";
            self.act(seen, ActionKind::Shrink, "sizes are known: memory is divided", HoldsIf::Qos { at_least: 1.0 }, bound, plan);
            return;
        }
        if let Some(next) = self.stale(now_ms) {
            // Pool and limits were computed by sizes that have turned out otherwise: the state is not judged by them.
            let (anew, kind) = (self.anew + 1, next.against(&self.current, &self.groups.lc));
            let holds_if = if kind == ActionKind::Grow { HoldsIf::P99Falls } else { HoldsIf::Qos { at_least: 1.0 } };
            self.enter(next, now_ms);
            self.anew = anew;
            let why = "footprint or ratio turned out otherwise: limits are computed anew";
            self.act(seen, kind, why, holds_if, "limits follow what is measured", plan);
            return;
        }
        let weighs = self.weighs(now_ms);
        if !weighs && !self.settled(now_ms) {
            return;
        }
        self.read += 1;
        if self.read < self.set.judge.readings {
            return;
        }
        if weighs {
            self.weigh(now_ms, seen, plan);
            return;
        }
        // Where all cores are there is nothing more to give for a wider margin.
        let few = if self.current.cores == self.most_cores() { self.margin } else { self.set.judge.margin_few };
        let Some(judged) = self.judged.verdict(seen, self.margin, few) else { return };
        if judged.clear || self.read as u64 * self.set.step.period_ms >= self.set.judge.most_ms {
            self.judge(now_ms, judged.met, seen, plan);
        }
    }

    /// Whether memory of the current state is there, and the service holds more cores than the state has: what its jobs do is read first.
    fn weighs(&self, now_ms: u64) -> bool {
        self.meanwhile.is_some() && self.arrived(now_ms) && now_ms - self.since_ms > self.set.judge.settle_ms
    }

    /// The cores of the current state follow its memory, unless the jobs have lost more by that than those cores can give: throughput
    /// grows at most as their cores do. So a state that cannot be the best is not tried at the service's cost.
    fn weigh(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let jobs = |lc_cores: u32| f64::from(self.groups.platform.core_units().saturating_sub(lc_cores));
        let now = self.meanwhile.map_or(1.0, jobs).max(1.0);
        let at_most = self.judged.throughput() * jobs(self.current.cores) / now;
        match &self.best {
            Some((_, best)) if at_most <= best * (1.0 + self.set.judge.gain) => {
                self.meanwhile = None;
                self.explored += 1;
                self.keep(now_ms, "memory has cost the BE jobs more than a core can give them", seen, plan);
            }
            _ => {
                (self.meanwhile, self.at_rest, self.since_ms) = (None, true, now_ms);
                (self.read, self.judged) = (0, Gathered::default());
                let why = "memory is there: a core goes to the BE jobs";
                self.act(seen, ActionKind::Shrink, why, HoldsIf::Qos { at_least: 1.0 }, "one step of cores a state", plan);
            }
        }
    }

    /// Whether what the search rests on has changed, and what of it.
    fn readapts(&mut self, period: &Gathered, (qos, miss): (f64, f64), length_s: f64) -> Option<GivenUp> {
        let Readapt { load, periods, misses, forgive, .. } = self.set.readapt;
        let misses = f64::from(misses);
        let settled = self.since_ms + self.set.judge.settle_ms < self.period_ms;
        // While the target is missed, what is served may be less than what is asked for, but not more.
        if settled {
            let (now, noise) = (period.requests() / length_s, LOAD_SIGMAS * period.requests().sqrt() / length_s);
            if qos >= 1.0 {
                self.load.get_or_insert(now);
            }
            let change = self.load.map_or(0.0, |was| if qos >= 1.0 { (now - was).abs() } else { now - was });
            let changed = self.load.is_some_and(|was| change > load * was + noise);
            self.streaks.load = if changed { self.streaks.load + 1 } else { 0 };
            // More load takes up the room that the state was kept with.
            let margin = self.set.judge.margin;
            let tight =
                self.best.is_some() && qos < 1.0 / (1.0 - margin) && self.load.is_some_and(|was| now > was * (1.0 + margin) + noise);
            self.streaks.tight = if tight { self.streaks.tight + 1 } else { 0 };
        }
        if self.phase == Phase::Exploration {
            if self.streaks.load >= periods {
                self.margin = self.set.judge.margin;
            }
            return (self.streaks.load >= periods).then_some(GivenUp::Load);
        }
        let off = [&self.groups.lc, &self.groups.be].iter().any(|side| self.sizes.are_off(&self.kept, side, &self.set.readapt));
        self.streaks.sizes = if off { self.streaks.sizes + 1 } else { 0 };
        // A kept state is not blamed for what moves into it.
        let missed = qos < 1.0 && self.settled(self.period_ms);
        // At the edge a miss comes now and then, and never so many in a row.
        self.streaks.misses = if missed { self.streaks.misses + miss } else { (self.streaks.misses - forgive).max(0.0) };
        let well = self.best.is_none() && qos >= 1.0 / (1.0 - self.margin) && self.settled(self.period_ms);
        self.streaks.well = if well { self.streaks.well + 1 } else { 0 };
        let given_up = if self.streaks.sizes >= periods {
            GivenUp::Sizes
        } else if self.streaks.load.max(self.streaks.tight) >= periods || self.streaks.load > 0 && self.streaks.misses >= misses {
            // Of a target that is missed under more load, the load is the reason.
            GivenUp::Load
        } else if self.streaks.misses >= misses {
            GivenUp::Missed
        } else if self.streaks.well >= periods {
            // What no state could hold can be held now. The load that it failed under was never known.
            GivenUp::Load
        } else {
            return None;
        };
        if given_up != GivenUp::Missed {
            self.margin = self.set.judge.margin;
        } else if self.best.is_some() {
            self.margin = (self.margin + self.set.judge.margin_step).min(self.set.judge.margin_most).max(self.margin);
        } else {
            // No state meets the target: another search would find the same.
            self.streaks.misses = 0.0;
            return None;
        }
        Some(given_up)
    }

    /// Lines 6 to 8 of Algorithm 1 for the current state.
    fn judge(&mut self, now_ms: u64, met: bool, seen: &Observation, plan: &mut Plan) {
        let throughput = self.judged.throughput();
        self.explored += 1;
        if met {
            // With more memory it is enough.
            self.missed = self.missed.min(self.current.cores.saturating_sub(1));
            self.enough = Some(self.enough.map_or(self.current.cores, |e| e.min(self.current.cores)));
        } else {
            self.missed = self.missed.max(self.current.cores);
        }
        if !met && self.short_cut && self.best.is_none() {
            self.short_cut = false;
            self.floor = self.floor.max(self.current.cores + 1).min(self.most_cores());
            let next = State { cores: self.most_cores(), ..self.current.clone() };
            self.enter(next, now_ms);
            let bound = "all cores but the least";
            self.act(seen, ActionKind::Grow, "fewer cores were not enough", HoldsIf::Qos { at_least: 1.0 }, bound, plan);
            return;
        }
        if let (Some(from), false) = (self.leapt_from.take(), met) {
            self.floor = self.floor.max(self.current.cores + 1);
            let cores = from.saturating_sub(self.set.step.cores).max(self.floor);
            let next = State { cores, ..self.current.clone() };
            self.enter(next, now_ms);
            let why = "so many cores at once were too many: one after the other";
            self.act(seen, ActionKind::Grow, why, HoldsIf::Qos { at_least: 1.0 }, "one step of cores a state", plan);
            return;
        }
        let by_use = self.by_use().filter(|_| met);
        let most = self.best.as_ref().map_or(0.0, |b| b.1);
        self.rose = met && throughput > most * (1.0 + self.set.judge.gain);
        if self.rose || met && self.best.is_none() {
            self.best = Some((self.current.clone(), throughput));
        }
        match self.next(met) {
            Ok((sub, mut next)) => {
                if let Some(cores) = by_use {
                    (self.leapt_from, next.cores) = (Some(self.current.cores), cores);
                }
                let fewer = next.cores < self.current.cores;
                self.sub = sub;
                self.enter(next, now_ms);
                if fewer {
                    let (why, bound) = match self.leapt_from {
                        Some(_) => (
                            "the target is met: cores that are hardly used go to the BE jobs",
                            "what is busy, at the share of step.first_busy, and some more",
                        ),
                        None => ("the target is met: a core goes to the BE jobs", "one step of cores a state"),
                    };
                    self.act(seen, ActionKind::Shrink, why, HoldsIf::Qos { at_least: 1.0 }, bound, plan);
                } else {
                    let why = "more of the memory is resident, less is compressed";
                    self.act(seen, ActionKind::Grow, why, HoldsIf::P99Falls, "one step of memory a state", plan);
                }
            }
            Err(why) => self.keep(now_ms, why, seen, plan),
        }
    }

    /// Algorithm 2: the next state, or why there is none.
    fn next(&self, met: bool) -> Result<(Sub, State), &'static str> {
        let State { cores, memory, .. } = self.current;
        let more = |cores: u32| {
            let (m, w, (_, most)) = (memory?, self.sizes.sum(&self.groups.lc)?, self.bounds()?);
            // More than all of it is no help, and the jobs' loss.
            let most = most.min(w.max(self.first_memory()?));
            (m < most).then(|| self.state(cores, Some((m + self.set.step.memory * w).min(most)), false))
        };
        let least = self.groups.least_lc().max(self.floor);
        let fewer = || {
            (cores > least).then(|| State {
                cores: cores.saturating_sub(self.set.step.cores).max(least),
                first: false,
                ..self.current.clone()
            })
        };
        if !self.skips() {
            // Every number of cores under every M, as long as the target is met.
            let next = if met { fewer() } else { None };
            return next.or_else(|| more(self.most_cores())).map(|s| (Sub::Cores, s)).ok_or("every memory was tried");
        }
        match (self.sub, met) {
            (Sub::Cores, true) if !self.rose => Err("throughput of the BE jobs rises no more"),
            (_, true) => fewer().map(|s| (Sub::Cores, s)).ok_or("the least cores are reached, or fewer missed the target before"),
            (sub, false) => more(cores).map(|s| (sub, s)).ok_or("no memory is left to give"),
        }
    }

    /// Keep the best state, or where none met the target the one with most of everything.
    fn keep(&mut self, now_ms: u64, why: &'static str, seen: &Observation, plan: &mut Plan) {
        self.phase = Phase::Idle;
        self.kept = self.sizes.clone();
        let kept = match &self.best {
            Some((best, _)) => self.by_sizes_of_now(best).unwrap_or_else(|| best.clone()),
            None => State { cores: self.most_cores(), ..self.current.clone() },
        };
        let kind = kept.against(&self.current, &self.groups.lc);
        let changes = kept != self.current;
        self.enter(kept, now_ms);
        if self.best.is_none() && !self.told {
            self.told = true;
            let why = format!("no state of {} meets its target: {why}", self.explored);
            plan.reports.extend(self.groups.lc.iter().map(|id| Report::Migrate { service: id.clone(), why: why.clone() }));
        }
        if changes {
            self.act(seen, kind, "the best state is kept", HoldsIf::Qos { at_least: 1.0 }, why, plan);
        }
    }

    /// An action for each service and job: what is known of sizes, what the state is, and why.
    fn act(&self, seen: &Observation, kind: ActionKind, why: &str, holds_if: HoldsIf, bound: &'static str, plan: &mut Plan) {
        let memory = self.current.memory.map_or("memory as the kernel divides it".into(), |m| {
            let pools: u64 = self.groups.lc.iter().filter_map(|id| self.current.limits.get(id)?.1.bytes()).sum();
            format!("{:.1} GiB, of which {:.1} may be compressed", m / GB, pools as f64 / GB)
        });
        for s in &seen.services {
            let other = match kind {
                ActionKind::Grow => ActionKind::Shrink,
                ActionKind::Shrink => ActionKind::Grow,
                kind => kind,
            };
            // A service that is here already is not placed, it gets more.
            let kind = if kind == ActionKind::Place && s.placed && s.is_lc() { ActionKind::Grow } else { kind };
            let other = if other == ActionKind::Place && s.placed { ActionKind::Shrink } else { other };
            let (kind, holds_if) = if s.is_lc() { (kind, holds_if) } else { (other, HoldsIf::NotJudged) };
            let because = self.because(s, bound).expect(holds_if);
            // While memory of a state is fetched it may still hold more cores than the state has.
            let cores = self.meanwhile.unwrap_or(self.current.cores);
            let why = format!("{why}; LC services: {cores} core units, {memory}");
            plan.actions.push(Action { service: s.id.clone(), kind, why, because });
        }
    }

    fn because(&self, s: &ServiceView, bound: &'static str) -> Because {
        let mut because = Because::seen(s);
        let gb = |bytes: Option<f64>| bytes.map_or(f64::NAN, |b| b / GB);
        because.say("cosmos", "w, the footprint", gb(self.sizes.footprint.get(&s.id).copied()), "GiB");
        because.say("cosmos", "gamma, the compression ratio", self.sizes.ratio.get(&s.id).copied().unwrap_or(f64::NAN), "");
        if let Some((limit, pool)) = self.current.limits.get(&s.id) {
            because.say("cosmos", "M, its memory", gb(limit.bytes().map(|b| b as f64)), "GiB");
            because.say("cosmos", "the pool within it (Eq. 2)", gb(pool.bytes().map(|b| b as f64)), "GiB");
        }
        because.say("cosmos", "throughput of the BE jobs in the best state so far", self.best.as_ref().map_or(0.0, |b| b.1), "1/s");
        because.say("cosmos", "p99 that it must stay below, share of its target; less where requests are few", 1.0 - self.margin, "");
        because.say("cosmos", "states judged", f64::from(self.explored), "");
        if self.capacity.is_none() {
            because.reject("limits on memory", "the memory of this host is unknown: cores only");
        } else if self.cores_alone {
            because.reject("limits on memory", "this kernel has not taken them: cores only");
        } else if self.floors().is_some() && self.bounds().is_none() {
            because.reject("limits on memory", "the LC services' pages do not fit, not even compressed: the kernel divides");
        } else if self.sizes.sum(&self.groups.lc).is_none() {
            because.reject("limits on memory", "footprints are not measured yet");
        }
        because.bind(bound);
        because
    }

    /// Services or jobs came or went.
    fn arrive(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        self.sizes.keep(seen);
        self.resident.keep(seen);
        self.margin = self.set.judge.margin;
        self.withheld.clear();
        self.cores_alone = false;
        self.reset(now_ms, (self.most_cores(), 0));
        let bound = "all cores but the least, and no limit until footprints are known";
        self.act(seen, ActionKind::Place, "a new mix: the search begins", HoldsIf::Qos { at_least: 1.0 }, bound, plan);
    }

    /// Allocations of the current state.
    fn lay_out(&mut self, seen: &Observation, plan: &mut Plan) {
        let owns_memory = self.capacity.is_some();
        if !self.groups.divides() {
            self.wanted = self.groups.everything(owns_memory);
            if let (false, [first, ..], false) = (self.told, &self.groups.lc[..], self.groups.be.is_empty()) {
                self.told = true;
                let why = "two groups cannot both have the least: everything is shared".to_string();
                plan.reports.push(Report::CannotPlace { service: first.clone(), why });
            }
            return;
        }
        match self.groups.cores(seen, self.meanwhile.unwrap_or(self.current.cores)) {
            Ok(all) => self.wanted = all,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        if owns_memory {
            for (id, change) in &mut self.wanted {
                let (mem, zswap) = self.current.limits.get(id).copied().unwrap_or((Limit::None, Limit::None));
                (change.mem_limit, change.zswap_max) = (Some(mem), Some(zswap));
            }
        }
    }
}

impl Policy for Cosmos {
    fn name(&self) -> &str {
        "cosmos"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn owns(&self) -> &[Resource] {
        &OWNS
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let news = self.groups.follow(seen);
        let mut moves = news;
        if news {
            self.arrive(now_ms, seen, &mut plan);
            self.period = Gathered::default();
            (self.period_ms, self.next_ms) = (now_ms, now_ms + self.set.step.period_ms);
        } else if self.groups.divides() {
            self.period.add(seen);
            if !self.withheld.wait(now_ms, &self.wanted, seen, self.set.judge.most_wait_ms).is_empty() {
                // Put off by the guard, or not taken by the kernel yet: what is read is not of this state.
                (self.at_rest, self.read, self.judged) = (false, 0, Gathered::default());
            }
            if !self.cores_alone && self.withheld.refused {
                self.cores_alone = true;
                self.reset(now_ms, (self.most_cores(), 0));
                let why = "limits on memory are not taken: the search goes on with cores alone";
                self.act(seen, ActionKind::Grow, why, HoldsIf::Qos { at_least: 1.0 }, "until services or jobs come or go", &mut plan);
                moves = true;
            }
            if self.settled(now_ms) || self.weighs(now_ms) {
                self.judged.add(seen);
            }
            // A step later than asked for is a period longer.
            if now_ms + self.pace.interval_ms() / 2 >= self.next_ms {
                self.next_ms = now_ms + self.set.step.period_ms;
                let before = (self.current.clone(), self.meanwhile);
                self.look(now_ms, seen, &mut plan);
                moves |= (&before.0, before.1) != (&self.current, self.meanwhile);
            }
        }
        if moves {
            self.lay_out(seen, &mut plan);
        }
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}
