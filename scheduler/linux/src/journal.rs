//! What was changed on this host, one JSON line a step, so that it can be given back: also after `kill -9`.
//!
//! A service's former values are on disk before the first of them is changed. An applied plan is on disk after it is in force.

use crate::cgroup::Knob;
use crate::local::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use surefoot_server::{Allocation, ServerError, ServiceId};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Entry {
    /// A service comes under control; `saved` is what it had before.
    Touch {
        id: ServiceId,
        #[serde(flatten)]
        former: Former,
    },
    /// Allocations in force from now on (those of the plan).
    Apply { t_ms: u64, allocations: BTreeMap<ServiceId, Allocation>, changed: Vec<ServiceId> },
    /// A service was given back or has gone.
    Release { id: ServiceId },
}

/// What a service had before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Former {
    pub target: Target,
    /// Start time of a [`Target::Pid`], clock ticks since boot: a process id alone may be another's by now. Not in old journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    pub saved: BTreeMap<Knob, String>,
}

/// What was there before, of services that are still under control.
pub type Touched = BTreeMap<ServiceId, Former>;

/// Append-only file.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Open for appending, and what it says is still under control.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] for a folder that cannot be written or a damaged line before the last.
    pub fn open(path: &Path) -> Result<(Self, Touched), ServerError> {
        let fail = |e: &dyn std::fmt::Display, remedy: &str| ServerError::Unavailable {
            what: format!("journal {}", path.display()),
            cause: e.to_string(),
            remedy: remedy.into(),
        };
        let text = match fs::read(path) {
            Ok(t) => t,
            Err(e) if e.kind() == io::ErrorKind::NotFound => vec![],
            Err(e) => return Err(fail(&e, "Make it readable")),
        };
        let text = String::from_utf8_lossy(&text);
        let touched = replay(&text).map_err(|e| fail(&e, "Restore it from a copy, or move it away and reset containers by hand"))?;
        let file =
            OpenOptions::new().create(true).append(true).open(path).map_err(|e| fail(&e, "Give a state folder that can be written"))?;
        // A line that a crash cut short must not run into the next.
        let whole = text.rfind('\n').map_or(0, |i| i + 1);
        file.set_len(whole as u64).map_err(|e| fail(&e, "Give a state folder that can be written"))?;
        Ok((Journal { file, path: path.into() }, touched))
    }

    /// Append and wait for the disk.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`], for instance with a full disk.
    pub fn append(&mut self, entry: &Entry) -> Result<(), ServerError> {
        let mut line = serde_json::to_vec(entry).unwrap_or_default();
        line.push(b'\n');
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|e| ServerError::Unavailable {
            what: format!("journal {}", self.path.display()),
            cause: e.to_string(),
            remedy: "Free disk space or give another state folder".into(),
        })
    }
}

/// Services that were touched and not released.
fn replay(text: &str) -> Result<Touched, String> {
    let mut touched = Touched::new();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    for (n, line) in lines.iter().enumerate() {
        match serde_json::from_str::<Entry>(line) {
            // The oldest values count: a service touched twice was never given back in between.
            Ok(Entry::Touch { id, former }) => {
                touched.entry(id).or_insert(former);
            }
            Ok(Entry::Release { id }) => {
                touched.remove(&id);
            }
            Ok(Entry::Apply { .. }) => {}
            // Cut short by a crash while it was written: nothing had been changed yet.
            Err(_) if n + 1 == lines.len() && !line.ends_with('\n') => {}
            Err(e) => return Err(format!("line {}: {e}", n + 1)),
        }
    }
    Ok(touched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(id: &str, cpus: &str) -> Entry {
        let saved = BTreeMap::from([(Knob::Cpus, cpus.into())]);
        Entry::Touch { id: id.into(), former: Former { target: Target::Container(id.into()), start_ticks: None, saved } }
    }

    /// What was touched and not released is known to the next process, with the values from before the first touch.
    #[test]
    fn the_next_process_knows_what_to_give_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let (mut j, before) = Journal::open(&path).unwrap();
        assert!(before.is_empty());
        for e in [touch("a", "0-3"), touch("b", "0-1"), touch("a", "2"), Entry::Release { id: "b".into() }] {
            j.append(&e).unwrap();
        }
        let (_, touched) = Journal::open(&path).unwrap();
        assert_eq!(touched.len(), 1);
        assert_eq!(touched["a"].saved[&Knob::Cpus], "0-3");
    }

    /// Journals from before start times were kept are read; a start time survives the way to disk and back.
    #[test]
    fn old_journals_are_read() {
        let old = r#"{"event":"touch","id":"a","target":{"pid":42},"saved":{"cpus":"0-3"}}"#;
        let touched = replay(&format!("{old}\n")).unwrap();
        let mut former = Former { target: Target::Pid(42), start_ticks: None, saved: BTreeMap::from([(Knob::Cpus, "0-3".into())]) };
        assert_eq!(touched["a"], former);
        former.start_ticks = Some(4711);
        let line = serde_json::to_string(&Entry::Touch { id: "a".into(), former: former.clone() }).unwrap();
        assert_eq!(replay(&format!("{line}\n")).unwrap()["a"], former);
    }

    /// A line cut short by a crash is dropped and overwritten cleanly; a damaged line elsewhere is refused by number.
    #[test]
    fn cut_and_damaged_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let good = serde_json::to_string(&touch("a", "0-3")).unwrap();
        fs::write(&path, format!("{good}\n{}", &good[..20])).unwrap();
        let (mut j, touched) = Journal::open(&path).unwrap();
        assert_eq!(touched.len(), 1);
        j.append(&touch("b", "1")).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.len(), 2);
        fs::write(&path, format!("{}\n{good}\n", &good[..20])).unwrap();
        let err = Journal::open(&path).unwrap_err().to_string();
        assert!(err.contains("line 1"), "{err}");
    }
}
