//! `surefootd sweep`: run the cases of a campaign on one server and write them down so that nothing is lost or doubled.
//!
//! Cases are cut into shards by their number alone. A shard is computed, encoded, written whole, and only then named in
//! the journal; so whatever moment a crash hits, resume finds shards that are there with all their lines, or not at all.

pub mod campaign;
pub mod chain;
#[cfg(test)]
mod crash_tests;
pub mod expand;
mod frontier;
pub mod journal;
mod look_back;
pub mod manifest;
mod parallel;
pub mod rows;
pub mod saturate;
mod shard;
pub mod tries;

use crate::base::error::{Error, Result};
use crate::base::files;
use crate::base::progress::Progress;
use crate::base::stop;
use crate::stage::target::Target;
use crate::sweep::campaign::{sha256_hex, Campaign, Sampling, Strategy};
use crate::sweep::expand::{Case, Expansion};
use journal::Journal;
use look_back::{look_back, Shape};
use manifest::{Axes, Cases, Manifest, PlatformFacts, ServiceFacts, SCHEMA_VERSION};
use nix::fcntl::{Flock, FlockArg, OFlag};
pub use parallel::Worker;
use rows::{without_measuring, Measured};
use shard::{Keeper, Maker};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use surefoot_io::input;
use surefoot_linux::own;

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
    pub progress: crate::base::progress::Mode,
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

const MANIFEST: &str = "manifest.json";
const JOURNAL: &str = "journal.jsonl";
const SHARDS: &str = "shards";
const LOCK: &str = ".lock";
/// Longest text of a process id.
const PID_BYTES: u64 = 16;

/// The folder of a sweep, locked.
struct Folder {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    fn manifest(&self) -> PathBuf {
        self.dir.join(MANIFEST)
    }

    fn journal(&self) -> PathBuf {
        self.dir.join(JOURNAL)
    }

    fn shards(&self) -> PathBuf {
        self.dir.join(SHARDS)
    }

    fn lock(dir: &Path) -> Result<Self> {
        files::create_folder(dir)?;
        if is_of_others(dir).map_err(|e| Error::io(dir, "cannot be read", &e))? {
            let dir = dir.display();
            return Err(Error::BadInput(format!("--out {dir}: is not empty and holds no campaign. Give another folder")));
        }
        check_own(dir)?;
        let path = dir.join(LOCK);
        let opened = own::Folder::for_results(dir).and_then(|folder| folder.file_or_new(LOCK, OFlag::O_RDWR, 0o644));
        let file = opened.map_err(|e| files::own_error(&path, "cannot be opened", &e))?;
        let head = files::head(&file).map_err(|e| Error::io(&path, "cannot be read", &e))?;
        // A process id, or nothing yet.
        if head.len() as u64 > PID_BYTES || !head.trim_ascii().iter().all(u8::is_ascii_digit) {
            let path = path.display();
            return Err(Error::BadInput(format!("{path}: is there and no lock of a sweep, so it stays as it is. Give another --out")));
        }
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, e)| {
            let pid = input::all(&file, PID_BYTES).ok().and_then(|b| String::from_utf8(b).ok()).unwrap_or_default();
            let pid = if pid.trim().is_empty() { "unknown" } else { pid.trim() };
            Error::Failed(format!(
                "{}: another sweep (pid {pid}) is writing here ({e}). Wait for it, stop it, or use another --out",
                dir.display()
            ))
        })?;
        // The pid is for that message only; a full disk must not stop a resume here.
        let _ = lock
            .set_len(0)
            .and_then(|()| lock.seek(SeekFrom::Start(0)))
            .and_then(|_| lock.write_all(std::process::id().to_string().as_bytes()));
        Ok(Folder { dir: dir.into(), _lock: lock })
    }
}

/// That no file of the data set is others' too: what is appended to a file that DVC linked is appended to the version in DVC's cache.
fn check_own(dir: &Path) -> Result<()> {
    let is_shared = |p: &PathBuf| p.symlink_metadata().is_ok_and(|m| m.is_symlink() || m.is_file() && m.nlink() > 1);
    let shards = dir.join(SHARDS).read_dir().into_iter().flatten().flatten().map(|e| e.path());
    match [dir.join(MANIFEST), dir.join(JOURNAL)].into_iter().chain(shards).find(is_shared) {
        None => Ok(()),
        Some(path) => Err(Error::BadInput(format!(
            "{}: is a link, or a file of more names (hard links): going on would change what else they lead to, e.g. a version in DVC's cache. \
             Give the folder files of its own: dvc unprotect it, as `dvc add` was given it; without DVC: cp -rL to a new folder",
            path.display()
        ))),
    }
}

/// Whether a folder has something in it that no sweep left: without a manifest a sweep had not begun, and one that a kill ended before that
/// left nothing but its lock and empty places. What a lost manifest means is said with the journal.
fn is_of_others(dir: &Path) -> std::io::Result<bool> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    if is_there(MANIFEST) || dir.join(JOURNAL).metadata().is_ok_and(|m| m.len() > 0) {
        return Ok(false);
    }
    let half_written = format!("{MANIFEST}{}", files::TEMPORARY);
    for entry in dir.read_dir()? {
        let entry = entry?;
        let empty = || entry.path().read_dir().is_ok_and(|mut d| d.next().is_none());
        match entry.file_name().to_str() {
            Some(LOCK | JOURNAL) => {}
            Some(SHARDS) if empty() => {}
            Some(n) if n == half_written => {}
            _ => return Ok(true),
        }
    }
    Ok(false)
}

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
    let per_shard = cases_per_shard(job.campaign, job.target.is_virtual);
    let range = |shard: u32| u64::from(shard) * per_shard..(u64::from(shard) * per_shard + per_shard).min(job.cases.len());
    let shape = match job.campaign.strategy {
        Strategy::Frontier => Shape::Chains(frontier::Pieces::of(job, per_shard)),
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
    let p = &t.platform;
    let platform = PlatformFacts {
        name: p.name.clone(),
        cores: p.managed.len(),
        ways: p.ways(),
        mb_per_way: p.mb_per_way(),
        core_step: p.core_step,
        mba: p.mba.is_some(),
    };
    let mut spec = c.canonical();
    let with_neighbours = c.sweep.neighbours.count.iter().any(|n| *n > 0);
    // Only what the results depend on: neighbours may be any service of the catalogue.
    let used = |name: &String| with_neighbours || name.starts_with("platform ") || job.cases.services().any(|s| s == name);
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
