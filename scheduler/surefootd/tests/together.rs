//! Two controllers of one service, on both sides of the port: cores by one, memory by the other (`surefoot_policy::together`).

#![allow(clippy::disallowed_methods, reason = "a test's inputs are its own")]

use std::fs;
use std::path::Path;
use surefoot_linux::{LocalConfig, LocalServer, Root, Target};
use surefoot_policy::{Guarded, Policy, Together};
use surefoot_server::{Allocation, Change, Cpu, CpuSet, Kind, Limit, Observation, Plan, Report, Resource, Server, Tick};
use surefoot_vserver::VirtualServer;
use surefootd::stage::virtual_target::VirtualTarget;

const TICK: Tick = Tick { ms: 100 };
const MIB: u64 = 1 << 20;

/// Two CPUs, other ones at every step; with `greedy` memory, too, which is not its own.
struct Cores {
    steps: u32,
    greedy: bool,
}

impl Policy for Cores {
    fn name(&self) -> &str {
        "cores"
    }

    fn owns(&self) -> &[Resource] {
        &[Resource::Cpu]
    }

    fn step(&mut self, _: u64, seen: &Observation) -> Plan {
        self.steps += 1;
        let from = self.steps % 3 * 2;
        let cpu = Cpu { cpus: CpuSet::range(from, from + 2), shared_cpus: CpuSet::empty(), quota_cores: None };
        let change = Change { cpu: Some(cpu), mem_limit: self.greedy.then_some(Limit::None), ..Change::default() };
        Plan { changes: seen.services.iter().map(|s| (s.id.clone(), change.clone())).collect(), ..Plan::default() }
    }
}

/// Another limit on memory at every step, and one on the pool.
struct Memory {
    steps: u64,
}

impl Policy for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn owns(&self) -> &[Resource] {
        &[Resource::Memory, Resource::Zswap]
    }

    fn step(&mut self, _: u64, seen: &Observation) -> Plan {
        self.steps += 1;
        let (mem_limit, zswap_max) = (Some(Limit::Bytes((4096 + self.steps) * MIB)), Some(Limit::Bytes(64 * MIB)));
        let change = Change { mem_limit, zswap_max, ..Change::default() };
        Plan { changes: seen.services.iter().map(|s| (s.id.clone(), change.clone())).collect(), ..Plan::default() }
    }
}

/// One step; what the service holds then.
fn step(server: &mut dyn Server, policy: &mut dyn Policy) -> (Allocation, Vec<Report>) {
    server.advance(TICK);
    let seen = server.observe();
    let plan = policy.step(seen.t_ms, &seen);
    server.apply(&plan).unwrap();
    (server.observe().services[0].allocation.clone(), plan.reports)
}

/// Both act on the one service, together and in turn; each keeps what the other has set, and a trespass changes nothing.
fn both_act(server: &mut dyn Server, really: &dyn Fn(&Allocation)) {
    let everything = Allocation::everything(server.platform());
    let guarded = |policy: Box<dyn Policy>, s: &dyn Server| Guarded::new(policy, s.platform());
    let members: Vec<Box<dyn Policy>> = vec![Box::new(Cores { steps: 0, greedy: false }), Box::new(Memory { steps: 0 })];
    let mut together = guarded(Box::new(Together::new(members).unwrap()), server);
    for n in 1..=5 {
        let (held, reports) = step(server, &mut together);
        let from = n % 3 * 2;
        assert_eq!((held.cpus, held.mem_limit_bytes), (CpuSet::range(from, from + 2), Some((4096 + u64::from(n)) * MIB)));
        assert_eq!((held.zswap_max_bytes, &held.ways, held.mba_pct), (Some(64 * MIB), &everything.ways, 100));
        assert!(reports.is_empty(), "{reports:?}");
        really(&held);
    }
    let mut cores = guarded(Box::new(Cores { steps: 5, greedy: false }), server);
    let (before, _) = step(server, &mut cores);
    assert_eq!((before.cpus, before.mem_limit_bytes), (CpuSet::range(0, 2), Some(4101 * MIB)));
    really(&before);
    let mut memory = guarded(Box::new(Memory { steps: 9 }), server);
    let (before, _) = step(server, &mut memory);
    assert_eq!((before.cpus, before.mem_limit_bytes), (CpuSet::range(0, 2), Some(4106 * MIB)));
    really(&before);
    let mut greedy = guarded(Box::new(Cores { steps: 0, greedy: true }), server);
    let (held, reports) = step(server, &mut greedy);
    assert_eq!(held, before);
    let [Report::Withheld { why, .. }] = &reports[..] else { panic!("{reports:?}") };
    assert!(why.starts_with("policy cores names memory of ") && why.ends_with("it owns cores: its plan is left out"), "{why}");
    really(&held);
}

#[test]
fn two_controllers_act_on_one_service_of_a_virtual_server() {
    let at = VirtualTarget::of_platform("server-1", None).unwrap();
    let mut server = VirtualServer::new(at.profile.clone(), Some(1));
    server.add(0, "moses", at.profiles.service("moses").unwrap().clone(), 100.0, 4).unwrap();
    server.advance(TICK);
    both_act(&mut server, &|_| ());
}

const GROUP: &str = "sys/fs/cgroup/lc/web";

/// A v2 host with one group, as files.
fn host(at: &Path) -> Root {
    let put = |path: &str, text: &str| {
        let path = at.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    };
    put("proc/self/mountinfo", "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
    put("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory");
    put("sys/devices/system/cpu/online", "0-7");
    for (file, text) in [
        ("cpuset.cpus", "0-7"),
        ("cpu.max", "max 100000"),
        ("cpu.weight", "100"),
        ("memory.max", "max"),
        ("memory.high", "max"),
        ("memory.zswap.max", "max"),
        ("memory.current", "1048576"),
        ("cgroup.procs", "42"),
    ] {
        put(&format!("{GROUP}/{file}"), text);
    }
    Root::at(at)
}

#[test]
fn two_controllers_act_on_one_service_of_a_host() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = LocalConfig { root: host(dir.path()), ..LocalConfig::new(state.path()) };
    let mut server = LocalServer::open(config).unwrap();
    server.adopt("web", "web", Kind::Be, 1, Target::Cgroup("/lc/web".into())).unwrap();
    let says = |file: &str| fs::read_to_string(dir.path().join(GROUP).join(file)).unwrap().trim().to_string();
    both_act(&mut server, &|held| {
        assert_eq!(says("cpuset.cpus"), held.cpus.to_string());
        assert_eq!(says("memory.max"), held.mem_limit_bytes.unwrap().to_string());
        assert_eq!(says("memory.zswap.max"), held.zswap_max_bytes.unwrap().to_string());
    });
    server.reset().unwrap();
    assert_eq!((says("cpuset.cpus").as_str(), says("memory.max").as_str(), says("memory.zswap.max").as_str()), ("0-7", "max", "max"));
}
