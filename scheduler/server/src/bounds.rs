//! What may be set of one service where the kernel or the groups around it bound it.

use crate::allocation::{contiguous, full_mask, Allocation};
use crate::cpuset::CpuSet;
use crate::platform::Platform;
use serde::{Deserialize, Serialize};

/// What may be set of one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// CPUs that it cannot be kept off; empty: none.
    #[serde(default, skip_serializing_if = "CpuSet::is_empty")]
    pub cpus_at_least: CpuSet,
    /// The only CPUs that it may use; None: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_at_most: Option<CpuSet>,
    /// Least quota, cores. No quota at all is more than any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_at_least: Option<f64>,
    /// Most quota, cores. No quota of its own is allowed all the same: it has that of the group above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_at_most: Option<f64>,
    /// It can have no quota.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_quota: bool,
    /// It has these ways, whatever it is given: a mask of each L3 domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<Vec<u32>>,
    /// Each bound in one line: whose doing it is, and what lifts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
}

impl Bounds {
    /// True where nothing is bounded.
    pub fn is_none(&self) -> bool {
        let Bounds { cpus_at_least, cpus_at_most, quota_at_least, quota_at_most, no_quota, ways, why: _ } = self;
        cpus_at_least.is_empty()
            && cpus_at_most.is_none()
            && quota_at_least.is_none()
            && quota_at_most.is_none()
            && !no_quota
            && ways.is_none()
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, o: Bounds) -> Self {
        let both = |a: Option<f64>, b: Option<f64>, f: fn(f64, f64) -> f64| match (a, b) {
            (Some(a), Some(b)) => Some(f(a, b)),
            (a, b) => a.or(b),
        };
        self.cpus_at_least = self.cpus_at_least.union(o.cpus_at_least);
        self.cpus_at_most = match (self.cpus_at_most, o.cpus_at_most) {
            (Some(a), Some(b)) => Some(a.intersection(b)),
            (a, b) => a.or(b),
        };
        self.quota_at_least = both(self.quota_at_least, o.quota_at_least, f64::max);
        self.quota_at_most = both(self.quota_at_most, o.quota_at_most, f64::min);
        self.no_quota |= o.no_quota;
        self.ways = self.ways.or(o.ways);
        self.why.extend(o.why);
        self
    }

    /// Whether these CPUs are within the bounds.
    pub fn allow_cpus(&self, cpus: &CpuSet) -> bool {
        self.cpus_at_least.is_subset(cpus) && self.cpus_at_most.is_none_or(|most| cpus.is_subset(&most))
    }

    /// Whether this quota is. None is no quota.
    pub fn allow_quota(&self, cores: Option<f64>) -> bool {
        let Some(q) = cores else { return true };
        !self.no_quota && self.quota_at_least.is_none_or(|l| q >= l - 1e-9) && self.quota_at_most.is_none_or(|m| q <= m + 1e-9)
    }

    /// Ways that it has whatever it is given, as a plan may name them: a mask that none may stands for everything.
    pub(crate) fn ways_on(&self, p: &Platform) -> Option<Vec<u32>> {
        let (fixed, l) = (self.ways.as_ref()?, p.llc?);
        let sound = |m: &u32| *m & !full_mask(l.ways) == 0 && contiguous(*m) && m.count_ones() >= l.min_ways;
        let masks: Vec<u32> = fixed.iter().map(|m| if sound(m) { *m } else { full_mask(l.ways) }).collect();
        (masks.len() == p.l3_domains() as usize).then_some(masks)
    }

    /// Whether an allocation keeps these bounds.
    pub fn allow(&self, p: &Platform, a: &Allocation) -> bool {
        let (must, may) = self.cpus_of(p);
        let cpus = must.is_subset(&a.cpus) && a.cpus.is_subset(&may);
        cpus && self.allow_quota(a.quota_cores) && self.ways_on(p).is_none_or(|w| w == a.ways)
    }

    /// CPUs of the platform that it cannot be kept off, and those that it may use.
    pub(crate) fn cpus_of(&self, p: &Platform) -> (CpuSet, CpuSet) {
        let must = self.cpus_at_least.intersection(p.managed);
        (must, self.cpus_at_most.map_or(p.managed, |m| m.intersection(p.managed)).union(must))
    }

    /// Most core units that it can make use of.
    pub fn most_units(&self, p: &Platform) -> u32 {
        let cpus = p.units(f64::from(self.cpus_of(p).1.len()));
        let quota = self.quota_at_most.filter(|_| p.by_quota()).map_or(u32::MAX, |q| (q / p.core_step + 1e-6).floor() as u32);
        cpus.min(quota).max(1)
    }
}
