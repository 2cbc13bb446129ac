//! Bundles and policies by name.

use crate::error::{Error, Result};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use surefoot_learn::{Agent, Bundle, Expect, TrustedKeys, ACTIONS};
use surefoot_policy::osml_plus::Settings;
use surefoot_policy::{by_name, by_name_with, Area, BundleModels, Experience, Models, Policy, State};
use surefoot_server::Platform;

/// Verify and load a bundle for a platform and feature set.
///
/// # Errors
/// [`Error::BadInput`] names what was refused.
pub fn load_bundle(path: &Path, trust: Option<&Path>, platform: &Platform, feature_set: &str) -> Result<Bundle> {
    if !path.exists() {
        return Err(Error::BadInput(format!(
            "--bundle {}: no such file or folder. Build one with `surefoot bundle build`",
            path.display()
        )));
    }
    let keys = match trust {
        Some(p) => TrustedKeys::load(p),
        None => TrustedKeys::load_default(),
    };
    let refused = |e: surefoot_learn::BundleError| Error::BadInput(format!("bundle {}: {e}", path.display()));
    Bundle::load(path, &keys.map_err(refused)?, &Expect::platform(platform).feature_set(feature_set)).map_err(refused)
}

/// # Errors
/// [`Error::BadInput`] for an unknown name, or a policy that needs a bundle and got none.
pub fn policy(name: &str, platform: &Platform, bundle: Option<&Bundle>, seed: u64) -> Result<Box<dyn Policy>> {
    let models = match bundle {
        Some(b) => Some(Box::new(BundleModels::new(b, platform).map_err(Error::BadInput)?) as Box<dyn Models>),
        None => None,
    };
    by_name(name, platform, models, seed).map_err(Error::BadInput)
}

/// A policy over models that somebody else looks into, too.
///
/// # Errors
/// See [`policy`].
pub fn policy_of(name: &str, platform: &Platform, models: SharedModels, settings: Settings, seed: u64) -> Result<Box<dyn Policy>> {
    by_name_with(name, platform, Some(Box::new(models)), settings, seed).map_err(Error::BadInput)
}

/// A bundle's networks, of which a policy has one handle and the daemon another: experience comes from a file and goes there.
#[derive(Clone)]
pub struct SharedModels {
    models: Rc<RefCell<BundleModels>>,
    /// False: Model-C stays as the bundle has it, and remembers nothing.
    learns: bool,
}

impl SharedModels {
    /// # Errors
    /// [`Error::BadInput`] for a bundle that this policy cannot use.
    pub fn new(bundle: &Bundle, platform: &Platform, learns: bool) -> Result<Self> {
        let models = BundleModels::new(bundle, platform).map_err(Error::BadInput)?;
        Ok(SharedModels { models: Rc::new(RefCell::new(models)), learns })
    }

    /// Look at Model-C as it is now.
    pub fn agent<R>(&self, look: impl FnOnce(&Agent) -> R) -> R {
        look(self.models.borrow().agent())
    }

    /// Change Model-C.
    pub fn agent_mut<R>(&self, change: impl FnOnce(&mut Agent) -> R) -> R {
        change(self.models.borrow_mut().agent_mut())
    }
}

impl Models for SharedModels {
    fn area(&self, service: &str, s: &State) -> std::result::Result<Area, String> {
        self.models.borrow().area(service, s)
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> std::result::Result<f64, String> {
        self.models.borrow().qos(service, s, cores, ways)
    }

    fn qos_cap(&self) -> f64 {
        self.models.borrow().qos_cap()
    }

    fn act(&mut self, service: &str, s: &State) -> std::result::Result<[f32; ACTIONS], String> {
        self.models.borrow_mut().act(service, s)
    }

    fn worth(&mut self, service: &str, s: &State, action: usize) -> Option<f64> {
        self.models.borrow_mut().worth(service, s, action)
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.learns && self.models.borrow_mut().remember(e)
    }

    fn learn(&mut self) -> bool {
        self.learns && self.models.borrow_mut().learn()
    }

    fn steps(&self) -> u64 {
        self.models.borrow().steps()
    }
}
