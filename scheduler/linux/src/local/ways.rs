//! Ways and bandwidth of this server's services: their needs become classes, and what they really hold is told.

use super::apply::GroupsOfOthers;
use super::control::Control;
use super::{LocalServer, Service};
use crate::cgroup::Cgroup;
use crate::claim;
use crate::resctrl::classes::{plan, Layout, Need, Place, Setting};
use crate::resctrl::monitor::Event;
use crate::resctrl::refusal::{Cause, Refusal};
use crate::resctrl::steps::{steps, Op};
use crate::resctrl::Resctrl;
use crate::safe;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use surefoot_server::order::Pass;
use surefoot_server::{Allocation, Kind, Plan, ServerError, ServiceId};

/// A service's threads are compared with its class once in so many observations.
const FOLLOW_EVERY: u64 = 10;
/// While classes are shared: whether there is room again is looked at once in so many observations.
const REPLAN_EVERY: u64 = 50;

fn is_lc(s: &Service) -> bool {
    matches!(s.kind, Kind::Lc { .. })
}

fn is_watched(s: &Service) -> bool {
    matches!(s.control, Control::Watched(_))
}

/// What has run out where services share a class, in words.
pub(super) fn shortage(of: Option<Cause>) -> &'static str {
    match of {
        Some(Cause::OutOfRmids) => "monitoring ids (RMIDs) have run out, and each class needs one",
        Some(Cause::RmidsInLimbo) => "monitoring ids (RMIDs) of removed groups are not free yet, and each class needs one",
        _ => "classes have run out",
    }
}

impl LocalServer {
    /// Two controllers would take each other's classes for leftovers: the second one leaves resctrl alone.
    pub(super) fn claim_resctrl(&mut self) {
        let Some(r) = &self.resctrl else { return };
        // Wherever it is mounted, and however often.
        let device = std::fs::metadata(r.dir()).map(|m| m.dev());
        match device.and_then(|device| claim::claim_resctrl(Path::new(claim::FOLDER), device)) {
            Ok(held) => self.resctrl_claim = Some(held),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                tracing::warn!("{}: {e}: ways and bandwidth are not controlled here", r.dir().display());
                self.resctrl = None;
                self.resctrl_left = true;
                (self.platform.llc, self.platform.mba) = (None, None);
            }
            Err(e) => tracing::warn!("{e}: another controller of resctrl would not be noticed"),
        }
    }

    /// resctrl may be unmounted and mounted anew, with other options: our classes are made again there. Where it offers something else
    /// than the policy goes by, [`LocalServer::resctrl_changed`] says so.
    pub(super) fn look_at_resctrl(&mut self) {
        let Some(r) = &self.resctrl else { return self.look_for_resctrl() };
        let Some(anew) = r.mounted_anew(&self.config.root, self.layout.classes.keys()) else { return };
        let offers = |r: &Resctrl| (r.cbm_bits(), r.min_cbm_bits(), r.mba_steps());
        let (at, before, now) = (r.dir().display().to_string(), offers(r), offers(&anew));
        self.resctrl = Some(anew);
        self.layout = Layout::default();
        if before != now {
            self.resctrl_changed = Some(format!("resctrl at {at} was mounted anew and offers other ways or steps of bandwidth"));
        } else if self.unsettled.is_empty() && self.services.values().any(|s| s.placed) {
            tracing::warn!("{at}: was mounted anew, or somebody removed a class of ours: the classes are made again");
            self.replan_at = Some(self.observations);
            if let Err(e) = self.put_in_force(&Plan::default(), self.wait()) {
                tracing::warn!("{e}");
            }
        }
    }

    /// It may be mounted after the start. One that another controller has is nothing to us.
    fn look_for_resctrl(&mut self) {
        if self.resctrl_left || self.resctrl_changed.is_some() || self.config.resctrl.is_some() {
            return;
        }
        if let Some(r) = Resctrl::find(&self.config.root) {
            self.resctrl_changed = Some(format!("resctrl was mounted at {} after the start", r.dir().display()));
        }
    }

    /// Why this server's platform is no longer this host's, where resctrl was mounted anew: its owner has to open it anew.
    pub fn resctrl_changed(&self) -> Option<&str> {
        self.resctrl_changed.as_deref()
    }

    /// Groups of others that threads of services are in which are about to be placed for the first time. Where this process could not put
    /// them back (the actuator writes to no group of others) they stay, and the service with the ways of that group.
    pub(super) fn threads_of_others(&mut self, new: &BTreeMap<ServiceId, Allocation>) -> BTreeMap<ServiceId, GroupsOfOthers> {
        let mut all = BTreeMap::new();
        let Some(r) = &self.resctrl else { return all };
        for id in new.keys().filter(|id| !self.touched.contains_key(*id)) {
            let Some(cgroup) = self.services.get(id).and_then(|s| s.cgroup.as_ref()) else { continue };
            let groups = r.held_by_others(&cgroup.tids());
            let Some(first) = groups.keys().next() else { continue };
            let name = first.display();
            if r.may_put_back(groups.keys()) {
                tracing::info!("{id}: threads of it are in resctrl group {name} of somebody else, and will be again");
                all.insert(id.clone(), groups);
            } else if !self.elsewhere.contains_key(id) {
                tracing::warn!(
                    "{id}: threads of it are in resctrl group {name} of somebody else, where they could not be put back: they stay"
                );
                let control = first.iter().next().filter(|n| *n != "mon_groups").map(Path::new).unwrap_or(Path::new(""));
                self.elsewhere.insert(id.clone(), r.setting_of(control));
            }
        }
        all
    }

    /// What a service really holds of `asked`: where classes are shared, their ways and bandwidth.
    pub(super) fn held(&self, id: &str, asked: &Allocation) -> Allocation {
        if self.services.get(id).is_some_and(is_watched) {
            return asked.clone();
        }
        if let Some(s) = self.elsewhere.get(id).filter(|s| s.ways.len() == asked.ways.len()) {
            return Allocation { ways: s.ways.clone(), shared_ways: s.ways.clone(), ..asked.clone() };
        }
        let Some((ways, shared_ways)) = self.layout.held(id, &asked.shared_ways, &self.default_group) else {
            // Until it has a class it is where everybody is.
            let open = &self.default_group.ways;
            let waits = self.ways_late && asked.ways.len() == open.len();
            let with = |a: &Allocation| Allocation { ways: open.clone(), shared_ways: open.clone(), ..a.clone() };
            return if waits { with(asked) } else { asked.clone() };
        };
        if asked.ways.len() != ways.len() {
            return asked.clone();
        }
        let setting = match self.layout.place(id) {
            Some(Place::Class(c)) => &self.layout.classes[&c].setting,
            _ => &self.default_group,
        };
        Allocation { ways, shared_ways, mba_pct: setting.mba_pct.unwrap_or(asked.mba_pct), ..asked.clone() }
    }

    /// Steps to classes for `all` placed services, no more than `limit` of them, and these classes. To be called under the lock.
    pub(super) fn class_steps(
        &mut self,
        all: &BTreeMap<ServiceId, Allocation>,
        limit: usize,
    ) -> Result<(Vec<(Pass, Op)>, Layout), ServerError> {
        let Some(r) = &self.resctrl else { return Ok((vec![], Layout::default())) };
        let survey = r.survey()?;
        let mba = self.platform.mba.is_some();
        let mut needs = BTreeMap::new();
        for (id, a) in all.iter().filter(|(id, _)| !self.elsewhere.contains_key(*id)) {
            let setting = Setting { ways: a.ways.clone(), mba_pct: mba.then_some(a.mba_pct) };
            survey.check(r.info(), id, &setting)?;
            needs.insert(id.clone(), Need { setting, lc: is_lc(&self.services[id]) });
        }
        let before = survey.with_members(&self.layout);
        let mut bounds = survey.bounds;
        bounds.classes = bounds.classes.min(limit);
        let after = plan(&needs, &before, &bounds);
        let services = &self.services;
        let lc = |id: &str| services.get(id).is_some_and(is_lc);
        let ops = steps(&before, &after, r.min_cbm_bits(), lc);
        self.default_group = bounds.default;
        self.layout = before;
        Ok((ops, after))
    }

    pub(super) fn do_class_step(&self, op: &Op) -> Result<(), Refusal> {
        let Some(r) = &self.resctrl else { return Ok(()) };
        let tids = || match op {
            Op::Move { id, .. } => self.services.get(id).and_then(|s| s.cgroup.as_ref()).map(Cgroup::tids).unwrap_or_default(),
            _ => vec![],
        };
        r.execute(op, &tids)
    }

    /// `layout` is in force. What a service holds otherwise than it asked for is said once for each change.
    pub(super) fn classes_are(&mut self, layout: Layout) {
        let before = std::mem::replace(&mut self.layout, layout);
        let sharing = !self.layout.in_default.is_empty() || self.layout.classes.values().any(|c| c.members.len() > 1);
        self.replan_at = (sharing && self.platform.ways() > 0).then_some(self.observations + REPLAN_EVERY);
        let out = shortage(self.short_of);
        for (id, s) in self.services.iter().filter(|(_, s)| s.placed) {
            let (with, place) = (self.layout.companions(id), self.layout.place(id));
            if before.companions(id) != with || before.place(id) != place {
                match place {
                    Some(Place::Default) if self.platform.ways() > 0 => {
                        tracing::warn!("{id}: {out}: it is in the default group, with ways {:x?}", self.default_group.ways);
                    }
                    Some(Place::Class(c)) if !with.is_empty() => {
                        let with: Vec<&str> = with.iter().map(String::as_str).collect();
                        let ways = &self.layout.classes[&c].setting.ways;
                        tracing::warn!("{id}: {out}: it shares ways {ways:x?} with {}", with.join(", "));
                    }
                    _ => {}
                }
            }
            let contended = self.resctrl.as_ref().and_then(|r| r.info().l3.as_ref()).map_or(0, |l| l.shareable_bits);
            if is_lc(s) && s.allocation.ways.iter().any(|w| w & contended != 0) && self.platform.ways() > contended.count_ones() {
                if let Some(r) = &self.resctrl {
                    r.say_once(format!("contended {id}"), || {
                        format!(
                            "{id}: some of its ways {:x?} are shared with devices ({contended:x}): others would be steadier",
                            s.allocation.ways
                        )
                    });
                }
            }
        }
    }

    /// What leaves our classes safe without us, for those that are in force and those that are to be: writes by which one of BE jobs that
    /// stay under control (`stays`) keeps the least; and removals of all others, those of LC services first, so that whoever is in one has
    /// the default group's ways again.
    pub(super) fn class_ops(&self, to: &Layout, stays: impl Fn(&str) -> bool) -> (Vec<safe::Op>, Vec<safe::Op>) {
        let Some(r) = &self.resctrl else { return Default::default() };
        let names: BTreeSet<&String> = self.layout.classes.keys().chain(to.classes.keys()).collect();
        let members = |name: &String| -> BTreeSet<&ServiceId> {
            [&self.layout, to].into_iter().filter_map(|l| l.classes.get(name)).flat_map(|c| &c.members).collect()
        };
        let lc = |id: &&ServiceId| self.services.get(*id).is_some_and(is_lc);
        let (kept, mut gone): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|name| {
            let of = members(name);
            !of.is_empty() && of.iter().all(|id| stays(id))
        });
        gone.sort_by_key(|name| !members(name).iter().any(lc));
        let in_default =
            self.layout.in_default.union(&to.in_default).filter(|id| !self.services.contains_key(*id) || self.giving.contains(*id));
        let monitors = in_default.map(|id| safe::Op::RemoveDir { path: r.monitor(id, &Place::Default) });
        let gone = gone.into_iter().map(|name| safe::Op::RemoveDir { path: r.class_dir(name) }).chain(monitors);
        (kept.into_iter().filter_map(|name| r.least_op(name)).collect(), gone.collect())
    }

    /// Classes that there are, also those that nobody here has made.
    pub(super) fn found_classes(&self) -> Layout {
        let survey = self.resctrl.as_ref().and_then(|r| r.survey().ok());
        survey.map_or_else(|| self.layout.clone(), |s| s.with_members(&self.layout))
    }

    /// Remove every class of ours; their names.
    pub(super) fn clear_classes(&mut self) -> Result<Vec<String>, ServerError> {
        let Some(r) = &self.resctrl else { return Ok(vec![]) };
        let (services, known) = (&self.services, std::mem::take(&mut self.layout));
        self.ways_late = false;
        if !r.is_mounted(&self.config.root) {
            if known != Layout::default() {
                tracing::warn!(
                    "{}: is not mounted any more: classes of ours have gone with it, or are where else it is mounted",
                    r.dir().display()
                );
            }
            // Whoever changes files for us may have had the folder open all along.
            let dirs = known.classes.keys().map(|c| r.class_dir(c)).chain(known.in_default.iter().map(|id| r.monitor(id, &Place::Default)));
            dirs.for_each(|dir| drop(self.config.root.files.remove_dir(&dir)));
            return Ok(vec![]);
        }
        let removed = r.clear(|id| services.get(id).is_some_and(is_lc));
        if removed.is_err() {
            self.layout = r.survey().map_or(known, |s| s.layout);
        }
        removed
    }

    /// A service leaves: its threads, if it has any, go to the default group; its class goes, unless others are in it.
    pub(super) fn leave_class(&mut self, id: &str, tids: &[u32]) -> Result<(), ServerError> {
        let Some(r) = &self.resctrl else { return Ok(()) };
        let mut after = self.layout.clone();
        after.in_default.remove(id);
        after.classes.values_mut().for_each(|c| {
            c.members.remove(id);
        });
        if after == self.layout {
            return Ok(());
        }
        if !self.layout.companions(id).is_empty() {
            self.replan_at = Some(self.observations);
        }
        after.classes.retain(|_, c| !c.members.is_empty());
        // A service that leaves is not to wait, and only groups of ours are written.
        let lock = r.lock_now();
        for (_, op) in steps(&self.layout, &after, r.min_cbm_bits(), |_| false) {
            r.execute(&op, &|| tids.to_vec())?;
        }
        drop(lock);
        self.layout = after;
        Ok(())
    }

    /// Threads that entered a service's cgroup from elsewhere (`docker exec`) join its class; those born in it have inherited that.
    pub(super) fn follow_threads(&mut self, ids: &[ServiceId]) {
        self.observations += 1;
        let Some(r) = &self.resctrl else { return };
        let turn = |n: &usize| (self.observations + *n as u64).is_multiple_of(FOLLOW_EVERY);
        // Only to find their counters: a service that is watched is somebody else's to move.
        if self.observations % FOLLOW_EVERY == 1 && self.services.values().any(is_watched) {
            self.layout = r.survey().map(|s| s.layout).unwrap_or_default();
        }
        for n in (0..ids.len()).filter(turn) {
            let id = &ids[n];
            if is_watched(&self.services[id]) {
                continue;
            }
            let (Some(place), Some(cgroup)) = (self.layout.place(id), &self.services[id].cgroup) else { continue };
            match r.follow(id, &place, &|| cgroup.tids()) {
                Ok(0) => {}
                Ok(n) => tracing::info!("{id}: {n} threads that had entered its cgroup were moved to its class"),
                Err(e) => r.say_once(format!("follow {id}"), || format!("{id}: {e}")),
            }
            let Place::Class(class) = &place else { continue };
            let members = self.layout.classes.get(class).map(|c| &c.members);
            let groups: Option<Vec<&Cgroup>> = members.and_then(|m| m.iter().map(|id| self.services.get(id)?.cgroup.as_ref()).collect());
            let Some(groups) = groups.filter(|g| !g.is_empty()) else { continue };
            // Whose they were cannot be told where several share a class.
            let former = self.touched.get(id).filter(|_| groups.len() == 1).map(|f| f.threads.clone()).unwrap_or_default();
            match r.let_leavers_go(class, &former, &|| groups.iter().flat_map(|g| g.tids()).collect()) {
                Ok(0) => {}
                Ok(n) => tracing::info!("{id}: {n} threads that had left its cgroup were given back from its class"),
                Err(e) => r.say_once(format!("leave {id}"), || format!("{id}: {}", e.error)),
            }
        }
    }

    /// Local memory traffic of a service so far, bytes.
    pub(super) fn mbm_bytes(&mut self, id: &str) -> Option<u64> {
        let r = self.resctrl.as_ref().filter(|r| r.info().monitors(Event::MbmLocal.file()))?;
        let (place, alone) = (self.layout.place(id)?, self.layout.companions(id).is_empty());
        self.services.get_mut(id)?.traffic.bytes(r, id, place, alone)
    }
}
