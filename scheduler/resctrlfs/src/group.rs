//! Names of groups.

/// A group's id, never used twice. 0 is the root group.
pub type GroupId = u32;

pub(crate) const DEFAULT: GroupId = 0;
