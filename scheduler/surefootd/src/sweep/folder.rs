//! The folder of a sweep: whose it is, and where things are in it.

use crate::base::error::{Error, Result};
use crate::base::files;
use nix::fcntl::{Flock, FlockArg, OFlag};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use surefoot_io::input;
use surefoot_linux::own;

pub const MANIFEST: &str = "manifest.json";

pub const JOURNAL: &str = "journal.jsonl";

pub const SHARDS: &str = "shards";

const LOCK: &str = ".lock";

/// Longest text of a process id.
const PID_BYTES: u64 = 16;

/// The folder of a sweep, locked.
pub struct Folder {
    pub dir: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    pub fn manifest(&self) -> PathBuf {
        self.dir.join(MANIFEST)
    }

    pub fn journal(&self) -> PathBuf {
        self.dir.join(JOURNAL)
    }

    pub fn shards(&self) -> PathBuf {
        self.dir.join(SHARDS)
    }

    pub fn lock(dir: &Path) -> Result<Self> {
        files::create_folder(dir)?;
        if is_of_others(dir).map_err(|e| Error::io(dir, "cannot be read", &e))? {
            let dir = dir.display();
            return Err(Error::BadInput(format!("--out {dir}: is not empty and holds no campaign. Give another folder")));
        }
        check_own(dir)?;
        let path = dir.join(LOCK);
        let opened = own::Folder::for_results(dir).and_then(|folder| folder.file_or_new(LOCK, OFlag::O_RDWR, 0o644));
        let file = opened.map_err(|e| files::own_error(&path, "cannot be opened", &e))?;
        let head = files::head(&file).map_err(|e| Error::io(&path, "cannot be read", &e))?;
        // A process id, or nothing yet.
        if head.len() as u64 > PID_BYTES || !head.trim_ascii().iter().all(u8::is_ascii_digit) {
            let path = path.display();
            return Err(Error::BadInput(format!("{path}: is there and no lock of a sweep, so it stays as it is. Give another --out")));
        }
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, e)| {
            let pid = input::all(&file, PID_BYTES).ok().and_then(|b| String::from_utf8(b).ok()).unwrap_or_default();
            let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
            Error::Failed(format!(
                "{}: another sweep (pid {pid}) is writing here ({e}). Wait for it, stop it, or use another --out",
                dir.display()
            ))
        })?;
        // The pid is for that message only; a full disk must not stop a resume here.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| lock.write_all(std::process::id().to_string().as_bytes()));
        Ok(Folder { dir: dir.into(), _lock: lock })
    }
}

/// That no file of the data set is others' too: what is appended to a file that DVC linked is appended to the version in DVC's cache.
fn check_own(dir: &Path) -> Result<()> {
    let is_shared = |p: &PathBuf| p.symlink_metadata().is_ok_and(|m| m.is_symlink() || m.is_file() && m.nlink() > 1);
    let shards = dir.join(SHARDS).read_dir().into_iter().flatten().flatten().map(|e| e.path());
    match [dir.join(MANIFEST), dir.join(JOURNAL)].into_iter().chain(shards).find(is_shared) {
        None => Ok(()),
        Some(path) => Err(Error::BadInput(format!(
            "{}: is a link, or a file of more names (hard links): going on would change what else they lead to, e.g. a version in DVC's cache. \
             Give the folder files of its own: dvc unprotect it, as `dvc add` was given it; without DVC: cp -rL to a new folder",
            path.display()
        ))),
    }
}

/// Whether a folder has something in it that no sweep left: without a manifest a sweep had not begun, and one that a kill ended before that
/// left nothing but its lock and empty places. What a lost manifest means is said with the journal.
fn is_of_others(dir: &Path) -> std::io::Result<bool> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    if is_there(MANIFEST) || dir.join(JOURNAL).metadata().is_ok_and(|m| m.len() > 0) {
        return Ok(false);
    }
    let half_written = format!("{MANIFEST}{}", files::TEMPORARY);
    for entry in dir.read_dir()? {
        let entry = entry?;
        let empty = || entry.path().read_dir().is_ok_and(|mut d| d.next().is_none());
        match entry.file_name().to_str() {
            Some(LOCK | JOURNAL) => {}
            Some(SHARDS) if empty() => {}
            Some(n) if n == half_written => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}
