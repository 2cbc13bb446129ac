//! `bursts.toml`: core use of primary VMs below a millisecond, and how fast cores move (SPEC.md, section 8).

use super::{unknown, within, Keys, ProfileError, RPS};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Most cores of a primary VM, and most tasks of one request.
const MOST: u32 = 1024;

/// Everything known of primary VMs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bursts {
    /// `[workload.NAME]`
    pub workloads: BTreeMap<String, Arc<BurstWorkload>>,
    /// `[reassignment.NAME]`
    pub reassignments: BTreeMap<String, Reassignment>,
    /// `[primary]`; None if no file has it.
    pub primary: Option<PrimaryVm>,
}

/// What runs in a primary VM: `[workload.NAME]`.
#[derive(Clone, Debug, PartialEq)]
pub struct BurstWorkload {
    pub name: String,
    /// Requests/s.
    pub qps: f64,
    /// Mean time of one task.
    pub task_us: f64,
    /// Tasks of one request.
    pub fanout: u32,
    pub scv_service: f64,
    pub scv_arrival: f64,
    /// Published mean of busy cores and of their peaks per window, where there is one to compare with.
    pub paper_mean: Option<f64>,
    pub paper_peak: Option<f64>,
}

/// How cores move between a primary VM and the harvester: `[reassignment.NAME]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reassignment {
    /// From the request to give a core back until the VM has it.
    pub return_ms: f64,
}

/// A primary VM and how it is watched: `[primary]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrimaryVm {
    pub cores: u32,
    /// Time between two readings of busy cores.
    pub poll_us: f64,
    /// Usual window of a harvesting policy.
    pub window_ms: f64,
}

impl Bursts {
    /// Read one `bursts.toml`; each of its sections is optional.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn read(file: &Path) -> Result<Self, ProfileError> {
        Self::parse(file, &super::read(file)?)
    }

    /// Parse it; `file` is for messages only.
    ///
    /// # Errors
    /// [`ProfileError`] names file and key.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ProfileError> {
        let mut top = Keys::top(file, text)?;
        let mut all = Bursts::default();
        if let Some(mut s) = top.optional_section("primary")? {
            let p = PrimaryVm {
                cores: s.count("cores", 1, MOST)?,
                poll_us: s.number("poll_us", within(0.1, 1e6))?,
                window_ms: s.number("window_ms", within(1e-3, 1e6))?,
            };
            if p.window_ms * 1e3 < p.poll_us {
                return Err(s.wrong("window_ms", format!("{} ms is shorter than poll_us", p.window_ms), "Give at least one poll"));
            }
            s.done()?;
            all.primary = Some(p);
        }
        for (name, mut s) in top.named_sections("reassignment")? {
            all.reassignments.insert(name, Reassignment { return_ms: s.number("return_ms", within(0.0, 1e6))? });
            s.done()?;
        }
        for (name, mut s) in top.named_sections("workload")? {
            let w = BurstWorkload {
                name: name.clone(),
                qps: s.number("qps", RPS)?,
                task_us: s.number("task_us", within(1e-3, 1e9))?,
                fanout: s.count("fanout", 1, MOST)?,
                scv_service: s.number("scv_service", within(0.0, 1e4))?,
                scv_arrival: s.number("scv_arrival", within(1.0, 1e4))?,
                paper_mean: s.optional_number("paper_mean", within(0.0, f64::from(MOST)))?,
                paper_peak: s.optional_number("paper_peak", within(0.0, f64::from(MOST)))?,
            };
            s.done()?;
            all.workloads.insert(name, Arc::new(w));
        }
        top.done()?;
        Ok(all)
    }

    /// What `later` has overrides by name.
    pub(super) fn merge(&mut self, later: Bursts) {
        self.workloads.extend(later.workloads);
        self.reassignments.extend(later.reassignments);
        self.primary = later.primary.or(self.primary);
    }

    /// # Errors
    /// Names the known workloads.
    pub fn workload(&self, name: &str) -> Result<&Arc<BurstWorkload>, ProfileError> {
        self.workloads.get(name).ok_or_else(|| unknown("primary workload", name, self.workloads.keys()))
    }

    /// # Errors
    /// Names the known ways of reassignment.
    pub fn reassignment(&self, name: &str) -> Result<Reassignment, ProfileError> {
        self.reassignments.get(name).copied().ok_or_else(|| unknown("reassignment", name, self.reassignments.keys()))
    }

    /// # Errors
    /// If no file describes the primary VM.
    pub fn primary(&self) -> Result<PrimaryVm, ProfileError> {
        let missing = "no [primary] section was read. Add a bursts.toml with one (cores, poll_us, window_ms) with --profiles DIR.";
        self.primary.ok_or_else(|| ProfileError::Folder(missing.into()))
    }
}
