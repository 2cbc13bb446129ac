//! Programs in the kernel that tell or do what no file does, and their users.
//!
//! `build.rs` compiles each `bpf/*.bpf.c` with clang. The object is a part of this crate: a node has no compiler, and libbpf fits the object
//! to the running kernel (CO-RE). [`object::load`] loads one, and says in a line why it cannot.

mod classes;
mod feed;
mod object;
mod owners;
mod policy;
mod words;

pub use feed::{programs, programs_for, spent, Counts, Feed, Handles, Hierarchy, Watch};
pub use object::{load, Refused, Stats, FORBIDDEN};
pub use owners::{hindrance, let_in, let_out, scheduler, Class, Let, Owners, Parts};
pub use words::Words;
