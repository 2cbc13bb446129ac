//! What is known of a latency, and of whom.

use super::datagram::Interval;
use surefoot_server::{FeedState, Latency};

/// What is known of a service's latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub feed: FeedState,
    /// Since the last look.
    pub interval: Option<Latency>,
    /// The last second, longer at low rates.
    pub window: Option<Latency>,
}

/// A process that speaks, told from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speaker {
    pub socket: usize,
    pub pid: u32,
    pub started_us: u64,
}

/// A datagram, and its sender where that can be told.
#[derive(Debug)]
pub(super) struct Heard {
    pub i: Interval,
    pub from: Option<Speaker>,
}

/// Exceedances of the p99 among `n` samples that bound its 95 % interval: (fewest, most); each None where `n` is too small.
///
/// The number of samples above the true p99 is Binomial(n, 0.01); order statistics at its 2.5 % and 97.5 % points bound it.
pub(super) fn exceedances(n: u64) -> (Option<u64>, Option<u64>) {
    let (p, alpha) = (0.01f64, 0.025);
    if n > 50_000 {
        // The normal law is off by a sample at most here, of hundreds; summing up would take as many steps.
        let (mean, half) = (n as f64 * p, 1.959_964 * (n as f64 * p * (1.0 - p)).sqrt());
        return (Some((mean - half).floor() as u64), Some((mean + half).ceil() as u64));
    }
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
