//! What becomes of the services when the decider dies: the actuator puts in force what the decider left with it.
//!
//! A client leaves a safe layout ([`crate::files::Files::keep_safe`]) that passed the allow-list. It is on disk before the client
//! hears so. Goes the client while there is one, or while a value is not what it was before it came ([`super::record`]), and comes nobody within
//! [`GRACE`], it is put in force as far as the record bears it out: no model, no policy. An actuator that was killed as well finds both when
//! it starts again; those of an earlier boot are void.

use super::protocol::{decode, Request, SafeOp};
use crate::own::{Author, Folder};
use crate::safe::SafeLayout;
use nix::errno::Errno;
use nix::fcntl::{openat, renameat, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{mkdir, unlinkat, UnlinkatFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a decider may be away: long enough for a line that is dialled anew, short enough for a layout within two seconds.
pub const GRACE: Duration = Duration::from_secs(1);

/// Name of the layout in the actuator's state folder.
pub const NAME: &str = "safe-layout";
const NEW: &str = "safe-layout.new";
/// Path of the first write of the file, whose text is the boot that it is for.
const BOOT: &str = "boot";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// Somebody decides, or nobody has left anything.
    Quiet,
    /// The decider has gone without a word.
    Alone { since: Instant },
}

/// The layout that is kept, and whether it is needed.
#[derive(Debug)]
pub struct DeadMan {
    dir: OwnedFd,
    boot: String,
    layout: SafeLayout,
    watch: Watch,
}

impl DeadMan {
    /// With the layout that an actuator of the same boot left: it counts as one whose decider has just gone.
    ///
    /// # Errors
    /// A folder that cannot be had, or that others may write; the text names it.
    pub fn open(dir: &Path, boot: &str, now: Instant) -> io::Result<Self> {
        match mkdir(dir, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(named(dir, e)),
        }
        let fd = own_folder(dir)?;
        let mut d = DeadMan { dir: fd, boot: boot.trim().into(), layout: SafeLayout::default(), watch: Watch::Quiet };
        d.layout = d.load().unwrap_or_else(|e| {
            if e.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{}: {e}: no safe layout until a client leaves one", dir.join(NAME).display());
            }
            SafeLayout::default()
        });
        d.client_left(now, false);
        Ok(d)
    }

    pub fn folder(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub fn layout(&self) -> &SafeLayout {
        &self.layout
    }

    fn file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    fn load(&self) -> io::Result<SafeLayout> {
        let mut bytes = vec![];
        self.file(NAME, OFlag::O_RDONLY)?.take(2 * super::protocol::MAX_REQUEST as u64).read_to_end(&mut bytes)?;
        match decode(&bytes) {
            Ok(Request::KeepSafe(ops)) if ops.first() == Some(&SafeOp::Write { path: BOOT, text: &self.boot }) => {
                Ok(SafeLayout::new(ops[1..].iter().map(|op| op.to_op()).collect()))
            }
            Ok(Request::KeepSafe(_)) => Ok(SafeLayout::default()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "damaged")),
        }
    }

    /// Keep this in place of an earlier one: on disk first, whole or not at all. An empty one is the end of keeping.
    ///
    /// # Errors
    /// Of the disk; what was kept before is kept on.
    pub fn keep(&mut self, ops: &[SafeOp<'_>]) -> io::Result<()> {
        if ops.is_empty() {
            return self.clear();
        }
        let mut all = vec![SafeOp::Write { path: BOOT, text: &self.boot }];
        all.extend(ops);
        let bytes = Request::KeepSafe(all).encode()?;
        let _ = unlinkat(&self.dir, NEW, UnlinkatFlags::NoRemoveDir);
        let mut f = self.file(NEW, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        f.write_all(&bytes)?;
        f.sync_all()?;
        renameat(&self.dir, NEW, &self.dir, NAME)?;
        nix::unistd::fsync(&self.dir)?;
        self.layout = SafeLayout::new(ops.iter().map(|op| op.to_op()).collect());
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.layout = SafeLayout::default();
        match unlinkat(&self.dir, NAME, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(nix::unistd::fsync(&self.dir)?),
            Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub fn client_came(&mut self) {
        self.watch = Watch::Quiet;
    }

    /// `changed`: values are not what they were before it came.
    pub fn client_left(&mut self, now: Instant, changed: bool) {
        self.watch = if self.layout.ops.is_empty() && !changed { Watch::Quiet } else { Watch::Alone { since: now } };
    }

    /// How long until the layout is due; None where it is not needed.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.watch {
            Watch::Quiet => None,
            Watch::Alone { since } => Some(GRACE.saturating_sub(now.duration_since(since))),
        }
    }

    /// The layout has been put in force.
    pub fn done(&mut self) {
        self.watch = Watch::Quiet;
    }
}

fn named(dir: &Path, e: Errno) -> io::Error {
    io::Error::new(io::Error::from(e).kind(), format!("{}: {}", dir.display(), e.desc()))
}

/// A folder that nobody but this user writes to.
///
/// # Errors
/// One that cannot be had, or that others may write; the text names it.
pub(super) fn own_folder(dir: &Path) -> io::Result<OwnedFd> {
    let named = |e: Errno| named(dir, e);
    // Also on the way to it: who can exchange the folder for another says what is put in force.
    if let Author::Others(weak) = Folder::open(dir)?.author() {
        let why = format!("{}: {weak}. Give a folder of our own", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let fd =
        nix::fcntl::open(dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map_err(named)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safe::Op;
    use std::fs;
    use std::os::unix::fs::{symlink, PermissionsExt};

    /// Due a second after a client went without a word, never while one is there or after a goodbye.
    #[test]
    fn it_is_due_when_nobody_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let (at, t) = (dir.path().join("s"), Instant::now());
        let mut d = DeadMan::open(&at, "boot-1\n", t).unwrap();
        d.client_left(t, false);
        assert_eq!(d.due_in(t), None);
        d.client_came();
        d.keep(&[SafeOp::Write { path: "/a", text: "2\n" }, SafeOp::RemoveDir { path: "/b" }]).unwrap();
        assert_eq!(d.due_in(t + GRACE), None);
        d.client_left(t, false);
        assert_eq!((d.due_in(t), d.due_in(t + GRACE / 2), d.due_in(t + 2 * GRACE)), (Some(GRACE), Some(GRACE / 2), Some(Duration::ZERO)));
        d.client_came();
        assert_eq!(d.due_in(t + GRACE), None);
        d.client_left(t, false);
        // An actuator that was killed as well finds it when it starts again; after a boot it is void.
        drop(d);
        let d = DeadMan::open(&at, "boot-1", t).unwrap();
        let kept = [Op::Write { path: "/a".into(), text: "2\n".into() }, Op::RemoveDir { path: "/b".into() }];
        assert_eq!((d.due_in(t), d.layout().ops.as_slice()), (Some(GRACE), kept.as_slice()));
        assert_eq!(DeadMan::open(&at, "boot-2", t).unwrap().due_in(t), None);
        let mut d = DeadMan::open(&at, "boot-1", t).unwrap();
        d.keep(&[]).unwrap();
        d.client_left(t, false);
        assert_eq!(d.due_in(t), None);
        // A goodbye that was none.
        d.client_left(t, true);
        assert_eq!(d.due_in(t), Some(GRACE));
        d.keep(&[]).unwrap();
        assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    }

    /// A damaged file is no layout, links are not followed, and a folder that others may write is refused.
    #[test]
    fn the_folder_is_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (at, t) = (dir.path().join("s"), Instant::now());
        fs::create_dir(&at).unwrap();
        fs::write(at.join(NAME), "x").unwrap();
        let mut d = DeadMan::open(&at, "b", t).unwrap();
        assert!(d.layout().ops.is_empty());
        fs::write(dir.path().join("victim"), "old").unwrap();
        for name in [NAME, NEW] {
            let _ = fs::remove_file(at.join(name));
            symlink("../victim", at.join(name)).unwrap();
        }
        d.keep(&[SafeOp::Write { path: "/a", text: "1" }]).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("victim")).unwrap(), "old");
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(DeadMan::open(&at, "b", t).unwrap_err().to_string().contains("can be written by others"));
        assert!(DeadMan::open(&dir.path().join("no/s"), "b", t).is_err());
    }
}
