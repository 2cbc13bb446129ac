//! `surefootd run`: observe, decide, apply, every 100 ms.

pub mod config;
pub mod metrics;
pub mod notify;

use crate::cli;
use crate::error::{Error, Result};
use crate::eval::run::moments;
use crate::local_target::{catalogue_dir, server_error, state_dir};
use crate::models::{load_bundle, policy};
use crate::stop;
use crate::virtual_target::VirtualTarget;
use crate::workload::Workload;
use config::{How, NodeConfig};
use metrics::Metrics;
use notify::Notifier;
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use surefoot_linux::{LaunchSpec, LocalConfig, LocalServer, Root};
use surefoot_policy::Policy;
use surefoot_server::{Observation, Plan, Platform, Server, Tick};
use surefoot_vserver::VirtualServer;

/// The machine under control.
enum Node {
    Virtual { server: Box<VirtualServer>, workload: Workload, realtime: bool },
    Local(Box<LocalServer>),
}

impl Node {
    fn server(&mut self) -> &mut dyn Server {
        match self {
            Node::Virtual { server, .. } => server.as_mut(),
            Node::Local(s) => s.as_mut(),
        }
    }
}

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Run) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    stop::install()?;
    let config = match &args.config {
        Some(f) => NodeConfig::read(f)?,
        None => NodeConfig::none(),
    };
    let server = cli::Server::parse(&args.server)?;
    let metrics = Arc::new(Mutex::new(Metrics::default()));
    if let Some(port) = config.metrics_port {
        metrics::serve(port, metrics.clone())?;
        tracing::info!("metrics: http://127.0.0.1:{port}/metrics");
    }
    // Everything that can be wrong is found before anything is changed.
    let mut journal_path = config.journal.clone();
    let (mut node, mut policy, platform) = match server {
        cli::Server::Virtual(name) => {
            let at = VirtualTarget::open(&name, args.profiles.as_deref())?;
            let file =
                config.workload.clone().ok_or_else(|| missing(&config, "workload", "Name a workload file (docs/workload-format.md)"))?;
            let workload = Workload::read(&file, &at.target())?;
            let policy = make_policy(args, &config, &at.platform, "full")?;
            let mut server = VirtualServer::new(at.profile.clone(), Some(config.seed));
            workload.announce(&mut server, &at)?;
            (Node::Virtual { server: Box::new(server), workload, realtime: config.realtime }, policy, at.platform)
        }
        cli::Server::Local => {
            if config.services.is_empty() {
                return Err(missing(&config, "service", "Add [[service]] entries: what runs here"));
            }
            let state = state_dir(config.state_dir.as_deref());
            journal_path = journal_path.or(Some(state.join("decisions.jsonl")));
            let catalogue = catalogue_dir(config.catalogue.as_deref());
            let needs = config.services.iter().any(|s| matches!(s.how, How::Launch { .. }));
            let local =
                LocalConfig { root: Root::default(), state_dir: state, catalogue: needs.then_some(catalogue), managed: config.cpus };
            let mut server = LocalServer::open(local).map_err(server_error)?;
            let platform = server.platform().clone();
            let policy = make_policy(args, &config, &platform, server.feature_set().0)?;
            // What an earlier run left set is not ours to build on.
            server.reset().map_err(server_error)?;
            for s in &config.services {
                let done = match &s.how {
                    How::Launch { port } => {
                        server.launch(&LaunchSpec { id: s.id.clone(), service: s.service.clone(), threads: s.threads, port: *port })
                    }
                    How::Adopt { kind, target } => server.adopt(&s.id, &s.service, *kind, s.threads.unwrap_or(1), target.clone()),
                };
                done.map_err(server_error)?;
            }
            tracing::info!("latency feed: {}", server.feed_path().display());
            (Node::Local(Box::new(server)), policy, platform)
        }
    };
    let mut journal = journal_path.map(|p| Lines::open(&p, true)).transpose()?;
    let mut events = args.events.as_deref().map(|p| Lines::open(p, false)).transpose()?;
    let looped = control(args, &config, &mut node, policy.as_mut(), &platform, &metrics, &mut journal, &mut events);
    // Whatever ended the loop, the machine gets everything back.
    let restored = match &mut node {
        Node::Local(s) => s.reset().map(|_| ()).map_err(server_error),
        Node::Virtual { .. } => Ok(()),
    };
    looped.and(restored)
}

fn missing(config: &NodeConfig, field: &str, remedy: &str) -> Error {
    let file = if config.file.as_os_str().is_empty() { "--config".to_string() } else { config.file.display().to_string() };
    Error::BadInput(format!("{file}: {field}: is missing. {remedy}"))
}

fn make_policy(args: &cli::Run, config: &NodeConfig, platform: &Platform, feature_set: &str) -> Result<Box<dyn Policy>> {
    let bundle = args.bundle.as_deref().map(|b| load_bundle(b, args.trust.as_deref(), platform, feature_set)).transpose()?;
    policy(&args.policy, platform, bundle.as_ref(), config.seed)
}

/// A file of JSON lines.
struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    fn open(path: &Path, append: bool) -> Result<Self> {
        let file = OpenOptions::new().create(true).write(true).append(append).truncate(!append).open(path);
        Ok(Lines { path: path.into(), file: BufWriter::new(file.map_err(|e| Error::io(path, "cannot be opened", &e))?) })
    }

    fn write(&mut self, v: &serde_json::Value) -> Result<()> {
        writeln!(self.file, "{v}").map_err(|e| Error::io(&self.path, "cannot be written", &e))
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io(&self.path, "cannot be written", &e))
    }
}

#[allow(clippy::too_many_arguments)]
fn control(
    args: &cli::Run,
    config: &NodeConfig,
    node: &mut Node,
    policy: &mut dyn Policy,
    platform: &Platform,
    metrics: &Mutex<Metrics>,
    journal: &mut Option<Lines>,
    events: &mut Option<Lines>,
) -> Result<()> {
    let mut notifier = Notifier::from_env();
    let tick = Tick { ms: config.interval_ms };
    let end_ms = match (&*node, args.duration_s) {
        (_, Some(s)) => Some(s * 1000),
        (Node::Virtual { workload, .. }, None) => Some(workload.duration_ms),
        (Node::Local(_), None) => None,
    };
    let start = Instant::now();
    let mut ticks = 0u64;
    let mut first_ms = None;
    loop {
        let seen = node.server().observe();
        // A local server's clock started when it was opened; files count from the first tick.
        let now = seen.t_ms - *first_ms.get_or_insert(seen.t_ms);
        let begin = Instant::now();
        let plan = policy.step(seen.t_ms, &seen);
        let decision_s = begin.elapsed().as_secs_f64();
        let applied = if plan.is_empty() { Ok(Default::default()) } else { node.server().apply(&plan) };
        {
            let mut m = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            m.tick(&seen, tick.ms, decision_s);
            m.plan(&plan, applied.is_ok());
        }
        if let Err(e) = &applied {
            tracing::warn!("plan not applied: {e}");
        }
        if let Some(j) = journal {
            write_decisions(j, now, &plan, applied.as_ref().err().map(ToString::to_string))?;
        }
        if let Some(e) = events {
            let load = |id: &str| match &*node {
                Node::Virtual { workload, .. } => workload.lc.iter().find(|l| l.id == id)?.load_at(now),
                Node::Local(_) => None,
            };
            write_moments(e, now, &seen, load)?;
        }
        if ticks == 0 {
            tracing::info!("{} on {}: {} services", policy.name(), platform.name, seen.services.len());
            notifier.ready(&format!("{} on {}", policy.name(), platform.name));
        }
        notifier.alive();
        if stop::requested() || end_ms.is_some_and(|e| now >= e) {
            break;
        }
        node.server().advance(tick);
        ticks += 1;
        if let Node::Virtual { realtime: true, .. } = node {
            let due = start + Duration::from_millis(ticks * tick.ms);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    notifier.stopping();
    for lines in [journal, events].into_iter().flatten() {
        lines.flush()?;
    }
    let m = metrics.lock().unwrap_or_else(PoisonError::into_inner);
    let violation_s: serde_json::Map<_, _> = m.violation_ms().iter().map(|(id, ms)| (id.clone(), json!(*ms as f64 / 1000.0))).collect();
    println!("{}", json!({ "policy": policy.name(), "platform": platform.name, "ticks": ticks, "qos_violation_s": violation_s }));
    Ok(())
}

/// One line per action, with what it led to; one per report; one per refused plan.
fn write_decisions(j: &mut Lines, t_ms: u64, plan: &Plan, refused: Option<String>) -> Result<()> {
    for a in &plan.actions {
        let to = plan.allocations.get(&a.service);
        j.write(&json!({
            "t_ms": t_ms, "service": a.service, "action": a.kind, "why": a.why, "applied": refused.is_none(),
            "cores": to.map(|t| t.cores()), "cpus": to.map(|t| t.cpus), "ways": to.map(|t| t.ways.clone()), "mba_pct": to.map(|t| t.mba_pct),
        }))?;
    }
    for r in &plan.reports {
        j.write(&json!({ "t_ms": t_ms, "report": r }))?;
    }
    if let Some(error) = &refused {
        j.write(&json!({ "t_ms": t_ms, "error": error }))?;
    }
    if !plan.actions.is_empty() || refused.is_some() {
        j.flush()?;
    }
    Ok(())
}

/// One line per service: what the report draws.
fn write_moments(e: &mut Lines, t_ms: u64, seen: &Observation, load: impl Fn(&str) -> Option<f64>) -> Result<()> {
    for (m, s) in moments(seen, load).zip(&seen.services) {
        e.write(&json!({
            "t_ms": t_ms, "service": m.service, "kind": if m.is_lc { "lc" } else { "be" }, "p99_ms": m.p99_ms, "qos_target_ms": m.qos_target_ms,
            "load": m.load, "achieved_rps": s.window.map(|w| w.achieved_rps), "count": s.window.map(|w| w.count), "cores": m.cores,
            "ways": m.ways, "mba_pct": m.mba_pct, "instr_per_s": m.instr_per_s, "features": s.features,
        }))?;
    }
    // Ten times a second is often enough for whoever follows the file.
    e.flush()
}
