//! What a write through the actuator costs, against one of our own. For docs/benchmarks.md.
//!
//!     surefootd actuate --config node.toml &
//!     cargo run --release --locked -p surefoot-linux --example actuator_cost -- SOCKET FILE VALUE
//!
//! As root, on a FILE of a cgroup that node.toml names; VALUE is written 2 x 20000 times.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

use std::path::Path;
use std::time::Instant;
use surefoot_linux::actuator::RemoteFiles;
use surefoot_linux::files::{Files, HostFiles};

const WRITES: usize = 20_000;

/// The first, the median and the 99th percentile, microseconds.
fn cost(files: &dyn Files, path: &Path, value: &str) -> std::io::Result<(f64, f64, f64)> {
    let mut us = vec![];
    for _ in 0..WRITES {
        let start = Instant::now();
        files.write(path, value)?;
        us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let first = us[0];
    us.sort_by(f64::total_cmp);
    Ok((first, us[WRITES / 2], us[WRITES * 99 / 100]))
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, file, value] = args.as_slice() else {
        eprintln!("usage: actuator_cost SOCKET FILE VALUE");
        std::process::exit(2);
    };
    let remote = RemoteFiles::connect(Path::new(socket))?;
    for (name, files) in [("local", &HostFiles as &dyn Files), ("actuator", &remote)] {
        let (first, p50, p99) = cost(files, Path::new(file), value)?;
        println!("{name}: {WRITES} writes, the first {first:.1} us, p50 {p50:.1} us, p99 {p99:.1} us");
    }
    Ok(())
}
