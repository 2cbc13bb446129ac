//! The closed loop in ticks (SPEC.md, section 7): enforcement delays, cache warm-up, queues that carry over, seeded noise,
//! and request-by-request simulation at low rates.
//!
//! Without a seed the plant is deterministic and mean-field: its percentiles are those of the ensemble of all runs. With
//! a seed it is one run: the work left after each segment is drawn from its law, readings have noise, and services with
//! few requests a tick are simulated request by request. All randomness is keyed by (seed, tenant, tick, ...): the same
//! seed gives the same bits whatever else runs.
//!
//! Some places go beyond the reference prototype. In seeded mode a change of rate rescales the time to the next arrival (the
//! prototype keeps the old one, which at a rate near 0 never comes), a service that returns to request-by-request mode starts
//! from the backlog and the time it has now (the prototype resumes at the time it left), and `max_outstanding` bounds the
//! queue in that mode too. In both modes no L3 domain ever holds more than its size: what fills ways waits for what leaves them,
//! and newcomers with warm caches push others out. Readings never exceed the CPUs held and the platform's peak bandwidth,
//! whatever the noise.

use crate::departures::{Departures, Wait, ALL_POINTS};
use crate::exact::{House, Pace};
use crate::faults::{lognormal, Lasting};
use crate::math::{gauss, ident_hash, mix64, uniform, Draws, QUANTILES};
use crate::memory::work_per_s;
use crate::moving::{fit, step, Limits};
use crate::path::{part_of, share_above, Path, MOST_POINTS};
use crate::profile::PlatformProfile;
use crate::queue::{wait_law, wait_quantile, walk_all, Moments, Outlook, Part, Station, Walk, ABOVE};
use crate::requests::{batch_size, Time};
use crate::speeds::{faults, Instant, PerDomain, Solver, Speed};
use crate::steady::{
    dispatch_s, extras, fill_neighbours, nearest_rank, quantile_noise, sample, stations, strikes, LatencyMs, Sample, FEW_REQUESTS,
};
use crate::tenant::{check_tenants, Tenant, TenantError, WayMasks, MAX_TENANTS};
use crate::MAX_DOMAINS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use surefoot_server::CpuSet;

/// Two instants closer than this are one, seconds.
const SAME_INSTANT_S: f64 = 1e-9;
/// What sums of shares may be off by.
const ROUNDING: f64 = 1e-12;

/// A change to one tenant; it takes effect after the platform's enforcement delay for its kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    Cpus(CpuSet),
    Ways(WayMasks),
    Mba(f64),
    MemGb(Option<f64>),
    CmsGb(f64),
    RateRps(f64),
}

impl Change {
    fn delay_s(&self, p: &PlatformProfile) -> f64 {
        let e = &p.enforce;
        1e-3 * match self {
            Change::Cpus(_) => e.cpus_ms,
            Change::Ways(_) => e.ways_ms,
            Change::Mba(_) => e.mba_ms,
            Change::MemGb(_) => e.mem_gb_ms,
            Change::CmsGb(_) => e.cms_gb_ms,
            Change::RateRps(_) => e.rate_ms,
        }
    }

    pub(crate) fn put(&self, t: &mut Tenant) {
        match *self {
            Change::Cpus(x) => t.cpus = x,
            Change::Ways(x) => t.ways = x,
            Change::Mba(x) => t.mba = x,
            Change::MemGb(x) => t.mem_gb = x,
            Change::CmsGb(x) => t.cms_gb = x,
            Change::RateRps(x) => t.rate_rps = x,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    at_s: f64,
    tenant: u64,
    change: Change,
}

/// What a tenant carries from segment to segment.
#[derive(Clone, Debug)]
struct State {
    ident: String,
    key: u64,
    /// Distinguishes a tenant from an earlier one of the same name.
    serial: u64,
    /// Front station, worker pool.
    queue: [Moments; 2],
    /// Of the same: what has come and not left.
    departures: [Departures; 2],
    /// Starts with the cache it would hold in equilibrium.
    warm: bool,
    /// Share of its threads whose private caches are cold.
    cold: f64,
    /// Memory limits that were set; the tenant has what is in force by now.
    wants: Limits,
    /// It has just come: of its memory it holds what there is room for from the start.
    new: bool,
    /// Requests, or thousands of a job's instructions, of the last segment, 1/s.
    work_per_s: f64,
    lasting: Lasting,
    /// Counters as they were read last: IPC, misses, bandwidth, frequency.
    last_read: Option<[f64; 4]>,
    /// Resident memory as it was read last, MB.
    res_mb: Option<f64>,
    requests: Requests,
    /// Of [`Plant::exact`].
    house: Option<House>,
}

/// Request-by-request mode.
#[derive(Clone, Debug, Default)]
struct Requests {
    /// When each worker is free.
    free: BinaryHeap<Reverse<Time>>,
    /// Completion and response time of requests in the house.
    done: BinaryHeap<Reverse<(Time, Time)>>,
    next_s: Option<f64>,
    seq: u64,
    /// End of the last segment in this mode.
    until_s: f64,
}

/// Averages over the segments of a tick.
#[derive(Clone, Debug, Default)]
struct Tally {
    t_s: f64,
    speed: Speed,
    mean_s: f64,
    q_s: [f64; 3],
    lost: f64,
    queued: f64,
    /// Response times of completed requests, ms (request-by-request mode).
    latencies_ms: Vec<f64>,
    arrived: f64,
    rejected: f64,
}

impl Tally {
    fn reset(&mut self) {
        let mut list = std::mem::take(&mut self.latencies_ms);
        list.clear();
        *self = Tally { latencies_ms: list, ..Tally::default() };
    }
}

/// Stations of one tenant on their way through a segment.
#[derive(Clone, Copy, Debug)]
struct Flow {
    tenant: usize,
    stations: [Station; 2],
    ahead: [Ahead; 2],
}

/// What becomes of a station in a segment: its law, or one path of it.
#[derive(Clone, Copy, Debug)]
enum Ahead {
    Law(Outlook),
    Path(Path),
}

/// The plant: one socket in ticks.
#[derive(Clone, Debug)]
pub struct Plant {
    solver: Solver,
    seed: Option<u64>,
    exact: bool,
    tick_s: f64,
    /// Ticks since the start, and where the present tick length began.
    ticks: u64,
    origin: (u64, f64),
    now_s: f64,
    tenants: Vec<Tenant>,
    states: Vec<State>,
    occ_mb: Vec<PerDomain>,
    cold: Vec<f64>,
    reclaim: Vec<f64>,
    wants: Vec<Limits>,
    allowed: Vec<Limits>,
    touches_per_s: Vec<f64>,
    pending: Vec<Pending>,
    serial: u64,
    // Buffers.
    tallies: Vec<Tally>,
    samples: Vec<Sample>,
    backlog_s: Vec<f64>,
    ins: Vec<PerDomain>,
    target: Vec<PerDomain>,
    before_mb: Vec<f64>,
    flows: Vec<Flow>,
    walks: Vec<Walk>,
    path_s: Vec<f64>,
    waits: Vec<(f64, f64)>,
}

impl Plant {
    /// `seed` None: mean-field, without noise.
    pub fn new(platform: Arc<PlatformProfile>, seed: Option<u64>, tick_s: f64) -> Self {
        Plant {
            solver: Solver::on_host(platform, seed),
            seed,
            exact: false,
            tick_s,
            ticks: 0,
            origin: (0, 0.0),
            now_s: 0.0,
            tenants: vec![],
            states: vec![],
            occ_mb: vec![],
            cold: vec![],
            reclaim: vec![],
            wants: vec![],
            allowed: vec![],
            touches_per_s: vec![],
            pending: vec![],
            serial: 0,
            tallies: vec![],
            samples: vec![],
            backlog_s: vec![],
            ins: vec![],
            target: vec![],
            before_mb: vec![],
            flows: vec![],
            walks: vec![],
            path_s: Vec::with_capacity(MOST_POINTS as usize),
            waits: Vec::with_capacity(ALL_POINTS),
        }
    }

    /// Every request of every service by itself ([`crate::exact`]), at any rate: the second opinion, a thousand times slower.
    ///
    /// # Panics
    /// Without a seed: it is one run.
    pub fn exact(self) -> Self {
        assert!(self.seed.is_some(), "requests are drawn: give a seed");
        Plant { exact: true, ..self }
    }

    pub fn platform(&self) -> &Arc<PlatformProfile> {
        self.solver.platform()
    }

    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    pub fn tick_s(&self) -> f64 {
        self.tick_s
    }

    /// Length of the coming ticks.
    pub fn set_tick_s(&mut self, tick_s: f64) {
        if tick_s != self.tick_s {
            self.origin = (self.ticks, self.now_s);
            self.tick_s = tick_s;
        }
    }

    pub fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Tenants as they will be when every change under way has taken effect.
    pub fn destined(&self) -> Vec<Tenant> {
        let mut all = self.tenants.clone();
        all.iter_mut().zip(&self.states).for_each(|(t, s)| s.wants.put(t));
        for p in &self.pending {
            if let Some(i) = self.states.iter().position(|s| s.serial == p.tenant) {
                p.change.put(&mut all[i]);
            }
        }
        all
    }

    pub fn position(&self, ident: &str) -> Option<usize> {
        self.states.iter().position(|s| s.ident == ident)
    }

    /// What the model knows and no monitor shows: speeds of the last segment of the last tick, in the order of
    /// [`Plant::tenants`]; empty before the first tick.
    pub fn speeds(&self) -> &[Speed] {
        self.solver.speeds()
    }

    /// Work ahead of a newcomer at the front station and at the workers, seconds (mean, or the drawn value with a seed).
    pub fn backlog_s(&self, tenant: usize) -> [f64; 2] {
        self.states[tenant].queue.map(|q| q.m)
    }

    /// MB of each L3 domain that a tenant's data take now.
    pub fn cache_mb(&self, tenant: usize) -> &PerDomain {
        &self.occ_mb[tenant]
    }

    /// Samples of the last tick, in the order of [`Plant::tenants`].
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Response times (ms) of the requests that completed in the last tick, if they were simulated one by one.
    pub fn requests_ms(&self, tenant: usize) -> Option<&[f64]> {
        (self.by_request(tenant) && tenant < self.samples.len()).then(|| &*self.tallies[tenant].latencies_ms)
    }

    fn by_request(&self, tenant: usize) -> bool {
        let t = &self.tenants[tenant];
        self.seed.is_some() && !t.profile.is_be() && (self.exact || t.rate_rps * self.tick_s < FEW_REQUESTS)
    }

    /// Add a tenant now, with cold caches unless `warm`.
    ///
    /// # Errors
    /// If it cannot exist on this platform; nothing is changed then.
    ///
    /// # Panics
    /// If `ident` is taken.
    pub fn add(&mut self, ident: &str, tenant: Tenant, warm: bool) -> Result<(), TenantError> {
        assert!(self.position(ident).is_none(), "tenant {ident} is already there");
        self.check(self.tenants.len(), &tenant)?;
        self.serial += 1;
        // It begins within its limits.
        let wants = Limits::of(&tenant);
        self.tenants.push(tenant);
        let key = ident_hash(ident);
        self.states.push(State {
            ident: ident.into(),
            key,
            serial: self.serial,
            queue: [Moments::default(); 2],
            departures: Default::default(),
            warm,
            cold: if warm { 0.0 } else { 1.0 },
            wants,
            new: true,
            work_per_s: 0.0,
            lasting: self.seed.map_or(Lasting::default(), |seed| Lasting::new(&self.platform().faults, seed, key)),
            last_read: None,
            res_mb: None,
            requests: Requests::default(),
            house: None,
        });
        self.occ_mb.push([0.0; MAX_DOMAINS]);
        self.samples.clear();
        Ok(())
    }

    /// Remove a tenant and its pending changes; false if there is none of that name.
    pub fn remove(&mut self, ident: &str) -> bool {
        let Some(i) = self.position(ident) else { return false };
        let gone = self.states.remove(i);
        self.tenants.remove(i);
        self.occ_mb.remove(i);
        self.pending.retain(|p| p.tenant != gone.serial);
        self.samples.clear();
        true
    }

    /// Schedule a change: it takes effect after its enforcement delay.
    ///
    /// # Errors
    /// If the tenant could not exist with it; nothing is changed then.
    ///
    /// # Panics
    /// If there is no tenant `ident`.
    pub fn change(&mut self, ident: &str, change: Change) -> Result<(), TenantError> {
        let i = self.position(ident).unwrap_or_else(|| panic!("no tenant {ident}"));
        let mut probe = self.tenants[i].clone();
        change.put(&mut probe);
        self.check(i, &probe)?;
        let at_s = self.now_s + change.delay_s(self.platform());
        let pending = Pending { at_s, tenant: self.states[i].serial, change };
        if at_s <= self.now_s {
            self.enact(pending);
        } else {
            let after = self.pending.partition_point(|p| p.at_s <= at_s);
            self.pending.insert(after, pending);
        }
        Ok(())
    }

    fn check(&self, index: usize, tenant: &Tenant) -> Result<(), TenantError> {
        check_tenants(self.platform(), std::slice::from_ref(tenant)).map_err(|e| TenantError { index, ..e })?;
        if index >= MAX_TENANTS {
            return Err(TenantError {
                index,
                profile: tenant.profile.name.clone(),
                field: "tenants",
                what: format!("more than {MAX_TENANTS} on one server"),
                remedy: "Remove some.".into(),
            });
        }
        Ok(())
    }

    /// Let one tick pass; one sample per tenant over it.
    pub fn step(&mut self) -> &[Sample] {
        let end = self.origin.1 + (self.ticks + 1 - self.origin.0) as f64 * self.tick_s;
        self.tallies.resize_with(self.tenants.len(), Tally::default);
        self.tallies.iter_mut().for_each(Tally::reset);
        let mut segment = 0;
        while self.now_s < end - SAME_INSTANT_S {
            let due = self.pending.partition_point(|p| p.at_s <= self.now_s + SAME_INSTANT_S);
            for i in 0..due {
                self.enact(self.pending[i]);
            }
            self.pending.drain(..due);
            let next = self.pending.first().map_or(end, |p| p.at_s.min(end));
            self.run_segment(next - self.now_s, segment);
            self.now_s = next;
            segment += 1;
        }
        self.now_s = end;
        self.ticks += 1;
        self.samples.clear();
        for i in 0..self.tenants.len() {
            let s = self.reading(i);
            self.samples.push(s);
        }
        fill_neighbours(&mut self.samples);
        &self.samples
    }

    fn enact(&mut self, p: Pending) {
        let Some(i) = self.states.iter().position(|s| s.serial == p.tenant) else { return };
        let (t, s) = (&mut self.tenants[i], &mut self.states[i]);
        let before = (t.workers(), t.cpus, t.rate_rps);
        match p.change {
            // Memory moves in its own time.
            Change::MemGb(mem_gb) => s.wants.mem_gb = mem_gb,
            Change::CmsGb(cms_gb) => s.wants.cms_gb = cms_gb,
            change => change.put(t),
        }
        if let Change::Cpus(cpus) = p.change {
            // Threads on CPUs that are new to them leave their private caches behind.
            let share = f64::from(cpus.difference(before.1).len()) / f64::from(cpus.len());
            s.cold = share + s.cold * (1.0 - share);
        }
        if t.profile.is_be() {
            return;
        }
        match p.change {
            Change::Cpus(cpus) => {
                // The requests in the queue stay; their drain time follows the number of workers.
                let k = t.workers();
                let x = f64::from(before.0) / f64::from(k);
                let gained = t.threads.min(cpus.difference(before.1).len());
                let moved = f64::from(gained) * self.solver.platform.os.migrate_us * 1e-6 / f64::from(k);
                s.queue[1] = Moments { m: s.queue[1].m * x + moved, v: s.queue[1].v * x * x };
                s.departures[1].stall(moved);
                let free = &mut s.requests.free;
                if !free.is_empty() {
                    while free.len() > k as usize {
                        free.pop();
                    }
                    while free.len() < k as usize {
                        free.push(Reverse(Time(self.now_s)));
                    }
                }
            }
            Change::RateRps(rate) => {
                if let Some(next) = &mut s.requests.next_s {
                    if *next > self.now_s {
                        // Memoryless: only the time scale of the wait changes.
                        *next = self.now_s + (*next - self.now_s) * before.2.max(1e-9) / rate.max(1e-9);
                    }
                }
            }
            _ => {}
        }
    }

    fn run_segment(&mut self, h: f64, segment: u64) {
        let n = self.tenants.len();
        let domains = self.platform().llc.domains as usize;
        let size_mb = f64::from(self.platform().llc.ways) * self.platform().llc.mb_per_way;
        self.move_memory(h);
        if (0..n).any(|i| self.states[i].warm && self.occ_mb[i].iter().sum::<f64>() == 0.0) {
            self.solver.solve(&self.tenants, None);
            for i in 0..n {
                if self.states[i].warm {
                    self.occ_mb[i] = self.solver.speeds()[i].cap_mb;
                }
            }
            self.make_room(domains, size_mb);
        }
        self.backlog_s.clear();
        self.backlog_s.extend(self.states.iter().map(|s| s.queue[1].m));
        self.cold.clear();
        let cold_s = self.solver.platform.faults.cold_s;
        for s in &mut self.states {
            // Warm by an exponential law: the mean over the segment, and what is left.
            let left = if cold_s > 0.0 { (-h / cold_s).exp() } else { 0.0 };
            self.cold.push(s.cold * (1.0 - left) * cold_s / h);
            s.cold *= left;
        }
        let now = Instant { backlog_s: &self.backlog_s, dt_s: h, occ_mb: &self.occ_mb, cold: &self.cold, reclaim: &self.reclaim };
        self.solver.solve(&self.tenants, Some(now));
        self.ins.clear();
        self.ins.extend(self.solver.speeds().iter().map(|r| r.ins_gbs));
        self.target.resize(n, [0.0; MAX_DOMAINS]);
        self.before_mb.resize(n, 0.0);
        self.solver.equilibrium_split(&self.ins, &mut self.target);
        for d in 0..domains {
            let everybody: f64 = self.ins.iter().map(|x| x[d]).sum();
            let (mut held, mut gained) = (0.0, 0.0);
            for i in 0..n {
                let (o, e) = (self.occ_mb[i][d], self.target[i][d]);
                if o != e {
                    // Filled by own misses, lost to those of all.
                    let mbps = if e > o { self.ins[i][d] } else { everybody } * 1e9 / (1u64 << 20) as f64;
                    let mut keep = (-h * mbps / (e - o).abs().max(0.1 * e).max(0.01)).exp();
                    let contested = (0..n).any(|j| j != i && self.tenants[j].ways[d] & self.tenants[i].ways[d] != 0);
                    if contested {
                        keep = keep.max(0.5);
                    }
                    self.occ_mb[i][d] = e + (o - e) * keep;
                }
                let now = self.occ_mb[i][d];
                held += now;
                gained += (now - o).max(0.0);
                self.before_mb[i] = o;
            }
            let excess = held - size_mb;
            if excess > ROUNDING * size_mb {
                // Losers of ways may lose them more slowly than others fill them: no service fills what is not free yet.
                let scale = (1.0 - excess / gained).max(0.0);
                for (occ, before) in self.occ_mb.iter_mut().zip(&self.before_mb) {
                    if occ[d] > *before {
                        occ[d] = before + (occ[d] - before) * scale;
                    }
                }
            }
        }
        self.flows.clear();
        self.walks.clear();
        for i in 0..n {
            let r = self.solver.speeds()[i];
            let a = &mut self.tallies[i];
            let w = h / (a.t_s + h);
            a.t_s += h;
            let old = a.speed;
            let mix = |f: fn(&Speed) -> f64| f(&old) * (1.0 - w) + f(&r) * w;
            a.speed.ipc = mix(|s| s.ipc);
            a.speed.misses_per_s = mix(|s| s.misses_per_s);
            a.speed.mbl_gbs = mix(|s| s.mbl_gbs);
            a.speed.busy_cores = mix(|s| s.busy_cores);
            a.speed.freq_ghz = mix(|s| s.freq_ghz);
            a.speed.x = mix(|s| s.x);
            a.speed.instr_per_s = mix(|s| s.instr_per_s);
            self.states[i].warm = false;
            self.states[i].work_per_s = work_per_s(&self.tenants[i], &r);
            if self.tenants[i].profile.is_be() {
                continue;
            }
            match self.seed {
                Some(seed) if self.exact => self.events(i, &r, h, seed),
                Some(seed) if self.by_request(i) => self.requests(i, &r, h, seed),
                _ => self.set_out(i, &r, h),
            }
        }
        walk_all(&mut self.walks);
        for i in 0..self.flows.len() {
            self.queues(i, h, segment);
        }
    }

    /// Waiting by the diffusion law, whatever the request rate: where it starts.
    fn set_out(&mut self, i: usize, r: &Speed, h: f64) {
        let (t, s) = (&self.tenants[i], &mut self.states[i]);
        let Some(lc) = t.profile.lc() else { return };
        let stations = stations(&self.solver.platform, t, lc, r);
        for ((st, queue), past) in stations.iter().zip(&mut s.queue).zip(&s.departures) {
            // The requests in the queue stay; they take as long as they do now.
            let x = past.service_s().map_or(1.0, |before_s| st.service_s / before_s);
            *queue = Moments { m: queue.m * x, v: queue.v * x * x };
        }
        let ahead = std::array::from_fn(|j| {
            let path = if self.seed.is_some() { Path::of(&stations[j], s.queue[j].m, h) } else { None };
            path.map_or_else(|| Ahead::Law(stations[j].look_ahead(s.queue[j], h, &mut self.walks)), Ahead::Path)
        });
        self.flows.push(Flow { tenant: i, stations, ahead });
    }

    /// Memory on its way to where limits, and the size of the machine, want it ([`crate::moving`]).
    fn move_memory(&mut self, h: f64) {
        let p = &self.solver.platform;
        self.wants.clear();
        // A newcomer begins as it came, whatever limits have been set since.
        self.wants.extend(self.states.iter().zip(&self.tenants).map(|(s, t)| if s.new { Limits::of(t) } else { s.wants }));
        self.touches_per_s.clear();
        self.reclaim.clear();
        for (s, t) in self.states.iter().zip(&self.tenants) {
            self.touches_per_s.push(s.work_per_s * t.profile.paging.as_ref().map_or(0.0, |m| m.pages));
        }
        fit(p, &self.tenants, &self.wants, &self.touches_per_s, |i| self.states[i].new, &mut self.allowed);
        for (i, t) in self.tenants.iter_mut().enumerate() {
            let mut reclaim_cores = 0.0;
            if std::mem::take(&mut self.states[i].new) {
                self.allowed[i].put(t);
            } else if Limits::of(t) != self.allowed[i] {
                let (pool, disk) = faults(t.profile.paging.as_ref(), t);
                let ins_per_s = self.states[i].work_per_s * (pool + disk);
                let (limits, cores) = step(p, t, self.allowed[i], ins_per_s, h);
                limits.put(t);
                reclaim_cores = cores;
            }
            self.reclaim.push(reclaim_cores);
        }
    }

    /// Services that were there lose what newcomers with warm caches hold.
    fn make_room(&mut self, domains: usize, size_mb: f64) {
        for d in 0..domains {
            let held = |warm: bool| self.occ_mb.iter().zip(&self.states).filter(|(_, s)| s.warm == warm).map(|(o, _)| o[d]).sum::<f64>();
            let (new, old) = (held(true), held(false));
            if old > 0.0 && new + old > size_mb * (1.0 + ROUNDING) {
                let keep = (size_mb - new).max(0.0) / old;
                for (occ, _) in self.occ_mb.iter_mut().zip(&self.states).filter(|(_, s)| !s.warm) {
                    occ[d] *= keep;
                }
            }
        }
    }

    /// The end of a segment of [`Plant::set_out`].
    fn queues(&mut self, flow: usize, h: f64, segment: u64) {
        let Flow { tenant: i, stations, ahead } = &self.flows[flow];
        let i = *i;
        let (t, s, a) = (&self.tenants[i], &mut self.states[i], &mut self.tallies[i]);
        let Some(lc) = t.profile.lc() else { return };
        // The tally has counted this segment.
        let w = h / a.t_s;
        a.queued = 0.0;
        let mut above = [ABOVE; 2];
        for (j, (st, ahead)) in stations.iter().zip(ahead).enumerate() {
            let draws = |seed: u64| Draws::new(&[seed, s.key, self.ticks, segment, j as u64]);
            match (ahead, self.seed) {
                (Ahead::Path(path), Some(seed)) => {
                    let (draws, dt) = (draws(seed), h / f64::from(path.points));
                    let mut v = s.queue[j].m;
                    let begins = v;
                    self.path_s.clear();
                    let mut lost_s = 0.0;
                    for k in 0..path.points {
                        let (next, over) = path.next(v, dt, draws, u64::from(k));
                        v = next;
                        lost_s += over;
                        self.path_s.push(path.wait_s(v));
                    }
                    a.lost = a.lost.max((lost_s / (st.rho() * h).max(1e-12)).min(1.0));
                    let after_s = path.wait_s(v);
                    let known = |wait_s: f64| Wait::known(wait_s, st.cap_s);
                    s.departures[j].pass(st, self.now_s, h, || known(path.wait_s(begins)), self.path_s.iter().map(|w| known(*w)));
                    a.queued += after_s * f64::from(st.servers) / st.service_s;
                    s.queue[j] = Moments { m: v, v: 0.0 };
                }
                (Ahead::Law(outlook), seed) => {
                    let [(at_half, law_half, _), (at, law, lost)] = st.arrive(outlook, &self.walks, h);
                    a.lost = a.lost.max(lost);
                    if at.m > 0.0 {
                        a.queued += law.waits * at.m * f64::from(st.servers) / st.service_s;
                    }
                    let before = s.queue[j];
                    let laws = [Wait { at: at_half, law: law_half }, Wait { at, law }];
                    s.departures[j].pass(st, self.now_s, h, || Wait { at: before, law: st.law_at(before) }, laws.into_iter());
                    s.queue[j] = at;
                    if let Some(draws) = seed.map(draws).filter(|_| st.s2() > 0.0) {
                        let z = draws.gauss(1);
                        for k in 1..ABOVE.len() {
                            above[j][k] = share_above(st, self.tick_s, ABOVE[k], z);
                        }
                    }
                }
                (Ahead::Path(_), None) => {}
            }
        }
        // Those whose answers are there at the beginning, at half time and at the end.
        let parts = extras(&self.solver.platform, lc, &self.solver.speeds()[i]);
        let end_s = self.now_s + h;
        let mut seen = [None; 2];
        let (mut from_s, mut to_s) = (self.now_s - stations[1].service_s, end_s - stations[1].service_s);
        for j in [1, 0] {
            if matches!(ahead[j], Ahead::Path(_)) {
                self.waits.clear();
                s.departures[j].left_between(from_s, to_s, &mut self.waits);
                seen[j] = (!self.waits.is_empty()).then(|| part_of(&mut self.waits));
            }
            let came = |t_s: f64| s.departures[j].leaving(t_s).map_or(t_s, |x| x.0);
            (from_s, to_s) = (came(from_s), came(to_s));
        }
        let mut done = [parts; 3];
        let mut waited_s = 0.0;
        for (sum, t_s) in done.iter_mut().zip([self.now_s, end_s - 0.5 * h, end_s]) {
            let mut begun_s = t_s - stations[1].service_s;
            for j in [1, 0] {
                let Some((came_s, wait)) = s.departures[j].leaving(begun_s) else { continue };
                sum.add(&seen[j].unwrap_or_else(|| wait_law(wait.at, wait.law, above[j])));
                if t_s <= self.now_s {
                    s.departures[j].forget_before(begun_s);
                }
                begun_s = came_s;
            }
            if t_s <= self.now_s {
                waited_s = t_s - begun_s;
            }
        }
        if let Some(seed) = self.seed {
            for (j, st) in stations.iter().enumerate() {
                let (at, law) = (s.queue[j], st.law_at(s.queue[j]));
                if at.m <= 0.0 || matches!(ahead[j], Ahead::Path(_)) {
                    continue;
                }
                // Draw the work really left; the next segment starts from it.
                let y = uniform(&[seed, s.key, self.ticks, segment, j as u64]);
                s.queue[j] = Moments { m: law.cap_s.min(wait_quantile(y, at, law.ell)), v: 0.0 };
                s.departures[j].drawn(s.queue[j].m);
            }
        }
        let done = done.map(|sum| sum.total());
        let mean = |of: fn(&Part) -> f64| 0.25 * of(&done[0]) + 0.5 * of(&done[1]) + 0.25 * of(&done[2]);
        // A backlog that takes longer than this to leave was there for most of it; what a shorter one shows at the beginning is soon over.
        let from = usize::from(waited_s < h);
        let most = |k: usize| done[from..].iter().map(|x| x.q[k]).fold(0.0, f64::max);
        a.mean_s = a.mean_s * (1.0 - w) + mean(|x| x.mean) * w;
        a.q_s[0] = a.q_s[0] * (1.0 - w) + mean(|x| x.q[0]) * w;
        // The upper tail is that of the worst part of the tick.
        for k in 1..QUANTILES.len() {
            a.q_s[k] = a.q_s[k].max(most(k));
        }
    }

    /// Event by event, see [`crate::exact`].
    fn events(&mut self, i: usize, r: &Speed, h: f64, seed: u64) {
        let (t, s, a) = (&self.tenants[i], &mut self.states[i], &mut self.tallies[i]);
        let p = &*self.solver.platform;
        let Some(lc) = t.profile.lc() else { return };
        let q = &lc.queue;
        let pace = Pace {
            rate_rps: t.rate_rps,
            front_s: dispatch_s(p, lc, r.freq_ghz),
            front_scv: q.dispatch_scv,
            service_s: r.service_s,
            workers: r.workers,
            fixed_s: q.net_us * 1e-6,
            strikes: strikes(p, lc, r),
            most: q.max_outstanding,
        };
        let born = || House::new(q.scv_arrival, q.scv_service, t.rate_rps, self.now_s, mix64(&[seed, s.key]));
        s.departures.iter_mut().for_each(Departures::forget);
        let mut house = s.house.take().unwrap_or_else(born);
        let count = house.pass(self.now_s, h, &pace, &mut a.latencies_ms);
        a.arrived += count.arrived as f64;
        a.rejected += count.rejected as f64;
        a.lost = if a.arrived > 0.0 { a.rejected / a.arrived } else { 0.0 };
        a.queued = house.inside() as f64;
        let backlog_s = house.backlog_s(self.now_s + h, &pace);
        s.queue = backlog_s.map(|m| Moments { m, v: 0.0 });
        s.house = Some(house);
    }

    /// Request by request: Poisson batches, lognormal service, FCFS. Latencies count where they complete.
    fn requests(&mut self, i: usize, r: &Speed, h: f64, seed: u64) {
        let (t, s, a) = (&self.tenants[i], &mut self.states[i], &mut self.tallies[i]);
        let p = &*self.solver.platform;
        let Some(lc) = t.profile.lc() else { return };
        let (now, end, key) = (self.now_s, self.now_s + h, s.key);
        let q = &lc.queue;
        let batch = (q.scv_arrival + 1.0) / 2.0;
        let mean_gap = batch / t.rate_rps.max(1e-9);
        let sigma = q.scv_service.ln_1p().sqrt();
        let fixed_s = q.net_us * 1e-6 + dispatch_s(p, lc, r.freq_ghz);
        s.departures.iter_mut().for_each(Departures::forget);
        let x = &mut s.requests;
        if x.next_s.is_none() || x.until_s < now - SAME_INSTANT_S {
            // New in this mode: workers are busy with the backlog that the diffusion law has left.
            x.seq += u64::from(x.next_s.is_some());
            x.done.clear();
            x.free.clear();
            x.free.extend((0..r.workers).map(|_| Reverse(Time(now + s.queue[1].m))));
            x.next_s = Some(now - uniform(&[seed, key, x.seq, 1]).ln() * mean_gap);
        }
        let mut next = x.next_s.unwrap_or(end);
        let complete = |done: &mut BinaryHeap<Reverse<(Time, Time)>>, until: f64, list: &mut Vec<f64>| {
            while done.peek().is_some_and(|Reverse((at, _))| at.0 <= until) {
                if let Some(Reverse((_, response))) = done.pop() {
                    list.push(response.0 * 1e3);
                }
            }
        };
        while next < end {
            complete(&mut x.done, next, &mut a.latencies_ms);
            let size = batch_size(batch, || uniform(&[seed, key, x.seq, 2]));
            for j in 0..size {
                a.arrived += 1.0;
                if x.done.len() as f64 >= q.max_outstanding {
                    a.rejected += 1.0;
                    continue;
                }
                let service = r.service_s * (sigma * gauss(&[seed, key, x.seq, 3 + j]) - sigma * sigma / 2.0).exp();
                let free = x.free.pop().map_or(next, |Reverse(at)| at.0);
                let done = free.max(next) + service;
                x.free.push(Reverse(Time(done)));
                x.done.push(Reverse((Time(done), Time(done - next + fixed_s))));
            }
            x.seq += 1;
            next -= uniform(&[seed, key, x.seq, 1]).ln() * mean_gap;
        }
        complete(&mut x.done, end, &mut a.latencies_ms);
        x.next_s = Some(next);
        x.until_s = end;
        let first_free = x.free.peek().map_or(end, |Reverse(at)| at.0);
        s.queue[1] = Moments { m: (first_free - end).max(0.0), v: 0.0 };
        a.lost = if a.arrived > 0.0 { a.rejected / a.arrived } else { 0.0 };
    }

    /// What a monitor reads of tenant `i` over the tick.
    fn reading(&mut self, i: usize) -> Sample {
        let by_request = self.by_request(i);
        let (t, s, a) = (&self.tenants[i], &mut self.states[i], &mut self.tallies[i]);
        let p = &*self.solver.platform;
        let n = self.ticks;
        let mut r = a.speed;
        let draws = self.seed.map(|seed| Draws::new(&[seed, s.key, n]));
        let (mut latency, mut count, mut offered_rps) = (None, 0.0, t.rate_rps);
        if let Some(lc) = t.profile.lc() {
            count = r.x * self.tick_s;
            // An average of equal values may round above their maximum.
            let p50_s = a.q_s[0].min(a.q_s[1]);
            let law = LatencyMs { mean: a.mean_s * 1e3, p50: p50_s * 1e3, p95: a.q_s[1] * 1e3, p99: a.q_s[2] * 1e3 };
            latency = match draws {
                Some(_) if by_request => {
                    count = a.latencies_ms.len() as f64;
                    nearest_rank(&mut a.latencies_ms)
                }
                Some(draws) if count > 0.0 => {
                    // Arrivals scatter; where requests wait for longer than a tick, only services do.
                    let waits = s.queue[1].m > self.tick_s;
                    let scv = if waits { lc.queue.scv_service } else { lc.queue.scv_arrival };
                    let drawn = (count + (count * scv).sqrt() * draws.gauss(120)).round().max(1.0);
                    let of_mean = drawn / count;
                    count = drawn;
                    offered_rps *= of_mean;
                    r.x *= of_mean;
                    r.instr_per_s *= of_mean;
                    r.misses_per_s *= of_mean;
                    r.mbl_gbs *= of_mean;
                    r.busy_cores *= of_mean;
                    Some(quantile_noise(law, count, |j| draws.gauss(110 + j)))
                }
                _ => Some(law),
            };
        }
        let mut missed = false;
        if let Some(draws) = draws {
            let (f, lasting) = (&p.faults, &s.lasting);
            let noise = |cv: f64, j: u64| lognormal(cv, draws.gauss(100 + j));
            r.ipc *= lasting.ipc * noise(f.of_turns(p.noise.ipc), 0);
            r.misses_per_s *= lasting.misses * noise(f.of_turns(p.noise.misses), 1);
            r.mbl_gbs *= lasting.mbl * noise(p.noise.mbl, 2);
            r.busy_cores *= noise(p.noise.cpu, 3);
            r.freq_ghz *= lasting.freq * noise(p.noise.freq, 4);
            // A reader that comes late finds what was there before.
            let late = s.last_read.filter(|_| draws.uniform(121) < f.late);
            missed = draws.uniform(122) < f.missed;
            s.last_read = Some([r.ipc, r.misses_per_s, r.mbl_gbs, r.freq_ghz]);
            if let Some(before) = late {
                [r.ipc, r.misses_per_s, r.mbl_gbs, r.freq_ghz] = before;
            }
        }
        // Noise does not make more of a thing than there is.
        r.busy_cores = r.busy_cores.min(f64::from(t.cpus.len()));
        r.mbl_gbs = r.mbl_gbs.min(p.mem.bw_gbs);
        let mut out = sample(p, t, &r, latency, a.lost, a.queued);
        out.count = count;
        out.missed = missed;
        if !t.profile.is_be() {
            out.offered_rps = offered_rps;
        }
        if draws.is_some() {
            out.virt_mem_mb *= s.lasting.data;
            let now_mb = out.res_mem_mb * s.lasting.data;
            let limit_mb = t.mem_gb.map_or(out.virt_mem_mb, |gb| (gb * 1024.0).min(out.virt_mem_mb));
            // Read once a second. What is freed goes back to the system slowly.
            let due = (self.now_s + SAME_INSTANT_S).floor() > (self.now_s - self.tick_s + SAME_INSTANT_S).floor();
            let held_mb = match s.res_mb {
                Some(before) if !due => before,
                Some(before) if before > now_mb => {
                    let left = if p.faults.res_decay_s > 0.0 { (-1.0 / p.faults.res_decay_s).exp() } else { 0.0 };
                    now_mb + (before - now_mb) * left
                }
                _ => now_mb,
            };
            s.res_mb = Some(held_mb);
            out.res_mem_mb = held_mb.min(limit_mb);
        }
        out
    }
}
