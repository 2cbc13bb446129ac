//! What is said between a node and a policy in another process, one JSON object a line (docs/python-policies.md).
//!
//! Observations, platforms and reports stand in it as they do in every other file: there is one form of each.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use surefoot_server::{Amount, Mba, Observation, Platform, Report, ServiceId};

/// Of the lines; other fields may be added to what a node says without a new number.
pub const PROTOCOL: u32 = 1;
/// Longest line that a policy may send.
pub const MOST_ANSWER_BYTES: usize = 64 << 10;
/// Longest name or version that a policy may give itself, and longest reason, characters.
pub const MOST_NAME: usize = 64;
pub const MOST_WHY: usize = 300;
/// Most reports in one answer.
pub const MOST_REPORTS: usize = 64;

/// What a policy is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// In an evaluation, a replay or another trial.
    #[default]
    Eval,
    /// What it says is done.
    Actor,
    /// What it says is compared, and not done.
    Shadow,
}

/// Counts of core units and ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    pub core_units: u32,
    pub ways: u32,
}

impl From<Amount> for Count {
    fn from(a: Amount) -> Self {
        Count { core_units: a.cores, ways: a.ways }
    }
}

/// The first line of a connection, from the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "surefoot", rename = "hello")]
pub struct Hello<'a> {
    pub protocol: u32,
    /// Of surefootd.
    pub version: &'a str,
    pub role: Role,
    pub interval_ms: u64,
    /// Time that an answer may take, ms.
    pub limit_ms: f64,
    pub seed: u64,
    pub platform: &'a Platform,
    /// Cores in one core unit.
    pub core_unit_cores: f64,
    pub total: Count,
    /// The least that an LC service holds.
    pub least: Count,
    /// None: the platform hands out no memory bandwidth.
    pub mba: Option<Mba>,
    pub most_answer_bytes: usize,
    /// Unit of each number in a question, by its path.
    pub units: BTreeMap<&'static str, &'static str>,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// "policy": whatever else listens on the socket says something else.
    pub surefoot: String,
    pub protocol: u32,
    /// What it calls itself, for logs.
    pub name: String,
    #[serde(default)]
    pub version: Option<String>,
}

/// One line a control interval, from the node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "surefoot", rename = "decide")]
pub struct Question<'a> {
    /// From 1 on in a connection.
    pub seq: u64,
    pub seen: &'a Observation,
    /// What each LC service is to hold by the answers so far; one without a line has nothing of its own.
    pub held: BTreeMap<&'a str, Hold>,
    /// LC services without anything of their own that use the holding of the BE jobs, or else the largest.
    pub crowd: Vec<&'a str>,
    pub be_mba_pct: u8,
    /// What can be handed out: idle, or with the BE jobs beyond the least that they keep.
    pub free: Count,
    /// What the BE jobs lack of the least that they keep: they get it first of what is given up.
    pub be_lacks: Count,
    /// Why the last answer was left out; None: it was not.
    pub refused: Option<&'a str>,
}

/// What one LC service is to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    pub core_units: u32,
    pub ways: u32,
    /// None: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mba_pct: Option<u8>,
    /// For people: `surefootd explain` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Hold {
    pub fn amount(&self) -> Amount {
        Amount::new(self.core_units, self.ways)
    }
}

/// One line for each question, from the policy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Of the question.
    pub seq: u64,
    /// A service that is not named keeps what it holds; a newcomer stays unplaced.
    #[serde(default)]
    pub hold: BTreeMap<ServiceId, Hold>,
    #[serde(default)]
    pub crowd: Vec<ServiceId>,
    /// None: as it is.
    #[serde(default)]
    pub be_mba_pct: Option<u8>,
    #[serde(default)]
    pub reports: Vec<Report>,
    /// It could not decide: what went wrong.
    #[serde(default)]
    pub error: Option<String>,
}

/// Unit of each number in a question. `ID` stands for the id of a service; an array has the unit of its elements.
pub const UNITS: &[(&str, &str)] = &[
    ("be_lacks.core_units", "core units"),
    ("be_lacks.ways", "LLC ways"),
    ("be_mba_pct", "% of full memory bandwidth"),
    ("free.core_units", "core units"),
    ("free.ways", "LLC ways"),
    ("held.ID.core_units", "core units"),
    ("held.ID.mba_pct", "% of full memory bandwidth"),
    ("held.ID.ways", "LLC ways"),
    ("seen.bounds.ID.cpus_at_least", "CPU list"),
    ("seen.bounds.ID.cpus_at_most", "CPU list"),
    ("seen.bounds.ID.quota_at_least", "cores"),
    ("seen.bounds.ID.quota_at_most", "cores"),
    ("seen.bounds.ID.ways", "mask of ways, one an L3 domain"),
    ("seen.services.allocation.cpus", "CPU list"),
    ("seen.services.allocation.mba_pct", "% of full memory bandwidth"),
    ("seen.services.allocation.mem_limit_bytes", "bytes; null: no limit"),
    ("seen.services.allocation.quota_cores", "cores; null: no quota"),
    ("seen.services.allocation.shared_cpus", "CPU list"),
    ("seen.services.allocation.shared_ways", "mask of ways, one an L3 domain"),
    ("seen.services.allocation.ways", "mask of ways, one an L3 domain"),
    ("seen.services.allocation.zswap_max_bytes", "bytes; null: no limit"),
    ("seen.services.features.alloc_cache_mb", "MB of 2^20 bytes"),
    ("seen.services.features.alloc_cores", "cores"),
    ("seen.services.features.alloc_ways", "LLC ways"),
    ("seen.services.features.core_freq_mhz", "MHz"),
    ("seen.services.features.cpu_usage_cores", "cores"),
    ("seen.services.features.ipc", "instructions per cycle"),
    ("seen.services.features.llc_misses_per_s", "misses/s"),
    ("seen.services.features.mbl_mbps", "MB/s of 10^6 bytes"),
    ("seen.services.features.nb_cache_mb", "MB of 2^20 bytes"),
    ("seen.services.features.nb_cores", "cores"),
    ("seen.services.features.nb_mbl_mbps", "MB/s of 10^6 bytes"),
    ("seen.services.features.res_mem_mb", "MB of 2^20 bytes"),
    ("seen.services.features.virt_mem_mb", "MB of 2^20 bytes"),
    ("seen.services.feed.since_ms", "ms on the clock of t_ms"),
    ("seen.services.instr_per_s", "instructions/s"),
    ("seen.services.interval.achieved_rps", "requests/s"),
    ("seen.services.interval.count", "requests"),
    ("seen.services.interval.errors", "requests"),
    ("seen.services.interval.mean_ms", "ms"),
    ("seen.services.interval.p50_ms", "ms"),
    ("seen.services.interval.p95_ms", "ms"),
    ("seen.services.interval.p99_high_ms", "ms"),
    ("seen.services.interval.p99_low_ms", "ms"),
    ("seen.services.interval.p99_ms", "ms"),
    ("seen.services.kind.qos_target_ms", "ms"),
    ("seen.services.memory.disk_swap_ins_per_s", "pages/s"),
    ("seen.services.memory.in_use_bytes", "bytes"),
    ("seen.services.memory.pool_bytes", "bytes"),
    ("seen.services.memory.pool_swap_ins_per_s", "pages/s"),
    ("seen.services.memory.refaults_per_s", "pages/s"),
    ("seen.services.memory.stall_frac", "share of time, 0 to 1"),
    ("seen.services.memory.stored_bytes", "bytes"),
    ("seen.services.memory.swapped_bytes", "bytes"),
    ("seen.services.memory.working_set_bytes", "bytes"),
    ("seen.services.threads", "threads"),
    ("seen.services.window.achieved_rps", "requests/s"),
    ("seen.services.window.count", "requests"),
    ("seen.services.window.errors", "requests"),
    ("seen.services.window.mean_ms", "ms"),
    ("seen.services.window.p50_ms", "ms"),
    ("seen.services.window.p95_ms", "ms"),
    ("seen.services.window.p99_high_ms", "ms"),
    ("seen.services.window.p99_low_ms", "ms"),
    ("seen.services.window.p99_ms", "ms"),
    ("seen.t_ms", "ms since the start of the run (virtual), or of the daemon's server"),
    ("seq", "questions of this connection"),
];
