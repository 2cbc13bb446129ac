//! Kernel files below a few folders that were opened at the start, whatever is done to the paths in between: no symbolic
//! link is followed, no mount point crossed, nothing above those folders reached.
//!
//! openat2 has the kernel see to that (Linux 5.6); older kernels get a walk, one name at a time.

use crate::files::Files;
use nix::dir::Dir;
use nix::fcntl::{openat, openat2, renameat, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::{fstat, mkdirat, Mode, SFlag};
use nix::unistd::{unlinkat, UnlinkatFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Longest file that is read: far above any that the kernel shows here.
const MAX_READ: u64 = 16 << 20;

#[derive(Debug)]
struct Place {
    dir: PathBuf,
    fd: OwnedFd,
    device: u64,
}

/// Files below open folders.
#[derive(Debug)]
pub struct Beneath {
    places: Vec<Place>,
    /// Whether the kernel has openat2.
    by_kernel: bool,
}

fn os(e: nix::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(e as i32)
}

fn error<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Beneath {
    /// # Errors
    /// The first folder that cannot be opened.
    pub fn open<'a>(dirs: impl IntoIterator<Item = &'a Path>) -> io::Result<Self> {
        let mut places = vec![];
        for dir in dirs {
            let named = |e: nix::errno::Errno| io::Error::new(os(e).kind(), format!("{}: {e}", dir.display()));
            let fd = nix::fcntl::open(dir, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(named)?;
            let device = fstat(&fd).map_err(named)?.st_dev;
            places.push(Place { dir: dir.into(), fd, device });
        }
        let mut b = Beneath { places, by_kernel: true };
        b.by_kernel = b.places.first().is_none_or(|p| b.resolve(p, Path::new("."), OFlag::O_PATH).is_ok());
        Ok(b)
    }

    /// As on a kernel without openat2.
    #[cfg(test)]
    pub fn walking(mut self) -> Self {
        self.by_kernel = false;
        self
    }

    /// Whether the kernel itself keeps lookups below the folders.
    pub fn by_kernel(&self) -> bool {
        self.by_kernel
    }

    pub fn folders(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.places.iter().map(|p| p.fd.as_fd())
    }

    /// The open folder that a path lies in, and the rest of the path.
    fn place<'a>(&self, path: &'a Path) -> io::Result<(&Place, &'a Path)> {
        let inside = self.places.iter().filter_map(|p| Some((p, path.strip_prefix(&p.dir).ok()?)));
        inside.min_by_key(|(_, rest)| rest.as_os_str().len()).map_or_else(|| error(libc::EPERM), Ok)
    }

    fn resolve(&self, place: &Place, rest: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
        if self.by_kernel {
            let never = ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV;
            let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
            return openat2(&place.fd, rest, OpenHow::new().flags(flags).resolve(never)).map_err(os);
        }
        let names: Vec<&std::ffi::OsStr> = rest.iter().collect();
        let Some((last, dirs)) = names.split_last() else { return place.fd.try_clone() };
        if names.iter().any(|n| *n == "..") || rest.is_absolute() {
            return error(libc::EPERM);
        }
        let mut at = place.fd.try_clone()?;
        for name in dirs {
            at =
                openat(&at, *name, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map_err(os)?;
            same_device(&at, place)?;
        }
        let found = openat(&at, *last, flags, Mode::empty()).map_err(os)?;
        same_device(&found, place)?;
        // O_PATH opens even a link, as itself.
        if kind(&found)? == SFlag::S_IFLNK {
            return error(libc::ELOOP);
        }
        Ok(found)
    }

    fn at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let (place, rest) = self.place(path)?;
        self.resolve(place, rest, flags)
    }

    /// The open parent of a path, and its last name.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a Path)> {
        let (place, rest) = self.place(path)?;
        let (Some(parent), Some(name)) = (rest.parent(), rest.file_name()) else { return error(libc::EPERM) };
        Ok((self.resolve(place, parent, OFlag::O_PATH | OFlag::O_DIRECTORY)?, Path::new(name)))
    }

    /// O_NONBLOCK: what is no regular file must not hold us up before we see that.
    fn file(&self, path: &Path, flags: OFlag) -> io::Result<File> {
        let fd = self.at(path, flags | OFlag::O_NONBLOCK)?;
        match kind(&fd)? {
            SFlag::S_IFREG => Ok(fd.into()),
            SFlag::S_IFDIR => error(libc::EISDIR),
            _ => error(libc::EPERM),
        }
    }
}

fn kind(fd: &OwnedFd) -> io::Result<SFlag> {
    fstat(fd).map(|s| SFlag::from_bits_truncate(s.st_mode & SFlag::S_IFMT.bits())).map_err(os)
}

fn same_device(fd: &OwnedFd, place: &Place) -> io::Result<()> {
    if fstat(fd).map_err(os)?.st_dev == place.device {
        Ok(())
    } else {
        error(libc::EXDEV)
    }
}

impl Files for Beneath {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        self.file(path, OFlag::O_RDONLY)?.take(MAX_READ + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_READ {
            return error(libc::EFBIG);
        }
        Ok(bytes)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut f = self.file(path, OFlag::O_WRONLY | OFlag::O_TRUNC)?;
        match f.write(text.as_bytes())? {
            n if n == text.len() => Ok(()),
            n => Err(io::Error::new(io::ErrorKind::WriteZero, format!("only {n} of {} bytes were taken", text.len()))),
        }
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        mkdirat(&parent, name, Mode::from_bits_truncate(0o777)).map_err(os)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        unlinkat(&parent, name, UnlinkatFlags::RemoveDir).map_err(os)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((a, name), (b, to_name)) = (self.parent(from)?, self.parent(to)?);
        renameat(&a, name, &b, to_name).map_err(os)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let fd = self.at(dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let mut names = vec![];
        for entry in Dir::from_fd(fd).map_err(os)?.iter() {
            names.push(entry.map_err(os)?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|n| n != "." && n != "..");
        names.sort();
        Ok(names)
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.at(path, OFlag::O_PATH).and_then(|fd| kind(&fd)).is_ok_and(|k| k == SFlag::S_IFDIR)
    }

    fn is_file(&self, path: &Path) -> bool {
        self.at(path, OFlag::O_PATH).and_then(|fd| kind(&fd)).is_ok_and(|k| k == SFlag::S_IFREG)
    }

    fn writable(&self, path: &Path) -> bool {
        self.file(path, OFlag::O_WRONLY).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// By the kernel and by hand: links, "..", and other file systems end in an error, with nothing changed behind them.
    #[test]
    fn nothing_leaves_the_folder() {
        for walking in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
            for d in [&inside, &outside] {
                fs::create_dir_all(d.join("sub")).unwrap();
                fs::write(d.join("sub/f"), "old").unwrap();
            }
            symlink("../out", inside.join("link")).unwrap();
            symlink("../../out/sub/f", inside.join("sub/file-link")).unwrap();
            symlink("sub", inside.join("short")).unwrap();
            nix::unistd::mkfifo(&inside.join("fifo"), Mode::S_IRWXU).unwrap();
            let mut b = Beneath::open([inside.as_path()]).unwrap();
            if walking {
                b = b.walking();
            } else if !b.by_kernel() {
                eprintln!("NOT RUN: this kernel has no openat2");
                continue;
            }
            b.write(&inside.join("sub/f"), "new").unwrap();
            assert_eq!((b.read(&inside.join("sub/f")).unwrap(), b.list(&inside.join("sub")).unwrap().len()), (b"new".to_vec(), 2));
            assert!(
                b.is_dir(&inside) && b.is_dir(&inside.join("sub")) && b.is_file(&inside.join("sub/f")) && b.writable(&inside.join("sub/f"))
            );
            for path in ["link/sub/f", "sub/file-link", "../out/sub/f", "sub/../../out/sub/f", "short/f"] {
                let p = inside.join(path);
                let e = b.write(&p, "x").unwrap_err();
                let errno = e.raw_os_error().unwrap();
                assert!([libc::ELOOP, libc::EXDEV, libc::EPERM, libc::ENOTDIR].contains(&errno), "{path}: {e}");
                assert!(b.read(&p).is_err() && !b.is_file(&p) && !b.writable(&p), "{path}");
            }
            for path in ["link/sub/new", "../out/new"] {
                assert!(b.make_dir(&inside.join(path)).is_err() && b.rename(&inside.join("sub"), &inside.join(path)).is_err(), "{path}");
            }
            assert!(b.remove_dir(&inside.join("link")).is_err() && b.remove_dir(&inside).is_err());
            // No device and no pipe, and a folder is no file: the same errno as the kernel's own.
            assert_eq!(b.write(&inside.join("fifo"), "x").unwrap_err().raw_os_error(), Some(libc::ENXIO));
            assert_eq!(b.write(&inside.join("sub"), "x").unwrap_err().raw_os_error(), Some(libc::EISDIR));
            assert_eq!(b.write(&inside.join("no"), "x").unwrap_err().raw_os_error(), Some(libc::ENOENT));
            assert_eq!(b.write(&outside.join("sub/f"), "x").unwrap_err().raw_os_error(), Some(libc::EPERM));
            assert_eq!(fs::read_to_string(outside.join("sub/f")).unwrap(), "old");
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
            b.make_dir(&inside.join("sub/new")).unwrap();
            b.rename(&inside.join("sub/new"), &inside.join("moved")).unwrap();
            b.remove_dir(&inside.join("moved")).unwrap();
        }
        // /proc is another file system than the root.
        for b in [Beneath::open([Path::new("/")]).unwrap(), Beneath::open([Path::new("/")]).unwrap().walking()] {
            assert_eq!(b.read(Path::new("/proc/self/status")).unwrap_err().raw_os_error(), Some(libc::EXDEV));
        }
    }
}
