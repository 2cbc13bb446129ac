//! Commands while a run lasts: lines on a Unix socket that only its owner can open (mode 0600), or on stdin.
//!
//! | line | does | answer |
//! | --- | --- | --- |
//! | `rps 12000` | sets the load from the next arrivals on | `ok rps 12000 from 3.412 s on` |
//! | `status` | | `ok 3.392 s: 8000 rps` |
//! | `stop` | ends the run; the report says `interrupted` | `ok stopping` |
//!
//! Anything else is answered with one line `error: ...` and changes nothing.

#![allow(unsafe_code, reason = "poll and umask")]

use crate::error::{failed, LoadgenError};
use crate::load::check_rps;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest line.
const MAX_LINE_BYTES: usize = 200;
const MAX_CLIENTS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Command {
    Rps(f64),
    Status,
    Stop,
}

/// # Errors
/// What is wrong with the line and what to write instead.
pub fn parse(line: &str) -> Result<Command, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["rps", number] => {
            let rps: f64 = number.parse().map_err(|_| format!("`{}` is not a number: write rps 12000", number.escape_default()))?;
            check_rps(rps).map_err(|_| format!("rps {rps} is not a rate above 0 that one client can send: write rps 12000"))?;
            Ok(Command::Rps(rps))
        }
        ["status"] => Ok(Command::Status),
        ["stop"] => Ok(Command::Stop),
        _ => Err(format!("`{}` is no command: write rps 12000, status or stop", line.trim().escape_default())),
    }
}

/// Where commands come from.
#[derive(Debug)]
pub struct Control {
    listener: Option<UnixListener>,
    path: Option<PathBuf>,
}

impl Control {
    /// Open a socket at `path`, or stdin for `-`. A socket that nobody serves any more is replaced.
    ///
    /// # Errors
    /// `Failed` naming the path and the remedy.
    pub fn open(path: &Path) -> Result<Self, LoadgenError> {
        if path.as_os_str() == "-" {
            return Ok(Control { listener: None, path: None });
        }
        let wrong = |e: &dyn std::fmt::Display| failed(format!("--control {}: {e}; give a path that is free, or -", path.display()));
        let listener = match bind_private(path) {
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
                // A socket of another kind, of another user or with a long queue refuses otherwise, and lives.
                let dead = || UnixStream::connect(path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
                if !is_socket || !dead() {
                    return Err(wrong(&e));
                }
                std::fs::remove_file(path).map_err(|e| wrong(&e))?;
                bind_private(path)
            }
            other => other,
        }
        .map_err(|e| wrong(&e))?;
        // From here on a drop removes the file.
        let control = Control { listener: Some(listener), path: Some(path.into()) };
        if let Some(l) = &control.listener {
            l.set_nonblocking(true).map_err(|e| wrong(&e))?;
        }
        Ok(control)
    }

    /// Answer commands until `done`.
    pub fn serve(&self, done: &AtomicBool, mut act: impl FnMut(Command) -> Result<String, String>) {
        let mut clients: Vec<Client> = Vec::new();
        if self.listener.is_none() {
            clients.extend(Client::stdin());
        }
        while !done.load(Ordering::Relaxed) {
            let fds = clients.iter().map(|c| c.fd).chain(self.listener.as_ref().map(|l| l.as_raw_fd()));
            let mut fds: Vec<libc::pollfd> = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
            // SAFETY: the array is valid for its length.
            unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 50) };
            let mut i = 0;
            clients.retain_mut(|c| {
                let ready = fds[i].revents != 0;
                i += 1;
                !ready || c.read(&mut act)
            });
            while let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) {
                if clients.len() < MAX_CLIENTS {
                    clients.extend(Client::socket(stream));
                }
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Bind with mode 0600 from the first instant.
fn bind_private(path: &Path) -> std::io::Result<UnixListener> {
    // SAFETY: umask cannot fail and takes no pointers. It is the process's own; a file that another thread makes meanwhile is
    // at worst more private.
    let before = unsafe { libc::umask(0o177) };
    let listener = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    listener
}

struct Client {
    fd: i32,
    input: Box<dyn Read>,
    output: Box<dyn Write>,
    buffer: Vec<u8>,
}

impl Client {
    fn socket(stream: UnixStream) -> Option<Self> {
        // A reader that does not take its answer must not hold up the others.
        stream.set_nonblocking(true).ok()?;
        let output = Box::new(stream.try_clone().ok()?);
        Some(Client { fd: stream.as_raw_fd(), input: Box::new(stream), output, buffer: Vec::new() })
    }

    /// Answers go to stderr: stdout is the report's.
    fn stdin() -> Option<Self> {
        let file = std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
        Some(Client { fd: file.as_raw_fd(), input: Box::new(file), output: Box::new(surefoot_io::out::Log), buffer: Vec::new() })
    }

    /// Read what is there and answer whole lines; false once it is closed.
    fn read(&mut self, act: &mut impl FnMut(Command) -> Result<String, String>) -> bool {
        let mut chunk = [0u8; 512];
        let open = match self.input.read(&mut chunk) {
            Ok(0) => {
                // A last line without its end is a line.
                if !self.buffer.is_empty() {
                    self.buffer.push(b'\n');
                }
                false
            }
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        while let Some(end) = self.buffer.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if !line.trim().is_empty() && !self.answer(parse(&line).and_then(&mut *act)) {
                return false;
            }
        }
        if self.buffer.len() > MAX_LINE_BYTES {
            self.answer(Err(format!("a line of more than {MAX_LINE_BYTES} bytes: write rps 12000, status or stop")));
            return false;
        }
        open
    }

    fn answer(&mut self, result: Result<String, String>) -> bool {
        let text = match result {
            Ok(text) => format!("ok {text}\n"),
            Err(text) => format!("error: {text}\n"),
        };
        self.output.write_all(text.as_bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn commands_are_read_or_refused_with_the_remedy() {
        assert_eq!(parse(" rps 12000 \n"), Ok(Command::Rps(12000.0)));
        assert_eq!((parse("stop"), parse("status")), (Ok(Command::Stop), Ok(Command::Status)));
        for wrong in ["rps", "rps x", "rps 0", "rps -1", "rps nan", "rps 1e9", "rps 5 6", "go", "stop now", "\u{7}", ""] {
            let e = parse(wrong).unwrap_err();
            assert!(e.contains("write rps 12000") && !e.contains(char::is_control), "{wrong}: {e}");
        }
    }

    /// A socket of another kind lives, though a stream cannot be connected to it.
    #[test]
    fn somebody_elses_datagram_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("feed.sock");
        let feed = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert!(Control::open(&path).unwrap_err().to_string().contains("give a path that is free"));
        std::os::unix::net::UnixDatagram::unbound().unwrap().send_to(b"x", &path).unwrap();
        drop(feed);
    }

    /// The socket is its owner's alone, answers each line, survives a client that goes away, and is gone at the end.
    #[test]
    fn a_socket_answers_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.sock");
        let control = Control::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // In use by a living server: refused. The socket of a dead one, or another file: see below.
        assert!(Control::open(&path).unwrap_err().to_string().contains("--control"));
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| control.serve(&done, |c| if c == Command::Stop { Err("not now".into()) } else { Ok(format!("{c:?}")) }));
            let ask = |text: &str, lines: usize| -> Vec<String> {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(text.as_bytes()).unwrap();
                BufReader::new(stream).lines().take(lines).map(Result::unwrap).collect()
            };
            assert_eq!(
                ask("rps 5\nrps\n\nstop\n", 3),
                ["ok Rps(5.0)", "error: `rps` is no command: write rps 12000, status or stop", "error: not now"]
            );
            assert!(ask(&"x".repeat(300), 1)[0].contains("more than 200 bytes"));
            drop(UnixStream::connect(&path).unwrap());
            assert_eq!(ask("status\n", 1), ["ok Status"]);
            done.store(true, Ordering::Relaxed);
        });
        drop(control);
        assert!(!path.exists());

        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead server leaves its socket");
        drop(Control::open(&path).unwrap());
        std::fs::write(&path, "mine").unwrap();
        assert!(Control::open(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
