//! An attacker on the socket: what it must not take from others while it is there, and what must not outlive it.

use super::protocol::{Request, SafeOp};
use super::tests::{own_uid, snapshot, Serving};
use super::*;
use crate::cgroup::Mounts;
use crate::files::{Files, HostFiles};
use crate::resctrl::Resctrl;
use crate::root::tests::tree;
use crate::root::Root;
use crate::safe::{Op, SafeLayout};
use crate::testing::{intel, BeforeWrite, ModelFiles};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_server::CpuSet;

const CGROUPS: &str = "/sys/fs/cgroup";
const RESCTRL: &str = "/sys/fs/resctrl";

/// A v2 host with 8 CPUs, of which services may have 0 to 5: the LC services `/docker/web` (with a group of its own inside) and
/// `/docker/store`, the BE job `/jobs/batch`; and cgroups of others, with CPUs by name and without. Threads 42 (web), 43 (batch), 7 (of others).
fn host() -> (tempfile::TempDir, Root) {
    let group = |path: &str, cpus: &str, weight: &str, tid: &str| {
        [
            ("cpuset.cpus", cpus),
            ("cpuset.cpus.effective", if cpus.is_empty() { "0-7" } else { cpus }),
            ("cpuset.cpus.exclusive", ""),
            ("cpuset.cpus.partition", "member"),
            ("cpuset.mems", ""),
            ("cpu.max", "max 100000"),
            ("cpu.weight", weight),
            ("memory.max", "max"),
            ("memory.high", "max"),
            ("memory.zswap.max", "max"),
            ("memory.reclaim", ""),
            ("cgroup.procs", tid),
            ("cgroup.threads", tid),
            ("cgroup.kill", ""),
            ("cgroup.subtree_control", ""),
        ]
        .map(|(file, text)| (format!("{CGROUPS}{path}/{file}"), format!("{text}\n")))
    };
    let mut files: Vec<(String, String)> = [
        ("/proc/self/mountinfo", "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n"),
        ("/sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
        ("/proc/42/cgroup", "0::/docker/web\n"),
        ("/proc/43/cgroup", "0::/jobs/batch\n"),
        ("/proc/7/cgroup", "0::/system.slice/db.service\n"),
    ]
    .map(|(f, t)| (f.to_string(), t.to_string()))
    .into();
    for (path, cpus, weight, tid) in [
        ("/docker", "", "100", ""),
        ("/docker/web", "0-7", "200", "42"),
        ("/docker/web/inner", "", "100", ""),
        ("/docker/store", "", "100", ""),
        ("/jobs", "", "100", ""),
        ("/jobs/batch", "2-7", "50", "43"),
        ("/system.slice", "", "100", ""),
        ("/system.slice/db.service", "5-6", "300", "7"),
        ("/system.slice/any.service", "", "100", ""),
        ("/docker2/web", "0", "100", ""),
    ] {
        files.extend(group(path, cpus, weight, tid));
    }
    tree(&files)
}

fn allow(root: &Root, partitions: bool) -> Allow {
    let pattern = |p: &str| Pattern::literal(p).unwrap();
    let named = ["/docker/web", "/docker/store", "/jobs/batch"].map(pattern).to_vec();
    let cpus = Some(CpuSet::range(0, 6));
    let terms = Terms { partitions, cpus, services: Some(3), be: vec![pattern("/jobs/batch")] };
    Allow::new(&Mounts::read(root), Resctrl::find(root).as_ref(), named).with_terms(terms)
}

/// As in production, on the record of the folder `state`.
fn actuator(dir: &Path, root: &Root, partitions: bool) -> Actuator {
    let allow = allow(root, partitions);
    let dead_man = DeadMan::open(&dir.join("state"), "boot", Instant::now()).unwrap();
    let record = Record::open(dead_man.folder().try_clone_to_owned().unwrap(), "boot", root.files.clone(), root.clone()).unwrap();
    Actuator::new(allow, root.files.clone(), root.clone()).with_dead_man(dead_man).with_record(record).unwrap()
}

fn at(root: &Root, path: &str) -> PathBuf {
    root.path(format!("{CGROUPS}{path}"))
}

fn says(root: &Root, path: &str) -> String {
    fs::read_to_string(at(root, path)).unwrap().trim().to_string()
}

/// Everything below cgroups but what the configuration names.
fn of_others(root: &Root) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    snapshot(&root.path(CGROUPS), &mut all);
    let named = |p: &Path| {
        let p = p.strip_prefix(root.path(CGROUPS)).unwrap();
        // The group itself; what is in it is its own as well, and yet nothing to write.
        ["docker/web", "docker/store", "jobs/batch"].iter().any(|n| p.parent() == Some(Path::new(n)))
    };
    all.retain(|p, _| !named(p));
    all
}

const VALUES: [&str; 26] = [
    "",
    "\n",
    "0",
    "1",
    "2",
    "0-5",
    "0-7",
    "5-6",
    "6-7",
    "7",
    "max",
    "-1",
    "-1\n",
    "1000 10000",
    "max 100000",
    "10000",
    "300",
    "50",
    "member",
    "root",
    "isolated",
    "root invalid",
    "exclusive",
    "L3:0=1",
    "L3:0=7ff\nMB:0=10",
    "42\n",
];

/// Every operation on every path that there is (and some that are not), with every value that makes sense anywhere: no file of others is
/// another, and no named group has CPUs, weight or a partition that could be another's.
#[test]
fn nothing_is_taken_from_others() {
    for partitions in [false, true] {
        let (dir, root) = host();
        let (model, root) = ModelFiles::mount(&root, intel(1, 11), "");
        [7u32, 42, 43].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
        let rc = |p: &str| root.path(RESCTRL).join(p);
        model.make_dir(&rc("vm")).unwrap();
        model.write(&rc("vm/schemata"), "L3:0=700\n").unwrap();
        model.write(&rc("vm/tasks"), "7\n").unwrap();
        model.make_dir(&rc("mon_groups/theirs")).unwrap();
        let of_resctrl = || {
            let files = ["schemata", "mode", "cpus", "vm/schemata", "vm/mode", "vm/cpus", "vm/tasks"];
            let shown = files.map(|f| String::from_utf8(model.read(&rc(f)).unwrap()).unwrap());
            (shown, model.is_dir(&rc("mon_groups/theirs")), model.machine().task_groups(7))
        };
        let (others, resctrl) = (of_others(&root), of_resctrl());
        let begun = Instant::now();
        let mut a = actuator(dir.path(), &root, partitions);
        let mut paths: BTreeSet<PathBuf> = BTreeSet::new();
        let mut all = BTreeMap::new();
        snapshot(&root.path(CGROUPS), &mut all);
        for p in all.keys() {
            paths.extend([p.clone(), p.join("cpuset.cpus"), p.join("new")]);
        }
        for p in [
            "",
            "schemata",
            "mode",
            "cpus",
            "cpus_list",
            "tasks",
            "vm",
            "vm/schemata",
            "vm/mode",
            "vm/cpus",
            "vm/cpus_list",
            "vm/tasks",
            "surefoot.a",
            "surefoot.a/schemata",
            "surefoot.a/mode",
            "surefoot.a/cpus",
            "surefoot.a/cpus_list",
            "surefoot.a/tasks",
            "surefoot.a/mon_groups/m",
            "surefoot.a/mon_groups/m/tasks",
            "mon_groups/theirs",
            "mon_groups/surefoot.m",
            "info/L3_MON/max_threshold_occupancy",
        ] {
            paths.insert(rc(p));
        }
        let mut asked = 0u64;
        let mut ask = |a: &mut Actuator, request: Request<'_>| {
            asked += 1;
            a.handle(&request.encode().unwrap())
        };
        for path in &paths {
            let p = path.to_str().unwrap();
            for text in VALUES {
                ask(&mut a, Request::Write { path: p, text });
                // A layout is judged as writes are, and is not yet one.
                ask(&mut a, Request::KeepSafe(vec![SafeOp::Write { path: p, text }, SafeOp::RemoveDir { path: p }]));
            }
            for other in [rc("surefoot.b"), rc("mon_groups/surefoot.x"), at(&root, "/docker/web/x")] {
                ask(&mut a, Request::Rename { from: p, to: other.to_str().unwrap() });
                ask(&mut a, Request::Rename { from: other.to_str().unwrap(), to: p });
            }
            for request in [Request::MakeDir(p), Request::RemoveDir(p), Request::MakeDir(p), Request::Writable(p), Request::List(p)] {
                ask(&mut a, request);
            }
        }
        for n in 0..100 {
            ask(&mut a, Request::MakeDir(rc(&format!("surefoot.x{n}")).to_str().unwrap()));
            ask(&mut a, Request::MakeDir(rc(&format!("mon_groups/surefoot.x{n}")).to_str().unwrap()));
        }
        assert!(asked > 10_000, "{asked}");
        assert_eq!(of_others(&root), others, "partitions = {partitions}");
        assert_eq!(of_resctrl(), resctrl, "partitions = {partitions}");
        // Three services: six groups of each kind; and of 64 ids those that were freed are not free yet, which are no more than the rate.
        let spent = 3 + 4 * 3 + 4 + 2 * (1 + begun.elapsed().as_secs() as usize);
        let ours = |dir: &str| model.list(&rc(dir)).unwrap().into_iter().filter(|n| n.starts_with("surefoot.")).count();
        let (classes, monitors, free) = (ours(""), ours("mon_groups"), model.machine().rmids_free());
        assert!(classes <= 6 && monitors <= 6 && free + spent >= 64, "{classes} {monitors} {free} {spent}");
        for (group, had) in [("/docker/web", "0-7"), ("/docker/store", ""), ("/jobs/batch", "2-7")] {
            let cpus = CpuSet::parse(&says(&root, &format!("{group}/cpuset.cpus"))).unwrap();
            let may = CpuSet::parse(had).unwrap().union(CpuSet::range(0, 6));
            assert!(had.is_empty() || cpus.is_subset(&may) && !cpus.is_empty(), "{group}: {cpus}");
            let weight = |w: &str| w.parse::<u64>().unwrap();
            let before = if group == "/docker/web" {
                200
            } else if group == "/jobs/batch" {
                50
            } else {
                100
            };
            assert!(weight(&says(&root, &format!("{group}/cpu.weight"))) <= before, "{group}");
            assert_eq!(says(&root, &format!("{group}/cpuset.cpus.exclusive")), "");
            let partition = says(&root, &format!("{group}/cpuset.cpus.partition"));
            assert!(partition == "member" || partitions && partition == "root", "{group}: {partition}");
            if partition == "root" {
                // Of the CPUs of `cpus`, and none that others name: db has 5 and 6, docker2 has 0.
                let alone = CpuSet::parse("1-4").unwrap();
                assert!(cpus.is_subset(&alone), "{group}: {cpus}");
            }
        }
    }
}

/// A group of resctrl is made exclusive by nobody here; where it is, its ways are not changed. Threads of others are not moved.
#[test]
fn an_exclusive_group_gets_nothing() {
    let (dir, root) = host();
    let (model, root) = ModelFiles::mount(&root, intel(1, 11), "");
    [7u32, 42].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
    let rc = |p: &str| root.path(RESCTRL).join(p).to_str().unwrap().to_string();
    let mut a = actuator(dir.path(), &root, false);
    let mut errno = |r: Request<'_>| a.handle(&r.encode().unwrap()).errno;
    let (group, schemata) = (rc("surefoot.a"), rc("surefoot.a/schemata"));
    assert_eq!(errno(Request::MakeDir(&group)), 0);
    assert_eq!(errno(Request::Write { path: &schemata, text: "L3:0=3\n" }), 0);
    assert_eq!(errno(Request::Write { path: &rc("surefoot.a/mode"), text: "exclusive" }), libc::EPERM);
    // As root, or an earlier release, left it.
    model.write(Path::new(&rc("schemata")), "L3:0=7f0\n").unwrap();
    model.write(Path::new(&rc("surefoot.a/mode")), "exclusive\n").unwrap();
    assert_eq!(errno(Request::Write { path: &schemata, text: "L3:0=f\n" }), libc::EPERM);
    assert_eq!(errno(Request::Write { path: &rc("surefoot.a/tasks"), text: "7\n" }), libc::EPERM);
}

/// A thread stays in a group of resctrl that somebody else has put it into, control or monitoring group, whichever way its number is written.
#[test]
fn a_thread_stays_where_others_put_it() {
    let (dir, root) = host();
    let (model, root) = ModelFiles::mount(&root, intel(1, 11), "");
    [7u32, 42, 43].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
    let rc = |p: &str| root.path(RESCTRL).join(p).to_str().unwrap().to_string();
    for (group, tid) in [("gold", "42"), ("mon_groups/watched", "43")] {
        model.make_dir(Path::new(&rc(group))).unwrap();
        model.write(Path::new(&rc(&format!("{group}/tasks"))), tid).unwrap();
    }
    let mut a = actuator(dir.path(), &root, false);
    let mut ask = |r: Request<'_>| {
        let reply = a.handle(&r.encode().unwrap());
        (reply.errno, String::from_utf8_lossy(&reply.payload).into_owned())
    };
    assert_eq!(ask(Request::MakeDir(&rc("surefoot.a"))).0, 0);
    for (text, why) in [("42\n", "gold"), ("43\n", "watched"), ("052\n", "thread id"), ("07\n", "thread id")] {
        let (errno, said) = ask(Request::Write { path: &rc("surefoot.a/tasks"), text });
        assert!(errno == libc::EPERM && said.contains(why), "{text}: {errno} {said}");
    }
    assert_eq!(model.read(Path::new(&rc("gold/tasks"))).unwrap(), b"42\n");
    model.write(Path::new(&rc("tasks")), "42").unwrap();
    assert_eq!(ask(Request::Write { path: &rc("surefoot.a/tasks"), text: "42\n" }).0, 0);
}

/// A limit does not go down for good by steps so small that each counts as what was there, with a goodbye after each.
#[test]
fn no_limit_goes_down_by_small_steps() {
    let (dir, root) = host();
    let web = |f: &str| at(&root, &format!("/docker/web/{f}"));
    fs::write(web("memory.max"), "1073741824\n").unwrap();
    fs::write(web("cpu.max"), "25000 50000\n").unwrap();
    let serving = Serving::start(actuator(dir.path(), &root, false), &dir.path().join("sock"), own_uid());
    let client = RemoteFiles::connect(&serving.at).unwrap();
    for n in 1..=20u64 {
        client.write(&web("memory.max"), &(1_073_741_824 - n * 61_440).to_string()).unwrap();
        client.write(&web("cpu.max"), &format!("{} {}", 25_000 << n.min(4), 50_000 << n.min(4))).unwrap();
        client.keep_safe(&SafeLayout::default()).unwrap();
    }
    drop(client);
    let deadline = Instant::now() + Duration::from_secs(20);
    let now = || ["memory.max", "cpu.max"].map(|f| says(&root, &format!("/docker/web/{f}")));
    while now() != ["1073741824", "25000 50000"] {
        assert!(Instant::now() < deadline, "{:?}", now());
        std::thread::yield_now();
    }
    serving.end();
}

/// Root that acts on what the decider's user could have written is bounded by what the actuator recorded, which that user cannot falsify: what a
/// file had is what it gets at most, and what the actuator has not changed is as it is. Without an actuator a weight is the usual one at most.
#[test]
fn a_guarded_process_gives_no_more_than_there_was() {
    let (dir, root) = host();
    let state = dir.path().join("state");
    let mut a = actuator(dir.path(), &root, false);
    let (web, store) = (at(&root, "/docker/web/cpu.weight"), at(&root, "/docker/store/cpu.weight"));
    assert_eq!(a.handle(&Request::Write { path: web.to_str().unwrap(), text: "1" }.encode().unwrap()).errno, 0);
    drop(a);
    let boot = root.path(crate::local::BOOT_ID);
    fs::create_dir_all(boot.parent().unwrap()).unwrap();
    fs::write(boot, "boot\n").unwrap();
    let guarded = Guarded::new(allow(&root, false), root.clone(), Some(&state)).unwrap();
    let batch = at(&root, "/jobs/batch/cpuset.cpus");
    assert!(guarded.write(&web, "201").is_err() && guarded.write(&store, "101").is_err() && guarded.write(&batch, "1-7").is_ok());
    assert!(guarded.write(&at(&root, "/jobs/batch/cpuset.cpus"), "0-7").is_ok(), "2-7 it had, and 0-5 are for services");
    guarded.write(&web, "200").unwrap();
    fs::write(&batch, "2-5").unwrap();
    assert!(guarded.write(&batch, "2-7").is_err(), "not by the actuator: it was so");
    let guarded = Guarded::new(allow(&root, false), root.clone(), None).unwrap();
    fs::write(&store, "5").unwrap();
    assert!(guarded.write(&store, "101").is_err() && guarded.write(&store, "100").is_ok());
}

/// With `partitions = true` a service gets CPUs for itself: those of `cpus`, that nobody else names. It cannot take others by a list that
/// is written later, and gets back a partition that it had before.
#[test]
fn partitions_take_what_the_operator_gave() {
    let (dir, root) = host();
    fs::write(at(&root, "/docker/store/cpuset.cpus.partition"), "isolated\n").unwrap();
    let mut a = actuator(dir.path(), &root, true);
    let mut write = |path: &str, text: &str| {
        let path = at(&root, path);
        let reply = a.handle(&Request::Write { path: path.to_str().unwrap(), text }.encode().unwrap());
        (reply.errno, String::from_utf8_lossy(&reply.payload).into_owned())
    };
    let (cpus, kind) = ("/docker/web/cpuset.cpus", "/docker/web/cpuset.cpus.partition");
    assert_eq!(write(cpus, "1-2").0, 0);
    assert_eq!(write(kind, "isolated").0, libc::EPERM);
    assert_eq!(write(kind, "root").0, 0);
    for (text, why) in [("1-5", "db.service"), ("0-1", "docker2"), ("6", "may be taken"), ("", "empty list")] {
        let (errno, said) = write(cpus, text);
        assert!(errno == libc::EPERM && said.contains(why), "{text}: {said}");
    }
    // Beside a neighbour that the configuration names the kernel is the judge.
    assert_eq!((write(cpus, "2-4").0, write(kind, "member").0, write(cpus, "0-7").0), (0, 0, 0));
    assert_eq!(write("/docker/store/cpuset.cpus.partition", "member").0, 0);
    assert_eq!(write("/docker/store/cpuset.cpus.partition", "isolated").0, 0, "as it was before");
    // What the others have by name is taken by nobody, wherever it stands.
    assert_eq!(write(cpus, "5").0, 0);
    assert!(write(kind, "root").1.contains("has some of them by name"));
}

/// The weight, the CPUs, and an unknown number of bytes at once are bounded by what there was.
#[test]
fn values_are_bounded_by_what_there_was() {
    let (dir, root) = host();
    let mut a = actuator(dir.path(), &root, false);
    let mut errno = |path: &str, text: &str| {
        let path = at(&root, path);
        a.handle(&Request::Write { path: path.to_str().unwrap(), text }.encode().unwrap()).errno
    };
    assert_eq!(
        [errno("/docker/web/cpu.weight", "1"), errno("/docker/web/cpu.weight", "200"), errno("/docker/web/cpu.weight", "201")],
        [0, 0, 1]
    );
    // It had all, batch had 2 to 7, and 0 to 5 are for services.
    assert_eq!(
        [errno("/docker/web/cpuset.cpus", "7"), errno("/jobs/batch/cpuset.cpus", "0,7"), errno("/jobs/batch/cpuset.cpus", "\n")],
        [0, 0, 1]
    );
    assert_eq!(errno("/docker/store/cpuset.cpus", "7"), 0, "an empty list was everything");
    assert_eq!([errno("/docker/web/memory.reclaim", "67108864"), errno("/docker/web/memory.reclaim", "67108865")], [0, 1]);
}

/// A decider that leaves no layout, an empty one, or one that says other than what was there: a second after it has gone LC services have what
/// they had, BE jobs no more than that, and its groups of resctrl are gone; also where the actuator was killed with it.
#[test]
fn no_false_layout_outlives_its_decider() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Leaves {
        Nothing,
        /// A goodbye, before its writes or after.
        Empty {
            last: bool,
        },
        False,
        Honest,
    }
    for (leaves, killed) in [Leaves::Nothing, Leaves::Empty { last: false }, Leaves::Empty { last: true }, Leaves::False, Leaves::Honest]
        .into_iter()
        .flat_map(|l| [(l, false), (l, true)])
    {
        let (dir, root) = host();
        let (model, root) = ModelFiles::mount(&root, intel(1, 11), "");
        [7u32, 42, 43].iter().for_each(|t| model.machine().spawn(*t, *t, 1, 0));
        let rc = |p: &str| root.path(RESCTRL).join(p);
        let mut before = BTreeMap::new();
        snapshot(&root.path(CGROUPS), &mut before);
        let serving = Serving::start(actuator(dir.path(), &root, false), &dir.path().join("sock"), own_uid());
        let client = RemoteFiles::connect(&serving.at).unwrap();
        let write = |path: &str, text: &str| Op::Write { path: at(&root, path), text: text.into() };
        let layout = match leaves {
            Leaves::Nothing => None,
            Leaves::Empty { .. } => Some(vec![]),
            Leaves::False => Some(vec![
                write("/docker/web/cpuset.cpus", "0"),
                write("/docker/web/cpu.max", "1000 1000000"),
                write("/docker/web/memory.max", "4096"),
                write("/docker/store/cpu.weight", "1"),
                // More than it had, less than is ever given, and what is not held at all.
                write("/jobs/batch/cpu.weight", "60"),
                write("/jobs/batch/cpu.max", "1000 1000000"),
                write("/jobs/batch/memory.max", "4096"),
                write("/jobs/batch/cpuset.cpus", "0-1"),
                Op::Write { path: rc("surefoot.web/schemata"), text: "L3:0=1\n".into() },
                Op::Write { path: rc("surefoot.mixed/schemata"), text: "L3:0=1\n".into() },
            ]),
            Leaves::Honest => Some(vec![
                write("/jobs/batch/cpu.weight", "1"),
                write("/jobs/batch/cpu.max", "1000 10000"),
                write("/jobs/batch/cpuset.cpus", "5"),
                Op::Write { path: rc("surefoot.batch/schemata"), text: "L3:0=1\n".into() },
                write("/docker/web/cpuset.cpus", "0-7"),
                write("/docker/web/cpu.max", "max 100000"),
                Op::RemoveDir { path: rc("surefoot.web") },
            ]),
        };
        let keep = |l: &Option<Vec<Op>>| l.iter().for_each(|ops| client.keep_safe(&SafeLayout::new(ops.clone())).unwrap());
        if leaves != (Leaves::Empty { last: true }) {
            keep(&layout);
        }
        for (path, text) in [
            ("/docker/web/cpuset.cpus", "1"),
            ("/docker/web/cpu.max", "2000 1000000"),
            ("/docker/web/memory.max", "8192"),
            ("/docker/web/memory.high", "8192"),
            ("/docker/web/memory.zswap.max", "0"),
            ("/docker/web/cpuset.mems", "0"),
            ("/docker/store/cpu.weight", "1"),
            ("/jobs/batch/cpuset.cpus", "5"),
            ("/jobs/batch/cpu.max", "1000 10000"),
            ("/jobs/batch/cpu.weight", "1"),
            ("/jobs/batch/memory.max", "8192"),
        ] {
            client.write(&at(&root, path), text).unwrap();
        }
        for (group, tid) in [("surefoot.web", 42), ("surefoot.batch", 43), ("surefoot.mixed", 0)] {
            client.make_dir(&rc(group)).unwrap();
            client.write(&rc(group).join("schemata"), "L3:0=1\n").unwrap();
            if tid > 0 {
                client.write(&rc(group).join("tasks"), &format!("{tid}\n")).unwrap();
            }
        }
        client.make_dir(&rc("mon_groups/surefoot.store")).unwrap();
        if leaves == (Leaves::Empty { last: true }) {
            keep(&layout);
        }
        let serving = if killed {
            // While its client was there: the next one finds what is left to do when it starts.
            drop(serving.end());
            drop(client);
            Serving::start(actuator(dir.path(), &root, false), &dir.path().join("sock2"), own_uid())
        } else {
            drop(client);
            serving
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let gone = || !model.is_dir(&rc("surefoot.web"));
        while !gone() {
            assert!(Instant::now() < deadline, "{leaves:?}: nobody did anything");
            std::thread::yield_now();
        }
        // Whole when it ends.
        serving.end();
        let mut now = BTreeMap::new();
        snapshot(&root.path(CGROUPS), &mut now);
        let mut differ: BTreeMap<String, String> = BTreeMap::new();
        for (path, text) in &now {
            if before[path].trim() != text.trim() {
                let p = path.strip_prefix(root.path(CGROUPS)).unwrap().display().to_string();
                differ.insert(p, text.trim().into());
            }
        }
        // A list that was empty cannot be emptied while there are processes, and means the same by name; here it can.
        let held: BTreeMap<String, String> = match leaves {
            Leaves::Honest => [("cpu.weight", "1"), ("cpu.max", "1000 10000"), ("cpuset.cpus", "5")]
                .map(|(f, v)| (format!("jobs/batch/{f}"), v.to_string()))
                .into(),
            _ => BTreeMap::new(),
        };
        assert_eq!(differ, held, "{leaves:?}, killed {killed}");
        let groups: Vec<String> = model.list(&rc("")).unwrap().into_iter().filter(|n| n.starts_with("surefoot.")).collect();
        assert_eq!(groups, if leaves == Leaves::Honest { vec!["surefoot.batch"] } else { vec![] }, "{leaves:?}");
        assert!(!model.is_dir(&rc("mon_groups/surefoot.store")));
        // And a reset after it, through an actuator or by root without one, finds the rest.
        let report = record::put_back_alone(&dir.path().join("state"), "boot", &root).unwrap();
        assert_eq!(report.is_some(), leaves == Leaves::Honest);
        let mut now = BTreeMap::new();
        snapshot(&root.path(CGROUPS), &mut now);
        assert!(now.iter().all(|(p, t)| before[p].trim() == t.trim()), "{leaves:?}");
    }
}

/// A client that gives everything back by its own writes is believed: nothing is put back after it, and what an operator changes then stays.
#[test]
fn a_goodbye_that_is_true_is_believed() {
    let (dir, root) = host();
    let serving = Serving::start(actuator(dir.path(), &root, false), &dir.path().join("sock"), own_uid());
    let state = dir.path().join("state").join(record::NAME);
    let client = RemoteFiles::connect(&serving.at).unwrap();
    let (web, store) = (at(&root, "/docker/web/cpu.weight"), at(&root, "/docker/store/cpu.weight"));
    let op = |path: &Path, text: &str| Op::Write { path: path.into(), text: text.into() };
    client.keep_safe(&SafeLayout::new(vec![op(&web, "200"), op(&store, "100")])).unwrap();
    client.write(&web, "1").unwrap();
    client.write(&store, "1").unwrap();
    assert_eq!(fs::read_to_string(&state).unwrap().lines().count(), 3);
    // One service leaves; from then on it is the operator's.
    client.write(&store, "100").unwrap();
    client.keep_safe(&SafeLayout::new(vec![op(&web, "200")])).unwrap();
    fs::write(&store, "77").unwrap();
    client.write(&web, "200").unwrap();
    client.keep_safe(&SafeLayout::default()).unwrap();
    assert!(!state.exists());
    fs::write(&web, "88").unwrap();
    drop(client);
    serving.end();
    assert_eq!((fs::read_to_string(&web).unwrap().as_str(), fs::read_to_string(&store).unwrap().as_str()), ("88", "77"));
}

/// What a file had is on disk before it is written: with a full disk nothing is changed, and what is known can still be given back.
#[test]
fn without_a_disk_nothing_new_is_changed() {
    let (dir, root) = host();
    let mut a = actuator(dir.path(), &root, false);
    let mut errno = |path: &str, text: &str| {
        let path = at(&root, path);
        a.handle(&Request::Write { path: path.to_str().unwrap(), text }.encode().unwrap()).errno
    };
    assert_eq!(errno("/docker/web/cpu.weight", "1"), 0);
    // A folder where the file is to be renewed, and another in its place: nothing can be written.
    let state = dir.path().join("state");
    fs::remove_file(state.join(record::NAME)).unwrap();
    fs::create_dir(state.join(record::NAME)).unwrap();
    assert_ne!(errno("/docker/web/cpu.max", "1000 10000"), 0);
    assert_eq!(says(&root, "/docker/web/cpu.max"), "max 100000");
    assert_eq!(errno("/docker/web/cpu.weight", "200"), 0);
    assert_eq!(says(&root, "/docker/web/cpu.weight"), "200");
}

/// A record that was cut short speaks of a write that was not made; one of another boot is void; a damaged one is refused by its line; a
/// namesake of a group gets nothing of the first; and a layout of an earlier release, which kept no record, is carried out as it stands.
#[test]
fn records_are_read_with_care() {
    let (dir, root) = host();
    let state = dir.path().join("state");
    drop(actuator(dir.path(), &root, false));
    let open = |boot: &str| {
        let dead_man = DeadMan::open(&state, boot, Instant::now()).unwrap();
        Record::open(dead_man.folder().try_clone_to_owned().unwrap(), boot, root.files.clone(), root.clone())
    };
    let web = at(&root, "/docker/web/cpu.weight");
    let (key, group) = record::knob_of(&web, &root.files, &Mounts::read(&root)).unwrap();
    let mut r = open("boot").unwrap();
    r.before(&key, &group).unwrap();
    fs::write(&web, "1").unwrap();
    let file = state.join(record::NAME);
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{whole}=\t/half")).unwrap();
    assert_eq!((open("boot").unwrap().len(), open("boot").unwrap().former(&key), open("another").unwrap().len()), (1, Some("200"), 0));
    for bad in ["=\t/x/cpu.max\tnone\tmax\n", "what\n", "\n", "=\t/etc/passwd\t1\tx\n"] {
        fs::write(&file, format!("{whole}{bad}")).unwrap();
        assert!(open("boot").unwrap_err().to_string().contains("line 3 is damaged"), "{bad}");
    }
    fs::write(&file, &whole).unwrap();
    // The group is made anew under its name.
    let (here, aside) = (at(&root, "/docker/web"), at(&root, "/aside"));
    fs::rename(&here, &aside).unwrap();
    fs::create_dir(&here).unwrap();
    fs::write(&web, "33").unwrap();
    let report = open("boot").unwrap().put_back(&BTreeMap::new());
    assert_eq!((report.done, report.gone, fs::read_to_string(&web).unwrap().as_str()), (0, 1, "33"));
    fs::remove_dir_all(&here).unwrap();
    fs::rename(&aside, &here).unwrap();
    // An unmounted hierarchy has not gone.
    fs::write(&file, &whole).unwrap();
    let (mount, hidden) = (root.path(CGROUPS), root.path("/hidden"));
    fs::rename(&mount, &hidden).unwrap();
    fs::create_dir(&mount).unwrap();
    let mounts = fs::read(root.path("/proc/self/mountinfo")).unwrap();
    let mut r = open("boot").unwrap();
    fs::write(root.path("/proc/self/mountinfo"), "").unwrap();
    assert_eq!(r.put_back(&BTreeMap::new()).failed.len(), 1);
    fs::write(root.path("/proc/self/mountinfo"), mounts).unwrap();
    fs::remove_dir(&mount).unwrap();
    fs::rename(&hidden, &mount).unwrap();
    assert_eq!((r.put_back(&BTreeMap::new()).done, says(&root, "/docker/web/cpu.weight").as_str(), file.exists()), (1, "200", false));

    // Of an earlier release.
    fs::write(&web, "1").unwrap();
    let mut d = DeadMan::open(&state, "boot", Instant::now()).unwrap();
    d.keep(&[SafeOp::Write { path: web.to_str().unwrap(), text: "200" }]).unwrap();
    drop(d);
    let serving = Serving::start(actuator(dir.path(), &root, false), &dir.path().join("sock"), own_uid());
    let client = RemoteFiles::connect(&serving.at).unwrap();
    client.write(&web, "1").unwrap();
    drop(client);
    serving.end();
    assert_eq!(says(&root, "/docker/web/cpu.weight"), "200");
}

/// What a client had begun on its second line, and what it left unread there, does not come after what is put back when it has gone.
#[test]
fn a_second_line_ends_with_its_client() {
    let (dir, root) = host();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let mems = at(&root, "/docker/web/cpuset.mems");
    fs::write(&mems, "0\n").unwrap();
    let wait = std::sync::Mutex::new(Some(wait));
    // They are set only when somebody says so, once.
    let files = BeforeWrite(Arc::new(HostFiles), move |path: &Path, text: &str| {
        if path.ends_with("cpuset.mems") && text == "1" {
            if let Some(w) = wait.lock().unwrap().take() {
                w.recv().unwrap();
            }
        }
    });
    let root = Root::with(root.path("/"), Arc::new(files));
    let a = actuator(dir.path(), &root, false).with_aside(|| {}).unwrap();
    let serving = Serving::start(a, &dir.path().join("sock"), own_uid());
    let client = RemoteFiles::connect(&serving.at).unwrap();
    let aside = client.aside().unwrap();
    assert!(aside.writable(&mems));
    let slow = std::thread::spawn({
        let (aside, mems) = (aside.clone(), mems.clone());
        move || aside.write(&mems, "1")
    });
    let state = dir.path().join("state").join(record::NAME);
    while !fs::read_to_string(&state).is_ok_and(|t| t.contains("cpuset.mems")) {
        std::thread::yield_now();
    }
    drop(client);
    // The main line is put in order without waiting for it.
    let sock = dir.path().join("sock");
    while RemoteFiles::connect(&sock).is_err() {
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    let _ = slow.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while fs::read_to_string(&mems).unwrap().trim() != "0" {
        assert!(Instant::now() < deadline, "it came after all: {}", fs::read_to_string(&mems).unwrap());
        std::thread::yield_now();
    }
    assert!(aside.write(&mems, "2").is_err() || fs::read_to_string(&mems).unwrap().trim() != "2");
    serving.end();
}
