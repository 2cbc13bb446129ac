//! Control groups: version, controllers, the right to write, partitions.

use super::{Area, Node};
use crate::cgroup::{Mounts, Version};
use crate::files::text;
use crate::root::Root;
use std::path::{Path, PathBuf};

/// How to come to cgroup v2.
fn unified(root: &Root) -> &'static str {
    if root.files.is_dir(&root.path("/run/systemd/system")) {
        "Boot with systemd.unified_cgroup_hierarchy=1 (cgroup v2)"
    } else {
        "Boot with cgroup_no_v1=all and mount -t cgroup2 none /sys/fs/cgroup (cgroup v2); in a container that is its host's affair"
    }
}
const WRITABLE: &str = "setting CPUs and quotas directly";
const PARTITIONS: &str = "CPUs that nobody else on the host may use, also those that Surefoot does not know";
/// Controllers, what they are for, and how much is lost without.
const CONTROLLERS: [(&str, &str); 4] = [
    ("cpu", "CPU quotas and weights; nothing can be controlled without it"),
    ("cpuset", "giving CPUs to services; nothing can be controlled without it"),
    ("memory", "memory limits, and reading what a service uses"),
    ("io", "reading how much a service waits for disks; nothing is decided by it"),
];

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    const WHY: &str = "every CPU and quota that a service gets";
    let mut a = Area::new("cgroup");
    let mounts = Mounts::read(root);
    let Some(version) = mounts.version() else {
        a.lack("cgroup", WHY, "no cpu and cpuset controllers: no CPU can be given to anybody", unified(root));
        for (name, needed_for) in CONTROLLERS {
            a.lack(&format!("cgroup-{name}"), needed_for, "no cgroup hierarchy is mounted", "See cgroup");
        }
        a.lack("cgroup-writable", WRITABLE, "no cgroup hierarchy is mounted", "See cgroup");
        a.lack("cpuset-partitions", PARTITIONS, "no cgroup hierarchy is mounted", "See cgroup");
        return a;
    };
    match version {
        Version::V2 => a.have("cgroup", WHY, "version 2"),
        Version::V1 => a.lack(
            "cgroup",
            "zswap limits, pressure by service, partitions",
            "version 1: CPUs, quotas and memory limits can be set, and no more",
            unified(root),
        ),
    }
    controllers(root, &mounts, version, &mut a);
    writable(root, &mounts, version, node, &mut a);
    partitions(root, &mounts, version, &mut a);
    a
}

fn controllers(root: &Root, mounts: &Mounts, version: Version, a: &mut Area) {
    let words = |file: &str| -> Vec<String> {
        let text = mounts.dir("").and_then(|d| text(root.files.as_ref(), d.join(file))).unwrap_or_default();
        text.split_whitespace().map(String::from).collect()
    };
    let (offered, handed_down) = match version {
        Version::V2 => (words("cgroup.controllers"), words("cgroup.subtree_control")),
        Version::V1 => (
            CONTROLLERS
                .iter()
                .map(|c| c.0)
                .filter(|c| mounts.dir(if *c == "io" { "blkio" } else { c }).is_some())
                .map(String::from)
                .collect(),
            vec![],
        ),
    };
    for (name, needed_for) in CONTROLLERS {
        let item = format!("cgroup-{name}");
        let off = boot_disabled(root, name);
        if !offered.iter().any(|c| c == name) {
            let why = if off { "switched off at boot (cgroup_disable)" } else { "not offered by this hierarchy" };
            let remedy = if off {
                format!("Boot without cgroup_disable={name}")
            } else {
                format!("Take {name} from the v1 hierarchies (cgroup_no_v1={name}), or use a kernel that has it")
            };
            a.lack(&item, needed_for, why, remedy);
        } else if version == Version::V2 && !handed_down.iter().any(|c| c == name) {
            a.lack(
                &item,
                needed_for,
                "offered, but not handed down to child groups",
                format!("echo +{name} > cgroup.subtree_control in each group above the services (systemd does so where a unit asks for it: CPUAccounting=, AllowedCPUs=, MemoryAccounting=, IOAccounting=)"),
            );
        } else if version == Version::V1 && name == "io" {
            a.lack(&item, needed_for, "mounted (blkio), which does not count waits by service", "See cgroup");
        } else {
            a.have(&item, needed_for, if version == Version::V2 { "offered and handed down" } else { "mounted" });
        }
    }
}

fn boot_disabled(root: &Root, controller: &str) -> bool {
    super::boot_option(root, "cgroup_disable").is_some_and(|l| l.split(',').any(|c| c == controller))
}

fn writable(root: &Root, mounts: &Mounts, version: Version, node: &Node<'_>, a: &mut Area) {
    let dirs: Vec<PathBuf> = match version {
        Version::V2 => mounts.dir("").into_iter().map(Path::to_path_buf).collect(),
        Version::V1 => ["cpu", "cpuset"].iter().filter_map(|c| mounts.dir(c)).map(Path::to_path_buf).collect(),
    };
    let shut = dirs.iter().map(|d| d.join("cgroup.procs")).find(|f| !root.files.writable(f));
    match (shut, node.through_actuator(root)) {
        (None, _) => a.have("cgroup-writable", WRITABLE, "CPUs and quotas of services can be set"),
        (Some(_), Some(Ok(how))) => a.have("cgroup-writable", WRITABLE, how),
        (Some(_), Some(Err(why))) => a.lack("cgroup-writable", WRITABLE, why, "See actuator"),
        (Some(f), None) => a.lack(
            "cgroup-writable",
            WRITABLE,
            format!("{} cannot be written; for containers the engine's own update call is used instead, other services cannot be changed", f.display()),
            "Run as root, reach the actuator, or give this user the cgroup (systemd: Delegate=yes). In a container: mount /sys/fs/cgroup writable",
        ),
    }
}

fn partitions(root: &Root, mounts: &Mounts, version: Version, a: &mut Area) {
    const WHY: &str = PARTITIONS;
    if version == Version::V1 {
        a.lack("cpuset-partitions", WHY, "cgroup v1 has none", "See cgroup");
        return;
    }
    let Some(child) = mounts.a_child() else {
        a.lack("cpuset-partitions", WHY, "no cgroup below the root to look at (a container of its own?)", "Look from the host");
        return;
    };
    let has = |file: &str| root.files.is_file(&child.join(file));
    match (has("cpuset.cpus.partition"), has("cpuset.cpus.exclusive")) {
        (true, true) => a.have("cpuset-partitions", WHY, "root and isolated partitions, directly below another partition"),
        (true, false) => a.have(
            "cpuset-partitions",
            WHY,
            "root and isolated partitions, directly below another partition; no cpuset.cpus.exclusive (Linux 6.7)",
        ),
        (false, _) if !has("cpuset.cpus") => {
            a.lack(
                "cpuset-partitions",
                WHY,
                "the cpuset controller is not handed down",
                "echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control",
            );
        }
        (false, _) => a.lack("cpuset-partitions", WHY, "this kernel has none", "Use Linux 5.4 or newer"),
    }
}

/// Files of the memory controller on a child group: (name, file, since, what for).
pub(super) fn memory_files(root: &Root, a: &mut Area) {
    const FILES: [(&str, &str, &str, &str); 4] = [
        ("memory-high", "memory.high", "4.5", "slowing a BE job's memory down before it is killed"),
        ("memory-reclaim", "memory.reclaim", "5.19", "taking cold memory from a service without a lasting limit"),
        ("zswap-limit", "memory.zswap.max", "5.19", "a limit on compressed memory by service"),
        (
            "zswap-writeback",
            "memory.zswap.writeback",
            "6.8",
            "nothing; 0 there keeps a service's pages off the disk, which its floor counts",
        ),
    ];
    let mounts = Mounts::read(root);
    if mounts.version() != Some(Version::V2) {
        for (name, _, _, why) in FILES {
            a.lack(name, why, "needs cgroup v2", "See cgroup");
        }
        return;
    }
    let child = mounts.a_child();
    let has = |file: &str| child.as_deref().is_some_and(|c: &Path| root.files.is_file(&c.join(file)));
    for (name, file, since, why) in FILES {
        if has(file) {
            a.have(name, why, file);
        } else if !has("memory.current") {
            a.lack(
                name,
                why,
                "the memory controller is not handed down to any group",
                "echo +memory > /sys/fs/cgroup/cgroup.subtree_control",
            );
        } else {
            a.lack(
                name,
                why,
                format!("this kernel has no {file}"),
                format!("Use Linux {since} or newer (zswap files also need CONFIG_ZSWAP)"),
            );
        }
    }
}
