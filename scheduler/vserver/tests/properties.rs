//! What must hold for any tenants on any platform: shipped profiles, and any that the reader accepts.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::fuzz::{self, Wish};
use common::profiles;
use proptest::prelude::*;
use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::{
    check_tenants, rps_at_full_load, Change, Plant, PlatformProfile, Profile, Sample, Speed, Steady, Tenant, HORIZON_S,
};

/// A fixed seed: the same cases in every run.
fn config(cases: u32) -> ProptestConfig {
    let max_global_rejects = 100 * cases;
    ProptestConfig {
        cases,
        max_global_rejects,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    }
}

/// Above `b` by more than rounding.
fn exceeds(a: f64, b: f64) -> bool {
    a > b * (1.0 + 1e-9) + 1e-9
}

/// What holds for the reading of any tenant in any interval.
fn sound(s: &Sample, t: &Tenant, p: &PlatformProfile) -> Result<(), TestCaseError> {
    let l = s.latency.unwrap_or_default();
    for (name, x) in [
        ("ipc", s.ipc),
        ("misses", s.llc_misses_per_s),
        ("mbl", s.mbl_mbps),
        ("cpu", s.cpu_usage_cores),
        ("virt", s.virt_mem_mb),
        ("res", s.res_mem_mb),
        ("ways", s.alloc_ways),
        ("cache", s.alloc_cache_mb),
        ("freq", s.core_freq_mhz),
        ("nb_cores", s.nb_cores),
        ("nb_cache", s.nb_cache_mb),
        ("nb_mbl", s.nb_mbl_mbps),
        ("instr", s.instr_per_s),
        ("mean", l.mean),
        ("p50", l.p50),
        ("p95", l.p95),
        ("p99", l.p99),
        ("achieved", s.achieved_rps),
        ("lost", s.lost_frac),
        ("count", s.count),
    ] {
        prop_assert!(x.is_finite() && x >= 0.0, "{name} = {x} of {}", t.profile.name);
    }
    prop_assert!(l.p50 <= l.p95 && l.p95 <= l.p99, "{l:?}");
    prop_assert!(s.lost_frac <= 1.0);
    prop_assert!(!exceeds(s.cpu_usage_cores, f64::from(t.cpus.len())), "{} of {} CPUs busy", s.cpu_usage_cores, t.cpus.len());
    prop_assert!(s.ipc > 0.0 && s.core_freq_mhz > 0.0);
    prop_assert!(s.res_mem_mb <= s.virt_mem_mb && t.mem_gb.is_none_or(|gb| s.res_mem_mb <= gb * 1024.0));
    prop_assert!(!exceeds(s.mbl_mbps, p.mem.bw_gbs * 1e3), "{} MB/s of {}", s.mbl_mbps, p.mem.bw_gbs * 1e3);
    if t.profile.is_be() {
        prop_assert!(s.latency.is_none() && s.achieved_rps == 0.0 && s.count == 0.0);
    }
    Ok(())
}

/// What holds for the speeds of all tenants at one instant: nothing is used that is not there.
fn conserved(speeds: &[Speed], tenants: &[Tenant], p: &PlatformProfile) -> Result<(), TestCaseError> {
    let bandwidth: f64 = speeds.iter().map(|r| r.mbl_gbs).sum();
    prop_assert!(!exceeds(bandwidth, p.mem.bw_gbs * p.mem.usable), "{bandwidth} GB/s of {}", p.mem.bw_gbs * p.mem.usable);
    for (r, t) in speeds.iter().zip(tenants) {
        prop_assert!((0.0..=1.0).contains(&r.miss_ratio), "miss ratio {}", r.miss_ratio);
        prop_assert!((0.0..=1.0).contains(&r.p_other), "p_other {}", r.p_other);
        prop_assert!(r.share > 0.0 && r.share <= 1.0 + 1e-9, "share {}", r.share);
        let turbo = &p.cpu.turbo_ghz;
        prop_assert!(!exceeds(r.freq_ghz, turbo[0]) && !exceeds(turbo[turbo.len() - 1], r.freq_ghz), "{} GHz", r.freq_ghz);
        prop_assert!(!exceeds(r.busy_cores, f64::from(t.workers())));
        if !t.profile.is_be() {
            // k workers complete at most k requests per service time.
            prop_assert!(!exceeds(r.x * r.service_s, f64::from(t.workers())));
        }
    }
    Ok(())
}

/// Cache of all tenants against the size of each L3 domain.
fn cache_fits<'a>(held: impl Iterator<Item = &'a [f64; 16]>, p: &PlatformProfile) -> Result<(), TestCaseError> {
    let mut sum = [0.0; 16];
    for mb in held {
        prop_assert!(mb.iter().all(|x| x.is_finite() && *x >= 0.0), "{mb:?}");
        sum.iter_mut().zip(mb).for_each(|(s, x)| *s += x);
    }
    let size = f64::from(p.llc.ways) * p.llc.mb_per_way;
    prop_assert!(sum.iter().all(|s| !exceeds(*s, size)), "{sum:?} of {size} MB held");
    prop_assert!(sum[p.llc.domains as usize..].iter().all(|s| *s == 0.0));
    Ok(())
}

fn steady_is_sound(p: &Arc<PlatformProfile>, wishes: &[Wish]) -> Result<f64, TestCaseError> {
    let tenants: Vec<Tenant> = wishes.iter().map(|w| w.on(p)).collect();
    prop_assert_eq!(check_tenants(p, &tenants), Ok(()));
    let mut steady = Steady::new(p.clone());
    let samples = steady.case(&tenants, HORIZON_S).to_vec();
    for (s, t) in samples.iter().zip(&tenants) {
        sound(s, t, p)?;
        prop_assert!(!exceeds(s.achieved_rps, t.rate_rps) || t.profile.is_be());
        prop_assert_eq!(s.count, s.achieved_rps);
    }
    conserved(steady.solver.speeds(), &tenants, p)?;
    cache_fits(steady.solver.speeds().iter().map(|r| &r.cap_mb), p)?;
    let shared = *steady.solver.shared();
    prop_assert!((0.0..=0.995).contains(&shared.mem_util) && shared.mem_ns.is_finite());
    // Nothing depends on what the solver did before.
    steady.case(&tenants[..1], HORIZON_S);
    prop_assert_eq!(&samples[..], steady.case(&tenants, HORIZON_S));
    Ok(shared.residual)
}

proptest! {
    #![proptest_config(config(2500))]

    /// Shipped profiles, loads 0 to 10x, any overlap of CPUs and ways: every number is finite, none negative, percentiles in
    /// order, CPUs, cache and bandwidth within what there is, and the speeds are a fixed point.
    #[test]
    fn steady_cases_are_sound(p in fuzz::shipped_platform(), wishes in proptest::collection::vec(fuzz::wish_of(fuzz::shipped_profile()), 1..6)) {
        let residual = steady_is_sound(&p, &wishes)?;
        prop_assert!(residual < 1e-5, "{residual} from the fixed point");
    }

    /// So for any profile that the reader accepts, extremes included.
    #[test]
    fn steady_cases_of_any_profiles_are_sound(p in fuzz::platform(), wishes in proptest::collection::vec(fuzz::wish(), 1..6)) {
        steady_is_sound(&p, &wishes)?;
    }
}

/// What may happen to a plant between two ticks.
#[derive(Clone, Debug)]
enum Event {
    Change {
        who: usize,
        what: u8,
        to: Wish,
    },
    /// A change that no tenant can have.
    Impossible {
        who: usize,
        what: u8,
    },
    Arrive {
        wish: Wish,
        warm: bool,
    },
    Leave {
        who: usize,
    },
    TickLength {
        ms: u32,
    },
    Nothing,
}

fn event(wish: impl Strategy<Value = Wish> + Clone) -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => Just(Event::Nothing),
        6 => (0..8usize, 0..6u8, wish.clone()).prop_map(|(who, what, to)| Event::Change { who, what, to }),
        1 => (0..8usize, 0..11u8).prop_map(|(who, what)| Event::Impossible { who, what }),
        1 => (wish, any::<bool>()).prop_map(|(wish, warm)| Event::Arrive { wish, warm }),
        1 => (0..8usize).prop_map(|who| Event::Leave { who }),
        1 => prop_oneof![Just(1), 10..300u32, Just(5000)].prop_map(|ms| Event::TickLength { ms }),
    ]
}

fn impossible(what: u8, p: &PlatformProfile) -> Change {
    let beyond = p.logical_cpus();
    let mut ways = [0; 16];
    match what {
        0 => Change::Cpus(CpuSet::empty()),
        1 => Change::Cpus(CpuSet::range(beyond - 1, beyond + 1)),
        2 if p.llc.ways < 32 => {
            ways[p.llc.domains as usize - 1] = 1 << p.llc.ways;
            Change::Ways(ways)
        }
        2 | 3 => Change::Mba(f64::NAN),
        4 => Change::Mba(if p.mem.mba { 0.0 } else { 0.5 }),
        5 => Change::MemGb(Some(0.0)),
        6 => Change::MemGb(Some(f64::INFINITY)),
        7 => Change::CmsGb(-1.0),
        8 => Change::CmsGb(f64::NAN),
        9 => Change::RateRps(-1.0),
        _ => Change::RateRps(2e10),
    }
}

struct Loop {
    plant: Plant,
    names: Vec<String>,
    born: usize,
    /// By then every change so far is in force.
    changes_until_s: f64,
}

impl Loop {
    fn arrive(&mut self, wish: &Wish, warm: bool) {
        let p = self.plant.platform().clone();
        let name = format!("t{}", self.born);
        self.plant.add(&name, wish.on(&p), warm).unwrap();
        self.names.push(name);
        self.born += 1;
    }

    fn happen(&mut self, e: &Event) -> Result<(), TestCaseError> {
        let p = self.plant.platform().clone();
        match e {
            Event::Arrive { wish, warm } => self.arrive(wish, *warm),
            Event::TickLength { ms } => self.plant.set_tick_s(f64::from(*ms) * 1e-3),
            Event::Nothing => {}
            _ if self.names.is_empty() => {}
            Event::Leave { who } => {
                let name = self.names.remove(who % self.names.len());
                prop_assert!(self.plant.remove(&name) && !self.plant.remove(&name));
            }
            Event::Change { who, what, to } => {
                let t = to.on(&p);
                let name = &self.names[who % self.names.len()];
                let change = match what {
                    0 => Change::Cpus(t.cpus),
                    1 => Change::Ways(t.ways),
                    2 => Change::Mba(t.mba),
                    3 => Change::MemGb(t.mem_gb),
                    4 => Change::CmsGb(t.cms_gb),
                    _ => Change::RateRps(t.rate_rps),
                };
                prop_assert_eq!(self.plant.change(name, change), Ok(()));
                let e = &p.enforce;
                let longest_ms = [e.cpus_ms, e.ways_ms, e.mba_ms, e.mem_gb_ms, e.cms_gb_ms, e.rate_ms].into_iter().fold(0.0, f64::max);
                self.changes_until_s = self.plant.now_s() + 1e-3 * longest_ms;
            }
            Event::Impossible { who, what } => {
                let name = &self.names[who % self.names.len()];
                let i = self.plant.position(name).unwrap();
                let change = impossible(*what, &p);
                if matches!(change, Change::RateRps(_)) && self.plant.tenants()[i].profile.is_be() {
                    return Ok(());
                }
                let before = format!("{:?}", self.plant);
                prop_assert!(self.plant.change(name, change).is_err());
                prop_assert_eq!(before, format!("{:?}", self.plant));
            }
        }
        Ok(())
    }

    fn tick(&mut self, seeded: bool) -> Result<(), TestCaseError> {
        let dt = self.plant.tick_s();
        let waiting_s: Vec<f64> = (0..self.names.len()).map(|i| self.plant.backlog_s(i)[1]).collect();
        let start = self.plant.now_s();
        let samples = self.plant.step().to_vec();
        let p = self.plant.platform().clone();
        prop_assert!(self.plant.now_s() > start);
        prop_assert_eq!(samples.len(), self.names.len());
        for (i, (s, t)) in samples.iter().zip(self.plant.tenants()).enumerate() {
            sound(s, t, &p)?;
            prop_assert!(self.plant.backlog_s(i).iter().all(|x| x.is_finite() && *x >= 0.0));
            if t.profile.is_be() {
                continue;
            }
            if let Some(list) = self.plant.requests_ms(i) {
                prop_assert!(seeded && s.count == list.len() as f64 && s.latency.is_none() == list.is_empty());
                prop_assert!(list.iter().all(|x| x.is_finite() && *x >= 0.0));
            } else {
                prop_assert!(s.latency.is_some() && (s.count - s.achieved_rps * dt).abs() <= 1e-9 * s.count);
                prop_assert!(!seeded || s.count.fract() == 0.0, "{} requests", s.count);
            }
            // Offered, and what waited when the tick began. Where no change came into force, the model's service time tells how
            // many requests that is.
            let r = self.plant.speeds()[i];
            if start > self.changes_until_s {
                let drained = waiting_s[i] * f64::from(r.workers) / (r.service_s * dt);
                // Counts are drawn, of completions as of arrivals: their ratio is the law's.
                let achieved = if s.offered_rps > 0.0 { s.achieved_rps * t.rate_rps / s.offered_rps } else { s.achieved_rps };
                prop_assert!(!exceeds(achieved, t.rate_rps + drained), "{achieved} of {} + {drained}", t.rate_rps);
            }
        }
        if !samples.is_empty() {
            conserved(self.plant.speeds(), self.plant.tenants(), &p)?;
        }
        if !seeded {
            let mbps: f64 = samples.iter().map(|s| s.mbl_mbps).sum();
            prop_assert!(!exceeds(mbps, p.mem.bw_gbs * p.mem.usable * 1e3));
        }
        cache_fits((0..samples.len()).map(|i| self.plant.cache_mb(i)), &p)
    }
}

fn closed_loop_is_sound(p: &Arc<PlatformProfile>, seed: Option<u64>, wishes: &[Wish], events: &[Event]) -> Result<(), TestCaseError> {
    let mut all = Loop { plant: Plant::new(p.clone(), seed, 0.1), names: vec![], born: 0, changes_until_s: -1.0 };
    for (i, w) in wishes.iter().enumerate() {
        all.arrive(w, i % 2 == 0);
    }
    for e in events {
        all.happen(e)?;
        all.tick(seed.is_some())?;
    }
    // What is under way settles.
    (0..4).try_for_each(|_| all.tick(seed.is_some()))
}

proptest! {
    #![proptest_config(config(1000))]

    /// Shipped profiles in closed loop, with a seed and without, any sequence of changes, arrivals and leaves: every tick is
    /// sound, nothing is used that is not there, and an impossible change changes nothing.
    #[test]
    fn closed_loops_are_sound(
        p in fuzz::shipped_platform(),
        seed in proptest::option::of(0..1000u64),
        wishes in proptest::collection::vec(fuzz::wish_of(fuzz::shipped_profile()), 0..5),
        events in proptest::collection::vec(event(fuzz::wish_of(fuzz::shipped_profile()).boxed()), 0..16),
    ) {
        closed_loop_is_sound(&p, seed, &wishes, &events)?;
    }

    /// So for any profile that the reader accepts, extremes included.
    #[test]
    fn closed_loops_of_any_profiles_are_sound(
        p in fuzz::platform(),
        seed in proptest::option::of(0..1000u64),
        wishes in proptest::collection::vec(fuzz::wish(), 0..5),
        events in proptest::collection::vec(event(fuzz::wish().boxed()), 0..16),
    ) {
        closed_loop_is_sound(&p, seed, &wishes, &events)?;
    }
}

const LOADS: [f64; 11] = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3, 10.0];

/// A service alone on the first `cores` CPUs: its p99, and what the model says of its workers.
fn alone(steady: &mut Steady, profile: &Arc<Profile>, rate_rps: f64, threads: u32, cores: u32, ways: u32) -> (f64, Speed) {
    let mask = surefoot_server::allocation::full_mask(ways);
    let s = steady.case(&[Tenant::new(profile.clone(), rate_rps, threads, CpuSet::range(0, cores), mask)], HORIZON_S)[0];
    (s.latency.unwrap().p99, steady.solver.speeds()[0])
}

/// Every shipped service on every shipped platform, from a tenth to ten times its maximum load: one more way never raises p99 (the
/// specification allows 2 %; it comes out exact but for rounding).
#[test]
fn more_ways_never_hurt() {
    let mut cases = 0;
    for p in profiles().platforms.values() {
        let mut steady = Steady::new(p.clone());
        for profile in profiles().services.values().filter(|s| !s.is_be()) {
            let full = rps_at_full_load(p, profile).unwrap();
            for (load, threads) in LOADS.iter().flat_map(|l| [(l, 8), (l, p.logical_cpus())]) {
                for cores in (1..=p.logical_cpus()).step_by(3) {
                    let mut last = f64::INFINITY;
                    for ways in 1..=p.llc.ways {
                        let p99 = alone(&mut steady, profile, load * full, threads, cores, ways).0;
                        let (name, on) = (&profile.name, &p.name);
                        assert!(p99 <= last * 1.00001, "{name} at {load} on {cores} CPUs of {on}: {last} ms, {p99} with {ways} ways");
                        last = p99;
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases > 200_000, "{cases}");
}

/// Every shipped service on every shipped platform, from a tenth to ten times its maximum load, with as few as 4 threads and as many
/// as two for each CPU: one more core never raises p99 by more than 5 %, with two exceptions.
///
/// - Overload. Where p99 was beyond three times its target already, the added core may move a full queue (`max_outstanding`) from the
///   workers to the serial front station, which fewer turbo bins have slowed down. Only from load 1 on.
/// - Fewer threads than CPUs, of which some are siblings. The specification (4.2, `own = use^3`) charges such a service for siblings
///   that its threads would not need. That is 4 % of the service time at most; with workers busy for more than 80 %, where the cliff
///   magnifies it, p99 may rise up to 43-fold, and in about one of 100,000 cases past the target. Never with a thread for each CPU.
#[test]
fn more_cores_never_hurt() {
    let (mut cases, mut overloads, mut siblings) = (0, 0, 0);
    for p in profiles().platforms.values() {
        let mut steady = Steady::new(p.clone());
        let (n, total) = (p.cpu.physical_cores, p.logical_cpus());
        for profile in profiles().services.values().filter(|s| !s.is_be()) {
            let full = rps_at_full_load(p, profile).unwrap();
            let target_ms = profile.lc().unwrap().qos_target_ms;
            for (load, threads) in LOADS.iter().flat_map(|l| [4, 9, 13, 16, n, n + 4, total, total + 9, 2 * total].map(|t| (l, t))) {
                for ways in [1, 4, p.llc.ways] {
                    let (mut last, mut before) = (f64::INFINITY, Speed::default());
                    for cores in 1..=total {
                        let (p99, r) = alone(&mut steady, profile, load * full, threads, cores, ways);
                        cases += 1;
                        let what = || {
                            let name = &profile.name;
                            format!("{name} at {load} with {threads} threads on {}: {last} ms, {p99} with {cores} CPUs", p.name)
                        };
                        if p99 <= 1.05 * last {
                        } else if last > 3.0 * target_ms && *load >= 1.0 {
                            overloads += 1;
                        } else {
                            siblings += 1;
                            assert!(threads < cores && cores > n, "{}", what());
                            assert!(r.busy > 0.8 && r.service_s <= 1.04 * before.service_s && p99 <= 50.0 * last, "{}", what());
                        }
                        (last, before) = (p99, r);
                    }
                }
            }
        }
    }
    // The exceptions are exceptions, and they are real.
    assert!(cases > 500_000 && overloads > 0 && siblings > 0);
    assert!(overloads * 1000 < cases && siblings * 2000 < cases, "{overloads} and {siblings} of {cases}");
}

proptest! {
    #![proptest_config(config(1000))]

    /// Any service on any platform that the reader accepts. What more ways or cores may cost is what they cost by the profile's own
    /// numbers: a hit that takes longer than a miss, turbo bins and siblings that slow down more than the core helps. Where a hit
    /// costs no more than a miss and the clock does not fall, more ways never raise p99 by more than 2 %; where service does not take
    /// longer with the core than without, more cores never raise it by more than 5 %. Both hold for arrivals and work that are not
    /// wilder than the laws of section 5 can tell (squared coefficients of variation up to 4) and below saturation of the front
    /// station.
    #[test]
    fn more_never_hurts_any_service_by_itself(
        p in fuzz::platform(),
        profile in fuzz::profile().prop_filter("an LC service", |s| !s.is_be()),
        load in fuzz::load(),
        threads in 1..200u32,
        (some_cores, some_ways) in (0.0..1.0f64, 0.0..1.0f64),
    ) {
        let lc = profile.lc().unwrap();
        let q = &lc.queue;
        prop_assume!(q.scv_arrival <= 4.0 && q.scv_service <= 4.0 && q.dispatch_scv <= 4.0);
        let rate_rps = load * fuzz::most_rps(&p, &profile);
        let mut steady = Steady::new(p.clone());
        let share = |x: f64, of: u32| 1 + (x * f64::from(of - 1)) as u32;
        let slower = |now: f64, before: f64| now > before * (1.0 + 1e-6);
        let hit_ns = p.llc.hit_ns * profile.cache.llc_exposed;
        if hit_ns <= (p.mem.idle_ns + p.llc.hit_ns) / profile.cache.mlp {
            let (mut last, mut before) = (f64::INFINITY, Speed::default());
            for ways in 1..=p.llc.ways {
                let (p99, r) = alone(&mut steady, &profile, rate_rps, threads, share(some_cores, p.logical_cpus()), ways);
                let solved = steady.solver.shared().residual < 1e-9;
                prop_assert!(p99 <= 1.02 * last || slower(before.freq_ghz, r.freq_ghz) || !solved, "{last} ms, {p99} with {ways} ways");
                (last, before) = (p99, r);
            }
        }
        let threads = threads.max(p.logical_cpus());
        let (mut last, mut before) = (f64::INFINITY, Speed::default());
        for cores in 1..=p.logical_cpus() {
            let (p99, r) = alone(&mut steady, &profile, rate_rps, threads, cores, share(some_ways, p.llc.ways));
            let front = rate_rps * q.dispatch_us * 1e-6 * p.cpu.cpi_scale * 2.8 / r.freq_ghz;
            let excused = slower(r.service_s, before.service_s) || slower(before.freq_ghz, r.freq_ghz) || front > 0.95;
            let solved = steady.solver.shared().residual < 1e-9;
            prop_assert!(p99 <= 1.05 * last || excused || !solved, "{last} ms, {p99} with {cores} CPUs");
            (last, before) = (p99, r);
        }
    }
}
