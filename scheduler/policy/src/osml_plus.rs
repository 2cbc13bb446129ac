//! OSML+: three models under one control logic (OSML+ paper, Sec. 3.3, Algorithms 1 to 3).
//!
//! * **Arrival (Algorithm 1, [`place`]).** A new LC service is mapped on idle resources and what BE jobs can spare. After
//!   [`Settings::sample_ms`] Model-A says its OAA and RCliff from what was seen there. It gets its OAA from what is free, else
//!   by Algorithm 3, else what lies between RCliff and OAA. Services that arrive together are placed together.
//! * **Under- and over-provision (Algorithm 2, [`grow`] and [`shrink`]).** An LC service is under-provisioned while its QoS is missed,
//!   over-provisioned while it has slack. Model-C proposes one of seven actions; actions that cannot be carried out, or that Model-B
//!   predicts to be useless (growing) or harmful (shrinking), are masked, and the most probable one left is done. A reclaim that is
//!   followed by a violation is withdrawn, and that resource of that service is left alone for a while ([`rollback`]).
//! * **Deprivation (Algorithm 3, [`deprive`]).** BE jobs first; then at most three LC services whose QoS Model-B predicts to stay
//!   allowable; then sharing with the one that suffers least, with a report to the upper scheduler ([`share`]).
//! * **Learning ([`learn`]).** Model-C is taught what came of its actions. **Bandwidth ([`bandwidth`])** of BE jobs goes down and up.
//!
//! What the paper leaves open, and what is done here:
//!
//! * *Accumulated requests* keep p99 high after the cause is gone. While the backlog shrinks fast enough to be gone within
//!   [`Settings::patience_ms`], nothing is added. Where Model-B holds an allocation for sufficient, it is enlarged beyond
//!   only from what is free, and only by half, to drain faster.
//! * *Size of a step.* One unit, as in the paper; a quarter of what the service holds when it is overloaded, and a quarter of
//!   what is free when its cores are not busy and it misses its target all the same (BE jobs on sibling threads, memory, power:
//!   the models do not know them). Three steps of one resource that did not lower p99 by a tenth are withdrawn.
//!   No neighbour is asked for a step whose gain, by Model-B and by how busy the cores are, is below [`Settings::worth_qos`].
//!   A service with a QoS below 0.5, or a slow one, keeps its steps: a queue that still grows, or is full, hides what they bring.
//!   So who never gets out of it keeps what it took, but for idle cores.
//! * *Newcomers* are watched on no more than [`Settings::sample_share`] of all cores, and whoever is still watched when the next one
//!   comes gives it of what was idle, down to an equal share: else it would begin on a core and way that nobody has measured, with a
//!   queue that stays.
//! * *Slow services* (too few requests for a p99 in a second) answer now what they began seconds ago. They are watched for longer, and
//!   are under-provisioned as soon as all their cores are busy, whatever p99 says.
//! * *Load changes.* When throughput has moved by [`Settings::load_change`], Model-A is asked again and the service jumps there
//!   (up when it misses its target; down when Model-B agrees). The framework enables models as needed.
//! * *Model-B is corrected* by what it gets wrong now: predicted QoS of a new allocation = B(new) + observed - B(current).
//! * *Sharing ends* when enough is free for both, and when it hurts: when its owner misses its target, or the guest still does and p99
//!   has not fallen by a tenth in [`Settings::share_trial_ms`]. Requests on a shared CPU wait for two services, and p99 is theirs;
//!   so nobody shares cores that are busy.
//! * *RCliff.* Steps down keep off Model-A's RCliff; beyond it only while Model-B predicts 1.4 and cores stay below 70 % busy.
//! * *Reclaims for BE jobs* are felt by all services (siblings, bandwidth): none while a service is near its target, and all
//!   under watch are withdrawn when any service misses its target. A service that has long met its target with little slack
//!   gives what it holds beyond its OAA on trial, one unit at a time.
//! * *Memory bandwidth.* Action 4 raises the service's own MBA; at 100 %, where memory is contended, it lowers that of the BE
//!   jobs (they are deprived first). Their bandwidth returns step by step when all targets are met. Action 5 is masked: MBA is a
//!   throttle, not a share, so lowering a service's own gains nothing that Model-B could confirm. For the same reason a new
//!   service starts at 100 %: Model-A's OAA bandwidth is told in the reason of the placement, but not enforced. The throttle
//!   acts on each core, against a core's peak that no platform states, so a share of the server's peak is not its scale; a mean
//!   over time would cut bursts, which make p99; and Model-B could not say what that costs.
//! * *A p99 that cannot be believed* (client-limited, too few requests) teaches Model-C nothing: neither as the acting service's
//!   own nor in the reward of others. What is left out is counted, and the count stands in the reason of Model-C's actions.
//! * *A model that cannot answer* (a feature is missing) is replaced by a rule of thumb, and the action says so: OAA = busy
//!   cores / 0.6 and an equal share of ways; grow cores when they are busy, else ways; shrink by one unit, only from QoS 1.5;
//!   who is deprived or shares loses QoS with the square of what it has left. Where nobody's model answers, a newcomer's half of an
//!   equal share comes from those who hold more than one.
//! * *Unknown latency* (a silent feed) neither grows nor shrinks a service, nor is it deprived, and nothing is reclaimed for BE jobs
//!   meanwhile. A new service stays where it is watched until its feed speaks; if that says that it is idle, it is placed by its
//!   counters alone after the sampling time.
//! * *Allowable slowdown* and the upper scheduler's answer to a sharing are settings; every prediction below that is reported.

mod bandwidth;
mod because;
mod deprive;
mod grow;
mod learn;
mod place;
mod rollback;
mod share;
mod shrink;
pub mod switches;

use crate::books::{Amount, Books, Common};
use crate::models::{Area, Models, State};
use crate::pace::Pace;
use crate::Policy;
use std::collections::{BTreeMap, VecDeque};
use surefoot_learn::rng::Rng;
use surefoot_server::window::MIN_COUNT_P99;
use surefoot_server::{
    Action, ActionKind, Because, Features, HoldsIf, Observation, Plan, Platform, Question, Report, ServiceId, ServiceView, Verdict,
};

/// Knobs; the defaults are the paper's where it names any.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How long a new service is watched on idle resources before Model-A is asked.
    pub sample_ms: u64,
    /// The same for services too slow for a p99 of their own in a second.
    pub sample_slow_ms: u64,
    /// Share of all cores that a new service is watched on at most: who comes next begins on the rest.
    pub sample_share: f64,
    /// Allowable slowdown: the QoS that Model-B must predict for a neighbour that is deprived.
    pub neighbour_qos: f64,
    /// Standing answer of the upper scheduler: resources are shared if the owner's predicted QoS stays above this.
    pub shared_qos: f64,
    /// A sharing is judged after so long.
    pub share_trial_ms: u64,
    /// After a sharing that hurt a service uses nobody else's for so long.
    pub alone_ms: u64,
    /// QoS that Model-B must predict for a service that is to give up something itself.
    pub own_qos: f64,
    /// Gain in QoS, by Model-B and by how busy the cores are, that a step must have before a neighbour is asked for it.
    pub worth_qos: f64,
    /// Below this QoS a service takes what is free; below 1 also what neighbours have.
    pub grow_qos: f64,
    /// Above this QoS a service is over-provisioned.
    pub slack_qos: f64,
    /// A backlog that is gone within so long needs no further resources.
    pub patience_ms: u64,
    /// QoS must have been met for so long before a service gives anything.
    pub reclaim_after_ms: u64,
    /// A service that has met its target for so long gives a unit of what it holds beyond its OAA on trial, with less slack, too.
    pub trial_after_ms: u64,
    /// After a reclaim or deprivation the loser is watched for so long, and nothing else is taken from it.
    pub watch_ms: u64,
    /// A resource whose loss hurt is not taken again for so long (doubles each time, up to 16 times).
    pub peace_ms: u64,
    /// Model-C may answer "idle" so often in a row to an over-provisioned service before the next likely action is taken.
    pub idle_patience: u32,
    /// Change of throughput or CPU use that makes Model-A's last answer stale.
    pub load_change: f64,
    /// Standard deviation of the Gaussian noise on Model-C's probabilities (OSML+ paper, Sec. 3.2: exploration).
    pub noise: f64,
    /// Between two steps of on-line learning.
    pub learn_every_ms: u64,
    /// Busy share of the cores above which cores are taken to be what is lacking, and below which they may go.
    pub busy: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            sample_ms: 300,
            sample_slow_ms: 2000,
            sample_share: 0.75,
            neighbour_qos: 1.1,
            shared_qos: 0.8,
            share_trial_ms: 1000,
            alone_ms: 60_000,
            own_qos: 1.15,
            worth_qos: 0.05,
            grow_qos: 1.08,
            slack_qos: 1.3,
            patience_ms: 1500,
            reclaim_after_ms: 2000,
            trial_after_ms: 5000,
            watch_ms: 1500,
            peace_ms: 20_000,
            idle_patience: 5,
            load_change: 0.15,
            noise: 0.05,
            learn_every_ms: 500,
            busy: 0.9,
        }
    }
}

/// Model-C's actions (OSML+ paper, Table 5).
pub const CORES_UP: usize = 0;
pub const CORES_DOWN: usize = 1;
pub const WAYS_UP: usize = 2;
pub const WAYS_DOWN: usize = 3;
pub const MBA_UP: usize = 4;
/// Masked, see above.
pub const MBA_DOWN: usize = 5;
pub const IDLE: usize = 6;

/// Features are averaged over so much.
const SMOOTH_MS: u64 = 500;
/// Fewest features that say something.
const HEARD_MS: u64 = 300;
/// Latencies of the steps before an action are kept for so much.
const POINTS_MS: u64 = 400;
/// Weight of the last step in the mean rate.
const RATE_WEIGHT: f64 = 0.3;
/// A p99 above its target for so long is no chance.
const STRIKES_MS: u64 = 200;
/// Busy share of the cores from where there is more work than they can do.
const OVERLOAD: f64 = 0.95;

/// Model-A's answer in units, with where it came from.
#[derive(Clone, Debug)]
struct Target {
    oaa: Amount,
    rcliff: Amount,
    why: String,
    /// As Model-A gave it; None where it had none.
    area: Option<Area>,
}

/// A loss under watch: taken back if QoS is violated within the watch.
#[derive(Clone, Debug)]
struct Watch {
    until_ms: u64,
    lost: Amount,
    mba_pct: Option<u8>,
    /// Who got it; None: the BE jobs, or nobody.
    to: Option<ServiceId>,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    t_ms: u64,
    mean_ms: f64,
    p99_ms: f64,
}

/// What OSML+ remembers of one LC service.
#[derive(Clone, Debug, Default)]
struct Life {
    /// Mapped on idle resources since; None once Model-A has placed it.
    sampling_since_ms: Option<u64>,
    changed_ms: u64,
    /// Intervals in a row with a p99 above the target.
    strikes: u32,
    met_since_ms: Option<u64>,
    missed_since_ms: Option<u64>,
    features: VecDeque<Features>,
    points: VecDeque<Point>,
    rps: Option<f64>,
    target: Option<Target>,
    asked_ms: u64,
    /// Throughput and CPU use when Model-A was asked.
    asked_at: (Option<f64>, Option<f64>),
    watch: Option<Watch>,
    /// Cores and ways that must stay, and until when.
    floor: Amount,
    floor_until_ms: [u64; 2],
    hurts: u32,
    idles: u32,
    /// Growing steps of one resource in a row: which action, how many steps and units, p99 at the start; and the last step.
    series: Option<Series>,
    /// Resources that did not help are left alone until then.
    banned_until_ms: [u64; 3],
    reported: bool,
    /// When its last sharing as a guest began, and its p99 then, ms.
    shares: Option<(u64, f64)>,
    /// A sharing hurt: none until then.
    alone_until_ms: u64,
}

/// Growing steps of one resource in a row.
#[derive(Clone, Copy, Debug)]
struct Series {
    action: usize,
    steps: u32,
    units: u32,
    start_p99_ms: f64,
    last_ms: u64,
}

/// The policy.
pub struct OsmlPlus {
    set: Settings,
    with: switches::Settings,
    pace: Pace,
    models: Box<dyn Models>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    pending: Vec<(ServiceId, State, usize, bool)>,
    rng: Rng,
    learnt_ms: u64,
    /// A step of learning waits for [`Policy::between`].
    to_learn: bool,
    /// Experiences that Model-C was not taught, because p99 before or after the action could not be believed.
    left_out: u64,
    reclaimed_ms: u64,
    /// BE bandwidth: do not raise before; length of the next wait.
    be_mba_wait: (u64, u64),
    be_mba_raised: Option<u64>,
}

/// A p99 that the load generator itself does not vouch for: its own limits, or too few requests.
pub(crate) fn doubtful(s: &ServiceView) -> bool {
    s.window.is_some_and(|w| matches!(w.verdict, Verdict::ClientLimited | Verdict::NotResolvable))
}

/// Too few requests for a p99 in a second: it is judged by a longer window, and what it answers now it began before.
pub(crate) fn is_slow(s: &ServiceView) -> bool {
    s.window.is_none_or(|w| w.count < MIN_COUNT_P99 || w.achieved_rps < MIN_COUNT_P99 as f64)
}

/// Features averaged over intervals; what the last one lacks is unknown.
pub(crate) fn mean(all: &VecDeque<Features>) -> Features {
    let Some(last) = all.back().copied() else { return Features::default() };
    let m = |f: fn(&Features) -> Option<f64>| {
        let known: Vec<f64> = all.iter().filter_map(f).collect();
        f(&last).map(|_| known.iter().sum::<f64>() / known.len() as f64)
    };
    Features {
        ipc: m(|f| f.ipc),
        llc_misses_per_s: m(|f| f.llc_misses_per_s),
        mbl_mbps: m(|f| f.mbl_mbps),
        cpu_usage_cores: m(|f| f.cpu_usage_cores),
        core_freq_mhz: m(|f| f.core_freq_mhz),
        nb_mbl_mbps: m(|f| f.nb_mbl_mbps),
        ..last
    }
}

impl Life {
    fn smooth(&self) -> Features {
        mean(&self.features)
    }

    /// p99 over the last intervals, ms.
    fn recent_p99_ms(&self) -> Option<f64> {
        let n = self.points.len();
        (n > 0).then(|| self.points.iter().map(|p| p.p99_ms).sum::<f64>() / n as f64)
    }

    fn asleep(&self) -> bool {
        self.sampling_since_ms.is_some()
    }
}

pub(crate) fn act(plan: &mut Plan, service: &str, kind: ActionKind, why: String, because: Because) {
    plan.actions.push(Action { service: service.into(), kind, why, because });
}

impl OsmlPlus {
    pub fn new(platform: &Platform, models: Box<dyn Models>, settings: Settings, seed: u64) -> Self {
        OsmlPlus {
            pace: Pace::default(),
            set: settings,
            with: switches::Settings::default(),
            models,
            books: Books::new(platform),
            lives: BTreeMap::new(),
            pending: vec![],
            rng: Rng::new(seed),
            learnt_ms: 0,
            to_learn: false,
            left_out: 0,
            reclaimed_ms: 0,
            be_mba_wait: (0, 2000),
            be_mba_raised: None,
        }
    }

    /// Without some of its parts.
    pub fn with(self, switches: switches::Settings) -> Self {
        OsmlPlus { with: switches, ..self }
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

    fn state(&self, s: &ServiceView) -> State {
        let features = self.lives.get(&s.id).map_or(s.features, Life::smooth);
        State::with(s, features)
    }

    /// Model-B on an allocation, as it stands.
    fn b(&self, s: &ServiceView, a: Amount) -> Result<f64, String> {
        let q = self.models.qos(&s.service, &self.state(s), self.cores(a), f64::from(a.ways))?;
        if q.is_finite() {
            Ok(q)
        } else {
            Err("Model-B: not a number".into())
        }
    }

    /// Model-B on an allocation, corrected by its error on the present one.
    fn b_corrected(&self, s: &ServiceView, a: Amount) -> Result<f64, String> {
        let cap = self.models.qos_cap();
        let now = self.b(s, self.books.usable(&s.id))?.min(cap);
        let seen = self.recent_qos(s).ok_or("latency unknown")?.min(cap);
        Ok(self.b(s, a)? + seen - now)
    }

    /// QoS of the last second; after a change, while that still reaches back before it, of the intervals since.
    fn recent_qos(&self, s: &ServiceView) -> Option<f64> {
        let of_window = s.qos()?;
        let life = self.lives.get(&s.id)?;
        if life.points.len() < 2 || life.points.back()?.t_ms > life.changed_ms + 1000 {
            return Some(of_window);
        }
        Some(s.qos_target_ms()? / life.recent_p99_ms()?)
    }

    /// All cores of a slow service are busy: its queue grows, and latency will show it when that has been served.
    fn is_saturated(&self, s: &ServiceView) -> bool {
        let heard = |l: &Life| !l.asleep() && l.features.len() >= self.pace.steps(HEARD_MS);
        is_slow(s) && self.lives.get(&s.id).is_some_and(heard) && self.busy_share(s).is_some_and(|b| b > OVERLOAD)
    }

    fn busy_share(&self, s: &ServiceView) -> Option<f64> {
        let f = self.lives.get(&s.id)?.smooth();
        Some(f.cpu_usage_cores? / self.cores(self.books.usable(&s.id)))
    }

    /// Update what is remembered of every LC service.
    fn look(&mut self, now_ms: u64, seen: &Observation) {
        let (smooth, points, weight) = (self.pace.steps(SMOOTH_MS), self.pace.steps(POINTS_MS), self.pace.weight(RATE_WEIGHT));
        for s in seen.lc() {
            let usable = self.books.usable(&s.id);
            let life = self.lives.entry(s.id.clone()).or_default();
            life.features.push_back(s.features);
            if life.features.len() > smooth {
                life.features.pop_front();
            }
            if let Some(l) = s.interval {
                life.points.push_back(Point { t_ms: now_ms, mean_ms: l.mean_ms, p99_ms: l.p99_ms });
                if life.points.len() > points {
                    life.points.pop_front();
                }
                life.rps = Some(life.rps.map_or(l.achieved_rps, |r| (1.0 - weight) * r + weight * l.achieved_rps));
            }
            let high = s.interval.zip(s.qos_target_ms()).is_some_and(|(l, t)| l.p99_ms > t && l.verdict != Verdict::NotResolvable);
            life.strikes = if high { life.strikes + 1 } else { 0 };
            life.reported &= !s.at_ease();
            match s.qos_met() {
                Some(true) => {
                    life.missed_since_ms = None;
                    life.met_since_ms.get_or_insert(now_ms);
                }
                Some(false) => {
                    life.met_since_ms = None;
                    life.missed_since_ms.get_or_insert(now_ms);
                }
                None => (life.met_since_ms, life.missed_since_ms) = (None, None),
            }
            for (i, until) in life.floor_until_ms.iter_mut().enumerate() {
                if *until <= now_ms {
                    if i == 0 {
                        life.floor.cores = 0;
                    } else {
                        life.floor.ways = 0;
                    }
                }
            }
            life.floor = life.floor.at_most(usable);
        }
    }

    /// Note that what a service holds has changed: its old readings say little now.
    fn changed(&mut self, now_ms: u64, id: &str) {
        if let Some(l) = self.lives.get_mut(id) {
            l.changed_ms = now_ms;
            l.features.clear();
            l.points.clear();
        }
    }
}

/// Amount in words: "2 cores, 1 way".
pub(crate) fn words(a: Amount, p: &Platform) -> String {
    let mut s = format!("{} cores", p.cores(a.cores));
    if p.ways() > 0 {
        s += &format!(", {} ways", a.ways);
    }
    s
}

pub(crate) fn between(low: u32, high: u32, t: f64) -> u32 {
    low + (f64::from(high.saturating_sub(low)) * t).floor() as u32
}

impl Policy for OsmlPlus {
    fn name(&self) -> &str {
        "osml-plus"
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
        self.learn(now_ms, seen);
        self.withdraw(now_ms, seen, &mut plan);
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
        self.place_sampled(now_ms, seen, &mut plan);
        self.end_sharing(now_ms, seen, &mut plan);
        self.under_provisioned(now_ms, seen, &mut plan);
        self.over_provisioned(now_ms, seen, &mut plan);
        self.be_bandwidth(now_ms, seen, &mut plan);
        match self.books.plan(seen) {
            Ok(p) => plan.changes = p.changes,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
#[path = "osml_plus_tests.rs"]
mod tests;
