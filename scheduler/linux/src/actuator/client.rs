//! The deciding process's side: kernel files whose changes another process makes.
//!
//! What is read is read here: kernel files are readable for everybody on most hosts. Only where they are not
//! (EACCES) is the actuator asked.

#![allow(unsafe_code, reason = "descriptors that the actuator hands over")]

use super::line::Line;
use super::protocol::{decode_reply, Reply, Request, SafeOp, MAX_PAYLOAD, REPLY_HEAD};
use crate::files::{Files, HostFiles, SharedFiles};
use crate::handed::Handed;
use crate::safe::SafeLayout;
use nix::sys::socket::sockopt::{ReceiveTimeout, SendTimeout};
use nix::sys::socket::{connect, recvmsg, send, setsockopt, socket};
use nix::sys::socket::{AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr};
use nix::sys::time::{TimeVal, TimeValLike};
use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// An actuator that does not answer for so long is lost: the caller's tick must not hang.
const PATIENCE_S: i64 = 10;
/// On the second line: moving the memory of a large service takes minutes.
const PATIENCE_ASIDE_S: i64 = 600;

/// Descriptors of one reply; the programs have seven.
const MOST_DESCRIPTORS: usize = 16;

/// Kernel files through an actuator.
#[derive(Debug)]
pub struct RemoteFiles {
    at: PathBuf,
    line: Mutex<Option<Line>>,
    patience_s: i64,
}

impl RemoteFiles {
    /// # Errors
    /// Where nobody serves there, or not this user; the text names the socket.
    pub fn connect(at: &Path) -> io::Result<Self> {
        let files = RemoteFiles { at: at.into(), line: Mutex::new(None), patience_s: PATIENCE_S };
        *files.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(files.dial()?);
        Ok(files)
    }

    /// An error of the line, not of a file: without an errno, so that nobody takes it for the file's.
    fn lost(&self, kind: io::ErrorKind, why: impl std::fmt::Display) -> io::Error {
        io::Error::new(kind, format!("actuator {}: {why}", self.at.display()))
    }

    fn dial(&self) -> io::Result<Line> {
        let failed = |e: nix::errno::Errno| self.lost(io::ErrorKind::NotConnected, e.desc());
        let line = Line::from(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).map_err(failed)?);
        let patience = TimeVal::seconds(self.patience_s);
        setsockopt(&line, ReceiveTimeout, &patience).and_then(|()| setsockopt(&line, SendTimeout, &patience)).map_err(failed)?;
        connect(line.as_raw_fd(), &UnixAddr::new(&self.at).map_err(failed)?).map_err(failed)?;
        // It speaks first: whether it serves us. One that is going away takes those who wait for that with it: nothing has been asked yet.
        let (greeting, _) = self.receive(&line).map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionAborted => io::Error::new(io::ErrorKind::NotConnected, e.to_string()),
            _ => e,
        })?;
        if greeting.errno == 0 {
            return Ok(line);
        }
        Err(self.lost(io::Error::from_raw_os_error(greeting.errno).kind(), String::from_utf8_lossy(&greeting.payload)))
    }

    fn receive(&self, line: &Line) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let mut buffer = vec![0u8; REPLY_HEAD + MAX_PAYLOAD];
        let mut control = nix::cmsg_space!([RawFd; MOST_DESCRIPTORS]);
        let (mut reply, mut descriptors) = (Reply::default(), vec![]);
        loop {
            let n = match take(line, &mut buffer, &mut control, &mut descriptors) {
                Ok(0) => return Err(self.lost(io::ErrorKind::ConnectionAborted, "it has gone")),
                Ok(n) => n,
                Err(nix::errno::Errno::EINTR) => continue,
                Err(nix::errno::Errno::EAGAIN) => {
                    return Err(self.lost(io::ErrorKind::TimedOut, format!("no answer for {} s", self.patience_s)))
                }
                Err(e) => return Err(self.lost(io::ErrorKind::ConnectionAborted, e.desc())),
            };
            let (errno, more, payload) = decode_reply(&buffer[..n]).map_err(|e| self.lost(io::ErrorKind::InvalidData, e))?;
            reply.errno = errno;
            reply.payload.extend_from_slice(payload);
            if !more {
                return Ok((reply, descriptors));
            }
        }
    }

    fn ask(&self, request: &Request<'_>) -> io::Result<Vec<u8>> {
        let (reply, _) = self.exchange(request)?;
        if reply.errno == libc::EPERM && !reply.payload.is_empty() {
            tracing::warn!("actuator {}: refused: {}", self.at.display(), String::from_utf8_lossy(&reply.payload));
        }
        reply.into_result()
    }

    /// One request, one reply. A line that broke is dialled anew, once; but what may have been carried out is not asked twice.
    fn exchange(&self, request: &Request<'_>) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let message = request.encode()?;
        let mut held = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = match held.take() {
            Some(line) => match self.post(&line, &message) {
                Ok(()) => Some((self.receive(&line)?, line)),
                Err(_) => None,
            },
            None => None,
        };
        let (reply, line) = match reply {
            Some(r) => r,
            None => {
                let line = self.dial()?;
                self.post(&line, &message).map_err(|e| self.lost(io::ErrorKind::ConnectionAborted, e.desc()))?;
                (self.receive(&line)?, line)
            }
        };
        *held = Some(line);
        Ok(reply)
    }

    fn post(&self, line: &Line, message: &[u8]) -> nix::Result<()> {
        loop {
            match send(line.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL) {
                Err(nix::errno::Errno::EINTR) => {}
                done => return done.map(|_| ()),
            }
        }
    }

    fn say<T>(&self, path: &Path, f: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
        path.to_str().map_or_else(|| Err(io::Error::from_raw_os_error(libc::EINVAL)), f)
    }

    /// The actuator's answer where this process may not look; else what it saw itself.
    fn or_ask<T>(&self, own: io::Result<T>, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match own {
            Err(e) if e.raw_os_error() == Some(libc::EACCES) => ask().map_err(|_| e),
            own => own,
        }
    }

    fn yes(&self, path: &Path, request: impl for<'a> FnOnce(&'a str) -> Request<'a>) -> io::Result<bool> {
        self.say(path, |p| self.ask(&request(p))).map(|payload| payload == [1])
    }
}

/// One message, with the descriptors that came with it.
fn take(line: &Line, buffer: &mut [u8], control: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> nix::Result<usize> {
    let mut into = [IoSliceMut::new(buffer)];
    let got = recvmsg::<()>(line.as_raw_fd(), &mut into, Some(control), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for message in got.cmsgs()? {
        if let ControlMessageOwned::ScmRights(new) = message {
            // SAFETY: descriptors that the kernel has just made for this process, and that nothing else here knows.
            descriptors.extend(new.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(got.bytes)
}

impl Files for RemoteFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.or_ask(HostFiles.read(path), || self.say(path, |p| self.ask(&Request::Read(p))))
    }

    fn open(&self, path: &Path) -> Option<File> {
        HostFiles.open(path)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.say(path, |path| self.ask(&Request::Write { path, text })).map(|_| ())
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.say(path, |p| self.ask(&Request::MakeDir(p))).map(|_| ())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.say(path, |p| self.ask(&Request::RemoveDir(p))).map(|_| ())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.say(from, |from| self.say(to, |to| self.ask(&Request::Rename { from, to }))).map(|_| ())
    }

    fn is_here(&self) -> bool {
        false
    }

    fn aside(&self) -> Option<SharedFiles> {
        Some(Arc::new(RemoteFiles { at: self.at.clone(), line: Mutex::new(None), patience_s: PATIENCE_ASIDE_S }))
    }

    fn folders(&self, dir: &Path) -> Vec<String> {
        HostFiles.folders(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = |payload: Vec<u8>| {
            let text = String::from_utf8_lossy(&payload).into_owned();
            text.split_terminator('\0').map(str::to_string).collect()
        };
        self.or_ask(HostFiles.list(dir), || self.say(dir, |p| self.ask(&Request::List(p))).map(names))
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.or_ask(fs::metadata(path).map(|m| m.is_dir()), || self.yes(path, |p| Request::IsDir(p))).unwrap_or(false)
    }

    fn is_file(&self, path: &Path) -> bool {
        self.or_ask(fs::metadata(path).map(|m| m.is_file()), || self.yes(path, |p| Request::IsFile(p))).unwrap_or(false)
    }

    fn writable(&self, path: &Path) -> bool {
        self.yes(path, |p| Request::Writable(p)).unwrap_or(false)
    }

    fn keep_safe(&self, layout: &SafeLayout) -> io::Result<()> {
        let ops = layout.ops.iter().map(SafeOp::from_op).collect::<Option<_>>();
        self.ask(&Request::KeepSafe(ops.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?)).map(|_| ())
    }

    fn running(&self) -> Option<io::Result<Handed>> {
        let handed = self.exchange(&Request::Running).and_then(|(reply, descriptors)| {
            let said = String::from_utf8_lossy(&reply.payload).into_owned();
            match reply.errno {
                0 => Ok(Handed { descriptors, said }),
                // It says why.
                e if !said.is_empty() => Err(io::Error::new(io::Error::from_raw_os_error(e).kind(), said)),
                e => Err(io::Error::from_raw_os_error(e)),
            }
        });
        Some(handed)
    }
}
