//! Real cgroup v2 and resctrl of a kernel that answers, as root, in a virtual machine of their own: `make test-rdt`
//! (docs/test-kernel.md).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod refusals;
#[allow(dead_code, reason = "shared with the tests of the plain kernel")]
#[path = "../kernel/support.rs"]
mod support;
