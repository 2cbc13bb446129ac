//! Trees of resctrl that are kept as one text.

use crate::root::tests::tree;
use crate::root::Root;

/// Files of a dump ("== PATH" before each text) whose paths begin so, without that beginning.
pub fn dump(text: &str, of: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = vec![];
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        match (line.strip_prefix("== "), files.last_mut()) {
            (Some(path), _) => files.push((path.into(), String::new())),
            (None, Some((_, text))) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    files.into_iter().filter_map(|(path, text)| Some((path.strip_prefix(of)?.strip_prefix('/')?.to_string(), text))).collect()
}

/// A host with all that is in a recording (`check/recording.rs`).
pub fn unpacked(text: &str) -> (tempfile::TempDir, Root) {
    let files: Vec<(String, String)> =
        ["sys", "proc"].iter().flat_map(|top| dump(text, top).into_iter().map(move |(p, t)| (format!("/{top}/{p}"), t))).collect();
    tree(&files)
}
