//! A sweep, and what came of it.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::say;
use crate::line;
use crate::stage::target::Target;
use crate::sweep::campaign::Campaign;
use crate::sweep::expand::Expansion;
use crate::sweep::{self, Bench, Job};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::Instant;

/// What came of a sweep, to be said once whatever it ran on is given back.
pub enum Told {
    Json(Value),
    Page(String),
}

impl Told {
    /// # Errors
    /// See [`say::print`].
    pub fn say(&self) -> Result<()> {
        match self {
            Told::Json(v) => say::json(v),
            Told::Page(page) => say::print(page),
        }
    }
}

/// Run the sweep.
///
/// # Errors
/// See [`sweep::run`].
pub fn finish(args: &cli::Sweep, campaign: &Campaign, target: &Target, cases: &Expansion, bench: Bench) -> Result<Told> {
    let out = args.out.as_deref().ok_or_else(|| Error::BadInput("--out: is missing. Give a folder for the samples".into()))?;
    let host = crate::base::host::facts();
    let mut software = BTreeMap::from([("surefootd".to_string(), env!("CARGO_PKG_VERSION").to_string())]);
    if !env!("SUREFOOT_COMMIT").is_empty() {
        software.insert("commit".to_string(), env!("SUREFOOT_COMMIT").to_string());
    }
    if let Some(edition) = target.plant {
        software.insert("plant".to_string(), edition.to_string());
    }
    let start = Instant::now();
    let job = Job { campaign, target, cases, out, resume: args.resume, progress: args.progress, host, software };
    let m = sweep::run(&job, bench)?;
    let rows: u64 = m.shards.iter().map(|s| s.rows).sum();
    let elapsed_s = start.elapsed().as_secs_f64();
    let c = &m.cases;
    if args.json {
        return Ok(Told::Json(json!({
            "out": out, "campaign": m.campaign, "campaign_hash": m.campaign_hash, "platform": m.platform.name, "rows": rows,
            "shards": m.shards.len(), "cases": m.cases, "max_loads": m.max_loads, "elapsed_s": elapsed_s,
        })));
    }
    let mut page = String::new();
    line!(page, "{}: {} on {}: {} cases, {rows} rows, {elapsed_s:.1} s", out.display(), m.campaign, m.platform.name, c.planned);
    line!(
        page,
        "measured {}, infeasible {}, client-limited {}, overloaded {}, failed {}, skipped {}",
        c.measured,
        c.infeasible,
        c.client_limited,
        c.overloaded,
        c.failed,
        c.skipped
    );
    if rows > 0 && c.uncounted_rows == 0 {
        line!(page, "usable rows: {} of {rows}", c.usable_rows);
    }
    for m in &m.max_loads {
        let others = if m.others_frac > 0.05 {
            format!(", while others took {:.0} % of the CPU time left over", 100.0 * m.others_frac)
        } else {
            String::new()
        };
        if let Some(rps) = m.max_load_rps {
            line!(page, "max load of {} with {} threads: {rps} RPS{others}", m.service, m.threads);
        }
    }
    if c.disturbed + c.unsettled > 0 {
        line!(page, "with a mark in journal.jsonl: disturbed {}, unsettled {}", c.disturbed, c.unsettled);
    }
    c.reasons.iter().for_each(|r| line!(page, "  {} x {}", r.cases, r.reason));
    Ok(Told::Page(page))
}
