//! What must hold for any tenants on any platform: shipped profiles, and any that the reader accepts.

mod common;

use common::fuzz::{self, Wish};
use proptest::prelude::*;
use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::{check_tenants, Change, Plant, PlatformProfile, Sample, Speed, Steady, Tenant, HORIZON_S};

/// A fixed seed: the same cases in every run.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(2026), ..ProptestConfig::default() }
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
    #![proptest_config(config(1500))]

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
                prop_assert!(seeded && s.count == list.len() as f64 && s.latency.is_some() == !list.is_empty());
                prop_assert!(list.iter().all(|x| x.is_finite() && *x >= 0.0));
            } else {
                prop_assert!(s.latency.is_some() && s.count == s.achieved_rps * dt);
            }
            // Offered, and what waited when the tick began. Where no change came into force, the model's service time tells how
            // many requests that is.
            let r = self.plant.speeds()[i];
            if start > self.changes_until_s {
                let drained = waiting_s[i] * f64::from(r.workers) / (r.service_s * dt);
                prop_assert!(!exceeds(s.achieved_rps, t.rate_rps + drained), "{} of {} + {drained}", s.achieved_rps, t.rate_rps);
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
    #![proptest_config(config(600))]

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
