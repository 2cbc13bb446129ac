//! Latency intake (docs/latency-feed.md): datagrams of load generators and services on Unix sockets, and scraped histograms.
//!
//! One thread takes datagrams off the sockets ([`intake`]), because the kernel holds only so many; each scraped service has a thread of its
//! own. The sender of a datagram is known before it is read ([`senders`]), and so is for which services it may speak ([`sender`]). What is
//! read is kept for twenty seconds at most, only of services that are expected, and bounded in number and size whatever is sent.

pub mod buckets;
mod calm;
pub mod datagram;
pub mod doubt;
mod intake;
mod lanes;
pub mod prometheus;
pub mod reading;
pub mod scrape;
mod sender;
mod senders;
mod share;
mod socket;
pub mod window;

pub use datagram::{decode, Cell, Counts, Interval, Reason, Refused, MAX_DATAGRAM};
pub use prometheus::{Unit, Wanted};
pub use scrape::{Scrape, Url};
pub use sender::Trusted;
pub use window::{Reading, Speaker, Windows};

use crate::cgroup::Mounts;
use crate::own::{cause_and_remedy, Folder};
use crate::root::Root;
use calm::Calm;
use datagram::shown;
use intake::{Intake, Line, Listener};
use scrape::Turn;
use sender::{Credentials, Home, Host, Place, Rules};
use senders::{Senders, Via, Who};
use socket::{Socket, LEAST_DEPTH};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_server::{FeedState, ServerError};

/// Who may write to the socket: its owner and its owner's group.
pub const MODE: u32 = 0o660;
/// Folder beside the common socket, with the sockets of single services.
pub const OWN_SOCKETS: &str = "feed";
/// A service that has not been heard for so long since it came is warned of: load generators take a while to start.
const FIRST_WORD_MS: u64 = 5000;

/// State that the threads of a feed share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    windows: Mutex<Windows>,
    rules: Mutex<Arc<Rules>>,
    lines: Mutex<Vec<Arc<Line>>>,
    /// The receiving thread has not yet seen all lines.
    new_lines: AtomicBool,
    refused: [AtomicU64; Reason::ALL.len()],
    /// Services of which a sender that may not speak for them was told in the log.
    told: Mutex<BTreeSet<String>>,
    stop: AtomicBool,
    calm: Calm,
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// From 1 on: "since 0" is since ever.
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        locked(&self.windows)
    }

    /// Count what was not taken; true the first time.
    fn count(&self, reason: Reason) -> bool {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed) == 0
    }

    fn refuse(&self, e: &Refused) {
        // Once for each reason: a sender with another format would fill the log ten times a second. After a restart load generators
        // speak before their services have been found.
        if self.count(e.reason) && e.reason != Reason::Absent {
            tracing::warn!("{e}; further ones are only counted (surefoot_feed_refused_total)");
        }
    }

    /// What a scraper has to say of a page; false where it may end.
    fn hear_page(&self, service: &str, page: usize, ended: &AtomicBool, turn: Turn) -> bool {
        let mut windows = self.windows();
        // Under the lock: what another thread has begun in its place is not its own.
        if ended.load(Ordering::Relaxed) {
            return false;
        }
        let kept = match turn {
            Turn::Read(read) => windows.push_scrape(service, page, self.now_ms(), read),
            Turn::Failed => {
                // Said in the log already, with the page.
                self.count(Reason::Page);
                Ok(true)
            }
            Turn::Waited => Ok(true),
        };
        drop(windows);
        kept.unwrap_or_else(|e| {
            self.refuse(&e);
            true
        })
    }

    /// A sender speaks for a service without a right to: said once for each service.
    fn refuse_sender(&self, service: &str, via: &Via, from: &Credentials, who: &Who<'_>) {
        self.count(Reason::Sender);
        // A process that has just begun will be known at its next datagram.
        if *who == Who::Unsure || !locked(&self.told).insert(service.into()) {
            return;
        }
        let (who, why) = (described(from, who), remedy(service, via, who));
        tracing::warn!(
            "latency datagram: {} from {who}: {why}; further ones are only counted (surefoot_feed_refused_total)",
            shown(service)
        );
    }
}

/// A sender, fit for a log.
fn described(from: &Credentials, who: &Who<'_>) -> String {
    let process = if from.pid > 0 { format!("process {}", from.pid) } else { "a process outside of this pid namespace".into() };
    let at = who.facts().and_then(|f| f.paths.first()).map(|p| format!(" in cgroup {:?}", p.display().to_string()));
    format!("{process} of user {}{}", from.uid, at.unwrap_or_default())
}

fn remedy(service: &str, via: &Via, who: &Who<'_>) -> String {
    if let Some(own) = &via.service {
        return format!("that is the socket of {}. Send to the service's own, or to feed.sock", shown(own));
    }
    let seen = if who.facts().is_some() { "" } else { "which has ended or cannot be seen, " };
    format!(
        "{seen}not of its cgroup, nor root's or the daemon's user's own. Name the sender in `feed` of {} in node.toml: users, groups or \
         cgroups, or a socket of its own (docs/latency-feed.md)",
        shown(service)
    )
}

impl Listener for Shared {
    fn lines(&self) -> Option<Vec<Arc<Line>>> {
        self.new_lines.swap(false, Ordering::AcqRel).then(|| locked(&self.lines).clone())
    }

    fn rules(&self) -> Arc<Rules> {
        locked(&self.rules).clone()
    }

    fn has_ended(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn calm(&self) -> &Calm {
        &self.calm
    }

    fn now_ms(&self) -> u64 {
        Shared::now_ms(self)
    }

    fn hear(&self, bytes: &[u8], arrived_ms: u64, via: &Via, from: &Credentials, who: &Who<'_>, rules: &Rules) {
        let i = match decode(bytes, arrived_ms) {
            Ok(i) => i,
            Err(e) => return self.refuse(&e),
        };
        let mut windows = self.windows();
        if let Err(e) = windows.hears(&i.service) {
            drop(windows);
            return self.refuse(&e);
        }
        let may = match &via.service {
            Some(own) => *own == i.service,
            None => rules.may_speak(&i.service, from, who.facts()),
        };
        if !may {
            drop(windows);
            return self.refuse_sender(&i.service, via, from, who);
        }
        let started_us = who.facts().map_or(0, |f| f.started_us);
        let speaker = (from.pid > 0).then_some(Speaker { socket: via.number, pid: from.pid, started_us });
        let taken = windows.push(i, speaker);
        drop(windows);
        if let Err(e) = taken {
            self.refuse(&e);
        }
    }

    fn refuse(&self, reason: Reason, from: Option<&Credentials>, why: &str) {
        if self.count(reason) {
            let who = from.map_or_else(|| "a process".into(), |c| described(c, &Who::Unseen));
            tracing::warn!("latency datagram: {who} {why}; further ones are only counted (surefoot_feed_refused_total)");
        }
    }
}

/// Threads that scrape the pages of one service, until this says that they may end.
#[derive(Debug)]
struct Scraper {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Scraper {
    /// They end by themselves, at the latest after their present scrape: nobody waits for a service that does not answer.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.iter().for_each(|t| t.thread().unpark());
    }
}

/// The socket, the thread that empties it, and those that scrape.
#[derive(Debug)]
pub struct Feed {
    path: PathBuf,
    shared: Arc<Shared>,
    /// Held by the thread, except in calm times.
    intake: Option<Arc<Mutex<Intake>>>,
    /// A byte here wakes the receiving thread.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    /// What is to be scraped of services whenever they are here.
    scrapes: BTreeMap<String, Scrape>,
    scrapers: BTreeMap<String, Scraper>,
    /// The last state of each service that was read.
    states: BTreeMap<String, FeedState>,
    /// Services that were warned of because they have never been heard.
    unheard: BTreeSet<String>,
}

impl Shared {
    fn new(rules: Rules, lines: Vec<Arc<Line>>) -> Self {
        Shared {
            start: Instant::now(),
            windows: Mutex::default(),
            rules: Mutex::new(Arc::new(rules)),
            lines: Mutex::new(lines),
            new_lines: AtomicBool::new(true),
            refused: Default::default(),
            told: Mutex::default(),
            stop: AtomicBool::new(false),
            calm: Calm::default(),
        }
    }
}

impl Feed {
    /// Bind `path` with the given mode; a socket that a dead process left there is replaced. `mounts`: where cgroups of senders are.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where it cannot be bound.
    pub fn bind(path: &Path, mode: u32, mounts: &Mounts) -> Result<Self, ServerError> {
        Self::bind_with(path, mode, mounts, Calm::default())
    }

    fn bind_with(path: &Path, mode: u32, mounts: &Mounts, calm: Calm) -> Result<Self, ServerError> {
        let fail = |e: std::io::Error| cannot_bind(path, &e);
        let (folder, name) = Folder::of(path).map_err(fail)?;
        if let Ok(left) = folder.sub(OWN_SOCKETS) {
            // Of a process that died. What is none of ours stays.
            left.names().into_iter().flatten().for_each(|n| drop(left.remove_socket(&n)));
        }
        let socket = Socket::bind(folder, name, mode).map_err(fail)?;
        if let Some(depth) = socket.depth.filter(|d| *d < LEAST_DEPTH) {
            tracing::warn!(
                "latency socket {}: the kernel holds only {depth} datagrams for it: a busy moment, or one sender that floods it, loses \
                 others theirs. Set sysctl net.unix.max_dgram_qlen={LEAST_DEPTH} or more and start again",
                path.display()
            );
        }
        let via = Via { number: 0, service: None };
        let rules = Rules { uid: nix::unistd::geteuid().as_raw(), ..Rules::default() };
        let shared = Arc::new(Shared { calm, ..Shared::new(rules, vec![Arc::new(Line { socket, via })]) });
        let (wake, woken) = UnixStream::pair().map_err(fail)?;
        // A byte that waits already says all that a second one would.
        wake.set_nonblocking(true).map_err(fail)?;
        woken.set_nonblocking(true).map_err(fail)?;
        // Senders are processes of this machine, also where the cgroups are a test's.
        let senders = Senders::new(Host::new(Root::default(), mounts.clone()), socket::now_us());
        let intake = Arc::new(Mutex::new(Intake::new(senders)));
        let thread = {
            let (shared, intake) = (shared.clone(), intake.clone());
            std::thread::Builder::new().name("latency-feed".into()).spawn(move || intake::run(&*shared, &intake, woken))
        };
        let thread = Some(thread.map_err(fail)?);
        let (scrapes, scrapers, states, unheard) = Default::default();
        Ok(Feed { path: path.into(), shared, intake: Some(intake), wake: Some(wake), thread, scrapes, scrapers, states, unheard })
    }

    /// A socket for one service alone: every process that may write to it speaks for that service. Returns its path.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where it cannot be bound.
    pub fn bind_own(&mut self, service: &str, mode: u32, group: Option<u32>) -> Result<PathBuf, ServerError> {
        let name = format!("{service}.sock");
        let dir = self.path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = dir.join(OWN_SOCKETS).join(&name);
        let fail = |e: std::io::Error| cannot_bind(&path, &e);
        let folder = Folder::open(dir).and_then(|d| d.make_sub(OWN_SOCKETS, 0o711)).map_err(fail)?;
        let socket = Socket::bind(folder, &name, mode).map_err(fail)?;
        socket.open_to(mode, group).map_err(|e| cannot_open(&path, &e))?;
        let mut lines = locked(&self.shared.lines);
        let via = Via { number: lines.len(), service: Some(service.into()) };
        lines.push(Arc::new(Line { socket, via }));
        drop(lines);
        self.shared.new_lines.store(true, Ordering::Release);
        self.wake_up();
        Ok(path)
    }

    fn wake_up(&self) {
        let _ = self.wake.as_ref().map(|mut w| w.write(&[1]));
    }

    /// Change the mode and the group of the common socket.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where its group or mode cannot be changed.
    pub fn open_to(&self, mode: u32, group: Option<u32>) -> Result<(), ServerError> {
        let lines = locked(&self.shared.lines);
        lines.first().map_or(Ok(()), |l| l.socket.open_to(mode, group)).map_err(|e| cannot_open(&self.path, &e))
    }

    /// Senders that may speak for a service, besides those that always may.
    pub fn trust(&mut self, service: &str, whom: Trusted) {
        self.change_rules(|r| drop(r.trusted.insert(service.into(), whom)));
    }

    /// Services that are here and have a cgroup: its folders of cpu and of cpuset, and whether it is an LC service.
    pub fn at_home<'a>(&mut self, homes: impl Iterator<Item = (&'a str, [&'a Path; 2], bool)> + Clone) {
        let known = locked(&self.shared.rules).clone();
        let is_known = |(id, place, lc): (&str, [&Path; 2], bool)| {
            known.homes.get(id).is_some_and(|h| h.lc == lc && h.place.0.iter().zip(place).all(|(a, b)| a.as_os_str() == b.as_os_str()))
        };
        // At every tick: nothing is copied where nothing has changed.
        if homes.clone().count() != known.homes.len() || !homes.clone().all(is_known) {
            let home =
                |(id, place, lc): (&str, [&Path; 2], bool)| (id.to_string(), Home { place: Place(place.map(Path::to_path_buf)), lc });
            self.change_rules(|r| r.homes = homes.map(home).collect());
        }
    }

    fn change_rules(&self, change: impl FnOnce(&mut Rules)) {
        let mut rules = locked(&self.shared.rules);
        let mut new = Rules { generation: rules.generation + 1, ..(**rules).clone() };
        change(&mut new);
        *rules = Arc::new(new);
    }

    /// Datagrams that were taken, by service.
    pub fn taken(&self) -> BTreeMap<String, u64> {
        self.with(|w| w.taken().clone())
    }

    /// One that nothing is heard on.
    pub fn none() -> Self {
        let shared = Shared::new(Rules::default(), vec![]);
        let (scrapes, scrapers, states, unheard) = Default::default();
        Feed { path: PathBuf::new(), shared: Arc::new(shared), intake: None, wake: None, thread: None, scrapes, scrapers, states, unheard }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// ms on this feed's clock.
    pub fn now_ms(&self) -> u64 {
        self.shared.now_ms()
    }

    /// Datagrams that were not taken, by reason.
    pub fn refused(&self) -> BTreeMap<&'static str, u64> {
        Reason::ALL.iter().map(|r| (r.as_str(), self.shared.refused[*r as usize].load(Ordering::Relaxed))).collect()
    }

    /// Datagrams of a service that arrived after `from_ms`, as soon as they speak of `time_ms` but for less than a window: a sender that waits
    /// for a CPU sends late. One whose windows are more than twice as long is not waited for. None: no datagram of the service is held.
    pub fn newer_of(&self, service: &str, from_ms: u64, time_ms: u64, window_ms: u64, patience_ms: u64) -> Option<Vec<Interval>> {
        let until_ms = self.now_ms() + patience_ms;
        loop {
            let (longest_ms, spoken_ms) = self.with(|w| w.spoken_ms(service, from_ms))?;
            let rare = longest_ms > 2 * window_ms;
            if rare || spoken_ms.saturating_add(window_ms) > time_ms || self.now_ms() >= until_ms {
                return Some(self.with(|w| w.newer(service, from_ms)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut Windows) -> T) -> T {
        f(&mut self.shared.windows())
    }

    /// Listen for these services and no others. Those that are to be scraped are, from now on.
    pub fn expect<'a>(&mut self, services: impl Iterator<Item = &'a str> + Clone) {
        let now_ms = self.now_ms();
        for gone in self.with(|w| w.expect(services.clone(), now_ms)) {
            self.scrapers.remove(&gone);
            self.states.remove(&gone);
            self.unheard.remove(&gone);
        }
        for s in services {
            if let Some(what) = self.scrapes.get(s).filter(|_| !self.scrapers.contains_key(s)).cloned() {
                match self.begin_to_scrape(s, what) {
                    Ok(thread) => drop(self.scrapers.insert(s.into(), thread)),
                    // Tried again at the next look; until then its latency is unknown.
                    Err(e) => tracing::error!("{s}: no thread to scrape it: {e}"),
                }
            }
        }
    }

    /// Whenever this service is expected, take its latency from its Prometheus histogram; None: from datagrams.
    pub fn scrape(&mut self, service: &str, what: Option<Scrape>) {
        self.scrapers.remove(service);
        self.with(|w| w.forget(service));
        match what {
            Some(what) => drop(self.scrapes.insert(service.into(), what)),
            None => drop(self.scrapes.remove(service)),
        }
    }

    fn begin_to_scrape(&self, service: &str, what: Scrape) -> std::io::Result<Scraper> {
        let now_ms = self.now_ms();
        self.with(|w| w.expect_scrapes(service, what.urls.len(), now_ms));
        let what = Arc::new(what);
        // Those that were begun end with this value, also where another one cannot be.
        let mut scraper = Scraper { stop: Arc::new(AtomicBool::new(false)), threads: vec![] };
        for page in 0..what.urls.len() {
            let (shared, ended, id, what) = (self.shared.clone(), scraper.stop.clone(), service.to_string(), what.clone());
            let run = move || scrape::run(&id, &what.urls[page], &what, |turn| shared.hear_page(&id, page, &ended, turn));
            scraper.threads.push(std::thread::Builder::new().name("latency-scrape".into()).spawn(run)?);
        }
        Ok(scraper)
    }

    /// For how long a service has been here without a word, once, when that is too long.
    fn overdue(&mut self, service: &str, feed: FeedState, now_ms: u64) -> Option<u64> {
        let FeedState::Unknown { since_ms, heard: false } = feed else {
            self.unheard.remove(service);
            return None;
        };
        let silent_ms = now_ms.saturating_sub(since_ms);
        (silent_ms >= FIRST_WORD_MS && self.unheard.insert(service.into())).then_some(silent_ms)
    }

    /// From now on a control loop reads windows at its decisions and at no other time: each may take what waits ([`Feed::take_waiting`]).
    pub fn leave_to_decisions(&self) {
        self.shared.calm.want();
    }

    /// A decision is about to read what came since `since_ms`: where the thread leaves that to it, what waits is taken now.
    pub fn take_waiting(&self, since_ms: u64) {
        let (calm, late) = self.shared.calm.decides(socket::now_us());
        if !calm {
            return;
        }
        // The thread may just have come back.
        let Some(Ok(mut intake)) = self.intake.as_ref().map(|i| i.try_lock()) else { return };
        let in_order = intake.take_waiting(&*self.shared, since_ms);
        if !in_order {
            intake.is_unsteady();
        }
        // A late decision says nothing of senders: calm begins anew once decisions come often again.
        if !in_order || late {
            self.shared.calm.end();
            self.wake_up();
        }
    }

    /// Everything about a service since `from_ms`; says when its state changes.
    pub fn read(&mut self, service: &str, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        let r = self.with(|w| w.read(service, from_ms, now_ms, qos_target_ms));
        if let Some(silent_ms) = self.overdue(service, r.feed, now_ms) {
            let remedy = match self.scrapes.get(service) {
                Some(what) => {
                    let urls: Vec<&str> = what.urls.iter().map(Url::as_str).collect();
                    format!("Check that {} counts its requests", urls.join(", "))
                }
                None => format!("Send its datagrams as \"{service}\" to {} (docs/latency-feed.md)", self.path.display()),
            };
            let s = silent_ms as f64 / 1000.0;
            tracing::warn!(
                "{service}: its latency has not been heard of in the {s:.1} s since it came: nothing is taken from it. {remedy}"
            );
        }
        let before = self.states.get(service).copied();
        if before.is_none_or(|b| b.as_str() != r.feed.as_str() || b.doubt() != r.feed.doubt()) {
            self.states.insert(service.into(), r.feed);
            match (r.feed, before) {
                (FeedState::Unknown { since_ms, .. }, Some(_)) => {
                    let s = now_ms.saturating_sub(since_ms) as f64 / 1000.0;
                    tracing::warn!("{service}: nothing heard of its latency for {s:.1} s: unknown, nothing is taken from it");
                }
                (FeedState::Doubtful { why, .. }, _) => {
                    let said = self.with(|w| w.doubt(service, why).unwrap_or_default().to_string());
                    tracing::warn!("{service}: its latency is doubtful ({}), nothing is taken from it: {said}", why.as_str());
                }
                (FeedState::Coarse, _) => {
                    let bound = |b: Option<f64>| b.map_or("more".into(), |b| format!("{b} ms"));
                    let (low, high) = (r.window.and_then(|w| w.p99_low_ms), r.window.and_then(|w| w.p99_high_ms));
                    tracing::warn!(
                        "{service}: p99 lies between {} and {}, the QoS target of {qos_target_ms} ms too: unknown whether it is met. \
                         Give the histogram a bucket that ends at the target",
                        bound(low),
                        bound(high)
                    );
                }
                (_, Some(_)) => tracing::info!("{service}: latency is {}", r.feed.as_str()),
                _ => {}
            }
        }
        r
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.scrapers.clear();
        self.wake_up();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
        drop(self.intake.take());
        // Each takes its file along.
        let own = locked(&self.shared.lines).drain(..).any(|l| l.via.service.is_some());
        if let Some(dir) = self.path.parent().filter(|_| own) {
            let _ = Folder::open(dir).and_then(|d| d.remove_sub(OWN_SOCKETS));
        }
    }
}

fn cannot_bind(path: &Path, e: &std::io::Error) -> ServerError {
    cannot(path, e, "Give a state folder that can be written and has a path below 100 bytes")
}

fn cannot_open(path: &Path, e: &std::io::Error) -> ServerError {
    cannot(path, e, "Give it a group of this user, or run as root")
}

fn cannot(path: &Path, e: &std::io::Error, otherwise: &str) -> ServerError {
    let (cause, remedy) = cause_and_remedy(e, otherwise);
    ServerError::Unavailable { what: format!("latency socket {}", path.display()), cause, remedy }
}

#[cfg(test)]
mod tests;
