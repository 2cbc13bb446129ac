//! A stand-in for the kernel's resctrl: a pure model of its tree of files ([`Machine`]), and a FUSE file system that shows it.
//!
//! Behaviour follows recordings of Linux 6.1 and 6.12 on emulated Intel and AMD processors, which the tests replay
//! (`tests/golden`). Known differences of the mounted form: statfs(2) and `/proc/mounts` name FUSE, not resctrl;
//! `/proc/PID/cpu_resctrl_groups` is the kernel's own and does not see the stand-in.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

mod command;
pub mod cpus;
pub mod errno;
pub mod fuse;
mod group;
pub mod hardware;
pub mod host;
mod machine;
mod number;
mod paths;
mod rmid;
mod show;
mod status;
mod tree;

pub use errno::Errno;
pub use hardware::{Hardware, Kernel};
pub use machine::{Caller, GroupId, Machine, Tid};
pub use tree::{Attr, Dir, Node, Tree, What, ROOT};
