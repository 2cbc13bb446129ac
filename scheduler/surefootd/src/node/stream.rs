//! A recorded run (docs/shadow.md): one JSON line that says who decided on what, then one a tick with what was seen and what was
//! wanted, and one that says how many there were. Numbers are written so that they are read back bit for bit.

use crate::base::error::{Error, Result};
use crate::base::files::Sources;
use crate::node::recorder::Recorder;
use crate::stage::config::{INTERVAL_MS, LEARN_EVERY_MS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use surefoot_io::input::{long_line, next_line, Found, Input, LINE_BYTES};
use surefoot_io::json;
use surefoot_server::{Observation, Plan, Platform};

/// Of the file's layout.
const FORMAT: u32 = 3;
/// Those that are read. The first had no end: such a stream is read as one that was cut. Plans of the second had whole allocations.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=FORMAT;

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
    /// Settings of policies that were not the default, by full name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Vec<f64>>,
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

/// The last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    end: Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    ticks: u64,
}

/// A stream that is being recorded.
pub struct Writer {
    to: Recorder,
    head: Head,
    ticks: u64,
}

impl Writer {
    /// What has that name is as it was until [`Writer::begin`]. `inputs` are what the command reads.
    ///
    /// # Errors
    /// See [`Recorder::open`].
    pub fn open(path: &Path, head: Head, inputs: &Sources, overwrite: bool) -> Result<Self> {
        Ok(Writer { to: Recorder::open("--stream", path, inputs, overwrite)?, head: Head { format: FORMAT, ..head }, ticks: 0 })
    }

    /// # Errors
    /// See [`Recorder::begin`].
    pub fn begin(&mut self) -> Result<()> {
        self.to.begin()?;
        self.to.line(&self.head)
    }

    /// # Errors
    /// See [`Recorder::line`].
    pub fn tick(&mut self, seen: &Observation, plan: &Plan) -> Result<()> {
        self.ticks += 1;
        self.to.line(&Moment { seen: seen.clone(), plan: plan.clone() })
    }

    /// The run has ended: without this line a stream is one that was cut.
    ///
    /// # Errors
    /// See [`Recorder::line`].
    pub fn end(&mut self) -> Result<()> {
        self.to.line(&End { end: Count { ticks: self.ticks } })?;
        self.to.flush()
    }
}

/// A recorded stream: its head, and an iterator over the ticks, of which there is one at least. `cut`: it may end before its end, with
/// a last line that is not whole (the recorder was killed).
///
/// # Errors
/// [`Error::BadInput`] names file, line and remedy.
pub fn read(path: &Path, cut: bool) -> Result<(Head, impl Iterator<Item = Result<Moment>>)> {
    let unreadable = |e: std::io::Error| match e.kind() {
        ErrorKind::IsADirectory => {
            let path = path.display();
            Error::BadInput(format!("{path}: is a folder, no stream. Name the file in it that `surefootd run --stream` recorded"))
        }
        _ => Error::unreadable(path, "a recorded stream", &e),
    };
    let mut from = Lines { from: BufReader::new(Input::open(path).map_err(unreadable)?), path: path.into(), number: 0, line: vec![] };
    let head: Head = match from.next()? {
        Some(line) => json::from_slice(line).map_err(|e| from.wrong(format!("no head of a stream: {}", in_line(&e))))?,
        None => return Err(from.wrong("the file is empty".into())),
    };
    if !FORMATS.contains(&head.format) {
        return Err(from.wrong(format!("format {} is not known, {FORMAT} is", head.format)));
    }
    head.platform.check().map_err(|(field, what)| from.wrong(format!("platform.{field}: {what}: {CHANGED}")))?;
    if !INTERVAL_MS.contains(&head.interval_ms) || !LEARN_EVERY_MS.contains(&head.learn_every_ms) {
        return Err(from.wrong(format!("interval_ms or learn_every_ms is out of range: {CHANGED}")));
    }
    let none = from.wrong(format!("no tick follows: {CHANGED}"));
    let mut moments = Moments { order: Order::of(&head), platform: head.platform.clone(), from, cut, ticks: 0, ended: false }.peekable();
    match moments.peek() {
        Some(Ok(_)) => Ok((head, moments)),
        Some(Err(_)) => Err(moments.next().and_then(Result::err).unwrap_or(none)),
        None => Err(none),
    }
}

/// Lines of a bounded length, with their numbers.
struct Lines {
    from: BufReader<Input>,
    path: PathBuf,
    /// Of the line that was read last, from 1 on.
    number: u64,
    line: Vec<u8>,
}

impl Lines {
    fn wrong(&self, what: String) -> Error {
        let (path, number) = (self.path.display(), self.number.max(1));
        Error::BadInput(format!("{path}: line {number}: {what}. Record it again with `surefootd run --stream`"))
    }

    /// None at the end.
    fn next(&mut self) -> Result<Option<&[u8]>> {
        let found = next_line(&mut self.from, &mut self.line, LINE_BYTES);
        let end = matches!(found, Ok(Found::End));
        self.number += u64::from(!end);
        match found {
            Ok(Found::Line(_)) => Ok(Some(&self.line)),
            Ok(Found::TooLong(_)) => Err(self.wrong(long_line(LINE_BYTES))),
            Ok(Found::End) => Ok(None),
            Err(e) => Err(self.wrong(e.to_string())),
        }
    }
}

struct Moments {
    from: Lines,
    platform: Platform,
    order: Order,
    cut: bool,
    ticks: u64,
    ended: bool,
}

impl Moments {
    /// None after the last.
    fn step(&mut self) -> Result<Option<Moment>> {
        let Some(line) = self.from.next()? else {
            if self.cut {
                return Ok(None);
            }
            return Err(self.from.wrong(format!("what says that the run has ended is missing: {CHANGED}{CUT}")));
        };
        // A line without its end was being written when the recorder was killed.
        let torn = line.last() != Some(&b'\n');
        let moment = match json::from_slice::<Moment>(line).map_err(|e| (e, json::from_slice::<End>(line))) {
            Ok(m) => m,
            Err((_, Ok(End { end }))) => return self.end(end),
            Err(_) if torn && self.cut => return Ok(None),
            Err(_) if torn => return Err(self.from.wrong(format!("ends within this line: {CHANGED}{CUT}"))),
            Err((e, _)) => return Err(self.from.wrong(in_line(&e))),
        };
        self.order.next(moment.seen.t_ms).map_err(|what| self.from.wrong(what))?;
        moment.seen.check(&self.platform).map_err(|(field, what)| self.from.wrong(format!("{field}: {what}: {CHANGED}")))?;
        self.ticks += 1;
        Ok(Some(moment))
    }

    fn end(&mut self, said: Count) -> Result<Option<Moment>> {
        if said.ticks != self.ticks {
            return Err(self.from.wrong(format!("{} ticks were recorded, {} are here: {CHANGED}", said.ticks, self.ticks)));
        }
        match self.from.next()? {
            None => Ok(None),
            Some(_) => Err(self.from.wrong(format!("more follows the end: {CHANGED}"))),
        }
    }
}

impl Iterator for Moments {
    type Item = Result<Moment>;

    fn next(&mut self) -> Option<Result<Moment>> {
        if self.ended {
            return None;
        }
        let step = self.step().transpose();
        self.ended = !matches!(step, Some(Ok(_)));
        step
    }
}

/// What serde says, without its own line, which is always the first.
fn in_line(e: &serde_json::Error) -> String {
    e.to_string().replace(" at line 1 column ", " at column ")
}

const CHANGED: &str = "the stream was cut or changed";
const CUT: &str = " (--cut replays what is there)";

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
