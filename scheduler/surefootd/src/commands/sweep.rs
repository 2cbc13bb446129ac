//! `surefootd sweep` and its `--plan`.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::progress::people_time;
use crate::base::say;
use crate::line;
use crate::stage::target::Target;
use crate::stage::virtual_target::{VirtualBench, VirtualTarget};
use crate::sweep::campaign::{Campaign, Strategy};
use crate::sweep::chain::{Chain, Step};
use crate::sweep::expand::{Case, Expansion, Highest};
use crate::sweep::rows::{self, Columns};
use crate::sweep::{self, saturate, Bench, Job};
use serde_json::{json, Value};
use std::collections::BTreeMap;
use std::time::Instant;

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
        sum += SEARCH_CASES.min(all - infeasible.map_or(0, |(n, _)| n)) * cases.mba_settings() as u64;
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

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Sweep) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        crate::base::stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    crate::base::stop::install()?;
    let server = cli::Server::parse(&args.server)?;
    if let Some(n) = args.threads {
        // Err only if a pool exists already, which then has the default size.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global();
    }
    let campaign = Campaign::read(&args.campaign)?;
    match server {
        cli::Server::Virtual(_) if args.relaunch => {
            Err(Error::BadInput("--relaunch: a virtual server has nothing to start. Leave it out, or give --server local".into()))
        }
        cli::Server::Virtual(_) if args.tries.is_some() => {
            Err(Error::BadInput("--tries: nothing disturbs a virtual server. Leave it out, or give --server local".into()))
        }
        cli::Server::Virtual(name) => {
            let v = VirtualTarget::open(&name, args.profiles.as_deref())?;
            campaign.check_target(Some(&v.platform.name))?;
            let target = v.target();
            let cases = Expansion::new(&campaign, &target)?.part(args.part)?;
            if args.plan {
                return plan_virtual(args, &campaign, &target, &cases, &v);
            }
            let worker = || -> sweep::Worker {
                let mut bench = VirtualBench::new(&v, &campaign.sampling);
                Box::new(move |case, rows| bench.measure(case, rows))
            };
            finish(args, &campaign, &target, &cases, Bench::Parallel(&worker))?.say()
        }
        cli::Server::Local => crate::commands::local_target::sweep(args, &campaign),
    }
}

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

fn plan_virtual(args: &cli::Sweep, campaign: &Campaign, target: &Target, cases: &Expansion, v: &VirtualTarget) -> Result<()> {
    // Speed and size of one shard's worth of cases, spread evenly, say what all of them will take.
    let n = cases.len().min(sweep::cases_per_shard(campaign, true));
    // What loads will be shares of is not known yet; what the profiles say takes as long.
    let guess = |service: &str| target.services.get(service).and_then(|s| s.max_load_rps).unwrap_or(saturate::FIRST_RPS);
    let guessed = cases.loads_to_find().into_iter().map(|l| {
        let rps = guess(&l.0);
        (l, Highest::Found { rps, others_frac: 0.0 })
    });
    let guessed = cases.clone().with_max_loads(guessed.collect());
    let mut bench = VirtualBench::new(v, &campaign.sampling);
    let mut columns = Columns::new(&campaign.name, &target.platform.name, campaign.finds_loads());
    let (mut walk, mut rows) = (guessed.walk(), vec![]);
    let start = Instant::now();
    for i in 0..n {
        let case = walk.at((i as u128 * u128::from(cases.len()) / u128::from(n)) as u64);
        rows.clear();
        if case.infeasible.is_none() {
            bench.measure(case, &mut rows);
        }
        columns.push(case, &rows);
    }
    let bytes = rows::encode_samples(&columns.take()?)?.len();
    let threads = rayon::current_num_threads() as f64;
    let share = match campaign.strategy {
        Strategy::Frontier => to_measure(campaign, cases) as f64 / n as f64,
        Strategy::Exhaustive | Strategy::Random => cases.len() as f64 / n as f64,
    };
    print_plan(
        args,
        campaign,
        target,
        cases,
        start.elapsed().as_secs_f64() * share / threads,
        (bytes as f64 * share) as u64,
        &Doubts::default(),
    )
}

/// A load in words, also one that has not been found yet.
fn load(rps: f64, pct: Option<f64>) -> String {
    match pct {
        _ if rps.is_finite() => format!("{rps} RPS"),
        Some(pct) => format!("{pct} % of its max load"),
        None => "at a share of its max load,".into(),
    }
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
    let duration_s = duration_s + if target.is_virtual { 0.0 } else { to_find.len() as f64 * saturate::about_s(campaign) };
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
            "  {} {} {}, {} threads, {} cores, {} ways, MBA {} %, {nb}{why}",
            c.case_id,
            c.service,
            load(c.rps, c.load_pct),
            c.threads,
            c.cores,
            c.ways,
            c.mba_pct
        );
    }
    say::print(&page)
}
