//! One group's knobs, pressure and reclaim.

use crate::support::{read, until, write, Group, Process, MIB};
use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use surefoot_linux::cgroup::{quota_value, Knob};
use surefoot_linux::memory::{lower, Hand, Lowering, Pace};
use surefoot_linux::psi::{Pressure, Resource};
use surefoot_linux::Root;

/// Cores that a group used over `window`.
fn cores_used(group: &Group, window: Duration) -> f64 {
    let (begin, before) = (Instant::now(), group.keyed("cpu.stat", "usage_usec"));
    std::thread::sleep(window);
    (group.keyed("cpu.stat", "usage_usec") - before) as f64 * 1e-6 / begin.elapsed().as_secs_f64()
}

fn brisk() -> Pace {
    Pace { step_frac: 0.1, interval: Duration::from_millis(10), fruitless: 50, ..Pace::default() }
}

/// Every thread of a service runs only on its CPUs, and is allowed no others, from the moment of the write.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn threads_run_on_their_cpus() {
    let g = Group::new("cpus");
    let c = g.cgroup();
    let p = Process::start(&g, "burn 4");
    assert_eq!(p.tids().len(), 6, "main, the test's thread and four that burn");
    for cpus in ["2-3", "5", "0,4,6"] {
        c.set(Knob::Cpus, cpus).unwrap();
        c.check_in_force(cpus).unwrap();
        let allowed = surefoot_server::CpuSet::parse(cpus).unwrap();
        for tid in p.tids() {
            assert_eq!(p.status(tid, "Cpus_allowed_list").unwrap(), cpus);
            // One that sleeps says where it ran last: those that burn must have moved.
            let sleeps = || p.status(tid, "State").unwrap().starts_with('S');
            until("threads run on their CPUs", || sleeps() || allowed.contains(p.ran_on(tid).unwrap()));
        }
    }
}

/// An empty list is refused by the kernel while there are processes; giving it back means what the group inherits. Lists that
/// cannot be are named with what they mean, and one that a group above cuts is found.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn lists_that_cannot_be_are_explained() {
    let g = Group::new("lists/inner");
    let c = g.cgroup();
    c.set(Knob::Cpus, "1").unwrap();
    c.set(Knob::Cpus, "").unwrap();
    assert_eq!(g.says("cpuset.cpus"), "", "without processes it can be emptied");
    let _p = Process::start(&g, "burn 1");
    c.set(Knob::Cpus, "1").unwrap();
    c.set(Knob::Mems, "1").unwrap();
    let raw = write(g.file("cpuset.cpus"), "\n").unwrap_err();
    assert_eq!(raw.raw_os_error(), Some(28), "ENOSPC: {raw}");
    c.set(Knob::Cpus, "").unwrap();
    c.set(Knob::Mems, "").unwrap();
    assert_eq!((g.says("cpuset.cpus").as_str(), g.says("cpuset.mems").as_str()), ("0-7", "0-1"));
    let err = c.set(Knob::Cpus, "99").unwrap_err().to_string();
    assert!(err.contains("cpuset.cpus") && err.contains("\"99\"") && err.contains("not on this host"), "{err}");
    let err = c.set(Knob::Quota, "500 10000").unwrap_err().to_string();
    assert!(err.contains("at least 1 ms"), "{err}");
    let above = g.0.parent().unwrap();
    write(above.join("cpuset.cpus"), "0-1").unwrap();
    c.set(Knob::Cpus, "4-5").unwrap();
    let err = c.check_in_force("4-5").unwrap_err().to_string();
    assert!(err.contains("\"4-5\"") && err.contains("\"0-1\"") && err.contains("a group above"), "{err}");
}

/// Four threads that would use what there is get half a core.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn cpu_use_stays_at_the_quota() {
    let g = Group::new("quota");
    let c = g.cgroup();
    let _p = Process::start(&g, "burn 4");
    let free = cores_used(&g, Duration::from_secs(1));
    c.set(Knob::Quota, &quota_value(Some(0.5))).unwrap();
    assert_eq!(g.says("cpu.max"), "5000 10000");
    let bound = cores_used(&g, Duration::from_secs(3));
    // Each CPU may run one slice of 5 ms ahead, and accounting is by the tick.
    assert!(free > 1.0 && bound < 0.65 && bound > 0.25, "free {free:.2}, with a quota {bound:.2} cores");
    assert!(g.keyed("cpu.stat", "nr_throttled ") > 0);
    println!("cpu.max 0.5: used {bound:.3} cores, {free:.2} without");
}

/// Above `memory.max` a process is reclaimed from where there is swap, and killed where there is none.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn memory_max_is_never_exceeded() {
    let g = Group::new("max");
    let c = g.cgroup();
    c.set(Knob::Memory, &(48 * MIB).to_string()).unwrap();
    let mut p = Process::start(&g, &format!("hold {}", 96 * MIB));
    assert!(p.running() && g.number("memory.swap.current") > 40 * MIB, "{} swapped", g.number("memory.swap.current"));
    assert!(g.number("memory.current") <= 48 * MIB && g.number("memory.peak") <= 49 * MIB);
    p.kill();
    write(g.file("memory.swap.max"), "0").unwrap();
    let mut p = Process::start(&g, &format!("hold {}", 96 * MIB));
    assert_eq!(p.killed_by(), Some(9));
    assert_eq!(g.keyed("memory.events", "oom_kill "), 1);
}

/// Reclaim and a lowered `memory.high` really take resident memory from a process, in steps, and leave no limit behind; where
/// nothing can be taken they give up, and the limit is not left below what is in use.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn memory_is_taken_back_in_steps() {
    let g = Group::new("reclaim");
    let c = g.cgroup();
    // What zswap keeps is charged to the group too: no goal here is below the third of it that it compresses to.
    let p = Process::start(&g, &format!("hold {}", 128 * MIB));
    let (before, in_use) = (p.resident(), c.memory_bytes().unwrap());
    assert!(before > 128 * MIB && in_use > 128 * MIB);
    c.reclaim(32 * MIB).unwrap();
    let once = p.resident();
    assert!(once + 24 * MIB < before, "{before} -> {once}");
    let stop = AtomicBool::new(false);
    lower(&c, 96 * MIB, Hand::High, &brisk(), &stop).unwrap();
    assert!(c.memory_bytes().unwrap() <= 96 * MIB && p.resident() < 97 * MIB, "{:?}", c.memory_bytes());
    assert_eq!(g.says("memory.high"), "max");
    lower(&c, 80 * MIB, Hand::Reclaim, &brisk(), &stop).unwrap();
    assert!(c.memory_bytes().unwrap() <= 80 * MIB, "{:?}", c.memory_bytes());
    assert_eq!(g.says("memory.high"), "max");
    println!("resident: {} MiB, {} after memory.reclaim of 32 MiB, {} in the end", before / MIB, once / MIB, p.resident() / MIB);

    // In the background, and then the limit itself.
    let mut l = Lowering::start(Root::default(), c.clone(), 64 * MIB, brisk()).unwrap();
    let mut ended = None;
    until("memory is lowered", || {
        ended = l.ended();
        ended.is_some()
    });
    ended.unwrap().unwrap();
    assert_eq!(g.number("memory.max"), 64 * MIB);
    assert_eq!(g.keyed("memory.events", "oom_kill "), 0);
    // One that is stopped in the middle leaves no limit.
    c.set(Knob::Memory, "max").unwrap();
    drop(Lowering::start(Root::default(), c.clone(), 50 * MIB, Pace::default()).unwrap());
    assert_eq!((g.says("memory.high").as_str(), g.says("memory.max").as_str()), ("max", "max"));

    let g = Group::new("stuck");
    let c = g.cgroup();
    write(g.file("memory.swap.max"), "0").unwrap();
    let mut p = Process::start(&g, &format!("hold {}", 64 * MIB));
    for hand in [Hand::High, Hand::Reclaim] {
        let err = lower(&c, 16 * MIB, hand, &Pace { stall_frac: f64::INFINITY, ..brisk() }, &stop).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::TimedOut, "{err}");
        assert_eq!(g.says("memory.high"), "max");
    }
    // In the background the limit is what there is: without swap nothing may go.
    let mut l = Lowering::start(Root::default(), c.clone(), 16 * MIB, brisk()).unwrap();
    let mut ended = None;
    until("the floor is found", || {
        ended = l.ended();
        ended.is_some()
    });
    assert!(ended.unwrap().unwrap() > 64 * MIB && g.number("memory.max") > 64 * MIB && p.running());
}

/// zswap holds what a group may keep in it, and nothing where that is 0.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn zswap_keeps_to_its_limit() {
    assert_eq!(read("/sys/module/zswap/parameters/enabled"), "Y");
    let held = |limit: &str| {
        let g = Group::new("zswap");
        let c = g.cgroup();
        c.set(Knob::Zswap, limit).unwrap();
        assert_eq!(c.get(Knob::Zswap).as_deref(), Some(limit));
        let _p = Process::start(&g, &format!("hold {}", 96 * MIB));
        lower(&c, 48 * MIB, Hand::Reclaim, &brisk(), &AtomicBool::new(false)).unwrap();
        (c.zswap_bytes().unwrap(), g.number("memory.swap.current"))
    };
    let (free, swapped) = held("max");
    assert!(free > 8 * MIB && free < swapped, "{free} in zswap, {swapped} swapped");
    let (bound, swapped) = held(&(4 * MIB).to_string());
    // The kernel looks before it stores: what several CPUs store at once may go over by a page each.
    assert!(bound > 0 && bound <= 4 * MIB + (64 << 10) && swapped > 40 * MIB, "{bound} in zswap, {swapped} swapped");
    let (none, swapped) = held("0");
    assert!(none == 0 && swapped > 40 * MIB, "{none} in zswap, {swapped} swapped");
    println!("zswap: {} KiB without a limit, {} KiB with 4096, {none} with 0", free / 1024, bound / 1024);
}

/// A partition takes its CPUs from every other group; where the kernel marks it invalid that is a failure with the kernel's
/// reason, and nothing stays.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn partitions_hold_or_say_why_not() {
    let (g, other) = (Group::new("apart"), Group::new("beside"));
    let (c, o) = (g.cgroup(), other.cgroup());
    for kind in ["root", "isolated"] {
        c.set(Knob::Cpus, "2-3").unwrap();
        c.set(Knob::Partition, kind).unwrap();
        assert_eq!((c.get(Knob::Partition).as_deref(), o.effective_cpus().as_deref()), (Some(kind), Some("0-1,4-7")));
        // Older kernels let a neighbour take them back, and say so only in our file; newer ones refuse him.
        let taken = o.set(Knob::Cpus, "2-5").is_ok();
        // 6.12.117 gives no reason here.
        assert_eq!(c.get(Knob::Partition).unwrap().starts_with(&format!("{kind} invalid")), taken, "{:?}", c.get(Knob::Partition));
        c.set(Knob::Partition, "member").unwrap();
        o.set(Knob::Cpus, "").unwrap();
        assert_eq!(o.effective_cpus().as_deref(), Some("0-7"));
    }
    let inner = Group::new("beside/inner");
    let i = inner.cgroup();
    i.set(Knob::Cpus, "4").unwrap();
    let err = i.set(Knob::Partition, "root").unwrap_err().to_string();
    assert!(err.contains("root invalid ("), "{err}");
    assert_eq!(i.get(Knob::Partition).as_deref(), Some("member"));
    println!("partition in a group that is none: {err}");
}

/// Pressure is read per group and of the host, and grows where tasks wait.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn pressure_grows_where_tasks_wait() {
    let g = Group::new("pressure");
    let c = g.cgroup();
    c.set(Knob::Cpus, "3").unwrap();
    let of = |r: Resource| c.pressure(r).unwrap().some.total_us;
    let before = of(Resource::Cpu);
    let _p = Process::start(&g, "burn 3");
    until("three threads on one CPU wait for it", || of(Resource::Cpu) > before + 100_000);
    let memory = of(Resource::Memory);
    c.set(Knob::Cpus, "0-7").unwrap();
    c.set(Knob::High, &(16 * MIB).to_string()).unwrap();
    let _q = Process::start(&g, &format!("hold {}", 48 * MIB));
    assert!(of(Resource::Memory) > memory, "one that is throttled waits for memory");
    for r in Resource::ALL {
        assert!(c.pressure(r).unwrap().full.is_some() && Pressure::of_host(&Root::default(), r).is_some(), "{r:?}");
    }
    assert!(Pressure::of_host(&Root::default(), Resource::Cpu).unwrap().some.total_us > 0);
}

/// Memory follows `cpuset.mems` to its node.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn memory_follows_its_nodes() {
    let g = Group::new("mems");
    let c = g.cgroup();
    c.set(Knob::Mems, "0").unwrap();
    let p = Process::start(&g, &format!("hold {}", 32 * MIB));
    let pages = 32 * MIB / 4096;
    assert!(p.pages_on(0) >= pages && p.pages_on(1) < pages / 8, "{} and {}", p.pages_on(0), p.pages_on(1));
    c.set(Knob::Mems, "1").unwrap();
    until("its memory has moved", || p.pages_on(1) >= pages && p.pages_on(0) < pages / 8);
}
