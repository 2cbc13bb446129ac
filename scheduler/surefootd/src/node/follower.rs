//! One record per action, and what came of it.
//!
//! The follower is pure: it looks on while the loop observes and acts. A record opens with an action and closes with the first
//! window of latency that lies wholly after it, or before that with the next action on the same service. A tick on which nothing
//! opens or closes costs a look at what is open.

use serde::{Deserialize, Serialize};
use surefoot_server::window::{reach_ms, MIN_COUNT_P99, WINDOW_MS};
use surefoot_server::{ActionKind, Because, Given, HoldsIf, Observation, Plan, ServiceView, Verdict};

/// A service whose latency stays unknown for so long gives no effect.
pub const GIVE_UP_MS: u64 = 120_000;
/// Records that are open at a time; the oldest closes unseen beyond that.
const MOST_OPEN: usize = 256;

/// An action: why it was taken, and what it led to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Counts on over restarts, in one journal.
    pub id: u64,
    /// Since the first tick of the run.
    pub t_ms: u64,
    /// Since 1970, UTC; None on a virtual server that runs faster than time.
    pub at_ms: Option<u64>,
    pub service: String,
    pub action: ActionKind,
    pub why: String,
    /// False where the server refused the plan: nothing was changed.
    pub applied: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// What the plan gives the service.
    #[serde(flatten)]
    pub given: Given,
    pub because: Because,
    /// None while the record is open.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub effect: Option<Effect>,
}

/// What came after an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// When it was seen, since the first tick, and how long after the action.
    pub t_ms: u64,
    pub after_ms: u64,
    pub closed_by: ClosedBy,
    pub p99_before_ms: Option<f64>,
    pub p99_after_ms: Option<f64>,
    /// Target / p99.
    pub qos_before: Option<f64>,
    pub qos_after: Option<f64>,
    pub verdict: Option<Verdict>,
    /// Of BE jobs, where known.
    pub instr_per_s_before: Option<f64>,
    pub instr_per_s_after: Option<f64>,
    /// Whether the expectation held; None where none was had, or where it cannot be said.
    pub held: Option<bool>,
}

/// What ended the wait for an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClosedBy {
    /// The first window that lies wholly after the action.
    Window,
    /// Another action on the service came first; judged by the last interval, where that has enough requests.
    NextAction,
    /// The service left.
    Left,
    /// Its latency stayed unknown.
    Unknown,
    /// The daemon ended.
    End,
}

impl ClosedBy {
    pub fn words(self) -> &'static str {
        match self {
            ClosedBy::Window => "in the first full window",
            ClosedBy::NextAction => "until the next action on it, by the last interval",
            ClosedBy::Left => "until the service left",
            ClosedBy::Unknown => "while its latency stayed unknown",
            ClosedBy::End => "until the daemon ended",
        }
    }
}

/// An effect, and of which record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Closed {
    pub id: u64,
    pub effect: Effect,
}

/// What one tick adds to the story. Nothing on most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// Of earlier records.
    pub closed: Vec<Closed>,
    pub opened: Vec<Record>,
}

impl Told {
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.opened.is_empty()
    }
}

#[derive(Clone, Debug)]
struct Open {
    id: u64,
    service: String,
    t_ms: u64,
    p99_ms: Option<f64>,
    qos: Option<f64>,
    instr_per_s: Option<f64>,
    holds_if: HoldsIf,
}

/// Follows every action until its effect is known.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    last_id: u64,
    open: Vec<Open>,
}

impl Follower {
    /// `last_id` of an earlier run's records; 0 for none.
    pub fn new(last_id: u64) -> Self {
        Follower { last_id, open: vec![] }
    }

    /// What a tick adds: `seen` now, `plan` on it, and why the plan was refused, if it was. `at_ms` is asked only where something
    /// is to be told.
    pub fn tick(&mut self, t_ms: u64, seen: &Observation, plan: Plan, refused: Option<&str>, at_ms: impl Fn() -> Option<u64>) -> Told {
        let mut told = Told::default();
        if !self.open.is_empty() {
            told.closed = self.close(t_ms, seen, &plan);
        }
        if plan.actions.is_empty() {
            return told;
        }
        let at_ms = at_ms();
        for a in plan.actions {
            self.last_id += 1;
            let id = self.last_id;
            if refused.is_none() {
                let s = seen.get(&a.service);
                self.open.push(Open {
                    id,
                    service: a.service.clone(),
                    t_ms,
                    p99_ms: s.and_then(|s| s.window).map(|w| w.p99_ms),
                    qos: s.and_then(ServiceView::qos),
                    instr_per_s: s.and_then(|s| s.instr_per_s),
                    holds_if: a.because.expected.holds_if,
                });
            }
            let to = seen.get(&a.service).and_then(|s| plan.changes.get(&s.id).map(|c| c.on(&s.allocation)));
            told.opened.push(Record {
                id,
                t_ms,
                at_ms,
                service: a.service,
                action: a.kind,
                why: a.why,
                applied: refused.is_none(),
                error: refused.map(Into::into),
                given: to.as_ref().map(Given::of).unwrap_or_default(),
                because: a.because,
                effect: None,
            });
        }
        while self.open.len() > MOST_OPEN {
            let o = self.open.remove(0);
            told.closed.push(closed(&o, t_ms, ClosedBy::Unknown, None));
        }
        told
    }

    /// The last tick: what is still open closes as it stands.
    pub fn end(&mut self, t_ms: u64, seen: &Observation) -> Vec<Closed> {
        self.open.drain(..).map(|o| closed(&o, t_ms, ClosedBy::End, seen.get(&o.service))).collect()
    }

    fn close(&mut self, t_ms: u64, seen: &Observation, plan: &Plan) -> Vec<Closed> {
        let mut done = vec![];
        self.open.retain(|o| {
            let s = seen.get(&o.service);
            let waited_ms = t_ms.saturating_sub(o.t_ms);
            let full = s.is_some_and(|s| match (&s.window, s.is_lc()) {
                (Some(w), _) => waited_ms >= reach_ms(w),
                (None, is_lc) => !is_lc && waited_ms >= WINDOW_MS,
            });
            let by = if s.is_none() {
                ClosedBy::Left
            } else if full {
                ClosedBy::Window
            } else if waited_ms > 0 && plan.actions.iter().any(|a| a.service == o.service) {
                ClosedBy::NextAction
            } else if waited_ms >= GIVE_UP_MS {
                ClosedBy::Unknown
            } else {
                return true;
            };
            done.push(closed(o, t_ms, by, s));
            false
        });
        done
    }
}

fn closed(o: &Open, t_ms: u64, by: ClosedBy, s: Option<&ServiceView>) -> Closed {
    // Only a full window lies wholly after the action; else the last interval does, where it carries a p99.
    let after = match (by, s) {
        (ClosedBy::Window, Some(s)) => s.window,
        (_, Some(s)) => s.interval.filter(|l| l.count >= MIN_COUNT_P99 && t_ms > o.t_ms),
        (_, None) => None,
    };
    let p99_after_ms = after.map(|l| l.p99_ms);
    let qos_after = p99_after_ms.zip(s.and_then(ServiceView::qos_target_ms)).map(|(p, t)| t / p.max(1e-9));
    let unheard = s.is_some_and(ServiceView::latency_unknown);
    let doubtful = unheard || after.is_some_and(|l| matches!(l.verdict, Verdict::ClientLimited | Verdict::NotResolvable));
    let held = if doubtful { None } else { o.holds_if.judge(o.p99_ms, p99_after_ms, qos_after) };
    Closed {
        id: o.id,
        effect: Effect {
            t_ms,
            after_ms: t_ms.saturating_sub(o.t_ms),
            closed_by: by,
            p99_before_ms: o.p99_ms,
            p99_after_ms,
            qos_before: o.qos,
            qos_after,
            verdict: after.map(|l| l.verdict),
            instr_per_s_before: o.instr_per_s,
            instr_per_s_after: s.and_then(|s| s.instr_per_s),
            held,
        },
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use surefoot_server::{Action, Allocation, Features, FeedState, Kind, Latency, Platform};

    /// 200 requests a second: an interval has 20, a window 200.
    fn latency(count: u64, p99_ms: f64) -> Latency {
        Latency {
            count,
            mean_ms: p99_ms / 4.0,
            p50_ms: p99_ms / 5.0,
            p95_ms: p99_ms / 2.0,
            p99_ms,
            p99_low_ms: None,
            p99_high_ms: None,
            achieved_rps: 200.0,
            errors: 0,
            verdict: Verdict::Valid,
        }
    }

    /// Services with a target of 10 ms, and a BE job.
    pub(crate) fn seen(t_ms: u64, p99s: &[(&str, f64)]) -> Observation {
        let p = Platform::regular("t", 8, 1, 11, 2.0);
        let view = |id: &str, p99_ms: Option<f64>| ServiceView {
            id: id.into(),
            service: id.into(),
            kind: p99_ms.map_or(Kind::Be, |_| Kind::Lc { qos_target_ms: 10.0 }),
            threads: 1,
            allocation: Allocation::everything(&p),
            placed: true,
            features: Features::default(),
            feed: p99_ms.map_or(FeedState::NotNeeded, |_| FeedState::Fresh),
            interval: p99_ms.map(|p| latency(20, p)),
            window: p99_ms.map(|p| latency(200, p)),
            instr_per_s: p99_ms.is_none().then_some(1e9),
            memory: surefoot_server::MemoryView::default(),
        };
        let mut services: Vec<ServiceView> = p99s.iter().map(|(id, p99)| view(id, Some(*p99))).collect();
        services.push(view("job", None));
        Observation { t_ms, services, ..Observation::default() }
    }

    pub(crate) fn action(service: &str, kind: ActionKind, holds_if: HoldsIf) -> Plan {
        let because = Because::default().expect(holds_if);
        Plan { actions: vec![Action { service: service.into(), kind, why: "w".into(), because }], ..Plan::default() }
    }

    fn nothing() -> Plan {
        Plan::default()
    }

    /// A record closes with the first window that lies wholly after the action, and says whether what was expected came.
    #[test]
    fn a_full_window_closes_a_record() {
        let mut f = Follower::new(41);
        let told = f.tick(500, &seen(500, &[("a", 40.0)]), action("a", ActionKind::Grow, HoldsIf::P99Falls), None, || Some(7));
        assert_eq!((told.opened[0].id, told.opened[0].at_ms, told.opened[0].applied), (42, Some(7), true));
        for t in (600..1500).step_by(100) {
            assert!(f.tick(t, &seen(t, &[("a", 5.0)]), nothing(), None, || panic!("nothing to tell")).is_empty());
        }
        let told = f.tick(1500, &seen(1500, &[("a", 5.0)]), nothing(), None, || None);
        let e = &told.closed[0].effect;
        assert_eq!((told.closed[0].id, e.closed_by, e.after_ms, e.held), (42, ClosedBy::Window, 1000, Some(true)));
        assert_eq!((e.p99_before_ms, e.p99_after_ms, e.qos_before, e.qos_after), (Some(40.0), Some(5.0), Some(0.25), Some(2.0)));
        assert!(f.tick(1600, &seen(1600, &[("a", 5.0)]), nothing(), None, || None).is_empty());
    }

    /// A record says what the plan gives, byte for byte as before there were limits; a record of nothing given has nulls.
    #[test]
    fn a_record_says_what_is_given() {
        let now = seen(0, &[("a", 40.0)]);
        let all = now.services[0].allocation.clone();
        let text = |plan: Plan| serde_json::to_string(&Follower::default().tick(0, &now, plan, None, || None).opened[0]).unwrap();
        let grow = || action("a", ActionKind::Grow, HoldsIf::P99Falls);
        let nothing = r#""applied":true,"cores":null,"cpus":null,"ways":null,"mba_pct":null,"because":{"#;
        assert!(text(grow()).contains(nothing), "{}", text(grow()));
        let give = |to: &Allocation| Plan { changes: [("a".to_string(), surefoot_server::Change::all(to))].into(), ..grow() };
        let given = r#""applied":true,"cores":8.0,"cpus":"0-7","ways":[2047],"mba_pct":100,"because":{"#;
        assert!(text(give(&all)).contains(given), "{}", text(give(&all)));
        let limited = text(give(&Allocation { mem_limit_bytes: Some(1 << 30), ..all }));
        assert!(limited.contains(r#""mba_pct":100,"mem_limit_bytes":1073741824,"because":{"#), "{limited}");
        for line in [nothing, given, &limited] {
            assert!(!line.contains("zswap"));
        }
        let back: Record = serde_json::from_str(&limited).unwrap();
        assert_eq!((back.given.mem_limit_bytes, back.given.zswap_max_bytes), (Some(1 << 30), None));
    }

    /// A service too slow for a p99 in a second is waited for as long as its window reaches back.
    #[test]
    fn a_slow_window_is_waited_for() {
        let mut f = Follower::default();
        let at = |t: u64| {
            let mut s = seen(t, &[("a", 5.0)]);
            // 100 requests at 25 a second: four seconds.
            s.services[0].window = Some(Latency { achieved_rps: 25.0, ..latency(100, 5.0) });
            s
        };
        f.tick(0, &at(0), action("a", ActionKind::Shrink, HoldsIf::Qos { at_least: 1.0 }), None, || None);
        assert!(f.tick(3900, &at(3900), nothing(), None, || None).is_empty());
        assert_eq!(f.tick(4000, &at(4000), nothing(), None, || None).closed[0].effect.held, Some(true));
    }

    /// The next action on the service closes what came before, undecided where an interval has too few requests for a p99; actions
    /// of one tick stand together, and those on others do not matter.
    #[test]
    fn the_next_action_closes_a_record() {
        let mut f = Follower::default();
        let now = |t| seen(t, &[("a", 40.0), ("b", 5.0)]);
        let grow = |id| action(id, ActionKind::Grow, HoldsIf::P99Falls);
        let mut both = grow("a");
        both.actions.extend(action("a", ActionKind::Rollback, HoldsIf::P99Stays).actions);
        assert_eq!(f.tick(0, &now(0), both, None, || None).opened.len(), 2);
        assert!(f.tick(100, &now(100), grow("b"), None, || None).closed.is_empty());
        let told = f.tick(200, &now(200), grow("a"), None, || None);
        let ids: Vec<u64> = told.closed.iter().map(|c| c.id).collect();
        assert_eq!((ids, told.opened[0].id), (vec![1, 2], 4));
        let e = &told.closed[0].effect;
        assert_eq!((e.closed_by, e.p99_after_ms, e.held), (ClosedBy::NextAction, None, None));
        // With enough requests in the interval it is judged.
        let mut busy = now(400);
        busy.services[0].interval = Some(latency(MIN_COUNT_P99, 30.0));
        let e = &f.tick(400, &busy, grow("a"), None, || None).closed[0].effect;
        assert_eq!((e.p99_after_ms, e.held), (Some(30.0), Some(true)));
    }

    /// A BE job's effect is its throughput; a leave, a latency that stays unknown, and the end of the daemon close records; a
    /// refused plan opens none; a p99 that cannot be believed decides nothing.
    #[test]
    fn every_record_closes() {
        let mut f = Follower::default();
        let all = |t| seen(t, &[("a", 5.0), ("b", 5.0)]);
        let judged = HoldsIf::Qos { at_least: 1.0 };
        let told = f.tick(0, &all(0), action("a", ActionKind::Grow, judged), Some("no"), || None);
        assert_eq!((told.opened[0].applied, told.opened[0].error.as_deref()), (false, Some("no")));
        f.tick(100, &all(100), action("job", ActionKind::Place, HoldsIf::NotJudged), None, || None);
        f.tick(100, &all(100), action("b", ActionKind::Place, judged), None, || None);
        let told = f.tick(200, &seen(200, &[("a", 5.0)]), nothing(), None, || None);
        assert_eq!((told.closed[0].id, told.closed[0].effect.closed_by), (3, ClosedBy::Left));
        let told = f.tick(1100, &all(1100), nothing(), None, || None);
        let e = &told.closed[0].effect;
        assert_eq!((told.closed[0].id, e.instr_per_s_after, e.held), (2, Some(1e9), None));

        let mut silent = all(2000);
        (silent.services[0].window, silent.services[0].interval) = (None, None);
        f.tick(2000, &silent, action("a", ActionKind::Place, judged), None, || None);
        assert!(f.tick(2000 + GIVE_UP_MS - 100, &silent, nothing(), None, || None).is_empty());
        let e = &f.tick(2000 + GIVE_UP_MS, &silent, nothing(), None, || None).closed[0].effect;
        assert_eq!((e.closed_by, e.held), (ClosedBy::Unknown, None));

        f.tick(200_000, &all(200_000), action("a", ActionKind::Place, judged), None, || None);
        let mut doubtful = all(201_000);
        doubtful.services[0].window = Some(Latency { verdict: Verdict::ClientLimited, ..latency(200, 5.0) });
        let e = &f.tick(201_000, &doubtful, nothing(), None, || None).closed[0].effect;
        assert_eq!((e.p99_after_ms, e.held), (Some(5.0), None));

        f.tick(300_000, &all(300_000), action("a", ActionKind::Place, judged), None, || None);
        assert_eq!(f.end(300_100, &all(300_100))[0].effect.closed_by, ClosedBy::End);
        assert!(f.end(300_200, &all(300_200)).is_empty());
    }

    /// However many actions nobody sees the end of, the follower stays small.
    #[test]
    fn open_records_are_bounded() {
        let mut f = Follower::default();
        let mut closed = 0;
        for t in 0..1000 {
            // In one tick, so that no next action closes them.
            let mut silent = seen(0, &[("a", 5.0)]);
            silent.services[0].window = None;
            let told = f.tick(0, &silent, action("a", ActionKind::Grow, HoldsIf::P99Falls), None, || None);
            closed += told.closed.len();
            assert!(f.open.len() <= MOST_OPEN, "{t}");
        }
        assert_eq!(closed, 1000 - MOST_OPEN);
    }
}
