//! manifest.json: what a sweep's folder holds, and of what.

use super::journal::Line;
use super::rows::State;
use crate::base::error::{Error, Result};
use crate::base::files::own_error;
use crate::base::part::Part;
use crate::stage::target::VIRTUAL_SERVER;
use crate::sweep::expand::rule;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use surefoot_io::input::{self, SUMMARY_BYTES};
use surefoot_io::json;
use surefoot_linux::own::plain_file;
use surefoot_server::Platform;

pub const SCHEMA_VERSION: u32 = 1;
/// Distinct reasons that are counted by themselves.
const MOST_REASONS: usize = 100;
const OTHER_REASONS: &str = "other reasons, see journal.jsonl";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema_version: u32,
    /// Name of the campaign.
    pub campaign: String,
    /// SHA-256 of everything that decides the results: `spec`, `platform`, `sources`.
    pub campaign_hash: String,
    pub strategy: String,
    /// Which part of the campaign's cases this is; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// False while cases are missing.
    pub complete: bool,
    pub platform: PlatformFacts,
    /// "full", or "no-pmu" where hardware counters are missing.
    pub feature_set: String,
    pub services: BTreeMap<String, ServiceFacts>,
    /// What loads are per cent of, where they were found by measuring: as first found, whatever resumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub max_loads: Vec<MaxLoad>,
    pub software: BTreeMap<String, String>,
    pub host: BTreeMap<String, serde_json::Value>,
    pub shards: Vec<Shard>,
    pub cases: Cases,
    /// Length of the journal that `cases` counts; what it grew by since is not counted yet.
    #[serde(default)]
    pub journal_bytes: u64,
    /// The campaign as it was understood.
    pub spec: serde_json::Value,
    /// Hash of each profile or catalogue entry that was used.
    pub sources: BTreeMap<String, String>,
    /// Where not every cell is measured: the axes of a plane, so that labels know what is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axes: Option<Axes>,
}

/// Cores and ways that were swept, ascending. Cells that neighbours leave no room for are no part of a plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axes {
    pub cores: Vec<f64>,
    pub ways: Vec<u32>,
    /// Whether cores and ways start at the least that the platform can give.
    pub from_least: (bool, bool),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlatformFacts {
    pub name: String,
    /// Logical CPUs that services may use.
    pub cores: u32,
    /// 0 where the LLC cannot be partitioned.
    pub ways: u32,
    pub mb_per_way: f64,
    /// Cores per allocation step: 1, or 0.1 where CPU quotas stand in for whole cores.
    pub core_step: f64,
    pub mba: bool,
}

impl PlatformFacts {
    pub fn of(p: &Platform) -> Self {
        PlatformFacts {
            name: p.name.clone(),
            cores: p.managed.len(),
            ways: p.ways(),
            mb_per_way: p.mb_per_way(),
            core_step: p.core_step,
            mba: p.mba.is_some(),
        }
    }
}

/// Highest rate that met the QoS target of a service alone on all that the campaign may give it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MaxLoad {
    pub service: String,
    pub threads: u32,
    pub cores: f64,
    pub ways: u32,
    /// None: see `reason`.
    pub max_load_rps: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether it could not be measured at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Of the CPU time that the service left over on the managed CPUs, what others took meanwhile; 0: this host was quiet.
    pub others_frac: f64,
    /// The rates that were tried, in order.
    pub looks: Vec<Look>,
}

/// One short run at one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub rps: f64,
    /// None where nothing was answered, or the queue grew.
    pub p99_ms: Option<f64>,
    pub found: Found,
}

/// What a look says of its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// The QoS target is met.
    Meets,
    Misses,
    /// Less than 99 % of what was offered was completed.
    Overloaded,
    /// The load generator could not send so much.
    ClientLimited,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceFacts {
    pub qos_target_ms: f64,
    pub max_load_rps: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Relative to the folder of the manifest.
    pub file: String,
    pub rows: u64,
    pub sha256: String,
}

/// planned = measured + infeasible + client_limited + overloaded + failed + skipped, once complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cases {
    pub planned: u64,
    pub measured: u64,
    pub infeasible: u64,
    pub client_limited: u64,
    pub overloaded: u64,
    pub failed: u64,
    /// What a search did not need.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// Of all of these, those with such a mark in the journal.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub disturbed: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsettled: u64,
    /// Usable rows of all of these: valid, in a case that nothing disturbed.
    #[serde(default)]
    pub usable_rows: u64,
    /// Rows of a journal from before these were counted; they are not in `usable_rows`, whatever they are worth.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncounted_rows: u64,
    /// Cases by state and reason (without numbers).
    pub reasons: Vec<Reason>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    pub state: State,
    pub reason: String,
    pub cases: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde wants it so
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Cases {
    pub fn done(&self) -> u64 {
        self.measured + self.infeasible + self.client_limited + self.overloaded + self.failed + self.skipped
    }

    /// What a line of the journal says.
    pub fn add_line(&mut self, line: &Line) {
        let cases = line.cases.unwrap_or(1);
        self.disturbed += u64::from(line.disturbed.is_some());
        self.unsettled += u64::from(line.unsettled.is_some());
        match line.usable {
            Some(usable) => self.usable_rows += u64::from(usable),
            None => self.uncounted_rows += u64::from(line.rows),
        }
        match line.state {
            State::Measured => self.measured += cases,
            State::Infeasible => self.infeasible += cases,
            State::ClientLimited => self.client_limited += cases,
            State::Overloaded => self.overloaded += cases,
            State::Failed => self.failed += cases,
            State::Skipped => self.skipped += cases,
        }
        if let Some(reason) = &line.reason {
            self.add_reason(line.state, rule(reason), cases);
        }
    }

    /// Add what another part of the campaign counted; `planned` stays.
    pub fn merge(&mut self, other: &Cases) {
        self.measured += other.measured;
        self.infeasible += other.infeasible;
        self.client_limited += other.client_limited;
        self.overloaded += other.overloaded;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.disturbed += other.disturbed;
        self.unsettled += other.unsettled;
        self.usable_rows += other.usable_rows;
        self.uncounted_rows += other.uncounted_rows;
        other.reasons.iter().for_each(|r| self.add_reason(r.state, &r.reason, r.cases));
    }

    fn add_reason(&mut self, state: State, reason: &str, cases: u64) {
        let known = |all: &[Reason], reason: &str| all.iter().position(|r| r.state == state && r.reason == reason);
        let reason = if known(&self.reasons, reason).is_some() || self.reasons.len() < MOST_REASONS { reason } else { OTHER_REASONS };
        match known(&self.reasons, reason) {
            Some(i) => self.reasons[i].cases += cases,
            None => self.reasons.push(Reason { state, reason: reason.into(), cases }),
        }
    }
}

impl Manifest {
    /// # Errors
    /// [`Error::Failed`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).map_err(|e| Error::Failed(format!("manifest: {e}. Please report it")))?;
        text.push(b'\n');
        crate::base::files::write_whole(path, &text)
    }

    /// None if there is no such file.
    ///
    /// # Errors
    /// [`Error::BadInput`] for a manifest that cannot be understood.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match plain_file(path).and_then(|f| input::all(f, SUMMARY_BYTES)) {
            Ok(t) => t,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(own_error(path, "cannot be read", &e)),
        };
        let remedy = "Restore it from a copy, or remove this folder and measure again";
        let m: Manifest = json::from_slice(&text)
            .map_err(|e| Error::BadInput(format!("{}: line {}: corrupt manifest: {e}. {remedy}", path.display(), e.line())))?;
        if m.schema_version != SCHEMA_VERSION {
            let name = path.display();
            return Err(Error::BadInput(format!(
                "{name}: schema_version: is {}, this surefootd reads {SCHEMA_VERSION}. Use the version that wrote it, or a new folder",
                m.schema_version
            )));
        }
        Ok(Some(m))
    }

    /// Refuse to go on with something else than what was started.
    ///
    /// # Errors
    /// [`Error::BadInput`] names what changed.
    pub fn same_campaign(&self, now: &Manifest, path: &Path) -> Result<()> {
        if self.campaign_hash == now.campaign_hash && self.part == now.part {
            return Ok(());
        }
        let mut changed = vec![];
        if self.part != now.part {
            let name = |p: Option<Part>| p.map_or("all of it".to_string(), |p| p.to_string());
            changed.push(format!("part (was {}, is {})", name(self.part), name(now.part)));
        }
        differences("", &self.spec, &now.spec, &mut changed);
        if self.platform != now.platform {
            changed.push("platform".into());
        }
        let names: std::collections::BTreeSet<&String> = self.sources.keys().chain(now.sources.keys()).collect();
        let said = |n: &String| if n == VIRTUAL_SERVER { format!("edition of the {n}") } else { format!("profile of {n}") };
        changed.extend(names.into_iter().filter(|n| self.sources.get(*n) != now.sources.get(*n)).map(said));
        if changed.is_empty() {
            changed.push("campaign_hash".into());
        }
        Err(Error::BadInput(format!(
            "{}: the campaign is not the one that was started here; changed: {}. Put that back, or use another --out",
            path.display(),
            changed.join(", ")
        )))
    }
}

fn differences(at: &str, a: &serde_json::Value, b: &serde_json::Value, out: &mut Vec<String>) {
    match (a.as_object(), b.as_object()) {
        (Some(x), Some(y)) => {
            let keys: std::collections::BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            for k in keys {
                let null = serde_json::Value::Null;
                let path = if at.is_empty() { k.clone() } else { format!("{at}.{k}") };
                differences(&path, x.get(k).unwrap_or(&null), y.get(k).unwrap_or(&null), out);
            }
        }
        _ if a != b => out.push(format!("{at} (was {a}, is {b})")),
        _ => {}
    }
}
