//! This machine as a [`Server`].
//!
//! Control goes to the service's cgroup files, else to the container engine's own update call. Everything that is changed is
//! in the journal with what was there before, so [`LocalServer::reset`] gives it back, also in a new process after a crash.

mod apply;
mod command;
mod control;
#[cfg(test)]
mod faults;
mod keep;
mod latency;
mod lend;
#[cfg(test)]
mod lend_tests;
mod limits;
#[cfg(test)]
mod limits_tests;
mod observe;
mod recover;
#[cfg(test)]
mod restored_tests;
mod step;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod truth_tests;
#[cfg(test)]
mod unit_tests;
mod watch;
#[cfg(test)]
mod watch_tests;
mod ways;

use self::apply::Wait;
pub use self::command::CommandSpec;
pub(crate) use self::control::locate;
use self::control::{confined, Control};
use self::keep::Keeper;
use self::lend::SharedLoans;
pub use self::lend::{wait_until, LocalLender, LEAST_BETWEEN_FILES};
use self::limits::Limits;
pub use self::limits::{Limit, Value};
use crate::actuator::Allow;
use crate::catalogue::{Catalogue, Ready};
use crate::cgroup::{Cgroup, Knob, Mounts, Usage};
use crate::child::pin;
use crate::claim::{self, Claim, Held};
use crate::discover::{discover_with, online, unlike};
use crate::engine::{fnv1a, Container, Engine, RunSpec};
use crate::feed::{self, Feed};
use crate::journal::{Journal, Touched};
use crate::memory_use::MemoryReading;
use crate::own::{cause_and_remedy, Author, Folder};
use crate::perf::{self, Counters, Counts};
use crate::procfs::{listens, Frequencies, Process};
use crate::psi::{Pressure, Resource};
use crate::resctrl::classes::{Layout, Setting};
use crate::resctrl::monitor::{DeadCounter, Traffic};
use crate::resctrl::offer::Offer;
use crate::resctrl::refusal::Cause;
use crate::resctrl::Resctrl;
use crate::root::Root;
use crate::safe::SafeLayout;
pub use crate::target::Target;
use crate::working_set::{self, WorkingSets};
use nix::fcntl::Flock;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use surefoot_server::features::fill_neighbours;
use surefoot_server::{
    Allocation, Applied, CpuSet, Features, FeedState, Kind, Lease, MemoryView, Observation, Plan, Platform, Server, ServerError, ServiceId,
    ServiceView, Tick,
};

/// Another one at each boot.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Threads that a service is started with, at most.
pub const MOST_THREADS: u32 = 1024;

/// Remedy for a state folder that cannot be used.
const FOLDER: &str = "Run as its owner, or give a folder that can be written (`state_dir` in node.toml, or --state)";

/// How long a launched service may take until its port answers.
const READY: Duration = Duration::from_secs(15);

/// What a local server needs to know.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    pub root: Root,
    /// Folder of ours: journal, lock, latency socket (`feed.sock`). Made where it is missing.
    pub state_dir: PathBuf,
    /// What may be done for what the state folder says, where another user could have written it; None: nothing, such a folder is refused.
    pub allow: Option<Allow>,
    /// `workloads/`; needed only for [`LocalServer::launch`].
    pub catalogue: Option<PathBuf>,
    /// CPUs for services; None = all but the last one.
    pub managed: Option<CpuSet>,
    /// LC services alone on their CPUs become cpuset partitions, where the kernel makes them (cgroup v2).
    pub partitions: bool,
    /// Cores of leases move by owner where the kernel has sched_ext and this process may (docs/decisions/leases.md).
    pub sched_ext: bool,
    /// Containers that a killed run left are kept for [`LocalServer::launch`] to go on with, until [`LocalServer::resume`].
    pub resume: bool,
    /// Mount point of resctrl; None = the kernel's, where it is mounted. A stand-in is used only when it is named here.
    pub resctrl: Option<PathBuf>,
    /// Peak memory bandwidth, MB/s: what per cent of MBA are of where the kernel counts in absolute units.
    pub mem_bw_mbps: Option<f64>,
    /// Whoever calls observes at a steady pace and reads latency at no other time, so that what waits on the latency sockets may wait for that.
    /// It counts on [`Server::apply`] to return at once: where another tool has the lock of resctrl, ways follow at a later observation. Else
    /// `apply` waits for a second at most.
    pub in_a_loop: bool,
    /// How often memory and frequencies are read and values that somebody else may have changed are compared; 0 = at each look.
    pub look_every: Duration,
    /// How often working sets are looked at; None: not at all.
    pub working_set: Option<working_set::Pace>,
}

impl LocalConfig {
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        LocalConfig {
            root: Root::default(),
            state_dir: state_dir.into(),
            allow: None,
            catalogue: None,
            managed: None,
            partitions: false,
            sched_ext: false,
            resume: false,
            resctrl: None,
            mem_bw_mbps: None,
            in_a_loop: false,
            look_every: Duration::from_secs(1),
            working_set: None,
        }
    }
}

/// What this machine is, before anything is made or changed: of a configuration that cannot be used no folder or socket is left.
pub struct Found {
    pub platform: Platform,
    resctrl: Option<Resctrl>,
    offer: Offer,
    l3_of_id: BTreeMap<u32, usize>,
    no_pmu: Option<String>,
    online: CpuSet,
}

impl Found {
    /// Ways of the hardware, of which the platform has those that others leave; 0 where none can be given.
    pub fn ways_of_all(&self) -> u32 {
        ways_of_all(&self.platform, self.resctrl.as_ref())
    }

    /// "full" or "no-pmu".
    pub fn feature_set(&self) -> &'static str {
        feature_set(self.no_pmu.as_ref())
    }
}

fn ways_of_all(platform: &Platform, resctrl: Option<&Resctrl>) -> u32 {
    platform.llc.and(resctrl).and_then(Resctrl::cbm_bits).unwrap_or_else(|| platform.ways())
}

fn feature_set(no_pmu: Option<&String>) -> &'static str {
    if no_pmu.is_some() {
        "no-pmu"
    } else {
        "full"
    }
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
    /// Services of a killed run that were processes of its own, and were ended.
    pub commands_ended: Vec<ServiceId>,
    /// CPUs that services of a killed run could lend: all of them are back.
    pub leases_ended: Vec<Lease>,
}

#[derive(Debug)]
struct Service {
    service: String,
    kind: Kind,
    threads: u32,
    target: Target,
    control: Control,
    cgroup: Option<Cgroup>,
    /// Of that cgroup: one that was made anew is another service.
    identity: Option<u64>,
    claim: Option<Held>,
    /// First process; None for bare cgroups.
    process: Option<Process>,
    /// Full id of a container that we started and will remove.
    launched: Option<String>,
    /// A process that we started and will end.
    started: Option<command::Started>,
    port: Option<u16>,
    allocation: Allocation,
    placed: bool,
    usage: Option<Usage>,
    counters: Option<Counters>,
    traffic: Traffic,
    /// Virtual and resident memory; with the pressure below it is what is looked at once in a while.
    memory_mb: Option<(f64, f64)>,
    pressure: BTreeMap<Resource, Pressure>,
    memory: MemoryView,
    memory_read: Option<MemoryReading>,
    looked: Option<Instant>,
    last: Option<Reading>,
    dead_counter: DeadCounter,
}

/// Counters of one instant.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    usage_us: Option<f64>,
    counts: Counts,
    mbm_bytes: Option<u64>,
}

/// This machine.
#[derive(Debug)]
pub struct LocalServer {
    config: LocalConfig,
    platform: Platform,
    mounts: Mounts,
    resctrl: Option<Resctrl>,
    /// Ways that it has left for us, for how many looks it has been others, and the platform's domain of each of its own.
    offer: Offer,
    other_offer: u32,
    l3_of_id: BTreeMap<u32, usize>,
    /// Classes in force, and what the default group is set to, with the ids of the domains that their masks are of.
    layout: Layout,
    default_group: Setting,
    group_domains: Vec<u32>,
    /// Observation from which on classes are planned anew although no allocation changes: while some are shared there may be room again.
    replan_at: Option<u64>,
    /// Classes wait for another tool's lock of resctrl.
    ways_late: bool,
    /// It was mounted anew with another offer, or only after the start, or others hold other ways alone.
    resctrl_changed: Option<String>,
    /// Another controller has it.
    resctrl_left: bool,
    /// Why the kernel made no further class in the last plan.
    short_of: Option<Cause>,
    observations: u64,
    engine: Option<Engine>,
    catalogue: Option<Catalogue>,
    owner: String,
    services: BTreeMap<ServiceId, Service>,
    journal: Journal,
    /// Under control by the journal: of ours, and of a process that died.
    touched: Touched,
    /// Allocations of a process that died, until [`LocalServer::resume`].
    in_force: BTreeMap<ServiceId, Allocation>,
    /// The safe layout on disk.
    safe: Option<SafeLayout>,
    /// The disk had no room for the safe layout.
    layout_owed: bool,
    /// That the disk is full has been said.
    told_full: bool,
    /// Services that keep the ways of a group of somebody else, who put their threads there: this process could not put them back.
    elsewhere: BTreeMap<ServiceId, (PathBuf, Setting)>,
    /// Classes as they were left.
    watch: watch::Watch,
    /// Services that are being given back now: no layout holds them at less than they had.
    giving: BTreeSet<ServiceId>,
    /// Those that have everything again: no longer in `touched`, and in the journal until no layout on disk speaks of them.
    given: BTreeSet<ServiceId>,
    /// Under control by the journal, but not here.
    strangers: BTreeMap<ServiceId, Control>,
    /// Those of them that ended before they had everything again.
    owed: BTreeSet<ServiceId>,
    /// Containers of ours that a process left that died; or why they cannot be told.
    left: Vec<String>,
    left_unknown: Option<ServerError>,
    orphans_removed: Vec<String>,
    /// Services that a run left as processes, and that were ended.
    commands_ended: Vec<ServiceId>,
    /// Writes of a failed plan that could not be undone, in the order in which they were done.
    unsettled: Vec<step::Step>,
    /// Since when some of them could not be.
    unsettled_since: Option<Instant>,
    keeper: Keeper,
    working_sets: Option<WorkingSets>,
    /// What services lend to one another between two plans.
    loans: SharedLoans,
    /// Services of a lease, lenders and borrowers.
    lending: BTreeSet<ServiceId>,
    /// How their threads are seen, and what was said of that last.
    programs: lend::Loaded,
    sight_said: Option<String>,
    /// What was said last of the way in which cores move.
    way_said: Option<String>,
    /// Leases of a process that died.
    leases_left: BTreeMap<ServiceId, Lease>,
    limits: Limits,
    feed: Feed,
    /// And when they were read.
    frequencies: (Option<Instant>, Frequencies),
    boot_id: Option<String>,
    /// CPUs on line at the start; since then another set, at so many looks in a row.
    online: CpuSet,
    other_online: (CpuSet, u32),
    no_pmu: Option<String>,
    last_observed_ms: u64,
    next_tick: Option<Instant>,
    /// Held as long as we live: one controller a state folder.
    _lock: Flock<File>,
    /// The CPUs that are managed; None where this is not the host, or is only watched.
    claim: Option<Claim>,
    /// Ours as well: the classes of resctrl.
    resctrl_claim: Option<Held>,
}

fn unavailable(what: impl Into<String>, cause: impl std::fmt::Display, remedy: impl Into<String>) -> ServerError {
    ServerError::Unavailable { what: what.into(), cause: cause.to_string(), remedy: remedy.into() }
}

/// What bounds whatever a state folder asks for: nothing where it is this user's or root's alone.
///
/// # Errors
/// [`ServerError::Invalid`] for another's folder without a list of what may be done.
pub fn by_whom(folder: &Folder, allow: Option<Allow>) -> Result<Option<Allow>, ServerError> {
    match (folder.author(), allow) {
        (Author::Us, _) => Ok(None),
        (Author::Others(_), Some(allow)) => Ok(Some(allow)),
        (Author::Others(weak), None) => Err(ServerError::Invalid(format!(
            "state folder {}: {weak}, so its journal and safe layout are not carried out with this user's rights. Run it as that user, give \
             another state folder, or the node.toml of that daemon (reset --config), which says what may be changed",
            folder.path().display()
        ))),
    }
}

/// Name of an owner, from its state folder: the same folder finds its orphans again.
fn owner_of(state_dir: &Path) -> String {
    format!("{:016x}", fnv1a(state_dir.as_os_str().as_encoded_bytes()))
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
    /// What [`LocalServer::open`] will find; nothing is opened.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for managed CPUs that are not there; [`ServerError::Unavailable`] for a resctrl that is not, or a host
    /// without sysfs.
    pub fn look(config: &LocalConfig) -> Result<Found, ServerError> {
        let resctrl = match &config.resctrl {
            Some(at) => Some(Resctrl::named(&config.root, at)?),
            None => Resctrl::find(&config.root),
        };
        let resctrl = resctrl.map(|r| r.with_peak(config.mem_bw_mbps));
        let found = discover_with(&config.root, config.managed, resctrl.as_ref())?;
        let platform = Platform { mem_bw_mbps: config.mem_bw_mbps, ..found.platform };
        let unlike = unlike(&config.root, &platform.managed, resctrl.as_ref());
        for what in found.differ.into_iter().chain(unlike.iter().map(ToString::to_string)) {
            tracing::warn!("{what}");
        }
        if let Some(r) = resctrl.as_ref().filter(|_| !found.offer.taken.is_empty()) {
            let of = r.cbm_bits().unwrap_or(0);
            tracing::warn!("{}: {}: {} of {of} ways are on offer", r.dir().display(), ways::said(&found.offer), found.offer.ways);
        }
        let online = online(&config.root)?;
        let (offer, l3_of_id) = (found.offer, found.l3_of_id);
        Ok(Found { platform, resctrl, offer, l3_of_id, no_pmu: perf::probe().err().map(|e| e.to_string()), online })
    }

    /// Take control of this machine. The calling thread moves to the CPUs that are not managed. Containers that a killed run of
    /// the same state folder left behind are removed, unless the configuration says to resume.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for managed CPUs that are not there; [`ServerError::Unavailable`] for a state folder or CPUs that
    /// another controller uses, a folder that cannot be written, or a host without sysfs.
    pub fn open(config: LocalConfig) -> Result<Self, ServerError> {
        let found = Self::look(&config)?;
        Self::open_found(config, found)
    }

    /// The same of a machine that was looked at.
    ///
    /// # Errors
    /// See [`LocalServer::open`].
    pub fn open_found(config: LocalConfig, found: Found) -> Result<Self, ServerError> {
        let mut server = Self::watch_found(config, found)?;
        if server.config.root.is_host() {
            server.claim = Some(claim::claim(Path::new(claim::FOLDER), server.platform.managed, claim::PATIENCE)?);
            server.claim_resctrl();
            server.find_left()?;
            server.commands_ended = server.end_left_commands()?;
            if !server.config.resume {
                server.remove_left()?;
            }
        }
        Ok(server)
    }

    /// Only for [`LocalServer::reset`]: takes nothing that giving back does not need. No CPU is claimed, whichever are managed, no latency is
    /// heard, and an engine that does not answer is told at the end.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] for a state folder that a controller uses or that cannot be read, or a host without sysfs.
    pub fn open_to_reset(config: LocalConfig) -> Result<Self, ServerError> {
        let config = LocalConfig { managed: None, ..config };
        let found = Self::look(&config)?;
        let mut server = Self::watch_with(config, found, |_, _| Ok(Feed::none()))?;
        if server.config.root.is_host() {
            server.claim_resctrl();
            server.left_unknown = server.find_left().err();
        }
        Ok(server)
    }

    /// As [`LocalServer::open_found`], but what a killed run left is not touched. For [`LocalServer::watch`].
    ///
    /// # Errors
    /// See [`LocalServer::open`].
    pub fn watch_found(config: LocalConfig, found: Found) -> Result<Self, ServerError> {
        Self::watch_with(config, found, |dir, mounts| Feed::bind(&dir.join("feed.sock"), feed::MODE, mounts))
    }

    fn watch_with(
        mut config: LocalConfig,
        found: Found,
        feed: impl FnOnce(&Path, &Mounts) -> Result<Feed, ServerError>,
    ) -> Result<Self, ServerError> {
        let Found { platform, resctrl, offer, l3_of_id, no_pmu, online: online_now } = found;
        let dir = config.state_dir.clone();
        let fail = |e: &io::Error, remedy: &str| {
            let (cause, remedy) = cause_and_remedy(e, remedy);
            unavailable(format!("state folder {}", dir.display()), cause, remedy)
        };
        let folder = Folder::create(&dir).map_err(|e| fail(&e, FOLDER))?;
        config.allow = by_whom(&folder, config.allow.take())?;
        config.state_dir = dir.canonicalize().map_err(|e| fail(&e, "Give a folder that can be read"))?;
        let patience = if config.root.is_host() { claim::PATIENCE } else { Duration::ZERO };
        let lock = claim::lock_folder(&folder, patience).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => fail(&e, "Stop that one or give another folder"),
            _ => fail(&e, FOLDER),
        })?;
        let dir = config.state_dir.clone();
        let mounts = Mounts::read(&config.root);
        // In the folder that was judged, whatever has its name by now.
        let (mut journal, mut recalled) = Journal::open_in(folder.try_clone().map_err(|e| fail(&e, FOLDER))?, "journal.jsonl")?;
        let boot_id = config.root.read(BOOT_ID);
        if let Some(boot_id) = &boot_id {
            recalled = journal.booted(boot_id)?;
        }
        let catalogue = config.catalogue.as_deref().map(Catalogue::load).transpose()?;
        if config.root.is_host() {
            keep_off(&online_now.difference(platform.managed));
        }
        let feed = feed(&dir, &mounts)?;
        if config.in_a_loop {
            feed.leave_to_decisions();
        }
        if no_pmu.is_none() && config.root.is_host() {
            perf::allow_descriptors();
        }
        if let Some(why) = &no_pmu {
            tracing::info!("features without hardware counters (feature set no-pmu): {why}");
        }
        let working_sets = config.working_set.map(|pace| WorkingSets::start(config.root.clone(), pace)).transpose();
        let working_sets = working_sets.unwrap_or_else(|e| {
            tracing::warn!("no working set is looked at: {e}");
            None
        });
        Ok(LocalServer {
            resctrl,
            offer,
            other_offer: 0,
            l3_of_id,
            layout: Layout::default(),
            default_group: Setting::default(),
            group_domains: vec![],
            replan_at: None,
            ways_late: false,
            resctrl_changed: None,
            resctrl_left: false,
            short_of: None,
            observations: 0,
            owner: owner_of(&dir),
            config,
            platform,
            mounts,
            working_sets,
            engine: None,
            catalogue,
            services: BTreeMap::new(),
            journal,
            touched: recalled.touched,
            in_force: recalled.in_force,
            safe: None,
            layout_owed: false,
            told_full: false,
            elsewhere: BTreeMap::new(),
            watch: watch::Watch::default(),
            giving: BTreeSet::new(),
            given: BTreeSet::new(),
            strangers: BTreeMap::new(),
            owed: BTreeSet::new(),
            left: vec![],
            left_unknown: None,
            orphans_removed: vec![],
            commands_ended: vec![],
            unsettled: vec![],
            unsettled_since: None,
            keeper: Keeper::default(),
            loans: SharedLoans::default(),
            lending: BTreeSet::new(),
            programs: None,
            sight_said: None,
            leases_left: recalled.leases,
            way_said: None,
            limits: Limits::default(),
            feed,
            no_pmu,
            last_observed_ms: 0,
            frequencies: Default::default(),
            boot_id,
            online: online_now,
            other_online: (online_now, 0),
            next_tick: None,
            _lock: lock,
            claim: None,
            resctrl_claim: None,
        })
    }

    fn wait(&self) -> Wait {
        if self.config.in_a_loop {
            Wait::Beside
        } else {
            Wait::Here
        }
    }

    /// Changes of classes that were made without the lock of resctrl, because another process held it.
    pub fn unlocked_changes(&self) -> u64 {
        self.resctrl.as_ref().map_or(0, Resctrl::unlocked_changes)
    }

    fn engine(&mut self) -> Result<Engine, ServerError> {
        if self.engine.is_none() {
            self.engine = Some(Engine::find()?);
        }
        self.engine.clone().ok_or_else(|| unavailable("container engine", "none", "Start it: systemctl start docker"))
    }

    /// "full", or "no-pmu" with the reason.
    pub fn feature_set(&self) -> (&'static str, Option<&str>) {
        (feature_set(self.no_pmu.as_ref()), self.no_pmu.as_deref())
    }

    /// Ways of the hardware, see [`Found::ways_of_all`].
    pub fn ways_of_all(&self) -> u32 {
        ways_of_all(&self.platform, self.resctrl.as_ref())
    }

    /// Socket that load generators send their windows to.
    pub fn feed_path(&self) -> &Path {
        self.feed.path()
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.feed
    }

    pub fn catalogue(&self) -> Option<&Catalogue> {
        self.catalogue.as_ref()
    }

    /// Value of the label `surefoot.owner` on containers of ours.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    pub fn has(&self, id: &str) -> bool {
        self.services.contains_key(id)
    }

    /// True without any service.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
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
        check_id_form(id).map_err(|e| ServerError::Invalid(format!("service id {e}")))?;
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
        if !(1..=MOST_THREADS).contains(&threads) {
            return Err(ServerError::Invalid(format!("{}: threads = {threads}. Give 1 to {MOST_THREADS}", spec.id)));
        }
        let port = entry.port.map(|p| spec.port.unwrap_or(p));
        let command = entry.command_line(threads, port.unwrap_or(0));
        let env = entry.environment(threads, port.unwrap_or(0));
        if let Some(v) = entry.volumes.iter().find(|v| !Path::new(&v.host).exists()) {
            return Err(unavailable(
                format!("volume {} of {}", v.host, spec.id),
                "there is no such file or folder",
                "Put it there, or mend volumes in its workload.toml",
            ));
        }
        let engine = self.engine()?;
        let name = format!("surefoot-{}-{}", &self.owner[..8], spec.id);
        let (owner, cpus) = (self.owner.clone(), self.platform.managed);
        let run = RunSpec {
            name: &name,
            owner: &owner,
            id: &spec.id,
            service: &spec.service,
            image: &entry.image,
            command: &command,
            cpus: &cpus,
            memory_mb: entry.memory_mb,
            env: &env,
            volumes: &entry.volumes,
            working_dir: entry.working_dir.as_deref(),
        };
        let left = engine.left_of(&self.left, &run)?;
        let container = match left {
            Some(c) => {
                tracing::info!("{}: going on with the container of the run before this one", spec.id);
                self.left.retain(|id| *id != c.id);
                Ok(c)
            }
            None => self.free(&name).and_then(|()| port_free(port, &spec.id, &fields(spec))).and_then(|()| engine.run(&run)),
        };
        let started = container.and_then(|c| {
            wait_ready(&engine, &c, port, &entry.ready()).and_then(|()| {
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

    /// A container of a dead run that has the name of one to be launched, but is not the same, makes room.
    fn free(&mut self, name: &str) -> Result<(), ServerError> {
        if self.left.is_empty() {
            return Ok(());
        }
        let id = self.engine()?.inspect(name).map(|c| c.id).unwrap_or_default();
        match self.left.iter().position(|l| *l == id) {
            Some(at) => {
                let id = self.left.swap_remove(at);
                self.engine()?.remove(&id)?;
                self.orphans_removed.push(id);
                Ok(())
            }
            None => self.engine()?.remove(name),
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
                let control = Control::Engine { engine: self.engine()?, container, all: control::present(&self.config.root)? };
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
        let claim = self.claim_group(id, found.1.as_ref())?;
        self.hold(id, service, kind, threads, target, found);
        if let Some(s) = self.services.get_mut(id) {
            s.claim = claim;
        }
        self.let_go_of_namesake(id);
        Ok(())
    }

    /// One service a cgroup, and one controller a service: two would take each other's values for somebody's interference.
    fn claim_group(&self, id: &str, cgroup: Option<&Cgroup>) -> Result<Option<Held>, ServerError> {
        let Some(g) = cgroup else { return Ok(None) };
        let near = |s: &Service| s.cgroup.as_ref().is_some_and(|o| o.cpuset.starts_with(&g.cpuset) || g.cpuset.starts_with(&o.cpuset));
        if let Some((other, _)) = self.services.iter().find(|(_, s)| near(s)) {
            let at = g.cpuset.display();
            return Err(ServerError::Invalid(format!(
                "{id} and {other} share the cgroup {at}, or one is inside the other's. Name one of them"
            )));
        }
        let Some(number) = g.identity().filter(|_| self.config.root.is_host() && self.claim.is_some()) else { return Ok(None) };
        match claim::claim_group(Path::new(claim::FOLDER), number, claim::PATIENCE) {
            Ok(lock) => Ok(Some(lock)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(unavailable(id, e, "Stop that one, or leave the service out of one of the two configurations"))
            }
            Err(e) => {
                tracing::warn!("{e}: another controller of {id} would not be noticed");
                Ok(None)
            }
        }
    }

    fn hold(&mut self, id: &str, service: &str, kind: Kind, threads: u32, target: Target, found: (Control, Option<Cgroup>, Option<u32>)) {
        self.limits.forget(id);
        let (control, cgroup, pid) = found;
        let process = pid.and_then(|p| Process::find(&self.config.root, p));
        let usage = cgroup.as_ref().and_then(Cgroup::usage);
        let identity = cgroup.as_ref().and_then(Cgroup::identity);
        let counters = self.no_pmu.is_none().then(|| self.counters(cgroup.as_ref(), pid)).flatten();
        let s = Service {
            service: service.into(),
            kind,
            threads,
            target,
            control,
            cgroup,
            identity,
            claim: None,
            process,
            launched: None,
            started: None,
            port: None,
            allocation: Allocation::everything(&self.platform),
            placed: false,
            usage,
            counters,
            traffic: Traffic::default(),
            memory_mb: None,
            pressure: BTreeMap::new(),
            memory: MemoryView::default(),
            memory_read: None,
            looked: None,
            last: None,
            dead_counter: DeadCounter::default(),
        };
        self.services.insert(id.into(), s);
    }

    /// Give a service back: launched ones are stopped and removed, others get their former values again.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for an unknown id, else what the engine or the kernel says.
    pub fn stop(&mut self, id: &str) -> Result<(), ServerError> {
        if !self.services.contains_key(id) {
            return Err(ServerError::Invalid(format!("no service \"{id}\" here. There are: {}", self.names())));
        }
        match self.container(id).map(str::to_string) {
            Some(container) => {
                self.engine()?.remove(&container)?;
                self.forget(id)?;
            }
            None if self.services[id].started.is_some() => {
                self.end_command(id)?;
                self.forget(id)?;
            }
            None => self.let_go(id)?,
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
}

/// That an id can be one of a service: it is part of names of groups, containers and sockets.
///
/// # Errors
/// What is wrong with it.
pub fn check_id_form(id: &str) -> Result<(), String> {
    if id.is_empty()
        || id.len() > 40
        || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        || id.starts_with(['-', '.', '_'])
    {
        return Err(format!("{id:?} is no id: use up to 40 letters, digits, '-', '_' and '.', the first a letter or a digit"));
    }
    Ok(())
}

/// Where the port of a service of the catalogue is set.
fn fields(spec: &LaunchSpec) -> String {
    format!("port in workloads/{}/workload.toml or service.port in node.toml", spec.service)
}

/// Asked before it runs: inside a container the failure would be a line in a log.
fn port_free(port: Option<u16>, id: &str, fields: &str) -> Result<(), ServerError> {
    let Some(p) = port else { return Ok(()) };
    TcpListener::bind((Ipv4Addr::LOCALHOST, p))
        .map(|_| ())
        .map_err(|e| unavailable(format!("port {p} for {id}"), e, format!("Stop what listens there, or give another: {fields}")))
}

/// Whether a port takes connections. Only where the kernel does not say who listens it is tried.
pub(crate) fn serves(port: u16) -> bool {
    let tried = || TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), Duration::from_millis(200)).is_ok();
    listens(&Root::default(), port).unwrap_or_else(tried)
}

/// Until it is ready, or the container has ended.
fn wait_ready(engine: &Engine, c: &Container, port: Option<u16>, ready: &Ready) -> Result<(), ServerError> {
    let deadline = Instant::now() + READY;
    loop {
        let (is_ready, awaited) = match (ready, port) {
            (Ready::Runs, _) | (Ready::Port, None) => (true, String::new()),
            (Ready::Port, Some(p)) => (serves(p), format!("nothing listened on port {p}")),
            (Ready::Log(text), _) => (engine.has_written(&c.id, text), format!("it did not write \"{text}\"")),
        };
        if is_ready {
            return engine.inspect(&c.id).map(|_| ());
        }
        engine.inspect(&c.name)?;
        if Instant::now() > deadline {
            let cause = format!("{awaited} within {} s{}", READY.as_secs(), engine.last_log(&c.id));
            return Err(unavailable(format!("container {}", c.name), cause, "Look at its log, or give it more CPU"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl LocalServer {
    /// What is seen at an instant; `now_ms`: the same on the feed's clock.
    fn observe_at(&mut self, now: Instant, now_ms: u64) -> Observation {
        self.drop_ended();
        self.end_silent_leases(now);
        match self.settle() {
            Ok(()) => {
                self.catch_up();
                self.tend();
            }
            Err(e) => tracing::error!("{e}"),
        }
        let since = std::mem::replace(&mut self.last_observed_ms, now_ms);
        let ids: Vec<ServiceId> = self.services.keys().cloned().collect();
        self.watch_resctrl();
        self.follow_threads(&ids);
        self.look_around(now);
        self.look_at_limits();
        let read: Vec<(Features, Option<f64>)> = ids.iter().map(|id| self.features(id, now)).collect();
        let mut features: Vec<Features> = read.iter().map(|r| r.0).collect();
        fill_neighbours(&mut features);
        let latency = self.latency(since, now_ms);
        let services = ids
            .iter()
            .zip(features)
            .zip(read)
            .map(|((id, features), (_, instr_per_s))| {
                let s = &self.services[id];
                let heard = latency.get(id);
                ServiceView {
                    id: id.clone(),
                    service: s.service.clone(),
                    kind: s.kind,
                    threads: s.threads,
                    allocation: self.held(id, &s.allocation),
                    placed: s.placed,
                    features,
                    feed: heard.map_or(FeedState::NotNeeded, |r| r.feed),
                    interval: heard.and_then(|r| r.interval),
                    window: heard.and_then(|r| r.window),
                    instr_per_s,
                    memory: s.memory,
                }
            })
            .collect();
        Observation { t_ms: now_ms, services, bounds: self.bounds(), words: None }
    }
}

impl Server for LocalServer {
    fn platform(&self) -> &Platform {
        &self.platform
    }

    fn observe(&mut self) -> Observation {
        self.feed.take_waiting(self.last_observed_ms);
        self.observe_at(Instant::now(), self.feed.now_ms())
    }

    fn apply(&mut self, plan: &Plan) -> Result<Applied, ServerError> {
        self.put_in_force(plan, self.wait())
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
    /// Containers and processes that we started end with us. Values of other services stay until [`LocalServer::reset`].
    fn drop(&mut self) {
        self.end_leases("its server has gone", |_| true);
        let ours = |s: &Service| s.launched.is_some() || s.started.is_some();
        let launched: Vec<ServiceId> = self.services.iter().filter(|(_, s)| ours(s)).map(|(id, _)| id.clone()).collect();
        for id in launched {
            if let Err(e) = self.stop(&id) {
                tracing::error!("{e}");
            }
        }
    }
}
