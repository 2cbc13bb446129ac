//! Time of one inference and of one step of learning, at the sizes that a bundle has.

use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use std::path::Path;
use surefoot_learn::{one_hot, Bundle, Expect, Scratch, TrustedKeys};

fn bench(c: &mut Criterion) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let keys = TrustedKeys::load(&vectors.join("keys/trusted")).expect("test keys");
    let load = || Bundle::load(&vectors.join("bundle-small.tar"), &keys, &Expect::default()).expect("test bundle");
    let mut b = load();
    let mut scratch = Scratch::default();
    let raw: Vec<Option<f64>> = b.a.inputs.iter().map(|i| Some(0.3 * i.min + 0.7 * i.max)).collect();
    c.bench_function("model-a predict", |t| t.iter(|| b.a.predict(black_box(&raw), &mut scratch).map(|y| y[0])));
    let raw: Vec<Option<f64>> = b.b.inputs.iter().map(|i| Some(0.3 * i.min + 0.7 * i.max)).collect();
    c.bench_function("model-b predict", |t| t.iter(|| b.b.predict(black_box(&raw), &mut scratch).map(|y| y[0])));
    let s: Vec<f32> = (0..b.c.inputs.len()).map(|i| 0.1 * i as f32).collect();
    c.bench_function("model-c act", |t| t.iter(|| b.c.act(black_box(&s))));
    for i in 0..1000 {
        let at = |k: usize| (k as f32 * 0.618).fract();
        let (s, s2): (Vec<f32>, Vec<f32>) = (0..s.len()).map(|j| (at(i * 9 + j), at(i * 7 + j))).unzip();
        b.c.remember(&s, &one_hot(i % 7), at(i), &s2);
    }
    c.bench_function("model-c learning step, batch 256", |t| t.iter(|| b.c.learn_step()));
    c.bench_function("bundle load and verify (tar)", |t| t.iter(load));
}

criterion_group!(benches, bench);
criterion_main!(benches);
