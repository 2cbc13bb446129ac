// What the build scripts of the programs share (`include!`): the version with the commit that a program is built from.
//
//   SUREFOOT_VERSION   0.1.0 (commit 40 hex digits), with "+changes" behind the digits where files of the build differ from it
//   SUREFOOT_COMMIT    the digits, with that mark; empty where nothing tells them
//
// Where there is no repository (an archive), SUREFOOT_COMMIT of the environment tells the commit; else the version stands alone.

use std::path::Path;
use std::process::Command;

/// What a program is made of; a change elsewhere in the repository changes none of it.
const SOURCES: [&str; 4] = ["Cargo.toml", "Cargo.lock", "scheduler", "workloads/loadgen"];

fn git(root: &Path, args: &[&str]) -> Option<String> {
    let done = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
}

/// Commit of the repository whose root this is; a repository around an archive is none of ours.
fn commit(root: &Path) -> Option<String> {
    let top = git(root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let digits = git(root, &["rev-parse", "HEAD"])?;
    let mut changes = vec!["status", "--porcelain", "--untracked-files=no", "--"];
    changes.extend(SOURCES);
    let mark = if git(root, &changes)?.is_empty() { "" } else { "+changes" };
    // a commit and a checkout write there; every look of git's writes to the index
    for name in ["logs/HEAD", "HEAD"] {
        if let Some(path) = git(root, &["rev-parse", "--path-format=absolute", "--git-path", name]).filter(|p| Path::new(p).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    for name in SOURCES {
        println!("cargo:rerun-if-changed={}", root.join(name).display());
    }
    Some(digits + mark)
}

/// Tell rustc both; `root` is the workspace's folder, seen from the crate's.
fn stamp(root: &str) {
    println!("cargo:rerun-if-env-changed=SUREFOOT_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var("SUREFOOT_COMMIT").ok().filter(|c| !c.is_empty() && c.chars().all(|x| x.is_ascii_alphanumeric() || x == '+'));
    let commit = given.or_else(|| commit(Path::new(root))).unwrap_or_default();
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let told = if commit.is_empty() { version } else { format!("{version} (commit {commit})") };
    println!("cargo:rustc-env=SUREFOOT_COMMIT={commit}");
    println!("cargo:rustc-env=SUREFOOT_VERSION={told}");
}
