//! One shard from its cases to what goes on disk, and the keeper of what is on disk.

use super::chain::Tally;
use super::folder::Folder;
use super::job::Job;
use super::journal::{Heard, Journal, Line, Piece};
use super::manifest::{Cases, Manifest, Shard};
use super::rows::{encode_samples, Columns, Marks, Of, Row, State};
use crate::base::digest::sha256_hex;
use crate::base::error::Result;
use crate::base::files;
use crate::sweep::expand::Case;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};
use surefoot_server::Verdict;

/// Least time between two manifests.
const CHECKPOINT: Duration = Duration::from_secs(2);

/// Name of a shard's file, relative to the folder.
pub fn shard_file(shard: u32) -> String {
    format!("shards/part-{shard:05}.parquet")
}

/// A finished shard.
pub struct Done {
    shard: u32,
    /// None without rows.
    file: Option<(Shard, Vec<u8>)>,
    /// For the journal.
    lines: Vec<u8>,
    cases: Cases,
}

/// Makes one shard after another; each thread has its own.
pub struct Maker {
    columns: Columns,
    lines: Vec<u8>,
    /// Of a search.
    piece: Vec<Line<'static>>,
    cases: Cases,
}

impl Maker {
    pub fn new(job: &Job) -> Self {
        Maker {
            columns: Columns::new(&job.campaign.name, &job.target.platform.name, Of::campaign(job.campaign)),
            lines: vec![],
            piece: vec![],
            cases: Cases::default(),
        }
    }

    /// A case of the shard, in order.
    ///
    /// # Errors
    /// See [`Line::write`].
    pub fn add(&mut self, shard: u32, case: &Case, state: State, reason: Option<&str>, rows: &[Row], marks: &Marks) -> Result<()> {
        self.columns.push(case, rows);
        let mut line = Line::of(case.case_id.as_str(), state, reason.map(Into::into), shard, rows.len() as u32);
        line.usable = usable(rows, marks);
        line.disturbed = marks.disturbed.as_deref().map(Into::into);
        line.unsettled = marks.unsettled.as_deref().map(Into::into);
        self.cases.add_line(&line);
        line.write(&mut self.lines)
    }

    /// A case of a search, in order; its line waits for the shard's end.
    #[allow(clippy::too_many_arguments)] // a case, field by field: virtual servers have no Measured
    pub fn hear(&mut self, shard: u32, case: &Case, state: State, reason: Option<String>, rows: &[Row], heard: Heard, marks: Marks) {
        self.columns.push(case, rows);
        let line = Line::of(case.case_id.clone(), state, reason.map(Into::into), shard, rows.len() as u32);
        let usable = usable(rows, &marks);
        let (disturbed, unsettled) = (marks.disturbed.map(Into::into), marks.unsettled.map(Into::into));
        let line = Line { heard: Some(heard), usable, disturbed, unsettled, ..line };
        self.cases.add_line(&line);
        self.piece.push(line);
    }

    /// Cases that are not measured.
    pub fn tally(&mut self, shard: u32, t: Tally) {
        let line = Line { cases: Some(t.cases), ..Line::of(t.id, t.state, t.reason.map(Into::into), shard, 0) };
        self.cases.add_line(&line);
        self.piece.push(line);
    }

    /// The shard of a search is whole; the maker is empty again. `last`: its chain ends with it.
    ///
    /// # Errors
    /// See [`encode_samples`].
    pub fn finish_piece(&mut self, shard: u32, last: bool) -> Result<Done> {
        let piece = Piece { lines: self.piece.len() as u32, last };
        if let Some(first) = self.piece.first_mut() {
            first.piece = Some(piece);
        }
        for line in std::mem::take(&mut self.piece) {
            line.write(&mut self.lines)?;
        }
        self.finish(shard)
    }

    /// The shard is whole; the maker is empty again.
    ///
    /// # Errors
    /// See [`encode_samples`].
    pub fn finish(&mut self, shard: u32) -> Result<Done> {
        let (lines, cases) = (std::mem::take(&mut self.lines), std::mem::take(&mut self.cases));
        let rows = self.columns.rows() as u64;
        let file = if rows == 0 {
            None
        } else {
            let bytes = encode_samples(&self.columns.take()?)?;
            Some((Shard { file: shard_file(shard), rows, sha256: sha256_hex(&bytes) }, bytes))
        };
        Ok(Done { shard, file, lines, cases })
    }
}

/// How many rows of a case are usable, as `pipelines.samples.worth` counts them; None without rows.
fn usable(rows: &[Row], marks: &Marks) -> Option<u32> {
    let valid = || rows.iter().filter(|r| r.verdict == Verdict::Valid).count() as u32;
    (!rows.is_empty()).then(|| if marks.disturbed.is_some() { 0 } else { valid() })
}

/// Puts finished shards on disk, then into the journal, and now and then into the manifest.
pub struct Keeper<'a> {
    pub folder: &'a Folder,
    pub journal: Journal,
    pub manifest: Manifest,
    pub shards: BTreeMap<u32, Shard>,
    pub last: Instant,
}

impl Keeper<'_> {
    /// Keep shards in this order. They share one sync of their folder and one of the journal.
    ///
    /// # Errors
    /// [`crate::base::error::Error::Failed`]; shards before the one that failed are kept.
    pub fn keep(&mut self, done: Vec<Done>) -> Result<()> {
        let (mut kept, mut lines) = (vec![], vec![]);
        let mut outcome = Ok(());
        for d in done {
            if let Some((shard, bytes)) = &d.file {
                outcome = files::put(&self.folder.dir.join(&shard.file), |f| f.write_all(bytes)).map(drop);
            }
            if outcome.is_err() {
                break;
            }
            lines.extend(d.lines);
            kept.push((d.shard, d.file.map(|(shard, _)| shard), d.cases));
        }
        if !kept.is_empty() {
            files::sync_folder(&self.folder.shards())?;
            self.journal.append(&lines)?;
        }
        for (number, shard, cases) in kept {
            self.shards.extend(shard.map(|s| (number, s)));
            self.manifest.cases.merge(&cases);
        }
        outcome?;
        if self.last.elapsed() >= CHECKPOINT {
            self.write_manifest()?;
            self.last = Instant::now();
        }
        Ok(())
    }

    /// # Errors
    /// See [`Manifest::write`].
    pub fn write_manifest(&mut self) -> Result<()> {
        self.manifest.shards = self.shards.values().cloned().collect();
        self.manifest.journal_bytes = self.journal.bytes()?;
        self.manifest.complete = self.manifest.cases.done() == self.manifest.cases.planned;
        self.manifest.write(&self.folder.manifest())
    }
}
