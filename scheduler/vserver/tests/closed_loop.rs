//! The closed loop through the port: determinism, plans, arrivals, windows.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{fuzz, platform, profiles};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use surefoot_server::{Allocation, Change, CpuSet, FeedState, Limit, Observation, Plan, Server, ServerError, Tick, Verdict, FEATURE_NAMES};
use surefoot_vserver::{
    place, platform_of, sample_series, stack_ways, Plant, PlatformProfile, Series, Steady, Tenant, VirtualServer, HORIZON_S,
};

const TICK: Tick = Tick { ms: 100 };

fn hold(v: &VirtualServer, lo: u32, hi: u32, mask: u32) -> Allocation {
    Allocation {
        cpus: CpuSet::range(lo, hi),
        shared_cpus: CpuSet::empty(),
        ways: vec![mask],
        shared_ways: vec![0],
        ..Allocation::everything(v.platform())
    }
}

fn plan(list: &[(&str, Allocation)]) -> Plan {
    Plan::whole(list.iter().map(|(id, a)| (id.to_string(), a.clone())).collect())
}

fn server(seed: Option<u64>) -> VirtualServer {
    let mut v = VirtualServer::new(platform("server-1"), seed);
    for (id, rps) in [("xapian", 3400.0), ("ads", 8.0), ("streamcluster", 0.0)] {
        v.add(0, id, profiles().service(id).unwrap().clone(), rps, 12).unwrap();
    }
    v
}

fn run(v: &mut VirtualServer, ticks: u32) -> Vec<Observation> {
    (0..ticks)
        .map(|_| {
            v.advance(TICK);
            v.observe()
        })
        .collect()
}

fn exclusive(v: &VirtualServer) -> Plan {
    plan(&[("xapian", hold(v, 0, 8, 0xff)), ("ads", hold(v, 8, 18, 0xff00)), ("streamcluster", hold(v, 18, 24, 0xf0000))])
}

/// Same seed, same bits, run twice; another seed, other readings.
#[test]
fn same_seed_same_bits() {
    let story = |seed| {
        let mut v = server(seed);
        let mut seen = run(&mut v, 20);
        let p = exclusive(&v);
        v.apply(&p).unwrap();
        v.set_load(2500, "xapian", 5000.0).unwrap();
        v.remove(4000, "streamcluster").unwrap();
        seen.extend(run(&mut v, 40));
        format!("{seen:?}")
    };
    assert_eq!(story(Some(1)), story(Some(1)));
    assert_ne!(story(Some(1)), story(Some(2)));
    assert_eq!(story(None), story(None));
}

/// A plan that breaks a rule changes nothing, and the error says so.
#[test]
fn an_invalid_plan_changes_nothing() {
    let mut v = server(Some(3));
    let good = exclusive(&v);
    v.apply(&good).unwrap();
    run(&mut v, 10);
    let mut untouched = v.clone();
    let bad = [
        plan(&[("xapian", hold(&v, 0, 10, 0xff))]),
        plan(&[("ads", hold(&v, 9, 18, 0xff00)), ("xapian", hold(&v, 0, 0, 0xff))]),
        plan(&[("xapian", hold(&v, 0, 8, 0x5f))]),
        plan(&[("xapian", hold(&v, 0, 8, 0x1ff))]),
        plan(&[("nobody", hold(&v, 0, 1, 0x1))]),
        plan(&[("xapian", Allocation { mba_pct: 50, ..hold(&v, 0, 8, 0xff) })]),
        plan(&[("xapian", Allocation { quota_cores: Some(2.0), ..hold(&v, 0, 8, 0xff) })]),
        plan(&[("xapian", Allocation { mem_limit_bytes: Some(0), ..hold(&v, 0, 8, 0xff) })]),
    ];
    for p in &bad {
        let error = v.apply(p).unwrap_err();
        assert!(matches!(error, ServerError::Invalid(_)) && error.to_string().ends_with("Nothing was changed."), "{error}");
    }
    assert_eq!(v.observe(), untouched.observe());
    assert_eq!(run(&mut v, 20), run(&mut untouched, 20));
}

/// A plan takes effect and is reported: only what really changed.
#[test]
fn apply_says_what_changed() {
    let mut v = server(Some(3));
    assert!(!v.observe().services[0].placed);
    let p = exclusive(&v);
    assert_eq!(v.apply(&p).unwrap().changed, ["ads", "streamcluster", "xapian"]);
    assert_eq!(v.apply(&p).unwrap().changed, [""; 0]);
    let more = plan(&[("xapian", hold(&v, 0, 7, 0xff))]);
    assert_eq!(v.apply(&more).unwrap().changed, ["xapian"]);
    run(&mut v, 2);
    let seen = v.observe();
    assert_eq!(seen.get("xapian").unwrap().features.alloc_cores, Some(7.0));
    assert_eq!(seen.get("xapian").unwrap().features.nb_cores, Some(16.0));
    assert!(seen.services.iter().all(|s| s.placed));
}

/// Fewer cores than the load needs: p99 rises past the target and the interval says overloaded; more cores: it recovers.
#[test]
fn latency_follows_cores() {
    let mut v = server(Some(5));
    let p = exclusive(&v);
    v.apply(&p).unwrap();
    let p99 = |v: &mut VirtualServer| v.observe().get("xapian").unwrap().window.unwrap().p99_ms;
    run(&mut v, 50);
    let target = v.observe().get("xapian").unwrap().qos_target_ms().unwrap();
    assert!(p99(&mut v) < target, "{} ms", p99(&mut v));
    let starved = plan(&[("xapian", hold(&v, 0, 2, 0xff))]);
    v.apply(&starved).unwrap();
    run(&mut v, 30);
    let seen = v.observe().get("xapian").unwrap().clone();
    assert_eq!(seen.interval.unwrap().verdict, Verdict::ServerOverloaded);
    assert!(seen.window.unwrap().p99_ms > 10.0 * target);
    v.apply(&p).unwrap();
    run(&mut v, 300);
    assert!(p99(&mut v) < target, "{} ms", p99(&mut v));
}

/// Services come and go and change their load when they are told to, not before; impossible wishes are refused.
#[test]
fn events_happen_at_their_time() {
    let mut v = VirtualServer::new(platform("server-2"), Some(1));
    let moses = || profiles().service("moses").unwrap().clone();
    v.add(300, "moses", moses(), 1000.0, 16).unwrap();
    v.set_load(600, "moses", 2000.0).unwrap();
    v.remove(800, "moses").unwrap();
    assert!(v.add(500, "moses", moses(), 1.0, 1).is_err(), "the name is taken by then");
    assert!(v.remove(200, "moses").is_err() && v.set_load(900, "moses", 1.0).is_err());
    assert!(v.add(0, "zero", moses(), f64::NAN, 16).is_err() && v.add(0, "zero", moses(), 1.0, 0).is_err());
    let loads: Vec<Option<f64>> = (0..10)
        .map(|_| {
            let now = v.offered_rps("moses");
            v.advance(TICK);
            now
        })
        .collect();
    let want = [None, None, None, Some(1000.0), Some(1000.0), Some(1000.0), Some(2000.0), Some(2000.0), None, None];
    assert_eq!(loads, want);
}

/// A service with few requests is judged over a window that is long enough; an interval without completions has no latency.
#[test]
fn few_requests_need_a_longer_window() {
    let mut v = server(Some(11));
    let p = exclusive(&v);
    v.apply(&p).unwrap();
    let seen = run(&mut v, 300);
    let ads: Vec<_> = seen.iter().map(|o| o.get("ads").unwrap()).collect();
    assert!(ads.iter().any(|s| s.interval.is_none()), "8 requests/s leave some 100 ms empty");
    assert!(ads.iter().filter_map(|s| s.interval).all(|l| l.count >= 1 && l.p99_ms > 0.0));
    // As many seconds of 8 requests/s as 100 requests take.
    let last = ads[299].window.unwrap();
    assert!((100..=150).contains(&last.count) && last.achieved_rps < 12.0, "{last:?}");
    assert_eq!((last.verdict, ads[20].window.unwrap().verdict), (Verdict::Valid, Verdict::NotResolvable));
    // 20 s of 3 are too few for a p99, and that is said.
    v.set_load(v.now_ms(), "ads", 3.0).unwrap();
    let few = run(&mut v, 300).pop().unwrap().get("ads").unwrap().window.unwrap();
    assert!((25..=99).contains(&few.count) && few.verdict == Verdict::NotResolvable, "{few:?}");
    let stream = seen[299].get("streamcluster").unwrap();
    assert!(stream.interval.is_none() && stream.window.is_none() && stream.instr_per_s.unwrap() > 0.0);
}

/// A feed that has been silent for more than a second is unknown, whatever it said before; afterwards the rest goes on as ever.
#[test]
fn a_feed_falls_silent_and_speaks_again() {
    let mut v = server(Some(5));
    v.apply(&exclusive(&v)).unwrap();
    let heard = run(&mut v.clone(), 80);
    v.set_feed(3000, "xapian", false).unwrap();
    v.set_feed(6000, "xapian", true).unwrap();
    assert!(v.set_feed(0, "nobody", false).is_err());
    let seen = run(&mut v, 80);
    for (o, other) in seen.iter().zip(&heard) {
        let s = o.get("xapian").unwrap();
        // The tick that ends at 3.1 s is the first of which nothing is told, the one that ends at 6.1 s the first that is told again.
        let silent = o.t_ms > 3000 && o.t_ms <= 6000;
        assert_eq!(s.interval.is_none(), silent, "{}", o.t_ms);
        let unknown = o.t_ms > 4000 && o.t_ms <= 6000;
        assert_eq!(s.latency_unknown(), unknown, "{}", o.t_ms);
        assert_eq!((s.window.is_none(), s.qos_met().is_none()), (unknown, unknown), "{}", o.t_ms);
        if unknown {
            assert_eq!(s.feed, FeedState::Unknown { since_ms: 3000, heard: true });
        }
        // What is seen changes nothing of what happens.
        assert_eq!(s.features, other.get("xapian").unwrap().features);
        assert_eq!(o.get("ads"), other.get("ads"));
        assert_eq!(o.get("streamcluster").unwrap().feed, FeedState::NotNeeded);
    }
}

/// A service whose load rises from next to nothing gets its requests, whatever mode it is simulated in.
#[test]
fn load_may_rise_from_zero_and_change_mode() {
    let mut v = VirtualServer::new(platform("server-1"), Some(9));
    v.add(0, "xapian", profiles().service("xapian").unwrap().clone(), 0.0, 16).unwrap();
    for (at, rps) in [(1000, 100.0), (3000, 4000.0), (5000, 100.0)] {
        v.set_load(at, "xapian", rps).unwrap();
    }
    let seen = run(&mut v, 70);
    let counts: Vec<u64> = seen.iter().map(|o| o.services[0].interval.map_or(0, |l| l.count)).collect();
    let sum = |from: usize, to: usize| counts[from..to].iter().sum::<u64>();
    assert_eq!(sum(0, 10), 0);
    // Poisson: 200 +- 5 x 14.
    assert!((130..=270).contains(&sum(10, 30)), "{counts:?}");
    assert!((7900..=8100).contains(&sum(30, 50)), "{counts:?}");
    assert!((130..=270).contains(&sum(50, 70)), "{counts:?}");
}

/// A step of 500 ms shows what five of 100 ms show together: a queue that grows and drains within it is seen, no longer than it was there.
/// Rates are of the whole step, as a counter's are; what is held and how fast the clock runs is of its end.
#[test]
fn a_long_step_shows_what_short_ones_show() {
    let (mut long, mut short) = (server(Some(4)), server(Some(4)));
    for v in [&mut long, &mut short] {
        v.set_load(1100, "xapian", 9000.0).unwrap();
        v.set_load(1300, "xapian", 3400.0).unwrap();
        let p = exclusive(v);
        v.apply(&p).unwrap();
    }
    for _ in 0..8 {
        long.advance(Tick { ms: 500 });
        let parts = run(&mut short, 5);
        let (a, b) = (long.observe(), parts.last().unwrap());
        for (of_long, of_short) in a.services.iter().zip(&b.services) {
            let id = &of_long.id;
            assert_eq!(of_long.window, of_short.window, "{id} at {}", a.t_ms);
            for name in FEATURE_NAMES {
                let each: Vec<f64> = parts.iter().map(|o| o.get(id).unwrap().features.get(name).unwrap()).collect();
                let is_rate = ["ipc", "llc_misses_per_s", "mbl_mbps", "cpu_usage_cores", "nb_mbl_mbps"].contains(&name);
                let want = if is_rate { each.iter().sum::<f64>() / 5.0 } else { each[4] };
                let got = of_long.features.get(name).unwrap();
                assert!((got - want).abs() <= 1e-12 * want.abs(), "{name} of {id} at {}: {got}, {want}", a.t_ms);
            }
            let counts = || parts.iter().filter_map(|o| o.get(id)?.interval).map(|l| l.count);
            assert_eq!(of_long.interval.map_or(0, |l| l.count), counts().sum::<u64>(), "{id} at {}", a.t_ms);
            if let Some(l) = of_long.interval {
                let worst = parts.iter().filter_map(|o| o.get(id)?.interval).map(|l| l.p99_ms).fold(0.0, f64::max);
                assert!(l.p99_ms <= worst * 1.000_001, "{id} at {}: {} ms of {worst}", a.t_ms, l.p99_ms);
            }
        }
    }
}

/// The port's platform is the profile's.
#[test]
fn platform_is_translated() {
    let p = platform_of(&platform("server-2"));
    assert_eq!((p.logical_cpus(), p.physical_cores, p.ways(), p.core_units()), (64, 32, 12, 64));
    assert_eq!((p.core_of_cpu[40], p.mba.unwrap().step_pct, p.mb_per_way()), (8, 10, 4.0));
    assert!(platform_of(&platform("server-1")).mba.is_none());
}

/// Readings of a case scatter about the steady state as much as the platform's noise says, and depend on seed, case and
/// index only.
#[test]
fn readings_scatter_about_the_steady_state() {
    let p = platform("server-1");
    let tenants: Vec<Tenant> = ["moses", "xapian"]
        .iter()
        .zip(place(&p, &[9, 9]).iter().zip(stack_ways(&p, &[12, 8])))
        .map(|(n, (cpus, mask))| Tenant::new(profiles().service(n).unwrap().clone(), 2400.0, 16, *cpus, mask))
        .collect();
    let steady = Steady::new(p.clone()).case(&tenants, HORIZON_S)[0];
    let series = Series { samples: 4000, interval_s: 0.1, seed: 1 };
    let mut a = Vec::new();
    sample_series(&p, &steady, "case-1/moses", &series, &mut a);
    let mean = |f: fn(&surefoot_vserver::Sample) -> f64| a.iter().map(f).sum::<f64>() / a.len() as f64;
    let m = mean(|s| s.llc_misses_per_s);
    let sd = (a.iter().map(|s| (s.llc_misses_per_s - m).powi(2)).sum::<f64>() / a.len() as f64).sqrt();
    let turns = p.noise.misses.hypot(p.faults.multiplex);
    assert!((sd / m / turns - 1.0).abs() < 0.1, "standard deviation {}", sd / m);
    // Without faults there is no error that lasts.
    let (kind, mut true_ones) = (p.without_faults(), Vec::new());
    sample_series(&kind, &steady, "case-1/moses", &series, &mut true_ones);
    let unbiased = true_ones.iter().map(|s| s.llc_misses_per_s).sum::<f64>() / true_ones.len() as f64;
    assert!((unbiased / steady.llc_misses_per_s - 1.0).abs() < 0.003, "mean");
    // An error of a case does not go away in its mean; over cases it does.
    let of_case = |case: u32| {
        let mut one = Vec::new();
        sample_series(&p, &steady, &format!("case-{case}/moses"), &Series { samples: 1, ..series }, &mut one);
        (one[0].llc_misses_per_s / steady.llc_misses_per_s, one[0].virt_mem_mb / steady.virt_mem_mb)
    };
    let cases: Vec<(f64, f64)> = (0..2000).map(of_case).collect();
    let spread = |of: fn(&(f64, f64)) -> f64, cv: f64| {
        let m = cases.iter().map(of).sum::<f64>() / cases.len() as f64;
        let sd = (cases.iter().map(|c| (of(c) - m).powi(2)).sum::<f64>() / cases.len() as f64).sqrt();
        assert!((m - 1.0).abs() < 5.0 * cv / (cases.len() as f64).sqrt() && (sd / cv - 1.0).abs() < 0.15, "mean {m}, spread {sd} of {cv}");
    };
    spread(|c| c.0, turns.hypot(p.faults.misses_bias));
    spread(|c| c.1, p.faults.data);
    let p99 = mean(|s| s.latency.unwrap().p99);
    assert!((p99 / steady.latency.unwrap().p99 - 1.0).abs() < 0.02, "{p99}");
    let few = Series { samples: 10, ..series };
    let mut b = Vec::new();
    sample_series(&p, &steady, "case-1/moses", &few, &mut b);
    assert_eq!(a[..10], b[..]);
    sample_series(&p, &steady, "case-2/moses", &few, &mut b);
    assert_ne!(b[..10], b[10..]);
}

/// At a few requests per reading, a reading has whole requests, or none and then no latency.
#[test]
fn readings_of_a_slow_service_count_whole_requests() {
    let p = platform("server-1");
    let t = [Tenant::new(profiles().service("sphinx").unwrap().clone(), 12.0, 16, CpuSet::range(0, 16), 0xfffff)];
    let steady = Steady::new(p.clone()).case(&t, HORIZON_S)[0];
    let mut a = Vec::new();
    sample_series(&p, &steady, "s", &Series { samples: 5000, interval_s: 0.1, seed: 4 }, &mut a);
    let count: f64 = a.iter().map(|s| s.count).sum();
    assert!((count / 6000.0 - 1.0).abs() < 0.05, "{count}");
    assert!(a.iter().all(|s| s.count.fract() == 0.0 && s.latency.is_some() == (s.count > 0.0)));
    // exp(-1.2) = 30 % of the readings are empty.
    let empty = a.iter().filter(|s| s.latency.is_none()).count() as f64 / 5000.0;
    assert!((empty - 0.301).abs() < 0.03, "{empty}");
    let mut p50: Vec<f64> = a.iter().filter_map(|s| s.latency).map(|l| l.p50).collect();
    p50.sort_by(f64::total_cmp);
    let middle = p50[p50.len() / 2];
    assert!((middle / steady.latency.unwrap().p50 - 1.0).abs() < 0.1, "{middle}");
}

/// Two services may share what both call shared.
#[test]
fn sharing_is_allowed_where_both_agree() {
    let mut v = server(None);
    let shared = |a: Allocation| Allocation { shared_cpus: CpuSet::range(6, 8), shared_ways: vec![0x80], ..a };
    let p = plan(&[("xapian", shared(hold(&v, 0, 8, 0xff))), ("ads", shared(hold(&v, 6, 18, 0xff80)))]);
    v.apply(&p).unwrap();
    let all: BTreeMap<_, _> = run(&mut v, 3)[2].services.iter().map(|s| (s.id.clone(), s.allocation.clone())).collect();
    assert_eq!(Some(all["ads"].clone()), p.changes["ads"].whole());
}

/// A plan of cores and ways says nothing about memory, and a plan of memory nothing about cores and ways.
#[test]
fn a_memory_limit_survives_a_plan_of_cores_and_ways() {
    let mut v = server(None);
    let limited = Allocation { mem_limit_bytes: Some(8 << 30), zswap_max_bytes: Some(1 << 30), ..hold(&v, 0, 8, 0xff) };
    v.apply(&plan(&[("xapian", limited.clone())])).unwrap();
    run(&mut v, 3);
    v.apply(&Plan::cores_and_ways(BTreeMap::from([("xapian".into(), hold(&v, 4, 10, 0xf0))]))).unwrap();
    let held = |v: &mut VirtualServer| v.observe().get("xapian").unwrap().allocation.clone();
    let then = Allocation { mem_limit_bytes: Some(8 << 30), zswap_max_bytes: Some(1 << 30), ..hold(&v, 4, 10, 0xf0) };
    assert_eq!(held(&mut v), then);
    let change = Change { mem_limit: Some(Limit::None), ..Change::default() };
    v.apply(&Plan { changes: BTreeMap::from([("xapian".into(), change.clone())]), ..Plan::default() }).unwrap();
    assert_eq!(held(&mut v), Allocation { mem_limit_bytes: None, ..then });
    // A service that runs everywhere still is given CPUs first.
    let refused = v.apply(&Plan { changes: BTreeMap::from([("ads".into(), change)]), ..Plan::default() }).unwrap_err().to_string();
    assert_eq!(refused, "ads: memory, but it is not placed yet. Give it CPUs first, or in the same plan. Nothing was changed.");
}

/// COSMOS's server with a service and a job whose sets are larger than what is left to them.
fn cosmos() -> VirtualServer {
    cosmos_with(&[("memcached-lancet", 37_500.0), ("stream", 0.0)])
}

fn cosmos_with(all: &[(&str, f64)]) -> VirtualServer {
    let mut v = VirtualServer::new(platform("cosmos-server"), None);
    for (id, rps) in all {
        v.add(0, id, profiles().service(id).unwrap().clone(), *rps, 16).unwrap();
    }
    v
}

/// Memory limits for the two, GB; the service has 8 GB of pool.
fn limits(v: &VirtualServer, lc_gb: f64, be_gb: f64) -> Plan {
    let bytes = |gb: f64| Some((gb * f64::from(1 << 30)) as u64);
    let lc = Allocation { mem_limit_bytes: bytes(lc_gb), zswap_max_bytes: bytes(8.0), ..hold(v, 0, 10, 0xff) };
    let be = Allocation { mem_limit_bytes: bytes(be_gb), zswap_max_bytes: Some(0), ..hold(v, 10, 16, 0x700) };
    plan(&[("memcached-lancet", lc), ("stream", be)])
}

/// Under 36 GB a service with 45 has 28 resident, and 8 of pool for 15.2 more: the rest comes from the disk. One that is alone and not
/// limited, and one with room for all that it touches, has no faults.
#[test]
fn memory_is_seen_as_it_is_in_force() {
    let free = run(&mut cosmos_with(&[("memcached-lancet", 37_500.0)]), 1)[0].get("memcached-lancet").unwrap().memory;
    assert!(free.in_use_bytes.unwrap() > 44 << 30, "{free:?}");
    assert_eq!((free.pool_bytes, free.refaults_per_s, free.stall_frac), (Some(0), Some(0.0), Some(0.0)));
    // Of one that has room 17 GB are taken, a page in 3.5 us.
    let mut v = cosmos_with(&[("memcached-lancet", 37_500.0)]);
    run(&mut v, 1);
    let bytes = |gb: u64| Some(gb << 30);
    let limited = Allocation { mem_limit_bytes: bytes(36), zswap_max_bytes: bytes(8), ..hold(&v, 0, 10, 0xff) };
    v.apply(&plan(&[("memcached-lancet", limited)])).unwrap();
    let all = run(&mut v, 400);
    let in_use = |o: &Observation| o.get("memcached-lancet").unwrap().memory.in_use_bytes.unwrap();
    assert!(in_use(&all[20]) > 37 << 30 && all.windows(2).all(|w| in_use(&w[1]) <= in_use(&w[0])), "{}", in_use(&all[20]));
    let m = all[399].get("memcached-lancet").unwrap().memory;
    assert_eq!((m.in_use_bytes, m.pool_bytes), (Some(36 << 30), Some(8 << 30)));
    assert!((m.compression_ratio().unwrap() - 1.9).abs() < 1e-9, "{m:?}");
    let (pool, disk) = (m.pool_swap_ins_per_s.unwrap(), m.disk_swap_ins_per_s.unwrap());
    assert!(pool > disk && disk > 0.0 && m.refaults_per_s == Some(pool + disk), "{m:?}");
    assert!(m.stall_frac.is_some_and(|s| s > 0.0 && s < 1.0), "{m:?}");
    // Together they touch more than the machine has: the service begins with 36 GB and more pool, which goes as its pages are touched.
    let mut v = cosmos();
    v.apply(&limits(&v, 36.0, 24.0)).unwrap();
    let all = run(&mut v, 400);
    let of = |o: &Observation, id: &str| o.get(id).unwrap().memory;
    let pool = |o: &Observation| of(o, "memcached-lancet").pool_bytes.unwrap();
    assert!(all.windows(2).all(|w| pool(&w[1]) <= pool(&w[0])) && pool(&all[20]) > pool(&all[399]) && pool(&all[399]) >= 8 << 30);
    assert_eq!(of(&all[399], "memcached-lancet").in_use_bytes, Some(36 << 30));
    let m = of(&all[399], "stream");
    assert_eq!((m.in_use_bytes, m.pool_bytes, m.refaults_per_s), (Some(24 << 30), Some(0), Some(0.0)));
}

/// 64 GB less 4 are there: limits of 36 and 24 GB fit, and half a GB more does not. Where one is lowered for another, what the one
/// gets is what the other has lost: at no moment do they hold more than there is.
#[test]
fn limits_fit_and_none_is_lowered_before_another_is_raised() {
    let mut v = cosmos();
    assert_eq!(v.platform().memory.unwrap().capacity_bytes, 60 << 30);
    let e = v.apply(&limits(&v, 36.0, 24.5)).unwrap_err().to_string();
    assert!(e.starts_with("memcached-lancet: memory limit of") && e.contains("of cosmos-server"), "{e}");
    v.apply(&limits(&v, 36.0, 24.0)).unwrap();
    run(&mut v, 400);
    v.apply(&limits(&v, 30.0, 30.0)).unwrap();
    let in_force = |v: &VirtualServer| ["memcached-lancet", "stream"].map(|id| v.plant().tenants()[v.plant().position(id).unwrap()].mem_gb);
    for _ in 0..100 {
        v.advance(Tick { ms: 10 });
        let held: u64 = v.observe().services.iter().filter_map(|s| s.memory.in_use_bytes).sum();
        // Some megabytes of a service are never touched.
        assert!(held <= (60 << 30) + (64 << 20), "{held}");
    }
    assert!(in_force(&v)[0].is_some_and(|gb| gb > 30.0), "{:?}", in_force(&v));
    run(&mut v, 400);
    assert_eq!(in_force(&v), [Some(30.0), Some(30.0)]);
}

/// One service's part of a plan, before there is a platform: CPUs, ways, MBA, memory and pool, shared or not.
#[derive(Clone, Debug)]
struct Part {
    who: usize,
    cpus: (u32, u32),
    ways: (u32, u32),
    mba_pct: u8,
    mem_bytes: Option<u64>,
    pool_bytes: Option<u64>,
    shared: bool,
}

fn part() -> impl Strategy<Value = Part> {
    // One to five of eight for each, so that about half of the exclusive ones clash.
    let cut = || (0..8u32, 1..=4u32);
    let mba = prop_oneof![4 => Just(100u8), 1 => (1..=10u8).prop_map(|x| 10 * x), 1 => 0..=101u8];
    let bytes = || proptest::option::weighted(0.3, prop_oneof![9 => 1u64 << 20..1 << 40, 1 => Just(0), 1 => Just(u64::MAX)]);
    (0..6usize, cut(), cut(), mba, bytes(), bytes(), any::<bool>()).prop_map(|(who, cpus, ways, mba_pct, mem_bytes, pool_bytes, shared)| {
        Part { who, cpus, ways, mba_pct, mem_bytes, pool_bytes, shared }
    })
}

impl Part {
    fn allocation(&self, v: &VirtualServer) -> Allocation {
        let p = v.platform();
        let eighths = |(from, n): (u32, u32), of: u32| (from * of / 8, (from + n) * of / 8);
        // Beyond the end: no plan may have that.
        let (lo, hi) = eighths(self.cpus, p.logical_cpus());
        let cpus = CpuSet::range(lo, hi);
        let (low, high) = eighths(self.ways, p.ways());
        let mask = (((1u64 << high.min(32)) - 1) & !((1u64 << low) - 1)) as u32;
        let domains = p.l3_domains() as usize;
        Allocation {
            cpus,
            shared_cpus: if self.shared { cpus } else { CpuSet::empty() },
            quota_cores: None,
            ways: vec![mask; domains],
            shared_ways: vec![if self.shared { mask } else { 0 }; domains],
            mba_pct: self.mba_pct,
            mem_limit_bytes: self.mem_bytes,
            zswap_max_bytes: self.pool_bytes,
        }
    }
}

/// What any observation must be, whatever was planned.
fn sound(o: &Observation) -> Result<(), TestCaseError> {
    for s in &o.services {
        for (name, x) in FEATURE_NAMES.iter().zip(s.features.values()) {
            prop_assert!(x.is_none_or(|x| x.is_finite() && x >= 0.0), "{}: {name} {x:?}", s.id);
        }
        for l in [s.interval, s.window].into_iter().flatten() {
            prop_assert!(s.is_lc() && l.count > 0);
            let (a, b, c) = (l.p50_ms, l.p95_ms, l.p99_ms);
            prop_assert!(0.0 <= a && a <= b && b <= c && c.is_finite() && l.mean_ms >= 0.0 && l.mean_ms.is_finite(), "{l:?}");
            prop_assert!(l.achieved_rps.is_finite() && l.achieved_rps > 0.0);
        }
        prop_assert!(s.instr_per_s.is_none_or(|x| x.is_finite() && x >= 0.0));
        let m = &s.memory;
        let rates = [m.pool_swap_ins_per_s, m.disk_swap_ins_per_s, m.refaults_per_s];
        prop_assert!(rates.into_iter().flatten().all(|x| x.is_finite() && x >= 0.0), "{m:?}");
        prop_assert!(m.stall_frac.is_none_or(|x| (0.0..=1.0).contains(&x)), "{m:?}");
        prop_assert!(m.pool_bytes <= m.in_use_bytes && m.pool_bytes <= m.stored_bytes, "{m:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    })]

    /// Any sequence of plans, arrivals, loads and leaves, on any platform with any services that the reader accepts: what is seen is
    /// sound; a plan that is taken is in force, and a plan that is refused has changed nothing at all.
    #[test]
    fn any_sequence_of_plans_is_taken_or_refused_whole(
        p in fuzz::platform(),
        seed in proptest::option::of(0..1000u64),
        services in proptest::collection::vec((fuzz::profile(), fuzz::load(), 1..100u32), 1..5),
        steps in proptest::collection::vec((proptest::collection::vec(part(), 0..4), 0..12u8, fuzz::load()), 1..25),
    ) {
        let mut v = VirtualServer::new(p.clone(), seed);
        let most: Vec<f64> = services.iter().map(|(s, _, _)| fuzz::most_rps(&p, s)).collect();
        for (i, (s, load, threads)) in services.iter().enumerate() {
            v.add(i as u64 * 150, &format!("s{i}"), s.clone(), load * most[i], *threads).unwrap();
        }
        for (parts, event, load) in &steps {
            let who = usize::from(*event) % services.len();
            match event {
                // Refused where it is not there (any more); that is an answer, too.
                0 => drop(v.remove(v.now_ms(), &format!("s{who}"))),
                1..=4 => drop(v.set_load(v.now_ms() + 50, &format!("s{who}"), load * most[who])),
                _ => {}
            }
            let allocations = parts.iter().map(|x| (format!("s{}", x.who), x.allocation(&v))).collect();
            let plan = Plan::whole(allocations);
            let before = format!("{v:?}");
            match v.apply(&plan) {
                Ok(applied) => {
                    let seen = v.observe();
                    for (id, change) in &plan.changes {
                        let s = seen.get(id).unwrap();
                        prop_assert!(s.placed && change.whole() == Some(s.allocation.clone()));
                    }
                    prop_assert!(applied.changed.iter().all(|id| plan.changes.contains_key(id)));
                }
                Err(e) => {
                    let e = e.to_string();
                    prop_assert!(e.ends_with("Nothing was changed.") && !e.contains('\n'), "{e}");
                    prop_assert_eq!(before, format!("{v:?}"), "{}", e);
                }
            }
            v.advance(Tick { ms: if *event == 11 { 1000 } else { 100 } });
            sound(&v.observe())?;
        }
    }
}

/// The story of one seed, run beside others and alone.
fn story(seed: u64) -> String {
    let mut v = server(Some(seed));
    let mut seen = run(&mut v, 20);
    let p = exclusive(&v);
    v.apply(&p).unwrap();
    v.set_load(2500, "xapian", 5000.0).unwrap();
    seen.extend(run(&mut v, 20));
    format!("{seen:?}")
}

/// Plants, and sweeps of steady cases, give the same bits in one thread, in two and in eight, in any order.
#[test]
fn threads_and_order_change_no_bit() {
    let sweep = |cores: u64| {
        let p = platform("server-2");
        let mut steady = Steady::new(p.clone());
        let mut out = String::new();
        for ways in 1..=10 {
            let cpus = place(&p, &[cores as u32, 8]);
            let masks = stack_ways(&p, &[ways, 2]);
            let t = |i: usize, name: &str, rps| Tenant::new(profiles().service(name).unwrap().clone(), rps, 36, cpus[i], masks[i]);
            let samples = steady.case(&[t(0, "moses", 2600.0), t(1, "mongodb", 4000.0)], HORIZON_S).to_vec();
            let mut readings = vec![];
            sample_series(&p, &samples[0], &format!("{cores}/{ways}"), &Series { samples: 5, interval_s: 0.1, seed: 3 }, &mut readings);
            out += &format!("{samples:?} {readings:?}");
        }
        out
    };
    for work in [&story as &(dyn Fn(u64) -> String + Sync), &sweep] {
        let alone: Vec<String> = (1..=8).map(work).collect();
        for threads in [1, 2, 8] {
            let mut beside: Vec<(u64, String)> = std::thread::scope(|scope| {
                // Each takes every so-many-th, the last first.
                let one = |t: u64| (1..=8).rev().filter(move |seed| seed % threads == t).map(|seed| (seed, work(seed))).collect::<Vec<_>>();
                let running: Vec<_> = (0..threads).map(|t| scope.spawn(move || one(t))).collect();
                running.into_iter().flat_map(|r| r.join().unwrap()).collect()
            });
            beside.sort_by_key(|(seed, _)| *seed);
            assert!(alone.iter().eq(beside.iter().map(|(_, s)| s)), "{threads} threads");
        }
    }
}

/// A service that shares nothing with a newcomer draws the same random numbers with it and without: on a platform of one
/// frequency, and with memory that is never waited for, only the solver's tolerance (1e-10) tells the runs apart. Nor does the order
/// in which services came. (SPEC.md, section 7: randomness is keyed by tenant, sums run in tenant order.)
#[test]
fn an_unrelated_tenant_draws_other_numbers() {
    let flat = std::fs::read_to_string(common::here("profiles/platforms/smartharvest-server.toml")).unwrap();
    let flat = flat.replace("queue_ns = 22.0", "queue_ns = 0.0");
    let p = Arc::new(PlatformProfile::parse(Path::new("flat.toml"), &flat).unwrap());
    assert!(p.mem.queue_ns == 0.0 && p.cpu.turbo_ghz.iter().all(|f| *f == p.cpu.turbo_ghz[0]));
    let tenant =
        |name: &str, rps, lo, hi, mask| Tenant::new(profiles().service(name).unwrap().clone(), rps, 12, CpuSet::range(lo, hi), mask);
    let run = |order: &[&str]| {
        let mut plant = Plant::new(p.clone(), Some(5), 0.1);
        for id in order {
            let t = match *id {
                "xapian" => tenant("xapian", 3000.0, 0, 8, 0x3f),
                "ads" => tenant("ads", 8.0, 8, 12, 0xc0),
                other => tenant(other, 100_000.0, 12, 20, 0x700),
            };
            plant.add(id, t, false).unwrap();
        }
        let mut seen = vec![];
        for _ in 0..40 {
            plant.step();
            for id in ["xapian", "ads"] {
                let s = plant.samples()[plant.position(id).unwrap()];
                let l = s.latency.unwrap_or_default();
                seen.extend([s.ipc, s.llc_misses_per_s, s.mbl_mbps, s.cpu_usage_cores, s.count, l.mean, l.p50, l.p95, l.p99]);
            }
        }
        seen
    };
    let alone = run(&["xapian", "ads"]);
    for order in [&["ads", "xapian"][..], &["memcached", "ads", "xapian"], &["xapian", "stream", "ads"]] {
        let beside = run(order);
        assert!(alone.iter().zip(&beside).all(|(a, b)| (a - b).abs() <= 1e-8 * a.abs()), "{order:?}");
    }
}
