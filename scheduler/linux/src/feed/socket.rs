//! The feed's sockets: made so that no other file is touched, and deep enough for a flood.
//!
//! * What the kernel attaches (credentials, time) is read first, without the datagram: a refusal costs two calls of the kernel, however long
//!   the datagram is. A single datagram on a quiet socket is taken with it, in one call.
//! * The file of a socket is made, changed and removed in an open folder ([`crate::own`]).

use super::sender::Credentials;
use super::senders::Times;
use crate::own::Folder;
use nix::cmsg_space;
use nix::sched::{unshare, CloneFlags};
use nix::sys::socket::{
    bind, recvmsg, setsockopt, socket, sockopt, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
};
use nix::sys::stat::{fchmod, Mode};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use nix::unistd::geteuid;
use std::fs;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use surefoot_io::input::{self, KERNEL_BYTES};

/// How many datagrams the kernel holds for a socket by default, of this network namespace.
const DEPTH_FILE: &str = "/proc/sys/net/unix/max_dgram_qlen";
/// So many are wanted: at 50,000 a second, two thirds of a second. What one sender has in the queue is bounded by its own send buffer
/// (some 280 small datagrams, or 210 KB), so that it takes over a hundred sockets of theirs to fill it.
pub(super) const DEPTH: u64 = 32_768;
/// A shallower queue is full after a moment in which the thread does not run.
pub(super) const LEAST_DEPTH: u64 = 512;

/// Microseconds since boot, which go on while the machine sleeps, as start times of processes do.
pub(super) fn now_us() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, micros)
}

/// CPU time of the calling thread, microseconds.
pub(super) fn cpu_us() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, micros)
}

fn micros(t: TimeSpec) -> u64 {
    u64::try_from(t.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_nsec()).unwrap_or(0) / 1000
}

/// What the kernel attaches to a datagram: its length, its sender, and its time.
pub(super) type Attached = (usize, Credentials, Times);

/// A bound socket; its file goes with it.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UnixDatagram,
    folder: Folder,
    name: String,
    /// How many datagrams the kernel holds for it, where that is known.
    pub depth: Option<u64>,
}

impl Socket {
    /// Bind a name with the given mode; what a dead process left there is replaced. At no instant is it open to others than the mode says.
    pub fn bind(folder: Folder, name: &str, mode: u32) -> io::Result<Self> {
        let (fd, depth) = match deep() {
            Some(made) => made,
            None => (plain()?, depth()),
        };
        setsockopt(&fd, sockopt::PassCred, &true)?;
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        // The file gets the socket's own mode, less the umask; which may have taken too much.
        fchmod(&fd, Mode::from_bits_truncate(mode))?;
        // Senders go by the whole path, which has to be short enough for them.
        UnixAddr::new(&folder.path().join(name))?;
        folder.remove_socket(name)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&folder.pinned(name))?)?;
        let socket = Socket { socket: UnixDatagram::from(fd), folder, name: name.into(), depth };
        socket.open_to(mode, None)?;
        Ok(socket)
    }

    /// Change the mode and the group of it.
    pub fn open_to(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        self.folder.open_socket_to(&self.name, mode, group)
    }

    /// The datagram that waits first: its length, its sender, and its time. It stays where it is. None where it carries open files, which
    /// are not taken over.
    ///
    /// # Errors
    /// `WouldBlock` where nothing waits.
    pub fn look(&self, control: &mut [u8]) -> io::Result<Option<Attached>> {
        self.receive(&mut [], control, MsgFlags::MSG_PEEK)
    }

    /// The same with the datagram, which is taken in the same call. What is longer than `buf` loses its end.
    ///
    /// # Errors
    /// `WouldBlock` where nothing waits.
    pub fn take_with(&self, buf: &mut [u8], control: &mut [u8]) -> io::Result<Option<Attached>> {
        self.receive(&mut [IoSliceMut::new(buf)], control, MsgFlags::empty())
    }

    fn receive(&self, into: &mut [IoSliceMut], control: &mut [u8], more: MsgFlags) -> io::Result<Option<Attached>> {
        let flags = more | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let got = recvmsg::<UnixAddr>(self.socket.as_raw_fd(), into, Some(control), flags)?;
        // There is room for all that was asked for: what finds none was not, and the kernel has closed it.
        let Ok(attached) = got.cmsgs() else { return Ok(None) };
        // Where the kernel attaches nothing the sender is unknown.
        let (mut from, mut age_us) = (Credentials { pid: 0, uid: u32::MAX, gid: u32::MAX }, 0);
        for m in attached {
            match m {
                ControlMessageOwned::ScmCredentials(c) => {
                    from = Credentials { pid: u32::try_from(c.pid()).unwrap_or(0), uid: c.uid(), gid: c.gid() };
                }
                ControlMessageOwned::ScmTimestampns(sent) => {
                    age_us = clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, micros).saturating_sub(micros(sent));
                }
                ControlMessageOwned::ScmRights(files) => {
                    for f in files {
                        let _ = nix::unistd::close(f);
                    }
                    return Ok(None);
                }
                _ => {}
            }
        }
        let now_us = now_us();
        Ok(Some((got.bytes, from, Times { now_us, sent_us: now_us.saturating_sub(age_us), polled: false })))
    }

    /// Take the datagram that waits first. What is longer than `buf` loses its end.
    pub fn take(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(buf)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

impl std::os::fd::AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = self.folder.remove_socket(&self.name);
    }
}

/// Room for what the kernel attaches, and for no open files.
pub(super) fn control() -> Vec<u8> {
    cmsg_space!(UnixCredentials, TimeSpec)
}

fn plain() -> nix::Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)
}

fn depth() -> Option<u64> {
    input::text(Path::new(DEPTH_FILE), KERNEL_BYTES).ok()?.trim().parse().ok()
}

/// A socket with the depth that is wanted, where this process may have one.
///
/// The depth is that of the network namespace in which a socket is made, and senders find the socket by its path from any. So root makes it in a
/// namespace of its own, which ends with the socket; no setting of the host is touched. None where the host's depth is enough, or for others.
fn deep() -> Option<(OwnedFd, Option<u64>)> {
    if depth().is_some_and(|d| d >= DEPTH) || !geteuid().is_root() {
        return None;
    }
    // A thread of its own: the namespace is the thread's.
    let made = std::thread::Builder::new().name("latency-socket".into()).spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).ok()?;
        fs::write(DEPTH_FILE, DEPTH.to_string()).ok()?;
        Some((plain().ok()?, Some(DEPTH)))
    });
    made.ok()?.join().ok()?
}
