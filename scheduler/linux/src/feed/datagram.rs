//! One latency datagram (docs/latency-feed.md): JSON around an HdrHistogram.
//!
//! The histogram is read into the few cells that hold something. The dense array of the format, 256 KiB for nanoseconds up to 1000 s,
//! is never made: neither for the twenty seconds that are kept of each service, nor because a header asks for it.

use base64::Engine as _;
use serde::Deserialize;
use std::borrow::Cow;
use surefoot_server::Verdict;

/// Largest datagram taken, bytes.
pub const MAX_DATAGRAM: usize = 256 * 1024;
/// Longest window that a datagram may speak of, ms.
pub(super) const MOST_WINDOW_MS: u64 = 60_000;
/// Requests of one service that are believed, a second: more than any machine answers. Also of those that wait.
pub const MOST_PER_S: u64 = 100_000_000;
/// Longest response time, and longest wait, that is believed, ms: a day.
pub const MOST_MS: f64 = 86_400_000.0;
/// HdrHistogram V2, uncompressed; and its sibling with zlib.
const COOKIE: u32 = 0x1c84_9313;
const COOKIE_COMPRESSED: u32 = 0x1c84_9314;
const HEADER: usize = 40;

/// Why a datagram was not taken, for counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Too long, no JSON, or not these fields.
    Format,
    /// Of no length, or of more than a minute.
    Window,
    /// Not nanoseconds.
    Unit,
    Histogram,
    /// Histogram and count disagree.
    Count,
    /// Counts or times that no window can hold.
    Impossible,
    /// Of no LC service that is watched here.
    Service,
    /// Of a service that is not here yet, or not at present.
    Absent,
    /// Of a service whose histogram is scraped.
    Scraped,
    /// Its sender may not speak for that service.
    Sender,
    /// Beyond its sender's share.
    Rate,
    /// A page of a scraped service that could not be had, read or believed.
    Page,
}

impl Reason {
    pub const ALL: [Reason; 12] = [
        Reason::Format,
        Reason::Window,
        Reason::Unit,
        Reason::Histogram,
        Reason::Count,
        Reason::Impossible,
        Reason::Service,
        Reason::Absent,
        Reason::Scraped,
        Reason::Sender,
        Reason::Rate,
        Reason::Page,
    ];

    fn of_what(self) -> &'static str {
        if self == Reason::Page {
            "page"
        } else {
            "datagram"
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Format => "format",
            Reason::Window => "window",
            Reason::Unit => "unit",
            Reason::Histogram => "histogram",
            Reason::Count => "count",
            Reason::Impossible => "impossible",
            Reason::Service => "service",
            Reason::Absent => "absent",
            Reason::Scraped => "scraped",
            Reason::Sender => "sender",
            Reason::Rate => "rate",
            Reason::Page => "page",
        }
    }
}

/// A datagram that was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("latency {}: {why}", .reason.of_what())]
pub struct Refused {
    pub reason: Reason,
    /// What is wrong, and what would be right, in one line.
    pub why: String,
}

/// What a datagram says; fields that are not known are ignored.
#[derive(Deserialize)]
struct Datagram<'a> {
    #[serde(borrow)]
    service: Cow<'a, str>,
    #[serde(default = "default_window_ms")]
    window_ms: u64,
    count: u64,
    #[serde(default)]
    errors: u64,
    #[serde(borrow, default = "ns")]
    unit: Cow<'a, str>,
    #[serde(borrow)]
    histogram: Cow<'a, str>,
    #[serde(default)]
    offered: u64,
    #[serde(default)]
    dropped: u64,
    #[serde(default)]
    outstanding: u64,
    #[serde(default)]
    oldest_ms: Option<f64>,
    #[serde(default)]
    verdict: Verdict,
}

impl Datagram<'_> {
    /// Whether counts and times are such as a window of this length can hold.
    ///
    /// # Errors
    /// The first that is not, and its bound.
    fn check(&self, counts: &Counts) -> Result<(), String> {
        // Below 2^33 for the longest window.
        let most = MOST_PER_S * self.window_ms / 1000;
        let fields = [("count", self.count), ("errors", self.errors), ("offered", self.offered), ("dropped", self.dropped)];
        if let Some((field, n)) = fields.into_iter().find(|(_, n)| *n > most) {
            return Err(format!("{field} {n} in {} ms. At most {MOST_PER_S} a second are believed", self.window_ms));
        }
        if self.outstanding > MOST_PER_S {
            return Err(format!("outstanding {}. At most {MOST_PER_S} are believed", self.outstanding));
        }
        if let Some(ms) = self.oldest_ms.filter(|ms| !(0.0..=MOST_MS).contains(ms)) {
            return Err(format!("oldest_ms {ms}. From 0 to a day ({MOST_MS}) is believed; null where it is not known"));
        }
        match counts.cells.last().filter(|c| c.ns as f64 * 1e-6 > MOST_MS) {
            Some(c) => Err(format!("a response time of {:.0} s. At most a day is believed", c.ns as f64 * 1e-9)),
            None => Ok(()),
        }
    }
}

fn default_window_ms() -> u64 {
    100
}

fn ns() -> Cow<'static, str> {
    "ns".into()
}

/// So many response times that count as the same: the highest of them, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pub ns: u64,
    pub count: u64,
}

/// Response times, from the shortest on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    pub cells: Box<[Cell]>,
    pub total: u64,
    /// Sum of the middles of all cells, ns.
    pub sum_ns: f64,
}

/// One decoded datagram.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    pub service: String,
    /// When it arrived, ms on the reader's clock. What the sender's clock says is not used.
    pub arrived_ms: u64,
    pub window_ms: u64,
    pub errors: u64,
    pub counts: Counts,
    /// Requests that were due, and those of them that were not sent; 0 where the sender does not say.
    pub offered: u64,
    pub dropped: u64,
    pub outstanding: u64,
    pub oldest_ms: Option<f64>,
    pub verdict: Verdict,
}

/// A name out of a datagram, fit for a log.
pub(super) fn shown(name: &str) -> String {
    let short: String = name.chars().take(40).collect();
    format!("{short:?}")
}

/// Words of another library about a datagram, which may quote it.
fn clean(e: &dyn std::fmt::Display) -> String {
    e.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
}

/// Decode one datagram. Takes memory in proportion to its bytes, whatever they say.
///
/// # Errors
/// [`Refused`]: what is wrong with it.
pub fn decode(bytes: &[u8], arrived_ms: u64) -> Result<Interval, Refused> {
    let refuse = |reason, why: String| Refused { reason, why };
    if bytes.len() > MAX_DATAGRAM {
        return Err(refuse(Reason::Format, format!("{} bytes. Send at most {MAX_DATAGRAM}", bytes.len())));
    }
    let d: Datagram = serde_json::from_slice(bytes).map_err(|e| refuse(Reason::Format, clean(&e)))?;
    let of = shown(&d.service);
    if d.unit != "ns" {
        return Err(refuse(Reason::Unit, format!("{of}: unit {}, only \"ns\" is known", shown(&d.unit))));
    }
    if !(1..=MOST_WINDOW_MS).contains(&d.window_ms) {
        return Err(refuse(Reason::Window, format!("{of}: window_ms {}. Give 1 to {MOST_WINDOW_MS}", d.window_ms)));
    }
    let raw = base64::engine::general_purpose::STANDARD
        .decode(d.histogram.as_bytes())
        .map_err(|e| refuse(Reason::Histogram, format!("{of}: histogram is not base64: {e}")))?;
    let counts = counts_of_v2(&raw).map_err(|e| refuse(Reason::Histogram, format!("{of}: histogram {e}")))?;
    if counts.total != d.count {
        return Err(refuse(Reason::Count, format!("{of}: count {} but the histogram has {}", d.count, counts.total)));
    }
    d.check(&counts).map_err(|e| refuse(Reason::Impossible, format!("{of}: {e}")))?;
    Ok(Interval {
        service: d.service.into_owned(),
        arrived_ms,
        window_ms: d.window_ms,
        errors: d.errors,
        counts,
        offered: d.offered,
        dropped: d.dropped,
        outstanding: d.outstanding,
        oldest_ms: d.oldest_ms,
        verdict: d.verdict,
    })
}

/// Read an HdrHistogram in the V2 encoding.
///
/// # Errors
/// What is wrong with it, to follow "histogram".
pub fn counts_of_v2(raw: &[u8]) -> Result<Counts, String> {
    let word = |at: usize| Some(u32::from_be_bytes(raw.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_be_bytes(raw.get(at..at + 8)?.try_into().ok()?));
    match word(0) {
        Some(COOKIE) => {}
        Some(COOKIE_COMPRESSED) => return Err("is compressed. Send HdrHistogram V2 without compression".into()),
        _ => return Err("is not HdrHistogram V2".into()),
    }
    let header = (|| Some((word(4)?, word(8)?, word(12)?, long(16)?, long(24)?, long(32)?)))();
    let Some((length, offset, digits, low, high, ratio)) = header else { return Err("ends within its header".into()) };
    if raw.len() - HEADER != length as usize {
        return Err(format!("says that it has {length} bytes of counts and has {}", raw.len() - HEADER));
    }
    if offset != 0 || f64::from_bits(ratio) != 1.0 {
        return Err("has an offset or a ratio. Send one of plain integers".into());
    }
    if digits > 5 || low == 0 || low > u64::MAX / 2 || high < 2 * low {
        return Err(format!("has {digits} digits from {low} to {high}. Give 0 to 5 digits, and a range of at least a factor of 2 above 0"));
    }
    let scale = Scale::new(low, digits);
    let mut payload = &raw[HEADER..];
    let mut cells = Vec::new();
    let (mut index, mut total, mut sum_ns) = (0u64, 0u64, 0f64);
    while !payload.is_empty() {
        let n = zigzag(&mut payload).ok_or("ends within a count")?;
        if n < 0 {
            index = index.checked_add(n.unsigned_abs()).ok_or("skips beyond all values")?;
            continue;
        }
        if n > 0 {
            let count = n as u64;
            let (ns, middle) = scale.value(index).ok_or("has values beyond 64 bits")?;
            total = total.checked_add(count).ok_or("has more than 64 bits of counts")?;
            sum_ns += middle as f64 * count as f64;
            cells.push(Cell { ns, count });
        }
        index += 1;
    }
    Ok(Counts { cells: cells.into_boxed_slice(), total, sum_ns })
}

/// A signed number in zig-zag LEB128 of at most nine bytes; the ninth counts with all its bits.
fn zigzag(from: &mut &[u8]) -> Option<i64> {
    let mut n = 0u64;
    for i in 0..9 {
        let (b, rest) = from.split_first()?;
        *from = rest;
        if i == 8 {
            n |= u64::from(*b) << 56;
        } else {
            n |= u64::from(*b & 0x7f) << (7 * i);
            if *b & 0x80 == 0 {
                break;
            }
        }
    }
    Some((n >> 1) as i64 ^ -((n & 1) as i64))
}

/// From indices of counts to values: buckets of twice the width of the one before, each with as many sub-buckets.
struct Scale {
    unit_magnitude: u32,
    half_magnitude: u32,
}

impl Scale {
    fn new(low: u64, digits: u32) -> Self {
        // Sub-buckets tell apart all values below 2 x 10^digits units.
        let sub_buckets = (2 * 10u32.pow(digits)).next_power_of_two();
        Scale { unit_magnitude: low.ilog2(), half_magnitude: sub_buckets.ilog2() - 1 }
    }

    /// Highest and middle value of those that count as the same; None beyond 64 bits.
    fn value(&self, index: u64) -> Option<(u64, u64)> {
        let half = 1u64 << self.half_magnitude;
        let (bucket, sub) = match index >> self.half_magnitude {
            0 => (0, index),
            b => (b - 1, (index & (half - 1)) + half),
        };
        let shift = u32::try_from(bucket).ok()?.checked_add(self.unit_magnitude)?;
        if shift >= 64 || sub.leading_zeros() < shift {
            return None;
        }
        let width = 1u64 << shift;
        let lowest = sub << shift;
        Some((lowest + (width - 1), lowest + width / 2))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer, V2Serializer};
    use hdrhistogram::Histogram;

    /// A datagram with these response times, as a sender makes it.
    pub(in crate::feed) fn datagram(service: &str, values_ms: &[u64], extra: &str) -> Vec<u8> {
        let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
        values_ms.iter().for_each(|v| h.record(v * 1_000_000).unwrap());
        let n = values_ms.len();
        let b64 = base64::engine::general_purpose::STANDARD.encode(v2(&h));
        format!(r#"{{"service":"{service}","t_ms":1,"window_ms":100,"count":{n},"unit":"ns","histogram":"{b64}"{extra}}}"#).into_bytes()
    }

    fn v2(h: &Histogram<u64>) -> Vec<u8> {
        let mut raw = vec![];
        V2Serializer::new().serialize(h, &mut raw).unwrap();
        raw
    }

    fn lot(x: &mut u64) -> u64 {
        *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *x >> 20
    }

    /// Cells, counts and means are those of the HdrHistogram crate, whatever range, resolution and values a sender has.
    #[test]
    fn it_reads_what_the_crate_writes() {
        let mut x = 7;
        for round in 0..300 {
            let low = 1u64 << (lot(&mut x) % 12);
            let high = (low * 2) << (lot(&mut x) % 30);
            let mut h: Histogram<u64> = Histogram::new_with_bounds(low, high, (round % 6) as u8).unwrap();
            for _ in 0..lot(&mut x) % 500 {
                h.record_n(lot(&mut x) % high, 1 + lot(&mut x) % 9).unwrap();
            }
            let c = counts_of_v2(&v2(&h)).unwrap();
            let want: Vec<(u64, u64)> =
                h.iter_recorded().map(|v| (h.highest_equivalent(v.value_iterated_to()), v.count_at_value())).collect();
            assert_eq!(c.cells.iter().map(|c| (c.ns, c.count)).collect::<Vec<_>>(), want, "round {round}");
            assert_eq!(c.total, h.len());
            let mean = if c.total > 0 { c.sum_ns / c.total as f64 } else { 0.0 };
            assert!((mean - h.mean()).abs() <= 1e-9 * h.mean(), "round {round}: {mean} {}", h.mean());
        }
    }

    /// What cannot be read is refused in one line that says why, with its reason for the counter.
    #[test]
    fn bad_datagrams_are_refused() {
        let says = |b: &[u8], reason: Reason, text: &str| {
            let e = decode(b, 0).unwrap_err();
            assert_eq!(e.reason, reason, "{e}");
            assert!(e.to_string().contains(text) && !e.to_string().contains('\n'), "{e}");
        };
        says(b"{", Reason::Format, "EOF");
        says(&vec![b' '; MAX_DATAGRAM + 1], Reason::Format, "bytes");
        says(br#"{"service":"m","count":0,"histogram":"!"}"#, Reason::Histogram, "base64");
        says(br#"{"service":"m\n\u001b[31m","count":0,"histogram":"AAAA"}"#, Reason::Histogram, "V2");
        let text = String::from_utf8(datagram("m", &[1], "")).unwrap();
        let with = |from: &str, to: &str| text.replace(from, to).into_bytes();
        says(&with("\"count\":1", "\"count\":2"), Reason::Count, "count 2");
        says(&with("\"ns\"", "\"us\""), Reason::Unit, "us");
        for w in ["0", "60001", "18446744073709551615"] {
            says(&with("\"window_ms\":100", &format!("\"window_ms\":{w}")), Reason::Window, "1 to 60000");
        }
        says(&with("\"count\":1", "\"count\":-1"), Reason::Format, "invalid");
        says(&with("\"unit\"", "\"verdict\":\"a\\nb\",\"unit\""), Reason::Format, "a b");
    }

    /// Counts and times that no window can hold are refused with their bound: 2^61 requests, negative or endless waits, centuries. What a fast
    /// machine counts is taken.
    #[test]
    fn what_no_window_can_hold_is_refused() {
        let of = |count: u64, ns: u64, window_ms: u64, extra: &str| {
            let mut h: Histogram<u64> = Histogram::new_with_bounds(1, u64::MAX / 2, 3).unwrap();
            h.record_n(ns, count).unwrap();
            let b64 = base64::engine::general_purpose::STANDARD.encode(v2(&h));
            let text = format!(r#"{{"service":"m","window_ms":{window_ms},"count":{count},"histogram":"{b64}"{extra}}}"#);
            decode(text.as_bytes(), 0)
        };
        const MS: u64 = 1_000_000;
        // 10^8 a second are believed.
        for (count, window_ms, taken) in
            [(10_000_000, 100, true), (10_000_001, 100, false), (6_000_000_000, 60_000, true), (1 << 61, 60_000, false)]
        {
            let got = of(count, MS, window_ms, "");
            assert_eq!(got.as_ref().err().map(|e| e.reason), (!taken).then_some(Reason::Impossible), "{count} in {window_ms} ms: {got:?}");
        }
        let says = |extra: &str, text: &str| {
            let e = of(1, MS, 100, extra).unwrap_err();
            assert!(e.reason == Reason::Impossible && e.why.starts_with("\"m\": ") && e.why.contains(text) && !e.why.contains('\n'), "{e}");
        };
        for field in ["errors", "offered", "dropped"] {
            assert!(of(1, MS, 100, &format!(",\"{field}\":10000000")).is_ok());
            says(&format!(",\"{field}\":10000001"), &format!("{field} 10000001 in 100 ms"));
            says(&format!(",\"{field}\":18446744073709551615"), field);
        }
        says(",\"outstanding\":100000001", "outstanding 100000001");
        for ms in ["-1", "-1e-300", "86400000.1", "1e300"] {
            says(&format!(",\"oldest_ms\":{ms}"), "oldest_ms");
        }
        assert_eq!(of(1, MS, 100, ",\"outstanding\":100000000,\"oldest_ms\":86400000").unwrap().oldest_ms, Some(MOST_MS));
        // No JSON has them.
        for ms in ["NaN", "Infinity", "1e999"] {
            assert_eq!(of(1, MS, 100, &format!(",\"oldest_ms\":{ms}")).unwrap_err().reason, Reason::Format, "{ms}");
        }
        // A day less what three digits cannot tell; a century.
        assert!(of(1, 86_000_000 * MS, 100, "").is_ok());
        assert!(of(1, 3_155_760_000_000 * MS, 100, "").unwrap_err().why.contains("a response time of"));
    }

    /// Headers that ask for the impossible or for gigabytes are refused without trying.
    #[test]
    fn absurd_histograms_are_refused() {
        let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        h.record(1000).unwrap();
        let good = v2(&h);
        let with = |at: usize, bytes: &[u8]| {
            let mut raw = good.clone();
            raw[at..at + bytes.len()].copy_from_slice(bytes);
            raw
        };
        let says = |raw: &[u8], text: &str| {
            let e = counts_of_v2(raw).unwrap_err();
            assert!(e.contains(text), "{e}");
        };
        assert_eq!(counts_of_v2(&good).unwrap().total, 1);
        says(&with(4, &u32::MAX.to_be_bytes()), "bytes of counts");
        says(&with(8, &1u32.to_be_bytes()), "offset");
        says(&with(12, &6u32.to_be_bytes()), "digits");
        says(&with(16, &0u64.to_be_bytes()), "range");
        says(&with(24, &1u64.to_be_bytes()), "range");
        says(&with(32, &2f64.to_be_bytes()), "ratio");
        says(&good[..20], "header");
        let mut deflated = vec![];
        V2DeflateSerializer::new().serialize(&h, &mut deflated).unwrap();
        says(&deflated, "compressed");
        // Counts: a run of nothing to the end of the world, a cell beyond 64 bits, more than 64 bits of counts, a cut number.
        let payload = |bytes: &[u8]| {
            let mut raw = with(4, &(bytes.len() as u32).to_be_bytes());
            raw.truncate(HEADER);
            raw.extend(bytes);
            raw
        };
        let far = [0xff; 9];
        says(&payload(&[&far[..], &far[..], &far[..], &[2]].concat()), "beyond");
        says(&payload(&[&[0xff, 0xff, 0x07][..], &[2]].concat()), "64 bits");
        let most = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        says(&payload(&[most, most, most].concat()), "64 bits of counts");
        says(&payload(&[0x80]), "within a count");
        assert_eq!(counts_of_v2(&payload(&[])).unwrap(), Counts::default());
    }

    /// Random bytes, and datagrams with random bytes in them, never end the reader.
    #[test]
    fn random_bytes_do_no_harm() {
        let good = datagram("m", &[1, 2, 3, 500], "");
        let mut x = 3;
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut bytes = if lot(&mut x).is_multiple_of(2) { good.clone() } else { vec![0; (lot(&mut x) % 200) as usize] };
            for _ in 0..lot(&mut x) % 4 {
                if let Some(len) = Some(bytes.len() as u64).filter(|l| *l > 0) {
                    bytes[(lot(&mut x) % len) as usize] = lot(&mut x) as u8;
                }
            }
            taken += u32::from(decode(&bytes, 0).is_ok());
            // The histogram itself, under any header.
            let mut raw = vec![0u8; 40 + (lot(&mut x) % 60) as usize];
            raw.iter_mut().for_each(|b| *b = lot(&mut x) as u8);
            raw[..4].copy_from_slice(&COOKIE.to_be_bytes());
            let payload = raw.len() as u32 - 40;
            raw[4..8].copy_from_slice(&payload.to_be_bytes());
            raw[8..16].copy_from_slice(&(lot(&mut x) % 6).to_be_bytes());
            raw[32..40].copy_from_slice(&1f64.to_be_bytes());
            let _ = counts_of_v2(&raw);
        }
        assert!(taken > 1000, "{taken}");
    }
}
