//! The node binary as a library: `main` only wires.
//!
//! | command | module |
//! | --- | --- |
//! | `sweep` | [`campaign`] (format), [`expand`] (cases), [`sweep`] (shards, journal, manifest), [`cmd_sweep`] |
//! | `eval` | `workload` (format), `eval` |
//! | `oracle` | `oracle` (phases, answers for the search), `cmd_oracle` |
//! | `run` | `daemon` |
//! | `record` | `record`, on the machine of `daemon::node` |
//! | `explain` | `explain` (reads and shows), `daemon::explain` (follows actions), `daemon::decisions` (the journal) |
//! | `top` | `top` (asks the daemon and draws), `daemon::status` (what it answers) |
//! | `check`, `reset` | `local_target` |
//! | `actuate` | `cmd_actuate`, on `surefoot_linux::actuator` |
//! | `resctrlfs` | `cmd_resctrlfs` |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

pub mod campaign;
pub mod cli;
pub mod cmd_actuate;
pub mod cmd_oracle;
pub mod cmd_replay;
pub mod cmd_resctrlfs;
pub mod cmd_sweep;
pub mod daemon;
pub mod error;
pub mod eval;
pub mod expand;
pub mod explain;
pub mod files;
pub mod holder;
pub mod host;
pub mod local_target;
pub mod models;
pub mod oracle;
pub mod progress;
pub mod record;
pub mod recorder;
pub mod say;
pub mod schema;
pub mod stop;
pub mod stream;
pub mod sweep;
pub mod tally;
pub mod target;
pub mod top;
pub mod tries;
pub mod utc;
pub mod virtual_target;
pub mod workload;
