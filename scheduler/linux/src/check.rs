//! What this host can and cannot do, each gap with its remedy.

use crate::cgroup::{Mounts, Version};
use crate::discover::{default_managed, online, WHOLE_CORE_CPUS};
use crate::engine::Engine;
use crate::perf;
use crate::procfs::frequency_mhz;
use crate::resctrl::{mount_options, Resctrl};
use crate::root::Root;
use serde::Serialize;
use std::fs::OpenOptions;

/// One ability of this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    pub name: String,
    pub found: bool,
    /// What was found, or what that means for Surefoot where it was not.
    pub detail: String,
    /// What to do about a gap; None where nothing is missing or nothing can be done.
    pub remedy: Option<String>,
}

fn have(name: &str, detail: impl Into<String>) -> Capability {
    Capability { name: name.into(), found: true, detail: detail.into(), remedy: None }
}

fn lack(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Capability {
    Capability { name: name.into(), found: false, detail: detail.into(), remedy: Some(remedy.into()) }
}

/// Look at everything; changes nothing.
pub fn check(root: &Root) -> Vec<Capability> {
    let mut all = vec![cpus(root)];
    all.extend(cgroups(root));
    all.extend(resctrl(root));
    all.push(match perf::probe() {
        Ok(()) => have("pmu", "cycles, instructions and LLC misses can be counted"),
        Err(why) => lack(
            "pmu",
            format!("{why}: features ipc and llc_misses_per_s are null (feature set no-pmu)"),
            "On a physical host: sysctl kernel.perf_event_paranoid=0, or run as root. A virtual machine needs a virtual PMU from its host",
        ),
    });
    all.push(match frequency_mhz(root, &online(root).unwrap_or_default()) {
        Some(mhz) => have("frequency", format!("{mhz:.0} MHz now")),
        None => lack("frequency", "feature core_freq_mhz is null", "Load a cpufreq driver"),
    });
    all.push(zswap(root));
    all.push(match Engine::find() {
        Ok(e) => match e.version() {
            Ok(v) => have("container-engine", format!("version {v} answers")),
            Err(e) => lack("container-engine", e.to_string(), "Run scripts/engine.sh"),
        },
        Err(e) => lack("container-engine", e.to_string(), "Run scripts/engine.sh"),
    });
    all
}

fn cpus(root: &Root) -> Capability {
    match online(root) {
        Err(e) => lack("cpus", e.to_string(), "Mount sysfs on /sys"),
        Ok(set) => {
            let managed = default_managed(&set);
            let step = if set.len() < WHOLE_CORE_CPUS { "0.1 core by quota, for want of cores" } else { "1 core" };
            have("cpus", format!("{} on line ({set}), managed by default {managed}, in steps of {step}", set.len()))
        }
    }
}

fn cgroups(root: &Root) -> Vec<Capability> {
    let mounts = Mounts::read(root);
    let mount = "Mount cgroup v2 with the cpu and cpuset controllers: boot with systemd.unified_cgroup_hierarchy=1";
    let Some(version) = mounts.version() else {
        return vec![lack("cgroup", "no cpu and cpuset controllers: no CPU can be given to anybody", mount)];
    };
    let mut all = vec![match version {
        Version::V2 => have("cgroup", "version 2, with cpu and cpuset"),
        Version::V1 => have("cgroup", "version 1, with cpu and cpuset; no zswap limits, which need version 2"),
    }];
    let dirs: Vec<_> = match version {
        Version::V2 => mounts.dir("").into_iter().collect(),
        Version::V1 => ["cpu", "cpuset"].iter().filter_map(|c| mounts.dir(c)).collect(),
    };
    let shut = dirs.iter().find_map(|d| {
        let file = d.join("cgroup.procs");
        OpenOptions::new().write(true).open(&file).err().map(|e| format!("{}: {e}", file.display()))
    });
    all.push(match shut {
        None => have("cgroup-writable", "CPUs and quotas of containers can be set"),
        Some(why) => lack(
            "cgroup-writable",
            format!("{why}; the engine's own update call is used instead"),
            "Run as root, or give this user the cgroup (systemd: Delegate=yes)",
        ),
    });
    all
}

fn resctrl(root: &Root) -> Vec<Capability> {
    let known = root.read("/proc/filesystems").is_some_and(|t| t.lines().any(|l| l.split_whitespace().last() == Some("resctrl")));
    let Some(r) = Resctrl::find(root) else {
        return vec![if known {
            lack("resctrl", "supported but not mounted: ways and bandwidth cannot be given", "mount -t resctrl resctrl /sys/fs/resctrl")
        } else {
            lack("resctrl", "this kernel or processor has none: ways and bandwidth cannot be given", "Use a physical host with Intel RDT or AMD QoS and a kernel with CONFIG_X86_CPU_RESCTRL; on Skylake and Cascade Lake boot with rdt=l3cat,mba")
        }];
    };
    let mut all = vec![have("resctrl", format!("mounted ({}), {} classes", mount_options(root).unwrap_or_default(), r.info().num_closids))];
    all.push(match r.cbm_bits() {
        Some(b) => have("l3-cat", format!("{b} ways, at least {} in a mask", r.min_cbm_bits())),
        None => lack("l3-cat", "no L3 allocation", "On Skylake and Cascade Lake boot with rdt=l3cat"),
    });
    all.push(match r.mba_steps() {
        Some(m) => have("mba", format!("{} to 100 % in steps of {}", m.min_pct, m.step_pct)),
        None => lack(
            "mba",
            match &r.info().mba {
                None => "no memory bandwidth allocation",
                Some(_) => "in absolute units (AMD, or mount option mba_MBps): per cent need the platform's peak bandwidth",
            },
            match &r.info().mba {
                None => "Use a processor that has it, or boot with rdt=mba",
                Some(_) => "Give mem_bw_mbps in node.toml, or run with a bundle of this platform",
            },
        ),
    });
    let mon = r.info().monitoring.clone().unwrap_or_default().features;
    all.push(if mon.iter().any(|m| m == "mbm_local_bytes") {
        have("l3-monitoring", mon.join(", "))
    } else {
        lack("l3-monitoring", "no mbm_local_bytes: feature mbl_mbps is null", "Boot with rdt=mbmlocal where the processor has it")
    });
    all
}

fn zswap(root: &Root) -> Capability {
    match root.read("/sys/module/zswap/parameters/enabled").as_deref() {
        Some("Y" | "1") => have("zswap", "enabled"),
        Some(_) => lack("zswap", "there, but off", "echo Y > /sys/module/zswap/parameters/enabled, and have some swap space"),
        None => lack("zswap", "this kernel has none: memory is limited without compression", "Use a kernel with CONFIG_ZSWAP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::tests::tree;

    fn of<'a>(all: &'a [Capability], name: &str) -> &'a Capability {
        all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Every gap comes with its remedy; what is there comes without.
    #[test]
    fn every_gap_has_a_remedy() {
        let (_dir, root) = tree(&[("/sys/devices/system/cpu/online".into(), "0-3\n".into())]);
        let all = check(&root);
        assert!(all.iter().all(|c| c.found == c.remedy.is_none() && !c.detail.is_empty()), "{all:#?}");
        for name in ["cgroup", "resctrl", "frequency", "zswap"] {
            assert!(!of(&all, name).found, "{name}");
        }
        assert!(of(&all, "cpus").detail.contains("managed by default 0-2"));
    }

    /// A resctrl that is known but not mounted is told from one that is not there.
    #[test]
    fn resctrl_states_are_told_apart() {
        let (_dir, root) = tree(&[("/proc/filesystems".into(), "nodev\tresctrl\n".into())]);
        assert!(of(&check(&root), "resctrl").remedy.as_ref().unwrap().contains("mount -t resctrl"));
        let (_dir, _files, root) = crate::testing::mounted(crate::testing::intel(2, 11));
        let all = check(&root);
        assert!(of(&all, "resctrl").found && of(&all, "l3-cat").detail.contains("11 ways") && of(&all, "mba").found);
        assert!(of(&all, "l3-monitoring").found);
    }
}
