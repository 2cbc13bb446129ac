//! Idle cores that services lend to BE jobs between two plans: `[[lend]]` of node.toml (docs/decisions/leases.md).
//!
//! What holds: the control loop alone grants leases, after a plan and never in one. It waits for no thread of a lender but for one write
//! of its CPUs: what such a thread tells comes through a mutex that is held for a copy, and the server itself ends a lease. Whatever ends
//! a thread ends its lease, with one line that says why; after a fault the next lease waits, longer each time. A thread that hangs has no
//! successor.
//!
//! A lender's policy starts afresh with each lease: another number of cores makes another model.

use super::decisions::{LendLine, LendNews};
use super::status::LendStatus;
use crate::stage::config::Lend;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use surefoot_harvest::{Harvester, Settings, Stop, Tally};
use surefoot_linux::local::{LocalLender, LEAST_BETWEEN_FILES};
use surefoot_linux::LocalServer;
use surefoot_server::{LendError, Lender, Observation, Server};

/// Between two reports of a lender's thread, µs: as often as a tick looks.
const REPORT_US: u64 = 100_000;
/// Pause before the next lease after a fault: at first, and at most after twice as long each time, ms.
const PAUSE_MS: u64 = 1000;
const MOST_PAUSE_MS: u64 = 60_000;

/// Why nothing is lent between two leases.
const OVER: &str = "its last lease has ended, and the thread of that lease has not yet";

/// [`surefoot_harvest::drive`], or a test's.
type Drive = fn(&mut dyn Lender, &mut Harvester, u64) -> Result<(), LendError>;

/// What a thread says of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    lent: u32,
    tally: Tally,
    stop: Option<Stop>,
}

fn held(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lease in use by its thread.
#[derive(Debug)]
struct Loan {
    thread: JoinHandle<Result<(), LendError>>,
    stop: Arc<AtomicBool>,
    report: Arc<Mutex<Report>>,
    cores: u32,
    since_ms: u64,
    /// Long-term stops of this lease that have been said.
    stops_said: u64,
    /// The lease has ended, and its thread has not heard of it yet, or hangs.
    over: bool,
}

/// One `[[lend]]`.
#[derive(Debug)]
struct Entry {
    wish: Lend,
    loan: Option<Loan>,
    leases: u64,
    /// Of leases that are over.
    past: Tally,
    /// Why nothing can be lent now, and what was said of that last.
    why: Option<String>,
    said: Option<String>,
    /// After a fault no lease is granted before.
    not_before_ms: u64,
    pause_ms: u64,
    /// What the journal of decisions is to hear.
    news: Vec<LendNews>,
}

/// Every `[[lend]]` of a configuration.
#[derive(Debug)]
pub struct Lending {
    entries: Vec<Entry>,
    drive: Drive,
}

impl Lending {
    pub fn new(lends: &[Lend]) -> Self {
        let entry = |wish: &Lend| Entry {
            wish: wish.clone(),
            loan: None,
            leases: 0,
            past: Tally::default(),
            why: None,
            said: None,
            not_before_ms: 0,
            pause_ms: PAUSE_MS,
            news: vec![],
        };
        Lending { entries: lends.iter().map(entry).collect(), drive: surefoot_harvest::drive }
    }

    /// Leases for what is in force, and an end to those whose threads have ended. To be called at every tick, when its plan is applied.
    /// What the journal of decisions is to hear of that, without a time of day.
    pub fn tick(&mut self, now_ms: u64, seen: &Observation, server: &mut LocalServer) -> Vec<LendLine> {
        for e in &mut self.entries {
            e.end_of_thread(now_ms, server);
            if let Some(loan) = &mut e.loan {
                loan.over = !server.is_in_a_lease(&e.wish.lender);
                e.news.extend(loan.say_stops(&e.wish));
            } else if now_ms >= e.not_before_ms {
                e.grant(now_ms, seen, server, self.drive);
            }
        }
        self.news(now_ms)
    }

    /// The run ends, and every lease with it.
    pub fn end(&mut self, now_ms: u64) -> Vec<LendLine> {
        for e in &mut self.entries {
            if let Some(loan) = &e.loan {
                e.news.push(ended("the daemon ends", now_ms.saturating_sub(loan.since_ms), &held(&loan.report).tally));
            }
        }
        self.news(now_ms)
    }

    fn news(&mut self, now_ms: u64) -> Vec<LendLine> {
        let of = |e: &mut Entry| {
            let Lend { lender, borrower, policy, .. } = e.wish.clone();
            let line = move |lend| LendLine {
                t_ms: now_ms,
                at_ms: None,
                lender: lender.clone(),
                borrower: borrower.clone(),
                policy: policy.clone(),
                lend,
            };
            std::mem::take(&mut e.news).into_iter().map(line).collect::<Vec<_>>()
        };
        // Most ticks have none.
        self.entries.iter_mut().filter(|e| !e.news.is_empty()).flat_map(of).collect()
    }

    pub fn status(&self) -> Vec<LendStatus> {
        self.entries.iter().map(Entry::status).collect()
    }
}

/// Threads end soon; what they lent is back before, with the server's leases.
impl Drop for Lending {
    fn drop(&mut self) {
        self.entries.iter().filter_map(|e| e.loan.as_ref()).for_each(|loan| loan.stop.store(true, Ordering::Relaxed));
    }
}

impl Entry {
    fn end_of_thread(&mut self, now_ms: u64, server: &mut LocalServer) {
        let Some(mut loan) = self.loan.take_if(|loan| loan.thread.is_finished()) else { return };
        self.news.extend(loan.say_stops(&self.wish));
        add(&mut self.past, &held(&loan.report).tally);
        let Loan { since_ms, report, .. } = &loan;
        let (since_ms, tally) = (*since_ms, held(report).tally);
        let (why, is_fault) = match loan.thread.join() {
            // The server has said why.
            Ok(Err(LendError::Ended { why, .. })) => (why, false),
            Ok(Ok(())) => ("its thread was told to stop".into(), false),
            Ok(Err(e)) => (e.to_string().trim_end_matches('.').to_string(), true),
            Err(_) => ("a fault of surefootd ended its thread. Please report it".into(), true),
        };
        self.news.push(ended(&why, now_ms.saturating_sub(since_ms), &tally));
        if !is_fault {
            self.pause_ms = PAUSE_MS;
            return;
        }
        // A lease that went well for long says that the fault is another one.
        if now_ms.saturating_sub(since_ms) > MOST_PAUSE_MS {
            self.pause_ms = PAUSE_MS;
        }
        self.fail(now_ms, &why);
        let lender = &self.wish.lender;
        if server.is_in_a_lease(lender) {
            server.end_leases(&why, |l| l.lender == *lender);
        } else {
            tracing::warn!("{lender} lends no CPUs to {}: {why}", self.wish.borrower);
        }
    }

    fn fail(&mut self, now_ms: u64, why: &str) {
        self.why = Some(format!("{why} (next attempt in {} s)", self.pause_ms / 1000));
        self.not_before_ms = now_ms + self.pause_ms;
        self.pause_ms = (self.pause_ms * 2).min(MOST_PAUSE_MS);
    }

    fn grant(&mut self, now_ms: u64, seen: &Observation, server: &mut LocalServer, drive: Drive) {
        let Lend { lender, borrower, policy, poll_ms, settings } = &self.wish;
        // Services come and go, and a newcomer is placed by the next plan: nothing to speak of.
        if let Some(id) = [lender, borrower].into_iter().find(|id| !seen.get(id).is_some_and(|s| s.placed)) {
            self.why = Some(format!("{id} is not placed"));
            return;
        }
        let granted = server.could_lend(lender, borrower).map_err(|e| (e, false)).and_then(|(lease, cores)| {
            let most = lease.cores(server.platform()).len() as u32;
            let cpus = lease.cpus;
            let lender = server.grant(lease).map_err(|e| (e.to_string(), true))?;
            let (settings, slower) = as_seen(settings, lender.reads_files());
            let harvester = Harvester::named(policy, cores, most, &settings).map_err(|e| (e, true))?;
            if let (true, Some(why)) = (harvester.wants_waiting(), lender.reads_files()) {
                let e = format!("{policy} decides by a wait that goes on, which no file shows ({why}). Choose another policy");
                return Err((e, true));
            }
            Ok((lender, harvester, most, cpus, slower))
        });
        let started = granted.and_then(|(lent_by, harvester, most, cpus, slower)| {
            let loan = Loan::start(lent_by, harvester, most, now_ms, drive).map_err(|e| (e, true))?;
            let looks = slower.map_or(format!("{poll_ms} ms"), |ms| format!("{ms} ms, not {poll_ms}, since files are read"));
            tracing::info!("{lender} lends up to {most} cores (CPUs {cpus}) to {borrower}: {policy}, a look every {looks}");
            Ok((loan, LendNews::Granted { cores: most, cpus: cpus.to_string() }))
        });
        match started {
            Ok((loan, news)) => {
                self.loan = Some(loan);
                self.leases += 1;
                (self.why, self.said) = (None, None);
                self.news.push(news);
            }
            Err((why, is_fault)) => {
                if self.said.as_ref() != Some(&why) {
                    tracing::warn!("{lender} lends nothing to {borrower}: {}", why.trim_end_matches('.'));
                    self.said = Some(why.clone());
                    self.news.push(LendNews::Refused { why: why.clone() });
                }
                self.why = Some(why.clone());
                if is_fault {
                    self.fail(now_ms, &why);
                }
            }
        }
    }

    fn status(&self) -> LendStatus {
        let (mut all, mut lent) = (self.past, 0);
        let in_force = self.loan.as_ref().filter(|loan| !loan.over);
        if let Some(loan) = &self.loan {
            add(&mut all, &held(&loan.report).tally);
        }
        if let Some(loan) = in_force {
            lent = held(&loan.report).lent;
        }
        LendStatus {
            lender: self.wish.lender.clone(),
            borrower: self.wish.borrower.clone(),
            policy: self.wish.policy.clone(),
            cores: lent,
            most_cores: in_force.map_or(0, |loan| loan.cores),
            leases: self.leases,
            windows: all.predicted,
            short: all.short,
            exhausted: all.exhausted,
            stops: all.stops,
            moves: all.moves,
            why_not: self.why.clone().or_else(|| Some(OVER.into()).filter(|_| in_force.is_none() && self.loan.is_some())),
        }
    }
}

impl Loan {
    /// # Errors
    /// The kernel makes no thread. Everything is back then.
    fn start(lender: LocalLender, harvester: Harvester, cores: u32, now_ms: u64, drive: Drive) -> Result<Self, String> {
        let (stop, report) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Report::default())));
        let (stop_of_thread, report_of_thread) = (stop.clone(), report.clone());
        let work = move || lend(lender, harvester, &stop_of_thread, &report_of_thread, drive);
        let thread = std::thread::Builder::new().name("lend".into()).spawn(work).map_err(|e| format!("no thread for it: {e}"))?;
        Ok(Loan { thread, stop, report, cores, since_ms: now_ms, stops_said: 0, over: false })
    }

    /// A line for each time that the long-term safeguard stopped lending.
    fn say_stops(&mut self, wish: &Lend) -> Option<LendNews> {
        let Report { tally, stop, .. } = *held(&self.report);
        if tally.stops <= self.stops_said {
            return None;
        }
        self.stops_said = tally.stops;
        let Stop { waits, stop_s, .. } = stop.unwrap_or_default();
        let (dispatches, long, mean_wait_us) = (waits.dispatches, waits.long(), waits.total_us / waits.dispatches.max(1) as f64);
        tracing::warn!(
            "{} lends nothing for {stop_s} s: its threads waited too long for a CPU, {mean_wait_us:.0} us in the mean",
            wish.lender
        );
        Some(LendNews::Stopped { dispatches, long, mean_wait_us, stop_s })
    }
}

/// Settings for what can be seen, with the pause that is another one, ms: a look at files takes too long for less than a millisecond.
fn as_seen(settings: &Settings, files: Option<&str>) -> (Settings, Option<f64>) {
    let (mut settings, least_us) = (*settings, LEAST_BETWEEN_FILES.as_micros() as u64);
    let polls = [&mut settings.window.poll_us, &mut settings.caladan.poll_us];
    if files.is_none() || *polls[0] >= least_us {
        return (settings, None);
    }
    polls.into_iter().for_each(|us| *us = least_us);
    (settings, Some(least_us as f64 * 1e-3))
}

/// A lender's thread.
fn lend(
    mut lender: LocalLender,
    mut harvester: Harvester,
    stop: &AtomicBool,
    report: &Mutex<Report>,
    drive: Drive,
) -> Result<(), LendError> {
    if let (None, Err(e)) = (lender.reads_files(), lender.keep_off()) {
        let id = &lender.lease().lender;
        tracing::warn!(
            "what runs on CPUs of {id} is looked at from one of them, which seems idle then, so a core too many may be lent: {e}"
        );
    }
    while !stop.load(Ordering::Relaxed) {
        let until_us = lender.now_us() + REPORT_US;
        let driven = drive(&mut lender, &mut harvester, until_us);
        *held(report) = Report { lent: lender.lent().cores, tally: *harvester.tally(), stop: harvester.last_stop() };
        driven?;
        // A policy may pause for longer than a lender may be silent.
        lender.lend(harvester.cores() - harvester.kept())?;
    }
    Ok(())
}

fn ended(why: &str, lasted_ms: u64, tally: &Tally) -> LendNews {
    let Tally { predicted: windows, short, exhausted, stops, moves, .. } = *tally;
    LendNews::Ended { why: why.into(), lasted_ms, windows, short, exhausted, stops, moves }
}

fn add(to: &mut Tally, more: &Tally) {
    to.readings += more.readings;
    to.moves += more.moves;
    to.trained += more.trained;
    to.predicted += more.predicted;
    to.short += more.short;
    to.spare += more.spare;
    to.exhausted += more.exhausted;
    to.stops += more.stops;
}

#[cfg(test)]
#[path = "lending_tests.rs"]
mod tests;
