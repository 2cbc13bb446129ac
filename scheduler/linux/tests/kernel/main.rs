//! Real cgroup v2 files and real processes on a stock kernel, as root. They change the groups, the swap and the CPUs of the whole
//! machine, so they run in a virtual machine of their own: `make test-kernel` (docs/test-kernel.md).

mod actuator;
mod groups;
mod server;
mod support;
