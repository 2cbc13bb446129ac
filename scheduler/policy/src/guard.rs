//! What no policy may do, whatever it thinks: take from a service whose latency is unknown, or ask for what the kernel is known to refuse.
//!
//! The latter is [`bounds`](surefoot_server::bounding)' affair: the plan is made anew around what bounds a service, before all else here.
//!
//! A silent feed says neither "met" nor "missed", and one that contradicts itself says nothing that can be believed. Until it speaks
//! again the service keeps every core, way, per cent of bandwidth and byte that it holds, and nobody joins it on them; it may be given more. A plan that breaks this is repaired: the service
//! keeps what it has, so do those who would have gained from it, and the rest of the plan goes on. Policies think in counts that
//! they want, and ask again at every step: what is withheld here is only put off.
//!
//! A service that no plan has named yet runs everywhere, shared. While its latency is unknown it is placed on no less than a fair
//! share ([`fair_share`]) of cores and ways, at full memory bandwidth and without a limit on memory; where that cannot be had, it
//! stays where it is.
//!
//! A plan that names a resource that its policy does not own is left out whole, before all of this.
//!
//! Not protected: one whose feed says that it is idle, and BE jobs.

use crate::remote::asked::Asked;
use crate::together::{trespass, Told};
use crate::Policy;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::bounding;
use surefoot_server::limits::{check_plan, names_limits};
use surefoot_server::validate::{compatible, validate};
use surefoot_server::{Allocation, CpuSet, Doubt, FeedState, Observation, Plan, Platform, Report, Resource, ServiceId, ServiceView};

type Layout<'a> = BTreeMap<&'a str, &'a Allocation>;

/// A policy under the guard.
pub struct Guarded {
    inner: Box<dyn Policy>,
    platform: Platform,
    /// Services of which a report was made since their feed fell silent, or came into this doubt.
    told: BTreeSet<(ServiceId, Option<Doubt>)>,
    /// Bounds that were reported, by service.
    bounded: BTreeMap<ServiceId, String>,
    trespass: Told,
    /// What was said last of limits that do not fit.
    limits: Option<String>,
}

impl Guarded {
    pub fn new(inner: Box<dyn Policy>, platform: &Platform) -> Self {
        Guarded {
            inner,
            platform: platform.clone(),
            told: BTreeSet::new(),
            bounded: BTreeMap::new(),
            trespass: Told::default(),
            limits: None,
        }
    }
}

impl Guarded {
    /// Limits on memory that do not fit are left out, all of them: a server would refuse the whole plan, cores too.
    fn leave_out_limits(&mut self, seen: &Observation, plan: &mut Plan) {
        if !plan.changes.values().any(names_limits) {
            // Most plans: nothing is to be laid out for them.
            self.limits = None;
            return;
        }
        let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        let why = check_plan(&self.platform, plan, &in_force, &plan.layout(seen)).err();
        if let Some(why) = &why {
            for change in plan.changes.values_mut() {
                change.forget(Resource::Memory);
                change.forget(Resource::Zswap);
            }
            plan.changes.retain(|_, change| !change.is_empty());
            if self.limits.as_ref() != Some(why) {
                plan.reports.push(Report::Withheld { service: Report::ALL.into(), why: format!("limits on memory: {why}") });
            }
        }
        self.limits = why;
    }

    /// What bounds a service is reported when it comes and when it changes.
    fn tell_bounds(&mut self, seen: &Observation, left_out: &BTreeMap<ServiceId, String>, plan: &mut Plan) {
        if seen.bounds.is_empty() {
            self.bounded.clear();
            return;
        }
        self.bounded.retain(|id, _| seen.bounds.contains_key(id));
        for (id, b) in &seen.bounds {
            let why = b.why.iter().chain(left_out.get(id)).map(String::as_str).collect::<Vec<_>>().join("; ");
            if self.bounded.get(id) != Some(&why) {
                plan.reports.push(Report::Withheld { service: id.clone(), why: why.clone() });
                self.bounded.insert(id.clone(), why);
            }
        }
    }
}

impl Policy for Guarded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.inner.called_every(interval_ms)
    }

    fn between(&mut self) -> bool {
        self.inner.between()
    }

    fn owns(&self) -> &[Resource] {
        self.inner.owns()
    }

    fn asked(&self) -> Option<Asked> {
        self.inner.asked()
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        self.told.retain(|(id, doubt)| seen.get(id).is_some_and(|s| s.latency_unknown() && s.feed.doubt() == *doubt));
        let mut wanted = self.inner.step(now_ms, seen);
        let trespass = trespass(self.inner.name(), self.inner.owns(), &wanted, |_| None);
        self.trespass.answer(&mut wanted, trespass);
        // A service that nothing has placed yet is given CPUs first; who owns something else of it asks again.
        let waits = |id: &str| seen.get(id).is_some_and(|s| !s.placed) && wanted.places(id).is_err();
        let waiting: Vec<ServiceId> = wanted.changes.keys().filter(|id| waits(id)).cloned().collect();
        wanted.leave_out(|id| waiting.iter().any(|w| w == id));
        let doubted: Vec<(&ServiceView, Doubt)> = seen.lc().filter_map(|s| Some((s, s.feed.doubt()?))).collect();
        let bounding::Kept { plan: wanted, left_out } = bounding::keep(&self.platform, seen, wanted);
        let Repaired { mut plan, spared, put_off } = protect(&self.platform, seen, wanted);
        self.leave_out_limits(seen, &mut plan);
        self.tell_bounds(seen, &left_out, &mut plan);
        for (id, what) in spared {
            let view = seen.get(&id);
            if self.told.insert((id.clone(), view.and_then(|s| s.feed.doubt()))) {
                let since = match view.map(|s| s.feed) {
                    Some(FeedState::Doubtful { why, .. }) => format!("({})", why.words()),
                    Some(FeedState::Unknown { heard: false, .. }) => "since it came".into(),
                    Some(FeedState::Unknown { since_ms, .. }) => format!("for {:.1} s", now_ms.saturating_sub(since_ms) as f64 / 1000.0),
                    _ => "at the feed's resolution".into(),
                };
                let others: Vec<&str> = put_off.iter().filter(|o| **o != id).map(String::as_str).collect();
                let others = if others.is_empty() { String::new() } else { format!("; put off for it: {}", others.join(", ")) };
                let why = match view.is_some_and(|s| s.placed) {
                    true => format!("latency unknown {since}: it keeps its {what}{others}"),
                    false => {
                        format!("latency unknown {since}: it shares everything until a fair share of {what} can be had, or it is heard")
                    }
                };
                plan.reports.push(Report::Withheld { service: id, why });
            }
        }
        // A doubt is told at once: it is the reason why the service is left alone, also where nothing was to be taken from it.
        for (s, why) in doubted {
            if self.told.insert((s.id.clone(), Some(why))) {
                let why = format!("latency doubtful: {}: nothing is taken from it", why.words());
                plan.reports.push(Report::Withheld { service: s.id.clone(), why });
            }
        }
        plan
    }
}

/// A plan that takes from nobody whose latency is unknown.
#[derive(Clone, Debug, PartialEq)]
pub struct Repaired {
    pub plan: Plan,
    /// Services of unknown latency from which the plan would have taken, and what.
    pub spared: BTreeMap<ServiceId, &'static str>,
    /// Everybody whose part of the plan is left out.
    pub put_off: BTreeSet<ServiceId>,
}

/// Repair a plan. Where somebody's latency is unknown and what is in force is valid, the repaired plan is valid.
pub fn protect(p: &Platform, seen: &Observation, mut plan: Plan) -> Repaired {
    let (unknown, unplaced): (Vec<&ServiceView>, Vec<&ServiceView>) = seen.lc().filter(|s| s.latency_unknown()).partition(|s| s.placed);
    let mut spared = BTreeMap::new();
    let mut put_off = BTreeSet::new();
    if unknown.is_empty() && unplaced.is_empty() || plan.is_empty() {
        return Repaired { plan, spared, put_off };
    }
    let before: Layout = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.as_str(), &s.allocation)).collect();
    // Those that stay unplaced run everywhere, before and after.
    let all_before: Layout = seen.services.iter().map(|s| (s.id.as_str(), &s.allocation)).collect();
    let nobody = BTreeSet::new();
    let wants = plan.allocations(seen);
    // An unplaced service runs everywhere. Where the plan says no more than that, it is no new neighbour.
    let as_ever: BTreeSet<&str> =
        seen.services.iter().filter(|s| !s.placed && wants.get(&s.id) == Some(&s.allocation)).map(|s| s.id.as_str()).collect();
    loop {
        let changed: Layout = wants.iter().filter(|(id, _)| !put_off.contains(*id)).map(|(id, a)| (id.as_str(), a)).collect();
        let mut after = before.clone();
        after.extend(changed.iter().map(|(id, a)| (*id, *a)));
        let mut all_after = all_before.clone();
        all_after.extend(changed.iter().map(|(id, a)| (*id, *a)));
        let mut more: BTreeSet<ServiceId> = BTreeSet::new();
        let mut unsound = false;
        for u in &unknown {
            let what = loss(u, &before, &after, &as_ever).or_else(|| loss(u, &all_before, &all_after, &nobody));
            let Some(what) = what else { continue };
            spared.entry(u.id.clone()).or_insert(what);
            unsound = true;
            if changed.contains_key(u.id.as_str()) {
                more.insert(u.id.clone());
            } else {
                let joins = |id: &str, a: &Allocation| id != u.id && joins(a, before.get(id).copied(), &u.allocation);
                more.extend(changed.iter().filter(|(id, a)| joins(id, a)).map(|(id, _)| id.to_string()));
            }
        }
        for u in unplaced.iter().filter(|u| changed.contains_key(u.id.as_str()) && !as_ever.contains(u.id.as_str())) {
            if let Some(what) = too_little(p, seen, &u.id, &after) {
                spared.entry(u.id.clone()).or_insert(what);
                unsound = true;
                more.insert(u.id.clone());
            }
        }
        // Who keeps what it has stands in the way of those who were to have it.
        for (keeper, held) in put_off.iter().filter_map(|id: &ServiceId| Some((id, *before.get(id.as_str())?))) {
            more.extend(changed.iter().filter(|(id, a)| compatible(id, a, keeper, held).is_err()).map(|(id, _)| id.to_string()));
        }
        let owned = |l: &Layout| l.iter().map(|(id, a)| (id.to_string(), (*a).clone())).collect();
        if more.is_empty() && validate(p, &owned(&after)).is_err() {
            unsound = true;
            // Quotas that add up to too much, or a plan that did so itself because nobody could be asked: who gains waits.
            let gains = |id: &str, a: &Allocation| before.get(id).is_none_or(|b| a.cores() > b.cores());
            more.extend(changed.iter().filter(|(id, a)| gains(id, a)).map(|(id, _)| id.to_string()));
        }
        if more.is_empty() {
            if unsound {
                put_off = plan.changes.keys().cloned().collect();
            }
            break;
        }
        put_off.extend(more);
    }
    plan.leave_out(|id| put_off.contains(id));
    Repaired { plan, spared, put_off }
}

/// What a service loses from one layout to the next; None: nothing.
fn loss(u: &ServiceView, before: &Layout, after: &Layout, as_ever: &BTreeSet<&str>) -> Option<&'static str> {
    let (a, b) = (before.get(u.id.as_str())?, after.get(u.id.as_str())?);
    let fewer = |had: (f64, f64, f64), has: (f64, f64, f64)| has.0 < had.0 || has.1 < had.1 || has.2 < had.2 - 1e-9;
    if b.cores() < a.cores() - 1e-9 {
        return Some("cores");
    }
    // A quota says how much, wherever it is used; without one, places count.
    if a.quota_cores.is_none() && b.quota_cores.is_none() && fewer(cpus_of(&u.id, before, as_ever), cpus_of(&u.id, after, as_ever)) {
        return Some("cores");
    }
    if (0..a.ways.len()).any(|d| fewer(ways_of(&u.id, d, before, as_ever), ways_of(&u.id, d, after, as_ever))) {
        return Some("ways");
    }
    if b.mba_pct < a.mba_pct {
        return Some("memory bandwidth");
    }
    let least = |had: Option<u64>, has: Option<u64>| has.unwrap_or(u64::MAX) < had.unwrap_or(u64::MAX);
    (least(a.mem_limit_bytes, b.mem_limit_bytes) || least(a.zswap_max_bytes, b.zswap_max_bytes)).then_some("memory")
}

/// Cores, and ways of each L3 domain, that each LC service would have were all alike; BE jobs count as one more.
pub fn fair_share(p: &Platform, seen: &Observation) -> (f64, f64) {
    let holders = (seen.lc().count() + usize::from(seen.be().next().is_some())).max(1) as u32;
    (p.cores(p.core_units() / holders), f64::from(p.ways() / holders))
}

/// What a plan gives less of than a fair share to a service that it names for the first time; None: nothing.
fn too_little(p: &Platform, seen: &Observation, id: &str, after: &Layout) -> Option<&'static str> {
    let a = after.get(id)?;
    let (cores, ways) = fair_share(p, seen);
    // What is shared counts by the number of its users: there is no "as ever" among them.
    let alone = BTreeSet::new();
    let got = a.quota_cores.unwrap_or_else(|| cpus_of(id, after, &alone).2);
    if got < cores - 1e-9 {
        return Some("cores");
    }
    if (0..a.ways.len()).any(|d| ways_of(id, d, after, &alone).2 < ways - 1e-9) {
        return Some("ways");
    }
    if a.mba_pct < 100 {
        return Some("memory bandwidth");
    }
    (a.mem_limit_bytes.is_some() || a.zswap_max_bytes.is_some()).then_some("memory")
}

/// CPUs of a service: all, those that it uses alone, and all divided by their users.
fn cpus_of(id: &str, all: &Layout, as_ever: &BTreeSet<&str>) -> (f64, f64, f64) {
    let Some(a) = all.get(id) else { return (0.0, 0.0, 0.0) };
    let users = |cpu: u32| all.iter().filter(|(o, x)| !as_ever.contains(*o) && x.cpus.contains(cpu)).count();
    parts(a.cpus.iter().map(users))
}

/// As [`cpus_of`], ways of an L3 domain.
fn ways_of(id: &str, domain: usize, all: &Layout, as_ever: &BTreeSet<&str>) -> (f64, f64, f64) {
    let at = |masks: &[u32]| masks.get(domain).copied().unwrap_or(0);
    let Some(a) = all.get(id) else { return (0.0, 0.0, 0.0) };
    let users = |bit: u32| all.iter().filter(|(o, x)| !as_ever.contains(*o) && at(&x.ways) >> bit & 1 == 1).count();
    let mask = at(&a.ways);
    parts((0..32).filter(|b| mask >> b & 1 == 1).map(users))
}

/// From the users of each CPU or way: how many, how many with one user, and the sum of its parts.
fn parts(users: impl Iterator<Item = usize>) -> (f64, f64, f64) {
    users.fold((0.0, 0.0, 0.0), |(n, alone, sum), u| (n + 1.0, alone + f64::from(u8::from(u <= 1)), sum + 1.0 / u.max(1) as f64))
}

/// True where `to` uses a CPU or way of `held` that its holder has not used before.
fn joins(to: &Allocation, from: Option<&Allocation>, held: &Allocation) -> bool {
    let cpus = to.cpus.intersection(held.cpus).difference(from.map_or(CpuSet::empty(), |f| f.cpus));
    let at = |a: &[u32], d: usize| a.get(d).copied().unwrap_or(0);
    let ways = |d: usize| at(&to.ways, d) & at(&held.ways, d) & !from.map_or(0, |f| at(&f.ways, d));
    !cpus.is_empty() || (0..held.ways.len()).any(|d| ways(d) != 0)
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
