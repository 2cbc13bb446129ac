//! The safe layout as it is kept: data alone. [`crate::safe`] carries it out.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    Write { path: PathBuf, text: String },
    RemoveDir { path: PathBuf },
}

/// Writes in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SafeLayout {
    pub version: u32,
    /// The boot that it is of: with another one nothing of it is in force. Not in old files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Numbers of the cgroup folders that are written to: one that was made anew under its name has values of its own. Not in old files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<PathBuf, u64>,
    pub ops: Vec<Op>,
}

/// What putting it in force came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SafeReport {
    pub done: usize,
    /// Files and groups that have gone, with their services.
    pub gone: usize,
    /// What the kernel refused.
    pub failed: Vec<String>,
}
