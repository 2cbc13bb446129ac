//! Merge the windows of a `--windows` file: the percentiles of any part of a run, exactly, because histograms add up.

use crate::error::{bad, LoadgenError};
use crate::feed::decode_histogram;
use crate::quantile::{summarise, Latency, BATCHES};
use crate::record::MAX_NS;
use crate::report::{Phase, WindowLine};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::Path;

/// Which windows: those that lie in [from, to), times in ms since the start of the stream; `None`: the measured ones.
pub type Range = Option<(f64, f64)>;

/// Some windows of one run. Times in ms since the start of the stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Merged {
    pub windows: usize,
    pub from_ms: f64,
    pub to_ms: f64,
    /// Requests that were due, and those that ended in one of four ways.
    pub offered: u64,
    pub completed: u64,
    pub errors: u64,
    pub dropped: u64,
    pub response_time: Latency,
}

/// Read and merge.
///
/// # Errors
/// `BadInput` naming the file, the line and what is wrong, also if no window lies in the range.
pub fn merge(path: &Path, range: Range, confidence: f64) -> Result<Merged, LoadgenError> {
    let wrong = |what: String| bad(format!("{}: {what}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| wrong(format!("{e}; give a file that --windows wrote")))?;
    let mut lines = Vec::new();
    for (i, line) in std::io::BufReader::new(file).lines().enumerate() {
        let at = |what: String| wrong(format!("line {}: {what}; give a file that --windows wrote", i + 1));
        let line: WindowLine = serde_json::from_str(&line.map_err(|e| at(e.to_string()))?).map_err(|e| at(e.to_string()))?;
        let wanted = match range {
            None => line.window.phase == Phase::Measure,
            Some((from, to)) => line.window.end_ms - line.window_ms >= from - 1e-6 && line.window.end_ms <= to + 1e-6,
        };
        if wanted {
            let histogram = decode_histogram(&line.histogram).map_err(at)?;
            lines.push((line, histogram));
        }
    }
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
        return Err(wrong("no window lies in that time; leave --from and --to out to see the measured ones".into()));
    };
    let (from_ms, to_ms) = (first.0.window.end_ms - first.0.window_ms, last.0.window.end_ms);
    let empty = || Histogram::<u64>::new_with_bounds(1, MAX_NS, 3).map_err(|e| wrong(e.to_string()));
    let batches = BATCHES.min(lines.len());
    let mut parts = (0..batches).map(|_| Ok((empty()?, 0))).collect::<Result<Vec<_>, LoadgenError>>()?;
    let mut all = empty()?;
    let mut sum = Merged {
        windows: lines.len(),
        from_ms,
        to_ms,
        offered: 0,
        completed: 0,
        errors: 0,
        dropped: 0,
        response_time: summarise(&all, 0, &[], confidence),
    };
    for (i, (line, h)) in lines.iter().enumerate() {
        let w = &line.window;
        let part = &mut parts[i * batches / lines.len()];
        part.1 += w.errors + w.dropped;
        for to in [&mut all, &mut part.0] {
            to.add(h).map_err(|e| wrong(format!("window {}: {e}", w.window)))?;
        }
        sum.offered += w.offered;
        sum.completed += w.completed;
        sum.errors += w.errors;
        sum.dropped += w.dropped;
    }
    let parts: Vec<(&Histogram<u64>, u64)> = parts.iter().map(|(h, lost)| (h, *lost)).collect();
    sum.response_time = summarise(&all, sum.errors + sum.dropped, &parts, confidence);
    Ok(sum)
}
