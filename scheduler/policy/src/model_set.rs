//! The models that a bundle has, by the policy that asks.

use crate::models::{Area, BundleModels, Experience, Models, State};
use crate::osml_models::{BPoints, BundleOsml, OsmlModels};
use surefoot_learn::{Bundle, ACTIONS};
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

    /// Models that answer nothing: policies go by their rules of thumb, and say so.
    pub fn mute() -> Self {
        ModelSet { plus: Some(Box::new(Mute)), osml: Some(Box::new(Mute)) }
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

/// No answer, whatever is asked.
struct Mute;

fn no_model<T>() -> Result<T, String> {
    Err("there is no model".into())
}

impl Models for Mute {
    fn area(&self, _: &str, _: &State) -> Result<Area, String> {
        no_model()
    }

    fn qos(&self, _: &str, _: &State, _: f64, _: f64) -> Result<f64, String> {
        no_model()
    }

    fn act(&mut self, _: &str, _: &State) -> Result<[f32; ACTIONS], String> {
        no_model()
    }

    fn remember(&mut self, _: &Experience) -> bool {
        false
    }

    fn learn(&mut self) -> bool {
        false
    }
}

impl OsmlModels for Mute {
    fn area(&self, _: &str, _: &State, _: bool) -> Result<Area, String> {
        no_model()
    }

    fn b_points(&self, _: &str, _: &State, _: f64) -> Result<BPoints, String> {
        no_model()
    }

    fn slowdown(&self, _: &str, _: &State, _: f64, _: f64) -> Result<f64, String> {
        no_model()
    }

    fn choose(&mut self, _: &str, _: &State, _: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String> {
        no_model()
    }

    fn latency_cap(&self) -> f64 {
        1.0
    }

    fn remember(&mut self, _: &Experience) -> bool {
        false
    }

    fn learn(&mut self) -> bool {
        false
    }
}
