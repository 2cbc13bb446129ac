//! LC services and BE jobs as two groups that divide cores and memory: the frame that `cosmos`, `cosmos-ca` and `cosmos-cma` share.
//!
//! The paper has one of each. Here several LC services are one group that uses its cores together, as under `heracles`, and so are the jobs. A
//! group's memory is split among its members in proportion to their footprints. Ways and bandwidth are not touched.

use std::collections::BTreeMap;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::window::{mixture_quantile, MIN_COUNT_P99};
use surefoot_server::{Allocation, Change, Cpu, Latency, Limit, Observation, Platform, ServiceId, ServiceView};

/// Relative standard error of the p99 of one request, times the square root of their number: sqrt(0.99 x 0.01) / 0.01 means of an exponential tail,
/// whose p99 is ln(100) of them.
const P99_ERROR: f64 = 2.16;
/// Standard errors by which a reading must be above the target before it counts in full.
const CLEAR_SIGMAS: f64 = 2.0;
/// Standard errors below which nineteen readings of twenty lie.
const ONE_IN_TWENTY: f64 = 1.645;
const MIB: f64 = (1u64 << 20) as f64;

/// The two groups on one platform.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// Without ways: cores alone are laid out.
    pub platform: Platform,
    pub lc: Vec<ServiceId>,
    pub be: Vec<ServiceId>,
}

impl Groups {
    pub fn new(platform: &Platform) -> Self {
        Groups { platform: Platform { llc: None, ..platform.clone() }, lc: vec![], be: vec![] }
    }

    /// True where services or jobs came or went.
    pub fn follow(&mut self, seen: &Observation) -> bool {
        let lc: Vec<ServiceId> = seen.lc().map(|s| s.id.clone()).collect();
        let be: Vec<ServiceId> = seen.be().map(|s| s.id.clone()).collect();
        let news = lc != self.lc || be != self.be;
        (self.lc, self.be) = (lc, be);
        news
    }

    /// The least cores of a group of so many: a quota is split among its members.
    fn least(&self, members: usize) -> u32 {
        if self.platform.by_quota() {
            members.max(1) as u32
        } else {
            1
        }
    }

    pub fn least_lc(&self) -> u32 {
        self.least(self.lc.len())
    }

    /// The most cores of the LC services, when the jobs keep `of_be`.
    pub fn most_lc(&self, of_be: u32) -> u32 {
        self.platform.core_units().saturating_sub(of_be.max(self.least(self.be.len())))
    }

    /// Whether there is something to divide, and enough of it.
    pub fn divides(&self) -> bool {
        let least = self.least_lc() + self.least(self.be.len());
        !self.lc.is_empty() && !self.be.is_empty() && least <= self.platform.core_units()
    }

    /// Everything to every service: limits are lifted where memory is the policy's own.
    pub fn everything(&self, owns_memory: bool) -> BTreeMap<ServiceId, Change> {
        let cpu = Cpu::from(&Allocation::everything(&self.platform));
        let none = owns_memory.then_some(Limit::None);
        let change = Change { cpu: Some(cpu), mem_limit: none, zswap_max: none, ..Change::default() };
        self.lc.iter().chain(&self.be).map(|id| (id.clone(), change.clone())).collect()
    }

    /// So many cores to the LC services, the rest to the jobs.
    ///
    /// # Errors
    /// One line from [`pack`].
    pub fn cores(&self, seen: &Observation, of_lc: u32) -> Result<BTreeMap<ServiceId, Change>, String> {
        self.hold(seen, &[(&self.lc, of_lc)])
    }

    /// Cores of its own to each of `holders`, the rest to the jobs.
    ///
    /// # Errors
    /// One line from [`pack`].
    pub fn hold(&self, seen: &Observation, holders: &[(&[ServiceId], u32)]) -> Result<BTreeMap<ServiceId, Change>, String> {
        let holding = |members: &[ServiceId], cores: u32| Holding { members: members.to_vec(), cores, ways: 0, mba_pct: 100 };
        let of_lc: u32 = holders.iter().map(|(_, cores)| cores).sum();
        let of_be = (&self.be[..], self.platform.core_units().saturating_sub(of_lc));
        let holdings: Vec<Holding> = holders.iter().chain([&of_be]).map(|(members, cores)| holding(members, *cores)).collect();
        let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        let all = pack(&self.platform, &in_force, &holdings, &[])?;
        Ok(all.into_iter().map(|(id, a)| (id, Change { cpu: Some((&a).into()), ..Change::default() })).collect())
    }
}

/// Limits of memory in `wanted`: `of_lc` bytes for the LC services, of which `of_pool` may be compressed, the rest for the jobs without a pool. Each
/// group's are split by footprint; a group with a service whose footprint is unknown has no limits.
pub(super) fn divide(
    groups: &Groups,
    seen: &Observation,
    [of_lc, of_pool]: [f64; 2],
    capacity: f64,
    wanted: &mut BTreeMap<ServiceId, Change>,
) {
    for (ids, memory, compressed) in [(&groups.lc, of_lc, of_pool), (&groups.be, capacity - of_lc, 0.0)] {
        let sizes: Option<Vec<f64>> = ids.iter().map(|id| Some(seen.get(id)?.memory.footprint_bytes()? as f64)).collect();
        for (k, id) in ids.iter().enumerate() {
            let Some(change) = wanted.get_mut(id) else { continue };
            (change.mem_limit, change.zswap_max) = match &sizes {
                Some(sizes) => {
                    let share = shares(sizes)[k];
                    (Some(limit(memory * share)), Some(pool(compressed * share)))
                }
                // Of one that was not read yet nobody knows what it needs.
                None => (Some(Limit::None), Some(Limit::None)),
            };
        }
    }
}

/// Memory of the services of one group: limit and pool of each.
pub(super) type Limits = BTreeMap<ServiceId, (Limit, Limit)>;

/// A limit of so many bytes, whole MiB.
pub(crate) fn limit(bytes: f64) -> Limit {
    Limit::Bytes(((bytes / MIB).floor().max(1.0) * MIB) as u64)
}

/// A pool of so many bytes, whole MiB, none of less.
pub(crate) fn pool(bytes: f64) -> Limit {
    Limit::Bytes(((bytes / MIB).floor().max(0.0) * MIB) as u64)
}

/// Share of each in a sum; equal shares where the sum is none.
pub(super) fn shares(of: &[f64]) -> Vec<f64> {
    let sum: f64 = of.iter().sum();
    of.iter().map(|x| if sum > 0.0 { x / sum } else { 1.0 / of.len() as f64 }).collect()
}

/// What ticks showed, put together.
#[derive(Clone, Debug, Default)]
pub(super) struct Gathered {
    recent: BTreeMap<ServiceId, Vec<Latency>>,
    /// Cores that LC services were seen to use, and how often each was.
    busy: BTreeMap<ServiceId, (f64, f64)>,
    work: f64,
    ticks: f64,
}

impl Gathered {
    pub fn add(&mut self, seen: &Observation) {
        seen.lc().for_each(|s| self.add_requests(s));
        self.add_work(seen);
    }

    /// Of one LC service alone.
    pub fn add_requests(&mut self, s: &ServiceView) {
        self.recent.entry(s.id.clone()).or_default().extend(s.interval);
        let busy = self.busy.entry(s.id.clone()).or_default();
        if let Some(cores) = s.features.cpu_usage_cores {
            *busy = (busy.0 + cores, busy.1 + 1.0);
        }
    }

    /// Of the jobs alone.
    pub fn add_work(&mut self, seen: &Observation) {
        self.ticks += 1.0;
        // A host without counters has the kernel's account of CPU time.
        self.work += seen.be().map(|s| s.instr_per_s.or(s.features.cpu_usage_cores).unwrap_or(0.0)).sum::<f64>();
    }

    /// Throughput of the jobs: instructions per second.
    pub fn throughput(&self) -> f64 {
        self.work / self.ticks.max(1.0)
    }

    /// Cores that are busy for all LC services; None where the use of one was never seen.
    pub fn busy_cores(&self) -> Option<f64> {
        self.busy.values().map(|(cores, times)| (*times > 0.0).then(|| cores / times)).sum()
    }

    pub fn requests(&self) -> f64 {
        self.recent.values().flatten().map(|l| l.count as f64).sum()
    }

    /// Target / p99 of a service; over the window by which QoS is judged where requests are few. None: unknown.
    pub fn qos_of(&self, s: &ServiceView) -> Option<f64> {
        self.reading(s).map(|r| r.qos)
    }

    fn reading(&self, s: &ServiceView) -> Option<Reading> {
        let window = s.window.filter(|_| !s.latency_unknown())?;
        let gathered = self.recent.get(&s.id).map_or(&[][..], |r| r);
        let count = gathered.iter().map(|l| l.count).sum::<u64>();
        let own = mixture_quantile(gathered, 0.01).filter(|_| count >= MIN_COUNT_P99);
        let (p99_ms, count) = own.map_or((window.p99_ms, window.count), |p99_ms| (p99_ms, count));
        let error = |count: u64| P99_ERROR / (count.max(1) as f64).sqrt();
        Some(Reading { qos: s.qos_target_ms()? / p99_ms.max(1e-9), error: error(count), of_window: error(window.count) })
    }

    /// Of each LC service; None while that of one is unknown. One that is idle has nothing to be late with.
    fn readings(&self, seen: &Observation) -> Option<Vec<Reading>> {
        seen.lc().filter(|s| s.window.is_some() || s.latency_unknown()).map(|s| self.reading(s)).collect()
    }

    /// The least QoS of all LC services; None while that of one is unknown.
    pub fn qos(&self, seen: &Observation) -> Option<f64> {
        Some(self.readings(seen)?.iter().map(|r| r.qos).fold(f64::INFINITY, f64::min))
    }

    /// What the worst miss of a service counts as: 1, or by how much of [`CLEAR_SIGMAS`] standard errors its p99 is above the target, if that is less. A p99
    /// of a thousand requests is off by 7 %, and half of such readings are above a target that is met by nothing.
    pub fn miss(&self, seen: &Observation) -> f64 {
        let part = |r: &Reading| ((1.0 / r.qos.max(1e-9) - 1.0) / (CLEAR_SIGMAS * r.error)).clamp(0.0, 1.0);
        self.readings(seen).unwrap_or_default().iter().map(part).fold(0.0, f64::max)
    }

    /// Whether p99 of every LC service is below its target by a share of `margin`, or by as much as one window of twenty errs, up to `few`; and whether
    /// more requests could say otherwise. None while that of one is unknown.
    pub fn verdict(&self, seen: &Observation, margin: f64, few: f64) -> Option<Judgement> {
        let beyond = |r: &Reading| 1.0 / r.qos.max(1e-9) - (1.0 - margin.max((ONE_IN_TWENTY * r.of_window).min(few)));
        let all: Vec<(bool, bool)> =
            self.readings(seen)?.iter().map(|r| (beyond(r) <= 0.0, beyond(r).abs() >= ONE_IN_TWENTY * r.error)).collect();
        let (met, missed) = (all.iter().all(|(met, _)| *met), all.iter().any(|(met, clear)| !met && *clear));
        Some(Judgement { met, clear: missed || all.iter().all(|(_, clear)| *clear) })
    }
}

/// p99 of a service, and how sure it is.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Target / p99.
    qos: f64,
    /// Relative standard error of this p99, and of that of the window by which QoS is judged.
    error: f64,
    of_window: f64,
}

/// What requests say of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judgement {
    pub met: bool,
    /// More requests would hardly change it.
    pub clear: bool,
}
