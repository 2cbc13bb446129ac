//! What holds a service.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What holds a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Name or id of a running container.
    Container(String),
    /// A cgroup as the kernel names it ("/system.slice/redis.service").
    Cgroup(PathBuf),
    /// A unit of the system's systemd ("redis.service"), wherever its slice is; cgroup v2 only.
    Unit(String),
    /// The cgroup of this process; it is controlled as a whole.
    Pid(u32),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Target::Container(name) => write!(f, "container {name}"),
            Target::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            Target::Unit(unit) => write!(f, "unit {unit}"),
            Target::Pid(pid) => write!(f, "process {pid}"),
        }
    }
}
