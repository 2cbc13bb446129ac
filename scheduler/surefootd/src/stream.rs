//! A recorded run (docs/shadow.md): one JSON line that says who decided on what, then one a tick with what was seen and what was
//! wanted. Numbers are written so that they are read back bit for bit.

use crate::error::{Error, Result};
use crate::files::{empty, open_anew};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use surefoot_server::{Observation, Plan, Platform};

/// Of the file's layout.
const FORMAT: u32 = 1;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    pub format: u32,
    pub policy: String,
    pub platform: Platform,
    pub feature_set: String,
    pub seed: u64,
    pub interval_ms: u64,
    /// SHA-256 of the bundle's manifest; None: there was no bundle.
    pub bundle: Option<String>,
    /// Whether Model-C learnt on line, and how often.
    pub learns: bool,
    pub learn_every_ms: u64,
    /// Learning went on from experience of an earlier run: that cannot be replayed.
    pub resumed_experience: bool,
    pub version: String,
}

/// Every other line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moment {
    pub seen: Observation,
    pub plan: Plan,
}

/// A stream that is being recorded.
pub struct Writer {
    path: PathBuf,
    head: Head,
    file: BufWriter<File>,
}

impl Writer {
    /// The file is as it was until [`Writer::begin`].
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn open(path: &Path, head: Head) -> Result<Self> {
        Ok(Writer { path: path.into(), head: Head { format: FORMAT, ..head }, file: BufWriter::new(open_anew(path)?) })
    }

    /// # Errors
    /// The disk is full, and the like.
    pub fn begin(&mut self) -> Result<()> {
        empty(&self.path, self.file.get_ref())?;
        let head = self.head.clone();
        self.line(&head)
    }

    /// # Errors
    /// The disk is full, and the like.
    pub fn tick(&mut self, seen: &Observation, plan: &Plan) -> Result<()> {
        self.line(&Moment { seen: seen.clone(), plan: plan.clone() })
    }

    fn line(&mut self, v: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(v).map_err(|e| Error::Failed(format!("{}: {e}", self.path.display())))?;
        writeln!(self.file, "{text}").map_err(|e| Error::io(&self.path, "cannot be written", &e))
    }

    /// # Errors
    /// The disk is full, and the like.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io(&self.path, "cannot be written", &e))
    }
}

/// A recorded stream: its head, and an iterator over the ticks. A last line that was cut off (the recorder was killed) ends it.
///
/// # Errors
/// [`Error::BadInput`] names file, line and remedy.
pub fn read(path: &Path) -> Result<(Head, impl Iterator<Item = Result<Moment>>)> {
    let file = File::open(path).map_err(|e| Error::unreadable(path, "a recorded stream", &e))?;
    let mut lines = BufReader::new(file).lines().enumerate().peekable();
    let wrong = {
        let path = path.to_path_buf();
        move |n: usize, what: String| {
            Error::BadInput(format!("{}: line {}: {what}. Record it again with `surefootd run --stream`", path.display(), n + 1))
        }
    };
    let first = match lines.next() {
        Some((_, Ok(line))) => line,
        Some((n, Err(e))) => return Err(wrong(n, e.to_string())),
        None => return Err(wrong(0, "the file is empty".into())),
    };
    let head: Head = serde_json::from_str(&first).map_err(|e| wrong(0, format!("no head of a stream: {e}")))?;
    if head.format != FORMAT {
        return Err(wrong(0, format!("format {} is not known, {FORMAT} is", head.format)));
    }
    let moments = std::iter::from_fn(move || {
        let (n, line) = lines.next()?;
        let line = match line {
            Ok(l) => l,
            Err(e) => return Some(Err(wrong(n, e.to_string()))),
        };
        match serde_json::from_str(&line) {
            Ok(m) => Some(Ok(m)),
            Err(_) if lines.peek().is_none() => None,
            Err(e) => Some(Err(wrong(n, e.to_string()))),
        }
    });
    Ok((head, moments))
}
