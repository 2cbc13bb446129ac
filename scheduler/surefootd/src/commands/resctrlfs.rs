//! `surefootd resctrlfs`: the stand-in for the kernel's resctrl, mounted until asked to end.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::places::profile_folders;
use crate::base::stop;
use crate::stage::virtual_target::unknown_platform;
use nix::fcntl::{open, OFlag};
use nix::mount::{umount2, MntFlags};
use nix::sys::stat::{fstat, Mode};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use surefoot_io::input::{self, KERNEL_BYTES};
use surefoot_io::out::note;
use surefoot_linux::own;
use surefoot_resctrlfs::{fuse, hardware, host, Kernel, Machine};

/// How often to look whether somebody asked to end, or unmounted it.
const LOOK: Duration = Duration::from_millis(100);

/// The option of fusermount by which a folder that is not empty may be mounted on.
const NONEMPTY: &str = "nonempty";

/// Options of resctrl, and whether files in the folder may be hidden.
fn apart(options: &str) -> (String, bool) {
    let all = || options.split(',');
    (all().filter(|o| *o != NONEMPTY).collect::<Vec<_>>().join(","), all().any(|o| o == NONEMPTY))
}

/// That nobody else can change what a mount point of root's leads to. What holds at the start holds at the end then, when it is unmounted.
fn check_way(at: &Path) -> Result<()> {
    let bad = |what: String| Error::BadInput(format!("{}: {what}", at.display()));
    let way = own::way(at, own::open_to_others()).map_err(|e| bad(e.to_string()))?;
    // Who may write in the folder itself can put files in it, which are hidden; its owner may exchange it in a folder such as /tmp.
    match way.weak.iter().find(|w| w.owner.is_some() || !w.end) {
        None => Ok(()),
        Some(w) if w.is_link() => Err(bad(format!("{w}. {}", own::LINK_REMEDY))),
        Some(w) => Err(bad(format!("{w}, who could exchange what is mounted on. Give a folder that only root can change the way to"))),
    }
}

/// Where it was mounted: by the folder above, which stays what it is, whatever has its path by then.
struct Place {
    above: OwnedFd,
    name: PathBuf,
    device: u64,
}

impl Place {
    /// Of what has just been mounted.
    fn of(whole: &Path) -> std::io::Result<Self> {
        let name = whole.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let above = open(whole.parent().unwrap_or(Path::new("/")), flags, Mode::empty())?;
        let device = fstat(own::look(&above, name)?)?.st_dev;
        Ok(Place { above, name: name.into(), device })
    }

    /// Take our mount away, and no other that lies there by now; false where another does.
    fn unmount(&self) -> std::io::Result<bool> {
        let there = own::look(&self.above, self.name.as_os_str())?;
        if fstat(&there)?.st_dev != self.device {
            return Ok(false);
        }
        // The very mount that was looked at: no name is walked again, no link followed.
        umount2(Path::new(&format!("/proc/self/fd/{}", there.as_raw_fd())), MntFlags::MNT_DETACH)?;
        Ok(true)
    }
}

/// A platform file, or the file of a platform in the profile folders.
fn platform_file(name: &str, given: Option<&Path>) -> Result<PathBuf> {
    if name.ends_with(".toml") || name.contains('/') {
        return Ok(name.into());
    }
    let mut known: Vec<PathBuf> = vec![];
    for folder in profile_folders(None, given) {
        known.extend(std::fs::read_dir(folder.join("platforms")).into_iter().flatten().flatten().map(|e| e.path()));
    }
    known.retain(|p| p.extension().is_some_and(|e| e == "toml"));
    let stem = |p: &PathBuf| p.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    // Later folders override earlier ones.
    known.iter().rev().find(|p| stem(p) == name).cloned().ok_or_else(|| {
        let names: Vec<String> = known.iter().map(stem).collect();
        unknown_platform(&format!("--platform {name}"), name, names.iter().map(String::as_str))
    })
}

/// # Errors
/// [`Error::BadInput`] for platform, kernel, options or mount point; [`Error::Failed`] where FUSE cannot be mounted.
pub fn run(args: &cli::Resctrlfs) -> Result<()> {
    if args.die_with_parent.is_some() {
        stop::die_with_parent(args.die_with_parent.filter(|p| *p != 0))?;
    }
    let at = &args.mountpoint;
    let bad = |what: &str| Error::BadInput(format!("{}: {what}", at.display()));
    if at.metadata().is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN)) {
        return Err(bad("a FUSE file system whose process was killed is still mounted there. Unmount it first: umount -l"));
    }
    if !at.is_dir() {
        return Err(Error::BadInput(format!("{}: no such folder. Make it first: mkdir -p {0}", at.display())));
    }
    let is_root = nix::unistd::geteuid().is_root();
    // Anybody else mounts by fusermount3, which looks itself.
    if is_root {
        check_way(at)?;
    }
    let there = input::text(Path::new("/proc/self/mounts"), KERNEL_BYTES).unwrap_or_default();
    let whole = at.canonicalize().unwrap_or_else(|_| at.clone());
    // As the kernel's own, which can be mounted once: a second one would hide the first.
    if there.lines().filter_map(|l| l.split(' ').nth(1)).any(|m| Path::new(m) == whole) {
        return Err(bad("something is mounted there already. Unmount it, or give another folder"));
    }
    let (options, cover) = apart(&args.options);
    let first = std::fs::read_dir(at).map_err(|e| bad(&format!("cannot be read: {e}. Give a folder of this user's")))?.flatten().next();
    if let Some(first) = first.filter(|_| !cover) {
        let what =
            format!("is not empty ({}), and what is in it would be hidden. Give an empty folder, or -o {NONEMPTY}", first.path().display());
        return Err(bad(&what));
    }
    let kernel = Kernel::parse(&args.kernel)
        .ok_or_else(|| Error::BadInput(format!("--kernel {}: is neither 6.1 nor 6.12. Write one of the two", args.kernel)))?;
    let file = platform_file(&args.platform, args.profiles.as_deref())?;
    let hw = hardware::from_platform(&file, kernel, args.vendor.into()).map_err(|e| Error::BadInput(e.to_string()))?;
    let mut machine = Machine::new(hw);
    machine.mount(&options, false).map_err(|e| {
        Error::BadInput(format!(
            "--options {}: {} (as the kernel's mount). Known: cdp; mba_MBps where the platform has MBA; debug with --kernel 6.12; {NONEMPTY}",
            args.options,
            e.name()
        ))
    })?;
    stop::install()?;
    let session = fuse::show(Arc::new(Mutex::new(machine)), Box::new(host::Proc::default()), at, false).map_err(|e| {
        Error::Failed(format!(
            "{}: cannot mount FUSE: {e}. Needs /dev/fuse (modprobe fuse) and root or fusermount3 (package fuse3)",
            at.display()
        ))
    })?;
    let place = Place::of(&whole).map_err(|e| Error::Failed(format!("{}: cannot be looked at: {e}. Unmount it", at.display())))?;
    note(&format!("surefootd: resctrl of {} at {}; Ctrl-C or umount ends it", file.display(), at.display()));
    while !stop::requested() && !session.guard.is_finished() {
        std::thread::sleep(LOOK);
    }
    // Whoever still has a file open there keeps it until closing it; nobody new gets in. Where somebody else unmounted it, another
    // may be mounted there by now.
    let done = if session.guard.is_finished() { Ok(true) } else { place.unmount() };
    match done {
        // Its right is fusermount3's, which the session asks.
        Err(_) if !is_root => drop(session),
        // The session would unmount whatever has that path by now.
        done => {
            std::mem::forget(session);
            let why = match done {
                Ok(true) => return Ok(()),
                Ok(false) => "something else is mounted over it".to_string(),
                Err(e) => e.to_string(),
            };
            return Err(Error::Failed(format!("{}: stays mounted: {why}. Unmount it: umount -l {0}", at.display())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(mountpoint: &Path, platform: &str) -> cli::Resctrlfs {
        cli::Resctrlfs {
            mountpoint: mountpoint.into(),
            platform: platform.into(),
            kernel: "6.12".into(),
            vendor: cli::Vendor::Intel,
            options: String::new(),
            profiles: Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../vserver/profiles")),
            die_with_parent: None,
        }
    }

    /// What cannot be mounted is refused before anything is: kernel, platform, options, folder.
    #[test]
    fn bad_input_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |a: &cli::Resctrlfs, words: &str| match run(a) {
            Err(e @ Error::BadInput(_)) => assert!(e.to_string().contains(words), "{e}"),
            other => panic!("{other:?}"),
        };
        refused(&args(&dir.path().join("none"), "server-1"), "no such folder");
        refused(&args(dir.path(), "sever-1"), "server-1");
        refused(&cli::Resctrlfs { kernel: "5.10".into(), ..args(dir.path(), "server-1") }, "neither 6.1 nor 6.12");
        std::fs::write(dir.path().join("mine"), "").unwrap();
        refused(&args(dir.path(), "server-1"), "mine), and what is in it would be hidden. Give an empty folder, or -o nonempty");
        // With that option the folder is no obstacle, and the next mistake is found.
        let cover = |more: &str| cli::Resctrlfs { options: format!("nonempty{more}"), ..args(dir.path(), "sever-1") };
        refused(&cover(",cdp"), "sever-1");
        assert_eq!((apart("cdp,nonempty,debug"), apart("")), (("cdp,debug".into(), true), (String::new(), false)));
        std::fs::remove_file(dir.path().join("mine")).unwrap();
        // server-1 has no MBA.
        refused(&cli::Resctrlfs { options: "mba_MBps".into(), ..args(dir.path(), "server-1") }, "EINVAL");
    }
}
