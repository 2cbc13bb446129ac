//! `surefootd eval`: closed-loop comparison of policies on virtual servers.

mod blame;
mod columns;
mod experience;
mod harm;
pub mod harvest;
mod journal;
mod lines;
pub mod phases;
pub mod run;
mod scene;
mod what;

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::files::{write_whole, NewFolders};
use crate::base::progress::Progress;
use crate::base::say;
use crate::base::stop;
use crate::base::utc;

use crate::base::parquet::{encode, parquet_properties};
use crate::line;
use crate::stage::inputs::{Inputs, News};
use crate::stage::models::{bundle_sources, each_once, policy_of};
use crate::stage::moment::Moment;
use crate::stage::socket::path_of;
use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use columns::{csv, Column, COLUMNS};
use experience::{is_taught, Kept, Pupil};
use harm::Misled;
use journal::{Journal, PARTIAL};
use parquet::arrow::ArrowWriter;
use rayon::prelude::*;
use run::EvalRow;
use scene::{places, scenes, Scene};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use surefoot_learn::Bundle;
use surefoot_policy::{remote, BundleModels, ModelSet, Policy, Settings};
use surefoot_server::settable::Settable;
use surefoot_server::window::MIN_COUNT_P99;
use surefoot_server::{Number, Platform, Quantity, QUANTITIES};

/// Schema of the eval rows, in column order.
pub fn row_schema() -> Schema {
    Schema::new(COLUMNS.iter().map(Column::field).collect::<Vec<_>>())
}

/// Schema of the time lines, in column order.
pub fn timeline_schema() -> Schema {
    let f = |n: &str, t: DataType, nullable| Field::new(n, t, nullable);
    use DataType::{Float64, Int64, Utf8};
    let mut fields = vec![
        f("workload", Utf8, false),
        f("policy", Utf8, false),
        f("seed", Int64, false),
        f("t_ms", Int64, false),
        f("service", Utf8, false),
        f("kind", Utf8, false),
        f("p99_ms", Float64, true),
        f("qos_target_ms", Float64, true),
        f("load", Float64, true),
    ];
    fields.extend(QUANTITIES.iter().map(|q| f(q.key, held_type(q), q.limit)));
    fields.push(f("instr_per_s", Float64, true));
    Schema::new(fields)
}

/// Type of the column of what services hold.
fn held_type(q: &Quantity) -> DataType {
    match q.number {
        Number::Real => DataType::Float64,
        Number::Whole => DataType::Int32,
        Number::Bytes => DataType::Int64,
    }
}

/// The column of what services hold, one of [`QUANTITIES`].
fn held_column(m: &[Moment], at: usize) -> ArrayRef {
    let q = &QUANTITIES[at];
    let values = m.iter().map(|m| q.in_column(m.held[at]));
    match q.number {
        Number::Real => Arc::new(Float64Array::from_iter(values)),
        Number::Whole => Arc::new(Int32Array::from_iter(values.map(|v| v.map(|v| v as i32)))),
        Number::Bytes => Arc::new(Int64Array::from_iter(values.map(|v| v.map(|v| v as i64)))),
    }
}

const ROWS: &str = "rows.parquet";
const ROWS_CSV: &str = "rows.csv";
const TIMELINES: &str = "timelines.parquet";
/// What an evaluation leaves in its folder.
const RESULTS: [&str; 4] = [ROWS, ROWS_CSV, TIMELINES, what::FILE];

/// # Errors
/// Bad input or a failure, on one line.
pub fn eval(args: &cli::Eval) -> Result<()> {
    if let Some(n) = args.threads {
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global();
    }
    each_once("--policies", &args.policies)?;
    if args.harm == Some(cli::Harm::NoModels) {
        if let Some(option) = args.bundle.as_ref().map(|_| "--bundle").or(args.bundles.as_ref().map(|_| "--bundles")) {
            return Err(Error::BadInput(format!("--harm no-models: no model is asked. Leave {option} out")));
        }
    }
    let places = places(args)?;
    let settings = settings_of(args)?;
    for p in &args.policies {
        places.iter().try_for_each(|place| made(p, &place.at.platform, place.bundle.as_deref(), &settings, 1, args).map(drop))?;
    }
    let experience = args.experience.as_deref().map(|folder| Kept::new(folder, args)).transpose()?;
    let bundles = args.bundle.as_deref().or(args.bundles.as_deref());
    let read = places[0].at.read.clone().with(&bundle_sources(bundles, args.trust.as_deref()));
    let (scenes, read) = scenes(args, &places, read)?;
    read.check("--out", RESULTS.iter().chain([&PARTIAL]).map(|name| args.out.join(name)))?;
    let _folders = NewFolders::create(&args.out)?;
    let _more = args.experience.as_deref().map(NewFolders::create).transpose()?;
    let what = what::of(args, &places, &settings, &scenes);
    let journal = Journal::open(&args.out, &what)?;
    // What an interrupted run of this command was told to replace it goes on replacing.
    if !args.overwrite && journal.before() == 0 {
        what::nothing_to_replace(&args.out, &what, &RESULTS)?;
    }
    let mut runs = vec![];
    for s in &scenes {
        for p in &args.policies {
            runs.extend((1..=u64::from(args.seeds)).map(|seed| (s, (s.workload.name.clone(), p.clone(), seed))));
        }
    }
    if let Some(kept) = &experience {
        kept.check(runs.iter().map(|(_, case)| case), |case| journal.row(case).is_some(), args.overwrite)?;
    }
    if let Some(older) = what::to_be_replaced(&args.out, &what) {
        tracing::warn!("{older}, and this one's will replace them");
    }
    let resumed = journal.before();
    if resumed > 0 {
        tracing::info!("{resumed} of {} cases are taken from {}", runs.len(), args.out.join(PARTIAL).display());
    }
    if args.policies.iter().any(|p| surefoot_policy::takes(p).is_some()) && args.bundles.is_none() {
        let services = scenes.iter().flat_map(|s| &s.workload.lc).map(|l| l.service.as_str());
        Inputs::of(places[0].bundle.as_deref()).unlisted(services).iter().for_each(News::log);
    }
    if let Some(harm) = args.harm {
        harm::warn_of_untouched(harm, &args.policies);
    }
    stop::install()?;
    let progress = Progress::new(args.progress, "eval", runs.len() as u64, resumed);
    let mut rows: Vec<EvalRow> = vec![];
    let mut timelines = Timelines::new()?;
    let mut oracle_emu = BTreeMap::new();
    let journal = Mutex::new(journal);
    let held = || journal.lock().unwrap_or_else(PoisonError::into_inner);
    let keep = |seed| match args.timelines {
        cli::Timelines::First => seed == 1,
        cli::Timelines::All => true,
        cli::Timelines::None => false,
    };
    // In chunks, so that only the time lines of a few runs are held.
    for chunk in runs.chunks(8 * rayon::current_num_threads()) {
        for (Scene { at, workload: w, .. }, _) in chunk.iter().filter(|(_, case)| held().row(case).is_none()) {
            // Once a workload: it depends on neither policy nor seed.
            if !oracle_emu.contains_key(&w.name) && !stop::requested() {
                let known = held().oracle_emu(&w.name);
                oracle_emu.insert(w.name.clone(), known.map_or_else(|| phases::settled_emu(at, w), Ok)?);
            }
        }
        let done: Vec<Result<(EvalRow, Option<Vec<Moment>>)>> = chunk
            .par_iter()
            .map(|(Scene { at, world, bundle, workload: w, .. }, case)| {
                if let Some(row) = held().row(case) {
                    return Ok((row.clone(), None));
                }
                let (_, name, seed) = case;
                let (mut policy, learnt) = made(name, &at.platform, bundle.as_deref(), &settings, *seed, args)?;
                let (mut row, moments) = run::run(at, w, policy.as_mut(), *seed, keep(*seed))?;
                if let (Some(kept), Some(models), Some(bundle)) = (&experience, learnt, bundle) {
                    // Before its line in the journal: a run that counts as done has its file.
                    kept.write(case, &models, bundle)?;
                }
                // The name that was asked for, whatever the policy calls itself.
                row.policy.clone_from(name);
                row.world = world.map(|id| id.to_string());
                row.oracle_emu = oracle_emu.get(&w.name).copied().flatten();
                let (line, row, moments) = journal::line(row, moments);
                held().add(line.as_deref())?;
                progress.case();
                Ok((row, Some(moments)))
            })
            .collect();
        held().sync()?;
        if stop::requested() && done.iter().any(Result::is_err) {
            progress.finish();
            return Err(held().interrupted(runs.len()));
        }
        for (d, (_, case)) in done.into_iter().zip(chunk) {
            let (row, moments) = d?;
            let moments = moments.map_or_else(|| held().timeline(case), Ok)?;
            timelines.add(&row, &moments)?;
            rows.push(row);
        }
    }
    progress.finish();
    let file = |name: &str| args.out.join(name);
    if args.timelines == cli::Timelines::None {
        // An older run's would be taken for this one's.
        let _ = std::fs::remove_file(file(TIMELINES));
    } else {
        write_whole(&file(TIMELINES), &timelines.finish()?)?;
    }
    write_whole(&file(ROWS), &encode(&row_batch(&rows)?)?)?;
    write_whole(&file(ROWS_CSV), csv(&rows).as_bytes())?;
    write_whole(&file(what::FILE), format!("{:#}\n", what::finished(what.clone(), utc::now_ms())).as_bytes())?;
    journal.into_inner().unwrap_or_else(PoisonError::into_inner).done()?;
    let summary = summarise(&rows, &args.policies);
    warn_of_held(&rows, &args.policies);
    if args.json {
        let v = serde_json::json!({ "out": args.out, "platform": what["platform"], "worlds": what["worlds"], "runs": rows.len(), "resumed": resumed, "workloads": scenes.len(), "harm": args.harm.and_then(what::name), "policies": summary });
        say::json(&v)
    } else {
        say::print(&summary_page(&rows, &summary, args))
    }
}

/// Figures of decisions that were not a policy's own are not its figures.
fn warn_of_held(rows: &[EvalRow], policies: &[String]) {
    for policy in policies {
        let held = rows.iter().filter(|r| r.policy == *policy).filter_map(|r| r.held_decisions.filter(|n| *n > 0));
        let (runs, decisions) = held.fold((0, 0), |(runs, sum), n| (runs + 1, sum + n));
        if runs > 0 {
            tracing::warn!(
                "policy {policy}: {decisions} decisions of {runs} runs were not its own (column held_decisions), so these are not its figures"
            );
        }
    }
}

/// What `--set` says, each setting once and of a policy that runs.
fn settings_of(args: &cli::Eval) -> Result<Settings> {
    let mut settings = Settings::default();
    set_each(&args.set, |text| {
        let name = settings.assign_text(text)?;
        let of = name.split('.').next().unwrap_or_default();
        // These run by what is set of others, too.
        let also = |one: &str| match one {
            "cosmos-per-service" | "cosmos-static" => ["cosmos", ""],
            "surefoot-memory" => ["cosmos", "surefoot"],
            _ => ["", ""],
        };
        let reads = |one: &str| one == of || also(one).contains(&of);
        let on_socket = |p: &String| of == remote::Settings::POLICY && path_of(p).is_some();
        if !args.policies.iter().any(|p| p.split('+').any(reads) || on_socket(p)) {
            return Err(format!("{name}: {of} is not among --policies. Leave it out, or name {of} there"));
        }
        Ok(name)
    })?;
    Ok(settings)
}

/// Each `--set` once; `assign` sets one and says its full name. The names of all.
fn set_each(texts: &[String], mut assign: impl FnMut(&str) -> std::result::Result<String, String>) -> Result<Vec<String>> {
    let mut named: Vec<String> = vec![];
    for text in texts {
        let wrong = |e: String| Error::BadInput(format!("--set {e}"));
        let name = assign(text).map_err(wrong)?;
        if named.contains(&name) {
            return Err(wrong(format!("{name}: is set twice. Name it once")));
        }
        named.push(name);
    }
    Ok(named)
}

/// A policy, misled where it is to be; and OSML+'s models where what they experience is to be kept.
fn made(
    name: &str,
    platform: &Platform,
    bundle: Option<&Bundle>,
    settings: &Settings,
    seed: u64,
    args: &cli::Eval,
) -> Result<(Box<dyn Policy>, Option<Pupil>)> {
    let mut models = bundle.map(|b| ModelSet::of(b, platform)).transpose().map_err(Error::BadInput)?.unwrap_or_default();
    let mut pupil = None;
    if let Some(b) = bundle.filter(|_| args.experience.is_some() && is_taught(name)) {
        let shared = Pupil::new(BundleModels::new(b, platform).map_err(Error::BadInput)?, true);
        models.plus = Some(Box::new(shared.clone()));
        pupil = Some(shared);
    }
    let Some(harm) = args.harm else { return Ok((policy_of(name, platform, models, settings.clone(), seed)?, pupil)) };
    let models = match harm {
        cli::Harm::ShuffledA => harm::shuffled(models, platform, seed),
        cli::Harm::NoModels => ModelSet::mute(),
        cli::Harm::NoC => harm::without_c(models, false, seed),
        cli::Harm::UniformC => harm::without_c(models, true, seed),
        _ => models,
    };
    let inner = policy_of(name, platform, models, settings.clone(), seed)?;
    Ok((Box::new(Misled { inner, harm, silent: BTreeMap::new() }), pupil))
}

fn fault(e: impl std::fmt::Display) -> Error {
    Error::Failed(format!("Parquet: {e}. This is a fault of surefootd, please report it"))
}

fn row_batch(rows: &[EvalRow]) -> Result<RecordBatch> {
    let columns = COLUMNS.iter().map(|c| c.values(rows)).collect();
    RecordBatch::try_new(Arc::new(row_schema()), columns).map_err(fault)
}

/// Time lines, written run by run.
struct Timelines {
    writer: ArrowWriter<Vec<u8>>,
}

impl Timelines {
    fn new() -> Result<Self> {
        let writer = ArrowWriter::try_new(Vec::new(), Arc::new(timeline_schema()), Some(parquet_properties())).map_err(fault)?;
        Ok(Timelines { writer })
    }

    fn add(&mut self, r: &EvalRow, m: &[Moment]) -> Result<()> {
        if m.is_empty() {
            return Ok(());
        }
        let text = |f: &dyn Fn(&Moment) -> String| Arc::new(StringArray::from_iter_values(m.iter().map(f))) as ArrayRef;
        let opt = |f: fn(&Moment) -> Option<f64>| Arc::new(Float64Array::from_iter(m.iter().map(f))) as ArrayRef;
        let mut columns: Vec<ArrayRef> = vec![
            text(&|_| r.workload.clone()),
            text(&|_| r.policy.clone()),
            Arc::new(Int64Array::from_iter_values(m.iter().map(|_| r.seed as i64))),
            Arc::new(Int64Array::from_iter_values(m.iter().map(|m| m.t_ms))),
            text(&|m| m.service.clone()),
            text(&|m| if m.is_lc { "lc".into() } else { "be".into() }),
            opt(|m| m.p99_ms),
            opt(|m| m.qos_target_ms),
            opt(|m| m.load),
        ];
        columns.extend((0..QUANTITIES.len()).map(|at| held_column(m, at)));
        columns.push(opt(|m| m.instr_per_s));
        let batch = RecordBatch::try_new(Arc::new(timeline_schema()), columns).map_err(fault)?;
        self.writer.write(&batch).map_err(fault)
    }

    fn finish(self) -> Result<Vec<u8>> {
        self.writer.into_inner().map_err(fault)
    }
}

/// One policy over all its runs.
#[derive(serde::Serialize)]
struct Summary {
    policy: String,
    runs: usize,
    converged: usize,
    convergence_s_mean: Option<f64>,
    convergence_s_worst: Option<f64>,
    emu_mean: Option<f64>,
    be_throughput_mean: Option<f64>,
    be_throughput_met_mean: Option<f64>,
    emu_cosmos_mean: Option<f64>,
    /// Runs whose last window had too few requests for a p99 of some LC service.
    too_few_requests: usize,
    /// Of runs in which the latency of every LC service was known.
    qos_violation_s_mean: Option<f64>,
    self_violation_s_mean: f64,
    self_violation_settled_s_mean: Option<f64>,
    reclaim_crossings: i64,
    deprive_crossings: i64,
    actions_per_min_settled_mean: Option<f64>,
    actions_mean: f64,
    decision_us_p50: Option<f64>,
    decision_us_p99: Option<f64>,
}

fn mean(l: &[f64]) -> Option<f64> {
    (!l.is_empty()).then(|| l.iter().sum::<f64>() / l.len() as f64)
}

fn summarise(rows: &[EvalRow], policies: &[String]) -> Vec<Summary> {
    let one = |p: &String| {
        let mine: Vec<&EvalRow> = rows.iter().filter(|r| r.policy == *p).collect();
        let all = |f: fn(&EvalRow) -> Option<f64>| mine.iter().filter_map(|r| f(r)).collect::<Vec<f64>>();
        let most = |l: Vec<f64>| l.into_iter().max_by(f64::total_cmp);
        Summary {
            policy: p.clone(),
            runs: mine.len(),
            converged: mine.iter().filter(|r| r.converged).count(),
            convergence_s_mean: mean(&all(|r| r.convergence_s)),
            convergence_s_worst: most(all(|r| r.convergence_s)),
            emu_mean: mean(&all(|r| r.emu)),
            be_throughput_mean: mean(&all(|r| r.be_throughput)),
            be_throughput_met_mean: mean(&all(|r| r.be_throughput_met)),
            emu_cosmos_mean: mean(&all(|r| r.emu_cosmos)),
            too_few_requests: mine.iter().filter(|r| r.window_requests.is_some_and(|n| n < MIN_COUNT_P99 as i64)).count(),
            qos_violation_s_mean: mean(&all(|r| r.qos_violation_s)),
            self_violation_s_mean: mean(&all(|r| Some(r.self_violation_s))).unwrap_or(0.0),
            self_violation_settled_s_mean: mean(&all(|r| r.self_violation_settled_s)),
            reclaim_crossings: mine.iter().map(|r| r.reclaim_crossings).sum(),
            deprive_crossings: mine.iter().map(|r| r.deprive_crossings).sum(),
            actions_per_min_settled_mean: mean(&all(|r| r.actions_per_min_settled)),
            actions_mean: mean(&all(|r| Some(r.actions as f64))).unwrap_or(0.0),
            decision_us_p50: mean(&all(|r| r.decision_us_p50)),
            decision_us_p99: most(all(|r| r.decision_us_p99)),
        }
    };
    policies.iter().map(one).collect()
}

fn show(x: Option<f64>, digits: usize) -> String {
    x.map_or("-".to_string(), |x| format!("{x:.digits$}"))
}

fn runs_of_seed_1(page: &mut String, rows: &[EvalRow], args: &cli::Eval) {
    line!(page, "runs with seed 1{}:", if args.seeds > 1 { format!(" of {}", args.seeds) } else { String::new() });
    line!(
        page,
        "{:<24} {:<14} {:>4} {:>10} {:>6} {:>6} {:>12} {:>8}",
        "workload",
        "policy",
        "seed",
        "converged",
        "EMU",
        "BE",
        "violation s",
        "actions"
    );
    for r in rows.iter().filter(|r| r.seed == 1) {
        let converged = if r.converged { format!("{} s", show(r.convergence_s, 1)) } else { "no".into() };
        let (emu, be) = (show(r.emu, 2), show(r.be_throughput, 2));
        line!(
            page,
            "{:<24} {:<14} {:>4} {converged:>10} {emu:>6} {be:>6} {:>12} {:>8}",
            r.workload,
            r.policy,
            r.seed,
            show(r.qos_violation_s, 1),
            r.actions
        );
    }
}

fn summary_page(rows: &[EvalRow], summary: &[Summary], args: &cli::Eval) -> String {
    let mut page = String::new();
    if let Some(harm) = args.harm.and_then(what::name) {
        line!(page, "--harm {harm}: policies were told untruths");
    }
    if args.exact {
        line!(page, "--exact: every request was simulated by itself");
    }
    if args.worlds.is_empty() {
        runs_of_seed_1(&mut page, rows, args);
    } else {
        // A line a run would be hundreds of names that mean nothing.
        let servers = rows.iter().map(|r| &r.platform).collect::<std::collections::BTreeSet<_>>().len();
        let workloads = rows.iter().map(|r| &r.workload).collect::<std::collections::BTreeSet<_>>().len();
        line!(page, "worlds {}: {workloads} workloads on {servers} drawn servers", args.worlds.join(" "));
    }
    line!(page, "\nall runs:");
    line!(
        page,
        "{:<14} {:>5} {:>10} {:>7} {:>8} {:>6} {:>6} {:>6} {:>12} {:>6} {:>9} {:>9} {:>8} {:>8}",
        "policy",
        "runs",
        "converged",
        "mean s",
        "worst s",
        "EMU",
        "BE",
        "BE met",
        "violation s",
        "own s",
        "settled s",
        "crossings",
        "us p50",
        "us p99"
    );
    for s in summary {
        line!(
            page,
            "{:<14} {:>5} {:>10} {:>7} {:>8} {:>6} {:>6} {:>6} {:>12} {:>6.1} {:>9} {:>9} {:>8} {:>8}",
            s.policy,
            s.runs,
            s.converged,
            show(s.convergence_s_mean, 1),
            show(s.convergence_s_worst, 1),
            show(s.emu_mean, 2),
            show(s.be_throughput_mean, 2),
            show(s.be_throughput_met_mean, 2),
            show(s.qos_violation_s_mean, 1),
            s.self_violation_s_mean,
            show(s.self_violation_settled_s_mean, 2),
            format!("{}+{}", s.reclaim_crossings, s.deprive_crossings),
            show(s.decision_us_p50, 1),
            show(s.decision_us_p99, 1)
        );
    }
    line!(page, "means over runs; mean s and worst s over those that converge");
    line!(page, "BE met: BE throughput, 0 while an LC service misses its target that could be served");
    line!(page, "own s: violation that the policy itself caused, settled s: the part of it after convergence (of runs that converge)");
    line!(
        page,
        "crossings A+B: times that the policy itself took an LC service across its cliff, A for BE jobs or nobody, B for LC services"
    );
    let few = summary.iter().map(|s| s.too_few_requests).sum::<usize>();
    if few > 0 {
        line!(
            page,
            "{few} of {} runs end with fewer than {MIN_COUNT_P99} requests in some window (window_requests): no p99, so not converged",
            rows.len()
        );
    }
    line!(page, "written to {}", args.out.display());
    page
}
