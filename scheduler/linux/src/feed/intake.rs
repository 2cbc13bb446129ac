//! The thread that empties the feed's sockets.
//!
//! Every socket has a part of a CPU, kept as an account that fills up with time; a socket whose account is overdrawn waits. Within that
//! [`Senders`] decides which senders are heard, before anything of a datagram is read.

use super::sender::{Credentials, Rules};
use super::senders::{Senders, Unread, Via, Who};
use super::socket::{control, cpu_us, now_us, Socket, LEAST_DEPTH};
use super::{Reason, MAX_DATAGRAM};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
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
}

impl Account {
    fn new(part: f64, now_us: u64) -> Self {
        Account { part, left_us: part * MOST_CPU_US, at_us: now_us, turn_us: 0, busy: false }
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
}

/// A socket and what is kept of it.
#[derive(Debug)]
pub(super) struct Line {
    pub socket: Socket,
    pub via: Via,
}

/// What the thread asks of the feed.
pub(super) trait Listener {
    /// Sockets, where there are others than the last time.
    fn lines(&self) -> Option<Vec<Arc<Line>>>;
    fn rules(&self) -> Arc<Rules>;
    fn has_ended(&self) -> bool;
    fn hear(&self, datagram: &[u8], via: &Via, from: &Credentials, who: &Who<'_>, rules: &Rules);
    /// Count a datagram that was not read, and say of its sender why, where that was not said before.
    fn refuse(&self, reason: Reason, from: Option<&Credentials>, why: &str);
}

/// Until the listener has ended; a byte on `woken` says that it has, or that there is a new socket.
pub(super) fn run(listener: &impl Listener, mut senders: Senders, mut woken: UnixStream) {
    let mut lines: Vec<(Arc<Line>, Account)> = vec![];
    // One byte more than is taken: a longer datagram is cut, and must not look whole.
    let (mut buf, mut control) = (vec![0; MAX_DATAGRAM + 1], control());
    while !listener.has_ended() {
        if let Some(new) = listener.lines() {
            let part = |l: &Line| if l.via.service.is_some() { CPU_OF_OWN } else { CPU_OF_COMMON };
            lines = new.into_iter().map(|l| (l.clone(), Account::new(part(&l), now_us()))).collect();
        }
        let now = now_us();
        let waits: Vec<u64> = lines.iter_mut().map(|(_, account)| account.wait_us(now)).collect();
        let mut asked = vec![PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
        asked.extend(lines.iter().zip(&waits).map(|((line, _), wait)| {
            let flags = if *wait == 0 { PollFlags::POLLIN } else { PollFlags::empty() };
            PollFd::new(line.socket.as_fd(), flags)
        }));
        let soonest = waits.iter().filter(|w| **w > 0).min();
        // Rounded up: an account that is not yet even would be asked about again at once.
        let timeout =
            soonest.map_or(PollTimeout::NONE, |us| PollTimeout::try_from(Duration::from_micros(us + 999)).unwrap_or(PollTimeout::MAX));
        if poll(&mut asked, timeout).is_err() {
            continue;
        }
        let readable: Vec<bool> = asked.iter().map(|p| p.any().unwrap_or(false)).collect();
        drop(asked);
        if readable[0] {
            let _ = woken.read(&mut [0; 64]);
        }
        let rules = listener.rules();
        // Taken anew: the wait may have been long.
        let now = now_us();
        let mut flood = false;
        for ((line, account), _) in lines.iter_mut().zip(&readable[1..]).filter(|(_, r)| **r) {
            let mut turn = Turn { listener, senders: &mut senders, line, rules: &rules, buf: &mut buf, control: &mut control };
            let took = if account.busy {
                let began_us = cpu_us();
                let took = turn.take(TURN);
                account.left_us -= cpu_us().saturating_sub(began_us) as f64;
                account.busy = took.datagrams > 1;
                took
            } else {
                account.left_us -= CPU_OF_QUIET_TURN_US;
                account.busy = now < account.turn_us + BUSY_US;
                turn.take(1)
            };
            account.turn_us = now_us();
            if took.broken {
                account.left_us = -account.part * BROKEN_US;
            }
            flood |= took.unread >= FLOOD && line.socket.depth.is_some_and(|d| d >= LEAST_DEPTH);
        }
        if flood {
            std::thread::sleep(FLOOD_PAUSE);
        }
    }
}

/// What a turn came to.
#[derive(Default)]
struct Took {
    datagrams: usize,
    /// Of these so many were not read.
    unread: usize,
    /// The kernel would not give any more.
    broken: bool,
}

/// A socket's turn.
struct Turn<'a, L> {
    listener: &'a L,
    senders: &'a mut Senders,
    line: &'a Line,
    rules: &'a Rules,
    buf: &'a mut [u8],
    control: &'a mut [u8],
}

impl<L: Listener> Turn<'_, L> {
    /// Empty the socket, or take so many datagrams at most.
    fn take(&mut self, most: usize) -> Took {
        let mut took = Took::default();
        while took.datagrams < most {
            match self.one() {
                Ok(read) => {
                    took.datagrams += 1;
                    took.unread += usize::from(!read);
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

    /// The datagram that waits first; false where it was not read.
    fn one(&mut self) -> std::io::Result<bool> {
        let socket = &self.line.socket;
        let seen = match socket.look(self.control) {
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                // A datagram that cannot be looked at must not stand in the way of those behind it.
                let _ = socket.take(&mut []);
                return Err(e);
            }
            seen => seen?,
        };
        let admitted = match &seen {
            Some((bytes, from, at)) => {
                // Where the numbers of processes say nothing.
                let from = if self.senders.sees_processes() { *from } else { Credentials { pid: 0, ..*from } };
                match self.senders.admit(&self.line.via, &from, *bytes, *at, self.rules) {
                    Ok(who) if *bytes <= MAX_DATAGRAM => Ok((from, who)),
                    Ok(_) => Err((Reason::Format, Some(from), "sends more than 256 KiB at once. Send fewer digits, or shorter windows")),
                    Err(Unread::Share) => Err((
                        Reason::Rate,
                        Some(from),
                        "sends more than its share. Send one datagram a window and service, e.g. every 100 ms",
                    )),
                    Err(Unread::Stranger) => Err((Reason::Sender, Some(from), "speaks for no service here, and goes on")),
                }
            }
            None => Err((Reason::Format, None, "sends open files along. Send the datagram alone")),
        };
        match admitted {
            Ok((from, who)) => {
                let n = broken(socket.take(self.buf))?;
                self.listener.hear(&self.buf[..n], &self.line.via, &from, &who, self.rules);
                Ok(true)
            }
            Err((reason, from, why)) => {
                self.listener.refuse(reason, from.as_ref(), why);
                broken(socket.take(&mut []))?;
                Ok(false)
            }
        }
    }
}

/// A datagram that was there must be had: also "nothing waits" is a fault.
fn broken<T>(taken: std::io::Result<T>) -> std::io::Result<T> {
    taken.map_err(|e| std::io::Error::other(e.to_string()))
}
