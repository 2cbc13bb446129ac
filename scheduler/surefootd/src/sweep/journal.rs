//! journal.jsonl: one line per finished case, appended and synced after the case's shard is durable. The truth for resume.

use super::rows::State;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub case_id: String,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub shard: u32,
    pub rows: u32,
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
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(|e| Error::io(path, "cannot be opened", &e))?;
        Ok(Journal { path: path.into(), file })
    }

    /// Append lines and make them durable.
    ///
    /// # Errors
    /// [`Error::Failed`]; a torn tail is trimmed at the next resume.
    pub fn append(&mut self, lines: &[Line]) -> Result<()> {
        let mut text = String::with_capacity(lines.len() * 96);
        for l in lines {
            text.push_str(&serde_json::to_string(l).map_err(|e| Error::Failed(format!("journal line: {e}. Please report it")))?);
            text.push('\n');
        }
        let done = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|e| Error::io(&self.path, "cannot be appended to", &e))
    }
}

/// What a started folder's journal says.
#[derive(Debug, Default)]
pub struct Told {
    pub lines: Vec<Line>,
    /// Bytes up to the end of each line.
    pub ends: Vec<u64>,
    /// Bytes after the last whole line (a write that a crash cut off).
    pub torn_bytes: u64,
}

/// Read a journal. A last line that is not whole is torn; a bad line before the end is an error.
///
/// # Errors
/// [`Error::Failed`] names line and remedy.
pub fn read(path: &Path) -> Result<Told> {
    let file = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Told::default()),
        Err(e) => return Err(Error::io(path, "cannot be read", &e)),
    };
    let mut told = Told::default();
    let mut reader = BufReader::new(file);
    let mut at = 0u64;
    let mut bad: Option<(usize, String)> = None;
    let mut buffer = Vec::new();
    loop {
        buffer.clear();
        let n = reader.read_until(b'\n', &mut buffer).map_err(|e| Error::io(path, "cannot be read", &e))?;
        if n == 0 {
            return Ok(told);
        }
        if let Some((line, cause)) = bad {
            return Err(Error::Failed(format!(
                "{}:{line}: {cause}. The file was damaged, not merely cut off: restore it, or remove this folder and measure again",
                path.display()
            )));
        }
        match serde_json::from_slice::<Line>(&buffer) {
            Ok(line) if buffer.ends_with(b"\n") => {
                at += n as u64;
                told.lines.push(line);
                told.ends.push(at);
            }
            Ok(_) => told.torn_bytes += n as u64,
            Err(e) => {
                told.torn_bytes += n as u64;
                bad = Some((told.lines.len() + 1, format!("is no journal line: {e}")));
            }
        }
    }
}

/// Cut the journal to its first `bytes` bytes, durably.
///
/// # Errors
/// [`Error::Failed`].
pub fn trim(path: &Path, bytes: u64) -> Result<()> {
    let cut = OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(bytes).and_then(|()| f.sync_all()));
    cut.map_err(|e| Error::io(path, "cannot be trimmed", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(shard: u32) -> Line {
        Line { case_id: format!("{shard:016x}"), state: State::Measured, reason: None, shard, rows: 3 }
    }

    /// A tail that a crash cut off is found and can be trimmed; what stands before it is kept.
    #[test]
    fn torn_tail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        Journal::open(&path).unwrap().append(&[line(0), line(1)]).unwrap();
        let whole = std::fs::metadata(&path).unwrap().len();
        for tail in ["{\"case_id\":\"00", "{", "{\"case_id\":\"00\",\"state\":\"measured\",\"shard\":0,\"rows\":1}"] {
            let mut f = OpenOptions::new().append(true).open(&path).unwrap();
            f.write_all(tail.as_bytes()).unwrap();
            let told = read(&path).unwrap();
            assert_eq!((told.lines.len(), told.torn_bytes), (2, tail.len() as u64));
            trim(&path, *told.ends.last().unwrap()).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
        }
    }

    /// Damage before the end is not a crash and is not repaired in silence.
    #[test]
    fn damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        std::fs::write(&path, "nonsense\n{\"case_id\":\"00\",\"state\":\"measured\",\"shard\":0,\"rows\":1}\n").unwrap();
        let says = read(&path).unwrap_err().to_string();
        assert!(says.contains("journal.jsonl:1:") && says.contains("restore it"), "{says}");
    }
}
