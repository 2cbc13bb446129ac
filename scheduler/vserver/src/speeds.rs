//! The fixed point of all speeds at one instant (SPEC.md, section 4): CPI, cache shares, memory latency, SMT, frequency,
//! CPU sharing.
//!
//! Unknowns are the busy share of each tenant's workers, memory utilisation, and insertion rates where ways are shared.
//! CPUs with the same holders on both threads behave alike, so the loops run over these few classes instead of CPUs.
//! All buffers live in [`Solver`] and are reused: no allocation once they have grown.

use crate::host::Host;
use crate::math::assoc;
use crate::profile::{Paging, PlatformProfile, ProfileKind, MAX_DOMAINS};
use crate::tenant::{Tenant, WayMasks};
use std::sync::Arc;
use surefoot_server::CpuSet;

/// Bytes per cache line.
const LINE_BYTES: f64 = 64.0;
/// Memory utilisation never exceeds this.
const U_MAX: f64 = 0.995;
/// Rounds after which a case counts as slow: several tenants on the same CPUs and ways can come close to having a line of
/// fixed points, and then only small steps converge.
const SLOW: u32 = 60;
/// Rounds after which the iteration stops at what it has (one of 10,000 random cases with everything shared; the residual
/// is below 1e-6 then). The reference stops at 500.
const MAX_ROUNDS: u32 = 1000;
/// Largest change in a round that counts as converged, for a case and for an instant of a closed loop.
const TOLERANCE: f64 = 1e-12;
const TOLERANCE_INSTANT: f64 = 1e-10;
/// Tolerance of memory utilisation in the last round.
const EXACT: f64 = 1e-14;

/// Largest gap at which acceleration may begin.
const NEAR: f64 = 0.05;

/// MB of each L3 domain.
pub type PerDomain = [f64; MAX_DOMAINS];

/// What the fixed point says of one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// Mean service time of a request, seconds (LC).
    pub service_s: f64,
    /// Workers.
    pub workers: u32,
    /// Completions/s (LC) or instructions/s (BE).
    pub x: f64,
    /// Busy share of each worker.
    pub busy: f64,
    pub freq_ghz: f64,
    pub ipc: f64,
    pub miss_ratio: f64,
    pub misses_per_s: f64,
    pub mbl_gbs: f64,
    pub busy_cores: f64,
    pub instr_per_s: f64,
    /// Share of its CPUs' time that a tenant gets.
    pub share: f64,
    /// Probability that a wake-up finds another tenant running.
    pub p_other: f64,
    /// Compressed-swap and disk faults per request (LC) or per 1000 instructions (BE).
    pub fault: (f64, f64),
    /// Cache held, MB.
    pub cap_mb: PerDomain,
    /// Insertions, GB/s.
    pub ins_gbs: PerDomain,
}

/// What all tenants share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    pub mem_util: f64,
    pub mem_ns: f64,
    pub freq_ghz: f64,
    pub active_cores: f64,
    pub rounds: u32,
    /// Largest change in the last round: how far this is from the fixed point.
    pub residual: f64,
}

/// State of a closed loop that the speeds depend on.
#[derive(Clone, Copy, Debug)]
pub struct Instant<'a> {
    /// Work ahead of each tenant's workers at the start, seconds.
    pub backlog_s: &'a [f64],
    /// Length of the step, seconds.
    pub dt_s: f64,
    /// Cache that each tenant holds, MB.
    pub occ_mb: &'a [PerDomain],
    /// Share of each tenant's threads whose private caches are cold.
    pub cold: &'a [f64],
    /// Cores that reclaim of each tenant's memory needs, on its CPUs.
    pub reclaim: &'a [f64],
}

/// Physical cores whose two threads have the same holders (bits are tenants).
#[derive(Clone, Copy, Debug)]
struct CoreClass {
    holders: [u64; 2],
    cores: f64,
    /// Sum of the use of both threads, this round.
    use_sum: [f64; 2],
}

/// Ways of one domain with the same holders (bits are tenants that also have CPUs in the domain).
#[derive(Clone, Copy, Debug)]
struct WayClass {
    domain: usize,
    holders: u64,
    mb: f64,
}

/// One tenant: constants of the case, then what a round computes.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    be: bool,
    k: f64,
    n_cpus: f64,
    core_cycles: f64,
    api: f64,
    hit_ns: f64,
    llc_ns: f64,
    inv_mlp: f64,
    bytes_per_access: f64,
    /// 1 / (MBA share x bandwidth of a core), ns per byte; 0 without a throttle.
    mba_ns_per_byte: f64,
    paging_ns: f64,
    paging_s: f64,
    instr: f64,
    parallel: f64,
    rate: f64,
    dispatch_cycles: f64,
    backlog_rate: f64,
    contention: f64,
    oversub: f64,
    weight: f64,
    fault: (f64, f64),
    own_sibling: bool,
    shares_cpu: bool,
    // The round.
    u: f64,
    u_before: f64,
    /// This round's and the last one's.
    gap: [f64; 2],
    use_cpu: f64,
    a: f64,
    p_other: f64,
    miss: f64,
    front_rate: f64,
    /// ns per instruction = core_ns + mem_slope x memory latency, before MBA.
    core_ns: f64,
    mem_slope: f64,
    bytes_per_instr: f64,
    roof4: f64,
    service_scale: f64,
    be_inv_parallel: f64,
    // The answer.
    tau: f64,
    service_s: f64,
    x: f64,
    bw: f64,
}

/// Solves cases on one platform. Give each thread its own.
#[derive(Clone, Debug)]
pub struct Solver {
    pub(crate) platform: Arc<PlatformProfile>,
    host: Host,
    domain_cpus: Vec<CpuSet>,
    rows: Vec<Row>,
    cap: Vec<PerDomain>,
    ins: Vec<PerDomain>,
    ins_before: Vec<PerDomain>,
    ins_gap: Vec<[[f64; 2]; MAX_DOMAINS]>,
    domain_share: Vec<PerDomain>,
    /// Means over each tenant's CPUs: time of core-bound work and of a hit in the LLC, relative to the platform's.
    host_share: Vec<(f64, f64)>,
    // Layout of the last case: rebuilt only when CPUs or ways change.
    cpus: Vec<CpuSet>,
    ways: Vec<WayMasks>,
    cores: Vec<CoreClass>,
    any_sibling: bool,
    way_classes: Vec<WayClass>,
    ways_overlap: bool,
    /// Wait in front of saturated memory, ns.
    stalled_ns: f64,
    speeds: Vec<Speed>,
    shared: Shared,
}

impl Solver {
    /// A machine exactly like its platform.
    pub fn new(platform: Arc<PlatformProfile>) -> Self {
        Solver::on_host(platform, None)
    }

    /// The machine of that seed: its cores, slices and devices differ a little from the platform's ([`crate::faults`]).
    pub fn on_host(platform: Arc<PlatformProfile>, host_seed: Option<u64>) -> Self {
        let domains = platform.llc.domains;
        let cpus_of = |d| (0..platform.logical_cpus()).filter(|c| platform.domain_of(*c) == d).collect();
        Solver {
            host: Host::new(&platform, host_seed),
            domain_cpus: (0..domains).map(cpus_of).collect(),
            platform,
            host_share: vec![],
            rows: vec![],
            cap: vec![],
            ins: vec![],
            ins_before: vec![],
            ins_gap: vec![],
            domain_share: vec![],
            cpus: vec![],
            ways: vec![],
            cores: vec![],
            any_sibling: false,
            way_classes: vec![],
            ways_overlap: false,
            stalled_ns: 0.0,
            speeds: vec![],
            shared: Shared::default(),
        }
    }

    pub fn platform(&self) -> &Arc<PlatformProfile> {
        &self.platform
    }

    pub fn speeds(&self) -> &[Speed] {
        &self.speeds
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    fn domains(&self) -> usize {
        self.domain_cpus.len()
    }

    /// Solve for all tenants. They must have passed [`crate::check_tenants`]. `instant` None: no backlog, and the cache
    /// is split as it would be in equilibrium.
    pub fn solve(&mut self, tenants: &[Tenant], instant: Option<Instant>) {
        self.lay_out(tenants);
        self.fill_rows(tenants, instant);
        let own_split = instant.is_none();
        let overlap = own_split && self.ways_overlap;
        if let Some(now) = instant {
            self.cap.clear();
            self.cap.extend_from_slice(now.occ_mb);
        } else {
            for (ins, (share, t)) in self.ins.iter_mut().zip(self.domain_share.iter().zip(tenants)) {
                for d in 0..self.domain_cpus.len() {
                    ins[d] = if share[d] > 0.0 && t.ways[d] != 0 { 1.0 } else { 0.0 };
                }
            }
            split_cache(&self.way_classes, &self.ins, &mut self.cap);
        }
        self.fill_miss_ratios(tenants);
        let mut util = 0.0;
        let mut rounds = 0;
        let mut active = 0.0;
        let mut freq = 0.0;
        let tolerance = if own_split { TOLERANCE } else { TOLERANCE_INSTANT };
        let mut residual = 0.0;
        let mut last_err = f64::INFINITY;
        // Damping of the busy shares. Shared ways and CPUs can swing, so they start with the safer one.
        let contended = overlap || self.rows.iter().any(|r| r.shares_cpu);
        for round in 1..=MAX_ROUNDS {
            let damping = match round {
                ..=SLOW if !contended => 0.8,
                ..=500 => 0.5,
                _ => 0.2,
            };
            rounds = round;
            active = self.active_cores();
            freq = self.platform.frequency_ghz(active);
            self.prepare_round(freq);
            // No finer than the round deserves; the last round is exact.
            let inner = (1e-3 * last_err).clamp(EXACT, 1e-6);
            util = self.memory_utilisation(util, inner);
            let (err, dot, norm) = self.gaps(overlap);
            residual = err;
            if err < tolerance {
                if inner <= EXACT {
                    break;
                }
                last_err = 0.0;
                continue;
            }
            // Far from the fixed point plain damping decides which one is reached; near it, Anderson acceleration of
            // depth one gets there in fewer rounds.
            let mix = if (2..=500).contains(&round) && err < NEAR && err < last_err && norm > 0.0 { Some(dot / norm) } else { None };
            last_err = err;
            let damping = if mix.is_some() && round <= SLOW { 1.0 } else { damping };
            self.move_on(overlap, damping, mix);
            if overlap {
                split_cache(&self.way_classes, &self.ins, &mut self.cap);
                self.fill_miss_ratios(tenants);
            }
        }
        let mem_ns = self.platform.mem_latency_ns(util) + self.stalled_ns;
        self.shared = Shared { mem_util: util, mem_ns, freq_ghz: freq, active_cores: active, rounds, residual };
        self.report(tenants, freq);
    }

    /// How far every unknown is from what this round makes of it: largest gap, and what acceleration needs to know of the
    /// change of the gaps since the last round (change x gap, change x change).
    fn gaps(&mut self, overlap: bool) -> (f64, f64, f64) {
        let (mut err, mut dot, mut norm) = (0.0f64, 0.0, 0.0);
        let mut tally = |gap: f64, before: f64| {
            err = err.max(gap.abs());
            dot += (gap - before) * gap;
            norm += (gap - before) * (gap - before);
        };
        for (i, r) in self.rows.iter_mut().enumerate() {
            let next = if r.be { r.a } else { (r.x * r.service_s / r.k).min(1.0) * r.a };
            r.gap = [next - r.u, r.gap[0]];
            tally(r.gap[0], r.gap[1]);
            if !overlap {
                continue;
            }
            for d in 0..self.domain_cpus.len() {
                let ins = self.ins[i][d];
                if ins > 0.0 {
                    let x = (r.bw * self.domain_share[i][d]).max(1e-6);
                    let gap = &mut self.ins_gap[i][d];
                    let before = gap[0];
                    *gap = [x - ins, before];
                    // Relative, so that small tenants count.
                    tally((x - ins) / x, before / x);
                }
            }
        }
        (err, dot, norm)
    }

    /// Next values of the unknowns: damped, or accelerated with mixing factor `mix`.
    fn move_on(&mut self, overlap: bool, damping: f64, mix: Option<f64>) {
        let next = |now: f64, before: f64, gap: [f64; 2], damping: f64| match mix {
            Some(theta) => now + damping * gap[0] - theta * (now - before + damping * (gap[0] - gap[1])),
            None => now + damping * gap[0],
        };
        for (i, r) in self.rows.iter_mut().enumerate() {
            let u = next(r.u, r.u_before, r.gap, damping).clamp(0.0, 1.0);
            r.u_before = std::mem::replace(&mut r.u, u);
            if !overlap {
                continue;
            }
            for d in 0..self.domain_cpus.len() {
                let ins = &mut self.ins[i][d];
                if *ins > 0.0 {
                    let x = next(*ins, self.ins_before[i][d], self.ins_gap[i][d], if mix.is_some() { damping } else { damping.min(0.5) })
                        .max(0.5e-6);
                    self.ins_before[i][d] = std::mem::replace(ins, x);
                }
            }
        }
    }

    /// MB of each domain that each tenant would end up with, given insertion rates.
    pub(crate) fn equilibrium_split(&self, ins: &[PerDomain], out: &mut [PerDomain]) {
        split_cache(&self.way_classes, ins, out);
    }

    /// Classes of cores and ways; kept while the holders stay the same.
    fn lay_out(&mut self, tenants: &[Tenant]) {
        let same = self.cpus.len() == tenants.len()
            && tenants.iter().zip(&self.cpus).all(|(t, c)| t.cpus == *c)
            && tenants.iter().zip(&self.ways).all(|(t, w)| t.ways == *w);
        if same {
            return;
        }
        self.cpus.clear();
        self.cpus.extend(tenants.iter().map(|t| t.cpus));
        self.ways.clear();
        self.ways.extend(tenants.iter().map(|t| t.ways));
        let n = self.platform.cpu.physical_cores as usize;
        let mut on = [0u64; CpuSet::CAPACITY as usize];
        for (i, t) in tenants.iter().enumerate() {
            for c in t.cpus.iter() {
                on[c as usize] |= 1 << i;
            }
        }
        self.cores.clear();
        self.any_sibling = false;
        for p in 0..n {
            let holders = [on[p], if self.platform.cpu.smt == 2 { on[p + n] } else { 0 }];
            self.any_sibling |= holders[0] != 0 && holders[1] != 0;
            match self.cores.iter_mut().rev().find(|c| c.holders == holders) {
                Some(c) => c.cores += 1.0,
                None => self.cores.push(CoreClass { holders, cores: 1.0, use_sum: [0.0; 2] }),
            }
        }
        let domains = self.domains();
        self.host_share.clear();
        self.host_share.extend(tenants.iter().map(|t| {
            let mean = |of: &[f64]| t.cpus.iter().map(|c| of[c as usize]).sum::<f64>() / f64::from(t.cpus.len());
            (mean(&self.host.core), mean(&self.host.hit))
        }));
        self.domain_share.clear();
        for t in tenants {
            let mut share = [0.0; MAX_DOMAINS];
            let all = f64::from(t.cpus.len());
            for (x, cpus) in share.iter_mut().zip(&self.domain_cpus) {
                *x = f64::from(t.cpus.intersection(*cpus).len()) / all;
            }
            self.domain_share.push(share);
        }
        self.way_classes.clear();
        self.ways_overlap = false;
        for d in 0..domains {
            let (mut any, mut present) = (0u32, 0u64);
            for (i, t) in tenants.iter().enumerate() {
                self.ways_overlap |= any & t.ways[d] != 0;
                any |= t.ways[d];
                present |= u64::from(self.domain_share[i][d] > 0.0) << i;
            }
            let first = self.way_classes.len();
            for w in 0..self.platform.llc.ways {
                let bits = tenants.iter().enumerate().fold(0u64, |b, (i, t)| b | (u64::from(t.ways[d] >> w & 1) << i));
                let holders = bits & present;
                if holders == 0 {
                    continue;
                }
                match self.way_classes[first..].iter_mut().rev().find(|c| c.holders == holders) {
                    Some(c) => c.mb += self.host.way_mb[w as usize],
                    None => self.way_classes.push(WayClass { domain: d, holders, mb: self.host.way_mb[w as usize] }),
                }
            }
        }
    }

    fn fill_rows(&mut self, tenants: &[Tenant], instant: Option<Instant>) {
        let p = &*self.platform;
        self.rows.clear();
        self.cap.resize(tenants.len(), [0.0; MAX_DOMAINS]);
        self.ins.resize(tenants.len(), [0.0; MAX_DOMAINS]);
        self.ins_before.resize(tenants.len(), [0.0; MAX_DOMAINS]);
        self.ins_gap.resize(tenants.len(), [[0.0; 2]; MAX_DOMAINS]);
        for (i, t) in tenants.iter().enumerate() {
            let prof = &*t.profile;
            let fault = faults(prof.paging.as_ref(), t);
            let (fz, fd) = fault;
            // us per 1000 instructions = ns per instruction.
            let compressed = fz * (p.os.decompress_us + p.os.reclaim_us);
            let cold = instant.map_or(0.0, |now| now.cold[i] * p.faults.cold_refs);
            let api = prof.cache.apki * l2_factor(p.cpu.l2_mb, prof.cache.l2_exp) / 1000.0 * (1.0 + cold);
            let (core, hit) = self.host_share[i];
            let n_cpus = f64::from(t.cpus.len());
            let reclaim = instant.map_or(0.0, |now| now.reclaim[i]);
            let k = f64::from(t.workers());
            let bit = 1u64 << i;
            let mut row = Row {
                k,
                n_cpus,
                core_cycles: prof.cpu.cpi_core * p.cpu.cpi_scale * core / (1.0 - (reclaim / n_cpus).min(0.9)),
                api,
                hit_ns: p.llc.hit_ns * prof.cache.llc_exposed * hit,
                llc_ns: p.llc.hit_ns * hit,
                inv_mlp: 1.0 / prof.cache.mlp,
                bytes_per_access: LINE_BYTES * (1.0 + prof.cache.writeback),
                mba_ns_per_byte: if t.mba < 1.0 { 1.0 / (t.mba * p.mem.core_bw_gbs) } else { 0.0 },
                contention: prof.cpu.contention,
                oversub: prof.cpu.oversub * (1.0 - n_cpus / f64::from(t.threads)).max(0.0),
                weight: prof.cpu.weight,
                fault,
                own_sibling: self.cores.iter().any(|c| c.holders[0] & c.holders[1] & bit != 0),
                shares_cpu: self.cores.iter().any(|c| c.holders.iter().any(|h| h & bit != 0 && h & !bit != 0)),
                a: 1.0,
                ..Row::default()
            };
            match &prof.kind {
                ProfileKind::Be { parallel } => {
                    row.be = true;
                    row.u = 1.0;
                    row.parallel = *parallel;
                    row.paging_ns = compressed + fd * (p.os.disk_us + p.os.reclaim_us);
                }
                ProfileKind::Lc(lc) => {
                    row.instr = lc.minstr_per_req * 1e6;
                    row.paging_s = (compressed + fd * p.os.reclaim_us) * 1e-6;
                    row.rate = t.rate_rps;
                    row.dispatch_cycles = lc.queue.dispatch_us * 1e-6 * p.cpu.cpi_scale * 2.8;
                    row.backlog_rate = instant.map_or(0.0, |now| now.backlog_s[i] * k / now.dt_s);
                }
            }
            self.rows.push(row);
        }
    }

    /// SPEC.md, section 4.3: the mean over domains, weighted with the tenant's CPUs there.
    fn fill_miss_ratios(&mut self, tenants: &[Tenant]) {
        let domains = self.domain_cpus.len();
        for (i, (r, t)) in self.rows.iter_mut().zip(tenants).enumerate() {
            r.miss = 0.0;
            for d in 0..domains {
                let share = self.domain_share[i][d];
                if share > 0.0 {
                    let usable = self.cap[i][d] * assoc(t.ways[d].count_ones().max(1));
                    r.miss += share * t.profile.cache.miss_ratio(usable, t.threads);
                }
            }
            // Shares of thirds may add up to more than 1.
            r.miss = r.miss.min(1.0);
        }
    }

    /// Use of every CPU class this round; active physical cores, idle ones counted as far as they are awake.
    fn active_cores(&mut self) -> f64 {
        for r in &mut self.rows {
            r.use_cpu = r.u * r.k / r.n_cpus;
        }
        let mut act = 0.0;
        for c in &mut self.cores {
            let mut idle = 1.0;
            for (sum, holders) in c.use_sum.iter_mut().zip(c.holders) {
                *sum = bits(holders).map(|i| self.rows[i].use_cpu).sum();
                idle *= 1.0 - sum.min(1.0);
            }
            act += c.cores * (1.0 - idle);
        }
        act + self.platform.cpu.idle_awake * (f64::from(self.platform.cpu.physical_cores) - act)
    }

    /// Everything of a round that does not depend on memory utilisation.
    fn prepare_round(&mut self, freq: f64) {
        let p = &*self.platform;
        let inv_f = 1.0 / freq;
        for i in 0..self.rows.len() {
            let mut smt = 1.0;
            if self.any_sibling {
                smt += (p.cpu.smt_slowdown - 1.0) * self.sibling_use(i);
            }
            if self.rows[i].shares_cpu {
                let (a, p_other) = self.processor_share(i);
                self.rows[i].a = a;
                self.rows[i].p_other = p_other;
            }
            let r = &mut self.rows[i];
            r.mem_slope = r.api * r.miss * r.inv_mlp;
            r.core_ns = r.core_cycles * smt * inv_f + r.api * (1.0 - r.miss) * r.hit_ns + r.mem_slope * r.llc_ns;
            r.bytes_per_instr = r.api * r.miss * r.bytes_per_access;
            r.roof4 = (r.bytes_per_instr * r.mba_ns_per_byte).powi(4);
            if r.be {
                r.be_inv_parallel = 1.0 / ((1.0 - r.parallel) + r.parallel / (r.k * r.a));
            } else {
                let inflate = (1.0 + r.contention * (r.u * r.k - 1.0).max(0.0)) * (1.0 + r.oversub * r.u.powi(4));
                r.service_scale = r.instr * 1e-9 * inflate;
                r.front_rate = r.rate.min(freq / r.dispatch_cycles);
            }
        }
    }

    /// How busy the sibling threads of tenant `i`'s CPUs are, on average.
    fn sibling_use(&self, i: usize) -> f64 {
        let r = &self.rows[i];
        let bit = 1u64 << i;
        // The OS spreads one service over idle cores before it uses both threads of one.
        let own = if r.own_sibling { r.use_cpu.powi(3) } else { 0.0 };
        let mut sum = 0.0;
        for c in &self.cores {
            for (mine, sibling) in [(0, 1), (1, 0)] {
                if c.holders[mine] & bit != 0 && c.holders[sibling] != 0 {
                    let here = c.holders[sibling] & bit != 0;
                    let others = if here { self.use_of_others(c.holders[sibling], i) } else { c.use_sum[sibling] };
                    sum += c.cores * (if here { own } else { 0.0 } + others).min(1.0);
                }
            }
        }
        sum / r.n_cpus
    }

    fn use_of_others(&self, holders: u64, i: usize) -> f64 {
        bits(holders & !(1 << i)).map(|j| self.rows[j].use_cpu).sum()
    }

    /// Generalised processor sharing, CPU by CPU: share of time that tenant `i` gets, and how often others are in its way.
    fn processor_share(&self, i: usize) -> (f64, f64) {
        let r = &self.rows[i];
        let bit = 1u64 << i;
        let (mut a, mut p_other) = (0.0, 0.0);
        for c in &self.cores {
            for holders in c.holders {
                if holders & bit == 0 {
                    continue;
                }
                let fair = r.weight / bits(holders).map(|j| self.rows[j].weight).sum::<f64>();
                let others = self.use_of_others(holders, i);
                a += c.cores * fair.max(1.0 - others);
                p_other += c.cores * (1.0 - fair).min(others);
            }
        }
        (a / r.n_cpus, p_other / r.n_cpus)
    }

    /// Demand for memory bandwidth at utilisation `u`, relative to what is usable, and its slope. Leaves service times and
    /// throughputs in the rows.
    fn demand(&mut self, u: f64) -> (f64, f64) {
        let mem = &self.platform.mem;
        let free = 1.0 - u;
        let lat = mem.idle_ns + mem.queue_ns * u * u / free;
        let lat_slope = mem.queue_ns * u * (2.0 - u) / (free * free);
        self.demand_at(lat, lat_slope)
    }

    /// [`Solver::demand`] at a memory latency of `lat` ns that rises by `lat_slope`.
    fn demand_at(&mut self, lat: f64, lat_slope: f64) -> (f64, f64) {
        let mem = &self.platform.mem;
        let (mut total, mut slope) = (0.0, 0.0);
        for r in &mut self.rows {
            let mut x = r.core_ns + r.mem_slope * lat;
            let mut dx = r.mem_slope * lat_slope;
            if r.roof4 > 0.0 {
                // Per-core roofline with a smooth maximum.
                let x2 = x * x;
                let smooth = (x2 * x2 + r.roof4).sqrt().sqrt();
                dx *= (x / smooth).powi(3);
                x = smooth;
            }
            if r.be {
                x += r.paging_ns;
                r.x = 1e9 / x * r.be_inv_parallel;
                r.bw = r.x * r.bytes_per_instr * 1e-9;
                slope -= r.bw / x * dx;
            } else {
                // Most tenants share no CPU, and divisions are what this loop waits for.
                let by_share = |work: f64| if r.a == 1.0 { work } else { work / r.a };
                r.service_s = by_share(r.service_scale * x + r.paging_s);
                let offered = r.front_rate + r.backlog_rate / r.service_s;
                let full = r.k / r.service_s;
                r.x = offered.min(full);
                let gbytes = r.instr * r.bytes_per_instr * 1e-9;
                r.bw = r.x * gbytes;
                let work = if offered < full { r.backlog_rate } else { r.k };
                slope -= by_share(gbytes * work / (r.service_s * r.service_s) * r.service_scale) * dx;
            }
            r.tau = x;
            total += r.bw;
        }
        let usable = mem.bw_gbs * mem.usable;
        (total / usable, slope / usable)
    }

    /// Wait in front of saturated memory, ns: what the latency has to rise beyond that at `U_MAX` for the demand to fit.
    ///
    /// The reference lets demand exceed the platform's bandwidth here; no profile that ships gets this far.
    fn saturated_wait_ns(&mut self) -> f64 {
        let at_wall = self.platform.mem_latency_ns(U_MAX);
        let (mut lo, mut hi) = (0.0, at_wall);
        // Demand falls to nothing as the latency grows.
        while self.demand_at(at_wall + hi, 0.0).0 > U_MAX && hi < 1e30 {
            lo = hi;
            hi *= 4.0;
        }
        for _ in 0..100 {
            let mid = 0.5 * (lo + hi);
            if mid <= lo || mid >= hi {
                break;
            }
            if self.demand_at(at_wall + mid, 0.0).0 > U_MAX {
                lo = mid;
            } else {
                hi = mid;
            }
        }
        self.demand_at(at_wall + hi, 0.0);
        hi
    }

    /// Root of demand(u) = u in [0, U_MAX] to `tolerance`: Newton inside a bracket (demand falls with u, so the root is unique).
    fn memory_utilisation(&mut self, start: f64, tolerance: f64) -> f64 {
        let (mut lo, mut hi) = (0.0, U_MAX);
        self.stalled_ns = 0.0;
        let mut tried_top = false;
        let mut u = start;
        for _ in 0..100 {
            let (demand, slope) = self.demand(u);
            let gap = demand - u;
            if gap > 0.0 {
                lo = u;
                if u >= U_MAX {
                    self.stalled_ns = self.saturated_wait_ns();
                    break;
                }
            } else {
                hi = u;
            }
            let step = gap / (1.0 - slope);
            if step.abs() < tolerance {
                break;
            }
            let mut next = u + step;
            if next >= hi {
                // The wall itself is tried once; after that it is a true bracket.
                next = if hi == U_MAX && !tried_top { U_MAX } else { 0.5 * (u + hi) };
                tried_top |= next == U_MAX;
            } else if next <= lo {
                next = 0.5 * (lo + u);
            }
            if next == u || hi - lo < 1e-15 {
                break;
            }
            u = next;
        }
        u
    }

    fn report(&mut self, tenants: &[Tenant], freq: f64) {
        let domains = self.domain_cpus.len();
        self.speeds.clear();
        for (i, (r, t)) in self.rows.iter().zip(tenants).enumerate() {
            let instr_per_s = if r.be { r.x } else { r.x * r.instr };
            let mut ins_gbs = [0.0; MAX_DOMAINS];
            for (d, x) in ins_gbs.iter_mut().enumerate().take(domains) {
                if t.ways[d] != 0 {
                    *x = r.bw.max(1e-6) * self.domain_share[i][d];
                }
            }
            self.speeds.push(Speed {
                service_s: r.service_s,
                workers: t.workers(),
                x: r.x,
                busy: r.u,
                freq_ghz: freq,
                ipc: 1.0 / (r.tau * freq),
                miss_ratio: r.miss,
                misses_per_s: instr_per_s * r.api * r.miss,
                mbl_gbs: r.bw,
                busy_cores: r.u * r.k,
                instr_per_s,
                share: r.a,
                p_other: r.p_other,
                fault: r.fault,
                cap_mb: self.cap[i],
                ins_gbs,
            });
        }
    }
}

/// Indices of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let i = word.trailing_zeros() as usize;
            word &= word - 1;
            i
        })
    })
}

/// A way of one tenant is its own; a way of several is divided in proportion to their insertion rates.
fn split_cache(classes: &[WayClass], ins: &[PerDomain], out: &mut [PerDomain]) {
    out.fill([0.0; MAX_DOMAINS]);
    for c in classes {
        let d = c.domain;
        if c.holders.is_power_of_two() {
            out[c.holders.trailing_zeros() as usize][d] += c.mb;
            continue;
        }
        let total: f64 = bits(c.holders).map(|i| ins[i][d]).sum();
        for i in bits(c.holders) {
            out[i][d] += c.mb * ins[i][d] / total;
        }
    }
}

/// L2 of another size filters another share of the accesses.
fn l2_factor(l2_mb: f64, exponent: f64) -> f64 {
    if l2_mb == 0.25 {
        1.0
    } else {
        (0.25 / l2_mb).powf(exponent)
    }
}

/// Compressed-swap faults and disk faults per request (LC) or per 1000 instructions (BE) under a memory limit.
pub(crate) fn faults(paging: Option<&Paging>, t: &Tenant) -> (f64, f64) {
    let (Some(m), Some(limit)) = (paging, t.mem_gb) else { return (0.0, 0.0) };
    if limit >= m.ws_gb {
        return (0.0, 0.0);
    }
    let (resident_gb, z) = m.split(limit, t.cms_gb);
    let resident = (resident_gb / m.ws_gb).min(1.0);
    let covered = (resident + m.compress_ratio * z / m.ws_gb).min(1.0);
    let outside = |x: f64| 1.0 - x.powf(m.page_skew);
    // How well the pool works as a second stage; without one, reclaim also evicts warm pages.
    let held = if resident < 1.0 { (2.0 * m.compress_ratio * z / (m.ws_gb * (1.0 - resident))).min(1.0) } else { 1.0 };
    let disk = held * outside(covered) + (1.0 - held) * m.lru_error * (1.0 - covered);
    (m.pages * (outside(resident) - outside(covered)).max(0.0), m.pages * disk)
}
