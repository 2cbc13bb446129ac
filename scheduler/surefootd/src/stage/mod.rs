//! What a run, an evaluation and a sweep are about: virtual targets, workloads, models, inputs. It knows `base` alone.

pub mod config;
pub mod drawn;
pub mod inputs;
pub mod models;
pub mod moment;
pub mod socket;
pub mod target;
pub mod virtual_target;
pub mod world;

pub use surefoot_workload::{load, workload};
