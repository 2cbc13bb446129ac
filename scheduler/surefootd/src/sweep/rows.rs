//! Samples as Parquet (docs/sweep-output.md): one row per sample, zstd, one file per shard.

use crate::base::error::{Error, Result};
use crate::base::parquet::{encode_with, properties};
use crate::sweep::campaign::Campaign;
use crate::sweep::expand::Case;
use arrow_array::builder::{BooleanBuilder, Float64Builder, Int32Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, ListArray, RecordBatch, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::basic::Encoding;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use std::sync::Arc;
use surefoot_server::memory::READINGS;
use surefoot_server::{Features, Latency, MemoryView, Sending, Verdict, FEATURE_NAMES};

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Measured,
    /// Cannot be set up, e.g. the neighbours leave too few cores. No rows.
    Infeasible,
    /// The load generator could not keep its schedule. Rows are kept.
    ClientLimited,
    /// The service completed less than 99 % of what was offered. Rows are kept.
    Overloaded,
    /// Something broke; the reason says what.
    Failed,
    /// A search did not need it. No rows.
    Skipped,
}

/// What the journal may say against a case that was measured.
pub const MARKS: [&str; 2] = ["disturbed", "unsettled"];

impl State {
    pub const ALL: [State; 6] =
        [State::Measured, State::Infeasible, State::ClientLimited, State::Overloaded, State::Failed, State::Skipped];
}

/// What becomes of a case that is not measured, and why; None: it is measured.
pub fn without_measuring(case: &Case) -> Option<(State, String)> {
    let infeasible = case.infeasible.clone().map(|why| (State::Infeasible, why));
    infeasible.or_else(|| case.unloaded.clone().map(|why| (State::Failed, why)))
}

/// What the measured service had of memory in a sample, and what was seen of it. Only campaigns with such an axis have columns for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryRow {
    /// What bounded it; None: nothing did, or nobody can tell.
    pub limit_in_force_bytes: Option<u64>,
    pub pool_in_force_bytes: Option<u64>,
    pub seen: MemoryView,
    /// Why what was in force is not what was asked for, and why something could not be seen.
    pub note: Option<Arc<str>>,
}

/// A limit may have bound a service that had this share of it in use.
const NEAR_FRAC: f64 = 0.95;

impl MemoryRow {
    /// Whether a limit changed, or may have changed, what the service did. What is not known counts as if it had.
    fn is_bound(&self, asked_bytes: Option<u64>) -> bool {
        // What an earlier limit took may not be back without one.
        if self.seen.swapped_bytes.is_some_and(|b| b > 0) {
            return true;
        }
        let Some(limit) = self.limit_in_force_bytes.or(asked_bytes) else { return false };
        self.seen.in_use_bytes.is_none_or(|b| b as f64 >= NEAR_FRAC * limit as f64)
    }
}

/// One sample. None where the target cannot measure it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub t_ms: i64,
    /// In the order of [`FEATURE_NAMES`].
    pub features: [Option<f64>; 13],
    pub mean_ms: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub p99_low_ms: Option<f64>,
    pub p99_high_ms: Option<f64>,
    pub achieved_rps: Option<f64>,
    pub errors: i64,
    pub count: i64,
    pub verdict: Verdict,
    pub sending: Sending,
    pub memory: MemoryRow,
}

impl Row {
    /// What was seen of a service; without a latency nothing was completed.
    pub fn of(t_ms: u64, features: &Features, latency: Option<Latency>, verdict: Verdict, sending: Sending) -> Self {
        let l = latency;
        Row {
            t_ms: t_ms as i64,
            features: features.values(),
            mean_ms: l.map(|l| l.mean_ms),
            p50_ms: l.map(|l| l.p50_ms),
            p95_ms: l.map(|l| l.p95_ms),
            p99_ms: l.map(|l| l.p99_ms),
            p99_low_ms: l.and_then(|l| l.p99_low_ms),
            p99_high_ms: l.and_then(|l| l.p99_high_ms),
            achieved_rps: l.map(|l| l.achieved_rps),
            errors: l.map_or(0, |l| l.errors as i64),
            count: l.map_or(0, |l| l.count as i64),
            verdict,
            sending,
            memory: MemoryRow::default(),
        }
    }
}

/// What can be said against the rows of a case on a real machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// What disturbed the host while it was sampled, also when it was measured again.
    pub disturbed: Option<String>,
    /// What had not settled when its samples began.
    pub unsettled: Option<String>,
}

/// A finished case.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub case: Case,
    pub state: State,
    pub reason: Option<String>,
    pub rows: Vec<Row>,
    pub marks: Marks,
    /// Of the CPU time that the services left over on the managed CPUs, what others took; None where that is not counted.
    pub others_frac: Option<f64>,
}

impl Measured {
    /// A case without rows.
    pub fn without_rows(case: Case, state: State, reason: String) -> Self {
        Measured { case, state, reason: Some(reason), rows: vec![], marks: Marks::default(), others_frac: None }
    }
}

/// Columns after the 13 features.
const OUTCOME: [&str; 7] =
    ["latency_mean_ms", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p99_low_ms", "latency_p99_high_ms", "achieved_rps"];

/// Columns after the verdict: see [`Sending`]. Files of earlier versions, and recordings, have neither.
const SENDING: [&str; 2] = ["loop", "latency_from"];

fn neighbour_fields(rps_known: bool) -> Fields {
    Fields::from(vec![
        Field::new("service", DataType::Utf8, false),
        Field::new("cores", DataType::Float64, false),
        Field::new("ways", DataType::Int32, false),
        Field::new("rps", DataType::Float64, !rps_known),
    ])
}

/// What samples are of. Columns that only some campaigns have are lacking in others, so that a campaign that was begun before there were such
/// columns goes on with those that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Of {
    /// Loads are shares of max loads: `load_pct` says which.
    pub shares: bool,
    /// Limits on memory are an axis: [`LIMITS`] and what was seen.
    pub memory: bool,
    /// Services whose offered RPS nobody may know: `rps` may be null, and `feed` says what is known of their latency.
    recording: bool,
}

impl Of {
    /// What the samples of a campaign are of.
    pub fn campaign(campaign: &Campaign) -> Self {
        Of { shares: campaign.finds_loads(), memory: campaign.sweeps_memory(), recording: false }
    }
}

/// Columns of campaigns with limits on memory, before those of [`READINGS`]: what was asked for, and what was in force.
const LIMITS: [&str; 4] = ["mem_limit_bytes", "zswap_max_bytes", "mem_limit_in_force_bytes", "zswap_max_in_force_bytes"];
/// What is worked out of the readings.
const DERIVED: [&str; 2] = ["memory_footprint_bytes", "memory_compression_ratio"];

/// Name of a reading's column.
fn memory_column(key: &str) -> String {
    format!("memory_{key}")
}

/// Schema of the samples, in column order, with all columns that a campaign's may have.
pub fn schema() -> Schema {
    schema_of(Of { shares: true, memory: true, recording: false })
}

/// As [`schema`], for samples of services whose offered RPS nobody may know.
pub fn recording_schema() -> Schema {
    schema_of(Of { recording: true, ..Of::default() })
}

fn schema_of(of: Of) -> Schema {
    let rps_known = !of.recording;
    let text = |n: &str| Field::new(n, DataType::Utf8, false);
    let float = |n: &str, nullable| Field::new(n, DataType::Float64, nullable);
    let item = Field::new("item", DataType::Struct(neighbour_fields(rps_known)), false);
    let mut f = vec![
        text("campaign"),
        text("platform"),
        text("service"),
        text("case_id"),
        Field::new("threads", DataType::Int32, false),
        float("rps", !rps_known),
        Field::new("mba_pct", DataType::Int32, false),
        Field::new("neighbours", DataType::List(Arc::new(item)), false),
        Field::new("repeat", DataType::Int32, false),
        Field::new("t_ms", DataType::Int64, false),
    ];
    f.extend(FEATURE_NAMES.iter().map(|n| float(n, true)));
    f.extend(OUTCOME.iter().map(|n| float(n, true)));
    f.push(Field::new("errors", DataType::Int64, false));
    f.push(Field::new("count", DataType::Int64, false));
    f.push(text("verdict"));
    if of.recording {
        f.push(text("feed"));
    } else {
        f.extend(SENDING.iter().map(|n| Field::new(*n, DataType::Utf8, true)));
    }
    if of.shares {
        f.push(float("load_pct", false));
    }
    if of.memory {
        f.extend(LIMITS.iter().map(|n| Field::new(*n, DataType::Int64, true)));
        f.extend(READINGS.iter().map(|r| float(&memory_column(r.key), true)));
        f.extend(DERIVED.iter().map(|n| float(n, true)));
        f.push(Field::new("memory_binds", DataType::Boolean, false));
        f.push(Field::new("memory_note", DataType::Utf8, true));
    }
    Schema::new(f)
}

/// Columns with another value in every row. A dictionary of such values is work for nothing; split into bytes, signs and
/// exponents stand together and compress. Everything else is the same all over a case: a dictionary and run lengths.
const OF_EACH_ROW: [&str; 9] = [
    "ipc",
    "llc_misses_per_s",
    "mbl_mbps",
    "cpu_usage_cores",
    "core_freq_mhz",
    "nb_mbl_mbps",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
];

/// Parquet settings of samples.
pub fn sample_properties() -> WriterProperties {
    let split = |b: WriterPropertiesBuilder, name: &&str| {
        let column = ColumnPath::from(vec![(*name).to_string()]);
        b.set_column_dictionary_enabled(column.clone(), false).set_column_encoding(column, Encoding::BYTE_STREAM_SPLIT)
    };
    OF_EACH_ROW.iter().fold(properties(), split).build()
}

/// A shard in memory.
///
/// # Errors
/// [`Error::Failed`] if the batch does not encode.
pub fn encode_samples(batch: &RecordBatch) -> Result<Vec<u8>> {
    encode_with(batch, sample_properties())
}

/// Rows of some cases, column by column.
pub struct Columns {
    of: Of,
    campaign: String,
    platform: String,
    campaigns: StringBuilder,
    platforms: StringBuilder,
    services: StringBuilder,
    ids: StringBuilder,
    threads: Int32Builder,
    rps: Float64Builder,
    load_pct: Float64Builder,
    mba_pct: Int32Builder,
    neighbours: Neighbours,
    repeat: Int32Builder,
    t_ms: Int64Builder,
    /// Features, then [`OUTCOME`].
    floats: Vec<Float64Builder>,
    errors: Int64Builder,
    count: Int64Builder,
    verdict: StringBuilder,
    /// As [`SENDING`].
    sending: [StringBuilder; 2],
    feed: StringBuilder,
    memory: Memory,
    rows: usize,
}

/// Columns of memory; empty where a campaign has no such axis.
#[derive(Default)]
struct Memory {
    /// As [`LIMITS`].
    limits: [Int64Builder; LIMITS.len()],
    /// As [`READINGS`], then [`DERIVED`].
    seen: [Float64Builder; READINGS.len() + DERIVED.len()],
    binds: BooleanBuilder,
    note: StringBuilder,
}

impl Memory {
    fn push(&mut self, c: &Case, rows: &[Row]) {
        // A case is one thing to whoever learns from it.
        let binds = rows.iter().any(|r| r.memory.is_bound(c.memory.limit_bytes));
        for m in rows.iter().map(|r| &r.memory) {
            let limits = [c.memory.limit_bytes, c.memory.pool_bytes, m.limit_in_force_bytes, m.pool_in_force_bytes];
            for (b, bytes) in self.limits.iter_mut().zip(limits) {
                b.append_option(bytes.map(|b| b as i64));
            }
            let derived = [m.seen.footprint_bytes().map(|b| b as f64), m.seen.compression_ratio()];
            let seen = READINGS.iter().map(|r| (r.of)(&m.seen)).chain(derived);
            for (b, value) in self.seen.iter_mut().zip(seen) {
                b.append_option(value.filter(|x| x.is_finite()));
            }
            self.binds.append_value(binds);
            self.note.append_option(m.note.as_deref());
        }
    }

    fn finish(&mut self) -> Vec<ArrayRef> {
        let mut all: Vec<ArrayRef> = self.limits.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef).collect();
        all.extend(self.seen.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        all.push(Arc::new(self.binds.finish()));
        all.push(Arc::new(self.note.finish()));
        all
    }
}

/// An RPS; None where it is no number: nobody knows it.
fn known(rps: f64) -> Option<f64> {
    Some(rps).filter(|r| r.is_finite())
}

/// The list column of structs, flat.
struct Neighbours {
    services: StringBuilder,
    cores: Float64Builder,
    ways: Int32Builder,
    rps: Float64Builder,
    /// How many each row has.
    lengths: Vec<usize>,
}

impl Columns {
    /// Empty columns of a campaign on a platform.
    pub fn new(campaign: &str, platform: &str, of: Of) -> Self {
        Self::with(campaign, platform, of)
    }

    /// As [`Columns::new`] with [`recording_schema`]: an RPS that is no number is null.
    pub fn recording(campaign: &str, platform: &str) -> Self {
        Self::with(campaign, platform, Of { recording: true, ..Of::default() })
    }

    fn with(campaign: &str, platform: &str, of: Of) -> Self {
        let text = StringBuilder::new;
        Columns {
            of,
            campaign: campaign.into(),
            platform: platform.into(),
            campaigns: text(),
            platforms: text(),
            services: text(),
            ids: text(),
            threads: Int32Builder::new(),
            rps: Float64Builder::new(),
            load_pct: Float64Builder::new(),
            mba_pct: Int32Builder::new(),
            neighbours: Neighbours {
                services: text(),
                cores: Float64Builder::new(),
                ways: Int32Builder::new(),
                rps: Float64Builder::new(),
                lengths: vec![],
            },
            repeat: Int32Builder::new(),
            t_ms: Int64Builder::new(),
            floats: (0..FEATURE_NAMES.len() + OUTCOME.len()).map(|_| Float64Builder::new()).collect(),
            errors: Int64Builder::new(),
            count: Int64Builder::new(),
            verdict: text(),
            sending: [text(), text()],
            feed: text(),
            memory: Memory::default(),
            rows: 0,
        }
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Append the rows of a case.
    pub fn push(&mut self, c: &Case, rows: &[Row]) {
        self.rows += rows.len();
        for r in rows {
            self.campaigns.append_value(&self.campaign);
            self.platforms.append_value(&self.platform);
            self.services.append_value(&c.service);
            self.ids.append_value(&c.case_id);
            for n in &c.neighbours {
                self.neighbours.services.append_value(&n.service);
                self.neighbours.cores.append_value(n.cores);
                self.neighbours.ways.append_value(n.ways as i32);
                self.neighbours.rps.append_option(known(n.rps));
            }
            self.neighbours.lengths.push(c.neighbours.len());
            self.t_ms.append_value(r.t_ms);
            let outcome = [r.mean_ms, r.p50_ms, r.p95_ms, r.p99_ms, r.p99_low_ms, r.p99_high_ms, r.achieved_rps];
            for (b, v) in self.floats.iter_mut().zip(r.features.iter().chain(&outcome)) {
                // Missing is null, and so is what is no number; -0 (an empty sum) is 0.
                b.append_option(v.filter(|x| x.is_finite()).map(|x| x + 0.0));
            }
            self.errors.append_value(r.errors);
            self.count.append_value(r.count);
            self.verdict.append_value(r.verdict.as_str());
            let (send_loop, latency_from) = r.sending.words();
            for (b, word) in self.sending.iter_mut().zip([send_loop, latency_from]) {
                b.append_option(word);
            }
        }
        if self.of.memory {
            self.memory.push(c, rows);
        }
        self.threads.append_value_n(c.threads as i32, rows.len());
        match known(c.rps) {
            Some(rps) => self.rps.append_value_n(rps, rows.len()),
            None => self.rps.append_nulls(rows.len()),
        }
        match c.load_pct {
            Some(pct) => self.load_pct.append_value_n(pct, rows.len()),
            None => self.load_pct.append_nulls(rows.len()),
        }
        self.mba_pct.append_value_n(i32::from(c.mba_pct), rows.len());
        self.repeat.append_value_n(c.repeat as i32, rows.len());
    }

    /// Append a row of a recording.
    pub fn push_recorded(&mut self, c: &Case, row: &Row, feed: &str) {
        self.push(c, std::slice::from_ref(row));
        self.feed.append_value(feed);
    }

    /// What was pushed, as one batch; the columns are empty again.
    ///
    /// # Errors
    /// [`Error::Failed`] if columns and schema disagree.
    pub fn take(&mut self) -> Result<RecordBatch> {
        let fault = |e| Error::Failed(format!("samples: {e}. This is a fault of surefootd, please report it"));
        self.rows = 0;
        let rps_known = !self.of.recording;
        let n = &mut self.neighbours;
        let parts: Vec<ArrayRef> =
            vec![Arc::new(n.services.finish()), Arc::new(n.cores.finish()), Arc::new(n.ways.finish()), Arc::new(n.rps.finish())];
        let offsets = OffsetBuffer::from_lengths(n.lengths.drain(..));
        let items = StructArray::try_new(neighbour_fields(rps_known), parts, None).map_err(fault)?;
        let item = Arc::new(Field::new("item", DataType::Struct(neighbour_fields(rps_known)), false));
        let neighbours = ListArray::try_new(item, offsets, Arc::new(items), None).map_err(fault)?;
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.campaigns.finish()),
            Arc::new(self.platforms.finish()),
            Arc::new(self.services.finish()),
            Arc::new(self.ids.finish()),
            Arc::new(self.threads.finish()),
            Arc::new(self.rps.finish()),
            Arc::new(self.mba_pct.finish()),
            Arc::new(neighbours),
            Arc::new(self.repeat.finish()),
            Arc::new(self.t_ms.finish()),
        ];
        columns.extend(self.floats.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
        columns.push(Arc::new(self.errors.finish()));
        columns.push(Arc::new(self.count.finish()));
        columns.push(Arc::new(self.verdict.finish()));
        let sending = self.sending.each_mut().map(|b| Arc::new(b.finish()) as ArrayRef);
        let (load_pct, feed, memory) = (self.load_pct.finish(), self.feed.finish(), self.memory.finish());
        if self.of.recording {
            columns.push(Arc::new(feed));
        } else {
            columns.extend(sending);
        }
        if self.of.shares {
            columns.push(Arc::new(load_pct));
        }
        if self.of.memory {
            columns.extend(memory);
        }
        RecordBatch::try_new(Arc::new(schema_of(self.of)), columns).map_err(fault)
    }
}
