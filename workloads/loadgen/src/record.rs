//! Samples into histograms: one set for the run (by intended time), one for each window (by the time a request ended).

use crate::driver::{Fate, Mark, Sample, Sink};
use crate::quantile::{plain_quantile_ns, share_above, summarise, Latency, ShareAbove, BATCHES};
use crate::report::{Phase, WindowCounts, WindowReport};
use crate::verdict::{judge, ClientUse, Evidence, Rules, Verdict, VerdictKind};
use hdrhistogram::Histogram;
use std::collections::VecDeque;

/// Longest time a histogram holds, ns; longer is recorded as this.
pub const MAX_NS: u64 = 1_000_000_000_000;

fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_NS, digits).expect("constant bounds are valid")
}

/// The latencies of some samples, all in ns.
#[derive(Debug, Clone)]
pub struct Latencies {
    pub service: Histogram<u64>,
    pub response: Histogram<u64>,
    pub send_lag: Histogram<u64>,
    pub client_lag: Histogram<u64>,
    /// Response time without what the client may have added.
    pub undelayed: Histogram<u64>,
}

impl Latencies {
    fn new(digits: u8) -> Self {
        let h = || histogram(digits);
        Latencies { service: h(), response: h(), send_lag: h(), client_lag: h(), undelayed: h() }
    }

    fn record(&mut self, s: &Sample) {
        self.service.saturating_record(s.service_ns().max(1));
        self.response.saturating_record(s.response_ns().max(1));
        self.send_lag.saturating_record(s.send_lag_ns().max(1));
        self.client_lag.saturating_record(s.client_lag_ns().max(1));
        self.undelayed.saturating_record(s.undelayed_ns().max(1));
    }

    fn reset(&mut self) {
        for h in [&mut self.service, &mut self.response, &mut self.send_lag, &mut self.client_lag, &mut self.undelayed] {
            h.reset();
        }
    }
}

/// Requests by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub completed: u64,
    pub misses: u64,
    pub errors: u64,
    pub dropped_server: u64,
    pub dropped_client: u64,
    pub unfinished: u64,
}

impl Counts {
    fn add(&mut self, fate: Fate) {
        match fate {
            Fate::Ok => self.completed += 1,
            Fate::Miss => {
                self.completed += 1;
                self.misses += 1;
            }
            Fate::Error => self.errors += 1,
            Fate::DroppedServer => self.dropped_server += 1,
            Fate::DroppedClient => self.dropped_client += 1,
            Fate::Unfinished => self.unfinished += 1,
        }
    }

    pub fn dropped(&self) -> u64 {
        self.dropped_server + self.dropped_client
    }

    /// Requests that got no usable reply.
    pub fn lost(&self) -> u64 {
        self.errors + self.dropped() + self.unfinished
    }

    pub fn all(&self) -> u64 {
        self.completed + self.lost()
    }
}

struct Window {
    counts: Counts,
    latencies: Latencies,
    offered: u64,
    outstanding: u64,
    oldest_ns: Option<u64>,
    marks: usize,
}

struct Batch {
    latencies: Latencies,
    lost: u64,
}

/// What a recorder must know.
#[derive(Debug, Clone, Copy)]
pub struct RecorderConfig {
    pub warmup_ns: u64,
    pub duration_ns: u64,
    pub window_ns: u64,
    /// Marks that complete a window.
    pub threads: usize,
    pub confidence: f64,
    /// Take samples as independent (no design effect).
    pub independent: bool,
    pub rules: Rules,
    /// QoS target, ns: count the requests above it.
    pub target_ns: Option<u64>,
    /// CLOCK_MONOTONIC at the start of the stream; 0 in virtual time.
    pub start_ns: u64,
}

/// The run's sums so far.
pub struct Recorder<W: FnMut(&WindowReport, &Histogram<u64>)> {
    config: RecorderConfig,
    end_ns: u64,
    latencies: Latencies,
    batches: Vec<Batch>,
    pub counts: Counts,
    late_past_end: u64,
    held: u64,
    carried_in: u64,
    carried_out: u64,
    /// Usable replies that arrived within the interval.
    pub arrived: u64,
    /// Sum of the times that requests were outstanding, ns.
    outstanding_ns: f64,
    last_intended_ns: u64,
    windows: VecDeque<Window>,
    first_window: u64,
    previous_outstanding: u64,
    spare: Vec<Latencies>,
    window_counts: WindowCounts,
    on_window: W,
}

/// The recorder's part of a report.
#[derive(Debug, Clone)]
pub struct Summary {
    pub duration_ns: u64,
    pub counts: Counts,
    pub achieved_rps: f64,
    pub offered_rps: f64,
    pub backlog_growth: i64,
    /// Requests that found every connection full.
    pub held: u64,
    /// Requests above the QoS target, if one was given.
    pub target: Option<ShareAbove>,
    pub service_time: Latency,
    pub response_time: Latency,
    pub send_lag: Latency,
    pub client_lag: Latency,
    pub undelayed_p99_ms: Option<f64>,
    pub verdict: Verdict,
    pub windows: WindowCounts,
}

impl<W: FnMut(&WindowReport, &Histogram<u64>)> Recorder<W> {
    /// `on_window` gets each finished window and its response times.
    pub fn new(config: RecorderConfig, on_window: W) -> Self {
        Recorder {
            end_ns: config.warmup_ns + config.duration_ns,
            latencies: Latencies::new(3),
            batches: (0..BATCHES).map(|_| Batch { latencies: Latencies::new(2), lost: 0 }).collect(),
            counts: Counts::default(),
            late_past_end: 0,
            held: 0,
            carried_in: 0,
            carried_out: 0,
            arrived: 0,
            outstanding_ns: 0.0,
            last_intended_ns: 0,
            windows: VecDeque::new(),
            first_window: 0,
            previous_outstanding: 0,
            spare: Vec::new(),
            window_counts: WindowCounts::default(),
            on_window,
            config,
        }
    }

    /// The run's latencies so far (requests due in the measured interval).
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// The warm-up ends at `at_ns`, which lies ahead of every request so far; the measured time keeps its length.
    pub fn end_warmup(&mut self, at_ns: u64) {
        self.config.warmup_ns = at_ns;
        self.end_ns = at_ns + self.config.duration_ns;
    }

    fn window(&mut self, index: u64) -> &mut Window {
        let at = index.saturating_sub(self.first_window) as usize;
        while self.windows.len() <= at {
            let latencies = self.spare.pop().unwrap_or_else(|| Latencies::new(3));
            self.windows.push_back(Window { counts: Counts::default(), latencies, offered: 0, outstanding: 0, oldest_ns: None, marks: 0 });
        }
        &mut self.windows[at]
    }

    fn close_window(&mut self, mut w: Window) {
        let index = self.first_window;
        let c = &self.config;
        let end_ns = (index + 1) * c.window_ns;
        let lost = w.counts.lost();
        let sum = |h, lost| summarise(h, lost, &[], c.confidence);
        let response_time = sum(&w.latencies.response, lost);
        let evidence = Evidence {
            window: true,
            offered: w.offered,
            late_past_end: 0,
            completed: w.counts.completed,
            errors: w.counts.errors,
            dropped_server: w.counts.dropped_server,
            dropped_client: w.counts.dropped_client,
            unfinished: 0,
            backlog_growth: w.outstanding as i64 - self.previous_outstanding as i64,
            mean_outstanding: w.outstanding as f64,
            client_lag_p99_ms: plain_quantile_ns(&w.latencies.client_lag, 0.99).map(|v| v as f64 * 1e-6),
            undelayed_p99_ms: plain_quantile_ns(&w.latencies.undelayed, 0.99).map(|v| v as f64 * 1e-6),
            response: &response_time,
            client: None,
        };
        let verdict = judge(&evidence, &c.rules);
        let phase = if end_ns <= c.warmup_ns {
            Phase::WarmUp
        } else if index * c.window_ns >= self.end_ns {
            Phase::Grace
        } else {
            Phase::Measure
        };
        if phase == Phase::Measure {
            match verdict.kind {
                VerdictKind::Valid => self.window_counts.valid += 1,
                VerdictKind::ClientLimited => self.window_counts.client_limited += 1,
                VerdictKind::ServerOverloaded => self.window_counts.server_overloaded += 1,
                VerdictKind::NotResolvable => self.window_counts.not_resolvable += 1,
            }
        }
        let report = WindowReport {
            window: index,
            end_ms: end_ns as f64 * 1e-6,
            t_ms: (c.start_ns + end_ns) / 1_000_000,
            phase,
            offered: w.offered,
            completed: w.counts.completed,
            errors: w.counts.errors,
            dropped: w.counts.dropped(),
            outstanding: w.outstanding,
            oldest_ms: w.oldest_ns.map(|o| end_ns.saturating_sub(o) as f64 * 1e-6),
            service_time: sum(&w.latencies.service, 0),
            send_lag: sum(&w.latencies.send_lag, 0),
            client_lag: sum(&w.latencies.client_lag, 0),
            response_time,
            verdict,
        };
        (self.on_window)(&report, &w.latencies.response);
        self.previous_outstanding = w.outstanding;
        self.first_window += 1;
        w.latencies.reset();
        self.spare.push(w.latencies);
    }

    /// Close what is open and sum up. `interrupted`: the interval ended with the last request that was taken up.
    pub fn finish(self, interrupted: bool) -> Summary {
        self.finish_with(interrupted, None)
    }

    /// As [`finish`](Self::finish), knowing how the client fared.
    pub fn finish_with(mut self, interrupted: bool, client: Option<ClientUse>) -> Summary {
        while let Some(w) = self.windows.pop_front() {
            // The last window of a run is a part of one; without any request it says nothing.
            if w.offered + w.counts.all() > 0 {
                self.close_window(w);
            }
        }
        let c = self.config;
        let duration_ns = if interrupted { self.last_intended_ns.saturating_sub(c.warmup_ns).max(1) } else { c.duration_ns };
        let seconds = duration_ns as f64 * 1e-9;
        let lost = self.counts.lost();
        let sum = |pick: fn(&Latencies) -> &Histogram<u64>, with_lost: bool| {
            let batches: Vec<(&Histogram<u64>, u64)> = if c.independent {
                Vec::new()
            } else {
                self.batches.iter().map(|b| (pick(&b.latencies), if with_lost { b.lost } else { 0 })).collect()
            };
            let lost = if with_lost { lost } else { 0 };
            summarise(pick(&self.latencies), lost, &batches, c.confidence)
        };
        let response_time = sum(|l| &l.response, true);
        let client_lag = sum(|l| &l.client_lag, false);
        let target = c.target_ns.map(|target_ns| {
            let batches: Vec<(&Histogram<u64>, u64)> = self.batches.iter().map(|b| (&b.latencies.response, b.lost)).collect();
            share_above(&self.latencies.response, lost, if c.independent { &[] } else { &batches }, target_ns, c.confidence)
        });
        let undelayed_p99_ms = plain_quantile_ns(&self.latencies.undelayed, 0.99).map(|v| v as f64 * 1e-6);
        let backlog_growth = if interrupted { 0 } else { self.carried_out as i64 - self.carried_in as i64 };
        let verdict = judge(
            &Evidence {
                window: false,
                offered: self.counts.all(),
                late_past_end: self.late_past_end,
                completed: self.counts.completed,
                errors: self.counts.errors,
                dropped_server: self.counts.dropped_server,
                dropped_client: self.counts.dropped_client,
                unfinished: self.counts.unfinished,
                backlog_growth,
                mean_outstanding: self.outstanding_ns / duration_ns as f64,
                client_lag_p99_ms: client_lag.p99.value_ms,
                undelayed_p99_ms,
                response: &response_time,
                client,
            },
            &c.rules,
        );
        Summary {
            duration_ns,
            counts: self.counts,
            achieved_rps: self.arrived as f64 / seconds,
            offered_rps: self.counts.all() as f64 / seconds,
            backlog_growth,
            held: self.held,
            target,
            service_time: sum(|l| &l.service, false),
            send_lag: sum(|l| &l.send_lag, false),
            response_time,
            client_lag,
            undelayed_p99_ms,
            verdict,
            windows: self.window_counts,
        }
    }
}

impl<W: FnMut(&WindowReport, &Histogram<u64>)> Sink for Recorder<W> {
    fn sample(&mut self, s: &Sample) {
        let (start_ns, end_ns) = (self.config.warmup_ns, self.end_ns);
        self.last_intended_ns = self.last_intended_ns.max(s.intended_ns);
        let unfinished = s.fate == Fate::Unfinished;
        if s.intended_ns >= start_ns {
            self.counts.add(s.fate);
            self.outstanding_ns += s.response_ns() as f64;
            self.held += u64::from(s.held);
            self.late_past_end += u64::from(s.picked_ns >= end_ns);
            self.carried_out += u64::from(s.done_ns >= end_ns || unfinished);
            let span = (end_ns - start_ns).max(1) as u128;
            let batch = ((s.intended_ns - start_ns) as u128 * BATCHES as u128 / span) as usize;
            let batch = &mut self.batches[batch.min(BATCHES - 1)];
            if s.fate.replied() {
                self.latencies.record(s);
                batch.latencies.record(s);
            } else {
                batch.lost += 1;
            }
        } else {
            self.carried_in += u64::from(s.done_ns >= start_ns || unfinished);
        }
        if s.fate.replied() && s.done_ns >= start_ns && s.done_ns < end_ns {
            self.arrived += 1;
        }
        // A window already closed cannot change; its latecomers belong to the oldest open one.
        let index = (s.done_ns / self.config.window_ns).max(self.first_window);
        let w = self.window(index);
        w.counts.add(s.fate);
        if s.fate.replied() {
            w.latencies.record(s);
        }
    }

    fn mark(&mut self, mark: Mark) {
        let threads = self.config.threads;
        if mark.window < self.first_window {
            return;
        }
        let w = self.window(mark.window);
        w.offered += mark.offered;
        w.outstanding += mark.outstanding;
        w.oldest_ns = match (w.oldest_ns, mark.oldest_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        w.marks += 1;
        while self.windows.front().is_some_and(|w| w.marks >= threads) {
            let w = self.windows.pop_front().expect("checked");
            self.close_window(w);
        }
    }
}
