//! The node computes what PyTorch computed in the lab: shared vectors in the repository's `tests/vectors`.

use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};
use surefoot_learn::{Agent, Bundle, Expect, Hyper, InputSpec, Mlp, Output, Scratch, TrustedKeys};

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
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let args: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["args"]).unwrap();
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
    let inputs = (0..state_len).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect();
    let mut agent = Agent::from_networks(
        inputs,
        network(&file, "initial.actor", &actor, Output::Softmax),
        network(&file, "initial.critic", &critic, Output::Linear),
        network(&file, "initial.actor_target", &actor, Output::Softmax),
        network(&file, "initial.critic_target", &critic, Output::Linear),
        hyper,
    )
    .unwrap();
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
                let far = |x: &Mlp, y: &Mlp| x.params().iter().zip(y.params()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let (off, moved) = (far(got, &want), far(&before, &want));
                println!("{after} {name}: weights moved by up to {moved:.1e}, differ by up to {off:.1e}");
                assert!(off <= 1e-5, "{after} {name}: {off} (moved {moved})");
                assert!(moved > 1e-7, "{after} {name} did not move: the comparison proves nothing");
            }
        }
    }
    assert_eq!(agent.steps(), 5);
}
