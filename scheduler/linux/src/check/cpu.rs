//! Processors: how many, how they hang together, and which of them cannot be given.

use super::{counted, Area};
use crate::discover::{default_managed, discover, online, WHOLE_CORE_CPUS};
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

pub(super) fn look(root: &Root) -> Area {
    let mut a = Area::new("cpu");
    let set = match online(root) {
        Ok(set) => set,
        Err(e) => {
            a.lack("cpus", HOLD, e.to_string(), "Mount sysfs on /sys");
            for (name, why) in [
                ("sockets", SOCKETS),
                ("smt", SMT),
                ("l3-domains", L3),
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
    a.have("cpus", HOLD, format!("{} on line ({set}), managed by default {managed}, in steps of {step}", set.len()));
    topology(root, &set, &mut a);
    numa(root, &mut a);
    let list =
        |file: &str| root.read(format!("/sys/devices/system/cpu/{file}")).and_then(|t| CpuSet::parse(&t).ok()).filter(|s| !s.is_empty());
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
        let threads = set.iter().filter_map(|c| CpuSet::parse(&of(c, "core_cpus_list").or_else(|| of(c, "thread_siblings_list"))?).ok());
        let most = threads.map(|s| s.len()).max().unwrap_or(1);
        a.have("smt", SMT, if most > 1 { format!("{most} threads a core") } else { "one thread a core".into() });
    }
    let l3: Vec<(String, String)> = set
        .iter()
        .filter_map(|cpu| {
            (0..8).find_map(|i| {
                let at = |file: &str| root.read(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{i}/{file}"));
                (at("level")? == "3")
                    .then(|| (at("id").or_else(|| at("shared_cpu_list")).unwrap_or_default(), at("size").unwrap_or_default()))
            })
        })
        .collect();
    let domains: BTreeSet<&(String, String)> = l3.iter().collect();
    if domains.is_empty() {
        a.lack(
            "l3-domains",
            L3,
            "sysfs shows no L3 cache (usual in virtual machines): a socket counts as one",
            "None is needed where a socket has one cache; else have the virtual machine's host show it (QEMU: -cpu host,host-cache-info=on)",
        );
    } else {
        let ids: Vec<&str> = domains.iter().map(|d| d.0.as_str()).collect();
        let size = domains.iter().next().map_or("", |d| d.1.as_str());
        let most = discover(root, None)
            .map_or(String::new(), |p| format!(", {} CPUs in the first", p.l3_domain_of_cpu.iter().filter(|d| **d == 0).count()));
        a.have("l3-domains", L3, format!("{} of {size} (ids {}){most}", counted(domains.len(), "cache"), ids.join(" ")));
    }
}

fn numa(root: &Root, a: &mut Area) {
    match root.read("/sys/devices/system/node/online").and_then(|t| CpuSet::parse(&t).ok()) {
        Some(nodes) => a.have("numa", NUMA, counted(nodes.len() as usize, "node")),
        None => a.lack(
            "numa",
            NUMA,
            "this kernel shows no NUMA nodes: memory counts as one",
            "Use a kernel with CONFIG_NUMA where the host has several nodes",
        ),
    }
}
