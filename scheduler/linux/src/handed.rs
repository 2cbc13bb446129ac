//! Programs in the kernel that another process has loaded.

use std::os::fd::OwnedFd;

/// They stay as long as any process has these.
#[derive(Debug)]
pub struct Handed {
    pub descriptors: Vec<OwnedFd>,
    /// What the process that loaded them says of them.
    pub said: String,
}
