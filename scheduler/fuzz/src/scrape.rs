//! Pages of scraped services: a page is whatever a process on the node chose to write.

use std::collections::BTreeMap;
use surefoot_linux::feed::buckets::{Buckets, Scraped};
use surefoot_linux::feed::prometheus::{parse, Wanted};

/// Two pages, separated by a zero byte: an earlier and a later one.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (then, now) = text.split_once('\0').unwrap_or(("", &text));
    let wanted = Wanted { histogram: "h".into(), labels: BTreeMap::new(), unit: None };
    let mut read = vec![];
    for page in [then, now] {
        match parse(page, &wanted) {
            Ok(sample) => read.push(sample),
            Err(e) => crate::one_line(&e),
        }
    }
    for sample in &read {
        for s in sample.series.values() {
            assert!(s.buckets.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 <= w[1].1), "{s:?}");
            assert!(s.buckets.last().is_some_and(|b| b.1 <= s.count), "{s:?}");
        }
        assert_eq!(Buckets::grown(sample, sample).count, 0);
    }
    let mut scraped = Scraped::default();
    for (i, sample) in read.into_iter().enumerate() {
        if let Err(e) = scraped.push(1000 + 500 * i as u64, sample) {
            crate::one_line(&e);
        }
    }
    let reading = scraped.read(1000, 0, 1500, 20.0);
    for l in [reading.window, reading.interval].into_iter().flatten() {
        assert!(l.count > 0 && l.p50_ms <= l.p95_ms && l.p95_ms <= l.p99_ms, "{l:?}");
        assert!([l.mean_ms, l.p50_ms, l.p99_ms, l.achieved_rps].iter().all(|v| v.is_finite() && *v >= 0.0), "{l:?}");
        assert!(l.p99_low_ms.is_none_or(|low| low <= l.p99_ms) && l.p99_high_ms.is_none_or(|high| high >= l.p99_ms), "{l:?}");
    }
}
