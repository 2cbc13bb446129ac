//! What this host can and cannot do: every item found or missing, what is lost without it, and the remedy (docs/check.md).
//!
//! Looking changes nothing, and needs no right but to read. What is asked of the host itself and not of files (counters,
//! container engine) stands in [`Probes`], so that all else is a function of a tree of files.
//!
//! Map: [`cpu`] processors · [`cgroups`] controllers and what they can limit · [`memory`] pressure, swap, zswap · [`rdt`] resctrl ·
//! [`counters`] PMU and frequency · [`host`] kernel, engine, service manager, neighbours · [`node`] what a daemon needs ·
//! [`services`] what its configuration names · [`lends`] what services are to lend. [`profile`] makes a platform file of a host, [`recording`] a
//! text of its resctrl for the tests.

mod cgroups;
mod counters;
mod cpu;
mod host;
mod lends;
mod memory;
mod node;
pub mod profile;
mod rdt;
pub mod recording;
mod services;
#[cfg(test)]
mod tests;

use crate::actuator::{Allow, SOCKET};
use crate::local::Target;
use crate::resctrl::Resctrl;
use crate::root::Root;
use serde::Serialize;
use std::path::Path;
use surefoot_server::{CpuSet, ServiceId};

pub use counters::Pmu;

/// One ability of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// "cpu", "cgroup", "memory", "resctrl", "counters", "host", "node", "services".
    pub area: &'static str,
    pub name: String,
    pub found: bool,
    /// What was found, or how it is missing.
    pub detail: String,
    /// What to do about a gap; None where nothing is missing.
    pub remedy: Option<String>,
    /// What Surefoot loses without it.
    pub needed_for: String,
}

/// An area's items, in order.
pub(crate) struct Area {
    area: &'static str,
    all: Vec<Capability>,
}

impl Area {
    fn new(area: &'static str) -> Self {
        Area { area, all: vec![] }
    }

    fn put(&mut self, name: &str, found: bool, detail: String, remedy: Option<String>, needed_for: &str) {
        self.all.push(Capability { area: self.area, name: name.into(), found, detail, remedy, needed_for: needed_for.into() });
    }

    fn have(&mut self, name: &str, needed_for: &str, detail: impl Into<String>) {
        self.put(name, true, detail.into(), None, needed_for);
    }

    fn lack(&mut self, name: &str, needed_for: &str, detail: impl Into<String>, remedy: impl Into<String>) {
        self.put(name, false, detail.into(), Some(remedy.into()), needed_for);
    }
}

/// What only the host itself can tell.
#[derive(Clone, Debug)]
pub struct Probes {
    pub pmu: Pmu,
    /// Version of the container engine, or why none answers.
    pub engine: Result<String, String>,
    /// This process was started by a service manager that wants to be told (NOTIFY_SOCKET), and in what time (WATCHDOG_USEC).
    pub notify: bool,
    pub watchdog_us: Option<u64>,
}

impl Probes {
    /// Ask this host.
    pub fn ask() -> Self {
        let engine = crate::engine::Engine::find().and_then(|e| e.version()).map_err(|e| e.to_string());
        Probes {
            pmu: Pmu::ask(),
            engine,
            notify: std::env::var_os("NOTIFY_SOCKET").is_some(),
            watchdog_us: std::env::var("WATCHDOG_USEC").ok().and_then(|v| v.parse().ok()),
        }
    }
}

/// The node that is asked about: what its configuration says, else the defaults.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Where a daemon keeps its state.
    pub state_dir: &'a Path,
    /// Mount point of resctrl, also of a stand-in; None = the kernel's.
    pub resctrl: Option<&'a Path>,
    /// Socket of the actuator.
    pub actuator: &'a Path,
    /// What the actuator changes for a daemon of this configuration; None: no actuator is configured.
    pub by_actuator: Option<&'a Allow>,
    /// Services that run already, by id.
    pub services: &'a [(ServiceId, Target)],
    /// CPUs for services; None = all but the last one.
    pub managed: Option<CpuSet>,
    /// Services that are to lend idle cores.
    pub lends: &'a [Lend],
    /// Whether their cores are to move by owner (sched_ext).
    pub sched_ext: bool,
}

/// Idle cores that one service is to lend to another between two plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Lend {
    pub lender: ServiceId,
    pub borrower: ServiceId,
    /// The policy decides by the longest wait that goes on.
    pub wants_waiting: bool,
    /// Between two looks at the lender's threads.
    pub poll_ms: f64,
    /// What decides asks how long threads have waited.
    pub wants_waits: bool,
}

impl<'a> Node<'a> {
    /// One without a configuration.
    pub fn at(state_dir: &'a Path) -> Self {
        Node {
            state_dir,
            resctrl: None,
            actuator: Path::new(SOCKET),
            by_actuator: None,
            services: &[],
            managed: None,
            lends: &[],
            sched_ext: false,
        }
    }

    /// A right that this process lacks: whether the configured actuator has it in its place, or why not. None: no actuator is configured.
    fn through_actuator(&self, root: &Root) -> Option<Result<String, String>> {
        self.by_actuator?;
        let socket = self.actuator.display();
        Some(match node::reach(&root.path(self.actuator)) {
            node::Reach::Here => Ok(format!("the actuator at {socket} does it for this user, within what node.toml names")),
            node::Reach::NotForUs => Ok(format!("the actuator at {socket} does it for the daemon's user, within what node.toml names")),
            node::Reach::Nobody => Err(format!("the actuator is to do it, and nobody listens on {socket}")),
        })
    }

    /// Its resctrl, if that is there.
    fn resctrl(&self, root: &Root) -> Option<Resctrl> {
        match self.resctrl {
            Some(at) => Resctrl::named(root, at).ok(),
            None => Resctrl::find(root),
        }
    }
}

/// Look at everything on this host; changes nothing.
pub fn check(root: &Root, node: &Node<'_>) -> Vec<Capability> {
    look(root, node, &Probes::ask())
}

/// [`check`] on a tree of files, with what was asked of the host.
pub fn look(root: &Root, node: &Node<'_>, probes: &Probes) -> Vec<Capability> {
    let areas = [
        cpu::look(root, node),
        cgroups::look(root, node),
        memory::look(root),
        rdt::look(root, node),
        counters::look(root, &probes.pmu),
        host::look(root, node, probes),
        node::look(root, node),
        services::look(root, node),
        lends::look(root, node),
    ];
    areas.into_iter().flat_map(|a| a.all).collect()
}

/// Word of a list such as "[madvise] never" that the kernel has chosen.
fn chosen(list: &str) -> &str {
    list.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(list, |(word, _)| word)
}

/// Value of `key=` on the kernel's command line; the last one counts.
fn boot_option(root: &Root, key: &str) -> Option<String> {
    let line = root.read("/proc/cmdline")?;
    line.split_whitespace().filter_map(|w| w.strip_prefix(key)?.strip_prefix('=').map(String::from)).next_back()
}

/// Field of the first processor in /proc/cpuinfo.
fn cpuinfo(root: &Root, field: &str) -> Option<String> {
    let text = root.read("/proc/cpuinfo")?;
    text.lines().find_map(|l| l.split_once(':').filter(|(k, _)| k.trim() == field).map(|(_, v)| v.trim().to_string()))
}

fn cpu_flag(root: &Root, flag: &str) -> bool {
    cpuinfo(root, "flags").is_some_and(|f| f.split_whitespace().any(|w| w == flag))
}

/// "1 group", "2 groups".
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
