//! Request-by-request simulation of G/G/k with FCFS (SPEC.md, section 8): what the laws of [`crate::queue`] are checked
//! against, and the building blocks of [`crate::core_use`].
//!
//! Arrivals are batches: Poisson instants, geometric sizes of mean (scv_arrival + 1) / 2. Each request makes `fanout`
//! tasks that are served in order of arrival by k servers; it is answered when its last task is. Everything streams, in
//! bounded memory, and follows from the seed alone: request n has the same arrival and the same work whatever serves it,
//! so that two policies can be compared on the same requests.
//!
//! Times in seconds. Where the reference prototype reports one response per task, this reports one per request (the
//! same thing at fanout 1).

use crate::math::Draws;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Independent streams of random numbers of one seed.
const GAPS: u64 = 1;
const SIZES: u64 = 2;
const SERVICES: u64 = 3;

/// Seconds in a heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time(pub(crate) f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Geometric number of requests of one batch of mean `mean`.
pub(crate) fn batch_size(mean: f64, u: impl Fn() -> f64) -> u64 {
    if mean <= 1.0 {
        1
    } else {
        1 + (u().ln() / (1.0 - 1.0 / mean).ln()) as u64
    }
}

/// Requests that arrive at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    pub at_s: f64,
    pub requests: u64,
}

/// Batch-Poisson arrivals; endless, unless the rate is 0.
#[derive(Clone, Debug)]
pub struct Arrivals {
    mean_batch: f64,
    mean_gap_s: f64,
    gaps: Draws,
    sizes: Draws,
    /// Batches so far.
    seq: u64,
    /// The next batch comes `gap` mean gaps after `from_s`.
    from_s: f64,
    gap: f64,
}

impl Arrivals {
    /// `rate_rps` requests/s on average, 0 or more; `scv_arrival` is the squared coefficient of variation, 1 (Poisson) or
    /// more.
    pub fn new(rate_rps: f64, scv_arrival: f64, seed: u64) -> Self {
        let mean_batch = ((scv_arrival + 1.0) / 2.0).max(1.0);
        let gaps = Draws::new(&[seed, GAPS]);
        Arrivals {
            mean_batch,
            mean_gap_s: mean_batch / rate_rps,
            gaps,
            sizes: Draws::new(&[seed, SIZES]),
            seq: 0,
            from_s: 0.0,
            gap: -gaps.uniform(0).ln(),
        }
    }

    /// When the next batch comes; infinite at rate 0.
    pub fn next_s(&self) -> f64 {
        self.from_s + self.gap * self.mean_gap_s
    }

    /// Change the rate at `now_s`, which must not be after the next batch.
    pub fn set_rate_rps(&mut self, rate_rps: f64, now_s: f64) {
        // Memoryless: what is left of the gap keeps its length in mean gaps.
        if self.mean_gap_s.is_finite() {
            self.gap = ((self.next_s() - now_s) / self.mean_gap_s).max(0.0);
        }
        self.from_s = now_s;
        self.mean_gap_s = self.mean_batch / rate_rps;
    }
}

impl Iterator for Arrivals {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let at_s = self.next_s();
        if at_s == f64::INFINITY {
            return None;
        }
        let requests = batch_size(self.mean_batch, || self.sizes.uniform(self.seq));
        self.seq += 1;
        self.from_s = at_s;
        self.gap = -self.gaps.uniform(self.seq).ln();
        Some(Batch { at_s, requests })
    }
}

/// Service times of tasks: deterministic at scv 0, exponential at scv 1, else lognormal.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTimes {
    mean_s: f64,
    law: Law,
    draws: Draws,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    Deterministic,
    Exponential,
    /// Standard deviation of the logarithm.
    Lognormal(f64),
}

impl ServiceTimes {
    /// `mean_s` above 0; `scv` is the squared coefficient of variation, 0 or more.
    pub fn new(mean_s: f64, scv: f64, seed: u64) -> Self {
        let law = if scv == 0.0 {
            Law::Deterministic
        } else if scv == 1.0 {
            Law::Exponential
        } else {
            Law::Lognormal(scv.ln_1p().sqrt())
        };
        ServiceTimes { mean_s, law, draws: Draws::new(&[seed, SERVICES]) }
    }

    /// Service time of task `task`, seconds.
    pub fn of(&self, task: u64) -> f64 {
        match self.law {
            Law::Deterministic => self.mean_s,
            Law::Exponential => -self.mean_s * self.draws.uniform(task).ln(),
            Law::Lognormal(sigma) => self.mean_s * (sigma * self.draws.gauss(task) - 0.5 * sigma * sigma).exp(),
        }
    }
}

/// k servers and one queue, first come first served.
#[derive(Clone, Debug)]
pub struct Fcfs {
    /// When each server is free.
    free: BinaryHeap<Reverse<Time>>,
}

impl Fcfs {
    /// All `servers` are busy until `free_at_s` with work that was there before.
    ///
    /// # Panics
    /// Without servers.
    pub fn new(servers: u32, free_at_s: f64) -> Self {
        assert!(servers > 0, "a station needs a server");
        Fcfs { free: (0..servers).map(|_| Reverse(Time(free_at_s))).collect() }
    }

    /// Serve a task; arrivals must not go back in time.
    ///
    /// Returns begin and end of its service, seconds.
    pub fn serve(&mut self, arrival_s: f64, service_s: f64) -> (f64, f64) {
        let mut begin_s = arrival_s;
        if let Some(mut first) = self.free.peek_mut() {
            begin_s = begin_s.max(first.0 .0);
            *first = Reverse(Time(begin_s + service_s));
        }
        (begin_s, begin_s + service_s)
    }
}

/// A G/G/k station and its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestModel {
    pub rate_rps: f64,
    /// Mean service time of a task.
    pub service_s: f64,
    pub servers: u32,
    pub scv_service: f64,
    pub scv_arrival: f64,
    /// Tasks of one request.
    pub fanout: u32,
    /// Until when every server is busy with earlier work.
    pub start_work_s: f64,
}

impl RequestModel {
    /// G/G/k from empty, one task a request.
    pub fn new(rate_rps: f64, service_s: f64, servers: u32, scv_service: f64, scv_arrival: f64) -> Self {
        RequestModel { rate_rps, service_s, servers, scv_service, scv_arrival, fanout: 1, start_work_s: 0.0 }
    }

    /// Its requests one by one, in order of arrival; endless unless the rate is 0.
    ///
    /// # Panics
    /// If servers or fanout are 0.
    pub fn run(&self, seed: u64) -> Requests {
        assert!(self.fanout > 0, "a request needs a task");
        Requests {
            arrivals: Arrivals::new(self.rate_rps, self.scv_arrival, seed),
            services: ServiceTimes::new(self.service_s, self.scv_service, seed),
            station: Fcfs::new(self.servers, self.start_work_s),
            fanout: self.fanout,
            batch: Batch { at_s: 0.0, requests: 0 },
            tasks: 0,
        }
    }
}

/// One request, answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Response {
    pub arrival_s: f64,
    /// Until its first task began.
    pub wait_s: f64,
    /// Until its last task ended.
    pub response_s: f64,
}

/// Requests of a [`RequestModel`] in order of arrival. Memory: one number per server.
#[derive(Clone, Debug)]
pub struct Requests {
    arrivals: Arrivals,
    services: ServiceTimes,
    station: Fcfs,
    fanout: u32,
    /// What is left of the present batch.
    batch: Batch,
    tasks: u64,
}

impl Iterator for Requests {
    type Item = Response;

    fn next(&mut self) -> Option<Response> {
        if self.batch.requests == 0 {
            self.batch = self.arrivals.next()?;
        }
        self.batch.requests -= 1;
        let at_s = self.batch.at_s;
        let (mut first_s, mut last_s) = (f64::INFINITY, at_s);
        for _ in 0..self.fanout {
            let (begin_s, end_s) = self.station.serve(at_s, self.services.of(self.tasks));
            self.tasks += 1;
            first_s = first_s.min(begin_s);
            last_s = last_s.max(end_s);
        }
        Some(Response { arrival_s: at_s, wait_s: first_s - at_s, response_s: last_s - at_s })
    }
}

/// Exact quantiles `q` (0 to 1) of `values`, linear between neighbours in rank (NumPy's default); None if there are none.
///
/// Sorts `values`.
pub fn quantiles<const N: usize>(values: &mut [f64], q: [f64; N]) -> Option<[f64; N]> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len() - 1;
    Some(q.map(|q| {
        let rank = q.clamp(0.0, 1.0) * last as f64;
        let below = rank as usize;
        let above = (below + 1).min(last);
        values[below] + (rank - below as f64) * (values[above] - values[below])
    }))
}
