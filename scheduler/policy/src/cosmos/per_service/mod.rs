//! `cosmos-per-service`: one COSMOS state (cores, memory, pool) for each of several LC services. The jobs have the rest, off the pool.
//!
//! What must hold: limits that are set add up to no more than the machine's memory; a pool lies inside its limit, and that of a job is 0; no limit of
//! an LC service is below what its pages compress to, while that fits; a service of unknown latency gives nothing; a service that misses its target is
//! helped before another gives to the jobs.
//!
//! With w, gamma, the pool (Eq. 2), floors, margins and readings of [`cosmos`](super):
//!
//! * **memory**: the LC services have what the jobs' footprint leaves (R2), at least what their pages compress to (R1). It is divided so that the fewest
//!   pages come back ([`memory`]); of jobs that do not fit together, one is held whole before two are in part;
//! * **cores**: they begin with all but the jobs' least, by how busy each service is. A service that meets its target with room gives some of them, as
//!   far as its own last miss at this load, how busy it would be, and the jobs' throughput allow. A gift that leads to a miss is taken back at once;
//! * **help**: the service with the worst QoS first, with cores of the jobs, then of services with room, then with 5 % of its footprint of the jobs'
//!   memory (C4: less compressed memory makes fewer cores do). Where nothing is left, it is reported to migrate.
//!
//! Beside a policy of cores (`parties+cosmos-per-service`) it owns memory and pools alone.

pub(crate) mod memory;
mod settings;
#[cfg(test)]
pub(crate) mod tests;

pub use settings::Settings;

use super::groups::{limit, pool, Gathered, Groups};
use super::sizes::{Resident, Sizes, Withheld};
use super::{Settings as Shared, GB, LOAD_SIGMAS, OWNS};
use crate::pace::Pace;
use crate::policy::ask_for;
use crate::Policy;
use memory::{all_come_back, among_jobs, divide, read_k, Needs};
use std::collections::BTreeMap;
use surefoot_server::window::MIN_COUNT_P99;
use surefoot_server::{
    Action, ActionKind, Because, Change, Cpu, HoldsIf, Limit, Observation, Plan, Platform, Report, Resource, ServiceId, ServiceView,
};

/// One LC service.
#[derive(Clone, Debug, Default)]
struct Of {
    /// Core units.
    cores: u32,
    /// Those before a gift that is on trial.
    before: Option<u32>,
    /// Core units below which the target is known to be missed at this load.
    floor: u32,
    margin: f64,
    /// Requests a second at which this state was found.
    load: Option<f64>,
    load_streak: u32,
    /// Periods that missed the target, less what was forgiven.
    misses: f64,
    /// Of the last change of its cores.
    since_ms: u64,
    /// Periods since then that were read.
    read: usize,
    judged: Gathered,
    period: Gathered,
    /// Busy cores in this period: sum over ticks, and ticks.
    busy: (f64, f64),
    /// Busy cores in the last period.
    busy_cores: Option<f64>,
    /// Pages that come back over -ln of the resident share, 1/s.
    k: Option<f64>,
    /// Bytes on top of its division, by which it was helped; and steps of these.
    extra: f64,
    vain: u32,
    told: bool,
}

impl Of {
    fn forget_reading(&mut self, now_ms: u64) {
        (self.since_ms, self.read, self.judged) = (now_ms, 0, Gathered::default());
    }

    fn set_cores(&mut self, cores: u32, before: Option<u32>, now_ms: u64) {
        (self.cores, self.before, self.misses) = (cores, before, 0.0);
        self.forget_reading(now_ms);
    }
}

/// What is said of a step: what it does, why, what is expected of an LC service, and what bounds it.
#[derive(Clone, Copy)]
struct Step(ActionKind, &'static str, HoldsIf, &'static str);

/// Memory among services: M of each LC service, and what the jobs have together, bytes.
#[derive(Clone, Debug)]
struct Division {
    lc: BTreeMap<ServiceId, f64>,
    jobs: f64,
}

/// The policy.
pub struct PerService {
    pace: Pace,
    set: Shared,
    own: Settings,
    groups: Groups,
    /// Bytes that limits share out; None where the platform's memory is unknown.
    capacity: Option<f64>,
    owns_cores: bool,
    of: BTreeMap<ServiceId, Of>,
    sizes: Sizes,
    /// Those that memory was divided by.
    kept: Sizes,
    resident: Resident,
    /// None: no limits, the kernel divides.
    memory: Option<Division>,
    moved_ms: u64,
    at_rest: bool,
    /// Times that memory was divided anew since the mix or a load changed.
    anew: u32,
    /// Services and jobs that came since memory was divided, or sizes that are off it: periods.
    off: u32,
    /// A service that was helped by memory has less load now.
    goes_back: bool,
    /// Each LC service has cores of its own.
    parted: bool,
    jobs: Gathered,
    jobs_read: usize,
    /// Throughput of the jobs before the last gift.
    gift: Option<f64>,
    sated: u32,
    told: bool,
    next_ms: u64,
    period_ms: u64,
    withheld: Withheld,
    /// Limits were asked for and never came into force: there are none until services or jobs come or go.
    cores_alone: bool,
    wanted: BTreeMap<ServiceId, Change>,
}

impl PerService {
    /// `owns_cores`: false beside a policy that does.
    pub fn new(platform: &Platform, set: Shared, own: Settings, owns_cores: bool) -> Self {
        PerService {
            pace: Pace::default(),
            set,
            own,
            groups: Groups::new(platform),
            capacity: platform.memory.map(|m| m.capacity_bytes as f64),
            owns_cores,
            of: BTreeMap::new(),
            sizes: Sizes::default(),
            kept: Sizes::default(),
            resident: Resident::default(),
            memory: None,
            moved_ms: 0,
            at_rest: false,
            anew: 0,
            off: 0,
            goes_back: false,
            parted: false,
            jobs: Gathered::default(),
            jobs_read: 0,
            gift: None,
            sated: 0,
            told: false,
            next_ms: 0,
            period_ms: 0,
            withheld: Withheld::default(),
            cores_alone: false,
            wanted: BTreeMap::new(),
        }
    }

    fn most_cores(&self) -> u32 {
        self.groups.most_lc(self.set.least.be_cores)
    }

    /// Core units that the jobs have above their least.
    fn spare(&self) -> u32 {
        self.most_cores().saturating_sub(self.of.values().map(|o| o.cores).sum())
    }

    /// Whether there is something to divide, and a core for each LC service.
    fn divides(&self) -> bool {
        let each = if self.owns_cores { self.groups.lc.len() as u32 } else { 1 };
        self.groups.divides() && each <= self.most_cores()
    }

    fn here(&self) -> impl Iterator<Item = &ServiceId> {
        self.groups.lc.iter()
    }

    // Memory.

    fn needs(&self) -> Option<Vec<Needs>> {
        let one = |id: &ServiceId| {
            let (w, gamma) = (*self.sizes.footprint.get(id)?, *self.sizes.ratio.get(id)?);
            Some(Needs { w, gamma, least: self.sizes.compressed(id)? * self.set.least.compressed, k: self.of.get(id)?.k })
        };
        self.here().map(one).collect()
    }

    /// Whether floors of all LC services fit beside the jobs' least, and limits are taken. Sizes that are not known speak against nothing.
    fn fits(&self) -> bool {
        let Some((capacity, needs)) = self.capacity.zip(self.needs()) else { return !self.cores_alone };
        !self.cores_alone && needs.iter().map(|n| n.least).sum::<f64>() <= capacity * (1.0 - self.set.least.be_memory)
    }

    /// Whether some LC service's pages have become more than its limit can hold, compressed (R1).
    fn below_floor(&self) -> bool {
        let (Some(Division { lc, .. }), Some(needs)) = (&self.memory, self.needs()) else { return false };
        self.here().zip(needs).any(|(id, n)| lc.get(id).is_some_and(|m| *m < n.least - self.set.judge.same * n.w))
    }

    /// By sizes of now; None where these are not known, or no limits are to be.
    fn divided(&self) -> Option<Division> {
        let (capacity, needs) = (self.capacity.filter(|_| self.fits())?, self.needs()?);
        let most = capacity * (1.0 - self.set.least.be_memory);
        let least = needs.iter().map(|n| n.least).sum::<f64>();
        let extra: f64 = self.of.values().map(|o| o.extra).sum();
        let total = (capacity - self.sizes.sum(&self.groups.be)? + extra).clamp(least, most);
        let extra = extra.min(total - least);
        let mut all: BTreeMap<ServiceId, f64> = self.here().cloned().zip(divide(&needs, total - extra)).collect();
        let helped: f64 = self.of.values().map(|o| o.extra).sum::<f64>().max(1.0);
        for (id, m) in &mut all {
            *m += extra * self.of.get(id).map_or(0.0, |o| o.extra) / helped;
        }
        Some(Division { lc: all, jobs: capacity - total })
    }

    fn set_memory(&mut self, to: Division, now_ms: u64) {
        self.memory = Some(to);
        self.kept = self.sizes.clone();
        (self.moved_ms, self.at_rest, self.off) = (now_ms, false, 0);
    }

    /// Why memory is to be divided anew, and how; None: as it is, it is well.
    fn divides_anew(&mut self, now_ms: u64) -> Option<(&'static str, Division)> {
        let to = self.divided()?;
        let Some(Division { lc: now, jobs }) = &self.memory else { return Some(("sizes are known: memory is divided", to)) };
        if to.lc.keys().ne(now.keys()) || self.sizes.footprint.keys().ne(self.kept.footprint.keys()) {
            return Some(("other services or jobs: memory is divided anew", to));
        }
        if self.below_floor() {
            return Some(("a service has more pages than its limit can hold: memory is divided anew", to));
        }
        if std::mem::take(&mut self.goes_back) {
            return Some(("load has fallen: memory that helped goes back", to));
        }
        let off = self.sizes.any_is_off(&self.kept, &self.set.readapt);
        self.off = if off { self.off + 1 } else { 0 };
        let mut to = to;
        if off && self.of.values().any(|of| of.extra > 0.0) {
            // What helped was for the sizes of then.
            self.of.values_mut().for_each(|of| of.extra = 0.0);
            to = self.divided()?;
        }
        if self.off >= self.set.readapt.periods {
            self.anew = 0;
            return Some(("footprint or ratio has changed: memory is divided anew", to));
        }
        if self.anew >= self.set.judge.anew || now_ms - self.moved_ms < self.set.judge.settle_ms {
            return None;
        }
        let moves = |share: f64| {
            let w = |id: &ServiceId| self.sizes.footprint.get(id).copied().unwrap_or(f64::INFINITY);
            let jobs_w = self.sizes.sum(&self.groups.be).unwrap_or(f64::INFINITY);
            to.lc.iter().any(|(id, m)| (m - now[id]).abs() > share * w(id)) || (to.jobs - jobs).abs() > share * jobs_w
        };
        let same = self.set.judge.same;
        let (footprint, ratio) = (same, same);
        let turned_out = self.sizes.any_is_off(&self.kept, &super::Readapt { footprint, ratio, ..self.set.readapt });
        let why = if turned_out && moves(same) {
            "footprint or ratio turned out otherwise: limits are computed anew"
        } else if self.arrived(now_ms) && moves(self.own.share.moves) {
            let needs = self.needs()?;
            let of = |m: &BTreeMap<ServiceId, f64>| all_come_back(&needs, &m.values().copied().collect::<Vec<f64>>());
            let fewer = of(&to.lc)? < (1.0 - self.own.share.gain) * of(now)?;
            fewer.then_some("other pages come back: memory goes where they do")?
        } else {
            return None;
        };
        self.anew += 1;
        Some((why, to))
    }

    /// Memory is there, or has been waited for long enough.
    fn arrived(&self, now_ms: u64) -> bool {
        self.memory.is_none() || self.at_rest || now_ms - self.moved_ms >= self.set.judge.most_wait_ms
    }

    /// Limit and pool of every service and job.
    fn limits(&self) -> BTreeMap<ServiceId, (Limit, Limit)> {
        let Some(Division { lc, jobs }) = &self.memory else { return BTreeMap::new() };
        let mut all: BTreeMap<_, _> = lc.iter().map(|(id, m)| (id.clone(), self.sizes.limits(id, *m, &self.set))).collect();
        let footprints = self.sizes.of(&self.groups.be);
        let split = among_jobs(&footprints, *jobs, self.set.least.be_memory);
        // A job that came later has a limit once it was measured: until then it is not known what it needs.
        let is_known = |id: &ServiceId| self.kept.footprint.contains_key(id) && self.sizes.footprint.contains_key(id);
        let of_job = |id: &ServiceId, m| if is_known(id) { limit(m) } else { Limit::None };
        all.extend(self.groups.be.iter().zip(split).map(|(id, m)| (id.clone(), (of_job(id, m), pool(0.0)))));
        all
    }

    // Readings.

    fn gather(&mut self, now_ms: u64, seen: &Observation) {
        let waiting = self.withheld.wait(now_ms, &self.wanted, seen, self.set.judge.most_wait_ms);
        for s in seen.lc() {
            let Some(of) = self.of.get_mut(&s.id) else { continue };
            of.period.add_requests(s);
            if let Some(busy) = s.features.cpu_usage_cores {
                of.busy = (of.busy.0 + busy, of.busy.1 + 1.0);
            }
            if waiting.contains(&s.id) {
                // Put off by the guard, or not taken by the kernel yet: what is read is not of this state.
                of.forget_reading(now_ms);
                self.at_rest = false;
            } else if now_ms - of.since_ms > self.set.judge.settle_ms {
                of.judged.add_requests(s);
            }
        }
        self.jobs.add_work(seen);
    }

    /// The end of a period: QoS of each service whose latency is known.
    fn read(&mut self, now_ms: u64, seen: &Observation) -> BTreeMap<ServiceId, f64> {
        let length_s = (now_ms - std::mem::replace(&mut self.period_ms, now_ms)).max(1) as f64 / 1000.0;
        let mut all = BTreeMap::new();
        for s in seen.lc() {
            let Some(of) = self.of.get_mut(&s.id) else { continue };
            let (period, busy) = (std::mem::take(&mut of.period), std::mem::take(&mut of.busy));
            of.busy_cores = (busy.1 > 0.0).then(|| busy.0 / busy.1);
            of.k = read_k(of.k, &s.memory, self.sizes.footprint.get(&s.id).copied(), self.own.share.resident);
            let settled = now_ms - of.since_ms > self.set.judge.settle_ms;
            of.read += usize::from(settled);
            let Some(qos) = period.qos_of(s) else { continue };
            all.insert(s.id.clone(), qos);
            if settled {
                let (rate, noise) = (period.requests() / length_s, LOAD_SIGMAS * period.requests().sqrt() / length_s);
                let was = match of.load {
                    Some(was) => was,
                    None if qos >= 1.0 => *of.load.insert(rate),
                    None => continue,
                };
                // While the target is missed, what is served may be less than what is asked for, but not more.
                let change = if qos >= 1.0 { (rate - was).abs() } else { rate - was };
                of.load_streak = if change > self.set.readapt.load * was + noise { of.load_streak + 1 } else { 0 };
                if of.load_streak >= self.set.readapt.periods {
                    self.follow_load(&s.id, rate / was.max(1e-9), rate, now_ms);
                }
            }
        }
        all
    }

    /// Another load: what was found at the old one is forgotten, but that what missed the target does so under more load, too.
    fn follow_load(&mut self, id: &str, by: f64, rate: f64, now_ms: u64) {
        let spare = self.spare();
        let owns_cores = self.owns_cores && self.parted;
        let Some(of) = self.of.get_mut(id) else { return };
        (of.load, of.load_streak, of.margin) = (Some(rate), 0, self.set.judge.margin);
        (of.vain, of.told) = (0, false);
        (self.anew, self.sated, self.gift) = (0, 0, None);
        if by < 1.0 {
            of.floor = 0;
            // What helped under more load goes back to the jobs.
            self.goes_back |= of.extra > 0.0;
            of.extra = 0.0;
        } else if owns_cores {
            let more = ((f64::from(of.cores) * (by - 1.0)).ceil() as u32).min(spare);
            let cores = of.cores + more;
            of.set_cores(cores, None, now_ms);
        }
    }

    /// Whether enough was read of a service to judge it.
    fn is_read(&self, of: &Of, now_ms: u64) -> bool {
        let enough = of.judged.requests() >= MIN_COUNT_P99 as f64 || now_ms - of.since_ms >= self.set.judge.most_wait_ms;
        of.read >= self.set.judge.readings && enough
    }

    // Decisions.

    /// A period has passed. True where something is wanted otherwise than before.
    fn look(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) -> bool {
        self.sizes.measure(seen, &self.set);
        let rests = self.resident.rests(seen, &self.sizes, self.set.judge.rest);
        self.at_rest |= rests && now_ms - self.moved_ms >= self.set.step.period_ms;
        let qos = self.read(now_ms, seen);
        let unknown = seen.lc().any(ServiceView::latency_unknown);
        self.jobs_read += 1;
        let mut moves = false;
        if self.owns_cores && !self.parted {
            self.part(now_ms);
            let why = "each LC service has cores of its own, by how busy it was";
            self.act_all(seen, Step(ActionKind::Grow, why, HoldsIf::Qos { at_least: 1.0 }, "all cores but the jobs' least"), plan);
            moves = true;
        }
        let short = self.short(&qos, now_ms);
        if self.memory.is_some() && !self.fits() {
            self.memory = None;
            let why = "floors do not fit, or limits are not taken: the kernel divides memory";
            self.act_all(seen, Step(ActionKind::Grow, why, HoldsIf::P99Falls, "no limit is below a floor (R1)"), plan);
            return true;
        }
        if !unknown && (short.is_empty() || self.memory.is_none() || self.below_floor()) {
            if let Some((why, to)) = self.divides_anew(now_ms) {
                self.set_memory(to, now_ms);
                let bound = "the jobs' footprint fits (R2), and all of the LC services' pages do, compressed (R1)";
                self.act_all(seen, Step(ActionKind::Shrink, why, HoldsIf::Qos { at_least: 1.0 }, bound), plan);
                return true;
            }
        }
        if self.owns_cores {
            moves |= self.take_back(now_ms, &qos, seen, plan);
        }
        for id in &short {
            moves |= self.help(id, now_ms, &qos, seen, plan);
        }
        if short.is_empty() && !moves && !unknown && self.owns_cores {
            moves |= self.give(now_ms, &qos, seen, plan);
        }
        moves
    }

    /// All cores but the jobs' least: one each, and the others one by one to the service that is busiest on what it has.
    fn part(&mut self, now_ms: u64) {
        let busy: Vec<f64> = self.of.values().map(|o| o.busy_cores.unwrap_or(1.0).max(1e-3)).collect();
        let mut cores = vec![1u32; busy.len()];
        for _ in busy.len() as u32..self.most_cores() {
            let load = |i: &usize| busy[*i] / f64::from(cores[*i]);
            if let Some(i) = (0..busy.len()).max_by(|a, b| load(a).total_cmp(&load(b)).then(b.cmp(a))) {
                cores[i] += 1;
            }
        }
        self.of.values_mut().zip(cores).for_each(|(of, cores)| of.set_cores(cores, None, now_ms));
        self.parted = true;
        self.forget_jobs();
    }

    fn forget_jobs(&mut self) {
        (self.jobs, self.jobs_read, self.gift) = (Gathered::default(), 0, None);
    }

    /// Services that have missed their targets for so long that they are to be helped, the worst first.
    fn short(&mut self, qos: &BTreeMap<ServiceId, f64>, now_ms: u64) -> Vec<ServiceId> {
        let mut short = vec![];
        for (id, of) in &mut self.of {
            let Some(q) = qos.get(id).copied() else { continue };
            if q >= 1.0 {
                of.misses = (of.misses - self.own.cores.forgive).max(0.0);
                // Steps that led here were not in vain.
                of.vain = 0;
                of.told &= q < 1.0 / (1.0 - of.margin);
                continue;
            }
            of.misses += 1.0;
            let wait = if q < self.own.cores.far_qos { 1.0 } else { f64::from(self.set.readapt.misses) };
            let settled = now_ms - of.since_ms > self.set.judge.settle_ms;
            // Requests of a slow service are of before the last change for long.
            let of_now = of.judged.requests() >= MIN_COUNT_P99 as f64 || now_ms - of.since_ms >= self.set.judge.most_wait_ms;
            if of.before.is_none() && settled && of_now && of.misses >= wait {
                short.push((q, id.clone()));
            }
        }
        short.sort_by(|a, b| a.0.total_cmp(&b.0));
        short.into_iter().map(|(_, id)| id).collect()
    }

    /// A gift that led to a miss comes back at once.
    fn take_back(&mut self, now_ms: u64, qos: &BTreeMap<ServiceId, f64>, seen: &Observation, plan: &mut Plan) -> bool {
        let missed = |id: &ServiceId, of: &Of| {
            let read = now_ms - of.since_ms > self.set.judge.settle_ms && of.judged.requests() >= MIN_COUNT_P99 as f64;
            // Within the margin a target is missed in the next second.
            let bad = |s: &ServiceView| self.is_read(of, now_ms) && of.judged.qos_of(s).is_some_and(|q| q < 1.0 / (1.0 - of.margin));
            of.before.is_some() && (read && qos.get(id).is_some_and(|q| *q < 1.0) || seen.get(id).is_some_and(bad))
        };
        let back: Vec<ServiceId> = self.of.iter().filter(|(id, of)| missed(id, of)).map(|(id, _)| id.clone()).collect();
        let mut moved = false;
        for id in &back {
            let spare = self.spare();
            let Some(of) = self.of.get_mut(id) else { continue };
            let cores = of.before.unwrap_or(of.cores).min(of.cores + spare);
            of.floor = of.floor.max(of.cores + 1);
            if cores <= of.cores {
                // Another service has them: this one is helped as any other that misses its target.
                of.before = None;
                continue;
            }
            of.set_cores(cores, None, now_ms);
            moved = true;
            self.forget_jobs();
            self.act(
                seen,
                id,
                Step(
                    ActionKind::Rollback,
                    "on fewer cores it missed its target, or nearly",
                    HoldsIf::P99Falls,
                    "fewer are not tried at this load",
                ),
                plan,
            );
        }
        moved
    }

    /// More for a service that misses its target.
    fn help(&mut self, id: &ServiceId, now_ms: u64, qos: &BTreeMap<ServiceId, f64>, seen: &Observation, plan: &mut Plan) -> bool {
        let q = qos.get(id).copied().unwrap_or(1.0);
        if let Some(of) = self.of.get_mut(id) {
            of.margin = (of.margin + self.set.judge.margin_step).min(self.set.judge.margin_most).max(of.margin);
        }
        if self.owns_cores {
            let Some(of) = self.of.get(id) else { return false };
            let times = if q < self.own.cores.far_qos { 2.0 } else { 1.0 };
            let step = ((f64::from(of.cores) * self.own.cores.grow * times).ceil() as u32).max(1);
            let got = step.min(self.spare());
            let got = if got > 0 { got } else { self.cores_of_others(id, step, now_ms, qos, seen, plan) };
            if got > 0 {
                if let Some(of) = self.of.get_mut(id) {
                    of.floor = of.floor.max(of.cores + 1);
                    let cores = of.cores + got;
                    of.set_cores(cores, None, now_ms);
                }
                self.forget_jobs();
                self.act(
                    seen,
                    id,
                    Step(ActionKind::Grow, "it misses its target", HoldsIf::P99Falls, "a share of what it holds at once"),
                    plan,
                );
                return true;
            }
        }
        if self.arrived(now_ms) && (self.owns_cores || self.waits_for_disk(id, seen)) && self.more_memory(id, now_ms) {
            let why = "it misses its target, and no core is to be given: less of its memory is compressed";
            self.act(seen, id, Step(ActionKind::Grow, why, HoldsIf::P99Falls, "one step of memory a state"), plan);
            return true;
        }
        if let Some(of) = self.of.get_mut(id).filter(|of| !of.told && self.owns_cores) {
            of.told = true;
            let why = format!("it misses its target with {} core units, and no other service or job has more to give", of.cores);
            plan.reports.push(Report::Migrate { service: id.clone(), why });
        }
        false
    }

    /// Cores of other LC services that meet their targets with room, one of each.
    fn cores_of_others(
        &mut self,
        id: &ServiceId,
        step: u32,
        now_ms: u64,
        qos: &BTreeMap<ServiceId, f64>,
        seen: &Observation,
        plan: &mut Plan,
    ) -> u32 {
        let most_busy = self.own.cores.busy;
        let has_room = |of: &Of, q: f64| {
            let left = of.cores.saturating_sub(1);
            let busy = of.busy_cores.unwrap_or(0.0) / self.groups.platform.cores(left.max(1));
            of.before.is_none() && left >= of.floor.max(1) && q >= 1.0 / (1.0 - of.margin) && busy <= most_busy && self.is_read(of, now_ms)
        };
        let others = self.of.iter().filter(|(other, _)| *other != id);
        let mut givers: Vec<(f64, ServiceId)> =
            others.filter_map(|(other, of)| qos.get(other).filter(|q| has_room(of, **q)).map(|q| (*q, other.clone()))).collect();
        givers.sort_by(|a, b| b.0.total_cmp(&a.0));
        givers.truncate(step as usize);
        for (_, giver) in &givers {
            if let Some(of) = self.of.get_mut(giver) {
                let cores = of.cores - 1;
                of.set_cores(cores, Some(of.cores), now_ms);
            }
            let why = "it has room, and another LC service misses its target";
            self.act(seen, giver, Step(ActionKind::Shrink, why, HoldsIf::Qos { at_least: 1.0 }, "one core of each"), plan);
        }
        givers.len() as u32
    }

    /// Whether so many requests wait for the swap device that p99 shows it.
    fn waits_for_disk(&self, id: &str, seen: &Observation) -> bool {
        let disk = seen.get(id).and_then(|s| s.memory.disk_swap_ins_per_s);
        let load = self.of.get(id).and_then(|of| of.load);
        disk.zip(load).is_none_or(|(disk, load)| disk > self.own.share.disk * load)
    }

    /// A step of the jobs' memory for a service, where its pages come back and steps have not been in vain.
    fn more_memory(&mut self, id: &ServiceId, now_ms: u64) -> bool {
        let (Some(capacity), Some(Division { lc, jobs }), Some(w)) = (self.capacity, &mut self.memory, self.sizes.footprint.get(id)) else {
            return false;
        };
        let (Some(of), Some(m)) = (self.of.get_mut(id), lc.get_mut(id)) else { return false };
        let more = (self.set.step.memory * w).min(*jobs - self.set.least.be_memory * capacity).min(w - *m);
        if of.vain >= self.own.share.vain || of.k == Some(0.0) || more < self.set.judge.rest * w {
            return false;
        }
        *m += more;
        *jobs -= more;
        of.extra += more;
        of.vain += 1;
        of.forget_reading(now_ms);
        (self.moved_ms, self.at_rest) = (now_ms, false);
        true
    }

    /// Cores of services with room to the jobs.
    fn give(&mut self, now_ms: u64, qos: &BTreeMap<ServiceId, f64>, seen: &Observation, plan: &mut Plan) -> bool {
        if !self.arrived(now_ms) || self.jobs_read <= self.set.judge.readings {
            return false;
        }
        if let Some(before) = self.gift.take() {
            let rose = self.jobs.throughput() > before * (1.0 + self.set.judge.gain);
            self.sated = if rose { 0 } else { self.sated + 1 };
        }
        if self.sated >= self.own.cores.sated {
            return false;
        }
        let views: BTreeMap<&ServiceId, &ServiceView> = seen.lc().map(|s| (&s.id, s)).collect();
        let mut gifts = vec![];
        let ready: Vec<ServiceId> = self.of.iter().filter(|(_, of)| self.is_read(of, now_ms)).map(|(id, _)| id.clone()).collect();
        for id in ready {
            let (cores, busy_most) = (&self.own.cores, self.own.cores.busy);
            let platform = &self.groups.platform;
            let (Some(of), Some(view), true) = (self.of.get_mut(&id), views.get(&id), qos.contains_key(&id)) else { continue };
            let judged = std::mem::take(&mut of.judged);
            let q = judged.qos_of(view);
            of.read = 0;
            let Some(q) = q.filter(|q| *q >= 1.0) else { continue };
            // The gift before is borne.
            of.before = None;
            let room = 1.0 - 1.0 / (q * (1.0 - of.margin));
            if room <= 0.0 {
                continue;
            }
            let step = ((f64::from(of.cores) * cores.give * room) as u32).max(1);
            let busy = of.busy_cores.map_or(0, |b| (b / busy_most / platform.core_step).ceil() as u32);
            let to = of.cores.saturating_sub(step).max(of.floor).max(busy).max(1);
            if to < of.cores {
                gifts.push((id, of.cores, to));
            }
        }
        if gifts.is_empty() {
            return false;
        }
        let before = self.jobs.throughput();
        for (id, from, to) in &gifts {
            if let Some(of) = self.of.get_mut(id) {
                of.set_cores(*to, Some(*from), now_ms);
            }
        }
        self.forget_jobs();
        self.gift = Some(before);
        for (id, ..) in &gifts {
            let bound = "a share of what it holds, by its room; never below what missed the target, or what would be too busy";
            self.act(
                seen,
                id,
                Step(ActionKind::Shrink, "it has room: cores go to the BE jobs", HoldsIf::Qos { at_least: 1.0 }, bound),
                plan,
            );
        }
        true
    }

    // What is said.

    fn act(&self, seen: &Observation, id: &str, step: Step, plan: &mut Plan) {
        let Step(kind, why, holds_if, bound) = step;
        let Some(s) = seen.get(id) else { return };
        let (limit, pool) = self.limits().get(id).copied().unwrap_or((Limit::None, Limit::None));
        let mut because = Because::seen(s).expect(holds_if);
        let by = "cosmos-per-service";
        self.sizes.say(&mut because, by, id, (limit, pool));
        let mut state = limit.bytes().map_or("memory as the kernel divides it".into(), |b| format!("{:.1} GB", b as f64 / GB));
        if let Some(of) = self.of.get(id) {
            if let Some(k) = of.k {
                because.say(by, "pages that come back over -ln of the resident share", k, "1/s");
            }
            because.say(by, "p99 that it must stay below, share of its target", 1.0 - of.margin, "");
            if self.owns_cores && self.parted {
                because.say(by, "core units below which it missed its target at this load", f64::from(of.floor), "");
                state = format!("{} core units, {state}", of.cores);
            }
        }
        if self.capacity.is_none() {
            because.reject("limits on memory", "the memory of this host is unknown");
        } else if self.cores_alone {
            because.reject("limits on memory", "this kernel has not taken them");
        } else if !self.fits() {
            because.reject("limits on memory", "the LC services' pages do not fit, not even compressed: the kernel divides");
        } else if self.memory.is_none() {
            because.reject("limits on memory", "footprints are not measured yet");
        }
        because.bind(bound);
        plan.actions.push(Action { service: id.into(), kind, why: format!("{why}; {state}"), because });
    }

    /// The same of all services and jobs; `kind` is of the LC services.
    fn act_all(&self, seen: &Observation, step: Step, plan: &mut Plan) {
        let Step(kind, why, holds_if, bound) = step;
        for s in &seen.services {
            let (kind, holds_if) = match (s.is_lc(), kind) {
                (true, kind) => (kind, holds_if),
                (false, ActionKind::Grow) => (ActionKind::Shrink, HoldsIf::NotJudged),
                (false, ActionKind::Shrink) => (ActionKind::Grow, HoldsIf::NotJudged),
                (false, kind) => (kind, HoldsIf::NotJudged),
            };
            // A service that is here already is not placed anew.
            let kind = if kind == ActionKind::Place && s.placed { ActionKind::Grow } else { kind };
            self.act(seen, &s.id, Step(kind, why, holds_if, bound), plan);
        }
    }

    /// Services or jobs came or went: cores are parted anew, and limits stay until sizes are known.
    fn arrive(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        self.sizes.keep(seen);
        self.resident.keep(seen);
        self.of.retain(|id, _| seen.get(id).is_some_and(ServiceView::is_lc));
        for id in &self.groups.lc {
            let of = self.of.entry(id.clone()).or_default();
            *of = Of { margin: self.set.judge.margin, k: of.k, extra: of.extra, since_ms: now_ms, ..Of::default() };
        }
        (self.parted, self.anew, self.sated, self.told) = (false, 0, 0, false);
        (self.withheld, self.cores_alone) = (Withheld::default(), false);
        (self.moved_ms, self.at_rest) = (now_ms, false);
        (self.period_ms, self.next_ms) = (now_ms, now_ms + self.set.step.period_ms);
        self.forget_jobs();
        let bound = "limits once footprints are known, cores of its own once it is known how busy each is";
        self.act_all(seen, Step(ActionKind::Place, "a new mix", HoldsIf::Qos { at_least: 1.0 }, bound), plan);
    }

    fn lay_out(&mut self, seen: &Observation, plan: &mut Plan) {
        let owns_memory = self.capacity.is_some();
        if !self.divides() {
            self.wanted = self.groups.everything(owns_memory);
            self.memory = None;
            if let (false, [first, ..], false, true) = (self.told, &self.groups.lc[..], self.groups.be.is_empty(), self.owns_cores) {
                self.told = true;
                let why = "not every service and the jobs can have the least: everything is shared".to_string();
                plan.reports.push(Report::CannotPlace { service: first.clone(), why });
            }
        } else if self.owns_cores {
            let one: Vec<(Vec<ServiceId>, u32)> = match self.parted {
                true => self.of.iter().map(|(id, of)| (vec![id.clone()], of.cores)).collect(),
                false => vec![(self.groups.lc.clone(), self.most_cores())],
            };
            let holders: Vec<(&[ServiceId], u32)> = one.iter().map(|(members, cores)| (&members[..], *cores)).collect();
            match self.groups.hold(seen, &holders) {
                Ok(all) => self.wanted = all,
                Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
            }
        } else {
            self.wanted = self.groups.everything(owns_memory);
        }
        if owns_memory && self.divides() {
            let limits = self.limits();
            for (id, change) in &mut self.wanted {
                let (mem, zswap) = limits.get(id).copied().unwrap_or((Limit::None, Limit::None));
                (change.mem_limit, change.zswap_max) = (Some(mem), Some(zswap));
            }
        }
        if !self.owns_cores {
            self.wanted.values_mut().for_each(|change| change.cpu = None::<Cpu>);
            self.wanted.retain(|_, change| !change.is_empty());
        }
    }
}

impl Policy for PerService {
    fn name(&self) -> &str {
        "cosmos-per-service"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn owns(&self) -> &[Resource] {
        if self.owns_cores {
            &OWNS
        } else {
            &OWNS[1..]
        }
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let mut moves = self.groups.follow(seen);
        if moves {
            self.arrive(now_ms, seen, &mut plan);
        } else if self.divides() {
            self.gather(now_ms, seen);
            self.cores_alone |= self.withheld.refused;
            // A step later than asked for is a period longer.
            if now_ms + self.pace.interval_ms() / 2 >= self.next_ms {
                self.next_ms = now_ms + self.set.step.period_ms;
                moves = self.look(now_ms, seen, &mut plan);
            }
        }
        if moves {
            self.lay_out(seen, &mut plan);
        }
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}
