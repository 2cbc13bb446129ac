//! This machine as a target: what a sweep with `--server local` launches, loads and measures.

use crate::base::cli;
use crate::base::digest::sha256_hex;
use crate::base::error::server_error;
use crate::base::error::{Error, Result};
use crate::base::places::{catalogue_dir, state_dir};
use crate::stage::config::How;
use crate::stage::target::{LcService, Target};
use crate::sweep::campaign::{self, Campaign, Service};
use crate::sweep::expand::{Case, Expansion};
use crate::sweep::journal::Reader;
use crate::sweep::plan::{print_plan, to_measure, Doubts};
use crate::sweep::rows::{Marks, Measured, MemoryRow, Row, State};
use crate::sweep::told::finish;
use crate::sweep::tries::{Quality, Tries, MOST_TRIES};
use crate::sweep::{case_s, Bench};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use surefoot_linux::bench::look;
use surefoot_linux::bench::preflight::{self, Start};
use surefoot_linux::catalogue::Loadgen;
use surefoot_linux::discover::{discover_with, memory_control, online, unlike};
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::{
    discover, BenchCase, BenchHow, BenchMemory, BenchNeighbour, BenchResult, BenchService, Catalogue, Entry, LocalBench, LocalConfig, Root,
    Sampling,
};
use surefoot_server::window::MIN_COUNT_P99_INTERVAL;
use surefoot_server::{CpuSet, Kind, Platform, Server, ServerError, Verdict};

/// About what a row takes on disk.
const BYTES_PER_ROW: u64 = 200;

/// The target of a campaign on this machine.
pub fn target(catalogue: &Catalogue, entries: &[String], platform: Platform, feature_set: &str) -> Result<Target> {
    let (mut services, mut jobs, mut sources) = (BTreeMap::new(), vec![], BTreeMap::new());
    for name in entries {
        let e = catalogue.get(name).map_err(server_error)?;
        sources.insert(name.clone(), sha256_hex(format!("{e:?}").as_bytes()));
        match e.server_kind() {
            Kind::Lc { qos_target_ms } => {
                let max_load_rps = e.max_load_rps_on(&platform.name);
                let rps_levels = e.rps_levels.clone();
                services.insert(name.clone(), LcService { qos_target_ms, max_load_rps, rps_levels, working_set_bytes: None });
            }
            Kind::Be => jobs.push(name.clone()),
        }
    }
    Ok(machine(platform, services, jobs, sources, feature_set))
}

/// As [`target`], of the services that the campaign itself names.
fn target_of_named(campaign: &Campaign, named: &[Named], platform: Platform, feature_set: &str) -> Target {
    let (mut services, mut jobs, mut sources) = (BTreeMap::new(), vec![], BTreeMap::new());
    for n in named {
        let id = n.bench.id.clone();
        match n.bench.kind {
            Kind::Lc { qos_target_ms } => {
                let (max_load_rps, rps_levels) = (n.max_load_rps, n.rps_levels.clone());
                services.insert(id.clone(), LcService { qos_target_ms, max_load_rps, rps_levels, working_set_bytes: None });
            }
            Kind::Be => jobs.push(id.clone()),
        }
        let of_catalogue = n.entry.clone().unwrap_or_default();
        let own = campaign.service(&id).map(Service::canonical).unwrap_or_default();
        sources.insert(id, sha256_hex(format!("{own} {of_catalogue}").as_bytes()));
    }
    machine(platform, services, jobs, sources, feature_set)
}

/// A real machine: no plant, no loads with shapes, no profiles of paging.
fn machine(
    platform: Platform,
    services: BTreeMap<String, LcService>,
    jobs: Vec<String>,
    sources: BTreeMap<String, String>,
    feature_set: &str,
) -> Target {
    Target {
        plant: None,
        platform,
        services,
        jobs,
        feature_set: feature_set.into(),
        sources,
        traces: BTreeMap::new(),
        paged: Default::default(),
        memory: memory_control(&Root::default()),
    }
}

/// A service that the campaign names, with what the catalogue adds where it has one of that name.
struct Named {
    bench: BenchService,
    rps_levels: Vec<f64>,
    max_load_rps: Option<f64>,
    /// What the catalogue says, where that was asked.
    entry: Option<String>,
}

/// # Errors
/// [`Error::BadInput`] for a service that nothing says how to load, or that is to be launched and is not in the catalogue.
fn named(campaign: &Campaign, catalogue: Option<&Catalogue>) -> Result<Vec<Named>> {
    let one = |s: &Service| {
        let (n, m) = (&s.node, &s.more);
        let entry = catalogue.and_then(|c| c.get(&n.service).ok());
        let (how, kind) = match (&n.how, &m.command, m.kind) {
            (How::Adopt { target, kind }, ..) => (BenchHow::Adopt(target.clone()), *kind),
            (How::Launch { .. }, Some(command), kind) => (BenchHow::Run(command.clone()), kind.unwrap_or(Kind::Be)),
            (How::Launch { .. }, None, _) => match (catalogue, entry) {
                (_, Some(e)) => (BenchHow::Launch, e.server_kind()),
                (Some(c), None) => {
                    return Err(campaign.wrong_of(
                        s,
                        "service.service",
                        server_error(c.get(&n.service).err().unwrap_or_else(|| ServerError::Invalid("no catalogue".into()))),
                    ))
                }
                (None, None) => {
                    let what =
                        "is of the catalogue, and there is none. Name its container, cgroup, unit, pid or command, or give --catalogue";
                    return Err(campaign.wrong_of(s, "service.service", what));
                }
            },
        };
        let loadgen = m.loadgen.clone().or_else(|| entry?.loadgen.clone().filter(|l| l.is_run_here()));
        let port = m.port.or_else(|| entry?.port);
        let needs_port = loadgen.as_ref().is_none_or(|l| l.is_own() || l.asks_for("{port}"));
        if kind != Kind::Be && (loadgen.is_none() || port.is_none() && needs_port) {
            let what = match (&loadgen, port) {
                (None, _) => "service.loadgen",
                _ => "service.port",
            };
            let remedy = "Write port = N and loadgen = { protocol = \"memcached\", connections = 8 }, or name a service of the catalogue";
            return Err(campaign.wrong_of(s, what, format!("is missing: nothing says how {} is loaded. {remedy}", s.said())));
        }
        let rps_levels = if m.rps_levels.is_empty() { entry.map_or(vec![], |e| e.rps_levels.clone()) } else { m.rps_levels.clone() };
        let max_load_rps = m.max_load_rps.or_else(|| entry?.max_load_rps_on("local"));
        let threads = match (&how, n.threads) {
            (BenchHow::Launch, t) => t,
            _ => campaign.fixed_threads(&n.id).ok().flatten().or(n.threads),
        };
        let restart = m.restart || matches!(how, BenchHow::Launch) && entry.is_some_and(|e| e.restart);
        let bench = BenchService { id: n.id.clone(), service: n.service.clone(), kind, threads, how, loadgen, port, restart };
        Ok(Named { bench, rps_levels, max_load_rps, entry: entry.map(|e| format!("{e:?}")) })
    };
    campaign.services.iter().map(one).collect()
}

/// Field that names services of the catalogue.
const SWEPT: &str = "sweep.services";

/// What a campaign on this machine measures: the services that it names, else the catalogue's.
struct Services {
    catalogue: Option<Catalogue>,
    named: Vec<Named>,
}

impl Services {
    fn of(campaign: &Campaign, dir: &Path, given: bool) -> Result<Self> {
        // A catalogue adds to what the campaign names; without one, what it says is enough.
        let catalogue = match Catalogue::load(dir) {
            Ok(c) => Some(c),
            Err(_) if !given && !campaign.services.is_empty() => None,
            Err(e) => return Err(server_error(e)),
        };
        Ok(Services { named: named(campaign, catalogue.as_ref())?, catalogue })
    }

    fn target(&self, campaign: &Campaign, platform: Platform, feature_set: &str) -> Result<Target> {
        match &self.catalogue {
            Some(c) if campaign.services.is_empty() => {
                let names: Vec<String> = c.entries.keys().cloned().collect();
                target(c, &names, platform, feature_set)
            }
            _ => Ok(target_of_named(campaign, &self.named, platform, feature_set)),
        }
    }

    fn bench(&self) -> Vec<BenchService> {
        self.named.iter().map(|n| n.bench.clone()).collect()
    }

    /// What the sweep starts or loads.
    fn starts<'a>(&'a self, planned: &'a Expansion) -> Vec<Start<'a>> {
        let entry = |name: &str| self.catalogue.as_ref().and_then(|c| c.get(name).ok());
        if self.named.is_empty() {
            let of = |id: &'a str| {
                let entry = entry(id);
                let loadgen = entry.and_then(|e| e.loadgen.as_ref());
                Start { id, field: SWEPT, how: &BenchHow::Launch, entry, port: entry.and_then(|e| e.port), loadgen }
            };
            return planned.services().map(of).collect();
        }
        let of = |n: &'a Named| {
            let (b, entry) = (&n.bench, entry(&n.bench.service).filter(|_| matches!(n.bench.how, BenchHow::Launch)));
            Start {
                id: &b.id,
                field: "service",
                how: &b.how,
                entry,
                port: b.port.or(entry.and_then(|e| e.port)),
                loadgen: b.loadgen.as_ref(),
            }
        };
        self.named.iter().map(of).collect()
    }

    /// Services of the catalogue that may be drawn as neighbours and have no image here. Which are drawn is known case by case only.
    fn undrawable(&self, campaign: &Campaign, planned: &Expansion, images: bool) -> Option<String> {
        if !images || !self.named.is_empty() || campaign.sweep.neighbours.count.iter().all(|n| *n == 0) {
            return None;
        }
        let measured: Vec<&str> = planned.services().collect();
        let entries = self.catalogue.iter().flat_map(|c| c.entries.values());
        let jobs = &campaign.sweep.neighbours.jobs;
        let may = |e: &&Entry| e.loadgen.as_ref().is_some_and(Loadgen::is_run_here) || jobs.contains(&e.name);
        let drawn = entries.filter(may).filter(|e| !measured.contains(&e.name.as_str()));
        let gone = preflight::without_image(drawn);
        (!gone.is_empty()).then(|| {
            format!(
                "sweep.neighbours: no image of {}: cases that draw one of them as a neighbour fail. Build them from the sources \
                 (workloads/NAME/Dockerfile), or pull them",
                gone.join(", ")
            )
        })
    }

    /// That each load generator of our own has a connection for each of its threads.
    fn check_threads(&self, campaign: &Campaign) -> Result<()> {
        let Some(threads) = campaign.generator.threads else { return Ok(()) };
        let named = self.named.iter().map(|n| (n.bench.id.as_str(), n.bench.loadgen.as_ref()));
        let all: Vec<_> = match &self.catalogue {
            Some(c) if campaign.services.is_empty() => c.entries.iter().map(|(name, e)| (name.as_str(), e.loadgen.as_ref())).collect(),
            _ => named.collect(),
        };
        let asked = |id: &str| campaign.sweep.services.as_ref().is_none_or(|l| l.iter().any(|s| s == id));
        let short = all.into_iter().find_map(|(id, l)| {
            let l = l.filter(|l| asked(id) && l.is_own() && !l.names_threads() && l.connections < threads)?;
            Some((id, l.connections))
        });
        short.map_or(Ok(()), |(id, n)| {
            let what = format!("{threads}, but {id} has {n} connections, and each thread needs one. Give at most {n}");
            Err(campaign.wrong("loadgen.threads", what))
        })
    }
}

/// The CPUs that a campaign manages where nobody says: of these, not the ones that its load generators have.
fn beside_clients(campaign: &Campaign, managed: Option<CpuSet>) -> Result<Option<CpuSet>> {
    let Some(clients) = campaign.generator.cpus else { return Ok(managed) };
    let online = online(&Root::default()).map_err(server_error)?;
    if !clients.is_subset(&online) {
        return Err(campaign.wrong("loadgen.cpus", format!("\"{clients}\": this host has {online}. Choose from these")));
    }
    let managed = managed.unwrap_or(online.difference(clients));
    if managed.is_empty() {
        return Err(
            campaign.wrong("loadgen.cpus", format!("\"{clients}\" leaves no CPU to the services. This host has {online}: leave some out"))
        );
    }
    let both: CpuSet = clients.iter().filter(|c| managed.contains(*c)).collect();
    if !both.is_empty() {
        let what = format!("\"{clients}\": the services have {both} too (--cpus {managed}). Give the load generators CPUs of their own");
        return Err(campaign.wrong("loadgen.cpus", what));
    }
    Ok(Some(managed))
}

/// # Errors
/// Bad input or a failure, on one line.
pub fn sweep(args: &cli::Sweep, campaign: &Campaign) -> Result<()> {
    campaign.check_target(None)?;
    let managed = args.cpus.as_deref().map(CpuSet::parse).transpose().map_err(|e| Error::BadInput(format!("--cpus: {e}")))?;
    let managed = beside_clients(campaign, managed)?;
    let dir = catalogue_dir(args.catalogue.as_deref());
    let services = Services::of(campaign, &dir, args.catalogue.is_some())?;
    services.check_threads(campaign)?;
    if let Some(s) = campaign.services.iter().find(|s| args.relaunch && matches!(s.node.how, How::Adopt { .. })) {
        return Err(Error::BadInput(format!("--relaunch: {} runs on its own and is not started here. Leave it out", s.said())));
    }
    // Everything that the campaign itself can be wrong about is said before anything is started.
    let platform = discover(&Root::default(), managed).map_err(server_error)?;
    let planned = Expansion::new(campaign, &services.target(campaign, platform.clone(), "no-pmu")?)?.part(args.part)?;
    let starts = services.starts(&planned);
    for s in starts.iter().filter(|s| s.field == SWEPT) {
        let Some(l) = s.loadgen.filter(|l| !l.is_run_here()) else { continue };
        let (id, what, at) = (s.id, &l.protocol, dir.display());
        let remedy = format!(
            "Leave it out, or give its entry in {at} a protocol of surefoot-loadgen; docs/workloads.md says how to run {what} yourself"
        );
        return Err(campaign.wrong(SWEPT, format!("{id} is loaded with {what}, which a sweep does not start. {remedy}")));
    }
    look(&Root::default(), &services.bench()).map_err(server_error)?;
    if let Some(file) = &args.loadgen {
        std::env::set_var("SUREFOOT_LOADGEN", file);
    }
    if args.plan {
        let t = services.target(campaign, platform, "no-pmu")?;
        let to_measure = to_measure(campaign, &planned);
        let bytes = to_measure * u64::from(campaign.sampling.samples) * BYTES_PER_ROW;
        let mut warnings = not_alike(&Root::default(), managed)?;
        warnings.extend(services.undrawable(campaign, &planned, !args.without_images));
        let refusals = preflight::refusals(&Root::default(), &starts, &dir, !args.without_images);
        let doubts = Doubts { refusals, warnings };
        return print_plan(args, campaign, &t, &planned, to_measure as f64 * case_s(campaign), bytes, &doubts);
    }
    let catalogue = services.catalogue.as_ref().map(|_| dir);
    let config = LocalConfig { catalogue, managed, ..LocalConfig::new(state_dir(args.state.as_deref())) };
    let mut bench = LocalBench::open(config, services.bench()).map_err(server_error)?;
    bench.place_clients(campaign.generator.cpus, campaign.generator.threads);
    if args.relaunch {
        bench.relaunch_for_each_case();
    }
    let t = services.target(campaign, bench.server().platform().clone(), bench.server().feature_set().0)?;
    let cases = Expansion::new(campaign, &t)?.part(args.part)?;
    let measured_before = args.out.as_ref().is_some_and(|out| has_measured(&out.join("journal.jsonl")));
    let (mut measured, mut tries) = (0u64, Tries::up_to(args.tries.unwrap_or(MOST_TRIES)));
    let mut measure = |case: Case, s: &campaign::Sampling| -> Result<Measured> {
        let what = bench_case(&case, campaign.sweeps_memory());
        let sampling = Sampling { warmup_ms: s.warmup_ms, interval_ms: s.interval_ms, samples: s.samples };
        bench.expect_others(case.others_frac);
        let quality = |r: &std::result::Result<BenchResult, ServerError>| r.as_ref().ok().map(Quality::of);
        let mut result = bench.measure(&what, sampling);
        while tries.again(quality(&result)) && !crate::base::stop::requested() {
            let again = bench.measure(&what, sampling);
            // A worse second try does not replace the first.
            if quality(&again).is_some_and(|q| Some(q) <= quality(&result)) {
                result = again;
            }
        }
        match result {
            Ok(r) => {
                measured += 1;
                Ok(outcome(case, r))
            }
            Err(e) => {
                // What fails for a lasting reason is recorded, or a resume would stop at the same place for ever. A campaign
                // in which nothing has worked yet, or an engine that is gone, is the host's fault: nothing is recorded.
                // So is a service that ran on its own and has gone.
                let hopeless = measured == 0 && !measured_before;
                let by_engine = services.named.is_empty() || services.named.iter().any(|n| n.bench.how == BenchHow::Launch);
                if hopeless || crate::base::stop::requested() || by_engine && surefoot_linux::Engine::find().is_err() {
                    return Err(server_error(e));
                }
                let of_case = std::iter::once(&case.service).chain(case.neighbours.iter().map(|n| &n.service));
                if let Some(gone) = bench.gone(of_case.map(String::as_str)) {
                    return Err(server_error(gone));
                }
                tracing::warn!("case {} failed: {e}", case.case_id);
                Ok(Measured::without_rows(case, State::Failed, e.to_string()))
            }
        }
    };
    let told = finish(args, campaign, &t, &cases, Bench::Serial(&mut measure))?;
    // The machine gets everything back before a word is said of it, which may have to wait.
    bench.finish().map_err(server_error)?;
    told.say()
}

/// What a campaign on this host takes for alike and is not: kinds of cores, caches; L3 domains that resctrl has otherwise; ways of others.
fn not_alike(root: &Root, managed: Option<CpuSet>) -> Result<Vec<String>> {
    let resctrl = Resctrl::find(root);
    let found = discover_with(root, managed, resctrl.as_ref()).map_err(server_error)?;
    let mut all: Vec<String> = found.differ.into_iter().collect();
    all.extend(unlike(root, &found.platform.managed, resctrl.as_ref()).iter().map(ToString::to_string));
    let left = found.offer.ways;
    all.extend(found.offer.taken.iter().map(|t| format!("{t}: {left} ways are on offer, and the campaign measures within them")));
    Ok(all)
}

/// Whether an earlier run measured anything; what is damaged is found later.
fn has_measured(journal: &Path) -> bool {
    let Ok(mut reader) = Reader::open(journal) else { return false };
    while let Ok(Some(line)) = reader.next_line() {
        if line.state == State::Measured {
            return true;
        }
    }
    false
}

fn bench_case(c: &Case, with_memory: bool) -> BenchCase {
    let neighbour = |n: &crate::sweep::expand::Neighbour| BenchNeighbour {
        service: n.service.clone(),
        threads: Some(n.threads()),
        cores: n.cores,
        ways: n.ways,
        rps: Some(n.rps),
    };
    BenchCase {
        service: c.service.clone(),
        threads: c.threads,
        rps: Some(c.rps),
        cores: c.cores,
        ways: c.ways,
        mba_pct: c.mba_pct,
        memory: with_memory.then_some(BenchMemory { limit_bytes: c.memory.limit_bytes, pool_bytes: c.memory.pool_bytes }),
        neighbours: c.neighbours.iter().map(neighbour).collect(),
        seed: c.seed,
    }
}

/// Rows and state of a case. The verdict is that of the whole case: only there are enough samples to judge by. A row's
/// latency is its interval's; where that alone does not carry a p99 it is the whole case's (`count` tells).
fn outcome(case: Case, r: BenchResult) -> Measured {
    let note: Option<Arc<str>> = r.memory_note.as_deref().map(Into::into);
    let row = |s: &surefoot_linux::BenchSample| {
        let own = s.latency.filter(|l| l.count >= MIN_COUNT_P99_INTERVAL && l.verdict == Verdict::Valid);
        let l = own.or(r.latency).or(s.latency);
        let verdict = if l.is_none() { Verdict::NotResolvable } else { r.verdict };
        let memory = s.memory.map(|m| MemoryRow {
            limit_in_force_bytes: m.limit_bytes,
            pool_in_force_bytes: m.pool_bytes,
            seen: m.seen,
            note: note.clone(),
        });
        let row = Row::of(r.warmup_ms + s.t_ms, &s.features, l, verdict, r.sending);
        Row { memory: memory.unwrap_or_default(), ..row }
    };
    let rows = r.samples.iter().map(row).collect();
    let (state, reason) = match r.verdict {
        Verdict::Valid => (State::Measured, None),
        Verdict::NotResolvable => (State::Measured, Some(r.reason.clone())),
        Verdict::ClientLimited => (State::ClientLimited, Some(r.reason.clone())),
        Verdict::ServerOverloaded => (State::Overloaded, Some(r.reason.clone())),
    };
    Measured { case, state, reason, rows, marks: Marks { disturbed: r.disturbed, unsettled: r.unsettled }, others_frac: r.others_frac }
}
