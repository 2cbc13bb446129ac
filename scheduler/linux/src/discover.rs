//! Platform of this host, from sysfs and resctrl's `info`.

use crate::files::text;
use crate::resctrl::{self, Resctrl};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::{CpuSet, Llc, Platform, ServerError};

/// Below this many CPUs whole-core steps are too coarse, and quotas in steps of 0.1 core stand in for them.
pub const WHOLE_CORE_CPUS: u32 = 8;

/// CPUs that are on line.
pub fn online(root: &Root) -> Result<CpuSet, ServerError> {
    let bad = |cause: String| ServerError::Unavailable {
        what: "/sys/devices/system/cpu/online".into(),
        cause,
        remedy: "Mount sysfs on /sys".into(),
    };
    let text = root.read("/sys/devices/system/cpu/online").ok_or_else(|| bad("cannot be read".into()))?;
    let set = CpuSet::parse(&text).map_err(|e| ServerError::Unavailable {
        what: "/sys/devices/system/cpu/online".into(),
        cause: e,
        remedy: format!("Surefoot knows {} logical CPUs at most", CpuSet::CAPACITY),
    })?;
    if set.is_empty() {
        return Err(bad("names no CPU".into()));
    }
    Ok(set)
}

/// All CPUs but the last, which is for the load generator and ourselves; the only one where there is one.
pub fn default_managed(online: &CpuSet) -> CpuSet {
    let last = online.iter().last();
    let rest: CpuSet = online.iter().filter(|c| Some(*c) != last).collect();
    if rest.is_empty() {
        *online
    } else {
        rest
    }
}

/// Ranks of values that need be neither small nor without gaps.
fn ranks<T: Ord + Clone>(values: &[T]) -> Vec<u32> {
    let order: BTreeMap<&T, u32> = values.iter().collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    values.iter().map(|v| order[v]).collect()
}

/// Cache id (else first CPU) of the L3 of one CPU, and the L3's size; None where sysfs has no L3 for it.
fn l3(root: &Root, cpu: u32) -> Option<(u64, u64)> {
    (0..8).find_map(|i| {
        let dir = root.path(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index{i}"));
        let read = |name: &str| text(root.files.as_ref(), dir.join(name));
        if read("level")? != "3" {
            return None;
        }
        let first = || CpuSet::parse(&read("shared_cpu_list")?).ok()?.iter().next().map(u64::from);
        let id = read("id").and_then(|t| t.parse().ok()).or_else(first)?;
        // A size that is no number, or no machine's, is not known.
        let size = read("size").and_then(|t| t.trim_end_matches('K').parse::<u64>().ok()?.checked_mul(1024)).unwrap_or(0);
        Some((id, size))
    })
}

/// Node of each CPU, with the kernel's numbers; empty where the host has one node.
fn numa(root: &Root, cpus: &[u32]) -> Vec<u32> {
    let dir = root.path("/sys/devices/system/node");
    let lists: BTreeMap<u32, CpuSet> = (root.files.list(&dir).unwrap_or_default().iter())
        .filter_map(|name| {
            let node = name.strip_prefix("node")?.parse().ok()?;
            Some((node, CpuSet::parse(&text(root.files.as_ref(), dir.join(name).join("cpulist"))?).ok()?))
        })
        .collect();
    if lists.len() < 2 {
        return vec![];
    }
    // Memory without CPUs (CXL, HBM) is a node that no CPU is on.
    let of = |cpu: u32| lists.iter().find(|(_, l)| l.contains(cpu)).map_or(0, |(n, _)| *n);
    cpus.iter().map(|c| of(*c)).collect()
}

/// What this host offers. `managed` None = [`default_managed`].
///
/// # Errors
/// [`ServerError::Invalid`] for managed CPUs that are not on line, [`ServerError::Unavailable`] where sysfs is not there.
pub fn discover(root: &Root, managed: Option<CpuSet>) -> Result<Platform, ServerError> {
    discover_with(root, managed, Resctrl::find(root).as_ref())
}

/// As [`discover`], with ways and bandwidth of this resctrl.
///
/// # Errors
/// As [`discover`].
pub fn discover_with(root: &Root, managed: Option<CpuSet>, resctrl: Option<&Resctrl>) -> Result<Platform, ServerError> {
    let online = online(root)?;
    let managed = match managed {
        None => default_managed(&online),
        Some(asked) => {
            let present = root.read("/sys/devices/system/cpu/present").and_then(|t| CpuSet::parse(&t).ok()).unwrap_or(online);
            let off = asked.intersection(present).difference(online);
            if !off.is_empty() {
                tracing::warn!("CPUs {off} are off line: without them until they are back");
            }
            asked.difference(off)
        }
    };
    if managed.is_empty() || !managed.is_subset(&online) {
        return Err(ServerError::Invalid(format!(
            "managed CPUs \"{managed}\" (`cpus` in node.toml, or --cpus): this host has {online}. Choose from these"
        )));
    }
    let cpus: Vec<u32> = (0..=online.iter().last().unwrap_or(0)).collect();
    let topology = |cpu: u32, file: &str| root.read(format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}"));
    let siblings = |cpu: u32| {
        let text = topology(cpu, "core_cpus_list").or_else(|| topology(cpu, "thread_siblings_list"));
        text.and_then(|t| CpuSet::parse(&t).ok()).filter(|s| s.contains(cpu)).unwrap_or_else(|| CpuSet::range(cpu, cpu + 1))
    };
    let cores: Vec<CpuSet> = cpus.iter().map(|c| siblings(*c)).collect();
    let core_of_cpu = ranks(&cores.iter().map(|s| s.iter().next().unwrap_or(0)).collect::<Vec<_>>());
    let package = |cpu: u32| topology(cpu, "physical_package_id").and_then(|t| t.parse().ok()).unwrap_or(0);
    let caches: Vec<Option<(u64, u64)>> = cpus.iter().map(|c| l3(root, *c)).collect();
    // By cache id, as resctrl orders its domains; by package where sysfs shows no L3 (some virtual machines).
    let domain_keys: Vec<u64> = cpus.iter().zip(&caches).map(|(c, l)| l.map_or_else(|| package(*c), |(id, _)| id)).collect();
    let cache_bytes = caches.iter().flatten().map(|(_, b)| *b).max().unwrap_or(0);
    let llc = resctrl.and_then(|r| {
        let ways = r.cbm_bits()?;
        // The size file counts what a bit is really worth (with sub-NUMA clustering a fraction of the cache).
        let bytes = r.root_bytes().unwrap_or(cache_bytes);
        let mb_per_way = bytes as f64 / f64::from(1 << 20) / f64::from(ways);
        Some(Llc { ways, mb_per_way, min_ways: r.min_cbm_bits() })
    });
    let mba = resctrl.and_then(Resctrl::mba_steps);
    let max_khz =
        cpus.iter().filter_map(|c| root.read(format!("/sys/devices/system/cpu/cpu{c}/cpufreq/cpuinfo_max_freq"))?.parse::<f64>().ok());
    Ok(Platform {
        name: "local".into(),
        physical_cores: core_of_cpu.iter().max().map_or(1, |c| c + 1),
        smt: cores.iter().map(CpuSet::len).max().unwrap_or(1),
        l3_domain_of_cpu: ranks(&domain_keys),
        numa_of_cpu: numa(root, &cpus),
        core_of_cpu,
        managed,
        core_step: if online.len() < WHOLE_CORE_CPUS { 0.1 } else { 1.0 },
        llc,
        mba,
        mem_bw_mbps: None,
        max_freq_mhz: max_khz.map(|k| k / 1000.0).reduce(f64::max),
    })
}

/// Facts for a campaign's manifest: CPU model, kernel, boot line, options of resctrl.
pub fn host_facts(root: &Root) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut put = |k: &str, v: Option<String>| v.filter(|v| !v.is_empty()).and_then(|v| facts.insert(k.to_string(), v));
    let model = root
        .read("/proc/cpuinfo")
        .and_then(|t| t.lines().find(|l| l.starts_with("model name"))?.split_once(':').map(|(_, v)| v.trim().to_string()));
    put("cpu_model", model);
    put("kernel", root.read("/proc/sys/kernel/osrelease"));
    put("cpus_online", root.read("/sys/devices/system/cpu/online"));
    put("resctrl_options", resctrl::mount_options(root));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::tests::tree;
    use surefoot_server::Mba;

    /// Two sockets with two threads a core and cache ids with a gap become dense cores and domains.
    #[test]
    fn topology_with_gaps_becomes_dense() {
        // CPUs 0,1 | 2,3 on caches 0 and 16; siblings 0-1 and 2-3.
        let mut files = vec![("/sys/devices/system/cpu/online".to_string(), "0-3\n".to_string())];
        for (cpu, id, sib) in [(0, 0, "0-1"), (1, 0, "0-1"), (2, 16, "2-3"), (3, 16, "2-3")] {
            let base = format!("/sys/devices/system/cpu/cpu{cpu}");
            files.push((format!("{base}/topology/core_cpus_list"), format!("{sib}\n")));
            files.push((format!("{base}/cache/index3/level"), "3\n".into()));
            files.push((format!("{base}/cache/index3/id"), format!("{id}\n")));
            files.push((format!("{base}/cache/index3/size"), "32768K\n".into()));
        }
        // Node 3 has memory only.
        for (node, list) in [(0, "0-1\n"), (2, "2-3\n"), (3, "\n")] {
            files.push((format!("/sys/devices/system/node/node{node}/cpulist"), list.into()));
        }
        let (_dir, root) = tree(&files);
        let p = discover(&root, None).unwrap();
        assert_eq!((p.physical_cores, p.smt, p.l3_domains()), (2, 2, 2));
        assert_eq!((p.core_of_cpu.clone(), p.l3_domain_of_cpu.clone()), (vec![0, 0, 1, 1], vec![0, 0, 1, 1]));
        assert_eq!((p.managed.to_string().as_str(), p.core_step), ("0-2", 0.1));
        assert_eq!((p.numa_of_cpu.as_slice(), p.numa_nodes(&CpuSet::range(1, 3)).to_string().as_str()), ([0, 0, 2, 2].as_slice(), "0,2"));
        assert!(p.llc.is_none() && p.mba.is_none() && p.max_freq_mhz.is_none());
    }

    /// Ways, their size and MBA steps come from resctrl where it is mounted.
    #[test]
    fn ways_come_from_resctrl() {
        let (_dir, _files, root) = crate::testing::mounted(crate::testing::intel(2, 11));
        std::fs::create_dir_all(root.path("/sys/devices/system/cpu")).unwrap();
        std::fs::write(root.path("/sys/devices/system/cpu/online"), "0-15\n").unwrap();
        let p = discover(&root, Some(CpuSet::range(0, 8))).unwrap();
        let llc = p.llc.unwrap();
        assert_eq!((llc.ways, llc.min_ways, llc.mb_per_way), (11, 1, 2.0));
        assert_eq!(p.mba, Some(Mba { min_pct: 10, step_pct: 10 }));
        assert_eq!((p.core_step, p.core_units()), (1.0, 8));
    }

    /// CPUs that are not there are named, with those that are; without sysfs the remedy is to mount it.
    #[test]
    fn missing_cpus_are_named() {
        let (_dir, root) = tree(&[("/sys/devices/system/cpu/online".into(), "0-1\n".into())]);
        let err = discover(&root, Some(CpuSet::range(1, 3))).unwrap_err().to_string();
        assert!(err.contains("1-2") && err.contains("0-1"), "{err}");
        assert_eq!(discover(&root, None).unwrap().managed.to_string(), "0");
        let (_dir, empty) = tree(&[]);
        assert!(discover(&empty, None).unwrap_err().to_string().contains("Mount sysfs"));
    }

    /// A host with one CPU manages that one.
    #[test]
    fn a_single_cpu_is_managed() {
        assert_eq!(default_managed(&CpuSet::range(0, 1)).to_string(), "0");
        assert_eq!(default_managed(&CpuSet::range(0, 4)).to_string(), "0-2");
    }
}
