//! Readers on trees of real hosts: dumps that goresctrl publishes (`trees/goresctrl.txt`), and facts that others reported of theirs.
//! What is known is managed, what is not is passed over.

use super::mba::Unit;
use super::monitor::Event;
use super::testing::dump;
use super::*;
use crate::discover::discover_with;
use crate::resctrl::classes::Place;
use crate::root::tests::tree;
use std::fmt::Write;

const GORESCTRL: &str = include_str!("trees/goresctrl.txt");
const AT: &str = "/sys/fs/resctrl";

struct Tree {
    _dir: tempfile::TempDir,
    root: Root,
    r: Resctrl,
}

/// A host with this resctrl; `l3s` are L3 ids, of two CPUs each, in sysfs.
fn host(resctrl: &[(String, String)], options: &str, l3s: &[u32]) -> Tree {
    let cpus = (2 * l3s.len()).max(1);
    let mut files: Vec<(String, String)> = resctrl.iter().map(|(p, t)| (format!("{AT}/{p}"), t.clone())).collect();
    files.push(("/proc/mounts".into(), format!("resctrl {AT} resctrl rw,relatime{options} 0 0\n")));
    files.push(("/sys/devices/system/cpu/online".into(), format!("0-{}\n", cpus - 1)));
    for (n, id) in l3s.iter().enumerate() {
        for cpu in [2 * n, 2 * n + 1] {
            let at = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3");
            for (file, text) in [("level", "3".to_string()), ("id", id.to_string()), ("size", "16384K".into())] {
                files.push((format!("{at}/{file}"), format!("{text}\n")));
            }
        }
    }
    let (dir, root) = tree(&files);
    let r = Resctrl::find(&root).unwrap();
    Tree { _dir: dir, root, r }
}

/// All trees of goresctrl: lines, masks, units and classes as they say, L2 passed over, groups of others left alone.
#[test]
fn trees_of_goresctrl_are_read() {
    // Name, mount options, L3 domains, ways, least of them, shareable bits, CDP, classes, unit, free ways of a platform with these caches.
    type Expected = (&'static str, &'static str, u32, Option<(u32, u32, u32)>, bool, u32, Option<Unit>);
    let all: [Expected; 8] = [
        ("full", "", 4, Some((20, 1, 0xc0000)), false, 8, Some(Unit::Percent)),
        ("nomb", "", 4, Some((20, 2, 0xc0000)), false, 16, None),
        ("nomb.cdp", ",cdp", 4, Some((20, 1, 0xc0000)), true, 8, None),
        ("nol3", "", 4, None, false, 8, Some(Unit::Percent)),
        ("nol3.mbps", ",mba_MBps", 4, None, false, 8, Some(Unit::MbPerS)),
        ("l2", "", 0, None, false, 4, None),
        ("l2cdp", ",cdpl2", 1, Some((12, 1, 0x400)), false, 4, None),
        ("l2l3mb", "", 2, Some((20, 1, 0xc0001)), false, 8, Some(Unit::Percent)),
    ];
    for (name, options, domains, l3, cdp, classes, unit) in all {
        let files = dump(GORESCTRL, name);
        assert!(files.len() > 5, "{name}: {} files", files.len());
        let h = host(&files, options, &(0..domains.max(1)).collect::<Vec<_>>());
        let i = h.r.info();
        let read = i.l3.as_ref().map(|l| (l.cbm_mask.count_ones(), l.min_cbm_bits, l.shareable_bits));
        assert_eq!((read, i.cdp(), i.num_closids, i.mba.as_ref().map(|m| m.unit)), (l3, cdp, classes, unit), "{name}: {i:?}");
        let survey = h.r.survey().unwrap();
        assert_eq!((survey.domains.len() as u32, survey.reserved.len()), (domains, 0), "{name}");
        let found = discover_with(&h.root, None, Some(&h.r.clone().with_peak(Some(1e5)))).unwrap();
        let p = found.platform;
        assert_eq!((p.ways(), p.mba.is_some(), found.differ), (l3.map_or(0, |l| l.0), unit.is_some(), None), "{name}");
        assert_eq!(p.check(), Ok(()), "{name}");
        // Without MBA's peak, MB/s cannot be per cent: none are offered.
        let no_peak = discover_with(&h.root, None, Some(&h.r)).unwrap().platform.mba.is_some();
        assert_eq!(no_peak, unit == Some(Unit::Percent), "{name}");
        let monitors = i.monitors(Event::MbmLocal.file());
        assert_eq!(monitors, !name.starts_with("l2") || name == "l2l3mb", "{name}");
    }
    let full = host(&dump(GORESCTRL, "full"), "", &[0, 1, 2, 3]);
    let survey = full.r.survey().unwrap();
    assert_eq!(survey.foreign, ["Guaranteed", "goresctrl.Guaranteed", "goresctrl.Stale", "non_goresctrl.Group"]);
    assert_eq!(survey.bounds.classes, 3);
    assert!(survey.layout.classes.is_empty() && survey.layout.in_default.is_empty());
    // 57,671,680 bytes are 55 MB: 20 ways of 2.75.
    assert_eq!(full.r.root_bytes(), Some(57_671_680));
    assert_eq!(discover_with(&full.root, None, Some(&full.r)).unwrap().platform.mb_per_way(), 2.75);
}

/// A tree as AMD's servers have it: L3 ids with gaps, sixteen or more domains, bandwidth of 2048 eighths, masks with gaps.
fn amd(ids: &[u32], ways: u32, extra: &[(&str, &str)]) -> Vec<(String, String)> {
    let line = |value: &dyn Fn(u32) -> String| ids.iter().map(|id| format!("{id}={}", value(*id))).collect::<Vec<_>>().join(";");
    let full = format!("{:x}", (1u64 << ways) - 1);
    let mut schemata = String::new();
    let _ = writeln!(schemata, "    MB:{}\n    L3:{}", line(&|_| "2048".into()), line(&|_| full.clone()));
    let mut files: Vec<(String, String)> = [
        ("info/L3/cbm_mask", full.as_str()),
        ("info/L3/min_cbm_bits", "1"),
        ("info/L3/num_closids", "16"),
        ("info/L3/shareable_bits", "0"),
        ("info/L3/sparse_masks", "1"),
        ("info/MB/bandwidth_gran", "1"),
        ("info/MB/delay_linear", "1"),
        ("info/MB/min_bandwidth", "1"),
        ("info/MB/num_closids", "16"),
        ("info/L3_MON/num_rmids", "256"),
        ("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\nmbm_local_bytes\nmbm_local_bytes_config"),
        ("info/L3_MON/mbm_total_bytes_config", "0=0x7f"),
        ("mode", "shareable"),
    ]
    .into_iter()
    .chain(extra.iter().copied())
    .map(|(p, t)| (p.to_string(), format!("{t}\n")))
    .collect();
    files.push(("schemata".into(), schemata));
    files.push(("size".into(), format!("    MB:{}\n    L3:{}\n", line(&|_| "2048".into()), line(&|_| "16777216".into()))));
    files.push(("info/L3/bit_usage".into(), format!("{}\n", line(&|_| "S".repeat(ways as usize)))));
    for id in ids {
        for (event, n) in [("llc_occupancy", 1000), ("mbm_total_bytes", 200), ("mbm_local_bytes", 100 + id)] {
            files.push((format!("mon_data/mon_L3_{id:02}/{event}"), format!("{n}\n")));
        }
    }
    files
}

/// AMD with the ids that hosts were reported with: eight even ones (0 to 14), 0 to 7 and 16 to 23 on two sockets; fifteen caches where one
/// is switched off, and 48. Every domain is one of the platform, and each gets its own mask and its own share of the bandwidth.
#[test]
fn amd_hosts_have_gaps_in_their_ids() {
    let even: Vec<u32> = (0..8).map(|n| 2 * n).collect();
    let two_sockets: Vec<u32> = (0..8).chain(16..24).collect();
    let one_off: Vec<u32> = (0..16).filter(|n| *n != 3).collect();
    for ids in [even, two_sockets, one_off, (0..48).collect()] {
        let h = host(&amd(&ids, 16, &[]), "", &ids);
        let r = h.r.clone().with_peak(Some(4e5));
        let found = discover_with(&h.root, None, Some(&r)).unwrap();
        let p = &found.platform;
        assert_eq!((p.l3_domains() as usize, p.ways(), p.mb_per_way(), found.differ), (ids.len(), 16, 1.0, None));
        assert_eq!((p.check(), p.mba.is_some()), (Ok(()), true));
        let masks: Vec<u32> = (0..ids.len() as u32).map(|d| 1 << (d % 16)).collect();
        assert_eq!(found.offer.to_hardware(&ids, &masks), masks);
        let m = r.info().mba.as_ref().unwrap();
        assert_eq!((m.unit, m.domains as usize), (Unit::EighthGbPerS, ids.len()));
        // 10 % of 400 GB/s over n domains, in eighths, rounded up.
        let each = (40.0 / ids.len() as f64 * 8.0).ceil() as u32;
        assert_eq!(m.value(10, Some(4e5 / ids.len() as f64)), Some(each));
        // The counter of a group is the sum of its domains'.
        let class = AT.to_string() + "/surefoot.a";
        for (path, text) in amd(&ids, 16, &[]).iter().filter(|(p, _)| p.starts_with("mon_data")) {
            let p = h.root.path(format!("{class}/{path}"));
            std::fs::create_dir_all(p.parent().unwrap()).unwrap();
            std::fs::write(p, text).unwrap();
        }
        let sum: u64 = ids.iter().map(|id| 100 + u64::from(*id)).sum();
        assert_eq!(r.counter("a", &Place::Class("a".into()), true, Event::MbmLocal), Some(sum));
    }
}

/// Sub-NUMA clusters have files of their own below each domain, energy counters folders of another kind beside them, and newer kernels files
/// that nobody here knows: the sums are those of the L3 domains, and everything else is passed over.
#[test]
fn kinds_of_counters_that_are_new_are_passed_over() {
    let extra = [
        ("mon_data/mon_L3_00/mon_sub_L3_00/mbm_local_bytes", "60"),
        ("mon_data/mon_L3_00/mon_sub_L3_01/mbm_local_bytes", "40"),
        ("mon_data/mon_L3_01/mon_sub_L3_02/mbm_local_bytes", "101"),
        ("mon_data/mon_PERF_PKG_00/core_energy", "12.5"),
        ("mon_data/mon_PERF_PKG_00/activity", "3.0"),
        ("mon_data/mon_PERF_PKG_01/mbm_local_bytes", "999999"),
        ("mon_data/mon_L3_00/xxx_new_metric", "7"),
        ("info/PERF_PKG_MON/num_rmids", "16"),
        ("info/PERF_PKG_MON/mon_features", "core_energy\nactivity"),
        ("info/SMBA/num_closids", "16"),
        ("info/SMBA/min_bandwidth", "0"),
        ("info/kernel_mode", "x"),
    ];
    let h = host(&amd(&[0, 1], 15, &extra), "", &[0, 1]);
    let place = Place::Class("a".into());
    for (path, text) in amd(&[0, 1], 15, &extra).iter().filter(|(p, _)| p.starts_with("mon_data")) {
        let p = h.root.path(format!("{AT}/surefoot.a/{path}"));
        std::fs::create_dir_all(p.parent().unwrap()).unwrap();
        std::fs::write(p, text).unwrap();
    }
    assert_eq!(h.r.counter("a", &place, true, Event::MbmLocal), Some(100 + 101));
    assert_eq!(h.r.counter("a", &place, true, Event::LlcOccupancy), Some(2000));
    assert_eq!((h.r.info().num_closids, h.r.cbm_bits(), h.r.info().monitoring.as_ref().unwrap().num_rmids), (16, Some(15), 256));
    assert_eq!(h.r.survey().unwrap().layout.classes.len(), 1);
}

/// A line of another resource before, between and after those that are known, values that are padded, and a domain whose caches differ in
/// size: a way is worth what the smallest of them has for it.
#[test]
fn lines_of_other_resources_are_passed_over() {
    let mut files = amd(&[0, 1], 16, &[]);
    files.retain(|(p, _)| p != "schemata" && p != "size");
    files.push((
        "schemata".into(),
        "  SMBA:0=2048;1=2048\n    MB:0= 2048;1= 2048\n    L2:0=ff;1=ff;2=ff\n    L3:0=ffff;1=ffff\n NEW:*=x\n".into(),
    ));
    files.push(("size".into(), "  SMBA:0=2048;1=2048\n    MB:0=2048;1=2048\n    L3:0=100663296;1=33554432\n".into()));
    let h = host(&files, "", &[0, 1]);
    let found = discover_with(&h.root, None, Some(&h.r)).unwrap();
    // 96 MB and 32 MB in 16 ways.
    assert_eq!((found.platform.mb_per_way(), found.platform.l3_domains()), (2.0, 2));
    let said = crate::discover::unlike(&h.root, &found.platform.managed, Some(&h.r));
    assert!(said.iter().any(|u| u.what.contains("0: 96 MB, 1: 32 MB")), "{said:?}");
}
