//! Files of JSON lines that are written beside the control loop: streams, events, recordings.
//!
//! - What has that name stays until [`Recorder::begin`]; and a file that another process still writes to stays in any case.
//! - A full disk ends the recording and not what is recorded: it is the caller's to go on.

use crate::base::error::{Error, Result};
use crate::base::files::{Output, Sources};
use crate::base::holder::{self, Held};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use surefoot_io::input::{long_line, LINE_BYTES};
use surefoot_linux::own::plain_file;

/// Lines are handed over in pieces of about this size.
const PIECE_BYTES: usize = 64 << 10;

pub struct Recorder {
    path: PathBuf,
    to: Output,
    /// As long as this lives, whoever would replace the file is told who writes there.
    _alone: Held,
    buffer: Vec<u8>,
}

impl Recorder {
    /// `option` names the file; `inputs` are what the command reads.
    ///
    /// # Errors
    /// As [`Output::create`]; another process writes there.
    pub fn open(option: &'static str, path: &Path, inputs: &Sources, overwrite: bool) -> Result<Self> {
        // Asked first, and given back: what cannot be opened is judged by the rule for outputs.
        if let Ok(there) = plain_file(path) {
            drop(holder::alone(path, there)?);
        }
        let to = Output::create(option, path, inputs, overwrite)?;
        let alone = holder::alone(path, to.handle()?)?;
        Ok(Recorder { path: path.into(), to, _alone: alone, buffer: vec![] })
    }

    /// From here on the name is this recording's.
    ///
    /// # Errors
    /// Something has come in the way.
    pub fn begin(&mut self) -> Result<()> {
        self.to.place()
    }

    /// One line more.
    ///
    /// # Errors
    /// A full disk and the like; a line that no reader would take. The recording is then not whole.
    pub fn line(&mut self, v: &impl Serialize) -> Result<()> {
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, v).map_err(|e| Error::Failed(format!("{}: {e}", self.path.display())))?;
        self.buffer.push(b'\n');
        if self.buffer.len() - start > LINE_BYTES {
            let what = long_line(LINE_BYTES);
            return Err(Error::Failed(format!("{}: cannot be written: {what}. Record fewer services", self.path.display())));
        }
        if self.buffer.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// All lines so far, for whoever follows the file.
    ///
    /// # Errors
    /// As [`Recorder::line`].
    pub fn flush(&mut self) -> Result<()> {
        self.to.write_all(&self.buffer).map_err(|e| Error::io(&self.path, "cannot be written", &e))?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, overwrite: bool) -> Result<Recorder> {
        Recorder::open("--events", path, &Sources::default(), overwrite)
    }

    /// What a file held stays until the recording begins; while it lasts, not even --overwrite replaces the file, and the writer is named.
    #[test]
    fn a_file_is_as_it_was_until_the_beginning_and_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "old\n").unwrap();
        let mut r = open(&path, true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\n");
        r.begin().unwrap();
        r.line(&1).unwrap();
        r.flush().unwrap();
        let e = open(&path, true).err().unwrap();
        let says = e.to_string();
        assert!(e.exit_code() == 1 && says.contains(&format!("(pid {}) writes there", std::process::id())), "{says}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        drop(r);
        open(&path, true).unwrap().begin().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    /// A line that no reader would take ends the recording.
    #[test]
    fn a_line_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let mut r = open(&dir.path().join("f"), false).unwrap();
        let e = r.line(&"x".repeat(LINE_BYTES)).unwrap_err();
        assert!(e.to_string().contains("4 MiB in one line. Record fewer services"), "{e}");
    }
}
