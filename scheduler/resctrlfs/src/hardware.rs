//! What resctrl finds in a machine: caches, classes, masks, monitoring, and the kernel that drives them.

use crate::cpus::Cpus;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, WRITTEN_BYTES};

/// Which kernel's behaviour to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Linux 6.1: one id a write to `tasks`, no rename, no `debug` option.
    V6_1,
    /// Linux 6.12.
    V6_12,
}

impl Kernel {
    /// "6.1" or "6.12".
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "6.1" => Some(Self::V6_1),
            "6.12" => Some(Self::V6_12),
            _ => None,
        }
    }
}

/// Whose resctrl to show: the same files, with other limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    #[default]
    Intel,
    Amd,
}

/// An L3 cache and the CPUs behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheDomain {
    pub id: u32,
    pub cpus: Cpus,
}

/// Memory bandwidth allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mba {
    pub closids: u32,
    /// Least value, step and default: per cent on Intel, 1/8 GB/s on AMD (default 2048: no limit).
    pub min: u32,
    pub step: u32,
    pub max: u32,
    pub linear: bool,
    /// Content of `thread_throttle_mode`; None where the file is absent (AMD).
    pub throttle_mode: Option<&'static str>,
}

impl Mba {
    /// As the recordings have it; Intel's least value and step are the model's.
    fn of(vendor: Vendor, min_pct: u32, step_pct: u32) -> Self {
        match vendor {
            Vendor::Intel => Self { closids: 8, min: min_pct, step: step_pct, max: 100, linear: true, throttle_mode: Some("max") },
            Vendor::Amd => Self { closids: 16, min: 0, step: 1, max: 2048, linear: false, throttle_mode: None },
        }
    }
}

/// Why a counter gives no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Error,
    Unavailable,
}

/// Occupancy and bandwidth monitoring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitoring {
    pub rmids: u32,
    /// Bytes that one step of a counter stands for.
    pub scale_bytes: u32,
    /// `max_threshold_occupancy` at start, and the most that can be written.
    pub threshold_bytes: u32,
    pub threshold_limit_bytes: u32,
    /// RMIDs whose counters fail.
    pub faults: BTreeMap<u32, Fault>,
}

/// A machine as resctrl sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    pub kernel: Kernel,
    /// In order of their ids.
    pub domains: Vec<CacheDomain>,
    /// Of one domain.
    pub llc_bytes: u64,
    pub cbm_bits: u32,
    pub min_cbm_bits: u32,
    pub shareable_bits: u32,
    pub sparse_masks: bool,
    pub l3_closids: u32,
    /// Code and data prioritisation can be mounted.
    pub cdp: bool,
    pub mba: Option<Mba>,
    pub monitoring: Option<Monitoring>,
    /// The kernel knows how to stop this model's prefetchers.
    pub pseudo_locking: bool,
}

impl Hardware {
    /// The machines of the recordings (tests/golden), by name: kernel and model, e.g. "6.12-two"; None for any other name.
    pub fn recorded(name: &str) -> Option<Self> {
        let (version, model) = name.split_once('-')?;
        let kernel = Kernel::parse(version)?;
        if !["one", "two", "e5", "amd", "faults"].contains(&model) {
            return None;
        }
        let domain = |id: u32| CacheDomain { id, cpus: (id * 4..id * 4 + 4).collect() };
        let (two, amd, e5) = (matches!(model, "two" | "amd"), model == "amd", model == "e5");
        let llc_bytes: u32 = if amd { 16 << 20 } else { 46080 << 10 };
        let rmids = if amd { 256 } else { 176 - 32 * u32::from(e5) };
        let faults = if model == "faults" { BTreeMap::from([(2, Fault::Error), (3, Fault::Unavailable)]) } else { BTreeMap::new() };
        let limit = if amd { AMD_THRESHOLD_BYTES } else { llc_bytes };
        let vendor = if amd { Vendor::Amd } else { Vendor::Intel };
        let scale_bytes = vendor.scale_bytes();
        Some(Hardware {
            kernel,
            domains: if two { vec![domain(0), domain(1)] } else { vec![domain(0)] },
            llc_bytes: llc_bytes.into(),
            cbm_bits: if amd { 16 } else { 20 },
            min_cbm_bits: u32::from(!amd),
            shareable_bits: if amd { 0 } else { 0xc0000 },
            sparse_masks: amd,
            l3_closids: 16,
            cdp: true,
            mba: (!e5).then(|| Mba::of(vendor, 10, 10)),
            monitoring: Some(Monitoring {
                rmids,
                scale_bytes,
                threshold_bytes: limit / rmids / scale_bytes * scale_bytes,
                threshold_limit_bytes: limit,
                faults,
            }),
            pseudo_locking: e5,
        })
    }

    pub fn cbm_mask(&self) -> u32 {
        u32::MAX >> (32 - self.cbm_bits.clamp(1, 32))
    }

    /// CPUs that the machine has, online or not.
    pub fn n_cpus(&self) -> u32 {
        self.domains.iter().flat_map(|d| d.cpus.iter()).max().map_or(1, |c| c + 1)
    }

    /// `mba_MBps` needs linear MBA and local bandwidth counters.
    pub fn mba_in_mbps(&self) -> bool {
        self.monitoring.is_some() && self.mba.as_ref().is_some_and(|m| m.linear)
    }
}

/// A platform file that describes no machine. The message names file, field and remedy.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    #[error("{path}: cannot be read: {cause}. Name a platform file, e.g. scheduler/vserver/profiles/platforms/server-1.toml", path = .path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{path}: is no platform file: {cause}", path = .path.display())]
    Parse { path: PathBuf, cause: String },
    #[error("{path}: {field} is {value}. Write {want}", path = .path.display())]
    Field { path: PathBuf, field: &'static str, value: String, want: String },
}

// The few keys of a platform file that matter here; the virtual server reads the rest.
#[derive(Deserialize)]
struct Platform {
    cpu: Cpu,
    llc: Llc,
    #[serde(default)]
    mem: Mem,
}

#[derive(Deserialize)]
struct Cpu {
    physical_cores: u32,
    #[serde(default = "one")]
    smt: u32,
}

#[derive(Deserialize)]
struct Llc {
    #[serde(default = "one")]
    domains: u32,
    ways: u32,
    mb_per_way: f64,
    #[serde(default = "one")]
    min_ways: u32,
}

#[derive(Deserialize, Default)]
struct Mem {
    #[serde(default)]
    mba: bool,
    #[serde(default = "ten")]
    mba_min_pct: u32,
    #[serde(default = "ten")]
    mba_step_pct: u32,
}

fn one() -> u32 {
    1
}

fn ten() -> u32 {
    10
}

/// The most that `max_threshold_occupancy` takes on AMD's in the recordings.
const AMD_THRESHOLD_BYTES: u32 = 512 << 10;
/// RMIDs of a Xeon: four for each hardware thread (E5-2697 v4: 144 for 36).
const RMIDS_PER_CPU: u32 = 4;

impl Vendor {
    /// Step of the counters in the recordings.
    const fn scale_bytes(self) -> u32 {
        match self {
            Self::Intel => 65536,
            Self::Amd => 64,
        }
    }
}

/// The hardware that a platform file describes, with CDP and all monitoring. Intel: as a Xeon has it, 16 classes (8 with MBA), the
/// top two ways shared with I/O. AMD: 16 classes, bandwidth in 1/8 GB/s, any mask (an empty one, too), no way shared.
///
/// # Errors
/// [`PlatformError`] for a file that cannot be read or describes no cache that resctrl could divide.
pub fn from_platform(path: &Path, kernel: Kernel, vendor: Vendor) -> Result<Hardware, PlatformError> {
    let text = input::text(path, WRITTEN_BYTES).map_err(|cause| PlatformError::Read { path: path.into(), cause })?;
    let p: Platform =
        toml::from_str(&text).map_err(|e| PlatformError::Parse { path: path.into(), cause: e.to_string().trim().replace('\n', " ") })?;
    let check = |field, value: f64, low: f64, high: f64| {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(PlatformError::Field { path: path.into(), field, value: value.to_string(), want: format!("a number from {low} to {high}") })
    };
    check("cpu.physical_cores", p.cpu.physical_cores.into(), 1.0, 1024.0)?;
    check("cpu.smt", p.cpu.smt.into(), 1.0, 8.0)?;
    check("llc.domains", p.llc.domains.into(), 1.0, p.cpu.physical_cores.into())?;
    check("llc.ways", p.llc.ways.into(), 2.0, 32.0)?;
    check("llc.min_ways", p.llc.min_ways.into(), 1.0, p.llc.ways.into())?;
    check("llc.mb_per_way", p.llc.mb_per_way, 0.001, 4096.0)?;
    if p.mem.mba {
        check("mem.mba_min_pct", p.mem.mba_min_pct.into(), 1.0, 100.0)?;
        check("mem.mba_step_pct", p.mem.mba_step_pct.into(), 1.0, 100.0)?;
    }
    let cores = p.cpu.physical_cores;
    let domains = (0..p.llc.domains)
        .map(|id| CacheDomain { id, cpus: (0..cores * p.cpu.smt).filter(|c| c % cores * p.llc.domains / cores == id).collect() })
        .collect();
    let llc_bytes = (p.llc.mb_per_way * f64::from(p.llc.ways) * 1_048_576.0) as u64;
    let amd = vendor == Vendor::Amd;
    let rmids = if amd { 256 } else { (RMIDS_PER_CPU * cores * p.cpu.smt / p.llc.domains).max(32) };
    let scale_bytes = vendor.scale_bytes();
    let limit = if amd { AMD_THRESHOLD_BYTES } else { u32::try_from(llc_bytes).unwrap_or(u32::MAX) };
    Ok(Hardware {
        kernel,
        domains,
        llc_bytes,
        cbm_bits: p.llc.ways,
        min_cbm_bits: if amd { 0 } else { p.llc.min_ways },
        shareable_bits: if amd { 0 } else { 3 << (p.llc.ways - 2) },
        sparse_masks: amd,
        l3_closids: 16,
        cdp: true,
        mba: p.mem.mba.then(|| Mba::of(vendor, p.mem.mba_min_pct, p.mem.mba_step_pct)),
        monitoring: Some(Monitoring {
            rmids,
            scale_bytes,
            threshold_bytes: limit / rmids / scale_bytes * scale_bytes,
            threshold_limit_bytes: limit,
            faults: BTreeMap::new(),
        }),
        pseudo_locking: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two L3 domains of 4 cores with SMT: siblings share a domain; unknown keys pass.
    #[test]
    fn a_platform_file_becomes_hardware() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.toml");
        let text = "name = \"x\"\n[cpu]\nphysical_cores = 8\nsmt = 2\n[llc]\ndomains = 2\nways = 11\nmb_per_way = 1.375\n[mem]\nmba = true\nbw_gbs = 1\n";
        std::fs::write(&path, text).unwrap();
        let hw = from_platform(&path, Kernel::V6_12, Vendor::Intel).unwrap();
        assert_eq!(hw.domains[1].cpus.list(), "4-7,12-15");
        assert_eq!((hw.cbm_mask(), hw.shareable_bits, hw.n_cpus()), (0x7ff, 0x600, 16));
        assert_eq!(hw.llc_bytes, 11 * 1408 * 1024);
        let amd = from_platform(&path, Kernel::V6_12, Vendor::Amd).unwrap();
        assert_eq!((amd.mba.as_ref().map(|m| m.max), amd.shareable_bits, amd.mba_in_mbps()), (Some(2048), 0, false));
        assert_eq!(amd.monitoring.map(|m| m.threshold_limit_bytes), Some(512 << 10));
        std::fs::write(&path, text.replace("ways = 11", "ways = 40")).unwrap();
        let err = from_platform(&path, Kernel::V6_12, Vendor::Amd).unwrap_err().to_string();
        assert!(err.contains("llc.ways is 40") && err.contains("from 2 to 32"), "{err}");
    }
}
