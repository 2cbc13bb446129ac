//! The virtual server as an environment for reinforcement learning (docs/gym.md).
//!
//! [`scenario`] says what is run, [`episode`] runs it, [`columns`] is what an agent sees, [`action`] what it may do and [`reward`] what
//! that pays. [`envs`] runs many at once. What must hold:
//!
//! - An episode is a function of scenario, settings, seed and actions: neither the number of environments nor of threads has a part in it.
//! - Whatever an agent does, nothing panics and nothing is an error: what cannot be done is refused, and said ([`action::Refused`]).
//! - What an agent sees is what a policy of a node sees ([`surefoot_server::Observation`]), and no more.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod action;
pub mod columns;
pub mod envs;
pub mod episode;
pub mod reward;
pub mod scenario;
pub mod seat;
mod shipped;

pub use action::{Action, Refused};
pub use envs::{Autoreset, Envs};
pub use episode::{Episode, Settings};
pub use reward::UNKNOWN;
pub use scenario::{Scenario, Scene};
pub use seat::Seat;

/// Policies that [`Episode::follow`] takes: those that need no models.
pub fn policies() -> Vec<&'static str> {
    surefoot_policy::NAMES.iter().copied().filter(|name| surefoot_policy::takes(name).is_none()).collect()
}
