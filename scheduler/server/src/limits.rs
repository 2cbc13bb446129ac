//! Which limits on memory may be in force together.
//!
//! What must hold of the limits that a plan names ([`check_plan`]):
//!
//! - A limit on memory is above 0. That on the pool of compressed pages may be 0: the service has none then.
//! - The pool is a part of the memory under the limit (COSMOS, Eq. 2), so its limit is no higher than the other.
//! - Limits that are set add up to no more than the platform has, where that is known, or to no more than those in force.
//!
//! A plan that names no limit is not judged by any: what a refusal or another release left in force stops no plan of cores.
//!
//! A service without a limit counts for nothing in that sum. What it uses now is no promise: the same plan would be right at one moment
//! and wrong at the next. A policy that wants the sum to hold for all gives each of them a limit.

use crate::allocation::Allocation;
use crate::change::Change;
use crate::plan::Plan;
use crate::platform::Platform;
use crate::resource::Resource;
use std::collections::BTreeMap;

/// Check the limits that a plan names, by what services hold before and after it.
///
/// # Errors
/// One line: what is wrong, what would be right.
pub fn check_plan(
    p: &Platform,
    plan: &Plan,
    before: &BTreeMap<String, Allocation>,
    after: &BTreeMap<String, Allocation>,
) -> Result<(), String> {
    for (id, _) in plan.changes.iter().filter(|(_, change)| names_limits(change)) {
        after.get(id).map_or(Ok(()), |a| check_limits(id, a))?;
    }
    let adds = plan.changes.values().any(|c| c.names(Resource::Memory)) && sum_bytes(after) > sum_bytes(before);
    if adds {
        check_sum(p, after)
    } else {
        Ok(())
    }
}

/// Whether a change names a limit on memory or on its pool.
pub fn names_limits(change: &Change) -> bool {
    change.names(Resource::Memory) || change.names(Resource::Zswap)
}

/// Of the limits that are set.
fn sum_bytes(all: &BTreeMap<String, Allocation>) -> u64 {
    all.values().filter_map(|a| a.mem_limit_bytes).fold(0, u64::saturating_add)
}

/// Check the limits of one service.
///
/// # Errors
/// One line: what is wrong, what would be right.
fn check_limits(id: &str, a: &Allocation) -> Result<(), String> {
    let Some(limit) = a.mem_limit_bytes else { return Ok(()) };
    if limit == 0 {
        return Err(format!("{id}: memory limit of 0 bytes. Give it more, or lift the limit"));
    }
    match a.zswap_max_bytes.filter(|pool| *pool > limit) {
        Some(pool) => {
            Err(format!("{id}: zswap limit of {pool} bytes, but the pool is part of its {limit} bytes of memory. Give at most these"))
        }
        None => Ok(()),
    }
}

/// Check that the limits that are set fit into the memory of a platform together; those of one whose memory is unknown always do.
///
/// # Errors
/// One line: by how much they do not, and the service with the highest limit.
fn check_sum(p: &Platform, all: &BTreeMap<String, Allocation>) -> Result<(), String> {
    let limits = || all.iter().filter_map(|(id, a)| Some((a.mem_limit_bytes?, id)));
    let sum = sum_bytes(all);
    let (Some(memory), Some((most, id))) = (p.memory, limits().max()) else { return Ok(()) };
    let have = memory.capacity_bytes;
    if sum <= have {
        return Ok(());
    }
    let n = limits().count();
    let by = sum - have;
    Err(format!(
        "{id}: memory limit of {most} bytes, the highest of {n}, which add up to {by} bytes more than the {have} of {}. Lower some of them",
        p.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const GB: u64 = 1 << 30;

    fn limited(mem_limit_bytes: Option<u64>, zswap_max_bytes: Option<u64>) -> Allocation {
        Allocation { mem_limit_bytes, zswap_max_bytes, ..Allocation::everything(&Platform::regular("t", 4, 1, 0, 0.0)) }
    }

    /// A limit is above 0 and the pool inside it; no pool at all, a pool as large as the limit, and no limit are sound.
    #[test]
    fn the_pool_is_inside_the_limit() {
        let says = |mem, pool| check_limits("web", &limited(mem, pool)).err();
        for (mem, pool) in [(None, None), (None, Some(GB)), (Some(GB), None), (Some(GB), Some(GB)), (Some(GB), Some(0)), (Some(1), None)] {
            assert_eq!(says(mem, pool), None, "{mem:?} {pool:?}");
        }
        assert_eq!(says(Some(0), None).unwrap(), "web: memory limit of 0 bytes. Give it more, or lift the limit");
        let beyond = says(Some(100), Some(101)).unwrap();
        assert_eq!(beyond, "web: zswap limit of 101 bytes, but the pool is part of its 100 bytes of memory. Give at most these");
    }

    /// 20 + 40 GB fit into 60 and one byte more does not; a service without a limit counts for nothing; an unknown capacity bounds nothing.
    #[test]
    fn limits_add_up_to_what_there_is() {
        let mut p = Platform::regular("t", 4, 1, 0, 0.0);
        let all = |web: u64| {
            let limits = [("job", Some(20 * GB)), ("rest", None), ("web", Some(web))];
            limits.map(|(id, limit)| (id.to_string(), limited(limit, None))).into()
        };
        assert_eq!(check_sum(&p, &all(u64::MAX)), Ok(()));
        p.memory = Some(Memory { capacity_bytes: 60 * GB });
        assert_eq!(check_sum(&p, &all(40 * GB)), Ok(()));
        let e = check_sum(&p, &all(40 * GB + 1)).unwrap_err();
        let line = "web: memory limit of 42949672961 bytes, the highest of 2, which add up to 1 bytes more than the 64424509440 of t. \
                    Lower some of them";
        assert_eq!(e, line);
        // Sums beyond 64 bits are sums, too.
        assert!(check_sum(&p, &all(u64::MAX)).is_err());
    }

    /// Where more is in force than there is, a plan of cores passes, and so does one that lowers; one that adds does not.
    #[test]
    fn what_is_in_force_stops_no_plan_of_cores() {
        let mut p = Platform::regular("t", 4, 1, 0, 0.0);
        p.memory = Some(Memory { capacity_bytes: 6 * GB });
        let all = |a: u64, b: u64| -> BTreeMap<String, Allocation> {
            [("a", a), ("b", b)].map(|(id, limit)| (id.to_string(), limited(Some(limit), Some(2 * GB)))).into()
        };
        let before = all(4 * GB, 4 * GB);
        let says = |plan: Plan, after: &BTreeMap<String, Allocation>| check_plan(&p, &plan, &before, after);
        assert_eq!(says(Plan::cores_and_ways(before.clone()), &before), Ok(()));
        assert_eq!(says(Plan::whole(before.clone()), &before), Ok(()));
        let (less, more, pool) = (all(4 * GB, 3 * GB), all(4 * GB, 5 * GB), all(4 * GB, GB));
        assert_eq!(says(Plan::whole(less.clone()), &less), Ok(()));
        assert!(says(Plan::whole(more.clone()), &more).unwrap_err().contains("add up to"));
        assert!(says(Plan::whole(pool.clone()), &pool).unwrap_err().contains("the pool is part of"));
        // A pool beyond its limit that is in force stops no plan of cores either.
        assert_eq!(check_plan(&p, &Plan::cores_and_ways(pool.clone()), &pool, &pool), Ok(()));
    }
}
