//! What a search expects before it measures: where the frontier of a neighbouring plane was, or nothing in particular.

use crate::bounds::{Bounds, State};
use crate::Question;

/// Chance of each cell to meet QoS, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior(pub(crate) Vec<f64>);

/// How sure a neighbour's verdict makes us.
const LIKELY: f64 = 0.93;

impl Prior {
    /// As a neighbouring plane came out. Its size may differ: neighbours leave more or less room; cells keep their cores and ways.
    pub fn like(q: &Question, other: &Question, bounds: &Bounds) -> Self {
        let of = |at: usize| {
            let (r, c) = q.cell(at);
            match bounds.state[other.at((r.min(other.rows - 1), c.min(other.columns - 1)))] {
                State::Met => LIKELY,
                State::Missed => 1.0 - LIKELY,
                State::Unknown => 0.5,
            }
        };
        Prior((0..q.cells()).map(of).collect())
    }
}

/// Share of planes without a feasible cell, where nothing is known.
const INFEASIBLE: f64 = 0.1;
/// What is left of the weight of a corner that a reading speaks against: frontiers are not quite corners.
const AGAINST: f64 = 0.1;

/// Where the frontier could be, learnt in this plane alone: as if it were a corner (all cells with no less of either resource meet QoS),
/// each cell as likely to be it until readings speak against it.
#[derive(Clone, Debug)]
pub(crate) struct Corners {
    weight: Vec<f64>,
    nowhere: f64,
}

impl Corners {
    pub fn new(q: &Question) -> Self {
        Corners { weight: vec![1.0; q.cells()], nowhere: INFEASIBLE * q.cells() as f64 }
    }

    pub fn tell(&mut self, q: &Question, (row, column): (usize, usize), met: bool) {
        for (at, w) in self.weight.iter_mut().enumerate() {
            let (r, c) = q.cell(at);
            if (r <= row && c <= column) != met {
                *w *= AGAINST;
            }
        }
        if met {
            self.nowhere *= AGAINST;
        }
    }

    /// Chance of each cell to meet QoS.
    pub fn chances(&self, q: &Question) -> Vec<f64> {
        let mut sum = vec![0.0; q.cells()];
        for row in 0..q.rows {
            let mut along = 0.0;
            for column in 0..q.columns {
                let at = q.at((row, column));
                along += self.weight[at];
                sum[at] = along + if row > 0 { sum[at - q.columns] } else { 0.0 };
            }
        }
        let all = self.nowhere + sum.last().copied().unwrap_or(0.0);
        sum.iter().map(|s| s / all).collect()
    }
}
