//! BE jobs get the share of the node that LC services leave: the rule of production agents (Koordinator's CPU suppression).
//!
//! Once a second: CPUs of the BE jobs = CPUs of the node x 65 % - CPU time that the LC services use. Down at once, up by a tenth of the node a step. LC
//! services may run everywhere, and use all ways; the BE jobs have the first 30 % of the ways. Latency is never asked.
//!
//! What differs, or is left out:
//! * the CPU time of the system itself counts as nobody's: a plan sees services alone;
//! * CPUs are taken by whole physical cores from the last one on. The agent spreads them by its own order;
//! * on hosts with less than a CPU for a service the rule sets a quota, as the agent's other mode does.

use crate::pace::Pace;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{
    Action, ActionKind, Allocation, Because, Change, CpuSet, HoldsIf, Observation, Plan, Platform, ServiceId, ServiceView,
};

/// Between two decisions.
const INTERVAL_MS: u64 = 1000;
/// Of the node's CPUs, for all together.
const NODE_SHARE: f64 = 0.65;
/// Of the node's CPUs, more in one step at most.
const STEP_UP: f64 = 0.1;
/// CPUs that BE jobs keep.
const LEAST_CPUS: f64 = 2.0;
/// Of the ways.
const BE_WAYS: f64 = 0.3;

/// The policy.
pub struct Suppress {
    platform: Platform,
    /// Core-seconds of the LC services since the last decision, and looks in which the use of all was known.
    used: (f64, f64),
    jobs: usize,
    /// Cores of the BE jobs; None until the first decision.
    be: Option<f64>,
    next_ms: u64,
}

/// Cores of the BE jobs after those of before, while the LC services use so many of `total`.
fn be_cores(total: f64, used: f64, before: f64) -> f64 {
    (total * NODE_SHARE - used).min(before + total * STEP_UP).clamp(LEAST_CPUS.min(total), total)
}

impl Suppress {
    pub fn new(platform: &Platform) -> Self {
        Suppress { platform: platform.clone(), used: (0.0, 0.0), jobs: 1, be: None, next_ms: 0 }
    }

    fn total(&self) -> f64 {
        f64::from(self.platform.managed.len())
    }

    /// CPUs, whole cores from the last one on.
    fn last_cpus(&self, n: usize) -> CpuSet {
        let core = |cpu: u32| self.platform.core_of_cpu.get(cpu as usize).copied().unwrap_or(cpu);
        let mut all: Vec<u32> = self.platform.managed.iter().collect();
        all.sort_by_key(|cpu| (std::cmp::Reverse(core(*cpu)), *cpu));
        all.into_iter().take(n).collect()
    }

    fn allocation(&self, s: &ServiceView) -> Allocation {
        let all = Allocation::everything(&self.platform);
        if s.is_lc() {
            return all;
        }
        let be = self.be.unwrap_or(LEAST_CPUS.min(self.total()));
        let ways = self.platform.ways();
        let n = ((f64::from(ways) * BE_WAYS).round() as u32).max(self.platform.llc.map_or(0, |l| l.min_ways)).min(ways);
        let masks = vec![(1u32 << n).wrapping_sub(1); all.ways.len()];
        let (cpus, quota_cores) = if self.platform.core_step < 1.0 {
            // A quota is of one job: each has an equal part.
            let (step, each) = (self.platform.core_step, be / self.jobs.max(1) as f64);
            (all.cpus, Some(((each / step).floor() * step).max(step)).filter(|q| *q < self.total()))
        } else {
            (self.last_cpus(be.floor() as usize), None)
        };
        Allocation { cpus, shared_cpus: cpus, quota_cores, shared_ways: masks.clone(), ways: masks, ..all }
    }

    fn because(&self, s: &ServiceView, used: f64) -> Because {
        let mut b = Because::seen(s).expect(HoldsIf::NotJudged);
        b.say("suppress", "CPU time of the LC services", used, "cores");
        b.say("suppress", "cores of the BE jobs", self.be.unwrap_or(f64::NAN), "cores");
        b.reject("by latency", "this rule does not ask for it");
        b.bind("65 % of the node less what the LC services use; up by a tenth of the node a step");
        b
    }
}

impl Policy for Suppress {
    fn name(&self) -> &str {
        "be-suppress"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        Pace::every(interval_ms).map(|_| ())
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        self.jobs = seen.services.iter().filter(|s| !s.is_lc()).count();
        let used: Option<f64> = seen.lc().map(|s| s.features.cpu_usage_cores).sum();
        if let Some(used) = used {
            self.used = (self.used.0 + used, self.used.1 + 1.0);
        }
        let mut mean = f64::NAN;
        if now_ms >= self.next_ms && self.used.1 > 0.0 {
            mean = self.used.0 / self.used.1;
            self.be = Some(be_cores(self.total(), mean, self.be.unwrap_or(LEAST_CPUS)));
            (self.used, self.next_ms) = ((0.0, 0.0), now_ms + INTERVAL_MS);
        }
        let mut changes: BTreeMap<ServiceId, Change> = BTreeMap::new();
        for s in &seen.services {
            let change = Change::cores_and_ways(&self.allocation(s));
            if s.placed && !change.alters(&s.allocation) {
                continue;
            }
            let before = s.allocation.cores();
            let kind = match () {
                () if !s.placed => ActionKind::Place,
                () if self.allocation(s).cores() < before => ActionKind::Shrink,
                () => ActionKind::Grow,
            };
            let why =
                if s.is_lc() { "LC services may run everywhere" } else { "BE jobs have what LC services leave of their share of the node" };
            plan.actions.push(Action { service: s.id.clone(), kind, why: why.into(), because: self.because(s, mean) });
            changes.insert(s.id.clone(), change);
        }
        plan.changes = changes;
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;

    /// 65 % of 20 less 6 are 7; up by two a step, down at once, two at least.
    #[test]
    fn the_rule_is_share_less_use() {
        assert_eq!(be_cores(20.0, 6.0, 7.0), 7.0);
        assert_eq!(be_cores(20.0, 6.0, 2.0), 4.0);
        assert_eq!(be_cores(20.0, 10.0, 13.0), 3.0);
        assert_eq!((be_cores(20.0, 13.0, 5.0), be_cores(1.0, 0.0, 2.0)), (2.0, 1.0));
    }

    /// LC services keep everything; BE jobs come to what is left of the share, in steps of a second, whole cores from the last on, in 30 % of the ways.
    #[test]
    fn be_jobs_follow_what_lc_services_use() {
        let p = Platform::regular("t", 10, 2, 10, 2.0);
        let mut plant = Plant::new(&p).lc("a", 4.0, 10.0).be("x");
        let mut policy = Suppress::new(&p);
        let mut cores = vec![];
        for _ in 0..100 {
            plant.tick();
            let plan = policy.step(plant.t_ms, &plant.observe());
            plant.apply(&plan);
            cores.push(plant.cores("x"));
        }
        assert_eq!((plant.cores("a"), plant.ways("a"), plant.ways("x")), (20.0, 10.0, 3.0));
        let used = plant.observe().get("a").unwrap().features.cpu_usage_cores.unwrap();
        assert_eq!(*cores.last().unwrap(), (20.0 * NODE_SHARE - used).floor());
        let steps: Vec<f64> = cores.windows(2).map(|w| w[1] - w[0]).filter(|d| *d != 0.0).collect();
        assert!(steps.len() > 1 && steps.iter().all(|d| *d <= 2.0), "{cores:?}");
        let x = plant.observe().get("x").unwrap().allocation.clone();
        let cores_of = |set: &CpuSet| set.iter().map(|cpu| p.core_of_cpu[cpu as usize]).collect::<std::collections::BTreeSet<_>>();
        assert!(cores_of(&x.cpus).contains(&9) && !cores_of(&x.cpus).contains(&0), "{x:?}");
    }

    /// Where the use of a service is unknown nothing changes.
    #[test]
    fn an_unknown_use_changes_nothing() {
        let p = Platform::regular("t", 10, 1, 0, 0.0);
        let mut plant = Plant::new(&p).lc("a", 2.0, 10.0).be("x");
        let mut policy = Suppress::new(&p);
        for _ in 0..50 {
            plant.tick();
            let plan = policy.step(plant.t_ms, &plant.observe());
            plant.apply(&plan);
        }
        for t in 0..30 {
            let mut seen = plant.observe();
            seen.services.iter_mut().for_each(|s| s.features.cpu_usage_cores = None);
            assert!(policy.step(plant.t_ms + t * 100, &seen).is_empty());
        }
    }
}
