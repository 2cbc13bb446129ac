//! What a decision costs (SmartHarvest, table 3: features 2.6, update 10.8, inference 6.5 us a window of ten cores).

use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use surefoot_harvest::cost::Cost;
use surefoot_harvest::learner::{Learner, Rule};
use surefoot_harvest::window::Readings;
use surefoot_harvest::{Harvester, Seen, Settings};

fn harvest(c: &mut Criterion) {
    for cores in [10u32, 24] {
        let mut readings = Readings::new(cores);
        (0..500u32).for_each(|i| readings.add(i * 7 % cores));
        let x = readings.features().expect("there are readings");
        let mut learner = Learner::new(cores, Rule::Invariant, 0.1);
        let mut peak = 0;
        c.bench_function(&format!("features of a window/{cores} cores"), |b| b.iter(|| black_box(&readings).features()));
        c.bench_function(&format!("update/{cores} cores"), |b| {
            b.iter(|| {
                peak = peak % cores + 1;
                learner.train(black_box(&x), |k| Cost::Skewed.at(k, peak, cores as f32));
            });
        });
        c.bench_function(&format!("inference/{cores} cores"), |b| b.iter(|| learner.best(black_box(&x))));
        for name in ["smartharvest", "wait-budget", "fixed-buffer-4"] {
            let mut h = Harvester::named(name, cores, cores - 1, &Settings::default()).expect("a policy");
            let mut n = 0u32;
            c.bench_function(&format!("one reading, {name}/{cores} cores"), |b| {
                b.iter(|| {
                    n = n.wrapping_add(1);
                    let now_us = h.next_us();
                    h.poll(&Seen { now_us, busy: n % cores, here: h.kept(), waiting_us: None })
                });
            });
        }
    }
}

criterion_group!(benches, harvest);
criterion_main!(benches);
