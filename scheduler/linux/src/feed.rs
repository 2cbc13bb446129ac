//! Latency intake: datagrams of load generators and services on a Unix socket (design 4.8).
//!
//! Percentiles come from merged histograms, never from averaged percentiles. A thread takes datagrams off the socket, because
//! the kernel holds only a few.

use base64::Engine as _;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::Histogram;
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_server::window::{MIN_COUNT_P99, SILENT_MS, WINDOW_MS};
use surefoot_server::{FeedState, Latency, ServerError, Verdict};

/// At rates where a second has too few requests for a p99 the window grows up to this, ms.
pub const LONGEST_WINDOW_MS: u64 = 10_000;
/// Most significant digits of a histogram: with three, one over all of u64 takes 440 kB, with five it would take 48 MB.
const MAX_DIGITS: u32 = 3;
/// Most completions that one interval may tell of.
const MAX_COUNT: u64 = 100_000_000;
/// Most services whose intervals are kept, and most intervals of one: anybody who may write to the socket can make up both.
const MAX_SERVICES: usize = 256;
const MAX_INTERVALS: usize = 256;
/// Largest datagram taken, bytes.
const MAX_DATAGRAM: usize = 256 * 1024;

/// What a datagram says; fields that are not known are ignored.
#[derive(Clone, Debug, Deserialize)]
struct Datagram {
    service: String,
    #[serde(default = "default_window_ms")]
    window_ms: u64,
    count: u64,
    #[serde(default)]
    errors: u64,
    #[serde(default = "ns")]
    unit: String,
    histogram: String,
    #[serde(default)]
    outstanding: u64,
    #[serde(default)]
    oldest_ms: Option<f64>,
    #[serde(default)]
    verdict: Verdict,
}

fn default_window_ms() -> u64 {
    100
}

fn ns() -> String {
    "ns".into()
}

/// One decoded datagram.
#[derive(Clone, Debug)]
pub struct Interval {
    pub service: String,
    /// When it arrived, ms on the reader's clock.
    pub arrived_ms: u64,
    pub window_ms: u64,
    pub errors: u64,
    /// Response times, ns.
    pub histogram: Histogram<u64>,
    pub outstanding: u64,
    pub oldest_ms: Option<f64>,
    pub verdict: Verdict,
}

/// Decode one datagram.
///
/// # Errors
/// One line on what is wrong with it.
pub fn decode(bytes: &[u8], arrived_ms: u64) -> Result<Interval, String> {
    let d: Datagram = serde_json::from_slice(bytes).map_err(|e| format!("latency datagram: {e}"))?;
    if d.unit != "ns" {
        return Err(format!("latency datagram of {}: unit \"{}\", only \"ns\" is known", d.service, d.unit));
    }
    let raw = base64::engine::general_purpose::STANDARD
        .decode(&d.histogram)
        .map_err(|e| format!("latency datagram of {}: histogram is not base64: {e}", d.service))?;
    // The head alone says how much memory the rest will take: cookie, length and offset, then the digits.
    if raw.get(12..16).is_some_and(|d| d.iter().fold(0, |n, b| n << 8 | u32::from(*b)) > MAX_DIGITS) {
        return Err(format!("latency datagram of {}: histogram has more than {MAX_DIGITS} significant digits", d.service));
    }
    if d.count > MAX_COUNT {
        return Err(format!("latency datagram of {}: count {} is above the limit of {MAX_COUNT}", d.service, d.count));
    }
    let histogram: Histogram<u64> = Deserializer::new()
        .deserialize(&mut raw.as_slice())
        .map_err(|e| format!("latency datagram of {}: histogram is not HdrHistogram V2: {e}", d.service))?;
    if histogram.len() != d.count {
        return Err(format!("latency datagram of {}: count {} but the histogram has {}", d.service, d.count, histogram.len()));
    }
    Ok(Interval {
        service: d.service,
        arrived_ms,
        window_ms: d.window_ms.clamp(1, LONGEST_WINDOW_MS),
        errors: d.errors,
        histogram,
        outstanding: d.outstanding,
        oldest_ms: d.oldest_ms,
        verdict: d.verdict,
    })
}

/// With more samples the binomial distribution is taken for a normal one; the sum would take as long as it is long.
const EXACT_BELOW: u64 = 100_000;

/// Exceedances of the p99 among `n` samples that bound its 95 % interval: (fewest, most); each None where `n` is too small.
///
/// The number of samples above the true p99 is Binomial(n, 0.01); order statistics at its 2.5 % and 97.5 % points bound it.
fn exceedances(n: u64) -> (Option<u64>, Option<u64>) {
    if n > EXACT_BELOW {
        let (mean, spread) = (n as f64 * 0.01, 1.959_964 * (n as f64 * 0.01 * 0.99).sqrt());
        return (Some((mean - spread - 0.5).floor() as u64), Some((mean + spread - 0.5).ceil() as u64));
    }
    let (p, alpha) = (0.01f64, 0.025);
    let mut log_pmf = n as f64 * (1.0 - p).ln();
    let (mut cdf, mut low, mut k) = (0.0, None, 0u64);
    loop {
        cdf += log_pmf.exp();
        if cdf <= alpha {
            low = Some(k);
        }
        if 1.0 - cdf <= alpha || k >= n {
            return (low, (k < n).then_some(k));
        }
        log_pmf += ((n - k) as f64 / (k + 1) as f64).ln() + (p / (1.0 - p)).ln();
        k += 1;
    }
}

/// Latency of some intervals taken together; None without completions.
fn summarise(of: &[&Held]) -> Option<Latency> {
    let mut h: Histogram<u64> = Histogram::new(3).ok()?;
    for i in of {
        i.counts.iter().try_for_each(|(ns, n)| h.record_n(*ns, *n)).ok()?;
    }
    let n = h.len();
    if n == 0 {
        return None;
    }
    let ms = |ns: u64| ns as f64 * 1e-6;
    let rank = |r: u64| ms(h.value_at_quantile(r as f64 / n as f64));
    let (few, most) = exceedances(n);
    let span_ms: u64 = of.iter().map(|i| i.window_ms).sum();
    let worst = [Verdict::ClientLimited, Verdict::ServerOverloaded].into_iter().find(|v| of.iter().any(|i| i.verdict == *v));
    // One interval rarely has enough samples for a p99 of its own; together they may, so that is counted again.
    let enough = if n >= MIN_COUNT_P99 { Verdict::Valid } else { Verdict::NotResolvable };
    Some(Latency {
        count: n,
        mean_ms: h.mean() * 1e-6,
        p50_ms: ms(h.value_at_quantile(0.5)),
        p95_ms: ms(h.value_at_quantile(0.95)),
        p99_ms: ms(h.value_at_quantile(0.99)),
        // The fewer samples lie above the p99, the higher it lies.
        p99_low_ms: most.map(|e| rank(n - e)),
        p99_high_ms: few.map(|e| rank(n - e)),
        achieved_rps: n as f64 / (span_ms as f64 * 1e-3),
        errors: of.iter().fold(0, |sum, i| sum.saturating_add(i.errors)),
        verdict: worst.unwrap_or(enough),
    })
}

/// An interval as it is kept: only the buckets that hold anything. A histogram over 100 ms has 139 kB, of which few are in use.
#[derive(Debug)]
struct Held {
    arrived_ms: u64,
    window_ms: u64,
    errors: u64,
    /// Response time, ns, and how many took it.
    counts: Vec<(u64, u64)>,
    outstanding: u64,
    oldest_ms: Option<f64>,
    verdict: Verdict,
}

impl From<Interval> for Held {
    fn from(i: Interval) -> Self {
        Held {
            arrived_ms: i.arrived_ms,
            window_ms: i.window_ms,
            errors: i.errors,
            counts: i.histogram.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect(),
            outstanding: i.outstanding,
            oldest_ms: i.oldest_ms,
            verdict: i.verdict,
        }
    }
}

/// Intervals of the last seconds, by service. Holds no clock: every question says what time it is.
#[derive(Debug, Default)]
pub struct Windows {
    recent: BTreeMap<String, VecDeque<Held>>,
}

impl Windows {
    pub fn push(&mut self, i: Interval) {
        let oldest = i.arrived_ms.saturating_sub(LONGEST_WINDOW_MS);
        if !self.recent.contains_key(&i.service) && self.recent.len() >= MAX_SERVICES {
            self.recent.retain(|_, q| q.back().is_some_and(|last| last.arrived_ms >= oldest));
            if self.recent.len() >= MAX_SERVICES {
                return;
            }
        }
        let q = self.recent.entry(i.service.clone()).or_default();
        q.push_back(i.into());
        while q.front().is_some_and(|f| f.arrived_ms < oldest) || q.len() > MAX_INTERVALS {
            q.pop_front();
        }
    }

    fn since(&self, service: &str, from_ms: u64) -> Vec<&Held> {
        self.recent.get(service).map(|q| q.iter().filter(|i| i.arrived_ms > from_ms).collect()).unwrap_or_default()
    }

    fn silent(&self, service: &str, now_ms: u64) -> bool {
        self.recent.get(service).and_then(|q| q.back()).is_none_or(|i| now_ms.saturating_sub(i.arrived_ms) > SILENT_MS)
    }

    /// Whether the feed speaks; `window` is what it says.
    pub fn state(&self, service: &str, now_ms: u64, window: Option<&Latency>) -> FeedState {
        if self.silent(service, now_ms) {
            let heard = self.recent.get(service).and_then(|q| q.back());
            return FeedState::Unknown { since_ms: heard.map_or(0, |i| i.arrived_ms) };
        }
        FeedState::heard(window)
    }

    /// What arrived after `from_ms`; None without completions.
    pub fn interval(&self, service: &str, from_ms: u64) -> Option<Latency> {
        summarise(&self.since(service, from_ms))
    }

    /// The last second, longer at low rates; None for a silent feed.
    ///
    /// A server that answers nothing while requests wait has a window too: overloaded, with the time that it has been
    /// silent as the least that its p99 can be.
    pub fn window(&self, service: &str, now_ms: u64) -> Option<Latency> {
        if self.silent(service, now_ms) {
            return None;
        }
        let last = self.since(service, now_ms.saturating_sub(WINDOW_MS));
        let waiting = last.last().is_some_and(|i| i.outstanding > 0);
        if waiting && last.iter().all(|i| i.counts.is_empty()) {
            return self.stalled(service, now_ms, &last);
        }
        let mut span = WINDOW_MS;
        loop {
            let of = self.since(service, now_ms.saturating_sub(span));
            let l = summarise(&of);
            if l.is_some_and(|l| l.count >= MIN_COUNT_P99) || span >= LONGEST_WINDOW_MS {
                return l;
            }
            span += WINDOW_MS;
        }
    }

    fn stalled(&self, service: &str, now_ms: u64, last: &[&Held]) -> Option<Latency> {
        let q = self.recent.get(service)?;
        let answered = q.iter().rev().find(|i| !i.counts.is_empty()).or(q.front())?;
        let least = last.iter().filter_map(|i| i.oldest_ms).fold(now_ms.saturating_sub(answered.arrived_ms) as f64, f64::max);
        Some(Latency {
            count: 0,
            mean_ms: least,
            p50_ms: least,
            p95_ms: least,
            p99_ms: least,
            p99_low_ms: Some(least),
            p99_high_ms: None,
            achieved_rps: 0.0,
            errors: last.iter().fold(0, |sum, i| sum.saturating_add(i.errors)),
            verdict: Verdict::ServerOverloaded,
        })
    }

    /// When the oldest interval still held arrived.
    pub fn first_arrival(&self, service: &str) -> Option<u64> {
        self.recent.get(service)?.front().map(|i| i.arrived_ms)
    }

    pub fn forget(&mut self, service: &str) {
        self.recent.remove(service);
    }
}

/// The socket and the thread that empties it.
#[derive(Debug)]
pub struct Feed {
    path: PathBuf,
    start: Instant,
    windows: Arc<Mutex<Windows>>,
    refused: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Bind `path`; a socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where it cannot be bound.
    pub fn bind(path: &Path) -> Result<Self, ServerError> {
        let fail = |cause: String| ServerError::Unavailable {
            what: format!("latency socket {}", path.display()),
            cause,
            remedy: "Give a state folder that can be written and has a path below 100 bytes".into(),
        };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e.to_string())),
            _ => {}
        }
        let socket = UnixDatagram::bind(path).map_err(|e| fail(e.to_string()))?;
        socket.set_read_timeout(Some(Duration::from_millis(100))).map_err(|e| fail(e.to_string()))?;
        let start = Instant::now();
        let windows = Arc::new(Mutex::new(Windows::default()));
        let (refused, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (windows, refused, stop) = (windows.clone(), refused.clone(), stop.clone());
            std::thread::Builder::new().name("latency-feed".into()).spawn(move || receive(&socket, start, &windows, &refused, &stop))
        };
        Ok(Feed { path: path.into(), start, windows, refused, stop, thread: Some(thread.map_err(|e| fail(e.to_string()))?) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// ms on this feed's clock.
    pub fn now_ms(&self) -> u64 {
        clock_ms(self.start)
    }

    /// Datagrams that could not be read.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut Windows) -> T) -> T {
        f(&mut self.windows.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// From 1 on: "since 0" is since ever.
fn clock_ms(start: Instant) -> u64 {
    start.elapsed().as_millis() as u64 + 1
}

fn receive(socket: &UnixDatagram, start: Instant, windows: &Mutex<Windows>, refused: &AtomicU64, stop: &AtomicBool) {
    let mut buf = vec![0; MAX_DATAGRAM];
    while !stop.load(Ordering::Relaxed) {
        let Ok(n) = socket.recv(&mut buf) else { continue };
        match decode(&buf[..n], clock_ms(start)) {
            Ok(i) => windows.lock().unwrap_or_else(PoisonError::into_inner).push(i),
            Err(e) => {
                // Once: a sender with another format would fill the log ten times a second.
                if refused.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!("{e}; further ones are only counted");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer, V2Serializer};

    fn datagram(service: &str, values_ms: &[u64], extra: &str) -> Vec<u8> {
        let mut h: Histogram<u64> = Histogram::new(3).unwrap();
        values_ms.iter().for_each(|v| h.record(v * 1_000_000).unwrap());
        let mut raw = vec![];
        V2Serializer::new().serialize(&h, &mut raw).unwrap();
        let b64 = base64::engine::general_purpose::STANDARD.encode(raw);
        let n = values_ms.len();
        format!(r#"{{"service":"{service}","t_ms":1,"window_ms":100,"count":{n},"unit":"ns","histogram":"{b64}"{extra}}}"#).into_bytes()
    }

    fn push(w: &mut Windows, at: u64, values_ms: &[u64], extra: &str) {
        w.push(decode(&datagram("m", values_ms, extra), at).unwrap());
    }

    /// One slow interval of ten owns the merged p99; the mean of ten percentiles would be ten times too small.
    #[test]
    fn percentiles_come_from_merged_histograms() {
        let mut w = Windows::default();
        for i in 0..9 {
            push(&mut w, 100 * (i + 1), &[1; 100], "");
        }
        push(&mut w, 1000, &[100; 100], "");
        let l = w.window("m", 1000).unwrap();
        assert_eq!((l.count, l.achieved_rps, l.verdict), (1000, 1000.0, Verdict::Valid));
        assert!((l.p99_ms - 100.0).abs() < 0.2 && (l.p50_ms - 1.0).abs() < 0.01, "{l:?}");
        assert_eq!(w.interval("m", 900).unwrap().count, 100);
        assert!(w.interval("m", 1000).is_none());
    }

    /// A feed that has been silent for more than a second is unknown, one that says "nothing answered" is overloaded.
    #[test]
    fn silence_is_unknown_and_a_stall_is_overload() {
        let mut w = Windows::default();
        push(&mut w, 100, &[1; 100], "");
        assert!(w.window("m", 1100).is_some());
        assert!(w.window("m", 1101).is_none() && w.window("other", 100).is_none());
        for t in 2..=16 {
            push(&mut w, 100 * t, &[], r#","outstanding":40,"oldest_ms":null"#);
        }
        // Last answer at 100 ms.
        let l = w.window("m", 1600).unwrap();
        assert_eq!((l.count, l.p99_ms, l.verdict), (0, 1500.0, Verdict::ServerOverloaded));
    }

    /// At 20 requests a second the window grows until it holds the 100 that a p99 needs.
    #[test]
    fn low_rates_get_longer_windows() {
        let mut w = Windows::default();
        for t in 1..=90 {
            push(&mut w, 100 * t, &[1, 2], "");
        }
        assert_eq!(w.window("m", 9000).unwrap().count, 100 * 2 / 10 * 5);
        let mut w = Windows::default();
        push(&mut w, 100, &[1], "");
        assert_eq!(w.window("m", 200).unwrap().verdict, Verdict::NotResolvable);
    }

    /// The interval of the p99 covers it for 95 % of uniform samples, and has no upper end below 368 of them.
    #[test]
    fn confidence_intervals_cover() {
        // 0.99^368 < 0.025 < 0.99^367.
        assert_eq!((exceedances(367).0, exceedances(368).0), (None, Some(0)));
        // Binomial(1000, 0.01): P(X <= 3) = 0.0101, P(X <= 4) = 0.0287; P(X > 16) = 0.0264, P(X > 17) = 0.0136.
        assert_eq!(exceedances(1000), (Some(3), Some(17)));
        let (mut x, mut hits) = (1u64, 0);
        for _ in 0..400 {
            let mut v: Vec<u64> = (0..1000)
                .map(|_| {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    1 + (x >> 33) % 100_000
                })
                .collect();
            v.sort_unstable();
            let (few, most) = exceedances(1000);
            hits += u32::from((v[1000 - most.unwrap() as usize - 1]..=v[1000 - few.unwrap() as usize - 1]).contains(&99_000));
        }
        assert!((365..=400).contains(&hits), "{hits} of 400");
    }

    /// Just past the last exact sum the normal distribution says the same to within one sample.
    #[test]
    fn intervals_of_many_samples() {
        let (few, most) = exceedances(EXACT_BELOW);
        let (few_more, most_more) = exceedances(EXACT_BELOW + 1);
        assert!(few.unwrap().abs_diff(few_more.unwrap()) <= 1 && most.unwrap().abs_diff(most_more.unwrap()) <= 1);
        // 10^10 samples, 10^8 above the p99, give or take 1.96 * 9949.9 = 19501.4.
        assert_eq!(exceedances(10_000_000_000), (Some(99_980_498), Some(100_019_501)));
    }

    /// What a stranger can send costs bounded memory and time: digits, counts, names, intervals and window.
    #[test]
    fn one_datagram_cannot_cost_much() {
        let with = |digits: u8, count: u64| {
            let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1 << 62, digits).unwrap();
            h.record_n(5, count).unwrap();
            let mut raw = vec![];
            V2Serializer::new().serialize(&h, &mut raw).unwrap();
            let b64 = base64::engine::general_purpose::STANDARD.encode(raw);
            format!(
                r#"{{"service":"m","window_ms":18446744073709551615,"count":{count},"errors":18446744073709551615,"histogram":"{b64}"}}"#
            )
        };
        assert!(decode(with(5, 1).as_bytes(), 0).unwrap_err().contains("digits"));
        assert!(decode(with(3, MAX_COUNT + 1).as_bytes(), 0).unwrap_err().contains("limit"));
        let mut w = Windows::default();
        for t in 0..2 * MAX_INTERVALS as u64 {
            w.push(decode(with(3, MAX_COUNT).as_bytes(), 1 + t).unwrap());
        }
        let l = w.window("m", 600).unwrap();
        assert_eq!((l.count, l.errors), (MAX_INTERVALS as u64 * MAX_COUNT, u64::MAX));
        for n in 0..2 * MAX_SERVICES {
            w.push(decode(&datagram(&format!("s{n}"), &[1], ""), 600).unwrap());
        }
        assert_eq!(w.recent.len(), MAX_SERVICES);
        // Those that have been silent make room.
        push(&mut w, 601 + LONGEST_WINDOW_MS, &[1], "");
        w.push(decode(&datagram("late", &[1], ""), 601 + LONGEST_WINDOW_MS).unwrap());
        assert!(w.recent.len() == 2 && w.recent.contains_key("late"), "{:?}", w.recent.keys());
    }

    /// What cannot be read is refused in one line that says why.
    #[test]
    fn bad_datagrams_are_refused() {
        let says = |b: &[u8]| decode(b, 0).unwrap_err();
        assert!(says(b"{").contains("latency datagram"));
        assert!(says(br#"{"service":"m","count":0,"histogram":"!"}"#).contains("base64"));
        assert!(says(br#"{"service":"m","count":0,"histogram":"AAAA"}"#).contains("V2"));
        let text = String::from_utf8(datagram("m", &[1], "")).unwrap();
        assert!(says(text.replace("\"count\":1", "\"count\":2").as_bytes()).contains("count 2"));
        assert!(says(text.replace("\"ns\"", "\"us\"").as_bytes()).contains("us"));
    }

    /// A datagram sent to the socket is in the window, an unreadable one is counted, and the socket is gone afterwards.
    #[test]
    fn the_socket_delivers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed.sock");
        std::fs::write(&path, "left by a dead process").unwrap();
        let feed = Feed::bind(&path).unwrap();
        let s = UnixDatagram::unbound().unwrap();
        s.send_to(b"nonsense", &path).unwrap();
        s.send_to(&datagram("m", &[5; 200], ""), &path).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while feed.with(|w| w.interval("m", 0)).is_none() {
            assert!(Instant::now() < deadline, "nothing arrived");
            std::thread::yield_now();
        }
        assert_eq!(feed.refused(), 1);
        drop(feed);
        assert!(!path.exists());
    }
}
