//! Parquet files, whole and in memory.

use crate::base::error::{Error, Result};
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};

/// Parquet settings of every file that this program writes.
pub fn parquet_properties() -> WriterProperties {
    properties().build()
}

pub fn properties() -> WriterPropertiesBuilder {
    // Level 1: most of a file is digits of noise, which no level makes smaller.
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_created_by(concat!("surefootd ", env!("CARGO_PKG_VERSION")).into())
}

/// A whole Parquet file in memory from one batch.
///
/// # Errors
/// [`Error::Failed`] if the batch does not encode.
pub fn encode(batch: &RecordBatch) -> Result<Vec<u8>> {
    encode_with(batch, parquet_properties())
}

pub fn encode_with(batch: &RecordBatch, properties: WriterProperties) -> Result<Vec<u8>> {
    let fail = |e: parquet::errors::ParquetError| Error::Failed(format!("Parquet: {e}. This is a fault of surefootd, please report it"));
    let mut w = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).map_err(fail)?;
    w.write(batch).map_err(fail)?;
    w.into_inner().map_err(fail)
}
