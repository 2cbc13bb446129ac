//! `manifest.json` of a bundle, read strictly: an unknown or missing field is an error (docs/bundle-format.md).
//!
//! Types and ranges of single fields are said in `pipelines/artefact/bundle_rules.json` ([`crate::rules`]); what is here is what fields say
//! of one another.

use crate::canonical::number;
use crate::ddpg::{Hyper, ACTIONS};
use crate::dqn::{self, DqnHyper};
use crate::model::{InputSpec, OutputSpec};
use crate::relative;
use crate::rules::{bad, rules, Bad, Kind, Most, Named, Need};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The newest that is read; 2 brought OSML's models and the card, 3 the serial, 4 intervals and the strangeness score.
pub const FORMAT_VERSION: u32 = 4;
/// Largest file that a bundle may hold.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The model card, for people to read.
pub const CARD: &str = "card.md";
/// Model files that a bundle may hold, without folder and ending.
pub const MODELS: [&str; 8] = ["a", "b", "c", "osml_a", "osml_ap", "osml_b", "osml_bp", "osml_c"];
/// Names of Model-C's actions, by id (OSML+ paper, Table 5).
pub const ACTION_NAMES: [&str; ACTIONS] = ["cores_up", "cores_down", "ways_up", "ways_down", "mba_up", "mba_down", "idle"];

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
    /// Seconds since 1970 when it was built: of two bundles for one platform by one signer the newer has the larger. None in
    /// versions 1 and 2, which count as older than any that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
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

impl PlatformLimits {
    fn most(&self, of: Most) -> f64 {
        match of {
            Most::One => 1.0,
            Most::Cores => self.cores,
            Most::Ways => f64::from(self.ways),
            Most::CacheMb => f64::from(self.ways) * self.mb_per_way,
        }
    }

    /// `platform.toml` of a bundle for this platform.
    pub fn profile(&self) -> String {
        let PlatformLimits { name, cores, core_step, ways, mb_per_way, mba } = self;
        let (step, cores, mb) = (number(*core_step), number(*cores), number(*mb_per_way));
        let name = quoted(name);
        format!("core_step = {step}\ncores = {cores}\nkind = \"platform-limits\"\nmb_per_way = {mb}\nmba = {mba}\nname = {name}\nways = {ways}\n")
    }
}

/// Text as TOML; it has no control characters.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTarget {
    /// On p99.
    pub qos_target_ms: f64,
    pub max_load_rps: Option<f64>,
}

impl ServiceTarget {
    /// `services/NAME.toml` of a bundle with this service.
    pub fn profile(&self, name: &str) -> String {
        let load = self.max_load_rps.map_or(String::new(), |r| format!("max_load_rps = {}\n", number(r)));
        format!("kind = \"lc\"\n{load}name = {}\nqos_target_ms = {}\n", quoted(name), number(self.qos_target_ms))
    }
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

/// What the manifest says of one model.
#[derive(Clone, Copy)]
pub(crate) enum Spec<'a> {
    Mlp(&'a MlpSpec),
    Ddpg(&'a DdpgSpec),
    Dqn(&'a DqnSpec),
}

impl Spec<'_> {
    fn file(&self) -> (&str, &str) {
        match self {
            Spec::Mlp(m) => (&m.file, &m.sha256),
            Spec::Ddpg(m) => (&m.file, &m.sha256),
            Spec::Dqn(m) => (&m.file, &m.sha256),
        }
    }

    fn inputs(&self) -> &[InputSpec] {
        match self {
            Spec::Mlp(m) => &m.inputs,
            Spec::Ddpg(m) => &m.inputs,
            Spec::Dqn(m) => &m.inputs,
        }
    }
}

impl Models {
    /// Each model's field in `models`, and what is said of it.
    pub(crate) fn each(&self) -> Vec<(&'static str, Spec<'_>)> {
        let mut all = vec![("a", Spec::Mlp(&self.a)), ("b", Spec::Mlp(&self.b)), ("c", Spec::Ddpg(&self.c))];
        if let Some(o) = &self.osml {
            all.extend([("osml.a", Spec::Mlp(&o.a)), ("osml.ap", Spec::Mlp(&o.ap)), ("osml.b", Spec::Mlp(&o.b))]);
            all.extend([("osml.bp", Spec::Mlp(&o.bp)), ("osml.c", Spec::Dqn(&o.c))]);
        }
        all
    }
}

/// Where the weights of a model lie that is a field of `models`.
fn model_file(model: &str) -> String {
    format!("models/{}.safetensors", model.replace('.', "_"))
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
    /// Shape of the layer of Model-A's strangeness score, from version 4 on: one layer, as wide as the inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strangeness: Option<Vec<(usize, usize)>>,
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

/// A service's name: a-z, 0-9, `_`, `-` and single inner dots, first a letter or digit.
pub fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let first = part.bytes().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        first && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'_' | b'-'))
    };
    name.len() <= rules().service_name_bytes && name.split('.').all(is_part)
}

/// A file that a bundle may hold, beside manifest and signature.
pub fn is_allowed_file(name: &str) -> bool {
    let service = || name.strip_prefix("services/").and_then(|n| n.strip_suffix(".toml")).is_some_and(is_name);
    let model = || name.strip_prefix("models/").and_then(|n| n.strip_suffix(".safetensors")).is_some_and(|n| MODELS.contains(&n));
    name == "platform.toml" || name == CARD || model() || service()
}

impl Manifest {
    /// From `manifest.json`, with everything checked that can be without the files.
    pub(crate) fn read(value: Value) -> Result<Self, Bad> {
        rules().check(&value)?;
        let m: Manifest = serde_json::from_value(value).map_err(|e| (Kind::Field, "fields".into(), e.to_string()))?;
        m.check().map(|()| m)
    }

    fn check(&self) -> Result<(), Bad> {
        if self.format_version < 2 && self.files.contains_key(CARD) {
            return bad(Kind::Files, "files", format!("a bundle with {CARD} is of version 2"));
        }
        if self.platform.core_step > self.platform.cores {
            return bad(Kind::Platform, "platform.core_step", "is more than all cores");
        }
        self.check_files()?;
        for (model, spec) in self.models.each() {
            let at = format!("models.{model}");
            self.check_inputs(&at, model, spec.inputs())?;
            let inputs = spec.inputs().len();
            match spec {
                Spec::Mlp(m) => {
                    self.check_outputs(&at, model, &m.outputs)?;
                    check_layers(&format!("{at}.layers"), &m.layers, inputs, m.outputs.len())?;
                    if m.strangeness.as_ref().is_some_and(|layers| layers[..] != [(inputs, inputs)]) {
                        return bad(Kind::Layers, format!("{at}.strangeness"), format!("want one layer [{inputs}, {inputs}]"));
                    }
                }
                Spec::Ddpg(m) => {
                    self.check_actions(&at, m)?;
                    check_pool(&at, &m.hyperparameters)?;
                    check_layers(&format!("{at}.layers"), &m.layers, inputs, ACTIONS)?;
                    check_layers(&format!("{at}.critic_layers"), &m.critic_layers, inputs + ACTIONS, 1)?;
                }
                Spec::Dqn(m) => {
                    check_pool(&at, &m.hyperparameters)?;
                    check_layers(&format!("{at}.layers"), &m.layers, inputs, dqn::ACTIONS)?;
                }
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), Bad> {
        let wrong = |problem: String| bad(Kind::Files, "files", problem);
        let models = self.models.each();
        let mut wanted: BTreeSet<String> = self.services.keys().map(|s| format!("services/{s}.toml")).collect();
        wanted.insert("platform.toml".into());
        wanted.extend(models.iter().map(|(model, _)| model_file(model)));
        for name in self.files.keys() {
            if !is_allowed_file(name) {
                return wrong(format!("`{name}` is not a name that a bundle may hold"));
            }
            if !wanted.contains(name) && name != CARD {
                return wrong(format!("`{name}` is listed without need"));
            }
        }
        if let Some(name) = wanted.iter().find(|n| !self.files.contains_key(*n)) {
            return wrong(format!("`{name}` is needed and not listed"));
        }
        let bytes: u64 = self.files.values().map(|f| f.bytes.next_multiple_of(512) + 512).sum();
        if bytes > rules().limits.bundle_bytes {
            return wrong(format!("come to {bytes} bytes, a bundle holds at most {}", rules().limits.bundle_bytes));
        }
        for (model, spec) in models {
            let (file, sha256) = spec.file();
            let own = model_file(model);
            if file != own {
                return bad(Kind::Files, format!("models.{model}.file"), format!("`{file}`, want `{own}`"));
            }
            if sha256 != self.files[&own].sha256 {
                return bad(Kind::Files, format!("models.{model}.sha256"), format!("differs from files.{own}.sha256"));
            }
        }
        Ok(())
    }

    /// Whether a host of this feature set and platform has it.
    fn has(&self, need: Option<Need>) -> bool {
        match need {
            None => true,
            Some(Need::Pmu) => self.feature_set == "full",
            Some(Need::Ways) => self.platform.ways > 0,
            Some(Need::Mba) => self.platform.mba,
        }
    }

    /// The rule for a name of a list of `model`.
    fn rule<'a>(&self, list: &'a [Named], name: &str, model: &str) -> Result<&'a Named, String> {
        let rule = list.iter().find(|n| n.name == name && n.is_of(model));
        let rule = rule.ok_or_else(|| "is not known there".to_string())?;
        if rule.since > self.format_version {
            return Err(format!("is unknown in version {}", self.format_version));
        }
        if self.has(rule.needs) {
            return Ok(rule);
        }
        Err(format!("is not to be had with feature set {}, {} ways, MBA {}", self.feature_set, self.platform.ways, self.platform.mba))
    }

    fn check_inputs(&self, at: &str, model: &str, inputs: &[InputSpec]) -> Result<(), Bad> {
        let slack = 1.0 + rules().limits.rounding;
        for (n, i) in inputs.iter().enumerate() {
            let wrong = |problem: String| bad(Kind::Inputs, format!("{at}.inputs.{}", i.name), problem);
            let rule = match self.rule(&rules().inputs, &i.name, model) {
                Ok(rule) => rule,
                Err(problem) => return wrong(problem),
            };
            if inputs[..n].iter().any(|other| other.name == i.name) {
                return wrong("is named twice".into());
            }
            if i.min >= i.max {
                return wrong(format!("bounds {}..{} are empty", i.min, i.max));
            }
            if let Some(r) = relative::find(&i.name).filter(|r| (r.min, r.max) != (i.min, i.max)) {
                return wrong(format!("bounds {}..{} are of other formulas, which have {}..{}", i.min, i.max, r.min, r.max));
            }
            if let Some(most) = rule.most.map(|m| self.platform.most(m)).filter(|most| i.min < 0.0 || i.max > most * slack) {
                return wrong(format!("bounds {}..{} leave the machine's 0..{most}", i.min, i.max));
            }
        }
        Ok(())
    }

    fn check_outputs(&self, at: &str, model: &str, outputs: &[OutputSpec]) -> Result<(), Bad> {
        let slack = 1.0 + rules().limits.rounding;
        for (n, o) in outputs.iter().enumerate() {
            let wrong = |problem: String| bad(Kind::Outputs, format!("{at}.outputs.{}", o.name), problem);
            let rule = match self.rule(&rules().outputs, &o.name, model) {
                Ok(rule) => rule,
                Err(problem) => return wrong(problem),
            };
            if outputs[..n].iter().any(|other| other.name == o.name) {
                return wrong("is named twice".into());
            }
            // The offset is the mean of what was taught.
            let most = rule.most.map(|m| self.platform.most(m));
            if let Some(most) = most.filter(|most| !(0.0..=most * slack).contains(&o.offset)) {
                return wrong(format!("its mean {} leaves the machine's 0..{most}", o.offset));
            }
        }
        let is_there = |name: &str| outputs.iter().any(|o| o.name == name);
        for o in outputs {
            let with = rules().outputs.iter().find(|n| n.name == o.name && n.is_of(model)).and_then(|n| n.with.as_deref());
            if let Some(other) = with.filter(|other| !is_there(other)) {
                let problem = format!("is an end of an interval without the other, {other}");
                return bad(Kind::Outputs, format!("{at}.outputs.{}", o.name), problem);
            }
        }
        let needed = |n: &&Named| n.is_of(model) && !n.optional && self.has(n.needs);
        match rules().outputs.iter().filter(needed).find(|n| !is_there(&n.name)) {
            Some(n) => bad(Kind::Outputs, format!("{at}.outputs.{}", n.name), "is missing"),
            None => Ok(()),
        }
    }

    fn check_actions(&self, at: &str, c: &DdpgSpec) -> Result<(), Bad> {
        if c.actions != ACTION_NAMES {
            return bad(Kind::Actions, format!("{at}.actions"), format!("want {}", ACTION_NAMES.join(", ")));
        }
        for (n, action) in c.available_actions.iter().enumerate() {
            let wrong = |problem: String| bad(Kind::Actions, format!("{at}.available_actions.{action}"), problem);
            if let Err(problem) = self.rule(&rules().actions, action, "c") {
                return wrong(problem);
            }
            if c.available_actions[..n].contains(action) {
                return wrong("is named twice".into());
            }
        }
        Ok(())
    }

    /// Model-C's hyperparameters. All but `replay` are there, whole numbers where they count: the rules say so.
    pub(crate) fn hyper(&self) -> Hyper {
        let of = |name: &str| self.models.c.hyperparameters.get(name).copied();
        let d = Hyper::default();
        Hyper {
            gamma: of("gamma").map_or(d.gamma, |v| v as f32),
            tau: of("tau").map_or(d.tau, |v| v as f32),
            lr_actor: of("lr_actor").unwrap_or(d.lr_actor),
            lr_critic: of("lr_critic").unwrap_or(d.lr_critic),
            critic_l2: of("critic_l2").map_or(d.critic_l2, |v| v as f32),
            actor_entropy: of("actor_entropy").map_or(d.actor_entropy, |v| v as f32),
            batch: of("batch").map_or(d.batch, |v| v as usize),
            replay: pool(of("replay"), of("batch"), d.replay),
            adam_beta1: of("adam_beta1").unwrap_or(d.adam_beta1),
            adam_beta2: of("adam_beta2").unwrap_or(d.adam_beta2),
            adam_eps: of("adam_eps").unwrap_or(d.adam_eps),
            noise: d.noise,
            seed: d.seed,
        }
    }
}

/// Transitions that are kept: so many, else the node's own number, and never less than a batch.
fn pool(replay: Option<f64>, batch: Option<f64>, own: usize) -> usize {
    replay.map_or(own, |v| v as usize).max(batch.map_or(0, |v| v as usize))
}

/// OSML's Model-C: its hyperparameters. All but `replay` are there.
pub(crate) fn dqn_hyper(c: &DqnSpec) -> DqnHyper {
    let of = |name: &str| c.hyperparameters.get(name).copied();
    let d = DqnHyper::default();
    DqnHyper {
        gamma: of("gamma").map_or(d.gamma, |v| v as f32),
        lr: of("lr").unwrap_or(d.lr),
        rms_alpha: of("rms_alpha").unwrap_or(d.rms_alpha),
        rms_eps: of("rms_eps").unwrap_or(d.rms_eps),
        copy_every: of("copy_every").map_or(d.copy_every, |v| v as u64),
        batch: of("batch").map_or(d.batch, |v| v as usize),
        replay: pool(of("replay"), of("batch"), d.replay),
        epsilon: of("epsilon").unwrap_or(d.epsilon),
        seed: d.seed,
    }
}

/// A pool that cannot hold a batch never teaches anything.
fn check_pool(at: &str, hyper: &BTreeMap<String, f64>) -> Result<(), Bad> {
    match (hyper.get("replay"), hyper.get("batch")) {
        (Some(replay), Some(batch)) if replay < batch => {
            bad(Kind::Hyperparameters, format!("{at}.hyperparameters.replay"), format!("{replay} is below the batch of {batch}"))
        }
        _ => Ok(()),
    }
}

/// Layers must join: each takes what the one before gives.
fn check_layers(at: &str, layers: &[(usize, usize)], inputs: usize, outputs: usize) -> Result<(), Bad> {
    let mut width = inputs;
    for (n, &(rows, cols)) in layers.iter().enumerate() {
        if cols != width {
            return bad(Kind::Layers, at, format!("layer {n} is [{rows}, {cols}], the one before gives {width} values"));
        }
        width = rows;
    }
    if width != outputs {
        return bad(Kind::Layers, at, format!("the last layer gives {width} values, {outputs} are named"));
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
