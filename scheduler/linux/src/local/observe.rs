//! What a service did since it was last looked at.

use super::control::{confined, Control};
use super::{LocalServer, Reading};
use crate::cgroup::{Cgroup, Knob, Usage, Version};
use crate::discover::online;
use crate::memory_use::MemoryReading;
use crate::perf::Counters;
use crate::procfs::{self, Frequencies};
use crate::psi::Resource;
use crate::resctrl::Resctrl;
use crate::root::Root;
use crate::working_set::Watched;
use std::collections::BTreeMap;
use std::time::Instant;
use surefoot_server::features::BYTES_PER_MB_S;
use surefoot_server::{Allocation, CpuSet, Features, Kind, ServiceId};

/// CPUs go and come one after another (SMT switched off).
pub(super) const STEADY_LOOKS: u32 = 3;

impl LocalServer {
    pub(super) fn counters(&self, cgroup: Option<&Cgroup>, pid: Option<u32>) -> Option<Counters> {
        let cpus = online(&self.config.root).ok()?;
        let by_group = match cgroup {
            Some(g) if g.version == Version::V2 => Some(g.cpuset.clone()),
            Some(_) => pid.and_then(|p| {
                let text = self.config.root.read(format!("/proc/{p}/cgroup"))?;
                let path = text.lines().find_map(|l| l.split_once(":perf_event:").map(|(_, p)| p.to_string()))?;
                Some(self.mounts.dir("perf_event")?.join(path.trim_start_matches('/')))
            }),
            None => None,
        };
        match by_group.map(|d| Counters::of_cgroup(&d, &cpus)) {
            Some(Ok(c)) => return Some(c),
            Some(Err(e)) if e.raw_os_error() == Some(libc::EMFILE) => {
                tracing::warn!("no counters for a service: {e}. Raise the limit of open files (ulimit -n, LimitNOFILE=)");
                return None;
            }
            _ => {}
        }
        Counters::of_threads(&cgroup?.tids()).ok()
    }

    /// What changes slowly is read once in a while: frequencies, memory, and what somebody else allows those that are watched. `at`: now, as the
    /// rates of memory are to count it.
    pub(super) fn look_around(&mut self, at: Instant) {
        let every = self.config.look_every;
        let mut looked = false;
        let due = |at: Option<Instant>| at.is_none_or(|at| at.elapsed() >= every);
        if due(self.frequencies.0) {
            self.frequencies = (Some(Instant::now()), Frequencies::read(&self.config.root, &self.online));
            self.look_at_offer();
            let now = online(&self.config.root).unwrap_or(self.online);
            let (seen, looks) = self.other_online;
            self.other_online = (
                now,
                if now == self.online {
                    0
                } else if now == seen {
                    looks + 1
                } else {
                    1
                },
            );
        }
        for (id, s) in self.services.iter_mut().filter(|(_, s)| due(s.looked)) {
            s.looked = Some(Instant::now());
            if let Control::Watched(Some(g)) = &s.control {
                s.allocation = confined(&self.platform, g.effective_cpus(), g.get(Knob::Quota));
            }
            let mut pids = s.cgroup.as_ref().map(Cgroup::pids).unwrap_or_default();
            if pids.is_empty() {
                pids.extend(s.process.as_ref().map(|p| p.pid));
            }
            s.memory_mb = procfs::memory_mb(&self.config.root, &pids);
            let pressure = |of| Some((of, s.cgroup.as_ref()?.pressure(of)?));
            s.pressure = Resource::ALL.into_iter().filter_map(pressure).collect();
            let stalled_us = s.pressure.get(&Resource::Memory).map(|p| p.some.total_us);
            let now = s.cgroup.as_ref().map(|g| MemoryReading::of(g, stalled_us, at));
            s.memory = now.map(|n| n.view(s.memory_read.as_ref())).unwrap_or_default();
            let seen = self.working_sets.as_ref().and_then(|w| w.of(id));
            s.memory.working_set_bytes = seen.and_then(Result::ok).map(|m| m.bytes);
            s.memory_read = now;
            looked = true;
        }
        if let Some(w) = self.working_sets.as_ref().filter(|_| looked) {
            let watched = |(id, s): (&ServiceId, &super::Service)| {
                // Who only watches leaves the accessed bits alone.
                let group = s.cgroup.clone().filter(|_| !matches!(s.control, Control::Watched(_)))?;
                let name = self.mounts.name_of(&group);
                Some((id.clone(), Watched { group, name, identity: s.identity, is_lc: matches!(s.kind, Kind::Lc { .. }) }))
            };
            w.watch(self.services.iter().filter_map(watched).collect());
        }
    }

    /// CPUs that were on line at the start and those that are now, once another set has stood for some looks: this server goes by
    /// the first ones, so its owner has to open it anew.
    pub fn cpus_changed(&self) -> Option<(CpuSet, CpuSet)> {
        let (now, looks) = self.other_online;
        (looks >= STEADY_LOOKS).then_some((self.online, now))
    }

    /// Seconds for which some task of a service waited for a resource, since its cgroup was made; nothing where the kernel does not count it.
    pub fn stalled_s(&self) -> impl Iterator<Item = (&str, Resource, f64)> {
        let of = |s: &super::Service| s.pressure.iter().map(|(r, p)| (*r, p.some.total_us as f64 * 1e-6)).collect::<Vec<_>>();
        self.services.iter().flat_map(move |(id, s)| of(s).into_iter().map(move |(r, t)| (id.as_str(), r, t)))
    }

    /// CPU time that all services have used, and for how long some task of each resource's waited, both added up over the services, s.
    /// The first is None where it is not counted of one of them.
    pub fn used_by_all(&mut self) -> (Option<f64>, BTreeMap<Resource, f64>) {
        let used_us: Option<f64> = self.services.values_mut().map(|s| s.usage.as_mut()?.us()).sum();
        let mut stalled_s = BTreeMap::new();
        for (of, group) in self.services.values().filter_map(|s| s.cgroup.as_ref()).flat_map(|g| Resource::ALL.map(|r| (r, g))) {
            *stalled_s.entry(of).or_default() += group.pressure(of).map_or(0.0, |p| p.some.total_us as f64 * 1e-6);
        }
        (used_us.map(|us| us * 1e-6), stalled_s)
    }

    /// Text of the schemata of every resctrl group; none without resctrl.
    pub fn schemata(&self) -> BTreeMap<String, String> {
        self.resctrl.as_ref().map(Resctrl::schemata).unwrap_or_default()
    }

    /// The kernel's files.
    pub fn root(&self) -> &Root {
        &self.config.root
    }

    /// Features of one service at `at` since its last reading, without the neighbours' part, and instructions per second.
    pub(super) fn features(&mut self, id: &str, at: Instant) -> (Features, Option<f64>) {
        let mbm_bytes = self.mbm_bytes(id);
        let p = &self.platform;
        let in_force = self.services.get(id).map(|s| self.held(id, &s.allocation));
        let Some(s) = self.services.get_mut(id) else { return Default::default() };
        // What a service borrows is not in its allocation.
        let confined_to = (s.placed && !self.lending.contains(id)).then_some(&s.allocation.cpus);
        let now = Reading {
            at,
            usage_us: s.usage.as_mut().and_then(Usage::us),
            counts: s.counters.as_mut().map(|c| c.read(confined_to)).unwrap_or_default(),
            mbm_bytes,
        };
        let last = s.last.replace(now);
        let dt_s = last.map_or(0.0, |l| now.at.duration_since(l.at).as_secs_f64());
        // A counter that went back was reset: no rate for this interval.
        let rate = |a: Option<f64>, b: Option<f64>| Some(b? - a?).filter(|d| *d >= 0.0 && dt_s > 0.0).map(|d| d / dt_s);
        let of = |f: fn(&Reading) -> Option<f64>| rate(last.as_ref().and_then(f), f(&now));
        let cycles = of(|r| r.counts.cycles).filter(|c| *c > 0.0);
        let instructions = of(|r| r.counts.instructions);
        let ways = p.llc.and(in_force.as_ref()).map(Allocation::n_ways);
        let features = Features {
            ipc: instructions.zip(cycles).map(|(i, c)| i / c),
            llc_misses_per_s: of(|r| r.counts.llc_misses),
            mbl_mbps: of(|r| r.mbm_bytes.map(|b| b as f64)).map(|b| b / BYTES_PER_MB_S),
            cpu_usage_cores: of(|r| r.usage_us).map(|us| us * 1e-6),
            virt_mem_mb: s.memory_mb.map(|m| m.0),
            res_mem_mb: s.memory_mb.map(|m| m.1),
            alloc_cores: Some(s.allocation.cores()),
            alloc_ways: ways,
            alloc_cache_mb: ways.map(|w| w * p.mb_per_way()),
            core_freq_mhz: self.frequencies.1.mean_mhz(&s.allocation.cpus),
            ..Features::default()
        };
        if s.dead_counter.look(features.mbl_mbps, features.llc_misses_per_s) {
            tracing::warn!("{id}: its bandwidth counter stands at 0 while its cache misses: do not trust mbl_mbps here");
        }
        (features, instructions)
    }
}
