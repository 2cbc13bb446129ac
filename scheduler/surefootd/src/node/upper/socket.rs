//! The socket that upper schedulers connect to: lines go out, and the control loop waits for nobody.
//!
//! No thread: one `poll` a tick that returns at once, then calls that do not block either. What the kernel does not take of a line is
//! kept for the client, up to a bound; who does not read for so long is cut off, and hears at its next connection how things stand.

#![allow(unsafe_code, reason = "a descriptor that the kernel hands over")]

use super::conditions::{Conditions, Event, SCHEMA};
use super::questions::{Answer, QuestionLine};
use crate::base::error::{Error, Result};
use crate::stage::config::NodeConfig;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    accept4, bind, connect, listen, recv, send, socket, AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr,
};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use surefoot_linux::own::{self, Folder};

pub use crate::stage::config::UPPER_MODE as MODE;
/// Clients at a time.
const MOST_CLIENTS: usize = 8;
/// Connections that are looked at in one tick; more wait in the kernel.
const MOST_ACCEPTS: usize = 8;
/// What is kept for a client beyond what the kernel holds (about 200 KiB): a thousand lines and more.
const MOST_PENDING_BYTES: usize = 256 << 10;
/// What a client wrote is read in pieces of this size, one a tick; a line that is longer is no answer.
const READ_BYTES: usize = 4096;

/// Who speaks: the first line of a connection, with the state of things.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub node: String,
    pub policy: String,
    pub platform: String,
    pub interval_ms: u64,
    /// Of surefootd.
    pub version: String,
    /// Start of the run, since 1970, UTC; None on a virtual server that runs faster than time. Another one: `seq` began anew.
    pub run_at_ms: Option<u64>,
}

/// The first line of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "hello")]
pub struct HelloLine {
    pub schema: u32,
    /// Of the last event so far; 0 for none.
    pub seq: u64,
    pub t_ms: u64,
    pub at_ms: Option<u64>,
    /// So many lines follow at once: the conditions in force.
    pub in_force: usize,
    #[serde(flatten)]
    pub who: Hello,
}

struct Client {
    fd: OwnedFd,
    /// Not yet taken by the kernel; begins within a line where that was cut.
    pending: Vec<u8>,
    /// It writes no more; it may read on.
    silent: bool,
    /// The beginning of a line.
    heard: Vec<u8>,
    /// What comes up to the next end of a line belongs to a line that was too long.
    cut: bool,
    /// It has said something that is no answer.
    nonsense: bool,
}

impl Client {
    /// Hand the kernel what it takes. False: the client has gone.
    fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match send(self.fd.as_raw_fd(), &self.pending, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// Take what it wrote, at most a piece; whole lines that are answers are `answers`, where any are wanted.
    fn read(&mut self, answers: Option<&mut Vec<Answer>>) {
        let mut piece = [0; READ_BYTES];
        let n = match recv(self.fd.as_raw_fd(), &mut piece, MsgFlags::MSG_DONTWAIT) {
            Ok(n) => n,
            Err(_) => return,
        };
        self.silent = n == 0;
        let Some(answers) = answers else { return };
        self.heard.extend_from_slice(&piece[..n]);
        let whole = self.heard.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let mut wrong = false;
        for text in self.heard[..whole].split_inclusive(|b| *b == b'\n') {
            match serde_json::from_slice(text) {
                _ if std::mem::take(&mut self.cut) || text == b"\n" => {}
                Ok(answer) => answers.push(answer),
                Err(_) => wrong = true,
            }
        }
        self.heard.drain(..whole);
        if self.heard.len() > READ_BYTES {
            self.heard.clear();
            (self.cut, wrong) = (true, true);
        }
        if wrong && !std::mem::replace(&mut self.nonsense, true) {
            tracing::warn!("an upper scheduler said what is no answer. Write {{\"answer\":ID,\"allow\":true}} on a line of its own");
        }
    }
}

/// Why a client was cut off, as the metrics say it.
pub const DROPPED: [&str; 2] = ["slow", "too-many"];
const SLOW: usize = 0;
const TOO_MANY: usize = 1;

pub struct Socket {
    path: PathBuf,
    listener: OwnedFd,
    clients: Vec<Client>,
    hello: Hello,
    dropped: [u64; 2],
    most_pending_bytes: usize,
    /// What clients have answered; None: nothing is asked.
    answers: Option<Vec<Answer>>,
    /// The last call failed: the same every tick is said once.
    failing: bool,
}

impl Socket {
    /// Listen at `path`; a socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// [`Error::BadInput`] for something else at that path or no such group, [`Error::Failed`] where it cannot be made or is in use.
    pub fn open(path: &Path, config: &NodeConfig, hello: Hello) -> Result<Self> {
        let group = config.upper.group.as_deref().map(|g| crate::node::machine::group_id(config, "upper.group", g)).transpose()?;
        let said = |what: String| format!("{}: upper.socket: {}: {what}", config.file.display(), path.display());
        let fail = |e: std::io::Error| match e.get_ref().is_some_and(|e| e.is::<own::Refusal>()) {
            true => Error::BadInput(said(e.to_string())),
            false => Error::Failed(said(format!(
                "{e}. Give a path below 100 bytes in a folder that is there and can be written, or [upper] on = false"
            ))),
        };
        let (folder, name) = Folder::of(path).map_err(fail)?;
        match std::fs::symlink_metadata(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(fail(e)),
            Ok(m) if !m.file_type().is_socket() => {
                return Err(Error::BadInput(said("is there and no socket. Remove it, or give another path".into())));
            }
            Ok(_) if answers(path) => {
                return Err(Error::Failed(said("another process listens there. Stop it, or give another path".into())));
            }
            Ok(_) => folder.remove_socket(name).map_err(fail)?,
        }
        let listener = listen_at(&folder, name, config.upper.mode).map_err(fail)?;
        let (clients, dropped) = Default::default();
        let most_pending_bytes = MOST_PENDING_BYTES;
        let answers = config.upper.ask.map(|_| vec![]);
        let made = Socket { path: path.into(), listener, clients, hello, dropped, most_pending_bytes, answers, failing: false };
        // Not asked without need: a service manager's filter of system calls may forbid it.
        if let Some(gid) = group {
            folder.open_socket_to(name, config.upper.mode, Some(gid)).map_err(|e| {
                let _ = folder.remove_socket(name);
                let field = format!("{}: upper.group: {}", config.file.display(), path.display());
                Error::Failed(format!("{field}: {e}. Give a group of this user, or run as root"))
            })?;
        }
        tracing::info!("upper schedulers: {}", path.display());
        Ok(made)
    }

    /// Clients, and those cut off so far, by [`DROPPED`].
    pub fn counts(&self) -> (u64, [u64; 2]) {
        (self.clients.len() as u64, self.dropped)
    }

    /// What clients have answered since the last call. Never waits.
    pub fn hear(&mut self) -> Vec<Answer> {
        let Some(answers) = &mut self.answers else { return vec![] };
        self.clients.iter_mut().filter(|c| !c.silent).for_each(|c| c.read(Some(answers)));
        std::mem::take(answers)
    }

    /// Send what is new to those who are here, then look who has come and gone. Never waits. `asked` of this tick, and all that `waiting`.
    pub fn tick(
        &mut self,
        events: &[Event],
        (asked, waiting): (&[QuestionLine], &[&QuestionLine]),
        t_ms: u64,
        now: &Conditions,
        at_ms: impl Fn() -> Option<u64>,
    ) {
        if !(events.is_empty() && asked.is_empty() || self.clients.is_empty()) {
            let mut lines = lines(events);
            lines.extend(asked.iter().flat_map(line));
            self.clients.iter_mut().for_each(|c| c.pending.extend_from_slice(&lines));
        }
        let (most, before) = (self.most_pending_bytes, self.clients.len());
        let mut slow = 0;
        self.clients.retain_mut(|c| {
            if !c.flush() {
                return false;
            }
            let late = c.pending.len() > most;
            slow += u64::from(late);
            !late
        });
        if slow > 0 {
            self.dropped[SLOW] += slow;
            tracing::warn!("upper schedulers: {slow} of {before} clients did not read and are cut off");
        }
        let came = self.look();
        for _ in 0..if came { MOST_ACCEPTS } else { 0 } {
            if !self.accept(t_ms, now, waiting, &at_ms) {
                break;
            }
        }
    }

    /// Drop those who have gone and what they wrote; true where somebody wants to connect.
    fn look(&mut self) -> bool {
        let wants = |c: &Client| if c.silent { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.clients.iter().map(|c| PollFd::new(c.fd.as_fd(), wants(c))));
        if let Err(e) = poll(&mut fds, PollTimeout::ZERO) {
            self.failed("poll", e);
            return false;
        }
        let seen: Vec<PollFlags> = fds.iter().map(|f| f.revents().unwrap_or(PollFlags::empty())).collect();
        let mut each = seen[1..].iter();
        self.clients.retain_mut(|c| {
            let seen = each.next().copied().unwrap_or(PollFlags::empty());
            if seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
                return false;
            }
            if seen.contains(PollFlags::POLLIN) {
                c.read(self.answers.as_mut());
            }
            true
        });
        seen[0].contains(PollFlags::POLLIN)
    }

    /// Take the next connection; false where there is none.
    fn accept(&mut self, t_ms: u64, now: &Conditions, waiting: &[&QuestionLine], at_ms: impl Fn() -> Option<u64>) -> bool {
        let fd = match accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            // SAFETY: the kernel has just made it for us.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            Err(Errno::EAGAIN) => {
                self.failing = false;
                return false;
            }
            // It has gone already.
            Err(Errno::ECONNABORTED | Errno::EINTR) => return true,
            Err(e) => {
                self.failed("accept", e);
                return false;
            }
        };
        let mut client = Client { fd, pending: vec![], silent: false, heard: vec![], cut: false, nonsense: false };
        if self.clients.len() == MOST_CLIENTS {
            self.dropped[TOO_MANY] += 1;
            let why = format!("{MOST_CLIENTS} clients are connected. Close one of them");
            client.pending = line(&serde_json::json!({ "event": "refused", "schema": SCHEMA, "why": why }));
            client.flush();
            return true;
        }
        let in_force = now.in_force();
        let who = self.hello.clone();
        client.pending = line(&HelloLine { schema: SCHEMA, seq: now.seq(), t_ms, at_ms: at_ms(), in_force: in_force.len(), who });
        client.pending.extend(lines(in_force));
        client.pending.extend(waiting.iter().flat_map(line));
        // A client may write and go.
        client.read(self.answers.as_mut());
        if client.flush() {
            self.clients.push(client);
        }
        true
    }

    fn failed(&mut self, doing: &str, e: Errno) {
        if !self.failing {
            self.failing = true;
            tracing::warn!("{}: {doing}: {e}: nobody new is heard meanwhile. Decisions go on", self.path.display());
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = Folder::of(&self.path).and_then(|(folder, name)| folder.remove_socket(name));
    }
}

fn line(v: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(v).unwrap_or_default();
    line.push(b'\n');
    line
}

fn lines<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<u8> {
    events.into_iter().flat_map(line).collect()
}

fn stream() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

/// Somebody listens there, though perhaps too busily for us (EAGAIN).
fn answers(path: &Path) -> bool {
    let tried = stream().and_then(|s| connect(s.as_raw_fd(), &UnixAddr::new(path)?));
    matches!(tried, Ok(()) | Err(Errno::EAGAIN))
}

/// A socket that at no instant is open to others than `mode` says.
fn listen_at(folder: &Folder, name: &str, mode: u32) -> std::io::Result<OwnedFd> {
    let fd = stream()?;
    // The file gets the socket's own mode, less the umask; which may have taken too much.
    nix::sys::stat::fchmod(&fd, nix::sys::stat::Mode::from_bits_truncate(mode))?;
    bind(fd.as_raw_fd(), &UnixAddr::new(&folder.bind_path(name))?)?;
    let ready = || folder.open_socket_to(name, mode, None).and_then(|()| Ok(listen(&fd, Backlog::new(16)?)?));
    ready().inspect_err(|_: &std::io::Error| drop(folder.remove_socket(name)))?;
    Ok(fd)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
