//! Kernel files that are read at every tick: kept open, so that a reading is one system call and not five.

use crate::files::{text, SharedFiles};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The kernel makes such a file's text anew for each read at offset 0. Longer ones are read whole, as any other.
const MOST_BYTES: usize = 4096;

/// One file.
#[derive(Debug)]
pub struct Gauge {
    files: SharedFiles,
    path: PathBuf,
    open: Option<File>,
    keep: bool,
}

impl Gauge {
    /// Opened at the first reading; it need not be there yet.
    pub fn new(files: SharedFiles, path: PathBuf) -> Self {
        Gauge { files, path, open: None, keep: true }
    }

    /// Opened and closed at each reading: an open file would keep its file system from being unmounted.
    pub fn unheld(files: SharedFiles, path: PathBuf) -> Self {
        Gauge { keep: false, ..Gauge::new(files, path) }
    }

    /// What `f` finds in its trimmed text now; None where it cannot be read.
    pub fn read<T>(&mut self, f: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut buf = [0; MOST_BYTES];
        match self.fill(&mut buf) {
            Some(n) if n < MOST_BYTES => f(std::str::from_utf8(&buf[..n]).ok()?.trim()),
            _ => f(&text(self.files.as_ref(), &self.path)?),
        }
    }

    /// First number in it.
    pub fn number(&mut self) -> Option<u64> {
        self.read(|t| t.parse().ok())
    }

    /// Bytes read. One that was opened before may be that of a group which has gone and has come again since.
    fn fill(&mut self, buf: &mut [u8]) -> Option<usize> {
        if let Some(n) = self.open.as_ref().and_then(|f| f.read_at(buf, 0).ok()) {
            return Some(n);
        }
        let file = self.files.open(&self.path)?;
        let read = file.read_at(buf, 0).ok();
        self.open = Some(file).filter(|_| self.keep);
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::HostFiles;
    use std::fs;
    use std::sync::Arc;

    /// Of a file system that somebody may unmount nothing stays open between two readings; of others it does.
    #[test]
    fn what_is_not_held_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "7\n").unwrap();
        let open = || {
            let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|e| fs::read_link(e.path()).ok());
            links.filter(|l| l.starts_with(dir.path())).count()
        };
        let mut unheld = Gauge::unheld(Arc::new(HostFiles), path.clone());
        assert_eq!((unheld.number(), open(), unheld.number(), open()), (Some(7), 0, Some(7), 0));
        let mut held = Gauge::new(Arc::new(HostFiles), path.clone());
        assert_eq!((held.number(), open()), (Some(7), 1));
    }

    /// The present text each time, also of a file that came late, of one that is longer than the buffer, and of the kernel's.
    #[test]
    fn each_reading_is_of_now() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut g = Gauge::new(Arc::new(HostFiles), path.clone());
        assert_eq!(g.number(), None);
        for (text, want) in [("7\n", Some(7)), ("123456\n", Some(123_456)), ("Unavailable\n", None), ("8\n", Some(8))] {
            fs::write(&path, text).unwrap();
            assert_eq!(g.number(), want);
        }
        fs::write(&path, "x ".repeat(MOST_BYTES)).unwrap();
        assert_eq!(g.read(|t| Some(t.len())), Some(2 * MOST_BYTES - 1));
        let mut uptime = Gauge::new(Arc::new(HostFiles), "/proc/uptime".into());
        let mut next = || uptime.read(|t| t.split_once(' ')?.0.parse::<f64>().ok()).unwrap();
        let first = next();
        while next() <= first {}
    }
}
