//! From a plan to writes: validated whole, ordered, undone in reverse when one fails.

use super::control::Control;
use super::{unavailable, LocalServer, Target};
use crate::cgroup::{quota_value, Cgroup, Knob};
use crate::journal::{Entry as Event, Former};
use std::collections::BTreeMap;
use std::io;
use surefoot_server::validate::validate;
use surefoot_server::{Allocation, Applied, CpuSet, Kind, Plan, ServerError, ServiceId};

/// One write of a plan, and how to undo it.
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

impl LocalServer {
    pub(super) fn put_in_force(&mut self, plan: &Plan) -> Result<Applied, ServerError> {
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
        for id in new.keys() {
            if !self.touched.contains_key(id) {
                let s = &self.services[id];
                let saved: BTreeMap<Knob, String> = Knob::ALL.iter().filter_map(|k| Some((*k, s.control.get(*k)?))).collect();
                let start_ticks = s.process.filter(|_| matches!(s.target, Target::Pid(_))).map(|(_, start)| start);
                let former = Former { target: s.target.clone(), start_ticks, saved };
                self.journal.append(&Event::Touch { id: id.clone(), former: former.clone() })?;
                self.touched.insert(id.clone(), former);
            }
        }
        for (n, step) in steps.iter().enumerate() {
            if let Err(e) = self.execute(step, false) {
                // The failed step too: a knob may be more than one file.
                self.roll_back(&steps[..=n]);
                return Err(e);
            }
        }
        let changed: Vec<ServiceId> = new.keys().cloned().collect();
        let event = Event::Apply { t_ms: self.feed.now_ms(), allocations: new.clone(), changed: changed.clone() };
        if let Err(e) = self.journal.append(&event) {
            self.roll_back(&steps);
            return Err(e);
        }
        for (id, a) in new {
            if let Some(s) = self.services.get_mut(&id) {
                s.allocation = a;
                s.placed = true;
            }
        }
        Ok(Applied { changed })
    }

    /// The writes that turn what is in force into `new`, those that take away first.
    pub(super) fn steps(&self, new: &BTreeMap<ServiceId, Allocation>) -> Result<Vec<Step>, ServerError> {
        let mut steps: Vec<(u8, Step)> = vec![];
        for (id, a) in new {
            let s = &self.services[id];
            let mut knob = |knob: Knob, to: String| -> Result<(), ServerError> {
                let from = s.control.get(knob).ok_or_else(|| {
                    unavailable(
                        s.control.describe(id, knob),
                        "cannot be read",
                        format!("Check that {id} still runs and that its cgroup has this limit"),
                    )
                })?;
                if from != to {
                    let takes = match knob {
                        Knob::Cpus => CpuSet::parse(&to).ok().zip(CpuSet::parse(&from).ok()).is_some_and(|(t, f)| t.is_subset(&f)),
                        _ => !to.starts_with("max"),
                    };
                    steps.push((u8::from(!takes), Step::Knob { id: id.clone(), knob, from, to }));
                }
                Ok(())
            };
            knob(Knob::Cpus, a.cpus.to_string())?;
            knob(Knob::Quota, quota_value(a.quota_cores))?;
            // A quota bounds how much a BE job runs, not when: where it shares a CPU, an LC service that wakes goes first.
            if s.kind == Kind::Be {
                let former = self.touched.get(id).and_then(|f| f.saved.get(&Knob::Weight).cloned());
                let weight = if a.quota_cores.is_some() { Some(s.control.least_weight().into()) } else { former };
                if let Some(to) = weight.filter(|_| s.control.get(Knob::Weight).is_some()) {
                    knob(Knob::Weight, to)?;
                }
            }
            for (k, now, then) in [
                (Knob::Memory, a.mem_limit_bytes, s.allocation.mem_limit_bytes),
                (Knob::Zswap, a.zswap_max_bytes, s.allocation.zswap_max_bytes),
            ] {
                if now != then {
                    knob(k, now.map_or("max".into(), |b| b.to_string()))?;
                }
            }
            let same = s.placed && s.allocation.ways == a.ways && s.allocation.mba_pct == a.mba_pct;
            if self.resctrl.is_some() && !same && (!a.ways.is_empty() || self.platform.mba.is_some()) {
                let fewer = a.n_ways() <= s.allocation.n_ways();
                let from = s.placed.then(|| (s.allocation.ways.clone(), s.allocation.mba_pct));
                steps.push((u8::from(!fewer), Step::Ways { id: id.clone(), from, to: (a.ways.clone(), a.mba_pct) }));
            }
        }
        steps.sort_by_key(|(rank, _)| *rank);
        Ok(steps.into_iter().map(|(_, s)| s).collect())
    }

    pub(super) fn execute(&self, step: &Step, undo: bool) -> Result<(), ServerError> {
        match step {
            Step::Knob { id, knob, from, to } => {
                let control = &self.services[id].control;
                control.set(*knob, if undo { from } else { to }).map_err(|e| ServerError::Write {
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

    /// Undo in reverse; what cannot be undone is said, and the journal still knows what there was.
    pub(super) fn roll_back(&self, done: &[Step]) {
        for step in done.iter().rev() {
            if let Err(e) = self.execute(step, true) {
                tracing::error!("rollback: {e}");
            }
        }
    }
}
