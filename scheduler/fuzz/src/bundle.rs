//! Bundles: a stranger's bytes, and a careless signer's.
//!
//! The first byte says what the rest replaces in a good bundle: 0 the manifest, 1 and 2 the weights of Model-A and Model-C, 3
//! the platform's file (all these are signed again, so that what lies behind the signature is reached), 4 the signature, 5 the
//! whole tar, 6 bytes of the tar (two of offset, then the new ones), 7 the weights of OSML's Model-C and 8 the card (signed again), 9 the
//! manifest as it stands: with 0 any JSON is put into the one form that is read, so that its fields are reached.

use ed25519_dalek::{Signer, SigningKey};
use serde_json::{json, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use surefoot_learn::model::Scratch;
use surefoot_learn::{canonical, Bundle, BundleError, Expect, Manifest, TrustedKeys};

/// Shapes of the weights, [outputs, inputs].
type Layers = [(usize, usize)];
type Files = BTreeMap<String, Vec<u8>>;

const MANIFEST: &str = "manifest.json";
const SIGNATURE: &str = "manifest.sig";
const BLOCK: usize = 512;

struct Good {
    key: SigningKey,
    trusted: TrustedKeys,
    files: Files,
    tar: Vec<u8>,
    dir: tempfile::TempDir,
}

fn good() -> &'static Good {
    static GOOD: OnceLock<Good> = OnceLock::new();
    GOOD.get_or_init(|| {
        let key = SigningKey::from_bytes(&[7; 32]);
        let trusted = TrustedKeys::from_keys(vec![key.verifying_key()]);
        let mut files = Files::new();
        files.insert("models/a.safetensors".into(), weights(&[("", &[(3, 2), (4, 3)])]));
        files.insert("models/b.safetensors".into(), weights(&[("", &[(1, 2)])]));
        let (actor, critic): (&Layers, &Layers) = (&[(7, 2)], &[(2, 9), (1, 2)]);
        let c = [("actor.", actor), ("actor_target.", actor), ("critic.", critic), ("critic_target.", critic)];
        files.insert("models/c.safetensors".into(), weights(&c));
        for (model, layers) in OSML {
            files.insert(format!("models/osml_{model}.safetensors"), weights(&[("", layers)]));
        }
        let dqn: &Layers = &[(49, 2)];
        files.insert("models/osml_c.safetensors".into(), weights(&[("policy.", dqn), ("target.", dqn)]));
        files.insert("card.md".into(), "# Models\n\nSo good \u{2013} or so bad.\n".into());
        files.insert("platform.toml".into(), vec![]);
        files.insert("services/m.toml".into(), vec![]);
        let said: Manifest = serde_json::from_value(manifest(&files, &key)).expect("a manifest");
        files.insert("platform.toml".into(), said.platform.profile().into_bytes());
        files.insert("services/m.toml".into(), said.services["m"].profile("m").into_bytes());
        files.insert(MANIFEST.into(), canonical::to_bytes(&manifest(&files, &key)));
        sign(&mut files, &key);
        let tar = to_tar(&files);
        let shm = std::path::Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("a temporary folder");
        Good { key, trusted, files, tar, dir }
    })
}

/// OSML's Models A, A', B and B', in small.
const OSML: [(&str, &Layers); 4] = [("a", &[(4, 2)]), ("ap", &[(3, 2), (4, 3)]), ("b", &[(6, 2)]), ("bp", &[(1, 2)])];

/// A manifest of the small networks in [`good`].
fn manifest(files: &Files, key: &SigningKey) -> Value {
    let sha = |n: &str| hex(&Sha256::digest(&files[n]));
    let inputs = json!([{ "name": "ipc", "min": 0.0, "max": 3.0 }, { "name": "alloc_cores", "min": 0.0, "max": 36.0 }]);
    let output = |n: &str| json!({ "name": n, "offset": 1.0, "scale": 2.0 });
    let area = || ["oaa_cores", "oaa_ways", "rcliff_cores", "rcliff_ways"].map(output).to_vec();
    let angles =
        || ["default", "cores_dominated", "cache_dominated"].iter().flat_map(|a| ["cores", "ways"].map(|u| output(&format!("{a}_{u}"))));
    let mut osml = serde_json::Map::new();
    for (model, layers) in OSML {
        let file = format!("models/osml_{model}.safetensors");
        let outputs: Vec<Value> = match model {
            "bp" => vec![output("qos_slowdown")],
            "b" => angles().collect(),
            _ => area(),
        };
        let entry = json!({ "file": file, "sha256": sha(&file), "activation": "relu", "output_activation": "linear", "layers": layers,
            "inputs": inputs, "outputs": outputs, "qos_cap": null });
        osml.insert(model.into(), entry);
    }
    let c = json!({ "file": "models/osml_c.safetensors", "sha256": sha("models/osml_c.safetensors"), "activation": "relu",
        "output_activation": "linear", "layers": [[49, 2]], "inputs": inputs, "reach": 3, "latency_cap": 1000.0,
        "hyperparameters": { "batch": 4.0, "replay": 8.0, "gamma": 0.9, "lr": 1e-3, "rms_alpha": 0.9, "rms_eps": 1e-5, "copy_every": 100.0,
            "epsilon": 0.05 } });
    osml.insert("c".into(), c);
    let actions = ["cores_up", "cores_down", "ways_up", "ways_down", "mba_up", "mba_down", "idle"];
    json!({
        "format": "surefoot-bundle", "format_version": 3, "serial": 1_700_000_000, "feature_set": "full",
        "platform": { "name": "x", "cores": 36.0, "core_step": 1.0, "ways": 11, "mb_per_way": 2.25, "mba": true },
        "services": { "m": { "qos_target_ms": 10.0, "max_load_rps": null } },
        "models": {
            "a": { "file": "models/a.safetensors", "sha256": sha("models/a.safetensors"), "activation": "relu",
                "output_activation": "linear", "layers": [[3, 2], [4, 3]], "inputs": inputs,
                "outputs": area(), "qos_cap": null },
            "b": { "file": "models/b.safetensors", "sha256": sha("models/b.safetensors"), "activation": "relu",
                "output_activation": "linear", "layers": [[1, 2]], "inputs": inputs, "outputs": [output("qos")], "qos_cap": 2.0 },
            "c": { "file": "models/c.safetensors", "sha256": sha("models/c.safetensors"), "activation": "relu",
                "output_activation": "softmax", "layers": [[7, 2]], "critic_layers": [[2, 9], [1, 2]], "inputs": inputs,
                "actions": actions, "available_actions": ["cores_up", "idle"], "hyperparameters": { "batch": 4.0, "replay": 8.0, "gamma": 0.99,
                    "tau": 0.001, "lr_actor": 5e-4, "lr_critic": 5e-3, "critic_l2": 0.01, "actor_entropy": 0.0, "adam_beta1": 0.9,
                    "adam_beta2": 0.999, "adam_eps": 1e-8 } },
            "osml": osml,
        },
        "files": files.iter().map(|(n, d)| (n.clone(), json!({ "bytes": d.len(), "sha256": sha(n) }))).collect::<BTreeMap<_, _>>(),
        "metrics": {}, "provenance": {}, "signer": surefoot_learn::keys::fingerprint(&key.verifying_key()),
    })
}

/// Weights of 1/4 in safetensors' form: length of the head, head, data.
fn weights(networks: &[(&str, &Layers)]) -> Vec<u8> {
    let mut head = serde_json::Map::new();
    let mut data: Vec<u8> = vec![];
    for (prefix, layers) in networks {
        for (n, (rows, cols)) in layers.iter().enumerate() {
            for (kind, shape) in [("weight", vec![*rows, *cols]), ("bias", vec![*rows])] {
                let from = data.len();
                (0..shape.iter().product()).for_each(|_| data.extend(0.25f32.to_le_bytes()));
                let tensor = json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] });
                head.insert(format!("{prefix}layers.{n}.{kind}"), tensor);
            }
        }
    }
    let mut head = Value::Object(head).to_string().into_bytes();
    head.resize(head.len().next_multiple_of(8), b' ');
    [&(head.len() as u64).to_le_bytes()[..], &head, &data].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn sign(files: &mut Files, key: &SigningKey) {
    let text = format!("surefoot-bundle-v1 {}", hex(&Sha256::digest(&files[MANIFEST])));
    let line = format!("{text} {}\n", hex(&key.sign(text.as_bytes()).to_bytes()));
    files.insert(SIGNATURE.into(), line.into_bytes());
}

/// A file with new content, and a manifest that says so.
fn replaced(name: &str, data: &[u8]) -> Files {
    let g = good();
    let mut files = g.files.clone();
    files.insert(name.into(), data.to_vec());
    if name != MANIFEST {
        files.remove(SIGNATURE);
        files.remove(MANIFEST);
        files.insert(MANIFEST.into(), canonical::to_bytes(&manifest(&files, &g.key)));
    }
    sign(&mut files, &g.key);
    files
}

fn to_tar(files: &Files) -> Vec<u8> {
    let first = [MANIFEST, SIGNATURE];
    let mut out = vec![];
    for name in first.into_iter().chain(files.keys().map(String::as_str).filter(|n| !first.contains(n))) {
        let data = &files[name];
        let mut h = [0u8; BLOCK];
        let mut put = |at: usize, text: &[u8]| h[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, b"0000644\x000000000\x000000000\x00");
        put(124, format!("{:011o}\0", data.len()).as_bytes());
        put(136, b"00000000000\0        0");
        put(257, b"ustar\x0000");
        put(329, b"0000000\x000000000\0");
        let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
        h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        out.extend_from_slice(&h);
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn load(tar: &[u8]) -> Result<Bundle, BundleError> {
    let g = good();
    let path: PathBuf = g.dir.path().join("b.tar");
    std::fs::write(&path, tar).expect("a temporary file");
    Bundle::load(&path, &g.trusted, &Expect::default())
}

pub fn run(data: &[u8]) {
    let Some((what, rest)) = data.split_first() else { return };
    let signed = match what {
        0 => match serde_json::from_slice(rest) {
            Ok(value) => replaced(MANIFEST, &canonical::to_bytes(&value)),
            Err(_) => return,
        },
        9 => replaced(MANIFEST, rest),
        1 => replaced("models/a.safetensors", rest),
        2 => replaced("models/c.safetensors", rest),
        3 => replaced("platform.toml", rest),
        7 => replaced("models/osml_c.safetensors", rest),
        8 => replaced("card.md", rest),
        _ => return unsigned(*what, rest),
    };
    match load(&to_tar(&signed)) {
        Ok(b) => usable(b, &signed),
        Err(e) => refused(&e),
    }
}

/// Whatever was not signed is refused, unless not a byte is different.
fn unsigned(what: u8, rest: &[u8]) {
    let g = good();
    let tar = match what {
        4 => {
            let mut files = g.files.clone();
            files.insert(SIGNATURE.into(), rest.to_vec());
            to_tar(&files)
        }
        5 => rest.to_vec(),
        6 if rest.len() > 2 => {
            let mut tar = g.tar.clone();
            let at = usize::from(u16::from_le_bytes([rest[0], rest[1]])) % tar.len();
            let n = (rest.len() - 2).min(tar.len() - at);
            tar[at..at + n].copy_from_slice(&rest[2..2 + n]);
            tar
        }
        _ => return,
    };
    match load(&tar) {
        Ok(_) => assert!(tar == g.tar, "a changed bundle was taken"),
        Err(e) => {
            assert!(tar != g.tar, "the good bundle was refused");
            refused(&e);
        }
    }
}

fn refused(e: &BundleError) {
    assert!(!e.file.is_empty() && !e.field.is_empty() && !e.problem.is_empty() && !e.remedy.is_empty(), "{e:?}");
    crate::one_line(&e.to_string());
}

/// A bundle that was taken is one that a node can run: what it predicts are numbers.
fn usable(mut b: Bundle, files: &Files) {
    assert_eq!(b.digest, hex(&Sha256::digest(&files[MANIFEST])));
    let text = serde_json::to_vec(&b.manifest).expect("a manifest can be written");
    let again: Manifest = serde_json::from_slice(&text).expect("and read again");
    assert_eq!(again, b.manifest, "parse, print, parse");
    let mut scratch = Scratch::default();
    let osml: Vec<surefoot_learn::Model> = b.osml.iter().flat_map(|o| [&o.a, &o.ap, &o.b, &o.bp]).cloned().collect();
    for model in [&b.a, &b.b].into_iter().chain(&osml) {
        for at in [0.0, 0.5, 1.0] {
            let raw: Vec<Option<f64>> = model.inputs.iter().map(|i| Some(i.min + at * (i.max - i.min))).collect();
            let out = model.predict(&raw, &mut scratch).expect("inputs within their bounds");
            assert!(out.iter().all(|v| v.is_finite()), "{out:?} at {raw:?}");
        }
    }
    let middle: Vec<Option<f64>> = b.manifest.models.c.inputs.iter().map(|i| Some(0.5 * (i.min + i.max))).collect();
    let state = b.c.state(&middle).expect("inputs within their bounds");
    let p = b.c.act(&state);
    assert!(p.iter().all(|v| (0.0..=1.0).contains(v)), "{p:?}");
    assert!(b.c.available[b.c.best(&p)], "an action that this platform cannot carry out");
    if let Some(c) = b.osml.as_mut().map(|o| &mut o.c) {
        let middle: Vec<Option<f64>> = c.inputs.iter().map(|i| Some(0.5 * (i.min + i.max))).collect();
        let state = c.state(&middle).expect("inputs within their bounds");
        assert!(c.q_values(&state).iter().all(|q| !q.is_nan()), "a Q-value that cannot be compared");
        let action = c.choose(&state, |_| true).expect("doing nothing is always possible");
        assert!(c.available[action], "an action that this platform cannot carry out");
    }
    if let Some(card) = &b.card {
        assert!(card.len() <= 256 << 10 && card.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'), "{card:?}");
    }
}

/// One input for each kind of replacement: the good bundle's own bytes.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let g = good();
    let of = |what: u8, name: &str| [&[what], &g.files[name][..]].concat();
    vec![
        ("manifest", of(0, MANIFEST)),
        ("manifest-as-it-stands", of(9, MANIFEST)),
        ("model-a", of(1, "models/a.safetensors")),
        ("model-c", of(2, "models/c.safetensors")),
        ("platform", of(3, "platform.toml")),
        ("osml-c", of(7, "models/osml_c.safetensors")),
        ("card", of(8, "card.md")),
        ("signature", of(4, SIGNATURE)),
        ("tar-bytes", [&[6u8, 0, 0][..], &g.tar[..100]].concat()),
        ("tar-head", [&[5u8], &g.tar[..BLOCK]].concat()),
    ]
}
