//! Cases of a campaign on this machine: a service under open-loop load with a given allocation. It is a container of the catalogue, or
//! what the campaign names ([`named`]): a service that runs on its own, or a command.
//!
//! What is started here goes on running between cases and is started anew only for another number of threads. What runs on its own is held
//! while a case wants it, and has its former values in between. After a change of its
//! allocation the windows of its load tell when it has settled ([`settle`]); a service that was just started gets the whole warm-up. The
//! load generator ([`client`]) runs on the CPUs that are not managed, so that it takes nothing from what is measured. Latency and verdict
//! of a case come from the windows of its samples ([`whole`]); what disturbed the host meanwhile is kept with them ([`disturbed`]).

mod client;
pub mod disturbed;
mod memory;
mod named;
pub mod preflight;
pub mod settle;
mod whole;

use self::client::{failed, Load};
use self::disturbed::{Disturbance, Limits, Snapshot, LIMITS};
pub use self::memory::{BenchMemory, Kept};
use self::settle::{Settling, Window};
use self::whole::{whole, Before};
use crate::discover::online;
use crate::feed::Interval;
use crate::local::{LocalConfig, LocalServer};
pub use client::find_loadgen;
pub use named::{look, BenchHow, BenchService};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::{Allocation, CpuSet, Features, FeedState, Latency, Plan, Sending, Server, ServerError, ServiceId, Verdict};

/// Length of the feed's windows.
const WINDOW_MS: u64 = 100;
/// A longer window is not one of 100 ms that came late: its sender speaks more rarely.
const LONG_WINDOW_MS: u64 = 2 * WINDOW_MS;
/// Samples end so long after a window: its datagram has arrived by then, and each sample of 100 ms has one window.
const SLACK_MS: u64 = 20;
/// A window that its sender's want of a CPU holds up is waited for so long.
const LATE_MS: u64 = 2000;
/// How much longer than the longest case a load could go on.
const SPARE_MS: u64 = 5000;

/// A service or job beside the one that is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchNeighbour {
    /// Catalogue name, or id of one that the campaign names.
    pub service: String,
    pub threads: Option<u32>,
    /// A multiple of `Platform::core_step`.
    pub cores: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    /// None or 0 = no load (BE jobs).
    pub rps: Option<f64>,
}

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchCase {
    /// Catalogue name, or id of one that the campaign names.
    pub service: String,
    pub threads: u32,
    /// None or 0 = no load (BE jobs).
    pub rps: Option<f64>,
    /// A multiple of `Platform::core_step`.
    pub cores: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    pub mba_pct: u8,
    /// None: limits on memory stay as they are, and nothing is told of it.
    pub memory: Option<BenchMemory>,
    pub neighbours: Vec<BenchNeighbour>,
    pub seed: u64,
}

/// How a case is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The longest wait for a service to settle; the whole of it where that was just started, has no load, or cannot be judged.
    pub warmup_ms: u64,
    pub interval_ms: u64,
    pub samples: u32,
}

/// One interval.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchSample {
    /// End of the interval, ms since the end of the warm-up.
    pub t_ms: u64,
    pub features: Features,
    /// Requests answered in the interval; None without any. Short intervals rarely resolve a p99: see `verdict`.
    pub latency: Option<Latency>,
    /// None where the case says nothing of memory.
    pub memory: Option<Kept>,
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchResult {
    pub samples: Vec<BenchSample>,
    /// From the first request to the first sample.
    pub warmup_ms: u64,
    /// What had not settled when the samples began; None: nothing that can be seen.
    pub unsettled: Option<String>,
    /// What disturbed the host during the samples, above its limit.
    pub disturbed: Option<String>,
    /// Of the CPU time that the services left over on the managed CPUs, what others took; None where that is not counted.
    pub others_frac: Option<f64>,
    /// All requests answered during the samples; None for cases without load or answers.
    pub latency: Option<Latency>,
    /// The case's verdict and why, in one sentence.
    pub verdict: Verdict,
    pub reason: String,
    /// Rate that the schedule drew.
    pub offered_rps: Option<f64>,
    /// How it was loaded.
    pub sending: Sending,
    /// What is to be said of its memory; None: all of it was as asked, and seen.
    pub memory_note: Option<String>,
    /// What was in force.
    pub allocation: Allocation,
}

/// Runs cases.
#[derive(Debug)]
pub struct LocalBench {
    server: LocalServer,
    /// What the campaign names, in place of the catalogue's services.
    named: BTreeMap<String, BenchService>,
    loadgen: PathBuf,
    client_cpus: CpuSet,
    /// Sending threads of each load generator of our own; None: what its entry says.
    client_threads: Option<u32>,
    /// Threads that each running service was started with.
    running: BTreeMap<ServiceId, (String, u32)>,
    /// Those that hold the load generator's keys.
    preloaded: BTreeSet<ServiceId>,
    relaunch: bool,
    /// What others may take of the managed CPUs before a case is disturbed, beyond [`LIMITS`].
    others_frac: f64,
    /// The case at hand has an axis of memory.
    looks_at_memory: bool,
}

/// What a case runs: id, catalogue name, threads, rate.
type Wanted = (ServiceId, String, Option<u32>, Option<f64>);

/// When the samples of a case begin, on the feed's clock.
struct Begin {
    at_ms: u64,
    warmup_ms: u64,
    before: Before,
    found: Settling,
    /// What was seen since: samples already.
    seen: Vec<Seen>,
}

/// One window of the settling.
struct Seen {
    before: Snapshot,
    features: Features,
    latency: Option<Latency>,
    memory: Option<Kept>,
    window: Interval,
}

/// Samples, and the feed's windows in their time.
struct Sampled {
    samples: Vec<BenchSample>,
    windows: Vec<Interval>,
    before: Snapshot,
    after: Snapshot,
}

impl LocalBench {
    /// # Errors
    /// As [`LocalServer::open`], and without the load generator, or a catalogue and an engine where containers are to be started.
    pub fn open(config: LocalConfig, named: Vec<BenchService>) -> Result<Self, ServerError> {
        let launches = named.is_empty() || named.iter().any(|s| s.how == BenchHow::Launch);
        if launches && config.catalogue.is_none() {
            return Err(ServerError::Invalid("no catalogue. Give the workloads folder".into()));
        }
        let loadgen = find_loadgen()?;
        if launches {
            crate::engine::Engine::find()?;
        }
        let cpus = online(&config.root)?;
        let mut server = LocalServer::open(config)?;
        // Of a campaign that was killed: its containers and processes have gone by now, and others get back what they had.
        server.resume()?;
        let client_cpus = cpus.difference(server.platform().managed);
        let named = named.into_iter().map(|s| (s.id.clone(), s)).collect();
        Ok(LocalBench {
            server,
            named,
            loadgen,
            client_cpus,
            running: BTreeMap::new(),
            preloaded: BTreeSet::new(),
            client_threads: None,
            relaunch: false,
            others_frac: 0.0,
            looks_at_memory: false,
        })
    }

    /// Where the load generators run, and with how many sending threads each.
    pub fn place_clients(&mut self, cpus: Option<CpuSet>, threads: Option<u32>) {
        self.client_cpus = cpus.unwrap_or(self.client_cpus);
        self.client_threads = threads;
    }

    /// The end: what was started here ends, and what runs on its own gets back what it had.
    ///
    /// # Errors
    /// The first that could not be given back; all are tried, and the journal knows the others.
    pub fn finish(mut self) -> Result<(), ServerError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), ServerError> {
        let mut first = Ok(());
        for id in std::mem::take(&mut self.running).into_keys() {
            first = first.and(self.server.stop(&id));
        }
        first.and(self.server.reset().map(|_| ()))
    }

    pub fn server(&self) -> &LocalServer {
        &self.server
    }

    /// Start all services anew for each case and give each the whole warm-up, as the published collections did: for comparison only.
    pub fn relaunch_for_each_case(&mut self) {
        self.relaunch = true;
    }

    /// Take it for this host's way that others have such a share of the managed CPUs' time: only what goes beyond disturbs a case.
    pub fn expect_others(&mut self, others_frac: f64) {
        self.others_frac = others_frac.clamp(0.0, 1.0);
    }

    /// Everything that can be said against a case without running it.
    ///
    /// # Errors
    /// [`ServerError::Invalid`]: field, value, remedy.
    pub fn check(&self, case: &BenchCase) -> Result<(), ServerError> {
        let p = self.server.platform();
        let one = |service: &str, cores: f64, rps: Option<f64>| {
            let job = self.is_job(service)?;
            let units = p.units(cores);
            if units == 0 || (p.cores(units) - cores).abs() > 1e-6 {
                return Err(ServerError::Invalid(format!(
                    "{service}: cores = {cores}. Give a multiple of {} on this machine",
                    p.core_step
                )));
            }
            if units > p.core_units() {
                return Err(ServerError::Invalid(format!(
                    "{service}: cores = {cores}, but {} are managed. Give fewer",
                    p.cores(p.core_units())
                )));
            }
            match rps {
                Some(0.0) if job => Ok(()),
                Some(r) if !(r.is_finite() && r > 0.0) => Err(ServerError::Invalid(format!("{service}: rps = {r}. Give a number above 0"))),
                _ => Ok(()),
            }
        };
        one(&case.service, case.cores, case.rps)?;
        case.neighbours.iter().try_for_each(|n| one(&n.service, n.cores, n.rps))
    }

    /// Run one case: start what is missing, set allocations, load, wait for it to settle, take the samples.
    ///
    /// Blocks for at most about warm-up + samples x interval + 1 s. Call it from a thread that outlives it: children die with theirs.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a case that cannot be run here, else the first thing that failed.
    pub fn measure(&mut self, case: &BenchCase, sampling: Sampling) -> Result<BenchResult, ServerError> {
        self.check(case)?;
        let id = case.service.clone();
        let mut want: Vec<Wanted> = vec![(id.clone(), case.service.clone(), Some(case.threads), load_of(case.rps))];
        let slots = case
            .neighbours
            .iter()
            .enumerate()
            .map(|(i, n)| (self.neighbour_id(i, &n.service), n.service.clone(), n.threads, load_of(n.rps)));
        want.extend(slots);
        let launched = self.start(&want)?;
        self.place(case, &want)?;
        self.looks_at_memory = case.memory.is_some();

        let aside_ms = if launched { sampling.warmup_ms } else { sampling.warmup_ms.min(settle::LEAST_HALF as u64 * WINDOW_MS) };
        let limits_ms = case.memory.map_or(0, |_| memory::MOVES.as_millis() as u64);
        let longest_ms = limits_ms + sampling.warmup_ms - aside_ms + sampling.interval_ms * u64::from(sampling.samples) + SPARE_MS;
        let load = |(id, service, _, rps): &Wanted, seed, longest_ms| {
            let preloaded = self.preloaded.contains(id);
            rps.map(|rps| {
                let (loadgen, port, qos_target_ms) = self.loaded(id, service)?;
                let threads = self.client_threads;
                let load = Load { id, loadgen, port, qos_target_ms, rps, seed, longest_ms, aside_ms, preloaded, threads };
                load.begin(&self.server, &self.loadgen, self.client_cpus)
            })
            .transpose()
        };
        // Neighbours' load starts first and ends last; however long the service takes to fill, they are there until then.
        let until_ended_ms = longest_ms + client::PATIENCE.as_millis() as u64;
        let mut beside = vec![];
        for n in &want[1..] {
            beside.extend(load(n, case.seed ^ 0x5eed, until_ended_ms)?.map(|l| (n.0.as_str(), l)));
        }
        for (id, load) in &mut beside {
            load.first_window(&self.server, id)?;
        }
        let main = load(&want[0], case.seed, longest_ms)?;
        let sending = main.as_ref().map_or(Sending::default(), client::Running::sending);
        let (begin, sampled, client) = match main {
            None => {
                case.memory.map_or(Ok(()), |m| self.limit_memory(&id, m))?;
                let begin = self.after_whole_warmup(&id, self.server.feed().now_ms(), sampling.warmup_ms);
                let sampled = self.sample(&id, sampling, &begin);
                (begin, sampled, None)
            }
            Some(mut load) => {
                let mut first_ms = load.first_window(&self.server, &id)?;
                if let Some(memory) = case.memory {
                    self.limit_memory(&id, memory)?;
                    first_ms = self.server.feed().now_ms();
                }
                let begin = if launched {
                    self.after_whole_warmup(&id, first_ms.saturating_sub(WINDOW_MS), sampling.warmup_ms)
                } else {
                    self.settle(&id, first_ms, sampling)
                };
                let sampled = self.sample(&id, sampling, &begin);
                (begin, sampled, Some(load.finish()?))
            }
        };
        beside.into_iter().try_for_each(|(id, load)| load.still_there(id))?;
        self.preloaded.extend(want.into_iter().filter(|w| w.3.is_some()).map(|w| w.0));

        let allocation = self.server.observe().get(&id).map(|v| v.allocation.clone());
        let ended = || failed(&id, "it ended during the case", "Look at its log, or give it more memory");
        let s = sampled.ok_or_else(ended)?;
        let judged = client.map(|c| whole(&s.windows, begin.before, &c));
        let verdict = judged.as_ref().map_or(Verdict::Valid, |j| j.verdict);
        let unsettled = match begin.found {
            Settling::Settled | Settling::Unknown => None,
            Settling::Moving(what) => Some(format!("{what} still moved after {} ms", begin.warmup_ms)),
            // A queue that began to drain when the samples began is in them.
            Settling::Overloaded => (verdict != Verdict::ServerOverloaded).then(|| "the backlog grew until the samples began".into()),
        };
        let last_seen = s.samples.last().and_then(|s| s.memory).map(|m| m.seen).unwrap_or_default();
        let mhz = s.samples.iter().filter_map(|s| s.features.core_freq_mhz);
        let disturbance = Disturbance::between(&s.before, &s.after, self.server.platform().managed.len(), mhz);
        tracing::debug!(case = %id, cores = case.cores, warmup_ms = begin.warmup_ms, ?verdict, ?unsettled, ?disturbance, "measured");
        Ok(BenchResult {
            samples: s.samples,
            warmup_ms: begin.warmup_ms,
            unsettled,
            disturbed: disturbance.judge(&Limits { others_frac: LIMITS.others_frac + self.others_frac, ..LIMITS }),
            others_frac: disturbance.others_of_rest_frac,
            latency: judged.as_ref().and_then(|j| j.latency),
            verdict,
            reason: judged.as_ref().map_or_else(|| "no load".into(), |j| j.reason.clone()),
            offered_rps: judged.map(|j| j.offered_rps),
            sending,
            memory_note: case.memory.and_then(|_| self.memory_note(&id, &last_seen)),
            allocation: allocation.ok_or_else(ended)?,
        })
    }

    /// Stop what is not wanted, start what is missing or has another number of threads. True if anything was started.
    fn start(&mut self, want: &[Wanted]) -> Result<bool, ServerError> {
        let default = |s: &str| self.default_threads(s);
        let want: Vec<(ServiceId, (String, u32))> =
            want.iter().map(|(id, s, t, _)| (id.clone(), (s.clone(), self.own_threads(s).or(*t).unwrap_or(default(s))))).collect();
        // A service that has ended is no longer there.
        let alive: BTreeSet<ServiceId> = self.server.observe().services.into_iter().map(|v| v.id).collect();
        self.running.retain(|id, _| alive.contains(id));
        let wanted = |id: &ServiceId, what: &(String, u32)| {
            !self.relaunch && !self.is_restarted(&what.0) && want.iter().any(|(w, x)| w == id && x == what)
        };
        let stale: Vec<ServiceId> = self.running.iter().filter(|(id, what)| !wanted(id, what)).map(|(id, _)| id.clone()).collect();
        for id in stale {
            self.server.stop(&id)?;
            self.running.remove(&id);
        }
        let mut launched = false;
        for (slot, (id, what)) in want.iter().enumerate() {
            if self.running.contains_key(id) {
                continue;
            }
            launched = true;
            self.preloaded.remove(id);
            self.bring_in(slot, id, &what.0, what.1)?;
            self.running.insert(id.clone(), what.clone());
        }
        Ok(launched)
    }

    fn place(&mut self, case: &BenchCase, want: &[Wanted]) -> Result<(), ServerError> {
        let p = self.server.platform().clone();
        let mut holdings =
            vec![Holding { members: vec![want[0].0.clone()], cores: p.units(case.cores), ways: case.ways, mba_pct: case.mba_pct }];
        for (n, (id, ..)) in case.neighbours.iter().zip(&want[1..]) {
            holdings.push(Holding { members: vec![id.clone()], cores: p.units(n.cores), ways: n.ways, mba_pct: 100 });
        }
        let in_force = self.server.observe().services.into_iter().filter(|v| v.placed).map(|v| (v.id, v.allocation)).collect();
        let allocations = pack(&p, &in_force, &holdings, &[]).map_err(ServerError::Invalid)?;
        let mut plan = Plan::cores_and_ways(allocations);
        if case.memory.is_some() {
            // One that was measured before is without a limit beside another. That of the measured one follows (bench/memory.rs).
            for (id, ..) in &want[1..] {
                if let Some(change) = plan.changes.get_mut(id) {
                    let none = BenchMemory::default();
                    (change.mem_limit, change.zswap_max) = (Some(none.limit_bytes.into()), Some(none.pool_bytes.into()));
                }
            }
        }
        self.server.apply(&plan)?;
        Ok(())
    }

    /// Without a look at the service: after the whole warm-up.
    fn after_whole_warmup(&self, id: &str, began_ms: u64, warmup_ms: u64) -> Begin {
        let at_ms = began_ms + warmup_ms + SLACK_MS;
        self.sleep_until(at_ms);
        let heard = self.server.feed().with(|w| w.newer(id, 0));
        let before = heard.iter().filter(|w| w.arrived_ms <= at_ms).fold(Before::default(), Before::and);
        Begin { at_ms, warmup_ms, before, found: Settling::Unknown, seen: vec![] }
    }

    /// As soon as the windows say that the service has settled, or that it never will; after the whole warm-up at the latest.
    ///
    /// Once settled, it was so in the newer half already: where a sample is as long as a window, that half are its first samples.
    fn settle(&mut self, id: &str, first_ms: u64, sampling: Sampling) -> Begin {
        let began_ms = first_ms.saturating_sub(WINDOW_MS);
        let limit_ms = began_ms + sampling.warmup_ms + SLACK_MS;
        let (mut windows, mut heard_ms, mut found, mut rare) = (vec![], 0, Settling::Unknown, false);
        // After each window.
        let mut befores: Vec<Before> = vec![];
        let kept_as_samples = sampling.interval_ms == WINDOW_MS;
        let (mut seen, mut before): (Vec<Seen>, _) = (vec![], kept_as_samples.then(|| self.snapshot()));
        loop {
            let (new, now_ms) = (self.server.feed().with(|w| w.newer(id, heard_ms)), self.server.feed().now_ms());
            if let Some(last) = new.last() {
                heard_ms = last.arrived_ms;
                rare |= new.iter().any(|i| i.window_ms > LONG_WINDOW_MS);
                let observed = self.server.observe();
                let view = observed.get(id);
                let cpu_cores = view.and_then(|v| v.features.cpu_usage_cores);
                windows.extend(new.iter().map(|i| self.window(i, cpu_cores)));
                for w in &new {
                    befores.push(befores.last().copied().unwrap_or_default().and(w));
                }
                found = settle::judge(&windows);
                let after = kept_as_samples.then(|| self.snapshot());
                match (std::mem::replace(&mut before, after), view, &new[..]) {
                    (Some(before), Some(v), [window]) if window.window_ms <= LONG_WINDOW_MS => {
                        seen.push(Seen {
                            before,
                            features: v.features,
                            latency: v.interval,
                            memory: self.memory_of(v),
                            window: window.clone(),
                        });
                    }
                    // Counters over two windows are no sample of either.
                    _ => seen.clear(),
                }
            }
            let over = matches!(found, Settling::Settled | Settling::Overloaded);
            if over || now_ms >= limit_ms {
                let half = if found == Settling::Settled { settle::half(&windows) } else { 0 };
                let kept = half.min(seen.len()).min(sampling.samples as usize);
                let seen = seen.split_off(seen.len() - kept);
                let at_ms = match over {
                    true => heard_ms + SLACK_MS - WINDOW_MS * kept as u64,
                    false => limit_ms,
                };
                let before = befores.iter().rev().nth(kept).copied().unwrap_or_default();
                // As long as the windows of the client's clock: when each arrived depends on this host.
                let warmup_ms = match over {
                    true if rare => at_ms.saturating_sub(began_ms).min(sampling.warmup_ms),
                    true => (WINDOW_MS * (windows.len() - kept) as u64).min(sampling.warmup_ms),
                    false => sampling.warmup_ms,
                };
                return Begin { at_ms, warmup_ms, before, found, seen };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn window(&self, i: &Interval, cpu_cores: Option<f64>) -> Window {
        let l = self.server.feed().with(|w| w.summary(i));
        Window {
            count: i.counts.total,
            p50_ms: l.map(|l| l.p50_ms),
            p95_ms: l.map(|l| l.p95_ms),
            offered: i.offered,
            dropped: i.dropped,
            outstanding: i.outstanding,
            cpu_cores,
        }
    }

    fn sleep_until(&self, feed_ms: u64) {
        std::thread::sleep(Duration::from_millis(feed_ms.saturating_sub(self.server.feed().now_ms())));
    }

    fn snapshot(&mut self) -> Snapshot {
        let managed = self.server.platform().managed;
        let (services_s, services_stalled_s) = self.server.used_by_all();
        let root = self.server.root();
        let cpu = disturbed::cpu_s(root, &managed);
        Snapshot {
            at_s: self.server.feed().now_ms() as f64 * 1e-3,
            // Where the client has no CPUs of its own it is one of the others.
            busy_s: cpu.map(|c| c.0).filter(|_| !self.client_cpus.is_empty()),
            steal_s: cpu.map(|c| c.1),
            services_s,
            host_stalled_s: disturbed::stalled_s(root),
            services_stalled_s,
            resctrl: self.server.schemata(),
            foreign_writes: self.server.foreign_changes().values().sum(),
        }
    }

    /// Samples on a fixed grid from where they begin. None if the service has gone.
    fn sample(&mut self, id: &str, s: Sampling, begin: &Begin) -> Option<Sampled> {
        let start_ms = begin.at_ms;
        let (before, mut heard_ms) = match (begin.seen.first(), begin.seen.last()) {
            (Some(first), Some(last)) => (first.before.clone(), last.window.arrived_ms),
            _ => {
                self.sleep_until(start_ms);
                let before = self.snapshot();
                // Counters start here.
                self.server.observe();
                (before, start_ms)
            }
        };
        let mut after = None;
        let mut windows: Vec<Interval> = begin.seen.iter().map(|s| s.window.clone()).collect();
        let sample = |(i, seen): (u64, &Seen)| BenchSample {
            t_ms: i * s.interval_ms,
            features: seen.features,
            latency: seen.latency,
            memory: seen.memory,
        };
        let mut samples: Vec<BenchSample> = (1..).zip(&begin.seen).map(sample).collect();
        for i in samples.len() as u64 + 1..=u64::from(s.samples) {
            // The grid is the load's: one that began when this thread woke would outlast the load on a host that stalls.
            self.sleep_until(start_ms + i * s.interval_ms);
            let seen = self.server.observe();
            let v = seen.get(id)?;
            let is_last = i == u64::from(s.samples);
            if is_last {
                after = Some(self.snapshot());
            }
            let spoken_ms: u64 = windows.iter().map(|w| w.window_ms).sum();
            let patience_ms = if is_last { LATE_MS } else { LATE_MS.min(s.interval_ms / 2) };
            let time_ms = (i * s.interval_ms).saturating_sub(spoken_ms);
            let new = self.server.feed().newer_of(id, heard_ms, time_ms, WINDOW_MS, patience_ms);
            let interval = match (&v.feed, &new) {
                // Pages are read as they are: nothing of theirs comes late.
                (_, None) => v.interval,
                (FeedState::Doubtful { .. }, _) => None,
                // The server's own interval is up to its look, before what was waited for.
                (_, Some(_)) => self.server.feed().with(|w| w.interval(id, heard_ms)),
            };
            let new = new.unwrap_or_default();
            heard_ms = new.last().map_or(heard_ms, |w| w.arrived_ms);
            // A window that is longer than the interval speaks for the case, not for the interval in which it happened to end.
            let latency = interval.filter(|_| new.iter().all(|w| w.window_ms <= LONG_WINDOW_MS.max(s.interval_ms)));
            samples.push(BenchSample { t_ms: i * s.interval_ms, features: v.features, latency, memory: self.memory_of(v) });
            // One that began long before the samples did has seen the settling.
            let within = |w: &Interval| w.window_ms <= LONG_WINDOW_MS || w.arrived_ms.saturating_sub(w.window_ms) + WINDOW_MS >= start_ms;
            windows.extend(new.into_iter().filter(within));
        }
        let after = after.unwrap_or_else(|| self.snapshot());
        Some(Sampled { samples, windows, before, after })
    }
}

impl Drop for LocalBench {
    fn drop(&mut self) {
        if let Err(e) = self.give_back() {
            tracing::error!("{e}");
        }
    }
}

/// Rate of a load that there is.
fn load_of(rps: Option<f64>) -> Option<f64> {
    rps.filter(|r| *r > 0.0)
}
