//! What a workload file may name: services, jobs and traces of load.

use crate::load::Trace;
use std::collections::BTreeMap;
use std::sync::Arc;
use surefoot_vserver::{rps_at_full_load, PlatformProfile, Profiles, VirtualServer};

/// The server that a file is resolved on.
pub trait Known {
    /// Name of the platform.
    fn platform(&self) -> &str;
    /// RPS at load 1 of an LC service, None inside where no load meets its target; None for an unknown service.
    fn max_load_rps(&self, service: &str) -> Option<Option<f64>>;
    fn services(&self) -> Vec<&str>;
    /// BE jobs.
    fn jobs(&self) -> Vec<&str>;
    /// Shapes of load, by name.
    fn traces(&self) -> &BTreeMap<String, Arc<Trace>>;
    /// Whether the profile of a service or job says how it pages: a file may then name its working set.
    fn pages(&self, name: &str) -> bool;
}

/// A virtual server and the profiles at hand.
#[derive(Clone, Debug)]
pub struct Site {
    pub platform: Arc<PlatformProfile>,
    pub profiles: Profiles,
    pub traces: BTreeMap<String, Arc<Trace>>,
}

impl Site {
    /// One run on this platform.
    pub fn server(&self, seed: u64) -> VirtualServer {
        VirtualServer::new(self.platform.clone(), Some(seed))
    }
}

impl Known for Site {
    fn platform(&self) -> &str {
        &self.platform.name
    }

    fn max_load_rps(&self, service: &str) -> Option<Option<f64>> {
        let profile = self.profiles.services.get(service).filter(|p| p.lc().is_some())?;
        Some(rps_at_full_load(&self.platform, profile))
    }

    fn services(&self) -> Vec<&str> {
        self.profiles.services.iter().filter(|(_, p)| p.lc().is_some()).map(|(name, _)| name.as_str()).collect()
    }

    fn jobs(&self) -> Vec<&str> {
        self.profiles.services.iter().filter(|(_, p)| p.is_be()).map(|(name, _)| name.as_str()).collect()
    }

    fn traces(&self) -> &BTreeMap<String, Arc<Trace>> {
        &self.traces
    }

    fn pages(&self, name: &str) -> bool {
        self.profiles.services.get(name).is_some_and(|p| p.paging.is_some())
    }
}
