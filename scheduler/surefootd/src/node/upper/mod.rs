//! Word to the upper scheduler (docs/upper-scheduler.md): what a policy reports becomes events, in the log, the metrics and on a socket.
//!
//! [`conditions`] decides what is told, [`questions`] what is asked and until when a word on it holds, [`socket`] sends and hears.

pub mod conditions;
pub mod questions;
pub mod socket;

use crate::base::error::{Error, Result};
use crate::stage::config::NodeConfig;
use conditions::{Conditions, Event};
use questions::Questions;
use socket::{Hello, Socket};
use std::path::Path;
use surefoot_server::{Observation, Plan, Word};

pub use conditions::What;

/// The socket in a state folder.
pub const SOCKET: &str = "upper.sock";

/// What upper schedulers were told, and how many hear it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpperCounts {
    /// By [`What`].
    pub events: [u64; 5],
    pub in_force: [u64; 4],
    /// None without a socket.
    pub clients: Option<u64>,
    /// By [`socket::DROPPED`].
    pub dropped: [u64; 2],
    /// By [`questions::ENDED`]; None where nothing is asked.
    pub questions: Option<[u64; 3]>,
}

/// Conditions, and who hears of them.
pub struct Upper {
    conditions: Conditions,
    questions: Option<Questions>,
    socket: Option<Socket>,
    events: [u64; 5],
}

impl Upper {
    /// `state` is the state folder; a server without one has a socket only where the configuration names it.
    ///
    /// # Errors
    /// [`Error`] where the socket cannot be opened, or where there is none to ask on.
    pub fn open(config: &NodeConfig, state: Option<&Path>, hello: Hello) -> Result<Self> {
        let named = config.upper.socket.clone().or_else(|| state.map(|s| s.join(SOCKET)));
        let socket = named.filter(|_| config.upper.on).map(|at| Socket::open(&at, config, hello)).transpose()?;
        if config.upper.ask.is_some() && socket.is_none() {
            let file = config.file.display();
            return Err(Error::BadInput(format!("{file}: upper.ask: this server has no socket to ask on. Name one: upper.socket")));
        }
        let questions = config.upper.ask.map(Questions::new);
        Ok(Upper { conditions: Conditions::default(), questions, socket, events: [0; 5] })
    }

    /// What upper schedulers have said, for the policy's next decision; None where they are asked nothing. Never waits.
    pub fn words(&mut self, t_ms: u64) -> Option<Vec<Word>> {
        let questions = self.questions.as_mut()?;
        if let Some(s) = &mut self.socket {
            questions.hear(t_ms, &s.hear());
        }
        Some(questions.words(t_ms))
    }

    /// One tick: never waits for anybody.
    pub fn tick(&mut self, t_ms: u64, seen: &Observation, plan: &Plan, refused: bool, at_ms: impl Fn() -> Option<u64>) {
        let events = self.conditions.tick(t_ms, seen, plan, refused, &at_ms);
        for e in &events {
            self.events[e.event as usize] += 1;
            log(e);
        }
        let asked = match &mut self.questions {
            Some(q) => q.ask(t_ms, &plan.questions, &at_ms, || self.conditions.next_seq()),
            None => vec![],
        };
        for q in &asked {
            tracing::info!("{} would share with {}, which is left QoS {:.2}: asked", q.service, q.with, q.qos);
        }
        if let Some(s) = &mut self.socket {
            let waiting = self.questions.as_ref().map(Questions::waiting).unwrap_or_default();
            s.tick(&events, (&asked, &waiting), t_ms, &self.conditions, &at_ms);
        }
    }

    /// What is in force, as last told.
    pub fn in_force(&self) -> Vec<&Event> {
        self.conditions.in_force()
    }

    pub fn counts(&self) -> UpperCounts {
        let sent = self.socket.as_ref().map(Socket::counts);
        UpperCounts {
            events: self.events,
            in_force: self.conditions.counts(),
            clients: sent.map(|s| s.0),
            dropped: sent.map_or([0; 2], |s| s.1),
            questions: self.questions.as_ref().map(Questions::ended),
        }
    }
}

/// The one place where a condition reaches the log.
fn log(e: &Event) {
    let (service, why) = (&e.service, &e.why);
    match (e.event, e.of, e.qos) {
        (What::CannotPlace, ..) => tracing::warn!("cannot place {service}: {why}"),
        (What::Migrate, ..) => tracing::warn!("{service} had better migrate: {why}"),
        (What::Resolved, Some(of), _) => tracing::info!("{service}: {} is over: {why}", of.as_str()),
        (_, _, Some(qos)) => tracing::info!("{service}: {} to QoS {qos:.2}: {why}", e.event.as_str()),
        _ => tracing::info!("{service}: {}: {why}", e.event.as_str()),
    }
}

#[cfg(test)]
mod tests;
