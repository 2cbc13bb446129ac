//! A served model is watched: what Models A and B say of each LC service, against what is seen of it.
//!
//! What must hold:
//!
//! * Nothing is compared that the model was not asked about. A service holds its cores and ways alone. Its window lies wholly behind the last
//!   change of allocation and of load, and [`SETTLE_MS`] more for queues and caches.
//! * What the latency feed does not vouch for is no comparison. What is seen of an overloaded service stands apart.
//! * A service costs a fixed amount of memory. One that has left is forgotten.
//!
//! Two kinds of comparison judge a model. *Held*: what Model-B says of the present allocation in the present state. *Changed*: what it said
//! of an allocation before the service came to it, at about the same load. QoS counts up to 1, as in the lab's test of the models. So
//! the smoothed error here stands beside the error there: their ratio is the *drift*. A bundle without figures of its test is measured by
//! the first comparisons of the service.
//!
//! A steady service says the same every second: many comparisons of one *point*, which is a stay on one allocation at one load. Of
//! few points a large error may be chance. So the drift counts as worse above 1 + 2 / sqrt(points), and as well again below
//! 1 + 1 / sqrt(points): two standard deviations of a mean and one, of errors that scatter as much as they are large.
//!
//! Model-A's OAA cannot be seen. Cells that met the target and cells that missed it say whether it is too small or too large, where there
//! are such cells at about the load.

use crate::models::{Area, Models, State};
use crate::osml_plus::{doubtful, mean};
use crate::pace::Pace;
use std::collections::{BTreeMap, VecDeque};
use surefoot_server::window::reach_ms;
use surefoot_server::{Features, Held, Observation, Platform, ServiceId, ServiceView, Verdict};

/// Between two looks.
pub const EVERY_MS: u64 = 1000;
/// What lingers after a change on top of the window: a queue, cold caches.
pub const SETTLE_MS: u64 = 1000;
/// What was said so long ago is not judged any more.
const STALE_MS: u64 = 30_000;
/// Features are means over so long, as those that policies ask with.
const SMOOTH_MS: u64 = 500;
/// Loads count as one within this share of themselves, or within so many standard deviations of a count of requests.
const SAME_LOAD: f64 = 0.1;
const LOAD_SIGMAS: f64 = 3.0;
/// Comparisons, or looks, that smoothed figures reach back.
const REACH: u64 = 32;
/// Comparisons without which no kind is judged: [`Kind::ALL`]. One of a change is always of another point.
const LEAST: [u64; 3] = [20, 5, u64::MAX];
/// Comparisons whose error is the measure where the bundle has none.
const FIRST: u64 = 20;
/// An error that was taught to be smaller counts as this, QoS: a p99 of a second scatters by as much.
const LEAST_TAUGHT: f64 = 0.02;
/// Looks before inputs are judged; shares of looks with an input outside that make inputs strange, and usual again.
const LEAST_LOOKS: u64 = 10;
const STRANGE: f64 = 0.5;
const USUAL: f64 = 0.25;
/// A kind judges for so long after its last comparison.
const JUDGED_MS: u64 = 3_600_000;
/// A service's standing is said so often at most.
const SAY_EVERY_MS: u64 = 60_000;
/// Cells that are remembered of a service, and for how long.
const CELLS: usize = 12;
const CELL_MS: u64 = 600_000;
/// Steps by which an OAA may lie above a cell that met the target: it keeps one from the cliff by itself.
const ROOM: f64 = 2.0;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The present allocation, asked about now.
    Held,
    /// An allocation that was asked about before it came.
    Changed,
    /// Either, of an overloaded service. It judges no model.
    Overloaded,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Held, Kind::Changed, Kind::Overloaded];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Held => "held",
            Kind::Changed => "changed",
            Kind::Overloaded => "overloaded",
        }
    }
}

/// How a model does for a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Too few comparisons to say.
    #[default]
    TooFew,
    AsTaught,
    WorseThanTaught,
    /// No worse, as far as is known; but most of the time an input is outside of what the model was taught with.
    StrangeInputs,
}

impl Standing {
    pub const ALL: [Standing; 4] = [Standing::TooFew, Standing::AsTaught, Standing::WorseThanTaught, Standing::StrangeInputs];

    pub fn as_str(self) -> &'static str {
        match self {
            Standing::TooFew => "too-few",
            Standing::AsTaught => "as-taught",
            Standing::WorseThanTaught => "worse-than-taught",
            Standing::StrangeInputs => "strange-inputs",
        }
    }
}

/// An OAA, by cells that were seen at about the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oaa {
    #[default]
    Unknown,
    /// A cell that is no larger met the target, and is not much smaller.
    Right,
    /// A cell that is no smaller missed the target.
    TooSmall,
    /// A cell that is smaller by more than two steps of cores or ways met the target.
    TooLarge,
}

impl Oaa {
    pub const ALL: [Oaa; 4] = [Oaa::Unknown, Oaa::Right, Oaa::TooSmall, Oaa::TooLarge];

    pub fn as_str(self) -> &'static str {
        match self {
            Oaa::Unknown => "unknown",
            Oaa::Right => "right",
            Oaa::TooSmall => "too-small",
            Oaa::TooLarge => "too-large",
        }
    }
}

/// Model-B's mean absolute error of min(QoS, 1) in the lab's test, of cells that met the target and of those that missed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taught {
    pub met_qos: f64,
    pub missed_qos: f64,
}

impl Taught {
    /// Of a bundle's metrics; None where they have no such figure.
    pub fn of(metrics: &BTreeMap<String, f64>) -> Option<Self> {
        let share = |name: &str| metrics.get(name).map(|pct| pct / 100.0).filter(|s| s.is_finite() && *s >= 0.0);
        // Of models of many drawn servers the figure is of such servers.
        let of = |name: &str| share(name).or(share("b_error_pct")).or(share("b_error_pct_drawn"));
        Some(Taught { met_qos: of("b_error_met_pct")?, missed_qos: of("b_error_missed_pct")? })
    }
}

/// Comparisons of one kind. Errors are of min(QoS, 1), smoothed over the last 32.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub comparisons: u64,
    /// Those in which the target was missed, and those of them that were said to meet it.
    pub missed: u64,
    pub false_met: u64,
    pub error_qos: f64,
    /// Above 0: Model-B says too much.
    pub bias_qos: f64,
    taught_qos: Option<f64>,
    /// Share of them that were the first of their point.
    fresh: f64,
}

impl Figures {
    fn note(&mut self, said: f64, seen: f64, taught: Option<&Taught>, fresh: bool) {
        self.comparisons += 1;
        let missed = seen < 1.0;
        self.missed += u64::from(missed);
        self.false_met += u64::from(missed && said >= 1.0);
        let reach = self.reach();
        let smooth = |old: f64, new: f64| old + (new - old) / reach;
        // As the lab's test has it (pipelines/fits/balance.py): beyond either end nothing is wrong by more.
        let error = said.clamp(0.0, 1.0) - seen.min(1.0);
        self.error_qos = smooth(self.error_qos, error.abs());
        self.bias_qos = smooth(self.bias_qos, error);
        self.fresh = smooth(self.fresh, f64::from(u8::from(fresh)));
        match taught.map(|t| if missed { t.missed_qos } else { t.met_qos }) {
            Some(of) => self.taught_qos = Some(smooth(self.taught_qos.unwrap_or(0.0), of)),
            None if self.comparisons == FIRST => self.taught_qos = Some(self.error_qos),
            None => {}
        }
    }

    /// Comparisons in the smoothed figures.
    fn reach(&self) -> f64 {
        self.comparisons.min(REACH) as f64
    }

    /// Points in the smoothed figures.
    pub fn points(&self) -> f64 {
        (self.fresh * self.reach()).max(1.0)
    }

    /// The error that these comparisons are measured by: the lab's, or that of the first ones.
    pub fn taught_qos(&self) -> Option<f64> {
        self.taught_qos
    }

    /// Error now / taught.
    pub fn drift(&self) -> Option<f64> {
        Some(self.error_qos / self.taught_qos?.max(LEAST_TAUGHT))
    }
}

/// How a service's models do.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a> {
    pub service: &'a str,
    pub standing: Standing,
    /// By [`Kind::ALL`].
    pub figures: [Figures; 3],
    /// The larger one of the kinds that have enough comparisons.
    pub drift: Option<f64>,
    /// Inputs outside at the last look, and the share of looks with any, smoothed.
    pub outside: usize,
    pub outside_frac: f64,
    pub oaa: Oaa,
}

/// A standing that has changed since it was said last.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    pub service: ServiceId,
    pub standing: Standing,
    pub was: Standing,
    /// The kind with the larger drift, where one has enough comparisons.
    pub of: Option<(Kind, Figures)>,
    /// Inputs outside at the last look.
    pub outside: Vec<String>,
}

/// The watch over one bundle's models, whatever policies ask them.
pub struct Watch {
    models: Box<dyn Models>,
    taught: Option<Taught>,
    core_step: f64,
    intervals: usize,
    next_ms: u64,
    of: BTreeMap<ServiceId, Watched>,
}

impl Watch {
    /// `interval_ms`: between two calls of [`Watch::look`].
    pub fn new(platform: &Platform, models: Box<dyn Models>, taught: Option<Taught>, interval_ms: u64) -> Self {
        let intervals = Pace::every(interval_ms).unwrap_or_default().steps(SMOOTH_MS);
        Watch { models, taught, core_step: platform.core_step, intervals, next_ms: 0, of: BTreeMap::new() }
    }

    /// At each interval, when the plan is in force. News where it was time for a look, None else.
    pub fn look(&mut self, now_ms: u64, seen: &Observation) -> Option<Vec<News>> {
        self.of.retain(|id, _| seen.get(id).is_some_and(ServiceView::is_lc));
        let due = now_ms >= self.next_ms;
        if due {
            self.next_ms = now_ms + EVERY_MS;
        }
        let mut news = vec![];
        for s in seen.lc() {
            if !self.of.contains_key(&s.id) {
                self.of.insert(s.id.clone(), Watched::new(now_ms, s, self.intervals));
            }
            let Some(w) = self.of.get_mut(&s.id) else { continue };
            let held = Held::of(&s.allocation);
            let alone = is_alone(s);
            if held != w.held {
                w.moved(now_ms, s, held, self.models.as_ref());
            } else if alone != w.alone {
                // It holds as much, and shares it or has it back: what was seen until now is of something else.
                w.begin(now_ms, None);
                w.features.clear();
                (w.before, w.said) = (None, None);
            }
            w.alone = alone;
            if w.features.len() == self.intervals {
                w.features.pop_front();
            }
            w.features.push_back(s.features);
            if due {
                w.compare(now_ms, s, self.models.as_ref(), self.taught.as_ref(), self.core_step);
                news.extend(w.news(now_ms, s));
            }
        }
        due.then_some(news)
    }

    pub fn views(&self) -> impl Iterator<Item = View<'_>> {
        self.of.iter().map(|(id, w)| View {
            service: id,
            standing: w.standing,
            figures: w.figures,
            drift: w.worst().and_then(|(_, f)| f.drift()),
            outside: w.outside.len(),
            outside_frac: w.outside_frac,
            oaa: w.oaa,
        })
    }
}

/// Settled on an allocation: what Model-B is asked with before the next change.
#[derive(Clone, Copy, Debug)]
struct Before {
    at_ms: u64,
    held: Held,
    state: State,
    rps: f64,
    overloaded: bool,
}

/// What Model-B said of the allocation that is held now, before it was.
#[derive(Clone, Copy, Debug)]
struct Said {
    qos: f64,
    before: Before,
}

#[derive(Debug)]
struct Watched {
    held: Held,
    alone: bool,
    /// The point: since when it is held at this load, and whether it has been compared.
    since_ms: u64,
    rps: Option<f64>,
    compared: bool,
    /// Since the last change of allocation.
    features: VecDeque<Features>,
    before: Option<Before>,
    said: Option<Said>,
    figures: [Figures; 3],
    /// When the last comparison of each kind was, and the last look.
    noted_ms: [u64; 3],
    looked_ms: u64,
    looks: u64,
    outside: Vec<String>,
    outside_frac: f64,
    cells: Cells,
    oaa: Oaa,
    standing: Standing,
    told: Standing,
    told_ms: Option<u64>,
}

impl Watched {
    fn new(now_ms: u64, s: &ServiceView, intervals: usize) -> Self {
        Watched {
            held: Held::of(&s.allocation),
            alone: is_alone(s),
            since_ms: now_ms,
            rps: None,
            compared: false,
            features: VecDeque::with_capacity(intervals),
            before: None,
            said: None,
            figures: [Figures::default(); 3],
            noted_ms: [now_ms; 3],
            looked_ms: now_ms,
            looks: 0,
            outside: vec![],
            outside_frac: 0.0,
            cells: Cells::default(),
            oaa: Oaa::Unknown,
            standing: Standing::TooFew,
            told: Standing::TooFew,
            told_ms: None,
        }
    }

    /// It holds something else from this interval on.
    fn moved(&mut self, now_ms: u64, s: &ServiceView, held: Held, models: &dyn Models) {
        let cell = |h: &Held| (h.cores, h.ways);
        let same_cell = cell(&held) == cell(&self.held);
        // Of bandwidth and memory models know nothing; asked about the cell that it was in they say what they see.
        let of_cell_alone = |b: &Before| Held { cores: held.cores, ways: held.ways, ..b.held } == held && cell(&b.held) != cell(&held);
        let before = self.before.filter(|b| !same_cell && now_ms <= b.at_ms + STALE_MS && of_cell_alone(b));
        let ask = |b: Before| Some(Said { qos: said(models.qos(&s.service, &b.state, held.cores, ways(&held)), models)?, before: b });
        self.said = before.and_then(ask);
        self.held = held;
        // Another limit on memory is no other point.
        let compared = same_cell && self.compared;
        self.begin(now_ms, None);
        self.compared = compared;
        self.features.clear();
    }

    /// Another point.
    fn begin(&mut self, now_ms: u64, rps: Option<f64>) {
        (self.since_ms, self.rps, self.compared) = (now_ms, rps, false);
    }

    fn compare(&mut self, now_ms: u64, s: &ServiceView, models: &dyn Models, taught: Option<&Taught>, core_step: f64) {
        self.looked_ms = now_ms;
        self.oaa = Oaa::Unknown;
        self.outside.clear();
        let (Some(qos), Some(w), false) = (s.qos(), s.window, doubtful(s)) else { return };
        let rps = w.achieved_rps;
        match self.rps {
            None => self.rps = Some(rps),
            Some(was) if !same_load(was, rps, w.count) => self.begin(now_ms, Some(rps)),
            Some(_) => {}
        }
        let behind_ms = self.since_ms + reach_ms(&w);
        if now_ms < behind_ms || self.features.is_empty() {
            return;
        }
        let overloaded = w.verdict == Verdict::ServerOverloaded;
        let state = State::with(s, mean(&self.features));
        if !self.alone {
            return;
        }
        self.before = Some(Before { at_ms: now_ms, held: self.held, state, rps, overloaded });
        if now_ms < behind_ms + SETTLE_MS {
            return;
        }
        let (cores, ways) = (self.held.cores, ways(&self.held));
        if let Some(said) = self.said.take() {
            let b = said.before;
            if same_load(b.rps, rps, w.count) && now_ms <= b.at_ms + STALE_MS {
                let kind = if overloaded || b.overloaded { Kind::Overloaded } else { Kind::Changed };
                self.note(now_ms, kind, said.qos, qos, taught, true);
            }
        }
        if let Some(said) = said(models.qos(&s.service, &state, cores, ways), models) {
            let kind = if overloaded { Kind::Overloaded } else { Kind::Held };
            self.note(now_ms, kind, said, qos, taught, !self.compared);
            self.compared |= !overloaded;
        }
        if overloaded {
            return;
        }
        self.outside = models.outside(&state, cores, ways);
        if let Some(score) = models.strangeness(&state).filter(|score| *score > 1.0) {
            self.outside.push(format!("all together (strangeness {score:.1})"));
        }
        self.looks += 1;
        let any = f64::from(u8::from(!self.outside.is_empty()));
        self.outside_frac += (any - self.outside_frac) / self.looks.min(REACH) as f64;
        // Throttled it may miss for want of bandwidth.
        if qos >= 1.0 || self.held.mba_pct == 100 {
            self.cells.note(Cell { cores, ways, rps, met: qos >= 1.0, at_ms: now_ms });
        }
        if let Ok(area) = models.area(&s.service, &state) {
            self.oaa = self.cells.judge(now_ms, &area, rps, core_step);
        }
    }

    fn note(&mut self, now_ms: u64, kind: Kind, said: f64, seen: f64, taught: Option<&Taught>, fresh: bool) {
        self.figures[kind as usize].note(said, seen, taught, fresh);
        self.noted_ms[kind as usize] = now_ms;
    }

    /// Whether a kind has enough comparisons, and one that is not too long ago: what a service no longer shows judges nothing.
    fn counts(&self, kind: Kind) -> bool {
        let at = kind as usize;
        self.figures[at].comparisons >= LEAST[at] && self.looked_ms <= self.noted_ms[at] + JUDGED_MS
    }

    /// Of the kinds that have enough comparisons, the one with the larger drift.
    fn worst(&self) -> Option<(Kind, Figures)> {
        let enough = Kind::ALL.iter().zip(&self.figures).filter(|(k, f)| self.counts(**k) && f.drift().is_some());
        enough.max_by(|(_, a), (_, b)| a.drift().partial_cmp(&b.drift()).unwrap_or(std::cmp::Ordering::Equal)).map(|(k, f)| (*k, *f))
    }

    fn judge(&self) -> Standing {
        let was = self.standing;
        let sigmas = if was == Standing::WorseThanTaught { 1.0 } else { 2.0 };
        let is_worse = |k: &Kind| {
            let f = &self.figures[*k as usize];
            self.counts(*k) && f.drift().is_some_and(|d| d > 1.0 + sigmas / f.points().sqrt())
        };
        let outside = if was == Standing::StrangeInputs { USUAL } else { STRANGE };
        if Kind::ALL.iter().any(is_worse) {
            Standing::WorseThanTaught
        } else if self.looks >= LEAST_LOOKS && self.outside_frac > outside {
            Standing::StrangeInputs
        } else if self.worst().is_some() {
            Standing::AsTaught
        } else {
            Standing::TooFew
        }
    }

    fn news(&mut self, now_ms: u64, s: &ServiceView) -> Option<News> {
        self.standing = self.judge();
        let may = self.told_ms.is_none_or(|t| now_ms >= t + SAY_EVERY_MS);
        if self.standing == self.told || !may {
            return None;
        }
        let was = std::mem::replace(&mut self.told, self.standing);
        self.told_ms = Some(now_ms);
        Some(News { service: s.id.clone(), standing: self.standing, was, of: self.worst(), outside: self.outside.clone() })
    }
}

/// An answer of Model-B's, no more than it was taught to say; None where it has none.
fn said(answer: Result<f64, String>, models: &dyn Models) -> Option<f64> {
    answer.ok().filter(|q| q.is_finite()).map(|q| q.min(models.qos_cap()))
}

fn ways(held: &Held) -> f64 {
    held.ways.unwrap_or(0.0)
}

/// No other service may use its cores and ways: models are asked about no other allocation.
fn is_alone(s: &ServiceView) -> bool {
    let a = &s.allocation;
    s.placed && (a.quota_cores.is_some() || a.shared_cpus.is_empty()) && a.shared_ways.iter().all(|mask| *mask == 0)
}

fn same_load(a: f64, b: f64, count: u64) -> bool {
    (a / b - 1.0).abs() <= SAME_LOAD.max(LOAD_SIGMAS / (count as f64).sqrt())
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    cores: f64,
    ways: f64,
    rps: f64,
    met: bool,
    at_ms: u64,
}

/// The last cells on which a service met its target, or missed it.
#[derive(Clone, Copy, Debug, Default)]
struct Cells([Option<Cell>; CELLS]);

impl Cells {
    fn note(&mut self, new: Cell) {
        let same = |c: &Cell| (c.cores, c.ways, c.met) == (new.cores, new.ways, new.met) && (c.rps / new.rps - 1.0).abs() <= SAME_LOAD;
        let place = self.0.iter().position(|c| c.as_ref().is_some_and(same));
        let oldest = || (0..CELLS).min_by_key(|k| self.0[*k].map(|c| c.at_ms)).unwrap_or(0);
        let place = place.unwrap_or_else(oldest);
        self.0[place] = Some(new);
    }

    fn judge(&self, now_ms: u64, area: &Area, rps: f64, core_step: f64) -> Oaa {
        // As it would be handed out.
        let (cores, ways) = ((area.oaa_cores / core_step).round() * core_step, area.oaa_ways.unwrap_or(0.0).round());
        let half = core_step / 2.0;
        let recent = || self.0.iter().flatten().filter(move |c| now_ms <= c.at_ms + CELL_MS);
        let missed = |c: &Cell| !c.met && c.cores >= cores - half && c.ways >= ways && c.rps <= rps * (1.0 + SAME_LOAD);
        if recent().any(missed) {
            return Oaa::TooSmall;
        }
        let met = |c: &&Cell| c.met && c.cores <= cores + half && c.ways <= ways && c.rps >= rps * (1.0 - SAME_LOAD);
        let above = |c: &Cell| ((cores - c.cores) / core_step).max(ways - c.ways);
        match recent().filter(met).map(above).max_by(f64::total_cmp) {
            None => Oaa::Unknown,
            Some(steps) if steps > ROOM + 0.5 => Oaa::TooLarge,
            Some(_) => Oaa::Right,
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
