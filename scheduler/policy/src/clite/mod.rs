//! CLITE: Bayesian optimisation over whole partitions (Patel and Tiwari, HPCA 2020).
//!
//! A partition gives every LC service, and the BE jobs as one, cores, ways and memory bandwidth. Each is tried for a sampling
//! period (2 s in the OSML+ paper, Sec. 4.3) and gets a [`score`](score::score). A search begins with the equal partition and each
//! holder's extreme; then a Gaussian process over all samples says where the expected improvement is largest. Where it is below a
//! threshold the best partition is held, until services come or go, the load changes or a target is missed.
//!
//! Where the papers are silent, or we decide:
//! * **p99 of a sample** is that of the second half of its period where that has the 100 requests of a p99; else of the whole period,
//!   where that has 20 (a slow service's p99 is rough then, but of this partition); else of the window by which QoS is judged. A queue
//!   left by the partition before spoils a sample, as it does in the paper;
//! * **normalised performance** is relative to the best of all samples: at first that is the holder's extreme, which the paper takes;
//! * **dropout-copy**: in each iteration the LC service that does best, by its target up to QoS 1, keeps the part with which it did (the paper, Sec. 4).
//!   Of equals the sample with the best score counts, and of those services one by chance; from three holders on, for of two one is what the
//!   other leaves;
//! * **stop**: at an expected improvement below 1 % of the scale for each holder (the paper: 1 %, scaled with the jobs, since the curve falls more slowly
//!   with more of them), but not before some sample has met every target. The code that the OSML+ paper ran stops early, and loses by it
//!   (Sec. 4.3): this one is stronger. After 60 samples the best is held anyhow;
//! * **from four services on** it is weaker than published (docs/studies/2026-11-29-rivals-as-published.md): each holder's extreme starves all others for
//!   2 s, and their queues spoil the samples that follow. The authors' script starts every service anew for each sample, so that no queue outlives one;
//! * **bandwidth** is a cap (MBA) on each holder, ten levels; caps need not add up to 100 %;
//! * **a held partition that misses a target** in two periods in a row: if requests say that the load has grown the search starts
//!   anew; if not, what was measured replaces its sample and the search goes on. A load that falls starts it anew, too;
//! * **no ejection**: the paper gives a service up that its extreme does not satisfy. Here nobody is sent away; a search that ends
//!   without a partition that meets all reports every service that its best one leaves short;
//! * **a silent service** keeps what it has, and as long as it is silent nothing is sampled: a score without its p99 is none.

mod partition;
mod score;
mod surrogate;

use crate::books::Amount;
use crate::policy::ask_for;
use crate::Policy;
use partition::{Part, Partition, Space};
use std::collections::{BTreeMap, VecDeque};
use surefoot_learn::rng::Rng;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::window::{merge, MIN_COUNT_P99};
use surefoot_server::{
    Action, ActionKind, Allocation, Because, Change, HoldsIf, Latency, Observation, Plan, Platform, Report, ServiceId, ServiceView,
};
use surrogate::{expected_improvement, Surrogate};

/// Parameters; see the module for those that papers do not give.
#[derive(Clone, Debug)]
pub struct CliteSettings {
    pub name: &'static str,
    /// How long each partition is tried (OSML+ paper, Sec. 4.3: 2 s).
    pub period_ms: u64,
    /// An improvement of the score below this is none (the xi of expected improvement).
    pub margin: f64,
    /// The search ends below this expected improvement, times the number of holders.
    pub stop: f64,
    /// Samples of one search.
    pub most_samples: usize,
    /// Requests of a period that differ by more than this share (and by more than chance) are another load.
    pub load_change: f64,
    /// Requests below which a period says nothing of its own p99.
    pub least_requests: u64,
    /// Periods in a row that end the holding of a partition.
    pub patience: u32,
    /// After a search without success the next one begins so much later.
    pub retry_ms: u64,
}

impl Default for CliteSettings {
    fn default() -> Self {
        CliteSettings {
            name: "clite",
            period_ms: 2000,
            margin: 0.01,
            stop: 0.01,
            most_samples: 60,
            load_change: 0.2,
            least_requests: 20,
            patience: 2,
            retry_ms: 30_000,
        }
    }
}

impl CliteSettings {
    /// A sample every 100 ms. Most p99 are then of the last second, ten partitions ago to now: what is judged is a mixture.
    pub fn every_100_ms() -> Self {
        CliteSettings { name: "clite-100ms", period_ms: 100, least_requests: MIN_COUNT_P99, patience: 10, ..CliteSettings::default() }
    }
}

/// Candidates drawn at random and near the best sample; of the best of them rounds of neighbours.
const RANDOM: usize = 256;
const NEAR: usize = 128;
const ROUNDS: usize = 4;
const NEAR_IN_ROUND: usize = 48;

/// One partition as it was seen.
#[derive(Clone, Debug)]
struct Sample {
    partition: Partition,
    point: Vec<f64>,
    /// p99 of each LC service, ms; None: nothing was asked of it.
    p99_ms: Vec<Option<f64>>,
    qos: Vec<f64>,
    /// Work of each BE job, instructions/s or what stands for it.
    work: Vec<f64>,
    /// Requests of each LC service in the period.
    requests: Vec<u64>,
}

impl Sample {
    fn met(&self) -> bool {
        self.qos.iter().all(|q| *q >= 1.0)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Sampling,
    /// Since when, periods with a target missed and with another load, requests of a period at first.
    Holding {
        since_ms: u64,
        missed: u32,
        changed: u32,
        requests: Option<Vec<u64>>,
    },
}

/// The policy.
pub struct Clite {
    set: CliteSettings,
    platform: Platform,
    rng: Rng,
    lc: Vec<ServiceId>,
    be: Vec<ServiceId>,
    space: Option<Space>,
    phase: Phase,
    /// Bootstrap partitions still to be tried.
    ahead: VecDeque<Partition>,
    samples: Vec<Sample>,
    current: Partition,
    since_ms: u64,
    /// Intervals of each LC service since then.
    recent: BTreeMap<ServiceId, Vec<Latency>>,
    /// Sum of each BE job's work since then, and ticks.
    work: (Vec<f64>, u32),
    wanted: BTreeMap<ServiceId, Change>,
    reported: bool,
}

impl Clite {
    pub fn new(platform: &Platform, settings: CliteSettings, seed: u64) -> Self {
        Clite {
            set: settings,
            platform: platform.clone(),
            rng: Rng::new(seed ^ 0x00c1_17e0),
            lc: vec![],
            be: vec![],
            space: None,
            phase: Phase::Sampling,
            ahead: VecDeque::new(),
            samples: vec![],
            current: vec![],
            since_ms: 0,
            recent: BTreeMap::new(),
            work: (vec![], 0),
            wanted: BTreeMap::new(),
            reported: false,
        }
    }

    /// A new mix, or a new load: forget everything, begin with the equal partition.
    fn begin(&mut self, now_ms: u64, seen: &Observation, why: &str, plan: &mut Plan) {
        let lc: Vec<ServiceId> = seen.lc().map(|s| s.id.clone()).collect();
        let be: Vec<ServiceId> = seen.be().map(|s| s.id.clone()).collect();
        let space = Space::new(&self.platform, lc.len(), be.len());
        let silent = seen.lc().any(|s| s.placed && s.latency_unknown());
        let first = match &space {
            Some(space) => {
                let kept: Option<Vec<Option<Part>>> = seen.lc().map(|s| self.kept(s)).collect();
                let be_too = |mut k: Vec<Option<Part>>| {
                    k.resize(space.holders(), None);
                    k
                };
                match kept.and_then(|k| space.equal_beside(&be_too(k))) {
                    Some(first) => first,
                    // Not beside what a silent service holds. Ask again when it speaks.
                    None => return self.cannot_place(&lc, "a service of unknown latency holds what is needed", plan),
                }
            }
            None if lc.is_empty() && be.is_empty() => vec![],
            None if silent => return self.cannot_place(&lc, "too many services, and the latency of one is unknown", plan),
            None => {
                self.cannot_place(&lc, "not everybody can have a core unit and the least ways: everything is shared", plan);
                vec![]
            }
        };
        let mix_changed = lc != self.lc || be != self.be;
        (self.lc, self.be) = (lc, be);
        self.samples.clear();
        self.phase = Phase::Sampling;
        self.ahead = space.as_ref().map_or_else(VecDeque::new, |s| s.bootstrap().into_iter().skip(1).collect());
        self.space = space;
        if self.space.is_some() {
            self.reported = false;
        }
        if mix_changed {
            self.current.clear();
        }
        self.put(
            now_ms,
            first,
            seen,
            Step { why, said: vec![], bound: "the first sample is the equal partition", kind: Some(ActionKind::Place) },
            plan,
        );
    }

    /// What a silent service keeps; None (outside) where that is not its own alone.
    fn kept(&self, s: &ServiceView) -> Option<Option<Part>> {
        if !s.placed || !s.latency_unknown() {
            return Some(None);
        }
        let a = &s.allocation;
        let alone = a.shared_cpus.is_empty() && a.shared_ways.iter().all(|m| *m == 0) || self.platform.by_quota();
        let own = Amount::new(self.platform.units(a.cores()), a.n_ways().round() as u32);
        alone.then_some(Some(Part { own, mba_pct: a.mba_pct }))
    }

    fn cannot_place(&mut self, lc: &[ServiceId], why: &str, plan: &mut Plan) {
        if let Some(id) = lc.last().filter(|_| !self.reported) {
            self.reported = true;
            plan.reports.push(Report::CannotPlace { service: id.clone(), why: why.into() });
        }
    }

    /// Put a partition in force, and note for whom that is a change.
    fn put(&mut self, now_ms: u64, next: Partition, seen: &Observation, step: Step, plan: &mut Plan) {
        for (i, part) in next.iter().enumerate() {
            let before = self.current.get(i).copied();
            if before == Some(*part) {
                continue;
            }
            let kind = step.kind.unwrap_or_else(|| change(before, *part));
            let members = self.lc.get(i).map_or(self.be.as_slice(), std::slice::from_ref);
            for s in members.iter().filter_map(|id| seen.get(id)) {
                let mut because = Because::seen(s);
                if s.is_lc() {
                    // A sample is a question; what would be a good answer is this.
                    because = because.expect(if kind == ActionKind::Grow { HoldsIf::P99Falls } else { HoldsIf::Qos { at_least: 1.0 } });
                }
                for (what, value) in &step.said {
                    because.say("Gaussian process", *what, *value, "");
                }
                because.bind(step.bound);
                let why =
                    format!("{}: {} core units, {} ways, memory bandwidth {} %", step.why, part.own.cores, part.own.ways, part.mba_pct);
                plan.actions.push(Action { service: s.id.clone(), kind, why, because });
            }
        }
        self.current = next;
        self.since_ms = now_ms;
        self.recent.clear();
        self.work = (vec![0.0; self.be.len()], 0);
        let mut holdings: Vec<Holding> = vec![];
        for (i, part) in self.current.iter().enumerate() {
            let members = self.lc.get(i).map_or_else(|| self.be.clone(), |id| vec![id.clone()]);
            holdings.push(Holding { members, cores: part.own.cores, ways: part.own.ways, mba_pct: part.mba_pct });
        }
        let wanted = if holdings.is_empty() {
            self.lc.iter().chain(&self.be).map(|id| (id.clone(), Allocation::everything(&self.platform))).collect()
        } else {
            let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
            match pack(&self.platform, &in_force, &holdings, &[]) {
                Ok(all) => all,
                Err(why) => {
                    plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why });
                    BTreeMap::new()
                }
            }
        };
        self.wanted = Plan::cores_and_ways(wanted).changes;
    }

    /// What the partition in force has shown.
    fn measure(&self, seen: &Observation) -> Option<Sample> {
        let space = self.space.as_ref()?;
        let views: Vec<&ServiceView> = self.lc.iter().filter_map(|id| seen.get(id)).collect();
        let p99 = |s: &&ServiceView| {
            let recent = self.recent.get(&s.id).map_or(&[][..], Vec::as_slice);
            let half = &recent[recent.len() / 2..];
            let of = |l: &[Latency], least: u64| merge(l, 100.0).filter(|l| l.count >= least);
            let own = of(half, MIN_COUNT_P99).or_else(|| of(recent, self.set.least_requests));
            own.or(s.window).map(|l| l.p99_ms)
        };
        let p99_ms: Vec<Option<f64>> = views.iter().map(p99).collect();
        let qos = views.iter().zip(&p99_ms).map(|(s, p99)| p99.map_or(1.0, |p| s.qos_target_ms().unwrap_or(0.0) / p.max(1e-9))).collect();
        let work = self.work.0.iter().map(|w| w / f64::from(self.work.1.max(1))).collect();
        let requests = |s: &&ServiceView| self.recent.get(&s.id).map_or(0, |r| r.iter().map(|l| l.count).sum());
        let requests = views.iter().map(requests).collect();
        Some(Sample { partition: self.current.clone(), point: space.point(&self.current), p99_ms, qos, work, requests })
    }

    /// Scores of all samples, each relative to the best performance that any of them showed.
    fn scores(&self) -> Vec<f64> {
        let best_work: Vec<f64> = (0..self.be.len()).map(|i| self.samples.iter().map(|s| s.work[i]).fold(0.0, f64::max)).collect();
        let p99s = |i: usize| self.samples.iter().filter_map(move |s| s.p99_ms[i]);
        let best_p99: Vec<f64> = (0..self.lc.len()).map(|i| p99s(i).fold(f64::INFINITY, f64::min)).collect();
        let worth = |s: &Sample| -> Vec<f64> {
            if self.be.is_empty() {
                s.p99_ms.iter().zip(&best_p99).filter_map(|(p, best)| p.map(|p| best / p.max(1e-9))).collect()
            } else {
                s.work.iter().zip(&best_work).map(|(w, best)| if *best > 0.0 { w / best } else { 1.0 }).collect()
            }
        };
        self.samples.iter().map(|s| score::score(&s.qos, &worth(s))).collect()
    }

    /// After a period: what it showed, and what to try next.
    fn next(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let Some(sample) = self.measure(seen) else { return };
        let Phase::Holding { since_ms, mut missed, mut changed, requests } = self.phase.clone() else {
            self.samples.push(sample);
            return self.sample_next(now_ms, seen, plan);
        };
        let differ = requests.as_ref().is_some_and(|before| self.differ(before, &sample.requests));
        changed = if differ { changed + 1 } else { 0 };
        missed = if sample.met() { 0 } else { missed + 1 };
        // The first period after the target is met may still have served a queue.
        let requests = requests.or_else(|| (sample.met() && now_ms >= since_ms + 2 * self.set.period_ms).then(|| sample.requests.clone()));
        self.phase = Phase::Holding { since_ms, missed, changed, requests };
        let exhausted = self.samples.len() >= self.set.most_samples;
        if changed >= self.set.patience {
            self.begin(now_ms, seen, "the load has changed, the search starts anew", plan);
        } else if missed >= self.set.patience && exhausted {
            if now_ms >= since_ms + self.set.retry_ms {
                self.begin(now_ms, seen, "nothing found before, the search starts anew", plan);
            }
        } else if missed >= self.set.patience {
            self.samples.retain(|s| s.partition != sample.partition);
            self.samples.push(sample);
            self.phase = Phase::Sampling;
            return self.sample_next(now_ms, seen, plan);
        }
        if self.since_ms != now_ms {
            // Another period of the same.
            self.since_ms = now_ms;
            self.recent.clear();
            self.work = (vec![0.0; self.be.len()], 0);
        }
    }

    /// Whether some service had more or fewer requests than chance explains.
    fn differ(&self, before: &[u64], now: &[u64]) -> bool {
        before.iter().zip(now).any(|(b, n)| {
            let (b, n) = (*b as f64, *n as f64);
            (n - b).abs() > (self.set.load_change * b).max(4.0 * b.max(1.0).sqrt())
        })
    }

    fn sample_next(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let Some(space) = self.space.clone() else { return };
        if let Some(next) = self.ahead.pop_front() {
            let step =
                Step { why: "one holder's extreme", said: vec![], bound: "the first samples are given", kind: Some(ActionKind::Place) };
            return self.put(now_ms, next, seen, step, plan);
        }
        let scores = self.scores();
        let Some((best, top)) = scores.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        let found = self.samples[best].met();
        if self.samples.len() >= self.set.most_samples || space.holders() == 1 {
            return self.hold(now_ms, best, (top, 0.0), seen, plan);
        }
        let points: Vec<Vec<f64>> = self.samples.iter().map(|s| s.point.clone()).collect();
        let Some(surrogate) = Surrogate::fit(&points, &scores) else { return };
        let (next, predicted, gain) = self.most_promising(&space, &surrogate, &scores, (best, top));
        if found && gain < self.set.stop * space.holders() as f64 {
            return self.hold(now_ms, best, (top, gain), seen, plan);
        }
        let said = vec![
            ("expected improvement of the score", gain),
            ("score of the sample", predicted),
            ("best score so far", top),
            ("length scale", surrogate.length_scale),
        ];
        let step = Step { why: "the largest expected improvement", said, bound: "one partition a sampling period", kind: None };
        self.put(now_ms, next, seen, step, plan);
    }

    /// Dropout-copy: an LC service that does best, and the sample in which it does.
    fn dropout(&mut self, space: &Space, scores: &[f64]) -> Option<(usize, usize)> {
        if space.holders() < 3 {
            return None;
        }
        let capped = |sample: usize, holder: usize| self.samples[sample].qos[holder].min(1.0);
        let key = |sample: usize, holder: usize| (capped(sample, holder), scores[sample]);
        let all = || (0..self.samples.len()).flat_map(|s| (0..self.lc.len()).map(move |h| (s, h)));
        let best = all().map(|(s, h)| key(s, h)).max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))?;
        let equals: Vec<(usize, usize)> = all().filter(|(s, h)| key(*s, *h) == best).collect();
        let (sample, holder) = equals[self.rng.below(equals.len())];
        Some((holder, sample))
    }

    /// The partition with the largest expected improvement that a search finds: it, its expected score, the improvement.
    fn most_promising(&mut self, space: &Space, surrogate: &Surrogate, scores: &[f64], (best, top): (usize, f64)) -> (Partition, f64, f64) {
        let dropped = self.dropout(space, scores);
        let best = self.samples[dropped.map_or(best, |(_, sample)| sample)].partition.clone();
        let dropped = dropped.map(|(holder, _)| holder);
        let kept = dropped.map(|i| (i, best[i]));
        let mut candidates: Vec<Partition> = (0..RANDOM).map(|_| space.random(&mut self.rng, kept)).collect();
        candidates.extend((0..NEAR).map(|n| space.near(&mut self.rng, &best, 1 + n % 6, dropped)));
        let mut leader: Option<(Partition, f64, f64)> = None;
        for _ in 0..=ROUNDS {
            let points: Vec<Vec<f64>> = candidates.iter().map(|c| space.point(c)).collect();
            for (c, said) in candidates.drain(..).zip(surrogate.predict(&points)) {
                let gain = expected_improvement(said, top, self.set.margin);
                if leader.as_ref().is_none_or(|l| gain > l.2) {
                    leader = Some((c, said.0, gain));
                }
            }
            if let Some(l) = &leader {
                candidates = (0..NEAR_IN_ROUND).map(|n| space.near(&mut self.rng, &l.0, 1 + n % 3, dropped)).collect();
            }
        }
        leader.unwrap_or((best, top, 0.0))
    }

    fn hold(&mut self, now_ms: u64, best: usize, (top, gain): (f64, f64), seen: &Observation, plan: &mut Plan) {
        let sample = &self.samples[best];
        let tried = self.samples.len();
        for (service, qos) in self.lc.iter().zip(&sample.qos).filter(|(_, qos)| **qos < 1.0) {
            let why = format!("QoS {qos:.2} on the best of {tried} partitions tried, whose score is {top:.2}");
            plan.reports.push(Report::Migrate { service: service.clone(), why });
        }
        let next = sample.partition.clone();
        self.phase = Phase::Holding { since_ms: now_ms, missed: 0, changed: 0, requests: None };
        let said = vec![("expected improvement of the score", gain), ("best score so far", top)];
        self.put(now_ms, next, seen, Step { why: "the best partition is held", said, bound: "the search has ended", kind: None }, plan);
    }

    /// Somebody is silent: no sample. The best partition known is better than one on trial, where it gives the silent no less.
    fn shelter(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let silent: Vec<usize> = (0..self.lc.len()).filter(|i| seen.get(&self.lc[*i]).is_some_and(ServiceView::latency_unknown)).collect();
        let no_less = |s: &Sample| {
            silent.iter().all(|i| {
                let (now, then) = (self.current[*i], s.partition[*i]);
                now.own.fits_in(then.own) && now.mba_pct <= then.mba_pct
            })
        };
        let scores = self.scores();
        let best = (0..self.samples.len()).filter(|i| no_less(&self.samples[*i])).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        match best.map(|i| self.samples[i].partition.clone()) {
            Some(next) if next != self.current => {
                let step = Step {
                    why: "a latency is unknown, nothing is tried",
                    said: vec![],
                    bound: "who is silent keeps what it has",
                    kind: None,
                };
                self.put(now_ms, next, seen, step, plan);
            }
            _ => self.since_ms = now_ms,
        }
    }

    fn collect(&mut self, seen: &Observation) {
        for s in seen.lc() {
            let Some(l) = s.interval else { continue };
            let recent = self.recent.entry(s.id.clone()).or_default();
            recent.push(l);
            // While nothing is decided (a silence) only the last period counts.
            let surplus = recent.len().saturating_sub((self.set.period_ms / 100).max(1) as usize);
            recent.drain(..surplus);
        }
        for (sum, id) in self.work.0.iter_mut().zip(&self.be) {
            *sum += seen.get(id).map_or(0.0, work);
        }
        self.work.1 += 1;
    }
}

/// What is said of a new partition.
struct Step<'a> {
    why: &'a str,
    said: Vec<(&'static str, f64)>,
    bound: &'static str,
    /// None: by whether the part grows or shrinks.
    kind: Option<ActionKind>,
}

fn change(before: Option<Part>, now: Part) -> ActionKind {
    let Some(b) = before else { return ActionKind::Place };
    let key = |p: Part| (p.own.cores, p.own.ways, p.mba_pct);
    if key(now) >= key(b) {
        ActionKind::Grow
    } else {
        ActionKind::Shrink
    }
}

/// Work of a BE job now: instructions/s, or instructions per cycle times busy cores, or the cores that it holds.
fn work(s: &ServiceView) -> f64 {
    let by_counters = || Some(s.features.ipc? * s.features.cpu_usage_cores?);
    s.instr_per_s.or_else(by_counters).unwrap_or_else(|| s.allocation.cores())
}

impl Policy for Clite {
    fn name(&self) -> &str {
        self.set.name
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let same = |ids: &[ServiceId], now: &mut dyn Iterator<Item = &ServiceView>| now.map(|s| &s.id).eq(ids);
        if !same(&self.lc, &mut seen.lc()) || !same(&self.be, &mut seen.be()) {
            self.begin(now_ms, seen, "services have come or gone, the search starts anew", &mut plan);
        } else if self.space.is_some() {
            self.collect(seen);
            if now_ms >= self.since_ms + self.set.period_ms {
                if seen.lc().any(ServiceView::latency_unknown) {
                    self.shelter(now_ms, seen, &mut plan);
                } else {
                    self.next(now_ms, seen, &mut plan);
                }
            }
        }
        // What a guard put off is asked for again.
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
