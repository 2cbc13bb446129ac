//! From a campaign and a platform to numbered cases.
//!
//! A plane is one (service, RPS, threads, neighbours); its cells are memory x pool x cores x ways x MBA x repeat. Cases are numbered
//! plane by plane and are computed from their number, so a campaign of any size needs no memory. Neighbours belong to
//! the plane: its cells differ in the allocation of the service only, and a cell that they leave no room for is
//! infeasible. Everything random comes from (campaign seed, plane or case key). Whoever goes through many cases takes a
//! [`Walk`], which works out a plane once.

use crate::base::error::{suggest, Error, Result};
use crate::base::part::Part;
use crate::stage::target::{LcService, Target};
use crate::sweep::campaign::{Axis, Campaign, Draw, Values};
use crate::sweep::limits::{round6, said, whole_pages, Amount};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use surefoot_linux::local::MOST_THREADS;
use surefoot_server::{Quantity, Resource};

/// Share of the cores and ways that neighbours hold together at most.
const NEIGHBOUR_SHARE: f64 = 0.75;

/// Limits on the memory of the measured service that a case asks for; None: no limit is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAsked {
    pub limit_bytes: Option<u64>,
    /// Of the limit, what may hold compressed pages.
    pub pool_bytes: Option<u64>,
}

/// One point of the sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    pub index: u64,
    /// 16 hex digits: hash of the canonical key.
    pub case_id: String,
    pub seed: u64,
    pub service: String,
    /// No number while it is unknown: the max load that it is a share of has not been measured.
    pub rps: f64,
    /// Per cent of the max load that was measured here; None: the campaign says the rate itself.
    pub load_pct: Option<f64>,
    pub threads: u32,
    pub cores: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    pub mba_pct: u8,
    pub memory: MemoryAsked,
    pub neighbours: Vec<Neighbour>,
    pub repeat: u32,
    /// Why this case cannot be set up at all; it is then not measured.
    pub infeasible: Option<String>,
    /// Why its load is not known although it should be: it fails.
    pub unloaded: Option<String>,
    /// Share of the CPU time left over that others took while its max load was measured: what this host is like.
    pub others_frac: f64,
}

/// The load of a service, as a campaign names it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    Rps(f64),
    /// Of the max load that is measured on the target.
    Pct(f64),
}

impl std::fmt::Display for Load {
    /// As case keys have it.
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Load::Rps(rps) => write!(f, "{rps}"),
            Load::Pct(pct) => write!(f, "{pct}%"),
        }
    }
}

/// A service with so many threads, whose max load is to be measured.
pub type Loaded = (String, u32);

/// What came of measuring a max load.
#[derive(Clone, Debug, PartialEq)]
pub enum Highest {
    /// Requests per second, and the share of the CPU time left over that others took.
    Found { rps: f64, others_frac: f64 },
    /// It never meets its target; why, for its cases.
    Never(String),
    /// It could not be measured.
    Failed(String),
}

/// A service beside the measured one.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    pub service: String,
    pub cores: f64,
    pub ways: u32,
    pub rps: f64,
}

impl Neighbour {
    /// One thread per core held, at least one.
    pub fn threads(&self) -> u32 {
        threads_for(self.cores)
    }
}

/// RPS of a service at so many per cent of its max load here; None if that is not known.
fn of_max_load(service: &LcService, per_cent: &[f64]) -> Option<Vec<f64>> {
    let most = service.max_load_rps?;
    Some(per_cent.iter().map(|x| round6(most * x / 100.0)).collect())
}

/// Threads for `threads = "cores"`: one per (begun) core.
pub fn threads_for(cores: f64) -> u32 {
    (cores - 1e-9).ceil().max(1.0) as u32
}

#[derive(Clone, Debug)]
enum Threads {
    AsCores,
    Counts(Vec<u32>),
}

/// Why a load has no rate, see [`Highest`].
enum Unknown<'a> {
    Never(&'a str),
    Failed(&'a str),
}

/// All cases of a campaign on one target, or a part of them.
#[derive(Clone, Debug)]
pub struct Expansion {
    campaign: String,
    seed: u64,
    target: Target,
    /// Service and its levels of load.
    services: Vec<(String, Vec<Load>)>,
    /// Every service that can be a neighbour, and the load that it may have then.
    beside: BTreeMap<String, Vec<Load>>,
    /// Max loads that were measured, where loads are shares of them.
    highest: BTreeMap<Loaded, Highest>,
    threads: Threads,
    /// Services whose threads are not the sweep's to choose.
    fixed_threads: BTreeMap<String, u32>,
    cores: Vec<f64>,
    ways: Vec<u32>,
    mba_pct: Vec<u8>,
    /// Limits on memory and pools, as case keys have them.
    memory: Vec<(Amount, Amount)>,
    /// What these are for each of the services.
    asked: Vec<Vec<MemoryAsked>>,
    /// (count, draw).
    neighbours: Vec<(u32, u32)>,
    repeats: u32,
    part: Option<Part>,
    first_plane: u64,
    first_draw: u64,
    /// Which cells, in which order; None: all, in theirs.
    drawn: Option<Shuffle>,
    len: u64,
}

/// A plane as a search sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaneShape {
    pub service: String,
    pub qos_target_ms: f64,
    /// None: as many as cores.
    pub threads: Option<u32>,
    /// What the neighbours leave room for: values with their place on the axis, ascending.
    pub cores: Vec<(f64, usize)>,
    pub ways: Vec<(u32, usize)>,
    /// Why there is no room at all.
    pub infeasible: Option<String>,
}

impl Expansion {
    /// Resolve the axes on a platform and check them.
    ///
    /// # Errors
    /// [`crate::base::error::Error::BadInput`] names file, line, field and remedy.
    pub fn new(c: &Campaign, target: &Target) -> Result<Self> {
        let p = &target.platform;
        let names: Vec<String> = match &c.sweep.services {
            None => target.services.keys().cloned().collect(),
            Some(l) => l.clone(),
        };
        no_twice(c, "sweep.services", &names)?;
        let per_cent = c.sweep.rps.per_cent().map_err(|e| c.wrong("sweep.rps", e))?;
        let saturation = c.sweep.rps.saturation().map_err(|e| c.wrong("sweep.rps", e))?;
        let of_measured = saturation.map(|l| l.into_iter().map(Load::Pct).collect::<Vec<_>>());
        let mut services = vec![];
        for name in names {
            let Some(s) = target.services.get(&name) else {
                let hint = if target.jobs.contains(&name) {
                    "It is a BE job; a sweep measures LC services".to_string()
                } else {
                    let add = match (target.is_virtual(), c.services.is_empty()) {
                        (true, _) => "add a profile with --profiles",
                        (false, true) => "add a folder to workloads/ (docs/catalogue.md)",
                        (false, false) => "add a [[service]] to the campaign",
                    };
                    format!("{} Mend the name, or {add}", suggest(&name, target.services.keys().map(String::as_str)))
                };
                return Err(c.wrong("sweep.services", format!("unknown service \"{name}\". {hint}")));
            };
            if let Some(loads) = &of_measured {
                services.push((name, loads.clone()));
                continue;
            }
            let rps = match (&c.sweep.rps, &per_cent) {
                (_, Some(shares)) => {
                    let none = || {
                        let or = match (target.is_virtual(), c.services.is_empty()) {
                            (true, _) => String::new(),
                            (false, true) => format!(", add max_load_rps to workloads/{name}/workload.toml"),
                            (false, false) => ", add max_load_rps to its [[service]]".into(),
                        };
                        c.wrong(
                            "sweep.rps",
                            format!("no max load of \"{name}\" on {} is known. Give RPS{or}, or leave that service out", p.name),
                        )
                    };
                    of_max_load(s, shares).ok_or_else(none)?
                }
                (Axis::Text(t), None) if t == "catalogue" => s.rps_levels.clone(),
                (Axis::Text(_), None) => numbers(c, "sweep.rps", &c.sweep.rps, 1.0, &["catalogue"])?,
                (Axis::List(l), None) => l.clone(),
            };
            if rps.is_empty() {
                let whose = if c.services.is_empty() { "the catalogue has" } else { "neither its [[service]] nor the catalogue has" };
                return Err(c.wrong("sweep.rps", format!("{whose} no RPS levels for \"{name}\". Give a list of RPS")));
            }
            if let Some(x) = rps.iter().find(|x| !(**x > 0.0 && x.is_finite())) {
                return Err(c.wrong("sweep.rps", format!("{x} is not above 0. Give requests per second above 0")));
            }
            no_twice(c, "sweep.rps", &rps)?;
            services.push((name, rps.into_iter().map(Load::Rps).collect()));
        }
        if services.is_empty() {
            return Err(c.wrong(
                "sweep.services",
                if target.is_virtual() {
                    "no LC service is known on this target. Add profiles with --profiles"
                } else {
                    "no LC service is in the catalogue. Add a folder to workloads/ (docs/catalogue.md)"
                },
            ));
        }

        let have = f64::from(p.managed.len());
        let step = p.core_step;
        let cores = match axis(c, "sweep.cores", &c.sweep.cores, step, &["all"])? {
            Values::Word(_) => (1..=p.core_units()).map(|u| p.cores(u)).collect(),
            Values::Numbers(l) => l,
        };
        for x in &cores {
            if *x < step - 1e-9 {
                return Err(c.wrong("sweep.cores", format!("{x} is less than the {step} cores that a service needs. Start at {step}")));
            }
            if *x > have + 1e-9 {
                let why = if target.is_virtual() {
                    ""
                } else {
                    " (all CPUs but the last, which is the load generator's, unless --cpus says otherwise)"
                };
                let what = format!("{x} goes beyond the {have} cores of {}{why}. Use {step} to {have}, or \"all\"", p.name);
                return Err(c.wrong("sweep.cores", what));
            }
            if (p.cores(p.units(*x)) - x).abs() > 1e-6 {
                return Err(c.wrong("sweep.cores", format!("{x} is no multiple of {step}, the core step of {}. Use multiples", p.name)));
            }
        }
        no_twice(c, "sweep.cores", &cores)?;

        let bounds = |resource| (Quantity::of_resource(resource).bounds)(p);
        let ways: Vec<u32> = match (axis(c, "sweep.ways", &c.sweep.ways, 1.0, &["all"])?, bounds(Resource::Llc)) {
            (Values::Word(_), None) => vec![0],
            (Values::Word(_), Some(b)) => (b.least as u32..=b.most as u32).collect(),
            (Values::Numbers(l), None) => {
                if l != [0.0] {
                    let what = format!("{} cannot partition its LLC. Leave ways out (null in the samples)", p.name);
                    return Err(c.wrong("sweep.ways", what));
                }
                vec![0]
            }
            (Values::Numbers(l), Some(b)) => {
                let l = whole(c, "sweep.ways", &l)?;
                if let Some(w) = l.iter().find(|w| !b.take(f64::from(**w))) {
                    let what = format!("{w} is outside the {} to {} ways of {}. Use that range, or \"all\"", b.least, b.most, p.name);
                    return Err(c.wrong("sweep.ways", what));
                }
                l
            }
        };
        no_twice(c, "sweep.ways", &ways)?;

        let threads = match axis(c, "sweep.threads", &c.sweep.threads, 1.0, &["cores"])? {
            Values::Word(_) => Threads::AsCores,
            Values::Numbers(l) => Threads::Counts(whole(c, "sweep.threads", &l)?),
        };
        if let Threads::Counts(l) = &threads {
            // Of this machine: what a service is started with.
            let most = if target.is_virtual() { 4096 } else { MOST_THREADS };
            if let Some(t) = l.iter().find(|t| !(1..=most).contains(*t)) {
                return Err(c.wrong("sweep.threads", format!("{t} is out of range. Give 1 to {most}")));
            }
            no_twice(c, "sweep.threads", l)?;
        }
        let mut fixed_threads = BTreeMap::new();
        for (name, _) in &services {
            fixed_threads.extend(c.fixed_threads(name)?.map(|t| (name.clone(), t)));
        }

        let mba_pct = whole(c, "sweep.mba_pct", &numbers(c, "sweep.mba_pct", &c.sweep.mba_pct, 10.0, &[])?)?;
        let mba = bounds(Resource::MemoryBandwidth);
        if let Some(m) = mba_pct.iter().find(|m| **m != 100 && !mba.is_some_and(|b| b.take(f64::from(**m)))) {
            let may = match mba {
                None => format!("{} has no MBA: only 100 is possible", p.name),
                Some(b) => format!("{} takes {} to {} in steps of {}", p.name, b.least, b.most, b.step),
            };
            return Err(c.wrong("sweep.mba_pct", format!("{m} is not supported. {may}")));
        }
        no_twice(c, "sweep.mba_pct", &mba_pct)?;

        let memory = c.memory_settings()?;
        let of_service = |(name, _): &(String, Vec<Load>)| memory.iter().map(|m| asked(c, target, name, *m)).collect::<Result<Vec<_>>>();
        let all_asked = services.iter().map(of_service).collect::<Result<Vec<_>>>()?;

        let n = &c.sweep.neighbours;
        no_twice(c, "sweep.neighbours", &n.count)?;
        let draws = |count: u32| if count == 0 { 1 } else { n.draws };
        let levels = |s: &LcService| -> Vec<Load> {
            let rps = match (&of_measured, &per_cent) {
                (Some(loads), _) => return loads.clone(),
                (None, Some(shares)) => of_max_load(s, shares).unwrap_or_default(),
                (None, None) => s.rps_levels.clone(),
            };
            rps.into_iter().map(Load::Rps).collect()
        };
        for (i, job) in n.jobs.iter().enumerate() {
            let wrong = |what: String| Err(c.wrong("sweep.neighbours", format!("jobs: {what}")));
            if n.jobs[..i].contains(job) {
                return wrong(format!("{job} stands there twice. Remove one"));
            }
            if target.services.contains_key(job) {
                return wrong(format!("{job} is an LC service, which is drawn without being named. Remove it"));
            }
            if !target.jobs.contains(job) {
                let known = target.jobs.iter().map(String::as_str);
                return wrong(format!("unknown job \"{job}\". {}", suggest(job, known)));
            }
        }
        let jobs = n.jobs.iter().map(|job| (job.clone(), vec![Load::Rps(0.0)]));
        let loaded = target.services.iter().map(|(n, s)| (n.clone(), levels(s))).filter(|(_, l)| !l.is_empty());
        let beside = loaded.chain(jobs).collect();
        let neighbours: Vec<(u32, u32)> = n.count.iter().flat_map(|k| (0..draws(*k)).map(|d| (*k, d))).collect();

        let planes: u64 = services.iter().map(|(_, r)| r.len() as u64).sum();
        let per = [
            match &threads {
                Threads::AsCores => 1,
                Threads::Counts(l) => l.len(),
            },
            neighbours.len(),
            cores.len(),
            ways.len(),
            mba_pct.len(),
            memory.len(),
            c.sampling.repeats as usize,
        ];
        let len = per.iter().try_fold(planes, |n, k| n.checked_mul(*k as u64)).filter(|n| *n <= 1_000_000_000);
        let Some(len) = len else {
            return Err(c.wrong("sweep", "more than 1,000,000,000 cases. Thin out an axis with a step"));
        };
        let cells = len / u64::from(c.sampling.repeats);
        let drawn = c.random.map(|draw| {
            let n = match draw {
                Draw::Cells(n) => n.min(cells),
                Draw::Share(x) => ((x * cells as f64).round() as u64).clamp(1, cells),
            };
            (Shuffle::new(cells, c.seed), n)
        });
        let len = drawn.as_ref().map_or(len, |(_, n)| n * u64::from(c.sampling.repeats));
        Ok(Expansion {
            drawn: drawn.map(|(shuffle, _)| shuffle),
            campaign: c.name.clone(),
            seed: c.seed,
            target: target.clone(),
            services,
            beside,
            highest: BTreeMap::new(),
            threads,
            fixed_threads,
            cores,
            ways,
            mba_pct: mba_pct.iter().map(|m| *m as u8).collect(),
            memory,
            asked: all_asked,
            neighbours,
            repeats: c.sampling.repeats,
            part: None,
            first_plane: 0,
            first_draw: 0,
            len,
        })
    }

    /// Only a part of the cases; None: all of them. Numbers start at 0 again, case ids and seeds stay.
    ///
    /// # Errors
    /// [`Error::BadInput`] if there are fewer planes than parts.
    pub fn part(mut self, part: Option<Part>) -> Result<Self> {
        let Some(p) = part else { return Ok(self) };
        let (unit, what) = match self.drawn {
            None => (self.cells(), "planes (one service at one RPS, with one number of threads and one set of neighbours)"),
            Some(_) => (u64::from(self.repeats), "cells that are drawn"),
        };
        let units = self.len / unit;
        if units < u64::from(p.of) {
            return Err(Error::BadInput(format!("--part {p}: the campaign has {units} {what}. Cut it into {units} parts at most")));
        }
        let first = |number: u32| units * u64::from(number) / u64::from(p.of);
        let begin = first(p.number - 1);
        self.len = (first(p.number) - begin) * unit;
        *(if self.drawn.is_some() { &mut self.first_draw } else { &mut self.first_plane }) = begin;
        self.part = part;
        Ok(self)
    }

    /// The services, each with its threads, whose max load these cases are shares of, in the order in which cases need them; also as
    /// neighbours.
    pub fn loads_to_find(&self) -> Vec<Loaded> {
        if !self.services.iter().any(|(_, l)| l.iter().any(|l| matches!(l, Load::Pct(_)))) {
            return vec![];
        }
        let planes: Vec<u64> = match &self.drawn {
            None => (0..self.len / self.cells()).collect(),
            Some(_) => (0..self.len).step_by(self.repeats as usize).map(|i| self.in_grid(i) / self.cells()).collect(),
        };
        let (mut seen, mut found) = (BTreeSet::new(), vec![]);
        for plane in planes {
            let a = self.around(plane);
            let own = (a.service.to_string(), self.threads_at_most(a.service, a.threads));
            let loaded = a.neighbours.iter().filter(|n| self.target.services.contains_key(&n.service));
            let beside = loaded.map(|n| (n.service.clone(), self.threads_at_most(&n.service, None)));
            found.extend(std::iter::once(own).chain(beside).filter(|l| seen.insert(l.clone())));
        }
        found
    }

    /// The same cases with max loads that were measured.
    pub fn with_max_loads(mut self, highest: BTreeMap<Loaded, Highest>) -> Self {
        self.highest = highest;
        self
    }

    /// A service alone at some rate, on all that the campaign may give it.
    pub fn alone_on_all(&self, (service, threads): &Loaded, rps: f64, look: u32) -> Case {
        let key = format!("{}|{}|max load|{service}|{threads}|{look}", self.seed, self.target.platform.name);
        let digest = Sha256::digest(key.as_bytes());
        Case {
            index: 0,
            case_id: format!("max-load-{service}-{threads}"),
            seed: u64::from_be_bytes(std::array::from_fn(|j| digest[j])),
            service: service.clone(),
            rps,
            load_pct: None,
            threads: *threads,
            cores: self.most_cores(),
            ways: self.ways.iter().copied().max().unwrap_or(0),
            mba_pct: self.mba_pct.iter().copied().max().unwrap_or(100),
            memory: MemoryAsked::default(),
            neighbours: vec![],
            repeat: 0,
            infeasible: None,
            unloaded: None,
            // Whatever others do here is what is to be found out.
            others_frac: 1.0,
        }
    }

    fn most_cores(&self) -> f64 {
        self.cores.iter().copied().fold(0.0, f64::max)
    }

    /// Threads with which the max load of a service is measured: those of its plane; where they go by the cores, those of most cores.
    fn threads_at_most(&self, service: &str, of_plane: Option<u32>) -> u32 {
        of_plane.or_else(|| self.fixed_threads.get(service).copied()).unwrap_or(threads_for(self.most_cores()))
    }

    /// Rate of a load, and what others take of the CPU time left over; not yet measured is no number.
    fn rate(&self, load: Load, service: &str, of_plane: Option<u32>) -> std::result::Result<(f64, f64), Unknown<'_>> {
        let pct = match load {
            Load::Rps(rps) => return Ok((rps, 0.0)),
            Load::Pct(pct) => pct,
        };
        match self.highest.get(&(service.to_string(), self.threads_at_most(service, of_plane))) {
            None => Ok((f64::NAN, 0.0)),
            Some(Highest::Found { rps, others_frac }) => Ok((round6(rps * pct / 100.0), *others_frac)),
            Some(Highest::Never(why)) => Err(Unknown::Never(why)),
            Some(Highest::Failed(why)) => Err(Unknown::Failed(why)),
        }
    }

    /// Which part of the campaign these cases are; None: all of it.
    pub fn which_part(&self) -> Option<Part> {
        self.part
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Names of the campaign's measured services, in order; also of those that another part has.
    pub fn services(&self) -> impl Iterator<Item = &str> {
        self.services.iter().map(|(s, _)| s.as_str())
    }

    fn thread_levels(&self) -> u64 {
        match &self.threads {
            Threads::AsCores => 1,
            Threads::Counts(l) => l.len() as u64,
        }
    }

    fn cells(&self) -> u64 {
        (self.cores.len() * self.ways.len() * self.settings()) as u64 * u64::from(self.repeats)
    }

    /// Number in the grid of case number `index`.
    fn in_grid(&self, index: u64) -> u64 {
        let repeats = u64::from(self.repeats);
        self.drawn.as_ref().map_or(index, |s| s.at(self.first_draw + index / repeats) * repeats + index % repeats)
    }

    /// Chains of planes, for searches: what a plane teaches about the next is used within a chain only.
    pub fn chains(&self) -> u32 {
        (self.services.len() * self.neighbours.len()) as u32
    }

    /// Planes of a chain, by load and within it by threads: one service beside one draw of neighbours. What another part of the campaign
    /// measures is not among them.
    pub fn chain(&self, number: u32) -> Vec<Vec<u64>> {
        let nb = self.neighbours.len() as u64;
        let (service, draw) = (number as usize / self.neighbours.len(), u64::from(number) % nb);
        let before: u64 = self.services[..service].iter().map(|(_, r)| r.len() as u64).sum();
        let plane = |load: u64, threads: u64| ((before + load) * self.thread_levels() + threads) * nb + draw;
        let here = |plane: u64| plane.checked_sub(self.first_plane).filter(|p| *p < self.len / self.cells());
        let loads = self.services[service].1.len() as u64;
        (0..loads).map(|load| (0..self.thread_levels()).filter_map(|t| here(plane(load, t))).collect()).collect()
    }

    /// Number of a plane in the whole campaign.
    pub fn whole_number(&self, plane: u64) -> u64 {
        self.first_plane + plane
    }

    /// Settings of the bandwidth throttle under each limit on memory; each has planes of its own for a search.
    pub fn settings(&self) -> usize {
        self.mba_pct.len() * self.memory.len()
    }

    /// Most cases of one cell.
    pub fn repeats(&self) -> u32 {
        self.repeats
    }

    /// Cores and ways of the sweep, ascending.
    pub fn axes(&self) -> (Vec<f64>, Vec<u32>) {
        let (mut cores, mut ways) = (self.cores.clone(), self.ways.clone());
        cores.sort_by(f64::total_cmp);
        ways.sort_unstable();
        (cores, ways)
    }

    /// Whether cores and ways start at the least that the platform can give.
    pub fn from_least(&self) -> (bool, bool) {
        let p = &self.target.platform;
        let (cores, ways) = self.axes();
        (cores.first().is_some_and(|c| *c <= p.core_step + 1e-9), ways.first().is_some_and(|w| *w <= p.min_ways().max(1)))
    }

    /// # Panics
    /// If there is no such plane.
    pub fn plane(&self, number: u64) -> PlaneShape {
        let a = self.around(number);
        let sorted = |n: usize, less: &dyn Fn(usize, usize) -> std::cmp::Ordering| {
            let mut l: Vec<usize> = (0..n).collect();
            l.sort_by(|x, y| less(*x, *y));
            l
        };
        let cores = sorted(self.cores.len(), &|x, y| self.cores[x].total_cmp(&self.cores[y])).into_iter().map(|i| (self.cores[i], i));
        let ways = sorted(self.ways.len(), &|x, y| self.ways[x].cmp(&self.ways[y])).into_iter().map(|i| (self.ways[i], i));
        let left = a.left.as_ref().ok();
        PlaneShape {
            service: a.service.into(),
            qos_target_ms: self.target.services.get(a.service).map_or(0.0, |s| s.qos_target_ms),
            threads: a.threads,
            cores: cores.filter(|(c, _)| left.is_some_and(|l| !l.too_few_cores(*c))).collect(),
            ways: ways.filter(|(w, _)| left.is_some_and(|l| !l.too_few_ways(*w))).collect(),
            infeasible: a.left.err(),
        }
    }

    /// Number of a case: places on the axes, see [`PlaneShape`].
    pub fn number(&self, plane: u64, cores: usize, ways: usize, setting: usize, repeat: u32) -> u64 {
        let (memory, mba) = (setting / self.mba_pct.len(), setting % self.mba_pct.len());
        let cell = (((memory * self.cores.len() + cores) * self.ways.len() + ways) * self.mba_pct.len() + mba) as u64;
        plane * self.cells() + cell * u64::from(self.repeats) + u64::from(repeat)
    }

    /// Cases of one plane at one setting, and how many of them there is no room for, with the reason.
    pub fn plane_cases(&self, shape: &PlaneShape) -> (u64, Option<(u64, String)>) {
        let of = |cells: usize| cells as u64 * u64::from(self.repeats);
        let all = of(self.cores.len() * self.ways.len());
        let room = of(shape.cores.len() * shape.ways.len());
        let why = || shape.infeasible.clone().unwrap_or_else(|| "neighbours leave too few cores or ways".into());
        (all, (room < all).then(|| (all - room, why())))
    }

    /// Cases of each service.
    pub fn by_service(&self) -> BTreeMap<String, u64> {
        if self.drawn.is_some() {
            let mut out: BTreeMap<String, u64> = self.services().map(|s| (s.to_string(), 0)).collect();
            let mut walk = self.walk();
            for i in (0..self.len).step_by(self.repeats as usize) {
                *out.entry(walk.at(i).service.clone()).or_insert(0) += u64::from(self.repeats);
            }
            return out;
        }
        let per_rps = self.thread_levels() * self.neighbours.len() as u64;
        let (first, end) = (self.first_plane, self.first_plane + self.len / self.cells());
        let mut at = 0;
        let mut out = BTreeMap::new();
        for (service, rps) in &self.services {
            let planes = at..at + rps.len() as u64 * per_rps;
            at = planes.end;
            let here = planes.end.min(end).saturating_sub(planes.start.max(first));
            if here > 0 {
                out.insert(service.clone(), here * self.cells());
            }
        }
        out
    }

    /// Cases that cannot be set up, by rule. Walks the planes, not the cases.
    pub fn infeasible(&self) -> BTreeMap<String, u64> {
        let mut out = BTreeMap::new();
        let mut add = |rule: &str, cases: u64| {
            if cases > 0 {
                *out.entry(rule.to_string()).or_insert(0) += cases;
            }
        };
        if self.drawn.is_some() {
            let mut walk = self.walk();
            for i in (0..self.len).step_by(self.repeats as usize) {
                if let Some(why) = &walk.at(i).infeasible {
                    add(rule(why), u64::from(self.repeats));
                }
            }
            return out;
        }
        let per_cell = self.settings() as u64 * u64::from(self.repeats);
        for plane in 0..self.len / self.cells() {
            match self.around(plane).left {
                Err(why) => add(rule(&why), self.cells()),
                Ok(left) => {
                    let beyond_cores = self.cores.iter().filter(|c| left.too_few_cores(**c)).count() as u64;
                    let beyond_ways = self.ways.iter().filter(|w| left.too_few_ways(**w)).count() as u64;
                    add(TOO_FEW_CORES, beyond_cores * self.ways.len() as u64 * per_cell);
                    add(TOO_FEW_WAYS, (self.cores.len() as u64 - beyond_cores) * beyond_ways * per_cell);
                }
            }
        }
        out
    }

    /// Case number `index`.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn case(&self, index: u64) -> Case {
        let mut walk = self.walk();
        walk.at(index);
        walk.case
    }

    /// Goes through cases; keep one for neighbouring cases.
    pub fn walk(&self) -> Walk<'_> {
        let case = Case {
            index: 0,
            case_id: String::new(),
            seed: 0,
            service: String::new(),
            rps: 0.0,
            load_pct: None,
            threads: 0,
            cores: 0.0,
            ways: 0,
            mba_pct: 0,
            memory: MemoryAsked::default(),
            neighbours: vec![],
            repeat: 0,
            infeasible: None,
            unloaded: None,
            others_frac: 0.0,
        };
        Walk { all: self, plane: None, key: String::new(), case }
    }

    fn around(&self, plane: u64) -> Around<'_> {
        let plane = self.first_plane + plane;
        let (nb, rest) = (plane % self.neighbours.len() as u64, plane / self.neighbours.len() as u64);
        let (t, mut level) = (rest % self.thread_levels(), rest / self.thread_levels());
        let mut at = 0;
        while level >= self.services[at].1.len() as u64 {
            level -= self.services[at].1.len() as u64;
            at += 1;
        }
        let (service, load) = (self.services[at].0.as_str(), self.services[at].1[level as usize]);
        let threads = match &self.threads {
            Threads::AsCores => self.fixed_threads.get(service).copied(),
            Threads::Counts(l) => Some(l[t as usize]),
        };
        let (count, draw) = self.neighbours[nb as usize];
        let p = &self.target.platform;
        let mut unloaded = None;
        let mut known = |rate: std::result::Result<(f64, f64), Unknown<'_>>| match rate {
            Ok(rate) => Ok(rate),
            Err(Unknown::Never(why)) => Err(why.to_string()),
            Err(Unknown::Failed(why)) => {
                unloaded = Some(why.to_string());
                Ok((f64::NAN, 0.0))
            }
        };
        let own = known(self.rate(load, service, threads));
        let drawn = self.draw(service, load, threads, count, draw).and_then(|drawn| {
            let with_rates = drawn.into_iter().map(|(n, load)| Ok(Neighbour { rps: known(self.rate(load, &n.service, None))?.0, ..n }));
            with_rates.collect::<std::result::Result<Vec<_>, String>>()
        });
        let (rps, others_frac) = own.clone().unwrap_or((f64::NAN, 0.0));
        let (neighbours, left) = match own.and(drawn) {
            Err(why) => (vec![], Err(why)),
            Ok(nb) => {
                let cores = round6(f64::from(p.managed.len()) - nb.iter().map(|n| n.cores).sum::<f64>());
                let ways = p.ways().saturating_sub(nb.iter().map(|n| n.ways).sum());
                (nb, Ok(Left { cores, ways }))
            }
        };
        Around { place: at, service, load, rps, others_frac, threads, count, draw, neighbours, left, unloaded }
    }

    /// Neighbours of a plane: which, at which load (their rate is another's to fill in), and how much they hold. They leave at least one
    /// core and the least ways to the service.
    fn draw(
        &self,
        service: &str,
        load: Load,
        threads: Option<u32>,
        count: u32,
        draw: u32,
    ) -> std::result::Result<Vec<(Neighbour, Load)>, String> {
        if count == 0 {
            return Ok(vec![]);
        }
        let p = &self.target.platform;
        let others: Vec<&String> = self.beside.keys().filter(|n| *n != service).collect();
        let n = count as usize;
        if others.len() < n {
            return Err(format!("fewer other services than neighbours ({} known, {n} asked for)", others.len()));
        }
        let units = p.core_units();
        let min_ways = p.min_ways();
        if count >= units || (p.ways() > 0 && (count + 1) * min_ways > p.ways()) {
            return Err(format!("more neighbours than the platform has room for ({count} on {})", p.name));
        }
        let threads = threads.map_or("cores".to_string(), |t| t.to_string());
        let key = format!("{}|{}|{service}|{load}|{threads}|{count}|{draw}", self.seed, p.name);
        let digest = Sha256::digest(key.as_bytes());
        let mut rng = Rng(u64::from_be_bytes(std::array::from_fn(|j| digest[j])));
        let mut pool = others;
        let chosen: Vec<&String> = (0..n).map(|_| pool.swap_remove(rng.below(pool.len() as u64) as usize)).collect();
        let most = |all: u32, least_each: u32| ((f64::from(all) * NEIGHBOUR_SHARE) as u32).max(count * least_each);
        let cores = rng.split(count, 1, most(units, 1).min(units - 1));
        let ways = match p.ways() {
            0 => vec![0; n],
            all => rng.split(count, min_ways, most(all, min_ways).min(all - min_ways)),
        };
        Ok(chosen
            .into_iter()
            .zip(cores.into_iter().zip(ways))
            .map(|(s, (c, w))| {
                let levels = &self.beside[s];
                let load = levels[rng.below(levels.len() as u64) as usize];
                (Neighbour { service: s.clone(), cores: p.cores(c), ways: w, rps: f64::NAN }, load)
            })
            .collect())
    }
}

/// What the neighbours of a plane leave to its service.
#[derive(Clone, Copy, Debug)]
struct Left {
    cores: f64,
    ways: u32,
}

const TOO_FEW_CORES: &str = "neighbours leave too few cores";
const TOO_FEW_WAYS: &str = "neighbours leave too few ways";

impl Left {
    fn too_few_cores(self, cores: f64) -> bool {
        cores > self.cores + 1e-9
    }

    fn too_few_ways(self, ways: u32) -> bool {
        ways > self.ways
    }

    fn why_infeasible(self, cores: f64, ways: u32) -> Option<String> {
        if self.too_few_cores(cores) {
            Some(format!("{TOO_FEW_CORES} ({cores} asked for, {} left)", self.cores))
        } else if self.too_few_ways(ways) {
            Some(format!("{TOO_FEW_WAYS} ({ways} asked for, {} left)", self.ways))
        } else {
            None
        }
    }
}

/// What the cells of a plane have in common.
struct Around<'a> {
    /// Of the service among those of the campaign.
    place: usize,
    service: &'a str,
    load: Load,
    rps: f64,
    others_frac: f64,
    /// None: as many as cores.
    threads: Option<u32>,
    count: u32,
    draw: u32,
    neighbours: Vec<Neighbour>,
    /// Err: why the neighbours themselves, or the load, cannot be.
    left: std::result::Result<Left, String>,
    unloaded: Option<String>,
}

/// Looks at cases one after another. What the cells of a plane have in common is worked out once a plane, and the case is
/// written over in place, so that a step costs well below a microsecond.
pub struct Walk<'a> {
    all: &'a Expansion,
    plane: Option<Plane>,
    /// Buffer: end of the canonical key.
    key: String,
    case: Case,
}

struct Plane {
    number: u64,
    /// Of its service among those of the campaign.
    place: usize,
    threads: Option<u32>,
    count: u32,
    draw: u32,
    left: std::result::Result<Left, String>,
    /// Has taken in the key up to the RPS.
    hash: Sha256,
}

impl Walk<'_> {
    /// Case number `index`.
    ///
    /// # Panics
    /// If `index >= len()`.
    pub fn at(&mut self, index: u64) -> &Case {
        let all = self.all;
        assert!(index < all.len, "case {index} of {}", all.len);
        let in_grid = all.in_grid(index);
        let (number, mut cell) = (in_grid / all.cells(), in_grid % all.cells());
        if self.plane.as_ref().is_none_or(|p| p.number != number) {
            self.enter(number);
        }
        let Some(plane) = &self.plane else { return &self.case };
        let mut digit = |n: usize| {
            let d = cell % n as u64;
            cell /= n as u64;
            d as usize
        };
        let c = &mut self.case;
        c.index = index;
        c.repeat = digit(all.repeats as usize) as u32;
        c.mba_pct = all.mba_pct[digit(all.mba_pct.len())];
        c.ways = all.ways[digit(all.ways.len())];
        c.cores = all.cores[digit(all.cores.len())];
        let memory = digit(all.memory.len());
        c.memory = all.asked[plane.place][memory];
        c.threads = plane.threads.unwrap_or(threads_for(c.cores));
        c.infeasible = match &plane.left {
            Err(why) => Some(why.clone()),
            Ok(left) => left.why_infeasible(c.cores, c.ways),
        };
        self.key.clear();
        c.case_id.clear();
        let mut hash = plane.hash.clone();
        // Writing to a String cannot fail.
        let _ = write!(self.key, "{}|{}|{}|{}|{}|{}|{}", c.threads, c.cores, c.ways, c.mba_pct, plane.count, plane.draw, c.repeat);
        // A case without a limit is that of a campaign without such an axis.
        match all.memory[memory] {
            (Amount::None, _) => {}
            (limit, Amount::None) => drop(write!(self.key, "|memory {limit}")),
            (limit, pool) => drop(write!(self.key, "|memory {limit}|pool {pool}")),
        }
        hash.update(self.key.as_bytes());
        let digest = hash.finalize();
        let word = |i: usize| u64::from_be_bytes(std::array::from_fn(|j| digest[i * 8 + j]));
        let _ = write!(c.case_id, "{:016x}", word(0));
        c.seed = word(1);
        c
    }

    fn enter(&mut self, number: u64) {
        let a = self.all.around(number);
        let hash = Sha256::new()
            .chain_update(format!("{}|{}|{}|{}|{}|", self.all.campaign, self.all.seed, self.all.target.platform.name, a.service, a.load));
        self.case.service.clear();
        self.case.service.push_str(a.service);
        self.case.rps = a.rps;
        self.case.load_pct = match a.load {
            Load::Rps(_) => None,
            Load::Pct(pct) => Some(pct),
        };
        self.case.unloaded = a.unloaded;
        self.case.others_frac = a.others_frac;
        self.case.neighbours = a.neighbours;
        self.plane = Some(Plane { number, place: a.place, threads: a.threads, count: a.count, draw: a.draw, left: a.left, hash });
    }
}

/// What a setting of memory and pool is for a service on a target.
fn asked(c: &Campaign, target: &Target, service: &str, (limit, pool): (Amount, Amount)) -> Result<MemoryAsked> {
    let wrong = |what: String| Err(c.wrong("sweep.memory", what));
    let working_set = target.services.get(service).and_then(|s| s.working_set_bytes);
    let (p, written) = (&target.platform, limit);
    if limit == Amount::None {
        return Ok(MemoryAsked::default());
    }
    if let Some(why) = &target.memory.no_limit {
        return wrong(format!("{}: {why}", p.name));
    }
    if target.is_virtual() && working_set.is_none() {
        let remedy = "Leave that service out, or add a profile with [paging]";
        return wrong(format!("the profile of \"{service}\" does not say how it pages: a limit would change nothing. {remedy}"));
    }
    let limit = match limit {
        Amount::None => 0,
        Amount::Bytes(bytes) => bytes,
        Amount::Pct(pct) => match working_set {
            Some(bytes) => whole_pages(bytes as f64 * pct / 100.0),
            None => {
                let what = format!("no working set of \"{service}\" on {} is known. Give sizes such as \"400 MiB\"", p.name);
                return wrong(what);
            }
        },
    };
    if limit == 0 {
        return wrong(format!("{written} of \"{service}\" is no memory at all. Give a limit above 0, or \"none\""));
    }
    if let Some(most) = p.memory.map(|m| m.capacity_bytes).filter(|most| limit > *most) {
        let of = if matches!(written, Amount::Pct(_)) { format!("{written} of \"{service}\", ") } else { String::new() };
        return wrong(format!("{of}{} is more than the {} of {}. Give less, or \"none\"", said(limit), said(most), p.name));
    }
    let wrong = |what: String| Err(c.wrong("sweep.pool", what));
    let pool_bytes = match pool {
        Amount::None => None,
        Amount::Bytes(bytes) => Some(bytes),
        Amount::Pct(pct) if pct > 100.0 => return wrong(format!("{pct}% of a limit is more than the limit. Give at most 100%")),
        Amount::Pct(pct) => Some(whole_pages(limit as f64 * pct / 100.0)),
    };
    if let Some(why) = target.memory.no_pool.as_ref().filter(|_| pool_bytes.is_some()) {
        return wrong(format!("{}: {why}", p.name));
    }
    if let Some(bytes) = pool_bytes.filter(|bytes| *bytes > limit) {
        let remedy = "Give less, or per cent of the limit";
        return wrong(format!("{} is more than the limit of \"{service}\", {}. {remedy}", said(bytes), said(limit)));
    }
    Ok(MemoryAsked { limit_bytes: Some(limit), pool_bytes })
}

/// A reason without its numbers, for counting.
pub fn rule(reason: &str) -> &str {
    let end = [reason.find(" ("), reason.find(": ")].into_iter().flatten().min();
    &reason[..end.unwrap_or(reason.len())]
}

fn axis(c: &Campaign, field: &str, axis: &Axis, unit: f64, words: &[&str]) -> Result<Values> {
    axis.values(unit, words).map_err(|e| c.wrong(field, e))
}

fn numbers(c: &Campaign, field: &str, a: &Axis, unit: f64, words: &[&str]) -> Result<Vec<f64>> {
    match axis(c, field, a, unit, words)? {
        Values::Numbers(l) => Ok(l),
        Values::Word(w) => Err(c.wrong(field, format!("\"{w}\" is no list of numbers. Give numbers"))),
    }
}

fn whole(c: &Campaign, field: &str, l: &[f64]) -> Result<Vec<u32>> {
    l.iter()
        .map(|x| {
            let fits = *x >= 0.0 && *x <= f64::from(u32::MAX) && x.fract() == 0.0;
            fits.then_some(*x as u32).ok_or_else(|| c.wrong(field, format!("{x} is no whole number from 0 up. Give whole numbers")))
        })
        .collect()
}

fn no_twice<T: PartialEq + std::fmt::Debug>(c: &Campaign, field: &str, l: &[T]) -> Result<()> {
    let seen: BTreeSet<String> = l.iter().map(|x| format!("{x:?}")).collect();
    if seen.len() == l.len() {
        return Ok(());
    }
    let twice = l.iter().enumerate().find(|(i, x)| l[..*i].contains(x)).map(|(_, x)| format!("{x:?}")).unwrap_or_default();
    Err(c.wrong(field, format!("{twice} stands there twice. Name each value once; use sampling.repeats to measure again")))
}

/// A random order of `0..n` that is computed, not stored: a Feistel network over the next power of four, walked until it
/// lands inside.
#[derive(Clone, Debug)]
struct Shuffle {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Shuffle {
    fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let mut rng = Rng(seed ^ 0x5AFE_C0DE_u64.rotate_left(32));
        Shuffle { n, half_bits: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| rng.next()) }
    }

    /// Which comes `i`-th (i < n).
    fn at(&self, i: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = i;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (Rng(right ^ key).next() & mask));
            }
            x = left << self.half_bits | right;
            if x < self.n {
                return x;
            }
        }
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..n (n > 0).
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// `n` parts of at least `least`, whose sum is uniform in `n * least ..= most`.
    fn split(&mut self, n: u32, least: u32, most: u32) -> Vec<u32> {
        let spare = self.below(u64::from(most - n * least) + 1);
        // Stars and bars with replacement: n - 1 cuts of the spare units.
        let mut cuts: Vec<u64> = (1..n).map(|_| self.below(spare + 1)).collect();
        cuts.push(0);
        cuts.push(spare);
        cuts.sort_unstable();
        cuts.windows(2).map(|w| least + (w[1] - w[0]) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use surefoot_linux::discover::MemoryControl;
    use surefoot_server::{Memory, Platform};
    use surefoot_vserver::EDITION;

    fn target(platform: Platform) -> Target {
        let lc = |rps: f64| LcService {
            qos_target_ms: 10.0,
            max_load_rps: Some(rps),
            rps_levels: vec![rps / 2.0, rps],
            working_set_bytes: Some(4 << 30),
        };
        let services = ["a", "b", "c", "d"].iter().zip(1..).map(|(n, i)| (n.to_string(), lc(f64::from(i) * 100.0))).collect();
        Target {
            plant: Some(EDITION),
            platform,
            services,
            jobs: vec!["job".into()],
            feature_set: "full".into(),
            sources: BTreeMap::new(),
            traces: BTreeMap::new(),
            paged: Default::default(),
            memory: Default::default(),
        }
    }

    fn expand(t: &Target, sweep: &str) -> Result<Expansion> {
        let text = format!("name = \"t\"\nseed = 3\n[targets]\nlocal = true\n[sweep]\nservices = [\"a\", \"b\"]\n{sweep}");
        Expansion::new(&Campaign::parse(Path::new("c.toml"), &text)?, t)
    }

    /// 2 services x 2 RPS x 3 threads x (1 + 2 x 2) neighbour sets x 4 cores x 3 ways = 720 cases with ids of their own.
    #[test]
    fn every_case_once() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let e =
            expand(&t, "threads = [1, 2, 4]\ncores = \"1..8 step 2\"\nways = [1, 2, 11]\nneighbours = { count = [0, 1, 2], draws = 2 }")
                .unwrap();
        assert_eq!(e.len(), 720);
        let cases: Vec<Case> = (0..e.len()).map(|i| e.case(i)).collect();
        assert_eq!(cases.iter().map(|c| &c.case_id).collect::<BTreeSet<_>>().len(), 720);
        assert_eq!(e.by_service().values().sum::<u64>(), 720);
        let mut why = BTreeMap::new();
        cases.iter().filter_map(|c| c.infeasible.as_deref()).for_each(|w| *why.entry(rule(w).to_string()).or_insert(0u64) += 1);
        assert_eq!(e.infeasible(), why);
        assert!(why.len() == 2 && why.values().sum::<u64>() < 720, "{why:?}");
    }

    /// Jobs are drawn beside LC services where the campaign names them, have no load, and no max load that is to be found.
    #[test]
    fn jobs_are_neighbours_where_they_are_named() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let of = |jobs: &str, rps: &str| {
            expand(&t, &format!("rps = {rps}\ncores = [1]\nways = [1]\nneighbours = {{ count = [1, 4], draws = 8{jobs} }}"))
        };
        let drawn = |e: &Expansion| -> Vec<Neighbour> { (0..e.len()).flat_map(|i| e.case(i).neighbours).collect() };
        assert!(drawn(&of("", "\"catalogue\"").unwrap()).iter().all(|n| n.service != "job"));
        for rps in ["\"catalogue\"", "\"50%\"", "\"saturation:50\""] {
            let e = of(", jobs = [\"job\"]", rps).unwrap();
            let (jobs, others): (Vec<Neighbour>, Vec<Neighbour>) = drawn(&e).into_iter().partition(|n| n.service == "job");
            assert!(!jobs.is_empty() && !others.is_empty() && jobs.iter().all(|n| n.rps == 0.0), "{rps}");
            assert!(e.loads_to_find().iter().all(|(service, _)| service != "job"));
            // Four others than the measured one there are only with the job.
            assert!((0..e.len()).all(|i| e.case(i).infeasible.is_none_or(|why| !why.contains("fewer other services"))), "{rps}");
        }
        for (jobs, why) in [
            ("[\"jbo\"]", "unknown job \"jbo\". Did you mean \"job\"?"),
            ("[\"job\", \"job\"]", "job stands there twice"),
            ("[\"c\"]", "c is an LC service"),
        ] {
            let said = of(&format!(", jobs = {jobs}"), "\"catalogue\"").unwrap_err().to_string();
            assert!(said.contains("sweep.neighbours: jobs: ") && said.contains(why), "{said}");
        }
    }

    /// In per cent of max load a service and its neighbours have levels of their own; one without a max load cannot be measured so.
    #[test]
    fn loads_in_per_cent_of_max_load() {
        let mut t = target(Platform::regular("p", 8, 1, 11, 2.0));
        t.services.get_mut("d").unwrap().max_load_rps = None;
        let e = expand(&t, "rps = \"30%..90% step 30%\"\ncores = [1]\nways = [1]\nneighbours = { count = [0, 2], draws = 20 }").unwrap();
        let cases: Vec<Case> = (0..e.len()).map(|i| e.case(i)).collect();
        let of = |name: &str| cases.iter().filter(|c| c.service == name).map(|c| c.rps as u32).collect::<BTreeSet<_>>();
        assert_eq!((of("a"), of("b")), (BTreeSet::from([30, 60, 90]), BTreeSet::from([60, 120, 180])));
        let beside: BTreeMap<_, BTreeSet<u32>> = cases.iter().flat_map(|c| &c.neighbours).fold(BTreeMap::new(), |mut all, n| {
            all.entry(n.service.as_str()).or_insert_with(BTreeSet::new).insert(n.rps as u32);
            all
        });
        let want = [("a", [30, 60, 90]), ("b", [60, 120, 180]), ("c", [90, 180, 270])];
        assert_eq!(beside, want.map(|(n, l)| (n, BTreeSet::from(l))).into(), "and never d, whose max load is not known");

        let said = |t: &Target, rps: &str| expand(t, &format!("rps = \"{rps}\"")).map(|_| ()).unwrap_err().to_string();
        t.services.get_mut("b").unwrap().max_load_rps = None;
        assert!(said(&t, "10%..20% step 10%").contains("sweep.rps: no max load of \"b\" on p"));
        for wrong in ["5..100%", "5%..100% step 5", "%..5%", "5%%..9%", "a%", "5% step 1%..9%"] {
            assert!(said(&t, wrong).contains("Write \"5%..100% step 5%\""), "{wrong}: {}", said(&t, wrong));
        }
        for wrong in ["9%..5%", "5%..9% step 0%"] {
            assert!(said(&t, wrong).contains(&format!("\"{wrong}\" holds no value")), "{}", said(&t, wrong));
        }
        for wrong in ["0%..5%", "-5%..5% step 5%", "0%"] {
            assert!(said(&t, wrong).contains("not above 0 %"), "{}", said(&t, wrong));
        }
        let one = expand(&target(Platform::regular("p", 8, 1, 11, 2.0)), "rps = \"50%\"\ncores = [1]\nways = [1]").unwrap();
        assert_eq!((0..one.len()).map(|i| one.case(i).rps).collect::<Vec<_>>(), [50.0, 100.0]);
    }

    /// Loads that are found are named by their per cent, so that cases have ids before anything is measured and whatever comes of it; rates
    /// are filled in for a service with its threads, and for neighbours with as many as there are cores.
    #[test]
    fn loads_in_per_cent_of_what_is_found() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let text = "rps = \"saturation: 20, 62.5\"\nthreads = [2]\ncores = [1, 6]\nways = [1]\nneighbours = { count = [0, 1], draws = 3 }";
        let e = expand(&t, text).unwrap();
        let cases = |e: &Expansion| (0..e.len()).map(|i| e.case(i)).collect::<Vec<_>>();
        let before = cases(&e);
        assert!(before.iter().all(|c| c.rps.is_nan() && c.neighbours.iter().all(|n| n.rps.is_nan())));
        assert!(before.iter().all(|c| [20.0, 62.5].contains(&c.load_pct.unwrap())));
        let wanted = e.loads_to_find();
        let beside: BTreeSet<Loaded> = before.iter().flat_map(|c| &c.neighbours).map(|n| (n.service.clone(), 6)).collect();
        let own = ["a", "b"].map(|s| (s.to_string(), 2));
        assert_eq!(wanted.iter().cloned().collect::<BTreeSet<_>>(), own.into_iter().chain(beside).collect());
        let alone = e.alone_on_all(&wanted[0], 77.0, 3);
        assert_eq!((alone.cores, alone.ways, alone.threads, alone.rps, alone.neighbours.len()), (6.0, 1, 2, 77.0, 0));
        assert_ne!(alone.seed, e.alone_on_all(&wanted[0], 77.0, 4).seed);

        let found = wanted.iter().map(|l| (l.clone(), Highest::Found { rps: 100.0 * f64::from(l.1), others_frac: 0.25 })).collect();
        let known = cases(&e.clone().with_max_loads(found));
        let ids = |l: &[Case]| l.iter().map(|c| (c.case_id.clone(), c.seed, c.neighbours.len())).collect::<Vec<_>>();
        assert_eq!(ids(&known), ids(&before));
        let rates: BTreeSet<u64> = known.iter().map(|c| c.rps as u64).collect();
        let beside: BTreeSet<u64> = known.iter().flat_map(|c| &c.neighbours).map(|n| n.rps as u64).collect();
        assert_eq!((rates, beside), (BTreeSet::from([40, 125]), BTreeSet::from([120, 375])));
        assert!(known.iter().all(|c| c.others_frac == 0.25 && c.unloaded.is_none()));

        let mixed = wanted.iter().map(|l| {
            let what = if l.0 == "a" { Highest::Never("a is too slow".into()) } else { Highest::Failed("it has no image".into()) };
            (l.clone(), what)
        });
        for c in cases(&e.with_max_loads(mixed.collect())) {
            let slow = c.service == "a" || c.neighbours.is_empty() && c.infeasible.is_some();
            assert!(!slow || c.infeasible.as_deref() == Some("a is too slow"), "{c:?}");
            assert!(slow || c.infeasible.is_some() || c.unloaded.as_deref() == Some("it has no image"), "{c:?}");
        }
    }

    /// Each way in which such loads can be wrong is told where the file says them, with what to write.
    #[test]
    fn loads_that_cannot_be_found() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let many = (1..=51).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        for (rps, says) in [
            ("saturation", "names no loads"),
            ("saturation 20", "names no loads"),
            ("saturation:", "\"\" in \"saturation:\" is no number"),
            ("saturation:20,,40", "is no number"),
            ("saturation:20%", "\"20%\" in"),
            ("saturation:0", "0 % is no load"),
            ("saturation:-5", "-5 % is no load"),
            ("saturation:200.1", "200.1 % is no load"),
            ("saturation:NaN", "NaN % is no load"),
            ("saturation:inf", "inf % is no load"),
            ("saturation:20,20.0", "20 % stands there twice"),
            ("saturation:1e-400", "is no load"),
            (&format!("saturation:{many}"), "51 loads are too many"),
        ] {
            let e = expand(&t, &format!("rps = \"{rps}\"")).map(|_| ()).unwrap_err().to_string();
            assert!(e.starts_with("c.toml:7: sweep.rps: ") && e.contains(says), "{rps}: {e}");
        }
        assert_eq!(expand(&t, "rps = \"saturation:200\"\ncores = [1]\nways = [1]").unwrap().len(), 2);
    }

    /// Parts are whole planes, together the campaign in its order: 20 planes of 12 cells in 3 parts are 6, 7 and 7 planes.
    #[test]
    fn parts_are_the_whole() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let sweep = "threads = [4]\ncores = \"1..8 step 2\"\nways = [1, 2, 11]\nneighbours = { count = [0, 1, 2], draws = 2 }";
        let all = |e: &Expansion| (0..e.len()).map(|i| e.case(i)).map(|c| (c.case_id, c.seed, c.neighbours)).collect::<Vec<_>>();
        let parts: Vec<Expansion> = (1..=3).map(|number| expand(&t, sweep).unwrap().part(Some(Part { number, of: 3 })).unwrap()).collect();
        assert_eq!(parts.iter().map(Expansion::len).collect::<Vec<_>>(), [72, 84, 84]);
        let whole = expand(&t, sweep).unwrap();
        assert_eq!(parts.iter().flat_map(all).collect::<Vec<_>>(), all(&whole));
        let mut counted = (BTreeMap::new(), BTreeMap::new());
        for p in &parts {
            p.by_service().into_iter().for_each(|(k, n)| *counted.0.entry(k).or_insert(0) += n);
            p.infeasible().into_iter().for_each(|(k, n)| *counted.1.entry(k).or_insert(0) += n);
        }
        assert_eq!(counted, (whole.by_service(), whole.infeasible()));
        let e = whole.part(Some(Part { number: 1, of: 21 })).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains("--part 1/21") && e.contains("20 parts at most"), "{e}");
        ["0/3", "4/3", "3", "a/b"].iter().for_each(|text| assert!(text.parse::<Part>().is_err(), "{text}"));
    }

    /// On this machine a service comes from the catalogue, and the load generator's CPU is not there to be given away.
    #[test]
    fn remedies_fit_the_target() {
        let at = |is_virtual: bool| Target { plant: is_virtual.then_some(EDITION), ..target(Platform::regular("p", 8, 1, 11, 2.0)) };
        let said = |t: &Target, sweep: &str| expand(t, sweep).map(|_| ()).unwrap_err().to_string();
        assert!(said(&at(false), "cores = [9]").contains("9 goes beyond the 8 cores of p (all CPUs but the last"));
        assert!(said(&at(true), "cores = [9]").contains("9 goes beyond the 8 cores of p. Use 1 to 8"));
        let none = |is_virtual: bool| {
            let text = "name = \"t\"\n[targets]\nlocal = true\n[sweep]\nservices = [\"zzzzzz\"]\n";
            let campaign = Campaign::parse(Path::new("c.toml"), text).unwrap();
            Expansion::new(&campaign, &at(is_virtual)).map(|_| ()).unwrap_err().to_string()
        };
        assert!(none(false).contains("workloads/") && !none(false).contains("--profiles"), "{}", none(false));
        assert!(none(true).contains("--profiles"), "{}", none(true));
    }

    /// The largest seed is named where TOML cannot hold a larger one.
    #[test]
    fn a_seed_that_is_too_large() {
        let text = "name = \"t\"\nseed = 99999999999999999999\n[targets]\nlocal = true\n[sweep]\n";
        let e = Campaign::parse(Path::new("c.toml"), text).map(|_| ()).unwrap_err().to_string();
        assert!(e.starts_with("c.toml:2") && e.contains("seed: ") && e.contains("9223372036854775807"), "{e}");
    }

    /// Every cell comes once, in another order for another seed, whatever their number.
    #[test]
    fn shuffles() {
        for n in [1u64, 2, 3, 4, 5, 16, 17, 720, 1000] {
            let order: Vec<u64> = (0..n).map(|i| Shuffle::new(n, 7).at(i)).collect();
            assert_eq!(order.iter().copied().collect::<BTreeSet<_>>(), (0..n).collect(), "{n}");
            assert!(n < 16 || order != (0..n).map(|i| Shuffle::new(n, 8).at(i)).collect::<Vec<_>>(), "{n}");
        }
    }

    /// Random cells are cells of the grid with the same identifiers and seeds, each with all its repeats; counts add up.
    #[test]
    fn drawn_cases_are_cases_of_the_grid() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let sweep = "neighbours = { count = [0, 3], draws = 1 }\n[sampling]\nrepeats = 2";
        let head = "name = \"t\"\nseed = 3\n[targets]\nlocal = true\n[sweep]\nservices = [\"a\", \"b\"]\n";
        let of = |text: String| Expansion::new(&Campaign::parse(Path::new("c.toml"), &text).unwrap(), &t).unwrap();
        let all = of(format!("{head}{sweep}"));
        let some = of(format!("strategy = \"random\"\n{head}{sweep}\n[random]\ncells = 100"));
        assert_eq!((all.len(), some.len()), (2 * 2 * 2 * 88 * 2, 200));
        let ids = |e: &Expansion| (0..e.len()).map(|i| e.case(i)).map(|c| (c.case_id, c.seed)).collect::<BTreeSet<_>>();
        assert!(ids(&some).len() == 200 && ids(&some).is_subset(&ids(&all)));
        assert!((0..200).step_by(2).all(|i| some.case(i).repeat == 0 && some.case(i + 1).repeat == 1));
        assert_eq!(some.by_service().values().sum::<u64>(), 200);
        let infeasible = (0..200).filter(|i| some.case(*i).infeasible.is_some()).count() as u64;
        assert!(infeasible > 0 && some.infeasible().values().sum::<u64>() == infeasible);
        let tenth = of(format!("strategy = \"random\"\n{head}{sweep}\n[random]\nshare = 0.1"));
        assert_eq!(tenth.len(), 140, "704 cells, a tenth of them, twice");
    }

    /// Each plane is in one chain of one part, and each drawn cell in one part.
    #[test]
    fn parts_of_searches_and_draws() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let sweep = "threads = [1, 2, 4]\nneighbours = { count = [0, 1], draws = 2 }";
        let parts = |text: &str| -> Vec<Expansion> {
            (1..=4).map(|number| expand(&t, text).unwrap().part(Some(Part { number, of: 4 })).unwrap()).collect()
        };
        let whole = expand(&t, sweep).unwrap();
        let planes = |e: &Expansion| -> Vec<(u64, PlaneShape)> {
            (0..e.chains()).flat_map(|c| e.chain(c)).flatten().map(|p| (e.whole_number(p), e.plane(p))).collect()
        };
        let mut all: Vec<(u64, PlaneShape)> = parts(sweep).iter().flat_map(planes).collect();
        let mut want = planes(&whole);
        all.sort_by_key(|p| p.0);
        want.sort_by_key(|p| p.0);
        assert_eq!(all, want);
        let head = "name = \"t\"\nstrategy = \"random\"\n[targets]\nlocal = true\n[sweep]\nservices = [\"a\"]\n[random]\ncells = 50";
        let drawn = || Expansion::new(&Campaign::parse(Path::new("c.toml"), head).unwrap(), &t).unwrap();
        let ids = |e: &Expansion| (0..e.len()).map(|i| e.case(i).case_id).collect::<Vec<_>>();
        let in_parts = (1..=3).flat_map(|number| ids(&drawn().part(Some(Part { number, of: 3 })).unwrap())).collect::<Vec<_>>();
        assert_eq!(in_parts, ids(&drawn()));
    }

    /// A plane lists what its neighbours leave room for, and the numbers it leads to are those of its cases.
    #[test]
    fn planes_and_their_cases() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let e = expand(&t, "threads = [2, 4]\ncores = [8, 1, 4]\nways = [11, 2, 7]\nneighbours = { count = [0, 3], draws = 2 }").unwrap();
        let planes: Vec<u64> = (0..e.chains()).flat_map(|c| e.chain(c)).flatten().collect();
        assert_eq!(planes.iter().copied().collect::<BTreeSet<_>>(), (0..e.len() / 9).collect());
        for plane in planes {
            let shape = e.plane(plane);
            let mut room = 0;
            for (cores, at_cores) in &shape.cores {
                for (ways, at_ways) in &shape.ways {
                    let case = e.case(e.number(plane, *at_cores, *at_ways, 0, 0));
                    assert_eq!((case.cores, case.ways, &case.service), (*cores, *ways, &shape.service));
                    assert!(case.infeasible.is_none() && Some(case.threads) == shape.threads);
                    room += 1;
                }
            }
            let infeasible = (plane * 9..plane * 9 + 9).filter(|i| e.case(*i).infeasible.is_some()).count() as u64;
            assert_eq!((room + infeasible, e.plane_cases(&shape).1.map_or(0, |i| i.0)), (9, infeasible));
        }
    }

    /// A case is what its number says, however one comes to it.
    #[test]
    fn walks_in_any_order() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let e = expand(&t, "neighbours = { count = [0, 2, 9], draws = 2 }\ncores = [1, 4, 8]\nways = [2, 11]").unwrap();
        let mut walk = e.walk();
        for i in (0..e.len()).rev().chain(0..e.len()).chain((0..e.len()).step_by(7)) {
            assert_eq!(*walk.at(i), e.case(i));
        }
        assert!(walk.at(e.len() - 1).infeasible.as_deref().is_some_and(|w| w.starts_with("fewer other services")));
    }

    /// Identifiers and seeds are part of the format: a resumed campaign must find its cases again.
    #[test]
    fn identifiers_stay() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let c = expand(&t, "neighbours = { count = [2], draws = 1 }").unwrap().case(100);
        let digest = Sha256::digest(b"t|3|p|a|100|2|2|2|100|2|0|0");
        assert_eq!((c.threads, c.cores, c.ways), (2, 2.0, 2));
        assert_eq!(c.case_id, digest[..8].iter().map(|b| format!("{b:02x}")).collect::<String>());
        assert_eq!(c.seed.to_be_bytes(), digest[8..16]);
    }

    /// The cells of a plane have the same neighbours; those fit, and leave room for at least one cell.
    #[test]
    fn neighbours_belong_to_the_plane() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let e = expand(&t, "threads = [4]\nneighbours = { count = [1, 2, 3], draws = 5 }").unwrap();
        let plane = 8 * 11;
        for at in (0..e.len()).step_by(plane) {
            let cells: Vec<Case> = (at..at + plane as u64).map(|i| e.case(i)).collect();
            let nb = &cells[0].neighbours;
            assert!(cells.iter().all(|c| c.neighbours == *nb));
            assert!(cells[0].infeasible.is_none(), "one core and one way always fit");
            assert!(nb.iter().map(|n| n.cores).sum::<f64>() <= 7.0 && nb.iter().map(|n| n.ways).sum::<u32>() <= 10);
            assert!(nb.iter().all(|n| n.service != cells[0].service && n.cores >= 1.0 && n.ways >= 1));
            assert_eq!(nb.iter().map(|n| &n.service).collect::<BTreeSet<_>>().len(), nb.len());
            let left = 8.0 - nb.iter().map(|n| n.cores).sum::<f64>();
            assert!(cells.iter().all(|c| c.infeasible.is_some() || c.cores <= left));
        }
    }

    /// Fractions of cores: ten steps of a tenth, written exactly; no ways where the LLC cannot be partitioned.
    #[test]
    fn quota_steps() {
        let t = target(Platform { core_step: 0.1, ..Platform::regular("small", 1, 1, 0, 0.0) });
        for cores in ["\"all\"", "\"0.1..1.0 step 0.1\"", "\"0.1..1\""] {
            let e = expand(&t, &format!("rps = [5]\ncores = {cores}")).unwrap();
            let cores: Vec<f64> = (0..10).map(|i| e.case(i).cores).collect();
            assert_eq!(cores, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
            assert_eq!((e.len(), e.case(3).ways, e.case(3).threads), (20, 0, 1));
        }
        assert!(expand(&t, "ways = [4]").unwrap_err().to_string().contains("cannot partition"));
    }

    /// Limits of 4 GiB of working set are resolved, each with its pools; without a limit nothing goes to one. The cases without a limit are
    /// those of the campaign without such an axis, by number, id and seed.
    #[test]
    fn limits_on_memory_are_an_axis() {
        const MIB: u64 = 1 << 20;
        let t = target(Platform { memory: Some(Memory { capacity_bytes: 8 << 30 }), ..Platform::regular("p", 8, 1, 11, 2.0) });
        let cells = "cores = [1, 8]\nways = [2, 11]\nneighbours = { count = [0, 2] }\n[sampling]\nrepeats = 2";
        let of = |axes: &str| expand(&t, &format!("{axes}\n{cells}")).unwrap();
        let before = of("");
        let e = of("memory = [\"none\", \"50%\", \"6 GiB\"]\npool = [\"0%\", \"25%\"]");
        assert_eq!((e.len(), e.settings(), before.settings()), (5 * before.len(), 5, 1));
        let cases: Vec<Case> = (0..e.len()).map(|i| e.case(i)).collect();
        let asked: BTreeSet<_> =
            cases.iter().map(|c| (c.memory.limit_bytes.map(|b| b / MIB), c.memory.pool_bytes.map(|b| b / MIB))).collect();
        let of_limit = |limit: u64| [(Some(limit), Some(0)), (Some(limit), Some(limit / 4))];
        assert_eq!(asked, [(None, None)].into_iter().chain(of_limit(2048)).chain(of_limit(6144)).collect());
        assert_eq!(cases.iter().map(|c| &c.case_id).collect::<BTreeSet<_>>().len() as u64, e.len());
        let free: Vec<_> = cases.iter().filter(|c| c.memory == MemoryAsked::default()).map(|c| Case { index: 0, ..c.clone() }).collect();
        assert_eq!(free, (0..before.len()).map(|i| Case { index: 0, ..before.case(i) }).collect::<Vec<_>>());
        // A plane keeps its neighbours, and a case its number.
        for plane in (0..e.chains()).flat_map(|c| e.chain(c)).flatten() {
            for setting in 0..5 {
                let case = e.case(e.number(plane, 1, 0, setting, 1));
                assert_eq!((case.cores, case.ways, case.repeat), (8.0, 2, 1));
                assert_eq!(case.neighbours, e.case(e.number(plane, 0, 0, 0, 0)).neighbours);
                assert_eq!(case.memory, e.asked[0][setting]);
            }
        }
        assert_eq!(e.infeasible().values().sum::<u64>(), 5 * before.infeasible().values().sum::<u64>());
        // The name of a case is part of the format.
        let digest = Sha256::digest(b"t|3|p|a|50|1|1|2|100|0|0|0|memory 50%|pool 0%");
        let id = digest[..8].iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert!(cases.iter().any(|c| c.case_id == id && c.memory.limit_bytes == Some(2048 * MIB)));
    }

    /// What cannot be is said where the file says it, in one line: no amount, no room, no file of the kernel, no profile.
    #[test]
    fn limits_on_memory_that_cannot_be() {
        let p = || Platform { memory: Some(Memory { capacity_bytes: 8 << 30 }), ..Platform::regular("p", 8, 1, 11, 2.0) };
        let said = |t: &Target, sweep: &str| expand(t, sweep).map(|_| ()).unwrap_err().to_string();
        let t = target(p());
        for (sweep, field, says) in [
            ("memory = \"400\"", "sweep.memory", "has no unit"),
            ("memory = 400", "sweep.memory", "give an amount of memory"),
            ("memory = []", "sweep.memory", "is empty"),
            ("memory = [\"50%\", \"50%\"]", "sweep.memory", "stands there twice"),
            ("memory = \"0%\"", "sweep.memory", "no memory at all"),
            ("memory = \"201%\"", "sweep.memory", "is more than the 8 GiB of p"),
            ("memory = \"9 GiB\"", "sweep.memory", "9 GiB is more than the 8 GiB of p"),
            ("pool = \"10%\"", "sweep.pool", "there is none"),
            ("memory = \"50%\"\npool = \"101%\"", "sweep.pool", "at most 100%"),
            ("memory = \"50%\"\npool = \"3 GiB\"", "sweep.pool", "more than the limit of \"a\", 2 GiB"),
        ] {
            let e = said(&t, sweep);
            assert!(e.starts_with("c.toml:") && e.contains(field) && e.contains(says) && !e.contains('\n'), "{sweep}: {e}");
        }
        let mut unpaged = t.clone();
        unpaged.services.get_mut("b").unwrap().working_set_bytes = None;
        assert!(said(&unpaged, "memory = \"1 GiB\"").contains("the profile of \"b\" does not say how it pages"));
        // A machine without a working set takes sizes; one without the kernel's files takes none.
        let machine = |no_limit: Option<&str>, no_pool: Option<&str>| {
            let memory = MemoryControl { no_limit: no_limit.map(Into::into), no_pool: no_pool.map(Into::into) };
            Target { plant: None, memory, ..unpaged.clone() }
        };
        assert!(said(&machine(None, None), "memory = \"50%\"").contains("no working set of \"b\" on p is known. Give sizes"));
        assert!(expand(&machine(None, None), "memory = \"1 GiB\"\npool = \"50%\"").is_ok());
        assert!(said(&machine(Some("no memory cgroup. Mount one"), None), "memory = \"50%\"").contains("sweep.memory: p: no memory cgroup"));
        let no_pool = machine(None, Some("no zswap. Switch it on"));
        assert!(said(&no_pool, "memory = \"1 GiB\"\npool = \"50%\"").contains("sweep.pool: p: no zswap. Switch it on"));
        assert!(expand(&no_pool, "memory = \"1 GiB\"").is_ok());
        assert!(expand(&machine(Some("none"), Some("none")), "memory = \"none\"\npool = \"50%\"").is_ok(), "nothing is to be set");
    }

    /// Another seed draws other neighbours; the same seed draws the same.
    #[test]
    fn seeds() {
        let t = target(Platform::regular("p", 8, 1, 11, 2.0));
        let draw = |seed: u64| {
            let text = format!(
                "name = \"t\"\nseed = {seed}\n[targets]\nlocal = true\n[sweep]\nservices = \"all\"\nneighbours = {{ count = [2], draws = 4 }}"
            );
            let e = Expansion::new(&Campaign::parse(Path::new("c.toml"), &text).unwrap(), &t).unwrap();
            (0..e.len()).step_by(88).map(|i| e.case(i)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1).iter().map(|c| &c.neighbours).collect::<Vec<_>>(), draw(2).iter().map(|c| &c.neighbours).collect::<Vec<_>>());
    }
}
