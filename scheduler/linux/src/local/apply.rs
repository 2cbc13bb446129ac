//! From a plan to writes: validated whole, ordered so that every prefix is sound (`surefoot_server::order`), undone in reverse
//! when one fails. What cannot even be undone is kept and tried again before anything else is done.

use super::control::Control;
use super::{unavailable, LocalServer, Target};
use crate::cgroup::{quota_value, Cgroup, Knob};
use crate::journal::{Entry as Event, Former};
use std::collections::BTreeMap;
use std::io;
use surefoot_server::order::{order, Masks, Pass};
use surefoot_server::validate::validate;
use surefoot_server::{Allocation, Applied, CpuSet, Kind, Plan, ServerError, ServiceId};

/// One write of a plan, and how to undo it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Knob {
        id: ServiceId,
        knob: Knob,
        from: String,
        to: String,
    },
    /// CBMs and MBA; from None = no group of its own before.
    Ways {
        id: ServiceId,
        from: Option<(Vec<u32>, u8)>,
        to: (Vec<u32>, u8),
    },
}

impl Step {
    fn service(&self) -> &ServiceId {
        match self {
            Step::Knob { id, .. } | Step::Ways { id, .. } => id,
        }
    }
}

/// Attempts to undo a write before it is left for later.
const UNDO_ATTEMPTS: u32 = 3;

/// Quota in cores of a value of [`Knob::Quota`]; infinite where there is none.
fn quota_cores(value: &str) -> f64 {
    value
        .split_once(' ')
        .and_then(|(q, p)| Some(q.parse::<f64>().ok()? / p.trim().parse::<f64>().ok().filter(|p| *p > 0.0)?))
        .unwrap_or(f64::INFINITY)
}

impl LocalServer {
    pub(super) fn put_in_force(&mut self, plan: &Plan) -> Result<Applied, ServerError> {
        self.settle()?;
        if let Some(id) = plan.allocations.keys().find(|id| !self.services.contains_key(*id)) {
            return Err(ServerError::Invalid(format!("no service \"{id}\" here. There are: {}", self.names())));
        }
        if let Some(id) = plan.allocations.keys().find(|id| matches!(self.services[*id].control, Control::Watched(_))) {
            return Err(ServerError::Invalid(format!("service \"{id}\" is only watched. Adopt it to control it")));
        }
        let mut all: BTreeMap<ServiceId, Allocation> =
            self.services.iter().filter(|(_, s)| s.placed).map(|(id, s)| (id.clone(), s.allocation.clone())).collect();
        all.extend(plan.allocations.clone());
        validate(&self.platform, &all).map_err(ServerError::Invalid)?;
        let new: BTreeMap<ServiceId, Allocation> = plan
            .allocations
            .iter()
            .filter(|(id, a)| {
                let s = &self.services[*id];
                !s.placed || s.allocation != **a
            })
            .map(|(id, a)| (id.clone(), a.clone()))
            .collect();
        if new.is_empty() {
            return Ok(Applied::default());
        }
        let steps = self.steps(&new)?;
        self.touch(&new)?;
        self.open_partitions(&new);
        for (n, step) in steps.iter().enumerate() {
            if let Err(e) = self.execute(step, false) {
                // The failed step too: a knob may be more than one file.
                return Err(self.roll_back(&steps[..=n], e));
            }
        }
        let changed: Vec<ServiceId> = new.keys().cloned().collect();
        let event = Event::Apply { t_ms: self.feed.now_ms(), allocations: new.clone(), changed: changed.clone() };
        if let Err(e) = self.journal.append(&event) {
            return Err(self.roll_back(&steps, e));
        }
        for (id, a) in &new {
            if let Some(s) = self.services.get_mut(id) {
                s.allocation = a.clone();
                s.placed = true;
            }
        }
        self.keep(&new);
        Ok(Applied { changed })
    }

    /// What services have now goes to disk before any of it is changed for the first time, and with it the safe layout.
    fn touch(&mut self, new: &BTreeMap<ServiceId, Allocation>) -> Result<(), ServerError> {
        let fresh: Vec<&ServiceId> = new.keys().filter(|id| !self.touched.contains_key(*id)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for id in fresh {
            let s = &self.services[id];
            let saved: BTreeMap<Knob, String> = Knob::ALL.iter().filter_map(|k| Some((*k, s.control.get(*k)?))).collect();
            let start_ticks = s.process.filter(|_| matches!(s.target, Target::Pid(_))).map(|(_, start)| start);
            let former = Former { target: s.target.clone(), start_ticks, saved };
            self.journal.append(&Event::Touch { id: id.clone(), former: former.clone() })?;
            self.touched.insert(id.clone(), former);
        }
        self.record_safe_layout()
    }

    /// The writes that turn what is in force into `new`, in order.
    pub(super) fn steps(&self, new: &BTreeMap<ServiceId, Allocation>) -> Result<Vec<Step>, ServerError> {
        let mut steps: Vec<(Pass, Step)> = vec![];
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
        let cpus: Vec<(CpuSet, CpuSet)> = ids.iter().zip(&before).map(|(id, b)| (set(b), new[*id].cpus)).collect();
        let mut is = before;
        for (i, id) in ids.iter().enumerate().filter(|(i, _)| is[*i].is_empty() && cpus[*i].0 == cpus[*i].1) {
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
                let from = now(id, knob)?;
                if from != to {
                    let pass = pass.unwrap_or(if quota_cores(&to) > quota_cores(&from) { Pass::Grow } else { Pass::Shrink });
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
            for (k, want, has) in [
                (Knob::Memory, a.mem_limit_bytes, s.allocation.mem_limit_bytes),
                (Knob::Zswap, a.zswap_max_bytes, s.allocation.zswap_max_bytes),
            ] {
                // One that is not placed may have what a run left that died.
                if (want == has && s.placed) || (k == Knob::Memory && self.lowers_memory(id, want)) {
                    continue;
                }
                // No limit of ours is the limit that somebody else set.
                let former = self.touched.get(id).and_then(|f| f.saved.get(&k).cloned());
                if let Some(to) = want.map(|b| b.to_string()).or(former) {
                    knob(Some(if want.is_none() { Pass::Grow } else { Pass::Shrink }), k, to)?;
                }
            }
        }
        if self.resctrl.is_some() {
            self.way_steps(new, &mut steps);
        }
        steps.sort_by_key(|(pass, _)| *pass);
        Ok(steps.into_iter().map(|(_, s)| s).collect())
    }

    /// Writes to the services' resctrl groups.
    fn way_steps(&self, new: &BTreeMap<ServiceId, Allocation>, steps: &mut Vec<(Pass, Step)>) {
        let same = |s: &super::Service, a: &Allocation| s.placed && s.allocation.ways == a.ways && s.allocation.mba_pct == a.mba_pct;
        let changed: Vec<(&ServiceId, &Allocation)> =
            new.iter().filter(|(id, a)| (!a.ways.is_empty() || self.platform.mba.is_some()) && !same(&self.services[*id], a)).collect();
        let masks = |ways: &[u32]| Masks { ways: ways.to_vec(), min_ways: self.platform.min_ways() };
        let ways: Vec<(Masks, Masks)> =
            changed.iter().map(|(id, a)| (masks(&self.services[*id].allocation.ways), masks(&a.ways))).collect();
        let mut is: Vec<Option<(Vec<u32>, u8)>> = changed
            .iter()
            .map(|(id, _)| Some(&self.services[*id]).filter(|s| s.placed).map(|s| (s.allocation.ways.clone(), s.allocation.mba_pct)))
            .collect();
        let mut step = |holder: usize, pass: Pass, to: (Vec<u32>, u8)| {
            let from = is[holder].replace(to.clone());
            if from.as_ref() != Some(&to) {
                steps.push((pass, Step::Ways { id: changed[holder].0.clone(), from, to }));
            }
        };
        for w in order(&ways) {
            step(w.holder, w.pass, (w.to.ways, changed[w.holder].1.mba_pct));
        }
        // Only the bandwidth changes, or there was no group yet.
        for (i, (_, a)) in changed.iter().enumerate() {
            step(i, Pass::Shrink, (a.ways.clone(), a.mba_pct));
        }
    }

    pub(super) fn execute(&self, step: &Step, undo: bool) -> Result<(), ServerError> {
        match step {
            Step::Knob { id, knob, from, to } => {
                let control = &self.services[id].control;
                // A write that failed may have changed nothing.
                if undo && control.get(*knob).as_ref() == Some(from) {
                    return Ok(());
                }
                let set = control.set(*knob, if undo { from } else { to });
                let set = if undo { set } else { set.and_then(|()| control.check_in_force(*knob, to)) };
                set.map_err(|e| ServerError::Write {
                    what: control.describe(id, *knob),
                    cause: e.to_string(),
                    remedy: match e.kind() {
                        io::ErrorKind::PermissionDenied => "Run as root, or give this user the cgroup (systemd: Delegate=yes)".into(),
                        io::ErrorKind::NotFound => format!("Check that {id} still runs"),
                        _ => "Check what else writes to this cgroup".into(),
                    },
                })
            }
            Step::Ways { id, from, to } => {
                let Some(r) = &self.resctrl else { return Ok(()) };
                let tids = || self.services[id].cgroup.as_ref().map(Cgroup::tids).unwrap_or_default();
                match (undo, from) {
                    (false, _) => r.set(id, &to.0, to.1, tids),
                    (true, Some((ways, mba_pct))) => r.set(id, ways, *mba_pct, tids),
                    (true, None) => r.remove(id),
                }
            }
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
            if !self.services.contains_key(step.service()) {
                self.unsettled.pop();
                continue;
            }
            let mut attempts = 0..UNDO_ATTEMPTS;
            let undone = loop {
                match self.execute(&step, true) {
                    Ok(()) => break Ok(()),
                    // With the service its values have gone.
                    Err(_) if self.has_ended(step.service()) => break Ok(()),
                    Err(e) if attempts.next().is_none() => break Err(e),
                    Err(_) => {}
                }
            };
            if let Err(e) = undone {
                let (what, cause) = match e {
                    ServerError::Write { what, cause, .. } => (what, cause),
                    other => (format!("undoing the last plan for {}", step.service()), other.to_string()),
                };
                return Err(ServerError::Unsettled { what, cause, left: self.unsettled.len() });
            }
            self.unsettled.pop();
        }
        Ok(())
    }
}

fn knob_step(id: &ServiceId, knob: Knob, from: String, to: String) -> Step {
    Step::Knob { id: id.clone(), knob, from, to }
}
