//! Load a bundle: verified in full before anything in it is used (docs/bundle-format.md).
//!
//! Order of checks: form and signature of `manifest.sig`; digest and fields of `manifest.json`; names, size and SHA-256 of
//! each file; shapes, bounds and finite weights; the card's text; then whether it is for this host. All files are read once into memory, and
//! what was verified is what is used. Nothing is unpacked to disk and nothing in a bundle is executed.

use crate::archive::{read_folder, Tar};
use crate::ddpg::Agent;
use crate::dqn::{self, DqnAgent};
use crate::keys::{hex, TrustedKeys};
use crate::manifest::{dqn_hyper, DqnSpec, Manifest, MlpSpec, ACTION_NAMES, CARD, MAX_CARD_BYTES};
use crate::mlp::{Mlp, Output};
use crate::model::Model;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use surefoot_server::Platform;

const MANIFEST: &str = "manifest.json";
const SIGNATURE: &str = "manifest.sig";
const TAG: &str = "surefoot-bundle-v1";
const FETCH: &str = "Fetch the bundle again";
const BUILD: &str = "Build the bundle again";

/// A bundle or a key was refused: file at fault, field, problem, remedy. Bad input: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {field}: {problem}. {remedy}.")]
pub struct BundleError {
    pub file: String,
    pub field: String,
    pub problem: String,
    pub remedy: String,
}

impl BundleError {
    pub(crate) fn new(file: &str, field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        BundleError { file: one_line(file), field: one_line(field), problem: one_line(problem), remedy: remedy.into() }
    }
}

/// Text from a file as part of a message: its control characters escaped, so that a message is one line and moves no cursor.
pub(crate) fn one_line(text: impl Into<String>) -> String {
    let text: String = text.into();
    match text.contains(char::is_control) {
        true => text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect(),
        false => text,
    }
}

/// What the bundle must be for; None asks for nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expect {
    /// `full` or `no-pmu`.
    pub feature_set: Option<String>,
    /// Logical CPUs that services may use, and cores per allocation unit.
    pub cores: Option<f64>,
    pub core_step: Option<f64>,
    pub ways: Option<u32>,
    pub mb_per_way: Option<f64>,
    /// None: this host.
    pub needed_by: Option<NeededBy>,
}

/// Who needs a bundle where it is not this host, in messages.
#[derive(Clone, Debug, PartialEq)]
pub struct NeededBy {
    pub who: String,
    /// What to do about a bundle of another platform: only who asks knows what can be named there.
    pub remedy: String,
}

impl Expect {
    /// A bundle for this platform: its cores, steps and ways. Names may differ: the hardware counts.
    pub fn platform(p: &Platform) -> Self {
        Expect {
            feature_set: None,
            cores: Some(f64::from(p.managed.len())),
            core_step: Some(p.core_step),
            ways: Some(p.ways()),
            mb_per_way: Some(p.mb_per_way()),
            needed_by: None,
        }
    }

    /// For a virtual server of that platform: what this machine has is nothing to it.
    pub fn virtual_platform(p: &Platform) -> Self {
        let who = format!("the virtual platform `{}`", p.name);
        let remedy = format!("Name the platform that it is for, or another bundle (`surefoot bundle build`, from data of `{}`)", p.name);
        Expect { needed_by: Some(NeededBy { who, remedy }), ..Self::platform(p) }
    }

    pub fn feature_set(self, feature_set: &str) -> Self {
        Expect { feature_set: Some(feature_set.into()), ..self }
    }

    /// Whether a bundle is what is expected. [`Bundle::load`] has asked; this is for whoever learns more afterwards.
    ///
    /// # Errors
    /// The first field of the manifest that is not.
    pub fn check(&self, m: &Manifest) -> Result<(), BundleError> {
        let who = self.needed_by.as_ref().map_or("this host", |n| &n.who);
        if let Some(want) = self.feature_set.as_ref().filter(|f| **f != m.feature_set) {
            let problem = format!("the bundle is for `{}`, {who} measures `{want}`", m.feature_set);
            let remedy = format!("Build one from a campaign of feature set `{want}`");
            return Err(BundleError::new(MANIFEST, "feature_set", problem, remedy));
        }
        let p = &m.platform;
        let pairs = [
            ("cores", self.cores, p.cores),
            ("core_step", self.core_step, p.core_step),
            ("ways", self.ways.map(f64::from), f64::from(p.ways)),
            ("mb_per_way", self.mb_per_way, p.mb_per_way),
        ];
        for (field, want, has) in pairs {
            if let Some(want) = want.filter(|w| (w - has).abs() > 1e-6 * has.abs().max(1.0)) {
                let problem = format!("the bundle is for platform `{}` with {has}, {who} has {want}", p.name);
                let build = "Build one from data of this platform: `surefoot bundle build`";
                let remedy = self.needed_by.as_ref().map_or(build, |n| &n.remedy);
                return Err(BundleError::new(MANIFEST, format!("platform.{field}"), problem, remedy));
            }
        }
        Ok(())
    }
}

/// `platform.toml` or one `services/NAME.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct TomlFile {
    /// `platform`, or the service's name.
    pub name: String,
    pub text: String,
    pub table: toml::Value,
}

/// OSML's models (OSML paper, Sec. 4).
#[derive(Clone, Debug)]
pub struct OsmlModels {
    /// Model-A: OAA and RCliff of a service alone.
    pub a: Model,
    /// Model-A': the same beside neighbours.
    pub ap: Model,
    /// Model-B: what can be taken away at a QoS slowdown.
    pub b: Model,
    /// Model-B': the QoS slowdown of taking something away.
    pub bp: Model,
    /// Model-C: 49 actions.
    pub c: DqnAgent,
    /// What the p99 of an overloaded service counts as in Model-C's reward, QoS targets.
    pub latency_cap: f64,
}

/// A verified bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    pub manifest: Manifest,
    /// SHA-256 of manifest.json, lower hex: the bundle's identity in journals.
    pub digest: String,
    /// Model-A: OAA and RCliff.
    pub a: Model,
    /// Model-B: QoS after a change of allocation.
    pub b: Model,
    /// Model-C: seven actions.
    pub c: Agent,
    /// OSML's models, where the bundle has them.
    pub osml: Option<OsmlModels>,
    /// The model card, for people to read.
    pub card: Option<String>,
    pub platform: TomlFile,
    pub services: Vec<TomlFile>,
}

impl Bundle {
    /// Load a folder or a tar file.
    ///
    /// # Errors
    /// [`BundleError`] names the file at fault; nothing of a refused bundle is returned.
    pub fn load(path: &Path, keys: &TrustedKeys, expect: &Expect) -> Result<Self, BundleError> {
        let (manifest, digest, files) = verified_files(path, keys)?;
        let a = mlp_model(&manifest.models.a, "models.a", &files)?;
        let b = mlp_model(&manifest.models.b, "models.b", &files)?;
        let c = ddpg_agent(&manifest, &files)?;
        let osml = osml_models(&manifest, &files)?;
        let card = files.get(CARD).map(|data| card(data)).transpose()?;
        let platform = toml_file(&files, "platform.toml", "platform")?;
        let services = manifest.services.keys().map(|s| toml_file(&files, &format!("services/{s}.toml"), s)).collect::<Result<_, _>>()?;
        expect.check(&manifest)?;
        Ok(Bundle { manifest, digest, a, b, c, osml, card, platform, services })
    }
}

type Files = BTreeMap<String, Vec<u8>>;

/// All files, with signature, names, sizes and digests checked.
fn verified_files(path: &Path, keys: &TrustedKeys) -> Result<(Manifest, String, Files), BundleError> {
    if path.is_dir() {
        // First of all: it may be somebody's data, and whatever is said next would be about what to remove.
        if path.join(SIGNATURE).symlink_metadata().is_err() {
            let remedy = "This is not a bundle: give the folder or the tar that `surefoot bundle build` wrote";
            return Err(BundleError::new(SIGNATURE, "file", "is missing", remedy));
        }
        let mut found = read_folder(path)?;
        let mut take = |name: &str| found.remove(name).ok_or_else(|| BundleError::new(name, "file", "is missing", FETCH));
        let (manifest_bytes, signature) = (take(MANIFEST)?, take(SIGNATURE)?);
        let (manifest, digest) = signed_manifest(&manifest_bytes, &signature, keys)?;
        if let Some(extra) = found.keys().find(|n| !manifest.files.contains_key(*n)) {
            return Err(BundleError::new(extra, "file", "is not in the manifest", "Remove it"));
        }
        let mut files = Files::new();
        for name in manifest.files.keys() {
            let data = found.remove(name).ok_or_else(|| BundleError::new(name, "file", "is missing", FETCH))?;
            check_file(&manifest, name, &data)?;
            files.insert(name.clone(), data);
        }
        Ok((manifest, digest, files))
    } else {
        let mut tar = Tar::open(path)?;
        let (manifest_bytes, signature) = (tar.take(MANIFEST)?, tar.take(SIGNATURE)?);
        let (manifest, digest) = signed_manifest(&manifest_bytes, &signature, keys)?;
        let mut files = Files::new();
        for name in manifest.files.keys() {
            let data = tar.take(name)?;
            check_file(&manifest, name, &data)?;
            files.insert(name.clone(), data);
        }
        tar.end()?;
        Ok((manifest, digest, files))
    }
}

/// `manifest.sig` taken apart: digest in hex, signature. None where it is not in its one form.
fn signature_line(line: &[u8]) -> Option<(&str, [u8; 64])> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (digest, signature) = line.strip_prefix(TAG)?.strip_prefix(' ')?.split_once(' ')?;
    if !crate::manifest::is_hex(digest, 32) || !crate::manifest::is_hex(signature, 64) {
        return None;
    }
    let mut bytes = [0u8; 64];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u8::from_str_radix(&signature[2 * i..2 * i + 2], 16).ok()?;
    }
    Some((digest, bytes))
}

fn signed_manifest(manifest: &[u8], signature: &[u8], keys: &TrustedKeys) -> Result<(Manifest, String), BundleError> {
    let form = || BundleError::new(SIGNATURE, "form", format!("is not one line `{TAG} DIGEST SIGNATURE`"), FETCH);
    let (digest, bytes) = signature_line(signature).ok_or_else(form)?;
    if keys.signer(format!("{TAG} {digest}").as_bytes(), &bytes).is_none() {
        return Err(not_signed(manifest, keys));
    }
    let actual = hex(&Sha256::digest(manifest));
    if actual != digest {
        let problem = format!("was changed after signing: it is {actual}, signed was {digest}");
        return Err(BundleError::new(MANIFEST, "SHA-256", problem, FETCH));
    }
    let parsed: Manifest = serde_json::from_slice(manifest).map_err(|e| BundleError::new(MANIFEST, "fields", e.to_string(), BUILD))?;
    parsed.check().map_err(|(field, problem)| BundleError::new(MANIFEST, field, problem, BUILD))?;
    Ok((parsed, actual))
}

/// Tell an unknown signer from a damaged file. The manifest's word on its signer is used for this message only.
fn not_signed(manifest: &[u8], keys: &TrustedKeys) -> BundleError {
    let text = String::from_utf8_lossy(manifest);
    let claimed = text.split_once("\"signer\": \"").and_then(|(_, rest)| rest.get(..64)).filter(|s| crate::manifest::is_hex(s, 32));
    match claimed {
        Some(signer) if !keys.trusts(signer) => {
            let problem = format!("the signer {} is not trusted here", &signer[..16]);
            let remedy = format!("If you trust that key, {}", keys.place());
            BundleError::new(SIGNATURE, "signature", problem, remedy)
        }
        _ => BundleError::new(SIGNATURE, "signature", "does not verify: the file was changed", FETCH),
    }
}

fn check_file(manifest: &Manifest, name: &str, data: &[u8]) -> Result<(), BundleError> {
    let spec = &manifest.files[name];
    if data.len() as u64 != spec.bytes {
        let problem = format!("is {} bytes, the manifest says {}", data.len(), spec.bytes);
        return Err(BundleError::new(name, "size", problem, FETCH));
    }
    let actual = hex(&Sha256::digest(data));
    if actual != spec.sha256 {
        return Err(BundleError::new(name, "SHA-256", format!("is {actual}, the manifest says {}", spec.sha256), FETCH));
    }
    Ok(())
}

fn toml_file(files: &Files, file: &str, name: &str) -> Result<TomlFile, BundleError> {
    let bad = |problem: String| BundleError::new(file, "TOML", problem, BUILD);
    let text = String::from_utf8(files[file].clone()).map_err(|e| bad(e.to_string()))?;
    let table = text.parse::<toml::Table>().map_err(|e| bad(e.message().to_string()))?;
    Ok(TomlFile { name: name.into(), text, table: toml::Value::Table(table) })
}

/// Tensors of one model file; what is taken is ticked off, and nothing may be left over.
struct Tensors<'a> {
    file: &'a str,
    data: SafeTensors<'a>,
    left: BTreeSet<String>,
}

impl<'a> Tensors<'a> {
    fn open(file: &'a str, files: &'a Files) -> Result<Self, BundleError> {
        let data = SafeTensors::deserialize(&files[file])
            .map_err(|e| BundleError::new(file, "safetensors", format!("cannot be read: {e}"), BUILD))?;
        let left = data.names().into_iter().map(String::from).collect();
        Ok(Tensors { file, data, left })
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, BundleError> {
        let bad = |problem: String, remedy: &str| Err(BundleError::new(self.file, format!("tensor {name}"), problem, remedy));
        let Ok(view) = self.data.tensor(name) else {
            return bad("is missing".into(), BUILD);
        };
        if view.dtype() != Dtype::F32 || view.shape() != shape {
            return bad(format!("is {:?} {:?}, the manifest says F32 {shape:?}", view.dtype(), view.shape()), BUILD);
        }
        let values: Vec<f32> = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if !values.iter().all(|v| v.is_finite()) {
            return bad("holds a value that is not finite".into(), "Train and build again");
        }
        self.left.remove(name);
        Ok(values)
    }

    fn network(&mut self, prefix: &str, layers: &[(usize, usize)], output: Output) -> Result<Mlp, BundleError> {
        let mut sizes = vec![layers[0].1];
        let mut params = Vec::new();
        for (n, &(rows, cols)) in layers.iter().enumerate() {
            let weight = self.take(&format!("{prefix}layers.{n}.weight"), &[rows, cols])?;
            let bias = self.take(&format!("{prefix}layers.{n}.bias"), &[rows])?;
            sizes.push(rows);
            params.push((weight, bias));
        }
        let borrowed: Vec<(&[f32], &[f32])> = params.iter().map(|(w, b)| (w.as_slice(), b.as_slice())).collect();
        Mlp::from_layers(&sizes, output, &borrowed)
            .ok_or_else(|| BundleError::new(self.file, format!("{prefix}layers"), "shapes do not fit together", BUILD))
    }

    fn done(self) -> Result<(), BundleError> {
        match self.left.first() {
            None => Ok(()),
            Some(name) => Err(BundleError::new(self.file, format!("tensor {name}"), "is not named by the manifest", BUILD)),
        }
    }
}

fn mlp_model(spec: &MlpSpec, field: &str, files: &Files) -> Result<Model, BundleError> {
    let mut tensors = Tensors::open(&spec.file, files)?;
    let mlp = tensors.network("", &spec.layers, Output::Linear)?;
    tensors.done()?;
    Model::new(spec.inputs.clone(), spec.outputs.clone(), mlp)
        .ok_or_else(|| BundleError::new(MANIFEST, field, "inputs or outputs do not fit the layers", BUILD))
}

fn osml_models(manifest: &Manifest, files: &Files) -> Result<Option<OsmlModels>, BundleError> {
    let Some(specs) = &manifest.models.osml else { return Ok(None) };
    let mlp = |name: &str, spec: &MlpSpec| mlp_model(spec, &format!("models.osml.{name}"), files);
    let (a, ap) = (mlp("a", &specs.a)?, mlp("ap", &specs.ap)?);
    let (b, bp) = (mlp("b", &specs.b)?, mlp("bp", &specs.bp)?);
    let mut c = dqn_agent(&specs.c, files)?;
    // Without cache partitioning no action can move ways.
    c.available = (0..dqn::ACTIONS).map(|action| manifest.platform.ways > 0 || dqn::change(action).1 == 0).collect();
    Ok(Some(OsmlModels { a, ap, b, bp, c, latency_cap: specs.c.latency_cap }))
}

fn dqn_agent(spec: &DqnSpec, files: &Files) -> Result<DqnAgent, BundleError> {
    let mut tensors = Tensors::open(&spec.file, files)?;
    let policy = tensors.network("policy.", &spec.layers, Output::Linear)?;
    let target = tensors.network("target.", &spec.layers, Output::Linear)?;
    tensors.done()?;
    let hyper = dqn_hyper(spec).map_err(|(field, problem)| BundleError::new(MANIFEST, field, problem, BUILD))?;
    DqnAgent::from_networks(spec.inputs.clone(), policy, target, hyper)
        .ok_or_else(|| BundleError::new(MANIFEST, "models.osml.c", "inputs, layers and hyperparameters do not fit together", BUILD))
}

/// The model card: short plain text, because it is shown on terminals.
fn card(data: &[u8]) -> Result<String, BundleError> {
    let bad = |field: &str, problem: String| Err(BundleError::new(CARD, field, problem, BUILD));
    if data.len() > MAX_CARD_BYTES {
        return bad("size", format!("is {} bytes, a model card has at most {MAX_CARD_BYTES}", data.len()));
    }
    let Ok(text) = std::str::from_utf8(data) else { return bad("text", "is not UTF-8".into()) };
    match text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        Some(c) => bad("text", format!("holds the control character U+{:04X}", u32::from(c))),
        None => Ok(text.into()),
    }
}

fn ddpg_agent(manifest: &Manifest, files: &Files) -> Result<Agent, BundleError> {
    let spec = &manifest.models.c;
    let mut tensors = Tensors::open(&spec.file, files)?;
    let actor = tensors.network("actor.", &spec.layers, Output::Softmax)?;
    let actor_target = tensors.network("actor_target.", &spec.layers, Output::Softmax)?;
    let critic = tensors.network("critic.", &spec.critic_layers, Output::Linear)?;
    let critic_target = tensors.network("critic_target.", &spec.critic_layers, Output::Linear)?;
    tensors.done()?;
    let hyper = manifest.hyper().map_err(|(field, problem)| BundleError::new(MANIFEST, field, problem, BUILD))?;
    let mut agent = Agent::from_networks(spec.inputs.clone(), actor, critic, actor_target, critic_target, hyper)
        .ok_or_else(|| BundleError::new(MANIFEST, "models.c", "inputs, layers and hyperparameters do not fit together", BUILD))?;
    agent.available = ACTION_NAMES.iter().map(|name| spec.available_actions.iter().any(|a| a == name)).collect();
    Ok(agent)
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;
