//! Ways and bandwidth of this server's services: their needs become classes, and what they really hold is told.

use super::apply::GroupsOfOthers;
use super::control::Control;
use super::limits::Value;
use super::observe::STEADY_LOOKS;
use super::watch::control_group;
use super::{LocalServer, Service};
use crate::cgroup::Cgroup;
use crate::claim;
use crate::resctrl::classes::{plan, Layout, Need, Place, Setting};
use crate::resctrl::monitor::Event;
use crate::resctrl::offer::Offer;
use crate::resctrl::refusal::{Cause, Refusal};
use crate::resctrl::steps::{steps, Op};
use crate::resctrl::{may_be_mounted, Resctrl};
use crate::safe;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use surefoot_server::order::Pass;
use surefoot_server::{Allocation, Kind, Plan, ServerError, ServiceId};

/// While classes are shared: whether there is room again is looked at once in so many observations.
const REPLAN_EVERY: u64 = 50;

fn is_lc(s: &Service) -> bool {
    matches!(s.kind, Kind::Lc { .. })
}

/// The holders of what is not on offer.
pub(super) fn said(offer: &Offer) -> String {
    if offer.taken.is_empty() {
        return "nobody holds ways alone".into();
    }
    offer.taken.join("; ")
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
                (self.resctrl, self.offer) = (None, Offer::default());
                self.resctrl_left = true;
                (self.platform.llc, self.platform.mba) = (None, None);
            }
            Err(e) => tracing::warn!("{e}: another controller of resctrl would not be noticed"),
        }
    }

    /// Others may take ways for themselves alone, or free them. Where as many are left, only others, classes are made again there; where
    /// fewer or more are, for some looks, [`LocalServer::resctrl_changed`] says so.
    pub(super) fn look_at_offer(&mut self) {
        let Some(r) = self.resctrl.as_ref().filter(|_| !self.watch.unmounted) else { return };
        let Ok(survey) = r.survey() else { return };
        let now = r.offer(&survey, &self.l3_of_id);
        if now.ways == self.offer.ways {
            self.other_offer = 0;
            if now.same_place(&self.offer) {
                return;
            }
            tracing::warn!("{}: others hold other ways alone now ({}): the classes are made again", r.dir().display(), said(&now));
            self.offer = now;
            self.replan_at = Some(self.observations);
            if let Err(e) = self.put_in_force(&Plan::default(), self.wait()) {
                tracing::warn!("{e}");
            }
            return;
        }
        self.other_offer += 1;
        if self.other_offer >= STEADY_LOOKS && self.resctrl_changed.is_none() {
            let at = r.dir().display();
            let (before, ways) = (self.offer.ways, now.ways);
            self.resctrl_changed = Some(format!("resctrl at {at}: {before} ways were on offer and {ways} are now ({})", said(&now)));
        }
    }

    /// It may be mounted after the start. One that another controller has is nothing to us.
    pub(super) fn look_for_resctrl(&mut self) {
        if self.resctrl_left || self.resctrl_changed.is_some() || self.config.resctrl.is_some() {
            return;
        }
        // A shorter list than that of all mounts. Once a kernel knows resctrl it goes on to.
        self.watch.may_be_mounted = self.watch.may_be_mounted || may_be_mounted(&self.config.root);
        if !self.watch.may_be_mounted {
            return;
        }
        if let Some(r) = Resctrl::find(&self.config.root) {
            self.resctrl_changed = Some(format!("resctrl was mounted at {} after the start", r.dir().display()));
        }
    }

    /// Why this server's platform is no longer this host's, where resctrl was mounted anew or others hold other ways alone: its owner has
    /// to open it anew.
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
                let control = control_group(first);
                let setting = r.setting_of(&control);
                self.elsewhere.insert(id.clone(), (control, setting));
            }
        }
        all
    }

    /// What a service really holds of `asked`: where classes are shared, their ways and bandwidth.
    pub(super) fn held(&self, id: &str, asked: &Allocation) -> Allocation {
        if self.services.get(id).is_some_and(is_watched) {
            return asked.clone();
        }
        let ids = &self.group_domains;
        if let Some((_, s)) = self.elsewhere.get(id).filter(|(_, s)| !asked.ways.is_empty() && s.ways.len() == ids.len()) {
            let ways = self.offer.to_platform(ids, &s.ways);
            return Allocation { shared_ways: ways.clone(), ways, ..asked.clone() };
        }
        let asked = &self.with_what_stays(id, asked);
        let shared = self.offer.to_hardware(ids, &asked.shared_ways);
        let Some((ways, shared_ways)) = self.layout.held(id, &shared, &self.default_group) else {
            // Without a class, for whatever reason, it is where all others are.
            let Setting { ways: open, mba_pct } = &self.default_group;
            let open = self.offer.to_platform(ids, open);
            if open.is_empty() || asked.ways.len() != open.len() {
                return asked.clone();
            }
            return Allocation { ways: open.clone(), shared_ways: open, mba_pct: mba_pct.unwrap_or(asked.mba_pct), ..asked.clone() };
        };
        let (ways, shared_ways) = (self.offer.to_platform(ids, &ways), self.offer.to_platform(ids, &shared_ways));
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
        // CPUs go on where it is not mounted any more.
        let Some(r) = self.resctrl.clone().filter(|_| !self.watch.unmounted) else { return Ok((vec![], Layout::default())) };
        let survey = r.survey()?;
        self.note_foreign(&survey);
        let mba = self.platform.mba.is_some();
        let before = survey.with_members(&self.layout);
        let stays = |id: &ServiceId| self.limits.keeps(id, Value::Ways);
        let (mut needs, mut wrong) = (BTreeMap::new(), None);
        for (id, a) in all.iter().filter(|(id, _)| !self.elsewhere.contains_key(*id)) {
            let setting = match before.place(id).filter(|_| stays(id)) {
                Some(Place::Class(c)) => before.classes[&c].setting.clone(),
                _ if stays(id) => continue,
                _ => Setting { ways: self.offer.to_hardware(&survey.domains, &a.ways), mba_pct: mba.then_some(a.mba_pct) },
            };
            if let Err(e) = survey.check(r.info(), id, &setting).or_else(|e| if stays(id) { Ok(()) } else { Err(e) }) {
                wrong = Some((id.clone(), e));
                break;
            }
            needs.insert(id.clone(), Need { setting, lc: is_lc(&self.services[id]) });
        }
        if let Some((id, e)) = wrong {
            (self.default_group, self.group_domains) = (survey.bounds.default, survey.domains);
            self.layout = before;
            self.learn_ways(vec![id], &e);
            return Err(e);
        }
        let mut bounds = survey.bounds;
        bounds.classes = bounds.classes.min(limit);
        // A class needs ways of its own where there are any, and without ways and bandwidth (L2 alone) there is nothing to give by one.
        if self.platform.llc.is_none() && (self.platform.mba.is_none() || r.info().l3.is_some()) {
            bounds.classes = 0;
        }
        let mut after = plan(&needs, &before, &bounds);
        after.in_default.extend(before.in_default.iter().filter(|id| stays(id)).cloned());
        let services = &self.services;
        let lc = |id: &str| services.get(id).is_some_and(is_lc);
        let mut ops = steps(&before, &after, r.min_cbm_bits(), lc);
        // Its threads were refused: they stay where they are.
        ops.retain(|(_, op)| !matches!(op, Op::Move { id, .. } if stays(id)));
        (self.default_group, self.group_domains) = (bounds.default, survey.domains);
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
        if let Some(r) = self.resctrl.as_ref().filter(|_| !self.watch.unmounted) {
            self.watch.leave(r, &self.layout);
        }
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
            let ways = self.offer.to_hardware(&self.group_domains, &s.allocation.ways);
            if is_lc(s) && ways.iter().any(|w| w & contended != 0) && self.platform.ways() > contended.count_ones() {
                if let Some(r) = &self.resctrl {
                    r.say_once(format!("contended {id}"), || {
                        format!("{id}: some of its ways {ways:x?} are shared with devices ({contended:x}): others would be steadier")
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
        let left: BTreeSet<String> = self.watch.names().chain(known.classes.keys()).cloned().collect();
        self.watch.clear();
        self.ways_late = false;
        if !r.is_mounted(&self.config.root) {
            if known != Layout::default() || !left.is_empty() {
                tracing::warn!(
                    "{}: is not mounted any more: classes of ours have gone with it, or are where else it is mounted",
                    r.dir().display()
                );
            }
            // Whoever changes files for us may have had the folder open all along.
            let dirs = left.iter().map(|c| r.class_dir(c)).chain(known.in_default.iter().map(|id| r.monitor(id, &Place::Default)));
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
        self.watch.leave(r, &self.layout);
        Ok(())
    }

    /// Local memory traffic of a service so far, bytes.
    pub(super) fn mbm_bytes(&mut self, id: &str) -> Option<u64> {
        let r = self.resctrl.as_ref().filter(|r| r.info().monitors(Event::MbmLocal.file()))?;
        let (place, alone) = (self.layout.place(id)?, self.layout.companions(id).is_empty());
        self.services.get_mut(id)?.traffic.bytes(r, id, place, alone)
    }
}
