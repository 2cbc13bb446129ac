//! From counts to places: which CPUs and which ways hold a number of cores and ways.
//!
//! Policies think in counts; kernels want CPU lists and contiguous masks. [`pack`] turns one into the other and moves as
//! little as it can from what is in force: CPUs are kept, new ones are chosen in the service's L3 domain, idle physical cores
//! before siblings; blocks of ways keep their place unless a neighbour needs it.
//!
//! A holder is in one L3 domain while any can hold all of it: a new one goes where most whole cores are free, one that outgrows
//! its domain moves to another that has room (a cold cache once instead of half a cache for good), and only where none has room
//! does it spill, to the nearest.

use crate::allocation::{full_mask, Allocation};
use crate::cpuset::CpuSet;
use crate::platform::Platform;
use crate::ServiceId;
use std::collections::BTreeMap;

/// What one holder gets: one service, or several that share everything they hold (BE jobs).
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    pub members: Vec<ServiceId>,
    /// Core units of their own (see `Platform::core_step`).
    pub cores: u32,
    pub ways: u32,
    pub mba_pct: u8,
}

/// Cores and ways that two holders use together, besides their own (OSML+ paper, Algorithm 3, line 13).
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Indices of two holdings.
    pub between: (usize, usize),
    pub cores: u32,
    pub ways: u32,
}

/// Place holdings and shares. The result names every member and passes [`crate::validate::validate`].
///
/// # Errors
/// One line that says what does not fit.
pub fn pack(
    p: &Platform,
    in_force: &BTreeMap<ServiceId, Allocation>,
    holdings: &[Holding],
    shares: &[Share],
) -> Result<BTreeMap<ServiceId, Allocation>, String> {
    for (i, h) in holdings.iter().enumerate() {
        let (mut cores, mut ways) = (h.cores, h.ways);
        for s in shares.iter().filter(|s| s.between.0 == i || s.between.1 == i) {
            cores += s.cores;
            ways += s.ways;
        }
        let name = h.members.join("+");
        if cores == 0 {
            return Err(format!("{name}: no core. Every service needs at least one unit of {} cores", p.core_step));
        }
        if p.llc.is_some() && ways < p.min_ways() {
            return Err(format!("{name}: {ways} ways. {} needs at least {}", p.name, p.min_ways()));
        }
    }
    let cores: u32 = holdings.iter().map(|h| h.cores).sum::<u32>() + shares.iter().map(|s| s.cores).sum::<u32>();
    if cores > p.core_units() {
        return Err(format!("{cores} core units asked for, {} has {}", p.name, p.core_units()));
    }
    let masks = place_ways(p, in_force, holdings, shares)?;
    let cpus = if p.by_quota() { vec![] } else { place_cpus(p, in_force, holdings, shares) };
    let mut out = BTreeMap::new();
    for (i, h) in holdings.iter().enumerate() {
        let extra: u32 = shares.iter().filter(|s| s.between.0 == i || s.between.1 == i).map(|s| s.cores).sum();
        let alone = h.members.len() == 1;
        let (set, shared) = if p.by_quota() {
            (p.managed, p.managed)
        } else {
            let (own, common) = cpus[i];
            (own.union(common), if alone { common } else { own.union(common) })
        };
        // Members of one holding share its quota evenly: the kernel has no quota over unrelated groups.
        let quota = p.by_quota().then(|| (p.cores(h.cores + extra) / h.members.len() as f64).max(p.core_step));
        let (own, common) = masks[i];
        let per_domain = |m: u32| if p.llc.is_some() { vec![m; p.l3_domains() as usize] } else { vec![] };
        for id in &h.members {
            out.insert(
                id.clone(),
                Allocation {
                    cpus: set,
                    shared_cpus: shared,
                    quota_cores: quota,
                    ways: per_domain(own | common),
                    shared_ways: per_domain(if alone { common } else { own | common }),
                    mba_pct: h.mba_pct,
                    mem_limit_bytes: None,
                    zswap_max_bytes: None,
                },
            );
        }
    }
    Ok(out)
}

/// Own and common mask of each holding.
fn place_ways(
    p: &Platform,
    in_force: &BTreeMap<ServiceId, Allocation>,
    holdings: &[Holding],
    shares: &[Share],
) -> Result<Vec<(u32, u32)>, String> {
    let mut out = vec![(0, 0); holdings.len()];
    let Some(llc) = p.llc else { return Ok(out) };
    // A block is one holding, or two around the ways that they share: own(a) | common | own(b).
    let mut paired = vec![false; holdings.len()];
    let mut blocks: Vec<(u32, u32, usize, Option<usize>, u32)> = vec![]; // previous low way, width, holding, partner, common
    let before = |i: usize| {
        let mask = holdings[i].members.iter().find_map(|m| in_force.get(m)?.ways.first().copied()).unwrap_or(0);
        // A mask over everything says nothing about a place.
        if mask == 0 || mask == full_mask(llc.ways) {
            u32::MAX
        } else {
            mask.trailing_zeros()
        }
    };
    for s in shares.iter().filter(|s| s.ways > 0) {
        let (a, b) = s.between;
        if paired[a] || paired[b] {
            return Err(format!(
                "{} shares ways twice: masks have no gaps, so a service shares with one other",
                holdings[a].members.join("+")
            ));
        }
        (paired[a], paired[b]) = (true, true);
        let (a, b) = if before(a) <= before(b) { (a, b) } else { (b, a) };
        blocks.push((before(a).min(before(b)), holdings[a].ways + s.ways + holdings[b].ways, a, Some(b), s.ways));
    }
    for (i, h) in holdings.iter().enumerate().filter(|(i, _)| !paired[*i]) {
        blocks.push((before(i), h.ways, i, None, 0));
    }
    blocks.sort_by_key(|b| (b.0, b.2));
    let mut rest: u32 = blocks.iter().map(|b| b.1).sum();
    if rest > llc.ways {
        return Err(format!("{rest} ways asked for, {} has {}", p.name, llc.ways));
    }
    let mut cursor = 0;
    for (prev, width, i, partner, common) in blocks {
        // Keep the old place if the blocks to the right still fit.
        let lo = if prev == u32::MAX { cursor } else { prev.clamp(cursor, llc.ways - rest) };
        let at = |lo: u32, w: u32| full_mask(w) << if w == 0 { 0 } else { lo };
        let own = holdings[i].ways;
        out[i] = (at(lo, own), at(lo + own, common));
        if let Some(j) = partner {
            out[j] = (at(lo + own + common, holdings[j].ways), at(lo + own, common));
        }
        cursor = lo + width;
        rest -= width;
    }
    Ok(out)
}

/// Own and common CPUs of each holding.
fn place_cpus(p: &Platform, in_force: &BTreeMap<ServiceId, Allocation>, holdings: &[Holding], shares: &[Share]) -> Vec<(CpuSet, CpuSet)> {
    let mut owner: Vec<Option<usize>> = vec![None; p.logical_cpus() as usize]; // zone of each CPU
    let n = holdings.len();
    let before = |i: usize| {
        let mut set = CpuSet::empty();
        for a in holdings[i].members.iter().filter_map(|m| in_force.get(m)) {
            // Holding everything is no place.
            if a.cpus != p.managed {
                set = set.union(a.cpus);
            }
        }
        set
    };
    let prev: Vec<CpuSet> = (0..n).map(before).collect();
    // Zones: the holdings, then the shares.
    let want: Vec<u32> = holdings.iter().map(|h| h.cores).chain(shares.iter().map(|s| s.cores)).collect();
    let liked = |zone: usize, cpu: u32| match zone.checked_sub(n) {
        None => prev[zone].contains(cpu),
        Some(s) => prev[shares[s].between.0].contains(cpu) || prev[shares[s].between.1].contains(cpu),
    };
    let mut have = vec![0u32; want.len()];
    // Keep what is held, whole cores first: a surplus is given back from the siblings (the highest numbers).
    for zone in 0..want.len() {
        for cpu in p.managed.iter() {
            if have[zone] < want[zone] && owner[cpu as usize].is_none() && liked(zone, cpu) {
                owner[cpu as usize] = Some(zone);
                have[zone] += 1;
            }
        }
    }
    let mut order: Vec<usize> = (0..want.len()).collect();
    if p.l3_domains() > 1 {
        // The large find room in one domain before the small have used it up; shares follow their holders.
        order.sort_by_key(|z| (*z >= n, std::cmp::Reverse(want[*z])));
    }
    // Where a share belongs: with those that share it.
    let family = |zone: usize| match zone.checked_sub(n) {
        None => vec![zone],
        Some(s) => vec![zone, shares[s].between.0, shares[s].between.1],
    };
    for &zone in &order {
        fill(p, &mut owner, zone, &family(zone), want[zone]);
    }
    gather(p, &mut owner, &want);
    let zone_set = |zone: usize| owner.iter().enumerate().filter(|(_, o)| **o == Some(zone)).map(|(c, _)| c as u32).collect::<CpuSet>();
    (0..n)
        .map(|i| {
            let common = shares.iter().enumerate().filter(|(_, s)| s.between.0 == i || s.between.1 == i);
            (zone_set(i), common.fold(CpuSet::empty(), |set, (s, _)| set.union(zone_set(n + s))))
        })
        .collect()
}

/// The holder of each CPU.
type Owners = [Option<usize>];

/// CPUs of each L3 domain that satisfy a condition.
fn per_domain(p: &Platform, holds: impl Fn(usize) -> bool) -> Vec<u32> {
    let mut n = vec![0u32; p.l3_domains() as usize];
    p.managed.iter().filter(|c| holds(*c as usize)).for_each(|c| n[p.l3_domain_of_cpu[c as usize] as usize] += 1);
    n
}

/// The domain that holds most of these zones; where none does, the one with most free whole cores among those with room for
/// `want`, else among all.
fn home(p: &Platform, owner: &Owners, family: &[usize], want: u32) -> usize {
    let own = per_domain(p, |c| owner[c].is_some_and(|z| family.contains(&z)));
    let most = own.iter().copied().max().unwrap_or(0);
    if most > 0 {
        return own.iter().position(|d| *d == most).unwrap_or(0);
    }
    let free = per_domain(p, |c| owner[c].is_none());
    let idle = |c: usize| (0..owner.len()).all(|s| p.core_of_cpu[s] != p.core_of_cpu[c] || owner[s].is_none());
    let whole = per_domain(p, idle);
    let rank = |d: &usize| (free[*d] >= want, whole[*d], free[*d], std::cmp::Reverse(*d));
    (0..free.len()).max_by_key(rank).unwrap_or(0)
}

/// Give a zone CPUs until it has `want` or none is left.
fn fill(p: &Platform, owner: &mut Owners, zone: usize, family: &[usize], want: u32) {
    let mut have = owner.iter().filter(|o| **o == Some(zone)).count() as u32;
    let near = home(p, owner, family, want);
    let node = |cpu: usize| p.numa_of_cpu.get(cpu).copied();
    let node_of_home = p.managed.iter().find(|c| p.l3_domain_of_cpu[*c as usize] as usize == near).and_then(|c| node(c as usize));
    while have < want {
        let score = |cpu: u32| {
            let c = cpu as usize;
            let away = p.l3_domain_of_cpu[c] as usize != near;
            let sibling = (0..owner.len())
                .filter(|s| *s != c && p.core_of_cpu[*s] == p.core_of_cpu[c])
                .map(|s| match owner[s] {
                    None => 0,
                    Some(z) if z == zone => 1,
                    Some(_) => 2,
                })
                .max()
                .unwrap_or(0);
            (away, node(c) != node_of_home, sibling, cpu)
        };
        let Some(cpu) = p.managed.iter().filter(|c| owner[*c as usize].is_none()).min_by_key(|c| score(*c)) else { break };
        owner[cpu as usize] = Some(zone);
        have += 1;
    }
}

/// Move zones that lie in several domains into one that can hold all of them, as long as there is such a zone: each move leaves
/// fewer zones in pieces and frees room for others.
fn gather(p: &Platform, owner: &mut Owners, want: &[u32]) {
    while let Some((zone, domain)) = (0..want.len()).find_map(|zone| {
        let own = per_domain(p, |c| owner[c] == Some(zone));
        if own.iter().filter(|n| **n > 0).count() < 2 {
            return None;
        }
        let room = per_domain(p, |c| owner[c].is_none() || owner[c] == Some(zone));
        // The one that holds most of it already: the fewest CPUs change hands.
        let best = (0..room.len()).filter(|d| room[*d] >= want[zone]).max_by_key(|d| (own[*d], std::cmp::Reverse(*d)))?;
        Some((zone, best))
    }) {
        for (c, o) in owner.iter_mut().enumerate() {
            if *o == Some(zone) && p.l3_domain_of_cpu[c] as usize != domain {
                *o = None;
            }
        }
        // With nothing left in it the domain is still to be this one.
        if owner.iter().all(|o| *o != Some(zone)) {
            let first = p.managed.iter().find(|c| owner[*c as usize].is_none() && p.l3_domain_of_cpu[*c as usize] as usize == domain);
            first.into_iter().for_each(|c| owner[c as usize] = Some(zone));
        }
        fill(p, owner, zone, &[zone], want[zone]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::validate;

    fn holding(id: &str, cores: u32, ways: u32) -> Holding {
        Holding { members: vec![id.into()], cores, ways, mba_pct: 100 }
    }

    /// Whole cores come before siblings, and blocks of ways stack from way 0.
    #[test]
    fn fresh_services_get_whole_cores_first() {
        // 4 cores with 2 threads: CPU 4 is the sibling of CPU 0.
        let p = Platform::regular("t", 4, 2, 11, 2.0);
        let got = pack(&p, &BTreeMap::new(), &[holding("a", 3, 4), holding("b", 2, 3)], &[]).unwrap();
        assert_eq!(got["a"].cpus.to_string(), "0-2");
        assert_eq!(got["b"].cpus.to_string(), "3,7");
        assert_eq!((got["a"].ways[0], got["b"].ways[0]), (0xf, 0x70));
        validate(&p, &got).unwrap();
    }

    /// Growing by one core and one way moves no other holder.
    #[test]
    fn growing_moves_nobody_else() {
        let p = Platform::regular("t", 8, 1, 11, 2.0);
        let one = pack(&p, &BTreeMap::new(), &[holding("a", 2, 3), holding("b", 2, 3)], &[]).unwrap();
        let two = pack(&p, &one, &[holding("a", 2, 3), holding("b", 3, 4)], &[]).unwrap();
        assert_eq!(one["a"], two["a"]);
        assert!(one["b"].cpus.is_subset(&two["b"].cpus));
        assert_eq!(two["b"].ways[0], 0b111_1000);
    }

    /// Two services share a core and two ways; both masks stay contiguous and both sides mark what they share.
    #[test]
    fn sharing_overlaps_exactly_what_was_agreed() {
        let p = Platform::regular("t", 6, 1, 11, 2.0);
        let share = Share { between: (0, 1), cores: 1, ways: 2 };
        let got = pack(&p, &BTreeMap::new(), &[holding("a", 2, 3), holding("b", 2, 3), holding("c", 1, 2)], &[share]).unwrap();
        validate(&p, &got).unwrap();
        assert_eq!(got["a"].cpus.intersection(got["b"].cpus).len(), 1);
        assert_eq!((got["a"].ways[0] & got["b"].ways[0]).count_ones(), 2);
        assert_eq!((got["a"].cpus.len(), got["a"].ways[0].count_ones()), (3, 5));
    }

    /// BE jobs in one holding share all of it; with quotas they split it.
    #[test]
    fn members_of_a_holding_share_it() {
        let be = Holding { members: vec!["x".into(), "y".into()], cores: 4, ways: 0, mba_pct: 100 };
        let p = Platform::regular("t", 4, 1, 0, 0.0);
        let got = pack(&p, &BTreeMap::new(), std::slice::from_ref(&be), &[]).unwrap();
        assert_eq!(got["x"], got["y"]);
        validate(&p, &got).unwrap();
        let q = Platform { core_step: 0.1, managed: CpuSet::range(0, 1), ..Platform::regular("q", 2, 1, 0, 0.0) };
        let got = pack(&q, &BTreeMap::new(), &[holding("a", 5, 0), be], &[]).unwrap();
        assert_eq!((got["a"].quota_cores, got["x"].quota_cores), (Some(0.5), Some(0.2)));
        validate(&q, &got).unwrap();
    }

    /// What does not fit is refused in one line.
    #[test]
    fn too_much_is_refused() {
        let p = Platform::regular("t", 4, 1, 11, 2.0);
        let says = |h: &[Holding]| pack(&p, &BTreeMap::new(), h, &[]).unwrap_err();
        assert!(says(&[holding("a", 3, 4), holding("b", 2, 3)]).contains("5 core units asked for, t has 4"));
        assert!(says(&[holding("a", 1, 8), holding("b", 1, 4)]).contains("12 ways asked for, t has 11"));
        assert!(says(&[holding("a", 0, 4)]).contains("a: no core"));
    }

    /// Any sequence of counts that fits packs into a valid plan (seeded walk, 2000 steps).
    #[test]
    fn any_sequence_of_counts_stays_valid() {
        let mut p = Platform::regular("t", 12, 2, 20, 2.25);
        p.l3_domain_of_cpu = (0..24).map(|c| (c % 12) / 6).collect();
        let mut x = 7u64;
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((x >> 33) % n) as u32
        };
        let mut now = BTreeMap::new();
        for _ in 0..2000 {
            let h: Vec<_> = ["a", "b", "c", "d"].iter().map(|s| holding(s, 1 + next(5), 1 + next(4))).collect();
            let shares = if next(2) == 0 { vec![Share { between: (0, 2), cores: next(3), ways: next(4) }] } else { vec![] };
            now = pack(&p, &now, &h, &shares).unwrap();
            validate(&p, &now).unwrap();
            let extra = shares.first().map_or((0, 0), |s| (s.cores, s.ways));
            assert_eq!(now["a"].cpus.len(), h[0].cores + extra.0);
            assert_eq!(now["a"].ways[0].count_ones(), h[0].ways + extra.1);
            assert_eq!(now["b"].cpus.len(), h[1].cores);
        }
    }

    /// Two sockets with two L3 domains each, three cores of two threads in a domain, a node a socket.
    fn four_domains() -> Platform {
        let mut p = Platform::regular("t", 12, 2, 11, 2.0);
        p.l3_domain_of_cpu = (0..24).map(|c| (c % 12) / 3).collect();
        p.numa_of_cpu = (0..24).map(|c| (c % 12) / 6).collect();
        p
    }

    fn domains(p: &Platform, cpus: &CpuSet) -> Vec<u32> {
        let mut d: Vec<u32> = cpus.iter().map(|c| p.l3_domain_of_cpu[c as usize]).collect();
        d.sort_unstable();
        d.dedup();
        d
    }

    /// A new service goes where most whole cores are free; one that outgrows its domain moves to one that holds it whole; one that
    /// fits nowhere spills within its node.
    #[test]
    fn a_service_stays_in_one_domain_while_it_fits() {
        let p = four_domains();
        let none = BTreeMap::new();
        let one = pack(&p, &none, &[holding("a", 2, 1), holding("b", 2, 1)], &[]).unwrap();
        assert_eq!((domains(&p, &one["a"].cpus), domains(&p, &one["b"].cpus)), (vec![0], vec![1]));
        // 13 of 24 CPUs, 6 in a domain: each finds one.
        let crowded =
            pack(&p, &none, &[holding("a", 3, 1), holding("b", 3, 1), holding("c", 3, 1), holding("d", 2, 1), holding("e", 2, 1)], &[]);
        let crowded = crowded.unwrap();
        assert!(crowded.values().all(|a| domains(&p, &a.cpus).len() == 1), "{crowded:?}");
        // e shares a domain with a (3 + 2 of 6): with 4 it no longer fits there, and d's (2 of 6) has room.
        let sizes = [holding("a", 3, 1), holding("b", 3, 1), holding("c", 3, 1), holding("d", 2, 1), holding("e", 4, 1)];
        let grown = pack(&p, &crowded, &sizes, &[]).unwrap();
        assert!(grown.values().all(|a| domains(&p, &a.cpus).len() == 1), "{grown:?}");
        // 8 of 6: no domain can.
        let big = pack(&p, &none, &[holding("a", 8, 1)], &[]).unwrap();
        assert_eq!((domains(&p, &big["a"].cpus), p.numa_nodes(&big["a"].cpus).to_string()), (vec![0, 1], "0".to_string()));
    }

    /// On any platform and after any sequence of counts: no holder shares a CPU unasked, each has what it asked for, and a holder
    /// lies in several domains only where none could hold it with what is free (seeded, 300 platforms of 20 steps).
    #[test]
    fn one_domain_while_any_can_hold_it() {
        let mut x = 11u64;
        let mut next = move |n: u32| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((x >> 33) % u64::from(n)) as u32
        };
        let mut whole = 0;
        for _ in 0..300 {
            let (per, count, smt) = (1 + next(6), 1 + next(4), 1 + next(2));
            let cores = per * count;
            let mut p = Platform::regular("t", cores, smt, 11, 2.0);
            p.l3_domain_of_cpu = (0..cores * smt).map(|c| (c % cores) / per).collect();
            p.numa_of_cpu = p.l3_domain_of_cpu.iter().map(|d| d / 2).collect();
            // Some CPU is not managed, where there are enough.
            if cores > 4 {
                p.managed = p.managed.difference(CpuSet::range(next(cores), cores).iter().take(1).collect());
            }
            let mut now = BTreeMap::new();
            for _ in 0..20 {
                let mut left = p.managed.len();
                let mut sizes = vec![];
                for id in ["a", "b", "c", "d"] {
                    if left > 0 {
                        let want = 1 + next(left.min(2 * per));
                        left -= want;
                        sizes.push(holding(id, want, 1));
                    }
                }
                now = pack(&p, &now, &sizes, &[]).unwrap();
                validate(&p, &now).unwrap();
                let used = now.values().fold(CpuSet::empty(), |u, a| u.union(a.cpus));
                assert_eq!(used.len(), sizes.iter().map(|h| h.cores).sum::<u32>(), "somebody holds what another does");
                for h in &sizes {
                    let own = now[&h.members[0]].cpus;
                    assert_eq!(own.len(), h.cores);
                    if domains(&p, &own).len() == 1 {
                        whole += 1;
                        continue;
                    }
                    for d in 0..p.l3_domains() {
                        let can = |c: &u32| p.l3_domain_of_cpu[*c as usize] == d && (own.contains(*c) || !used.contains(*c));
                        let room = p.managed.iter().filter(can).count() as u32;
                        assert!(room < h.cores, "{h:?} on {own} would fit into domain {d} of {p:?}: {now:?}");
                    }
                }
            }
        }
        assert!(whole > 10_000, "only {whole} were in one domain");
    }
}
