//! LC services whose p99 is their target times (cores that they need / cores that they have), and whose pages come back as the closed form has it.

use super::*;
use crate::testing::{be, latency, lc, observation};
use crate::{by_name, ModelSet};
use surefoot_server::limits::check_plan;
use surefoot_server::validate::validate;
use surefoot_server::{FeedState, Kind, Latency, Memory, MemoryView};

const G: u64 = 1 << 30;
const TICK_MS: u64 = 100;
const GAMMA: f64 = 2.0;
const TARGET_MS: f64 = 10.0;

pub(crate) struct Service {
    pub id: &'static str,
    pub gb: f64,
    pub needs: f64,
    pub k: f64,
    pub rps: f64,
    pub silent: bool,
}

pub(crate) struct World {
    pub platform: Platform,
    pub seen: Observation,
    pub lc: Vec<Service>,
    pub be: Vec<(&'static str, f64)>,
    /// Time of a core that a page takes to come back, us.
    pub page_us: f64,
}

impl World {
    /// Three services of 40 GB and two jobs of 24 on 16 cores and 60 GB.
    pub fn new() -> Self {
        let platform = Platform { memory: Some(Memory { capacity_bytes: 60 * G }), ..Platform::regular("t", 16, 1, 11, 2.0) };
        let service = |id, gb, needs, k| Service { id, gb, needs, k, rps: 2000.0, silent: false };
        let lc_services = vec![service("a", 20.0, 3.0, 900.0), service("b", 10.0, 2.0, 100.0), service("c", 10.0, 1.0, 100.0)];
        let be_jobs = vec![("x", 14.0), ("y", 10.0)];
        let mut views: Vec<_> =
            lc_services.iter().map(|s| ServiceView { kind: Kind::Lc { qos_target_ms: TARGET_MS }, ..lc(s.id) }).collect();
        views.extend(be_jobs.iter().map(|(id, _)| be(id)));
        let mut seen = observation(views);
        seen.services.iter_mut().for_each(|s| s.allocation = surefoot_server::Allocation::everything(&platform));
        World { platform, seen, lc: lc_services, be: be_jobs, page_us: 0.0 }
    }

    pub fn tick(&mut self) {
        self.seen.t_ms += TICK_MS;
        let gb = |bytes: Option<u64>| bytes.map_or(f64::INFINITY, |b| b as f64 / G as f64);
        let bytes = |gb: f64| Some((gb.max(0.0) * G as f64) as u64);
        let sets: f64 = self.lc.iter().map(|s| s.gb).chain(self.be.iter().map(|b| b.1)).sum();
        let all = sets.min(60.0) / sets;
        for (s, of) in self.seen.services.iter_mut().zip(&self.lc) {
            // Without limits the kernel divides what there is by size, and has no pool.
            let m = s.allocation.mem_limit_bytes.map_or(of.gb * all, |b| gb(Some(b)).min(of.gb));
            let pool =
                s.allocation.mem_limit_bytes.map_or(0.0, |_| gb(s.allocation.zswap_max_bytes).min((of.gb - m) / (GAMMA - 1.0)).min(m));
            let resident = m - pool;
            let cores = s.allocation.cpus.len() as f64;
            let back = of.k * -(resident / of.gb).clamp(1e-3, 1.0).ln();
            let paging = back * self.page_us * 1e-6;
            let needs = paging + if s.allocation.shared_cpus.is_empty() { of.needs } else { self.lc.iter().map(|s| s.needs).sum() };
            let p99_ms = TARGET_MS * needs / cores;
            let l = Latency { count: (of.rps / 10.0) as u64, achieved_rps: of.rps, ..latency(p99_ms) };
            s.memory = MemoryView {
                in_use_bytes: bytes(m),
                pool_bytes: bytes(pool),
                stored_bytes: bytes(GAMMA * pool),
                swapped_bytes: bytes(of.gb - resident),
                pool_swap_ins_per_s: Some(back),
                ..MemoryView::default()
            };
            s.features.cpu_usage_cores = Some(of.needs / 2.0 + paging);
            (s.interval, s.window) = if of.silent { (None, None) } else { (Some(l), Some(Latency { count: of.rps as u64, ..l })) };
            s.feed = if of.silent { FeedState::Unknown { since_ms: 0, heard: true } } else { FeedState::heard(Some(&l)) };
        }
        for (s, (_, w)) in self.seen.services.iter_mut().skip(self.lc.len()).zip(&self.be) {
            let m = s.allocation.mem_limit_bytes.map_or(w * all, |b| gb(Some(b)).min(*w));
            s.memory = MemoryView { in_use_bytes: bytes(m), swapped_bytes: bytes(w - m), pool_bytes: Some(0), ..MemoryView::default() };
            s.instr_per_s = Some(s.allocation.cpus.len() as f64 * 1e9 * if m >= w - 0.1 { 1.0 } else { 0.1 });
        }
    }

    /// Plans of so many seconds. Every plan, and what is in force then, is one that a server takes.
    pub fn run(&mut self, policy: &mut dyn Policy, seconds: u64) -> Vec<Plan> {
        let mut plans = vec![];
        for _ in 0..seconds * 1000 / TICK_MS {
            self.tick();
            let plan = policy.step(self.seen.t_ms, &self.seen);
            let before = self.seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
            check_plan(&self.platform, &plan, &before, &plan.layout(&self.seen)).unwrap();
            for s in &mut self.seen.services {
                if let Some(a) = plan.wants(&s.id, &s.allocation) {
                    (s.allocation, s.placed) = (a, true);
                }
            }
            validate(&self.platform, &self.seen.services.iter().map(|s| (s.id.clone(), s.allocation.clone())).collect()).unwrap();
            let sum: u64 = self.seen.services.iter().filter_map(|s| s.allocation.mem_limit_bytes).sum();
            assert!(sum <= 60 * G, "limits add up to {sum}");
            plans.push(plan);
        }
        plans
    }

    fn policy(&self) -> PerService {
        PerService::new(&self.platform, Shared::default(), Settings::default(), true)
    }

    pub fn cores(&self, id: &str) -> u32 {
        self.seen.get(id).unwrap().allocation.cpus.len()
    }

    /// Limit and pool in GB.
    pub fn memory(&self, id: &str) -> (f64, f64) {
        let a = &self.seen.get(id).unwrap().allocation;
        let gb = |b: Option<u64>| b.map_or(f64::INFINITY, |b| (b as f64 / G as f64 * 10.0).round() / 10.0);
        (gb(a.mem_limit_bytes), gb(a.zswap_max_bytes))
    }
}

/// Each service ends on the cores that it needs and no core more than the margin asks for; the jobs have the rest and all of their pages, off the
/// pool; and then nothing moves.
#[test]
fn each_service_has_a_state_of_its_own() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 180);
    assert_eq!([w.cores("a"), w.cores("b"), w.cores("c"), w.cores("x")], [4, 3, 2, 7]);
    assert_eq!((w.memory("x"), w.memory("y")), ((14.0, 0.0), (10.0, 0.0)));
    // 36 GB of 40 for the services: 32 resident, of which as many as may be where pages come back nine times as often.
    let m = ["a", "b", "c"].map(|id| w.memory(id).0);
    assert!(m[0] > 19.5 && (m[1] - m[2]).abs() < 0.2 && (m.iter().sum::<f64>() - 36.0).abs() < 0.2, "{m:?}");
    assert!(w.run(&mut policy, 600).iter().all(|p| p.is_empty() && p.actions.is_empty()));
}

/// The service with the worst QoS is helped first, with cores of the jobs; where these have none left, with one of a service that has room.
#[test]
fn the_worst_is_helped_first() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 180);
    (w.lc[0].needs, w.lc[1].needs) = (6.0, 7.0);
    let plans = w.run(&mut policy, 3);
    let first = plans.iter().flat_map(|p| &p.actions).next().unwrap();
    assert_eq!((first.service.as_str(), first.kind), ("b", ActionKind::Grow));
    w.run(&mut policy, 60);
    assert!(w.cores("a") >= 6 && w.cores("b") >= 7, "{} {}", w.cores("a"), w.cores("b"));
    // Half of c's load is gone, and it needs half a core of its two: the last core of b comes from there.
    (w.lc[1].needs, w.lc[2].needs, w.lc[2].rps) = (8.0, 0.4, 1000.0);
    w.run(&mut policy, 120);
    assert_eq!([w.cores("a"), w.cores("b"), w.cores("c"), w.cores("x")], [6, 8, 1, 1]);
}

/// A gift that leads to a miss is taken back after a second, and not made again at this load; one load does not move another service.
#[test]
fn what_missed_is_not_tried_again() {
    let mut w = World::new();
    let mut policy = w.policy();
    policy.set.judge.margin = 0.0;
    w.run(&mut policy, 180);
    w.lc[0].needs = 4.0;
    w.lc[0].rps = 3000.0;
    w.run(&mut policy, 120);
    assert!((4..=6).contains(&w.cores("a")) && w.cores("b") <= 3, "{} {}", w.cores("a"), w.cores("b"));
    let held = w.cores("a");
    assert!(w.run(&mut policy, 120).iter().all(|p| p.actions.iter().all(|a| a.service != "b")));
    assert_eq!(w.cores("a"), held);
}

/// A job that comes later has no limit until its footprint was measured, and then room for all of it.
#[test]
fn a_job_that_comes_later_has_room() {
    for cores_too in [true, false] {
        let mut w = World::new();
        let mut policy = PerService::new(&w.platform, Shared::default(), Settings::default(), cores_too);
        w.run(&mut policy, 120);
        w.be.push(("z", 5.0));
        w.seen.services.push(ServiceView { allocation: surefoot_server::Allocation::everything(&w.platform), ..be("z") });
        policy.step(w.seen.t_ms + TICK_MS, &w.seen);
        assert!(policy.limits().get("z").is_none_or(|(limit, _)| *limit == Limit::None), "{:?}", policy.limits());
        w.run(&mut policy, 120);
        assert!(w.memory("z").0 >= 4.9 && w.memory("x").0 >= 13.9, "{:?} {:?}", w.memory("z"), w.memory("x"));
    }
}

/// Where nothing suffices the service has all that can be given, memory of the jobs too, and is reported once.
#[test]
fn a_service_that_cannot_be_held_is_to_migrate() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 120);
    w.lc[0].needs = 20.0;
    w.lc[0].k = 9000.0;
    let plans = w.run(&mut policy, 120);
    let told: Vec<&Report> = plans.iter().flat_map(|p| &p.reports).filter(|r| matches!(r, Report::Migrate { .. })).collect();
    assert!(matches!(told[..], [Report::Migrate { service, .. }] if service == "a"), "{told:?}");
    assert_eq!(w.cores("x"), 1);
    assert!(w.cores("b") >= 2 && w.cores("c") >= 1);
}

/// Memory that helped a service goes back to the jobs once its load has fallen.
#[test]
fn what_helped_goes_back_with_the_load() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 180);
    let helped = 2.0 * G as f64;
    policy.of.get_mut("c").unwrap().extra = helped;
    let memory = policy.memory.as_mut().unwrap();
    *memory.lc.get_mut("c").unwrap() += helped;
    memory.jobs -= helped;
    let of_jobs = |policy: &PerService| policy.memory.as_ref().unwrap().jobs / G as f64;
    w.run(&mut policy, 30);
    assert!(of_jobs(&policy) < 22.5, "{}", of_jobs(&policy));
    (w.lc[2].needs, w.lc[2].rps) = (0.5, 1000.0);
    w.run(&mut policy, 60);
    assert!(of_jobs(&policy) > 23.9 && w.memory("x").0 + w.memory("y").0 > 23.9, "{}", of_jobs(&policy));
}

/// A service of unknown latency keeps what it has, and memory is not divided anew meanwhile.
#[test]
fn the_silent_lose_nothing() {
    let mut w = World::new();
    let mut policy = by_name("cosmos-per-service", &w.platform, ModelSet::default(), 1).unwrap();
    w.run(policy.as_mut(), 8);
    let before = (w.cores("b"), w.memory("b"));
    w.lc[1].silent = true;
    w.run(policy.as_mut(), 60);
    assert_eq!((w.cores("b"), w.memory("b")), before);
    w.lc[1].silent = false;
    w.run(policy.as_mut(), 120);
    assert_eq!(w.cores("b"), 3);
}

/// Beside a policy of cores it names memory and pools alone, under the same rules; two that own cores are refused by name.
#[test]
fn beside_a_policy_of_cores_it_owns_memory() {
    let mut w = World::new();
    let mut policy = by_name("equal-share+cosmos-per-service", &w.platform, ModelSet::default(), 1).unwrap();
    let plans = w.run(policy.as_mut(), 60);
    assert_eq!((w.memory("x").0, w.memory("y")), (14.0, (10.0, 0.0)));
    assert!(w.memory("a").0 > 18.0 && w.memory("a").1 > 0.0, "{:?}", w.memory("a"));
    assert!(plans.iter().flat_map(|p| &p.reports).all(|r| !matches!(r, Report::Withheld { .. })));
    let both = by_name("cosmos+cosmos-per-service", &w.platform, ModelSet::default(), 1).err().unwrap();
    assert!(both.contains("cosmos and cosmos-per-service both own memory") && both.ends_with("cosmos-per-service, senpai"), "{both}");
}

/// A host whose memory is unknown has its cores divided, and no limit is named.
#[test]
fn without_memory_cores_are_divided() {
    let mut w = World::new();
    w.platform.memory = None;
    let plans = w.run(&mut w.policy(), 180);
    assert!(plans.iter().flat_map(|p| p.changes.values()).all(|c| c.mem_limit.is_none() && c.zswap_max.is_none()));
    assert_eq!(w.cores("a"), 4);
}

/// Every step says w, gamma, M and the pool of its service, and what it is expected to do.
#[test]
fn steps_say_what_they_rest_on() {
    let mut w = World::new();
    let plans = w.run(&mut w.policy(), 120);
    let steps: Vec<&Action> = plans.iter().skip(30).flat_map(|p| &p.actions).filter(|a| a.service == "a").collect();
    assert!(steps.len() > 2, "{}", steps.len());
    for a in steps {
        let said = |what: &str| a.because.said.iter().find(|s| s.what.contains(what)).map(|s| s.value);
        assert_eq!(said("w, "), Some(20.0), "{a:?}");
        assert!(said("gamma").is_some() && said("M, ").is_some() && said("pool").is_some(), "{a:?}");
        assert!(a.because.expected.holds_if != HoldsIf::NotJudged, "{a:?}");
    }
}

/// A service that grows beyond what its limit can hold, compressed, has more at once, though another misses its target for good.
#[test]
fn a_floor_rises_beside_a_service_that_cannot_be_held() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 60);
    w.lc[0].needs = 40.0;
    w.run(&mut policy, 60);
    w.lc[1].gb = 25.0;
    w.run(&mut policy, 60);
    // 25 / 2 and 5 %.
    assert!(w.memory("b").0 > 13.0, "{:?}", w.memory("b"));
}

/// Memory that helped goes back once sizes are others, and steps that led to a met target are not counted against the next.
#[test]
fn help_does_not_outlive_its_reason() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 60);
    let of = policy.of.get_mut("a").unwrap();
    (of.extra, of.vain) = (4.0 * G as f64, 2);
    w.run(&mut policy, 5);
    assert_eq!(policy.of["a"].vain, 0);
    w.lc[2].gb = 7.0;
    w.run(&mut policy, 60);
    assert_eq!(policy.of["a"].extra, 0.0);
    assert!(w.memory("x").0 > 13.9, "{:?}", w.memory("x"));
}

/// A job that leaves and comes back unread has no limit until it was measured.
#[test]
fn a_job_that_comes_back_is_measured_first() {
    let mut w = World::new();
    let mut policy = w.policy();
    w.run(&mut policy, 60);
    let job = w.seen.services.pop().unwrap();
    let job_gb = w.be.pop().unwrap();
    w.run(&mut policy, 1);
    w.seen.services.push(ServiceView { memory: MemoryView::default(), ..job });
    let plan = policy.step(w.seen.t_ms, &w.seen);
    let limit = plan.changes.get("y").and_then(|c| c.mem_limit);
    assert!(limit.is_none_or(|l| l == Limit::None), "{limit:?}");
    w.be.push(job_gb);
    w.run(&mut policy, 60);
    assert_eq!(w.memory("y").0, 10.0);
}

/// A kernel without limits on memory leaves cores to be divided.
#[test]
fn without_limits_cores_are_divided() {
    let mut w = World::new();
    let mut policy = w.policy();
    for _ in 0..3000 {
        w.tick();
        let plan = policy.step(w.seen.t_ms, &w.seen);
        for s in &mut w.seen.services {
            if let Some(a) = plan.wants(&s.id, &s.allocation) {
                let limits = (s.allocation.mem_limit_bytes, s.allocation.zswap_max_bytes);
                (s.allocation, s.placed) = (a, true);
                (s.allocation.mem_limit_bytes, s.allocation.zswap_max_bytes) = limits;
            }
        }
    }
    assert!(policy.cores_alone);
    assert_eq!([w.cores("a"), w.cores("b"), w.cores("c"), w.cores("x")], [4, 3, 2, 7]);
}
