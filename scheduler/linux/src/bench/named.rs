//! Services that a campaign names itself: what runs on its own (a cgroup, a unit, a process, a container), and commands.

use super::LocalBench;
use crate::catalogue::{EntryKind, Loadgen};
use crate::cgroup::{Cgroup, Mounts};
use crate::discover::online;
use crate::engine::{in_path, Engine};
use crate::local::{locate, CommandSpec, LaunchSpec, Target};
use crate::root::Root;
use surefoot_server::{CpuSet, Kind, ServerError, ServiceId};

/// How a service comes to run.
#[derive(Clone, Debug, PartialEq)]
pub enum BenchHow {
    /// From the catalogue, in a container.
    Launch,
    /// It runs already, and goes on running.
    Adopt(Target),
    /// Argument vector of a process; `{threads}` and `{port}` are filled in.
    Run(Vec<String>),
}

/// A service that a campaign names.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchService {
    pub id: ServiceId,
    pub service: String,
    pub kind: Kind,
    /// None: as many as a case asks for.
    pub threads: Option<u32>,
    pub how: BenchHow,
    /// None for jobs.
    pub loadgen: Option<Loadgen>,
    /// Where it answers on 127.0.0.1.
    pub port: Option<u16>,
    /// Each case begins with a new process or container of it.
    pub restart: bool,
}

fn unavailable(what: String, cause: &str, remedy: &str) -> ServerError {
    ServerError::Unavailable { what, cause: cause.into(), remedy: remedy.into() }
}

fn there_is(command: &[String], what: &str, of: &BenchService, field: &str) -> Result<(), ServerError> {
    let program = command.first().map_or("", String::as_str);
    in_path(program).map(drop).ok_or_else(|| {
        let remedy = format!("Install it, or give its absolute path ({field})");
        unavailable(format!("{what} {program} of {}", of.id), "there is no such program", &remedy)
    })
}

/// That all of these can be had here, and are apart from each other and from this process. Looks only.
///
/// # Errors
/// [`ServerError::Unavailable`] for what is not there, [`ServerError::Invalid`] for what can be no service.
pub fn look(root: &Root, services: &[BenchService]) -> Result<(), ServerError> {
    let (mounts, cpus) = (Mounts::read(root), online(root).unwrap_or(CpuSet::empty()));
    let own = mounts.of_pid(root, std::process::id());
    let mut seen: Vec<(&str, Cgroup)> = vec![];
    for s in services {
        if let Some(l) = s.loadgen.as_ref().filter(|l| !l.is_own()) {
            there_is(&l.command, "load generator", s, "loadgen.command")?;
        }
        match &s.how {
            BenchHow::Launch => {}
            BenchHow::Run(command) => {
                there_is(command, "command", s, "service.command")?;
                if mounts.version().is_none() {
                    let remedy = "Mount cgroups with cpu and cpuset";
                    return Err(unavailable(format!("a cgroup for {}", s.id), "this host offers no cpu and cpuset cgroups", remedy));
                }
            }
            BenchHow::Adopt(target) => {
                let (Some(g), ..) = locate(root, &mounts, cpus, &mut Engine::find, &s.id, target)? else { continue };
                let near = |a: &Cgroup, b: &Cgroup| a.cpuset.starts_with(&b.cpuset) || b.cpuset.starts_with(&a.cpuset);
                if own.as_ref().is_some_and(|own| own.cpuset.starts_with(&g.cpuset)) {
                    let what = format!("{target} of {}: this process is in it too, and the load generator with it", s.id);
                    return Err(ServerError::Invalid(format!("{what}. Start the sweep elsewhere, or name the service's own cgroup")));
                }
                if let Some((other, _)) = seen.iter().find(|(_, o)| near(o, &g)) {
                    let at = g.cpuset.display();
                    return Err(ServerError::Invalid(format!(
                        "{} and {other} share the cgroup {at}, or one is inside the other's. Name one of them",
                        s.id
                    )));
                }
                seen.push((&s.id, g));
            }
        }
    }
    Ok(())
}

impl LocalBench {
    /// Whether it is a job, which has no load.
    pub(super) fn is_job(&self, service: &str) -> Result<bool, ServerError> {
        if let Some(s) = self.named.get(service) {
            return Ok(s.kind == Kind::Be);
        }
        let catalogue = self.server.catalogue().ok_or_else(|| ServerError::Invalid("no catalogue. Give the workloads folder".into()))?;
        Ok(catalogue.get(service)?.kind == EntryKind::Be)
    }

    /// What runs once has one name; of the catalogue a neighbour may be of the service that is measured.
    pub(super) fn neighbour_id(&self, number: usize, service: &str) -> ServiceId {
        if self.named.contains_key(service) {
            service.into()
        } else {
            format!("nb{}-{service}", number + 1)
        }
    }

    /// Threads that are not a case's to choose.
    pub(super) fn own_threads(&self, service: &str) -> Option<u32> {
        self.named.get(service)?.threads
    }

    pub(super) fn default_threads(&self, service: &str) -> u32 {
        self.server.catalogue().and_then(|c| c.get(service).ok()).map_or(1, |e| e.default_threads)
    }

    /// Whether it is started anew for each case.
    pub(super) fn is_restarted(&self, service: &str) -> bool {
        match self.named.get(service) {
            Some(s) => s.restart,
            None => self.server.catalogue().and_then(|c| c.get(service).ok()).is_some_and(|e| e.restart),
        }
    }

    /// How a running service is loaded: generator, port, QoS target.
    pub(super) fn loaded(&self, id: &str, service: &str) -> Result<(&Loadgen, Option<u16>, Option<f64>), ServerError> {
        if let Some(s) = self.named.get(service) {
            let nothing = || ServerError::Invalid(format!("{service}: nothing says how it is loaded. Give it port and loadgen"));
            let qos_target_ms = match s.kind {
                Kind::Lc { qos_target_ms } => Some(qos_target_ms),
                Kind::Be => None,
            };
            let l = s.loadgen.as_ref().ok_or_else(nothing)?;
            if s.port.is_none() && l.is_own() {
                return Err(nothing());
            }
            return Ok((l, s.port, qos_target_ms));
        }
        let catalogue = self.server.catalogue().ok_or_else(|| ServerError::Invalid("no catalogue. Give the workloads folder".into()))?;
        let entry = catalogue.get(service)?;
        let l = entry
            .loadgen
            .as_ref()
            .ok_or_else(|| ServerError::Invalid(format!("{service}: rps given, but it is a BE job. Leave rps out")))?;
        if !l.is_run_here() {
            let what = format!("{service} is loaded with {}, which is not started here. Run it yourself: docs/workloads.md", l.protocol);
            return Err(ServerError::Invalid(what));
        }
        let port = self.server.port(id);
        if port.is_none() && l.is_own() {
            return Err(ServerError::Invalid(format!("{id} was not launched here. Launch it first")));
        }
        Ok((l, port, entry.qos_target_ms))
    }

    /// Start a service, or take one that runs.
    pub(super) fn bring_in(&mut self, slot: usize, id: &str, service: &str, threads: u32) -> Result<(), ServerError> {
        let base = self.server.catalogue().and_then(|c| c.get(service).ok()).and_then(|e| e.port);
        let Some(s) = self.named.get(service) else {
            // Neighbours of the same service get ports of their own.
            let port = base.map(|p| p.saturating_add(slot as u16));
            return self.server.launch(&LaunchSpec { id: id.into(), service: service.into(), threads: Some(threads), port });
        };
        match &s.how {
            BenchHow::Launch => {
                self.server.launch(&LaunchSpec { id: id.into(), service: s.service.clone(), threads: Some(threads), port: s.port })
            }
            BenchHow::Adopt(target) => self.server.adopt(id, &s.service, s.kind, threads, target.clone()),
            BenchHow::Run(command) => self.server.run_command(&CommandSpec {
                id: id.into(),
                service: s.service.clone(),
                kind: s.kind,
                threads,
                port: s.port,
                command: command.clone(),
            }),
        }
    }

    /// Why a service of a case that runs on its own is not there; None where all are.
    pub fn gone<'a>(&self, mut services: impl Iterator<Item = &'a str>) -> Option<ServerError> {
        let root = self.server.root();
        services.find_map(|id| look(root, std::slice::from_ref(self.named.get(id)?)).err())
    }
}
