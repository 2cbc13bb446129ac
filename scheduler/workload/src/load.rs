//! Loads as they are (docs/workload-format.md#load-shapes): what is offered to an LC service over time.
//!
//! The piecewise constant load of a workload file, times its bursts, its drift and its day. What must hold:
//!
//! - [`Offered::rate_at`] is the one answer: the virtual server, eval's columns and time lines, `record` and `status` ask it.
//! - A run's seed and the service's id decide the course; neither the policy nor the order of questions does.
//! - Without shapes the rate is that of the file, to the last bit.
//! - No rate is above [`Shapes::highest`] times that of the file.

use crate::digest::sha256_hex;
use crate::error::{Error, Result};
use crate::toml::{place, toml_error};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_learn::rng::Rng;
use surefoot_vserver::math::{ident_hash, mix64};
use surefoot_vserver::LoadCourse;
use toml::Spanned;

/// A shaped load is constant for so long, ms: the plant's tick, below which it knows no change of rate.
pub const STEP_MS: u64 = 100;
/// A drifting load takes a step so often, ms: far below the minute that `pct_per_min` is told for.
const DRIFT_STEP_MS: u64 = 1000;
/// Courses are drawn for so long beyond `duration_s`, ms: an eval ends at most 183 s after the last change. Later times mirror it.
const BEYOND_MS: u64 = 200_000;

/// Mean times in one level of a burst, s: shorter ones lie below the plant's tick, longer ones are changes of load.
const DWELL_S: RangeInclusive<f64> = 0.1..=10.0;
/// Levels of a burst and ends of a day, as a share of the load of the file: as for `load`, at most tenfold.
const FACTOR: RangeInclusive<f64> = 0.01..=10.0;
/// Levels of a burst: more are a trace.
const LEVELS: RangeInclusive<usize> = 2..=8;
/// Standard deviation of a minute's drift, per cent.
const DRIFT_PCT_PER_MIN: RangeInclusive<f64> = 0.1..=100.0;
/// Farthest drift, per cent.
const DRIFT_BOUND_PCT: RangeInclusive<f64> = 1.0..=90.0;
/// Length of a day, s.
const DAY_S: RangeInclusive<f64> = 10.0..=86_400.0;
/// Samples of a trace.
const SAMPLES: RangeInclusive<usize> = 2..=100_000;
/// The most that is offered to a service, requests/s (`rps` of a workload file has the same limit).
pub const MOST_RPS: f64 = 1e9;

/// The shape of a load as it was recorded: a file in a profile folder's `loads/`.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The file's name without its ending.
    pub name: String,
    /// Lowest and highest are 0 and 1, evenly spread over the day.
    pub values: Vec<f64>,
    /// The lowest as a share of the highest, as recorded.
    pub low: f64,
    pub sha256: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTrace {
    #[serde(rename = "source")]
    _source: String,
    #[serde(rename = "licence")]
    _licence: String,
    #[serde(rename = "sample_s")]
    _sample_s: f64,
    low: Spanned<f64>,
    values: Spanned<Vec<f64>>,
}

impl Trace {
    /// # Errors
    /// [`Error::BadInput`] names file, line, field and remedy.
    pub fn read(file: &Path) -> Result<Self> {
        Self::parse(file, &input::text(file, WRITTEN_BYTES).map_err(|e| Error::unreadable(file, "a trace of load", &e))?)
    }

    /// `file` names the trace and is for messages.
    ///
    /// # Errors
    /// See [`Trace::read`].
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        let raw: RawTrace =
            toml::from_str(text).map_err(|e| toml_error(file, text, &e, "docs/workload-format.md lists every field of a trace"))?;
        let wrong = |span, field: &str, what: &str| Error::BadInput(format!("{}: {field}: {what}", place(file, text, &span)));
        let (low, values) = (*raw.low.get_ref(), raw.values.get_ref());
        if !(0.0..1.0).contains(&low) {
            return Err(wrong(raw.low.span(), "low", &format!("{low} is out of range. Give the lowest load as a share of the highest")));
        }
        if !SAMPLES.contains(&values.len()) {
            return Err(wrong(raw.values.span(), "values", &format!("{} numbers. Give 2 to 100000", values.len())));
        }
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if values.iter().any(|v| !v.is_finite()) || least != 0.0 || most != 1.0 {
            let what = format!("from {least} to {most}. Scale them so that the lowest is 0 and the highest 1");
            return Err(wrong(raw.values.span(), "values", &what));
        }
        let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Trace { name, values: values.clone(), low, sha256: sha256_hex(text.as_bytes()) })
    }

    /// 0 to 1 at a share of the day; the end runs on to the beginning.
    fn at(&self, share: f64) -> f64 {
        let n = self.values.len();
        let at = share * n as f64;
        let i = (at as usize).min(n - 1);
        let (from, to) = (self.values[i], self.values[(i + 1) % n]);
        from + (at - i as f64) * (to - from)
    }
}

/// All traces of profile folders, by name; a later folder overrides an earlier one.
///
/// # Errors
/// [`Error::BadInput`] for the first that is wrong.
pub fn traces(folders: &[PathBuf]) -> Result<BTreeMap<String, Arc<Trace>>> {
    let mut all = BTreeMap::new();
    for folder in folders.iter().map(|f| f.join("loads")).filter(|f| f.is_dir()) {
        let entries = std::fs::read_dir(&folder).map_err(|e| Error::io(&folder, "cannot be read", &e))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|x| x == "toml")).collect();
        files.sort();
        for file in files {
            let trace = Trace::read(&file)?;
            all.insert(trace.name.clone(), Arc::new(trace));
        }
    }
    Ok(all)
}

/// Levels that take turns at random: from each, any other is as likely, after a time of exponential law.
#[derive(Clone, Debug, PartialEq)]
pub struct Bursts {
    pub levels: Vec<f64>,
    /// Mean time in each level, s.
    pub dwell_s: Vec<f64>,
}

/// A random walk between two walls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Standard deviation of what a minute changes, per cent of the load without drift.
    pub pct_per_min: f64,
    /// Farthest from the load without drift, per cent of it.
    pub bound_pct: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Day {
    /// Length, s.
    pub day_s: f64,
    /// Lowest and highest, as a share of the load of the file.
    pub low: f64,
    pub high: f64,
    /// Share of the day that has passed when the workload begins.
    pub begins_at: f64,
    /// None: a sinusoid, lowest at 0.
    pub trace: Option<Arc<Trace>>,
}

impl Day {
    fn factor(&self, t_ms: u64) -> f64 {
        let share = (t_ms as f64 / 1000.0 / self.day_s + self.begins_at).fract();
        let height = match &self.trace {
            Some(trace) => trace.at(share),
            None => 0.5 - 0.5 * (std::f64::consts::TAU * share).cos(),
        };
        self.low + (self.high - self.low) * height
    }
}

/// How a load changes between the times that its file names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shapes {
    pub bursts: Option<Bursts>,
    pub drift: Option<Drift>,
    pub day: Option<Day>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of bursts")]
pub struct RawBursts {
    levels: Vec<f64>,
    dwell_s: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a drift")]
pub struct RawDrift {
    pct_per_min: f64,
    bound_pct: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a day")]
pub struct RawDay {
    day_s: f64,
    low: Option<f64>,
    #[serde(default = "one")]
    high: f64,
    #[serde(default)]
    begins_at: f64,
    trace: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// A field, and what is wrong with it.
type Wrong = (&'static str, String);

fn within(field: &'static str, x: f64, range: &RangeInclusive<f64>, unit: &str) -> std::result::Result<(), Wrong> {
    if range.contains(&x) {
        return Ok(());
    }
    Err((field, format!("{x} is out of range. Give {} to {}{unit}", range.start(), range.end())))
}

impl RawBursts {
    pub fn checked(&self) -> std::result::Result<Bursts, Wrong> {
        let n = self.levels.len();
        if !LEVELS.contains(&n) {
            let (least, most) = (LEVELS.start(), LEVELS.end());
            return Err(("bursts.levels", format!("{n} levels. Give {least} to {most}, as shares of the load")));
        }
        if self.dwell_s.len() != n {
            return Err(("bursts.dwell_s", format!("{} times for {n} levels. Give each level its mean time", self.dwell_s.len())));
        }
        self.levels.iter().try_for_each(|x| within("bursts.levels", *x, &FACTOR, ", as a share of the load"))?;
        self.dwell_s.iter().try_for_each(|x| within("bursts.dwell_s", *x, &DWELL_S, " seconds"))?;
        Ok(Bursts { levels: self.levels.clone(), dwell_s: self.dwell_s.clone() })
    }
}

impl RawDrift {
    pub fn checked(&self) -> std::result::Result<Drift, Wrong> {
        within("drift.pct_per_min", self.pct_per_min, &DRIFT_PCT_PER_MIN, " per cent")?;
        within("drift.bound_pct", self.bound_pct, &DRIFT_BOUND_PCT, " per cent")?;
        Ok(Drift { pct_per_min: self.pct_per_min, bound_pct: self.bound_pct })
    }
}

impl RawDay {
    pub fn checked(&self, traces: &BTreeMap<String, Arc<Trace>>) -> std::result::Result<Day, Wrong> {
        within("day.day_s", self.day_s, &DAY_S, " seconds")?;
        let trace = match &self.trace {
            Some(name) => {
                let known = || traces.keys().map(String::as_str);
                let hint = || crate::error::suggest(name, known());
                let unknown =
                    || ("day.trace", format!("unknown trace \"{name}\". {} Mend the name, or add a file to loads/ of --profiles", hint()));
                Some(traces.get(name).cloned().ok_or_else(unknown)?)
            }
            None => None,
        };
        within("day.high", self.high, &FACTOR, ", as a share of the load")?;
        let low = match (self.low, &trace) {
            (Some(low), _) => low,
            // As deep as it was recorded.
            (None, Some(trace)) => (trace.low * self.high).max(*FACTOR.start()),
            (None, None) => return Err(("day.low", "is missing. Give the lowest load, as a share of the load".into())),
        };
        within("day.low", low, &FACTOR, ", as a share of the load")?;
        if low >= self.high {
            return Err(("day.low", format!("{low} is not below high = {}. Give a lower share", self.high)));
        }
        if !(0.0..1.0).contains(&self.begins_at) {
            let what = format!("{} is out of range. Give the share of the day that has passed, 0 to below 1", self.begins_at);
            return Err(("day.begins_at", what));
        }
        Ok(Day { day_s: self.day_s, low, high: self.high, begins_at: self.begins_at, trace })
    }
}

impl Shapes {
    pub fn is_none(&self) -> bool {
        *self == Shapes::default()
    }

    /// The most that the load of the file is multiplied by.
    pub fn highest(&self) -> f64 {
        let bursts = self.bursts.as_ref().map_or(1.0, |b| b.levels.iter().copied().fold(0.0, f64::max));
        let drift = self.drift.map_or(1.0, |d| 1.0 + d.bound_pct / 100.0);
        bursts * drift * self.day.as_ref().map_or(1.0, |d| d.high)
    }
}

impl Bursts {
    /// The mean level of each step: the plant knows one rate a tick, and as many requests come as with changes within it.
    fn draw(&self, rng: &mut Rng, steps: usize) -> Vec<f64> {
        let mean_steps: Vec<f64> = self.dwell_s.iter().map(|s| s * 1000.0 / STEP_MS as f64).collect();
        let n = self.levels.len();
        // From each level any other is as likely, so a level is met in proportion to its time.
        let mut point = rng.uniform() * mean_steps.iter().sum::<f64>();
        let mut at = 0;
        while at + 1 < n && point >= mean_steps[at] {
            point -= mean_steps[at];
            at += 1;
        }
        let time = |rng: &mut Rng, at: usize| -mean_steps[at] * (1.0 - rng.uniform()).ln();
        let mut left = time(rng, at);
        let one = |_| {
            if left >= 1.0 {
                left -= 1.0;
                return self.levels[at];
            }
            let (mut open, mut sum) = (1.0, 0.0);
            while left < open {
                sum += left * self.levels[at];
                open -= left;
                at = (at + 1 + rng.below(n - 1)) % n;
                left = time(rng, at);
            }
            left -= open;
            sum + open * self.levels[at]
        };
        (0..steps).map(one).collect()
    }
}

impl Drift {
    fn draw(&self, rng: &mut Rng, steps: usize) -> Vec<f64> {
        let step = self.pct_per_min / 100.0 * (DRIFT_STEP_MS as f64 / 60_000.0).sqrt();
        let bound = self.bound_pct / 100.0;
        // A wall turns back what would pass it: the walk, unfolded, goes on.
        let folded = |x: f64| {
            let y = (x + bound).rem_euclid(4.0 * bound);
            (if y > 2.0 * bound { 4.0 * bound - y } else { y }) - bound
        };
        let mut x = 0.0;
        let mut one = |_| {
            let now = 1.0 + x;
            x = folded(x + step * rng.normal());
            now
        };
        (0..steps).map(&mut one).collect()
    }
}

/// What is offered to one LC service in one run.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Requests/s of the file from each of these times on, ms.
    rps: Vec<(u64, f64)>,
    leave_ms: Option<u64>,
    max_load_rps: f64,
    /// A factor a [`STEP_MS`], and one a [`DRIFT_STEP_MS`]; empty without.
    bursts: Vec<f64>,
    drift: Vec<f64>,
    day: Option<Day>,
}

/// What a workload file says of one LC service's load.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    pub id: &'a str,
    /// Requests/s from each of these times on, ms.
    pub rps: &'a [(u64, f64)],
    pub leave_ms: Option<u64>,
    pub max_load_rps: f64,
    pub shapes: &'a Shapes,
}

impl Offered {
    /// `seed`: the run's. `duration_ms`: of the workload.
    pub fn draw(service: &Said, duration_ms: u64, seed: u64) -> Self {
        // Apart from each other, and from what the plant draws of the same seed.
        let rng = |kind: &str| Rng::new(mix64(&[seed, ident_hash(service.id), ident_hash(kind)]));
        let steps = |step_ms: u64| (duration_ms + BEYOND_MS).div_ceil(step_ms) as usize;
        let shapes = service.shapes;
        Offered {
            rps: service.rps.to_vec(),
            leave_ms: service.leave_ms,
            max_load_rps: service.max_load_rps,
            bursts: shapes.bursts.as_ref().map_or(vec![], |b| b.draw(&mut rng("load bursts"), steps(STEP_MS))),
            drift: shapes.drift.map_or(vec![], |d| d.draw(&mut rng("load drift"), steps(DRIFT_STEP_MS))),
            day: shapes.day.clone(),
        }
    }

    /// Requests/s offered at `t_ms`; None while the service is away.
    pub fn rate_at(&self, t_ms: u64) -> Option<f64> {
        if self.leave_ms.is_some_and(|l| t_ms >= l) {
            return None;
        }
        let (_, rps) = self.rps.iter().rev().find(|(t, _)| *t <= t_ms)?;
        let day = self.day.as_ref().map(|d| d.factor(t_ms / STEP_MS * STEP_MS));
        let factors = [drawn_at(&self.bursts, t_ms / STEP_MS), drawn_at(&self.drift, t_ms / DRIFT_STEP_MS), day];
        Some(factors.into_iter().flatten().fold(*rps, |rate, x| rate * x))
    }

    /// The same as a share of max load.
    pub fn load_at(&self, t_ms: u64) -> Option<f64> {
        Some(self.rate_at(t_ms)? / self.max_load_rps)
    }
}

impl LoadCourse for Offered {
    fn rate_at(&self, t_ms: u64) -> Option<f64> {
        Offered::rate_at(self, t_ms)
    }
}

/// One of the drawn factors; beyond the last they are gone through backwards, and so on, so that no step is larger than a drawn one.
fn drawn_at(factors: &[f64], step: u64) -> Option<f64> {
    let n = factors.len() as u64;
    let at = step.checked_rem(2 * n)?;
    factors.get(at.min(2 * n - 1 - at) as usize).copied()
}

/// What is offered to every LC service in one run, by id.
#[derive(Clone, Debug, Default)]
pub struct Loads(BTreeMap<String, Arc<Offered>>);

impl Loads {
    /// As [`Offered::draw`].
    pub fn draw<'a>(all: impl Iterator<Item = Said<'a>>, duration_ms: u64, seed: u64) -> Self {
        Loads(all.map(|one| (one.id.to_string(), Arc::new(Offered::draw(&one, duration_ms, seed)))).collect())
    }

    pub fn of(&self, id: &str) -> Option<&Arc<Offered>> {
        self.0.get(id)
    }

    /// Requests/s; None for other services, and while one is away.
    pub fn rate_at(&self, id: &str, t_ms: u64) -> Option<f64> {
        self.of(id)?.rate_at(t_ms)
    }

    /// Share of max load; None likewise.
    pub fn load_at(&self, id: &str, t_ms: u64) -> Option<f64> {
        self.of(id)?.load_at(t_ms)
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
