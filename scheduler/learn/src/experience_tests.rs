use crate::dqn::{DqnAgent, DqnHyper};
use crate::experience::is_experience;
use crate::rng::Rng;
use crate::{one_hot, Agent, Hyper, InputSpec, Mlp, Output, ACTIONS};
use std::path::Path;

const BUNDLE: &str = "0123abcd";

fn inputs(n: usize) -> Vec<InputSpec> {
    (0..n).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect()
}

fn ddpg(state_len: usize, replay: usize) -> Agent {
    let mut rng = Rng::new(1);
    let actor = Mlp::random(&[state_len, 8, ACTIONS], Output::Softmax, 0.1, &mut rng);
    let critic = Mlp::random(&[state_len + ACTIONS, 8, 1], Output::Linear, 0.1, &mut rng);
    let hyper = Hyper { batch: 16, replay, ..Hyper::default() };
    Agent::from_networks(inputs(state_len), actor.clone(), critic.clone(), actor, critic, hyper).unwrap()
}

fn filled(n: usize, replay: usize) -> Agent {
    let (mut a, mut rng) = (ddpg(3, replay), Rng::new(9));
    for i in 0..n {
        let mut x = || rng.uniform() as f32;
        assert!(a.remember(&[x(), x(), x()], &one_hot(i % 7), 3.0 * x(), &[x(), x(), x()]));
    }
    a
}

const FILE: &str = "experience.safetensors";

fn take(a: &mut Agent, bytes: &[u8]) -> Result<usize, crate::ExperienceError> {
    a.take_experience(Path::new(FILE), bytes, BUNDLE)
}

/// A restarted learner holds what the one before it held, and learns on as that one would: same draws, same weights.
#[test]
fn a_restart_goes_on_learning() {
    let mut before = filled(300, 200);
    let bytes = before.experience(BUNDLE);
    assert!(is_experience(&bytes) && is_experience(&bytes[..200]) && is_experience(b"") && !is_experience(b"{\"surefoot\": 1}"));
    let mut after = ddpg(3, 200);
    assert_eq!(take(&mut after, &bytes).unwrap(), 200 + 300 / 8);
    assert_eq!((after.remembered(), after.held_back()), (200, 37));
    assert_eq!(after.experience(BUNDLE), before.experience(BUNDLE), "equal experience, equal bytes");
    // The ring starts anew in its order: rows drawn by the same numbers are others, so both are brought into that order.
    take(&mut before, &bytes).unwrap();
    for i in 0..40 {
        assert_eq!(before.learn_step(), after.learn_step());
        let r = i as f32 / 40.0;
        assert!(before.remember(&[r; 3], &one_hot(1), r, &[r; 3]) && after.remember(&[r; 3], &one_hot(1), r, &[r; 3]));
    }
    assert_eq!(before.snapshot(), after.snapshot());
}

/// A smaller pool keeps the newest.
#[test]
fn a_smaller_pool_keeps_the_newest() {
    let (a, mut b) = (filled(300, 1000), ddpg(3, 50));
    take(&mut b, &a.experience(BUNDLE)).unwrap();
    let newest: Vec<f32> = a.pool.rewards[a.pool.len() - 50..].to_vec();
    let kept: Vec<f32> = b.pool.in_order().map(|i| b.pool.rewards[i]).collect();
    assert_eq!(kept, newest);
}

/// What is not there, foreign or of another model or bundle is refused in one line that names file, problem and remedy; the
/// learner stays empty and works.
#[test]
fn foreign_experience_is_refused() {
    let good = filled(100, 200).experience(BUNDLE);
    let wrong = |a: &mut Agent, bytes: &[u8], bundle: &str, says: &str| {
        let e = a.take_experience(Path::new(FILE), bytes, bundle).unwrap_err();
        let line = e.to_string();
        assert!(line.starts_with(FILE) && line.contains(says) && !line.contains('\n'), "{line}");
        assert!(!e.remedy.is_empty());
        assert_eq!((a.remembered(), a.held_back(), a.seen), (0, 0, 0));
    };
    wrong(&mut ddpg(3, 200), &good, "ffff", "experience with bundle 0123abcd, this one is ffff");
    wrong(&mut ddpg(4, 200), &good, BUNDLE, "has inputs s0, s1, s2, this model has s0, s1, s2, s3");
    let net = Mlp::zeros(&[3, 4, 49], Output::Linear);
    let mut dqn = DqnAgent::from_networks(inputs(3), net.clone(), net, DqnHyper::default()).unwrap();
    let e = dqn.take_experience(Path::new(FILE), &good, BUNDLE).unwrap_err();
    assert!(e.to_string().contains("of a ddpg model, this one is dqn"), "{e}");
    let none = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![0], &[]).unwrap();
    let other = safetensors::serialize([("x", none)], None).unwrap();
    wrong(&mut ddpg(3, 200), &other, BUNDLE, "is no surefoot-experience file");
    assert!(!is_experience(&other));
    wrong(&mut ddpg(3, 200), b"not a tensor in sight", BUNDLE, "damaged");
    let mut a = ddpg(3, 200);
    assert!(a.remember(&[0.1; 3], &one_hot(0), 1.0, &[0.1; 3]));
}

/// Cut off anywhere, or with any one byte of its values spoilt beyond their range, a file is refused or, where the byte makes
/// another value in range, taken with values in range: never a crash, never a value that could not have been remembered.
#[test]
fn damaged_experience_is_refused() {
    let a = filled(40, 200);
    let whole = a.experience(BUNDLE);
    let mut refused = 0;
    for cut in (0..whole.len()).step_by(97) {
        take(&mut ddpg(3, 200), &whole[..cut]).unwrap_err();
    }
    for at in (0..whole.len()).step_by(41) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x80;
        let mut b = ddpg(3, 200);
        match take(&mut b, &bytes) {
            Err(_) => refused += 1,
            Ok(_) => assert!((0..b.pool.len()).all(|i| {
                let (s, a, r, s2) = b.pool.row(i);
                b.admits(s, a, r, s2)
            })),
        }
    }
    assert!(refused > 20, "{refused}");
}
