//! Policies in another process, over a Unix socket (docs/python-policies.md): `socket:PATH` as a policy's name.
//!
//! [`surefoot_policy::remote`] says what is asked and what an answer is worth; here is what a policy must not do: a socket, a clock and
//! the log. [`Endpoint`] is one such policy of one run, however often a shadow of it begins anew.

mod conn;

use crate::base::error::{Error, Result};
use conn::{Conn, MOST_DRAINED_BYTES};
use serde_json::json;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use surefoot_io::{json as strict, shown};
use surefoot_policy::remote::wire::{Answer, Question, Role, Welcome, MOST_NAME, PROTOCOL};
use surefoot_policy::remote::{hello, Answers, Asked, Held, Miss, SOCKET};
use surefoot_policy::{Guarded, Policy, Remote, Settings};
use surefoot_server::Platform;

/// How long a policy may take to greet before anything has begun.
const GREETING: Duration = Duration::from_secs(10);
/// Where time is real, a policy that owes an answer for so long has hung.
const HUNG_MS: u64 = 2_000;
/// Where time is virtual, one that was waited for in vain so often in a row has.
const MOST_WAITS: u32 = 3;
/// Between two attempts to connect, ms; it doubles from one to the other.
const RETRY_MS: std::ops::RangeInclusive<u64> = 100..=10_000;
/// A policy decides again after so many answers in a row.
const WELL: u32 = 10;

const PAGE: &str = "docs/python-policies.md";

/// The path of a policy's socket; None: it is no such policy.
pub fn path_of(name: &str) -> Option<&Path> {
    name.strip_prefix(SOCKET).map(Path::new)
}

/// Whether there can be such a policy: a name can be looked at before there is a platform to make it for.
///
/// # Errors
/// One line.
pub fn check_name(name: &str) -> std::result::Result<(), String> {
    match name.strip_prefix(SOCKET) {
        None if name.contains(&format!("+{SOCKET}")) => {
            Err(format!("policy \"{name}\": a policy on a socket decides alone. Name it alone"))
        }
        None => surefoot_policy::check_name(name).map_err(|e| format!("{e}, or {SOCKET}PATH ({PAGE})")),
        Some("") => Err(format!("policy \"{name}\" names no socket. Write {SOCKET}PATH ({PAGE})")),
        Some(path) if path.contains(['+', ',']) => {
            Err(format!("policy \"{name}\": \"+\" and \",\" stand between policies. Give its socket a path without them"))
        }
        Some(_) => Ok(()),
    }
}

/// One policy in another process.
pub struct Endpoint {
    name: String,
    path: PathBuf,
    platform: Platform,
    /// The greeting, a whole line.
    greeting: Vec<u8>,
    limit: Duration,
    interval_ms: u64,
    real_time: bool,
    asked: Asked,
    /// The connection that nobody uses yet: the first one, which was made to see whether the policy is there.
    first: Option<Conn>,
    /// What was said in the log since the policy was well, and decisions held since.
    said: BTreeSet<Held>,
    held: u64,
    in_a_row: u32,
    retry_at_ms: u64,
    retry_ms: u64,
    /// Where time is virtual, whoever has gone stays gone: what it remembered went with it.
    given_up: bool,
}

type Shared = Rc<RefCell<Endpoint>>;

impl Endpoint {
    /// Connect, and hear whether a policy of this protocol listens.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a path that cannot be trusted, [`Error::Failed`] where no policy answers.
    pub fn open(name: &str, platform: &Platform, settings: &Settings, seed: u64) -> Result<Shared> {
        check_name(name).map_err(Error::BadInput)?;
        let path = path_of(name).unwrap_or(Path::new("")).to_path_buf();
        let interval_ms = settings.pace.interval_ms();
        let limit_ms = match settings.real_time {
            true => settings.socket.limit.interval_share * interval_ms as f64,
            false => settings.socket.limit.virtual_ms as f64,
        };
        let hello = hello(platform, settings.role, interval_ms, limit_ms, seed, env!("CARGO_PKG_VERSION"));
        let mut greeting = serde_json::to_vec(&hello).map_err(|e| Error::Failed(e.to_string()))?;
        greeting.push(b'\n');
        let mut endpoint = Endpoint {
            name: name.into(),
            path,
            platform: platform.clone(),
            greeting,
            limit: Duration::from_secs_f64(limit_ms / 1000.0),
            interval_ms,
            real_time: settings.real_time,
            asked: Asked::default(),
            first: None,
            said: BTreeSet::new(),
            held: 0,
            in_a_row: 0,
            retry_at_ms: 0,
            retry_ms: *RETRY_MS.start(),
            given_up: false,
        };
        let deadline = Instant::now() + GREETING;
        let mut conn = Conn::open(&endpoint.path).map_err(|e| {
            let said = format!("policy {name}: {e}");
            match e.kind() {
                std::io::ErrorKind::PermissionDenied => Error::BadInput(said),
                _ => Error::Failed(format!("{said}. Start the policy first, as {PAGE} says")),
            }
        })?;
        let greeted = endpoint.greet(&mut conn, deadline);
        greeted.map_err(|miss| Error::Failed(format!("policy {name}: {}", miss.why)))?;
        endpoint.first = Some(conn);
        Ok(Rc::new(RefCell::new(endpoint)))
    }

    /// The policy, under the guard. Of several from one endpoint each has a connection of its own, and the same counts.
    pub fn policy(of: &Shared) -> Box<dyn Policy> {
        let mut endpoint = of.borrow_mut();
        let link = Link { conn: endpoint.first.take(), endpoint: of.clone() };
        Box::new(Guarded::new(Box::new(Remote::new(&endpoint.name, &endpoint.platform, Box::new(link))), &endpoint.platform))
    }

    /// Send the greeting where it was not sent, and hear the answer.
    fn greet(&mut self, conn: &mut Conn, deadline: Instant) -> std::result::Result<(), Miss> {
        if conn.welcomed {
            return Ok(());
        }
        // Where time is real it is waited for once: a policy that is slow to begin costs no interval after that.
        let deadline = if conn.greeted && self.real_time { Instant::now() } else { deadline };
        if !conn.greeted {
            conn.send(&self.greeting, deadline)?;
            conn.greeted = true;
        }
        let late = "it has not answered the greeting. It may be busy, or what listens there is no policy";
        let line = conn.line(deadline)?.ok_or_else(|| Miss::new(Held::Late, late))?;
        let wrong = |e: serde_json::Error| Miss::new(Held::Malformed, format!("its greeting is none: {}", shown::message(&e.to_string())));
        let said: serde_json::Value = strict::from_slice(&line).map_err(wrong)?;
        // Of another protocol its fields may be others, too.
        if let Some(other) = said.get("protocol").filter(|p| **p != json!(PROTOCOL)) {
            let other = shown::message(&other.to_string());
            let why = format!("it speaks protocol {other}, and this surefootd {PROTOCOL}. Take both of one release");
            return Err(Miss::new(Held::Malformed, why));
        }
        let welcome: Welcome = serde_json::from_value(said).map_err(wrong)?;
        let long = |text: &str| text.is_empty() || text.chars().count() > MOST_NAME;
        if welcome.surefoot != "policy" || long(&welcome.name) || welcome.version.as_deref().is_some_and(long) {
            let why = format!("its greeting is none: `surefoot` is to be \"policy\", `name` and `version` 1 to {MOST_NAME} characters");
            return Err(Miss::new(Held::Malformed, why));
        }
        conn.welcomed = true;
        self.asked.connections += 1;
        let version = welcome.version.map_or(String::new(), |v| format!(" {v}"));
        tracing::debug!("policy {}: {}{}", self.name, shown::message(&welcome.name), shown::message(&version));
        Ok(())
    }

    /// A connection where there is none, when its time has come.
    fn connect(&mut self, now_ms: u64) -> std::result::Result<Conn, Miss> {
        let gone = || Miss::new(Held::Gone, "it is gone");
        if self.given_up || now_ms < self.retry_at_ms {
            return Err(gone());
        }
        Conn::open(&self.path).map_err(|e| {
            self.later(now_ms);
            Miss::new(Held::Gone, e.to_string())
        })
    }

    /// Try again after a while, and after a longer one the next time.
    fn later(&mut self, now_ms: u64) {
        self.retry_at_ms = now_ms + self.retry_ms;
        self.retry_ms = (2 * self.retry_ms).min(*RETRY_MS.end());
        self.given_up |= !self.real_time;
    }
}

/// A policy's own connection.
struct Link {
    endpoint: Shared,
    conn: Option<Conn>,
}

impl Answers for Link {
    fn ask(&mut self, now_ms: u64, question: &Question) -> std::result::Result<Answer, Miss> {
        let mut endpoint = self.endpoint.borrow_mut();
        let deadline = Instant::now() + endpoint.limit;
        let mut conn = match self.conn.take() {
            Some(conn) => conn,
            None => endpoint.connect(now_ms)?,
        };
        let answer = exchange(&mut endpoint, &mut conn, now_ms, question, deadline);
        endpoint.asked.discarded += std::mem::take(&mut conn.discarded);
        match &answer {
            Err(miss) if conn.is_broken || endpoint.has_hung(&conn, now_ms, miss) => {
                endpoint.later(now_ms);
                // It was sent away: that it is gone follows from what is said of it anyway.
                if miss.held != Held::Gone {
                    endpoint.said.insert(Held::Gone);
                }
            }
            Err(_) => self.conn = Some(conn),
            Ok(_) => {
                endpoint.retry_ms = *RETRY_MS.start();
                self.conn = Some(conn);
            }
        }
        answer
    }

    fn became(&mut self, _now_ms: u64, miss: Option<&Miss>) {
        self.endpoint.borrow_mut().became(miss);
    }

    fn asked(&self) -> Asked {
        self.endpoint.borrow().asked
    }
}

/// One question and its answer; what is left of earlier ones is thrown away.
fn exchange(
    endpoint: &mut Endpoint,
    conn: &mut Conn,
    now_ms: u64,
    question: &Question,
    deadline: Instant,
) -> std::result::Result<Answer, Miss> {
    conn.owes_since_ms.get_or_insert(now_ms);
    endpoint.greet(conn, deadline)?;
    if endpoint.real_time {
        // A question more would only make the answers later still.
        conn.drain()?;
        if conn.seq > conn.answered {
            return Err(Miss::new(Held::Late, "it has not answered the question before"));
        }
        conn.owes_since_ms = Some(now_ms);
    }
    conn.seq += 1;
    let mut line =
        serde_json::to_vec(&Question { seq: conn.seq, ..question.clone() }).map_err(|e| Miss::new(Held::Failed, e.to_string()))?;
    line.push(b'\n');
    conn.send(&line, deadline)?;
    let mut stale_bytes = 0;
    while let Some(line) = conn.line(deadline)? {
        if let Some(answer) = conn.read(&line)? {
            (conn.waited, conn.owes_since_ms) = (0, None);
            return Ok(answer);
        }
        conn.discarded += 1;
        stale_bytes += line.len() + 1;
        if stale_bytes > MOST_DRAINED_BYTES {
            return Err(conn.broken(Held::Malformed, "it sends lines that nobody asked for"));
        }
        // However many lines are here, no answer in time is none.
        if Instant::now() >= deadline {
            break;
        }
    }
    conn.waited += 1;
    let limit_ms = (endpoint.limit.as_secs_f64() * 1e5).round() / 100.0;
    Err(Miss::new(Held::Late, format!("no answer within {limit_ms} ms")))
}

impl Endpoint {
    /// It owes an answer for so long that it had better begin anew.
    fn has_hung(&self, conn: &Conn, now_ms: u64, miss: &Miss) -> bool {
        let owes = conn.owes_since_ms.is_some_and(|since| now_ms >= since + HUNG_MS.max(2 * self.interval_ms));
        miss.held == Held::Late && if self.real_time { owes } else { conn.waited >= MOST_WAITS || !conn.welcomed }
    }

    /// Count, and say in one line when it stops deciding, when the reason is a new one, and when it is well again.
    fn became(&mut self, miss: Option<&Miss>) {
        self.asked.decisions += 1;
        let Some(miss) = miss else {
            self.in_a_row += 1;
            if self.in_a_row >= WELL && !self.said.is_empty() {
                tracing::info!("policy {}: it decides again, after {} decisions that were not its own", self.name, self.held);
                self.said.clear();
                self.held = 0;
            }
            return;
        };
        self.asked.held[miss.held as usize] += 1;
        self.held += 1;
        self.in_a_row = 0;
        if self.said.insert(miss.held) {
            let more = if self.given_up { ", for the rest of this run" } else { "" };
            let (name, kind, why) = (&self.name, miss.held.as_str(), shown::message(&miss.why));
            tracing::warn!("policy {name}: {kind}: {why}. The last safe plan holds{more}");
        }
    }
}

/// What a policy is asked for, and whether time waits.
#[must_use]
pub fn asked_as(mut settings: Settings, role: Role, real_time: bool) -> Settings {
    (settings.role, settings.real_time) = (role, real_time);
    settings
}
