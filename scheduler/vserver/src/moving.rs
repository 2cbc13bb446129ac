//! Memory takes time to move: pages that a lower limit takes are found, compressed or written, and what a higher one allows comes back only as
//! it is touched again.
//!
//! Published figures say nothing of how fast. The rate is that of one reclaim thread at the platform's own cost of a page, on the CPUs of
//! the service that loses them; what goes to the disk waits for the disk. Where services without limits do not fit in the machine
//! together, the kernel takes the pages that are touched least, with a pool of a fifth of the memory (zswap's default, 20 %).

use crate::profile::PlatformProfile;
use crate::tenant::Tenant;

/// A page, GB.
const PAGE_GB: f64 = 4096.0 / (1u64 << 30) as f64;
/// A rise of less than this share of a service's memory is there: pages that are hardly touched come back never.
const ALL_BUT: f64 = 0.002;
/// Share of the machine's memory that each tenant gets, so that one that finds none begins at all.
const LEAST: f64 = 0.001;
/// Share of the machine's memory that the kernel's common pool may have.
const COMMON_POOL: f64 = 0.2;

/// Limits as they were asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub mem_gb: Option<f64>,
    pub cms_gb: f64,
}

impl Limits {
    pub fn of(t: &Tenant) -> Self {
        Limits { mem_gb: t.mem_gb, cms_gb: t.cms_gb }
    }

    pub fn put(self, t: &mut Tenant) {
        (t.mem_gb, t.cms_gb) = (self.mem_gb, self.cms_gb);
    }
}

/// What a tenant touches, GB.
pub fn set_gb(t: &Tenant) -> f64 {
    let m = &t.profile.memory;
    t.profile.paging.as_ref().map_or_else(|| (m.res_mb + m.res_mb_thread * f64::from(t.threads)) / 1024.0, |p| p.ws_gb)
}

/// The step of a segment of `h` seconds towards `wants`, from the limits that `t` has by now, and the cores that reclaim needs meanwhile.
/// `ins_per_s` pages of the tenant come back to memory.
pub(crate) fn step(p: &PlatformProfile, t: &Tenant, wants: Limits, ins_per_s: f64, h: f64) -> (Limits, f64) {
    let set_gb = set_gb(t);
    // Above what is touched a limit takes nothing, and no pool is filled.
    let real = |l: Limits| match l.mem_gb {
        Some(limit_gb) if limit_gb < set_gb => {
            (limit_gb, t.profile.paging.as_ref().map_or(l.cms_gb.clamp(0.0, limit_gb), |m| m.split(limit_gb, l.cms_gb).1))
        }
        _ => (set_gb, 0.0),
    };
    let (has, to) = (real(Limits::of(t)), real(wants));
    let (resident_gb, to_gb) = (has.0 - has.1, to.0 - to.1);
    let taken_gb = resident_gb - to_gb;
    let ratio = t.profile.paging.as_ref().map_or(1.0, |m| m.compress_ratio);
    let covered_gb = |(limit_gb, pool_gb): (f64, f64)| (limit_gb - pool_gb + ratio * pool_gb).min(set_gb);
    let takes_s = if taken_gb > 0.0 {
        let written = (covered_gb(has) - covered_gb(to)).max(0.0) / PAGE_GB / p.os.disk_iops;
        (taken_gb / PAGE_GB * p.os.reclaim_us * 1e-6).max(written)
    } else if t.profile.paging.is_none() || -taken_gb < ALL_BUT * set_gb {
        0.0
    } else {
        -taken_gb / (ins_per_s * PAGE_GB)
    };
    let share = if takes_s > h { h / takes_s } else { 1.0 };
    let reclaim_cores = (taken_gb.max(0.0) * share / PAGE_GB * p.os.reclaim_us * 1e-6 / h).min(1.0);
    if share == 1.0 {
        return (wants, reclaim_cores);
    }
    let between = |a: f64, b: f64| a + (b - a) * share;
    (Limits { mem_gb: Some(between(has.0, to.0)), cms_gb: between(has.1, to.1) }, reclaim_cores)
}

/// What each tenant can have at most of a machine that is too small for all, beside what it wants itself; nothing where all fit.
/// `touches_per_s`: pages that each touches; `new`: those that have just come and hold nothing yet.
pub(crate) fn fit(
    p: &PlatformProfile,
    tenants: &[Tenant],
    wants: &[Limits],
    touches_per_s: &[f64],
    new: impl Fn(usize) -> bool,
    out: &mut Vec<Limits>,
) {
    out.clear();
    out.extend_from_slice(wants);
    take_from_unlimited(p, tenants, wants, touches_per_s, out);
    rise_within(p, tenants, new, out);
}

/// Memory is given as it is there: what some are to get waits for what others lose.
fn rise_within(p: &PlatformProfile, tenants: &[Tenant], new: impl Fn(usize) -> bool, out: &mut [Limits]) {
    let of = |limit_gb: Option<f64>, i: usize| limit_gb.map_or(set_gb(&tenants[i]), |gb| gb.min(set_gb(&tenants[i])));
    let now = |i: usize| if new(i) { 0.0 } else { of(tenants[i].mem_gb, i) };
    let (mut held_gb, mut rises_gb) = (0.0, 0.0);
    for (i, l) in out.iter().enumerate() {
        let now_gb = now(i);
        held_gb += now_gb;
        rises_gb += (of(l.mem_gb, i) - now_gb).max(0.0);
    }
    let machine_gb = p.mem.capacity_gb - p.mem.reserved_gb;
    let free_gb = (machine_gb - held_gb).max(0.0);
    if rises_gb <= free_gb {
        return;
    }
    for (i, l) in out.iter_mut().enumerate() {
        let (now_gb, to_gb) = (now(i), of(l.mem_gb, i));
        if to_gb > now_gb {
            let gb = now_gb + (to_gb - now_gb) * free_gb / rises_gb;
            l.mem_gb = Some(gb.max((LEAST * machine_gb).min(to_gb)));
            l.cms_gb = l.cms_gb.min(0.9 * gb);
        }
    }
}

fn take_from_unlimited(p: &PlatformProfile, tenants: &[Tenant], wants: &[Limits], touches_per_s: &[f64], out: &mut [Limits]) {
    let machine_gb = p.mem.capacity_gb - p.mem.reserved_gb;
    let set = |i: usize| set_gb(&tenants[i]);
    let held = |i: usize| wants[i].mem_gb.map_or(set(i), |limit_gb| limit_gb.min(set(i)));
    let all_gb: f64 = (0..tenants.len()).map(held).sum();
    // Memory of a profile that does not say how it pages stays where it is.
    let gives = |i: usize| wants[i].mem_gb.is_none() && tenants[i].profile.paging.is_some();
    if all_gb <= machine_gb || !(0..tenants.len()).any(gives) {
        return;
    }
    let givers_gb: f64 = (0..tenants.len()).filter(|i| gives(*i)).map(set).sum();
    let left_gb = (machine_gb - (all_gb - givers_gb)).max(0.01 * machine_gb);
    let ratio = |i: usize| tenants[i].profile.paging.as_ref().map_or(1.0, |m| m.compress_ratio);
    let gain = (0..tenants.len()).filter(|i| gives(*i)).map(|i| (ratio(i) - 1.0) * set(i)).sum::<f64>() / givers_gb;
    // As much pool as holds everything, within the kernel's bound.
    let pool_gb = ((givers_gb - left_gb) / gain.max(0.01)).min(COMMON_POOL * p.mem.capacity_gb).min(0.9 * left_gb);
    // Resident parts whose least touched pages are touched equally often: they fall as that rate rises.
    let resident_gb = |i: usize, rate: f64| {
        let skew = tenants[i].profile.paging.as_ref().map_or(1.0, |m| m.page_skew.min(0.99));
        let touched = touches_per_s[i].max(1e-3);
        set(i) * (touched * skew / (rate * set(i))).powf(1.0 / (1.0 - skew)).min(1.0)
    };
    let total_gb = |rate: f64| (0..tenants.len()).filter(|i| gives(*i)).map(|i| resident_gb(i, rate)).sum::<f64>();
    let (mut lo, mut hi) = (-30.0f64, 40.0f64);
    for _ in 0..60 {
        let mid = 0.5 * (lo + hi);
        if total_gb(mid.exp()) > left_gb - pool_gb {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    let rate = hi.exp();
    let outside_gb: f64 = givers_gb - total_gb(rate);
    for i in (0..tenants.len()).filter(|i| gives(*i)) {
        let resident_gb = resident_gb(i, rate);
        let cms_gb = if outside_gb > 0.0 { pool_gb * (set(i) - resident_gb) / outside_gb } else { 0.0 };
        out[i] = Limits { mem_gb: Some(resident_gb + cms_gb), cms_gb };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plant::{Change, Plant};
    use crate::profile::Profiles;
    use std::path::Path;
    use std::sync::Arc;
    use surefoot_server::CpuSet;

    fn profiles() -> Profiles {
        Profiles::load(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles")]).unwrap()
    }

    fn cosmos() -> Arc<PlatformProfile> {
        Arc::new(profiles().platform("cosmos-server").unwrap().without_faults())
    }

    fn tenant(name: &str, cpus: (u32, u32), rps: f64) -> Tenant {
        Tenant::new(profiles().service(name).unwrap().clone(), rps, 16, CpuSet::range(cpus.0, cpus.1), (1 << 11) - 1)
    }

    /// Seconds until the limit in force is what was asked for, at most 120.
    fn settles_s(plant: &mut Plant, wanted_gb: Option<f64>) -> f64 {
        (1..=1200)
            .find(|_| {
                plant.step();
                plant.tenants()[0].mem_gb == wanted_gb
            })
            .map_or(f64::INFINITY, |ticks| f64::from(ticks) * 0.1)
    }

    /// Eight gigabytes are 2.1 million pages: at 3.5 us each they take more than seven seconds, and CPU time of the service. What a raised
    /// limit allows comes back as fast as the service touches it.
    #[test]
    fn memory_moves_in_its_own_time() {
        let mut plant = Plant::new(cosmos(), None, 0.1);
        let t = tenant("memcached-lancet", (0, 8), 75_000.0);
        plant.add("a", t, true).unwrap();
        let (mut ipc, mut busy) = (0.0, 0.0);
        for _ in 0..20 {
            (ipc, busy) = (plant.step()[0].ipc, plant.step()[0].cpu_usage_cores);
        }
        let (ws_gb, low_gb) = (45.0, 37.0);
        plant.change("a", Change::CmsGb(6.0)).unwrap();
        plant.change("a", Change::MemGb(Some(low_gb))).unwrap();
        plant.step();
        let s = plant.step()[0];
        assert!(s.cpu_usage_cores > busy * 1.01 && s.ipc < ipc, "{s:?}: before {ipc} {busy}");
        let held_gb = plant.tenants()[0].mem_gb.unwrap();
        assert!(held_gb > low_gb + 6.0 && held_gb < ws_gb, "{held_gb}");
        let down_s = settles_s(&mut plant, Some(low_gb));
        assert!((7.0..30.0).contains(&down_s), "{down_s}");
        plant.change("a", Change::CmsGb(0.0)).unwrap();
        plant.change("a", Change::MemGb(None)).unwrap();
        let up_s = settles_s(&mut plant, None);
        assert!(up_s > 1.0, "{up_s}");
    }

    /// Limits above what is touched, and those of profiles that do not say how they page, take nothing and cost nothing.
    #[test]
    fn what_takes_nothing_is_there_at_once() {
        let p = cosmos();
        let t = tenant("memcached-lancet", (0, 8), 1000.0);
        let roomy = Limits { mem_gb: Some(50.0), cms_gb: 0.0 };
        assert_eq!(step(&p, &t, roomy, 0.0, 0.1), (roomy, 0.0));
    }

    /// Two services that together touch more than the machine has lose what is touched least, and nothing else is changed.
    #[test]
    fn a_machine_that_is_too_small_takes_from_all() {
        let p = cosmos();
        let all = [tenant("memcached-lancet", (0, 8), 75_000.0), tenant("stream", (8, 16), 0.0)];
        let sets_gb: f64 = all.iter().map(set_gb).sum();
        let wants: Vec<Limits> = all.iter().map(Limits::of).collect();
        let machine_gb = p.mem.capacity_gb - p.mem.reserved_gb;
        assert!(sets_gb > machine_gb, "{sets_gb} {machine_gb}");
        let mut out = vec![];
        fit(&p, &all, &wants, &[1e5, 1e5], |_| false, &mut out);
        let total_gb: f64 = out.iter().map(|l| l.mem_gb.unwrap()).sum();
        assert!((total_gb / machine_gb - 1.0).abs() < 0.01, "{out:?}");
        // The one that touches its memory more often keeps more of it.
        let kept = |out: &[Limits], i: usize| (out[i].mem_gb.unwrap() - out[i].cms_gb) / set_gb(&all[i]);
        let even = kept(&out, 0);
        fit(&p, &all, &wants, &[1e6, 1e4], |_| false, &mut out);
        assert!(kept(&out, 0) > even, "{out:?}");
        // With limits that fit nothing is changed.
        let limited = [Limits { mem_gb: Some(30.0), cms_gb: 2.0 }, Limits { mem_gb: Some(20.0), cms_gb: 0.0 }];
        fit(&p, &all, &limited, &[1e5, 1e5], |_| false, &mut out);
        assert_eq!(out, limited);
        // In the loop both are served from what is left, and pages come back.
        let mut plant = Plant::new(p.clone(), None, 0.1);
        all.into_iter().zip(["a", "b"]).for_each(|(t, id)| plant.add(id, t, true).unwrap());
        (0..300).for_each(|_| {
            plant.step();
        });
        let samples = plant.step();
        let in_use_mb: f64 = samples.iter().map(|s| s.memory.in_use_mb).sum();
        assert!(in_use_mb < 1.02 * machine_gb * 1024.0, "{in_use_mb} MB of {machine_gb} GB");
        assert!(samples.iter().any(|s| s.memory.paged.unwrap().pool_ins_per_s > 0.0), "{samples:?}");
    }

    /// However large a working set is, no memory is there that the machine does not have, and a larger one serves no better.
    #[test]
    fn a_larger_set_is_no_gift() {
        let p = cosmos();
        let machine_mb = (p.mem.capacity_gb - p.mem.reserved_gb) * 1024.0;
        let p99_ms = |ws_gb: f64, of_be: bool| {
            let with = |t: Tenant, ws_gb: f64| Tenant { profile: Arc::new(t.profile.with_working_set(ws_gb).unwrap()), ..t };
            let (lc_gb, be_gb) = if of_be { (45.0, ws_gb) } else { (ws_gb, 24.0) };
            let mut plant = Plant::new(p.clone(), None, 0.1);
            plant.add("a", with(tenant("memcached-lancet", (0, 8), 37_500.0), lc_gb), true).unwrap();
            plant.add("b", with(tenant("bfs", (8, 16), 0.0), be_gb), true).unwrap();
            let mut last = 0.0;
            for tick in 0..300 {
                let seen = plant.step();
                let in_use_mb: f64 = seen.iter().map(|s| s.memory.in_use_mb).sum();
                assert!(in_use_mb <= 1.001 * machine_mb, "{ws_gb} GB, tick {tick}: {in_use_mb} MB of {machine_mb}");
                last = if of_be { 1.0 / seen[1].instr_per_s } else { seen[0].latency.map_or(f64::INFINITY, |l| l.p99) };
            }
            last
        };
        for of_be in [false, true] {
            let all: Vec<f64> = [45.0, 60.0, 100.0, 300.0, 1000.0, 3000.0, 1e5].map(|gb| p99_ms(gb, of_be)).to_vec();
            assert!(all.windows(2).all(|w| w[1] >= 0.98 * w[0]) && all[6] > 2.0 * all[0], "{all:?}");
        }
    }
}
