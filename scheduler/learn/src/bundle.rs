//! Load a bundle: verified in full before anything in it is used (docs/bundle-format.md).
//!
//! Order of checks: form and signature of `manifest.sig`; digest, form and fields of `manifest.json`; names, size and SHA-256 of
//! each file; weights; profiles; the card's text; then whether it is for this host. The lab's reader (`pipelines/artefact/bundle.py`) has the
//! same order. All files are read once into memory, and what was verified is what is used. Nothing is unpacked to disk and nothing in a
//! bundle is executed.

use crate::archive::{Folder, Tar};
use crate::canonical;
use crate::ddpg::Agent;
use crate::dqn::{self, DqnAgent};
use crate::error::BundleError;
use crate::keys::{fingerprint, hex, TrustedKeys};
use crate::manifest::{dqn_hyper, DqnSpec, Manifest, MlpSpec, ACTION_NAMES, CARD, MAX_FILE_BYTES};
use crate::mlp::{Mlp, Output};
use crate::model::Model;
use crate::rules::{is_hex, rules, Kind};
use ed25519_dalek::VerifyingKey;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use surefoot_server::Platform;

const MANIFEST: &str = "manifest.json";
const SIGNATURE: &str = "manifest.sig";
const TAG: &str = "surefoot-bundle-v1";
/// Tensors of Model-A's score.
const STRANGENESS: &str = "strangeness";
const FETCH: &str = "Fetch the bundle again";
const BUILD: &str = "Build the bundle again";

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
            return Err(BundleError::new(Kind::Host, MANIFEST, "feature_set", problem, remedy));
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
                return Err(BundleError::new(Kind::Host, MANIFEST, format!("platform.{field}"), problem, remedy));
            }
        }
        Ok(())
    }
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
    /// Fingerprint of the key that signed it.
    pub signer: String,
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
        profile("platform.toml", &files, &manifest.platform.profile())?;
        manifest.services.iter().try_for_each(|(name, s)| profile(&format!("services/{name}.toml"), &files, &s.profile(name)))?;
        let card = files.get(CARD).map(|data| card(data)).transpose()?;
        expect.check(&manifest)?;
        let signer = manifest.signer.clone();
        Ok(Bundle { manifest, digest, signer, a, b, c, osml, card })
    }
}

type Files = BTreeMap<String, Vec<u8>>;

/// All files, with signature, names, sizes and digests checked.
fn verified_files(path: &Path, keys: &TrustedKeys) -> Result<(Manifest, String, Files), BundleError> {
    let manifest_bytes = rules().limits.manifest_bytes;
    let mut files = Files::new();
    if path.is_dir() {
        // First of all: it may be somebody's data, and whatever is said next would be about what to remove.
        if path.join(SIGNATURE).symlink_metadata().is_err() {
            let remedy = "This is not a bundle: give the folder or the tar that `surefoot bundle build` wrote";
            return Err(BundleError::new(Kind::Missing, SIGNATURE, "file", "is missing", remedy));
        }
        let folder = Folder::list(path)?;
        let signed = folder.read(MANIFEST, manifest_bytes)?;
        let (manifest, digest) = signed_manifest(&signed, &folder.read(SIGNATURE, manifest_bytes)?, keys)?;
        let is_known = |n: &str| matches!(n, MANIFEST | SIGNATURE) || manifest.files.contains_key(n);
        if let Some(extra) = folder.names.iter().find(|n| !is_known(n)) {
            return Err(BundleError::new(Kind::Extra, extra, "file", "is not in the manifest", "Remove it"));
        }
        for name in manifest.files.keys() {
            let data = folder.read(name, MAX_FILE_BYTES)?;
            check_file(&manifest, name, &data)?;
            files.insert(name.clone(), data);
        }
        Ok((manifest, digest, files))
    } else {
        let mut tar = Tar::open(path)?;
        let signed = tar.take(MANIFEST, manifest_bytes)?;
        let (manifest, digest) = signed_manifest(&signed, &tar.take(SIGNATURE, manifest_bytes)?, keys)?;
        for name in manifest.files.keys() {
            let data = tar.take(name, MAX_FILE_BYTES)?;
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
    if !is_hex(digest, 32) || !is_hex(signature, 64) {
        return None;
    }
    let mut bytes = [0u8; 64];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = u8::from_str_radix(&signature[2 * i..2 * i + 2], 16).ok()?;
    }
    Some((digest, bytes))
}

fn signed_manifest(manifest: &[u8], signature: &[u8], keys: &TrustedKeys) -> Result<(Manifest, String), BundleError> {
    let form = || BundleError::new(Kind::Signature, SIGNATURE, "form", format!("is not one line `{TAG} DIGEST SIGNATURE`"), FETCH);
    let (digest, bytes) = signature_line(signature).ok_or_else(form)?;
    let Some(key) = keys.signer(format!("{TAG} {digest}").as_bytes(), &bytes) else {
        return Err(not_signed(manifest, keys));
    };
    let actual = hex(&Sha256::digest(manifest));
    if actual != digest {
        let problem = format!("was changed after signing: it is {actual}, signed was {digest}");
        return Err(BundleError::new(Kind::Changed, MANIFEST, "SHA-256", problem, FETCH));
    }
    let value = canonical::parse(manifest, rules().limits.json_depth)
        .map_err(|problem| BundleError::new(Kind::Json, MANIFEST, "form", problem, BUILD))?;
    let parsed = Manifest::read(value).map_err(|(kind, field, problem)| BundleError::new(kind, MANIFEST, field, problem, BUILD))?;
    signed_by(&parsed, key)?;
    Ok((parsed, actual))
}

/// The manifest names the key that signed it: what a node remembers of a signer is of that one.
fn signed_by(manifest: &Manifest, key: &VerifyingKey) -> Result<(), BundleError> {
    let own = fingerprint(key);
    if manifest.signer == own {
        return Ok(());
    }
    let problem = format!("is {}, but {} signed it", &manifest.signer[..16], &own[..16]);
    Err(BundleError::new(Kind::Signer, MANIFEST, "signer", problem, BUILD))
}

/// Tell an unknown signer from a damaged file. The manifest's word on its signer is used for this message only.
fn not_signed(manifest: &[u8], keys: &TrustedKeys) -> BundleError {
    const BEFORE: &[u8] = b"\"signer\": \"";
    let at = manifest.windows(BEFORE.len()).position(|w| w == BEFORE).map(|at| at + BEFORE.len());
    let claimed = at.and_then(|at| std::str::from_utf8(manifest.get(at..at + 64)?).ok()).filter(|s| is_hex(s, 32));
    match claimed {
        Some(signer) if !keys.trusts(signer) => {
            let problem = format!("the signer {} is not trusted here", &signer[..16]);
            let remedy = format!("If you trust that key, {}", keys.place());
            BundleError::new(Kind::Signer, SIGNATURE, "signature", problem, remedy)
        }
        _ => BundleError::new(Kind::Signature, SIGNATURE, "signature", "does not verify: the file was changed", FETCH),
    }
}

fn check_file(manifest: &Manifest, name: &str, data: &[u8]) -> Result<(), BundleError> {
    let spec = &manifest.files[name];
    if data.len() as u64 != spec.bytes {
        let problem = format!("is {} bytes, the manifest says {}", data.len(), spec.bytes);
        return Err(BundleError::new(Kind::Changed, name, "size", problem, FETCH));
    }
    let actual = hex(&Sha256::digest(data));
    if actual != spec.sha256 {
        let problem = format!("is {actual}, the manifest says {}", spec.sha256);
        return Err(BundleError::new(Kind::Changed, name, "SHA-256", problem, FETCH));
    }
    Ok(())
}

/// A profile says what the manifest says, in its one form: so there is nothing in it that could mean something else.
fn profile(file: &str, files: &Files, want: &str) -> Result<(), BundleError> {
    let found = &files[file];
    if found == want.as_bytes() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(found);
    let (mut is, mut due) = (text.split('\n'), want.split('\n'));
    let (line, is, due) = (1..)
        .map(|n: usize| (n, is.next(), due.next()))
        .find(|(_, a, b)| a != b || a.is_none())
        .map_or((0, "", ""), |(n, a, b)| (n, a.unwrap_or("the end"), b.unwrap_or("the end")));
    let short: String = is.chars().take(80).collect();
    let problem = format!("is `{short}`, the manifest says `{due}`");
    Err(BundleError::new(Kind::Profile, file, format!("line {line}"), problem, BUILD))
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
            .map_err(|e| BundleError::new(Kind::Weights, file, "safetensors", format!("cannot be read: {e}"), BUILD))?;
        let left = data.names().into_iter().map(String::from).collect();
        Ok(Tensors { file, data, left })
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, BundleError> {
        let bad = |problem: String, remedy: &str| Err(weights(self.file, format!("tensor {name}"), problem, remedy));
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
        self.stack(layers, output, |n| format!("{prefix}layers.{n}"))
    }

    /// A network of one layer, whose tensors have no number.
    fn layer(&mut self, name: &str, layers: &[(usize, usize)]) -> Result<Mlp, BundleError> {
        self.stack(layers, Output::Linear, |_| name.into())
    }

    fn stack(&mut self, layers: &[(usize, usize)], output: Output, name: impl Fn(usize) -> String) -> Result<Mlp, BundleError> {
        let mut sizes: Vec<usize> = layers.first().map(|l| l.1).into_iter().collect();
        let mut params = Vec::new();
        // The most that a value can come to, whatever the inputs, which lie within 0..1.
        let mut most = 1.0;
        for (n, &(rows, cols)) in layers.iter().enumerate() {
            let name = name(n);
            let weight = self.take(&format!("{name}.weight"), &[rows, cols])?;
            let bias = self.take(&format!("{name}.bias"), &[rows])?;
            most = growth(&weight, &bias, most);
            if most > rules().limits.activation {
                let problem = format!("lets a value grow to {most:.0e}, at most {:.0e}", rules().limits.activation);
                return Err(weights(self.file, name, problem, "Train and build again"));
            }
            sizes.push(rows);
            params.push((weight, bias));
        }
        let borrowed: Vec<(&[f32], &[f32])> = params.iter().map(|(w, b)| (w.as_slice(), b.as_slice())).collect();
        Mlp::from_layers(&sizes, output, &borrowed).ok_or_else(|| weights(self.file, name(0), "shapes do not fit together", BUILD))
    }

    fn done(self) -> Result<(), BundleError> {
        match self.left.first() {
            None => Ok(()),
            Some(name) => Err(weights(self.file, format!("tensor {name}"), "is not named by the manifest", BUILD)),
        }
    }
}

fn weights(file: &str, field: String, problem: impl Into<String>, remedy: &str) -> BundleError {
    BundleError::new(Kind::Weights, file, field, problem, remedy)
}

/// The most that an output of a layer can come to, where no input exceeds `most`.
fn growth(weight: &[f32], bias: &[f32], most: f64) -> f64 {
    let cols = weight.len() / bias.len().max(1);
    let sums = weight.chunks(cols.max(1)).zip(bias).map(|(row, b)| {
        let row: f64 = row.iter().map(|w| f64::from(w.abs())).sum();
        row * most + f64::from(b.abs())
    });
    sums.fold(0.0, f64::max)
}

fn mlp_model(spec: &MlpSpec, field: &str, files: &Files) -> Result<Model, BundleError> {
    let mut tensors = Tensors::open(&spec.file, files)?;
    let mlp = tensors.network("", &spec.layers, Output::Linear)?;
    let strange = spec.strangeness.as_ref().map(|layers| tensors.layer(STRANGENESS, layers)).transpose()?;
    tensors.done()?;
    Model::new(spec.inputs.clone(), spec.outputs.clone(), mlp)
        .and_then(|model| match strange {
            Some(layer) => model.with_strangeness(layer),
            None => Some(model),
        })
        .ok_or_else(|| BundleError::new(Kind::Layers, MANIFEST, field, "inputs or outputs do not fit the layers", BUILD))
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
    DqnAgent::from_networks(spec.inputs.clone(), policy, target, dqn_hyper(spec)).ok_or_else(|| {
        BundleError::new(Kind::Layers, MANIFEST, "models.osml.c", "inputs, layers and hyperparameters do not fit together", BUILD)
    })
}

/// The model card: short plain text, because it is shown on terminals.
fn card(data: &[u8]) -> Result<String, BundleError> {
    let bad = |field: &str, problem: String| Err(BundleError::new(Kind::Card, CARD, field, problem, BUILD));
    let most = rules().limits.card_bytes;
    if data.len() > most {
        return bad("size", format!("is {} bytes, a model card has at most {most}", data.len()));
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
    let mut agent =
        Agent::from_networks(spec.inputs.clone(), actor, critic, actor_target, critic_target, manifest.hyper()).ok_or_else(|| {
            BundleError::new(Kind::Layers, MANIFEST, "models.c", "inputs, layers and hyperparameters do not fit together", BUILD)
        })?;
    agent.available = ACTION_NAMES.iter().map(|name| spec.available_actions.iter().any(|a| a == name)).collect();
    Ok(agent)
}

#[cfg(test)]
#[path = "bundle_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "bundle_corpus_tests.rs"]
mod corpus_tests;
