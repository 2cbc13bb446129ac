//! Tells the program its commit.
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo there")]

include!("../../scheduler/built.rs");

fn main() {
    stamp("../..");
}
