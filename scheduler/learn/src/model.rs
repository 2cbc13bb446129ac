//! A network with its units: raw features in, natural units out.

use crate::mlp::{Mlp, Tape};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One input: raw values from `min` to `max` (natural units) map to 0..1, values beyond are clipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    pub name: String,
    pub min: f64,
    pub max: f64,
}

impl InputSpec {
    /// Min-max to [0, 1], clipped.
    pub fn scale(&self, raw: f64) -> f32 {
        ((raw - self.min) / (self.max - self.min)).clamp(0.0, 1.0) as f32
    }

    /// False where the model never saw such a value; predictions are then of the nearest value that it did see.
    pub fn covers(&self, raw: f64) -> bool {
        (self.min..=self.max).contains(&raw)
    }
}

/// One output: natural units = network's output * `scale` + `offset`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputSpec {
    pub name: String,
    pub offset: f64,
    pub scale: f64,
}

/// Why a model did not predict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// The host could not measure it: there is no prediction (never one with 0 in its place).
    #[error("input `{0}` is missing: this host did not measure it in this interval; use a bundle of a feature set without it")]
    Missing(String),
    #[error("input `{0}` is not a finite number")]
    NotFinite(String),
    #[error("{got} input values for a model with {expected} inputs")]
    Count { expected: usize, got: usize },
}

/// Buffers of a prediction; the caller owns one and reuses it, so that predicting allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    x: Vec<f32>,
    y: Vec<f64>,
    tape: Tape,
}

/// A network in natural units (Model-A, Model-B).
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
    pub mlp: Mlp,
}

impl Model {
    /// None where the lists do not fit the network.
    pub fn new(inputs: Vec<InputSpec>, outputs: Vec<OutputSpec>, mlp: Mlp) -> Option<Self> {
        (inputs.len() == mlp.inputs() && outputs.len() == mlp.outputs()).then_some(Model { inputs, outputs, mlp })
    }

    /// Predict from raw values in the order of [`Model::inputs`]; the result is in the order of [`Model::outputs`].
    ///
    /// # Errors
    /// [`InputError`] names the input that is missing or not finite.
    pub fn predict<'s>(&self, raw: &[Option<f64>], scratch: &'s mut Scratch) -> Result<&'s [f64], InputError> {
        scale_into(&self.inputs, raw, &mut scratch.x)?;
        let net = self.mlp.forward(&scratch.x, 1, &mut scratch.tape);
        scratch.y.clear();
        scratch.y.extend(net.iter().zip(&self.outputs).map(|(v, o)| f64::from(*v) * o.scale + o.offset));
        Ok(&scratch.y)
    }

    /// Predict from a look-up by input name, e.g. `|n| features.get(n)`.
    pub fn predict_by<'s>(&self, value: impl Fn(&str) -> Option<f64>, scratch: &'s mut Scratch) -> Result<&'s [f64], InputError> {
        scratch.x.clear();
        for spec in &self.inputs {
            scratch.x.push(scaled(spec, value(&spec.name))?);
        }
        let net = self.mlp.forward(&scratch.x, 1, &mut scratch.tape);
        scratch.y.clear();
        scratch.y.extend(net.iter().zip(&self.outputs).map(|(v, o)| f64::from(*v) * o.scale + o.offset));
        Ok(&scratch.y)
    }

    /// Place of an output by name.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|o| o.name == name)
    }
}

fn scaled(spec: &InputSpec, raw: Option<f64>) -> Result<f32, InputError> {
    let raw = raw.ok_or_else(|| InputError::Missing(spec.name.clone()))?;
    if !raw.is_finite() {
        return Err(InputError::NotFinite(spec.name.clone()));
    }
    Ok(spec.scale(raw))
}

/// Raw values to [0, 1]; shared with Model-C's state.
pub(crate) fn scale_into(specs: &[InputSpec], raw: &[Option<f64>], out: &mut Vec<f32>) -> Result<(), InputError> {
    if raw.len() != specs.len() {
        return Err(InputError::Count { expected: specs.len(), got: raw.len() });
    }
    out.clear();
    for (spec, raw) in specs.iter().zip(raw) {
        out.push(scaled(spec, *raw)?);
    }
    Ok(())
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.mlp.sizes().iter().map(usize::to_string).collect();
        write!(f, "{}", sizes.join("-"))
    }
}
