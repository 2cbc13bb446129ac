//! What a node says of bundles, for comparison with the lab's reader (`tests/bundle_corpus.py`).
//!
//!     bundle_verdicts KEYS < PATHS
//!
//! One path a line; one answer a line: `ok`, or the kind of refusal, a tab and the message.

#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a tool of the tests, whose input and output are its own")]

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use surefoot_learn::{Bundle, Expect, TrustedKeys};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bundle_verdicts: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: bundle_verdicts KEYS < PATHS")?;
    let keys = TrustedKeys::load(Path::new(&folder))?;
    let mut out = std::io::stdout().lock();
    for path in std::io::stdin().lock().lines() {
        match Bundle::load(Path::new(&path?), &keys, &Expect::default()) {
            Ok(_) => writeln!(out, "ok")?,
            Err(e) => writeln!(out, "{}\t{e}", e.kind.word())?,
        }
    }
    Ok(())
}
