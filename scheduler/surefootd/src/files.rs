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
        let mut f = File::create(&temporary)?;
        write(&mut f)?;
        f.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    written.map_err(|e| {
        let _ = std::fs::remove_file(&temporary);
        Error::io(path, "cannot be written", &e)
    })
}

/// Make renames and removals in a folder durable.
///
/// # Errors
/// [`Error::Failed`].
pub fn sync_folder(folder: &Path) -> Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Error::io(folder, "cannot be synced", &e))
}

/// Folders made for a result. Those that are still empty when this is dropped are removed again: nothing came of them.
#[derive(Debug)]
pub struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Make `folder` with all above it.
    ///
    /// # Errors
    /// [`Error::Failed`].
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
/// [`Error::Failed`].
pub fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "cannot be created", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

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
