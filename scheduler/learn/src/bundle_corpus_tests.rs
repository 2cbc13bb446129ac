//! The node's half of tests/vectors/bundles.jsonl, whose form is in tests/bundle_corpus.py. The lab's half is tests/test_bundle_corpus.py.

use super::tests::{keys, sign, test_key, vectors};
use super::*;
use crate::archive::to_tar;
use serde_json::Value;

fn content(v: &Value) -> Vec<u8> {
    let hex = |h: &str| h.as_bytes().chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect();
    v.as_str().map_or_else(|| hex(v["hex"].as_str().unwrap()), |s| s.as_bytes().to_vec())
}

fn named(v: &Value) -> Files {
    v.as_object().into_iter().flatten().map(|(n, c)| (n.clone(), content(c))).collect()
}

/// From the last to the first, so that places stay those of what was there before.
fn splice(data: &mut Vec<u8>, splices: &Value) {
    for s in splices.as_array().into_iter().flatten().rev() {
        let at = |i: usize| s[i].as_u64().unwrap() as usize;
        data.splice(at(0)..at(1), content(&s[2]));
    }
}

fn words<'a>(v: &'a Value, field: &str) -> Vec<&'a str> {
    v[field].as_array().into_iter().flatten().map(|n| n.as_str().unwrap()).collect()
}

fn files_of(v: &Value, base: &Files) -> Files {
    let mut files = base.clone();
    for (name, splices) in v["splices"].as_object().into_iter().flatten() {
        splice(files.get_mut(name).unwrap(), splices);
    }
    files.extend(named(&v["add"]));
    for name in words(v, "remove") {
        files.remove(name);
    }
    if v["sign"] != "keep" && files.contains_key(MANIFEST) {
        sign(&mut files, &test_key());
    }
    files
}

fn put_folder(v: &Value, files: &Files, at: &Path) {
    std::fs::create_dir_all(at).unwrap();
    for name in words(v, "folders") {
        std::fs::create_dir_all(at.join(name)).unwrap();
    }
    for (name, data) in files {
        std::fs::create_dir_all(at.join(name).parent().unwrap()).unwrap();
        std::fs::write(at.join(name), data).unwrap();
    }
    for (name, target) in v["links"].as_object().into_iter().flatten() {
        let _ = std::fs::remove_file(at.join(name));
        std::os::unix::fs::symlink(target.as_str().unwrap(), at.join(name)).unwrap();
    }
}

/// Every variant is taken, or refused for the reason that the lab's reader has as well; each refusal is one line.
#[test]
fn the_node_says_what_the_lab_says() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), keys());
    let mut bases: BTreeMap<String, Files> = BTreeMap::new();
    let (mut said, mut wrong) = (BTreeMap::<String, usize>::new(), vec![]);
    for (n, line) in std::fs::read_to_string(vectors().join("bundles.jsonl")).unwrap().lines().enumerate() {
        let v: Value = serde_json::from_str(line).unwrap();
        let base = v["base"].as_str().unwrap();
        if v["files"].is_object() {
            bases.insert(base.into(), named(&v["files"]));
            continue;
        }
        let files = files_of(&v, &bases[base]);
        let whole = files.contains_key(MANIFEST) && files.contains_key(SIGNATURE);
        let tar = whole && v["links"].is_null() && v["folders"].is_null() && files.keys().all(|n| n.is_ascii() && n.len() <= 100);
        for form in ["folder", "tar"] {
            let at = dir.path().join(format!("{n}-{form}"));
            match form {
                "tar" if tar => {
                    let mut data = to_tar(&files);
                    splice(&mut data, &v["tar"]);
                    std::fs::write(&at, data).unwrap();
                }
                "folder" if v["tar"].is_null() => put_folder(&v, &files, &at),
                _ => continue,
            }
            let answer = Bundle::load(&at, &keys, &Expect::default());
            let kind = answer.as_ref().map_or_else(|e| e.kind.word(), |_| "ok");
            let want = v["want"].as_str().or_else(|| v["want"][form].as_str()).unwrap();
            *said.entry(kind.into()).or_default() += 1;
            if let Some(e) = answer.err() {
                assert!(!e.to_string().contains(char::is_control) && !e.remedy.is_empty(), "{}: {e:?}", v["name"]);
                if kind != want {
                    wrong.push(format!("{} as {form}: want {want}, {kind}: {e}", v["name"]));
                }
            } else if want != "ok" {
                wrong.push(format!("{} as {form}: want {want}, it was taken", v["name"]));
            }
            let _ = if form == "tar" { std::fs::remove_file(&at) } else { std::fs::remove_dir_all(&at) };
        }
    }
    assert!(wrong.is_empty(), "{} of {said:?}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(said.values().sum::<usize>() > 4000 && said.len() > 20, "{said:?}");
}
