//! The live latency feed: one JSON datagram per service and window on a Unix datagram socket. This file is the shape's one home.
//!
//! ```json
//! {"service":"memcached","t_ms":123456,"window_ms":100,"count":203,"errors":0,"unit":"ns","histogram":"HISTFAAAA...",
//!  "offered":201,"dropped":0,"outstanding":1,"oldest_ms":null,"verdict":"valid"}
//! ```
//! Readers take percentiles from merged histograms, and must ignore fields that they do not know. While a server stalls, `count` is 0
//! and `outstanding` grows: silence is not calm. A datagram that nobody takes is counted by the sender and gone.

use base64::Engine;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use surefoot_io::out::{self, note};

/// One window of one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FeedDatagram {
    /// The service's name, as its `workload.toml` has it.
    pub service: String,
    /// End of the window, ms of CLOCK_MONOTONIC of the sending host (shared by all processes and containers of that host).
    pub t_ms: u64,
    /// Length of the window, ms.
    pub window_ms: u64,
    /// Replies that arrived in the window; equals the histogram's count.
    pub count: u64,
    /// Error replies and requests on lost connections in the window. Not in the histogram.
    pub errors: u64,
    /// Unit of the histogram's values: always "ns".
    pub unit: String,
    /// Response times (intended send to reply): HdrHistogram V2 (uncompressed), base64 with padding. 3 significant digits, 1 ns to 1000 s.
    pub histogram: String,
    /// Requests that were due in the window.
    pub offered: u64,
    /// Requests dropped in the window at the cap on outstanding requests. Not in the histogram.
    pub dropped: u64,
    /// Requests due and not answered at the end of the window.
    pub outstanding: u64,
    /// Age of the oldest request that waits in the client for room on a connection, ms; null if none waits.
    pub oldest_ms: Option<f64>,
    /// The window's verdict: "valid", "client-limited", "server-overloaded" or "not-resolvable". A window rarely has enough samples
    /// for a p99 of its own, so "not-resolvable" is usual: merge windows and count again.
    pub verdict: String,
}

/// HdrHistogram V2, base64.
pub fn encode_histogram(h: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2Serializer::new().serialize(h, &mut bytes).expect("serialising into memory cannot fail");
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The inverse of [`encode_histogram`].
///
/// # Errors
/// Text saying what is wrong with it.
pub fn decode_histogram(text: &str) -> Result<Histogram<u64>, String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|e| format!("histogram is not base64: {e}"))?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).map_err(|e| format!("histogram is not HdrHistogram V2: {e:?}"))
}

/// The path that means standard output.
pub const STANDARD_OUTPUT: &str = "-";

#[derive(Debug)]
enum Way {
    Socket(UnixDatagram, PathBuf),
    /// Lines on standard output, for a reader on another host ([`crate::relay`]).
    Lines,
}

/// Sends datagrams; a missing or slow reader of a socket never holds the generator up.
#[derive(Debug)]
pub struct FeedSender {
    way: Way,
    warned: bool,
    pub delivered: u64,
    pub undelivered: u64,
    /// Nobody reads standard output any more.
    pub gone: bool,
}

impl FeedSender {
    /// # Errors
    /// If this process cannot have a datagram socket at all.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        let way = if path == Path::new(STANDARD_OUTPUT) {
            Way::Lines
        } else {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            Way::Socket(socket, path.into())
        };
        Ok(FeedSender { way, warned: false, delivered: 0, undelivered: 0, gone: false })
    }

    /// Send, or count as undelivered; the first failure is told on stderr.
    pub fn send(&mut self, datagram: &FeedDatagram) {
        let mut text = serde_json::to_vec(datagram).expect("a datagram is plain data");
        let (sent, to) = match &self.way {
            Way::Socket(socket, path) => (socket.send_to(&text, path).map(drop), path.display().to_string()),
            Way::Lines => {
                text.push(b'\n');
                let sent = out::stream(&text);
                self.gone = sent.is_err();
                (sent, "standard output".into())
            }
        };
        let Err(e) = sent else {
            self.delivered += 1;
            return;
        };
        self.undelivered += 1;
        if !std::mem::replace(&mut self.warned, true) {
            let then = if self.gone { "the run ends" } else { "going on, undelivered windows are counted" };
            note(&format!("warning: feed {to}: {e}; {then} (start the reader or check --feed)"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram() -> Histogram<u64> {
        let mut h = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
        for i in 1..=20_000u64 {
            h.record(i * 1_000).unwrap();
        }
        h
    }

    /// A histogram survives the way through the socket, and merging two doubles every count.
    #[test]
    fn histogram_round_trip_and_merge() {
        let h = histogram();
        let mut back = decode_histogram(&encode_histogram(&h)).unwrap();
        assert_eq!(back, h);
        back.add(&h).unwrap();
        assert_eq!(back.len(), 40_000);
        assert_eq!(back.value_at_quantile(0.99), h.value_at_quantile(0.99));
        assert!(decode_histogram("no!").is_err());
        assert!(decode_histogram("AAAA").is_err());
    }

    /// A missing socket costs nothing but a count; once it is there, datagrams arrive whole.
    #[test]
    fn missing_reader_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed.sock");
        let mut sender = FeedSender::new(&path).unwrap();
        let h = histogram();
        let datagram = FeedDatagram {
            service: "memcached".into(),
            t_ms: 1,
            window_ms: 100,
            count: h.len(),
            errors: 0,
            unit: "ns".into(),
            histogram: encode_histogram(&h),
            offered: h.len(),
            dropped: 0,
            outstanding: 0,
            oldest_ms: None,
            verdict: "valid".into(),
        };
        sender.send(&datagram);
        assert_eq!((sender.delivered, sender.undelivered), (0, 1));
        let reader = UnixDatagram::bind(&path).unwrap();
        sender.send(&datagram);
        assert_eq!((sender.delivered, sender.undelivered), (1, 1));
        let mut buf = vec![0; 256 * 1024];
        let n = reader.recv(&mut buf).unwrap();
        let got: FeedDatagram = serde_json::from_slice(&buf[..n]).unwrap();
        assert_eq!(got, datagram);
        assert_eq!(decode_histogram(&got.histogram).unwrap(), h);
    }
}
