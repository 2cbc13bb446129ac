//! `bursts.toml`: core use of primary VMs below a millisecond, and how fast cores move (SPEC.md, section 8).

use super::{unknown, within, Keys, ProfileError, RPS};
use crate::core_use::BatchSide;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Most cores of a primary VM, and most tasks of one request.
const MOST: u32 = 1024;

/// Where a file names no `quantum_ms`: the scheduling period of SmartHarvest, section 4.
const USUAL_QUANTUM_MS: f64 = 10.0;

/// Everything known of primary VMs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bursts {
    /// `[workload.NAME]`
    pub workloads: BTreeMap<String, Arc<BurstWorkload>>,
    /// `[reassignment.NAME]`
    pub reassignments: BTreeMap<String, Reassignment>,
    /// `[batch.NAME]`
    pub batch: BTreeMap<String, BatchSide>,
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
    /// Of the requests that come outside of bursts.
    pub scv_arrival: f64,
    /// CPU time of waking a thread that slept.
    pub wake_us: f64,
    /// Tasks that run at a time at most; None: as many as the VM has cores.
    pub threads: Option<u32>,
    /// Whether a request waits for one thread (its connection's) or for any.
    pub pinned: bool,
    /// Requests that come in bursts.
    pub bursts: Option<BurstShape>,
    /// Published mean of busy cores and of their peaks per window, where there is one to compare with.
    pub paper_mean: Option<f64>,
    pub paper_peak: Option<f64>,
}

/// Requests that come in trains: `[workload.NAME.bursts]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstShape {
    /// Bursts a second, at any load that has the requests for them; at less load fewer.
    pub per_s: f64,
    /// Mean number of requests of a burst at the workload's `qps`.
    pub requests: f64,
    /// At another load a burst has `requests` times (load / `qps`)^`size_exponent`: 0 is a clock's own work, 1 what had
    /// to wait for a clock.
    pub size_exponent: f64,
    /// Mean time from the first request of a burst of mean size to its last.
    pub lasts_ms: f64,
}

/// How cores move between a primary VM and the harvester: `[reassignment.NAME]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reassignment {
    /// From the request to give a core back until the VM has it: at least, and at most. Even between them.
    pub return_least_ms: f64,
    pub return_ms: f64,
    /// From the taking of a core until the harvester can use it, in the same way.
    pub take_least_ms: f64,
    pub take_ms: f64,
}

impl Reassignment {
    /// Every core takes the same time to return, and is of use at once when taken.
    pub fn constant(return_ms: f64) -> Self {
        Reassignment { return_least_ms: return_ms, return_ms, take_least_ms: 0.0, take_ms: 0.0 }
    }
}

/// A primary VM and how it is watched: `[primary]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrimaryVm {
    pub cores: u32,
    /// Time between two readings of busy cores.
    pub poll_us: f64,
    /// Usual window of a harvesting policy.
    pub window_ms: f64,
    /// Mean time from a ready virtual CPU to its first instruction on an idle core.
    pub dispatch_us: f64,
    /// Time after which a virtual CPU that does not sleep lets the next one run.
    pub quantum_ms: f64,
    /// CPU time that a task loses on a core whose caches hold another VM's data.
    pub cold_us: f64,
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
                dispatch_us: s.optional_number("dispatch_us", within(0.0, 1e6))?.unwrap_or(0.0),
                quantum_ms: s.optional_number("quantum_ms", within(1e-3, 1e6))?.unwrap_or(USUAL_QUANTUM_MS),
                cold_us: s.optional_number("cold_us", within(0.0, 1e6))?.unwrap_or(0.0),
            };
            if p.window_ms * 1e3 < p.poll_us {
                return Err(s.wrong("window_ms", format!("{} ms is shorter than poll_us", p.window_ms), "Give at least one poll"));
            }
            s.done()?;
            all.primary = Some(p);
        }
        for (name, mut s) in top.named_sections("reassignment")? {
            let return_ms = s.number("return_ms", within(0.0, 1e6))?;
            let return_least_ms = s.optional_number("return_least_ms", within(0.0, 1e6))?.unwrap_or(return_ms);
            let take_ms = s.optional_number("take_ms", within(0.0, 1e6))?.unwrap_or(0.0);
            let take_least_ms = s.optional_number("take_least_ms", within(0.0, 1e6))?.unwrap_or(take_ms);
            for (key, most_key, least, most) in
                [("return_least_ms", "return_ms", return_least_ms, return_ms), ("take_least_ms", "take_ms", take_least_ms, take_ms)]
            {
                if least > most {
                    return Err(s.wrong(key, format!("{least} ms is more than {most_key}"), format!("Give {most} or less")));
                }
            }
            s.done()?;
            all.reassignments.insert(name, Reassignment { return_least_ms, return_ms, take_least_ms, take_ms });
        }
        for (name, mut s) in top.named_sections("batch")? {
            let b = BatchSide {
                own_cores: s.count("own_cores", 1, MOST)?,
                parallel: s.number("parallel", within(0.0, 1.0))?,
                move_ms: s.number("move_ms", within(0.0, 1e6))?,
            };
            s.done()?;
            all.batch.insert(name, b);
        }
        for (name, mut s) in top.named_sections("workload")? {
            let bursts = match s.optional_section("bursts")? {
                None => None,
                Some(mut b) => {
                    let shape = BurstShape {
                        per_s: b.number("per_s", within(0.0, 1e6))?,
                        requests: b.number("requests", within(1.0, 1e6))?,
                        lasts_ms: b.number("lasts_ms", within(0.0, 1e6))?,
                        size_exponent: b.optional_number("size_exponent", within(0.0, 1.0))?.unwrap_or(0.0),
                    };
                    b.done()?;
                    Some(shape)
                }
            };
            let w = BurstWorkload {
                name: name.clone(),
                qps: s.number("qps", RPS)?,
                task_us: s.number("task_us", within(1e-3, 1e9))?,
                fanout: s.count("fanout", 1, MOST)?,
                scv_service: s.number("scv_service", within(0.0, 1e4))?,
                scv_arrival: s.number("scv_arrival", within(1.0, 1e4))?,
                wake_us: s.optional_number("wake_us", within(0.0, 1e9))?.unwrap_or(0.0),
                threads: s.optional_count("threads", 1, MOST)?,
                pinned: s.optional_flag("pinned")?.unwrap_or(false),
                bursts,
                paper_mean: s.optional_number("paper_mean", within(0.0, f64::from(MOST)))?,
                paper_peak: s.optional_number("paper_peak", within(0.0, f64::from(MOST)))?,
            };
            if w.pinned && w.fanout > 1 {
                return Err(s.wrong(
                    "pinned",
                    format!("a request of {} tasks has no one thread", w.fanout),
                    "Give fanout = 1, or leave pinned out",
                ));
            }
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
        self.batch.extend(later.batch);
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
    /// Names the known batch VMs.
    pub fn batch(&self, name: &str) -> Result<BatchSide, ProfileError> {
        self.batch.get(name).copied().ok_or_else(|| unknown("batch VM", name, self.batch.keys()))
    }

    /// # Errors
    /// If no file describes the primary VM.
    pub fn primary(&self) -> Result<PrimaryVm, ProfileError> {
        let missing = "no [primary] section was read. Add a bursts.toml with one (cores, poll_us, window_ms) with --profiles DIR.";
        self.primary.ok_or_else(|| ProfileError::Folder(missing.into()))
    }
}
