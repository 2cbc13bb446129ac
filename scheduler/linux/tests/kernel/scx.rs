//! Cores that move by their owner in the kernel (sched_ext), on the word of the kernel's own trace of switches.

use crate::support::{hold, now_us, read, role, set, times, until, write, Dice, Group, Process};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::time::{Duration, Instant};
use surefoot_bpf::{let_in, let_out, scheduler, Class, Let, Owners, Words};
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_server::{Kind, Lender, Plan, Server};

const TRACING: &str = "/sys/kernel/tracing";
const STATE: &str = "/sys/kernel/sched_ext/state";
/// The lender's: three cores of two CPUs. It keeps the first.
const LENDER: &str = "0-5";
const BORROWER: &str = "6";
/// In the order in which they are lent.
const LENT: [&str; 2] = ["4-5", "2-3"];
/// The test's own.
const TEST: u32 = 7;
/// A word for each CPU: when a thread that spins executed an instruction there last, µs.
const SEEN: &str = "/tmp/scx-seen";

/// Not a test: what other processes are. "burst N": N threads that compute for a moment and sleep for a moment. "bully N": N that spin.
/// "load SEED": a scheduler whose cores move all the time. "serve SEED FOLDER": a server whose lease is used all the time; of seed 0 one that
/// lends everything once and ends, of seed 1 one that gives everything back.
#[test]
#[ignore = "the helper process of the tests of sched_ext; does nothing when run alone"]
fn helper() {
    let Some(role) = role() else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let (name, n): (String, u64) = (words[0].into(), words[1].parse().unwrap());
    if name == "load" {
        let bed = Scheduler::new(&named(["lender", "borrower"]));
        let mut dice = Dice(n);
        println!("ready");
        loop {
            bed.lend(dice.between(0, 3) as usize);
            std::thread::sleep(Duration::from_micros(dice.between(100, 3000)));
        }
    }
    if name == "serve" {
        return daemon(n, words[2]);
    }
    let seen = Arc::new(seen());
    for i in 0..n {
        let bursts = name == "burst";
        let seen = seen.clone();
        let work = move || {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15 + i);
            loop {
                let end = Instant::now() + Duration::from_micros(dice.between(300, 3000));
                while !bursts || Instant::now() < end {
                    std::hint::spin_loop();
                    if !bursts {
                        // One that moved in between counts nowhere.
                        let (cpu, now) = (nix::sched::sched_getcpu().unwrap(), now_us());
                        if nix::sched::sched_getcpu().unwrap() == cpu {
                            seen.get()[cpu].fetch_max(now, Relaxed);
                        }
                    }
                }
                std::thread::sleep(Duration::from_micros(dice.between(300, 6000)));
            }
        };
        std::thread::Builder::new().name(name.clone()).spawn(work).unwrap();
    }
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn daemon(seed: u64, dir: &str) {
    let mut s = LocalServer::open(LocalConfig { sched_ext: true, ..LocalConfig::new(dir) }).unwrap();
    if seed == 1 {
        s.reset().unwrap();
        return println!("ready");
    }
    s.resume().unwrap();
    s.adopt("lender", "lender", Kind::Lc { qos_target_ms: 10.0 }, 6, Target::Cgroup("/lender".into())).unwrap();
    s.adopt("borrower", "borrower", Kind::Be, 1, Target::Cgroup("/borrower".into())).unwrap();
    let plan = [("lender", LENDER), ("borrower", BORROWER)].map(|(id, cpus)| (id.to_string(), hold(&s, cpus)));
    s.apply(&Plan::whole(BTreeMap::from(plan))).unwrap();
    let (lease, _) = s.could_lend("lender", "borrower").unwrap();
    let mut lender = s.grant(lease).unwrap();
    if seed == 0 {
        lender.lend(2).unwrap();
        return println!("ready");
    }
    let mut took_us = fs::File::create(format!("{dir}/times")).unwrap();
    println!("ready");
    let mut dice = Dice(seed);
    // One thread does both: in emulation a second one may be silent for longer than a lease lives.
    loop {
        for _ in 0..20 {
            let cores = dice.between(0, 3) as u32;
            let start = now_us();
            let lent = lender.lend(cores).unwrap();
            let took = now_us() - start;
            assert!(lent.cores + lent.to_come - lent.returning == cores && lent.cores <= 2, "{cores}: {lent:?}");
            writeln!(took_us, "{took}").unwrap();
            std::thread::sleep(Duration::from_micros(dice.between(100, 5000)));
        }
        s.observe();
        lender.lend(1).unwrap();
        s.advance(surefoot_server::Tick { ms: 1 });
    }
}

/// Whether the kernel under test can show this; one that cannot is no failure, and is said.
fn has_it() -> bool {
    let has = fs::exists(STATE).unwrap();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(has || !release.contains("-scx"), "{release} was built to have sched_ext");
    if !has {
        println!("NOT RUN: this kernel has no sched_ext");
    }
    has
}

/// What the threads that spin write.
fn seen() -> Words {
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(SEEN).unwrap();
    file.set_len(8 * 64).unwrap();
    Words::map(file, 64).unwrap()
}

/// Groups that are another's to remove.
fn named(names: [&str; 2]) -> [std::mem::ManuallyDrop<Group>; 2] {
    names.map(|name| std::mem::ManuallyDrop::new(Group(std::path::Path::new(crate::support::MOUNT).join(name))))
}

/// The two services under the scheduler, the lender's CPUs all its own.
struct Scheduler {
    owners: Arc<Owners>,
    lender: Class,
    borrower: Class,
}

impl Scheduler {
    fn new<G: std::ops::Deref<Target = Group>>(groups: &[G; 2]) -> Scheduler {
        let owners = Owners::open(scheduler().unwrap_or_else(|e| panic!("{e}"))).unwrap();
        let class = |group: &Group, keeps| {
            let number = fs::metadata(&group.0).unwrap().ino();
            owners.class(number, group.name().matches('/').count(), keeps).unwrap()
        };
        let (lender, borrower) = (class(&groups[0], true), class(&groups[1], false));
        lender.give(&set(LENDER)).unwrap();
        borrower.give(&set(BORROWER)).unwrap();
        // Until none is found that is not in yet: children are in from birth.
        for group in groups {
            while group.cgroup().tids().into_iter().filter(|tid| let_in(*tid).unwrap() == Let::New).count() > 0 {}
        }
        // From now on the owner alone keeps the borrower from CPUs that are not lent.
        write(groups[1].file("cpuset.cpus"), "2-6").unwrap();
        Scheduler { owners, lender, borrower }
    }

    /// Lend so many cores; what is taken back is taken first.
    fn lend(&self, cores: usize) {
        for (i, cpus) in LENT.iter().enumerate() {
            let to = if i < cores { &self.borrower } else { &self.lender };
            to.give(&set(cpus)).unwrap();
        }
    }

    fn end(self, groups: &[&Group; 2]) {
        write(groups[1].file("cpuset.cpus"), BORROWER).unwrap();
        for group in groups {
            group.cgroup().tids().into_iter().for_each(|tid| assert!(let_out(tid).unwrap(), "{tid}"));
        }
        let Scheduler { owners, lender, borrower } = self;
        assert_eq!(owners.ended(), None);
        println!("{} times a thread was fetched for a CPU that changed its owner in between, and was sent away", owners.strays());
        drop((lender, borrower, owners));
        until("the kernel's own scheduler is in charge", || read(STATE) == "disabled");
    }
}

/// Two groups on CPUs of their own, with threads that burst and threads that spin. The test's thread has a CPU for itself.
fn services(bursts: u32, bullies: u32) -> ([Group; 2], [Process; 2]) {
    let mut cpus = nix::sched::CpuSet::new();
    cpus.set(TEST as usize).unwrap();
    let groups = [Group::new("lender"), Group::new("borrower")];
    for (group, cpus) in groups.iter().zip([LENDER, BORROWER]) {
        write(group.file("cpuset.cpus"), cpus).unwrap();
    }
    let start = |group: &Group, role: String| Process::start_as(group, "scx::helper", &role);
    let processes = [start(&groups[0], format!("burst {bursts}")), start(&groups[1], format!("bully {bullies}"))];
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &cpus).unwrap();
    (groups, processes)
}

/// Every thread of both was in, and is out from now on.
fn all_out(groups: &[Group; 2]) {
    for group in groups {
        group.cgroup().tids().into_iter().for_each(|tid| assert!(let_out(tid).unwrap()));
    }
}

/// Its threads but those that wait for the end of the test.
fn workers(p: &Process) -> Vec<u32> {
    p.tids().into_iter().filter(|tid| p.status(*tid, "Name").is_some_and(|name| name == "burst" || name == "bully")).collect()
}

/// Every thread of it has the CPU again.
fn all_go_on(p: &Process) {
    let ran = || -> Vec<u64> {
        let text = workers(p).into_iter().map(|tid| read(format!("/proc/{}/task/{tid}/schedstat", p.pid())));
        text.map(|t| t.split(' ').next().unwrap().parse().unwrap()).collect()
    };
    let before = ran();
    until("every thread goes on", || ran().iter().zip(&before).all(|(now, then)| now > then));
}

fn quantiles(what: &str, mut us: Vec<u64>) {
    us.sort_unstable();
    let at = |q: f64| us[((us.len() - 1) as f64 * q) as usize];
    println!("{what}: {} moves, us: p10 {} p50 {} p90 {} p99 {} most {}", us.len(), at(0.1), at(0.5), at(0.9), at(0.99), at(1.0));
}

/// A switch of a CPU: when, who left and whether it could have gone on, who came.
struct Switch {
    us: u64,
    prev: u32,
    preempted: bool,
    next: u32,
}

/// A CPU, from and to, µs.
type Span = (u32, u64, u64);

/// The kernel's trace of all switches while it is on.
struct Trace;

impl Trace {
    fn on() -> Trace {
        if !fs::exists(format!("{TRACING}/trace")).unwrap() {
            assert!(Command::new("mount").args(["-t", "tracefs", "none", TRACING]).status().unwrap().success());
        }
        for (file, text) in [
            ("tracing_on", "0"),
            ("trace_clock", "mono"),
            ("buffer_size_kb", "8192"),
            ("trace", "\n"),
            ("events/sched/sched_switch/enable", "1"),
            ("tracing_on", "1"),
        ] {
            write(format!("{TRACING}/{file}"), text).unwrap();
        }
        Trace
    }

    fn off(self) -> BTreeMap<u32, Vec<Switch>> {
        write(format!("{TRACING}/tracing_on"), "0").unwrap();
        write(format!("{TRACING}/events/sched/sched_switch/enable"), "0").unwrap();
        let text = read(format!("{TRACING}/trace"));
        let counts = text.lines().find_map(|l| l.strip_prefix("# entries-in-buffer/entries-written: ")).unwrap();
        let counts: Vec<&str> = counts.split_whitespace().next().unwrap().split('/').collect();
        assert_eq!(counts[0], counts[1], "the trace lost switches");
        let mut of: BTreeMap<u32, Vec<Switch>> = BTreeMap::new();
        for line in text.lines().filter(|l| l.contains("sched_switch: ")) {
            let (left, right) = line.split_once(": sched_switch: ").unwrap();
            let cpu = left.split_once('[').unwrap().1[..3].parse().unwrap();
            let us = left.rsplit(' ').next().unwrap().replace('.', "").parse().unwrap();
            let field = |key: &str| right.split_once(key).unwrap().1.split(' ').next().unwrap();
            let preempted = field("prev_state=").starts_with('R');
            let switch = Switch { us, prev: field("prev_pid=").parse().unwrap(), preempted, next: field("next_pid=").parse().unwrap() };
            of.entry(cpu).or_default().push(switch);
        }
        of
    }
}

/// No thread of the borrower is on a CPU that has come back, at no instant; none of the lender begins on one that is lent; no running thread
/// of the lender loses its CPU to the borrower. Cores move both ways at random, and the kernel's trace tells.
#[test]
#[ignore = "needs the guest: make test-kernel"]
fn cores_move_at_once() {
    if !has_it() {
        return;
    }
    let (groups, processes) = services(6, 6);
    let bed = Scheduler::new(&[&groups[0], &groups[1]]);
    let tids = |p: &Process| -> BTreeSet<u32> { p.tids().into_iter().collect() };
    let (bursts, bullies) = (tids(&processes[0]), tids(&processes[1]));
    let mut dice = Dice(7);
    let trace = Trace::on();
    let (mut taken, mut lent, mut calls, mut never) = (vec![], vec![], vec![], 0);
    // By CPU: since when it is the lender's, and the borrower's, and until when.
    let (mut back, mut away): (Vec<Span>, Vec<Span>) = (vec![], vec![]);
    let moves = times("SUREFOOT_SCX_MOVES", 200);
    let mut since: BTreeMap<u32, u64> = BTreeMap::new();
    let seen = seen();
    for _ in 0..moves {
        let core = set(LENT[dice.between(0, 2) as usize]);
        for cpu in core.iter() {
            let (last, since) = (seen.get()[cpu as usize].load(Relaxed), since.get(&cpu).copied().unwrap_or(u64::MAX));
            assert!(last <= since, "CPU {cpu} is back since {since}, and the borrower executed an instruction there at {last}");
        }
        let start = now_us();
        bed.borrower.give(&core).unwrap();
        let given = now_us();
        calls.push(given - start);
        core.iter().for_each(|cpu| back.extend(since.get(&cpu).map(|since| (cpu, *since, start))));
        // Where a thread of the lender runs, or was fetched before, the borrower comes when it has left.
        let mut left: BTreeMap<u32, u64> = BTreeMap::new();
        loop {
            for cpu in core.iter().filter(|cpu| !bed.lender.uses(*cpu)) {
                left.entry(cpu).or_insert_with(now_us);
            }
            if core.iter().all(|cpu| left.contains_key(&cpu) && bed.borrower.uses(cpu)) {
                lent.push(now_us() - start);
                break;
            }
            if now_us() > given + 100_000 {
                never += 1;
                break;
            }
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(dice.between(100, 20_000)));
        let start = now_us();
        away.extend(left.into_iter().map(|(cpu, left)| (cpu, left, start)));
        bed.lender.give(&core).unwrap();
        calls.push(now_us() - start);
        while core.iter().any(|cpu| bed.borrower.uses(cpu)) {
            assert!(now_us() < start + 10_000_000, "CPUs {core} are not back");
            std::hint::spin_loop();
        }
        let done = now_us();
        since.extend(core.iter().map(|cpu| (cpu, done)));
        taken.push(done - start);
        std::thread::sleep(Duration::from_micros(dice.between(100, 10_000)));
    }
    let end = now_us();
    since.into_iter().for_each(|(cpu, since)| back.push((cpu, since, end)));
    let of = trace.off();
    let none = vec![];
    // The kernel tells of a switch after the thread has stopped; in emulation others may come in between.
    let (mut borrowed_us, mut told_late) = (0, vec![0]);
    for (cpu, from, to) in &back {
        for pair in of.get(cpu).unwrap_or(&none).windows(2).filter(|p| bullies.contains(&p[0].next)) {
            let (began, ended) = (pair[0].us, pair[1].us);
            // A timestamp is cut to whole microseconds.
            assert!(began <= *from || began >= *to, "CPU {cpu}, back from {from} to {to}: {} came at {began}", pair[0].next);
            if began <= *from && ended > *from {
                told_late.push(ended - from);
            }
        }
    }
    for (cpu, from, to) in &away {
        for pair in of.get(cpu).unwrap_or(&none).windows(2) {
            let (began, ended) = (pair[0].us, pair[1].us);
            let late = bursts.contains(&pair[0].next) && began > from + 1 && began < *to;
            assert!(!late, "CPU {cpu}, lent from {from} to {to}: {} came at {began}", pair[0].next);
            if bullies.contains(&pair[0].next) {
                borrowed_us += ended.min(*to).saturating_sub(began.max(*from));
            }
        }
    }
    let switches = of.values().flatten().count();
    for (cpu, s) in of.iter().flat_map(|(cpu, all)| all.iter().map(move |s| (cpu, s))) {
        let robbed = bursts.contains(&s.prev) && s.preempted && bullies.contains(&s.next);
        assert!(!robbed, "CPU {cpu}: {} lost it to {} at {}", s.prev, s.next, s.us);
        let strange = (bursts.contains(&s.next) && *cpu > 5) || (bullies.contains(&s.next) && ![2, 3, 4, 5, 6].contains(cpu));
        assert!(!strange, "{} on CPU {cpu}", s.next);
    }
    let away_us: u64 = away.iter().map(|(_, from, to)| to - from).sum();
    println!(
        "switches that the trace has after the CPU was back: {} of {}, at most {} us",
        told_late.len() - 1,
        back.len(),
        told_late.iter().max().unwrap()
    );
    println!("{switches} switches; of the time lent the borrower used {:.0} %", 100.0 * borrowed_us as f64 / away_us as f64);
    quantiles("owner: the call", calls);
    quantiles("owner: taken back, until the borrower has left", taken);
    quantiles("owner: lent, until the borrower runs on both CPUs", lent);
    println!("lent, and the lender's threads were on a CPU of the core for more than 100 ms: {never}");
    assert!(borrowed_us * 2 > away_us, "the borrower ran for {borrowed_us} us of {away_us}");
    bed.end(&[&groups[0], &groups[1]]);
    by_cpuset(&groups, moves);
}

/// What the same moves take by two lists of CPUs, beside the same threads.
fn by_cpuset(groups: &[Group; 2], moves: u64) {
    let (mut taken, mut lent) = (vec![], vec![]);
    for _ in 0..moves {
        let start = now_us();
        write(groups[0].file("cpuset.cpus"), "0-3").unwrap();
        write(groups[1].file("cpuset.cpus"), "4-6").unwrap();
        lent.push(now_us() - start);
        std::thread::sleep(Duration::from_millis(10));
        let start = now_us();
        write(groups[1].file("cpuset.cpus"), BORROWER).unwrap();
        write(groups[0].file("cpuset.cpus"), LENDER).unwrap();
        taken.push(now_us() - start);
        std::thread::sleep(Duration::from_millis(5));
    }
    quantiles("cpuset: taken back, both writes", taken);
    quantiles("cpuset: lent, both writes", lent);
}

/// A loader that is killed at any instant leaves the kernel's own scheduler in charge; with whole lists everything is back, and all threads go on.
#[test]
#[ignore = "needs the guest: make test-kernel"]
fn a_killed_loader_leaves_nothing_behind() {
    if !has_it() {
        return;
    }
    let (groups, processes) = services(3, 3);
    let own = Group::new("loader");
    let mut dice = Dice(11);
    let kills = times("SUREFOOT_SCX_KILLS", 10);
    for n in 0..kills {
        let mut loader = Process::start_as(&own, "scx::helper", &format!("load {}", n + 1));
        if n % 2 == 0 {
            assert_eq!(read(STATE), "enabled");
        }
        std::thread::sleep(Duration::from_micros(dice.between(0, 300_000)));
        loader.kill();
        until("the kernel's own scheduler is in charge", || read(STATE) == "disabled");
        // What the safe layout, a plan and `reset` do.
        write(groups[1].file("cpuset.cpus"), BORROWER).unwrap();
        for (process, cpus) in processes.iter().zip([LENDER, BORROWER]) {
            all_go_on(process);
            until("all are on their own CPUs", || {
                workers(process).into_iter().all(|tid| process.ran_on(tid).is_some_and(|cpu| set(cpus).contains(cpu)))
            });
        }
    }
    all_out(&groups);
}

/// A thread of the lender that is pinned to a CPU that is lent goes first there. One of the borrower that is pinned to a CPU that is not lent
/// waits, until the kernel ends the scheduler for it: then every thread goes on under the kernel's own, and an order to it says why not.
#[test]
#[ignore = "needs the guest: make test-kernel"]
fn pinned_threads_stall_nobody() {
    if !has_it() {
        return;
    }
    let (groups, processes) = services(2, 3);
    let bed = Scheduler::new(&[&groups[0], &groups[1]]);
    bed.lend(1);
    let pin = |tid: u32, cpu: usize| {
        let mut cpus = nix::sched::CpuSet::new();
        cpus.set(cpu).unwrap();
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(tid as i32), &cpus).unwrap();
    };
    pin(workers(&processes[0])[0], 4);
    for _ in 0..20 {
        all_go_on(&processes[0]);
    }
    assert_eq!(bed.owners.ended(), None);
    bed.lend(0);
    pin(workers(&processes[1])[0], 4);
    let start = Instant::now();
    until("the kernel ends a scheduler under which a thread waits for ever", || bed.owners.ended().is_some());
    println!("ended after {:.1} s, reason {}", start.elapsed().as_secs_f64(), bed.owners.ended().unwrap());
    until("the kernel's own scheduler is in charge", || read(STATE) == "disabled");
    processes.iter().for_each(all_go_on);
    let refused = bed.borrower.give(&set("4-5")).unwrap_err().to_string();
    assert!(refused.contains("the kernel ended the scheduler"), "{refused}");
    write(groups[1].file("cpuset.cpus"), BORROWER).unwrap();
    all_out(&groups);
}

/// A lease of a server with the rights moves by owner: both lists stay, ticks included. A server that is killed leaves the lease to the next
/// one, and a reset gives back lists and threads. One that ends by itself leaves all as it was.
#[test]
#[ignore = "needs the guest: make test-kernel"]
fn leases_move_by_owner() {
    if !has_it() {
        return;
    }
    let (groups, processes) = services(4, 4);
    let own = Group::new("server");
    let dir = tempfile::tempdir().unwrap();
    let start = |seed: u64| Process::start_as(&own, "scx::helper", &format!("serve {seed} {}", dir.path().display()));
    let lists = || [groups[0].says("cpuset.cpus"), groups[1].says("cpuset.cpus")];
    let policies = || -> BTreeSet<String> {
        let of = |tid: u32| read(format!("/proc/{tid}/stat")).rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().to_string();
        processes.iter().flat_map(workers).map(of).collect()
    };
    let is_out = || lists() == [LENDER, BORROWER] && policies() == BTreeSet::from(["0".into()]) && read(STATE) == "disabled";
    let mut dice = Dice(5);
    let mut took = vec![];
    for n in 0..times("SUREFOOT_SCX_KILLS", 4) {
        let mut server = start(2 + n);
        until("the scheduler is in charge", || read(STATE) == "enabled");
        let end = Instant::now() + Duration::from_millis(dice.between(500, 2500));
        let mut visits = BTreeSet::new();
        while Instant::now() < end {
            assert_eq!(lists(), [LENDER, "2-6"]);
            visits.extend(workers(&processes[1]).into_iter().filter_map(|tid| processes[1].ran_on(tid)));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(server.running());
        assert!(visits.iter().any(|cpu| set("2-5").contains(*cpu)), "the borrower was on {visits:?} alone");
        server.kill();
        took.extend(read(dir.path().join("times")).lines().filter_map(|l| l.parse::<u64>().ok()));
        until("the kernel's own scheduler is in charge", || read(STATE) == "disabled");
        drop(start(1));
        assert!(is_out(), "{:?} {:?}", lists(), policies());
        processes.iter().for_each(all_go_on);
    }
    quantiles("a lender's move, both ways", took);
    let mut server = start(0);
    until("the server has ended by itself", || !server.running());
    assert!(is_out(), "{:?} {:?}", lists(), policies());
}
