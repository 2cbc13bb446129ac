//! The safe layout: plain writes, recorded ahead of time, that leave no service in a bad state when the daemon has gone.
//!
//! Whoever puts it in force (`surefootd reset --safe` after a crash, the actuator when its client vanishes) needs no model, no
//! policy and no knowledge of the services: only this file. LC services get everything back that they had before Surefoot
//! came; BE jobs are held at the least, because nobody is left to watch what they do to the LC services. A full reset gives
//! everything back, to BE jobs too. A list of CPUs that cannot be had whole is given back as far as it can, and named. While one is under way the layout does so as well, so that whoever puts it in force ends what was begun.

use crate::cgroup::parted;
use crate::files::{write_named, Files, HostFiles};
use crate::own::{cause_and_remedy, Folder};
pub use crate::safe_layout::{Op, SafeLayout, SafeReport};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use surefoot_server::{CpuSet, ServerError};

/// Name of the file in the state folder. It is there exactly as long as something of ours is in force.
pub const FILE: &str = "safe.json";
/// Longest that is read: thousands of services.
const MOST_BYTES: u64 = 16 << 20;

const BY_JOURNAL: &str = "Run surefootd reset, which goes by the journal";

impl Op {
    pub fn path(&self) -> &Path {
        match self {
            Op::Write { path, .. } | Op::RemoveDir { path } => path,
        }
    }

    fn list(&self) -> Option<&str> {
        match self {
            Op::Write { path, text } if path.ends_with("cpuset.cpus") || path.ends_with("cpuset.mems") => Some(text.trim_end()),
            _ => None,
        }
    }

    /// A group with processes refuses to have its list emptied.
    fn empties_a_list(&self) -> bool {
        self.list() == Some("")
    }

    /// Of a list that was refused: what the group above can give of it now, and what it lacks.
    fn what_there_is(&self) -> Option<(Op, CpuSet)> {
        let (fits, lacks) = parted(&HostFiles, self.path(), self.list()?)?;
        Some((Op::Write { path: self.path().into(), text: fits.to_string() }, lacks))
    }

    fn execute(&self, files: &dyn Files) -> io::Result<()> {
        match self {
            Op::Write { path, text } => write_named(files, path, text),
            Op::RemoveDir { path } => {
                files.remove_dir(path).map_err(|e| io::Error::new(e.kind(), format!("rmdir {}: {e}", path.display())))
            }
        }
    }
}

impl SafeLayout {
    pub fn new(ops: Vec<Op>) -> Self {
        SafeLayout { version: 1, boot_id: None, groups: BTreeMap::new(), ops }
    }

    /// Put it in force: every write is tried, whatever becomes of the others; a write that is refused is tried once more after
    /// the rest, since it may have had to wait for one of them.
    pub fn put_in_force(&self, files: &dyn Files) -> SafeReport {
        self.each(|op| if self.is_of_another(op) { Err(io::ErrorKind::NotFound.into()) } else { op.execute(files) })
    }

    /// The cgroup that it is for has gone, and another has its name.
    fn is_of_another(&self, op: &Op) -> bool {
        let then = op.path().parent().and_then(|dir| Some((dir, self.groups.get(dir)?)));
        then.is_some_and(|(dir, then)| fs::metadata(dir).is_ok_and(|m| m.ino() != *then))
    }

    /// As [`SafeLayout::put_in_force`], for whoever carries out a write in a way of its own.
    pub fn each(&self, mut execute: impl FnMut(&Op) -> io::Result<()>) -> SafeReport {
        let mut report = SafeReport::default();
        let mut again = vec![];
        for (n, op) in self.ops.iter().map(|op| (0, op)).chain(self.ops.iter().map(|op| (1, op))) {
            if n == 1 && !again.contains(&op) {
                continue;
            }
            match execute(op) {
                Ok(()) => report.done += 1,
                // It keeps the list that was written before.
                Err(e) if op.empties_a_list() && e.kind() == io::ErrorKind::StorageFull => report.done += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound || matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ESRCH)) => {
                    report.gone += 1
                }
                Err(_) if n == 0 => again.push(op),
                Err(e) => report.failed.push(match op.what_there_is() {
                    Some((part, lacks)) if execute(&part).is_ok() => {
                        format!("{e}: without {lacks}, which cannot be had now (off line, or not in the group above)")
                    }
                    _ => e.to_string(),
                }),
            }
        }
        report
    }

    /// As [`SafeLayout::save`], with the disk's own word.
    ///
    /// # Errors
    /// That of the disk.
    pub fn store(&self, file: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        Folder::of(file).and_then(|(folder, name)| folder.replace(name, &text))
    }

    /// Write it to the disk, whole or not at all.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`], for instance with a full disk.
    pub fn save(&self, file: &Path) -> Result<(), ServerError> {
        self.store(file).map_err(|e| {
            let (cause, remedy) = cause_and_remedy(&e, "Free disk space or give another state folder");
            ServerError::Unavailable { what: format!("safe layout {}", file.display()), cause, remedy }
        })
    }

    /// None where there is no such file: nothing of ours is in force.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] for a file that cannot be read or is damaged.
    pub fn load(file: &Path) -> Result<Option<Self>, ServerError> {
        match Folder::of(file) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => {
                let (cause, remedy) = cause_and_remedy(&e, BY_JOURNAL);
                Err(ServerError::Unavailable { what: format!("safe layout {}", file.display()), cause, remedy })
            }
            Ok((folder, _)) => Self::load_in(&folder),
        }
    }

    /// As [`SafeLayout::load`], in a folder that is open: what its author was found to be holds for what is read.
    ///
    /// # Errors
    /// As [`SafeLayout::load`].
    pub fn load_in(folder: &Folder) -> Result<Option<Self>, ServerError> {
        let what = format!("safe layout {}", folder.path().join(FILE).display());
        let fail = |cause: String| ServerError::Unavailable { what: what.clone(), cause, remedy: BY_JOURNAL.into() };
        match folder.read(FILE, MOST_BYTES) {
            Err(e) => {
                let (cause, remedy) = cause_and_remedy(&e, BY_JOURNAL);
                Err(ServerError::Unavailable { what, cause, remedy })
            }
            Ok(None) => Ok(None),
            Ok(Some(text)) => {
                let layout: SafeLayout = serde_json::from_slice(&text).map_err(|e| fail(e.to_string()))?;
                match layout.version {
                    1 => Ok(Some(layout)),
                    v => Err(fail(format!("version {v}, this program knows 1"))),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::HostFiles;
    use crate::testing::Faulty;
    use std::sync::Arc;

    fn write(path: &Path, text: &str) -> Op {
        Op::Write { path: path.into(), text: text.into() }
    }

    /// What is gone is skipped, what is refused once is tried again, what stays refused is named, and the rest is done.
    #[test]
    fn every_write_is_tried() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        ["a", "b"].iter().for_each(|n| fs::write(at(n), "old").unwrap());
        fs::create_dir(at("group")).unwrap();
        let layout = SafeLayout::new(vec![
            write(&at("a"), "new"),
            write(&at("b"), "new"),
            write(&at("gone/x"), "new"),
            Op::RemoveDir { path: at("group") },
            Op::RemoveDir { path: at("gone") },
        ]);
        let file = at(FILE);
        layout.save(&file).unwrap();
        let layout = SafeLayout::load(&file).unwrap().unwrap();
        let faulty = Faulty::new(Arc::new(HostFiles));
        // "a" is refused once; "b" is refused again when it is tried after the others.
        faulty.arm(BTreeMap::from([(0, libc::EBUSY), (1, libc::EIO), (6, libc::EIO)]));
        let report = layout.put_in_force(faulty.as_ref());
        assert_eq!((report.done, report.gone, report.failed.len()), (2, 2, 1), "{report:?}");
        assert!(report.failed[0].contains("/b <- \"new\""), "{report:?}");
        assert_eq!((fs::read_to_string(at("a")).unwrap(), at("group").exists()), ("new".into(), false));
    }

    /// What was recorded for a group is not put in force for another of its name.
    #[test]
    fn a_namesake_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("g");
        fs::create_dir(&group).unwrap();
        fs::write(group.join("a"), "old").unwrap();
        let groups = BTreeMap::from([(group.clone(), fs::metadata(&group).unwrap().ino())]);
        let layout = SafeLayout { groups, ..SafeLayout::new(vec![write(&group.join("a"), "new")]) };
        fs::rename(&group, dir.path().join("before")).unwrap();
        fs::create_dir(&group).unwrap();
        fs::write(group.join("a"), "its own").unwrap();
        assert_eq!(layout.put_in_force(&HostFiles), SafeReport { gone: 1, ..SafeReport::default() });
        assert_eq!(fs::read_to_string(group.join("a")).unwrap(), "its own");
        fs::remove_dir_all(&group).unwrap();
        fs::rename(dir.path().join("before"), &group).unwrap();
        assert_eq!(layout.put_in_force(&HostFiles).done, 1);
    }

    /// No file means that nothing is in force; a damaged or newer one is refused with the remedy.
    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        assert_eq!(SafeLayout::load(&file).unwrap(), None);
        for text in ["{", r#"{"version":2,"ops":[]}"#, r#"{"version":1,"ops":[{"op":"run","path":"/bin/sh"}]}"#] {
            fs::write(&file, text).unwrap();
            let e = SafeLayout::load(&file).unwrap_err().to_string();
            assert!(e.contains("safe.json") && e.contains("surefootd reset"), "{e}");
        }
    }
}
