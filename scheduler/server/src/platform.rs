//! What a server offers, as policies need to know it.

use crate::cpuset::CpuSet;
use crate::memory::Memory;
use serde::{Deserialize, Serialize};

/// Last-level cache that can be partitioned by ways (CAT).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Llc {
    /// Bits of a CBM in one L3 domain.
    pub ways: u32,
    /// Capacity of one way, summed over what one domain's way holds (MB = 2^20 bytes).
    pub mb_per_way: f64,
    /// Smallest contiguous mask that the hardware accepts.
    pub min_ways: u32,
}

/// Memory bandwidth allocation in per cent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mba {
    pub min_pct: u8,
    pub step_pct: u8,
}

/// One server: a socket with its CPUs, cache and memory bandwidth.
///
/// Cores are handed out in *units* of [`Platform::core_step`] cores: 1.0 on servers, 0.1 (CPU quota) on hosts with too
/// few cores for whole-core steps. Everything that counts cores for allocation counts units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Platform {
    pub name: String,
    pub physical_cores: u32,
    /// Threads per physical core; CPU `c` runs on core `c mod physical_cores` unless `siblings` says otherwise.
    pub smt: u32,
    /// L3 domain of each logical CPU; its length is the number of logical CPUs.
    pub l3_domain_of_cpu: Vec<u32>,
    /// Physical core of each logical CPU.
    pub core_of_cpu: Vec<u32>,
    /// NUMA node of each logical CPU, as the kernel numbers it; empty where there is only one, or it is unknown.
    #[serde(default)]
    pub numa_of_cpu: Vec<u32>,
    /// CPUs that services and jobs may use.
    pub managed: CpuSet,
    /// Cores per allocation unit: 1.0, or 0.1 where quotas stand in for whole cores.
    pub core_step: f64,
    /// None where the host cannot partition its LLC.
    pub llc: Option<Llc>,
    /// None where the host has no MBA: only 100 % is valid.
    pub mba: Option<Mba>,
    /// Peak memory bandwidth of the socket, where known.
    pub mem_bw_mbps: Option<f64>,
    /// Core frequency with one active core, where known.
    pub max_freq_mhz: Option<f64>,
    /// Memory that limits may share out; None where it is unknown, and in files of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
}

impl Platform {
    pub fn logical_cpus(&self) -> u32 {
        self.l3_domain_of_cpu.len() as u32
    }

    pub fn l3_domains(&self) -> u32 {
        self.l3_domain_of_cpu.iter().max().map_or(1, |d| d + 1)
    }

    /// Nodes of these CPUs; empty where there is only one node.
    pub fn numa_nodes(&self, cpus: &CpuSet) -> CpuSet {
        cpus.iter().filter_map(|c| self.numa_of_cpu.get(c as usize).copied()).collect()
    }

    /// Allocation units of cores that services may share out among themselves.
    pub fn core_units(&self) -> u32 {
        (f64::from(self.managed.len()) / self.core_step).round() as u32
    }

    /// Cores that `units` stand for.
    pub fn cores(&self, units: u32) -> f64 {
        // Rounded: 3 x 0.1 must print and hash as 0.3.
        (f64::from(units) * self.core_step * 1e6).round() / 1e6
    }

    /// Units that come closest to `cores`.
    pub fn units(&self, cores: f64) -> u32 {
        (cores / self.core_step).round().max(0.0) as u32
    }

    /// True where a share of a CPU (quota) stands in for whole cores.
    pub fn by_quota(&self) -> bool {
        self.core_step < 1.0
    }

    /// Ways that can be shared out; 0 where the LLC cannot be partitioned.
    pub fn ways(&self) -> u32 {
        self.llc.map_or(0, |l| l.ways)
    }

    pub fn min_ways(&self) -> u32 {
        self.llc.map_or(0, |l| l.min_ways)
    }

    pub fn mb_per_way(&self) -> f64 {
        self.llc.map_or(0.0, |l| l.mb_per_way)
    }
}

/// Test platforms, also used by the tests of other crates.
impl Platform {
    /// A regular platform: `cores` physical cores with `smt` threads, one L3 domain, MBA 10..100 in steps of 10.
    pub fn regular(name: &str, cores: u32, smt: u32, ways: u32, mb_per_way: f64) -> Self {
        let n = cores * smt;
        Platform {
            name: name.into(),
            physical_cores: cores,
            smt,
            l3_domain_of_cpu: vec![0; n as usize],
            core_of_cpu: (0..n).map(|c| c % cores).collect(),
            numa_of_cpu: vec![],
            managed: CpuSet::range(0, n),
            core_step: 1.0,
            llc: (ways > 0).then_some(Llc { ways, mb_per_way, min_ways: 1 }),
            mba: Some(Mba { min_pct: 10, step_pct: 10 }),
            mem_bw_mbps: None,
            max_freq_mhz: None,
            memory: None,
        }
    }
}
