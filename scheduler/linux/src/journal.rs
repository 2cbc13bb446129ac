//! What was changed on this host, one JSON line a step, so that it can be given back: also after `kill -9`.
//!
//! A service's former values are on disk before the first of them is changed. An applied plan is on disk after it is in force.

use crate::cgroup::Knob;
use crate::own::{cause_and_remedy, Folder};
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use surefoot_server::{Allocation, Lease, ServerError, ServiceId};

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Entry {
    /// A service comes under control, or more of it does; `saved` is what it had before, of what is about to be set.
    Touch {
        id: ServiceId,
        #[serde(flatten)]
        former: Former,
    },
    /// Allocations in force from now on (those of the plan).
    Apply { t_ms: u64, allocations: BTreeMap<ServiceId, Allocation>, changed: Vec<ServiceId> },
    /// A service was given back or has gone.
    Release { id: ServiceId },
    /// CPUs of one service may be lent to another from now on. Single moves are not written down.
    Lease { lease: Lease },
    /// They are all back, and no more of them is lent.
    LeaseEnd { lender: ServiceId },
    /// What follows is of this boot of the host (its random boot_id).
    Boot { boot_id: String },
}

/// What a service had before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Former {
    pub target: Target,
    /// Start time of a [`Target::Pid`], clock ticks since boot: a process id alone may be another's by now. Not in old journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ticks: Option<u64>,
    /// Number of its cgroup's folder: one that was made anew has values of its own. Not in old journals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u64>,
    /// That cgroup as the kernel names it, where `saved` is of its files: whatever becomes of the target, they are here. Not in old journals,
    /// and not where an engine keeps the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// Groups of others in resctrl that some of its threads were in, below the mount point, with their ids; none named: all of them were.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<PathBuf, Vec<u32>>,
    pub saved: BTreeMap<Knob, String>,
}

impl Former {
    /// Whether `group` (see [`crate::cgroup::Cgroup::identity`]) was made since under the same name; no where either is unknown.
    pub fn is_of_another(&self, group: Option<u64>) -> bool {
        self.group.zip(group).is_some_and(|(then, now)| then != now)
    }
}

/// What was there before, of services that are still under control.
pub type Touched = BTreeMap<ServiceId, Former>;

/// What a journal says of services that are still under control.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recalled {
    pub touched: Touched,
    /// Of the last applied plans.
    pub in_force: BTreeMap<ServiceId, Allocation>,
    /// By lender.
    pub leases: BTreeMap<ServiceId, Lease>,
    /// The boot that the last line is of; None in old journals.
    pub boot_id: Option<String>,
}

/// From here on the file is written anew with what still counts, bytes.
const MOST_BYTES: u64 = 4 << 20;
/// Longest that is read: no journal of ours grows much beyond [`MOST_BYTES`].
const MOST_READ_BYTES: u64 = 64 << 20;

/// Append-only file; rewritten only when it has grown long.
#[derive(Debug)]
pub struct Journal {
    folder: Folder,
    name: String,
    file: File,
    path: PathBuf,
    bytes: u64,
    recalled: Recalled,
    /// Lines that a full disk did not take, and that are true anyhow: written with the next one.
    unwritten: Vec<u8>,
    /// A full disk has not taken everything that is known here: the file is written anew once there is room.
    behind: bool,
}

/// Whether a write failed for want of room: on the disk, of a quota, or of a file's greatest size.
pub fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        || matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

const WRITABLE: &str = "Give a state folder that can be written";

/// Makers of errors about a journal: of a cause in words, and of the kernel's.
fn errors(path: &Path) -> (impl Fn(&dyn std::fmt::Display, &str) -> ServerError + '_, impl Fn(&io::Error, &str) -> ServerError + '_) {
    let fail = move |e: &dyn std::fmt::Display, remedy: &str| ServerError::Unavailable {
        what: format!("journal {}", path.display()),
        cause: e.to_string(),
        remedy: remedy.into(),
    };
    let io = move |e: &io::Error, otherwise: &str| {
        let (cause, remedy) = cause_and_remedy(e, otherwise);
        fail(&cause, &remedy)
    };
    (fail, io)
}

impl Journal {
    /// Open for appending, and what it says is still under control.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] for a folder that cannot be written or a damaged line before the last.
    pub fn open(path: &Path) -> Result<(Self, Recalled), ServerError> {
        let (_, io) = errors(path);
        let (folder, name) = Folder::of(path).map_err(|e| io(&e, WRITABLE))?;
        Self::open_in(folder, name)
    }

    /// As [`Journal::open`], in a folder that is open: what its author was found to be holds for what is read.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_in(folder: Folder, name: &str) -> Result<(Self, Recalled), ServerError> {
        let path = folder.path().join(name);
        let (fail, io) = errors(&path);
        let content = folder.read(name, MOST_READ_BYTES).map_err(|e| io(&e, "Make it readable"))?.unwrap_or_default();
        // A line without its end was cut short by a crash: what it announces was not done, and it must not run into the next.
        let whole = content.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
        let recalled =
            replay(&content[..whole]).map_err(|e| fail(&e, "Restore it from a copy, or move it away and reset containers by hand"))?;
        let file = folder.append(name).and_then(|f| f.set_len(whole as u64).map(|()| f));
        let file = file.map_err(|e| io(&e, WRITABLE))?;
        let name = name.to_string();
        Ok((
            Journal {
                folder,
                name,
                file,
                path: path.clone(),
                bytes: whole as u64,
                recalled: recalled.clone(),
                unwritten: vec![],
                behind: false,
            },
            recalled,
        ))
    }

    /// Append and wait for the disk.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`], for instance with a full disk.
    pub fn append(&mut self, entry: &Entry) -> Result<(), ServerError> {
        self.write(entry).map_err(|e| self.failed(&e))
    }

    fn write(&mut self, entry: &Entry) -> io::Result<()> {
        if self.behind {
            self.compact()?;
        }
        let lines = [self.unwritten.as_slice(), &line(entry)?].concat();
        if let Err(e) = self.file.write_all(&lines).and_then(|()| self.file.sync_data()) {
            // Half a line must not run into the next.
            let _ = self.file.set_len(self.bytes);
            return Err(e);
        }
        self.unwritten.clear();
        self.bytes += lines.len() as u64;
        self.recalled.take(entry.clone());
        match if self.bytes > MOST_BYTES { self.compact() } else { Ok(()) } {
            // It is long, and whole.
            Err(e) if is_full(&e) => Ok(()),
            done => done,
        }
    }

    /// As [`Journal::append`], where control must go on: what a full disk does not take is known to this process all the same, and written
    /// by [`Journal::catch_up`].
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] for any other reason than a full disk.
    pub fn append_or_owe(&mut self, entry: &Entry) -> Result<(), ServerError> {
        match self.write(entry) {
            Err(e) if is_full(&e) => {
                self.behind = true;
                self.recalled.take(entry.clone());
                Ok(())
            }
            done => done.map_err(|e| self.failed(&e)),
        }
    }

    /// Whether something is known here that the disk had no room for.
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Try again to write what the disk had no room for.
    pub fn catch_up(&mut self) {
        if self.behind {
            let _ = self.compact();
        }
    }

    /// As [`Journal::append`], of what every later process finds out again: no disk is needed for it to count here.
    fn note(&mut self, entry: &Entry) -> Result<(), ServerError> {
        if self.append(entry).is_err() {
            self.unwritten.extend(line(entry).map_err(|e| self.failed(&e))?);
            self.recalled.take(entry.clone());
        }
        Ok(())
    }

    /// These services have what they had before. Where nothing else is left to know, a full disk does not keep that from being written:
    /// an empty journal says it, and to empty one takes no space.
    ///
    /// # Errors
    /// As [`Journal::append`]; the journal still knows them.
    pub fn release(&mut self, ids: &[ServiceId]) -> Result<(), ServerError> {
        let written = ids.iter().try_for_each(|id| self.append(&Entry::Release { id: id.clone() }));
        let Err(e) = written else { return Ok(()) };
        if !self.recalled.touched.keys().all(|id| ids.contains(id)) {
            return Err(e);
        }
        self.file.set_len(0).and_then(|()| self.file.sync_data()).map_err(|_| e)?;
        self.bytes = 0;
        let boot_id = self.recalled.boot_id.clone();
        self.unwritten = boot_id.iter().filter_map(|b| line(&Entry::Boot { boot_id: b.clone() }).ok()).flatten().collect();
        self.recalled = Recalled { boot_id, ..Recalled::default() };
        Ok(())
    }

    /// Only what still counts, in a file of the same name.
    fn compact(&mut self) -> io::Result<()> {
        let touched = self.recalled.touched.iter().map(|(id, former)| Entry::Touch { id: id.clone(), former: former.clone() });
        let in_force = self.recalled.in_force.clone();
        let changed = in_force.keys().cloned().collect();
        let apply = (!in_force.is_empty()).then_some(Entry::Apply { t_ms: 0, allocations: in_force, changed });
        let leases = self.recalled.leases.values().map(|lease| Entry::Lease { lease: lease.clone() });
        let boot = self.recalled.boot_id.clone().map(|boot_id| Entry::Boot { boot_id });
        let text: Vec<u8> =
            boot.into_iter().chain(touched).chain(apply).chain(leases).map(|e| line(&e)).collect::<io::Result<Vec<_>>>()?.concat();
        self.file = self.folder.replace(&self.name, &text).and_then(|()| self.folder.append(&self.name))?;
        self.bytes = text.len() as u64;
        // What is known holds these too.
        self.unwritten.clear();
        self.behind = false;
        Ok(())
    }

    /// From now on this is boot `boot_id`. With an earlier one cgroups and processes went, and what they had before with them; what a
    /// container engine keeps did not. Returns what still counts; a full disk is no reason not to.
    ///
    /// # Errors
    /// A name that is no text.
    pub fn booted(&mut self, boot_id: &str) -> Result<Recalled, ServerError> {
        if self.recalled.boot_id.as_deref() != Some(boot_id) {
            if self.recalled.boot_id.is_some() {
                let survives = |f: &Former| matches!(f.target, Target::Container(_));
                let gone = self.recalled.touched.iter().filter(|(_, f)| !survives(f)).map(|(id, _)| id.clone());
                for id in gone.collect::<Vec<_>>() {
                    self.note(&Entry::Release { id })?;
                }
                for lender in self.recalled.leases.keys().cloned().collect::<Vec<_>>() {
                    self.note(&Entry::LeaseEnd { lender })?;
                }
            }
            self.note(&Entry::Boot { boot_id: boot_id.into() })?;
        }
        Ok(self.recalled.clone())
    }

    fn failed(&self, e: &io::Error) -> ServerError {
        ServerError::Unavailable {
            what: format!("journal {}", self.path.display()),
            cause: e.to_string(),
            remedy: "Free disk space or give another state folder".into(),
        }
    }
}

/// # Errors
/// A name that is no text: JSON has no form for it.
fn line(entry: &Entry) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    Ok(line)
}

impl Recalled {
    fn take(&mut self, entry: Entry) {
        match entry {
            // The oldest values count: a service touched twice was never given back in between.
            Entry::Touch { id, former } => {
                let known = self.touched.entry(id).or_insert_with(|| Former { saved: BTreeMap::new(), ..former.clone() });
                for (knob, value) in former.saved {
                    known.saved.entry(knob).or_insert(value);
                }
                // Threads may enter it from groups of others later: each line has all that are known by then.
                if !former.threads.is_empty() {
                    known.threads = former.threads;
                }
            }
            Entry::Release { id } => {
                self.touched.remove(&id);
                self.in_force.remove(&id);
                self.leases.retain(|_, l| l.lender != id && l.borrower != id);
            }
            Entry::Lease { lease } => drop(self.leases.insert(lease.lender.clone(), lease)),
            Entry::LeaseEnd { lender } => drop(self.leases.remove(&lender)),
            Entry::Apply { allocations, .. } => self.in_force.extend(allocations),
            Entry::Boot { boot_id } => self.boot_id = Some(boot_id),
        }
    }
}

/// Services that were touched and not released, and what they held last.
///
/// # Errors
/// The number of a damaged line, and what is wrong with it.
pub fn replay(whole_lines: &[u8]) -> Result<Recalled, String> {
    let mut recalled = Recalled::default();
    for (n, line) in whole_lines.split_inclusive(|b| *b == b'\n').enumerate() {
        // What serde quotes of a damaged line may hold anything.
        let entry =
            serde_json::from_slice(line).map_err(|e| format!("line {}: {}", n + 1, e.to_string().replace(char::is_control, " ")))?;
        recalled.take(entry);
    }
    recalled.in_force.retain(|id, _| recalled.touched.contains_key(id));
    recalled.leases.retain(|_, l| recalled.touched.contains_key(&l.lender) && recalled.touched.contains_key(&l.borrower));
    Ok(recalled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{fcntl, FcntlArg, SealFlag};
    use nix::sys::memfd::{memfd_create, MFdFlags};
    use std::fs;
    use std::fs::OpenOptions;

    fn touch(id: &str, cpus: &str) -> Entry {
        let saved = BTreeMap::from([(Knob::Cpus, cpus.into())]);
        Entry::Touch {
            id: id.into(),
            former: Former {
                target: Target::Container(id.into()),
                start_ticks: None,
                group: None,
                cgroup: None,
                threads: BTreeMap::new(),
                saved,
            },
        }
    }

    /// What was touched and not released is known to the next process, with the values from before the first touch.
    #[test]
    fn the_next_process_knows_what_to_give_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let (mut j, before) = Journal::open(&path).unwrap();
        assert_eq!(before, Recalled::default());
        for e in [touch("a", "0-3"), touch("b", "0-1"), touch("a", "2"), Entry::Release { id: "b".into() }] {
            j.append(&e).unwrap();
        }
        let touched = Journal::open(&path).unwrap().1.touched;
        assert_eq!(touched.len(), 1);
        assert_eq!(touched["a"].saved[&Knob::Cpus], "0-3");
    }

    /// With another boot cgroups and processes have gone, and what they had; a container's limits have not. The same boot changes nothing.
    #[test]
    fn another_boot_ends_what_was_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let of =
            |target| Former { target, start_ticks: None, group: Some(7), cgroup: None, threads: BTreeMap::new(), saved: BTreeMap::new() };
        let open = |boot: &str| {
            let mut j = Journal::open(&path).unwrap().0;
            let r = j.booted(boot).unwrap();
            assert_eq!(Journal::open(&path).unwrap().1, r);
            (j, r.touched.into_keys().collect::<Vec<_>>())
        };
        let (mut j, none) = open("one");
        assert!(none.is_empty());
        for (id, target) in [("c", Target::Container("c".into())), ("g", Target::Cgroup("/g".into())), ("p", Target::Pid(4))] {
            j.append(&Entry::Touch { id: id.into(), former: of(target) }).unwrap();
        }
        drop(j);
        assert_eq!(open("one").1, ["c", "g", "p"]);
        assert_eq!(open("two").1, ["c"]);
        assert_eq!(open("two").1, ["c"]);
    }

    /// On a full disk a journal is read and a boot is noticed; what is released is released where nothing else is left to know, and the
    /// boot is written with the next line.
    #[test]
    fn a_full_disk_keeps_nothing_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let (mut j, _) = Journal::open(&path).unwrap();
        j.booted("one").unwrap();
        ["a", "b"].iter().for_each(|id| j.append(&touch(id, "0-3")).unwrap());
        // A file without a reader takes no write, as a full disk.
        let full = |j: &mut Journal| j.file = File::open(&path).unwrap();
        full(&mut j);
        assert!(j.release(&["a".into()]).is_err());
        assert_eq!(Journal::open(&path).unwrap().1.touched.len(), 2);
        j.file = OpenOptions::new().append(true).open(&path).unwrap();
        j.release(&["a".into()]).unwrap();
        assert!(Journal::open(&path).unwrap().1.touched.keys().eq(["b"]));
        j.release(&["b".into()]).unwrap();
        let (mut j, _) = Journal::open(&path).unwrap();
        full(&mut j);
        assert_eq!(j.booted("two").unwrap(), Recalled { boot_id: Some("two".into()), ..Recalled::default() });
        j.file = OpenOptions::new().append(true).open(&path).unwrap();
        j.append(&touch("c", "1")).unwrap();
        let known = Journal::open(&path).unwrap().1;
        assert!(known.boot_id.as_deref() == Some("two") && known.touched.keys().eq(["c"]), "{known:?}");
        // Written to no more, but emptied: as on a file system that is full.
        let mut full = sealed(&fs::read(&path).unwrap());
        std::mem::swap(&mut j.file, &mut full);
        j.release(&["c".into()]).unwrap();
        assert_eq!((j.file.metadata().unwrap().len(), &j.recalled.touched), (0, &Touched::default()));
        j.file = OpenOptions::new().append(true).open(&path).unwrap();
        j.file.set_len(0).unwrap();
        j.append(&touch("d", "1")).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.boot_id.as_deref(), Some("two"));
    }

    /// A file with this content that cannot grow.
    fn sealed(content: &[u8]) -> File {
        let mut f = File::from(memfd_create(c"full", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        f.write_all(content).unwrap();
        fcntl(&f, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        f
    }

    /// Journals from before start times were kept are read; a start time survives the way to disk and back.
    #[test]
    fn old_journals_are_read() {
        let old = r#"{"event":"touch","id":"a","target":{"pid":42},"saved":{"cpus":"0-3"}}"#;
        let touched = replay(format!("{old}\n").as_bytes()).unwrap().touched;
        let mut former = Former {
            target: Target::Pid(42),
            start_ticks: None,
            group: None,
            cgroup: None,
            threads: BTreeMap::new(),
            saved: BTreeMap::from([(Knob::Cpus, "0-3".into())]),
        };
        assert_eq!(touched["a"], former);
        former.start_ticks = Some(4711);
        let line = serde_json::to_string(&Entry::Touch { id: "a".into(), former: former.clone() }).unwrap();
        assert_eq!(replay(format!("{line}\n").as_bytes()).unwrap().touched["a"], former);
    }

    /// A line cut short by a crash is dropped and overwritten cleanly; a damaged line elsewhere is refused by number.
    #[test]
    fn cut_and_damaged_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let good = serde_json::to_string(&touch("a", "0-3")).unwrap();
        fs::write(&path, format!("{good}\n{}", &good[..20])).unwrap();
        let (mut j, recalled) = Journal::open(&path).unwrap();
        assert_eq!(recalled.touched.len(), 1);
        j.append(&touch("b", "1")).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.touched.len(), 2);
        // All but the line's end is cut short too: it was not done, and the next process must not forget what this one saw.
        fs::write(&path, &good).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1, Recalled::default());
        assert_eq!(fs::read(&path).unwrap(), b"");
        fs::write(&path, format!("{}\n{good}\n", &good[..20])).unwrap();
        let err = Journal::open(&path).unwrap_err().to_string();
        assert!(err.contains("line 1"), "{err}");
    }

    fn apply(id: &str, cores: f64) -> Entry {
        let p = surefoot_server::Platform::regular("t", 4, 1, 0, 0.0);
        let a = Allocation { quota_cores: Some(cores), ..Allocation::everything(&p) };
        Entry::Apply { t_ms: 1, allocations: BTreeMap::from([(id.into(), a)]), changed: vec![id.into()] }
    }

    /// A journal that has grown long is written anew, and says the same.
    #[test]
    fn a_long_journal_is_compacted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let (mut j, _) = Journal::open(&path).unwrap();
        for e in
            [touch("a", "0-3"), touch("b", "0-1"), apply("a", 1.0), apply("b", 2.0), Entry::Release { id: "b".into() }, apply("a", 3.0)]
        {
            j.append(&e).unwrap();
        }
        let (before, long) = (Journal::open(&path).unwrap().1, j.bytes);
        assert_eq!((before.touched.len(), before.in_force.len(), before.in_force["a"].quota_cores), (1, 1, Some(3.0)));
        j.compact().unwrap();
        assert!(j.bytes < long && j.bytes == fs::metadata(&path).unwrap().len());
        j.append(&apply("a", 4.0)).unwrap();
        let after = Journal::open(&path).unwrap().1;
        assert_eq!((after.touched, after.in_force["a"].quota_cores), (before.touched, Some(4.0)));
    }

    /// Bytes that are no text are damage, wherever they stand; a file that is refused stays as it is, and is named in one line.
    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.jsonl");
        let good = serde_json::to_string(&touch("axb", "0-3")).unwrap();
        let mut no_text = good.clone().into_bytes();
        no_text[good.find('x').unwrap()] = 0xff;
        no_text.push(b'\n');
        let no_variant = good.replace("container", "co\\ntainer") + "\n";
        for content in [no_text, no_variant.into_bytes()] {
            fs::write(&path, &content).unwrap();
            let err = Journal::open(&path).unwrap_err().to_string();
            assert!(err.contains("line 1") && !err.contains('\n'), "{err}");
            assert_eq!(fs::read(&path).unwrap(), content);
        }
    }
}
