//! Cases of a campaign on this machine: a container under open-loop load with a given allocation.
//!
//! A service's container goes on running between cases and is started anew only for another number of threads. The load
//! generator runs on the CPUs that are not managed, so that it takes nothing from what is measured.

use crate::catalogue::EntryKind;
use crate::child::{Guarded, Priority};
use crate::discover::online;
use crate::engine::in_path;
use crate::local::{LaunchSpec, LocalConfig, LocalServer};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_server::layout::{pack, Holding};
use surefoot_server::{Allocation, CpuSet, Features, Latency, Plan, Server, ServerError, ServiceId, Verdict};

/// A service or job beside the one that is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchNeighbour {
    /// Catalogue name.
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
    /// Catalogue name.
    pub service: String,
    pub threads: u32,
    /// None or 0 = no load (BE jobs).
    pub rps: Option<f64>,
    /// A multiple of `Platform::core_step`.
    pub cores: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    pub mba_pct: u8,
    pub neighbours: Vec<BenchNeighbour>,
    pub seed: u64,
}

/// How a case is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
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
}

/// What came of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchResult {
    pub samples: Vec<BenchSample>,
    /// All requests due after the warm-up, from the load generator's report; None for cases without load or answers.
    pub latency: Option<Latency>,
    /// The run's verdict and why, in one sentence.
    pub verdict: Verdict,
    pub reason: String,
    /// Rate that the schedule drew.
    pub offered_rps: Option<f64>,
    /// What was in force.
    pub allocation: Allocation,
}

/// Runs cases.
#[derive(Debug)]
pub struct LocalBench {
    server: LocalServer,
    loadgen: PathBuf,
    client_cpus: CpuSet,
    /// Threads that each running service was started with.
    running: BTreeMap<ServiceId, (String, u32)>,
}

/// The parts of the load generator's report that are used here.
#[derive(Debug, Deserialize)]
struct Report {
    offered_rps: f64,
    achieved_rps: f64,
    errors: u64,
    response_time: ReportLatency,
    verdict: ReportVerdict,
}

#[derive(Debug, Deserialize)]
struct ReportLatency {
    count: u64,
    mean_ms: Option<f64>,
    p50: ReportQuantile,
    p95: ReportQuantile,
    p99: ReportQuantile,
}

#[derive(Debug, Deserialize)]
struct ReportQuantile {
    value_ms: Option<f64>,
    lower_ms: Option<f64>,
    upper_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct ReportVerdict {
    kind: Verdict,
    reason: String,
}

impl Report {
    fn latency(&self) -> Option<Latency> {
        let r = &self.response_time;
        Some(Latency {
            count: r.count,
            mean_ms: r.mean_ms?,
            p50_ms: r.p50.value_ms?,
            p95_ms: r.p95.value_ms?,
            p99_ms: r.p99.value_ms?,
            p99_low_ms: r.p99.lower_ms,
            p99_high_ms: r.p99.upper_ms,
            achieved_rps: self.achieved_rps,
            errors: self.errors,
            verdict: self.verdict.kind,
        })
    }
}

fn failed(what: impl Into<String>, cause: impl std::fmt::Display, remedy: &str) -> ServerError {
    ServerError::Unavailable { what: what.into(), cause: cause.to_string(), remedy: remedy.into() }
}

/// The load generator: `SUREFOOT_LOADGEN`, else beside this program, else in PATH.
///
/// # Errors
/// [`ServerError::Unavailable`] that says how to build it.
pub fn find_loadgen() -> Result<PathBuf, ServerError> {
    let name = "surefoot-loadgen";
    let remedy = "Build it: cargo build --release -p surefoot-loadgen, or set SUREFOOT_LOADGEN";
    if let Some(p) = std::env::var_os("SUREFOOT_LOADGEN").filter(|p| !p.is_empty()) {
        let p = PathBuf::from(p);
        return if p.is_file() { Ok(p) } else { Err(failed(name, format!("SUREFOOT_LOADGEN={} is no file", p.display()), remedy)) };
    }
    // Test programs lie one folder below.
    let exe = std::env::current_exe().ok();
    let beside = exe.iter().flat_map(|e| e.ancestors().skip(1).take(2)).map(|d| d.join(name)).find(|p| p.is_file());
    beside.or_else(|| in_path(name)).ok_or_else(|| failed(name, "not found beside this program nor in PATH", remedy))
}

/// Share of the QoS target by which the client may move a p99. A campaign asks on which side of the target a case lies; the
/// client's lag is part of the response time, so what it adds can only make a case look worse, never better.
const CLIENT_SHARE_OF_TARGET: f64 = 0.125;

/// The load generator's limit on its own lag, ms. It allows a fifth of that limit as bias of the p99 (its verdict.rs) and
/// never less than its own default of 1 ms.
fn lag_limit_ms(qos_target_ms: Option<f64>) -> f64 {
    (5.0 * CLIENT_SHARE_OF_TARGET * qos_target_ms.unwrap_or(0.0)).max(1.0)
}

/// Arguments of the load generator for one service.
fn loadgen_args(
    server: &LocalServer,
    id: &str,
    service: &str,
    rps: f64,
    seed: u64,
    duration_ms: u64,
    warmup_ms: u64,
) -> Result<Vec<String>, ServerError> {
    let catalogue = server.catalogue().ok_or_else(|| ServerError::Invalid("no catalogue. Give the workloads folder".into()))?;
    let entry = catalogue.get(service)?;
    let l =
        entry.loadgen.as_ref().ok_or_else(|| ServerError::Invalid(format!("{service}: rps given, but it is a BE job. Leave rps out")))?;
    if !l.is_own() {
        let what = format!("{service} is loaded with {}, which is not started here. Run it yourself: docs/workloads.md", l.protocol);
        return Err(ServerError::Invalid(what));
    }
    let port = server.port(id).ok_or_else(|| ServerError::Invalid(format!("{id} was not launched here. Launch it first")))?;
    let mut args: Vec<String> = [
        ("--target", format!("127.0.0.1:{port}")),
        ("--protocol", l.protocol.clone()),
        ("--connections", l.connections.to_string()),
        ("--rps", rps.to_string()),
        ("--duration", format!("{duration_ms}ms")),
        ("--warmup", format!("{warmup_ms}ms")),
        ("--seed", seed.to_string()),
        ("--service", id.to_string()),
        ("--feed", server.feed_path().display().to_string()),
        ("--lag-limit-ms", lag_limit_ms(entry.qos_target_ms).to_string()),
    ]
    .into_iter()
    .flat_map(|(k, v)| [k.to_string(), v])
    .collect();
    args.push("--json".into());
    args.extend(l.args.iter().cloned());
    Ok(args)
}

impl LocalBench {
    /// # Errors
    /// As [`LocalServer::open`], and without a catalogue, an engine or the load generator.
    pub fn open(config: LocalConfig) -> Result<Self, ServerError> {
        if config.catalogue.is_none() {
            return Err(ServerError::Invalid("no catalogue. Give the workloads folder".into()));
        }
        let loadgen = find_loadgen()?;
        crate::engine::Engine::find()?;
        let cpus = online(&config.root)?;
        let server = LocalServer::open(config)?;
        let client_cpus = cpus.difference(server.platform().managed);
        Ok(LocalBench { server, loadgen, client_cpus, running: BTreeMap::new() })
    }

    pub fn server(&self) -> &LocalServer {
        &self.server
    }

    /// Everything that can be said against a case without running it.
    ///
    /// # Errors
    /// [`ServerError::Invalid`]: field, value, remedy.
    pub fn check(&self, case: &BenchCase) -> Result<(), ServerError> {
        let catalogue = self.server.catalogue().ok_or_else(|| ServerError::Invalid("no catalogue. Give the workloads folder".into()))?;
        let p = self.server.platform();
        let one = |service: &str, cores: f64, rps: Option<f64>| {
            let job = catalogue.get(service)?.kind == EntryKind::Be;
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

    /// Run one case: start what is missing, set allocations, load, warm up, take the samples.
    ///
    /// Blocks for about warm-up + samples x interval + 1 s. Call it from a thread that outlives it: children die with theirs.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a case that cannot be run here, else the first thing that failed.
    pub fn measure(&mut self, case: &BenchCase, sampling: Sampling) -> Result<BenchResult, ServerError> {
        self.check(case)?;
        let id = case.service.clone();
        let mut want: Vec<(ServiceId, String, Option<u32>, Option<f64>)> =
            vec![(id.clone(), case.service.clone(), Some(case.threads), load_of(case.rps))];
        let slots = case
            .neighbours
            .iter()
            .enumerate()
            .map(|(i, n)| (format!("nb{}-{}", i + 1, n.service), n.service.clone(), n.threads, load_of(n.rps)));
        want.extend(slots);
        self.start(&want)?;
        self.place(case, &want)?;

        let duration_ms = sampling.interval_ms * u64::from(sampling.samples);
        // Neighbours' load starts first and outlasts the measurement.
        let mut children = vec![];
        for (nb, service, _, rps) in &want[1..] {
            if let Some(rps) = rps {
                children.push(self.load(nb, service, *rps, case.seed ^ 0x5eed, duration_ms + 5000, sampling.warmup_ms)?);
            }
        }
        let main = want[0].3.map(|rps| self.load(&id, &case.service, rps, case.seed, duration_ms, sampling.warmup_ms)).transpose()?;
        let (samples, report) = match main {
            None => (self.sample(&id, sampling, self.server.feed().now_ms() + sampling.warmup_ms), None),
            Some(mut child) => {
                let start = self.first_window(&id, &mut child)?;
                let samples = self.sample(&id, sampling, start + sampling.warmup_ms);
                (samples, Some(finish(child)?))
            }
        };
        drop(children);
        let allocation = self.server.observe().get(&id).map(|v| v.allocation.clone());
        let ended = || failed(&id, "it ended during the case", "Look at its log, or give it more memory");
        let samples = samples.filter(|s| s.len() == sampling.samples as usize).ok_or_else(ended)?;
        Ok(BenchResult {
            samples,
            latency: report.as_ref().and_then(Report::latency),
            verdict: report.as_ref().map_or(Verdict::Valid, |r| r.verdict.kind),
            reason: report.as_ref().map_or_else(|| "no load".into(), |r| r.verdict.reason.clone()),
            offered_rps: report.as_ref().map(|r| r.offered_rps),
            allocation: allocation.ok_or_else(ended)?,
        })
    }

    /// Stop what is not wanted, start what is missing or has another number of threads.
    fn start(&mut self, want: &[(ServiceId, String, Option<u32>, Option<f64>)]) -> Result<(), ServerError> {
        let default = |s: &str| self.server.catalogue().and_then(|c| c.get(s).ok()).map_or(1, |e| e.default_threads);
        let want: Vec<(ServiceId, (String, u32))> =
            want.iter().map(|(id, s, t, _)| (id.clone(), (s.clone(), t.unwrap_or(default(s))))).collect();
        // A service that has ended is no longer there.
        let alive: BTreeSet<ServiceId> = self.server.observe().services.into_iter().map(|v| v.id).collect();
        self.running.retain(|id, _| alive.contains(id));
        let stale: Vec<ServiceId> =
            self.running.iter().filter(|(id, what)| !want.iter().any(|(w, x)| w == *id && x == *what)).map(|(id, _)| id.clone()).collect();
        for id in stale {
            self.server.stop(&id)?;
            self.running.remove(&id);
        }
        for (slot, (id, what)) in want.iter().enumerate() {
            if self.running.contains_key(id) {
                continue;
            }
            let (service, threads) = what.clone();
            let base = self.server.catalogue().and_then(|c| c.get(&service).ok()).and_then(|e| e.port);
            // Neighbours of the same service get ports of their own.
            let port = base.map(|p| p.saturating_add(slot as u16));
            self.server.launch(&LaunchSpec { id: id.clone(), service, threads: Some(threads), port })?;
            self.running.insert(id.clone(), what.clone());
        }
        Ok(())
    }

    fn place(&mut self, case: &BenchCase, want: &[(ServiceId, String, Option<u32>, Option<f64>)]) -> Result<(), ServerError> {
        let p = self.server.platform().clone();
        let mut holdings =
            vec![Holding { members: vec![want[0].0.clone()], cores: p.units(case.cores), ways: case.ways, mba_pct: case.mba_pct }];
        for (n, (id, ..)) in case.neighbours.iter().zip(&want[1..]) {
            holdings.push(Holding { members: vec![id.clone()], cores: p.units(n.cores), ways: n.ways, mba_pct: 100 });
        }
        let in_force = self.server.observe().services.into_iter().filter(|v| v.placed).map(|v| (v.id, v.allocation)).collect();
        let allocations = pack(&p, &in_force, &holdings, &[]).map_err(ServerError::Invalid)?;
        self.server.apply(&Plan { allocations, ..Plan::default() })?;
        Ok(())
    }

    fn load(&self, id: &str, service: &str, rps: f64, seed: u64, duration_ms: u64, warmup_ms: u64) -> Result<Guarded, ServerError> {
        let mut cmd = Command::new(&self.loadgen);
        cmd.args(loadgen_args(&self.server, id, service, rps, seed, duration_ms, warmup_ms)?);
        cmd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let now_ms = self.server.feed().now_ms();
        self.server.feed().with(|w| w.begin(id, now_ms));
        Guarded::spawn(cmd, self.client_cpus, Priority::Realtime)
            .map_err(|e| failed(self.loadgen.display().to_string(), e, "Build it: cargo build --release -p surefoot-loadgen"))
    }

    /// When the stream began, on the feed's clock: one window before the first datagram's arrival.
    fn first_window(&self, id: &str, child: &mut Guarded) -> Result<u64, ServerError> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(t) = self.server.feed().with(|w| w.first_arrival(id)) {
                return Ok(t.saturating_sub(100));
            }
            if child.0.try_wait().ok().flatten().is_some() || Instant::now() > deadline {
                return Err(failed(format!("load on {id}"), said(child), "Run surefoot-loadgen by hand to see more"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Samples on a fixed grid from `start_ms` (the feed's clock). None if the service has gone.
    fn sample(&mut self, id: &str, s: Sampling, start_ms: u64) -> Option<Vec<BenchSample>> {
        let wait = start_ms.saturating_sub(self.server.feed().now_ms());
        std::thread::sleep(Duration::from_millis(wait));
        // Counters start here.
        self.server.observe();
        let mut out = vec![];
        for i in 1..=u64::from(s.samples) {
            // The grid is the load's: one that began when this thread woke would outlast the load on a host that stalls.
            let wait = (start_ms + i * s.interval_ms).saturating_sub(self.server.feed().now_ms());
            std::thread::sleep(Duration::from_millis(wait));
            let seen = self.server.observe();
            let v = seen.get(id)?;
            out.push(BenchSample { t_ms: i * s.interval_ms, features: v.features, latency: v.interval });
        }
        Some(out)
    }
}

/// Rate of a load that there is.
fn load_of(rps: Option<f64>) -> Option<f64> {
    rps.filter(|r| *r > 0.0)
}

/// What a child wrote to stderr, one line; kills it if it still runs.
fn said(child: &mut Guarded) -> String {
    let _ = child.0.kill();
    let mut text = String::new();
    if let Some(mut e) = child.0.stderr.take() {
        let _ = e.read_to_string(&mut text);
    }
    text.lines().last().map_or_else(|| "the load generator sent nothing".into(), str::to_string)
}

/// Wait for the end of the run and read its report.
fn finish(mut child: Guarded) -> Result<Report, ServerError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let remedy = "Run surefoot-loadgen by hand to see more";
    let status = loop {
        match child.0.try_wait() {
            Ok(Some(s)) => break s,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => return Err(failed("load generator", "it did not end in time", remedy)),
            Err(e) => return Err(failed("load generator", e, remedy)),
        }
    };
    if !status.success() {
        return Err(failed("load generator", said(&mut child), remedy));
    }
    let mut text = String::new();
    if let Some(mut o) = child.0.stdout.take() {
        o.read_to_string(&mut text).map_err(|e| failed("load generator", e, remedy))?;
    }
    serde_json::from_str(&text).map_err(|e| failed("report of the load generator", e, "Build both programs from the same source"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report's percentiles arrive with their intervals; a run without a p99 has no latency, but a verdict.
    #[test]
    fn reports_are_read() {
        let text = |p99: &str| {
            format!(
                r#"{{"offered_rps":100.5,"achieved_rps":99.0,"errors":1,"new_field":[],"verdict":{{"kind":"server-overloaded","reason":"slow"}},
                "response_time":{{"count":7,"mean_ms":1.5,"p50":{{"value_ms":1.0,"lower_ms":null,"upper_ms":null}},
                "p95":{{"value_ms":2.0,"lower_ms":null,"upper_ms":null}},"p99":{{"value_ms":{p99},"lower_ms":2.5,"upper_ms":null}}}}}}"#
            )
        };
        let r: Report = serde_json::from_str(&text("3.0")).unwrap();
        let l = r.latency().unwrap();
        assert_eq!((l.count, l.p99_ms, l.p99_low_ms, l.p99_high_ms, l.verdict), (7, 3.0, Some(2.5), None, Verdict::ServerOverloaded));
        let r: Report = serde_json::from_str(&text("null")).unwrap();
        assert!(r.latency().is_none() && r.verdict.reason == "slow");
    }
}
