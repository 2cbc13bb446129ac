//! One refusal stops one service: each value that a kernel may refuse, on files that refuse it.

use super::limits::{Value, FIRST_PAUSE};
use super::*;
use crate::files::Files;
use crate::hand_on;
use crate::root::tests::{scratch, tree};
use crate::testing::{intel, ModelFiles};
use std::sync::{Arc, Mutex};
use surefoot_server::bounding::keep;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::validate::validate;
use surefoot_server::{Change, Cpu, Limit as ChangeLimit};

/// The errno of a write of this text to this path; None: it is done.
type Rule = Box<dyn Fn(&Path, &str) -> Option<i32> + Send + Sync>;

/// Files that refuse by a rule.
struct Refusing {
    inner: ModelFiles,
    rule: Mutex<Rule>,
}

impl std::fmt::Debug for Refusing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "refusing {:?}", self.inner)
    }
}

impl Refusing {
    fn by(&self, rule: impl Fn(&Path, &str) -> Option<i32> + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    fn ask(&self, path: &Path, text: &str) -> io::Result<()> {
        (self.rule.lock().unwrap())(path, text).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl Files for Refusing {
    hand_on!(inner: read, remove_dir, rename, list, is_dir, is_file, writable);

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.ask(path, text)?;
        self.inner.write(path, text)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.ask(path, "mkdir")?;
        self.inner.make_dir(path)
    }
}

/// A v2 host with eight CPUs, resctrl's model, two LC services ("bad", "good") and a BE job.
struct Host {
    _dir: tempfile::TempDir,
    state: tempfile::TempDir,
    root: Root,
    files: Arc<Refusing>,
}

const IDS: [&str; 3] = ["bad", "good", "job"];

impl Host {
    fn new() -> Self {
        let mut files: Vec<(String, String)> = vec![
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu io memory\n".into()),
            ("/sys/fs/cgroup/lc/cpuset.cpus.effective".into(), "0-7\n".into()),
            ("/sys/fs/cgroup/lc/cpu.max".into(), "max 100000\n".into()),
            ("/sys/devices/system/cpu/online".into(), "0-7\n".into()),
        ];
        for cpu in 0..8 {
            let cache = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3");
            files.push((format!("{cache}/level"), "3\n".into()));
            files.push((format!("{cache}/id"), format!("{}\n", cpu / 4)));
        }
        for (n, id) in IDS.iter().enumerate() {
            for (file, text) in [
                ("cpuset.cpus", "\n".to_string()),
                ("cpu.max", "max 100000\n".into()),
                ("cpu.weight", "100\n".into()),
                ("memory.max", "max\n".into()),
                ("cgroup.procs", format!("{}\n", 100 + n)),
                ("cgroup.threads", format!("{}\n", 100 + n)),
            ] {
                files.push((format!("/sys/fs/cgroup/lc/{id}/{file}"), text));
            }
        }
        let (dir, root) = tree(&files);
        let (model, _) = ModelFiles::mount(&root, intel(2, 11), "");
        (0..IDS.len() as u32).for_each(|n| model.machine().spawn(100 + n, 100 + n, 1, 0));
        let files = Arc::new(Refusing { inner: model, rule: Mutex::new(Box::new(|_, _| None)) });
        let root = Root::with(root.path("/"), files.clone());
        Host { _dir: dir, state: scratch(), root, files }
    }

    fn server(&self) -> LocalServer {
        let config = LocalConfig {
            root: self.root.clone(),
            managed: Some(CpuSet::range(0, 8)),
            look_every: Duration::ZERO,
            ..LocalConfig::new(self.state.path())
        };
        let mut s = LocalServer::open(config).unwrap();
        for id in IDS {
            let kind = if id == "job" { Kind::Be } else { Kind::Lc { qos_target_ms: 1.0 } };
            s.adopt(id, id, kind, 1, Target::Cgroup(format!("/lc/{id}").into())).unwrap();
        }
        s
    }

    fn put(&self, file: &str, text: &str) {
        std::fs::write(self.root.path(format!("/sys/fs/cgroup/lc/{file}")), text).unwrap();
    }

    fn says(&self, file: &str) -> String {
        self.root.read(format!("/sys/fs/cgroup/lc/{file}")).unwrap()
    }
}

/// Two CPUs and three ways for each.
fn plan(s: &LocalServer) -> Plan {
    let holding = |id: &&str| Holding { members: vec![id.to_string()], cores: 2, ways: 3, mba_pct: 100 };
    let holdings: Vec<Holding> = IDS.iter().map(holding).collect();
    Plan::whole(pack(s.platform(), &BTreeMap::new(), &holdings, &[]).unwrap())
}

/// As a daemon does it: the plan is made anew around what is seen at each tick. How many ticks until it is in force, and what was said.
fn ticks(s: &mut LocalServer, wanted: &Plan) -> (usize, Vec<String>) {
    let mut said = vec![];
    for n in 1..=10 {
        let seen = s.observe();
        let around = keep(s.platform(), &seen, wanted.clone()).plan;
        match s.apply(&around) {
            Ok(_) => return (n, said),
            Err(e) => said.push(e.to_string()),
        }
    }
    panic!("not in ten ticks: {said:?}");
}

/// What is in force breaks no rule, and whatever two services have both call shared.
fn sound(s: &mut LocalServer) -> BTreeMap<ServiceId, Allocation> {
    let seen = s.observe();
    let all: BTreeMap<ServiceId, Allocation> =
        seen.services.iter().filter(|v| v.placed).map(|v| (v.id.clone(), v.allocation.clone())).collect();
    validate(s.platform(), &all).unwrap();
    assert_eq!(all.len(), IDS.len(), "all are placed");
    all
}

fn kept(s: &LocalServer) -> Vec<(String, &'static str)> {
    s.limits().into_iter().filter(|l| l.kept).map(|l| (l.service, l.value.name())).collect()
}

/// Time passes until what was refused is tried again.
fn wait(s: &mut LocalServer) {
    s.limits.pass();
}

/// A value that the kernel refuses for no reason that the tree shows stays as it is, whichever it is: the others are placed at the next tick.
/// It is tried again after a pause that doubles, and is a bound no more once it is taken.
#[test]
fn whatever_is_refused_stops_one_service() {
    for (file, value, errno) in [
        ("bad/cpuset.cpus", "CPUs", libc::EBUSY),
        ("bad/cpuset.cpus", "CPUs", libc::EACCES),
        ("bad/cpuset.cpus", "CPUs", libc::ENOSPC),
        ("bad/cpu.max", "CPU quota", libc::EINVAL),
        ("bad/memory.max", "memory limit", libc::EBUSY),
        ("bad/cpu.max", "CPU quota", libc::EROFS),
    ] {
        let host = Host::new();
        let mut s = host.server();
        let mut wanted = plan(&s);
        wanted.adjust("bad", |bad| (bad.quota_cores, bad.mem_limit_bytes) = (Some(1.5), Some(1 << 30)));
        let at = host.root.path(format!("/sys/fs/cgroup/lc/{file}"));
        host.files.by(move |path, _| (path == at).then_some(errno));
        let (n, said) = ticks(&mut s, &wanted);
        assert!(n == 2 && said[0].contains(file), "{file} {errno}: {n} ticks, {said:?}");
        assert_eq!(kept(&s), [("bad".to_string(), value)]);
        let held = sound(&mut s);
        assert_eq!(held["good"].cpus.len(), 2);
        assert_eq!(CpuSet::parse(&host.says("good/cpuset.cpus")).unwrap(), held["good"].cpus);
        if value == "CPUs" {
            // It runs on all of them still.
            assert_eq!((held["bad"].cpus.len(), held["good"].shared_cpus), (8, held["good"].cpus));
        }
        // Refused again: twice the pause, and the others keep what they have.
        wait(&mut s);
        let (n, _) = ticks(&mut s, &wanted);
        assert_eq!((n, s.limits.pause("bad"), sound(&mut s)), (2, Some(2 * FIRST_PAUSE), held));
        // Taken.
        host.files.by(|_, _| None);
        wait(&mut s);
        assert_eq!(ticks(&mut s, &wanted).0, 1);
        assert_eq!((kept(&s), sound(&mut s)["bad"].cpus), (vec![], wanted.changes["bad"].whole().unwrap().cpus));
        assert_eq!(s.refusals().map(|(id, v, n)| (id.to_string(), v.name(), n)).collect::<Vec<_>>(), [("bad".to_string(), value, 2)]);
        s.reset().unwrap();
    }
}

/// A class whose masks, or a service whose threads, resctrl refuses: its ways are those that it has, the others get theirs and call shared
/// what it reaches of them.
#[test]
fn refused_ways_stop_one_service() {
    for what in ["schemata", "tasks", "mkdir"] {
        let host = Host::new();
        let mut s = host.server();
        let wanted = plan(&s);
        host.files.by(move |path, text| {
            let ours = path.to_string_lossy().contains("surefoot.bad");
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let hit = if what == "mkdir" { text == "mkdir" && !path.to_string_lossy().contains("mon_groups") } else { name == what };
            (ours && hit).then_some(if what == "tasks" { libc::EPERM } else { libc::EINVAL })
        });
        let (n, said) = ticks(&mut s, &wanted);
        assert!(n == 2 && said[0].contains("surefoot.bad"), "{what}: {said:?}");
        assert_eq!(kept(&s), [("bad".to_string(), "ways")], "{what}");
        let held = sound(&mut s);
        let good = &held["good"];
        assert_eq!(
            (held["bad"].ways.as_slice(), good.ways[0].count_ones(), &good.shared_ways),
            (&[0x7ff, 0x7ff][..], 3, &good.ways),
            "{what}"
        );
        assert!(host.files.inner.is_dir(&host.root.path("/sys/fs/resctrl/surefoot.good")), "{what}");
        host.files.by(|_, _| None);
        wait(&mut s);
        ticks(&mut s, &wanted);
        assert_eq!((kept(&s), sound(&mut s)["good"].shared_ways.clone()), (vec![], vec![0, 0]), "{what}");
        s.reset().unwrap();
    }
}

/// A plan that gives one service this limit.
fn limit(id: &str, bytes: u64) -> Plan {
    let change = Change { mem_limit: Some(ChangeLimit::Bytes(bytes)), ..Change::default() };
    Plan { changes: BTreeMap::from([(id.into(), change)]), ..Plan::default() }
}

/// A plan that gives `bad` the CPUs that it has, and this many cores of them.
fn cores(wanted: &Plan, cores: f64) -> Plan {
    let cpu = Cpu { quota_cores: Some(cores), ..wanted.changes["bad"].cpu.clone().unwrap() };
    Plan { changes: BTreeMap::from([("bad".into(), Change { cpu: Some(cpu), ..Change::default() })]), ..Plan::default() }
}

/// Refuse `bad`'s memory limit.
fn refuse_memory(host: &Host) {
    host.files.by(|path, _| path.ends_with("bad/memory.max").then_some(libc::EBUSY));
}

/// Where the kernel refuses a memory limit, the one in the file is another program's: it is not told as the service's own, and may change.
///
/// A limit of ours that a refusal leaves is its own still.
#[test]
fn a_refused_limit_leaves_that_of_somebody_else_to_them() {
    let host = Host::new();
    host.put("bad/memory.max", "2147483648\n");
    let mut s = host.server();
    let wanted = plan(&s);
    s.apply(&wanted).unwrap();
    refuse_memory(&host);
    s.apply(&limit("bad", 1 << 30)).unwrap_err();
    assert_eq!((kept(&s), sound(&mut s)["bad"].mem_limit_bytes), (vec![("bad".to_string(), "memory limit")], None));
    s.apply(&cores(&wanted, 1.5)).unwrap();
    wait(&mut s);
    s.apply(&cores(&wanted, 1.0)).unwrap();
    host.files.by(|_, _| None);
    host.put("bad/memory.max", "3221225472\n");
    assert_eq!((sound(&mut s)["bad"].mem_limit_bytes, host.says("bad/memory.max").as_str()), (None, "3221225472"));
    // One of ours.
    s.apply(&limit("bad", 4 << 30)).unwrap();
    refuse_memory(&host);
    s.apply(&limit("bad", 1 << 30)).unwrap_err();
    s.apply(&cores(&wanted, 1.5)).unwrap();
    assert_eq!((sound(&mut s)["bad"].mem_limit_bytes, host.says("bad/memory.max")), (Some(4 << 30), (4u64 << 30).to_string()));
    // It is kept against others all the same.
    host.files.by(|_, _| None);
    host.put("bad/memory.max", "3221225472\n");
    s.observe();
    assert_eq!(host.says("bad/memory.max"), (4u64 << 30).to_string());
}

/// A plan of cores does not try a refused memory limit: the pause after the next refusal is twice as long all the same.
#[test]
fn a_plan_of_cores_does_not_end_the_pause_of_a_limit() {
    let host = Host::new();
    let mut s = host.server();
    let wanted = plan(&s);
    s.apply(&wanted).unwrap();
    refuse_memory(&host);
    s.apply(&limit("bad", 1 << 30)).unwrap_err();
    for quota in [1.5, 1.0] {
        wait(&mut s);
        s.apply(&cores(&wanted, quota)).unwrap();
        assert_eq!((kept(&s), s.limits.pause("bad")), (vec![("bad".to_string(), "memory limit")], Some(FIRST_PAUSE)));
    }
    s.apply(&limit("bad", 1 << 30)).unwrap_err();
    assert_eq!(s.limits.pause("bad"), Some(2 * FIRST_PAUSE));
    host.files.by(|_, _| None);
    wait(&mut s);
    s.apply(&limit("bad", 1 << 30)).unwrap();
    assert_eq!((kept(&s), sound(&mut s)["bad"].mem_limit_bytes), (vec![], Some(1 << 30)));
}

/// Where a plan raises one memory limit and lowers another, it raises first, whatever their names: also where the lower one is below use, and
/// so reached on the side. Undone, the lowered one is back first.
#[test]
fn limits_are_raised_before_others_are_lowered() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&plan(&s)).unwrap();
    let both = |bad: u64, good: u64| {
        let changes = limit("bad", bad << 20).changes.into_iter().chain(limit("good", good << 20).changes);
        Plan { changes: changes.collect(), ..Plan::default() }
    };
    s.apply(&both(400, 100)).unwrap();
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let refused = Arc::new(Mutex::new(false));
    let (log, refuses) = (written.clone(), refused.clone());
    host.files.by(move |path, text| {
        let id = path.ends_with("bad/memory.max").then_some("bad").or(path.ends_with("good/memory.max").then_some("good"))?;
        log.lock().unwrap().push(format!("{id} {}", text.parse::<u64>().unwrap() >> 20));
        (id == "bad" && text == (200 << 20).to_string() && *refuses.lock().unwrap()).then_some(libc::EIO)
    });
    let writes = || std::mem::take(&mut *written.lock().unwrap());
    *refused.lock().unwrap() = true;
    s.apply(&both(200, 300)).unwrap_err();
    assert_eq!(writes(), ["good 300", "bad 200", "good 100"]);
    *refused.lock().unwrap() = false;
    s.apply(&both(200, 300)).unwrap();
    assert_eq!(writes(), ["good 300", "bad 200"]);
    // 250 MiB are in use: 150 are not to be had at once, and the raise does not wait for them.
    host.put("bad/memory.high", "max\n");
    host.put("bad/memory.current", "262144000\n");
    s.apply(&both(150, 350)).unwrap();
    assert_eq!((writes(), host.says("bad/memory.max")), (vec!["good 350".to_string()], (200 << 20).to_string()));
    host.put("bad/memory.current", "1048576\n");
    let end = Instant::now() + Duration::from_secs(30);
    while host.says("bad/memory.max") != (150 << 20).to_string() {
        assert!(Instant::now() < end, "it is within the limit");
        s.observe();
    }
}

/// A limit below what the pages need is set to that, and said: no swap here, so nothing of them may go. It follows the pages, down to what the
/// plan wants and up again; what the plan wanted is what the service is told to have.
#[test]
fn a_limit_below_the_floor_is_raised_and_told() {
    let host = Host::new();
    let mut s = host.server();
    s.apply(&plan(&s)).unwrap();
    std::fs::write(host.root.path("/proc/meminfo"), "MemTotal: 4194304 kB\nSwapFree: 0 kB\n").unwrap();
    host.put("bad/memory.swap.current", "0\n");
    let pages = |mib: u64, in_use: u64| {
        host.put("bad/memory.stat", &format!("kernel {}\nactive_anon {}\ninactive_anon 0\n", 2 << 20, mib << 20));
        host.put("bad/memory.current", &format!("{}\n", in_use << 20));
    };
    let limit_mib = || host.says("bad/memory.max").parse::<u64>().unwrap() >> 20;
    let told = |s: &LocalServer| s.limits().iter().filter(|l| l.cause.contains("its pages need") && !l.kept).count();
    pages(200, 205);
    s.apply(&limit("bad", 100 << 20)).unwrap();
    // 202 and 5 %.
    assert_eq!((limit_mib(), told(&s), sound(&mut s)["bad"].mem_limit_bytes), (212, 1, Some(100 << 20)));
    assert!(s.bounds()["bad"].why.iter().any(|why| why.contains("its pages need")), "{:?}", s.bounds());
    // A little less is no reason to move.
    pages(195, 200);
    s.observe();
    assert_eq!(limit_mib(), 212);
    pages(50, 60);
    s.observe();
    assert_eq!((limit_mib(), told(&s)), (100, 0));
    pages(300, 99);
    s.observe();
    assert_eq!((limit_mib(), told(&s)), (317, 1));
    assert!(s.foreign_changes().is_empty(), "{:?}", s.foreign_changes());
}

/// A limit that this host has no file for is none that can be set: the others have theirs.
#[test]
fn a_value_without_a_file_stops_one_service() {
    let host = Host::new();
    let mut s = host.server();
    let mut wanted = plan(&s);
    wanted.adjust("bad", |a| a.zswap_max_bytes = Some(1 << 20));
    let (n, said) = ticks(&mut s, &wanted);
    assert!(n == 2 && said[0].contains("zswap limit"), "{said:?}");
    assert_eq!((kept(&s), sound(&mut s)["bad"].zswap_max_bytes), (vec![("bad".to_string(), "zswap limit")], None));
}

/// v2 takes CPUs that the group above has not, and does not let them come into force: that is found in the tree, the service gets those that
/// it may use, and the bound ends with its cause. A plan that breaks a bound is refused whole, with the cause, before anything is written.
#[test]
fn what_the_tree_bounds_is_found_and_ends_with_its_cause() {
    let host = Host::new();
    let mut s = host.server();
    let wanted = plan(&s);
    assert_eq!(ticks(&mut s, &wanted).0, 1);
    host.put("cpuset.cpus.effective", "4-7\n");
    host.put("cpu.max", "150000 100000\n");
    s.look_at_limits_of("bad");
    assert_eq!(ticks(&mut s, &wanted).0, 1);
    let held = sound(&mut s);
    assert!(held["bad"].cpus.is_subset(&CpuSet::range(4, 8)) && held["bad"].cpus.len() == 2, "{held:?}");
    let why = s.limits().iter().map(|l| format!("{}: {}. {}", l.value.name(), l.cause, l.remedy)).collect::<Vec<_>>().join("\n");
    assert!(why.contains("lc, has only CPUs 4-7") && why.contains("lc, has a quota of 1.5 cores") && why.contains("echo"), "{why}");
    let before = host.says("good/cpuset.cpus");
    let broken = Allocation { quota_cores: Some(2.0), ..held["bad"].clone() };
    let e = s.apply(&Plan::whole(BTreeMap::from([("bad".into(), broken)]))).unwrap_err().to_string();
    assert!(e.contains("1.5 cores") && e.contains("Nothing was changed"), "{e}");
    assert_eq!(host.says("good/cpuset.cpus"), before);
    host.put("cpuset.cpus.effective", "0-7\n");
    host.put("cpu.max", "max 100000\n");
    s.observe();
    assert!(s.limits().iter().all(|l| l.service != "bad"), "{:?}", s.limits());
    assert_eq!(ticks(&mut s, &wanted).0, 1);
    assert_eq!(sound(&mut s)["bad"].cpus, wanted.changes["bad"].whole().unwrap().cpus);
}

/// A group that has gone, or an actuator that is away, is no bound: nothing is learnt from it.
#[test]
fn what_is_no_refusal_is_no_bound() {
    for errno in [libc::ENODEV, libc::ENOENT, libc::ECONNABORTED, libc::EIO] {
        let host = Host::new();
        let mut s = host.server();
        let wanted = plan(&s);
        host.files.by(move |path, _| path.ends_with("bad/cpuset.cpus").then_some(errno));
        s.apply(&wanted).unwrap_err();
        assert!(s.limits().is_empty() && s.bounds().is_empty(), "{errno}");
        host.files.by(|_, _| None);
        s.apply(&wanted).unwrap();
    }
}

/// A former value that the kernel does not take back holds up the others for some seconds, and not for ever.
#[test]
fn an_undo_that_stays_refused_ends() {
    let host = Host::new();
    let mut s = host.server();
    let wanted = plan(&s);
    s.apply(&wanted).unwrap();
    // The first moves, the second is refused to grow, and the first may not go back.
    let mut other = wanted.clone();
    let cpus = |a: &mut Allocation, c: &str| (a.cpus, a.shared_cpus) = (CpuSet::parse(c).unwrap(), CpuSet::empty());
    let more = format!("{},7", wanted.changes["good"].whole().unwrap().cpus);
    other.adjust("bad", |a| cpus(a, "6"));
    other.adjust("good", |a| cpus(a, &more));
    host.files.by(|path, text| {
        let refused = path.ends_with("good/cpuset.cpus") || path.ends_with("bad/cpuset.cpus") && text != "6";
        refused.then_some(libc::EINVAL)
    });
    assert!(matches!(s.apply(&other).unwrap_err(), ServerError::Unsettled { .. }));
    s.observe();
    assert!(matches!(s.apply(&wanted).unwrap_err(), ServerError::Unsettled { .. }), "it is tried again first");
    host.files.by(|path, text| (path.ends_with("bad/cpuset.cpus") && text != "6").then_some(libc::EINVAL));
    s.unsettled_since = Instant::now().checked_sub(FIRST_PAUSE);
    s.observe();
    assert_eq!(kept(&s), [("bad".to_string(), "CPUs")]);
    let mut rest = wanted.clone();
    rest.changes.remove("bad");
    let given_up = wanted.changes["bad"].whole().unwrap().cpus.to_string();
    rest.adjust("good", |a| cpus(a, &given_up));
    ticks(&mut s, &rest);
    let held = sound(&mut s);
    assert_eq!((held["bad"].cpus.to_string(), held["good"].cpus.to_string()), ("6".into(), given_up));
    assert!(s.limits.keeps("bad", Value::Knob(Knob::Cpus)));
}
