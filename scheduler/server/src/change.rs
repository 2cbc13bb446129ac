//! What a plan says about one service: each resource that it names, and nothing about the others.
//!
//! What must hold: a change alters no resource that it does not name, and the result holds exactly what it names.

use crate::allocation::Allocation;
use crate::cpuset::CpuSet;
use crate::resource::Resource;
use serde::{Deserialize, Serialize};

/// A change of one service's allocation; a resource that is None is kept as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llc: Option<LlcPart>,
    /// Memory bandwidth, per cent (100 = not throttled).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mba_pct: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit: Option<Limit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zswap_max: Option<Limit>,
}

/// CPUs and the quota on them, as in [`Allocation`]: only together do they say how many cores a service has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    pub cpus: CpuSet,
    pub shared_cpus: CpuSet,
    pub quota_cores: Option<f64>,
}

/// Ways of each L3 domain, as in [`Allocation`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlcPart {
    pub ways: Vec<u32>,
    pub shared_ways: Vec<u32>,
}

/// A limit that is set, or lifted. "No limit" is said in so many words: it is no way to say nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    None,
    Bytes(u64),
}

impl From<Option<u64>> for Limit {
    fn from(bytes: Option<u64>) -> Self {
        bytes.map_or(Limit::None, Limit::Bytes)
    }
}

impl Limit {
    /// As an [`Allocation`] has it.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Bytes(bytes) => Some(bytes),
        }
    }
}

impl From<&Allocation> for Cpu {
    fn from(a: &Allocation) -> Self {
        Cpu { cpus: a.cpus, shared_cpus: a.shared_cpus, quota_cores: a.quota_cores }
    }
}

impl From<&Allocation> for LlcPart {
    fn from(a: &Allocation) -> Self {
        LlcPart { ways: a.ways.clone(), shared_ways: a.shared_ways.clone() }
    }
}

impl Change {
    /// What a policy of cores and ways says: CPUs, ways and bandwidth.
    pub fn cores_and_ways(to: &Allocation) -> Self {
        Change { cpu: Some(to.into()), llc: Some(to.into()), mba_pct: Some(to.mba_pct), ..Change::default() }
    }

    /// Every resource.
    pub fn all(to: &Allocation) -> Self {
        Change { mem_limit: Some(to.mem_limit_bytes.into()), zswap_max: Some(to.zswap_max_bytes.into()), ..Change::cores_and_ways(to) }
    }

    /// What differs from one allocation to another.
    pub fn between(from: &Allocation, to: &Allocation) -> Self {
        let mut change = Change::all(to);
        let was = Change::all(from);
        for resource in Resource::ALL {
            if change.only(resource) == was.only(resource) {
                change.forget(resource);
            }
        }
        change
    }

    /// What a service holds afterwards that holds `now`.
    pub fn on(&self, now: &Allocation) -> Allocation {
        let mut then = now.clone();
        let Change { cpu, llc, mba_pct, mem_limit, zswap_max } = self;
        if let Some(cpu) = cpu {
            (then.cpus, then.shared_cpus, then.quota_cores) = (cpu.cpus, cpu.shared_cpus, cpu.quota_cores);
        }
        if let Some(llc) = llc {
            (then.ways, then.shared_ways) = (llc.ways.clone(), llc.shared_ways.clone());
        }
        then.mba_pct = mba_pct.unwrap_or(then.mba_pct);
        then.mem_limit_bytes = mem_limit.map_or(then.mem_limit_bytes, Limit::bytes);
        then.zswap_max_bytes = zswap_max.map_or(then.zswap_max_bytes, Limit::bytes);
        then
    }

    /// Whether a service that holds `now` would hold something else afterwards.
    pub fn alters(&self, now: &Allocation) -> bool {
        self.on(now) != *now
    }

    /// With what `other` names put over it.
    pub fn and(self, other: Change) -> Self {
        Change {
            cpu: other.cpu.or(self.cpu),
            llc: other.llc.or(self.llc),
            mba_pct: other.mba_pct.or(self.mba_pct),
            mem_limit: other.mem_limit.or(self.mem_limit),
            zswap_max: other.zswap_max.or(self.zswap_max),
        }
    }

    /// Whether it names a resource.
    pub fn names(&self, resource: Resource) -> bool {
        match resource {
            Resource::Cpu => self.cpu.is_some(),
            Resource::Llc => self.llc.is_some(),
            Resource::MemoryBandwidth => self.mba_pct.is_some(),
            Resource::Memory => self.mem_limit.is_some(),
            Resource::Zswap => self.zswap_max.is_some(),
        }
    }

    /// The resources that it names.
    pub fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        Resource::ALL.into_iter().filter(|r| self.names(*r))
    }

    pub fn is_empty(&self) -> bool {
        self.resources().next().is_none()
    }

    /// What it says of one resource.
    pub fn only(&self, resource: Resource) -> Self {
        let mut one = self.clone();
        Resource::ALL.into_iter().filter(|r| *r != resource).for_each(|r| one.forget(r));
        one
    }

    /// Keep this resource as it is.
    pub fn forget(&mut self, resource: Resource) {
        match resource {
            Resource::Cpu => self.cpu = None,
            Resource::Llc => self.llc = None,
            Resource::MemoryBandwidth => self.mba_pct = None,
            Resource::Memory => self.mem_limit = None,
            Resource::Zswap => self.zswap_max = None,
        }
    }

    /// The allocation that it comes to on whatever a service holds; None where it does not name every resource.
    pub fn whole(&self) -> Option<Allocation> {
        let (cpu, llc) = (self.cpu.clone()?, self.llc.clone()?);
        Some(Allocation {
            cpus: cpu.cpus,
            shared_cpus: cpu.shared_cpus,
            quota_cores: cpu.quota_cores,
            ways: llc.ways,
            shared_ways: llc.shared_ways,
            mba_pct: self.mba_pct?,
            mem_limit_bytes: self.mem_limit?.bytes(),
            zswap_max_bytes: self.zswap_max?.bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocation() -> impl Strategy<Value = Allocation> {
        let cpu = (0u32..8, 1u32..8, 0u32..8, proptest::option::of(0.1f64..8.0));
        let llc = proptest::collection::vec((0u32..0x800, 0u32..0x800), 0..3);
        let rest = (10u8..=100, proptest::option::of(0u64..1 << 40), proptest::option::of(0u64..1 << 40));
        (cpu, llc, rest).prop_map(|((from, len, shared, quota_cores), llc, (mba_pct, mem_limit_bytes, zswap_max_bytes))| {
            let (ways, shared_ways) = llc.into_iter().unzip();
            let (cpus, shared_cpus) = (CpuSet::range(from, from + len), CpuSet::range(from, from + shared.min(len)));
            Allocation { cpus, shared_cpus, quota_cores, ways, shared_ways, mba_pct, mem_limit_bytes, zswap_max_bytes }
        })
    }

    /// A change of some resources, chosen by the bits of a mask.
    fn part(to: &Allocation, mask: u8) -> Change {
        let mut change = Change::all(to);
        Resource::ALL.into_iter().enumerate().filter(|(i, _)| mask >> i & 1 == 0).for_each(|(_, r)| change.forget(r));
        change
    }

    proptest! {
        /// A change alters no resource that it does not name, and what it names is what results.
        #[test]
        fn only_what_is_named_changes(now in allocation(), to in allocation(), mask in 0u8..32) {
            let change = part(&to, mask);
            let then = change.on(&now);
            for r in Resource::ALL {
                let from = if change.names(r) { &to } else { &now };
                prop_assert_eq!(Change::all(&then).only(r), Change::all(from).only(r));
            }
            prop_assert_eq!(change.is_empty(), mask == 0);
            prop_assert_eq!(change.resources().count() as u32, mask.count_ones());
            prop_assert!(!change.alters(&then));
        }

        /// Two changes one after the other are the second put over the first; without a resource in common the order is free.
        #[test]
        fn changes_add_up(now in allocation(), a in allocation(), b in allocation(), one in 0u8..32, two in 0u8..32) {
            let (first, second) = (part(&a, one), part(&b, two));
            let then = second.on(&first.on(&now));
            prop_assert_eq!(&first.clone().and(second.clone()).on(&now), &then);
            if one & two == 0 {
                prop_assert_eq!(first.on(&second.on(&now)), then);
            }
        }

        /// The difference of two allocations leads from one to the other and names nothing more; files hold it to the bit.
        #[test]
        fn differences_are_exact(from in allocation(), to in allocation(), mask in 0u8..32) {
            let to = part(&to, mask).on(&from);
            let change = Change::between(&from, &to);
            prop_assert_eq!(&change.on(&from), &to);
            prop_assert!(change.resources().all(|r| mask >> r as u8 & 1 == 1));
            prop_assert_eq!(Change::all(&to).whole(), Some(to));
            let text = serde_json::to_string(&change).unwrap();
            prop_assert_eq!(serde_json::from_str::<Change>(&text).unwrap(), change);
        }
    }
}
