//! The load generator as a child process: where it is, how it is called, what its report says of itself.

#![allow(unsafe_code, reason = "kill of a child of its own")]

use super::whole::Client;
use crate::catalogue::Loadgen;
use crate::child::{Guarded, Priority, Said};
use crate::engine::in_path;
use crate::local::LocalServer;
use serde::Deserialize;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_io::input::{self, SUMMARY_BYTES};
use surefoot_server::{CpuSet, Sending, ServerError, Verdict};

/// The parts of the report that are used here. Latencies are taken from the feed's windows ([`super::whole`]).
#[derive(Debug, Deserialize)]
struct Report {
    client_lag: Lag,
    verdict: ReportVerdict,
}

#[derive(Debug, Deserialize)]
struct Lag {
    p99: Quantile,
}

#[derive(Debug, Deserialize)]
struct Quantile {
    value_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct ReportVerdict {
    kind: Verdict,
    reason: String,
}

const REMEDY: &str = "Run surefoot-loadgen by hand to see more";
/// What a generator said is waited for so long once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Unanswered requests are waited for so long when the samples are complete.
const GRACE: &str = "20ms";
/// Longest time from its start to its first word, and from the end of the samples to its report.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn failed(what: impl Into<String>, cause: impl std::fmt::Display, remedy: &str) -> ServerError {
    ServerError::Unavailable { what: what.into(), cause: cause.to_string(), remedy: remedy.into() }
}

/// The load generator: `SUREFOOT_LOADGEN`, else beside this program, else in PATH.
///
/// # Errors
/// [`ServerError::Unavailable`] that says how to build it.
pub fn find_loadgen() -> Result<PathBuf, ServerError> {
    let name = "surefoot-loadgen";
    let remedy = "Put it there (the package has both), name it with --loadgen, or set SUREFOOT_LOADGEN";
    if let Some(p) = std::env::var_os("SUREFOOT_LOADGEN").filter(|p| !p.is_empty()) {
        let p = PathBuf::from(p);
        return if p.is_file() { Ok(p) } else { Err(failed(name, format!("SUREFOOT_LOADGEN={} is no file", p.display()), remedy)) };
    }
    // Test programs lie one folder below.
    let exe = std::env::current_exe().ok();
    let beside = exe.iter().flat_map(|e| e.ancestors().skip(1).take(2)).map(|d| d.join(name)).find(|p| p.is_file());
    beside.or_else(|| in_path(name)).ok_or_else(|| failed(name, "not found beside this program nor in PATH", remedy))
}

/// Share of the QoS target by which the client may move a p99. A campaign asks on which side of the target a case lies; the
/// client's lag is part of the response time, so what it adds can only make a case look worse, never better.
const CLIENT_SHARE_OF_TARGET: f64 = 0.125;

/// The load generator's limit on its own lag, ms. It allows a fifth of that limit as bias of the p99 (its verdict.rs) and
/// never less than its own default of 1 ms.
fn lag_limit_ms(qos_target_ms: Option<f64>) -> f64 {
    (5.0 * CLIENT_SHARE_OF_TARGET * qos_target_ms.unwrap_or(0.0)).max(1.0)
}

/// A load to be put on a service.
pub(super) struct Load<'a> {
    pub id: &'a str,
    pub loadgen: &'a Loadgen,
    /// On 127.0.0.1; None where the generator needs none.
    pub port: Option<u16>,
    pub qos_target_ms: Option<f64>,
    pub rps: f64,
    pub seed: u64,
    /// It ends by itself after this; [`Client`] speaks of the time after `aside_ms`.
    pub longest_ms: u64,
    pub aside_ms: u64,
    /// Its keys are in the service already.
    pub preloaded: bool,
    /// Sending threads of our own generator, where its entry does not say how many.
    pub threads: Option<u32>,
}

impl Load<'_> {
    /// The command of another generator, with all of [`crate::catalogue::PLACEHOLDERS`] filled in.
    fn command(&self, feed: &Path) -> Vec<String> {
        let values = [
            ("{rps}", self.rps.to_string()),
            ("{seed}", self.seed.to_string()),
            ("{port}", self.port.unwrap_or(0).to_string()),
            ("{duration_ms}", self.longest_ms.to_string()),
            ("{feed}", feed.display().to_string()),
            ("{service}", self.id.to_string()),
            ("{connections}", self.loadgen.connections.to_string()),
        ];
        self.loadgen.command.iter().map(|a| values.iter().fold(a.clone(), |a, (name, value)| a.replace(name, value))).collect()
    }

    /// Arguments of surefoot-loadgen.
    fn args(&self, feed: &Path) -> Vec<String> {
        let l = self.loadgen;
        let mut args: Vec<String> = [
            ("--target", format!("127.0.0.1:{}", self.port.unwrap_or(0))),
            ("--protocol", l.protocol.clone()),
            ("--connections", l.connections.to_string()),
            ("--rps", self.rps.to_string()),
            ("--duration", format!("{}ms", self.longest_ms)),
            ("--warmup", format!("{}ms", self.aside_ms)),
            ("--grace", GRACE.into()),
            ("--seed", self.seed.to_string()),
            ("--service", self.id.to_string()),
            ("--feed", feed.display().to_string()),
            ("--lag-limit-ms", lag_limit_ms(self.qos_target_ms).to_string()),
        ]
        .into_iter()
        .flat_map(|(k, v)| [k.to_string(), v])
        .collect();
        args.push("--json".into());
        args.extend(l.args.iter().cloned());
        if let Some(threads) = self.threads.filter(|_| !l.names_threads()) {
            args.extend(["--threads".into(), threads.to_string()]);
        }
        let bare = "--no-preload";
        if self.preloaded && !args.iter().any(|a| a == bare) {
            args.push(bare.into());
        }
        args
    }

    /// Start it; what the feed said of the service before is forgotten.
    pub fn begin(&self, server: &LocalServer, loadgen: &Path, cpus: CpuSet) -> Result<Running, ServerError> {
        let (own, feed) = (self.loadgen.is_own(), server.feed_path());
        let mut words = if own { self.args(feed) } else { self.command(feed) }.into_iter();
        let program = if own { loadgen.to_path_buf() } else { words.next().unwrap_or_default().into() };
        let mut cmd = Command::new(&program);
        cmd.args(words).stdin(Stdio::null()).stderr(Stdio::piped());
        // A pipe that nobody reads would stop what writes much.
        cmd.stdout(if own { Stdio::piped() } else { Stdio::null() });
        let now_ms = server.feed().now_ms();
        server.feed().with(|w| w.begin(self.id, now_ms));
        // What another program does with real time is not known: it may never sleep.
        let priority = if own { Priority::Realtime } else { Priority::Normal };
        let remedy = if own { "Install it as surefootd is (the package has both)" } else { "Mend loadgen.command" };
        let mut child = Guarded::spawn(cmd, cpus, priority).map_err(|e| failed(program.display().to_string(), e, remedy))?;
        let said = child.0.stderr.take().map(Said::of);
        Ok(Running { child, lag_limit_ms: lag_limit_ms(self.qos_target_ms), own, said, rps: self.rps, sending: self.loadgen.sending() })
    }
}

/// A load that is on.
#[derive(Debug)]
pub(super) struct Running {
    child: Guarded,
    lag_limit_ms: f64,
    /// It is surefoot-loadgen.
    own: bool,
    said: Option<Said>,
    rps: f64,
    sending: Sending,
}

impl Running {
    /// How it sends, and what its latencies count from.
    pub fn sending(&self) -> Sending {
        self.sending
    }

    /// When its first window arrived, on the feed's clock.
    pub fn first_window(&mut self, server: &LocalServer, id: &str) -> Result<u64, ServerError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(t) = server.feed().with(|w| w.first_arrival(id)) {
                return Ok(t);
            }
            if self.child.0.try_wait().ok().flatten().is_some() || Instant::now() > deadline {
                return Err(failed(format!("load on {id}"), self.said(), self.remedy()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// End a load of which no more is wanted than that it was on until now.
    pub fn still_there(mut self, id: &str) -> Result<(), ServerError> {
        match self.child.0.try_wait() {
            Ok(None) => Ok(()),
            _ => Err(failed(
                format!("load on {id}, a neighbour"),
                format!("it ended before the samples did: {}", self.said()),
                self.remedy(),
            )),
        }
    }

    /// End it and hear what it says of itself.
    pub fn finish(mut self) -> Result<Client, ServerError> {
        // SAFETY: a signal to a child that was not waited for, so that its number is its own still.
        unsafe { libc::kill(self.child.0.id() as libc::pid_t, libc::SIGTERM) };
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.0.try_wait() {
                Ok(Some(s)) => break s,
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) => return Err(failed("load generator", "it did not end in time", REMEDY)),
                Err(e) => return Err(failed("load generator", e, REMEDY)),
            }
        };
        // Another program may end as it was told, without a word of its own.
        if !status.success() && (self.own || status.signal() != Some(libc::SIGTERM)) {
            let said = self.said();
            let cause = if self.own { said } else { format!("{status}: {said}") };
            return Err(failed("load generator", cause, self.remedy()));
        }
        if !self.own {
            return Ok(Client { limited: None, lag_p99_ms: None, lag_limit_ms: self.lag_limit_ms, asked_rps: Some(self.rps) });
        }
        let said = self.child.0.stdout.take().map_or_else(|| Ok(vec![]), |o| input::all(o, SUMMARY_BYTES));
        let text = said.and_then(input::utf8).map_err(|e| failed("load generator", e, REMEDY))?;
        client(&text, self.lag_limit_ms).map_err(|e| failed("report of the load generator", e, "Build both programs from the same source"))
    }

    fn remedy(&self) -> &'static str {
        if self.own {
            REMEDY
        } else {
            "Run loadgen.command by hand to see more"
        }
    }

    /// What it wrote to stderr, one line; kills it if it still runs.
    fn said(&mut self) -> String {
        let _ = self.child.0.kill();
        let said = self.said.as_ref().and_then(|s| s.last_line(LAST_WORDS));
        said.unwrap_or_else(|| "the load generator sent nothing".into())
    }
}

/// What the generator's options are called where a campaign starts it.
const IN_A_CAMPAIGN: &str = "(of a campaign: cpus and threads of [loadgen] in campaign.toml)";

fn client(report: &str, lag_limit_ms: f64) -> serde_json::Result<Client> {
    let r: Report = serde_json::from_str(report)?;
    let limited = (r.verdict.kind == Verdict::ClientLimited).then(|| format!("{} {IN_A_CAMPAIGN}", r.verdict.reason));
    Ok(Client { limited, lag_p99_ms: r.client_lag.p99.value_ms, lag_limit_ms, asked_rps: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::PLACEHOLDERS;

    fn of(protocol: &str) -> Loadgen {
        let (args, command) = (vec![], vec![]);
        Loadgen { protocol: protocol.into(), connections: 3, args, command, check: false, send_loop: None, latency_from: None }
    }

    fn load(loadgen: &Loadgen, threads: Option<u32>) -> Load<'_> {
        Load {
            id: "web",
            loadgen,
            port: Some(80),
            qos_target_ms: None,
            rps: 1.5,
            seed: 7,
            longest_ms: 900,
            aside_ms: 0,
            preloaded: false,
            threads,
        }
    }

    /// Every placeholder that a command may have is filled in.
    #[test]
    fn commands_are_filled_in() {
        let loadgen = Loadgen { command: PLACEHOLDERS.iter().map(|p| format!("a{p}b")).collect(), ..of("exec") };
        let load = load(&loadgen, None);
        assert_eq!(load.command(Path::new("/f")), ["a1.5b", "a7b", "a80b", "a900b", "a/fb", "awebb", "a3b"]);
    }

    /// The campaign says how many threads send, unless the entry does.
    #[test]
    fn threads_are_the_campaigns_or_the_entrys() {
        let args = |own: &[&str], threads| {
            let loadgen = Loadgen { args: own.iter().map(ToString::to_string).collect(), ..of("http") };
            let args = load(&loadgen, threads).args(Path::new("/f"));
            let at: Vec<String> = args.iter().skip_while(|a| !a.starts_with("--threads")).cloned().collect();
            at
        };
        assert_eq!(args(&[], Some(2)), ["--threads", "2"]);
        assert!(args(&[], None).is_empty());
        assert_eq!(args(&["--threads", "3"], Some(2)), ["--threads", "3"]);
        assert_eq!(args(&["--threads=3"], Some(2)), ["--threads=3"]);
    }

    /// Only the client's own word is taken from a report: that it was late, and its lag. What else is in it does not matter.
    #[test]
    fn reports_are_read() {
        let text = |kind: &str, lag: &str| {
            format!(
                r#"{{"offered_rps":100.5,"new_field":[],"client_lag":{{"count":7,"p99":{{"value_ms":{lag},"lower_ms":null}}}},
                "verdict":{{"kind":"{kind}","reason":"because"}}}}"#
            )
        };
        let late = client(&text("client-limited", "3.5"), 1.0).unwrap();
        let punctual = Client { limited: None, lag_p99_ms: None, lag_limit_ms: 1.0, asked_rps: None };
        let limited = Some(format!("because {IN_A_CAMPAIGN}"));
        assert_eq!(late, Client { limited, lag_p99_ms: Some(3.5), ..punctual.clone() });
        for kind in ["valid", "server-overloaded", "not-resolvable"] {
            assert_eq!(client(&text(kind, "null"), 1.0).unwrap(), punctual);
        }
        assert!(client(&text("odd", "1"), 1.0).is_err() && client("{}", 1.0).is_err());
    }
}
