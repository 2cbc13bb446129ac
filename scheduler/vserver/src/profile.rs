//! Profiles: what the model knows about servers, LC services and BE jobs. Read at run time; nothing is compiled in.
//!
//! Every key is required unless said otherwise, unknown keys are errors, and every value has a range. An error names
//! the file, the key, and what would be right. Units and meaning: the field comments here (SPEC.md, section 2).

mod bursts;

pub use bursts::{BurstShape, BurstWorkload, Bursts, PrimaryVm, Reassignment};

use crate::faults::Faults;
use crate::queue::lognormal_factors;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_server::{names, CpuSet};
use thiserror::Error;
use toml::{Table, Value};

/// Most L3 domains of one socket.
pub const MAX_DOMAINS: usize = 16;

/// A profile that cannot be used.
#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("{file}: cannot be read: {cause}. Check the path and its permissions.")]
    Read { file: PathBuf, cause: std::io::Error },
    #[error("{file}: not valid TOML: {cause}. Mend that line.")]
    Syntax { file: PathBuf, cause: String },
    #[error("{file}: {key}: {what}. {remedy}.")]
    Key { file: PathBuf, key: String, what: String, remedy: String },
    #[error("{0}")]
    Folder(String),
}

/// A server (one socket): `platforms/*.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlatformProfile {
    pub name: String,
    pub title: String,
    pub cpu: PlatformCpu,
    pub llc: PlatformLlc,
    pub mem: PlatformMem,
    pub os: PlatformOs,
    pub enforce: Enforce,
    pub noise: Noise,
    pub faults: Faults,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlatformCpu {
    pub physical_cores: u32,
    /// Threads per core, 1 or 2; CPUs `c` and `c + physical_cores` are siblings.
    pub smt: u32,
    pub base_ghz: f64,
    /// Frequency with 1..=physical_cores active cores.
    pub turbo_ghz: Vec<f64>,
    /// Share of an idle core that counts as active.
    pub idle_awake: f64,
    /// Core-bound time per instruction with a fully busy sibling, relative to an idle one.
    pub smt_slowdown: f64,
    /// Core-bound CPI relative to Broadwell.
    pub cpi_scale: f64,
    pub l2_mb: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlatformLlc {
    pub domains: u32,
    pub ways: u32,
    /// MB of one way of one domain.
    pub mb_per_way: f64,
    pub min_ways: u32,
    pub hit_ns: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlatformMem {
    pub bw_gbs: f64,
    /// Reachable share of the peak.
    pub usable: f64,
    pub idle_ns: f64,
    pub queue_ns: f64,
    /// Most that one core can draw.
    pub core_bw_gbs: f64,
    pub mba: bool,
    pub mba_min_pct: u32,
    pub mba_step_pct: u32,
    pub capacity_gb: f64,
    pub reserved_gb: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlatformOs {
    pub timeslice_ms: f64,
    pub wake_preempt: f64,
    pub migrate_us: f64,
    pub decompress_us: f64,
    pub reclaim_us: f64,
    pub reclaim_burst_us: f64,
    pub disk_us: f64,
    pub disk_iops: f64,
    /// I/O time of services relative to an NVMe SSD.
    pub disk_scale: f64,
}

/// Delay from apply to effect, ms.
#[derive(Clone, Debug, PartialEq)]
pub struct Enforce {
    pub cpus_ms: f64,
    pub ways_ms: f64,
    pub mba_ms: f64,
    pub mem_gb_ms: f64,
    pub cms_gb_ms: f64,
    pub rate_ms: f64,
}

/// Relative standard deviation of a 100 ms reading.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    pub ipc: f64,
    pub misses: f64,
    pub mbl: f64,
    pub cpu: f64,
    pub freq: f64,
}

/// An LC service or BE job: `services/*.toml`, `batch/*.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    pub title: String,
    pub cpu: CpuDemand,
    pub cache: CacheDemand,
    pub memory: MemoryDemand,
    /// Optional: only services whose memory may be limited have it.
    pub paging: Option<Paging>,
    pub kind: ProfileKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ProfileKind {
    Lc(Box<LcDemand>),
    Be {
        /// Share of the work that runs in parallel (Amdahl).
        parallel: f64,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct LcDemand {
    pub domain: String,
    pub qos_target_ms: f64,
    pub rps_levels: Vec<f64>,
    /// 10^6 instructions per request.
    pub minstr_per_req: f64,
    pub queue: QueueDemand,
    /// Per platform; load = RPS / this. [`crate::max_load_rps`] computes it for other platforms.
    pub max_load_rps: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CpuDemand {
    /// Cycles per instruction with all data in L2, on Broadwell.
    pub cpi_core: f64,
    pub contention: f64,
    pub oversub: f64,
    pub weight: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CacheDemand {
    /// LLC accesses per 1000 instructions with 256 KB of L2.
    pub apki: f64,
    pub l2_exp: f64,
    pub mrc_floor: f64,
    /// Hill terms of the miss-ratio curve.
    pub mrc: Vec<HillTerm>,
    pub ws_thread: f64,
    pub mlp: f64,
    pub llc_exposed: f64,
    pub writeback: f64,
}

/// `a / (1 + (mb / c_mb)^p)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HillTerm {
    pub a: f64,
    pub c_mb: f64,
    pub p: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct QueueDemand {
    pub scv_arrival: f64,
    pub scv_service: f64,
    pub dispatch_us: f64,
    pub dispatch_scv: f64,
    pub net_us: f64,
    pub max_outstanding: f64,
    pub io_prob: f64,
    pub io_ms: f64,
    /// Quantiles of the service time relative to its mean (derived from `scv_service`).
    pub(crate) service_factors: [f64; 3],
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryDemand {
    pub virt_mb: f64,
    pub virt_mb_thread: f64,
    pub res_mb: f64,
    pub res_mb_thread: f64,
    pub res_mb_queued: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Paging {
    pub ws_gb: f64,
    pub page_skew: f64,
    /// Pages per request (LC) or per 1000 instructions (BE).
    pub pages: f64,
    pub compress_ratio: f64,
    pub lru_error: f64,
}

impl Paging {
    /// Resident part and pool, GB, under a limit below the working set with a pool of at most `cms_gb` in it.
    ///
    /// A kernel compresses no more than it must: pages go until the rest fits. So the pool ends where resident pages and stored ones are the
    /// whole set, and what more is allowed stays empty. No page is stored twice.
    pub(crate) fn split(&self, limit_gb: f64, cms_gb: f64) -> (f64, f64) {
        let pool_gb = cms_gb.max(0.0).min(self.largest_pool_gb(limit_gb));
        (limit_gb - pool_gb, pool_gb)
    }

    /// The largest pool that is of use under a limit, GB: with it all pages are resident or stored, or all of the limit is pool.
    pub fn largest_pool_gb(&self, limit_gb: f64) -> f64 {
        let gain = self.compress_ratio - 1.0;
        let enough_gb = if gain > 0.0 { (self.ws_gb - limit_gb).max(0.0) / gain } else { f64::INFINITY };
        enough_gb.min(limit_gb)
    }
}

impl Profile {
    /// The same with another working set; None where it does not say how it pages.
    pub fn with_working_set(&self, ws_gb: f64) -> Option<Self> {
        let paging = Paging { ws_gb, ..self.paging.clone()? };
        Some(Profile { paging: Some(paging), ..self.clone() })
    }

    pub fn lc(&self) -> Option<&LcDemand> {
        match &self.kind {
            ProfileKind::Lc(lc) => Some(lc),
            ProfileKind::Be { .. } => None,
        }
    }

    pub fn is_be(&self) -> bool {
        matches!(self.kind, ProfileKind::Be { .. })
    }
}

impl CacheDemand {
    /// Miss ratio with `mb` of cache and `threads` threads: floor plus Hill terms; threads enlarge working sets.
    pub fn miss_ratio(&self, mb: f64, threads: u32) -> f64 {
        let scale = 1.0 + self.ws_thread * (f64::from(threads) - 1.0);
        let mb = mb.max(1e-9);
        let term = |h: &HillTerm| {
            let x = mb / (h.c_mb * scale);
            h.a / (1.0 + if h.p == 1.0 { x } else { x.powf(h.p) })
        };
        (self.mrc_floor + self.mrc.iter().map(term).sum::<f64>()).min(1.0)
    }
}

impl PlatformProfile {
    pub fn logical_cpus(&self) -> u32 {
        self.cpu.physical_cores * self.cpu.smt
    }

    pub fn all_cpus(&self) -> CpuSet {
        CpuSet::range(0, self.logical_cpus())
    }

    /// L3 domain of a logical CPU.
    pub fn domain_of(&self, cpu: u32) -> u32 {
        (cpu % self.cpu.physical_cores) * self.llc.domains / self.cpu.physical_cores
    }

    /// Loaded memory latency at utilisation `u`.
    pub fn mem_latency_ns(&self, u: f64) -> f64 {
        self.mem.idle_ns + self.mem.queue_ns * u * u / (1.0 - u)
    }

    /// Frequency of all cores when `active` physical cores are active.
    pub fn frequency_ghz(&self, active: f64) -> f64 {
        let t = &self.cpu.turbo_ghz;
        if t.len() == 1 {
            return t[0];
        }
        let x = active.clamp(1.0, t.len() as f64) - 1.0;
        let i = (x as usize).min(t.len() - 2);
        t[i] + (x - i as f64) * (t[i + 1] - t[i])
    }

    /// Read one platform file.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn read(file: &Path) -> Result<Self, ProfileError> {
        Self::parse(file, &read(file)?)
    }

    /// Parse a platform profile; `file` is for messages only.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ProfileError> {
        let mut top = Keys::top(file, text)?;
        top.kind(&["platform"])?;
        let (name, title) = (top.name()?, top.text("title")?);
        let mut s = top.section("cpu")?;
        let physical_cores = s.count("physical_cores", 1, CpuSet::CAPACITY)?;
        let smt = s.count("smt", 1, 2)?;
        if physical_cores * smt > CpuSet::CAPACITY {
            let what = format!("{} logical CPUs are more than the {} supported", physical_cores * smt, CpuSet::CAPACITY);
            return Err(s.wrong("physical_cores", what, "Model fewer cores or one of the sockets"));
        }
        let turbo_ghz = s.numbers("turbo_ghz", within(0.1, 20.0))?;
        if turbo_ghz.len() != physical_cores as usize {
            let what = format!("has {} entries for {physical_cores} physical cores", turbo_ghz.len());
            return Err(s.wrong("turbo_ghz", what, "Give the frequency with 1, 2, ... all cores active"));
        }
        if let Some(i) = (1..turbo_ghz.len()).find(|i| turbo_ghz[*i] > turbo_ghz[i - 1]) {
            let what = format!("{} GHz with {} active cores is above {} GHz with {i}", turbo_ghz[i], i + 1, turbo_ghz[i - 1]);
            return Err(s.wrong("turbo_ghz", what, "More active cores never run faster"));
        }
        let cpu = PlatformCpu {
            physical_cores,
            smt,
            base_ghz: s.number("base_ghz", within(0.1, 20.0))?,
            turbo_ghz,
            idle_awake: s.number("idle_awake", SHARE)?,
            smt_slowdown: s.number("smt_slowdown", within(1.0, 4.0))?,
            cpi_scale: s.number("cpi_scale", within(0.01, 100.0))?,
            l2_mb: s.number("l2_mb", within(0.01, 1e3))?,
        };
        s.done()?;
        let mut s = top.section("llc")?;
        let domains = s.count("domains", 1, MAX_DOMAINS as u32)?;
        if physical_cores % domains != 0 {
            let what = format!("{domains} does not divide the {physical_cores} physical cores");
            return Err(s.wrong("domains", what, "Every L3 domain has the same number of cores"));
        }
        let ways = s.count("ways", 1, 32)?;
        let llc = PlatformLlc {
            domains,
            ways,
            mb_per_way: s.number("mb_per_way", within(1e-3, 1e3))?,
            min_ways: s.count("min_ways", 1, ways)?,
            hit_ns: s.number("hit_ns", within(0.0, 1e4))?,
        };
        s.done()?;
        let mut s = top.section("mem")?;
        let capacity_gb = s.number("capacity_gb", within(0.01, 1e6))?;
        let mem = PlatformMem {
            bw_gbs: s.number("bw_gbs", within(0.01, 1e5))?,
            usable: s.number("usable", within(0.01, 1.0))?,
            idle_ns: s.number("idle_ns", within(1.0, 1e5))?,
            queue_ns: s.number("queue_ns", within(0.0, 1e5))?,
            core_bw_gbs: s.number("core_bw_gbs", within(0.01, 1e4))?,
            mba: s.flag("mba")?,
            mba_min_pct: s.count("mba_min_pct", 1, 100)?,
            mba_step_pct: s.count("mba_step_pct", 1, 100)?,
            capacity_gb,
            reserved_gb: s.number("reserved_gb", within(0.0, capacity_gb))?,
        };
        s.done()?;
        let mut s = top.section("os")?;
        let os = PlatformOs {
            timeslice_ms: s.number("timeslice_ms", within(0.0, 1e6))?,
            wake_preempt: s.number("wake_preempt", SHARE)?,
            migrate_us: s.number("migrate_us", within(0.0, 1e9))?,
            decompress_us: s.number("decompress_us", within(0.0, 1e9))?,
            reclaim_us: s.number("reclaim_us", within(0.0, 1e9))?,
            reclaim_burst_us: s.number("reclaim_burst_us", within(0.0, 1e9))?,
            disk_us: s.number("disk_us", within(0.0, 1e9))?,
            disk_iops: s.number("disk_iops", within(0.1, 1e9))?,
            disk_scale: s.number("disk_scale", within(0.0, 1e6))?,
        };
        s.done()?;
        let mut s = top.section("enforce")?;
        let enforce = Enforce {
            cpus_ms: s.number("cpus_ms", within(0.0, 1e6))?,
            ways_ms: s.number("ways_ms", within(0.0, 1e6))?,
            mba_ms: s.number("mba_ms", within(0.0, 1e6))?,
            mem_gb_ms: s.number("mem_gb_ms", within(0.0, 1e6))?,
            cms_gb_ms: s.number("cms_gb_ms", within(0.0, 1e6))?,
            rate_ms: s.number("rate_ms", within(0.0, 1e6))?,
        };
        s.done()?;
        let mut s = top.section("noise")?;
        let noise = Noise {
            ipc: s.number("ipc", SHARE)?,
            misses: s.number("misses", SHARE)?,
            mbl: s.number("mbl", SHARE)?,
            cpu: s.number("cpu", SHARE)?,
            freq: s.number("freq", SHARE)?,
        };
        s.done()?;
        let faults = match top.optional_section("faults")? {
            Some(s) => faults(s, llc.ways)?,
            None => Faults::default(),
        };
        top.done()?;
        Ok(PlatformProfile { name, title, cpu, llc, mem, os, enforce, noise, faults })
    }
}

/// `[faults]`; what is left out is as it is without the section.
fn faults(mut s: Keys, ways: u32) -> Result<Faults, ProfileError> {
    let mut f = Faults::default();
    let seconds = within(0.0, 1e6);
    for (key, value, range) in [
        ("ipc_bias", &mut f.ipc_bias, SHARE),
        ("misses_bias", &mut f.misses_bias, SHARE),
        ("mbl_bias", &mut f.mbl_bias, SHARE),
        ("freq_bias", &mut f.freq_bias, SHARE),
        ("multiplex", &mut f.multiplex, SHARE),
        ("late", &mut f.late, SHARE),
        ("missed", &mut f.missed, SHARE),
        ("data", &mut f.data, SHARE),
        ("res_decay_s", &mut f.res_decay_s, seconds),
        ("cold_s", &mut f.cold_s, seconds),
        ("cold_refs", &mut f.cold_refs, within(0.0, 10.0)),
        ("core_spread", &mut f.core_spread, SHARE),
        ("slice_spread", &mut f.slice_spread, SHARE),
        ("dma_share", &mut f.dma_share, SHARE),
    ] {
        *value = s.optional_number(key, range)?.unwrap_or(*value);
    }
    f.dma_ways = s.optional_count("dma_ways", 0, ways)?.unwrap_or(f.dma_ways.min(ways));
    s.done()?;
    Ok(f)
}

impl PlatformProfile {
    /// The same platform as kind as its model: what vectors and laws are compared on.
    pub fn without_faults(&self) -> Self {
        PlatformProfile { faults: Faults::none(), ..self.clone() }
    }
}

impl Profile {
    /// Read one service or job file.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn read(file: &Path) -> Result<Self, ProfileError> {
        Self::parse(file, &read(file)?)
    }

    /// Parse a service or job profile; `file` is for messages only.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ProfileError> {
        let mut top = Keys::top(file, text)?;
        let is_lc = top.kind(&["lc", "be"])? == "lc";
        let (name, title) = (top.name()?, top.text("title")?);
        let mut s = top.section("cpu")?;
        let work = if is_lc { s.number("minstr_per_req", within(1e-6, 1e9))? } else { s.number("parallel", SHARE)? };
        let cpu = CpuDemand {
            cpi_core: s.number("cpi_core", within(0.01, 1e3))?,
            contention: s.number("contention", SHARE)?,
            oversub: s.number("oversub", within(0.0, 100.0))?,
            weight: s.number("weight", within(1e-3, 1e6))?,
        };
        s.done()?;
        let mut s = top.section("cache")?;
        let cache = CacheDemand {
            apki: s.number("apki", within(0.0, 1e4))?,
            l2_exp: s.number("l2_exp", within(0.0, 2.0))?,
            mrc_floor: s.number("mrc_floor", SHARE)?,
            mrc: s.hill_terms("mrc")?,
            ws_thread: s.number("ws_thread", within(0.0, 100.0))?,
            mlp: s.number("mlp", within(0.1, 1e3))?,
            llc_exposed: s.number("llc_exposed", SHARE)?,
            writeback: s.number("writeback", within(0.0, 100.0))?,
        };
        s.done()?;
        let mut s = top.section("memory")?;
        let memory = MemoryDemand {
            virt_mb: s.number("virt_mb", within(0.0, 1e9))?,
            virt_mb_thread: s.number("virt_mb_thread", within(0.0, 1e9))?,
            res_mb: s.number("res_mb", within(0.0, 1e9))?,
            res_mb_thread: s.number("res_mb_thread", within(0.0, 1e9))?,
            res_mb_queued: s.number("res_mb_queued", within(0.0, 1e9))?,
        };
        s.done()?;
        let paging = match top.optional_section("paging")? {
            None => None,
            Some(mut s) => {
                let p = Paging {
                    ws_gb: s.number("ws_gb", within(1e-3, 1e6))?,
                    page_skew: s.number("page_skew", within(1e-3, 1e3))?,
                    pages: s.number("pages", within(0.0, 1e9))?,
                    compress_ratio: s.number("compress_ratio", within(1.0, 1e3))?,
                    lru_error: s.number("lru_error", SHARE)?,
                };
                s.done()?;
                Some(p)
            }
        };
        let kind = if is_lc {
            let domain = top.text("domain")?;
            let qos_target_ms = top.number("qos_target_ms", within(1e-6, 1e9))?;
            let rps_levels = top.ascending("rps_levels", RPS)?;
            let mut s = top.section("queue")?;
            let scv_service = s.number("scv_service", within(1e-6, 1e4))?;
            let queue = QueueDemand {
                scv_arrival: s.number("scv_arrival", within(1.0, 1e4))?,
                scv_service,
                dispatch_us: s.number("dispatch_us", within(0.0, 1e9))?,
                dispatch_scv: s.number("dispatch_scv", within(0.0, 1e4))?,
                net_us: s.number("net_us", within(0.0, 1e9))?,
                max_outstanding: s.number("max_outstanding", within(1.0, 1e12))?,
                io_prob: s.number("io_prob", SHARE)?,
                io_ms: s.number("io_ms", within(0.0, 1e6))?,
                service_factors: lognormal_factors(scv_service),
            };
            s.done()?;
            let max_load_rps = match top.optional_section("max_load_rps")? {
                Some(s) => s.all_numbers(RPS)?,
                None => BTreeMap::new(),
            };
            ProfileKind::Lc(Box::new(LcDemand { domain, qos_target_ms, rps_levels, minstr_per_req: work, queue, max_load_rps }))
        } else {
            ProfileKind::Be { parallel: work }
        };
        top.done()?;
        Ok(Profile { name, title, cpu, cache, memory, paging, kind })
    }
}

/// All profiles at hand, by name.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    pub platforms: BTreeMap<String, Arc<PlatformProfile>>,
    /// LC services and BE jobs.
    pub services: BTreeMap<String, Arc<Profile>>,
    /// Core use below a millisecond.
    pub bursts: Bursts,
}

impl Profiles {
    /// Read folders, each with any of `platforms/`, `services/`, `batch/`, `loads/`, `bursts.toml`; a later folder overrides an
    /// earlier one by name.
    ///
    /// # Errors
    /// The first bad file, by name and key; a folder that holds none of the five.
    pub fn load(dirs: &[PathBuf]) -> Result<Self, ProfileError> {
        let mut all = Profiles::default();
        for dir in dirs {
            let mut found = false;
            let mut mine: BTreeMap<String, PathBuf> = BTreeMap::new();
            for part in ["platforms", "services", "batch"] {
                let folder = dir.join(part);
                if !folder.is_dir() {
                    continue;
                }
                found = true;
                for file in toml_files(&folder)? {
                    let name = if part == "platforms" {
                        let p = PlatformProfile::read(&file)?;
                        let name = p.name.clone();
                        all.platforms.insert(name.clone(), Arc::new(p));
                        format!("platform {name}")
                    } else {
                        let p = Profile::read(&file)?;
                        let (is, want) = (if p.is_be() { "be" } else { "lc" }, if part == "batch" { "be" } else { "lc" });
                        if is != want {
                            return Err(ProfileError::Key {
                                file,
                                key: "kind".into(),
                                what: format!("is \"{is}\" in a folder for \"{want}\""),
                                remedy: "LC services belong in services/, BE jobs in batch/".into(),
                            });
                        }
                        let name = p.name.clone();
                        all.services.insert(name.clone(), Arc::new(p));
                        name
                    };
                    if let Some(other) = mine.insert(name, file.clone()) {
                        return Err(ProfileError::Key {
                            file,
                            key: "name".into(),
                            what: format!("is already taken by {}", other.display()),
                            remedy: "Give each profile of a folder its own name".into(),
                        });
                    }
                }
            }
            let bursts = dir.join("bursts.toml");
            if bursts.exists() {
                found = true;
                all.bursts.merge(Bursts::read(&bursts)?);
            }
            // Their reader is the reader of workload files.
            found |= dir.join("loads").is_dir();
            if !found {
                return Err(ProfileError::Folder(format!(
                    "{}: no platforms/, services/, batch/, loads/ or bursts.toml in this folder. \
                     Point --profiles at a folder that holds at least one of them.",
                    dir.display()
                )));
            }
        }
        Ok(all)
    }

    /// # Errors
    /// Names the known platforms.
    pub fn platform(&self, name: &str) -> Result<&Arc<PlatformProfile>, ProfileError> {
        self.platforms.get(name).ok_or_else(|| unknown("platform", name, self.platforms.keys()))
    }

    /// An LC service or BE job.
    ///
    /// # Errors
    /// Names the known services and jobs.
    pub fn service(&self, name: &str) -> Result<&Arc<Profile>, ProfileError> {
        self.services.get(name).ok_or_else(|| unknown("service or job", name, self.services.keys()))
    }

    /// The same with another working set, where one is given and the profile says how it pages.
    ///
    /// # Errors
    /// As [`Profiles::service`].
    pub fn service_of_size(&self, name: &str, ws_gb: Option<f64>) -> Result<Arc<Profile>, ProfileError> {
        let profile = self.service(name)?;
        Ok(ws_gb.and_then(|gb| profile.with_working_set(gb)).map_or_else(|| profile.clone(), Arc::new))
    }
}

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> ProfileError {
    let list: Vec<&str> = known.map(String::as_str).collect();
    let near = names::nearest(name, list.iter().copied()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
    let list = if list.is_empty() { "none".to_string() } else { list.join(", ") };
    ProfileError::Folder(format!("unknown {what} \"{name}\".{near} Known: {list}. Add a profile with --profiles DIR."))
}

fn read(file: &Path) -> Result<String, ProfileError> {
    input::text(file, WRITTEN_BYTES).map_err(|cause| ProfileError::Read { file: file.into(), cause })
}

/// In name order, so that errors and overrides do not depend on the file system.
fn toml_files(folder: &Path) -> Result<Vec<PathBuf>, ProfileError> {
    let fail = |cause| ProfileError::Read { file: folder.into(), cause };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Allowed values of a number, ends included.
///
/// The ranges are far wider than what hardware and services have: they keep out slips of the unit, and keep sums and powers of
/// any legal values within f64.
#[derive(Clone, Copy)]
struct Range {
    lo: f64,
    hi: f64,
}

const fn within(lo: f64, hi: f64) -> Range {
    Range { lo, hi }
}

const SHARE: Range = within(0.0, 1.0);
/// Requests/s.
const RPS: Range = within(1e-6, 1e9);

impl Range {
    fn holds(&self, x: f64) -> bool {
        x >= self.lo && x <= self.hi
    }
}

impl fmt::Display for Range {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        // Short: 0.01 and 1e9 instead of 1e-2 and 1000000000.
        let short = |x: f64| {
            let (plain, scientific) = (x.to_string(), format!("{x:e}"));
            if scientific.len() + 2 < plain.len() {
                scientific
            } else {
                plain
            }
        };
        write!(out, "from {} to {}", short(self.lo), short(self.hi))
    }
}

/// The keys of one section that have not been asked for yet.
struct Keys {
    file: PathBuf,
    /// "" at the top, "cpu." in a section.
    prefix: String,
    rest: Table,
    asked: Vec<String>,
}

impl Keys {
    fn top(file: &Path, text: &str) -> Result<Self, ProfileError> {
        let rest = text.parse::<Table>().map_err(|e| {
            let line = e.span().map_or(1, |s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            ProfileError::Syntax { file: file.into(), cause: format!("line {line}: {}", e.message().replace('\n', " ")) }
        })?;
        Ok(Keys { file: file.into(), prefix: String::new(), rest, asked: vec![] })
    }

    fn wrong(&self, key: &str, what: impl Into<String>, remedy: impl Into<String>) -> ProfileError {
        ProfileError::Key { file: self.file.clone(), key: format!("{}{key}", self.prefix), what: what.into(), remedy: remedy.into() }
    }

    fn take(&mut self, key: &str, want: &str) -> Result<Value, ProfileError> {
        self.asked.push(key.into());
        self.rest.remove(key).ok_or_else(|| self.wrong(key, "is missing", format!("Add it: {want}")))
    }

    fn kind(&mut self, allowed: &[&str]) -> Result<String, ProfileError> {
        let kind = self.text("kind")?;
        if allowed.contains(&kind.as_str()) {
            return Ok(kind);
        }
        let list = allowed.join("\" or \"");
        Err(self.wrong("kind", format!("is \"{kind}\""), format!("Write \"{list}\" here")))
    }

    fn name(&mut self) -> Result<String, ProfileError> {
        let name = self.text("name")?;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '/' || c.is_control()) {
            return Err(self.wrong("name", format!("is {name:?}"), "Use letters, digits, - and _ only"));
        }
        Ok(name)
    }

    fn text(&mut self, key: &str) -> Result<String, ProfileError> {
        match self.take(key, "a text in quotes")? {
            Value::String(s) => Ok(s),
            other => Err(self.wrong(key, format!("is {}, not a text", other.type_str()), "Put it in quotes")),
        }
    }

    fn flag(&mut self, key: &str) -> Result<bool, ProfileError> {
        match self.take(key, "true or false")? {
            Value::Boolean(b) => Ok(b),
            other => Err(self.wrong(key, format!("is {}, not true or false", other.type_str()), "Write true or false")),
        }
    }

    fn in_range(&self, key: &str, value: &Value, range: Range) -> Result<f64, ProfileError> {
        let x = match value {
            Value::Float(x) => *x,
            Value::Integer(i) => *i as f64,
            other => return Err(self.wrong(key, format!("is {}, not a number", other.type_str()), format!("Give a number {range}"))),
        };
        if range.holds(x) {
            return Ok(x);
        }
        Err(self.wrong(key, format!("{x} is out of range"), format!("Give a number {range}")))
    }

    fn number(&mut self, key: &str, range: Range) -> Result<f64, ProfileError> {
        let value = self.take(key, &format!("a number {range}"))?;
        self.in_range(key, &value, range)
    }

    fn optional_number(&mut self, key: &str, range: Range) -> Result<Option<f64>, ProfileError> {
        if self.rest.contains_key(key) {
            return self.number(key, range).map(Some);
        }
        self.asked.push(key.into());
        Ok(None)
    }

    fn optional_count(&mut self, key: &str, lo: u32, hi: u32) -> Result<Option<u32>, ProfileError> {
        if self.rest.contains_key(key) {
            return self.count(key, lo, hi).map(Some);
        }
        self.asked.push(key.into());
        Ok(None)
    }

    fn count(&mut self, key: &str, lo: u32, hi: u32) -> Result<u32, ProfileError> {
        let remedy = format!("Give a whole number from {lo} to {hi}");
        match self.take(key, &format!("a whole number from {lo} to {hi}"))? {
            Value::Integer(i) if (i64::from(lo)..=i64::from(hi)).contains(&i) => Ok(i as u32),
            Value::Integer(i) => Err(self.wrong(key, format!("{i} is out of range"), remedy)),
            other => Err(self.wrong(key, format!("is {}, not a whole number", other.type_str()), remedy)),
        }
    }

    fn optional_flag(&mut self, key: &str) -> Result<Option<bool>, ProfileError> {
        if self.rest.contains_key(key) {
            return self.flag(key).map(Some);
        }
        self.asked.push(key.into());
        Ok(None)
    }

    fn list(&mut self, key: &str, want: &str) -> Result<Vec<Value>, ProfileError> {
        match self.take(key, want)? {
            Value::Array(list) if !list.is_empty() => Ok(list),
            Value::Array(_) => Err(self.wrong(key, "is empty", format!("Give {want}"))),
            other => Err(self.wrong(key, format!("is {}, not a list", other.type_str()), format!("Give {want}"))),
        }
    }

    fn numbers(&mut self, key: &str, range: Range) -> Result<Vec<f64>, ProfileError> {
        let list = self.list(key, "a list of numbers, e.g. [1, 2]")?;
        list.iter().enumerate().map(|(i, v)| self.in_range(&format!("{key}[{i}]"), v, range)).collect()
    }

    fn ascending(&mut self, key: &str, range: Range) -> Result<Vec<f64>, ProfileError> {
        let list = self.numbers(key, range)?;
        match (1..list.len()).find(|i| list[*i] <= list[i - 1]) {
            None => Ok(list),
            Some(i) => Err(self.wrong(key, format!("{} follows {}", list[i], list[i - 1]), "Write them in ascending order, each once")),
        }
    }

    fn hill_terms(&mut self, key: &str) -> Result<Vec<HillTerm>, ProfileError> {
        let want = "a list of [a, c_mb, p], e.g. [[0.3, 6.5, 2.0]]";
        let list = self.list(key, want)?;
        let mut terms = Vec::new();
        for (i, v) in list.iter().enumerate() {
            let at = format!("{key}[{i}]");
            let Some([a, c_mb, p]) = v.as_array().map(Vec::as_slice) else {
                return Err(self.wrong(&at, "is not three numbers", format!("Give {want}")));
            };
            terms.push(HillTerm {
                a: self.in_range(&format!("{at}[0]"), a, SHARE)?,
                c_mb: self.in_range(&format!("{at}[1]"), c_mb, within(1e-3, 1e6))?,
                p: self.in_range(&format!("{at}[2]"), p, within(0.01, 100.0))?,
            });
        }
        Ok(terms)
    }

    fn all_numbers(self, range: Range) -> Result<BTreeMap<String, f64>, ProfileError> {
        self.rest.iter().map(|(k, v)| Ok((k.clone(), self.in_range(k, v, range)?))).collect()
    }

    fn optional_section(&mut self, key: &str) -> Result<Option<Keys>, ProfileError> {
        self.asked.push(key.into());
        match self.rest.remove(key) {
            None => Ok(None),
            Some(Value::Table(rest)) => {
                Ok(Some(Keys { file: self.file.clone(), prefix: format!("{}{key}.", self.prefix), rest, asked: vec![] }))
            }
            Some(other) => Err(self.wrong(key, format!("is {}, not a section", other.type_str()), format!("Write it as [{key}]"))),
        }
    }

    fn section(&mut self, key: &str) -> Result<Keys, ProfileError> {
        self.optional_section(key)?.ok_or_else(|| self.wrong(key, "section is missing", format!("Add [{key}] with its keys")))
    }

    /// The sections `[key.NAME]`, in the order of their names; none is fine.
    fn named_sections(&mut self, key: &str) -> Result<Vec<(String, Keys)>, ProfileError> {
        let Some(Keys { rest, .. }) = self.optional_section(key)? else { return Ok(vec![]) };
        let section = |(name, value): (String, Value)| match value {
            Value::Table(rest) => {
                Ok((name.clone(), Keys { file: self.file.clone(), prefix: format!("{key}.{name}."), rest, asked: vec![] }))
            }
            other => {
                let remedy = format!("Write it as [{key}.{name}]");
                Err(self.wrong(&format!("{key}.{name}"), format!("is {}, not a section", other.type_str()), remedy))
            }
        };
        rest.into_iter().map(section).collect()
    }

    /// Everything has been asked for; what is left is unknown.
    fn done(self) -> Result<(), ProfileError> {
        match self.rest.keys().next() {
            None => Ok(()),
            Some(key) => {
                let near =
                    names::nearest(key, self.asked.iter().map(String::as_str)).map_or(String::new(), |n| format!("Did you mean \"{n}\"? "));
                Err(self.wrong(key, "is not a known key", format!("{near}Remove it or use one of: {}", self.asked.join(", "))))
            }
        }
    }
}
