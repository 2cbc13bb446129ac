//! COSMOS and its baselines in closed loop on virtual `cosmos-server`: the paper's Fig. 7 in small, with one seed.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::root;
use std::collections::BTreeMap;
use surefoot_policy::{by_name, ModelSet};
use surefoot_server::{Observation, Server, Tick};
use surefootd::stage::virtual_target::VirtualTarget;
use surefootd::stage::workload::Workload;

const GB: f64 = (1u64 << 30) as f64;

/// What the last minute of a run showed.
struct Ended {
    /// Share of ticks within the target, and the job's instructions/s.
    met: f64,
    job_per_s: f64,
    /// Times of steps, ms.
    steps_ms: Vec<u64>,
    last: Observation,
}

fn run(mix: &str, policy: &str, seconds: u64) -> Ended {
    let at = VirtualTarget::of_platform("cosmos-server", None).unwrap();
    let file = root().join(format!("workloads/sets/cosmos-e2/{mix}.toml"));
    let w = Workload::read(&file, &at.target()).unwrap();
    let mut server = at.server(1);
    w.announce(&mut server, &at.profiles, 1).unwrap();
    let mut policy = by_name(policy, &at.platform, ModelSet::default(), 1).unwrap();
    let (mut met, mut n, mut job, mut steps_ms) = (0.0, 0.0, 0.0, vec![]);
    while server.now_ms() < seconds * 1000 {
        let seen = server.observe();
        if seen.t_ms > (seconds - 60) * 1000 {
            n += 1.0;
            met += f64::from(u8::from(seen.lc().all(|s| s.qos_met() == Some(true))));
            job += seen.be().filter_map(|s| s.instr_per_s).sum::<f64>();
        }
        let plan = policy.step(seen.t_ms, &seen);
        if plan.is_step() {
            steps_ms.push(seen.t_ms);
        }
        server.apply(&plan).unwrap();
        server.advance(Tick { ms: 100 });
    }
    Ended { met: met / n, job_per_s: job / n, steps_ms, last: server.observe() }
}

/// Medium load and over-commitment, memcached beside STREAM: COSMOS and CMA meet the target, LD does not, and COSMOS's job does several times
/// what CMA's does (Fig. 7 and 8). CA meets it here, and not in the paper: fact 170 of the virtual server.
#[test]
fn memory_that_is_divided_meets_the_target() {
    let of: BTreeMap<&str, Ended> =
        ["unmanaged", "cosmos-cma", "cosmos"].map(|policy| (policy, run("mix-05-medium-medium", policy, 360))).into();
    let met = |policy: &str| of[policy].met;
    assert!(met("unmanaged") < 0.5, "{}", met("unmanaged"));
    assert!(met("cosmos-cma") > 0.5 && met("cosmos") > 0.9, "{} {}", met("cosmos-cma"), met("cosmos"));
    assert!(of["cosmos"].job_per_s > 2.0 * of["cosmos-cma"].job_per_s, "{} {}", of["cosmos"].job_per_s, of["cosmos-cma"].job_per_s);
}

/// The search ends, and the kept state stays: limits add up to the machine, the pool is within its limit and has room for what is not resident.
#[test]
fn the_search_ends_in_a_state_that_stays() {
    let ended = run("mix-02-low-high", "cosmos", 400);
    assert!(ended.met > 0.9, "{}", ended.met);
    assert!(ended.steps_ms.len() > 5 && *ended.steps_ms.last().unwrap() < 280_000, "{:?}", ended.steps_ms);
    let [lc, be] = [0, 1].map(|i| ended.last.services[i].allocation.clone());
    let (m, pool, rest) = (lc.mem_limit_bytes.unwrap() as f64, lc.zswap_max_bytes.unwrap() as f64, be.mem_limit_bytes.unwrap() as f64);
    assert!((m + rest - 60.0 * GB).abs() < 0.01 * GB && be.zswap_max_bytes == Some(0), "{m} {rest}");
    // 51.1 GB at 1.9 to 1; readings may be wrong by a tenth: 51.1 / 0.9 GB at 1.9 / 1.1 to 1.
    assert!(pool <= m && m + 0.9 * pool > 51.1 * GB, "{m} {pool}");
    let room = ((51.1 / 0.9 * GB - m) / (1.9 / 1.1 - 1.0)).min(m);
    assert!((pool - room).abs() < 0.5 * GB, "{pool} {room}");
}
