//! Threads follow their service: each by its own id, again until a look finds none outside.
//!
//! A child inherits both groups of its parent, so a thread that is born while others are moved is found by the next look or has
//! inherited already. Ids are never remembered between looks: an id that has been used again belongs to whom the cgroup
//! says at that moment.

use super::refusal::{Attempt, Refusal};
use super::Resctrl;
use std::collections::BTreeSet;
use std::path::Path;

/// Looks at a service before the rest is left to [`Resctrl::follow`].
const MAX_LOOKS: u32 = 16;

/// What a loop over the threads did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    pub threads: u32,
    /// The last look found none outside.
    pub settled: bool,
}

impl Resctrl {
    /// Ids in a group's `tasks`; nothing where it cannot be read.
    pub(super) fn tasks(&self, group: &Path) -> BTreeSet<u32> {
        self.read(group.join("tasks")).unwrap_or_default().lines().filter_map(|l| l.trim().parse().ok()).collect()
    }

    /// Put every thread of `tids` into `group`, one id a write: a list would stop at the first that has exited.
    pub(super) fn gather(&self, group: &Path, tids: &dyn Fn() -> Vec<u32>) -> Result<Moved, Refusal> {
        let path = group.join("tasks");
        let mut moved = Moved::default();
        for _ in 0..MAX_LOOKS {
            // Who is to be in before who is: a child born in between is inside already, and not a straggler.
            let all = tids();
            let inside = if all.is_empty() { BTreeSet::new() } else { self.tasks(group) };
            let outside: Vec<u32> = all.into_iter().filter(|t| !inside.contains(t)).collect();
            let mut stayed = 0;
            for tid in outside {
                match self.files.write(&path, &format!("{tid}\n")) {
                    Ok(()) => {
                        moved.threads += 1;
                        stayed += 1;
                    }
                    // It has exited.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) => return Err(self.refused(Attempt::Tasks, format!("{} <- {tid}", path.display()), &e)),
                }
            }
            if stayed == 0 {
                moved.settled = true;
                break;
            }
        }
        Ok(moved)
    }
}
