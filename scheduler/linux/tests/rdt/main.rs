//! Real resctrl and cgroup files on a stock kernel with emulated RDT, as root: they change the groups, the CPUs and the mounts of the whole
//! machine, so they run in a virtual machine of their own (docs/test-kernel.md).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod named;
