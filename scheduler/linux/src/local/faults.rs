//! Random plans with writes that fail: what is in force afterwards is the old plan or the new one, and at no moment is a
//! service without a CPU or a way, or an exclusive CPU or way held twice.

use super::*;
use crate::files::{Files, HostFiles};
use crate::root::tests::{scratch, tree};
use crate::testing::{intel, outlived, Faulty, ModelFiles};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use surefoot_server::layout::{pack, Holding};

const SERVICES: [&str; 5] = ["a", "b", "c", "d", "e"];
const CPUS: u32 = 16;
const WAYS: u32 = 11;

/// xorshift64*: the tests need no more.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// Looks at the CPUs after every change.
#[derive(Debug, Default)]
struct Watch {
    /// From the first plan on; before it an empty list means the CPUs of the group above.
    placed: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Watch {
    fn look(&self, path: &Path) {
        if self.placed.load(Ordering::Relaxed) && path.ends_with("cpuset.cpus") {
            let cpus = std::fs::read_to_string(path).unwrap();
            if CpuSet::parse(&cpus).map_or(true, |c| c.is_empty()) {
                self.wrong.lock().unwrap().push(format!("{} was left without a CPU: \"{cpus}\"", path.display()));
            }
        }
    }
}

/// A v2 host with 16 CPUs in two L3 domains, resctrl's model, and five services of one thread each.
struct Host {
    _dir: tempfile::TempDir,
    state: tempfile::TempDir,
    root: Root,
    model: ModelFiles,
    faulty: Arc<Faulty>,
    watch: Arc<Watch>,
}

impl Host {
    fn new() -> Self {
        let mut files: Vec<(String, String)> = vec![
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu io memory\n".into()),
            ("/sys/fs/cgroup/cpuset.cpus.effective".into(), format!("0-{}\n", CPUS - 1)),
            ("/sys/devices/system/cpu/online".into(), format!("0-{}\n", CPUS - 1)),
        ];
        for cpu in 0..CPUS {
            let cache = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3");
            files.push((format!("{cache}/level"), "3\n".into()));
            files.push((format!("{cache}/id"), format!("{}\n", cpu / (CPUS / 2))));
        }
        for (n, id) in SERVICES.iter().enumerate() {
            let dir = format!("/sys/fs/cgroup/lc/{id}");
            for (file, text) in [
                ("cpuset.cpus", "\n".to_string()),
                ("cpu.max", "max 100000\n".into()),
                ("cpu.weight", "100\n".into()),
                ("memory.max", "max\n".into()),
                ("memory.zswap.max", "max\n".into()),
                ("cgroup.procs", format!("{}\n", 100 + n)),
                ("cgroup.threads", format!("{}\n", 100 + n)),
            ] {
                files.push((format!("{dir}/{file}"), text));
            }
        }
        let (dir, root) = tree(&files);
        let (model, _) = ModelFiles::mount(&root, intel(2, WAYS), "");
        (0..SERVICES.len() as u32).for_each(|n| model.machine().spawn(100 + n, 100 + n, 1, 0));
        let watch = Arc::new(Watch::default());
        let looked = watch.clone();
        let faulty = Faulty::watched(Arc::new(model.clone()), Box::new(move |path| looked.look(path)));
        let state = scratch();
        let root = Root::with(root.path("/"), faulty.clone());
        Host { _dir: dir, state, root, model, faulty, watch }
    }

    /// Nothing adopted.
    fn open(&self) -> LocalServer {
        let config = LocalConfig {
            root: self.root.clone(),
            managed: Some(CpuSet::range(0, CPUS)),
            resume: true,
            look_every: Duration::ZERO,
            ..LocalConfig::new(self.state.path())
        };
        LocalServer::open(config).unwrap()
    }

    fn server(&self) -> LocalServer {
        self.server_without("")
    }

    fn server_without(&self, absent: &str) -> LocalServer {
        let mut s = self.open();
        for (n, id) in SERVICES.iter().enumerate().filter(|(_, id)| **id != absent) {
            let kind = if n < 3 { Kind::Lc { qos_target_ms: 1.0 } } else { Kind::Be };
            s.adopt(id, id, kind, 1, Target::Cgroup(format!("/lc/{id}").into())).unwrap();
        }
        s
    }

    /// Everything that control writes: cgroup files, and resctrl's groups with masks and tasks.
    fn tree(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for id in SERVICES {
            for file in ["cpuset.cpus", "cpu.max", "cpu.weight", "memory.max", "memory.zswap.max"] {
                let path = format!("/sys/fs/cgroup/lc/{id}/{file}");
                all.insert(
                    path.clone(),
                    HostFiles.read(&self.root.path(&path)).map(|t| String::from_utf8_lossy(&t).trim().into()).unwrap(),
                );
            }
        }
        let mount = self.root.path("/sys/fs/resctrl");
        let mut groups = self.model.list(&mount).unwrap();
        groups.retain(|g| self.model.is_file(&mount.join(g).join("schemata")));
        groups.push(".".into());
        for g in groups {
            for file in ["schemata", "tasks"] {
                let text = String::from_utf8_lossy(&self.model.read(&mount.join(&g).join(file)).unwrap()).into_owned();
                all.insert(format!("{g}/{file}"), text);
            }
        }
        all
    }
}

fn random_plan(s: &LocalServer, random: &mut Random) -> Plan {
    let p = s.platform().clone();
    let in_force: BTreeMap<ServiceId, Allocation> =
        s.services.iter().filter(|(_, v)| v.placed).map(|(id, v)| (id.clone(), v.allocation.clone())).collect();
    // Shares of CPUs and ways at random, at least one each; now and then nothing is kept from before.
    let mut share = |total: u32| {
        let mut parts = vec![1u32; SERVICES.len()];
        (SERVICES.len() as u32..total).for_each(|_| {
            let to = random.below(SERVICES.len() as u64 + 1) as usize;
            if let Some(p) = parts.get_mut(to) {
                *p += 1;
            }
        });
        parts
    };
    let (cores, ways) = (share(CPUS), share(WAYS));
    let holdings: Vec<Holding> = SERVICES
        .iter()
        .enumerate()
        .map(|(n, id)| {
            let mba_pct = 10 * (1 + random.below(10) as u8);
            Holding { members: vec![id.to_string()], cores: cores[n], ways: ways[n], mba_pct }
        })
        .collect();
    let empty = BTreeMap::new();
    let base = if random.below(4) == 0 { &empty } else { &in_force };
    let mut allocations = pack(&p, base, &holdings, &[]).unwrap();
    for a in allocations.values_mut() {
        if random.below(3) == 0 {
            a.quota_cores = Some(f64::from(a.cpus.len().div_ceil(2)));
        }
        if random.below(4) == 0 {
            a.mem_limit_bytes = Some((1 + random.below(64)) << 20);
            // The pool is inside the limit.
            a.zswap_max_bytes = Some(random.below(64) << 20).min(a.mem_limit_bytes);
        }
    }
    Plan::whole(allocations)
}

fn no_double_holders(s: &LocalServer) {
    let all: BTreeMap<ServiceId, Allocation> =
        s.services.iter().filter(|(_, v)| v.placed).map(|(id, v)| (id.clone(), v.allocation.clone())).collect();
    surefoot_server::validate::validate(s.platform(), &all).unwrap();
}

/// Each of 10,000 plans is tried with failures at random writes, some of them hitting the rollback too, then put in force.
#[test]
fn failed_writes_leave_the_old_plan_or_the_new() {
    let plans: u32 = std::env::var("SUREFOOT_FAULT_PLANS").ok().and_then(|v| v.parse().ok()).unwrap_or(10_000);
    let host = Host::new();
    let mut s = host.server();
    let before_us = host.tree();
    let mut random = Random(0x5eed);
    let (mut failed, mut unsettled, mut fine) = (0u32, 0u32, 0u32);
    let mut old = before_us.clone();
    for n in 0..plans {
        let plan = random_plan(&s, &mut random);
        let allocations: Vec<Allocation> = s.services.values().map(|v| v.allocation.clone()).collect();
        // One failure mostly; sometimes a burst, which reaches into the rollback.
        let at = random.below(30);
        let burst = if random.below(4) == 0 { 1 + random.below(12) } else { 1 };
        let errno = [libc::EIO, libc::EINVAL, libc::ENOSPC, libc::EBUSY][random.below(4) as usize];
        host.faulty.arm((at..at + burst).map(|c| (c, errno)).collect());
        match s.apply(&plan) {
            Ok(_) => fine += 1,
            Err(e) => {
                failed += 1;
                if matches!(e, ServerError::Unsettled { .. }) {
                    unsettled += 1;
                    // The next interval tries again.
                    host.faulty.arm(BTreeMap::new());
                    s.observe();
                }
                assert_eq!(host.tree(), old, "plan {n}: {e}");
                assert_eq!(s.services.values().map(|v| v.allocation.clone()).collect::<Vec<_>>(), allocations, "plan {n}");
                host.faulty.arm(BTreeMap::new());
                // A refusal bounds its service for some seconds: here they are over.
                s.limits = Limits::default();
                s.apply(&plan).unwrap_or_else(|e| panic!("plan {n}: {e}"));
            }
        }
        host.faulty.arm(BTreeMap::new());
        host.watch.placed.store(true, Ordering::Relaxed);
        no_double_holders(&s);
        old = host.tree();
        for (id, change) in &plan.changes {
            let cpus = &old[&format!("/sys/fs/cgroup/lc/{id}/cpuset.cpus")];
            assert_eq!(CpuSet::parse(cpus).ok(), change.cpu.as_ref().map(|c| c.cpus), "plan {n}");
        }
    }
    assert!(failed > plans / 4 && unsettled > plans / 200 && fine > plans / 10, "{failed} {unsettled} {fine}");
    assert_eq!(host.watch.wrong.lock().unwrap().as_slice(), &[] as &[String]);
    host.watch.placed.store(false, Ordering::Relaxed);
    s.reset().unwrap();
    let mut after = host.tree();
    // An empty list of CPUs of a populated group can only be given back by name.
    after.iter_mut().filter(|(k, _)| k.ends_with("cpuset.cpus")).for_each(|(_, v)| *v = v.replace("0-15", ""));
    assert_eq!(after, before_us);
    assert!(!host.state.path().join(crate::safe::FILE).exists());
}

/// A process that dies at any write is followed by one that finds the services, puts the last applied plan back in force, and
/// can still give everything back; or by nobody, and then the safe layout leaves every LC service as it was before.
#[test]
fn whoever_comes_after_a_death_finds_a_way() {
    let host = Host::new();
    let before_us = host.tree();
    let mut random = Random(0xdead);
    let mut s = host.server();
    for n in 0..400 {
        let (first, second) = (random_plan(&s, &mut random), random_plan(&s, &mut random));
        s.apply(&first).unwrap();
        let old = host.tree();
        // Dies after some of the writes: the rest fails, the rollback too, and nothing of the process is left.
        let at = random.below(40);
        host.faulty.arm((at..at + 100_000).map(|c| (c, libc::EIO)).collect());
        let done = s.apply(&second).is_ok();
        let new = host.tree();
        drop(s);
        host.faulty.arm(BTreeMap::new());
        if random.below(2) == 0 {
            let layout = crate::safe::SafeLayout::load(&host.state.path().join(crate::safe::FILE)).unwrap().expect("something is in force");
            let report = layout.put_in_force(host.root.files.as_ref());
            assert!(report.failed.is_empty(), "death {n}: {report:?}");
            let now = host.tree();
            for (path, was) in before_us.iter().filter(|(k, _)| ["a", "b", "c"].iter().any(|id| k.contains(&format!("/lc/{id}/")))) {
                let is = if path.ends_with("cpuset.cpus") { now[path].replace("0-15", "") } else { now[path].clone() };
                assert_eq!(is, *was, "death {n}: {path}");
            }
            assert!(now["./tasks"].contains("100") && now["./tasks"].contains("102"), "death {n}: {}", now["./tasks"]);
        }
        // Freed RMIDs wait until no line of theirs is left in the cache.
        host.model.machine().advance(10_000);
        s = host.server();
        let resumed = s.resume().unwrap();
        assert_eq!(resumed.adopted.len(), SERVICES.len(), "death {n}: {resumed:?}");
        assert_eq!(host.tree(), if done { new } else { old }, "death {n}");
        no_double_holders(&s);
    }
    s.reset().unwrap();
    let mut after = host.tree();
    after.iter_mut().filter(|(k, _)| k.ends_with("cpuset.cpus")).for_each(|(_, v)| *v = v.replace("0-15", ""));
    assert_eq!(after, before_us);
}

/// What a process that has changed everything does in the end.
#[derive(Clone, Copy, Debug)]
enum WayOut {
    Reset,
    /// One service leaves: an LC service, a BE job.
    Stop(&'static str),
    /// A service is there no more in the next run, which gives its values back.
    Unconfigured(&'static str),
}

/// A way out may end at any write, and at any word to whoever keeps layouts; the layout on disk may be put in force then, and that may end
/// at any write as well: in the end a reset leaves every value where it was, and nothing to give back.
#[test]
fn a_way_out_may_end_at_any_write() {
    let ways = [WayOut::Reset, WayOut::Stop("a"), WayOut::Stop("d"), WayOut::Unconfigured("b"), WayOut::Unconfigured("e")];
    let mut random = Random(0xdead_beef);
    let (mut deaths, mut completed) = (0, 0usize);
    for way in ways.into_iter().cycle().take(3 * ways.len()) {
        for at in 0.. {
            let host = Host::new();
            let before_us = host.tree();
            let mut s = host.server();
            s.apply(&random_plan(&s, &mut random)).unwrap();
            let out = match way {
                WayOut::Reset => {
                    host.faulty.die_at(at);
                    outlived(|| s.reset().map(|_| ()))
                }
                WayOut::Stop(id) => {
                    host.faulty.die_at(at);
                    outlived(|| s.stop(id))
                }
                WayOut::Unconfigured(id) => {
                    drop(s);
                    s = host.server_without(id);
                    host.faulty.die_at(at);
                    outlived(|| s.resume().map(|_| ()))
                }
            };
            host.faulty.arm(BTreeMap::new());
            let whole = out.is_some();
            if let Some(done) = out {
                done.unwrap();
                assert!(at > 3, "{way:?}: only {at} changes");
            }
            drop(s);
            let layout = crate::safe::SafeLayout::load(&host.state.path().join(crate::safe::FILE)).unwrap();
            let in_force = layout.filter(|_| random.below(3) > 0);
            if let Some(layout) = &in_force {
                if random.below(2) == 0 {
                    host.faulty.die_at(random.below(layout.ops.len() as u64 + 1));
                }
                let report = outlived(|| layout.put_in_force(host.root.files.as_ref()));
                host.faulty.arm(BTreeMap::new());
                assert!(report.is_none_or(|r| r.failed.is_empty()), "{way:?}, death {at}");
            }
            host.model.machine().advance(10_000);
            // By hand nothing is adopted; a daemon that is started again has all of them.
            let mut s = if random.below(2) == 0 { host.open() } else { host.server() };
            s.reset().unwrap();
            let mut after = host.tree();
            after.iter_mut().filter(|(k, _)| k.ends_with("cpuset.cpus")).for_each(|(_, v)| *v = v.replace("0-15", ""));
            assert_eq!(after, before_us, "{way:?}, death {at}, layout {in_force:?}");
            assert!(!host.state.path().join(crate::safe::FILE).exists() && s.touched.is_empty());
            drop(s);
            assert_eq!(host.open().touched, Touched::new(), "{way:?}, death {at}");
            if whole {
                completed += 1;
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 100 && completed == 3 * ways.len(), "{deaths} deaths, {completed} whole");
}

/// A process that dies in its very first plan leaves something half written, and nothing that had ever been applied: the next one gives that
/// back before it decides anything.
#[test]
fn what_was_half_written_of_a_first_plan_is_given_back() {
    let mut random = Random(77);
    for at in 0.. {
        let host = Host::new();
        let before_us = host.tree();
        let mut s = host.server();
        let plan = random_plan(&s, &mut random);
        host.faulty.die_at(at);
        let whole = outlived(|| s.apply(&plan).map(|_| ())).is_some();
        host.faulty.arm(BTreeMap::new());
        drop(s);
        if whole {
            assert!(at > 10, "only {at} changes");
            break;
        }
        let mut s = host.server();
        assert_eq!(s.resume().unwrap().adopted, Vec::<ServiceId>::new());
        let mut after = host.tree();
        after.iter_mut().filter(|(k, _)| k.ends_with("cpuset.cpus")).for_each(|(_, v)| *v = v.replace("0-15", ""));
        assert_eq!(after, before_us, "death {at}");
        assert!(s.touched.is_empty() && !host.state.path().join(crate::safe::FILE).exists());
    }
}
