//! Where the kernel's file systems are: "/" on a host, a temporary directory in tests.

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Root(PathBuf::from("/"))
    }
}

impl Root {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Root(path.into())
    }

    /// False in tests, which have no container engine.
    pub fn is_host(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// `path` (absolute, as the kernel names it) below this root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let p = path.as_ref();
        self.0.join(p.strip_prefix("/").unwrap_or(p))
    }

    /// Trimmed text of a file; None where it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        read(self.path(path))
    }
}

/// Trimmed text of a file; None where it cannot be read.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

/// First number in a file of one number; None for anything else ("max", "Unavailable").
pub fn read_u64(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.parse().ok()
}

/// Value of `key` in a file of "key value" lines.
pub fn read_key(path: impl AsRef<Path>, key: &str) -> Option<u64> {
    read(path)?.lines().find_map(|l| l.strip_prefix(key)?.trim().parse().ok())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A temporary directory with these files (absolute kernel paths).
    pub(crate) fn tree(files: &[(String, String)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        for (path, text) in files {
            let p = root.path(path);
            fs::create_dir_all(p.parent().unwrap()).unwrap();
            fs::write(p, text).unwrap();
        }
        (dir, root)
    }
}
