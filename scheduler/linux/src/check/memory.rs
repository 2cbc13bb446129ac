//! Memory: pressure, limits, swap and what is compressed.

use super::{boot_option, cgroups, chosen, Area};
use crate::cgroup::{Mounts, Version};
use crate::root::Root;

pub(super) fn look(root: &Root) -> Area {
    let mut a = Area::new("memory");
    psi(root, &mut a);
    cgroups::memory_files(root, &mut a);
    swap(root, &mut a);
    zswap(root, &mut a);
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

fn swap(root: &Root, a: &mut Area) {
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
}

fn zswap(root: &Root, a: &mut Area) {
    const WHY: &str = "compressing the memory of BE jobs";
    match root.read("/sys/module/zswap/parameters/enabled").as_deref() {
        Some("Y" | "1") => {
            let with = root.read("/sys/module/zswap/parameters/compressor").map_or(String::new(), |c| format!(" ({c})"));
            a.have("zswap", WHY, format!("enabled{with}"));
        }
        Some(_) => a.lack("zswap", WHY, "there, but off", "echo Y > /sys/module/zswap/parameters/enabled, and have some swap space"),
        None => a.lack("zswap", WHY, "this kernel has none: memory is limited without compression", "Use a kernel with CONFIG_ZSWAP"),
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
