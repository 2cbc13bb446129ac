//! Platform of this host, from sysfs and resctrl's `info`.
//!
//! CPUs that are off line are in no core and no L3 domain, and those beyond [`CpuSet::CAPACITY`] are left out.

use crate::cgroup::{Mounts, Version};
use crate::files::text;
use crate::procfs;
use crate::resctrl::offer::{Domains, Offer};
use crate::resctrl::{self, Resctrl};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use surefoot_server::{CpuSet, Llc, Memory, Platform, ServerError};

/// Below this many CPUs whole-core steps are too coarse, and quotas in steps of 0.1 core stand in for them.
pub const WHOLE_CORE_CPUS: u32 = 8;

/// The share of the memory that is the system's, for kernel and daemons, is one in so many: COSMOS reserves 4 of 64 GB.
const RESERVED_SHARE: u64 = 16;
/// Most that is reserved, bytes: what the system needs does not grow with the machine for ever.
const MOST_RESERVED_BYTES: u64 = 4 << 30;

/// Why a limit on a service's memory, and on its pool of compressed pages, cannot be set on a host: cause and remedy. None: it can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryControl {
    pub no_limit: Option<String>,
    pub no_pool: Option<String>,
}

/// What a host can do about the memory of a service.
pub fn memory_control(root: &Root) -> MemoryControl {
    let mounts = Mounts::read(root);
    let no_limit = (!mounts.has_memory()).then(|| {
        "this host has no cgroups that limit memory. Mount them (v1: memory; v2: add memory to cgroup.subtree_control), or leave memory out".into()
    });
    let swap = || root.read("/proc/swaps").is_some_and(|t| t.lines().skip(1).any(|l| !l.trim().is_empty()));
    let group = mounts.a_child();
    let has = |file: &str| group.as_ref().is_some_and(|g| root.files.is_file(&g.join(file)));
    let why = match (mounts.version(), root.read("/sys/module/zswap/parameters/enabled").as_deref()) {
        (Some(Version::V2), Some(_)) if has("memory.max") && !has("memory.zswap.max") => {
            Some("this kernel has a pool for all of the host alone. Use Linux 5.19 or later, or leave pool out")
        }
        (Some(Version::V2), Some("Y" | "1")) if swap() => None,
        (Some(Version::V2), Some("Y" | "1")) => Some("no swap space, which zswap needs. Add some (mkswap, swapon), or leave pool out"),
        (Some(Version::V2), Some(_)) => Some("zswap is off. echo Y > /sys/module/zswap/parameters/enabled, or leave pool out"),
        (Some(Version::V2), None) => Some("this kernel has no zswap. Use one with CONFIG_ZSWAP, or leave pool out"),
        _ => Some("its cgroups are of version 1, which have no pool of a group. Use version 2, or leave pool out"),
    };
    MemoryControl { no_limit, no_pool: why.map(Into::into) }
}

/// What services and jobs may share out of a host's memory.
fn memory(root: &Root) -> Option<Memory> {
    let all = procfs::memory_bytes(root).filter(|b| *b > 0)?;
    Some(Memory { capacity_bytes: all - (all / RESERVED_SHARE).min(MOST_RESERVED_BYTES) })
}

const CPU: &str = "/sys/devices/system/cpu";

/// What a list of CPUs that anybody may have replaced (lxcfs) comes to, beside the CPUs that the kernel lets processes run on.
///
/// A CPU that processes run on is on line, whatever the list says: then it counts from 0 what has other numbers, and the kernel's word
/// stands for it.
fn true_list(shown: CpuSet, may_run_on: CpuSet) -> CpuSet {
    if may_run_on.is_subset(&shown) {
        shown
    } else {
        may_run_on
    }
}

/// CPUs that are on line.
pub fn online(root: &Root) -> Result<CpuSet, ServerError> {
    let file = format!("{CPU}/online");
    let bad = |cause: String| ServerError::Unavailable { what: file.clone(), cause, remedy: "Mount sysfs on /sys".into() };
    let text = root.read(&file).ok_or_else(|| bad("cannot be read".into()))?;
    let set = CpuSet::of_kernel(&text).map_err(|e| bad(format!("{e}: no list of the kernel's")))?;
    if set.is_empty() {
        return Err(bad(format!("names no CPU below {}", CpuSet::CAPACITY)));
    }
    if !root.is_host() {
        return Ok(set);
    }
    // The first process of a container has all CPUs of it; this one may be kept on few.
    let may = [1, 0].into_iter().filter_map(procfs::may_run_on).fold(CpuSet::empty(), CpuSet::union);
    // A CPU may have come on line between the two.
    let again = || root.read(&file).and_then(|t| CpuSet::of_kernel(&t).ok()).unwrap_or(set);
    Ok(true_list(if may.is_subset(&set) { set } else { again() }, may))
}

/// CPUs that are on line and have numbers that no set here can hold; empty on nearly every host.
pub fn beyond(root: &Root) -> String {
    let list = root.read(format!("{CPU}/online")).unwrap_or_default();
    let above = |part: &str| {
        let (lo, hi) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (lo, hi) = (lo.parse::<u32>().ok()?.max(CpuSet::CAPACITY), hi.parse::<u32>().ok()?);
        (lo <= hi).then(|| if lo == hi { lo.to_string() } else { format!("{lo}-{hi}") })
    };
    list.split(',').filter_map(above).collect::<Vec<_>>().join(",")
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
fn ranks<T: Ord + Clone>(values: &BTreeMap<u32, T>) -> BTreeMap<u32, u32> {
    let order: BTreeMap<&T, u32> = values.values().collect::<BTreeSet<_>>().into_iter().zip(0..).collect();
    values.iter().map(|(cpu, v)| (*cpu, order[v])).collect()
}

/// An L3 cache as sysfs shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct L3Cache {
    /// The kernel's id of it, else its first CPU.
    pub id: u64,
    /// None where it is no number, or no machine's.
    pub bytes: Option<u64>,
}

/// The L3 cache of one CPU; None where sysfs has none for it.
pub fn l3(root: &Root, cpu: u32) -> Option<L3Cache> {
    (0..8).find_map(|i| {
        let dir = root.path(format!("{CPU}/cpu{cpu}/cache/index{i}"));
        let read = |name: &str| text(root.files.as_ref(), dir.join(name));
        if read("level")? != "3" {
            return None;
        }
        let first = || CpuSet::of_kernel(&read("shared_cpu_list")?).ok()?.iter().next().map(u64::from);
        let id = read("id").and_then(|t| t.parse().ok()).or_else(first)?;
        let bytes = read("size").and_then(|t| t.trim_end_matches('K').parse::<u64>().ok()?.checked_mul(1024)).filter(|b| *b > 0);
        Some(L3Cache { id, bytes })
    })
}

/// Node of each CPU, with the kernel's numbers; empty where the host has one node.
fn numa(root: &Root, cpus: &[u32]) -> Vec<u32> {
    let dir = root.path("/sys/devices/system/node");
    let lists: BTreeMap<u32, CpuSet> = (root.files.list(&dir).unwrap_or_default().iter())
        .filter_map(|name| {
            let node = name.strip_prefix("node")?.parse().ok()?;
            Some((node, CpuSet::of_kernel(&text(root.files.as_ref(), dir.join(name).join("cpulist"))?).ok()?))
        })
        .collect();
    if lists.len() < 2 {
        return vec![];
    }
    // Memory without CPUs (CXL, HBM) is a node that no CPU is on.
    let of = |cpu: u32| lists.iter().find(|(_, l)| l.contains(cpu)).map_or(0, |(n, _)| *n);
    cpus.iter().map(|c| of(*c)).collect()
}

fn topology(root: &Root, cpu: u32, file: &str) -> Option<String> {
    root.read(format!("{CPU}/cpu{cpu}/topology/{file}"))
}

/// Threads of the core of a CPU, itself included.
pub fn siblings(root: &Root, cpu: u32) -> CpuSet {
    let text = topology(root, cpu, "core_cpus_list").or_else(|| topology(root, cpu, "thread_siblings_list"));
    text.and_then(|t| CpuSet::of_kernel(&t).ok()).filter(|s| s.contains(cpu)).unwrap_or_else(|| CpuSet::range(cpu, cpu + 1))
}

/// What this host offers. `managed` None = [`default_managed`].
///
/// # Errors
/// [`ServerError::Invalid`] for managed CPUs that are not on line, [`ServerError::Unavailable`] where sysfs is not there.
pub fn discover(root: &Root, managed: Option<CpuSet>) -> Result<Platform, ServerError> {
    discover_with(root, managed, Resctrl::find(root).as_ref()).map(|d| d.platform)
}

/// A platform, and how its ways and L3 domains are resctrl's.
#[derive(Clone, Debug)]
pub struct Discovered {
    pub platform: Platform,
    pub offer: Offer,
    /// The platform's domain of each of resctrl's, by its id.
    pub l3_of_id: BTreeMap<u32, usize>,
    /// How L3 domains of sysfs and resctrl differ, in one line.
    pub differ: Option<String>,
}

/// As [`discover`], with ways and bandwidth of this resctrl: of the ways what others do not hold alone.
///
/// # Errors
/// As [`discover`].
pub fn discover_with(root: &Root, managed: Option<CpuSet>, resctrl: Option<&Resctrl>) -> Result<Discovered, ServerError> {
    let online = online(root)?;
    let managed = match managed {
        None => default_managed(&online),
        Some(asked) => {
            let present = root.read(format!("{CPU}/present")).and_then(|t| CpuSet::of_kernel(&t).ok()).unwrap_or(online);
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
    // A thread that is off line is none.
    let threads: BTreeMap<u32, CpuSet> = online.iter().map(|c| (c, siblings(root, c).intersection(online))).collect();
    let first = |s: &CpuSet| s.iter().next().unwrap_or(0);
    let core_of = ranks(&threads.iter().map(|(c, s)| (*c, first(s))).collect());
    let physical_cores = core_of.values().max().map_or(1, |c| c + 1);
    let package = |cpu: u32| topology(root, cpu, "physical_package_id").and_then(|t| t.parse().ok()).unwrap_or(0);
    let caches: BTreeMap<u32, Option<L3Cache>> = online.iter().map(|c| (c, l3(root, c))).collect();
    let ids = caches.iter().map(|(c, l)| (*c, l.map(|l| l.id))).collect();
    let domains =
        Domains::compare(&ids, &online.iter().map(|c| (c, package(c))).collect(), &resctrl.map(Resctrl::l3_domains).unwrap_or_default());
    // A way is worth no less in any cache that a service may use.
    let cache_bytes = managed.iter().filter_map(|c| caches.get(&c).copied()??.bytes).min().unwrap_or(0);
    let used: BTreeSet<usize> = managed.iter().filter_map(|c| domains.of_cpu.get(&c).map(|d| *d as usize)).collect();
    let survey = resctrl.and_then(|r| Some((r, r.survey().ok()?)));
    let offer = survey.map(|(r, s)| r.offer(&s, &domains.of_id)).unwrap_or_default();
    let llc = resctrl.filter(|_| offer.ways > 0).and_then(|r| {
        // The size file counts what a bit is really worth (with sub-NUMA clustering a fraction of the cache).
        let of_used = r.domain_bytes().into_iter().filter(|(id, _)| domains.of_id.get(id).is_some_and(|d| used.contains(d)));
        let bytes = of_used.map(|(_, b)| b).min().unwrap_or(cache_bytes);
        let mb_per_way = bytes as f64 / f64::from(1 << 20) / f64::from(r.cbm_bits()?);
        Some(Llc { ways: offer.ways, mb_per_way, min_ways: r.min_cbm_bits() })
    });
    // Without a way of its own there can be no class, and so no bandwidth.
    let mba = resctrl.filter(|r| llc.is_some() || r.cbm_bits().is_none()).and_then(Resctrl::mba_steps);
    let max_khz = online.iter().filter_map(|c| max_khz(root, c));
    // Those that are off line stand in the lists and count nowhere: a core of their own beyond the others.
    let mut parked = physical_cores..;
    let platform = Platform {
        name: "local".into(),
        physical_cores,
        smt: threads.values().map(CpuSet::len).max().unwrap_or(1),
        l3_domain_of_cpu: cpus.iter().map(|c| domains.of_cpu.get(c).copied().unwrap_or(0)).collect(),
        numa_of_cpu: numa(root, &cpus),
        core_of_cpu: cpus.iter().map(|c| core_of.get(c).copied().or_else(|| parked.next()).unwrap_or(0)).collect(),
        managed,
        core_step: if online.len() < WHOLE_CORE_CPUS { 0.1 } else { 1.0 },
        llc,
        mba,
        mem_bw_mbps: None,
        max_freq_mhz: max_khz.map(|k| k / 1000.0).reduce(f64::max),
        memory: memory(root),
    };
    Ok(Discovered { platform, offer, l3_of_id: domains.of_id, differ: domains.differ })
}

fn max_khz(root: &Root, cpu: u32) -> Option<f64> {
    root.read(format!("{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"))?.parse().ok()
}

/// Highest frequencies that differ more than those of favoured cores of one kind, which are some per cent.
const OF_ANOTHER_KIND: f64 = 0.85;

/// Kinds of cores among these CPUs, by name; fewer than two where they are alike, or nobody says.
///
/// Intel's hybrid processors have a PMU for each kind, Arm's and newer kernels a capacity; else the highest frequency tells.
pub fn kinds(root: &Root, cpus: &CpuSet) -> Vec<(String, CpuSet)> {
    let pmu = |(name, file): (&str, &str)| {
        let of = root.read(format!("/sys/devices/{file}/cpus")).and_then(|t| CpuSet::of_kernel(&t).ok())?.intersection(*cpus);
        (!of.is_empty()).then(|| (name.to_string(), of))
    };
    let named = [("performance", "cpu_core"), ("efficiency", "cpu_atom"), ("low-power", "cpu_lowpower")];
    let kinds: Vec<_> = named.into_iter().filter_map(pmu).collect();
    if kinds.len() > 1 {
        return kinds;
    }
    let group = |name: &str, of: &dyn Fn(u32) -> Option<f64>| {
        let mut all: Vec<(f64, CpuSet)> = vec![];
        let mut each: Vec<(f64, u32)> = cpus.iter().filter_map(|c| Some((of(c)?, c))).collect();
        each.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (value, cpu) in each {
            match all.last_mut().filter(|(top, _)| value >= *top * OF_ANOTHER_KIND) {
                Some((_, set)) => set.insert(cpu),
                None => all.push((value, CpuSet::range(cpu, cpu + 1))),
            }
        }
        all.into_iter().map(|(top, set)| (format!("{name} {top:.0}"), set)).collect::<Vec<_>>()
    };
    let by_capacity = group("capacity", &|c| root.read(format!("{CPU}/cpu{c}/cpu_capacity"))?.parse().ok());
    if by_capacity.len() > 1 {
        return by_capacity;
    }
    group("MHz", &|c| max_khz(root, c).map(|k| k / 1000.0))
}

/// Sizes of the L3 caches of these CPUs where they are not all the same, MB, by id: those of resctrl, else of sysfs.
pub fn sizes(root: &Root, cpus: &CpuSet, resctrl: Option<&Resctrl>) -> BTreeMap<u64, f64> {
    let shown: BTreeMap<u64, Option<u64>> = cpus.iter().filter_map(|c| l3(root, c)).map(|l| (l.id, l.bytes)).collect();
    let of_resctrl = || {
        let all = resctrl.map(Resctrl::domain_bytes).unwrap_or_default();
        all.into_iter()
            .map(|(id, b)| (u64::from(id), b))
            .filter(|(id, _)| shown.is_empty() || shown.contains_key(id))
            .collect::<BTreeMap<_, _>>()
    };
    let of_sysfs = || shown.iter().filter_map(|(id, b)| Some((*id, (*b)?))).collect();
    let bytes = Some(of_resctrl()).filter(|b| !b.is_empty()).unwrap_or_else(of_sysfs);
    if bytes.values().collect::<BTreeSet<_>>().len() < 2 {
        return BTreeMap::new();
    }
    bytes.into_iter().map(|(id, b)| (id, b as f64 / f64::from(1 << 20))).collect()
}

/// In what the CPUs of a plan are not alike that it takes for alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// Name of the item of `surefootd check` that says so.
    pub item: &'static str,
    pub what: String,
    pub remedy: String,
}

impl std::fmt::Display for Unlike {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}. {}", self.what, self.remedy)
    }
}

pub const CORES_ALIKE: &str = "cores-alike";
pub const CACHES_ALIKE: &str = "caches-alike";
pub const ALL_KNOWN: &str = "all-cpus-known";

/// What differs among these CPUs, the caches and kinds of cores in particular.
pub fn unlike(root: &Root, cpus: &CpuSet, resctrl: Option<&Resctrl>) -> Vec<Unlike> {
    let mut out = vec![];
    let mut put = |item, what: String, remedy: String| out.push(Unlike { item, what, remedy });
    let kinds = kinds(root, cpus);
    if kinds.len() > 1 {
        let each: Vec<String> = kinds.iter().map(|(name, set)| format!("{name}: {set}")).collect();
        let most = kinds.iter().max_by_key(|(_, set)| set.len()).map_or(String::new(), |(_, set)| set.to_string());
        let what = format!("cores are of several kinds ({}), and a plan counts each as one core", each.join("; "));
        put(CORES_ALIKE, what, format!("Manage one kind: cpus = \"{most}\" in node.toml, or --cpus {most}"));
    }
    let sizes = sizes(root, cpus, resctrl);
    if !sizes.is_empty() {
        let each: Vec<String> = sizes.iter().map(|(id, mb)| format!("{id}: {mb} MB")).collect();
        let what = format!("L3 caches differ in size ({}), and a way counts as one of the smallest everywhere", each.join(", "));
        put(CACHES_ALIKE, what, "Manage the CPUs of caches of one size (`cpus` in node.toml, --cpus)".into());
    }
    let without: CpuSet = cpus.iter().filter(|c| l3(root, *c).is_none()).collect();
    if !without.is_empty() && without != *cpus {
        let what = format!("CPUs {without} have no L3 cache: ways are nothing to them");
        put(CACHES_ALIKE, what, "Leave them out (`cpus` in node.toml, --cpus)".into());
    }
    let beyond = beyond(root);
    if !beyond.is_empty() {
        let what = format!("CPUs {beyond} are beyond the {} that Surefoot knows, and are not used", CpuSet::CAPACITY);
        put(ALL_KNOWN, what, "None: they stay with whoever uses them now".into());
    }
    out
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

    /// A sixteenth is the system's, at most 4 GiB: of 1 GiB 64 MiB, of 256 GiB 4. What is not said is unknown.
    #[test]
    fn a_part_of_the_memory_is_the_systems() {
        let capacity = |text: &str| {
            let (_dir, root) = tree(&[("/proc/meminfo".into(), text.into())]);
            memory(&root).map(|m| m.capacity_bytes)
        };
        assert_eq!(capacity("MemTotal:        1048576 kB\nMemFree:   9 kB\n"), Some((1 << 30) - (64 << 20)));
        assert_eq!(capacity("MemTotal:      268435456 kB\n"), Some(252 << 30));
        assert_eq!((capacity("MemFree: 9 kB\n"), capacity("MemTotal: many kB\n"), capacity("MemTotal: 0 kB\n")), (None, None, None));
        // A container is shown its own limit by lxcfs, and the host's nodes.
        let node = |n: u32| {
            (format!("/sys/devices/system/node/node{n}/meminfo"), format!("Node {n} MemTotal:  1048576 kB\nNode {n} MemFree: 1 kB\n"))
        };
        let online = ("/sys/devices/system/node/online".into(), "0-1\n".into());
        let (_dir, root) = tree(&[("/proc/meminfo".into(), "MemTotal: 262144 kB\n".into()), online, node(0), node(1)]);
        assert_eq!(memory(&root).map(|m| m.capacity_bytes), Some((2 << 30) - (128 << 20)));
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

    fn cpu_files(files: &mut Vec<(String, String)>, cpu: u32, l3: Option<(u32, &str)>, siblings: &str, package: u32) {
        let base = format!("/sys/devices/system/cpu/cpu{cpu}");
        files.push((format!("{base}/topology/core_cpus_list"), format!("{siblings}\n")));
        files.push((format!("{base}/topology/physical_package_id"), format!("{package}\n")));
        if let Some((id, size)) = l3 {
            for (file, text) in [("level", "3".to_string()), ("id", id.to_string()), ("size", size.to_string())] {
                files.push((format!("{base}/cache/index3/{file}"), format!("{text}\n")));
            }
        }
    }

    /// CPUs that are off line are in no core and no L3 domain, wherever they lie: the kernel shows neither topology nor cache of them.
    #[test]
    fn cpus_off_line_count_nowhere() {
        let mut files = vec![("/sys/devices/system/cpu/online".to_string(), "2-3,64-65,70\n".to_string())];
        for (cpu, id, siblings, package) in
            [(2, 8, "2-3", 0), (3, 8, "2-3", 0), (64, 24, "64-65", 1), (65, 24, "64-65", 1), (70, 24, "70-71", 1)]
        {
            cpu_files(&mut files, cpu, Some((id, "32768K")), siblings, package);
        }
        let (_dir, root) = tree(&files);
        let p = discover(&root, None).unwrap();
        assert_eq!((p.physical_cores, p.smt, p.l3_domains(), p.logical_cpus()), (3, 2, 2, 71));
        assert_eq!(p.managed.to_string(), "2-3,64-65");
        let of = |list: &[u32]| p.managed.iter().map(|c| list[c as usize]).collect::<Vec<_>>();
        assert_eq!((of(&p.l3_domain_of_cpu), of(&p.core_of_cpu)), (vec![0, 0, 1, 1], vec![0, 0, 1, 1]));
        // No core on line has a sibling that is off.
        assert!((0..71).filter(|c| !p.managed.contains(*c) && *c != 70).all(|c| p.core_of_cpu[c as usize] > 2));
        assert_eq!(p.check(), Ok(()));
    }

    /// More CPUs than a set holds: those that fit are used, and the others are named.
    #[test]
    fn cpus_beyond_the_last_are_named() {
        let (_dir, root) = tree(&[("/sys/devices/system/cpu/online".into(), "0-7,1020-1151,2000\n".into())]);
        assert_eq!(online(&root).unwrap().to_string(), "0-7,1020-1023");
        assert_eq!(beyond(&root), "1024-1151,2000");
        let said = unlike(&root, &online(&root).unwrap(), None);
        assert!(said.len() == 1 && said[0].to_string().contains("1024-1151,2000 are beyond the 1024"), "{said:?}");
        let (_dir, root) = tree(&[("/sys/devices/system/cpu/online".into(), "1024-1151\n".into())]);
        assert!(online(&root).unwrap_err().to_string().contains("names no CPU below 1024"));
        assert!(beyond(&tree(&[]).1).is_empty());
    }

    /// A list of CPUs that a container's file system made up gives way to the kernel's word; one that only knows more stands.
    #[test]
    fn a_made_up_list_gives_way() {
        let set = |text| CpuSet::parse(text).unwrap();
        assert_eq!(true_list(set("0-3"), set("4-7")), set("4-7"));
        assert_eq!(true_list(set("0-1"), set("0-3")), set("0-3"));
        assert_eq!((true_list(set("0-63"), set("62-63")), true_list(set("0-3"), set(""))), (set("0-63"), set("0-3")));
        // Of this very process the kernel says so much, whatever the host's number of CPUs.
        assert!(!procfs::may_run_on(0).unwrap().is_empty());
    }

    /// As many domains in sysfs as in resctrl are the same ones; else what both can tell apart counts, with a mask for each that is there.
    #[test]
    fn domains_are_compared_with_resctrl() {
        for (l3s, resctrl, domains, differs) in [(2, 2, 2, false), (2, 1, 1, true), (1, 2, 1, true), (0, 2, 1, true), (4, 3, 1, true)] {
            let mut files = vec![("/sys/devices/system/cpu/online".to_string(), "0-7\n".to_string())];
            for cpu in 0..8u32 {
                let id = (l3s > 0).then(|| (cpu * l3s / 8, "32768K"));
                cpu_files(&mut files, cpu, id, &cpu.to_string(), 0);
            }
            let (_dir, plain) = tree(&files);
            let (_files, root) = crate::testing::ModelFiles::mount(&plain, crate::testing::intel(resctrl, 11), "");
            let r = Resctrl::find(&root).unwrap();
            let d = discover_with(&root, None, Some(&r)).unwrap();
            let said = format!("{l3s} {resctrl}: {d:?}");
            assert_eq!((d.platform.l3_domains(), d.differ.is_some()), (domains, differs), "{said}");
            let masks = d.offer.to_hardware(&r.l3_domains(), &vec![0x3; domains as usize]);
            assert_eq!(masks, vec![0x3; resctrl as usize], "{said}");
        }
    }

    /// Kinds of cores and sizes of caches that a plan takes for alike are named, with CPUs that would be; a host of one kind is not.
    #[test]
    fn what_is_not_alike_is_named() {
        let mut files = vec![("/sys/devices/system/cpu/online".to_string(), "0-7\n".to_string())];
        for cpu in 0..8u32 {
            cpu_files(&mut files, cpu, Some((cpu / 4, if cpu < 4 { "98304K" } else { "32768K" })), &cpu.to_string(), 0);
        }
        let all = CpuSet::range(0, 8);
        let said = |root: &Root| unlike(root, &all, None).iter().map(Unlike::to_string).collect::<Vec<_>>();
        let (_dir, root) = tree(&files);
        assert!(said(&root).len() == 1 && said(&root)[0].contains("0: 96 MB, 1: 32 MB"), "{:?}", said(&root));
        assert!(unlike(&root, &CpuSet::range(0, 4), None).is_empty());
        // Intel's hybrid: two PMUs. Frequencies alone: 4.9 beside 5.0 GHz is one kind, 3.8 is another.
        let put = |root: &Root, path: &str, text: &str| {
            std::fs::create_dir_all(root.path(path).parent().unwrap()).unwrap();
            std::fs::write(root.path(path), text).unwrap();
        };
        put(&root, "/sys/devices/cpu_core/cpus", "0-1\n");
        put(&root, "/sys/devices/cpu_atom/cpus", "2-7\n");
        assert!(said(&root)[0].contains("performance: 0-1; efficiency: 2-7") && said(&root)[0].contains("--cpus 2-7"), "{:?}", said(&root));
        let (_dir, root) = tree(&[]);
        let khz = |cpu: u32, khz: &str| put(&root, &format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq"), khz);
        (0..8).for_each(|c| khz(c, if c == 3 { "5000000" } else { "4900000" }));
        assert!(said(&root).is_empty());
        (4..8).for_each(|c| khz(c, "3800000"));
        assert!(said(&root)[0].contains("MHz 5000: 0-3; MHz 3800: 4-7"), "{:?}", said(&root));
        (0..8).for_each(|c| put(&root, &format!("/sys/devices/system/cpu/cpu{c}/cpu_capacity"), if c < 2 { "1024" } else { "446" }));
        assert!(said(&root)[0].contains("capacity 1024: 0-1; capacity 446: 2-7"), "{:?}", said(&root));
    }

    /// A host with one CPU manages that one.
    #[test]
    fn a_single_cpu_is_managed() {
        assert_eq!(default_managed(&CpuSet::range(0, 1)).to_string(), "0");
        assert_eq!(default_managed(&CpuSet::range(0, 4)).to_string(), "0-2");
    }
}
