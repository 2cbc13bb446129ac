//! A bundle as bytes: a folder, or a tar in its one byte form (docs/bundle-format.md).
//!
//! Each member's tar header is computed, not interpreted: modes, owners, times, links, long names and padding cannot differ
//! from what they must be, so there is nothing in a tar for a file system to act on, and a changed byte is found wherever it
//! is. Nothing is ever unpacked to disk.

use crate::error::BundleError;
use crate::rules::{rules, Kind};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const BLOCK: usize = 512;
const FETCH: &str = "Fetch the bundle again";

/// Whether a link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

/// Read at most `limit` bytes of a plain file. A pipe or a device is refused, and never waited for.
pub(crate) fn read_file(path: &Path, name: &str, limit: u64, links: Links) -> Result<Vec<u8>, BundleError> {
    let bad = |problem: String, remedy: &str| BundleError::new(Kind::Unreadable, name, "file", problem, remedy);
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::NotFound => bad("is not there".into(), "Check the path"),
        _ => bad(format!("cannot be read: {e}"), "Check the path and its permissions"),
    };
    let flags = libc::O_NONBLOCK | if links == Links::Refuse { libc::O_NOFOLLOW } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(bad("is not a plain file".into(), "Give the file itself"));
    }
    let mut data = Vec::new();
    file.take(limit + 1).read_to_end(&mut data).map_err(failed)?;
    if data.len() as u64 > limit {
        return Err(BundleError::new(Kind::Size, name, "size", format!("is above the limit of {limit} bytes"), FETCH));
    }
    Ok(data)
}

/// A bundle as a folder: its names are known before anything is read.
pub(crate) struct Folder {
    root: PathBuf,
    pub names: BTreeSet<String>,
}

impl Folder {
    /// Names relative to the folder. Links and unknown folders are refused.
    pub(crate) fn list(root: &Path) -> Result<Self, BundleError> {
        let most = rules().limits.folder_entries;
        let mut names = BTreeSet::new();
        for sub in ["", "models", "services"] {
            let folder = root.join(sub);
            let shown = if sub.is_empty() { root.display().to_string() } else { sub.to_string() };
            let failed = |e: std::io::Error| {
                BundleError::new(Kind::Unreadable, &shown, "folder", format!("cannot be read: {e}"), "Check its permissions")
            };
            if !sub.is_empty() && folder.symlink_metadata().is_err() {
                continue;
            }
            for entry in std::fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let leaf = entry.file_name().to_string_lossy().into_owned();
                let name = if sub.is_empty() { leaf } else { format!("{sub}/{leaf}") };
                let kind = entry.file_type().map_err(failed)?;
                if kind.is_dir() && matches!(name.as_str(), "models" | "services") {
                    continue;
                }
                if !kind.is_file() {
                    let problem = "is not a plain file; a bundle holds plain files only";
                    return Err(BundleError::new(Kind::Folder, &name, "file", problem, "Remove it"));
                }
                names.insert(name);
                if names.len() > most {
                    let problem = format!("holds more than {most} files");
                    return Err(BundleError::new(Kind::Folder, &shown, "folder", problem, "Give the folder of a bundle"));
                }
            }
        }
        Ok(Folder { root: root.into(), names })
    }

    /// At most `limit` bytes of one of the names.
    pub(crate) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, BundleError> {
        if !self.names.contains(name) {
            return Err(BundleError::new(Kind::Missing, name, "file", "is missing", FETCH));
        }
        read_file(&self.root.join(name), name, limit, Links::Refuse)
    }
}

/// The one ustar header that a member of this name and size may have: mode 0644, owner 0, time 0.
fn header(name: &str, size: usize) -> [u8; BLOCK] {
    let mut h = [0u8; BLOCK];
    let mut put = |at: usize, text: &[u8]| h[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    h
}

/// Members of a tar, taken one after the other by name.
pub(crate) struct Tar {
    shown: String,
    data: Vec<u8>,
    at: usize,
}

impl Tar {
    pub(crate) fn open(path: &Path) -> Result<Self, BundleError> {
        let shown = path.display().to_string();
        Ok(Tar { data: read_file(path, &shown, rules().limits.tar_bytes, Links::Follow)?, shown, at: 0 })
    }

    /// The member that must come next, of at most `limit` bytes.
    pub(crate) fn take(&mut self, name: &str, limit: u64) -> Result<Vec<u8>, BundleError> {
        let at = self.at;
        let damaged = |problem: String| BundleError::new(Kind::Tar, name, "tar header", problem, FETCH);
        let head = self.data.get(at..at + BLOCK).ok_or_else(|| damaged(format!("the tar ends at byte {at}, before this member")))?;
        let digits = &head[124..135];
        let octal = digits.iter().all(|c| matches!(c, b'0'..=b'7'));
        let size = digits.iter().fold(0usize, |n, c| (n << 3) | usize::from(c & 7));
        if name.len() > 100 || !octal || head != header(name, size) {
            return Err(damaged(format!("the header at byte {at} is not the one that this member must have")));
        }
        let (start, end) = (at + BLOCK, at + BLOCK + size);
        let next = end.next_multiple_of(BLOCK);
        if next > self.data.len() {
            return Err(damaged(format!("{size} bytes are announced, but the tar ends first")));
        }
        if self.data[end..next].iter().any(|b| *b != 0) {
            return Err(BundleError::new(Kind::Tar, name, "tar padding", "is not zero", FETCH));
        }
        if size as u64 > limit {
            return Err(BundleError::new(Kind::Size, name, "size", format!("is above the limit of {limit} bytes"), FETCH));
        }
        self.at = next;
        Ok(self.data[start..end].to_vec())
    }

    /// Behind the last member stand two zero blocks and nothing else.
    pub(crate) fn end(&self) -> Result<(), BundleError> {
        let rest = &self.data[self.at..];
        if rest.len() == 2 * BLOCK && rest.iter().all(|b| *b == 0) {
            return Ok(());
        }
        let problem = format!("behind the last member (byte {}) want two zero blocks and nothing else", self.at);
        Err(BundleError::new(Kind::Tar, &self.shown, "end of the tar", problem, FETCH))
    }
}

/// Write side, for tests only: bundles are made in the lab.
#[cfg(test)]
pub(crate) fn to_tar(files: &std::collections::BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let first = ["manifest.json", "manifest.sig"];
    let mut out = Vec::new();
    for name in first.into_iter().chain(files.keys().map(String::as_str).filter(|n| !first.contains(n))) {
        let data = &files[name];
        out.extend_from_slice(&header(name, data.len()));
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}
