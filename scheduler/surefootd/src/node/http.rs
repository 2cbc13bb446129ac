//! Pages over HTTP, for readers of whom some are slow, idle or hostile (docs/decisions/metrics-server.md).
//!
//! - A connection brings one request and has [`WHOLE`] for everything: to ask, to read the answer, to go away.
//! - There are at most [`MOST_CLIENTS`]; who comes then takes the place of the oldest. An honest reader is gone within a round.
//! - One thread, which waits for no connection and wakes at most every [`ROUND`]: what clients can make it cost has a bound.
//! - A page is made at most every [`FRESH`], however often it is asked for.

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{listen, Backlog};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest request line with its headers.
const MOST_REQUEST_BYTES: usize = 8192;
/// Header lines of a request.
const MOST_HEADERS: usize = 64;
/// Connections at a time.
const MOST_CLIENTS: usize = 64;
/// Connections that are taken in one round; more wait in the kernel.
const MOST_ACCEPTS: usize = 16;
/// Connections that wait in the kernel.
const MOST_WAITING: i32 = 1024;
/// What a client has for all of its request.
const WHOLE: Duration = Duration::from_secs(5);
/// Between two looks at the connections.
const ROUND: Duration = Duration::from_millis(2);
/// Longest age of a page.
const FRESH: Duration = Duration::from_millis(50);
/// After a failure of the system (no more descriptors): the same is not tried again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Why connections were cut off, as the metrics say it.
pub const DROPPED: [&str; 2] = ["slow", "too-many"];
const SLOW: usize = 0;
const TOO_MANY: usize = 1;

/// How many were cut off, by [`DROPPED`].
#[derive(Debug, Default)]
pub struct Dropped([AtomicU64; 2]);

impl Dropped {
    pub fn counts(&self) -> [u64; 2] {
        [SLOW, TOO_MANY].map(|i| self.0[i].load(Ordering::Relaxed))
    }

    fn one(&self, why: usize) {
        self.0[why].fetch_add(1, Ordering::Relaxed);
    }
}

/// A page that can be asked for.
pub struct Page {
    pub path: &'static str,
    pub kind: &'static str,
    /// The status ([`OK`], [`UNAVAILABLE`]) and the text.
    pub make: Box<dyn Fn() -> (&'static str, String) + Send>,
}

/// Answer until the process ends. Port 0 takes any that is free; the address taken is returned.
///
/// # Errors
/// The system's, for instance for a port in use.
pub fn serve(at: SocketAddr, pages: Vec<Page>, dropped: Arc<Dropped>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    listen(&listener, Backlog::new(MOST_WAITING)?)?;
    let taken = listener.local_addr()?;
    let mut server = Server { listener, made: Made::new(pages), clients: vec![], dropped, failing: false };
    std::thread::Builder::new().name("metrics".into()).spawn(move || loop {
        let begin = Instant::now();
        server.round(begin);
        std::thread::sleep(ROUND.saturating_sub(begin.elapsed()));
    })?;
    Ok(taken)
}

/// Pages with what was made of them last.
struct Made {
    pages: Vec<Page>,
    last: Vec<Option<(Instant, Arc<[u8]>)>>,
}

impl Made {
    fn new(pages: Vec<Page>) -> Self {
        let last = pages.iter().map(|_| None).collect();
        Made { pages, last }
    }

    /// The whole answer to a request for a path.
    fn answer(&mut self, path: &str, now: Instant) -> Arc<[u8]> {
        let path = path.split('?').next().unwrap_or_default();
        let Some(i) = self.pages.iter().position(|p| p.path == path) else {
            let all: Vec<&str> = self.pages.iter().map(|p| p.path).collect();
            return refusal("404 Not Found", &format!("see {}", all.join(" and ")));
        };
        if let Some((_, made)) = self.last[i].as_ref().filter(|(at, _)| now.saturating_duration_since(*at) < FRESH) {
            return made.clone();
        }
        let page = &self.pages[i];
        let (status, text) = (page.make)();
        let made = answer(status, page.kind, &text);
        self.last[i] = Some((now, made.clone()));
        made
    }
}

const TEXT: &str = "text/plain; version=0.0.4";
pub const OK: &str = "200 OK";
pub const UNAVAILABLE: &str = "503 Service Unavailable";

fn answer(status: &str, kind: &str, body: &str) -> Arc<[u8]> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    Arc::from(format!("{head}{body}").into_bytes())
}

fn refusal(status: &str, why: &str) -> Arc<[u8]> {
    answer(status, TEXT, &format!("{why}\n"))
}

enum State {
    /// What has come of a request.
    Asking(Vec<u8>),
    /// The answer, and how much of it is sent.
    Answering(Arc<[u8]>, usize),
    /// All is sent. What still comes is thrown away: closing on it would take the answer back.
    Leaving,
}

struct Client {
    stream: TcpStream,
    until: Instant,
    state: State,
}

impl Client {
    /// Do what can be done without waiting. False: it is done, or has gone.
    fn go_on(&mut self, made: &mut Made, now: Instant) -> bool {
        loop {
            let went = match &mut self.state {
                State::Asking(request) => match read(&mut self.stream, request) {
                    Ok(end) => match request_of(request, end) {
                        Request::Partial => return true,
                        Request::For(path) => {
                            self.state = State::Answering(made.answer(&path, now), 0);
                            continue;
                        }
                        Request::Wrong(status, why) => {
                            self.state = State::Answering(refusal(status, why), 0);
                            continue;
                        }
                    },
                    Err(e) => Err(e),
                },
                State::Answering(bytes, sent) => match self.stream.write(&bytes[*sent..]) {
                    Ok(0) => return false,
                    Ok(n) => {
                        *sent += n;
                        if *sent == bytes.len() {
                            if self.stream.shutdown(Shutdown::Write).is_err() {
                                return false;
                            }
                            self.state = State::Leaving;
                        }
                        Ok(())
                    }
                    Err(e) => Err(e),
                },
                // A piece a round, so that who sends without an end costs no more than others.
                State::Leaving => match self.stream.read(&mut [0; 4096]) {
                    Ok(0) => return false,
                    Ok(_) => return true,
                    Err(e) => Err(e),
                },
            };
            match went {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn waits_for(&self) -> PollFlags {
        match self.state {
            State::Asking(_) | State::Leaving => PollFlags::POLLIN,
            State::Answering(..) => PollFlags::POLLOUT,
        }
    }
}

/// What is there of a request; true where no more can come.
fn read(from: &mut TcpStream, request: &mut Vec<u8>) -> std::io::Result<bool> {
    let mut piece = [0; MOST_REQUEST_BYTES];
    let room = MOST_REQUEST_BYTES - request.len();
    let n = from.read(&mut piece[..room])?;
    request.extend_from_slice(&piece[..n]);
    Ok(n == 0)
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    Partial,
    For(String),
    Wrong(&'static str, &'static str),
}

/// What was asked for. Behind the first request nothing is looked at.
fn request_of(bytes: &[u8], end: bool) -> Request {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => match (request.method, request.path) {
            (Some("GET"), Some(path)) => Request::For(path.into()),
            _ => Request::Wrong("405 Method Not Allowed", "GET only"),
        },
        Ok(httparse::Status::Partial) if !end && bytes.len() < MOST_REQUEST_BYTES => Request::Partial,
        Ok(httparse::Status::Partial) if !end => Request::Wrong("431 Request Header Fields Too Large", "a request has at most 8 KiB"),
        Err(httparse::Error::TooManyHeaders) => Request::Wrong("431 Request Header Fields Too Large", "a request has at most 64 headers"),
        _ => Request::Wrong("400 Bad Request", "this is no HTTP request"),
    }
}

struct Server {
    listener: TcpListener,
    made: Made,
    clients: Vec<Client>,
    dropped: Arc<Dropped>,
    /// The last call failed: the same every round is said once.
    failing: bool,
}

impl Server {
    /// Wait until something can be done, and do it.
    fn round(&mut self, now: Instant) {
        let next = self.clients.iter().map(|c| c.until.saturating_duration_since(now)).min();
        // Rounded up: a round just before the time would find nothing to do.
        let wait = next.map_or(PollTimeout::NONE, |d| PollTimeout::try_from(d + ROUND).unwrap_or(PollTimeout::MAX));
        let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.clients.iter().map(|c| PollFd::new(c.stream.as_fd(), c.waits_for())));
        if let Err(e) = poll(&mut fds, wait) {
            if e != nix::errno::Errno::EINTR {
                self.failed("poll", &e.into());
            }
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|f| f.any().unwrap_or(true)).collect();
        let now = Instant::now();
        let (made, dropped, mut each) = (&mut self.made, &self.dropped, ready[1..].iter());
        self.clients.retain_mut(|c| {
            if each.next() == Some(&true) && !c.go_on(made, now) {
                return false;
            }
            let late = now >= c.until;
            if late {
                dropped.one(SLOW);
            }
            !late
        });
        if ready[0] {
            self.accept(now);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..MOST_ACCEPTS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.failing = false;
                    return;
                }
                // It has gone already.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(e) => {
                    // The oldest gives its descriptor back, if that is what is missing.
                    self.oldest_goes();
                    self.failed("accept", &e);
                    return;
                }
            };
            if self.clients.len() == MOST_CLIENTS {
                self.oldest_goes();
            }
            let mut client = Client { stream, until: now + WHOLE, state: State::Asking(vec![]) };
            // Most have asked already.
            if client.stream.set_nonblocking(true).is_ok() && client.go_on(&mut self.made, now) {
                self.clients.push(client);
            }
        }
    }

    fn oldest_goes(&mut self) {
        // They stand in the order in which they came. Who has all is not cut off.
        if !self.clients.is_empty() {
            let gone = self.clients.remove(0);
            if !matches!(gone.state, State::Leaving) {
                self.dropped.one(TOO_MANY);
            }
        }
    }

    fn failed(&mut self, doing: &str, e: &std::io::Error) {
        if !self.failing {
            self.failing = true;
            tracing::warn!("metrics: {doing}: {e}: nobody new is answered meanwhile. Decisions go on");
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
