//! Where threads of a group run, and how long they wait: told by programs in the kernel (`scheduler/bpf`), where they can be loaded.
//!
//! In this order: programs that the actuator has loaded; programs that this process loads; neither, with the reason. A reader of
//! [`crate::procfs`] does without them.

use crate::cgroup::Version;
use crate::root::Root;
use std::time::Duration;

const OTHER_KERNEL: &str = "the files are not those of this kernel";
/// What a build without them says of programs in the kernel.
#[cfg(not(feature = "bpf"))]
pub(crate) const NO_PROGRAMS: &str = "this build has no programs for the kernel (cargo feature bpf)";

#[cfg(feature = "bpf")]
pub(crate) use with::depth;
#[cfg(feature = "bpf")]
pub use with::{cost, is_forbidden, load, Programs, Watched};
#[cfg(not(feature = "bpf"))]
pub use without::{cost, is_forbidden, load, Programs, Watched};

/// The programs, from the actuator that `root` goes through or loaded by this process.
///
/// # Errors
/// One line: why there are none, and what would help.
pub fn programs(root: &Root, version: Version) -> Result<Programs, String> {
    if !root.is_host() {
        return Err(OTHER_KERNEL.into());
    }
    match root.files.running() {
        Some(handed) => Programs::of(handed.map_err(|e| format!("the actuator gives no programs: {e}"))?),
        None => Programs::of(load(version)?),
    }
}

/// What they cost here, measured for a moment; or why there are none.
///
/// # Errors
/// As [`programs`].
pub fn probe(root: &Root, version: Option<Version>) -> Result<String, String> {
    if !root.is_host() {
        return Err(OTHER_KERNEL.into());
    }
    let handed = load(version.ok_or("no cgroup hierarchy is mounted")?)?;
    let cost = cost(Duration::from_millis(100));
    drop(handed);
    Ok(cost)
}

#[cfg(feature = "bpf")]
mod with {
    use crate::cgroup::{Cgroup, Mounts, Version};
    use crate::handed::Handed;
    use crate::root::Root;
    use nix::time::{clock_gettime, ClockId};
    use std::sync::Arc;
    use std::time::Duration;
    use surefoot_bpf::{Feed, Handles, Hierarchy, Watch};
    use surefoot_server::Waits;

    /// Number of the cgroup namespace in which the kernel starts (PROC_CGROUP_INIT_INO).
    const FIRST_NAMESPACE: &str = "cgroup:[4026531835]";

    /// How deep a group is in its tree.
    pub(crate) fn depth(root: &Root, mounts: &Mounts, group: &Cgroup) -> Result<usize, String> {
        let namespace = std::fs::read_link(root.path("/proc/self/ns/cgroup")).unwrap_or_default();
        if namespace.as_os_str() != FIRST_NAMESPACE {
            return Err("this process has a cgroup namespace of its own, in which the place of a group is unknown".into());
        }
        mounts.depth_of(group).ok_or_else(|| "the place of the group in its hierarchy is unknown".into())
    }

    /// Loads the programs, for this process or for one that is to be handed them.
    ///
    /// # Errors
    /// One line: what the kernel lacks or forbids, and what would help.
    pub fn load(version: Version) -> Result<Handed, String> {
        let hierarchy = if version == Version::V2 { Hierarchy::Unified } else { Hierarchy::Cpuset };
        let Handles { shared, slots, banks, seed, hooks, cpus } = surefoot_bpf::programs(hierarchy).map_err(|e| e.to_string())?;
        let descriptors = [shared, slots, banks, seed].into_iter().chain(hooks).collect();
        Ok(Handed { descriptors, said: cpus.to_string() })
    }

    /// Whether only rights are missing.
    pub fn is_forbidden(why: &str) -> bool {
        why.starts_with(surefoot_bpf::FORBIDDEN)
    }

    /// Time of a run of them, counted by the kernel for so long.
    pub fn cost(during: Duration) -> String {
        let counting = match surefoot_bpf::Stats::count() {
            Ok(counting) => counting,
            Err(e) => return format!("what they cost is not counted: {e}"),
        };
        let before = surefoot_bpf::spent();
        std::thread::sleep(during);
        let now = surefoot_bpf::spent();
        drop(counting);
        let (runs, time) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        if runs == 0 {
            return "they did not run".into();
        }
        format!("{} ns a run, {runs} runs in {} ms", time.as_nanos() / u128::from(runs), during.as_millis())
    }

    /// Programs in the kernel, and the memory that they write.
    #[derive(Clone, Debug)]
    pub struct Programs(Arc<Feed>);

    impl Programs {
        pub(super) fn of(handed: Handed) -> Result<Self, String> {
            let cpus = handed.said.parse().map_err(|_| format!("{:?} is no number of CPUs", handed.said))?;
            let mut all = handed.descriptors.into_iter();
            let [Some(shared), Some(slots), Some(banks), Some(seed)] = std::array::from_fn(|_| all.next()) else {
                return Err("descriptors are missing".into());
            };
            let handles = Handles { shared, slots, banks, seed, hooks: all.collect(), cpus };
            Feed::open(handles).map(Programs).map_err(|e| format!("their memory cannot be mapped: {e}"))
        }

        /// # Errors
        /// One line: why its threads cannot be seen.
        pub fn watch(&self, root: &Root, mounts: &Mounts, group: &Cgroup) -> Result<Watched, String> {
            let id = group.identity().ok_or("its cgroup has gone")?;
            self.0.watch(id, depth(root, mounts, group)?).map(Watched).map_err(|e| e.to_string())
        }
    }

    /// Threads of one group. Nothing here makes a system call or allocates.
    #[derive(Debug)]
    pub struct Watched(Watch);

    impl Watched {
        pub fn runs_on(&self, cpu: u32) -> bool {
            self.0.runs_on(cpu)
        }

        /// Since this was asked for last.
        pub fn waits(&mut self) -> Waits {
            let counts = self.0.waits();
            Waits { dispatches: counts.dispatches, over: Some(counts.over), total_us: counts.total_ns as f64 * 1e-3 }
        }

        pub fn waiting_us(&self) -> f64 {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
            self.0.waiting_ns(now.as_nanos() as u64) as f64 * 1e-3
        }
    }
}

/// Of a build that has no programs.
#[cfg(not(feature = "bpf"))]
mod without {
    use crate::cgroup::{Cgroup, Mounts, Version};
    use crate::handed::Handed;
    use crate::root::Root;
    use std::time::Duration;
    use surefoot_server::Waits;

    /// # Errors
    /// Always: this build has none.
    pub fn load(_: Version) -> Result<Handed, String> {
        Err(super::NO_PROGRAMS.into())
    }

    pub fn is_forbidden(_: &str) -> bool {
        false
    }

    pub fn cost(_: Duration) -> String {
        String::new()
    }

    #[derive(Clone, Debug)]
    pub enum Programs {}

    impl Programs {
        pub(super) fn of(_: Handed) -> Result<Self, String> {
            load(Version::V2).and_then(|_| Err(String::new()))
        }

        /// # Errors
        /// None: there are no programs.
        pub fn watch(&self, _: &Root, _: &Mounts, _: &Cgroup) -> Result<Watched, String> {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub enum Watched {}

    impl Watched {
        pub fn runs_on(&self, _: u32) -> bool {
            match *self {}
        }

        pub fn waits(&mut self) -> Waits {
            match *self {}
        }

        pub fn waiting_us(&self) -> f64 {
            match *self {}
        }
    }
}
