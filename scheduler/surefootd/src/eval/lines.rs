//! A journal of runs: what is run, then one line per finished case, so that a command that was cut off goes on where it was.
//!
//! Cases are written as they finish, in any order; a process that is killed loses those at work alone, a machine that loses its power
//! those since the last [`Lines::sync`].

use crate::base::error::{Error, Result};
use crate::base::files;
use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::Serialize;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, long_line, next_line, CASE_BYTES};
use surefoot_linux::own::Folder;

/// A command's journal.
#[derive(Debug)]
pub struct Kind {
    /// Its name in the folder of results.
    pub file: &'static str,
    /// The command, and the same with an article where it has one.
    pub command: &'static str,
    pub a_command: &'static str,
    /// How its first line begins, which says what is run; keys are sorted.
    pub begins: &'static str,
    /// Keys of the first line that tell it from other journals.
    pub keys: &'static [&'static str],
}

impl Kind {
    /// Whether what begins so is such a journal, or nothing yet.
    fn is_ours(&self, head: &[u8]) -> bool {
        let begins = self.begins.as_bytes();
        match head.iter().position(|b| *b == b'\n') {
            Some(end) => serde_json::from_slice::<Value>(&head[..end]).is_ok_and(|v| self.keys.iter().all(|k| v.get(k).is_some())),
            // A kill may have torn it.
            None => head.starts_with(begins) || begins.starts_with(head),
        }
    }
}

/// The journal of this run of a command, which no other can have at the same time.
#[derive(Debug)]
pub struct Lines {
    kind: &'static Kind,
    path: PathBuf,
    file: Flock<File>,
    /// Lines of cases that are in the file.
    pub kept: u64,
    bytes: u64,
    /// Begun or taken over by this run, not merely looked at.
    ours: bool,
}

impl Lines {
    /// Go on with the journal in a folder, or begin one, where there is none that holds a case. `each` is told the line of each
    /// finished case of the same run, where it begins and how long it is.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a journal of something else; [`Error::Failed`] for one that is damaged, in use or not to be had.
    pub fn open(
        folder: &Path,
        kind: &'static Kind,
        what: &Value,
        each: impl FnMut(&[u8], u64, u64) -> serde_json::Result<()>,
    ) -> Result<Self> {
        let path = folder.join(kind.file);
        let command = kind.command;
        let io = |e: std::io::Error| Error::io(&path, "cannot be kept", &e);
        let named = format!("journal of {}", kind.a_command);
        let (_, _, file) = files::open_ours(&path, Folder::results_of, &named, |head| kind.is_ours(head))?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| match e {
            nix::errno::Errno::EWOULDBLOCK => {
                Error::Failed(format!("{}: another {command} is writing there. Wait for it, or give another --out", path.display()))
            }
            e => io(e.into()),
        })?;
        // The other may have ended, and taken the file away, between the two calls.
        if !path.exists() {
            return Err(Error::Failed(format!("{}: another {command} has just ended there. Run it again", path.display())));
        }
        let mut lines = Lines { kind, path, file, kept: 0, bytes: 0, ours: false };
        let other = lines.read(what, each)?;
        if let Some(differs) = other.filter(|_| lines.kept > 0) {
            return Err(Error::BadInput(format!(
                "{}: {} of an interrupted {command} of something else (other: {differs}). Finish it with its own command, give another \
                 --out, or remove this file",
                lines.path.display(),
                cases(lines.kept)
            )));
        }
        let io = |e: std::io::Error| Error::io(&lines.path, "cannot be kept", &e);
        if lines.kept == 0 {
            let first = format!("{what}\n");
            lines.file.set_len(0).and_then(|()| lines.file.write_all(first.as_bytes())).map_err(io)?;
            lines.bytes = first.len() as u64;
        } else {
            // A last line that a crash cut off.
            lines.file.set_len(lines.bytes).map_err(io)?;
        }
        lines.ours = true;
        Ok(lines)
    }

    /// Every case that is there; what differs, where the first line says something else.
    fn read(&mut self, what: &Value, mut each: impl FnMut(&[u8], u64, u64) -> serde_json::Result<()>) -> Result<Option<String>> {
        let io = |e: std::io::Error| Error::io(&self.path, "cannot be read", &e);
        let command = self.kind.command;
        let mut from = BufReader::with_capacity(1 << 18, &*self.file);
        let mut buffer = vec![];
        let (mut other, mut lines) = (None, 0);
        loop {
            let n = match next_line(&mut from, &mut buffer, CASE_BYTES).map_err(io)? {
                input::Found::TooLong(_) => {
                    let (path, line) = (self.path.display(), lines + 1);
                    let why = long_line(CASE_BYTES);
                    return Err(Error::Failed(format!(
                        "{path}:{line}: is no line of {command}'s: {why}. The file was damaged: remove it and run anew"
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
                each(&buffer, self.bytes, n).map(|()| self.kept += 1)
            };
            if let Err(e) = known {
                if from.fill_buf().map_err(io)?.is_empty() {
                    return Ok(other);
                }
                return Err(Error::Failed(format!(
                    "{}:{lines}: is no line of {command}'s: {e}. The file was damaged, not merely cut off: remove it and run anew",
                    self.path.display()
                )));
            }
            self.bytes += n;
        }
    }

    /// A line that [`Lines::open`] told of.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn line<L: DeserializeOwned>(&self, start: u64, bytes: u64) -> Result<L> {
        let mut text = vec![0; bytes as usize];
        let mut file: &File = &self.file;
        let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.read_exact(&mut text));
        read.map_err(|e| Error::io(&self.path, "cannot be read", &e))?;
        serde_json::from_slice(&text)
            .map_err(|e| Error::Failed(format!("{}: was changed while {} ran: {e}. Run it again", self.path.display(), self.kind.command)))
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

    /// What to say of a run that was asked to end; `rows` is the file of an older run's results.
    pub fn interrupted(&self, planned: usize, rows: &str) -> Error {
        let kept = self.kept;
        let old = self.path.with_file_name(rows).exists();
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

impl Drop for Lines {
    fn drop(&mut self) {
        // One that holds no case is of no use to anybody.
        if self.ours && self.kept == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A finished case as a line; None where JSON cannot hold it to the last bit, and for one that is longer than is read.
pub fn line<L: Serialize + DeserializeOwned + PartialEq>(case: &L) -> Option<Vec<u8>> {
    let mut text = serde_json::to_vec(case).ok()?;
    let back: L = serde_json::from_slice(&text).ok()?;
    text.push(b'\n');
    (back == *case && text.len() <= CASE_BYTES).then_some(text)
}

fn cases(n: u64) -> String {
    format!("{n} case{}", if n == 1 { "" } else { "s" })
}

/// Names of what is not the same; None where all is.
pub fn differs(a: &Value, b: &Value) -> Option<String> {
    let mut names: Vec<&str> = [a, b].iter().filter_map(|v| v.as_object()).flat_map(|m| m.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let named: Vec<&str> = names.into_iter().filter(|n| a.get(n) != b.get(n)).collect();
    (a != b).then(|| named.join(", "))
}
