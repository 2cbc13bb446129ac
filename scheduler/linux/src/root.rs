//! Where the kernel's file systems are: "/" on a host, a temporary directory in tests.

use crate::files::{text, HostFiles, SharedFiles};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Root {
    at: PathBuf,
    /// How files below are read and changed.
    pub files: SharedFiles,
}

impl Default for Root {
    fn default() -> Self {
        Root::at("/")
    }
}

impl Root {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Root::with(path, Arc::new(HostFiles))
    }

    pub fn with(path: impl Into<PathBuf>, files: SharedFiles) -> Self {
        Root { at: path.into(), files }
    }

    /// False in tests, which have no container engine.
    pub fn is_host(&self) -> bool {
        self.at == Path::new("/")
    }

    /// `path` (absolute, as the kernel names it) below this root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let p = path.as_ref();
        self.at.join(p.strip_prefix("/").unwrap_or(p))
    }

    /// Trimmed text of a file; None where it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.files.as_ref(), self.path(path))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// In memory where there is such a folder: the kernel's files are, and a disk would be slow.
    pub(crate) fn scratch() -> tempfile::TempDir {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap()
    }

    /// A temporary directory with these files (absolute kernel paths).
    pub(crate) fn tree(files: &[(String, String)]) -> (tempfile::TempDir, Root) {
        let dir = scratch();
        let root = Root::at(dir.path());
        files.iter().for_each(|(path, text)| put(&root, path, text));
        (dir, root)
    }

    /// Write a file of such a directory, and the folders above it.
    pub(crate) fn put(root: &Root, path: &str, text: &str) {
        let p = root.path(path);
        fs::create_dir_all(p.parent().unwrap()).unwrap();
        fs::write(p, text).unwrap();
    }
}
