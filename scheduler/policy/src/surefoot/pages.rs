//! Memory and pools in the joint plan (`surefoot-memory`): what a service, or the jobs, may have one unit more or less of, and its price.
//!
//! What must hold: limits add up to no more than the machine's memory; no limit of an LC service is below what its pages compress to; a
//! service of unknown latency, or one that misses its target, gives nothing; a service gives one unit at a time, and no other one before
//! that has been taken.
//!
//! Footprint, ratio, pool (Eq. 2), floors and pages that come back are those of [`cosmos`](crate::cosmos).
//!
//! * **A trade of cores and memory.** Pages that come back from the pool keep cores of the service itself busy. A unit less is more of
//!   them, so the service is offered as many cores more as its QoS then needs. A unit more counts as cores for a service that misses its target.
//! * **Jobs** are one more holder of the plan, which has what no LC service holds. Below their footprint they wait for the device, so
//!   what they lack has the highest price; above it more is worth nothing.
//! * **Transitions.** Memory begins where the kernel has left it: no limit takes a page at first. From there it moves by units. A service that
//!   missed its target after a loss gives nothing for a while, which doubles each time.

use super::*;
use crate::cosmos::groups::{limit, pool};
use crate::cosmos::per_service::memory::{among_jobs, read_k, Needs};
use crate::cosmos::sizes::{largest_pool, Sizes};
use crate::cosmos::Settings as Shared;
use surefoot_server::{Change, Limit};

/// Cores that are busy with pages that come back, from which more memory is any help.
const LEAST_BUSY: f64 = 1e-3;

/// Who says it in an explanation.
const BY: &str = "surefoot-memory";

/// Memory of all services and jobs.
#[derive(Debug)]
pub(super) struct Pages {
    set: Shared,
    /// Bytes that limits share out.
    capacity: f64,
    sizes: Sizes,
    /// Pages that come back over -ln of the resident share, 1/s.
    k: BTreeMap<ServiceId, f64>,
    /// M of each LC service, bytes; empty: no limits, the kernel divides. The jobs have the rest.
    held: BTreeMap<ServiceId, f64>,
    jobs: Vec<ServiceId>,
    /// Bytes that services use, where their limits are in force.
    used: BTreeMap<ServiceId, f64>,
    /// When a service last gave a unit, until it misses its target.
    gave: BTreeMap<ServiceId, u64>,
    /// Until when a service that missed its target after a loss gives nothing, and how often that was.
    spared: BTreeMap<ServiceId, (u64, u32)>,
    /// Services whose requests wait for the swap device.
    waits: BTreeSet<ServiceId>,
    /// Bytes that LC services without a limit use.
    unlimited: f64,
    next_ms: u64,
    /// This step may move memory.
    open: bool,
}

impl Pages {
    pub fn new(capacity: f64, set: Shared) -> Self {
        Pages {
            set,
            capacity,
            sizes: Sizes::default(),
            k: BTreeMap::new(),
            held: BTreeMap::new(),
            jobs: vec![],
            used: BTreeMap::new(),
            gave: BTreeMap::new(),
            spared: BTreeMap::new(),
            waits: BTreeSet::new(),
            unlimited: 0.0,
            next_ms: 0,
            open: false,
        }
    }

    /// What is seen of memory, once a period.
    pub fn look(&mut self, now_ms: u64, seen: &Observation, set: &settings::Pages) {
        let jobs: Vec<ServiceId> = seen.be().map(|s| s.id.clone()).collect();
        let others = self.jobs != jobs || self.held.keys().any(|id| seen.get(id).is_none_or(|s| !s.is_lc()));
        self.jobs = jobs;
        self.open = false;
        if others {
            self.sizes.keep(seen);
            self.k.retain(|id, _| seen.get(id).is_some());
            self.gave.clear();
            self.spared.retain(|id, _| seen.get(id).is_some());
            self.held.retain(|id, _| seen.get(id).is_some_and(ServiceView::is_lc));
        }
        if now_ms < self.next_ms {
            return;
        }
        self.next_ms = now_ms + self.set.step.period_ms;
        self.sizes.measure(seen, &self.set);
        self.used.clear();
        self.waits.clear();
        let (unit, mut harmed) = (self.unit(set), vec![]);
        for s in seen.lc() {
            let late = s.qos_met() == Some(false);
            if late && self.gave.remove(&s.id).is_some_and(|t| now_ms < t + set.forget_ms) {
                let lately = |until_ms: u64| now_ms < until_ms + (set.forget_ms << DOUBLINGS);
                let times = self.spared.get(&s.id).map_or(0, |(until_ms, times)| if lately(*until_ms) { *times } else { 0 });
                harmed.push(s.id.clone());
                self.spared.insert(s.id.clone(), (now_ms + (set.forget_ms << times), (times + 1).min(DOUBLINGS)));
            }
            let w = self.sizes.footprint.get(&s.id).copied();
            if let Some(k) = read_k(self.k.get(&s.id).copied(), &s.memory, w, set.resident) {
                self.k.insert(s.id.clone(), k);
            }
            let in_force = s.allocation.mem_limit_bytes.is_some();
            self.used.extend(s.memory.in_use_bytes.filter(|_| in_force).map(|used| (s.id.clone(), used as f64)));
            if s.memory.disk_swap_ins_per_s.zip(s.window).is_some_and(|(disk, l)| disk > set.disk * l.achieved_rps) {
                self.waits.insert(s.id.clone());
            }
        }
        for id in harmed {
            // What was taken comes back, as far as the jobs have it.
            let most = self.sizes.footprint.get(&id).copied().unwrap_or(f64::INFINITY);
            if self.of_jobs() - unit >= self.least_of_jobs() {
                self.held.entry(id).and_modify(|m| *m = (*m + unit).min(most.max(*m)));
            }
        }
        self.keep_floors();
        self.begin(seen);
        let without = |s: &&ServiceView| s.placed && !self.held.contains_key(&s.id);
        let used = |s: &ServiceView| s.memory.in_use_bytes.map_or(0.0, |b| b as f64);
        self.unlimited = seen.lc().filter(without).map(used).sum();
        self.open = !self.held.is_empty();
    }

    /// What a service cannot be without: its pages, compressed.
    fn floor(n: &Needs) -> f64 {
        n.least.min(n.w)
    }

    /// A service whose pages have become more, or compress worse, has its floor before all else. Where that does not fit the kernel divides.
    fn keep_floors(&mut self) {
        let lacks = |(id, m): (&ServiceId, &f64)| Some((id.clone(), Self::floor(&self.needs(id, None)?) - m));
        let all: Vec<(ServiceId, f64)> = self.held.iter().filter_map(lacks).filter(|(_, lacks)| *lacks > 0.0).collect();
        let sum: f64 = all.iter().map(|(_, lacks)| lacks).sum();
        if sum > 0.0 && self.of_jobs() - sum < self.least_of_jobs() {
            self.held.clear();
            return;
        }
        for (id, lacks) in all {
            self.held.entry(id).and_modify(|m| *m += lacks);
        }
    }

    fn least_of_jobs(&self) -> f64 {
        self.set.least.be_memory * self.capacity
    }

    /// Limits where there were none: each LC service has what it uses now, as far as that fits beside the jobs' least.
    fn begin(&mut self, seen: &Observation) {
        let ids: Vec<ServiceId> = seen.lc().filter(|s| s.placed).map(|s| s.id.clone()).collect();
        if self.jobs.is_empty() || ids.is_empty() {
            self.held.clear();
            return;
        }
        if ids.iter().all(|id| self.held.contains_key(id)) || seen.lc().any(ServiceView::latency_unknown) {
            return;
        }
        let Some(needs) = ids.iter().map(|id| self.needs(id, None)).collect::<Option<Vec<Needs>>>() else { return };
        if self.sizes.sum(&self.jobs).is_none() {
            return;
        }
        // A limit that is in force stays: what was given since is not taken back.
        let used = |id: &ServiceId| Some((seen.get(id)?.memory.in_use_bytes? as f64).max(self.held.get(id).copied().unwrap_or(0.0)));
        let Some(used) = ids.iter().map(used).collect::<Option<Vec<f64>>>() else { return };
        let mut all: Vec<f64> = used.iter().zip(&needs).map(|(u, n)| u.clamp(Self::floor(n), n.w)).collect();
        let over = all.iter().sum::<f64>() - (self.capacity - self.least_of_jobs());
        if over > 0.0 {
            // Of services that are not late, in proportion to what each has above its floor.
            let late = |id: &ServiceId| seen.get(id).is_some_and(|s| s.qos_met() == Some(false));
            let above = |((id, n), m): ((&ServiceId, &Needs), &f64)| if late(id) { 0.0 } else { m - Self::floor(n) };
            let room: Vec<f64> = ids.iter().zip(&needs).zip(&all).map(above).collect();
            let sum: f64 = room.iter().sum();
            if sum < over {
                self.held.clear();
                return;
            }
            all.iter_mut().zip(room).for_each(|(m, r)| *m -= over * r / sum);
        }
        self.held = ids.into_iter().zip(all).collect();
        self.used.clear();
    }

    /// None while its size is unknown. `rps` stands in for pages that come back before any have: about one a request.
    fn needs(&self, id: &ServiceId, rps: Option<f64>) -> Option<Needs> {
        let (w, gamma) = (*self.sizes.footprint.get(id)?, *self.sizes.ratio.get(id)?);
        let least = self.sizes.compressed(id)? * self.set.least.compressed;
        Some(Needs { w, gamma, least, k: self.k.get(id).copied().or(rps) })
    }

    fn is_spared(&self, id: &ServiceId, now_ms: u64) -> bool {
        self.spared.get(id).is_some_and(|(until_ms, _)| now_ms < *until_ms)
    }

    fn unit(&self, set: &settings::Pages) -> f64 {
        self.capacity / f64::from(set.units)
    }

    fn of_jobs(&self) -> f64 {
        self.capacity - self.held.values().sum::<f64>() - self.unlimited
    }

    /// Price of so much memory for an LC service: the memory, the pool in it, and cores that are busy with pages that come back.
    fn prices(&self, policy: &Surefoot, n: &Needs, m: f64) -> [f64; 3] {
        let p = &policy.set.prices;
        let total = policy.books.platform.cores(policy.books.total().cores).max(1e-9);
        let share = |bytes: f64| bytes / self.capacity;
        let back = self.busy_with(policy, n, m) / total;
        [p.memory * share(m), p.pool * share(largest_pool(n.w, m, n.gamma)), p.cores_beside_be * back]
    }

    /// Cores that are busy with pages that come back.
    fn busy_with(&self, policy: &Surefoot, n: &Needs, m: f64) -> f64 {
        n.comes_back(m).unwrap_or(0.0) * policy.set.pages.page_us * 1e-6
    }

    /// Price of so many bytes for all jobs together: what they lack of their footprints.
    fn price_of_jobs(&self, policy: &Surefoot, bytes: f64) -> f64 {
        let footprints = self.sizes.of(&self.jobs);
        let split = among_jobs(&footprints, bytes, self.set.least.be_memory);
        let lack: f64 = footprints.iter().zip(split).map(|(w, m)| (w - m).max(0.0)).sum();
        policy.set.prices.memory_beside_be * lack / self.capacity
    }

    /// Cells with a unit of memory more or less, on top of those without.
    pub fn offers(&self, policy: &Surefoot, asked: &Asked, role: Role, pass: Pass, cells: &[Cell]) -> Vec<Cell> {
        let id = &asked.s.id;
        let (Some(m), true, false) = (self.held.get(id).copied(), self.open, role == Role::Blind) else { return vec![] };
        let Some(n) = self.needs(id, Some(asked.life.rps)) else { return vec![] };
        let (unit, set) = (self.unit(&policy.set.pages), &policy.set);
        let now: f64 = self.prices(policy, &n, m).iter().sum();
        let at = |cell: &Cell, units: i32, cores: u32| {
            let to = m + f64::from(units) * unit;
            let to = if units > 0 { to.min(n.w.max(m)) } else { to };
            let more = self.busy_with(policy, &n, to) - self.busy_with(policy, &n, m);
            let held = cell.held.plus(Amount::new(cores, 0));
            let of = |c: u32| policy.books.platform.cores(c);
            // As the rule of thumb has it: with the square of the cores that are left for its own work.
            let left = ((of(held.cores) - more) / of(cell.held.cores)).max(0.0);
            // What waits for the device is as good as a missed target.
            let waits = if self.waits.contains(id) { f64::from(units) * set.prices.miss } else { 0.0 };
            let price = self.prices(policy, &n, to).iter().sum::<f64>() - now - waits + set.prices.move_memory;
            Cell { units, memory: price, held, qos: cell.qos * left * left, ..*cell }
        };
        let here = asked.now();
        // Before that, memory of the last plan still moves.
        let Some(used) = self.used.get(id) else { return vec![] };
        let mut out = vec![];
        // More than it has pages for, or than would bring pages back from anywhere, is no help.
        let helps = self.waits.contains(id) || self.busy_with(policy, &n, m) > LEAST_BUSY;
        if helps && m + 0.5 * unit < n.w && *used >= m - unit {
            // Where more is needed, beside cores and instead of them; else alone.
            out.push(at(&here, 1, 0));
            if role == Role::Needs {
                out.extend(cells.iter().filter(|c| c.held != here.held).map(|c| at(c, 1, 0)));
            }
        }
        let well = asked.qos.is_some_and(|q| q >= set.comfort_qos()) && !asked.life.is_new() && !asked.backlogged;
        let gives = well
            && !asked.s.latency_unknown()
            && asked.life.strikes == 0
            && !self.is_spared(id, asked.now_ms)
            && asked.now_ms >= asked.life.spared_until_ms
            && self.gave.get(id).is_none_or(|t| asked.now_ms >= t + if set.is_slow(asked.s) { set.patience.slow_ms } else { WINDOW_MS })
            && *used <= m + self.set.judge.rest * n.w;
        if gives && role != Role::Needs && pass != Pass::Free && m - unit >= Self::floor(&n).max(0.0) {
            let free = policy.books.free().cores;
            let enough = (0..=free.min(set.pages.trade)).map(|c| at(&here, -1, c)).find(|c| c.qos >= set.comfort_qos());
            out.extend(enough);
        }
        out
    }

    /// What the jobs may have, for what is offered to services; and all units that there are to hand out.
    pub fn offers_of_jobs(&self, policy: &Surefoot, cells: &[Vec<Cell>]) -> (Vec<Choice>, u32) {
        let of = |units: &dyn Fn(&Cell) -> i32| cells.iter().map(|c| c.iter().map(units).max().unwrap_or(0)).sum::<i32>();
        let (given, wanted) = (of(&|c| -c.units).max(0), of(&|c| c.units).max(0));
        let (unit, has) = (self.unit(&policy.set.pages), self.of_jobs());
        let spare = ((has - self.least_of_jobs()) / unit).floor().max(0.0) as i32;
        let gives = if self.open { wanted.min(spare) } else { 0 };
        let choice = |j: i32| {
            let price = self.price_of_jobs(policy, has + f64::from(j - gives) * unit);
            Choice { held: Amount::default(), memory: j as u32, price }
        };
        ((0..=given + gives).map(choice).collect(), (given + gives) as u32)
    }

    /// Limit and pool of every service and job that has one.
    fn limits(&self) -> BTreeMap<ServiceId, (Limit, Limit)> {
        if self.held.is_empty() {
            return BTreeMap::new();
        }
        let mut all: BTreeMap<_, _> = self.held.iter().map(|(id, m)| (id.clone(), self.sizes.limits(id, *m, &self.set))).collect();
        // What a service without a limit uses may be all that is left of the jobs' least: then there are no limits to add up.
        if self.of_jobs() + 1.0 < self.least_of_jobs() {
            return BTreeMap::new();
        }
        let split = among_jobs(&self.sizes.of(&self.jobs), self.of_jobs(), self.set.least.be_memory);
        // A job that came later has a limit once it was measured: until then it is not known what it needs.
        let of_job = |id: &ServiceId, m| if self.sizes.footprint.contains_key(id) { limit(m) } else { Limit::None };
        all.extend(self.jobs.iter().zip(split).map(|(id, m)| (id.clone(), (of_job(id, m), pool(0.0)))));
        all
    }

    /// Put limits into a plan, of services that have cores.
    pub fn plan(&self, seen: &Observation, plan: &mut Plan) {
        let limits = self.limits();
        for s in seen.services.iter().filter(|s| s.placed) {
            let (mem, zswap) = limits.get(&s.id).copied().unwrap_or((Limit::None, Limit::None));
            let change = Change { mem_limit: Some(mem), zswap_max: Some(zswap), ..Change::default() };
            if change.alters(&s.allocation) {
                let others = plan.changes.remove(&s.id).unwrap_or_default();
                plan.changes.insert(s.id.clone(), others.and(change));
            }
        }
    }
}

impl Surefoot {
    /// The units of memory that a joint choice moves. True if there were any.
    pub(super) fn move_memory(
        &mut self,
        now_ms: u64,
        seen: &Observation,
        chosen: &[(ServiceId, Cell)],
        why: &str,
        plan: &mut Plan,
    ) -> bool {
        let set = self.set.pages;
        let Some(pages) = self.pages.as_mut() else { return false };
        let unit = pages.unit(&set);
        let least = pages.least_of_jobs();
        let before = pages.held.clone();
        // First what makes room.
        let mut moves: Vec<&(ServiceId, Cell)> = chosen.iter().filter(|(_, c)| c.units != 0).collect();
        moves.sort_by_key(|(_, c)| c.units);
        for (id, c) in &moves {
            let by = f64::from(c.units) * unit;
            let fits = by <= 0.0 || pages.of_jobs() - by >= least;
            let (Some(w), Some(m)) = (pages.sizes.footprint.get(id).copied(), pages.held.get_mut(id)) else { continue };
            if fits {
                *m = if by > 0.0 { (*m + by).min(w.max(*m)) } else { *m + by };
                pages.used.remove(id);
                if c.units < 0 {
                    pages.gave.insert(id.clone(), now_ms);
                }
            }
        }
        if moves.is_empty() || pages.held == before {
            return false;
        }
        pages.open = false;
        let Some(pages) = &self.pages else { return false };
        let limits = pages.limits();
        for (id, c) in moves {
            let (Some(s), Some(life), Some(of)) = (seen.get(id), self.lives.get(id), limits.get(id)) else { continue };
            let kind = if c.units > 0 { ActionKind::Grow } else { ActionKind::Shrink };
            let holds_if = if s.qos_met() == Some(true) { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::P99Falls };
            let mut because = Because::seen(s).expect(holds_if);
            self.say_memory(&mut because, id, *of, life.rps);
            because.bind("the cheapest cores, ways and memory for all services and the jobs that fit");
            let gb = of.0.bytes().map_or(f64::NAN, |b| b as f64 / crate::cosmos::GB);
            let why = format!("{why}: {} memory, {gb:.1} GB", if c.units > 0 { "more" } else { "less" });
            plan.actions.push(Action { service: id.clone(), kind, why, because });
        }
        true
    }

    /// Sizes, limits, and the price of each.
    fn say_memory(&self, because: &mut Because, id: &ServiceId, of: (Limit, Limit), rps: f64) {
        let Some(pages) = &self.pages else { return };
        pages.sizes.say(because, BY, id, of);
        let (Some(n), Some(m)) = (pages.needs(id, Some(rps)), pages.held.get(id).copied()) else { return };
        let [memory, pool, back] = pages.prices(self, &n, m);
        because.say(BY, "pages that come back over -ln of the resident share", n.k.unwrap_or(f64::NAN), "1/s");
        because.say(BY, "price of its memory", memory, "");
        because.say(BY, "price of its pool", pool, "");
        because.say(BY, "price of cores for pages that come back", back, "");
        because.say(BY, "price of what the jobs lack", pages.price_of_jobs(self, pages.of_jobs()), "");
    }

    /// A plan that moves memory, and cores where these make up for it; each service else keeps what it has.
    pub(super) fn rebalance(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if !self.pages.as_ref().is_some_and(|p| p.open) || !plan.actions.is_empty() {
            return;
        }
        let Some(chosen) = self.joint(&self.ask_all(now_ms, seen), |_, _| Role::Keeps, Pass::Trade, 0.0) else { return };
        self.carry_out(now_ms, seen, &chosen, "memory at its price", plan);
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
