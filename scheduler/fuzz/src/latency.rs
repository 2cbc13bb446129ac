//! Latency datagrams (design 4.8): any process that may write to the socket can send anything.

use arbitrary::{Arbitrary, Unstructured};
use base64::Engine as _;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use surefoot_server::window::LONGEST_WINDOW_MS;
use surefoot_linux::feed::{decode, Interval, Windows, MAX_DATAGRAM};
use surefoot_server::Latency;

/// What one datagram may cost, bytes: 16 for each byte of counts, which are in base64.
const MAX_HISTOGRAM_BYTES: usize = MAX_DATAGRAM / 4 * 3 * 16;

/// First byte 0: the rest is a sequence of intervals, sent as they should be. Anything else: the whole is a datagram.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, rest)) => well_formed(rest),
        _ => raw(data),
    }
}

fn raw(data: &[u8]) {
    let i = match decode(data, 5) {
        Ok(i) => i,
        Err(e) => return crate::one_line(&e.to_string()),
    };
    bounded(&i);
    let mut w = Windows::default();
    assert!(w.push(i.clone(), None).is_err(), "nobody expects it yet");
    w.begin(&i.service, 100);
    for t in [200, 300] {
        w.push(Interval { arrived_ms: t, ..i.clone() }, None).expect("expected");
    }
    for now in [300, u64::MAX] {
        check(w.read(&i.service, 0, now, 10.0).window);
    }
    check(w.interval(&i.service, 0));
    w.forget(&i.service);
    assert!(w.interval(&i.service, 0).is_none());
}

fn bounded(i: &Interval) {
    let bytes = i.counts.cells.len() * 16;
    assert!(bytes <= MAX_HISTOGRAM_BYTES, "one datagram holds {bytes} bytes");
    assert!(i.window_ms > 0);
}

fn check(latency: Option<Latency>) {
    let Some(l) = latency else { return };
    for v in [l.mean_ms, l.p50_ms, l.p95_ms, l.p99_ms, l.achieved_rps] {
        assert!(v.is_finite() && v >= 0.0, "{l:?}");
    }
    assert!(l.p50_ms <= l.p95_ms && l.p95_ms <= l.p99_ms, "{l:?}");
    assert!(l.p99_low_ms.is_none_or(|low| low <= l.p99_ms) && l.p99_high_ms.is_none_or(|high| high >= l.p99_ms), "{l:?}");
}

#[derive(Arbitrary, Debug)]
struct Sent {
    wait_ms: u16,
    errors: u16,
    window_ms: u16,
    values_us: Vec<u32>,
}

/// What a sender meant is what is read, and windows add up.
fn well_formed(rest: &[u8]) {
    let mut u = Unstructured::new(rest);
    let Ok(sent) = Vec::<Sent>::arbitrary(&mut u) else { return };
    let (mut w, mut now, mut held) = (Windows::default(), 1u64, vec![]);
    w.begin("m", 1);
    for s in sent.iter().take(16) {
        let mut h: Histogram<u64> = Histogram::new(3).expect("three digits");
        s.values_us.iter().for_each(|v| h.record(u64::from(*v) * 1000).expect("it grows"));
        let mut raw = vec![];
        V2Serializer::new().serialize(&h, &mut raw).expect("written to memory");
        let text = serde_json::json!({
            "service": "m", "t_ms": now, "window_ms": 1 + s.window_ms % 60_000, "count": h.len(), "errors": s.errors, "unit": "ns",
            "histogram": base64::engine::general_purpose::STANDARD.encode(&raw),
        });
        now += u64::from(s.wait_ms);
        let i = decode(text.to_string().as_bytes(), now).expect("a well-formed datagram");
        bounded(&i);
        let highest = i.counts.cells.last().map_or(0, |c| c.ns);
        assert_eq!((i.counts.total, highest, i.errors), (h.len(), h.max(), u64::from(s.errors)));
        held.retain(|(at, _)| *at + LONGEST_WINDOW_MS >= now);
        held.push((now, h.len()));
        w.push(i, None).expect("expected");
        check(w.read("m", 0, now, 10.0).window);
        let all: u64 = held.iter().map(|(_, n)| n).sum();
        assert_eq!(w.interval("m", 0).map_or(0, |l| l.count), all);
    }
}
