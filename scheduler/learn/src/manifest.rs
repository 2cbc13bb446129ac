//! `manifest.json` of a bundle, read strictly: an unknown or missing field is an error (docs/bundle-format.md).

use crate::ddpg::{Hyper, ACTIONS};
use crate::dqn::{self, DqnHyper};
use crate::model::{InputSpec, OutputSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const FORMAT: &str = "surefoot-bundle";
/// The newest that is read; version 1 has neither OSML's models nor a card.
pub const FORMAT_VERSION: u32 = 2;
/// Largest file that a bundle may hold.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The model card, for people to read.
pub const CARD: &str = "card.md";
pub const MAX_CARD_BYTES: usize = 256 << 10;
/// Model files that a bundle may hold, without folder and ending.
pub const MODELS: [&str; 8] = ["a", "b", "c", "osml_a", "osml_ap", "osml_b", "osml_bp", "osml_c"];
/// Names of Model-C's actions, by id (OSML+ paper, Table 5).
pub const ACTION_NAMES: [&str; ACTIONS] = ["cores_up", "cores_down", "ways_up", "ways_down", "mba_up", "mba_down", "idle"];
pub const FEATURE_SETS: [&str; 2] = ["full", "no-pmu"];

/// The whole manifest. Of a verified bundle, so all checks of [`crate::Bundle::load`] hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: String,
    pub format_version: u32,
    /// `full` or `no-pmu`: which features the models were trained with.
    pub feature_set: String,
    pub platform: PlatformLimits,
    /// LC services that the models know, by catalogue name.
    pub services: BTreeMap<String, ServiceTarget>,
    pub models: Models,
    pub files: BTreeMap<String, FileSpec>,
    /// On the test split.
    pub metrics: BTreeMap<String, f64>,
    pub provenance: Provenance,
    /// SHA-256 of the signer's raw public key, lower hex.
    pub signer: String,
}

/// The platform that the models are for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlatformLimits {
    pub name: String,
    /// Logical CPUs that services may use.
    pub cores: f64,
    /// Cores per allocation unit.
    pub core_step: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    pub mb_per_way: f64,
    pub mba: bool,
}

/// Bounds may differ from the machine's by rounding.
const ROUNDING: f64 = 1e-6;

impl PlatformLimits {
    /// The most that an input can be here; None where the platform does not say.
    fn most(&self, input: &str) -> Option<f64> {
        match input {
            "cpu_usage_cores" | "alloc_cores" | "nb_cores" | "expected_cores" => Some(self.cores),
            "alloc_ways" => Some(f64::from(self.ways)),
            "alloc_cache_mb" | "nb_cache_mb" | "expected_cache_mb" => Some(f64::from(self.ways) * self.mb_per_way),
            "qos" | "qos_slowdown" => Some(1.0),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTarget {
    /// On p99.
    pub qos_target_ms: f64,
    pub max_load_rps: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    pub a: MlpSpec,
    pub b: MlpSpec,
    pub c: DdpgSpec,
    /// All five of OSML's models, or None.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub osml: Option<OsmlSpecs>,
}

/// OSML's models A, A', B, B' and C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OsmlSpecs {
    pub a: MlpSpec,
    pub ap: MlpSpec,
    pub b: MlpSpec,
    pub bp: MlpSpec,
    pub c: DqnSpec,
}

impl OsmlSpecs {
    /// The four that predict, each with its name.
    pub(crate) fn mlps(&self) -> [(&'static str, &MlpSpec); 4] {
        [("a", &self.a), ("ap", &self.ap), ("b", &self.b), ("bp", &self.bp)]
    }
}

impl Models {
    /// Each model's file name without folder and ending, its field in the manifest, and the file and digest that are named there.
    fn each(&self) -> Vec<(String, String, &str, &str)> {
        let (a, b, c) = (&self.a, &self.b, &self.c);
        let own = [("a", &a.file, &a.sha256), ("b", &b.file, &b.sha256), ("c", &c.file, &c.sha256)];
        let mut all: Vec<(String, String, &str, &str)> =
            own.into_iter().map(|(m, file, sha)| (m.to_string(), format!("models.{m}"), file.as_str(), sha.as_str())).collect();
        if let Some(o) = &self.osml {
            let files = o.mlps().map(|(m, s)| (m, &s.file, &s.sha256)).into_iter().chain([("c", &o.c.file, &o.c.sha256)]);
            all.extend(files.map(|(m, file, sha)| (format!("osml_{m}"), format!("models.osml.{m}"), file.as_str(), sha.as_str())));
        }
        all
    }
}

/// Model-A or Model-B, or one of OSML's A, A', B, B'. `layers` are the weights' shapes [outputs, inputs], in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MlpSpec {
    pub file: String,
    pub sha256: String,
    pub activation: String,
    pub output_activation: String,
    pub layers: Vec<(usize, usize)>,
    pub inputs: Vec<InputSpec>,
    pub outputs: Vec<OutputSpec>,
    /// QoS labels were capped here in training (Model-B): a prediction at the cap means "at least".
    pub qos_cap: Option<f64>,
}

/// Model-C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DdpgSpec {
    pub file: String,
    pub sha256: String,
    pub activation: String,
    pub output_activation: String,
    /// Of the actor.
    pub layers: Vec<(usize, usize)>,
    pub critic_layers: Vec<(usize, usize)>,
    pub inputs: Vec<InputSpec>,
    pub actions: Vec<String>,
    /// Actions that this platform can carry out.
    pub available_actions: Vec<String>,
    pub hyperparameters: BTreeMap<String, f64>,
}

/// OSML's Model-C.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DqnSpec {
    pub file: String,
    pub sha256: String,
    pub activation: String,
    pub output_activation: String,
    /// Of the policy and of the target.
    pub layers: Vec<(usize, usize)>,
    pub inputs: Vec<InputSpec>,
    /// Cores (allocation units) and ways that one action moves at most.
    pub reach: i32,
    /// What the p99 of an overloaded service counts as in the reward, QoS targets.
    pub latency_cap: f64,
    pub hyperparameters: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    pub bytes: u64,
    pub sha256: String,
}

/// Where the bundle comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    #[serde(default)]
    pub git_commit: Option<String>,
    #[serde(default)]
    pub git_dirty: Option<bool>,
    #[serde(default)]
    pub data_sha256: Option<String>,
    #[serde(default)]
    pub mlflow_run_id: Option<String>,
    #[serde(default)]
    pub campaigns: Vec<String>,
    #[serde(default)]
    pub software: BTreeMap<String, String>,
}

/// A field of the manifest that cannot be used: field, problem.
pub type Bad = (String, String);

fn bad<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, Bad> {
    Err((field.into(), problem.into()))
}

/// Lower-case hex of `bytes` bytes.
pub fn is_hex(text: &str, bytes: usize) -> bool {
    text.len() == 2 * bytes && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// A service's name: a-z, 0-9, `_`, `-` and single inner dots, first a letter or digit.
pub fn is_name(name: &str) -> bool {
    name.split('.').enumerate().all(|(i, part)| {
        let from = usize::from(i == 0);
        let first = part.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        first && part.bytes().skip(from).all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'-'))
    })
}

/// A file that a bundle may hold, beside manifest and signature.
pub fn is_allowed_file(name: &str) -> bool {
    let service = || name.strip_prefix("services/").and_then(|n| n.strip_suffix(".toml")).is_some_and(is_name);
    let model = || name.strip_prefix("models/").and_then(|n| n.strip_suffix(".safetensors")).is_some_and(|n| MODELS.contains(&n));
    name == "platform.toml" || name == CARD || model() || service()
}

impl Manifest {
    /// Everything that can be checked without the files.
    pub(crate) fn check(&self) -> Result<(), Bad> {
        if self.format != FORMAT || !(1..=FORMAT_VERSION).contains(&self.format_version) {
            let found = format!("{} {}, this node reads {FORMAT} 1 to {FORMAT_VERSION}", self.format, self.format_version);
            return bad("format", found);
        }
        if self.format_version < 2 && (self.models.osml.is_some() || self.files.contains_key(CARD)) {
            return bad("format_version", format!("a bundle with OSML's models or {CARD} is of version 2"));
        }
        if !FEATURE_SETS.contains(&self.feature_set.as_str()) {
            return bad("feature_set", format!("`{}` is unknown; known: {}", self.feature_set, FEATURE_SETS.join(", ")));
        }
        if !is_hex(&self.signer, 32) {
            return bad("signer", "not a SHA-256 in lower-case hex");
        }
        self.check_platform()?;
        for (name, s) in &self.services {
            let rps_ok = s.max_load_rps.is_none_or(|r| r.is_finite() && r > 0.0);
            if !(s.qos_target_ms.is_finite() && s.qos_target_ms > 0.0 && rps_ok) {
                return bad(format!("services.{name}"), "QoS target and maximum load must be above 0");
            }
        }
        self.check_files()?;
        self.check_mlp("models.a", &self.models.a)?;
        self.check_mlp("models.b", &self.models.b)?;
        self.check_ddpg()?;
        let Some(osml) = &self.models.osml else { return Ok(()) };
        for (name, spec) in osml.mlps() {
            self.check_mlp(&format!("models.osml.{name}"), spec)?;
        }
        self.check_dqn(&osml.c)
    }

    fn check_platform(&self) -> Result<(), Bad> {
        let p = &self.platform;
        let ok = p.cores.is_finite() && p.cores > 0.0 && p.core_step.is_finite() && p.core_step > 0.0;
        if !ok || !p.mb_per_way.is_finite() || p.mb_per_way < 0.0 {
            return bad("platform", "cores and core_step must be above 0, mb_per_way not negative");
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), Bad> {
        let mut wanted: Vec<String> = self.services.keys().map(|s| format!("services/{s}.toml")).collect();
        let models = self.models.each();
        wanted.push("platform.toml".into());
        wanted.extend(models.iter().map(|(model, ..)| format!("models/{model}.safetensors")));
        for (name, spec) in &self.files {
            if !is_allowed_file(name) {
                return bad("files", format!("`{name}` is not a name that a bundle may hold"));
            }
            if !wanted.contains(name) && name != CARD {
                return bad("files", format!("`{name}` is listed without need"));
            }
            if spec.bytes > MAX_FILE_BYTES {
                return bad(format!("files.{name}.bytes"), format!("{} is above the limit of {MAX_FILE_BYTES}", spec.bytes));
            }
            if !is_hex(&spec.sha256, 32) {
                return bad(format!("files.{name}.sha256"), "not a SHA-256 in lower-case hex");
            }
        }
        if let Some(name) = wanted.iter().find(|n| !self.files.contains_key(*n)) {
            return bad("files", format!("`{name}` is needed and not listed"));
        }
        for (model, field, file, sha) in models {
            if file != format!("models/{model}.safetensors") {
                return bad(format!("{field}.file"), format!("`{file}`, want `models/{model}.safetensors`"));
            }
            if sha != self.files[file].sha256 {
                return bad(format!("{field}.sha256"), format!("differs from files.{file}.sha256"));
            }
        }
        Ok(())
    }

    fn check_mlp(&self, at: &str, m: &MlpSpec) -> Result<(), Bad> {
        self.check_inputs(at, &m.inputs)?;
        if m.activation != "relu" || m.output_activation != "linear" {
            return bad(format!("{at}.activation"), "want relu, and linear at the output");
        }
        for (i, o) in m.outputs.iter().enumerate() {
            let field = || format!("{at}.outputs.{}", o.name);
            if !(o.scale.is_finite() && o.offset.is_finite() && o.scale > 0.0) {
                return bad(field(), "scale and offset must be finite and scale above 0");
            }
            if m.outputs[..i].iter().any(|other| other.name == o.name) {
                return bad(field(), "named twice");
            }
            // The offset is the mean of what was taught.
            let most = match o.name.rsplit('_').next() {
                Some("cores") => self.platform.cores,
                Some("ways") => f64::from(self.platform.ways),
                _ => continue,
            };
            if !(0.0..=most * (1.0 + ROUNDING)).contains(&o.offset) {
                return bad(field(), format!("its mean {} leaves the machine's 0..{most}", o.offset));
            }
        }
        check_layers(&format!("{at}.layers"), &m.layers, m.inputs.len(), m.outputs.len())
    }

    fn check_inputs(&self, at: &str, inputs: &[InputSpec]) -> Result<(), Bad> {
        if inputs.is_empty() {
            return bad(format!("{at}.inputs"), "empty");
        }
        for (n, i) in inputs.iter().enumerate() {
            let field = || format!("{at}.inputs.{}", i.name);
            if !(i.min.is_finite() && i.max.is_finite() && i.min < i.max) {
                return bad(field(), format!("bounds {}..{} are not a finite, non-empty range", i.min, i.max));
            }
            if inputs[..n].iter().any(|other| other.name == i.name) {
                return bad(field(), "named twice");
            }
            if let Some(most) = self.platform.most(&i.name).filter(|most| i.min < 0.0 || i.max > most * (1.0 + ROUNDING)) {
                return bad(field(), format!("bounds {}..{} leave the machine's 0..{most}", i.min, i.max));
            }
        }
        Ok(())
    }

    fn check_dqn(&self, c: &DqnSpec) -> Result<(), Bad> {
        self.check_inputs("models.osml.c", &c.inputs)?;
        if c.activation != "relu" || c.output_activation != "linear" {
            return bad("models.osml.c.activation", "want relu, and linear at the output");
        }
        if c.reach != dqn::REACH {
            return bad("models.osml.c.reach", format!("{}, this node knows actions of up to {}", c.reach, dqn::REACH));
        }
        if !(c.latency_cap.is_finite() && c.latency_cap > 0.0) {
            return bad("models.osml.c.latency_cap", "must be above 0");
        }
        check_layers("models.osml.c.layers", &c.layers, c.inputs.len(), dqn::ACTIONS)?;
        dqn_hyper(c).map(|_| ())
    }

    fn check_ddpg(&self) -> Result<(), Bad> {
        let c = &self.models.c;
        self.check_inputs("models.c", &c.inputs)?;
        if c.activation != "relu" || c.output_activation != "softmax" {
            return bad("models.c.activation", "want relu, and softmax at the output");
        }
        if c.actions != ACTION_NAMES {
            return bad("models.c.actions", format!("want {}", ACTION_NAMES.join(", ")));
        }
        if c.available_actions.is_empty() || !c.available_actions.iter().all(|a| ACTION_NAMES.contains(&a.as_str())) {
            return bad("models.c.available_actions", "empty, or not among the actions");
        }
        check_layers("models.c.layers", &c.layers, c.inputs.len(), ACTIONS)?;
        check_layers("models.c.critic_layers", &c.critic_layers, c.inputs.len() + ACTIONS, 1)?;
        self.hyper().map(|_| ())
    }

    /// Model-C's hyperparameters; what the manifest leaves out has its default.
    pub(crate) fn hyper(&self) -> Result<Hyper, Bad> {
        let mut h = Hyper::default();
        for (name, &v) in &self.models.c.hyperparameters {
            let field = || format!("models.c.hyperparameters.{name}");
            let (low, high) = match name.as_str() {
                "gamma" | "tau" | "adam_beta1" | "adam_beta2" => (0.0, 1.0),
                "batch" | "replay" => (1.0, 1e7),
                _ => (0.0, f64::MAX),
            };
            if !(v >= low && v <= high) {
                return bad(field(), format!("{v} is not within {low}..{high}"));
            }
            match name.as_str() {
                "gamma" => h.gamma = v as f32,
                "tau" => h.tau = v as f32,
                "lr_actor" => h.lr_actor = v,
                "lr_critic" => h.lr_critic = v,
                "critic_l2" => h.critic_l2 = v as f32,
                "actor_entropy" => h.actor_entropy = v as f32,
                "batch" => h.batch = v as usize,
                "replay" => h.replay = v as usize,
                "adam_beta1" if v < 1.0 => h.adam_beta1 = v,
                "adam_beta2" if v < 1.0 => h.adam_beta2 = v,
                "adam_eps" if v > 0.0 => h.adam_eps = v,
                "adam_beta1" | "adam_beta2" | "adam_eps" => return bad(field(), format!("{v} makes Adam divide by 0")),
                // What only training in the lab knows (say, a number of epochs) is no business of the node.
                _ => {}
            }
        }
        if h.replay < h.batch {
            return bad("models.c.hyperparameters.replay", format!("{} is below the batch of {}", h.replay, h.batch));
        }
        Ok(h)
    }
}

/// OSML's Model-C: its hyperparameters; what the manifest leaves out has its default.
pub(crate) fn dqn_hyper(c: &DqnSpec) -> Result<DqnHyper, Bad> {
    let mut h = DqnHyper::default();
    for (name, &v) in &c.hyperparameters {
        let (low, high) = match name.as_str() {
            "gamma" | "rms_alpha" | "epsilon" => (0.0, 1.0),
            "batch" | "replay" | "copy_every" => (1.0, 1e7),
            "rms_eps" => (f64::MIN_POSITIVE, f64::MAX),
            _ => (0.0, f64::MAX),
        };
        if !(v >= low && v <= high) {
            return bad(format!("models.osml.c.hyperparameters.{name}"), format!("{v} is not within {low}..{high}"));
        }
        match name.as_str() {
            "gamma" => h.gamma = v as f32,
            "lr" => h.lr = v,
            "rms_alpha" => h.rms_alpha = v,
            "rms_eps" => h.rms_eps = v,
            "copy_every" => h.copy_every = v as u64,
            "batch" => h.batch = v as usize,
            "replay" => h.replay = v as usize,
            "epsilon" => h.epsilon = v,
            _ => {}
        }
    }
    if h.replay < h.batch {
        return bad("models.osml.c.hyperparameters.replay", format!("{} is below the batch of {}", h.replay, h.batch));
    }
    Ok(h)
}

/// Layers must join: each takes what the one before gives.
fn check_layers(at: &str, layers: &[(usize, usize)], inputs: usize, outputs: usize) -> Result<(), Bad> {
    let mut width = inputs;
    for (n, &(rows, cols)) in layers.iter().enumerate() {
        if cols != width || rows == 0 {
            return bad(at, format!("layer {n} is [{rows}, {cols}], the one before gives {width} values"));
        }
        width = rows;
    }
    if layers.is_empty() || width != outputs {
        return bad(at, format!("the last layer gives {width} values, {outputs} are named"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names cannot leave their folder, hide, or depend on the file system's case.
    #[test]
    fn file_names_are_a_closed_set() {
        let models = MODELS.map(|m| format!("models/{m}.safetensors"));
        let others = ["platform.toml", "card.md", "services/memcached.toml", "services/img-dnn.v2_1.toml"];
        for good in others.into_iter().chain(models.iter().map(String::as_str)) {
            assert!(is_allowed_file(good), "{good}");
        }
        for evil in [
            "",
            "manifest.json",
            "models/d.safetensors",
            "models/osml_d.safetensors",
            "models/osml.safetensors",
            "models/card.md",
            "CARD.md",
            "models/../platform.toml",
            "services/.toml",
            "services/..toml",
            "services/a..b.toml",
            "services/.a.toml",
            "services/-a.toml",
            "services/a/b.toml",
            "services/../a.toml",
            "services/A.toml",
            "services/a b.toml",
            "services/a.toml\n",
            "/platform.toml",
            "services/\u{e9}.toml",
        ] {
            assert!(!is_allowed_file(evil), "{evil:?}");
        }
    }
}
