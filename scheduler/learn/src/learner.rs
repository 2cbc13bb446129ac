//! On-line learning, whatever the networks: experience in, seeded batches out, steps of learning under a guard.
//!
//! [`Learner`] is used as [`crate::Agent`] (DDPG) and [`crate::DqnAgent`]; their modules say what one step does.
//! The same seed, experience and order of calls give the same weights, bit for bit.

use crate::guard::{Counts, Guard, Losses, Score};
use crate::model::{scale_into, InputError, InputSpec};
use crate::replay::{Batch, Replay};
use crate::rng::Rng;

/// A step of learning was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "learning step refused: the {0} is not finite; weights are as they were last kept. Check the rewards and states given to `remember`"
)]
pub struct Refused(pub &'static str);

/// Networks with their optimisers: all that learning changes.
pub trait Nets: Clone {
    type Hyper: Clone + Send;
    type Stats;
    /// Buffers of a step, reused.
    type Work: Clone + Default + Send;
    /// How experience names them.
    const KIND: &'static str;
    /// Values that make an action in the pool.
    const ACTION_LEN: usize;

    /// Copy without allocating; both are of one learner.
    fn copy_from(&mut self, other: &Self);
    fn batch(hyper: &Self::Hyper) -> usize;
    /// An action as the pool keeps it is one that these networks know.
    fn knows(&self, action: &[f32]) -> bool;
    /// One step of learning. After an error weights are undefined.
    ///
    /// # Errors
    /// [`Refused`]: a loss or weight is not finite.
    fn update(&mut self, hyper: &Self::Hyper, batch: &Batch, work: &mut Self::Work) -> Result<Self::Stats, Refused>;
    /// Compare with `start` on held-back experience.
    fn score(&self, start: &Self, hyper: &Self::Hyper, held: &Batch, work: &mut Self::Work) -> Score;
    fn steps(&self) -> u64;
    /// The last step changed what the next ones aim at: steps on both sides of it cannot be judged together.
    fn turned(&self, _hyper: &Self::Hyper) -> bool {
        false
    }
}

/// Networks that learn on line.
#[derive(Clone, Debug)]
pub struct Learner<N: Nets> {
    /// The state: features and their bounds, in order.
    pub inputs: Vec<InputSpec>,
    pub hyper: N::Hyper,
    pub guard: Guard,
    /// Actions that the platform can carry out; choosing looks no further.
    pub available: Vec<bool>,
    pub(crate) net: N,
    /// Networks before the window of steps that is not judged yet; [`Learner::acting`] goes by them.
    start: Option<Box<N>>,
    /// Steps in that window; 0 = `start` means nothing.
    open: u32,
    losses: Losses,
    counts: Counts,
    score: Option<Score>,
    pub(crate) pool: Replay,
    pub(crate) held: Replay,
    /// Transitions remembered so far: the number of the next.
    pub(crate) seen: u64,
    pub(crate) rng: Rng,
    rows: Vec<usize>,
    batch: Batch,
    pub(crate) work: N::Work,
}

impl<N: Nets> Learner<N> {
    pub(crate) fn new(inputs: Vec<InputSpec>, hyper: N::Hyper, net: N, actions: usize, replay: usize, seed: u64) -> Self {
        let guard = Guard::default();
        Learner {
            pool: Replay::new(inputs.len(), N::ACTION_LEN, replay),
            held: Replay::new(inputs.len(), N::ACTION_LEN, guard.keep),
            inputs,
            hyper,
            guard,
            available: vec![true; actions],
            net,
            start: None,
            open: 0,
            losses: Losses::default(),
            counts: Counts::default(),
            score: None,
            seen: 0,
            rng: Rng::new(seed),
            rows: Vec::new(),
            batch: Batch::default(),
            work: N::Work::default(),
        }
    }

    /// The same with other settings of the guard; what is already held back is kept as far as `keep` goes.
    pub fn with_guard(mut self, guard: Guard) -> Self {
        let mut held = Replay::new(self.inputs.len(), N::ACTION_LEN, guard.keep);
        for i in self.held.in_order() {
            let (s, a, r, s2) = self.held.row(i);
            held.push(s, a, r, s2);
        }
        (self.held, self.guard) = (held, guard);
        self
    }

    /// Raw features, in the order of [`Learner::inputs`], to the state that acting and [`Learner::remember`] take.
    ///
    /// # Errors
    /// [`InputError`] names the input that is missing or not finite.
    pub fn state(&self, raw: &[Option<f64>]) -> Result<Vec<f32>, InputError> {
        let mut out = Vec::with_capacity(self.inputs.len());
        scale_into(&self.inputs, raw, &mut out)?;
        Ok(out)
    }

    /// [`Learner::state`] by look-up of each input's name.
    pub fn state_by(&self, value: impl Fn(&str) -> Option<f64>) -> Result<Vec<f32>, InputError> {
        let raw: Vec<Option<f64>> = self.inputs.iter().map(|i| value(&i.name)).collect();
        self.state(&raw)
    }

    /// Put a transition into the experience pool, or hold it back for the guard. False (and nothing stored) where a state
    /// has the wrong length or leaves 0..1, the action is unknown, or the reward is beyond the guard's limit.
    pub fn remember(&mut self, s: &[f32], a: &[f32], r: f32, s2: &[f32]) -> bool {
        if !self.admits(s, a, r, s2) {
            self.counts.left_out += 1;
            return false;
        }
        let held = self.guard.holds_back(self.seen);
        self.seen += 1;
        if held { &mut self.held } else { &mut self.pool }.push(s, a, r, s2);
        true
    }

    pub(crate) fn admits(&self, s: &[f32], a: &[f32], r: f32, s2: &[f32]) -> bool {
        let state = |s: &[f32]| s.len() == self.inputs.len() && s.iter().all(|v| (0.0..=1.0).contains(v));
        state(s) && state(s2) && a.len() == N::ACTION_LEN && self.net.knows(a) && r.abs() <= self.guard.reward_limit && r.is_finite()
    }

    /// Draw anew from this seed: batches, and random actions.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    /// Transitions in the experience pool, those held back left out.
    pub fn remembered(&self) -> usize {
        self.pool.len()
    }

    /// Transitions remembered so far, those that the pool has forgotten and those of earlier runs included.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Transitions held back for the guard.
    pub fn held_back(&self) -> usize {
        self.held.len()
    }

    /// Steps of learning so far; those of refused windows do not count.
    pub fn steps(&self) -> u64 {
        self.net.steps()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What the guard saw at the end of the last window that it could judge.
    pub fn last_score(&self) -> Option<Score> {
        self.score
    }

    /// The networks to act by: the last that the guard has kept.
    pub(crate) fn acting(&self) -> &N {
        match &self.start {
            Some(start) if self.open > 0 => start,
            _ => &self.net,
        }
    }

    /// One step of learning on a seeded draw (with replacement) from the pool; Ok(None) while the pool holds fewer rows than
    /// a batch. Every `guard.window` steps the guard keeps or refuses them all.
    ///
    /// # Errors
    /// [`Refused`]: a loss or weight came out not finite; the networks are the last that were kept.
    pub fn learn_step(&mut self) -> Result<Option<N::Stats>, Refused> {
        let (n, batch) = (self.pool.len(), N::batch(&self.hyper));
        if n < batch {
            return Ok(None);
        }
        if self.open == 0 {
            self.mark();
        }
        let (mut rows, rng) = (std::mem::take(&mut self.rows), &mut self.rng);
        rows.clear();
        rows.extend((0..batch).map(|_| rng.below(n)));
        self.open += 1;
        let done = self.update(&rows);
        self.rows = rows;
        if self.guard.every == 0 {
            self.open = 0;
        } else if done.is_ok() && (self.open >= self.guard.window || self.net.turned(&self.hyper)) {
            self.judge();
        }
        done.map(Some)
    }

    /// One step of learning on the given rows of the pool (0 = first remembered, while the ring is not yet full), past the
    /// guard.
    ///
    /// # Errors
    /// As [`Learner::learn_step`].
    ///
    /// # Panics
    /// On an empty list or a row beyond [`Learner::remembered`].
    pub fn learn_on(&mut self, rows: &[usize]) -> Result<N::Stats, Refused> {
        self.mark();
        let done = self.update(rows);
        self.open = 0;
        done
    }

    fn mark(&mut self) {
        match &mut self.start {
            Some(s) => s.copy_from(&self.net),
            None => self.start = Some(Box::new(self.net.clone())),
        }
    }

    fn update(&mut self, rows: &[usize]) -> Result<N::Stats, Refused> {
        assert!(!rows.is_empty(), "a step of learning needs rows");
        self.pool.gather(rows.iter().copied(), &mut self.batch);
        let done = self.net.update(&self.hyper, &self.batch, &mut self.work);
        if done.is_err() {
            self.counts.broken += 1;
            self.go_back();
        }
        done
    }

    fn go_back(&mut self) {
        self.open = 0;
        if let Some(s) = &self.start {
            self.net.copy_from(s);
        }
    }

    fn judge(&mut self) {
        let Some(start) = self.start.as_deref().filter(|_| self.held.len() >= self.guard.least.max(1)) else {
            self.open = 0;
            self.counts.unjudged += 1;
            return;
        };
        self.held.gather(0..self.held.len(), &mut self.batch);
        let score = self.net.score(start, &self.hyper, &self.batch, &mut self.work);
        self.score = Some(score);
        if let Some(losses) = self.losses.with(&score, self.guard.tolerance) {
            self.open = 0;
            self.losses = losses;
            self.counts.kept += 1;
        } else {
            self.counts.refused += 1;
            self.go_back();
        }
    }

    /// The networks and optimisers as they are now, judged or not.
    pub fn snapshot(&self) -> N {
        self.net.clone()
    }

    /// Go back to a snapshot of this learner; the experience pool is kept.
    ///
    /// # Panics
    /// On a snapshot of a learner with other network sizes.
    pub fn restore(&mut self, snapshot: &N) {
        self.net.copy_from(snapshot);
        self.open = 0;
        self.losses = Losses::default();
    }
}
