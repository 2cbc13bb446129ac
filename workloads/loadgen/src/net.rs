//! The transport over real sockets: non-blocking, pipelined, one `epoll` per thread.
//!
//! A wake-up from sleep comes late by tens of microseconds, so the loop sleeps until shortly before the next request is due and
//! polls for the rest: the send lag falls, for CPU time. How much of that, and how often the loop looks, [`crate::pace`] decides.
//! Reply times are taken when `read` returns. How long a reply may have waited in the socket is known from the look before, and is
//! told with it; a wake-up's own latency is not, and counts as the server's. The send lag shows how much that can be: it is the same wait.

#![allow(unsafe_code, reason = "sockets, epoll and timers")]

use crate::driver::{Clock, Fate, Pending, Sample, Transport};
use crate::error::{failed, LoadgenError};
use crate::pace::{Next, Pacer};
use crate::protocol::{Parsed, Protocol, Reply};
use crate::realtime::{self, Stops};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// CLOCK_MONOTONIC, counted from a start that all threads share.
#[derive(Debug, Clone, Copy)]
pub struct MonotonicClock {
    pub start_ns: u64,
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec; a clock that is not there is an error code.
    let told = unsafe { libc::clock_gettime(clock, &mut t) } == 0;
    told.then_some(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// CLOCK_MONOTONIC in ns.
pub fn monotonic_ns() -> u64 {
    // Linux always has it.
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.start_ns)
    }
}

struct InFlight {
    request: Pending,
    /// 0 until its last byte was written.
    sent_ns: u64,
    /// Position of its last byte in the connection's output.
    end_offset: u64,
}

enum Link {
    Up(TcpStream),
    Connecting(TcpStream),
    Down { retry_ns: u64 },
}

struct Connection {
    link: Link,
    out: Vec<u8>,
    out_at: usize,
    /// Bytes written and bytes appended since the connection opened.
    written: u64,
    appended: u64,
    /// How many of `pending` are fully written.
    sent: usize,
    pending: VecDeque<InFlight>,
    /// The beginning of a reply whose end is still to come.
    input: Vec<u8>,
    /// Do not parse before this many bytes are there.
    need: usize,
    wants_write: bool,
}

const READ_BYTES: usize = 64 * 1024;
/// Connections that one look sees; the others are ready at the next.
const EVENTS: usize = 256;
const RETRY_NS: u64 = 50_000_000;
const TIMER_TOKEN: u64 = u64::MAX;

/// One thread's connections to one server.
pub struct SocketTransport {
    clock: MonotonicClock,
    target: SocketAddr,
    protocol: Arc<Protocol>,
    pipeline: usize,
    pub pacer: Pacer,
    pub stops: Stops,
    /// Until when this thread is known to have run.
    ran_ns: u64,
    epoll: OwnedFd,
    /// Wakes the thread where the kernel has no epoll_pwait2 (Linux 5.11).
    timer: Option<OwnedFd>,
    /// What `epoll` fills.
    events: Vec<libc::epoll_event>,
    /// What `read` fills, for all connections.
    chunk: Vec<u8>,
    connections: Vec<Connection>,
    next: usize,
    /// The connection that was picked last, and how many requests have come to it since the last flush.
    filling: Option<(usize, usize)>,
    dirty: Vec<usize>,
    /// Sent on a connection that the server then closed politely; to be sent again.
    resend: VecDeque<Pending>,
    down: usize,
    /// A connection came up or left requests to send again: the loop should look.
    changed: bool,
    /// Connections lost and opened again (polite closes included).
    pub reconnects: u64,
    /// The first error seen, in words.
    pub first_error: Option<String>,
}

fn os_error(what: &str) -> LoadgenError {
    failed(format!("{what}: {}", std::io::Error::last_os_error()))
}

/// Open one blocking connection; the error says what to check.
///
/// # Errors
/// `Failed` when nothing listens or the connection cannot be made within 3 s.
pub fn connect(target: SocketAddr) -> Result<TcpStream, LoadgenError> {
    let stream = TcpStream::connect_timeout(&target, Duration::from_secs(3)).map_err(|e| {
        if e.kind() == ErrorKind::ConnectionRefused {
            failed(format!("nothing listens on {target}: start the service or check --target"))
        } else {
            failed(format!("cannot connect to {target}: {e}; check --target"))
        }
    })?;
    stream.set_nodelay(true).map_err(|e| failed(format!("TCP_NODELAY on {target}: {e}")))?;
    Ok(stream)
}

/// Start a connection without waiting for it.
fn connect_start(target: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if target.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain socket(2); the descriptor is owned at once by the stream.
    let stream = unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        TcpStream::from_raw_fd(fd)
    };
    stream.set_nodelay(true)?;
    // SAFETY: the address structures are filled completely and outlive the call.
    let rc = unsafe {
        match target {
            SocketAddr::V4(a) => {
                let mut sa: libc::sockaddr_in = std::mem::zeroed();
                sa.sin_family = libc::AF_INET as libc::sa_family_t;
                sa.sin_port = a.port().to_be();
                sa.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                let len = std::mem::size_of_val(&sa) as libc::socklen_t;
                libc::connect(stream.as_raw_fd(), std::ptr::from_ref(&sa).cast(), len)
            }
            SocketAddr::V6(a) => {
                let mut sa: libc::sockaddr_in6 = std::mem::zeroed();
                sa.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sa.sin6_port = a.port().to_be();
                sa.sin6_addr.s6_addr = a.ip().octets();
                sa.sin6_scope_id = a.scope_id();
                let len = std::mem::size_of_val(&sa) as libc::socklen_t;
                libc::connect(stream.as_raw_fd(), std::ptr::from_ref(&sa).cast(), len)
            }
        }
    };
    if rc < 0 {
        let e = std::io::Error::last_os_error();
        if e.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(e);
        }
    }
    Ok(stream)
}

impl SocketTransport {
    /// # Errors
    /// `Failed` if `streams` cannot be watched.
    pub fn new(
        clock: MonotonicClock,
        target: SocketAddr,
        protocol: Arc<Protocol>,
        streams: Vec<TcpStream>,
        pipeline: usize,
        mut pacer: Pacer,
        stops: Stops,
    ) -> Result<Self, LoadgenError> {
        // SAFETY: the call returns a new descriptor or -1, checked at once.
        let epoll = unsafe {
            let e = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if e < 0 {
                return Err(os_error("epoll_create1"));
            }
            OwnedFd::from_raw_fd(e)
        };
        let ran_ns = clock.now_ns();
        pacer.start(ran_ns);
        let mut me = SocketTransport {
            clock,
            target,
            protocol,
            pipeline,
            pacer,
            stops,
            ran_ns,
            epoll,
            timer: None,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            chunk: vec![0; READ_BYTES],
            connections: Vec::new(),
            next: 0,
            filling: None,
            dirty: Vec::new(),
            resend: VecDeque::new(),
            down: 0,
            changed: false,
            reconnects: 0,
            first_error: None,
        };
        for (i, stream) in streams.into_iter().enumerate() {
            stream.set_nonblocking(true).map_err(|e| failed(format!("non-blocking socket: {e}")))?;
            me.watch(libc::EPOLL_CTL_ADD, stream.as_raw_fd(), libc::EPOLLIN, i as u64)?;
            me.connections.push(Connection {
                link: Link::Up(stream),
                out: Vec::new(),
                out_at: 0,
                written: 0,
                appended: 0,
                sent: 0,
                pending: VecDeque::new(),
                input: Vec::new(),
                need: 1,
                wants_write: false,
            });
        }
        Ok(me)
    }

    fn watch(&self, op: i32, fd: i32, events: i32, token: u64) -> Result<(), LoadgenError> {
        let mut ev = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `ev` is valid for the call.
        if unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, fd, &mut ev) } < 0 {
            return Err(os_error("epoll_ctl"));
        }
        Ok(())
    }

    /// The least loaded connection that is up and has room; ties go round. A connection of this flush is filled up first, as far as
    /// requests are to share one.
    fn pick(&mut self) -> Option<usize> {
        let has_room = |c: &Connection| matches!(c.link, Link::Up(_)) && c.pending.len() < self.pipeline;
        if let Some((i, filled)) = self.filling.filter(|&(i, filled)| filled < self.pacer.group() && has_room(&self.connections[i])) {
            self.filling = Some((i, filled + 1));
            return Some(i);
        }
        let n = self.connections.len();
        let mut best: Option<(usize, usize)> = None;
        for k in 0..n {
            let i = (self.next + k) % n;
            let c = &self.connections[i];
            let load = c.pending.len();
            if !has_room(c) {
                continue;
            }
            if best.is_none_or(|(_, b)| load < b) {
                best = Some((i, load));
                if load == 0 {
                    break;
                }
            }
        }
        let (i, _) = best?;
        self.next = (i + 1) % n;
        self.filling = Some((i, 1));
        Some(i)
    }

    fn append(&mut self, i: usize, request: Pending) {
        let c = &mut self.connections[i];
        if c.out_at == c.out.len() {
            c.out.clear();
            c.out_at = 0;
        }
        let before = c.out.len();
        self.protocol.encode(request.arrival.index, &mut c.out);
        c.appended += (c.out.len() - before) as u64;
        c.pending.push_back(InFlight { request, sent_ns: 0, end_offset: c.appended });
        if !c.wants_write {
            self.dirty.push(i);
        }
    }

    fn write(&mut self, i: usize, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        let c = &mut self.connections[i];
        let Link::Up(stream) = &mut c.link else { return Ok(()) };
        let mut lost = None;
        while c.out_at < c.out.len() {
            // The request leaves when write(2) takes its last byte; the clock is read before, so that the reply cannot precede it.
            let now = self.clock.now_ns();
            match stream.write(&c.out[c.out_at..]) {
                Ok(n) => {
                    c.out_at += n;
                    c.written += n as u64;
                    while let Some(f) = c.pending.get_mut(c.sent) {
                        if f.end_offset > c.written {
                            break;
                        }
                        f.sent_ns = now;
                        c.sent += 1;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    lost = Some(format!("write to {}: {e}", self.target));
                    break;
                }
            }
        }
        if let Some(why) = lost {
            return self.lose(i, why, false, done);
        }
        let c = &mut self.connections[i];
        let wants = c.out_at < c.out.len();
        if wants != c.wants_write {
            c.wants_write = wants;
            let fd = match &c.link {
                Link::Up(s) => s.as_raw_fd(),
                _ => return Ok(()),
            };
            let events = if wants { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
            self.watch(libc::EPOLL_CTL_MOD, fd, events, i as u64)?;
        }
        Ok(())
    }

    /// Take a connection down and open it again. Polite: requests behind the last reply are sent again; otherwise they are errors.
    fn lose(&mut self, i: usize, why: String, polite: bool, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        let now = self.clock.now_ns();
        self.reconnects += 1;
        let c = &mut self.connections[i];
        // Dropping the stream closes it, which also takes it out of epoll.
        c.link = Link::Down { retry_ns: now };
        self.down += 1;
        let pending = std::mem::take(&mut c.pending);
        c.out.clear();
        c.out_at = 0;
        c.written = 0;
        c.appended = 0;
        c.sent = 0;
        c.input.clear();
        c.need = 1;
        c.wants_write = false;
        if polite {
            self.changed |= !pending.is_empty();
            self.resend.extend(pending.into_iter().map(|f| f.request));
        } else {
            if !pending.is_empty() && self.first_error.is_none() {
                self.first_error = Some(why);
            }
            for f in pending {
                done.push(Sample::ended(&f.request, f.sent_ns, now, Fate::Error));
            }
        }
        self.revive()
    }

    /// Start connections that are down and due for another try.
    fn revive(&mut self) -> Result<(), LoadgenError> {
        if self.down == 0 {
            return Ok(());
        }
        let now = self.clock.now_ns();
        for i in 0..self.connections.len() {
            let Link::Down { retry_ns } = self.connections[i].link else { continue };
            if now < retry_ns {
                continue;
            }
            match connect_start(self.target) {
                Ok(stream) => {
                    let fd = stream.as_raw_fd();
                    self.connections[i].link = Link::Connecting(stream);
                    self.down -= 1;
                    self.watch(libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT, i as u64)?;
                }
                Err(e) => {
                    self.first_error.get_or_insert(format!("connect to {}: {e}", self.target));
                    self.connections[i].link = Link::Down { retry_ns: now + RETRY_NS };
                }
            }
        }
        Ok(())
    }

    fn connected(&mut self, i: usize) -> Result<(), LoadgenError> {
        let retry = Link::Down { retry_ns: self.clock.now_ns() + RETRY_NS };
        let Link::Connecting(stream) = std::mem::replace(&mut self.connections[i].link, retry) else {
            return Ok(());
        };
        match stream.take_error() {
            Ok(None) => {
                self.watch(libc::EPOLL_CTL_MOD, stream.as_raw_fd(), libc::EPOLLIN, i as u64)?;
                self.connections[i].link = Link::Up(stream);
                self.changed = true;
            }
            Ok(Some(e)) | Err(e) => {
                self.first_error.get_or_insert(format!("connect to {}: {e}", self.target));
                self.down += 1;
            }
        }
        Ok(())
    }

    /// Read what is there. It may have been there since `since_ns`.
    fn read(&mut self, i: usize, since_ns: u64, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        loop {
            let c = &mut self.connections[i];
            let Link::Up(stream) = &mut c.link else { return Ok(()) };
            let got = stream.read(&mut self.chunk);
            let now = self.clock.now_ns();
            let n = match got {
                Ok(0) => return self.lose(i, format!("{} closed the connection with requests open", self.target), false, done),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return self.lose(i, format!("read from {}: {e}", self.target), false, done),
            };
            // A reply that is whole is taken where it was read to.
            let mut joined = std::mem::take(&mut c.input);
            let apart = joined.is_empty();
            if !apart {
                joined.extend_from_slice(&self.chunk[..n]);
            }
            let bytes = if apart { &self.chunk[..n] } else { joined.as_slice() };
            let (mut at, mut broken, mut polite) = (0, None, false);
            while !c.pending.is_empty() && bytes.len() - at >= c.need {
                match self.protocol.parse(&bytes[at..]) {
                    Parsed::Need(need) => c.need = need,
                    Parsed::Done { bytes, reply, close } => {
                        at += bytes;
                        c.need = 1;
                        let Some(f) = c.pending.pop_front() else { break };
                        c.sent = c.sent.saturating_sub(1);
                        let fate = match reply {
                            Reply::Ok => Fate::Ok,
                            Reply::Miss => Fate::Miss,
                            Reply::Error(why) => {
                                self.first_error.get_or_insert(why);
                                Fate::Error
                            }
                        };
                        let unseen_ns = now.saturating_sub(since_ns.max(f.sent_ns));
                        done.push(Sample { unseen_ns, ..Sample::ended(&f.request, f.sent_ns, now, fate) });
                        if close {
                            polite = true;
                            break;
                        }
                    }
                    Parsed::Broken(why) => {
                        broken = Some(why);
                        break;
                    }
                }
            }
            if polite {
                return self.lose(i, String::new(), true, done);
            }
            if c.pending.is_empty() && at < bytes.len() {
                broken = Some("a reply that nobody asked for".into());
            }
            if let Some(why) = broken {
                return self.lose(i, format!("{}: {why}", self.target), false, done);
            }
            if apart {
                joined.extend_from_slice(&self.chunk[at..n]);
            } else {
                joined.drain(..at);
            }
            c.input = joined;
            if n < READ_BYTES {
                return Ok(());
            }
        }
    }

    /// Make the timer that stands in for epoll_pwait2.
    fn make_timer(&mut self) -> Result<(), LoadgenError> {
        // SAFETY: the call returns a new descriptor or -1, checked at once.
        let timer = unsafe {
            let t = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            if t < 0 {
                return Err(os_error("timerfd_create"));
            }
            OwnedFd::from_raw_fd(t)
        };
        self.watch(libc::EPOLL_CTL_ADD, timer.as_raw_fd(), libc::EPOLLIN, TIMER_TOKEN)?;
        self.timer = Some(timer);
        Ok(())
    }

    fn arm(&self, timer: &OwnedFd, at_ns: u64) -> Result<(), LoadgenError> {
        let spec = libc::itimerspec { it_interval: timespec(0), it_value: timespec((self.clock.start_ns + at_ns).max(1)) };
        // SAFETY: `spec` is valid; no old value is asked for.
        let rc = unsafe { libc::timerfd_settime(timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &spec, std::ptr::null_mut()) };
        if rc < 0 {
            return Err(os_error("timerfd_settime"));
        }
        Ok(())
    }

    /// How many of `events` were filled; with a time: by then at the latest.
    fn ready(&mut self, events: &mut [libc::epoll_event], until_ns: Option<u64>) -> Result<usize, LoadgenError> {
        let (epoll, most) = (self.epoll.as_raw_fd(), events.len() as i32);
        let n = match (until_ns, &self.timer) {
            // SAFETY: the array is valid for its length.
            (None, _) => unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, 0) },
            (Some(until_ns), None) => {
                let left = timespec(until_ns.saturating_sub(self.clock.now_ns()));
                let no_signals = std::ptr::null::<libc::sigset_t>();
                // SAFETY: the array is valid for its length, `left` outlives the call, and no set of signals is given.
                unsafe { libc::syscall(libc::SYS_epoll_pwait2, epoll, events.as_mut_ptr(), most, &left, no_signals, 0usize) as i32 }
            }
            (Some(until_ns), Some(timer)) => {
                self.arm(timer, until_ns)?;
                // SAFETY: the array is valid for its length.
                unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), most, -1) }
            }
        };
        if n >= 0 {
            return Ok(n as usize);
        }
        let e = std::io::Error::last_os_error();
        match e.raw_os_error() {
            Some(libc::EINTR) => Ok(0),
            // Not there, or kept from us by a filter that does not know it.
            Some(libc::ENOSYS | libc::EPERM) if until_ns.is_some() && self.timer.is_none() => self.make_timer().map(|()| 0),
            _ => Err(failed(format!("epoll_wait: {e}"))),
        }
    }

    /// Handle what is ready; with a time, wait for it until then.
    fn poll(&mut self, until_ns: Option<u64>, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        let mut events = std::mem::take(&mut self.events);
        let result = self.look(&mut events, until_ns, done);
        self.events = events;
        result
    }

    fn look(&mut self, events: &mut [libc::epoll_event], until_ns: Option<u64>, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        let began_ns = self.clock.now_ns();
        let n = self.ready(events, until_ns)?;
        let since_ns = match until_ns {
            None => self.pacer.look(began_ns),
            Some(until_ns) => {
                let woke_ns = self.clock.now_ns();
                let since_ns = self.pacer.woke(began_ns, woke_ns);
                self.came(until_ns.max(began_ns), woke_ns);
                since_ns
            }
        };
        for ev in &events[..n] {
            let (token, flags) = (ev.u64, ev.events as i32);
            if token == TIMER_TOKEN {
                let mut ticks = [0u8; 8];
                if let Some(timer) = &self.timer {
                    // SAFETY: a timerfd read takes 8 bytes; its result does not matter.
                    unsafe { libc::read(timer.as_raw_fd(), ticks.as_mut_ptr().cast(), 8) };
                }
                continue;
            }
            let i = token as usize;
            if matches!(self.connections[i].link, Link::Connecting(_)) {
                self.connected(i)?;
                continue;
            }
            if flags & libc::EPOLLOUT != 0 {
                self.write(i, done)?;
            }
            if flags & (libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR) != 0 {
                self.read(i, since_ns, done)?;
            }
        }
        Ok(())
    }

    /// The thread runs, and should have done so at `at_ns`. A thread that the kernel stopped asks for less real time.
    fn came(&mut self, at_ns: u64, now_ns: u64) {
        self.ran_ns = now_ns;
        let waited = || realtime::schedstat().map(|s| s.1);
        if self.pacer.realtime() && self.stops.gap(now_ns, now_ns.saturating_sub(at_ns), waited) && !self.pacer.stopped() {
            realtime::give_back();
        }
    }
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ }
}

impl Transport for SocketTransport {
    fn submit(&mut self, request: Pending) -> bool {
        if !self.resend.is_empty() {
            return false;
        }
        match self.pick() {
            Some(i) => {
                self.append(i, request);
                true
            }
            None => false,
        }
    }

    fn flush(&mut self, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        while !self.resend.is_empty() {
            let Some(i) = self.pick() else { break };
            let mut request = self.resend.pop_front().expect("checked");
            request.held = true;
            self.append(i, request);
        }
        self.filling = None;
        while let Some(i) = self.dirty.pop() {
            self.write(i, done)?;
        }
        Ok(())
    }

    fn wait(&mut self, until_ns: u64, done: &mut Vec<Sample>) -> Result<(), LoadgenError> {
        self.revive()?;
        // A connection that is down is tried again soon, whatever else is due.
        let due_ns = if self.down > 0 { until_ns.min(self.clock.now_ns() + RETRY_NS) } else { until_ns };
        loop {
            let now = self.clock.now_ns();
            // Since then it had work in hand.
            self.came(self.ran_ns, now);
            let early = now < due_ns;
            if self.pacer.slice_is_over() {
                self.pacer.used(clock_ns(libc::CLOCK_THREAD_CPUTIME_ID));
            }
            match self.pacer.next(now, due_ns) {
                Next::Look => {
                    self.poll(None, done)?;
                    if done.is_empty() && early {
                        let over = self.clock.now_ns();
                        self.pacer.polled(now, over);
                    }
                }
                Next::Sleep { until_ns } => {
                    self.poll(Some(until_ns), done)?;
                    if self.ran_ns >= due_ns {
                        return Ok(());
                    }
                }
                Next::Rest { until_ns } => {
                    std::thread::sleep(Duration::from_nanos(until_ns.saturating_sub(now)));
                    let woke = self.clock.now_ns();
                    self.pacer.rested(now, woke);
                    self.came(until_ns, woke);
                    self.poll(None, done)?;
                    if woke >= due_ns {
                        return Ok(());
                    }
                }
            }
            if !done.is_empty() || !early || std::mem::take(&mut self.changed) {
                return Ok(());
            }
        }
    }

    fn abandon(&mut self, out: &mut Vec<Sample>) {
        let now = self.clock.now_ns();
        for c in &mut self.connections {
            let left = c.pending.drain(..);
            out.extend(left.map(|f| Sample::ended(&f.request, f.sent_ns, now, Fate::Unfinished)));
        }
        let left = self.resend.drain(..);
        out.extend(left.map(|p| Sample::ended(&p, 0, now, Fate::Unfinished)));
    }
}

/// Store every key of the key space once, pipelined over one connection.
///
/// # Errors
/// `Failed` if the server refuses a SET or the connection breaks.
pub fn preload(target: SocketAddr, protocol: &Protocol) -> Result<(), LoadgenError> {
    let mut stream = connect(target)?;
    let oops = |e: std::io::Error| failed(format!("preload of {target}: {e}"));
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(oops)?;
    let mut input: Vec<u8> = Vec::new();
    let mut chunk = vec![0u8; READ_BYTES];
    let mut key = 0;
    while key < protocol.key_space {
        let batch = (protocol.key_space - key).min(128);
        let mut out = Vec::new();
        for k in key..key + batch {
            protocol.encode_set(k, &mut out);
        }
        stream.write_all(&out).map_err(oops)?;
        let mut replies = 0;
        while replies < batch {
            match protocol.parse(&input) {
                Parsed::Done { bytes, reply, .. } => {
                    input.drain(..bytes);
                    if let Reply::Error(why) = reply {
                        return Err(failed(format!(
                            "preload of {target}: the server refused a SET of {} bytes: {why}",
                            protocol.value.len()
                        )));
                    }
                    replies += 1;
                }
                Parsed::Need(_) => {
                    let n = stream.read(&mut chunk).map_err(oops)?;
                    if n == 0 {
                        return Err(failed(format!("preload: {target} closed the connection; does it speak {:?}?", protocol.kind)));
                    }
                    input.extend_from_slice(&chunk[..n]);
                }
                Parsed::Broken(why) => {
                    return Err(failed(format!("preload: {target} does not speak {:?} ({why}); check --protocol", protocol.kind)))
                }
            }
        }
        key += batch;
    }
    Ok(())
}
