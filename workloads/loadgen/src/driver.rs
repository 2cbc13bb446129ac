//! The loop: schedule, dispatch, record. It knows neither sockets nor real time, only the ports [`Clock`] and [`Transport`], so the
//! code that measures a real server is the code that is proven against queueing theory in virtual time ([`crate::sim`]).
//!
//! Open loop: a request is taken up when it is due, never because another one came back. What the transport has no room for waits
//! here (that wait is in its response time); what exceeds `outstanding_cap` is dropped, and counted as dropped.

use crate::error::LoadgenError;
use crate::schedule::Arrival;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

/// Time since the start of the stream.
pub trait Clock {
    fn now_ns(&self) -> u64;
}

/// The way to a server and back.
pub trait Transport {
    /// Accept a request for sending, or refuse it because every connection is full (the caller keeps it).
    fn submit(&mut self, request: Pending) -> bool;
    /// Send what was accepted.
    fn flush(&mut self, done: &mut Vec<Sample>) -> Result<(), LoadgenError>;
    /// Wait until `until_ns` or until something came back, whichever is first; append what came back.
    fn wait(&mut self, until_ns: u64, done: &mut Vec<Sample>) -> Result<(), LoadgenError>;
    /// Requests accepted and not yet returned, put into `out` (at the end of a run).
    fn abandon(&mut self, out: &mut Vec<Sample>);
}

/// A request that was taken up.
#[derive(Debug, Clone, Copy)]
pub struct Pending {
    pub arrival: Arrival,
    /// When the loop took it up.
    pub picked_ns: u64,
    /// It found no room in the transport and had to wait for the server.
    pub held: bool,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Ok,
    /// A valid answer without a value (a key that is not there).
    Miss,
    /// An error reply, or its connection was lost.
    Error,
    /// Never sent: too many outstanding requests while the client was on time, so the server's doing.
    DroppedServer,
    /// Never sent: too many outstanding requests, and the client was late itself.
    DroppedClient,
    /// No reply by the end of the grace period.
    Unfinished,
}

impl Fate {
    /// Did a usable reply arrive?
    pub fn replied(self) -> bool {
        matches!(self, Fate::Ok | Fate::Miss)
    }
}

/// One request's times (ns from the start of the stream) and end. For dropped requests `sent_ns` is 0; `done_ns` is when it was
/// known how the request ended.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub index: u64,
    pub intended_ns: u64,
    pub picked_ns: u64,
    pub sent_ns: u64,
    pub done_ns: u64,
    /// At most so long its reply waited for the client to look at it.
    pub unseen_ns: u64,
    pub held: bool,
    pub fate: Fate,
}

impl Sample {
    pub fn ended(p: &Pending, sent_ns: u64, done_ns: u64, fate: Fate) -> Self {
        Sample {
            index: p.arrival.index,
            intended_ns: p.arrival.intended_ns,
            picked_ns: p.picked_ns,
            sent_ns,
            done_ns,
            unseen_ns: 0,
            held: p.held,
            fate,
        }
    }
    /// Actual send to reply.
    pub fn service_ns(&self) -> u64 {
        self.done_ns.saturating_sub(self.sent_ns)
    }
    /// Intended send to reply.
    pub fn response_ns(&self) -> u64 {
        self.done_ns.saturating_sub(self.intended_ns)
    }
    /// Intended send to actual send.
    pub fn send_lag_ns(&self) -> u64 {
        self.sent_ns.saturating_sub(self.intended_ns)
    }
    /// The part of the send lag that is this client's own: not the wait for a server that kept every connection full.
    pub fn client_lag_ns(&self) -> u64 {
        let left = if self.held { self.picked_ns } else { self.sent_ns };
        left.saturating_sub(self.intended_ns)
    }
    /// Response time without what this client has added to it, as far as one can know: a reply came at any instant since the look before.
    pub fn undelayed_ns(&self) -> u64 {
        self.response_ns().saturating_sub(self.client_lag_ns() + self.unseen_ns / 2)
    }
}

/// State at the end of one window.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    pub window: u64,
    /// Requests whose intended time lies in this window.
    pub offered: u64,
    /// Taken up and not ended.
    pub outstanding: u64,
    /// Intended time of the oldest outstanding request, if known.
    pub oldest_ns: Option<u64>,
}

/// Where samples go. A window's mark comes after every sample that ended in it.
pub trait Sink {
    fn sample(&mut self, sample: &Sample);
    fn mark(&mut self, mark: Mark);
}

/// Where requests come from, in the order they are due.
pub trait Source {
    /// The next request; the same until it is taken or the schedule changes.
    fn peek(&mut self) -> Option<Arrival>;
    /// Take the one that was peeked at.
    fn take(&mut self);
    /// End of the stream, if it may move; else the limits' one.
    fn end_ns(&self) -> Option<u64> {
        None
    }
    /// Peek again after this long at the latest: the schedule may have changed.
    fn look_ns(&self) -> u64 {
        u64::MAX
    }
}

impl<I: Iterator<Item = Arrival>> Source for std::iter::Peekable<I> {
    fn peek(&mut self) -> Option<Arrival> {
        std::iter::Peekable::peek(self).copied()
    }
    fn take(&mut self) {
        self.next();
    }
}

/// The loop's bounds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub outstanding_cap: usize,
    pub window_ns: u64,
    /// End of the stream; nothing is due after it.
    pub end_ns: u64,
    /// How long after the end replies are waited for.
    pub grace_ns: u64,
    /// A drop is the client's own if it took up the request later than this.
    pub client_late_ns: u64,
}

/// Run a fixed stream to its end, or until `stop`.
///
/// # Errors
/// What the transport reports as fatal.
pub fn drive(
    schedule: impl Iterator<Item = Arrival>,
    clock: &impl Clock,
    transport: &mut impl Transport,
    limits: &Limits,
    sink: &mut impl Sink,
    stop: &AtomicBool,
) -> Result<(), LoadgenError> {
    drive_source(&mut schedule.peekable(), clock, transport, limits, sink, stop)
}

/// Run one stream to its end, or until `stop`.
///
/// # Errors
/// What the transport reports as fatal.
pub fn drive_source(
    schedule: &mut impl Source,
    clock: &impl Clock,
    transport: &mut impl Transport,
    limits: &Limits,
    sink: &mut impl Sink,
    stop: &AtomicBool,
) -> Result<(), LoadgenError> {
    let mut waiting: VecDeque<Pending> = VecDeque::new();
    let mut in_flight = 0usize;
    let mut done: Vec<Sample> = Vec::with_capacity(1024);
    let mut window = 0u64;
    let mut offered = 0u64;
    let mut end_ns = limits.end_ns;
    let mut stopped = false;
    loop {
        let now = clock.now_ns();
        if !stopped && stop.load(Ordering::Relaxed) {
            stopped = true;
            end_ns = end_ns.min(now);
        }
        if !stopped {
            end_ns = schedule.end_ns().unwrap_or(limits.end_ns);
        }
        let deadline_ns = end_ns + limits.grace_ns;
        // Take up everything that is due, window by window so that each window's count is exact.
        loop {
            let window_end = (window + 1) * limits.window_ns;
            let due_until = now.min(window_end - 1);
            while let Some(arrival) = schedule.peek() {
                if arrival.intended_ns > due_until || stopped {
                    break;
                }
                schedule.take();
                offered += 1;
                let mut request = Pending { arrival, picked_ns: now, held: false };
                if waiting.len() + in_flight >= limits.outstanding_cap {
                    let late = now - arrival.intended_ns > limits.client_late_ns;
                    let fate = if late { Fate::DroppedClient } else { Fate::DroppedServer };
                    sink.sample(&Sample::ended(&request, 0, now, fate));
                } else if waiting.is_empty() && transport.submit(request) {
                    in_flight += 1;
                } else {
                    request.held = true;
                    waiting.push_back(request);
                }
            }
            if now < window_end {
                break;
            }
            let outstanding = (waiting.len() + in_flight) as u64;
            let oldest_ns = waiting.front().map(|p| p.arrival.intended_ns);
            sink.mark(Mark { window, offered, outstanding, oldest_ns });
            offered = 0;
            window += 1;
        }
        transport.flush(&mut done)?;

        let ended = now >= end_ns;
        let idle = waiting.is_empty() && in_flight == 0;
        if done.is_empty() {
            if ended && (idle || now >= deadline_ns) {
                break;
            }
            let window_end = (window + 1) * limits.window_ns;
            let next = schedule.peek().map_or(end_ns, |a| a.intended_ns);
            let until = if ended { deadline_ns } else { next.max(now).min(now.saturating_add(schedule.look_ns())) };
            transport.wait(until.min(window_end), &mut done)?;
        }
        for sample in done.drain(..) {
            in_flight -= 1;
            sink.sample(&sample);
        }
        while let Some(&request) = waiting.front() {
            if !transport.submit(request) {
                break;
            }
            waiting.pop_front();
            in_flight += 1;
        }
    }
    let now = clock.now_ns();
    transport.abandon(&mut done);
    for sample in done.drain(..) {
        sink.sample(&sample);
    }
    for p in waiting {
        sink.sample(&Sample::ended(&p, 0, now, Fate::Unfinished));
    }
    sink.mark(Mark { window, offered, outstanding: 0, oldest_ns: None });
    Ok(())
}
