//! Loads as they are (docs/workload-format.md#load-shapes): what is offered to an LC service over time.
//!
//! The piecewise constant load of a workload file, times its bursts, its drift and its day. What must hold:
//!
//! - [`Offered::rate_at`] is the one answer: the virtual server, eval's columns and time lines, `record` and `status` ask it.
//! - A run's seed and the service's id decide the course; neither the policy nor the order of questions does.
//! - Without shapes the rate is that of the file, to the last bit.
//! - No rate is above [`Shapes::highest`] times that of the file.

use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::toml::{place, toml_error};
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
        let text = input::text(file, WRITTEN_BYTES).map_err(|e| Error::unreadable(file, "a trace of load", &e))?;
        let raw: RawTrace =
            toml::from_str(&text).map_err(|e| toml_error(file, &text, &e, "docs/workload-format.md lists every field of a trace"))?;
        let wrong = |span, field: &str, what: &str| Error::BadInput(format!("{}: {field}: {what}", place(file, &text, &span)));
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
#[serde(deny_unknown_fields)]
pub struct RawBursts {
    levels: Vec<f64>,
    dwell_s: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawDrift {
    pct_per_min: f64,
    bound_pct: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
                let hint = || crate::base::error::suggest(name, known());
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

impl Offered {
    /// `seed`: the run's. `duration_ms`: of the workload.
    pub fn draw(service: &super::workload::Lc, duration_ms: u64, seed: u64) -> Self {
        // Apart from each other, and from what the plant draws of the same seed.
        let rng = |kind: &str| Rng::new(mix64(&[seed, ident_hash(&service.id), ident_hash(kind)]));
        let steps = |step_ms: u64| (duration_ms + BEYOND_MS).div_ceil(step_ms) as usize;
        let shapes = &service.shapes;
        Offered {
            rps: service.rps.clone(),
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
    pub fn draw(w: &super::workload::Workload, seed: u64) -> Self {
        Loads(w.lc.iter().map(|l| (l.id.clone(), Arc::new(Offered::draw(l, w.duration_ms, seed)))).collect())
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
mod tests {
    use super::*;
    use crate::stage::virtual_target::VirtualTarget;
    use crate::stage::workload::Workload;

    const PLAIN: &str = "duration_s = 600\n[[lc]]\nservice = \"moses\"\nload = 0.5\narrive_s = 1\nleave_s = 500\n\
                         [[lc.change]]\nat_s = 300\nload = 0.8\n";
    const BURSTS: &str = "[lc.bursts]\nlevels = [0.7, 1.9]\ndwell_s = [3.0, 1.0]\n";
    const DRIFT: &str = "[lc.drift]\npct_per_min = 6\nbound_pct = 20\n";
    const DAY: &str = "[lc.day]\nday_s = 60\nlow = 0.4\n";

    fn target() -> VirtualTarget {
        VirtualTarget::of_platform("server-1", None).unwrap()
    }

    fn parse(text: &str) -> Result<Workload> {
        Workload::parse("w.toml".as_ref(), text, &target().target())
    }

    fn offered(shape: &str, seed: u64) -> Offered {
        let w = parse(&format!("{PLAIN}{shape}")).unwrap();
        Offered::draw(&w.lc[0], w.duration_ms, seed)
    }

    /// Without shapes the rate is that of the file to the last bit, from arrival until it leaves.
    #[test]
    fn without_shapes_it_is_the_load_of_the_file() {
        let w = parse(PLAIN).unwrap();
        let (rps, plain) = (w.lc[0].rps.clone(), offered("", 7));
        let at = |t| plain.rate_at(t).map(f64::to_bits);
        let bits = |i: usize| Some(rps[i].1.to_bits());
        assert_eq!([at(0), at(1000), at(299_999), at(300_000), at(500_000)], [None, bits(0), bits(0), bits(1), None]);
        assert_eq!(plain.load_at(2000), Some(rps[0].1 / w.lc[0].max_load_rps));
    }

    /// A course is decided by seed and service: asked again, and in another order, it is the same; another seed, or a second copy of the
    /// service, has another.
    #[test]
    fn a_course_is_decided_by_seed_and_service() {
        let shape = format!("{BURSTS}{DRIFT}{DAY}");
        let times: Vec<u64> = (1000..500_000).step_by(700).collect();
        let all = |o: &Offered, times: &[u64]| times.iter().map(|t| o.rate_at(*t).unwrap().to_bits()).collect::<Vec<_>>();
        let first = all(&offered(&shape, 1), &times);
        let mut backwards = all(&offered(&shape, 1), &times.iter().rev().copied().collect::<Vec<_>>());
        backwards.reverse();
        assert_eq!(first, backwards);
        assert_ne!(first, all(&offered(&shape, 2), &times));
        let w = parse(&format!("{PLAIN}{BURSTS}[[lc]]\nservice = \"moses\"\nload = 0.5\n{BURSTS}")).unwrap();
        let loads = Loads::draw(&w, 1);
        let differ = (10..290).filter(|s| loads.rate_at("moses", s * 1000) != loads.rate_at("moses-2", s * 1000)).count();
        assert!(differ > 50, "{differ}");
    }

    /// Levels 0.7 for 3 s and 1.9 for 1 s: a mean of (0.7 x 3 + 1.9) / 4 = 1, three quarters of the time low, and 600 / 4 = 150 bursts in
    /// ten minutes. 40 seeds of 499 s: 1.3 % and 1.6 % are three standard errors or more.
    #[test]
    fn bursts_have_their_levels_times_and_mean() {
        let (mut sum, mut low, mut rises, mut n) = (0.0, 0.0, 0.0, 0.0);
        for seed in 1..=40 {
            let (bursts, plain) = (offered(BURSTS, seed), offered("", seed));
            let factors: Vec<f64> = (10..5000).map(|k| bursts.rate_at(k * 100).unwrap() / plain.rate_at(k * 100).unwrap()).collect();
            assert!(factors.iter().all(|x| (0.7 - 1e-9..=1.9 + 1e-9).contains(x)));
            sum += factors.iter().sum::<f64>();
            low += factors.iter().filter(|x| **x < 1.0).count() as f64;
            rises += factors.windows(2).filter(|x| x[0] < 1.3 && x[1] >= 1.3).count() as f64;
            n += factors.len() as f64;
        }
        assert!((sum / n - 1.0).abs() < 0.02, "{}", sum / n);
        assert!((low / n - 0.75).abs() < 0.02, "{}", low / n);
        // Bursts below half a tick never show.
        let a_minute = rises / (n / 600.0);
        assert!((13.0..=16.0).contains(&a_minute), "{a_minute}");
    }

    /// A drift of 6 % a minute changes by 6 % (standard deviation) in a minute, steps once a second, and stays within its walls.
    #[test]
    fn drift_walks_between_its_walls() {
        let wide = "[lc.drift]\npct_per_min = 6\nbound_pct = 90\n";
        let mut squares = vec![];
        for seed in 1..=400 {
            let (drift, plain) = (offered(wide, seed), offered("", seed));
            squares.push((drift.rate_at(61_000).unwrap() / plain.rate_at(61_000).unwrap() - 1.0).powi(2));
        }
        // Since 0 s, so 61 steps: 0.06 x sqrt(61 / 60) = 0.0605; 400 draws are within 11 %, three standard errors.
        let sd = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
        assert!((sd / 0.0605 - 1.0).abs() < 0.11, "{sd}");
        let (drift, plain) = (offered("[lc.drift]\npct_per_min = 60\nbound_pct = 20\n", 3), offered("", 3));
        let factor = |t| drift.rate_at(t).unwrap() / plain.rate_at(t).unwrap();
        let all: Vec<f64> = (1..500).map(|s| factor(s * 1000)).collect();
        assert!(all.iter().all(|x| (0.8 - 1e-12..=1.2 + 1e-12).contains(x)));
        let (least, most) = all.iter().fold((1.0f64, 1.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
        assert!(least < 0.83 && most > 1.17, "{least} {most}");
        assert!((2000..3000).step_by(100).all(|t| factor(t) == factor(2000)) && factor(3000) != factor(2000));
    }

    /// A sinusoid is lowest at the day's beginning and highest at its middle, day after day; `begins_at` shifts it. A trace runs through
    /// its samples, and is as deep as it was recorded unless the file says otherwise.
    #[test]
    fn a_day_is_a_sinusoid_or_a_trace() {
        let plain = offered("", 1);
        let factor = |o: &Offered, t_ms| (o.rate_at(t_ms).unwrap() / plain.rate_at(t_ms).unwrap() * 1e9).round() / 1e9;
        let day = offered(DAY, 1);
        assert_eq!([60, 75, 90, 105, 120].map(|s| factor(&day, s * 1000)), [0.4, 0.7, 1.0, 0.7, 0.4]);
        let noon = offered(&format!("{DAY}begins_at = 0.5\nhigh = 1.4\n"), 1);
        assert_eq!([60, 90].map(|s| factor(&noon, s * 1000)), [1.4, 0.4]);
        let trace = target().traces["autothrottle-diurnal"].clone();
        let n = trace.values.len();
        assert_eq!((n, trace.low), (360, 0.465));
        let recorded = offered("[lc.day]\nday_s = 36\ntrace = \"autothrottle-diurnal\"\n", 1);
        for k in [20, 100, 359, 361] {
            let want = 0.465 + (1.0 - 0.465) * trace.values[k as usize % n];
            assert!((factor(&recorded, k * 100) - want).abs() < 1e-8, "{k}");
        }
        let deep = offered("[lc.day]\nday_s = 36\ntrace = \"autothrottle-diurnal\"\nlow = 0.1\n", 1);
        let all: Vec<f64> = (36..72).map(|s| factor(&deep, s * 1000)).collect();
        assert!(all.iter().all(|x| (0.1..=1.0).contains(x)) && all.iter().any(|x| *x < 0.2));
    }

    /// Shapes multiply each other, no rate passes the highest that they can reach, and beyond what was drawn the course goes on.
    #[test]
    fn shapes_multiply_and_have_a_highest() {
        let shape = format!("{BURSTS}{DRIFT}{DAY}");
        let w = parse(&format!("{PLAIN}{shape}")).unwrap();
        let l = &w.lc[0];
        assert!((l.shapes.highest() - 1.9 * 1.2).abs() < 1e-12);
        assert_eq!(l.highest_load_at(1000), Some(l.rps[0].1 / l.max_load_rps * l.shapes.highest()));
        let [all, bursts, drift, day, plain] = [&shape, BURSTS, DRIFT, DAY, ""].map(|s| offered(s, 5));
        for t in (1000..500_000).step_by(1700) {
            let [a, b, c, d, p] = [&all, &bursts, &drift, &day, &plain].map(|o| o.rate_at(t).unwrap());
            assert!((a / (b * c * d / p / p) - 1.0).abs() < 1e-12);
            assert!(a <= p * l.shapes.highest() * (1.0 + 1e-12));
        }
        let stays = PLAIN.replace("leave_s = 500\n", "");
        let w = parse(&format!("{stays}{shape}")).unwrap();
        let o = Offered::draw(&w.lc[0], w.duration_ms, 5);
        let drawn = o.bursts.len() as u64;
        assert_eq!(drawn, 8000);
        assert_eq!((drawn_at(&o.bursts, drawn), drawn_at(&o.bursts, 2 * drawn)), (o.bursts.last().copied(), Some(o.bursts[0])));
        assert!(o.rate_at(100_000_000).is_some_and(|r| r > 0.0));
    }

    /// The server offers what [`Offered`] says, tick by tick, and from a tick's middle to the next too.
    #[test]
    fn the_server_follows_the_course() {
        use surefoot_server::{Server, Tick};
        let at = target();
        let text =
            format!("{PLAIN}{BURSTS}{DRIFT}{DAY}[[lc]]\nservice = \"login\"\nload = 0.3\n").replace("arrive_s = 1", "arrive_s = 0.5");
        let w = Workload::parse("w.toml".as_ref(), &text, &at.target()).unwrap();
        let mut server = at.server(9);
        let loads = w.announce(&mut server, &at, 9).unwrap();
        let mut changes = 0;
        let mut before = None;
        for tick in 0..200 {
            for id in ["moses", "login"] {
                let (now, rate) = (server.now_ms(), server.offered_rps(id));
                assert_eq!(rate.map(f64::to_bits), loads.rate_at(id, now).map(f64::to_bits), "{id} {now}");
            }
            changes += usize::from(server.offered_rps("moses") != before);
            before = server.offered_rps("moses");
            server.advance(Tick { ms: if tick % 10 == 3 { 250 } else { 100 } });
        }
        assert!(changes > 150, "{changes}");
    }

    /// What is wrong with a shape is said in one line with file, field and remedy.
    #[test]
    fn bad_shapes_are_named() {
        let cases = [
            ("[lc.bursts]\nlevels = [1.0]\ndwell_s = [1.0]", "lc.bursts.levels: 1 levels. Give 2 to 8"),
            ("[lc.bursts]\nlevels = [1.0, 2.0]\ndwell_s = [1.0]", "lc.bursts.dwell_s: 1 times for 2 levels"),
            ("[lc.bursts]\nlevels = [1.0, 0.0]\ndwell_s = [1.0, 1.0]", "lc.bursts.levels: 0 is out of range. Give 0.01 to 10"),
            ("[lc.bursts]\nlevels = [1.0, nan]\ndwell_s = [1.0, 1.0]", "lc.bursts.levels: NaN is out of range"),
            ("[lc.bursts]\nlevels = [1.0, 2.0]\ndwell_s = [1.0, 0.05]", "lc.bursts.dwell_s: 0.05 is out of range. Give 0.1 to 10 seconds"),
            ("[lc.bursts]\nlevels = [1.0, 2.0]", "missing field `dwell_s`"),
            ("[lc.drift]\npct_per_min = 0\nbound_pct = 20", "lc.drift.pct_per_min: 0 is out of range. Give 0.1 to 100 per cent"),
            ("[lc.drift]\npct_per_min = 5\nbound_pct = 95", "lc.drift.bound_pct: 95 is out of range. Give 1 to 90 per cent"),
            ("[lc.drift]\npct_per_min = 5\nbound_pct = 20\nspeed = 1", "unknown field `speed`"),
            ("[lc.day]\nday_s = 5\nlow = 0.5", "lc.day.day_s: 5 is out of range. Give 10 to 86400 seconds"),
            ("[lc.day]\nday_s = 60", "lc.day.low: is missing. Give the lowest load"),
            ("[lc.day]\nday_s = 60\nlow = 1.0", "lc.day.low: 1 is not below high = 1. Give a lower share"),
            ("[lc.day]\nday_s = 60\nlow = 0.5\nhigh = 11", "lc.day.high: 11 is out of range. Give 0.01 to 10"),
            ("[lc.day]\nday_s = 60\nlow = 0.5\nbegins_at = 1", "lc.day.begins_at: 1 is out of range"),
            ("[lc.day]\nday_s = 60\ntrace = \"autothrottle-diurnl\"", "Did you mean \"autothrottle-diurnal\"?"),
            ("[lc.day]\nday_s = 60\ntrace = \"no-such-thing\"", "lc.day.trace: unknown trace \"no-such-thing\""),
        ];
        for (shape, says) in cases {
            let text = PLAIN.replace("[[lc.change]]\nat_s = 300\nload = 0.8\n", "");
            let e = parse(&format!("{text}{shape}\n")).unwrap_err().to_string();
            assert!(e.contains("w.toml:") && e.contains(says) && !e.contains('\n'), "{shape}: {e}");
        }
        let e = parse(&format!("{}[lc.day]\nday_s = 60\nlow = 0.5\nhigh = 9\n", PLAIN.replace("load = 0.5", "rps = 9e8"))).unwrap_err();
        assert!(e.to_string().contains("lc.load: its shapes reach 8.1e9 requests/s. Give at most 1e9"), "{e}");
    }

    /// A trace that is not one is named with file, field and remedy; one of a later folder is taken in place of an earlier one.
    #[test]
    fn traces_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let loads = dir.path().join("loads");
        std::fs::create_dir(&loads).unwrap();
        let file = loads.join("mine.toml");
        let good = "source = \"s\"\nlicence = \"l\"\nsample_s = 1\nlow = 0.2\nvalues = [0, 0.5, 1]\n";
        let cases = [
            ("low = 0.2", "low = 1.0", "low: 1 is out of range"),
            ("low = 0.2\n", "", "missing field `low`"),
            ("[0, 0.5, 1]", "[1]", "values: 1 numbers. Give 2 to 100000"),
            ("[0, 0.5, 1]", "[0.1, 0.5, 1]", "values: from 0.1 to 1. Scale them"),
            ("[0, 0.5, 1]", "[0, nan, 1]", "values: from 0 to 1. Scale them"),
            ("source", "origin", "unknown field `origin`"),
        ];
        for (from, to, says) in cases {
            std::fs::write(&file, good.replace(from, to)).unwrap();
            let e = traces(&[dir.path().into()]).unwrap_err().to_string();
            assert!(e.contains("mine.toml") && e.contains(says), "{to}: {e}");
        }
        std::fs::write(&file, good).unwrap();
        let other = tempfile::tempdir().unwrap();
        std::fs::create_dir(other.path().join("loads")).unwrap();
        std::fs::write(other.path().join("loads/mine.toml"), good.replace("0.5", "0.6")).unwrap();
        let found = traces(&[dir.path().into(), other.path().into()]).unwrap();
        assert_eq!(found["mine"].values, [0.0, 0.6, 1.0]);
        assert!(traces(&[dir.path().join("loads")]).unwrap().is_empty());
    }
}
