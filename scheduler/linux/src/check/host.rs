//! The host around: kernel, container engine, service manager, time, FUSE, and who else sets what Surefoot sets.

use super::{boot_option, chosen, cpu_flag, cpuinfo, rdt, Area, Node, Probes};
use crate::procfs;
use crate::root::Root;
use std::collections::BTreeSet;

/// Programs that write cgroups or resctrl of others, by the name that /proc shows.
const WRITERS: [&str; 12] = [
    "kubelet",
    "koordlet",
    "katalyst-agent",
    "crane-agent",
    "rubik",
    "nri-resource-po",
    "pqos",
    "rdtset",
    "rmd",
    "wca",
    "oomd",
    "systemd-oomd",
];

pub(super) fn look(root: &Root, node: &Node<'_>, probes: &Probes) -> Area {
    let mut a = Area::new("host");
    kernel(root, &mut a);
    const ENGINE: &str = "starting services of the catalogue, and services given by container";
    match &probes.engine {
        Ok(version) => a.have("container-engine", ENGINE, format!("version {version} answers")),
        Err(why) => a.lack(
            "container-engine",
            ENGINE,
            why.clone(),
            "Install Docker or Podman and start it; services given by cgroup, unit or pid need none",
        ),
    }
    systemd(root, probes, &mut a);
    fuse(root, &mut a);
    clock(root, &mut a);
    writers(root, node, &mut a);
    rights(root, node, &mut a);
    a
}

fn kernel(root: &Root, a: &mut Area) {
    const WHY: &str = "knowing which files to expect";
    let release = root.read("/proc/sys/kernel/osrelease");
    let words = root.read("/proc/cmdline").unwrap_or_default();
    let line = if words.is_empty() { "unknown".to_string() } else { words };
    match release {
        Some(r) => a.have("kernel", WHY, format!("Linux {r}; command line: {line}")),
        None => a.lack("kernel", WHY, "its version is not shown", "Mount proc on /proc"),
    }
    const BARE: &str = "control of caches and bandwidth, and counters; figures that others cannot disturb";
    let model = cpuinfo(root, "model name").unwrap_or_else(|| "unknown processor".into());
    if cpu_flag(root, "hypervisor") {
        a.lack(
            "bare-metal",
            BARE,
            format!("a virtual machine ({model})"),
            "Use the physical host for figures that count; to try things this one does, and `--server virtual:server-1`",
        );
    } else {
        a.have("bare-metal", BARE, model);
    }
}

fn systemd(root: &Root, probes: &Probes, a: &mut Area) {
    const MANAGER: &str = "services given by unit, and a daemon that is started again when it dies";
    const NOTIFY: &str = "telling the service manager that the daemon is ready";
    const WATCHDOG: &str = "a daemon that hangs is ended, and the safe layout restored";
    if root.files.is_dir(&root.path("/run/systemd/system")) {
        a.have("systemd", MANAGER, "runs this host");
    } else {
        a.lack(
            "systemd",
            MANAGER,
            "does not run this host, or is not seen from here",
            "Run surefootd under another supervisor that runs `surefootd reset` when it ends",
        );
        a.lack("systemd-notify", NOTIFY, "no systemd", "See systemd; anything that gives NOTIFY_SOCKET does");
        a.lack("systemd-watchdog", WATCHDOG, "no systemd", "See systemd");
        return;
    }
    if probes.notify {
        a.have("systemd-notify", NOTIFY, "this process is to tell (NOTIFY_SOCKET)");
    } else {
        a.have("systemd-notify", NOTIFY, "available (Type=notify); this process was not started by a unit");
    }
    match probes.watchdog_us {
        Some(us) => a.have("systemd-watchdog", WATCHDOG, format!("every {:.1} s (WATCHDOG_USEC)", us as f64 * 1e-6)),
        None => a.have("systemd-watchdog", WATCHDOG, "available (WatchdogSec=); this process was not started by a unit"),
    }
}

fn fuse(root: &Root, a: &mut Area) {
    const WHY: &str = "`surefootd resctrlfs`, to try things without the hardware";
    let known = root.read("/proc/filesystems").is_some_and(|t| t.lines().any(|l| l.split_whitespace().last() == Some("fuse")));
    let device = root.path("/dev/fuse");
    match (root.files.writable(&device), root.files.is_file(&device) || device.exists(), known) {
        (true, ..) => a.have("fuse", WHY, "/dev/fuse can be opened"),
        (false, true, _) => {
            a.lack("fuse", WHY, "/dev/fuse cannot be opened by this user", "Run as root, or chmod 666 /dev/fuse (the usual mode)")
        }
        (false, false, true) => a.lack(
            "fuse",
            WHY,
            "known to the kernel, but there is no /dev/fuse",
            "mknod /dev/fuse c 10 229; in a container: --device /dev/fuse",
        ),
        (false, false, false) => a.lack("fuse", WHY, "not there", "modprobe fuse, or a kernel with CONFIG_FUSE_FS"),
    }
}

fn clock(root: &Root, a: &mut Area) {
    const WHY: &str = "latencies and rates whose time costs nothing to read";
    let at = "/sys/devices/system/clocksource/clocksource0";
    let Some(now) = root.read(format!("{at}/current_clocksource")) else {
        a.lack("time-source", WHY, "not shown", "Mount sysfs of the host on /sys");
        return;
    };
    if ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"].contains(&now.as_str()) {
        a.have("time-source", WHY, now);
    } else {
        let others = root.read(format!("{at}/available_clocksource")).unwrap_or_default();
        let tsc = if others.split_whitespace().any(|c| c == "tsc") {
            format!("echo tsc > {at}/current_clocksource, if the kernel log does not call the TSC unstable")
        } else {
            "Look in the kernel's log why it left the TSC (boot option tsc=reliable, where the hardware is sound)".into()
        };
        a.lack("time-source", WHY, format!("{now}: each reading of the time is a system call or worse"), tsc);
    }
}

/// Programs running here that set cgroups or resctrl for others.
fn running_writers(root: &Root) -> BTreeSet<String> {
    let names = root.files.list(&root.path("/proc")).unwrap_or_default();
    let pids = names.iter().filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
    pids.filter_map(|p| root.read(format!("/proc/{p}/comm"))).filter(|c| WRITERS.contains(&c.as_str())).collect()
}

fn writers(root: &Root, node: &Node<'_>, a: &mut Area) {
    const WHY: &str = "allocations that stay as they were set";
    let mut all: Vec<String> = running_writers(root).into_iter().map(|w| format!("{w} runs")).collect();
    let groups = rdt::foreign_groups(root, node);
    if !groups.is_empty() {
        all.push(format!("resctrl groups of others: {}", groups.join(", ")));
    }
    if root.read("/var/lib/kubelet/cpu_manager_state").is_some_and(|t| t.contains("\"policyName\":\"static\"")) {
        all.push("the kubelet's CPU manager has policy static, and rewrites cpusets".into());
    }
    if all.is_empty() {
        a.have("no-foreign-writers", WHY, "none is seen");
    } else {
        a.lack(
            "no-foreign-writers",
            WHY,
            all.join("; "),
            "Nothing of theirs is touched. Give them other services than Surefoot, other CPUs (`cpus`), and the kubelet cpuManagerPolicy none for these",
        );
    }
}

/// Capability bits that matter, and for what.
const RIGHTS: [(u32, &str, &str); 5] = [
    (1, "dac_override", "writing cgroup and resctrl files of root"),
    (21, "sys_admin", "mounting resctrl"),
    (23, "sys_nice", "moving threads of other users between CPUs"),
    (38, "perfmon", "counting for other users"),
    (19, "sys_ptrace", "reading what other users' processes use"),
];

fn rights(root: &Root, node: &Node<'_>, a: &mut Area) {
    const WHY: &str = "doing by itself what the actuator does otherwise";
    let status = root.read("/proc/self/status").unwrap_or_default();
    let Some(bits) = procfs::capabilities(&status, "CapEff") else {
        a.lack("capabilities", WHY, "not shown", "Mount proc on /proc");
        return;
    };
    let has = |bit: u32| bits >> bit & 1 == 1;
    let held: Vec<&str> = RIGHTS.iter().filter(|r| has(r.0)).map(|r| r.1).collect();
    let lost: Vec<String> =
        RIGHTS.iter().filter(|r| !(has(r.0) || r.0 == 38 && has(21))).map(|(_, n, why)| format!("{n} ({why})")).collect();
    let held = if held.is_empty() { "none of those that matter".to_string() } else { held.join(", ") };
    if lost.is_empty() {
        a.have("capabilities", WHY, format!("{held} ({bits:#x})"));
    } else if let Some(Ok(how)) = node.through_actuator(root) {
        a.have("capabilities", WHY, format!("{held} ({bits:#x}), and none is needed: {how}"));
    } else {
        a.lack(
            "capabilities",
            WHY,
            format!("{held} ({bits:#x}); without {}", lost.join(", ")),
            "Run as root, or let the actuator hold them: the deciding process needs none",
        );
    }
    // Locked down by secure boot, debugfs and MSRs are shut, which nothing here uses.
    if let Some(mode) = root.read("/sys/kernel/security/lockdown").map(|t| chosen(&t).to_string()).filter(|m| m != "none") {
        let perf = boot_option(root, "lockdown").is_some();
        a.have("lockdown", "nothing: MSRs and debugfs are not used", format!("{mode}{}", if perf { " (by the command line)" } else { "" }));
    }
}
