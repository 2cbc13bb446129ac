use super::*;
use crate::perf::{Misses, NoCounters, Processor};
use crate::root::tests::tree;
use crate::testing::{intel, ModelFiles};
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use surefoot_resctrlfs::hardware::{Hardware, Mba};

fn no_probes() -> Probes {
    let pmu = Pmu { works: Err(NoCounters::Absent), counters: None, misses: Misses::of(Processor::Intel) };
    Probes { pmu, engine: Err("no engine".into()), notify: false, watchdog_us: None }
}

fn all_probes() -> Probes {
    let pmu = Pmu { works: Ok(()), counters: Some(8), misses: Misses::of(Processor::Intel) };
    Probes { pmu, engine: Ok("27.0".into()), notify: true, watchdog_us: Some(2_000_000) }
}

fn of<'a>(all: &'a [Capability], name: &str) -> &'a Capability {
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn missing(all: &[Capability]) -> Vec<&str> {
    all.iter().filter(|c| !c.found).map(|c| c.name.as_str()).collect()
}

/// What every list keeps: names once, a detail and a use for each, a remedy for each gap or word that there is none.
fn sound(all: &[Capability]) {
    let names: BTreeSet<&str> = all.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), all.len(), "a name stands there twice");
    for c in all {
        assert!(!c.detail.is_empty() && !c.needed_for.is_empty() && !c.area.is_empty(), "{c:?}");
        assert!(!c.found || c.remedy.is_none(), "{c:?}");
        assert!(c.found || c.remedy.as_ref().is_some_and(|r| !r.is_empty()), "{c:?}");
        // Whoever points to another gap points to one that is there, before it, and says what to do.
        if let Some(name) = c.remedy.as_ref().and_then(|r| r.strip_prefix("See ")?.split([' ', ';']).next()) {
            let at = all.iter().position(|o| o.name == name && !o.found && o.remedy.as_ref().is_some_and(|r| !r.starts_with("See ")));
            assert!(at < all.iter().position(|o| o.name == c.name) && at.is_some(), "{c:?}");
        }
    }
}

/// A server of eight CPUs on two sockets, with a cgroup v2 hierarchy and everything switched on.
fn server() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = [
        ("/sys/devices/system/cpu/online", "0-7"),
        ("/sys/devices/system/cpu/isolated", ""),
        ("/sys/devices/system/cpu/offline", ""),
        ("/sys/devices/system/node/online", "0-1"),
        ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc"),
        (
            "/proc/cpuinfo",
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Sapphire\nflags\t\t: cat_l3 cdp_l3 mba\n",
        ),
        ("/proc/sys/kernel/osrelease", "6.12.1"),
        ("/proc/sys/kernel/perf_event_paranoid", "-1"),
        ("/proc/cmdline", "quiet psi=1"),
        ("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0"),
        ("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 8 0 -2"),
        ("/proc/self/status", "CapEff:\t000001ffffffffff"),
        ("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids"),
        ("/sys/fs/cgroup/cgroup.subtree_control", "cpuset cpu io memory"),
        ("/sys/fs/cgroup/cgroup.procs", ""),
        ("/sys/module/zswap/parameters/enabled", "Y"),
        ("/sys/module/zswap/parameters/compressor", "zstd"),
        ("/sys/module/zswap/parameters/zpool", "zsmalloc"),
        ("/sys/module/zswap/parameters/max_pool_percent", "20"),
        ("/sys/module/zswap/parameters/shrinker_enabled", "Y"),
        ("/proc/meminfo", "MemTotal: 2097152 kB\nSwapTotal: 524288 kB\nSwapFree: 262144 kB"),
        ("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0"),
        ("/sys/kernel/mm/lru_gen/enabled", "0x0007"),
        ("/sys/devices/system/memory/auto_online_blocks", "online"),
        ("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 524288 kB"),
        ("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 1048576 kB\nNode 1 MemFree: 102400 kB"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
        ("/run/systemd/system/x", ""),
        ("/dev/fuse", ""),
        ("/etc/fstab", "resctrl /sys/fs/resctrl resctrl defaults 0 0"),
    ]
    .map(|(p, t)| (p.to_string(), format!("{t}\n")))
    .into();
    for file in [
        "cgroup.procs",
        "cpuset.cpus",
        "cpuset.cpus.partition",
        "cpuset.cpus.exclusive",
        "memory.current",
        "memory.high",
        "memory.reclaim",
        "memory.zswap.max",
        "memory.zswap.writeback",
    ] {
        files.push((format!("/sys/fs/cgroup/system.slice/{file}"), "\n".into()));
    }
    for cpu in 0..8 {
        let base = format!("/sys/devices/system/cpu/cpu{cpu}");
        let first = cpu / 2 * 2;
        for (file, text) in [
            ("topology/physical_package_id", (cpu / 4).to_string()),
            ("topology/core_cpus_list", format!("{first}-{}", first + 1)),
            ("cache/index3/level", "3".into()),
            ("cache/index3/id", (cpu / 4).to_string()),
            ("cache/index3/size", "22528K".into()),
            ("cpufreq/scaling_governor", "performance".into()),
            ("cpufreq/scaling_cur_freq", "2400000".into()),
        ] {
            files.push((format!("{base}/{file}"), format!("{text}\n")));
        }
    }
    files
}

fn put(root: &Root, path: &str, text: &str) {
    std::fs::write(root.path(path), format!("{text}\n")).unwrap();
}

/// A modern Intel server with everything has no gap, and the list says what it has.
#[test]
fn a_full_intel_host_has_no_gap() {
    let (dir, plain) = tree(&server());
    let (_files, root) = ModelFiles::mount(&plain, intel(2, 11), "");
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let _feed = UnixDatagram::bind(state.join("feed.sock")).unwrap();
    std::fs::create_dir_all(root.path("/run/surefoot")).unwrap();
    let _actuator = UnixDatagram::bind(root.path("/run/surefoot/actuator.sock")).unwrap();
    let all = look(&root, &Node::at(&state), &all_probes());
    sound(&all);
    assert_eq!(missing(&all), [""; 0], "{all:#?}");
    for (name, said) in [
        ("cpus", "8 on line (0-7), managed by default 0-6, in steps of 1 core"),
        ("sockets", "2 sockets"),
        ("smt", "2 threads a core"),
        ("l3-domains", "2 caches of 22528K (ids 0 1), 4 CPUs in the first"),
        ("cgroup-io", "offered and handed down"),
        ("cpuset-partitions", "directly below another partition"),
        ("zswap", "enabled (zstd)"),
        ("zswap-compressor", "zstd"),
        ("zswap-pool", "zsmalloc"),
        ("zswap-pool-limit", "20 % of memory"),
        ("zswap-shrinker", "on"),
        ("zswap-writeback", "memory.zswap.writeback"),
        ("swap-room", "256 of 512 MiB are free"),
        ("working-set", "by DAMON"),
        ("damon", "there"),
        ("mglru", "on (0x0007)"),
        ("memory-hot-add", "by itself (online)"),
        ("numa-memory", "node 0: 1024 MiB, 512 free; node 1: 1024 MiB, 100 free"),
        ("transparent-huge-pages", "madvise"),
        ("resctrl", "mounted by /etc/fstab"),
        ("resctrl", "0 groups of ours, 0 of others"),
        ("l3-cat", "11 ways, at least 1 in a mask, none shared with devices, masks have no gaps"),
        ("l3-domains-agree", "2 of both"),
        ("ways-of-others", "none: 11 of 11 are on offer"),
        ("cores-alike", "of one kind"),
        ("llc-misses", "the architectural event"),
        ("l3-cdp", "possible (mount option cdp), not used"),
        ("mba", "10 to 100 % in steps of 10, linear delay, a throttled thread slows its sibling too"),
        ("classes", "8, 7 free"),
        ("rmids", "64, 63 free"),
        ("l3-monitoring", "mbm_local_bytes; an id is free again below"),
        ("pmu", "on 8 counters"),
        ("governor", "performance"),
        ("systemd-watchdog", "every 2.0 s"),
        ("capabilities", "dac_override, sys_admin, sys_nice, perfmon, sys_ptrace"),
        ("kernel", "Linux 6.12.1; command line: quiet psi=1"),
    ] {
        assert!(of(&all, name).detail.contains(said), "{:?}", of(&all, name));
    }
}

fn field<'a>(file: &'a profile::PlatformFile, key: &str) -> &'a str {
    let line = file.text.lines().find(|l| l.starts_with(&format!("{key} = ")) || l.starts_with(&format!("# {key} ="))).unwrap();
    line.split_once('=').unwrap().1.split_once('#').unwrap().0.trim()
}

/// A server with resctrl tells everything but the peak of its memory bandwidth, which the configuration may tell; ways count as the hardware
/// has them, whatever others hold.
#[test]
fn a_full_host_makes_a_platform_file() {
    let (_dir, plain) = tree(&server());
    for cpu in 0..8 {
        for (file, text) in [("cpuinfo_max_freq", "3600000"), ("base_frequency", "2400000")] {
            put(&plain, &format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}"), text);
        }
        std::fs::create_dir_all(plain.path(format!("/sys/devices/system/cpu/cpu{cpu}/cache/index2"))).unwrap();
        put(&plain, &format!("/sys/devices/system/cpu/cpu{cpu}/cache/index2/level"), "2");
        put(&plain, &format!("/sys/devices/system/cpu/cpu{cpu}/cache/index2/size"), "1280K");
    }
    let (_files, root) = ModelFiles::mount(&plain, intel(2, 11), "");
    root.files.make_dir(&root.path("/sys/fs/resctrl/other")).unwrap();
    let resctrl = Resctrl::find(&root);
    let file = profile::platform_file(&root, "rack 7", None, resctrl.as_ref(), Some(204_800.0)).unwrap();
    assert_eq!(file.blank, [], "{}", file.text);
    assert!(file.text.contains("name = \"rack-7\"\ntitle = \"Sapphire\"\n"), "{}", file.text);
    // 8 CPUs, two a core; 22 MB in 11 ways; 3.6 GHz alone and 2.4 GHz together, a third of the way for each core.
    for (key, value) in [
        ("physical_cores", "4"),
        ("smt", "2"),
        ("base_ghz", "2.4"),
        ("turbo_ghz", "[3.6, 3.2, 2.8, 2.4]"),
        ("l2_mb", "1.25"),
        ("domains", "2"),
        ("ways", "11"),
        ("mb_per_way", "2.0"),
        ("min_ways", "1"),
        ("bw_gbs", "204.8"),
        ("mba", "true"),
        ("mba_min_pct", "10"),
        ("mba_step_pct", "10"),
        ("capacity_gb", "2.0"),
        // A sixteenth.
        ("reserved_gb", "0.125"),
    ] {
        assert_eq!(field(&file, key), value, "{key}\n{}", file.text);
    }
    let none = profile::platform_file(&root, "x", None, resctrl.as_ref(), None).unwrap();
    assert_eq!(none.blank.iter().map(|b| b.field.as_str()).collect::<Vec<_>>(), ["mem.bw_gbs"]);
}

/// On AMD the unit of MBA is absolute: its steps in per cent are known with the peak, and blank without it.
#[test]
fn an_amd_host_needs_its_peak() {
    let (_dir, plain) = tree(&server());
    let mba = Mba { closids: 3, min: 1, step: 1, max: 2048, linear: true, throttle_mode: None };
    let amd = Hardware { mba: Some(mba), cdp: false, shareable_bits: 0x3, sparse_masks: true, ..intel(2, 16) };
    let (_files, root) = ModelFiles::mount(&plain, amd, "");
    // As a processor says it: the kernel's file alone does not tell the unit.
    put(
        &plain,
        "/proc/cpuinfo",
        "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC \"7\"\nflags\t\t: cat_l3 mba",
    );
    let resctrl = Resctrl::find(&root).unwrap();
    let without = profile::platform_file(&root, "x", None, Some(&resctrl), None).unwrap();
    let blank: Vec<&str> = without.blank.iter().map(|b| b.field.as_str()).collect();
    assert!(["mem.bw_gbs", "mem.mba", "mem.mba_min_pct", "mem.mba_step_pct"].iter().all(|f| blank.contains(f)), "{blank:?}");
    assert_eq!((field(&without, "ways"), field(&without, "mb_per_way")), ("16", "2.0"), "{}", without.text);
    let with = profile::platform_file(&root, "x", None, Some(&resctrl.with_peak(Some(204_800.0))), Some(204_800.0)).unwrap();
    assert_eq!((field(&with, "mba"), field(&with, "mba_min_pct"), field(&with, "mba_step_pct")), ("true", "10", "10"), "{}", with.text);
    assert!(with.text.contains("title = \"EPYC \\\"7\\\"\"\n"), "{}", with.text);
}

/// What a host without RDT and without cpufreq does not tell is left blank, with the reason and the way to find it out; nothing is made up.
#[test]
fn what_a_bare_host_does_not_tell_is_blank() {
    let (_dir, root) = tree(&server());
    let file = profile::platform_file(&root, "", None, None, None).unwrap();
    let blank: Vec<&str> = file.blank.iter().map(|b| b.field.as_str()).collect();
    assert_eq!(
        blank,
        ["cpu.base_ghz", "cpu.turbo_ghz", "cpu.l2_mb", "llc.ways", "llc.mb_per_way", "llc.min_ways", "mem.bw_gbs", "mem.mba"],
        "{}",
        file.text
    );
    for b in &file.blank {
        let key = b.field.split_once('.').unwrap().1;
        assert_eq!(field(&file, key), "", "{key}");
        assert!(file.text.contains(&format!("# {key} =   # FILL IN: {}. {}\n", b.why, b.remedy)), "{b:?}\n{}", file.text);
    }
    assert!(file.blank[3].why.contains("no RDT") && file.blank[4].why.contains("22.0 MB"), "{:?}", file.blank);
    assert!(file.text.contains("name = \"host\"\n"), "{}", file.text);
}

/// What is used up, shared or owned by others on an AMD server is said, each with its remedy.
#[test]
fn an_amd_host_has_its_own_units() {
    let (dir, plain) = tree(&server());
    put(&plain, "/proc/cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: EPYC\nflags\t\t: cat_l3 mba");
    put(&plain, "/sys/devices/system/cpu/isolated", "6-7");
    put(&plain, "/sys/devices/system/cpu/offline", "8-9");
    put(&plain, "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet");
    put(&plain, "/sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet tsc");
    put(&plain, "/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "schedutil");
    put(&plain, "/proc/sys/kernel/perf_event_paranoid", "3");
    std::fs::create_dir_all(plain.path("/proc/4711")).unwrap();
    put(&plain, "/proc/4711/comm", "kubelet");
    std::fs::remove_file(plain.path("/etc/fstab")).unwrap();
    let mba = Mba { closids: 3, min: 1, step: 1, max: 2048, linear: true, throttle_mode: None };
    let amd = Hardware { mba: Some(mba), cdp: false, shareable_bits: 0x3, sparse_masks: true, ..intel(2, 16) };
    let (files, root) = ModelFiles::mount(&plain, amd, "");
    for group in ["surefoot.a", "other"] {
        root.files.make_dir(&root.path(format!("/sys/fs/resctrl/{group}"))).unwrap();
    }
    root.files.make_dir(&root.path("/sys/fs/resctrl/other/mon_groups/m")).unwrap();
    drop(files);
    let all = look(&root, &Node::at(&dir.path().join("state")), &all_probes());
    sound(&all);
    let gaps = [
        "no-isolated-cpus",
        "all-cpus-on-line",
        "l3-cdp",
        "classes",
        "perf-paranoid",
        "governor",
        "time-source",
        "no-foreign-writers",
        "latency-feed",
        "actuator",
    ];
    assert_eq!(missing(&all), gaps);
    for (name, said) in [
        ("resctrl", "by hand or by a service"),
        ("perf-paranoid", "CAP_PERFMON is not enough"),
        ("resctrl", "1 group of ours, 1 of others"),
        ("mba", "in eighths of a GB/s"),
        ("l3-cat", "16 ways"),
        ("l3-cat", "0x3 shared with devices"),
        ("l3-cat", "masks may have gaps"),
        ("classes", "3, 0 free"),
        ("rmids", "64, 60 free"),
        ("no-isolated-cpus", "6-7 are isolated"),
        ("no-foreign-writers", "kubelet runs; resctrl groups of others: other"),
        ("governor", "performance, schedutil"),
        ("state", "is not there yet and will be made"),
    ] {
        assert!(of(&all, name).detail.contains(said), "{:?}", of(&all, name));
    }
    assert!(of(&all, "perf-paranoid").remedy.as_ref().unwrap().contains("sysctl kernel.perf_event_paranoid=2"));
    assert!(of(&all, "time-source").remedy.as_ref().unwrap().contains("echo tsc"));
}

/// Which group of others holds which ways alone is said, and what is left; so is resctrl with other L3 domains than the CPUs have (a stand-in
/// of another platform), cores and caches that are not alike, an L3 miss that cannot be counted, and a list of CPUs that is shorter.
#[test]
fn a_host_that_is_not_alike_is_told() {
    let mut files = server();
    files.retain(|(p, _)| !(p.contains("cpu4/cache") || p.contains("cpu5/cache")));
    for (path, text) in [
        ("/sys/devices/cpu_core/cpus", "0-3\n"),
        ("/sys/devices/cpu_atom/cpus", "4-7\n"),
        ("/sys/devices/system/cpu/cpu6/cache/index3/size", "8192K\n"),
        ("/sys/devices/system/cpu/cpu7/cache/index3/size", "8192K\n"),
        ("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: x\n\nprocessor\t: 1\n"),
    ] {
        files.push((path.into(), text.into()));
    }
    let (_dir, plain) = tree(&files);
    let (_files, root) = ModelFiles::mount(&plain, intel(1, 11), "");
    let at = |p: &str| root.path(format!("/sys/fs/resctrl/{p}"));
    root.files.write(&at("schemata"), "L3:0=7f0\n").unwrap();
    root.files.make_dir(&at("kvm")).unwrap();
    root.files.write(&at("kvm/schemata"), "L3:0=f\n").unwrap();
    root.files.write(&at("kvm/mode"), "exclusive\n").unwrap();
    let mut probes = all_probes();
    probes.pmu.misses = Misses::of(Processor::Other);
    let all = look(&root, &Node::at(Path::new("/")), &probes);
    sound(&all);
    for (name, said) in [
        ("ways-of-others", "exclusive group kvm has ways 0xf of L3 domain 0: 7 of 11 are on offer"),
        ("l3-domains-agree", "sysfs shows 2 L3 caches (ids 0 1), resctrl has 1 L3 domains (ids 0)"),
        ("cores-alike", "performance: 0-3; efficiency: 4-6"),
        ("caches-alike", "CPUs 4-5 have no L3 cache"),
        ("llc-misses", "not known"),
        ("no-foreign-writers", "kvm (exclusive)"),
    ] {
        let c = of(&all, name);
        assert!(!c.found && c.detail.contains(said), "{c:?}");
    }
    assert!(of(&all, "cpus").detail.contains("/proc/cpuinfo shows 2"), "{:?}", of(&all, "cpus"));
    // Everything is held alone: nothing is on offer.
    root.files.write(&at("schemata"), "L3:0=400\n").unwrap();
    root.files.write(&at("kvm/schemata"), "L3:0=3ff\n").unwrap();
    root.files.write(&at("mode"), "exclusive\n").unwrap();
    let all = look(&root, &Node::at(Path::new("/")), &probes);
    assert!(of(&all, "ways-of-others").detail.contains("0 of 11 are on offer"), "{:?}", of(&all, "ways-of-others"));
}

/// With cdp and mba_MBps mounted the list speaks of both.
#[test]
fn mount_options_change_the_units() {
    let (_dir, plain) = tree(&server());
    let (_files, root) = ModelFiles::mount(&plain, intel(1, 11), "cdp,mba_MBps");
    let all = look(&root, &Node::at(Path::new("/")), &all_probes());
    assert!(of(&all, "l3-cdp").detail.contains("mounted with cdp") && of(&all, "l3-cat").detail.contains("11 ways"));
    assert!(of(&all, "mba").detail.contains("in MB/s"), "{:?}", of(&all, "mba"));
}

/// A cgroup v1 host on Cascade Lake, with the kernel's defaults: what to boot with is said.
#[test]
fn an_old_host_is_told_what_to_boot_with() {
    let mut files = server();
    files.retain(|(p, _)| !p.starts_with("/sys/fs/cgroup") && p != "/proc/pressure/memory" && !p.contains("zswap"));
    files.push(("/sys/fs/cgroup/cpu/cgroup.procs".into(), "\n".into()));
    files.push(("/sys/fs/cgroup/cpuset/cgroup.procs".into(), "\n".into()));
    files.push(("/proc/filesystems".into(), "nodev\tresctrl\nnodev\tfuse\n".into()));
    let (_dir, root) = tree(&files);
    put(&root, "/proc/self/mountinfo", "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 25 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset");
    put(&root, "/proc/cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: Gold 5220R\nflags\t\t: mba");
    put(&root, "/proc/cmdline", "quiet psi=0 cgroup_disable=memory");
    put(&root, "/proc/self/status", "CapEff:\t0000000000000000");
    let all = look(&root, &Node::at(Path::new("/")), &all_probes());
    sound(&all);
    for (name, remedy) in [
        ("cgroup", "unified_cgroup_hierarchy=1"),
        ("cgroup-memory", "without cgroup_disable=memory"),
        ("cpuset-partitions", "See cgroup"),
        ("memory-high", "See cgroup"),
        ("psi", "psi=1"),
        ("zswap", "CONFIG_ZSWAP"),
        ("rdt-boot-line", "rdt=l3cat"),
        ("resctrl", "mount -t resctrl"),
        ("capabilities", "actuator"),
    ] {
        let c = of(&all, name);
        assert!(!c.found && c.remedy.as_ref().is_some_and(|r| r.contains(remedy)), "{c:?}");
    }
    assert!(of(&all, "cgroup-cpu").found && of(&all, "cgroup-cpuset").found && of(&all, "cgroup-writable").found);
    put(&root, "/proc/cmdline", "rdt=mba,l3cat");
    assert!(of(&look(&root, &Node::at(Path::new("/")), &no_probes()), "rdt-boot-line").found);
}

/// What of zswap, swap and memory stands in the way of limits is a gap with its remedy. The trees are written by hand, in the form of
/// Debian's kernels 6.1 and 6.12.
#[test]
fn memory_that_cannot_be_limited_is_told() {
    let (_dir, root) = tree(&server());
    let gaps = |root: &Root| {
        let all = look(root, &Node::at(Path::new("/")), &all_probes());
        sound(&all);
        all.into_iter().filter(|c| c.area == "memory" && !c.found).map(|c| (c.name, c.detail, c.remedy.unwrap())).collect::<Vec<_>>()
    };
    let one = |root: &Root, name: &str| {
        let found = gaps(root);
        assert_eq!(found.iter().map(|(n, ..)| n.as_str()).collect::<Vec<_>>(), [name], "{found:?}");
        found.into_iter().next().map(|(_, detail, remedy)| format!("{detail}. {remedy}")).unwrap()
    };
    let zswap = |name: &str| format!("/sys/module/zswap/parameters/{name}");
    for (path, text, name, said) in [
        (zswap("shrinker_enabled"), "N", "zswap-shrinker", "echo Y > /sys/module/zswap/parameters/shrinker_enabled"),
        (zswap("zpool"), "zbud", "zswap-pool", "echo zsmalloc"),
        (zswap("max_pool_percent"), "0", "zswap-pool-limit", "every page goes to the disk"),
        ("/proc/meminfo".into(), "SwapTotal: 524288 kB\nSwapFree: 10240 kB", "swap-room", "10 of 512 MiB are free: pages beyond"),
        ("/sys/devices/system/memory/auto_online_blocks".into(), "offline", "memory-hot-add", "echo online >"),
        ("/sys/devices/system/node/node1/meminfo".into(), "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB", "numa-memory", "CPUs of node 1"),
    ] {
        let before = root.read(&path).unwrap();
        put(&root, &path, text);
        assert!(one(&root, name).contains(said), "{}", one(&root, name));
        put(&root, &path, &before);
    }
    assert_eq!(gaps(&root), []);
    // MGLRU that is off is no gap.
    put(&root, "/sys/kernel/mm/lru_gen/enabled", "0x0000");
    // 6.1: no shrinker and no writeback by group.
    std::fs::remove_file(root.path(zswap("shrinker_enabled"))).unwrap();
    std::fs::remove_file(root.path("/sys/fs/cgroup/system.slice/memory.zswap.writeback")).unwrap();
    let found = gaps(&root);
    assert_eq!(found.iter().map(|(n, ..)| n.as_str()).collect::<Vec<_>>(), ["zswap-writeback", "zswap-shrinker"], "{found:?}");
    assert!(found.iter().all(|(.., remedy)| remedy.contains("6.8")), "{found:?}");
    // Without swap, and with zswap off, what depends on them points to them.
    put(&root, "/proc/swaps", "Filename Type Size Used Priority");
    put(&root, &zswap("enabled"), "N");
    let found = gaps(&root);
    let see = |name: &str| found.iter().filter(|(.., remedy)| remedy == &format!("See {name}")).count();
    assert_eq!((see("swap"), see("zswap")), (1, 4), "{found:?}");
}

/// A container that sees nothing of its host: nearly everything is missing, nothing fails, and every gap says what it costs.
#[test]
fn a_container_without_anything_is_told_so() {
    let (dir, root) = tree(&[("/proc/cpuinfo".into(), "flags\t\t: hypervisor\n".into()), ("/f".into(), String::new())]);
    let all = look(&root, &Node::at(&dir.path().join("f/state")), &no_probes());
    sound(&all);
    let found: Vec<&str> = all.iter().filter(|c| c.found).map(|c| c.name.as_str()).collect();
    assert_eq!(found, ["rdt-boot-line", "no-foreign-writers"], "{all:#?}");
    assert!(of(&all, "resctrl").remedy.as_ref().is_some_and(|r| r.contains("physical host") && r.contains("resctrlfs")));
    assert!(of(&all, "cgroup").remedy.as_ref().unwrap().contains("/sys/fs/cgroup"));
}

/// No line says yes to what another one denies: on cgroup v1 nothing is said to be there by service that only version 2 has, and what
/// depends on a PMU is missing with it, whatever the processor and the kernel's settings promise.
#[test]
fn lines_do_not_contradict_each_other() {
    let mut files = server();
    files.retain(|(p, _)| !p.starts_with("/sys/fs/cgroup") && p != "/proc/self/mountinfo");
    let mut mounts = String::new();
    for (n, controllers) in ["cpu", "cpuset", "memory", "blkio"].iter().enumerate() {
        files.push((format!("/sys/fs/cgroup/{controllers}/cgroup.procs"), "\n".into()));
        mounts += &format!("{n} 25 0:27 / /sys/fs/cgroup/{controllers} rw - cgroup cgroup rw,{controllers}\n");
    }
    files.push(("/proc/self/mountinfo".into(), mounts));
    let (_dir, root) = tree(&files);
    put(&root, "/proc/sys/kernel/perf_event_paranoid", "2");
    let look = |works| {
        look(&root, &Node::at(Path::new("/")), &Probes { pmu: Pmu { works, counters: Some(4), ..all_probes().pmu }, ..all_probes() })
    };
    let all = look(Err(NoCounters::Absent));
    sound(&all);
    for name in ["cgroup", "cgroup-io", "psi", "cpuset-partitions", "memory-high", "pmu", "pmu-counters", "perf-paranoid"] {
        assert!(!of(&all, name).found, "{:?}", of(&all, name));
    }
    for name in ["cgroup-cpu", "cgroup-cpuset", "cgroup-memory", "cgroup-writable"] {
        assert!(of(&all, name).found, "{:?}", of(&all, name));
    }
    // The setting is the remedy only where there is something to count.
    assert_eq!(of(&all, "perf-paranoid").remedy.as_deref(), Some("See pmu first"));
    let all = look(Err(NoCounters::Refused("not allowed".into())));
    sound(&all);
    for name in ["pmu", "perf-paranoid"] {
        assert!(of(&all, name).remedy.as_ref().is_some_and(|r| r.contains("sysctl kernel.perf_event_paranoid")), "{:?}", of(&all, name));
    }
    let all = look(Ok(()));
    assert!(of(&all, "pmu").found && of(&all, "pmu-counters").found);
}

/// A state folder that is not there yet is made by the daemon: no gap where the folder above lets it, also for a path without one.
#[test]
fn a_state_folder_may_be_made() {
    let (dir, root) = tree(&server());
    let state = |at: &Path| of(&look(&root, &Node::at(at), &no_probes()), "state").clone();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (at, found, said) in [
        (dir.path().join("a/b"), true, "a/b is not there yet and will be made"),
        ("no-such-folder/state".into(), true, "no-such-folder/state is not there yet and will be made"),
        (dir.path().into(), true, dir.path().to_str().unwrap()),
        (dir.path().join("file"), false, "file cannot be written"),
        (dir.path().join("file/state"), false, "cannot be made: "),
    ] {
        let c = state(&at);
        assert!(c.found == found && c.detail.contains(said), "{c:?}");
    }
}

/// On this host, whatever it is, the list is whole.
#[test]
fn this_host_is_looked_at() {
    let all = check(&Root::default(), &Node::at(&std::env::temp_dir()));
    sound(&all);
    assert!(of(&all, "cpus").found && of(&all, "kernel").found, "{all:#?}");
}

/// What this user may not do itself is judged by the actuator that the configuration names: whether it can be reached, and whether a service
/// is on its list.
#[test]
fn the_rights_of_an_actuator_count() {
    let (_dir, root) = tree(&server());
    for unit in ["redis", "other"] {
        std::fs::create_dir_all(root.path(format!("/sys/fs/cgroup/system.slice/{unit}.service"))).unwrap();
    }
    // What is not there cannot be written, not even by root.
    std::fs::remove_file(root.path("/sys/fs/cgroup/cgroup.procs")).unwrap();
    let pattern = crate::actuator::Pattern::literal("/system.slice/redis.service").unwrap();
    let allow = Allow::new(&crate::cgroup::Mounts::read(&root), None, vec![pattern]);
    let services = ["redis", "other"].map(|s| (s.to_string(), Target::Cgroup(format!("/system.slice/{s}.service").into())));
    let socket = Path::new("/run/act.sock");
    let node = |by_actuator| Node { actuator: socket, by_actuator, services: &services, ..Node::at(Path::new("/")) };
    let seen = |by_actuator, name: &str| of(&look(&root, &node(by_actuator), &no_probes()), name).clone();
    let alone = seen(None, "cgroup-writable");
    assert!(!alone.found && alone.remedy.as_deref().unwrap().contains("Run as root"), "{alone:?}");
    let nobody = seen(Some(&allow), "cgroup-writable");
    assert!(!nobody.found && nobody.remedy.as_deref() == Some("See actuator"), "{nobody:?}");
    std::fs::create_dir_all(root.path("/run")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(root.path(socket)).unwrap();
    let by_it = seen(Some(&allow), "cgroup-writable");
    assert!(by_it.found && by_it.detail.contains("the actuator at /run/act.sock does it for this user"), "{by_it:?}");
    assert!(seen(Some(&allow), "service-redis").found && seen(None, "service-other").found);
    let other = seen(Some(&allow), "service-other");
    assert!(!other.found && other.detail.contains("not on the list") && other.remedy.unwrap().contains("actuator.cgroups"));
}

/// What a configuration names is looked for as a daemon would: services, its resctrl, its actuator.
#[test]
fn a_configuration_is_checked_against_the_host() {
    let (_dir, root) = tree(&server());
    std::fs::create_dir_all(root.path("/sys/fs/cgroup/system.slice/redis.service")).unwrap();
    let services = [
        ("redis".to_string(), Target::Cgroup("/system.slice/redis.service".into())),
        ("gone".to_string(), Target::Cgroup("/system.slice/gone.service".into())),
        ("all".to_string(), Target::Cgroup("/".into())),
    ];
    let (state, resctrl, actuator) = (Path::new("/"), Path::new("/mnt/stand-in"), Path::new("/run/other.sock"));
    let node = Node { resctrl: Some(resctrl), actuator, services: &services, ..Node::at(state) };
    let all = look(&root, &node, &no_probes());
    sound(&all);
    for (name, found, said) in [
        ("service-redis", true, "/sys/fs/cgroup/system.slice/redis.service"),
        ("service-gone", false, "cgroup /system.slice/gone.service of gone: it is not there"),
        ("service-all", false, "the root is no service"),
        ("resctrl", false, "nothing like it is mounted on /mnt/stand-in"),
        ("actuator", false, "/run/other.sock"),
    ] {
        let c = of(&all, name);
        assert!(c.found == found && c.detail.contains(said), "{c:?}");
    }
}

/// Whether a `[[lend]]` can lend on this host: cores enough, CPUs rather than quotas, groups that can be written, waits that are counted.
#[test]
fn what_is_to_be_lent_is_checked_against_the_host() {
    let group = |unit: &str, file: &str| (format!("/sys/fs/cgroup/system.slice/{unit}.service/{file}"), "0-7\n".to_string());
    let mut files = server();
    files.extend(["web", "batch"].iter().flat_map(|u| [group(u, "cpuset.cpus"), group(u, "cpu.max")]));
    files.push(("/proc/self/schedstat".into(), "5 6 7\n".into()));
    let services = ["web", "batch"].map(|s| (s.to_string(), Target::Cgroup(format!("/system.slice/{s}.service").into())));
    let lends = [Lend { lender: "web".into(), borrower: "batch".into(), poll_ms: 5.0, wants_waits: true, wants_waiting: false }];
    let seen = |files: &[(String, String)], managed: Option<&str>, lends: &[Lend]| {
        let (_dir, root) = tree(files);
        let managed = managed.map(|m| CpuSet::parse(m).unwrap());
        let all = look(&root, &Node { services: &services, managed, lends, ..Node::at(Path::new("/")) }, &no_probes());
        sound(&all);
        all
    };
    let all = seen(&files, None, &lends);
    let c = of(&all, "lend-web");
    assert!(c.found && c.detail == "to batch, by cpuset.cpus of cgroup version 2: some milliseconds a move", "{c:?}");
    let c = of(&all, "lend-readings-web");
    assert!(
        !c.found && c.detail.contains("every 5 ms, not every 50 us") && c.remedy.as_ref().unwrap().starts_with("None is needed"),
        "{c:?}"
    );
    let lacks = |files: &[(String, String)], managed: Option<&str>, name: &str, what: &str, remedy: &str| {
        let all = seen(files, managed, &lends);
        let c = of(&all, name);
        assert!(!c.found && c.detail.contains(what) && c.remedy.as_ref().unwrap().contains(remedy), "{c:?}");
    };
    lacks(&files, Some("0-1"), "lend-web", "it takes 3 whole cores, and services have 1 here", "Manage three cores or more");
    let few: Vec<(String, String)> =
        files.iter().map(|(f, t)| (f.clone(), if f.ends_with("cpu/online") { "0-3".into() } else { t.clone() })).collect();
    lacks(&few, None, "lend-web", "on a host of 4 CPUs services hold their cores by quotas", "on a host of 8 CPUs or more");
    let engine: Vec<(String, String)> = files.iter().filter(|(f, _)| !f.ends_with("batch.service/cpu.max")).cloned().collect();
    lacks(&engine, None, "lend-web", "CPU files of batch cannot be written", "Run as root");
    let uncounted: Vec<(String, String)> = files.iter().filter(|(f, _)| !f.ends_with("schedstat")).cloned().collect();
    lacks(&uncounted, None, "lend-readings-web", "waits of threads are not counted", "CONFIG_SCHED_INFO");
    let waiting = [Lend { wants_waiting: true, ..lends[0].clone() }];
    assert!(of(&seen(&uncounted, None, &waiting), "lend-readings-web").detail.contains("decides by a wait that goes on"));
    let needs_none = [Lend { wants_waits: false, ..lends[0].clone() }];
    assert!(!of(&seen(&uncounted, None, &needs_none), "lend-readings-web").detail.contains("not counted"));
}

/// What is said is what `working_set` would use: DAMON unless another program has it, generations where they are on, else cleared bits.
#[test]
fn the_way_to_a_working_set_is_the_one_that_is_taken() {
    const DAMON: (&str, &str) = ("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0");
    const TAKEN: (&str, &str) = ("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1");
    const ON: (&str, &str) = ("/sys/kernel/mm/lru_gen/enabled", "0x0007");
    const OFF: (&str, &str) = ("/sys/kernel/mm/lru_gen/enabled", "0x0000");
    const LISTS: (&str, &str) = ("/sys/kernel/debug/lru_gen", "");
    const BITS: (&str, &str) = ("/proc/self/clear_refs", "");
    let cases: [(&[(&str, &str)], &str); 7] = [
        (&[DAMON, ON, LISTS, BITS], "by DAMON"),
        (&[TAKEN, ON, LISTS, BITS], "by the generations"),
        (&[ON, BITS], "refaults alone, once pages are out: there is no DAMON"),
        (&[OFF, LISTS, BITS], "by /proc/PID/clear_refs"),
        (&[BITS], "by /proc/PID/clear_refs"),
        (&[TAKEN], "other programs use DAMON"),
        (&[], "refaults alone"),
    ];
    for (files, said) in cases {
        let files: Vec<(String, String)> = files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        let (_dir, root) = tree(&files);
        let area = super::memory::look(&root);
        let item = area.all.iter().find(|c| c.name == "working-set").unwrap();
        assert!(item.detail.contains(said), "{files:?}: {item:?}");
    }
}
