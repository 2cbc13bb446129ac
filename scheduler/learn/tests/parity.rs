//! The node computes what PyTorch computed in the lab: shared vectors in the repository's `tests/vectors`.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use surefoot_learn::rng::Rng;
use surefoot_learn::{
    dqn, one_hot, Agent, Bundle, DqnAgent, DqnHyper, Expect, Guard, Hyper, InputSpec, Learner, Mlp, Output, Scratch, Tape,
};
use surefoot_learn::{learner::Nets, TrustedKeys};

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

fn bundle() -> Bundle {
    let keys = TrustedKeys::load(&vectors().join("keys/trusted")).unwrap();
    Bundle::load(&vectors().join("bundle-small"), &keys, &Expect::default()).unwrap()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Largest difference of two lists of equal length.
fn gap(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max)
}

/// Models A, B and C give PyTorch's numbers, inputs and outputs, with a difference of 1e-5 at most.
#[test]
fn inference_equals_pytorch() {
    let file: Value = serde_json::from_slice(&std::fs::read(vectors().join("inference.json")).unwrap()).unwrap();
    let mut b = bundle();
    assert_eq!(file["manifest_sha256"].as_str().unwrap(), b.digest, "vectors are of another bundle");
    let tolerance = 1e-5;
    let mut scratch = Scratch::default();
    for letter in ["a", "b", "c"] {
        let model = &file["models"][letter];
        let cases = model["cases"].as_array().unwrap();
        assert!(cases.len() >= 20, "{letter}: {} cases", cases.len());
        let mut widest: f64 = 0.0;
        for case in cases {
            let raw: Vec<Option<f64>> = numbers(&case["raw"]).into_iter().map(Some).collect();
            let (normalised, network) = (numbers(&case["normalised"]), numbers(&case["network"]));
            if letter == "c" {
                let state = b.c.state(&raw).unwrap();
                widest = widest.max(gap(&state, &normalised)).max(gap(&b.c.act(&state), &network));
                continue;
            }
            let m = if letter == "a" { &b.a } else { &b.b };
            let natural = m.predict(&raw, &mut scratch).unwrap().to_vec();
            widest = widest.max(gap(scratch.normalised(), &normalised)).max(gap(scratch.network(), &network));
            // Natural units: the same difference, times the output's scale.
            for ((y, want), o) in natural.iter().zip(numbers(&case["outputs"])).zip(&m.outputs) {
                assert!((y - want).abs() <= tolerance * o.scale.max(1.0), "{letter}.{}: {y}, want {want}", o.name);
            }
        }
        assert!(widest <= tolerance, "{letter}: {widest}");
        println!("model {letter}: {} cases, largest difference {widest:.1e}", cases.len());
    }
}

fn tensor(file: &SafeTensors, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn inputs(n: usize) -> Vec<InputSpec> {
    (0..n).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect()
}

/// Hyperparameters of the lab, from the file's metadata.
fn args(bytes: &[u8]) -> Value {
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    serde_json::from_str(&header.metadata().as_ref().unwrap()["args"]).unwrap()
}

/// Largest difference of two networks' weights.
fn far(x: &Mlp, y: &Mlp) -> f32 {
    x.params().iter().zip(y.params()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn network(file: &SafeTensors, prefix: &str, sizes: &[usize], output: Output) -> Mlp {
    let layers: Vec<(Vec<f32>, Vec<f32>)> = (0..sizes.len() - 1)
        .map(|n| (tensor(file, &format!("{prefix}.layers.{n}.weight")), tensor(file, &format!("{prefix}.layers.{n}.bias"))))
        .collect();
    let borrowed: Vec<(&[f32], &[f32])> = layers.iter().map(|(w, b)| (w.as_slice(), b.as_slice())).collect();
    Mlp::from_layers(sizes, output, &borrowed).unwrap()
}

/// Five steps of learning on PyTorch's batches end at PyTorch's weights, all four networks, and pass its losses.
#[test]
fn learning_equals_pytorch() {
    let bytes = std::fs::read(vectors().join("ddpg.safetensors")).unwrap();
    let args = args(&bytes);
    let arg = |name: &str| args[name].as_f64().unwrap();
    let hyper = Hyper {
        gamma: arg("gamma") as f32,
        tau: arg("tau") as f32,
        lr_actor: arg("lr_actor"),
        lr_critic: arg("lr_critic"),
        adam_beta1: arg("adam_beta1"),
        adam_beta2: arg("adam_beta2"),
        adam_eps: arg("adam_eps"),
        critic_l2: arg("critic_l2") as f32,
        actor_entropy: arg("actor_entropy") as f32,
        batch: arg("batch") as usize,
        ..Hyper::default()
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (state_len, batch) = (8, hyper.batch);
    let (actor, critic) = ([state_len, 32, 64, 32, 7], [state_len + 7, 32, 64, 32, 1]);
    let mut agent = Agent::from_networks(
        inputs(state_len),
        network(&file, "initial.actor", &actor, Output::Softmax),
        network(&file, "initial.critic", &critic, Output::Linear),
        network(&file, "initial.actor_target", &actor, Output::Softmax),
        network(&file, "initial.critic_target", &critic, Output::Linear),
        hyper,
    )
    .unwrap();
    agent = agent.with_guard(Guard::off());
    let (want_critic, want_actor) = (tensor(&file, "loss.critic"), tensor(&file, "loss.actor"));
    for k in 0..5 {
        let get = |name: &str| tensor(&file, &format!("batch.{k}.{name}"));
        let (s, a, r, s2) = (get("state"), get("action"), get("reward"), get("next_state"));
        let from = agent.remembered();
        for i in 0..batch {
            let action: [f32; 7] = a[i * 7..(i + 1) * 7].try_into().unwrap();
            assert!(agent.remember(&s[i * state_len..(i + 1) * state_len], &action, r[i], &s2[i * state_len..(i + 1) * state_len]));
        }
        let rows: Vec<usize> = (from..from + batch).collect();
        let stats = agent.learn_on(&rows).unwrap();
        assert!((stats.critic_loss - want_critic[k]).abs() < 1e-5 * want_critic[k].abs().max(1.0), "step {k}: {stats:?}");
        assert!((stats.actor_loss - want_actor[k]).abs() < 1e-5, "step {k}: {stats:?}, want {}", want_actor[k]);
        if k == 0 || k == 4 {
            let after = format!("after.{}", k + 1);
            for (name, got, sizes, output) in [
                ("actor", agent.actor(), &actor, Output::Softmax),
                ("critic", agent.critic(), &critic, Output::Linear),
                ("actor_target", agent.actor_target(), &actor, Output::Softmax),
                ("critic_target", agent.critic_target(), &critic, Output::Linear),
            ] {
                let want = network(&file, &format!("{after}.{name}"), sizes, output);
                let before = network(&file, &format!("initial.{name}"), sizes, output);
                let (off, moved) = (far(got, &want), far(&before, &want));
                println!("{after} {name}: weights moved by up to {moved:.1e}, differ by up to {off:.1e}");
                assert!(off <= 1e-5, "{after} {name}: {off} (moved {moved})");
                assert!(moved > 1e-7, "{after} {name} did not move: the comparison proves nothing");
            }
        }
    }
    assert_eq!(agent.steps(), 5);
}

/// The same for the DQN: five steps, the target copied after the third.
#[test]
fn dqn_learning_equals_pytorch() {
    let bytes = std::fs::read(vectors().join("dqn.safetensors")).unwrap();
    let args = args(&bytes);
    let arg = |name: &str| args[name].as_f64().unwrap();
    let hyper = DqnHyper {
        gamma: arg("gamma") as f32,
        lr: arg("lr"),
        rms_alpha: arg("rms_alpha"),
        rms_eps: arg("rms_eps"),
        copy_every: arg("copy_every") as u64,
        batch: arg("batch") as usize,
        ..DqnHyper::default()
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let state_len = file.tensor("batch.0.state").unwrap().shape()[1];
    let sizes = [state_len, 30, 30, 30, dqn::ACTIONS];
    let net = |name: &str| network(&file, name, &sizes, Output::Linear);
    let mut agent = DqnAgent::from_networks(inputs(state_len), net("initial.policy"), net("initial.target"), hyper.clone()).unwrap();
    agent = agent.with_guard(Guard::off());
    let want = tensor(&file, "loss");
    for (k, want) in want.iter().enumerate() {
        let get = |name: &str| tensor(&file, &format!("batch.{k}.{name}"));
        let (s, a, r, s2) = (get("state"), get("action"), get("reward"), get("next_state"));
        let from = agent.remembered();
        for i in 0..hyper.batch {
            let at = i * state_len..(i + 1) * state_len;
            assert!(agent.remember(&s[at.clone()], &a[i..=i], r[i], &s2[at]));
        }
        let rows: Vec<usize> = (from..from + hyper.batch).collect();
        let loss = agent.learn_on(&rows).unwrap().loss;
        assert!((loss - want).abs() < 1e-5 * want.max(1.0), "step {k}: {loss}, want {want}");
        if [1, 3, 5].contains(&(k + 1)) {
            for (name, got) in [("policy", agent.policy()), ("target", agent.target())] {
                let off = far(got, &net(&format!("after.{}.{name}", k + 1)));
                assert!(off <= 1e-5, "after step {} {name}: {off}", k + 1);
            }
        }
    }
    assert!(far(agent.policy(), &net("initial.policy")) > 1e-3, "nothing moved: the comparison proves nothing");
    assert_eq!(agent.steps(), 5);
}

/// What `pipelines/parity.py` says of weights, experience, draws and raw inputs, made here once more.
mod seeded {
    use super::*;

    pub const STATE: usize = 8;
    pub const TRANSITIONS: usize = 2000;
    /// The published rates and the paper's loss.
    pub fn hyper() -> Hyper {
        Hyper { replay: TRANSITIONS, seed: 300, ..Hyper::default() }
    }

    fn weights(sizes: &[usize], output: Output, seed: u64) -> Mlp {
        let last = 1.0 / (sizes[sizes.len() - 2] as f32).sqrt();
        Mlp::random(sizes, output, last, &mut Rng::new(seed))
    }

    fn remember<N: Nets>(learner: &mut Learner<N>, actions: usize, action: impl Fn(usize) -> Vec<f32>) {
        let mut rng = Rng::new(200);
        for _ in 0..TRANSITIONS {
            let u: Vec<f64> = (0..2 * STATE + 1).map(|_| rng.uniform()).collect();
            let a = (u[2 * STATE] * actions as f64) as usize;
            let x: Vec<f32> = u[..2 * STATE].iter().map(|v| *v as f32).collect();
            let (s, s2) = x.split_at(STATE);
            assert!(learner.remember(s, &action(a), s[0] + s[a % STATE], s2));
        }
    }

    pub const ACTOR: [usize; 5] = [STATE, 32, 64, 32, 7];
    pub const CRITIC: [usize; 5] = [STATE + 7, 32, 64, 32, 1];
    pub const POLICY: [usize; 5] = [STATE, 30, 30, 30, dqn::ACTIONS];

    pub fn ddpg(hyper: Hyper) -> Agent {
        let (actor, critic) = (weights(&ACTOR, Output::Softmax, 100), weights(&CRITIC, Output::Linear, 101));
        let mut agent = Agent::from_networks(inputs(STATE), actor.clone(), critic.clone(), actor, critic, hyper).unwrap();
        agent = agent.with_guard(Guard::off());
        remember(&mut agent, 7, |a| one_hot(a).to_vec());
        agent
    }

    pub fn dqn() -> DqnAgent {
        let policy = weights(&POLICY, Output::Linear, 102);
        let hyper = DqnHyper { replay: TRANSITIONS, seed: 300, ..DqnHyper::default() };
        let mut agent = DqnAgent::from_networks(inputs(STATE), policy.clone(), policy, hyper).unwrap().with_guard(Guard::off());
        remember(&mut agent, dqn::ACTIONS, |a| vec![a as f32]);
        agent
    }
}

fn learnt() -> Vec<u8> {
    std::fs::read(vectors().join("learning-1000.safetensors")).unwrap()
}

/// Largest difference of what two networks give for 1000 seeded inputs, relative where a value is above 1.
fn outputs_differ(x: &Mlp, y: &Mlp) -> f32 {
    let (mut rng, mut one, mut other) = (Rng::new(9), Tape::default(), Tape::default());
    let inputs: Vec<f32> = (0..1000 * x.inputs()).map(|_| rng.uniform() as f32).collect();
    let (x, y) = (x.forward(&inputs, 1000, &mut one), y.forward(&inputs, 1000, &mut other));
    x.iter().zip(y).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max)
}

fn compare(file: &SafeTensors, name: &str, got: &Mlp, sizes: &[usize], output: Output) {
    let want = network(file, name, sizes, output);
    let (off, weights) = (outputs_differ(got, &want), far(got, &want));
    println!("{name}: after learning, outputs differ by up to {off:.1e}, weights by up to {weights:.1e}");
    assert!(off <= 1e-3, "{name}: {off}");
}

fn compare_losses(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() <= 1e-3 * want.abs().max(1.0), "loss {got}, want {want}");
    }
}

fn steps_of_ddpg(kind: &str, steps: usize, hyper: Hyper) {
    let bytes = learnt();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut agent = seeded::ddpg(hyper);
    let before = agent.actor().clone();
    let stats: Vec<_> = (0..steps).map(|_| agent.learn_step().unwrap().unwrap()).collect();
    let every = |of: fn(&surefoot_learn::LearnStats) -> f32| stats.iter().skip(99).step_by(100).map(of).collect::<Vec<f32>>();
    for (name, net, sizes, output) in [
        ("actor", agent.actor(), &seeded::ACTOR, Output::Softmax),
        ("critic", agent.critic(), &seeded::CRITIC, Output::Linear),
        ("actor_target", agent.actor_target(), &seeded::ACTOR, Output::Softmax),
        ("critic_target", agent.critic_target(), &seeded::CRITIC, Output::Linear),
    ] {
        compare(&file, &format!("{kind}.{name}"), net, sizes, output);
    }
    let want = tensor(&file, &format!("{kind}.losses"));
    compare_losses(&every(|s| s.critic_loss), &want.iter().copied().step_by(2).collect::<Vec<_>>());
    compare_losses(&every(|s| s.actor_loss), &want.iter().copied().skip(1).step_by(2).collect::<Vec<_>>());
    assert!(outputs_differ(agent.actor(), &before) > 0.02, "nothing was learnt: the comparison proves nothing");
}

/// Two hundred steps of on-line learning of the DDPG at the published rates end where PyTorch ends: actions and Q-values to
/// 1e-3. Later rounding decides there (`pipelines/parity.py`).
#[test]
fn learning_at_the_published_rates_equals_pytorch() {
    steps_of_ddpg("ddpg", 200, seeded::hyper());
}

/// A thousand steps at a critic's rate of 1e-3, with the entropy term.
#[test]
fn a_thousand_steps_of_ddpg_equal_pytorch() {
    steps_of_ddpg("ddpg-slow", 1000, Hyper { actor_entropy: 0.1, lr_critic: 1e-3, ..seeded::hyper() });
}

/// A thousand steps of the DQN.
#[test]
fn a_thousand_steps_of_dqn_equal_pytorch() {
    let bytes = learnt();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut agent = seeded::dqn();
    let before = agent.policy().clone();
    let losses: Vec<f32> = (0..1000).map(|_| agent.learn_step().unwrap().unwrap().loss).collect();
    compare_losses(&losses.iter().copied().skip(99).step_by(100).collect::<Vec<_>>(), &tensor(&file, "dqn.losses"));
    for (name, net) in [("dqn.policy", agent.policy()), ("dqn.target", agent.target())] {
        compare(&file, name, net, &seeded::POLICY, Output::Linear);
    }
    assert!(outputs_differ(agent.policy(), &before) > 0.1, "nothing was learnt: the comparison proves nothing");
}

/// 10,000 inferences of each model equal PyTorch's to 1e-5: raw inputs, some beyond the bounds, from one seed on both sides.
#[test]
fn ten_thousand_inferences_equal_pytorch() {
    let bytes = std::fs::read(vectors().join("inference-10000.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (mut b, mut scratch) = (bundle(), Scratch::default());
    let mut q = seeded::dqn();
    let learnt = learnt();
    let policy = network(&SafeTensors::deserialize(&learnt).unwrap(), "dqn.policy", &seeded::POLICY, Output::Linear);
    q = DqnAgent::from_networks(q.inputs.clone(), policy.clone(), policy, q.hyper.clone()).unwrap();
    for (seed, name) in ["a", "b", "c", "dqn"].into_iter().enumerate() {
        let want = tensor(&file, name);
        let specs = [&b.a.inputs, &b.b.inputs, &b.c.inputs, &q.inputs][seed].clone();
        let each = want.len() / 10_000;
        let mut rng = Rng::new(seed as u64);
        let mut worst: f32 = 0.0;
        for (i, want) in want.chunks_exact(each).enumerate() {
            let raw: Vec<Option<f64>> = (0..specs.len())
                .map(|k| {
                    let (u, spec) = (rng.uniform(), &specs[k]);
                    Some(if name == "dqn" { u } else { spec.min + (spec.max - spec.min) * (1.4 * u - 0.2) })
                })
                .collect();
            let got: Vec<f32> = match name {
                "a" | "b" => {
                    (if name == "a" { &b.a } else { &b.b }).predict(&raw, &mut scratch).unwrap();
                    scratch.network().to_vec()
                }
                "c" => {
                    let state = b.c.state(&raw).unwrap();
                    b.c.act(&state).to_vec()
                }
                _ => {
                    let state = q.state(&raw).unwrap();
                    q.q_values(&state).to_vec()
                }
            };
            for (k, want) in want.iter().enumerate() {
                worst = worst.max((got[(i + k) % got.len()] - want).abs() / want.abs().max(1.0));
            }
        }
        println!("{name}: 10,000 vectors, {each} outputs each, largest difference {worst:.1e}");
        assert!(want.len() == 10_000 * each && (1..=2).contains(&each));
        assert!(worst <= 1e-5, "{name}: {worst}");
    }
}

/// The same for OSML's models of the bundle that has them.
#[test]
fn ten_thousand_inferences_of_osmls_models_equal_pytorch() {
    let bytes = std::fs::read(vectors().join("inference-osml-10000.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let keys = TrustedKeys::load(&vectors().join("keys/trusted")).unwrap();
    let mut osml = Bundle::load(&vectors().join("bundle-whole.tar"), &keys, &Expect::default()).unwrap().osml.unwrap();
    let mut scratch = Scratch::default();
    assert_eq!(file.len(), 5);
    for (place, name) in ["osml_a", "osml_ap", "osml_b", "osml_bp", "osml_c"].into_iter().enumerate() {
        let want = tensor(&file, name);
        let model = [&osml.a, &osml.ap, &osml.b, &osml.bp].get(place).copied().cloned();
        let specs = model.as_ref().map_or(&osml.c.inputs, |m| &m.inputs).clone();
        let each = want.len() / 10_000;
        let mut rng = Rng::new(10 + place as u64);
        let mut worst: f32 = 0.0;
        for (i, want) in want.chunks_exact(each).enumerate() {
            let raw: Vec<Option<f64>> = specs.iter().map(|s| Some(s.min + (s.max - s.min) * (1.4 * rng.uniform() - 0.2))).collect();
            let got = match &model {
                Some(m) => {
                    m.predict(&raw, &mut scratch).unwrap();
                    scratch.network().to_vec()
                }
                None => {
                    let state = osml.c.state(&raw).unwrap();
                    osml.c.q_values(&state).to_vec()
                }
            };
            for (k, want) in want.iter().enumerate() {
                worst = worst.max((got[(i + k) % got.len()] - want).abs() / want.abs().max(1.0));
            }
        }
        println!("{name}: 10,000 vectors, {each} outputs each, largest difference {worst:.1e}");
        assert!(want.len() == 10_000 * each && (1..=2).contains(&each));
        assert!(worst <= 1e-5, "{name}: {worst}");
    }
}
