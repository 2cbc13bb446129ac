//! The node binary as a library: `main` only wires.
//!
//! Five rooms, one direction: [`commands`] above [`node`], [`eval`] and [`sweep`], these above [`stage`], all above [`base`].
//!
//! | command | module |
//! | --- | --- |
//! | `sweep` | [`commands::sweep`], on [`sweep`]: `campaign` (format), `expand` (cases), shards, journal, manifest |
//! | `eval` | [`eval`]; [`stage::workload`] is the format |
//! | `harvest-eval` | [`eval::harvest`], on `surefoot-harvest` |
//! | `oracle` | [`commands::oracle`], on [`eval::phases`] |
//! | `run` | [`node::run`]; [`node::status`] and [`node::metrics`] are what it answers |
//! | `record` | [`node::record`], on the machine of [`node::machine`] |
//! | `replay` | [`commands::replay`] |
//! | `explain` | [`node::explain`] (reads and shows), [`node::follower`] (follows actions), [`node::decisions`] (the journal) |
//! | `top` | [`node::top`] (asks the daemon and draws) |
//! | `check`, `reset` | [`commands::check`], [`commands::reset`] |
//! | `actuate` | [`commands::actuate`], on `surefoot_linux::actuator` |
//! | `resctrlfs` | [`commands::resctrlfs`] |
//! | `world` | [`commands::world`], on [`stage::world`] |
//! | `schema` | [`commands::schema`] |
//! | `completions`, `manual` | [`commands::manual`] |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

pub mod base;
pub mod commands;
pub mod eval;
pub mod node;
pub mod stage;
pub mod sweep;
