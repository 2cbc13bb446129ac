//! The models that a bundle has, by the policy that asks.

use crate::models::{BundleModels, Models};
use crate::osml_models::{BundleOsml, OsmlModels};
use surefoot_learn::Bundle;
use surefoot_server::Platform;

/// All the models that there are for policies to take theirs from. Empty: there is no bundle.
#[derive(Default)]
pub struct ModelSet {
    /// OSML+'s A, B and C.
    pub plus: Option<Box<dyn Models>>,
    /// OSML's A, A', B, B' and C; a bundle may be without.
    pub osml: Option<Box<dyn OsmlModels>>,
}

impl ModelSet {
    /// All of a bundle's.
    ///
    /// # Errors
    /// One line, where a model lacks an output that every platform has.
    pub fn of(bundle: &Bundle, platform: &Platform) -> Result<Self, String> {
        let osml = BundleOsml::new(bundle, platform)?.map(|m| Box::new(m) as Box<dyn OsmlModels>);
        Ok(ModelSet { plus: Some(Box::new(BundleModels::new(bundle, platform)?)), osml })
    }

    /// OSML+'s models for the policy of this name.
    ///
    /// # Errors
    /// One line with a remedy, where there is no bundle.
    pub fn plus_for(self, policy: &str) -> Result<Box<dyn Models>, String> {
        self.plus.ok_or_else(|| no_bundle(policy))
    }

    /// OSML's models for the policy of this name.
    ///
    /// # Errors
    /// One line with a remedy, where there is no bundle, or one without them.
    pub fn osml_for(self, policy: &str) -> Result<Box<dyn OsmlModels>, String> {
        match (self.osml, self.plus) {
            (Some(models), _) => Ok(models),
            (None, None) => Err(no_bundle(policy)),
            (None, Some(_)) => Err(format!(
                "policy \"{policy}\" needs OSML's models, and this bundle has none. Name its data set under `osml_datasets` in params.yaml, \
                 then `dvc repro` makes them and a bundle with them"
            )),
        }
    }
}

fn no_bundle(policy: &str) -> String {
    format!("policy \"{policy}\" needs a bundle. Give --bundle B; `surefoot bundle build` (or `dvc repro`) makes one")
}
