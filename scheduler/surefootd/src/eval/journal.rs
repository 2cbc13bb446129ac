//! eval.partial.jsonl: the cases of an evaluation that are done ([`super::lines`]). Rows stay in memory, time lines are read again when
//! their turn comes.

use super::lines::{self, Kind, Lines};
use super::run::EvalRow;
use crate::base::error::{Error, Result};
use crate::stage::moment::Moment;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

pub const PARTIAL: &str = "eval.partial.jsonl";

/// Its first line is [`super::what::of`].
const KIND: Kind = Kind { file: PARTIAL, command: "eval", a_command: "an eval", begins: "{\"bundle\":", keys: &["surefootd", "policies"] };

/// Workload, policy, seed.
pub type Case = (String, String, u64);

/// A finished case.
#[derive(PartialEq, Serialize, Deserialize)]
struct Line {
    row: EvalRow,
    timeline: Vec<Moment>,
}

struct Kept {
    row: EvalRow,
    start: u64,
    bytes: u64,
}

/// The journal of this evaluation, which no other can have at the same time.
pub struct Journal {
    lines: Lines,
    /// Of an earlier run.
    before: BTreeMap<Case, Kept>,
}

impl Journal {
    /// # Errors
    /// As [`Lines::open`].
    pub fn open(folder: &Path, what: &Value) -> Result<Self> {
        let mut before = BTreeMap::new();
        let lines = Lines::open(folder, &KIND, what, |text, start, bytes| {
            let Line { row, .. } = serde_json::from_slice(text)?;
            before.insert((row.workload.clone(), row.policy.clone(), row.seed), Kept { row, start, bytes });
            Ok(())
        })?;
        Ok(Journal { lines, before })
    }

    /// What an earlier run found.
    pub fn row(&self, case: &Case) -> Option<&EvalRow> {
        self.before.get(case).map(|k| &k.row)
    }

    /// Cases of an earlier run.
    pub fn before(&self) -> u64 {
        self.before.len() as u64
    }

    /// ORACLE's EMU on a workload, where a row of an earlier run has it.
    pub fn oracle_emu(&self, workload: &str) -> Option<Option<f64>> {
        self.before.values().find(|k| k.row.workload == workload).map(|k| k.row.oracle_emu)
    }

    /// The time line of a case of an earlier run.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn timeline(&self, case: &Case) -> Result<Vec<Moment>> {
        let Some(kept) = self.before.get(case) else { return Ok(vec![]) };
        self.lines.line(kept.start, kept.bytes).map(|line: Line| line.timeline)
    }

    /// # Errors
    /// As [`Lines::add`].
    pub fn add(&mut self, text: Option<&[u8]>) -> Result<()> {
        self.lines.add(text)
    }

    /// # Errors
    /// As [`Lines::sync`].
    pub fn sync(&self) -> Result<()> {
        self.lines.sync()
    }

    /// # Errors
    /// As [`Lines::done`].
    pub fn done(self) -> Result<()> {
        self.lines.done()
    }

    /// What to say of an evaluation that was asked to end.
    pub fn interrupted(&self, planned: usize) -> Error {
        self.lines.interrupted(planned, super::ROWS)
    }
}

/// A finished case as a line, as [`lines::line`] makes it; and the case again.
pub fn line(row: EvalRow, timeline: Vec<Moment>) -> (Option<Vec<u8>>, EvalRow, Vec<Moment>) {
    let case = Line { row, timeline };
    let text = lines::line(&case);
    (text, case.row, case.timeline)
}
