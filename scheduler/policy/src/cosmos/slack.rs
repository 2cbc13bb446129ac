//! COSMOS's baselines that follow slack: `cosmos-ca` divides cores, `cosmos-cma` cores and memory.
//!
//! The COSMOS paper says of CA that it allocates cores dynamically, and of CMA that it does so with cores and memory, as PARTIES does. It gives no
//! algorithm. This is PARTIES' own for two holders: every period one step of one resource.
//!
//! * slack (1 - p99 / target) below 5 %: the LC services get a step more of the resource in turn; where p99 does not fall by it, the other one is next;
//! * slack above 20 %: they give one, on trial. If slack then falls below 5 % they get it back, and that resource is left in peace for 30 s;
//!   twice as long each time that this happens again (ours: PARTIES would try for ever).
//!
//! Both begin with equal halves of the cores. A step is a core, or 5 % of the LC services' footprint as under `cosmos`. Under `cosmos-cma` there is no
//! pool: PARTIES knows none, so what a limit takes goes to the swap device. From there a service that answers a thousand requests a second takes an
//! hour to fetch gigabytes. So the LC services begin with as much as their footprint, and what they give is counted from what they use.
//! `cosmos-ca` says nothing of memory: the kernel divides it.

use super::groups::{divide, Gathered, Groups};
use crate::pace::Pace;
use crate::policy::ask_for;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{Action, ActionKind, Because, Change, HoldsIf, Observation, Plan, Platform, Report, Resource, ServiceId};

/// Between two steps: COSMOS's period.
const PERIOD_MS: u64 = 1000;
/// PARTIES: below this slack more, above that one less.
const UPSIZE_SLACK: f64 = 0.05;
const DOWNSIZE_SLACK: f64 = 0.20;
/// PARTIES: a resource that was missed gives nothing for so long.
const PEACE_MS: u64 = 30_000;
const PEACE_DOUBLINGS: u32 = 5;
/// A step that lowers p99 by less than this share did not help.
const BENEFIT: f64 = 0.02;
/// Of the LC services' footprint: COSMOS's step.
const MEMORY_STEP: f64 = 0.05;
/// Share of the machine's memory that either side keeps.
const LEAST_MEMORY: f64 = 0.05;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Cores,
    Memory,
}

/// The policy.
pub struct Slack {
    name: &'static str,
    owns: &'static [Resource],
    pace: Pace,
    groups: Groups,
    /// Bytes; None where they are unknown, or not this policy's.
    capacity: Option<f64>,
    cores: u32,
    /// Bytes of the LC services.
    memory: Option<f64>,
    turn: Turn,
    /// QoS before the last step up.
    raised_at: Option<f64>,
    /// What was given on trial, and how much of it there was.
    trial: Option<(Turn, u32, Option<f64>)>,
    /// Until when a resource is left in peace, and how often it was missed.
    peace: [(u64, u32); 2],
    gathered: Gathered,
    next_ms: u64,
    told: bool,
    wanted: BTreeMap<ServiceId, Change>,
}

impl Slack {
    /// Cores alone.
    pub fn cores(platform: &Platform) -> Self {
        Slack::new(platform, "cosmos-ca", &[Resource::Cpu])
    }

    /// Cores and memory.
    pub fn cores_and_memory(platform: &Platform) -> Self {
        Slack::new(platform, "cosmos-cma", &[Resource::Cpu, Resource::Memory, Resource::Zswap])
    }

    fn new(platform: &Platform, name: &'static str, owns: &'static [Resource]) -> Self {
        let capacity = platform.memory.filter(|_| owns.contains(&Resource::Memory)).map(|m| m.capacity_bytes as f64);
        Slack {
            name,
            owns,
            pace: Pace::default(),
            groups: Groups::new(platform),
            capacity,
            cores: 0,
            memory: None,
            turn: Turn::Cores,
            raised_at: None,
            trial: None,
            peace: [(0, 0); 2],
            gathered: Gathered::default(),
            next_ms: 0,
            told: false,
            wanted: BTreeMap::new(),
        }
    }

    fn begin(&mut self) {
        let (least, most) = (self.groups.least_lc(), self.groups.most_lc(1));
        self.cores = (self.groups.platform.core_units() / 2).min(most).max(least);
        self.memory = None;
        (self.turn, self.raised_at, self.trial, self.peace, self.told) = (Turn::Cores, None, None, [(0, 0); 2], false);
    }

    /// A step of one resource; false where there is none.
    fn step_of(&mut self, turn: Turn, up: bool, seen: &Observation) -> bool {
        match turn {
            Turn::Cores => {
                let (least, most) = (self.groups.least_lc(), self.groups.most_lc(1));
                let to = if up { self.cores + 1 } else { self.cores.saturating_sub(1) };
                let may = (least..=most).contains(&to);
                self.cores = if may { to } else { self.cores };
                may
            }
            Turn::Memory => {
                let footprint: Option<u64> = seen.lc().map(|s| s.memory.footprint_bytes()).sum();
                let in_use: Option<u64> = seen.lc().map(|s| s.memory.in_use_bytes).sum();
                let (Some(w), Some(in_use), Some(m), Some(capacity)) = (footprint, in_use, self.memory, self.capacity) else {
                    return false;
                };
                let step = MEMORY_STEP * w as f64;
                let to = if up { m + step } else { m.min(in_use as f64) - step };
                let to = to.clamp(LEAST_MEMORY * capacity, (1.0 - LEAST_MEMORY) * capacity);
                // Beyond its footprint memory is of no use to a service.
                let may = to != m && (!up || m < w as f64);
                self.memory = if may { Some(to) } else { self.memory };
                may
            }
        }
    }

    fn other(turn: Turn) -> Turn {
        match turn {
            Turn::Cores => Turn::Memory,
            Turn::Memory => Turn::Cores,
        }
    }

    /// All of the LC services' pages, as far as they fit; None while these are not known, or nothing can be limited.
    fn first_memory(&self, seen: &Observation) -> Option<f64> {
        let footprint: u64 = seen.lc().map(|s| s.memory.footprint_bytes()).sum::<Option<u64>>()?;
        self.capacity.map(|c| (footprint as f64).min((1.0 - LEAST_MEMORY) * c))
    }

    fn look(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if let (None, Some(first)) = (self.memory, self.first_memory(seen)) {
            self.memory = Some(first);
            self.act(seen, ActionKind::Grow, f64::NAN, "footprints are known: the LC services' fits", plan);
            return;
        }
        let Some(qos) = std::mem::take(&mut self.gathered).qos(seen) else { return };
        let slack = 1.0 - 1.0 / qos;
        if let Some((turn, cores, memory)) = self.trial.take().filter(|_| slack < UPSIZE_SLACK) {
            (self.cores, self.memory) = (cores, memory);
            let (until, missed) = &mut self.peace[turn as usize];
            *until = now_ms + (PEACE_MS << (*missed).min(PEACE_DOUBLINGS));
            *missed += 1;
            self.act(seen, ActionKind::Rollback, slack, "slack fell after a step was given: taken back", plan);
            return;
        }
        if slack < UPSIZE_SLACK {
            if self.raised_at.is_some_and(|before| qos < before * (1.0 + BENEFIT)) {
                self.turn = Slack::other(self.turn);
            }
            for turn in [self.turn, Slack::other(self.turn)] {
                if self.step_of(turn, true, seen) {
                    self.turn = turn;
                    self.raised_at = Some(qos);
                    self.act(seen, ActionKind::Grow, slack, "little slack: a step more for the LC services", plan);
                    return;
                }
            }
            if slack < 0.0 && !self.told {
                self.told = true;
                let why = "it has all that can be given and misses its target".to_string();
                plan.reports.extend(self.groups.lc.iter().map(|id| Report::Migrate { service: id.clone(), why: why.clone() }));
            }
            return;
        }
        (self.raised_at, self.told) = (None, false);
        if slack <= DOWNSIZE_SLACK {
            return;
        }
        let before = (self.cores, self.memory);
        for turn in [self.turn, Slack::other(self.turn)] {
            if now_ms >= self.peace[turn as usize].0 && self.step_of(turn, false, seen) {
                self.trial = Some((turn, before.0, before.1));
                // The next one is of the other resource.
                self.turn = Slack::other(turn);
                self.act(seen, ActionKind::Shrink, slack, "much slack: a step to the BE jobs", plan);
                return;
            }
        }
    }

    fn act(&self, seen: &Observation, kind: ActionKind, slack: f64, why: &str, plan: &mut Plan) {
        for s in seen.lc() {
            let holds_if = if kind == ActionKind::Shrink { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::P99Falls };
            let mut because = Because::seen(s).expect(holds_if);
            because.say("slack", "1 - p99 / target, the least of all LC services", slack, "");
            because.say("slack", "core units of the LC services", f64::from(self.cores), "");
            because.bind("one step of one resource a period");
            let memory = self.memory.map_or(String::new(), |m| format!(", {:.1} GB", m / (1u64 << 30) as f64));
            let why = format!("{why}; LC services: {} core units{memory}", self.cores);
            plan.actions.push(Action { service: s.id.clone(), kind, why, because });
        }
    }

    fn lay_out(&mut self, seen: &Observation, plan: &mut Plan) {
        let owns_memory = self.capacity.is_some();
        if !self.groups.divides() {
            self.wanted = self.groups.everything(owns_memory);
            return;
        }
        match self.groups.cores(seen, self.cores) {
            Ok(all) => self.wanted = all,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        if let (Some(m), Some(capacity)) = (self.memory, self.capacity) {
            divide(&self.groups, seen, [m, 0.0], capacity, &mut self.wanted);
        }
    }
}

impl Policy for Slack {
    fn name(&self) -> &str {
        self.name
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn owns(&self) -> &[Resource] {
        self.owns
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let news = self.groups.follow(seen);
        let before = (self.cores, self.memory);
        if news {
            self.begin();
            self.gathered = Gathered::default();
            self.next_ms = now_ms + PERIOD_MS;
            for s in &seen.services {
                let mut because = Because::seen(s).expect(if s.is_lc() { HoldsIf::Qos { at_least: 1.0 } } else { HoldsIf::NotJudged });
                because.say("equal halves of the cores", "core units of the LC services", f64::from(self.cores), "");
                because.bind("LC services and BE jobs are two holders");
                let why = "a new mix begins with equal halves of the cores".into();
                plan.actions.push(Action { service: s.id.clone(), kind: ActionKind::Place, why, because });
            }
        } else if self.groups.divides() {
            self.gathered.add(seen);
            if now_ms + self.pace.interval_ms() / 2 >= self.next_ms {
                self.next_ms = now_ms + PERIOD_MS;
                self.look(now_ms, seen, &mut plan);
            }
        }
        if news || before != (self.cores, self.memory) {
            self.lay_out(seen, &mut plan);
        }
        ask_for(&self.wanted, seen, &mut plan);
        plan
    }
}
