//! What a campaign would measure, and what speaks against it: `--plan`.

use crate::base::cli;
use crate::base::error::Result;
use crate::base::progress::people_time;
use crate::base::say;
use crate::line;
use crate::stage::target::Target;
use crate::sweep::campaign::{Campaign, Strategy};
use crate::sweep::chain::{Chain, Step};
use crate::sweep::expand::{Case, Expansion, MemoryAsked};
use crate::sweep::limits::said;
use crate::sweep::saturate;
use serde_json::{json, Value};

const PREVIEW: u64 = 5;

/// Cases that a search takes for a plane of 36 x 20 cells without noise, about (docs/benchmarks.md).
const SEARCH_CASES: u64 = 12;

/// Cases to measure: all that there is room for, or about what a search will ask for.
pub fn to_measure(campaign: &Campaign, cases: &Expansion) -> u64 {
    if campaign.strategy != Strategy::Frontier {
        return cases.len() - cases.infeasible().values().sum::<u64>();
    }
    let mut sum = 0;
    for plane in (0..cases.chains()).flat_map(|c| cases.chain(c)).flatten() {
        let (all, infeasible) = cases.plane_cases(&cases.plane(plane));
        sum += SEARCH_CASES.min(all - infeasible.map_or(0, |(n, _)| n)) * cases.settings() as u64;
    }
    sum
}

/// The first cases; of a search, the first of each chain.
fn preview(campaign: &Campaign, cases: &Expansion) -> Vec<Case> {
    if campaign.strategy != Strategy::Frontier {
        return (0..cases.len().min(PREVIEW)).map(|i| cases.case(i)).collect();
    }
    let first = |chain: u32| {
        let mut chain = Chain::new(cases, chain);
        loop {
            match chain.step() {
                Step::Case(i) => return Some(cases.case(i)),
                Step::Tally(_) => {}
                Step::End => return None,
            }
        }
    };
    (0..cases.chains()).filter_map(first).take(PREVIEW as usize).collect()
}

/// A load in words, also one that has not been found yet.
fn load(rps: f64, pct: Option<f64>) -> String {
    match pct {
        _ if rps.is_finite() => format!("{rps} RPS"),
        Some(pct) => format!("{pct} % of its max load"),
        None => "at a share of its max load,".into(),
    }
}

/// Limits on memory in words, to stand before others; nothing without any.
fn memory(m: MemoryAsked) -> String {
    let pool = m.pool_bytes.map_or(String::new(), |b| format!("of it pool {}, ", said(b)));
    m.limit_bytes.map_or(String::new(), |b| format!("memory {}, {pool}", said(b)))
}

/// What a plan says against a run.
#[derive(Debug, Default)]
pub struct Doubts {
    /// Why it could not start as things stand.
    pub refusals: Vec<String>,
    /// What makes its figures doubtful, or some cases fail.
    pub warnings: Vec<String>,
}

/// Counts, estimates, what speaks against a run, and the first cases, as text or JSON.
///
/// # Errors
/// See [`say::print`].
pub fn print_plan(
    args: &cli::Sweep,
    campaign: &Campaign,
    target: &Target,
    cases: &Expansion,
    duration_s: f64,
    disk_bytes: u64,
    doubts: &Doubts,
) -> Result<()> {
    let by_service = cases.by_service();
    let infeasible = cases.infeasible();
    let excluded: u64 = infeasible.values().sum();
    let measured = to_measure(campaign, cases);
    let rows = measured * u64::from(campaign.sampling.samples);
    let preview = preview(campaign, cases);
    let to_find = cases.loads_to_find();
    let duration_s = duration_s + if target.is_virtual() { 0.0 } else { to_find.len() as f64 * saturate::about_s(campaign) };
    if args.json {
        let rules: Vec<Value> = infeasible.iter().map(|(rule, n)| json!({ "rule": rule, "cases": n })).collect();
        let preview: Vec<Value> = preview
            .iter()
            .map(|c| {
                let nb: Vec<Value> =
                    c.neighbours.iter().map(|n| json!({ "service": n.service, "cores": n.cores, "ways": n.ways, "rps": n.rps })).collect();
                json!({
                    "case_id": c.case_id, "service": c.service, "rps": c.rps, "load_pct": c.load_pct, "threads": c.threads, "cores": c.cores, "ways": c.ways,
                    "mba_pct": c.mba_pct, "neighbours": nb, "repeat": c.repeat, "infeasible": c.infeasible,
                    "mem_limit_bytes": c.memory.limit_bytes, "zswap_max_bytes": c.memory.pool_bytes,
                })
            })
            .collect();
        let v = json!({
            "campaign": campaign.name, "strategy": campaign.strategy.as_str(), "server": args.server, "platform": target.platform.name,
            "cases": cases.len(), "by_service": by_service, "infeasible": { "cases": excluded, "rules": rules }, "to_measure": measured,
            "rows": rows, "estimated_duration_s": duration_s, "estimated_disk_bytes": disk_bytes, "preview": preview,
            "warnings": doubts.warnings, "refusals": doubts.refusals, "loadgen": campaign.generator,
            "loads_to_find": to_find.iter().map(|(service, threads)| json!({ "service": service, "threads": threads })).collect::<Vec<_>>(),
        });
        return say::json(&v);
    }
    let mut page = String::new();
    line!(page, "{} on {} ({}): {} cases", campaign.name, target.platform.name, args.server, cases.len());
    by_service.iter().for_each(|(s, n)| line!(page, "  {s:<18} {n:>10}"));
    line!(page, "infeasible: {excluded}");
    infeasible.iter().for_each(|(rule, n)| line!(page, "  {n:>10} x {rule}"));
    let about = if campaign.strategy == Strategy::Frontier { "about " } else { "" };
    line!(page, "to measure: {about}{measured}, {rows} rows");
    line!(page, "about {} and {:.1} MB", people_time(duration_s), disk_bytes as f64 / 1e6);
    let on = campaign.generator.cpus.map(|c| format!(" on CPUs {c}"));
    let with = campaign.generator.threads.map(|t| format!(" with {t} sending threads each"));
    if on.is_some() || with.is_some() {
        line!(page, "load generators{}{}", on.unwrap_or_default(), with.unwrap_or_default());
    }
    if !to_find.is_empty() {
        let all: Vec<String> = to_find.iter().map(|(service, threads)| format!("{service} ({threads} threads)")).collect();
        line!(page, "max loads to be measured first: {}", all.join(", "));
    }
    doubts.warnings.iter().for_each(|w| line!(page, "warning: {w}"));
    doubts.refusals.iter().for_each(|r| line!(page, "a run will be refused: {r}"));
    line!(page, "first cases:");
    for c in preview {
        let nb: Vec<String> =
            c.neighbours.iter().map(|n| format!("{} {} {} cores {} ways", n.service, load(n.rps, None), n.cores, n.ways)).collect();
        let nb = if nb.is_empty() { "alone".to_string() } else { format!("beside {}", nb.join(", ")) };
        let why = c.infeasible.map_or(String::new(), |w| format!(" - infeasible: {w}"));
        line!(
            page,
            "  {} {} {}, {} threads, {} cores, {} ways, MBA {} %, {}{nb}{why}",
            c.case_id,
            c.service,
            load(c.rps, c.load_pct),
            c.threads,
            c.cores,
            c.ways,
            c.mba_pct,
            memory(c.memory)
        );
    }
    say::print(&page)
}
