//! A chain of planes under search: which case comes next, given what came of those before. No I/O: told the same, it asks the same, so
//! that a journal is all that a resume needs.
//!
//! A chain is one service beside one draw of neighbours. Each plane starts from what the plane with one step fewer threads, else the
//! first plane of the load before, else the setting of throttle or memory before, turned out to be.

use super::rows::{Row, State};
use crate::sweep::expand::{Expansion, PlaneShape};
use std::collections::VecDeque;
use surefoot_search::{Ask, Bounds, Effort, Prior, Question, Reading, Search};
use surefoot_server::Verdict;

/// Standard errors that the QoS target must be away from a p99 before a cell is not measured again.
pub const Z: f64 = 3.0;
/// Standard errors of ln p99 at which a cell at the target is taken for what it seems: while others are looked for, where the label moves
/// by one step with it, and where it moves further.
const SEARCH_LN: f64 = 0.002;
const STEP_LN: f64 = 0.001;
const FAR_LN: f64 = 0.00015;
/// Distance of OAA from the RCliff for which cells are measured; the label stage may be asked for another (params.yaml).
const MARGIN: (usize, usize) = (1, 1);
/// Standard error of a median over that of a mean, for normal readings.
const MEDIAN_LOSS: f64 = 1.2533;
/// Half the width of a 95 % interval in standard errors.
const INTERVAL_95: f64 = 1.96;

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Measure this case and tell of it.
    Case(u64),
    /// Cases of a plane that are not measured.
    Tally(Tally),
    End,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// Unique in the campaign.
    pub id: String,
    pub state: State,
    pub reason: Option<String>,
    pub cases: u64,
}

/// A finished plane.
type Known = (Question, Bounds);

struct Slot {
    plane: u64,
    /// Of the bandwidth throttle and of memory.
    setting: usize,
    load: usize,
    first_of_load: bool,
}

struct Open {
    slot: Slot,
    shape: PlaneShape,
    search: Search,
    asked: Option<Ask>,
    /// Cases of the plane that could be measured.
    room: u64,
}

pub struct Chain<'a> {
    cases: &'a Expansion,
    slots: VecDeque<Slot>,
    tallies: VecDeque<Tally>,
    open: Option<Open>,
    /// For each setting: the plane before, and the first plane of its load.
    before: Vec<Option<Known>>,
    first: Vec<Option<Known>>,
}

impl<'a> Chain<'a> {
    pub fn new(cases: &'a Expansion, number: u32) -> Self {
        let mut slots = VecDeque::new();
        for (load, planes) in cases.chain(number).into_iter().enumerate() {
            for (i, plane) in planes.into_iter().enumerate() {
                slots.extend((0..cases.settings()).map(|setting| Slot { plane, setting, load, first_of_load: i == 0 }));
            }
        }
        let none = vec![None; cases.settings()];
        Chain { cases, slots, tallies: VecDeque::new(), open: None, before: none.clone(), first: none }
    }

    pub fn step(&mut self) -> Step {
        loop {
            if let Some(tally) = self.tallies.pop_front() {
                return Step::Tally(tally);
            }
            if self.open.is_none() && !self.enter() {
                return Step::End;
            }
            let Some(open) = &mut self.open else { continue };
            match open.search.next() {
                Some(ask) => {
                    open.asked = Some(ask);
                    let (row, column) = ask.cell;
                    let (cores, ways) = (open.shape.cores[row].1, open.shape.ways[column].1);
                    return Step::Case(self.cases.number(open.slot.plane, cores, ways, open.slot.setting, ask.repeat));
                }
                None => self.leave(),
            }
        }
    }

    /// What came of the case that [`Chain::step`] asked for.
    pub fn tell(&mut self, reading: Reading) {
        if let Some(open) = &mut self.open {
            if let Some(ask) = open.asked.take() {
                open.search.tell(ask.cell, reading);
            }
        }
    }

    fn enter(&mut self) -> bool {
        let Some(slot) = self.slots.pop_front() else { return false };
        let shape = self.cases.plane(slot.plane);
        let (all, infeasible) = self.cases.plane_cases(&shape);
        let id = |what: &str| format!("plane-{}-{}-{what}", self.cases.whole_number(slot.plane), slot.setting);
        let none = infeasible.as_ref().map_or(0, |(n, _)| *n);
        if let Some((cases, reason)) = infeasible {
            self.tallies.push_back(Tally { id: id("infeasible"), state: State::Infeasible, reason: Some(reason), cases });
        }
        if all == none {
            self.tallies.push_back(Tally { id: id("skipped"), state: State::Skipped, reason: None, cases: 0 });
            return true;
        }
        let question = Question {
            rows: shape.cores.len(),
            columns: shape.ways.len(),
            target_ms: shape.qos_target_ms,
            from_least: self.cases.from_least(),
            margin: MARGIN,
            kink_row: shape.threads.and_then(|t| shape.cores.iter().position(|(c, _)| *c >= f64::from(t) - 1e-9)),
        };
        let teacher = match (slot.first_of_load, slot.load) {
            (false, _) => self.before[slot.setting].as_ref(),
            (true, 1..) => self.first[slot.setting].as_ref(),
            (true, 0) => slot.setting.checked_sub(1).and_then(|m| self.before[m].as_ref()),
        };
        let prior = teacher.map(|(other, bounds)| Prior::like(&question, other, bounds));
        let effort = Effort { repeats: self.cases.repeats(), z: Z, search_ln: SEARCH_LN, step_ln: STEP_LN, far_ln: FAR_LN };
        self.open = Some(Open { slot, shape, search: Search::new(question, effort, prior), asked: None, room: all - none });
        true
    }

    fn leave(&mut self) {
        let Some(open) = self.open.take() else { return };
        let id = format!("plane-{}-{}-skipped", self.cases.whole_number(open.slot.plane), open.slot.setting);
        let cases = open.room - u64::from(open.search.cases());
        self.tallies.push_back(Tally { id, state: State::Skipped, reason: None, cases });
        let known = Some((*open.search.question(), open.search.bounds()));
        if open.slot.first_of_load {
            self.first[open.slot.setting].clone_from(&known);
        }
        self.before[open.slot.setting] = known;
    }
}

/// What the rows of a case say of its cell, as the label stage reads them (`pipelines/samples.py`): a case is what most of its rows
/// say, on a tie the worse; its p99 is the median of the valid rows'.
pub fn reading(rows: &[Row]) -> Reading {
    let mut valid: Vec<f64> = rows.iter().filter(|r| r.verdict == Verdict::Valid).filter_map(|r| r.p99_ms).collect();
    let count = |v: Verdict| rows.iter().filter(|r| r.verdict == v).count();
    let (over, unknown) = (count(Verdict::ServerOverloaded), count(Verdict::NotResolvable));
    if over > 0 && over >= count(Verdict::Valid).max(unknown) {
        return Reading::Overloaded;
    }
    if valid.is_empty() || count(Verdict::Valid) <= unknown {
        return Reading::Nothing;
    }
    valid.sort_by(f64::total_cmp);
    let n = valid.len();
    let ms = if n % 2 == 1 { valid[n / 2] } else { f64::midpoint(valid[n / 2 - 1], valid[n / 2]) };
    // Windows that differ show their error themselves; one and the same p99 in all of them has the interval of the whole case.
    let se_ln = if valid[0] < valid[n - 1] && valid[0] > 0.0 {
        let mean = valid.iter().map(|x| x.ln()).sum::<f64>() / n as f64;
        let variance = valid.iter().map(|x| (x.ln() - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        MEDIAN_LOSS * (variance / n as f64).sqrt()
    } else {
        let interval = rows.iter().find_map(|r| r.p99_low_ms.zip(r.p99_high_ms)).filter(|(low, high)| *low > 0.0 && high > low);
        interval.map_or(0.0, |(low, high)| (high / low).ln() / (2.0 * INTERVAL_95))
    };
    Reading::P99 { ms, se_ln }
}
