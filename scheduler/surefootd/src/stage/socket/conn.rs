//! One connection: lines go out and come in, each within its time and its length.

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{connect, getsockopt, recv, send, socket, AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use surefoot_io::way::is_us;
use surefoot_io::{json, shown};
use surefoot_linux::own::{Author, Folder};
use surefoot_policy::remote::wire::{Answer, MOST_ANSWER_BYTES};
use surefoot_policy::remote::{Held, Miss};

/// Taken from the kernel at a time, and of lines that are not wanted in one go.
const READ_BYTES: usize = 16 << 10;
pub(super) const MOST_DRAINED_BYTES: usize = 4 * MOST_ANSWER_BYTES;

pub struct Conn {
    fd: OwnedFd,
    /// What came and is no whole line yet, or not looked at.
    pending: Vec<u8>,
    /// The greeting was sent; it was answered.
    pub greeted: bool,
    pub welcomed: bool,
    /// Of the last question, and of the last answer.
    pub seq: u64,
    pub answered: u64,
    /// When the question was put that waits for its answer.
    pub owes_since_ms: Option<u64>,
    /// Questions in a row without an answer in time.
    pub waited: u32,
    /// Answers that came too late, since somebody counted.
    pub discarded: u64,
    /// Nothing more can come of it.
    pub is_broken: bool,
}

fn refused(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

impl Conn {
    /// Connect without waiting: to who has the folder of the socket, root, or this user.
    ///
    /// # Errors
    /// One line; `PermissionDenied` where somebody else could be, or is, who answers.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), e.to_string());
        let (folder, name) = Folder::of(path).map_err(named)?;
        if let Author::Others(weak) = folder.author() {
            if weak.owner.is_none() {
                return Err(refused(format!("{weak}, so anybody could answer there. Run: chmod go-w {}", weak.at.display())));
            }
        }
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        // Through the folder that was looked at; so a path may be long, too.
        let at = UnixAddr::new(&folder.pinned(name))?;
        connect(fd.as_raw_fd(), &at).map_err(|e| match e {
            Errno::ENOENT => io::Error::new(io::ErrorKind::NotFound, "there is no such socket"),
            Errno::ECONNREFUSED => io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there"),
            Errno::EAGAIN => io::Error::new(io::ErrorKind::WouldBlock, "it takes no connection"),
            e => e.into(),
        })?;
        let uid = getsockopt(&fd, PeerCredentials)?.uid();
        if !is_us(uid) && uid != folder.owner() {
            let owner = folder.owner();
            return Err(refused(format!(
                "user {uid} listens there, in a folder of user {owner}. Let the policy run as one of its folder's user, root and this user"
            )));
        }
        Ok(Conn {
            fd,
            pending: vec![],
            greeted: false,
            welcomed: false,
            seq: 0,
            answered: 0,
            owes_since_ms: None,
            waited: 0,
            discarded: 0,
            is_broken: false,
        })
    }

    pub(super) fn broken(&mut self, held: Held, why: impl Into<String>) -> Miss {
        self.is_broken = true;
        Miss::new(held, why)
    }

    /// Wait until it can be read or written. False: the time is over.
    fn wait(&self, events: PollFlags, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up: a wait of no time at all would go round and round.
            let ms = left.as_micros().div_ceil(1000);
            let mut fds = [PollFd::new(self.fd.as_fd(), events)];
            match poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(Errno::EINTR) if !left.is_zero() => {}
                Err(_) => return false,
            }
        }
    }

    /// Send a whole line.
    ///
    /// # Errors
    /// [`Held::Gone`], or [`Held::Late`] where it does not read: a line that was begun cannot be gone on with, so that is the end.
    pub fn send(&mut self, mut line: &[u8], deadline: Instant) -> Result<(), Miss> {
        while !line.is_empty() {
            match send(self.fd.as_raw_fd(), line, MsgFlags::MSG_NOSIGNAL) {
                Ok(n) => line = &line[n..],
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if self.wait(PollFlags::POLLOUT, deadline) => {}
                Err(Errno::EAGAIN) => return Err(self.broken(Held::Late, "it does not read what it is asked")),
                Err(_) => return Err(self.broken(Held::Gone, "it has closed the connection")),
            }
        }
        Ok(())
    }

    /// What the kernel has. False: nothing.
    fn take(&mut self) -> Result<bool, Miss> {
        let mut some = [0; READ_BYTES];
        match recv(self.fd.as_raw_fd(), &mut some, MsgFlags::empty()) {
            Ok(0) => Err(self.broken(Held::Gone, "it has closed the connection")),
            Ok(n) => {
                self.pending.extend_from_slice(&some[..n]);
                Ok(true)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(_) => Err(self.broken(Held::Gone, "the connection has broken")),
        }
    }

    /// The next line that is there, without its end.
    fn cut(&mut self) -> Result<Option<Vec<u8>>, Miss> {
        let end = self.pending.iter().position(|b| *b == b'\n');
        if end.unwrap_or(self.pending.len()) > MOST_ANSWER_BYTES {
            return Err(self.broken(Held::Malformed, format!("a line of more than {} KiB", MOST_ANSWER_BYTES >> 10)));
        }
        Ok(end.map(|end| {
            let mut line: Vec<u8> = self.pending.drain(..=end).collect();
            line.pop();
            line
        }))
    }

    /// The next line; None: none in time.
    ///
    /// # Errors
    /// It has gone, or sends a line that is too long.
    pub fn line(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>, Miss> {
        loop {
            if let Some(line) = self.cut()? {
                return Ok(Some(line));
            }
            if !self.take()? && !self.wait(PollFlags::POLLIN, deadline) {
                return Ok(None);
            }
        }
    }

    /// Throw away what is here, which answers no question of now.
    ///
    /// # Errors
    /// It has gone, or sends without an end.
    pub fn drain(&mut self) -> Result<(), Miss> {
        let mut bytes = 0;
        loop {
            while let Some(line) = self.cut()? {
                bytes += line.len() + 1;
                // An answer is read for its number alone.
                let _ = self.read(&line);
                self.discarded += 1;
            }
            if bytes > MOST_DRAINED_BYTES {
                return Err(self.broken(Held::Malformed, "it sends lines that nobody asked for"));
            }
            if !self.take()? {
                return Ok(());
            }
        }
    }

    /// Read an answer; None: it is to an earlier question.
    ///
    /// # Errors
    /// [`Held::Malformed`].
    pub fn read(&mut self, line: &[u8]) -> Result<Option<Answer>, Miss> {
        let malformed = |why: String| Miss::new(Held::Malformed, why);
        let answer = json::from_slice::<Answer>(line).map_err(|e| {
            // Whatever it is, it is what came of the question.
            self.answered = self.seq;
            malformed(format!("its answer is none: {}", shown::message(&e.to_string())))
        })?;
        if answer.seq > self.seq {
            self.answered = self.seq;
            return Err(malformed(format!("it answers question {}, and {} was the last", answer.seq, self.seq)));
        }
        let again = answer.seq <= self.answered;
        self.answered = self.answered.max(answer.seq);
        Ok((answer.seq == self.seq && !again).then_some(answer))
    }
}
