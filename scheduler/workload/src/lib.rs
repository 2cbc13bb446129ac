//! Workload files (docs/workload-format.md): what runs together on a virtual server, for an evaluation, a daemon and an environment.
//!
//! [`workload`] is the format, [`load`] the loads over time, [`known`] what a file may name,
//! [`judge`] what a tick is worth. Messages are those of the commands: one line
//! with file, field and remedy ([`error`], [`toml`]).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod digest;
pub mod error;
pub mod judge;
pub mod known;
pub mod load;
pub mod toml;
pub mod workload;
