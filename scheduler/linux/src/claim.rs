//! Who controls what on this host: controllers with different state folders must not place services on the same CPUs, hold the same
//! cgroup or share out one resctrl without knowing of each other.
//!
//! What must hold: a lock can be held by root and by the group of the lock folder, by nobody else, or any user could keep a controller
//! from its work. So the folder is root's, and a lock is a byte of a file in it that root alone makes: whoever cannot open that file cannot
//! lock it. The kernel lets go of a lock with its holder, so nothing is left that could be stale.

use crate::own::{named, Author, Folder, Refusal};
use nix::fcntl::{fcntl, FcntlArg, Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{fchown, geteuid, Gid};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use surefoot_server::{CpuSet, ServerError};

/// Folder of the locks; `/run` is empty after a boot.
pub const FOLDER: &str = "/run/lock/surefoot";
/// A controller that was killed needs a moment until the last of its children has gone.
pub const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// Byte N is CPU N; a line of [`PID_BYTES`] for each says whose it is.
const CPUS: &str = "cpus";
/// Byte N is the cgroup whose folder has the number N.
const CGROUPS: &str = "cgroups";
/// Byte N is the resctrl mount on device N.
const RESCTRL: &str = "resctrl";
const PID_BYTES: u64 = 16;
/// Root and the folder's group.
const MODE: u32 = 0o660;

/// Bounded: whoever may hold a lock may have written anything there.
fn pid_in(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.trim().parse().ok().filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
}

fn in_use(pid: Option<u32>, path: &Path) -> io::Error {
    // What an earlier holder left may name a process that has gone.
    let pid = pid.map_or_else(|| format!("unknown: fuser -v {}", path.display()), |p| p.to_string());
    io::Error::new(io::ErrorKind::WouldBlock, format!("another Surefoot process (pid {pid}) uses it"))
}

/// Try until it is had or `patience` has gone; what is waited for is said once.
fn wait<T>(path: &Path, patience: Duration, mut get: impl FnMut() -> io::Result<Result<T, Option<u32>>>) -> io::Result<T> {
    let end = Instant::now() + patience;
    let mut told = false;
    loop {
        let busy = match get()? {
            Ok(had) => return Ok(had),
            Err(pid) => in_use(pid, path),
        };
        if Instant::now() >= end {
            return Err(busy);
        }
        if !told {
            tracing::info!("{}: waiting: {busy}", path.display());
            told = true;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The lock of a state folder, a file that says whose it is.
///
/// # Errors
/// `WouldBlock` with the holder's process id where another holds it for longer than `patience`; else why it cannot be opened.
pub fn lock_folder(folder: &Folder, patience: Duration) -> io::Result<Flock<File>> {
    const NAME: &str = "lock";
    let path = folder.path().join(NAME);
    let named = |e: io::Error| named(&path, &e);
    wait(&path, patience, || {
        // Whoever may read a file may lock it: nobody else than its owner may, or any user could keep a controller from its work.
        let file = folder.file_or_new(NAME, OFlag::O_RDWR, 0o600).map_err(named)?;
        if file.metadata()?.uid() == geteuid().as_raw() {
            let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
        }
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            // Somebody has taken it away meanwhile: locked is what nobody else can find.
            Ok(lock) if !folder.holds(NAME, &lock) => Ok(Err(None)),
            Ok(mut lock) => {
                let _ = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| write!(lock, "{}", std::process::id()));
                Ok(Ok(lock))
            }
            Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
                let mut text = vec![];
                let _ = file.rewind().and_then(|()| (&file).take(PID_BYTES).read_to_end(&mut text));
                Ok(Err(pid_in(&text)))
            }
            Err((_, e)) => Err(named(e.into())),
        }
    })
}

/// The folder of locks, as root makes it, or as root has made it.
fn lock_place(path: &Path) -> io::Result<Folder> {
    let root = geteuid().is_root();
    if root {
        match nix::unistd::mkdir(path, Mode::from_bits_truncate(0o755)) {
            // Whatever the umask: others look at it, and cannot write.
            Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755))?,
            Err(nix::errno::Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let not_used =
        |why: String| Refusal::error(format!("{why}: its locks could be anybody's"), format!("As root, run: rm -r {}", path.display()));
    let open = || {
        let meta = fs::symlink_metadata(path)?;
        if !meta.is_dir() {
            return Err(not_used("it is no folder".into()));
        }
        Folder::open(path)
    };
    let mut folder = open()?;
    if let (Author::Others(w), true) = (folder.author(), root) {
        // Earlier versions made it for everybody. It is root's: nobody else can have exchanged it.
        if w.end && w.owner.is_none() {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
            folder = open()?;
        }
    }
    match folder.author() {
        Author::Us => Ok(folder),
        Author::Others(w) => Err(not_used(w.to_string())),
    }
}

/// Whether a name is that of a lock of an earlier version: a file for each CPU and each cgroup, which nobody took away.
fn is_of_earlier_version(name: &str) -> bool {
    let number = name.strip_suffix(".lock").and_then(|n| n.strip_prefix("cpu-").or_else(|| n.strip_prefix("cgroup-")));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Take away what earlier versions left in the folder, but for what a process of theirs still holds. The folder is root's alone, so nobody
/// else has put anything there.
fn clear_earlier_versions(path: &Path) {
    if !geteuid().is_root() || lock_place(path).is_err() {
        return;
    }
    let names = fs::read_dir(path).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
    for name in names.filter(|n| is_of_earlier_version(n)) {
        let at = path.join(&name);
        let plain = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let file = fs::OpenOptions::new().read(true).custom_flags(plain.bits()).open(&at);
        let Ok(file) = file.and_then(|f| if f.metadata()?.is_file() { Ok(f) } else { Err(io::ErrorKind::InvalidInput.into()) }) else {
            continue;
        };
        if let Ok(_held) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            let _ = fs::remove_file(&at);
        }
    }
}

/// A file of locks in the folder at `path`.
fn lock_file(path: &Path, name: &str) -> io::Result<File> {
    let folder = lock_place(path).map_err(|e| named(path, &e))?;
    let named = |e: io::Error| named(&path.join(name), &e);
    match folder.shared_file(name, OFlag::O_RDWR) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && geteuid().is_root() => {
            // From a time when everybody could make files here: nobody can any more.
            folder.remove(name).map_err(named)?;
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound && geteuid().is_root() => {}
        other => return other.map_err(named),
    }
    make_lock_file(&folder, name).map_err(named)
}

/// For the folder's group, whatever the umask.
fn make_lock_file(folder: &Folder, name: &str) -> io::Result<File> {
    let file = match folder.new_file(name, OFlag::O_RDWR, MODE) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return folder.shared_file(name, OFlag::O_RDWR),
        made => made?,
    };
    if file.metadata()?.gid() != folder.group() {
        fchown(&file, None, Some(Gid::from_raw(folder.group())))?;
    }
    file.set_permissions(fs::Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Make what an unprivileged controller needs to be noticed: the folder and its files, of which `group` may hold the locks. The group of
/// a folder that has one already stays.
///
/// # Errors
/// Where root itself cannot; what is there already as it should be is not touched.
pub fn prepare(path: &Path, group: u32) -> io::Result<()> {
    let folder = lock_place(path)?;
    if folder.group() == 0 && group != 0 {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    let folder = lock_place(path)?;
    for name in [CPUS, CGROUPS, RESCTRL] {
        let found = folder.shared_file(name, OFlag::O_PATH).and_then(|f| f.metadata());
        match found {
            Ok(m) if m.gid() == folder.group() && m.mode() & 0o777 == MODE => continue,
            Ok(_) => fchown(lock_file(path, name)?, None, Some(Gid::from_raw(folder.group())))?,
            Err(_) => drop(lock_file(path, name)?),
        }
    }
    Ok(())
}

/// Take byte `at` of a file; false where another has it.
fn take(file: &File, at: u64) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (at & i64::MAX as u64) as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // Of this open file, not of the process: two claims of one process meet each other, too.
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// A lock that is held as long as this lives.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

fn hold(folder: &Path, name: &str, at: u64, patience: Duration) -> io::Result<Held> {
    let file = lock_file(folder, name)?;
    wait(&folder.join(name), patience, || Ok(if take(&file, at)? { Ok(()) } else { Err(None) }))?;
    Ok(Held { _file: file })
}

/// Claim the cgroup whose folder has this number.
///
/// # Errors
/// `WouldBlock` where another holds it for longer than `patience`; else why there is nothing to claim with.
pub fn claim_group(folder: &Path, identity: u64, patience: Duration) -> io::Result<Held> {
    hold(folder, CGROUPS, identity, patience)
}

/// Claim the classes of a resctrl, which is mounted as this device.
///
/// # Errors
/// As [`claim_group`].
pub fn claim_resctrl(folder: &Path, device: u64) -> io::Result<Held> {
    hold(folder, RESCTRL, device, Duration::ZERO)
}

/// CPUs that are ours as long as this lives.
#[derive(Debug)]
pub struct Claim {
    file: Option<File>,
    cpus: CpuSet,
}

impl Drop for Claim {
    /// The lines that say whose they are go before the locks do: a process that gets our number later holds none of them.
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let nobody = format!("{:>1$}\n", "", PID_BYTES as usize - 1);
        self.cpus.iter().for_each(|cpu| drop(file.write_all_at(nobody.as_bytes(), u64::from(cpu) * PID_BYTES)));
    }
}

/// Claim `cpus`, all or none.
///
/// # Errors
/// [`ServerError::Unavailable`] names the CPU and the process that holds it. Where `folder` cannot be used at all there is
/// nothing to claim with: that is logged, and the claim is empty.
pub fn claim(folder: &Path, cpus: CpuSet, patience: Duration) -> Result<Claim, ServerError> {
    clear_earlier_versions(folder);
    let unnoticed = |e: &io::Error| tracing::warn!("{e}: another controller of CPUs {cpus} would not be noticed");
    let file = match lock_file(folder, CPUS) {
        Ok(file) => file,
        Err(e) => {
            unnoticed(&e);
            return Ok(Claim { file: None, cpus: CpuSet::empty() });
        }
    };
    let path: PathBuf = folder.join(CPUS);
    let pid = format!("{:>1$}\n", std::process::id(), PID_BYTES as usize - 1);
    for cpu in cpus.iter() {
        let (at, slot) = (u64::from(cpu), u64::from(cpu) * PID_BYTES);
        let had = wait(&path, patience, || {
            if take(&file, at)? {
                return Ok(Ok(()));
            }
            let mut text = [0; PID_BYTES as usize];
            let n = file.read_at(&mut text, slot).unwrap_or(0);
            Ok(Err(pid_in(&text[..n])))
        });
        match had {
            Ok(()) => drop(file.write_all_at(pid.as_bytes(), slot)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(ServerError::Unavailable {
                    what: format!("CPU {cpu}"),
                    cause: format!("{e} ({})", path.display()),
                    remedy: "Stop that one, or give each its own CPUs (node.toml: cpus, sweep: --cpus)".into(),
                })
            }
            Err(e) => unnoticed(&e),
        }
    }
    Ok(Claim { file: Some(file), cpus })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    fn cpus(folder: &Path, cpus: CpuSet) -> Result<Claim, ServerError> {
        claim(folder, cpus, Duration::ZERO)
    }

    /// A folder of locks as root has made it, or as this user has, who stands in for root.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("surefoot");
        if !geteuid().is_root() {
            fs::create_dir(&at).unwrap();
            for name in [CPUS, CGROUPS, RESCTRL] {
                fs::write(at.join(name), "").unwrap();
            }
        }
        (dir, at)
    }

    /// Locks of earlier versions, a file each, go with the next claim; one that a process of theirs holds stays, and so does everything else.
    /// Of a claim that has ended no process is named.
    #[test]
    fn nothing_stale_stays() {
        if !geteuid().is_root() {
            return eprintln!("NOT RUN: nothing_stale_stays: needs root, whose the folder is");
        }
        let (_dir, folder) = place();
        drop(cpus(&folder, CpuSet::range(0, 1)).unwrap());
        assert_eq!(fs::read_to_string(folder.join(CPUS)).unwrap().trim(), "");
        for name in ["cpu-0.lock", "cgroup-12388.lock", "cgroup-7.lock", "cgroup-x.lock", "notes"] {
            fs::write(folder.join(name), "4711").unwrap();
        }
        symlink("notes", folder.join("cpu-1.lock")).unwrap();
        let held = Flock::lock(File::open(folder.join("cgroup-7.lock")).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        let left = || {
            let mut names: Vec<String> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        drop(cpus(&folder, CpuSet::range(0, 1)).unwrap());
        assert_eq!(left(), ["cgroup-7.lock", "cgroup-x.lock", "cpu-1.lock", "cpus", "notes"]);
        drop(held);
        drop(cpus(&folder, CpuSet::range(0, 1)).unwrap());
        assert_eq!(left(), ["cgroup-x.lock", "cpu-1.lock", "cpus", "notes"]);
    }

    /// Overlapping claims are refused with CPU and process, disjoint ones are not, and a claim ends with its holder.
    #[test]
    fn a_cpu_has_one_controller() {
        let (_dir, folder) = place();
        let first = cpus(&folder, CpuSet::range(0, 2)).unwrap();
        let other = cpus(&folder, CpuSet::range(2, 4)).unwrap();
        let err = cpus(&folder, CpuSet::range(1, 2)).unwrap_err().to_string();
        assert!(err.contains("CPU 1") && err.contains(&format!("pid {}", std::process::id())), "{err}");
        drop(first);
        // All or none: CPU 1 is free again after the refusal over CPU 2.
        assert!(cpus(&folder, CpuSet::range(1, 3)).is_err());
        cpus(&folder, CpuSet::range(0, 2)).unwrap();
        drop(other);
        cpus(&folder, CpuSet::range(0, 4)).unwrap();
    }

    /// Without a folder for locks nothing can be claimed, and nothing is refused.
    #[test]
    fn no_folder_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(cpus(&dir.path().join("missing/surefoot"), CpuSet::range(0, 1)).is_ok());
    }

    /// A cgroup has one controller; whoever waited for it has it next, and nobody both. A resctrl likewise.
    #[test]
    fn a_group_is_claimed_once() {
        let (_dir, folder) = place();
        let claim = |patience| claim_group(&folder, 7, patience);
        let first = claim(Duration::ZERO).unwrap();
        assert_eq!(claim(Duration::ZERO).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        claim_group(&folder, 8, Duration::ZERO).unwrap();
        let waits: Vec<_> = (0..4)
            .map(|_| {
                let at = folder.clone();
                std::thread::spawn(move || drop(claim_group(&at, 7, Duration::from_secs(60)).unwrap()))
            })
            .collect();
        drop(first);
        waits.into_iter().for_each(|w| w.join().unwrap());
        let one = claim_resctrl(&folder, 5).unwrap();
        assert!(claim_resctrl(&folder, 5).is_err() && claim_resctrl(&folder, 6).is_ok());
        drop(one);
        claim_resctrl(&folder, 5).unwrap();
    }

    const NOBODY: u32 = 65_534;

    /// The folder belongs to root: who else made it cannot lead locks elsewhere or hold them, and nothing in it is opened.
    #[test]
    fn a_folder_that_another_user_made_is_not_used() {
        if !geteuid().is_root() {
            return eprintln!("NOT RUN: a_folder_that_another_user_made_is_not_used: needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let (folder, victim) = (dir.path().join("surefoot"), dir.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(&folder).unwrap();
        for name in [CPUS, CGROUPS, RESCTRL, "cpu-0.lock", "cgroup-7.lock"] {
            symlink(&victim, folder.join(name)).unwrap();
        }
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        assert!(cpus(&folder, CpuSet::range(0, 1)).unwrap().file.is_none());
        let said = claim_group(&folder, 7, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("belongs to user 65534") && said.contains(&format!("rm -r {}", folder.display())), "{said}");
        // A link in the folder's place, to a folder that is root's.
        let link = dir.path().join("link");
        symlink(dir.path(), &link).unwrap();
        assert!(claim_resctrl(&link, 1).unwrap_err().to_string().contains("it is no folder"));
        assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), victim.metadata().unwrap().mode() & 0o777), ("precious", 0o644));
    }

    /// What an earlier version made for everybody becomes root's alone; what others had put in it is taken away unopened.
    #[test]
    fn a_folder_for_everybody_is_closed() {
        if !geteuid().is_root() {
            return eprintln!("NOT RUN: a_folder_for_everybody_is_closed: needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let (folder, victim) = (dir.path().join("surefoot"), dir.path().join("victim"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, folder.join(CPUS)).unwrap();
        fs::hard_link(&victim, folder.join(CGROUPS)).unwrap();
        nix::unistd::mkfifo(&folder.join(RESCTRL), Mode::S_IRWXU).unwrap();
        let held = cpus(&folder, CpuSet::range(0, 1)).unwrap();
        assert!(held.file.is_some() && cpus(&folder, CpuSet::range(0, 1)).is_err());
        claim_group(&folder, 7, Duration::ZERO).unwrap();
        claim_resctrl(&folder, 7).unwrap();
        let mode = |p: &Path| p.symlink_metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode(&folder), mode(&folder.join(CPUS)), mode(&folder.join(CGROUPS))), (0o755, 0o660, 0o660));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    /// The group that root gives the folder to may hold the locks with root; nobody else can even open their files.
    #[test]
    fn a_group_may_take_part() {
        if !geteuid().is_root() {
            return eprintln!("NOT RUN: a_group_may_take_part: needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let folder = dir.path().join("surefoot");
        prepare(&folder, NOBODY).unwrap();
        // Whoever is in the group keeps it, and what root makes later is for it as well.
        prepare(&folder, 12_345).unwrap();
        fs::remove_file(folder.join(CGROUPS)).unwrap();
        claim_group(&folder, 1, Duration::ZERO).unwrap();
        for name in [CPUS, CGROUPS, RESCTRL] {
            let m = folder.join(name).metadata().unwrap();
            assert_eq!((m.uid(), m.gid(), m.mode() & 0o777), (0, NOBODY, 0o660), "{name}");
        }
        let root = cpus(&folder, CpuSet::range(0, 1)).unwrap();
        // As another user; by threads of their own, whose user is not that of the process.
        let as_user = |uid: u32, gid: u32, what: &(dyn Fn() + Sync)| {
            std::thread::scope(|s| {
                #[allow(unsafe_code, reason = "another user for one thread alone")]
                let run = || {
                    // SAFETY: raw calls change this thread alone; it ends with the scope.
                    unsafe {
                        assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
                        assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
                        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
                    }
                    what();
                };
                s.spawn(run).join().unwrap();
            });
        };
        as_user(NOBODY, NOBODY, &|| {
            let said = cpus(&folder, CpuSet::range(0, 2)).unwrap_err().to_string();
            assert!(said.contains("CPU 0") && said.contains(&format!("pid {}", std::process::id())), "{said}");
            let own = cpus(&folder, CpuSet::range(1, 2)).unwrap();
            assert!(own.file.is_some() && claim_group(&folder, 2, Duration::ZERO).is_ok());
            assert!(fs::write(folder.join("new"), "").is_err() && fs::remove_file(folder.join(CPUS)).is_err());
        });
        as_user(12_345, 12_345, &|| {
            assert!(cpus(&folder, CpuSet::range(0, 1)).unwrap().file.is_none());
            assert!(File::open(folder.join(CPUS)).is_err());
        });
        drop(root);
    }

    /// The lock of a state folder: one holder, who is named; a file that is left of one who has gone is no obstacle, whatever it says, and
    /// nobody but its owner can open it.
    #[test]
    fn a_state_folder_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        for stale in [None, Some("999999999"), Some("../../etc"), Some("\u{1b}[2J"), Some("")] {
            if let Some(text) = stale {
                fs::write(dir.path().join("lock"), text).unwrap();
            }
            let held = lock_folder(&folder, Duration::ZERO).unwrap();
            let said = lock_folder(&folder, Duration::ZERO).unwrap_err();
            assert!(
                said.kind() == io::ErrorKind::WouldBlock && said.to_string().contains(&format!("pid {}", std::process::id())),
                "{said}"
            );
            assert_eq!(fs::metadata(dir.path().join("lock")).unwrap().mode() & 0o777, 0o600);
            drop(held);
        }
        fs::write(dir.path().join("lock"), "\u{1b}[2J").unwrap();
        let other = Flock::lock(File::open(dir.path().join("lock")).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
        let said = lock_folder(&folder, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("fuser -v") && !said.contains('\u{1b}'), "{said}");
        drop(other);
    }
}
