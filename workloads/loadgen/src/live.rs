//! A schedule that can be changed while it runs: a rate set on command, a warm-up that ends when it is over.
//!
//! A change has a time in the near future ([`LEAD_NS`]), because every sending thread must see it before it sends a request that is due
//! after it. Each thread then draws its arrivals again from its last own one on. Intended times are the changed schedule's: they are the
//! same for any number of threads, and a thread that looked too late is late, which its lag shows.

use crate::driver::Source;
use crate::schedule::{owner, Arrival, Cursor, Plan};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// From a command to its effect.
pub const LEAD_NS: u64 = 20_000_000;
/// How often a waiting thread looks for changes.
pub const LOOK_NS: u64 = 5_000_000;
/// Most changes of one run.
pub const MAX_CHANGES: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// The load is `rps` from `at_ns` on, whatever the profile says.
    Load { at_ns: u64, rps: f64 },
    /// The warm-up ends at `at_ns`; the measured time follows.
    WarmupEnd { at_ns: u64 },
}

/// Changes so far, seen by all threads.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicUsize,
    list: Mutex<Vec<Change>>,
}

impl Changes {
    fn push(&self, make: impl FnOnce(&[Change]) -> Option<Change>) -> Option<Change> {
        let mut list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let change = make(&list)?;
        list.push(change);
        self.count.store(list.len(), Ordering::Release);
        Some(change)
    }

    /// Set the rate; returns from when it holds, or nothing if there have been [`MAX_CHANGES`].
    pub fn set_rps(&self, now_ns: u64, rps: f64) -> Option<u64> {
        let pushed = self.push(|list| {
            let last = list.iter().rev().find_map(|c| match c {
                Change::Load { at_ns, .. } => Some(*at_ns),
                Change::WarmupEnd { .. } => None,
            });
            let at_ns = (now_ns + LEAD_NS).max(last.map_or(0, |l| l + 1));
            (list.len() < MAX_CHANGES).then_some(Change::Load { at_ns, rps })
        });
        pushed.map(|c| match c {
            Change::Load { at_ns, .. } | Change::WarmupEnd { at_ns } => at_ns,
        })
    }

    /// End the warm-up at `at_ns`, which must be at least [`LEAD_NS`] ahead. Once.
    pub fn end_warmup(&self, at_ns: u64) {
        self.push(|list| (!list.iter().any(|c| matches!(c, Change::WarmupEnd { .. }))).then_some(Change::WarmupEnd { at_ns }));
    }

    /// All but the first `seen`.
    pub fn since(&self, seen: usize) -> Vec<Change> {
        self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[seen..].to_vec()
    }
}

impl Plan {
    /// Take a change up.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Load { at_ns, rps } => self.changes.push((at_ns, rps)),
            Change::WarmupEnd { at_ns } => {
                self.end_ns = at_ns + (self.end_ns - self.warmup_ns);
                self.warmup_ns = at_ns;
            }
        }
    }
}

/// One thread's share of a schedule that may change.
#[derive(Debug)]
pub struct LiveSchedule<'a> {
    plan: Plan,
    changes: Option<&'a Changes>,
    seen: usize,
    thread: usize,
    threads: usize,
    /// Behind the last arrival of this thread that was taken.
    base: Cursor,
    /// Behind the one that is peeked at.
    ahead: Cursor,
    peeked: Option<Option<Arrival>>,
}

impl<'a> LiveSchedule<'a> {
    pub fn new(plan: Plan, changes: Option<&'a Changes>, thread: usize, threads: usize) -> Self {
        let base = Cursor::start(&plan);
        LiveSchedule { plan, changes, seen: 0, thread, threads, base, ahead: base, peeked: None }
    }

    fn look(&mut self) {
        let Some(changes) = self.changes else { return };
        if changes.count.load(Ordering::Acquire) == self.seen {
            return;
        }
        for change in changes.since(self.seen) {
            self.plan.apply(change);
            self.seen += 1;
        }
        self.ahead = self.base;
        self.peeked = None;
    }
}

impl Source for LiveSchedule<'_> {
    fn peek(&mut self) -> Option<Arrival> {
        self.look();
        if self.peeked.is_none() {
            let own = loop {
                match self.ahead.advance(&self.plan) {
                    Some(a) if owner(self.plan.seed, a.index, self.threads) != self.thread => {}
                    other => break other,
                }
            };
            self.peeked = Some(own);
        }
        self.peeked.flatten()
    }

    fn take(&mut self) {
        self.base = self.ahead;
        self.peeked = None;
    }

    fn end_ns(&self) -> Option<u64> {
        Some(self.plan.end_ns)
    }

    fn look_ns(&self) -> u64 {
        if self.changes.is_some() {
            LOOK_NS
        } else {
            u64::MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadProfile;
    use crate::mmpp::Mmpp;
    use crate::schedule::{Arrivals, Schedule};

    const SEC: u64 = 1_000_000_000;

    fn plan(rps: f64) -> Plan {
        let arrivals = Arrivals::Mmpp(Mmpp::bursty(3.0, 0.2, 50_000_000).unwrap());
        Plan { arrivals, load: LoadProfile::constant(rps).unwrap(), seed: 5, warmup_ns: SEC, end_ns: 4 * SEC, changes: vec![] }
    }

    /// Walk the threads' shares in time order, with each change made when its time comes; each thread looks ahead as far as it likes.
    fn walk(threads: usize, make: &[(u64, f64)], warmup_end: Option<u64>) -> Vec<Arrival> {
        let changes = Changes::default();
        let mut shares: Vec<LiveSchedule> = (0..threads).map(|t| LiveSchedule::new(plan(800.0), Some(&changes), t, threads)).collect();
        let mut all = Vec::new();
        let mut todo = make.to_vec();
        for now_ns in (0..5 * SEC).step_by(1_000_000) {
            if todo.first().is_some_and(|c| c.0 <= now_ns) {
                let (_, rps) = todo.remove(0);
                assert_eq!(changes.set_rps(now_ns, rps), Some(now_ns + LEAD_NS));
            }
            if warmup_end == Some(now_ns) {
                changes.end_warmup(now_ns + LEAD_NS);
                changes.end_warmup(3 * SEC);
            }
            for s in &mut shares {
                while let Some(a) = s.peek().filter(|a| a.intended_ns <= now_ns) {
                    s.take();
                    all.push(a);
                }
            }
        }
        all.sort_by_key(|a| a.index);
        all
    }

    /// Without changes a live schedule is the plain one; with them it is the same for any number of threads, no request is lost or sent
    /// twice, and it is what a plan with the same changes gives.
    #[test]
    fn threads_agree_on_a_changed_schedule() {
        let p = plan(800.0);
        let plain: Vec<Arrival> = Schedule::new(p.arrivals.clone(), &p.load, p.warmup_ns, p.end_ns - p.warmup_ns, p.seed).collect();
        assert_eq!(walk(3, &[], None), plain);
        let make = [(SEC / 2, 3000.0), (2 * SEC, 1.0), (2 * SEC + SEC / 2, 5000.0)];
        let one = walk(1, &make, None);
        assert_eq!(walk(3, &make, None), one);
        assert!(one.iter().enumerate().all(|(i, a)| a.index == i as u64));
        let changed = Plan { changes: make.iter().map(|c| (c.0 + LEAD_NS, c.1)).collect(), ..plan(800.0) };
        let mut cursor = Cursor::start(&changed);
        assert_eq!(std::iter::from_fn(|| cursor.advance(&changed)).collect::<Vec<_>>(), one);
        // A change does not wait for the next arrival of a slow stream: at 1 rps it may be a second away.
        assert!(one.iter().any(|a| a.intended_ns > 2 * SEC + SEC / 2 + LEAD_NS && a.intended_ns < 2 * SEC + SEC / 2 + LEAD_NS + SEC / 50));
    }

    /// A warm-up that ends early moves the end of the stream and nothing that was sent; the first end counts.
    #[test]
    fn an_early_end_of_the_warmup_shortens_the_stream() {
        let early = walk(2, &[], Some(SEC / 2));
        let plain = walk(2, &[], None);
        let end_ns = SEC / 2 + LEAD_NS + 3 * SEC;
        let kept: Vec<Arrival> = plain.into_iter().filter(|a| a.intended_ns < end_ns).collect();
        assert_eq!(early, kept);
    }
}
