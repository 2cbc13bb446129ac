//! What a running daemon knows of itself, and its pages: Prometheus metrics (/metrics, text format 0.0.4; [`families`]), what `surefootd top`
//! draws (/status, JSON), and whether it is alive (/healthz), as pages of [`super::http`].

pub mod families;

use super::follower::{Record, Told};
use super::http::{self, Page};
use super::learning::Progress;
use super::phases::{own, Phase, Phases};
use super::status::{Compared, LendStatus, ModelStatus, ServiceStatus, ShadowStatus, Status, ACTIONS, RECENT};
use super::upper::UpperCounts;
use crate::base::error::{Error, Result};
use crate::node::tally::{Shadowed, Tally};
use families::escaped;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use surefoot_io::shown;
use surefoot_linux::cgroup::Knob;
use surefoot_linux::local::{Limit, Value};
use surefoot_linux::LocalServer;
use surefoot_policy::{Asked, Opinion};
use surefoot_server::{FeedState, Held, Observation, Platform};

#[derive(Debug, Default)]
pub struct Metrics {
    ticks: u64,
    late_ticks: u64,
    /// Services of the configuration that are not here.
    absent: Vec<String>,
    pods_list_age: Option<Duration>,
    refused_plans: u64,
    actions: BTreeMap<&'static str, u64>,
    reports: u64,
    decision_s: f64,
    decision_worst_s: f64,
    phases: Phases,
    /// None of a service of which it was never known whether it meets its target.
    violation_ms: BTreeMap<String, Option<u64>>,
    seen: Observation,
    policy: String,
    platform: String,
    cores: f64,
    ways: Option<f64>,
    interval_ms: u64,
    /// Of the last tick, since the first.
    t_ms: u64,
    recent_p99_ms: BTreeMap<String, VecDeque<Option<f64>>>,
    last_actions: VecDeque<Record>,
    /// Closed records: whether what was expected came, did not, or cannot be said.
    expectations: [u64; 3],
    /// None where nothing learns.
    learning: Option<Progress>,
    /// By name.
    shadows: BTreeMap<String, Shadow>,
    /// Of policies that another process decides for, by name.
    asked: BTreeMap<String, Asked>,
    lends: Vec<LendStatus>,
    upper: UpperCounts,
    /// Features that models are asked with; empty without a bundle.
    inputs: Vec<String>,
    /// None without a bundle.
    models: Option<Vec<ModelStatus>>,
    /// Of the local server: labelled values of [`families::OF_HOST`].
    host: Vec<families::Lines>,
    /// What bounds services there.
    limits: Vec<Limit>,
    /// Services that have been here, and those of them of which something was set.
    come: BTreeSet<String>,
    placed: BTreeSet<String>,
    /// Whether the disk of its state folder has no room for what it knows; None: no local server.
    disk_behind: Option<bool>,
    /// Readers of these pages that were cut off.
    dropped: Arc<http::Dropped>,
    pulse: Arc<Pulse>,
}

/// Whether the control loop goes round. Read without the lock, which a loop that hangs may hold.
#[derive(Debug)]
struct Pulse {
    begin: Instant,
    /// Of the last tick, since `begin`; 0 before the first.
    last_us: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse { begin: Instant::now(), last_us: AtomicU64::new(0) }
    }
}

/// From here on a loop without a tick counts as hung, as for WatchdogSec of the packaged unit.
const HUNG: Duration = Duration::from_secs(5);

impl Pulse {
    fn beat(&self) {
        self.last_us.store(self.begin.elapsed().as_micros().max(1) as u64, Ordering::Relaxed);
    }

    /// Status and text of /healthz, so long after `begin`.
    fn health(&self, now: Duration) -> (&'static str, String) {
        let last = Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        let silent = now.saturating_sub(last);
        match (last.is_zero(), silent > HUNG) {
            (true, _) => (http::UNAVAILABLE, "starting: no decision yet\n".into()),
            (false, true) => (http::UNAVAILABLE, format!("hung: no decision for {:.1} s\n", silent.as_secs_f64())),
            (false, false) => (http::OK, "ok\n".into()),
        }
    }
}

/// A policy in the shadow: what it said last, and so far.
#[derive(Debug, Default)]
struct Shadow {
    last: Opinion,
    so_far: Tally,
}

/// How long the parts of one tick took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Took {
    pub observe: Duration,
    pub decide: Duration,
    /// None without a plan.
    pub apply: Option<Duration>,
    /// None where nothing was learnt.
    pub learn: Option<Duration>,
}

impl Metrics {
    /// Who decides, where, and how often.
    pub fn about(&mut self, policy: &str, platform: &Platform, interval_ms: u64) {
        (self.policy, self.platform, self.interval_ms) = (policy.into(), platform.name.clone(), interval_ms);
        self.cores = f64::from(platform.managed.len());
        self.ways = platform.llc.map(|_| f64::from(platform.ways()));
    }

    /// What the policies in the shadow say of this tick.
    pub fn shadows(&mut self, said: impl Iterator<Item = (String, Opinion)>) {
        for (name, o) in said {
            let shadow = self.shadows.entry(name).or_default();
            shadow.so_far.add(&o);
            shadow.last = o;
        }
    }

    /// What the policies in the shadow have said so far, by name.
    pub fn shadowed(&self) -> Vec<Shadowed> {
        self.shadows.iter().map(|(name, s)| s.so_far.of(name)).collect()
    }

    /// What became of the questions to a policy in another process.
    pub fn ask(&mut self, policy: &str, asked: Asked) {
        match self.asked.get_mut(policy) {
            Some(known) => *known = asked,
            None => drop(self.asked.insert(policy.into(), asked)),
        }
    }

    /// The same of all of them, for the end of a run.
    pub fn asked(&self) -> &BTreeMap<String, Asked> {
        &self.asked
    }

    /// `t_ms` counts from the first tick.
    pub fn tick(&mut self, t_ms: u64, seen: &Observation, took: Took) {
        let decision_s = took.decide.as_secs_f64();
        self.phases.record(Phase::Observe, took.observe);
        self.phases.record(Phase::Decide, took.decide);
        for (phase, took) in [(Phase::Apply, took.apply), (Phase::Learn, took.learn)] {
            if let Some(took) = took {
                self.phases.record(phase, took);
            }
        }
        // A tick may be late, most of all on a node that is overloaded.
        let since_ms = if self.ticks == 0 { self.interval_ms } else { t_ms.saturating_sub(self.t_ms) };
        self.late_ticks += u64::from(self.ticks > 0 && since_ms > self.interval_ms + self.interval_ms / 2);
        self.ticks += 1;
        self.pulse.beat();
        self.t_ms = t_ms;
        self.decision_s += decision_s;
        self.decision_worst_s = self.decision_worst_s.max(decision_s);
        for s in seen.lc() {
            // A service that never misses its target has 0; one that was never heard has nothing, which is not 0.
            let ms = self.violation_ms.entry(s.id.clone()).or_default();
            if !s.latency_unknown() {
                *ms.get_or_insert(0) += if s.qos_met() == Some(false) { since_ms } else { 0 };
            }
        }
        self.recent_p99_ms.retain(|id, _| seen.get(id).is_some());
        for s in seen.lc() {
            if !self.recent_p99_ms.contains_key(&s.id) {
                self.recent_p99_ms.insert(s.id.clone(), VecDeque::with_capacity(RECENT));
            }
            if let Some(recent) = self.recent_p99_ms.get_mut(&s.id) {
                if recent.len() == RECENT {
                    recent.pop_front();
                }
                recent.push_back(s.window.filter(|_| !s.latency_unknown()).map(|w| w.p99_ms));
            }
        }
        for s in &seen.services {
            if !self.come.contains(&s.id) {
                self.come.insert(s.id.clone());
            }
            if s.placed && !self.placed.contains(&s.id) && !self.nothing_can_be_set_of(&s.id) {
                self.placed.insert(s.id.clone());
            }
        }
        self.seen = seen.clone();
    }

    /// All that a plan sets first was refused: it has what it had before.
    fn nothing_can_be_set_of(&self, id: &str) -> bool {
        let kept = |knob: Knob| self.limits.iter().any(|l| l.service == id && l.kept && l.value == Value::Knob(knob));
        kept(Knob::Cpus) && kept(Knob::Quota)
    }

    /// A plan has set something of these services.
    pub fn placed(&mut self, ids: Vec<String>) {
        for id in ids {
            if !self.nothing_can_be_set_of(&id) {
                self.placed.insert(id);
            }
        }
    }

    /// What bounds services of the local server.
    pub fn limits(&mut self, limits: Vec<Limit>) {
        self.limits = limits;
    }

    /// What bounds services, for the end of a run.
    pub fn bounded(&self) -> &[Limit] {
        &self.limits
    }

    /// Services that were here and of which nothing was ever set.
    pub fn never_placed(&self) -> Vec<&str> {
        self.come.difference(&self.placed).map(String::as_str).collect()
    }

    /// For how long the list of pods has been as it is.
    pub fn pods_list(&mut self, age: Option<Duration>) {
        self.pods_list_age = age;
    }

    /// Services of the configuration that are waited for.
    pub fn absent(&mut self, ids: Vec<String>) {
        self.absent = ids;
    }

    /// How far on-line learning is.
    pub fn learning(&mut self, progress: Progress) {
        self.learning = Some(progress);
    }

    /// What services lend to BE jobs between two plans.
    pub fn lends(&mut self, lends: Vec<LendStatus>) {
        self.lends = lends;
    }

    /// What models are asked with.
    pub fn inputs(&mut self, wanted: &[String]) {
        self.inputs = wanted.into();
    }

    /// How models do by the last look, which took so long.
    pub fn models(&mut self, models: Vec<ModelStatus>, took: Duration) {
        self.models = Some(models);
        self.phases.record(Phase::Watch, took);
    }

    /// How models do, for the end of a run.
    pub fn watched(&self) -> Option<&[ModelStatus]> {
        self.models.as_deref()
    }

    /// What upper schedulers have been told so far.
    pub fn upper(&mut self, counts: UpperCounts) {
        self.upper = counts;
    }

    /// What only a real host has.
    pub fn host(&mut self, s: &LocalServer) {
        let refused = s.refused_datagrams().into_iter().map(|(r, n)| (format!("{{reason=\"{r}\"}}"), n as f64)).collect();
        let taken = s.taken_datagrams().into_iter().map(|(id, n)| (format!("{{service=\"{}\"}}", escaped(&id)), n as f64)).collect();
        let of = |id: &str, key: &str, value: &str| format!("{{service=\"{}\",{key}=\"{value}\"}}", escaped(id));
        let values = s.foreign_changes().into_iter().map(|((id, knob), n)| (of(id, "value", knob.name()), n as f64));
        let classes = s.foreign_class_changes().into_iter().map(|((id, part), n)| (of(id, "value", part), n as f64));
        let foreign = values.chain(classes).collect();
        let stalled = s.stalled_s().map(|(id, r, t)| (of(id, "resource", r.name()), t)).collect();
        let refusals = s.refusals().map(|(id, value, n)| (of(id, "value", value.name()), n as f64)).collect();
        self.limits = s.limits();
        self.disk_behind = Some(s.is_disk_behind());
        let unlocked = vec![(String::new(), s.unlocked_changes() as f64)];
        // In the order of families::OF_HOST.
        self.host = vec![refusals, taken, refused, foreign, unlocked, stalled];
    }

    /// What the policy wanted at the last tick.
    pub fn plan(&mut self, plan: &surefoot_server::Plan, applied: bool) {
        if !applied {
            self.refused_plans += 1;
            return;
        }
        for a in &plan.actions {
            *self.actions.entry(a.kind.as_str()).or_insert(0) += 1;
        }
        self.reports += plan.reports.len() as u64;
    }

    /// Ticks that came half an interval late or more.
    pub fn late_ticks(&self) -> u64 {
        self.late_ticks
    }

    /// What the daemon itself costs.
    pub fn phases(&self) -> &Phases {
        &self.phases
    }

    /// The last records, and what came of earlier ones.
    pub fn tell(&mut self, told: &Told) {
        for c in &told.closed {
            self.expectations[c.effect.held.map_or(2, |held| usize::from(!held))] += 1;
            if let Some(r) = self.last_actions.iter_mut().find(|r| r.id == c.id) {
                r.effect = Some(c.effect.clone());
            }
        }
        for r in &told.opened {
            if self.last_actions.len() == ACTIONS {
                self.last_actions.pop_front();
            }
            self.last_actions.push_back(r.clone());
        }
    }

    /// Milliseconds of QoS violation by service; None where its latency was never known.
    pub fn violation_ms(&self) -> &BTreeMap<String, Option<u64>> {
        &self.violation_ms
    }

    /// For `surefootd top`.
    pub fn status(&self) -> Status {
        let service = |s: &surefoot_server::ServiceView| ServiceStatus {
            id: s.id.clone(),
            service: s.service.clone(),
            kind: if s.is_lc() { "lc" } else { "be" }.into(),
            p99_ms: s.window.map(|w| w.p99_ms),
            qos_target_ms: s.qos_target_ms(),
            feed: s.feed.as_str().into(),
            silent_s: match s.feed {
                FeedState::Unknown { since_ms, .. } => Some(self.seen.t_ms.saturating_sub(since_ms) as f64 / 1000.0),
                _ => None,
            },
            never_heard: s.never_heard(),
            doubt: s.feed.doubt().map(|d| d.as_str().into()),
            verdict: s.window.map(|w| w.verdict.as_str().into()),
            achieved_rps: s.window.map(|w| w.achieved_rps),
            held: Held::of(&s.allocation),
            memory: s.memory,
            violation_s: self.violation_ms.get(&s.id).and_then(|ms| Some((*ms)? as f64 / 1000.0)),
            recent_p99_ms: self.recent_p99_ms.get(&s.id).map(|r| r.iter().copied().collect()).unwrap_or_default(),
        };
        let shadow = |name: &str, s: &Shadow| ShadowStatus {
            cores: s.last.cores,
            ways: s.last.ways,
            be_cores: s.last.be_cores,
            regret_qos: s.last.regret_qos,
            so_far: s.so_far.of(name),
        };
        Status {
            policy: self.policy.clone(),
            platform: self.platform.clone(),
            cores: self.cores,
            ways: self.ways,
            interval_ms: self.interval_ms,
            t_ms: self.t_ms,
            ticks: self.ticks,
            refused_plans: self.refused_plans,
            late_ticks: self.late_ticks,
            absent: self.absent.clone(),
            decision_mean_us: (self.ticks > 0).then(|| self.decision_s * 1e6 / self.ticks as f64),
            services: self.seen.services.iter().map(service).collect(),
            shadows: self.shadows.iter().map(|(name, s)| shadow(name, s)).collect(),
            lends: self.lends.clone(),
            models: self.models.clone(),
            actions: self.last_actions.iter().cloned().collect(),
        }
    }
}

/// What / shows: where the other pages are.
fn index() -> String {
    let pages =
        [("/metrics", "for Prometheus"), ("/status", "what surefootd top draws, JSON"), ("/healthz", "whether decisions are taken")];
    let pages: String = pages.iter().map(|(path, what)| format!("<li><a href=\"{path}\">{path}</a>: {what}</li>\n")).collect();
    let head = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>surefootd</title></head>\n";
    format!("{head}<body><h1>surefootd {}</h1>\n<ul>\n{pages}</ul></body></html>\n", env!("SUREFOOT_VERSION"))
}

/// Serve until the process ends. Port 0 takes any that is free; the address taken is returned.
///
/// # Errors
/// [`Error::Failed`] for an address in use, or that this machine does not have.
pub fn serve(at: SocketAddr, metrics: Arc<Mutex<Metrics>>) -> Result<SocketAddr> {
    fn held(m: &Mutex<Metrics>) -> MutexGuard<'_, Metrics> {
        m.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let (dropped, pulse) = {
        let m = held(&metrics);
        (m.dropped.clone(), m.pulse.clone())
    };
    let status = {
        let metrics = metrics.clone();
        move || {
            // Written out after the lock is free: the control loop waits for it.
            let status = held(&metrics).status();
            (http::OK, shown::json(&serde_json::to_string(&status).unwrap_or_default()).into_owned())
        }
    };
    let text = move || {
        let own = own();
        (http::OK, held(&metrics).text_with(&own))
    };
    let health = move || pulse.health(pulse.begin.elapsed());
    let pages = vec![
        Page { path: "/metrics", kind: "text/plain; version=0.0.4", make: Box::new(text) },
        Page { path: "/status", kind: "application/json", make: Box::new(status) },
        Page { path: "/healthz", kind: "text/plain; charset=utf-8", make: Box::new(health) },
        Page { path: "/", kind: "text/html; charset=utf-8", make: Box::new(|| (http::OK, index())) },
    ];
    http::serve(at, pages, dropped).map_err(|e| {
        let remedy = "Stop what listens there, give another metrics_port or metrics_address, or metrics_port = 0 for none";
        Error::Failed(format!("metrics_port: {at}: {e}. {remedy}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::phases::Own;
    use surefoot_server::{Allocation, Doubt, Features, Kind, Platform, ServiceView};

    fn tick(m: &mut Metrics, t_ms: u64, feed: FeedState) {
        let p = Platform::regular("p", 4, 1, 4, 1.0);
        let web = ServiceView {
            id: "web".into(),
            service: "web".into(),
            kind: Kind::Lc { qos_target_ms: 10.0 },
            threads: 1,
            allocation: Allocation::everything(&p),
            placed: true,
            features: Features::default(),
            feed,
            interval: None,
            window: None,
            instr_per_s: None,
            memory: surefoot_server::MemoryView::default(),
        };
        m.tick(t_ms, &Observation { t_ms, services: vec![web], ..Observation::default() }, Took::default());
    }

    /// Before the first tick a daemon starts; from then on it is well, until 5 s have gone by without a tick.
    #[test]
    fn health_is_that_of_the_loop() {
        let pulse = Pulse::default();
        let s = Duration::from_secs;
        assert_eq!(pulse.health(s(100)), (http::UNAVAILABLE, "starting: no decision yet\n".into()));
        pulse.last_us.store(100_000_000, Ordering::Relaxed);
        assert_eq!(pulse.health(s(105)), (http::OK, "ok\n".into()));
        let (status, why) = pulse.health(Duration::from_millis(105_100));
        assert_eq!((status, why.as_str()), (http::UNAVAILABLE, "hung: no decision for 5.1 s\n"));
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        assert_eq!(m.pulse.health(m.pulse.begin.elapsed()).0, http::OK);
    }

    /// Names keep Prometheus' units, whatever the units of files; every family is named once, and counters alone end in _total.
    #[test]
    fn names_keep_the_conventions() {
        let name = |key| families::in_base_units(key);
        assert_eq!(name("mba_pct"), ("mba_ratio".into(), 100.0));
        assert_eq!(name("stall_frac"), ("stall_ratio".into(), 1.0));
        assert_eq!(name("refaults_per_s"), ("refaults_per_second".into(), 1.0));
        assert_eq!(name("p99_ms"), ("p99_seconds".into(), 1000.0));
        assert_eq!(name("cores"), ("cores".into(), 1.0));
        let all = Metrics::default().families(&Own::default());
        let names: BTreeSet<&str> = all.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
        for f in &all {
            assert_eq!(f.name.ends_with("_total"), f.kind == families::Kind::Counter, "{}", f.name);
            let short = ["ms", "us", "s", "pct", "frac", "mb", "gb", "rps"];
            assert!(f.name.split('_').all(|part| !short.contains(&part)), "{}", f.name);
        }
    }

    /// One state has 1 and the others 0, in each set; a BE job has none of the sets of latency.
    #[test]
    fn states_are_sets() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Doubtful { since_ms: 0, why: Doubt::Rate });
        let text = m.text_with(&Own::default());
        let set = |name: &str| -> Vec<(&str, &str)> {
            text.lines().filter(|l| l.starts_with(&format!("{name}{{"))).filter_map(|l| l.rsplit_once(' ')).collect()
        };
        for (name, all) in [("surefoot_latency_feed_state", 5), ("surefoot_latency_doubt", 7), ("surefoot_latency_verdict", 4)] {
            assert_eq!(set(name).len(), all, "{name}");
        }
        let on = |name: &str| set(name).into_iter().filter(|(_, v)| *v == "1").map(|(l, _)| l.to_string()).collect::<Vec<_>>();
        assert_eq!(on("surefoot_latency_feed_state"), ["surefoot_latency_feed_state{service=\"web\",kind=\"lc\",state=\"doubtful\"}"]);
        assert_eq!(on("surefoot_latency_doubt"), ["surefoot_latency_doubt{service=\"web\",kind=\"lc\",why=\"rate\"}"]);
        assert_eq!(on("surefoot_latency_verdict"), [""; 0], "there is no window");
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::NotNeeded);
        m.seen.services[0].kind = Kind::Be;
        let text = m.text_with(&Own::default());
        assert!(text.contains("surefoot_cores{service=\"web\",kind=\"be\"} 4\n") && !text.contains("surefoot_latency_"), "{text}");
    }

    /// A limit has a gauge, and a field in the status, only where it is set; what every service holds has one always.
    #[test]
    fn limits_show_where_they_are_set() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let text = m.text_with(&Own::default());
        assert!(
            text.contains("# HELP surefoot_ways LLC ways held\n# TYPE surefoot_ways gauge\nsurefoot_ways{service=\"web\",kind=\"lc\"} 4\n"),
            "{text}"
        );
        assert!(
            text.contains("surefoot_mba_ratio{service=\"web\",kind=\"lc\"} 1\n") && !text.contains("surefoot_mem_limit_bytes"),
            "{text}"
        );
        assert!(!serde_json::to_string(&m.status()).unwrap().contains("mem_limit_bytes"));
        m.seen.services[0].allocation.mem_limit_bytes = Some(1 << 30);
        let text = m.text_with(&Own::default());
        assert!(
            text.contains("surefoot_mem_limit_bytes{service=\"web\",kind=\"lc\"} 1073741824\n") && !text.contains("surefoot_zswap"),
            "{text}"
        );
        assert!(serde_json::to_string(&m.status()).unwrap().contains("\"mba_pct\":100,\"mem_limit_bytes\":1073741824,\"violation_s\""));
    }

    /// What is read of a service's memory has a gauge and a field in the status; what cannot be read has neither.
    #[test]
    fn memory_that_is_read_shows() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let shown = |m: &Metrics| (m.text_with(&Own::default()), serde_json::to_string(&m.status()).unwrap());
        let (text, status) = shown(&m);
        assert!(!text.contains("surefoot_memory_") && !status.contains("\"memory\""), "{text} {status}");
        m.seen.services[0].memory = surefoot_server::MemoryView { in_use_bytes: Some(8192), stall_frac: Some(0.0), ..Default::default() };
        let (text, status) = shown(&m);
        assert!(
            text.contains("surefoot_memory_in_use_bytes{service=\"web\",kind=\"lc\"} 8192\n") && !text.contains("surefoot_memory_pool"),
            "{text}"
        );
        assert!(text.contains("surefoot_memory_stall_ratio{service=\"web\",kind=\"lc\"} 0\n"), "{text}");
        assert!(status.contains("\"memory\":{\"in_use_bytes\":8192,\"stall_frac\":0.0}"), "{status}");
    }

    /// A service's models have a line for each kind of comparison; a figure that there is not yet has none. Without a bundle it is said that
    /// none is watched, and there is no other line.
    #[test]
    fn watched_models_show() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let text = m.text_with(&Own::default());
        assert!(text.contains("surefoot_models_watched 0\n") && !text.contains("surefoot_model_"), "{text}");
        assert!(m.status().models.is_none() && m.watched().is_none());
        let held =
            Compared { comparisons: 40, missed: 4, false_met: 3, error_qos: Some(0.25), bias_qos: Some(0.125), taught_qos: Some(0.0625) };
        let web = ModelStatus {
            service: "web".into(),
            standing: "worse-than-taught".into(),
            drift: Some(4.0),
            held,
            inputs_outside: 2,
            inputs_outside_frac: 0.75,
            oaa: "too-small".into(),
            ..ModelStatus::default()
        };
        m.models(vec![web.clone()], Duration::from_micros(50));
        let text = m.text_with(&Own::default());
        let b = |kind: &str| format!("{{model=\"b\",service=\"web\",comparison=\"{kind}\"}}");
        for line in [
            "surefoot_models_watched 1".into(),
            format!("surefoot_model_comparisons_total{} 40", b("held")),
            format!("surefoot_model_comparisons_total{} 0", b("changed")),
            format!("surefoot_model_missed_total{} 4", b("held")),
            format!("surefoot_model_false_met_total{} 3", b("held")),
            format!("surefoot_model_error_qos{} 0.25", b("held")),
            format!("surefoot_model_bias_qos{} 0.125", b("held")),
            format!("surefoot_model_taught_error_qos{} 0.0625", b("held")),
            "surefoot_model_drift{service=\"web\"} 4".into(),
            "surefoot_model_inputs_outside{service=\"web\"} 2".into(),
            "surefoot_model_inputs_outside_ratio{service=\"web\"} 0.75".into(),
            "surefoot_model_standing{service=\"web\",standing=\"worse-than-taught\"} 1".into(),
            "surefoot_model_standing{service=\"web\",standing=\"as-taught\"} 0".into(),
            "surefoot_model_oaa{service=\"web\",oaa=\"too-small\"} 1".into(),
            "surefoot_model_oaa{service=\"web\",oaa=\"right\"} 0".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains(&format!("surefoot_model_error_qos{}", b("changed"))), "{text}");
        assert!(text.contains("surefoot_phase_duration_seconds_count{phase=\"watch\"} 1"), "{text}");
        assert_eq!(m.status().models, Some(vec![web]));
    }

    /// What is lent has a line for each lender, and none where nothing is configured to lend.
    #[test]
    fn what_is_lent_shows() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        assert!(!m.text_with(&Own::default()).contains("_len"));
        let lend = LendStatus {
            lender: "web".into(),
            borrower: "batch".into(),
            cores: 2,
            most_cores: 3,
            leases: 4,
            windows: 50,
            short: 6,
            exhausted: 7,
            stops: 1,
            moves: 8,
            ..LendStatus::default()
        };
        m.lends(vec![lend.clone()]);
        let text = m.text_with(&Own::default());
        for (name, value) in [
            ("lent_cores", 2),
            ("lease_cores", 3),
            ("leases_total", 4),
            ("lend_windows_total", 50),
            ("lend_short_total", 6),
            ("lend_exhausted_total", 7),
            ("lend_stops_total", 1),
            ("lend_moves_total", 8),
        ] {
            let line = format!("surefoot_{name}{{service=\"web\",borrower=\"batch\"}} {value}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert_eq!(m.status().lends, [lend]);
    }

    /// A service whose latency was never known has no seconds of violation: no line, and null; one that was heard has 0. A doubt has its own lines.
    #[test]
    fn never_known_is_not_zero() {
        let mut m = Metrics::default();
        let says = |m: &Metrics, line: &str| m.text_with(&Own::default()).lines().any(|l| l == line);
        let violation = "surefoot_qos_violation_seconds_total{service=\"web\"} 0";
        tick(&mut m, 0, FeedState::Unknown { since_ms: 0, heard: false });
        tick(&mut m, 100, FeedState::Doubtful { since_ms: 100, why: Doubt::Workers });
        assert_eq!((m.violation_ms()["web"], m.status().services[0].violation_s), (None, None));
        assert!(!says(&m, violation) && says(&m, "surefoot_latency_doubtful{service=\"web\",kind=\"lc\"} 1"));
        assert!(says(&m, "surefoot_latency_doubt{service=\"web\",kind=\"lc\",why=\"workers\"} 1"));
        assert_eq!((m.status().services[0].doubt.as_deref(), m.status().services[0].feed.as_str()), (Some("workers"), "doubtful"));
        tick(&mut m, 200, FeedState::Idle);
        assert_eq!((m.violation_ms()["web"], m.status().services[0].violation_s), (Some(0), Some(0.0)));
        assert!(says(&m, violation) && says(&m, "surefoot_latency_doubtful{service=\"web\",kind=\"lc\"} 0"));
    }
}
