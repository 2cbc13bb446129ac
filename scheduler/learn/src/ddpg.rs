//! Model-C: deep deterministic policy gradient over seven scheduling actions (OSML+ paper, Sec. 3.2).
//!
//! The actor maps a state (scaled to 0..1) to seven probabilities; the critic maps state and probabilities to one Q-value.
//! One step of learning, on a batch (s, a, r, s'):
//!
//! 1. critic: mean squared error between Q(s, a) and y = r + gamma Q'(s', pi'(s')), plus `critic_l2` times the sum of its
//!    squared weights (biases left out);
//! 2. actor: down the gradient of mean(-Q(s, p) + `actor_entropy` sum p ln p), p = pi(s), with the critic as just updated (the
//!    second term keeps the softmax from saturating on one action; 0 is the paper's loss);
//! 3. targets: theta' = tau theta + (1 - tau) theta', for both.
//!
//! `a` is what was carried out: a one-hot vector ([`one_hot`]), not the actor's output.
//!
//! [`crate::learner`] has the pool, the draws and the guard.

use crate::guard::{spread, trimmed_rms, Score};
use crate::learner::{Learner, Nets, Refused};
use crate::mlp::{audible, Mlp, Tape};
use crate::model::InputSpec;
use crate::optim::Adam;
use crate::replay::Batch;
use serde::{Deserialize, Serialize};

/// Actions of Model-C, by id (OSML+ paper, Table 5): cores up, down; ways up, down; bandwidth up, down; idle.
pub const ACTIONS: usize = 7;

/// Smallest probability in a logarithm.
const P_MIN: f32 = 1e-8;

/// Hyperparameters; defaults are the paper's and, where it is silent, its authors' code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hyper {
    /// Discount of future rewards.
    pub gamma: f32,
    /// Share of the new weights in a soft update.
    pub tau: f32,
    /// Adam's rates.
    pub lr_actor: f64,
    pub lr_critic: f64,
    pub adam_beta1: f64,
    pub adam_beta2: f64,
    pub adam_eps: f64,
    /// Weight of the sum of squares of the critic's weights (not biases) in its loss.
    pub critic_l2: f32,
    /// Weight of the actor's negative entropy in its loss; 0 = the paper's loss.
    pub actor_entropy: f32,
    /// Rows of one step; no learning before the replay buffer holds as many.
    pub batch: usize,
    /// Transitions kept; the oldest is overwritten.
    pub replay: usize,
    /// Standard deviation of the Gaussian noise on the actor's output; 0 = no exploration.
    pub noise: f32,
    pub seed: u64,
}

/// The action that was carried out, as the critic learns it.
pub fn one_hot(action: usize) -> [f32; ACTIONS] {
    let mut a = [0.0; ACTIONS];
    a[action] = 1.0;
    a
}

impl Default for Hyper {
    fn default() -> Self {
        Hyper {
            gamma: 0.99,
            tau: 0.001,
            lr_actor: 5e-4,
            lr_critic: 5e-3,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_eps: 1e-8,
            critic_l2: 0.01,
            actor_entropy: 0.0,
            batch: 256,
            replay: 76_800,
            noise: 0.0,
            seed: 1,
        }
    }
}

impl Hyper {
    fn adam(&self, rate: f64, params: usize) -> Adam {
        let mut adam = Adam::new(rate, params);
        (adam.beta1, adam.beta2, adam.eps) = (self.adam_beta1, self.adam_beta2, self.adam_eps);
        adam
    }
}

/// What one step of learning did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnStats {
    /// Mean squared temporal-difference error plus the L2 term.
    pub critic_loss: f32,
    /// Mean squared temporal-difference error alone.
    pub td_mse: f32,
    /// mean(-Q(s, p) + actor_entropy sum p ln p), p = pi(s).
    pub actor_loss: f32,
}

/// Actor and critic, their targets and their optimisers.
#[derive(Clone, Debug, PartialEq)]
pub struct Ddpg {
    actor: Mlp,
    critic: Mlp,
    actor_target: Mlp,
    critic_target: Mlp,
    actor_adam: Adam,
    critic_adam: Adam,
    steps: u64,
}

/// Buffers of a step of learning, reused.
#[derive(Clone, Debug, Default)]
pub struct Work {
    sa: Vec<f32>,
    y: Vec<f32>,
    d_q: Vec<f32>,
    d_a: Vec<f32>,
    actor_grads: Vec<f32>,
    critic_grads: Vec<f32>,
    actor_tape: Tape,
    critic_tape: Tape,
    sorted: Vec<f32>,
}

/// Model-C of OSML+.
pub type Agent = Learner<Ddpg>;

impl Agent {
    /// From networks, e.g. a bundle's. None where their shapes do not fit: actor state -> 7, critic state + 7 -> 1.
    pub fn from_networks(
        inputs: Vec<InputSpec>,
        actor: Mlp,
        critic: Mlp,
        actor_target: Mlp,
        critic_target: Mlp,
        hyper: Hyper,
    ) -> Option<Self> {
        let n = inputs.len();
        let fits = actor.inputs() == n
            && actor.outputs() == ACTIONS
            && critic.inputs() == n + ACTIONS
            && critic.outputs() == 1
            && actor_target.sizes() == actor.sizes()
            && critic_target.sizes() == critic.sizes();
        if !fits || hyper.batch == 0 || hyper.replay < hyper.batch {
            return None;
        }
        let net = Ddpg {
            actor_adam: hyper.adam(hyper.lr_actor, actor.params().len()),
            critic_adam: hyper.adam(hyper.lr_critic, critic.params().len()),
            actor,
            critic,
            actor_target,
            critic_target,
            steps: 0,
        };
        let (replay, seed) = (hyper.replay, hyper.seed);
        Some(Learner::new(inputs, hyper, net, ACTIONS, replay, seed))
    }

    /// Probabilities of the seven actions; the policy takes the highest that is possible. With `hyper.noise` above 0,
    /// Gaussian noise is added, the sum clipped at 0 and brought back to sum 1.
    pub fn act(&mut self, state: &[f32]) -> [f32; ACTIONS] {
        let mut tape = std::mem::take(&mut self.work.actor_tape);
        let mut p = [0.0; ACTIONS];
        p.copy_from_slice(self.acting().actor.forward(state, 1, &mut tape));
        self.work.actor_tape = tape;
        if self.hyper.noise > 0.0 {
            for v in &mut p {
                *v = (*v + self.hyper.noise * self.rng.normal() as f32).max(0.0);
            }
            let sum: f32 = p.iter().sum();
            // All clipped away: nothing is known, so every action is as likely.
            p = if sum > 0.0 { p.map(|v| v / sum) } else { [1.0 / ACTIONS as f32; ACTIONS] };
        }
        p
    }

    /// The likeliest available action (OSML+ paper: the action with the highest probability is executed).
    pub fn best(&self, probabilities: &[f32; ACTIONS]) -> usize {
        let open = (0..ACTIONS).filter(|&i| self.available[i]);
        open.max_by(|&i, &j| probabilities[i].total_cmp(&probabilities[j]).then(j.cmp(&i))).unwrap_or(ACTIONS - 1)
    }

    /// Q(s, a) of the critic.
    pub fn q(&mut self, state: &[f32], action: &[f32; ACTIONS]) -> f32 {
        let mut work = std::mem::take(&mut self.work);
        join(state, action.chunks_exact(ACTIONS), state.len(), &mut work.sa);
        let q = self.acting().critic.forward(&work.sa, 1, &mut work.critic_tape)[0];
        self.work = work;
        q
    }

    pub fn actor(&self) -> &Mlp {
        &self.net.actor
    }

    pub fn critic(&self) -> &Mlp {
        &self.net.critic
    }

    pub fn actor_target(&self) -> &Mlp {
        &self.net.actor_target
    }

    pub fn critic_target(&self) -> &Mlp {
        &self.net.critic_target
    }
}

impl Ddpg {
    /// y = r + gamma Q'(s', pi'(s')) into `w.y`.
    fn returns(&self, gamma: f32, batch: &Batch, w: &mut Work) {
        let n = self.actor.inputs();
        let a2 = self.actor_target.forward(&batch.next_states, batch.len(), &mut w.actor_tape);
        join(&batch.next_states, a2.chunks_exact(ACTIONS), n, &mut w.sa);
        let q2 = self.critic_target.forward(&w.sa, batch.len(), &mut w.critic_tape);
        w.y.clear();
        w.y.extend(batch.rewards.iter().zip(q2).map(|(r, q)| r + gamma * q));
    }

    /// Trimmed root mean square of Q(s, a) - y, y of `w.y`.
    fn error(&self, batch: &Batch, w: &mut Work) -> f32 {
        join(&batch.states, batch.actions.chunks_exact(ACTIONS), self.actor.inputs(), &mut w.sa);
        let q = self.critic.forward(&w.sa, batch.len(), &mut w.critic_tape);
        w.sorted.clear();
        w.sorted.extend(q.iter().zip(&w.y).map(|(q, y)| q - y));
        trimmed_rms(&mut w.sorted)
    }

    /// mean(Q(s, p) - entropy sum p ln p), p = pi(s), by this critic and that actor.
    fn worth(&self, actor: &Mlp, entropy: f32, batch: &Batch, w: &mut Work) -> f32 {
        let p = actor.forward(&batch.states, batch.len(), &mut w.actor_tape);
        let p_ln_p: f32 = if entropy > 0.0 { p.iter().map(|p| p * p.max(P_MIN).ln()).sum() } else { 0.0 };
        join(&batch.states, p.chunks_exact(ACTIONS), self.actor.inputs(), &mut w.sa);
        let q = self.critic.forward(&w.sa, batch.len(), &mut w.critic_tape);
        (q.iter().sum::<f32>() - entropy * p_ln_p) / batch.len() as f32
    }
}

impl Nets for Ddpg {
    type Hyper = Hyper;
    type Stats = LearnStats;
    type Work = Work;
    const KIND: &'static str = "ddpg";
    const ACTION_LEN: usize = ACTIONS;

    fn copy_from(&mut self, other: &Self) {
        self.actor.params_mut().copy_from_slice(other.actor.params());
        self.critic.params_mut().copy_from_slice(other.critic.params());
        self.actor_target.params_mut().copy_from_slice(other.actor_target.params());
        self.critic_target.params_mut().copy_from_slice(other.critic_target.params());
        self.actor_adam.copy_from(&other.actor_adam);
        self.critic_adam.copy_from(&other.critic_adam);
        self.steps = other.steps;
    }

    fn batch(hyper: &Hyper) -> usize {
        hyper.batch
    }

    fn knows(&self, action: &[f32]) -> bool {
        action.iter().all(|p| (0.0..=1.0).contains(p))
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn update(&mut self, hyper: &Hyper, batch: &Batch, w: &mut Work) -> Result<LearnStats, Refused> {
        let (n, rows) = (self.actor.inputs(), batch.len());
        let scale = 1.0 / rows as f32;
        self.returns(hyper.gamma, batch, w);

        // Critic.
        join(&batch.states, batch.actions.chunks_exact(ACTIONS), n, &mut w.sa);
        let q = self.critic.forward(&w.sa, rows, &mut w.critic_tape);
        w.d_q.clear();
        w.d_q.extend(q.iter().zip(&w.y).map(|(q, y)| 2.0 * scale * (q - y)));
        let td_mse = q.iter().zip(&w.y).map(|(q, y)| (q - y) * (q - y)).sum::<f32>() * scale;
        w.critic_grads.resize(self.critic.params().len(), 0.0);
        self.critic.backward(&w.sa, &w.d_q, &mut w.critic_tape, Some(&mut w.critic_grads), None);
        let critic_loss = td_mse + hyper.critic_l2 * add_l2(&self.critic, hyper.critic_l2, &mut w.critic_grads);
        if !critic_loss.is_finite() {
            return Err(Refused("critic's loss"));
        }
        self.critic_adam.step(self.critic.params_mut(), &w.critic_grads);
        if !self.critic.is_finite() {
            return Err(Refused("critic"));
        }

        // Actor: -mean Q(s, pi(s)), through the updated critic to the actor's output.
        let a = self.actor.forward(&batch.states, rows, &mut w.actor_tape);
        join(&batch.states, a.chunks_exact(ACTIONS), n, &mut w.sa);
        let q = self.critic.forward(&w.sa, rows, &mut w.critic_tape);
        let mut actor_loss = -q.iter().sum::<f32>() * scale;
        w.d_q.clear();
        w.d_q.resize(rows, -scale);
        // The critic's last inputs are the action; by the state nothing is asked.
        w.d_a.resize(rows * ACTIONS, 0.0);
        self.critic.backward(&w.sa, &w.d_q, &mut w.critic_tape, None, Some(&mut w.d_a));
        let beta = hyper.actor_entropy * scale;
        if beta > 0.0 {
            // A probability that rounds to 0 counts as P_MIN in the logarithm.
            let p = w.sa.chunks_exact(n + ACTIONS).flat_map(|row| &row[n..]);
            for (d, &p) in w.d_a.iter_mut().zip(p) {
                let log = p.max(P_MIN).ln();
                actor_loss += beta * p * log;
                *d += beta * (log + if p >= P_MIN { 1.0 } else { 0.0 });
            }
        }
        w.actor_grads.resize(self.actor.params().len(), 0.0);
        self.actor.backward(&batch.states, &w.d_a, &mut w.actor_tape, Some(&mut w.actor_grads), None);
        self.actor_adam.step(self.actor.params_mut(), &w.actor_grads);
        if !actor_loss.is_finite() || !self.actor.is_finite() {
            return Err(Refused("actor"));
        }

        soft_update(&mut self.actor_target, &self.actor, hyper.tau);
        soft_update(&mut self.critic_target, &self.critic, hyper.tau);
        self.steps += 1;
        Ok(LearnStats { critic_loss, td_mse, actor_loss })
    }

    fn score(&self, start: &Self, hyper: &Hyper, held: &Batch, w: &mut Work) -> Score {
        start.returns(hyper.gamma, held, w);
        let (td_before, td_after) = (start.error(held, w), self.error(held, w));
        w.sorted.clear();
        w.sorted.extend_from_slice(&w.y);
        let scale = td_before + spread(&mut w.sorted);
        let worth_before = start.worth(&start.actor, hyper.actor_entropy, held, w);
        let worth_after = start.worth(&self.actor, hyper.actor_entropy, held, w);
        Score { td_before, td_after, worth_before, worth_after, scale }
    }
}

/// Rows of (state, action) side by side.
fn join<'a>(states: &[f32], actions: impl Iterator<Item = &'a [f32]>, state_len: usize, out: &mut Vec<f32>) {
    out.clear();
    for (s, a) in states.chunks_exact(state_len).zip(actions) {
        out.extend_from_slice(s);
        out.extend_from_slice(a);
    }
}

fn soft_update(target: &mut Mlp, from: &Mlp, tau: f32) {
    for (t, p) in target.params_mut().iter_mut().zip(from.params()) {
        *t = audible(tau * p + (1.0 - tau) * *t);
    }
}

/// Gradient of `l2` times the sum of squared weights, added to `grads`; returns the sum. Biases are left out.
fn add_l2(net: &Mlp, l2: f32, grads: &mut [f32]) -> f32 {
    let mut sum = 0.0;
    for l in 0..net.layers() {
        let (from, to) = net.span(l);
        let to = to - net.sizes()[l + 1];
        for (g, p) in grads[from..to].iter_mut().zip(&net.params()[from..to]) {
            *g += 2.0 * l2 * p;
            sum += p * p;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::mlp::Output;
    use crate::rng::Rng;

    fn agent(state_len: usize, hyper: Hyper) -> Agent {
        let mut rng = Rng::new(hyper.seed + 100);
        let actor = Mlp::random(&[state_len, 32, 64, 32, ACTIONS], Output::Softmax, 3e-3, &mut rng);
        let critic = Mlp::random(&[state_len + ACTIONS, 32, 64, 32, 1], Output::Linear, 3e-3, &mut rng);
        let inputs = (0..state_len).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect();
        Agent::from_networks(inputs, actor.clone(), critic.clone(), actor, critic, hyper).unwrap().with_guard(Guard::off())
    }

    fn filled(hyper: Hyper, n: usize) -> Agent {
        let mut a = agent(3, hyper);
        let mut rng = Rng::new(5);
        for _ in 0..n {
            let mut draw = || rng.uniform() as f32;
            let (s, r, s2) = ([draw(), draw(), draw()], draw(), [draw(), draw(), draw()]);
            assert!(a.remember(&s, &one_hot((7.0 * draw()) as usize), r, &s2));
        }
        a
    }

    const SMALL: Hyper = Hyper {
        gamma: 0.99,
        tau: 0.001,
        lr_actor: 5e-4,
        lr_critic: 5e-3,
        adam_beta1: 0.9,
        adam_beta2: 0.999,
        adam_eps: 1e-8,
        critic_l2: 0.01,
        actor_entropy: 0.0,
        batch: 32,
        replay: 100,
        noise: 0.0,
        seed: 3,
    };

    /// Where the reward says which action is right in which half of the states, the actor learns it: state below 0.5 wants
    /// action 2, above 0.5 action 5.
    #[test]
    fn the_actor_learns_what_is_rewarded() {
        let hyper = Hyper { gamma: 0.0, critic_l2: 0.0, batch: 64, replay: 4000, ..SMALL };
        let mut a = agent(1, hyper);
        let right = |s: f32| if s < 0.5 { 2 } else { 5 };
        let mut rng = Rng::new(17);
        for _ in 0..4000 {
            let (s, did) = (rng.uniform() as f32, rng.below(ACTIONS));
            a.remember(&[s], &one_hot(did), if did == right(s) { 1.0 } else { 0.0 }, &[s]);
        }
        let grid: Vec<f32> = (0..100).map(|i| 0.005 + i as f32 / 100.0).collect();
        let score = |a: &mut Agent| {
            grid.iter()
                .filter(|s| {
                    let p = a.act(&[**s]);
                    a.best(&p) == right(**s)
                })
                .count()
        };
        let before = score(&mut a);
        let first = a.learn_step().unwrap().unwrap();
        let mut last = first;
        for _ in 0..3000 {
            last = a.learn_step().unwrap().unwrap();
        }
        let after = score(&mut a);
        assert!(before <= 50 && after >= 90, "{before} then {after} of 100 states right; {first:?} {last:?}");
        assert!(last.td_mse < 0.2 * first.td_mse, "{first:?} {last:?}");
    }

    /// The same seed and the same experience give the same weights, bit for bit; another seed gives others.
    #[test]
    fn learning_is_repeatable() {
        let run = |seed| {
            let mut a = filled(Hyper { seed, ..SMALL }, 150);
            (0..20).for_each(|_| assert!(a.learn_step().unwrap().is_some()));
            a.snapshot()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    /// No learning before the pool holds a batch.
    #[test]
    fn no_learning_before_there_is_a_batch() {
        let mut a = filled(SMALL, 31);
        assert_eq!((a.learn_step(), a.steps()), (Ok(None), 0));
        assert!(a.remember(&[0.1; 3], &one_hot(6), 1.0, &[0.2; 3]));
        assert!(a.learn_step().unwrap().is_some());
        assert_eq!(a.steps(), 1);
    }

    /// What is not finite, out of range or of the wrong length is not remembered, and is counted.
    #[test]
    fn broken_transitions_are_not_remembered() {
        let mut a = filled(SMALL, 3);
        let (s, idle) = ([0.5; 3], one_hot(6));
        assert!(!a.remember(&s, &idle, f32::NAN, &s));
        assert!(!a.remember(&[0.5, f32::INFINITY, 0.5], &idle, 1.0, &s));
        assert!(!a.remember(&[0.5, 1.01, 0.5], &idle, 1.0, &s));
        assert!(!a.remember(&s, &idle, 101.0, &s));
        assert!(!a.remember(&s, &idle, 1.0, &[0.5; 2]));
        assert!(!a.remember(&s, &idle[..6], 1.0, &s));
        assert!(!a.remember(&s, &[f32::NAN; 7], 1.0, &s));
        assert_eq!((a.remembered(), a.counts().left_out), (3, 7));
    }

    /// A step that overflows is refused and leaves no trace: reward 1e30 squared is beyond f32.
    #[test]
    fn a_step_that_overflows_is_refused() {
        let mut a = filled(SMALL, 60);
        a.learn_step().unwrap();
        let before = a.snapshot();
        a.guard.reward_limit = 1e30;
        assert!(a.remember(&[0.5; 3], &one_hot(1), 1e30, &[0.5; 3]));
        assert_eq!(a.learn_on(&[60]), Err(Refused("critic's loss")));
        assert_eq!((a.snapshot(), a.counts().broken), (before, 1));
        assert!(a.learn_on(&[0, 1, 2]).is_ok());
    }

    /// A caller can take a step back: after restoring, the agent acts and goes on learning as before.
    #[test]
    fn a_snapshot_brings_everything_back() {
        let mut a = filled(SMALL, 80);
        a.learn_on(&[0, 1, 2]).unwrap();
        let (snap, p) = (a.snapshot(), a.act(&[0.2; 3]));
        let once = a.learn_on(&[3, 4, 5]).unwrap();
        assert_ne!(a.snapshot(), snap);
        a.restore(&snap);
        assert_eq!((a.snapshot(), a.act(&[0.2; 3])), (snap, p));
        assert_eq!(a.learn_on(&[3, 4, 5]).unwrap(), once, "optimiser state came back too");
    }

    /// Exploration is off unless asked for; with it, probabilities still sum to 1 and actions vary.
    #[test]
    fn noise_is_off_by_default() {
        let mut quiet = filled(SMALL, 1);
        assert_eq!(Hyper::default().noise, 0.0);
        assert_eq!(quiet.act(&[0.3; 3]), quiet.act(&[0.3; 3]));
        let mut noisy = filled(Hyper { noise: 0.6, ..SMALL }, 1);
        let mut seen = [0; ACTIONS];
        for _ in 0..700 {
            let p = noisy.act(&[0.3; 3]);
            assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5 && p.iter().all(|v| *v >= 0.0), "{p:?}");
            seen[noisy.best(&p)] += 1;
        }
        assert!(seen.iter().all(|n| *n > 40), "{seen:?}");
    }

    /// The likeliest action among those that the platform has; the lower id where two are equal.
    #[test]
    fn unavailable_actions_are_passed_over() {
        let mut a = filled(SMALL, 1);
        let p = [0.1, 0.1, 0.1, 0.1, 0.3, 0.2, 0.1];
        assert_eq!(a.best(&p), 4);
        a.available = vec![true, true, true, true, false, false, true];
        assert_eq!(a.best(&p), 0);
    }

    /// Networks that do not fit each other make no agent.
    #[test]
    fn shapes_must_fit() {
        let inputs = vec![InputSpec { name: "s".into(), min: 0.0, max: 1.0 }];
        let (actor, critic) = (Mlp::zeros(&[1, 4, 7], Output::Softmax), Mlp::zeros(&[8, 4, 1], Output::Linear));
        let make = |a: &Mlp, c: &Mlp, ct: &Mlp, h| Agent::from_networks(inputs.clone(), a.clone(), c.clone(), a.clone(), ct.clone(), h);
        assert!(make(&actor, &critic, &critic, SMALL).is_some());
        assert!(make(&actor, &Mlp::zeros(&[7, 4, 1], Output::Linear), &critic, SMALL).is_none());
        assert!(make(&actor, &critic, &Mlp::zeros(&[8, 5, 1], Output::Linear), SMALL).is_none());
        assert!(make(&actor, &critic, &critic, Hyper { replay: 10, ..SMALL }).is_none());
    }
}
