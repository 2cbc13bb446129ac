//! Small networks on the node: load a signed bundle, infer, learn on line.
//!
//! * [`Bundle::load`] verifies a whole bundle (signature, hashes, shapes, bounds) before any of it is used.
//! * [`Model`] predicts in natural units: Model-A (OAA, RCliff) and Model-B (QoS after a change).
//! * [`Agent`] is Model-C: DDPG over seven actions, learning from what the policy tells it (OSML+ paper, Sec. 3.2).
//! * [`DqnAgent`] is the OSML paper's Model-C: a deep Q-network over 49 actions (its Sec. 4.3).
//! * [`guard`] refuses an update that makes things worse on held-back experience; [`experience`] survives a restart.
//!
//! No framework: the networks have some thousand weights, and [`mlp`] and [`optim`] do forward, backward and
//! optimiser steps on plain slices.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

mod archive;
pub mod bundle;
pub mod canonical;
pub mod ddpg;
pub mod dqn;
pub mod error;
pub mod experience;
mod gemm;
pub mod guard;
pub mod keys;
pub mod learner;
pub mod manifest;
pub mod mlp;
pub mod model;
pub mod optim;
pub mod relative;
mod replay;
pub mod rng;
mod rules;
mod wide;

pub use bundle::{Bundle, Expect, NeededBy, OsmlModels};
pub use ddpg::{one_hot, Agent, Ddpg, Hyper, LearnStats, ACTIONS};
pub use dqn::{Dqn, DqnAgent, DqnHyper};
pub use error::BundleError;
pub use experience::ExperienceError;
pub use guard::{Counts, Guard};
pub use keys::{Guard as KeyGuard, TrustedKeys};
pub use learner::{Learner, Refused};
pub use manifest::Manifest;
pub use mlp::{Mlp, Output, Tape};
pub use model::{InputError, InputSpec, Model, OutputSpec, Scratch};
pub use optim::{Adam, RmsProp};
pub use rules::Kind;
