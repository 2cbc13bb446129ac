//! What a bundle may hold, as `pipelines/artefact/bundle_rules.json` says it: the lab's reader goes by the same file.

use crate::relative::{self, Relative};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Why a bundle was refused. The lab's reader has the same words; tests/vectors/bundles.jsonl holds both to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unreadable,
    Folder,
    Missing,
    Size,
    Tar,
    Signature,
    Signer,
    Changed,
    Json,
    Version,
    Field,
    Platform,
    Files,
    Inputs,
    Outputs,
    Actions,
    Hyperparameters,
    Layers,
    Extra,
    Weights,
    Profile,
    Card,
    Host,
    Key,
}

impl Kind {
    pub const ALL: [Kind; 24] = [
        Kind::Unreadable,
        Kind::Folder,
        Kind::Missing,
        Kind::Size,
        Kind::Tar,
        Kind::Signature,
        Kind::Signer,
        Kind::Changed,
        Kind::Json,
        Kind::Version,
        Kind::Field,
        Kind::Platform,
        Kind::Files,
        Kind::Inputs,
        Kind::Outputs,
        Kind::Actions,
        Kind::Hyperparameters,
        Kind::Layers,
        Kind::Extra,
        Kind::Weights,
        Kind::Profile,
        Kind::Card,
        Kind::Host,
        Kind::Key,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Kind::Unreadable => "unreadable",
            Kind::Folder => "folder",
            Kind::Missing => "missing",
            Kind::Size => "size",
            Kind::Tar => "tar",
            Kind::Signature => "signature",
            Kind::Signer => "signer",
            Kind::Changed => "changed",
            Kind::Json => "json",
            Kind::Version => "version",
            Kind::Field => "field",
            Kind::Platform => "platform",
            Kind::Files => "files",
            Kind::Inputs => "inputs",
            Kind::Outputs => "outputs",
            Kind::Actions => "actions",
            Kind::Hyperparameters => "hyperparameters",
            Kind::Layers => "layers",
            Kind::Extra => "extra",
            Kind::Weights => "weights",
            Kind::Profile => "profile",
            Kind::Card => "card",
            Kind::Host => "host",
            Kind::Key => "key",
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    #[serde(rename = "about")]
    _about: Vec<String>,
    pub limits: Limits,
    label: Label,
    pub service_name_bytes: usize,
    /// Word of a kind: what it means.
    #[cfg_attr(not(test), allow(dead_code))]
    kinds: BTreeMap<String, String>,
    objects: BTreeMap<String, BTreeMap<String, Field>>,
    pub inputs: Vec<Named>,
    pub outputs: Vec<Named>,
    pub actions: Vec<Named>,
}

/// Quantities of [`relative`] that a host must have counters for, and a cache that can be partitioned.
const NEED_PMU: [&str; 5] = ["ipc", "llc_misses_per_s", "mbl_mbps", "nb_mbl_mbps", "all_mbl_mbps"];
const NEED_WAYS: [&str; 5] = ["alloc_cache_mb", "nb_cache_mb", "expected_cache_mb", "platform_cache_mb", "platform_mb_per_way"];

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// Of a tar, before anything of it is believed.
    pub tar_bytes: u64,
    /// Of all files of a bundle, each with its header in a tar.
    pub bundle_bytes: u64,
    pub manifest_bytes: u64,
    pub card_bytes: usize,
    /// Names in a folder, more of which are not even looked at.
    pub folder_entries: usize,
    pub json_depth: usize,
    pub layers: usize,
    pub layer_width: u64,
    /// No value inside a network may be able to grow beyond: f32 ends at 3e38.
    pub activation: f64,
    /// Bounds may differ from the machine's by this share.
    pub rounding: f64,
}

/// A name that people read: so many characters, none that a terminal obeys or that hides others.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Label {
    most: usize,
    refused: Vec<(u32, u32)>,
}

/// An input, output or action.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub name: String,
    /// The most that it can be there; None: nobody knows.
    pub most: Option<Most>,
    /// What the host must have; None: nothing.
    pub needs: Option<Need>,
    /// Models that may have it, as fields of `models`; None: every one.
    of: Option<Vec<String>>,
    /// An output that may be left out.
    #[serde(default)]
    pub optional: bool,
    /// Format version that brought it.
    #[serde(default)]
    pub since: u32,
    /// An output that must be there where this one is: the other end of an interval.
    pub with: Option<String>,
}

impl Named {
    /// An input that is computed of others: what they need, it needs.
    fn of_relative(input: &Relative) -> Self {
        let any = |needs: &[&str]| input.quantities().any(|q| needs.contains(&q));
        let needs = if any(&NEED_PMU) {
            Some(Need::Pmu)
        } else if any(&NEED_WAYS) {
            Some(Need::Ways)
        } else {
            None
        };
        let of = if input.expects() { vec!["b".to_string()] } else { vec!["a".to_string(), "b".to_string()] };
        Named { name: input.name.clone(), most: None, needs, of: Some(of), optional: false, since: 0, with: None }
    }

    pub fn is_of(&self, model: &str) -> bool {
        self.of.as_ref().is_none_or(|of| of.iter().any(|m| m == model))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Most {
    One,
    Cores,
    Ways,
    CacheMb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Need {
    /// Counters: feature set `full`.
    Pmu,
    /// A cache that can be partitioned.
    Ways,
    Mba,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Type {
    Null,
    Boolean,
    Text,
    Label,
    Hex,
    Integer,
    Number,
    Layers,
    Object,
    List,
    Map,
}

/// What may stand in one place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    #[serde(rename = "type")]
    kind: Type,
    /// Of an object its name, of a list or a map what is in it.
    of: Option<Of>,
    one_of: Option<Vec<String>>,
    bytes: Option<usize>,
    least: Option<f64>,
    most: Option<f64>,
    above: Option<f64>,
    below: Option<f64>,
    #[serde(default)]
    whole: bool,
    #[serde(default)]
    null: bool,
    #[serde(default)]
    optional: bool,
    /// Format version that brought it; before that it may not be there.
    #[serde(default)]
    since: u64,
    keys: Option<Keys>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Of {
    Object(String),
    Field(Box<Field>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Keys {
    Label,
}

/// A field of the manifest that cannot be used: kind, field, problem.
pub(crate) type Bad = (Kind, String, String);

pub(crate) fn bad<T>(kind: Kind, field: impl Into<String>, problem: impl Into<String>) -> Result<T, Bad> {
    Err((kind, field.into(), problem.into()))
}

const TEXT: &str = include_str!("../../../pipelines/artefact/bundle_rules.json");

/// The rules. Were they damaged, there would be no object and no bundle would pass; a test reads them.
pub(crate) fn rules() -> &'static Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| {
        let mut rules: Rules = serde_json::from_str(TEXT).unwrap_or_default();
        rules.inputs.extend(relative::all().iter().map(Named::of_relative));
        rules
    });
    &RULES
}

/// Lower-case hex of `bytes` bytes.
pub fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

impl Rules {
    /// Whether an object, given by its name, may be this; the manifest's name is `manifest`.
    pub fn check(&self, value: &Value) -> Result<(), Bad> {
        let version = self.version(value)?;
        self.object("manifest", value, "", version)
    }

    /// Said first: what else there may be depends on it.
    fn version(&self, value: &Value) -> Result<u64, Bad> {
        for name in ["format", "format_version"] {
            let rule = self.objects.get("manifest").and_then(|m| m.get(name));
            let found = value.get(name).filter(|v| rule.is_some_and(|r| self.field(r, v, name, 0).is_ok()));
            if found.is_none() {
                let is = value.get(name).map_or("nothing".into(), said);
                let most = rule.and_then(|r| r.most).map_or(String::new(), |m| format!(", want 1 to {m}"));
                return bad(Kind::Version, name, format!("is {is}: this version does not know it{most}"));
            }
        }
        Ok(value.get("format_version").and_then(Value::as_u64).unwrap_or_default())
    }

    fn object(&self, name: &str, value: &Value, at: &str, version: u64) -> Result<(), Bad> {
        let (Some(fields), Value::Object(found)) = (self.objects.get(name), value) else {
            return wrong(at, value, "an object");
        };
        if let Some(key) = found.keys().find(|k| fields.get(*k).is_none_or(|f| f.since > version)) {
            return bad(Kind::Field, below(at, key), format!("is unknown in version {version}"));
        }
        for (key, field) in fields {
            match found.get(key) {
                Some(v) => self.field(field, v, &below(at, key), version)?,
                None if field.optional || field.since > version => {}
                None => return bad(Kind::Field, below(at, key), "is missing"),
            }
        }
        Ok(())
    }

    fn field(&self, field: &Field, value: &Value, at: &str, version: u64) -> Result<(), Bad> {
        if field.null && value.is_null() {
            return Ok(());
        }
        match (&field.kind, value, &field.of) {
            (Type::Null, Value::Null, _) | (Type::Boolean, Value::Bool(_), _) => Ok(()),
            (Type::Null, ..) => wrong(at, value, "null"),
            (Type::Boolean, ..) => wrong(at, value, "true or false"),
            (Type::Text, _, _) => {
                let known = field.one_of.as_deref().unwrap_or_default();
                let ok = value.as_str().is_some_and(|s| known.iter().any(|k| k == s));
                if ok {
                    Ok(())
                } else {
                    wrong(at, value, known.join(" or "))
                }
            }
            (Type::Label, _, _) => {
                let ok = value.as_str().is_some_and(|s| self.is_label(s));
                if ok {
                    Ok(())
                } else {
                    wrong(at, value, format!("1 to {} characters, none of control", self.label.most))
                }
            }
            (Type::Hex, _, _) => {
                let n = field.bytes.unwrap_or_default();
                let ok = value.as_str().is_some_and(|s| is_hex(s, n));
                if ok {
                    Ok(())
                } else {
                    wrong(at, value, format!("{} digits of lower-case hex", 2 * n))
                }
            }
            (Type::Integer, Value::Number(n), _) if !n.is_f64() => field.in_range(n.as_f64().unwrap_or(f64::NAN), at, value),
            (Type::Integer, ..) => wrong(at, value, "a whole number, without a point"),
            (Type::Number, Value::Number(n), _) if n.is_f64() => field.in_range(n.as_f64().unwrap_or(f64::NAN), at, value),
            (Type::Number, ..) => wrong(at, value, "a number, with a point (36.0)"),
            (Type::Layers, _, _) => self.layers(value, at),
            (Type::Object, _, Some(Of::Object(name))) => self.object(name, value, at, version),
            (Type::List, Value::Array(list), Some(Of::Field(of))) => {
                field.in_range(list.len() as f64, &format!("{at}: length"), &Value::from(list.len()))?;
                list.iter().enumerate().try_for_each(|(i, v)| self.field(of, v, &format!("{at}[{i}]"), version))
            }
            (Type::Map, Value::Object(map), Some(Of::Field(of))) => self.map(field, of, map, at, version),
            (Type::List, ..) => wrong(at, value, "a list"),
            (Type::Object | Type::Map, ..) => wrong(at, value, "an object"),
        }
    }

    fn map(&self, field: &Field, of: &Field, map: &Map<String, Value>, at: &str, version: u64) -> Result<(), Bad> {
        field.in_range(map.len() as f64, &format!("{at}: length"), &Value::from(map.len()))?;
        for (key, value) in map {
            if matches!(field.keys, Some(Keys::Label)) && !self.is_label(key) {
                return bad(Kind::Field, below(at, key), format!("is no name of 1 to {} characters, none of control", self.label.most));
            }
            self.field(of, value, &below(at, key), version)?;
        }
        Ok(())
    }

    /// `[[out, in], ...]`.
    fn layers(&self, value: &Value, at: &str) -> Result<(), Bad> {
        let Limits { layers, layer_width, .. } = self.limits;
        let is_size = |v: &Value| v.as_u64().is_some_and(|n| (1..=layer_width).contains(&n));
        let is_shape = |v: &Value| v.as_array().is_some_and(|s| s.len() == 2 && s.iter().all(is_size));
        let ok = value.as_array().is_some_and(|l| (1..=layers).contains(&l.len()) && l.iter().all(is_shape));
        if ok {
            Ok(())
        } else {
            wrong(at, value, format!("1 to {layers} pairs [out, in], each 1 to {layer_width}"))
        }
    }

    pub fn is_label(&self, text: &str) -> bool {
        (1..=self.label.most).contains(&text.chars().count()) && text.chars().all(|c| self.is_plain(c))
    }

    /// Whether a character may stand in a name: no terminal obeys it, and it hides or turns around no other.
    pub fn is_plain(&self, c: char) -> bool {
        !self.label.refused.iter().any(|(from, to)| (*from..=*to).contains(&u32::from(c)))
    }
}

impl Field {
    fn in_range(&self, v: f64, at: &str, value: &Value) -> Result<(), Bad> {
        let not = |bound: Option<f64>, holds: fn(f64, f64) -> bool| bound.is_some_and(|b| !holds(v, b));
        let want = match () {
            () if not(self.least, |v, b| v >= b) => format!("{} or more", self.least.unwrap_or_default()),
            () if not(self.above, |v, b| v > b) => format!("more than {}", self.above.unwrap_or_default()),
            () if not(self.most, |v, b| v <= b) => format!("at most {}", self.most.unwrap_or_default()),
            () if not(self.below, |v, b| v < b) => format!("less than {}", self.below.unwrap_or_default()),
            () if self.whole && v.fract() != 0.0 => "a whole number".into(),
            () if !v.is_finite() => "a finite number".into(),
            () => return Ok(()),
        };
        wrong(at, value, want)
    }
}

fn below(at: &str, key: &str) -> String {
    if at.is_empty() {
        key.into()
    } else {
        format!("{at}.{key}")
    }
}

fn wrong<T>(at: &str, value: &Value, want: impl std::fmt::Display) -> Result<T, Bad> {
    bad(Kind::Field, if at.is_empty() { "manifest" } else { at }, format!("is {}, want {want}", said(value)))
}

/// A value as part of a message: short.
fn said(value: &Value) -> String {
    const MOST: usize = 60;
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        other => {
            let text = other.to_string();
            if text.chars().count() <= MOST {
                text
            } else {
                text.chars().take(MOST).chain("...".chars()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{ACTION_NAMES, FORMAT_VERSION, MAX_FILE_BYTES};
    use std::collections::BTreeSet;

    /// The rules are read whole, and what the node must have as a constant says the same.
    #[test]
    fn the_rules_are_read() {
        let read: Rules = serde_json::from_str(TEXT).unwrap();
        assert_eq!(read.objects.len(), rules().objects.len());
        assert_eq!(read.actions.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(), ACTION_NAMES);
        assert_eq!(read.objects["manifest"]["format_version"].most, Some(f64::from(FORMAT_VERSION)));
        assert_eq!(read.objects["file"]["bytes"].most, Some(MAX_FILE_BYTES as f64));
        // A name of the longest fits a tar's header.
        assert!("services/".len() + read.service_name_bytes + ".toml".len() <= 100);
        let named: BTreeSet<&str> = read.kinds.keys().map(String::as_str).collect();
        assert_eq!(named, Kind::ALL.iter().map(|k| k.word()).collect());
    }

    /// Every object that is referred to is there, and whatever a list, map or object holds is said.
    #[test]
    fn no_rule_refers_to_nothing() {
        fn refers(f: &Field, objects: &BTreeMap<String, BTreeMap<String, Field>>) -> bool {
            match (&f.kind, &f.of) {
                (Type::Object, Some(Of::Object(name))) => objects.contains_key(name),
                (Type::List | Type::Map, Some(Of::Field(of))) => refers(of, objects),
                (Type::Object | Type::List | Type::Map, _) => false,
                (Type::Text, _) => f.one_of.is_some(),
                (Type::Hex, _) => f.bytes.is_some(),
                _ => true,
            }
        }
        let r = rules();
        for (name, fields) in &r.objects {
            fields.iter().for_each(|(k, f)| assert!(refers(f, &r.objects), "{name}.{k}"));
        }
    }
}
