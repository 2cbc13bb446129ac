//! A plan made anew around what bounds its services.
//!
//! A policy asks for what it would like. [`keep`] makes a plan of it that keeps every bound:
//!
//! - a bounded service holds every CPU that it cannot be kept off, and none that it may not use;
//! - the others keep the number of CPUs and the quota that the plan gives them: CPUs change hands one for one;
//! - where there is none to change, a CPU is shared, and both sides say so: nobody calls exclusive what another really uses;
//! - a service that may use no managed CPU at all is left out.
//!
//! Without bounds a plan stays as it is. The same bounds and plan give the same result, and a result is kept as it is.

use crate::allocation::Allocation;
use crate::bounds::Bounds;
use crate::change::Change;
use crate::cpuset::CpuSet;
use crate::observation::Observation;
use crate::plan::Plan;
use crate::platform::Platform;
use crate::validate::validate;
use crate::ServiceId;
use std::collections::BTreeMap;

/// A plan within the bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub plan: Plan,
    /// Services that cannot be given any managed CPU, and why.
    pub left_out: BTreeMap<ServiceId, String>,
}

/// Make a plan anew around the bounds in `seen`.
pub fn keep(p: &Platform, seen: &Observation, mut plan: Plan) -> Kept {
    let mut left_out = BTreeMap::new();
    if seen.bounds.values().all(Bounds::is_none) {
        return Kept { plan, left_out };
    }
    let before = Plan::default().layout(seen);
    let mut all = plan.layout(seen);
    if !seen.bounds.iter().any(|(id, b)| all.contains_key(id) && !b.is_none()) {
        return Kept { plan, left_out };
    }
    let wanted = all.clone();
    // Whoever cannot be moved comes first: the others make room.
    let mut order: Vec<(&ServiceId, &Bounds)> = seen.bounds.iter().filter(|(id, _)| all.contains_key(*id)).collect();
    order.sort_by_key(|(id, b)| (b.cpus_at_least.is_empty(), *id));
    for (id, b) in &order {
        if !place(p, &mut all, id, b, &seen.bounds) {
            all.remove(*id);
            all.extend(before.get_key_value(*id).map(|(id, a)| (id.clone(), a.clone())));
            let cpus = b.cpus_at_most.map_or_else(String::new, |c| c.to_string());
            left_out.insert((*id).clone(), format!("it may use CPUs {cpus} alone, and managed are {}", p.managed));
        }
    }
    for (id, b) in &order {
        quota(p, &mut all, id, b);
        ways(p, &mut all, id, b);
    }
    agree(&mut all, &seen.bounds);
    if validate(p, &all).is_err() && validate(p, &wanted).is_ok() {
        // What the kernel refuses of it is told; a plan that breaks a rule would be refused whole.
        return Kept { plan, left_out };
    }
    plan.leave_out(|id| left_out.contains_key(id));
    for (id, a) in &all {
        // What the plan says of a service, and what bounds make of it.
        let asked = plan.changes.remove(id);
        let of = if asked.is_some() { &wanted } else { &before };
        if before.get(id) != Some(a) {
            plan.changes.insert(id.clone(), asked.unwrap_or_default().and(Change::between(&of[id], a)));
        }
    }
    Kept { plan, left_out }
}

/// Put `r` in the place of CPU `c` in a set.
fn swap(set: &mut CpuSet, c: u32, r: u32) {
    if set.contains(c) {
        set.remove(c);
        set.insert(r);
    }
}

/// CPUs of a bounded service. False where it may use none.
fn place(
    p: &Platform,
    all: &mut BTreeMap<ServiceId, Allocation>,
    id: &ServiceId,
    b: &Bounds,
    bounds: &BTreeMap<ServiceId, Bounds>,
) -> bool {
    let (must, may) = b.cpus_of(p);
    let Some(own) = all.get(id).cloned() else { return true };
    if may.is_empty() {
        return false;
    }
    if must.is_subset(&own.cpus) && own.cpus.is_subset(&may) {
        return true;
    }
    if p.by_quota() {
        // All share all CPUs.
        all.insert(id.clone(), Allocation { cpus: may, shared_cpus: may, ..own });
        return true;
    }
    let others =
        |all: &BTreeMap<ServiceId, Allocation>| all.iter().filter(|(o, _)| *o != id).fold(CpuSet::empty(), |set, (_, a)| set.union(a.cpus));
    let count = own.cpus.len().max(must.len()).min(may.len());
    let mut got = must;
    for c in own.cpus.intersection(may).difference(must).iter() {
        if got.len() < count {
            got.insert(c);
        }
    }
    // What others may have instead: what it gives up alone, then what nobody holds.
    let taken = others(all);
    let given_up = own.cpus.difference(got).difference(taken);
    let idle = p.managed.difference(taken).difference(own.cpus).difference(got);
    let mut pool: Vec<u32> = given_up.iter().chain(idle.iter()).collect();
    let instead = |all: &BTreeMap<ServiceId, Allocation>, pool: &[u32], c: u32| -> Option<u32> {
        let holders: Vec<&ServiceId> = all.iter().filter(|(o, a)| *o != id && a.cpus.contains(c)).map(|(o, _)| o).collect();
        let of = |o: &ServiceId| bounds.get(o).map(|b| b.cpus_of(p));
        if holders.iter().any(|o| of(o).is_some_and(|(must, _)| must.contains(c))) {
            return None;
        }
        pool.iter().copied().find(|r| holders.iter().all(|o| of(o).is_none_or(|(_, may)| may.contains(*r))))
    };
    let hand_over = |all: &mut BTreeMap<ServiceId, Allocation>, c: u32, r: u32| {
        for (_, a) in all.iter_mut().filter(|(o, _)| *o != id) {
            swap(&mut a.cpus, c, r);
            swap(&mut a.shared_cpus, c, r);
        }
    };
    // Those that it cannot be kept off; what it was to share, it shares.
    for c in must.intersection(taken).difference(own.cpus).iter() {
        if let Some(r) = instead(all, &pool, c) {
            pool.retain(|x| *x != r);
            hand_over(all, c, r);
        }
    }
    while got.len() < count {
        let free = may.difference(got).iter().find(|c| pool.contains(c));
        if let Some(c) = free {
            pool.retain(|x| *x != c);
            got.insert(c);
            continue;
        }
        let change = may.difference(got).iter().find_map(|c| Some((c, instead(all, &pool, c)?)));
        let Some((c, r)) = change else { break };
        pool.retain(|x| *x != r);
        hand_over(all, c, r);
        got.insert(c);
    }
    if got.is_empty() {
        // Nobody has one to change: it is shared.
        may.iter().take(1).for_each(|c| got.insert(c));
    }
    let shared_cpus = own.shared_cpus.intersection(got);
    all.insert(id.clone(), Allocation { cpus: got, shared_cpus, ..own });
    true
}

/// Quota of a bounded service. It never takes from another: where the least is not left, it has none of its own.
fn quota(p: &Platform, all: &mut BTreeMap<ServiceId, Allocation>, id: &ServiceId, b: &Bounds) {
    let Some(wanted) = all.get(id).and_then(|a| a.quota_cores) else { return };
    let units = |q: f64| q / p.core_step;
    let exact = b.quota_at_least.zip(b.quota_at_most).filter(|(l, m)| (m - l).abs() < 1e-9).map(|(l, _)| l);
    let most = b.quota_at_most.map_or(f64::INFINITY, |q| p.cores((units(q) + 1e-6).floor() as u32));
    let least = b.quota_at_least.map_or(0.0, |q| p.cores((units(q) - 1e-6).ceil() as u32));
    let others: f64 = all.iter().filter(|(o, _)| *o != id).filter_map(|(_, a)| a.quota_cores).sum();
    let room = f64::from(p.managed.len()) - others;
    let fits = |q: f64| q >= p.core_step - 1e-9 && (!p.by_quota() || q <= room.max(wanted) + 1e-6);
    let got = exact.unwrap_or(wanted.min(most).max(least));
    let got = Some(got).filter(|q| !b.no_quota && fits(*q) && b.allow_quota(Some(*q)));
    if let Some(a) = all.get_mut(id) {
        a.quota_cores = got;
    }
}

/// Ways that a service has whatever it is given: whoever else has them shares them.
fn ways(p: &Platform, all: &mut BTreeMap<ServiceId, Allocation>, id: &ServiceId, b: &Bounds) {
    let Some(fixed) = b.ways_on(p) else { return };
    if let Some(a) = all.get_mut(id) {
        a.shared_ways = fixed.iter().zip(a.shared_ways.iter().chain(std::iter::repeat(&0))).map(|(f, s)| f & s).collect();
        a.ways = fixed;
    }
}

/// What a bounded service and another both hold, both call shared.
fn agree(all: &mut BTreeMap<ServiceId, Allocation>, bounds: &BTreeMap<ServiceId, Bounds>) {
    let ids: Vec<ServiceId> = all.keys().cloned().collect();
    for id in ids.iter().filter(|id| bounds.contains_key(*id)) {
        for other in ids.iter().filter(|o| *o != id) {
            let (Some(a), Some(o)) = (all.get(id), all.get(other)) else { continue };
            let cpus = a.cpus.intersection(o.cpus);
            let ways: Vec<u32> = a.ways.iter().zip(&o.ways).map(|(x, y)| x & y).collect();
            for who in [id, other] {
                let Some(a) = all.get_mut(who) else { continue };
                a.shared_cpus = a.shared_cpus.union(cpus);
                a.shared_ways.resize(a.ways.len(), 0);
                a.shared_ways.iter_mut().zip(&ways).for_each(|(s, w)| *s |= w);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::layout::{pack, Holding};
    use crate::memory::MemoryView;
    use crate::observation::{FeedState, Kind, ServiceView};

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    fn least(list: &str) -> Bounds {
        Bounds { cpus_at_least: cpus(list), ..Bounds::default() }
    }

    fn most(list: &str) -> Bounds {
        Bounds { cpus_at_most: Some(cpus(list)), ..Bounds::default() }
    }

    /// Services that hold this, or nothing yet, and their bounds.
    fn seen(p: &Platform, in_force: &BTreeMap<ServiceId, Allocation>, ids: &[&str], bounds: &[(&str, Bounds)]) -> Observation {
        let view = |id: &&str| ServiceView {
            id: id.to_string(),
            service: id.to_string(),
            kind: Kind::Lc { qos_target_ms: 1.0 },
            threads: 1,
            allocation: in_force.get(*id).cloned().unwrap_or_else(|| Allocation::everything(p)),
            placed: in_force.contains_key(*id),
            features: Features::default(),
            feed: FeedState::Idle,
            interval: None,
            window: None,
            instr_per_s: None,
            memory: MemoryView::default(),
        };
        let bounds = bounds.iter().map(|(id, b)| (id.to_string(), b.clone())).collect();
        Observation { t_ms: 0, services: ids.iter().map(view).collect(), bounds, words: None }
    }

    fn packed(p: &Platform, counts: &[(&str, u32)]) -> Plan {
        let holding =
            |(id, cores): &(&str, u32)| Holding { members: vec![id.to_string()], cores: *cores, ways: p.min_ways(), mba_pct: 100 };
        let holdings: Vec<Holding> = counts.iter().map(holding).collect();
        Plan::whole(pack(p, &BTreeMap::new(), &holdings, &[]).unwrap())
    }

    /// What services hold that had everything, or had nothing of it changed.
    fn held(plan: &Plan) -> BTreeMap<ServiceId, Allocation> {
        let everything = Allocation::everything(&Platform::regular("t", 1, 1, 0, 0.0));
        plan.changes.iter().map(|(id, c)| (id.clone(), c.on(&everything))).collect()
    }

    fn shown(k: &Kept) -> String {
        let one = |(id, a): (&ServiceId, &Allocation)| {
            let shared = if a.shared_cpus.is_empty() { String::new() } else { format!(" (shared {})", a.shared_cpus) };
            let quota = a.quota_cores.map_or_else(String::new, |q| format!(" quota {q}"));
            format!("{id} {}{shared}{quota}", a.cpus)
        };
        held(&k.plan).iter().map(|(id, a)| one((id, a))).collect::<Vec<_>>().join("; ")
    }

    /// CPUs change hands one for one: nobody has fewer, and nobody shares.
    #[test]
    fn others_make_room_and_keep_their_number() {
        let p = Platform::regular("t", 8, 1, 0, 0.0);
        let none = BTreeMap::new();
        // a 0-1, b 2-3, c 4-6; 7 is idle.
        let plan = packed(&p, &[("a", 2), ("b", 2), ("c", 3)]);
        let says = |bounds: &[(&str, Bounds)]| shown(&keep(&p, &seen(&p, &none, &["a", "b", "c"], bounds), plan.clone()));
        assert_eq!(says(&[("a", least("4-5"))]), "a 4-5; b 2-3; c 0-1,6");
        assert_eq!(says(&[("a", most("6-7"))]), "a 6-7; b 2-3; c 0,4-5");
        assert_eq!(says(&[("a", most("0-7"))]), "a 0-1; b 2-3; c 4-6");
        // More than it was to have: the one that nobody holds pays for one of the three.
        assert_eq!(says(&[("a", least("0-3"))]), "a 0-3 (shared 3); b 3,7 (shared 3); c 4-6");
    }

    /// A service that cannot be kept off any CPU shares them all, and both sides say so: nothing is exclusive that is not.
    #[test]
    fn what_cannot_be_kept_apart_is_called_shared() {
        let p = Platform::regular("t", 4, 1, 0, 0.0);
        let k = keep(&p, &seen(&p, &BTreeMap::new(), &["a", "b"], &[("a", least("0-3"))]), packed(&p, &[("a", 2), ("b", 2)]));
        assert_eq!(shown(&k), "a 0-3 (shared 2-3); b 2-3 (shared 2-3)");
        validate(&p, &held(&k.plan)).unwrap();
    }

    /// A service that is already in force moves out of the way although the policy asks for nothing.
    #[test]
    fn a_bound_that_appears_moves_those_in_force() {
        let p = Platform::regular("t", 4, 1, 0, 0.0);
        let now = held(&packed(&p, &[("a", 2), ("b", 2)]));
        let k = keep(&p, &seen(&p, &now, &["a", "b"], &[("a", most("2-3"))]), Plan::default());
        assert_eq!(shown(&k), "a 2-3; b 0-1");
    }

    /// A group with other CPUs alone is left out, and what it was to have is nobody else's loss.
    #[test]
    fn who_may_use_no_managed_cpu_is_left_out() {
        let p = Platform { managed: CpuSet::range(0, 4), ..Platform::regular("t", 8, 1, 0, 0.0) };
        let k = keep(&p, &seen(&p, &BTreeMap::new(), &["a", "b"], &[("a", most("6"))]), packed(&p, &[("a", 2), ("b", 2)]));
        assert_eq!((shown(&k).as_str(), k.left_out.keys().next().unwrap().as_str()), ("b 2-3", "a"));
        assert!(k.left_out["a"].contains("CPUs 6 alone"), "{:?}", k.left_out);
    }

    /// A quota goes as far as the group above has it, in whole steps; below one step there is none of its own. The least that groups
    /// below need is given where it is left, and nobody pays for it.
    #[test]
    fn quotas_stay_within_their_bounds() {
        let p = Platform { core_step: 0.1, ..Platform::regular("t", 2, 1, 0, 0.0) };
        let plan = packed(&p, &[("a", 10), ("b", 8)]);
        let says = |b: Bounds| shown(&keep(&p, &seen(&p, &BTreeMap::new(), &["a", "b"], &[("a", b)]), plan.clone()));
        let of = |least: Option<f64>, most: Option<f64>| Bounds { quota_at_least: least, quota_at_most: most, ..Bounds::default() };
        let b = "; b 0-1 (shared 0-1) quota 0.8";
        assert_eq!(says(of(None, Some(0.57))), format!("a 0-1 (shared 0-1) quota 0.5{b}"));
        assert_eq!(says(of(None, Some(0.05))), format!("a 0-1 (shared 0-1){b}"));
        assert_eq!(says(of(Some(1.15), None)), format!("a 0-1 (shared 0-1) quota 1.2{b}"));
        assert_eq!(says(of(Some(1.5), None)), format!("a 0-1 (shared 0-1){b}"));
        assert_eq!(says(of(Some(0.33), Some(0.33))), format!("a 0-1 (shared 0-1) quota 0.33{b}"));
        assert_eq!(says(Bounds { no_quota: true, ..Bounds::default() }), format!("a 0-1 (shared 0-1){b}"));
        assert_eq!(says(least("0-1")), format!("a 0-1 (shared 0-1) quota 1{b}"));
    }

    /// Ways that a service has whatever it is given are shared with whoever has them, and both sides say so.
    #[test]
    fn ways_that_stay_are_shared() {
        let p = Platform::regular("t", 4, 1, 11, 2.0);
        let plan = packed(&p, &[("a", 2), ("b", 2)]);
        let fixed = |m: u32| Bounds { ways: Some(vec![m]), ..Bounds::default() };
        let k = keep(&p, &seen(&p, &BTreeMap::new(), &["a", "b"], &[("a", fixed(0x7ff))]), plan.clone());
        let (got, asked) = (held(&k.plan), held(&plan));
        let (a, b) = (&got["a"], &got["b"]);
        assert_eq!((a.ways[0], a.shared_ways[0], b.ways[0], b.shared_ways[0]), (0x7ff, b.ways[0], asked["b"].ways[0], b.ways[0]));
        validate(&p, &held(&k.plan)).unwrap();
        // A mask with a gap is no plan's to give.
        let k = keep(&p, &seen(&p, &BTreeMap::new(), &["a", "b"], &[("a", fixed(0x505))]), plan);
        assert_eq!(held(&k.plan)["a"].ways[0], 0x7ff);
    }

    /// Whatever the plan and the bounds: the plan stays valid, every bound is kept or its service left out, the others have as many CPUs as
    /// they were to have, what is exclusive is nobody else's, and the result is a fixed point (seeded, 4000 hosts).
    #[test]
    fn any_plan_is_made_to_fit_any_bounds() {
        let mut x = 29u64;
        let mut next = move |n: u32| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((x >> 33) % u64::from(n)) as u32
        };
        let (mut alone, mut shared, mut out) = (0, 0, 0);
        for _ in 0..4000 {
            let n = 4 + next(12);
            let mut p = Platform::regular("t", n, 1, 0, 0.0);
            p.managed = CpuSet::range(next(2), n - next(2));
            let names = ["a", "b", "c", "d"];
            let mut left = p.managed.len();
            let mut counts = vec![];
            for id in names {
                if left > 0 {
                    let take = 1 + next(left.min(5));
                    left -= take;
                    counts.push((id, take));
                }
            }
            let plan = packed(&p, &counts);
            let mut random = |p: &Platform| (0..p.logical_cpus()).filter(|_| next(3) == 0).collect::<CpuSet>();
            let mut bounds = vec![];
            for (id, _) in counts.iter().take(2) {
                let (l, m) = (random(&p), random(&p));
                bounds.push((
                    *id,
                    if l.is_empty() || m.len() > 3 {
                        Bounds { cpus_at_most: Some(m), ..Bounds::default() }
                    } else {
                        Bounds { cpus_at_least: l, ..Bounds::default() }
                    },
                ));
            }
            let ids: Vec<&str> = counts.iter().map(|c| c.0).collect();
            let at_first = seen(&p, &BTreeMap::new(), &ids, &bounds);
            let k = keep(&p, &at_first, plan.clone());
            let got = &held(&k.plan);
            validate(&p, got).unwrap_or_else(|e| panic!("{e}: {bounds:?} {}", shown(&k)));
            for (id, b) in &bounds {
                let Some(a) = got.get(*id) else {
                    out += 1;
                    assert!(k.left_out.contains_key(*id) && b.cpus_of(&p).1.is_empty());
                    continue;
                };
                assert!(b.allow(&p, a), "{id} {b:?}: {}", shown(&k));
            }
            for (id, count) in counts.iter().skip(2) {
                assert_eq!(got[*id].cpus.len(), *count, "{id}: {bounds:?} {}", shown(&k));
            }
            for a in got.values() {
                if a.shared_cpus.is_empty() {
                    alone += 1;
                } else {
                    shared += 1;
                }
            }
            let again = keep(&p, &seen(&p, got, &ids, &bounds), Plan::whole(got.clone()));
            assert!(again.plan.changes.is_empty(), "{bounds:?}: {} and then {}", shown(&k), shown(&again));
        }
        assert!(alone > 5000 && shared > 500 && out > 20, "{alone} {shared} {out}");
    }
}
