//! The programs on the kernel of this host, as root. Where they cannot be loaded the tests say what is missing.

#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a test's inputs and words are its own")]

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use surefoot_bpf::{programs, Feed, Hierarchy, Watch, FORBIDDEN};

/// The programs, or why they are not there: a test that cannot run says so.
fn feed(test: &str, hierarchy: Hierarchy) -> Option<Arc<Feed>> {
    match programs(hierarchy).map_err(|e| e.to_string()).and_then(|h| Feed::open(h).map_err(|e| e.to_string())) {
        Ok(feed) => Some(feed),
        Err(why) => {
            // Where nothing is missing it is the programs that are wrong.
            let could = Path::new("/sys/kernel/btf/vmlinux").exists() && nix::unistd::geteuid().is_root();
            assert!(!could || why.starts_with(FORBIDDEN), "{test}: {why}");
            eprintln!("NOT RUN: {test}: {why}");
            None
        }
    }
}

/// Where hierarchies are mounted.
fn mounted(hierarchy: Hierarchy) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.next_back()?);
        let is = match hierarchy {
            Hierarchy::Unified => kind == "cgroup2",
            Hierarchy::Cpuset => kind == "cgroup" && options.split(',').any(|o| o == "cpuset"),
        };
        is.then(|| PathBuf::from(left.split(' ').nth(4).unwrap()))
    })
}

/// A cgroup of our own, `depth` folders deep; it goes with this value.
struct Group {
    dirs: Vec<PathBuf>,
}

impl Group {
    fn new(hierarchy: Hierarchy, tag: &str, depth: usize) -> Option<Self> {
        let root = mounted(hierarchy)?;
        let mut at = root.join(format!("surefoot-bpf-{}-{tag}", std::process::id()));
        let mut dirs = vec![];
        for _ in 0..depth {
            fs::create_dir(&at).unwrap();
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if hierarchy == Hierarchy::Cpuset {
                    fs::write(at.join(file), fs::read_to_string(root.join(file)).unwrap()).unwrap();
                }
            }
            dirs.push(at.clone());
            at = at.join("child");
        }
        Some(Group { dirs })
    }

    fn watch(&self, feed: &Arc<Feed>) -> Watch {
        feed.watch(fs::metadata(&self.dirs[0]).unwrap().ino(), 1).unwrap()
    }

    fn deepest(&self) -> &Path {
        self.dirs.last().unwrap()
    }

    fn spin(&self, cpu: usize) -> Spinner {
        let child = Command::new("sh").args(["-c", "read go; while :; do :; done"]).stdin(Stdio::piped()).spawn().unwrap();
        pin(child.id(), cpu);
        fs::write(self.deepest().join("cgroup.procs"), child.id().to_string()).unwrap();
        let mut spinner = Spinner(child);
        std::io::Write::write_all(spinner.0.stdin.as_mut().unwrap(), b"\n").unwrap();
        spinner
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let end = Instant::now() + Duration::from_secs(5);
        while self.dirs.iter().rev().any(|d| fs::remove_dir(d).is_err() && d.exists()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Spinner(Child);

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn soon(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// CPUs that this process may use, whatever its threads were pinned to since.
fn cpus() -> Vec<usize> {
    static CPUS: OnceLock<Vec<usize>> = OnceLock::new();
    let look = || {
        let may = sched_getaffinity(Pid::this()).unwrap();
        (0..CpuSet::count()).filter(|cpu| may.is_set(*cpu).unwrap()).collect()
    };
    CPUS.get_or_init(look).clone()
}

fn pin(pid: u32, cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(pid as i32), &cpus).unwrap();
}

fn now_ns() -> u64 {
    Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos() as u64
}

/// One test at a time has the CPU.
static CPU: Mutex<()> = Mutex::new(());

fn each(test: &str, mut case: impl FnMut(&Arc<Feed>, Hierarchy)) {
    let _alone = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    for hierarchy in [Hierarchy::Unified, Hierarchy::Cpuset] {
        let Some(feed) = feed(test, hierarchy) else { continue };
        if mounted(hierarchy).is_none() {
            eprintln!("NOT RUN: {test}: this host has no cgroup hierarchy of the kind {hierarchy:?}");
            continue;
        }
        case(&feed, hierarchy);
    }
}

/// A thread of the group, or of one below it, is seen on its CPU and on no other; one that ran before it was watched, too.
#[test]
fn a_thread_is_seen_where_it_runs() {
    each("a_thread_is_seen_where_it_runs", |feed, hierarchy| {
        let (here, cpu) = (cpus()[0], *cpus().last().unwrap());
        if here == cpu {
            return eprintln!("NOT RUN: a_thread_is_seen_where_it_runs: needs two CPUs");
        }
        pin(0, here);
        for depth in [1, 3] {
            let group = Group::new(hierarchy, "runs", depth).unwrap();
            let early = group.spin(cpu);
            std::thread::sleep(Duration::from_millis(20));
            // Each time by another number, which no CPU has yet. Other threads may have that CPU for most of the time.
            let mut others: Vec<Watch> = vec![];
            let looks = (0..200).filter(|n| {
                if others.len() == 25 {
                    others.clear();
                }
                std::thread::sleep(Duration::from_millis(1));
                others.push(feed.watch(1 << 40 | n, 1).unwrap());
                group.watch(feed).runs_on(cpu as u32)
            });
            assert_eq!(looks.take(5).count(), 5, "{hierarchy:?}, {depth} deep: times of 200 seen before the next switch");
            drop(others);
            let watch = group.watch(feed);
            soon("seen on its CPU", || watch.runs_on(cpu as u32));
            let elsewhere = cpus().into_iter().filter(|c| *c != cpu).any(|c| watch.runs_on(c as u32));
            assert!(!elsewhere, "{hierarchy:?}, {depth} deep");
            drop(early);
            soon("gone from its CPU", || !watch.runs_on(cpu as u32));
        }
    });
}

/// Two threads on one CPU wait for each other: each dispatch counts, by how long it took; the one that waits now is seen to wait.
#[test]
fn waits_are_counted() {
    each("waits_are_counted", |feed, hierarchy| {
        let cpu = *cpus().last().unwrap();
        let (group, other) = (Group::new(hierarchy, "waits", 1).unwrap(), Group::new(hierarchy, "others", 1).unwrap());
        let (mut watch, mut others) = (group.watch(feed), other.watch(feed));
        let alone = (watch.waits(), others.waits());
        assert_eq!((alone.0.dispatches, alone.1.dispatches), (0, 0));
        let spinners = (group.spin(cpu), group.spin(cpu));
        let mut longest = 0;
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            longest = longest.max(watch.waiting_ns(now_ns()));
            std::thread::sleep(Duration::from_micros(200));
        }
        let waited = watch.waits();
        // They share the CPU: one of the two waits at any instant, but for what others take.
        assert!(waited.dispatches >= 5 && waited.total_ns > 200_000_000, "{waited:?}");
        assert!(waited.over[0] <= waited.dispatches && waited.over.windows(2).all(|o| o[0] >= o[1]), "{waited:?}");
        // A slice of the scheduler is longer than 0.4 ms on every kernel.
        assert!(waited.over[5] > 0 && longest > 400_000, "{longest} {waited:?}");
        assert_eq!(others.waits().dispatches, 0);
        drop(spinners);
        soon("nothing waits", || watch.waiting_ns(now_ns()) == 0);
    });
}

/// As many groups as there are numbers, and a number is free again with its watch.
#[test]
fn numbers_of_groups_are_used_again() {
    let Some(feed) = feed("numbers_of_groups_are_used_again", Hierarchy::Unified) else { return };
    let mut watches: Vec<Watch> = (0..31).map(|n| feed.watch(1 << 40 | n, 1).unwrap()).collect();
    let full = feed.watch(1 << 41, 1).unwrap_err().to_string();
    assert!(full.contains("31 cgroups are watched"), "{full}");
    watches.pop();
    assert!(feed.watch(1 << 41, 1).is_ok());
}
