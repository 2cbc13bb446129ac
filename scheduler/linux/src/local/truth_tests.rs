//! The two sides of [`Server`] are given one truth, and what they say of it is compared.
//!
//! The plant makes the truth: every request with its response time, CPU time, traffic, memory and frequency of each 100 ms. The virtual
//! server says what it sees of it. This machine's side finds the same in its counters, files and datagrams.

use super::*;
use crate::feed::decode;
use crate::root::tests::{put, tree};
use crate::testing::{intel, ModelFiles};
use base64::Engine as _;
use hdrhistogram::serialization::{Serializer as _, V2Serializer};
use hdrhistogram::Histogram;
use serde_json::{json, Value};
use std::fs;
use std::sync::Arc;
use surefoot_loadgen::verdict::MOST_LOST;
use surefoot_server::window::{LEAST_COMPLETED, LONGEST_WINDOW_MS};
use surefoot_server::{Latency, MemoryView, Verdict};
use surefoot_vserver::{MemoryUse, Paged, PlatformProfile, Profiles, VirtualServer};

const TICK_MS: u64 = 100;
const CPUS: u32 = 8;
/// Services, their process and profile: a busy one, one with few requests, and a job that has less memory than it touches.
const SERVICES: [(&str, u32, &str); 3] = [("busy", 42, "ads"), ("job", 52, "bc"), ("rare", 62, "xapian")];
/// The job touches 24 GB.
const JOB_LIMIT_BYTES: u64 = 20 << 30;
const JOB_POOL_BYTES: u64 = 4 << 30;
/// The last CPU of each has no driver of its clock: what is shown of it is nominal.
const UNMEASURED: [u32; 3] = [1, 4, 7];
/// Local traffic of the stand-in's tasks, MB in a millisecond.
const MB_PER_MS: f64 = 1.75;
const THREADS: u32 = 2;
/// Too few for a p99 even in the longest window.
const RARE_RPS: f64 = 4.0;

/// What both sides cannot say alike, and why.
const UNEQUAL: [(&str, &str); 8] = [
    ("ipc", "this host has no counters"),
    ("llc_misses_per_s", "this host has no counters"),
    ("instr_per_s", "this host has no counters"),
    ("window.p99_low_ms", "the plant's percentiles come of laws, which have no sampling error"),
    ("window.p99_high_ms", "the plant's percentiles come of laws, which have no sampling error"),
    ("interval.p99_low_ms", "the plant's percentiles come of laws, which have no sampling error"),
    ("memory.working_set_bytes", "a look takes half a minute, and this host has nothing to look with"),
    ("feed.unknown", "the plant's services are heard from their first moment"),
];

/// How far two equal figures may be apart, as a share and as such: response times have three digits in a datagram, traffic has the steps of
/// the stand-in, memory those of pages, CPU time microseconds.
fn tolerance(field: &str) -> (f64, f64) {
    match field.rsplit('.').next().unwrap() {
        "mean_ms" | "p50_ms" | "p95_ms" | "p99_ms" => (2e-3, 0.0),
        // A step at each end, of two services; MB of 2^20 bytes would be ten times as far off.
        "mbl_mbps" | "nb_mbl_mbps" => (0.0, 40.0),
        "virt_mem_mb" | "res_mem_mb" => (1e-4, 0.0),
        "cpu_usage_cores" | "stall_frac" => (0.0, 1e-4),
        // Whole pages in a tenth of a second.
        "pool_swap_ins_per_s" | "disk_swap_ins_per_s" | "refaults_per_s" => (0.0, 10.1),
        _ => (1e-9, 0.0),
    }
}

/// Every field by its name: one that is added has to be named here.
fn fields(v: &ServiceView) -> BTreeMap<String, Value> {
    let ServiceView { id, service, kind, threads, allocation, placed, features, feed, interval, window, instr_per_s, memory } = v;
    let mut all = BTreeMap::from([
        ("id".into(), json!(id)),
        ("service".into(), json!(service)),
        ("kind".into(), json!(kind)),
        ("threads".into(), json!(threads)),
        ("allocation".into(), json!(allocation)),
        ("placed".into(), json!(placed)),
        ("feed".into(), json!(feed)),
        ("instr_per_s".into(), json!(instr_per_s)),
    ]);
    all.extend(surefoot_server::FEATURE_NAMES.map(|name| (name.into(), json!(features.get(name)))));
    let MemoryView {
        in_use_bytes,
        pool_bytes,
        stored_bytes,
        swapped_bytes,
        working_set_bytes,
        pool_swap_ins_per_s,
        disk_swap_ins_per_s,
        refaults_per_s,
        stall_frac,
    } = memory;
    let named = [
        ("in_use_bytes", json!(in_use_bytes)),
        ("pool_bytes", json!(pool_bytes)),
        ("stored_bytes", json!(stored_bytes)),
        ("swapped_bytes", json!(swapped_bytes)),
        ("working_set_bytes", json!(working_set_bytes)),
        ("pool_swap_ins_per_s", json!(pool_swap_ins_per_s)),
        ("disk_swap_ins_per_s", json!(disk_swap_ins_per_s)),
        ("refaults_per_s", json!(refaults_per_s)),
        ("stall_frac", json!(stall_frac)),
    ];
    all.extend(named.map(|(name, value)| (format!("memory.{name}"), value)));
    for (of, l) in [("interval", interval), ("window", window)] {
        all.insert(of.into(), json!(l.is_some()));
        let Some(l) = l else { continue };
        let Latency { count, mean_ms, p50_ms, p95_ms, p99_ms, p99_low_ms, p99_high_ms, achieved_rps, errors, verdict } = l;
        let named = [
            ("count", json!(count)),
            ("mean_ms", json!(mean_ms)),
            ("p50_ms", json!(p50_ms)),
            ("p95_ms", json!(p95_ms)),
            ("p99_ms", json!(p99_ms)),
            ("p99_low_ms", json!(p99_low_ms)),
            ("p99_high_ms", json!(p99_high_ms)),
            ("achieved_rps", json!(achieved_rps)),
            ("errors", json!(errors)),
            ("verdict", json!(verdict)),
        ];
        all.extend(named.map(|(name, value)| (format!("{of}.{name}"), value)));
    }
    all
}

fn same(field: &str, a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => {
            let (share, most) = tolerance(field);
            (a - b).abs() <= most + share * a.abs().max(b.abs())
        }
        _ => a == b,
    }
}

/// A server of eight CPUs and two L3 domains of eleven ways, as the host below.
fn virtual_server() -> VirtualServer {
    let profiles = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vserver/profiles");
    let text = fs::read_to_string(profiles.join("platforms/server-1.toml")).unwrap();
    let with = [
        ("physical_cores", "8"),
        ("smt", "1"),
        ("turbo_ghz", "[3.6, 3.6, 3.4, 3.3, 3.2, 3.1, 3.0, 2.9]"),
        ("domains", "2"),
        ("ways", "11"),
        ("mb_per_way", "2.0"),
        // A fast disk: the job is not to spend all of its time there.
        ("disk_us", "289.0"),
        ("disk_iops", "300000"),
    ];
    let line = |l: &str| {
        let key = l.split('=').next().unwrap().trim();
        with.iter().find(|(k, _)| *k == key).map_or(l.to_string(), |(k, v)| format!("{k} = {v}"))
    };
    let text: Vec<String> = text.lines().map(line).collect();
    let platform = PlatformProfile::parse(Path::new("eight.toml"), &text.join("\n")).unwrap();
    // What the truth itself lacks, neither side can tell.
    let mut v = VirtualServer::new(Arc::new(platform.without_faults()), Some(7));
    let all = Profiles::load(&[profiles]).unwrap();
    for (id, _, profile) in SERVICES {
        let rps = if id == "rare" { RARE_RPS } else { 120.0 };
        v.add(0, id, all.service(profile).unwrap().clone(), rps, THREADS).unwrap();
    }
    v
}

/// This machine's side: files, counters and a feed that say what the plant did.
struct Machine {
    _dir: tempfile::TempDir,
    _state: tempfile::TempDir,
    root: Root,
    model: ModelFiles,
    server: LocalServer,
    begun: Instant,
    /// CPU time of each, and what its memory has counted: pages from the pool and from the disk, and waits.
    usage_us: BTreeMap<&'static str, f64>,
    paged: BTreeMap<&'static str, [f64; 3]>,
    /// By which the counters of traffic moved, and by how much they had to, MB.
    moved_mb: BTreeMap<&'static str, (f64, f64)>,
}

impl Machine {
    fn new(v: &VirtualServer) -> Self {
        let (dir, root) = tree(&[]);
        let put = |path: &str, text: &str| put(&root, path, text);
        put("/proc/self/mountinfo", "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
        put("/sys/fs/cgroup/lc/cpuset.cpus.effective", "0-7\n");
        put("/sys/fs/cgroup/lc/cpu.max", "max 100000\n");
        put("/sys/devices/system/cpu/online", "0-7\n");
        put("/sys/devices/system/cpu/possible", "0-7\n");
        for cpu in 0..CPUS {
            put(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/level"), "3\n");
            put(&format!("/sys/devices/system/cpu/cpu{cpu}/cache/index3/id"), &format!("{}\n", cpu / 4));
            if !UNMEASURED.contains(&cpu) {
                put(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), "performance\n");
            }
        }
        for (id, pid, _) in SERVICES {
            for (file, text) in [
                ("cpuset.cpus", "0-7\n".to_string()),
                ("cgroup.threads", format!("{pid}\n")),
                ("cgroup.procs", format!("{pid}\n")),
                ("cpu.max", "max 100000\n".into()),
                ("cpu.weight", "100\n".into()),
                ("cpu.stat", "usage_usec 0\n".into()),
                ("memory.max", "max\n".into()),
                ("memory.zswap.max", "max\n".into()),
            ] {
                put(&format!("/sys/fs/cgroup/lc/{id}/{file}"), &text);
            }
            memory_files(&root, id, MemoryUse::default(), [0.0; 3]);
        }
        let (model, root) = ModelFiles::mount(&root, intel(2, 11), "");
        SERVICES.iter().for_each(|(_, pid, _)| model.machine().spawn(*pid, *pid, 1, 0));
        let state = tempfile::tempdir().unwrap();
        let config = LocalConfig {
            root: root.clone(),
            managed: Some(CpuSet::range(0, CPUS)),
            look_every: Duration::ZERO,
            ..LocalConfig::new(state.path())
        };
        let mut server = LocalServer::open(config).unwrap();
        server.no_pmu = Some("a test's host".into());
        for s in &v.clone().observe().services {
            server.adopt(&s.id, &s.service, s.kind, s.threads, Target::Cgroup(format!("/lc/{}", s.id).into())).unwrap();
        }
        let (usage_us, paged, moved_mb) = Default::default();
        Machine { _dir: dir, _state: state, root, model, server, begun: Instant::now(), usage_us, paged, moved_mb }
    }

    /// The plant's last 100 ms, as the kernel and the senders tell of it. `silent`: whose feed says nothing, `late`: whose client is.
    fn live_through(&mut self, v: &VirtualServer, silent: &[&str], late: &[&str]) {
        let tick_s = TICK_MS as f64 * 1e-3;
        let mut mhz = BTreeMap::new();
        for (id, pid, _) in SERVICES {
            let plant = v.plant();
            let i = plant.position(id).unwrap();
            let (s, t) = (plant.samples()[i], &plant.tenants()[i]);
            let usage = self.usage_us.entry(id).or_default();
            *usage += s.cpu_usage_cores * tick_s * 1e6;
            put(&self.root, &format!("/sys/fs/cgroup/lc/{id}/cpu.stat"), &format!("usage_usec {usage:.0}\nuser_usec 0\n"));
            let paged = self.paged.entry(id).or_default();
            let m = s.memory.paged.unwrap();
            let more = [m.pool_ins_per_s, m.disk_ins_per_s, m.stall_frac * 1e6];
            paged.iter_mut().zip(more).for_each(|(sum, per_s)| *sum += per_s * tick_s);
            memory_files(&self.root, id, s.memory, *paged);
            let pages = |mb: f64| (mb / crate::procfs::page_mb()).round() as u64;
            fs::create_dir_all(self.root.path(format!("/proc/{pid}"))).unwrap();
            let statm = format!("{} {} 0 0 0 0 0\n", pages(s.virt_mem_mb), pages(s.res_mem_mb));
            fs::write(self.root.path(format!("/proc/{pid}/statm")), statm).unwrap();
            let (moved, due) = self.moved_mb.entry(id).or_default();
            *due += s.mbl_mbps * tick_s;
            let ms = ((*due - *moved) / MB_PER_MS).max(0.0).round() as u64;
            *moved += ms as f64 * MB_PER_MS;
            self.model.machine().ran(pid, t.cpus.iter().next().unwrap(), ms);
            mhz.extend(t.cpus.iter().map(|cpu| (cpu, s.core_freq_mhz)));
            if !t.profile.is_be() && !silent.contains(&id) {
                let requests_ms = plant.requests_ms(i).expect("requests are simulated one by one");
                let lost = (s.lost_frac * t.rate_rps * tick_s).round() as u64;
                let verdict = if late.contains(&id) {
                    Verdict::ClientLimited
                } else if s.achieved_rps < (1.0 - MOST_LOST) * t.rate_rps {
                    Verdict::ServerOverloaded
                } else {
                    Verdict::Valid
                };
                self.hear(id, v.now_ms(), requests_ms, lost, verdict);
            }
        }
        let shown = |cpu: u32| mhz.get(&cpu).filter(|_| !UNMEASURED.contains(&cpu)).copied().unwrap_or(2000.0);
        let info: String = (0..CPUS).map(|cpu| format!("processor\t: {cpu}\ncpu MHz\t\t: {}\nflags\t\t: fpu\n\n", shown(cpu))).collect();
        fs::write(self.root.path("/proc/cpuinfo"), info).unwrap();
    }

    fn hear(&mut self, id: &str, at_ms: u64, requests_ms: &[f64], errors: u64, verdict: Verdict) {
        let mut h = Histogram::<u64>::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
        requests_ms.iter().for_each(|ms| h.record((ms * 1e6).round() as u64).unwrap());
        let mut raw = vec![];
        V2Serializer::new().serialize(&h, &mut raw).unwrap();
        let text = json!({
            "service": id, "window_ms": TICK_MS, "count": requests_ms.len(), "errors": errors, "unit": "ns",
            "histogram": base64::engine::general_purpose::STANDARD.encode(raw), "verdict": verdict,
        });
        let from = feed::Speaker { socket: 0, pid: 1, started_us: 1 };
        let said = decode(text.to_string().as_bytes(), at_ms).unwrap();
        self.server.feed.with(|w| w.push(said, Some(from))).unwrap();
    }

    fn observe(&mut self, now_ms: u64) -> Observation {
        self.server.observe_at(self.begun + Duration::from_millis(now_ms), now_ms)
    }
}

/// Memory of a service as Linux 6.14 tells of it: pages from the pool and from the disk so far, and microseconds of waiting.
fn memory_files(root: &Root, id: &str, m: MemoryUse, [pool_ins, disk_ins, stalled_us]: [f64; 3]) {
    let bytes = |mb: f64| (mb * f64::from(1 << 20)).round() as u64;
    let Paged { pool_mb, stored_mb, swapped_mb, .. } = m.paged.unwrap_or_default();
    let (zswap, zswapped, refaults) = (bytes(pool_mb), bytes(stored_mb), pool_ins + disk_ins);
    let stat = format!(
        "anon 1\nzswap {zswap}\nzswapped {zswapped}\nworkingset_refault_anon {refaults:.0}\npswpin {disk_ins:.0}\nzswpin {pool_ins:.0}\n"
    );
    let pressure = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={stalled_us:.0}\n");
    let number = |mb: f64| format!("{}\n", bytes(mb));
    let files = [("current", number(m.in_use_mb)), ("swap.current", number(swapped_mb)), ("stat", stat), ("pressure", pressure)];
    for (file, text) in files {
        put(root, &format!("/sys/fs/cgroup/lc/{id}/memory.{file}"), &text);
    }
}

fn plan(of: &Platform) -> Plan {
    let hold = |cpus: &str, mask: u32| Allocation {
        cpus: CpuSet::parse(cpus).unwrap(),
        shared_cpus: CpuSet::empty(),
        ways: vec![mask; 2],
        shared_ways: vec![0; 2],
        ..Allocation::everything(of)
    };
    let limits = (Some(JOB_LIMIT_BYTES), Some(JOB_POOL_BYTES));
    let job = Allocation { mem_limit_bytes: limits.0, zswap_max_bytes: limits.1, ..hold("2-4", 0x30) };
    let allocations = [("busy", hold("0-1", 0xf)), ("job", job), ("rare", hold("5-7", 0x7c0))];
    Plan::whole(allocations.into_iter().map(|(id, a)| (id.into(), a)).collect())
}

/// A load of the busy service of which it completes a little less than 99 %, and more than 98 %.
fn just_too_much(v: &VirtualServer) -> f64 {
    let completed = |rps: f64| {
        let mut v = v.clone();
        v.set_load(v.now_ms(), "busy", rps).unwrap();
        (0..20).for_each(|_| v.advance(Tick { ms: TICK_MS }));
        v.plant().samples()[v.plant().position("busy").unwrap()].achieved_rps / rps
    };
    let (mut low, mut high) = (100.0, 639.0);
    for _ in 0..40 {
        let middle = 0.5 * (low + high);
        (low, high) = if completed(middle) > 0.986 { (middle, high) } else { (low, middle) };
    }
    let share = completed(high);
    assert!((0.981..0.989).contains(&share), "{share} of {high} requests a second");
    high
}

/// One truth of half a minute: a plan, few requests, a silent feed, a client that is late, a step of 300 ms, and overload by a little. Every
/// field that both sides can know is the same on both, at each look.
#[test]
fn both_sides_say_the_same_of_one_truth() {
    assert!((1.0 - MOST_LOST - LEAST_COMPLETED).abs() < 1e-12, "load generators and nodes call another share overload");
    let mut v = virtual_server();
    let mut m = Machine::new(&v);
    let unheard = fields(m.observe(0).get("busy").unwrap());
    let p = plan(v.platform());
    v.apply(&p).unwrap();
    m.server.apply(&p).unwrap();
    m.observe(0);
    v.set_feed(16_000, "busy", false).unwrap();
    v.set_feed(18_500, "busy", true).unwrap();
    v.set_client(20_000, "busy", false).unwrap();
    v.set_client(20_200, "busy", true).unwrap();
    let mut seen = BTreeMap::from([("feed.unknown", 0u32)]);
    let mut unequal: BTreeMap<String, String> = BTreeMap::new();
    if unheard["feed"]["state"] != fields(v.observe().get("busy").unwrap())["feed"]["state"] {
        unequal.insert("feed.unknown".into(), "before the first word".into());
    }
    while v.now_ms() < 30_000 {
        let t = v.now_ms();
        if t == 24_000 {
            let rps = just_too_much(&v);
            v.set_load(t, "busy", rps).unwrap();
        }
        let step_ms = if t % 5_000 == 4_000 { 300 } else { TICK_MS };
        let mut parts = v.clone();
        for _ in 0..step_ms / TICK_MS {
            let end_ms = parts.now_ms() + TICK_MS;
            parts.advance(Tick { ms: TICK_MS });
            let silent: &[&str] = if (16_001..=18_500).contains(&end_ms) { &["busy"] } else { &[] };
            let late: &[&str] = if (20_001..=20_200).contains(&end_ms) { &["busy"] } else { &[] };
            m.live_through(&parts, silent, late);
        }
        v.advance(Tick { ms: step_ms });
        let (a, b) = (v.observe(), m.observe(v.now_ms()));
        assert_eq!((a.t_ms, &a.bounds), (b.t_ms, &b.bounds));
        let ids = |o: &Observation| o.services.iter().map(|s| s.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&a), ids(&b));
        for (a, b) in a.services.iter().zip(&b.services) {
            let (x, y) = (fields(a), fields(b));
            assert_eq!(x.keys().collect::<Vec<_>>(), y.keys().collect::<Vec<_>>(), "{} at {t} ms", a.id);
            for (field, x) in x {
                if !same(&field, &x, &y[&field]) {
                    let said = format!("{} at {} ms: virtual {x}, this machine {}", a.id, v.now_ms(), y[&field]);
                    unequal.entry(field).or_insert(said);
                }
            }
            if let Some(l) = a.window {
                *seen.entry(l.verdict.as_str()).or_default() += 1;
            }
            *seen.entry(a.feed.as_str()).or_default() += 1;
        }
    }
    let expected: BTreeSet<&str> = UNEQUAL.iter().map(|(field, _)| *field).collect();
    let found: BTreeSet<&str> = unequal.keys().map(String::as_str).collect();
    assert_eq!(found, expected, "{unequal:#?}");
    for state in ["valid", "client-limited", "server-overloaded", "not-resolvable", "fresh", "unknown", "not-needed"] {
        assert!(seen.get(state).is_some_and(|n| *n > 0), "the truth had no {state}: {seen:?}");
    }
    let job = v.observe().get("job").unwrap().memory;
    assert!(job.in_use_bytes == Some(JOB_LIMIT_BYTES) && job.pool_bytes == Some(JOB_POOL_BYTES), "{job:?}");
    assert!([job.pool_swap_ins_per_s, job.disk_swap_ins_per_s].iter().all(|x| x.is_some_and(|x| x > 100.0)), "{job:?}");
    assert!(job.stall_frac.is_some_and(|x| x > 0.01 && x < 0.99), "{job:?}");
    let rare = v.observe().get("rare").unwrap().window.unwrap();
    assert!(rare.count as f64 <= 1.5 * RARE_RPS * LONGEST_WINDOW_MS as f64 * 1e-3, "{rare:?}");
}
