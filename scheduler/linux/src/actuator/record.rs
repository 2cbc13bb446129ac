//! What the files of cgroups had before the first write through this process, and which groups of resctrl were made through it: on disk
//! before the write, so that a client can neither forget nor falsify it.
//!
//! An entry leaves when the file has its former value again and no layout of the client speaks of it, or when its cgroup has gone. Whatever
//! is still here when the client is gone is put back ([`Record::put_back`]), but for BE jobs that may be held at less.

use crate::cgroup::{Cgroup, Knob, Mounts, Version};
use crate::files::SharedFiles;
use crate::root::Root;
use crate::safe::SafeReport;
use nix::fcntl::{openat, renameat, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{unlinkat, UnlinkatFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Name of the record in the actuator's state folder.
pub const NAME: &str = "former-values";
const NEW: &str = "former-values.new";
/// Values that are known at a time: thousands of cgroups.
const MOST: usize = 16 << 10;
/// Longest file that is read, bytes.
const MOST_BYTES: u64 = 16 << 20;
/// Lines beyond those that count, before the file is written anew.
const MOST_STALE: usize = 1024;

/// One knob of one folder of a hierarchy. Partitions come first: while one has CPUs for itself no other can have them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub knob: Knob,
    pub dir: PathBuf,
}

/// What it had.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Was {
    /// Number of the folder: one that was made anew under its name has values of its own.
    group: u64,
    value: String,
}

/// The knob that a file of a cgroup is (a part of), and the group as far as that file goes.
pub fn knob_of(path: &Path, files: &SharedFiles, mounts: &Mounts) -> Option<(Key, Cgroup)> {
    let (dir, file) = (path.parent()?, path.file_name()?.to_str()?);
    let knob = match file {
        "cpuset.cpus" => Knob::Cpus,
        "cpuset.mems" => Knob::Mems,
        "cpuset.cpus.partition" => Knob::Partition,
        "cpu.max" | "cpu.cfs_quota_us" | "cpu.cfs_period_us" => Knob::Quota,
        "cpu.weight" | "cpu.shares" => Knob::Weight,
        "memory.max" | "memory.limit_in_bytes" => Knob::Memory,
        "memory.high" => Knob::High,
        "memory.zswap.max" => Knob::Zswap,
        _ => return None,
    };
    let group = group_of(dir, files, mounts);
    Some((Key { knob, dir: dir.into() }, group))
}

fn group_of(dir: &Path, files: &SharedFiles, mounts: &Mounts) -> Cgroup {
    let v1 = ["cpu", "cpuset", "memory"].iter().filter_map(|c| mounts.dir(c)).any(|m| dir.starts_with(m));
    Cgroup::of_folder(files.clone(), mounts, if v1 { Version::V1 } else { Version::V2 }, dir)
}

/// Values and groups.
#[derive(Debug)]
pub struct Record {
    dir: OwnedFd,
    boot: String,
    files: SharedFiles,
    /// Where mounts are read anew.
    root: Root,
    mounts: Mounts,
    was: BTreeMap<Key, Was>,
    /// Groups of resctrl that were made through this process.
    made: BTreeSet<PathBuf>,
    /// Known to be changed, but not what they had: an earlier release kept no record.
    unknown: BTreeSet<Key>,
    lines: usize,
}

impl Record {
    /// With what an actuator of the same boot recorded. `dir` is the state folder; `files` reads and changes kernel files; `root` is where /proc
    /// is.
    ///
    /// # Errors
    /// Of the disk; `InvalidData` for a damaged record.
    pub fn open(dir: OwnedFd, boot: &str, files: SharedFiles, root: Root) -> io::Result<Self> {
        let mut r = Record {
            dir,
            boot: boot.trim().into(),
            files,
            mounts: Mounts::read(&root),
            root,
            was: BTreeMap::new(),
            made: BTreeSet::new(),
            unknown: BTreeSet::new(),
            lines: 0,
        };
        let mut text = String::new();
        match r.file(NAME, OFlag::O_RDONLY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
            Ok(f) => drop(f.take(MOST_BYTES).read_to_string(&mut text)?),
        }
        r.replay(&text)?;
        Ok(r)
    }

    /// True where an earlier actuator of this boot wrote one.
    pub fn is_new(&self) -> bool {
        self.lines == 0
    }

    /// True with nothing to put back.
    pub fn is_empty(&self) -> bool {
        self.was.is_empty() && self.made.is_empty()
    }

    pub fn len(&self) -> usize {
        self.was.len()
    }

    /// Whether what it had is known.
    pub fn knows(&self, key: &Key) -> bool {
        self.was.contains_key(key)
    }

    pub fn is_unknown(&self, key: &Key) -> bool {
        self.unknown.contains(key)
    }

    /// These were changed before there was a record.
    ///
    /// # Errors
    /// Of the disk.
    pub fn changed_before(&mut self, keys: impl Iterator<Item = Key>, groups: impl Iterator<Item = PathBuf>) -> io::Result<()> {
        self.unknown.extend(keys);
        self.made.extend(groups);
        self.rewrite()
    }

    fn file(&self, name: &str, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        Ok(openat(&self.dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?.into())
    }

    /// A line cut short by a crash speaks of a write that was not made.
    fn replay(&mut self, text: &str) -> io::Result<()> {
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let mut lines = whole.lines();
        if lines.next().is_none_or(|l| l.strip_prefix("boot\t") != Some(&self.boot)) {
            return Ok(());
        }
        self.lines = 1;
        for line in lines {
            self.lines += 1;
            let fields: Vec<&str> = line.split('\t').collect();
            let key = |path: &str| knob_of(Path::new(path), &self.files, &self.mounts).map(|k| k.0);
            let taken = match fields.as_slice() {
                ["=", path, group, value] => key(path).zip(group.parse().ok()).map(|(key, group)| {
                    self.was.insert(key, Was { group, value: (*value).into() });
                }),
                ["?", path] => key(path).map(|key| {
                    self.unknown.insert(key);
                }),
                ["made", path] => {
                    self.made.insert(path.into());
                    Some(())
                }
                ["gone", path] => {
                    self.made.retain(|m| !m.starts_with(path));
                    Some(())
                }
                _ => None,
            };
            if taken.is_none() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{NAME}: line {} is damaged", self.lines)));
            }
        }
        Ok(())
    }

    /// The file that stands for a knob in the record; None where the folder has gone.
    fn path(&self, key: &Key) -> Option<String> {
        let path = group_of(&key.dir, &self.files, &self.mounts).file(key.knob)?;
        path.to_str().filter(|p| !p.contains(['\t', '\n'])).map(str::to_string)
    }

    fn line_of(&self, key: &Key, was: &Was) -> Option<String> {
        Some(format!("=\t{}\t{}\t{}\n", self.path(key)?, was.group, was.value)).filter(|_| !was.value.contains(['\t', '\n']))
    }

    /// `sync`: before what it speaks of is done. Else a power cut may lose it, with which it is void anyhow.
    fn append(&mut self, line: &str, sync: bool) -> io::Result<()> {
        if self.is_new() || self.lines > self.was.len() + self.made.len() + self.unknown.len() + MOST_STALE {
            self.rewrite()?;
        }
        let open = |r: &Self| r.file(NAME, OFlag::O_WRONLY | OFlag::O_APPEND);
        let mut f = match open(self) {
            // Somebody with more rights has put everything back meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.rewrite().and_then(|()| open(self))?,
            other => other?,
        };
        let before = f.metadata()?.len();
        if let Err(e) = f.write_all(line.as_bytes()).and_then(|()| if sync { f.sync_data() } else { Ok(()) }) {
            let _ = f.set_len(before);
            return Err(e);
        }
        self.lines += 1;
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let _ = unlinkat(&self.dir, NEW, UnlinkatFlags::NoRemoveDir);
        let mut text = format!("boot\t{}\n", self.boot);
        // Those whose folder has gone have nothing to get back.
        text.extend(self.was.iter().filter_map(|(key, was)| self.line_of(key, was)));
        text.extend(self.unknown.iter().filter_map(|key| Some(format!("?\t{}\n", self.path(key)?))));
        text.extend(self.made.iter().filter_map(|p| Some(format!("made\t{}\n", p.to_str()?))));
        let mut f = self.file(NEW, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
        f.write_all(text.as_bytes())?;
        f.sync_all()?;
        renameat(&self.dir, NEW, &self.dir, NAME)?;
        nix::unistd::fsync(&self.dir)?;
        self.lines = text.lines().count();
        Ok(())
    }

    /// Before a write to a file of `group`: what it has is on disk, once. Cheap for those that are known.
    ///
    /// # Errors
    /// Of the disk, `StorageFull` where too much is known, `NotFound` for what cannot be read: then nothing must be written.
    pub fn before(&mut self, key: &Key, group: &Cgroup) -> io::Result<()> {
        let now = group.identity();
        match (self.was.get(key), now) {
            (Some(was), Some(now)) if was.group == now => return Ok(()),
            (None, _) if self.unknown.contains(key) => return Ok(()),
            _ => {}
        }
        let known = || now.zip(group.get(key.knob)).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT));
        let (now, value) = if self.was.contains_key(key) && now.is_none() { return Ok(()) } else { known()? };
        if self.was.len() >= MOST {
            self.drop_gone();
            if self.was.len() >= MOST {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
        }
        let was = Was { group: now, value };
        let line = self.line_of(key, &was).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.append(&line, true)?;
        self.was.insert(key.clone(), was);
        Ok(())
    }

    /// What it had, in the words of [`Knob`]; None where that is not known.
    pub fn former(&self, key: &Key) -> Option<&str> {
        self.was.get(key).map(|was| was.value.as_str())
    }

    /// A group of resctrl was made (before it is), or removed (after it was).
    ///
    /// # Errors
    /// Of the disk; for one that was removed there is none.
    pub fn group(&mut self, path: &Path, made: bool) -> io::Result<()> {
        if made == self.made.contains(path) {
            return Ok(());
        }
        let word = if made { "made" } else { "gone" };
        let written = self.append(&format!("{word}\t{}\n", path.display()), false);
        if made {
            written?;
            self.made.insert(path.into());
        } else {
            // With a control group go the monitoring groups in it.
            self.made.retain(|m| !m.starts_with(path));
        }
        Ok(())
    }

    pub fn made(&self) -> &BTreeSet<PathBuf> {
        &self.made
    }

    /// Whether its cgroup has gone, and took the value along: proven, or another one has its name. One of an unmounted hierarchy has not.
    fn has_gone(group: &Cgroup, was: &Was, now: &Mounts) -> bool {
        group.identity().map_or_else(|| now.prove_absent(&group.cpuset), |is| is != was.group)
    }

    fn drop_gone(&mut self) {
        let (files, mounts, now) = (&self.files, &self.mounts, Mounts::read(&self.root));
        self.was.retain(|key, was| !Self::has_gone(&group_of(&key.dir, files, mounts), was, &now));
        self.unknown.retain(|key| !now.prove_absent(&key.dir));
        self.made.retain(|dir| files.is_dir(dir));
    }

    /// A client left another layout. What it does not speak of any more is forgotten where it has its former value again, or has gone.
    pub fn spoken_of(&mut self, keys: &BTreeSet<Key>) {
        self.settle(|key| keys.contains(key), |key| keys.contains(key));
    }

    fn settle(&mut self, keep: impl Fn(&Key) -> bool, keep_unknown: impl Fn(&Key) -> bool) {
        let before = (self.was.len(), self.made.len(), self.unknown.len());
        let (files, mounts, now) = (&self.files, &self.mounts, Mounts::read(&self.root));
        let holds = |key: &Key, was: &Was| {
            let group = group_of(&key.dir, files, mounts);
            // To the last digit: a limit that may differ by what the kernel rounds would go down by that much, again and again.
            let same = match key.knob {
                Knob::Cpus | Knob::Mems | Knob::Partition => group.check_holds(key.knob, &was.value).is_ok(),
                Knob::Quota | Knob::Weight | Knob::Memory | Knob::High | Knob::Zswap => group.get(key.knob).as_ref() == Some(&was.value),
            };
            Self::has_gone(&group, was, &now) || same
        };
        self.was.retain(|key, was| keep(key) || !holds(key, was));
        self.unknown.retain(&keep_unknown);
        self.made.retain(|dir| files.is_dir(dir));
        if before == (self.was.len(), self.made.len(), self.unknown.len()) {
            return;
        }
        if self.is_empty() && self.unknown.is_empty() {
            self.lines = 0;
            let _ = unlinkat(&self.dir, NAME, UnlinkatFlags::NoRemoveDir);
        } else if let Err(e) = self.rewrite() {
            // What it says too much is found to be in force already.
            tracing::warn!("{NAME}: {e}: values that have been given back are still in it");
        }
    }

    /// Every value that is known, but for those that `hold` gives another one: each is tried, a second time after the others, and read back.
    /// What is in force again is forgotten.
    pub fn put_back(&mut self, hold: &BTreeMap<Key, String>) -> SafeReport {
        let mut report = SafeReport::default();
        let mut failed: BTreeMap<Key, String> = BTreeMap::new();
        // Those that are held give, the others take; who waits for memory to move comes last.
        let mut all: Vec<(Key, Was)> = self.was.iter().map(|(k, w)| (k.clone(), w.clone())).collect();
        all.sort_by_key(|(key, _)| match key.knob {
            Knob::Partition => 0,
            Knob::Mems => 3,
            _ if hold.contains_key(key) => 1,
            _ => 2,
        });
        for round in 0..2 {
            for (key, was) in &all {
                if round == 1 && !failed.contains_key(key) {
                    continue;
                }
                match self.set(key, was, hold.get(key)) {
                    Ok(true) => report.done += 1,
                    Ok(false) => report.gone += 1,
                    Err(e) => {
                        failed.insert(key.clone(), e.to_string());
                        continue;
                    }
                }
                failed.remove(key);
            }
        }
        report.failed = failed.into_values().collect();
        self.settle(|_| false, |_| true);
        report
    }

    /// One value; false where its cgroup has gone.
    fn set(&self, key: &Key, was: &Was, hold: Option<&String>) -> io::Result<bool> {
        let group = group_of(&key.dir, &self.files, &self.mounts);
        if Self::has_gone(&group, was, &Mounts::read(&self.root)) {
            return Ok(false);
        }
        let value = hold.unwrap_or(&was.value);
        match group.give_back(key.knob, value)? {
            None => Ok(true),
            Some(lacks) => {
                let file = self.path(key).unwrap_or_default();
                let why = format!(
                    "{file}: had \"{value}\", and is without {lacks}, which cannot be had now (off line, or not in the group above)"
                );
                Err(io::Error::other(why))
            }
        }
    }

    /// The former value of one knob, where it is known.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put_one_back(&self, key: &Key) -> io::Result<()> {
        self.was.get(key).map_or(Ok(()), |was| self.set(key, was, None).map(|_| ()))
    }
}

/// Put back what an actuator that does not run any more recorded in its state folder, and forget it; None where there is nothing. For
/// whoever has the rights itself.
///
/// # Errors
/// For a folder that is not this user's alone, or a damaged record.
pub fn put_back_alone(state_dir: &Path, boot: &str, root: &Root) -> io::Result<Option<SafeReport>> {
    let dir = match super::deadman::own_folder(state_dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        dir => dir?,
    };
    let mut record = Record::open(dir, boot, root.files.clone(), root.clone())?;
    Ok((!record.is_empty()).then(|| record.put_back(&BTreeMap::new())))
}

/// No more than it had: what a layout of a client may hold a BE job at. Pure. Only what the safe layout lowers can be held at all.
pub fn no_more(knob: Knob, value: &str, former: &str) -> bool {
    use crate::cgroup::quota_cores;
    use surefoot_server::CpuSet;
    /// Of a core: the least quota that Surefoot gives.
    const LEAST_CORES: f64 = 0.1;
    match knob {
        Knob::Weight => value.parse::<u64>().ok().zip(former.parse::<u64>().ok()).is_some_and(|(v, f)| (1..=f).contains(&v)),
        Knob::Quota => {
            let (cores, had) = (quota_cores(value), quota_cores(former).unwrap_or(f64::INFINITY));
            cores.is_some_and(|c| c <= had + 1e-9 && c >= LEAST_CORES.min(had) - 1e-9)
        }
        Knob::Cpus => {
            let set = |t: &str| CpuSet::parse(t).ok().filter(|s| !s.is_empty());
            // An empty list was everything that there is.
            set(value).is_some_and(|v| set(former).is_none_or(|f| v.is_subset(&f)))
        }
        Knob::Partition | Knob::Mems | Knob::High | Knob::Memory | Knob::Zswap => false,
    }
}
