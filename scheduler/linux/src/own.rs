//! Files in folders that somebody else may be able to write in.
//!
//! What must hold, whatever the owner of such a folder does meanwhile:
//! - a file is looked up by its one name in a folder that is open: no link is followed, nothing outside the folder reached;
//! - what is opened is a plain file with no other name, belongs to whom it should, and opening it never waits;
//! - who else than this user and root could have written a content is known before anybody acts on it ([`Folder::author`]).
//!
//! Paths below kernel mounts are the business of [`crate::actuator::Beneath`], which walks several names in the same way.

use nix::fcntl::{openat, renameat, AtFlags, OFlag};
use nix::sys::stat::{fstat, fstatat, mkdirat, FileStat, Mode, SFlag};
use nix::unistd::{fchown, fchownat, fsync, geteuid, unlinkat, Gid, Uid, UnlinkatFlags};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use surefoot_io::way::is_us;
pub use surefoot_io::way::{look, open_to_others, way, Way, Weak, LINK_REMEDY};

/// Mode of new files, less the umask.
const FILE_MODE: u32 = 0o644;
/// Mode of new folders, less the umask: never open to others, so that they stay what they are made as.
const FOLDER_MODE: u32 = 0o755;

fn os(e: nix::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(e as i32)
}

/// Why a file or folder is not used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}. {remedy}")]
pub struct Refusal {
    pub cause: String,
    pub remedy: String,
}

impl Refusal {
    pub(crate) fn error(cause: impl Into<String>, remedy: impl Into<String>) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, Refusal { cause: cause.into(), remedy: remedy.into() })
    }
}

/// Cause and remedy of an error: its own, where it is a refusal, else `otherwise`.
pub fn cause_and_remedy(e: &io::Error, otherwise: &str) -> (String, String) {
    match e.get_ref().and_then(|e| e.downcast_ref::<Refusal>()) {
        Some(r) => (r.cause.clone(), r.remedy.clone()),
        None => (e.to_string(), otherwise.into()),
    }
}

/// The same error, which also says of what.
pub fn named(path: &Path, e: &io::Error) -> io::Error {
    let path = path.display();
    match e.get_ref().and_then(|e| e.downcast_ref::<Refusal>()) {
        Some(r) => Refusal::error(format!("{path}: {}", r.cause), r.remedy.clone()),
        None => io::Error::new(e.kind(), format!("{path}: {e}")),
    }
}

fn refused<T>(cause: impl Into<String>, remedy: impl Into<String>) -> io::Result<T> {
    Err(Refusal::error(cause, remedy))
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

fn word(kind: SFlag) -> &'static str {
    match kind {
        SFlag::S_IFLNK => "a link",
        SFlag::S_IFIFO => "a FIFO",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFDIR => "a folder",
        SFlag::S_IFREG => "a plain file",
        _ => "a device",
    }
}

/// Who can have written what is in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Author {
    /// This user or root, and nobody else.
    Us,
    /// Somebody else could have; why.
    Others(Weak),
}

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// O_PATH.
    fd: OwnedFd,
    owner: u32,
    group: u32,
    author: Author,
    /// It takes results, which are this user's wherever they lie; else it keeps what a later process has to go on with.
    results: bool,
}

impl Folder {
    /// # Errors
    /// `NotFound` where it is not there; `PermissionDenied` where another than its owner, this user and root could exchange it for
    /// another folder. Each names the place.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::at(path, way(path, open_to_others())?)
    }

    fn at(path: &Path, way: Way) -> io::Result<Self> {
        let (folder, weak) = Self::end_of(path, way, false)?;
        // Whoever has the way has the folder; all of it must be in the same hands.
        let same = |w: &Weak| w.owner == Some(folder.owner) || w.end && w.owner.is_none();
        match weak.iter().find(|w| !same(w)) {
            None => Ok(folder),
            Some(w) => {
                let fix = match w.owner {
                    Some(_) => "Give a folder below none of that user's".to_string(),
                    None => format!("Run: chmod go-w {}", w.at.display()),
                };
                refused(format!("{w}, so {} could be exchanged for another folder", path.display()), fix)
            }
        }
    }

    fn end_of(path: &Path, way: Way, results: bool) -> io::Result<(Self, Vec<Weak>)> {
        if !way.missing.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let stat = fstat(&way.end).map_err(os)?;
        if kind(&stat) != SFlag::S_IFDIR {
            return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
        }
        let author = way.weak.last().map_or(Author::Us, |w| Author::Others(w.clone()));
        let (owner, group) = (stat.st_uid, stat.st_gid);
        Ok((Folder { path: path.into(), fd: way.end, owner, group, author, results }, way.weak))
    }

    /// A folder for results. Somebody else may have it; a link of somebody else's on the way is not followed.
    ///
    /// # Errors
    /// `NotFound` where it is not there; `PermissionDenied` names such a link.
    pub fn for_results(path: &Path) -> io::Result<Self> {
        let (folder, weak) = Self::end_of(path, way(path, open_to_others())?, true)?;
        match weak.iter().find(|w| w.is_link()) {
            None => Ok(folder),
            Some(w) => refused(w.to_string(), LINK_REMEDY),
        }
    }

    /// Made with all above it where it is not there.
    ///
    /// # Errors
    /// As [`Folder::open`]; `PermissionDenied` also where it would have to be made in a folder of somebody else's.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut found = way(path, open_to_others())?;
        if let Some(w) = found.weak.first().filter(|_| !found.missing.is_empty()) {
            return refused(format!("{w}, so nothing is made in it"), format!("Make {} as that user first", path.display()));
        }
        if found.missing.is_empty() {
            return Self::at(path, found);
        }
        for name in std::mem::take(&mut found.missing) {
            found.at.push(&name);
            match mkdirat(&found.end, name.as_os_str(), Mode::from_bits_truncate(FOLDER_MODE)) {
                Ok(()) | Err(nix::errno::Errno::EEXIST) => found.end = look(&found.end, &name)?,
                Err(e) => return Err(named(&found.at, &os(e))),
            }
        }
        // Not all of it need be what was made here: in a folder such as /tmp anybody may have been faster.
        Self::open(path)
    }

    /// The same folder once more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = self.fd.try_clone()?;
        Ok(Folder { path: self.path.clone(), fd, author: self.author.clone(), ..*self })
    }

    /// The folder for results that a file lies in, and the file's name.
    ///
    /// # Errors
    /// As [`Folder::for_results`]; `InvalidInput` for a path without a name.
    pub fn results_of(file: &Path) -> io::Result<(Self, &str)> {
        let (folder, name) = split(file)?;
        Ok((Self::for_results(folder)?, name))
    }

    /// The folder that a file lies in, and the file's name.
    ///
    /// # Errors
    /// As [`Folder::open`]; `InvalidInput` for a path without a name.
    pub fn of(file: &Path) -> io::Result<(Self, &str)> {
        let (folder, name) = split(file)?;
        Ok((Self::open(folder)?, name))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn author(&self) -> &Author {
        &self.author
    }

    /// User of the folder.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Group of the folder.
    pub fn group(&self) -> u32 {
        self.group
    }

    fn is_ours(&self) -> bool {
        self.author == Author::Us
    }

    /// That a file which was opened here is what it should be; `others` are the bits of its mode that it must not have.
    fn check(&self, stat: &FileStat, others: u32) -> io::Result<()> {
        let kind = kind(stat);
        if kind != SFlag::S_IFREG {
            let remedy = match kind {
                // It is the system's.
                SFlag::S_IFCHR | SFlag::S_IFBLK => "Give another path",
                _ => "Remove it",
            };
            return refused(format!("is {} and no plain file", word(kind)), remedy);
        }
        if stat.st_nlink > 1 {
            return refused(format!("is known by {} names (hard links)", stat.st_nlink), "Remove this one");
        }
        let me = geteuid();
        let theirs = match self.is_ours() {
            true => !is_us(stat.st_uid),
            // Of what others go on with, a file of root's was led there.
            false => stat.st_uid != self.owner && (me.is_root() && !self.results || stat.st_uid != me.as_raw()),
        };
        if theirs {
            let owner = if self.is_ours() { geteuid().as_raw() } else { self.owner };
            return refused(
                format!("belongs to user {}", stat.st_uid),
                format!("Give it to user {owner} (chown) if it is what it should be"),
            );
        }
        if self.is_ours() && stat.st_mode & others != 0 {
            return refused("can be written by others", "Close it (chmod go-w) if it is what it should be");
        }
        Ok(())
    }

    fn open_name(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<OwnedFd> {
        if name.is_empty() || name == "." || name == ".." || name.contains('/') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        openat(&self.fd, name, flags, Mode::from_bits_truncate(mode)).map_err(|e| match e {
            nix::errno::Errno::ELOOP => Refusal::error("is a link, and none is followed here", "Remove it"),
            // A FIFO that nobody reads, or a socket.
            nix::errno::Errno::ENXIO => Refusal::error("is a FIFO or a socket and no plain file", "Remove it"),
            e => os(e),
        })
    }

    /// A file that is there.
    ///
    /// # Errors
    /// `PermissionDenied` with the remedy for what is no plain file of the right owner; else the kernel's.
    pub fn file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        self.file_open_to(name, flags, open_to_others())
    }

    /// As [`Folder::file`], of one that its group may write, too.
    ///
    /// # Errors
    /// As [`Folder::file`].
    pub fn shared_file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        self.file_open_to(name, flags, 0o002)
    }

    fn file_open_to(&self, name: &str, flags: OFlag, others: u32) -> io::Result<File> {
        let fd = self.open_name(name, flags.difference(OFlag::O_TRUNC), 0)?;
        self.check(&fstat(&fd).map_err(os)?, others)?;
        Ok(fd.into())
    }

    /// A file that is not there yet. In a folder of somebody else's it belongs to that user, who has to be able to go on with it.
    ///
    /// # Errors
    /// `AlreadyExists` for whatever has that name.
    pub fn new_file(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<File> {
        let fd = self.open_name(name, flags | OFlag::O_CREAT | OFlag::O_EXCL, mode)?;
        let made = fstat(&fd).map_err(os)?;
        if !self.is_ours() && !self.results && geteuid().is_root() && (made.st_uid, made.st_gid) != (self.owner, self.group) {
            fchown(&fd, Some(Uid::from_raw(self.owner)), Some(Gid::from_raw(self.group))).map_err(os)?;
        }
        Ok(fd.into())
    }

    /// As [`Folder::file`], and made where it is not there.
    ///
    /// # Errors
    /// As [`Folder::file`].
    pub fn file_or_new(&self, name: &str, flags: OFlag, mode: u32) -> io::Result<File> {
        match self.file(name, flags) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => match self.new_file(name, flags, mode) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.file(name, flags),
                made => made,
            },
            found => found,
        }
    }

    /// As [`Folder::file_or_new`], for appending.
    ///
    /// # Errors
    /// As [`Folder::file`].
    pub fn append(&self, name: &str) -> io::Result<File> {
        self.file_or_new(name, OFlag::O_RDWR | OFlag::O_APPEND, FILE_MODE)
    }

    /// Whole content of a file of at most so many bytes; None where there is none.
    ///
    /// # Errors
    /// As [`Folder::file`], and for one that is longer.
    pub fn read(&self, name: &str, most_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.file(name, OFlag::O_RDONLY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        bounded(file, most_bytes).map(Some)
    }

    /// New content under the same name, safe from a crash at any moment. What had that name before is not opened.
    ///
    /// # Errors
    /// The kernel's; the old content is then in place.
    pub fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let new = format!("{name}.new");
        // Of a process that died, or put there by somebody: neither opened nor followed.
        self.remove(&new)?;
        let mut file = self.new_file(&new, OFlag::O_WRONLY, FILE_MODE)?;
        let written = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| self.rename(&new, name));
        written.inspect_err(|_| drop(self.remove(&new)))?;
        self.sync()
    }

    /// Make names in it outlast a power cut.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync(&self) -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.fd, ".", flags, Mode::empty()).and_then(fsync).map_err(os)
    }

    /// Take a name away, whatever has it but a folder; true where there was one. No link is followed by that.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, name: &str) -> io::Result<bool> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::ENOENT) => Ok(false),
            Err(e) => Err(os(e)),
        }
    }

    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        renameat(&self.fd, from, &self.fd, to).map_err(os)
    }

    /// Whether a file that was opened here is still the one of that name.
    pub fn holds(&self, name: &str, file: &File) -> bool {
        let here = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        here.ok().zip(fstat(file).ok()).is_some_and(|(a, b)| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// A folder in it, itself and not where a link of that name leads; of ours, or of whoever has this one.
    ///
    /// # Errors
    /// `NotFound` where it is not there; `PermissionDenied` where it is somebody else's; else the kernel's.
    pub fn sub(&self, name: &str) -> io::Result<Self> {
        let fd = self.open_name(name, OFlag::O_PATH | OFlag::O_DIRECTORY, 0)?;
        let stat = fstat(&fd).map_err(os)?;
        if !is_us(stat.st_uid) && stat.st_uid != self.owner {
            return refused(format!("is a folder of user {}", stat.st_uid), "Remove it");
        }
        let path = self.path.join(name);
        let weak = |owner| Author::Others(Weak::folder(path.clone(), owner));
        let author = match &self.author {
            Author::Us if !is_us(stat.st_uid) => weak(Some(stat.st_uid)),
            Author::Us if stat.st_mode & open_to_others() != 0 => weak(None),
            author => author.clone(),
        };
        Ok(Folder { path, fd, owner: stat.st_uid, group: stat.st_gid, author, results: self.results })
    }

    /// As [`Folder::sub`], made where it is not there, with this very mode.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn make_sub(&self, name: &str, mode: u32) -> io::Result<Self> {
        match mkdirat(&self.fd, name, Mode::from_bits_truncate(mode)) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(e) => return Err(os(e)),
        }
        let made = self.sub(name)?;
        if geteuid().is_root() && !self.is_ours() && !self.results && made.owner != self.owner {
            fchownat(&made.fd, "", Some(Uid::from_raw(self.owner)), Some(Gid::from_raw(self.group)), AtFlags::AT_EMPTY_PATH).map_err(os)?;
        }
        fs::set_permissions(made.pinned("."), fs::Permissions::from_mode(mode))?;
        self.sub(name)
    }

    /// Take away a folder in it that is empty.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_sub(&self, name: &str) -> io::Result<()> {
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir).map_err(os)
    }

    /// Names in it that are text.
    ///
    /// # Errors
    /// The kernel's.
    pub fn names(&self) -> io::Result<Vec<String>> {
        Ok(fs::read_dir(self.pinned("."))?.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
    }

    /// Take away a socket that a process left which has gone.
    ///
    /// # Errors
    /// `AlreadyExists` where something else has that name, or a socket of somebody else's.
    pub fn remove_socket(&self, name: &str) -> io::Result<()> {
        let stat = match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(nix::errno::Errno::ENOENT) => return Ok(()),
            other => other.map_err(os)?,
        };
        let in_the_way = |what: String| refused(what, "Remove it, or give another path");
        if kind(&stat) != SFlag::S_IFSOCK {
            return in_the_way(format!("{} is there and no socket", word(kind(&stat))));
        }
        if !is_us(stat.st_uid) && stat.st_uid != self.owner {
            return in_the_way(format!("a socket of user {} is there", stat.st_uid));
        }
        self.remove(name).map(|_| ())
    }

    /// A path to bind a socket at: one that leads to this folder, whatever becomes of the way to it.
    pub fn bind_path(&self, name: &str) -> PathBuf {
        if self.is_ours() {
            return self.path.join(name);
        }
        self.pinned(name)
    }

    /// A path to a name in this very folder, whatever becomes of the way to it, as long as this lives.
    pub fn pinned(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(name)
    }

    /// Mode and group of a socket that this process has just made here: of that socket alone, whatever has its name by now.
    ///
    /// # Errors
    /// `PermissionDenied` where it is no socket of ours any more; else the kernel's.
    pub fn open_socket_to(&self, name: &str, mode: u32, group: Option<u32>) -> io::Result<()> {
        let fd = self.open_name(name, OFlag::O_PATH, 0)?;
        let stat = fstat(&fd).map_err(os)?;
        if kind(&stat) != SFlag::S_IFSOCK || stat.st_uid != geteuid().as_raw() || stat.st_nlink != 1 {
            return refused(format!("somebody put {} in its place", word(kind(&stat))), "Look who writes there");
        }
        // Not asked without need: a service manager's filter of system calls may forbid it.
        if let Some(gid) = group.filter(|g| *g != stat.st_gid) {
            fchownat(&fd, "", None, Some(Gid::from_raw(gid)), AtFlags::AT_EMPTY_PATH).map_err(os)?;
        }
        if stat.st_mode & 0o777 != mode {
            // The one way to change the mode of what was opened without following a link (O_PATH).
            fs::set_permissions(format!("/proc/self/fd/{}", fd.as_raw_fd()), fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    }
}

/// A plain file that is only looked at, whoever it belongs to: what has its name and is something else is refused, not waited for and
/// not followed.
///
/// # Errors
/// `PermissionDenied` with the remedy for what is no plain file; else the kernel's.
pub fn plain_file(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let fd = nix::fcntl::open(path, flags, Mode::empty()).map_err(|e| match e {
        nix::errno::Errno::ELOOP => Refusal::error("is a link, and none is followed here", "Name the file that it leads to"),
        nix::errno::Errno::ENXIO => Refusal::error("is a FIFO or a socket and no plain file", "Name a plain file"),
        e => os(e),
    })?;
    match kind(&fstat(&fd).map_err(os)?) {
        SFlag::S_IFREG => Ok(fd.into()),
        SFlag::S_IFDIR => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        other => refused(format!("is {} and no plain file", word(other)), "Name a plain file"),
    }
}

/// A file's folder and its name.
fn split(file: &Path) -> io::Result<(&Path, &str)> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "it has no name that is text");
    let name = file.file_name().and_then(OsStr::to_str).ok_or_else(none)?;
    Ok((file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")), name))
}

/// Whole content of a file of at most so many bytes.
fn bounded(file: File, most_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        return refused(format!("is longer than {} MiB, which none of ours is", most_bytes >> 20), "Move it away");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink, MetadataExt};

    const NOBODY: u32 = 65_534;

    /// What only root can set up; a test that cannot run says so.
    fn root(test: &str) -> bool {
        if !geteuid().is_root() {
            eprintln!("NOT RUN: {test}: needs root");
        }
        geteuid().is_root()
    }

    /// Whatever has the name of a file of ours is refused by its kind, without waiting for it, and nothing behind it is opened.
    #[test]
    fn only_a_plain_file_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let (at, victim) = (dir.path().join("f"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        let cases: [(&str, &dyn Fn()); 6] = [
            ("is a link", &|| symlink(&victim, &at).unwrap()),
            ("is a link", &|| symlink("nowhere", &at).unwrap()),
            ("no plain file", &|| nix::unistd::mkfifo(&at, Mode::S_IRWXU).unwrap()),
            ("no plain file", &|| drop(std::os::unix::net::UnixListener::bind(&at).unwrap())),
            ("2 names (hard links)", &|| fs::hard_link(&victim, &at).unwrap()),
            ("can be written by others", &|| {
                fs::write(&at, "").unwrap();
                fs::set_permissions(&at, fs::Permissions::from_mode(0o666)).unwrap();
            }),
        ];
        for (words, make) in cases {
            make();
            for flags in [OFlag::O_RDWR, OFlag::O_WRONLY | OFlag::O_TRUNC | OFlag::O_APPEND, OFlag::O_RDONLY] {
                let said = folder.file_or_new("f", flags, 0o600).unwrap_err().to_string();
                assert!(said.contains(words), "{words}: {said}");
            }
            assert!(folder.read("f", 100).is_err() && folder.append("f").is_err());
            // A new content takes the name and leaves alone what had it.
            folder.replace("f", b"new").unwrap();
            assert_eq!((fs::read_to_string(&at).unwrap().as_str(), fs::read_to_string(&victim).unwrap().as_str()), ("new", "precious"));
            assert!(folder.remove("f").unwrap() && !folder.remove("f").unwrap());
        }
        fs::create_dir(&at).unwrap();
        assert!(
            folder.append("f").is_err() && folder.read("f", 1).is_err() && folder.replace("f", b"").is_err() && folder.remove("f").is_err()
        );
        for name in ["", ".", "..", "../victim", "a/b", "/etc/hostname"] {
            assert_eq!(folder.file_or_new(name, OFlag::O_RDWR, 0o600).unwrap_err().raw_os_error(), Some(libc::EINVAL), "{name}");
        }
    }

    /// The name that a new content has before it is whole is not followed either, and never truncated.
    #[test]
    fn what_is_being_written_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let ways: [fn(&Path, &Path) -> io::Result<()>; 2] = [|a, b| symlink(a, b), |a, b| fs::hard_link(a, b)];
        for make in ways {
            make(&victim, &dir.path().join("safe.json.new")).unwrap();
            folder.replace("safe.json", b"{}").unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
            assert_eq!(folder.read("safe.json", 2).unwrap(), Some(b"{}".to_vec()));
            assert!(!dir.path().join("safe.json.new").exists());
        }
        assert!(folder.read("safe.json", 1).unwrap_err().to_string().contains("longer than"));
        assert_eq!(folder.read("none", 1).unwrap(), None);
    }

    /// Another user's folder is known as such, its files must be that user's, and what root makes there belongs to that user.
    #[test]
    fn another_users_folder() {
        if !root("another_users_folder") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (at, own) = (dir.path().join("theirs"), dir.path().join("ours"));
        [&at, &own].iter().for_each(|d| fs::create_dir(d).unwrap());
        chown(&at, Some(NOBODY), Some(NOBODY)).unwrap();
        assert_eq!(Folder::open(&own).unwrap().author(), &Author::Us);
        let folder = Folder::open(&at).unwrap();
        let Author::Others(weak) = folder.author() else { panic!() };
        assert_eq!(weak.to_string(), format!("{}: the folder belongs to user 65534", at.display()));
        drop(folder.file_or_new("lock", OFlag::O_RDWR, 0o600).unwrap());
        folder.replace("safe.json", b"{}").unwrap();
        for name in ["lock", "safe.json"] {
            let m = fs::metadata(at.join(name)).unwrap();
            assert_eq!((m.uid(), m.gid()), (NOBODY, NOBODY), "{name}");
        }
        // A file of root's that found its way there.
        fs::write(at.join("moved"), "precious").unwrap();
        assert!(folder.append("moved").unwrap_err().to_string().contains("belongs to user 0"));
        // And one of another user's in ours.
        fs::write(own.join("f"), "x").unwrap();
        chown(own.join("f"), Some(NOBODY), None).unwrap();
        assert!(Folder::open(&own).unwrap().append("f").unwrap_err().to_string().contains("belongs to user 65534"));
        // Open to others: whoever could write in it could have written it.
        for mode in [0o777, 0o775, 0o1777] {
            fs::set_permissions(&own, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(Folder::open(&own).unwrap().author(), Author::Others(w) if w.owner.is_none()), "{mode:o}");
        }
    }

    /// A folder that somebody could exchange for another is not opened: neither behind a link of theirs, nor below a folder of theirs, nor
    /// below one that everybody can write.
    #[test]
    fn a_folder_that_can_be_exchanged_is_refused() {
        if !root("a_folder_that_can_be_exchanged_is_refused") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["root", "theirs", "theirs/root", "theirs/theirs", "open", "open/root", "tmp", "tmp/root"] {
            fs::create_dir(at(name)).unwrap();
        }
        ["theirs", "theirs/theirs"].iter().for_each(|n| chown(at(n), Some(NOBODY), None).unwrap());
        fs::set_permissions(at("open"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(at("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
        symlink(at("root"), at("link")).unwrap();
        symlink(at("root"), at("tmp/link")).unwrap();
        symlink(at("root"), at("theirs/link")).unwrap();
        symlink("../root/..", at("theirs/up")).unwrap();
        for n in ["tmp/link", "theirs/link", "theirs/up"] {
            std::os::unix::fs::lchown(at(n), Some(NOBODY), None).unwrap();
        }
        for good in ["root", "tmp/root", "link", "root/../tmp/../link"] {
            assert_eq!(Folder::open(&at(good)).unwrap().author(), &Author::Us, "{good}");
        }
        for theirs in ["theirs", "theirs/theirs"] {
            assert_ne!(Folder::open(&at(theirs)).unwrap().author(), &Author::Us, "{theirs}");
        }
        for bad in ["theirs/root", "open/root", "tmp/link", "theirs/link", "theirs/up/root"] {
            let said = Folder::open(&at(bad)).unwrap_err().to_string();
            assert!(said.contains("could be exchanged"), "{bad}: {said}");
        }
        // Nothing is made where others decide what it is.
        for bad in ["theirs/new", "open/new/deep", "theirs/link/new"] {
            let said = Folder::create(&at(bad)).unwrap_err().to_string();
            assert!(said.contains("nothing is made in it"), "{bad}: {said}");
        }
        assert!(!at("root/new").exists() && !at("theirs/new").exists() && !at("open/new").exists());
        let made = Folder::create(&at("tmp/new/deep")).unwrap();
        assert_eq!((made.author(), fs::metadata(at("tmp/new/deep")).unwrap().mode() & 0o022), (&Author::Us, 0));
        assert_eq!(Folder::open(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("loop", at("loop")).unwrap();
        assert!(Folder::open(&at("loop")).is_err() && Folder::create(&at("loop/x")).is_err());
    }

    /// Results may lie in another user's folder, and stay who wrote them; but they are not led elsewhere by a link of that user's, and go to the
    /// folder that was opened, whatever has its name by then.
    #[test]
    fn results_go_where_they_were_to_go() {
        if !root("results_go_where_they_were_to_go") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["theirs", "root", "theirs/out"] {
            fs::create_dir(at(name)).unwrap();
        }
        ["theirs", "theirs/out"].iter().for_each(|n| chown(at(n), Some(NOBODY), None).unwrap());
        symlink(at("root"), at("theirs/link")).unwrap();
        std::os::unix::fs::lchown(at("theirs/link"), Some(NOBODY), None).unwrap();
        let said = Folder::results_of(&at("theirs/link/rows")).unwrap_err().to_string();
        assert!(said.contains("the link belongs to user 65534. Give the path that it leads to"), "{said}");
        let (folder, name) = (Folder::for_results(&at("theirs/out")).unwrap(), "rows");
        fs::rename(at("theirs/out"), at("theirs/moved")).unwrap();
        symlink(at("root"), at("theirs/out")).unwrap();
        folder.replace(name, b"rows").unwrap();
        fs::write(folder.pinned("more"), "more").unwrap();
        assert_eq!(fs::metadata(at("theirs/moved/rows")).unwrap().uid(), 0);
        assert!(folder.append(name).is_ok() && at("theirs/moved/more").exists() && fs::read_dir(at("root")).unwrap().next().is_none());
    }

    /// A folder in a folder is that folder, whatever leads there by its name, and has the mode that it was made with.
    #[test]
    fn a_folder_within_is_not_led_elsewhere() {
        let (dir, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder::open(dir.path()).unwrap();
        assert_eq!(folder.sub("feed").unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink(victim.path(), dir.path().join("feed")).unwrap();
        assert!(folder.sub("feed").is_err() && folder.make_sub("feed", 0o711).is_err());
        folder.remove("feed").unwrap();
        fs::create_dir(dir.path().join("feed")).unwrap();
        let made = folder.make_sub("feed", 0o711).unwrap();
        assert_eq!(fs::metadata(dir.path().join("feed")).unwrap().mode() & 0o777, 0o711);
        drop(made.new_file("a", OFlag::O_WRONLY, 0o600).unwrap());
        assert_eq!(made.names().unwrap(), ["a"]);
        assert!(folder.remove_sub("feed").is_err(), "it is not empty");
        made.remove("a").unwrap();
        folder.remove_sub("feed").unwrap();
        if root("a_folder_within_is_not_led_elsewhere, of another user") {
            fs::create_dir(dir.path().join("feed")).unwrap();
            chown(dir.path().join("feed"), Some(NOBODY), None).unwrap();
            assert!(folder.make_sub("feed", 0o711).unwrap_err().to_string().contains("user 65534"));
            let theirs = dir.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            chown(&theirs, Some(NOBODY), None).unwrap();
            let made = Folder::open(&theirs).unwrap().make_sub("feed", 0o711).unwrap();
            assert_eq!(fs::metadata(theirs.join("feed")).unwrap().uid(), NOBODY, "that user has to be able to go on with it");
            assert!(matches!(made.author(), Author::Others(_)));
        }
    }

    /// A socket's mode and group are changed on that socket, whatever has its name by then; only sockets are taken away.
    #[test]
    fn sockets_are_ours_or_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let (at, victim) = (dir.path().join("s"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
        let ways: [fn(&Path, &Path) -> io::Result<()>; 2] = [|a, b| symlink(a, b), |a, b| fs::hard_link(a, b)];
        for make in ways {
            make(&victim, &at).unwrap();
            assert!(folder.remove_socket("s").is_err() && folder.open_socket_to("s", 0o666, Some(NOBODY)).is_err());
            folder.remove("s").unwrap();
        }
        let m = fs::metadata(&victim).unwrap();
        assert_eq!((m.mode() & 0o777, m.gid() == NOBODY), (0o600, false));
        drop(std::os::unix::net::UnixDatagram::bind(folder.bind_path("s")).unwrap());
        folder.open_socket_to("s", 0o620, None).unwrap();
        assert_eq!(fs::symlink_metadata(&at).unwrap().mode() & 0o777, 0o620);
        folder.remove_socket("s").unwrap();
        folder.remove_socket("s").unwrap();
        if root("sockets_are_ours_or_left_alone, of another user") {
            let theirs = dir.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            chown(&theirs, Some(NOBODY), None).unwrap();
            let folder = Folder::open(&theirs).unwrap();
            drop(std::os::unix::net::UnixDatagram::bind(folder.bind_path("s")).unwrap());
            folder.open_socket_to("s", 0o600, Some(NOBODY)).unwrap();
            assert_eq!(fs::symlink_metadata(theirs.join("s")).unwrap().gid(), NOBODY);
            std::os::unix::fs::lchown(theirs.join("s"), Some(12_345), None).unwrap();
            assert!(folder.remove_socket("s").unwrap_err().to_string().contains("a socket of user 12345"));
        }
    }
}
