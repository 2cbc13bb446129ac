//! The working set by each way that a kernel has: of 192 MiB, 48 are touched all the time.

use crate::support::{read, role, until, write, Group, Process, MIB};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::working_set::{Outcome, Pace, Watched, Way, WorkingSets};
use surefoot_linux::Root;

const ALL: u64 = 192 * MIB;
const HOT: u64 = 48 * MIB;
/// The process passes over what it touches twenty times a second, and one virtual CPU may stand for many.
const PACE: Pace = Pace { window: Duration::from_secs(2), rest: Duration::from_secs(1) };
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";

fn watched(g: &Group) -> BTreeMap<String, Watched> {
    let (group, root) = (g.cgroup(), Root::default());
    let name = Mounts::read(&root).name_of(&group);
    BTreeMap::from([("service".to_string(), Watched { group, name, identity: None, is_lc: true })])
}

/// Not a test: looks at working sets until its parent is gone.
#[test]
#[ignore = "the helper process of the other tests; does nothing when run alone"]
fn helper() {
    let Some(role) = role() else { return };
    let sets = WorkingSets::start(Root::default(), PACE).unwrap();
    let group = Mounts::read(&Root::default()).named(&role).unwrap();
    sets.watch(BTreeMap::from([("service".to_string(), Watched { group, name: Some(role), identity: None, is_lc: true })]));
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn measure(g: &Group) -> Outcome {
    let sets = WorkingSets::start(Root::default(), PACE).unwrap();
    sets.watch(watched(g));
    let mut found = None;
    until("the working set is known", || {
        found = sets.of("service");
        found.is_some()
    });
    let begun = Instant::now();
    drop(sets);
    println!("{found:?}, the end took {:?}", begun.elapsed());
    found.unwrap()
}

fn check(g: &Group, by: Way) {
    let found = measure(g).unwrap();
    // The rest of the process, and pages of two MiB that are touched in part.
    assert!(found.by == by && (HOT - HOT / 10..HOT + HOT / 4).contains(&found.bytes), "{found:?}");
}

/// Each way finds what is touched, and none leaves anything behind.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn working_sets_are_what_is_touched() {
    let g = Group::new("service");
    let mut p = Process::start(&g, &format!("hot {ALL} {HOT}"));
    assert!(p.resident() > ALL);
    let damon = Path::new(DAMON);
    if damon.is_dir() {
        check(&g, Way::Damon);
        assert_eq!(read(damon.join("nr_kdamonds")), "0");
        // What another program asks of it stays; so does what it has asked.
        write(damon.join("nr_kdamonds"), "1").unwrap();
        write(damon.join("0/contexts/nr_contexts"), "1").unwrap();
    }
    let before = read(SWITCH);
    write(SWITCH, "y").unwrap();
    check(&g, Way::Generations);
    write(SWITCH, "n").unwrap();
    check(&g, Way::Referenced);
    write(SWITCH, &before).unwrap();
    if damon.is_dir() {
        assert_eq!(read(damon.join("nr_kdamonds")), "1");
        write(damon.join("nr_kdamonds"), "0").unwrap();
    }
    assert!(p.running());
}

/// What a killed process has left of its monitor is ended by the next one.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn working_set_monitors_that_were_left_are_ended() {
    let damon = Path::new(DAMON);
    if !damon.is_dir() {
        println!("NOT RUN: this kernel has no DAMON");
        return;
    }
    let g = Group::new("service");
    let _p = Process::start(&g, &format!("hot {ALL} {HOT}"));
    let other = Group::new("looks");
    let mut looks = Process::start_as(&other, "working_set::helper", &g.name());
    // While a command is carried out the kernel does not say.
    let runs = || std::fs::read_to_string(damon.join("0/state")).is_ok_and(|state| state.trim() == "on");
    until("its monitor runs", runs);
    looks.kill();
    assert!(runs());
    surefoot_linux::working_set::damon::end_left(&Root::default());
    assert_eq!(read(damon.join("nr_kdamonds")), "0");
}
