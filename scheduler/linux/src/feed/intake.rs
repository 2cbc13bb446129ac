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
/// Datagrams that are taken from one socket before the next socket has its turn; a single one where the socket was quiet before, since most
/// often no other waits.
const TURN: usize = 256;
const QUIET_US: u64 = 2000;
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
}

impl Account {
    fn new(part: f64, now_us: u64) -> Self {
        Account { part, left_us: part * MOST_CPU_US, at_us: now_us, turn_us: 0 }
    }

    /// Microseconds until there is something left.
    fn wait_us(&mut self, now_us: u64) -> u64 {
        let passed_us = now_us.saturating_sub(self.at_us) as f64;
        self.at_us = self.at_us.max(now_us);
        self.left_us = (self.left_us + self.part * passed_us).min(self.part * MOST_CPU_US);
        if self.left_us > 0.0 {
            0
        } else {
            1 + (-self.left_us / self.part) as u64
        }
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
        let mut flood = false;
        for ((line, account), _) in lines.iter_mut().zip(&readable[1..]).filter(|(_, r)| **r) {
            let most = if account.turn_us + QUIET_US < now { 1 } else { TURN };
            let began_us = if most > 1 { cpu_us() } else { 0 };
            let (refused, broken) = turn(listener, &mut senders, line, &rules, &mut buf, &mut control, most);
            account.left_us -= match most {
                1 => CPU_OF_QUIET_TURN_US,
                _ => cpu_us().saturating_sub(began_us) as f64,
            };
            account.turn_us = now_us();
            if broken {
                account.left_us = -account.part * BROKEN_US;
            }
            flood |= refused >= FLOOD && line.socket.depth.is_some_and(|d| d >= LEAST_DEPTH);
        }
        if flood {
            std::thread::sleep(FLOOD_PAUSE);
        }
    }
}

/// Empty a socket, or take so many datagrams at most. Returns how many datagrams were not read, and whether the kernel would not give any.
fn turn(
    listener: &impl Listener,
    senders: &mut Senders,
    line: &Line,
    rules: &Rules,
    buf: &mut [u8],
    control: &mut [u8],
    most: usize,
) -> (usize, bool) {
    let mut unread = 0;
    for _ in 0..most {
        let seen = match line.socket.look(control) {
            Ok(seen) => seen,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return (unread, false),
            // A datagram that cannot be looked at must not stand in the way of those behind it.
            Err(_) => {
                let _ = line.socket.take(&mut []);
                return (unread, true);
            }
        };
        let admitted = match &seen {
            Some((bytes, from, at)) => {
                // Where the numbers of processes say nothing.
                let from = if senders.sees_processes() { *from } else { Credentials { pid: 0, ..*from } };
                match senders.admit(&line.via, &from, *bytes, *at, rules) {
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
        let done = match admitted {
            Ok((from, who)) => line.socket.take(buf).map(|n| listener.hear(&buf[..n], &line.via, &from, &who, rules)),
            Err((reason, from, why)) => {
                unread += 1;
                listener.refuse(reason, from.as_ref(), why);
                line.socket.take(&mut []).map(drop)
            }
        };
        if done.is_err() {
            return (unread, true);
        }
    }
    (unread, false)
}
