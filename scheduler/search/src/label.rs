//! RCliff and OAA of a plane. The definition is `label_plane` of `pipelines/label.py`; `tests/vectors/labels.json` holds both to the
//! same answers.
//!
//! On a line (the cells of one row or one column) the edge is the cell meeting QoS from where one step less costs the most latency, as
//! a ratio. The RCliff is the cheapest edge cell of the plane. With unmeasured cells a cost has bounds: an edge is certain if no other
//! cell of the line could cost more, and possible if none certainly does.

use crate::bounds::{Bounds, State};
use crate::{Cell, Question};

/// Least and most of a row or column index, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub low: usize,
    pub high: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    pub rcliff: Cell,
    pub oaa: Cell,
    /// Where they could be: rows and columns. Single values if `exact`.
    pub rcliff_rows: Span,
    pub rcliff_columns: Span,
    pub oaa_rows: Span,
    pub oaa_columns: Span,
    /// Whether no unmeasured cell could move RCliff or OAA.
    pub exact: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Label(Label),
    /// No measured cell meets QoS. `exact`: and no other can.
    NoFeasibleCell {
        exact: bool,
    },
}

impl Found {
    /// Steps between two labels of a plane: the most of any of the four numbers; None where only one of them has a label.
    pub fn steps_from(&self, other: &Found) -> Option<usize> {
        match (self, other) {
            (Found::NoFeasibleCell { .. }, Found::NoFeasibleCell { .. }) => Some(0),
            (Found::Label(a), Found::Label(b)) => Some(steps((a.rcliff, a.oaa), (b.rcliff, b.oaa))),
            _ => None,
        }
    }
}

/// Steps between two pairs of RCliff and OAA: the most of any of the four numbers.
pub(crate) fn steps(a: (Cell, Cell), b: (Cell, Cell)) -> usize {
    let far = |x: Cell, y: Cell| x.0.abs_diff(y.0).max(x.1.abs_diff(y.1));
    far(a.0, b.0).max(far(a.1, b.1))
}

/// Costs of the cells of one axis, and which of them are edges.
pub(crate) struct Edges {
    pub certain: Vec<bool>,
    pub possible: Vec<bool>,
    /// Lower and upper bound of a cell's cost, ln(p99 with one step less / p99).
    pub low: Vec<f64>,
    pub high: Vec<f64>,
}

/// Cells of a line, as indices: line `i` of axis 0 (over rows, a column) or axis 1 (over columns, a row).
pub(crate) fn line(q: &Question, axis: usize, i: usize) -> impl DoubleEndedIterator<Item = usize> + Clone {
    let (start, step, n) = if axis == 0 { (i, q.columns, q.rows) } else { (i * q.columns, 1, q.columns) };
    (0..n).map(move |k| start + k * step)
}

pub(crate) fn edges(q: &Question, b: &Bounds, axis: usize) -> Edges {
    let n = q.cells();
    let mut e = Edges { certain: vec![false; n], possible: vec![false; n], low: vec![f64::NAN; n], high: vec![f64::NAN; n] };
    let (length, lines, from_least) = if axis == 0 { (q.rows, q.columns, q.from_least.0) } else { (q.columns, q.rows, q.from_least.1) };
    if length == 1 {
        return e; // a resource that cannot be taken away has no cliff
    }
    for i in 0..lines {
        let mut below: Option<usize> = None;
        for at in line(q, axis, i) {
            let (low, high) = match below {
                Some(below) => (b.low_ln[below], b.high_ln[below]),
                // Taking the last step costs everything; below where the plane starts nobody measured.
                None if from_least => (f64::INFINITY, f64::INFINITY),
                None => (f64::NAN, f64::NAN),
            };
            below = Some(at);
            if b.state[at] == State::Missed {
                continue;
            }
            e.low[at] = if b.high_ms[at].is_infinite() { f64::NEG_INFINITY } else { low - b.high_ln[at] };
            e.high[at] = high - b.low_ln[at];
            if low.is_nan() {
                (e.low[at], e.high[at]) = (f64::NAN, f64::NAN);
            }
        }
        // Of equals the first wins: the one with the least of the resource.
        let met = |at: usize| b.state[at] == State::Met && !e.low[at].is_nan();
        let mut best = f64::NEG_INFINITY; // highest lower bound of cells before
        let mut rival = f64::NEG_INFINITY; // highest upper bound of cells before
        let mut any = false;
        for at in line(q, axis, i) {
            if e.high[at].is_nan() {
                continue;
            }
            e.possible[at] = !(any && best >= e.high[at]);
            e.certain[at] = met(at) && rival < e.low[at];
            if met(at) {
                best = best.max(e.low[at]);
                any = true;
            }
            rival = rival.max(e.high[at]);
        }
        let (mut best, mut rival) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        for at in line(q, axis, i).rev() {
            if e.high[at].is_nan() {
                continue;
            }
            e.possible[at] &= best <= e.high[at];
            e.certain[at] &= rival <= e.low[at];
            if met(at) {
                best = best.max(e.low[at]);
            }
            rival = rival.max(e.high[at]);
        }
    }
    e
}

/// Cells that could be the RCliff, cheapest first, and whether the last of them is certainly an edge. `metric`: of both axes.
pub(crate) fn candidates(q: &Question, b: &Bounds, along: &[Edges; 2]) -> (Vec<usize>, bool) {
    let mut possible: Vec<bool> = (0..q.cells()).map(|at| along[0].possible[at] || along[1].possible[at]).collect();
    let mut certain: Vec<bool> = (0..q.cells()).map(|at| along[0].certain[at] || along[1].certain[at]).collect();
    if !possible.iter().any(|p| *p) {
        // A single cell, or no step to compare: the cheapest cell that meets QoS.
        possible = b.state.iter().map(|s| *s != State::Missed).collect();
        certain = b.state.iter().map(|s| *s == State::Met).collect();
    }
    let mut order: Vec<(f64, usize)> = (0..q.cells()).filter(|at| possible[*at]).map(|at| (q.usage(q.cell(at)), at)).collect();
    order.sort_unstable_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)));
    let mut order: Vec<usize> = order.into_iter().map(|(_, at)| at).collect();
    match order.iter().position(|at| certain[*at]) {
        Some(end) => {
            order.truncate(end + 1);
            (order, true)
        }
        None => (order, false),
    }
}

/// OAA for an RCliff, and the unmeasured cells that could turn out to be it instead.
pub(crate) fn oaa(q: &Question, b: &Bounds, (row, column): Cell) -> (Cell, Vec<Cell>) {
    let step = |i: usize, margin: usize, n: usize| (i + if n > 1 { margin } else { 0 }).min(n - 1);
    let at = (step(row, q.margin.0, q.rows), step(column, q.margin.1, q.columns));
    if b.state[q.at(at)] == State::Met {
        return (at, vec![]);
    }
    // Measurements need not be monotone. The cheapest cell that meets QoS past the margin, else past the RCliff.
    let mut others = if b.state[q.at(at)] == State::Unknown { vec![at] } else { vec![] };
    for least in [at, (row, column)] {
        let beyond =
            |state: State| (0..q.cells()).filter(move |i| b.state[*i] == state && q.cell(*i).0 >= least.0 && q.cell(*i).1 >= least.1);
        let best = beyond(State::Met).min_by(|x, y| q.usage(q.cell(*x)).total_cmp(&q.usage(q.cell(*y))).then(x.cmp(y)));
        let limit = best.map_or(f64::INFINITY, |i| q.usage(q.cell(i)));
        others.extend(beyond(State::Unknown).map(|i| q.cell(i)).filter(|c| q.usage(*c) <= limit));
        if let Some(best) = best {
            return (q.cell(best), others);
        }
    }
    if others.is_empty() {
        others.push(at);
    }
    (at, others)
}

/// RCliff and OAA alone, see [`label`].
pub(crate) fn point(q: &Question, p99_ms: &[f64]) -> Option<(Cell, Cell)> {
    let b = Bounds::of(q, p99_ms);
    if !b.state.contains(&State::Met) {
        return None;
    }
    let (order, _) = candidates(q, &b, &[edges(q, &b, 0), edges(q, &b, 1)]);
    let rcliff = q.cell(cheapest_candidate(q, &b, &order)?);
    Some((rcliff, oaa(q, &b, rcliff).0))
}

/// The cheapest candidate that is known to meet QoS; those that meet it may all be dearer than one that was measured to.
fn cheapest_candidate(q: &Question, b: &Bounds, order: &[usize]) -> Option<usize> {
    order.iter().copied().find(|at| b.state[*at] == State::Met).or_else(|| cheapest_met(q, b))
}

/// What measured cells say about RCliff and OAA. `p99_ms`: row by row; NaN where a cell was not measured, infinite where the server was
/// overloaded.
///
/// # Panics
/// If `p99_ms` has not one value a cell.
pub fn label(q: &Question, p99_ms: &[f64]) -> Found {
    assert_eq!(p99_ms.len(), q.cells(), "cells of the plane");
    let b = Bounds::of(q, p99_ms);
    if !b.state.contains(&State::Met) {
        return Found::NoFeasibleCell { exact: !b.state.contains(&State::Unknown) };
    }
    let along = [edges(q, &b, 0), edges(q, &b, 1)];
    let (order, certain) = candidates(q, &b, &along);
    let Some(best) = cheapest_candidate(q, &b, &order) else { return Found::NoFeasibleCell { exact: false } };
    let spread = |cells: &[Cell], of: fn(&Cell) -> usize| Span {
        low: cells.iter().map(of).min().unwrap_or(0),
        high: cells.iter().map(of).max().unwrap_or(0),
    };
    let points: Vec<Cell> = order.iter().map(|at| q.cell(*at)).chain([q.cell(best)]).collect();
    let (mut oaas, mut oaa_exact): (Vec<Cell>, bool) = (vec![], true);
    for p in &points {
        let (cell, others) = oaa(q, &b, *p);
        oaas.push(cell);
        oaa_exact &= others.is_empty();
        oaas.extend(others);
    }
    let exact = certain && order.len() == 1 && oaa_exact && !below_the_plane(q, &b, q.usage(q.cell(best)));
    Found::Label(Label {
        rcliff: q.cell(best),
        oaa: oaa(q, &b, q.cell(best)).0,
        rcliff_rows: spread(&points, |c| c.0),
        rcliff_columns: spread(&points, |c| c.1),
        oaa_rows: spread(&oaas, |c| c.0),
        oaa_columns: spread(&oaas, |c| c.1),
        exact,
    })
}

pub(crate) fn cheapest_met(q: &Question, b: &Bounds) -> Option<usize> {
    let met = (0..q.cells()).filter(|at| b.state[*at] == State::Met);
    met.min_by(|x, y| q.usage(q.cell(*x)).total_cmp(&q.usage(q.cell(*y))).then(x.cmp(y)))
}

/// Whether a cell below where the plane starts could be a cheaper RCliff.
fn below_the_plane(q: &Question, b: &Bounds, usage: f64) -> bool {
    let share = |i: usize, n: usize| if n > 1 { (i + 1) as f64 / n as f64 } else { 0.0 };
    let open = |at: usize| b.state[at] != State::Missed;
    let rows = !q.from_least.0 && (0..q.columns).any(|c| open(q.at((0, c))) && share(c, q.columns) <= usage);
    let columns = !q.from_least.1 && (0..q.rows).any(|r| open(q.at((r, 0))) && share(r, q.rows) <= usage);
    rows || columns
}
