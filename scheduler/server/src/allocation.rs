//! What one service holds.

use crate::cpuset::CpuSet;
use crate::platform::Platform;
use serde::{Deserialize, Serialize};

/// CPUs, LLC ways, memory bandwidth and memory of one service or job.
///
/// A CPU or way may be held by two services only if both list it in their `shared_` part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    pub cpus: CpuSet,
    /// The part of `cpus` that other services may hold too.
    pub shared_cpus: CpuSet,
    /// CPU quota in cores (a multiple of `Platform::core_step`); None = no quota.
    pub quota_cores: Option<f64>,
    /// CBM of each L3 domain; empty where the host cannot partition its LLC.
    pub ways: Vec<u32>,
    /// The part of `ways` that other services may hold too, per domain.
    pub shared_ways: Vec<u32>,
    /// Memory bandwidth, per cent (100 = not throttled).
    pub mba_pct: u8,
    pub mem_limit_bytes: Option<u64>,
    pub zswap_max_bytes: Option<u64>,
}

impl Allocation {
    /// Everything, shared with all others: what a service holds before a plan has placed it.
    pub fn everything(p: &Platform) -> Self {
        let mask = full_mask(p.ways());
        let ways = if p.llc.is_some() { vec![mask; p.l3_domains() as usize] } else { vec![] };
        Allocation {
            cpus: p.managed,
            shared_cpus: p.managed,
            quota_cores: None,
            shared_ways: ways.clone(),
            ways,
            mba_pct: 100,
            mem_limit_bytes: None,
            zswap_max_bytes: None,
        }
    }

    /// Cores held: the quota if there is one, else the number of CPUs.
    pub fn cores(&self) -> f64 {
        self.quota_cores.unwrap_or(f64::from(self.cpus.len()))
    }

    /// Ways held, averaged over the L3 domains.
    pub fn n_ways(&self) -> f64 {
        mean_ways(&self.ways)
    }
}

/// Ways of the masks of some L3 domains, averaged; 0 without any.
pub fn mean_ways(masks: &[u32]) -> f64 {
    if masks.is_empty() {
        return 0.0;
    }
    masks.iter().map(|m| m.count_ones()).sum::<u32>() as f64 / masks.len() as f64
}

/// Mask of the lowest `ways` bits.
pub fn full_mask(ways: u32) -> u32 {
    if ways >= 32 {
        u32::MAX
    } else {
        (1 << ways) - 1
    }
}

/// True for a non-empty mask without gaps.
pub fn contiguous(mask: u32) -> bool {
    mask != 0 && {
        let m = mask >> mask.trailing_zeros();
        m & m.wrapping_add(1) == 0
    }
}
