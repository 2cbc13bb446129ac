//! Cost-sensitive classification, one against all: for each number of cores a linear model of what it will cost to keep so
//! many (SmartHarvest, section 3.2). The class of the least predicted cost is taken; of equal ones the larger.
//!
//! The paper names Vowpal Wabbit and a rate of 0.1, and its text fits none of that program's rules alone. So the rule is a
//! setting. Rule 3 is Vowpal Wabbit's default (adaptive, normalised, invariant; `power_t` 0.5), and a test compares it with
//! recorded answers of that program. Ross, Mineiro, Langford: Normalized online learning (2013); Karampatziakis, Langford:
//! Online importance weight aware updates (2011).

use crate::window::{Features, INPUTS};

/// How weights follow an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Gradient of the squared error.
    Plain,
    /// The same over the squared length of the inputs.
    Normalised,
    /// Each weight by the root of its squared gradients so far (AdaGrad).
    Adaptive,
    /// Vowpal Wabbit's.
    Invariant,
}

impl Rule {
    /// The number of a setting; those that there are not count as the last.
    pub fn of(number: u8) -> Self {
        match number {
            0 => Rule::Plain,
            1 => Rule::Normalised,
            2 => Rule::Adaptive,
            _ => Rule::Invariant,
        }
    }
}

/// One model of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    weight: [f32; INPUTS],
    /// Sum of squared gradients of each weight.
    squares: [f32; INPUTS],
    /// Largest input that each weight has seen.
    largest: [f32; INPUTS],
    /// Updates so far, and the sum of the squared lengths of their inputs, each input over the largest of its kind.
    updates: f32,
    lengths: f32,
}

impl Class {
    fn raw(&self, x: &Features) -> f32 {
        x.iter().zip(&self.weight).map(|(x, w)| x * w).sum()
    }
}

/// Models of the classes 1 to `cores`. It allocates when it is made, and never again.
#[derive(Clone, Debug)]
pub struct Learner {
    rule: Rule,
    rate: f32,
    classes: Vec<Class>,
    /// Largest cost that was seen, 0 at first: no prediction that is learnt from is above it, or below 0.
    most_cost: f32,
}

/// Smaller squares count as nothing.
const NOTHING: f32 = f32::MIN_POSITIVE;
/// Below it the invariant update is the plain one to f32's precision.
const LINEAR: f32 = 1e-6;

impl Learner {
    /// Weights are 0.
    pub fn new(cores: u32, rule: Rule, rate: f64) -> Self {
        Learner { rule, rate: rate as f32, classes: vec![Class::default(); cores as usize], most_cost: 0.0 }
    }

    /// Predicted cost of keeping `k` cores, 1 to all.
    pub fn cost(&self, k: u32, x: &Features) -> f32 {
        self.classes[k as usize - 1].raw(x)
    }

    /// The class of least predicted cost; of equal ones the largest.
    pub fn best(&self, x: &Features) -> u32 {
        let mut best = (f32::INFINITY, self.classes.len());
        for (i, class) in self.classes.iter().enumerate() {
            let cost = class.raw(x);
            if cost <= best.0 {
                best = (cost, i + 1);
            }
        }
        best.1 as u32
    }

    /// Learn what keeping 1, 2, ... cores would have cost after a window of features `x`.
    pub fn train(&mut self, x: &Features, cost: impl Fn(u32) -> f32) {
        for i in 0..self.classes.len() {
            self.update(i, x, cost(i as u32 + 1));
        }
    }

    fn update(&mut self, i: usize, x: &Features, cost: f32) {
        self.most_cost = self.most_cost.max(cost);
        let raw = self.classes[i].raw(x);
        let class = &mut self.classes[i];
        match self.rule {
            Rule::Plain | Rule::Normalised => {
                let square: f32 = x.iter().map(|x| x * x).sum();
                let by = if self.rule == Rule::Plain { 1.0 } else { square.max(NOTHING) };
                let step = self.rate * (cost - raw) / by;
                class.weight.iter_mut().zip(x).for_each(|(w, x)| *w += step * x);
            }
            Rule::Adaptive => {
                let gradient = 2.0 * (raw - cost);
                for (j, x) in x.iter().enumerate() {
                    let g = gradient * x;
                    class.squares[j] += g * g;
                    if class.squares[j] > NOTHING {
                        class.weight[j] -= self.rate * g / class.squares[j].sqrt();
                    }
                }
            }
            Rule::Invariant => self.invariant(i, x, cost, raw),
        }
    }

    fn invariant(&mut self, i: usize, x: &Features, cost: f32, raw: f32) {
        let class = &mut self.classes[i];
        let predicted = raw.clamp(0.0, self.most_cost);
        let error = cost - predicted;
        if error == 0.0 {
            return;
        }
        let gradient_square = 4.0 * error * error;
        // How fast each weight may move, and how far a step of 1 moves the prediction.
        let mut speed = [0.0f32; INPUTS];
        let (mut moves, mut length) = (0.0f32, 0.0f32);
        for (j, x) in x.iter().enumerate() {
            if *x == 0.0 {
                continue;
            }
            let square = x * x;
            class.squares[j] += gradient_square * square;
            let size = x.abs();
            if size > class.largest[j] {
                if class.largest[j] > 0.0 {
                    class.weight[j] *= class.largest[j] / size;
                }
                class.largest[j] = size;
            }
            length += square / (class.largest[j] * class.largest[j]);
            speed[j] = 1.0 / (class.squares[j].max(NOTHING).sqrt() * class.largest[j]);
            moves += square * speed[j];
        }
        class.updates += 1.0;
        class.lengths += length;
        let average = if class.lengths > 0.0 { (class.updates / class.lengths).sqrt() } else { 1.0 };
        moves *= average;
        let step =
            if self.rate * moves < LINEAR { 2.0 * error * self.rate } else { error * (1.0 - (-2.0 * self.rate * moves).exp()) / moves };
        for (j, x) in x.iter().enumerate() {
            class.weight[j] += step * average * x * speed[j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    const RULES: [Rule; 4] = [Rule::Plain, Rule::Normalised, Rule::Adaptive, Rule::Invariant];

    fn input(level: f32) -> Features {
        [level / 2.0, level, level * 0.7, level / 5.0, level * 0.6, 1.0]
    }

    /// Before anything is learnt every class costs the same, and all cores are kept.
    #[test]
    fn equal_costs_keep_most() {
        for rule in RULES {
            assert_eq!(Learner::new(10, rule, 0.1).best(&input(0.3)), 10);
        }
    }

    /// A peak that is always the same is found by each rule, and one that follows the features as well.
    #[test]
    fn what_recurs_is_learnt() {
        for rule in RULES {
            let mut l = Learner::new(10, rule, 0.1);
            for _ in 0..2000 {
                l.train(&input(0.3), |k| Cost::Skewed.at(k, 4, 10.0));
            }
            assert_eq!(l.best(&input(0.3)), 4, "{rule:?}");
        }
        let mut l = Learner::new(10, Rule::Invariant, 0.5);
        for i in 0..4000 {
            let (level, peak) = if i % 2 == 0 { (0.2, 3) } else { (0.7, 8) };
            l.train(&input(level), |k| Cost::Skewed.at(k, peak, 10.0));
        }
        assert!((3..=4).contains(&l.best(&input(0.2))), "{}", l.best(&input(0.2)));
        assert!(l.best(&input(0.7)) >= 8, "{}", l.best(&input(0.7)));
    }

    /// Where a peak of 8 comes in every third window, skewed costs keep 8 and symmetric ones do not.
    #[test]
    fn harm_weighs_more_than_loss() {
        let kept = |cost: Cost| {
            let mut l = Learner::new(10, Rule::Invariant, 0.1);
            for i in 0..5000 {
                l.train(&input(0.3), |k| cost.at(k, if i % 3 == 0 { 8 } else { 3 }, 10.0));
            }
            l.best(&input(0.3))
        };
        assert!(kept(Cost::Skewed) >= 7, "{}", kept(Cost::Skewed));
        assert!(kept(Cost::Symmetric) <= 4, "{}", kept(Cost::Symmetric));
        assert_eq!(kept(Cost::Hinged), 10);
    }

    /// No input, however often it comes, makes a weight that is no number.
    #[test]
    fn weights_stay_numbers() {
        for rule in RULES {
            let mut l = Learner::new(4, rule, 0.1);
            for i in 0..20_000u32 {
                let level = [0.0, 1.0, 1e-6][i as usize % 3];
                l.train(&[level, level, level, 0.0, level, 1.0], |k| Cost::Skewed.at(k, i % 5, 4.0));
            }
            assert!((1..=4).all(|k| l.cost(k, &input(0.5)).is_finite()), "{rule:?}");
        }
    }
}
