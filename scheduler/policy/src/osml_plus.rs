//! OSML+: three models under one control logic (OSML+ paper, Sec. 3.3, Algorithms 1 to 3).
//!
//! * **Arrival (Algorithm 1).** A new LC service is mapped on idle resources and what BE jobs can spare. After
//!   [`Settings::sample_ms`] Model-A says its OAA and RCliff from what was seen there. It gets its OAA from what is free, else
//!   by Algorithm 3, else what lies between RCliff and OAA. Services that arrive together are placed together.
//! * **Under- and over-provision (Algorithm 2).** An LC service is under-provisioned while its QoS is missed, over-provisioned
//!   while it has slack. Model-C proposes one of seven actions; actions that cannot be carried out, or that Model-B predicts to
//!   be useless (growing) or harmful (shrinking), are masked, and the most probable one left is done. A reclaim that is followed
//!   by a violation is withdrawn, and that resource of that service is left alone for a while.
//! * **Deprivation (Algorithm 3).** BE jobs first; then at most three LC services whose QoS Model-B predicts to stay allowable;
//!   then sharing with the one that suffers least, with a report to the upper scheduler.
//!
//! What the paper leaves open, and what is done here:
//!
//! * *Accumulated requests* keep p99 high after the cause is gone. While the backlog shrinks fast enough to be gone within
//!   [`Settings::patience_ms`], nothing is added. Where Model-B holds an allocation for sufficient, it is enlarged beyond
//!   only from what is free, and only by half, to drain faster.
//! * *Size of a step.* One unit, as in the paper; a quarter of what the service holds when it is overloaded, and a quarter of
//!   what is free when its cores are not busy and it misses its target all the same (BE jobs on sibling threads, memory, power:
//!   the models do not know them). Three steps of one resource that did not lower p99 by a tenth are withdrawn.
//! * *Load changes.* When throughput has moved by [`Settings::load_change`], Model-A is asked again and the service jumps there
//!   (up when it misses its target; down when Model-B agrees). The framework enables models as needed.
//! * *Model-B is corrected* by what it gets wrong now: predicted QoS of a new allocation = B(new) + observed - B(current).
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
//!   cores / 0.6 and an equal share of ways; grow cores when they are busy, else ways; shrink by one unit, only from QoS 1.5.
//! * *Unknown latency* (a silent feed) neither grows nor shrinks a service, nor is it deprived, and nothing is reclaimed for BE jobs
//!   meanwhile. A new service stays where it is watched until its feed speaks; if that says that it is idle, it is placed by its
//!   counters alone after the sampling time.
//! * *Allowable slowdown* and the upper scheduler's answer to a sharing are settings; every prediction below that is reported.

mod because;

use crate::books::{Amount, Books};
use crate::deprive::{best_fit, Donor, Offer};
use crate::models::{Area, Experience, Models, State};
use crate::Policy;
use because::Tried;
use std::collections::{BTreeMap, VecDeque};
use surefoot_learn::rng::Rng;
use surefoot_server::{
    Action, ActionKind, Because, Features, HoldsIf, Observation, Plan, Platform, Report, ServiceId, ServiceView, Text, Verdict,
};

/// Knobs; the defaults are the paper's where it names any.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a new service is watched on idle resources before Model-A is asked.
    pub sample_ms: u64,
    /// The same for services too slow for a p99 of their own in a second.
    pub sample_slow_ms: u64,
    /// Allowable slowdown: the QoS that Model-B must predict for a neighbour that is deprived.
    pub neighbour_qos: f64,
    /// Standing answer of the upper scheduler: resources are shared if the owner's predicted QoS stays above this.
    pub shared_qos: f64,
    /// QoS that Model-B must predict for a service that is to give up something itself.
    pub own_qos: f64,
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
            sample_slow_ms: 1000,
            neighbour_qos: 1.1,
            shared_qos: 0.8,
            own_qos: 1.15,
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

/// Intervals over which features are averaged.
const SMOOTH: usize = 5;
/// Share of the peak memory bandwidth above which memory is contended.
const CONTENDED: f64 = 0.7;

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

/// Whether and how a service needs more.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Need {
    None,
    /// Missed, but the backlog is nearly gone, or the window still remembers it.
    Draining,
    /// Met with little to spare.
    Comfort,
    Missed,
}

/// The policy.
pub struct OsmlPlus {
    set: Settings,
    models: Box<dyn Models>,
    books: Books,
    lives: BTreeMap<ServiceId, Life>,
    pending: Vec<(ServiceId, State, usize, bool)>,
    rng: Rng,
    learnt_ms: u64,
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
            set: settings,
            models,
            books: Books::new(platform),
            lives: BTreeMap::new(),
            pending: vec![],
            rng: Rng::new(seed),
            learnt_ms: 0,
            left_out: 0,
            reclaimed_ms: 0,
            be_mba_wait: (0, 2000),
            be_mba_raised: None,
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

    fn state(&self, s: &ServiceView) -> State {
        let features = self.lives.get(&s.id).map_or(s.features, Life::smooth);
        State { features, qos: s.qos() }
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

    fn busy_share(&self, s: &ServiceView) -> Option<f64> {
        let f = self.lives.get(&s.id)?.smooth();
        Some(f.cpu_usage_cores? / self.cores(self.books.usable(&s.id)))
    }

    /// Update what is remembered of every LC service.
    fn look(&mut self, now_ms: u64, seen: &Observation) {
        for s in seen.lc() {
            let usable = self.books.usable(&s.id);
            let life = self.lives.entry(s.id.clone()).or_default();
            life.features.push_back(s.features);
            if life.features.len() > SMOOTH {
                life.features.pop_front();
            }
            if let Some(l) = s.interval {
                life.points.push_back(Point { t_ms: now_ms, mean_ms: l.mean_ms, p99_ms: l.p99_ms });
                if life.points.len() > 4 {
                    life.points.pop_front();
                }
                life.rps = Some(life.rps.map_or(l.achieved_rps, |r| 0.7 * r + 0.3 * l.achieved_rps));
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

    /// Credit the actions of the last step with what they brought, and learn.
    fn learn(&mut self, now_ms: u64, seen: &Observation) {
        // A p99 that cannot be believed is as good as none.
        let known: Vec<f64> = seen.lc().filter(|s| !doubtful(s)).filter_map(ServiceView::qos).collect();
        for (id, before, action, predicted_met) in std::mem::take(&mut self.pending) {
            let Some(s) = seen.get(&id).filter(|s| s.qos().is_some()) else { continue };
            if doubtful(s) {
                self.left_out += 1;
                continue;
            }
            let reward = if known.iter().any(|q| *q < 1.0) {
                f64::from(u8::from(predicted_met)) + known.iter().map(|q| q.min(1.0)).sum::<f64>() / known.len() as f64
            } else {
                2.0 + self.unused_share(&id)
            };
            self.models.remember(&Experience { before, action, reward, after: State::of(s) });
        }
        if now_ms >= self.learnt_ms + self.set.learn_every_ms {
            self.learnt_ms = now_ms;
            self.models.learn();
            // Leaving a service alone is an action, too; once in a while it is worth remembering.
            for s in seen.lc().filter(|s| s.qos_met() == Some(true)) {
                if self.lives.get(&s.id).is_some_and(|l| !l.asleep() && l.watch.is_none()) {
                    self.expect(s, IDLE, self.books.usable(&s.id));
                }
            }
        }
    }

    /// r_resource: mean over the resources under control of the share that is left unused. As in off-line training (`fit_c` in
    /// `pipelines/train.py`): cores and ways that no LC service holds, and where there is MBA, how far the service that acted
    /// is throttled. Bandwidth that is only measured is not under control and does not count.
    fn unused_share(&self, id: &str) -> f64 {
        let (total, rest) = (self.books.total(), self.books.rest());
        let mut shares = vec![f64::from(rest.cores) / f64::from(total.cores.max(1))];
        if total.ways > 0 {
            shares.push(f64::from(rest.ways) / f64::from(total.ways));
        }
        if self.books.platform.mba.is_some() {
            shares.push(1.0 - f64::from(self.books.slot(id).map_or(100, |s| s.mba_pct)) / 100.0);
        }
        shares.iter().sum::<f64>() / shares.len() as f64
    }

    /// Model-C's probabilities, with a little noise to explore; all zero where it cannot answer.
    fn propose(&mut self, s: &ServiceView) -> ([f64; 7], String) {
        let state = self.state(s);
        match self.models.act(&s.service, &state) {
            Ok(p) => (p.map(|p| f64::from(p) + self.set.noise * self.rng.normal()), self.model_c()),
            Err(_) => ([0.0; 7], "rule of thumb".into()),
        }
    }

    /// Model-C's name in an action's reason, with what it was not taught.
    fn model_c(&self) -> String {
        match self.left_out {
            0 => "Model-C".into(),
            n => format!("Model-C ({n} experiences with a doubtful p99 left out)"),
        }
    }

    /// Keep an action for Model-C's pool; the reward follows in the next step. What is done counts more than "idle".
    fn expect(&mut self, s: &ServiceView, action: usize, result: Amount) {
        self.pending.retain(|p| p.0 != s.id);
        if doubtful(s) {
            self.left_out += 1;
            return;
        }
        let met = self.b(s, result).is_ok_and(|q| q >= 1.0);
        self.pending.push((s.id.clone(), State::of(s), action, met));
    }

    // ---- Algorithm 2, line 11: rollback ---------------------------------------------------------------------------

    /// Withdraw what was taken from a service that misses its target since.
    fn withdraw(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What BE jobs got may hurt another service than the one that gave it.
        let hurt = |l: &Life, s: &ServiceView| !l.asleep() && (l.strikes >= 2 || s.qos_met() == Some(false));
        let anybody = seen.lc().find(|s| self.lives.get(&s.id).is_some_and(|l| hurt(l, s))).map(|s| s.id.clone());
        for s in seen.lc() {
            let Some(life) = self.lives.get_mut(&s.id) else { continue };
            let Some(watch) = &life.watch else { continue };
            if now_ms >= watch.until_ms {
                life.watch = None;
                continue;
            }
            if !hurt(life, s) && (anybody.is_none() || watch.to.is_some()) {
                continue;
            }
            let whose = if hurt(life, s) { s.id.clone() } else { anybody.clone().unwrap_or_default() };
            let Some(watch) = life.watch.take() else { continue };
            let strikes = life.strikes;
            let peace = self.set.peace_ms << life.hurts.min(4);
            life.hurts += 1;
            let held = self.books.usable(&s.id);
            for (i, lost) in [watch.lost.cores, watch.lost.ways].into_iter().enumerate() {
                if lost > 0 {
                    life.floor_until_ms[i] = now_ms + peace;
                    let keep = held.plus(watch.lost);
                    if i == 0 {
                        life.floor.cores = keep.cores;
                    } else {
                        life.floor.ways = keep.ways;
                    }
                }
            }
            if let Some(pct) = watch.mba_pct {
                self.books.set_mba(&s.id, pct);
            }
            let mut back = watch.lost.at_most(self.books.free());
            if back != watch.lost {
                // Unknown latency gives nothing back either.
                let known = |to: &&str| !seen.get(to).is_some_and(ServiceView::latency_unknown);
                if let Some(to) = watch.to.as_deref().filter(known) {
                    let take = watch.lost.minus(back).at_most(self.books.spare(to));
                    let mut because = self.because_of(seen, to, HoldsIf::P99Stays);
                    if self.books.shrink(to, take) {
                        self.changed(now_ms, to);
                        because.bind(format!("{} has its resources back first", s.id));
                        act(plan, to, ActionKind::Rollback, format!("{} suffers from having given it", s.id), because);
                        back = watch.lost.at_most(self.books.free());
                    }
                }
            }
            let mut because = self.because(s, HoldsIf::P99Falls);
            because.reject("wait until the watch ends", format!("{strikes} intervals in a row were above the target, or QoS is missed"));
            if back != watch.lost {
                because.bind(format!("{} had been given, no more of it can be had", words(watch.lost, &self.books.platform)));
            }
            because.bind(format!("what was lost is not taken again for {} s", peace / 1000));
            self.books.grow(&s.id, back);
            self.changed(now_ms, &s.id);
            let what = words(back, &self.books.platform);
            act(plan, &s.id, ActionKind::Rollback, format!("QoS of {whose} violated after the loss: {what} back"), because);
        }
    }

    // ---- Algorithm 1 ----------------------------------------------------------------------------------------------

    /// Map new services on what is free, each an equal part of it.
    fn map_on_idle(&mut self, now_ms: u64, seen: &Observation, arrived: &[ServiceId], plan: &mut Plan) {
        for (i, id) in arrived.iter().enumerate() {
            let least = self.books.least();
            // A sample from a starved service says little: half an equal share is worth asking neighbours for.
            let holders = seen.services.len().max(1) as u32;
            let total = self.books.total();
            for (cores, ways) in [(2, 2), (2, 4), (4, 4), (2, 32), (4, 32)] {
                let want = Amount::new(total.cores / holders / cores, total.ways / holders / ways).at_least(least);
                let lack = want.minus(self.books.free());
                if lack.is_zero() || self.deprive_for(now_ms, id, lack, seen, plan) {
                    break;
                }
            }
            if !least.fits_in(self.books.free()) {
                // Nobody can be asked by Model-B's leave: the best-off gives its last spare.
                self.take_from_best_off(now_ms, id, least.minus(self.books.free()), seen, plan);
            }
            let left = (arrived.len() - i) as u32;
            let free = self.books.free();
            let part = Amount::new(free.cores / left, free.ways / left).at_least(least);
            if self.books.admit(id, part) {
                let life = self.lives.entry(id.clone()).or_default();
                *life = Life { sampling_since_ms: Some(now_ms), changed_ms: now_ms, ..Life::default() };
                let mut because = self.because_of(seen, id, HoldsIf::NotJudged);
                because.reject("its OAA at once", format!("Model-A is asked after {} ms on known resources", self.set.sample_ms));
                because.bind(format!("{} are free, for {left} new services", words(free, &self.books.platform)));
                act(plan, id, ActionKind::Place, format!("new: watched on idle resources, {}", words(part, &self.books.platform)), because);
            } else if !self.books.is_crowded(id) {
                self.books.crowd_in(id);
                let why = "not even one core unit and the least ways are left".to_string();
                plan.reports.push(Report::CannotPlace { service: id.clone(), why });
            }
        }
    }

    /// Units from the services with most QoS to spare, whatever Model-B says; unknown latency gives nothing.
    fn take_from_best_off(&mut self, now_ms: u64, whom: &str, mut lack: Amount, seen: &Observation, plan: &mut Plan) {
        for unit in [Amount::new(1, 0), Amount::new(0, 1)] {
            while !unit.at_most(lack).is_zero() {
                let spare = |s: &&ServiceView| s.id != whom && unit.fits_in(self.books.spare(&s.id)) && s.qos().is_some();
                let best = seen.lc().filter(spare).max_by(|a, b| a.qos().partial_cmp(&b.qos()).expect("known, not NaN"));
                let Some(id) = best.map(|s| s.id.clone()) else { break };
                let mut because = seen.get(&id).map_or_else(Because::default, |s| self.because(s, Self::keeps(s)));
                for s in seen.lc().filter(|s| s.id != id && s.id != whom) {
                    let why: Text = match s.qos() {
                        None => "its latency is unknown".into(),
                        Some(_) if !unit.fits_in(self.books.spare(&s.id)) => "it holds the least already".into(),
                        Some(q) => format!("QoS {q:.2}: it has less to spare").into(),
                    };
                    because.reject(format!("from {}", s.id), why);
                }
                because.bind(format!("{whom} lacks {} of the least", words(lack, &self.books.platform)));
                self.books.shrink(&id, unit);
                self.changed(now_ms, &id);
                act(plan, &id, ActionKind::Deprive, format!("best off: {} to {whom}", words(unit, &self.books.platform)), because);
                lack = lack.minus(unit);
            }
        }
    }

    /// Model-A's answer in units, or the rule of thumb.
    fn ask_a(&self, s: &ServiceView) -> Target {
        let p = &self.books.platform;
        let (least, total) = (self.books.least(), self.books.total());
        let state = self.state(s);
        let up = |cores: f64| (cores / p.core_step - 0.3).ceil().clamp(1.0, f64::from(total.cores)) as u32;
        let up_ways = |w: Option<f64>| w.map_or(0, |w| (w - 0.3).ceil().clamp(0.0, f64::from(total.ways)) as u32);
        let holds = self.books.usable(&s.id);
        let answer = self.models.area(&s.service, &state).and_then(|a| {
            let sound = [Some(a.oaa_cores), Some(a.rcliff_cores), a.oaa_ways, a.rcliff_ways].into_iter().flatten().all(f64::is_finite);
            if sound {
                Ok(a)
            } else {
                Err("Model-A: not a number".to_string())
            }
        });
        match answer {
            Ok(a) => {
                let rcliff = Amount::new(up(a.rcliff_cores), up_ways(a.rcliff_ways)).at_least(least);
                let mut oaa = Amount::new(up(a.oaa_cores), up_ways(a.oaa_ways)).at_least(rcliff);
                let mut why = format!("Model-A: OAA {}, RCliff {}", words(oaa, p), words(rcliff, p));
                if let Some(mbps) = a.oaa_mbps.filter(|m| m.is_finite() && p.mba.is_some()) {
                    why += &format!(", {:.0} MB/s there", mbps.max(0.0));
                }
                // Fewer cores than are busy cannot do; while a backlog drains they are busy for another reason.
                if let Some(busy) = state.features.cpu_usage_cores.filter(|_| state.qos.is_some_and(|q| q >= 1.0)) {
                    let floor = up(busy / self.set.busy).min(holds.cores.max(oaa.cores));
                    if floor > oaa.cores {
                        oaa.cores = floor;
                        why += &format!("; {busy:.1} cores are busy");
                    }
                }
                Target { oaa, rcliff, why, area: Some(a) }
            }
            Err(e) => {
                let services = self.books.slots().len().max(1) as u32;
                let cores = state.features.cpu_usage_cores.map_or(total.cores / (services + 1), |busy| up(busy / 0.6));
                let oaa = Amount::new(cores, total.ways / (services + 1)).at_least(least).at_most(total);
                Target { oaa, rcliff: oaa, why: format!("{e}; rule of thumb: {}", words(oaa, p)), area: None }
            }
        }
    }

    /// Enlarge an OAA that Model-B does not believe in, by at most four steps and within `limit`.
    fn check_with_b(&self, s: &ServiceView, mut t: Target, limit: Amount) -> Target {
        for _ in 0..4 {
            let Ok(q) = self.b_corrected(s, t.oaa).or_else(|_| self.b(s, t.oaa)) else { return t };
            if q >= self.set.own_qos {
                return t;
            }
            let steps = [Amount::new(1, 0), Amount::new(0, 1)];
            let best = steps
                .iter()
                .map(|u| t.oaa.plus(*u))
                .filter(|a| a.fits_in(limit))
                .filter_map(|a| Some((a, self.b_corrected(s, a).or_else(|_| self.b(s, a)).ok()?)))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            let Some((a, better)) = best.filter(|b| b.1 > q + 0.01) else { return t };
            t.why += &format!("; Model-B: QoS {q:.2} there, {better:.2} on {}", words(a, &self.books.platform));
            t.oaa = a;
        }
        t
    }

    /// Place every service that has been watched long enough, together.
    fn place_sampled(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let mut ready: Vec<(ServiceId, Target)> = vec![];
        let mut held: Vec<Amount> = vec![];
        for s in seen.lc() {
            let Some(since) = self.lives.get(&s.id).and_then(|l| l.sampling_since_ms) else { continue };
            if s.latency_unknown() {
                continue;
            }
            let slow = s.window.is_none_or(|w| w.verdict == Verdict::NotResolvable);
            let wait = if slow { self.set.sample_slow_ms } else { self.set.sample_ms };
            // Without any latency the counters alone must do, after the longer time.
            if now_ms < since + wait || s.features.cpu_usage_cores.is_none() && slow && now_ms < since + 2 * wait {
                continue;
            }
            let limit = self.books.usable(&s.id).plus(self.books.free());
            let target = self.check_with_b(s, self.ask_a(s), limit);
            ready.push((s.id.clone(), target));
            held.push(self.books.usable(&s.id));
        }
        if ready.is_empty() {
            return;
        }
        // All that is free, and what the ready ones hold for the time being.
        let pool = ready.iter().fold(self.books.free(), |a, (id, _)| a.plus(self.books.slot(id).map_or(Amount::default(), |s| s.own)));
        let fit = |of: fn(Amount) -> u32| {
            // Share of the way from RCliff to OAA that all can have.
            let sum = |t: f64| ready.iter().map(|(_, x)| between(of(x.rcliff), of(x.oaa), t)).sum::<u32>();
            [1.0, 0.75, 0.5, 0.25, 0.0].into_iter().find(|t| sum(*t) <= of(pool))
        };
        let (tc, tw) = (fit(|a| a.cores), fit(|a| a.ways));
        let least = self.books.least();
        // First make room, then hand out: everybody down to the least, then up in order of arrival.
        for (id, _) in &ready {
            self.books.set(id, least);
        }
        for (i, (id, t)) in ready.iter().enumerate() {
            let cores = tc.map_or(t.rcliff.cores, |x| between(t.rcliff.cores, t.oaa.cores, x));
            let ways = tw.map_or(t.rcliff.ways, |x| between(t.rcliff.ways, t.oaa.ways, x));
            let want = Amount::new(cores, ways).at_least(least);
            let left = (ready.len() - i) as u32;
            let free = self.books.free();
            // Where not even RCliffs fit, an equal part is the most that one can have.
            let most = |t: Option<f64>, free: u32| if t.is_some() { free } else { free / left };
            let limit = least.plus(Amount::new(most(tc, free.cores), most(tw, free.ways)));
            let got = want.at_most(limit);
            self.books.set(id, got);
            let mut because = self.because_of(seen, id, HoldsIf::Qos { at_least: 1.0 });
            self.say_target(&mut because, t);
            if let Some(s) = seen.get(id) {
                self.say_b(&mut because, s, held[i], got);
            }
            if !t.oaa.fits_in(got) {
                let p = &self.books.platform;
                because.reject(
                    format!("its whole OAA, {}", words(t.oaa, p)),
                    format!("{} new services share {}", ready.len(), words(pool, p)),
                );
                because.bind("what is free, until neighbours have been asked");
            }
            if let Some(life) = self.lives.get_mut(id) {
                life.sampling_since_ms = None;
                life.target = Some(t.clone());
                life.asked_ms = now_ms;
                life.asked_at = (life.rps, life.smooth().cpu_usage_cores);
            }
            self.changed(now_ms, id);
            act(plan, id, ActionKind::Place, format!("{}: {}", t.why, words(got, &self.books.platform)), because);
        }
        for (id, t) in &ready {
            let lack = t.oaa.minus(self.books.usable(id));
            if lack.is_zero() || self.obtain(now_ms, id, lack, seen, plan) {
                continue;
            }
            let lack = t.rcliff.minus(self.books.usable(id));
            if lack.is_zero() || self.obtain(now_ms, id, lack, seen, plan) || self.share_for(id, lack, seen, plan) {
                continue;
            }
            let why = format!("{} wanted, {} got, and no neighbour can give or share more", words(t.oaa, &self.books.platform), {
                words(self.books.usable(id), &self.books.platform)
            });
            plan.reports.push(Report::CannotPlace { service: id.clone(), why });
        }
    }

    // ---- Algorithm 3 ----------------------------------------------------------------------------------------------

    /// Give `more` to a service: from what is free (idle, BE jobs), else by depriving LC services.
    fn obtain(&mut self, now_ms: u64, id: &str, more: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let lack = more.minus(self.books.free());
        if !lack.is_zero() && !self.deprive_for(now_ms, id, lack, seen, plan) {
            return false;
        }
        if self.books.grow(id, more) {
            self.changed(now_ms, id);
            return true;
        }
        false
    }

    /// What a neighbour can be deprived of with an allowable QoS.
    fn donor(&self, s: &ServiceView, need: Amount) -> Donor {
        let mut donor = Donor { id: s.id.clone(), offers: vec![] };
        let Some(life) = self.lives.get(&s.id) else { return donor };
        // Unknown, still watched or new: nothing.
        let (Some(qos), None, false) = (s.qos(), &life.watch, life.asleep()) else { return donor };
        let has = self.books.usable(&s.id);
        let limit = need.at_most(self.books.spare(&s.id)).at_most(has.minus(life.floor));
        let busy = life.smooth().cpu_usage_cores;
        if qos < 1.0 {
            // Its target is missed, but not for want of cores: those that it leaves idle it will not miss.
            for cores in 1..=limit.cores {
                let left = self.cores(has.minus(Amount::new(cores, 0)));
                if busy.is_some_and(|b| b / left < 0.4) {
                    donor.offers.push(Offer { amount: Amount::new(cores, 0), qos, slowdown: 0.02 });
                }
            }
            return donor;
        }
        for cores in 0..=limit.cores {
            let left = self.cores(has.minus(Amount::new(cores, 0)));
            if cores > 0 && busy.is_some_and(|b| b / left > self.set.busy) {
                break;
            }
            for ways in 0..=limit.ways {
                let amount = Amount::new(cores, ways);
                if amount.is_zero() {
                    continue;
                }
                let predicted = match self.b_corrected(s, has.minus(amount)) {
                    Ok(q) => q,
                    // Rule of thumb: one unit from a service with QoS 1.5 or more costs a third of that.
                    Err(_) if qos >= 1.5 && cores + ways == 1 => qos * 0.75,
                    Err(_) => continue,
                };
                if predicted < self.set.neighbour_qos {
                    break;
                }
                donor.offers.push(Offer { amount, qos: predicted, slowdown: (1.0 - predicted / qos).clamp(0.0, 1.0) });
            }
        }
        donor
    }

    /// Deprive at most three LC services of exactly `lack`. False (and nothing changed) if there is no allowable solution.
    fn deprive_for(&mut self, now_ms: u64, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let donors: Vec<Donor> = seen.lc().filter(|s| s.id != whom).map(|s| self.donor(s, lack)).filter(|d| !d.offers.is_empty()).collect();
        let Some(solution) = best_fit(&donors, lack) else { return false };
        let p = self.books.platform.clone();
        let others: Vec<(ServiceId, Text)> = seen
            .lc()
            .filter(|s| s.id != whom)
            .map(|s| match (solution.iter().find(|g| g.0 == s.id), donors.iter().any(|d| d.id == s.id)) {
                (Some((_, offer)), _) => (s.id.clone(), format!("it gives {} too", words(offer.amount, &p)).into()),
                (None, true) => (s.id.clone(), "it would lose more QoS, or one service more would be disturbed".into()),
                (None, false) => (s.id.clone(), self.why_it_gives_nothing(s, lack)),
            })
            .collect();
        for (id, offer) in solution {
            let mut because = seen.get(&id).map_or_else(Because::default, |s| self.because(s, Self::keeps(s)));
            because.say("Model-B", format!("QoS without {}", words(offer.amount, &p)), offer.qos, "");
            because.say("Model-B", "slowdown", 100.0 * offer.slowdown, "%");
            because.predict(offer.qos, self.models.qos_cap());
            for (other, why) in others.iter().filter(|o| o.0 != id) {
                because.reject(format!("from {other}"), why.clone());
            }
            because.bind(format!("{whom} lacks {} of what is free; a neighbour keeps QoS {}", words(lack, &p), self.set.neighbour_qos));
            self.books.shrink(&id, offer.amount);
            // Who misses its target anyway loses only what it does not use: nothing to watch for.
            if seen.get(&id).is_some_and(|s| s.qos_met() == Some(true)) {
                self.watch(now_ms, &id, offer.amount, None, Some(whom.into()));
            }
            let what = words(offer.amount, &p);
            act(plan, &id, ActionKind::Deprive, format!("{what} to {whom}; Model-B: QoS {:.2} left", offer.qos), because);
            plan.reports.push(Report::ExpectedSlowdown { service: id, qos: offer.qos });
        }
        true
    }

    fn watch(&mut self, now_ms: u64, id: &str, lost: Amount, mba_pct: Option<u8>, to: Option<ServiceId>) {
        self.changed(now_ms, id);
        if let Some(l) = self.lives.get_mut(id) {
            l.watch = Some(Watch { until_ms: now_ms + self.set.watch_ms, lost, mba_pct, to });
        }
    }

    /// Share what is lacking with the neighbour that has the least QoS slowdown (line 13) and stays allowable, and tell the upper scheduler.
    fn share_for(&mut self, whom: &str, lack: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let cores = if self.books.platform.by_quota() { 0 } else { lack.cores };
        let lack = Amount::new(cores, lack.ways);
        let half = Amount::new(lack.cores.div_ceil(2), lack.ways.div_ceil(2));
        let able = |s: &&ServiceView| {
            s.id != whom
                && s.qos_met() == Some(true)
                && lack.fits_in(self.books.spare(&s.id))
                && self.books.common_of(&s.id).is_none()
                && self.lives.get(&s.id).is_some_and(|l| l.watch.is_none() && !l.asleep())
        };
        // Two users of one CPU or way have about half of it each. QoS now and after, both as far as Model-B can tell.
        let now_after = |s: &ServiceView| {
            let rest = self.books.usable(&s.id).minus(half);
            match self.b_corrected(s, rest) {
                Ok(after) => Some((self.recent_qos(s)?.min(self.models.qos_cap()), after)),
                Err(_) => s.qos().map(|q| (q, q * 0.75)),
            }
        };
        let best = seen
            .lc()
            .filter(able)
            .filter_map(|s| Some((s.id.clone(), now_after(s)?)))
            .filter(|(_, (_, after))| *after >= self.set.shared_qos)
            .map(|(id, (now, after))| (id, after, (1.0 - after / now).clamp(0.0, 1.0)))
            // Least slowdown; of equals the one with the best QoS.
            .min_by(|a, b| a.2.total_cmp(&b.2).then(b.1.total_cmp(&a.1)));
        let Some((owner, qos, slowdown)) = best else { return false };
        let mut gives = self.because_of(seen, &owner, HoldsIf::Qos { at_least: self.set.shared_qos });
        gives.say("Model-B", "QoS while it is shared", qos, "");
        gives.say("Model-B", "slowdown", 100.0 * slowdown, "%");
        gives.predict(qos, self.models.qos_cap());
        let mut gets = self.because_of(seen, whom, HoldsIf::P99Falls);
        for s in seen.lc().filter(|s| s.id != owner && s.id != whom) {
            let why: Text = match now_after(s) {
                _ if s.qos_met() != Some(true) => "its target is missed, or its latency unknown".into(),
                _ if !able(&s) => "it holds too little, shares already, or is watched".into(),
                Some((_, after)) if after < self.set.shared_qos => {
                    format!("Model-B: QoS {after:.2}, {:.2} is agreed for sharing", self.set.shared_qos).into()
                }
                Some((_, after)) => format!("Model-B: QoS {after:.2}, the loss would be larger").into(),
                None => "Model-B has no answer".into(),
            };
            gives.reject(format!("with {}", s.id), why.clone());
            gets.reject(format!("with {}", s.id), why);
        }
        for s in seen.lc().filter(|s| s.id != whom) {
            gets.reject(format!("deprive {}", s.id), self.why_it_gives_nothing(s, lack));
        }
        if !self.books.share(&owner, whom, lack) {
            return false;
        }
        let what = words(lack, &self.books.platform);
        gives.bind(format!("nobody can allowably be deprived of {what}"));
        gets.bind(format!("nobody can allowably be deprived of {what}"));
        let why = format!("{what} shared with {whom}; Model-B: QoS {qos:.2}, {:.0} % less", 100.0 * slowdown);
        act(plan, &owner, ActionKind::Share, why, gives);
        act(plan, whom, ActionKind::Share, format!("{what} shared by {owner}: nobody can be deprived of it"), gets);
        plan.reports.push(Report::ExpectedSlowdown { service: owner, qos });
        true
    }

    /// End sharings as soon as what is shared can be had by both.
    fn end_sharing(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        for c in self.books.commons().to_vec() {
            if c.amount.fits_in(self.books.free()) && self.books.unshare(&c.owner, true) {
                for id in [&c.owner, &c.guest] {
                    let because = self.because_of(seen, id, HoldsIf::P99Stays);
                    self.changed(now_ms, id);
                    act(plan, id, ActionKind::Grow, "sharing ends: enough is free for both".into(), because);
                }
            }
        }
    }

    // ---- Algorithm 2 ----------------------------------------------------------------------------------------------

    fn need(&self, now_ms: u64, s: &ServiceView) -> Need {
        let (Some(qos), Some(life), Some(target)) = (s.qos(), self.lives.get(&s.id), s.qos_target_ms()) else { return Need::None };
        if qos >= self.set.grow_qos {
            return Need::None;
        }
        let Some(last) = life.points.back() else {
            // Nothing seen since the last change: wait for a reading, but not for ever (slow services).
            return if now_ms < life.changed_ms + 1000 { Need::Draining } else { Need::Missed };
        };
        if qos >= 1.0 {
            return if last.p99_ms * self.set.grow_qos > target { Need::Comfort } else { Need::None };
        }
        let calm = life.points.iter().rev().take(2).all(|p| p.p99_ms <= target);
        if calm {
            // The window still remembers what is over; a second later it does not.
            return Need::Draining;
        }
        let Some(first) = life.points.front().filter(|f| f.t_ms < last.t_ms) else { return Need::Draining };
        let fall = (first.mean_ms - last.mean_ms) / (last.t_ms - first.t_ms) as f64;
        let left = (last.p99_ms - target) / fall.max(1e-9);
        if fall > 0.0 && left <= self.set.patience_ms as f64 {
            Need::Draining
        } else {
            Need::Missed
        }
    }

    /// True where memory bandwidth is short and BE jobs take a good part of it.
    fn contended_by_be(&self, seen: &Observation) -> bool {
        let Some(peak) = self.books.platform.mem_bw_mbps else { return false };
        let sum = |be: bool| seen.services.iter().filter(|s| s.is_lc() != be).filter_map(|s| s.features.mbl_mbps).sum::<f64>();
        let be = sum(true);
        be + sum(false) > CONTENDED * peak && be > 0.25 * peak
    }

    fn changed_load(&self, s: &ServiceView) -> bool {
        let Some(l) = self.lives.get(&s.id) else { return false };
        let moved = |now: Option<f64>, then: Option<f64>| match (now, then) {
            (Some(n), Some(t)) if t > 0.0 => (n / t - 1.0).abs() > self.set.load_change,
            _ => false,
        };
        // CPU use also follows the allocation: it stands in where throughput is unknown.
        if l.rps.is_some() && l.asked_at.0.is_some() {
            return moved(l.rps, l.asked_at.0);
        }
        moved(l.smooth().cpu_usage_cores, l.asked_at.1)
    }

    fn remember_asked(&mut self, now_ms: u64, id: &str, target: Target) {
        if let Some(l) = self.lives.get_mut(id) {
            l.target = Some(target);
            l.asked_ms = now_ms;
            l.asked_at = (l.rps, l.smooth().cpu_usage_cores);
        }
    }

    fn under_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        let mut order: Vec<(&ServiceView, Need)> = seen
            .lc()
            .filter(|s| self.books.slot(&s.id).is_some() && self.lives.get(&s.id).is_some_and(|l| !l.asleep()))
            .map(|s| (s, self.need(now_ms, s)))
            .filter(|(_, n)| matches!(n, Need::Missed | Need::Comfort))
            .collect();
        // Worst first.
        order.sort_by(|a, b| a.0.qos().partial_cmp(&b.0.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for (s, need) in order {
            self.grow_one(now_ms, s, need, seen, plan);
        }
    }

    /// One growing action for one service, or a jump to a new OAA.
    fn grow_one(&mut self, now_ms: u64, s: &ServiceView, need: Need, seen: &Observation, plan: &mut Plan) {
        let has = self.books.usable(&s.id);
        let life = &self.lives[&s.id];
        let fresh = life.features.len() >= 2;
        // Model-A again, after a change of load or a second of misery.
        let misery = life.missed_since_ms.is_some_and(|t| now_ms >= t + 1000);
        if need == Need::Missed && fresh && now_ms >= life.asked_ms + 1000 && (misery || self.changed_load(s)) {
            let target = self.ask_a(s);
            let more = target.oaa.minus(has);
            self.remember_asked(now_ms, &s.id, target.clone());
            if !more.is_zero() {
                let mut because = self.because(s, HoldsIf::P99Falls);
                let qos_there = self.b_corrected(s, has.plus(more));
                if self.obtain(now_ms, &s.id, more, seen, plan) {
                    self.say_target(&mut because, &target);
                    if let Ok(q) = qos_there {
                        because.say(
                            "Model-B",
                            format!("QoS on {}, corrected by its error now", words(has.plus(more), &self.books.platform)),
                            q,
                            "",
                        );
                        because.predict(q, self.models.qos_cap());
                    }
                    because.reject("single steps", if misery { "missed for more than a second" } else { "the load has changed" });
                    because.reject(because::ACTION_NAMES[IDLE], "who is under-provisioned never idles");
                    act(plan, &s.id, ActionKind::Grow, format!("load changed; {}", target.why), because);
                    return;
                }
            }
        }
        let now = self.b(s, has).ok();
        let busy = self.busy_share(s);
        let overloaded = busy.is_some_and(|b| b > 0.95) && s.qos().is_some_and(|q| q < 0.7);
        if self.judge_steps(now_ms, s, overloaded, plan) {
            return;
        }
        // A backlog (p99 far above the target) on what suffices by all that is known: more only from what is free, to drain
        // faster, and not beyond half as much again. Near the target there is no backlog, and Model-B is simply wrong.
        let enough =
            now.is_some_and(|q| q >= self.set.own_qos) && busy.is_none_or(|b| b < self.set.busy) && s.qos().is_some_and(|q| q < 0.5);
        let oaa = self.lives[&s.id].target.as_ref().map_or(has, |t| t.oaa);
        let most = Amount::new(oaa.cores + oaa.cores.div_ceil(2), oaa.ways + oaa.ways.div_ceil(2));
        let only_free = need == Need::Comfort || enough && !misery;
        let (proposal, from) = self.propose(s);
        let free = self.books.free();
        let total = self.books.total();
        let mba = self.books.slot(&s.id).map_or(100, |x| x.mba_pct);
        // Missed though its cores are not busy: too few ways, or others in the way (siblings, bandwidth, power).
        let obstructed = need == Need::Missed && busy.is_none_or(|b| b < 0.8);
        // Deep in overload single cores are too slow: a quarter more at once. Against an obstacle a quarter of what is free
        // goes, and comes back in small steps later.
        let steps = |has: u32, free: u32| match () {
            () if overloaded => has.div_ceil(4),
            () if obstructed => free.div_ceil(4),
            () => 1,
        };
        let cores = steps(has.cores, free.cores).clamp(1, total.cores.saturating_sub(has.cores).max(1));
        let cores = if cores <= free.cores {
            cores
        } else {
            (1..=cores).rev().find(|c| self.could_deprive(&s.id, Amount::new(*c, 0).minus(free), seen)).unwrap_or(1)
        };
        let ways = if obstructed && !overloaded { steps(has.ways, free.ways).max(1) } else { 1 };
        // Plain signs: idle cores do not lack cores, busy ones do.
        let lacks_cores = busy.map(|b| ((b - 0.4) / 0.4).clamp(0.0, 1.0));
        let banned = self.lives[&s.id].banned_until_ms;
        let mut options: Vec<(usize, f64, f64)> = vec![];
        let in_question = |action| Tried { action, to: has, within: false, can: false, gain: 0.0, banned: now_ms < banned[action / 2] };
        let mut tried = [in_question(CORES_UP), in_question(WAYS_UP)];
        for (tried, unit) in tried.iter_mut().zip([Amount::new(cores, 0), Amount::new(0, ways)]) {
            let action = tried.action;
            let to = has.plus(unit);
            let within = to.fits_in(total) && (!enough || to.fits_in(most) || misery);
            let can = unit.fits_in(free) || !only_free && self.could_deprive(&s.id, unit.minus(free), seen);
            (tried.to, tried.within, tried.can) = (to, within, can);
            if !within || !can {
                continue;
            }
            let gain = match (self.b(s, to), now) {
                (Ok(b), Some(a)) => (b - a).max(0.0),
                _ => 0.0,
            };
            let plain = match (lacks_cores, action) {
                // Cores help against BE jobs on their siblings, too; but ways are tried first.
                (Some(x), CORES_UP) => 0.1 * if obstructed { x.max(0.4) } else { x },
                (Some(x), _) => 0.1 * (1.0 - x),
                (None, _) => 0.0,
            };
            tried.gain = gain + plain;
            if !tried.banned {
                options.push((action, proposal[action], gain + plain));
            }
        }
        let throttle_be = mba == 100 && self.books.has_be() && self.contended_by_be(seen);
        let raise_own = self.books.mba_step(mba, true);
        let lower_be = self.books.mba_step(self.books.be_mba_pct, false).filter(|_| throttle_be);
        if raise_own.is_some() || lower_be.is_some() {
            options.push((MBA_UP, proposal[MBA_UP], if throttle_be || raise_own.is_some() { 0.05 } else { 0.0 }));
        }
        let best_gain = options.iter().map(|o| o.2).fold(0.0, f64::max);
        // Under-provisioned services never idle: the most probable action that Model-B does not hold for useless.
        let Some(choice) =
            options.iter().filter(|o| o.2 >= 0.5 * best_gain).max_by(|a, b| (a.1, a.2).partial_cmp(&(b.1, b.2)).expect("finite"))
        else {
            self.last_resort(now_ms, s, need, seen, plan);
            return;
        };
        let (action, p, gain) = *choice;
        let why = format!("QoS {:.2}; {from}: p {p:.2}, Model-B: gain {gain:.2}", s.qos().unwrap_or(0.0));
        let p99 = self.lives[&s.id].recent_p99_ms().or(s.window.map(|w| w.p99_ms)).unwrap_or(f64::INFINITY);
        let mut because = self.because(s, HoldsIf::P99Falls);
        self.say_c(&mut because, s, &proposal, options.iter().map(|o| o.0));
        let target_of = tried.iter().find(|t| t.action == action).map_or(has, |t| t.to);
        self.say_b(&mut because, s, has, target_of);
        self.reject_steps(&mut because, action, &tried, &proposal, best_gain);
        if raise_own.is_none() && lower_be.is_none() {
            let why = if throttle_be { "the BE jobs have the least" } else { "not throttled, and BE jobs do not contend for memory" };
            because.reject(because::ACTION_NAMES[MBA_UP], if self.books.platform.mba.is_some() { why } else { "this host has no MBA" });
        }
        if only_free {
            let why = if need == Need::Comfort { "the target is met" } else { "Model-B holds what it has for sufficient" };
            because.bind(format!("only what is free ({}): {why}", words(free, &self.books.platform)));
        }
        because.bind(match () {
            () if overloaded => "a step is a quarter of what it holds: it is overloaded",
            () if obstructed => "a step is a quarter of what is free: its cores are not busy",
            () => "a step is one unit",
        });
        let done = match action {
            MBA_UP => {
                if let Some(pct) = raise_own {
                    self.books.set_mba(&s.id, pct);
                } else if let Some(pct) = lower_be {
                    self.books.be_mba_pct = pct;
                    self.be_mba_wait.0 = now_ms + self.be_mba_wait.1;
                }
                self.expect(s, action, has);
                act(plan, &s.id, ActionKind::Grow, format!("{why}; memory bandwidth (BE jobs {} %)", self.books.be_mba_pct), because);
                true
            }
            _ => {
                let unit = if action == CORES_UP { Amount::new(cores, 0) } else { Amount::new(0, ways) };
                self.expect(s, action, has.plus(unit));
                let done = self.obtain_keeping_readings(now_ms, &s.id, unit, seen, plan);
                if done {
                    act(plan, &s.id, ActionKind::Grow, format!("{why}; {} more", words(unit, &self.books.platform)), because);
                }
                done
            }
        };
        if let Some(l) = self.lives.get_mut(&s.id).filter(|_| done) {
            let units = if action == CORES_UP { cores } else { ways };
            l.series = match l.series.filter(|x| x.action == action) {
                Some(x) => Some(Series { steps: x.steps + 1, units: x.units + units, last_ms: now_ms, ..x }),
                None => Some(Series { action, steps: 1, units, start_p99_ms: p99, last_ms: now_ms }),
            };
            l.reported = false;
        }
    }

    /// Give the last growing step time to work, and judge the series that it belongs to. True while nothing is to be done.
    ///
    /// Three steps of one resource that together did not lower p99 by a tenth are withdrawn, and that resource is left alone
    /// for five seconds. In overload p99 grows whatever is done, so there nothing can be judged.
    fn judge_steps(&mut self, now_ms: u64, s: &ServiceView, overloaded: bool, plan: &mut Plan) -> bool {
        let qos = s.qos().unwrap_or(1.0);
        let wait = match () {
            () if overloaded => 100,
            () if qos < 0.7 => 200,
            () => 400,
        };
        let busy = self.lives[&s.id].smooth().cpu_usage_cores;
        let Some(l) = self.lives.get_mut(&s.id) else { return true };
        let Some(series) = l.series else { return false };
        if now_ms < series.last_ms + wait {
            return true;
        }
        let helped = l.recent_p99_ms().is_none_or(|p| p < 0.9 * series.start_p99_ms);
        if helped || overloaded || now_ms > series.last_ms + 3000 {
            l.series = None;
            return false;
        }
        if series.steps < 3 {
            return false;
        }
        let now_p99_ms = l.recent_p99_ms();
        l.series = None;
        l.banned_until_ms[series.action / 2] = now_ms + 5000;
        let back = match series.action {
            CORES_UP => Amount::new(series.units, 0),
            WAYS_UP => Amount::new(0, series.units),
            _ => return false,
        };
        let left = self.cores(self.books.usable(&s.id).minus(back));
        let mut because = self.because(s, HoldsIf::P99Stays);
        because.say("steps", "p99 before the first of them", series.start_p99_ms, "ms");
        because.say("steps", "p99 over the last intervals", now_p99_ms.unwrap_or(f64::NAN), "ms");
        because.reject("one step more of it", "three did not lower p99 by a tenth");
        because.bind(format!("{} is left alone for 5 s", because::ACTION_NAMES[series.action]));
        if (back.cores == 0 || busy.is_some_and(|b| b / left < 0.6)) && self.books.shrink(&s.id, back) {
            let what = words(back, &self.books.platform);
            act(plan, &s.id, ActionKind::Rollback, format!("p99 has not fallen for it: {what} back"), because);
        }
        false
    }

    /// As [`Self::obtain`], but a single step leaves the readings nearly valid: the slope of a backlog is worth keeping.
    fn obtain_keeping_readings(&mut self, now_ms: u64, id: &str, unit: Amount, seen: &Observation, plan: &mut Plan) -> bool {
        let kept = self.lives.get(id).map(|l| (l.features.clone(), l.points.back().copied()));
        let done = self.obtain(now_ms, id, unit, seen, plan);
        if let (true, Some(l), Some((features, last))) = (done, self.lives.get_mut(id), kept) {
            l.features = features;
            l.points.extend(last);
        }
        done
    }

    fn could_deprive(&self, whom: &str, lack: Amount, seen: &Observation) -> bool {
        lack.is_zero() || {
            let donors: Vec<Donor> = seen.lc().filter(|s| s.id != whom).map(|s| self.donor(s, lack)).collect();
            best_fit(&donors, lack).is_some()
        }
    }

    /// Nothing can be had: share (Algorithm 3, line 13), or tell the upper scheduler that it had better run elsewhere.
    fn last_resort(&mut self, now_ms: u64, s: &ServiceView, need: Need, seen: &Observation, plan: &mut Plan) {
        let life = &self.lives[&s.id];
        let long = life.missed_since_ms.is_some_and(|t| now_ms >= t + 1500);
        if need != Need::Missed || !long || now_ms < life.changed_ms + 500 {
            return;
        }
        let has = self.books.usable(&s.id);
        let oaa = life.target.as_ref().map_or(has, |t| t.oaa);
        let lack = oaa.minus(has).at_least(Amount::new(1, u32::from(self.books.total().ways > 0)));
        let shared = self.books.common_of(&s.id).is_none()
            && [lack, Amount::new(lack.cores, 0), Amount::new(0, lack.ways)].into_iter().any(|l| self.share_for(&s.id, l, seen, plan));
        if shared {
            self.changed(now_ms, &s.id);
        } else if let Some(l) = self.lives.get_mut(&s.id).filter(|l| !l.reported) {
            l.reported = true;
            let why = format!("QoS {:.2}: nothing is free, and no neighbour can give or share more", s.qos().unwrap_or(0.0));
            plan.reports.push(Report::Migrate { service: s.id.clone(), why });
        }
    }

    /// Reclaim from services that have more than they need: one service, one action.
    fn over_provisioned(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        // What is reclaimed for BE jobs is felt by all: nobody may be near its target.
        let all_met = seen.lc().all(|s| !s.latency_unknown() && s.qos().is_none_or(|q| q >= self.set.grow_qos));
        let sampling = self.lives.values().any(Life::asleep);
        if !all_met || sampling || now_ms < self.reclaimed_ms + 200 {
            return;
        }
        let calm = |l: &Life| {
            !l.asleep()
                && l.watch.is_none()
                && l.met_since_ms.is_some_and(|t| now_ms >= t + self.set.reclaim_after_ms)
                && now_ms >= l.changed_ms + 1000
                && l.features.len() >= 3
        };
        let mut order: Vec<&ServiceView> = seen
            .lc()
            .filter(|s| self.lives.get(&s.id).is_some_and(calm))
            .filter(|s| s.qos().is_some_and(|q| q >= self.set.slack_qos) || self.may_try(now_ms, s))
            .filter(|s| self.books.slot(&s.id).is_some())
            .collect();
        // Best first.
        order.sort_by(|a, b| b.qos().partial_cmp(&a.qos()).unwrap_or(std::cmp::Ordering::Equal));
        for s in order {
            if self.shrink_one(now_ms, s, plan) {
                self.reclaimed_ms = now_ms;
                return;
            }
        }
    }

    /// Long met, and holding more than its OAA: a unit may go on trial although there is little slack.
    fn may_try(&self, now_ms: u64, s: &ServiceView) -> bool {
        let Some(l) = self.lives.get(&s.id) else { return false };
        let above = l.target.as_ref().is_some_and(|t| !self.books.usable(&s.id).minus(t.oaa).is_zero());
        let since = l.met_since_ms.map_or(now_ms, |t| t.max(l.changed_ms));
        above && l.hurts < 3 && now_ms >= since + self.set.trial_after_ms && self.books.has_be()
    }

    /// One shrinking action for one service, or a jump down to a new OAA. False if it keeps what it has.
    fn shrink_one(&mut self, now_ms: u64, s: &ServiceView, plan: &mut Plan) -> bool {
        let Some(qos) = s.qos() else { return false };
        let has = self.books.usable(&s.id);
        let spare = self.books.spare(&s.id);
        let floor = self.lives[&s.id].floor;
        let busy = self.lives[&s.id].smooth().cpu_usage_cores;
        let stale = now_ms >= self.lives[&s.id].asked_ms + 3000;
        let dropped = self.changed_load(s);
        if self.lives[&s.id].target.is_none() || dropped || stale {
            let t = self.ask_a(s);
            self.remember_asked(now_ms, &s.id, t);
        }
        let Some(t) = self.lives[&s.id].target.clone() else { return false };
        let rcliff = t.rcliff;
        let on_trial = qos < self.set.slack_qos && self.may_try(now_ms, s);
        let fine = |me: &Self, to: Amount| {
            let lost = has.minus(to);
            // Off the RCliff by Model-A; beyond it only where there is much to spare and every other sign agrees.
            let off = (lost.cores == 0 || to.cores > rcliff.cores) && (lost.ways == 0 || to.ways > rcliff.ways);
            let (busy_limit, least_qos) = if off { (me.set.busy, me.set.own_qos) } else { (0.7, 1.4) };
            let roomy = lost.cores == 0 || busy.map_or(off, |b| b / me.cores(to) <= busy_limit);
            let above_oaa = (lost.cores == 0 || to.cores >= t.oaa.cores) && (lost.ways == 0 || to.ways >= t.oaa.ways);
            let known = match me.b_corrected(s, to) {
                Ok(_) if on_trial => above_oaa && lost.cores + lost.ways == 1,
                Ok(q) => q >= least_qos,
                Err(_) => qos >= 1.5 && lost.cores + lost.ways == 1,
            };
            match () {
                () if !lost.fits_in(spare) => Err("it holds the least already"),
                () if !floor.fits_in(to) => Err("losing it hurt before"),
                () if !roomy => Err("its cores would be too busy"),
                () if !known && on_trial => Err("below its OAA, or more than a unit, with little slack"),
                () if !known && !off => Err("on Model-A's RCliff, and Model-B does not predict QoS 1.4"),
                () if !known => Err("Model-B predicts too little QoS, or has no answer"),
                () => Ok(()),
            }
        };
        // Far above the OAA: go there at once after a drop of load, else (something beyond the models has raised it) by quarters.
        let above = has.minus(t.oaa).at_most(spare);
        let careful = Amount::new(above.cores.div_ceil(4), above.ways.div_ceil(4));
        let jump = match self.lives[&s.id].hurts {
            0 if dropped => above,
            0 => careful,
            _ => Amount::default(),
        };
        let to = has.minus(jump);
        if jump.cores + jump.ways >= 2 && fine(self, to).is_ok() {
            let mut because = self.because(s, HoldsIf::Qos { at_least: 1.0 });
            self.say_target(&mut because, &t);
            self.say_b(&mut because, s, has, to);
            because.reject("single steps", if dropped { "the load has changed" } else { "far above its OAA" });
            if jump != above {
                let all = words(above, &self.books.platform);
                because.reject(format!("all of {all} above its OAA"), "something beyond the models has raised it: a quarter at a time");
            }
            because.bind("Model-A's OAA; under watch, and withdrawn if a target is missed");
            self.books.shrink(&s.id, jump);
            self.watch(now_ms, &s.id, jump, None, None);
            act(plan, &s.id, ActionKind::Shrink, format!("QoS {qos:.2}; {}: {} less", t.why, words(jump, &self.books.platform)), because);
            return true;
        }
        let (proposal, from) = self.propose(s);
        let mut options: Vec<(usize, f64, Amount)> = vec![];
        let mut masked = None;
        for (action, unit) in [(CORES_DOWN, Amount::new(1, 0)), (WAYS_DOWN, Amount::new(0, 1))] {
            if !unit.fits_in(has) {
                continue;
            }
            let to = has.minus(unit);
            match fine(self, to) {
                Ok(()) => options.push((action, proposal[action], unit)),
                Err(why) => masked = Some((action, why)),
            }
        }
        if options.is_empty() {
            return false;
        }
        let idles = self.lives[&s.id].idles;
        let idle = proposal[IDLE];
        let Some((action, p, unit)) = options.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) else { return false };
        if idle > p && idles < self.set.idle_patience {
            self.expect(s, IDLE, has);
            if let Some(l) = self.lives.get_mut(&s.id) {
                l.idles += 1;
            }
            return false;
        }
        let mut because = self.because(s, HoldsIf::Qos { at_least: 1.0 });
        self.say_target(&mut because, &t);
        self.say_c(&mut because, s, &proposal, options.iter().map(|o| o.0).chain([IDLE]));
        self.say_b(&mut because, s, has, has.minus(unit));
        if let Some((action, why)) = masked {
            because.reject(because::ACTION_NAMES[action], why);
        }
        for (other, q, _) in options.iter().filter(|o| o.0 != action) {
            because.reject(because::ACTION_NAMES[*other], format!("Model-C: p {q:.2}, less than {p:.2}"));
        }
        let answered = if idle > p { format!("answered {idles} times in a row") } else { format!("Model-C: p {idle:.2}") };
        because.reject(because::ACTION_NAMES[IDLE], answered);
        because.bind("one unit of one service; under watch, and withdrawn if a target is missed");
        self.expect(s, action, has.minus(unit));
        self.books.shrink(&s.id, unit);
        self.watch(now_ms, &s.id, unit, None, None);
        if let Some(l) = self.lives.get_mut(&s.id) {
            l.idles = 0;
        }
        let what = words(unit, &self.books.platform);
        act(plan, &s.id, ActionKind::Shrink, format!("QoS {qos:.2}; {from}: p {p:.2}; {what} less"), because);
        true
    }

    /// Give BE jobs their bandwidth back step by step; take it away again if somebody suffers.
    fn be_bandwidth(&mut self, now_ms: u64, seen: &Observation, plan: &mut Plan) {
        if self.books.be_mba_pct >= 100 {
            return;
        }
        let name = seen.be().next().map_or("be".to_string(), |s| s.id.clone());
        let mut known = seen.lc().filter_map(ServiceView::qos).peekable();
        if known.peek().is_none() {
            return;
        }
        let worst = known.fold(f64::INFINITY, f64::min);
        if let Some(at) = self.be_mba_raised {
            if worst < 1.0 {
                if let Some(pct) = self.books.mba_step(self.books.be_mba_pct, false) {
                    self.books.be_mba_pct = pct;
                    let mut because = self.because_of(seen, &name, HoldsIf::NotJudged);
                    because.bind("a service misses its target since the BE jobs got more bandwidth");
                    act(plan, &name, ActionKind::Rollback, format!("QoS {worst:.2} after more bandwidth: back to {pct} %"), because);
                }
                self.be_mba_wait.1 = (self.be_mba_wait.1 * 2).min(60_000);
                self.be_mba_wait.0 = now_ms + self.be_mba_wait.1;
                self.be_mba_raised = None;
                return;
            }
            if now_ms > at + self.set.watch_ms {
                self.be_mba_raised = None;
            }
            return;
        }
        // Whoever is not heard could not say that it suffers.
        let all_heard = !seen.lc().any(ServiceView::latency_unknown);
        if worst >= 1.1 && all_heard && now_ms >= self.be_mba_wait.0 {
            if let Some(pct) = self.books.mba_step(self.books.be_mba_pct, true) {
                self.books.be_mba_pct = pct;
                self.be_mba_raised = Some(now_ms);
                let mut because = self.because_of(seen, &name, HoldsIf::NotJudged);
                because.reject("all of it back at once", "one step at a time, withdrawn if a service misses its target");
                because.bind(format!("the worst QoS is {worst:.2}"));
                act(plan, &name, ActionKind::Grow, format!("all targets met: memory bandwidth {pct} %"), because);
            }
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

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
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
            Ok(p) => plan.allocations = p.allocations,
            Err(why) => plan.reports.push(Report::CannotPlace { service: Report::ALL.into(), why }),
        }
        plan
    }
}

#[cfg(test)]
#[path = "osml_plus_tests.rs"]
mod tests;
