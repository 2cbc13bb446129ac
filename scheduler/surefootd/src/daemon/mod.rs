//! `surefootd run`: observe, decide, apply, every 100 ms.

pub mod config;
pub mod metrics;
pub mod node;
pub mod notify;
pub mod phases;
pub mod status;

use crate::cli;
use crate::error::{Error, Result};
use crate::eval::run::moments;
use crate::local_target::server_error;
use crate::models::{load_bundle, policy};
use crate::stop;
use crate::virtual_target::VirtualTarget;
use config::NodeConfig;
use metrics::{Metrics, Took};
use node::{bring_in, local_server, Absent, Clock, Node, Purpose};
use notify::Notifier;
use phases::{own_cost, timed};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use surefoot_learn::Bundle;
use surefoot_policy::Policy;
use surefoot_server::{Observation, Plan, Platform, Server};

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
        let file = config.file.display();
        metrics::serve(port, metrics.clone()).map_err(|e| if args.config.is_some() { Error::Failed(format!("{file}: {e}")) } else { e })?;
        tracing::info!("metrics: http://127.0.0.1:{port}/metrics");
    }
    // Everything that can be wrong is found before anything is changed.
    let mut journal_path = config.journal.clone();
    let (mut node, mut policy, platform) = match server {
        cli::Server::Virtual(name) => {
            let at = VirtualTarget::open(&name, args.profiles.as_deref())?;
            let node = Node::virtual_server(&config, &at)?;
            let bundle = bundle(args, &at.platform, "full")?;
            (node, policy(&args.policy, &at.platform, bundle.as_ref(), config.seed)?, at.platform)
        }
        cli::Server::Local => {
            let (mut server, state) = local_server(&config, Purpose::Control)?;
            journal_path = journal_path.or(Some(state.join("decisions.jsonl")));
            let bundle = bundle(args, server.platform(), server.feature_set().0)?;
            if config.mem_bw_mbps.is_none() {
                server.set_mem_bw_mbps(bundle.as_ref().and_then(peak_mbps));
            }
            let platform = server.platform().clone();
            let policy = policy(&args.policy, &platform, bundle.as_ref(), config.seed)?;
            let resumed = bring_in(&mut server, &config, Purpose::Control).and_then(|()| server.resume().map_err(server_error));
            match resumed {
                Ok(r) if r.adopted.is_empty() => {}
                Ok(r) => tracing::info!("going on with the allocations of the run before this one: {}", r.adopted.join(", ")),
                Err(e) => {
                    // Nobody would look after what an earlier run left.
                    server.reset().map_err(server_error)?;
                    return Err(e);
                }
            }
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

fn bundle(args: &cli::Run, platform: &Platform, feature_set: &str) -> Result<Option<Bundle>> {
    args.bundle.as_deref().map(|b| load_bundle(b, args.trust.as_deref(), platform, feature_set)).transpose()
}

/// Peak memory bandwidth of a bundle's platform, MB/s.
fn peak_mbps(b: &Bundle) -> Option<f64> {
    let gbs = b.platform.table.get("mem")?.get("bw_gbs")?;
    gbs.as_float().or(gbs.as_integer().map(|i| i as f64)).filter(|g| *g > 0.0).map(|g| g * 1e3)
}

/// A file of JSON lines.
pub(crate) struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    pub(crate) fn open(path: &Path, append: bool) -> Result<Self> {
        let file = OpenOptions::new().create(true).write(true).append(append).truncate(!append).open(path);
        Ok(Lines { path: path.into(), file: BufWriter::new(file.map_err(|e| Error::io(path, "cannot be opened", &e))?) })
    }

    pub(crate) fn write(&mut self, v: &serde_json::Value) -> Result<()> {
        writeln!(self.file, "{v}").map_err(|e| Error::io(&self.path, "cannot be written", &e))
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
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
    let end_ms = node.end_ms(args.duration_s);
    let mut clock = Clock::new(config.interval_ms);
    let mut absent = Absent::default();
    metrics.lock().unwrap_or_else(PoisonError::into_inner).about(policy.name(), platform, config.interval_ms);
    loop {
        let ((now, seen), observe) = timed(|| clock.observe(node));
        let (plan, decide) = timed(|| policy.step(seen.t_ms, &seen));
        let (applied, apply) = if plan.is_empty() {
            (Ok(Default::default()), None)
        } else {
            let (applied, took) = timed(|| node.server().apply(&plan));
            (applied, Some(took))
        };
        {
            let mut m = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            m.tick(now, &seen, Took { observe, decide, apply });
            if let Node::Local(s) = &*node {
                m.refused_datagrams(s.refused_datagrams());
            }
            m.plan(&plan, applied.is_ok());
        }
        if let Err(e) = &applied {
            tracing::warn!("plan not applied: {e}");
        }
        if let Some(j) = journal {
            write_decisions(j, now, &plan, applied.as_ref().err().map(ToString::to_string))?;
        }
        if let Some(e) = events {
            write_moments(e, now, &seen, |id| node.load_at(id, now))?;
        }
        if clock.ticks == 0 {
            tracing::info!("{} on {}: {} services", policy.name(), platform.name, seen.services.len());
            notifier.ready(&format!("{} on {}", policy.name(), platform.name));
        }
        notifier.alive();
        absent.look(now, node, config, Purpose::Control);
        if stop::requested() || end_ms.is_some_and(|e| now >= e) {
            break;
        }
        clock.advance(node);
    }
    notifier.stopping();
    for lines in [journal, events].into_iter().flatten() {
        lines.flush()?;
    }
    let m = metrics.lock().unwrap_or_else(PoisonError::into_inner);
    let violation_s: serde_json::Map<_, _> = m.violation_ms().iter().map(|(id, ms)| (id.clone(), json!(*ms as f64 / 1000.0))).collect();
    let (cpu_s, rss_bytes) = own_cost();
    println!(
        "{}",
        json!({
            "policy": policy.name(), "platform": platform.name, "ticks": clock.ticks, "qos_violation_s": violation_s,
            "phases": m.phases().json(), "cpu_s": cpu_s, "rss_bytes": rss_bytes,
        })
    );
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
            "ways": m.ways, "mba_pct": m.mba_pct, "instr_per_s": m.instr_per_s, "feed": s.feed.as_str(), "features": s.features,
        }))?;
    }
    // Ten times a second is often enough for whoever follows the file.
    e.flush()
}
