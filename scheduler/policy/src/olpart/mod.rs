//! OLPart: contextual bandits over cores, ranges of ways and memory bandwidth (Chen et al., EuroSys 2023).
//!
//! Facts of the authors' program (`crbnk/OpenOLPart`, 6cf4061, 2022, without a licence: none of its text is here) and of the abstract:
//!
//! * each job has three bandits (LinUCB, alpha 0.01): for cores, for a range of adjacent ways, for a level of bandwidth. Their context is the job's own
//!   counters beside those of the others;
//! * **arms**: ranges of ways may overlap between jobs, and bandwidth is a cap on each; cores are shared out by a beam search over each job's best few (30
//!   combinations in all), drawn at random in the first five samples and in a fifth of the others;
//! * **reward**: -1 where a target is missed, else the sum of the BE jobs' instructions per cycle, or 1 without such jobs;
//! * **sampling**: from the equal partition on, 30 samples. Then the best one is held.
//!
//! Ours, because the program is silent or cannot run as it stands:
//! * a sample lasts 2 s, as one of `clite`; its p99 is that of the second half where that has 100 requests, else of the window that judges QoS;
//! * **counters**: six that every host can have. The paper selects its own, and the program lacks the selection;
//! * BE jobs are one job; what a job learnt stays while it is here. A new job begins without knowledge (the program: with the doubts of the others);
//! * three versions of the bandits that vote are left out: the second one would begin after 60 samples;
//! * a held partition that misses a target in two periods in a row, or a job that comes or goes, begins the sampling anew;
//! * no sample while a latency is unknown.

mod bandit;

use crate::policy::ask_for;
use crate::Policy;
use bandit::{beam, best, Bandit};
use std::collections::BTreeMap;
use surefoot_learn::rng::Rng;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::window::{merge, MIN_COUNT_P99};
use surefoot_server::{Action, ActionKind, Because, Change, HoldsIf, Latency, Observation, Plan, Platform, Report, ServiceId, ServiceView};

/// Parameters of the authors' program, and the period, which is ours.
#[derive(Clone, Debug)]
pub struct OlpartSettings {
    pub alpha: f64,
    pub samples: usize,
    /// Combinations of cores that are compared.
    pub beam: f64,
    /// First samples whose cores are drawn at random, and the share of later ones.
    pub random_first: usize,
    pub random_share: f64,
    pub period_ms: u64,
    /// Periods in a row with a missed target that end the holding of a partition.
    pub patience: u32,
}

impl Default for OlpartSettings {
    fn default() -> Self {
        OlpartSettings { alpha: 0.01, samples: 30, beam: 30.0, random_first: 5, random_share: 0.2, period_ms: 2000, patience: 2 }
    }
}

/// Counters of a job in its context.
const COUNTERS: usize = 6;
/// Name of the one job that BE jobs are.
const BE: &str = "\0be";

/// What one job gets.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    /// Core units.
    cores: u32,
    /// Index of a range of ways, and of a level of bandwidth.
    range: usize,
    level: usize,
}

struct Bandits {
    cores: Bandit,
    ranges: Bandit,
    levels: Bandit,
}

/// The policy.
pub struct Olpart {
    set: OlpartSettings,
    platform: Platform,
    rng: Rng,
    /// First way and number of ways.
    ranges: Vec<(u32, u32)>,
    levels: Vec<u8>,
    bandits: BTreeMap<ServiceId, Bandits>,
    lc: Vec<ServiceId>,
    be: Vec<ServiceId>,
    current: Vec<Part>,
    /// Samples of this mix: what was tried and what it brought.
    tried: Vec<(Vec<Part>, f64)>,
    /// Periods in a row with a missed target; None while it samples.
    holding: Option<u32>,
    since_ms: u64,
    recent: BTreeMap<ServiceId, Vec<Latency>>,
    wanted: BTreeMap<ServiceId, Change>,
    reported: bool,
}

impl Olpart {
    pub fn new(platform: &Platform, settings: OlpartSettings, seed: u64) -> Self {
        let (ways, least) = (platform.ways(), platform.min_ways().max(1));
        let ranges: Vec<(u32, u32)> = (0..ways).flat_map(|from| (least..=ways - from).map(move |n| (from, n))).collect();
        let levels = platform.mba.map_or(vec![100], |m| {
            let step = m.step_pct.max(10).div_ceil(m.step_pct.max(1)) * m.step_pct.max(1);
            (0..).map_while(|i| 100u8.checked_sub(step.checked_mul(i)?)).take_while(|l| *l >= m.min_pct.max(1)).collect()
        });
        Olpart {
            set: settings,
            platform: platform.clone(),
            rng: Rng::new(seed ^ 0x0012_9a27),
            ranges: if ranges.is_empty() { vec![(0, 0)] } else { ranges },
            levels,
            bandits: BTreeMap::new(),
            lc: vec![],
            be: vec![],
            current: vec![],
            tried: vec![],
            holding: None,
            since_ms: 0,
            recent: BTreeMap::new(),
            wanted: BTreeMap::new(),
            reported: false,
        }
    }

    fn jobs(&self) -> Vec<ServiceId> {
        self.lc.iter().cloned().chain((!self.be.is_empty()).then(|| BE.to_string())).collect()
    }

    /// A new mix, or a partition that fails: from the equal partition on.
    fn begin(&mut self, now_ms: u64, seen: &Observation, why: &str, plan: &mut Plan) {
        self.lc = seen.lc().map(|s| s.id.clone()).collect();
        self.be = seen.be().map(|s| s.id.clone()).collect();
        let jobs = self.jobs();
        self.bandits.retain(|id, _| jobs.contains(id));
        self.tried.clear();
        self.holding = None;
        let (units, ways, n) = (self.platform.core_units(), self.platform.ways(), jobs.len().max(1) as u32);
        let be_least = if self.platform.by_quota() { self.be.len() as u32 } else { 1 };
        if units < n - 1 + be_least.max(1) || ways > 0 && ways < n * self.platform.min_ways().max(1) {
            self.current.clear();
            if let Some(id) = self.lc.last().filter(|_| !self.reported) {
                self.reported = true;
                let why = "not everybody can have a core unit and the least ways: everything is shared".into();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
            let all = seen.services.iter().map(|s| (s.id.clone(), surefoot_server::Allocation::everything(&self.platform)));
            self.wanted = Plan::cores_and_ways(all.collect()).changes;
            return;
        }
        self.reported = false;
        for id in &jobs {
            let (dims, ranges, levels) = (2 * COUNTERS, self.ranges.len(), self.levels.len());
            self.bandits.entry(id.clone()).or_insert_with(|| Bandits {
                cores: Bandit::new(units as usize, dims),
                ranges: Bandit::new(ranges, dims),
                levels: Bandit::new(levels, dims),
            });
        }
        let share = ways / n;
        let equal = |i: u32| Part {
            cores: units / n + u32::from(i >= n - units % n),
            range: self.ranges.iter().position(|r| *r == (i * share, share)).unwrap_or(0),
            level: 0,
        };
        let mut first: Vec<Part> = (0..n).map(equal).collect();
        self.give_be_their_least(&mut first);
        self.put(now_ms, first, seen, why, vec![], plan);
    }

    /// Counters of the services of a job as numbers of about 0 to 1; what cannot be measured is 0.
    fn counters(&self, members: &[ServiceId], seen: &Observation) -> [f64; COUNTERS] {
        let views: Vec<&ServiceView> = members.iter().filter_map(|id| seen.get(id)).collect();
        let sum = |f: &dyn Fn(&ServiceView) -> Option<f64>| views.iter().filter_map(|s| f(s)).sum::<f64>();
        let n = views.len().max(1) as f64;
        let (cores, ways) = (f64::from(self.platform.managed.len()).max(1.0), f64::from(self.platform.ways().max(1)));
        [
            sum(&|s| s.features.ipc) / n / 4.0,
            (1.0 + sum(&|s| s.features.llc_misses_per_s)).log10() / 10.0,
            (1.0 + sum(&|s| s.features.mbl_mbps)).log10() / 6.0,
            sum(&|s| s.features.cpu_usage_cores) / cores,
            sum(&|s| s.features.alloc_cores) / n / cores,
            sum(&|s| s.features.alloc_ways) / n / ways,
        ]
    }

    fn members(&self, job: &ServiceId) -> Vec<ServiceId> {
        if job == BE {
            self.be.clone()
        } else {
            vec![job.clone()]
        }
    }

    /// Own counters, and the mean of the others'.
    fn contexts(&self, seen: &Observation) -> Vec<Vec<f64>> {
        let own: Vec<[f64; COUNTERS]> = self.jobs().iter().map(|j| self.counters(&self.members(j), seen)).collect();
        let others = (own.len().max(2) - 1) as f64;
        let of = |i: usize| {
            let rest = (0..COUNTERS).map(|c| (own.iter().map(|o| o[c]).sum::<f64>() - own[i][c]) / others).collect::<Vec<_>>();
            own[i].iter().copied().chain(rest).collect()
        };
        (0..own.len()).map(of).collect()
    }

    /// -1 where a target is missed, else the BE jobs' instructions per cycle, or 1 where there are none.
    fn reward(&self, seen: &Observation) -> f64 {
        let met = |s: &ServiceView| {
            let recent = self.recent.get(&s.id).map_or(&[][..], Vec::as_slice);
            let half = merge(&recent[recent.len() / 2..], 100.0).filter(|l| l.count >= MIN_COUNT_P99);
            let p99_ms = half.or(s.window).map(|l| l.p99_ms);
            p99_ms.zip(s.qos_target_ms()).is_none_or(|(p, target)| p <= target)
        };
        if !seen.lc().all(met) {
            return -1.0;
        }
        let known: Vec<f64> = seen.be().filter_map(|s| s.features.ipc).collect();
        if known.is_empty() {
            1.0
        } else {
            known.iter().sum()
        }
    }

    /// After a period: learn what it brought, and choose.
    fn next(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let reward = self.reward(seen);
        if let Some(missed) = self.holding {
            let missed = if reward < 0.0 { missed + 1 } else { 0 };
            self.holding = Some(missed);
            (self.since_ms, self.recent) = (now_ms, BTreeMap::new());
            if missed >= self.set.patience {
                self.begin(now_ms, seen, "the partition that is held misses a target, sampling begins anew", plan);
            }
            return;
        }
        let (jobs, contexts) = (self.jobs(), self.contexts(seen));
        for ((job, part), x) in jobs.iter().zip(&self.current).zip(&contexts) {
            let Some(b) = self.bandits.get_mut(job) else { continue };
            b.cores.update(part.cores as usize - 1, x, reward);
            b.ranges.update(part.range, x, reward);
            b.levels.update(part.level, x, reward);
        }
        self.tried.push((self.current.clone(), reward));
        let said = vec![("reward of the last sample", reward)];
        if self.tried.len() >= self.set.samples {
            return self.hold(now_ms, seen, said, plan);
        }
        let alpha = self.set.alpha;
        let mut bounds: Vec<Vec<f64>> = vec![];
        let mut parts: Vec<Part> = vec![];
        for (job, x) in jobs.iter().zip(&contexts) {
            let Some(b) = self.bandits.get(job) else { return };
            bounds.push(b.cores.bounds(x, alpha));
            let (range, level) = (b.ranges.bounds(x, alpha), b.levels.bounds(x, alpha));
            parts.push(Part { cores: 1, range: best(&range, &mut self.rng), level: best(&level, &mut self.rng) });
        }
        let total = self.platform.core_units();
        let each = (self.set.beam.powf(1.0 / jobs.len() as f64) + 1e-9).floor().max(1.0) as usize;
        let candidates: Vec<Vec<u32>> = bounds.iter().map(|b| self.candidates(b, each)).collect();
        for (part, cores) in parts.iter_mut().zip(beam(total, &candidates, &bounds)) {
            part.cores = cores;
        }
        self.give_be_their_least(&mut parts);
        self.put(now_ms, parts, seen, "the largest upper bounds", said, plan);
    }

    /// Numbers of cores of a job that are in question.
    fn candidates(&mut self, bounds: &[f64], n: usize) -> Vec<u32> {
        let at_random = self.tried.len() < self.set.random_first || self.rng.uniform() < self.set.random_share;
        if at_random {
            return (0..n).map(|_| 1 + self.rng.below(bounds.len()) as u32).collect();
        }
        let mut order: Vec<usize> = (0..bounds.len()).collect();
        order.sort_by(|a, b| bounds[*b].total_cmp(&bounds[*a]));
        order.into_iter().take(n).map(|i| i as u32 + 1).collect()
    }

    /// A quota is split among BE jobs: they need a unit each.
    fn give_be_their_least(&self, parts: &mut [Part]) {
        let least = if self.platform.by_quota() { self.be.len() as u32 } else { u32::from(!self.be.is_empty()) };
        let lacks = parts.last().map_or(0, |p| least.saturating_sub(p.cores));
        for _ in 0..lacks {
            let all: u32 = parts.iter().map(|p| p.cores).sum();
            let n = parts.len();
            if all >= self.platform.core_units() {
                let Some(richest) = parts[..n - 1].iter_mut().max_by_key(|p| p.cores).filter(|p| p.cores > 1) else { return };
                richest.cores -= 1;
            }
            parts[n - 1].cores += 1;
        }
    }

    fn hold(&mut self, now_ms: u64, seen: &Observation, said: Vec<(&'static str, f64)>, plan: &mut Plan) {
        let Some((parts, reward)) = self.tried.iter().max_by(|a, b| a.1.total_cmp(&b.1)).cloned() else { return };
        if reward < 0.0 {
            for s in seen.lc().filter(|s| s.qos_met() == Some(false)) {
                let why = format!("none of {} partitions tried meets all targets", self.tried.len());
                plan.reports.push(Report::Migrate { service: s.id.clone(), why });
            }
        }
        self.holding = Some(0);
        self.put(now_ms, parts, seen, "the best of all samples is held", said, plan);
    }

    /// Put a partition in force.
    fn put(&mut self, now_ms: u64, next: Vec<Part>, seen: &Observation, why: &str, said: Vec<(&'static str, f64)>, plan: &mut Plan) {
        let jobs = self.jobs();
        let step_ways = self.platform.min_ways().max(u32::from(self.platform.ways() > 0));
        let mut holdings = vec![];
        for (i, (job, part)) in jobs.iter().zip(&next).enumerate() {
            let members = self.members(job);
            let before = self.current.get(i).copied();
            let (from, n) = self.ranges[part.range];
            let mba_pct = self.levels[part.level];
            for s in members.iter().filter_map(|id| seen.get(id)).filter(|_| before != Some(*part)) {
                let kind = match before {
                    None => ActionKind::Place,
                    Some(b) if (b.cores, self.ranges[b.range].1) <= (part.cores, n) => ActionKind::Grow,
                    Some(_) => ActionKind::Shrink,
                };
                // A sample is a question: better is hoped for, not expected.
                let mut because = Because::seen(s).expect(if s.is_lc() { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::NotJudged });
                for (what, value) in &said {
                    because.say("bandit", *what, *value, "");
                }
                because.bind("one partition a period; ranges of ways may overlap");
                let why = format!("{why}: {} core units, ways {from} to {}, memory bandwidth {mba_pct} %", part.cores, from + n.max(1) - 1);
                plan.actions.push(Action { service: s.id.clone(), kind, why, because });
            }
            // Places of cores are packed; ways are laid over them below.
            holdings.push(Holding { members, cores: part.cores, ways: step_ways, mba_pct });
        }
        let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        match pack(&self.platform, &in_force, &holdings, &[]) {
            Ok(mut all) => {
                for (holding, part) in holdings.iter().zip(&next).filter(|_| self.platform.ways() > 0) {
                    let (from, n) = self.ranges[part.range];
                    for id in &holding.members {
                        let Some(a) = all.get_mut(id) else { continue };
                        let mask = ((1u64 << n) - 1) as u32;
                        a.ways.iter_mut().for_each(|m| *m = mask << from);
                        a.shared_ways = a.ways.clone();
                    }
                }
                self.wanted = Plan::cores_and_ways(all).changes;
            }
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        (self.current, self.since_ms, self.recent) = (next, now_ms, BTreeMap::new());
    }
}

impl Policy for Olpart {
    fn name(&self) -> &str {
        "olpart"
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let changed = !seen.lc().map(|s| &s.id).eq(&self.lc) || !seen.be().map(|s| &s.id).eq(&self.be);
        let silent = seen.lc().any(|s| s.placed && s.latency_unknown());
        if changed {
            self.current.clear();
            self.begin(now_ms, seen, "jobs have come or gone, sampling begins anew", &mut plan);
        } else if !self.current.is_empty() {
            for s in seen.lc() {
                self.recent.entry(s.id.clone()).or_default().extend(s.interval);
            }
            if silent {
                (self.since_ms, self.recent) = (now_ms, BTreeMap::new());
            } else if now_ms >= self.since_ms + self.set.period_ms {
                self.next(now_ms, seen, &mut plan);
            }
        }
        // What a guard put off is asked for again.
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;

    fn step(plant: &mut Plant, policy: &mut Olpart) -> Plan {
        plant.tick();
        let plan = policy.step(plant.t_ms, &plant.observe());
        plant.apply(&plan);
        plan
    }

    /// A plant without queues, in which one service needs more than its equal share of 2 cores.
    fn three() -> Plant {
        let p = Platform::regular("t", 8, 1, 8, 2.0);
        let plant = Plant { queues: false, ..Plant::new(&p) };
        plant.lc("a", 1.8, 10.0).lc("b", 0.5, 10.0).lc("c", 0.4, 10.0).be("x")
    }

    /// It begins with equal parts; each sample has its 2 s; after 30 it holds the best, and then changes nothing while targets are met.
    #[test]
    fn thirty_samples_and_then_the_best_is_held() {
        let mut plant = three();
        let mut policy = Olpart::new(&plant.platform.clone(), OlpartSettings::default(), 1);
        let mut at = vec![];
        step(&mut plant, &mut policy);
        assert_eq!((plant.cores("a"), plant.ways("a"), plant.cores("x")), (2.0, 2.0, 2.0));
        let mut missed = 0;
        for _ in 0..700 {
            if !step(&mut plant, &mut policy).is_empty() {
                at.push(plant.t_ms);
            }
            missed += u32::from(!plant.all_met());
        }
        assert!(at.windows(2).all(|w| w[1] - w[0] >= 2000) && policy.tried.len() == 30, "{at:?}");
        // The first sample misses a target for its whole 2 s, and what the bandits are told is a miss. What is held meets all.
        assert!(policy.holding.is_some() && plant.all_met() && missed >= 20 && policy.tried[0].1 == -1.0, "{missed} {:?}", policy.tried);
        assert!((0..100).all(|_| step(&mut plant, &mut policy).is_empty()));
    }

    /// What it is told: -1 while a target is missed, else the job's instructions per cycle.
    #[test]
    fn a_reward_is_a_miss_or_the_work_of_be_jobs() {
        let mut plant = three();
        let mut policy = Olpart::new(&plant.platform.clone(), OlpartSettings::default(), 1);
        (0..15).for_each(|_| drop(step(&mut plant, &mut policy)));
        assert_eq!(policy.reward(&plant.observe()), -1.0);
        plant.tenant("a").demand = 0.5;
        (0..15).for_each(|_| drop(step(&mut plant, &mut policy)));
        policy.recent.clear();
        assert_eq!((plant.all_met(), policy.reward(&plant.observe())), (true, 1.0));
    }

    /// Nobody is sampled on while a latency is unknown, and a mix that cannot be partitioned is shared and said.
    #[test]
    fn silence_stops_it_and_too_many_share() {
        let mut plant = three();
        let mut policy = Olpart::new(&plant.platform.clone(), OlpartSettings::default(), 1);
        (0..50).for_each(|_| drop(step(&mut plant, &mut policy)));
        plant.tenant("a").silent = true;
        assert!((0..100).all(|_| step(&mut plant, &mut policy).is_empty()));
        let p = Platform::regular("t", 2, 1, 8, 2.0);
        let mut plant = Plant::new(&p).lc("a", 0.1, 10.0).lc("b", 0.1, 10.0).be("x");
        let reports = Olpart::new(&p, OlpartSettings::default(), 1).step(0, &plant.observe()).reports;
        assert!(matches!(&reports[..], [Report::CannotPlace { service, .. }] if service == "b"));
        assert!(step(&mut plant, &mut Olpart::new(&p, OlpartSettings::default(), 1)).changes.len() == 3);
    }

    /// On a host of quota, and where ways and bandwidth cannot be partitioned, it works on cores alone.
    #[test]
    fn it_works_in_tenths_of_a_core() {
        let p = Platform { core_step: 0.1, mba: None, ..Platform::regular("q", 2, 1, 0, 0.0) };
        let mut plant = Plant { queues: false, ..Plant::new(&p) }.lc("a", 0.3, 10.0).be("x").be("y");
        let mut policy = Olpart::new(&p, OlpartSettings::default(), 1);
        (0..800).for_each(|_| drop(step(&mut plant, &mut policy)));
        assert!(plant.all_met() && plant.cores("x") >= 0.1 && plant.cores("y") >= 0.1);
    }
}
