//! eval.partial.jsonl: what is run, then one line per finished case, so that an evaluation that was cut off goes on where it was.
//!
//! Cases are written as they finish, in any order; a process that is killed loses those at work alone, a machine that loses its power
//! those of the last chunk ([`Journal::sync`]). Rows stay in memory, time lines are read again when their turn comes.

use super::run::EvalRow;
use crate::base::error::{Error, Result};
use crate::base::files;
use crate::stage::moment::Moment;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, long_line, next_line, CASE_BYTES};
use surefoot_linux::own::Folder;

pub const PARTIAL: &str = "eval.partial.jsonl";

/// Whether what begins so is a journal of an evaluation, or nothing yet.
fn is_journal(head: &[u8]) -> bool {
    // Its first line is [`super::what::of`], whose keys are sorted; a kill may have torn it.
    const BEGIN: &[u8] = b"{\"bundle\":";
    match head.iter().position(|b| *b == b'\n') {
        Some(end) => {
            serde_json::from_slice::<Value>(&head[..end]).is_ok_and(|v| v.get("surefootd").is_some() && v.get("policies").is_some())
        }
        None => head.starts_with(BEGIN) || BEGIN.starts_with(head),
    }
}

/// Workload, policy, seed.
pub type Case = (String, String, u64);

#[derive(Serialize)]
struct Line<'a> {
    row: &'a EvalRow,
    timeline: &'a [Moment],
}

#[derive(Deserialize)]
struct Found {
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
    path: PathBuf,
    file: Flock<File>,
    /// Of an earlier run.
    before: BTreeMap<Case, Kept>,
    /// Lines of cases that are in the file.
    pub kept: u64,
    bytes: u64,
    /// Begun or taken over by this run, not merely looked at.
    ours: bool,
}

impl Journal {
    /// Go on with the journal in a folder, or begin one, where there is none that holds a case.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a journal of something else; [`Error::Failed`] for one that is damaged, in use or not to be had.
    pub fn open(folder: &Path, what: &Value) -> Result<Self> {
        let path = folder.join(PARTIAL);
        let io = |e: std::io::Error| Error::io(&path, "cannot be kept", &e);
        let (_, _, file) = files::open_ours(&path, Folder::results_of, "journal of an eval", is_journal)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
            nix::errno::Errno::EWOULDBLOCK => {
                Error::Failed(format!("{}: another eval is writing there. Wait for it, or give another --out", path.display()))
            }
            e => io(e.into()),
        })?;
        // The other may have ended, and taken the file away, between the two calls.
        if !path.exists() {
            return Err(Error::Failed(format!("{}: another eval has just ended there. Run it again", path.display())));
        }
        let mut journal = Journal { path, file, before: BTreeMap::new(), kept: 0, bytes: 0, ours: false };
        let other = journal.read(what)?;
        if let Some(differs) = other.filter(|_| journal.kept > 0) {
            return Err(Error::BadInput(format!(
                "{}: {} of an interrupted eval of something else (other: {differs}). Finish it with its own command, give another \
                 --out, or remove this file",
                journal.path.display(),
                cases(journal.kept)
            )));
        }
        let io = |e: std::io::Error| Error::io(&journal.path, "cannot be kept", &e);
        if journal.kept == 0 {
            let first = format!("{what}\n");
            journal.file.set_len(0).and_then(|()| journal.file.write_all(first.as_bytes())).map_err(io)?;
            journal.bytes = first.len() as u64;
        } else {
            // A last line that a crash cut off.
            journal.file.set_len(journal.bytes).map_err(io)?;
        }
        journal.ours = true;
        Ok(journal)
    }

    /// Every case that is there; what differs, where the first line says something else.
    fn read(&mut self, what: &Value) -> Result<Option<String>> {
        let io = |e: std::io::Error| Error::io(&self.path, "cannot be read", &e);
        let mut from = BufReader::with_capacity(1 << 18, &*self.file);
        let mut buffer = vec![];
        let (mut other, mut lines) = (None, 0);
        loop {
            let n = match next_line(&mut from, &mut buffer, CASE_BYTES).map_err(io)? {
                input::Found::TooLong(_) => {
                    let (path, line) = (self.path.display(), lines + 1);
                    let why = long_line(CASE_BYTES);
                    return Err(Error::Failed(format!(
                        "{path}:{line}: is no line of eval's: {why}. The file was damaged: remove it and run anew"
                    )));
                }
                input::Found::Line(n) if buffer.ends_with(b"\n") => n as u64,
                // A last line that was cut off.
                input::Found::Line(_) | input::Found::End => return Ok(other),
            };
            lines += 1;
            let known = if lines == 1 {
                serde_json::from_slice::<Value>(&buffer).map(|first| other = differs(&first, what))
            } else if other.is_some() {
                // Another release may write other lines: they are counted alone.
                self.kept += 1;
                Ok(())
            } else {
                serde_json::from_slice::<Found>(&buffer).map(|Found { row, .. }| {
                    let case = (row.workload.clone(), row.policy.clone(), row.seed);
                    self.before.insert(case, Kept { row, start: self.bytes, bytes: n });
                    self.kept += 1;
                })
            };
            if let Err(e) = known {
                if from.fill_buf().map_err(io)?.is_empty() {
                    return Ok(other);
                }
                return Err(Error::Failed(format!(
                    "{}:{lines}: is no line of eval's: {e}. The file was damaged, not merely cut off: remove it and run anew",
                    self.path.display()
                )));
            }
            self.bytes += n;
        }
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
        let mut text = vec![0; kept.bytes as usize];
        let mut file: &File = &self.file;
        let read = file.seek(SeekFrom::Start(kept.start)).and_then(|_| file.read_exact(&mut text));
        read.map_err(|e| Error::io(&self.path, "cannot be read", &e))?;
        let line: Found = serde_json::from_slice(&text)
            .map_err(|e| Error::Failed(format!("{}: was changed while eval ran: {e}. Run it again", self.path.display())))?;
        Ok(line.timeline)
    }

    /// A case is finished. One that JSON cannot hold to the last bit (a number that is none) is not kept: it is run again.
    ///
    /// # Errors
    /// [`Error::Failed`]; a torn tail is trimmed by the next run.
    pub fn add(&mut self, text: Option<&[u8]>) -> Result<()> {
        let Some(text) = text else { return Ok(()) };
        self.file.write_all(text).map_err(|e| Error::io(&self.path, "cannot be appended to", &e))?;
        self.kept += 1;
        Ok(())
    }

    /// Make what was added outlast a power cut.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io(&self.path, "cannot be synced", &e))
    }

    /// The results are in place: there is nothing left to go on with.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn done(mut self) -> Result<()> {
        self.kept = 0;
        let gone = Folder::results_of(&self.path).and_then(|(folder, name)| folder.remove(name).map(|_| folder));
        files::sync(&gone.map_err(|e| files::own_error(&self.path, "cannot be removed", &e))?)
    }

    /// What to say of an evaluation that was asked to end.
    pub fn interrupted(&self, planned: usize) -> Error {
        let kept = self.kept;
        let old = self.path.with_file_name("rows.parquet").exists();
        let older = if old { ". rows.* there are still those of an older run" } else { "" };
        Error::Failed(match kept {
            0 => format!("interrupted before the first of {} was finished{older}", cases(planned as u64)),
            _ => format!(
                "{}: interrupted, {kept} of {} are kept. Go on with the same command{older}",
                self.path.display(),
                cases(planned as u64)
            ),
        })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // One that holds no case is of no use to anybody.
        if self.ours && self.kept == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A finished case as a line; None where JSON cannot hold it to the last bit, and for one that is longer than is read.
pub fn line(row: &EvalRow, timeline: &[Moment]) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(&Line { row, timeline }).ok()?;
    let back: Found = serde_json::from_slice(&text).ok()?;
    text.push(b'\n');
    (back.row == *row && back.timeline == timeline && text.len() <= CASE_BYTES).then_some(text)
}

fn cases(n: u64) -> String {
    format!("{n} case{}", if n == 1 { "" } else { "s" })
}

/// Names of what is not the same; None where all is.
pub(super) fn differs(a: &Value, b: &Value) -> Option<String> {
    let mut names: Vec<&str> = [a, b].iter().filter_map(|v| v.as_object()).flat_map(|m| m.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let named: Vec<&str> = names.into_iter().filter(|n| a.get(n) != b.get(n)).collect();
    (a != b).then(|| named.join(", "))
}
