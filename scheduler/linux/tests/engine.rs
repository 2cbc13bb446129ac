//! Real containers on this machine. Needs root, a container engine (scripts/engine.sh) and the images (scripts/images.sh), so
//! these run only when asked for: `cargo test --release -p surefoot-linux --test engine -- --ignored --test-threads 1`

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

#[path = "../../../workloads/loadgen/tests/common/punctual.rs"]
mod punctual;

use punctual::first_punctual;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_linux::bench::find_loadgen;
use surefoot_linux::cgroup::{Knob, Mounts};
use surefoot_linux::engine::{Limits, RunSpec};
use surefoot_linux::{
    BenchCase, BenchNeighbour, Catalogue, Engine, LaunchSpec, LocalBench, LocalConfig, LocalServer, Root, Sampling, Target,
};
use surefoot_server::{Allocation, CpuSet, Kind, Plan, Server, ServerError, Tick, Verdict};

fn workloads() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads")
}

fn config(state: &Path) -> LocalConfig {
    LocalConfig { catalogue: Some(workloads()), ..LocalConfig::new(state) }
}

fn spec(id: &str, service: &str, port: u16) -> LaunchSpec {
    LaunchSpec { port: (port > 0).then_some(port), ..LaunchSpec::new(id, service) }
}

fn quotas(s: &LocalServer, cores: &[(&str, f64)]) -> Plan {
    let all = Allocation::everything(s.platform());
    let allocations = cores.iter().map(|(id, q)| (id.to_string(), Allocation { quota_cores: Some(*q), ..all.clone() })).collect();
    Plan::whole(allocations)
}

/// CPUs and quota of a container, from the kernel and not from the code under test.
fn kernel_says(container: &str) -> BTreeMap<Knob, String> {
    let pid = Engine::find().unwrap().inspect(container).unwrap().pid;
    let root = Root::default();
    let group = Mounts::read(&root).of_pid(&root, pid).unwrap();
    [Knob::Cpus, Knob::Quota, Knob::Weight].into_iter().map(|k| (k, group.get(k).unwrap())).collect()
}

/// Allocations reach real cgroups, a job cannot use more CPU than its quota, and reset gives the CPUs back.
#[test]
#[ignore = "needs root, a container engine and the images; run by the project's test command"]
fn containers_are_controlled() {
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(config(state.path())).unwrap();
    s.launch(&spec("memcached", "memcached", 31211)).unwrap();
    s.launch(&spec("stream", "stream", 0)).unwrap();
    let container = s.container("stream").unwrap().to_string();
    let before = kernel_says(&container);
    s.apply(&quotas(&s, &[("memcached", 0.5), ("stream", 0.2)])).unwrap();
    assert_eq!(kernel_says(&container)[&Knob::Quota], "2000 10000");
    assert_ne!(kernel_says(&container)[&Knob::Weight], before[&Knob::Weight]);
    assert_eq!(kernel_says(&container)[&Knob::Cpus], s.platform().managed.to_string());
    s.observe();
    let mut used = vec![];
    for _ in 0..5 {
        s.advance(Tick { ms: 400 });
        used.push(s.observe().get("stream").unwrap().features.cpu_usage_cores.unwrap());
    }
    // A spinning job under 0.2 core: not above it over two seconds. (A host that stops us between two readings shifts use from one
    // sample to the next.)
    assert!(used.iter().sum::<f64>() / used.len() as f64 <= 0.22 && used.iter().any(|u| *u > 0.05), "{used:?}");
    let seen = s.observe();
    let f = seen.get("memcached").unwrap().features;
    assert!(f.res_mem_mb.unwrap() > 1.0 && f.virt_mem_mb > f.res_mem_mb && f.nb_cores == Some(0.2), "{f:?}");
    assert!(seen.get("memcached").unwrap().window.is_none(), "nobody has sent a latency yet");
    s.reset().unwrap();
    assert_eq!(kernel_says(&container), before);
    drop(s);
    assert!(Engine::find().unwrap().inspect(&container).is_err(), "a launched container outlived its server");
}

/// Image missing, port in use, unknown service, a service that ends at once: one clear error each, and no container stays.
#[test]
#[ignore = "needs root, a container engine and the images; run by the project's test command"]
fn failed_launches_are_clear_and_leave_nothing() {
    let state = tempfile::tempdir().unwrap();
    let catalogue = tempfile::tempdir().unwrap();
    for name in ["missing", "ends"] {
        let dir = catalogue.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        let image = if name == "missing" { "surefoot/missing" } else { "surefoot/stream" };
        let text = format!("name = \"{name}\"\nkind = \"be\"\ndomain = \"test\"\nimage = \"{image}\"\ncommand = [\"stream\", \"nonsense\"]\nlicence = \"Apache-2.0\"\n");
        std::fs::write(dir.join("workload.toml"), text).unwrap();
    }
    std::fs::create_dir(catalogue.path().join("memcached")).unwrap();
    std::fs::copy(workloads().join("memcached/workload.toml"), catalogue.path().join("memcached/workload.toml")).unwrap();
    let mut s = LocalServer::open(LocalConfig { catalogue: Some(catalogue.path().into()), ..LocalConfig::new(state.path()) }).unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = busy.local_addr().unwrap().port();
    let mut says = |l: LaunchSpec| s.launch(&l).unwrap_err().to_string();
    let err = says(spec("a", "missing", 0));
    assert!(err.contains("surefoot/missing") && err.contains("workloads/missing/Dockerfile"), "{err}");
    let err = says(spec("a", "memcached", port));
    assert!(err.contains(&port.to_string()) && err.contains("in use"), "{err}");
    assert!(says(spec("a", "nonsense", 0)).contains("ends, memcached, missing"));
    let err = says(spec("a", "ends", 0));
    assert!(err.contains("nonsense") || err.contains("does not run"), "{err}");
    assert_eq!(Engine::find().unwrap().owned(Some(s.owner())).unwrap(), Vec::<String>::new());
    let err = s.adopt("a", "x", Kind::Be, 1, Target::Container("surefoot-no-such-container".into())).unwrap_err();
    assert!(matches!(err, ServerError::Unavailable { .. }), "{err}");
}

/// The engine's own update call, for hosts where cgroup files cannot be written, does the same.
#[test]
#[ignore = "needs root, a container engine and the images; run by the project's test command"]
fn the_engines_update_call_reaches_the_kernel() {
    let state = tempfile::tempdir().unwrap();
    let mut s = LocalServer::open(config(state.path())).unwrap();
    s.launch(&spec("stream", "stream", 0)).unwrap();
    let container = s.container("stream").unwrap().to_string();
    let engine = Engine::find().unwrap();
    engine.update(&container, "0", 3000, 10_000).unwrap();
    let weight = kernel_says(&container)[&Knob::Weight].clone();
    let told = |weight: String| BTreeMap::from([(Knob::Cpus, "0".into()), (Knob::Quota, "3000 10000".into()), (Knob::Weight, weight)]);
    assert_eq!(kernel_says(&container), told(weight.clone()));
    engine.update_shares(&container, "2").unwrap();
    assert_ne!(kernel_says(&container), told(weight));
    assert_eq!(engine.limits(&container).unwrap(), Limits { cpus: "0".into(), quota_us: 3000, period_us: 10_000, shares: 2 });
}

const CHILD_STATE: &str = "SUREFOOT_TEST_STATE";
const CHILD_ADOPT: &str = "SUREFOOT_TEST_ADOPT";

/// Not a test of its own: the process that `nothing_is_left_after_kill_9` kills.
#[test]
#[ignore = "helper process of nothing_is_left_after_kill_9; does nothing when run alone"]
fn helper_that_is_killed() {
    let (Ok(state), Ok(adopt)) = (std::env::var(CHILD_STATE), std::env::var(CHILD_ADOPT)) else { return };
    let mut s = LocalServer::open(config(Path::new(&state))).unwrap();
    s.launch(&spec("memcached", "memcached", 31212)).unwrap();
    s.adopt("adopted", "stream", Kind::Be, 1, Target::Container(adopt)).unwrap();
    s.apply(&quotas(&s, &[("memcached", 0.5), ("adopted", 0.3)])).unwrap();
    // Not println: the test harness would hold it back.
    std::io::stderr().write_all(b"in force\n").unwrap();
    loop {
        s.advance(Tick { ms: 100 });
    }
}

/// A container that no server of ours started; removed at the end, whatever happens.
struct Foreign(String);

impl Foreign {
    fn run(service: &str) -> Self {
        let catalogue = Catalogue::load(&workloads()).unwrap();
        let entry = catalogue.get(service).unwrap();
        let name = format!("foreign-{}", std::process::id());
        let run = RunSpec {
            name: &name,
            owner: "somebody-else",
            id: service,
            service,
            image: &entry.image,
            command: &entry.command_line(1, 0),
            cpus: &CpuSet::range(0, 1),
            memory_mb: entry.memory_mb,
            env: &[],
            volumes: &[],
            working_dir: None,
        };
        Foreign(Engine::find().unwrap().run(&run).unwrap().id)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        Engine::find().unwrap().remove(&self.0).unwrap();
    }
}

/// After kill -9 the next process removes the containers of the dead one and gives adopted ones their old values back.
#[test]
#[ignore = "needs root, a container engine and the images; run by the project's test command"]
fn nothing_is_left_after_kill_9() {
    let state = tempfile::tempdir().unwrap();
    // Runs for somebody else's account: it must survive. Not through a server of this process: a CPU has one controller.
    let other = Foreign::run("stream");
    let adopted = other.0.clone();
    let before = kernel_says(&adopted);

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "helper_that_is_killed", "--nocapture"])
        .env(CHILD_STATE, state.path())
        .env(CHILD_ADOPT, &adopted)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said: Vec<String> = lines.map_while(Result::ok).take_while(|l| l != "in force").collect();
    assert_eq!(kernel_says(&adopted)[&Knob::Quota], "3000 10000", "{said:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(kernel_says(&adopted)[&Knob::Quota], "3000 10000");

    let mut next = LocalServer::open(config(state.path())).unwrap();
    let report = next.reset().unwrap();
    assert_eq!(
        (report.containers_removed.len(), report.restored, report.gone),
        (1, vec!["adopted".to_string()], vec!["memcached".to_string()])
    );
    assert_eq!(kernel_says(&adopted), before);
    assert!(Engine::find().unwrap().owned(Some(next.owner())).unwrap().is_empty());
}

/// Cases run one after another on one container, whose latency shows what less CPU costs.
#[test]
#[ignore = "needs root, a container engine, the images and surefoot-loadgen; run by the project's test command"]
fn a_campaigns_cases_run_on_one_container() {
    find_loadgen().unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut b = LocalBench::open(config(state.path()), vec![]).unwrap();
    let sampling = Sampling { warmup_ms: 500, interval_ms: 500, samples: 4 };
    let case = |cores: f64, threads: u32, rps: f64| BenchCase {
        service: "memcached".into(),
        threads,
        rps: Some(rps),
        cores,
        ways: 0,
        mba_pct: 100,
        memory: None,
        neighbours: vec![],
        seed: 7,
    };
    // Unmanaged CPUs are few on small machines: a rate that 0.8 core serves with ease.
    // A host that stalls the client is not what is tested: the verdict says so, and the case is measured again.
    let wide = first_punctual("a case on a container is valid", || match b.measure(&case(0.8, 1, 800.0), sampling).unwrap() {
        r if r.verdict == Verdict::Valid => Ok(r),
        r => Err(r.reason),
    });
    let Some(wide) = wide else { return };
    let first = b.server().container("memcached").unwrap().to_string();
    assert_eq!((wide.samples.len(), wide.allocation.quota_cores), (4, Some(0.8)));
    let l = wide.latency.unwrap();
    assert!(l.count > 1000 && l.p50_ms > 0.0 && l.p99_ms >= l.p50_ms, "{l:?}");
    assert!(wide.samples.iter().all(|s| s.latency.is_some() && s.features.cpu_usage_cores.is_some()), "{:?}", wide.samples);
    assert!(wide.warmup_ms <= sampling.warmup_ms && wide.warmup_ms >= 400, "{}", wide.warmup_ms);
    // The cliff: 0.1 core is 1 ms in 10 ms, so waiting for the next period alone costs up to 9 ms.
    let narrow = b.measure(&case(0.1, 1, 8000.0), sampling).unwrap();
    assert_eq!(b.server().container("memcached").unwrap(), first, "restarted for another allocation");
    let slow = narrow.latency.map_or(f64::INFINITY, |l| l.p99_ms);
    assert!(slow > 4.0 && slow > l.p99_ms || narrow.verdict == Verdict::ServerOverloaded, "{narrow:?}");
    // Another number of threads is another container; a BE job beside it is a neighbour in the features.
    let stream = BenchNeighbour { service: "stream".into(), threads: None, cores: 0.2, ways: 0, rps: None };
    let beside = b.measure(&BenchCase { neighbours: vec![stream], ..case(0.5, 2, 500.0) }, sampling).unwrap();
    assert_ne!(b.server().container("memcached").unwrap(), first);
    assert_eq!(beside.samples[0].features.nb_cores, Some(0.2));
    // A relaunch is another container, and the whole warm-up.
    let container = b.server().container("memcached").unwrap().to_string();
    b.relaunch_for_each_case();
    let again = b.measure(&case(0.5, 2, 500.0), sampling).unwrap();
    assert_ne!(b.server().container("memcached").unwrap(), container);
    assert_eq!((again.warmup_ms, again.unsettled), (sampling.warmup_ms, None));
    // What cannot be run is said before anything is started.
    for (bad, want) in [(case(0.55, 1, 1.0), "multiple of 0.1"), (case(99.0, 1, 1.0), "are managed"), (case(0.5, 1, -3.0), "rps = -3")] {
        let err = b.measure(&bad, sampling).unwrap_err().to_string();
        assert!(err.contains(want), "{err}");
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let owner = b.server().owner().to_string();
    drop(b);
    while !Engine::find().unwrap().owned(Some(&owner)).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "containers were left behind");
    }
}
