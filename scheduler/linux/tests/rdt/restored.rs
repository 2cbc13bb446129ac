//! What a service had before comes back as it was, on the kernel's word.

use crate::support::{read, until, write, Group, Process};
use crate::watched::{at, inside, place, switch};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use surefoot_linux::safe::{SafeLayout, FILE};
use surefoot_linux::{LocalConfig, LocalServer, Root, Target};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Server};

const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };

fn cpus_only(s: &LocalServer, of: &[(&str, &str)]) -> Plan {
    let all = Allocation::everything(s.platform());
    let with = |cpus: &str| Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..all.clone() };
    Plan::whole(of.iter().map(|(id, cpus)| (id.to_string(), with(cpus))).collect())
}

fn open(state: &Path, partitions: bool) -> LocalServer {
    LocalServer::open(LocalConfig { partitions, ..LocalConfig::new(state) }).unwrap()
}

fn adopt(s: &mut LocalServer, kind: Kind) {
    for id in ["a", "b"] {
        s.adopt(id, id, kind, 1, Target::Cgroup(format!("/{id}").into())).unwrap();
    }
}

const WAYS_OUT: [&str; 4] = ["stop", "reset", "later reset", "safe layout"];

fn leave(way: &str, mut s: LocalServer, state: &Path) {
    match way {
        "stop" => ["a", "b"].iter().for_each(|id| s.stop(id).unwrap()),
        "reset" => drop(s.reset().unwrap()),
        "later reset" => {
            drop(s);
            open(state, false).reset().unwrap();
        }
        _ => {
            drop(s);
            let layout = SafeLayout::load(&state.join(FILE)).unwrap().unwrap();
            let report = layout.put_in_force(Root::default().files.as_ref());
            assert_eq!(report.failed, Vec::<String>::new());
        }
    }
}

/// A core is off line when services are given back: what they had names it, or stands for every CPU, and it is theirs again when it is back.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn cpus_that_were_off_line_are_theirs_again() {
    let every = read("/sys/devices/system/cpu/possible");
    let (nodes, on_line) = (read("/sys/devices/system/node/possible"), read("/sys/devices/system/cpu/online"));
    for way in WAYS_OUT {
        let (a, b) = (Group::new("a"), Group::new("b"));
        write(a.file("cpuset.cpus"), "0-3").unwrap();
        let _p = [Process::start(&a, "burn 0"), Process::start(&b, "burn 0")];
        let state = tempfile::tempdir().unwrap();
        let mut s = open(state.path(), false);
        adopt(&mut s, LC);
        s.apply(&cpus_only(&s, &[("a", "0"), ("b", "1")])).unwrap();
        until("memory follows", || {
            s.observe();
            nodes == "0" || a.says("cpuset.mems") == "0"
        });
        switch(3, false);
        s.apply(&cpus_only(&s, &[("a", "1"), ("b", "0")])).unwrap();
        leave(way, s, state.path());
        assert_eq!((a.says("cpuset.cpus"), b.says("cpuset.cpus")), ("0-3".into(), every.clone()), "{way}");
        switch(3, true);
        until("the CPU is back", || read("/sys/devices/system/cpu/online") == on_line);
        assert_eq!((a.says("cpuset.cpus.effective"), b.says("cpuset.cpus.effective")), ("0-3".into(), on_line.clone()), "{way}");
        if nodes != "0" {
            assert_eq!((a.says("cpuset.mems"), b.says("cpuset.mems")), (nodes.clone(), nodes.clone()), "{way}");
        }
    }
}

/// LC services with CPU partitions get back what they had before they came, and not what the partitions had left over; no exclusive CPU stays.
/// A service that leaves gets its list back while another one is a partition.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn nothing_of_partitions_stays() {
    let every = read("/sys/devices/system/cpu/possible");
    for way in WAYS_OUT {
        let (a, b) = (Group::new("a"), Group::new("b"));
        write(b.file("cpuset.cpus"), "0-3").unwrap();
        let _p = [Process::start(&a, "burn 0"), Process::start(&b, "burn 0")];
        let state = tempfile::tempdir().unwrap();
        let mut s = open(state.path(), true);
        adopt(&mut s, LC);
        s.apply(&cpus_only(&s, &[("a", "0"), ("b", "1")])).unwrap();
        assert_eq!((a.says("cpuset.cpus.partition"), b.says("cpuset.cpus.partition")), ("root".into(), "root".into()));
        // Ways alone: partitions stay while the layout is recorded.
        let mut ways = place(&s, &[("a", "0", 0xf), ("b", "1", 0xf0)]);
        ["a", "b"].iter().for_each(|id| ways.adjust(id, |a| a.mba_pct = 100));
        s.apply(&ways).unwrap();
        assert_eq!((a.says("cpuset.cpus.partition"), b.says("cpuset.cpus.partition")), ("root".into(), "root".into()));
        if way == "stop" {
            s.stop("a").unwrap();
            assert_eq!((a.says("cpuset.cpus"), a.says("cpuset.cpus.partition")), (every.clone(), "member".into()));
            s.observe();
            assert!(s.foreign_changes().is_empty(), "{:?}", s.foreign_changes());
            s.stop("b").unwrap();
        } else {
            leave(way, s, state.path());
        }
        assert_eq!((a.says("cpuset.cpus"), b.says("cpuset.cpus")), (every.clone(), "0-3".into()), "{way}");
        for g in [&a, &b] {
            assert_eq!(g.says("cpuset.cpus.partition"), "member", "{way}");
            let of = |file: &str| fs::read_to_string(g.file(file)).unwrap_or_default().trim().to_string();
            assert_eq!((of("cpuset.cpus.exclusive"), of("cpuset.cpus.exclusive.effective")), (String::new(), String::new()), "{way}");
        }
        assert_eq!(a.says("cpuset.cpus.effective"), read("/sys/devices/system/cpu/online"));
    }
}

/// Threads that were in a group of somebody else return to it, also from a class that two share.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn threads_return_to_groups_of_others() {
    let classes: u32 = read(at("info/L3/num_closids")).parse().unwrap();
    let classes = fs::read_to_string(at("info/MB/num_closids")).map_or(classes, |t| classes.min(t.trim().parse().unwrap()));
    // One class is left.
    let others = classes - 2;
    (0..others).for_each(|n| fs::create_dir(at(&format!("vm{n}"))).unwrap());
    {
        let (a, b) = (Group::new("a"), Group::new("b"));
        let (p, q) = (Process::start(&a, "burn 0"), Process::start(&b, "burn 0"));
        p.tids().iter().chain(&q.tids()).for_each(|t| write(at("vm0/tasks"), &format!("{t}\n")).unwrap());
        let state = tempfile::tempdir().unwrap();
        let mut s = open(state.path(), false);
        adopt(&mut s, Kind::Be);
        let plan = place(&s, &[("a", "0", 0xf), ("b", "1", 0xf0)]);
        s.apply(&plan).unwrap();
        assert!(!inside(&p, "vm0") && !inside(&q, "vm0"));
        s.stop("a").unwrap();
        assert!(inside(&p, "vm0") && !inside(&q, "vm0"));
        drop(s);
        open(state.path(), false).reset().unwrap();
        assert!(inside(&p, "vm0") && inside(&q, "vm0"));
    }
    (0..others).for_each(|n| fs::remove_dir(at(&format!("vm{n}"))).unwrap());
}

/// Another mount covers this one until the test ends.
struct Covered(&'static str);

impl Drop for Covered {
    fn drop(&mut self) {
        let run = |args: &[&str]| Command::new(args[0]).args(&args[1..]).status().is_ok_and(|s| s.success());
        let back =
            |c: &str| fs::read_to_string(format!("{}/cgroup.controllers", self.0)).is_ok_and(|t| t.split_whitespace().any(|w| w == c));
        // Not `umount -R`: to it the covered mount is one of those that go.
        let below = ["cpuset", "cpu"].map(|c| format!("{}/{c}", self.0));
        for at in below.iter().map(String::as_str).chain([self.0]) {
            let _ = run(&["umount", at]);
        }
        if std::thread::panicking() {
            return;
        }
        // A hierarchy whose groups were not gone for good stays until it is unmounted once more. It goes a while after that: a mount in
        // between would be a new one.
        const A_WHILE: Duration = Duration::from_secs(5);
        let elsewhere = tempfile::tempdir().unwrap();
        let at = elsewhere.path().to_str().unwrap();
        for c in ["cpuset", "cpu"] {
            let mut unmounted = Instant::now();
            until("the controller is version 2's again", || {
                let is = back(c);
                if !is && unmounted.elapsed() > A_WHILE {
                    let _ = run(&["mount", "-t", "cgroup", "-o", c, "none", at]) && run(&["umount", at]);
                    unmounted = Instant::now();
                }
                is
            });
        }
    }
}

/// Version 1: the kernel takes a CPU that goes off line from every group for good. It is owed to a service that was given back meanwhile, named,
/// and comes back once the group above has it.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn version_1_owes_a_cpu_that_was_off_line() {
    let mount = "/sys/fs/cgroup";
    let run = |args: &[&str]| Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    let _ = write(format!("{mount}/cgroup.subtree_control"), "-cpu -cpuset -memory -io");
    assert!(run(&["mount", "-t", "tmpfs", "none", mount]));
    let _v2 = Covered(mount);
    ["cpuset", "cpu"].iter().for_each(|c| fs::create_dir(format!("{mount}/{c}")).unwrap());
    let v1 = ["cpuset", "cpu"].iter().all(|c| run(&["mount", "-t", "cgroup", "-o", c, "none", &format!("{mount}/{c}")]));
    if !v1 || !Path::new(&format!("{mount}/cpuset/cpuset.cpus")).exists() {
        println!("this kernel has no cpusets of version 1: nothing to see here, see 6.1");
        return;
    }
    let dir = |g: &str| format!("{mount}/cpuset/{g}");
    for g in ["top", "top/a", "top/b"] {
        fs::create_dir(dir(g)).unwrap();
        fs::create_dir(format!("{mount}/cpu/{g}")).unwrap();
        ["cpuset.cpus", "cpuset.mems"].iter().for_each(|f| write(format!("{}/{f}", dir(g)), &read(format!("{mount}/cpuset/{f}"))).unwrap());
    }
    let every = read(format!("{}/cpuset.cpus", dir("top")));
    let cpus = |g: &str| read(format!("{}/cpuset.cpus", dir(g)));
    let state = tempfile::tempdir().unwrap();
    {
        let mut s = open(state.path(), false);
        for id in ["a", "b"] {
            s.adopt(id, id, LC, 1, Target::Cgroup(format!("/top/{id}").into())).unwrap();
        }
        s.apply(&cpus_only(&s, &[("a", "0"), ("b", "1")])).unwrap();
        switch(3, false);
        let without: CpuSet = CpuSet::parse(&every).unwrap().difference(CpuSet::range(3, 4));
        // One that leaves, then the rest.
        s.stop("a").unwrap();
        assert_eq!((cpus("top/a"), cpus("top/b")), (without.to_string(), "1".into()));
        let layout = SafeLayout::load(&state.path().join(FILE)).unwrap().unwrap();
        drop(s);
        let report = layout.put_in_force(Root::default().files.as_ref());
        assert!(report.failed.iter().all(|f| f.contains("without 3")) && report.failed.len() == 2, "{report:?}");
        let said = open(state.path(), false).reset().unwrap_err().to_string();
        assert!(said.contains("but for 3") && said.contains("cpuset.cpus"), "{said}");
        assert_eq!((cpus("top/a"), cpus("top/b")), (without.to_string(), without.to_string()));
        switch(3, true);
        // The kernel gave it back to the root alone.
        until("the root has it", || read(format!("{mount}/cpuset/cpuset.cpus")) == every);
        write(format!("{}/cpuset.cpus", dir("top")), &every).unwrap();
        assert_eq!(open(state.path(), false).reset().unwrap().restored, ["a", "b"]);
        assert_eq!((cpus("top/a"), cpus("top/b")), (every.clone(), every.clone()));
    }
    for g in ["top/a", "top/b", "top"] {
        fs::remove_dir(dir(g)).unwrap();
        fs::remove_dir(format!("{mount}/cpu/{g}")).unwrap();
    }
}
