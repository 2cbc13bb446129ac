//! Bundles and policies by name.

use crate::error::{Error, Result};
use std::path::Path;
use surefoot_learn::{Bundle, Expect, TrustedKeys};
use surefoot_policy::{by_name, BundleModels, Models, Policy};
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
