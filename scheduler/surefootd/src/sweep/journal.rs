//! journal.jsonl: one line per finished case, appended and synced after the case's shard is durable. The truth for resume.

use super::rows::State;
use crate::base::error::{Error, Result};
use crate::base::files;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use surefoot_io::input::{long_line, next_line, Found, LINE_BYTES};
use surefoot_linux::own::Folder;
use surefoot_search::Reading;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line<'a> {
    #[serde(borrow)]
    pub case_id: Cow<'a, str>,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    pub shard: u32,
    pub rows: u32,
    /// Of these, how many are usable: valid, in a case that nothing disturbed; None: nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usable: Option<u32>,
    /// How many cases the line stands for; None: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cases: Option<u64>,
    /// What the case told a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard: Option<Heard>,
    /// What disturbed the host while it was measured.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<Cow<'a, str>>,
    /// What had not settled when its samples began.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub unsettled: Option<Cow<'a, str>>,
    /// First line of a shard of a search only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub piece: Option<Piece>,
}

/// See [`surefoot_search::Reading`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heard {
    P99 { ms: f64, se_ln: f64 },
    Overloaded,
    Nothing,
}

impl From<Reading> for Heard {
    fn from(r: Reading) -> Self {
        match r {
            Reading::P99 { ms, se_ln } => Heard::P99 { ms, se_ln },
            Reading::Overloaded => Heard::Overloaded,
            Reading::Nothing => Heard::Nothing,
        }
    }
}

impl From<Heard> for Reading {
    fn from(h: Heard) -> Self {
        match h {
            Heard::P99 { ms, se_ln } => Reading::P99 { ms, se_ln },
            Heard::Overloaded => Reading::Overloaded,
            Heard::Nothing => Reading::Nothing,
        }
    }
}

/// A shard of a search has as many cases as the search came to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Lines of the shard, this one included.
    pub lines: u32,
    /// Whether the chain of planes ends with it.
    pub last: bool,
}

impl<'a> Line<'a> {
    /// A line about one case.
    pub fn of(case_id: impl Into<Cow<'a, str>>, state: State, reason: Option<Cow<'a, str>>, shard: u32, rows: u32) -> Self {
        Line {
            case_id: case_id.into(),
            state,
            reason,
            shard,
            rows,
            usable: None,
            cases: None,
            heard: None,
            disturbed: None,
            unsettled: None,
            piece: None,
        }
    }
}

impl Line<'_> {
    /// Append the line's text to `out`.
    ///
    /// # Errors
    /// [`Error::Failed`] for a line that is no JSON.
    pub fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(&mut *out, self).map_err(|e| Error::Failed(format!("journal line: {e}. Please report it")))?;
        out.push(b'\n');
        Ok(())
    }
}

/// Appends whole shards.
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// # Errors
    /// [`Error::Failed`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = Folder::results_of(path).and_then(|(folder, name)| folder.append(name));
        let file = file.map_err(|e| files::own_error(path, "cannot be opened", &e))?;
        Ok(Journal { path: path.into(), file })
    }

    /// # Errors
    /// [`Error::Failed`].
    pub fn bytes(&self) -> Result<u64> {
        self.file.metadata().map(|m| m.len()).map_err(|e| Error::io(&self.path, "cannot be looked at", &e))
    }

    /// Append whole lines and make them durable.
    ///
    /// # Errors
    /// [`Error::Failed`]; a torn tail is trimmed at the next resume.
    pub fn append(&mut self, lines: &[u8]) -> Result<()> {
        let start = self.file.metadata().map_or(0, |m| m.len());
        let written = files::fault::step().and_then(|()| self.file.write_all(lines));
        let done = written.and_then(|()| files::fault::cut(&self.file, start)).and_then(|()| self.file.sync_data());
        done.map_err(|e| Error::io(&self.path, "cannot be appended to", &e))
    }
}

/// Reads a journal line by line, so that its length does not matter. A last line that is not whole is torn; a bad line
/// before the end is an error.
pub struct Reader {
    path: PathBuf,
    /// None where there is no journal.
    file: Option<BufReader<File>>,
    buffer: Vec<u8>,
    /// Whole lines so far.
    pub lines: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes after the last whole line (a write that a crash cut off); known at the end.
    pub torn_bytes: u64,
}

impl Reader {
    /// # Errors
    /// [`Error::Failed`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = match files::open_own(path, OFlag::O_RDONLY) {
            Ok(f) => Some(BufReader::with_capacity(1 << 18, f)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(files::own_error(path, "cannot be read", &e)),
        };
        Ok(Reader { path: path.into(), file, buffer: vec![], lines: 0, bytes: 0, torn_bytes: 0 })
    }

    /// The next whole line; None at the end.
    ///
    /// # Errors
    /// [`Error::Failed`] names line and remedy.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>> {
        let Some(file) = &mut self.file else { return Ok(None) };
        let unreadable = |e: std::io::Error| Error::io(&self.path, "cannot be read", &e);
        let n = match next_line(file, &mut self.buffer, LINE_BYTES).map_err(unreadable)? {
            Found::End => return Ok(None),
            Found::Line(n) => n as u64,
            Found::TooLong(_) => {
                return Err(Error::Failed(format!(
                    "{}:{}: is no journal line: {}. The file was damaged, not merely cut off: restore it, or remove this folder and measure again",
                    self.path.display(),
                    self.lines + 1,
                    long_line(LINE_BYTES)
                )));
            }
        };
        match serde_json::from_slice::<Line>(&self.buffer) {
            Ok(line) if self.buffer.ends_with(b"\n") => {
                self.lines += 1;
                self.bytes += n;
                Ok(Some(line))
            }
            Err(e) if !file.fill_buf().map_err(unreadable)?.is_empty() => Err(Error::Failed(format!(
                "{}:{}: is no journal line: {e}. The file was damaged, not merely cut off: restore it, or remove this folder and measure again",
                self.path.display(),
                self.lines + 1
            ))),
            _ => {
                self.torn_bytes = n;
                Ok(None)
            }
        }
    }
}

/// Keep these parts of a journal only, all or nothing.
///
/// # Errors
/// [`Error::Failed`]; the journal is then what it was.
pub fn keep_parts(path: &Path, parts: &[Range<u64>]) -> Result<()> {
    let mut from = files::open_own(path, OFlag::O_RDONLY).map_err(|e| Error::io(path, "cannot be read", &e))?;
    let folder = files::put(path, |to| {
        for part in parts {
            from.seek(SeekFrom::Start(part.start))?;
            std::io::copy(&mut (&from).take(part.end - part.start), to)?;
        }
        Ok(())
    })?;
    files::sync(&folder)
}

/// Cut the journal to its first `bytes` bytes, durably.
///
/// # Errors
/// [`Error::Failed`].
pub fn trim(path: &Path, bytes: u64) -> Result<()> {
    let file = files::fault::step().and_then(|()| files::open_own(path, OFlag::O_WRONLY));
    let cut = file.and_then(|f| f.set_len(bytes).and_then(|()| f.sync_all()));
    cut.map_err(|e| Error::io(path, "cannot be trimmed", &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn text(shards: Range<u32>) -> Vec<u8> {
        let mut out = vec![];
        for shard in shards {
            let line = Line::of(format!("{shard:016x}"), State::Measured, None, shard, 3);
            line.write(&mut out).unwrap();
        }
        out
    }

    /// Shards that are told of, and the reader at the end.
    fn read(path: &Path) -> (Vec<u32>, Reader) {
        let mut reader = Reader::open(path).unwrap();
        let mut shards = vec![];
        while let Some(line) = reader.next_line().unwrap() {
            shards.push(line.shard);
        }
        (shards, reader)
    }

    /// A tail that a crash cut off is found and can be trimmed; what stands before it is kept.
    #[test]
    fn torn_tail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        Journal::open(&path).unwrap().append(&text(0..2)).unwrap();
        let whole = std::fs::metadata(&path).unwrap().len();
        for tail in ["{\"case_id\":\"00", "{", "{\"case_id\":\"00\",\"state\":\"measured\",\"shard\":0,\"rows\":1}"] {
            let mut f = OpenOptions::new().append(true).open(&path).unwrap();
            f.write_all(tail.as_bytes()).unwrap();
            let (shards, reader) = read(&path);
            assert_eq!((shards, reader.torn_bytes), (vec![0, 1], tail.len() as u64));
            trim(&path, reader.bytes).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
        }
    }

    /// Damage before the end is not a crash and is not repaired in silence.
    #[test]
    fn damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        std::fs::write(&path, "nonsense\n{\"case_id\":\"00\",\"state\":\"measured\",\"shard\":0,\"rows\":1}\n").unwrap();
        let says = Reader::open(&path).unwrap().next_line().unwrap_err().to_string();
        assert!(says.contains("journal.jsonl:1:") && says.contains("restore it"), "{says}");
    }

    /// Parts that are kept stay as they are, in their order.
    #[test]
    fn parts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        std::fs::write(&path, text(0..4)).unwrap();
        let line = text(0..1).len() as u64;
        keep_parts(&path, &[0..line, 2 * line..4 * line]).unwrap();
        assert_eq!(read(&path).0, [0, 2, 3]);
    }
}
