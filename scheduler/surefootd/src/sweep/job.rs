//! What is to be swept, with what, and how it is cut into shards.

use crate::base::error::Result;
use crate::base::progress::Mode;
use crate::stage::target::Target;
use crate::sweep::campaign::{Campaign, Sampling};
use crate::sweep::expand::{Case, Expansion};
use crate::sweep::journal::Heard;
use crate::sweep::rows::{Measured, Row, State};
use std::collections::BTreeMap;
use std::path::Path;

/// Rows that a shard should have on a virtual server.
const ROWS_PER_SHARD: u64 = 32_768;

/// Time that a shard should take on a real machine: what a crash may cost.
const SHARD_S: f64 = 60.0;

/// Setting up and tearing down one case on a real machine, about.
pub const LOCAL_OVERHEAD_S: f64 = 1.5;

/// Runs cases.
pub enum Bench<'a> {
    /// Cases that do not disturb each other, on all threads; each makes its own worker.
    Parallel(&'a (dyn Fn() -> Worker<'a> + Sync)),
    /// One after another on a real machine. An error ends the sweep; what is finished is kept.
    Serial(&'a mut Measure<'a>),
}

/// Measures a case, so sampled.
pub type Measure<'a> = dyn FnMut(Case, &Sampling) -> Result<Measured> + 'a;

/// Everything about a sweep but the bench.
pub struct Job<'a> {
    pub campaign: &'a Campaign,
    pub target: &'a Target,
    pub cases: &'a Expansion,
    pub out: &'a Path,
    pub resume: bool,
    pub progress: Mode,
    pub host: BTreeMap<String, serde_json::Value>,
    pub software: BTreeMap<String, String>,
}

/// Cases of each shard; depends on the campaign alone.
pub fn cases_per_shard(campaign: &Campaign, is_virtual: bool) -> u64 {
    let s = &campaign.sampling;
    if is_virtual {
        return (ROWS_PER_SHARD / u64::from(s.samples)).max(1);
    }
    ((SHARD_S / case_s(campaign)) as u64).max(1)
}

/// Seconds that one case takes on a real machine, about.
pub fn case_s(campaign: &Campaign) -> f64 {
    let s = &campaign.sampling;
    (s.warmup_ms + s.interval_ms * u64::from(s.samples)) as f64 * 1e-3 + LOCAL_OVERHEAD_S
}

/// Measures a case: its rows go to the end of the list, its state and the reason for it come back.
pub type Worker<'a> = Box<dyn FnMut(&Case, &mut Vec<Row>) -> (State, Option<String>) + 'a>;

/// How chains are cut into shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Cases of a piece; None: a chain is one piece.
    pub cases: Option<u64>,
    /// Shard numbers of a chain.
    most: u32,
}

impl Pieces {
    /// A virtual server makes a chain in a blink; on a real machine a piece is what a crash may cost.
    pub fn of(job: &Job, per_shard: u64) -> Self {
        if job.target.is_virtual() {
            return Pieces { cases: None, most: 1 };
        }
        let of_a_chain = job.cases.len() / u64::from(job.cases.chains().max(1)) + 1;
        Pieces { cases: Some(per_shard), most: u32::try_from(of_a_chain / per_shard + 2).unwrap_or(u32::MAX) }
    }

    pub fn shard(&self, chain: u32, piece: u32) -> u32 {
        chain * self.most + piece
    }

    /// Chain and piece of a shard.
    pub fn place(&self, shard: u32) -> (u32, u32) {
        (shard / self.most, shard % self.most)
    }
}

/// One case of a search: its id, and what it told.
pub type Answer = (String, Heard);
