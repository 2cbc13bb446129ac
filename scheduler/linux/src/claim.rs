//! Who controls which CPUs of this host: one lock a CPU, so that two controllers with different state folders do not place
//! services on the same CPUs without knowing of each other.

use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use surefoot_server::{CpuSet, ServerError};

/// Folder of the locks; `/run` is empty after a boot.
pub const FOLDER: &str = "/run/lock/surefoot";
/// A controller that was killed needs a moment until the last of its children has gone.
pub const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// A locked file, which says whose it is.
///
/// # Errors
/// `WouldBlock` with the holder's process id where another holds it for longer than `patience`; else why it cannot be opened.
pub fn lock_file(path: &Path, patience: Duration) -> io::Result<Flock<File>> {
    let end = Instant::now() + patience;
    // Whoever may read a file may lock it: nobody else than its owner may, or any user could keep a controller from its work.
    let open = |new: bool| OpenOptions::new().read(true).write(true).create_new(new).mode(0o600).open(path);
    // One that is there is opened as it is: in a folder for everybody the kernel lets not even root "create" another's file.
    let either = || match open(false) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => open(true).or_else(|_| open(false)),
        other => other,
    };
    let mut file = either()?;
    let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
    let mut told = false;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Its last holder has removed it meanwhile: locked is what nobody else can find.
            Ok(lock) if !is_at(&lock, path) => file = either()?,
            Ok(mut lock) => {
                let _ = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| write!(lock, "{}", std::process::id()));
                return Ok(lock);
            }
            Err((f, nix::errno::Errno::EWOULDBLOCK)) => {
                file = f;
                let mut pid = String::new();
                let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
                // What an earlier holder left may name a process that has gone.
                let lives = !pid.trim().is_empty() && Path::new("/proc").join(pid.trim()).exists();
                let pid = if lives { pid.trim().to_string() } else { format!("unknown: fuser -v {}", path.display()) };
                if Instant::now() >= end {
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("another Surefoot process (pid {pid}) uses it")));
                }
                if !told {
                    tracing::info!("{}: waiting for another Surefoot process (pid {pid})", path.display());
                    told = true;
                }
                std::thread::sleep(PAUSE);
            }
            Err((_, e)) => return Err(e.into()),
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let number = |m: fs::Metadata| (m.dev(), m.ino());
    file.metadata().map(number).ok().zip(fs::metadata(path).map(number).ok()).is_some_and(|(a, b)| a == b)
}

/// A cgroup that is ours as long as this lives; its file goes with it, since there are ever new ones.
#[derive(Debug)]
pub struct GroupClaim {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Drop for GroupClaim {
    fn drop(&mut self) {
        // Still locked.
        let _ = fs::remove_file(&self.path);
    }
}

/// Claim the cgroup with this identity.
///
/// # Errors
/// As [`lock_file`].
pub fn claim_group(folder: &Path, identity: u64, patience: Duration) -> io::Result<GroupClaim> {
    make_folder(folder)?;
    let path = folder.join(format!("cgroup-{identity}.lock"));
    let lock = lock_file(&path, patience)?;
    Ok(GroupClaim { path, _lock: lock })
}

/// CPUs that are ours as long as this lives.
#[derive(Debug)]
pub struct Claim {
    _locks: Vec<Flock<File>>,
}

/// Claim `cpus`, all or none.
///
/// # Errors
/// [`ServerError::Unavailable`] names the CPU and the process that holds it. Where `folder` cannot be used at all there is
/// nothing to claim with: that is logged, and the claim is empty.
pub fn claim(folder: &Path, cpus: CpuSet, patience: Duration) -> Result<Claim, ServerError> {
    let mut locks = vec![];
    if let Err(e) = make_folder(folder) {
        tracing::warn!("{}: {e}: another controller of CPUs {cpus} would not be noticed", folder.display());
        return Ok(Claim { _locks: locks });
    }
    for cpu in cpus.iter() {
        let path: PathBuf = folder.join(format!("cpu-{cpu}.lock"));
        match lock_file(&path, patience) {
            Ok(l) => locks.push(l),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(ServerError::Unavailable {
                    what: format!("CPU {cpu}"),
                    cause: format!("{e} ({})", path.display()),
                    remedy: "Stop that one, or give each its own CPUs (node.toml: cpus, sweep: --cpus)".into(),
                })
            }
            Err(e) => tracing::warn!("{}: {e}: another controller of CPU {cpu} would not be noticed", path.display()),
        }
    }
    Ok(Claim { _locks: locks })
}

/// As /tmp: everybody may put locks there, nobody may remove another's.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => fs::set_permissions(folder, fs::Permissions::from_mode(0o1777)),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Overlapping claims are refused with CPU and process, disjoint ones are not, and a claim ends with its holder.
    #[test]
    fn a_cpu_has_one_controller() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("surefoot");
        let first = claim(&folder, CpuSet::range(0, 2), Duration::ZERO).unwrap();
        let other = claim(&folder, CpuSet::range(2, 4), Duration::ZERO).unwrap();
        let err = claim(&folder, CpuSet::range(1, 2), Duration::ZERO).unwrap_err().to_string();
        assert!(err.contains("CPU 1") && err.contains(&format!("pid {}", std::process::id())), "{err}");
        drop(first);
        // All or none: CPU 1 is free again after the refusal over CPU 2.
        assert!(claim(&folder, CpuSet::range(1, 3), Duration::ZERO).is_err());
        claim(&folder, CpuSet::range(0, 2), Duration::ZERO).unwrap();
        drop(other);
        claim(&folder, CpuSet::range(0, 4), Duration::ZERO).unwrap();
    }

    /// Without a folder for locks nothing can be claimed, and nothing is refused.
    #[test]
    fn no_folder_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(claim(&dir.path().join("missing/surefoot"), CpuSet::range(0, 1), Duration::ZERO).is_ok());
    }

    /// A claim of a cgroup leaves no file; whoever waited for it has the next one, and nobody both.
    #[test]
    fn a_group_is_claimed_once() {
        let dir = tempfile::tempdir().unwrap();
        let claim = |patience| claim_group(dir.path(), 7, patience);
        let first = claim(Duration::ZERO).unwrap();
        assert_eq!(claim(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let waits: Vec<_> = (0..4)
            .map(|_| {
                let at = dir.path().to_path_buf();
                std::thread::spawn(move || drop(claim_group(&at, 7, Duration::from_secs(60)).unwrap()))
            })
            .collect();
        drop(first);
        waits.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
