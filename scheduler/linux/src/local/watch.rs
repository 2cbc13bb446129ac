//! What is ours in resctrl stays as it was left: looked at once a second ([`LocalConfig::look_every`](super::LocalConfig::look_every)), put
//! back, and counted.
//!
//! The kernel changes groups too: a domain whose CPUs were all off line comes back with every way and all bandwidth. Whoever did it, what a
//! service is said to hold is what its class shows. Two controllers do not fight at every look: see [`Contest`].

use super::apply::GroupsOfOthers;
use super::control::Control;
use super::keep::Contest;
use super::{LocalServer, Service};
use crate::cgroup::Cgroup;
use crate::journal::{Entry as Event, Former};
use crate::resctrl::classes::{Layout, Place, Setting};
use crate::resctrl::groups::Survey;
use crate::resctrl::lock::Turn;
use crate::resctrl::monitor::Traffic;
use crate::resctrl::schemata::Schemata;
use crate::resctrl::steps::Op;
use crate::resctrl::watch::{Part, Shown};
use crate::resctrl::Resctrl;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;
use surefoot_server::{Allocation, Plan, ServiceId};

/// Counters of a service that is watched are looked for once in so many observations.
pub(super) const FOLLOW_EVERY: u64 = 10;

/// A class that is in force.
#[derive(Debug)]
struct Left {
    asked: Setting,
    /// What its schemata showed then; None until it has been seen as it was asked for.
    shown: Option<Schemata>,
}

#[derive(Debug, Default)]
pub(super) struct Watch {
    classes: BTreeMap<String, Left>,
    contests: BTreeMap<(String, Part), Contest>,
    /// Changes of others so far.
    counts: BTreeMap<(ServiceId, Part), u64>,
    /// Threads of each service that were in its place at the last look.
    inside: BTreeMap<ServiceId, BTreeSet<u32>>,
    /// Services that had counters of their own then.
    pub(super) counted: BTreeSet<ServiceId>,
    looked: Option<Instant>,
    followed: BTreeMap<ServiceId, Instant>,
    /// This kernel knows resctrl.
    pub(super) may_be_mounted: bool,
    /// resctrl was found not to be mounted: no class is in force.
    pub(super) unmounted: bool,
    /// Classes are missing that could not be made yet.
    missing: bool,
}

impl Watch {
    /// These classes are in force from now on.
    pub(super) fn leave(&mut self, r: &Resctrl, layout: &Layout) {
        self.classes.retain(|name, left| layout.classes.get(name).is_some_and(|c| c.setting == left.asked && left.shown.is_some()));
        for (name, class) in &layout.classes {
            if !self.classes.contains_key(name) {
                let now = r.shown(name).map(|s| s.schemata);
                let shown = now.filter(|s| r.setting_shown(s, s).is_some_and(|is| is.ways == class.setting.ways));
                self.classes.insert(name.clone(), Left { asked: class.setting.clone(), shown });
            }
        }
    }

    fn count<'a>(&mut self, ids: impl IntoIterator<Item = &'a ServiceId>, part: Part) {
        ids.into_iter().for_each(|id| *self.counts.entry((id.clone(), part)).or_default() += 1);
    }

    pub(super) fn forget(&mut self, id: &str) {
        self.counts.retain(|(of, _), _| of != id);
        self.inside.remove(id);
        self.counted.remove(id);
        self.followed.remove(id);
    }

    /// Names of the classes that were left.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.classes.keys()
    }

    /// None is in force any more.
    pub(super) fn clear(&mut self) {
        (self.classes, self.inside, self.counted) = Default::default();
    }
}

impl LocalServer {
    /// How often somebody else, or the kernel, changed what is ours in resctrl, by service and [`Part`].
    pub fn foreign_class_changes(&self) -> BTreeMap<(&str, &'static str), u64> {
        self.watch.counts.iter().map(|((id, part), n)| ((id.as_str(), part.name()), *n)).collect()
    }

    /// To be called at every tick.
    pub(super) fn watch_resctrl(&mut self) {
        if self.watch.looked.is_some_and(|at| at.elapsed() < self.config.look_every) {
            return;
        }
        self.watch.looked = Some(Instant::now());
        if self.resctrl.is_none() {
            return self.look_for_resctrl();
        }
        self.look_at_mount();
        if self.watch.unmounted || self.resctrl_changed.is_some() {
            return;
        }
        self.make_classes_again();
        for name in self.layout.classes.keys().cloned().collect::<Vec<_>>() {
            self.look_at_class(&name);
        }
        self.look_at_groups_of_others();
    }

    /// resctrl may be unmounted and mounted anew, with other options, and anybody with the rights may remove a class: ours are made again.
    /// Where it offers something else than the policy goes by, [`LocalServer::resctrl_changed`] says so.
    fn look_at_mount(&mut self) {
        let Some(r) = &self.resctrl else { return };
        let at = r.dir().display().to_string();
        if !r.is_mounted(&self.config.root) {
            if !self.watch.unmounted {
                self.watch.unmounted = true;
                let had: Vec<ServiceId> = self.layout.classes.values().flat_map(|c| &c.members).cloned().collect();
                if !had.is_empty() {
                    tracing::warn!("{at}: is not mounted any more: every service reaches all ways until it is mounted there again");
                }
                self.watch.count(&had, Part::Class);
                self.layout = Layout::default();
                // Files of it that are open keep it from being mounted again.
                self.services.values_mut().for_each(|s| s.traffic = Traffic::default());
                let all = Allocation::everything(&self.platform);
                let ways = self.offer.to_hardware(&self.group_domains, &all.ways);
                self.default_group = Setting { ways, mba_pct: self.platform.mba.map(|_| 100) };
            }
            return;
        }
        let was_unmounted = std::mem::take(&mut self.watch.unmounted);
        let Some(anew) = r.mounted_anew(&self.config.root, was_unmounted, self.layout.classes.keys()) else { return };
        let offers = |r: &Resctrl| (r.cbm_bits(), r.min_cbm_bits(), r.mba_steps());
        let (before, now) = (offers(r), offers(&anew));
        let options = anew.info().options != r.info().options;
        let lost: Vec<(String, BTreeSet<ServiceId>)> = self.layout.classes.iter().map(|(n, c)| (n.clone(), c.members.clone())).collect();
        let lost: Vec<_> = lost.into_iter().filter(|(name, _)| options || anew.shown(name).is_none()).collect();
        self.resctrl = Some(anew);
        if before != now {
            self.watch.count(lost.iter().flat_map(|l| &l.1), Part::Class);
            self.layout = Layout::default();
            self.resctrl_changed = Some(format!("resctrl at {at} was mounted anew and offers other ways or steps of bandwidth"));
            return;
        }
        // Until they are made again their services are where all others are.
        for (name, _) in &lost {
            self.layout.classes.remove(name);
            self.watch.classes.remove(name);
        }
        if was_unmounted || options {
            // The same numbers may be of another unit now.
            self.layout = Layout::default();
            self.watch.clear();
        }
        self.watch.count(lost.iter().flat_map(|l| &l.1), Part::Class);
        tracing::warn!("{at}: was mounted anew, or somebody removed a class of ours: the classes are made again");
        self.watch.missing = true;
    }

    fn answer(&mut self, name: &str, part: Part, now: Instant) -> Option<u64> {
        self.watch.contests.entry((name.into(), part)).or_default().answer(now)
    }

    fn make_classes_again(&mut self) {
        if !self.watch.missing || !self.unsettled.is_empty() || !self.services.values().any(|s| s.placed) {
            return;
        }
        self.replan_at = Some(self.observations);
        match self.put_in_force(&Plan::default(), self.wait()) {
            Ok(_) => self.watch.missing = false,
            Err(e) => tracing::warn!("classes that are missing cannot be made: {e}"),
        }
    }

    fn look_at_class(&mut self, name: &str) {
        let (Some(r), Some(left)) = (self.resctrl.clone(), self.watch.classes.get(name)) else { return };
        let Some(mut shown) = r.shown(name) else { return };
        let asked = left.asked.clone();
        let Some(baseline) = left.shown.clone().or_else(|| self.first_look(&r, name, &asked, &shown)) else { return };
        let strayed = shown.strayed(&baseline);
        let mut late = false;
        for part in &strayed {
            // Asked once for all parts: whoever holds the lock for long is not waited for.
            let Turn::Now(lock) = r.turn() else {
                late = true;
                break;
            };
            let Some(count) = self.answer(name, *part, Instant::now()) else { continue };
            let members = self.layout.classes.get(name).map(|c| c.members.clone()).unwrap_or_default();
            self.watch.count(&members, *part);
            let (dir, found) = (r.class_dir(name), shown.of(*part, &baseline));
            let done = r.put_part_back(name, *part, &shown, &baseline);
            drop(lock);
            match done {
                Ok(()) => tracing::warn!(
                    "{}: somebody, or the kernel after CPUs were off line, changed the {} to \"{found}\"; set back ({count} times so far)",
                    dir.display(),
                    part.name()
                ),
                Err(e) => tracing::warn!("{}: the {} is \"{found}\", and cannot be set back: {}", dir.display(), part.name(), e.error),
            }
        }
        if late {
            self.watch.looked = None;
        }
        if !strayed.is_empty() {
            shown = r.shown(name).unwrap_or_default();
        }
        self.tell(&r, name, &asked, &shown, &baseline);
    }

    /// Of a class that has not been seen as it was asked for: what it shows, once it does. A domain that was off line when it was set has what
    /// the kernel gave it.
    fn first_look(&mut self, r: &Resctrl, name: &str, asked: &Setting, shown: &Shown) -> Option<Schemata> {
        let is = r.setting_shown(&shown.schemata, &shown.schemata)?;
        if is.ways == asked.ways {
            let left = self.watch.classes.get_mut(name)?;
            left.shown = Some(shown.schemata.clone());
            return left.shown.clone();
        }
        if is.ways.len() == asked.ways.len() && self.answer(name, Part::Schemata, Instant::now()).is_some() {
            let set = Op::Set { class: name.into(), from: is.clone(), to: asked.clone() };
            match r.turn() {
                Turn::Now(_lock) => match r.execute(&set, &Vec::new) {
                    Ok(()) => tracing::info!("{}: set once more: it was not as it was asked for", r.class_dir(name).display()),
                    Err(e) => tracing::warn!("{}", e.error),
                },
                Turn::Later => self.watch.looked = None,
            }
            return None;
        }
        if let Some(class) = self.layout.classes.get_mut(name).filter(|_| is.ways.len() == asked.ways.len()) {
            class.setting = is;
        }
        None
    }

    /// What a class shows is what its members hold.
    fn tell(&mut self, r: &Resctrl, name: &str, asked: &Setting, shown: &Shown, left: &Schemata) {
        let same = left.lost_in(&shown.schemata).is_empty();
        let is = if same { Some(asked.clone()) } else { r.setting_shown(&shown.schemata, left) };
        if let (Some(class), Some(is)) = (self.layout.classes.get_mut(name), is) {
            class.setting = is;
        }
    }

    /// The default group, and groups of others that threads of services stay in, are not ours to change: what they are now is what is told.
    fn look_at_groups_of_others(&mut self) {
        let Some(r) = &self.resctrl else { return };
        if self.services.values().any(|s| s.placed) {
            self.default_group = r.setting_of(Path::new(""));
        }
        for (group, setting) in self.elsewhere.values_mut() {
            *setting = r.setting_of(group);
        }
        for id in &self.layout.in_default {
            match r.free_monitor_of_cpus(id, &Place::Default) {
                Ok(None) => {}
                Ok(Some(cpus)) => {
                    tracing::warn!(
                        "{id}: somebody gave CPUs {cpus} to its monitoring group: whoever ran there was counted as {id}; taken back"
                    );
                    self.watch.count([id], Part::Cpus);
                }
                Err(e) => r.say_once(format!("monitor CPUs {id}"), || format!("{id}: {}", e.error)),
            }
        }
    }

    /// What a plan finds other than it was left, before it sets it: counted as at any other look.
    pub(super) fn note_foreign(&mut self, survey: &Survey) {
        let Some(r) = self.resctrl.clone() else { return };
        let strays = |name: &str, left: &Left| {
            let was = left.shown.as_ref().and_then(|s| r.setting_shown(s, s));
            let is = survey.layout.classes.get(name).map(|c| &c.setting);
            was.zip(is).is_some_and(|(was, is)| was != *is && was.ways.len() == is.ways.len())
        };
        let all: Vec<String> = self.watch.classes.iter().filter(|(name, left)| strays(name, left)).map(|(name, _)| name.clone()).collect();
        for name in all {
            let members = self.layout.classes.get(&name).map(|c| c.members.clone()).unwrap_or_default();
            // Found before, and left alone for a while, where it is told already.
            let told = self.watch.classes.get(&name).zip(self.layout.classes.get(&name)).is_some_and(|(l, c)| l.asked != c.setting);
            if !told && self.answer(&name, Part::Schemata, Instant::now()).is_some() {
                self.watch.count(&members, Part::Schemata);
                tracing::warn!("{}: somebody changed the schemata; the plan sets it anew", r.class_dir(&name).display());
            }
        }
    }

    /// Threads that entered a service's cgroup from elsewhere (`docker exec`) join its class, and those that were moved out of it come
    /// back; those born in it have inherited that.
    pub(super) fn follow_threads(&mut self, ids: &[ServiceId]) {
        self.observations += 1;
        let Some(r) = self.resctrl.clone().filter(|_| !self.watch.unmounted) else { return };
        // Only to find their counters: a service that is watched is somebody else's to move.
        if self.observations % FOLLOW_EVERY == 1 && self.services.values().any(|s| matches!(s.control, Control::Watched(_))) {
            self.layout = r.survey().map(|s| s.layout).unwrap_or_default();
        }
        let mut born = false;
        for id in ids {
            let due = self.watch.followed.get(id).is_none_or(|at| at.elapsed() >= self.config.look_every);
            let Some(Service { control, cgroup: Some(cgroup), .. }) = self.services.get(id).filter(|_| due) else { continue };
            if matches!(control, Control::Watched(_)) {
                continue;
            }
            self.watch.followed.insert(id.clone(), Instant::now());
            let cgroup = cgroup.clone();
            if self.elsewhere.contains_key(id) {
                if r.held_by_others(&cgroup.tids()).is_empty() {
                    tracing::info!("{id}: its threads are in no resctrl group of others any more: it gets a class of its own");
                    self.elsewhere.remove(id);
                    self.replan_at = Some(self.observations);
                    self.ways_late = true;
                }
                continue;
            }
            let Some(place) = self.layout.place(id) else { continue };
            let counted = r.has_monitor(id, &place);
            let had_counters = self.watch.counted.contains(id) && !counted;
            let mut entered = GroupsOfOthers::new();
            let known = self.watch.inside.get(id).cloned().unwrap_or_default();
            let mut note = |outside: &[u32]| {
                // One that was in its class was moved since: it was not there before.
                let new: Vec<u32> = outside.iter().filter(|t| !known.contains(t)).copied().collect();
                if !new.is_empty() {
                    let from = r.held_by_others(&new);
                    from.into_iter()
                        .for_each(|(g, tids)| entered.entry(g).or_default().extend(if tids.is_empty() { new.clone() } else { tids }));
                }
                Ok(())
            };
            match r.follow(id, &place, &|| cgroup.tids(), &mut note) {
                Ok(None) => continue,
                Ok(Some(moved)) => {
                    if !entered.is_empty() {
                        self.remember_entered(id, entered);
                    }
                    let go_back = self.touched.get(id).is_some_and(|f| !f.threads.is_empty());
                    let before = self.watch.inside.insert(id.clone(), moved.all).unwrap_or_default();
                    born |= go_back && self.watch.inside.get(id) != Some(&before);
                    let taken = moved.moved.intersection(&before).count();
                    if taken > 0 {
                        self.watch.count([id], Part::Threads);
                        tracing::warn!("{id}: somebody moved {taken} threads of it out of its class; they are in it again");
                    } else if moved.threads > 0 {
                        tracing::info!("{id}: {} threads that had entered its cgroup were moved to its class", moved.threads);
                    }
                }
                Err(e) => self.threads_stay_elsewhere(&r, id, &cgroup.tids(), &e.to_string()),
            }
            self.let_leavers_go(&r, id, &place);
            if had_counters {
                self.watch.count([id], Part::Monitor);
                tracing::warn!("{id}: somebody removed or renamed its monitoring group; it has a new one");
            }
            if counted || r.has_monitor(id, &place) {
                self.watch.counted.insert(id.clone());
            } else {
                self.watch.counted.remove(id);
            }
        }
        // Those born since belong to groups of others too, should this process vanish.
        if born && self.given.is_empty() {
            let classes = self.layout.clone();
            if let Err(e) = self.record_safe_layout(&classes) {
                tracing::warn!("{e}");
            }
        }
    }

    /// Threads that left a service's cgroup lose its class. Whose they were cannot be told where several services share one.
    fn let_leavers_go(&self, r: &Resctrl, id: &ServiceId, place: &Place) {
        let Place::Class(class) = place else { return };
        let members = self.layout.classes.get(class).map(|c| &c.members);
        let groups: Option<Vec<&Cgroup>> = members.and_then(|m| m.iter().map(|id| self.services.get(id)?.cgroup.as_ref()).collect());
        let Some(groups) = groups.filter(|g| !g.is_empty()) else { return };
        let former = self.touched.get(id).filter(|_| groups.len() == 1).map(|f| f.threads.clone()).unwrap_or_default();
        match r.let_leavers_go(class, &former, &|| groups.iter().flat_map(|g| g.tids()).collect()) {
            Ok(0) => {}
            Ok(n) => tracing::info!("{id}: {n} threads that had left its cgroup were given back from its class"),
            Err(e) => r.say_once(format!("leave {id}"), || format!("{id}: {}", e.error)),
        }
    }

    /// Threads that entered a service from groups of others go back there in the end. One that was noted for a group as a whole stays so.
    fn remember_entered(&mut self, id: &ServiceId, entered: GroupsOfOthers) {
        let Some(known) = self.touched.get_mut(id) else { return };
        for (group, tids) in &entered {
            tracing::info!(
                "{id}: {} threads entered it from resctrl group {} of somebody else, and will be there again",
                tids.len(),
                group.display()
            );
            match known.threads.entry(group.clone()) {
                Entry::Vacant(e) => drop(e.insert(tids.clone())),
                Entry::Occupied(mut e) if !e.get().is_empty() => e.get_mut().extend(tids),
                Entry::Occupied(_) => {}
            }
        }
        let former = Former { saved: BTreeMap::new(), ..known.clone() };
        if let Err(e) = self.journal.append(&Event::Touch { id: id.clone(), former }) {
            tracing::warn!("{e}");
        }
    }

    /// Threads that this process may not move back: the service holds what they have there.
    fn threads_stay_elsewhere(&mut self, r: &Resctrl, id: &ServiceId, tids: &[u32], why: &str) {
        let groups = r.held_by_others(tids);
        let Some(group) = groups.keys().next().filter(|_| !r.may_put_back(groups.keys())) else {
            r.say_once(format!("follow {id}"), || format!("{id}: {why}"));
            return;
        };
        tracing::warn!("{id}: somebody moved threads of it to resctrl group {}, where they stay: {why}", group.display());
        self.watch.count([id], Part::Threads);
        let control = control_group(group);
        let setting = r.setting_of(&control);
        self.elsewhere.insert(id.clone(), (control, setting));
    }
}

/// The control group that a group of resctrl is, or is in.
pub(super) fn control_group(group: &Path) -> PathBuf {
    group.iter().next().filter(|n| *n != "mon_groups").map(PathBuf::from).unwrap_or_default()
}
