//! The virtual server behind the port: [`surefoot_server::Server`] on top of [`Plant`].
//!
//! Services and jobs come, change their load and leave at given times (the start of the first tick at or after them).
//! A newcomer that no plan has named yet runs on everything, together with its holders.

use crate::memory::{MemoryUse, Paged};
use crate::plant::{Change, Plant};
use crate::profile::{PlatformProfile, Profile};
use crate::steady::{LatencyMs, Sample, Steady, HORIZON_S};
use crate::tenant::{check_tenants, Tenant, WayMasks, MAX_RATE_RPS};
use crate::MAX_DOMAINS;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use surefoot_server::features::{core_freq_mhz, Frequency};
use surefoot_server::window::{merge_told, overloaded, span_ms, verdict, Tells, LONGEST_WINDOW_MS, SILENT_MS};
use surefoot_server::{
    Allocation, Applied, Features, FeedState, Kind, Latency, Llc, Mba, Memory, MemoryView, Observation, Plan, Platform, Server,
    ServerError, ServiceView, Tick, Verdict,
};

const BYTES_PER_GB: f64 = (1u64 << 30) as f64;
const BYTES_PER_MB: f64 = (1u64 << 20) as f64;

/// The platform of a profile in the words of the port: every CPU managed, whole cores.
pub fn platform_of(p: &PlatformProfile) -> Platform {
    let cpus = 0..p.logical_cpus();
    Platform {
        name: p.name.clone(),
        physical_cores: p.cpu.physical_cores,
        smt: p.cpu.smt,
        l3_domain_of_cpu: cpus.clone().map(|c| p.domain_of(c)).collect(),
        numa_of_cpu: vec![],
        core_of_cpu: cpus.map(|c| c % p.cpu.physical_cores).collect(),
        managed: p.all_cpus(),
        core_step: 1.0,
        llc: Some(Llc { ways: p.llc.ways, mb_per_way: p.llc.mb_per_way, min_ways: p.llc.min_ways }),
        mba: p.mem.mba.then_some(Mba { min_pct: p.mem.mba_min_pct as u8, step_pct: p.mem.mba_step_pct as u8 }),
        mem_bw_mbps: Some(p.mem.bw_gbs * 1e3),
        max_freq_mhz: p.cpu.turbo_ghz.first().map(|f| f * 1e3),
        memory: Some(Memory { capacity_bytes: bytes((p.mem.capacity_gb - p.mem.reserved_gb) * 1024.0) }).filter(|m| m.capacity_bytes > 0),
    }
}

/// Bytes of MB (2^20 bytes).
fn bytes(mb: f64) -> u64 {
    (mb * BYTES_PER_MB).round() as u64
}

/// A load that changes by itself.
pub trait LoadCourse: std::fmt::Debug + Send + Sync {
    /// Requests/s offered at `t_ms` from the start; None: what was offered before goes on.
    fn rate_at(&self, t_ms: u64) -> Option<f64>;
}

/// Something that happens to the virtual server from outside.
#[derive(Clone, Debug)]
enum Event {
    Add { id: String, profile: Arc<Profile>, rate_rps: f64, threads: u32 },
    Remove { id: String },
    Load { id: String, rate_rps: f64 },
    Feed { id: String, speaks: bool },
    Client { id: String, keeps_up: bool },
}

/// One interval of one service.
#[derive(Clone, Debug)]
struct Interval {
    end_ms: u64,
    length_ms: u64,
    /// None without completions.
    latency: Option<Latency>,
    /// Response times of requests simulated one by one, sorted; None where laws tell of them.
    requests_ms: Option<Vec<f64>>,
}

#[derive(Clone, Debug)]
struct Entry {
    id: String,
    profile: Arc<Profile>,
    threads: u32,
    allocation: Allocation,
    placed: bool,
    sample: Option<Sample>,
    intervals: VecDeque<Interval>,
    /// Whether its latency feed says anything, and since when it has said nothing.
    speaks: bool,
    silent_since_ms: Option<u64>,
    /// Whether the load generator keeps its schedule.
    client_keeps_up: bool,
}

/// One virtual server in closed loop.
#[derive(Clone, Debug)]
pub struct VirtualServer {
    plant: Plant,
    platform: Platform,
    entries: Vec<Entry>,
    /// In time order.
    events: VecDeque<(u64, Event)>,
    /// Loads that change by themselves, by service.
    courses: Vec<(String, Arc<dyn LoadCourse>)>,
    now_ms: u64,
    /// When the last step began: what was seen then is not told again.
    looked_ms: u64,
    tells: Tells,
}

/// The plant goes on in steps of this length at most.
const LONGEST_PART_MS: u64 = 100;

impl VirtualServer {
    /// `seed` None: mean-field and without noise, for comparisons with the golden vectors; a closed loop wants a seed.
    pub fn new(platform: Arc<PlatformProfile>, seed: Option<u64>) -> Self {
        VirtualServer {
            platform: platform_of(&platform),
            plant: Plant::new(platform, seed, 0.1),
            entries: vec![],
            events: VecDeque::new(),
            courses: vec![],
            now_ms: 0,
            looked_ms: 0,
            tells: Tells::All,
        }
    }

    /// Every request by itself, see [`Plant::exact`].
    ///
    /// # Panics
    /// Without a seed.
    pub fn exact(self) -> Self {
        VirtualServer { plant: self.plant.exact(), ..self }
    }

    /// What windows tell; for a reader of p99 alone, observations then take half the time.
    pub fn telling(self, tells: Tells) -> Self {
        VirtualServer { tells, ..self }
    }

    pub fn profile(&self) -> &Arc<PlatformProfile> {
        self.plant.platform()
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Load offered to an LC service now, requests/s.
    pub fn offered_rps(&self, id: &str) -> Option<f64> {
        let i = self.plant.position(id)?;
        let t = &self.plant.tenants()[i];
        t.profile.lc().map(|_| t.rate_rps)
    }

    /// QoS (target / p99) at which every LC service would settle if allocations and loads stayed as they are: the steady case,
    /// without noise. What a scheduler cannot see, and a judge of schedulers wants to.
    pub fn settled_qos(&self, steady: &mut Steady) -> BTreeMap<String, f64> {
        let tenants = self.plant.destined();
        let samples = steady.case(&tenants, HORIZON_S);
        let qos = |(e, s): (&Entry, &Sample)| Some((e.id.clone(), e.profile.lc()?.qos_target_ms / s.latency?.p99.max(1e-9)));
        self.entries.iter().zip(samples).filter_map(qos).collect()
    }

    /// An LC service (at `rate_rps`) or a BE job (`rate_rps` is ignored) arrives at `at_ms`, with cold caches.
    ///
    /// # Errors
    /// A service that cannot run here, or an `id` that is present or expected.
    pub fn add(&mut self, at_ms: u64, id: &str, profile: Arc<Profile>, rate_rps: f64, threads: u32) -> Result<(), ServerError> {
        if self.known_at(at_ms, id) {
            return Err(ServerError::Invalid(format!("{id}: there is a service of this name already. Choose another, e.g. {id}-2")));
        }
        self.check(id, &self.newcomer(&profile, rate_rps, threads))?;
        self.schedule(at_ms, Event::Add { id: id.into(), profile, rate_rps, threads });
        Ok(())
    }

    /// The service or job leaves at `at_ms`.
    ///
    /// # Errors
    /// If there is none of this name by then.
    pub fn remove(&mut self, at_ms: u64, id: &str) -> Result<(), ServerError> {
        self.must_know(at_ms, id)?;
        self.schedule(at_ms, Event::Remove { id: id.into() });
        Ok(())
    }

    /// The load of an LC service changes at `at_ms`.
    ///
    /// # Errors
    /// If there is no such service by then, or the rate is no rate.
    pub fn set_load(&mut self, at_ms: u64, id: &str, rate_rps: f64) -> Result<(), ServerError> {
        self.must_know(at_ms, id)?;
        if !(0.0..=MAX_RATE_RPS).contains(&rate_rps) {
            return Err(ServerError::Invalid(format!("{id}: a load of {rate_rps} RPS. Give 0 to {MAX_RATE_RPS:e}")));
        }
        self.schedule(at_ms, Event::Load { id: id.into(), rate_rps });
        Ok(())
    }

    /// The load of an LC service follows a course, asked at the start of every part of a step, while the service is there.
    pub fn follow(&mut self, id: &str, course: Arc<dyn LoadCourse>) {
        self.courses.retain(|(other, _)| other != id);
        self.courses.push((id.into(), course));
        self.happen();
    }

    /// The latency feed of a service falls silent at `at_ms`, or speaks again.
    ///
    /// # Errors
    /// If there is no such service by then.
    pub fn set_feed(&mut self, at_ms: u64, id: &str, speaks: bool) -> Result<(), ServerError> {
        self.must_know(at_ms, id)?;
        self.schedule(at_ms, Event::Feed { id: id.into(), speaks });
        Ok(())
    }

    /// From `at_ms` on the load generator of a service says that it does not keep its schedule, or that it does again.
    ///
    /// # Errors
    /// If there is no such service by then.
    pub fn set_client(&mut self, at_ms: u64, id: &str, keeps_up: bool) -> Result<(), ServerError> {
        self.must_know(at_ms, id)?;
        self.schedule(at_ms, Event::Client { id: id.into(), keeps_up });
        Ok(())
    }

    /// What the model computes, and what no scheduler sees of it.
    pub fn plant(&self) -> &Plant {
        &self.plant
    }

    fn newcomer(&self, profile: &Arc<Profile>, rate_rps: f64, threads: u32) -> Tenant {
        let full = surefoot_server::allocation::full_mask(self.platform.ways());
        Tenant::new(profile.clone(), rate_rps, threads, self.platform.managed, full)
    }

    fn check(&self, id: &str, t: &Tenant) -> Result<(), ServerError> {
        check_tenants(self.plant.platform(), std::slice::from_ref(t))
            .map_err(|e| ServerError::Invalid(format!("{id}: {}: {}. {}", e.field, e.what, e.remedy.trim_end_matches('.'))))
    }

    /// Present at `at_ms`, as far as events known now tell.
    fn known_at(&self, at_ms: u64, id: &str) -> bool {
        let now = self.entries.iter().any(|e| e.id == id);
        self.events.iter().filter(|(t, _)| *t <= at_ms).fold(now, |known, (_, e)| match e {
            Event::Add { id: other, .. } if other == id => true,
            Event::Remove { id: other } if other == id => false,
            _ => known,
        })
    }

    fn must_know(&self, at_ms: u64, id: &str) -> Result<(), ServerError> {
        if self.known_at(at_ms, id) {
            return Ok(());
        }
        let known: Vec<&str> = self.entries.iter().map(|e| e.id.as_str()).collect();
        Err(ServerError::Invalid(format!("{id}: no service of this name at {at_ms} ms. Running: {}", known.join(", "))))
    }

    fn schedule(&mut self, at_ms: u64, event: Event) {
        let after = self.events.partition_point(|(t, _)| *t <= at_ms);
        self.events.insert(after, (at_ms, event));
        self.happen();
    }

    /// Everything that is due.
    fn happen(&mut self) {
        while self.events.front().is_some_and(|(t, _)| *t <= self.now_ms) {
            let Some((_, event)) = self.events.pop_front() else { return };
            match event {
                Event::Add { id, profile, rate_rps, threads } => {
                    let tenant = self.newcomer(&profile, rate_rps, threads);
                    // Checked when it was announced; only a full server can still refuse it.
                    if self.entries.iter().any(|e| e.id == id) || self.plant.add(&id, tenant, false).is_err() {
                        continue;
                    }
                    self.entries.push(Entry {
                        id,
                        profile,
                        threads,
                        allocation: Allocation::everything(&self.platform),
                        placed: false,
                        sample: None,
                        intervals: VecDeque::new(),
                        speaks: true,
                        silent_since_ms: None,
                        client_keeps_up: true,
                    });
                }
                Event::Remove { id } => {
                    self.plant.remove(&id);
                    self.entries.retain(|e| e.id != id);
                }
                Event::Feed { id, speaks } => {
                    if let Some(e) = self.entries.iter_mut().find(|e| e.id == id) {
                        // It is heard again with the first tick that it tells of.
                        e.speaks = speaks;
                        if !speaks {
                            e.silent_since_ms.get_or_insert(self.now_ms);
                        }
                    }
                }
                Event::Client { id, keeps_up } => {
                    if let Some(e) = self.entries.iter_mut().find(|e| e.id == id) {
                        e.client_keeps_up = keeps_up;
                    }
                }
                Event::Load { id, rate_rps } => {
                    if self.plant.position(&id).is_some() {
                        // The rate was checked when the change was announced.
                        let _ = self.plant.change(&id, Change::RateRps(rate_rps));
                    }
                }
            }
        }
        for (id, course) in &self.courses {
            let Some(i) = self.plant.position(id) else { continue };
            let now = self.plant.tenants()[i].rate_rps;
            if let Some(rate) = course.rate_at(self.now_ms).filter(|rate| rate.to_bits() != now.to_bits()) {
                // A rate that is none leaves the one before.
                let _ = self.plant.change(id, Change::RateRps(rate));
            }
        }
    }

    /// Changes that turn what a service holds into `to`.
    fn changes(&self, from: &Allocation, to: &Allocation) -> Vec<Change> {
        let gb = |b: Option<u64>| b.map(|b| b as f64 / BYTES_PER_GB);
        let mut out = Vec::new();
        if from.cpus != to.cpus {
            out.push(Change::Cpus(to.cpus));
        }
        if from.ways != to.ways {
            let mut ways: WayMasks = [0; MAX_DOMAINS];
            for (w, x) in ways.iter_mut().zip(&to.ways) {
                *w = *x;
            }
            out.push(Change::Ways(ways));
        }
        if from.mba_pct != to.mba_pct {
            out.push(Change::Mba(f64::from(to.mba_pct) / 100.0));
        }
        if from.mem_limit_bytes != to.mem_limit_bytes {
            out.push(Change::MemGb(gb(to.mem_limit_bytes)));
        }
        if from.zswap_max_bytes != to.zswap_max_bytes {
            out.push(Change::CmsGb(gb(to.zswap_max_bytes).unwrap_or(0.0)));
        }
        out
    }

    /// Keep what the last tick showed; `before_ms` of the step that it is the end of passed before it.
    fn record(&mut self, before_ms: u64, tick_ms: u64) {
        let samples = self.plant.samples();
        for (i, e) in self.entries.iter_mut().enumerate() {
            let s = samples[i];
            e.sample = Some(match e.sample {
                Some(earlier) if before_ms > 0 => since_looked(&earlier, before_ms, s, tick_ms),
                _ => s,
            });
            if e.profile.is_be() {
                continue;
            }
            if e.speaks {
                e.silent_since_ms = None;
            } else {
                // What was not told is not made up later.
                e.forget_until(self.now_ms);
                continue;
            }
            let requests = self.plant.requests_ms(i);
            let latency = s.latency.filter(|_| s.count >= 0.5).map(|l| {
                // Completions are counted where requests are simulated, and computed elsewhere.
                let achieved = if requests.is_some() { s.count * 1e3 / tick_ms as f64 } else { s.achieved_rps };
                let errors = (s.lost_frac * s.offered_rps * tick_ms as f64 * 1e-3).round() as u64;
                let said = if !e.client_keeps_up {
                    Verdict::ClientLimited
                } else if overloaded(s.achieved_rps, s.offered_rps, s.lost_frac) {
                    Verdict::ServerOverloaded
                } else {
                    Verdict::Valid
                };
                latency(l, s.count.round() as u64, achieved, errors, [said].into_iter())
            });
            let requests_ms = requests.map(<[f64]>::to_vec);
            e.intervals.push_back(Interval { end_ms: self.now_ms, length_ms: tick_ms, latency, requests_ms });
            e.forget_until(self.now_ms);
        }
    }
}

/// `said`: the verdicts of what it is of.
fn latency(l: LatencyMs, count: u64, achieved_rps: f64, errors: u64, said: impl Iterator<Item = Verdict> + Clone) -> Latency {
    Latency {
        count,
        mean_ms: l.mean,
        p50_ms: l.p50,
        p95_ms: l.p95,
        p99_ms: l.p99,
        p99_low_ms: None,
        p99_high_ms: None,
        achieved_rps,
        errors,
        verdict: verdict(said, count),
    }
}

impl Entry {
    /// Intervals beyond the longest window.
    fn forget_until(&mut self, now_ms: u64) {
        while self.intervals.front().is_some_and(|x| x.end_ms + LONGEST_WINDOW_MS <= now_ms) {
            self.intervals.pop_front();
        }
    }

    /// The last second, longer at low rates ([`span_ms`]).
    fn window(&self, now_ms: u64, tells: Tells) -> Option<Latency> {
        let since = |ms: u64| self.intervals.partition_point(|x| x.end_ms + ms <= now_ms);
        let span = span_ms(|ms| self.intervals.range(since(ms)..).filter_map(|x| x.latency).map(|l| l.count).sum());
        self.taken_together(since(span), tells)
    }

    /// Of everything since `looked_ms`, not of what was told before; None without completions.
    fn interval(&self, looked_ms: u64, now_ms: u64, tells: Tells) -> Option<Latency> {
        let from = self.intervals.partition_point(|x| x.end_ms <= looked_ms);
        if now_ms - looked_ms <= LONGEST_PART_MS {
            return self.intervals.range(from..).next_back()?.latency;
        }
        self.taken_together(from, tells)
    }

    /// Latency of the intervals from this one on; None without completions.
    fn taken_together(&self, from: usize, tells: Tells) -> Option<Latency> {
        let recent = self.intervals.range(from..);
        let list: Vec<Latency> = recent.clone().filter_map(|x| x.latency).collect();
        // Those without completions count as time too.
        let passed_ms = recent.clone().map(|x| x.length_ms).sum::<u64>() as f64;
        match recent.map(|x| x.requests_ms.as_deref()).collect::<Option<Vec<_>>>() {
            Some(requests_ms) => {
                // Every request is at hand: exact percentiles.
                let l = crate::steady::nearest_rank_of(&requests_ms)?;
                let n: usize = requests_ms.iter().map(|ms| ms.len()).sum();
                let errors = list.iter().map(|l| l.errors).sum();
                Some(latency(l, n as u64, n as f64 * 1e3 / passed_ms, errors, list.iter().map(|l| l.verdict)))
            }
            // `merge` spreads the count over its intervals.
            None => merge_told(&list, passed_ms / list.len().max(1) as f64, tells),
        }
    }

    fn view(&self, looked_ms: u64, now_ms: u64, tells: Tells) -> ServiceView {
        let kind = match self.profile.lc() {
            Some(lc) => Kind::Lc { qos_target_ms: lc.qos_target_ms },
            None => Kind::Be,
        };
        let unknown = self.silent_since_ms.filter(|since| now_ms > since + SILENT_MS);
        let window = if unknown.is_some() { None } else { self.window(now_ms, tells) };
        ServiceView {
            id: self.id.clone(),
            service: self.profile.name.clone(),
            kind,
            threads: self.threads,
            allocation: self.allocation.clone(),
            placed: self.placed,
            features: self.sample.as_ref().map(features).unwrap_or_default(),
            feed: match (kind, unknown) {
                (Kind::Be, _) => FeedState::NotNeeded,
                (_, Some(since_ms)) => FeedState::Unknown { since_ms, heard: true },
                (_, None) => FeedState::heard(window.as_ref()),
            },
            interval: self.interval(looked_ms, now_ms, tells),
            window,
            instr_per_s: self.sample.map(|s| s.instr_per_s),
            memory: self.sample.map(|s| memory_view(&s.memory)).unwrap_or_default(),
        }
    }
}

/// Rates are of the whole step since the last look, as counters are; what is no rate is of its end.
fn since_looked(earlier: &Sample, before_ms: u64, last: Sample, last_ms: u64) -> Sample {
    let last_share = last_ms as f64 / (before_ms + last_ms) as f64;
    let mean = |of: fn(&Sample) -> f64| of(earlier) * (1.0 - last_share) + of(&last) * last_share;
    Sample {
        ipc: mean(|s| s.ipc),
        llc_misses_per_s: mean(|s| s.llc_misses_per_s),
        mbl_mbps: mean(|s| s.mbl_mbps),
        cpu_usage_cores: mean(|s| s.cpu_usage_cores),
        nb_mbl_mbps: mean(|s| s.nb_mbl_mbps),
        instr_per_s: mean(|s| s.instr_per_s),
        memory: MemoryUse { paged: paged_since(earlier.memory.paged, last.memory.paged, last_share), ..last.memory },
        ..last
    }
}

/// What went to and fro in a step of which the second reading is so large a share.
fn paged_since(earlier: Option<Paged>, last: Option<Paged>, last_share: f64) -> Option<Paged> {
    let (earlier, last) = (earlier?, last?);
    let mean = |of: fn(&Paged) -> f64| of(&earlier) * (1.0 - last_share) + of(&last) * last_share;
    Some(Paged {
        pool_ins_per_s: mean(|m| m.pool_ins_per_s),
        disk_ins_per_s: mean(|m| m.disk_ins_per_s),
        stall_frac: mean(|m| m.stall_frac),
        ..last
    })
}

/// The memory of a sample in the words of the port. Every page that comes back had been taken while it was in use: a refault.
pub fn memory_view(m: &MemoryUse) -> MemoryView {
    MemoryView {
        in_use_bytes: Some(bytes(m.in_use_mb)),
        pool_bytes: m.paged.map(|x| bytes(x.pool_mb)),
        stored_bytes: m.paged.map(|x| bytes(x.stored_mb)),
        swapped_bytes: m.paged.map(|x| bytes(x.swapped_mb)),
        // Of a profile that pages, every page is touched now and then.
        working_set_bytes: m.working_set_mb.map(bytes),
        pool_swap_ins_per_s: m.paged.map(|x| x.pool_ins_per_s),
        disk_swap_ins_per_s: m.paged.map(|x| x.disk_ins_per_s),
        refaults_per_s: m.paged.map(|x| x.pool_ins_per_s + x.disk_ins_per_s),
        stall_frac: m.paged.map(|x| x.stall_frac),
    }
}

/// The features of a sample in the words of the port.
pub fn features(s: &Sample) -> Features {
    // What the hardware counts; the kernel's own accounts are always there.
    let counted = |x: f64| (!s.missed).then_some(x);
    Features {
        ipc: counted(s.ipc),
        llc_misses_per_s: counted(s.llc_misses_per_s),
        mbl_mbps: counted(s.mbl_mbps),
        cpu_usage_cores: Some(s.cpu_usage_cores),
        virt_mem_mb: Some(s.virt_mem_mb),
        res_mem_mb: Some(s.res_mem_mb),
        alloc_cores: Some(s.alloc_cores),
        alloc_ways: Some(s.alloc_ways),
        alloc_cache_mb: Some(s.alloc_cache_mb),
        core_freq_mhz: counted(s.core_freq_mhz).and_then(|mhz| core_freq_mhz([Frequency::Measured(mhz)])),
        nb_cores: Some(s.nb_cores),
        nb_cache_mb: Some(s.nb_cache_mb),
        nb_mbl_mbps: Some(s.nb_mbl_mbps),
    }
}

impl Server for VirtualServer {
    fn platform(&self) -> &Platform {
        &self.platform
    }

    fn observe(&mut self) -> Observation {
        Observation {
            t_ms: self.now_ms,
            services: self.entries.iter().map(|e| e.view(self.looked_ms, self.now_ms, self.tells)).collect(),
            ..Observation::default()
        }
    }

    fn apply(&mut self, plan: &Plan) -> Result<Applied, ServerError> {
        let mut all: BTreeMap<String, Allocation> = BTreeMap::new();
        for e in self.entries.iter().filter(|e| e.placed) {
            all.insert(e.id.clone(), e.allocation.clone());
        }
        let placed = all.clone();
        let mut new: BTreeMap<String, Allocation> = BTreeMap::new();
        for id in plan.changes.keys() {
            let Some(e) = self.entries.iter().find(|e| e.id == *id) else {
                let known: Vec<&str> = self.entries.iter().map(|e| e.id.as_str()).collect();
                return Err(ServerError::Invalid(format!("{id}: no such service here. Running: {}", known.join(", "))));
            };
            let Some(a) = plan.asks(id, e.placed, &e.allocation).map_err(ServerError::Invalid)? else { continue };
            if a.quota_cores.is_some() {
                return Err(ServerError::Invalid(format!("{id}: CPU quota, but the virtual server gives whole CPUs. Leave it out")));
            }
            let mut t = self.newcomer(&e.profile, 0.0, e.threads);
            self.changes(&e.allocation, &a).iter().for_each(|c| c.put(&mut t));
            self.check(id, &t)?;
            all.insert(id.clone(), a.clone());
            new.insert(id.clone(), a);
        }
        surefoot_server::validate::validate(&self.platform, &all).map_err(ServerError::Invalid)?;
        surefoot_server::limits::check_plan(&self.platform, plan, &placed, &all).map_err(ServerError::Invalid)?;
        // All of a kind take effect at one instant, so no order of raising and lowering limits is to be kept here.
        for (id, a) in &new {
            let Some(e) = self.entries.iter().find(|e| e.id == *id) else { continue };
            for c in self.changes(&e.allocation, a) {
                // Cannot fail: the whole plan has passed the same checks above.
                self.plant.change(id, c).map_err(|e| ServerError::Invalid(e.to_string()))?;
            }
        }
        let mut applied = Applied::default();
        for (id, a) in &new {
            let Some(e) = self.entries.iter_mut().find(|e| e.id == *id) else { continue };
            if e.allocation != *a || !e.placed {
                applied.changed.push(id.clone());
            }
            e.allocation = a.clone();
            e.placed = true;
        }
        Ok(applied)
    }

    fn advance(&mut self, tick: Tick) {
        self.happen();
        if tick.ms == 0 {
            return;
        }
        self.looked_ms = self.now_ms;
        // In equal parts: queues that grow and drain within a long step are lost in it.
        let parts = tick.ms.div_ceil(LONGEST_PART_MS);
        for part in 1..=parts {
            let until_ms = self.looked_ms + tick.ms * part / parts;
            let part_ms = until_ms - self.now_ms;
            self.plant.set_tick_s(part_ms as f64 / 1e3);
            self.plant.step();
            self.now_ms = until_ms;
            self.record(until_ms - part_ms - self.looked_ms, part_ms);
            self.happen();
        }
    }
}
