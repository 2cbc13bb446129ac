//! What empties the feed's sockets: a thread, or in calm times each decision ([`super::calm`]).
//!
//! Every socket has a part of a CPU, kept as an account that fills up with time; a socket whose account is overdrawn waits. Within that
//! [`Senders`] decides which senders are heard, before anything of a datagram is read.

use super::calm::{Calm, Seen, LATE_US};
use super::sender::{Credentials, Rules};
use super::senders::{Senders, Times, Unread, Via, Who};
use super::socket::{control, cpu_us, now_us, Attached, Socket, LEAST_DEPTH};
use super::{locked, Reason, MAX_DATAGRAM};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Part of a CPU for the common socket, and for a service's own, whose senders take nothing from other services.
const CPU_OF_COMMON: f64 = 0.4;
const CPU_OF_OWN: f64 = 0.05;
/// What an account holds at most, microseconds.
const MOST_CPU_US: f64 = 50_000.0;
/// Datagrams that are taken from a busy socket before the next socket has its turn. Of a quiet one a single datagram is taken, since most often
/// no other waits.
const TURN: usize = 256;
/// A datagram so soon after the last makes a socket busy.
const BUSY_US: u64 = 200;
/// CPU time of a turn of a single datagram, which is too short to be measured, microseconds.
const CPU_OF_QUIET_TURN_US: f64 = 50.0;
/// So many refusals in a turn are a flood. Datagrams that are taken together cost less each, so the thread pauses and lets them come.
const FLOOD: usize = 32;
const FLOOD_PAUSE: Duration = Duration::from_millis(1);
/// Where a socket gets so many datagrams or bytes in the time of a late decision, a thread has to take them: a sender's own buffer holds
/// some 200 KB.
const FEW: usize = 64;
const FEW_BYTES: usize = 64 << 10;
/// Time that a decision has for them.
const DECISION_US: u64 = 1000;
/// After so many decisions in a row that had not time enough, a thread takes the datagrams. A host that takes a CPU away for
/// a moment, which a guest's clocks count as the thread's own time, makes one.
const SHORT_OF_TIME: u32 = 3;
/// Datagrams that the kernel holds for a socket, so that a flood does not fill it before a decision comes.
const CALM_DEPTH: u64 = 4096;
/// So often the thread looks whether decisions still come, while those take the datagrams.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// A socket that the kernel will not read is left alone for so long.
const BROKEN_US: f64 = 100_000.0;

/// CPU time that a socket has left.
#[derive(Debug)]
struct Account {
    part: f64,
    left_us: f64,
    at_us: u64,
    /// When the socket's last turn ended.
    turn_us: u64,
    /// More than one datagram waits, most likely.
    busy: bool,
    /// Taken in the time of a late decision: since when, how many datagrams and bytes.
    pace: (u64, usize, usize),
}

impl Account {
    fn new(part: f64, now_us: u64) -> Self {
        Account { part, left_us: part * MOST_CPU_US, at_us: now_us, turn_us: 0, busy: false, pace: (now_us, 0, 0) }
    }

    /// Microseconds until there is something left.
    fn wait_us(&mut self, now_us: u64) -> u64 {
        let passed_us = now_us.saturating_sub(self.at_us) as f64;
        self.at_us = self.at_us.max(now_us);
        self.left_us = (self.left_us + self.part * passed_us).min(self.part * MOST_CPU_US);
        if self.left_us > 0.0 {
            return 0;
        }
        // More comes meanwhile.
        self.busy = true;
        1 + (-self.left_us / self.part) as u64
    }

    /// Note what a turn came to: whether anything was heard, and whether so much comes that it cannot wait for decisions.
    fn pace(&mut self, took: &Took, now_us: u64, seen: &mut Seen) {
        if now_us > self.pace.0 + LATE_US {
            self.pace = (now_us, 0, 0);
        }
        self.pace.1 += took.datagrams;
        self.pace.2 += took.bytes;
        if took.datagrams > took.unread {
            seen.heard_us = now_us;
        }
        if took.unread > 0 || took.broken || self.pace.1 >= FEW || self.pace.2 > FEW_BYTES {
            seen.unsteady_us = now_us;
        }
    }
}

/// A socket and what is kept of it.
#[derive(Debug)]
pub(super) struct Line {
    pub socket: Socket,
    pub via: Via,
}

/// What taking datagrams asks of the feed.
pub(super) trait Listener {
    /// Sockets, where there are others than the last time.
    fn lines(&self) -> Option<Vec<Arc<Line>>>;
    fn rules(&self) -> Arc<Rules>;
    fn has_ended(&self) -> bool;
    fn calm(&self) -> &Calm;
    /// The feed's clock.
    fn now_ms(&self) -> u64;
    fn hear(&self, datagram: &[u8], arrived_ms: u64, via: &Via, from: &Credentials, who: &Who<'_>, rules: &Rules);
    /// Count a datagram that was not read, and say of its sender why, where that was not said before.
    fn refuse(&self, reason: Reason, from: Option<&Credentials>, why: &str);
}

/// Until the listener has ended; a byte on `woken` says that it has, that there is a new socket, or that calm is over.
pub(super) fn run(listener: &impl Listener, intake: &Mutex<Intake>, mut woken: UnixStream) {
    while !listener.has_ended() {
        let ends = {
            let mut intake = locked(intake);
            let was_woken = intake.round(listener, &mut woken);
            // A new socket may have been told of, which the next round asks for.
            if was_woken {
                None
            } else {
                intake.calm_begins(listener)
            }
        };
        if let Some(ends) = ends {
            nap(listener, &woken, &ends);
        }
    }
}

/// Leave datagrams to the decisions until those are late, a sender has ended, or the thread is woken.
pub(super) fn nap(listener: &impl Listener, woken: &UnixStream, ends: &[OwnedFd]) {
    let heartbeat = PollTimeout::try_from(HEARTBEAT).unwrap_or(PollTimeout::MAX);
    while listener.calm().lasts(now_us()) {
        let fds = std::iter::once(woken.as_fd()).chain(ends.iter().map(OwnedFd::as_fd));
        let mut asked: Vec<PollFd> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if poll(&mut asked, heartbeat).is_ok_and(|n| n > 0) {
            break;
        }
    }
    listener.calm().end();
}

/// Senders, sockets, and room for a datagram: of whoever takes datagrams at the time.
#[derive(Debug)]
pub(super) struct Intake {
    senders: Senders,
    lines: Vec<(Arc<Line>, Account)>,
    /// One byte more than is taken: a longer datagram is cut, and must not look whole.
    buf: Vec<u8>,
    control: Vec<u8>,
    seen: Seen,
    short_of_time: ShortOfTime,
}

/// Decisions in a row, up to the last one, that had not time enough.
#[derive(Debug, Default)]
struct ShortOfTime(u32);

impl ShortOfTime {
    /// Note whether a decision had time enough. True where too many in a row had not.
    fn too_often(&mut self, had_time: bool) -> bool {
        self.0 = if had_time { 0 } else { self.0 + 1 };
        self.0 >= SHORT_OF_TIME
    }
}

/// Sockets that can be read, in their order.
struct Asked {
    woken: bool,
    readable: Vec<bool>,
    /// Processes that are held were asked after the sockets were.
    polled: bool,
}

impl Intake {
    pub fn new(senders: Senders) -> Self {
        let seen = Seen { unsteady_us: now_us(), heard_us: 0 };
        Intake { senders, lines: vec![], buf: vec![0; MAX_DATAGRAM + 1], control: control(), seen, short_of_time: ShortOfTime::default() }
    }

    /// Whether anything waits on the sockets of which `wanted` says so, and whether senders have ended. None where the wait was cut short.
    fn ask(&mut self, woken: Option<&UnixStream>, wanted: &[bool], timeout: PollTimeout) -> Option<Asked> {
        let mut asked: Vec<PollFd> = woken.iter().map(|w| PollFd::new(w.as_fd(), PollFlags::POLLIN)).collect();
        asked.extend(
            self.lines
                .iter()
                .zip(wanted)
                .map(|((line, _), wanted)| PollFd::new(line.socket.as_fd(), if *wanted { PollFlags::POLLIN } else { PollFlags::empty() })),
        );
        // Behind the sockets, so that they are asked later: a process that is there then was there when its datagram came.
        let sockets = asked.len();
        let held = self.senders.held();
        let polled = held.is_some();
        let (keys, ends): (Vec<_>, Vec<_>) = held.into_iter().flatten().unzip();
        asked.extend(ends);
        poll(&mut asked, timeout).ok()?;
        let mut said: Vec<bool> = asked.iter().map(|p| p.any().unwrap_or(false)).collect();
        drop(asked);
        let ended: Vec<_> = keys.into_iter().zip(said.split_off(sockets)).filter_map(|(key, ended)| ended.then_some(key)).collect();
        self.senders.let_go(&ended, now_us());
        let readable = said.split_off(usize::from(woken.is_some()));
        Some(Asked { woken: said == [true], readable, polled })
    }

    /// Wait for datagrams and take them, each socket within its part of a CPU. Returns whether the thread was woken for something else.
    fn round(&mut self, listener: &impl Listener, woken: &mut UnixStream) -> bool {
        if let Some(new) = listener.lines() {
            let part = |l: &Line| if l.via.service.is_some() { CPU_OF_OWN } else { CPU_OF_COMMON };
            self.lines = new.into_iter().map(|l| (l.clone(), Account::new(part(&l), now_us()))).collect();
            self.seen.unsteady_us = now_us();
        }
        let now = now_us();
        let waits: Vec<u64> = self.lines.iter_mut().map(|(_, account)| account.wait_us(now)).collect();
        let wanted: Vec<bool> = waits.iter().map(|w| *w == 0).collect();
        let soonest = waits.iter().filter(|w| **w > 0).min();
        // Rounded up: an account that is not yet even would be asked about again at once.
        let timeout =
            soonest.map_or(PollTimeout::NONE, |us| PollTimeout::try_from(Duration::from_micros(us + 999)).unwrap_or(PollTimeout::MAX));
        let Some(asked) = self.ask(Some(woken), &wanted, timeout) else { return true };
        if asked.woken {
            let _ = woken.read(&mut [0; 64]);
        }
        let rules = listener.rules();
        // Taken anew: the wait may have been long.
        let now = now_us();
        let mut flood = false;
        let Intake { senders, lines, buf, control, seen, .. } = self;
        for ((line, account), _) in lines.iter_mut().zip(&asked.readable).filter(|(_, r)| **r) {
            let waited = Waited { polled: asked.polled, decision: None };
            let mut turn = Turn { listener, senders, line, rules: &rules, waited, buf, control };
            let took = if account.busy {
                let began_us = cpu_us();
                let took = turn.take(TURN, Turn::looked_at);
                account.left_us -= cpu_us().saturating_sub(began_us) as f64;
                account.busy = took.datagrams > 1;
                took
            } else {
                account.left_us -= CPU_OF_QUIET_TURN_US;
                account.busy = now < account.turn_us + BUSY_US;
                turn.take(1, Turn::at_once)
            };
            account.turn_us = now_us();
            if took.broken {
                account.left_us = -account.part * BROKEN_US;
            }
            account.pace(&took, now, seen);
            flood |= took.unread >= FLOOD && line.socket.depth.is_some_and(|d| d >= LEAST_DEPTH);
        }
        if flood {
            std::thread::sleep(FLOOD_PAUSE);
        }
        asked.woken
    }

    /// Leave datagrams to the decisions from now on, where that can be. Returns what to poll for the ends of senders.
    fn calm_begins(&self, listener: &impl Listener) -> Option<Vec<OwnedFd>> {
        let (seen, ends) = (self.in_order()?, self.senders.ends()?);
        listener.calm().may_begin(seen, now_us()).then_some(ends)
    }

    /// What was last seen of the senders, where every socket is deep enough to wait for a decision.
    fn in_order(&self) -> Option<Seen> {
        let deep = |(line, _): &(Arc<Line>, Account)| line.socket.depth.is_some_and(|d| d >= CALM_DEPTH);
        let unsteady_us = self.seen.unsteady_us.max(self.senders.unsteady_us());
        self.lines.iter().all(deep).then_some(Seen { unsteady_us, ..self.seen })
    }

    /// Something was out of the ordinary.
    pub fn is_unsteady(&mut self) {
        self.seen.unsteady_us = now_us();
    }

    /// Take what waits, for a decision; the last one heard everything up to `since_ms`. False where that is more than a decision has time for, or
    /// anything was out of the ordinary.
    pub fn take_waiting(&mut self, listener: &impl Listener, since_ms: u64) -> bool {
        let asked_us = now_us();
        let wanted: Vec<bool> = self.lines.iter_mut().map(|(_, account)| account.wait_us(asked_us) == 0).collect();
        let Some(asked) = self.ask(None, &wanted, PollTimeout::ZERO) else { return true };
        let rules = listener.rules();
        let mut began_us = cpu_us();
        let decision = Decision { asked_us, since_ms, until_us: asked_us + DECISION_US, until_cpu_us: began_us + DECISION_US };
        let Intake { senders, lines, buf, control, seen, .. } = self;
        for ((line, account), _) in lines.iter_mut().zip(&asked.readable).filter(|(_, r)| **r) {
            let waited = Waited { polled: asked.polled, decision: Some(decision) };
            let mut turn = Turn { listener, senders, line, rules: &rules, waited, buf, control };
            let took = turn.take(FEW, Turn::at_once);
            let ended_us = cpu_us();
            account.left_us -= ended_us.saturating_sub(began_us) as f64;
            began_us = ended_us;
            account.pace(&took, asked_us, seen);
        }
        let had_time = !wanted.contains(&false) && decision.has_time();
        if self.short_of_time.too_often(had_time) {
            self.seen.unsteady_us = asked_us;
        }
        self.in_order().is_some_and(|seen| seen.unsteady_us < asked_us && listener.calm().may_last(seen, now_us()))
    }
}

/// What a turn came to.
#[derive(Default)]
struct Took {
    datagrams: usize,
    /// Of these so many were not read.
    unread: usize,
    /// Of those that were, together.
    bytes: usize,
    /// The kernel would not give any more.
    broken: bool,
}

/// Of datagrams that waited.
struct Waited {
    /// Held processes were asked after the socket was.
    polled: bool,
    /// None: the thread takes them as they come.
    decision: Option<Decision>,
}

/// When a decision asked, up to which time of the feed's clock the last one has heard, and until when it takes datagrams.
#[derive(Clone, Copy)]
struct Decision {
    asked_us: u64,
    since_ms: u64,
    until_us: u64,
    /// Of the thread's CPU time: what the host takes away meanwhile is no sender's doing.
    until_cpu_us: u64,
}

impl Decision {
    fn has_time(&self) -> bool {
        now_us() < self.until_us || cpu_us() < self.until_cpu_us
    }
}

impl Waited {
    /// Whether held processes were asked after the next datagram had come: the first one is what made the socket readable.
    fn was_polled(&mut self, at: Times) -> bool {
        match self.decision {
            Some(d) => self.polled && at.sent_us < d.asked_us,
            None => std::mem::take(&mut self.polled),
        }
    }

    /// When a datagram came, for a decision; else when it is taken.
    fn arrived_ms(&self, at: Times, now_ms: u64) -> u64 {
        self.decision.map_or(now_ms, |d| now_ms.saturating_sub(at.now_us.saturating_sub(at.sent_us) / 1000).max(d.since_ms + 1))
    }

    fn goes_on(&self) -> bool {
        self.decision.is_none_or(|d| d.has_time())
    }
}

/// A socket's turn.
struct Turn<'a, L> {
    listener: &'a L,
    senders: &'a mut Senders,
    line: &'a Line,
    rules: &'a Rules,
    waited: Waited,
    buf: &'a mut [u8],
    control: &'a mut [u8],
}

impl<L: Listener> Turn<'_, L> {
    /// Empty the socket, or take so many datagrams at most, each by `one`: its bytes, None where it was not read.
    fn take(&mut self, most: usize, one: impl Fn(&mut Self) -> std::io::Result<Option<usize>>) -> Took {
        let mut took = Took::default();
        while took.datagrams < most && self.waited.goes_on() {
            match one(self) {
                Ok(read) => {
                    took.datagrams += 1;
                    took.unread += usize::from(read.is_none());
                    took.bytes += read.unwrap_or(0);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => break,
                Err(_) => {
                    took.broken = true;
                    break;
                }
            }
        }
        took
    }

    /// Look at the datagram that waits first, then take it or what is left of it: a refusal costs the same for every length.
    fn looked_at(&mut self) -> std::io::Result<Option<usize>> {
        let socket = &self.line.socket;
        let seen = match socket.look(self.control) {
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                // A datagram that cannot be looked at must not stand in the way of those behind it.
                let _ = socket.take(&mut []);
                return Err(e);
            }
            seen => seen?,
        };
        match admit(self.senders, self.line, self.rules, &mut self.waited, seen) {
            Ok((from, who, at)) => {
                let n = broken(socket.take(self.buf))?;
                let arrived_ms = self.waited.arrived_ms(at, self.listener.now_ms());
                self.listener.hear(&self.buf[..n], arrived_ms, &self.line.via, &from, &who, self.rules);
                Ok(Some(n))
            }
            Err((reason, from, why)) => {
                self.listener.refuse(reason, from.as_ref(), why);
                broken(socket.take(&mut []))?;
                Ok(None)
            }
        }
    }

    /// Take it as it is, in one call of the kernel: where few come, most are welcome.
    fn at_once(&mut self) -> std::io::Result<Option<usize>> {
        let seen = self.line.socket.take_with(self.buf, self.control)?;
        let bytes = seen.map_or(0, |(bytes, ..)| bytes);
        match admit(self.senders, self.line, self.rules, &mut self.waited, seen) {
            Ok((from, who, at)) => {
                let arrived_ms = self.waited.arrived_ms(at, self.listener.now_ms());
                self.listener.hear(&self.buf[..bytes], arrived_ms, &self.line.via, &from, &who, self.rules);
            }
            Err((reason, from, why)) => {
                self.listener.refuse(reason, from.as_ref(), why);
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }
}

/// Why a datagram is not read, its sender, and the words for it.
type Refusal = (Reason, Option<Credentials>, &'static str);

/// The sender of a datagram that may be read.
fn admit<'s>(
    senders: &'s mut Senders,
    line: &Line,
    rules: &Rules,
    waited: &mut Waited,
    seen: Option<Attached>,
) -> Result<(Credentials, Who<'s>, Times), Refusal> {
    let Some((bytes, from, at)) = seen else {
        return Err((Reason::Format, None, "sends open files along. Send the datagram alone"));
    };
    // Where the numbers of processes say nothing.
    let from = if senders.sees_processes() { from } else { Credentials { pid: 0, ..from } };
    let at = Times { polled: waited.was_polled(at), ..at };
    match senders.admit(&line.via, &from, bytes, at, rules) {
        Ok(who) if bytes <= MAX_DATAGRAM => Ok((from, who, at)),
        Ok(_) => Err((Reason::Format, Some(from), "sends more than 256 KiB at once. Send fewer digits, or shorter windows")),
        Err(Unread::Share) => {
            Err((Reason::Rate, Some(from), "sends more than its share. Send one datagram a window and service, e.g. every 100 ms"))
        }
        Err(Unread::Stranger) => Err((Reason::Sender, Some(from), "speaks for no service here, and goes on")),
    }
}

/// A datagram that was there must be had: also "nothing waits" is a fault.
fn broken<T>(taken: std::io::Result<T>) -> std::io::Result<T> {
    taken.map_err(|e| std::io::Error::other(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decision stops taking once it has used its time; what the host takes from it meanwhile is no sender's doing.
    #[test]
    fn time_that_the_host_takes_is_not_counted() {
        let (past, later) = (0, u64::MAX);
        let has_time = |until_us, until_cpu_us| Decision { asked_us: 0, since_ms: 0, until_us, until_cpu_us }.has_time();
        assert!(has_time(past, later) && has_time(later, past));
        assert!(!has_time(past, past));
    }

    /// One decision that a host has held up changes nothing; senders that leave no decision its time do.
    #[test]
    fn decisions_short_of_time_count_in_a_row() {
        let mut short = ShortOfTime::default();
        let seen = [false, false, true, false, false, false, false, true].map(|had_time| short.too_often(had_time));
        assert_eq!(seen, [false, false, false, false, false, true, true, false]);
    }
}
