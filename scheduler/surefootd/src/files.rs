//! Files that are whole or not there: temporary name, fsync, rename, fsync of the folder.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Ending of files that are being written; left behind by a crash, they are nobody's.
pub const TEMPORARY: &str = ".tmp";

/// Write `bytes` to `path` durably, all or nothing.
///
/// # Errors
/// [`Error::Failed`]; the temporary file is gone then, and `path` is what it was.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    put(path, |f| f.write_all(bytes))?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Let `write` fill `path`, all or nothing; durable once the folder is synced ([`sync_folder`]), which many files can share.
///
/// # Errors
/// As [`write_whole`].
pub fn put(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    let temporary = PathBuf::from(name);
    let written = (|| {
        fault::step()?;
        // What a killed run left, or somebody else put there, is not written into.
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut f = File::options().write(true).create_new(true).open(&temporary)?;
        write(&mut f)?;
        fault::cut(&f, 0)?;
        f.sync_all()?;
        fault::step()?;
        std::fs::rename(&temporary, path)?;
        fault::step()
    })();
    written.map_err(|e| {
        if !fault::dead() {
            let _ = std::fs::remove_file(&temporary);
        }
        Error::io(path, "cannot be written", &e)
    })
}

/// Open a file that is to be written anew. What is in it stays until it is emptied: whoever asked may be refused yet.
///
/// # Errors
/// [`Error::Failed`] or [`Error::BadInput`] where it cannot be opened.
pub fn open_anew(path: &Path) -> Result<File> {
    File::options().write(true).create(true).truncate(false).open(path).map_err(|e| Error::io(path, "cannot be opened", &e))
}

/// Empty a file that was opened so; a pipe or a device has nothing to be emptied of.
///
/// # Errors
/// [`Error::Failed`].
pub fn empty(path: &Path, file: &File) -> Result<()> {
    match file.metadata() {
        Ok(m) if m.is_file() => file.set_len(0).map_err(|e| Error::io(path, "cannot be written", &e)),
        _ => Ok(()),
    }
}

/// Make renames and removals in a folder durable.
///
/// # Errors
/// [`Error::Failed`].
pub fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    fault::step().and_then(|()| File::open(folder)).and_then(|f| f.sync_all()).map_err(|e| Error::io(folder, "cannot be synced", &e))
}

/// Where a process can die, for tests: after a drawn number of writes nothing more reaches the disk.
#[cfg(not(test))]
pub mod fault {
    use std::{fs::File, io::Result};

    pub fn step() -> Result<()> {
        Ok(())
    }

    pub fn cut(_: &File, _: u64) -> Result<()> {
        Ok(())
    }

    pub fn dead() -> bool {
        false
    }
}

#[cfg(test)]
pub mod fault {
    use std::cell::Cell;
    use std::fs::File;
    use std::io::{Error, Result};

    thread_local! {
        /// Steps that are left, and which share of the write that it dies in (of 256) reaches the disk. None: no fault is planned.
        static PLAN: Cell<Option<(u64, u8)>> = const { Cell::new(None) };
        /// Steps of this thread so far.
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// Die at the step after so many; None: live. Returns the steps since it was last called.
    pub fn plan(after: Option<(u64, u8)>) -> u64 {
        PLAN.set(after);
        STEPS.replace(0)
    }

    pub fn dead() -> bool {
        PLAN.get().is_some_and(|(left, _)| left == 0)
    }

    pub fn step() -> Result<()> {
        STEPS.set(STEPS.get() + 1);
        let Some((left, torn)) = PLAN.get() else { return Ok(()) };
        PLAN.set(Some((left.saturating_sub(1), torn)));
        if left <= 1 {
            return Err(Error::other("killed, as the test wants it"));
        }
        Ok(())
    }

    /// A step in the middle of a write that began at `start`.
    pub fn cut(file: &File, start: u64) -> Result<()> {
        step().inspect_err(|_| {
            if let (Ok(m), Some((_, torn))) = (file.metadata(), PLAN.get()) {
                let _ = file.set_len(start + m.len().saturating_sub(start) * u64::from(torn) / 256);
            }
        })
    }
}

/// Folders made for a result. Those that are still empty when this is dropped are removed again: nothing came of them.
#[derive(Debug)]
pub struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Make `folder` with all above it.
    ///
    /// # Errors
    /// As [`create_folder`].
    pub fn create(folder: &Path) -> Result<Self> {
        let missing = folder.ancestors().filter(|p| !p.as_os_str().is_empty() && !p.exists());
        let made = NewFolders(missing.map(Path::to_path_buf).collect());
        create_folder(folder)?;
        Ok(made)
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        // Deepest first; one that holds something refuses.
        self.0.iter().for_each(|p| drop(std::fs::remove_dir(p)));
    }
}

/// # Errors
/// [`Error::BadInput`] where a file is in the way, else [`Error::Failed`].
pub fn create_folder(folder: &Path) -> Result<()> {
    if let Some(file) = folder.ancestors().find(|p| p.exists() && !p.is_dir()) {
        let (folder, file) = (folder.display(), file.display());
        return Err(Error::BadInput(format!("{folder}: cannot be a folder, {file} is a file. Give another folder")));
    }
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "cannot be created", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in the way of a folder is named, and what is to be done.
    #[test]
    fn a_file_is_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results");
        write_whole(&file, b"x").unwrap();
        for folder in [file.clone(), file.join("a/b")] {
            let e = NewFolders::create(&folder).err().unwrap();
            let says = format!("{}: cannot be a folder, {} is a file. Give another folder", folder.display(), file.display());
            assert_eq!((e.exit_code(), e.to_string()), (2, says));
        }
    }

    /// A link in the place of the temporary file is not written through.
    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, file) = (dir.path().join("victim"), dir.path().join("out"));
        std::fs::write(&victim, b"as it was").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("out.tmp")).unwrap();
        write_whole(&file, b"new").unwrap();
        assert_eq!((std::fs::read(&victim).unwrap(), std::fs::read(&file).unwrap()), (b"as it was".to_vec(), b"new".to_vec()));
        assert!(!dir.path().join("out.tmp").exists());
    }

    /// A result that could not be written leaves no empty folder; a folder with something in it, or one that was there, stays.
    #[test]
    fn empty_folders_go() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        drop(NewFolders::create(&deep).unwrap());
        assert!(!dir.path().join("a").exists());
        std::fs::create_dir(dir.path().join("a")).unwrap();
        drop(NewFolders::create(&deep).unwrap());
        assert!(dir.path().join("a").exists() && !deep.exists());
        let made = NewFolders::create(&deep).unwrap();
        write_whole(&deep.join("file"), b"x").unwrap();
        drop(made);
        assert!(deep.join("file").exists());
    }
}
