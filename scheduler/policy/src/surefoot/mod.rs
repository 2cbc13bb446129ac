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
//! * **Prices.** With BE jobs every core and way has a price, and nearness to the target a price of risk. Without, resources are
//!   nearly free, and services get distance from their cliffs.
//! * **Contended memory.** A service that misses its target on idle cores and a cell that Model-B holds for sufficient is taken to
//!   wait for memory: BE jobs' bandwidth goes down before the service is enlarged.
//!
//! Model-C is not asked: with joint plans there is no single step to choose. A model that cannot answer is replaced by a rule of
//! thumb (cores no busier than 60 %, ways as they are), and the action says so. Unknown latency neither grows nor shrinks.

pub mod joint;
pub mod ledger;

use crate::books::{Amount, Books};
use crate::models::{Area, Models, State};
use crate::osml_plus::{doubtful, mean, words};
use crate::Policy;
use joint::{cheapest, Choice};
use ledger::Ledger;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use surefoot_server::{
    Action, ActionKind, Because, Features, HoldsIf, Observation, Plan, Platform, Report, ServiceId, ServiceView, Verdict,
};

/// Knobs, with units.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a new service is watched before the models are asked.
    pub sample_ms: u64,
    /// The same for services too slow for a p99 of their own in a second, and for those that say nothing.
    pub sample_slow_ms: u64,
    /// QoS above 1 that a service is to be predicted with, at least.
    pub margin: f64,
    /// Errors of Model-B on this service that lie between its prediction and the target, at least.
    pub errors: f64,
    /// The error that Model-B is taken to have before it has been seen to predict.
    pub first_error: f64,
    /// Cores may be as busy as this after something was taken.
    pub busy: f64,
    /// Met with less than this, a service takes what is free.
    pub comfort_qos: f64,
    /// Between a change and the next judgement of the same service.
    pub settle_ms: u64,
    /// All must have met their targets for so long before anything is taken.
    pub calm_ms: u64,
    /// After something was taken, the loser is watched for so long.
    pub watch_ms: u64,
    /// A cell that missed its target is not tried again for so long; doubles with every hurt, up to eight times.
    pub grudge_ms: u64,
    /// A backlog that is gone within so long needs no further resources.
    pub patience_ms: u64,
    /// Plans that take something after a disturbance.
    pub refines: u32,
    /// Between two such plans when these are used up.
    pub calm_every_ms: u64,
    /// Between two plans that leave somebody short.
    pub poor_every_ms: u64,
    /// After a reclaim that hurt, the next one waits so long; doubles each time, up to sixteen times, until something changes.
    pub setback_ms: u64,
    /// The first BE job beside a service: it gets so much of what it holds on top, until it is seen how they get along. Siblings,
    /// frequency and memory are shared from then on, and no counter has said how much that costs.
    pub company: f64,
    /// Memory bandwidth that BE jobs begin with beside LC services, per cent, where it can be throttled.
    pub be_first_pct: u8,
    /// Between two raises of it that nobody suffered from.
    pub be_raise_ms: u64,
    /// Change of throughput that counts as a disturbance.
    pub load_change: f64,
    /// Price of all cores, with BE jobs and without.
    pub price_cores: [f64; 2],
    /// Price of all ways.
    pub price_ways: [f64; 2],
    /// Price of a QoS that is predicted 1 lower than ample, with BE jobs and without.
    pub price_risk: [f64; 2],
    /// Least gain in price for which something is taken.
    pub least_gain: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sample_ms: 300,
            sample_slow_ms: 1000,
            margin: 0.12,
            errors: 2.0,
            first_error: 0.08,
            busy: 0.85,
            comfort_qos: 1.05,
            settle_ms: 400,
            calm_ms: 1200,
            watch_ms: 2000,
            grudge_ms: 60_000,
            patience_ms: 1200,
            refines: 3,
            calm_every_ms: 31_000,
            poor_every_ms: 3_000,
            setback_ms: 4_000,
            company: 0.5,
            be_first_pct: 30,
            be_raise_ms: 900,
            load_change: 0.12,
            price_cores: [1.0, 0.5],
            price_ways: [0.4, 0.2],
            price_risk: [0.12, 0.25],
            least_gain: 0.03,
        }
    }
}

/// Intervals over which features are averaged.
const SMOOTH: usize = 5;
/// Change of throughput from one interval to the next that is not noise.
const JUMP: f64 = 0.2;
/// Share of the peak memory bandwidth above which memory may be what is waited for.
const CONTENDED: f64 = 0.6;
/// Predicted QoS from where more is worth nothing.
const AMPLE: f64 = 1.6;
/// Predicted QoS of the cells from which one is chosen, beyond what is required.
const LEVELS: [f64; 3] = [0.0, 0.2, 0.45];
/// Between two tries to help a service by giving it less.
const STUCK_MS: u64 = 20_000;
/// Gain in price for which somebody is left short.
const MUCH_BETTER: f64 = 0.5;
/// QoS below which a service is far behind.
const FAR: f64 = 0.5;
/// Risk of a blind cell that is good enough not to ask others.
const ENOUGH: f64 = 2.0;
/// In a plan for others, what it costs to move a service that is well.
const STAY: f64 = 0.5;
/// Share of a service's cores that is busy, below which more of them do not help, and above which nothing else does.
const IDLE: f64 = 0.6;
const BUSY: f64 = 0.92;
/// The same, from where a queue grows that latency may not show yet: a slow service is heard when it is done.
const SATURATED: f64 = 0.96;
/// QoS that Model-B must predict beyond what is required for a cell within Model-A's OAA.
const FURTHER: f64 = 0.2;
/// The same where not everybody can have enough.
const POOR_LEVELS: [f64; 4] = [1.02, 0.9, 0.7, 0.4];
/// Parts of an equal share for a service of which nothing is known, and their risk.
const BLIND: [(f64, f64); 6] = [(2.0, 0.0), (1.5, 0.3), (1.0, 0.8), (0.5, 2.0), (0.25, 3.0), (0.0, 5.0)];

/// Something was taken: what was held before, and until when it is given back at the first sign of harm.
#[derive(Clone, Copy, Debug)]
struct Watch {
    until_ms: u64,
    before: Amount,
    /// It went to another service, which needed it: only the loser's own harm counts.
    given: bool,
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
    /// Intervals in a row with a p99 above the target.
    strikes: u32,
    met_since_ms: Option<u64>,
    ledger: Ledger,
    /// Model-B's relative error on this service, smoothed; and the QoS that it predicted of the present cell.
    error: f64,
    predicted: Option<f64>,
    watch: Option<Watch>,
    hurts: u32,
    stuck_until_ms: u64,
    /// Enlargements in a row that were not enough.
    more: u32,
    reported: bool,
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
            strikes: 0,
            met_since_ms: None,
            ledger: Ledger::default(),
            error: first_error,
            predicted: None,
            watch: None,
            hurts: 0,
            stuck_until_ms: 0,
            more: 0,
            reported: false,
        }
    }

    fn is_new(&self) -> bool {
        self.new_since_ms.is_some()
    }
}

/// How much a plan may ask of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Only what is free: nobody gives, and nobody gets less of anything.
    Free,
    /// Whoever is well may give what it is predicted not to need.
    Trade,
    /// Not everybody can have enough.
    Poor,
}

const PASSES: [Pass; 3] = [Pass::Free, Pass::Trade, Pass::Poor];

/// A cell in question for a service, and the QoS that is expected there.
#[derive(Clone, Copy, Debug)]
struct Cell {
    held: Amount,
    qos: f64,
    /// Price of the risk, where it does not follow from `qos`.
    risk: Option<f64>,
}

impl Cell {
    fn new(held: Amount, qos: f64) -> Self {
        Cell { held, qos, risk: None }
    }
}

/// What is asked about one service while a plan is made.
struct Asked<'a> {
    policy: &'a Surefoot,
    s: &'a ServiceView,
    life: &'a Life,
    state: State,
    held: Amount,
    now_ms: u64,
    /// Model-B's error on what the service holds now; 0 where that says nothing.
    correction: f64,
    area: Option<Area>,
    /// Why models do not answer.
    mute: Option<String>,
    qos: Option<f64>,
    /// What [`Asked::on`] has answered, by cores and ways; NaN: not asked yet.
    answers: RefCell<Vec<f64>>,
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
    /// No plan before that leaves somebody short, and none for who misses its target, after one that brought nothing.
    poor_ms: u64,
    try_ms: u64,
    /// BE bandwidth: changed at, and how long the next raise waits.
    be_mba: (u64, u64),
    be_mba_raised: Option<u64>,
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
            poor_ms: 0,
            try_ms: 0,
            be_mba: (0, 0),
            be_mba_raised: None,
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
            if s.interval.is_some_and(|l| l.count >= 50 && life.rps > 0.0 && (l.achieved_rps / life.rps - 1.0).abs() > JUMP) {
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
                life.rps = if life.rps == 0.0 { l.achieved_rps } else { 0.7 * life.rps + 0.3 * l.achieved_rps };
            }
            let high = s.interval.zip(s.qos_target_ms()).is_some_and(|(l, t)| l.p99_ms > t && l.verdict != Verdict::NotResolvable);
            life.strikes = if high { life.strikes + 1 } else { 0 };
            match s.qos_met() {
                Some(true) => {
                    life.met_since_ms.get_or_insert(now_ms);
                }
                _ => life.met_since_ms = None,
            }
            // The window lies wholly behind the change: what was predicted can be judged, what is seen can be kept.
            let Some(qos) = s.qos().filter(|_| now_ms >= life.changed_ms + 1200 && !doubtful(s)) else { continue };
            if qos >= 1.0 {
                life.more = 0;
                life.reported = false;
                if self.books.slot(&s.id).is_some() {
                    life.ledger.note(now_ms, own, life.rps, qos, self.set.grudge_ms);
                }
            }
            if let Some(predicted) = life.predicted.take() {
                let cap = self.models.qos_cap();
                let error = (qos.min(cap) - predicted.min(cap)).abs() / predicted.clamp(1.0, cap);
                life.error = (0.7 * life.error + 0.3 * error).min(2.0);
            }
        }
    }

    fn ask<'a>(&'a self, now_ms: u64, s: &'a ServiceView, life: &'a Life) -> Asked<'a> {
        let held = self.books.usable(&s.id);
        let state = State { features: mean(&life.features), qos: s.qos() };
        let cap = self.models.qos_cap();
        let on = self.b(s, &state, held);
        let (area, mute) = match self.models.area(&s.service, &state) {
            Ok(a) if [Some(a.oaa_cores), a.oaa_ways, Some(a.rcliff_cores), a.rcliff_ways].into_iter().flatten().all(f64::is_finite) => {
                (Some(a), None)
            }
            Ok(_) => (None, Some("Model-A: not a number".into())),
            Err(e) => (None, Some(e)),
        };
        // While a backlog drains p99 says more about the past than about the cell.
        let correction = match (&on, s.qos()) {
            (Ok(b), Some(q)) if q >= 1.0 && !life.is_new() => q.min(cap) - b.min(cap),
            _ => 0.0,
        };
        Asked {
            policy: self,
            s,
            life,
            state,
            held,
            now_ms,
            correction,
            area,
            mute: on.err().or(mute),
            qos: s.qos(),
            answers: RefCell::default(),
        }
    }

    fn now(&self, now_ms: u64, s: &ServiceView, life: &Life) -> Cell {
        self.ask(now_ms, s, life).now()
    }

    /// Model-B as it stands.
    fn b(&self, s: &ServiceView, state: &State, a: Amount) -> Result<f64, String> {
        let q = self.models.qos(&s.service, state, self.books.platform.cores(a.cores), f64::from(a.ways))?;
        if q.is_finite() {
            Ok(q)
        } else {
            Err("Model-B: not a number".into())
        }
    }

    /// QoS that must be predicted for what is taken (and for what is given, where it can be had).
    fn required(&self, life: &Life) -> f64 {
        1.0 + self.set.margin.max(self.set.errors * life.error)
    }

    /// Price of a cell: its resources, and the risk of being near the target.
    fn price(&self, cell: Cell) -> f64 {
        let i = usize::from(!self.books.has_be());
        let total = self.books.total();
        let share = |a: u32, b: u32| f64::from(a) / f64::from(b.max(1));
        let resources =
            self.set.price_cores[i] * share(cell.held.cores, total.cores) + self.set.price_ways[i] * share(cell.held.ways, total.ways);
        let by_qos = if cell.qos < 1.0 { 2.0 + 6.0 * (1.0 - cell.qos) } else { self.set.price_risk[i] * (AMPLE - cell.qos).max(0.0) };
        resources + cell.risk.unwrap_or(by_qos)
    }

    /// The smallest cells that Model-B predicts to have at least `qos`: for ever fewer ways the fewest cores.
    fn staircase(asked: &Asked, qos: f64, limit: Amount, out: &mut Vec<Amount>) {
        let least = asked.policy.books.least();
        let mut cores = least.cores;
        let mut last: Option<Amount> = None;
        for ways in (least.ways..=limit.ways).rev() {
            while cores <= limit.cores && asked.on(Amount::new(cores, ways)) < qos {
                cores += 1;
            }
            if cores > limit.cores {
                break;
            }
            // As many cores with fewer ways are better than with more.
            out.extend(last.filter(|l| l.cores < cores));
            last = Some(Amount::new(cores, ways));
        }
        out.extend(last);
    }

    /// Cells that a service may be given in a plan.
    fn choices(&self, asked: &Asked, role: Role, pool: Amount, pass: Pass) -> Vec<Cell> {
        let now = asked.now();
        match role {
            Role::Keeps => vec![now],
            Role::Stuck => {
                let (oaa, _) = asked.corners(pool);
                let busy = asked.busy().map_or(0, |b| (b / self.set.busy / self.books.platform.core_step).ceil() as u32);
                vec![Cell::new(oaa.at_least(Amount::new(busy, 0)).at_most(asked.held), 1.0)]
            }
            Role::Strained if pass != Pass::Poor => vec![now],
            Role::Strained => self.to_get(asked, now, pool, pass),
            Role::MayGive if pass == Pass::Free => vec![now],
            Role::Blind => self.blind(pool),
            Role::MayGive => self.to_give(asked, now, pool, pass),
            Role::Needs => self.to_get(asked, now, pool, pass),
        }
    }

    /// Parts of an equal share, for a service of which nothing is known.
    fn blind(&self, pool: Amount) -> Vec<Cell> {
        let holders = (self.lives.len() + usize::from(self.books.has_be())).max(1) as f64;
        let total = self.books.total();
        let part = |t: u32, x: f64| (f64::from(t) * x / holders).floor() as u32;
        let cell = |(x, risk): &(f64, f64)| {
            let held = Amount::new(part(total.cores, *x), part(total.ways, *x)).at_least(self.books.least()).at_most(pool);
            Cell { risk: Some(*risk), ..Cell::new(held, 1.0) }
        };
        BLIND.iter().map(cell).collect()
    }

    /// What models propose, before anybody asks whether that may be: smallest cells by Model-B, but within Model-A's OAA (in a poor
    /// plan: its RCliff) only where they were seen to do. Model-B knows the neighbourhood of what it was taught; far from there
    /// Model-A is the one to hold on to.
    fn proposed(&self, asked: &Asked, pool: Amount, pass: Pass) -> Vec<Amount> {
        let required = self.required(asked.life);
        let (oaa, rcliff) = asked.corners(pool);
        let mut out = vec![];
        for level in LEVELS {
            Self::staircase(asked, required + level, pool, &mut out);
        }
        let floor = if pass == Pass::Poor { rcliff } else { oaa };
        if pass == Pass::Poor {
            for level in POOR_LEVELS {
                Self::staircase(asked, level, pool, &mut out);
            }
        }
        for held in &mut out {
            if !asked.vouched(*held) {
                *held = held.at_least(floor);
            }
        }
        let around = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)];
        out.extend(around.map(|(cores, ways)| oaa.plus(Amount::new(cores, ways)).at_most(pool)));
        out
    }

    /// For a service that is well: whatever it is predicted to be well on, too.
    fn to_give(&self, asked: &Asked, now: Cell, pool: Amount, pass: Pass) -> Vec<Cell> {
        let (held, required) = (asked.held, if pass == Pass::Poor { 1.02 } else { self.required(asked.life) });
        let mut out = vec![now];
        if asked.mute.is_some() {
            out.extend(asked.by_rule(Role::MayGive, pool));
            return out;
        }
        // From far away models see little; where something beyond them is at work, less.
        let part = if asked.life.hurts > 0 { 4 } else { 2 };
        let careful = held.minus(Amount::new(held.cores.div_ceil(part), held.ways.div_ceil(part)));
        let mut cells = self.proposed(asked, pool, pass);
        cells.iter_mut().for_each(|c| *c = c.at_least(careful));
        let (_, rcliff) = asked.corners(pool);
        // A unit less on the safe side of the RCliff, where Model-B is very sure.
        let units = [(1, 0), (0, 1), (1, 1)].map(|(cores, ways)| held.minus(Amount::new(cores, ways)).at_least(self.books.least()));
        let sure = |to: &Amount| beyond(rcliff, *to) && asked.on(*to) >= required + FURTHER;
        cells.extend(units.into_iter().filter(sure));
        let roomy =
            |to: Amount| to.cores >= held.cores || asked.busy().is_none_or(|b| b / self.books.platform.cores(to.cores) <= self.set.busy);
        for to in cells {
            let cell = Cell::new(to, asked.on(to));
            if to != held && !asked.forbidden(to) && (held.fits_in(to) || cell.qos >= required && roomy(to)) {
                out.push(cell);
            }
        }
        if pass == Pass::Poor {
            out.extend(self.less(asked));
        }
        out
    }

    /// Parts of what a service holds, for plans in which not everybody can have enough: never better than what it has.
    fn less(&self, asked: &Asked) -> Vec<Cell> {
        let (held, least) = (asked.held, self.books.least());
        let seen = asked.qos.unwrap_or(1.0).min(1.0);
        let part = |x: f64| {
            let of = |n: u32| (f64::from(n) * x).round() as u32;
            let to = Amount::new(of(held.cores), of(held.ways)).at_least(least);
            Cell::new(to, asked.on(to).min(seen * x))
        };
        [0.9, 0.75, 0.5, 0.25, 0.0].map(part).to_vec()
    }

    /// For a service that is new, or needs more than it has.
    fn to_get(&self, asked: &Asked, now: Cell, pool: Amount, pass: Pass) -> Vec<Cell> {
        let (held, life) = (asked.held, asked.life);
        let mut cells = if asked.mute.is_some() {
            asked.by_rule(Role::Needs, pool).iter().map(|c| c.held).collect()
        } else {
            self.proposed(asked, pool, pass)
        };
        let (oaa, _) = asked.corners(pool);
        let believed = |to: Amount| {
            let q = asked.on(to);
            // Model-A is believed where Model-B doubts it, unless it was seen to be wrong.
            if oaa.fits_in(to) && !asked.forbidden(to) {
                q.max(1.0 + self.set.margin)
            } else {
                q
            }
        };
        let mut out = vec![];
        if life.is_new() {
            // What it was watched on says little about less than half of it.
            let half = Amount::new(held.cores.div_ceil(2), held.ways.div_ceil(2));
            let busy = asked.busy().map_or(0, |b| (b / self.set.busy / self.books.platform.core_step).ceil() as u32);
            let saturated = asked.busy().is_some_and(|b| b > SATURATED * self.books.platform.cores(held.cores));
            let busy = if saturated { held.cores.saturating_mul(3).div_ceil(2) } else { busy.min(held.cores) };
            let least = if pass == Pass::Free { half } else { self.books.least() }.at_least(Amount::new(busy, 0)).at_most(pool);
            out.extend(cells.into_iter().map(|c| c.at_least(least)).map(|c| Cell::new(c, believed(c))));
            if !saturated || least.fits_in(held) || pass == Pass::Poor {
                out.push(now);
            }
        } else {
            let share = asked.busy().map(|b| b / self.books.platform.cores(held.cores));
            // Idle cores are not what is lacking, and busy ones are.
            let helps = |to: Amount| match share {
                Some(x) if x < IDLE && held.ways < pool.ways => to.ways > held.ways,
                Some(x) if x > BUSY => to.cores > held.cores,
                _ => true,
            };
            // Every time more than the last. Far behind there is a queue to be worked off, too; what is too much is taken back when
            // all is well.
            let free = self.books.free();
            let recent = life.points.back().zip(asked.s.qos_target_ms()).map(|(p, target_ms)| target_ms / p.p99_ms.max(1e-9));
            let far = asked.qos.is_some_and(|q| q < FAR) || recent.is_some_and(|q| q < FAR);
            let part = |n: u32| (if far { n.div_ceil(2) * life.more.min(2) } else { n.div_ceil(4) }).max(life.more);
            let step = Amount::new(part(held.cores), part(held.ways));
            for c in cells.iter_mut().filter(|c| far && c.cores > held.cores) {
                *c = c.at_least(held.plus(Amount::new(step.cores, 0))).at_most(pool);
            }
            cells.extend([Amount::new(step.cores, 0), Amount::new(0, step.ways), step].map(|d| held.plus(d).at_most(pool)));
            // All that is free, where that is less than a step.
            cells.push(held.plus(step.at_most(free)));
            let beyond = held.plus(Amount::new(life.more.saturating_sub(1), life.more.saturating_sub(1)));
            // One resource was not it, or not alone.
            let both = |c: &Amount| life.more < 3 || (c.cores > held.cores || free.cores == 0) && (c.ways > held.ways || free.ways == 0);
            cells.push(held.plus(Amount::new(step.cores, step.ways)).at_most(pool));
            let enough = |c: &Amount| {
                (both(c) || c.cores >= pool.cores)
                    && !c.fits_in(beyond)
                    && !c.fits_in(held)
                    && helps(*c)
                    && (pass != Pass::Free || held.fits_in(*c))
            };
            out.extend(cells.into_iter().filter(enough).map(|c| Cell::new(c, believed(c).max(0.9))));
            let proven: Vec<Amount> = life.ledger.proven(asked.now_ms, life.rps, self.set.comfort_qos).collect();
            if !proven.is_empty() {
                // Where it was seen to be well counts more than where it might be.
                out.iter_mut().filter(|c| !asked.vouched(c.held)).for_each(|c| c.qos = c.qos.min(0.95));
                let sound = |c: &Amount| !c.fits_in(held) && c.fits_in(pool) && (pass != Pass::Free || held.fits_in(*c));
                let with = proven.iter().flat_map(|c| [*c, c.at_least(held)]).filter(sound);
                out.extend(with.map(|c| Cell::new(c, asked.on(c))));
            }
            if pass == Pass::Poor {
                out.push(now);
            }
        }
        if pass == Pass::Poor {
            out.extend(self.less(asked));
        }
        out
    }

    /// `stay` is what it costs to move a service at all. A cell for everybody that fits together: (service, cell), or None where nothing fits.
    fn joint(
        &self,
        now_ms: u64,
        seen: &Observation,
        role: impl Fn(&ServiceView, &Life) -> Role,
        pass: Pass,
        stay: f64,
    ) -> Option<Vec<(ServiceId, Cell)>> {
        let pool = self.pool();
        let mut ids = vec![];
        let mut cells: Vec<Vec<Cell>> = vec![];
        for s in seen.lc() {
            let Some(life) = self.lives.get(&s.id) else { continue };
            if self.books.slot(&s.id).is_none() && role(s, life) != Role::Blind {
                continue;
            }
            let asked = self.ask(now_ms, s, life);
            cells.push(self.choices(&asked, role(s, life), pool, pass));
            ids.push(s.id.clone());
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
            let holds_if = if blind { HoldsIf::NotJudged } else { HoldsIf::Qos { at_least: 1.0 } };
            let mut because = self.because(now_ms, s, life, Some(*cell).filter(|_| !blind)).expect(holds_if);
            if blind {
                because.reject("its OAA at once", format!("models are asked after {} ms on known resources", self.set.sample_ms));
            } else {
                because.predict(cell.qos, self.models.qos_cap());
                because.reject(
                    format!("stay on {}", words(*held, &p)),
                    if lost.is_zero() { "too little" } else { "costs more than it is worth" },
                );
            }
            let others: Vec<&str> = moves.iter().filter(|(o, ..)| o != id).map(|(o, ..)| o.as_str()).collect();
            let with = if others.is_empty() { String::new() } else { format!(", together with {}", others.join(", ")) };
            because.bind(format!("the cheapest cells for all services that fit{with}"));
            let expected = if blind { String::new() } else { format!(", QoS {:.2} expected", cell.qos) };
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
            let Some(life) = self.lives.get_mut(id).filter(|_| done) else { continue };
            life.new_since_ms = blind.then_some(now_ms);
            life.changed_ms = now_ms;
            life.planned_rps = life.rps;
            life.predicted = (!blind).then_some(cell.qos);
            let lost = held.minus(cell.held);
            life.watch =
                (!blind && !lost.is_zero()).then_some(Watch { until_ms: now_ms + self.set.watch_ms, before: *held, given: somebody_gains });
            // Readings of another allocation; the last is kept as the foot of a slope.
            life.features.clear();
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
        self.setbacks = 0;
    }

    /// The first BE job beside LC services: room for what nobody has measured yet, and less bandwidth to begin with.
    fn first_company(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if self.books.platform.mba.is_some() {
            while let Some(pct) = self.books.mba_step(self.books.be_mba_pct, false).filter(|p| *p >= self.set.be_first_pct) {
                self.books.be_mba_pct = pct;
            }
            self.be_mba = (now_ms, self.set.be_raise_ms);
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
        let chosen = PASSES.into_iter().find_map(|pass| {
            let role = |s: &ServiceView, l: &Life| self.role(s, l, |s| arrived.contains(&s.id).then_some(Role::Blind));
            // Half an equal share from what is free is enough to begin with; less is not.
            let fine = |all: &Vec<(ServiceId, Cell)>| pass != Pass::Free || all.iter().all(|(_, c)| c.risk.is_none_or(|r| r <= ENOUGH));
            self.joint(now_ms, seen, role, pass, STAY).filter(fine)
        });
        if let Some(chosen) = chosen {
            self.carry_out(now_ms, seen, &chosen, "new services", plan);
        }
        for id in arrived {
            if self.books.slot(id).is_none() && !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// The role of a service in a plan for others: it may give while it is well, and keeps what it has otherwise.
    fn role(&self, s: &ServiceView, life: &Life, of: impl Fn(&ServiceView) -> Option<Role>) -> Role {
        if let Some(role) = of(s) {
            return role;
        }
        let well = s.qos().is_some_and(|q| q >= self.set.comfort_qos) && life.strikes == 0;
        if s.latency_unknown() || s.qos().is_none() || life.features.is_empty() {
            Role::Keeps
        } else if well && !life.is_new() && (life.watch.is_none() || life.features.len() >= 4) {
            Role::MayGive
        } else {
            Role::Strained
        }
    }

    /// New services that have been watched long enough.
    fn ready(&self, now_ms: u64, seen: &Observation) -> BTreeSet<ServiceId> {
        let ripe = |s: &&ServiceView| {
            let Some(life) = self.lives.get(&s.id) else { return false };
            let Some(since) = life.new_since_ms.filter(|_| !s.latency_unknown() && !life.features.is_empty()) else { return false };
            let slow = s.window.is_none_or(|w| w.verdict == Verdict::NotResolvable);
            now_ms >= since + if slow { self.set.sample_slow_ms } else { self.set.sample_ms }
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
            let patience_ms = self.set.patience_ms;
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let (Some(qos), Some(target_ms)) = (s.qos(), s.qos_target_ms()) else { continue };
            if life.is_new() || now_ms < life.changed_ms + self.set.settle_ms || stuck.contains(&s.id) {
                continue;
            }
            let cores = self.books.platform.cores(held.cores);
            let saturated = life.features.len() >= 3
                && mean(&life.features).cpu_usage_cores.is_some_and(|b| b > SATURATED * cores)
                && life.ledger.vouches(now_ms, held, life.rps).is_none();
            if saturated || life.strikes >= 2 || qos < 1.0 && life.strikes >= 1 {
                if !saturated && draining(life, target_ms, patience_ms) {
                    continue;
                }
                if now_ms >= self.try_ms {
                    life.more += 1;
                    life.ledger.note(now_ms, held, life.rps, qos.min(0.99), self.set.grudge_ms);
                }
                missing.insert(s.id.clone());
            } else if qos >= 1.0 && qos < self.set.comfort_qos && now_ms >= life.changed_ms + 1200 {
                life.ledger.note(now_ms, held, life.rps, qos, self.set.grudge_ms);
                uneasy.insert(s.id.clone());
            }
        }
        (missing, uneasy)
    }

    fn enlarge(&mut self, now_ms: u64, seen: &Observation, missing: &BTreeSet<ServiceId>, plan: &mut Plan) {
        let role = |s: &ServiceView, l: &Life| self.role(s, l, |s| missing.contains(&s.id).then_some(Role::Needs));
        // Nothing is moved about that helps none of them.
        let helps = |all: &Vec<(ServiceId, Cell)>| {
            let gains = |(id, c): &(ServiceId, Cell)| {
                missing.contains(id) && (self.lives.get(id).is_some_and(Life::is_new) || !c.held.fits_in(self.books.usable(id)))
            };
            all.iter().any(gains)
        };
        let well = |all: &Vec<(ServiceId, Cell)>| all.iter().all(|(id, c)| c.qos >= 1.0 || !missing.contains(id));
        let mut chosen = [Pass::Free, Pass::Trade].into_iter().find_map(|pass| self.joint(now_ms, seen, role, pass, STAY).filter(well));
        let mut poor = false;
        if chosen.is_none() && now_ms >= self.poor_ms {
            // Not everybody can have enough. Whom to leave short is decided seldom, and only where that is much better than now.
            let now: f64 = seen.lc().filter_map(|s| Some(self.price(self.now(now_ms, s, self.lives.get(&s.id)?)))).sum();
            let better = |all: &Vec<(ServiceId, Cell)>| all.iter().map(|(_, c)| self.price(*c)).sum::<f64>() < now - MUCH_BETTER;
            chosen = self.joint(now_ms, seen, role, Pass::Poor, STAY).filter(better);
            poor = chosen.is_some();
        }
        let chosen = chosen.or_else(|| self.joint(now_ms, seen, role, Pass::Free, STAY));
        let chosen = chosen.filter(helps);
        if poor {
            self.poor_ms = now_ms + self.set.poor_every_ms;
        }
        let done = chosen.is_some_and(|c| self.carry_out(now_ms, seen, &c, "target missed", plan));
        if !done {
            self.try_ms = now_ms + self.set.settle_ms;
        }
        for id in missing {
            let Some(life) = self.lives.get_mut(id) else { continue };
            if !done && life.more >= 4 && !life.reported {
                life.reported = true;
                let why = "it misses its target, and no plan for all services gives it more".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// Something was taken, and somebody suffers since: give it back.
    fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) -> bool {
        let hurt =
            |me: &Self, s: &ServiceView| me.lives.get(&s.id).is_some_and(|l| !l.is_new() && (l.strikes >= 2 || s.qos_met() == Some(false)));
        let sufferer = seen.lc().find(|s| hurt(self, s)).map(|s| s.id.clone());
        let mut done = false;
        if sufferer.is_some() && self.lives.values().any(|l| l.watch.is_some_and(|w| !w.given)) {
            self.refine_ms = now_ms + (self.set.setback_ms << self.setbacks.min(4));
            self.setbacks += 1;
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
        let calm = |s: &ServiceView| {
            self.lives.get(&s.id).is_some_and(|l| {
                !l.is_new()
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
        let role = |s: &ServiceView| if stuck.contains(&s.id) { Some(Role::Stuck) } else { s.qos().is_none().then_some(Role::Keeps) };
        let Some(chosen) = self.joint(now_ms, seen, |s, l| self.role(s, l, role), Pass::Trade, self.set.least_gain) else { return };
        let price = |id: &ServiceId, c: &Cell| {
            let s = seen.get(id)?;
            let life = self.lives.get(id)?;
            let asked = self.ask(now_ms, s, life);
            Some(self.price(Cell::new(asked.held, asked.qos?.min(AMPLE))) - self.price(*c))
        };
        let gain: f64 = chosen.iter().filter(|(id, c)| c.held != self.books.usable(id)).filter_map(|(id, c)| price(id, c)).sum();
        // Looked at often, done seldom.
        self.refine_ms = now_ms + 500;
        let takes = chosen.iter().any(|(id, c)| !self.books.usable(id).fits_in(c.held));
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
            self.refines = self.refines.saturating_sub(1);
            self.refine_ms = now_ms + if self.refines > 0 { self.set.calm_ms } else { self.set.calm_every_ms };
        }
    }

    /// Contended memory: less bandwidth for BE jobs, and back again in peace.
    fn bandwidth(&mut self, now_ms: u64, seen: &Observation, missing: &mut BTreeSet<ServiceId>, plan: &mut Plan) {
        if !self.books.has_be() {
            return;
        }
        let Some(be) = seen.be().next() else { return };
        let used: f64 = seen.services.iter().filter_map(|s| s.features.mbl_mbps).sum();
        let contended = self.books.platform.mem_bw_mbps.is_some_and(|peak| used >= CONTENDED * peak);
        let waits = |id: &ServiceId| {
            let (Some(s), Some(life)) = (seen.get(id), self.lives.get(id)) else { return false };
            let asked = self.ask(now_ms, s, life);
            let idle = asked.busy().is_some_and(|b| b / self.books.platform.cores(asked.held.cores) < 0.8);
            idle && self.b(s, &asked.state, asked.held).is_ok_and(|q| q >= self.required(life))
        };
        if let Some(id) = missing.first().filter(|_| contended && now_ms >= self.be_mba.0 + self.set.settle_ms).cloned() {
            let down = |pct: u8| self.books.mba_step(pct, false);
            if let Some(pct) = down(self.books.be_mba_pct).map(|p| down(p).unwrap_or(p)) {
                let mut because = Because::seen(be);
                // Whether that was it shows before anything else is tried for those who wait for memory.
                let waiting: Vec<ServiceId> = missing.iter().filter(|id| waits(id)).cloned().collect();
                self.books.be_mba_pct = pct;
                self.be_mba = (now_ms, (self.be_mba.1 * 2).clamp(5_000, 240_000));
                self.be_mba_raised = None;
                for id in waiting {
                    because.reject(format!("more for {id}"), "Model-B holds what it has for sufficient, and its cores are not busy");
                    missing.remove(&id);
                }
                because.bind(format!("memory carries {used:.0} MB/s"));
                let why = format!("{id} misses its target while memory is contended: bandwidth {pct} %");
                plan.actions.push(Action { service: be.id.clone(), kind: ActionKind::Shrink, why, because });
                return;
            }
        }
        if self.books.be_mba_pct >= 100 || seen.lc().any(ServiceView::latency_unknown) {
            return;
        }
        let worst = seen.lc().filter_map(ServiceView::qos).fold(f64::INFINITY, f64::min);
        let raise = self.be_mba_raised.is_none() && worst >= 1.2 && now_ms >= self.be_mba.0 + self.be_mba.1;
        let lower = self.be_mba_raised.is_some() && worst < 1.0;
        if self.be_mba_raised.is_some_and(|t| now_ms >= t + self.set.be_raise_ms) {
            self.be_mba_raised = None;
        }
        let Some(pct) = self.books.mba_step(self.books.be_mba_pct, raise).filter(|_| raise || lower) else { return };
        self.books.be_mba_pct = pct;
        let wait = if lower { (self.be_mba.1 * 2).clamp(10_000, 240_000) } else { self.be_mba.1 };
        self.be_mba = (now_ms, wait);
        self.be_mba_raised = raise.then_some(now_ms);
        let mut because = Because::seen(be);
        because.bind(format!("the worst QoS is {worst:.2}"));
        let kind = if raise { ActionKind::Grow } else { ActionKind::Rollback };
        plan.actions.push(Action { service: be.id.clone(), kind, why: format!("QoS {worst:.2}: memory bandwidth {pct} %"), because });
    }
}

/// What a service is in a joint plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It keeps what it has.
    Keeps,
    /// It may be moved wherever it is predicted to be well.
    MayGive,
    /// It needs another cell than the one it has.
    Needs,
    /// More of anything has not helped: back to Model-A's OAA. Fewer busy cores clock higher, which is all that is left to try.
    Stuck,
    /// It is not well, and nobody asked for it: it keeps what it has unless not everybody can have enough.
    Strained,
    /// Nothing is known of it.
    Blind,
}

/// More of both than at a corner (of ways only where there are any).
fn beyond(corner: Amount, to: Amount) -> bool {
    to.cores > corner.cores && (corner.ways == 0 || to.ways > corner.ways)
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
    fall_ms > 0.05 * first.mean_ms && left / fall_ms * 100.0 <= patience_ms as f64
}

impl Asked<'_> {
    fn busy(&self) -> Option<f64> {
        self.state.features.cpu_usage_cores
    }

    fn forbidden(&self, to: Amount) -> bool {
        // Met by a hair is as bad as missed when there is a choice.
        to != self.held && self.life.ledger.forbids(self.now_ms, to, self.life.rps, self.policy.set.comfort_qos)
    }

    /// Model-A's OAA and RCliff in units; the least where it has no answer.
    fn corners(&self, pool: Amount) -> (Amount, Amount) {
        let books = &self.policy.books;
        let up = |x: f64, most: u32| (x - 0.3).ceil().clamp(0.0, f64::from(most)) as u32;
        let cores = |c: f64| up(c / books.platform.core_step, pool.cores);
        let ways = |w: Option<f64>| up(w.unwrap_or(0.0), pool.ways);
        let Some(a) = self.area else { return (books.least(), books.least()) };
        let rcliff = Amount::new(cores(a.rcliff_cores), ways(a.rcliff_ways)).at_least(books.least());
        (Amount::new(cores(a.oaa_cores), ways(a.oaa_ways)).at_least(rcliff), rcliff)
    }

    /// What it holds, and the QoS that was seen or is expected there.
    fn now(&self) -> Cell {
        let seen = self.qos.unwrap_or(1.0);
        Cell::new(self.held, if seen < 1.0 { seen } else { seen.max(self.on(self.held)) })
    }

    fn vouched(&self, to: Amount) -> bool {
        self.life.ledger.vouches(self.now_ms, to, self.life.rps).is_some()
    }

    /// QoS that is expected on a cell: what was seen there, else Model-B, corrected by its error on the present.
    fn on(&self, to: Amount) -> f64 {
        let total = self.policy.books.total();
        let at = (to.cores * (total.ways + 1) + to.ways) as usize;
        if let Some(known) = self.answers.borrow().get(at).filter(|q| !q.is_nan()) {
            return *known;
        }
        let q = self.reckon(to);
        let mut answers = self.answers.borrow_mut();
        answers.resize(((total.cores + 1) * (total.ways + 1)) as usize, f64::NAN);
        if let Some(cell) = answers.get_mut(at) {
            *cell = q;
        }
        q
    }

    fn reckon(&self, to: Amount) -> f64 {
        if self.forbidden(to) {
            return 0.5;
        }
        let p = self.policy;
        let cap = p.models.qos_cap();
        let mut q = match p.b(self.s, &self.state, to) {
            Ok(b) => b.min(cap) + self.correction,
            Err(_) => return self.qos.filter(|_| self.held.fits_in(to)).unwrap_or(0.5),
        };
        // Cores that busy have a queue, whatever a model says. While a backlog drains they are busy for another reason.
        let met = self.qos.is_some_and(|q| q >= 1.0);
        if met && self.busy().is_some_and(|b| b > 0.95 * p.books.platform.cores(to.cores)) {
            q = q.min(0.8);
        }
        let vouched = self.life.ledger.vouches(self.now_ms, to, self.life.rps);
        vouched.map_or(q, |v| q.max(v.min(cap)))
    }

    /// Without models: cores no busier than 60 %, a quarter more of both for who needs, a unit less for who gives.
    fn by_rule(&self, role: Role, pool: Amount) -> Vec<Cell> {
        let p = &self.policy.books;
        let least = p.least();
        let cores = |busy: f64| (busy / 0.6 / p.platform.core_step).ceil().max(1.0) as u32;
        match role {
            Role::Needs => {
                let wanted = self.busy().map_or(self.held.cores + 1, cores);
                let held = self.held;
                let step = Amount::new(held.cores.div_ceil(4), held.ways.div_ceil(4));
                let by_busy = Amount::new(wanted, held.ways).at_least(least).at_most(pool);
                vec![Cell::new(by_busy, 1.1), Cell::new(held.plus(step).at_most(pool), 1.2)]
            }
            _ => {
                let Some(busy) = self.busy().filter(|_| self.qos.is_some_and(|q| q >= 1.5)) else { return vec![] };
                let to = self.held.minus(Amount::new(1, 0)).at_least(least);
                let fits = p.platform.cores(to.cores) * 0.6 >= busy && !self.forbidden(to);
                fits.then_some(Cell::new(to, 1.0 + self.policy.set.margin)).into_iter().collect()
            }
        }
    }
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
        let moved = self.load_moved(seen);
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
            Err(why) => plan.reports.push(Report::CannotPlace { service: "all".into(), why }),
        }
        plan
    }
}

impl Surefoot {
    /// Throughput has moved since the cells were chosen.
    fn load_moved(&mut self, seen: &Observation) -> bool {
        let mut moved = false;
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id).filter(|l| !l.is_new() && l.planned_rps > 0.0) else { continue };
            let change = life.rps / life.planned_rps - 1.0;
            if change.abs() > self.set.load_change && s.qos_met() == Some(true) {
                life.planned_rps = life.rps;
                moved = true;
            }
        }
        moved
    }

    /// Met by a hair: more from what is free, from nobody else.
    fn comfort(&mut self, now_ms: u64, seen: &Observation, uneasy: &BTreeSet<ServiceId>, plan: &mut Plan) {
        let role = |s: &ServiceView, _: &Life| if uneasy.contains(&s.id) { Role::Needs } else { Role::Keeps };
        if let Some(chosen) = self.joint(now_ms, seen, role, Pass::Free, STAY) {
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
