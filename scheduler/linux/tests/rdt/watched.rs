//! What is ours in resctrl is put back within a second, whoever changed it: somebody, or the kernel after CPUs were off line.

use crate::bed::options;
use crate::support::{read, until, write, Group, Process};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Server, Tick};

const RESCTRL: &str = "/sys/fs/resctrl";

pub fn at(path: &str) -> String {
    format!("{RESCTRL}/{path}")
}

/// Blanks of the kernel's left out: "MB:0=50;1=50 L3:0=0000f;1=0000f".
pub fn shown(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap_or_else(|e| e.to_string()).split_whitespace().collect::<Vec<_>>().join(" ").replace("= ", "=")
}

/// Values of a group's lines of one kind, of all domains: "L3" are both of CDP. None where the group is gone.
fn values(group: &str, kind: &str, radix: u32) -> Vec<u32> {
    let text = shown(&format!("{group}/schemata"));
    let of = |pair: &str| u32::from_str_radix(pair.split_once('=').unwrap().1, radix).unwrap();
    text.split_whitespace().filter(|l| l.starts_with(kind)).flat_map(|l| l.split_once(':').unwrap().1.split(';').map(of)).collect()
}

fn tids_of(group: &str) -> Vec<u32> {
    let text = fs::read_to_string(at(&format!("{group}/tasks"))).unwrap_or_default();
    text.lines().filter_map(|l| l.trim().parse().ok()).collect()
}

/// All threads of a process are in a group, and in its monitoring group.
pub fn inside(p: &Process, group: &str) -> bool {
    let has = tids_of(group);
    p.tids().iter().all(|t| has.contains(t))
}

/// A CPU goes off line or comes back.
pub fn switch(cpu: u32, on: bool) {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    write(&file, if on { "1" } else { "0" }).unwrap_or_else(|e| panic!("{file}: {e}"));
}

/// Each service: CPUs and a mask, the same in every domain; half of the memory bandwidth where that can be said.
pub fn place(s: &LocalServer, of: &[(&str, &str, u32)]) -> Plan {
    let all = Allocation::everything(s.platform());
    let mba_pct = if s.platform().mba.is_some() { 50 } else { 100 };
    let with = |cpus: &str, ways: u32| Allocation {
        cpus: CpuSet::parse(cpus).unwrap(),
        shared_cpus: CpuSet::empty(),
        ways: vec![ways; all.ways.len()],
        shared_ways: vec![0; all.ways.len()],
        mba_pct,
        ..all.clone()
    };
    let allocations: BTreeMap<_, _> = of.iter().map(|(id, cpus, ways)| (id.to_string(), with(cpus, *ways))).collect();
    Plan::whole(allocations)
}

/// Ways of the two jobs: every processor has these.
const OF_C: u32 = 0x38;
const OF_D: u32 = 0x1c0;

/// Two BE jobs of two threads each, placed.
struct Host {
    _groups: [Group; 2],
    processes: [Process; 2],
    _state: tempfile::TempDir,
    s: LocalServer,
}

impl Host {
    fn new() -> Self {
        let groups = [Group::new("c"), Group::new("d")];
        let processes = [Process::start(&groups[0], "burn 0"), Process::start(&groups[1], "burn 0")];
        let state = tempfile::tempdir().unwrap();
        let mut s = LocalServer::open(LocalConfig::new(state.path())).unwrap();
        for id in ["c", "d"] {
            s.adopt(id, id, Kind::Be, 1, Target::Cgroup(format!("/{id}").into())).unwrap();
        }
        let plan = place(&s, &[("c", "0", OF_C), ("d", "1", OF_D)]);
        s.apply(&plan).unwrap();
        s.observe();
        Host { _groups: groups, processes, _state: state, s }
    }

    fn as_left(&self) -> bool {
        let masks = values("", "L3", 16).len();
        let half = if self.s.platform().mba.is_some() { vec![50; values("", "MB", 10).len()] } else { values("", "MB", 10) };
        let lists = ["surefoot.c/cpus_list", "surefoot.c/mon_groups/c/cpus_list"].map(shown);
        masks > 0
            && values("surefoot.c", "L3", 16) == vec![OF_C; masks]
            && values("surefoot.d", "L3", 16) == vec![OF_D; masks]
            && values("surefoot.c", "MB", 10) == half
            && shown("surefoot.c/mode") == "shareable"
            && lists.iter().all(String::is_empty)
            && inside(&self.processes[0], "surefoot.c")
            && inside(&self.processes[0], "surefoot.c/mon_groups/c")
            && inside(&self.processes[1], "surefoot.d")
    }

    /// Ticks until all is as it was left; what is told then is that.
    fn settles(&mut self, what: &str) {
        let (begin, mut ticks) = (Instant::now(), 0);
        while !self.as_left() {
            let state = ["schemata", "mode", "cpus_list", "tasks"].map(|f| shown(&format!("surefoot.c/{f}")));
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {state:?}");
            self.s.observe();
            self.s.advance(Tick { ms: 100 });
            ticks += 1;
        }
        println!("{what}: put back after {ticks} ticks, {} ms", begin.elapsed().as_millis());
        let seen = self.s.observe();
        let held = |id: &str| seen.get(id).unwrap().allocation.ways.clone();
        assert!(held("c").iter().all(|w| *w == OF_C) && held("d").iter().all(|w| *w == OF_D), "{what}: {:?} {:?}", held("c"), held("d"));
    }
}

/// A changed schemata, mode or list of CPUs, threads that were moved out, a group that was removed or renamed: undone, and counted.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn what_somebody_changes_is_put_back() {
    let default = shown("schemata");
    // Nobody else has the ways of these two: a group can be made exclusive.
    let rest = values("", "L3", 16)[0] & !(OF_C | OF_D | 0x7);
    let narrow = |line: &str| {
        let (kind, domains) = line.split_once(':').unwrap();
        let all: Vec<String> = domains.split(';').map(|d| format!("{}={rest:x}", d.split_once('=').unwrap().0)).collect();
        format!("{kind}:{}\n", all.join(";"))
    };
    let lines: Vec<&str> = default.split_whitespace().filter(|l| l.starts_with("L3")).collect();
    lines.iter().for_each(|l| write(at("schemata"), &narrow(l)).unwrap());
    fs::create_dir(at("other")).unwrap();
    lines.iter().for_each(|l| write(at("other/schemata"), &narrow(l)).unwrap());
    let kind = lines[0].split_once(':').unwrap().0;
    {
        let mut h = Host::new();
        assert!(h.as_left());
        let tid = h.processes[0].tids().pop().unwrap();
        let interferes: [(&str, &dyn Fn()); 8] = [
            ("schemata", &|| write(at("surefoot.c/schemata"), &format!("{kind}:0=3\n")).unwrap()),
            ("CPUs", &|| write(at("surefoot.c/cpus_list"), "1-2\n").unwrap()),
            ("mode", &|| write(at("surefoot.c/mode"), "exclusive\n").unwrap()),
            ("bandwidth", &|| write(at("surefoot.c/schemata"), "MB:0=100\n").unwrap()),
            ("a thread, to the default group", &|| write(at("tasks"), &format!("{tid}\n")).unwrap()),
            ("a thread, to another group", &|| write(at("other/tasks"), &format!("{tid}\n")).unwrap()),
            ("monitoring group", &|| fs::remove_dir(at("surefoot.c/mon_groups/c")).unwrap()),
            ("class", &|| fs::remove_dir(at("surefoot.c")).unwrap()),
        ];
        let limited = h.s.platform().mba.is_some();
        for (what, interfere) in interferes.into_iter().filter(|(what, _)| limited || *what != "bandwidth") {
            interfere();
            assert!(!h.as_left(), "{what}");
            h.settles(what);
        }
        // Linux 6.4 and later.
        if fs::rename(at("surefoot.c/mon_groups/c"), at("mon_groups/away")).is_ok() {
            h.settles("monitoring group, renamed");
        }
        let counts = h.s.foreign_class_changes();
        for what in ["schemata of its class", "CPUs of its class", "mode of its class", "class of its threads", "monitoring group", "class"]
        {
            assert!(counts.get(&("c", what)).is_some_and(|n| *n >= 1), "{what}: {counts:?}");
        }
        assert!(counts.keys().all(|(id, _)| *id == "c"), "{counts:?}");
        h.s.reset().unwrap();
    }
    let _ = fs::remove_dir(at("mon_groups/away"));
    fs::remove_dir(at("other")).unwrap();
    default.split_whitespace().for_each(|l| write(at("schemata"), &format!("{l}\n")).unwrap());
    assert!(!Path::new(&at("surefoot.c")).exists());
}

/// All CPUs of a domain go off line and come back before anybody is told that they were away: its ways and bandwidth are ours again.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_domain_that_comes_back_has_our_ways_again() {
    if !shown("schemata").contains(";1=") {
        println!("one domain: nothing to see here, see configuration two");
        return;
    }
    let mut h = Host::new();
    (4..8).for_each(|c| switch(c, false));
    assert!(!shown("surefoot.c/schemata").contains("1="));
    (4..8).for_each(|c| switch(c, true));
    assert!(!h.as_left(), "{}", shown("surefoot.c/schemata"));
    h.settles("domain 1 was away");
    assert!(h.s.cpus_changed().is_none());
    assert!(h.s.foreign_class_changes()[&("c", "schemata of its class")] >= 1);
    h.s.reset().unwrap();
}

/// Unmounted: every service reaches all ways, which is what is told, and CPUs go on. Mounted again, also with other options: classes again.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_mount_that_goes_and_comes_is_followed() {
    let run = |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    let options = options();
    let mut h = Host::new();
    // Whoever looks at counters keeps files open.
    assert!(run(&["umount", "-l", RESCTRL]));
    let begin = Instant::now();
    let all = Allocation::everything(h.s.platform()).ways;
    while h.s.observe().get("c").unwrap().allocation.ways != all {
        assert!(begin.elapsed() < Duration::from_secs(60));
        h.s.advance(Tick { ms: 100 });
    }
    let plan = place(&h.s, &[("c", "0-1", OF_C), ("d", "2", OF_D)]);
    h.s.apply(&plan).unwrap();
    assert_eq!(read("/sys/fs/cgroup/c/cpuset.cpus"), "0-1");
    until("it can be mounted again", || run(&["mount", "-t", "resctrl", "resctrl", RESCTRL]));
    h.settles("mounted again");
    h.s.reset().unwrap();
    drop(h);
    // As the next test expects it.
    if !options.is_empty() {
        assert!(run(&["umount", "-l", RESCTRL]));
        until("it can be mounted as before", || run(&["mount", "-t", "resctrl", "-o", &options, "resctrl", RESCTRL]));
    }
}
