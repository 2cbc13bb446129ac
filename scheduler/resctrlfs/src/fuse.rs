//! The model as a FUSE file system. Permission bits are the kernel's to check; everything else is asked of the model.

#![allow(unsafe_code, reason = "geteuid")]

use crate::errno::{Errno, Result};
use crate::host::Host;
use crate::machine::{Caller, Machine};
use crate::tree::{Node, What, ROOT};
use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing may be cached: files change under the kernel.
const NO_CACHE: Duration = Duration::ZERO;
/// Every read and write comes here, whatever size a file seems to have (as in resctrl: 0).
const DIRECT_IO: u32 = fuser::consts::FOPEN_DIRECT_IO;
/// FOPEN_NOFLUSH (Linux 5.16): closing asks nothing. A process that closes such a file while it starts a program would wait for an answer
/// with its entries of /proc locked, and those are read here.
const NO_FLUSH: u32 = 1 << 5;
const BLOCK_BYTES: u32 = 4096;

/// A machine that tests and the file system share.
pub type Shared = Arc<Mutex<Machine>>;

/// The machine; a panic elsewhere does not make it unusable.
pub fn lock(machine: &Shared) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Show a machine, on which resctrl is mounted already, at a directory. Dropping the session takes it away.
///
/// # Errors
/// What mount(2) or fusermount3 say: without `/dev/fuse`, without rights.
pub fn show(machine: Shared, host: Box<dyn Host>, mountpoint: &Path, read_only: bool) -> io::Result<BackgroundSession> {
    let fs = ResctrlFs { machine, host, texts: BTreeMap::new(), next_handle: 1, born: SystemTime::now() };
    let mut options = vec![MountOption::FSName("resctrl".into()), MountOption::Subtype("resctrl".into()), MountOption::DefaultPermissions];
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        options.push(MountOption::AllowOther);
    }
    options.push(if read_only { MountOption::RO } else { MountOption::RW });
    fuser::spawn_mount2(fs, mountpoint, &options)
}

struct ResctrlFs {
    machine: Shared,
    host: Box<dyn Host>,
    /// By handle: content as of the last read from the start.
    texts: BTreeMap<u64, Option<Vec<u8>>>,
    next_handle: u64,
    born: SystemTime,
}

fn caller(r: &Request<'_>) -> Caller {
    Caller { tid: r.pid(), uid: r.uid(), gid: r.gid() }
}

impl ResctrlFs {
    /// The machine, up to date; with its tasks where they matter.
    fn now(&mut self, tasks: bool) -> MutexGuard<'_, Machine> {
        let mut m = lock(&self.machine);
        self.host.sync(&mut m, tasks);
        m
    }

    fn attr(m: &Machine, node: Node, born: SystemTime) -> Result<FileAttr> {
        let tree = m.tree()?;
        let a = tree.attr(node).map_err(|_| Errno::ENOENT)?;
        let kind = if matches!(tree.what(node)?, What::Dir(_)) { FileType::Directory } else { FileType::RegularFile };
        Ok(FileAttr {
            ino: node,
            size: 0,
            blocks: 0,
            atime: born,
            mtime: born,
            ctime: born,
            crtime: UNIX_EPOCH,
            kind,
            perm: a.mode as u16,
            nlink: tree.links(node)?,
            uid: a.uid,
            gid: a.gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }
}

fn entry(reply: ReplyEntry, attr: Result<FileAttr>) {
    match attr {
        Ok(a) => reply.entry(&NO_CACHE, &a, 0),
        Err(e) => reply.error(e.0),
    }
}

fn done(reply: ReplyEmpty, r: Result<()>) {
    match r {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e.0),
    }
}

impl Filesystem for ResctrlFs {
    fn lookup(&mut self, _r: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let born = self.born;
        let m = self.now(false);
        let node = m.tree().and_then(|t| t.child(parent, name).ok_or(Errno::ENOENT));
        entry(reply, node.and_then(|n| Self::attr(&m, n, born)));
    }

    fn getattr(&mut self, _r: &Request<'_>, ino: u64, _fh: Option<u64>, reply: ReplyAttr) {
        match Self::attr(&lock(&self.machine), ino, self.born) {
            Ok(a) => reply.attr(&NO_CACHE, &a),
            Err(e) => reply.error(e.0),
        }
    }

    fn setattr(
        &mut self,
        r: &Request<'_>,
        ino: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        // Sizes and times are taken and forgotten, as resctrl does.
        let born = self.born;
        let mut m = lock(&self.machine);
        let asked = mode.is_some() || uid.is_some() || gid.is_some();
        let set = if asked { m.set_attr(ino, mode, uid, gid, caller(r)).map(|_| ()) } else { Ok(()) };
        match set.and_then(|()| Self::attr(&m, ino, born)) {
            Ok(a) => reply.attr(&NO_CACHE, &a),
            Err(e) => reply.error(e.0),
        }
    }

    fn mkdir(&mut self, r: &Request<'_>, parent: u64, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let born = self.born;
        let mut m = self.now(false);
        let made = m.mkdir(parent, name, mode & 0o7777 & !umask, caller(r));
        entry(reply, made.and_then(|n| Self::attr(&m, n, born)));
    }

    fn rmdir(&mut self, r: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        done(reply, self.now(true).rmdir(parent, name, caller(r)));
    }

    fn unlink(&mut self, _r: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        done(reply, lock(&self.machine).unlink(parent, name));
    }

    fn rename(&mut self, r: &Request<'_>, parent: u64, name: &OsStr, to: u64, to_name: &OsStr, flags: u32, reply: ReplyEmpty) {
        let renamed = match flags {
            0 => self.now(true).rename(parent, name, to, to_name, caller(r)),
            _ => Err(Errno::EINVAL),
        };
        done(reply, renamed);
    }

    fn symlink(&mut self, _r: &Request<'_>, _parent: u64, _name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(Errno::EPERM.0);
    }

    fn link(&mut self, _r: &Request<'_>, _ino: u64, _to: u64, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM.0);
    }

    fn mknod(&mut self, _r: &Request<'_>, _parent: u64, _name: &OsStr, _mode: u32, _umask: u32, _rdev: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM.0);
    }

    fn create(&mut self, _r: &Request<'_>, _parent: u64, _name: &OsStr, _mode: u32, _umask: u32, _flags: i32, reply: ReplyCreate) {
        reply.error(Errno::EACCES.0);
    }

    fn open(&mut self, r: &Request<'_>, ino: u64, flags: i32, reply: ReplyOpen) {
        let access = flags & libc::O_ACCMODE;
        let asked = lock(&self.machine).open(ino, access != libc::O_WRONLY, access != libc::O_RDONLY, caller(r));
        match asked {
            Ok(()) => {
                let fh = self.next_handle;
                self.next_handle += 1;
                self.texts.insert(fh, None);
                reply.opened(fh, DIRECT_IO | NO_FLUSH);
            }
            Err(e) => reply.error(e.0),
        }
    }

    fn read(
        &mut self,
        _r: &Request<'_>,
        ino: u64,
        fh: u64,
        offset: i64,
        size: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyData,
    ) {
        let moves = lock(&self.machine).shows_tasks(ino);
        let text = self.now(moves).read(ino);
        match (text, self.texts.get_mut(&fh)) {
            (Ok(now), Some(kept)) => {
                let all = if offset == 0 { kept.insert(now) } else { kept.get_or_insert(now) };
                let from = usize::try_from(offset).unwrap_or(0).min(all.len());
                reply.data(&all[from..all.len().min(from + size as usize)]);
            }
            (Err(e), _) => reply.error(e.0),
            (_, None) => reply.error(libc::EBADF),
        }
    }

    fn write(
        &mut self,
        r: &Request<'_>,
        ino: u64,
        _fh: u64,
        _offset: i64,
        data: &[u8],
        _write_flags: u32,
        _flags: i32,
        _lock_owner: Option<u64>,
        reply: ReplyWrite,
    ) {
        let moves = lock(&self.machine).shows_tasks(ino);
        match self.now(moves).write(ino, data, caller(r)) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(e.0),
        }
    }

    fn release(&mut self, _r: &Request<'_>, _ino: u64, fh: u64, _flags: i32, _lock_owner: Option<u64>, _flush: bool, reply: ReplyEmpty) {
        self.texts.remove(&fh);
        reply.ok();
    }

    fn flush(&mut self, _r: &Request<'_>, _ino: u64, _fh: u64, _lock_owner: u64, reply: ReplyEmpty) {
        // Older kernels ask once, and after this answer never again.
        reply.error(libc::ENOSYS);
    }

    fn readdir(&mut self, _r: &Request<'_>, ino: u64, _fh: u64, offset: i64, mut reply: ReplyDirectory) {
        let m = lock(&self.machine);
        let listed = m.tree().and_then(|t| {
            let mut all = vec![(".".into(), ino, true), ("..".into(), t.parent(ino).unwrap_or(ROOT), true)];
            all.extend(t.list(ino)?.into_iter().map(|(name, n)| (name, n, matches!(t.what(n), Ok(What::Dir(_))))));
            Ok(all)
        });
        match listed {
            Ok(all) => {
                for (i, (name, node, dir)) in all.into_iter().enumerate().skip(usize::try_from(offset).unwrap_or(0)) {
                    let kind = if dir { FileType::Directory } else { FileType::RegularFile };
                    if reply.add(node, i as i64 + 1, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(e) => reply.error(e.0),
        }
    }

    fn poll(&mut self, _r: &Request<'_>, _ino: u64, _fh: u64, _ph: fuser::PollHandle, _events: u32, _flags: u32, reply: ReplyPoll) {
        // As kernfs does for a file that nobody notifies about.
        reply.poll((libc::POLLIN | libc::POLLOUT | libc::POLLRDNORM | libc::POLLWRNORM | libc::POLLERR | libc::POLLPRI) as u32);
    }

    fn statfs(&mut self, _r: &Request<'_>, _ino: u64, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn setxattr(&mut self, _r: &Request<'_>, _ino: u64, name: &OsStr, _v: &[u8], _flags: i32, _at: u32, reply: ReplyEmpty) {
        // kernfs keeps trusted and security attributes; nobody reads them here.
        done(reply, if name.as_bytes().starts_with(b"user.") { Err(Errno::ENOTSUP) } else { Ok(()) });
    }
}
