//! Heracles: BE jobs grow beside latency-critical work while it has slack (Lo et al., ISCA 2015).
//!
//! * **Top-level controller**, every 15 s: slack = 1 - p99 / target. Below 0 the BE jobs are disabled, and stay so for 5 minutes; at
//!   a load above 85 % they are disabled, below 80 % enabled; at a slack below 10 % they may not grow, below 5 % they keep 2 cores.
//! * **Cores and cache**, every 2 s: above 90 % of the peak memory bandwidth the BE jobs lose as many cores as draw the surplus.
//!   Otherwise they grow by gradient descent in one dimension at a time: ways first, one at a time, until bandwidth does not
//!   fall or the jobs do not gain by it; then cores, one at a time, while slack is above 10 % and the bandwidth of one more is there.
//!   Enabled jobs begin with one core and a tenth of the cache.
//!
//! What differs, or is left out:
//! * Heracles is for one LC service. Several are one group here that shares all that the BE jobs do not hold, and the least slack
//!   counts. It partitions nothing among them, and neither do we;
//! * **load** is relative to the largest load that the service can take. A node does not know that one: the LC services' share of
//!   all CPU time stands in for it;
//! * the **model of the LC service's bandwidth** that the paper makes off line is not needed: bandwidth is measured by service.
//!   Where it is not, or the peak is unknown, bandwidth binds nothing;
//! * **disabled** jobs cannot be stopped by a plan: they keep one core, the least ways and the least memory bandwidth;
//! * **power** (RAPL and DVFS by core) and **network** (traffic control): a plan has neither frequency nor network. Frequency can be
//!   observed only;
//! * the lower controller asks for **slack of the last second** besides that of the last look: the paper's pseudo-code may be read as
//!   growing blindly for 15 s, seven cores far;
//! * **arrivals**: the first second of a new mix is not judged, and the next look comes a whole interval later;
//! * an **unknown latency** allows no growth and takes nothing away.

use crate::books::Amount;
use crate::pace::Pace;
use crate::policy::ask_for;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::layout::{pack, Holding};
use surefoot_server::window::{mixture_quantile, MIN_COUNT_P99};
use surefoot_server::{
    Action, ActionKind, Allocation, Because, Change, HoldsIf, Latency, Observation, Plan, Platform, Report, ServiceId, ServiceView,
};

/// Thresholds and intervals; the defaults are the paper's.
#[derive(Clone, Debug)]
pub struct HeraclesSettings {
    pub name: &'static str,
    /// Interval of the top-level controller.
    pub top_ms: u64,
    /// Interval of the controller of cores and cache.
    pub sub_ms: u64,
    /// After a missed target the BE jobs stay disabled for so long.
    pub cooldown_ms: u64,
    /// Load above which BE jobs are disabled, and below which they are enabled.
    pub load_off: f64,
    pub load_on: f64,
    /// Slack below which they may not grow, and below which they keep [`HeraclesSettings::keep_cores`].
    pub no_growth_slack: f64,
    pub give_back_slack: f64,
    pub keep_cores: f64,
    /// Of the peak memory bandwidth.
    pub bandwidth_limit: f64,
    /// Share of the ways with which BE jobs begin.
    pub first_ways: f64,
}

impl Default for HeraclesSettings {
    fn default() -> Self {
        HeraclesSettings {
            name: "heracles",
            top_ms: 15_000,
            sub_ms: 2_000,
            cooldown_ms: 300_000,
            load_off: 0.85,
            load_on: 0.80,
            no_growth_slack: 0.10,
            give_back_slack: 0.05,
            keep_cores: 2.0,
            bandwidth_limit: 0.90,
            first_ways: 0.10,
        }
    }
}

impl HeraclesSettings {
    /// Both controllers every 100 ms, the cool-down shorter in the proportion of the top-level interval. The p99 is mostly that of
    /// the last second then, and a growth is judged before all of it shows.
    pub fn every_100_ms() -> Self {
        HeraclesSettings { name: "heracles-100ms", top_ms: 100, sub_ms: 100, cooldown_ms: 2_000, ..HeraclesSettings::default() }
    }
}

/// How long a new mix is not judged: caches are cold, queues are those of before.
const UNSETTLED_MS: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Descent {
    Ways,
    Cores,
}

/// Sums over an interval of the lower controller.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    ticks: f64,
    lc_mbps: f64,
    be_mbps: f64,
    /// Ticks in which every bandwidth was known.
    bandwidth_ticks: f64,
    work: f64,
}

/// What an interval of the lower controller showed.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Of the LC services, and of the BE jobs.
    mbps: Option<(f64, f64)>,
    work: f64,
}

/// The policy.
pub struct Heracles {
    pace: Pace,
    set: HeraclesSettings,
    platform: Platform,
    lc: Vec<ServiceId>,
    be: Vec<ServiceId>,
    /// What the BE jobs hold while they are enabled.
    part: Amount,
    enabled: bool,
    may_grow: bool,
    /// Least slack at the last look; None while unknown.
    slack: Option<f64>,
    cooldown_until_ms: u64,
    descent: Descent,
    /// A way more is on trial, and this was measured before.
    trial: Option<Measured>,
    next_top_ms: u64,
    next_sub_ms: u64,
    /// Latencies before this are not judged.
    judged_from_ms: u64,
    recent: BTreeMap<ServiceId, Vec<Latency>>,
    /// CPU time of the LC services since the last look, in cores, and ticks in which it was known.
    busy: (f64, f64),
    sums: Sums,
    wanted: BTreeMap<ServiceId, Change>,
    reported: bool,
}

impl Heracles {
    pub fn new(platform: &Platform, settings: HeraclesSettings) -> Self {
        Heracles {
            pace: Pace::default(),
            set: settings,
            platform: platform.clone(),
            lc: vec![],
            be: vec![],
            part: Amount::default(),
            enabled: false,
            may_grow: false,
            slack: None,
            cooldown_until_ms: 0,
            descent: Descent::Ways,
            trial: None,
            next_top_ms: 0,
            next_sub_ms: 0,
            judged_from_ms: 0,
            recent: BTreeMap::new(),
            busy: (0.0, 0.0),
            sums: Sums::default(),
            wanted: BTreeMap::new(),
            reported: false,
        }
    }

    fn total(&self) -> Amount {
        Amount::new(self.platform.core_units(), self.platform.ways())
    }

    /// The least of a group of so many: a quota is split among its members.
    fn least(&self, members: usize) -> Amount {
        Amount::new(if self.platform.by_quota() { members as u32 } else { 1 }, self.platform.min_ways())
    }

    /// The most that the BE jobs may hold.
    fn most(&self) -> Amount {
        self.total().minus(self.least(self.lc.len()))
    }

    /// With what they begin.
    fn first(&self) -> Amount {
        let ways = (f64::from(self.platform.ways()) * self.set.first_ways).round() as u32;
        Amount::new(self.platform.units(1.0), ways).at_least(self.least(self.be.len())).at_most(self.most())
    }

    /// In force now: what enabled jobs hold, or the least.
    fn held(&self) -> Amount {
        if self.enabled {
            self.part
        } else {
            self.least(self.be.len())
        }
    }

    /// p99 of an LC service since the last look; over the window by which QoS is judged where it had too few requests.
    fn slack_of(&self, s: &ServiceView) -> Option<f64> {
        let window = s.window.filter(|_| !s.latency_unknown())?;
        let recent = self.recent.get(&s.id).filter(|r| r.iter().map(|l| l.count).sum::<u64>() >= MIN_COUNT_P99);
        let p99_ms = recent.and_then(|r| mixture_quantile(r, 0.01)).unwrap_or(window.p99_ms);
        Some(1.0 - p99_ms / s.qos_target_ms()?)
    }

    /// The top-level controller.
    fn look(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // Idle services have nothing to be late with.
        let judged = seen.lc().filter(|s| s.window.is_some() || s.latency_unknown());
        let slacks: Option<Vec<f64>> = judged.map(|s| self.slack_of(s)).collect();
        let load = (self.busy.1 > 0.0).then(|| self.busy.0 / self.busy.1 / self.platform.cores(self.platform.core_units()));
        self.slack = slacks.map(|all| all.into_iter().fold(1.0, f64::min));
        let Some(slack) = self.slack else {
            self.may_grow = false;
            return;
        };
        let over = load.is_some_and(|l| l > self.set.load_off);
        if slack < 0.0 || over {
            self.may_grow = false;
            if slack < 0.0 {
                self.cooldown_until_ms = now_ms + self.set.cooldown_ms;
            }
            if self.enabled {
                self.enabled = false;
                self.trial = None;
                let why = if slack < 0.0 { "a target is missed: BE jobs are disabled" } else { "the load is high: BE jobs are disabled" };
                let bound = if slack < 0.0 { "disabled until the cool-down is over" } else { "disabled until the load is lower" };
                self.act(seen, ActionKind::Shrink, why, load, bound, plan);
            }
            return;
        }
        if !self.enabled && load.is_none_or(|l| l < self.set.load_on) && now_ms >= self.cooldown_until_ms && !self.be.is_empty() {
            self.enabled = true;
            self.part = self.first();
            self.descent = Descent::Ways;
            self.trial = None;
            self.act(
                seen,
                ActionKind::Grow,
                "slack, and no high load: BE jobs are enabled",
                load,
                "they begin with one core and a tenth of the cache",
                plan,
            );
        }
        self.may_grow = slack >= self.set.no_growth_slack;
        let keep = self.platform.units(self.set.keep_cores).max(self.least(self.be.len()).cores);
        if self.enabled && slack < self.set.give_back_slack && self.part.cores > keep {
            self.part.cores = keep;
            self.act(seen, ActionKind::Shrink, "hardly any slack: BE jobs keep two cores", load, "slack is below the least", plan);
        }
    }

    /// The controller of cores and cache.
    fn descend(&mut self, seen: &Observation, plan: &mut Plan) {
        let now = self.measured();
        if !self.enabled {
            return;
        }
        let limit = self.platform.mem_bw_mbps.map(|peak| peak * self.set.bandwidth_limit);
        let least = self.least(self.be.len());
        let per_core = |be: f64| be / f64::from(self.part.cores.max(1));
        // How much bandwidth there is beyond need; None: unknown, and no limit.
        let beyond = |more: f64| Some(now.mbps?.0 + now.mbps?.1 + more - limit?);
        if let Some(over) = beyond(0.0).filter(|o| *o > 0.0) {
            let each = per_core(now.mbps.map_or(0.0, |m| m.1)).max(1.0);
            let fewer = ((over / each).ceil() as u32).min(self.part.cores - least.cores);
            self.trial = None;
            if fewer > 0 {
                self.part.cores -= fewer;
                self.act(
                    seen,
                    ActionKind::Shrink,
                    "memory bandwidth is used up: BE jobs lose cores",
                    None,
                    "bandwidth is above its limit",
                    plan,
                );
            }
            return;
        }
        if let Some(before) = self.trial.take() {
            let rose = match (before.mbps, now.mbps) {
                (Some(b), Some(n)) => n.0 + n.1 >= b.0 + b.1,
                _ => false,
            };
            if rose || now.work <= before.work {
                self.descent = Descent::Cores;
            }
            if rose && self.part.ways > least.ways {
                self.part.ways -= 1;
                self.act(seen, ActionKind::Rollback, "one more way did not lower bandwidth: taken back", None, "cores are next", plan);
                return;
            }
        }
        let slack_now = |s: &ServiceView| Some(1.0 - s.window.filter(|_| !s.latency_unknown())?.p99_ms / s.qos_target_ms()?);
        let judged = seen.lc().filter(|s| s.window.is_some() || s.latency_unknown());
        if !self.may_grow || judged.map(slack_now).any(|s| s.is_none_or(|s| s < self.set.no_growth_slack)) {
            return;
        }
        if self.descent == Descent::Ways {
            if self.part.ways < self.most().ways {
                self.trial = Some(now);
                self.part.ways += 1;
                self.act(seen, ActionKind::Grow, "slack: one more way to the BE jobs", None, "one way at a time, on trial", plan);
                return;
            }
            self.descent = Descent::Cores;
        }
        if beyond(per_core(now.mbps.map_or(0.0, |m| m.1))).is_some_and(|b| b > 0.0) {
            self.descent = Descent::Ways;
        } else if self.part.cores < self.most().cores {
            self.part.cores = (self.part.cores + self.platform.units(1.0).max(1)).min(self.most().cores);
            self.act(seen, ActionKind::Grow, "slack: one more core to the BE jobs", None, "one core at a time", plan);
        }
    }

    fn measured(&self) -> Measured {
        let s = &self.sums;
        let mbps = (s.bandwidth_ticks > 0.0).then(|| (s.lc_mbps / s.bandwidth_ticks, s.be_mbps / s.bandwidth_ticks));
        Measured { mbps, work: s.work / s.ticks.max(1.0) }
    }

    fn collect(&mut self, now_ms: u64, seen: &Observation) {
        let keep = self.pace.steps(self.set.top_ms);
        for s in seen.lc().filter(|_| now_ms > self.judged_from_ms) {
            let Some(l) = s.interval else { continue };
            let recent = self.recent.entry(s.id.clone()).or_default();
            recent.push(l);
            let surplus = recent.len().saturating_sub(keep);
            recent.drain(..surplus);
        }
        if let Some(cores) = seen.lc().map(|s| s.features.cpu_usage_cores).sum::<Option<f64>>() {
            self.busy = (self.busy.0 + cores, self.busy.1 + 1.0);
        }
        let mbps = |of: &mut dyn Iterator<Item = &ServiceView>| of.map(|s| s.features.mbl_mbps).sum::<Option<f64>>();
        if let (Some(lc), Some(be)) = (mbps(&mut seen.lc()), mbps(&mut seen.be())) {
            self.sums.lc_mbps += lc;
            self.sums.be_mbps += be;
            self.sums.bandwidth_ticks += 1.0;
        }
        self.sums.ticks += 1.0;
        self.sums.work += seen.be().map(|s| s.instr_per_s.or(s.features.cpu_usage_cores).unwrap_or(0.0)).sum::<f64>();
    }

    /// A step of the BE jobs; what they give or take is the LC group's.
    fn act(&self, seen: &Observation, kind: ActionKind, why: &str, load: Option<f64>, bound: &'static str, plan: &mut Plan) {
        let held = self.held();
        for s in seen.be() {
            let mut because = Because::seen(s);
            because.say("slack", "1 - p99 / target, the least of all LC services", self.slack.unwrap_or(f64::NAN), "");
            because.say("load", "share of the CPU time that LC services use", load.unwrap_or(f64::NAN), "");
            let (lc, be) = self.measured().mbps.unwrap_or((f64::NAN, f64::NAN));
            because.say("bandwidth", "LC services", lc, "MB/s");
            because.say("bandwidth", "BE jobs", be, "MB/s");
            because.bind(bound);
            let why = format!("{why}; {} core units, {} ways", held.cores, held.ways);
            plan.actions.push(Action { service: s.id.clone(), kind, why, because });
        }
    }

    /// Services came or went.
    fn arrive(&mut self, seen: &Observation, plan: &mut Plan) {
        let newcomers: Vec<ServiceId> =
            seen.services.iter().map(|s| s.id.clone()).filter(|id| !self.lc.contains(id) && !self.be.contains(id)).collect();
        self.lc = seen.lc().map(|s| s.id.clone()).collect();
        self.be = seen.be().map(|s| s.id.clone()).collect();
        self.recent.clear();
        self.trial = None;
        self.enabled &= !self.be.is_empty();
        self.part = self.part.at_most(self.most()).at_least(self.least(self.be.len()));
        for s in newcomers.iter().filter_map(|id| seen.get(id)) {
            let mut because = Because::seen(s);
            let (why, bound) = if s.is_lc() {
                because = because.expect(HoldsIf::Qos { at_least: 1.0 });
                ("all that BE jobs do not hold, shared with the other LC services", "LC services are one group")
            } else {
                ("the least, until the top-level controller has looked", "BE jobs are disabled at first")
            };
            because.bind(bound);
            plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Place, why: why.into(), because });
        }
    }

    /// Allocations of the two groups.
    fn lay_out(&mut self, seen: &Observation, plan: &mut Plan) {
        let everything = || seen.services.iter().map(|s| (s.id.clone(), Allocation::everything(&self.platform))).collect();
        let fits = self.least(self.lc.len()).plus(self.least(self.be.len())).fits_in(self.total());
        if self.be.is_empty() || self.lc.is_empty() || !fits {
            if !fits && !self.lc.is_empty() && !self.be.is_empty() && !self.reported {
                self.reported = true;
                let why = "two groups cannot both have the least: everything is shared".to_string();
                plan.reports.push(Report::CannotPlace { service: self.lc[0].clone(), why });
            }
            self.wanted = Plan::cores_and_ways(everything()).changes;
            return;
        }
        let be = self.held();
        let lc = self.total().minus(be);
        let least_mba = self.platform.mba.map_or(100, |m| m.min_pct);
        let holdings = [
            Holding { members: self.lc.clone(), cores: lc.cores, ways: lc.ways, mba_pct: 100 },
            Holding { members: self.be.clone(), cores: be.cores, ways: be.ways, mba_pct: if self.enabled { 100 } else { least_mba } },
        ];
        let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        match pack(&self.platform, &in_force, &holdings, &[]) {
            Ok(all) => self.wanted = Plan::cores_and_ways(all).changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
    }
}

impl Policy for Heracles {
    fn name(&self) -> &str {
        self.set.name
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let same = |ids: &[ServiceId], now: &mut dyn Iterator<Item = &ServiceView>| now.map(|s| &s.id).eq(ids);
        let news = !same(&self.lc, &mut seen.lc()) || !same(&self.be, &mut seen.be());
        if news {
            self.judged_from_ms = now_ms + UNSETTLED_MS;
            self.next_top_ms = self.judged_from_ms + self.set.top_ms;
            self.next_sub_ms = self.judged_from_ms + self.set.sub_ms;
            self.arrive(seen, &mut plan);
        }
        self.collect(now_ms, seen);
        let before = (self.enabled, self.held());
        if now_ms >= self.next_top_ms {
            self.next_top_ms = now_ms + self.set.top_ms;
            self.look(now_ms, seen, &mut plan);
            self.busy = (0.0, 0.0);
        }
        if now_ms >= self.next_sub_ms {
            self.next_sub_ms = now_ms + self.set.sub_ms;
            // One controller at a time: what the upper one has just decided is not measured yet.
            if before == (self.enabled, self.held()) {
                self.descend(seen, &mut plan);
            }
            self.sums = Sums::default();
        }
        if news || before != (self.enabled, self.held()) {
            self.lay_out(seen, &mut plan);
        }
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;
    use surefoot_server::Kind;

    fn server() -> Platform {
        Platform::regular("t", 72, 1, 10, 2.0)
    }

    fn heracles(p: &Platform) -> Heracles {
        Heracles::new(p, HeraclesSettings::default())
    }

    /// One tick; bandwidth of each service in MB/s by its cores and ways, where the test says how.
    fn step(plant: &mut Plant, policy: &mut Heracles, mbps: Option<&dyn Fn(&ServiceView) -> f64>) -> Plan {
        plant.tick();
        let mut seen = plant.observe();
        for s in &mut seen.services {
            s.features.mbl_mbps = mbps.map(|f| f(s));
        }
        let plan = policy.step(plant.t_ms, &seen);
        plant.apply(&plan);
        plan
    }

    fn run(plant: &mut Plant, policy: &mut Heracles, seconds: usize) -> Vec<Action> {
        (0..seconds * 10).flat_map(|_| step(plant, policy, None).actions).collect()
    }

    /// BE jobs hold the least until the first look, begin with a core and a tenth of the cache, and grow while there is slack; the LC
    /// services share the rest.
    #[test]
    fn be_jobs_grow_while_there_is_slack() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 40.0, 10.5).lc("b", 1.0, 10.5).be("x");
        // Two that share count half each for the plant.
        plant.tenant("a").demand = 20.0;
        let mut policy = heracles(&p);
        run(&mut plant, &mut policy, 15);
        assert_eq!((plant.cores("x"), plant.ways("x"), plant.cores("a"), plant.cores("b")), (1.0, 1.0, 71.0, 71.0));
        let mba = |plant: &Plant| plant.observe().get("x").unwrap().allocation.mba_pct;
        assert_eq!(mba(&plant), 10);
        let mut before = (1.0, 1.0);
        for _ in 0..60 {
            let actions = run(&mut plant, &mut policy, 2);
            let now = (plant.cores("x"), plant.ways("x"));
            assert!(actions.len() <= 1 && now.0 >= before.0 && now.0 - before.0 + now.1 - before.1 <= 1.0, "{before:?} {now:?}");
            before = now;
        }
        // p99 = 3 + 1 / (1 - 40 / c): 9.0 on 48 cores, 9.7 on 47, and a slack of 10 % is 9.45.
        assert_eq!((before.0, mba(&plant)), (25.0, 100));
        assert!(plant.all_met());
    }

    /// A missed target disables the jobs for five minutes, whatever slack there is then.
    #[test]
    fn a_missed_target_disables_be_jobs() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 20.0, 10.0).be("x");
        let mut policy = heracles(&p);
        run(&mut plant, &mut policy, 40);
        assert!(plant.cores("x") > 1.0 || plant.ways("x") > 1.0);
        plant.tenant("a").demand = 71.5;
        let actions = run(&mut plant, &mut policy, 16);
        assert!(actions.iter().any(|a| a.kind == ActionKind::Shrink && a.why.contains("disabled")), "{actions:?}");
        plant.tenant("a").demand = 10.0;
        let disabled = |plant: &Plant| (plant.cores("x"), plant.ways("x")) == (1.0, 1.0);
        // At most one more look sees the miss.
        assert!((0..300).all(|_| run(&mut plant, &mut policy, 1).is_empty() && disabled(&plant)));
        run(&mut plant, &mut policy, 60);
        assert!(!disabled(&plant) && plant.all_met());
    }

    /// Slack below 5 % leaves two cores; below 10 % nothing grows.
    #[test]
    fn little_slack_stops_and_reverses_growth() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 40.0, 20.0).be("x");
        let mut policy = heracles(&p);
        run(&mut plant, &mut policy, 50);
        let cores = plant.cores("x");
        assert!(cores > 2.0, "{cores}");
        let p99_ms = plant.observe().get("a").unwrap().window.unwrap().p99_ms;
        plant.tenant("a").kind = Kind::Lc { qos_target_ms: p99_ms / 0.93 };
        run(&mut plant, &mut policy, 20);
        assert_eq!(plant.cores("x"), cores);
        plant.tenant("a").kind = Kind::Lc { qos_target_ms: p99_ms / 0.97 };
        run(&mut plant, &mut policy, 16);
        assert_eq!(plant.cores("x"), 2.0);
    }

    /// Load above 85 % of all CPU time disables the jobs though there is slack, below 80 % they come back without a cool-down.
    #[test]
    fn a_high_load_disables_be_jobs() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 40.0, 200.0).be("x");
        let mut policy = heracles(&p);
        run(&mut plant, &mut policy, 17);
        assert!(policy.enabled);
        plant.tenant("a").demand = 63.0;
        run(&mut plant, &mut policy, 15);
        assert!(!policy.enabled && plant.all_met());
        plant.tenant("a").demand = 55.0;
        run(&mut plant, &mut policy, 31);
        assert!(policy.enabled);
    }

    /// Bandwidth: above 90 % of the peak the jobs lose the cores that draw the surplus; a way that does not lower it is taken back, and
    /// cores are next.
    #[test]
    fn bandwidth_bounds_growth() {
        let p = Platform { mem_bw_mbps: Some(10_000.0), ..server() };
        let mut plant = Plant::new(&p).lc("a", 1.0, 20.0).be("x");
        let mut policy = heracles(&p);
        // 1 GB/s of the service, 1.5 GB/s of each core of the job: 1 + 1.5 n <= 9 to n = 5.
        let cores_draw = |s: &ServiceView| if s.is_lc() { 1000.0 } else { 1500.0 * s.allocation.cores() };
        let mut kinds = vec![];
        for _ in 0..600 {
            kinds.extend(step(&mut plant, &mut policy, Some(&cores_draw)).actions.iter().map(|a| a.kind));
        }
        assert!(kinds.contains(&ActionKind::Rollback));
        assert_eq!((plant.cores("x"), plant.ways("x")), (5.0, 1.0));
        // Now each core draws twice as much: 1 + 3 n <= 9.
        let more = |s: &ServiceView| if s.is_lc() { 1000.0 } else { 3000.0 * s.allocation.cores() };
        for _ in 0..65 {
            step(&mut plant, &mut policy, Some(&more));
        }
        assert_eq!(plant.cores("x"), 2.0);
    }

    /// While a latency is unknown nothing grows, and nothing is taken back.
    #[test]
    fn the_silent_lose_nothing() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 10.0, 20.0).lc("b", 10.0, 20.0).be("x");
        let mut policy = heracles(&p);
        run(&mut plant, &mut policy, 29);
        plant.tenant("a").silent = true;
        // The next look sees it.
        run(&mut plant, &mut policy, 2);
        let held = (plant.cores("a"), plant.ways("a"));
        assert!(run(&mut plant, &mut policy, 60).is_empty());
        assert_eq!((plant.cores("a"), plant.ways("a")), held);
    }

    /// Every 100 ms it takes steps of the same kinds, and a cool-down lasts two seconds.
    #[test]
    fn it_decides_every_100_ms_too() {
        let p = server();
        let mut plant = Plant::new(&p).lc("a", 20.0, 10.0).be("x");
        let mut policy = Heracles::new(&p, HeraclesSettings::every_100_ms());
        run(&mut plant, &mut policy, 3);
        // Enabled after 1.1 s, then a way, then a core a tick.
        assert!(policy.enabled && plant.cores("x") > 15.0 && plant.all_met(), "{}", plant.cores("x"));
        plant.tenant("a").demand = 71.9;
        run(&mut plant, &mut policy, 2);
        assert!(!policy.enabled);
        plant.tenant("a").demand = 20.0;
        run(&mut plant, &mut policy, 6);
        assert!(policy.enabled && plant.all_met());
    }
}
