//! The two sides of [`Server`] are given one truth, and what they say of it is compared.
//!
//! The plant makes the truth: every request with its response time, CPU time, traffic, memory and frequency of each 100 ms. The virtual
//! server says what it sees of it. This machine's side finds the same in its counters, files and datagrams.

use super::*;
use crate::cgroup::tests::v1;
use crate::feed::decode;
use crate::root::tests::put;
use crate::testing::{intel, ModelFiles};
use base64::Engine as _;
use hdrhistogram::serialization::{Serializer as _, V2Serializer};
use hdrhistogram::Histogram;
use serde_json::{json, Value};
use std::fs;
use std::sync::Arc;
use surefoot_loadgen::verdict::MOST_LOST;
use surefoot_server::window::{LEAST_COMPLETED, LONGEST_WINDOW_MS};
use surefoot_server::{Latency, Verdict};
use surefoot_vserver::{PlatformProfile, Profiles, VirtualServer};

const TICK_MS: u64 = 100;
const CPUS: u32 = 8;
/// Services, their process and profile: a busy one, one with few requests, and a job.
const SERVICES: [(&str, u32, &str); 3] = [("busy", 42, "ads"), ("job", 52, "streamcluster"), ("rare", 62, "xapian")];
/// The last CPU of each has no driver of its clock: what is shown of it is nominal.
const UNMEASURED: [u32; 3] = [1, 4, 7];
/// Local traffic of the stand-in's tasks, MB in a millisecond.
const MB_PER_MS: f64 = 1.75;
const THREADS: u32 = 2;
/// Too few for a p99 even in the longest window.
const RARE_RPS: f64 = 4.0;

/// What both sides cannot say alike, and why.
const UNEQUAL: [(&str, &str); 7] = [
    ("ipc", "this host has no counters"),
    ("llc_misses_per_s", "this host has no counters"),
    ("instr_per_s", "this host has no counters"),
    ("window.p99_low_ms", "the plant's percentiles come of laws, which have no sampling error"),
    ("window.p99_high_ms", "the plant's percentiles come of laws, which have no sampling error"),
    ("interval.p99_low_ms", "the plant's percentiles come of laws, which have no sampling error"),
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
        "cpu_usage_cores" => (0.0, 1e-4),
        _ => (1e-9, 0.0),
    }
}

/// Every field by its name: one that is added has to be named here.
fn fields(v: &ServiceView) -> BTreeMap<String, Value> {
    let ServiceView { id, service, kind, threads, allocation, placed, features, feed, interval, window, instr_per_s } = v;
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
    ];
    let line = |l: &str| {
        let key = l.split('=').next().unwrap().trim();
        with.iter().find(|(k, _)| *k == key).map_or(l.to_string(), |(k, v)| format!("{k} = {v}"))
    };
    let text: Vec<String> = text.lines().map(line).collect();
    let platform = PlatformProfile::parse(Path::new("eight.toml"), &text.join("\n")).unwrap();
    let mut v = VirtualServer::new(Arc::new(platform), Some(7));
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
    usage_ns: BTreeMap<&'static str, f64>,
    /// By which the counters of traffic moved, and by how much they had to, MB.
    moved_mb: BTreeMap<&'static str, (f64, f64)>,
}

impl Machine {
    fn new(v: &VirtualServer) -> Self {
        let (dir, root) = v1();
        let put = |path: &str, text: &str| put(&root, path, text);
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
                ("cpuset", "cpuset.cpus", "0-7\n".to_string()),
                ("cpuset", "tasks", format!("{pid}\n")),
                ("cpuset", "cgroup.procs", format!("{pid}\n")),
                ("cpu", "cpu.cfs_quota_us", "-1\n".into()),
                ("cpu", "cpu.cfs_period_us", "100000\n".into()),
                ("cpu", "cpu.shares", "1024\n".into()),
                ("cpuacct", "cpuacct.usage", "0\n".into()),
            ]
            .map(|(c, f, t)| (format!("/sys/fs/cgroup/{c}/docker/{id}/{f}"), t))
            {
                put(&file, &text);
            }
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
            server.adopt(&s.id, &s.service, s.kind, s.threads, Target::Cgroup(format!("/docker/{}", s.id).into())).unwrap();
        }
        let (usage_ns, moved_mb) = Default::default();
        Machine { _dir: dir, _state: state, root, model, server, begun: Instant::now(), usage_ns, moved_mb }
    }

    /// The plant's last 100 ms, as the kernel and the senders tell of it. `silent`: whose feed says nothing, `late`: whose client is.
    fn live_through(&mut self, v: &VirtualServer, silent: &[&str], late: &[&str]) {
        let tick_s = TICK_MS as f64 * 1e-3;
        let mut mhz = BTreeMap::new();
        for (id, pid, _) in SERVICES {
            let plant = v.plant();
            let i = plant.position(id).unwrap();
            let (s, t) = (plant.samples()[i], &plant.tenants()[i]);
            let usage = self.usage_ns.entry(id).or_default();
            *usage += s.cpu_usage_cores * tick_s * 1e9;
            fs::write(self.root.path(format!("/sys/fs/cgroup/cpuacct/docker/{id}/cpuacct.usage")), format!("{usage:.0}\n")).unwrap();
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

fn plan(of: &Platform) -> Plan {
    let hold = |cpus: &str, mask: u32| Allocation {
        cpus: CpuSet::parse(cpus).unwrap(),
        shared_cpus: CpuSet::empty(),
        ways: vec![mask; 2],
        shared_ways: vec![0; 2],
        ..Allocation::everything(of)
    };
    let allocations = [("busy", hold("0-1", 0xf)), ("job", hold("2-4", 0x30)), ("rare", hold("5-7", 0x7c0))];
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
    let rare = v.observe().get("rare").unwrap().window.unwrap();
    assert!(rare.count as f64 <= 1.5 * RARE_RPS * LONGEST_WINDOW_MS as f64 * 1e-3, "{rare:?}");
}
