//! From a plan to writes: validated whole, ordered so that every prefix is sound (`surefoot_server::order`), undone in reverse
//! when one fails. What cannot even be undone is kept and tried again before anything else is done.

use super::control::Control;
use super::limits::{is_refusal, Value, FIRST_PAUSE};
use super::step::Step;
use super::{unavailable, LocalServer, Target};
use crate::cgroup::{quota_cores, quota_value, Knob};
use crate::journal::{Entry as Event, Former};
use crate::resctrl::lock::{Lock, Turn};
use crate::resctrl::refusal::{Cause, Refusal};
use crate::resctrl::steps::Op;
use crate::resctrl::Resctrl;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;
use surefoot_server::limits::check_plan;
use surefoot_server::order::{limit_pass, order, Pass};
use surefoot_server::validate::validate;
use surefoot_server::{Allocation, Applied, CpuSet, Kind, Plan, ServerError, ServiceId};

/// Groups of others in resctrl with the threads that were in them, see [`Former::threads`].
pub(super) type GroupsOfOthers = BTreeMap<PathBuf, Vec<u32>>;

/// Where to wait for another tool's lock of resctrl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// In the call: nobody counts on it to return at once.
    Here,
    /// Not at all: CPUs now, ways at a later tick ([`LocalServer::catch_up`]).
    Beside,
}

/// What a plan may do to classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClassTurn {
    NotNeeded,
    Now,
    Later,
}

/// Attempts to undo a write before it is left for later.
const UNDO_ATTEMPTS: u32 = 3;

impl LocalServer {
    /// What services hold that a plan has placed.
    pub(super) fn placed(&self) -> BTreeMap<ServiceId, Allocation> {
        self.services.iter().filter(|(_, s)| s.placed).map(|(id, s)| (id.clone(), s.allocation.clone())).collect()
    }

    pub(super) fn put_in_force(&mut self, plan: &Plan, wait: Wait) -> Result<Applied, ServerError> {
        self.settle()?;
        if let Some(id) = plan.changes.keys().find(|id| !self.services.contains_key(*id)) {
            return Err(ServerError::Invalid(format!("no service \"{id}\" here. There are: {}", self.names())));
        }
        if let Some(id) = plan.changes.keys().find(|id| matches!(self.services[*id].control, Control::Watched(_))) {
            return Err(ServerError::Invalid(format!("service \"{id}\" is only watched. Adopt it to control it")));
        }
        let placed = self.placed();
        let mut all = placed.clone();
        let mut new: BTreeMap<ServiceId, Allocation> = BTreeMap::new();
        for (id, s) in &self.services {
            let asked = plan.asks(id, s.placed, &s.allocation).map_err(ServerError::Invalid)?;
            new.extend(asked.map(|a| (id.clone(), a)));
        }
        all.extend(new.clone());
        validate(&self.platform, &all).map_err(ServerError::Invalid)?;
        check_plan(&self.platform, plan, &placed, &all).map_err(ServerError::Invalid)?;
        new.retain(|id, a| {
            let s = &self.services[id];
            // What was refused stays: to ask for it again changes nothing, until it is due.
            !s.placed || s.allocation != self.with_what_stays(id, a)
        });
        if let Some(why) = new.iter().find_map(|(id, a)| self.breaks(id, a)) {
            return Err(ServerError::Invalid(why));
        }
        self.end_leases_before(&new);
        let (turn, lock) = self.turn(&new, wait);
        if new.is_empty() && turn == ClassTurn::NotNeeded {
            return Ok(Applied::default());
        }
        for (id, _) in new.iter().filter(|(id, a)| a.mem_limit_bytes != self.services[*id].allocation.mem_limit_bytes) {
            self.keeper.end_lowering(id);
        }
        if turn == ClassTurn::Now {
            self.short_of = None;
        }
        let threads = self.threads_of_others(&new);
        // Ways that must not be asked for are refused with the plan, whoever has the lock.
        let (mut ops, mut classes) = match turn {
            ClassTurn::NotNeeded => (vec![], self.layout.clone()),
            ClassTurn::Now => self.class_steps(&all, usize::MAX)?,
            ClassTurn::Later => {
                self.class_steps(&all, usize::MAX)?;
                (vec![], self.layout.clone())
            }
        };
        let mut steps = match self.steps(&new, ops) {
            Ok(steps) => steps,
            Err(e) => {
                self.learn_missing(&new, &e);
                return Err(e);
            }
        };
        self.touch(&new, threads)?;
        self.open_partitions(&new);
        self.record_or_owe_safe_layout(&classes)?;
        while let Err((n, refusal)) = self.run(&steps) {
            // The failed step too: a knob may be more than one file.
            let shortage = refusal.is_shortage() && matches!(steps[n], Step::Class(Op::Make { .. }));
            let made = steps[..n].iter().filter(|s| matches!(s, Step::Class(Op::Make { .. }))).count();
            let Refusal { cause, error } = refusal;
            let why = self.roll_back(&steps[..=n], error);
            if !self.unsettled.is_empty() {
                return Err(why);
            }
            if !shortage {
                // One service is refused something: the next plan is made around that.
                return Err(self.learn(&steps[n], &classes, Refusal { cause, error: why }));
            }
            // Fewer classes than the processor says, or no monitoring id for another: what there is must do.
            tracing::debug!("{why}");
            self.short_of = Some(cause);
            let freed = cause.of_rmids() && self.resctrl.as_ref().is_some_and(Resctrl::give_up_monitors);
            let most = if freed {
                // It was not somebody else.
                self.watch.counted.clear();
                usize::MAX
            } else {
                self.layout.classes.len() + made
            };
            (ops, classes) = self.class_steps(&all, most)?;
            steps = self.steps(&new, ops)?;
            self.record_or_owe_safe_layout(&classes)?;
        }
        let changed: Vec<ServiceId> = new.keys().cloned().collect();
        let event = Event::Apply { t_ms: self.feed.now_ms(), allocations: new.clone(), changed: changed.clone() };
        if let Err(e) = if new.is_empty() { Ok(()) } else { self.journal.append_or_owe(&event) } {
            return Err(self.roll_back(&steps, e));
        }
        for (id, a) in &new {
            let allocation = self.with_what_stays(id, a);
            if let Some(s) = self.services.get_mut(id) {
                s.allocation = allocation;
                s.placed = true;
            }
        }
        drop(lock);
        self.tried_again(plan, new.keys());
        match turn {
            ClassTurn::NotNeeded => {}
            ClassTurn::Now => {
                self.ways_late = false;
                self.classes_are(classes);
                if let Some(r) = self.resctrl.as_ref().filter(|_| !self.short_of.is_some_and(Cause::of_rmids)) {
                    r.take_up_monitors();
                }
            }
            ClassTurn::Later => self.ways_late = true,
        }
        self.keep(&new);
        Ok(Applied { changed })
    }

    /// Whether classes may have to change, and may now. What moves CPUs alone has nothing to do with them, and asks for no lock.
    /// The lock is to be held until they are in force.
    fn turn(&self, new: &BTreeMap<ServiceId, Allocation>, wait: Wait) -> (ClassTurn, Option<Lock>) {
        let moves = |(id, a): (&ServiceId, &Allocation)| {
            let s = &self.services[id];
            !s.placed || s.allocation.ways != a.ways || s.allocation.mba_pct != a.mba_pct
        };
        let due = self.ways_late || self.replan_at.is_some_and(|at| self.observations >= at);
        if !due && !new.iter().any(moves) {
            return (ClassTurn::NotNeeded, None);
        }
        match (&self.resctrl, wait) {
            (None, _) => (ClassTurn::Now, None),
            (Some(r), Wait::Here) => (ClassTurn::Now, Some(r.lock())),
            (Some(r), Wait::Beside) => match r.turn() {
                Turn::Now(lock) => (ClassTurn::Now, Some(lock)),
                Turn::Later => (ClassTurn::Later, None),
            },
        }
    }

    /// Ways that had to wait for the lock, once it is free or has been held for too long. To be called at every tick.
    pub(super) fn catch_up(&mut self) {
        if !self.ways_late {
            return;
        }
        if let Err(e) = self.put_in_force(&Plan::default(), Wait::Beside) {
            tracing::warn!("ways that had to wait for the lock of resctrl are not in force: {e}");
            // What is in force is told, so the next plan goes by it.
            self.ways_late = false;
        }
    }

    /// What services have now goes to disk before any of it is changed for the first time. Only of what is set here: the rest is
    /// somebody else's to change meanwhile.
    fn touch(
        &mut self,
        new: &BTreeMap<ServiceId, Allocation>,
        mut threads: BTreeMap<ServiceId, GroupsOfOthers>,
    ) -> Result<(), ServerError> {
        if !self.given.is_empty() {
            // What a service had before it was given back is not what it has now.
            self.forget_given().or_else(|e| self.owe_given(e))?;
        }
        for (id, a) in new {
            let s = &self.services[id];
            let known = self.touched.get(id);
            let fresh = |k: &Knob| !known.is_some_and(|f| f.saved.contains_key(k));
            let saved: BTreeMap<Knob, String> =
                self.set_by_us(s, a).into_iter().filter(fresh).filter_map(|k| Some((k, s.control.get(k)?))).collect();
            if saved.is_empty() && known.is_some() {
                continue;
            }
            let start_ticks = s.process.as_ref().filter(|_| matches!(s.target, Target::Pid(_))).map(|p| p.start_ticks);
            let cgroup = match &s.control {
                Control::Files(g) => self.mounts.name_of(g).map(Into::into),
                _ => None,
            };
            let former = Former {
                target: s.target.clone(),
                start_ticks,
                group: s.identity,
                cgroup,
                threads: threads.remove(id).unwrap_or_default(),
                saved,
            };
            self.journal.append_or_owe(&Event::Touch { id: id.clone(), former: former.clone() })?;
            match self.touched.get_mut(id) {
                Some(known) => known.saved.extend(former.saved),
                None => drop(self.touched.insert(id.clone(), former)),
            }
        }
        Ok(())
    }

    /// What such an allocation sets, or keeps by [`LocalServer::keep`].
    fn set_by_us(&self, s: &super::Service, a: &Allocation) -> Vec<Knob> {
        let mut knobs = vec![Knob::Cpus, Knob::Quota];
        let be = s.kind == Kind::Be;
        knobs.extend((be && a.quota_cores.is_some()).then_some(Knob::Weight));
        knobs.extend((!be && self.config.partitions).then_some(Knob::Partition));
        knobs.extend((!self.platform.numa_of_cpu.is_empty()).then_some(Knob::Mems));
        knobs.extend(a.mem_limit_bytes.into_iter().flat_map(|_| [Knob::High, Knob::Memory]));
        knobs.extend(a.zswap_max_bytes.map(|_| Knob::Zswap));
        knobs
    }

    /// The writes that turn what is in force into `new`, in order; `ops` are those of its classes.
    pub(super) fn steps(&self, new: &BTreeMap<ServiceId, Allocation>, ops: Vec<(Pass, Op)>) -> Result<Vec<Step>, ServerError> {
        let mut steps: Vec<(Pass, Step)> = ops.into_iter().map(|(pass, op)| (pass, Step::Class(op))).collect();
        let ids: Vec<&ServiceId> = new.keys().collect();
        let now = |id: &ServiceId, knob: Knob| {
            let c = &self.services[id].control;
            c.get(knob).ok_or_else(|| {
                let remedy = format!("Check that {id} still runs and that its cgroup has this limit");
                unavailable(c.describe(id, knob), "cannot be read", remedy)
            })
        };
        let everything = CpuSet::range(0, self.platform.logical_cpus());
        let before: Vec<String> = ids.iter().map(|id| now(id, Knob::Cpus)).collect::<Result<_, _>>()?;
        // An empty list is that of the group above it.
        let set = |t: &String| CpuSet::parse(t).ok().filter(|s| !s.is_empty()).unwrap_or(everything);
        // What stays as it is, is not written. CPUs that are lent stay so, and may move meanwhile: a plan that moves them has ended the lease.
        let stays = |id: &ServiceId| self.limits.keeps(id, Value::Knob(Knob::Cpus)) || self.lending.contains(id);
        let to = |id: &ServiceId, b: &String| {
            if stays(id) {
                set(b)
            } else {
                self.cpus_to_set(id, new[id].cpus)
            }
        };
        let cpus: Vec<(CpuSet, CpuSet)> = ids.iter().zip(&before).map(|(id, b)| (set(b), to(id, b))).collect();
        let mut is = before;
        let by_name = |i: usize| is[i].is_empty() && cpus[i].0 == cpus[i].1 && !stays(ids[i]);
        let unnamed: Vec<usize> = (0..ids.len()).filter(|i| by_name(*i)).collect();
        for (i, id) in unnamed.into_iter().map(|i| (i, ids[i])) {
            // The same CPUs, but by name.
            steps.push((Pass::Shrink, knob_step(id, Knob::Cpus, String::new(), cpus[i].1.to_string())));
        }
        for w in order(&cpus) {
            let from = std::mem::replace(&mut is[w.holder], w.to.to_string());
            steps.push((w.pass, knob_step(ids[w.holder], Knob::Cpus, from, w.to.to_string())));
        }
        for (id, a) in new {
            let s = &self.services[id];
            let mut knob = |pass: Option<Pass>, knob: Knob, to: String| -> Result<(), ServerError> {
                if self.limits.keeps(id, Value::Knob(knob)) {
                    return Ok(());
                }
                let from = now(id, knob)?;
                // What the kernel has made of a quota is in force already.
                if from != to && !(knob == Knob::Quota && knob.same(&to, &from)) {
                    let pass = pass.unwrap_or(pass_of(knob, &from, &to));
                    steps.push((pass, knob_step(id, knob, from, to)));
                }
                Ok(())
            };
            knob(None, Knob::Quota, quota_value(a.quota_cores))?;
            // A quota bounds how much a BE job runs, not when: where it shares a CPU, an LC service that wakes goes first.
            if s.kind == Kind::Be {
                let former = self.touched.get(id).and_then(|f| f.saved.get(&Knob::Weight).cloned());
                let weight = if a.quota_cores.is_some() { Some(s.control.least_weight().into()) } else { former };
                if let Some(to) = weight.filter(|_| s.control.get(Knob::Weight).is_some()) {
                    knob(Some(Pass::Shrink), Knob::Weight, to)?;
                }
            }
            let limit = a.mem_limit_bytes.filter(|want| Some(*want) != s.allocation.mem_limit_bytes || !s.placed);
            let limit = limit.map_or(a.mem_limit_bytes, |want| Some(self.at_least_floor(id, want)));
            for (k, want, has) in
                [(Knob::Memory, limit, s.allocation.mem_limit_bytes), (Knob::Zswap, a.zswap_max_bytes, s.allocation.zswap_max_bytes)]
            {
                // One that is not placed may have what a run left that died.
                if (want == has && s.placed) || (k == Knob::Memory && self.lowers_memory(id, want)) {
                    continue;
                }
                // No limit of ours is the limit that somebody else set.
                let former = self.touched.get(id).and_then(|f| f.saved.get(&k).cloned());
                if let Some(to) = want.map(|b| b.to_string()).or(former) {
                    knob(None, k, to)?;
                }
            }
        }
        steps.sort_by_key(|(pass, _)| *pass);
        Ok(steps.into_iter().map(|(_, s)| s).collect())
    }

    /// All of them; else the number of the one that failed, and why.
    fn run(&self, steps: &[Step]) -> Result<(), (usize, Refusal)> {
        steps.iter().enumerate().try_for_each(|(n, step)| self.execute(step, false).map_err(|r| (n, r)))
    }

    pub(super) fn execute(&self, step: &Step, undo: bool) -> Result<(), Refusal> {
        match step {
            Step::Knob { id, knob, from, to } => {
                let control = &self.services[id].control;
                // A write that failed may have changed nothing.
                if undo && control.get(*knob).as_ref() == Some(from) {
                    return Ok(());
                }
                let set = control.set(*knob, if undo { from } else { to });
                let set = if undo { set } else { set.and_then(|()| control.check_in_force(*knob, to)) };
                set.map_err(|e| {
                    let cause = if is_refusal(&e) { Cause::Other } else { Cause::Away };
                    let error = ServerError::Write {
                        what: control.describe(id, *knob),
                        cause: e.to_string(),
                        remedy: match e.kind() {
                            io::ErrorKind::PermissionDenied => "Run as root, or give this user the cgroup (systemd: Delegate=yes)".into(),
                            io::ErrorKind::NotFound => format!("Check that {id} still runs"),
                            _ => "Check what else writes to this cgroup".into(),
                        },
                    };
                    Refusal { cause, error }
                })
            }
            Step::Class(op) if undo => self.do_class_step(&op.inverse()),
            Step::Class(op) => self.do_class_step(op),
        }
    }

    /// Undo in reverse. Returns why: what failed, and whether the last applied plan is really back.
    fn roll_back(&mut self, done: &[Step], why: ServerError) -> ServerError {
        self.unsettled = done.to_vec();
        match self.settle() {
            Ok(()) => why,
            Err(left) => {
                tracing::error!("{why}");
                left
            }
        }
    }

    /// Undo what an earlier rollback could not.
    ///
    /// # Errors
    /// [`ServerError::Unsettled`]: some of it cannot be undone yet.
    pub(super) fn settle(&mut self) -> Result<(), ServerError> {
        while let Some(step) = self.unsettled.last().cloned() {
            if step.service().is_some_and(|id| !self.services.contains_key(id)) {
                self.unsettled.pop();
                continue;
            }
            let mut attempts = 0..UNDO_ATTEMPTS;
            let undone = loop {
                match self.execute(&step, true) {
                    Ok(()) => break Ok(()),
                    // With the service its values have gone.
                    Err(_) if step.service().is_some_and(|id| self.has_ended(id)) => break Ok(()),
                    Err(e) if attempts.next().is_none() => break Err(e),
                    Err(_) => {}
                }
            };
            if let Err(e) = undone {
                if self.gives_up(&step, &e) {
                    self.unsettled.pop();
                    continue;
                }
                let (what, cause) = match e.error {
                    ServerError::Write { what, cause, .. } => (what, cause),
                    other => ("undoing the last plan".into(), other.to_string()),
                };
                return Err(ServerError::Unsettled { what, cause, left: self.unsettled.len() });
            }
            self.unsettled.pop();
        }
        self.unsettled_since = None;
        Ok(())
    }

    /// A former value that is refused for longer than that is not to be had: the service keeps what it has, and the others need not wait.
    fn gives_up(&mut self, step: &Step, refusal: &Refusal) -> bool {
        let since = *self.unsettled_since.get_or_insert_with(Instant::now);
        let Step::Knob { id, knob, to, .. } = step else { return false };
        let gives_up = refusal.cause == Cause::Other && since.elapsed() >= FIRST_PAUSE;
        if gives_up {
            self.limit_stays_at(id, *knob, to);
            self.learn_kept(id, Value::Knob(*knob), &refusal.error);
        }
        gives_up
    }
}

/// When a quota or a limit is written: a quota that shrinks gives to those that grow; of limits see [`limit_pass`].
fn pass_of(knob: Knob, from: &str, to: &str) -> Pass {
    let bytes = |limit: &str| limit.parse().ok();
    let cores = |quota: &str| quota_cores(quota).unwrap_or(f64::INFINITY);
    match knob {
        Knob::Memory | Knob::Zswap => limit_pass(bytes(from), bytes(to)),
        _ if cores(to) > cores(from) => Pass::Grow,
        _ => Pass::Shrink,
    }
}

fn knob_step(id: &ServiceId, knob: Knob, from: String, to: String) -> Step {
    Step::Knob { id: id.clone(), knob, from, to }
}
