//! Puts the shipped profiles and workload sets into the library: a wheel has no folder of them beside it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Files of a folder and of those below it, by path from `root`.
fn files(root: &Path, folder: &Path, found: &mut Vec<(String, PathBuf)>) {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in std::fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(root, &path, found);
        } else if path.extension().is_some_and(|x| x == "toml") {
            let name = path.strip_prefix(root).expect("below its root").to_string_lossy().replace('\\', "/");
            found.push((name, path.canonicalize().expect("a file that was listed")));
        }
    }
}

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut text = String::new();
    for (name, root) in [("PROFILES", here.join("../vserver/profiles")), ("WORKLOADS", here.join("../../workloads/sets"))] {
        let mut found = vec![];
        files(&root, &root, &mut found);
        found.sort();
        let _ = writeln!(text, "pub const {name}: &[(&str, &str)] = &[");
        for (name, path) in found {
            let _ = writeln!(text, "    ({name:?}, include_str!({:?})),", path.display().to_string());
        }
        text.push_str("];\n");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::fs::write(out.join("shipped.rs"), text).expect("OUT_DIR can be written");
}
