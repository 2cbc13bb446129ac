//! `surefootd harvest-eval`, as a process.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, path, surefootd};
use serde_json::Value;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Rows, summary and what was run; the same bits on one thread and on two, and drawn workloads beside named ones.
#[test]
fn the_same_rows_on_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let out = |name: &str| dir.path().join(name);
    let run = |name: &str, threads: &str| {
        let out = out(name);
        let args = ["--primaries", "memcached@20000,indexserve", "--worlds", "tune:1..2", "--policies", "no-harvest,smartharvest"];
        let more =
            ["--duration-s", "1", "--seeds", "2", "--set", "learn.warm_windows=4", "--threads", threads, "--json", "--progress", "none"];
        let mut all = vec!["harvest-eval"];
        all.extend(args);
        all.extend(more);
        all.extend(["--out", path(&out)]);
        serde_json::from_str::<Value>(&ok(&all)).unwrap()
    };
    let (one, two) = (run("one", "1"), run("two", "2"));
    let text = |name: &str, file: &str| fs::read_to_string(out(name).join(file)).unwrap();
    assert_eq!(text("one", "rows.csv"), text("two", "rows.csv"));
    assert_eq!(one["cases"], two["cases"]);
    // Two policies and two seeds, of two VMs and of two worlds.
    assert_eq!(text("one", "rows.csv").lines().count(), 1 + 2 * 2 * (2 + 2));
    let cells = one["cases"].as_array().unwrap();
    let smart = cells.iter().find(|c| c["policy"] == "smartharvest" && c["experiment"] == "primaries").unwrap();
    assert!(smart["cores_lent"]["mean"].as_f64().unwrap() > 0.5, "{smart}");
    assert_eq!(smart["rise"].as_array().unwrap().len(), 2);
    let what: Value = serde_json::from_str(&text("one", "harvest.json")).unwrap();
    assert_eq!((what["settings"][0][0].as_str(), what["plant"].as_u64()), (Some("learn.warm_windows"), Some(2)));
    assert!(text("one", "summary.md").contains("| `smartharvest` | 3 |"));
    let left: Vec<_> = fs::read_dir(out("one")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

/// A command that is killed goes on where it was: the same rows as one that was left alone, and its journal is gone at the end.
#[test]
fn a_killed_command_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = |out: &str| {
        let out = dir.path().join(out);
        let mut all: Vec<String> =
            ["harvest-eval", "--primaries", "memcached@20000", "--policies", "no-harvest,smartharvest,prev-peak"].map(String::from).into();
        let more = ["--duration-s", "3", "--seeds", "4", "--threads", "1", "--progress", "none", "--out"].map(String::from);
        all.extend(more);
        all.push(path(&out).into());
        all
    };
    let text = |out: &str, file: &str| fs::read_to_string(dir.path().join(out).join(file)).unwrap();
    ok(&args("whole").iter().map(String::as_str).collect::<Vec<_>>());
    let partial = dir.path().join("cut/harvest.partial.jsonl");
    let mut child = surefootd().args(args("cut")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    // Its first line, and a run.
    while !fs::read_to_string(&partial).is_ok_and(|t| t.lines().count() >= 2) {
        assert!(begin.elapsed() < Duration::from_secs(120) && child.try_wait().unwrap().is_none(), "no run was kept");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = fs::read_to_string(&partial).unwrap().lines().count() - 1;
    assert!((1..12).contains(&kept), "{kept} of 12 runs were kept");
    ok(&args("cut").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(text("cut", "rows.csv"), text("whole", "rows.csv"));
    assert!(!partial.exists());
}
