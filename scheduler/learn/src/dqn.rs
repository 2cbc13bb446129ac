//! OSML's Model-C: a deep Q-network over 49 changes of an allocation (OSML paper, Sec. 4.3).
//!
//! Two networks, `policy` and `target`, map a state (scaled to 0..1) to one Q-value an action. One step of learning, on a batch
//! (s, a, r, s'), is that of `models/dqn.py`:
//!
//! 1. y = r + gamma max over a' of target(s')[a'];
//! 2. policy: RMSProp down the gradient of mean((policy(s)[a] - y)^2), y held fixed;
//! 3. every `copy_every` steps the target becomes the policy.
//!
//! `a` is the number of the action that was carried out. [`crate::learner`] has the pool, the draws and the guard.

use crate::guard::{spread, trimmed_rms, Score};
use crate::learner::{Learner, Nets, Refused};
use crate::mlp::{Mlp, Tape};
use crate::model::InputSpec;
use crate::optim::RmsProp;
use crate::replay::Batch;
use serde::{Deserialize, Serialize};

/// Most cores (allocation units) and ways that one action moves.
pub const REACH: i32 = 3;
const SIDE: i32 = 2 * REACH + 1;
/// Actions of Model-C: every change by -3..3 cores and -3..3 ways.
pub const ACTIONS: usize = (SIDE * SIDE) as usize;
/// The action that changes nothing.
pub const IDLE: usize = ACTIONS / 2;

/// Cores and ways that an action adds (negative: takes away).
pub fn change(action: usize) -> (i32, i32) {
    let a = action as i32;
    (a / SIDE - REACH, a % SIDE - REACH)
}

/// The action that adds so many cores and ways; None beyond -3..3.
pub fn action(cores: i32, ways: i32) -> Option<usize> {
    let within = |x: i32| (-REACH..=REACH).contains(&x);
    (within(cores) && within(ways)).then(|| ((cores + REACH) * SIDE + ways + REACH) as usize)
}

/// Reward of an action that was carried out (OSML paper, Sec. 4.3): faster pays and every unit taken costs,
/// sign(d) ln(1 + |d|) - (cores + ways), d = latency before - after, ms.
pub fn reward(before_ms: f64, after_ms: f64, action: usize) -> f64 {
    let (cores, ways) = change(action);
    reward_of(before_ms - after_ms, cores + ways)
}

/// The same, by what came of it: so much faster, ms, for so many more cores and ways.
pub fn reward_of(better_ms: f64, more: i32) -> f64 {
    better_ms.signum() * better_ms.abs().ln_1p() - f64::from(more)
}

/// Hyperparameters; the defaults are those of `models/dqn.py`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DqnHyper {
    /// Discount of future rewards.
    pub gamma: f32,
    /// RMSProp's rate, share of the old mean square that is kept, and what is added to its root.
    pub lr: f64,
    pub rms_alpha: f64,
    pub rms_eps: f64,
    /// Steps from one copy of the policy to the target to the next.
    pub copy_every: u64,
    /// Rows of one step; no learning before the pool holds as many.
    pub batch: usize,
    /// Transitions kept; the oldest is overwritten.
    pub replay: usize,
    /// Share of random actions.
    pub epsilon: f64,
    pub seed: u64,
}

impl Default for DqnHyper {
    fn default() -> Self {
        let (lr, rms_alpha, rms_eps) = (1e-3, 0.9, 1e-5);
        DqnHyper { gamma: 0.9, lr, rms_alpha, rms_eps, copy_every: 100, batch: 200, replay: 76_800, epsilon: 0.05, seed: 1 }
    }
}

/// What one step of learning did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DqnStats {
    /// Mean squared temporal-difference error before the step.
    pub loss: f32,
}

/// Policy and target network, and the optimiser.
#[derive(Clone, Debug, PartialEq)]
pub struct Dqn {
    policy: Mlp,
    target: Mlp,
    rms: RmsProp,
    steps: u64,
}

/// Buffers of a step of learning, reused.
#[derive(Clone, Debug, Default)]
pub struct Work {
    y: Vec<f32>,
    d_q: Vec<f32>,
    grads: Vec<f32>,
    tape: Tape,
    sorted: Vec<f32>,
}

/// Model-C of OSML.
pub type DqnAgent = Learner<Dqn>;

impl DqnAgent {
    /// From networks. None where their shapes do not fit: state -> one Q-value an action, both alike.
    pub fn from_networks(inputs: Vec<InputSpec>, policy: Mlp, target: Mlp, hyper: DqnHyper) -> Option<Self> {
        let fits = policy.inputs() == inputs.len() && policy.sizes() == target.sizes() && hyper.copy_every > 0;
        if !fits || hyper.batch == 0 || hyper.replay < hyper.batch {
            return None;
        }
        let mut rms = RmsProp::new(hyper.lr, policy.params().len());
        (rms.alpha, rms.eps) = (hyper.rms_alpha, hyper.rms_eps);
        let (actions, replay, seed) = (policy.outputs(), hyper.replay, hyper.seed);
        Some(Learner::new(inputs, hyper, Dqn { policy, target, rms, steps: 0 }, actions, replay, seed))
    }

    /// One Q-value an action.
    pub fn q_values(&mut self, state: &[f32]) -> &[f32] {
        let mut tape = std::mem::take(&mut self.work.tape);
        self.acting().policy.forward(state, 1, &mut tape);
        self.work.tape = tape;
        self.work.tape.output()
    }

    /// The available action with the largest Q-value (the lowest id of equals) among those that `possible` lets through, or
    /// with probability `hyper.epsilon` any of them. None where none is possible.
    pub fn choose(&mut self, state: &[f32], possible: impl Fn(usize) -> bool) -> Option<usize> {
        let open: u64 = (0..self.available.len().min(64)).filter(|&a| self.available[a] && possible(a)).fold(0, |set, a| set | 1 << a);
        let each = move || (0..64).filter(move |a| open >> a & 1 == 1);
        if open == 0 {
            return None;
        }
        if self.rng.uniform() < self.hyper.epsilon {
            let n = self.rng.below(open.count_ones() as usize);
            return each().nth(n);
        }
        let q = self.q_values(state);
        each().max_by(|&i, &j| q[i].total_cmp(&q[j]).then(j.cmp(&i)))
    }

    pub fn policy(&self) -> &Mlp {
        &self.net.policy
    }

    pub fn target(&self) -> &Mlp {
        &self.net.target
    }
}

impl Dqn {
    /// y = r + gamma max target(s') into `w.y`.
    fn returns(&self, gamma: f32, batch: &Batch, w: &mut Work) {
        let q2 = self.target.forward(&batch.next_states, batch.len(), &mut w.tape);
        let best = q2.chunks_exact(self.target.outputs()).map(|q| q.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        w.y.clear();
        w.y.extend(batch.rewards.iter().zip(best).map(|(r, q)| r + gamma * q));
    }

    /// Q(s, a) - y of each row, in order, y of `y`.
    fn errors<'a>(&self, batch: &'a Batch, y: &'a [f32], tape: &'a mut Tape) -> impl Iterator<Item = f32> + 'a {
        let actions = self.policy.outputs();
        let q = self.policy.forward(&batch.states, batch.len(), tape).chunks_exact(actions);
        q.zip(&batch.actions).zip(y).map(|((q, a), y)| q[*a as usize] - y)
    }

    /// Trimmed root mean square of Q(s, a) - y, y of `w.y`.
    fn error(&self, batch: &Batch, w: &mut Work) -> f32 {
        w.sorted.clear();
        w.sorted.extend(self.errors(batch, &w.y, &mut w.tape));
        trimmed_rms(&mut w.sorted)
    }
}

impl Nets for Dqn {
    type Hyper = DqnHyper;
    type Stats = DqnStats;
    type Work = Work;
    const KIND: &'static str = "dqn";
    const ACTION_LEN: usize = 1;

    fn copy_from(&mut self, other: &Self) {
        self.policy.params_mut().copy_from_slice(other.policy.params());
        self.target.params_mut().copy_from_slice(other.target.params());
        self.rms.copy_from(&other.rms);
        self.steps = other.steps;
    }

    fn batch(hyper: &DqnHyper) -> usize {
        hyper.batch
    }

    fn knows(&self, action: &[f32]) -> bool {
        action.iter().all(|a| *a >= 0.0 && a.fract() == 0.0 && (*a as usize) < self.policy.outputs())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn turned(&self, hyper: &DqnHyper) -> bool {
        self.steps.is_multiple_of(hyper.copy_every)
    }

    fn update(&mut self, hyper: &DqnHyper, batch: &Batch, w: &mut Work) -> Result<DqnStats, Refused> {
        self.returns(hyper.gamma, batch, w);
        let (actions, scale) = (self.policy.outputs(), 1.0 / batch.len() as f32);
        w.d_q.clear();
        w.d_q.resize(batch.len() * actions, 0.0);
        let mut loss = 0.0;
        let errors = self.errors(batch, &w.y, &mut w.tape);
        for ((e, a), d) in errors.zip(&batch.actions).zip(w.d_q.chunks_exact_mut(actions)) {
            loss += scale * e * e;
            d[*a as usize] = 2.0 * scale * e;
        }
        if !loss.is_finite() {
            return Err(Refused("loss"));
        }
        w.grads.resize(self.policy.params().len(), 0.0);
        self.policy.backward(&batch.states, &w.d_q, &mut w.tape, Some(&mut w.grads), None);
        self.rms.step(self.policy.params_mut(), &w.grads);
        if !self.policy.is_finite() {
            return Err(Refused("policy"));
        }
        self.steps += 1;
        if self.turned(hyper) {
            self.target.params_mut().copy_from_slice(self.policy.params());
        }
        Ok(DqnStats { loss })
    }

    fn score(&self, start: &Self, hyper: &DqnHyper, held: &Batch, w: &mut Work) -> Score {
        start.returns(hyper.gamma, held, w);
        let (td_before, td_after) = (start.error(held, w), self.error(held, w));
        w.sorted.clear();
        w.sorted.extend_from_slice(&w.y);
        // The best action by the old Q-values is best by them: no other can gain, so their word on the new policy counts for
        // nothing and the error alone decides.
        Score { td_before, td_after, scale: td_before + spread(&mut w.sorted), ..Score::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Guard;
    use crate::mlp::Output;
    use crate::rng::Rng;

    fn agent(state_len: usize, actions: usize, hyper: DqnHyper) -> DqnAgent {
        let mut rng = Rng::new(hyper.seed + 100);
        let net = Mlp::random(&[state_len, 30, 30, 30, actions], Output::Linear, 0.05, &mut rng);
        let inputs = (0..state_len).map(|i| InputSpec { name: format!("s{i}"), min: 0.0, max: 1.0 }).collect();
        DqnAgent::from_networks(inputs, net.clone(), net, hyper).unwrap()
    }

    fn small() -> DqnHyper {
        DqnHyper { batch: 32, replay: 4000, epsilon: 0.0, seed: 3, ..DqnHyper::default() }
    }

    /// 49 actions, each change once; number and change lead to each other, and doing nothing is one of them.
    #[test]
    fn the_49_actions_are_the_papers() {
        assert_eq!(ACTIONS, 49);
        for a in 0..ACTIONS {
            let (m, n) = change(a);
            assert_eq!(action(m, n), Some(a));
        }
        assert_eq!((change(0), change(48), change(IDLE)), ((-3, -3), (3, 3), (0, 0)));
        assert_eq!((action(4, 0), action(0, -4)), (None, None));
    }

    /// 6 ms faster for 3 units: ln 7 - 3; 6 ms slower, one unit given back: -ln 7 + 1; as fast: the units alone.
    #[test]
    fn the_reward_is_the_papers() {
        let of = |before, after, m, n| reward(before, after, action(m, n).unwrap());
        assert!((of(10.0, 4.0, 2, 1) - (7f64.ln() - 3.0)).abs() < 1e-12);
        assert!((of(4.0, 10.0, -1, 0) - (1.0 - 7f64.ln())).abs() < 1e-12);
        assert_eq!((of(5.0, 5.0, 0, 0), of(5.0, 5.0, 3, 3)), (0.0, -6.0));
    }

    /// Where the reward says which action is right in which half of the states, the policy learns it; the guard lets it.
    #[test]
    fn the_policy_learns_what_is_rewarded() {
        let mut a = agent(1, 5, DqnHyper { gamma: 0.0, batch: 64, ..small() });
        let right = |s: f32| if s < 0.5 { 1 } else { 4 };
        let mut rng = Rng::new(17);
        for _ in 0..4000 {
            let (s, did) = (rng.uniform() as f32, rng.below(5));
            assert!(a.remember(&[s], &[did as f32], if did == right(s) { 1.0 } else { 0.0 }, &[s]));
        }
        for _ in 0..1500 {
            a.learn_step().unwrap().unwrap();
        }
        let good = (0..100).map(|i| 0.005 + i as f32 / 100.0).filter(|s| a.choose(&[*s], |_| true) == Some(right(*s))).count();
        assert!(good >= 95, "{good} of 100 states right; {:?} {:?}", a.counts(), a.last_score());
    }

    /// The target stands still between copies and is the policy right after one.
    #[test]
    fn the_target_is_copied_whole_and_only_then() {
        let mut a = agent(2, 3, DqnHyper { copy_every: 3, ..small() }).with_guard(Guard::off());
        let mut rng = Rng::new(2);
        for _ in 0..40 {
            let mut x = || rng.uniform() as f32;
            a.remember(&[x(), x()], &[(3.0 * x()).floor()], x(), &[x(), x()]);
        }
        let first = a.target().clone();
        for step in 1..=7 {
            let before = a.target().clone();
            a.learn_step().unwrap().unwrap();
            assert_eq!(a.target() == &before, step % 3 != 0, "step {step}");
            assert_eq!(a.target() == a.policy(), step % 3 == 0, "step {step}");
        }
        assert_ne!(a.target(), &first);
    }

    /// Epsilon is the share of random actions; what is impossible is never taken; of equals the lowest.
    #[test]
    fn epsilon_is_the_share_of_random_actions() {
        let mut a = agent(2, ACTIONS, DqnHyper { epsilon: 0.05, ..small() });
        let s = [0.3, 0.6];
        a.hyper.epsilon = 0.0;
        let best = a.choose(&s, |_| true).unwrap();
        let second = a.choose(&s, |i| i != best).unwrap();
        assert_ne!(best, second);
        assert_eq!(a.choose(&s, |_| false), None);
        a.hyper.epsilon = 0.05;
        let mut seen = [0usize; ACTIONS];
        (0..4000).for_each(|_| seen[a.choose(&s, |i| i != best).unwrap()] += 1);
        // 95 % and 1/48 of 5 % = 0.951: within four standard errors, 0.0034 each.
        let share = seen[second] as f64 / 4000.0;
        assert!((share - 0.951).abs() < 4.0 * 0.0034, "{share}");
        assert_eq!(seen[best], 0);
        assert!(seen.iter().filter(|n| **n > 0).count() > 40);
        let flat = Mlp::zeros(&[2, 4, 3], Output::Linear);
        let mut a = DqnAgent::from_networks(a.inputs.clone(), flat.clone(), flat, small()).unwrap();
        assert_eq!(a.choose(&s, |_| true), Some(0));
        a.available[0] = false;
        assert_eq!(a.choose(&s, |_| true), Some(1));
    }

    /// An action that is no action of the network is not remembered.
    #[test]
    fn unknown_actions_are_not_remembered() {
        let mut a = agent(1, 3, small());
        for bad in [-1.0, 0.5, 3.0, f32::NAN, f32::INFINITY] {
            assert!(!a.remember(&[0.5], &[bad], 1.0, &[0.5]), "{bad}");
        }
        assert!(a.remember(&[0.5], &[2.0], 1.0, &[0.5]));
        assert_eq!(a.counts().left_out, 5);
    }

    /// A step that overflows is refused and leaves no trace.
    #[test]
    fn a_step_that_overflows_is_refused() {
        let mut a = agent(1, 3, small()).with_guard(Guard { reward_limit: f32::MAX, ..Guard::off() });
        a.remember(&[0.5], &[2.0], 1e30, &[0.5]);
        let before = a.snapshot();
        assert_eq!(a.learn_on(&[0]), Err(Refused("loss")));
        assert_eq!((a.snapshot(), a.counts().broken), (before, 1));
    }

    /// Networks that do not fit make no agent.
    #[test]
    fn shapes_must_fit() {
        let net = |sizes: &[usize]| Mlp::zeros(sizes, Output::Linear);
        let inputs = vec![InputSpec { name: "s".into(), min: 0.0, max: 1.0 }];
        let make = |p: &[usize], t: &[usize], h| DqnAgent::from_networks(inputs.clone(), net(p), net(t), h).is_some();
        assert!(make(&[1, 4, 3], &[1, 4, 3], small()));
        assert!(!make(&[1, 4, 3], &[1, 5, 3], small()));
        assert!(!make(&[2, 4, 3], &[2, 4, 3], small()));
        assert!(!make(&[1, 4, 3], &[1, 4, 3], DqnHyper { copy_every: 0, ..small() }));
    }
}
