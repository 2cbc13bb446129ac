//! The stand-in for resctrl under any sequence of operations: no crash, and what the kernel's own invariants are.
//!
//! The input is text, one operation a line (`seeds/resctrlfs` has many); the first line chooses hardware and mount options.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use surefoot_resctrlfs::hardware::{CacheDomain, Fault, Hardware, Mba, Monitoring};
use surefoot_resctrlfs::{Caller, Kernel, Machine, What, ROOT};

/// Longest sequence.
const MAX_STEPS: usize = 200;

/// Bits: 1 kernel 6.12, 2 AMD, 4 no monitoring, 8 no MBA, 16 pseudo-locking, 32 faulty counters, 64 few RMIDs.
pub(crate) fn hardware(bits: u8) -> Hardware {
    let has = |b: u8| bits & b != 0;
    let amd = has(2);
    let mba = if amd {
        Mba { closids: 16, min: 1, step: 1, max: 2048, linear: false, throttle_mode: None }
    } else {
        Mba { closids: 8, min: 10, step: 10, max: 100, linear: true, throttle_mode: Some("max") }
    };
    Hardware {
        kernel: if has(1) { Kernel::V6_12 } else { Kernel::V6_1 },
        domains: [0, 5].into_iter().map(|id| CacheDomain { id, cpus: (id..id + 3).map(|c| c % 6).collect() }).collect(),
        llc_bytes: 11 << 20,
        cbm_bits: 11,
        min_cbm_bits: if amd { 1 } else { 2 },
        shareable_bits: if amd { 0 } else { 0x600 },
        sparse_masks: amd,
        l3_closids: 5,
        cdp: true,
        mba: (!has(8)).then_some(mba),
        monitoring: (!has(4)).then(|| Monitoring {
            rmids: if has(64) { 4 } else { 24 },
            scale_bytes: 65536,
            threshold_bytes: 65536,
            threshold_limit_bytes: 11 << 20,
            faults: if has(32) { [(2, Fault::Error), (3, Fault::Unavailable)].into() } else { BTreeMap::new() },
        }),
        pseudo_locking: has(16),
    }
}

pub fn run(data: &[u8]) {
    let mut lines = data.split(|b| *b == b'\n');
    let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
    let (bits, options) = first.split_once(' ').unwrap_or((&first, ""));
    let mut m = Machine::new(hardware(bits.parse().unwrap_or(0)));
    let rmids = m.rmids_free();
    for tid in [10, 11, 12, 150] {
        m.spawn(tid, if tid == 11 { 10 } else { tid }, 1, u32::from(tid == 12) * 1000);
    }
    if m.mount(options, false).is_err() && m.mount("", false).is_err() {
        return;
    }
    for (n, line) in lines.take(MAX_STEPS).enumerate() {
        step(&mut m, line);
        // Every file is read for them: after each step they would be all that is done.
        if m.is_mounted() && n % 8 == 0 {
            invariants(&m);
        }
    }
    if m.is_mounted() {
        invariants(&m);
        written_back(&mut m);
        m.umount().expect("it is mounted");
    }
    // Every RMID comes home once lines have left the cache, unless its counter cannot say so.
    m.advance(10_000_000);
    if m.hardware().monitoring.as_ref().is_none_or(|h| h.faults.is_empty()) {
        assert_eq!(m.rmids_free(), rmids, "an RMID is lost");
    }
    // A CPU that is offline keeps its domain's files away; with all back the tree is the first one.
    (0..6).for_each(|c| m.set_online(c, true));
    m.mount("", false).expect("mounts again");
    let mut new = Machine::new(m.hardware().clone());
    new.mount("", false).expect("mounts");
    let names = |m: &Machine| files(m).into_iter().map(|(p, _)| p).collect::<Vec<_>>();
    assert_eq!(names(&m), names(&new), "something stays after umount");
}

/// `w PATH DATA`, `d PATH`, `r PATH`, `n FROM TO`, `u PATH`, `s TID PARENT`, `x TID`, `o CPU`, `f CPU`, `a MS`, `t TID CPU MS`,
/// `U`, `M OPTIONS`; a capital `W` writes as another user. `;;` in DATA is a newline, as every write ends with one.
fn step(m: &mut Machine, line: &[u8]) {
    let mut words = line.splitn(3, |b| *b == b' ');
    let (op, a, b) = (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let number = |t: &[u8]| std::str::from_utf8(t).ok().and_then(|t| t.split(' ').next()?.parse::<u32>().ok()).unwrap_or(0);
    let who = if op == b"W" { Caller { tid: 12, uid: 1000, gid: 1000 } } else { Caller { tid: 150, ..Caller::ROOT } };
    match op {
        b"w" | b"W" => {
            let mut text = vec![];
            for part in b.split(|c| *c == b'~') {
                text.extend_from_slice(part);
                text.push(b'\n');
            }
            let Ok(node) = m.resolve(Path::new(OsStr::from_bytes(a)), who) else { return };
            if m.open(node, false, true, who).is_ok() {
                if let Ok(n) = m.write(node, &text, who) {
                    assert_eq!(n, text.len());
                }
            }
        }
        b"d" => at(m, a, |m, parent, name| m.mkdir(parent, name, 0o755, who).is_ok()),
        b"r" => at(m, a, |m, parent, name| m.rmdir(parent, name, who).is_ok()),
        b"u" => at(m, a, |m, parent, name| m.unlink(parent, name).map(|()| panic!("resctrl has nothing to unlink")).is_ok()),
        b"n" => {
            let (Some((from, name)), Some((to, to_name))) = (place(m, a), place(m, b)) else { return };
            let _ = m.rename(from, name, to, to_name, who);
        }
        // Tasks of the kernel's own number range; a name is born once.
        b"s" if !m.knows_task(number(a)) && number(a) > 1 => m.spawn(number(a), number(a), number(b), 0),
        b"x" => m.exit(number(a)),
        b"o" => m.set_online(number(a) % 6, true),
        b"f" => m.set_online(number(a) % 6, false),
        b"a" => m.advance(u64::from(number(a))),
        b"t" => m.ran(number(a), number(b) % 6, 100),
        b"U" => drop(m.umount()),
        b"M" => drop(m.mount(&String::from_utf8_lossy(a), false)),
        _ => {}
    }
}

fn place<'a>(m: &Machine, path: &'a [u8]) -> Option<(u64, &'a OsStr)> {
    let path = Path::new(OsStr::from_bytes(path));
    Some((m.resolve(path.parent()?, Caller::ROOT).ok()?, path.file_name()?))
}

fn at(m: &mut Machine, path: &[u8], act: impl FnOnce(&mut Machine, u64, &OsStr) -> bool) {
    if let Some((parent, name)) = place(m, path) {
        act(m, parent, name);
    }
}

/// Every file by path, with its content where it can be read. A name that is no text is shown by its node.
fn files(m: &Machine) -> Vec<(String, Option<String>)> {
    let mut all = vec![];
    let mut todo = vec![(ROOT, String::new())];
    while let Some((node, path)) = todo.pop() {
        let tree = m.tree().expect("mounted");
        match tree.what(node).expect("it was listed") {
            What::Dir(_) => {
                assert!(m.read(node).is_err());
                let list = tree.list(node).expect("a folder");
                todo.extend(list.into_iter().map(|(name, n)| (n, format!("{path}/{}", shown(&name, n)))));
            }
            What::File(_) => all.push((path, m.read(node).ok().map(|b| String::from_utf8_lossy(&b).into_owned()))),
        }
    }
    all.sort();
    all
}

fn shown(name: &OsStr, node: u64) -> String {
    name.to_str().map_or_else(|| format!("node-{node}"), str::to_string)
}

fn numbers(text: &str) -> BTreeSet<u32> {
    text.lines().filter_map(|l| l.parse().ok()).collect()
}

fn cpus(text: &str) -> BTreeSet<u32> {
    surefoot_server::CpuSet::parse(text).expect("what the stand-in shows is a list").iter().collect()
}

/// Folder and name of a group's file; None for those that are no group's ("/info/...", "/g/mon_data/...").
fn group_file(path: &str) -> Option<(&str, &str)> {
    let (dir, file) = path.rsplit_once('/')?;
    (!dir.starts_with("/info")).then_some((dir, file))
}

fn invariants(m: &Machine) {
    let hw = m.hardware();
    let (mut cpus_of, mut tasks_of) = (BTreeMap::new(), BTreeMap::new());
    for (path, content) in files(m) {
        let Some((dir, file)) = group_file(&path) else { continue };
        let Some(content) = content else { continue };
        match file {
            "cpus_list" => drop(cpus_of.insert(dir.to_string(), cpus(&content))),
            "tasks" => drop(tasks_of.insert(dir.to_string(), numbers(&content))),
            "schemata" => schemata(hw, &content),
            _ => {}
        }
    }
    let is_control = |dir: &&String| !dir.contains("/mon_groups/");
    // A CPU and a task are in one control group each, and in at most one monitoring group, which is below it.
    for of in [&cpus_of, &tasks_of] {
        let mut seen = BTreeSet::new();
        for (_, set) in of.iter().filter(|(d, _)| is_control(d)) {
            assert!(set.iter().all(|x| seen.insert(*x)), "in two control groups: {of:?}");
        }
        let mut monitored = BTreeSet::new();
        for (dir, set) in of.iter().filter(|(d, _)| !is_control(d)) {
            let up = dir.split("/mon_groups/").next().unwrap_or_default();
            assert!(of.get(up).is_some_and(|above| set.is_subset(above)), "{dir} monitors what {up} does not hold: {of:?}");
            assert!(set.iter().all(|x| monitored.insert(*x)), "in two monitoring groups: {of:?}");
        }
    }
}

/// Every mask has enough bits, none too high, and one block where the hardware wants that; bandwidth is within its bounds.
fn schemata(hw: &Hardware, text: &str) {
    for line in text.lines() {
        let Some((resource, domains)) = line.trim().split_once(':') else { continue };
        for (id, value) in domains.split(';').filter_map(|d| d.split_once('=')) {
            let id: u32 = id.parse().expect("a domain's id");
            assert!(hw.domains.iter().any(|d| d.id == id), "{line}");
            match resource {
                "L3" | "L3CODE" | "L3DATA" => {
                    let mask = u32::from_str_radix(value.trim(), 16).expect("a mask");
                    // A pseudo-locked group's class has no ways of its own.
                    if mask != 0 {
                        assert!(mask & !hw.cbm_mask() == 0, "{line}");
                        assert!(mask.count_ones() >= hw.min_cbm_bits, "{line}");
                        let block = mask >> mask.trailing_zeros();
                        assert!(hw.sparse_masks || block & (block + 1) == 0, "a gap: {line}");
                    }
                }
                "MB" => assert!(value.trim().parse::<u32>().is_ok(), "{line}"),
                other => panic!("{other} is no resource: {line}"),
            }
        }
    }
}

/// What a shareable group shows as its schemata can be written to it, and changes nothing.
fn written_back(m: &mut Machine) {
    let before = files(m);
    let shareable: BTreeSet<&str> = before
        .iter()
        .filter(|(p, c)| p.ends_with("/mode") && c.as_deref() == Some("shareable\n"))
        .filter_map(|(p, _)| Some(group_file(p)?.0))
        .collect();
    for (path, content) in &before {
        let Some((dir, "schemata")) = group_file(path) else { continue };
        let (true, Some(content)) = (shareable.contains(dir), content) else { continue };
        // Not found: a name that is no text, or a second one that looks like it.
        let Ok(node) = m.resolve(Path::new(path.trim_start_matches('/')), Caller::ROOT) else { continue };
        m.write(node, content.as_bytes(), Caller::ROOT).unwrap_or_else(|e| panic!("{path} refuses its own {content:?}: {e:?}"));
    }
    // The status of the last command and counters may differ.
    let stable = |f: Vec<(String, Option<String>)>| {
        f.into_iter().filter(|(p, _)| p.ends_with("/schemata") || p.ends_with("/mode")).collect::<Vec<_>>()
    };
    assert_eq!(stable(files(m)), stable(before));
}
