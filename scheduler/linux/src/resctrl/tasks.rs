//! Threads follow their service: each by its own id, again until a look finds none outside.
//!
//! A child inherits both groups of its parent, so a thread that is born while others are moved is found by the next look or has
//! inherited already. Ids are never remembered between looks: an id that has been used again belongs to whom the cgroup
//! says at that moment.

use super::lock::Turn;
use super::refusal::{Attempt, Refusal};
use super::{Resctrl, PREFIX};
use crate::files::{text, Files};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Folders of the root that are no control groups.
pub(super) const NO_GROUPS: [&str; 3] = ["info", "mon_groups", "mon_data"];

/// Looks at a service before the rest is left to [`Resctrl::follow`].
const MAX_LOOKS: u32 = 16;

/// What a loop over the threads did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub threads: u32,
    /// Ids of those that were moved.
    pub moved: BTreeSet<u32>,
    /// All that there were at the last look.
    pub all: BTreeSet<u32>,
    /// The last look found none outside.
    pub settled: bool,
}

/// Hears of threads before they are moved; an error keeps them where they are.
pub type Before<'a> = &'a mut dyn FnMut(&[u32]) -> Result<(), Refusal>;

/// Ids in the `tasks` of a group; nothing where it cannot be read.
fn tasks(files: &dyn Files, group: &Path) -> BTreeSet<u32> {
    text(files, group.join("tasks")).unwrap_or_default().lines().filter_map(|l| l.trim().parse().ok()).collect()
}

/// Groups of others that some of these threads are in, below the mount point: control groups, and monitoring groups in them or in the
/// default group. None named: all of them are.
pub fn held_by_others(files: &dyn Files, mount: &Path, tids: &[u32]) -> BTreeMap<PathBuf, Vec<u32>> {
    let all: BTreeSet<u32> = tids.iter().copied().collect();
    let controls = files.folders(mount).into_iter().filter(|n| !NO_GROUPS.contains(&n.as_str()) && !n.starts_with(PREFIX));
    let controls: Vec<PathBuf> = controls.map(PathBuf::from).collect();
    let monitors = controls.iter().map(PathBuf::as_path).chain([Path::new("")]).flat_map(|group| {
        let dir = group.join("mon_groups");
        let names = files.folders(&mount.join(&dir)).into_iter().filter(|n| !n.starts_with(PREFIX));
        names.map(move |n| dir.join(n)).collect::<Vec<_>>()
    });
    let groups: Vec<PathBuf> = controls.iter().cloned().chain(monitors).collect();
    let within = groups.into_iter().map(|g| {
        let inside: Vec<u32> = tasks(files, &mount.join(&g)).intersection(&all).copied().collect();
        (g, inside)
    });
    let some = within.filter(|(_, inside)| !inside.is_empty());
    some.map(|(g, inside)| (g, if inside.len() == all.len() { vec![] } else { inside })).collect()
}

impl Resctrl {
    /// Ids in a group's `tasks`; nothing where it cannot be read.
    pub(super) fn tasks(&self, group: &Path) -> BTreeSet<u32> {
        tasks(self.files.as_ref(), group)
    }

    /// See [`held_by_others`].
    pub fn held_by_others(&self, tids: &[u32]) -> BTreeMap<PathBuf, Vec<u32>> {
        held_by_others(self.files.as_ref(), &self.dir, tids)
    }

    /// The writes that put a service's threads back into groups of others: path and text, in order. `now` are the threads that it has.
    pub fn writes_back(&self, groups: &BTreeMap<PathBuf, Vec<u32>>, now: &[u32]) -> Vec<(PathBuf, String)> {
        let mut writes = vec![];
        // All of them, but for those that came from elsewhere later.
        let named: BTreeSet<u32> = groups.values().flatten().copied().collect();
        for (group, tids) in groups {
            let monitor = group.parent().filter(|p| p.ends_with("mon_groups"));
            // A thread is in a monitoring group of its control group only.
            let control = monitor.and_then(Path::parent);
            let here = |t: &u32| if tids.is_empty() { !named.contains(t) } else { tids.contains(t) };
            for tid in now.iter().filter(|t| here(t)) {
                let into = control.into_iter().chain([group.as_path()]);
                writes.extend(into.map(|g| (self.dir.join(g).join("tasks"), format!("{tid}\n"))));
            }
        }
        writes
    }

    /// Whether this process may put threads back into these groups.
    pub fn may_put_back<'a>(&self, mut groups: impl Iterator<Item = &'a PathBuf>) -> bool {
        groups.all(|g| self.files.writable(&self.dir.join(g).join("tasks")))
    }

    /// A service's threads go back into groups of others. A group that has gone with its maker keeps none back.
    ///
    /// # Errors
    /// The first refusal; the others are tried.
    pub fn put_back(&self, groups: &BTreeMap<PathBuf, Vec<u32>>, now: &[u32]) -> Result<(), Refusal> {
        let mut refused = None;
        for (path, text) in self.writes_back(groups, now) {
            match self.files.write(&path, &text) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ENODEV) => {
                    tracing::info!("{}: has gone, and threads that were in it stay in the default group", path.display());
                }
                Err(e) => {
                    let what = format!("{} <- {}", path.display(), text.trim_end());
                    refused = refused.or(Some(self.refused(Attempt::Tasks, what, &e)));
                }
                Ok(()) => {}
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Put every thread of `tids` into `group`, one id a write: a list would stop at the first that has exited.
    pub(crate) fn gather(&self, group: &Path, tids: &dyn Fn() -> Vec<u32>) -> Result<Moved, Refusal> {
        self.gather_after(group, tids, &mut |_| Ok(()))
    }

    /// The same, with a word of those that are to be moved before any of them is: where they are is known only then.
    pub(super) fn gather_after(&self, group: &Path, tids: &dyn Fn() -> Vec<u32>, before: Before<'_>) -> Result<Moved, Refusal> {
        let path = group.join("tasks");
        let mut moved = Moved::default();
        for _ in 0..MAX_LOOKS {
            // Threads that are to be in come before those that are: a child born in between is inside already, and not a straggler.
            let all = tids();
            moved.all = all.iter().copied().collect();
            let inside = if all.is_empty() { BTreeSet::new() } else { self.tasks(group) };
            let outside: Vec<u32> = all.into_iter().filter(|t| !inside.contains(t)).collect();
            if !outside.is_empty() {
                before(&outside)?;
            }
            let mut stayed = 0;
            for tid in outside {
                match self.files.write(&path, &format!("{tid}\n")) {
                    Ok(()) => {
                        moved.threads += 1;
                        moved.moved.insert(tid);
                        stayed += 1;
                    }
                    // It has exited.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    // It has left meanwhile: it is not wanted here any more.
                    Err(_) if !tids().contains(&tid) => {}
                    // Born while its parent was moved, it is in the group that the parent was in: a monitoring group takes only what is in
                    // its control group.
                    Err(e) if e.raw_os_error() == Some(libc::EINVAL) && self.reach_by_control_group(group, tid) => stayed += 1,
                    Err(e) => return Err(self.refused(Attempt::Tasks, format!("{} <- {tid}", path.display()), &e)),
                }
            }
            if stayed == 0 {
                moved.settled = true;
                break;
            }
        }
        Ok(moved)
    }

    /// A thread goes into the control group of a monitoring group; false for a group that is none, or where the kernel refuses.
    fn reach_by_control_group(&self, group: &Path, tid: u32) -> bool {
        let control = group.parent().filter(|p| p.ends_with("mon_groups")).and_then(Path::parent);
        control.is_some_and(|c| self.files.write(&c.join("tasks"), &format!("{tid}\n")).is_ok())
    }

    /// Threads of a class that are in no cgroup of its services (`members`) any more: its ways are not theirs. They go back into the groups of
    /// others that they came from (`former`), else into the default group. How many; none while another tool has the lock.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn let_leavers_go(
        &self,
        class: &str,
        former: &BTreeMap<PathBuf, Vec<u32>>,
        members: &dyn Fn() -> Vec<u32>,
    ) -> Result<u32, Refusal> {
        // Threads inside come before those that belong there; and once more, since a thread is in its group before it is in its cgroup.
        let inside = self.tasks(&self.class_dir(class));
        let outside = |of: BTreeSet<u32>| -> BTreeSet<u32> { of.difference(&members().into_iter().collect()).copied().collect() };
        let left = outside(inside);
        if left.is_empty() {
            return Ok(0);
        }
        let Turn::Now(_lock) = self.turn() else { return Ok(0) };
        let left = outside(left);
        let path = self.dir.join("tasks");
        let mut gone = 0;
        for tid in &left {
            match self.files.write(&path, &format!("{tid}\n")) {
                Ok(()) => gone += 1,
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(self.refused(Attempt::Tasks, format!("{} <- {tid}", path.display()), &e)),
            }
        }
        self.put_back(former, &left.into_iter().collect::<Vec<_>>())?;
        Ok(gone)
    }
}
