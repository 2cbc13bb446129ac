//! Max loads, for campaigns whose loads are per cent of what a service carries on the machine at hand.
//!
//! Before the first case each service that is measured, or is a neighbour, runs alone on all that the campaign may give it. Short runs look for the
//! highest rate that meets its QoS target: doubled (or halved) from a first guess until one side of the edge is known each, then halved in
//! ratio until the gap is narrow. A rate that misses narrowly is looked at again, since one run may be spoilt by something else. The highest
//! that meets the target has to do so once more, for longer: else it was luck, and the search goes on below it.
//! What was found is in the manifest before the next search begins, and is never measured again: the loads of a resumed campaign are
//! those of its beginning.

use super::job::{Bench, Job, Measure, LOCAL_OVERHEAD_S};
use super::manifest::{Found, Look, Manifest, MaxLoad};
use super::rows::{Measured, Row, State};
use super::shard::Keeper;
use crate::base::error::{Error, Result};
use crate::base::progress::Progress;
use crate::base::stop;
use crate::sweep::campaign::{Campaign, Sampling};
use crate::sweep::expand::{Case, Highest, Loaded};
use crate::sweep::limits::round6;
use std::collections::BTreeMap;
use surefoot_server::Verdict;

/// First guess where nobody gives a rate.
pub const FIRST_RPS: f64 = 100.0;
/// Rates beyond are not tried.
const LEAST_RPS: f64 = 1.0;
const MOST_RPS: f64 = 5e6;
/// Ratio of the rates that bound the edge at the end: loads are steps of 20 % or so.
const NARROW: f64 = 1.1;
/// Bound of a search's length. From 1 to 5,000,000 RPS 23 doublings and 3 halvings lead, and narrow misses are looked at again.
const MOST_LOOKS: usize = 48;
/// A rate that misses narrowly is looked at so many times: on a busy machine single runs are spoilt by what else is in the queue.
const TRIES: u32 = 3;
/// A p99 so many times the target is no narrow miss.
const FAR: f64 = 4.0;
/// Requests that a look should have: enough for a p99 with some to spare.
const REQUESTS: f64 = 500.0;
/// Bounds of a look's length, s.
const SHORTEST_S: f64 = 1.0;
const LONGEST_S: f64 = 20.0;
/// The look that makes sure is so many times as long: luck of a second is not enough to be the measure of a campaign's loads.
const LAST_TIMES: f64 = 4.0;
/// Looks of a search, about.
const LOOKS_ABOUT: f64 = 12.0;

/// Seconds that a search takes on a real machine, about.
pub fn about_s(campaign: &Campaign) -> f64 {
    LOOKS_ABOUT * (campaign.sampling.warmup_ms as f64 * 1e-3 + 2.0 * SHORTEST_S + LOCAL_OVERHEAD_S)
}

/// A search for the edge: which rate is looked at next. Pure; the same looks give the same search.
#[derive(Clone, Debug)]
struct Edge {
    first_rps: f64,
    /// Rates that met the target, ascending, and the lowest above them that does not.
    meets: Vec<f64>,
    misses: Option<f64>,
    /// The rate that has missed narrowly, and how often.
    doubt: Option<(f64, u32)>,
    /// The highest that met the target did so over a long look, too.
    sure: bool,
    looks: usize,
}

impl Edge {
    fn from(first_rps: f64) -> Self {
        let first_rps = three_digits(first_rps.clamp(LEAST_RPS, MOST_RPS));
        Edge { first_rps, meets: vec![], misses: None, doubt: None, sure: false, looks: 0 }
    }

    fn highest(&self) -> Option<f64> {
        self.meets.last().copied()
    }

    /// None: the search is over.
    fn next(&self) -> Option<f64> {
        if self.looks >= MOST_LOOKS {
            return None;
        }
        if let Some((rps, _)) = self.doubt {
            return Some(rps);
        }
        let closer = match (self.highest(), self.misses) {
            (None, None) => Some(self.first_rps),
            (Some(low), None) => (low < MOST_RPS).then(|| three_digits((2.0 * low).min(MOST_RPS))),
            (None, Some(high)) => (high > LEAST_RPS).then(|| three_digits((0.5 * high).max(LEAST_RPS))),
            (Some(low), Some(high)) => {
                let middle = three_digits((low * high).sqrt());
                (high > low * NARROW && middle > low && middle < high).then_some(middle)
            }
        };
        closer.or_else(|| self.highest().filter(|_| !self.sure))
    }

    /// Whether a look at this rate is the one that makes sure.
    fn is_last(&self, rps: f64) -> bool {
        self.highest() == Some(rps)
    }

    /// What a look at the rate that came next has found.
    fn tell(&mut self, look: &Look, target_ms: f64) {
        self.looks += 1;
        let again = self.is_last(look.rps);
        if look.found == Found::Meets {
            (self.sure, self.doubt) = (again, None);
            if !again {
                self.meets.push(look.rps);
            }
            return;
        }
        let narrow = match look.found {
            Found::Overloaded => false,
            _ => look.p99_ms.is_none_or(|p99_ms| p99_ms < FAR * target_ms),
        };
        let missed = 1 + self.doubt.map_or(0, |(_, n)| n);
        if narrow && missed < TRIES {
            self.doubt = Some((look.rps, missed));
            return;
        }
        (self.misses, self.doubt, self.sure) = (Some(look.rps), None, false);
        if again {
            self.meets.pop();
        }
    }
}

/// Rates that read well.
fn three_digits(rps: f64) -> f64 {
    let unit = 10f64.powi(rps.log10().floor() as i32 - 2);
    round6((rps / unit).round() * unit)
}

/// How a look at a rate is sampled: as the campaign's cases, only as long as the rate needs.
fn sampling_of(campaign: &Sampling, rps: f64, last: bool) -> Sampling {
    let times = if last { LAST_TIMES } else { 1.0 };
    let window_ms = 1e3 * (times * (REQUESTS / rps).max(SHORTEST_S)).min(LONGEST_S);
    Sampling { samples: (window_ms / campaign.interval_ms as f64).ceil().max(1.0) as u32, repeats: 1, ..campaign.clone() }
}

/// What a case says of its rate. Few requests are judged by the p99 that they have: there is no more to know within the time.
fn judge(rps: f64, state: State, rows: &[Row], target_ms: f64) -> Look {
    let mut p99s: Vec<f64> = rows.iter().filter(|r| r.verdict == Verdict::Valid).filter_map(|r| r.p99_ms).collect();
    if p99s.is_empty() {
        p99s = rows.iter().filter(|r| r.verdict == Verdict::NotResolvable).filter_map(|r| r.p99_ms).collect();
    }
    p99s.sort_by(f64::total_cmp);
    let p99_ms = p99s.get(p99s.len() / 2).copied();
    let found = match (state, p99_ms) {
        (State::Overloaded, _) => Found::Overloaded,
        (State::ClientLimited, _) => Found::ClientLimited,
        (_, Some(p99_ms)) if p99_ms <= target_ms => Found::Meets,
        _ => Found::Misses,
    };
    Look { rps, p99_ms, found }
}

/// Max loads that the campaign's loads are shares of, those that are known and then the others; None: its loads are no shares.
///
/// # Errors
/// What the bench reports, and a stop signal; what was found until then is kept.
pub(super) fn all(job: &Job, bench: &mut Bench, keeper: &mut Keeper, progress: &Progress) -> Result<Option<BTreeMap<Loaded, Highest>>> {
    tell_max_loads(&mut keeper.manifest);
    let wanted = job.cases.loads_to_find();
    let cases = &keeper.manifest.cases;
    if wanted.is_empty() || cases.done() == cases.planned {
        return Ok(None);
    }
    // What could not be measured has no load yet that would have to stay.
    let known = keeper.manifest.max_loads.iter().filter(|m| !m.failed);
    let mut found: BTreeMap<Loaded, Highest> = known.map(|m| ((m.service.clone(), m.threads), highest(m))).collect();
    for loaded in wanted {
        if found.contains_key(&loaded) {
            continue;
        }
        let max_load = match bench {
            Bench::Parallel(worker) => {
                let mut worker = worker();
                one(job, &loaded, progress, &mut |case, _| {
                    let mut rows = vec![];
                    let (state, reason) = worker(&case, &mut rows);
                    Ok(Measured { reason, rows, ..Measured::without_rows(case, state, String::new()) })
                })
            }
            Bench::Serial(measure) => one(job, &loaded, progress, &mut **measure),
        }?;
        if let Some(reason) = &max_load.reason {
            tracing::warn!("{reason}");
        }
        keeper.manifest.max_loads.retain(|m| (&m.service, m.threads) != (&loaded.0, loaded.1));
        found.insert(loaded, highest(&max_load));
        keeper.manifest.max_loads.push(max_load);
        tell_max_loads(&mut keeper.manifest);
        keeper.write_manifest()?;
    }
    progress.said();
    Ok(Some(found))
}

/// What was measured is what is known of a service here. A part of a campaign keeps it to itself: hosts that share one differ in it.
fn tell_max_loads(manifest: &mut Manifest) {
    if manifest.part.is_some() {
        return;
    }
    for (name, facts) in &mut manifest.services {
        let found = manifest.max_loads.iter().filter(|m| m.service == *name).filter_map(|m| m.max_load_rps).reduce(f64::max);
        facts.max_load_rps = found.or(facts.max_load_rps);
    }
}

/// What a max load means for the cases that are shares of it.
fn highest(m: &MaxLoad) -> Highest {
    match (m.max_load_rps, m.failed) {
        (Some(rps), _) => Highest::Found { rps, others_frac: m.others_frac },
        (None, true) => Highest::Failed(m.reason.clone().unwrap_or_default()),
        (None, false) => Highest::Never(m.reason.clone().unwrap_or_default()),
    }
}

fn one(job: &Job, loaded: &Loaded, progress: &Progress, measure: &mut Measure<'_>) -> Result<MaxLoad> {
    let (service, threads) = loaded;
    let facts = job.target.services.get(service);
    let target_ms = facts.map_or(f64::INFINITY, |f| f.qos_target_ms);
    let hint = facts.and_then(|f| f.max_load_rps.or_else(|| f.rps_levels.iter().copied().reduce(f64::max)));
    let mut edge = Edge::from(hint.filter(|r| r.is_finite() && *r > 0.0).unwrap_or(FIRST_RPS));
    let all: Case = job.cases.alone_on_all(loaded, edge.first_rps, 0);
    let mut m = MaxLoad {
        service: service.clone(),
        threads: *threads,
        cores: all.cores,
        ways: all.ways,
        max_load_rps: None,
        reason: None,
        failed: false,
        others_frac: 0.0,
        looks: vec![],
    };
    let mut others: Vec<f64> = vec![];
    while let Some(rps) = edge.next() {
        if stop::requested() {
            let out = job.out.display();
            return Err(Error::Failed(format!("{out}: stopped while the max load of {service} was looked for. Go on with --resume")));
        }
        let case = job.cases.alone_on_all(loaded, rps, edge.looks as u32);
        let told = measure(case, &sampling_of(&job.campaign.sampling, rps, edge.is_last(rps)))?;
        if told.state == State::Failed {
            let why = told.reason.unwrap_or_default();
            m.failed = true;
            m.reason = Some(format!("the max load of {service} with {threads} threads cannot be measured: {why}"));
            return Ok(m);
        }
        others.extend(told.others_frac);
        let look = judge(rps, told.state, &told.rows, target_ms);
        progress.say(&format!("max load of {service} with {threads} threads: {}", in_words(&look, target_ms)));
        edge.tell(&look, target_ms);
        m.looks.push(look);
    }
    others.sort_by(f64::total_cmp);
    m.others_frac = others.get(others.len() / 2).copied().unwrap_or(0.0);
    m.max_load_rps = edge.highest();
    if m.max_load_rps.is_none() {
        let lowest = m.looks.last();
        let (rps, saw) =
            lowest.map_or((edge.first_rps, String::new()), |l| (l.rps, l.p99_ms.map_or(String::new(), |p| format!(" (p99 {p:.3} ms)"))));
        m.reason = Some(format!(
            "{service} with {threads} threads has no max load, it misses its QoS target of {target_ms} ms even at {rps} RPS on {} cores{saw}",
            m.cores
        ));
    }
    Ok(m)
}

fn in_words(look: &Look, target_ms: f64) -> String {
    let p99 = look.p99_ms.map_or("no p99".to_string(), |p| format!("p99 {p:.3} ms"));
    let what = match look.found {
        Found::Meets => "meets its target",
        Found::Misses => "misses its target",
        Found::Overloaded => "is more than it completes",
        Found::ClientLimited => "is more than the load generator can send",
    };
    format!("{} RPS {what} ({p99} of {target_ms})", look.rps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::Sending;

    /// Looks at a service with this edge until the search ends; the rates in order, and what was found.
    fn search(first: f64, target_ms: f64, found: impl Fn(f64, usize) -> (Found, Option<f64>)) -> (Vec<f64>, Option<f64>) {
        let mut edge = Edge::from(first);
        let mut rates = vec![];
        while let Some(rps) = edge.next() {
            let (found, p99_ms) = found(rps, rates.len());
            rates.push(rps);
            edge.tell(&Look { rps, p99_ms, found }, target_ms);
        }
        (rates, edge.highest())
    }

    fn edge_at(max: f64) -> impl Fn(f64, usize) -> (Found, Option<f64>) {
        move |rps, _| if rps <= max { (Found::Meets, Some(1.0)) } else { (Found::Overloaded, None) }
    }

    /// Wherever the edge lies, from whatever first guess: what is found meets the target, and a tenth more would not, within the bound.
    #[test]
    fn the_edge_is_found_from_anywhere() {
        for max in [1.0, 1.7, 13.0, 99.0, 4321.0, 77_777.0, 1.2e6] {
            for first in [1.0, 50.0, 1000.0, 30_000.0, 2e6] {
                let (rates, found) = search(first, 10.0, edge_at(max));
                let found = found.unwrap();
                assert!(found <= max && found * NARROW * 1.01 >= max, "{max} from {first}: {found} after {rates:?}");
                assert!(rates.len() <= 30, "{max} from {first}: {rates:?}");
            }
        }
    }

    /// A service that never meets its target is asked down to the least rate, and one without an edge up to the highest.
    #[test]
    fn no_edge_ends_too() {
        let (rates, found) = search(1000.0, 10.0, |_, _| (Found::Misses, Some(50.0)));
        assert_eq!((found, rates.last()), (None, Some(&LEAST_RPS)));
        let (rates, found) = search(1000.0, 10.0, |_, _| (Found::Meets, Some(1.0)));
        assert_eq!((found, rates.last()), (Some(MOST_RPS), Some(&MOST_RPS)));
        let (rates, found) = search(1000.0, 10.0, |_, _| (Found::ClientLimited, None));
        assert!(found.is_none() && rates.len() <= MOST_LOOKS, "{rates:?}");
    }

    /// Two runs that something else spoilt move nothing: a narrow miss is looked at again. A wide one is believed.
    #[test]
    fn a_narrow_miss_is_looked_at_again() {
        let spoilt = |rps: f64, n: usize| if n < 2 { (Found::Misses, Some(11.0)) } else { edge_at(400.0)(rps, n) };
        assert!((350.0..=400.0).contains(&search(300.0, 10.0, spoilt).1.unwrap()));
        let (rates, _) = search(300.0, 10.0, |rps, _| if rps < 200.0 { (Found::Meets, Some(1.0)) } else { (Found::Misses, Some(41.0)) });
        assert_eq!(rates[..2], [300.0, 150.0], "300 RPS once");
    }

    /// The highest rate has to meet the target twice, the second time for long: what a lucky look said is taken back, and the search goes on
    /// below.
    #[test]
    fn luck_is_taken_back() {
        let lucky = |rps: f64, n: usize| if rps == 800.0 && n < 4 { (Found::Meets, Some(1.0)) } else { edge_at(500.0)(rps, n) };
        let (rates, found) = search(400.0, 10.0, lucky);
        assert_eq!(rates[..2], [400.0, 800.0]);
        assert!(rates.iter().filter(|r| **r == 800.0).count() >= 2 && (450.0..=500.0).contains(&found.unwrap()), "{rates:?}");
        let (rates, _) = search(400.0, 10.0, edge_at(500.0));
        assert_eq!(rates.iter().filter(|r| Some(**r) == rates.last().copied()).count(), 2, "it ends with a second look: {rates:?}");
        // A service that meets its target by luck only has none.
        let (rates, found) = search(4.0, 10.0, |rps, n| if n == 0 { (Found::Meets, Some(1.0)) } else { (Found::Overloaded, Some(rps)) });
        assert_eq!((found, rates.last()), (None, Some(&LEAST_RPS)));
    }

    /// A look is as long as its rate needs, within bounds: 500 requests at 100 RPS are 5 s of 10 samples; at 5 RPS 20 s are the most. The last
    /// is four times as long.
    #[test]
    fn looks_are_as_long_as_needed() {
        let campaign = Sampling { warmup_ms: 300, interval_ms: 500, samples: 99, repeats: 7 };
        let samples = |rps: f64, last: bool| sampling_of(&campaign, rps, last).samples;
        assert_eq!((samples(100.0, false), samples(5.0, false), samples(1e6, false)), (10, 40, 2));
        assert_eq!((samples(100.0, true), samples(5.0, true), samples(1e6, true)), (40, 40, 8));
        assert_eq!(sampling_of(&campaign, 100.0, false), Sampling { samples: 10, repeats: 1, ..campaign });
    }

    /// Rows are judged as they are: valid ones first, else those of too few requests, and without an answer the target is missed.
    #[test]
    fn what_a_look_says() {
        let row = |p99_ms: Option<f64>, verdict: Verdict| Row {
            t_ms: 1,
            features: [None; 13],
            mean_ms: None,
            p50_ms: None,
            p95_ms: None,
            p99_ms,
            p99_low_ms: None,
            p99_high_ms: None,
            achieved_rps: None,
            errors: 0,
            count: 1,
            verdict,
            sending: Sending::OPEN,
            memory: Default::default(),
        };
        let (valid, few) = (Verdict::Valid, Verdict::NotResolvable);
        let found = |state, rows: &[Row]| judge(5.0, state, rows, 10.0).found;
        assert_eq!(found(State::Measured, &[row(Some(9.0), valid), row(Some(90.0), few)]), Found::Meets);
        assert_eq!(found(State::Measured, &[row(Some(11.0), valid), row(Some(1.0), few)]), Found::Misses);
        assert_eq!(found(State::Measured, &[row(Some(9.0), few)]), Found::Meets);
        assert_eq!((found(State::Measured, &[]), found(State::Measured, &[row(None, few)])), (Found::Misses, Found::Misses));
        assert_eq!(found(State::Overloaded, &[row(Some(1.0), valid)]), Found::Overloaded);
        assert_eq!(found(State::ClientLimited, &[row(Some(1.0), valid)]), Found::ClientLimited);
    }
}
