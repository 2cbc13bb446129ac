//! A recorded run (docs/shadow.md): one JSON line that says who decided on what, then one a tick with what was seen and what was
//! wanted. Numbers are written so that they are read back bit for bit.

use crate::error::{Error, Result};
use crate::files::{Output, Sources};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
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
    /// No tick is ever missed there. Streams of older versions do not say so.
    #[serde(default)]
    pub is_virtual: bool,
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
    file: BufWriter<Output>,
}

impl Writer {
    /// What has that name is as it was until [`Writer::begin`]. `inputs` are what the command reads.
    ///
    /// # Errors
    /// Something is in the way, or the file cannot be made.
    pub fn open(path: &Path, head: Head, inputs: &Sources, overwrite: bool) -> Result<Self> {
        let file = Output::create("--stream", path, inputs, overwrite)?;
        Ok(Writer { path: path.into(), head: Head { format: FORMAT, ..head }, file: BufWriter::new(file) })
    }

    /// # Errors
    /// The disk is full, and the like; what has come in the way.
    pub fn begin(&mut self) -> Result<()> {
        self.file.get_mut().place()?;
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

/// A recorded stream: its head, and an iterator over the ticks, of which there is one at least. A last line that was cut off (the
/// recorder was killed) ends it.
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
        Some((_, Err(e))) if e.kind() == ErrorKind::IsADirectory => {
            return Err(Error::BadInput(format!(
                "{}: is a folder, no stream. Name the file in it that `surefootd run --stream` recorded",
                path.display()
            )));
        }
        Some((n, Err(e))) => return Err(wrong(n, e.to_string())),
        None => return Err(wrong(0, "the file is empty".into())),
    };
    let head: Head = serde_json::from_str(&first).map_err(|e| wrong(0, format!("no head of a stream: {}", in_line(&e))))?;
    if head.format != FORMAT {
        return Err(wrong(0, format!("format {} is not known, {FORMAT} is", head.format)));
    }
    let none = wrong(0, format!("no tick follows: {CHANGED}"));
    let mut order = Order::of(&head);
    let mut moments = std::iter::from_fn(move || {
        let (n, line) = lines.next()?;
        let line = match line {
            Ok(l) => l,
            Err(e) => return Some(Err(wrong(n, e.to_string()))),
        };
        match serde_json::from_str::<Moment>(&line) {
            Ok(m) => Some(order.next(m.seen.t_ms).map(|()| m).map_err(|what| wrong(n, what))),
            Err(_) if lines.peek().is_none() => None,
            Err(e) => Some(Err(wrong(n, in_line(&e)))),
        }
    })
    .peekable();
    match moments.peek() {
        Some(_) => Ok((head, moments)),
        None => Err(none),
    }
}

/// What serde says, without its own line, which is always the first.
fn in_line(e: &serde_json::Error) -> String {
    e.to_string().replace(" at line 1 column ", " at column ")
}

const CHANGED: &str = "the stream was cut or changed";

/// Which time may follow which.
struct Order {
    /// Of a virtual server, whose ticks are an interval apart from 0 on; None: a host may miss some, and is never quite on time.
    due_ms: Option<u64>,
    interval_ms: u64,
    last_ms: Option<u64>,
}

impl Order {
    fn of(head: &Head) -> Self {
        Order { due_ms: head.is_virtual.then_some(0), interval_ms: head.interval_ms, last_ms: None }
    }

    /// # Errors
    /// Why `run` cannot have written that.
    fn next(&mut self, t_ms: u64) -> std::result::Result<(), String> {
        if let Some(due) = self.due_ms.filter(|due| *due != t_ms) {
            return Err(format!("t_ms is {t_ms} where {due} is due: {CHANGED}"));
        }
        if let Some(last) = self.last_ms.filter(|last| *last >= t_ms) {
            return Err(format!("t_ms is {t_ms} after {last}: {CHANGED}"));
        }
        self.due_ms = self.due_ms.map(|due| due.saturating_add(self.interval_ms));
        self.last_ms = Some(t_ms);
        Ok(())
    }
}
