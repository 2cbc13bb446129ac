//! PARTIES (Chen, Delimitrou, Martinez, ASPLOS 2019), as its authors' program decides. [`be`] has our own form of it.
//!
//! Facts of the program (`sc2682cornell/PARTIES`, `manager/PARTIES.py`, 22e0a51, 2021); none of its text is here. Every 100 ms it polls the latest p99
//! of each service. Its *slack* is 1 - p99 / target of the last poll, its *mean slack* that of the mean p99 of a second.
//!
//! * **Who**: a service with both slacks below 5 % grows, the one with the least mean slack first. Where there is none, the service with most slack of
//!   those with both above 20 % gives one unit.
//! * **What**: a random resource at first, then around the wheel: cores, cache, frequency, cores. A resource that cannot be had turns the wheel too.
//! * **From whom**: what nobody holds, else the LC service with most slack, whatever that is. A giver whose wheel points at this resource is turned to its next.
//! * **Growing is judged** by the next five polls: each with a lower p99 than before speaks for it, each other against. Where no more are for it the wheel
//!   turns; the unit stays.
//! * **Giving is judged** by five polls, in which every service must have 5 % of slack. Where no more are for it the unit comes back, the wheel turns, and
//!   the service gives nothing for 100 polls. Five more polls pass, and another five where these are as bad.
//! * **`saveEnergy`**, a switch of the program: without it nobody gives. `parties-keep` is the program without: equal shares, trial and error until all
//!   targets are met, then nothing. That is how the OSML, OSML+ and CLITE papers describe their PARTIES.
//!
//! What differs, or is ours because the program is silent:
//! * **resources**: plans have cores and ways. The wheel skips the frequency, which the program raises once in its life from where it starts, and
//!   lowers to save power;
//! * **BE jobs**, which the program does not know: they hold what nobody holds, and count as one holder at the start (OSML+ paper, Sec. 4.3);
//! * **arrivals**: the program begins with all services. Here a newcomer gets its equal share, from the largest holders;
//! * **p99 of a poll** is that of the shortest time up to now with the 100 requests of a p99, within a second; else of the window that judges QoS;
//! * **silence**: a service of unknown latency does not give and is not judged; nobody gives while one is unknown;
//! * **reports**: the program has nobody to tell. Here a service that takes from one without slack is one to migrate.

pub mod be;
mod start;

pub use be::{PartiesBe, PartiesBeSettings};

use crate::books::{Amount, Books};
use crate::pace::Pace;
use crate::Policy;
use std::collections::{BTreeMap, VecDeque};
use surefoot_learn::rng::Rng;
use surefoot_server::window::{merge, MIN_COUNT_P99};
use surefoot_server::{Action, ActionKind, Because, HoldsIf, Latency, Observation, Plan, Platform, Report, ServiceId, ServiceView};

/// Numbers of the authors' program.
#[derive(Clone, Debug)]
pub struct PartiesSettings {
    pub name: &'static str,
    /// Between two polls (`INTERVAL`).
    pub poll_ms: u64,
    /// Polls that judge an action (`TOLERANCE`).
    pub polls: u32,
    /// Polls for which a service gives nothing after giving hurt (`REST`).
    pub rest_polls: u32,
    /// The mean slack is of so long.
    pub mean_ms: u64,
    pub upsize_slack: f64,
    pub downsize_slack: f64,
    /// Where all have slack one gives (`saveEnergy`).
    pub gives: bool,
}

impl Default for PartiesSettings {
    fn default() -> Self {
        PartiesSettings {
            name: "parties",
            poll_ms: 100,
            polls: 5,
            rest_polls: 100,
            mean_ms: 1000,
            upsize_slack: 0.05,
            downsize_slack: 0.20,
            gives: true,
        }
    }
}

impl PartiesSettings {
    /// Without the program's `saveEnergy`, as other papers ran it.
    pub fn that_keeps() -> Self {
        PartiesSettings { name: "parties-keep", gives: false, ..PartiesSettings::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Cores,
    Ways,
}

impl Resource {
    fn unit(self) -> Amount {
        match self {
            Resource::Cores => Amount::new(1, 0),
            Resource::Ways => Amount::new(0, 1),
        }
    }
}

/// Where the wheel of a service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wheel {
    Off,
    More(Resource),
    Less(Resource),
}

/// What is remembered of one service.
#[derive(Clone, Debug)]
struct Memory {
    wheel: Wheel,
    /// Intervals of the last second.
    recent: VecDeque<Latency>,
    /// p99 of the polls of the last second, ms.
    polls: VecDeque<f64>,
    /// Polls for which it gives nothing yet.
    rest: u32,
    reported: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { wheel: Wheel::Off, recent: VecDeque::new(), polls: VecDeque::new(), rest: 0, reported: false }
    }
}

/// What the coming polls are for.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// Nothing is under trial.
    Look,
    /// A service grew; p99 before.
    Grown { id: ServiceId, before_ms: f64, polls: u32, votes: i32 },
    /// A service gave.
    Given { id: ServiceId, resource: Resource, polls: u32, votes: i32 },
    /// A unit came back.
    Back { polls: u32, votes: i32 },
    /// That did not help either.
    Wait { polls: u32 },
}

/// Slacks of a service at a poll.
#[derive(Clone, Debug)]
struct Slack {
    id: ServiceId,
    p99_ms: f64,
    now: f64,
    mean: f64,
}

/// The policy.
pub struct Parties {
    pace: Pace,
    set: PartiesSettings,
    books: Books,
    memory: BTreeMap<ServiceId, Memory>,
    phase: Phase,
    rng: Rng,
    next_ms: u64,
}

impl Parties {
    pub fn new(platform: &Platform, settings: PartiesSettings, seed: u64) -> Self {
        Parties {
            pace: Pace::default(),
            set: settings,
            books: Books::new(platform),
            memory: BTreeMap::new(),
            phase: Phase::Look,
            rng: Rng::new(seed ^ 0x9a27_1e50),
            next_ms: 0,
        }
    }

    /// p99 of a poll, ms; None: unknown.
    fn p99_ms(&self, s: &ServiceView) -> Option<f64> {
        let window = s.window.filter(|_| !s.latency_unknown())?;
        let recent = self.memory.get(&s.id).map_or_else(Vec::new, |m| m.recent.iter().copied().collect());
        let enough = (1..=recent.len()).find_map(|n| {
            let last = merge(&recent[recent.len() - n..], self.pace.interval_ms() as f64)?;
            (last.count >= MIN_COUNT_P99).then_some(last)
        });
        Some(enough.unwrap_or(window).p99_ms)
    }

    /// One poll of all: what is known, by service.
    fn poll(&mut self, seen: &Observation) -> Vec<Slack> {
        let keep = (self.set.mean_ms / self.set.poll_ms).max(1) as usize;
        let mut all = vec![];
        for s in seen.lc() {
            let p99 = self.p99_ms(s);
            let in_books = self.books.slot(&s.id).is_some();
            let Some(m) = self.memory.get_mut(&s.id) else { continue };
            m.rest = m.rest.saturating_sub(1);
            let (Some(p99_ms), Some(target_ms), true) = (p99, s.qos_target_ms(), in_books) else { continue };
            m.polls.push_back(p99_ms);
            while m.polls.len() > keep {
                m.polls.pop_front();
            }
            let mean_ms = m.polls.iter().sum::<f64>() / m.polls.len() as f64;
            all.push(Slack { id: s.id.clone(), p99_ms, now: 1.0 - p99_ms / target_ms, mean: 1.0 - mean_ms / target_ms });
        }
        all
    }

    fn has_ways(&self) -> bool {
        self.books.platform.ways() > 0
    }

    fn any_resource(&mut self) -> Resource {
        match self.has_ways() && self.rng.below(2) == 1 {
            true => Resource::Ways,
            false => Resource::Cores,
        }
    }

    fn turn(&mut self, id: &str) {
        let has_ways = self.has_ways();
        let next = |r: Resource| if has_ways && r == Resource::Cores { Resource::Ways } else { Resource::Cores };
        if let Some(m) = self.memory.get_mut(id) {
            m.wheel = match m.wheel {
                Wheel::Off => Wheel::Off,
                Wheel::More(r) => Wheel::More(next(r)),
                Wheel::Less(r) => Wheel::Less(next(r)),
            };
        }
    }

    fn because(&self, seen: &Observation, slack: &Slack, holds_if: HoldsIf) -> Because {
        let mut b = seen.get(&slack.id).map_or_else(Because::default, Because::seen).expect(holds_if);
        b.say("slack", "p99 of this poll", slack.p99_ms, "ms");
        b.say("slack", "1 - p99 / target", slack.now, "");
        b.say("slack", "the same of the mean p99 of a second", slack.mean, "");
        b
    }

    /// What the polls say of the last action. True while that is open.
    fn judge(&mut self, seen: &Observation, all: &[Slack], plan: &mut Plan) -> bool {
        let well = self.books.slots().iter().all(|s| all.iter().any(|o| o.id == s.id && o.now >= self.set.upsize_slack));
        let vote = |ok: bool| if ok { 1 } else { -1 };
        let of = |id: &str| all.iter().find(|s| s.id == *id);
        match self.phase.clone() {
            Phase::Look => return false,
            Phase::Grown { id, before_ms, polls, votes } => {
                let Some(slack) = of(&id) else {
                    // It has gone, or is silent: nobody can tell.
                    self.phase = Phase::Look;
                    return false;
                };
                let votes = votes + vote(slack.p99_ms < before_ms);
                if polls > 1 {
                    self.phase = Phase::Grown { id, before_ms, polls: polls - 1, votes };
                    return true;
                }
                if votes <= 0 {
                    self.turn(&id);
                }
            }
            Phase::Given { id, resource, polls, votes } => {
                let votes = votes + vote(well);
                if polls > 1 {
                    self.phase = Phase::Given { id, resource, polls: polls - 1, votes };
                    return true;
                }
                if votes <= 0 {
                    self.take_back(seen, &id, resource, of(&id), plan);
                    self.phase = Phase::Back { polls: self.set.polls, votes: 0 };
                    return true;
                }
            }
            Phase::Back { polls, votes } => {
                let votes = votes + vote(well);
                if polls > 1 {
                    self.phase = Phase::Back { polls: polls - 1, votes };
                    return true;
                }
                if votes <= 0 {
                    self.phase = Phase::Wait { polls: self.set.polls };
                    return true;
                }
            }
            Phase::Wait { polls } if polls > 1 => {
                self.phase = Phase::Wait { polls: polls - 1 };
                return true;
            }
            Phase::Wait { .. } => {}
        }
        self.phase = Phase::Look;
        false
    }

    fn take_back(&mut self, seen: &Observation, id: &ServiceId, resource: Resource, slack: Option<&Slack>, plan: &mut Plan) {
        let back = self.books.grow(id, resource.unit());
        self.turn(id);
        let rest = self.set.rest_polls;
        if let Some(m) = self.memory.get_mut(id) {
            m.rest = rest;
        }
        let Some(view) = seen.get(id).filter(|_| back) else { return };
        let mut because = match slack {
            Some(slack) => self.because(seen, slack, HoldsIf::P99Falls),
            None => Because::seen(view).expect(HoldsIf::NotJudged),
        };
        because.reject(
            "leave it",
            format!("in most of {} polls somebody had less than {:.0} % of slack", self.set.polls, self.set.upsize_slack * 100.0),
        );
        because.bind(format!("it gives nothing for {rest} polls"));
        let why = format!("giving one of {resource:?} hurt: taken back");
        plan.actions.push(Action { service: id.clone(), kind: ActionKind::Rollback, why, because });
    }

    /// One unit from whoever has most slack; who gave.
    fn another_with(&mut self, id: &str, resource: Resource, all: &[Slack]) -> Option<ServiceId> {
        let gives = |s: &&Slack| s.id != *id && resource.unit().fits_in(self.books.spare(&s.id));
        let giver = all.iter().filter(gives).max_by(|a, b| a.now.total_cmp(&b.now))?.id.clone();
        if !self.books.shrink(&giver, resource.unit()) {
            return None;
        }
        if self.memory.get(&giver).map(|m| m.wheel) == Some(Wheel::More(resource)) {
            self.turn(&giver);
        }
        Some(giver)
    }

    fn upsize(&mut self, seen: &Observation, slack: &Slack, all: &[Slack], plan: &mut Plan) {
        let id = &slack.id;
        if !matches!(self.memory.get(id).map(|m| m.wheel), Some(Wheel::More(_))) {
            let first = Wheel::More(self.any_resource());
            if let Some(m) = self.memory.get_mut(id) {
                m.wheel = first;
            }
        }
        let mut lacking = vec![];
        for _ in 0..1 + usize::from(self.has_ways()) {
            let Some(Wheel::More(resource)) = self.memory.get(id).map(|m| m.wheel) else { return };
            let idle = self.books.grow(id, resource.unit());
            let giver = if idle { None } else { self.another_with(id, resource, all) };
            let got = idle || giver.is_some() && self.books.grow(id, resource.unit());
            if !got {
                if let Some(back) = giver {
                    self.books.grow(&back, resource.unit());
                }
                lacking.push(resource);
                self.turn(id);
                continue;
            }
            if let Some((giver, its)) = giver.and_then(|g| Some((g.clone(), all.iter().find(|s| s.id == g)?))) {
                let mut because = self.because(seen, its, HoldsIf::Qos { at_least: 1.0 });
                for o in all.iter().filter(|o| o.id != giver && o.id != *id) {
                    because.reject(format!("from {} (slack {:.0} %)", o.id, o.now * 100.0), "has less slack, or holds the least");
                }
                because.bind("nobody else holds any, and the program does not ask for a least slack");
                let why = format!("most slack ({:.0} %): one of {resource:?} to {id}", its.now * 100.0);
                plan.actions.push(Action { service: giver, kind: ActionKind::Deprive, why, because });
                if its.now < self.set.upsize_slack {
                    self.report(seen, slack, "and nobody has slack to give", plan);
                }
            }
            let mut because = self.because(seen, slack, HoldsIf::P99Falls);
            for lacking in &lacking {
                because.reject(format!("one more of {lacking:?}"), "there is none to be had");
            }
            because.bind("one unit of one resource of one service, then five polls");
            let why = format!("slack {:.0} %: one more of {resource:?}", slack.now * 100.0);
            plan.actions.push(Action { service: id.clone(), kind: ActionKind::Grow, why, because });
            self.phase = Phase::Grown { id: id.clone(), before_ms: slack.p99_ms, polls: self.set.polls, votes: 0 };
            return;
        }
        self.report(seen, slack, "and nobody has anything to give", plan);
    }

    fn report(&mut self, seen: &Observation, slack: &Slack, why: &str, plan: &mut Plan) {
        let missed = seen.get(&slack.id).is_some_and(|s| s.qos_met() == Some(false));
        if let Some(m) = self.memory.get_mut(&slack.id).filter(|m| missed && !m.reported) {
            m.reported = true;
            plan.reports.push(Report::Migrate { service: slack.id.clone(), why: format!("slack {:.0} % {why}", slack.now * 100.0) });
        }
    }

    fn downsize(&mut self, seen: &Observation, slack: &Slack, all: &[Slack], plan: &mut Plan) {
        let id = &slack.id;
        if !matches!(self.memory.get(id).map(|m| m.wheel), Some(Wheel::Less(_))) {
            let first = Wheel::Less(self.any_resource());
            if let Some(m) = self.memory.get_mut(id) {
                m.wheel = first;
            }
        }
        for _ in 0..1 + usize::from(self.has_ways()) {
            let Some(Wheel::Less(resource)) = self.memory.get(id).map(|m| m.wheel) else { return };
            if !self.books.shrink(id, resource.unit()) {
                self.turn(id);
                continue;
            }
            let on_trial = HoldsIf::Qos { at_least: 1.0 / (1.0 - self.set.upsize_slack) };
            let mut because = self.because(seen, slack, on_trial);
            for o in all.iter().filter(|o| o.id != *id) {
                because.reject(format!("from {} (slack {:.0} %)", o.id, o.now * 100.0), "has less slack, or gave and suffered");
            }
            because.bind("one unit of one resource of one service, on trial for five polls");
            let why = format!("slack {:.0} %: one less of {resource:?}", slack.now * 100.0);
            plan.actions.push(Action { service: id.clone(), kind: ActionKind::Shrink, why, because });
            self.phase = Phase::Given { id: id.clone(), resource, polls: self.set.polls, votes: 0 };
            return;
        }
    }

    /// A new decision.
    fn decide(&mut self, seen: &Observation, all: &[Slack], plan: &mut Plan) {
        let (low, high) = (self.set.upsize_slack, self.set.downsize_slack);
        let needs = all.iter().filter(|s| s.now < low && s.mean < low).min_by(|a, b| a.mean.total_cmp(&b.mean));
        if let Some(slack) = needs {
            return self.upsize(seen, slack, all, plan);
        }
        let all_known = all.len() == self.books.slots().len();
        let rests = |s: &Slack| self.memory.get(&s.id).is_some_and(|m| m.rest > 0);
        let may = |s: &&Slack| s.now > high && s.mean > high && !rests(s);
        let gives = all.iter().filter(may).max_by(|a, b| a.now.total_cmp(&b.now));
        if let Some(slack) = gives.filter(|_| self.set.gives && all_known) {
            self.downsize(seen, slack, all, plan);
        }
    }
}

impl Policy for Parties {
    fn name(&self) -> &str {
        self.set.name
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let news = self.books.follow(seen);
        self.memory.retain(|id, _| seen.get(id).is_some());
        let keep = self.pace.steps(self.set.mean_ms);
        for s in seen.lc() {
            let m = self.memory.entry(s.id.clone()).or_default();
            m.reported &= !s.at_ease();
            m.recent.extend(s.interval);
            while m.recent.len() > keep {
                m.recent.pop_front();
            }
        }
        // Whoever was crowded in waits until there is room.
        let room = self.books.least().fits_in(self.books.free());
        let newcomers: Vec<ServiceId> = news.lc_arrived.iter().filter(|id| room || !self.books.is_crowded(id)).cloned().collect();
        if !newcomers.is_empty() || !news.be_arrived.is_empty() {
            start::arrive(&mut self.books, seen, &newcomers, &mut plan);
            // The program sleeps for a second on its first partition.
            self.next_ms = now_ms + self.set.mean_ms;
            self.phase = Phase::Look;
            self.memory.values_mut().for_each(|m| {
                m.recent.clear();
                m.polls.clear();
            });
        } else if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.set.poll_ms;
            let all = self.poll(seen);
            if !self.judge(seen, &all, &mut plan) {
                self.decide(seen, &all, &mut plan);
            }
        }
        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
mod tests;
