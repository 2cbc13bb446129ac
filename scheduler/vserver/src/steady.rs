//! Response times, samples and the steady case of a sweep (SPEC.md, section 6).

use crate::exact::Strike;
use crate::faults::{lognormal, Lasting};
use crate::math::{ident_hash, Draws};
use crate::memory::{memory_use, MemoryUse};
use crate::profile::{LcDemand, PlatformProfile};
use crate::queue::{exp_mix, fixed, wait_law, Compose, Moments, Part, Station, ABOVE};
use crate::speeds::{Solver, Speed};
use crate::tenant::Tenant;
use surefoot_server::window::LEAST_COMPLETED;

/// Length of a steady case unless said otherwise, seconds (SPEC.md, section 6).
pub const HORIZON_S: f64 = 120.0;
/// Expected requests per interval below which requests are looked at one by one.
pub const FEW_REQUESTS: f64 = 64.0;

/// Response times of one interval, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyMs {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
}

impl From<Part> for LatencyMs {
    fn from(p: Part) -> Self {
        LatencyMs { mean: p.mean * 1e3, p50: p.q[0] * 1e3, p95: p.q[1] * 1e3, p99: p.q[2] * 1e3 }
    }
}

/// What one tenant shows in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    pub ipc: f64,
    pub llc_misses_per_s: f64,
    pub mbl_mbps: f64,
    pub cpu_usage_cores: f64,
    pub virt_mem_mb: f64,
    pub res_mem_mb: f64,
    pub alloc_cores: f64,
    pub alloc_ways: f64,
    pub alloc_cache_mb: f64,
    pub core_freq_mhz: f64,
    /// Sums over the other tenants.
    pub nb_cores: f64,
    pub nb_cache_mb: f64,
    pub nb_mbl_mbps: f64,
    pub instr_per_s: f64,
    pub memory: MemoryUse,
    /// None for BE jobs and for an interval without completions.
    pub latency: Option<LatencyMs>,
    /// Requests completed per second; 0 for BE jobs.
    pub achieved_rps: f64,
    /// Requests offered per second, as a client counts them; 0 for BE jobs.
    pub offered_rps: f64,
    /// Share of the offered work that was lost (finite accumulation).
    pub lost_frac: f64,
    /// Requests that the latency is of: expected ones (steady, mean-field), or counted ones.
    pub count: f64,
    /// Whether the reading of the hardware's counters is missing: they are the model's own then, which nothing may be told of.
    pub missed: bool,
}

/// Front station (serial) and worker pool of an LC service.
pub(crate) fn stations(p: &PlatformProfile, t: &Tenant, lc: &LcDemand, r: &Speed) -> [Station; 2] {
    let q = &lc.queue;
    let dispatch_s = dispatch_s(p, lc, r.freq_ghz);
    let between = scv_between(t.rate_rps, dispatch_s, q.scv_arrival, q.dispatch_scv, r.service_s, r.workers, q.scv_service);
    let n = q.max_outstanding;
    let passed = if dispatch_s > 0.0 { t.rate_rps.min(1.0 / dispatch_s) } else { t.rate_rps };
    [
        Station::new(t.rate_rps, dispatch_s, 1, q.scv_arrival + q.dispatch_scv, n * dispatch_s),
        Station::new(passed, r.service_s, r.workers, between + q.scv_service, n * r.service_s / f64::from(r.workers)),
    ]
}

/// Times that the front station takes to forget its past within which it still smooths what passes it.
const SMOOTHED: f64 = 3.0;

/// Variability of what leaves the front station, as the workers see it.
///
/// From one request to the next the front station smooths what passes it. Over longer times it can hold nothing back, and workers near
/// saturation look far back: they see the arrivals' own variability, however busy the front station is (Suresh and Whitt, "The heavy-traffic
/// bottleneck phenomenon in open queueing networks", Operations Research Letters 1990).
fn scv_between(rate_rps: f64, front_s: f64, scv_arrival: f64, scv_front: f64, service_s: f64, workers: u32, scv_service: f64) -> f64 {
    let front_rho = (rate_rps * front_s).min(1.0);
    let smoothed = scv_arrival + front_rho.powi(2) * (scv_front - scv_arrival);
    let k = f64::from(workers);
    let (front, pool) = ((1.0 - front_rho).powi(2), (1.0 - rate_rps * service_s / k).max(0.0).powi(2));
    // Relaxation times, each without its divisor: none is infinite.
    let (front_tau, pool_tau) = (front_s * (scv_arrival + scv_front) * pool, service_s * (scv_arrival + scv_service) / k * front);
    let all = pool_tau + SMOOTHED * front_tau;
    if all > 0.0 {
        smoothed + (scv_arrival - smoothed) * pool_tau / all
    } else {
        smoothed
    }
}

/// Service time of the serial front station; it scales with core speed.
pub(crate) fn dispatch_s(p: &PlatformProfile, lc: &LcDemand, freq_ghz: f64) -> f64 {
    lc.queue.dispatch_us * 1e-6 * p.cpu.cpi_scale * 2.8 / freq_ghz
}

/// Parts of the response time other than waiting.
pub(crate) fn extras(p: &PlatformProfile, lc: &LcDemand, r: &Speed) -> Compose {
    let q = &lc.queue;
    let mut sum = Compose::default();
    sum.add(&Part { mean: r.service_s, q: q.service_factors.map(|f| r.service_s * f) });
    sum.add(&fixed(q.net_us * 1e-6 + dispatch_s(p, lc, r.freq_ghz)));
    for strike in strikes(p, lc, r).iter().filter(|s| s.p > 0.0) {
        sum.add(&exp_mix(strike.p, strike.mean_s));
    }
    sum
}

/// Delays that strike some requests: files, another's timeslice, reclaim, the disk.
pub(crate) fn strikes(p: &PlatformProfile, lc: &LcDemand, r: &Speed) -> [Strike; 4] {
    let q = &lc.queue;
    let (fz, fd) = r.fault;
    // A reclaim thread holds one of the k cores for a burst.
    let reclaimed = r.x * (fz + fd) * p.os.reclaim_us * 1e-6 / f64::from(r.workers);
    [
        Strike { p: q.io_prob, mean_s: q.io_ms * 1e-3 * p.os.disk_scale },
        Strike { p: r.p_other * (1.0 - p.os.wake_preempt), mean_s: p.os.timeslice_ms * 1e-3 },
        Strike { p: reclaimed, mean_s: p.os.reclaim_burst_us * 1e-6 },
        Strike { p: fd, mean_s: p.os.disk_us * 1e-6 / (1.0 - (r.x * fd / p.os.disk_iops).min(0.98)) },
    ]
}

/// A sample from speeds (or their averages over a tick) and a latency.
pub(crate) fn sample(p: &PlatformProfile, t: &Tenant, r: &Speed, latency: Option<LatencyMs>, lost: f64, queued: f64) -> Sample {
    let m = &t.profile.memory;
    let threads = f64::from(t.threads);
    let virt = m.virt_mb + m.virt_mb_thread * threads;
    let footprint = virt.min(m.res_mb + m.res_mb_thread * threads + m.res_mb_queued * queued);
    let mut res = footprint;
    if let Some(limit) = t.mem_gb {
        res = res.min(limit * 1024.0);
    }
    let domains = p.llc.domains;
    let ways = f64::from(t.ways[..domains as usize].iter().map(|w| w.count_ones()).sum::<u32>()) / f64::from(domains);
    Sample {
        ipc: r.ipc,
        llc_misses_per_s: r.misses_per_s,
        mbl_mbps: r.mbl_gbs * 1e3,
        cpu_usage_cores: r.busy_cores,
        virt_mem_mb: virt,
        res_mem_mb: res,
        alloc_cores: f64::from(t.cpus.len()),
        alloc_ways: ways,
        alloc_cache_mb: ways * p.llc.mb_per_way,
        core_freq_mhz: r.freq_ghz * 1e3,
        nb_cores: 0.0,
        nb_cache_mb: 0.0,
        nb_mbl_mbps: 0.0,
        instr_per_s: r.instr_per_s,
        memory: memory_use(p, t, r, footprint),
        latency,
        achieved_rps: if t.profile.is_be() { 0.0 } else { r.x },
        offered_rps: if t.profile.is_be() { 0.0 } else { t.rate_rps },
        lost_frac: lost,
        count: 0.0,
        missed: false,
    }
}

/// Neighbours' features are sums over the other tenants.
pub(crate) fn fill_neighbours(all: &mut [Sample]) {
    for i in 0..all.len() {
        let (mut cores, mut cache, mut mbl) = (0.0, 0.0, 0.0);
        for (j, s) in all.iter().enumerate() {
            if i != j {
                cores += s.alloc_cores;
                cache += s.alloc_cache_mb;
                mbl += s.mbl_mbps;
            }
        }
        (all[i].nb_cores, all[i].nb_cache_mb, all[i].nb_mbl_mbps) = (cores, cache, mbl);
    }
}

/// Steady cases on one platform: a [`Solver`] and a buffer. Give each thread its own.
#[derive(Clone, Debug)]
pub struct Steady {
    pub solver: Solver,
    samples: Vec<Sample>,
}

impl Steady {
    pub fn new(platform: std::sync::Arc<PlatformProfile>) -> Self {
        Steady::on_host(platform, None)
    }

    /// On the machine of that seed ([`Solver::on_host`]).
    pub fn on_host(platform: std::sync::Arc<PlatformProfile>, host_seed: Option<u64>) -> Self {
        Steady { solver: Solver::on_host(platform, host_seed), samples: vec![] }
    }

    /// A sweep case: start empty with warm caches, run `horizon_s`, report what the last instant shows of every tenant.
    ///
    /// Tenants must have passed [`crate::check_tenants`]. `count` is per second.
    pub fn case(&mut self, tenants: &[Tenant], horizon_s: f64) -> &[Sample] {
        self.case_for(tenants, horizon_s, tenants.len())
    }

    /// As [`Steady::case`], with latencies for the first `with_latency` tenants only (percentiles cost about as much as speeds).
    pub fn case_for(&mut self, tenants: &[Tenant], horizon_s: f64, with_latency: usize) -> &[Sample] {
        self.solver.solve(tenants, None);
        let p = &self.solver.platform;
        self.samples.clear();
        for (i, (t, r)) in tenants.iter().zip(self.solver.speeds()).enumerate() {
            let (mut latency, mut lost, mut queued) = (None, 0.0f64, 0.0);
            if let Some(lc) = t.profile.lc().filter(|_| i < with_latency) {
                let mut sum = extras(p, lc, r);
                for st in stations(p, t, lc, r) {
                    let (at, law, l) = st.advance(Moments::default(), horizon_s);
                    sum.add(&wait_law(at, law, ABOVE));
                    lost = lost.max(l);
                    if at.m > 0.0 {
                        queued += law.waits * at.m * f64::from(st.servers) / st.service_s;
                    }
                }
                latency = Some(sum.total().into());
            }
            let mut s = sample(p, t, r, latency, lost, queued);
            s.count = s.achieved_rps;
            self.samples.push(s);
        }
        fill_neighbours(&mut self.samples);
        &self.samples
    }
}

/// Readings of a steady case.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    pub samples: u32,
    /// Length of one reading, seconds.
    pub interval_s: f64,
    pub seed: u64,
}

/// `series.samples` readings of `interval_s` each of one tenant at the end of a steady case, as a monitor would take them;
/// `steady` is what [`Steady::case`] says of it.
///
/// Every reading is the steady sample with measurement noise: counters lognormal with the platform's `[noise]`,
/// percentiles with the sampling error of an empirical quantile of the interval's requests (as in the closed loop). With
/// fewer than [`FEW_REQUESTS`] expected requests, a Poisson number of them is drawn from the steady law and percentiles
/// are by nearest rank; a reading without completions has no latency. Neighbours' bandwidth gets noise of its own.
///
/// `ident` must name the case and the tenant in it (e.g. the case id): random numbers depend on (seed, `ident`, reading)
/// only, never on threads or order. Nothing is allocated but what `out`
/// grows by.
pub fn sample_series(p: &PlatformProfile, steady: &Sample, ident: &str, series: &Series, out: &mut Vec<Sample>) {
    let key = ident_hash(ident);
    let expected = steady.achieved_rps * series.interval_s;
    let lasting = Lasting::new(&p.faults, series.seed, key);
    let (ipc, misses) = (p.faults.of_turns(p.noise.ipc), p.faults.of_turns(p.noise.misses));
    // What readings have in common is worked out once.
    let errors_ms = steady.latency.filter(|_| expected >= FEW_REQUESTS).map(|law| quantile_errors_ms(law, expected));
    for j in 0..u64::from(series.samples) {
        let draws = Draws::new(&[series.seed, key, j]);
        let mut s = *steady;
        s.ipc *= lasting.ipc * lognormal(ipc, draws.gauss(100));
        s.llc_misses_per_s *= lasting.misses * lognormal(misses, draws.gauss(101));
        s.mbl_mbps *= lasting.mbl * lognormal(p.noise.mbl, draws.gauss(102));
        s.cpu_usage_cores = (s.cpu_usage_cores * lognormal(p.noise.cpu, draws.gauss(103))).min(s.alloc_cores);
        s.core_freq_mhz *= lasting.freq * lognormal(p.noise.freq, draws.gauss(104));
        s.virt_mem_mb *= lasting.data;
        s.res_mem_mb *= lasting.data;
        s.nb_mbl_mbps *= lognormal(p.noise.mbl, draws.gauss(105));
        match (steady.latency, errors_ms) {
            (None, _) => {}
            (Some(law), Some(errors_ms)) => {
                s.count = expected;
                s.latency = Some(scattered(law, errors_ms, |i| draws.gauss(110 + i)));
            }
            (Some(law), None) => few_requests(&mut s, &law, expected, series.interval_s, draws),
        }
        out.push(s);
    }
}

/// A reading of few requests: each is drawn.
fn few_requests(s: &mut Sample, law: &LatencyMs, expected: f64, interval_s: f64, draws: Draws) {
    let mut few = [0.0; MOST_DRAWN];
    let n = poisson(expected, draws.uniform(200)).min(MOST_DRAWN);
    for (i, x) in few[..n].iter_mut().enumerate() {
        *x = quantile_of(law, draws.uniform(201 + i as u64));
    }
    s.count = n as f64;
    s.achieved_rps = n as f64 / interval_s;
    s.latency = nearest_rank(&mut few[..n]);
}

/// Beyond any plausible draw of a Poisson law of mean below [`FEW_REQUESTS`].
const MOST_DRAWN: usize = 160;

/// Sampling error of empirical percentiles of `count` requests with an exponential upper tail, at most 30 %, sorted again.
pub(crate) fn quantile_noise(l: LatencyMs, count: f64, z: impl Fn(u64) -> f64) -> LatencyMs {
    scattered(l, quantile_errors_ms(l, count), z)
}

/// Standard errors of p50, p95 and p99.
fn quantile_errors_ms(l: LatencyMs, count: f64) -> [f64; 3] {
    let tail = ((l.p99 - l.p95) / 5f64.ln()).max(0.0);
    let q = crate::math::QUANTILES;
    let x = [l.p50, l.p95, l.p99];
    std::array::from_fn(|i| (tail * (q[i] / ((1.0 - q[i]) * count.max(1.0))).sqrt()).min(0.3 * x[i]))
}

fn scattered(l: LatencyMs, errors_ms: [f64; 3], z: impl Fn(u64) -> f64) -> LatencyMs {
    let x = [l.p50, l.p95, l.p99];
    let mut q: [f64; 3] = std::array::from_fn(|i| (0.2 * x[i]).max(x[i] + errors_ms[i] * z(i as u64)));
    q.sort_by(f64::total_cmp);
    LatencyMs { mean: l.mean, p50: q[0], p95: q[1], p99: q[2] }
}

/// Requests below which sorting them is cheaper than searching for ranks.
const FEW_TO_SORT: usize = 4096;

/// Mean and percentiles by nearest rank; sorts. None without requests.
pub(crate) fn nearest_rank(ms: &mut [f64]) -> Option<LatencyMs> {
    let n = ms.len();
    if n == 0 {
        return None;
    }
    ms.sort_by(f64::total_cmp);
    let at = |q: f64| ms[((q * n as f64).ceil() as usize - 1).min(n - 1)];
    Some(LatencyMs { mean: ms.iter().sum::<f64>() / n as f64, p50: at(0.5), p95: at(0.95), p99: at(0.99) })
}

/// [`nearest_rank`] of several lists taken together, each of them sorted and of times that are not negative.
///
/// A window of a second holds ten of 100 ms, and is asked for ten times a second: each request is sorted once, not eleven times.
pub(crate) fn nearest_rank_of(lists: &[&[f64]]) -> Option<LatencyMs> {
    let n: usize = lists.iter().map(|ms| ms.len()).sum();
    if n < FEW_TO_SORT {
        return nearest_rank(&mut lists.concat());
    }
    // Of numbers that are not negative the order is that of their bits.
    let up_to = |bits: u64| lists.iter().map(|ms| ms.partition_point(|x| x.to_bits() <= bits)).sum::<usize>();
    let most = lists.iter().filter_map(|ms| ms.last()).fold(0, |most, x| x.to_bits().max(most));
    let at = |q: f64| {
        let rank = (q * n as f64).ceil() as usize;
        let (mut lo, mut hi) = (0, most);
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if up_to(mid) >= rank {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        f64::from_bits(lo)
    };
    let sum: f64 = lists.iter().map(|ms| ms.iter().sum::<f64>()).sum();
    Some(LatencyMs { mean: sum / n as f64, p50: at(0.5), p95: at(0.95), p99: at(0.99) })
}

/// Quantile of the law that three percentiles stand for: linear in -ln(1 - q) between them and beyond the last, so that
/// upper tails are exponential.
fn quantile_of(l: &LatencyMs, u: f64) -> f64 {
    let (e50, e95, e99) = (2f64.ln(), 20f64.ln(), 100f64.ln());
    let e = -(1.0 - u).ln();
    if e < e50 {
        let slope = (l.p95 - l.p50) / (e95 - e50);
        let least = (l.p50 - slope * e50).max(0.2 * l.p50);
        return least + (l.p50 - least) * e / e50;
    }
    if e < e95 {
        return l.p50 + (l.p95 - l.p50) * (e - e50) / (e95 - e50);
    }
    l.p95 + (l.p99 - l.p95) * (e - e95) / (e99 - e95)
}

/// Poisson number by inversion.
fn poisson(mean: f64, u: f64) -> usize {
    let (mut p, mut n) = ((-mean).exp(), 0);
    let mut sum = p;
    while u > sum && n < MOST_DRAWN {
        n += 1;
        p *= mean / n as f64;
        sum += p;
    }
    n
}

/// Instructions/s of a BE job alone on the whole server, one thread per CPU.
pub fn alone_instr_per_s(platform: &std::sync::Arc<PlatformProfile>, job: &std::sync::Arc<crate::profile::Profile>) -> f64 {
    let full = surefoot_server::allocation::full_mask(platform.llc.ways);
    let tenant = [Tenant::new(job.clone(), 0.0, platform.logical_cpus(), platform.all_cpus(), full)];
    Steady::new(platform.clone()).case(&tenant, HORIZON_S)[0].instr_per_s
}

/// RPS at load 1: listed in the profile for this platform, else computed by [`max_load_rps`]. None for BE jobs.
pub fn rps_at_full_load(platform: &std::sync::Arc<PlatformProfile>, profile: &std::sync::Arc<crate::profile::Profile>) -> Option<f64> {
    profile.lc()?.max_load_rps.get(&platform.name).copied().or_else(|| max_load_rps(platform, profile))
}

/// Highest RPS at which a service alone on all resources, one thread per CPU, meets its QoS target in a steady case.
///
/// A rate of which more than 1 in 100 requests is lost is too high, whatever p99 says: what is refused never waits.
///
/// For platforms that a profile's `[max_load_rps]` does not list. None if it misses its target at any load.
pub fn max_load_rps(platform: &std::sync::Arc<PlatformProfile>, profile: &std::sync::Arc<crate::profile::Profile>) -> Option<f64> {
    let lc = profile.lc()?;
    let n = platform.logical_cpus();
    let full = surefoot_server::allocation::full_mask(platform.llc.ways);
    let mut tenant = [Tenant::new(profile.clone(), 0.0, n, platform.all_cpus(), full)];
    let mut cases = Steady::new(platform.clone());
    let mut meets = |rps: f64| {
        tenant[0].rate_rps = rps;
        let s = cases.case(&tenant, HORIZON_S)[0];
        s.lost_frac <= 1.0 - LEAST_COMPLETED && s.latency.is_some_and(|l| l.p99 <= lc.qos_target_ms)
    };
    let (mut lo, mut hi) = (0.0, 1.0);
    while meets(hi) {
        lo = hi;
        hi *= 2.0;
        if hi > 1e12 {
            return Some(lo);
        }
    }
    for _ in 0..40 {
        let mid = 0.5 * (lo + hi);
        if meets(mid) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    (lo > 0.0).then_some(lo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::uniform;

    /// Of lists that are sorted each, percentiles are those of all values in one: with few and many, equal ones, empty lists, none.
    #[test]
    fn lists_together_have_the_percentiles_of_all_their_values() {
        for (lists, each) in [(1, 1), (3, 5), (10, 700), (7, 2000), (2, 0)] {
            let list = |l: u64| {
                let mut ms: Vec<f64> = (0..each + l % 2).map(|i| (uniform(&[l, i]) * 50.0).floor() * (l % 3) as f64).collect();
                ms.sort_by(f64::total_cmp);
                ms
            };
            let lists: Vec<Vec<f64>> = (0..lists).map(list).chain([vec![]]).collect();
            let lists: Vec<&[f64]> = lists.iter().map(Vec::as_slice).collect();
            let (Some(got), Some(all)) = (nearest_rank_of(&lists), nearest_rank(&mut lists.concat())) else {
                panic!("no percentiles of {} lists", lists.len())
            };
            assert_eq!((got.p50, got.p95, got.p99), (all.p50, all.p95, all.p99));
            assert!((got.mean / all.mean.max(1e-12) - 1.0).abs() < 1e-12 || all.mean == 0.0, "{got:?} {all:?}");
        }
        assert_eq!(nearest_rank_of(&[]), None);
        assert_eq!(nearest_rank_of(&[&[], &[]]), None);
    }
}
