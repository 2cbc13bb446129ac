//! What the tests of the binary share.
#![allow(dead_code)]

pub mod node;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary, with the shipped profiles.
pub fn surefootd() -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_surefootd"));
    c.current_dir(root()).env_remove("SUREFOOT_PROFILES").env("SUREFOOT_LOG", "warn");
    c
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn run(args: &[&str]) -> Output {
    surefootd().args(args).output().expect("surefootd starts")
}

/// Exit code and stderr, which must be one line.
pub fn one_line(out: &Output) -> (i32, String) {
    let text = String::from_utf8_lossy(&out.stderr).trim_end().to_string();
    assert_eq!(text.lines().count(), 1, "one line was expected: {text}");
    (out.status.code().expect("no signal"), text)
}

/// Must succeed; stdout.
pub fn ok(args: &[&str]) -> String {
    let out = run(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

pub fn path(p: &Path) -> &str {
    p.to_str().expect("UTF-8 path")
}
