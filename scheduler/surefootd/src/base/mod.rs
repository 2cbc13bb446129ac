//! What every room uses: the command line, errors, files, output, signals. It knows no other room.

pub mod cli;
pub mod files;
pub mod holder;
pub mod host;
pub mod parquet;
pub mod part;
pub mod places;
pub mod progress;
pub mod say;
pub mod stop;
pub mod utc;

pub use surefoot_workload::{digest, error, toml};
