//! What /metrics says: every family, by the conventions of Prometheus (docs/monitoring.md has the table).
//!
//! - Times are seconds, sizes bytes, shares ratios from 0 to 1; files keep the units of their fields ([`in_base_units`]).
//! - What is unknown has no line; what is one of several states has a line for each, 1 for the present one.
//! - `kind` is what a service is: `lc` or `be`.

use super::{Compared, LendStatus, Metrics, ModelStatus, Shadow};
use crate::node::http;
use crate::node::phases::{own, Own, Phase, BOUNDS_S};
use crate::node::upper::{questions::ENDED, socket::DROPPED, What};
use crate::stage::inputs::missing;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use surefoot_io::{out, shown};
use surefoot_linux::cgroup::Knob;
use surefoot_linux::local::Value;
use surefoot_policy::remote::Held as NotOwn;
use surefoot_policy::watch::{Oaa, Standing};
use surefoot_policy::Asked;
use surefoot_server::memory::READINGS;
use surefoot_server::{ActionKind, Doubt, FeedState, Held, ServiceView, Verdict, QUANTITIES};

/// What a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// What stands behind a family's name (of a histogram its suffix, and labels in braces), and the value.
pub(super) type Lines = Vec<(String, f64)>;

/// Lines of one name.
#[derive(Clone, Debug)]
pub struct Family {
    pub name: String,
    pub kind: Kind,
    pub help: &'static str,
    lines: Lines,
}

/// Families that only a real host fills, in the order of [`Metrics::host`].
pub(super) const OF_HOST: [(&str, &str); 6] = [
    ("surefoot_refusals_total", "values that the kernel refused, or that the groups around a service did not let come into force"),
    ("surefoot_feed_taken_total", "latency datagrams that were taken"),
    ("surefoot_feed_refused_total", "latency datagrams, and pages of scraped services, that were not taken"),
    ("surefoot_foreign_changes_total", "values of ours that another program changed"),
    (
        "surefoot_resctrl_unlocked_total",
        "looks at classes and changes of them without the lock of resctrl, which another process held for too long",
    ),
    ("surefoot_stalled_seconds_total", "time for which some task waited for a resource (PSI)"),
];

/// The name of a file's field by Prometheus' conventions, and what its values are divided by.
pub(super) fn in_base_units(key: &str) -> (String, f64) {
    let ends = [("_pct", "_ratio", 100.0), ("_frac", "_ratio", 1.0), ("_per_s", "_per_second", 1.0), ("_ms", "_seconds", 1000.0)];
    let found = ends.iter().find_map(|(from, to, by)| Some((format!("{}{to}", key.strip_suffix(from)?), *by)));
    found.unwrap_or_else(|| (key.into(), 1.0))
}

/// A label's value, with nothing in it that acts on the terminal of who looks at the page.
pub(super) fn escaped(text: &str) -> String {
    shown::line(text).replace('\\', "\\\\").replace('"', "\\\"")
}

fn service(id: &str) -> String {
    format!("{{service=\"{}\"}}", escaped(id))
}

/// Labels of a service that is here, without their braces.
fn of(s: &ServiceView) -> String {
    format!("service=\"{}\",kind=\"{}\"", escaped(&s.id), if s.is_lc() { "lc" } else { "be" })
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// A line for each state, 1 for the present one.
fn states<'a>(labels: &str, key: &str, all: impl IntoIterator<Item = &'a str>, now: Option<&str>) -> Lines {
    all.into_iter().map(|state| (format!("{{{labels},{key}=\"{state}\"}}"), flag(now == Some(state)))).collect()
}

impl Metrics {
    /// Prometheus text.
    pub fn text(&self) -> String {
        self.text_with(&own())
    }

    /// The same with what the process has cost, which takes longer to read than all else.
    pub(super) fn text_with(&self, own: &Own) -> String {
        let mut page = String::new();
        for f in self.families(own).iter().filter(|f| !f.lines.is_empty()) {
            let _ = writeln!(page, "# HELP {} {}\n# TYPE {} {}", f.name, f.help, f.name, f.kind.as_str());
            for (behind, v) in &f.lines {
                let _ = writeln!(page, "{}{behind} {v}", f.name);
            }
        }
        page
    }

    /// Every family that there can be, in the order of the page; those without a line, too.
    pub fn families(&self, own: &Own) -> Vec<Family> {
        use Kind::{Counter, Gauge, Histogram};
        let mut all = vec![];
        let mut family = |name: &str, kind: Kind, help: &'static str, lines: Lines| {
            all.push(Family { name: name.into(), kind, help, lines });
        };
        let each = |f: &dyn Fn(&ServiceView) -> Option<f64>| -> Lines {
            self.seen.services.iter().filter_map(|s| Some((format!("{{{}}}", of(s)), f(s)?))).collect()
        };
        let one = |v: f64| vec![(String::new(), v)];
        let some = |v: Option<f64>| v.map(|v| (String::new(), v)).into_iter().collect::<Lines>();

        let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("SUREFOOT_COMMIT"));
        let build = vec![(format!("{{version=\"{version}\",commit=\"{commit}\"}}"), 1.0)];
        family("surefoot_build_info", Gauge, "1, with the version and the commit that the daemon is built from", build);
        let run = format!("{{policy=\"{}\",platform=\"{}\"}}", escaped(&self.policy), escaped(&self.platform));
        let run = Some((run, 1.0)).filter(|_| self.interval_ms > 0).into_iter().collect();
        family("surefoot_run_info", Gauge, "1, with the policy that decides and the platform", run);

        family("surefoot_p99_seconds", Gauge, "p99 latency over the last second", each(&|s| Some(s.window?.p99_ms / 1000.0)));
        family("surefoot_qos_target_seconds", Gauge, "QoS target on p99", each(&|s| Some(s.qos_target_ms()? / 1000.0)));
        family("surefoot_qos_met", Gauge, "1 where the p99 is within the target", each(&|s| s.qos_met().map(flag)));
        let lc = |f: &dyn Fn(&ServiceView) -> bool| each(&|s| s.is_lc().then(|| flag(f(s))));
        let help = "0 where it is not known whether the p99 is within the target";
        family("surefoot_latency_known", Gauge, help, lc(&|s| !s.latency_unknown()));
        let help = "0 for a service whose latency has not been heard of since it came";
        family("surefoot_latency_heard", Gauge, help, lc(&|s| !s.never_heard()));
        let help = "1 where something in the latency feed speaks against what it says";
        family("surefoot_latency_doubtful", Gauge, help, lc(&|s| s.feed.doubt().is_some()));
        let sets = |key: &str, words: &[&'static str], now: &dyn Fn(&ServiceView) -> Option<&'static str>| -> Lines {
            self.seen.lc().flat_map(|s| states(&of(s), key, words.iter().copied(), now(s))).collect()
        };
        let doubts = Doubt::ALL.map(Doubt::as_str);
        let help = "what speaks against a latency feed (docs/latency-feed.md)";
        family("surefoot_latency_doubt", Gauge, help, sets("why", &doubts, &|s| s.feed.doubt().map(Doubt::as_str)));
        let feed = sets("state", &FeedState::OF_LC, &|s| Some(s.feed.as_str()));
        family("surefoot_latency_feed_state", Gauge, "what is known of the latency (docs/latency-feed.md)", feed);
        let verdicts = Verdict::ALL.map(Verdict::as_str);
        let verdicts = sets("verdict", &verdicts, &|s| s.window.map(|w| w.verdict.as_str()));
        family("surefoot_latency_verdict", Gauge, "how far the present p99 can be trusted; all 0 without one", verdicts);
        let help = "requests answered per second";
        family("surefoot_achieved_requests_per_second", Gauge, help, each(&|s| s.window.map(|w| w.achieved_rps)));
        for q in &QUANTITIES {
            let (name, by) = in_base_units(q.key);
            family(&format!("surefoot_{name}"), Gauge, q.words, each(&|s| Some((q.of)(&Held::of(&s.allocation))? / by)));
        }
        for r in &READINGS {
            let (name, by) = in_base_units(r.key);
            family(&format!("surefoot_memory_{name}"), Gauge, r.words, each(&|s| Some((r.of)(&s.memory)? / by)));
        }
        family("surefoot_instructions_per_second", Gauge, "instructions per second", each(&|s| s.instr_per_s));
        let violation = self.violation_ms.iter().filter_map(|(id, ms)| Some((service(id), (*ms)? as f64 / 1000.0))).collect();
        family("surefoot_qos_violation_seconds_total", Counter, "time with p99 above the target", violation);
        let here = self.seen.services.iter().map(|s| (service(&s.id), 1.0));
        let present = here.chain(self.absent.iter().map(|id| (service(id), 0.0))).collect();
        family("surefoot_service_present", Gauge, "0 for a service of the configuration that is not here", present);
        let age = self.pods_list_age.map_or(vec![], |age| one(age.as_secs_f64()));
        family("surefoot_pods_list_age_seconds", Gauge, "time since the file with the list of pods was written", age);

        let actions = ActionKind::ALL.map(ActionKind::as_str);
        let actions = actions.map(|a| (format!("{{action=\"{a}\"}}"), self.actions.get(a).copied().unwrap_or(0) as f64)).to_vec();
        family("surefoot_actions_total", Counter, "steps that the policy took", actions);
        let held = ["yes", "no", "unknown"].iter().zip(self.expectations);
        let held = held.map(|(held, n)| (format!("{{held=\"{held}\"}}"), n as f64)).collect();
        family("surefoot_expectations_total", Counter, "actions whose effect is known, by whether what was expected came", held);
        family("surefoot_refused_plans_total", Counter, "plans that were not applied", one(self.refused_plans as f64));
        let bounded: BTreeSet<(&str, &str)> = self.limits.iter().map(|l| (l.service.as_str(), l.value.name())).collect();
        let values = || Knob::ALL.into_iter().map(Value::Knob).chain([Value::Ways]).map(Value::name);
        let value = |s: &ServiceView, v: &str| (format!("{{{},value=\"{v}\"}}", of(s)), flag(bounded.contains(&(s.id.as_str(), v))));
        let bounded = self.seen.services.iter().flat_map(|s| values().map(|v| value(s, v))).collect();
        family("surefoot_bounded", Gauge, "1 for what cannot be set of a service as a policy likes", bounded);
        for (i, (name, help)) in OF_HOST.into_iter().enumerate() {
            family(name, Counter, help, self.host.get(i).cloned().unwrap_or_default());
        }
        let help = "1 while the full disk of the state folder lacks something that only this process knows";
        family("surefoot_state_behind", Gauge, help, some(self.disk_behind.map(flag)));

        family("surefoot_interval_seconds", Gauge, "time between two decisions", one(self.interval_ms as f64 / 1000.0));
        family("surefoot_ticks_total", Counter, "control intervals", one(self.ticks as f64));
        let help = "control intervals that came half an interval late or more";
        family("surefoot_late_ticks_total", Counter, help, one(self.late_ticks as f64));
        let help = "time that a part of a control interval took";
        family("surefoot_phase_duration_seconds", Histogram, help, Phase::ALL.iter().flat_map(|p| self.histogram(*p)).collect());
        family("surefoot_decision_worst_seconds", Gauge, "longest decision", one(self.decision_worst_s));

        let learning = |f: &dyn Fn(&crate::node::learning::Progress) -> Lines| self.learning.as_ref().map(f).unwrap_or_default();
        // Not a counter: a refused window takes its steps back.
        let help = "steps of on-line learning in Model-C's weights";
        family("surefoot_learning_steps", Gauge, help, learning(&|p| one(p.steps as f64)));
        let windows = learning(&|p| {
            let windows = [("kept", p.counts.kept), ("refused", p.counts.refused), ("unjudged", p.counts.unjudged)];
            windows.map(|(verdict, n)| (format!("{{verdict=\"{verdict}\"}}"), n as f64)).to_vec()
        });
        family("surefoot_learning_windows_total", Counter, "updates of Model-C by what the guard said of them", windows);
        let broken = learning(&|p| one(p.counts.broken as f64));
        family("surefoot_learning_broken_steps_total", Counter, "steps of learning that were not finite", broken);
        let parts =
            learning(&|p| [("pool", p.pool), ("held_back", p.held)].map(|(part, n)| (format!("{{part=\"{part}\"}}"), n as f64)).to_vec());
        family("surefoot_experience_transitions", Gauge, "experience of Model-C", parts);
        let left_out = learning(&|p| one(p.counts.left_out as f64));
        family("surefoot_experience_left_out_total", Counter, "transitions that were out of range", left_out);

        let asked = self.seen.lc().filter(|_| !self.inputs.is_empty());
        let missing = asked.map(|s| (service(&s.id), missing(&self.inputs, s).count() as f64)).collect();
        let help = "inputs of the models that are not measured: above 0 models have no answer, and a rule of thumb stands in";
        family("surefoot_model_inputs_missing", Gauge, help, missing);
        let help = "0 where there is no bundle, and so no model to watch";
        family("surefoot_models_watched", Gauge, help, one(flag(self.models.is_some())));
        let compared = |f: fn(&Compared) -> Option<f64>| -> Lines {
            let mut lines = vec![];
            for m in self.models.iter().flatten() {
                for (kind, of) in [("held", &m.held), ("changed", &m.changed), ("overloaded", &m.overloaded)] {
                    let labels = || format!("{{model=\"b\",service=\"{}\",comparison=\"{kind}\"}}", escaped(&m.service));
                    lines.extend(f(of).map(|v| (labels(), v)));
                }
            }
            lines
        };
        let help = "QoS that a model said set against QoS that was seen";
        family("surefoot_model_comparisons_total", Counter, help, compared(|c| Some(c.comparisons as f64)));
        let help = "comparisons in which the target was missed";
        family("surefoot_model_missed_total", Counter, help, compared(|c| Some(c.missed as f64)));
        let help = "comparisons in which it was missed, and the model had said that it is met";
        family("surefoot_model_false_met_total", Counter, help, compared(|c| Some(c.false_met as f64)));
        let help = "absolute error of QoS, capped at 1, over the last comparisons";
        family("surefoot_model_error_qos", Gauge, help, compared(|c| c.error_qos));
        let help = "the same with its sign: above 0 the model says too much";
        family("surefoot_model_bias_qos", Gauge, help, compared(|c| c.bias_qos));
        let help = "the error that this is measured by: of the lab's test, or of the first comparisons";
        family("surefoot_model_taught_error_qos", Gauge, help, compared(|c| c.taught_qos));
        let watched = |f: fn(&ModelStatus) -> Option<f64>| -> Lines {
            self.models.iter().flatten().filter_map(|m| Some((service(&m.service), f(m)?))).collect()
        };
        family("surefoot_model_drift", Gauge, "error now / taught, of the kind that is worse", watched(|m| m.drift));
        let help = "inputs of Model-B that lie outside of what it was taught with";
        family("surefoot_model_inputs_outside", Gauge, help, watched(|m| Some(m.inputs_outside as f64)));
        let help = "share of the last looks with such an input";
        family("surefoot_model_inputs_outside_ratio", Gauge, help, watched(|m| Some(m.inputs_outside_frac)));
        let words = |key: &str, all: &[&'static str], f: fn(&ModelStatus) -> &str| -> Lines {
            let labels = |m: &ModelStatus| format!("service=\"{}\"", escaped(&m.service));
            self.models.iter().flatten().flat_map(|m| states(&labels(m), key, all.iter().copied(), Some(f(m)))).collect()
        };
        let standings = words("standing", &Standing::ALL.map(Standing::as_str), |m| m.standing.as_str());
        family("surefoot_model_standing", Gauge, "how models do for a service", standings);
        let areas = words("oaa", &Oaa::ALL.map(Oaa::as_str), |m| m.oaa.as_str());
        family("surefoot_model_oaa", Gauge, "Model-A's OAA by what was seen at the load", areas);

        let interval_s = self.interval_ms as f64 / 1000.0;
        let shadow = |f: &dyn Fn(&Shadow) -> Option<f64>| -> Lines {
            self.shadows.iter().filter_map(|(name, s)| Some((format!("{{policy=\"{}\"}}", escaped(name)), f(s)?))).collect()
        };
        let help = "cores of LC services that a policy in the shadow would hold otherwise";
        family("surefoot_shadow_disagreement_cores", Gauge, help, shadow(&|s| Some(s.last.cores)));
        let help = "LLC ways of LC services that a policy in the shadow would hold otherwise";
        family("surefoot_shadow_disagreement_ways", Gauge, help, shadow(&|s| Some(s.last.ways)));
        family("surefoot_shadow_be_cores", Gauge, "cores that BE jobs would hold on top under it", shadow(&|s| Some(s.last.be_cores)));
        let help = "QoS, capped at 1 and summed over LC services, that Model-B predicts under it and that is not there";
        family("surefoot_shadow_regret_qos", Gauge, help, shadow(&|s| s.last.regret_qos));
        let regret = shadow(&|s| Some(s.so_far.regret_qos_s(interval_s)));
        family("surefoot_shadow_regret_qos_seconds_total", Counter, "the same over time", regret);
        let plans = shadow(&|s| Some(s.so_far.plans() as f64));
        family("surefoot_shadow_plans_total", Counter, "ticks on which it would have done something", plans);

        let asked = |f: fn(&Asked) -> u64| -> Lines {
            self.asked.iter().map(|(name, a)| (format!("{{policy=\"{}\"}}", escaped(name)), f(a) as f64)).collect()
        };
        let help = "decisions that a policy in another process was to take";
        family("surefoot_policy_decisions_total", Counter, help, asked(|a| a.decisions));
        let why = |(name, a): (&String, &Asked)| {
            let labels = |why: NotOwn| format!("{{policy=\"{}\",reason=\"{}\"}}", escaped(name), why.as_str());
            NotOwn::ALL.iter().zip(a.held).map(|(why, n)| (labels(*why), n as f64)).collect::<Lines>()
        };
        let held = self.asked.iter().flat_map(why).collect();
        family("surefoot_policy_held_total", Counter, "decisions in its place that held the last safe plan", held);
        let help = "answers that came after their time, and were thrown away";
        family("surefoot_policy_discarded_total", Counter, help, asked(|a| a.discarded));
        family("surefoot_policy_connections_total", Counter, "connections to it", asked(|a| a.connections));

        let lends = |f: fn(&LendStatus) -> f64| -> Lines {
            let labels = |l: &LendStatus| format!("{{service=\"{}\",borrower=\"{}\"}}", escaped(&l.lender), escaped(&l.borrower));
            self.lends.iter().map(|l| (labels(l), f(l))).collect()
        };
        family("surefoot_lent_cores", Gauge, "idle cores that a service lends to a BE job now", lends(|l| f64::from(l.cores)));
        family("surefoot_lease_cores", Gauge, "cores that it may lend now", lends(|l| f64::from(l.most_cores)));
        family("surefoot_leases_total", Counter, "times that it was allowed to lend: once, and after plans", lends(|l| l.leases as f64));
        family("surefoot_lend_windows_total", Counter, "windows for which cores to keep were predicted", lends(|l| l.windows as f64));
        family("surefoot_lend_short_total", Counter, "windows that needed more cores than were predicted", lends(|l| l.short as f64));
        family("surefoot_lend_exhausted_total", Counter, "times that every core that was left was busy", lends(|l| l.exhausted as f64));
        family("surefoot_lend_stops_total", Counter, "times that waits of its threads stopped lending", lends(|l| l.stops as f64));
        family("surefoot_lend_moves_total", Counter, "times that another number of cores was lent", lends(|l| l.moves as f64));

        family("surefoot_reports_total", Counter, "reports to the upper scheduler", one(self.reports as f64));
        let u = &self.upper;
        let by = |counts: &[u64]| What::ALL.iter().zip(counts).map(|(w, n)| (format!("{{event=\"{}\"}}", w.as_str()), *n as f64)).collect();
        family("surefoot_upper_events_total", Counter, "events for the upper scheduler", by(&u.events));
        family("surefoot_upper_in_force", Gauge, "conditions that the upper scheduler was told of and that hold", by(&u.in_force));
        let word = |(how, n): (&&str, &u64)| (format!("{{word=\"{how}\"}}"), *n as f64);
        let ended = u.questions.iter().flat_map(|q| ENDED.iter().zip(q).map(word)).collect();
        family("surefoot_upper_questions_total", Counter, "questions to the upper scheduler that have a word", ended);
        family("surefoot_upper_clients", Gauge, "connections on the upper scheduler's socket", some(u.clients.map(|n| n as f64)));
        let reasons = |words: &[&str], counts: &[u64]| -> Lines {
            words.iter().zip(counts).map(|(r, n)| (format!("{{reason=\"{r}\"}}"), *n as f64)).collect()
        };
        let dropped = u.clients.map(|_| reasons(&DROPPED, &u.dropped)).unwrap_or_default();
        family("surefoot_upper_clients_dropped_total", Counter, "connections that were cut off", dropped);
        let dropped = reasons(&http::DROPPED, &self.dropped.counts());
        family("surefoot_metrics_clients_dropped_total", Counter, "connections to this port that were cut off", dropped);
        family("surefoot_log_lines_lost_total", Counter, "lines of the log that were not taken", one(out::lost() as f64));

        family("process_cpu_seconds_total", Counter, "CPU time of the daemon", some(own.cpu_s));
        family("process_resident_memory_bytes", Gauge, "memory of the daemon", some(own.rss_bytes.map(|b| b as f64)));
        family("process_virtual_memory_bytes", Gauge, "address space of the daemon", some(own.virtual_bytes.map(|b| b as f64)));
        family("process_open_fds", Gauge, "file descriptors that the daemon holds", some(own.open_fds.map(|n| n as f64)));
        family("process_max_fds", Gauge, "file descriptors that it may hold", some(own.max_fds.map(|n| n as f64)));
        family("process_start_time_seconds", Gauge, "when the daemon started, since 1970", some(own.start_s));
        all
    }

    fn histogram(&self, phase: Phase) -> Lines {
        let (name, seen) = (phase.name(), self.phases.seen(phase));
        let bounds = BOUNDS_S.iter().map(f64::to_string).chain(["+Inf".into()]);
        let buckets = bounds.zip(seen.up_to()).map(|(le, n)| (format!("_bucket{{phase=\"{name}\",le=\"{le}\"}}"), n as f64));
        let ends = [("_sum", seen.sum_s()), ("_count", seen.count() as f64)];
        buckets.chain(ends.map(|(end, v)| (format!("{end}{{phase=\"{name}\"}}"), v))).collect()
    }
}
