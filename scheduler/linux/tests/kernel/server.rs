//! The whole server on real groups. Processes sleep where only their place counts: a change of a cpuset waits for every CPU, which
//! in software emulation takes long where all of them spin.

use crate::support::{hold, settings, until, write, Group, Process, MIB};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::{Allocation, Kind, Plan, Server};

const LC: Kind = Kind::Lc { qos_target_ms: 10.0 };

fn plan(of: &[(&str, Allocation)]) -> Plan {
    Plan::whole(of.iter().map(|(id, a)| (id.to_string(), a.clone())).collect())
}

/// What every thread of a process may run on; all of them the same.
fn allowed(p: &Process) -> String {
    let mut lists: Vec<String> = p.tids().into_iter().filter_map(|t| p.status(t, "Cpus_allowed_list")).collect();
    lists.dedup();
    assert_eq!(lists.len(), 1, "{lists:?}");
    lists.remove(0)
}

fn differences(before: &BTreeMap<PathBuf, String>, after: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let of = |m: &BTreeMap<PathBuf, String>, k: &PathBuf| m.get(k).map_or("nothing".into(), |t| t.trim().to_string());
    let mut keys: Vec<&PathBuf> = before.keys().chain(after.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .filter(|k| before.get(*k) != after.get(*k))
        .map(|k| format!("{}: {} -> {}", k.display(), of(before, k), of(after, k)))
        .collect()
}

/// Adopted by cgroup, unit and process, placed, moved and given back: every setting of every group is as it was, also when the
/// server that changed it has died. One thing the kernel does not take back: a list of CPUs that was empty and may not be emptied
/// while there are processes holds what it stood for; likewise for memory nodes.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn everything_is_given_back() {
    let (web, redis, job) = (Group::new("lc.slice/web"), Group::new("system.slice/redis.service"), Group::new("job"));
    write(web.file("cpuset.cpus"), "0-6").unwrap();
    [&web, &job].iter().for_each(|g| write(g.file("cpuset.mems"), "0-1").unwrap());
    write(job.file("cpuset.cpus"), "0-7").unwrap();
    write(job.file("cpu.max"), "900000 1000000").unwrap();
    let (w, r, j) = (Process::start(&web, "burn 0"), Process::start(&redis, "burn 0"), Process::start(&job, "burn 0"));
    let before = settings();
    let state = tempfile::tempdir().unwrap();
    let open = || LocalServer::open(LocalConfig::new(state.path())).unwrap();
    let mut s = open();
    let adopt = |s: &mut LocalServer| {
        s.adopt("web", "web", LC, 2, Target::Cgroup("/lc.slice/web".into())).unwrap();
        s.adopt("redis", "redis", LC, 1, Target::Unit("redis.service".into())).unwrap();
        s.adopt("job", "job", Kind::Be, 1, Target::Pid(j.pid())).unwrap();
    };
    adopt(&mut s);
    assert_eq!(differences(&before, &settings()), Vec::<String>::new(), "adopting changes nothing");
    let p = s.platform();
    assert_eq!((p.physical_cores, p.smt, p.l3_domains(), p.managed.to_string().as_str()), (4, 2, 2, "0-6"));

    let job_holds = Allocation { quota_cores: Some(1.0), ..hold(&s, "4-6") };
    let first = plan(&[("web", hold(&s, "0-1")), ("redis", hold(&s, "2")), ("job", job_holds)]);
    s.apply(&first).unwrap();
    assert_eq!((allowed(&w), allowed(&r), allowed(&j)), ("0-1".into(), "2".into(), "4-6".into()));
    assert_eq!((job.says("cpu.max").as_str(), job.says("cpu.weight").as_str()), ("10000 10000", "1"));
    s.apply(&plan(&[("web", hold(&s, "2-3")), ("redis", hold(&s, "0"))])).unwrap();
    assert_eq!((allowed(&w), allowed(&r), allowed(&j)), ("2-3".into(), "0".into(), "4-6".into()));
    let seen = s.observe();
    assert_eq!(seen.get("web").unwrap().features.alloc_cores, Some(2.0));
    assert!(differences(&before, &settings()).len() >= 5);

    let stays = ["cpuset.cpus:  -> 0-7", "cpuset.mems:  -> 0-1"].map(|f| format!("/sys/fs/cgroup/system.slice/redis.service/{f}"));
    assert_eq!(s.reset().unwrap().restored, ["job", "redis", "web"]);
    assert_eq!(differences(&before, &settings()), stays);
    assert_eq!((allowed(&w), allowed(&r), allowed(&j)), ("0-6".into(), "0-7".into(), "0-7".into()));

    // A server that dies leaves the plan in force; the next one gives everything back.
    s.apply(&first).unwrap();
    drop(s);
    assert_eq!(allowed(&w), "0-1");
    let mut s = open();
    assert_eq!(s.reset().unwrap().restored, ["job", "redis", "web"]);
    assert_eq!(differences(&before, &settings()), stays);
}

/// A service whose process or group has gone fails its plan with its name, and the others keep what they had; it leaves the
/// observation, and what is left of it is given back.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn a_service_that_ends_takes_no_other_along() {
    let (stays, ends) = (Group::new("stays"), Group::new("ends"));
    write(stays.file("cpuset.cpus"), "0-7").unwrap();
    let (p, mut q) = (Process::start(&stays, "burn 0"), Process::start(&ends, "burn 0"));
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig::new(state.path())).unwrap();
    s.adopt("stays", "stays", LC, 1, Target::Pid(p.pid())).unwrap();
    s.adopt("ends", "ends", Kind::Be, 1, Target::Pid(q.pid())).unwrap();
    s.apply(&plan(&[("stays", hold(&s, "0-1")), ("ends", hold(&s, "2-3"))])).unwrap();
    // The process ends, its group stays: nothing to move, and nothing fails.
    q.kill();
    s.apply(&plan(&[("stays", hold(&s, "2-3")), ("ends", hold(&s, "0-1"))])).unwrap();
    assert_eq!(allowed(&p), "2-3");
    // The group goes too.
    until("the group is empty", || std::fs::remove_dir(&ends.0).is_ok());
    let err = s.apply(&plan(&[("stays", hold(&s, "4-5")), ("ends", hold(&s, "2-3"))])).unwrap_err().to_string();
    assert!(err.contains("ends"), "{err}");
    assert_eq!((allowed(&p), stays.says("cpuset.cpus")), ("2-3".into(), "2-3".into()));
    let ids: Vec<String> = s.observe().services.into_iter().map(|v| v.id).collect();
    assert_eq!(ids, ["stays"]);
    s.apply(&plan(&[("stays", hold(&s, "4-5"))])).unwrap();
    assert_eq!(s.reset().unwrap().restored, ["stays"]);
    assert_eq!(allowed(&p), "0-7");
}

/// Threads that are born while their service is moved are on the new CPUs like the others.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn threads_born_during_a_move_are_moved() {
    let g = Group::new("churn");
    let p = Process::start(&g, "churn 4");
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig::new(state.path())).unwrap();
    s.adopt("churn", "churn", LC, 4, Target::Pid(p.pid())).unwrap();
    let (mut seen, mut first) = (0, 0);
    for round in 0..40 {
        let cpus = ["0-1", "4-6", "3"][round % 3];
        s.apply(&plan(&[("churn", hold(&s, cpus))])).unwrap();
        for tid in p.tids() {
            // None: it has ended since.
            if let Some(list) = p.status(tid, "Cpus_allowed_list") {
                assert_eq!(list, cpus, "thread {tid} in round {round}");
                seen += 1;
            }
            first = if first == 0 { tid } else { first.max(tid) };
        }
    }
    assert!(seen > 200, "only {seen} threads were looked at");
    println!("{seen} threads looked at in 40 moves, the last of them {first}, the process {}", p.pid());
}

/// Threads are back on their CPUs at the next look after somebody else has moved them, as systemd does at a daemon-reload.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn foreign_writes_are_put_back() {
    let g = Group::new("system.slice/redis.service");
    let p = Process::start(&g, "burn 0");
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig { look_every: Duration::ZERO, ..LocalConfig::new(state.path()) }).unwrap();
    s.adopt("redis", "redis", LC, 2, Target::Unit("redis.service".into())).unwrap();
    s.apply(&plan(&[("redis", hold(&s, "2-3"))])).unwrap();
    until("everything is in force", || {
        s.observe();
        g.says("cpuset.mems") == "0"
    });
    assert!(s.foreign_changes().is_empty());
    write(g.file("cpuset.cpus"), "0-7").unwrap();
    write(g.file("cpu.max"), "20000 100000").unwrap();
    assert_eq!(allowed(&p), "0-7");
    s.observe();
    assert_eq!((allowed(&p), g.says("cpu.max")), ("2-3".into(), "max 10000".into()));
    assert_eq!(s.foreign_changes().values().copied().collect::<Vec<u64>>(), [1, 1]);
    // A list that a group above cuts is no success.
    write(g.0.parent().unwrap().join("cpuset.cpus"), "0-3").unwrap();
    let err = s.apply(&plan(&[("redis", hold(&s, "4-5"))])).unwrap_err().to_string();
    assert!(err.contains("a group above allows no more"), "{err}");
    assert_eq!(allowed(&p), "2-3");
    s.reset().unwrap();
}

/// A service's memory moves with it to the node of its CPUs, and a memory limit far below what it uses is reached without a kill.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn memory_follows_a_placed_service_and_its_limit() {
    let g = Group::new("memory");
    write(g.file("cpuset.mems"), "0").unwrap();
    let mut p = Process::start(&g, &format!("hold {}", 48 * MIB));
    write(g.file("cpuset.mems"), "0-1").unwrap();
    let pages = 48 * MIB / 4096;
    assert!(p.pages_on(0) >= pages);
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig::new(state.path())).unwrap();
    assert_eq!(s.platform().numa_of_cpu, [0, 0, 0, 0, 1, 1, 1, 1]);
    s.adopt("memory", "memory", LC, 1, Target::Pid(p.pid())).unwrap();
    s.apply(&plan(&[("memory", hold(&s, "4-5"))])).unwrap();
    until("its memory is on node 1", || {
        s.observe();
        g.says("cpuset.mems") == "1" && p.pages_on(1) >= pages && p.pages_on(0) < pages / 8
    });
    let limited = Allocation { mem_limit_bytes: Some(32 * MIB), ..hold(&s, "4-5") };
    s.apply(&plan(&[("memory", limited)])).unwrap();
    until("its limit is reached", || {
        s.observe();
        g.says("memory.max") == (32 * MIB).to_string()
    });
    assert!(g.number("memory.current") <= 32 * MIB && p.running() && g.keyed("memory.events", "oom_kill ") == 0);
    assert!(s.foreign_changes().is_empty());
    s.reset().unwrap();
    assert_eq!((g.says("cpuset.mems").as_str(), g.says("memory.max").as_str(), g.says("memory.high").as_str()), ("0-1", "max", "max"));
}

/// Where partitions are asked for, an LC service alone on its CPUs gets them where the kernel makes them, and plain CPUs where it
/// does not; plans go on moving CPUs between services.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn partitions_move_with_plans() {
    let (top, nested) = (Group::new("top"), Group::new("plain.slice/nested"));
    for g in [&top, &nested] {
        write(g.file("cpuset.cpus"), "0-7").unwrap();
        write(g.file("cpuset.mems"), "0-1").unwrap();
    }
    let (p, q) = (Process::start(&top, "burn 0"), Process::start(&nested, "burn 0"));
    let before = settings();
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(LocalConfig { partitions: true, ..LocalConfig::new(state.path()) }).unwrap();
    s.adopt("top", "top", LC, 1, Target::Cgroup("/top".into())).unwrap();
    s.adopt("nested", "nested", LC, 1, Target::Cgroup("/plain.slice/nested".into())).unwrap();
    for (a, b) in [("0-1", "2-3"), ("2-3", "0-1"), ("2-5", "0-1"), ("0", "1-6")] {
        s.apply(&plan(&[("top", hold(&s, a)), ("nested", hold(&s, b))])).unwrap();
        assert_eq!((allowed(&p), allowed(&q)), (a.into(), b.into()));
        assert_eq!((top.says("cpuset.cpus.partition").as_str(), nested.says("cpuset.cpus.partition").as_str()), ("root", "member"));
    }
    s.reset().unwrap();
    assert_eq!(differences(&before, &settings()), Vec::<String>::new());
    assert_eq!((allowed(&p), allowed(&q)), ("0-7".into(), "0-7".into()));
}
