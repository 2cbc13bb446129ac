//! Virtual time and in-process queueing servers: the [`Clock`] and [`Transport`] on which the generator is proven.

use crate::driver::{Clock, Fate, Pending, Sample, Transport};
use crate::error::LoadgenError;
use crate::random::{draw, unit};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

/// A clock that moves only when the simulation waits.
#[derive(Debug, Clone, Default)]
pub struct SimClock(Rc<Cell<u64>>);

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }
}

/// The law of the server's work per request.
#[derive(Debug, Clone, Copy)]
pub enum Work {
    Exponential { mean_ns: f64 },
    Fixed { ns: u64 },
}

/// First come, first served, by `servers` equal servers: M/M/k or M/D/k under Poisson arrivals.
#[derive(Debug)]
pub struct SimServer {
    clock: SimClock,
    work: Work,
    seed: u64,
    drawn: u64,
    /// What each server works on.
    running: Vec<Option<(Pending, u64)>>,
    free: Vec<usize>,
    /// Accepted and unsent (`flush` moves them on).
    accepted: Vec<Pending>,
    queue: VecDeque<(Pending, u64)>,
    /// When which server is done.
    busy: BinaryHeap<Reverse<(u64, usize)>>,
    pipeline: usize,
    /// The server does nothing in this interval of time (work in progress pauses too).
    frozen: Option<(u64, u64)>,
}

impl SimServer {
    pub fn new(clock: SimClock, servers: usize, work: Work, seed: u64) -> Self {
        SimServer {
            clock,
            work,
            seed,
            drawn: 0,
            running: vec![None; servers],
            free: (0..servers).collect(),
            accepted: Vec::new(),
            queue: VecDeque::new(),
            busy: BinaryHeap::new(),
            pipeline: usize::MAX,
            frozen: None,
        }
    }

    /// Hold at most `pipeline` requests; the driver keeps the rest.
    pub fn with_pipeline(mut self, pipeline: usize) -> Self {
        self.pipeline = pipeline;
        self
    }

    /// Freeze the server from `from_ns` to `to_ns`.
    pub fn frozen(mut self, from_ns: u64, to_ns: u64) -> Self {
        self.frozen = Some((from_ns, to_ns));
        self
    }

    fn start(&mut self) {
        while !self.free.is_empty() {
            let Some((p, sent)) = self.queue.pop_front() else { break };
            let work_ns = match self.work {
                Work::Fixed { ns } => ns,
                Work::Exponential { mean_ns } => (-unit(draw(self.seed, 77, self.drawn)).ln() * mean_ns) as u64,
            };
            self.drawn += 1;
            let mut begin = self.clock.now_ns();
            let mut end = begin + work_ns;
            if let Some((from, to)) = self.frozen {
                if begin >= from && begin < to {
                    begin = to;
                    end = begin + work_ns;
                } else if begin < from && end > from {
                    end += to - from;
                }
            }
            let server = self.free.pop().expect("checked");
            self.busy.push(Reverse((end, server)));
            self.running[server] = Some((p, sent));
        }
    }
}

impl Transport for SimServer {
    fn submit(&mut self, request: Pending) -> bool {
        if self.accepted.len() + self.queue.len() + self.busy.len() >= self.pipeline {
            return false;
        }
        self.accepted.push(request);
        true
    }

    fn flush(&mut self, _done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        let now = self.clock.now_ns();
        for p in self.accepted.drain(..) {
            self.queue.push_back((p, now));
        }
        self.start();
        Ok(())
    }

    fn wait(&mut self, until_ns: u64, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        self.start();
        match self.busy.peek() {
            Some(&Reverse((end, server))) if end <= until_ns => {
                self.busy.pop();
                self.clock.0.set(end);
                let (p, sent) = self.running[server].take().expect("a busy server has a request");
                self.free.push(server);
                done.push(Sample::ended(&p, sent, end, Fate::Ok));
                self.start();
            }
            _ => self.clock.0.set(until_ns.max(self.clock.0.get())),
        }
        Ok(())
    }

    fn abandon(&mut self, out: &mut Vec<Sample>) {
        let now = self.clock.now_ns();
        let working = self.running.iter_mut().filter_map(Option::take);
        let queued = self.queue.drain(..).chain(working);
        out.extend(queued.map(|(p, sent)| Sample::ended(&p, sent, now, Fate::Unfinished)));
        let unsent = self.accepted.drain(..);
        out.extend(unsent.map(|p| Sample::ended(&p, 0, now, Fate::Unfinished)));
    }
}
