//! Senpai: memory is taken from every service until its tasks begin to wait for it, as Meta's TMO runs it (ASPLOS 2022).
//!
//! What must hold: limits add up to no more than the machine's memory; a service that waits too much gets memory back in the same period; only memory
//! is decided, so that another policy can decide cores and ways beside it ([`Together`](crate::Together)).
//!
//! Every period (6 s) the time in which some task of a service waited for memory (PSI) is held against what is allowed (10 ms):
//!
//! * less: the limit goes down, by up to 1 %, and by the square of (allowed / seen / 10) where that is less than 1;
//! * more: it goes up by the square of (seen / allowed / 20), at most to twice as much.
//!
//! The first limit is what is in use. Sources: periods and factors as in Senpai's published settings; the squares are how we read "exponentially".
//!
//! What differs: Senpai reclaims without a limit (`memory.reclaim`), here the limit does it, in steps (scheduler/linux/src/memory.rs). Its second
//! term, waits for the disk, is left out. A service that nothing has placed yet is left alone.
//! Linux 6.1 does not count waits for zswap: there this policy takes more than it may.

mod settings;

pub use settings::{LimitStep, Settings};

use crate::pace::Pace;
use crate::Policy;
use std::collections::BTreeMap;
use surefoot_server::{Action, ActionKind, Because, Change, HoldsIf, Limit, Observation, Plan, Platform, Resource, ServiceId, ServiceView};

const MIB: f64 = (1u64 << 20) as f64;

/// The policy.
pub struct Senpai {
    pace: Pace,
    set: LimitStep,
    /// Bytes; None where they are unknown.
    capacity: Option<f64>,
    /// Ms in which some task waited in this period; a service that could not be read is missing.
    waited_ms: BTreeMap<ServiceId, f64>,
    next_ms: Option<u64>,
}

impl Senpai {
    pub fn new(platform: &Platform, settings: Settings) -> Self {
        let capacity = platform.memory.map(|m| m.capacity_bytes as f64);
        Senpai { pace: Pace::default(), set: settings.limit, capacity, waited_ms: BTreeMap::new(), next_ms: None }
    }

    /// The next limit of a service that has `now` bytes and waited for so long.
    fn next(&self, now: f64, waited_ms: f64) -> f64 {
        let LimitStep { pressure_ms, most_probe, most_backoff, probe, backoff, .. } = self.set;
        let over = waited_ms / pressure_ms;
        if over > 1.0 {
            now * (1.0 + (over / backoff).powi(2).min(most_backoff))
        } else {
            let room = (1.0 / over.max(1e-9) / probe).powi(2);
            now * (1.0 - most_probe * room.min(1.0))
        }
    }

    fn step_one(&self, s: &ServiceView, waited_ms: f64, room: &mut f64, plan: &mut Plan) {
        let Some(in_use) = s.memory.in_use_bytes.map(|b| b as f64).filter(|b| *b >= MIB) else { return };
        // A kernel that cannot take more holds what is in use: steps go on from there.
        let now = in_use_or_limit(s, in_use);
        let least = self.set.least * s.memory.footprint_bytes().unwrap_or(0) as f64;
        let wanted = self.next(now, waited_ms).max(least.min(now));
        // What others hold is not given twice.
        let to = wanted.min(now + room.max(0.0));
        let bytes = ((to / MIB).floor().max(1.0) * MIB) as u64;
        if s.allocation.mem_limit_bytes == Some(bytes) {
            return;
        }
        *room -= (bytes as f64 - now).max(0.0);
        let grows = to > now;
        let holds_if = match (s.is_lc(), grows) {
            (false, _) => HoldsIf::NotJudged,
            (true, true) => HoldsIf::P99Falls,
            (true, false) => HoldsIf::P99Stays,
        };
        let mut because = Because::seen(s).expect(holds_if);
        because.say("senpai", "time in which some task waited for memory", waited_ms, "ms");
        because.say("senpai", "allowed in a period", self.set.pressure_ms, "ms");
        because.say("senpai", "memory in use", in_use / MIB, "MB");
        because.bind(if wanted > to { "no more of the machine's memory is free" } else { "one step a period" });
        let (kind, what) = if grows { (ActionKind::Grow, "waits too long") } else { (ActionKind::Shrink, "hardly waits") };
        let why = format!("{what} for memory ({waited_ms:.1} ms): limit {:.0} MB", bytes as f64 / MIB);
        plan.actions.push(Action { service: s.id.clone(), kind, why, because });
        plan.changes.insert(s.id.clone(), Change { mem_limit: Some(Limit::Bytes(bytes)), ..Change::default() });
    }
}

fn has_limit(s: &ServiceView) -> bool {
    s.allocation.mem_limit_bytes.is_some()
}

/// What a service holds: its limit, or what is in use where that is more, or where it has none.
fn in_use_or_limit(s: &ServiceView, in_use: f64) -> f64 {
    s.allocation.mem_limit_bytes.map_or(in_use, |b| in_use.max(b as f64))
}

impl Policy for Senpai {
    fn name(&self) -> &str {
        "senpai"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn owns(&self) -> &[Resource] {
        &[Resource::Memory]
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut plan = Plan::default();
        let step_ms = self.pace.interval_ms() as f64;
        self.waited_ms.retain(|id, _| seen.get(id).is_some());
        for s in seen.services.iter().filter(|s| s.placed) {
            if let Some(share) = s.memory.stall_frac {
                *self.waited_ms.entry(s.id.clone()).or_default() += share * step_ms;
            }
        }
        let next_ms = *self.next_ms.get_or_insert(now_ms + self.set.period_ms);
        if now_ms + self.pace.interval_ms() / 2 < next_ms {
            return plan;
        }
        self.next_ms = Some(now_ms + self.set.period_ms);
        let held = |s: &ServiceView| in_use_or_limit(s, s.memory.in_use_bytes.unwrap_or(0) as f64);
        let (limited, firsts): (Vec<&ServiceView>, Vec<&ServiceView>) =
            seen.services.iter().filter(|s| s.placed || has_limit(s)).partition(|s| has_limit(s));
        let of_limited: f64 = limited.iter().map(|s| held(s)).sum();
        // A first limit is what is in use, and counts from then on. Where these do not fit beside what is limited, they wait until that has shrunk.
        let of_firsts: f64 = firsts.iter().map(|s| held(s)).sum();
        let begins = self.capacity.is_none_or(|c| of_limited + of_firsts <= c);
        let mut room = self.capacity.map_or(f64::INFINITY, |c| c - of_limited - if begins { of_firsts } else { 0.0 });
        let waited_ms = std::mem::take(&mut self.waited_ms);
        for s in seen.services.iter().filter(|s| s.placed && (begins || has_limit(s))) {
            if let Some(waited_ms) = waited_ms.get(&s.id) {
                self.step_one(s, *waited_ms, &mut room, &mut plan);
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{be, lc, observation};
    use crate::{by_name, ModelSet};
    use surefoot_server::{FeedState, Memory, MemoryView};

    const GB: u64 = 1 << 30;

    fn server() -> Platform {
        Platform { memory: Some(Memory { capacity_bytes: 60 * GB }), ..Platform::regular("t", 16, 1, 11, 2.0) }
    }

    fn view(of: ServiceView, in_use: u64, stall_frac: f64, limit: Option<u64>) -> ServiceView {
        let memory = MemoryView { in_use_bytes: Some(in_use), stall_frac: Some(stall_frac), ..MemoryView::default() };
        let mut s = ServiceView { placed: true, memory, ..of };
        s.allocation.mem_limit_bytes = limit;
        s
    }

    /// Limits that a period of the same readings leads to.
    fn after_a_period(seen: &Observation) -> BTreeMap<ServiceId, u64> {
        let mut policy = Senpai::new(&server(), Settings::default());
        let plans: Vec<Plan> = (0..=60).map(|i| policy.step(i * 100, seen)).collect();
        assert!(plans[..60].iter().all(Plan::is_empty), "a step before the period is over");
        plans[60].changes.iter().filter_map(|(id, c)| Some((id.clone(), c.mem_limit?.bytes()?))).collect()
    }

    /// A service that does not wait loses 1 % of what it uses; one that waits for 0.1 % of 6 s (6 ms of 10) loses 0.03 % of that: (10 / 6 / 10)^2.
    #[test]
    fn what_is_not_waited_for_is_taken() {
        let seen = observation(vec![view(lc("a"), 20 * GB, 0.0, None), view(be("x"), 20 * GB, 0.001, Some(20 * GB))]);
        let got = after_a_period(&seen);
        let share = |id: &str| 1.0 - got[id] as f64 / (20 * GB) as f64;
        assert!((share("a") - 0.01).abs() < 1e-4, "{}", share("a"));
        assert!((share("x") - 0.01 / 36.0).abs() < 1e-4, "{}", share("x"));
    }

    /// Twenty times the allowed wait doubles a limit, ten times raises it by a quarter; never beyond the machine.
    #[test]
    fn waiting_gives_memory_back() {
        // 10 ms of 6 s are 1/600. 61 readings are in the first period.
        let frac = |times: f64| times / 600.0 * 60.0 / 61.0;
        let seen = |times: f64, other: u64| {
            observation(vec![view(lc("a"), 10 * GB, frac(times), Some(10 * GB)), view(be("x"), other, 1.0 / 600.0 * 0.98, Some(other))])
        };
        assert!((after_a_period(&seen(20.0, 10 * GB))["a"] as f64 / (20 * GB) as f64 - 1.0).abs() < 1e-3);
        assert!((after_a_period(&seen(10.0, 10 * GB))["a"] as f64 / (12.5 * GB as f64) - 1.0).abs() < 1e-3);
        // 45 of 60 GB are the job's: 5 are free.
        assert_eq!(after_a_period(&seen(20.0, 45 * GB))["a"], 15 * GB);
    }

    /// First limits that do not fit beside those in force wait; what is limited shrinks meanwhile.
    #[test]
    fn first_limits_wait_until_they_fit() {
        let seen = observation(vec![view(lc("a"), 10 * GB, 0.0, Some(50 * GB)), view(be("x"), 20 * GB, 0.0, None)]);
        let got = after_a_period(&seen);
        assert!(got.keys().eq(["a"]) && got["a"] < 50 * GB, "{got:?}");
    }

    /// A kernel that can take no more holds what is in use: a service that waits has more at once, however long nothing was taken.
    #[test]
    fn what_was_not_taken_is_not_given_back_first() {
        let frac = 20.0 / 600.0 * 60.0 / 61.0;
        let seen = observation(vec![view(lc("a"), 6 * GB, frac, Some(GB)), view(be("x"), GB, 0.0, Some(GB))]);
        assert!((after_a_period(&seen)["a"] as f64 / (12 * GB) as f64 - 1.0).abs() < 1e-3);
        let still = observation(vec![view(lc("a"), 6 * GB, 0.0, Some(GB)), view(be("x"), GB, 0.0, Some(GB))]);
        assert!((after_a_period(&still)["a"] as f64 / (5.94 * GB as f64) - 1.0).abs() < 1e-3);
    }

    /// What cannot be read, and what nothing has placed, is left alone.
    #[test]
    fn the_unknown_is_left_alone() {
        let mut unread = view(lc("a"), 10 * GB, 0.0, None);
        unread.memory.stall_frac = None;
        let unplaced = ServiceView { placed: false, ..view(be("x"), 10 * GB, 0.0, None) };
        assert!(after_a_period(&observation(vec![unread, unplaced])).is_empty());
    }

    /// By its name alone everything is shared, and memory is decided; beside `parties` that one decides cores and ways. A service of unknown
    /// latency keeps its memory.
    #[test]
    fn it_runs_beside_a_policy_of_cores() {
        for (name, cores) in [("senpai", 16), ("parties+senpai", 8)] {
            let mut policy = by_name(name, &server(), ModelSet::default(), 1).unwrap();
            assert_eq!(policy.name(), name);
            let mut services = vec![view(lc("a"), 20 * GB, 0.0, None), view(be("x"), 20 * GB, 0.0, None)];
            services.iter_mut().for_each(|s| s.placed = false);
            let mut named = vec![];
            for i in 0..=200 {
                let plan = policy.step(i * 100, &observation(services.clone()));
                named.extend(plan.changes.values().flat_map(Change::resources));
                for s in &mut services {
                    if let Some(a) = plan.wants(&s.id, &s.allocation) {
                        (s.allocation, s.placed) = (a, true);
                    }
                    // What is above a limit is taken.
                    s.memory.in_use_bytes = s.memory.in_use_bytes.min(s.allocation.mem_limit_bytes.or(s.memory.in_use_bytes));
                }
                if i == 150 {
                    services[0].feed = FeedState::Unknown { since_ms: 0, heard: true };
                }
            }
            assert!(named.contains(&Resource::Memory) && named.contains(&Resource::Cpu), "{name}: {named:?}");
            assert_eq!(services[0].allocation.cpus.len(), cores, "{name}");
            let limit = |i: usize| services[i].allocation.mem_limit_bytes.unwrap();
            assert!(limit(1) < limit(0) && limit(0) < 20 * GB, "{name}: {} {}", limit(0), limit(1));
        }
    }
}
