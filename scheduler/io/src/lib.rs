//! What comes into a process and what goes out of it, for every crate that has a command.
//!
//! - [`input`]: files are read up to a bound, pipes are waited for up to a time; so no input takes all memory or for ever.
//! - [`json`]: JSON whose keys stand there once.
//! - [`out`]: results on standard output, notes and the log on standard error. Neither panics, and no note is waited for.
//! - [`shown`]: text of others as a terminal may have it.
//! - [`way`]: who else can change what a path leads to.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

pub mod input;
pub mod json;
pub mod out;
pub mod shown;
pub mod way;
