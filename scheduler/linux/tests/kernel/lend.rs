//! CPUs that are lent on a real kernel: a primary with bursts, a CPU bully, an actuator, and a daemon without rights that lends.
//!
//! The daemon writes down each look and each write, before and after, by one clock. What it wrote is replayed here. In software emulation a move
//! takes milliseconds: the loop looks every 5 ms, and what is shown is order and completeness, not 50 µs.

use crate::support::{hold, now_us, role, set, times, until, write, Dice, Group, Process};
use nix::unistd::{setgid, setuid, Gid, Uid};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_linux::actuator::deadman::GRACE;
use surefoot_linux::actuator::harden::restrict_calls;
use surefoot_linux::actuator::{Actuator, Allow, DeadMan, Listener, Pattern, Record, RemoteFiles, Terms};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::files::{Files, HostFiles, SharedFiles};
use surefoot_linux::{hand_on, running};
use surefoot_linux::{LocalConfig, LocalLender, LocalServer, Root, Target};
use surefoot_server::{CpuSet, Kind, Lender, Plan, Server};

const DAEMON: u32 = 65_534;
/// Three cores of two threads; two of them may be lent.
const WEB: &str = "0-5";
const BATCH: &str = "6";
const CORES: u32 = 3;
const POLL_US: u64 = 5000;

/// Files of the actuator, with a line before and after each write of CPUs.
#[derive(Debug)]
struct Traced {
    inner: SharedFiles,
    trace: File,
}

impl Traced {
    fn note(&self, line: &str) {
        // One write each: what is in the file was said before the end of the process.
        (&self.trace).write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

impl Files for Traced {
    hand_on!(inner: read, open, make_dir, remove_dir, rename, list, is_dir, is_file, writable, is_here, aside, keep_safe, running);
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let of = path.parent().and_then(|d| d.file_name()?.to_str()).filter(|_| path.ends_with("cpuset.cpus"));
        let Some(of) = of else { return self.inner.write(path, text) };
        self.note(&format!("begin {} {of} {}", now_us(), text.trim()));
        let done = self.inner.write(path, text);
        self.note(&format!("end {} {of} {}", now_us(), if done.is_ok() { text.trim() } else { "refused" }));
        done
    }
}

/// Not a test: the actuator, the daemon that is killed, and the primary.
#[test]
#[ignore = "the helper process of the other tests; does nothing when run alone"]
fn helper() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[..] {
        ["actuate", dir] => actuate(Path::new(dir)),
        ["daemon", dir] => daemon(PathBuf::from(dir)),
        ["bursts", threads] => bursts(threads.parse().unwrap()),
        _ => panic!("no role {role}"),
    }
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn actuate(dir: &Path) {
    let (root, files) = (Root::default(), Arc::new(HostFiles));
    let patterns = ["/web", "/batch"].map(|name| Pattern::literal(name).unwrap());
    let terms = Terms { partitions: false, cpus: Some(CpuSet::range(0, 7)), services: Some(2), be: vec![] };
    let mounts = Mounts::read(&root);
    let allow = Allow::new(&mounts, None, patterns.to_vec()).with_terms(terms);
    let dead_man = DeadMan::open(&dir.join("held"), "boot", Instant::now()).unwrap();
    let record = Record::open(dead_man.folder().as_fd().try_clone_to_owned().unwrap(), "boot", files.clone(), root.clone()).unwrap();
    let programs = running::load(mounts.version().unwrap()).unwrap();
    let a = Actuator::new(allow, files, root).with_dead_man(dead_man).with_record(record).unwrap().with_running(Ok(programs));
    let mut a = a.with_aside(|| ()).unwrap();
    let listener = Listener::bind(&dir.join("socket")).unwrap();
    std::thread::spawn(move || {
        // Descriptors are handed over by what is left.
        restrict_calls().done.unwrap();
        a.serve(&listener, DAEMON, || false)
    });
}

/// Takes over whatever runs: it has no right of its own.
fn daemon(dir: PathBuf) {
    setgid(Gid::from_raw(DAEMON)).and_then(|()| setuid(Uid::from_raw(DAEMON))).unwrap();
    let trace = File::create(dir.join("state/trace")).unwrap();
    let inner = Arc::new(RemoteFiles::connect(&dir.join("socket")).unwrap());
    let files = Arc::new(Traced { inner, trace: trace.try_clone().unwrap() });
    let config = LocalConfig { root: Root::with("/", files.clone()), ..LocalConfig::new(dir.join("state")) };
    let mut s = LocalServer::open(config).unwrap();
    s.resume().unwrap();
    s.adopt("web", "web", Kind::Lc { qos_target_ms: 10.0 }, 6, Target::Cgroup("/web".into())).unwrap();
    s.adopt("batch", "batch", Kind::Be, 1, Target::Cgroup("/batch".into())).unwrap();
    let plan = [("web", WEB), ("batch", BATCH)].map(|(id, cpus)| (id.to_string(), hold(&s, cpus)));
    s.apply(&Plan::whole(BTreeMap::from(plan))).unwrap();
    let (lease, cores) = s.could_lend("web", "batch").unwrap();
    assert_eq!((lease.cpus.to_string().as_str(), cores), ("2-5", CORES));
    let lender = s.grant(lease).unwrap();
    assert_eq!(lender.reads_files(), None);
    std::thread::spawn(move || lend(lender, &files));
    std::thread::spawn(move || loop {
        s.observe();
        std::thread::sleep(Duration::from_millis(100));
    });
}

/// A buffer of one core: what is busy and one more stays with the lender.
fn lend(mut lender: LocalLender, trace: &Traced) {
    loop {
        let busy = lender.busy().unwrap();
        let lent = CORES - (busy + 1).min(CORES);
        trace.note(&format!("look {} {busy} {lent}", now_us()));
        lender.lend(lent).unwrap();
        if trace.trace.metadata().unwrap().len().is_multiple_of(32) {
            let waits = lender.waits().unwrap();
            trace.note(&format!("waits {} {} {}", now_us(), waits.dispatches, waits.long().unwrap()));
        }
        lender.advance_to(lender.now_us() + POLL_US);
    }
}

/// Threads of which all, some or none spin, for some tens of milliseconds each.
fn bursts(threads: u64) {
    static SPIN: AtomicU64 = AtomicU64::new(0);
    for n in 0..threads {
        std::thread::spawn(move || loop {
            while n < SPIN.load(Relaxed) {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_millis(2));
        });
    }
    std::thread::spawn(move || {
        let mut dice = Dice(4711);
        loop {
            SPIN.store(dice.between(0, threads + 1), Relaxed);
            std::thread::sleep(Duration::from_millis(dice.between(20, 120)));
            SPIN.store(0, Relaxed);
            std::thread::sleep(Duration::from_millis(dice.between(20, 250)));
        }
    });
}

/// Both services with what was theirs before, and the actuator; they go with this value.
struct Bed {
    daemons: Group,
    _actuator: (Group, Process),
    web: (Group, Process),
    batch: (Group, Process),
    dir: tempfile::TempDir,
}

impl Bed {
    fn new() -> Self {
        let [web, batch] = [("web", WEB), ("batch", BATCH)].map(|(name, cpus)| {
            let g = Group::new(name);
            write(g.file("cpuset.cpus"), cpus).unwrap();
            write(g.file("cpuset.mems"), "0-1").unwrap();
            g
        });
        let dir = tempfile::tempdir().unwrap();
        // The daemon has a folder in that of root.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(DAEMON), Some(DAEMON)).unwrap();
        let at = dir.path().display().to_string();
        let (of_actuator, daemons) = (Group::new("actuator"), Group::new("daemon"));
        // What is not under test has the CPU that is nobody's.
        [&of_actuator, &daemons].iter().for_each(|g| write(g.file("cpuset.cpus"), "7").unwrap());
        let actuator = Process::start_as(&of_actuator, "lend::helper", &format!("actuate {at}"));
        let web = (Process::start_as(&web, "lend::helper", "bursts 6"), web);
        let batch = (Process::start(&batch, "burn 7"), batch);
        Bed { daemons, _actuator: (of_actuator, actuator), web: (web.1, web.0), batch: (batch.1, batch.0), dir }
    }

    fn daemon(&self) -> Process {
        Process::start_as(&self.daemons, "lend::helper", &format!("daemon {}", self.dir.path().display()))
    }

    /// Lists of both, of one instant: read until the first is the same before and after the second.
    fn lists(&self) -> (CpuSet, CpuSet) {
        let list = |g: &Group| set(&g.says("cpuset.cpus"));
        loop {
            let (before, batch, after) = (list(&self.web.0), list(&self.batch.0), list(&self.web.0));
            if before == after {
                return (before, batch);
            }
        }
    }

    fn all_is_back(&self) -> bool {
        self.lists() == (set(WEB), set(BATCH))
    }

    fn trace(&self) -> Trace {
        Trace::read(&std::fs::read_to_string(self.dir.path().join("state/trace")).unwrap())
    }
}

/// What a daemon wrote down.
#[derive(Default)]
struct Trace {
    looks: Vec<(u32, u32)>,
    dispatches: u64,
    /// Time of each move, µs: to the borrower, and back.
    moves: [Vec<u64>; 2],
    most_lent: u32,
}

impl Trace {
    /// Replays the writes. A list is the old one and the new one while it is written.
    fn read(text: &str) -> Self {
        let mut t = Trace::default();
        let mut lists: BTreeMap<&str, CpuSet> = BTreeMap::from([("web", set(WEB)), ("batch", set(BATCH))]);
        let mut first: Option<(u64, &str)> = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let at = words.get(1).and_then(|w| w.parse::<u64>().ok());
            match (words[0], at, &words[2..]) {
                ("look", Some(_), [busy, lent]) => {
                    let (busy, lent): (u32, u32) = (busy.parse().unwrap(), lent.parse().unwrap());
                    assert!(CORES - lent >= (busy + 1).min(CORES), "{line}");
                    t.looks.push((busy, lent));
                    t.most_lent = t.most_lent.max(lent);
                }
                ("waits", Some(_), [dispatches, _]) => t.dispatches += dispatches.parse::<u64>().unwrap(),
                ("begin", Some(at), [of, cpus]) => {
                    let new = set(cpus);
                    let other = lists[if *of == "web" { "batch" } else { "web" }];
                    assert!(new.union(lists[of]).intersection(other).is_empty(), "{line}: the other list is {other}");
                    // A list of a plan has no second.
                    first = first.filter(|(_, giver)| giver != of).or(Some((at, of)));
                }
                ("end", Some(at), [of, cpus]) => {
                    assert_ne!(*cpus, "refused", "{line}");
                    lists.insert(of, set(cpus));
                    if let Some((begun, giver)) = first.take_if(|(_, giver)| giver != of) {
                        t.moves[usize::from(giver != "web")].push(at - begun);
                    }
                }
                // Cut off by its end.
                _ => {}
            }
        }
        t.moves.iter_mut().for_each(|m| m.sort_unstable());
        t
    }

    fn say(&self) {
        for (way, times) in ["to the borrower", "back"].iter().zip(&self.moves) {
            let at = |frac: f64| times[((times.len() - 1) as f64 * frac) as usize] as f64 * 1e-3;
            if !times.is_empty() {
                let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
                println!("{} moves {way}: p50 {p50:.1} ms, p99 {p99:.1} ms, longest {max:.1} ms", times.len());
            }
        }
    }
}

/// Bursts of the primary take cores back and their ends lend them again. No CPU is in both lists at any instant, the lender keeps what is busy and
/// a core more, and what the daemon sees comes from programs that it could not have loaded.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn lend_moves_cores_and_no_cpu_is_in_both_lists() {
    let mut bed = Bed::new();
    let mut daemon = bed.daemon();
    let (begun, mut looks) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(times("SUREFOOT_LEND_SECONDS", 30)) {
        let (web, batch) = bed.lists();
        assert!(web.intersection(batch).is_empty(), "web {web}, batch {batch}");
        assert!(web.contains(0) && web.contains(1) && batch.contains(6), "web {web}, batch {batch}");
        looks += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(daemon.running() && bed.web.1.running() && bed.batch.1.running());
    daemon.kill();
    let t = bed.trace();
    println!("{looks} looks at the kernel's lists, {} of the daemon, {} dispatches", t.looks.len(), t.dispatches);
    t.say();
    let busy = |n: u32| t.looks.iter().filter(|(busy, _)| *busy == n).count();
    println!("busy cores at a look: {:?}", [0, 1, 2, 3].map(busy));
    assert!(busy(0) > 0 && busy(1) + busy(2) + busy(3) > 0 && t.most_lent == 2, "bursts were not seen");
    assert!(t.moves.iter().all(|m| m.len() >= 5), "{:?}", t.moves);
    assert!(t.dispatches > 0);
    until("all is back", || bed.all_is_back());
}

/// The daemon is killed at any instant: no CPU is in both lists, and within the actuator's second all is back.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn lend_is_all_back_after_each_kill() {
    let kills = times("SUREFOOT_LEND_KILLS", 20);
    let bound = GRACE + Duration::from_secs(1) * times("SUREFOOT_VM_SLOWNESS", 1) as u32;
    let bed = Bed::new();
    let (mut dice, begun, mut lent, mut took) = (Dice(99), Instant::now(), 0, vec![]);
    let mut moves = 0;
    for n in 1..=kills {
        let mut daemon = bed.daemon();
        std::thread::sleep(Duration::from_millis(dice.between(1, 800)));
        daemon.kill();
        let killed = Instant::now();
        let (web, batch) = bed.lists();
        assert!(web.intersection(batch).is_empty(), "kill {n}: web {web}, batch {batch}");
        lent += u64::from(batch != set(BATCH));
        until("all is back", || {
            let (web, batch) = bed.lists();
            assert!(web.intersection(batch).is_empty(), "after kill {n}: web {web}, batch {batch}");
            bed.all_is_back()
        });
        took.push(killed.elapsed());
        assert!(killed.elapsed() < bound, "kill {n}: all was back only after {:?}", killed.elapsed());
        let t = bed.trace();
        moves += t.moves.iter().map(Vec::len).sum::<usize>();
        if n % 10 == 0 || n == kills {
            let s = begun.elapsed().as_secs_f64();
            took.sort_unstable();
            let (p50, max) = (took[took.len() / 2], took[took.len() - 1]);
            println!(
                "{n} kills, {s:.0} s: {lent} with cores lent, {moves} moves before; all back after {p50:.2?} (p50), {max:.2?} (longest)"
            );
        }
    }
    assert!(4 * lent > kills, "cores were lent at {lent} of {kills} kills");
}
