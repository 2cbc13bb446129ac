//! OSML: Models A, B and C with their shadows A' and B' under one central logic (OSML paper, Sec. 5, Algorithms 1 to 4).
//!
//! * **Arrival (Algorithm 1, [`place`]).** A new LC service is mapped on idle resources. After [`Settings::sample_ms`] Model-A (A'
//!   where it has neighbours) says its OAA and RCliff from what was seen there. It gets its OAA from what is idle, else from at
//!   most three neighbours by their B-points (Model-B), else its RCliff, else by Algorithm 4.
//! * **Under-provision (Algorithm 2).** Every [`Settings::interval_ms`]: a service that misses its target gets what Model-C chooses
//!   of `<m, n>`, up to 3 cores and 3 ways more, from what is idle; where that is not enough, by Algorithm 4.
//! * **Over-provision (Algorithm 3).** A service whose QoS has risen while its instructions per second have fallen gives what Model-C
//!   chooses, up to 3 cores and 3 ways. If it misses its target an interval later, it has them back.
//! * **Sharing (Algorithm 4, [`share`]).** Model-A' says what the service lacks; Model-B' judges what each neighbour would lose by
//!   sharing so many cores and ways with it. An acceptable loss is reported to the upper scheduler and done; else the service
//!   is to be migrated, which is a report, too; a newcomer that nobody helps cannot be placed, which is another.
//! * **Bandwidth ([`bandwidth`]).** In proportion to the services' OAA bandwidth, as far as MBA can do that.
//!
//! Model-C learns on line: one step an interval, on 200 transitions of its pool; 5 % of its actions are random.
//!
//! What the paper leaves open, and what is done here:
//!
//! * *BE jobs* are not in the paper, which knows LC services only. They hold together what no LC service holds, and keep one core
//!   unit and the least ways; to OSML that is idle. Nothing is ever reclaimed for them but by Algorithm 3.
//! * *Services that arrive together* are mapped on equal parts of what is idle, and placed together: all get the same share of the way
//!   from RCliff to OAA that fits. What a service is only watched on counts as idle for the next one.
//! * *Model-A is asked again* when a service misses its target: Model-C's actions start from Model-A's OAA (Sec. 4.4), and a sample
//!   that was taken on too few cores, or before the load rose, tells too little of it. Where what the service holds is not
//!   above the RCliff, or OAA is further than an action of Model-C reaches, it goes to its OAA as in Algorithm 1; else Model-C acts.
//! * *QoS slowdown.* QoS counts up to 1 (`models/osml_b.py`): a service with a p99 far below its target loses nothing by giving up to
//!   it. The acceptable slowdown, controlled by the upper scheduler, is a setting: [`Settings::slowdown`] for who is deprived,
//!   [`Settings::shared_slowdown`] for who shares. Model-B' must not contradict a B-point, and orders those that fit.
//! * *A service that misses its target and finds nothing idle* is first helped by its neighbours' B-points, as if it came now (lines
//!   15 to 28 of Algorithm 1), before anybody must share: what costs nobody's QoS comes first. A neighbour that misses its target
//!   within [`Settings::watch_ms`] of having given is not asked again for [`Settings::peace_ms`].
//! * *Accumulated requests.* While a backlog falls fast enough to be gone within [`Settings::patience_ms`], nothing is added. (The
//!   authors' program waits while latency improves by 5 % a second.)
//! * *What nobody can give.* Where Model-C wants what is neither idle nor to be had, it is asked again for the best of what is idle.
//! * *The bottleneck.* Where 95 % of the cores are busy, an action must add cores (the authors' program has this, too).
//! * *Risen and fallen*, in Algorithm 3, is by [`Settings::changed`] since the service last settled. Where nobody counts instructions,
//!   requests per second stand in. No reclaim goes below Model-A's RCliff.
//! * *Sharing.* Masks have no gaps: a service shares with one other, not with three. Who shares is judged as if it lost all of it, which
//!   is the worst; a sharing ends when what is shared can be had by both.
//! * *A model that cannot answer* (a feature is missing) is replaced by a rule of thumb, and the action says so: OAA = busy
//!   cores / 0.6 and an equal share of ways; grow by a core when they are busy, else by a way; a neighbour gives one unit, from QoS
//!   1.5 up. Nobody shares and nothing is reclaimed by a rule of thumb.
//! * *Unknown latency* (a silent feed) neither grows nor shrinks a service, nor does it give or share; its bandwidth is not lowered. A new
//!   service stays where it is mapped until its feed speaks.
//! * *A p99 that cannot be believed* (client-limited, too few requests) teaches Model-C nothing.

mod bandwidth;
mod place;
mod share;

use crate::books::{Amount, Books};
use crate::models::{Area, Experience, State};
use crate::osml_models::OsmlModels;
use crate::osml_plus::{act, doubtful, mean, words};
use crate::pace::Pace;
use crate::Policy;
use std::collections::{BTreeMap, VecDeque};
use surefoot_learn::dqn;
use surefoot_server::{ActionKind, Because, Features, HoldsIf, Observation, Plan, Platform, Question, Report, ServiceId, ServiceView};

/// Knobs; the defaults are the paper's where it names any.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Between two looks at all services (OSML paper, Sec. 5.2: 1 s; it names 1.5 and 2 s as well).
    pub interval_ms: u64,
    /// How long a new service is watched on idle resources before Model-A is asked (Algorithm 1: 2 s).
    pub sample_ms: u64,
    /// QoS that a neighbour may lose to a service that needs its resources (the paper's least B-point: 5 %).
    pub slowdown: f64,
    /// QoS that a neighbour may lose by sharing (Algorithm 4; the upper scheduler's standing answer).
    pub shared_slowdown: f64,
    /// Share by which QoS must have risen, and instructions per second fallen, for a service to count as over-provisioned.
    pub changed: f64,
    /// A backlog that is gone within so long needs no further resources.
    pub patience_ms: u64,
    /// Busy share of the cores from which an action must add cores.
    pub busy: f64,
    /// A service that misses its target so soon after it gave is left alone,
    pub watch_ms: u64,
    /// for so long.
    pub peace_ms: u64,
    /// Between two steps of on-line learning; not more often than once an interval.
    pub learn_every_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            interval_ms: 1000,
            sample_ms: 2000,
            slowdown: 0.05,
            shared_slowdown: 0.2,
            changed: 0.1,
            patience_ms: 2000,
            busy: 0.95,
            watch_ms: 3000,
            peace_ms: 30_000,
            learn_every_ms: 1000,
        }
    }
}

/// Features are averaged over so much: an interval of OSML.
const SMOOTH_MS: u64 = 1000;

/// Model-A's answer in units, with where it came from.
#[derive(Clone, Debug)]
struct Target {
    /// Model-A or Model-A'.
    by: &'static str,
    oaa: Amount,
    rcliff: Amount,
    why: String,
    /// As the model gave it; None where it had none.
    area: Option<Area>,
}

impl Target {
    /// OAA bandwidth, where the model gave any.
    fn mbps(&self) -> Option<f64> {
        self.area.and_then(|a| a.oaa_mbps).filter(|m| m.is_finite()).map(|m| m.max(0.0))
    }
}

/// What OSML remembers of one LC service.
#[derive(Clone, Debug, Default)]
struct Life {
    /// Mapped on idle resources since; None once Model-A has placed it.
    sampling_since_ms: Option<u64>,
    changed_ms: u64,
    features: VecDeque<Features>,
    /// Mean and p99 of the last intervals of 100 ms, with their time.
    latencies: VecDeque<(u64, f64, f64)>,
    /// Instructions (or requests) per second of the last intervals.
    speeds: VecDeque<f64>,
    /// QoS and speed when it last settled.
    settled: Option<(f64, f64)>,
    /// Taken by Algorithm 3 in the last interval; withdrawn if its target is missed now.
    trial: Option<Amount>,
    /// Taken for somebody else, and when.
    gave: Option<(u64, Amount)>,
    /// Not asked for anything before.
    peace_until_ms: u64,
    /// Model-C's last action: the state and p99 before it.
    pending: Option<(State, f64, usize)>,
    /// OAA bandwidth by Model-A.
    oaa_mbps: Option<f64>,
    reported: bool,
}

impl Life {
    fn asleep(&self) -> bool {
        self.sampling_since_ms.is_some()
    }

    fn speed(&self) -> Option<f64> {
        let n = self.speeds.len();
        (n > 0).then(|| self.speeds.iter().sum::<f64>() / n as f64)
    }
}

/// The policy.
pub struct Osml {
    set: Settings,
    pace: Pace,
    models: Box<dyn OsmlModels>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    next_ms: u64,
    learnt_ms: u64,
    /// A step of learning waits for [`Policy::between`].
    to_learn: bool,
    left_out: u64,
}

fn push<T>(all: &mut VecDeque<T>, x: T, most: usize) {
    all.push_back(x);
    if all.len() > most {
        all.pop_front();
    }
}

impl Osml {
    pub fn new(platform: &Platform, mut models: Box<dyn OsmlModels>, settings: Settings, seed: u64) -> Self {
        models.reseed(seed);
        let books = Books::new(platform);
        Osml {
            set: settings,
            pace: Pace::default(),
            models,
            books,
            lives: BTreeMap::new(),
            next_ms: 0,
            learnt_ms: 0,
            to_learn: false,
            left_out: 0,
        }
    }

    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Steps of on-line learning so far.
    pub fn learning_steps(&self) -> u64 {
        self.models.steps()
    }

    /// Experiences so far that Model-C was not taught, because p99 before or after the action could not be believed.
    pub fn experiences_left_out(&self) -> u64 {
        self.left_out
    }

    fn cores(&self, a: Amount) -> f64 {
        self.books.platform.cores(a.cores)
    }

    fn words(&self, a: Amount) -> String {
        words(a, &self.books.platform)
    }

    fn state(&self, s: &ServiceView) -> State {
        let features = self.lives.get(&s.id).map_or(s.features, |l| mean(&l.features));
        State::with(s, features)
    }

    /// What a step for this service rests on.
    fn because(&self, s: &ServiceView, holds_if: HoldsIf) -> Because {
        let mut b = Because::seen(s).expect(holds_if);
        if let (Some(seen), Some(life)) = (&mut b.seen, self.lives.get(&s.id).filter(|l| !l.features.is_empty())) {
            (seen.features, seen.intervals) = (mean(&life.features), life.features.len() as u32);
        }
        b
    }

    fn because_of(&self, seen: &Observation, id: &str, holds_if: HoldsIf) -> Because {
        seen.get(id).map_or_else(Because::default, |s| self.because(s, holds_if))
    }

    /// Update what is remembered of every LC service.
    fn look(&mut self, now_ms: u64, seen: &Observation) {
        let smooth = self.pace.steps(SMOOTH_MS);
        for s in seen.lc() {
            let life = self.lives.entry(s.id.clone()).or_default();
            if life.asleep() && !s.placed {
                // Not in force yet: it still runs everywhere.
                life.sampling_since_ms = Some(now_ms);
                continue;
            }
            push(&mut life.features, s.features, smooth);
            if let Some(l) = s.interval {
                push(&mut life.latencies, (now_ms, l.mean_ms, l.p99_ms), smooth);
            }
            if let Some(x) = s.instr_per_s.or_else(|| s.window.map(|w| w.achieved_rps)) {
                push(&mut life.speeds, x, smooth);
            }
        }
    }

    /// Note that what a service holds has changed: its old readings say little now.
    fn changed(&mut self, now_ms: u64, id: &str) {
        if let Some(l) = self.lives.get_mut(id) {
            l.changed_ms = now_ms;
            l.features.clear();
            l.latencies.clear();
            l.speeds.clear();
        }
    }

    /// A whole interval has passed since the last change.
    fn ready(&self, now_ms: u64, id: &str) -> bool {
        self.books.slot(id).is_some()
            && self.lives.get(id).is_some_and(|l| !l.asleep() && !l.features.is_empty() && now_ms >= l.changed_ms + self.set.interval_ms)
    }

    /// Credit Model-C's actions of the last interval with what they brought, for the networks to learn
    /// of when the plan is in force.
    fn learn(&mut self, now_ms: u64, seen: &Observation) {
        for s in seen.lc() {
            if !self.ready(now_ms, &s.id) {
                continue;
            }
            let Some((before, before_ms, action)) = self.lives.get_mut(&s.id).and_then(|l| l.pending.take()) else { continue };
            let (Some(_), Some(target_ms)) = (s.qos(), s.qos_target_ms()) else { continue };
            if doubtful(s) {
                self.left_out += 1;
                continue;
            }
            let most_ms = self.models.latency_cap() * target_ms;
            let after_ms = s.window.map_or(most_ms, |w| w.p99_ms).min(most_ms);
            let reward = dqn::reward(before_ms.min(most_ms), after_ms, action);
            let after = self.state(s);
            self.models.remember(&Experience { before, action, vector: None, reward, after });
        }
        if now_ms >= self.learnt_ms + self.set.learn_every_ms {
            self.learnt_ms = now_ms;
            self.to_learn = true;
        }
    }

    /// Keep an action for Model-C's pool, as far as it was carried out; the reward follows an interval later.
    fn expect(&mut self, s: &ServiceView, (cores, ways): (i32, i32)) {
        let (state, p99_ms) = (self.state(s), s.window.map(|w| w.p99_ms));
        let (Some(action), Some(p99_ms), Some(life)) = (dqn::action(cores, ways), p99_ms, self.lives.get_mut(&s.id)) else { return };
        if doubtful(s) {
            self.left_out += 1;
            return;
        }
        life.pending = Some((state, p99_ms, action));
    }

    // ---- Algorithm 2 ----------------------------------------------------------------------------------------------

    /// Missed, and not about to be met again by itself.
    fn misses(&self, s: &ServiceView) -> bool {
        let (Some(qos), Some(target_ms), Some(life)) = (s.qos(), s.qos_target_ms(), self.lives.get(&s.id)) else { return false };
        if qos >= 1.0 {
            return false;
        }
        let (Some((t, mean_ms, p99_ms)), Some(first)) = (life.latencies.back(), life.latencies.front()) else { return true };
        if life.latencies.len() < 4 {
            return true;
        }
        if life.latencies.iter().rev().take(3).all(|l| l.2 <= target_ms) {
            // The window still remembers what is over.
            return false;
        }
        let fall = (first.1 - mean_ms) / (t - first.0).max(1) as f64;
        !(fall > 0.0 && (p99_ms - target_ms) / fall <= self.set.patience_ms as f64)
    }

    fn under_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let mut order: Vec<&ServiceView> = seen.lc().filter(|s| self.ready(now_ms, &s.id) && self.misses(s)).collect();
        // Worst first.
        order.sort_by(|a, b| a.qos().partial_cmp(&b.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for s in order {
            if let Some(l) = self.lives.get_mut(&s.id) {
                if l.gave.is_some_and(|(t, _)| now_ms <= t + self.set.watch_ms) {
                    l.peace_until_ms = now_ms + self.set.peace_ms;
                }
                // What it settles at is seen once its target is met again.
                l.settled = None;
            }
            self.upsize(now_ms, s, seen, plan);
        }
    }

    fn busy_share(&self, s: &ServiceView) -> Option<f64> {
        Some(self.state(s).features.cpu_usage_cores? / self.cores(self.books.usable(&s.id)).max(1e-9))
    }

    /// Model-C's choice among what adds something and leads to no more than `total`, or the rule of thumb; None: nothing does.
    fn choose_more(&mut self, s: &ServiceView, total: Amount) -> Option<(Amount, Option<usize>, String)> {
        let has = self.books.usable(&s.id);
        let bottleneck = self.busy_share(s).is_some_and(|b| b >= self.set.busy) && has.cores < total.cores;
        let possible = |a: usize| {
            let (m, n) = dqn::change(a);
            let more = m >= 0 && n >= 0 && m + n > 0 && (m > 0 || !bottleneck);
            more && has.plus(Amount::new(m as u32, n as u32)).fits_in(total)
        };
        let state = self.state(s);
        match self.models.choose(&s.service, &state, &possible) {
            Ok(None) => None,
            Ok(Some(a)) => {
                let (m, n) = dqn::change(a);
                let from = if bottleneck { "Model-C (cores are the bottleneck)" } else { "Model-C" };
                Some((Amount::new(m as u32, n as u32), Some(a), from.into()))
            }
            Err(e) => {
                let mut units = [Amount::new(1, 0), Amount::new(0, 1)];
                if self.busy_share(s).is_some_and(|b| b < 0.8) {
                    units.reverse();
                }
                let unit = units.into_iter().find(|u| has.plus(*u).fits_in(total))?;
                Some((unit, None, format!("rule of thumb ({e})")))
            }
        }
    }

    fn say_c(&mut self, b: &mut Because, s: &ServiceView, action: Option<usize>) {
        let state = self.state(s);
        let Some(action) = action else {
            b.reject("Model-C", "has no answer; a rule of thumb stands in");
            return;
        };
        for a in [action, dqn::IDLE] {
            let (m, n) = dqn::change(a);
            if let Some(q) = self.models.worth(&s.service, &state, a) {
                b.say("Model-C", format!("Q(<{m:+}, {n:+}>)"), q, "");
            }
        }
    }

    /// To the OAA that Model-A sees now, where that is far. False if it is not, or cannot be had whole from what is idle.
    fn go_to_oaa(&mut self, now_ms: u64, s: &ServiceView, seen: &Observation, plan: &mut Plan) -> bool {
        let target = self.ask_a(s, seen);
        let (has, reach) = (self.books.usable(&s.id), dqn::REACH as u32);
        let lack = target.oaa.minus(has);
        let far = !target.rcliff.fits_in(has) || !lack.fits_in(Amount::new(reach, reach));
        if lack.is_zero() || !far || target.area.is_none() {
            return false;
        }
        let mut because = self.because(s, HoldsIf::P99Falls);
        self.say_target(&mut because, &target);
        because.reject("a step by Model-C", format!("on the RCliff, or further from OAA than {reach} cores and ways"));
        // Nearly all of it is better than three cores.
        let got = lack.at_most(self.books.free());
        if got.fits_in(Amount::new(reach, reach)) || !self.books.grow(&s.id, got) {
            return false;
        }
        because.bind(if got == lack { "Model-A's OAA" } else { "what is idle" });
        if let Some(l) = self.lives.get_mut(&s.id) {
            l.oaa_mbps = target.mbps();
        }
        self.changed(now_ms, &s.id);
        let why = format!("QoS {:.2}; {}: {} more", s.qos().unwrap_or(0.0), target.why, self.words(got));
        act(plan, &s.id, ActionKind::Grow, why, because);
        true
    }

    fn upsize(&mut self, now_ms: u64, s: &ServiceView, seen: &Observation, plan: &mut Plan) {
        if self.go_to_oaa(now_ms, s, seen, plan) {
            return;
        }
        let Some((mut more, mut action, mut from)) = self.choose_more(s, self.books.total()) else {
            self.migrate(s, "it holds all that the server has", plan);
            return;
        };
        let (qos, free) = (s.qos().unwrap_or(0.0), self.books.free());
        let mut because = self.because(s, HoldsIf::P99Falls);
        if more.fits_in(free) {
            because.bind(format!("an action moves at most {} cores and ways", dqn::REACH));
        } else {
            because.reject(format!("{} from what is idle", self.words(more)), format!("idle: {}", self.words(free)));
            // Line 11: others have it.
            if self.deprive_or_share(now_ms, s, more, seen, plan) {
                return;
            }
            because.reject(format!("{} from neighbours", self.words(more)), "none can give or share it");
            let Some(other) = self.choose_more(s, self.books.usable(&s.id).plus(free)) else {
                self.migrate(s, "nothing is idle, and no neighbour can give or share more", plan);
                return;
            };
            (more, action, from) = other;
            because.bind("what is idle");
        }
        self.say_c(&mut because, s, action);
        self.expect(s, (more.cores as i32, more.ways as i32));
        if self.books.grow(&s.id, more) {
            self.changed(now_ms, &s.id);
            act(plan, &s.id, ActionKind::Grow, format!("QoS {qos:.2}; {from}: {} more", self.words(more)), because);
        }
    }

    /// Line 10 of Algorithm 4, said once until the service is well again.
    fn migrate(&mut self, s: &ServiceView, why: &str, plan: &mut Plan) {
        if let Some(l) = self.lives.get_mut(&s.id).filter(|l| !l.reported && !plan.waits_for_word(&s.id)) {
            l.reported = true;
            let why = format!("QoS {:.2}: {why}", s.qos().unwrap_or(0.0));
            plan.reports.push(Report::Migrate { service: s.id.clone(), why });
        }
    }

    // ---- Algorithm 3 ----------------------------------------------------------------------------------------------

    /// Withdraw what was taken an interval ago from a service that misses its target now (line 10).
    fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for s in seen.lc() {
            if !self.ready(now_ms, &s.id) {
                continue;
            }
            let Some(lost) = self.lives.get_mut(&s.id).and_then(|l| l.trial.take()) else { continue };
            if s.qos_met() != Some(false) {
                continue;
            }
            let back = lost.at_most(self.books.free());
            let mut because = self.because(s, HoldsIf::P99Falls);
            because.reject("Model-C again, for more", "the reclaim is the cause");
            because.bind(if back == lost { "what was taken" } else { "what is idle of it" });
            if !back.is_zero() && self.books.grow(&s.id, back) {
                if let Some(l) = self.lives.get_mut(&s.id) {
                    // Only a further fall of load counts from here.
                    l.settled = None;
                }
                self.changed(now_ms, &s.id);
                act(plan, &s.id, ActionKind::Rollback, format!("target missed after the reclaim: {} back", self.words(back)), because);
            }
        }
    }

    /// QoS has risen and speed has fallen since it settled; keeps what it settled at.
    fn over_provision(&mut self, s: &ServiceView) -> bool {
        let by = self.set.changed;
        let Some(life) = self.lives.get_mut(&s.id) else { return false };
        life.reported &= !s.at_ease();
        let Some(qos) = s.qos() else { return false };
        let Some(speed) = life.speed().filter(|_| qos >= 1.0) else { return false };
        let (was_qos, was_speed) = *life.settled.get_or_insert((qos, speed));
        if speed > was_speed {
            // As the load rises it settles anew.
            life.settled = Some((qos, speed));
            return false;
        }
        qos >= was_qos * (1.0 + by) && speed <= was_speed * (1.0 - by)
    }

    fn over_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for s in seen.lc() {
            if !self.ready(now_ms, &s.id) || !self.over_provision(s) || doubtful(s) || self.books.common_of(&s.id).is_some() {
                continue;
            }
            self.downsize(now_ms, s, seen, plan);
        }
    }

    fn downsize(&mut self, now_ms: u64, s: &ServiceView, seen: &Observation, plan: &mut Plan) {
        let (has, spare) = (self.books.usable(&s.id), self.books.spare(&s.id));
        let target = self.ask_a(s, seen);
        let area = target.area.is_some();
        let allowed = |m: i32, n: i32| {
            let less = Amount::new(m.unsigned_abs(), n.unsigned_abs());
            let to = has.minus(less);
            let off = (m == 0 || to.cores >= target.rcliff.cores) && (n == 0 || to.ways >= target.rcliff.ways);
            m <= 0 && n <= 0 && less.fits_in(spare) && (off || less.is_zero())
        };
        let possible = |a: usize| {
            let (m, n) = dqn::change(a);
            allowed(m, n)
        };
        let state = self.state(s);
        let chosen = if area { self.models.choose(&s.service, &state, &possible) } else { Ok(None) };
        let Ok(Some(action)) = chosen else { return };
        let (m, n) = dqn::change(action);
        let less = Amount::new(m.unsigned_abs(), n.unsigned_abs());
        let mut because = self.because(s, HoldsIf::Qos { at_least: 1.0 });
        self.say_target(&mut because, &target);
        self.say_c(&mut because, s, Some(action));
        self.say_bp(&mut because, s, has.minus(less));
        self.expect(s, (m, n));
        if less.is_zero() || !self.books.shrink(&s.id, less) {
            return;
        }
        because.bind(format!("Model-A's RCliff, and at most {} cores and ways; withdrawn if its target is missed", dqn::REACH));
        self.changed(now_ms, &s.id);
        if let Some(l) = self.lives.get_mut(&s.id) {
            l.trial = Some(less);
        }
        let why = format!("QoS {:.2} has risen at a falling load; Model-C: {} less", s.qos().unwrap_or(0.0), self.words(less));
        act(plan, &s.id, ActionKind::Shrink, why, because);
    }
}

impl Policy for Osml {
    fn name(&self) -> &str {
        "osml"
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.pace = Pace::every(interval_ms)?;
        Ok(())
    }

    fn between(&mut self) -> bool {
        let to_learn = std::mem::take(&mut self.to_learn);
        if to_learn {
            self.models.learn();
        }
        to_learn
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        self.between();
        let mut plan = Plan::default();
        let news = self.books.follow(seen);
        self.lives.retain(|id, _| seen.get(id).is_some());
        self.look(now_ms, seen);
        let lacks = self.books.be_lacks();
        if !lacks.is_zero() {
            self.take_from_best_off(now_ms, "the BE jobs", lacks, seen, &mut plan);
        }
        for id in &news.be_arrived {
            let mut because = self.because_of(seen, id, HoldsIf::NotJudged);
            because.bind("LC services come first");
            act(&mut plan, id, ActionKind::Place, "BE: what LC services do not hold, shared with other BE jobs".into(), because);
        }
        self.map_on_idle(now_ms, seen, &news.lc_arrived, &mut plan);
        let placed = self.place_sampled(now_ms, seen, &mut plan);
        if now_ms >= self.next_ms {
            self.next_ms = now_ms + self.set.interval_ms;
            self.learn(now_ms, seen);
            self.withdraw(now_ms, seen, &mut plan);
            self.end_sharing(now_ms, seen, &mut plan);
            self.under_provisioned(now_ms, seen, &mut plan);
            self.over_provisioned(now_ms, seen, &mut plan);
            self.partition_bandwidth(seen, &mut plan);
        } else if placed {
            self.partition_bandwidth(seen, &mut plan);
        }
        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
#[path = "osml_tests.rs"]
mod tests;
