//! Core use of 10-core VMs: simulated seconds per second, with a fixed number of cores and with cores that move every
//! window.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use std::hint::black_box;
use std::path::PathBuf;
use surefoot_vserver::{CoreUse, Profiles};

fn core_use(c: &mut Criterion) {
    let all = Profiles::load(&[PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("profiles")]).expect("profiles of this crate");
    let bursts = &all.bursts;
    let vm = bursts.primary().expect("primary");
    let interrupts = bursts.reassignment("interrupts").expect("interrupts");
    let window_s = vm.window_ms * 1e-3;
    let mut group = c.benchmark_group("core_use");
    // One iteration is one simulated second: elements/s is how much faster than real time.
    group.throughput(Throughput::Elements(1));
    for name in bursts.workloads.keys() {
        for moving in [false, true] {
            let mut vm_use = CoreUse::new(&vm, bursts.workload(name).expect("workload"), interrupts, 1);
            let mut window = 0u32;
            let id = if moving { format!("{name}/moving") } else { format!("{name}/fixed") };
            group.bench_function(id, |b| {
                b.iter(|| {
                    let end = window + (1.0 / window_s).round() as u32;
                    while window < end {
                        window += 1;
                        vm_use.step_to(f64::from(window) * window_s);
                        black_box(vm_use.peak());
                        vm_use.start_window();
                        if moving {
                            vm_use.request_cores(7 + window % 4).expect("7 to 10 cores");
                        }
                    }
                });
            });
        }
    }
    // Two VMs in one group: 20 cores.
    let memcached = &**bursts.workload("memcached").expect("workload");
    let mut pair = CoreUse::group(&[(&vm, memcached), (&vm, memcached)], interrupts, 1);
    let mut second = 0u32;
    group.bench_function("memcached + memcached/fixed", |b| {
        b.iter(|| {
            second += 1;
            pair.step_to(f64::from(second));
            black_box(pair.peak());
            pair.start_window();
        });
    });
    group.finish();
}

criterion_group!(benches, core_use);
criterion_main!(benches);
