//! What a process says: results on standard output ([`print`], [`json`]), notes and the log on standard error ([`note`], [`Log`]).
//!
//! - Nothing here panics: not on a pipe whose reader has gone, not on a full disk.
//! - A note is never waited for. What a reader does not take is kept up to [`MOST_KEPT_BYTES`], beyond that it is counted and lost;
//!   the next line that gets through says how many were.
//! - A result is waited for, until somebody asks the process to end ([`impatient`]).
//! - There is no thread: one that was started early would keep the rights that `surefootd actuate` gives up.
//!
//! A pipe or a terminal is opened once more for that, without blocking: the mode belongs to the opened file, and the one that this
//! process was given is others' too. A socket is asked call by call. A plain file takes what it gets, or says that it is full.

#![allow(unsafe_code, reason = "standard output and standard error, which are open as long as the process is")]

use crate::shown;
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{send, MsgFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longest line of a log: what a pipe takes whole or not at all.
const MOST_LINE_BYTES: usize = 4096;
/// Notes that wait for their reader.
const MOST_KEPT_BYTES: usize = 64 << 10;
/// How long the end of a process waits for a reader, notes and results each.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the question is asked whether the process is to end.
const LOOK: Duration = Duration::from_millis(100);

/// How a descriptor is written to without being waited for.
#[derive(Debug)]
enum Way {
    /// Opened once more, without blocking.
    Own(File),
    Socket,
    /// Asked first.
    Shared,
}

/// A descriptor, which others may have, too.
#[derive(Debug)]
pub struct Sink<F> {
    fd: F,
    way: Way,
}

impl<F: AsFd> Sink<F> {
    pub fn new(fd: F) -> Self {
        let raw = fd.as_fd().as_raw_fd();
        // Kept from being closed: it is not ours.
        let kind = std::fs::metadata(format!("/proc/self/fd/{raw}")).map(|m| m.file_type());
        let again = || {
            let how = libc::O_NONBLOCK | libc::O_NOCTTY;
            OpenOptions::new().write(true).custom_flags(how).open(format!("/proc/self/fd/{raw}"))
        };
        let way = match kind {
            Ok(k) if k.is_socket() => Way::Socket,
            Ok(k) if k.is_fifo() || k.is_char_device() => again().map_or(Way::Shared, Way::Own),
            _ => Way::Shared,
        };
        Sink { fd, way }
    }

    /// Ready within `most`.
    fn wait(&self, most: Duration) -> io::Result<bool> {
        let most = PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, most) {
            Ok(n) => Ok(n > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// What is taken at once.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] where that is nothing; else the system's.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // What a pipe with room takes without waiting.
        let piece = &bytes[..bytes.len().min(MOST_LINE_BYTES)];
        loop {
            let done = match &self.way {
                Way::Own(file) => (&*file).write(piece),
                Way::Socket => {
                    let how = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                    send(self.fd.as_fd().as_raw_fd(), piece, how).map_err(io::Error::from)
                }
                Way::Shared if !self.wait(Duration::ZERO)? => Err(ErrorKind::WouldBlock.into()),
                Way::Shared => nix::unistd::write(&self.fd, piece).map_err(io::Error::from),
            };
            match done {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                other => return other,
            }
        }
    }

    /// All of it, however long its reader takes, or a while after `impatient` has become true.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] then; else the system's.
    pub fn write_all(&self, mut bytes: &[u8], impatient: impl Fn() -> bool) -> io::Result<()> {
        let mut until = None;
        while !bytes.is_empty() {
            match self.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if until.is_none() && impatient() {
                        until = Some(Instant::now() + PATIENCE);
                    }
                    if until.is_some_and(|u| Instant::now() >= u) {
                        return Err(io::Error::new(ErrorKind::TimedOut, "its reader takes nothing"));
                    }
                    self.wait(LOOK)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Lines that are not waited for.
#[derive(Debug)]
struct Notes<F> {
    to: Sink<F>,
    /// Of lines that were begun or wait behind them.
    kept: Vec<u8>,
    /// Lines that nobody will see, and those of them that were told of.
    lost: u64,
    told: u64,
}

impl<F: AsFd> Notes<F> {
    fn new(fd: F) -> Self {
        Notes { to: Sink::new(fd), kept: vec![], lost: 0, told: 0 }
    }

    /// Hand over what is kept; true where nothing is left.
    fn flush(&mut self) -> bool {
        while !self.kept.is_empty() {
            match self.to.write(&self.kept) {
                Ok(n) => drop(self.kept.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    self.lost += self.kept.iter().filter(|b| **b == b'\n').count() as u64;
                    self.kept.clear();
                }
            }
        }
        true
    }

    fn put(&mut self, line: &[u8]) {
        if self.flush() && self.lost > self.told {
            let gap = format!("... {} lines could not be written here\n", self.lost - self.told);
            // Until it gets through, each line is a try.
            if let Ok(n) = self.to.write(gap.as_bytes()) {
                self.told = self.lost;
                self.kept.extend_from_slice(&gap.as_bytes()[n..]);
            }
        }
        if self.kept.len() + line.len() > MOST_KEPT_BYTES {
            self.lost += 1;
            return;
        }
        self.kept.extend_from_slice(line);
        self.flush();
    }

    fn finish(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.flush() && Instant::now() < until {
            if self.to.wait(until.saturating_duration_since(Instant::now())).is_err() {
                break;
            }
        }
    }
}

/// One line as it goes out: nothing in it acts on a terminal, and it has a bounded length.
fn as_line(text: &str) -> String {
    let mut line = shown::line(text.trim_end_matches('\n')).into_owned();
    if line.len() >= MOST_LINE_BYTES {
        let mut end = MOST_LINE_BYTES - 8;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('…');
    }
    line.push('\n');
    line
}

type Standard = BorrowedFd<'static>;

fn notes() -> &'static Mutex<Notes<Standard>> {
    static NOTES: OnceLock<Mutex<Notes<Standard>>> = OnceLock::new();
    // SAFETY: the descriptor is open for as long as the process lives: Rust's runtime opens it where it was closed, and nobody here
    // closes it.
    NOTES.get_or_init(|| Mutex::new(Notes::new(unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) })))
}

fn results() -> &'static Sink<Standard> {
    static RESULTS: OnceLock<Sink<Standard>> = OnceLock::new();
    // SAFETY: as above.
    RESULTS.get_or_init(|| Sink::new(unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) }))
}

fn held() -> MutexGuard<'static, Notes<Standard>> {
    notes().lock().unwrap_or_else(PoisonError::into_inner)
}

static IMPATIENT: OnceLock<fn() -> bool> = OnceLock::new();

/// Open both ways out, before rights to do so are given up; and let a panic say its line without waiting for a reader.
pub fn begin() {
    let _ = (notes(), results());
    std::panic::set_hook(Box::new(|what| {
        let at = what.location().map_or_else(String::new, |l| format!(" at {}:{}", l.file(), l.line()));
        let why = what.payload().downcast_ref::<&str>().map(|s| (*s).to_string());
        let why = why.or_else(|| what.payload().downcast_ref::<String>().cloned()).unwrap_or_default();
        // Held by this thread itself where writing a note panics.
        if let Ok(mut n) = notes().try_lock() {
            n.put(as_line(&format!("fault{at}: {why}. Please report it")).as_bytes());
        }
    }));
}

/// From when on a result is waited for only a little longer: what says that the process is to end.
pub fn impatient(when: fn() -> bool) {
    let _ = IMPATIENT.set(when);
}

/// A result that may have several lines. Whoever reads it may go away at any time: that is no error.
///
/// # Errors
/// A disk that is full, and the like; [`ErrorKind::TimedOut`] where its reader takes nothing and the process is to end.
pub fn print(text: &str) -> io::Result<()> {
    hand_over(&shown::page(text))
}

/// A result as JSON, one line.
///
/// # Errors
/// As [`print`], and for what JSON has no form for.
pub fn json(value: &impl serde::Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    hand_over(&shown::json(&text))
}

/// JSON as it was written, with all its lines.
///
/// # Errors
/// As [`print`].
pub fn json_text(text: &str) -> io::Result<()> {
    hand_over(&shown::json(text))
}

fn hand_over(text: &str) -> io::Result<()> {
    let impatient = || IMPATIENT.get().is_some_and(|when| when());
    match results().write_all(text.as_bytes(), impatient) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A piece of a result that goes on while somebody reads it.
///
/// # Errors
/// As [`print`], and [`ErrorKind::BrokenPipe`] once its reader has gone.
pub fn stream(bytes: &[u8]) -> io::Result<()> {
    results().write_all(bytes, || IMPATIENT.get().is_some_and(|when| when()))
}

/// A line on standard error, never waited for.
pub fn note(text: &str) {
    held().put(as_line(text).as_bytes());
}

/// Whether people look at what goes to standard error.
#[allow(clippy::disallowed_methods, reason = "asked about, not written to")]
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether people look at what goes to standard output.
#[allow(clippy::disallowed_methods, reason = "asked about, not written to")]
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Lines that nobody saw so far.
pub fn lost() -> u64 {
    held().lost
}

/// Before the process ends: a last while for notes.
pub fn finish() {
    held().finish();
}

/// The log: every write is one line of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        note(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    fn pipe() -> (File, OwnedFd) {
        let (from, to) = nix::unistd::pipe().unwrap();
        (File::from(from), to)
    }

    /// A reader that reads nothing holds nobody up: notes are kept up to a bound, then counted; when it reads, it hears how many
    /// are missing.
    #[test]
    fn notes_wait_for_nobody() {
        let (mut from, to) = pipe();
        let mut notes = Notes::new(to);
        let line = as_line(&"x".repeat(1000));
        for _ in 0..1000 {
            notes.put(line.as_bytes());
        }
        // A pipe holds 64 KiB, as much is kept.
        assert!((850..=950).contains(&notes.lost), "{}", notes.lost);
        assert!(notes.kept.len() <= MOST_KEPT_BYTES);
        // It reads again: what was kept comes, then how many are missing, then what is new.
        let (mut text, mut got) = (String::new(), vec![0; 1 << 20]);
        let mut read = |notes: &mut Notes<OwnedFd>| {
            notes.flush();
            let n = from.read(&mut got).unwrap();
            text += std::str::from_utf8(&got[..n]).unwrap();
        };
        read(&mut notes);
        read(&mut notes);
        let lost = notes.lost;
        notes.put(b"after\n");
        read(&mut notes);
        let lines: Vec<&str> = text.lines().collect();
        let (old, new) = lines.split_at(lines.len() - 2);
        assert!(old.iter().all(|l| l.len() == 1000), "nothing is torn");
        assert_eq!(old.len() as u64 + lost, 1000);
        assert_eq!(new, [format!("... {lost} lines could not be written here").as_str(), "after"]);
    }

    /// A reader that has gone, and a disk that is full, are counted and nothing else.
    #[test]
    fn nobody_to_write_to_is_no_fault() {
        let (from, to) = pipe();
        drop(from);
        let full = OwnedFd::from(File::options().write(true).open("/dev/full").unwrap());
        for to in [to, full] {
            let mut notes = Notes::new(to);
            (0..3).for_each(|_| notes.put(b"x\n"));
            notes.finish();
            assert_eq!((notes.lost, notes.kept.len()), (3, 0));
        }
    }

    /// The first line that gets through says how many did not.
    #[test]
    fn what_was_lost_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("log")).unwrap();
        let mut notes = Notes { lost: 7, ..Notes::new(OwnedFd::from(file)) };
        notes.put(b"a\n");
        notes.put(b"b\n");
        let text = std::fs::read_to_string(dir.path().join("log")).unwrap();
        assert_eq!(text, "... 7 lines could not be written here\na\nb\n");
    }

    /// A result is whole whatever its length and however slow its reader, on a pipe and on a socket.
    #[test]
    fn results_are_waited_for() {
        let (from, to) = pipe();
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        for (mut from, to) in [(from, to), (File::from(OwnedFd::from(a)), OwnedFd::from(b))] {
            let text = "0123456789".repeat(100_000);
            let reader = std::thread::spawn(move || {
                let (mut all, mut some) = (vec![], [0; 777]);
                loop {
                    match from.read(&mut some).unwrap() {
                        0 => return all.len(),
                        n => all.extend_from_slice(&some[..n]),
                    }
                }
            });
            Sink::new(to).write_all(text.as_bytes(), || false).unwrap();
            assert_eq!(reader.join().unwrap(), text.len());
        }
    }

    /// Once the process is to end, a reader that takes nothing is given up; one that has gone is told at once.
    #[test]
    fn results_do_not_hold_up_the_end() {
        let (from, to) = pipe();
        let sink = Sink::new(to);
        let e = sink.write_all(&[b'x'; 1 << 20], || true).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::TimedOut);
        drop(from);
        assert_eq!(sink.write_all(b"x", || true).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    /// The mode of a descriptor that others share stays as it was.
    #[test]
    fn the_shared_description_still_blocks() {
        let (_from, to) = pipe();
        let sink = Sink::new(to);
        assert!(matches!(sink.way, Way::Own(_)));
        let flags = nix::fcntl::fcntl(&sink.fd, nix::fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK, 0);
    }

    /// A line of the log is one line without anything that acts on a terminal, and of a bounded length.
    #[test]
    fn lines_are_lines() {
        assert_eq!(as_line("a\nb\u{1b}[0m\n"), "a\\nb\\u{1b}[0m\n");
        let long = as_line(&"é".repeat(10_000));
        assert!(long.len() <= MOST_LINE_BYTES && long.ends_with("…\n"));
    }
}
