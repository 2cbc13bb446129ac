//! Privilege separation: the deciding process runs as any user, one small process writes kernel files for it.
//!
//! The decider is a [`client`]: [`RemoteFiles`] behind the port [`crate::files::Files`]. The actuator [`serve`]s it: every
//! request is judged by the allow-list ([`allow`], [`value`]), carried out below a few open folders ([`beneath`]), and answered
//! with the kernel's own errno ([`protocol`]). It knows no model, no policy, no network, and parses nothing of the client but
//! the protocol. Before it serves anybody it gives up what it does not need ([`harden`]). Should the decider die, it puts the layout in
//! force that was left with it ([`deadman`]). A process that has the rights itself goes by the same list where it acts on what a lesser user
//! wrote ([`Guarded`]).
//!
//! docs/privileges.md has the threat model and how to set it up.

pub mod allow;
#[cfg(test)]
mod attack;
pub mod beneath;
pub mod client;
pub mod deadman;
mod guard;
pub mod harden;
mod known;
mod limits;
mod line;
pub mod protocol;
pub mod record;
pub mod serve;
#[cfg(test)]
mod tests;
pub mod value;

/// Where one listens unless node.toml says otherwise.
pub const SOCKET: &str = "/run/surefoot/actuator.sock";

pub use allow::{Allow, Pattern, Terms};
pub use beneath::Beneath;
pub use client::RemoteFiles;
pub use deadman::DeadMan;
pub use guard::Guarded;
pub use record::Record;
pub use serve::{Actuator, Listener};
