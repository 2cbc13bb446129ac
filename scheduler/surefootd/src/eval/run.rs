//! One workload under one policy on one virtual server, and what came of it.

use super::blame::Blame;
use crate::base::error::{Error, Result};
use crate::stage::load::Loads;
use crate::stage::moment::{moments, Moment};
use crate::stage::virtual_target::VirtualTarget;
use crate::stage::workload::{Be, Lc, Workload};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use surefoot_policy::Policy;
use surefoot_server::window::MIN_COUNT_P99;
use surefoot_server::{Observation, Server, ServiceView, Tick};
use surefoot_vserver::Profile;
use surefoot_workload::judge::{marks, served};

pub const TICK_MS: u64 = 100;
/// QoS must hold for this long (design, section 1).
const HOLD_MS: u64 = 3_000;
/// A shorter rest of a run says nothing about steadiness.
const LEAST_SETTLED_MS: u64 = 5_000;
/// No convergence within this time: the workload failed (OSML+ paper, Sec. 4.1).
const GIVE_UP_MS: u64 = 180_000;
/// The end of the workload, over which EMU, throughput and resources are averaged.
const SETTLED_MS: u64 = 10_000;
/// The same where loads have shapes, at least: ten seconds would see one level of a burst, or an hour of a day. A longer day is
/// taken whole.
const SETTLED_SHAPED_MS: u64 = 60_000;

/// One eval row (docs/eval-output.md). None where it does not exist.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct EvalRow {
    pub workload: String,
    pub policy: String,
    pub platform: String,
    /// Edition of the plant.
    pub plant: u32,
    /// The drawn world, e.g. `test:7`; None for workload files.
    pub world: Option<String>,
    pub seed: u64,
    pub converged: bool,
    pub convergence_s: Option<f64>,
    pub actions: i64,
    pub emu: Option<f64>,
    pub be_throughput: Option<f64>,
    /// None where some LC service's latency was never known: a sum without one of its parts is none.
    pub qos_violation_s: Option<f64>,
    pub worst_slowdown: Option<f64>,
    pub cores_used: Option<f64>,
    pub ways_used: Option<f64>,
    pub mbw_used: Option<f64>,
    pub decision_us_p50: Option<f64>,
    pub decision_us_p99: Option<f64>,
    pub oracle_emu: Option<f64>,
    pub qos_violation_by_lc_s: BTreeMap<String, Option<f64>>,
    pub offered_load: Option<f64>,
    /// Plans that the server refused.
    pub refused_plans: i64,
    /// The part of `qos_violation_s` that the policy itself caused.
    pub self_violation_s: f64,
    /// Times that a plan took cores, ways or bandwidth from an LC service for BE jobs or no service, and thereby took it across its cliff.
    pub reclaim_crossings: i64,
    /// The same for another LC service.
    pub deprive_crossings: i64,
    /// `actions` a minute at constant load, from the end of the 3 s that proved convergence; None where less than 5 s are left.
    pub actions_per_min_settled: Option<f64>,
    /// The part of `self_violation_s` from then on; None as for them.
    pub self_violation_settled_s: Option<f64>,
    /// `be_throughput` with 0 for each tick in which an LC service missed its target that could be served.
    pub be_throughput_met: Option<f64>,
    /// EMU as the COSMOS paper has it: 0 in each tick in which an LC service missed its target, else loads and BE throughputs added up.
    pub emu_cosmos: Option<f64>,
    /// Fewest requests in the last window of an LC service, at the end of the workload; None without LC services.
    pub window_requests: Option<i64>,
    /// Decisions that were not the policy's own, of a policy in another process; None: of one that decides here.
    pub held_decisions: Option<i64>,
}

/// Finds the moment from which every LC service meets its QoS for 3 s. A p99 of too few requests ends no streak, but proves none:
/// the window grows until it tells, and then is of the time before too.
struct Convergence {
    from_ms: u64,
    streak_ms: Option<u64>,
    at_ms: Option<u64>,
    /// When that was proven.
    proven_ms: Option<u64>,
}

impl Convergence {
    fn from(from_ms: u64) -> Self {
        Convergence { from_ms, streak_ms: None, at_ms: None, proven_ms: None }
    }

    fn see(&mut self, seen: &Observation) {
        if self.at_ms.is_some() || seen.t_ms < self.from_ms {
            return;
        }
        // Unknown is not met.
        if !seen.lc().all(|s| s.qos_met() == Some(true)) {
            self.streak_ms = None;
            return;
        }
        let since = *self.streak_ms.get_or_insert(seen.t_ms);
        if seen.t_ms - since >= HOLD_MS && since - self.from_ms <= GIVE_UP_MS && seen.lc().all(resolvable) {
            (self.at_ms, self.proven_ms) = (Some(since), Some(seen.t_ms));
        }
    }

    /// Converged, and the time that proves it is over.
    fn proven(&self, t_ms: u64) -> bool {
        self.proven_ms.is_some_and(|t| t_ms > t)
    }

    fn over(&self, t_ms: u64) -> bool {
        self.at_ms.is_some() || t_ms > self.from_ms + GIVE_UP_MS + HOLD_MS
    }
}

/// Whether the window of a service has requests enough for a p99.
fn resolvable(s: &ServiceView) -> bool {
    s.window.is_some_and(|w| w.count >= MIN_COUNT_P99)
}

/// When the settled part of a run begins, ms: it is the end of the workload, since the last arrival or change.
pub fn settled_from_ms(w: &Workload) -> u64 {
    let day_ms = |l: &Lc| l.shapes.day.as_ref().map_or(0, |d| (d.day_s * 1000.0).round() as u64);
    let length = match w.has_shapes() {
        true => w.lc.iter().map(day_ms).fold(SETTLED_SHAPED_MS, u64::max),
        false => SETTLED_MS,
    };
    w.last_change_ms().max(w.duration_ms.saturating_sub(length))
}

/// Sums over the settled part of a run.
#[derive(Default)]
struct Settled {
    ticks: u64,
    emu: f64,
    offered: f64,
    be: f64,
    be_met: f64,
    be_ticks: u64,
    cosmos: f64,
    cores: f64,
    ways: f64,
    mbw: f64,
}

/// Ticks of QoS violation by LC service; None of one whose latency was never known.
struct Violations(BTreeMap<String, Option<u64>>);

impl Violations {
    /// Whether the service misses its target at this tick.
    fn see(&mut self, s: &ServiceView) -> bool {
        let missed = s.qos_met() == Some(false);
        let ticks = self.0.entry(s.id.clone()).or_default();
        if !s.latency_unknown() {
            *ticks.get_or_insert(0) += u64::from(missed);
        }
        missed
    }

    /// Of all together: a sum without one of its parts is none.
    fn total(&self) -> Option<u64> {
        self.0.values().copied().sum()
    }
}

/// Instructions/s of a job alone on the whole server.
pub fn alone_instr_per_s(at: &VirtualTarget, job: &Arc<Profile>) -> f64 {
    surefoot_vserver::alone_instr_per_s(&at.profile, job)
}

fn alone(at: &VirtualTarget, w: &Workload) -> Result<BTreeMap<String, f64>> {
    let one = |b: &Be| Ok((b.id.clone(), alone_instr_per_s(at, at.profiles.service(&b.job).map_err(crate::stage::virtual_target::bad)?)));
    w.be.iter().map(one).collect()
}

/// Run a workload to its end, and on until it has converged or failed to.
///
/// # Errors
/// [`Error::BadInput`] for a workload that this platform cannot hold; [`Error::Failed`] once this process was asked to end.
pub fn run(at: &VirtualTarget, w: &Workload, policy: &mut dyn Policy, seed: u64, keep_timeline: bool) -> Result<(EvalRow, Vec<Moment>)> {
    let mut server = at.server(seed);
    let loads = w.announce(&mut server, &at.profiles, seed)?;
    let alone = alone(at, w)?;
    let from_ms = w.last_change_ms();
    let mut convergence = Convergence::from(from_ms);
    let settled_from = settled_from_ms(w);
    let mut settled = Settled::default();
    let mut timeline = vec![];
    let mut decision_us: Vec<f64> = vec![];
    let mut violations = Violations(w.lc.iter().map(|l| (l.id.clone(), None)).collect());
    let mut worst: Option<f64> = None;
    let (mut actions, mut refused, mut settled_actions) = (0, 0, 0);
    let mut blame = Blame::new(at, seed);
    let mut own_ticks_before = None;
    let mut window_requests = None;
    loop {
        let now = server.now_ms();
        let within = now <= w.duration_ms;
        if !within && convergence.over(now) {
            break;
        }
        if crate::base::stop::requested() {
            return Err(Error::Failed(format!("workload {}: interrupted. Run it again", w.name)));
        }
        let seen = server.observe();
        if convergence.proven(now) {
            own_ticks_before.get_or_insert(blame.ticks);
        }
        let load = |id: &str| loads.load_at(id, now);
        if within && now > 0 {
            // This observation is of the tick that ended now.
            for s in seen.lc() {
                if violations.see(s) {
                    blame.violated(&s.id);
                }
                if let Some(q) = s.qos() {
                    worst = Some(worst.unwrap_or(0.0).max(1.0 / q));
                }
            }
            if now > settled_from {
                add_settled(&mut settled, &seen, &loads, &alone);
            }
            window_requests = seen.lc().map(|s| s.window.map_or(0, |w| w.count) as i64).min();
        }
        if within && keep_timeline {
            timeline.extend(moments(&seen, load));
        }
        convergence.see(&seen);
        let start = Instant::now();
        let plan = policy.step(now, &seen);
        decision_us.push(start.elapsed().as_secs_f64() * 1e6);
        blame.heal(&server, &seen);
        for a in &plan.actions {
            tracing::debug!(
                workload = w.name,
                policy = policy.name(),
                t_ms = now,
                service = a.service,
                kind = a.kind.as_str(),
                "{}",
                a.why
            );
        }
        if !plan.is_empty() {
            match blame.apply(&mut server, &seen, &plan) {
                Ok(()) if within => {
                    actions += plan.actions.len() as i64;
                    settled_actions += if convergence.proven(now) { plan.actions.len() } else { 0 };
                }
                Ok(()) => {}
                Err(e) => {
                    tracing::debug!(workload = w.name, policy = policy.name(), t_ms = now, "plan refused: {e}");
                    refused += 1;
                }
            }
        }
        policy.between();
        server.advance(Tick { ms: TICK_MS });
    }
    decision_us.sort_by(f64::total_cmp);
    let quantile = |q: f64| decision_us.get(((q * decision_us.len() as f64).ceil() as usize).saturating_sub(1)).copied();
    let per_tick = |sum: f64, ticks: u64| (ticks > 0).then(|| sum / ticks as f64);
    let seconds = |ticks: u64| ticks as f64 * TICK_MS as f64 / 1000.0;
    let settled_ms = convergence.proven_ms.map(|t| w.duration_ms.saturating_sub(t)).filter(|ms| *ms >= LEAST_SETTLED_MS);
    let row = EvalRow {
        workload: w.name.clone(),
        policy: policy.name().into(),
        platform: at.platform.name.clone(),
        plant: surefoot_vserver::EDITION,
        world: None,
        seed,
        converged: convergence.at_ms.is_some(),
        convergence_s: convergence.at_ms.map(|t| (t - from_ms) as f64 / 1000.0),
        actions,
        emu: per_tick(settled.emu, settled.ticks),
        be_throughput: per_tick(settled.be, settled.be_ticks),
        qos_violation_s: violations.total().map(seconds),
        worst_slowdown: worst,
        cores_used: per_tick(settled.cores, settled.ticks),
        ways_used: per_tick(settled.ways, settled.ticks),
        mbw_used: per_tick(settled.mbw, settled.ticks),
        decision_us_p50: quantile(0.5),
        decision_us_p99: quantile(0.99),
        oracle_emu: None,
        qos_violation_by_lc_s: violations.0.into_iter().map(|(id, n)| (id, n.map(seconds))).collect(),
        offered_load: per_tick(settled.offered, settled.ticks),
        refused_plans: refused,
        self_violation_s: seconds(blame.ticks),
        reclaim_crossings: blame.crossings,
        deprive_crossings: blame.deprivals,
        actions_per_min_settled: settled_ms.map(|ms| settled_actions as f64 * 60_000.0 / ms as f64),
        self_violation_settled_s: settled_ms.map(|_| seconds(blame.ticks - own_ticks_before.unwrap_or(blame.ticks))),
        be_throughput_met: per_tick(settled.be_met, settled.be_ticks),
        emu_cosmos: per_tick(settled.cosmos, settled.ticks),
        window_requests,
        held_decisions: policy.asked().map(|a| a.held_in_all() as i64),
    };
    Ok((row, timeline))
}

fn add_settled(sum: &mut Settled, seen: &Observation, loads: &Loads, alone: &BTreeMap<String, f64>) {
    sum.ticks += 1;
    let marks = marks(seen, loads, alone);
    sum.cosmos += marks.emu_cosmos;
    let mut cpus = surefoot_server::CpuSet::empty();
    let mut ways: Vec<u32> = vec![];
    for s in seen.lc() {
        // One by one: the order of a sum shows in its last bit.
        let (offered, met) = served(s, loads, seen.t_ms);
        sum.offered += offered;
        sum.emu += if met { offered } else { 0.0 };
        cpus = cpus.union(s.allocation.cpus);
        ways.resize(ways.len().max(s.allocation.ways.len()), 0);
        ways.iter_mut().zip(&s.allocation.ways).for_each(|(all, mine)| *all |= mine);
    }
    sum.cores += f64::from(cpus.len());
    sum.ways += ways.iter().map(|m| f64::from(m.count_ones())).sum::<f64>() / ways.len().max(1) as f64;
    sum.mbw += seen.services.iter().filter_map(|s| s.features.mbl_mbps).sum::<f64>();
    if let (Some(be), Some(met)) = (marks.be_throughput, marks.be_throughput_met) {
        sum.be += be;
        sum.be_met += met;
        sum.be_ticks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_policy::books::{Amount, Books};
    use surefoot_server::{Allocation, Features, FeedState, Kind, Latency, Plan, Platform, Verdict};

    fn seen(t_ms: u64, p99_ms: &[Option<f64>]) -> Observation {
        seen_with(t_ms, p99_ms, 1000)
    }

    fn seen_with(t_ms: u64, p99_ms: &[Option<f64>], count: u64) -> Observation {
        let p = Platform::regular("p", 4, 1, 4, 1.0);
        let view = |(i, p99): (usize, &Option<f64>)| ServiceView {
            id: format!("s{i}"),
            service: "s".into(),
            kind: Kind::Lc { qos_target_ms: 10.0 },
            threads: 1,
            allocation: Allocation::everything(&p),
            placed: true,
            features: Features::default(),
            feed: if p99.is_some() { FeedState::Fresh } else { FeedState::Unknown { since_ms: 0, heard: true } },
            interval: None,
            window: p99.map(|p99_ms| Latency {
                count,
                mean_ms: 1.0,
                p50_ms: 1.0,
                p95_ms: 1.0,
                p99_ms,
                p99_low_ms: None,
                p99_high_ms: None,
                achieved_rps: 1000.0,
                errors: 0,
                verdict: Verdict::Valid,
            }),
            instr_per_s: None,
            memory: surefoot_server::MemoryView::default(),
        };
        Observation { t_ms, services: p99_ms.iter().enumerate().map(view).collect(), ..Observation::default() }
    }

    fn converge(from_ms: u64, p99_at: impl Fn(u64) -> Vec<Option<f64>>) -> Option<u64> {
        let mut c = Convergence::from(from_ms);
        for t in (0..).step_by(100) {
            c.see(&seen(t, &p99_at(t)));
            if c.over(t) {
                return c.at_ms;
            }
        }
        None
    }

    /// Met from 5 s on, but for a slip at 7 s: the 3 s begin at 7.1 s.
    #[test]
    fn a_slip_starts_the_three_seconds_anew() {
        let at = converge(2000, |t| vec![Some(if t < 5000 || t == 7000 { 11.0 } else { 9.0 }), Some(1.0)]);
        assert_eq!(at, Some(7100));
    }

    /// What was met before the last change does not count, and an unknown latency is not met.
    #[test]
    fn before_the_last_change_and_unknown_do_not_count() {
        assert_eq!(converge(4000, |_| vec![Some(1.0)]), Some(4000));
        assert_eq!(converge(4000, |t| vec![Some(1.0), (t >= 6000).then_some(2.0)]), Some(6000));
    }

    /// A p99 of 99 requests proves nothing, however long it meets the target; with the hundredth it is proven of the time before, too.
    #[test]
    fn too_few_requests_prove_nothing() {
        let run = |enough_from_ms: u64| {
            let mut c = Convergence::from(1000);
            for t in (0..).step_by(100) {
                let count = if t < enough_from_ms { MIN_COUNT_P99 - 1 } else { MIN_COUNT_P99 };
                c.see(&seen_with(t, &[Some(1.0)], count));
                if c.over(t) {
                    return (c.at_ms, c.proven_ms);
                }
            }
            (None, None)
        };
        assert_eq!(run(u64::MAX), (None, None));
        assert_eq!((run(14_000), run(2_000)), ((Some(1000), Some(14_000)), (Some(1000), Some(4000))));
    }

    /// Two services of load 0.6 and 0.7, and a job at half its speed alone. Ticks: both met; one missed; one missed that has come above
    /// its max load within its window.
    #[test]
    fn throughput_counts_where_targets_are_met() {
        let at = VirtualTarget::of_platform("server-1", None).unwrap();
        let text = "duration_s = 40\n[[lc]]\nservice = \"xapian\"\nload = 0.6\n[[lc.change]]\nat_s = 20\nload = 1.1\n\
                    [[lc.change]]\nat_s = 21\nload = 0.6\n[[lc]]\nservice = \"moses\"\nload = 0.7\n";
        let w = Workload::parse("x.toml".as_ref(), text, &at.target()).unwrap();
        let loads = w.loads(1);
        let alone = BTreeMap::from([("job".to_string(), 2e9)]);
        let with = |t_ms: u64, p99_ms: f64| {
            let mut now = seen(t_ms, &[Some(p99_ms), Some(1.0), None]);
            (now.services[0].id, now.services[1].id) = ("xapian".into(), "moses".into());
            let job = &mut now.services[2];
            (job.id, job.kind, job.feed, job.instr_per_s) = ("job".into(), Kind::Be, FeedState::NotNeeded, Some(1e9));
            now
        };
        // At 21.5 s the window of a second still has requests that came at 110 %; at 22 s it has none.
        let cases = [(10_000, 9.0, 0.5, 1.8), (10_000, 11.0, 0.0, 0.0), (21_500, 11.0, 0.5, 0.0), (22_000, 11.0, 0.0, 0.0)];
        for (t_ms, p99_ms, be_met, cosmos) in cases {
            let mut sum = Settled::default();
            add_settled(&mut sum, &with(t_ms, p99_ms), &loads, &alone);
            assert_eq!((sum.be, sum.be_met, sum.be_ticks), (0.5, be_met, 1), "{t_ms} {p99_ms}");
            assert!((sum.cosmos - cosmos).abs() < 1e-12, "{t_ms} {p99_ms}: {}", sum.cosmos);
        }
    }

    /// The settled part: ten seconds; with shapes a minute, or the longest day; never before the last change.
    #[test]
    fn the_settled_part_of_shaped_loads_is_longer() {
        let at = VirtualTarget::of_platform("server-1", None).unwrap();
        let from = |shape: &str| {
            let text = format!("duration_s = 200\n[[lc]]\nservice = \"xapian\"\nload = 0.5\narrive_s = 90\n{shape}");
            settled_from_ms(&Workload::parse("x.toml".as_ref(), &text, &at.target()).unwrap())
        };
        let drift = "[lc.drift]\npct_per_min = 5\nbound_pct = 20\n";
        let day = |s: u32| format!("[lc.day]\nday_s = {s}\nlow = 0.5\n");
        assert_eq!([from(""), from(drift), from(&day(80)), from(&day(150))], [190_000, 140_000, 120_000, 90_000]);
    }

    /// A service whose latency was never known has no time of violation, nor have all together; one that was heard and met its target has 0.
    #[test]
    fn never_known_is_not_zero() {
        let mut v = Violations(["s0", "s1", "s2"].map(|id| (id.to_string(), None)).into());
        for (t, p99) in [(0, [None, Some(9.0), None]), (100, [None, Some(9.0), Some(11.0)]), (200, [None, None, Some(11.0)])] {
            for s in &seen(t, &p99).services {
                v.see(s);
            }
        }
        assert_eq!(v.0, BTreeMap::from([("s0", None), ("s1", Some(0)), ("s2", Some(2))].map(|(id, n)| (id.to_string(), n))));
        assert_eq!(v.total(), None);
        v.0.remove("s0");
        assert_eq!((v.total(), Violations(BTreeMap::new()).total()), (Some(2), Some(0)));
    }

    /// One service on 16 core units and all ways, but for a while on a single unit.
    struct Starves {
        books: Books,
        while_ms: std::ops::Range<u64>,
    }

    impl Policy for Starves {
        fn name(&self) -> &str {
            "starves"
        }

        fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
            let arrived = self.books.follow(seen).lc_arrived;
            let cores = if self.while_ms.contains(&now_ms) { 1 } else { 16 };
            let own = Amount::new(cores, self.books.total().ways);
            if !arrived.iter().any(|id| self.books.admit(id, own)) && !self.books.set("xapian", own) {
                return Plan::default();
            }
            self.books.plan(seen).unwrap()
        }
    }

    /// What a policy breaks before the 3 s that prove convergence is its own doing; what it breaks afterwards is so once settled, too.
    #[test]
    fn own_doing_counts_as_settled_after_convergence() {
        let at = VirtualTarget::of_platform("server-1", None).unwrap();
        let text = "platform = \"server-1\"\nduration_s = 40\n[[lc]]\nservice = \"xapian\"\nload = 0.5\n";
        let w = Workload::parse("x.toml".as_ref(), text, &at.target()).unwrap();
        for (while_ms, before, after) in [(2_000..2_500, true, false), (20_000..21_000, false, true), (50_000..50_000, false, false)] {
            let mut policy = Starves { books: Books::new(&at.platform), while_ms: while_ms.clone() };
            let (row, _) = run(&at, &w, &mut policy, 1, false).unwrap();
            let settled_s = row.self_violation_settled_s.unwrap();
            assert_eq!((row.self_violation_s - settled_s > 0.0, settled_s > 0.0), (before, after), "{while_ms:?}: {row:?}");
        }
    }

    /// A streak that begins within 180 s counts, a later one does not.
    #[test]
    fn the_limit_is_three_minutes() {
        assert_eq!(converge(1000, |t| vec![Some(if t < 181_000 { 11.0 } else { 9.0 })]), Some(181_000));
        assert_eq!(converge(1000, |t| vec![Some(if t < 181_100 { 11.0 } else { 9.0 })]), None);
    }
}
