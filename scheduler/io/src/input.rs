//! Files of others, read up to a bound.
//!
//! A reader that takes what it is given takes all memory (`/dev/zero`, a line of gigabytes) or all time (a pipe that nobody writes
//! to). Here each kind of input has a size that no honest one comes near, and silence has a time. The bounds stand here alone.

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// What people write: campaign.toml, node.toml, workloads, profiles, catalogue entries, keys.
pub const WRITTEN_BYTES: u64 = 1 << 20;
/// What a program wrote as one value: manifests, the safe layout, results.
pub const SUMMARY_BYTES: u64 = 64 << 20;
/// One line of what a program writes line by line: journals, recorded streams.
pub const LINE_BYTES: usize = 4 << 20;
/// A finished case of an evaluation with its time line, one line.
pub const CASE_BYTES: usize = 256 << 20;
/// One shard of a data set.
pub const SHARD_BYTES: u64 = 256 << 20;
/// This program itself, whose digest tells builds apart.
pub const PROGRAM_BYTES: u64 = 1 << 30;
/// A file of the kernel's: the longest are lists of threads, mounts and CPUs.
pub const KERNEL_BYTES: u64 = 16 << 20;
/// Room that reading begins with.
const SMALL_BYTES: u64 = 1024;
/// How far the end of a line that is too long is looked for.
const SKIPPED_BYTES: u64 = 64 << 20;
/// Longest silence of a pipe.
pub const SILENCE: Duration = Duration::from_secs(10);

/// A file, or a pipe whose silence ends.
#[derive(Debug)]
pub struct Input {
    file: File,
    /// None: reading it never waits.
    silence: Option<Duration>,
    /// Its length when it was opened: 0 for what the kernel makes as it is read.
    len: u64,
}

impl Input {
    /// Open for reading, without waiting for whoever writes to a pipe.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::IsADirectory`], and [`ErrorKind::Unsupported`] for a socket.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_patient(path, SILENCE)
    }

    fn open_patient(path: &Path, silence: Duration) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path).map_err(|e| {
            // A socket cannot be opened.
            if e.raw_os_error() == Some(libc::ENXIO) {
                return io::Error::new(ErrorKind::Unsupported, "it is a socket");
            }
            e
        })?;
        let met = file.metadata()?;
        let kind = met.file_type();
        if kind.is_dir() {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        }
        let waits = kind.is_fifo() || kind.is_char_device() || kind.is_socket();
        Ok(Input { file, silence: waits.then_some(silence), len: if kind.is_file() { met.len() } else { 0 } })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    fn wait(&self, most: Duration) -> io::Result<()> {
        let until = Instant::now() + most;
        loop {
            let left = PollTimeout::try_from(until.saturating_duration_since(Instant::now())).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, left) {
                Ok(0) => return Err(io::Error::new(ErrorKind::TimedOut, format!("nothing came for {} s", most.as_secs_f64()))),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(silence) = self.silence else { return self.file.read(into) };
        loop {
            self.wait(silence)?;
            match self.file.read(into) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

fn too_long(most: u64) -> io::Error {
    let most = match most {
        m if m >= 1 << 20 => format!("{} MiB", m >> 20),
        m if m >= 1 << 10 => format!("{} KiB", m >> 10),
        m => format!("{m} bytes"),
    };
    io::Error::new(ErrorKind::FileTooLarge, format!("it is longer than {most}"))
}

/// All of `from`, of which there may be `most` bytes.
///
/// # Errors
/// The reader's; [`ErrorKind::FileTooLarge`] where there is more.
pub fn all(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    all_of(from, 0, most)
}

/// Of about `len` bytes. With room from the start a small file takes two calls of the kernel, and not one for every 32 bytes.
fn all_of(from: impl Read, len: u64, most: u64) -> io::Result<Vec<u8>> {
    let room = (len.min(most) + 1).max(SMALL_BYTES);
    let mut bytes = Vec::with_capacity(usize::try_from(room).unwrap_or(0));
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(too_long(most));
    }
    Ok(bytes)
}

/// A whole file of at most `most` bytes.
///
/// # Errors
/// As [`Input::open`] and [`all`]; [`ErrorKind::TimedOut`] for a pipe that says nothing.
pub fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let from = Input::open(path)?;
    // Said without reading it where the length is known.
    if from.len > most {
        return Err(too_long(most));
    }
    let len = from.len;
    all_of(from, len, most)
}

/// A whole file as text.
///
/// # Errors
/// As [`bytes`]; [`ErrorKind::InvalidData`] for what is no UTF-8.
pub fn text(path: &Path, most: u64) -> io::Result<String> {
    utf8(bytes(path, most)?)
}

/// Text, or where it is none.
///
/// # Errors
/// [`ErrorKind::InvalidData`].
pub fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = 1 + e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
        io::Error::new(ErrorKind::InvalidData, format!("line {line} is no UTF-8 (byte {at} of the file)"))
    })
}

/// What [`next_line`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// So many bytes with the end of the line, which the last line of a file may lack.
    Line(usize),
    /// More than it may have: its beginning is there, the rest was passed over. So many bytes in all.
    TooLong(u64),
    End,
}

/// Read the next line into `line`, which is emptied first: at most `most` bytes of it.
///
/// # Errors
/// The reader's; [`ErrorKind::FileTooLarge`] where a line does not come to its end.
pub fn next_line(from: &mut impl BufRead, line: &mut Vec<u8>, most: usize) -> io::Result<Found> {
    line.clear();
    let mut passed = 0u64;
    loop {
        let here = match from.fill_buf() {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        let end = here.iter().position(|b| *b == b'\n').map(|i| i + 1);
        let n = end.unwrap_or(here.len());
        let room = most - line.len().min(most);
        line.extend_from_slice(&here[..n.min(room)]);
        passed += n.saturating_sub(room) as u64;
        let last = end.is_some() || n == 0;
        from.consume(n);
        if passed > SKIPPED_BYTES {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("a line has no end within {} MiB", SKIPPED_BYTES >> 20)));
        }
        if last {
            return Ok(match (passed, line.len()) {
                (0, 0) => Found::End,
                (0, n) => Found::Line(n),
                (passed, n) => Found::TooLong(passed + n as u64),
            });
        }
    }
}

/// The words for a line that is too long.
pub fn long_line(most: usize) -> String {
    format!("{} in one line", too_long(most as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Write};

    fn kind(e: io::Result<impl std::fmt::Debug>) -> ErrorKind {
        e.unwrap_err().kind()
    }

    /// Devices without an end, folders, sockets and what is too long are refused, with a bounded part of it read.
    #[test]
    fn no_input_is_endless() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        assert_eq!(kind(bytes(Path::new("/dev/zero"), 1000)), ErrorKind::FileTooLarge);
        assert_eq!(kind(bytes(dir.path(), 1000)), ErrorKind::IsADirectory);
        let _socket = std::os::unix::net::UnixListener::bind(at("s")).unwrap();
        assert_eq!(kind(bytes(&at("s"), 1000)), ErrorKind::Unsupported);
        // A hole of a terabyte is refused by its length.
        File::create(at("hole")).unwrap().set_len(1 << 40).unwrap();
        let e = bytes(&at("hole"), WRITTEN_BYTES).unwrap_err();
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
        std::fs::write(at("f"), "abc").unwrap();
        assert_eq!((bytes(&at("f"), 3).unwrap(), kind(bytes(&at("f"), 2))), (b"abc".to_vec(), ErrorKind::FileTooLarge));
        assert_eq!(bytes(Path::new("/dev/null"), 1).unwrap(), b"");
        assert!(!bytes(Path::new("/proc/self/stat"), KERNEL_BYTES).unwrap().is_empty());
    }

    /// A pipe is read to its end, also where its writer comes late; one that nobody writes to is given up.
    #[test]
    fn a_pipe_is_waited_for_and_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        let e = all(Input::open_patient(&pipe, Duration::from_millis(20)).unwrap(), 10).unwrap_err();
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::TimedOut, "nothing came for 0.02 s"));
        let read = Input::open(&pipe).unwrap();
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut to = File::options().write(true).open(pipe).unwrap();
                to.write_all(b"ab").unwrap();
                to.write_all(b"cd").unwrap();
            }
        });
        assert_eq!(all(read, 10).unwrap(), b"abcd");
        writer.join().unwrap();
    }

    /// What is no text is named by its place.
    #[test]
    fn what_is_no_text_is_named() {
        let e = utf8(b"a\nb\xff".to_vec()).unwrap_err();
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::InvalidData, "line 2 is no UTF-8 (byte 3 of the file)"));
    }

    /// A line without an end is given up.
    #[test]
    fn a_line_has_an_end() {
        let mut from = BufReader::new(Input::open(Path::new("/dev/zero")).unwrap());
        let mut line = vec![];
        assert_eq!(kind(next_line(&mut from, &mut line, 1000)), ErrorKind::FileTooLarge);
        assert!(line.capacity() < 100_000);
    }

    /// Lines come one after another; one that is too long is passed over, wherever the reader's buffer ends.
    #[test]
    fn lines_have_a_bound() {
        let text = b"ab\n\n12345\n12\nlast";
        for buffer in 1..20 {
            let mut from = BufReader::with_capacity(buffer, &text[..]);
            let mut line = vec![];
            let mut all = vec![];
            loop {
                match next_line(&mut from, &mut line, 4).unwrap() {
                    Found::End => break,
                    found => all.push((found, String::from_utf8(line.clone()).unwrap())),
                }
            }
            let is = |n, text: &str| (Found::Line(n), text.to_string());
            let long = (Found::TooLong(6), "1234".to_string());
            assert_eq!(all, [is(3, "ab\n"), is(1, "\n"), long, is(3, "12\n"), is(4, "last")], "{buffer}");
        }
    }
}
