//! What an earlier run left: checked and repaired, so that a resumed sweep ends as an undisturbed one.

use super::folder::{Folder, JOURNAL, MANIFEST};
use super::job::{Answer, Job, Pieces};
use super::journal::{self, Reader};
use super::manifest::{Cases, Manifest, MaxLoad, Shard};
use super::shard::shard_file;
use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use surefoot_io::input::{self, SHARD_BYTES};
use surefoot_linux::own::{self, plain_file};

/// How a campaign is cut into shards.
pub enum Shape<'a> {
    /// So many, each a fixed range of cases.
    Ranges(u32, &'a (dyn Fn(u32) -> Range<u64> + Sync)),
    /// Chains of planes under search, each in pieces.
    Chains(Pieces),
}

/// What is finished.
#[derive(Default)]
pub struct Before {
    pub done: BTreeSet<u32>,
    pub shards: BTreeMap<u32, Shard>,
    pub cases: Cases,
    /// Max loads that were measured.
    pub max_loads: Vec<MaxLoad>,
    /// What the cases of each chain told the search, in order, and whether the chain has ended.
    chains: BTreeMap<u32, (Vec<Answer>, bool)>,
}

impl Before {
    /// Shards to make.
    pub fn todo(&self, n_shards: u32) -> Vec<u32> {
        (0..n_shards).filter(|s| !self.done.contains(s)).collect()
    }

    /// Chains that have not ended.
    pub fn open_chains(&self, n: u32) -> Vec<u32> {
        (0..n).filter(|c| self.chains.get(c).is_none_or(|(_, ended)| !ended)).collect()
    }

    /// What a chain has heard.
    pub fn heard(&self, chain: u32) -> &[Answer] {
        self.chains.get(&chain).map_or(&[], |(heard, _)| heard)
    }
}

/// All lines of one shard.
struct Told {
    shard: u32,
    rows: u64,
    cases: Cases,
    /// Where they stand in the journal.
    bytes: Range<u64>,
    heard: Vec<Answer>,
    last: bool,
}

impl Told {
    fn new(shard: u32, at: u64) -> Self {
        Told { shard, rows: 0, cases: Cases::default(), bytes: at..at, heard: vec![], last: false }
    }
}

/// Check and repair what an earlier run left: trim the journal, remove files that nobody vouches for.
///
/// # Errors
/// [`Error::BadInput`] for a folder that does not fit the campaign or is damaged, [`Error::Failed`] for everything else.
pub fn look_back(job: &Job, folder: &Folder, now: &Manifest, shape: &Shape) -> Result<Before> {
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
    let (told, length) = match shape {
        Shape::Ranges(n_shards, range) => told(job, folder, *n_shards, range)?,
        Shape::Chains(pieces) => told_by_searches(folder, pieces, job.cases.chains())?,
    };
    let known: BTreeMap<&str, &Shard> = old.iter().flat_map(|m| &m.shards).map(|s| (s.file.as_str(), s)).collect();
    let check = |t: &Told| {
        let file = shard_file(t.shard);
        check_shard(&folder.dir, &file, t.rows, known.get(file.as_str()).copied())
    };
    let found: Vec<Result<Option<Shard>>> = told.par_iter().map(check).collect();
    let max_loads = old.as_ref().map_or(vec![], |m| m.max_loads.clone());
    let mut before = Before { cases: now.cases.clone(), max_loads, ..Before::default() };
    let mut keep: Vec<Range<u64>> = vec![];
    let mut missing = false;
    for (t, found) in told.into_iter().zip(found) {
        let found = found?;
        if t.rows > 0 && found.is_none() {
            // Somebody removed the shard, as the error about a bad one advises.
            tracing::warn!(shard = t.shard, "a shard is missing; its cases are measured again");
            missing = true;
            continue;
        }
        if let Shape::Chains(pieces) = shape {
            let (chain, piece) = pieces.place(t.shard);
            // What came after a lost piece rests on it.
            if piece > 0 && !before.done.contains(&(t.shard - 1)) {
                missing = true;
                continue;
            }
            let (heard, ended) = before.chains.entry(chain).or_default();
            heard.extend(t.heard);
            *ended |= t.last;
        }
        before.done.insert(t.shard);
        before.shards.extend(found.map(|s| (t.shard, s)));
        before.cases.merge(&t.cases);
        match keep.last_mut().filter(|k| k.end == t.bytes.start) {
            Some(k) => k.end = t.bytes.end,
            None => keep.push(t.bytes),
        }
    }
    let keep_bytes = keep.last().map_or(0, |k| k.end);
    if missing {
        journal::keep_parts(&folder.journal(), &keep)?;
    } else if keep_bytes < length {
        tracing::info!(bytes = length - keep_bytes, "journal: trimmed what a crash cut off");
        journal::trim(&folder.journal(), keep_bytes)?;
    }
    remove_orphans(folder, &before)?;
    Ok(before)
}

fn damaged(folder: &Folder, line: u64, what: &str) -> Error {
    Error::BadInput(format!(
        "{}:{line}: {what}. The journal is not of this campaign or was damaged: restore it, or remove the folder and measure again",
        folder.journal().display(),
    ))
}

/// Shards whose lines are all there (they stand together, in case order), and the length of the journal in bytes.
fn told(job: &Job, folder: &Folder, n_shards: u32, range: &dyn Fn(u32) -> Range<u64>) -> Result<(Vec<Told>, u64)> {
    let mut reader = Reader::open(&folder.journal())?;
    let mut walk = job.cases.walk();
    let mut seen = vec![false; n_shards as usize];
    let mut all = vec![];
    let mut open: Option<(Told, Range<u64>)> = None;
    loop {
        let (start, number) = (reader.bytes, reader.lines + 1);
        let damaged = |what: String| damaged(folder, number, &what);
        let Some(line) = reader.next_line()? else { break };
        let (mut told, mut cases) = match open.take() {
            Some(o) => o,
            None => {
                let shard = line.shard;
                if shard >= n_shards || std::mem::replace(&mut seen[shard as usize], true) {
                    return Err(damaged(format!("shard {shard} stands there twice or does not exist")));
                }
                (Told::new(shard, start), range(shard))
            }
        };
        let expected = cases.next().is_some_and(|i| line.shard == told.shard && line.case_id == walk.at(i).case_id);
        if !expected {
            return Err(damaged(format!("case {} is not the one expected here", line.case_id)));
        }
        told.rows += u64::from(line.rows);
        told.cases.add_line(&line);
        told.bytes.end = reader.bytes;
        if cases.is_empty() {
            all.push(told);
        } else {
            open = Some((told, cases));
        }
    }
    Ok((all, reader.bytes + reader.torn_bytes))
}

/// As [`told`], for searches: the first line of a shard says how many there are. Whether a case is the one that the search asks for is
/// seen when the search hears of it again.
fn told_by_searches(folder: &Folder, pieces: &Pieces, chains: u32) -> Result<(Vec<Told>, u64)> {
    let mut reader = Reader::open(&folder.journal())?;
    let mut seen = BTreeSet::new();
    let mut all = vec![];
    let mut open: Option<(Told, u32)> = None;
    loop {
        let (start, number) = (reader.bytes, reader.lines + 1);
        let damaged = |what: String| damaged(folder, number, &what);
        let Some(line) = reader.next_line()? else { break };
        let (mut told, left) = match (open.take(), line.piece) {
            (Some(o), None) if o.0.shard == line.shard => o,
            (None, Some(piece)) if pieces.place(line.shard).0 < chains && piece.lines > 0 && seen.insert(line.shard) => {
                let mut told = Told::new(line.shard, start);
                told.last = piece.last;
                (told, piece.lines)
            }
            _ => return Err(damaged(format!("shard {} stands there twice, or its lines are not all there", line.shard))),
        };
        told.rows += u64::from(line.rows);
        told.cases.add_line(&line);
        if let Some(heard) = line.heard {
            told.heard.push((line.case_id.into_owned(), heard));
        }
        told.bytes.end = reader.bytes;
        if left == 1 {
            all.push(told);
        } else {
            open = Some((told, left - 1));
        }
    }
    Ok((all, reader.bytes + reader.torn_bytes))
}

/// None if the file is not there.
fn check_shard(dir: &Path, file: &str, rows: u64, known: Option<&Shard>) -> Result<Option<Shard>> {
    let path = dir.join(file);
    if rows == 0 || !path.exists() {
        return Ok(None);
    }
    let read = plain_file(&path).and_then(|f| input::all(f, SHARD_BYTES));
    let bytes = read.map_err(|e| files::own_error(&path, "cannot be read", &e))?;
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
    let file = plain_file(path).map_err(|e| e.to_string())?;
    let reader = SerializedFileReader::new(file).map_err(|e| e.to_string())?;
    Ok(reader.metadata().file_metadata().num_rows().max(0) as u64)
}

/// Temporary files, and shards that a crash left before the journal named them.
fn remove_orphans(folder: &Folder, before: &Before) -> Result<()> {
    let known: BTreeSet<&str> = before.shards.values().map(|s| s.file.as_str()).collect();
    for dir in [folder.dir.clone(), folder.shards()] {
        let (Ok(entries), Ok(open)) = (std::fs::read_dir(&dir), own::Folder::for_results(&dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let in_shards = dir != folder.dir;
            let stray = in_shards && name.starts_with("part-") && !known.contains(format!("shards/{name}").as_str());
            // Only what bears a name of ours: the folder may hold other things, too.
            let written = name.strip_suffix(files::TEMPORARY);
            let half = written.is_some_and(|n| !in_shards && [MANIFEST, JOURNAL].contains(&n) || in_shards && n.starts_with("part-"));
            if half || stray {
                tracing::info!(file = %entry.path().display(), "removed: left by a crash");
                files::fault::step().and_then(|()| open.remove(&name)).map_err(|e| Error::io(&entry.path(), "cannot be removed", &e))?;
            }
        }
    }
    Ok(())
}
