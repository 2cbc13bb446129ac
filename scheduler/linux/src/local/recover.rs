//! Giving back: everything ([`LocalServer::reset`]), one service ([`LocalServer::stop`]), what a process that died left
//! ([`LocalServer::resume`]); and the layouts recorded for the time when there is no process at all.
//!
//! What holds, whatever interrupts this: *a service's former values are in the journal until they are in force and read back, and until no
//! layout that anybody could still put in force says otherwise.* Hence the order of every way out:
//!
//! 1. a *restoring* layout replaces the safe one: former values, BE jobs too, our groups removed. Where it cannot be written (a full disk)
//!    the way goes on without it: nothing below needs it;
//! 2. former values are written and read back; 3. classes are removed;
//! 4. the layout is forgotten, on disk and by the actuator, or what is left of it is written;
//! 5. only then does the journal forget those that have everything again.
//!
//! docs/recovery.md has what each later command does from each of these states.

use super::apply::Wait;
use super::control::Control;
use super::{unavailable, LocalServer, ResetReport, Service, Target};
use crate::cgroup::{absent, quota_value, Cgroup, Knob, Mounts};
use crate::discover::online;
use crate::engine::Engine;
use crate::journal::{is_full, Entry, Former};
use crate::own::Folder;
use crate::procfs;
use crate::procfs::Process;
use crate::resctrl::classes::Layout;
use crate::root::Root;
use crate::safe::{self, Op, SafeLayout};
use crate::unit;
use crate::working_set;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, ServerError, ServiceId};

/// What may wait for the kernel to move or reclaim memory: nothing else waits for these.
const SLOW: [Knob; 3] = [Knob::High, Knob::Memory, Knob::Mems];

/// What is owed to a service that has ended is tried again once in so many observations.
pub(super) const OWED_EVERY: u64 = 10;

/// In place of a service: what could not be given back was a class.
const RESCTRL: &str = "resctrl";

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

/// Where a service's former values belong.
enum Where {
    Here(Control),
    /// They went with it.
    Gone,
}

/// A former list of CPUs or memory nodes that nobody can have whole now.
#[derive(Clone, Debug)]
struct InPart {
    what: String,
    cause: String,
}

impl InPart {
    fn new(what: String, value: &str, lacks: CpuSet) -> Self {
        let had = if value.is_empty() { "all".to_string() } else { format!("\"{value}\"") };
        let why = "off line, lost by the group above when it went off line, or in a CPU partition";
        InPart { what, cause: format!("it had {had}, and has that again but for {lacks}, which cannot be had now: {why}") }
    }

    fn error(&self) -> ServerError {
        let remedy =
            "Switch it on, give it to the group above where that lacks it, and run surefootd reset: the journal keeps what is missing";
        unavailable(&self.what, &self.cause, remedy)
    }
}

/// What giving back came to, service by service.
#[derive(Default)]
struct Returned {
    /// In force, and read back.
    restored: Vec<ServiceId>,
    gone: Vec<ServiceId>,
    /// In force, but for CPUs or memory nodes that nobody can have now: owed to them.
    short: Vec<(ServiceId, InPart)>,
    failed: Vec<(ServiceId, ServerError)>,
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
        in_force.retain(|id, _| self.is_here(id));
        // One that no plan had been applied to has what was half written of its first.
        let back: BTreeSet<ServiceId> = self.touched.keys().filter(|id| !in_force.contains_key(*id)).cloned().collect();
        for id in back.iter().filter(|id| !self.is_here(id)) {
            tracing::info!("{id} is no longer configured, or is another service now: what it had before is given back");
        }
        let mut returned = self.give_back(&back);
        (resumed.given_back.restored, resumed.given_back.gone) = (returned.restored.clone(), returned.gone.clone());
        if in_force.is_empty() {
            match self.clear_classes() {
                Ok(removed) => resumed.given_back.groups_removed = removed,
                Err(e) => returned.failed.push((RESCTRL.into(), e)),
            }
        }
        self.settle_accounts(returned)?;
        if in_force.is_empty() {
            resumed.given_back.leases_ended = self.forget_left_leases();
            return Ok(resumed);
        }
        // With the classes of these: any other of ours is removed.
        match self.put_in_force(&Plan::whole(in_force), Wait::Here) {
            Ok(applied) => {
                resumed.adopted = applied.changed;
                resumed.given_back.leases_ended = self.forget_left_leases();
            }
            Err(e) => {
                tracing::warn!("the last plan of the run before this one does not fit any more and is given back: {e}");
                resumed.given_back = self.reset_in_part()?.0;
                resumed.refused = Some(e.to_string());
            }
        }
        Ok(resumed)
    }

    /// Under control by the journal, and the service that it was.
    fn is_here(&self, id: &str) -> bool {
        self.services.get(id).zip(self.touched.get(id)).is_some_and(|(s, former)| s.target == former.target)
    }

    /// What is to be left in force should this process vanish now, or while it goes over to `classes`: on disk before anything is
    /// changed.
    pub(super) fn record_safe_layout(&mut self, classes: &Layout) -> Result<(), ServerError> {
        let layout = self.layout_without_us(classes);
        if self.safe.as_ref() == Some(&layout) {
            return Ok(());
        }
        self.safe = None;
        let file = self.config.state_dir.join(safe::FILE);
        if let Err(e) = layout.store(&file) {
            self.layout_owed = is_full(&e);
            return Err(unavailable(format!("safe layout {}", file.display()), e, "Free disk space or give another state folder"));
        }
        self.layout_owed = false;
        let files = &self.config.root.files;
        files.keep_safe(&layout).map_err(|e| unavailable("safe layout", e, "See the log of the actuator"))?;
        self.safe = Some(layout);
        Ok(())
    }

    /// As [`LocalServer::record_safe_layout`], where control must go on: a full disk is said once, and what it had no room for is written as
    /// soon as there is some. An actuator keeps the layout at once.
    pub(super) fn record_or_owe_safe_layout(&mut self, classes: &Layout) -> Result<(), ServerError> {
        let Err(e) = self.record_safe_layout(classes) else { return Ok(()) };
        if !self.layout_owed {
            return Err(e);
        }
        let layout = self.layout_without_us(classes);
        self.config.root.files.keep_safe(&layout).map_err(|e| unavailable("safe layout", e, "See the log of the actuator"))
    }

    /// What a full disk keeps from being forgotten is forgotten here, and there with whatever is written next.
    pub(super) fn owe_given(&mut self, why: ServerError) -> Result<(), ServerError> {
        for id in std::mem::take(&mut self.given) {
            self.journal.append_or_owe(&Entry::Release { id })?;
        }
        if self.is_disk_behind() {
            Ok(())
        } else {
            Err(why)
        }
    }

    /// Whether the disk of the state folder had no room for all that is known here.
    pub fn is_disk_behind(&self) -> bool {
        self.layout_owed || self.journal.is_behind()
    }

    /// Say once that the disk is full, try again now and then, and say when everything is on it.
    pub(super) fn catch_up_on_disk(&mut self) {
        let dir = self.config.state_dir.clone();
        if self.is_disk_behind() && self.told_full && self.observations.is_multiple_of(OWED_EVERY) {
            // The layout first: the journal forgets nothing that one on disk speaks of.
            if self.layout_owed {
                let _ = self.record_safe_layout(&self.layout.clone());
            }
            if !self.layout_owed {
                self.journal.catch_up();
            }
        }
        if self.is_disk_behind() != self.told_full {
            self.told_full = !self.told_full;
            match self.told_full {
                true => tracing::warn!(
                    "{}: its disk is full. Control goes on, but what services had before is known to this process alone until there is room: \
                     free some space before it is killed",
                    dir.display()
                ),
                false => tracing::info!("{}: its disk has room again, and everything is on it", dir.display()),
            }
        }
    }

    /// LC services have what they had before, BE jobs the least; those that are being given back, or are not here any more, what they
    /// had before, whatever they are.
    fn layout_without_us(&self, classes: &Layout) -> SafeLayout {
        let (mut first, mut ops, mut slow, mut back, mut groups) = (vec![], vec![], vec![], vec![], BTreeMap::new());
        let (least_ops, gone_ops) = self.class_ops(classes, |id| self.is_held_at_least(id));
        // BE jobs that stay give first, LC services take, and then those that are to have everything again.
        for rank in 0..3 {
            for (id, former) in &self.touched {
                let (here, least) = (self.services.get(id), self.is_held_at_least(id));
                let lc = here.is_some_and(|s| matches!(s.kind, Kind::Lc { .. }));
                if rank != if least { 0 } else { 2 - u8::from(lc) } {
                    continue;
                }
                let Some(Control::Files(cgroup)) = here.map(|s| &s.control).or_else(|| self.strangers.get(id)) else { continue };
                // While one has CPUs for itself no other can have them.
                first.extend(self.writes(cgroup, former, least, |knob| knob == Knob::Partition));
                ops.extend(self.writes(cgroup, former, least, |knob| !matches!(knob, Knob::Partition | Knob::Mems)));
                if let Some(r) = self.resctrl.as_ref().filter(|_| !least && !former.threads.is_empty()) {
                    let writes = r.writes_back(&former.threads, &cgroup.tids());
                    back.extend(writes.into_iter().map(|(path, text)| Op::Write { path, text }));
                }
                // These wait until memory has moved: nothing may wait for them.
                slow.extend(self.writes(cgroup, former, least, |knob| knob == Knob::Mems));
            }
            match rank {
                0 => ops.extend(least_ops.iter().cloned()),
                1 => ops.extend(gone_ops.iter().cloned()),
                _ => {}
            }
        }
        let ops: Vec<Op> = first.into_iter().chain(ops).chain(back).chain(slow).collect();
        let in_resctrl = |dir: &Path| self.resctrl.as_ref().is_some_and(|r| dir.starts_with(r.dir()));
        for dir in ops.iter().filter_map(|op| op.path().parent()).filter(|dir| !in_resctrl(dir)) {
            if !groups.contains_key(dir) {
                groups.extend(fs::metadata(dir).ok().map(|m| (dir.to_path_buf(), m.ino())));
            }
        }
        SafeLayout { boot_id: self.boot_id.clone(), groups, ..SafeLayout::new(ops) }
    }

    /// A BE job that is to stay under control.
    fn is_held_at_least(&self, id: &str) -> bool {
        !self.giving.contains(id) && self.services.get(id).is_some_and(|s| s.kind == Kind::Be)
    }

    fn writes(&self, cgroup: &Cgroup, former: &Former, least: bool, of: impl Fn(Knob) -> bool) -> Vec<Op> {
        let least = |knob: Knob| match knob {
            _ if !least => None,
            Knob::Weight => Some(crate::cgroup::least_weight(cgroup.version).to_string()),
            Knob::Quota if self.platform.by_quota() => Some(quota_value(Some(self.platform.core_step))),
            Knob::Cpus if !self.platform.by_quota() => self.platform.managed.iter().last().map(|c| c.to_string()),
            _ => None,
        };
        let value = |knob: Knob, former: &String| least(knob).unwrap_or_else(|| former.clone());
        let writes = former.saved.iter().filter(|(knob, _)| of(**knob)).flat_map(|(knob, v)| cgroup.writes(*knob, &value(*knob, v)));
        writes.map(|(path, text)| Op::Write { path, text }).collect()
    }

    /// Nothing of ours is in force any more.
    ///
    /// # Errors
    /// A layout that could still be put in force. To remove one takes no space on a disk.
    fn forget_safe_layout(&mut self) -> Result<(), ServerError> {
        self.safe = None;
        let held = self.config.root.files.keep_safe(&SafeLayout::default());
        let file = self.config.state_dir.join(safe::FILE);
        if let Err(e) = Folder::of(&file).and_then(|(folder, name)| folder.remove(name)) {
            return Err(unavailable(file.display().to_string(), e, "Remove it"));
        }
        held.map_err(|e| unavailable("the safe layout that the actuator keeps", e, "See the log of the actuator"))
    }

    /// Services that have everything again: forgotten by the layouts, and then by the journal.
    ///
    /// # Errors
    /// The journal still knows them.
    pub(super) fn forget_given(&mut self) -> Result<(), ServerError> {
        let classes = self.layout.clone();
        if self.touched.is_empty() && classes == Layout::default() {
            self.forget_safe_layout()?;
        } else {
            self.record_safe_layout(&classes)?;
        }
        let given: Vec<ServiceId> = self.given.iter().cloned().collect();
        self.journal.release(&given)?;
        self.given.clear();
        Ok(())
    }

    /// Steps 4 and 5 of a way out. Those that failed stay known, and are named; so are those that something is owed to.
    fn settle_accounts(&mut self, returned: Returned) -> Result<(), ServerError> {
        for (id, part) in returned.short {
            // Once: it is tried again and again.
            if self.owed.insert(id) {
                tracing::warn!("{}", part.error());
            }
        }
        for id in returned.restored.into_iter().chain(returned.gone) {
            self.touched.remove(&id);
            self.strangers.remove(&id);
            self.given.insert(id);
        }
        let nothing_new = self.given.is_empty() && !self.touched.is_empty();
        let forgotten = if nothing_new { Ok(()) } else { self.forget_given() };
        self.giving.clear();
        let mut failed = returned.failed.into_iter();
        let Some((_, first)) = failed.next() else { return forgotten };
        failed.for_each(|(id, e)| tracing::error!("{id}: {e}"));
        if let Err(e) = forgotten {
            tracing::error!("{e}");
        }
        Err(first)
    }

    /// Steps 1 and 2 of a way out: these services get their former values. Each is tried, whatever becomes of the others.
    fn give_back(&mut self, ids: &BTreeSet<ServiceId>) -> Returned {
        self.end_leases_of(ids, "one of them is given back");
        let mut returned = Returned::default();
        let mut here: Vec<(ServiceId, Former, Control)> = vec![];
        let formers: Vec<(ServiceId, Former)> = ids.iter().filter_map(|id| Some((id.clone(), self.touched.get(id)?.clone()))).collect();
        // An engine may not answer for long: what needs none goes first.
        let (by_engine, by_files): (Vec<_>, Vec<_>) =
            formers.into_iter().partition(|(_, f)| f.cgroup.is_none() && matches!(f.target, Target::Container(_)));
        for (id, former) in by_files {
            match self.whereabouts(&id, &former) {
                Ok(Where::Gone) => returned.gone.push(id),
                Ok(Where::Here(control)) => {
                    if !self.services.contains_key(&id) {
                        self.strangers.insert(id.clone(), control.clone());
                    }
                    here.push((id, former, control));
                }
                Err(e) => returned.failed.push((id, e)),
            }
        }
        self.giving = ids.clone();
        let classes = self.found_classes();
        if let Err(e) = self.record_safe_layout(&classes) {
            tracing::warn!("{e}. What is given back does not depend on it");
        }
        // Before anything else: while one has CPUs for itself no other gets back a list with them. A partition of one that stays would make the
        // kernel refuse such a list, or be made invalid by it.
        if here.iter().any(|(id, former, _)| former.saved.contains_key(&Knob::Cpus) && !self.owed.contains(id)) {
            self.end_partitions();
        }
        for (id, former, control) in &here {
            if let Some(value) = former.saved.get(&Knob::Partition) {
                if let Err(e) = control.set(Knob::Partition, value) {
                    // Tried again, and told, when its turn comes.
                    tracing::debug!("CPU partition of {id}: {e}");
                }
            }
        }
        // What is refused here is tried once more after the others: it may have had to wait for one of them.
        for (id, former, control) in &here {
            if let Err(e) = self.restore(id, former, control, &|knob| !SLOW.contains(&knob)) {
                tracing::debug!("{id}: {e}");
            }
        }
        self.let_out_left(here.iter().map(|(id, _, control)| (id, control)));
        for (id, former, control) in here {
            self.keeper.end_work(&id);
            let done = self.restore(&id, &former, &control, &|_| true);
            self.came_to(id, &former, done, &mut returned);
        }
        for (id, former) in by_engine {
            match self.whereabouts(&id, &former) {
                Ok(Where::Gone) => returned.gone.push(id),
                Ok(Where::Here(control)) => {
                    let done = self.restore(&id, &former, &control, &|_| true);
                    self.came_to(id, &former, done, &mut returned);
                }
                Err(e) => returned.failed.push((id, e)),
            }
        }
        returned.restored.sort();
        returned.gone.sort();
        returned
    }

    fn came_to(&mut self, id: ServiceId, former: &Former, done: Result<Option<InPart>, ServerError>, returned: &mut Returned) {
        match done {
            Ok(None) => returned.restored.push(id),
            Ok(Some(short)) => returned.short.push((id, short)),
            Err(e) => self.failed_or_gone(id, former, e, returned),
        }
    }

    fn failed_or_gone(&mut self, id: ServiceId, former: &Former, e: ServerError, returned: &mut Returned) {
        // An engine may have forgotten a container that is still in our books.
        let by_engine = || former.cgroup.is_none() && matches!(former.target, Target::Container(_));
        match self.whereabouts(&id, former) {
            Ok(Where::Gone) => returned.gone.push(id),
            _ if by_engine() && self.gone(former).unwrap_or(false) => returned.gone.push(id),
            _ => returned.failed.push((id, e)),
        }
    }

    /// Former values of these knobs: each is tried, and all are read back in the end, when none can change another any more. Returns what
    /// could be given back in part alone.
    fn restore(&mut self, id: &str, former: &Former, control: &Control, of: &dyn Fn(Knob) -> bool) -> Result<Option<InPart>, ServerError> {
        self.keeper.let_go(id);
        let on_line = online(&self.config.root).unwrap_or(self.online);
        let of_these = || former.saved.iter().filter(|(knob, _)| of(**knob));
        let mut short = None;
        let mut set: BTreeMap<Knob, io::Error> = BTreeMap::new();
        for (knob, value) in of_these() {
            match control.give_back(*knob, value, on_line) {
                Ok(None) => {}
                Ok(Some(lacks)) => short = short.or(Some((*knob, value, lacks))),
                Err(e) => drop(set.insert(*knob, e)),
            }
        }
        let whole = of_these().filter(|(knob, _)| short.is_none_or(|s| s.0 != **knob));
        let held = whole.map(|(knob, value)| (*knob, control.check_holds(*knob, value)));
        // Why it could not be set says more than what it is instead.
        let wrong = held.filter_map(|(knob, held)| Some((knob, held.err().map(|is| set.remove(&knob).unwrap_or(is).to_string())?)));
        let all: Vec<(Knob, String)> = wrong.collect();
        all.iter().skip(1).for_each(|(knob, e)| tracing::error!("{}: {e}", control.describe(id, *knob)));
        let back = self.threads_go_back(id, former, control);
        if let Some((knob, e)) = all.into_iter().next() {
            return Err(unavailable(control.describe(id, knob), e, "Run surefootd reset again, as root"));
        }
        back.map(|()| short.map(|(knob, value, lacks)| InPart::new(control.describe(id, knob), value, lacks)))
    }

    /// Into the groups of others that they were in.
    fn threads_go_back(&self, id: &str, former: &Former, control: &Control) -> Result<(), ServerError> {
        let (Control::Files(g), Some(r), Some(group)) = (control, &self.resctrl, former.threads.keys().next()) else { return Ok(()) };
        if !r.is_mounted(&self.config.root) {
            let cause = format!("is not mounted any more, and threads of {id} were in group {} of it", group.display());
            return Err(unavailable(
                format!("resctrl at {}", r.dir().display()),
                cause,
                "Run surefootd reset, where it is mounted again or gone for good",
            ));
        }
        Ok(r.put_back(&former.threads, &g.tids())?)
    }

    /// Where the values of a service belong now. Files are looked for where they were, whatever has become of the process, unit or
    /// container that they were found by: a cgroup may outlive it, and keeps its values.
    fn whereabouts(&mut self, id: &str, former: &Former) -> Result<Where, ServerError> {
        if let Some(at) = former.cgroup.as_ref().and_then(|c| c.to_str()) {
            let mounts = Mounts::read(&self.config.root);
            return match mounts.named(at) {
                Some(g) if former.is_of_another(g.identity()) => Ok(Where::Gone),
                Some(g) => Ok(Where::Here(Control::Files(g))),
                None if mounts.lacks(at) => Ok(Where::Gone),
                None => {
                    let cause = "it cannot be found, and its hierarchies cannot tell whether it has gone";
                    Err(unavailable(format!("cgroup {at} of {id}"), cause, "Mount cgroups as they were, and run surefootd reset"))
                }
            };
        }
        if let Some(s) = self.services.get(id).filter(|s| s.target == former.target) {
            return Ok(match &s.control {
                Control::Files(g) if former.is_of_another(g.identity()) => Where::Gone,
                Control::Files(g) if Mounts::read(&self.config.root).prove_absent(&g.cpuset) => Where::Gone,
                control => Where::Here(control.clone()),
            });
        }
        // First of all: a process id may be another's by now.
        if self.gone(former)? {
            return Ok(Where::Gone);
        }
        let (control, cgroup, _) = self.control(id, &former.target)?;
        // Of the same name, but made since: what its files have is its own. An engine keeps what it was told.
        let another = matches!(control, Control::Files(_)) && former.is_of_another(cgroup.as_ref().and_then(Cgroup::identity));
        Ok(if another { Where::Gone } else { Where::Here(control) })
    }

    /// True where a target is proven to have gone and so took its values along. No answer is no proof.
    fn gone(&mut self, former: &Former) -> Result<bool, ServerError> {
        let (root, mounts) = (&self.config.root, Mounts::read(&self.config.root));
        Ok(match &former.target {
            Target::Container(name) => self.engine()?.lacks(name)?,
            Target::Cgroup(path) => mounts.lacks(&path.to_string_lossy()),
            // Found anew each time: a unit may have moved to another slice meanwhile.
            Target::Unit(name) => mounts.dir("").is_some_and(|m| root.files.is_dir(m) && unit::find(root, m, name).is_none()),
            Target::Pid(pid) => {
                let another = || former.start_ticks.zip(procfs::start_time(root, *pid)).is_some_and(|(then, now)| then != now);
                // Without /proc every process seems to have gone.
                root.path("/proc/self").is_dir() && absent(&root.path(format!("/proc/{pid}"))) || another()
            }
        })
    }

    /// Give every resource back: former CPUs and quotas, our resctrl groups; also those of a process that died.
    /// Services go on running, unplaced.
    ///
    /// # Errors
    /// The first thing that could not be given back; the journal still knows it, and the log has the others. Everything else was given back.
    pub fn reset(&mut self) -> Result<ResetReport, ServerError> {
        let (report, short) = self.reset_in_part()?;
        short.first().map_or(Ok(report), |part| Err(part.error()))
    }

    /// The same, with what could be given back in part alone, for now.
    fn reset_in_part(&mut self) -> Result<(ResetReport, Vec<InPart>), ServerError> {
        let mut report = ResetReport::default();
        // Former values are older than anything that is left to undo.
        self.unsettled.clear();
        if self.working_sets.is_none() {
            working_set::damon::end_left(&self.config.root);
        }
        // What another user's folder is called ends nobody's processes.
        let bounded = self.config.allow.is_some() || !self.config.root.is_host();
        let commands = if bounded { Ok(vec![]) } else { self.end_left_commands() };
        let all: BTreeSet<ServiceId> = self.touched.keys().cloned().collect();
        let mut returned = self.give_back(&all);
        match self.clear_classes() {
            Ok(removed) => report.groups_removed = removed,
            Err(e) => returned.failed.push((RESCTRL.into(), e)),
        }
        if let Err(e) = self.left_unknown.take().map_or_else(|| self.remove_left(), Err) {
            returned.failed.push(("containers".into(), e));
        }
        report.containers_removed = std::mem::take(&mut self.orphans_removed);
        report.commands_ended = std::mem::take(&mut self.commands_ended);
        match commands {
            Ok(ended) => report.commands_ended.extend(ended),
            Err(e) => returned.failed.push(("commands".into(), e)),
        }
        (report.restored, report.gone) = (returned.restored.clone(), returned.gone.clone());
        let short = returned.short.iter().map(|(_, part)| part.clone()).collect();
        let done = self.settle_accounts(returned);
        self.in_force.clear();
        let everything = Allocation::everything(&self.platform);
        for s in self.services.values_mut() {
            s.placed = false;
            s.allocation = everything.clone();
        }
        done?;
        report.leases_ended = self.forget_left_leases();
        Ok((report, short))
    }

    /// One service leaves, with its former values where it goes on running.
    ///
    /// # Errors
    /// What could not be given back: the service stays.
    pub(super) fn let_go(&mut self, id: &str) -> Result<(), ServerError> {
        if self.services.get(id).is_some_and(|s| matches!(s.control, Control::Watched(_))) {
            // It is in none of the books.
            self.services.remove(id);
            return Ok(());
        }
        let tids = self.services.get(id).and_then(|s| s.cgroup.as_ref()).map(Cgroup::tids).unwrap_or_default();
        let mut returned = self.give_back(&BTreeSet::from([id.into()]));
        if let Err(e) = self.leave_class(id, &tids) {
            returned.failed.push((id.into(), e));
        }
        if !returned.failed.is_empty() {
            // Not before it has left its class too.
            let failed = std::mem::take(&mut returned.failed);
            return self.settle_accounts(Returned { failed, ..Returned::default() });
        }
        if let Some(s) = self.services.remove(id).filter(|_| !returned.short.is_empty()) {
            self.strangers.insert(id.into(), s.control);
        }
        self.elsewhere.remove(id);
        self.watch.forget(id);
        self.settle_accounts(returned)
    }

    /// A service has gone with its values: nothing is left to give back.
    pub(super) fn forget(&mut self, id: &str) -> Result<(), ServerError> {
        self.end_leases_of(&BTreeSet::from([id.into()]), "one of them has ended");
        self.keeper.forget(id);
        self.services.remove(id);
        self.elsewhere.remove(id);
        self.watch.forget(id);
        let left = self.leave_class(id, &[]);
        let gone = self.touched.contains_key(id).then(|| id.into());
        self.settle_accounts(Returned { gone: gone.into_iter().collect(), ..Returned::default() }).and(left)
    }

    /// Values that another cgroup of that name had before are nobody's any more. The journal hears of it with the next layout: until then
    /// one on disk may speak of them.
    pub(super) fn let_go_of_namesake(&mut self, id: &str) {
        let Some(s) = self.services.get(id) else { return };
        if matches!(s.control, Control::Files(_)) && self.touched.get(id).is_some_and(|f| f.is_of_another(s.identity)) {
            self.touched.remove(id);
            self.in_force.remove(id);
            self.given.insert(id.into());
        }
    }

    /// Services that have ended by themselves leave.
    pub(super) fn drop_ended(&mut self) {
        self.catch_up_on_disk();
        self.pay_what_is_owed();
        let root = self.config.root.clone();
        let first: Vec<&Process> = self.services.values().filter_map(|s| s.process.as_ref()).collect();
        let mut first = Process::have_ended(&root, &first).into_iter();
        let mut has_ended = |s: &Service| s.process.as_ref().map_or_else(|| s.cgroup_has_gone(&root), |_| first.next() == Some(true));
        let ended: Vec<ServiceId> = self.services.iter().filter(|(_, s)| has_ended(s)).map(|(id, _)| id.clone()).collect();
        for id in ended {
            let said = match (self.container(&id), &self.engine) {
                (Some(c), Some(e)) => e.last_log(c),
                _ => self.services[&id].started.as_ref().map(super::command::Started::last_line).unwrap_or_default(),
            };
            tracing::warn!("{id} has ended{said}");
            if matches!(self.services[&id].control, Control::Watched(_)) {
                // Whatever else there is of that name belongs to somebody else.
                self.services.remove(&id);
                self.feed.with(|w| w.forget(&id));
                continue;
            }
            let launched = self.container(&id).map(str::to_string);
            if let (Some(c), Some(e)) = (&launched, self.engine.clone()) {
                let _ = e.remove(c);
            }
            let started = self.services[&id].started.is_some();
            if let Err(e) = self.end_command(&id) {
                tracing::error!("{e}");
            }
            if let Err(e) = if launched.is_some() || started { self.forget(&id) } else { self.drop_with_former_values(&id) } {
                tracing::error!("{e}");
            }
        }
    }

    /// A first process may end while its cgroup has others (a server that replaces itself), and an engine keeps the limits of a
    /// container that has stopped: both would keep what was set here. What cannot be given back stays in the journal.
    fn drop_with_former_values(&mut self, id: &str) -> Result<(), ServerError> {
        let returned = self.give_back(&BTreeSet::from([id.into()]));
        if let Some(s) = self.services.remove(id).filter(|_| !returned.failed.is_empty() || !returned.short.is_empty()) {
            self.strangers.insert(id.into(), s.control);
            if !returned.failed.is_empty() {
                self.owed.insert(id.into());
            }
        }
        self.elsewhere.remove(id);
        self.watch.forget(id);
        let left = self.leave_class(id, &[]);
        self.settle_accounts(returned).and(left)
    }

    /// What could not be given back when a service ended is tried again now and then: its folders go one after the other, and what is
    /// unmounted may be mounted again.
    fn pay_what_is_owed(&mut self) {
        self.owed.retain(|id| self.touched.contains_key(id) && !self.services.contains_key(id));
        if self.owed.is_empty() || !self.observations.is_multiple_of(OWED_EVERY) {
            return;
        }
        let returned = self.give_back(&self.owed.clone());
        let done: Vec<String> = returned.restored.iter().chain(&returned.gone).cloned().collect();
        if !done.is_empty() {
            tracing::info!("{}: what could not be given back at its end has been, or has gone", done.join(", "));
        }
        if let Err(e) = self.settle_accounts(returned) {
            tracing::debug!("{e}");
        }
    }

    /// True also for one that has left already.
    pub(super) fn has_ended(&self, id: &str) -> bool {
        self.services.get(id).is_none_or(|s| s.has_ended(&self.config.root))
    }
}

impl Service {
    fn has_ended(&self, root: &Root) -> bool {
        if let Some(process) = &self.process {
            return process.has_ended(root);
        }
        self.cgroup_has_gone(root)
    }

    fn cgroup_has_gone(&self, root: &Root) -> bool {
        let gone = |dir: &Path| Mounts::read(root).prove_absent(dir);
        self.cgroup.as_ref().is_some_and(|g| match g.identity() {
            // An unmounted hierarchy hides all of its groups.
            None => gone(&g.cpuset),
            now => now != self.identity,
        })
    }
}
