//! Small networks on the node: load a signed bundle, infer, learn on line.
//!
//! * [`Bundle::load`] verifies a whole bundle (signature, hashes, shapes, bounds) before any of it is used.
//! * [`Model`] predicts in natural units: Model-A (OAA, RCliff) and Model-B (QoS after a change).
//! * [`Agent`] is Model-C: DDPG over seven actions, learning from what the policy tells it (OSML+ paper, Sec. 3.2).
//!
//! No framework: the networks have some thousand weights, and [`mlp`] does forward, backward and Adam on plain slices.

mod archive;
pub mod bundle;
pub mod ddpg;
pub mod keys;
pub mod manifest;
pub mod mlp;
pub mod model;
pub mod rng;

pub use bundle::{Bundle, BundleError, Expect, TomlFile};
pub use ddpg::{one_hot, Agent, Hyper, LearnStats, Refused, Snapshot, ACTIONS};
pub use keys::TrustedKeys;
pub use manifest::Manifest;
pub use mlp::{Adam, Mlp, Output, Tape};
pub use model::{InputError, InputSpec, Model, OutputSpec, Scratch};
