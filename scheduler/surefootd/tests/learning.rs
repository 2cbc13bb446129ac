//! On-line learning in the daemon, on a virtual server: experience survives a restart, and nothing about it stops the daemon.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{one_line, path, root, surefootd};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A minute of two services under osml-plus with the small test bundle; what it said of its learning at the end, and the lines of
/// its log that are about learning.
fn minute(dir: &Path, learning: &str) -> (Value, Vec<String>) {
    minute_of("osml-plus", "bundle-small", dir, learning)
}

fn command(policy: &str, bundle: &str, dir: &Path, learning: &str) -> Command {
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let config = dir.join("node.toml");
    let text = format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\n[learning]\nevery_ms = 100\n{learning}\n", path(&workload));
    fs::write(&config, text).unwrap();
    let vectors = root().join("tests/vectors");
    let (bundle, keys) = (vectors.join(bundle), vectors.join("keys/trusted"));
    let args = ["run", "--policy", policy, "--server", "virtual:server-1", "--config", path(&config), "--bundle", path(&bundle)];
    let mut command = surefootd();
    command.args(args).args(["--trust", path(&keys)]);
    command
}

fn minute_of(policy: &str, bundle: &str, dir: &Path, learning: &str) -> (Value, Vec<String>) {
    let out = command(policy, bundle, dir, learning).output().unwrap();
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{log}");
    let said: Value = serde_json::from_slice(&out.stdout).unwrap();
    let lines = log.lines().filter(|l| l.contains("learning: ")).map(String::from).collect();
    (said["learning"].clone(), lines)
}

const NAMED: &str = "experience = \"x.safetensors\"";

fn number(v: &Value, name: &str) -> u64 {
    v[name].as_u64().unwrap_or_else(|| panic!("{name}: {v}"))
}

/// What a run remembers is there in the next one, and is added to; a virtual server keeps nothing where no file is named.
#[test]
fn experience_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (none, _) = minute(dir.path(), "");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "node.toml alone");
    let (first, said) = minute(dir.path(), NAMED);
    assert_eq!((&first, said.len()), (&none, 0), "the same run, and nothing to warn of");
    assert_eq!(number(&first, "transitions_loaded"), 0);
    let transitions = number(&first, "transitions");
    assert!(transitions > 300 && number(&first, "steps") > 20, "{first}");
    let (second, _) = minute(dir.path(), NAMED);
    assert_eq!(number(&second, "transitions_loaded"), transitions);
    assert!(number(&second, "transitions") > transitions + 300, "{second}");
    let names: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A file that is cut off or spoilt is one warning that names it, and the run is one without experience; its own experience replaces that
/// file. One of something else is refused before anything is done, and stays.
#[test]
fn damaged_experience_is_a_warning_and_an_empty_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.safetensors");
    let (first, _) = minute(dir.path(), NAMED);
    let good = fs::read(&file).unwrap();
    let mut spoilt = good.clone();
    // An action becomes not a number. Values begin behind the header, whose length is the file's first eight bytes.
    let values = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let at = values + 4 * good[values..].chunks_exact(4).position(|v| v == 1.0f32.to_le_bytes()).unwrap();
    spoilt[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    for bytes in [&good[..good.len() / 2], &spoilt, b""] {
        fs::write(&file, bytes).unwrap();
        let (again, said) = minute(dir.path(), NAMED);
        assert_eq!(again, first);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(path(&file)) && said[0].contains("starts with no experience"), "{said:?}");
        assert_eq!(fs::read(&file).unwrap(), good);
    }
    for bytes in [&good[..3], b"no tensors here, but long enough to hold a header"] {
        fs::write(&file, bytes).unwrap();
        let out = command("osml-plus", "bundle-small", dir.path(), NAMED).output().unwrap();
        let (code, said) = one_line(&out);
        assert!(code == 2 && said.contains(path(&file)) && said.contains("no experience of ours, so it stays as it is"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), bytes);
    }
}

/// Switched off, Model-C neither remembers nor learns, and the file stays as it is.
#[test]
fn learning_can_be_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.safetensors");
    fs::write(&file, "anything").unwrap();
    let (said, warned) = minute(dir.path(), &format!("on = false\n{NAMED}"));
    assert_eq!((said, warned.len()), (Value::Null, 0));
    assert_eq!(fs::read_to_string(&file).unwrap(), "anything");
}

/// Experience that cannot be written is one warning; the run goes on and ends well.
#[test]
fn experience_that_cannot_be_written_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (said, warned) = minute(dir.path(), "experience = \"gone/x.safetensors\"\nsave_every_s = 10");
    assert!(number(&said, "transitions") > 300);
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("gone/x.safetensors") && warned[0].contains("cannot be written"), "{warned:?}");
}

/// OSML's Model-C remembers, too, and goes on with it; of OSML+'s experience it makes no use, and says so.
#[test]
fn osml_keeps_its_experience() {
    let dir = tempfile::tempdir().unwrap();
    let minute = || minute_of("osml", "bundle-whole.tar", dir.path(), NAMED);
    let (first, said) = minute();
    let transitions = number(&first, "transitions");
    assert!(transitions > 0 && said.is_empty(), "{first} {said:?}");
    let (second, _) = minute();
    assert_eq!(number(&second, "transitions_loaded"), transitions);
    let (_, _) = minute_of("osml-plus", "bundle-whole.tar", dir.path(), NAMED);
    let (third, said) = minute();
    assert_eq!((number(&third, "transitions_loaded"), said.len()), (0, 1), "{said:?}");
}
