//! The rules that every plan must keep, on every server.

use crate::allocation::{contiguous, full_mask, Allocation};
use crate::held::Quantity;
use crate::platform::Platform;
use crate::resource::Resource;
use std::collections::BTreeMap;

/// Check allocations that are to be in force together (placed services only).
///
/// # Errors
/// One line: which service, what is wrong, what would be right.
pub fn validate(p: &Platform, all: &BTreeMap<String, Allocation>) -> Result<(), String> {
    for (id, a) in all {
        one(p, id, a)?;
    }
    let entries: Vec<_> = all.iter().collect();
    for (i, (id, a)) in entries.iter().enumerate() {
        for (other, b) in &entries[..i] {
            compatible(id, a, other, b)?;
        }
    }
    if p.by_quota() {
        // Shared quota is time-shared on purpose and therefore not counted.
        let sum: f64 = all.values().filter_map(|a| a.quota_cores).sum();
        let have = f64::from(p.managed.len());
        if sum > have + 1e-6 {
            return Err(format!("quotas add up to {sum:.1} cores, but only {have:.1} are managed. Give less to some service"));
        }
    }
    Ok(())
}

fn one(p: &Platform, id: &str, a: &Allocation) -> Result<(), String> {
    if a.cpus.is_empty() {
        return Err(format!("{id}: no CPU. Give it at least one of {}", p.managed));
    }
    if !a.cpus.is_subset(&p.managed) {
        let bad = a.cpus.difference(p.managed);
        return Err(format!("{id}: CPU {bad} is not managed on {}. Choose from {}", p.name, p.managed));
    }
    if let Some(q) = a.quota_cores {
        if !q.is_finite() || q < p.core_step - 1e-9 {
            return Err(format!("{id}: quota of {q} cores. The least is {}", p.core_step));
        }
    }
    match p.llc {
        None if !a.ways.is_empty() => {
            return Err(format!("{id}: way masks, but {} cannot partition its LLC. Leave them out", p.name));
        }
        None => {}
        Some(l) => {
            if a.ways.len() != p.l3_domains() as usize {
                return Err(format!("{id}: {} way masks for {} L3 domains", a.ways.len(), p.l3_domains()));
            }
            for m in &a.ways {
                if m & !full_mask(l.ways) != 0 {
                    return Err(format!("{id}: CBM {m:#x} is beyond the {} ways of {}", l.ways, p.name));
                }
                if !contiguous(*m) {
                    let fix = full_mask(m.count_ones().max(l.min_ways));
                    return Err(format!("{id}: CBM {m:#x} has a gap or is empty ({} ways). Give it one block, e.g. {fix:#x}", l.ways));
                }
                if m.count_ones() < l.min_ways {
                    return Err(format!("{id}: CBM {m:#x} is narrower than the {} ways that {} needs", l.min_ways, p.name));
                }
            }
        }
    }
    let bandwidth = (Quantity::of_resource(Resource::MemoryBandwidth).bounds)(p);
    if !bandwidth.map_or(a.mba_pct == 100, |b| b.take(f64::from(a.mba_pct))) {
        let may = bandwidth.map_or("only 100".into(), |b| format!("{} to {} in steps of {}", b.least, b.most, b.step));
        return Err(format!("{id}: MBA {} %. {} takes {may}", a.mba_pct, p.name));
    }
    Ok(())
}

/// Check that two services may hold this at the same time: what both use, both call shared.
///
/// # Errors
/// One line: which services hold what twice, and what would be right.
pub fn compatible(id: &str, a: &Allocation, other: &str, b: &Allocation) -> Result<(), String> {
    let both = a.cpus.intersection(b.cpus);
    let agreed = a.shared_cpus.intersection(b.shared_cpus);
    if !both.is_subset(&agreed) {
        let cpus = both.difference(agreed);
        return Err(format!("{id} and {other} both hold CPU {cpus} exclusively. Give it to one, or mark it shared in both"));
    }
    for (d, (x, y)) in a.ways.iter().zip(&b.ways).enumerate() {
        let agreed = a.shared_ways.get(d).unwrap_or(&0) & b.shared_ways.get(d).unwrap_or(&0);
        let clash = x & y & !agreed;
        if clash != 0 {
            return Err(format!(
                "{id} and {other} both hold ways {clash:#x} of L3 domain {d} exclusively. Give them to one, or mark them shared in both"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuset::CpuSet;

    fn hold(p: &Platform, lo: u32, hi: u32, mask: u32) -> Allocation {
        Allocation {
            cpus: CpuSet::range(lo, hi),
            shared_cpus: CpuSet::empty(),
            ways: vec![mask],
            shared_ways: vec![0],
            ..Allocation::everything(p)
        }
    }

    /// Each broken rule gives one line that names the service; a sound plan passes.
    #[test]
    fn broken_rules_are_named() {
        let p = Platform::regular("test", 4, 2, 11, 2.0);
        let plan = |a: Allocation| BTreeMap::from([("moses".to_string(), hold(&p, 0, 2, 0x3)), ("xapian".to_string(), a)]);
        let says = |a: Allocation| validate(&p, &plan(a)).unwrap_err();
        assert!(validate(&p, &plan(hold(&p, 2, 4, 0xc))).is_ok());
        assert!(says(hold(&p, 2, 2, 0xc)).contains("xapian: no CPU"));
        assert!(says(hold(&p, 2, 9, 0xc)).contains("CPU 8 is not managed"));
        assert!(says(hold(&p, 1, 3, 0xc)).contains("both hold CPU 1 exclusively"));
        assert!(says(hold(&p, 2, 4, 0x6)).contains("both hold ways 0x2"));
        assert!(says(hold(&p, 2, 4, 0x5c)).contains("CBM 0x5c has a gap"));
        assert!(says(hold(&p, 2, 4, 0x1000)).contains("beyond the 11 ways"));
        assert!(says(Allocation { mba_pct: 35, ..hold(&p, 2, 4, 0xc) }).contains("steps of 10"));
        assert!(says(Allocation { quota_cores: Some(0.0), ..hold(&p, 2, 4, 0xc) }).contains("quota of 0"));
    }

    /// Two holders of a CPU are legal only if both call it shared.
    #[test]
    fn sharing_needs_both_sides() {
        let p = Platform::regular("test", 4, 1, 0, 0.0);
        let a = Allocation { shared_cpus: CpuSet::empty(), cpus: CpuSet::range(0, 2), ..Allocation::everything(&p) };
        let both = |x: &Allocation, y: &Allocation| validate(&p, &BTreeMap::from([("a".into(), x.clone()), ("b".into(), y.clone())]));
        let s = Allocation { shared_cpus: CpuSet::range(1, 2), ..a.clone() };
        let t = Allocation { cpus: CpuSet::range(1, 3), ..s.clone() };
        assert!(both(&s, &t).is_ok());
        assert!(both(&a, &t).is_err());
    }
}
