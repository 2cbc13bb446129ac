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

/// # Errors
/// [`Error::Failed`].
pub fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "cannot be created", &e))
}
