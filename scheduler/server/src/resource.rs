//! What can be handed out to a service, resource by resource.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A part of an [`Allocation`](crate::Allocation) that is given, kept and owned by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// CPUs and the quota on them.
    Cpu,
    /// Ways of the last-level cache.
    Llc,
    MemoryBandwidth,
    /// The limit on memory.
    Memory,
    /// The limit on the pool of compressed pages.
    Zswap,
}

impl Resource {
    pub const ALL: [Resource; 5] = [Resource::Cpu, Resource::Llc, Resource::MemoryBandwidth, Resource::Memory, Resource::Zswap];

    /// What a policy of cores and ways says.
    pub const CORES_AND_WAYS: [Resource; 3] = [Resource::Cpu, Resource::Llc, Resource::MemoryBandwidth];

    /// As messages have it.
    pub fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "cores",
            Resource::Llc => "ways",
            Resource::MemoryBandwidth => "memory bandwidth",
            Resource::Memory => "memory",
            Resource::Zswap => "zswap",
        }
    }

    /// Names with commas between them.
    pub fn list(all: &[Resource]) -> String {
        all.iter().map(|r| r.name()).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
