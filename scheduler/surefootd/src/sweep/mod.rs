//! `surefootd sweep`: run the cases of a campaign on one server and write them down so that nothing is lost or doubled.
//!
//! Cases are cut into shards by their number alone. A shard is computed, encoded, written whole, and only then named in
//! the journal; so whatever moment a crash hits, resume finds shards that are there with all their lines, or not at all.

pub mod campaign;
pub mod chain;
#[cfg(test)]
mod crash_tests;
pub mod expand;
mod folder;
mod frontier;
pub mod job;
pub mod journal;
pub mod limits;
pub mod local_bench;
mod look_back;
pub mod manifest;
mod parallel;
pub mod plan;
pub mod rows;
pub mod saturate;
mod shard;
pub mod told;
pub mod tries;
pub mod virtual_bench;

use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files;
use crate::base::progress::Progress;
use crate::base::stop;
use crate::sweep::campaign::Strategy;
use folder::Folder;
use job::Pieces;
pub use job::{case_s, cases_per_shard, Bench, Job, Measure, Worker, LOCAL_OVERHEAD_S};
use journal::Journal;
use look_back::{look_back, Shape};
use manifest::{Axes, Cases, Manifest, PlatformFacts, ServiceFacts, SCHEMA_VERSION};
use rows::{without_measuring, Measured};
use shard::{Keeper, Maker};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Run a sweep to its end, or to the next stop signal.
///
/// # Errors
/// [`Error::BadInput`] for a folder that does not fit the campaign, [`Error::Failed`] for everything else.
pub fn run(job: &Job, bench: Bench) -> Result<Manifest> {
    locked_run(job, bench).map_err(|e| match e {
        Error::Failed(m) if m.contains("the disk is full") => Error::Failed(format!("{m}; finished cases are kept, go on with --resume")),
        e => e,
    })
}

fn locked_run(job: &Job, mut bench: Bench) -> Result<Manifest> {
    let folder = Folder::lock(job.out)?;
    let per_shard = cases_per_shard(job.campaign, job.target.is_virtual());
    let range = |shard: u32| u64::from(shard) * per_shard..(u64::from(shard) * per_shard + per_shard).min(job.cases.len());
    let shape = match job.campaign.strategy {
        Strategy::Frontier => Shape::Chains(Pieces::of(job, per_shard)),
        Strategy::Exhaustive | Strategy::Random => Shape::Ranges(job.cases.len().div_ceil(per_shard) as u32, &range),
    };
    let mut manifest = fresh_manifest(job);
    let mut before = look_back(job, &folder, &manifest, &shape)?;
    files::create_folder(&folder.shards())?;
    manifest.cases = std::mem::take(&mut before.cases);
    manifest.max_loads = std::mem::take(&mut before.max_loads);
    let mut keeper = Keeper {
        folder: &folder,
        journal: Journal::open(&folder.journal())?,
        manifest,
        shards: std::mem::take(&mut before.shards),
        last: Instant::now(),
    };
    // From here on the folder belongs to this campaign.
    keeper.write_manifest()?;
    files::sync_folder(&folder.dir)?;

    let progress = Progress::new(job.progress, &job.campaign.name, job.cases.len(), keeper.manifest.cases.done());
    let outcome = saturate::all(job, &mut bench, &mut keeper, &progress).and_then(|found| {
        let with_loads = found.map(|found| job.cases.clone().with_max_loads(found));
        let cases = with_loads.as_ref().unwrap_or(job.cases);
        let job = &Job { cases, host: BTreeMap::new(), software: BTreeMap::new(), ..*job };
        measure_all(job, bench, &shape, &before, &progress, &mut keeper)
    });
    progress.finish();
    // The first error is the one to report.
    let written = keeper.write_manifest();
    outcome?;
    written?;
    let manifest = keeper.manifest;
    if !manifest.complete {
        return Err(Error::Failed(format!(
            "{}: stopped after {} of {} cases. Go on with --resume",
            job.out.display(),
            manifest.cases.done(),
            manifest.cases.planned
        )));
    }
    Ok(manifest)
}

/// What is not finished yet.
fn measure_all(job: &Job, bench: Bench, shape: &Shape, before: &look_back::Before, progress: &Progress, keeper: &mut Keeper) -> Result<()> {
    match (shape, bench) {
        (Shape::Ranges(n, range), Bench::Parallel(worker)) => {
            parallel::run(&before.todo(*n), &|| parallel::ranges(job, *range, worker(), progress), keeper)
        }
        (Shape::Ranges(n, range), Bench::Serial(measure)) => one_by_one(job, &before.todo(*n), *range, measure, progress, keeper),
        (Shape::Chains(pieces), Bench::Parallel(worker)) => {
            let todo: Vec<u32> = before.open_chains(job.cases.chains()).into_iter().map(|chain| pieces.shard(chain, 0)).collect();
            parallel::run(&todo, &|| frontier::chains(job, pieces, worker(), progress), keeper)
        }
        (Shape::Chains(pieces), Bench::Serial(measure)) => {
            let todo = before.open_chains(job.cases.chains());
            todo.into_iter().try_for_each(|chain| frontier::one_by_one(job, pieces, chain, before.heard(chain), measure, progress, keeper))
        }
    }
}

fn one_by_one(
    job: &Job,
    todo: &[u32],
    range: &(dyn Fn(u32) -> Range<u64> + Sync),
    measure: &mut Measure<'_>,
    progress: &Progress,
    keeper: &mut Keeper,
) -> Result<()> {
    let mut walk = job.cases.walk();
    let mut maker = Maker::new(job);
    for shard in todo {
        for i in range(*shard) {
            if stop::requested() {
                return Ok(());
            }
            let case = walk.at(i).clone();
            let m = match without_measuring(&case) {
                Some((state, why)) => Measured::without_rows(case, state, why),
                None => measure(case, &job.campaign.sampling)?,
            };
            maker.add(*shard, &m.case, m.state, m.reason.as_deref(), &m.rows, &m.marks)?;
            progress.case();
        }
        keeper.keep(vec![maker.finish(*shard)?])?;
    }
    Ok(())
}

fn fresh_manifest(job: &Job) -> Manifest {
    let (c, t) = (job.campaign, job.target);
    let platform = PlatformFacts::of(&t.platform);
    let mut spec = c.canonical();
    let with_neighbours = c.sweep.neighbours.count.iter().any(|n| *n > 0);
    // Only what the results depend on: neighbours may be any service of the catalogue. Names with a blank are no services.
    let used = |name: &String| with_neighbours || name.contains(' ') || job.cases.services().any(|s| s == name);
    let sources: BTreeMap<String, String> = t.sources.iter().filter(|(n, _)| used(n)).map(|(n, h)| (n.clone(), h.clone())).collect();
    if let Some(o) = spec.as_object_mut() {
        // Another target does not change what was measured on this one.
        o.remove("targets");
    }
    let all = serde_json::json!({ "spec": spec, "platform": platform, "sources": sources, "feature_set": t.feature_set });
    let facts = |s: &str| t.services.get(s).map(|s| ServiceFacts { qos_target_ms: s.qos_target_ms, max_load_rps: s.max_load_rps });
    Manifest {
        schema_version: SCHEMA_VERSION,
        campaign: c.name.clone(),
        campaign_hash: sha256_hex(all.to_string().as_bytes()),
        strategy: c.strategy.as_str().into(),
        part: job.cases.which_part(),
        complete: false,
        platform,
        feature_set: t.feature_set.clone(),
        max_loads: vec![],
        services: job.cases.services().filter_map(|s| Some((s.to_string(), facts(s)?))).collect(),
        software: job.software.clone(),
        host: job.host.clone(),
        shards: vec![],
        cases: Cases { planned: job.cases.len(), ..Cases::default() },
        journal_bytes: 0,
        spec,
        sources,
        axes: (c.strategy != Strategy::Exhaustive).then(|| {
            let (cores, ways) = job.cases.axes();
            Axes { cores, ways, from_least: job.cases.from_least() }
        }),
    }
}
