//! What a running daemon shows of itself at /status, and what `surefootd top` draws: one JSON object.

use super::follower::Record;
use crate::node::tally::Shadowed;
use serde::{Deserialize, Serialize};
use surefoot_server::{Held, MemoryView};

/// Control intervals of which the p99 is kept.
pub const RECENT: usize = 120;
/// Actions that are kept.
pub const ACTIONS: usize = 16;

/// One instant of a daemon. What is unknown is None.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub policy: String,
    pub platform: String,
    /// CPUs that services may use.
    pub cores: f64,
    /// LLC ways; None where the host cannot partition its LLC.
    pub ways: Option<f64>,
    pub interval_ms: u64,
    /// Since the first tick.
    pub t_ms: u64,
    pub ticks: u64,
    pub refused_plans: u64,
    #[serde(default)]
    pub late_ticks: u64,
    /// Services of the configuration that are not here: not started, ended, or named wrongly.
    #[serde(default)]
    pub absent: Vec<String>,
    pub decision_mean_us: Option<f64>,
    pub services: Vec<ServiceStatus>,
    /// By name.
    #[serde(default)]
    pub shadows: Vec<ShadowStatus>,
    /// Each `[[lend]]` of the configuration.
    #[serde(default)]
    pub lends: Vec<LendStatus>,
    /// How the bundle's models do for each LC service; null without a bundle.
    #[serde(default)]
    pub models: Option<Vec<ModelStatus>>,
    /// The last ones, oldest first, each with what came of it.
    pub actions: Vec<Record>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub id: String,
    pub service: String,
    /// "lc" or "be".
    pub kind: String,
    /// Over the last second (or longer, at rates where a second has too few requests).
    pub p99_ms: Option<f64>,
    pub qos_target_ms: Option<f64>,
    /// What the latency feed says: "fresh", "idle", "coarse", "unknown", "doubtful", or "not-needed" (docs/latency-feed.md).
    pub feed: String,
    /// For how long nothing has been heard, where it is unknown.
    pub silent_s: Option<f64>,
    /// It has not been heard since it came: a feed that was never set up rather than one that has stopped.
    #[serde(default)]
    pub never_heard: bool,
    /// What speaks against its feed, where that is doubtful: "unit", "workers", ... (docs/latency-feed.md).
    #[serde(default)]
    pub doubt: Option<String>,
    /// How far that p99 can be trusted: "valid", "client-limited", ...; None without one.
    #[serde(default)]
    pub verdict: Option<String>,
    pub achieved_rps: Option<f64>,
    #[serde(flatten)]
    pub held: Held,
    /// What it does with memory; missing where nothing of that can be read.
    #[serde(default, skip_serializing_if = "MemoryView::is_unknown")]
    pub memory: MemoryView,
    /// None where its latency was never known.
    pub violation_s: Option<f64>,
    /// p99 at each of the last intervals, oldest first.
    pub recent_p99_ms: Vec<Option<f64>>,
}

/// A policy that looks on (docs/shadow.md): what it says now, as /metrics has it, and so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShadowStatus {
    /// Cores and ways that LC services would hold otherwise under it, summed.
    pub cores: f64,
    pub ways: f64,
    /// Cores that BE jobs would hold on top.
    pub be_cores: f64,
    pub regret_qos: Option<f64>,
    pub so_far: Shadowed,
}

/// Idle cores that a service lends between two plans (docs/node-config.md): now, and counted over the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LendStatus {
    pub lender: String,
    pub borrower: String,
    pub policy: String,
    /// Cores that are lent, and how many may be; 0 without a lease.
    pub cores: u32,
    pub most_cores: u32,
    /// Leases that were granted.
    pub leases: u64,
    /// Windows for which the policy chose, and those of them in which it chose less than the peak.
    pub windows: u64,
    pub short: u64,
    /// Times that every core at hand was busy, and that waits of threads stopped lending.
    pub exhausted: u64,
    pub stops: u64,
    /// Times that another number of cores was asked for.
    pub moves: u64,
    /// Why nothing can be lent now.
    pub why_not: Option<String>,
}

/// What models say of a service, against what is seen of it (docs/watched-models.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    pub service: String,
    /// "too-few", "as-taught", "worse-than-taught" or "strange-inputs".
    pub standing: String,
    /// Error now / taught; None while comparisons are too few.
    pub drift: Option<f64>,
    pub held: Compared,
    pub changed: Compared,
    pub overloaded: Compared,
    /// Inputs of Model-B outside of what it was taught with at the last look, and the share of looks with any.
    pub inputs_outside: u64,
    pub inputs_outside_frac: f64,
    /// Model-A's OAA by what was seen: "unknown", "right", "too-small" or "too-large".
    pub oaa: String,
}

/// Comparisons of one kind, counted; and smoothed over the last of them. None where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub comparisons: u64,
    pub missed: u64,
    pub false_met: u64,
    pub error_qos: Option<f64>,
    pub bias_qos: Option<f64>,
    /// The error that this is measured by: of the lab's test, or of the first comparisons.
    pub taught_qos: Option<f64>,
}
