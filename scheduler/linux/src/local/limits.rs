//! What may be set of each service: what the groups around it bound, and what the kernel has refused without their doing.
//!
//! A refusal stops one service, never the others. It becomes a bound in the next observation, and the plan is made anew around it:
//!
//! - where the tree says whose doing it is ([`crate::bound`]), the bound is what the tree says. It is read again at every look, so it ends when
//!   its cause does;
//! - else the value stays as it is. It is tried again after [`FIRST_PAUSE`], and after each further refusal twice as long, up to [`MOST_PAUSE`].
//!
//! A memory limit that is less than a service's pages need is no refusal: what they need is set, and told as a bound ([`crate::floor`]). One that
//! could not be reached is told with the one in force, and tried again by whoever keeps it ([`super::keep`]).
//!
//! What is refused for want of whoever carries it out (a group that has gone, an actuator that is away) is no bound.

use super::control::Control;
use super::step::Step;
use super::LocalServer;
use crate::bound::{around, Around, MOST_TIME};
use crate::cgroup::{quota_cores, Knob};
use crate::resctrl::classes::{Layout, Place, Setting};
use crate::resctrl::refusal::{Cause, Refusal};
use crate::resctrl::steps::Op;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};
use surefoot_server::{Allocation, Bounds, Change, CpuSet, Plan, Resource, ServerError, ServiceId};

/// Until what was refused for no visible reason is tried again.
pub const FIRST_PAUSE: Duration = Duration::from_secs(4);
pub const MOST_PAUSE: Duration = Duration::from_secs(600);
/// A service without a bound is looked at so often: v2 takes values that are not in force, and says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    Knob(Knob),
    /// Ways and memory bandwidth: the class of the service, and its threads in it.
    Ways,
}

impl Value {
    pub fn name(self) -> &'static str {
        match self {
            Value::Knob(knob) => knob.name(),
            Value::Ways => "ways",
        }
    }

    /// Whether a change says anything about it.
    fn named_by(self, change: &Change) -> bool {
        let of: &[Resource] = match self {
            Value::Knob(Knob::Memory | Knob::High) => &[Resource::Memory],
            Value::Knob(Knob::Zswap) => &[Resource::Zswap],
            // Weight, nodes and partitions follow the CPUs.
            Value::Knob(_) => &[Resource::Cpu],
            Value::Ways => &[Resource::Llc, Resource::MemoryBandwidth],
        };
        of.iter().any(|r| change.names(*r))
    }
}

/// One bound of one service, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub service: ServiceId,
    pub value: Value,
    pub cause: String,
    pub remedy: String,
    /// It stays as it is: nothing of it is set.
    pub kept: bool,
}

/// A value that was refused for no reason that the tree shows.
#[derive(Debug)]
struct Refused {
    cause: String,
    remedy: String,
    /// The value that stays.
    bounds: Bounds,
    pause: Duration,
    again: Instant,
}

impl Refused {
    fn is_due(&self) -> bool {
        Instant::now() >= self.again
    }
}

#[derive(Debug, Default)]
pub(super) struct Limits {
    around: BTreeMap<ServiceId, (Instant, Around)>,
    refused: BTreeMap<(ServiceId, Value), Refused>,
    counts: BTreeMap<(ServiceId, Value), u64>,
}

impl Limits {
    /// Whether a value stays as it is, and is not due to be tried again.
    pub(super) fn keeps(&self, id: &str, value: Value) -> bool {
        self.refused.iter().any(|((of, v), r)| of == id && *v == value && !r.is_due())
    }

    /// It is another service now, or none.
    pub(super) fn forget(&mut self, id: &str) {
        self.around.remove(id);
        self.refused.retain(|(of, _), _| of != id);
    }

    /// As if every pause were over.
    #[cfg(test)]
    pub(super) fn pass(&mut self) {
        self.refused.values_mut().for_each(|r| r.again = Instant::now());
    }

    /// The longest pause before anything of a service is tried again.
    #[cfg(test)]
    pub(super) fn pause(&self, id: &str) -> Option<Duration> {
        self.refused.iter().filter(|((of, _), _)| of == id).map(|(_, r)| r.pause).max()
    }

    fn known(&self, id: &str) -> Bounds {
        let tree = self.around.get(id).map(|(_, a)| {
            let why = a.causes.iter().map(|c| format!("{}: {}. {}", c.knob.name(), c.what, c.remedy)).collect();
            Bounds { why, ..a.bounds.clone() }
        });
        let kept = self.refused.iter().filter(|((of, _), r)| of == id && !r.is_due());
        kept.fold(tree.unwrap_or_default(), |b, ((_, v), r)| {
            let why = vec![format!("{}: refused, so it stays as it is: {}. {}", v.name(), r.cause, r.remedy)];
            b.and(Bounds { why, ..r.bounds.clone() })
        })
    }
}

/// Whether a failed write is the kernel's word on the value, and no accident on the way to it.
pub(super) fn is_refusal(e: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        e.kind(),
        K::ResourceBusy
            | K::InvalidInput
            | K::InvalidData
            | K::PermissionDenied
            | K::StorageFull
            | K::Unsupported
            | K::ReadOnlyFilesystem
            | K::Other
    )
}

impl LocalServer {
    /// What is bounded, in words: for metrics, and for the reader's question why a service has what it has.
    pub fn limits(&self) -> Vec<Limit> {
        let here = |id: &ServiceId| self.services.contains_key(id);
        let tree = self.limits.around.iter().filter(|(id, _)| here(id)).flat_map(|(id, (_, a))| {
            a.causes.iter().map(|c| Limit {
                service: id.clone(),
                value: Value::Knob(c.knob),
                cause: c.what.clone(),
                remedy: c.remedy.clone(),
                kept: false,
            })
        });
        let refused = self.limits.refused.iter().filter(|((id, _), _)| here(id)).map(|((id, value), r)| Limit {
            service: id.clone(),
            value: *value,
            cause: r.cause.clone(),
            remedy: r.remedy.clone(),
            kept: true,
        });
        let raised = self.keeper.raised().filter(|(id, ..)| here(id)).map(|(id, wanted, bytes)| Limit {
            service: id.clone(),
            value: Value::Knob(Knob::Memory),
            cause: format!("its pages need {bytes} bytes, compressed where they may be, so that is its limit in place of {wanted}"),
            remedy:
                "Give it that much, or let the pool go to the device: echo Y > /sys/module/zswap/parameters/shrinker_enabled (Linux 6.8)"
                    .into(),
            kept: false,
        });
        let given_up = self.keeper.given_up().filter(|(id, _)| here(id)).map(|(id, wanted)| Limit {
            service: id.clone(),
            value: Value::Knob(Knob::Memory),
            cause: self.not_reached(id, wanted),
            remedy: "Give it more, or more swap space".into(),
            kept: true,
        });
        tree.chain(refused).chain(raised).chain(given_up).collect()
    }

    /// Of a memory limit that is not in force, the one that is.
    fn not_reached(&self, id: &str, wanted: u64) -> String {
        let now = self.memory_in_force(id).0.map_or_else(|| "no limit".into(), |bytes| format!("a limit of {bytes} bytes"));
        format!("{wanted} bytes could not be reached, so {now} is in force until the next attempt")
    }

    /// How often the kernel has refused a value, by service.
    pub fn refusals(&self) -> impl Iterator<Item = (&str, Value, u64)> {
        self.limits.counts.iter().map(|((id, value), n)| (id.as_str(), *value, *n))
    }

    /// Bounds for the observation.
    pub(super) fn bounds(&self) -> BTreeMap<ServiceId, Bounds> {
        let of = |id: &ServiceId| {
            let mut b = self.limits.known(id);
            if let Some((_, s)) = self.elsewhere.get(id) {
                b.ways = self.ways_of(s);
            }
            if let Some((_, wanted, bytes)) = self.keeper.raised().find(|(of, ..)| *of == id) {
                b.why.push(format!("{}: its pages need {bytes} bytes, in place of {wanted}", Knob::Memory.name()));
            }
            if let Some((_, wanted)) = self.keeper.given_up().find(|(of, _)| *of == id) {
                b.why.push(format!("{}: {}", Knob::Memory.name(), self.not_reached(id, wanted)));
            }
            b
        };
        self.services.keys().map(|id| (id.clone(), of(id))).filter(|(_, b)| !b.is_none() || !b.why.is_empty()).collect()
    }

    /// Read the tree around services anew: of bounded ones at every look, of one other now and then.
    pub(super) fn look_at_limits(&mut self) {
        let every = self.config.look_every;
        let (mut one, begun) = (true, Instant::now());
        let ids: Vec<ServiceId> = self.services.keys().cloned().collect();
        for id in ids {
            let due = match self.limits.around.get(&id) {
                None => true,
                Some((at, a)) if !a.causes.is_empty() => at.elapsed() >= every,
                Some((at, _)) => at.elapsed() >= LOOK_EVERY && std::mem::take(&mut one),
            };
            // The rest at the next tick.
            if due && begun.elapsed() < MOST_TIME {
                self.look_at_limits_of(&id);
            }
        }
    }

    /// CPUs that partitions of ours have taken from the groups above them.
    fn in_partitions(&self) -> CpuSet {
        if !self.config.partitions {
            return CpuSet::empty();
        }
        let placed = self.services.values().filter(|s| s.placed && matches!(s.control, Control::Files(_)));
        placed.fold(CpuSet::empty(), |set, s| set.union(s.allocation.cpus))
    }

    pub(super) fn look_at_limits_of(&mut self, id: &str) {
        let found = match self.services.get(id).map(|s| &s.control) {
            Some(Control::Files(g)) => around(&self.mounts, g, self.platform.managed, self.in_partitions()),
            _ => Around::default(),
        };
        let before = self.limits.around.insert(id.into(), (Instant::now(), found.clone())).map(|(_, a)| a).unwrap_or_default();
        for c in found.causes.iter().filter(|c| !before.causes.contains(c)) {
            tracing::warn!("{id}: {}: {}. {}. The others are placed around it", c.knob.name(), c.what, c.remedy);
        }
        for c in before.causes.iter().filter(|c| found.cause(c.knob).is_none()) {
            tracing::info!("{id}: {}: nothing bounds it any more", c.knob.name());
            // What was refused meanwhile may have been for this.
            self.limits.refused.remove(&(id.into(), Value::Knob(c.knob)));
        }
    }

    /// CPUs to write for a service that is to hold `cpus`: those beyond the managed ones that it cannot be kept off stay in its list, and what
    /// was refused stays as it is.
    pub(super) fn cpus_to_set(&self, id: &str, cpus: CpuSet) -> CpuSet {
        if self.limits.keeps(id, Value::Knob(Knob::Cpus)) {
            let now = self.services.get(id).and_then(|s| s.control.get(Knob::Cpus)).and_then(|t| CpuSet::parse(&t).ok());
            return now.filter(|c| !c.is_empty()).unwrap_or(cpus);
        }
        let Some((_, a)) = self.limits.around.get(id) else { return cpus };
        let all = cpus.union(a.bounds.cpus_at_least);
        let within = a.bounds.cpus_at_most.map_or(all, |m| all.intersection(m));
        if within.is_empty() {
            cpus
        } else {
            within
        }
    }

    /// A step of a plan was refused: what that says of the services it is for. The error, with its true cause where the tree shows it.
    pub(super) fn learn(&mut self, step: &Step, classes: &Layout, refusal: Refusal) -> ServerError {
        if matches!(refusal.cause, Cause::Gone | Cause::Away) || refusal.is_shortage() {
            return refusal.error;
        }
        match step {
            Step::Knob { id, knob, to, .. } => self.learn_knob(id, *knob, to, refusal.error),
            Step::Class(Op::Move { id, .. }) => {
                self.learn_ways([id.clone()].into(), &refusal.error);
                refusal.error
            }
            Step::Class(Op::Make { class, .. } | Op::Set { class, .. }) => {
                let members = classes.classes.get(class).or(self.layout.classes.get(class)).map(|c| c.members.clone());
                self.learn_ways(members.unwrap_or_default().into_iter().collect(), &refusal.error);
                refusal.error
            }
            Step::Class(Op::Remove { .. }) => refusal.error,
        }
    }

    fn learn_knob(&mut self, id: &ServiceId, knob: Knob, to: &str, error: ServerError) -> ServerError {
        if self.has_ended(id) {
            return error;
        }
        let value = Value::Knob(knob);
        *self.limits.counts.entry((id.clone(), value)).or_default() += 1;
        self.look_at_limits_of(id);
        let by_tree = self.limits.around.get(id).filter(|(_, a)| a.forbids(knob, to)).and_then(|(_, a)| a.cause(knob)).cloned();
        let ServerError::Write { what, cause, remedy } = error else { return error };
        if let Some(c) = by_tree {
            return ServerError::Write { what, cause: format!("{cause}: {}", c.what), remedy: c.remedy };
        }
        self.keep_as_it_is(id, value, &cause, &remedy);
        ServerError::Write { what, cause, remedy }
    }

    /// Ways are refused: threads and classes of these services stay where they are.
    pub(super) fn learn_ways(&mut self, ids: Vec<ServiceId>, error: &ServerError) {
        for id in ids {
            self.learn_kept(&id, Value::Ways, error);
        }
    }

    /// A value is refused, whatever the tree says: it stays as it is.
    pub(super) fn learn_kept(&mut self, id: &str, value: Value, error: &ServerError) {
        let (cause, remedy) = match error {
            ServerError::Write { what, cause, remedy } | ServerError::Unavailable { what, cause, remedy } => {
                (format!("{what}: {cause}"), remedy.as_str())
            }
            ServerError::Invalid(why) => (why.clone(), "Look for what others hold there"),
            ServerError::Unsettled { .. } => return,
        };
        if !self.has_ended(id) {
            *self.limits.counts.entry((id.into(), value)).or_default() += 1;
            self.keep_as_it_is(id, value, &cause, remedy);
        }
    }

    /// A value that the host has no file for is none that can be set.
    pub(super) fn learn_missing(&mut self, new: &BTreeMap<ServiceId, Allocation>, error: &ServerError) {
        let mut missing = vec![];
        for (id, a) in new {
            let lacks = |knob: Knob| self.services.get(id).is_some_and(|s| s.control.get(knob).is_none());
            let asked = [(Knob::Memory, a.mem_limit_bytes.is_some()), (Knob::Zswap, a.zswap_max_bytes.is_some())];
            missing.extend(asked.into_iter().filter(|(k, asked)| *asked && lacks(*k)).map(|(k, _)| (id.clone(), k)));
        }
        for (id, knob) in missing {
            self.learn_kept(&id, Value::Knob(knob), error);
        }
    }

    /// Why an allocation is known to be refused; None: it is not.
    pub(super) fn breaks(&self, id: &str, a: &Allocation) -> Option<String> {
        let b = self.limits.known(id);
        (!b.allow(&self.platform, a)).then(|| format!("{id}: {}", b.why.join("; ")))
    }

    fn keep_as_it_is(&mut self, id: &str, value: Value, cause: &str, remedy: &str) {
        let bounds = self.bounds_of_now(id, value);
        let key = (id.to_string(), value);
        let pause = self.limits.refused.get(&key).map_or(FIRST_PAUSE, |r| (r.pause * 2).min(MOST_PAUSE));
        if pause == FIRST_PAUSE {
            tracing::warn!(
                "{id}: {}: refused, so it stays as it is: {cause}. {remedy}. Tried again in {} s",
                value.name(),
                pause.as_secs()
            );
        } else {
            tracing::debug!("{id}: {}: refused, so it stays as it is: {cause}. Tried again in {} s", value.name(), pause.as_secs());
        }
        let (cause, remedy) = (cause.into(), remedy.into());
        self.limits.refused.insert(key, Refused { cause, remedy, bounds, pause, again: Instant::now() + pause });
    }

    /// What a service has of a value, as its only choice.
    fn bounds_of_now(&self, id: &str, value: Value) -> Bounds {
        let Some(s) = self.services.get(id) else { return Bounds::default() };
        match value {
            Value::Knob(Knob::Cpus) => {
                let text = match &s.control {
                    Control::Files(g) => g.effective_cpus(),
                    control => control.get(Knob::Cpus),
                };
                let cpus = text.and_then(|t| CpuSet::parse(&t).ok()).filter(|c| !c.is_empty()).unwrap_or(self.platform.managed);
                Bounds { cpus_at_least: cpus, cpus_at_most: Some(cpus), ..Bounds::default() }
            }
            Value::Knob(Knob::Quota) => match s.control.get(Knob::Quota).as_deref().and_then(quota_cores) {
                Some(q) => Bounds { quota_at_least: Some(q), quota_at_most: Some(q), ..Bounds::default() },
                None => Bounds { no_quota: true, ..Bounds::default() },
            },
            Value::Knob(_) => Bounds::default(),
            Value::Ways => {
                let setting = match self.layout.place(id) {
                    Some(Place::Class(c)) => &self.layout.classes[&c].setting,
                    _ => &self.default_group,
                };
                Bounds { ways: self.ways_of(setting), ..Bounds::default() }
            }
        }
    }

    /// Ways of a group as plans count them; None where it has none.
    fn ways_of(&self, s: &Setting) -> Option<Vec<u32>> {
        Some(self.offer.to_platform(&self.group_domains, &s.ways)).filter(|w| !w.is_empty())
    }

    /// An allocation, with what the service has instead of it where that was refused.
    pub(super) fn with_what_stays(&self, id: &str, asked: &Allocation) -> Allocation {
        let mut a = asked.clone();
        let stays = self.limits.refused.iter().filter(|((of, _), r)| of == id && !r.is_due());
        for ((_, value), r) in stays {
            // Not what the file says: that may be another program's limit, which is its to change.
            let ours = self.services.get(id).map(|s| &s.allocation);
            match value {
                Value::Knob(Knob::Memory) => a.mem_limit_bytes = ours.and_then(|a| a.mem_limit_bytes),
                Value::Knob(Knob::Zswap) => a.zswap_max_bytes = ours.and_then(|a| a.zswap_max_bytes),
                Value::Knob(Knob::Quota) => a.quota_cores = r.bounds.quota_at_most,
                Value::Ways => {
                    if let Some(w) = r.bounds.ways.as_ref().filter(|w| w.len() == a.ways.len()) {
                        (a.ways, a.shared_ways) = (w.clone(), w.clone());
                    }
                }
                Value::Knob(_) => {}
            }
        }
        a
    }

    /// A limit on memory that a plan wrote and that cannot be taken back is what the service has of ours. Where the plan lifted one, it is
    /// another program's former limit.
    pub(super) fn limit_stays_at(&mut self, id: &str, knob: Knob, written: &str) {
        let former = self.touched.get(id).and_then(|f| f.saved.get(&knob));
        let bytes = written.parse().ok().filter(|_| former.is_none_or(|f| f != written));
        let Some(s) = self.services.get_mut(id) else { return };
        match knob {
            Knob::Memory => s.allocation.mem_limit_bytes = bytes,
            Knob::Zswap => s.allocation.zswap_max_bytes = bytes,
            _ => {}
        }
    }

    /// A plan is in force that changes these services: what it names and was due to be tried again has been.
    pub(super) fn tried_again<'a>(&mut self, plan: &Plan, ids: impl Iterator<Item = &'a ServiceId>) {
        for id in ids {
            let Some(change) = plan.changes.get(id) else { continue };
            self.limits.refused.retain(|(of, value), r| {
                let over = of == id && r.is_due() && value.named_by(change);
                if over {
                    tracing::info!("{id}: {}: can be set again", value.name());
                }
                !over
            });
        }
    }
}
