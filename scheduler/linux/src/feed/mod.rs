//! Latency intake (docs/latency-feed.md): datagrams of load generators and services on a Unix socket, and scraped histograms.
//!
//! A thread takes datagrams off the socket, because the kernel holds only a few; each scraped service has a thread of its own. What
//! they read is kept for ten seconds at most, only of services that are expected, and bounded in number and size whatever is sent.

pub mod buckets;
pub mod datagram;
pub mod prometheus;
pub mod scrape;
pub mod window;

pub use datagram::{decode, Cell, Counts, Interval, Reason, Refused, MAX_DATAGRAM};
pub use prometheus::Wanted;
pub use scrape::{Scrape, Url};
pub use window::{Reading, Windows};

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_server::{FeedState, ServerError};

/// Who may write to the socket: its owner and its owner's group.
pub const MODE: u32 = 0o660;
/// Datagrams that are taken in each [`SLICE`]; senders wait, and the rest is lost to them. Six services send six.
const MOST_IN_SLICE: u32 = 500;
const SLICE: Duration = Duration::from_millis(100);
/// A service that has not been heard for so long since it came is warned of: load generators take a while to start.
const FIRST_WORD_MS: u64 = 5000;

/// State that the threads of a feed share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    windows: Mutex<Windows>,
    refused: [AtomicU64; Reason::ALL.len()],
    stop: AtomicBool,
}

impl Shared {
    /// From 1 on: "since 0" is since ever.
    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: &[u8]) {
        let taken = decode(bytes, self.now_ms()).and_then(|i| self.windows().push(i));
        if let Err(e) = taken {
            // Once for each reason: a sender with another format would fill the log ten times a second.
            let first = self.refused[e.reason as usize].fetch_add(1, Ordering::Relaxed) == 0;
            // After a restart load generators speak before their services have been found.
            if first && e.reason != Reason::Absent {
                tracing::warn!("{e}; further ones are only counted (surefoot_feed_refused_total)");
            }
        }
    }
}

/// A thread that scrapes one service, until this says that it may end.
#[derive(Debug)]
struct Scraper {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Drop for Scraper {
    /// It ends by itself, at the latest after its present scrape: nobody waits for a service that does not answer.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

/// The socket, the thread that empties it, and those that scrape.
#[derive(Debug)]
pub struct Feed {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What is to be scraped of services whenever they are here.
    scrapes: BTreeMap<String, Scrape>,
    scrapers: BTreeMap<String, Scraper>,
    /// The last state of each service that was read.
    states: BTreeMap<String, FeedState>,
    /// Services that were warned of because they have never been heard.
    unheard: BTreeSet<String>,
}

impl Feed {
    /// Bind `path` with the given mode; a socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where it cannot be bound.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, ServerError> {
        let fail = |cause: String| ServerError::Unavailable {
            what: format!("latency socket {}", path.display()),
            cause,
            remedy: "Give a state folder that can be written and has a path below 100 bytes".into(),
        };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e.to_string())),
            _ => {}
        }
        let socket = bind(path, mode).map_err(|e| fail(e.to_string()))?;
        socket.set_read_timeout(Some(SLICE)).map_err(|e| fail(e.to_string()))?;
        let shared = Arc::new(Shared {
            start: Instant::now(),
            windows: Mutex::default(),
            refused: Default::default(),
            stop: AtomicBool::new(false),
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("latency-feed".into()).spawn(move || receive(&socket, &shared))
        };
        let thread = Some(thread.map_err(|e| fail(e.to_string()))?);
        let (scrapes, scrapers, states, unheard) = Default::default();
        Ok(Feed { path: path.into(), shared, thread, scrapes, scrapers, states, unheard })
    }

    /// One that nothing is heard on.
    pub fn none() -> Self {
        let shared = Shared { start: Instant::now(), windows: Mutex::default(), refused: Default::default(), stop: AtomicBool::new(false) };
        let (scrapes, scrapers, states, unheard) = Default::default();
        Feed { path: PathBuf::new(), shared: Arc::new(shared), thread: None, scrapes, scrapers, states, unheard }
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
        self.with(|w| w.expect_scrapes(service, now_ms));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, ended, id) = (self.shared.clone(), stop.clone(), service.to_string());
        let thread = std::thread::Builder::new().name("latency-scrape".into()).spawn(move || {
            scrape::run(&id, &what, |read| {
                let mut windows = shared.windows();
                // Under the lock: what another thread has begun in its place is not its own.
                !ended.load(Ordering::Relaxed) && read.is_none_or(|r| windows.push_scrape(&id, shared.now_ms(), r))
            });
        })?;
        Ok(Scraper { stop, thread })
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

    /// Everything about a service since `from_ms`; says when its state changes.
    pub fn read(&mut self, service: &str, from_ms: u64, now_ms: u64, qos_target_ms: f64) -> Reading {
        let r = self.with(|w| w.read(service, from_ms, now_ms, qos_target_ms));
        if let Some(silent_ms) = self.overdue(service, r.feed, now_ms) {
            let remedy = match self.scrapes.get(service) {
                Some(what) => format!("Check that {} counts its requests", what.url.as_str()),
                None => format!("Send its datagrams as \"{service}\" to {} (docs/latency-feed.md)", self.path.display()),
            };
            let s = silent_ms as f64 / 1000.0;
            tracing::warn!(
                "{service}: its latency has not been heard of in the {s:.1} s since it came: nothing is taken from it. {remedy}"
            );
        }
        let before = self.states.get(service).copied();
        if before.is_none_or(|b| b.as_str() != r.feed.as_str()) {
            self.states.insert(service.into(), r.feed);
            match (r.feed, before) {
                (FeedState::Unknown { since_ms, .. }, Some(_)) => {
                    let s = now_ms.saturating_sub(since_ms) as f64 / 1000.0;
                    tracing::warn!("{service}: nothing heard of its latency for {s:.1} s: unknown, nothing is taken from it");
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
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that at no instant is open to others than `mode` says.
fn bind(path: &Path, mode: u32) -> std::io::Result<UnixDatagram> {
    use nix::sys::socket::{bind, socket, AddressFamily, SockFlag, SockType, UnixAddr};
    let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // The file gets the socket's own mode, less the umask; which may have taken too much.
    nix::sys::stat::fchmod(&fd, nix::sys::stat::Mode::from_bits_truncate(mode))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(UnixDatagram::from(fd))
}

fn receive(socket: &UnixDatagram, shared: &Shared) {
    // One byte more than is taken: a longer datagram is cut, and must not look whole.
    let mut buf = vec![0; MAX_DATAGRAM + 1];
    let (mut slice, mut taken) = (Instant::now(), 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok(n) = socket.recv(&mut buf) else { continue };
        shared.take(&buf[..n]);
        taken += 1;
        if slice.elapsed() >= SLICE {
            (slice, taken) = (Instant::now(), 0);
        } else if taken >= MOST_IN_SLICE {
            // A flood costs its sender time, not the node its CPU.
            std::thread::sleep(SLICE.saturating_sub(slice.elapsed()));
            (slice, taken) = (Instant::now(), 0);
        }
    }
}

#[cfg(test)]
mod tests;
