//! Cores that move by their owner in the kernel (sched_ext, `scheduler/bpf/src/owners.rs`), where this process may load the scheduler.
//!
//! What holds: threads of a service come under the scheduler before its list of CPUs is made longer, and leave it after the list is short again.
//! A thread of the borrower that cannot come under it ends this way of moving: the kernel's own scheduler would let it go before the lender.

use crate::cgroup::Version;
use crate::root::Root;

/// Why cores cannot move by owner, as far as that is known before the scheduler is loaded.
pub fn hindrance(root: &Root, has_actuator: bool, version: Version) -> Option<String> {
    if has_actuator {
        Some("an actuator writes for the daemon, and has no order for owners of CPUs".into())
    } else if version != Version::V2 {
        Some("services are in cgroups of version 1".into())
    } else if !nix::unistd::geteuid().is_root() {
        Some("it takes the rights of root".into())
    } else {
        of_kernel(root)
    }
}

#[cfg(feature = "bpf")]
use with::of_kernel;
#[cfg(feature = "bpf")]
pub use with::{let_out, Moves};
#[cfg(not(feature = "bpf"))]
use without::of_kernel;
#[cfg(not(feature = "bpf"))]
pub use without::{let_out, Moves};

#[cfg(feature = "bpf")]
mod with {
    use crate::cgroup::{Cgroup, Mounts, Version};
    use crate::root::Root;
    use crate::running::depth;
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Arc;
    use surefoot_bpf::{let_in, Class, Let, Owners};
    use surefoot_server::{CpuSet, ServiceId};

    /// Looks at the threads of a group, one after the other: the control loop waits for them.
    const PASSES: u32 = 4;

    /// The scheduler in charge, and the services that it knows.
    #[derive(Debug)]
    pub struct Moves {
        owners: Arc<Owners>,
        of: BTreeMap<ServiceId, (Class, Cgroup, bool)>,
    }

    /// What the kernel has against it.
    pub fn of_kernel(root: &Root) -> Option<String> {
        surefoot_bpf::hindrance(&root.path("/sys/kernel/sched_ext")).map(|refused| refused.to_string())
    }

    impl Moves {
        /// # Errors
        /// One line: why cores do not move this way here.
        pub fn load(root: &Root, version: Version) -> Result<Self, String> {
            if !root.is_host() {
                return Err("the files are not those of this kernel".into());
            }
            if let Some(hindrance) = super::hindrance(root, !root.files.is_here(), version) {
                return Err(hindrance);
            }
            let parts = surefoot_bpf::scheduler().map_err(|e| e.to_string())?;
            let owners = Owners::open(parts).map_err(|e| format!("its memory cannot be mapped: {e}"))?;
            Ok(Moves { owners, of: BTreeMap::new() })
        }

        /// A service comes under the scheduler, on these CPUs. One that `keeps` is a lender.
        ///
        /// # Errors
        /// One line: why it cannot.
        pub fn enter(&mut self, root: &Root, mounts: &Mounts, id: &str, group: &Cgroup, keeps: bool, cpus: CpuSet) -> Result<(), String> {
            if self.of.contains_key(id) {
                return Ok(());
            }
            let number = group.identity().ok_or_else(|| format!("the cgroup of {id} has gone"))?;
            let class = self.owners.class(number, depth(root, mounts, group)?, keeps).map_err(|e| e.to_string())?;
            class.give(&cpus).map_err(|e| e.to_string())?;
            self.of.insert(id.into(), (class, group.clone(), keeps));
            self.let_all_in()
        }

        /// Its threads are as others from now on.
        pub fn leave(&mut self, id: &str) {
            if let Some((_, group, _)) = self.of.get(id) {
                let_out(group);
            }
            self.of.remove(id);
        }

        /// Threads that are new in the groups: their parents were elsewhere.
        ///
        /// # Errors
        /// One line: a thread of a borrower that cannot come under the scheduler.
        pub fn let_all_in(&self) -> Result<(), String> {
            for (id, (_, group, keeps)) in &self.of {
                // One may have been born of one that was not in yet. A service that goes on is seen again at the next tick.
                for _ in 0..PASSES {
                    let mut new = 0;
                    for tid in group.tids() {
                        match let_in(tid).map_err(|e| format!("thread {tid} of {id}: {e}"))? {
                            Let::New => new += 1,
                            Let::In => {}
                            Let::Not(_) if *keeps => {}
                            Let::Not(policy) => {
                                return Err(format!("thread {tid} of {id} has scheduling policy {policy}, and only 0 is ours"))
                            }
                        }
                    }
                    if new == 0 {
                        break;
                    }
                }
            }
            Ok(())
        }

        /// # Errors
        /// The kernel's, or the scheduler has ended.
        pub fn give(&self, id: &str, cpus: CpuSet) -> io::Result<()> {
            match self.of.get(id) {
                Some((class, ..)) => class.give(&cpus),
                None => Err(io::Error::other(format!("{id} is not under the scheduler"))),
            }
        }

        /// Whether one of its threads is on one of these CPUs, or about to be.
        pub fn uses(&self, id: &str, cpus: &CpuSet) -> bool {
            self.of.get(id).is_some_and(|(class, ..)| cpus.iter().any(|cpu| class.uses(cpu)))
        }

        /// Why the scheduler is not in charge any more.
        pub fn ended(&self) -> Option<String> {
            self.owners.ended().map(|kind| format!("the kernel ended the scheduler (reason {kind}; its log says more)"))
        }
    }

    impl Drop for Moves {
        fn drop(&mut self) {
            self.of.values().for_each(|(_, group, _)| let_out(group));
        }
    }

    /// Threads of a group that are under a scheduler of ours, or were under that of a process that died: all of them out.
    pub fn let_out(group: &Cgroup) {
        // One may have been born of one that was still in.
        for _ in 0..PASSES {
            let mut found = false;
            for tid in group.tids() {
                match surefoot_bpf::let_out(tid) {
                    Ok(was_in) => found |= was_in,
                    Err(e) => {
                        return tracing::warn!(
                            "thread {tid} keeps the scheduling policy SCHED_EXT, which means the same as the usual one: {e}"
                        )
                    }
                }
            }
            if !found {
                return;
            }
        }
    }
}

/// Of a build that has no programs.
#[cfg(not(feature = "bpf"))]
mod without {
    use crate::cgroup::{Cgroup, Mounts, Version};
    use crate::root::Root;
    use crate::running::NO_PROGRAMS;
    use std::io;
    use surefoot_server::CpuSet;

    pub fn of_kernel(_: &Root) -> Option<String> {
        Some(NO_PROGRAMS.into())
    }

    #[derive(Debug)]
    pub enum Moves {}

    impl Moves {
        /// # Errors
        /// Always: this build has none.
        pub fn load(_: &Root, _: Version) -> Result<Self, String> {
            Err(NO_PROGRAMS.into())
        }

        /// # Errors
        /// None: there is no scheduler.
        pub fn enter(&mut self, _: &Root, _: &Mounts, _: &str, _: &Cgroup, _: bool, _: CpuSet) -> Result<(), String> {
            match *self {}
        }

        pub fn leave(&mut self, _: &str) {
            match *self {}
        }

        /// # Errors
        /// As above.
        pub fn let_all_in(&self) -> Result<(), String> {
            match *self {}
        }

        /// # Errors
        /// As above.
        pub fn give(&self, _: &str, _: CpuSet) -> io::Result<()> {
            match *self {}
        }

        pub fn uses(&self, _: &str, _: &CpuSet) -> bool {
            match *self {}
        }

        pub fn ended(&self) -> Option<String> {
            match *self {}
        }
    }

    pub fn let_out(_: &Cgroup) {}
}
