//! Samples as Parquet (docs/sweep-output.md): one row per sample, zstd, one file per shard.

use crate::error::{Error, Result};
use crate::expand::Case;
use arrow::array::{ArrayRef, Float64Builder, Int32Builder, Int64Builder, ListBuilder, RecordBatch, StringBuilder, StructBuilder};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::sync::Arc;
use surefoot_server::{Verdict, FEATURE_NAMES};

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
}

/// A finished case.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub case: Case,
    pub state: State,
    pub reason: Option<String>,
    pub rows: Vec<Row>,
}

/// Columns after the 13 features.
const OUTCOME: [&str; 7] =
    ["latency_mean_ms", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "latency_p99_low_ms", "latency_p99_high_ms", "achieved_rps"];

fn neighbour_fields() -> Fields {
    Fields::from(vec![
        Field::new("service", DataType::Utf8, false),
        Field::new("cores", DataType::Float64, false),
        Field::new("ways", DataType::Int32, false),
        Field::new("rps", DataType::Float64, false),
    ])
}

/// Schema of the samples, in column order.
pub fn schema() -> Schema {
    let text = |n: &str| Field::new(n, DataType::Utf8, false);
    let float = |n: &str, nullable| Field::new(n, DataType::Float64, nullable);
    let item = Field::new("item", DataType::Struct(neighbour_fields()), false);
    let mut f = vec![
        text("campaign"),
        text("platform"),
        text("service"),
        text("case_id"),
        Field::new("threads", DataType::Int32, false),
        float("rps", false),
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
    Schema::new(f)
}

/// Parquet settings of every file that this program writes.
pub fn parquet_properties() -> WriterProperties {
    let level = ZstdLevel::try_new(3).unwrap_or_default();
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by(concat!("surefootd ", env!("CARGO_PKG_VERSION")).into())
        .build()
}

/// A whole Parquet file in memory from one batch.
///
/// # Errors
/// [`Error::Failed`] if the batch does not encode.
pub fn encode(batch: &RecordBatch) -> Result<Vec<u8>> {
    let fail = |e: parquet::errors::ParquetError| Error::Failed(format!("Parquet: {e}. This is a fault of surefootd, please report it"));
    let mut w = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(parquet_properties())).map_err(fail)?;
    w.write(batch).map_err(fail)?;
    w.into_inner().map_err(fail)
}

/// Rows of some cases as one batch.
///
/// # Errors
/// [`Error::Failed`] if columns and schema disagree.
pub fn batch(campaign: &str, platform: &str, cases: &[Measured]) -> Result<RecordBatch> {
    let n: usize = cases.iter().map(|c| c.rows.len()).sum();
    let texts = || StringBuilder::with_capacity(n, n * 8);
    let (mut campaigns, mut platforms, mut services, mut ids) = (texts(), texts(), texts(), texts());
    let mut threads = Int32Builder::with_capacity(n);
    let mut rps = Float64Builder::with_capacity(n);
    let mut mba = Int32Builder::with_capacity(n);
    let item = Field::new("item", DataType::Struct(neighbour_fields()), false);
    let mut neighbours = ListBuilder::new(StructBuilder::from_fields(neighbour_fields(), 0)).with_field(item);
    let mut repeat = Int32Builder::with_capacity(n);
    let mut t_ms = Int64Builder::with_capacity(n);
    let mut floats: Vec<Float64Builder> = (0..FEATURE_NAMES.len() + OUTCOME.len()).map(|_| Float64Builder::with_capacity(n)).collect();
    let (mut errors, mut count) = (Int64Builder::with_capacity(n), Int64Builder::with_capacity(n));
    let mut verdict = texts();
    for m in cases {
        let c = &m.case;
        for r in &m.rows {
            campaigns.append_value(campaign);
            platforms.append_value(platform);
            services.append_value(&c.service);
            ids.append_value(&c.case_id);
            threads.append_value(c.threads as i32);
            rps.append_value(c.rps);
            mba.append_value(i32::from(c.mba_pct));
            let s = neighbours.values();
            for nb in &c.neighbours {
                // The builders are those of `neighbour_fields`, in that order.
                if let Some(b) = s.field_builder::<StringBuilder>(0) {
                    b.append_value(&nb.service);
                }
                if let Some(b) = s.field_builder::<Float64Builder>(1) {
                    b.append_value(nb.cores);
                }
                if let Some(b) = s.field_builder::<Int32Builder>(2) {
                    b.append_value(nb.ways as i32);
                }
                if let Some(b) = s.field_builder::<Float64Builder>(3) {
                    b.append_value(nb.rps);
                }
                s.append(true);
            }
            neighbours.append(true);
            repeat.append_value(c.repeat as i32);
            t_ms.append_value(r.t_ms);
            let outcome = [r.mean_ms, r.p50_ms, r.p95_ms, r.p99_ms, r.p99_low_ms, r.p99_high_ms, r.achieved_rps];
            for (b, v) in floats.iter_mut().zip(r.features.iter().chain(&outcome)) {
                // Missing is null, and so is what is no number; -0 (an empty sum) is 0.
                b.append_option(v.filter(|x| x.is_finite()).map(|x| x + 0.0));
            }
            errors.append_value(r.errors);
            count.append_value(r.count);
            verdict.append_value(r.verdict.as_str());
        }
    }
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(campaigns.finish()),
        Arc::new(platforms.finish()),
        Arc::new(services.finish()),
        Arc::new(ids.finish()),
        Arc::new(threads.finish()),
        Arc::new(rps.finish()),
        Arc::new(mba.finish()),
        Arc::new(neighbours.finish()),
        Arc::new(repeat.finish()),
        Arc::new(t_ms.finish()),
    ];
    columns.extend(floats.iter_mut().map(|b| Arc::new(b.finish()) as ArrayRef));
    columns.push(Arc::new(errors.finish()));
    columns.push(Arc::new(count.finish()));
    columns.push(Arc::new(verdict.finish()));
    RecordBatch::try_new(Arc::new(schema()), columns)
        .map_err(|e| Error::Failed(format!("samples: {e}. This is a fault of surefootd, please report it")))
}
