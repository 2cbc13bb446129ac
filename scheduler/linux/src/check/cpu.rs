//! Processors: how many, how they hang together, and which of them cannot be given.

use super::{counted, Area, Node};
use crate::discover::{
    default_managed, l3, online, siblings, unlike, L3Cache, Unlike, ALL_KNOWN, CACHES_ALIKE, CORES_ALIKE, WHOLE_CORE_CPUS,
};
use crate::root::Root;
use std::collections::BTreeSet;
use surefoot_server::CpuSet;

const HOLD: &str = "holding services apart by CPU";
const SOCKETS: &str = "keeping a service on one socket";
const SMT: &str = "giving whole cores before sibling threads";
const L3: &str = "keeping a service in one cache";
const NUMA: &str = "memory beside the CPUs that use it";
const SPREAD: &str = "CPUs on which the scheduler spreads threads";
const ALL: &str = "all the processors that are there";

const ALIKE: &str = "counting each core as one";
const CACHES: &str = "counting each way as one, whichever the cache";
const KNOWN: &str = "giving every processor that is there";

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    let mut a = Area::new("cpu");
    let set = match online(root) {
        Ok(set) => set,
        Err(e) => {
            a.lack("cpus", HOLD, e.to_string(), "Mount sysfs on /sys");
            for (name, why) in [
                ("sockets", SOCKETS),
                ("smt", SMT),
                ("l3-domains", L3),
                (CORES_ALIKE, ALIKE),
                (CACHES_ALIKE, CACHES),
                (ALL_KNOWN, KNOWN),
                ("numa", NUMA),
                ("no-isolated-cpus", SPREAD),
                ("all-cpus-on-line", ALL),
            ] {
                a.lack(name, why, "sysfs is not there", "See cpus");
            }
            return a;
        }
    };
    let managed = default_managed(&set);
    let step = if set.len() < WHOLE_CORE_CPUS { "0.1 core by quota, for want of cores" } else { "1 core" };
    // In a container lxcfs makes up a list of its own.
    let listed =
        root.read("/proc/cpuinfo").map_or(0, |t| t.lines().filter(|l| l.split(':').next().map(str::trim) == Some("processor")).count());
    let fewer = if listed > 0 && listed < set.len() as usize {
        format!("; /proc/cpuinfo shows {listed} (lxcfs?), which is not gone by")
    } else {
        String::new()
    };
    a.have("cpus", HOLD, format!("{} on line ({set}), managed by default {managed}, in steps of {step}{fewer}", set.len()));
    topology(root, &set, &mut a);
    alike(root, node, &managed, &mut a);
    numa(root, &mut a);
    let list = |file: &str| {
        root.read(format!("/sys/devices/system/cpu/{file}")).and_then(|t| CpuSet::of_kernel(&t).ok()).filter(|s| !s.is_empty())
    };
    match list("isolated") {
        None => a.have("no-isolated-cpus", SPREAD, "none is isolated"),
        Some(cut) => a.lack(
            "no-isolated-cpus",
            SPREAD,
            format!("{cut} are isolated (isolcpus): threads of a service are not spread over them"),
            "Leave them out (`cpus` in node.toml, --cpus), or boot without isolcpus",
        ),
    }
    match list("offline") {
        None => a.have("all-cpus-on-line", ALL, "none is off line"),
        Some(off) => a.lack(
            "all-cpus-on-line",
            ALL,
            format!("{off} are off line"),
            "echo 1 > /sys/devices/system/cpu/cpuN/online, unless they were taken off line on purpose; then start surefootd again",
        ),
    }
    a
}

fn topology(root: &Root, set: &CpuSet, a: &mut Area) {
    let of = |cpu: u32, file: &str| root.read(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}"));
    let packages: BTreeSet<String> = set.iter().filter_map(|c| of(c, "physical_package_id")).collect();
    if packages.is_empty() {
        a.lack("sockets", SOCKETS, "sysfs shows no topology: all CPUs count as one socket", "Mount sysfs of the host on /sys");
        a.lack("smt", SMT, "sysfs shows no topology: every CPU counts as a core", "Mount sysfs of the host on /sys");
    } else {
        a.have("sockets", SOCKETS, counted(packages.len(), "socket"));
        let most = set.iter().map(|c| siblings(root, c).intersection(*set).len()).max().unwrap_or(1);
        a.have("smt", SMT, if most > 1 { format!("{most} threads a core") } else { "one thread a core".into() });
    }
    let l3: Vec<L3Cache> = set.iter().filter_map(|cpu| l3(root, cpu)).collect();
    let domains: BTreeSet<&L3Cache> = l3.iter().collect();
    if domains.is_empty() {
        a.lack(
            "l3-domains",
            L3,
            "sysfs shows no L3 cache (usual in virtual machines): a socket counts as one",
            "None is needed where a socket has one cache; else have the virtual machine's host show it (QEMU: -cpu host,host-cache-info=on)",
        );
    } else {
        let ids: Vec<String> = domains.iter().map(|d| d.id.to_string()).collect();
        let first = domains.first().copied();
        let size = first.and_then(|d| d.bytes).map_or("unknown size".into(), |b| format!("{}K", b / 1024));
        let cpus = l3.iter().filter(|l| Some(*l) == first).count();
        let what = format!("{} of {size} (ids {}), {cpus} CPUs in the first", counted(domains.len(), "cache"), ids.join(" "));
        a.have("l3-domains", L3, what);
    }
}

/// Whether the CPUs of a plan are what it takes them for.
fn alike(root: &Root, node: &Node<'_>, managed: &CpuSet, a: &mut Area) {
    let found = unlike(root, managed, node.resctrl(root).as_ref());
    for (item, why, fine) in [
        (CORES_ALIKE, ALIKE, "cores are of one kind, as far as the kernel tells"),
        (CACHES_ALIKE, CACHES, "L3 caches are of one size, as far as the kernel tells"),
        (ALL_KNOWN, KNOWN, "no CPU has a number that is too high"),
    ] {
        let of: Vec<&Unlike> = found.iter().filter(|u| u.item == item).collect();
        let join = |part: fn(&Unlike) -> &String| of.iter().map(|u| part(u).as_str()).collect::<Vec<_>>().join("; ");
        if of.is_empty() {
            a.have(item, why, fine);
        } else {
            a.lack(item, why, join(|u| &u.what), join(|u| &u.remedy));
        }
    }
}

fn numa(root: &Root, a: &mut Area) {
    match root.read("/sys/devices/system/node/online").and_then(|t| CpuSet::of_kernel(&t).ok()) {
        Some(nodes) => a.have("numa", NUMA, counted(nodes.len() as usize, "node")),
        None => a.lack(
            "numa",
            NUMA,
            "this kernel shows no NUMA nodes: memory counts as one",
            "Use a kernel with CONFIG_NUMA where the host has several nodes",
        ),
    }
}
