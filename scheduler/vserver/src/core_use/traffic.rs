//! Arrivals of one primary VM: single requests (batch-Poisson) and bursts that last.
//!
//! A burst is a train of requests: it starts at a Poisson instant, has a geometric number of requests, and exponential
//! gaps between them. Bursts may overlap (a Bartlett-Lewis process). A burst's content follows from its number and the load
//! at its start, so that no policy alters it.

use crate::math::{mix64, Draws};
use crate::profile::{BurstShape, BurstWorkload};
use crate::requests::{batch_size, Arrivals, Batch, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Independent streams of random numbers of one seed; those of [`crate::requests`] are 1 to 3.
const STARTS: u64 = 4;
const SIZES: u64 = 5;
const GAPS: u64 = 6;

/// Bursts that go on at one instant without new memory.
const USUAL_OVERLAP: usize = 64;

/// A burst that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Train {
    next: Time,
    number: u64,
    /// Requests that have come.
    come: u64,
    /// Requests that are to come.
    left: u64,
    mean_gap_s: Time,
}

/// Arrivals of one primary VM, in order; endless unless the rate is 0.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    singles: Arrivals,
    /// First requests of bursts.
    starts: Arrivals,
    shape: Option<BurstShape>,
    /// The load that `shape` is told for.
    usual_rps: f64,
    mean_size: f64,
    sizes: Draws,
    gaps: u64,
    trains: BinaryHeap<Reverse<Train>>,
    started: u64,
}

impl Traffic {
    pub(super) fn new(w: &BurstWorkload, seed: u64) -> Self {
        let load = Load::of(w.bursts, w.qps, w.qps);
        Traffic {
            singles: Arrivals::new(load.singles_rps, w.scv_arrival, seed),
            starts: Arrivals::new(load.starts_per_s, 1.0, mix64(&[seed, STARTS])),
            shape: w.bursts,
            usual_rps: w.qps,
            mean_size: load.mean_size,
            sizes: Draws::new(&[seed, SIZES]),
            gaps: mix64(&[seed, GAPS]),
            trains: BinaryHeap::with_capacity(USUAL_OVERLAP),
            started: 0,
        }
    }

    /// When the next request comes; infinite if none does.
    pub(super) fn next_s(&self) -> f64 {
        let train_s = self.trains.peek().map_or(f64::INFINITY, |Reverse(t)| t.next.0);
        self.singles.next_s().min(self.starts.next_s()).min(train_s)
    }

    /// Change the rate of single requests and of new bursts; those that go on are as they were.
    pub(super) fn set_rate_rps(&mut self, rate_rps: f64, now_s: f64) {
        let load = Load::of(self.shape, self.usual_rps, rate_rps);
        self.singles.set_rate_rps(load.singles_rps, now_s);
        self.starts.set_rate_rps(load.starts_per_s, now_s);
        self.mean_size = load.mean_size;
    }
}

/// What a rate is made of.
struct Load {
    singles_rps: f64,
    starts_per_s: f64,
    mean_size: f64,
}

impl Load {
    /// Bursts come first: singles are what they leave.
    fn of(shape: Option<BurstShape>, usual_rps: f64, rate_rps: f64) -> Self {
        let Some(b) = shape else { return Load { singles_rps: rate_rps, starts_per_s: 0.0, mean_size: 1.0 } };
        let grown = if usual_rps > 0.0 { (rate_rps / usual_rps).powf(b.size_exponent) } else { 1.0 };
        let mean_size = (b.requests * grown).max(1.0);
        let starts_per_s = b.per_s.min(rate_rps / mean_size);
        Load { singles_rps: (rate_rps - starts_per_s * mean_size).max(0.0), starts_per_s, mean_size }
    }
}

impl Iterator for Traffic {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let at_s = self.next_s();
        if at_s == f64::INFINITY {
            return None;
        }
        if self.singles.next_s() <= at_s {
            return self.singles.next();
        }
        let mut train = if self.starts.next_s() <= at_s {
            self.starts.next();
            let number = self.started;
            self.started += 1;
            let lasts_s = self.shape.map_or(0.0, |b| b.lasts_ms * 1e-3);
            Train {
                next: Time(at_s),
                number,
                come: 0,
                left: batch_size(self.mean_size, || self.sizes.uniform(number)),
                mean_gap_s: Time(lasts_s / self.mean_size),
            }
        } else {
            self.trains.pop()?.0
        };
        train.left -= 1;
        train.come += 1;
        if train.left > 0 {
            // Larger bursts last as long: the gaps are those of the mean size at their start.
            let gap = -Draws::new(&[self.gaps, train.number]).uniform(train.come).ln();
            train.next = Time(at_s + gap * train.mean_gap_s.0);
            self.trains.push(Reverse(train));
        }
        Some(Batch { at_s, requests: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(qps: f64, bursts: Option<BurstShape>) -> BurstWorkload {
        BurstWorkload {
            name: "w".into(),
            qps,
            task_us: 1.0,
            fanout: 1,
            scv_service: 0.0,
            scv_arrival: 1.0,
            wake_us: 0.0,
            threads: None,
            pinned: false,
            bursts,
            paper_mean: None,
            paper_peak: None,
        }
    }

    const SHAPE: BurstShape = BurstShape { per_s: 20.0, requests: 25.0, lasts_ms: 5.0, size_exponent: 0.0 };

    fn rate(t: &mut Traffic, from_s: f64, to_s: f64) -> f64 {
        t.take_while(|b| b.at_s < to_s).filter(|b| b.at_s >= from_s).map(|b| b.requests).sum::<u64>() as f64 / (to_s - from_s)
    }

    /// Requests come in order, as many a second as asked for, whatever part of them is in bursts.
    #[test]
    fn the_rate_is_that_asked_for() {
        for qps in [100.0, 500.0, 2000.0] {
            let mut t = Traffic::new(&workload(qps, Some(SHAPE)), 1);
            let mut last_s = 0.0;
            for b in t.clone().take(20_000) {
                assert!(b.at_s >= last_s);
                last_s = b.at_s;
            }
            // 400 s of at most 8,000 bursts of 25 with geometric sizes: standard error below 2.2 %.
            let got = rate(&mut t, 0.0, 400.0);
            assert!((got / qps - 1.0).abs() < 0.05, "{got} of {qps}");
        }
    }

    /// With bursts alone: their number, their size and their length are those of the shape.
    #[test]
    fn bursts_have_their_shape() {
        let shape = BurstShape { per_s: 1.0, ..SHAPE };
        // Bursts take 25 of 25 requests/s: nothing comes singly. A gap above 100 ms separates two.
        let mut t = Traffic::new(&workload(25.0, Some(shape)), 2);
        let mut bursts: Vec<(f64, f64, u64)> = vec![];
        let mut last_s = f64::NEG_INFINITY;
        for b in t.by_ref().take_while(|b| b.at_s < 2000.0) {
            match bursts.last_mut() {
                Some(now) if b.at_s - last_s < 0.1 => (now.1, now.2) = (b.at_s, now.2 + b.requests),
                _ => bursts.push((b.at_s, b.at_s, b.requests)),
            }
            last_s = b.at_s;
        }
        let n = bursts.len() as f64;
        // Of 2,000 starts those within 0.1 s of another are one here: exp(-0.1) of them remain.
        assert!((n / (2000.0 * (-0.1f64).exp()) - 1.0).abs() < 0.08, "{n} bursts");
        let size = bursts.iter().map(|b| b.2 as f64).sum::<f64>() / n;
        assert!((size / (25.0 * 0.1f64.exp()) - 1.0).abs() < 0.08, "{size} requests");
        // Alone ones of 20 to 30 requests: (requests - 1) gaps of 0.2 ms.
        let gap_ms: Vec<f64> = bursts.iter().filter(|b| (20..=30).contains(&b.2)).map(|b| (b.1 - b.0) * 1e3 / (b.2 - 1) as f64).collect();
        let gap_ms = gap_ms.iter().filter(|g| **g < 1.0).sum::<f64>() / gap_ms.iter().filter(|g| **g < 1.0).count() as f64;
        assert!((gap_ms / 0.2 - 1.0).abs() < 0.08, "{gap_ms} ms");
    }

    /// At another load as many bursts come, of the same size; single requests make the difference. At less load than the
    /// bursts have, fewer come.
    #[test]
    fn bursts_are_those_of_the_clock() {
        let starts = |qps: f64| {
            let mut t = Traffic::new(&workload(qps, Some(SHAPE)), 3);
            let n = rate(&mut t, 0.0, 100.0);
            (t.started as f64 / 100.0, n)
        };
        for (qps, want) in [(50_000.0, 20.0), (1000.0, 20.0), (250.0, 10.0)] {
            let (got, _) = starts(qps);
            assert!((got / want - 1.0).abs() < 0.08, "{got} bursts/s at {qps}, want {want}");
        }
    }

    /// With exponent 1 the size of bursts follows the load, and with 0.5 its root; as many come.
    #[test]
    fn bursts_grow_with_the_load() {
        for (size_exponent, want) in [(0.0, 25.0), (0.5, 50.0), (1.0, 100.0)] {
            let w = workload(1000.0, Some(BurstShape { size_exponent, ..SHAPE }));
            let mut t = Traffic::new(&w, 5);
            t.set_rate_rps(4000.0, 0.0);
            let n = rate(&mut t, 0.0, 200.0);
            assert!((t.mean_size - want).abs() < 1e-9, "{}", t.mean_size);
            assert!((n / 4000.0 - 1.0).abs() < 0.03, "{n}");
            assert!((t.started as f64 / 200.0 / 20.0 - 1.0).abs() < 0.08, "{}", t.started);
        }
    }

    /// At rate 0 the bursts that go on end, and then nothing comes; a later rate starts again.
    #[test]
    fn no_load_is_no_load() {
        let mut t = Traffic::new(&workload(500.0, Some(SHAPE)), 4);
        rate(&mut t, 0.0, 10.0);
        let now_s = t.singles.next_s().min(t.starts.next_s()).min(10.0);
        t.set_rate_rps(0.0, now_s);
        assert!(t.by_ref().count() < 200 && t.next_s() == f64::INFINITY);
        t.set_rate_rps(500.0, 20.0);
        let got = rate(&mut t, 20.0, 220.0);
        assert!((got / 500.0 - 1.0).abs() < 0.06, "{got}");
    }
}
