//! Who else than this user and root can change what a path leads to.

use nix::fcntl::{openat, readlinkat, OFlag};
use nix::sys::stat::{fstat, Mode, SFlag};
use nix::unistd::geteuid;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

/// Symbolic links on one way; as the kernel counts.
const MOST_LINKS: u32 = 40;
/// What to do about a link of somebody else's on the way of an output.
pub const LINK_REMEDY: &str = "Give the path that it leads to";

/// Bits of a mode that open something to others. Root trusts no group; another user's own group is often only that user.
pub fn open_to_others() -> u32 {
    if geteuid().is_root() {
        0o022
    } else {
        0o002
    }
}

/// This user or root.
pub fn is_us(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// A place on the way to a path where somebody else than this user and root can change what the path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weak {
    pub at: PathBuf,
    what: &'static str,
    /// None: it is ours, but its mode lets others write.
    pub owner: Option<u32>,
    /// It is what the path leads to, and not merely on the way.
    pub end: bool,
}

impl Weak {
    /// A folder that a path leads to.
    pub fn folder(at: PathBuf, owner: Option<u32>) -> Self {
        Weak { at, what: "folder", owner, end: true }
    }

    /// A link of somebody else's.
    pub fn is_link(&self) -> bool {
        self.what == "link"
    }
}

impl Way {
    /// The first link of somebody else's: what lies behind it is that user's choice.
    pub fn link_of_others(&self) -> Option<&Weak> {
        self.weak.iter().find(|w| w.is_link())
    }
}

impl fmt::Display for Weak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the {} ", self.at.display(), self.what)?;
        match self.owner {
            Some(uid) => write!(f, "belongs to user {uid}"),
            None => f.write_str("can be written by others"),
        }
    }
}

/// The way to a path: every folder, link and file on it.
#[derive(Debug)]
pub struct Way {
    /// From the root on.
    pub weak: Vec<Weak>,
    /// What the path leads to, opened as O_PATH; where it ends early, the last folder that is there.
    pub end: OwnedFd,
    /// Where that is, without links.
    pub at: PathBuf,
    /// Names that are not there.
    pub missing: Vec<OsString>,
}

/// Walk to `path`, name by name, each in the folder that was opened before: what is found is what was looked at. `others` are the mode
/// bits that open something to others.
///
/// While no weak place has been met, nobody but this user and root can change what has been seen; so the answer "none" stays true.
///
/// # Errors
/// Where something on the way cannot be looked at.
pub fn way(path: &Path, others: u32) -> io::Result<Way> {
    let reversed = |p: &Path| p.components().rev().map(|c| c.as_os_str().to_os_string()).collect::<Vec<_>>();
    let mut todo = reversed(&std::path::absolute(path)?);
    let root = || nix::fcntl::open("/", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(os);
    let mut way = Way { weak: vec![], end: root()?, at: PathBuf::from("/"), missing: vec![] };
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let (next, at) = match Path::new(&name).components().next() {
            Some(Component::RootDir) => (root()?, PathBuf::from("/")),
            Some(Component::ParentDir) => (look(&way.end, OsStr::new(".."))?, way.at.parent().unwrap_or(Path::new("/")).to_path_buf()),
            Some(Component::Normal(n)) => match look(&way.end, n) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    way.missing = std::iter::once(name).chain(todo.into_iter().rev()).filter(|n| n != ".").collect();
                    return Ok(way);
                }
                found => (found.map_err(|e| named(&way.at.join(n), &e))?, way.at.join(n)),
            },
            _ => continue,
        };
        let stat = fstat(&next).map_err(os)?;
        let (kind, end) = (SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()), todo.is_empty());
        let (link, folder) = (kind == SFlag::S_IFLNK, kind == SFlag::S_IFDIR);
        // In a folder such as /tmp nobody may replace what is another's; but anybody may add to it.
        let sticky = folder && !end && stat.st_mode & 0o1000 != 0;
        let open = !link && !sticky && stat.st_mode & others != 0;
        if !is_us(stat.st_uid) || open {
            let what = if link { "link" } else { ["file", "folder"][usize::from(folder)] };
            way.weak.push(Weak { at: at.clone(), what, owner: (!is_us(stat.st_uid)).then_some(stat.st_uid), end: end && !link });
        }
        if !link {
            (way.end, way.at) = (next, at);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(named(&at, &io::Error::from_raw_os_error(libc::ELOOP)));
        }
        todo.extend(reversed(Path::new(&readlinkat(&next, "").map_err(os)?)));
    }
    Ok(way)
}

/// A name in an open folder, itself and not where it leads.
///
/// # Errors
/// The kernel's.
pub fn look(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    openat(folder, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map_err(os)
}

fn os(e: nix::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(e as i32)
}

fn named(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}
