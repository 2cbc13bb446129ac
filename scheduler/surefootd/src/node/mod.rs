//! The daemon and what reads its files: `run`, `record`, `explain`, `top`.

pub mod decisions;
pub mod explain;
pub mod follower;
pub mod http;
pub mod learning;
pub mod lending;
pub mod machine;
pub mod metrics;
pub mod notify;
pub mod phases;
pub mod pods;
pub mod record;
pub mod recorder;
pub mod rights;
pub mod run;
pub mod serials;
pub mod status;
pub mod stream;
pub mod tally;
pub mod top;
pub mod upper;
pub mod watching;
