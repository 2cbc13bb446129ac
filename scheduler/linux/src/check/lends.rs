//! Whether services can lend idle cores here as the configuration asks for, and what cannot be seen of their threads.

use super::{Area, Lend, Node};
use crate::cgroup::{Mounts, Version};
use crate::discover::{discover_with, online, WHOLE_CORE_CPUS};
use crate::engine::Engine;
use crate::local::{locate, LEAST_BETWEEN_FILES};
use crate::owners;
use crate::procfs;
use crate::root::Root;
use crate::running;
use std::path::Path;
use surefoot_server::{CpuSet, Lease};

/// A lender keeps one, lends one, and its borrower has one of its own.
const LEAST_CORES: usize = 3;

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    let mut a = Area::new("services");
    for lend in node.lends {
        lends(root, node, lend, &mut a);
        readings(root, node, lend, &mut a);
    }
    a
}

fn lends(root: &Root, node: &Node<'_>, lend: &Lend, a: &mut Area) {
    let Lend { lender, borrower, .. } = lend;
    let (name, why) =
        (format!("lend-{lender}"), format!("idle cores of {lender} for {borrower} between two plans; without it they stay idle"));
    let mounts = Mounts::read(root);
    let (mut lacks, mut remedies): (Vec<String>, Vec<String>) = (vec![], vec![]);
    let mut lack = |what: String, remedy: String| {
        lacks.push(what);
        remedies.push(remedy);
    };
    if let Ok(found) = discover_with(root, node.managed, node.resctrl(root).as_ref()) {
        let (p, cpus) = (&found.platform, online(root).unwrap_or_default().len());
        let all = Lease { lender: lender.clone(), borrower: borrower.clone(), cpus: p.managed };
        let cores = all.cores(p).iter().filter(|core| core.is_subset(&p.managed)).count();
        if p.core_step < 1.0 {
            let what = format!("on a host of {cpus} CPUs services hold their cores by quotas, and only CPUs can be lent");
            lack(what, format!("Lend on a host of {WHOLE_CORE_CPUS} CPUs or more, where services hold whole CPUs"));
        }
        if cores < LEAST_CORES {
            let what =
                format!("it takes {LEAST_CORES} whole cores, and services have {cores} here: a lender keeps one, and its borrower has one");
            lack(what, "Manage three cores or more (cpus in node.toml)".into());
        }
    }
    let listed = |dir: &Path| node.by_actuator.is_some_and(|allow| dir.join("any").to_str().is_some_and(|file| allow.governs(file)));
    for (id, target) in node.services.iter().filter(|(id, _)| id == lender || id == borrower) {
        // One that is not there has a line of its own.
        let Ok((group, ..)) = locate(root, &mounts, CpuSet::empty(), &mut Engine::find, id, target) else { continue };
        if !group.is_some_and(|g| g.writable() || listed(&g.cpuset)) {
            let remedy = "Run as root, through an actuator (docs/privileges.md), or with the cgroup given to this user".to_string();
            lack(format!("CPU files of {id} cannot be written, and a container engine takes too long"), remedy);
        }
    }
    if !lacks.is_empty() {
        return a.lack(&name, &why, lacks.join("; "), remedies.join(". "));
    }
    match mounts.version() {
        Some(version) => {
            let number = if version == Version::V2 { 2 } else { 1 };
            let lists = format!("to {borrower}, by cpuset.cpus of cgroup version {number}: some milliseconds a move");
            let way = match owners::hindrance(root, node.by_actuator.is_some(), version) {
                _ if !node.sched_ext => lists,
                None => format!("to {borrower}, by owner in the kernel (sched_ext): well under a millisecond a move"),
                Some(hindrance) => format!("{lists}; not by owner (sched_ext): {hindrance}"),
            };
            a.have(&name, &why, way);
        }
        None => a.lack(&name, &why, "no cgroup hierarchy is mounted", "See cgroup"),
    }
}

/// What no file of the kernel tells, and needs a program in the kernel: it is loaded for a moment.
fn readings(root: &Root, node: &Node<'_>, lend: &Lend, a: &mut Area) {
    let Lend { lender, poll_ms, wants_waits, wants_waiting, .. } = lend;
    let why = format!("bursts of {lender} that are shorter than a look, and safeguards that go by single waits");
    let name = format!("lend-readings-{lender}");
    let none = match running::probe(root, Mounts::read(root).version()) {
        Ok(cost) => {
            let what = format!("running threads and single waits, every {poll_ms} ms, by programs in the kernel (BPF): {cost}");
            return a.have(&name, &why, what);
        }
        Err(none) => none,
    };
    if let (true, Some(Ok(how))) = (running::is_forbidden(&none), node.through_actuator(root)) {
        return a.have(&name, &why, format!("{how}: programs in the kernel (BPF), where its log says \"loaded\""));
    }
    let slow_ms = poll_ms.max(LEAST_BETWEEN_FILES.as_secs_f64() * 1e3);
    let read =
        format!("running threads are read from /proc every {slow_ms} ms, not every 50 us, and single waits are not known (no BPF: {none})");
    // Of this process, which has run: the counters are there or not for all.
    let counted = procfs::waited_of(root, "self").is_some();
    if *wants_waiting {
        let what = format!("{read}; the policy of {lender} decides by a wait that goes on, which no file shows");
        return a.lack(&name, &why, what, "Choose another policy, or let such programs be loaded (docs/privileges.md)");
    }
    if *wants_waits && !counted {
        let what = format!("{read}; waits of threads are not counted at all");
        let remedy = "Use a kernel with CONFIG_SCHED_INFO, or a policy that needs no waits: fixed-buffer-N, prev-peak, or smartharvest with settings = { guard.waits = 0 }";
        return a.lack(&name, &why, what, remedy);
    }
    a.lack(&name, &why, read, "None is needed: the mean wait of threads is looked at instead");
}
