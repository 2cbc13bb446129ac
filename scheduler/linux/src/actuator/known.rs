//! What is known of former values without the word of a lesser user.

use super::record::{Key, Record};
use crate::cgroup::{Cgroup, Knob, Version};

/// What files had before, as far as no lesser user could have falsified it.
#[derive(Debug)]
pub(super) struct Known {
    /// Of the actuator: what it does not know it has not changed. None: no actuator has run here.
    pub record: Option<Record>,
}

impl Known {
    /// What bounds a new value; None: nothing is known.
    pub fn former(&self, key: &Key, group: &Cgroup) -> Option<String> {
        let now = group.get(key.knob);
        match (&self.record, key.knob) {
            (Some(r), _) => r.former(key).map(str::to_string).or(now),
            (None, Knob::Weight) => {
                let usual = if group.version == Version::V1 { 1024 } else { 100 };
                Some(now.and_then(|n| n.parse::<u64>().ok()).map_or(usual, |n| n.max(usual)).to_string())
            }
            (None, _) => None,
        }
    }
}
