//! One writer a file: who comes second is refused, and told who is there.

use crate::base::error::{Error, Result};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use surefoot_io::input;

/// The kernel's list of locks.
const LOCKS: &str = "/proc/locks";

/// Have a plain file alone for as long as what is returned lives; others (pipes, devices) are whose they are.
///
/// # Errors
/// [`Error::Failed`] where another process has it.
pub fn alone(path: &Path, file: File) -> Result<Held> {
    if !file.metadata().is_ok_and(|m| m.is_file()) {
        return Ok(Held::Shared(file));
    }
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(f) => Ok(Held::Alone(f)),
        Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
            let who = holder(&file).unwrap_or_else(|| "another process".into());
            Err(Error::Failed(format!("{}: {who} writes there. Stop it, or give another file", path.display())))
        }
        // A file system without locks has no second writer that could be told of.
        Err((file, _)) => Ok(Held::Shared(file)),
    }
}

/// An open file, and whether it is ours alone.
#[derive(Debug)]
pub enum Held {
    Alone(Flock<File>),
    Shared(File),
}

impl std::ops::Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Held::Alone(f) => f,
            Held::Shared(f) => f,
        }
    }
}

/// Name and number of the process that has a file locked; None where that cannot be told (another process namespace).
fn holder(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let locks = input::text(Path::new(LOCKS), input::KERNEL_BYTES).ok()?;
    let pid = holder_in(&locks, meta.dev(), meta.ino())?;
    let name = input::text(Path::new(&format!("/proc/{pid}/comm")), input::KERNEL_BYTES).unwrap_or_default();
    Some(format!("{} (pid {pid})", if name.trim().is_empty() { "a process" } else { name.trim() }))
}

/// In lines such as `1: FLOCK  ADVISORY  WRITE 4242 fd:01:1234 0 EOF`.
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let wanted = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    locks.lines().find_map(|l| {
        let words: Vec<&str> = l.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&wanted.as_str())).then(|| words[4].parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who holds a file is found by its device and number; waiting processes ("->") and other files are not it.
    #[test]
    fn the_holder_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 1 fd:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 4242 fd:01:77 0 EOF\n2: -> FLOCK  ADVISORY  WRITE 9 fd:01:77 0 EOF\n";
        let device = libc::makedev(0xfd, 1);
        assert_eq!(holder_in(locks, device, 77), Some(4242));
        assert_eq!(holder_in(locks, device, 78), None);
        assert_eq!(holder_in("2: FLOCK", device, 77), None);
    }

    /// The second writer hears the name and the number of the first; when that has gone, the file is to be had.
    #[test]
    fn a_file_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let first = alone(&path, open()).unwrap();
        let e = alone(&path, open()).unwrap_err();
        let says = e.to_string();
        assert!(e.exit_code() == 1 && says.contains(&format!("(pid {}) writes there", std::process::id())), "{says}");
        drop(first);
        alone(&path, open()).unwrap();
    }
}
