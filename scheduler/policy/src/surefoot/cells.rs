//! The cells that a service could hold in a plan: what models propose, what was seen, and what may be.

use super::*;

/// What a service is in a joint plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It keeps what it has.
    Keeps,
    /// It may be moved wherever it is predicted to be well.
    MayGive,
    /// It needs another cell than the one it has.
    Needs,
    /// It keeps what it has, with so many cores more that it can bear the busier company that others' losses bring.
    Firm,
    /// It is not well, and the plan is not for it: it keeps what it has, unless not all services can have enough.
    Strained,
    /// Nothing is known of it.
    Blind,
}

/// How much a plan may ask of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Only what is free: no service gets less of anything.
    Free,
    /// A service that is well may give what it is predicted not to need.
    Trade,
    /// Not all services can have enough.
    Poor,
}

/// Parts of a step that are offered where a whole one cannot be had, and by how much less is expected of each smaller one: of parts
/// from which as much is expected the larger one.
const PARTS: [f64; 4] = [1.0, 0.5, 0.25, 0.125];
const PART_QOS: f64 = 0.02;
/// An eighth less than what is held, and quarters of it, on offer where not all can have enough.
const LESS: [f64; 5] = [0.875, 0.75, 0.5, 0.25, 0.0];
/// Without models: a quarter less of cores, of ways and of both, and half of both.
const SHARES: [(f64, f64); 4] = [(0.75, 1.0), (1.0, 0.75), (0.75, 0.75), (0.5, 0.5)];
/// Prices of a miss that each QoS below the target costs on top: a queue that grows is worse than a target that is just missed.
const MISS_SLOPE: f64 = 3.0;
/// Work over the cores that would be left, from which nothing of QoS is expected. A queue grows from 1 on; counters read a little high.
const OVERLOAD: f64 = 1.2;
/// So much faster a slow service's falls: a queue is with it from the first request that waits.
const SLOW_FALL: f64 = 2.5;

pub(super) const PASSES: [Pass; 3] = [Pass::Free, Pass::Trade, Pass::Poor];

/// A cell in question for a service, and the QoS that is expected there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub held: Amount,
    pub qos: f64,
    /// Price of the risk, where it does not follow from `qos`.
    pub risk: Option<f64>,
    /// Units of memory more (or less) than the service has, and their price over what it has.
    pub units: i32,
    pub memory: f64,
}

impl Cell {
    pub fn new(held: Amount, qos: f64) -> Self {
        Cell { held, qos, risk: None, units: 0, memory: 0.0 }
    }
}

/// What is asked about one service while a plan is made.
pub(super) struct Asked<'a> {
    pub policy: &'a Surefoot,
    pub s: &'a ServiceView,
    pub life: &'a Life,
    pub state: State,
    pub held: Amount,
    pub now_ms: u64,
    /// Model-B's error on what the service holds now; 0 where that says nothing.
    pub correction: f64,
    pub area: Option<Area>,
    /// Why models do not answer.
    pub no_answer: Option<String>,
    pub qos: Option<f64>,
    /// A slow service, all cores of which are busy: latency will show the queue when it has been served.
    pub backlogged: bool,
    /// All services are well, and none needs what it could give.
    pub in_peace: bool,
    /// What [`Asked::on`] has answered, by cores and ways; NaN: not asked yet.
    pub answers: RefCell<Vec<f64>>,
}

impl Surefoot {
    pub(super) fn ask<'a>(&'a self, now_ms: u64, s: &'a ServiceView, life: &'a Life) -> Asked<'a> {
        let held = self.books.usable(&s.id);
        let state = State::with(s, mean(&life.features));
        let cap = self.models.qos_cap();
        let on = self.b(s, &state, held);
        let (area, no_answer) = match self.models.area(&s.service, &state) {
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
            no_answer: on.err().or(no_answer),
            qos: s.qos(),
            backlogged: self.set.is_slow(s) && self.is_saturated(s),
            in_peace: false,
            answers: RefCell::default(),
        }
    }

    /// The same of all LC services, for all passes of a plan: nothing is asked twice.
    pub(super) fn ask_all<'a>(&'a self, now_ms: u64, seen: &'a Observation) -> Vec<Asked<'a>> {
        seen.lc().filter_map(|s| Some(self.ask(now_ms, s, self.lives.get(&s.id)?))).collect()
    }

    /// Model-B as it stands.
    pub(super) fn b(&self, s: &ServiceView, state: &State, a: Amount) -> Result<f64, String> {
        let q = self.models.qos(&s.service, state, self.books.platform.cores(a.cores), f64::from(a.ways))?;
        if q.is_finite() {
            Ok(q)
        } else {
            Err("Model-B: not a number".into())
        }
    }

    /// QoS that must be predicted for what is taken (and for what is given, where it can be had).
    pub(super) fn required(&self, life: &Life) -> f64 {
        1.0 + self.set.trust.margin.max(self.set.trust.errors * life.error)
    }

    /// Price of a cell: its resources, and the risk of being near the target.
    pub(super) fn price(&self, cell: Cell) -> f64 {
        let p = &self.set.prices;
        let (cores, ways) = self.set.prices_of(self.books.has_be());
        let total = self.books.total();
        let share = |a: u32, b: u32| f64::from(a) / f64::from(b.max(1));
        let resources = cores * share(cell.held.cores, total.cores) + ways * share(cell.held.ways, total.ways);
        let by_qos =
            if cell.qos < 1.0 { p.miss * (1.0 + MISS_SLOPE * (1.0 - cell.qos)) } else { p.risk * (p.ample_qos - cell.qos).max(0.0) };
        resources + cell.risk.unwrap_or(by_qos) + cell.memory
    }

    /// The smallest cells from `floor` on that Model-B predicts to have at least `qos`: for ever fewer ways the fewest cores, beginning
    /// at `limit`'s ways. Where Model-B holds more ways for worse, another limit can give other cells.
    pub(super) fn staircase(asked: &Asked, qos: f64, floor: Amount, limit: Amount, out: &mut Vec<Amount>) {
        let mut cores = floor.cores;
        let mut last: Option<Amount> = None;
        for ways in (floor.ways..=limit.ways).rev() {
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

    /// No cell that a service may be given is smaller than this, in cores or in ways.
    pub(super) fn least_of(&self, asked: &Asked, role: Role, pass: Pass) -> Amount {
        let least = self.books.least();
        match role {
            Role::Keeps | Role::Firm => asked.held,
            Role::Strained if pass != Pass::Poor => asked.held,
            Role::MayGive if pass == Pass::Free => asked.held,
            Role::MayGive if pass == Pass::Trade => {
                let kept = |n: u32| n - part_up(n, self.set.offers.loss).min(n);
                Amount::new(kept(asked.held.cores), kept(asked.held.ways)).at_least(least)
            }
            _ => least,
        }
    }

    /// Cells that a service may be given in a plan. What is larger than `most` is not looked for: it cannot be had.
    pub(super) fn choices(&self, asked: &Asked, role: Role, pool: Amount, most: Amount, pass: Pass) -> Vec<Cell> {
        let now = asked.now();
        match role {
            Role::Keeps => vec![now],
            Role::Firm => {
                let busy = asked.cores_busy_by(self.set.most_busy(self.books.has_be())).unwrap_or(0);
                let firm = asked.held.at_least(Amount::new(busy, 0)).at_most(pool);
                vec![Cell::new(firm, asked.on(firm).max(now.qos)), Cell { risk: Some(self.set.prices.miss), ..now }]
            }
            Role::Strained if pass != Pass::Poor => vec![now],
            Role::Strained => self.to_get(asked, now, pool, most, pass),
            Role::MayGive if pass == Pass::Free => vec![now],
            Role::Blind => self.blind(self.set.is_slow(asked.s), pool),
            Role::MayGive => self.to_give(asked, now, pool, most, pass),
            Role::Needs => self.to_get(asked, now, pool, most, pass),
        }
    }

    /// Parts of an equal share, for a service of which nothing is known.
    pub(super) fn blind(&self, slow: bool, pool: Amount) -> Vec<Cell> {
        let holders = (self.lives.len() + usize::from(self.books.has_be())).max(1) as f64;
        let total = self.books.total();
        let part = |t: u32, x: f64| (f64::from(t) * x / holders).floor() as u32;
        let parts_of = |x: f64| Amount::new(part(total.cores, x), part(total.ways, x));
        // What no LC service holds is there for the newcomers.
        let new = self.lives.keys().filter(|id| self.books.slot(id).is_none()).count().max(1) as u32;
        let free = self.books.free();
        let idle = Amount::new(free.cores / new, free.ways / new).at_most(parts_of(1.0));
        let cell = |(x, risk): (f64, f64)| {
            let held = parts_of(x).at_least(idle).at_least(self.books.least()).at_most(pool);
            Cell { risk: Some(risk), ..Cell::new(held, 1.0) }
        };
        self.set.blind_parts(slow).map(cell).collect()
    }

    /// What models propose, before anybody asks whether that may be: smallest cells by Model-B, but within Model-A's OAA (in a poor
    /// plan: its RCliff) only where they were seen to do. Model-B knows the neighbourhood of what it was taught; far from there
    /// Model-A is the one to hold on to.
    pub(super) fn proposed(&self, asked: &Asked, pool: Amount, most: Amount, pass: Pass) -> Vec<Amount> {
        let required = self.required(asked.life);
        let (oaa, rcliff) = asked.corners(pool);
        let poor = pass == Pass::Poor;
        let floor = if poor { rcliff } else { oaa };
        let mut out: Vec<Amount> = asked.life.ledger.proven(asked.now_ms, asked.life.rps, required).filter(|c| c.fits_in(pool)).collect();
        let levels = self.set.levels(poor).map(|l| required + l).chain(self.set.poor_levels().filter(|_| poor));
        levels.for_each(|qos| Self::staircase(asked, qos, floor, most, &mut out));
        // Model-A's corner, and a unit more of either and of both: it may be off by one.
        out.extend([(0, 0), (1, 0), (0, 1), (1, 1)].map(|(cores, ways)| oaa.plus(Amount::new(cores, ways)).at_most(pool)));
        out
    }

    /// For a service that is well: whatever it is predicted to be well on, too.
    pub(super) fn to_give(&self, asked: &Asked, now: Cell, pool: Amount, most: Amount, pass: Pass) -> Vec<Cell> {
        let (held, required) = (asked.held, if pass == Pass::Poor { 1.0 } else { self.required(asked.life) });
        let mut out = vec![now];
        if asked.no_answer.is_some() {
            out.extend(self.shares(asked));
            // Without models the effect of a loss is unknown: no more than that, unless there is not enough for all.
            if asked.s.qos().is_some() && pass == Pass::Poor {
                out.extend(self.less(asked));
            }
            return out;
        }
        // From far away models see little; where something beyond them is at work, less.
        let set = &self.set.offers;
        let loss = if asked.in_peace && asked.life.regrets > 0 {
            // Ever less, which is soon not worth a move.
            set.loss / 4.0 / f64::from(1 << (asked.life.regrets - 1).min(DOUBLINGS))
        } else if self.set.is_slow(asked.s) {
            set.loss / 4.0
        } else if asked.life.hurts > 0 {
            set.loss / 2.0
        } else {
            set.loss
        };
        let careful = held.minus(Amount::new(part_up(held.cores, loss), part_up(held.ways, loss)));
        let mut cells = self.proposed(asked, pool, most, pass);
        cells.iter_mut().for_each(|c| *c = c.at_least(careful));
        let (_, rcliff) = asked.corners(pool);
        // A unit less on the safe side of the RCliff, where Model-B is very sure.
        let units = [(1, 0), (0, 1), (1, 1)].map(|(cores, ways)| held.minus(Amount::new(cores, ways)).at_least(self.books.least()));
        let sure = |to: &Amount| beyond(rcliff, *to) && asked.on(*to) >= required + set.step_qos;
        cells.extend(units.into_iter().filter(sure));
        for to in cells {
            let cell = Cell::new(to, asked.on(to));
            if to != held && !asked.forbidden(to) && (held.fits_in(to) || cell.qos >= required && asked.roomy(to)) {
                out.push(cell);
            }
        }
        if pass == Pass::Poor {
            out.extend(self.less(asked));
        }
        out
    }

    /// Without models: parts of what a service that is well holds, as long as QoS would suffice by the rule of thumb.
    fn shares(&self, asked: &Asked) -> Vec<Cell> {
        let (held, least) = (asked.held, self.books.least());
        let of = |n: u32, x: f64| (f64::from(n) * x).floor() as u32;
        let share = |(cores, ways): (f64, f64)| Amount::new(of(held.cores, cores), of(held.ways, ways));
        let cell = |to: Amount| {
            let to = to.at_least(least);
            Cell::new(to, asked.qos.unwrap_or(0.0) * share_left(held, to).powf(asked.life.power))
        };
        let fine = |c: &Cell| c.held != held && c.qos >= self.set.sure_qos() && asked.roomy(c.held) && !asked.forbidden(c.held);
        // A unit is less than the smallest of the shares where little is held, and shows how much the next one costs.
        let units = [Amount::new(1, 0), Amount::new(0, 1)].map(|unit| held.minus(unit));
        SHARES.map(share).into_iter().chain(units).map(cell).filter(fine).collect()
    }

    /// Parts of what a service holds, for plans in which not all services can have enough: never better than what it has.
    pub(super) fn less(&self, asked: &Asked) -> Vec<Cell> {
        let (held, least) = (asked.held, self.books.least());
        let seen = asked.now().qos.min(1.0);
        let part = |x: f64| {
            let of = |n: u32| (f64::from(n) * x).round() as u32;
            let to = Amount::new(of(held.cores), of(held.ways)).at_least(least);
            // Without models: QoS falls faster than what is held.
            let q = if asked.no_answer.is_some() { asked.qos.unwrap_or(0.0) * x * x } else { asked.on(to) };
            Cell::new(to, q.min(seen * x))
        };
        LESS.map(part).to_vec()
    }

    /// For a service that is new, or needs more than it has.
    pub(super) fn to_get(&self, asked: &Asked, now: Cell, pool: Amount, most: Amount, pass: Pass) -> Vec<Cell> {
        let (held, life) = (asked.held, asked.life);
        let Settings { busy: limits, grow, newcomers, trust, .. } = &self.set;
        let mut cells = if asked.no_answer.is_some() { asked.by_rule(pool).to_vec() } else { self.proposed(asked, pool, most, pass) };
        let (oaa, _) = asked.corners(pool);
        let believed = |to: Amount| {
            let q = asked.on(to);
            // Model-A is believed where Model-B doubts it, unless it was seen to be wrong.
            if oaa.fits_in(to) && !asked.forbidden(to) {
                q.max(self.set.sure_qos())
            } else {
                q
            }
        };
        let share = asked.busy().map(|b| b / self.books.platform.cores(held.cores));
        let mut out = vec![];
        if life.is_new() {
            // What it was watched on says little about less than half of it.
            let part_of = |share: f64| Amount::new(part_up(held.cores, share), part_up(held.ways, share));
            let busy = asked.cores_busy_by(limits.most).unwrap_or(0);
            let saturated = share.is_some_and(|x| x > limits.full);
            let busy = if saturated { part_up(held.cores, 1.0 + newcomers.keeps) } else { busy.min(held.cores) };
            // While it misses its target there it says less still.
            let misses = asked.qos.is_some_and(|q| q < 1.0);
            let kept = if saturated {
                held
            } else if misses && pass != Pass::Poor {
                part_of((1.0 + newcomers.keeps) / 2.0)
            } else if pass == Pass::Free {
                part_of(newcomers.keeps)
            } else {
                self.books.least()
            };
            let least = kept.at_least(Amount::new(busy, 0)).at_most(pool);
            if pass == Pass::Poor && share.is_some_and(|x| x < limits.most_beside_be) {
                // Whatever Model-A says of its first moments: idle cores are not what it lacks, and others have a queue.
                cells.iter_mut().for_each(|c| c.cores = c.cores.min(held.cores));
            }
            out.extend(cells.into_iter().map(|c| c.at_least(least)).map(|c| Cell::new(c, believed(c))));
            // Where no BE job waits for what is over, what it was watched on will do as well.
            if !self.books.has_be() && !saturated && asked.no_answer.is_none() && asked.on(held) >= self.required(life) {
                out.push(Cell::new(held, asked.on(held)));
            }
            if !saturated || least.fits_in(held) || pass == Pass::Poor {
                out.push(now);
            }
        } else {
            let free = self.books.free();
            // Ever more, and where so much cannot be had, less again.
            let tries = if life.more > 0 { (life.more - 1) % (2 * grow.tries) + 1 } else { 0 };
            // Idle cores are not what is lacking, and busy ones are; where none of the one are left, the other may do (to a queue that
            // lasts, at once).
            let stuck = tries >= grow.tries;
            let helps = |to: Amount| match share {
                Some(x) if x < limits.most_beside_be && held.ways < pool.ways => {
                    to.ways > held.ways || stuck && free.ways == 0 && to.cores > held.cores
                }
                // Nor do ways serve a queue, where others may have to give cores.
                Some(x) if x > limits.full && pass == Pass::Poor && !self.set.is_slow(asked.s) => to.cores > held.cores,
                Some(x) if x > limits.full => {
                    to.cores > held.cores || (stuck || self.set.is_slow(asked.s)) && free.cores == 0 && to.ways > held.ways
                }
                _ => true,
            };
            // Each time more than the last, until no service has so much to give. Far behind there is a queue to be worked off, too;
            // what is too much is taken back when all is well.
            let recent = life.points.back().zip(asked.s.qos_target_ms()).map(|(p, target_ms)| target_ms / p.p99_ms.max(1e-9));
            let far = asked.qos.is_some_and(|q| q < trust.far_qos) || recent.is_some_and(|q| q < trust.far_qos);
            let step_of = |n: u32| if far { part_up(n, 2.0 * grow.step) * tries.min(grow.tries) } else { part_up(n, grow.step) };
            let part = |n: u32| step_of(n).max(tries);
            let step = Amount::new(part(held.cores), part(held.ways));
            // A service that misses its target loses nothing: what models make of an overload says little about less. Where not all can
            // have enough, idle cores may go for ways.
            let overloaded = self.set.is_slow(asked.s) || share.is_some_and(|x| x > limits.full);
            if pass == Pass::Poor && !overloaded {
                let floor = held.minus(Amount::new(part_up(held.cores, grow.step), part_up(held.ways, grow.step)));
                cells.iter_mut().for_each(|c| *c = c.at_least(floor));
            } else {
                let also = if asked.backlogged { step } else { Amount::default() };
                cells.iter_mut().for_each(|c| *c = c.at_least(held.plus(also)).at_most(pool));
            }
            for c in cells.iter_mut().filter(|c| far && c.cores > held.cores) {
                *c = c.at_least(held.plus(Amount::new(step.cores, 0))).at_most(pool);
            }
            cells.extend([Amount::new(step.cores, 0), Amount::new(0, step.ways), step].map(|d| held.plus(d).at_most(pool)));
            // All that is free, where that is less than a step.
            cells.push(held.plus(step.at_most(free)));
            let step_over = tries.saturating_sub(1).min(grow.tries);
            let beyond = held.plus(Amount::new(step_over, step_over));
            // One resource was not it, or not alone.
            let both =
                |c: &Amount| tries < grow.tries || (c.cores > held.cores || free.cores == 0) && (c.ways > held.ways || free.ways == 0);
            let enough = |c: &Amount| {
                (both(c) || c.cores >= pool.cores)
                    && !c.fits_in(beyond)
                    && !c.fits_in(held)
                    && helps(*c)
                    && (pass != Pass::Free || held.fits_in(*c))
            };
            out.extend(cells.into_iter().filter(enough).map(|c| Cell::new(c, believed(c).max(grow.hope_qos))));
            if pass != Pass::Free && (asked.backlogged || share.is_some_and(|x| x > limits.full)) {
                // A part of a step, or all that the others can spare, is better than a queue that stays until they can spare a whole one;
                // and of parts from which as much is expected the larger one.
                let unit = step.at_most(Amount::new(1, 1));
                let parts = PARTS.map(|x| Amount::new(part_up(step.cores, x), part_up(step.ways, x)));
                for (less, part) in parts.into_iter().chain([unit]).enumerate() {
                    let there = [part, Amount::new(part.cores, 0)].map(|p| held.plus(p).at_most(most.at_least(held)));
                    let cell = |c| Cell::new(c, believed(c).min(grow.hope_qos - PART_QOS * less as f64));
                    out.extend(there.into_iter().filter(|c| c.cores > held.cores).map(cell));
                }
            }
            let proven: Vec<Amount> = life.ledger.proven(asked.now_ms, life.rps, self.set.comfort_qos()).collect();
            if !proven.is_empty() {
                // Where it was seen to be well counts more than where it might be.
                out.iter_mut().filter(|c| !asked.vouched(c.held)).for_each(|c| c.qos = c.qos.min(grow.hope_qos));
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
}

/// More of both than at a corner (of ways only where there are any).
pub(super) fn beyond(corner: Amount, to: Amount) -> bool {
    to.cores > corner.cores && (corner.ways == 0 || to.ways > corner.ways)
}

impl Asked<'_> {
    /// It has met its target, by more than a hair, for as long as a window is on what it holds.
    pub fn is_well(&self) -> bool {
        let since_ms = self.life.met_since_ms.filter(|_| self.life.strikes == 0).map(|t| t.max(self.life.changed_ms));
        let by_more = self.qos.is_some_and(|q| q >= self.policy.set.comfort_qos());
        by_more && !self.life.is_new() && !self.backlogged && since_ms.is_some_and(|t| self.now_ms >= t + WINDOW_MS)
    }

    pub fn busy(&self) -> Option<f64> {
        self.state.features.cpu_usage_cores
    }

    /// Core units of which its work keeps this share busy.
    pub fn cores_busy_by(&self, share: f64) -> Option<u32> {
        self.busy().map(|b| (b / share / self.policy.books.platform.core_step).ceil() as u32)
    }

    pub fn forbidden(&self, to: Amount) -> bool {
        // Met by a hair is as bad as missed when there is a choice.
        to != self.held && self.life.ledger.forbids(self.now_ms, to, self.life.rps, self.policy.set.comfort_qos())
    }

    /// No core less, or those that are left are not too busy.
    pub fn roomy(&self, to: Amount) -> bool {
        let p = self.policy;
        let most = if self.in_peace { p.busy_in_peace() } else { p.set.busy.most };
        to.cores >= self.held.cores || self.busy().is_none_or(|b| b / p.books.platform.cores(to.cores) <= most)
    }

    /// Model-A's OAA and RCliff in units, corrected by what is seen; the least where it has no answer.
    pub fn corners(&self, pool: Amount) -> (Amount, Amount) {
        let books = &self.policy.books;
        let up = |x: f64, most: u32| x.round().clamp(0.0, f64::from(most)) as u32;
        let cores = |c: f64| up(c / books.platform.core_step, pool.cores);
        let ways = |w: Option<f64>| up(w.unwrap_or(0.0), pool.ways);
        let Some(a) = self.area else { return (books.least(), books.least()) };
        let rcliff = Amount::new(cores(a.rcliff_cores), ways(a.rcliff_ways)).at_least(books.least());
        let oaa = Amount::new(cores(a.oaa_cores), ways(a.oaa_ways)).at_least(rcliff);
        // Seen to be well on less than the area: that is where it begins, and what is as wrong about the cliff puts it as much lower. In peace
        // no service is in such need that another's cliff is to be approached on that.
        let over = if !self.in_peace && self.is_well() { oaa.minus(self.held) } else { Amount::default() };
        (oaa.minus(over), rcliff.minus(over).at_least(books.least()))
    }

    /// What it holds, and the QoS that was seen or is expected there; a backlogged service is as good as far behind.
    pub fn now(&self) -> Cell {
        let seen = self.qos.unwrap_or(1.0);
        if self.backlogged {
            return Cell::new(self.held, seen.min(self.policy.set.trust.far_qos));
        }
        Cell::new(self.held, if seen < 1.0 { seen } else { seen.max(self.on(self.held)) })
    }

    /// As much or less was seen to be well, by more than a hair.
    pub fn vouched(&self, to: Amount) -> bool {
        let seen = self.life.ledger.vouches(self.now_ms, to, self.life.rps);
        seen.is_some_and(|q| q >= self.policy.set.comfort_qos())
    }

    /// QoS that is expected on a cell: what was seen there, else Model-B, corrected by its error on the present.
    pub fn on(&self, to: Amount) -> f64 {
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

    pub fn reckon(&self, to: Amount) -> f64 {
        let (p, most) = (self.policy, self.most_by_work(to));
        let trust = &p.set.trust;
        if self.forbidden(to) {
            // No better than what was seen on as much or more.
            let seen = self.life.ledger.least_seen(self.now_ms, to, self.life.rps);
            return seen.unwrap_or(trust.far_qos).clamp(0.0, trust.far_qos).min(most);
        }
        let cap = p.models.qos_cap();
        let q = match p.b(self.s, &self.state, to) {
            Ok(b) => (b.min(cap) + self.correction).min(most),
            Err(_) => return self.qos.filter(|_| self.held.fits_in(to)).unwrap_or(trust.far_qos),
        };
        let vouched = self.life.ledger.vouches(self.now_ms, to, self.life.rps);
        vouched.map_or(q, |v| q.max(v.min(cap)))
    }

    /// The highest QoS that so many cores allow, whatever a model says: busy ones have a queue, which has no end where there is more
    /// work than cores. While a backlog drains they are busy for another reason.
    pub fn most_by_work(&self, to: Amount) -> f64 {
        let met = self.qos.is_some_and(|q| q >= 1.0);
        let work = self.busy().filter(|_| met).map_or(0.0, |busy| busy / self.policy.books.platform.cores(to.cores));
        let full = self.policy.set.busy.full;
        if work > full {
            let over = (work - full) / (OVERLOAD - full);
            // A slow service's queue stays for minutes: the fewer cores, the worse, also where nothing is left of QoS.
            if self.policy.set.is_slow(self.s) {
                1.0 - SLOW_FALL * over
            } else {
                (1.0 - over).max(0.0)
            }
        } else {
            f64::INFINITY
        }
    }

    /// Without models, for a service that needs more: cores no busier than 60 %, or a quarter more of both.
    pub fn by_rule(&self, pool: Amount) -> [Amount; 2] {
        let p = &self.policy.books;
        let held = self.held;
        let wanted = self.cores_busy_by(self.policy.set.busy.most_beside_be).map_or(held.cores + 1, |cores| cores.max(1));
        let share = self.policy.set.grow.step;
        let step = Amount::new(part_up(held.cores, share), part_up(held.ways, share));
        [Amount::new(wanted, held.ways).at_least(p.least()), held.plus(step)].map(|to| to.at_most(pool))
    }
}
