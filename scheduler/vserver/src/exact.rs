//! One LC service request by request and event by event: the second opinion on the laws of [`crate::queue`].
//!
//! A front station serves one request after the other. Behind it workers take requests in the order in which they came. A worker's pace is
//! that of its segment: work under way goes slower or faster from the moment a change takes effect. Where workers go away while all work,
//! those that are left share the tasks under way, as threads share CPUs. Nothing new begins before enough have ended. **What is reported are
//! requests that complete**, which is all that a load generator can tell.
//!
//! Speeds (caches, bandwidth, clocks) and the verdict "overloaded" are those of the plant: this judges queues, not contention. The price of a
//! thread's move is not in it.
//!
//! Cost follows requests, and so does memory: requests in the house (`max_outstanding` at most), and response times of the longest window.
//! Seconds throughout.

use crate::math::Draws;
use crate::requests::{Arrivals, ServiceTimes, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Independent streams of one seed, beyond those of [`crate::requests`].
const FRONT: u64 = 11;
const EXTRAS: u64 = 12;

/// A delay that strikes with a probability and is exponential then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Strike {
    pub p: f64,
    pub mean_s: f64,
}

/// What holds during one segment.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    pub rate_rps: f64,
    pub front_s: f64,
    pub front_scv: f64,
    /// Mean service time at a worker.
    pub service_s: f64,
    pub workers: u32,
    /// Network.
    pub fixed_s: f64,
    pub strikes: [Strike; 4],
    pub most: f64,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Job {
    arrived_s: f64,
    number: u64,
    /// In mean service times.
    work: f64,
}

/// What happened in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub arrived: u64,
    pub rejected: u64,
}

/// Requests that wait for a worker, in order, and what work they are together.
///
/// In overload there are millions, and how much they are is asked at every segment: it is kept, as an integer, so that coming and going leave
/// no error behind.
#[derive(Clone, Debug, Default)]
struct Line {
    jobs: VecDeque<Job>,
    /// In units of [`UNIT`].
    sum: u128,
}

/// A mean service time in a [`Line`]'s sum.
const UNIT: f64 = (1u64 << 40) as f64;

impl Line {
    fn push(&mut self, job: Job) {
        self.sum += Self::units(&job);
        self.jobs.push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.sum -= Self::units(&job);
        Some(job)
    }

    /// In mean service times.
    fn work(&self) -> f64 {
        self.sum as f64 / UNIT
    }

    fn units(job: &Job) -> u128 {
        (job.work * UNIT) as u128
    }
}

/// One service.
#[derive(Clone, Debug)]
pub(crate) struct House {
    arrivals: Arrivals,
    rate_rps: f64,
    works: ServiceTimes,
    front: Draws,
    extras: Draws,
    number: u64,
    front_free_s: f64,
    /// When each that has passed the front, or will, is at the workers.
    passing: VecDeque<(f64, Job)>,
    waiting: Line,
    /// By the work clock at which each ends; its arrival and number.
    running: BinaryHeap<Reverse<(Time, u64, Time)>>,
    /// Mean service times that a worker with a task to itself has done.
    clock: f64,
    /// When the answer of each is there, and its response time.
    answered: BinaryHeap<Reverse<(Time, Time)>>,
}

impl House {
    pub fn new(scv_arrival: f64, scv_service: f64, rate_rps: f64, now_s: f64, seed: u64) -> Self {
        let mut arrivals = Arrivals::new(0.0, scv_arrival, seed);
        arrivals.set_rate_rps(rate_rps, now_s);
        House {
            arrivals,
            rate_rps,
            works: ServiceTimes::new(1.0, scv_service, seed),
            front: Draws::new(&[seed, FRONT]),
            extras: Draws::new(&[seed, EXTRAS]),
            number: 0,
            front_free_s: now_s,
            passing: VecDeque::new(),
            waiting: Line::default(),
            running: BinaryHeap::new(),
            clock: 0.0,
            answered: BinaryHeap::new(),
        }
    }

    /// Work ahead of a newcomer at the front and at the workers.
    pub fn backlog_s(&self, now_s: f64, pace: &Pace) -> [f64; 2] {
        [(self.front_free_s - now_s).max(0.0), self.waiting.work() * pace.service_s / f64::from(pace.workers)]
    }

    /// Requests in the house.
    pub fn inside(&self) -> usize {
        self.passing.len() + self.waiting.jobs.len() + self.running.len()
    }

    /// Let a segment pass; `list` gets the response times, ms, of requests that are answered in it.
    pub fn pass(&mut self, from_s: f64, h: f64, pace: &Pace, list: &mut Vec<f64>) -> Count {
        if pace.rate_rps != self.rate_rps {
            self.arrivals.set_rate_rps(pace.rate_rps, from_s);
            self.rate_rps = pace.rate_rps;
        }
        let (end, mut now, mut count) = (from_s + h, from_s, Count::default());
        self.begin(pace);
        loop {
            let pace_per_s = self.pace_per_s(pace);
            let ends_s = self.running.peek().map_or(f64::INFINITY, |Reverse((at, ..))| now + (at.0 - self.clock) / pace_per_s);
            let comes_s = self.passing.front().map_or(f64::INFINITY, |(at, _)| *at);
            let arrives_s = self.arrivals.next_s();
            let next = ends_s.min(comes_s).min(arrives_s);
            if next >= end {
                self.clock += (end - now) * pace_per_s;
                break;
            }
            let next = next.max(now);
            self.clock += (next - now) * pace_per_s;
            now = next;
            if ends_s <= next {
                self.end_one(now, pace);
            } else if comes_s <= next {
                if let Some((_, job)) = self.passing.pop_front() {
                    self.waiting.push(job);
                }
            } else {
                self.arrive(now, pace, &mut count);
            }
            self.begin(pace);
        }
        while self.answered.peek().is_some_and(|Reverse((at, _))| at.0 < end) {
            list.extend(self.answered.pop().map(|Reverse((_, response))| response.0 * 1e3));
        }
        count
    }

    /// Of each task under way: workers fewer than tasks share them.
    fn pace_per_s(&self, pace: &Pace) -> f64 {
        let share = f64::from(pace.workers) / self.running.len().max(1) as f64;
        share.min(1.0) / pace.service_s
    }

    fn arrive(&mut self, now_s: f64, pace: &Pace, count: &mut Count) {
        let Some(batch) = self.arrivals.next() else { return };
        for _ in 0..batch.requests {
            count.arrived += 1;
            // Numbered before it is turned away: two policies see the same requests.
            let number = self.number;
            self.number += 1;
            if self.inside() as f64 >= pace.most {
                count.rejected += 1;
                continue;
            }
            let sigma = pace.front_scv.ln_1p().sqrt();
            let front_s = match pace.front_s {
                0.0 => 0.0,
                mean_s => mean_s * (sigma * self.front.gauss(number) - 0.5 * sigma * sigma).exp(),
            };
            self.front_free_s = self.front_free_s.max(now_s) + front_s;
            self.passing.push_back((self.front_free_s, Job { arrived_s: now_s, number, work: self.works.of(number) }));
        }
    }

    fn begin(&mut self, pace: &Pace) {
        while self.running.len() < pace.workers as usize {
            let Some(job) = self.waiting.pop() else { return };
            self.running.push(Reverse((Time(self.clock + job.work), job.number, Time(job.arrived_s))));
        }
    }

    fn end_one(&mut self, now_s: f64, pace: &Pace) {
        let Some(Reverse((_, number, arrived))) = self.running.pop() else { return };
        let strikes = pace.strikes.iter().zip(0u64..).filter(|(s, _)| s.p > 0.0);
        let struck: f64 = strikes
            .filter(|(s, j)| self.extras.uniform(number * 8 + j * 2) < s.p)
            .map(|(s, j)| -s.mean_s * self.extras.uniform(number * 8 + j * 2 + 1).ln())
            .sum();
        let at_s = now_s + pace.fixed_s + struck;
        self.answered.push(Reverse((Time(at_s), Time(at_s - arrived.0))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::erlang_c;
    use crate::steady::nearest_rank;

    fn pace(rate_rps: f64, service_ms: f64, workers: u32) -> Pace {
        Pace {
            rate_rps,
            front_s: 0.0,
            front_scv: 0.0,
            service_s: service_ms * 1e-3,
            workers,
            fixed_s: 0.0,
            strikes: [Strike { p: 0.0, mean_s: 0.0 }; 4],
            most: f64::INFINITY,
        }
    }

    fn house(p: &Pace, scv_service: f64, seed: u64) -> House {
        House::new(1.0, scv_service, p.rate_rps, 0.0, seed)
    }

    /// M/M/k: the mean response is that of Erlang's formula, and all that came is answered or inside.
    #[test]
    fn waits_are_those_of_erlang() {
        for (workers, rho) in [(1, 0.7), (8, 0.9)] {
            let p = pace(rho * f64::from(workers) / 2e-3, 2.0, workers);
            let (mut sum, mut n) = (0.0, 0);
            for seed in 0..8 {
                let (mut h, mut list) = (house(&p, 1.0, seed), vec![]);
                let count = h.pass(0.0, 100.0, &p, &mut list);
                assert_eq!(count.arrived as usize, list.len() + h.inside() + h.answered.len());
                (sum, n) = (sum + list.iter().sum::<f64>(), n + list.len());
            }
            let wait_ms = erlang_c(workers, rho) * 2.0 / (f64::from(workers) * (1.0 - rho));
            let got = sum / n as f64;
            assert!((got / (2.0 + wait_ms) - 1.0).abs() < 0.03, "{got} of {}", 2.0 + wait_ms);
        }
    }

    /// Cutting time in pieces changes no request.
    #[test]
    fn segments_change_nothing() {
        let p =
            Pace { front_s: 1e-4, front_scv: 0.5, fixed_s: 1e-4, strikes: [Strike { p: 0.1, mean_s: 1e-3 }; 4], ..pace(3000.0, 2.0, 7) };
        let (mut whole, mut parts, mut a, mut b) = (house(&p, 0.5, 3), house(&p, 0.5, 3), vec![], vec![]);
        whole.pass(0.0, 1.0, &p, &mut a);
        (0..64).for_each(|i| {
            parts.pass(f64::from(i) / 64.0, 1.0 / 64.0, &p, &mut b);
        });
        assert_eq!(a.len(), b.len());
        assert!(a.len() > 2000 && a.iter().zip(&b).all(|(x, y)| (x / y - 1.0).abs() < 1e-9));
    }

    /// Workers that go away leave their tasks to the others, which share them; with more workers all is done sooner.
    #[test]
    fn fewer_workers_share_what_is_under_way() {
        let p = pace(0.0, 100.0, 4);
        let mut h = house(&p, 0.0, 1);
        for number in 0..4 {
            h.waiting.push(Job { arrived_s: 0.0, number, work: 1.0 });
        }
        let mut list = vec![];
        h.pass(0.0, 0.05, &p, &mut list);
        // Half of each is left: two workers need twice as long for it.
        h.pass(0.05, 0.2, &Pace { workers: 2, ..p.clone() }, &mut list);
        assert!(list.len() == 4 && list.iter().all(|ms| (ms - 150.0).abs() < 1e-6), "{list:?}");
    }

    /// However many come and go, the work that waits is that of the requests that are left.
    #[test]
    fn a_line_knows_its_work() {
        let mut line = Line::default();
        let works = ServiceTimes::new(1.0, 4.0, 3);
        for number in 0..20_000u64 {
            line.push(Job { arrived_s: 0.0, number, work: works.of(number) });
            if number % 3 != 0 {
                line.pop();
            }
        }
        let sum: f64 = line.jobs.iter().map(|j| j.work).sum();
        assert!(line.jobs.len() > 6000 && (line.work() / sum - 1.0).abs() < 1e-9, "{} of {sum}", line.work());
        while line.pop().is_some() {}
        assert_eq!(line.work(), 0.0);
    }

    /// What does not fit in the house is turned away and counted.
    #[test]
    fn a_full_house_rejects() {
        let p = Pace { most: 10.0, ..pace(1000.0, 100.0, 1) };
        let (mut h, mut list) = (house(&p, 1.0, 1), vec![]);
        let count = h.pass(0.0, 1.0, &p, &mut list);
        assert!(h.inside() <= 10 && count.rejected > 900 && count.arrived > count.rejected, "{count:?}");
    }

    /// By completion (plant.md's example is checked in tests/exact.rs): after a long stop the first answers are the oldest.
    #[test]
    fn answers_count_when_they_are_there() {
        let p = pace(1000.0, 1.0, 1);
        let (mut h, mut list) = (house(&p, 0.0, 5), vec![]);
        h.pass(0.0, 1.0, &Pace { service_s: 1e3, ..p.clone() }, &mut list);
        assert!(list.is_empty());
        h.pass(1.0, 0.02, &Pace { service_s: 1e-4, ..p }, &mut list);
        let latency = nearest_rank(&mut list).unwrap();
        assert!(latency.p50 > 850.0, "{latency:?}");
    }
}
