//! Real cgroup v2 files and real processes on a stock kernel, as root. They change the groups, the swap and the CPUs of the whole
//! machine, so they run in a virtual machine of their own: `make test-kernel` (docs/test-kernel.md).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod actuator;
mod cosmos;
mod groups;
mod lend;
#[cfg(feature = "bpf")]
mod scx;
mod server;
mod support;
mod working_set;
