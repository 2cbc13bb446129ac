//! What a bundle must survive, and what it must not. Bundles are made from the repository's `tests/vectors`.

use super::*;
use crate::archive::{read_file, to_tar, Links};
use crate::manifest::MODELS;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, EncodePublicKey};
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{json, Value};
use std::path::PathBuf;

pub(super) fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors")
}

pub(super) fn keys() -> TrustedKeys {
    TrustedKeys::load(&vectors().join("keys/trusted")).unwrap()
}

pub(super) fn test_key() -> SigningKey {
    let pem = std::fs::read_to_string(vectors().join("keys/TEST-ONLY-signing.pem")).unwrap();
    SigningKey::from_pkcs8_pem(&pem).unwrap()
}

fn read_folder(root: &Path) -> Files {
    let folder = Folder::list(root).unwrap();
    folder.names.iter().map(|n| (n.clone(), folder.read(n, MAX_FILE_BYTES).unwrap())).collect()
}

fn good() -> Files {
    read_folder(&vectors().join("bundle-small"))
}

fn write_folder(files: &Files) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, data) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, data).unwrap();
    }
    dir
}

fn load(files: &Files) -> Result<Bundle, BundleError> {
    let dir = write_folder(files);
    let from_folder = Bundle::load(dir.path(), &keys(), &Expect::default());
    // The tar of the same files says the same, where they can be put into one at all.
    if files.contains_key(MANIFEST) && files.contains_key(SIGNATURE) {
        let tar = dir.path().join("b.tar");
        std::fs::write(&tar, to_tar(files)).unwrap();
        let from_tar = Bundle::load(&tar, &keys(), &Expect::default());
        assert_eq!(from_folder.is_ok(), from_tar.is_ok(), "{:?} / {:?}", from_folder.err(), from_tar.err());
    }
    from_folder
}

fn refused(files: &Files) -> BundleError {
    let e = load(files).unwrap_err();
    assert!(!e.remedy.is_empty() && !e.problem.is_empty() && !e.field.is_empty(), "{e:?}");
    e
}

/// Digests, sizes and signature made right again after a change: what a careless signer would ship.
fn signed(mut files: Files, change: impl FnOnce(&mut Value), key: &SigningKey) -> Files {
    let mut manifest: Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
    let names: Vec<String> = manifest["files"].as_object().unwrap().keys().cloned().collect();
    for name in names.iter().filter(|n| files.contains_key(*n)) {
        let sha = hex(&Sha256::digest(&files[name]));
        manifest["files"][name] = json!({ "bytes": files[name].len(), "sha256": sha });
        match name.strip_prefix("models/").and_then(|n| n.strip_suffix(".safetensors")).map(|n| (n.strip_prefix("osml_"), n)) {
            Some((Some(model), _)) => manifest["models"]["osml"][model]["sha256"] = json!(sha),
            Some((None, letter)) => manifest["models"][letter]["sha256"] = json!(sha),
            None => {}
        }
    }
    change(&mut manifest);
    files.insert(MANIFEST.into(), canonical::to_bytes(&manifest));
    sign(&mut files, key);
    files
}

pub(super) fn sign(files: &mut Files, key: &SigningKey) {
    let text = format!("{TAG} {}", hex(&Sha256::digest(&files[MANIFEST])));
    let line = format!("{text} {}\n", hex(&key.sign(text.as_bytes()).to_bytes()));
    files.insert(SIGNATURE.into(), line.into_bytes());
}

/// The lab's bundle loads as folder and as tar, and shows what it is.
#[test]
fn the_labs_bundle_loads() {
    let tar = Bundle::load(&vectors().join("bundle-small.tar"), &keys(), &Expect::default()).unwrap();
    let folder = load(&good()).unwrap();
    assert_eq!((&tar.manifest, &tar.digest, &tar.a, &tar.b), (&folder.manifest, &folder.digest, &folder.a, &folder.b));
    assert_eq!(to_tar(&good()), std::fs::read(vectors().join("bundle-small.tar")).unwrap(), "the one byte form");
    assert_eq!(folder.a.mlp.sizes(), [12, 32, 64, 32, 5]);
    assert_eq!(folder.c.available, [true, true, true, true, false, false, true]);
    assert_eq!((folder.manifest.platform.ways, folder.manifest.serial), (20, None));
    assert_eq!(folder.manifest.services.keys().collect::<Vec<_>>(), ["moses", "xapian"]);
    assert_eq!(folder.signer, fingerprint(&test_key().verifying_key()));
    assert_eq!(folder.manifest.services["moses"].qos_target_ms, 10.0);
    assert_eq!(folder.manifest.models.b.qos_cap, Some(2.0));
}

/// One bit changed in any file is found, and the message names that file. Every byte of the signature, every 101st of the others.
#[test]
fn a_flipped_bit_is_named() {
    let keys = keys();
    let dir = write_folder(&good());
    for (name, data) in good() {
        let step = if name == SIGNATURE { 1 } else { 101 };
        for at in (0..data.len()).step_by(step).chain([data.len() - 1]) {
            let mut changed = data.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(dir.path().join(&name), &changed).unwrap();
            let e = Bundle::load(dir.path(), &keys, &Expect::default()).unwrap_err();
            assert_eq!(e.file, name, "byte {at}: {e}");
        }
        std::fs::write(dir.path().join(&name), &data).unwrap();
    }
    assert!(Bundle::load(dir.path(), &keys, &Expect::default()).is_ok(), "all changes undone");
}

/// One bit changed anywhere in the tar is found: headers, padding, data, end. The message names the member there.
#[test]
fn a_flipped_bit_in_the_tar_is_named() {
    let keys = keys();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tar");
    let mut tar = to_tar(&good());
    let members: Vec<&str> = [MANIFEST, SIGNATURE].into_iter().chain(good().into_keys().map(|k| -> &str { k.leak() })).collect();
    // Where each member begins, header included.
    let mut from = 0;
    let mut spans = Vec::new();
    for name in members.iter().enumerate().filter(|(i, n)| *i < 2 || (**n != MANIFEST && **n != SIGNATURE)).map(|(_, n)| *n) {
        let to = from + 512 + good()[name].len().next_multiple_of(512);
        spans.push((from, to, name.to_string()));
        from = to;
    }
    spans.push((from, tar.len(), path.display().to_string()));
    let headers = spans.iter().flat_map(|(from, _, _)| (*from..*from + 512).step_by(5));
    let places: Vec<usize> = headers.chain((0..tar.len()).step_by(211)).collect();
    for at in places {
        tar[at] ^= 0x20;
        std::fs::write(&path, &tar).unwrap();
        let e = Bundle::load(&path, &keys, &Expect::default()).unwrap_err();
        let (_, _, name) = spans.iter().find(|(from, to, _)| (*from..*to).contains(&at)).unwrap();
        assert_eq!(e.file, *name, "byte {at}: {e}");
        tar[at] ^= 0x20;
    }
    for len in [0, 511, 512, 513, 9000, tar.len() - 1024, tar.len() - 1] {
        std::fs::write(&path, &tar[..len]).unwrap();
        assert!(Bundle::load(&path, &keys, &Expect::default()).is_err(), "cut at {len}");
    }
    tar.push(0);
    std::fs::write(&path, &tar).unwrap();
    assert!(Bundle::load(&path, &keys, &Expect::default()).is_err(), "a byte too many");
}

/// Missing files, files too many, links and folders are refused by name.
#[test]
fn neither_fewer_nor_more_files() {
    for name in good().keys() {
        let mut files = good();
        files.remove(name);
        let dir = write_folder(&files);
        let e = Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err();
        assert_eq!((e.file.as_str(), e.problem.as_str()), (name.as_str(), "is missing"));
    }
    for extra in ["models/d.safetensors", "run.sh", "services/evil.toml"] {
        let mut files = good();
        files.insert(extra.into(), b"x".to_vec());
        let dir = write_folder(&files);
        assert_eq!(Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err().file, extra);
    }
    let dir = write_folder(&good());
    std::fs::create_dir(dir.path().join("bin")).unwrap();
    assert_eq!(Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err().file, "bin");
    let dir = write_folder(&good());
    let link = dir.path().join("platform.toml");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(vectors().join("bundle-small/platform.toml"), &link).unwrap();
    assert_eq!(Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err().file, "platform.toml");
    let gone = Bundle::load(&dir.path().join("nowhere"), &keys(), &Expect::default()).unwrap_err();
    assert!(gone.file.ends_with("nowhere"), "{gone}");
}

/// The signature is one line in one form, by a trusted key.
#[test]
fn only_the_one_form_of_signature_by_a_trusted_key() {
    let line = String::from_utf8(good()[SIGNATURE].clone()).unwrap();
    let upper = line.to_uppercase().replace(&TAG.to_uppercase(), TAG);
    let forms = [
        String::new(),
        line.trim_end().to_string(),
        format!("{line}\n"),
        format!("{line}{line}"),
        format!(" {line}"),
        line.replace('\n', "\r\n"),
        line.replacen(' ', "  ", 1),
        line.replace("-v1", "-v2"),
        upper,
    ];
    for form in forms {
        let mut files = good();
        files.insert(SIGNATURE.into(), form.clone().into_bytes());
        let e = refused(&files);
        assert_eq!((e.file.as_str(), e.field.as_str()), (SIGNATURE, "form"), "{form:?}: {e}");
    }

    let stranger = SigningKey::from_bytes(&[7; 32]);
    let files = signed(good(), |m| m["signer"] = json!(fingerprint(&stranger.verifying_key())), &stranger);
    let e = refused(&files);
    assert!(e.file == SIGNATURE && e.problem.contains("is not trusted here") && e.remedy.contains("trusted"), "{e}");
    let dir = write_folder(&files);
    let trusting = TrustedKeys::from_keys(vec![stranger.verifying_key()]);
    assert!(Bundle::load(dir.path(), &trusting, &Expect::default()).is_ok(), "and a node that trusts the stranger loads it");
    assert!(Bundle::load(&vectors().join("bundle-small"), &trusting, &Expect::default()).is_err());
    let none = TrustedKeys::default();
    assert_eq!(Bundle::load(&vectors().join("bundle-small"), &none, &Expect::default()).unwrap_err().file, SIGNATURE);
}

/// A trusted signature does not make a wrong manifest right: each field is checked and named.
#[test]
fn a_signed_mistake_is_still_a_mistake() {
    type Change = fn(&mut Value);
    let cases: [(Kind, &str, Change); 32] = [
        (Kind::Field, "surprise", |m| m["surprise"] = json!(1)),
        (Kind::Field, "metrics", |m| drop(m.as_object_mut().unwrap().remove("metrics"))),
        (Kind::Field, "models.a.layers", |m| m["models"]["a"]["layers"][0][0] = json!(-32)),
        (Kind::Field, "models.a.inputs[0].note", |m| m["models"]["a"]["inputs"][0]["note"] = json!("new")),
        (Kind::Version, "format_version", |m| m["format_version"] = json!(5)),
        (Kind::Field, "serial", |m| m["format_version"] = json!(3)),
        (Kind::Field, "serial", |m| m["serial"] = json!(1_700_000_000)),
        (Kind::Inputs, "models.b.inputs.alloc_cores", |m| m["models"]["b"]["inputs"][6]["max"] = json!(37.0)),
        (Kind::Outputs, "models.a.outputs.oaa_ways", |m| m["models"]["a"]["outputs"][1]["offset"] = json!(20.5)),
        (Kind::Files, "files", |m| m["files"]["card.md"] = m["files"]["platform.toml"].clone()),
        (Kind::Field, "feature_set", |m| m["feature_set"] = json!("some")),
        (Kind::Field, "platform.cores", |m| m["platform"]["cores"] = json!(0.0)),
        (Kind::Field, "services.moses.qos_target_ms", |m| m["services"]["moses"]["qos_target_ms"] = json!(-1.0)),
        (Kind::Files, "files", |m| m["files"]["../platform.toml"] = m["files"]["platform.toml"].clone()),
        (Kind::Files, "files", |m| drop(m["files"].as_object_mut().unwrap().remove("services/moses.toml"))),
        (Kind::Field, "files.platform.toml.bytes", |m| m["files"]["platform.toml"]["bytes"] = json!(1u64 << 40)),
        (Kind::Field, "files.platform.toml.sha256", |m| m["files"]["platform.toml"]["sha256"] = json!("AB")),
        (Kind::Files, "models.a.file", |m| m["models"]["a"]["file"] = json!("models/b.safetensors")),
        (Kind::Files, "models.b.sha256", |m| m["models"]["b"]["sha256"] = m["models"]["a"]["sha256"].clone()),
        (Kind::Layers, "models.a.layers", |m| m["models"]["a"]["layers"][1] = json!([64, 33])),
        (Kind::Layers, "models.a.layers", |m| m["models"]["a"]["layers"][3] = json!([6, 32])),
        (Kind::Inputs, "models.a.inputs.ipc", |m| m["models"]["a"]["inputs"][0]["max"] = json!(0.0)),
        (Kind::Inputs, "models.b.inputs.ipc", |m| m["models"]["b"]["inputs"][1]["name"] = json!("ipc")),
        (Kind::Field, "models.b.outputs[0].scale", |m| m["models"]["b"]["outputs"][0]["scale"] = json!(0.0)),
        (Kind::Field, "models.a.activation", |m| m["models"]["a"]["activation"] = json!("tanh")),
        (Kind::Field, "models.c.output_activation", |m| m["models"]["c"]["output_activation"] = json!("linear")),
        (Kind::Actions, "models.c.actions", |m| m["models"]["c"]["actions"][0] = json!("reboot")),
        (Kind::Field, "models.c.available_actions: length", |m| m["models"]["c"]["available_actions"] = json!([])),
        (Kind::Field, "models.c.hyperparameters.tau", |m| m["models"]["c"]["hyperparameters"]["tau"] = json!(1.5)),
        (Kind::Field, "models.c.hyperparameters.gamma", |m| {
            drop(m["models"]["c"]["hyperparameters"].as_object_mut().unwrap().remove("gamma"));
        }),
        (Kind::Layers, "models.c.critic_layers", |m| m["models"]["c"]["critic_layers"][0] = json!([32, 8])),
        (Kind::Signer, "signer", |m| m["signer"] = json!("0".repeat(64))),
    ];
    for (kind, field, change) in cases {
        let files = signed(good(), change, &test_key());
        let dir = write_folder(&files);
        let e = Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err();
        assert_eq!((e.kind, e.file.as_str(), e.field.as_str()), (kind, MANIFEST, field), "{e}");
    }
    // The way of changing is not what is refused.
    assert!(load(&signed(good(), |_| {}, &test_key())).is_ok());
}

/// A folder without a signature may be somebody's data: it is told to be no bundle, and nothing in it to be removed.
#[test]
fn a_folder_that_is_no_bundle() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("server-2/shards")).unwrap();
    std::fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    let e = Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err();
    assert!(e.file == SIGNATURE && e.remedy.contains("not a bundle") && !e.remedy.contains("emove"), "{e}");
}

/// However large single weights are, no input makes a value that f32 cannot hold: 1e20 * 1e20 could not be added up any more.
#[test]
fn weights_that_let_a_network_overflow_are_refused() {
    use safetensors::tensor::TensorView;
    let with = |value: f32| {
        let mut files = good();
        let old = files["models/b.safetensors"].clone();
        let read = SafeTensors::deserialize(&old).unwrap();
        let filled: Vec<_> =
            read.tensors().into_iter().map(|(n, v)| (n, v.shape().to_vec(), value.to_le_bytes().repeat(v.data().len() / 4))).collect();
        let views = filled.iter().map(|(n, shape, data)| (n, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
        files.insert("models/b.safetensors".into(), safetensors::serialize(views, None).unwrap());
        load(&signed(files, |_| {}, &test_key()))
    };
    assert!(with(1.0).is_ok());
    let e = with(1e20).unwrap_err();
    assert_eq!((e.kind, e.file.as_str(), e.field.as_str()), (Kind::Weights, "models/b.safetensors", "layers.1"), "{e}");
}

/// What is no plain file is refused and not waited for, and a folder is not read before it is known to be a bundle's.
#[test]
fn pipes_and_foreign_files_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("b.tar");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        let e = Bundle::load(path, &keys(), &Expect::default()).unwrap_err();
        assert!(e.kind == Kind::Unreadable && e.problem.contains("plain file"), "{e}");
    }
    assert_eq!(read_file(&pipe, "x", 1, Links::Refuse).unwrap_err().kind, Kind::Unreadable);
    let folder = write_folder(&good());
    // Sparse: it would not fit into a bundle, and is not opened.
    std::fs::File::create(folder.path().join("services/huge.toml")).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(Bundle::load(folder.path(), &keys(), &Expect::default()).unwrap_err().kind, Kind::Extra);
}

/// Weights are checked tensor by tensor: missing, wrong shape, not finite, one too many, no safetensors file at all.
#[test]
fn weights_are_checked_by_name() {
    use safetensors::tensor::TensorView;
    type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut files = good();
        let old = files["models/c.safetensors"].clone();
        let read = SafeTensors::deserialize(&old).unwrap();
        let mut tensors: Tensors = read.tensors().into_iter().map(|(n, v)| (n, (v.shape().to_vec(), v.data().to_vec()))).collect();
        change(&mut tensors);
        let views = tensors.iter().map(|(n, (shape, data))| (n, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
        files.insert("models/c.safetensors".into(), safetensors::serialize(views, None).unwrap());
        load(&signed(files, |_| {}, &test_key()))
    };
    assert!(with(&|_| {}).is_ok());
    let name = "critic.layers.1.bias";
    let put = |at: usize, v: f32| {
        move |t: &mut Tensors| t.get_mut("critic.layers.1.bias").unwrap().1[at * 4..at * 4 + 4].copy_from_slice(&v.to_le_bytes())
    };
    type Case<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Tensors));
    let cases: [Case; 6] = [
        (name, "not finite", &put(63, f32::NAN)),
        (name, "not finite", &put(0, f32::INFINITY)),
        (name, "is missing", &|t| drop(t.remove("critic.layers.1.bias"))),
        (name, "the manifest says F32 [64]", &|t| t.get_mut("critic.layers.1.bias").unwrap().0 = vec![8, 8]),
        ("actor.layers.0.weight", "the manifest says F32 [32, 8]", &|t| t.get_mut("actor.layers.0.weight").unwrap().0 = vec![8, 32]),
        ("extra", "not named by the manifest", &|t| drop(t.insert("extra".into(), (vec![1], vec![0; 4])))),
    ];
    for (tensor, problem, change) in cases {
        let e = with(change).unwrap_err();
        assert_eq!((e.file.as_str(), e.field), ("models/c.safetensors", format!("tensor {tensor}")));
        assert!(e.problem.contains(problem), "{}", e.problem);
    }
    let mut files = good();
    files.insert("models/a.safetensors".into(), b"\xff\xff\xff\xff\xff\xff\xff\x7f{}".to_vec());
    let e = refused(&signed(files, |_| {}, &test_key()));
    assert_eq!((e.file.as_str(), e.field.as_str()), ("models/a.safetensors", "safetensors"));
    let mut files = good();
    files.insert("platform.toml".into(), b"ways = ".to_vec());
    let e = refused(&signed(files, |_| {}, &test_key()));
    assert_eq!((e.kind, e.file.as_str(), e.field.as_str()), (Kind::Profile, "platform.toml", "line 1"));
    assert!(e.problem.contains("is `ways = `, the manifest says `core_step = 1.0`"), "{e}");
}

/// A bundle for another host is refused, with both sides in the message.
#[test]
fn a_bundle_for_another_host_is_refused() {
    let ours = Expect::platform(&Platform::regular("any name", 18, 2, 20, 2.25)).feature_set("full");
    let at = vectors().join("bundle-small");
    assert!(Bundle::load(&at, &keys(), &ours).is_ok());
    let others = [
        ("feature_set", ours.clone().feature_set("no-pmu"), "no-pmu"),
        ("platform.cores", Expect::platform(&Platform::regular("s2", 32, 2, 20, 2.25)), "64"),
        ("platform.ways", Expect::platform(&Platform::regular("s3", 18, 2, 11, 2.25)), "11"),
        ("platform.mb_per_way", Expect::platform(&Platform::regular("s4", 18, 2, 20, 3.25)), "3.25"),
        ("platform.core_step", Expect { core_step: Some(0.1), ..Expect::default() }, "0.1"),
    ];
    for (field, expect, ours) in others {
        let e = Bundle::load(&at, &keys(), &expect).unwrap_err();
        assert_eq!((e.file.as_str(), e.field.as_str()), (MANIFEST, field));
        assert!(e.problem.contains(ours) && e.problem.contains("this host ") && !e.remedy.is_empty(), "{e}");
    }
    // What this machine has is not at fault where the platform is virtual, and data of the bundle's own platform would not help.
    let e = Bundle::load(&at, &keys(), &Expect::virtual_platform(&Platform::regular("s2", 32, 2, 20, 2.25))).unwrap_err();
    assert!(e.problem.contains("the virtual platform `s2` has 64") && e.remedy.starts_with("Name the platform that it is for"), "{e}");
    assert!(e.remedy.contains("from data of `s2`"), "{e}");
}

/// Keys: a folder without any, a file that is none, and one file given by its path.
#[test]
fn keys_are_read_or_named() {
    let dir = tempfile::tempdir().unwrap();
    let e = TrustedKeys::load(dir.path()).unwrap_err();
    assert!(e.problem.contains("no *.pub.pem") && !e.remedy.is_empty(), "{e}");
    assert!(TrustedKeys::load(&dir.path().join("nowhere")).is_err());
    std::fs::write(dir.path().join("x.pub.pem"), "nonsense").unwrap();
    assert!(TrustedKeys::load(dir.path()).unwrap_err().file.ends_with("x.pub.pem"));
    let weak = format!("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA{}=\n-----END PUBLIC KEY-----\n", "A".repeat(43));
    std::fs::write(dir.path().join("x.pub.pem"), weak).unwrap();
    assert!(TrustedKeys::load(dir.path()).unwrap_err().problem.contains("signs for everybody"));
    let one = TrustedKeys::load(&vectors().join("keys/trusted/TEST-ONLY.pub.pem")).unwrap();
    assert!(Bundle::load(&vectors().join("bundle-small"), &one, &Expect::default()).is_ok());
}

/// A file that is no public key is named for what it is, and no remedy would have it, or a key that was given, overwritten.
#[test]
fn a_wrong_key_file_is_named_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, data: &[u8]| std::fs::write(dir.path().join(name), data).unwrap();
    put("notes.txt", b"to do: keys");
    put("binary", &[0xff; 64]);
    put("large", &vec![b'x'; 1 << 17]);
    put("rsa.pem", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n");
    std::fs::copy(vectors().join("keys/TEST-ONLY-signing.pem"), dir.path().join("own.pem")).unwrap();
    let cases = [
        ("notes.txt", "is no key"),
        ("binary", "is no text"),
        ("large", "a larger file"),
        ("rsa.pem", "is no Ed25519"),
        ("own.pem", "is a private key"),
        ("none", "no such file or folder"),
    ];
    for (name, problem) in cases {
        let e = TrustedKeys::load(&dir.path().join(name)).unwrap_err();
        assert!(e.file.ends_with(name) && e.problem.contains(problem), "{e}");
        assert!(e.remedy.starts_with("Give the signer's .pub.pem"), "{e}");
    }
    let stranger = SigningKey::from_bytes(&[9; 32]);
    let file = dir.path().join("given.pub.pem");
    put("given.pub.pem", stranger.verifying_key().to_public_key_pem(LineEnding::LF).unwrap().as_bytes());
    for (at, remedy) in [(file.as_path(), "in place of the one given now"), (dir.path(), "copy its .pub.pem to ")] {
        let e = Bundle::load(&vectors().join("bundle-small"), &TrustedKeys::load(at).unwrap(), &Expect::default()).unwrap_err();
        assert!(e.remedy.contains(remedy) && !e.remedy.contains("given.pub.pem"), "{e}");
    }
}

/// The files of the bundle that has all that one may hold.
fn whole() -> Files {
    let mut tar = Tar::open(&vectors().join("bundle-whole.tar")).unwrap();
    let mut take = |name: &str| tar.take(name, MAX_FILE_BYTES).unwrap();
    let (manifest, signature) = (take(MANIFEST), take(SIGNATURE));
    let named: Value = serde_json::from_slice(&manifest).unwrap();
    let mut files = Files::new();
    for name in named["files"].as_object().unwrap().keys() {
        files.insert(name.clone(), take(name));
    }
    tar.end().unwrap();
    files.insert(MANIFEST.into(), manifest);
    files.insert(SIGNATURE.into(), signature);
    files
}

/// OSML's models and the card load, from folder and tar; a bundle without them has neither.
#[test]
fn a_whole_bundle_loads() {
    let b = load(&whole()).unwrap();
    let osml = b.osml.as_ref().unwrap();
    let sizes = [&osml.a, &osml.ap, &osml.b, &osml.bp].map(|m| m.mlp.sizes().to_vec());
    assert_eq!(sizes, [vec![9, 40, 40, 40, 5], vec![12, 40, 40, 40, 5], vec![13, 40, 40, 40, 6], vec![14, 40, 40, 40, 1]]);
    assert_eq!(osml.c.policy().sizes(), [8, 30, 30, 30, dqn::ACTIONS]);
    assert!(osml.c.available.iter().all(|a| *a));
    assert_eq!((osml.c.hyper.gamma, osml.c.hyper.copy_every, osml.latency_cap), (0.9, 100, 1000.0));
    assert!(b.card.unwrap().starts_with("# Test fixture"));
    let small = load(&good()).unwrap();
    assert!(small.osml.is_none() && small.card.is_none() && small.manifest.format_version == 1);
}

/// Intervals and the strangeness score load, and what the lab computes the node computes (tests/vectors/doubt.json, pipelines/vectors.py).
/// A bundle without them has neither.
#[test]
fn doubt_is_what_the_lab_says() {
    let tar = vectors().join("bundle-doubt.tar");
    let b = Bundle::load(&tar, &keys(), &Expect::default()).unwrap();
    assert_eq!(b.manifest.format_version, 4);
    let told: Value = serde_json::from_str(&std::fs::read_to_string(vectors().join("doubt.json")).unwrap()).unwrap();
    let mut scratch = crate::Scratch::default();
    for (letter, model) in [("a", &b.a), ("b", &b.b)] {
        let names = |field: &str| -> Vec<String> { serde_json::from_value(told[letter][field].clone()).unwrap() };
        assert_eq!(names("outputs"), model.outputs.iter().map(|o| o.name.clone()).collect::<Vec<_>>());
        let inputs = names("inputs");
        let cases = told[letter]["cases"].as_array().unwrap();
        assert!(cases.len() >= 20);
        for case in cases {
            let raw: Vec<f64> = serde_json::from_value(case["raw"].clone()).unwrap();
            let value = |name: &str| inputs.iter().position(|n| n == name).map(|k| raw[k]);
            let want: Vec<f64> = serde_json::from_value(case["outputs"].clone()).unwrap();
            let got = model.predict_by(value, &mut scratch).unwrap();
            for ((got, want), output) in got.iter().zip(&want).zip(&model.outputs) {
                assert!((got - want).abs() <= 1e-5 * output.scale, "{}: {got}, want {want}", output.name);
            }
            match (model.strangeness(value, &mut scratch), case["strangeness"].as_f64()) {
                (Some(got), Some(want)) => assert!((got - want).abs() <= 1e-5 * want.max(1.0), "{got}, want {want}"),
                (got, want) => assert_eq!(got, want, "{letter}"),
            }
        }
    }
    let small = load(&good()).unwrap();
    assert_eq!(small.a.strangeness(|_| Some(1.0), &mut scratch), None);
}

/// On a machine without cache partitioning no action of OSML's Model-C moves ways.
#[test]
fn without_ways_no_action_moves_them() {
    let mut files = whole();
    let mut manifest: Value = serde_json::from_slice(&files[MANIFEST]).unwrap();
    manifest["platform"]["ways"] = json!(0);
    for (model, at) in MODELS.map(|m| (m, m.strip_prefix("osml_").map_or_else(|| format!("/models/{m}"), |k| format!("/models/osml/{k}"))))
    {
        let file = format!("models/{model}.safetensors");
        let data = without_cache(manifest.pointer_mut(&at).unwrap(), &files[&file]);
        files.insert(file, data);
    }
    let actions = manifest["models"]["c"]["available_actions"].as_array_mut().unwrap();
    actions.retain(|a| !a.as_str().unwrap().starts_with("ways"));
    let platform: crate::manifest::PlatformLimits = serde_json::from_value(manifest["platform"].clone()).unwrap();
    files.insert("platform.toml".into(), platform.profile().into_bytes());
    files.insert(MANIFEST.into(), serde_json::to_vec(&manifest).unwrap());
    let c = load(&signed(files, |_| {}, &test_key())).unwrap().osml.unwrap().c;
    let open: Vec<usize> = (0..dqn::ACTIONS).filter(|&a| c.available[a]).collect();
    assert_eq!(open, (-3..=3).map(|cores| dqn::action(cores, 0).unwrap()).collect::<Vec<_>>());
}

/// A model whose inputs and outputs have no cache and no ways, with weights of 1/8: what it says does not matter here.
fn without_cache(entry: &mut Value, weights: &[u8]) -> Vec<u8> {
    use safetensors::tensor::TensorView;
    for list in ["inputs", "outputs"] {
        if let Some(l) = entry.get_mut(list).and_then(Value::as_array_mut) {
            l.retain(|e| !["cache_mb", "ways"].iter().any(|end| e["name"].as_str().unwrap().ends_with(end)));
        }
    }
    let inputs = entry["inputs"].as_array().unwrap().len();
    let outputs = entry.get("outputs").map(|o| o.as_array().unwrap().len());
    for (list, more) in [("layers", 0), ("critic_layers", crate::ddpg::ACTIONS)] {
        if let Some(layers) = entry.get_mut(list).and_then(Value::as_array_mut) {
            layers[0][1] = json!(inputs + more);
            if let (Some(n), Some(last)) = (outputs, layers.last_mut()) {
                last[0] = json!(n);
            }
        }
    }
    let shape = |name: &str| {
        let list = if name.starts_with("critic") { "critic_layers" } else { "layers" };
        let n: usize = name.split("layers.").nth(1).unwrap()[..1].parse().unwrap();
        let of = |i: usize| entry[list][n][i].as_u64().unwrap() as usize;
        if name.ends_with("bias") {
            vec![of(0)]
        } else {
            vec![of(0), of(1)]
        }
    };
    let names: Vec<String> = SafeTensors::deserialize(weights).unwrap().names().into_iter().map(String::from).collect();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> =
        names.into_iter().map(|n| (n.clone(), shape(&n), 0.125f32.to_le_bytes().repeat(shape(&n).iter().product()))).collect();
    let views = tensors.iter().map(|(n, shape, data)| (n, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    safetensors::serialize(views, None).unwrap()
}

/// A bit changed in OSML's models or the card is found, each of these files is needed, and a trusted signature does not make
/// mistakes in them right.
#[test]
fn osmls_models_and_the_card_are_checked() {
    let files = whole();
    let dir = write_folder(&files);
    let new: Vec<&String> = files.keys().filter(|n| n.starts_with("models/osml") || *n == CARD).collect();
    assert_eq!(new.len(), 6);
    for name in new {
        let data = &files[name];
        for at in (0..data.len()).step_by(977).chain([data.len() - 1]) {
            let mut changed = data.clone();
            changed[at] ^= 1 << (at % 8);
            std::fs::write(dir.path().join(name), &changed).unwrap();
            assert_eq!(Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err().file, *name, "byte {at}");
        }
        std::fs::remove_file(dir.path().join(name)).unwrap();
        let e = Bundle::load(dir.path(), &keys(), &Expect::default()).unwrap_err();
        assert_eq!((e.file.as_str(), e.problem.as_str()), (name.as_str(), "is missing"));
        std::fs::write(dir.path().join(name), data).unwrap();
    }
    type Change = fn(&mut Value);
    let cases: [(Kind, &str, Change); 18] = [
        (Kind::Field, "models.osml", |m| m["format_version"] = json!(1)),
        (Kind::Field, "models.osml.bp", |m| drop(m["models"]["osml"].as_object_mut().unwrap().remove("bp"))),
        (Kind::Files, "files", |m| drop(m["models"].as_object_mut().unwrap().remove("osml"))),
        (Kind::Files, "files", |m| drop(m["files"].as_object_mut().unwrap().remove("models/osml_ap.safetensors"))),
        (Kind::Files, "models.osml.a.file", |m| m["models"]["osml"]["a"]["file"] = json!("models/a.safetensors")),
        (Kind::Files, "models.osml.b.sha256", |m| m["models"]["osml"]["b"]["sha256"] = json!("0".repeat(64))),
        (Kind::Layers, "models.osml.ap.layers", |m| m["models"]["osml"]["ap"]["layers"][1] = json!([40, 41])),
        (Kind::Inputs, "models.osml.b.inputs.qos_slowdown", |m| m["models"]["osml"]["b"]["inputs"][12]["max"] = json!(1.5)),
        (Kind::Outputs, "models.osml.b.outputs.cores_dominated_cores", |m| {
            m["models"]["osml"]["b"]["outputs"][2]["offset"] = json!(-1.0);
        }),
        (Kind::Inputs, "models.osml.bp.inputs.expected_cores", |m| m["models"]["osml"]["bp"]["inputs"][9]["max"] = json!(99.0)),
        (Kind::Field, "models.osml.bp.output_activation", |m| m["models"]["osml"]["bp"]["output_activation"] = json!("softmax")),
        (Kind::Field, "models.osml.c.activation", |m| m["models"]["osml"]["c"]["activation"] = json!("tanh")),
        (Kind::Field, "models.osml.c.reach", |m| m["models"]["osml"]["c"]["reach"] = json!(4)),
        (Kind::Field, "models.osml.c.latency_cap", |m| m["models"]["osml"]["c"]["latency_cap"] = json!(0.0)),
        (Kind::Layers, "models.osml.c.layers", |m| m["models"]["osml"]["c"]["layers"][3] = json!([7, 30])),
        (Kind::Field, "models.osml.c.hyperparameters.copy_every", |m| {
            m["models"]["osml"]["c"]["hyperparameters"]["copy_every"] = json!(0.0);
        }),
        (Kind::Field, "models.osml.c.hyperparameters.batch", |m| m["models"]["osml"]["c"]["hyperparameters"]["batch"] = json!(200.5)),
        (Kind::Hyperparameters, "models.osml.c.hyperparameters.replay", |m| {
            m["models"]["osml"]["c"]["hyperparameters"]["replay"] = json!(10.0);
        }),
    ];
    for (kind, field, change) in cases {
        let e = refused(&signed(whole(), change, &test_key()));
        assert_eq!((e.kind, e.file.as_str(), e.field.as_str()), (kind, MANIFEST, field), "{e}");
    }
    let mut other = whole();
    other.insert("models/osml_c.safetensors".into(), other["models/osml_a.safetensors"].clone());
    let e = refused(&signed(other, |_| {}, &test_key()));
    assert_eq!((e.file.as_str(), e.field.as_str()), ("models/osml_c.safetensors", "tensor policy.layers.0.weight"));
    for (text, field, problem) in [
        (vec![b'x'; rules().limits.card_bytes + 1], "size", "is 262145 bytes"),
        (b"caf\xe9".to_vec(), "text", "is not UTF-8"),
        (b"colour: \x1b[31m".to_vec(), "text", "U+001B"),
        ("next line: \u{85}".into(), "text", "U+0085"),
    ] {
        let mut files = whole();
        files.insert(CARD.into(), text);
        let e = refused(&signed(files, |_| {}, &test_key()));
        assert_eq!((e.file.as_str(), e.field.as_str()), (CARD, field));
        assert!(e.problem.contains(problem), "{e}");
    }
    let mut longest = whole();
    longest.insert(CARD.into(), vec![b'x'; rules().limits.card_bytes]);
    assert!(load(&signed(longest, |_| {}, &test_key())).is_ok());
}
