//! Core use of primary VMs: against SmartHarvest's Table 1, against the request-by-request simulation and closed forms, and
//! what must hold however cores come and go.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::profiles;
use proptest::prelude::*;
use surefoot_server::lease::LONG_WAIT_US;
use surefoot_server::{CpuSet, Lease, LendError, Lender, Lent};
use surefoot_vserver::requests::{Arrivals, RequestModel, Response};
use surefoot_vserver::{BatchSide, BurstShape, BurstWorkload, CoreUse, Cores, PrimaryVm, Reassignment, VirtualLender};

/// On a server without delays and with caches that are always warm.
const VM: PrimaryVm = PrimaryVm { cores: 10, poll_us: 50.0, window_ms: 25.0, dispatch_us: 0.0, quantum_ms: 10.0, cold_us: 0.0 };

fn slow() -> Reassignment {
    Reassignment::constant(10.0)
}

/// Tasks of exactly `task_us`, Poisson arrivals.
fn even(qps: f64, task_us: f64, fanout: u32) -> BurstWorkload {
    BurstWorkload {
        name: "even".into(),
        qps,
        task_us,
        fanout,
        scv_service: 0.0,
        scv_arrival: 1.0,
        wake_us: 0.0,
        threads: None,
        pinned: false,
        bursts: None,
        paper_mean: None,
        paper_peak: None,
    }
}

/// Any of SmartHarvest's workloads as single requests of a common queue.
fn plain(name: &str) -> BurstWorkload {
    let (qps, task_us, fanout, scv_service, scv_arrival) = match name {
        "memcached" => (40_000.0, 57.5, 1, 0.3, 1.0),
        "indexserve" => (500.0, 866.7, 3, 0.8, 1.0),
        "moses" => (400.0, 3750.0, 1, 0.51, 2.4),
        _ => (2000.0, 850.0, 1, 0.06, 1.6),
    };
    BurstWorkload { name: name.into(), scv_service, scv_arrival, ..even(qps, task_us, fanout) }
}

fn shipped(name: &str) -> &'static BurstWorkload {
    profiles().bursts.workload(name).unwrap()
}

/// Mean busy cores and mean of the peaks per window, over `seconds` alone on all cores.
fn mean_and_peak(w: &BurstWorkload, seconds: u32, seed: u64) -> (f64, f64) {
    let vm = profiles().bursts.primary().unwrap();
    let windows = (f64::from(seconds) / (vm.window_ms * 1e-3)).round() as u32;
    let mut vm_use = CoreUse::new(&vm, w, slow(), seed);
    let (mut mean, mut peak) = (0.0, 0.0);
    for i in 1..=windows {
        vm_use.step_to(f64::from(i) * vm.window_ms * 1e-3);
        assert_eq!(vm_use.samples().len(), 500, "25 ms in steps of 50 us");
        mean += vm_use.mean_busy().unwrap() / f64::from(windows);
        peak += f64::from(vm_use.peak()) / f64::from(windows);
        vm_use.start_window();
    }
    (mean, peak)
}

/// SmartHarvest, Table 1: mean busy cores within x/1.1, mean of the peaks within x/1.12, of each workload.
#[test]
fn busy_cores_and_peaks_are_those_of_table_1() {
    for name in ["indexserve", "memcached", "moses", "img-dnn"] {
        let w = shipped(name);
        let runs: Vec<(f64, f64)> = (1..=3).map(|seed| mean_and_peak(w, 20, seed)).collect();
        let of = |f: fn(&(f64, f64)) -> f64| runs.iter().map(f).sum::<f64>() / 3.0;
        for (what, got, paper, tolerance) in
            [("mean", of(|r| r.0), w.paper_mean.unwrap(), 1.1), ("peak", of(|r| r.1), w.paper_peak.unwrap(), 1.12)]
        {
            println!("{name}: {what} {got:.3}, Table 1 {paper}");
            assert!((paper / tolerance..=paper * tolerance).contains(&got), "{name}: {what} {got}, Table 1 says {paper}");
        }
    }
}

/// With a fixed number of cores it is the queue of `requests`: the same requests, each answered after the same time, and
/// as many busy cores at each poll as tasks are between begin and end.
#[test]
fn a_fixed_number_of_cores_is_a_queue() {
    for (name, cores) in [("memcached", 10), ("memcached", 3), ("indexserve", 10), ("indexserve", 2), ("moses", 2), ("img-dnn", 4)] {
        let w = &plain(name);
        let (seed, end_s) = (11, 3.0);
        let mut vm_use = CoreUse::new(&VM, w, slow(), seed);
        vm_use.request_cores(cores).unwrap();
        vm_use.step_to(end_s);
        let model = RequestModel { fanout: w.fanout, ..RequestModel::new(w.qps, w.task_us * 1e-6, cores, w.scv_service, w.scv_arrival) };
        let all: Vec<Response> = model.run(seed).take_while(|r| r.arrival_s <= end_s).collect();
        let answered: Vec<f64> = all.iter().filter(|r| r.arrival_s + r.response_s <= end_s).map(|r| r.response_s * 1e9).collect();
        let got = vm_use.latencies_ns(0);
        assert_eq!(got.len(), answered.len() as u64, "{name} on {cores}");
        assert_eq!(vm_use.outstanding(0), (all.len() - answered.len()) as u64, "{name} on {cores}");
        let mut counted = got.clone();
        counted.reset();
        for ns in answered {
            counted.record(ns.round() as u64).unwrap();
        }
        // The histograms hold three digits of each response: equal up to the rounding of one nanosecond.
        for q in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let (x, y) = (got.value_at_quantile(q) as f64, counted.value_at_quantile(q) as f64);
            assert!((x / y - 1.0).abs() < 2e-3, "{name} on {cores}: {x} and {y} ns at {q}");
        }
        if w.fanout == 1 {
            for (i, busy) in vm_use.samples().iter().enumerate().step_by(37) {
                let t = i as f64 * 50e-6;
                let served = |r: &&Response| r.arrival_s + r.wait_s <= t && t < r.arrival_s + r.response_s;
                assert_eq!(usize::from(*busy), all.iter().filter(served).count(), "{name} on {cores} at {t}");
            }
        }
    }
}

/// Idle cores are taken at once and are back after the reassignment delay, not before.
#[test]
fn idle_cores_go_at_once_and_come_back_after_the_delay() {
    for delay_s in [10e-3, 0.1e-3] {
        let mut vm_use = CoreUse::new(&VM, &even(1.0, 1.0, 1), Reassignment::constant(delay_s * 1e3), 1);
        vm_use.set_rate_rps(0, 0.0);
        vm_use.step_to(0.5);
        vm_use.request_cores(3).unwrap();
        assert_eq!(vm_use.cores(), Cores { idle: 3, harvested: 7, ..Cores::default() });
        vm_use.step_to(1.0);
        vm_use.request_cores(8).unwrap();
        assert_eq!(vm_use.cores(), Cores { idle: 3, harvested: 7, returning: 5, ..Cores::default() });
        vm_use.step_to(1.0 + 0.999 * delay_s);
        assert_eq!(vm_use.cores().idle, 3, "{delay_s}");
        vm_use.step_to(1.0 + 1.001 * delay_s);
        assert_eq!(vm_use.cores(), Cores { idle: 8, harvested: 2, ..Cores::default() }, "{delay_s}");
        // 7 cores for half a second, 5 of them a delay longer; 2 go on.
        let spent = vm_use.spent();
        assert!((spent.returning - 5.0 * delay_s).abs() < 1e-9, "{spent:?}");
        assert!((spent.harvested - (7.0 * 0.5 + 5.0 * delay_s + 2.0 * 1.001 * delay_s)).abs() < 1e-9, "{spent:?}");
    }
}

/// Running tasks keep their cores to the end; what waits then runs on the cores left, and on those that come back.
#[test]
fn no_core_is_taken_from_a_running_task() {
    // 30 tasks of 1 ms at one instant: a request of fanout 30.
    let mut vm_use = CoreUse::new(&VM, &even(1e6, 1000.0, 30), Reassignment::constant(0.5), 1);
    while vm_use.outstanding(0) == 0 {
        vm_use.step_to(vm_use.now_s() + 1e-7);
    }
    assert_eq!(vm_use.outstanding(0), 1, "the load is to stop after one request");
    vm_use.set_rate_rps(0, 0.0);
    let start_s = vm_use.now_s();
    let at = |ms: f64| start_s + ms * 1e-3;
    let busy = |busy, harvested| Cores { busy, harvested, ..Cores::default() };
    assert_eq!(vm_use.cores(), busy(10, 0));
    vm_use.step_to(at(0.2));
    vm_use.request_cores(4).unwrap();
    assert_eq!(vm_use.cores(), Cores { leaving: 6, ..busy(10, 0) });
    // One of them may stay after all.
    vm_use.request_cores(5).unwrap();
    assert_eq!(vm_use.cores(), Cores { leaving: 5, ..busy(10, 0) });
    vm_use.step_to(at(0.99));
    assert_eq!(vm_use.cores().busy, 10);
    vm_use.step_to(at(1.01));
    assert_eq!(vm_use.cores(), busy(5, 5));
    // 10 done, 5 running, 15 wait. Three cores asked back at 1.2 ms run the next tasks from 1.7 ms on.
    vm_use.step_to(at(1.2));
    vm_use.request_cores(8).unwrap();
    vm_use.step_to(at(1.69));
    assert_eq!(vm_use.cores(), Cores { returning: 3, ..busy(5, 5) });
    vm_use.step_to(at(1.71));
    assert_eq!(vm_use.cores(), busy(8, 2));
    // Called off before they move: nothing moves, and nothing stops.
    vm_use.request_cores(10).unwrap();
    vm_use.request_cores(8).unwrap();
    assert_eq!(vm_use.cores(), busy(8, 2));
    // Begun: 10 at 0, 5 at 1, 3 at 1.7, 5 at 2, 3 at 2.7, 4 at 3 ms: the last ends at 4 ms.
    vm_use.step_to(at(3.99));
    assert_eq!((vm_use.outstanding(0), vm_use.latencies_ns(0).len()), (1, 0));
    vm_use.step_to(at(4.01));
    assert_eq!((vm_use.outstanding(0), vm_use.latencies_ns(0).len()), (0, 1));
    assert!((vm_use.latencies_ns(0).max() as f64 / 4e6 - 1.0).abs() < 2e-3);
    let spent = vm_use.spent();
    assert!((spent.used - 30e-3).abs() < 1e-9, "30 tasks of 1 ms: {spent:?}");
    // Ten virtual CPUs: at 1 ms ten more tasks are ready and find five cores; three wait until 1.7 ms, two until 2 ms.
    assert!((vm_use.waits_ns().max() as f64 / 1e6 - 1.0).abs() < 2e-3, "{}", vm_use.waits_ns().max());
    assert_eq!(vm_use.tasks(0), 30);
}

/// With all its cores a VM never waits for the hypervisor, however long its own queue; with fewer it does.
#[test]
fn dispatch_waits_show_missing_cores_only() {
    let overload = even(30_000.0, 500.0, 1);
    let mut vm_use = CoreUse::new(&VM, &overload, slow(), 2);
    vm_use.step_to(1.0);
    assert!(vm_use.outstanding(0) > 5000 && vm_use.tasks(0) > 15_000);
    assert_eq!(vm_use.waits_ns().max(), 0);
    vm_use.reset_waits();
    vm_use.request_cores(5).unwrap();
    vm_use.step_to(2.0);
    // Ten virtual CPUs on five cores: each waits as long as it runs.
    let p50_us = vm_use.waits_ns().value_at_quantile(0.5) as f64 / 1e3;
    assert!((p50_us / 500.0 - 1.0).abs() < 0.01, "{p50_us}");
}

/// The safeguard's signal: stepping stops at the first poll that finds no idle core.
#[test]
fn exhaustion_stops_at_a_poll() {
    let w = profiles().bursts.workload("memcached").unwrap();
    let mut stopping = CoreUse::new(&VM, w, slow(), 5);
    stopping.request_cores(5).unwrap();
    let mut through = stopping.clone();
    assert!(stopping.step_to_exhaustion(1.0));
    assert_eq!((stopping.cores().idle, stopping.cores().busy), (0, 5));
    let polls = (stopping.now_s() / 50e-6).round();
    assert!((stopping.now_s() - polls * 50e-6).abs() < 1e-12);
    let (last, before) = stopping.samples().split_last().unwrap();
    assert!(*last == 5 && before.iter().all(|b| *b < 5));
    // Stopping changes nothing.
    stopping.step_to(1.0);
    through.step_to(1.0);
    assert_eq!(stopping.samples(), through.samples());
    assert_eq!(stopping.latencies_ns(0), through.latencies_ns(0));
    // Without load nothing is ever exhausted.
    let mut quiet = CoreUse::new(&VM, w, slow(), 5);
    quiet.set_rate_rps(0, 0.0);
    assert!(!quiet.step_to_exhaustion(10.0));
    assert_eq!((quiet.now_s(), quiet.spent().idle), (10.0, 100.0));
}

/// 0 cores, or more than the VM has, are refused and change nothing.
#[test]
fn impossible_numbers_of_cores_are_refused() {
    let mut vm_use = CoreUse::new(&VM, &even(100.0, 100.0, 1), slow(), 1);
    for k in [0, 11] {
        let error = vm_use.request_cores(k).unwrap_err().to_string();
        assert!(error.contains(&k.to_string()) && error.contains("1 to 10"), "{error}");
    }
    assert_eq!(vm_use.cores(), Cores { idle: 10, ..Cores::default() });
}

/// The load may change while it runs: Table 2's 80,000, 20,000 and 160,000 QPS use cores in proportion where no thread
/// has to be woken, and less than that where one is woken for many requests.
#[test]
fn core_use_follows_the_load() {
    for wake_us in [0.0, 30.0] {
        let w = BurstWorkload { wake_us, threads: Some(8), pinned: true, ..even(0.0, 40.0, 1) };
        let mut vm_use = CoreUse::new(&VM, &w, slow(), 8);
        let (mut used, mut a_request_us) = (0.0, vec![]);
        for (i, qps) in [20_000.0, 80_000.0, 160_000.0].into_iter().enumerate() {
            vm_use.set_rate_rps(0, qps);
            vm_use.step_to((i + 1) as f64 * 5.0);
            a_request_us.push((vm_use.spent().used - used) / 5.0 / qps * 1e6);
            used = vm_use.spent().used;
        }
        if wake_us == 0.0 {
            assert!(a_request_us.iter().all(|us| (us / 40.0 - 1.0).abs() < 0.02), "{a_request_us:?}");
        } else {
            // Each of 8 threads is asleep when a request comes with the probability that it is idle, 1 - busy / 8: the use u a
            // request obeys u = 40 + 30 (1 - qps u / 8).
            for (got, qps) in a_request_us.iter().zip([0.02, 0.08, 0.16]) {
                let want = 70.0 / (1.0 + 30.0 * qps / 8.0);
                assert!((got / want - 1.0).abs() < 0.02, "{got} us at {qps} requests/us, want {want}");
            }
        }
    }
}

/// What a policy may do between two steps.
#[derive(Clone, Debug)]
struct Act {
    step_us: f64,
    cores: u32,
    /// Factor on the workload's rate.
    load: Option<f64>,
    stop_if_exhausted: bool,
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![1.0..100.0f64, 100.0..30_000.0f64, Just(50.0), Just(25_000.0)];
    let load = proptest::option::weighted(0.2, prop_oneof![Just(0.0), 0.0..2.0f64, 2.0..10.0f64]);
    (step, 1..=16u32, load, any::<bool>()).prop_map(|(step_us, cores, load, stop_if_exhausted)| Act {
        step_us,
        cores,
        load,
        stop_if_exhausted,
    })
}

proptest! {
    // A fixed seed: the same cases in every run.
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    })]

    /// Any policy, at loads from none to 10 times the usual: every core-second is used, idle or harvested; the VM gets the
    /// cores asked for and no others; no core is idle while a task waits; nothing is lost, nothing stopped half-way; and
    /// the same calls give the same bits.
    #[test]
    fn cores_and_requests_are_conserved(
        total in 1..=16u32,
        (qps, task_us, fanout) in (1.0..60_000.0f64, 1.0..3000.0f64, 1..24u32),
        (scv_service, scv_arrival) in (prop_oneof![Just(0.0), Just(1.0), 0.0..3.0f64], 1.0..6.0f64),
        return_ms in prop_oneof![Just(0.0), Just(0.1), Just(10.0), 0.0..40.0f64],
        (seed, pinned, threads) in (any::<u64>(), any::<bool>(), proptest::option::of(1..20u32)),
        shape in proptest::option::of((0.0..500.0f64, 1.0..60.0f64, 0.0..30.0f64)),
        acts in proptest::collection::vec(act(), 1..40),
    ) {
        let vm = PrimaryVm { cores: total, quantum_ms: 2.0, ..VM };
        let fanout = if pinned { 1 } else { fanout };
        let bursts = shape.map(|(per_s, requests, lasts_ms)| BurstShape { per_s, requests, lasts_ms, size_exponent: 0.3 });
        // At the usual rate no more than 1.5 a core and 100,000 tasks/s, so that 10 times it stays affordable.
        let qps = qps.min(1.5 * f64::from(total) / (task_us * 1e-6 * f64::from(fanout))).min(1e5 / f64::from(fanout));
        let even = BurstWorkload { scv_service, scv_arrival, pinned, threads, bursts, ..even(qps, task_us, fanout) };
        let moves = Reassignment { return_least_ms: 0.5 * return_ms, take_ms: 3.0, ..Reassignment::constant(return_ms) };
        let run = || -> Result<CoreUse, TestCaseError> {
            let mut vm_use = CoreUse::new(&vm, &even, moves, seed);
            let mut asked = total;
            let mut polls = 0;
            let mut next_s = 0.0;
            for a in &acts {
                let before = vm_use.cores();
                let k = a.cores.min(total);
                vm_use.request_cores(k).unwrap();
                let c = vm_use.cores();
                prop_assert_eq!(c.assigned(), k);
                prop_assert_eq!(c.busy, before.busy, "a request stops or starts no task");
                prop_assert!(c.idle <= before.idle, "cores came back at once");
                if k >= asked {
                    prop_assert_eq!((c.idle, c.harvested), (before.idle, before.harvested));
                }
                asked = k;
                if let Some(load) = a.load {
                    vm_use.set_rate_rps(0, qps * load);
                }
                next_s += a.step_us * 1e-6;
                let exhausted = a.stop_if_exhausted && vm_use.step_to_exhaustion(next_s);
                if exhausted {
                    prop_assert!(vm_use.cores().idle == 0 && vm_use.now_s() <= next_s);
                    next_s = vm_use.now_s();
                } else {
                    vm_use.step_to(next_s);
                    prop_assert_eq!(vm_use.now_s(), next_s);
                }
                let c = vm_use.cores();
                prop_assert_eq!(c.busy + c.idle + c.harvested, total);
                prop_assert_eq!(c.assigned(), asked);
                prop_assert!(c.leaving <= c.busy && c.returning <= c.harvested && c.arriving <= c.harvested);
                prop_assert!(c.returning == 0 || c.leaving == 0);
                prop_assert!(c.busy + c.idle > c.leaving, "no core left");
                // Work conserving: with an idle core a common queue has no more requests than tasks run, or threads are.
                let most = u64::from(c.busy);
                prop_assert!(c.idle == 0 || pinned || vm_use.outstanding(0) <= most || c.busy == threads.unwrap_or(total).min(total));
                prop_assert!(c.busy <= threads.unwrap_or(total));
                polls += vm_use.samples().len();
                prop_assert!(vm_use.samples().iter().all(|b| u32::from(*b) <= total));
                vm_use.start_window();
                let (s, all) = (vm_use.spent(), f64::from(total) * vm_use.now_s());
                prop_assert!((s.used + s.idle + s.harvested - all).abs() <= 1e-9 * all, "{s:?}, all {all}");
                prop_assert!(s.returning <= s.harvested + 1e-12 && s.lent <= s.harvested + 1e-12);
                prop_assert!((vm_use.lent_s().iter().sum::<f64>() - vm_use.now_s()).abs() <= 1e-9);
            }
            // One poll every 50 us from 0 on, whatever the steps were; a stop has read the poll at its own instant.
            let expected = (vm_use.now_s() / 50e-6 + 1.0) as usize;
            prop_assert!(polls.abs_diff(expected) <= 1, "{polls} polls, {expected} expected");
            Ok(vm_use)
        };
        let mut vm_use = run()?;
        let again = run()?;
        prop_assert_eq!(vm_use.spent(), again.spent());
        prop_assert_eq!(vm_use.latencies_ns(0), again.latencies_ns(0));
        prop_assert_eq!(vm_use.waits_ns(), again.waits_ns());

        // Let it run dry: every request that came is answered, and each task had exactly its service time.
        vm_use.set_rate_rps(0, 0.0);
        vm_use.request_cores(total).unwrap();
        let mut t_s = vm_use.now_s();
        while vm_use.outstanding(0) > 0 || vm_use.cores().idle < total {
            t_s += 1.0;
            vm_use.step_to(t_s);
            vm_use.start_window();
        }
        let tasks = vm_use.tasks(0);
        prop_assert_eq!(vm_use.latencies_ns(0).len() * u64::from(fanout), tasks);
        let services = surefoot_vserver::requests::ServiceTimes::new(task_us * 1e-6, scv_service, seed);
        let work_s: f64 = (0..tasks).map(|i| services.of(i)).sum();
        prop_assert!((vm_use.spent().used - work_s).abs() <= 1e-9 * t_s * f64::from(total), "{:?}, work {work_s}", vm_use.spent());
        if scv_service == 0.0 && tasks > 0 {
            prop_assert!(vm_use.latencies_ns(0).min() as f64 >= 0.998 * task_us * 1e3, "a task was cut short");
        }
    }

    /// A policy sees the same requests whatever it does: as many arrive in 50 ms on one core as on all, and without bursts
    /// as many as the stream of arrivals has.
    #[test]
    fn arrivals_do_not_depend_on_cores(
        (seed, k) in (any::<u64>(), 1..=10u32),
        (qps, scv_arrival) in (0.0..100_000.0f64, 1.0..4.0f64),
        shape in proptest::option::of((0.0..500.0f64, 1.0..60.0f64, 0.0..30.0f64)),
        pinned in any::<bool>(),
    ) {
        let bursts = shape.map(|(per_s, requests, lasts_ms)| BurstShape { per_s, requests, lasts_ms, size_exponent: 0.3 });
        let w = BurstWorkload { scv_arrival, bursts, pinned, ..even(qps.max(1e-3), 57.5, 1) };
        let came = |k: u32| {
            let mut vm_use = CoreUse::new(&VM, &w, slow(), seed);
            vm_use.request_cores(k).unwrap();
            vm_use.step_to(0.05);
            vm_use.latencies_ns(0).len() + vm_use.outstanding(0)
        };
        prop_assert_eq!(came(k), came(10));
        if bursts.is_none() {
            let stream: u64 = Arrivals::new(w.qps, scv_arrival, seed).take_while(|b| b.at_s <= 0.05).map(|b| b.requests).sum();
            prop_assert_eq!(came(k), stream);
        }
    }
}

/// Behind the port of leases: what is asked for comes to what the VM has, waits are counted once, and the end brings everything back.
#[test]
fn a_primary_vm_lends_through_the_port() {
    let w = &plain("memcached");
    let lease = Lease { lender: "web".into(), borrower: "batch".into(), cpus: CpuSet::range(1, 10) };
    let mut primary = VirtualLender::new(lease, &VM, w, slow(), 1);
    let port: &mut dyn Lender = &mut primary;
    assert_eq!(port.lend(10), Err(LendError::TooMany { asked: 10, most: 9 }));
    // Nothing runs yet: what is idle goes at once.
    assert_eq!(port.lend(9), Ok(Lent { cores: 9, to_come: 0, returning: 0 }));
    let (mut dispatches, mut long) = (0, 0);
    for ms in 1..=200 {
        port.advance_to(ms * 1000);
        assert!(port.busy().unwrap() <= 1);
        let waits = port.waits().unwrap();
        dispatches += waits.dispatches;
        long += waits.long().unwrap();
        assert!(waits.long().unwrap() <= waits.dispatches && waits.total_us >= LONG_WAIT_US * waits.long().unwrap() as f64);
    }
    // 2.3 cores of work on one core.
    assert!(dispatches > 500 && long > dispatches / 2, "{long} of {dispatches}");
    assert_eq!(port.lend(2), Ok(Lent { cores: 9, to_come: 0, returning: 7 }));
    port.advance_to(211_000);
    assert_eq!(port.lend(2), Ok(Lent { cores: 2, to_come: 0, returning: 0 }));
    primary.end("a plan changes the CPUs of one of them");
    primary.advance_to(222_000);
    assert_eq!((primary.truth().cores().harvested, primary.truth().cores().assigned()), (0, 10));
    assert!(matches!(primary.lend(1), Err(LendError::Ended { .. })) && primary.busy().is_err() && primary.waits().is_err());
}

/// Several primaries lend as one: the lease is theirs together, busy is their sum, and the same calls give the same bits.
#[test]
fn several_primaries_lend_as_one() {
    let bursts = &profiles().bursts;
    let vm = bursts.primary().unwrap();
    let run = || {
        let lease = Lease { lender: "web".into(), borrower: "batch".into(), cpus: CpuSet::range(1, 20) };
        let vms = [(&vm, shipped("memcached")), (&vm, shipped("indexserve"))];
        let mut primaries = VirtualLender::group(lease, &vms, bursts.reassignment("cpugroups").unwrap(), 1);
        assert_eq!(primaries.lend(20), Err(LendError::TooMany { asked: 20, most: 19 }));
        let mut seen = vec![];
        for ms in 1..=2000 {
            primaries.advance_to(ms * 1000);
            let busy = primaries.busy().unwrap();
            assert_eq!(busy, primaries.truth().busy_of(0) + primaries.truth().busy_of(1));
            seen.push((busy, primaries.lend((20 - busy).saturating_sub(7)).unwrap(), primaries.waits().unwrap().dispatches));
        }
        assert!(primaries.truth().latencies_ns(0).len() > 10_000 && primaries.truth().latencies_ns(1).len() > 500);
        seen
    };
    assert_eq!(run(), run());
}

/// Requests of one thread wait for it, however many others sleep: every thread is a queue M/D/1 of its own, with the mean
/// response time of Pollaczek and Khinchin.
#[test]
fn requests_of_a_connection_wait_for_its_thread() {
    let w = BurstWorkload { threads: Some(4), pinned: true, ..even(28_000.0, 100.0, 1) };
    let mut vm_use = CoreUse::new(&VM, &w, slow(), 3);
    vm_use.step_to(60.0);
    // Load 0.7 a thread: 100 us (1 + 0.7 / (2 - 2 x 0.7)).
    let want_us = 100.0 * (1.0 + 0.7 / 0.6);
    let got_us = vm_use.latencies_ns(0).mean() * 1e-3;
    assert!((got_us / want_us - 1.0).abs() < 0.02, "{got_us}, want {want_us}");
    // From a common queue of four, M/D/4 waits far less.
    let mut common = CoreUse::new(&VM, &BurstWorkload { pinned: false, ..w }, slow(), 3);
    common.step_to(60.0);
    assert!(common.latencies_ns(0).mean() * 1e-3 < 130.0);
}

/// A thread that does not sleep lets the next one run after the quantum, not before: two on one core take turns.
#[test]
fn threads_take_turns_by_the_quantum() {
    let w = BurstWorkload { threads: Some(2), pinned: true, ..even(50_000.0, 50.0, 1) };
    let mut vm_use = CoreUse::new(&VM, &w, slow(), 4);
    vm_use.request_cores(1).unwrap();
    vm_use.step_to(0.5);
    vm_use.reset_waits();
    vm_use.step_to(5.5);
    // 5 s in turns of 10 ms to the end of a task of 50 us.
    let waits = vm_use.waits_ns();
    assert!((495..=500).contains(&waits.len()), "{} turns", waits.len());
    assert!(waits.min() >= 9_990_000 && waits.max() <= 10_060_000, "{} to {} ns", waits.min(), waits.max());
}

/// A core that comes back has cold caches: its next task takes `cold_us` longer, the one after that does not.
#[test]
fn a_core_that_comes_back_is_cold_once() {
    let vm = PrimaryVm { cores: 2, cold_us: 40.0, ..VM };
    let w = even(100.0, 100.0, 1);
    let used = |moves: u32| {
        let mut vm_use = CoreUse::new(&vm, &w, Reassignment::constant(0.0), 6);
        for i in 0..moves {
            // Both cores are touched only one at a time: the one that stays is warm and is taken first by the next task.
            vm_use.step_to(f64::from(i) + 0.5);
            vm_use.request_cores(1).unwrap();
            vm_use.step_to(f64::from(i) + 0.6);
            vm_use.request_cores(2).unwrap();
        }
        vm_use.step_to(100.0);
        (vm_use.spent().used, vm_use.latencies_ns(0).max())
    };
    let (still, longest) = used(0);
    let (moved, longest_cold) = used(50);
    // Tasks overlap rarely at 1 % load, so the cold core is met a few times at most, each time for 40 us.
    let times = (moved - still) / 40e-6;
    assert!((times - times.round()).abs() < 1e-6 && (1.0..=50.0).contains(&times.round()), "{times} cold starts");
    assert!(longest_cold >= longest);
}

/// A core is back at an even chance between the least and the longest delay, each on its own.
#[test]
fn cores_come_back_one_by_one() {
    let mut vm_use =
        CoreUse::new(&VM, &even(1.0, 1.0, 1), Reassignment { return_least_ms: 1.0, return_ms: 5.0, ..Reassignment::constant(0.0) }, 9);
    vm_use.set_rate_rps(0, 0.0);
    let (mut sum_ms, mut n) = (0.0, 0.0);
    for round in 0..500 {
        let start_s = f64::from(round);
        vm_use.request_cores(1).unwrap();
        vm_use.step_to(start_s + 0.5);
        vm_use.request_cores(10).unwrap();
        let before = vm_use.spent().returning;
        vm_use.step_to(start_s + 0.501 - 1e-6);
        assert_eq!(vm_use.cores().returning, 9, "before 1 ms");
        vm_use.step_to(start_s + 0.505 + 1e-6);
        assert_eq!(vm_use.cores(), Cores { idle: 10, ..Cores::default() }, "after 5 ms");
        sum_ms += (vm_use.spent().returning - before) * 1e3;
        n += 9.0;
        vm_use.step_to(start_s + 1.0);
    }
    // Standard error of the mean of 4,500 draws from 1 to 5 ms: 0.017 ms.
    assert!((sum_ms / n - 3.0).abs() < 0.06, "{} ms", sum_ms / n);
    assert_eq!(vm_use.taken(), 4500);
}

/// The harvester has the use of a core some time after it was taken, and until it is back with the VM; a core that goes
/// back at once is never of use to it.
#[test]
fn a_taken_core_is_of_use_after_a_delay() {
    let r = Reassignment { take_least_ms: 2.0, take_ms: 2.0, ..Reassignment::constant(3.0) };
    let mut vm_use = CoreUse::new(&VM, &even(1.0, 1.0, 1), r, 1);
    vm_use.set_rate_rps(0, 0.0);
    vm_use.request_cores(6).unwrap();
    assert_eq!(vm_use.cores(), Cores { idle: 6, harvested: 4, arriving: 4, ..Cores::default() });
    vm_use.step_to(1.9e-3);
    assert_eq!((vm_use.cores().lent(), vm_use.spent().lent), (0, 0.0));
    vm_use.step_to(10e-3);
    assert_eq!(vm_use.cores().lent(), 4);
    vm_use.request_cores(10).unwrap();
    vm_use.step_to(20e-3);
    assert_eq!(vm_use.cores(), Cores { idle: 10, ..Cores::default() });
    // Four cores from 2 to 13 ms.
    assert!((vm_use.spent().lent - 4.0 * 11e-3).abs() < 1e-12 && (vm_use.lent_s()[4] - 11e-3).abs() < 1e-12);
    let r = Reassignment { take_least_ms: 5.0, take_ms: 5.0, ..Reassignment::constant(3.0) };
    let mut short = CoreUse::new(&VM, &even(1.0, 1.0, 1), r, 1);
    short.set_rate_rps(0, 0.0);
    short.request_cores(6).unwrap();
    short.request_cores(10).unwrap();
    short.step_to(20e-3);
    assert_eq!((short.cores().arriving, short.spent().lent), (0, 0.0));
}

/// Each VM of a group runs on no more cores than its own, however many are idle, and the group is busy on their sum.
#[test]
fn a_vm_of_a_group_has_its_own_cap() {
    let small = PrimaryVm { cores: 4, ..VM };
    let (heavy, light) = (even(40_000.0, 500.0, 1), even(400.0, 500.0, 1));
    let mut group = CoreUse::group(&[(&VM, &light), (&small, &heavy)], slow(), 5);
    group.step_to(1.0);
    group.start_window();
    for i in 1..=200 {
        group.step_to(1.0 + f64::from(i) * 1e-3);
        assert_eq!(group.busy_of(1), 4, "an overloaded VM uses all that is its own");
        assert_eq!(group.cores().busy, group.busy_of(0) + 4);
        assert!(group.cores().idle >= 9 - group.busy_of(0));
    }
    assert!(group.samples().iter().all(|b| *b >= 4));
    let spent = group.spent();
    assert!((group.used_of(0) + group.used_of(1) - spent.used).abs() < 1e-9);
    assert!((group.used_of(1) - 4.8).abs() < 0.01 && (group.used_of(0) - 0.24).abs() < 0.05, "{}", group.used_of(0));
    // Its neighbour's overload changes nothing for a VM that has its cores.
    let mut alone = CoreUse::new(&VM, &light, slow(), 5);
    alone.step_to(1.2);
    assert_eq!(alone.latencies_ns(0), group.latencies_ns(0));
    assert_eq!(group.waits_ns().max(), 0);
    assert_eq!(group.request_cores(15).unwrap_err().to_string(), "15 cores asked for primary VMs of 14. Ask for 1 to 14.");
}

/// Where a group lacks cores, its VMs wait in order of readiness: both wait, and both are slower than with all cores.
#[test]
fn vms_of_a_group_share_what_is_left() {
    let (a, b) = (even(2000.0, 1000.0, 1), even(2000.0, 1000.0, 1));
    let p99 = |cores: u32| {
        let mut group = CoreUse::group(&[(&VM, &a), (&VM, &b)], slow(), 7);
        group.request_cores(cores).unwrap();
        group.step_to(20.0);
        [0, 1].map(|vm| group.latencies_ns(vm).value_at_quantile(0.99) as f64)
    };
    let (all, five) = (p99(20), p99(5));
    for vm in 0..2 {
        assert!(five[vm] > 1.5 * all[vm], "VM {vm}: {} and {} ns", five[vm], all[vm]);
    }
    // Same load, same queue: nearly the same wait.
    assert!((five[0] / five[1] - 1.0).abs() < 0.1, "{five:?}");
}

/// At rest 99 of 100 dispatches wait less than 6 us (SmartHarvest, section 3.4) and so few more than 50 us that no
/// safeguard stops; with too few cores over 1 % wait more than 50 us.
#[test]
fn dispatch_waits_are_short_at_rest() {
    let vm = profiles().bursts.primary().unwrap();
    for name in profiles().bursts.workloads.keys() {
        let mut vm_use = CoreUse::new(&vm, shipped(name), profiles().bursts.reassignment("cpugroups").unwrap(), 1);
        vm_use.step_to(20.0);
        let p99_ns = vm_use.waits_ns().value_at_quantile(0.99);
        assert!((4_000..6_000).contains(&p99_ns), "{name}: {p99_ns} ns");
        assert!(vm_use.waits_ns().max() < 50_000, "{name}");
        vm_use.request_cores(3).unwrap();
        vm_use.reset_waits();
        vm_use.step_to(40.0);
        let waits = vm_use.waits_ns();
        let long = waits.len() - waits.count_between(0, 50_000);
        assert!(long * 20 > waits.len(), "{name}: {long} of {}", waits.len());
    }
}

/// A batch job on lent cores: Amdahl's law for a number that stays, time-weighted for one that changes, less what moves
/// cost.
#[test]
fn a_batch_job_speeds_up_with_lent_cores() {
    let job = BatchSide { own_cores: 1, parallel: 0.9, move_ms: 0.0 };
    assert_eq!(job.speed_up(&[10.0], 0), 1.0);
    // On four cores 1 / (0.1 + 0.9 / 4) = 3.077; half of the time: (1 + 3.077) / 2.
    assert!((job.speed_up(&[0.0, 0.0, 0.0, 7.0], 0) - 1.0 / 0.325).abs() < 1e-12);
    assert!((job.speed_up(&[5.0, 0.0, 0.0, 5.0], 0) - 0.5 * (1.0 + 1.0 / 0.325)).abs() < 1e-12);
    // 100 moves of 10 core-ms are 1 of 40 core-seconds.
    let costly = BatchSide { move_ms: 10.0, ..job };
    assert!((costly.speed_up(&[0.0, 0.0, 0.0, 10.0], 100) - 0.975 / 0.325).abs() < 1e-12);
    // No more is lost than there was.
    assert_eq!(costly.speed_up(&[1.0], 1_000_000), 0.0);
    // The plant hands over what is asked for: 4 cores lent for 2 of 10 s.
    let mut vm_use = CoreUse::new(&VM, &even(1.0, 1.0, 1), Reassignment::constant(0.0), 1);
    vm_use.set_rate_rps(0, 0.0);
    vm_use.step_to(8.0);
    vm_use.request_cores(6).unwrap();
    vm_use.step_to(10.0);
    let want = (8.0 + 2.0 / (0.1 + 0.9 / 5.0)) / 10.0;
    assert!((job.speed_up(vm_use.lent_s(), vm_use.taken()) - want).abs() < 1e-9);
    assert_eq!(vm_use.taken(), 4);
}
