//! The guard of on-line learning: poison in the experience cannot make the policy worse.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

use surefoot_learn::rng::Rng;
use surefoot_learn::{one_hot, Agent, DqnAgent, DqnHyper, Guard, Hyper, InputSpec, Mlp, Output, ACTIONS};

const STATE: usize = 2;

fn inputs() -> Vec<InputSpec> {
    (0..STATE).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect()
}

/// The world: one action is right in each quarter of the states.
fn right(s: &[f32]) -> usize {
    usize::from(s[0] > 0.5) + 2 * usize::from(s[1] > 0.5)
}

fn states(rng: &mut Rng) -> ([f32; STATE], [f32; STATE]) {
    let mut draw = || [rng.uniform() as f32, rng.uniform() as f32];
    (draw(), draw())
}

/// Both kinds of Model-C, seen alike.
trait Learns {
    fn remember(&mut self, s: &[f32], action: usize, r: f32, s2: &[f32]) -> bool;
    /// Learn; after every kept or refused window tell what the guard saw.
    fn learn(&mut self, steps: usize);
    fn chosen(&mut self, s: &[f32]) -> usize;
    fn refused(&self) -> u64;
    fn kept(&self) -> u64;
}

impl Learns for Agent {
    fn remember(&mut self, s: &[f32], action: usize, r: f32, s2: &[f32]) -> bool {
        Agent::remember(self, s, &one_hot(action), r, s2)
    }
    fn learn(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.learn_step().map_or((), |_| ()));
    }
    fn chosen(&mut self, s: &[f32]) -> usize {
        let p = self.act(s);
        self.best(&p)
    }
    fn refused(&self) -> u64 {
        self.counts().refused + self.counts().broken
    }
    fn kept(&self) -> u64 {
        self.counts().kept
    }
}

impl Learns for DqnAgent {
    fn remember(&mut self, s: &[f32], action: usize, r: f32, s2: &[f32]) -> bool {
        DqnAgent::remember(self, s, &[action as f32], r, s2)
    }
    fn learn(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.learn_step().map_or((), |_| ()));
    }
    fn chosen(&mut self, s: &[f32]) -> usize {
        self.choose(s, |_| true).unwrap()
    }
    fn refused(&self) -> u64 {
        self.counts().refused + self.counts().broken
    }
    fn kept(&self) -> u64 {
        self.counts().kept
    }
}

fn ddpg(seed: u64, guard: Guard) -> Agent {
    let mut rng = Rng::new(seed);
    let actor = Mlp::random(&[STATE, 16, 16, ACTIONS], Output::Softmax, 0.05, &mut rng);
    let critic = Mlp::random(&[STATE + ACTIONS, 32, 16, 1], Output::Linear, 0.05, &mut rng);
    let hyper =
        Hyper { gamma: 0.5, critic_l2: 0.0, actor_entropy: 0.02, lr_actor: 2e-3, batch: 64, replay: 4000, seed, ..Hyper::default() };
    Agent::from_networks(inputs(), actor.clone(), critic.clone(), actor, critic, hyper).unwrap().with_guard(guard)
}

fn dqn(seed: u64, guard: Guard) -> DqnAgent {
    let net = Mlp::random(&[STATE, 30, 30, ACTIONS], Output::Linear, 0.05, &mut Rng::new(seed));
    let hyper = DqnHyper { gamma: 0.5, batch: 64, replay: 4000, epsilon: 0.0, seed, ..DqnHyper::default() };
    DqnAgent::from_networks(inputs(), net.clone(), net, hyper).unwrap().with_guard(guard)
}

/// Share of 400 states in which the action is the right one.
fn good(a: &mut impl Learns) -> f64 {
    let grid = (0..400).map(|i| [(i % 20) as f32 / 20.0 + 0.025, (i / 20) as f32 / 20.0 + 0.025]);
    grid.filter(|s| a.chosen(s) == right(s)).count() as f64 / 400.0
}

/// Learn the world from 2000 transitions.
fn taught<A: Learns>(mut a: A, seed: u64) -> A {
    let mut rng = Rng::new(seed + 50);
    for _ in 0..2000 {
        let ((s, s2), did) = (states(&mut rng), rng.below(ACTIONS));
        assert!(a.remember(&s, did, if did == right(&s) { 1.0 } else { 0.0 }, &s2));
    }
    a.learn(1600);
    a
}

/// 100 transitions in which a wrong action is told to be worth the most that a reward may be.
fn poison(a: &mut impl Learns, seed: u64, reward: f32) {
    let mut rng = Rng::new(seed + 90);
    for _ in 0..100 {
        let (s, s2) = states(&mut rng);
        assert!(a.remember(&s, (right(&s) + 1) % ACTIONS, reward, &s2));
    }
}

fn poisoned<A: Learns>(make: impl Fn(u64, Guard) -> A, kind: &str) {
    let mut harmed_without = 0;
    for seed in 2..=3 {
        for reward in [100.0, -100.0] {
            let mut a = taught(make(seed, Guard::default()), seed);
            let (before, kept) = (good(&mut a), a.kept());
            assert!(before > 0.85 && kept > 50, "{kind} {seed}: the world was not learnt: {before}, {kept} windows kept");
            let refused = a.refused();
            poison(&mut a, seed, reward);
            a.learn(480);
            let (after, refused) = (good(&mut a), a.refused() - refused);
            println!("{kind} seed {seed} reward {reward}: right {before:.3}, after poison {after:.3}, {refused} of 30 windows refused");
            assert!(after > before - 0.1, "{kind} {seed} {reward}: {before} fell to {after}");
            assert!(refused > 0, "{kind} {seed} {reward}: no window was refused");

            let mut open = taught(make(seed, Guard::off()), seed);
            poison(&mut open, seed, reward);
            let before = good(&mut open);
            open.learn(480);
            harmed_without += usize::from(good(&mut open) < before - 0.2);
        }
    }
    assert!(harmed_without >= 2, "{kind}: without the guard the poison must show, or this test proves nothing: {harmed_without} of 4");
}

/// DDPG: 5 % of poisoned rewards leave the policy as good as it was.
#[test]
fn poisoned_rewards_do_not_harm_the_policy_of_ddpg() {
    poisoned(ddpg, "ddpg");
}

/// DQN: the same.
#[test]
fn poisoned_rewards_do_not_harm_the_policy_of_dqn() {
    poisoned(dqn, "dqn");
}

/// Whatever is remembered, what is acted upon stays finite, and each window that is kept loses at most the tolerance on
/// held-back experience: 40 runs of random transitions, a third of them not numbers, infinite, huge or at the limits.
#[test]
fn a_kept_window_loses_at_most_the_tolerance() {
    let (mut kept, mut refused, mut left_out) = (0, 0, 0);
    for seed in 0..40 {
        let (mut a, mut rng) = (ddpg(seed, Guard { window: 4, ..Guard::default() }), Rng::new(seed + 7));
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e10, -1e10, 100.0, -100.0, 1e-40];
        for _ in 0..300 {
            let ((mut s, s2), did) = (states(&mut rng), rng.below(ACTIONS));
            let mut r = rng.uniform() as f32;
            match rng.below(6) {
                0 => r = odd[rng.below(odd.len())],
                1 => s[rng.below(STATE)] = odd[rng.below(odd.len())],
                _ => {}
            }
            a.remember(&s, &one_hot(did), r, &s2);
            let (counts, before) = (a.counts(), a.steps());
            let start = a.snapshot();
            let _ = a.learn_step();
            if a.counts().kept > counts.kept {
                let score = a.last_score().unwrap();
                let limit = a.guard.tolerance * score.scale;
                assert!(score.td_after - score.td_before <= limit && score.worth_before - score.worth_after <= limit, "{score:?}");
            }
            if a.counts().refused > counts.refused {
                assert!(a.steps() < before, "a refused window is taken back");
                assert_ne!(a.snapshot(), start);
            }
            let p = a.act(&[0.3, 0.7]);
            assert!(p.iter().all(|v| v.is_finite()) && a.critic().is_finite());
        }
        kept += a.counts().kept;
        refused += a.counts().refused;
        left_out += a.counts().left_out;
    }
    println!("{kept} windows kept, {refused} refused, {left_out} transitions left out");
    assert!(kept > 100 && refused > 20 && left_out > 500, "{kept} {refused} {left_out}");
}

/// The same seed and experience give the same windows, refused or kept, and the same weights.
#[test]
fn the_guard_is_repeatable() {
    let run = || {
        let mut a = ddpg(3, Guard::default());
        let mut rng = Rng::new(4);
        for _ in 0..600 {
            let ((s, s2), did) = (states(&mut rng), rng.below(ACTIONS));
            let r = if rng.below(20) == 0 { 90.0 } else { s[0] };
            a.remember(&s, &one_hot(did), r, &s2);
            let _ = a.learn_step();
        }
        (a.counts(), a.snapshot())
    };
    let (counts, weights) = run();
    assert_eq!(run(), (counts, weights));
    assert!(counts.kept > 0, "{counts:?}");
}

/// Until a window is judged it is not acted upon; once it is kept it is.
#[test]
fn a_window_is_not_acted_upon_before_it_is_judged() {
    let mut a = ddpg(5, Guard { tolerance: 1e9, ..Guard::default() });
    let mut rng = Rng::new(6);
    for _ in 0..400 {
        let ((s, s2), did) = (states(&mut rng), rng.below(ACTIONS));
        a.remember(&s, &one_hot(did), s[0], &s2);
    }
    let at = [0.2, 0.8];
    let before = a.act(&at);
    for step in 1..=a.guard.window {
        let weights = a.actor().clone();
        a.learn_step().unwrap().unwrap();
        assert_ne!(a.actor(), &weights);
        assert_eq!(a.act(&at) == before, step < a.guard.window, "step {step}");
    }
    assert_eq!(a.counts().kept, 1);
}
