//! This machine as a [`Server`].
//!
//! Control goes to the service's cgroup files, else to the container engine's own update call. Everything that is changed is
//! in the journal with what was there before, so [`LocalServer::reset`] gives it back, also in a new process after a crash.

use crate::catalogue::Catalogue;
use crate::cgroup::{absent, least_weight, quota_value, Cgroup, Knob, Mounts, Version, PERIOD_US};
use crate::child::pin;
use crate::claim::{self, Claim};
use crate::discover::{discover, online};
use crate::engine::{Container, Engine, RunSpec};
use crate::feed::Feed;
use crate::journal::{Entry as Event, Former, Journal, Touched};
use crate::perf::{self, Counters, Counts};
use crate::procfs;
use crate::resctrl::Resctrl;
use crate::root::Root;
use nix::fcntl::Flock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use surefoot_server::features::fill_neighbours;
use surefoot_server::validate::validate;
use surefoot_server::{
    Allocation, Applied, CpuSet, Features, Kind, Observation, Plan, Platform, Server, ServerError, ServiceId, ServiceView, Tick,
};

/// How long a launched service may take until its port answers.
const READY: Duration = Duration::from_secs(15);

/// What a local server needs to know.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    pub root: Root,
    /// Folder of ours: journal, lock, latency socket (`feed.sock`). Made where it is missing.
    pub state_dir: PathBuf,
    /// `workloads/`; needed only for [`LocalServer::launch`].
    pub catalogue: Option<PathBuf>,
    /// CPUs for services; None = all but the last one.
    pub managed: Option<CpuSet>,
}

impl LocalConfig {
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        LocalConfig { root: Root::default(), state_dir: state_dir.into(), catalogue: None, managed: None }
    }
}

/// What holds a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Name or id of a running container.
    Container(String),
    /// A cgroup as the kernel names it ("/system.slice/redis.service").
    Cgroup(PathBuf),
    /// The cgroup of this process; it is controlled as a whole.
    Pid(u32),
}

/// A service of the catalogue to start.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSpec {
    /// Unique here; also its name in the latency feed.
    pub id: ServiceId,
    /// Catalogue name.
    pub service: String,
    /// None = the catalogue's default.
    pub threads: Option<u32>,
    /// None = the catalogue's port.
    pub port: Option<u16>,
}

impl LaunchSpec {
    pub fn new(id: &str, service: &str) -> Self {
        LaunchSpec { id: id.into(), service: service.into(), threads: None, port: None }
    }
}

/// What [`LocalServer::reset`] gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResetReport {
    /// Services with their former values again.
    pub restored: Vec<ServiceId>,
    /// Services that have gone, with nothing left to give back.
    pub gone: Vec<ServiceId>,
    /// resctrl groups removed.
    pub groups_removed: Vec<String>,
    /// Containers of a killed run that were removed.
    pub containers_removed: Vec<String>,
}

/// Who holds the knobs of a service.
#[derive(Clone, Debug)]
enum Control {
    Files(Cgroup),
    /// `all` are the CPUs on line: an engine cannot go back to its default, an empty list, and these mean the same.
    Engine {
        engine: Engine,
        container: String,
        all: CpuSet,
    },
    /// Only looked at: nothing is written through it. The cgroup where it can be seen.
    Watched(Option<Cgroup>),
}

impl Control {
    fn get(&self, knob: Knob) -> Option<String> {
        match self {
            Control::Files(c) => c.get(knob),
            Control::Watched(c) => c.as_ref()?.get(knob),
            Control::Engine { engine, container, .. } => {
                let l = engine.limits(container).ok()?;
                let period = if l.period_us > 0 { l.period_us } else { 100_000 };
                match knob {
                    Knob::Cpus => Some(l.cpus),
                    Knob::Quota if l.quota_us > 0 => Some(format!("{} {period}", l.quota_us)),
                    Knob::Quota => Some(format!("max {period}")),
                    // Engines count as v1 does; 0 is their word for the default.
                    Knob::Weight => Some(if l.shares > 0 { l.shares } else { 1024 }.to_string()),
                    Knob::Memory | Knob::Zswap => None,
                }
            }
        }
    }

    fn set(&self, knob: Knob, value: &str) -> io::Result<()> {
        let (engine, container, all) = match self {
            Control::Files(c) => return c.set(knob, value),
            Control::Watched(_) => return Err(io::Error::new(io::ErrorKind::Unsupported, "it is only watched")),
            Control::Engine { engine, container, all } => (engine, container, all),
        };
        let all = all.to_string();
        let value = if knob == Knob::Cpus && value.is_empty() { all.as_str() } else { value };
        let other = |e: ServerError| io::Error::other(e.to_string().trim_end_matches('.').to_string());
        let now = engine.limits(container).map_err(other)?;
        let period = if now.period_us > 0 { now.period_us } else { PERIOD_US };
        match knob {
            Knob::Cpus => engine.update(container, value, if now.quota_us > 0 { now.quota_us } else { -1 }, period),
            Knob::Quota => {
                let (q, p) = value.split_once(' ').unwrap_or((value, "10000"));
                engine.update(container, "", q.parse().unwrap_or(-1), p.parse().unwrap_or(PERIOD_US))
            }
            Knob::Weight => engine.update_shares(container, value),
            Knob::Memory | Knob::Zswap => return Err(io::Error::new(io::ErrorKind::Unsupported, "only cgroup files can set it")),
        }
        .map_err(other)?;
        let got = self.get(knob).unwrap_or_default();
        let same = match knob {
            Knob::Cpus => CpuSet::parse(&got).ok() == CpuSet::parse(value).ok(),
            _ => got == value,
        };
        if same {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("gave \"{value}\", the engine keeps \"{got}\"")))
        }
    }

    fn least_weight(&self) -> &'static str {
        match self {
            Control::Files(c) => least_weight(c.version),
            Control::Watched(Some(c)) => least_weight(c.version),
            Control::Engine { .. } | Control::Watched(None) => least_weight(Version::V1),
        }
    }

    fn describe(&self, id: &str, knob: Knob) -> String {
        let file = match self {
            Control::Files(c) => c.file(knob).map(|f| f.display().to_string()),
            Control::Watched(_) => Some("only watched".into()),
            Control::Engine { container, .. } => Some(format!("container {}", &container[..container.len().min(12)])),
        };
        format!("{} of {id} ({})", knob.name(), file.unwrap_or_else(|| "no file".into()))
    }
}

#[derive(Debug)]
struct Service {
    service: String,
    kind: Kind,
    threads: u32,
    target: Target,
    control: Control,
    cgroup: Option<Cgroup>,
    /// First process and its start time: together they name it for good. None for bare cgroups.
    process: Option<(u32, u64)>,
    /// Full id of a container that we started and will remove.
    launched: Option<String>,
    port: Option<u16>,
    allocation: Allocation,
    placed: bool,
    counters: Option<Counters>,
    last: Option<Reading>,
}

/// Counters of one instant.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    usage_us: Option<f64>,
    counts: Counts,
    mbm_bytes: Option<u64>,
}

/// One write of a plan, and how to undo it.
enum Step {
    Knob {
        id: ServiceId,
        knob: Knob,
        from: String,
        to: String,
    },
    /// CBMs and MBA; from None = no group of its own before.
    Ways {
        id: ServiceId,
        from: Option<(Vec<u32>, u8)>,
        to: (Vec<u32>, u8),
    },
}

/// This machine.
#[derive(Debug)]
pub struct LocalServer {
    config: LocalConfig,
    platform: Platform,
    mounts: Mounts,
    resctrl: Option<Resctrl>,
    engine: Option<Engine>,
    catalogue: Option<Catalogue>,
    owner: String,
    services: BTreeMap<ServiceId, Service>,
    journal: Journal,
    /// Under control by the journal: of ours, and of a process that died.
    touched: Touched,
    orphans_removed: Vec<String>,
    feed: Feed,
    no_pmu: Option<String>,
    last_observed_ms: u64,
    next_tick: Option<Instant>,
    /// Held as long as we live: one controller a state folder.
    _lock: Flock<File>,
    /// The CPUs that are managed; None where this is not the host, or is only watched.
    claim: Option<Claim>,
}

fn unavailable(what: impl Into<String>, cause: impl std::fmt::Display, remedy: impl Into<String>) -> ServerError {
    ServerError::Unavailable { what: what.into(), cause: cause.to_string(), remedy: remedy.into() }
}

/// Name of an owner, from its state folder (FNV-1a): the same folder finds its orphans again.
fn owner_of(state_dir: &Path) -> String {
    let hash = state_dir
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// This thread and those it starts leave the managed CPUs to the services, where there are others.
fn keep_off(ours: &CpuSet) {
    if ours.is_empty() {
        return;
    }
    if let Err(e) = pin(ours) {
        tracing::warn!("this process stays on the services' CPUs: {e}");
    }
}

impl LocalServer {
    /// Take control of this machine. The calling thread moves to the CPUs that are not managed. Containers that a killed run of the same state folder left behind are removed.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for managed CPUs that are not there; [`ServerError::Unavailable`] for a state folder or CPUs that
    /// another controller uses, a folder that cannot be written, or a host without sysfs.
    pub fn open(config: LocalConfig) -> Result<Self, ServerError> {
        let mut server = Self::open_to_watch(config)?;
        if server.config.root.is_host() {
            server.claim = Some(claim::claim(Path::new(claim::FOLDER), server.platform.managed, claim::PATIENCE)?);
            server.remove_orphans()?;
        }
        Ok(server)
    }

    /// As [`LocalServer::open`], but what a killed run left is not touched. For [`LocalServer::watch`].
    ///
    /// # Errors
    /// See [`LocalServer::open`].
    pub fn open_to_watch(mut config: LocalConfig) -> Result<Self, ServerError> {
        let dir = config.state_dir.clone();
        let fail = |e: &dyn std::fmt::Display, remedy: &str| unavailable(format!("state folder {}", dir.display()), e, remedy);
        fs::create_dir_all(&dir).map_err(|e| fail(&e, "Give a folder that can be written"))?;
        config.state_dir = dir.canonicalize().map_err(|e| fail(&e, "Give a folder that can be read"))?;
        let dir = config.state_dir.clone();
        let patience = if config.root.is_host() { claim::PATIENCE } else { Duration::ZERO };
        let lock = claim::lock_file(&dir.join("lock"), patience).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => fail(&e, "Stop that one or give another folder"),
            _ => fail(&e, "Give a folder that can be written"),
        })?;
        let platform = discover(&config.root, config.managed)?;
        let mounts = Mounts::read(&config.root);
        let (journal, touched) = Journal::open(&dir.join("journal.jsonl"))?;
        let catalogue = config.catalogue.as_deref().map(Catalogue::load).transpose()?;
        if config.root.is_host() {
            keep_off(&online(&config.root)?.difference(platform.managed));
        }
        let feed = Feed::bind(&dir.join("feed.sock"))?;
        let no_pmu = perf::probe().err();
        if let Some(why) = &no_pmu {
            tracing::info!("features without hardware counters (feature set no-pmu): {why}");
        }
        Ok(LocalServer {
            resctrl: Resctrl::find(&config.root),
            owner: owner_of(&dir),
            config,
            platform,
            mounts,
            engine: None,
            catalogue,
            services: BTreeMap::new(),
            journal,
            touched,
            orphans_removed: vec![],
            feed,
            no_pmu,
            last_observed_ms: 0,
            next_tick: None,
            _lock: lock,
            claim: None,
        })
    }

    /// Containers are ours alone while we hold the lock, so any that carry our label now belong to a run that died.
    fn remove_orphans(&mut self) -> Result<(), ServerError> {
        // Without an engine there is nothing that could be left in one.
        let Ok(engine) = Engine::find() else { return Ok(()) };
        for id in engine.owned(Some(&self.owner))? {
            engine.remove(&id)?;
            self.orphans_removed.push(id);
        }
        self.engine = Some(engine);
        Ok(())
    }

    fn engine(&mut self) -> Result<Engine, ServerError> {
        if self.engine.is_none() {
            self.engine = Some(Engine::find()?);
        }
        self.engine.clone().ok_or_else(|| unavailable("container engine", "none", "Run scripts/engine.sh"))
    }

    /// "full", or "no-pmu" with the reason.
    pub fn feature_set(&self) -> (&'static str, Option<&str>) {
        (if self.no_pmu.is_some() { "no-pmu" } else { "full" }, self.no_pmu.as_deref())
    }

    /// Socket that load generators send their windows to.
    pub fn feed_path(&self) -> &Path {
        self.feed.path()
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The next `advance` counts from now.
    pub(crate) fn restart_ticks(&mut self) {
        self.next_tick = None;
    }

    pub fn catalogue(&self) -> Option<&Catalogue> {
        self.catalogue.as_ref()
    }

    /// Value of the label `surefoot.owner` on containers of ours.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Port of a launched service on 127.0.0.1.
    pub fn port(&self, id: &str) -> Option<u16> {
        self.services.get(id)?.port
    }

    /// The container of a launched service.
    pub fn container(&self, id: &str) -> Option<&str> {
        self.services.get(id)?.launched.as_deref()
    }

    /// Last lines that a launched service wrote (a BE job's progress).
    pub fn log_tail(&self, id: &str, lines: u32) -> Vec<String> {
        match (self.container(id), &self.engine) {
            (Some(c), Some(e)) => e.log_tail(c, lines),
            _ => vec![],
        }
    }

    fn check_id(&self, id: &str) -> Result<(), ServerError> {
        if id.is_empty()
            || id.len() > 40
            || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            || id.starts_with(['-', '.', '_'])
        {
            return Err(ServerError::Invalid(format!("service id \"{id}\": use up to 40 letters, digits, '-', '_' and '.'")));
        }
        if self.services.contains_key(id) {
            return Err(ServerError::Invalid(format!("service id \"{id}\" is taken. Give another, or stop it first")));
        }
        Ok(())
    }

    /// Start a service of the catalogue in a container and wait until its port answers.
    ///
    /// # Errors
    /// One for each: unknown service, threads, port in use, image missing, engine not running, service that ends at once.
    pub fn launch(&mut self, spec: &LaunchSpec) -> Result<(), ServerError> {
        self.check_id(&spec.id)?;
        let catalogue = self.catalogue.as_ref().ok_or_else(|| ServerError::Invalid("no catalogue. Give the workloads folder".into()))?;
        let entry = catalogue.get(&spec.service)?.clone();
        let threads = spec.threads.unwrap_or(entry.default_threads);
        if !(1..=1024).contains(&threads) {
            return Err(ServerError::Invalid(format!("{}: threads = {threads}. Give 1 to 1024", spec.id)));
        }
        let port = entry.port.map(|p| spec.port.unwrap_or(p));
        if let Some(p) = port {
            // Asked before the container runs: inside it the failure would be a line in a log.
            TcpListener::bind((Ipv4Addr::LOCALHOST, p)).map_err(|e| {
                let fields = format!("port in workloads/{}/workload.toml or service.port in node.toml", spec.service);
                unavailable(format!("port {p} for {}", spec.id), e, format!("Stop what listens there, or give another: {fields}"))
            })?;
        }
        let command = entry.command_line(threads, port.unwrap_or(0));
        let engine = self.engine()?;
        let name = format!("surefoot-{}-{}", &self.owner[..8], spec.id);
        let container = engine.run(&RunSpec {
            name: &name,
            owner: &self.owner,
            id: &spec.id,
            service: &spec.service,
            image: &entry.image,
            command: &command,
            cpus: &self.platform.managed,
            memory_mb: entry.memory_mb,
        });
        let started = container.and_then(|c| {
            wait_ready(&engine, &c, port).and_then(|()| {
                self.add(&spec.id, &spec.service, entry.server_kind(), threads, Target::Container(c.id.clone()))?;
                Ok(c)
            })
        });
        match started {
            Ok(c) => {
                if let Some(s) = self.services.get_mut(&spec.id) {
                    s.launched = Some(c.id);
                    s.port = port;
                }
                Ok(())
            }
            Err(e) => {
                // Nothing half-started stays behind.
                let _ = engine.remove(&name);
                Err(e)
            }
        }
    }

    /// Take a service that runs already under control.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a target that is not one service, [`ServerError::Unavailable`] for one that is not there or
    /// whose cgroup cannot be written.
    pub fn adopt(&mut self, id: &str, service: &str, kind: Kind, threads: u32, target: Target) -> Result<(), ServerError> {
        self.check_id(id)?;
        self.add(id, service, kind, threads, target)
    }

    /// Look at a service that runs already, without control: nothing of it is ever written, and no right to write is needed. What it
    /// holds are the CPUs and the quota of its cgroup, read at every observation; LLC ways count as shared with everybody.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a target that is not one service, [`ServerError::Unavailable`] for one that is not there.
    pub fn watch(&mut self, id: &str, service: &str, kind: Kind, threads: u32, target: Target) -> Result<(), ServerError> {
        self.check_id(id)?;
        let (cgroup, pid, container) = self.find(id, &target)?;
        let allocation = match (&cgroup, container) {
            (Some(g), _) => confined(&self.platform, g.effective_cpus(), g.get(Knob::Quota)),
            (None, Some(container)) => {
                let control = Control::Engine { engine: self.engine()?, container, all: online(&self.config.root)? };
                confined(&self.platform, control.get(Knob::Cpus), control.get(Knob::Quota))
            }
            (None, None) => Allocation::everything(&self.platform),
        };
        let control = Control::Watched(cgroup.clone());
        self.hold(id, service, kind, threads, target, (control, cgroup, pid));
        if let Some(s) = self.services.get_mut(id) {
            s.allocation = allocation;
        }
        Ok(())
    }

    fn add(&mut self, id: &str, service: &str, kind: Kind, threads: u32, target: Target) -> Result<(), ServerError> {
        let found = self.control(id, &target)?;
        self.hold(id, service, kind, threads, target, found);
        Ok(())
    }

    fn hold(&mut self, id: &str, service: &str, kind: Kind, threads: u32, target: Target, found: (Control, Option<Cgroup>, Option<u32>)) {
        let (control, cgroup, pid) = found;
        let process = pid.and_then(|p| Some((p, procfs::start_time(&self.config.root, p)?)));
        let counters = self.no_pmu.is_none().then(|| self.counters(cgroup.as_ref(), pid)).flatten();
        let s = Service {
            service: service.into(),
            kind,
            threads,
            target,
            control,
            cgroup,
            process,
            launched: None,
            port: None,
            allocation: Allocation::everything(&self.platform),
            placed: false,
            counters,
            last: None,
        };
        self.services.insert(id.into(), s);
    }

    /// How a target is controlled, its cgroup and its first process.
    fn control(&mut self, id: &str, target: &Target) -> Result<(Control, Option<Cgroup>, Option<u32>), ServerError> {
        let (cgroup, pid, container) = self.find(id, target)?;
        let control = match (&cgroup, container) {
            (Some(g), _) if g.writable() => Control::Files(g.clone()),
            (_, Some(container)) => Control::Engine { engine: self.engine()?, container, all: online(&self.config.root)? },
            _ => {
                return Err(unavailable(
                    said(id, target),
                    "its CPU and cpuset files cannot be written",
                    "Run as root, or give this user the cgroup (systemd: Delegate=yes)",
                ))
            }
        };
        Ok((control, cgroup, pid))
    }

    /// The cgroup of a target, its first process, and its full id if it is a container.
    #[allow(clippy::type_complexity)]
    fn find(&mut self, id: &str, target: &Target) -> Result<(Option<Cgroup>, Option<u32>, Option<String>), ServerError> {
        let root = self.config.root.clone();
        let name = said(id, target);
        match target {
            Target::Container(name) => {
                let c = self.engine()?.inspect(name)?;
                let cgroup = self.mounts.of_pid(&root, c.pid).filter(|g| !g.is_root(&self.mounts));
                Ok((cgroup, Some(c.pid), Some(c.id)))
            }
            Target::Cgroup(path) => {
                let g = self.mounts.named(&path.to_string_lossy()).filter(|g| g.cpuset.is_dir());
                let g = g.ok_or_else(|| {
                    unavailable(&name, "it is not there, or cpu and cpuset are not enabled for it", "List cgroups with: systemd-cgls")
                })?;
                if g.is_root(&self.mounts) {
                    return Err(ServerError::Invalid(format!("{name}: the root is no service. Give a cgroup below it")));
                }
                Ok((Some(g), None, None))
            }
            Target::Pid(pid) => {
                let g = self
                    .mounts
                    .of_pid(&root, *pid)
                    .ok_or_else(|| unavailable(&name, "it is not there, or has no cpu and cpuset cgroup", "Check the process id"))?;
                if g.is_root(&self.mounts) || self.mounts.of_pid(&root, std::process::id()).as_ref() == Some(&g) {
                    return Err(ServerError::Invalid(format!(
                        "{name}: it shares its cgroup with the system or with us. Start it in a container, or by systemd-run --scope"
                    )));
                }
                Ok((Some(g), Some(*pid), None))
            }
        }
    }

    fn counters(&self, cgroup: Option<&Cgroup>, pid: Option<u32>) -> Option<Counters> {
        let cpus = online(&self.config.root).ok()?;
        let by_group = match cgroup {
            Some(g) if g.version == Version::V2 => Some(g.cpuset.clone()),
            Some(_) => pid.and_then(|p| {
                let text = self.config.root.read(format!("/proc/{p}/cgroup"))?;
                let path = text.lines().find_map(|l| l.split_once(":perf_event:").map(|(_, p)| p.to_string()))?;
                Some(self.mounts.dir("perf_event")?.join(path.trim_start_matches('/')))
            }),
            None => None,
        };
        if let Some(Ok(c)) = by_group.map(|d| Counters::of_cgroup(&d, &cpus)) {
            return Some(c);
        }
        Counters::of_threads(&cgroup?.tids()).ok()
    }

    /// Give a service back: launched ones are stopped and removed, others get their former values again.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for an unknown id, else what the engine or the kernel says.
    pub fn stop(&mut self, id: &str) -> Result<(), ServerError> {
        let Some(s) = self.services.get(id) else {
            return Err(ServerError::Invalid(format!("no service \"{id}\" here. There are: {}", self.names())));
        };
        if let Some(container) = s.launched.clone() {
            self.engine()?.remove(&container)?;
            self.forget(id)?;
        } else {
            let control = s.control.clone();
            self.restore(id, &control)?;
            self.services.remove(id);
        }
        if let Some(r) = &self.resctrl {
            r.remove(id)?;
        }
        self.feed.with(|w| w.forget(id));
        Ok(())
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.services.keys().map(String::as_str).collect();
        if names.is_empty() {
            "none".into()
        } else {
            names.join(", ")
        }
    }

    /// No longer ours, nothing left to give back.
    fn forget(&mut self, id: &str) -> Result<(), ServerError> {
        self.services.remove(id);
        if self.touched.remove(id).is_some() {
            self.journal.append(&Event::Release { id: id.into() })?;
        }
        Ok(())
    }

    /// Former values of one service.
    fn restore(&mut self, id: &str, control: &Control) -> Result<(), ServerError> {
        let Some(former) = self.touched.get(id) else { return Ok(()) };
        for (knob, value) in &former.saved {
            control.set(*knob, value).map_err(|e| unavailable(control.describe(id, *knob), e, "Run reset again as root"))?;
        }
        self.touched.remove(id);
        self.journal.append(&Event::Release { id: id.into() })
    }

    /// True where a target is proven to have gone and so took its values along. No answer is no proof.
    fn gone(&mut self, former: &Former) -> Result<bool, ServerError> {
        let root = &self.config.root;
        Ok(match &former.target {
            Target::Container(name) => self.engine()?.lacks(name)?,
            Target::Cgroup(path) => self.mounts.lacks(&path.to_string_lossy()),
            Target::Pid(pid) => {
                let another = || former.start_ticks.zip(procfs::start_time(root, *pid)).is_some_and(|(then, now)| then != now);
                // Without /proc every process seems to have gone.
                root.path("/proc/self").is_dir() && absent(&root.path(format!("/proc/{pid}"))) || another()
            }
        })
    }

    /// Former values of a service of ours or of a process that died; false where the service has gone.
    fn give_back(&mut self, id: &str, former: &Former) -> Result<bool, ServerError> {
        let restored = match self.services.get(id).map(|s| s.control.clone()) {
            Some(control) => self.restore(id, &control),
            // First of all: a process id may be another's by now.
            None if self.gone(former)? => Ok(()),
            None => self.control(id, &former.target).and_then(|(control, _, _)| self.restore(id, &control)),
        };
        if !self.touched.contains_key(id) {
            return Ok(true);
        }
        match restored {
            Err(e) if !self.gone(former).unwrap_or(false) => Err(e),
            _ => {
                self.touched.remove(id);
                self.journal.append(&Event::Release { id: id.into() })?;
                Ok(false)
            }
        }
    }

    /// Give every resource back: former CPUs and quotas, our resctrl groups; also those of a process that died.
    /// Services go on running, unplaced.
    ///
    /// # Errors
    /// The first thing that could not be given back; the journal still knows it. Everything else was given back.
    pub fn reset(&mut self) -> Result<ResetReport, ServerError> {
        let mut report = ResetReport { containers_removed: std::mem::take(&mut self.orphans_removed), ..Default::default() };
        let mut failed = None;
        for (id, former) in self.touched.clone() {
            match self.give_back(&id, &former) {
                Ok(true) => report.restored.push(id),
                Ok(false) => report.gone.push(id),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        if let Some(r) = &self.resctrl {
            for id in r.groups() {
                r.remove(&id)?;
                report.groups_removed.push(id);
            }
        }
        let everything = Allocation::everything(&self.platform);
        for s in self.services.values_mut() {
            s.placed = false;
            s.allocation = everything.clone();
        }
        failed.map_or(Ok(report), Err)
    }

    /// Services that have ended by themselves leave.
    fn drop_ended(&mut self) {
        let root = self.config.root.clone();
        let ended: Vec<ServiceId> = self
            .services
            .iter()
            .filter(|(_, s)| match s.process {
                Some((pid, start)) => procfs::start_time(&root, pid) != Some(start),
                None => s.cgroup.as_ref().is_some_and(|g| !g.cpuset.is_dir()),
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in ended {
            let said = match (self.container(&id), &self.engine) {
                (Some(c), Some(e)) => e.last_log(c),
                _ => String::new(),
            };
            tracing::warn!("{id} has ended{said}");
            if matches!(self.services[&id].control, Control::Watched(_)) {
                // Whatever else there is of that name belongs to somebody else.
                self.services.remove(&id);
                self.feed.with(|w| w.forget(&id));
                continue;
            }
            if let (Some(c), Some(e)) = (self.container(&id).map(str::to_string), self.engine.clone()) {
                let _ = e.remove(&c);
            }
            if let Err(e) = self.forget(&id) {
                tracing::error!("{e}");
            }
            if let Some(Err(e)) = self.resctrl.as_ref().map(|r| r.remove(&id)) {
                tracing::error!("{e}");
            }
        }
    }

    /// Features of one service since its last reading, without the neighbours' part, and instructions per second.
    fn features(&mut self, id: &str) -> (Features, Option<f64>) {
        let (root, p) = (&self.config.root, &self.platform);
        let Some(s) = self.services.get_mut(id) else { return Default::default() };
        if let Control::Watched(Some(g)) = &s.control {
            s.allocation = confined(p, g.effective_cpus(), g.get(Knob::Quota));
        }
        let pids = match (&s.cgroup, s.process) {
            (Some(g), _) if !g.pids().is_empty() => g.pids(),
            (_, Some((pid, _))) => vec![pid],
            _ => vec![],
        };
        let memory = procfs::memory_mb(root, &pids);
        let now = Reading {
            at: Instant::now(),
            usage_us: s.cgroup.as_ref().and_then(Cgroup::usage_us),
            counts: s.counters.as_mut().map(Counters::read).unwrap_or_default(),
            mbm_bytes: self.resctrl.as_ref().and_then(|r| r.mbm_local_bytes(id)),
        };
        let last = s.last.replace(now);
        let dt_s = last.map_or(0.0, |l| now.at.duration_since(l.at).as_secs_f64());
        // A counter that went back was reset: no rate for this interval.
        let rate = |a: Option<f64>, b: Option<f64>| Some(b? - a?).filter(|d| *d >= 0.0 && dt_s > 0.0).map(|d| d / dt_s);
        let of = |f: fn(&Reading) -> Option<f64>| rate(last.as_ref().and_then(f), f(&now));
        let cycles = of(|r| r.counts.cycles).filter(|c| *c > 0.0);
        let instructions = of(|r| r.counts.instructions);
        let ways = p.llc.map(|_| s.allocation.n_ways());
        let features = Features {
            ipc: instructions.zip(cycles).map(|(i, c)| i / c),
            llc_misses_per_s: of(|r| r.counts.llc_misses),
            mbl_mbps: of(|r| r.mbm_bytes.map(|b| b as f64)).map(|b| b / f64::from(1 << 20)),
            cpu_usage_cores: of(|r| r.usage_us).map(|us| us * 1e-6),
            virt_mem_mb: memory.map(|m| m.0),
            res_mem_mb: memory.map(|m| m.1),
            alloc_cores: Some(s.allocation.cores()),
            alloc_ways: ways,
            alloc_cache_mb: ways.map(|w| w * p.mb_per_way()),
            core_freq_mhz: procfs::frequency_mhz(root, &s.allocation.cpus),
            ..Features::default()
        };
        (features, instructions)
    }

    /// The writes that turn what is in force into `new`, those that take away first.
    fn steps(&self, new: &BTreeMap<ServiceId, Allocation>) -> Result<Vec<Step>, ServerError> {
        let mut steps: Vec<(u8, Step)> = vec![];
        for (id, a) in new {
            let s = &self.services[id];
            let mut knob = |knob: Knob, to: String| -> Result<(), ServerError> {
                let from = s.control.get(knob).ok_or_else(|| {
                    unavailable(
                        s.control.describe(id, knob),
                        "cannot be read",
                        format!("Check that {id} still runs and that its cgroup has this limit"),
                    )
                })?;
                if from != to {
                    let takes = match knob {
                        Knob::Cpus => CpuSet::parse(&to).ok().zip(CpuSet::parse(&from).ok()).is_some_and(|(t, f)| t.is_subset(&f)),
                        _ => !to.starts_with("max"),
                    };
                    steps.push((u8::from(!takes), Step::Knob { id: id.clone(), knob, from, to }));
                }
                Ok(())
            };
            knob(Knob::Cpus, a.cpus.to_string())?;
            knob(Knob::Quota, quota_value(a.quota_cores))?;
            // A quota bounds how much a BE job runs, not when: where it shares a CPU, an LC service that wakes goes first.
            if s.kind == Kind::Be {
                let former = self.touched.get(id).and_then(|f| f.saved.get(&Knob::Weight).cloned());
                let weight = if a.quota_cores.is_some() { Some(s.control.least_weight().into()) } else { former };
                if let Some(to) = weight.filter(|_| s.control.get(Knob::Weight).is_some()) {
                    knob(Knob::Weight, to)?;
                }
            }
            for (k, now, then) in [
                (Knob::Memory, a.mem_limit_bytes, s.allocation.mem_limit_bytes),
                (Knob::Zswap, a.zswap_max_bytes, s.allocation.zswap_max_bytes),
            ] {
                if now != then {
                    knob(k, now.map_or("max".into(), |b| b.to_string()))?;
                }
            }
            let same = s.placed && s.allocation.ways == a.ways && s.allocation.mba_pct == a.mba_pct;
            if self.resctrl.is_some() && !same && (!a.ways.is_empty() || self.platform.mba.is_some()) {
                let fewer = a.n_ways() <= s.allocation.n_ways();
                let from = s.placed.then(|| (s.allocation.ways.clone(), s.allocation.mba_pct));
                steps.push((u8::from(!fewer), Step::Ways { id: id.clone(), from, to: (a.ways.clone(), a.mba_pct) }));
            }
        }
        steps.sort_by_key(|(rank, _)| *rank);
        Ok(steps.into_iter().map(|(_, s)| s).collect())
    }

    fn execute(&self, step: &Step, undo: bool) -> Result<(), ServerError> {
        match step {
            Step::Knob { id, knob, from, to } => {
                let control = &self.services[id].control;
                control.set(*knob, if undo { from } else { to }).map_err(|e| ServerError::Write {
                    what: control.describe(id, *knob),
                    cause: e.to_string(),
                    remedy: match e.kind() {
                        io::ErrorKind::PermissionDenied => "Run as root, or give this user the cgroup (systemd: Delegate=yes)".into(),
                        io::ErrorKind::NotFound => format!("Check that {id} still runs"),
                        _ => "Check what else writes to this cgroup".into(),
                    },
                })
            }
            Step::Ways { id, from, to } => {
                let Some(r) = &self.resctrl else { return Ok(()) };
                let tids = || self.services[id].cgroup.as_ref().map(Cgroup::tids).unwrap_or_default();
                match (undo, from) {
                    (false, _) => r.set(id, &to.0, to.1, tids),
                    (true, Some((ways, mba_pct))) => r.set(id, ways, *mba_pct, tids),
                    (true, None) => r.remove(id),
                }
            }
        }
    }

    /// Undo in reverse; what cannot be undone is said, and the journal still knows what there was.
    fn roll_back(&self, done: &[Step]) {
        for step in done.iter().rev() {
            if let Err(e) = self.execute(step, true) {
                tracing::error!("rollback: {e}");
            }
        }
    }
}

/// A target in messages.
fn said(id: &str, target: &Target) -> String {
    match target {
        Target::Container(name) => format!("container {name} of {id}"),
        Target::Cgroup(path) => format!("cgroup {} of {id}", path.display()),
        Target::Pid(pid) => format!("process {pid} of {id}"),
    }
}

/// What a service holds that somebody else confines, by the CPUs and the quota of its cgroup.
fn confined(p: &Platform, cpus: Option<String>, quota: Option<String>) -> Allocation {
    let mut a = Allocation::everything(p);
    // All managed CPUs and more mean no bound: what a service that nobody has placed holds.
    if let Some(cpus) = cpus.and_then(|t| CpuSet::parse(&t).ok()).filter(|c| !c.is_empty() && !p.managed.is_subset(c)) {
        (a.cpus, a.shared_cpus) = (cpus, cpus);
    }
    a.quota_cores = quota.and_then(|t| {
        let (q, period) = t.split_once(' ')?;
        Some(q.parse::<f64>().ok()? / period.trim().parse::<f64>().ok().filter(|p| *p > 0.0)?)
    });
    a
}

/// Until the port answers, or the container has ended.
fn wait_ready(engine: &Engine, c: &Container, port: Option<u16>) -> Result<(), ServerError> {
    let deadline = Instant::now() + READY;
    loop {
        let Some(p) = port else { return engine.inspect(&c.id).map(|_| ()) };
        if TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, p).into(), Duration::from_millis(200)).is_ok() {
            return engine.inspect(&c.id).map(|_| ());
        }
        engine.inspect(&c.name)?;
        if Instant::now() > deadline {
            let cause = format!("port {p} did not answer within {} s{}", READY.as_secs(), engine.last_log(&c.id));
            return Err(unavailable(format!("container {}", c.name), cause, "Look at its log, or give it more CPU"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Server for LocalServer {
    fn platform(&self) -> &Platform {
        &self.platform
    }

    fn observe(&mut self) -> Observation {
        self.drop_ended();
        let now_ms = self.feed.now_ms();
        let since = std::mem::replace(&mut self.last_observed_ms, now_ms);
        let ids: Vec<ServiceId> = self.services.keys().cloned().collect();
        let read: Vec<(Features, Option<f64>)> = ids.iter().map(|id| self.features(id)).collect();
        let mut features: Vec<Features> = read.iter().map(|r| r.0).collect();
        fill_neighbours(&mut features);
        let services = ids
            .iter()
            .zip(features)
            .zip(read)
            .map(|((id, features), (_, instr_per_s))| {
                let s = &self.services[id];
                let lc = matches!(s.kind, Kind::Lc { .. });
                let (interval, window) = self.feed.with(|w| (w.interval(id, since), w.window(id, now_ms)));
                ServiceView {
                    id: id.clone(),
                    service: s.service.clone(),
                    kind: s.kind,
                    threads: s.threads,
                    allocation: s.allocation.clone(),
                    placed: s.placed,
                    features,
                    interval: interval.filter(|_| lc),
                    window: window.filter(|_| lc),
                    instr_per_s,
                }
            })
            .collect();
        Observation { t_ms: now_ms, services }
    }

    fn apply(&mut self, plan: &Plan) -> Result<Applied, ServerError> {
        if let Some(id) = plan.allocations.keys().find(|id| !self.services.contains_key(*id)) {
            return Err(ServerError::Invalid(format!("no service \"{id}\" here. There are: {}", self.names())));
        }
        if let Some(id) = plan.allocations.keys().find(|id| matches!(self.services[*id].control, Control::Watched(_))) {
            return Err(ServerError::Invalid(format!("service \"{id}\" is only watched. Adopt it to control it")));
        }
        let mut all: BTreeMap<ServiceId, Allocation> =
            self.services.iter().filter(|(_, s)| s.placed).map(|(id, s)| (id.clone(), s.allocation.clone())).collect();
        all.extend(plan.allocations.clone());
        validate(&self.platform, &all).map_err(ServerError::Invalid)?;
        let new: BTreeMap<ServiceId, Allocation> = plan
            .allocations
            .iter()
            .filter(|(id, a)| {
                let s = &self.services[*id];
                !s.placed || s.allocation != **a
            })
            .map(|(id, a)| (id.clone(), a.clone()))
            .collect();
        if new.is_empty() {
            return Ok(Applied::default());
        }
        let steps = self.steps(&new)?;
        for id in new.keys() {
            if !self.touched.contains_key(id) {
                let s = &self.services[id];
                let saved: BTreeMap<Knob, String> = Knob::ALL.iter().filter_map(|k| Some((*k, s.control.get(*k)?))).collect();
                let start_ticks = s.process.filter(|_| matches!(s.target, Target::Pid(_))).map(|(_, start)| start);
                let former = Former { target: s.target.clone(), start_ticks, saved };
                self.journal.append(&Event::Touch { id: id.clone(), former: former.clone() })?;
                self.touched.insert(id.clone(), former);
            }
        }
        for (n, step) in steps.iter().enumerate() {
            if let Err(e) = self.execute(step, false) {
                // The failed step too: a knob may be more than one file.
                self.roll_back(&steps[..=n]);
                return Err(e);
            }
        }
        let changed: Vec<ServiceId> = new.keys().cloned().collect();
        let event = Event::Apply { t_ms: self.feed.now_ms(), allocations: new.clone(), changed: changed.clone() };
        if let Err(e) = self.journal.append(&event) {
            self.roll_back(&steps);
            return Err(e);
        }
        for (id, a) in new {
            if let Some(s) = self.services.get_mut(&id) {
                s.allocation = a;
                s.placed = true;
            }
        }
        Ok(Applied { changed })
    }

    /// Wait for the next tick of a fixed grid: a late step does not shift the ones after it, and missed ones are skipped.
    fn advance(&mut self, tick: Tick) {
        let now = Instant::now();
        let step = Duration::from_millis(tick.ms.max(1));
        let mut next = self.next_tick.unwrap_or(now) + step;
        while next <= now {
            next += step;
        }
        std::thread::sleep(next - now);
        self.next_tick = Some(next);
    }
}

impl Drop for LocalServer {
    /// Containers that we started end with us. Values of other services stay until [`LocalServer::reset`].
    fn drop(&mut self) {
        let launched: Vec<ServiceId> = self.services.iter().filter(|(_, s)| s.launched.is_some()).map(|(id, _)| id.clone()).collect();
        for id in launched {
            if let Err(e) = self.stop(&id) {
                tracing::error!("{e}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::v1;
    use surefoot_server::Llc;

    /// A v1 host with 4 CPUs and cgroups `/docker/c` (process 42) and `/docker/d`; quotas in steps of 0.1 core.
    struct Host {
        _dir: tempfile::TempDir,
        root: Root,
        state: tempfile::TempDir,
    }

    const BE: Kind = Kind::Be;

    impl Host {
        fn new() -> Self {
            let (dir, root) = v1();
            let put = |path: &str, text: &str| {
                let p = root.path(path);
                fs::create_dir_all(p.parent().unwrap()).unwrap();
                fs::write(p, text).unwrap();
            };
            put("/sys/devices/system/cpu/online", "0-3\n");
            put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_quota_us", "-1\n");
            put("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_period_us", "100000\n");
            put("/sys/fs/cgroup/cpuset/docker/d/cpuset.cpus", "0-3\n");
            ["c", "d"].iter().for_each(|id| put(&format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.shares"), "1024\n"));
            Host { _dir: dir, root, state: tempfile::tempdir().unwrap() }
        }

        fn open(&self) -> LocalServer {
            LocalServer::open(LocalConfig { root: self.root.clone(), ..LocalConfig::new(self.state.path()) }).unwrap()
        }

        fn server(&self) -> LocalServer {
            let mut s = self.open();
            for id in ["c", "d"] {
                s.adopt(id, id, BE, 1, Target::Cgroup(format!("/docker/{id}").into())).unwrap();
            }
            s
        }

        fn weight(&self, id: &str) -> String {
            self.root.read(format!("/sys/fs/cgroup/cpu/docker/{id}/cpu.shares")).unwrap()
        }

        fn values(&self, id: &str) -> [String; 3] {
            ["cpuset/docker/ID/cpuset.cpus", "cpu/docker/ID/cpu.cfs_quota_us", "cpu/docker/ID/cpu.cfs_period_us"]
                .map(|f| self.root.read(format!("/sys/fs/cgroup/{}", f.replace("ID", id))).unwrap())
        }
    }

    fn quota(s: &LocalServer, cores: &[(&str, f64)]) -> Plan {
        let everything = Allocation::everything(s.platform());
        let allocations =
            cores.iter().map(|(id, q)| (id.to_string(), Allocation { quota_cores: Some(*q), ..everything.clone() })).collect();
        Plan { allocations, ..Plan::default() }
    }

    /// A plan reaches the kernel's files, a second time it changes nothing, and reset gives back what was there before.
    #[test]
    fn plans_reach_the_kernel_and_reset_gives_back() {
        let host = Host::new();
        let mut s = host.server();
        let plan = quota(&s, &[("c", 0.5), ("d", 2.0)]);
        assert_eq!(s.apply(&plan).unwrap().changed, ["c", "d"]);
        // Managed are CPUs 0-2: the last is for the load generator. 0.5 core are 5 ms in 10 ms.
        assert_eq!(host.values("c"), ["0-2", "5000", "10000"]);
        assert_eq!(s.apply(&plan).unwrap(), Applied::default());
        let seen = s.observe();
        assert!(seen.get("c").unwrap().placed && seen.get("c").unwrap().features.nb_cores == Some(2.0));
        assert_eq!(s.reset().unwrap().restored, ["c", "d"]);
        assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);
        assert!(!s.observe().get("c").unwrap().placed);
    }

    /// A BE job on quota waits for LC services that share its CPUs; without quota it has its former weight again.
    #[test]
    fn be_jobs_get_the_least_weight() {
        let host = Host::new();
        let mut s = host.open();
        s.adopt("c", "c", Kind::Lc { qos_target_ms: 1.0 }, 1, Target::Cgroup("/docker/c".into())).unwrap();
        s.adopt("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
        let everything = Allocation::everything(s.platform());
        let unmanaged = Plan { allocations: ["c", "d"].map(|id| (id.to_string(), everything.clone())).into(), ..Plan::default() };
        s.apply(&unmanaged).unwrap();
        assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
        let plan = quota(&s, &[("c", 0.5), ("d", 0.5)]);
        s.apply(&plan).unwrap();
        assert_eq!([host.weight("c"), host.weight("d")], ["1024", "2"]);
        s.apply(&unmanaged).unwrap();
        assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
        s.apply(&plan).unwrap();
        drop(s);
        host.open().reset().unwrap();
        assert_eq!([host.weight("c"), host.weight("d")], ["1024", "1024"]);
    }

    /// A process that died left its changes behind; the next one knows from the journal what to give back.
    #[test]
    fn a_new_process_gives_back_what_a_dead_one_took() {
        let host = Host::new();
        let mut s = host.server();
        s.apply(&quota(&s, &[("c", 0.5), ("d", 0.2)])).unwrap();
        drop(s);
        assert_eq!(host.values("d"), ["0-2", "2000", "10000"]);
        // One hierarchy alone proves nothing: the other may hold a quota of ours.
        fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpuset/docker/c")).unwrap();
        assert!(host.open().reset().unwrap_err().to_string().contains("/docker/c"));
        fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpu/docker/c")).unwrap();
        let report = host.open().reset().unwrap();
        // "d" was given back by the first attempt already.
        assert_eq!((report.restored, report.gone), (vec![], vec!["c".to_string()]));
        assert_eq!(host.values("d"), ["0-3", "-1", "100000"]);
        assert_eq!(host.open().reset().unwrap(), ResetReport::default());
    }

    /// When one write of a plan fails, what was written before it is taken back and the error names the file.
    #[test]
    fn a_failed_write_takes_everything_back() {
        let host = Host::new();
        let mut s = host.server();
        s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
        // A kernel file that can be read but takes no write.
        let file = host.root.path("/sys/fs/cgroup/cpu/docker/d/cpu.cfs_quota_us");
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/proc/version", &file).unwrap();
        let err = s.apply(&quota(&s, &[("c", 0.3), ("d", 0.4)])).unwrap_err();
        assert!(matches!(err, ServerError::Write { .. }) && err.to_string().contains("cpu.cfs_quota_us"), "{err}");
        assert_eq!(host.values("c"), ["0-2", "5000", "10000"]);
        assert_eq!(s.observe().get("c").unwrap().allocation.quota_cores, Some(0.5));
    }

    /// Plans that break a rule, ids and targets that make no sense: one line each, and nothing is written.
    #[test]
    fn bad_input_changes_nothing() {
        let host = Host::new();
        let mut s = host.server();
        let before = host.values("c");
        let mut says = |p: Plan| s.apply(&p).unwrap_err().to_string();
        let all = Allocation { cpus: CpuSet::range(0, 4), ..Allocation::everything(&host_platform()) };
        assert!(says(Plan { allocations: BTreeMap::from([("x".into(), all.clone())]), ..Plan::default() }).contains("There are: c, d"));
        assert!(says(Plan { allocations: BTreeMap::from([("c".into(), all)]), ..Plan::default() }).contains("CPU 3 is not managed"));
        let zswap = Allocation { zswap_max_bytes: Some(1 << 20), ..Allocation::everything(&host_platform()) };
        assert!(says(Plan { allocations: BTreeMap::from([("c".into(), zswap)]), ..Plan::default() }).contains("zswap limit"));
        assert_eq!(host.values("c"), before);
        let mut adopt = |id: &str, t: Target| s.adopt(id, "x", BE, 1, t).unwrap_err().to_string();
        assert!(adopt("c", Target::Pid(42)).contains("taken"));
        assert!(adopt("../x", Target::Pid(42)).contains("letters"));
        assert!(adopt("e", Target::Cgroup("/".into())).contains("root"));
        assert!(adopt("e", Target::Cgroup("/docker/none".into())).contains("not there"));
        assert!(adopt("e", Target::Pid(7)).contains("process 7"));
        let err = LocalServer::open(LocalConfig { root: host.root.clone(), ..LocalConfig::new(host.state.path()) }).unwrap_err();
        assert!(err.to_string().contains("another Surefoot process"), "{err}");
    }

    fn host_platform() -> Platform {
        Platform { managed: CpuSet::range(0, 3), core_step: 0.1, mba: None, ..Platform::regular("local", 4, 1, 0, 0.0) }
    }

    /// CPU time becomes a rate between two observations; what the host cannot measure stays unknown.
    #[test]
    fn features_are_rates_or_unknown() {
        let host = Host::new();
        let mut s = host.server();
        assert_eq!(s.observe().get("c").unwrap().features.cpu_usage_cores, None);
        // An hour of CPU time more.
        fs::write(host.root.path("/sys/fs/cgroup/cpuacct/docker/c/cpuacct.usage"), "3600005000000\n").unwrap();
        let f = s.observe().get("c").unwrap().features;
        assert!(f.cpu_usage_cores.unwrap() > 1.0 && f.alloc_cores == Some(3.0));
        assert_eq!((f.alloc_ways, f.alloc_cache_mb, f.mbl_mbps, f.core_freq_mhz), (None, None, None, None));
        // A counter that went back gives no rate.
        fs::write(host.root.path("/sys/fs/cgroup/cpuacct/docker/c/cpuacct.usage"), "0\n").unwrap();
        assert_eq!(s.observe().get("c").unwrap().features.cpu_usage_cores, None);
    }

    /// A service whose cgroup or process has gone leaves the observation, and can be given back no more.
    #[test]
    fn ended_services_leave() {
        let host = Host::new();
        let mut s = host.server();
        s.apply(&quota(&s, &[("c", 0.5)])).unwrap();
        fs::remove_dir_all(host.root.path("/sys/fs/cgroup/cpuset/docker/c")).unwrap();
        let ids: Vec<String> = s.observe().services.into_iter().map(|v| v.id).collect();
        assert_eq!(ids, ["d"]);
        assert_eq!(s.reset().unwrap(), ResetReport::default());
    }

    /// An engine whose containers are folders (tests/engine.sh).
    fn fake_engine() -> Engine {
        Engine::at(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine.sh")).unwrap()
    }

    fn former(target: Target, start_ticks: Option<u64>) -> Former {
        Former { target, start_ticks, saved: BTreeMap::from([(Knob::Quota, "max 100000".into())]) }
    }

    /// What cannot be asked has not gone: its values stay in the journal, and the others are given back all the same.
    #[test]
    fn only_what_has_gone_is_released() {
        let host = Host::new();
        let stat = |start: u32| {
            let text = format!("42 (c) S {} {start} 0\n", (1..=18).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
            fs::write(host.root.path("/proc/42/stat"), text).unwrap();
        };
        stat(4711);
        let mut s = host.open();
        s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap();
        s.adopt("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
        s.apply(&quota(&s, &[("c", 0.5), ("d", 0.5)])).unwrap();
        assert_eq!(s.touched["c"].start_ticks, Some(4711));
        drop(s);
        // The process is there, but what it belongs to cannot be read.
        let (cgroup, aside) = (host.root.path("/proc/42/cgroup"), host.root.path("/proc/aside"));
        fs::rename(&cgroup, &aside).unwrap();
        let mut s = host.open();
        let err = s.reset().unwrap_err().to_string();
        assert!(err.contains("process 42 of c"), "{err}");
        assert_eq!((host.values("c")[1].as_str(), host.values("d")[1].as_str()), ("5000", "-1"));
        drop(s);
        fs::rename(&aside, &cgroup).unwrap();
        let mut s = host.open();
        assert_eq!(s.reset().unwrap().restored, ["c"]);
        assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);

        // Another process with the same id is left alone.
        s.touched.insert("c".into(), former(Target::Pid(42), Some(4711)));
        stat(4712);
        fs::write(host.root.path("/sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us"), "7000").unwrap();
        s.touched.insert("no-process".into(), former(Target::Pid(43), None));
        s.touched.insert("no-cgroup".into(), former(Target::Cgroup("/docker/x".into()), None));
        s.engine = Some(fake_engine());
        s.touched.insert("no-container".into(), former(Target::Container("/nonexistent/c".into()), None));
        assert_eq!(s.reset().unwrap().gone, ["c", "no-cgroup", "no-container", "no-process"]);
        assert_eq!(host.values("c")[1], "7000");

        // An engine that does not answer proves nothing.
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("down"), "").unwrap();
        s.touched.insert("c".into(), former(Target::Container(dir.path().display().to_string()), None));
        let err = s.reset().unwrap_err().to_string();
        assert!(err.contains("Cannot connect") && s.touched.contains_key("c"), "{err}");
    }

    /// Docker's default, an empty list of CPUs, comes back as all that are on line; what the engine keeps is read back.
    #[test]
    fn an_engines_empty_list_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        [("cpus", ""), ("quota", "0"), ("period", "0"), ("shares", "0")].iter().for_each(|(n, t)| put(n, t));
        let container = dir.path().display().to_string();
        let control = Control::Engine { engine: fake_engine(), container, all: CpuSet::range(0, 4) };
        let before: Vec<String> = [Knob::Cpus, Knob::Quota].iter().map(|k| control.get(*k).unwrap()).collect();
        assert_eq!(before, ["", "max 100000"]);
        control.set(Knob::Cpus, "1").unwrap();
        control.set(Knob::Quota, "5000 10000").unwrap();
        assert_eq!((control.get(Knob::Cpus).as_deref(), control.get(Knob::Quota).as_deref()), (Some("1"), Some("5000 10000")));
        control.set(Knob::Cpus, &before[0]).unwrap();
        control.set(Knob::Quota, &before[1]).unwrap();
        assert_eq!((control.get(Knob::Cpus).as_deref(), control.get(Knob::Quota).as_deref()), (Some("0-3"), Some("max 100000")));
        assert_eq!(control.get(Knob::Weight).as_deref(), Some("1024"));
        control.set(Knob::Weight, control.least_weight()).unwrap();
        assert_eq!(control.get(Knob::Weight).as_deref(), Some("2"));
        put("deaf", "");
        let err = control.set(Knob::Cpus, "2").unwrap_err().to_string();
        assert!(err.contains("\"2\"") && err.contains("\"0-3\""), "{err}");
    }

    /// Without the right to write cgroup files both adopting and placing say so in one line, with the remedy, and change nothing.
    #[test]
    fn no_permission_is_one_clear_line() {
        use std::os::unix::fs::PermissionsExt;
        let host = Host::new();
        fs::set_permissions(host.root.path("/"), fs::Permissions::from_mode(0o755)).unwrap();
        for id in ["c", "d"] {
            for f in ["cpuset/docker/ID/cpuset.cpus", "cpu/docker/ID/cpu.cfs_quota_us", "cpu/docker/ID/cpu.cfs_period_us"] {
                let path = host.root.path(format!("/sys/fs/cgroup/{}", f.replace("ID", id)));
                fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
            }
        }
        let (c, d) = (host.values("c"), host.values("d"));
        let mut s = host.open();
        // Held by us already, with its rights withdrawn later: control is taken as given.
        let group = s.mounts.named("/docker/d").unwrap();
        let as_nobody = |s: &mut LocalServer| {
            // SAFETY: sets the file system user of this thread alone, which ends here; root's right to every file goes with it.
            unsafe { libc::setfsuid(65_534) };
            let denied = fs::OpenOptions::new().write(true).open(group.cpuset.join("cpuset.cpus")).unwrap_err();
            assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied, "the test needs files that cannot be written");
            assert!(group.file(Knob::Cpus).is_some(), "the test needs files that can be seen");
            let adopting = s.adopt("c", "c", BE, 1, Target::Cgroup("/docker/c".into())).unwrap_err();
            let by_pid = s.adopt("c", "c", BE, 1, Target::Pid(42)).unwrap_err();
            let placing = s.apply(&quota(s, &[("d", 0.5)])).unwrap_err();
            [adopting, by_pid, placing].map(|e| e.to_string())
        };
        let files = Control::Files(group.clone());
        s.services.insert("d".into(), held(&s.platform, files));
        let said = std::thread::scope(|t| t.spawn(|| as_nobody(&mut s)).join()).unwrap();
        for (text, of) in said.iter().zip(["cgroup /docker/c of c", "process 42 of c", "CPUs of d"]) {
            assert!(text.contains(of) && text.contains("Run as root") && text.contains("Delegate=yes"), "{text}");
            assert_eq!(text.lines().count(), 1, "{text}");
        }
        assert_eq!((host.values("c"), host.values("d")), (c, d));
        assert_eq!(s.names(), "d");
        assert!(!s.services["d"].placed);
    }

    /// A BE job under given control.
    fn held(platform: &Platform, control: Control) -> Service {
        Service {
            service: "d".into(),
            kind: BE,
            threads: 1,
            target: Target::Cgroup("/docker/d".into()),
            control,
            cgroup: None,
            process: None,
            launched: None,
            port: None,
            allocation: Allocation::everything(platform),
            placed: false,
            counters: None,
            last: None,
        }
    }

    /// Watching needs no right to write, writes no file, sees the CPUs and the quota that others give, and refuses plans.
    #[test]
    fn watching_writes_nothing() {
        fn tree(dir: &Path) -> Vec<(PathBuf, std::time::SystemTime, Vec<u8>)> {
            let mut all = vec![];
            for e in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
                let m = e.metadata().unwrap();
                if m.is_dir() {
                    all.extend(tree(&e.path()));
                } else {
                    all.push((e.path(), m.modified().unwrap(), fs::read(e.path()).unwrap()));
                }
            }
            all.sort();
            all
        }
        let host = Host::new();
        let config = LocalConfig { root: host.root.clone(), ..LocalConfig::new(host.state.path()) };
        let mut s = LocalServer::open_to_watch(config).unwrap();
        let before = tree(&host.root.path("/"));
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(host.root.path("/"), fs::Permissions::from_mode(0o755)).unwrap();
        let as_nobody = |s: &mut LocalServer| {
            // SAFETY: sets the file system user of this thread alone, which ends here.
            unsafe { libc::setfsuid(65_534) };
            s.watch("c", "web", BE, 1, Target::Cgroup("/docker/c".into())).unwrap();
            s.watch("d", "d", BE, 1, Target::Cgroup("/docker/d".into())).unwrap();
            s.observe()
        };
        let seen = std::thread::scope(|t| t.spawn(|| as_nobody(&mut s)).join()).unwrap();
        // CPUs 0-3 of 0-2 managed: no bound.
        assert_eq!(seen.get("c").unwrap().allocation, Allocation::everything(s.platform()));
        let err = s.apply(&quota(&s, &[("d", 0.5)])).unwrap_err().to_string();
        assert!(err.contains("only watched"), "{err}");
        assert_eq!(tree(&host.root.path("/")), before);
        assert!(s.touched.is_empty());

        // Somebody else confines it: 2 CPUs, then half a core.
        fs::write(host.root.path("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus"), "1,3\n").unwrap();
        assert_eq!(s.observe().get("c").unwrap().features.alloc_cores, Some(2.0));
        fs::write(host.root.path("/sys/fs/cgroup/cpu/docker/c/cpu.cfs_quota_us"), "50000\n").unwrap();
        let seen = s.observe();
        assert_eq!((seen.get("c").unwrap().features.alloc_cores, seen.get("d").unwrap().features.nb_cores), (Some(0.5), Some(0.5)));
    }

    /// Ways go into a group of the service's own, and reset removes it.
    #[test]
    fn ways_go_through_resctrl() {
        let mut host = Host::new();
        let (files, root) = crate::testing::ModelFiles::mount(&host.root, crate::testing::intel(1, 11), "");
        [42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
        host.root = root;
        let read = |path: &str| host.root.read(format!("/sys/fs/resctrl/surefoot.c/{path}")).unwrap();
        let mut s = host.server();
        assert_eq!(s.platform().llc.map(|l: Llc| l.ways), Some(11));
        let mut plan = quota(&s, &[("c", 0.5)]);
        let a = plan.allocations.get_mut("c").unwrap();
        (a.ways, a.shared_ways, a.mba_pct) = (vec![0x38], vec![0], 50);
        s.apply(&plan).unwrap();
        assert_eq!(read("schemata"), "MB:0= 50\n    L3:0=038");
        assert_eq!(read("tasks"), "42\n43");
        let f = s.observe().get("c").unwrap().features;
        assert_eq!((f.alloc_ways, f.alloc_cache_mb), (Some(3.0), Some(6.0)));
        assert_eq!(s.reset().unwrap().groups_removed, ["c"]);
        // Where the kernel refuses the ways the whole plan is taken back.
        let mount = host.root.path("/sys/fs/resctrl");
        (0..7).for_each(|n| host.root.files.make_dir(&mount.join(format!("other{n}"))).unwrap());
        assert!(s.apply(&plan).is_err());
        assert_eq!(host.values("c"), ["0-3", "-1", "100000"]);
    }

    /// Ticks stay on one grid, also after a step that took longer than a tick.
    #[test]
    fn ticks_stay_on_their_grid() {
        let host = Host::new();
        let mut s = host.open();
        s.advance(Tick { ms: 4 });
        let first = s.next_tick.unwrap();
        for spin in [0u32, 3, 0, 2] {
            let until = Instant::now() + Duration::from_millis(4) * spin;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            s.advance(Tick { ms: 4 });
            assert!(Instant::now() >= s.next_tick.unwrap());
            assert_eq!((s.next_tick.unwrap() - first).as_nanos() % 4_000_000, 0);
        }
    }
}
