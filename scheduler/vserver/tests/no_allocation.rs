//! The hot paths allocate nothing once their buffers have grown.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{platform, profiles};
use surefoot_mutate::allocations::{allocations, Counting};
use surefoot_server::CpuSet;
use surefoot_vserver::{CoreUse, Plant, Steady, Tenant, HORIZON_S};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Three tenants with CPUs and ways of their own and in common.
fn tenants() -> Vec<Tenant> {
    [("moses", 2600.0, 0, 8, 0xff), ("memcached", 300_000.0, 6, 18, 0xff80), ("stream", 0.0, 18, 30, 0xf0000)]
        .into_iter()
        .map(|(name, rps, lo, hi, mask)| Tenant::new(profiles().service(name).unwrap().clone(), rps, 12, CpuSet::range(lo, hi), mask))
        .collect()
}

/// A sweep: no allocation a case.
#[test]
fn steady_cases_do_not_allocate() {
    let mut tenants = tenants();
    let mut steady = Steady::new(platform("server-1"));
    steady.case(&tenants, HORIZON_S);
    let n = allocations(|| {
        for cores in 1..=8 {
            tenants[0].cpus = CpuSet::range(0, cores);
            tenants[0].ways = [(1 << cores) - 1; 16];
            steady.case(&tenants, HORIZON_S);
        }
    });
    assert_eq!(n, 0);
}

/// A closed loop: no allocation a tick.
#[test]
fn ticks_do_not_allocate() {
    for seed in [None, Some(1)] {
        let mut plant = Plant::new(platform("server-1"), seed, 0.1);
        for (i, t) in tenants().into_iter().enumerate() {
            plant.add(&format!("t{i}"), t, true).unwrap();
        }
        plant.step();
        let n = allocations(|| {
            for _ in 0..100 {
                plant.step();
            }
        });
        assert_eq!(n, 0, "seed {seed:?}");
    }
}

/// Core use: no allocation an event, while cores come and go.
#[test]
fn core_use_does_not_allocate() {
    let bursts = &profiles().bursts;
    let vm = bursts.primary().unwrap();
    for name in bursts.workloads.keys() {
        let mut vm_use = CoreUse::new(&vm, bursts.workload(name).unwrap(), bursts.reassignment("interrupts").unwrap(), 1);
        let n = allocations(|| {
            for window in 1..=400 {
                vm_use.step_to(f64::from(window) * vm.window_ms * 1e-3);
                assert_eq!(vm_use.samples().len(), 500);
                vm_use.request_cores(7 + window % 4).unwrap();
                vm_use.start_window();
            }
        });
        assert_eq!(n, 0, "{name}");
        assert!(vm_use.latencies_ns(0).len() > 1000, "{name}");
    }
}
