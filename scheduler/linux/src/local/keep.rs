//! What stays true between two plans: values that somebody else overwrites are put back, and what may block is done on the side.
//!
//! systemd rewrites the files of its units at every `daemon-reload`, container runtimes at every update. What was set is read back
//! once a second ([`LocalConfig::look_every`](super::LocalConfig::look_every)): a foreign value is replaced at once with one line in the log, and counted; where it comes back, the
//! pause before the next attempt doubles up to a minute, so that two controllers do not fight at every tick.
//!
//! Two writes wait for the kernel to move memory, so they run in threads of their own and not in the control loop: `cpuset.mems`
//! (memory follows the CPUs to their NUMA nodes, where there is room for it) and a memory limit below what is in use
//! ([`crate::memory`]). A plan counts as applied before they have ended.
//!
//! A limit that could not be reached is tried again after a pause that doubles up to a minute, and told until then ([`super::limits`]): the plan
//! may have given the difference to another.
//!
//! A memory limit is no lower than what the service's pages need ([`crate::floor`]). They change, so what is needed is read at each look: a limit
//! rises at once where they need more, and falls back to what was wanted as they need less.

use super::control::Control;
use super::lend::look;
use super::limits::{Value, FIRST_PAUSE};
use super::LocalServer;
use crate::cgroup::{quota_value, Cgroup, Knob, Version};
use crate::floor;
use crate::memory::{Lowering, Pace};
use crate::procfs;
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_server::{Allocation, CpuSet, Kind, ServiceId};

/// Without a foreign change for so long it is peace.
const CALM: Duration = Duration::from_secs(10);
const LEAST_PAUSE: Duration = Duration::from_secs(1);
const MOST_PAUSE: Duration = Duration::from_secs(60);
/// A raised limit is lowered again where it is more than this above what pages need: less is their coming and going.
const SLACK_FRAC: f64 = 0.05;

/// A value that is to stay.
#[derive(Debug)]
struct Held {
    value: String,
    /// It was seen in force: another value is somebody else's.
    settled: bool,
    /// A memory limit that could not be reached.
    given_up: Option<GivenUp>,
    /// A memory limit that the pages need in place of it, bytes.
    raised: Option<u64>,
}

impl Held {
    fn new(value: String, settled: bool) -> Self {
        Held { value, settled, given_up: None, raised: None }
    }

    /// It could not be reached: tried again after twice the pause before.
    fn give_up(&mut self) -> Duration {
        let pause = self.given_up.as_ref().map_or(FIRST_PAUSE, |g| (g.pause * 2).min(MOST_PAUSE));
        (self.given_up, self.settled) = (Some(GivenUp { pause, again: Instant::now() + pause }), false);
        pause
    }
}

#[derive(Debug)]
struct GivenUp {
    pause: Duration,
    again: Instant,
}

/// Somebody else who writes what we do.
#[derive(Debug, Default)]
pub(super) struct Contest {
    pub(super) count: u64,
    last: Option<Instant>,
    pause: Duration,
}

impl Contest {
    /// Another value of somebody else was found: how many there were so far; None while this one is to be left alone.
    pub(super) fn answer(&mut self, now: Instant) -> Option<u64> {
        if let Some(since) = self.last.map(|last| now.duration_since(last)) {
            if since < self.pause {
                return None;
            }
            self.pause = pause(self.pause, since);
        }
        (self.count, self.last) = (self.count + 1, Some(now));
        Some(self.count)
    }
}

/// A write that takes its time.
#[derive(Debug)]
enum Work {
    Lowering(Lowering),
    Write(Option<JoinHandle<io::Result<()>>>),
}

impl Work {
    /// How it ended, and the memory limit that is in force then.
    fn ended(&mut self) -> Option<io::Result<Option<u64>>> {
        match self {
            Work::Lowering(l) => Some(l.ended()?.map(Some)),
            Work::Write(t) => {
                t.as_ref().filter(|t| t.is_finished())?;
                let done = t.take()?.join().unwrap_or_else(|_| Err(io::Error::other("the thread ended by itself")));
                Some(done.map(|()| None))
            }
        }
    }
}

impl Drop for Work {
    /// What is given back next must not be overwritten by what was on its way.
    fn drop(&mut self) {
        if let Work::Write(t) = self {
            let _ = t.take().map(JoinHandle::join);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Keeper {
    held: BTreeMap<ServiceId, BTreeMap<Knob, Held>>,
    work: BTreeMap<(ServiceId, Knob), Work>,
    contests: BTreeMap<(ServiceId, Knob), Contest>,
    /// When the values of each were last compared.
    looked: BTreeMap<ServiceId, Instant>,
    /// Services whose group the kernel makes no partition of: said once, not tried again.
    unpartitioned: BTreeSet<ServiceId>,
}

impl Keeper {
    /// It is to be given back: nothing is kept, and nothing is under way, after this.
    pub(super) fn forget(&mut self, id: &str) {
        self.let_go(id);
        self.end_work(id);
    }

    /// Nothing is kept. What is under way goes on: to wait for it may take minutes.
    pub(super) fn let_go(&mut self, id: &str) {
        self.held.remove(id);
        self.contests.retain(|(of, _), _| of != id);
        self.unpartitioned.remove(id);
        self.looked.remove(id);
    }

    /// CPUs that a service is kept on.
    pub(super) fn cpus_of(&self, id: &str) -> Option<CpuSet> {
        let held = self.held.get(id)?.get(&Knob::Cpus)?;
        CpuSet::parse(&held.value).ok().filter(|c| !c.is_empty())
    }

    /// These values are to stay, instead of those of the plan before. A memory limit that is the same goes on as it is: where memory is
    /// being taken for it, and where that waits to be tried again.
    fn hold(&mut self, id: &str, mut values: BTreeMap<Knob, Held>) {
        let before = self.held.remove(id).and_then(|mut held| held.remove(&Knob::Memory));
        match (before, values.get_mut(&Knob::Memory)) {
            (Some(before), Some(now)) if before.value == now.value => *now = before,
            // What was on its way to another limit ends first.
            _ => self.end_lowering(id),
        }
        self.held.insert(id.into(), values);
        self.looked.remove(id);
    }

    /// Whether this value is to stay already.
    fn holds(&self, id: &str, knob: Knob, value: &str) -> bool {
        self.held.get(id).and_then(|held| held.get(&knob)).is_some_and(|h| h.value == value)
    }

    /// The thread that takes memory from a service.
    #[cfg(test)]
    pub(super) fn lowering(&self, id: &str) -> Option<std::thread::ThreadId> {
        match self.work.get(&(id.into(), Knob::Memory))? {
            Work::Lowering(l) => l.thread_id(),
            Work::Write(_) => None,
        }
    }

    /// Memory limits that stand in place of lower ones that were wanted: service, wanted, in force.
    pub(super) fn raised(&self) -> impl Iterator<Item = (&ServiceId, u64, u64)> {
        self.held.iter().filter_map(|(id, values)| {
            let held = values.get(&Knob::Memory)?;
            Some((id, held.value.parse().ok()?, held.raised.filter(|_| held.given_up.is_none())?))
        })
    }

    /// Memory limits that could not be reached, until they are: service, wanted.
    pub(super) fn given_up(&self) -> impl Iterator<Item = (&ServiceId, u64)> {
        self.held.iter().filter_map(|(id, values)| {
            let held = values.get(&Knob::Memory).filter(|h| h.given_up.is_some())?;
            Some((id, held.raised.or(held.value.parse().ok())?))
        })
    }

    /// What takes memory from a service for a limit that a plan is about to replace.
    pub(super) fn end_lowering(&mut self, id: &str) {
        self.work.retain(|(of, knob), _| of != id || *knob != Knob::Memory);
    }

    /// Wait for what is under way: it must not overwrite what is given back next.
    pub(super) fn end_work(&mut self, id: &str) {
        self.work.retain(|(of, _), _| of != id);
    }
}

/// How long to leave a foreign value alone, after one that was left alone for `before` and came back after `since`.
fn pause(before: Duration, since: Duration) -> Duration {
    if since > before + CALM {
        Duration::ZERO
    } else {
        (before * 2).clamp(LEAST_PAUSE, MOST_PAUSE)
    }
}

/// The limit in place of one that is wanted: `floor`, but for one that was raised to about that already. None: what is wanted will do.
fn raise(wanted: u64, raised: Option<u64>, floor: Option<u64>) -> Option<u64> {
    let floor = floor.filter(|f| *f > wanted)?;
    let stands = raised.filter(|r| *r >= floor && *r as f64 <= floor as f64 * (1.0 + SLACK_FRAC));
    Some(stands.unwrap_or(floor))
}

/// Bytes that these nodes have free or can drop from their page cache at once, before the kernel takes pages of others.
fn room_bytes(root: &Root, nodes: &CpuSet) -> u64 {
    let zones = root.read("/proc/zoneinfo").unwrap_or_default();
    let of = |n: u32| {
        let text = root.read(format!("/sys/devices/system/node/node{n}/meminfo"))?;
        let kb = |key: &str| text.lines().find_map(|l| l.split_once(key)?.1.trim().trim_end_matches(" kB").parse::<u64>().ok());
        let free = (kb(" MemFree:").unwrap_or(0) + kb(" Inactive(file):").unwrap_or(0)) * 1024;
        Some(free.saturating_sub(kept_free_bytes(&zones, n)))
    };
    nodes.iter().filter_map(of).sum()
}

/// Bytes of a node that the kernel keeps free: below the high marks of its zones it takes pages back. Tens of MiB, where there are huge pages.
fn kept_free_bytes(zoneinfo: &str, node: u32) -> u64 {
    let (mut here, mut pages) = (false, 0);
    for line in zoneinfo.lines() {
        if let Some((n, _)) = line.strip_prefix("Node ").and_then(|l| l.split_once(',')) {
            here = n.parse() == Ok(node);
        }
        // Lists of single CPUs have a "high:".
        pages += line.trim().strip_prefix("high ").filter(|_| here).and_then(|p| p.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    pages * procfs::page_bytes()
}

/// Bytes of a group that are on these nodes, by its `memory.numa_stat`.
fn there_bytes(numa_stat: &str, nodes: &CpuSet) -> u64 {
    let of = |word: &str| {
        let (node, bytes) = word.strip_prefix('N')?.split_once('=')?;
        node.parse().is_ok_and(|n| nodes.contains(n)).then(|| bytes.parse::<u64>().ok()).flatten()
    };
    // Of files a part can be dropped, and counts as room already.
    let lines = numa_stat.lines().filter(|l| l.starts_with("anon "));
    lines.flat_map(str::split_whitespace).filter_map(of).sum()
}

impl LocalServer {
    /// How often somebody else changed a value that was set here, by service and knob.
    pub fn foreign_changes(&self) -> BTreeMap<(&str, Knob), u64> {
        self.keeper.contests.iter().map(|((id, knob), c)| ((id.as_str(), *knob), c.count)).collect()
    }

    /// Limits on the memory of a service and on its pool that the kernel has in force, whoever set them. None: there is none, or nobody can tell.
    pub fn memory_in_force(&self, id: &str) -> (Option<u64>, Option<u64>) {
        let Some(s) = self.services.get(id) else { return (None, None) };
        let of = |knob| s.control.get(knob).and_then(|t| t.parse().ok());
        (of(Knob::Memory), of(Knob::Zswap))
    }

    /// Of this host's control groups.
    pub fn cgroup_version(&self) -> Option<Version> {
        self.mounts.version()
    }

    /// True for a memory limit below what is in use, which is reached on the side.
    pub(super) fn lowers_memory(&self, id: &str, limit_bytes: Option<u64>) -> bool {
        let Some(Control::Files(c)) = self.services.get(id).map(|s| &s.control) else { return false };
        c.version == Version::V2 && limit_bytes.zip(c.memory_bytes()).is_some_and(|(limit, used)| limit < used)
    }

    /// A memory limit, or what the pages of the service need where that is more.
    pub(super) fn at_least_floor(&self, id: &str, limit_bytes: u64) -> u64 {
        let Some(Control::Files(c)) = self.services.get(id).map(|s| &s.control) else { return limit_bytes };
        raise(limit_bytes, None, floor::of(&self.config.root, c)).unwrap_or(limit_bytes)
    }

    /// Partitions stand in the way of plans that move CPUs: the kernel refuses their neighbours. [`LocalServer::keep`] makes them again.
    pub(super) fn open_partitions(&mut self, new: &BTreeMap<ServiceId, Allocation>) {
        let place = |a: &Allocation| (a.cpus, a.shared_cpus, a.quota_cores);
        if new.iter().all(|(id, a)| place(&self.services[id].allocation) == place(a)) {
            return;
        }
        self.end_partitions();
    }

    /// Of one service, until it may have one again.
    pub(super) fn end_partition(&mut self, id: &str) {
        self.end_partitions_of(|of| of == id);
    }

    /// All of ours. [`LocalServer::keep`] and [`LocalServer::tend`] make them again where they can be.
    pub(super) fn end_partitions(&mut self) {
        self.end_partitions_of(|_| true);
    }

    fn end_partitions_of(&mut self, these: impl Fn(&str) -> bool) {
        for (id, held) in self.keeper.held.iter_mut().filter(|(id, _)| these(id)) {
            if held.remove(&Knob::Partition).is_some() {
                if let Some(Err(e)) = self.services.get(id).map(|s| s.control.set(Knob::Partition, "member")) {
                    tracing::warn!("CPU partition of {id}: {e}");
                }
            }
        }
    }

    /// A plan is in force: its values are to stay, memory follows, and LC services with CPUs of their own become partitions.
    pub(super) fn keep(&mut self, new: &BTreeMap<ServiceId, Allocation>) {
        // Nodes are promised to one service after another.
        let mut promised: Vec<(CpuSet, u64)> = vec![];
        for (id, a) in new {
            let Some(s) = self.services.get(id) else { continue };
            let Control::Files(group) = &s.control else { continue };
            let mut values =
                vec![(Knob::Cpus, self.cpus_to_set(id, a.cpus).to_string(), true), (Knob::Quota, quota_value(a.quota_cores), true)];
            if s.kind == Kind::Be && a.quota_cores.is_some() && group.get(Knob::Weight).is_some() {
                values.push((Knob::Weight, s.control.least_weight().into(), true));
            }
            // In force: where another was refused, that of before.
            if let Some(bytes) = s.allocation.mem_limit_bytes {
                values.push((Knob::Memory, bytes.to_string(), false));
            }
            if let Some(bytes) = s.allocation.zswap_max_bytes {
                values.push((Knob::Zswap, bytes.to_string(), true));
            }
            if let Some(nodes) = self.nodes_for(id, group, a, &mut promised) {
                values.push((Knob::Mems, nodes.to_string(), false));
            }
            let held = |knob: &Knob, value: &str| matches!(knob, Knob::Memory | Knob::Zswap) && self.keeper.holds(id, *knob, value);
            values.retain(|(knob, value, _)| !self.limits.keeps(id, Value::Knob(*knob)) || held(knob, value));
            self.keeper.hold(id, values.into_iter().map(|(knob, value, settled)| (knob, Held::new(value, settled))).collect());
        }
        self.tend();
    }

    /// Memory nodes for a service with these CPUs; None where there is nothing to choose, or no room for what it has and may come to have.
    pub(super) fn nodes_for(&self, id: &str, group: &Cgroup, a: &Allocation, promised: &mut Vec<(CpuSet, u64)>) -> Option<CpuSet> {
        let nodes = self.platform.numa_nodes(&a.cpus);
        let now = group.get(Knob::Mems)?;
        if nodes.is_empty() {
            return None;
        }
        let in_use = group.memory_bytes().unwrap_or(0);
        // What was taken of it under a lower limit comes back.
        let grows_to = self.services.get(id)?.memory.footprint_bytes().unwrap_or(0).min(a.mem_limit_bytes.unwrap_or(u64::MAX));
        let there = group.numa_stat().map_or(0, |t| there_bytes(&t, &nodes));
        let needs = in_use.max(grows_to).saturating_sub(there);
        if Knob::Mems.same(&nodes.to_string(), &now) {
            promised.push((nodes, grows_to.saturating_sub(in_use)));
            return None;
        }
        let taken: u64 = promised.iter().filter(|(of, _)| !of.intersection(nodes).is_empty()).map(|(_, bytes)| bytes).sum();
        let room = room_bytes(&self.config.root, &nodes).saturating_sub(taken);
        // A node that runs full swaps or kills: far memory is better than none.
        if needs > room {
            tracing::warn!("{id}: its {} MiB stay on their NUMA nodes: {} MiB are free on {nodes}", needs >> 20, room >> 20);
            // From anywhere, as before it was placed.
            let anywhere = self.touched.get(id)?.saved.get(&Knob::Mems)?;
            return CpuSet::parse(anywhere).ok().filter(|n| !n.is_empty());
        }
        promised.push((nodes, needs));
        Some(nodes)
    }

    fn make_partitions(&mut self) {
        // One that nobody has placed runs everywhere: a partition would take CPUs from it.
        let unplaced = |s: &super::Service| matches!(s.kind, Kind::Lc { .. }) && !s.placed;
        if !self.config.partitions || self.services.values().any(unplaced) {
            return;
        }
        for (id, held) in &mut self.keeper.held {
            let Some(s) = self.services.get(id) else { continue };
            let alone = s.placed && s.allocation.shared_cpus.is_empty() && s.allocation.quota_cores.is_none();
            let lc = matches!(s.kind, Kind::Lc { .. }) && !self.lending.contains(id);
            if !lc || !alone || held.contains_key(&Knob::Partition) || self.keeper.unpartitioned.contains(id) {
                continue;
            }
            let Control::Files(group) = &s.control else { continue };
            // One that has CPUs of its own besides (cpuset.cpus.exclusive) would get those instead.
            let made = group.set(Knob::Partition, "root").and_then(|()| {
                let as_asked = group.check_in_force(&s.allocation.cpus.to_string());
                as_asked.inspect_err(|_| drop(group.set(Knob::Partition, "member")))
            });
            match made {
                Ok(()) => {
                    held.insert(Knob::Partition, Held::new("root".into(), true));
                }
                Err(e) => {
                    tracing::info!("{id}: CPUs without a partition of their own, by cpuset alone: {e}");
                    self.keeper.unpartitioned.insert(id.clone());
                }
            }
        }
    }

    /// Put back what somebody else has changed, and look after what is under way. To be called at every tick.
    pub(super) fn tend(&mut self) {
        self.make_partitions();
        let Keeper { held, work, contests, looked, unpartitioned } = &mut self.keeper;
        for (id, values) in held {
            let busy = work.keys().any(|(of, _)| of == id);
            if !busy && looked.get(id).is_some_and(|at| at.elapsed() < self.config.look_every) {
                continue;
            }
            looked.insert(id.clone(), Instant::now());
            let Some(Control::Files(group)) = self.services.get(id).map(|s| &s.control) else { continue };
            let mut lost = vec![];
            for (knob, held) in values.iter_mut() {
                let key = (id.clone(), *knob);
                match work.get_mut(&key).map(Work::ended) {
                    Some(None) => {
                        if *knob == Knob::Memory {
                            make_room(&self.config.root, id, group, held);
                        }
                        continue;
                    }
                    Some(Some(ended)) => {
                        work.remove(&key);
                        match ended {
                            Ok(limit) => held.raised = limit.filter(|l| l.to_string() != held.value).or(held.raised),
                            Err(e) if *knob == Knob::Memory => {
                                let again = held.give_up().as_secs();
                                tracing::warn!("{} of {id} stays as it is: {e}. Tried again in {again} s", knob.name());
                                make_room(&self.config.root, id, group, held);
                                continue;
                            }
                            Err(e) => {
                                tracing::warn!("{} of {id} stays as it is: {e}", knob.name());
                                lost.push(*knob);
                                continue;
                            }
                        }
                    }
                    None => {}
                }
                if *knob == Knob::Memory {
                    make_room(&self.config.root, id, group, held);
                }
                // Between two plans cores may be lent: none moves while they are looked at.
                let lends = *knob == Knob::Cpus && self.lending.contains(id);
                let loans = lends.then(|| look(&self.loans)).flatten();
                if lends && loans.is_none() {
                    continue;
                }
                let lent = loans.as_ref().and_then(|l| l.list_of(id)).map(|cpus| cpus.to_string());
                let raised = held.raised.map(|bytes| bytes.to_string());
                let value = lent.as_ref().or(raised.as_ref()).unwrap_or(&held.value);
                // A service that has ended, or a file that cannot be read, is found elsewhere.
                let Some(got) = group.get(*knob) else { continue };
                if knob.same(value, &got) {
                    (held.settled, held.given_up) = (true, None);
                    continue;
                }
                let wanted = held.value.parse::<u64>().unwrap_or(u64::MAX);
                let bytes = held.raised.unwrap_or(wanted);
                let is_below_use = || *knob == Knob::Memory && group.memory_bytes().is_some_and(|used| bytes < used);
                if held.given_up.as_ref().is_some_and(|g| Instant::now() < g.again) && is_below_use() {
                    continue;
                }
                if held.settled {
                    let Some(count) = contests.entry(key.clone()).or_default().answer(Instant::now()) else { continue };
                    let what = group.file(*knob).map_or_else(String::new, |f| f.display().to_string());
                    tracing::warn!("{id}: somebody set {what} to \"{got}\"; set back to \"{value}\" ({count} times so far)");
                }
                let done = match knob {
                    Knob::Mems => {
                        let (group, value) = (group.aside(), held.value.clone());
                        let run = move || group.set(Knob::Mems, &value);
                        let thread = std::thread::Builder::new().name("move-memory".into()).spawn(run);
                        thread.map(|t| Some(Work::Write(Some(t))))
                    }
                    Knob::Memory if is_below_use() => {
                        Lowering::start(self.config.root.clone(), group.aside(), wanted, Pace::default()).map(|l| Some(Work::Lowering(l)))
                    }
                    _ => group.set(*knob, value).map(|()| None),
                };
                match done {
                    Ok(Some(w)) => {
                        work.insert(key, w);
                    }
                    Ok(None) => {}
                    Err(e) if *knob == Knob::Partition => {
                        tracing::warn!("{id}: its partition is lost, CPUs by cpuset alone: {e}");
                        let _ = group.set(Knob::Partition, "member");
                        unpartitioned.insert(id.clone());
                        lost.push(*knob);
                    }
                    Err(e) => tracing::warn!("{} of {id}: {e}", knob.name()),
                }
            }
            values.retain(|k, _| !lost.contains(k));
        }
    }
}

/// What the pages of a service need now decides on a limit that is wanted: said where that begins and ends. A limit below it is raised at once,
/// also one that was left where it was.
fn make_room(root: &Root, id: &str, group: &Cgroup, held: &mut Held) {
    let Ok(wanted) = held.value.parse::<u64>() else { return };
    let floor = floor::of(root, group);
    let raised = raise(wanted, held.raised, floor);
    match (held.raised, raised) {
        (None, Some(bytes)) => {
            let mib = |bytes: u64| bytes >> 20;
            tracing::warn!("{id}: memory limit: its pages need {} MiB, so that is its limit and not {} MiB", mib(bytes), mib(wanted));
        }
        (Some(_), None) => tracing::info!("{id}: memory limit: its pages need no more than the {} MiB that it is to have", wanted >> 20),
        _ => {}
    }
    if raised != held.raised {
        // Another value of ours is on its way: what is there now is nobody else's.
        (held.raised, held.settled) = (raised, false);
    }
    let now = group.get(Knob::Memory).and_then(|t| t.parse::<u64>().ok());
    if let Some(bytes) = floor.filter(|f| now.is_some_and(|now| now < *f) && (held.given_up.is_some() || held.raised.is_some())) {
        if let Err(e) = group.set(Knob::Memory, &bytes.to_string()) {
            tracing::warn!("{} of {id}: {e}", Knob::Memory.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit is what is wanted or what pages need; one that was raised stays while it is enough and not much more than enough.
    #[test]
    fn a_limit_is_raised_to_what_pages_need() {
        assert_eq!((raise(100, None, None), raise(100, None, Some(100)), raise(100, Some(120), Some(90))), (None, None, None));
        assert_eq!(
            (raise(100, None, Some(140)), raise(100, Some(139), Some(140)), raise(100, Some(150), Some(140))),
            (Some(140), Some(140), Some(140))
        );
        assert_eq!((raise(100, Some(140), Some(140)), raise(100, Some(147), Some(140))), (Some(140), Some(147)));
    }

    /// The first foreign change is answered at once; one that comes back soon waits, twice as long each time up to a minute, and
    /// after a calm time it is as if there had been none.
    #[test]
    fn pauses_double_while_it_comes_back() {
        let s = Duration::from_secs;
        let mut p = Duration::ZERO;
        let waits: Vec<u64> = (0..9)
            .map(|_| {
                p = pause(p, p + s(1));
                p.as_secs()
            })
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(pause(s(60), s(71)), Duration::ZERO);
        assert_eq!(pause(Duration::ZERO, s(11)), Duration::ZERO);
    }
}
