//! Tenants of the virtual server and where they sit.

use crate::profile::{PlatformProfile, Profile, MAX_DOMAINS};
use std::sync::Arc;
use surefoot_server::CpuSet;
use thiserror::Error;

/// Most tenants of one server (they are kept as bits of a word).
pub const MAX_TENANTS: usize = 64;

/// Highest rate that a tenant may offer, requests/s: ten times the highest maximum load of a profile.
pub const MAX_RATE_RPS: f64 = 1e10;
/// Strongest MBA throttle: 1 %.
const MIN_MBA: f64 = 0.01;

/// Way mask of each L3 domain; entries beyond the platform's domains are ignored.
pub type WayMasks = [u32; MAX_DOMAINS];

/// An LC service or BE job and what it holds.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub profile: Arc<Profile>,
    /// Offered requests/s (LC; ignored for BE).
    pub rate_rps: f64,
    pub threads: u32,
    pub cpus: CpuSet,
    pub ways: WayMasks,
    /// Share of memory bandwidth that MBA leaves, 0.01 to 1.
    pub mba: f64,
    /// Memory limit (GB = 2^30 bytes), None = no limit.
    pub mem_gb: Option<f64>,
    /// Part of `mem_gb` that is a compressed swap pool.
    pub cms_gb: f64,
}

impl Tenant {
    /// A tenant with the same way mask in every domain, no MBA throttle and no memory limit.
    pub fn new(profile: Arc<Profile>, rate_rps: f64, threads: u32, cpus: CpuSet, way_mask: u32) -> Self {
        Tenant { profile, rate_rps, threads, cpus, ways: [way_mask; MAX_DOMAINS], mba: 1.0, mem_gb: None, cms_gb: 0.0 }
    }

    /// Servers of the worker pool.
    pub fn workers(&self) -> u32 {
        self.threads.min(self.cpus.len()).max(1)
    }
}

/// A tenant that cannot exist on the platform.
#[derive(Debug, Error, PartialEq)]
#[error("tenant {index} ({profile}): {field}: {what}. {remedy}")]
pub struct TenantError {
    pub index: usize,
    pub profile: String,
    pub field: &'static str,
    pub what: String,
    pub remedy: String,
}

/// Check tenants before they are handed to the solver, which trusts them.
///
/// # Errors
/// The first tenant and field that is wrong.
pub fn check_tenants(p: &PlatformProfile, tenants: &[Tenant]) -> Result<(), TenantError> {
    for (index, t) in tenants.iter().enumerate() {
        let wrong = |field, what: String, remedy: String| {
            Err(TenantError { index, profile: t.profile.name.clone(), field, what, remedy: format!("{remedy}.") })
        };
        if index >= MAX_TENANTS {
            return wrong("tenants", format!("more than {MAX_TENANTS} on one server"), "Remove some".into());
        }
        if t.cpus.is_empty() {
            return wrong("cpus", "none".into(), format!("Give at least one of {}", p.all_cpus()));
        }
        if !t.cpus.is_subset(&p.all_cpus()) {
            let bad = t.cpus.difference(p.all_cpus());
            return wrong("cpus", format!("{bad} do not exist on {}", p.name), format!("Choose from {}", p.all_cpus()));
        }
        if t.threads == 0 {
            return wrong("threads", "0".into(), "Give at least 1".into());
        }
        let rate_ok = t.profile.is_be() || (0.0..=MAX_RATE_RPS).contains(&t.rate_rps);
        if !rate_ok {
            return wrong("rps", format!("{}", t.rate_rps), format!("Give 0 to {MAX_RATE_RPS:e}"));
        }
        let full = surefoot_server::allocation::full_mask(p.llc.ways);
        for (d, mask) in t.ways.iter().take(p.llc.domains as usize).enumerate() {
            if mask & !full != 0 {
                return wrong(
                    "ways",
                    format!("mask {mask:#x} of L3 domain {d} is beyond {} ways", p.llc.ways),
                    format!("Use bits of {full:#x}"),
                );
            }
        }
        let mba_ok = if p.mem.mba { (MIN_MBA..=1.0).contains(&t.mba) } else { t.mba == 1.0 };
        if !mba_ok {
            let may = if p.mem.mba { "Give 1 to 100 %".to_string() } else { format!("{} has no MBA: give 100 %", p.name) };
            return wrong("mba_pct", format!("{}", t.mba * 100.0), may);
        }
        if t.mem_gb.is_some_and(|m| !(m.is_finite() && m > 0.0)) {
            return wrong("mem_gb", format!("{:?}", t.mem_gb), "Give a size above 0, or none".into());
        }
        if !(t.cms_gb.is_finite() && t.cms_gb >= 0.0) {
            return wrong("cms_gb", format!("{}", t.cms_gb), "Give 0 or more".into());
        }
    }
    Ok(())
}

/// CPU sets for core counts: one after another in CPU order, hence physical cores before siblings; wraps at the end.
pub fn place(p: &PlatformProfile, counts: &[u32]) -> Vec<CpuSet> {
    let total = p.logical_cpus();
    let mut next = 0;
    counts
        .iter()
        .map(|&n| {
            let set = (0..n.min(total)).map(|i| (next + i) % total).collect();
            next += n;
            set
        })
        .collect()
}

/// Disjoint contiguous masks from way 0 up, for all domains alike. Counts beyond the platform's ways give empty masks.
pub fn stack_ways(p: &PlatformProfile, counts: &[u32]) -> Vec<u32> {
    let mut low = 0;
    counts
        .iter()
        .map(|&n| {
            let mask = (((1u64 << n.min(32)) - 1) << low.min(32)) as u32 & surefoot_server::allocation::full_mask(p.llc.ways);
            low += n;
            mask
        })
        .collect()
}
