//! What every room uses: the command line, errors, files, output, signals. It knows no other room.

pub mod cli;
pub mod digest;
pub mod error;
pub mod files;
pub mod holder;
pub mod host;
pub mod parquet;
pub mod part;
pub mod places;
pub mod progress;
pub mod say;
pub mod stop;
pub mod toml;
pub mod utc;
