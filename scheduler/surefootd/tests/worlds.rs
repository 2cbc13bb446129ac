//! `surefootd world draw` and `surefootd eval --worlds`, as processes.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, one_line, path, run, surefootd};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A folder's files by their path in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(dir) = folders.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let at = entry.unwrap().path();
            if at.is_dir() {
                folders.push(at);
            } else {
                found.insert(at.strip_prefix(folder).unwrap().to_path_buf(), fs::read(&at).unwrap());
            }
        }
    }
    found
}

fn draw(range: &str, seed: &str, out: &Path) {
    ok(&["world", "draw", "--range", range, "--seed", seed, "--out", path(out)]);
}

/// Cells of rows.csv by column, without the measured ones and those named. The one quoted cell holds commas and doubled quotes only.
fn rows(out: &Path, without: &[&str]) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(out.join("rows.csv")).unwrap();
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let cells = |line: &str| {
        let (mut cells, mut cell, mut quoted) = (vec![], String::new(), false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(std::mem::take(&mut cell)),
                c => cell.push(c),
            }
        }
        cells.push(cell);
        let named = names.iter().map(|n| n.to_string()).zip(cells);
        named.filter(|(n, _)| !n.starts_with("decision_us") && !without.contains(&n.as_str())).collect()
    };
    lines.map(cells).collect()
}

/// A world is a folder, the same bytes each time, all there or not there; world.json has the digest of every file.
#[test]
fn a_world_is_drawn_into_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("above/b"));
    draw("tune", "7", &a);
    draw("tune", "7", &b);
    let drawn = files(&a);
    assert_eq!(drawn, files(&b));
    let other = dir.path().join("c");
    draw("test", "7", &other);
    assert!(files(&other).keys().all(|name| name.ends_with("campaign.toml") || name.ends_with("world.json") || !drawn.contains_key(name)));
    let manifest: Value = serde_json::from_slice(&drawn[Path::new("world.json")]).unwrap();
    assert_eq!((&manifest["range"], &manifest["number"], &manifest["edition"]), (&"tune".into(), &7.into(), &1.into()));
    assert_eq!(manifest["counts"], serde_json::json!({ "platforms": 1, "services": 8, "jobs": 3, "workloads": 2 }));
    assert!(manifest["host_seed"].as_u64().is_some());
    let said = manifest["files"].as_object().unwrap();
    for (name, bytes) in drawn.iter().filter(|(name, _)| !name.ends_with("world.json")) {
        let digest: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(said[name.to_str().unwrap()], Value::from(digest), "{}", name.display());
    }
    assert_eq!(said.len(), drawn.len() - 1);
    // Nothing is replaced, not even an empty folder; nothing else is left beside it.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for there in [&a, &empty] {
        let (code, says) = one_line(&run(&["world", "draw", "--range", "tune", "--seed", "8", "--out", path(there)]));
        assert!(code == 2 && says.contains(&format!("--out {}: is there already", path(there))), "{says}");
    }
    assert_eq!(files(&a), drawn);
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a", "above", "c", "empty"]);
}

/// A folder that another program drew is another world, and what a killed draw left goes with the next one.
#[test]
fn folders_of_others_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("w");
    // No process has a number above the kernel's bound.
    let left = dir.path().join(".w.4194305.tmp");
    fs::create_dir(&left).unwrap();
    draw("tune", "7", &folder);
    assert!(!left.exists());
    let path_of = folder.join("world.json");
    let good: Value = serde_json::from_slice(&fs::read(&path_of).unwrap()).unwrap();
    let sweep = |out: &str| {
        let (campaign, out) = (folder.join("campaign.toml"), dir.path().join(out));
        let args = ["sweep", path(&campaign), "--server", "virtual:tune-7-p", "--profiles", path(&folder), "--plan"];
        run(&[&args[..], &["--out", path(&out)]].concat())
    };
    assert!(sweep("a").status.success());
    for (field, says) in [("edition", "world.json: edition: is 99, and this surefootd has"), ("plant", "world.json: plant: is 99")] {
        let mut other = good.clone();
        other[field] = 99.into();
        fs::write(&path_of, other.to_string()).unwrap();
        let (code, said) = one_line(&sweep("b"));
        assert!(code == 2 && said.contains(says) && said.contains("Draw the world again"), "{said}");
    }
    fs::write(&path_of, "garbage").unwrap();
    let (code, said) = one_line(&sweep("b"));
    assert!(code == 2 && said.contains("world.json: is no JSON"), "{said}");
}

/// What cannot be meant is one line with the remedy, and leaves nothing behind.
#[test]
fn what_cannot_be_meant_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let draw = ["world", "draw", "--out", path(&out)];
    let eval = ["eval", "--policies", "parties-be", "--out", path(&out)];
    let cases: &[(&[&str], &[&str], &str)] = &[
        (&draw, &["--range", "exam", "--seed", "1"], "possible values: train, tune, test"),
        (&draw, &["--range", "tune", "--seed", "0"], "0 is not in 1.."),
        (&draw, &["--range", "tune"], "--seed <N>"),
        (&["world"], &[], "Choose one of draw; see surefootd world --help"),
        (&["world", "drwa"], &[], "Did you mean \"draw\"?"),
        (&eval, &["--worlds", "exam:1"], "--worlds \"exam\" is no range of worlds. Write train, tune or test"),
        (&eval, &["--worlds", "tune:0"], "numbered from 1"),
        (&eval, &["--worlds", "tune:3..1"], "ends before it begins"),
        (&eval, &["--worlds", "tune:1..3", "test:1"], "test:1 is of the range test, and the worlds before it are of tune"),
        (&eval, &["--worlds", "tune:1..3", "tune:2"], "names tune:2 twice"),
        (&eval, &["--worlds", "tune:1", "--platform", "server-1"], "--platform: a world has a server of its own"),
        (&eval, &["--worlds", "tune:1", "--workloads", "workloads/sets/demo"], "--workloads: a world has workloads of its own"),
        (&eval, &["--worlds", "tune:1", "--profiles", "examples/new-rack"], "--profiles: a world has profiles of its own"),
        (&eval, &["--worlds", "tune:1..2", "--bundle", "/nowhere"], "--bundle: is of one platform, and 2 worlds have 2"),
        (&eval, &["--worlds", "tune:1", "--policies", "surefoot"], "\"surefoot\" needs a bundle"),
        (&eval, &["--worlds", "tune:1..2", "--bundles", "/nowhere"], "--bundles /nowhere: has no tune-1-p.tar. Make it with"),
        (
            &eval,
            &["--worlds", "tune:1", "--bundles", "/nowhere", "--harm", "no-models"],
            "--harm no-models: no model is asked. Leave --bundles",
        ),
        (&eval, &["--worlds", "tune:1", "--bundles", "/nowhere", "--bundle", "/nowhere"], "cannot be used with"),
        (&eval, &[], "--workloads"),
    ];
    for (command, more, says) in cases {
        let (code, said) = one_line(&run(&[command, *more].concat()));
        assert!(code == 2 && said.contains(says), "{more:?}: {said}");
        assert!(!out.exists() && fs::read_dir(dir.path()).unwrap().count() == 0, "{more:?}");
    }
}

/// Rows of worlds in memory are those of their folders, on any number of threads; each names its world, and eval.json the range.
#[test]
fn worlds_in_memory_are_those_in_folders() {
    let dir = tempfile::tempdir().unwrap();
    let policies = ["--policies", "unmanaged,equal-share", "--progress", "none"];
    let of = |name: &str, more: &[&str]| {
        let out = dir.path().join(name);
        ok(&[&["eval", "--out", path(&out)], &policies[..], more].concat());
        out
    };
    let one = of("one", &["--worlds", "tune:3..4", "--threads", "1"]);
    let two = of("two", &["--worlds", "tune:4", "tune:3", "--threads", "2"]);
    let all = rows(&one, &[]);
    assert_eq!(all, rows(&two, &[]));
    assert_eq!(fs::read(one.join("timelines.parquet")).unwrap(), fs::read(two.join("timelines.parquet")).unwrap());
    assert_eq!(
        all.iter().map(|r| r["world"].as_str()).collect::<Vec<_>>(),
        ["tune:3", "tune:3", "tune:3", "tune:3", "tune:4", "tune:4", "tune:4", "tune:4"]
    );
    let what: Value = serde_json::from_slice(&fs::read(one.join("eval.json")).unwrap()).unwrap();
    assert_eq!(what["worlds"], serde_json::json!({ "edition": 1, "range": "tune", "numbers": [3, 4] }));
    assert_eq!(what["platform"], Value::Null);
    let folder = dir.path().join("tune-4");
    draw("tune", "4", &folder);
    let files = of("files", &["--profiles", path(&folder), "--platform", "tune-4-p", "--workloads", path(&folder.join("workloads"))]);
    let mine: Vec<_> = rows(&one, &["world"]).into_iter().filter(|r| r["platform"] == "tune-4-p").collect();
    assert_eq!(rows(&files, &["world"]), mine);
    assert!(rows(&files, &[]).iter().all(|r| r["world"].is_empty()));
    // Nor are results of one range taken for those of another.
    let (code, says) = one_line(&run(&[&["eval", "--out", path(&one), "--worlds", "test:3..4"], &policies[..]].concat()));
    assert!(code == 2 && says.contains("there are results of another eval") && says.contains("worlds"), "{says}");
}

/// An evaluation of worlds that is killed goes on, and its rows are those of one that was not.
#[test]
fn worlds_are_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole"), dir.path().join("out"));
    let args = |out: &Path| -> Vec<String> {
        let all =
            ["eval", "--worlds", "train:1..3", "--policies", "equal-share,parties-be", "--threads", "1", "--progress", "none", "--out"];
        all.iter().copied().chain([path(out)]).map(String::from).collect()
    };
    let finish = |out: &Path| {
        let done = surefootd().args(args(out)).env("SUREFOOT_LOG", "info").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stderr).unwrap()
    };
    finish(&whole);
    let mut child = surefootd().args(args(&out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let journal = out.join("eval.partial.jsonl");
    let kept = || fs::read(&journal).map_or(0, |text| text.iter().filter(|b| **b == b'\n').count());
    let deadline = Instant::now() + Duration::from_secs(120);
    while kept() < 3 {
        assert!(Instant::now() < deadline, "two cases within two minutes");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let before = kept() - 1;
    let said = finish(&out);
    assert!(said.contains(&format!("{before} of 12 cases are taken from")), "{said}");
    assert_eq!(rows(&out, &[]), rows(&whole, &[]));
    assert_eq!(fs::read(out.join("timelines.parquet")).unwrap(), fs::read(whole.join("timelines.parquet")).unwrap());
}

/// The campaign of a drawn folder sweeps the world's services on its server.
#[test]
fn a_world_can_be_swept() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (dir.path().join("w"), dir.path().join("out"));
    draw("train", "2", &folder);
    let campaign = folder.join("campaign.toml");
    let all = ["sweep", path(&campaign), "--server", "virtual:train-2-p", "--profiles", path(&folder)];
    ok(&[&all[..], &["--plan"]].concat());
    // A part of it, which is measured as the rest is.
    ok(&[&all[..], &["--part", "1/20", "--out", path(&out), "--progress", "none"]].concat());
    let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    let cases = &manifest["cases"];
    assert!(cases["measured"].as_u64().unwrap() > 50, "{cases}");
    assert_eq!(cases["failed"], Value::from(0), "{cases}");
}
