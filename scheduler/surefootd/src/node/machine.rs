//! The machine of `surefootd run` and `surefootd record`: what its configuration says runs there, started or found.

use super::pods::Pods;
use super::rights::{for_state, own_files};
use crate::base::error::server_error;
use crate::base::error::{Error, Result};
use crate::base::places::{catalogue_dir, state_dir};
use crate::stage::config::{FeedConfig, How, NodeConfig, NodeService};
use crate::stage::load::Loads;
use crate::stage::virtual_target::VirtualTarget;
use crate::stage::workload::check_platform;
use crate::stage::workload::Workload;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_linux::actuator::{Allow, RemoteFiles};
use surefoot_linux::catalogue::EntryKind;
use surefoot_linux::feed::Trusted;
use surefoot_linux::files::SharedFiles;
use surefoot_linux::{working_set, Catalogue, Found, LaunchSpec, LocalConfig, LocalServer, Root};
use surefoot_server::{Kind, Observation, Server, ServerError, Tick};
use surefoot_vserver::VirtualServer;

/// A machine with services on it.
pub enum Node {
    Virtual { server: Box<VirtualServer>, workload: Workload, loads: Loads, realtime: bool },
    Local(Box<LocalServer>),
}

/// Whether services that run already are controlled or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Control,
    Watch,
}

impl Node {
    /// The workload of the configuration on a virtual server.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn virtual_server(config: &NodeConfig, at: &VirtualTarget) -> Result<Self> {
        let file = config.workload.clone().ok_or_else(|| missing(config, "workload", "Name a workload file (docs/workload-format.md)"))?;
        let unreadable =
            |e| Error::BadInput(format!("{}: workload: {}", config.file.display(), Error::unreadable(&file, "a workload file", &e)));
        let text = input::text(&file, WRITTEN_BYTES).map_err(unreadable)?;
        let workload = Workload::parse(&file, &text, &at.target())?;
        check_platform(&workload, &at.platform.name);
        if !config.services.is_empty() {
            let ids: Vec<&str> = config.services.iter().map(|s| s.id.as_str()).collect();
            let (file, ids) = (config.file.display(), ids.join(", "));
            tracing::warn!(
                "{file}: service: {ids}: ignored{}: a virtual server runs its workload alone. Put them there, or use --server local",
                if config.lends.is_empty() { "" } else { ", and lend with them" }
            );
        }
        let mut server = at.server(config.seed);
        let loads = workload.announce(&mut server, &at.profiles, config.seed)?;
        Ok(Node::Virtual { server: Box::new(server), workload, loads, realtime: config.realtime })
    }

    pub fn server(&mut self) -> &mut dyn Server {
        match self {
            Node::Virtual { server, .. } => server.as_mut(),
            Node::Local(s) => s.as_mut(),
        }
    }

    /// How many services and jobs there are to be; some may come later.
    pub fn services(&self, config: &NodeConfig) -> usize {
        match self {
            Node::Virtual { workload, .. } => workload.lc.len() + workload.be.len(),
            Node::Local(_) => config.services.len(),
        }
    }

    /// When it ends by itself, ms from the first tick: after so many seconds, else with the workload; None: never.
    pub fn end_ms(&self, duration_s: Option<u64>) -> Option<u64> {
        match (self, duration_s) {
            (_, Some(s)) => Some(s * 1000),
            (Node::Virtual { workload, .. }, None) => Some(workload.duration_ms),
            (Node::Local(_), None) => None,
        }
    }

    /// Offered load of a service as a share of its max load; None where it is unknown.
    pub fn load_at(&self, id: &str, t_ms: u64) -> Option<f64> {
        self.loads()?.load_at(id, t_ms)
    }

    /// Offered RPS of a service; None where it is unknown.
    pub fn offered_rps(&self, id: &str, t_ms: u64) -> Option<f64> {
        self.loads()?.rate_at(id, t_ms)
    }

    fn loads(&self) -> Option<&Loads> {
        match self {
            Node::Virtual { loads, .. } => Some(loads),
            Node::Local(_) => None,
        }
    }
}

/// Counts ticks of a node, and paces a virtual server whose seconds take a second.
pub struct Clock {
    tick: Tick,
    start: Instant,
    pub ticks: u64,
    first_ms: Option<u64>,
}

impl Clock {
    pub fn new(interval_ms: u64) -> Self {
        Clock { tick: Tick { ms: interval_ms }, start: Instant::now(), ticks: 0, first_ms: None }
    }

    /// What is seen now, and the time since the first tick, ms: a local server's clock started when it was opened.
    pub fn observe(&mut self, node: &mut Node) -> (u64, Observation) {
        let seen = node.server().observe();
        (seen.t_ms - *self.first_ms.get_or_insert(seen.t_ms), seen)
    }

    /// On to the next tick.
    pub fn advance(&mut self, node: &mut Node) {
        node.server().advance(self.tick);
        self.ticks += 1;
        if let Node::Virtual { realtime: true, .. } = node {
            let due = self.start + Duration::from_millis(self.ticks * self.tick.ms);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

pub fn missing(config: &NodeConfig, field: &str, remedy: &str) -> Error {
    if config.file.as_os_str().is_empty() {
        return Error::BadInput(format!("--config: is missing, and with it `{field}`. Give a node.toml (docs/node-config.md). {remedy}"));
    }
    Error::BadInput(format!("{}: {field}: is missing. {remedy}", config.file.display()))
}

/// How this process changes kernel files: through the actuator that the configuration names, else by itself, within `allow` where there is
/// such a list.
///
/// # Errors
/// [`Error::Failed`] where that actuator does not serve us.
pub fn kernel_files(config: &NodeConfig, allow: Option<&Allow>) -> Result<SharedFiles> {
    let Some(a) = &config.actuator else { return own_files(allow, Some(config)) };
    let files = RemoteFiles::connect(&a.socket).map_err(|e| match e.kind() {
        // It says itself what to do.
        std::io::ErrorKind::ResourceBusy => Error::Failed(e.to_string()),
        _ => Error::Failed(format!("{e}. {ACTUATOR_REMEDY}")),
    })?;
    tracing::info!("kernel files are changed by the actuator at {}", a.socket.display());
    Ok(Arc::new(files))
}

const ACTUATOR_REMEDY: &str =
    "Start it (systemctl start surefootd-actuator, or surefootd actuate --config FILE as root), or remove [actuator]";

/// This machine, not yet with its services; its state folder; and what `check` made of what the machine was found to be, before that
/// folder or anything else was touched.
///
/// # Errors
/// [`Error::BadInput`] without services; what `check` says; else why the machine cannot be had.
pub fn local_server<T>(
    config: &NodeConfig,
    purpose: Purpose,
    check: impl FnOnce(&Found) -> Result<T>,
) -> Result<(LocalServer, PathBuf, T)> {
    if config.services.is_empty() && config.pods.is_none() {
        return Err(missing(config, "service", "Add [[service]] entries: what runs here"));
    }
    let state = state_dir(config.state_dir.as_deref());
    let launches = config.services.iter().any(|s| matches!(s.how, How::Launch { .. }));
    let catalogue = launches.then(|| catalogue_dir(config.catalogue.as_deref()));
    // What the configuration itself can be wrong about, while there is neither a state folder nor a socket.
    check_services(config, catalogue.as_deref().map(Catalogue::load).transpose().map_err(server_error)?.as_ref())?;
    check_senders(config)?;
    if let Some(group) = config.upper.group.as_deref().filter(|_| config.upper.on && purpose == Purpose::Control) {
        group_id(config, "upper.group", group)?;
    }
    let allow = for_state(&state, Some(config))?;
    // Who only watches takes nobody's place at the actuator.
    let files = match purpose {
        Purpose::Control => kernel_files(config, allow.as_ref())?,
        Purpose::Watch => own_files(allow.as_ref(), Some(config))?,
    };
    let local = LocalConfig {
        root: Root::with("/", files),
        allow,
        catalogue,
        managed: config.cpus,
        partitions: config.partitions,
        sched_ext: config.sched_ext,
        resume: purpose == Purpose::Control,
        resctrl: config.resctrl.clone(),
        mem_bw_mbps: config.mem_bw_mbps,
        in_a_loop: true,
        working_set: (config.working_set && purpose == Purpose::Control).then(working_set::Pace::default),
        ..LocalConfig::new(&state)
    };
    let found = LocalServer::look(&local).map_err(server_error)?;
    let checked = check(&found)?;
    // Containers that a killed run left stand in the way of those to be launched.
    let open = if purpose == Purpose::Control || launches { LocalServer::open_found } else { LocalServer::watch_found };
    Ok((open(local, found).map_err(server_error)?, state, checked))
}

/// That services to be launched are in the catalogue, and that what the configuration says of them fits what they are there.
fn check_services(config: &NodeConfig, catalogue: Option<&Catalogue>) -> Result<()> {
    let Some(catalogue) = catalogue else { return Ok(()) };
    for s in config.services.iter().filter(|s| matches!(s.how, How::Launch { .. })) {
        let file = config.file.display();
        let entry = catalogue.get(&s.service).map_err(|e| Error::BadInput(format!("{file}: service: {}", server_error(e))))?;
        let has_none = |field: &str, of: &str| {
            Err(Error::BadInput(format!("{file}: service.{field}: {} is a BE job, which has no latency to {of}. Remove it", s.id)))
        };
        match entry.kind {
            EntryKind::Be if s.prometheus.is_some() => return has_none("prometheus", "judge"),
            EntryKind::Be if s.feed != FeedConfig::default() => return has_none("feed", "send"),
            EntryKind::Lc if config.lends.iter().any(|l| l.borrower == s.id) => {
                return Err(Error::BadInput(format!(
                    "{file}: lend.borrower: \"{}\" is an LC service, which could not do without what it gives back. Name a BE job",
                    s.id
                )))
            }
            _ => {}
        }
    }
    Ok(())
}

/// How latency is heard of: what is scraped, and who may write to the socket.
fn listen(server: &mut LocalServer, config: &NodeConfig) -> Result<()> {
    for s in &config.services {
        if let Some(what) = &s.prometheus {
            server.scrape(&s.id, what.clone());
        }
    }
    for s in &config.services {
        let (trusted, group) = senders(config, s)?;
        server.trust(&s.id, trusted);
        if let Some(own) = &s.feed.socket {
            let path = server.own_feed_socket(&s.id, own.mode, group).map_err(server_error)?;
            tracing::info!("latency feed of {} alone: {}", s.id, path.display());
        }
    }
    let group = config.feed_group.as_deref().map(|g| group_id(config, "feed_group", g)).transpose()?;
    server.open_feed_to(config.feed_mode, group).map_err(server_error)
}

/// Whom a service's `feed` names, and the group of its own socket.
///
/// # Errors
/// [`Error::BadInput`] for a user or group that is not there.
fn senders(config: &NodeConfig, s: &NodeService) -> Result<(Trusted, Option<u32>)> {
    let ids = |field: &str, names: &[String], id_of: fn(&NodeConfig, &str, &str) -> Result<u32>| {
        let field = format!("service {}: feed.{field}", s.id);
        names.iter().map(|n| id_of(config, &field, n)).collect::<Result<Vec<u32>>>()
    };
    let (users, groups) = (ids("users", &s.feed.users, user_id)?, ids("groups", &s.feed.groups, group_id)?);
    let own: Vec<String> = s.feed.socket.iter().filter_map(|own| own.group.clone()).collect();
    let own = ids("socket_group", &own, group_id)?.first().copied();
    Ok((Trusted { users, groups, cgroups: s.feed.cgroups.clone(), anybody: s.feed.anybody }, own))
}

/// That every user and group which the latency feed's settings name is there.
///
/// # Errors
/// [`Error::BadInput`] names the first that is not.
pub fn check_senders(config: &NodeConfig) -> Result<()> {
    config.feed_group.as_deref().map(|g| group_id(config, "feed_group", g)).transpose()?;
    config.services.iter().try_for_each(|s| senders(config, s).map(|_| ()))
}

/// A user that `field` gives by its number or its name.
///
/// # Errors
/// [`Error::BadInput`] where there is none.
fn user_id(config: &NodeConfig, field: &str, user: &str) -> Result<u32> {
    let by_name = || nix::unistd::User::from_name(user).ok().flatten().map(|u| u.uid.as_raw());
    user.parse()
        .ok()
        // The kernel's word for none.
        .filter(|u| *u != u32::MAX)
        .or_else(by_name)
        .ok_or_else(|| Error::BadInput(format!("{}: {field}: no user {user:?} here. Give one of `getent passwd`", config.file.display())))
}

/// A group that `field` gives by its number or its name.
///
/// # Errors
/// [`Error::BadInput`] where there is none.
pub fn group_id(config: &NodeConfig, field: &str, group: &str) -> Result<u32> {
    let by_name = || nix::unistd::Group::from_name(group).ok().flatten().map(|g| g.gid.as_raw());
    group
        .parse()
        .ok()
        .or_else(by_name)
        .ok_or_else(|| Error::BadInput(format!("{}: {field}: no group {group:?} here. Give one of `getent group`", config.file.display())))
}

/// Start or find the services of the configuration. One that is not there yet (Unavailable) is waited for: see [`Absent`]. A pod that cannot
/// be had takes nothing else down.
///
/// # Errors
/// The first that could not be launched, or that never can be had.
pub fn bring_in(server: &mut LocalServer, config: &NodeConfig, pods: &[NodeService], purpose: Purpose) -> Result<Waited> {
    listen(server, config)?;
    know(server, config, pods);
    let mut waited = Waited::default();
    for s in pods {
        if let Err(e) = take(server, s, purpose) {
            waited.log(&s.id, &e);
        }
    }
    let mut absent = vec![];
    for s in &config.services {
        match (take(server, s, purpose), &s.how) {
            (Ok(()), _) => {}
            (Err(e @ ServerError::Unavailable { .. }), How::Adopt { .. }) => {
                waited.log(&s.id, &e);
                absent.push(e);
            }
            (Err(e), _) => return Err(server_error(e)),
        }
    }
    tracing::info!("latency feed: {}", server.feed_path().display());
    match absent.into_iter().next().filter(|_| config.pods.is_none()) {
        // Nothing at all to look at is more likely a mistake in the file than a slow start. Control waits: at boot services may come later.
        Some(e) if server.is_empty() && purpose == Purpose::Watch => Err(server_error(e)),
        _ => Ok(waited),
    }
}

/// Why services are waited for, as far as it was said: the same words every second say nothing new.
#[derive(Debug, Default)]
pub struct Waited(BTreeMap<String, String>);

impl Waited {
    /// What is to be said; nothing where that was the last word on this service.
    fn word(&mut self, id: &str, why: &str) -> Option<String> {
        let before = self.0.insert(id.into(), why.into());
        (before.as_deref() != Some(why)).then(|| format!("{id} is waited for: {why}"))
    }

    fn log(&mut self, id: &str, why: &ServerError) {
        if let Some(word) = self.word(id, &why.to_string()) {
            tracing::warn!("{word}");
        }
    }

    /// It is there, or nobody asks for it any more: when it goes again, that is new.
    fn keep(&mut self, missing: &[&str]) {
        self.0.retain(|id, _| missing.contains(&id.as_str()));
    }
}

fn take(server: &mut LocalServer, s: &NodeService, purpose: Purpose) -> std::result::Result<(), ServerError> {
    let threads = s.threads.unwrap_or(1);
    match (&s.how, purpose) {
        (How::Launch { port }, _) => {
            server.launch(&LaunchSpec { id: s.id.clone(), service: s.service.clone(), threads: s.threads, port: *port })
        }
        (How::Adopt { kind, target }, Purpose::Control) => server.adopt(&s.id, &s.service, *kind, threads, target.clone()),
        (How::Adopt { kind, target }, Purpose::Watch) => server.watch(&s.id, &s.service, *kind, threads, target.clone()),
    }
}

/// What LC services send is no mistake, also before they are here.
fn know(server: &mut LocalServer, config: &NodeConfig, pods: &[NodeService]) {
    let is_lc = |s: &&NodeService| match s.how {
        How::Adopt { kind, .. } => kind != Kind::Be,
        How::Launch { .. } => server.catalogue().and_then(|c| c.get(&s.service).ok()).is_some_and(|e| e.kind == EntryKind::Lc),
    };
    let known: Vec<String> = config.services.iter().chain(pods).filter(is_lc).map(|s| s.id.clone()).collect();
    server.know(known.into_iter());
}

/// Services of the configuration that run on their own and are not there now: restarted ones come back under control. Pods come and go.
pub struct Absent {
    looked_ms: u64,
    waited: Waited,
    pub pods: Option<Pods>,
}

impl Absent {
    /// Time between two looks, ms: a look asks the kernel, and for containers the engine.
    const EVERY_MS: u64 = 1000;

    pub fn with(pods: Option<Pods>, waited: Waited) -> Self {
        Absent { looked_ms: 0, waited, pods }
    }

    /// Take those back that are there again. Returns the ids of all that are not; None where it was not time to look.
    pub fn look(&mut self, now_ms: u64, node: &mut Node, config: &NodeConfig, purpose: Purpose) -> Option<Vec<String>> {
        let Node::Local(server) = node else { return None };
        if now_ms < self.looked_ms + Self::EVERY_MS {
            return None;
        }
        self.looked_ms = now_ms;
        if let Some(pods) = &mut self.pods {
            for id in pods.refresh().into_iter().filter(|id| server.has(id)).collect::<Vec<_>>() {
                match server.stop(&id) {
                    Ok(()) => tracing::info!("{id}: its pod is gone, or asks for something else: it has what it had before"),
                    Err(e) => tracing::warn!("{id}: its pod is gone, or asks for something else: {e}"),
                }
            }
            know(server, config, pods.services());
        }
        let pods = self.pods.as_ref().map_or(&[][..], Pods::services);
        let all = || config.services.iter().chain(pods);
        let missing: Vec<_> = all().filter(|s| matches!(s.how, How::Adopt { .. }) && !server.has(&s.id)).collect();
        self.waited.keep(&missing.iter().map(|s| s.id.as_str()).collect::<Vec<_>>());
        for s in missing {
            match take(server, s, purpose) {
                Ok(()) => tracing::info!("{} is there{}", s.id, if pods.contains(s) { "" } else { " again" }),
                Err(e) => self.waited.log(&s.id, &e),
            }
        }
        Some(all().filter(|s| !server.has(&s.id)).map(|s| s.id.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a service or a pod cannot be had is said when it is new, and again after it was there; not every second.
    #[test]
    fn why_something_is_waited_for_is_said_once() {
        let mut waited = Waited::default();
        assert_eq!(waited.word("web", "no cpuset").as_deref(), Some("web is waited for: no cpuset"));
        assert_eq!(waited.word("web", "no cpuset"), None);
        assert_eq!(waited.word("web", "gone").as_deref(), Some("web is waited for: gone"));
        waited.keep(&["web"]);
        assert_eq!(waited.word("web", "gone"), None);
        waited.keep(&[]);
        assert!(waited.word("web", "gone").is_some());
    }
}
