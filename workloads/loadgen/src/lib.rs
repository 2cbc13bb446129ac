//! Open-loop load generator: requests leave on a schedule fixed beforehand, whatever the server does.
//!
//! Three latencies are kept apart, because mixing them is how a stalled server hides (coordinated omission):
//! - **service time**: actual send to reply;
//! - **response time**: *intended* send to reply. Every "p99" of Surefoot means this one;
//! - **send lag**: intended send to actual send. Its share that is this client's own fault is the **client lag**.
//!
//! Map: [`schedule`] when requests are due, [`load`] at what rate, [`mmpp`] in bursts, [`live`] changed while running · [`driver`] the loop, against the ports `Clock` and `Transport` · [`net`] sockets, [`pace`] how often they are looked at, [`realtime`] and with what right ·
//! [`sim`] virtual time and queueing servers · [`protocol`] memcached, RESP, HTTP · [`record`] histograms and windows ·
//! [`quantile`] percentiles with intervals · [`verdict`] may a number be believed · [`warmup`] is the service warm · [`feed`] the live
//! datagram, [`relay`] from another host · [`control`] commands while running · [`run`] all of it · [`windows`] parts of it, merged ·
//! [`saturate`] the highest load that meets a target · [`output`] files that a command writes.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]

pub mod config;
pub mod control;
pub mod driver;
pub mod error;
pub mod feed;
pub mod inproc;
pub mod live;
pub mod load;
pub mod mmpp;
pub mod net;
pub mod output;
pub mod pace;
pub mod protocol;
pub mod quantile;
pub mod random;
pub mod realtime;
pub mod record;
pub mod relay;
pub mod report;
pub mod run;
pub mod saturate;
pub mod schedule;
pub mod sim;
pub mod verdict;
pub mod warmup;
pub mod windows;

pub use config::Config;
pub use error::LoadgenError;
pub use load::LoadProfile;
pub use report::Report;
pub use run::{run, RunOutput};
pub use schedule::{Arrival, Arrivals, Schedule};
pub use verdict::{Verdict, VerdictKind};
