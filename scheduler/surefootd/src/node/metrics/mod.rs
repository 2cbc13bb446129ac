//! Prometheus metrics (/metrics, text format 0.0.4) and what `surefootd top` draws (/status, JSON), as pages of [`super::http`].

use super::follower::{Record, Told};
use super::http::{self, Page};
use super::learning::Progress;
use super::phases::{own_cost, Phase, Phases};
use super::status::{Compared, LendStatus, ModelStatus, ServiceStatus, ShadowStatus, Status, ACTIONS, RECENT};
use super::upper::{socket::DROPPED, UpperCounts, What};
use crate::base::error::{Error, Result};
use crate::node::tally::{Shadowed, Tally};
use crate::stage::inputs::missing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use surefoot_io::{out, shown};
use surefoot_linux::cgroup::Knob;
use surefoot_linux::local::{Limit, Value};
use surefoot_linux::LocalServer;
use surefoot_policy::Opinion;
use surefoot_server::memory::READINGS;
use surefoot_server::{FeedState, Held, Observation, Platform, QUANTITIES};

#[derive(Debug, Default)]
pub struct Metrics {
    ticks: u64,
    late_ticks: u64,
    /// Services of the configuration that are not here.
    absent: Vec<String>,
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
    lends: Vec<LendStatus>,
    upper: UpperCounts,
    /// Features that models are asked with; empty without a bundle.
    inputs: Vec<String>,
    /// None without a bundle.
    models: Option<Vec<ModelStatus>>,
    /// Of the local server: families of counters with their labelled values.
    host: Vec<Family>,
    /// What bounds services there.
    limits: Vec<Limit>,
    /// Services that have been here, and those of them of which something was set.
    come: BTreeSet<String>,
    placed: BTreeSet<String>,
    /// Whether the disk of its state folder has no room for what it knows; None: no local server.
    disk_behind: Option<bool>,
    /// Readers of these pages that were cut off.
    dropped: Arc<http::Dropped>,
}

/// A policy in the shadow: what it said last, and so far.
#[derive(Debug, Default)]
struct Shadow {
    last: Opinion,
    so_far: Tally,
}

/// A counter's name and help, and its values by labels.
type Family = (&'static str, &'static str, Vec<(String, f64)>);

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
        self.host = vec![
            (
                "surefoot_refusals_total",
                "values that the kernel refused, or that the groups around a service did not let come into force",
                refusals,
            ),
            ("surefoot_feed_taken_total", "latency datagrams that were taken", taken),
            ("surefoot_feed_refused_total", "latency datagrams, and pages of scraped services, that were not taken", refused),
            ("surefoot_foreign_changes_total", "values of ours that somebody else changed", foreign),
            (
                "surefoot_resctrl_unlocked_total",
                "looks at classes and changes of them without the lock of resctrl, which another process held for too long",
                vec![(String::new(), s.unlocked_changes() as f64)],
            ),
            ("surefoot_stalled_seconds_total", "time for which some task waited for a resource (PSI)", stalled),
        ];
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

    /// Prometheus text.
    pub fn text(&self) -> String {
        self.text_with(own_cost())
    }

    /// The same with what the process has cost, which takes longer to read than all else.
    fn text_with(&self, (cpu_s, rss_bytes): (Option<f64>, Option<u64>)) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, lines: Vec<(String, f64)>| {
            if lines.is_empty() {
                return;
            }
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, v) in lines {
                let _ = writeln!(out, "{name}{labels} {v}");
            }
        };
        let label = |id: &str| format!("{{service=\"{}\"}}", escaped(id));
        // What is unknown has no line.
        let each = |f: fn(&surefoot_server::ServiceView) -> Option<f64>| -> Vec<(String, f64)> {
            self.seen.services.iter().filter_map(|s| Some((label(&s.id), f(s)?))).collect()
        };
        let one = |v: f64| vec![(String::new(), v)];
        family("surefoot_p99_ms", "gauge", "p99 latency over the last second", each(|s| s.window.map(|w| w.p99_ms)));
        family("surefoot_qos_target_ms", "gauge", "QoS target on p99", each(|s| s.qos_target_ms()));
        family("surefoot_qos_met", "gauge", "1 where the p99 is within the target", each(|s| s.qos_met().map(|m| f64::from(u8::from(m)))));
        let known = |s: &surefoot_server::ServiceView| s.is_lc().then(|| f64::from(u8::from(!s.latency_unknown())));
        family("surefoot_latency_known", "gauge", "0 where nobody can say whether the p99 is within the target", each(known));
        let heard = |s: &surefoot_server::ServiceView| s.is_lc().then(|| f64::from(u8::from(!s.never_heard())));
        family("surefoot_latency_heard", "gauge", "0 for a service whose latency has not been heard of since it came", each(heard));
        let doubtful = |s: &surefoot_server::ServiceView| s.is_lc().then(|| f64::from(u8::from(s.feed.doubt().is_some())));
        family("surefoot_latency_doubtful", "gauge", "1 where something in the latency feed speaks against what it says", each(doubtful));
        let why = |s: &surefoot_server::ServiceView| {
            let labels = format!("{{service=\"{}\",why=\"{}\"}}", escaped(&s.id), s.feed.doubt()?.as_str());
            Some((labels, 1.0))
        };
        let doubts = self.seen.services.iter().filter_map(why).collect();
        family("surefoot_latency_doubt_info", "gauge", "what speaks against a latency feed (docs/latency-feed.md)", doubts);
        family("surefoot_achieved_rps", "gauge", "requests answered per second", each(|s| s.window.map(|w| w.achieved_rps)));
        for q in &QUANTITIES {
            let held = |s: &surefoot_server::ServiceView| Some((label(&s.id), (q.of)(&Held::of(&s.allocation))?));
            family(&format!("surefoot_{}", q.key), "gauge", q.words, self.seen.services.iter().filter_map(held).collect());
        }
        for r in &READINGS {
            let read = |s: &surefoot_server::ServiceView| Some((label(&s.id), (r.of)(&s.memory)?));
            family(&format!("surefoot_memory_{}", r.key), "gauge", r.words, self.seen.services.iter().filter_map(read).collect());
        }
        family("surefoot_instructions_per_second", "gauge", "instructions per second", each(|s| s.instr_per_s));
        let violation = self.violation_ms.iter().filter_map(|(id, ms)| Some((label(id), (*ms)? as f64 / 1000.0))).collect();
        family("surefoot_qos_violation_seconds_total", "counter", "time with p99 above the target", violation);
        let actions = self.actions.iter().map(|(k, n)| (format!("{{kind=\"{k}\"}}"), *n as f64)).collect();
        family("surefoot_actions_total", "counter", "steps that the policy took", actions);
        for (name, help, lines) in &self.host {
            family(name, "counter", help, lines.clone());
        }
        let bounded: BTreeSet<String> =
            self.limits.iter().map(|l| format!("{{service=\"{}\",value=\"{}\"}}", escaped(&l.service), l.value.name())).collect();
        let bounded = bounded.into_iter().map(|labels| (labels, 1.0)).collect();
        family("surefoot_bounded", "gauge", "1 for what cannot be set of a service as a policy likes", bounded);
        if let Some(behind) = self.disk_behind {
            let help = "1 while the full disk of the state folder lacks something that only this process knows";
            family("surefoot_state_behind", "gauge", help, vec![(String::new(), f64::from(u8::from(behind)))]);
        }
        let held = ["yes", "no", "unknown"].iter().zip(self.expectations);
        let held = held.map(|(held, n)| (format!("{{held=\"{held}\"}}"), n as f64)).collect();
        family("surefoot_expectations_total", "counter", "actions whose effect is known, by whether what was expected came", held);
        if let Some(p) = self.learning {
            let c = p.counts;
            // Not a counter: a refused window takes its steps back.
            family("surefoot_learning_steps", "gauge", "steps of on-line learning in Model-C's weights", one(p.steps as f64));
            let windows = [("kept", c.kept), ("refused", c.refused), ("unjudged", c.unjudged)];
            let windows = windows.map(|(verdict, n)| (format!("{{verdict=\"{verdict}\"}}"), n as f64)).to_vec();
            family("surefoot_learning_windows_total", "counter", "updates of Model-C by what the guard said of them", windows);
            family("surefoot_learning_broken_steps_total", "counter", "steps of learning that were not finite", one(c.broken as f64));
            let parts = [("pool", p.pool), ("held_back", p.held)];
            let parts = parts.map(|(part, n)| (format!("{{part=\"{part}\"}}"), n as f64)).to_vec();
            family("surefoot_experience_transitions", "gauge", "experience of Model-C", parts);
            family("surefoot_experience_left_out_total", "counter", "transitions that were out of range", one(c.left_out as f64));
        }
        let lc = self.seen.lc().filter(|_| !self.inputs.is_empty());
        let missing = lc.map(|s| (label(&s.id), missing(&self.inputs, s).count() as f64)).collect();
        let help = "inputs of the models that are not measured: above 0 models have no answer, and a rule of thumb stands in";
        family("surefoot_model_inputs_missing", "gauge", help, missing);
        let is_watched = f64::from(u8::from(self.models.is_some()));
        family("surefoot_models_watched", "gauge", "0 where there is no bundle, and so no model to watch", one(is_watched));
        let compared = |f: fn(&Compared) -> Option<f64>| -> Vec<(String, f64)> {
            let mut lines = vec![];
            for m in self.models.iter().flatten() {
                for (kind, of) in [("held", &m.held), ("changed", &m.changed), ("overloaded", &m.overloaded)] {
                    let labels = || format!("{{model=\"b\",service=\"{}\",kind=\"{kind}\"}}", escaped(&m.service));
                    lines.extend(f(of).map(|v| (labels(), v)));
                }
            }
            lines
        };
        let help = "QoS that a model said set against QoS that was seen";
        family("surefoot_model_comparisons_total", "counter", help, compared(|c| Some(c.comparisons as f64)));
        let help = "comparisons in which the target was missed";
        family("surefoot_model_missed_total", "counter", help, compared(|c| Some(c.missed as f64)));
        let help = "comparisons in which it was missed, and the model had said that it is met";
        family("surefoot_model_false_met_total", "counter", help, compared(|c| Some(c.false_met as f64)));
        let help = "absolute error of QoS, capped at 1, over the last comparisons";
        family("surefoot_model_error_qos", "gauge", help, compared(|c| c.error_qos));
        let help = "the same with its sign: above 0 the model says too much";
        family("surefoot_model_bias_qos", "gauge", help, compared(|c| c.bias_qos));
        let help = "the error that this is measured by: of the lab's test, or of the first comparisons";
        family("surefoot_model_taught_error_qos", "gauge", help, compared(|c| c.taught_qos));
        let watched = |f: fn(&ModelStatus) -> Option<f64>| -> Vec<(String, f64)> {
            self.models.iter().flatten().filter_map(|m| Some((label(&m.service), f(m)?))).collect()
        };
        family("surefoot_model_drift", "gauge", "error now / taught, of the kind that is worse", watched(|m| m.drift));
        let help = "inputs of Model-B that lie outside of what it was taught with";
        family("surefoot_model_inputs_outside", "gauge", help, watched(|m| Some(m.inputs_outside as f64)));
        let help = "share of the last looks with such an input";
        family("surefoot_model_inputs_outside_frac", "gauge", help, watched(|m| Some(m.inputs_outside_frac)));
        let words = |key: &str, f: fn(&ModelStatus) -> &str| -> Vec<(String, f64)> {
            let labels = |m: &ModelStatus| format!("{{service=\"{}\",{key}=\"{}\"}}", escaped(&m.service), f(m));
            self.models.iter().flatten().map(|m| (labels(m), 1.0)).collect()
        };
        family("surefoot_model_standing", "gauge", "how models do for a service", words("standing", |m| m.standing.as_str()));
        family("surefoot_model_oaa", "gauge", "Model-A's OAA by what was seen at the load", words("oaa", |m| m.oaa.as_str()));
        let interval_s = self.interval_ms as f64 / 1000.0;
        let shadow = |f: &dyn Fn(&Shadow) -> Option<f64>| -> Vec<(String, f64)> {
            self.shadows.iter().filter_map(|(name, s)| Some((format!("{{policy=\"{name}\"}}"), f(s)?))).collect()
        };
        let help = "cores of LC services that a policy in the shadow would hold otherwise";
        family("surefoot_shadow_disagreement_cores", "gauge", help, shadow(&|s| Some(s.last.cores)));
        let help = "LLC ways of LC services that a policy in the shadow would hold otherwise";
        family("surefoot_shadow_disagreement_ways", "gauge", help, shadow(&|s| Some(s.last.ways)));
        family("surefoot_shadow_be_cores", "gauge", "cores that BE jobs would hold on top under it", shadow(&|s| Some(s.last.be_cores)));
        let help = "QoS, capped at 1 and summed over LC services, that Model-B predicts under it and that is not there";
        family("surefoot_shadow_regret_qos", "gauge", help, shadow(&|s| s.last.regret_qos));
        family(
            "surefoot_shadow_regret_qos_seconds_total",
            "counter",
            "the same over time",
            shadow(&|s| Some(s.so_far.regret_qos_s(interval_s))),
        );
        family(
            "surefoot_shadow_plans_total",
            "counter",
            "ticks on which it would have done something",
            shadow(&|s| Some(s.so_far.plans() as f64)),
        );
        let lends = |f: fn(&LendStatus) -> f64| -> Vec<(String, f64)> {
            let labels = |l: &LendStatus| format!("{{service=\"{}\",borrower=\"{}\"}}", escaped(&l.lender), escaped(&l.borrower));
            self.lends.iter().map(|l| (labels(l), f(l))).collect()
        };
        family("surefoot_lent_cores", "gauge", "idle cores that a service lends to a BE job now", lends(|l| f64::from(l.cores)));
        family("surefoot_lease_cores", "gauge", "cores that it may lend now", lends(|l| f64::from(l.most_cores)));
        family("surefoot_leases_total", "counter", "times that it was allowed to lend: once, and after plans", lends(|l| l.leases as f64));
        family("surefoot_lend_windows_total", "counter", "windows for which cores to keep were predicted", lends(|l| l.windows as f64));
        family("surefoot_lend_short_total", "counter", "windows that needed more cores than were predicted", lends(|l| l.short as f64));
        family("surefoot_lend_exhausted_total", "counter", "times that every core that was left was busy", lends(|l| l.exhausted as f64));
        family("surefoot_lend_stops_total", "counter", "times that waits of its threads stopped lending", lends(|l| l.stops as f64));
        family("surefoot_lend_moves_total", "counter", "times that another number of cores was lent", lends(|l| l.moves as f64));
        family("surefoot_reports_total", "counter", "reports to the upper scheduler", one(self.reports as f64));
        let u = &self.upper;
        let by = |counts: &[u64]| What::ALL.iter().zip(counts).map(|(w, n)| (format!("{{event=\"{}\"}}", w.as_str()), *n as f64)).collect();
        family("surefoot_upper_events_total", "counter", "events for the upper scheduler", by(&u.events));
        family("surefoot_upper_in_force", "gauge", "conditions that the upper scheduler was told of and that hold", by(&u.in_force));
        if let Some(clients) = u.clients {
            family("surefoot_upper_clients", "gauge", "connections on the upper scheduler's socket", one(clients as f64));
            let dropped = DROPPED.iter().zip(u.dropped).map(|(r, n)| (format!("{{reason=\"{r}\"}}"), n as f64)).collect();
            family("surefoot_upper_clients_dropped_total", "counter", "connections that were cut off", dropped);
        }
        family("surefoot_refused_plans_total", "counter", "plans that were not applied", one(self.refused_plans as f64));
        family("surefoot_ticks_total", "counter", "control intervals", one(self.ticks as f64));
        family(
            "surefoot_late_ticks_total",
            "counter",
            "control intervals that came half an interval late or more",
            one(self.late_ticks as f64),
        );
        let here = self.seen.services.iter().map(|s| (label(&s.id), 1.0));
        let present = here.chain(self.absent.iter().map(|id| (label(id), 0.0))).collect();
        family("surefoot_service_present", "gauge", "0 for a service of the configuration that is not here", present);
        let verdict = |s: &surefoot_server::ServiceView| Some((s.id.clone(), s.window?.verdict));
        let verdicts = self.seen.services.iter().filter_map(verdict);
        let verdicts = verdicts.map(|(id, v)| (format!("{{service=\"{}\",verdict=\"{}\"}}", escaped(&id), v.as_str()), 1.0)).collect();
        family("surefoot_latency_verdict", "gauge", "how far the present p99 can be trusted", verdicts);
        family("surefoot_decision_seconds_total", "counter", "time spent on decisions", one(self.decision_s));
        let quantile = |p: Phase, q: f64| Some((format!("{{phase=\"{}\",quantile=\"{q}\"}}", p.name()), self.phases.quantile_s(p, q)?));
        let quantiles = Phase::ALL.iter().flat_map(|p| [0.5, 0.99].map(|q| quantile(*p, q))).flatten().collect();
        family("surefoot_phase_seconds", "gauge", "time that a part of a control interval took", quantiles);
        let dropped = http::DROPPED.iter().zip(self.dropped.counts()).map(|(r, n)| (format!("{{reason=\"{r}\"}}"), n as f64)).collect();
        family("surefoot_metrics_clients_dropped_total", "counter", "connections to this port that were cut off", dropped);
        family("surefoot_log_lines_lost_total", "counter", "lines of the log that nobody took", one(out::lost() as f64));
        family("process_cpu_seconds_total", "counter", "CPU time of the daemon", cpu_s.into_iter().flat_map(one).collect());
        family(
            "process_resident_memory_bytes",
            "gauge",
            "memory of the daemon",
            rss_bytes.into_iter().flat_map(|b| one(b as f64)).collect(),
        );
        family("surefoot_decision_worst_seconds", "gauge", "longest decision", one(self.decision_worst_s));
        out
    }
}

/// A label's value, with nothing in it that acts on the terminal of who looks at the page.
fn escaped(text: &str) -> String {
    shown::line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

/// Serve until the process ends. Port 0 takes any that is free; the port taken is returned.
///
/// # Errors
/// [`Error::Failed`] for a port in use.
pub fn serve(port: u16, metrics: Arc<Mutex<Metrics>>) -> Result<u16> {
    fn held(m: &Mutex<Metrics>) -> MutexGuard<'_, Metrics> {
        m.lock().unwrap_or_else(PoisonError::into_inner)
    }
    let dropped = held(&metrics).dropped.clone();
    let status = {
        let metrics = metrics.clone();
        move || {
            // Written out after the lock is free: the control loop waits for it.
            let status = held(&metrics).status();
            shown::json(&serde_json::to_string(&status).unwrap_or_default()).into_owned()
        }
    };
    let text = move || {
        let own = own_cost();
        held(&metrics).text_with(own)
    };
    let pages = vec![
        Page { path: "/metrics", kind: "text/plain; version=0.0.4", make: Box::new(text) },
        Page { path: "/status", kind: "application/json", make: Box::new(status) },
    ];
    http::serve(port, pages, dropped).map_err(|e| {
        Error::Failed(format!("metrics_port: 127.0.0.1:{port}: {e}. Stop what listens there, give another metrics_port, or 0 for none"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// A limit has a gauge, and a field in the status, only where it is set; what every service holds has one always.
    #[test]
    fn limits_show_where_they_are_set() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let text = m.text_with((None, None));
        assert!(
            text.contains("# HELP surefoot_ways LLC ways held\n# TYPE surefoot_ways gauge\nsurefoot_ways{service=\"web\"} 4\n"),
            "{text}"
        );
        assert!(text.contains("surefoot_mba_pct{service=\"web\"} 100\n") && !text.contains("surefoot_mem_limit_bytes"), "{text}");
        assert!(!serde_json::to_string(&m.status()).unwrap().contains("mem_limit_bytes"));
        m.seen.services[0].allocation.mem_limit_bytes = Some(1 << 30);
        let text = m.text_with((None, None));
        assert!(text.contains("surefoot_mem_limit_bytes{service=\"web\"} 1073741824\n") && !text.contains("surefoot_zswap"), "{text}");
        assert!(serde_json::to_string(&m.status()).unwrap().contains("\"mba_pct\":100,\"mem_limit_bytes\":1073741824,\"violation_s\""));
    }

    /// What is read of a service's memory has a gauge and a field in the status; what cannot be read has neither.
    #[test]
    fn memory_that_is_read_shows() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let shown = |m: &Metrics| (m.text_with((None, None)), serde_json::to_string(&m.status()).unwrap());
        let (text, status) = shown(&m);
        assert!(!text.contains("surefoot_memory_") && !status.contains("\"memory\""), "{text} {status}");
        m.seen.services[0].memory = surefoot_server::MemoryView { in_use_bytes: Some(8192), stall_frac: Some(0.0), ..Default::default() };
        let (text, status) = shown(&m);
        assert!(text.contains("surefoot_memory_in_use_bytes{service=\"web\"} 8192\n") && !text.contains("surefoot_memory_pool"), "{text}");
        assert!(text.contains("surefoot_memory_stall_frac{service=\"web\"} 0\n"), "{text}");
        assert!(status.contains("\"memory\":{\"in_use_bytes\":8192,\"stall_frac\":0.0}"), "{status}");
    }

    /// A service's models have a line for each kind of comparison; a figure that there is not yet has none. Without a bundle it is said that
    /// none is watched, and there is no other line.
    #[test]
    fn watched_models_show() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        let text = m.text_with((None, None));
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
        let text = m.text_with((None, None));
        let b = |kind: &str| format!("{{model=\"b\",service=\"web\",kind=\"{kind}\"}}");
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
            "surefoot_model_inputs_outside_frac{service=\"web\"} 0.75".into(),
            "surefoot_model_standing{service=\"web\",standing=\"worse-than-taught\"} 1".into(),
            "surefoot_model_oaa{service=\"web\",oaa=\"too-small\"} 1".into(),
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        assert!(!text.contains(&format!("surefoot_model_error_qos{}", b("changed"))), "{text}");
        assert!(text.contains("surefoot_phase_seconds{phase=\"watch\""), "{text}");
        assert_eq!(m.status().models, Some(vec![web]));
    }

    /// What is lent has a line for each lender, and none where nothing is configured to lend.
    #[test]
    fn what_is_lent_shows() {
        let mut m = Metrics::default();
        tick(&mut m, 0, FeedState::Idle);
        assert!(!m.text_with((None, None)).contains("_len"));
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
        let text = m.text_with((None, None));
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
        let says = |m: &Metrics, line: &str| m.text_with((None, None)).lines().any(|l| l == line);
        let violation = "surefoot_qos_violation_seconds_total{service=\"web\"} 0";
        tick(&mut m, 0, FeedState::Unknown { since_ms: 0, heard: false });
        tick(&mut m, 100, FeedState::Doubtful { since_ms: 100, why: Doubt::Workers });
        assert_eq!((m.violation_ms()["web"], m.status().services[0].violation_s), (None, None));
        assert!(!says(&m, violation) && says(&m, "surefoot_latency_doubtful{service=\"web\"} 1"));
        assert!(says(&m, "surefoot_latency_doubt_info{service=\"web\",why=\"workers\"} 1"));
        assert_eq!((m.status().services[0].doubt.as_deref(), m.status().services[0].feed.as_str()), (Some("workers"), "doubtful"));
        tick(&mut m, 200, FeedState::Idle);
        assert_eq!((m.violation_ms()["web"], m.status().services[0].violation_s), (Some(0), Some(0.0)));
        assert!(says(&m, violation) && says(&m, "surefoot_latency_doubtful{service=\"web\"} 0"));
    }
}
