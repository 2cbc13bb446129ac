//! What a run says at its end, and each window while it runs. Times in ms; `None` (JSON null) is "not measured", never 0.

use crate::protocol::ProtocolKind;
use crate::quantile::{Latency, ShareAbove};
use crate::schedule::Arrivals;
use crate::verdict::{ClientUse, Rules, Verdict};
use crate::warmup::WarmupReport;
use serde::{Deserialize, Serialize};

/// Version of the report's shape.
pub const FORMAT: &str = "surefoot-loadgen/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadStep {
    pub at_ms: f64,
    pub rps: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WaveReport {
    /// Share of the mean.
    pub amplitude: f64,
    pub period_ms: f64,
    /// Place in the period at the end of the warm-up, 0 to 1.
    pub phase: f64,
}

/// Windows by verdict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowCounts {
    pub valid: u64,
    pub client_limited: u64,
    pub server_overloaded: u64,
    pub not_resolvable: u64,
}

/// One run. Counts and latencies are of requests *due* in the measured interval (after the warm-up), wherever they ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub format: String,
    pub service: String,
    pub target: String,
    pub protocol: ProtocolKind,
    pub arrivals: Arrivals,
    pub seed: u64,
    /// Steps from the end of the warm-up on.
    pub load: Vec<LoadStep>,
    /// "steps"; "lines": straight lines between the steps; "wave": each step swings as `wave` says.
    pub load_shape: String,
    pub wave: Option<WaveReport>,
    /// Rates set by command, with times as above (a command during the warm-up has one below 0). They replace `load` from then on.
    pub commands: Vec<LoadStep>,
    /// As it was: with `--warmup auto` shorter than its limit if the service settled.
    pub warmup_ms: f64,
    /// How the warm-up ended, with `--warmup auto`.
    pub warmup: Option<WarmupReport>,
    /// Measured interval; shorter than asked for if the run was interrupted.
    pub duration_ms: f64,
    pub window_ms: f64,
    pub connections: usize,
    pub threads: usize,
    /// Requests in flight per connection, at most.
    pub pipeline: usize,
    pub interrupted: bool,

    /// Rate asked for, averaged over the interval.
    pub nominal_rps: f64,
    /// Rate that the schedule drew (a Poisson count differs from its mean).
    pub offered_rps: f64,
    /// Usable replies that arrived in the interval, per second.
    pub achieved_rps: f64,
    pub offered: u64,
    pub completed: u64,
    /// Completed requests whose key was not there.
    pub misses: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// Not sent, cap on outstanding requests reached while the client was on time.
    pub dropped_server: u64,
    /// Not sent, cap reached while the client was late.
    pub dropped_client: u64,
    /// No reply by the end of the grace period.
    pub unfinished: u64,
    /// Connections opened again (an HTTP server's polite closes included).
    pub reconnects: u64,
    /// Outstanding requests at the end minus at the start of the interval.
    pub backlog_growth: i64,

    /// Actual send to reply.
    pub service_time: Latency,
    /// Intended send to reply. "p99" means `response_time.p99`.
    pub response_time: Latency,
    /// Intended send to actual send.
    pub send_lag: Latency,
    /// The client's own part of the send lag.
    pub client_lag: Latency,
    /// p99 of (response time - client lag): what a punctual client would have seen, as far as one can know. For the verdict only.
    pub undelayed_p99_ms: Option<f64>,
    pub confidence: f64,
    pub rules: Rules,
    pub verdict: Verdict,
    pub windows: WindowCounts,

    /// Requests that found every connection full and waited for the server in the client.
    pub held: u64,
    /// What was near to spoiling the run, with its remedy.
    pub warnings: Vec<String>,
    pub qos_target_ms: Option<f64>,
    /// Requests above the QoS target.
    pub above_target: Option<ShareAbove>,

    /// How the sending threads fared, warm-up and grace included.
    pub client: ClientUse,
    /// CPU time this process used over the run, in CPUs.
    pub client_cpu_cores: Option<f64>,
    /// Its sending threads ran before ordinary processes (SCHED_FIFO).
    pub client_realtime: bool,
    /// Times its threads were preempted.
    pub involuntary_switches: Option<u64>,
    pub feed_delivered: Option<u64>,
    pub feed_undelivered: Option<u64>,
}

impl Report {
    /// Why no reply at all came in the measured interval; None if one did, be it to a request from before the interval: an
    /// overloaded server may still be at those.
    pub fn unanswered(&self) -> Option<String> {
        let silent = self.completed == 0 && self.achieved_rps == 0.0;
        silent.then(|| format!("no request to {} was answered: {}", self.target, self.first_error.as_deref().unwrap_or("no reply came")))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    WarmUp,
    Measure,
    /// After the last request was due.
    Grace,
}

/// One window: requests that *ended* in it (`offered`: that were due in it), as a live reader sees them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    pub window: u64,
    /// End of the window, ms since the start of the stream.
    pub end_ms: f64,
    /// End of the window, ms of CLOCK_MONOTONIC.
    pub t_ms: u64,
    pub phase: Phase,
    pub offered: u64,
    pub completed: u64,
    pub errors: u64,
    pub dropped: u64,
    pub outstanding: u64,
    pub oldest_ms: Option<f64>,
    pub service_time: Latency,
    pub response_time: Latency,
    pub send_lag: Latency,
    pub client_lag: Latency,
    pub verdict: Verdict,
}

/// A line of `--windows`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WindowLine {
    #[serde(flatten)]
    pub window: WindowReport,
    /// Length of the window, ms.
    pub window_ms: f64,
    /// Rate asked for, averaged over the window (bursts aside).
    pub nominal_rps: f64,
    /// Response times of the replies that arrived in the window, as in the feed: HdrHistogram V2 in ns, base64. They merge exactly.
    pub histogram: String,
}
