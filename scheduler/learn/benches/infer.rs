//! Time of one inference, of one step of learning and of what surrounds it, at the sizes that a bundle has.

use criterion::{criterion_group, criterion_main, Criterion};
use std::hint::black_box;
use std::path::Path;
use surefoot_learn::rng::Rng;
use surefoot_learn::{
    dqn, one_hot, relative, Bundle, DqnAgent, DqnHyper, Expect, Guard, InputSpec, Learner, Mlp, Model, Output, OutputSpec, Scratch,
    TrustedKeys,
};

/// 1000 transitions of seeded states and rewards.
fn fill<N: surefoot_learn::learner::Nets>(learner: &mut Learner<N>, action: impl Fn(usize) -> Vec<f32>) {
    let (mut rng, n) = (Rng::new(5), learner.inputs.len());
    for i in 0..1000 {
        let mut state = || (0..n).map(|_| rng.uniform() as f32).collect::<Vec<f32>>();
        let (s, s2) = (state(), state());
        learner.remember(&s, &action(i), 2.0 * s2[0], &s2);
    }
}

/// A Model-B of all inputs that carry over, with an interval.
fn with_relative_inputs() -> Model {
    let inputs: Vec<InputSpec> = relative::all().iter().map(|r| InputSpec { name: r.name.clone(), min: r.min, max: r.max }).collect();
    let net = Mlp::random(&[inputs.len(), 32, 64, 32, 3], Output::Linear, 0.1, &mut Rng::new(2));
    let outputs = ["qos", "qos_lower", "qos_upper"].map(|name| OutputSpec { name: name.into(), offset: 1.0, scale: 1.0 });
    Model::new(inputs, outputs.to_vec(), net).expect("fits")
}

/// The same with a strangeness score of all its inputs; a Model-A's is of fewer.
fn with_strangeness(model: &Model) -> Model {
    let n = model.inputs.len();
    model.clone().with_strangeness(Mlp::random(&[n, n], Output::Linear, 0.1, &mut Rng::new(4))).expect("fits")
}

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
    let carried = with_relative_inputs();
    let value = |name: &str| Some(1.0 + name.len() as f64);
    c.bench_function("model-b of relative inputs, first question", |t| {
        t.iter(|| carried.predict_by(black_box(value), &mut scratch).map(|y| y[0]))
    });
    let again = carried.expecting(&[]);
    c.bench_function("model-b of relative inputs, another allocation", |t| {
        t.iter(|| {
            let others = again.iter().map(|i| (*i, carried.raw(*i, black_box(value)).unwrap_or(0.0)));
            carried.predict_again(others, &mut scratch).map(|y| y[0])
        })
    });
    let wide = with_strangeness(&carried);
    c.bench_function("strangeness of relative inputs", |t| t.iter(|| wide.strangeness(black_box(value), &mut scratch)));
    let s: Vec<f32> = (0..b.c.inputs.len()).map(|i| 0.1 * i as f32).collect();
    c.bench_function("model-c act", |t| t.iter(|| b.c.act(black_box(&s))));
    fill(&mut b.c, |i| one_hot(i % 7).to_vec());
    let rows: Vec<usize> = (0..256).map(|i| i * 3).collect();
    c.bench_function("model-c learning step, batch 256", |t| t.iter(|| b.c.learn_on(black_box(&rows))));
    c.bench_function("model-c learning step with its draw and its share of the guard", |t| t.iter(|| b.c.learn_step()));
    let mut open = b.c.clone();
    open.hyper.actor_entropy = 0.1;
    c.bench_function("model-c learning step, batch 256, entropy term", |t| t.iter(|| open.learn_on(black_box(&rows))));
    c.bench_function("model-c experience to bytes, 1000 transitions", |t| t.iter(|| b.c.experience("")));

    let net = Mlp::random(&[s.len(), 30, 30, 30, dqn::ACTIONS], Output::Linear, 0.1, &mut Rng::new(1));
    let mut q =
        DqnAgent::from_networks(b.c.inputs.clone(), net.clone(), net, DqnHyper::default()).expect("fits").with_guard(Guard::default());
    fill(&mut q, |i| vec![(i % dqn::ACTIONS) as f32]);
    c.bench_function("dqn choose", |t| t.iter(|| q.choose(black_box(&s), |_| true)));
    c.bench_function("dqn learning step, batch 200", |t| t.iter(|| q.learn_on(black_box(&rows[..200]))));

    c.bench_function("bundle load and verify (tar)", |t| t.iter(load));
}

criterion_group!(benches, bench);
criterion_main!(benches);
