//! harvest.partial.jsonl: the runs of a harvest-eval that are done, with their rows ([`crate::eval::lines`]).

use super::run::Row;
use crate::base::error::{Error, Result};
use crate::eval::lines::{self, Kind, Lines};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

pub const PARTIAL: &str = "harvest.partial.jsonl";

const KIND: Kind =
    Kind { file: PARTIAL, command: "harvest-eval", a_command: "harvest-eval", begins: "{\"bursts_sha256\":", keys: &["harvest_eval"] };

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    run: String,
    rows: Vec<Row>,
}

/// The runs of this command that are done.
pub struct Kept {
    lines: Lines,
    pub rows: BTreeMap<String, Vec<Row>>,
}

impl Kept {
    /// # Errors
    /// As [`Lines::open`].
    pub fn open(folder: &Path, what: &Value) -> Result<Self> {
        let mut rows = BTreeMap::new();
        let lines = Lines::open(folder, &KIND, what, |text, _, _| {
            let line: Line = serde_json::from_slice(text)?;
            rows.insert(line.run, line.rows);
            Ok(())
        })?;
        Ok(Kept { lines, rows })
    }

    /// A run is done.
    ///
    /// # Errors
    /// As [`Lines::add`].
    pub fn add(&mut self, run: String, rows: Vec<Row>) -> Result<()> {
        let line = Line { run, rows };
        self.lines.add(lines::line(&line).as_deref())?;
        self.rows.insert(line.run, line.rows);
        Ok(())
    }

    /// # Errors
    /// As [`Lines::done`].
    pub fn done(self) -> Result<()> {
        self.lines.done()
    }

    /// What to say of a run that was asked to end.
    pub fn interrupted(&self, planned: usize) -> Error {
        self.lines.interrupted(planned, super::ROWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Finished runs outlast the process, a torn tail does not harm, and another command's runs are not gone on with.
    #[test]
    fn finished_runs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let what = json!({ "harvest_eval": 1, "seeds": 2 });
        let rows = vec![Row { policy: "p".into(), p99_us: 0.1 + 0.2, ..Row::default() }];
        let mut kept = Kept::open(dir.path(), &what).unwrap();
        assert!(Kept::open(dir.path(), &what).is_err_and(|e| e.to_string().contains("another harvest-eval is writing")));
        kept.add("a/1".into(), rows.clone()).unwrap();
        drop(kept);
        let path = dir.path().join(PARTIAL);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"run\":\"a/2\",\"ro");
        std::fs::write(&path, text).unwrap();
        let mut kept = Kept::open(dir.path(), &what).unwrap();
        assert_eq!(kept.rows, BTreeMap::from([("a/1".to_string(), rows.clone())]));
        kept.add("a/2".into(), rows).unwrap();
        drop(kept);
        assert_eq!(Kept::open(dir.path(), &what).unwrap().rows.len(), 2);
        let other = Kept::open(dir.path(), &json!({ "harvest_eval": 1, "seeds": 3 })).err().unwrap();
        assert!(other.to_string().contains("something else (other: seeds)"), "{other}");
        Kept::open(dir.path(), &what).unwrap().done().unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "theirs\n").unwrap();
        assert!(Kept::open(dir.path(), &what).is_err_and(|e| e.to_string().contains("is there and no journal of harvest-eval")));
    }
}
