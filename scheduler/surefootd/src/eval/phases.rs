//! ORACLE on virtual servers (docs/oracle.md): the phases of a workload, and steady states as answers for the search.

use crate::base::error::{Error, Result};
use crate::eval::run::{alone_instr_per_s, settled_from_ms, TICK_MS};
use crate::stage::virtual_target::{bad, VirtualTarget, GIB};
use crate::stage::workload::Workload;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use surefoot_search::memory::{self, Division, Effort, Holder, Machine};
use surefoot_search::partition::{search, Answer, Bench, Deal, Goal, Outcome, Partition, Problem, Settings, Space, EXACT_LC};
use surefoot_server::allocation::full_mask;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::{Allocation, Amount, CpuSet};
use surefoot_vserver::math::assoc;
use surefoot_vserver::{set_gb, stack_ways, LatencyMs, Profile, Sample, Steady, Tenant, HORIZON_S};

/// Partitions that one thread judges at a time.
const CHUNK: usize = 64;
/// p99 / QoS target, at least, of a service that does not complete all that is offered.
const LOSING: f64 = 1.001;
/// Of the machine's memory, what BE jobs have at least.
const JOBS_LEAST: f64 = 0.05;
/// Divisions of memory that are looked at, for two LC services and more.
const MOST_DIVISIONS: u64 = 60;
const MOST_DIVISIONS_EVAL: u64 = 20;
/// Partitions judged for one of these at most, before the best division is looked at again.
const QUICK: u64 = 500;
/// Partitions judged for eval's column at most, per phase: a few seconds.
const MOST_JUDGED_EVAL: u64 = 300_000;

/// A stretch of a workload in which no service comes or leaves, and the file changes no load. A load with shapes is at its highest.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    pub from_ms: u64,
    pub to_ms: u64,
    /// In order of arrival: that is how they are placed.
    pub lc: Vec<LcNow>,
    pub be: Vec<BeNow>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LcNow {
    pub id: String,
    pub service: String,
    pub rps: f64,
    pub load: f64,
    pub threads: u32,
    /// Working set, where the workload gives another one than the profile.
    pub ws_gb: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct BeNow {
    pub id: String,
    pub job: String,
    pub ws_gb: Option<f64>,
}

/// Phases of a workload in time order; those without services and jobs are left out.
pub fn phases(w: &Workload, logical_cpus: u32) -> Vec<Phase> {
    let mut cuts = vec![0, w.duration_ms];
    for l in &w.lc {
        cuts.extend(l.rps.iter().map(|(t, _)| *t).chain(l.leave_ms));
    }
    cuts.extend(w.be.iter().map(|b| b.arrive_ms));
    cuts.retain(|t| *t <= w.duration_ms);
    cuts.sort_unstable();
    cuts.dedup();
    let mut lc: Vec<_> = w.lc.iter().collect();
    lc.sort_by_key(|l| l.arrive_ms);
    let mut be: Vec<_> = w.be.iter().collect();
    be.sort_by_key(|b| b.arrive_ms);
    let one = |from_ms: u64, to_ms: u64| Phase {
        from_ms,
        to_ms,
        lc: lc
            .iter()
            .filter_map(|l| {
                let load = l.highest_load_at(from_ms)?;
                let threads = l.threads.unwrap_or(logical_cpus);
                Some(LcNow { id: l.id.clone(), service: l.service.clone(), rps: load * l.max_load_rps, load, threads, ws_gb: l.ws_gb })
            })
            .collect(),
        be: be.iter().filter(|b| b.arrive_ms <= from_ms).map(|b| BeNow { id: b.id.clone(), job: b.job.clone(), ws_gb: b.ws_gb }).collect(),
    };
    cuts.windows(2).map(|c| one(c[0], c[1])).filter(|p| !p.lc.is_empty() || !p.be.is_empty()).collect()
}

/// An LC service by itself: which, bits of its memory and pool, cores and ways.
type Alone = (usize, Option<(u64, u64)>, (u32, u32));

/// The services and jobs of one phase on a virtual server.
pub struct Company<'a> {
    at: &'a VirtualTarget,
    lc: Vec<LcTenant>,
    be: Vec<BeTenant>,
    loads: Vec<f64>,
    /// Memory that they have; None: what they touch.
    division: Option<Division>,
    /// Answers of [`Bench::lc_alone`]: divisions of memory differ for one or two services at a time.
    alone: HashMap<Alone, f64>,
    /// Told how many more questions were answered.
    told: &'a (dyn Fn(u64) + Sync),
}

struct LcTenant {
    real: Tenant,
    /// Misses no more than with the most ways, however few it holds.
    best_cached: Tenant,
    qos_target_ms: f64,
}

struct BeTenant {
    real: Tenant,
    /// As busy on its CPUs, without any memory traffic.
    quiet: Tenant,
    alone_instr_per_s: f64,
}

/// What one LC service or the BE jobs hold in a partition, and what comes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Seat {
    pub allocation: Allocation,
    /// None for BE jobs.
    pub latency: Option<LatencyMs>,
    pub qos_target_ms: Option<f64>,
    /// Of a BE job, relative to running alone.
    pub throughput: Option<f64>,
    /// None where everybody has what it touches.
    pub memory: Option<Memory>,
}

/// Memory of one LC service or BE job, GB (GiB).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    pub limit_gb: f64,
    /// Of it, what holds compressed pages.
    pub pool_gb: f64,
}

impl<'a> Company<'a> {
    /// # Errors
    /// [`Error::BadInput`] for services that the platform cannot hold.
    pub fn new(at: &'a VirtualTarget, phase: &Phase, told: &'a (dyn Fn(u64) + Sync)) -> Result<Self> {
        let p = &at.profile;
        let tenant = |profile: Arc<Profile>, rps: f64, threads: u32| Tenant::new(profile, rps, threads, p.all_cpus(), 0);
        let holders = phase.lc.len() as u32 + u32::from(!phase.be.is_empty());
        let most_ways = p.llc.ways.saturating_sub(holders.saturating_sub(1) * p.llc.min_ways);
        let (mut lc, mut be) = (vec![], vec![]);
        for l in &phase.lc {
            let profile = &at.profiles.service_of_size(&l.service, l.ws_gb).map_err(bad)?;
            let Some(demand) = profile.lc() else {
                return Err(Error::BadInput(format!("{}: is no LC service. Write [[be]] with job =", l.service)));
            };
            let mut best = (**profile).clone();
            best.cache.mrc_floor = profile.cache.miss_ratio(f64::from(most_ways) * p.llc.mb_per_way * assoc(most_ways), l.threads);
            best.cache.mrc.clear();
            lc.push(LcTenant {
                real: tenant(profile.clone(), l.rps, l.threads),
                best_cached: tenant(Arc::new(best), l.rps, l.threads),
                qos_target_ms: demand.qos_target_ms,
            });
        }
        for b in &phase.be {
            let profile = &at.profiles.service_of_size(&b.job, b.ws_gb).map_err(bad)?;
            let mut quiet = (**profile).clone();
            quiet.cache.apki = 0.0;
            be.push(BeTenant {
                real: tenant(profile.clone(), 0.0, p.logical_cpus()),
                quiet: tenant(Arc::new(quiet), 0.0, p.logical_cpus()),
                alone_instr_per_s: alone_instr_per_s(at, at.profiles.service(&b.job).map_err(bad)?),
            });
        }
        let all: Vec<Tenant> = lc.iter().map(|t| &t.real).chain(be.iter().map(|t| &t.real)).cloned().collect();
        surefoot_vserver::check_tenants(p, &all).map_err(|e| Error::BadInput(e.to_string()))?;
        Ok(Company { at, lc, be, loads: phase.lc.iter().map(|l| l.load).collect(), division: None, alone: HashMap::new(), told })
    }

    /// Who shares memory; None where everybody has what it touches, nobody pages, or the machine's memory is not known.
    fn machine(&self) -> Option<Machine> {
        let pages = |t: &Tenant| t.profile.paging.is_some();
        if !self.lc.iter().any(|t| pages(&t.real)) && !self.be.iter().any(|t| pages(&t.real)) {
            return None;
        }
        let capacity_gb = self.at.platform.memory?.capacity_bytes as f64 / GIB;
        // Below its compressed pages a service is killed. A job's go to the disk, and some of it is always in use.
        let jobs_least_gb = JOBS_LEAST * capacity_gb / self.be.len().max(1) as f64;
        let holder = |t: &Tenant, is_lc: bool| {
            let (footprint_gb, paging) = (set_gb(t), t.profile.paging.as_ref());
            let least_gb =
                paging.map_or(footprint_gb, |p| if is_lc { footprint_gb / p.compress_ratio } else { jobs_least_gb.min(footprint_gb) });
            Holder { footprint_gb, least_gb, compresses: is_lc && paging.is_some() }
        };
        let lc = self.lc.iter().map(|t| holder(&t.real, true)).collect();
        let jobs = self.be.iter().map(|t| holder(&t.real, false)).collect();
        Some(Machine { capacity_gb, lc, jobs }).filter(|m| !m.fits())
    }

    /// Everybody has the memory of a division from here on.
    fn divide(&mut self, d: &Division) {
        let put = |t: &mut Tenant, limit_gb: f64, pool: f64| {
            let whole = limit_gb >= set_gb(t) - 1e-9;
            t.mem_gb = (!whole).then_some(limit_gb);
            t.cms_gb = t.profile.paging.as_ref().filter(|_| !whole).map_or(0.0, |p| pool * p.largest_pool_gb(limit_gb));
        };
        for (t, s) in self.lc.iter_mut().zip(&d.lc) {
            put(&mut t.real, s.memory_gb, s.pool);
            put(&mut t.best_cached, s.memory_gb, s.pool);
        }
        for (t, gb) in self.be.iter_mut().zip(&d.jobs_gb) {
            put(&mut t.real, *gb, 0.0);
            put(&mut t.quiet, *gb, 0.0);
        }
        self.division = Some(d.clone());
    }

    fn memory_of(&self, i: usize) -> Option<Memory> {
        let d = self.division.as_ref()?;
        let t = if i < self.lc.len() { &self.lc[i].real } else { &self.be[i - self.lc.len()].real };
        let limit_gb = d.lc.get(i).map_or_else(|| d.jobs_gb[i - d.lc.len()], |s| s.memory_gb);
        Some(Memory { limit_gb, pool_gb: t.cms_gb })
    }

    pub fn problem(&self) -> Problem {
        let p = &self.at.platform;
        let mut mba_pct = vec![100];
        if let Some(m) = p.mba {
            mba_pct.extend((m.min_pct..100).rev().filter(|pct| pct.is_multiple_of(m.step_pct)));
        }
        let space = Space { cores: p.core_units(), ways: p.ways(), min_ways: p.min_ways(), mba_pct };
        Problem { space, loads: self.loads.clone(), jobs: self.be.len() }
    }

    /// Places as a node would choose them on an empty server: LC services in order of arrival, then the BE jobs.
    fn places(&self, p: &Partition) -> Vec<Allocation> {
        let one = |i: usize, h: &Amount, mba_pct| Holding { members: vec![i.to_string()], cores: h.cores, ways: h.ways, mba_pct };
        let mut holdings: Vec<Holding> = p.lc.iter().enumerate().map(|(i, h)| one(i, h, 100)).collect();
        if !self.be.is_empty() {
            holdings.push(one(p.lc.len(), &p.rest, p.mba_pct));
        }
        let mut packed = pack(&self.at.platform, &BTreeMap::new(), &holdings, &[]).expect("the search keeps to the platform");
        holdings.iter().filter_map(|h| packed.remove(&h.members[0])).collect()
    }

    /// Every holder of a partition in detail: LC services, then jobs.
    pub fn seats(&self, p: &Partition) -> Vec<Seat> {
        let places = self.places(p);
        let n = self.lc.len();
        let mut judge = Judge::new(self);
        judge.partition(self, p);
        let seat = |(i, s): (usize, &Sample)| Seat {
            allocation: places[i.min(n)].clone(),
            latency: s.latency,
            qos_target_ms: self.lc.get(i).map(|l| l.qos_target_ms),
            memory: self.memory_of(i),
            throughput: i.checked_sub(n).map(|j| s.instr_per_s / self.be[j].alone_instr_per_s),
        };
        judge.samples(n).iter().enumerate().map(seat).collect()
    }

    /// Answers in order, on all threads; what each is depends on its question alone.
    fn ask<Q: Sync, A: Send>(&self, questions: &[Q], answer: impl Fn(&mut Judge, &Q) -> A + Sync) -> Vec<A> {
        let chunks: Vec<Vec<A>> = questions
            .par_chunks(CHUNK)
            .map_init(|| Judge::new(self), |judge, chunk| chunk.iter().map(|q| answer(judge, q)).collect())
            .collect();
        (self.told)(questions.len() as u64);
        chunks.into_iter().flatten().collect()
    }
}

/// Promises of the bench: docs/oracle.md says why they hold.
impl Bench for Company<'_> {
    fn judge(&mut self, partitions: &[Partition]) -> Vec<Answer> {
        let n = self.lc.len();
        self.ask(partitions, |judge, p| {
            judge.partition(self, p);
            let samples = judge.samples(n);
            let throughput: f64 = samples[n..].iter().zip(&self.be).map(|(s, b)| s.instr_per_s / b.alone_instr_per_s).sum();
            Answer {
                p99_ratio: samples.iter().zip(&self.lc).map(|(s, l)| p99_ratio(s, l)).collect(),
                be_throughput: throughput / self.be.len().max(1) as f64,
            }
        })
    }

    fn lc_alone(&mut self, lc: usize, holds: &[Amount]) -> Vec<f64> {
        let memory = self.division.as_ref().map(|d| (d.lc[lc].memory_gb.to_bits(), d.lc[lc].pool.to_bits()));
        let key = |h: &Amount| (lc, memory, (h.cores, h.ways));
        let new: Vec<Amount> = holds.iter().filter(|h| !self.alone.contains_key(&key(h))).copied().collect();
        let it = &self.lc[lc];
        let answers = self.ask(&new, |judge, h| {
            let on_place = |cpus| {
                judge.only([on(&it.real, cpus, full_mask(h.ways), 100)]);
                p99_ratio(&judge.samples(1)[0], it)
            };
            self.every_place(h.cores).map(on_place).fold(f64::INFINITY, f64::min)
        });
        self.alone.extend(new.iter().map(key).zip(answers));
        holds.iter().map(|h| self.alone[&key(h)]).collect()
    }

    fn be_alone(&mut self, rests: &[(Amount, u8)]) -> Vec<f64> {
        // With one L3 domain the jobs share as few cores between their threads as they can; beyond, that depends on the others.
        let places = if self.at.profile.llc.domains == 1 { 1 } else { usize::MAX };
        self.ask(rests, |judge, (h, pct)| {
            let on_place = |cpus| self.one_job_at_a_time(judge, cpus, h.ways, *pct, &[]);
            self.every_place(h.cores).take(places).map(on_place).fold(0.0, f64::max)
        })
    }

    fn lc_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64> {
        self.ask(deals, |judge, d| {
            judge.cores(self, d.lc_cores.iter().copied(), d.rest.cores);
            let lc = self.best_cached(set, judge);
            let n = lc.len();
            let be: Vec<Tenant> = self.be.iter().map(|b| on(&b.quiet, judge.cpus[self.lc.len()], 0, 100)).collect();
            judge.only(lc.into_iter().chain(be));
            let met = self.lc.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, l)| l);
            judge.samples(n).iter().zip(met).map(|(s, l)| p99_ratio(s, l)).fold(0.0, f64::max)
        })
    }

    fn be_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64> {
        self.ask(deals, |judge, d| {
            judge.cores(self, d.lc_cores.iter().copied(), d.rest.cores);
            let lc = self.best_cached(set, judge);
            let cpus = judge.cpus[self.lc.len()];
            self.one_job_at_a_time(judge, cpus, d.rest.ways, 100, &lc)
        })
    }
}

/// A service that loses requests misses its target whatever its p99: the bounds would not hold otherwise. (No shipped one meets
/// its p99 while it loses requests.) Infinite for a service that answers nothing.
fn p99_ratio(s: &Sample, l: &LcTenant) -> f64 {
    let ratio = s.latency.map_or(f64::INFINITY, |x| x.p99 / l.qos_target_ms);
    if s.achieved_rps < l.real.rate_rps || s.lost_frac > 0.0 {
        ratio.max(LOSING)
    } else {
        ratio
    }
}

fn on(t: &Tenant, cpus: CpuSet, way_mask: u32, mba_pct: u8) -> Tenant {
    let mut t = t.clone();
    t.cpus = cpus;
    t.ways.fill(way_mask);
    t.mba = f64::from(mba_pct) / 100.0;
    t
}

impl Company<'_> {
    /// Places for so many CPUs that can make a difference to a service alone: fewest cores with both threads first. More of
    /// them leave more cores idle, so that the others run faster.
    fn every_place(&self, cpus: u32) -> impl Iterator<Item = CpuSet> {
        let (cores, smt) = (self.at.profile.cpu.physical_cores, self.at.profile.cpu.smt);
        let most_pairs = if smt == 1 { 0 } else { cpus / 2 };
        (cpus.saturating_sub(cores)..=most_pairs).map(move |pairs| (0..cpus - pairs).chain(cores..cores + pairs).collect())
    }

    /// The services of `set` on the CPUs of the last deal, each with as much cache as it could have.
    fn best_cached(&self, set: u32, judge: &Judge) -> Vec<Tenant> {
        let here = (0..self.lc.len()).filter(|i| set >> i & 1 == 1);
        // Their masks only must not overlap anything: without curve, ways do not matter.
        here.map(|i| on(&self.lc[i].best_cached, judge.cpus[i], 0, 100)).collect()
    }

    /// Mean throughput of the BE jobs, each with all the ways and all the memory traffic for itself.
    fn one_job_at_a_time(&self, judge: &mut Judge, cpus: CpuSet, ways: u32, mba_pct: u8, others: &[Tenant]) -> f64 {
        let mut sum = 0.0;
        for (j, b) in self.be.iter().enumerate() {
            let quiet = self.be.iter().enumerate().filter(|(i, _)| *i != j).map(|(_, q)| on(&q.quiet, cpus, 0, 100));
            judge.only([on(&b.real, cpus, full_mask(ways), mba_pct)].into_iter().chain(quiet).chain(others.iter().cloned()));
            sum += judge.samples(0)[0].instr_per_s / b.alone_instr_per_s;
        }
        sum / self.be.len() as f64
    }
}

/// What a thread needs to judge.
struct Judge {
    steady: Steady,
    tenants: Vec<Tenant>,
    /// Core counts of the last question, and where they are. Packing costs more than a steady state, and the search keeps the
    /// cores while it goes through the ways.
    counts: Vec<u32>,
    cpus: Vec<CpuSet>,
}

impl Judge {
    fn new(c: &Company) -> Self {
        Judge { steady: Steady::new(c.at.profile.clone()), tenants: vec![], counts: vec![], cpus: vec![] }
    }

    /// CPUs of each holder: [`pack`] chooses them by counts of cores alone.
    fn cores(&mut self, c: &Company, lc: impl Iterator<Item = u32> + Clone, rest: u32) {
        if self.counts.iter().copied().eq(lc.clone().chain([rest])) {
            return;
        }
        let least = c.at.platform.min_ways();
        let lc_holds = lc.clone().map(|cores| Amount::new(cores, least)).collect();
        self.counts = lc.chain([rest]).collect();
        self.cpus = c.places(&Partition { lc: lc_holds, rest: Amount::new(rest, least), mba_pct: 100 }).iter().map(|a| a.cpus).collect();
    }

    fn partition(&mut self, c: &Company, p: &Partition) {
        self.cores(c, p.lc.iter().map(|h| h.cores), p.rest.cores);
        // On an empty server [`pack`] stacks the blocks of ways in order.
        let ways: Vec<u32> = p.lc.iter().chain([&p.rest]).map(|h| h.ways).collect();
        let masks = stack_ways(&c.at.profile, &ways);
        let n = p.lc.len();
        self.tenants.clear();
        self.tenants.extend(c.lc.iter().enumerate().map(|(i, l)| on(&l.real, self.cpus[i], masks[i], 100)));
        self.tenants.extend(c.be.iter().map(|b| on(&b.real, self.cpus[n], masks[n], p.mba_pct)));
    }

    fn only(&mut self, tenants: impl IntoIterator<Item = Tenant>) {
        self.tenants.clear();
        self.tenants.extend(tenants);
    }

    /// Steady state, with latencies for the first few.
    fn samples(&mut self, with_latency: usize) -> &[Sample] {
        self.steady.case_for(&self.tenants, HORIZON_S, with_latency)
    }
}

/// The best partition for one phase, and where working sets do not fit, the best division of memory with it. The company has that afterwards.
///
/// # Errors
/// One line if the phase cannot be partitioned.
pub fn solve(company: &mut Company, goal: Goal, most_judged: u64) -> std::result::Result<Outcome, String> {
    let problem = company.problem();
    let unlimited = search(&problem, company, &Settings { goal, most_judged })?;
    let Some(machine) = company.machine() else { return Ok(unlimited) };
    let mut judged = unlimited.judged;
    let for_emu = goal == Goal::Emu;
    let most_divisions = if for_emu { MOST_DIVISIONS_EVAL } else { MOST_DIVISIONS };
    let found = memory::search(&machine, &unlimited, problem.loads.iter().sum(), for_emu, most_divisions, &mut |d, effort| {
        company.divide(d);
        let most_judged = if effort == Effort::Quick { QUICK.min(most_judged) } else { most_judged };
        let outcome = search(&problem, company, &Settings { goal, most_judged })?;
        judged += outcome.judged;
        Ok(outcome)
    })?;
    company.divide(&found.division);
    Ok(Outcome { judged, ..found.outcome })
}

/// Partitions judged at most unless told otherwise: all of them where that is a matter of seconds.
pub fn most_judged(phase: &Phase, beyond: u64) -> u64 {
    if phase.lc.len() <= EXACT_LC {
        u64::MAX
    } else {
        beyond
    }
}

/// Ticks that eval averages over in each phase, and all of them.
fn settled_ticks(w: &Workload, all: &[Phase]) -> (Vec<u64>, u64) {
    let settled_from = settled_from_ms(w);
    let of = |p: &Phase| {
        // A phase has the ticks that end while it lasts; the end of the workload belongs to the last one.
        let last = if p.to_ms == w.duration_ms { p.to_ms } else { p.to_ms.saturating_sub(1) };
        let first = p.from_ms.max(settled_from + 1);
        (last / TICK_MS + 1).saturating_sub(first.div_ceil(TICK_MS))
    };
    (all.iter().map(of).collect(), w.duration_ms / TICK_MS - settled_from / TICK_MS)
}

/// EMU of each phase averaged as eval's `emu` is: over the ticks of the settled part. None if that is empty.
pub fn settled_emu_of(w: &Workload, all: &[Phase], emu: &[f64]) -> Option<f64> {
    let (ticks, total) = settled_ticks(w, all);
    let sum: f64 = ticks.iter().zip(emu).map(|(n, e)| *n as f64 * e).sum();
    (total > 0).then(|| sum / total as f64)
}

/// The best EMU that exclusive partitions allow in the settled part of a run. None where it is not known: no partition
/// exists, none was proven best within a few seconds, or loads have shapes: no one partition is best for them.
///
/// # Errors
/// [`Error::BadInput`] for services that the platform cannot hold.
pub fn settled_emu(at: &VirtualTarget, w: &Workload) -> Result<Option<f64>> {
    if w.has_shapes() {
        tracing::info!("workload {}: oracle_emu is left out, since loads have shapes: no one partition is best for them", w.name);
        return Ok(None);
    }
    let all = phases(w, at.platform.logical_cpus());
    let (ticks, _) = settled_ticks(w, &all);
    let mut emu = vec![0.0; all.len()];
    for (i, phase) in all.iter().enumerate().filter(|(i, _)| ticks[*i] > 0) {
        let mut company = Company::new(at, phase, &|_| ())?;
        emu[i] = match solve(&mut company, Goal::Emu, MOST_JUDGED_EVAL) {
            Ok(found) if found.exact => found.emu,
            Ok(found) => {
                let (emu, most) = (found.emu, found.emu_bound);
                tracing::info!(
                    "workload {}: oracle_emu is left out, it is {emu:.3} to {most:.3}. surefootd oracle searches longer",
                    w.name
                );
                return Ok(None);
            }
            Err(e) => {
                tracing::info!("workload {}: oracle_emu is left out: {e}", w.name);
                return Ok(None);
            }
        };
    }
    Ok(settled_emu_of(w, &all, &emu))
}
