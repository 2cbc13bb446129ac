//! Inputs that carry over to services and servers that no campaign has seen (`models/relative.json`, docs/training.md).
//!
//! An input is `times` x product(`over`) / product(`under`) of quantities, or the natural logarithm of that, within fixed bounds. The lab
//! computes it from the same file (`models/relative.py`); `tests/vectors/relative.json` holds both to one answer.

use serde::Deserialize;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Quantities of an allocation in question, of which only Model-B is asked.
const EXPECTED: [&str; 2] = ["expected_cores", "expected_cache_mb"];

/// One input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relative {
    pub name: String,
    pub over: Vec<String>,
    #[serde(default)]
    pub under: Vec<String>,
    #[serde(default = "one")]
    times: f64,
    #[serde(default)]
    log: bool,
    pub min: f64,
    pub max: f64,
}

fn one() -> f64 {
    1.0
}

impl Relative {
    /// The quantities that it is made of.
    pub fn quantities(&self) -> impl Iterator<Item = &str> {
        self.over.iter().chain(&self.under).map(String::as_str)
    }

    /// It is about an allocation in question.
    pub fn expects(&self) -> bool {
        self.quantities().any(|q| EXPECTED.contains(&q))
    }

    /// Its value within its bounds; None where a quantity is unknown.
    pub fn of(&self, quantity: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        self.unbounded(quantity).map(|value| value.clamp(self.min, self.max))
    }

    /// Its value, wherever that lies; None where a quantity is unknown.
    fn unbounded(&self, quantity: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        let (mut value, mut known) = (self.times, true);
        for name in &self.over {
            let of = quantity(name)?;
            (value, known) = (value * of, known && !of.is_nan());
        }
        for name in &self.under {
            let of = quantity(name)?;
            (value, known) = (value / of, known && !of.is_nan());
        }
        // Nothing over nothing: an idle service has no rates. What is no number stays none.
        let value = match (value.is_nan(), known) {
            (true, true) => 0.0,
            (true, false) => return Some(f64::NAN),
            (false, _) => value,
        };
        Some(if self.log { value.max(table().least).ln() } else { value })
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "about")]
    _about: Vec<String>,
    least: f64,
    inputs: Vec<Relative>,
}

struct Table {
    least: f64,
    inputs: Vec<Relative>,
    places: HashMap<String, usize>,
}

/// Were the file damaged, no input would be known, and no bundle with one would pass; a test reads it.
fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        let file: File = serde_json::from_str(include_str!("../../../models/relative.json")).unwrap_or_default();
        let places = file.inputs.iter().enumerate().map(|(k, i)| (i.name.clone(), k)).collect();
        Table { least: file.least, inputs: file.inputs, places }
    });
    &TABLE
}

/// All of them, in order.
pub fn all() -> &'static [Relative] {
    &table().inputs
}

/// The input of this name; None: it is a reading.
pub fn find(name: &str) -> Option<&'static Relative> {
    table().places.get(name).map(|k| &table().inputs[*k])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Case {
        quantities: HashMap<String, Option<f64>>,
        inputs: HashMap<String, Option<f64>>,
    }

    /// What the lab computes the node computes, to a billionth; what lacks a quantity is unknown on both.
    #[test]
    fn the_lab_and_the_node_agree() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../../../tests/vectors/relative.json")).unwrap();
        assert!(cases.len() >= 100 && all().len() >= 20);
        for case in cases {
            let quantity = |name: &str| case.quantities[name];
            for input in all() {
                match (case.inputs[&input.name], input.of(quantity)) {
                    (None, found) => assert_eq!(found, None, "{}", input.name),
                    (Some(want), found) => {
                        assert!(found.is_some_and(|f| (f - want).abs() < 1e-9), "{}: {found:?}, want {want}", input.name)
                    }
                }
            }
        }
    }

    /// A name leads to its own formula, and readings are none of them.
    #[test]
    fn names_lead_to_formulas() {
        assert!(all().iter().all(|i| find(&i.name).is_some_and(|f| f.name == i.name)));
        assert!(find("ipc").is_none() && find("expected_cores").is_none());
        assert!(find("ipc_log").unwrap().of(|_| Some(f64::NAN)).unwrap().is_nan());
        assert!(find("expected_busy_share").unwrap().expects() && !find("busy_share").unwrap().expects());
    }
}
