//! Cores that move by their owner in the kernel (sched_ext), on the word of the kernel's trace of switches.

use crate::support::{read, role, until, write, Dice, Group, Process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_bpf::{let_in, let_out, scheduler, Class, Owners};
use surefoot_server::CpuSet;

const TRACING: &str = "/sys/kernel/tracing";
/// The lender's: three cores of two CPUs. It keeps the first.
const LENDER: &str = "0-5";
const BORROWER: &str = "6";
/// The test's own.
const TEST: u32 = 7;

/// Not a test: what the two services run. "burst N": N threads that compute for a moment and sleep for a moment; "bully N": N that spin.
#[test]
#[ignore = "the helper process of the tests of sched_ext; does nothing when run alone"]
fn helper() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let (name, n): (String, u64) = (words[0].into(), words[1].parse().unwrap());
    for i in 0..n {
        let bursts = name == "burst";
        let work = move || {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15 + i);
            loop {
                let end = Instant::now() + Duration::from_micros(dice.between(300, 3000));
                while !bursts || Instant::now() < end {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Duration::from_micros(dice.between(300, 6000)));
            }
        };
        std::thread::Builder::new().name(name.clone()).spawn(work).unwrap();
    }
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Why the kernel under test cannot show this.
fn refused() -> Option<String> {
    if fs::exists("/sys/kernel/sched_ext").unwrap() {
        return None;
    }
    eprintln!("NOT RUN: this kernel has no sched_ext");
    Some("no sched_ext".into())
}

/// Two services, their threads let in, the lender's CPUs all its own.
struct Bed {
    owners: Arc<Owners>,
    lender: Class,
    borrower: Class,
    groups: [Group; 2],
    processes: [Process; 2],
}

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

fn class(owners: &Arc<Owners>, group: &Group, keeps: bool) -> Class {
    owners.class(fs::metadata(&group.0).unwrap().ino(), group.name().matches('/').count(), keeps).unwrap()
}

/// Until no thread is found that is not in yet: children are in from birth.
fn all_in(group: &Group) {
    while group.cgroup().tids().into_iter().filter(|tid| let_in(*tid).unwrap()).count() > 0 {}
}

impl Bed {
    fn new(bursts: u32, bullies: u32) -> Bed {
        // The test's threads stay out of the way.
        let me = nix::unistd::Pid::from_raw(0);
        let mut cpus = nix::sched::CpuSet::new();
        cpus.set(TEST as usize).unwrap();
        nix::sched::sched_setaffinity(me, &cpus).unwrap();
        let groups = [Group::new("lender"), Group::new("borrower")];
        for (group, cpus) in groups.iter().zip([LENDER, BORROWER]) {
            write(group.file("cpuset.cpus"), cpus).unwrap();
        }
        let processes = [
            Process::start_as(&groups[0], "scx::helper", &format!("burst {bursts}")),
            Process::start_as(&groups[1], "scx::helper", &format!("bully {bullies}")),
        ];
        let owners = Owners::open(scheduler().unwrap_or_else(|e| panic!("{e}"))).unwrap();
        let (lender, borrower) = (class(&owners, &groups[0], true), class(&owners, &groups[1], false));
        lender.give(&set(LENDER)).unwrap();
        borrower.give(&set(BORROWER)).unwrap();
        groups.iter().for_each(all_in);
        Bed { owners, lender, borrower, groups, processes }
    }
}

/// The scheduler takes the threads, lets them run where they may, and gives them back.
#[test]
#[ignore = "needs the guest: make test-kernel"]
fn a_scheduler_comes_and_goes() {
    if refused().is_some() {
        return;
    }
    let bed = Bed::new(3, 3);
    assert_eq!(read("/sys/kernel/sched_ext/state"), "enabled");
    assert_eq!(read("/sys/kernel/sched_ext/root/ops"), "surefoot");
    // The borrower may be on the CPUs of the lease by its cpuset, and is not by its owner.
    write(bed.groups[1].file("cpuset.cpus"), "2-6").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let on = |p: &Process| -> Vec<u32> { p.tids().into_iter().filter_map(|tid| p.ran_on(tid)).collect() };
    println!("lender on {:?}, borrower on {:?}, strays {}", on(&bed.processes[0]), on(&bed.processes[1]), bed.owners.strays());
    assert_eq!(bed.owners.ended(), None);
    bed.borrower.give(&set("4-5")).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    println!("lender on {:?}, borrower on {:?}, strays {}", on(&bed.processes[0]), on(&bed.processes[1]), bed.owners.strays());
    assert_eq!(bed.owners.ended(), None);
    for group in &bed.groups {
        group.cgroup().tids().into_iter().for_each(|tid| assert!(let_out(tid).unwrap()));
    }
    drop(bed.lender);
    drop(bed.borrower);
    drop(bed.owners);
    until("the kernel's own scheduler is in charge", || read("/sys/kernel/sched_ext/state") == "disabled");
}
