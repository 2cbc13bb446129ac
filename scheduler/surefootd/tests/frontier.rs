//! The frontier strategy: a slice of `examples/frontier`, and as a process.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;
#[path = "../examples/frontier/trial.rs"]
#[allow(dead_code)] // one kind of noise is for the benchmark only
mod trial;

use common::{ok, path, run, surefootd};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use trial::Noise;

fn slice(repeats: u32) -> String {
    format!(
        "name = \"slice\"\nstrategy = \"frontier\"\n[targets]\nvirtual = [\"server-1\"]\n[sweep]\nservices = [\"moses\", \"sphinx\"]\n\
         threads = [8, 20, 36]\n[sampling]\nsamples = 30\nrepeats = {repeats}\n"
    )
}

/// 2 services x 5 loads x 3 thread counts: the labels of all 720 cells from a twentieth of them.
#[test]
fn labels_of_every_cell_from_a_twentieth() {
    for (service, o) in trial::run("server-1", &slice(1), Noise::None) {
        assert_eq!((o.planes, o.same, o.bounded), (15, 15, 0), "{service}: {o:?}");
        assert!(o.cases * 20 <= o.grid, "{service}: {} of {} cases", o.cases, o.grid);
    }
}

/// With noise a cell is measured until its verdict is decided, and only then: the labels beat those of every cell measured once.
#[test]
fn noise_costs_cases_where_they_matter() {
    let all = trial::run("server-1", &slice(50), Noise::OfEachReading(0.05));
    let sum = all.into_values().fold(trial::Outcome::default(), trial::Outcome::add);
    assert_eq!(sum.planes, 30);
    assert!(sum.planes - sum.same <= sum.exhaustive_wrong, "{sum:?}");
    assert!(sum.same >= 27, "{sum:?}");
}

const CAMPAIGN: &str = r#"
name = "chains"
strategy = "frontier"
seed = 7
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "login", "ads"]
threads = [8, 36]
neighbours = { count = [0, 2], draws = 2 }
[sampling]
interval_ms = 1000
samples = 3
repeats = 2
"#;

fn campaign(dir: &Path, text: &str) -> PathBuf {
    let file = dir.join("campaign.toml");
    fs::write(&file, text).unwrap();
    file
}

fn sweep(file: &Path, out: &Path, more: &[&str]) -> std::process::Output {
    run(&[&["sweep", path(file), "--server", "virtual:server-1", "--out", path(out)], more].concat())
}

fn everything(out: &Path) -> (Vec<(String, Vec<u8>)>, String) {
    let mut shards: Vec<(String, Vec<u8>)> = fs::read_dir(out.join("shards"))
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap()))
        .collect();
    shards.sort();
    (shards, fs::read_to_string(out.join("journal.jsonl")).unwrap())
}

/// Every planned case is measured, infeasible or skipped, no case is there twice, and a case is the one of the exhaustive campaign.
#[test]
fn states_add_up_and_threads_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let out = dir.path().join("one");
    assert!(sweep(&file, &out, &["--threads", "1"]).status.success());
    let m: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    let n = |k: &str| m["cases"][k].as_u64().unwrap_or(0);
    // (5 + 5 + 3 loads) x 2 thread counts x 3 draws x 720 cells x 2 repeats.
    assert_eq!(n("planned"), 13 * 2 * 3 * 720 * 2);
    let measured = n("measured") + n("overloaded");
    assert_eq!(measured + n("client_limited") + n("failed") + n("infeasible") + n("skipped"), n("planned"));
    assert!(m["complete"] == true && measured * 20 < n("skipped") && n("infeasible") > 0, "{}", m["cases"]);
    assert_eq!((m["axes"]["cores"].as_array().unwrap().len(), m["axes"]["ways"].as_array().unwrap().len()), (36, 20));
    let (shards, journal) = everything(&out);
    let ids: Vec<String> = journal.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["case_id"].to_string()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    let again = dir.path().join("three");
    assert!(sweep(&file, &again, &["--threads", "3"]).status.success());
    assert!(everything(&again) == (shards, journal));
}

/// Cut off anywhere and with shards taken away, a resumed sweep ends as an undisturbed one, to the last bit.
#[test]
fn resumes() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let out = dir.path().join("out");
    assert!(sweep(&file, &out, &[]).status.success());
    let want = everything(&out);
    let sorted = |text: &str| text.lines().map(String::from).collect::<BTreeSet<String>>();
    for (cut, gone) in [(1, 0), (want.1.len() / 2, 1), (want.1.len() - 10, 0), (0, 2)] {
        fs::write(out.join("journal.jsonl"), &want.1[..want.1.len() - cut]).unwrap();
        want.0.iter().take(gone).for_each(|(name, _)| fs::remove_file(out.join("shards").join(name)).unwrap());
        let done = sweep(&file, &out, &["--resume"]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let got = everything(&out);
        assert!(got.0 == want.0 && sorted(&got.1) == sorted(&want.1), "{cut} bytes cut, {gone} shards gone");
    }
}

/// A plan of a search counts the grid and says that a small part of it will be measured.
#[test]
fn plan() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), "--server", "virtual:server-1", "--plan", "--json"])).unwrap();
    assert_eq!((&plan["strategy"], plan["cases"].as_u64()), (&Value::from("frontier"), Some(13 * 2 * 3 * 720 * 2)));
    let (to_measure, infeasible) = (plan["to_measure"].as_u64().unwrap(), plan["infeasible"]["cases"].as_u64().unwrap());
    assert!(to_measure * 10 < plan["cases"].as_u64().unwrap() - infeasible, "{plan}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a plan writes nothing");
    let text = surefootd().args(["sweep", path(&file), "--server", "virtual:server-1", "--plan"]).output().unwrap();
    assert!(String::from_utf8_lossy(&text.stdout).contains("to measure: about"));
}
