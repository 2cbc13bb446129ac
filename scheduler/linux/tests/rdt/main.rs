//! The node on a kernel whose processor has RDT or AMD QoS, as root. The tests change groups, CPUs and mounts of the whole machine, so they
//! run in a virtual machine of their own: `make test-rdt` (docs/test-kernel.md).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod bed;
mod hosts;
mod models;
mod named;
mod placed;
mod refusals;
mod restored;
#[path = "../kernel/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the plain kernel, which use all of it")]
mod support;
mod watched;
