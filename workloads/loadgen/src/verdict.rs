//! May this number be believed? One verdict for a run and one for each window.
//!
//! The rules, in the order they are tried (the first that holds names the verdict):
//!
//! 1. `client-limited`: the generator, not the server, shaped the result.
//!    - Late: its own lag (intended send to actual send, without waiting for a server that kept every connection full) has a p99
//!      above max(1 ms, 10 % of the response time's p99). 1 ms: a client that shares two noisy cores with its server is preempted
//!      for fractions of a millisecond now and then, and QoS targets are 1 ms to seconds. 10 %: beyond it, the arrivals that the
//!      server saw are no longer the schedule's.
//!    - Moved: p99 of the response time minus p99 of (response time - own lag - half the time that the reply may have waited to be read) is
//!      above max(0.2 ms, 5 % of p99). The first rule alone would pass a lag of 0.9 ms on a p99 of 0.95 ms.
//!    - Busy: one of its threads worked for more than 90 % of the time (polling before requests were due does not count). Replies then
//!      wait for the client, and that wait looks like the server's. With real-time priority a thread takes at most 92 %
//!      ([`crate::pace`]): what is between is for errors of the accounts.
//!    - Short: fewer than 99.5 % of the run's requests were taken up by its end, or most of the dropped requests were dropped while
//!      the client was late.
//!
//!    A server that is overloaded has a p99 that grows without bound, so rules relative to p99 do not blame the client for it.
//! 2. `server-overloaded`: the client kept its schedule and the server did not keep up: requests dropped at the cap on outstanding
//!    requests, no reply within the grace period, more than 1 % errors, or a growing backlog (outstanding requests grew by more
//!    than 1 % of the offered ones plus what chance explains: 4 sqrt(mean outstanding) in a run, 3 sqrt(offered) in a window).
//! 3. `not-resolvable`: too few (independent) samples for the p99's confidence interval to have an upper end.
//! 4. `valid`.
//!
//! Only the p99 decides the verdict; every other percentile says itself whether it is resolvable.
//!
//! [`warnings`] tells what was near: a thread that the kernel stopped, one busy for more than 80 % of the time, one that waited for a CPU for more than 5 % of
//! it, or more than 5 % of requests that found every connection full although the server kept up.

use crate::quantile::{Latency, Resolution};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    Valid,
    ClientLimited,
    ServerOverloaded,
    NotResolvable,
}

impl VerdictKind {
    pub fn as_str(self) -> &'static str {
        match self {
            VerdictKind::Valid => "valid",
            VerdictKind::ClientLimited => "client-limited",
            VerdictKind::ServerOverloaded => "server-overloaded",
            VerdictKind::NotResolvable => "not-resolvable",
        }
    }
}

/// A verdict and why, in one sentence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: VerdictKind,
    pub reason: String,
}

/// The client's limits; the module doc says why these values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    pub lag_floor_ms: f64,
    pub lag_share: f64,
    pub bias_floor_ms: f64,
    pub bias_share: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules { lag_floor_ms: 1.0, lag_share: 0.10, bias_floor_ms: 0.2, bias_share: 0.05 }
    }
}

/// How the client itself fared over a run. Shares of time, of the thread that fared worst; `None`: not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientUse {
    /// On a CPU and working, not polling before a request was due.
    pub busy_share: Option<f64>,
    /// On a CPU, working or polling.
    pub cpu_share: Option<f64>,
    /// Ready to run, but another had the CPU (/proc/thread-self/schedstat).
    pub run_queue_wait_share: Option<f64>,
    /// Times that the kernel stopped it for using too much real time, and how long in all.
    #[serde(default)]
    pub stops: u64,
    #[serde(default)]
    pub stopped_ms: f64,
    /// The longest time that it let pass between two looks at its sockets, so that many requests share a wake-up; 0: none on purpose.
    #[serde(default)]
    pub step_us: f64,
}

/// Errors, and growth of the backlog, beyond this share of the requests are overload. Nodes and samples judge by the same share.
pub const MOST_LOST: f64 = 0.01;
const BUSY_LIMIT: f64 = 0.90;
const BUSY_NEAR: f64 = 0.80;
const WAIT_NEAR: f64 = 0.05;
const HELD_NEAR: f64 = 0.05;

impl ClientUse {
    fn busy(&self) -> Option<f64> {
        self.busy_share.filter(|&b| b > BUSY_NEAR)
    }

    fn waited(&self) -> Option<f64> {
        self.run_queue_wait_share.filter(|&w| w > WAIT_NEAR)
    }

    /// Why a client is late, as far as one can see, and what helps.
    fn remedy(&self) -> String {
        if self.stops > 0 {
            format!(
                "the kernel stopped a sending thread {} time(s), {:.0} ms in all, because the real time of its CPU was used up (sched_rt_runtime_us): keep other real-time work off that CPU, give it more --threads on CPUs of their own (--cpu), or --no-realtime",
                self.stops, self.stopped_ms
            )
        } else if let Some(b) = self.busy() {
            format!("a sending thread worked for {:.0} % of the time: give it more --threads on CPUs of their own (--cpu), or load from another host", b * 100.0)
        } else if let Some(w) = self.waited() {
            format!(
                "a sending thread waited for a CPU for {:.0} % of the time: pin it (--cpu) where neither the service nor other work runs, or load from another host",
                w * 100.0
            )
        } else {
            "the host let it run late: pin it (--cpu) to a quiet CPU, raise --spin-us, or load from another host".into()
        }
    }
}

/// What was near to spoiling a run, one line each with its remedy. `slots`: requests that may be in flight at once.
pub fn warnings(verdict: VerdictKind, client: &ClientUse, held_share: f64, slots: usize) -> Vec<String> {
    let mut all = Vec::new();
    if verdict != VerdictKind::ClientLimited && (client.stops > 0 || client.busy().is_some() || client.waited().is_some()) {
        all.push(format!("the client is near its limit: {}", client.remedy()));
    }
    if verdict != VerdictKind::ServerOverloaded && held_share > HELD_NEAR {
        all.push(format!(
            "{:.0} % of the requests waited for room on a connection: if the service serves more than {slots} at once, give it more --connections or --pipeline",
            held_share * 100.0
        ));
    }
    all
}

/// What the verdict is made from. Counts of requests, times in ms.
#[derive(Debug, Clone)]
pub struct Evidence<'a> {
    /// A 100 ms window (wider allowance for chance) or a run.
    pub window: bool,
    pub offered: u64,
    /// Taken up only after the end of the run.
    pub late_past_end: u64,
    pub completed: u64,
    pub errors: u64,
    pub dropped_server: u64,
    pub dropped_client: u64,
    pub unfinished: u64,
    /// Outstanding requests at the end minus at the start.
    pub backlog_growth: i64,
    pub mean_outstanding: f64,
    pub client_lag_p99_ms: Option<f64>,
    /// p99 of response time minus the client's own lag.
    pub undelayed_p99_ms: Option<f64>,
    pub response: &'a Latency,
    /// Of a run; a window has none.
    pub client: Option<ClientUse>,
}

/// Judge by the rules of the module doc.
pub fn judge(e: &Evidence, rules: &Rules) -> Verdict {
    let verdict = |kind, reason: String| Verdict { kind, reason };
    let client = |reason: String| match &e.client {
        Some(c) => verdict(VerdictKind::ClientLimited, format!("{reason}; {}", c.remedy())),
        None => verdict(VerdictKind::ClientLimited, reason),
    };
    let server = |reason| verdict(VerdictKind::ServerOverloaded, reason);
    let p99 = e.response.p99.value_ms;

    if let Some(lag) = e.client_lag_p99_ms {
        // Without a p99 (it fell among lost requests) the slowest reply is a lower bound of it.
        let response = p99.or(e.response.max_ms).unwrap_or(0.0);
        let limit = (rules.lag_share * response).max(rules.lag_floor_ms);
        if lag > limit {
            return client(format!("the client sent late: its own send lag has a p99 of {lag:.3} ms, limit {limit:.3} ms"));
        }
        if let (Some(p99), Some(undelayed)) = (p99, e.undelayed_p99_ms) {
            let moved = p99 - undelayed;
            let limit = (rules.bias_share * p99).max(rules.bias_floor_ms);
            if moved > limit {
                return client(format!("the client's own send lag moved the p99 by {moved:.3} ms, limit {limit:.3} ms"));
            }
        }
    }
    if let Some(busy) = e.client.and_then(|c| c.busy_share).filter(|&b| b > BUSY_LIMIT) {
        return client(format!(
            "the client was busy {:.0} % of the time (limit {:.0} %), so replies waited for it",
            busy * 100.0,
            BUSY_LIMIT * 100.0
        ));
    }
    if e.late_past_end > 3 && e.late_past_end as f64 > 0.005 * e.offered as f64 {
        return client(format!("{} of {} requests were due but not taken up by the end of the run", e.late_past_end, e.offered));
    }
    if e.dropped_client > e.dropped_server {
        return client(format!("{} requests were dropped while the client was behind its schedule", e.dropped_client));
    }

    let dropped = e.dropped_server + e.dropped_client;
    if dropped > 0 {
        return server(format!("{} of {} requests were dropped because too many were waiting for the server", e.dropped_server, e.offered));
    }
    if e.unfinished > 0 {
        return server(format!("{} of {} requests had no reply when the grace period ended", e.unfinished, e.offered));
    }
    let ended = e.completed + e.errors;
    if e.errors as f64 > MOST_LOST * ended as f64 {
        return server(format!("{} of {ended} requests failed (limit 1 %)", e.errors));
    }
    let chance = if e.window { 3.0 * (e.offered.max(1) as f64).sqrt() } else { 4.0 * e.mean_outstanding.max(1.0).sqrt() };
    if e.backlog_growth as f64 > MOST_LOST * e.offered as f64 + chance {
        return server(format!("the backlog grew by {} requests while {} were offered", e.backlog_growth, e.offered));
    }

    if e.response.p99.verdict == Resolution::NotResolvable {
        let q = &e.response.p99;
        let why = if q.effective_count < q.count {
            format!(
                "{} samples (worth {} independent ones: slow replies come in bursts) do not bound the p99 from above; measure longer",
                q.count, q.effective_count
            )
        } else {
            format!("{} samples do not bound the p99 from above; measure longer", q.count)
        };
        return verdict(VerdictKind::NotResolvable, why);
    }
    let lag = e.client_lag_p99_ms.unwrap_or(0.0);
    verdict(VerdictKind::Valid, format!("the client kept its schedule (own send lag p99 {lag:.3} ms) and the server kept up"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantile::Quantile;

    fn quantile(q: f64, ms: Option<f64>) -> Quantile {
        Quantile {
            q,
            value_ms: ms,
            lower_ms: ms,
            upper_ms: ms,
            count: 10_000,
            effective_count: 10_000,
            verdict: if ms.is_some() { Resolution::Valid } else { Resolution::NotResolvable },
        }
    }

    fn latency(p99_ms: Option<f64>) -> Latency {
        Latency {
            count: 10_000,
            lost: 0,
            mean_ms: Some(0.1),
            max_ms: Some(p99_ms.unwrap_or(1.0) * 2.0),
            p50: quantile(0.5, Some(0.1)),
            p95: quantile(0.95, Some(0.2)),
            p99: quantile(0.99, p99_ms),
            p999: quantile(0.999, p99_ms),
        }
    }

    fn calm(response: &Latency) -> Evidence<'_> {
        Evidence {
            window: false,
            offered: 10_000,
            late_past_end: 0,
            completed: 10_000,
            errors: 0,
            dropped_server: 0,
            dropped_client: 0,
            unfinished: 0,
            backlog_growth: 0,
            mean_outstanding: 1.0,
            client_lag_p99_ms: Some(0.05),
            undelayed_p99_ms: response.p99.value_ms.map(|v| v - 0.01),
            response,
            client: None,
        }
    }

    fn kind(e: &Evidence) -> VerdictKind {
        let v = judge(e, &Rules::default());
        assert!(!v.reason.is_empty() && !v.reason.contains('\n'));
        v.kind
    }

    #[test]
    fn a_calm_run_is_valid() {
        assert_eq!(kind(&calm(&latency(Some(1.0)))), VerdictKind::Valid);
    }

    /// Each rule of the module doc, just on either side of its limit.
    #[test]
    fn each_rule_at_its_limit() {
        let l = latency(Some(20.0));
        let base = || calm(&l);
        // Late: 10 % of 20 ms.
        assert_eq!(kind(&Evidence { client_lag_p99_ms: Some(1.9), ..base() }), VerdictKind::Valid);
        let late = Evidence { client_lag_p99_ms: Some(2.1), ..base() };
        assert_eq!(kind(&late), VerdictKind::ClientLimited);
        // Moved: 5 % of 20 ms.
        let moved = |by| Evidence { undelayed_p99_ms: Some(20.0 - by), ..base() };
        assert_eq!(kind(&moved(0.9)), VerdictKind::Valid);
        assert_eq!(kind(&moved(1.1)), VerdictKind::ClientLimited);
        // Short: 0.5 % of 10,000.
        assert_eq!(kind(&Evidence { late_past_end: 50, ..base() }), VerdictKind::Valid);
        assert_eq!(kind(&Evidence { late_past_end: 51, ..base() }), VerdictKind::ClientLimited);
        assert_eq!(kind(&Evidence { dropped_client: 1, ..base() }), VerdictKind::ClientLimited);
        let both = Evidence { dropped_client: 1, dropped_server: 1000, ..base() };
        assert_eq!(kind(&both), VerdictKind::ServerOverloaded);
        // Overload.
        assert_eq!(kind(&Evidence { dropped_server: 1, ..base() }), VerdictKind::ServerOverloaded);
        assert_eq!(kind(&Evidence { unfinished: 1, ..base() }), VerdictKind::ServerOverloaded);
        assert_eq!(kind(&Evidence { errors: 100, ..base() }), VerdictKind::Valid);
        assert_eq!(kind(&Evidence { errors: 102, ..base() }), VerdictKind::ServerOverloaded);
        // 1 % of 10,000 + 4.
        assert_eq!(kind(&Evidence { backlog_growth: 104, ..base() }), VerdictKind::Valid);
        let behind = Evidence { backlog_growth: 105, ..base() };
        assert_eq!(kind(&behind), VerdictKind::ServerOverloaded);
    }

    /// A busy client is named as such, and every client-limited run says what helps against its own cause.
    #[test]
    fn the_clients_own_limits() {
        let l = latency(Some(20.0));
        let used = |busy, wait| {
            Some(ClientUse { busy_share: Some(busy), cpu_share: Some(1.0), run_queue_wait_share: Some(wait), ..ClientUse::default() })
        };
        assert_eq!(kind(&Evidence { client: used(0.89, 0.0), ..calm(&l) }), VerdictKind::Valid);
        assert_eq!(kind(&Evidence { client: used(0.91, 0.0), ..calm(&l) }), VerdictKind::ClientLimited);
        assert_eq!(kind(&Evidence { client: Some(ClientUse::default()), ..calm(&l) }), VerdictKind::Valid);
        let says = |client| judge(&Evidence { client, client_lag_p99_ms: Some(3.0), ..calm(&l) }, &Rules::default()).reason;
        assert!(says(used(0.85, 0.2)).contains("more --threads"));
        let stopped = says(used(0.85, 0.2).map(|u| ClientUse { stops: 2, stopped_ms: 99.6, ..u }));
        assert!(
            stopped.contains("stopped a sending thread 2 time(s), 100 ms in all") && stopped.contains("sched_rt_runtime_us"),
            "{stopped}"
        );
        assert!(says(used(0.5, 0.2)).contains("waited for a CPU for 20 %"));
        assert!(says(used(0.5, 0.01)).contains("--spin-us"));
        assert!(!says(None).contains("--"), "a window does not know why");
    }

    #[test]
    fn what_was_near_is_told() {
        let used = |busy, wait| ClientUse {
            busy_share: Some(busy),
            cpu_share: Some(1.0),
            run_queue_wait_share: Some(wait),
            ..ClientUse::default()
        };
        let count = |v, c: &ClientUse, held| warnings(v, c, held, 16).len();
        assert_eq!(count(VerdictKind::Valid, &used(0.79, 0.04), 0.04), 0);
        assert_eq!(count(VerdictKind::Valid, &used(0.81, 0.04), 0.06), 2);
        assert_eq!(count(VerdictKind::Valid, &used(0.1, 0.06), 0.0), 1);
        assert_eq!(count(VerdictKind::Valid, &ClientUse::default(), 0.0), 0);
        assert_eq!(count(VerdictKind::Valid, &ClientUse { stops: 1, stopped_ms: 50.0, ..ClientUse::default() }, 0.0), 1);
        // The verdict has said it already; and a full connection is no wonder when the server is overloaded.
        assert_eq!(count(VerdictKind::ClientLimited, &used(0.97, 0.0), 0.0), 0);
        assert_eq!(count(VerdictKind::ServerOverloaded, &used(0.1, 0.0), 0.9), 0);
        assert!(warnings(VerdictKind::Valid, &used(0.1, 0.0), 0.5, 16)[0].contains("more than 16 at once"));
    }

    /// Without an upper bound on the p99 there is no valid run.
    #[test]
    fn too_few_samples_are_not_valid() {
        assert_eq!(kind(&calm(&latency(None))), VerdictKind::NotResolvable);
    }

    /// An overloaded server's long p99 does not let the client's share of it look like the cause.
    #[test]
    fn overload_is_not_blamed_on_the_client() {
        let l = latency(Some(900.0));
        let e = Evidence { client_lag_p99_ms: Some(20.0), backlog_growth: 3000, mean_outstanding: 1500.0, ..calm(&l) };
        assert_eq!(kind(&e), VerdictKind::ServerOverloaded);
    }
}
