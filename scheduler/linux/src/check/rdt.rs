//! resctrl: whether it can be had, what it offers, and how much of that is free.

use super::{boot_option, counted, cpu_flag, cpuinfo, Area, Node};
use crate::discover::discover_with;
use crate::files::text;
use crate::resctrl::info::Info;
use crate::resctrl::mba::Unit;
use crate::resctrl::{Resctrl, PREFIX};
use crate::root::Root;
use std::path::Path;

const WAYS: &str = "giving LLC ways to services";
const OTHERS: &str = "all ways of the cache for services";
const AGREE: &str = "masks of the caches that CPUs really use";
const BANDWIDTH: &str = "throttling the memory bandwidth of BE jobs";
const MBL: &str = "features mbl_mbps and nb_mbl_mbps, and seeing that memory is contended";

/// Folders of groups in `dir` of a mount.
fn folders(root: &Root, dir: &Path) -> Vec<String> {
    let fixed = ["info", "mon_data", "mon_groups"];
    let names = root.files.list(dir).unwrap_or_default();
    names.into_iter().filter(|n| !fixed.contains(&n.as_str()) && root.files.is_dir(&dir.join(n))).collect()
}

fn monitoring_groups(root: &Root, dir: &Path) -> usize {
    let of = |dir: &Path| folders(root, &dir.join("mon_groups")).len();
    of(dir) + folders(root, dir).iter().map(|g| of(&dir.join(g))).sum::<usize>()
}

/// Skylake-X and Cascade Lake: model 85, on which the kernel turns L3 CAT off unless the boot line says otherwise.
fn turned_off_by_kernel(root: &Root) -> bool {
    cpuinfo(root, "vendor_id").as_deref() == Some("GenuineIntel")
        && cpuinfo(root, "cpu family").as_deref() == Some("6")
        && cpuinfo(root, "model").as_deref() == Some("85")
}

fn asked_at_boot(root: &Root, feature: &str) -> bool {
    boot_option(root, "rdt").is_some_and(|l| l.split(',').any(|f| f == feature))
}

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    let mut a = Area::new("resctrl");
    boot(root, &mut a);
    let known = root.read("/proc/filesystems").is_some_and(|t| t.lines().any(|l| l.split_whitespace().last() == Some("resctrl")));
    let Some(r) = node.resctrl(root) else {
        let each = "ways and bandwidth cannot be given";
        if let Some(at) = node.resctrl {
            let remedy = "Mount it first (docs/resctrlfs.md), or leave resctrl out of the configuration";
            a.lack("resctrl", WAYS, format!("nothing like it is mounted on {}: {each}", at.display()), remedy);
        } else if known {
            let fstab = "; to keep it over a boot: resctrl /sys/fs/resctrl resctrl defaults 0 0 in /etc/fstab";
            a.lack(
                "resctrl",
                WAYS,
                format!("supported but not mounted: {each}"),
                format!("mount -t resctrl resctrl /sys/fs/resctrl{fstab}"),
            );
        } else if cpu_flag(root, "hypervisor") {
            a.lack(
                "resctrl",
                WAYS,
                format!("a virtual machine without it: {each}"),
                "Use the physical host; to try Surefoot without: `surefootd resctrlfs`, a stand-in (docs/resctrlfs.md)",
            );
        } else {
            a.lack(
                "resctrl",
                WAYS,
                format!("this kernel or processor has none: {each}"),
                "Use a physical host with Intel RDT or AMD QoS and a kernel with CONFIG_X86_CPU_RESCTRL; on Skylake and Cascade Lake boot with rdt=l3cat,mba",
            );
        }
        for (name, why) in
            [("l3-cat", WAYS), ("ways-of-others", OTHERS), ("l3-domains-agree", AGREE), ("mba", BANDWIDTH), ("l3-monitoring", MBL)]
        {
            a.lack(name, why, "resctrl is not there", "See resctrl");
        }
        return a;
    };
    mounted(root, &r, node, &mut a);
    cat(r.info(), &mut a);
    left(root, &r, &mut a);
    cdp(root, r.info(), &mut a);
    mba(r.info(), &mut a);
    budget(root, &r, &mut a);
    monitoring(root, &r, &mut a);
    a
}

/// Control groups that are not ours; none without a mount.
pub(super) fn foreign_groups(root: &Root, node: &Node<'_>) -> Vec<String> {
    let Some(r) = node.resctrl(root) else { return vec![] };
    let named = |g: String| match text(root.files.as_ref(), r.dir().join(&g).join("mode")).as_deref() {
        None | Some("" | "shareable") => g,
        Some(mode) => format!("{g} ({mode})"),
    };
    folders(root, r.dir()).into_iter().filter(|g| !g.starts_with(PREFIX)).map(named).collect()
}

fn boot(root: &Root, a: &mut Area) {
    const NAME: &str = "rdt-boot-line";
    if !turned_off_by_kernel(root) {
        a.have(NAME, WAYS, "this processor needs none");
    } else if asked_at_boot(root, "l3cat") {
        a.have(NAME, WAYS, "rdt=l3cat is on the kernel's command line");
    } else {
        a.lack(
            NAME,
            WAYS,
            "Skylake or Cascade Lake server (model 85): the kernel turns L3 CAT off by default, for errata",
            "Boot with rdt=l3cat,mba,cmt,mbmtotal,mbmlocal; grubby --update-kernel=ALL --args=..., or GRUB_CMDLINE_LINUX and update-grub",
        );
    }
}

fn mounted(root: &Root, r: &Resctrl, node: &Node<'_>, a: &mut Area) {
    let groups = folders(root, r.dir());
    let ours = groups.iter().filter(|g| g.starts_with(PREFIX)).count();
    let fstab = root.read("/etc/fstab").is_some_and(|t| t.lines().any(|l| l.split_whitespace().nth(2) == Some("resctrl")));
    let by = if fstab { "by /etc/fstab" } else { "by hand or by a service: /etc/fstab does not name it" };
    let detail = format!("mounted {by} ({}); {} of ours, {} of others", r.info().options, counted(ours, "group"), groups.len() - ours);
    a.have("resctrl", WAYS, detail);
    match (root.files.writable(&r.dir().join("schemata")), node.through_actuator(root)) {
        (true, _) => a.have("resctrl-writable", WAYS, "groups can be set"),
        (false, Some(Ok(how))) => a.have("resctrl-writable", WAYS, how),
        (false, Some(Err(why))) => a.lack("resctrl-writable", WAYS, why, "See actuator"),
        (false, None) => a.lack(
            "resctrl-writable",
            WAYS,
            "this user cannot write it",
            "Run as root, or reach the actuator. In a container: mount the host's /sys/fs/resctrl writable, with the host's pid namespace",
        ),
    }
}

fn cat(info: &Info, a: &mut Area) {
    let Some(l3) = &info.l3 else {
        a.lack("l3-cat", WAYS, "no L3 allocation", "On Skylake and Cascade Lake boot with rdt=l3cat; else this processor has none");
        return;
    };
    let shared = match l3.shareable_bits {
        0 => "none shared with devices".to_string(),
        bits => format!("{bits:#x} shared with devices (what is alone there is not alone)"),
    };
    let gaps = if l3.sparse_masks { "masks may have gaps" } else { "masks have no gaps" };
    let (ways, least) = (l3.cbm_mask.count_ones(), l3.min_cbm_bits);
    a.have("l3-cat", WAYS, format!("{ways} ways, at least {least} in a mask, {shared}, {gaps}"));
}

/// What others leave of the ways, and whether the domains are those of the CPUs.
fn left(root: &Root, r: &Resctrl, a: &mut Area) {
    let found = match discover_with(root, None, Some(r)) {
        Ok(found) => found,
        Err(e) => {
            a.lack("ways-of-others", OTHERS, e.to_string(), "Mount sysfs on /sys");
            a.lack("l3-domains-agree", AGREE, "sysfs is not there", "Mount sysfs on /sys");
            return;
        }
    };
    let on_offer = format!("{} of {} are on offer", found.offer.ways, r.cbm_bits().unwrap_or(0));
    if found.offer.taken.is_empty() {
        a.have("ways-of-others", OTHERS, format!("none: {on_offer}"));
    } else {
        let remedy =
            "None is needed: they are kept off. To have them, make the group shareable (echo shareable > mode in its folder) or remove it";
        a.lack("ways-of-others", OTHERS, format!("{}: {on_offer}", found.offer.taken.join("; ")), remedy);
    }
    match found.differ {
        None => a.have("l3-domains-agree", AGREE, format!("{} of both", found.platform.l3_domains())),
        Some(what) => a.lack(
            "l3-domains-agree",
            AGREE,
            what,
            if r.is_stand_in() {
                "Give `surefootd resctrlfs` a platform with as many L3 caches as this host (llc.domains)"
            } else {
                "Compare: cat /sys/devices/system/cpu/cpu*/cache/index3/id, and the ids in schemata; in a virtual machine have its host show the caches"
            },
        ),
    }
}

fn cdp(root: &Root, info: &Info, a: &mut Area) {
    const WHY: &str = "nothing: code and data get the same ways";
    if info.cdp() {
        a.have("l3-cdp", WHY, "mounted with cdp: code and data apart, with half the classes");
    } else if cpu_flag(root, "cdp_l3") {
        a.have("l3-cdp", WHY, "possible (mount option cdp), not used");
    } else {
        a.lack("l3-cdp", WHY, "this processor, or this kernel's list of its flags, has none", "None is needed");
    }
}

fn mba(info: &Info, a: &mut Area) {
    let Some(m) = &info.mba else {
        a.lack(
            "mba",
            BANDWIDTH,
            "no memory bandwidth allocation",
            "On Skylake and Cascade Lake boot with rdt=mba; else this processor has none",
        );
        return;
    };
    const PEAK: &str = "per cent need the peak bandwidth (mem_bw_mbps in node.toml, or a bundle of this platform)";
    let unit = match m.unit {
        Unit::Percent => format!("{} to 100 % in steps of {}", m.min, m.step),
        Unit::MbPerS => format!("in MB/s, by the kernel's own measurement once a second (mba_MBps); {PEAK}"),
        Unit::EighthGbPerS => format!("in eighths of a GB/s for each L3 domain (AMD); {PEAK}"),
    };
    let delay = if m.linear { ", linear delay" } else { "" };
    let throttle = match m.throttle_mode.as_deref() {
        Some("max") => ", a throttled thread slows its sibling too",
        Some("per-thread") => ", by thread",
        _ => "",
    };
    a.have("mba", BANDWIDTH, format!("{unit}{delay}{throttle}"));
}

fn budget(root: &Root, r: &Resctrl, a: &mut Area) {
    const CLASSES: &str = "ways of its own for every service; services share classes beyond";
    const RMIDS: &str = "counters of its own for every service";
    let groups = folders(root, r.dir()).len();
    // The default group has one of each.
    let (n, used) = (r.info().num_closids as usize, groups + 1);
    let detail = format!("{n}, {} free", n.saturating_sub(used));
    if used < n {
        a.have("classes", CLASSES, detail);
    } else {
        a.lack("classes", CLASSES, detail, "Remove groups that nobody needs (rmdir in the mount); mount without cdp, which halves them");
    }
    let Some(m) = &r.info().monitoring else { return };
    let (n, used) = (m.num_rmids as usize, groups + 1 + monitoring_groups(root, r.dir()));
    let detail = format!("{n}, {} free", n.saturating_sub(used));
    if used < n {
        a.have("rmids", RMIDS, detail);
    } else {
        let remedy = "Remove monitoring groups that nobody needs (rmdir in mon_groups); an id is free again when its cache lines are gone";
        a.lack("rmids", RMIDS, detail, remedy);
    }
}

fn monitoring(root: &Root, r: &Resctrl, a: &mut Area) {
    let m = r.info().monitoring.clone().unwrap_or_default();
    if !r.info().monitors("mbm_local_bytes") {
        let what = if m.features.is_empty() { "no monitoring".to_string() } else { format!("{} only", m.features.join(", ")) };
        a.lack(
            "l3-monitoring",
            MBL,
            format!("{what}: feature mbl_mbps is null"),
            "Boot with rdt=cmt,mbmtotal,mbmlocal where the processor has it",
        );
        return;
    }
    let free = m.max_threshold_occupancy_bytes;
    let free = free.map_or(String::new(), |b| format!("; an id is free again below {b} bytes (max_threshold_occupancy)"));
    a.have("l3-monitoring", MBL, format!("{}{free}", m.features.join(", ")));
    const ASSIGN: &str = "counters that stay with their group (AMD)";
    match m.mbm_assign_mode.as_deref().map(super::chosen) {
        None => a.have("mbm-counters", ASSIGN, "no choice on this kernel and processor"),
        Some("mbm_event") => {
            let n = text(root.files.as_ref(), r.dir().join("info/L3_MON/num_mbm_cntrs")).unwrap_or_else(|| "?".into());
            a.have("mbm-counters", ASSIGN, format!("mbm_event, {n} counters"));
        }
        Some(mode) => a.lack(
            "mbm-counters",
            ASSIGN,
            format!("mode {mode}: with many groups the hardware moves counters about, and readings become Unavailable"),
            "echo mbm_event > info/L3_MON/mbm_assign_mode, while no tool counts",
        ),
    }
}
