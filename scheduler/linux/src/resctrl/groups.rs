//! Control groups as they are, and how a step changes them.

use super::classes::{Bounds, Class, Layout, Place, Setting};
use super::info::Info;
use super::lock::Turn;
use super::masks::{check, marked, Reserved};
use super::mba::MbaInfo;
use super::offer::Offer;
use super::refusal::{Attempt, Refusal};
use super::schemata::{text, Entry, Schemata};
use super::steps::Op;
use super::tasks::{Before, Moved, NO_GROUPS};
use super::{Resctrl, PREFIX};
use crate::safe;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use surefoot_server::allocation::full_mask;
use surefoot_server::{ServerError, ServiceId};

/// Everything that a plan must know of what is there. To be taken under the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Ids of the L3 domains that are on line.
    pub domains: Vec<u32>,
    /// Ours, by name; members are those with a monitoring group.
    pub layout: Layout,
    pub bounds: Bounds,
    /// Control groups of others.
    pub foreign: Vec<String>,
    /// Ways that others hold alone.
    pub reserved: Vec<Reserved>,
}

impl Survey {
    /// What was found, with the members that are known: a service without a monitoring group shows in no file.
    pub fn with_members(&self, known: &Layout) -> Layout {
        let mut layout = self.layout.clone();
        let found: BTreeSet<ServiceId> = layout.classes.values().flat_map(|c| &c.members).chain(&layout.in_default).cloned().collect();
        for (name, class) in &known.classes {
            if let Some(c) = layout.classes.get_mut(name) {
                c.members.extend(class.members.difference(&found).cloned());
            }
        }
        layout.in_default.extend(known.in_default.difference(&found).cloned());
        layout
    }

    /// Whether these ways may be written for `who`.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] says which rule they break.
    pub fn check(&self, info: &Info, who: &str, setting: &Setting) -> Result<(), ServerError> {
        match &info.l3 {
            Some(l3) if !setting.ways.is_empty() => {
                check(l3, &self.domains, who, &setting.ways, &self.reserved).map_err(ServerError::Invalid)
            }
            _ => Ok(()),
        }
    }
}

impl Resctrl {
    /// Look at all groups.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where resctrl is not mounted any more.
    pub fn survey(&self) -> Result<Survey, ServerError> {
        let gone = |e: &dyn std::fmt::Display| unavailable(&self.dir, e);
        let root = Schemata::parse(&self.read(self.dir.join("schemata")).ok_or_else(|| gone(&"schemata cannot be read"))?);
        let names = self.files.list(&self.dir).map_err(|e| gone(&e))?;
        let domains = self.l3_domains();
        let mut layout = Layout::default();
        let mut foreign = vec![];
        let mut reserved = vec![];
        if let Some(names) = self.files.list(&self.dir.join("mon_groups")).ok().filter(|_| self.info.monitoring.is_some()) {
            layout.in_default = names.iter().filter_map(|n| n.strip_prefix(PREFIX)).map(str::to_string).collect();
        }
        for name in names.iter().filter(|n| !NO_GROUPS.contains(&n.as_str()) && self.files.is_dir(&self.dir.join(n))) {
            let dir = self.dir.join(name);
            let setting = || self.setting(&Schemata::parse(&self.read(dir.join("schemata")).unwrap_or_default()), &domains);
            if let Some(ours) = name.strip_prefix(PREFIX) {
                let members = self.files.list(&dir.join("mon_groups")).unwrap_or_default();
                layout.classes.insert(ours.into(), Class { setting: setting(), members: members.into_iter().collect() });
                continue;
            }
            let held = || self.masks(&Schemata::parse(&self.read(dir.join("schemata")).unwrap_or_default()), &domains);
            match self.read(dir.join("mode")).as_deref() {
                // Once its ways are locked it has no class any more.
                Some("pseudo-locked") => {
                    reserved.extend(reserve(&held(), &format!("pseudo-locked group {name}")));
                    continue;
                }
                Some("exclusive") => reserved.extend(reserve(&held(), &format!("exclusive group {name}"))),
                _ => {}
            }
            foreign.push(name.clone());
        }
        reserved.extend(self.pseudo_locked(&domains, &reserved));
        let default = self.setting(&root, &domains);
        if self.read(self.dir.join("mode")).as_deref() == Some("exclusive") {
            reserved.extend(reserve(&self.masks(&root, &domains), "the default group, which is exclusive,"));
        }
        let classes = (self.info.num_closids as usize).saturating_sub(1 + foreign.len());
        let sparse = self.info.l3.as_ref().is_some_and(|l| l.sparse_masks);
        Ok(Survey { domains, layout, bounds: Bounds { classes, default, sparse }, foreign, reserved })
    }

    /// Ways and bandwidth of any group, in the order of the domains.
    pub fn setting_of(&self, group: &Path) -> Setting {
        let schemata = Schemata::parse(&self.read(self.dir.join(group).join("schemata")).unwrap_or_default());
        let domains: Vec<u32> =
            self.info.domain_line().and_then(|l| schemata.line(l)).map(|l| l.keys().copied().collect()).unwrap_or_default();
        self.setting(&schemata, &domains)
    }

    /// Ways that the kernel calls pseudo-locked and that are of no group in `known`.
    fn pseudo_locked(&self, domains: &[u32], known: &[Reserved]) -> Vec<Reserved> {
        let lines = self.info.l3.as_ref().map_or(&[][..], |l| l.lines);
        let usage = |line: &&str| self.read(self.dir.join(format!("info/{line}/bit_usage"))).unwrap_or_default();
        let at = |(id, mask): (u32, u32)| {
            let domain = domains.iter().position(|d| *d == id)?;
            let mask = mask & !known.iter().filter(|r| r.domain == domain).fold(0, |m, r| m | r.mask);
            (mask != 0).then(|| Reserved { domain, mask, by: "a pseudo-locked region".into() })
        };
        let mut all: Vec<Reserved> = lines.iter().flat_map(|l| marked(&usage(l), 'P')).filter_map(at).collect();
        all.dedup();
        all
    }

    /// Ways that a group has in each domain, for code or for data.
    fn masks(&self, s: &Schemata, domains: &[u32]) -> Vec<u32> {
        let lines = self.info.l3.as_ref().map_or(&[][..], |l| l.lines);
        domains.iter().map(|id| lines.iter().fold(0, |m, l| m | s.mask(l, *id).unwrap_or(0))).collect()
    }

    /// What is left for us by a survey, for a platform with these domains.
    pub fn offer(&self, survey: &Survey, of_id: &BTreeMap<u32, usize>) -> Offer {
        self.info.l3.as_ref().map_or_else(Offer::default, |l3| Offer::new(l3, &survey.domains, of_id, &survey.reserved))
    }

    /// A group's setting in the words of plans. A mask that CDP's two lines do not agree on is 0, which no service asks for.
    pub(super) fn setting(&self, s: &Schemata, domains: &[u32]) -> Setting {
        let mask = |id: u32, lines: &[&str]| {
            let all: BTreeSet<u32> = lines.iter().map(|l| s.mask(l, id).unwrap_or(0)).collect();
            if all.len() == 1 {
                all.first().copied().unwrap_or(0)
            } else {
                0
            }
        };
        let ways = self.info.l3.as_ref().map(|l| domains.iter().map(|d| mask(*d, l.lines)).collect()).unwrap_or_default();
        let of = |m: &MbaInfo| {
            let values: BTreeSet<&String> = s.line("MB")?.values().collect();
            if values.len() != 1 {
                return None;
            }
            m.percent(values.first()?.parse().ok()?, self.domain_peak_mbps())
        };
        Setting { ways, mba_pct: self.mba_steps().and(self.info.mba.as_ref()).and_then(of) }
    }

    /// Do one step. `tids` lists the threads of the service that it moves, anew at each call.
    ///
    /// # Errors
    /// [`Refusal`]; of a step that failed nothing is left but what its inverse takes back.
    pub fn execute(&self, op: &Op, tids: &dyn Fn() -> Vec<u32>) -> Result<(), Refusal> {
        match op {
            Op::Make { class, setting } => {
                let dir = self.class_dir(class);
                match self.files.make_dir(&dir) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(self.refused(Attempt::MakeClass, format!("mkdir {}", dir.display()), &e));
                    }
                    _ => {}
                }
                self.set(&dir, setting).inspect_err(|_| {
                    let _ = self.files.remove_dir(&dir);
                })
            }
            Op::Set { class, to, .. } => self.set(&self.class_dir(class), to),
            Op::Move { id, from, to } => self.relocate(id, from.as_ref(), to.as_ref(), tids),
            Op::Remove { class, .. } => self.remove_group(&self.class_dir(class)),
        }
    }

    fn remove_group(&self, dir: &Path) -> Result<(), Refusal> {
        match self.files.remove_dir(dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(self.refused(Attempt::Remove, format!("rmdir {}", dir.display()), &e)),
            _ => Ok(()),
        }
    }

    /// Write what differs, in one write, and read back what the kernel made of it.
    fn set(&self, dir: &Path, to: &Setting) -> Result<(), Refusal> {
        let path = dir.join("schemata");
        let now = Schemata::parse(&self.read(&path).unwrap_or_default());
        let mut entries = vec![];
        if let Some(l3) = &self.info.l3 {
            for line in l3.lines {
                let ids = now.line(line).into_iter().flatten().map(|(id, _)| *id);
                // 0 stands for a mask that is not known.
                let differ = ids.zip(&to.ways).filter(|(id, mask)| **mask != 0 && now.mask(line, *id) != Some(**mask));
                entries.extend(differ.map(|(domain, mask)| Entry { resource: line, domain, value: format!("{mask:x}") }));
            }
        }
        // After L3: under mba_MBps values are in force while the rest is still being parsed.
        if let Some((mba, pct)) = self.info.mba.as_ref().zip(to.mba_pct) {
            if let Some(value) = mba.value(pct, self.domain_peak_mbps()) {
                let ids = now.line("MB").into_iter().flatten().map(|(id, _)| *id);
                let differ = ids.filter(|id| now.number("MB", *id) != Some(value));
                entries.extend(differ.map(|domain| Entry { resource: "MB", domain, value: value.to_string() }));
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        let what = || format!("{} <- {}", path.display(), text(&entries).trim_end().replace('\n', " "));
        self.files.write(&path, &text(&entries)).map_err(|e| self.refused(Attempt::Schemata, what(), &e))?;
        let got = Schemata::parse(&self.read(&path).unwrap_or_default());
        for e in &entries {
            self.kept(&path, e, &got)?;
        }
        Ok(())
    }

    /// The kernel rounds and widens in silence. Bandwidth may come out as the next step up; a mask must be what was written.
    pub(super) fn kept(&self, path: &Path, e: &Entry, got: &Schemata) -> Result<(), Refusal> {
        let have = got.value(e.resource, e.domain).unwrap_or("nothing");
        let differs = |note: String| {
            let what = format!("{}: {} of domain {}", path.display(), e.resource, e.domain);
            let cause = format!("wrote {}, the kernel keeps {have}{note}", e.value);
            let remedy = "Ask for values that the hardware has, and look for another tool that writes here".into();
            Err(Refusal { cause: super::refusal::Cause::Other, error: ServerError::Write { what, cause, remedy } })
        };
        if e.resource == "MB" {
            let (wrote, have_n) = (e.value.parse::<u32>().unwrap_or(0), got.number("MB", e.domain));
            let next = self.info.mba.as_ref().map(|m| m.rounded(wrote));
            if have_n == Some(wrote) {
                return Ok(());
            }
            if have_n.is_some() && have_n == next {
                tracing::debug!("{}: MB of domain {}: {wrote} is rounded up to {have}", path.display(), e.domain);
                return Ok(());
            }
            return differs(String::new());
        }
        let (wrote, have_mask) = (u32::from_str_radix(&e.value, 16).ok(), got.mask(e.resource, e.domain));
        if wrote == have_mask {
            return Ok(());
        }
        let shareable = self.info.l3.as_ref().map_or(0, |l| l.shareable_bits);
        let extra = have_mask.unwrap_or(0) & !wrote.unwrap_or(0);
        differs(if extra & shareable != 0 {
            format!(" (it sets the contention bits {shareable:x} together: they are shared with devices)")
        } else {
            String::new()
        })
    }

    /// Move a service's threads. Its monitoring group goes along where the kernel can (all threads at once, counters kept), else its
    /// threads go one by one and it gets a new one.
    fn relocate(&self, id: &str, from: Option<&Place>, to: Option<&Place>, tids: &dyn Fn() -> Vec<u32>) -> Result<(), Refusal> {
        let old = from.map(|p| self.monitor(id, p)).filter(|d| self.files.is_dir(d));
        let new = to.map(|p| self.monitor(id, p));
        if let (Some(a), Some(b)) = (&old, &new) {
            // Not on 6.1 (EPERM), nor for groups that watch CPUs: the loop below does it there.
            if a != b && !self.files.is_dir(b) {
                if let Err(e) = self.files.rename(a, b) {
                    tracing::debug!("{id}: {} cannot be renamed ({e}): threads are moved one by one", a.display());
                }
            }
        }
        let class = match to {
            Some(Place::Class(c)) => self.class_dir(c),
            _ => self.dir.clone(),
        };
        // Also those that are in its old group, but not in its cgroup any more.
        let all = || -> Vec<u32> {
            let mut all: BTreeSet<u32> = tids().into_iter().collect();
            all.extend(old.iter().filter(|d| new.as_ref() != Some(d)).flat_map(|d| self.tasks(d)));
            if to.is_none() {
                // It leaves: threads that are in groups of others are where they belong.
                let inside = match from {
                    Some(Place::Class(c)) => self.tasks(&self.class_dir(c)),
                    _ => old.iter().flat_map(|d| self.tasks(d)).collect(),
                };
                all.retain(|t| inside.contains(t));
            }
            all.into_iter().collect()
        };
        let moved = self.gather(&class, &all)?;
        if !moved.settled {
            tracing::warn!("{id}: new threads kept entering its cgroup while {} were moved; the rest follows", moved.threads);
        }
        if let Some(place) = to {
            self.watch_threads(id, place, tids);
        }
        if let Some(a) = old.filter(|a| new.as_ref() != Some(a)) {
            self.remove_group(&a)?;
        }
        Ok(())
    }

    /// A monitoring group for a service, with all its threads. Without one it has no counters: that is said once, and nothing
    /// else depends on it.
    fn watch_threads(&self, id: &str, place: &Place, tids: &dyn Fn() -> Vec<u32>) {
        if self.info.monitoring.is_none() || self.no_monitors.load(Ordering::Relaxed) {
            return;
        }
        let dir = self.monitor(id, place);
        let made = if self.files.is_dir(&dir) {
            Ok(())
        } else {
            self.files.make_dir(&dir).map_err(|e| self.refused(Attempt::MakeMonitor, format!("mkdir {}", dir.display()), &e))
        };
        if let Err(r) = made.and_then(|()| self.gather(&dir, tids).map(|_| ())) {
            let why = r.error.to_string();
            self.say_once(format!("monitor {id}"), || format!("{id}: no bandwidth counter of its own for now: {why}"));
        }
    }

    /// Threads of a service that are not where it is placed: those that entered its cgroup from elsewhere, and those that were moved. Waits
    /// for no lock: while another tool has it nothing is moved (None). `before` hears of those that are to be moved.
    ///
    /// # Errors
    /// [`ServerError::Write`] where the kernel refuses.
    pub fn follow(&self, id: &str, place: &Place, tids: &dyn Fn() -> Vec<u32>, before: Before<'_>) -> Result<Option<Moved>, ServerError> {
        // A thread in its monitoring group is in the group above that one too.
        let all: BTreeSet<u32> = tids().into_iter().collect();
        if !all.is_empty() && all.is_subset(&self.tasks(&self.monitor(id, place))) {
            return Ok(Some(Moved { all, settled: true, ..Moved::default() }));
        }
        // The next look is soon enough.
        let Turn::Now(_lock) = self.turn() else { return Ok(None) };
        let moved = match place {
            Place::Class(c) => self.gather_after(&self.class_dir(c), tids, before)?,
            // A list of all threads of the host, but for those that have counters of their own.
            Place::Default => {
                let counted = self.tasks(&self.monitor(id, place));
                let found = self.gather_after(&self.dir, &|| tids().into_iter().filter(|t| !counted.contains(t)).collect(), before)?;
                Moved { all: found.all.union(&counted).copied().collect(), ..found }
            }
        };
        self.watch_threads(id, place, tids);
        Ok(Some(moved))
    }

    /// What leaves a class of BE jobs the least without us; None without ways.
    pub fn least_op(&self, class: &str) -> Option<safe::Op> {
        let l3 = self.info.l3.as_ref()?;
        let now = Schemata::parse(&self.read(self.dir.join("schemata")).unwrap_or_default());
        // The kernel refuses ways that others hold alone.
        let usage: Vec<String> = l3.lines.iter().filter_map(|l| self.read(self.dir.join(format!("info/{l}/bit_usage")))).collect();
        let alone = |id: u32| {
            let marks = usage.iter().flat_map(|u| ['E', 'P'].into_iter().flat_map(|mark| marked(u, mark)));
            marks.filter(|(of, _)| *of == id).fold(0, |m, (_, mask)| m | mask)
        };
        let least = |id: u32| format!("{:x}", lowest(l3.cbm_mask & !alone(id), l3.min_cbm_bits));
        let ids = |line: &'static str| now.line(line).into_iter().flatten().map(move |(id, _)| (line, *id));
        let all = l3.lines.iter().flat_map(|l| ids(l)).map(|(resource, domain)| Entry { resource, domain, value: least(domain) });
        Some(safe::Op::Write { path: self.class_dir(class).join("schemata"), text: text(&all.collect::<Vec<_>>()) })
    }

    /// Remove every group of ours, those of a process that died included. Threads fall back to the default group: those of LC services
    /// first (`lc`), and of what is not known the widest first, so that no BE job has all ways while a service still has few.
    /// Returns the names of the classes. Another tool's lock is waited for briefly, and then no more.
    ///
    /// # Errors
    /// The first that cannot be removed; the others are.
    pub fn clear(&self, lc: impl Fn(&str) -> bool) -> Result<Vec<String>, ServerError> {
        let _lock = self.lock();
        let names = self.files.list(&self.dir).map_err(|e| unavailable(&self.dir, &e))?;
        // What can be seen of them only says in which order; names are enough to remove them.
        let mut found = self.survey().map(|s| s.layout).unwrap_or_default();
        for name in names.iter().filter_map(|n| n.strip_prefix(PREFIX)) {
            found.classes.entry(name.into()).or_default();
        }
        let mut classes: Vec<(&String, &Class)> = found.classes.iter().collect();
        let ways = |c: &Class| c.setting.ways.iter().map(|w| w.count_ones()).sum::<u32>();
        classes.sort_by_key(|(name, c)| std::cmp::Reverse((lc(name) || c.members.iter().any(|m| lc(m)), ways(c))));
        let mut removed = vec![];
        let mut failed = None;
        for (name, _) in classes {
            match self.remove_group(&self.class_dir(name)) {
                Ok(()) => removed.push(name.clone()),
                Err(r) => failed = failed.or(Some(r)),
            }
        }
        for id in &found.in_default {
            if let Err(r) = self.remove_group(&self.monitor(id, &Place::Default)) {
                failed = failed.or(Some(r));
            }
        }
        removed.sort();
        failed.map_or(Ok(removed), |r| Err(r.error))
    }
}

fn unavailable(dir: &Path, e: &dyn std::fmt::Display) -> ServerError {
    ServerError::Unavailable {
        what: format!("resctrl at {}", dir.display()),
        cause: e.to_string(),
        remedy: "Mount it again: mount -t resctrl resctrl /sys/fs/resctrl, and restart".into(),
    }
}

fn reserve(masks: &[u32], by: &str) -> Vec<Reserved> {
    masks.iter().enumerate().filter(|(_, m)| **m != 0).map(|(domain, mask)| Reserved { domain, mask: *mask, by: by.into() }).collect()
}

/// The lowest block of `n` ways that are free; the lowest ways of all where there is none.
fn lowest(free: u32, n: u32) -> u32 {
    let block = full_mask(n);
    (0..32u32).filter_map(|at| block.checked_shl(at)).find(|b| b & !free == 0 && b.count_ones() == n).unwrap_or(block)
}
