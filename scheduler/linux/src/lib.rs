//! This machine behind the [`surefoot_server::Server`] port: services in containers, cgroups or process trees.
//!
//! Map: [`catalogue`] what can be run · [`engine`] the container engine's command line · [`discover`] platform of this host ·
//! [`cgroup`] CPUs, quota and memory (v1 and v2), of systemd units by [`unit`] · [`psi`] stalls · [`memory`] taking memory back, down to a
//! [`floor`] · [`memory_use`] what is in use, compressed and faulted in · [`working_set`] what of it is touched ·
//! [`resctrl`] ways and bandwidth · [`procfs`], [`perf`] and [`gauge`] features · [`feed`] latency intake · [`files`] the one way to kernel
//! files · [`actuator`] the same by a process that alone has the rights · [`journal`] what was changed, so that it can be given
//! back · [`running`] programs in the kernel that tell what runs · [`safe`] what is left in force when the daemon has gone · [`local`] the server itself · [`bench`] cases of a
//! campaign · [`check`] what this host can and cannot do.
//!
//! Kernel readers take a [`root::Root`], so that tests run them on a temporary directory. Missing is None, never 0.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

pub mod actuator;
pub mod bench;
pub mod bound;
pub mod catalogue;
pub mod cgroup;
pub mod check;
pub mod child;
pub mod claim;
pub mod discover;
pub mod engine;
pub mod feed;
pub mod files;
pub mod floor;
pub mod gauge;
pub mod handed;
pub mod journal;
pub mod local;
pub mod memory;
pub mod memory_use;
pub mod own;
mod owners;
pub mod perf;
pub mod pods;
pub mod procfs;
pub mod psi;
pub mod resctrl;
pub mod root;
pub mod running;
pub mod safe;
mod safe_layout;
pub mod target;
#[cfg(test)]
mod testing;
pub mod unit;
pub mod working_set;

pub use bench::{BenchCase, BenchHow, BenchMemory, BenchNeighbour, BenchResult, BenchSample, BenchService, LocalBench, Sampling};
pub use catalogue::{Catalogue, Entry};
pub use check::{check, Capability};
pub use discover::discover;
pub use engine::Engine;
pub use local::{CommandSpec, Found, LaunchSpec, LocalConfig, LocalLender, LocalServer, ResetReport, Target};
pub use root::Root;
