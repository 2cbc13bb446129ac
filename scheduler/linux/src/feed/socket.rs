//! The feed's sockets: made so that no other file is touched, and deep enough for a flood.
//!
//! * What the kernel attaches (credentials, time) is read first, without the datagram: a refusal costs two calls of the kernel, however long
//!   the datagram is.
//! * Files are opened without following links, and changed only where they are sockets of this user's.

use super::sender::Credentials;
use super::senders::Times;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::fcntl::{open, OFlag};
use nix::sched::{unshare, CloneFlags};
use nix::sys::socket::{
    bind, recvmsg, setsockopt, socket, sockopt, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
};
use nix::sys::stat::{fchmod, fstat, Mode, SFlag};
use nix::sys::time::TimeSpec;
use nix::time::{clock_gettime, ClockId};
use nix::unistd::{fchownat, geteuid, unlinkat, Gid, UnlinkatFlags};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

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

/// A folder that is held, so that work never goes on in another folder that has its place.
#[derive(Debug)]
pub(super) struct Folder {
    at: OwnedFd,
    path: PathBuf,
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        let at = open(path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Folder { at, path: path.into() })
    }

    /// A folder of ours below it that every user may pass and none but us list; made where it is missing.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        match nix::sys::stat::mkdirat(&self.at, name, Mode::from_bits_truncate(0o711)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let folder = self.within(name)?;
        fchmod(&folder.at, Mode::from_bits_truncate(0o711))?;
        Ok(folder)
    }

    /// A folder of ours below it that is there.
    pub fn within(&self, name: &str) -> io::Result<Self> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let at = nix::fcntl::openat(&self.at, name, flags, Mode::empty())?;
        let path = self.path.join(name);
        if fstat(&at)?.st_uid != geteuid().as_raw() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is somebody else's folder", path.display())));
        }
        Ok(Folder { at, path })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.at, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Sockets that a dead process left here.
    pub fn clear(&self) {
        for entry in fs::read_dir(self.through("")).into_iter().flatten().flatten() {
            let is_socket = entry.file_type().is_ok_and(|t| std::os::unix::fs::FileTypeExt::is_socket(&t));
            if let Some(name) = entry.file_name().to_str().filter(|_| is_socket) {
                let _ = self.remove(name);
            }
        }
    }

    /// A name in this very folder, whatever has its path by now.
    fn through(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.at.as_raw_fd())).join(name)
    }
}

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
        UnixAddr::new(&folder.path.join(name))?;
        folder.remove(name)?;
        bind(fd.as_raw_fd(), &UnixAddr::new(&folder.through(name))?)?;
        let socket = Socket { socket: UnixDatagram::from(fd), folder, name: name.into(), depth };
        socket.open_to(mode, None)?;
        Ok(socket)
    }

    /// Change the mode and the group of it. The file is opened without following a link, and changed only if it is a socket of this user's.
    pub fn open_to(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        let file =
            nix::fcntl::openat(&self.folder.at, self.name.as_str(), OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        let what = fstat(&file)?;
        let is_socket = SFlag::from_bits_truncate(what.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFSOCK;
        if !is_socket || what.st_uid != geteuid().as_raw() || what.st_nlink != 1 {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "somebody has put another file in its place"));
        }
        // Not asked without need: a service manager's filter of system calls may forbid it.
        if let Some(g) = group.filter(|g| *g != what.st_gid) {
            fchownat(&file, "", None, Some(Gid::from_raw(g)), nix::fcntl::AtFlags::AT_EMPTY_PATH)?;
        }
        fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), fs::Permissions::from_mode(mode))
    }

    /// The datagram that waits first: its length, its sender, and its time. It stays where it is. None where it carries open files, which
    /// are not taken over.
    ///
    /// # Errors
    /// `WouldBlock` where nothing waits.
    pub fn look(&self, control: &mut [u8]) -> io::Result<Option<(usize, Credentials, Times)>> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let got = recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut [], Some(control), flags)?;
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
        Ok(Some((got.bytes, from, Times { now_us, sent_us: now_us.saturating_sub(age_us) })))
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
        let _ = self.folder.remove(&self.name);
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
    fs::read_to_string(DEPTH_FILE).ok()?.trim().parse().ok()
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
