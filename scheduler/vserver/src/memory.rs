//! What a tenant has in memory and in the compressed pool, and how often its pages come back: the steady state under its limit.
//!
//! This follows from the limit that is in force by now ([`crate::moving`]) and the rate of work alone. A tenant without a limit keeps everything.

use crate::profile::{Paging, PlatformProfile};
use crate::speeds::{faults, Speed};
use crate::tenant::Tenant;

/// Pages between memory, pool and disk, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Paged {
    /// Compressed copies, MB, and what they stand for.
    pub pool_mb: f64,
    pub stored_mb: f64,
    /// What is not resident, uncompressed: in the pool or on the disk.
    pub swapped_mb: f64,
    /// Pages that come back from the pool and from the disk, 1/s.
    pub pool_ins_per_s: f64,
    pub disk_ins_per_s: f64,
    /// Share of the time in which some worker waits for a page.
    pub stall_frac: f64,
}

/// Memory of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// Everything that counts towards the limit, the pool included, MB.
    pub in_use_mb: f64,
    /// None where a limit takes memory of a profile that does not say how it pages.
    pub paged: Option<Paged>,
    /// What is touched, MB; None where the profile does not say.
    pub working_set_mb: Option<f64>,
}

/// Of a tenant that would have `footprint_mb` resident, at speeds `r` (or their averages over a tick).
pub(crate) fn memory_use(p: &PlatformProfile, t: &Tenant, r: &Speed, footprint_mb: f64) -> MemoryUse {
    let limit_gb = t.mem_gb.unwrap_or(f64::INFINITY);
    let in_use_mb = footprint_mb.min(limit_gb * 1024.0);
    let working_set_mb = t.profile.paging.as_ref().map(|m| m.ws_gb * 1024.0);
    match &t.profile.paging {
        Some(m) if limit_gb < m.ws_gb => {
            let (resident_gb, pool_gb) = m.split(limit_gb, t.cms_gb);
            let stored_mb = m.compress_ratio * pool_gb * 1024.0;
            let swapped_mb = (m.ws_gb - resident_gb) * 1024.0;
            let paged = Paged { pool_mb: pool_gb * 1024.0, stored_mb, swapped_mb, ..rates(p, t, r, m) };
            MemoryUse { in_use_mb: (resident_gb + pool_gb) * 1024.0, paged: Some(paged), working_set_mb }
        }
        // Nothing that is touched is taken. It is the same set as under a lower limit, whatever the profile's resident size is.
        Some(m) => MemoryUse { in_use_mb: m.ws_gb * 1024.0, paged: Some(Paged::default()), working_set_mb },
        None => MemoryUse { in_use_mb, paged: (in_use_mb >= footprint_mb).then(Paged::default), working_set_mb },
    }
}

/// What faults are counted by: requests, or thousands of a job's instructions, 1/s.
pub(crate) fn work_per_s(t: &Tenant, r: &Speed) -> f64 {
    if t.profile.is_be() {
        r.x * 1e-3
    } else {
        r.x
    }
}

fn rates(p: &PlatformProfile, t: &Tenant, r: &Speed, m: &Paging) -> Paged {
    let (pool, disk) = faults(Some(m), t);
    let work_per_s = work_per_s(t, r);
    let (pool_ins_per_s, disk_ins_per_s) = (work_per_s * pool, work_per_s * disk);
    // As the speeds have it: requests queue at the disk, and a job that waits for each of its pages does not.
    let idle_frac = if t.profile.is_be() { 1.0 } else { 1.0 - (disk_ins_per_s / p.os.disk_iops).min(0.98) };
    let disk_us = p.os.disk_us / idle_frac;
    let waiting = (pool_ins_per_s * p.os.decompress_us + disk_ins_per_s * disk_us) * 1e-6;
    // Workers that wait independently of each other.
    let workers = f64::from(t.workers());
    let stall_frac = 1.0 - (1.0 - (waiting / workers).min(1.0)).powf(workers);
    Paged { pool_ins_per_s, disk_ins_per_s, stall_frac, ..Paged::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paging() -> Paging {
        Paging { ws_gb: 24.0, page_skew: 0.5, pages: 0.25, compress_ratio: 2.0, lru_error: 1.0 }
    }

    /// A job that has room holds what it touches, of whatever its profile says that is resident; under a lower limit the rest is swapped out.
    #[test]
    fn a_set_is_the_same_with_and_without_a_limit() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
        let all = crate::profile::Profiles::load(&[folder]).unwrap();
        let (p, job) = (all.platform("cosmos-server").unwrap(), all.service("canneal").unwrap());
        let free = Tenant::new(job.clone(), 0.0, 16, surefoot_server::CpuSet::range(0, 16), 1);
        let of = |t: &Tenant| memory_use(p, t, &Speed::default(), 900.0);
        let ws_mb = job.paging.as_ref().unwrap().ws_gb * 1024.0;
        assert_eq!((of(&free).in_use_mb, of(&free).paged), (ws_mb, Some(Paged::default())));
        let limited = Tenant { mem_gb: Some(20.0), cms_gb: 2.0, ..free };
        let (m, paged) = (of(&limited).in_use_mb, of(&limited).paged.unwrap());
        assert_eq!(m, 20.0 * 1024.0);
        assert!((m - paged.pool_mb + paged.swapped_mb - ws_mb).abs() < 1e-6, "{paged:?}");
    }

    /// 24 GB at 2 : 1 under 16 GB: a pool of 4 stands for 8, and 12 stay. Of 12 that are allowed 8 hold the other 16 of 24. Without one the rest is on the disk.
    #[test]
    fn no_more_is_compressed_than_the_limit_leaves_no_room_for() {
        assert_eq!(paging().split(16.0, 4.0), (12.0, 4.0));
        assert_eq!(paging().split(16.0, 12.0), (8.0, 8.0));
        assert_eq!(paging().split(16.0, 0.0), (16.0, 0.0));
        // More pool than memory is all of it.
        assert_eq!(paging().split(8.0, 9.0), (0.0, 8.0));
        // Pages that do not compress gain nothing; what is allowed is tried.
        assert_eq!(Paging { compress_ratio: 1.0, ..paging() }.split(16.0, 4.0), (12.0, 4.0));
    }

    /// A pool that is allowed and not needed changes neither what stays in memory nor what a request waits for.
    #[test]
    fn room_that_is_not_needed_costs_nothing() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
        let all = crate::profile::Profiles::load(&[folder]).unwrap();
        let service = all.service("memcached-lancet").unwrap();
        let m = service.paging.as_ref().unwrap();
        let limit_gb = 0.8 * m.ws_gb;
        let need_gb = (m.ws_gb - limit_gb) / (m.compress_ratio - 1.0);
        let of = |cms_gb: f64| {
            let free = Tenant::new(service.clone(), 37_500.0, 16, surefoot_server::CpuSet::range(0, 16), 1);
            faults(Some(m), &Tenant { mem_gb: Some(limit_gb), cms_gb, ..free })
        };
        assert!(need_gb < 0.7 * limit_gb && of(need_gb).0 > 0.0, "{need_gb} of {limit_gb}");
        assert_eq!(of(need_gb), of(1.4 * need_gb));
        assert!(of(0.9 * need_gb).1 > of(need_gb).1, "what the pool lacks comes from the disk");
    }
}
