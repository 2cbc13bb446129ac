//! `surefootd harvest-eval`: policies below a tick on virtual primary VMs, the published experiments of SmartHarvest among them.

mod cases;
mod keep;
mod run;
mod summary;

use crate::base::cli;
use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files::{write_whole, NewFolders};
use crate::base::progress::Progress;
use crate::base::say;
use crate::base::stop;
use crate::base::utc;
use crate::eval::set_each;
use crate::eval::what::{name, nothing_to_replace};
use crate::stage::models::each_once;
use crate::stage::virtual_target::VirtualTarget;
use cases::{drawn, Asked, Case, Entry, EXPERIMENTS};
use keep::{Kept, PARTIAL};
use rayon::prelude::*;
use run::{Row, COLUMNS};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use surefoot_harvest::{Harvester, Settings};
use surefoot_io::input::{self, PROGRAM_BYTES};
use surefoot_server::settable::{numbers, Settable};
use surefoot_server::CpuSet;
use surefoot_vserver::world::Worlds;
use surefoot_vserver::EDITION;

const ROWS: &str = "rows.csv";
const WHAT: &str = "harvest.json";
const SUMMARY: &str = "summary.md";
/// What the command leaves in its folder.
const RESULTS: [&str; 3] = [ROWS, WHAT, SUMMARY];
/// Whose profiles are the shipped ones.
const PLATFORM: &str = "smartharvest-server";

/// One run: what, and by which name it is kept.
struct Run<'a> {
    case: &'a Case,
    entry: Option<&'a Entry>,
    seed: u64,
    key: String,
}

/// # Errors
/// Bad input or a failure, on one line.
pub fn eval(args: &cli::HarvestEval) -> Result<()> {
    if let Some(n) = args.threads {
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global();
    }
    each_once("--policies", &args.policies)?;
    each_once("--experiments", &args.experiments)?;
    if let Some(twice) = args.load_shares.iter().enumerate().find_map(|(i, share)| args.load_shares[..i].contains(share).then_some(share)) {
        return Err(Error::BadInput(format!("--load-shares: {twice} is named twice. Name it once")));
    }
    let at = VirtualTarget::of_platform(PLATFORM, args.profiles.as_deref())?;
    let mut bursts = at.profiles.bursts.clone();
    let worlds = args.worlds.iter().map(|w| w.parse::<Worlds>().map_err(|e| Error::BadInput(format!("--worlds {e}"))));
    let worlds: Vec<Worlds> = worlds.collect::<Result<_>>()?;
    worlds.iter().try_for_each(|w| drawn(*w, &mut bursts))?;
    let (settings, set) = settings_of(args)?;
    let settle_is_set = set.iter().any(|name| name == "window.settle_ms");
    let mover = args.mover.and_then(name);
    let policies = (!args.policies.is_empty()).then(|| args.policies.clone());
    let asked = Asked { bursts: &bursts, policies, duration_s: args.duration_s, settings, settle_is_set, mover };
    let mut cases = vec![];
    let all: Vec<String> = EXPERIMENTS.iter().map(|(n, _)| (*n).to_string()).collect();
    let named = if args.experiments.iter().any(|e| e == "all") { &all } else { &args.experiments };
    for e in named {
        cases.extend(asked.experiment(e)?);
    }
    for group in &args.primaries {
        cases.push(asked.group(group)?);
    }
    for w in &worlds {
        cases.extend(asked.worlds(*w, &args.load_shares)?);
    }
    let runs = runs_of(&cases, bursts.primary().map_err(cases::bad)?.cores, args.seeds)?;
    at.read.check("--out", RESULTS.iter().chain([&PARTIAL]).map(|name| args.out.join(name)))?;
    let _folders = NewFolders::create(&args.out)?;
    let what = json!({
        "harvest_eval": 1,
        "surefootd": env!("CARGO_PKG_VERSION"),
        "plant": EDITION,
        "program_sha256": input::bytes(Path::new("/proc/self/exe"), PROGRAM_BYTES).ok().map(|b| sha256_hex(&b)),
        "bursts_sha256": sha256_hex(format!("{bursts:?}").as_bytes()),
        "experiments": named,
        "primaries": args.primaries,
        "worlds": args.worlds,
        "load_shares": args.load_shares,
        "policies": args.policies,
        "mover": asked.mover,
        "duration_s": args.duration_s,
        "seeds": args.seeds,
        "settings": settings.changed(),
    });
    let kept = Kept::open(&args.out, &what)?;
    let before = runs.iter().filter(|r| kept.rows.contains_key(&r.key)).count() as u64;
    if !args.overwrite && before == 0 {
        nothing_to_replace(&args.out, &what, &RESULTS)?;
    }
    stop::install()?;
    let progress = Progress::new(args.progress, "harvest-eval", runs.len() as u64, before);
    let kept = Mutex::new(kept);
    let held = || kept.lock().unwrap_or_else(PoisonError::into_inner);
    runs.par_iter().try_for_each(|r| {
        if held().rows.contains_key(&r.key) {
            return Ok(());
        }
        if stop::requested() {
            return Err(held().interrupted(runs.len()));
        }
        let rows = match r.entry {
            Some(entry) => run::run(r.case, entry, &bursts, r.seed)?,
            None => run::moves(r.case, &bursts, r.seed)?,
        };
        held().add(r.key.clone(), rows)?;
        progress.case();
        Ok(())
    })?;
    progress.finish();
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    let rows: Vec<Row> = runs.iter().filter_map(|r| kept.rows.get(&r.key)).flatten().cloned().collect();
    let lines: String = rows.iter().map(Row::csv).collect::<Result<_>>()?;
    write_whole(&args.out.join(ROWS), format!("{}\n{lines}", COLUMNS.join(",")).as_bytes())?;
    let page = summary::page(&rows);
    write_whole(&args.out.join(SUMMARY), page.as_bytes())?;
    let mut finished = what;
    finished["finished_utc"] = utc::text(utc::now_ms()).into();
    write_whole(&args.out.join(WHAT), format!("{finished:#}\n").as_bytes())?;
    kept.done()?;
    if args.json {
        return say::json(&json!({ "out": args.out, "runs": runs.len(), "resumed": before, "cases": summary::cells(&rows) }));
    }
    say::print(&page)
}

/// Every run of every case, and that each can be made.
fn runs_of(cases: &[Case], vm_cores: u32, seeds: u32) -> Result<Vec<Run<'_>>> {
    let mut runs = vec![];
    let mut named = BTreeSet::new();
    for case in cases {
        if !named.insert((&case.experiment, &case.name, &case.mover)) {
            let option = if case.experiment == "worlds" { "--worlds" } else { "--primaries" };
            return Err(Error::BadInput(format!("{option}: {} is named twice. Name it once", case.name)));
        }
        let cores = vm_cores.saturating_mul(case.vms.len() as u32);
        if !(2..=CpuSet::CAPACITY).contains(&cores) {
            let (name, most) = (&case.name, CpuSet::CAPACITY);
            return Err(Error::BadInput(format!("{name}: {cores} cores of primary VMs. Name VMs with 2 to {most} cores together")));
        }
        let entries: Vec<Option<&Entry>> = if case.entries.is_empty() { vec![None] } else { case.entries.iter().map(Some).collect() };
        for entry in entries {
            if let Some(e) = entry {
                Harvester::named(&e.policy, cores, cores - 1, &e.settings).map_err(Error::BadInput)?;
            }
            for seed in 1..=u64::from(seeds) {
                let (policy, variant) = entry.map_or(("moves", ""), |e| (e.policy.as_str(), e.variant.as_str()));
                let key = [&case.experiment, &case.name, &case.mover, policy, variant].join("/") + &format!("/{seed}");
                runs.push(Run { case, entry, seed, key });
            }
        }
    }
    Ok(runs)
}

/// What `--set` says, each setting once, and the names of what was set.
fn settings_of(args: &cli::HarvestEval) -> Result<(Settings, Vec<String>)> {
    let mut settings = Settings::default();
    let named = set_each(&args.set, |text| {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("{text}: no value. Write NAME=VALUE"))?;
        let name = name.trim().strip_prefix("smartharvest.").unwrap_or(name.trim());
        let numbers = numbers(value.trim()).map_err(|x| format!("{text}: {x} is no number. Write NAME=VALUE"))?;
        settings.assign(name, &numbers)
    })?;
    Ok((settings, named))
}
