//! Which cell to measure next.
//!
//! 1. The cheapest cell that meets QoS: of the cells that could still be it, ask the one that is expected to leave the fewest. A met
//!    cell rules out all dearer ones, a missed cell all with no more of either resource.
//! 2. One cell where monotony is likely to end, see [`Question::kink_row`].
//! 3. Whether it is an edge: the cells one step below, then the line beyond, halved where its latency still falls by more than the
//!    step below costs. If it is not, the next cheapest.
//! 4. What lies where the plane starts, if it starts above the least, and OAA.
//!
//! A cell whose verdict is undecided is asked again, up to [`Effort::repeats`] times, until its error is small enough for the search to go
//! on. At the end those are asked again within whose error the label moves, the longer the further it moves ([`Effort`]).

use crate::bounds::{Bounds, State};
use crate::label::{candidates, edges, label, line, oaa, point, steps, Edges, Found};
use crate::prior::{Corners, Prior};
use crate::series::{Reading, Series};
use crate::{Cell, Question};

/// How much certainty may cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Most cases of one cell.
    pub repeats: u32,
    /// Standard errors of ln p99 at which a cell is taken for what it seems: while others are looked for, where the label moves by a
    /// step with it, and where it moves further.
    pub search_ln: f64,
    pub step_ln: f64,
    pub far_ln: f64,
    /// Standard errors that the target must be away from a p99.
    pub z: f64,
}

/// A cell that came to nothing (too few requests for a percentile, a failure) is tried so often.
const MOST_CASES_FOR_NOTHING: u32 = 2;
/// A plane in which so many cells came to nothing is given up: such a service needs longer intervals.
const MOST_CELLS_FOR_NOTHING: usize = 6;

/// A case to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub cell: Cell,
    /// How often this cell was measured before.
    pub repeat: u32,
}

/// The search of one plane.
#[derive(Clone, Debug)]
pub struct Search {
    q: Question,
    effort: Effort,
    prior: Option<Prior>,
    corners: Corners,
    series: Vec<Series>,
    p99_ms: Vec<f64>,
    refuted: u32,
    last: Option<usize>,
    cases: u32,
}

impl Search {
    /// `prior`: of a neighbouring plane.
    pub fn new(q: Question, effort: Effort, prior: Option<Prior>) -> Self {
        let n = q.cells();
        let corners = Corners::new(&q);
        Search {
            q,
            effort,
            prior,
            corners,
            series: vec![Series::default(); n],
            p99_ms: vec![f64::NAN; n],
            refuted: 0,
            last: None,
            cases: 0,
        }
    }

    pub fn question(&self) -> &Question {
        &self.q
    }

    /// Cases so far.
    pub fn cases(&self) -> u32 {
        self.cases
    }

    /// What is known of every cell.
    pub fn bounds(&self) -> Bounds {
        Bounds::of(&self.q, &self.p99_ms)
    }

    pub fn label(&self) -> Found {
        label(&self.q, &self.p99_ms)
    }

    /// The outcome of the case asked for (or of any other, as a journal tells it).
    pub fn tell(&mut self, cell: Cell, reading: Reading) {
        let at = self.q.at(cell);
        let first = self.series[at].cases == 0;
        self.series[at].add(reading);
        self.p99_ms[at] = self.series[at].p99_ms();
        self.cases += 1;
        self.last = Some(at);
        let met = self.p99_ms[at] <= self.q.target_ms;
        if first {
            self.corners.tell(&self.q, cell, met);
            let expected = self.prior.as_ref().map_or(0.5, |p| p.0[at]);
            self.refuted += u32::from((expected - 0.5).abs() > 0.4 && met != (expected > 0.5));
        }
    }

    /// The next case; None when no further cell is worth its cost.
    pub fn next(&self) -> Option<Ask> {
        if let Some(at) = self.last.filter(|at| self.again(*at)) {
            return Some(self.ask(at));
        }
        if (0..self.q.cells()).filter(|at| !self.fresh(*at) && self.p99_ms[*at].is_nan()).count() >= MOST_CELLS_FOR_NOTHING {
            return None;
        }
        let at = self.open(&self.p99_ms).or_else(|| self.pivot())?;
        Some(self.ask(at))
    }

    /// A cell never asked that the label hangs on, if these were the p99 of those that were.
    fn open(&self, p99_ms: &[f64]) -> Option<usize> {
        let b = Bounds::of(&self.q, p99_ms);
        let at = self.cheapest(&b).or_else(|| self.kink(&b)).or_else(|| self.edge(&b));
        at.or_else(|| {
            let found = label(&self.q, p99_ms);
            self.start(&b, &found).or_else(|| self.optimum(&b, &found))
        })
    }

    fn ask(&self, at: usize) -> Ask {
        Ask { cell: self.q.cell(at), repeat: self.series[at].cases }
    }

    /// Whether a cell that was measured is measured again at once: what is asked next rests on its verdict.
    fn again(&self, at: usize) -> bool {
        let s = &self.series[at];
        match s.distance(self.q.target_ms) {
            Some(d) => {
                let open = d < self.effort.z && (s.se_ln() == 0.0 || s.se_ln() > self.effort.search_ln);
                s.cases < self.effort.repeats && (open || (s.se_ln() > 0.0 && !looked_at(s.cases)))
            }
            None => s.cases < self.effort.repeats.min(MOST_CASES_FOR_NOTHING),
        }
    }

    /// Never asked. What came to nothing is not asked again: it has had its repeats.
    fn fresh(&self, at: usize) -> bool {
        self.series[at].cases == 0
    }

    /// The most telling cell of those that could be the cheapest to meet QoS.
    fn cheapest(&self, b: &Bounds) -> Option<usize> {
        let q = &self.q;
        let key = |at: usize| (q.usage(q.cell(at)), at);
        let less = |x: (f64, usize), y: (f64, usize)| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1)).is_lt();
        let mut best: Option<(f64, usize)> = None;
        for at in (0..q.cells()).filter(|at| b.state[*at] == State::Met) {
            if best.is_none_or(|k| less(key(at), k)) {
                best = Some(key(at));
            }
        }
        let mut open: Vec<usize> =
            (0..q.cells()).filter(|at| b.state[*at] == State::Unknown && best.is_none_or(|k| less(key(*at), k))).collect();
        // What was measured and came to nothing is open for good.
        if open.iter().all(|at| !self.fresh(*at)) {
            return None;
        }
        // How many of them have no more of either resource: they go if the cell misses QoS.
        let mut below = vec![0u32; q.cells()];
        open.iter().for_each(|at| below[*at] = 1);
        for row in 0..q.rows {
            let mut sum = 0;
            for column in 0..q.columns {
                let at = q.at((row, column));
                sum += below[at];
                below[at] = sum + if row > 0 { below[at - q.columns] } else { 0 };
            }
        }
        // How many are cheaper: they stay if the cell meets it.
        let all = open.len();
        open.sort_by(|x, y| q.usage(q.cell(*x)).total_cmp(&q.usage(q.cell(*y))).then(x.cmp(y)));
        let mut cheaper = vec![all; q.cells()];
        open.iter().enumerate().for_each(|(rank, at)| cheaper[*at] = rank);
        let corners = self.corners.chances(q);
        // Each refuted expectation halves the trust in the neighbour.
        let trust = if self.prior.is_some() { 0.5f64.powi(self.refuted as i32) } else { 0.0 };
        let left = |at: usize| {
            let chance = trust * self.prior.as_ref().map_or(0.0, |p| p.0[at]) + (1.0 - trust) * corners[at];
            let (met, missed) = (cheaper[at] as f64, all as f64 - f64::from(below[at]));
            chance * (met + 1.0).ln() + (1.0 - chance) * (missed + 1.0).ln()
        };
        let asks = (0..q.cells()).filter(|at| b.state[*at] == State::Unknown && self.fresh(*at) && below[*at] > 0);
        asks.map(|at| (left(at), at)).min_by(|x, y| x.0.total_cmp(&y.0).then(x.1.cmp(&y.1))).map(|(_, at)| at)
    }

    /// Where a core a thread is reached, more cores help no longer and can harm (a lower turbo frequency, shared cores), so a cell there
    /// may meet QoS though one with more cores misses it. The dearest cell of that row that would be cheaper than what was found.
    fn kink(&self, b: &Bounds) -> Option<usize> {
        let q = &self.q;
        let row = q.kink_row.filter(|r| r + 1 < q.rows)?;
        let best = crate::label::cheapest_met(q, b).map_or(f64::INFINITY, |at| q.usage(q.cell(at)));
        let at = (0..q.columns).rev().map(|c| q.at((row, c))).find(|at| q.usage(q.cell(*at)) < best)?;
        (b.state[at] == State::Missed && b.low_ms[at].is_finite() && self.fresh(at)).then_some(at)
    }

    /// A cell that helps to tell whether the cheapest candidate is an edge.
    fn edge(&self, b: &Bounds) -> Option<usize> {
        let q = &self.q;
        if !b.state.contains(&State::Met) {
            return None;
        }
        let along = [edges(q, b, 0), edges(q, b, 1)];
        let (order, certain) = candidates(q, b, &along);
        if certain && order.len() == 1 {
            return None;
        }
        for at in order {
            if self.fresh(at) {
                return Some(at);
            }
            if b.state[at] != State::Met || along[0].certain[at] || along[1].certain[at] {
                continue;
            }
            // The axis in which one step less is known to cost more, first.
            let cost = |axis: usize| if along[axis].low[at].is_nan() { f64::NEG_INFINITY } else { along[axis].low[at] };
            let axes = if cost(1) > cost(0) { [1, 0] } else { [0, 1] };
            if let Some(ask) = axes.into_iter().find_map(|axis| self.along(b, &along[axis], axis, at)) {
                return Some(ask);
            }
        }
        None
    }

    /// A cell of the line through `at` that says whether another of its cells costs more.
    fn along(&self, b: &Bounds, e: &Edges, axis: usize, at: usize) -> Option<usize> {
        let q = &self.q;
        if !e.possible[at] {
            return None;
        }
        let (row, column) = q.cell(at);
        let cells: Vec<usize> = line(q, axis, if axis == 0 { column } else { row }).collect();
        let here = if axis == 0 { row } else { column };
        // One step less, unless it is known to be overloaded.
        if here > 0 && self.fresh(cells[here - 1]) && b.low_ms[cells[here - 1]].is_finite() {
            return Some(cells[here - 1]);
        }
        // The rest of the line may still fall by more than that: its end, then the middle of the steepest stretch.
        let rival = (0..cells.len())
            .filter(|k| *k != here && e.high[cells[*k]] > e.low[at])
            .max_by(|x, y| e.high[cells[*x]].total_cmp(&e.high[cells[*y]]).then(y.cmp(x)))?;
        let known = |k: usize| b.measured[cells[k]];
        let Some(end) = (rival..cells.len()).find(|k| known(*k)) else {
            return (rival..cells.len()).rev().map(|k| cells[k]).find(|at| self.fresh(*at));
        };
        let start = (0..rival).rev().find(|k| known(*k)).unwrap_or(0);
        let middle = (start + end) / 2;
        let mut between: Vec<usize> = (start + 1..end).filter(|k| self.fresh(cells[*k])).collect();
        between.sort_by_key(|k| (k.abs_diff(middle), *k));
        between.first().map(|k| cells[*k])
    }

    /// Where the plane starts above the least that there is: whether QoS is missed there, so that nothing below it could be cheaper.
    fn start(&self, b: &Bounds, found: &Found) -> Option<usize> {
        let q = &self.q;
        let Found::Label(l) = found else { return None };
        let usage = q.usage(l.rcliff);
        let share = |i: usize, n: usize| if n > 1 { (i + 1) as f64 / n as f64 } else { 0.0 };
        let rows: Vec<usize> = (0..q.columns).filter(|c| !q.from_least.0 && share(*c, q.columns) <= usage).map(|c| q.at((0, c))).collect();
        let columns: Vec<usize> = (0..q.rows).filter(|r| !q.from_least.1 && share(*r, q.rows) <= usage).map(|r| q.at((r, 0))).collect();
        // One that meets QoS settles it: the label stays bounded.
        let all = || rows.iter().chain(&columns);
        if all().any(|at| b.state[*at] == State::Met) {
            return None;
        }
        let open = |at: &usize| b.state[*at] == State::Unknown && self.fresh(*at);
        rows.iter().copied().rfind(open).or_else(|| columns.iter().copied().rfind(open))
    }

    /// OAA, whose counters are part of the label; where it misses QoS, what else could be it.
    fn optimum(&self, b: &Bounds, found: &Found) -> Option<usize> {
        let q = &self.q;
        let Found::Label(l) = found else { return None };
        let at = q.at(l.oaa);
        if self.fresh(at) {
            return Some(at);
        }
        let (_, others) = oaa(q, b, l.rcliff);
        let open = others.into_iter().map(|c| q.at(c)).filter(|at| self.fresh(*at));
        open.min_by(|x, y| q.usage(q.cell(*x)).total_cmp(&q.usage(q.cell(*y))).then(x.cmp(y)))
    }

    /// The least certain of the cells within whose error the label moves, until it is known to [`Effort::step_ln`]; from there on only of
    /// those with which it moves further than a step. How far is known once what would then be asked was asked.
    fn pivot(&self) -> Option<usize> {
        let q = &self.q;
        let mut cells: Vec<usize> = (0..q.cells()).filter(|at| self.series[*at].cases < self.effort.repeats).collect();
        cells.retain(|at| self.series[*at].se_ln() > self.effort.far_ln);
        cells.sort_by(|x, y| self.series[*y].se_ln().total_cmp(&self.series[*x].se_ln()).then(x.cmp(y)));
        let found = point(q, &self.p99_ms);
        let mut other = self.p99_ms.clone();
        for at in cells {
            let se = self.series[at].se_ln();
            let fine = se <= self.effort.step_ln;
            for e in [-self.effort.z * se, self.effort.z * se] {
                other[at] = self.p99_ms[at] * e.exp();
                let crosses = (other[at] <= q.target_ms) != (self.p99_ms[at] <= q.target_ms);
                if let Some(ask) = (fine && crosses).then(|| self.open(&other)).flatten() {
                    return Some(ask);
                }
                let moves = match (found, point(q, &other)) {
                    (Some(a), Some(b)) => steps(a, b) > usize::from(fine),
                    (a, b) => a != b,
                };
                if moves {
                    return Some(at);
                }
            }
            other[at] = self.p99_ms[at];
        }
        None
    }
}

/// Whether a cell with so many cases is judged before it gets another: always up to 16, then 16 times until they are doubled. Each look
/// is a chance to be wrong, and costs the time of some labels.
fn looked_at(cases: u32) -> bool {
    cases < 16 || cases.is_multiple_of(1 << (cases.ilog2() - 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn question(rows: usize, columns: usize) -> Question {
        Question { rows, columns, target_ms: 10.0, from_least: (true, true), margin: (1, 1), kink_row: None }
    }

    const ONCE: Effort = Effort { repeats: 1, z: 3.0, search_ln: 0.005, step_ln: 0.001, far_ln: 0.0003 };

    /// Ask until the search has enough; the cells asked, in order.
    fn run(search: &mut Search, p99_ms: &dyn Fn(Cell) -> f64) -> Vec<Ask> {
        let mut asked = vec![];
        while let Some(ask) = search.next() {
            let ms = p99_ms(ask.cell);
            search.tell(ask.cell, if ms.is_infinite() { Reading::Overloaded } else { Reading::P99 { ms, se_ln: 0.0 } });
            asked.push(ask);
            assert!(asked.len() <= search.question().cells() * 4, "it does not end");
        }
        asked
    }

    /// A surface that falls with both resources, some of it overloaded.
    fn surface() -> impl Strategy<Value = (usize, usize, Vec<f64>)> {
        (1usize..20, 1usize..12).prop_flat_map(|(rows, columns)| {
            let falls = |n: usize| proptest::collection::vec(prop_oneof![0.001..0.1f64, 0.001..2.0f64], n);
            (falls(rows), falls(columns), 0.0..8.0f64, prop_oneof![Just(f64::INFINITY), 20.0..500.0f64]).prop_map(
                move |(over_rows, over_columns, top_ln, overload_ms)| {
                    let sums = |falls: &[f64]| falls.iter().scan(0.0, |s, f| Some(std::mem::replace(s, *s + f))).collect::<Vec<f64>>();
                    let (by_row, by_column) = (sums(&over_rows), sums(&over_columns));
                    let at = |i: usize| (top_ln - by_row[i / columns] - by_column[i % columns]).exp();
                    let grid = (0..rows * columns).map(at).map(|p| if p > overload_ms { f64::INFINITY } else { p }).collect();
                    (rows, columns, grid)
                },
            )
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// On a surface that falls with both resources the label is exact and that of all cells; no cell is asked twice.
        #[test]
        fn finds_the_label_of_all_cells((rows, columns, grid) in surface(), from_rows: bool, from_columns: bool) {
            let q = Question { from_least: (from_rows, from_columns), ..question(rows, columns) };
            let mut search = Search::new(q, ONCE, None);
            let asked = run(&mut search, &|c| grid[q.at(c)]);
            let whole = label(&q, &grid);
            match (search.label(), whole) {
                (Found::Label(a), Found::Label(b)) => {
                    prop_assert_eq!((a.rcliff, a.oaa), (b.rcliff, b.oaa));
                    prop_assert_eq!(a.exact, b.exact);
                }
                (a, b) => prop_assert_eq!(a, b),
            }
            let cells: BTreeSet<Cell> = asked.iter().map(|a| a.cell).collect();
            prop_assert!(cells.len() == asked.len() && asked.iter().all(|a| a.repeat == 0));
        }

        /// Told again what it heard, a search asks what it asked: at every point a journal brings it to where it was. What the plane
        /// before was like changes what it costs, not what it finds.
        #[test]
        fn goes_on_where_it_was((rows, columns, grid) in surface(), other in surface()) {
            let q = question(rows, columns);
            let teacher = question(other.0, other.1);
            let prior = Prior::like(&q, &teacher, &Bounds::of(&teacher, &other.2));
            let mut search = Search::new(q, ONCE, Some(prior.clone()));
            let asked = run(&mut search, &|c| grid[q.at(c)]);
            let mut again = Search::new(q, ONCE, Some(prior));
            for ask in &asked {
                prop_assert_eq!(again.next(), Some(*ask));
                let ms = grid[q.at(ask.cell)];
                again.tell(ask.cell, if ms.is_infinite() { Reading::Overloaded } else { Reading::P99 { ms, se_ln: 0.0 } });
            }
            prop_assert_eq!(again.next(), None);
            let mut cold = Search::new(q, ONCE, None);
            run(&mut cold, &|c| grid[q.at(c)]);
            let point = |f: Found| match f { Found::Label(l) => Some((l.rcliff, l.oaa, l.exact)), Found::NoFeasibleCell { .. } => None };
            prop_assert_eq!(point(cold.label()), point(search.label()));
        }

        /// Whatever is heard, also what contradicts itself or comes to nothing, a search ends.
        #[test]
        fn ends(rows in 1usize..8, columns in 1usize..8, heard in proptest::collection::vec(0u8..6, 1..60)) {
            let q = question(rows, columns);
            let mut search = Search::new(q, Effort { repeats: 3, ..ONCE }, None);
            let mut i = 0;
            while let Some(ask) = search.next() {
                prop_assert!(ask.repeat < 3);
                let reading = match heard[i % heard.len()] {
                    0 => Reading::Nothing,
                    1 => Reading::Overloaded,
                    n => Reading::P99 { ms: f64::from(n) * 3.0, se_ln: 0.2 },
                };
                search.tell(ask.cell, reading);
                i += 1;
                prop_assert!(i <= q.cells() * 3);
            }
        }
    }

    /// One cell of 36 x 20 and two above its corner: a plane like the one before costs a handful of cells.
    #[test]
    fn a_plane_like_the_one_before_costs_few_cells() {
        let q = question(36, 20);
        let p99_ms = |(r, c): Cell| if r >= 11 && c >= 8 { 9.0 - 0.01 * (r + c) as f64 } else { 500.0 - (r + c) as f64 };
        let mut cold = Search::new(q, ONCE, None);
        let cold_cells = run(&mut cold, &p99_ms).len();
        let mut warm = Search::new(q, ONCE, Some(Prior::like(&q, &q, &cold.bounds())));
        let warm_cells = run(&mut warm, &p99_ms).len();
        assert!(warm_cells <= 8 && warm_cells < cold_cells && cold_cells <= 36, "{warm_cells} and {cold_cells}");
        assert!(matches!(warm.label(), Found::Label(l) if l.rcliff == (11, 8) && l.oaa == (12, 9) && l.exact));
    }

    /// Near its target a noisy cell is asked again until it is decided, far from it once.
    #[test]
    fn only_the_undecided_is_asked_again() {
        let q = question(1, 2);
        let mut search = Search::new(q, Effort { repeats: 50, ..ONCE }, None);
        let mut times = [0; 2];
        while let Some(ask) = search.next() {
            times[ask.cell.1] += 1;
            // 50 ms and 9.6 ms with 5 %: (ln(10 / 9.6) / 0.05)^-2 x 9 = 13.5 readings for three standard errors.
            search.tell(ask.cell, Reading::P99 { ms: [50.0, 9.6][ask.cell.1], se_ln: 0.05 });
        }
        assert_eq!(times, [1, 14]);
    }

    /// Where no case can say anything the plane is given up after a few cells, and nothing is claimed of it.
    #[test]
    fn a_plane_that_says_nothing_is_given_up() {
        let mut search = Search::new(question(36, 20), Effort { repeats: 9, ..ONCE }, None);
        while let Some(ask) = search.next() {
            search.tell(ask.cell, Reading::Nothing);
        }
        assert_eq!((search.cases(), search.label()), (12, Found::NoFeasibleCell { exact: false }));
    }

    /// With as many cores as threads QoS is met, with more it is not (frequency, shared cores): the one cell asked there finds out.
    #[test]
    fn a_kink_at_a_core_a_thread_is_found() {
        let q = Question { kink_row: Some(5), ..question(16, 4) };
        let p99_ms = |(r, c): Cell| match (r, c) {
            (5, 2..) => 9.5,
            (0..5, _) | (5, _) => 90.0,
            _ => 11.0,
        };
        let mut search = Search::new(q, ONCE, None);
        run(&mut search, &p99_ms);
        assert!(matches!(search.label(), Found::Label(l) if l.rcliff == (5, 2)), "{:?}", search.label());
    }

    /// A cell at the target is given up when its error is small enough for what hangs on it.
    #[test]
    fn what_the_label_hangs_on_is_measured_longer() {
        let cases = |at_target: Cell, others: &dyn Fn(Cell) -> f64| {
            let mut search = Search::new(question(4, 4), Effort { repeats: 5000, ..ONCE }, None);
            let (mut cell, mut of_it) = (at_target, 0);
            loop {
                of_it += u32::from(cell == at_target);
                let ms = if cell == at_target { 10.001 } else { others(cell) };
                search.tell(cell, Reading::P99 { ms, se_ln: 0.01 });
                match search.next() {
                    Some(ask) => cell = ask.cell,
                    None => return of_it,
                }
            }
        };
        // The label is (0, 1), or a step off if that misses QoS. 0.01 / sqrt(n) is 0.005 after 4, 0.001 after 100.
        let column = |c: Cell| [50.0, 5.0, 5.0, 5.0][c.1];
        assert_eq!((cases((3, 0), &column), cases((0, 1), &column)), (4, 100));
        // The label is (0, 3), or (1, 1) if that meets QoS. 0.0003 after 1,111; looked at after 1,152.
        let far = |(r, c): Cell| {
            if c == 3 {
                5.0
            } else if r > 0 && c > 0 {
                10.5
            } else {
                50.0
            }
        };
        assert_eq!(cases((1, 1), &far), 1152);
    }
}
