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
}

/// Of a tenant that would have `footprint_mb` resident, at speeds `r` (or their averages over a tick).
pub(crate) fn memory_use(p: &PlatformProfile, t: &Tenant, r: &Speed, footprint_mb: f64) -> MemoryUse {
    let limit_gb = t.mem_gb.unwrap_or(f64::INFINITY);
    let in_use_mb = footprint_mb.min(limit_gb * 1024.0);
    match &t.profile.paging {
        Some(m) if limit_gb < m.ws_gb => {
            let (resident_gb, pool_gb) = split(m, limit_gb, t.cms_gb);
            let stored_mb = m.compress_ratio * pool_gb * 1024.0;
            let swapped_mb = (m.ws_gb - resident_gb) * 1024.0;
            let paged = Paged { pool_mb: pool_gb * 1024.0, stored_mb, swapped_mb, ..rates(p, t, r, m) };
            MemoryUse { in_use_mb: (resident_gb + pool_gb) * 1024.0, paged: Some(paged) }
        }
        // Nothing that is touched is taken. It is the same set as under a lower limit, whatever the profile's resident size is.
        Some(m) => MemoryUse { in_use_mb: m.ws_gb * 1024.0, paged: Some(Paged::default()) },
        None => MemoryUse { in_use_mb, paged: (in_use_mb >= footprint_mb).then(Paged::default) },
    }
}

/// Resident part and pool, GB, as [`faults`] has them: no page is stored twice, so the pool may be smaller than it might.
fn split(m: &Paging, limit_gb: f64, cms_gb: f64) -> (f64, f64) {
    let most_gb = cms_gb.clamp(0.0, limit_gb);
    let resident_gb = limit_gb - most_gb;
    (resident_gb, most_gb.min((m.ws_gb - resident_gb) / m.compress_ratio))
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

    /// Under 16 GB: 4 GB of pool stand for 8, and 12 stay; of a pool of 12, 10 hold the other 20 of 24; without a pool all is resident.
    #[test]
    fn the_pool_holds_no_page_twice() {
        assert_eq!(split(&paging(), 16.0, 4.0), (12.0, 4.0));
        assert_eq!(split(&paging(), 16.0, 12.0), (4.0, 10.0));
        assert_eq!(split(&paging(), 16.0, 0.0), (16.0, 0.0));
        // More pool than memory is all of it.
        assert_eq!(split(&paging(), 8.0, 9.0), (0.0, 8.0));
    }
}
