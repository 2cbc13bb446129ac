//! A network with its units: raw features in, natural units out.

use crate::mlp::{Mlp, Tape};
use crate::relative;
use serde::{Deserialize, Serialize};

/// One input: raw values from `min` to `max` (natural units) map to 0..1, values beyond are clipped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
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

impl Scratch {
    /// Inputs of the last prediction as the network saw them, 0..1.
    pub fn normalised(&self) -> &[f32] {
        &self.x
    }

    /// Outputs of the last prediction before they got their units.
    pub fn network(&self) -> &[f32] {
        self.tape.output()
    }
}

/// A network in natural units (Model-A, Model-B).
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
    pub mlp: Mlp,
    /// The layer of its strangeness score; None where it has none.
    strange: Option<Mlp>,
}

impl Model {
    /// None where the lists do not fit the network.
    pub fn new(inputs: Vec<InputSpec>, outputs: Vec<OutputSpec>, mlp: Mlp) -> Option<Self> {
        (inputs.len() == mlp.inputs() && outputs.len() == mlp.outputs()).then_some(Model { inputs, outputs, mlp, strange: None })
    }

    /// With the layer of a strangeness score; None where it does not take the model's inputs.
    pub fn with_strangeness(self, layer: Mlp) -> Option<Self> {
        (layer.inputs() == self.inputs.len()).then_some(Model { strange: Some(layer), ..self })
    }

    /// How unlike what was taught the inputs are: the root of the mean square of the layer's values, above 1 where that is rare. None
    /// without such a layer, or where an input is missing or not finite.
    pub fn strangeness(&self, value: impl Fn(&str) -> Option<f64>, scratch: &mut Scratch) -> Option<f64> {
        let layer = self.strange.as_ref()?;
        self.look_up(value, &mut scratch.x).ok()?;
        let z = layer.forward(&scratch.x, 1, &mut scratch.tape);
        let square: f64 = z.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        Some((square / z.len() as f64).sqrt())
    }

    /// Predict from raw values in the order of [`Model::inputs`]; the result is in the order of [`Model::outputs`].
    ///
    /// # Errors
    /// [`InputError`] names the input that is missing or not finite.
    pub fn predict<'s>(&self, raw: &[Option<f64>], scratch: &'s mut Scratch) -> Result<&'s [f64], InputError> {
        scale_into(&self.inputs, raw, &mut scratch.x)?;
        Ok(self.infer(scratch))
    }

    /// Predict from a look-up by name, e.g. `|n| features.get(n)`: of a reading, and of the quantities of [`relative`].
    pub fn predict_by<'s>(&self, value: impl Fn(&str) -> Option<f64>, scratch: &'s mut Scratch) -> Result<&'s [f64], InputError> {
        self.look_up(value, &mut scratch.x)?;
        Ok(self.infer(scratch))
    }

    fn look_up(&self, value: impl Fn(&str) -> Option<f64>, x: &mut Vec<f32>) -> Result<(), InputError> {
        x.clear();
        for spec in &self.inputs {
            x.push(scaled(spec, raw(&spec.name, &value))?);
        }
        Ok(())
    }

    /// An input's raw value, looked up or computed of what is looked up; None: a part of it is missing.
    ///
    /// # Panics
    /// On a place that no input has.
    pub fn raw(&self, place: usize, value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        raw(&self.inputs[place].name, value)
    }

    /// Places of the inputs that are about an allocation in question: readings of these names, or computed of them.
    pub fn expecting(&self, names: &[&str]) -> Vec<usize> {
        let asks = |i: &InputSpec| relative::find(&i.name).map_or(names.contains(&i.name.as_str()), |r| r.expects());
        self.inputs.iter().enumerate().filter(|(_, i)| asks(i)).map(|(k, _)| k).collect()
    }

    /// Predict again with other raw values of some inputs (their places, values); the others stay as in the last prediction, which must
    /// have been this model's with this `scratch`.
    ///
    /// # Errors
    /// [`InputError`] names the input that is not finite, or says that the last prediction had another number of inputs.
    ///
    /// # Panics
    /// On a place that no input has.
    pub fn predict_again<'s>(
        &self,
        others: impl IntoIterator<Item = (usize, f64)>,
        scratch: &'s mut Scratch,
    ) -> Result<&'s [f64], InputError> {
        if scratch.x.len() != self.inputs.len() {
            return Err(InputError::Count { expected: self.inputs.len(), got: scratch.x.len() });
        }
        for (i, raw) in others {
            scratch.x[i] = scaled(&self.inputs[i], Some(raw))?;
        }
        Ok(self.infer(scratch))
    }

    fn infer<'s>(&self, scratch: &'s mut Scratch) -> &'s [f64] {
        let net = self.mlp.forward(&scratch.x, 1, &mut scratch.tape);
        scratch.y.clear();
        scratch.y.extend(net.iter().zip(&self.outputs).map(|(v, o)| f64::from(*v) * o.scale + o.offset));
        &scratch.y
    }

    /// Readings that lie outside what the model was trained on (and are clipped). What is missing is not among them, nor are the inputs
    /// of [`relative`]: they were clipped when they were taught, too.
    pub fn beyond(&self, value: impl Fn(&str) -> Option<f64>) -> impl Iterator<Item = &str> {
        let outside = move |i: &&InputSpec| relative::find(&i.name).is_none() && value(&i.name).is_some_and(|v| !i.covers(v));
        self.inputs.iter().filter(outside).map(|i| i.name.as_str())
    }

    /// Place of an input by name.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|i| i.name == name)
    }

    /// Place of an output by name.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|o| o.name == name)
    }
}

/// A reading, or what `relative` makes of readings.
fn raw(name: &str, value: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    match relative::find(name) {
        Some(input) => input.of(value),
        None => value(name),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mlp::Output;

    /// y = 3 x0 - x1 in network units; x0 spans 10..20, x1 spans 0..4; natural = 2 y + 100.
    fn model() -> Model {
        let mlp = Mlp::from_layers(&[2, 1], Output::Linear, &[(&[3.0, -1.0], &[0.0])]).unwrap();
        let input = |name: &str, min, max| InputSpec { name: name.into(), min, max };
        let outputs = vec![OutputSpec { name: "y".into(), offset: 100.0, scale: 2.0 }];
        Model::new(vec![input("ipc", 10.0, 20.0), input("mbl_mbps", 0.0, 4.0)], outputs, mlp).unwrap()
    }

    /// x = (0.5, 0.25): 3 * 0.5 - 0.25 = 1.25, so 102.5; beyond the bounds the nearest bound is used: (1, 0) gives 106.
    #[test]
    fn natural_units_in_and_out() {
        let (m, mut s) = (model(), Scratch::default());
        assert_eq!(m.predict(&[Some(15.0), Some(1.0)], &mut s), Ok([102.5].as_slice()));
        assert_eq!(m.predict(&[Some(1e9), Some(-3.0)], &mut s), Ok([106.0].as_slice()));
        let by_name = |n: &str| if n == "ipc" { Some(15.0) } else { Some(1.0) };
        assert_eq!(m.predict_by(by_name, &mut s), Ok([102.5].as_slice()));
        assert_eq!((s.normalised(), s.network()), ([0.5, 0.25].as_slice(), [1.25].as_slice()));
        assert_eq!(m.predict_again([(1, 2.0)], &mut s), Ok([102.0].as_slice()));
        assert_eq!(m.predict_again([(1, f64::NAN)], &mut s), Err(InputError::NotFinite("mbl_mbps".into())));
        assert_eq!(m.predict_again([], &mut Scratch::default()), Err(InputError::Count { expected: 2, got: 0 }));
        let beyond = |value: Option<f64>| m.beyond(move |_| value).collect::<Vec<_>>();
        assert_eq!(m.beyond(by_name).count(), 0);
        assert_eq!((beyond(Some(5.0)), beyond(Some(12.0)), beyond(None)), (vec!["ipc", "mbl_mbps"], vec!["mbl_mbps"], vec![]));
    }

    /// An input that is computed of readings is clipped here as it was when it was taught: it is never outside.
    #[test]
    fn what_was_taught_clipped_is_not_outside() {
        let (of, mlp) = (relative::find("busy_share").unwrap(), Mlp::zeros(&[1, 1], Output::Linear));
        let inputs = vec![InputSpec { name: of.name.clone(), min: of.min, max: of.max }];
        let m = Model::new(inputs, vec![OutputSpec { name: "y".into(), offset: 0.0, scale: 1.0 }], mlp).unwrap();
        // Bounds 0 to 1.1: 3 busy cores of 2 are beyond, of 4 they are not.
        let of = |held: f64| move |n: &str| Some(if n == "cpu_usage_cores" { 3.0 } else { held });
        assert_eq!((m.beyond(of(2.0)).count(), m.beyond(of(4.0)).count()), (0, 0));
        assert_eq!(m.raw(0, of(2.0)), Some(1.1));
    }

    /// A feature that the host did not measure stops the prediction, by name; it is never taken as 0.
    #[test]
    fn a_missing_input_is_an_error() {
        let (m, mut s) = (model(), Scratch::default());
        assert_eq!(m.predict(&[Some(15.0), None], &mut s), Err(InputError::Missing("mbl_mbps".into())));
        assert_eq!(m.predict_by(|_| None, &mut s), Err(InputError::Missing("ipc".into())));
        assert_eq!(m.predict(&[Some(f64::NAN), None], &mut s), Err(InputError::NotFinite("ipc".into())));
        assert_eq!(m.predict(&[Some(1.0)], &mut s), Err(InputError::Count { expected: 2, got: 1 }));
    }

    /// x = (0.5, 0.25), z = (2 x0, 4 x1 + 1) = (1, 2): the root of (1 + 4) / 2. Without a layer or an input there is no score.
    #[test]
    fn strangeness_is_a_root_mean_square() {
        let (m, mut s) = (model(), Scratch::default());
        let by_name = |n: &str| if n == "ipc" { Some(15.0) } else { Some(1.0) };
        assert_eq!(m.strangeness(by_name, &mut s), None);
        let layer = || Mlp::from_layers(&[2, 2], Output::Linear, &[(&[2.0, 0.0, 0.0, 4.0], &[0.0, 1.0])]).unwrap();
        let m = m.with_strangeness(layer()).unwrap();
        assert!((m.strangeness(by_name, &mut s).unwrap() - 2.5f64.sqrt()).abs() < 1e-6);
        assert_eq!(m.strangeness(|n| (n == "ipc").then_some(15.0), &mut s), None);
        assert_eq!(m.strangeness(|_| Some(f64::NAN), &mut s), None);
        let one = Mlp::from_layers(&[1, 2], Output::Linear, &[(&[1.0, 1.0], &[0.0, 0.0])]).unwrap();
        assert!(m.with_strangeness(one).is_none());
    }

    /// Lists that do not fit the network make no model.
    #[test]
    fn shapes_must_fit() {
        let m = model();
        assert!(Model::new(m.inputs[..1].to_vec(), m.outputs.clone(), m.mlp.clone()).is_none());
        assert!(Model::new(m.inputs.clone(), vec![], m.mlp).is_none());
    }
}
