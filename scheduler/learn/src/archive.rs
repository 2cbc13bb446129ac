//! A bundle as bytes: a folder, or a tar in its one byte form (docs/bundle-format.md).
//!
//! Each member's tar header is computed, not interpreted: modes, owners, times, links, long names and padding cannot differ
//! from what they must be, so there is nothing in a tar for a file system to act on, and a changed byte is found wherever it
//! is. Nothing is ever unpacked to disk.

use crate::bundle::BundleError;
use crate::manifest::MAX_FILE_BYTES;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use surefoot_io::input;

const BLOCK: usize = 512;
/// Files of a folder that are looked at.
const MAX_FILES: usize = 1024;
/// A tar beyond this is not read into memory.
const MAX_TAR_BYTES: u64 = 4 * MAX_FILE_BYTES;
const FETCH: &str = "Fetch the bundle again";

/// Read at most `limit` bytes of a plain file.
pub(crate) fn read_file(path: &Path, name: &str, limit: u64) -> Result<Vec<u8>, BundleError> {
    input::bytes(path, limit).map_err(|e| match e.kind() {
        ErrorKind::FileTooLarge => BundleError::new(name, "size", format!("is above the limit of {limit} bytes"), FETCH),
        _ => BundleError::new(name, "file", format!("cannot be read: {e}"), "Check the path and its permissions"),
    })
}

/// All files of a folder, by name relative to it. Links and unknown folders are refused.
pub(crate) fn read_folder(root: &Path) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
    let mut files = BTreeMap::new();
    let mut bytes = 0;
    for sub in ["", "models", "services"] {
        let folder = root.join(sub);
        let shown = if sub.is_empty() { root.display().to_string() } else { sub.to_string() };
        let failed = |e: std::io::Error| BundleError::new(&shown, "folder", format!("cannot be read: {e}"), FETCH);
        if !sub.is_empty() && !folder.exists() {
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
                return Err(BundleError::new(&name, "file", "is not a plain file; a bundle holds plain files only", "Remove it"));
            }
            let data = read_file(&entry.path(), &name, MAX_FILE_BYTES)?;
            bytes += data.len() as u64;
            if bytes > MAX_TAR_BYTES || files.len() == MAX_FILES {
                let problem = format!("holds more than {MAX_FILES} files, or {MAX_TAR_BYTES} bytes");
                return Err(BundleError::new(&root.display().to_string(), "size", problem, FETCH));
            }
            files.insert(name, data);
        }
    }
    Ok(files)
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
        Ok(Tar { data: read_file(path, &shown, MAX_TAR_BYTES)?, shown, at: 0 })
    }

    /// The member that must come next.
    pub(crate) fn take(&mut self, name: &str) -> Result<Vec<u8>, BundleError> {
        let at = self.at;
        let damaged = |problem: String| BundleError::new(name, "tar header", problem, FETCH);
        let head = self.data.get(at..at + BLOCK).ok_or_else(|| damaged(format!("the tar ends at byte {at}, before this member")))?;
        let digits = &head[124..135];
        let octal = digits.iter().all(|c| matches!(c, b'0'..=b'7'));
        let size = digits.iter().fold(0usize, |n, c| (n << 3) | usize::from(c & 7));
        if name.len() > 100 || !octal || head != header(name, size) {
            return Err(damaged(format!("the header at byte {at} is not the one that this member must have")));
        }
        let (start, end) = (at + BLOCK, at + BLOCK + size);
        let next = end.next_multiple_of(BLOCK);
        if size as u64 > MAX_FILE_BYTES || next > self.data.len() {
            return Err(damaged(format!("{size} bytes are announced, but the tar ends or the limit of {MAX_FILE_BYTES} comes first")));
        }
        if self.data[end..next].iter().any(|b| *b != 0) {
            return Err(BundleError::new(name, "tar padding", "is not zero", FETCH));
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
        Err(BundleError::new(&self.shown, "end of the tar", problem, FETCH))
    }
}

/// Write side, for tests only: bundles are made in the lab.
#[cfg(test)]
pub(crate) fn to_tar(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
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
