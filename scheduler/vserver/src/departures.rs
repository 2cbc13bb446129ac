//! Which requests leave a station now, and how long they have waited: the law of the wait at the time when they came.
//!
//! A load generator can tell of a request only when its answer is there. Behind a backlog that is long after it came, at a pace that may
//! have changed since. So a station keeps the laws of the last seconds by its *work clock*: mean services that its servers could have begun
//! so far. A request that finds the wait W on its arrival leaves when the clock has gone W on, at whatever pace.
//!
//! Seconds throughout; the clock counts services.

use crate::queue::{Law, Moments, Station};
use std::collections::VecDeque;

/// Points kept: beyond it every other one of the older half goes, so that memory is bounded whatever the backlog.
const MOST_POINTS: usize = 512;
/// Points that there can be before the next segment thins them out.
pub(crate) const ALL_POINTS: usize = MOST_POINTS + 2 * crate::path::MOST_POINTS as usize;
/// Mean waits below this are none, s: no ratio is taken of them.
const NO_WAIT_S: f64 = 1e-9;

/// Law of the wait at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub at: Moments,
    pub law: Law,
}

impl Wait {
    /// Of one path, where it is known ([`crate::path`]).
    pub fn known(wait_s: f64, cap_s: f64) -> Wait {
        Wait { at: Moments { m: wait_s, v: 0.0 }, law: Law { waits: 1.0, ell: 0.0, cap_s } }
    }

    /// Mean over all requests, those that find a free server with them.
    fn mean_s(&self) -> f64 {
        self.law.waits * self.at.m
    }

    /// The same law where time goes by at another pace.
    fn scaled(self, f: f64) -> Wait {
        let Wait { at, law } = self;
        Wait { at: Moments { m: at.m * f, v: at.v * f * f }, law: Law { ell: law.ell * f, cap_s: law.cap_s * f, ..law } }
    }

    /// Between this one and another.
    fn mixed(&self, other: &Wait, share: f64) -> Wait {
        let mix = |x: f64, y: f64| x + (y - x) * share;
        let (a, b) = (self, other);
        Wait {
            at: Moments { m: mix(a.at.m, b.at.m), v: mix(a.at.v, b.at.v) },
            law: Law { waits: mix(a.law.waits, b.law.waits), ell: mix(a.law.ell, b.law.ell), cap_s: mix(a.law.cap_s, b.law.cap_s) },
        }
    }
}

/// Arrivals of an instant.
#[derive(Clone, Copy, Debug)]
struct Point {
    at_s: f64,
    /// The work clock then.
    clock: f64,
    /// Clock at which arrivals of this instant leave, in the mean.
    leaves: f64,
    wait: Wait,
}

/// One station's arrivals that have not left, by time and by clock. Empty: nothing is known yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Departures {
    points: VecDeque<Point>,
    clock: f64,
    /// Servers and mean service of the last segment.
    servers: f64,
    service_s: f64,
}

impl Departures {
    /// Forget everything: what waits now came in a way that laws do not tell.
    pub fn forget(&mut self) {
        self.points.clear();
        self.service_s = 0.0;
    }

    /// The mean service of the last segment; None before the first.
    pub fn service_s(&self) -> Option<f64> {
        (self.service_s > 0.0).then_some(self.service_s)
    }

    /// No service begins for `lost_s`.
    pub fn stall(&mut self, lost_s: f64) {
        if self.service_s > 0.0 {
            self.clock -= lost_s * self.servers / self.service_s;
        }
    }

    /// A segment that begins at `now_s` with the wait of `first`, which is asked only where nothing is known yet, and lasts for `h_s`: waits at
    /// equal distances, the last at its end.
    pub fn pass(&mut self, st: &Station, now_s: f64, h_s: f64, first: impl FnOnce() -> Wait, waits: impl ExactSizeIterator<Item = Wait>) {
        if st.service_s <= 0.0 {
            return;
        }
        (self.servers, self.service_s) = (f64::from(st.servers), st.service_s);
        if self.points.is_empty() {
            self.points.reserve(ALL_POINTS);
            self.put(now_s, first());
        }
        let dt = h_s / waits.len() as f64;
        for (wait, n) in waits.zip(1u32..) {
            self.clock += dt * self.servers / self.service_s;
            self.put(now_s + f64::from(n) * dt, wait);
        }
    }

    /// Waits of the requests whose service begins between two times, each with the span, s, in which they came.
    pub fn left_between(&self, from_s: f64, to_s: f64, waits: &mut Vec<(f64, f64)>) {
        let (from, to) = (self.clock_at(from_s), self.clock_at(to_s));
        let first = self.points.partition_point(|p| p.leaves <= from).saturating_sub(1);
        let mut t = first;
        for (a, b) in self.points.range(first..).zip(self.points.range(first + 1..)) {
            if a.leaves >= to {
                break;
            }
            let all = b.leaves - a.leaves;
            let (lo, hi) = (a.leaves.max(from), b.leaves.min(to));
            let mid = if all > 0.0 { (0.5 * (lo + hi) - a.leaves) / all } else { 0.5 };
            let came_s = a.at_s + (b.at_s - a.at_s) * mid;
            let clock = 0.5 * (lo + hi);
            while t + 1 < self.points.len() && self.points[t + 1].clock <= clock {
                t += 1;
            }
            let left_s = match self.points.get(t + 1) {
                Some(y) if y.clock > self.points[t].clock => {
                    let x = &self.points[t];
                    x.at_s + (y.at_s - x.at_s) * (clock - x.clock) / (y.clock - x.clock)
                }
                _ => self.points[t].at_s,
            };
            let part = if all > 0.0 { (hi - lo) / all } else { 1.0 };
            waits.push(((left_s - came_s).max(0.0), (b.at_s - a.at_s) * part));
        }
    }

    fn put(&mut self, at_s: f64, wait: Wait) {
        let leaves = self.clock + wait.mean_s() * self.servers / self.service_s;
        // First come, first served.
        let leaves = self.points.back().map_or(leaves, |p| p.leaves.max(leaves));
        self.points.push_back(Point { at_s, clock: self.clock, leaves, wait });
    }

    /// What the last segment came to, where one path was drawn of all: its wait at the end is `m`.
    pub fn drawn(&mut self, m: f64) {
        let n = self.points.len();
        if n < 3 {
            return;
        }
        let shift = m - self.points[n - 1].wait.at.m;
        for (i, share) in [(n - 2, 0.5), (n - 1, 1.0)] {
            let (servers, service_s) = (self.servers, self.service_s);
            let before = self.points[i - 1].leaves;
            let p = &mut self.points[i];
            p.wait.at.m = (p.wait.at.m + share * shift).max(0.0);
            p.leaves = before.max(p.clock + p.wait.mean_s() * servers / service_s);
        }
    }

    /// Arrival time, s, and wait of the requests whose service begins at `t_s`; None before the first segment.
    pub fn leaving(&self, t_s: f64) -> Option<(f64, Wait)> {
        let first = self.points.front()?;
        let clock = self.clock_at(t_s);
        let i = self.points.partition_point(|p| p.leaves <= clock);
        if i == 0 {
            // They came before anything is known.
            return Some((first.at_s.min(t_s), first.wait));
        }
        let a = &self.points[i - 1];
        let Some(b) = self.points.get(i) else {
            return Some((a.at_s.min(t_s), a.wait));
        };
        let share = (clock - a.leaves) / (b.leaves - a.leaves);
        let came_s = (a.at_s + (b.at_s - a.at_s) * share).min(t_s);
        let wait = a.wait.mixed(&b.wait, share);
        let mean_s = wait.mean_s();
        let f = if mean_s > NO_WAIT_S { (t_s - came_s) / mean_s } else { 1.0 };
        Some((came_s, wait.scaled(f)))
    }

    /// The clock at a time within what is kept.
    fn clock_at(&self, t_s: f64) -> f64 {
        let i = self.points.partition_point(|p| p.at_s <= t_s);
        match (i.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(i)) {
            (Some(a), Some(b)) => a.clock + (b.clock - a.clock) * (t_s - a.at_s) / (b.at_s - a.at_s),
            (Some(p), None) | (None, Some(p)) => p.clock,
            (None, None) => self.clock,
        }
    }

    /// Nothing is asked any more of requests that left before `t_s`.
    pub fn forget_before(&mut self, t_s: f64) {
        let clock = self.clock_at(t_s);
        while self.points.len() > 3 && self.points[1].leaves <= clock && self.points[1].at_s <= t_s {
            self.points.pop_front();
        }
        if self.points.len() > MOST_POINTS {
            let mut n = 0;
            self.points.retain(|_| {
                n += 1;
                n > MOST_POINTS / 2 || n % 2 == 1
            });
        }
    }
}
