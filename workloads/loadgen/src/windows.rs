//! Merge the windows of a `--windows` file: the percentiles of any part of a run, exactly, because histograms add up.

use crate::error::{bad, LoadgenError};
use crate::feed::decode_histogram;
use crate::quantile::{summarise, Latency, BATCHES};
use crate::record::MAX_NS;
use crate::report::{Phase, WindowLine};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::path::Path;
use surefoot_io::input::{long_line, next_line, Found, Input, LINE_BYTES};

/// Windows that are merged at a time, as text: some seven hours of a service.
const MOST_BYTES: usize = 512 << 20;

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
    let file = Input::open(path).map_err(|e| wrong(format!("{e}; give a file that --windows wrote")))?;
    let (mut from, mut text, mut number, mut kept_bytes) = (std::io::BufReader::new(file), Vec::new(), 0, 0);
    let mut lines = Vec::new();
    loop {
        number += 1;
        let at = |what: String| wrong(format!("line {number}: {what}; give a file that --windows wrote"));
        match next_line(&mut from, &mut text, LINE_BYTES).map_err(|e| at(e.to_string()))? {
            Found::End => break,
            Found::TooLong(_) => return Err(at(long_line(LINE_BYTES))),
            Found::Line(_) => {}
        }
        let line: WindowLine = serde_json::from_slice(&text).map_err(|e| at(e.to_string()))?;
        let wanted = match range {
            None => line.window.phase == Phase::Measure,
            Some((from, to)) => line.window.end_ms - line.window_ms >= from - 1e-6 && line.window.end_ms <= to + 1e-6,
        };
        if wanted {
            // Kept as text: a histogram in memory is a hundred times as large.
            decode_histogram(&line.histogram).map_err(at)?;
            kept_bytes += text.len();
            if kept_bytes > MOST_BYTES {
                return Err(wrong(format!(
                    "more than {} MiB of windows lie in that time; give a shorter one (--from, --to)",
                    MOST_BYTES >> 20
                )));
            }
            lines.push(line);
        }
    }
    let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
        return Err(wrong("no window lies in that time; leave --from and --to out to see the measured ones".into()));
    };
    let (from_ms, to_ms) = (first.window.end_ms - first.window_ms, last.window.end_ms);
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
    for (i, line) in lines.iter().enumerate() {
        let w = &line.window;
        let h = &decode_histogram(&line.histogram).map_err(wrong)?;
        let part = &mut parts[i * batches / lines.len()];
        part.1 = u64::saturating_add(part.1, w.errors.saturating_add(w.dropped));
        for to in [&mut all, &mut part.0] {
            to.add(h).map_err(|e| wrong(format!("window {}: {e}", w.window)))?;
        }
        sum.offered = sum.offered.saturating_add(w.offered);
        sum.completed = sum.completed.saturating_add(w.completed);
        sum.errors = sum.errors.saturating_add(w.errors);
        sum.dropped = sum.dropped.saturating_add(w.dropped);
    }
    let parts: Vec<(&Histogram<u64>, u64)> = parts.iter().map(|(h, lost)| (h, *lost)).collect();
    sum.response_time = summarise(&all, sum.errors.saturating_add(sum.dropped), &parts, confidence);
    Ok(sum)
}
