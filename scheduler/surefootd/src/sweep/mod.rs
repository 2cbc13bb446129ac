//! `surefootd sweep`: run the cases of a campaign on one server and write them down so that nothing is lost or doubled.
//!
//! Cases are cut into shards by their number alone. A shard is computed, encoded, written whole, and only then named in
//! the journal; so whatever moment a crash hits, resume finds shards that are there with all their lines, or not at all.

pub mod journal;
pub mod manifest;
pub mod rows;

use crate::campaign::{sha256_hex, Campaign};
use crate::error::{Error, Result};
use crate::expand::{Case, Expansion};
use crate::files;
use crate::progress::Progress;
use crate::stop;
use crate::target::Target;
use journal::{Journal, Line};
use manifest::{Cases, Manifest, PlatformFacts, ServiceFacts, Shard, SCHEMA_VERSION};
use nix::fcntl::{Flock, FlockArg};
use rayon::prelude::*;
use rows::{Measured, State};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Rows that a shard should have on a virtual server.
const ROWS_PER_SHARD: u64 = 32_768;
/// Time that a shard should take on a real machine: what a crash may cost.
const SHARD_S: f64 = 60.0;
/// Setting up and tearing down one case on a real machine, about.
pub const LOCAL_OVERHEAD_S: f64 = 1.5;
const CHECKPOINT: Duration = Duration::from_secs(2);

/// Runs cases.
pub enum Bench<'a> {
    /// Cases that do not disturb each other; one worker a thread.
    Parallel(&'a (dyn Fn() -> Worker<'a> + Sync)),
    /// One after another on a real machine. An error ends the sweep; what is finished is kept.
    Serial(&'a mut dyn FnMut(Case) -> Result<Measured>),
}

pub type Worker<'a> = Box<dyn FnMut(Case) -> Measured + 'a>;

/// Everything about a sweep but the bench.
pub struct Job<'a> {
    pub campaign: &'a Campaign,
    pub target: &'a Target,
    pub cases: &'a Expansion,
    pub out: &'a Path,
    pub resume: bool,
    pub progress: crate::progress::Mode,
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

/// The folder of a sweep, locked.
struct Folder {
    dir: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    fn manifest(&self) -> PathBuf {
        self.dir.join("manifest.json")
    }

    fn journal(&self) -> PathBuf {
        self.dir.join("journal.jsonl")
    }

    fn shards(&self) -> PathBuf {
        self.dir.join("shards")
    }

    fn lock(dir: &Path) -> Result<Self> {
        files::create_folder(dir)?;
        let path = dir.join(".lock");
        let file = OpenOptions::new().create(true).read(true).write(true).truncate(false).open(&path);
        let file = file.map_err(|e| Error::io(&path, "cannot be opened", &e))?;
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, e)| {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
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

/// Name of a shard's file, relative to the folder.
fn shard_file(shard: u32) -> String {
    format!("shards/part-{shard:05}.parquet")
}

/// What an earlier run left.
#[derive(Default)]
struct Before {
    done: Vec<bool>,
    shards: BTreeMap<u32, Shard>,
    cases: Cases,
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

fn locked_run(job: &Job, bench: Bench) -> Result<Manifest> {
    let folder = Folder::lock(job.out)?;
    let per_shard = cases_per_shard(job.campaign, job.target.is_virtual);
    let n_shards = job.cases.len().div_ceil(per_shard) as u32;
    let range = |shard: u32| u64::from(shard) * per_shard..(u64::from(shard) * per_shard + per_shard).min(job.cases.len());
    let mut manifest = fresh_manifest(job);
    let before = look_back(job, &folder, &manifest, n_shards, &range)?;
    files::create_folder(&folder.shards())?;
    manifest.cases = before.cases;
    manifest.shards = before.shards.values().cloned().collect();
    // From here on the folder belongs to this campaign.
    manifest.complete = before.done.iter().all(|d| *d);
    manifest.write(&folder.manifest())?;
    let mut journal = Journal::open(&folder.journal())?;
    files::sync_folder(&folder.dir)?;

    let progress = Progress::new(job.progress, &job.campaign.name, manifest.cases.planned, manifest.cases.done());
    let todo: Vec<u32> = (0..n_shards).filter(|s| !before.done[*s as usize]).collect();
    let mut shards = before.shards;
    let mut last = Instant::now();
    let mut keep = |shard: u32, cases: Vec<Measured>| -> Result<()> {
        if let Some(s) = write_shard(job, &folder, shard, &cases)? {
            shards.insert(shard, s);
        }
        let line = |m: &Measured| Line {
            case_id: m.case.case_id.clone(),
            state: m.state,
            reason: m.reason.clone(),
            shard,
            rows: m.rows.len() as u32,
        };
        journal.append(&cases.iter().map(line).collect::<Vec<_>>())?;
        cases.iter().for_each(|m| manifest.cases.add(m.state, m.reason.as_deref()));
        if last.elapsed() >= CHECKPOINT {
            manifest.shards = shards.values().cloned().collect();
            manifest.write(&folder.manifest())?;
            last = Instant::now();
        }
        Ok(())
    };
    let outcome = match bench {
        Bench::Parallel(worker) => in_parallel(job.cases, &todo, &range, worker, &progress, &mut keep),
        Bench::Serial(measure) => one_by_one(job.cases, &todo, &range, measure, &progress, &mut keep),
    };
    progress.finish();
    manifest.shards = shards.into_values().collect();
    manifest.complete = manifest.cases.done() == manifest.cases.planned;
    // The first error is the one to report.
    let written = manifest.write(&folder.manifest());
    outcome?;
    written?;
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

/// Compute shard by shard on all threads; a second thread encodes and writes, at most one shard behind.
fn in_parallel<'a>(
    cases: &Expansion,
    todo: &[u32],
    range: &(dyn Fn(u32) -> Range<u64> + Sync),
    worker: &(dyn Fn() -> Worker<'a> + Sync),
    progress: &Progress,
    keep: &mut (dyn FnMut(u32, Vec<Measured>) -> Result<()> + Send),
) -> Result<()> {
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel::<(u32, Vec<Measured>)>(1);
        let writer = scope.spawn(move || receive.into_iter().try_for_each(|(shard, cases)| keep(shard, cases)));
        for shard in todo {
            if stop::requested() {
                break;
            }
            let at = range(*shard);
            let done: Vec<Measured> = (at.start as usize..at.end as usize)
                .into_par_iter()
                .with_min_len(16)
                .map_init(worker, |w, i| {
                    let m = w(cases.case(i as u64));
                    progress.case();
                    m
                })
                .collect();
            // The writer left with an error: it is reported below.
            if send.send((*shard, done)).is_err() {
                break;
            }
        }
        drop(send);
        writer.join().unwrap_or_else(|_| Err(Error::Failed("the writing thread panicked. Please report it; --resume goes on".into())))
    })
}

fn one_by_one(
    cases: &Expansion,
    todo: &[u32],
    range: &dyn Fn(u32) -> Range<u64>,
    measure: &mut dyn FnMut(Case) -> Result<Measured>,
    progress: &Progress,
    keep: &mut dyn FnMut(u32, Vec<Measured>) -> Result<()>,
) -> Result<()> {
    for shard in todo {
        let mut done = vec![];
        for i in range(*shard) {
            if stop::requested() {
                return Ok(());
            }
            let case = cases.case(i);
            done.push(match case.infeasible.clone() {
                Some(why) => Measured { case, state: State::Infeasible, reason: Some(why), rows: vec![] },
                None => measure(case)?,
            });
            progress.case();
        }
        keep(*shard, done)?;
    }
    Ok(())
}

/// None for a shard without rows: it has no file.
fn write_shard(job: &Job, folder: &Folder, shard: u32, cases: &[Measured]) -> Result<Option<Shard>> {
    let rows: u64 = cases.iter().map(|c| c.rows.len() as u64).sum();
    if rows == 0 {
        return Ok(None);
    }
    let bytes = rows::encode(&rows::batch(&job.campaign.name, &job.target.platform.name, cases)?)?;
    let file = shard_file(shard);
    files::write_whole(&folder.dir.join(&file), &bytes)?;
    Ok(Some(Shard { file, rows, sha256: sha256_hex(&bytes) }))
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
        complete: false,
        platform,
        feature_set: t.feature_set.clone(),
        services: job.cases.services().filter_map(|s| Some((s.to_string(), facts(s)?))).collect(),
        software: job.software.clone(),
        host: job.host.clone(),
        shards: vec![],
        cases: Cases { planned: job.cases.len(), ..Cases::default() },
        spec,
        sources,
    }
}

/// Check and repair what an earlier run left: trim the journal, remove files that nobody vouches for.
fn look_back(job: &Job, folder: &Folder, now: &Manifest, n_shards: u32, range: &(dyn Fn(u32) -> Range<u64> + Sync)) -> Result<Before> {
    let old = Manifest::read(&folder.manifest())?;
    let started = old.is_some() || folder.journal().exists() || folder.shards().exists();
    if started && !job.resume {
        return Err(Error::BadInput(format!(
            "--out {}: holds a started sweep. Add --resume to go on with it, or use another folder",
            job.out.display()
        )));
    }
    match &old {
        Some(m) => m.same_campaign(now, &folder.manifest())?,
        None if folder.journal().metadata().is_ok_and(|m| m.len() > 0) => {
            return Err(Error::BadInput(format!(
                "{}: is missing, but there is a journal. Restore it, or remove the folder and measure again",
                folder.manifest().display()
            )));
        }
        None => {}
    }
    let told = journal::read(&folder.journal())?;
    let mut before = Before { done: vec![false; n_shards as usize], shards: BTreeMap::new(), cases: now.cases.clone() };
    // Whole shards only: lines of a shard stand together, in case order.
    let (mut at, mut keep_bytes) = (0, 0);
    while at < told.lines.len() {
        let shard = told.lines[at].shard;
        let damaged = |what: String| {
            Error::BadInput(format!(
                "{}:{}: {what}. The journal is not of this campaign or was damaged: restore it, or remove the folder and measure again",
                folder.journal().display(),
                at + 1
            ))
        };
        if shard >= n_shards || before.done[shard as usize] {
            return Err(damaged(format!("shard {shard} stands there twice or does not exist")));
        }
        let want = range(shard);
        let n = (want.end - want.start) as usize;
        if at + n > told.lines.len() {
            break;
        }
        let lines = &told.lines[at..at + n];
        for (line, i) in lines.iter().zip(want) {
            if line.shard != shard || line.case_id != job.cases.case(i).case_id {
                return Err(damaged(format!("case {} is not the one expected here", line.case_id)));
            }
        }
        let rows: u64 = lines.iter().map(|l| u64::from(l.rows)).sum();
        let file = shard_file(shard);
        let known = old.as_ref().and_then(|m| m.shards.iter().find(|s| s.file == file));
        let found = check_shard(&folder.dir, &file, rows, known)?;
        if rows == 0 || found.is_some() {
            before.done[shard as usize] = true;
            before.shards.extend(found.map(|s| (shard, s)));
            lines.iter().for_each(|l| before.cases.add(l.state, l.reason.as_deref()));
            at += n;
            keep_bytes = told.ends[at - 1];
        } else {
            // Somebody removed the shard, as the error about a bad one advises: measure it again.
            return forget(job, folder, now, n_shards, range, &told, shard);
        }
    }
    let whole = told.ends.last().copied().unwrap_or(0);
    if keep_bytes < whole + told.torn_bytes {
        tracing::info!(bytes = whole + told.torn_bytes - keep_bytes, "journal: trimmed what a crash cut off");
        journal::trim(&folder.journal(), keep_bytes)?;
    }
    remove_orphans(folder, &before)?;
    Ok(before)
}

/// Take the lines of one shard out of the journal and look again.
fn forget(
    job: &Job,
    folder: &Folder,
    now: &Manifest,
    n_shards: u32,
    range: &(dyn Fn(u32) -> Range<u64> + Sync),
    told: &journal::Told,
    shard: u32,
) -> Result<Before> {
    tracing::warn!(shard, "a shard is missing; its cases are measured again");
    let mut text = String::new();
    for line in told.lines.iter().filter(|l| l.shard != shard) {
        text.push_str(&serde_json::to_string(line).map_err(|e| Error::Failed(format!("journal line: {e}. Please report it")))?);
        text.push('\n');
    }
    files::write_whole(&folder.journal(), text.as_bytes())?;
    look_back(job, folder, now, n_shards, range)
}

/// None if the file is not there.
fn check_shard(dir: &Path, file: &str, rows: u64, known: Option<&Shard>) -> Result<Option<Shard>> {
    let path = dir.join(file);
    if rows == 0 || !path.exists() {
        return Ok(None);
    }
    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, "cannot be read", &e))?;
    let remedy = "Remove that file and run again with --resume: its cases are measured again";
    let sha256 = sha256_hex(&bytes);
    if let Some(k) = known.filter(|k| k.sha256 != sha256) {
        return Err(Error::BadInput(format!(
            "{}: sha256: is {:.12}, manifest.json says {:.12}: the shard is truncated or damaged. {remedy}",
            path.display(),
            sha256,
            k.sha256
        )));
    }
    let length = bytes.len();
    let has = rows_of(&path)
        .map_err(|e| Error::BadInput(format!("{}: no whole Parquet file ({length} bytes): {e}. {remedy}", path.display())))?;
    if has != rows {
        return Err(Error::BadInput(format!("{}: rows: has {has}, journal.jsonl says {rows}. {remedy}", path.display())));
    }
    Ok(Some(Shard { file: file.into(), rows, sha256 }))
}

fn rows_of(path: &Path) -> std::result::Result<u64, String> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let file = File::open(path).map_err(|e| e.to_string())?;
    let reader = SerializedFileReader::new(file).map_err(|e| e.to_string())?;
    Ok(reader.metadata().file_metadata().num_rows().max(0) as u64)
}

/// Temporary files, and shards that a crash left before the journal named them.
fn remove_orphans(folder: &Folder, before: &Before) -> Result<()> {
    let known: Vec<String> = before.shards.values().map(|s| s.file.clone()).collect();
    for dir in [folder.dir.clone(), folder.shards()] {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let in_shards = dir != folder.dir;
            let orphan =
                name.ends_with(files::TEMPORARY) || (in_shards && name.starts_with("part-") && !known.contains(&format!("shards/{name}")));
            if orphan {
                tracing::info!(file = %entry.path().display(), "removed: left by a crash");
                std::fs::remove_file(entry.path()).map_err(|e| Error::io(&entry.path(), "cannot be removed", &e))?;
            }
        }
    }
    Ok(())
}
