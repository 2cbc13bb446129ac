//! Giving back: former values, our groups and containers, also those of a process that died.

use super::control::Control;
use super::{unavailable, LocalServer, ResetReport, Target};
use crate::cgroup::absent;
use crate::engine::Engine;
use crate::journal::{Entry as Event, Former};
use crate::procfs;
use surefoot_server::{Allocation, ServerError, ServiceId};

impl LocalServer {
    /// Containers are ours alone while we hold the lock, so any that carry our label now belong to a run that died.
    pub(super) fn remove_orphans(&mut self) -> Result<(), ServerError> {
        // Without an engine there is nothing that could be left in one.
        let Ok(engine) = Engine::find() else { return Ok(()) };
        for id in engine.owned(Some(&self.owner))? {
            engine.remove(&id)?;
            self.orphans_removed.push(id);
        }
        self.engine = Some(engine);
        Ok(())
    }

    /// Former values of one service.
    pub(super) fn restore(&mut self, id: &str, control: &Control) -> Result<(), ServerError> {
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
            Target::Pid(pid) => {
                let another = || former.start_ticks.zip(procfs::start_time(root, *pid)).is_some_and(|(then, now)| then != now);
                // Without /proc every process seems to have gone.
                root.path("/proc/self").is_dir() && absent(&root.path(format!("/proc/{pid}"))) || another()
            }
        })
    }

    /// Former values of a service of ours or of a process that died; false where the service has gone.
    pub(super) fn give_back(&mut self, id: &str, former: &Former) -> Result<bool, ServerError> {
        let restored = match self.services.get(id).map(|s| s.control.clone()) {
            Some(control) => self.restore(id, &control),
            // First of all: a process id may be another's by now.
            None if self.gone(former)? => Ok(()),
            None => self.control(id, &former.target).and_then(|(control, _, _)| self.restore(id, &control)),
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
        let mut report = ResetReport { containers_removed: std::mem::take(&mut self.orphans_removed), ..Default::default() };
        let mut failed = None;
        for (id, former) in self.touched.clone() {
            match self.give_back(&id, &former) {
                Ok(true) => report.restored.push(id),
                Ok(false) => report.gone.push(id),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        if let Some(r) = &self.resctrl {
            for id in r.groups() {
                r.remove(&id)?;
                report.groups_removed.push(id);
            }
        }
        let everything = Allocation::everything(&self.platform);
        for s in self.services.values_mut() {
            s.placed = false;
            s.allocation = everything.clone();
        }
        failed.map_or(Ok(report), Err)
    }

    /// Services that have ended by themselves leave.
    pub(super) fn drop_ended(&mut self) {
        let root = self.config.root.clone();
        let ended: Vec<ServiceId> = self
            .services
            .iter()
            .filter(|(_, s)| match s.process {
                Some((pid, start)) => procfs::start_time(&root, pid) != Some(start),
                None => s.cgroup.as_ref().is_some_and(|g| !g.cpuset.is_dir()),
            })
            .map(|(id, _)| id.clone())
            .collect();
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
            if let Err(e) = self.forget(&id) {
                tracing::error!("{e}");
            }
            if let Some(Err(e)) = self.resctrl.as_ref().map(|r| r.remove(&id)) {
                tracing::error!("{e}");
            }
        }
    }
}
