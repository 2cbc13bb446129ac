//! Memory: pressure, limits, swap and what is compressed.

use super::{boot_option, cgroups, chosen, Area};
use crate::cgroup::{Mounts, Version};
use crate::root::Root;
use crate::working_set::{damon, is_off, LISTS, SWITCH};
use surefoot_server::CpuSet;

pub(super) fn look(root: &Root) -> Area {
    let mut a = Area::new("memory");
    psi(root, &mut a);
    cgroups::memory_files(root, &mut a);
    let has_swap = swap(root, &mut a);
    swap_room(root, has_swap, &mut a);
    let on = zswap(root, &mut a);
    zswap_settings(root, on, &mut a);
    working_set(root, &mut a);
    hot_add(root, &mut a);
    nodes(root, &mut a);
    huge_pages(root, &mut a);
    a
}

fn psi(root: &Root, a: &mut Area) {
    const WHY: &str = "seeing that a service waits for CPU, memory or disks before its latency tells";
    // With psi=0 the files are there, and reading them fails.
    if root.read("/proc/pressure/memory").is_some_and(|t| t.contains("some")) {
        if Mounts::read(root).version() == Some(Version::V2) {
            a.have("psi", WHY, "pressure of CPU, memory and disks is measured");
        } else {
            a.lack("psi", WHY, "pressure is measured of the whole host only: by service it takes cgroup v2", "See cgroup");
        }
    } else if boot_option(root, "psi").is_some_and(|v| ["0", "off", "n"].contains(&v.as_str())) {
        a.lack("psi", WHY, "switched off on the kernel's command line", "Boot with psi=1");
    } else {
        a.lack(
            "psi",
            WHY,
            "this kernel does not measure it, or it is off by default",
            "Boot with psi=1; that needs a kernel with CONFIG_PSI (Linux 4.20)",
        );
    }
}

fn swap(root: &Root, a: &mut Area) -> bool {
    const WHY: &str = "somewhere for cold memory to go; memory limits can only kill without it";
    let devices: Vec<String> = root
        .read("/proc/swaps")
        .unwrap_or_default()
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next().map(String::from))
        .collect();
    if devices.is_empty() {
        a.lack("swap", WHY, "no swap space", "mkswap and swapon a partition or file; where memory is all there is, zram");
    } else {
        a.have("swap", WHY, devices.join(", "));
    }
    !devices.is_empty()
}

/// "KEY: N kB" of a file in MiB; with the key wherever it stands in its line, as nodes write it.
fn mib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.split_once(key)?.1.strip_prefix(':'))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? >> 10)
}

fn swap_room(root: &Root, has_swap: bool, a: &mut Area) {
    const WHY: &str = "lowering a memory limit: each page that is compressed or written out takes a slot";
    const NAME: &str = "swap-room";
    /// Below this share of all slots what a limit can be lowered by is not much.
    const LEAST_FRAC: f64 = 0.125;
    let meminfo = root.read("/proc/meminfo").unwrap_or_default();
    match (has_swap, mib(&meminfo, "SwapFree"), mib(&meminfo, "SwapTotal")) {
        (false, ..) => a.lack(NAME, WHY, "no slot: a limit cannot be lower than what the pages of a service take", "See swap"),
        (true, Some(free), Some(all)) if free as f64 >= LEAST_FRAC * all as f64 => {
            a.have(NAME, WHY, format!("{free} of {all} MiB are free"))
        }
        (true, Some(free), Some(all)) => {
            let detail = format!("{free} of {all} MiB are free: pages beyond that stay where they are");
            a.lack(NAME, WHY, detail, "Give it more: mkswap and swapon another partition or file");
        }
        _ => a.lack(NAME, WHY, "/proc/meminfo does not say", "Look with: swapon --show"),
    }
}

fn zswap(root: &Root, a: &mut Area) -> bool {
    const WHY: &str = "compressing memory before it goes to the disk";
    match root.read("/sys/module/zswap/parameters/enabled").as_deref() {
        Some("Y" | "1") => {
            let with = root.read("/sys/module/zswap/parameters/compressor").map_or(String::new(), |c| format!(" ({c})"));
            a.have("zswap", WHY, format!("enabled{with}"));
            return true;
        }
        Some(_) => a.lack("zswap", WHY, "there, but off", "echo Y > /sys/module/zswap/parameters/enabled, and have some swap space"),
        None => a.lack("zswap", WHY, "this kernel has none: memory is limited without compression", "Use a kernel with CONFIG_ZSWAP"),
    }
    false
}

/// What zswap is set to, which holds for the whole host. The prepare role sets each on request (docs/playbooks.md).
fn zswap_settings(root: &Root, on: bool, a: &mut Area) {
    let at = |name: &str| format!("/sys/module/zswap/parameters/{name}");
    let set = |name: &str| root.read(at(name));
    let mut item = |name: &str, why: &str, found: Result<String, (String, String)>| match found {
        _ if !on => a.lack(name, why, "nothing is compressed", "See zswap"),
        Ok(detail) => a.have(name, why, detail),
        Err((detail, remedy)) => a.lack(name, why, detail, remedy),
    };
    let unsaid = |name: &str| (format!("{} cannot be read", at(name)), "Look as root".to_string());

    let compressor = set("compressor").ok_or_else(|| unsaid("compressor"));
    item(
        "zswap-compressor",
        "what a page costs when it goes and when it comes back (lzo-rle, lz4: little), and its size (zstd: less)",
        compressor,
    );

    let pool = match set("zpool").as_deref() {
        // Linux 6.18 has no other any more.
        None => Ok("zsmalloc, the only one of this kernel".into()),
        Some("zsmalloc") => Ok("zsmalloc".into()),
        Some(other) => Err((
            format!("{other}: it puts few pages into one, so what a group's files say of its pool is up to half of what the pool takes"),
            format!("echo zsmalloc > {}", at("zpool")),
        )),
    };
    item("zswap-pool", "as much in the pool as compression allows: the ratio that a policy reads is then that of memory", pool);

    let limit = match set("max_pool_percent").and_then(|t| t.parse::<u64>().ok()) {
        None => Err(unsaid("max_pool_percent")),
        Some(0) => Err(("0 %: every page goes to the disk".into(), format!("echo 20 > {}, or more", at("max_pool_percent")))),
        Some(pct) => Ok(format!("{pct} % of memory for all groups together; what exceeds it goes to the disk")),
    };
    item("zswap-pool-limit", "how much of the host's memory may hold compressed pages", limit);

    let shrinker = match set("shrinker_enabled").as_deref() {
        Some("Y" | "1") => Ok("on: where memory is short the oldest compressed pages go to the disk".into()),
        Some(_) => Err(("off: nothing shrinks a pool, so no limit is set below what a service's pages compress to".into(), {
            format!("echo Y > {}, where some swap space is", at("shrinker_enabled"))
        })),
        None => {
            Err(("this kernel has none: no limit is set below what a service's pages compress to".into(), "Use Linux 6.8 or newer".into()))
        }
    };
    item("zswap-shrinker", "limits below what pages compress to", shrinker);
}

/// What tells which pages are in use; the first that is there is used (`crate::working_set`).
fn working_set(root: &Root, a: &mut Area) {
    const WHY: &str = "knowing how much of its memory a service or job touches";
    let (monitors, switch) = (damon::monitors(root), root.read(SWITCH));
    let has = |file: &str| root.files.is_file(&root.path(file));
    match (monitors.as_deref(), switch.as_deref().is_some_and(|s| !is_off(s))) {
        (Some("0"), _) => a.have("working-set", WHY, "by DAMON, which looks at samples of pages"),
        (_, true) if has(LISTS) => a.have("working-set", WHY, format!("by the generations of the LRU ({LISTS})")),
        (_, false) if has("/proc/self/clear_refs") => {
            a.have("working-set", WHY, "by /proc/PID/clear_refs; of LC services with at most 1 GiB a process")
        }
        (monitors, is_on) => {
            let why = if monitors.is_some() { "other programs use DAMON" } else { "there is no DAMON" };
            let detail = format!("bounded by refaults alone, once pages are out: {why}, and nothing else tells");
            let lists = "mount -t debugfs debugfs /sys/kernel/debug, and look as root";
            a.lack("working-set", WHY, detail, if is_on { lists } else { "Use a kernel with CONFIG_DAMON_SYSFS (Linux 6.2)" });
        }
    }
    const DAMON: &str = "nothing else; it measures how much of its memory a service touches";
    if root.files.is_dir(&root.path("/sys/kernel/mm/damon")) {
        a.have("damon", DAMON, "there (/sys/kernel/mm/damon)");
    } else {
        a.lack("damon", DAMON, "this kernel has none, or has not mounted it", "None is needed");
    }
    const MGLRU: &str = "nothing; it chooses which pages go first";
    match switch.as_deref() {
        Some(off) if is_off(off) => a.have("mglru", MGLRU, "there, but off: two lists of pages, as before Linux 6.1"),
        Some(on) => a.have("mglru", MGLRU, format!("on ({on})")),
        None => a.lack("mglru", MGLRU, "this kernel has none", "None is needed"),
    }
}

fn hot_add(root: &Root, a: &mut Area) {
    const WHY: &str = "using memory that is added while the host runs";
    const AT: &str = "/sys/devices/system/memory/auto_online_blocks";
    match root.read(AT).as_deref() {
        Some("offline") => a.lack("memory-hot-add", WHY, "it stays off line until somebody puts it on line", format!("echo online > {AT}")),
        Some(how) => a.have("memory-hot-add", WHY, format!("it comes on line by itself ({how})")),
        None => a.lack("memory-hot-add", WHY, "this kernel adds none", "None is needed: memory limits go by what there is at start"),
    }
}

fn nodes(root: &Root, a: &mut Area) {
    const WHY: &str = "memory of a service near its CPUs";
    let online = root.read("/sys/devices/system/node/online").and_then(|t| CpuSet::of_kernel(&t).ok()).unwrap_or_default();
    let of = |n: u32| root.read(format!("/sys/devices/system/node/node{n}/meminfo"));
    let sizes: Vec<(u32, u64, u64)> =
        online.iter().filter_map(|n| of(n).and_then(|t| Some((n, mib(&t, "MemTotal")?, mib(&t, "MemFree")?)))).collect();
    let said: Vec<String> = sizes.iter().map(|(n, all, free)| format!("node {n}: {all} MiB, {free} free")).collect();
    let without: Vec<String> = sizes.iter().filter(|(_, all, _)| *all == 0).map(|(n, ..)| n.to_string()).collect();
    if sizes.is_empty() {
        a.lack("numa-memory", WHY, "sysfs does not say where memory is", "None is needed on a host of one node");
    } else if without.is_empty() {
        a.have("numa-memory", WHY, said.join("; "));
    } else {
        let detail = format!("{}; services on the CPUs of node {} have theirs elsewhere", said.join("; "), without.join(", "));
        a.lack("numa-memory", WHY, detail, "Fill the sockets alike, or manage CPUs of nodes with memory");
    }
}

fn huge_pages(root: &Root, a: &mut Area) {
    const WHY: &str = "nothing; it explains stalls of latency";
    match root.read("/sys/kernel/mm/transparent_hugepage/enabled").as_deref().map(chosen) {
        Some("always") => a.have("transparent-huge-pages", WHY, "always: making room for them can stall a service; madvise is steadier"),
        Some(mode) => a.have("transparent-huge-pages", WHY, mode),
        None => a.lack("transparent-huge-pages", WHY, "this kernel has none", "None is needed"),
    }
}
