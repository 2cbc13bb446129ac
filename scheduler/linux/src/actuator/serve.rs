//! The actuator's side: judge, carry out, answer. One client at a time, which may have a second line: what waits for the kernel to
//! move memory is asked there and carried out in a thread of its own, so that no other write has to wait for it.

#![allow(unsafe_code, reason = "descriptors that the kernel or the service manager hands over")]

use super::allow::{Allow, Further, Refused};
use super::deadman::DeadMan;
use super::line::Line;
use super::protocol::{decode, Reply, Request, SafeOp, MAX_REQUEST};
use crate::cgroup::Mounts;
use crate::files::SharedFiles;
use crate::own::Folder;
use crate::root::Root;
use crate::safe::Op;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{accept4, bind, getsockopt, listen, recv, send, setsockopt, socket};
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the loop looks whether it should end.
const LOOK: Duration = Duration::from_millis(500);
/// A client that does not take its answer for so long is gone.
const PATIENCE_S: i64 = 2;

/// Judges and carries out. Knows nothing of sockets; each thread has its own.
#[derive(Clone, Debug)]
pub(super) struct Hands {
    pub(super) allow: Allow,
    pub(super) files: SharedFiles,
    /// Where the cgroup of a thread is looked up.
    root: Root,
    mounts: Mounts,
}

/// Carries out what the allow-list lets through.
#[derive(Debug)]
pub struct Actuator {
    hands: Hands,
    dead_man: Option<DeadMan>,
    aside: Option<Aside>,
}

/// The thread for the second line of a client.
#[derive(Debug)]
struct Aside {
    lines: Sender<Line>,
    /// It has a line.
    busy: Arc<AtomicBool>,
}

impl Actuator {
    /// `files` carries out; `root` is where /proc is read.
    pub fn new(allow: Allow, files: SharedFiles, root: Root) -> Self {
        Actuator { hands: Hands::new(allow, files, root), dead_man: None, aside: None }
    }

    /// Keep a layout for when a client dies.
    pub fn with_dead_man(self, dead_man: DeadMan) -> Self {
        Actuator { dead_man: Some(dead_man), ..self }
    }

    /// Give clients a second line, served by a thread that first does `begin`. Without it there is none.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn with_aside(self, begin: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (lines, taken) = channel::<Line>();
        let busy = Arc::new(AtomicBool::new(false));
        let (hands, idle) = (self.hands.clone(), busy.clone());
        let run = move || {
            begin();
            let mut buffer = vec![0u8; MAX_REQUEST + 1];
            for line in taken {
                while hands.answer(&line, &mut buffer, MsgFlags::empty(), &mut |_| Err(unable())) {}
                drop(line);
                idle.store(false, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("aside".into()).spawn(run)?;
        Ok(Actuator { aside: Some(Aside { lines, busy }), ..self })
    }

    /// Answer one message. Everything refused is logged with path and rule.
    pub fn handle(&mut self, message: &[u8]) -> Reply {
        let dead_man = &mut self.dead_man;
        self.hands.handle(message, &mut |ops| dead_man.as_mut().ok_or_else(unable)?.keep(ops))
    }
}

/// Leaves a layout for later.
type Keep<'a> = &'a mut dyn FnMut(&[SafeOp<'_>]) -> io::Result<()>;

fn unable() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

impl Hands {
    pub(super) fn new(allow: Allow, files: SharedFiles, root: Root) -> Self {
        let mounts = Mounts::read(&root);
        Hands { allow, files, root, mounts }
    }

    fn handle(&self, message: &[u8], keep: Keep<'_>) -> Reply {
        let request = match decode(message) {
            Ok(r) => r,
            Err(e) => {
                tracing::warn!("refused a message of {} bytes: {e}", message.len());
                return Reply::refused(libc::EPROTO, e.to_string());
            }
        };
        match self.carry_out(&request, keep) {
            Ok(Ok(payload)) => Reply::done(payload),
            Ok(Err(e)) => Reply::failed(&e),
            Err((path, rule)) => {
                // Escaped: a path of the client's must not forge lines of the log.
                let words = format!("{}: {rule}", path.escape_debug());
                tracing::warn!("refused {words}");
                Reply::refused(libc::EPERM, words)
            }
        }
    }

    /// The outer error is a refusal, the inner one the kernel's.
    #[allow(clippy::type_complexity)]
    fn carry_out<'a>(&self, request: &Request<'a>, keep: Keep<'_>) -> Result<io::Result<Vec<u8>>, (&'a str, Refused)> {
        let f = &self.files;
        let nothing = |()| vec![];
        let truth = |yes: bool| Ok(vec![u8::from(yes)]);
        let named = |path: &'a str| move |rule: Refused| (path, rule);
        Ok(match *request {
            Request::Read(p) => self.allow.read(p).map(|()| f.read(p.as_ref())).map_err(named(p))?,
            Request::List(p) => {
                let names = self.allow.look(p).map(|()| f.list(p.as_ref())).map_err(named(p))?;
                names.map(|n| n.iter().flat_map(|n| n.bytes().chain([0])).collect())
            }
            Request::IsDir(p) => self.allow.look(p).map(|()| truth(f.is_dir(p.as_ref()))).map_err(named(p))?,
            Request::IsFile(p) => self.allow.read(p).map(|()| truth(f.is_file(p.as_ref()))).map_err(named(p))?,
            Request::Writable(p) => self.allow.open(p).map(|()| truth(f.writable(p.as_ref()))).map_err(named(p))?,
            Request::Write { path, text } => self.write(path, text).map_err(named(path))?.map(nothing),
            Request::MakeDir(p) => self.allow.group(p).map(|()| f.make_dir(p.as_ref())).map_err(named(p))?.map(nothing),
            Request::RemoveDir(p) => self.allow.group(p).map(|()| f.remove_dir(p.as_ref())).map_err(named(p))?.map(nothing),
            Request::Rename { from, to } => {
                self.allow.rename(from, to).map(|()| f.rename(from.as_ref(), to.as_ref())).map_err(named(from))?.map(nothing)
            }
            Request::KeepSafe(ref ops) => {
                for op in ops {
                    match *op {
                        SafeOp::Write { path, text } => self.allow.write(path, text).map(|_| ()).map_err(named(path))?,
                        SafeOp::RemoveDir { path } => self.allow.group(path).map_err(named(path))?,
                    }
                }
                keep(ops).map(nothing)
            }
        })
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<io::Result<()>, Refused> {
        if let Further::Thread(tid) = self.allow.write(path, text)? {
            match self.may_move(tid) {
                None => return Ok(Err(io::Error::from_raw_os_error(libc::ESRCH))),
                Some(false) => return Err(Refused(format!("thread {tid} runs in no cgroup that the configuration names"))),
                Some(true) => {}
            }
        }
        Ok(self.files.write(path.as_ref(), text))
    }

    /// Whether a thread belongs to an allowed cgroup; None where there is no such thread.
    fn may_move(&self, tid: u32) -> Option<bool> {
        match self.mounts.of_pid(&self.root, tid) {
            Some(g) => Some(self.allow.holds(&g.cpuset) && self.allow.holds(&g.cpu)),
            None => self.root.read(format!("/proc/{tid}/cgroup")).map(|_| false),
        }
    }

    /// One message of a client; false where it has gone.
    fn answer(&self, client: &Line, buffer: &mut [u8], how: MsgFlags, keep: Keep<'_>) -> bool {
        let n = match recv(client.as_raw_fd(), buffer, how) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(Errno::EINTR | Errno::EAGAIN) => return true,
            Err(_) => return false,
        };
        let reply = self.handle(&buffer[..n], keep);
        tell(client, &reply)
    }
}

impl Actuator {
    /// Serve until `stop` says so. `uid` may connect, and root.
    ///
    /// # Errors
    /// Where the socket itself fails.
    pub fn serve(&mut self, listener: &Listener, uid: u32, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        let mut buffer = vec![0u8; MAX_REQUEST + 1];
        let mut client: Option<Client> = None;
        loop {
            // Asked before the last look, so that a client that went before us has gone.
            let last = stop();
            let due = self.dead_man.as_ref().and_then(|d| d.due_in(Instant::now()));
            let (knock, call) = wait(listener, client.as_ref(), if last { Some(Duration::ZERO) } else { due })?;
            let before = client.is_some();
            if call {
                let dead_man = &mut self.dead_man;
                let mut keep = |ops: &[SafeOp<'_>]| dead_man.as_mut().ok_or_else(unable)?.keep(ops);
                client = client.take().filter(|c| self.hands.answer(&c.line, &mut buffer, MsgFlags::MSG_DONTWAIT, &mut keep));
            }
            let left = before && client.is_none();
            if knock {
                client = admit(listener, uid, client.take(), self.aside.as_ref());
            }
            if let Some(d) = self.dead_man.as_mut() {
                match (&client, left) {
                    (Some(_), _) => d.client_came(),
                    (None, true) => d.client_left(Instant::now()),
                    (None, false) => {}
                }
                if d.due_in(Instant::now()).is_some_and(|left| left.is_zero()) {
                    self.put_in_force();
                }
            }
            if last {
                break;
            }
        }
        // Whoever waits for a decider that has gone waits no longer.
        if self.dead_man.as_ref().is_some_and(|d| d.due_in(Instant::now()).is_some()) {
            self.put_in_force();
        }
        Ok(())
    }

    /// The safe layout, each part by the same rules as any other request; what fails is said, and the rest is done.
    fn put_in_force(&mut self) {
        let Some(d) = self.dead_man.as_mut() else { return };
        d.done();
        let layout = d.layout().clone();
        tracing::warn!("the decider has gone and left no goodbye: putting its safe layout in force");
        let start = Instant::now();
        let report = layout.each(|op| {
            let path = op.path().to_string_lossy();
            let done = match op {
                Op::Write { text, .. } => self.hands.write(&path, text),
                Op::RemoveDir { path: p } => self.hands.allow.group(&path).map(|()| self.hands.files.remove_dir(p)),
            };
            let named = |kind, why: &dyn std::fmt::Display| io::Error::new(kind, format!("{}: {why}", path.escape_debug()));
            match done {
                // Without a kind of its own, so it must stay what it is: a group that goes while it is written.
                Ok(Err(e)) if e.raw_os_error() == Some(libc::ENODEV) => Err(e),
                Ok(d) => d.map_err(|e| named(e.kind(), &e)),
                Err(rule) => Err(named(io::ErrorKind::PermissionDenied, &rule)),
            }
        });
        report.failed.iter().for_each(|why| tracing::error!("safe layout: {why}"));
        let ms = start.elapsed().as_secs_f64() * 1e3;
        tracing::warn!("safe layout: {} done, {} not needed, {} failed, in {ms:.1} ms", report.done, report.gone, report.failed.len());
    }
}

/// Whether somebody connects, and whether the client has sent something (or gone); or the safe layout is due.
fn wait(listener: &Listener, client: Option<&Client>, due: Option<Duration>) -> io::Result<(bool, bool)> {
    // Rounded up: a millisecond early would be a loop that only turns.
    let most = due.map_or(LOOK, |d| LOOK.min(d + Duration::from_millis(1)));
    let mut fds = vec![PollFd::new(listener.socket.as_fd(), PollFlags::POLLIN)];
    fds.extend(client.map(|c| PollFd::new(c.line.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    let ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
    Ok((ready(fds.first()), ready(fds.get(1))))
}

/// False where the client does not listen.
fn tell(client: &Line, reply: &Reply) -> bool {
    reply.messages().all(|m| loop {
        match send(client.as_raw_fd(), &m, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => return true,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    })
}

const BUSY: &str = "another client is being served. Stop that one first";

/// Whoever is served.
#[derive(Debug)]
struct Client {
    line: Line,
    pid: i32,
}

/// Who is the client after somebody has knocked.
fn admit(listener: &Listener, uid: u32, client: Option<Client>, aside: Option<&Aside>) -> Option<Client> {
    let new = match accept4(listener.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
        // SAFETY: a descriptor that the kernel has just made, and that nobody else knows.
        Ok(fd) => Line::from(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(_) => return client,
    };
    if setsockopt(&new, SendTimeout, &TimeVal::seconds(PATIENCE_S)).is_err() {
        return client;
    }
    let peer = getsockopt(&new, PeerCredentials).map(|c| (c.uid(), c.pid()));
    let refuse = |errno: i32, why: String| {
        tracing::warn!("refused a client: {why}");
        tell(&new, &Reply::refused(errno, why));
    };
    match (peer, &client) {
        (Err(e), _) => refuse(libc::EPERM, format!("no credentials: {e}")),
        (Ok((who, _)), _) if who != uid && who != 0 => {
            refuse(libc::EPERM, format!("user {who} is not served, only user {uid}. See actuator.user in node.toml"));
        }
        (Ok((_, pid)), Some(c)) if c.pid == pid => match aside {
            Some(a) if !a.busy.swap(true, Ordering::Acquire) => {
                // A client or a thread that has gone: nobody is served, and the next may be.
                if !(tell(&new, &Reply::done(vec![])) && a.lines.send(new).is_ok()) {
                    a.busy.store(false, Ordering::Release);
                }
            }
            _ => refuse(libc::EBUSY, BUSY.into()),
        },
        (Ok(_), Some(_)) => refuse(libc::EBUSY, BUSY.into()),
        (Ok((who, pid)), None) => {
            if tell(&new, &Reply::done(vec![])) {
                tracing::info!("serving process {pid} of user {who}");
                return Some(Client { line: new, pid });
            }
        }
    }
    client
}

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Make the socket. Everybody may connect to it; who is served is decided by the kernel's word on who connects.
    ///
    /// # Errors
    /// What the kernel says; a path at which something else than a socket lies is left alone.
    pub fn bind(at: &Path) -> io::Result<Self> {
        let (folder, name) = Folder::of(at)?;
        folder.remove_socket(name)?;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &UnixAddr::new(&folder.bind_path(name))?)?;
        folder.open_socket_to(name, 0o666, None)?;
        listen(&socket, Backlog::new(8)?)?;
        Ok(Listener { socket })
    }

    /// The socket that the service manager made for this process (LISTEN_FDS); None where it made none. Call once.
    ///
    /// # Errors
    /// A socket of another kind than ours.
    pub fn inherited() -> io::Result<Option<Self>> {
        let set = |name: &str| std::env::var(name).ok();
        let for_us = set("LISTEN_PID").and_then(|p| p.parse().ok()) == Some(std::process::id());
        if !for_us || set("LISTEN_FDS").as_deref() != Some("1") {
            return Ok(None);
        }
        // SAFETY: by systemd's protocol (sd_listen_fds(3)) descriptor 3 is ours, and this is the one place that takes it.
        let socket = unsafe { OwnedFd::from_raw_fd(3) };
        if getsockopt(&socket, nix::sys::socket::sockopt::SockType)? == SockType::SeqPacket {
            return Ok(Some(Listener { socket }));
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the inherited socket is of another kind. Use ListenSequentialPacket="))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{connect, socketpair};

    /// A client that has gone before its second line was taken: the place is free for the next.
    #[test]
    fn a_second_line_whose_client_has_gone_keeps_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("actuator");
        let listener = Listener::bind(&at).unwrap();
        let (ours, _theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let mut client = Some(Client { line: Line::from(ours), pid: std::process::id() as i32 });
        let (lines, taken) = channel();
        let aside = Aside { lines, busy: Arc::new(AtomicBool::new(false)) };
        let uid = nix::unistd::getuid().as_raw();
        let dial = || {
            let line = Line::from(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap());
            connect(line.as_raw_fd(), &UnixAddr::new(&at).unwrap()).unwrap();
            line
        };
        drop(dial());
        client = admit(&listener, uid, client, Some(&aside));
        assert!(!aside.busy.load(Ordering::Acquire) && taken.try_recv().is_err());
        let _second = dial();
        client = admit(&listener, uid, client, Some(&aside));
        assert!(client.is_some() && aside.busy.load(Ordering::Acquire) && taken.try_recv().is_ok());
    }
}
