//! A small server in this process, for `selftest` and for tests: memcached text, RESP and HTTP, one thread, no storage.

#![allow(unsafe_code, reason = "poll")]

use crate::protocol::ProtocolKind;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// What the server does besides answering.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// Bytes in each value or body.
    pub value_bytes: usize,
    /// Before answering request number `.0` (from 1), do nothing at all for `.1`.
    pub freeze: Option<(u64, Duration)>,
    /// HTTP: say `Connection: close` and close after this many requests on a connection.
    pub close_after: Option<u64>,
}

/// Serves until dropped.
#[derive(Debug)]
pub struct InProcessServer {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    served: u64,
    closing: bool,
}

impl InProcessServer {
    /// # Errors
    /// If no loopback port can be had.
    pub fn start(kind: ProtocolKind, behaviour: Behaviour) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread =
            std::thread::Builder::new().name("in-process-server".into()).spawn(move || serve(&listener, kind, &behaviour, &stopped))?;
        Ok(InProcessServer { address, stop, thread: Some(thread) })
    }
}

impl Drop for InProcessServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

fn serve(listener: &TcpListener, kind: ProtocolKind, behaviour: &Behaviour, stop: &AtomicBool) {
    let mut clients: Vec<Client> = Vec::new();
    let mut served = 0u64;
    let value = vec![b'v'; behaviour.value_bytes];
    let mut chunk = vec![0u8; 64 * 1024];
    while !stop.load(Ordering::Relaxed) {
        let mut fds = vec![libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        fds.extend(clients.iter().map(|c| libc::pollfd {
            fd: c.stream.as_raw_fd(),
            events: libc::POLLIN | if c.output.is_empty() { 0 } else { libc::POLLOUT },
            revents: 0,
        }));
        // SAFETY: the array is valid for its length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 20) };
        let mut alive = Vec::with_capacity(clients.len());
        for (mut c, fd) in clients.into_iter().zip(&fds[1..]) {
            let mut open = true;
            if fd.revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0 {
                match c.stream.read(&mut chunk) {
                    Ok(0) => open = false,
                    Ok(n) => c.input.extend_from_slice(&chunk[..n]),
                    Err(e) => open = e.kind() == ErrorKind::WouldBlock,
                }
                let mut used = 0;
                while let Some((n, is_set)) = request(kind, &c.input[used..]) {
                    used += n;
                    if c.closing {
                        continue;
                    }
                    served += 1;
                    c.served += 1;
                    if let Some((_, pause)) = behaviour.freeze.filter(|f| f.0 == served) {
                        std::thread::sleep(pause);
                    }
                    c.closing = behaviour.close_after.is_some_and(|n| c.served >= n);
                    answer(kind, is_set, &value, c.closing, &mut c.output);
                }
                c.input.drain(..used);
            }
            if open && !c.output.is_empty() {
                match c.stream.write(&c.output) {
                    Ok(n) => drop(c.output.drain(..n)),
                    Err(e) => open = e.kind() == ErrorKind::WouldBlock,
                }
                if c.closing && c.output.is_empty() {
                    open = false;
                }
            }
            if open {
                alive.push(c);
            }
        }
        clients = alive;
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
                let (input, output) = (Vec::new(), Vec::new());
                clients.push(Client { stream, input, output, served: 0, closing: false });
            }
        }
    }
}

/// Length of the request at the front, and whether it stores something.
fn request(kind: ProtocolKind, buf: &[u8]) -> Option<(usize, bool)> {
    let line_end = |from: usize| {
        let at = buf.get(from..)?.windows(2).position(|w| w == b"\r\n")?;
        Some(from + at + 2)
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.trim().parse::<usize>().ok();
    match kind {
        ProtocolKind::Memcached => {
            let end = line_end(0)?;
            if !buf.starts_with(b"set ") {
                return Some((end, false));
            }
            let size = buf[..end].split(|&b| b == b' ').nth(4).and_then(number)?;
            (buf.len() >= end + size + 2).then_some((end + size + 2, true))
        }
        ProtocolKind::Resp => {
            let mut at = line_end(0)?;
            let parts = number(&buf[1..at])?;
            for _ in 0..parts {
                let end = line_end(at)?;
                at = end + number(&buf[at + 1..end])? + 2;
            }
            (buf.len() >= at).then_some((at, parts > 2))
        }
        ProtocolKind::Http => {
            let at = buf.windows(4).position(|w| w == b"\r\n\r\n")?;
            Some((at + 4, false))
        }
    }
}

fn answer(kind: ProtocolKind, is_set: bool, value: &[u8], close: bool, out: &mut Vec<u8>) {
    match (kind, is_set) {
        (ProtocolKind::Memcached, true) => out.extend_from_slice(b"STORED\r\n"),
        (ProtocolKind::Memcached, false) => {
            out.extend_from_slice(format!("VALUE k 0 {}\r\n", value.len()).as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\nEND\r\n");
        }
        (ProtocolKind::Resp, true) => out.extend_from_slice(b"+OK\r\n"),
        (ProtocolKind::Resp, false) => {
            out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
        (ProtocolKind::Http, _) => {
            let close = if close { "Connection: close\r\n" } else { "" };
            let head = format!("HTTP/1.1 200 OK\r\n{close}Content-Length: {}\r\n\r\n", value.len());
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(value);
        }
    }
}
