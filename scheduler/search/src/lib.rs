//! Searches over allocations: RCliff and OAA of a plane (cores x ways) from few measured cells, the best [`partition`] of a server, and the best
//! division of its [`memory`].
//!
//! Pure decisions: [`label`] says what measured cells prove, [`Search`] says which cell to measure next. No I/O, no clock, no
//! randomness: the same readings always lead to the same questions.
//!
//! Units: latencies in ms; rows are steps of cores and columns steps of LLC ways, both from the least up.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

mod bounds;
mod label;
pub mod memory;
pub mod partition;
#[cfg(test)]
mod partition_tests;
mod prior;
mod search;
mod series;

pub use bounds::{Bounds, State};
pub use label::{label, Found, Label, Span};
pub use prior::Prior;
pub use search::{Ask, Effort, Search};
pub use series::{Reading, Series};

/// Row and column of a cell, from 0.
pub type Cell = (usize, usize);

/// What is asked about a plane: its shape, its QoS target, and what counts as a label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    pub rows: usize,
    pub columns: usize,
    pub target_ms: f64,
    /// Whether the first row and the first column are the least that the platform can give. Otherwise less could be given, but is not
    /// part of the plane.
    pub from_least: (bool, bool),
    /// Distance of OAA from the RCliff, in rows and columns.
    pub margin: (usize, usize),
    /// Row with as many cores as the service has threads; monotony is not trusted across it. None if there is no such row.
    pub kink_row: Option<usize>,
}

impl Question {
    pub fn cells(&self) -> usize {
        self.rows * self.columns
    }

    pub(crate) fn at(&self, (row, column): Cell) -> usize {
        row * self.columns + column
    }

    pub(crate) fn cell(&self, at: usize) -> Cell {
        (at / self.columns, at % self.columns)
    }

    /// Cores and ways, each as a share of the plane, summed: what makes an allocation cheap. As the label stage computes it, to the
    /// last bit.
    pub fn usage(&self, (row, column): Cell) -> f64 {
        let share = |i: usize, n: usize| if n > 1 { (i + 1) as f64 / n as f64 } else { 0.0 };
        share(row, self.rows) + share(column, self.columns)
    }
}
