//! What a campaign or a run may refer to: a platform and the services known on it.

use crate::stage::load::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use surefoot_linux::discover::MemoryControl;
use surefoot_server::Platform;
use surefoot_workload::known::Known;

/// An LC service as a sweep needs to know it.
#[derive(Clone, Debug, PartialEq)]
pub struct LcService {
    pub qos_target_ms: f64,
    /// Highest RPS that meets the target alone on all resources; None where it is not known yet.
    pub max_load_rps: Option<f64>,
    /// The catalogue's RPS levels.
    pub rps_levels: Vec<f64>,
    /// What it touches alone, bytes; None where nothing says it.
    pub working_set_bytes: Option<u64>,
}

/// The source of a target's results that is no profile: its name has a blank, as no service's has.
pub const VIRTUAL_SERVER: &str = "virtual server";

/// A server with its catalogue.
#[derive(Clone, Debug)]
pub struct Target {
    /// Edition of the plant; None of a real machine.
    pub plant: Option<u32>,
    pub platform: Platform,
    pub services: BTreeMap<String, LcService>,
    /// BE jobs, known so that an error can tell them from unknown names.
    pub jobs: Vec<String>,
    /// "full" or "no-pmu".
    pub feature_set: String,
    /// What besides the campaign decides the results: name and hash of each profile or catalogue entry.
    pub sources: BTreeMap<String, String>,
    /// Shapes of load that a workload may name.
    pub traces: BTreeMap<String, Arc<Trace>>,
    /// Services and jobs whose profile says how they page: a workload may name their working set.
    pub paged: BTreeSet<String>,
    /// Whether limits on memory can be set here.
    pub memory: MemoryControl,
}

impl Target {
    pub fn is_virtual(&self) -> bool {
        self.plant.is_some()
    }
}

/// What a workload may name here.
impl Known for Target {
    fn platform(&self) -> &str {
        &self.platform.name
    }

    fn max_load_rps(&self, service: &str) -> Option<Option<f64>> {
        self.services.get(service).map(|s| s.max_load_rps)
    }

    fn services(&self) -> Vec<&str> {
        self.services.keys().map(String::as_str).collect()
    }

    fn jobs(&self) -> Vec<&str> {
        self.jobs.iter().map(String::as_str).collect()
    }

    fn traces(&self) -> &BTreeMap<String, Arc<Trace>> {
        &self.traces
    }

    fn pages(&self, name: &str) -> bool {
        self.paged.contains(name)
    }
}
