//! After a process that died: going on from what it left ([`LocalServer::resume`]), or giving everything back
//! ([`LocalServer::reset`]); and the safe layout, recorded for the time when there is no process at all.

use super::control::Control;
use super::{unavailable, LocalServer, ResetReport, Service, Target};
use crate::cgroup::{absent, quota_value, Knob};
use crate::engine::Engine;
use crate::journal::{Entry as Event, Former};
use crate::own::Folder;
use crate::procfs;
use crate::resctrl::classes::Layout;
use crate::root::Root;
use crate::safe::{self, Op, SafeLayout};
use crate::unit;
use surefoot_server::{Allocation, Kind, Plan, ServerError, ServiceId};

/// What [`LocalServer::resume`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Services with the allocations of the last applied plan.
    pub adopted: Vec<ServiceId>,
    /// What belongs to none of the services that are here now.
    pub given_back: ResetReport,
    /// Why the last plan could not be put back, where everything was given back instead.
    pub refused: Option<String>,
}

impl LocalServer {
    /// Containers are ours alone while we hold the lock, so any that carry our label now were left by a run that died.
    pub(super) fn find_left(&mut self) -> Result<(), ServerError> {
        // Without an engine there is nothing that could be left in one.
        let Ok(engine) = Engine::find() else { return Ok(()) };
        self.left = engine.owned(Some(&self.owner))?;
        self.engine = Some(engine);
        Ok(())
    }

    /// Containers of a dead run that nobody launched again.
    pub(super) fn remove_left(&mut self) -> Result<(), ServerError> {
        for id in std::mem::take(&mut self.left) {
            if let Err(why) = self.may_remove(&id) {
                tracing::warn!("container {id} of a run before this one is left as it is: {why}");
                continue;
            }
            self.engine()?.remove(&id)?;
            self.orphans_removed.push(id);
        }
        Ok(())
    }

    /// Go on from what a process that died left: services that are here again get the allocations of its last applied plan,
    /// whatever it had half written; everything else of it is given back. Call when all services are here.
    ///
    /// What was remembered is a hint: where it does not fit this host any more everything is given back instead.
    ///
    /// # Errors
    /// What could not be given back.
    pub fn resume(&mut self) -> Result<Resumed, ServerError> {
        self.remove_left()?;
        let mut resumed = Resumed::default();
        resumed.given_back.containers_removed = std::mem::take(&mut self.orphans_removed);
        let mut in_force = std::mem::take(&mut self.in_force);
        for (id, former) in self.touched.clone() {
            if self.services.get(&id).is_some_and(|s| s.target == former.target) {
                continue;
            }
            in_force.remove(&id);
            tracing::info!("{id} is no longer configured, or is another service now: what it had before is given back");
            match self.give_back(&id, &former)? {
                true => resumed.given_back.restored.push(id),
                false => resumed.given_back.gone.push(id),
            }
        }
        in_force.retain(|id, _| self.services.contains_key(id));
        if in_force.is_empty() {
            resumed.given_back.groups_removed = self.clear_classes()?;
            return Ok(resumed);
        }
        // With the classes of these: any other of ours is removed.
        match self.put_in_force(&Plan { allocations: in_force, ..Plan::default() }) {
            Ok(applied) => resumed.adopted = applied.changed,
            Err(e) => {
                tracing::warn!("the last plan of the run before this one does not fit any more and is given back: {e}");
                resumed.given_back = self.reset()?;
                resumed.refused = Some(e.to_string());
            }
        }
        Ok(resumed)
    }

    /// What is to be left in force should this process vanish now, or while it goes over to `classes`: on disk before anything is
    /// changed.
    pub(super) fn record_safe_layout(&mut self, classes: &Layout) -> Result<(), ServerError> {
        let (mut first, mut ops, mut slow) = (vec![], vec![], vec![]);
        // BE jobs first: they give, LC services take.
        for lc in [false, true] {
            for (id, former) in &self.touched {
                let Some(s) = self.services.get(id).filter(|s| matches!(s.kind, Kind::Lc { .. }) == lc) else { continue };
                // While one has CPUs for itself no other can have them.
                first.extend(self.safe_writes(s, former, |knob| knob == Knob::Partition));
                ops.extend(self.safe_writes(s, former, |knob| !matches!(knob, Knob::Partition | Knob::Mems)));
                // These wait until memory has moved: nothing may wait for them.
                slow.extend(self.safe_writes(s, former, |knob| knob == Knob::Mems));
            }
            ops.extend(self.safe_classes(classes, lc));
        }
        let ops = first.into_iter().chain(ops).chain(slow).collect();
        let layout = SafeLayout { boot_id: self.boot_id.clone(), ..SafeLayout::new(ops) };
        if self.safe.as_ref() != Some(&layout) {
            layout.save(&self.config.state_dir.join(safe::FILE))?;
            let files = &self.config.root.files;
            files.keep_safe(&layout).map_err(|e| unavailable("safe layout", e, "See the log of the actuator"))?;
            self.safe = Some(layout);
        }
        Ok(())
    }

    fn safe_writes(&self, s: &Service, former: &Former, of: impl Fn(Knob) -> bool) -> Vec<Op> {
        let Control::Files(cgroup) = &s.control else { return vec![] };
        let least = |knob: Knob| match knob {
            Knob::Weight => Some(s.control.least_weight().to_string()),
            Knob::Quota if self.platform.by_quota() => Some(quota_value(Some(self.platform.core_step))),
            Knob::Cpus if !self.platform.by_quota() => self.platform.managed.iter().last().map(|c| c.to_string()),
            _ => None,
        };
        let value = |knob: Knob, former: &String| if s.kind == Kind::Be { least(knob) } else { None }.unwrap_or_else(|| former.clone());
        let writes = former.saved.iter().filter(|(knob, _)| of(**knob)).flat_map(|(knob, v)| cgroup.writes(*knob, &value(*knob, v)));
        writes.map(|(path, text)| Op::Write { path, text }).collect()
    }

    /// Nothing of ours is in force any more.
    fn forget_safe_layout(&mut self) {
        self.safe = None;
        if let Err(e) = self.config.root.files.keep_safe(&SafeLayout::default()) {
            tracing::warn!("the actuator keeps the safe layout: {e}");
        }
        let file = self.config.state_dir.join(safe::FILE);
        if let Err(e) = Folder::of(&file).and_then(|(folder, name)| folder.remove(name)) {
            tracing::warn!("{}: {e}", file.display());
        }
    }

    /// Former values of one service.
    pub(super) fn restore(&mut self, id: &str, control: &Control) -> Result<(), ServerError> {
        self.keeper.forget(id);
        let Some(former) = self.touched.get(id) else { return Ok(()) };
        for (knob, value) in &former.saved {
            control.set(*knob, value).map_err(|e| unavailable(control.describe(id, *knob), e, "Run reset again as root"))?;
        }
        self.touched.remove(id);
        self.journal.append(&Event::Release { id: id.into() })
    }

    /// True where a target is proven to have gone and so took its values along. No answer is no proof.
    pub(super) fn gone(&mut self, former: &Former) -> Result<bool, ServerError> {
        let root = &self.config.root;
        Ok(match &former.target {
            Target::Container(name) => self.engine()?.lacks(name)?,
            Target::Cgroup(path) => self.mounts.lacks(&path.to_string_lossy()),
            // Found anew each time: a unit may have moved to another slice meanwhile.
            Target::Unit(name) => self.mounts.dir("").is_some_and(|m| root.files.is_dir(m) && unit::find(root, m, name).is_none()),
            Target::Pid(pid) => {
                let another = || former.start_ticks.zip(procfs::start_time(root, *pid)).is_some_and(|(then, now)| then != now);
                // Without /proc every process seems to have gone.
                root.path("/proc/self").is_dir() && absent(&root.path(format!("/proc/{pid}"))) || another()
            }
        })
    }

    /// Former values of a service of ours or of a process that died; false where the service has gone.
    pub(super) fn give_back(&mut self, id: &str, former: &Former) -> Result<bool, ServerError> {
        let here = self.services.get(id).filter(|s| s.target == former.target);
        let restored = match here.map(|s| s.control.clone()) {
            Some(control) => self.restore(id, &control),
            // First of all: a process id may be another's by now.
            None if self.gone(former)? => Ok(()),
            None => self.control(id, &former.target).and_then(|(control, cgroup, _)| {
                let group = cgroup.as_ref().and_then(crate::cgroup::Cgroup::identity);
                // Of the same name, but made since: what it has is its own.
                if former.is_of_another(group) {
                    return Ok(());
                }
                self.restore(id, &control)
            }),
        };
        if !self.touched.contains_key(id) {
            return Ok(true);
        }
        match restored {
            Err(e) if !self.gone(former).unwrap_or(false) => Err(e),
            _ => {
                self.touched.remove(id);
                self.journal.append(&Event::Release { id: id.into() })?;
                Ok(false)
            }
        }
    }

    /// Give every resource back: former CPUs and quotas, our resctrl groups; also those of a process that died.
    /// Services go on running, unplaced.
    ///
    /// # Errors
    /// The first thing that could not be given back; the journal still knows it. Everything else was given back.
    pub fn reset(&mut self) -> Result<ResetReport, ServerError> {
        let mut failed = self.remove_left().err();
        let mut report = ResetReport { containers_removed: std::mem::take(&mut self.orphans_removed), ..Default::default() };
        // Former values are older than anything that is left to undo.
        self.unsettled.clear();
        self.give_partitions_back();
        for (id, former) in self.touched.clone() {
            match self.give_back(&id, &former) {
                Ok(true) => report.restored.push(id),
                Ok(false) => report.gone.push(id),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        match self.clear_classes() {
            Ok(removed) => report.groups_removed = removed,
            Err(e) => failed = failed.or(Some(e)),
        }
        if failed.is_none() {
            self.forget_safe_layout();
        }
        self.in_force.clear();
        let everything = Allocation::everything(&self.platform);
        for s in self.services.values_mut() {
            s.placed = false;
            s.allocation = everything.clone();
        }
        failed.map_or(Ok(report), Err)
    }

    /// Before anything else: while one service has CPUs for itself no other gets back a list with them. What fails here is tried again
    /// and told when that service's turn comes.
    fn give_partitions_back(&self) {
        for (id, former) in &self.touched {
            if let (Some(s), Some(value)) = (self.services.get(id), former.saved.get(&Knob::Partition)) {
                if let Err(e) = s.control.set(Knob::Partition, value) {
                    tracing::debug!("CPU partition of {id}: {e}");
                }
            }
        }
    }

    /// Services that have ended by themselves leave.
    pub(super) fn drop_ended(&mut self) {
        let root = self.config.root.clone();
        let ended: Vec<ServiceId> = self.services.iter().filter(|(_, s)| s.has_ended(&root)).map(|(id, _)| id.clone()).collect();
        for id in ended {
            let said = match (self.container(&id), &self.engine) {
                (Some(c), Some(e)) => e.last_log(c),
                _ => String::new(),
            };
            tracing::warn!("{id} has ended{said}");
            if matches!(self.services[&id].control, Control::Watched(_)) {
                // Whatever else there is of that name belongs to somebody else.
                self.services.remove(&id);
                self.feed.with(|w| w.forget(&id));
                continue;
            }
            if let (Some(c), Some(e)) = (self.container(&id).map(str::to_string), self.engine.clone()) {
                let _ = e.remove(&c);
            }
            self.restore_what_lives_on(&id);
            if let Err(e) = self.forget(&id) {
                tracing::error!("{e}");
            }
            if let Err(e) = self.leave_class(&id, &[]) {
                tracing::error!("{e}");
            }
        }
    }

    /// A first process may end while its cgroup has others (a server that replaces itself), and an engine keeps the limits of a
    /// container that has stopped: both would keep what was set here.
    fn restore_what_lives_on(&mut self, id: &str) {
        let Some(s) = self.services.get(id) else { return };
        let control = s.control.clone();
        let lives_on = match &control {
            Control::Files(g) => s.identity.is_some() && g.identity() == s.identity,
            Control::Engine { .. } => s.launched.is_none(),
            Control::Watched(_) => false,
        };
        if let Err(e) = if lives_on { self.restore(id, &control) } else { Ok(()) } {
            tracing::debug!("{id} has ended, and what it had before is not given back: {e}");
        }
    }

    /// True also for one that has left already.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.services.get(id).is_none_or(|s| s.has_ended(&self.config.root))
    }
}

impl Service {
    fn has_ended(&self, root: &Root) -> bool {
        match &self.process {
            Some(process) => process.has_ended(root),
            None => self.cgroup.as_ref().is_some_and(|g| g.identity() != self.identity),
        }
    }
}
