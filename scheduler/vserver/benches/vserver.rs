//! Steady cases/s (one service, alone and with two neighbours) and ticks/s with six services.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use std::hint::black_box;
use std::path::PathBuf;
use surefoot_server::{Allocation, Change, CpuSet, Plan, Server, Tick};
use surefoot_vserver::{place, sample_series, stack_ways, Plant, Profiles, Series, Steady, Tenant, VirtualServer, HORIZON_S};

fn profiles() -> Profiles {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("profiles");
    Profiles::load(&[dir]).expect("profiles of this crate")
}

/// The cores x ways plane of a service, with `neighbours` on what is left.
fn plane(all: &Profiles, names: &[(&str, f64)]) -> Vec<Vec<Tenant>> {
    let p = all.platform("server-1").expect("server-1");
    let mut cases = Vec::new();
    for cores in 1..=20 {
        for ways in 1..=10 {
            let others = names.len() as u32 - 1;
            let mut cpus = vec![cores];
            let mut masks = vec![ways];
            cpus.extend((0..others).map(|_| 16 / others));
            masks.extend((0..others).map(|_| 10 / others));
            let (cpus, masks) = (place(p, &cpus), stack_ways(p, &masks));
            let tenant = |i: usize| Tenant::new(all.service(names[i].0).expect("profile").clone(), names[i].1, 36, cpus[i], masks[i]);
            cases.push((0..names.len()).map(tenant).collect());
        }
    }
    cases
}

fn steady(c: &mut Criterion) {
    let all = profiles();
    let p = all.platform("server-1").expect("server-1").clone();
    let mut group = c.benchmark_group("steady");
    let sets: [(&str, &[(&str, f64)]); 4] = [
        ("alone", &[("moses", 2600.0)]),
        ("one_neighbour", &[("moses", 2600.0), ("xapian", 3400.0)]),
        ("two_neighbours", &[("moses", 2600.0), ("xapian", 3400.0), ("masstree", 3400.0)]),
        ("neighbour_and_job", &[("moses", 2600.0), ("xapian", 3400.0), ("streamcluster", 0.0)]),
    ];
    for (name, set) in sets {
        let cases = plane(&all, set);
        let mut s = Steady::new(p.clone());
        group.throughput(Throughput::Elements(cases.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                for t in &cases {
                    black_box(s.case_for(t, HORIZON_S, 1));
                }
            });
        });
    }
    let tenants = &plane(&all, &[("moses", 2600.0)])[95];
    let sample = Steady::new(p.clone()).case(tenants, HORIZON_S)[0];
    let series = Series { samples: 30, interval_s: 0.1, seed: 1 };
    let mut out = Vec::with_capacity(30);
    group.throughput(Throughput::Elements(30));
    group.bench_function("readings", |b| {
        b.iter(|| {
            out.clear();
            sample_series(&p, &sample, "moses", &series, &mut out);
            black_box(&out);
        });
    });
    group.finish();
}

const SIX: [&str; 6] = ["moses", "xapian", "img-dnn", "masstree", "memcached", "nginx"];

fn ticks(c: &mut Criterion) {
    let all = profiles();
    let p = all.platform("server-1").expect("server-1").clone();
    let cpus = place(&p, &[6, 6, 6, 6, 6, 6]);
    let masks = stack_ways(&p, &[4, 4, 3, 3, 3, 3]);
    let mut group = c.benchmark_group("ticks");
    for (name, seed) in [("six_services", Some(1)), ("six_services_mean_field", None)] {
        let mut plant = Plant::new(p.clone(), seed, 0.1);
        for (i, n) in SIX.iter().enumerate() {
            let profile = all.service(n).expect("profile").clone();
            let rps = 0.4 * profile.lc().and_then(|lc| lc.max_load_rps.get("server-1").copied()).expect("max load");
            plant.add(n, Tenant::new(profile, rps, 12, cpus[i], masks[i]), true).expect("valid tenant");
        }
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |b| b.iter(|| black_box(plant.step().len())));
    }
    group.finish();
}

/// What a closed loop costs beside its policy: a tick and an observation of six services.
fn closed_loop(c: &mut Criterion) {
    let all = profiles();
    let p = all.platform("server-1").expect("server-1").clone();
    let cpus = place(&p, &[6, 6, 6, 6, 6, 6]);
    let masks = stack_ways(&p, &[4, 4, 3, 3, 3, 3]);
    let mut server = VirtualServer::new(p, Some(1));
    let mut plan = Plan::default();
    for (i, n) in SIX.iter().enumerate() {
        let profile = all.service(n).expect("profile").clone();
        let rps = 0.4 * profile.lc().and_then(|lc| lc.max_load_rps.get("server-1").copied()).expect("max load");
        server.add(0, n, profile, rps, 12).expect("valid service");
        let everything = Allocation::everything(server.platform());
        let hold = Allocation { cpus: cpus[i], shared_cpus: CpuSet::empty(), ways: vec![masks[i]], shared_ways: vec![0], ..everything };
        plan.changes.insert((*n).into(), Change::all(&hold));
    }
    server.apply(&plan).expect("valid plan");
    (0..20).for_each(|_| server.advance(Tick { ms: 100 }));
    let mut group = c.benchmark_group("closed_loop");
    group.throughput(Throughput::Elements(1));
    group.bench_function("observe", |b| b.iter(|| black_box(server.observe().services.len())));
    group.bench_function("advance_and_observe", |b| {
        b.iter(|| {
            server.advance(Tick { ms: 100 });
            black_box(server.observe().services.len())
        });
    });
    group.finish();
}

criterion_group!(benches, steady, ticks, closed_loop);
criterion_main!(benches);
