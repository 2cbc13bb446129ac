//! Files of JSON lines that are written beside the control loop: streams, events, recordings.
//!
//! - What the file holds stays until [`Recorder::begin`]; and it has one writer.
//! - A pipe's reader that is slow or away never holds control up: lines wait for it up to [`MOST_KEPT_BYTES`], then the recording
//!   fails, and control goes on. On a virtual server, where nothing is controlled, it is waited for instead.

use crate::error::{Error, Result};
use crate::files::{empty, open_anew};
use crate::holder::{self, Held};
use crate::stop;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use surefoot_io::input::{long_line, LINE_BYTES};
use surefoot_io::out::Sink;

/// Lines of a plain file are handed over in pieces of about this size.
const PIECE_BYTES: usize = 64 << 10;
/// Lines that wait for a pipe's reader: some hundred ticks.
const MOST_KEPT_BYTES: usize = 4 << 20;
/// How often a reader is looked for at the other end of a pipe.
const LOOK: Duration = Duration::from_millis(50);

enum To {
    File(Held),
    Pipe(Sink<File>),
    /// Not opened yet: its reader is waited for.
    Later,
}

/// Whether a reader may be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Something is under control, or looked at as time goes by.
    Control,
    /// Time is the recording's own.
    Free,
}

pub struct Recorder {
    path: PathBuf,
    to: To,
    pace: Pace,
    buffer: Vec<u8>,
}

impl Recorder {
    /// # Errors
    /// The file cannot be opened, or another process writes there.
    pub fn open(path: &Path, pace: Pace) -> Result<Self> {
        let is_pipe = is_pipe(path);
        let is_device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
        let to = match pace {
            Pace::Free if is_pipe => To::Later,
            // Opened for both, a pipe waits for nobody.
            Pace::Control if is_pipe => To::Pipe(Sink::new(own(path, true).map_err(|e| Error::io(path, "cannot be opened", &e))?)),
            _ if is_device => To::Pipe(Sink::new(own(path, false).map_err(|e| Error::io(path, "cannot be opened", &e))?)),
            _ => To::File(holder::alone(path, open_anew(path)?)?),
        };
        Ok(Recorder { path: path.into(), to, pace, buffer: vec![] })
    }

    /// From here on the file is this recording's.
    ///
    /// # Errors
    /// It cannot be emptied; a signal came before a pipe's reader did.
    pub fn begin(&mut self) -> Result<()> {
        match &self.to {
            To::File(f) => empty(&self.path, f),
            To::Pipe(_) => Ok(()),
            To::Later => {
                self.to = To::Pipe(Sink::new(self.reader()?));
                Ok(())
            }
        }
    }

    fn reader(&self) -> Result<File> {
        loop {
            match own(&self.path, false) {
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) && !stop::requested() => std::thread::sleep(LOOK),
                other => return other.map_err(|e| Error::io(&self.path, "cannot be opened", &e)),
            }
        }
    }

    /// One line more.
    ///
    /// # Errors
    /// A full disk and the like; a reader that has gone or takes nothing. The recording is then not whole.
    pub fn line(&mut self, v: &impl Serialize) -> Result<()> {
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, v).map_err(|e| Error::Failed(format!("{}: {e}", self.path.display())))?;
        self.buffer.push(b'\n');
        if self.buffer.len() - start > LINE_BYTES {
            let what = long_line(LINE_BYTES);
            return Err(Error::Failed(format!("{}: cannot be written: {what}. Record fewer services", self.path.display())));
        }
        if self.buffer.len() >= PIECE_BYTES || matches!(self.to, To::Pipe(_)) {
            self.flush()?;
        }
        Ok(())
    }

    /// Hand over what can be without waiting for a reader, where none may be waited for.
    ///
    /// # Errors
    /// As [`Recorder::line`].
    pub fn flush(&mut self) -> Result<()> {
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::BrokenPipe => Error::Failed(format!("{}: its reader has gone: the recording is not whole", self.path.display())),
            _ => Error::io(&self.path, "cannot be written", &e),
        };
        match (&self.to, self.pace) {
            (To::File(f), _) => {
                let mut file: &File = f;
                file.write_all(&self.buffer).map_err(failed)?;
                self.buffer.clear();
            }
            (To::Pipe(sink), Pace::Free) => {
                sink.write_all(&self.buffer, stop::requested).map_err(failed)?;
                self.buffer.clear();
            }
            (To::Pipe(sink), Pace::Control) => {
                while !self.buffer.is_empty() {
                    match sink.write(&self.buffer) {
                        Ok(n) => drop(self.buffer.drain(..n)),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                        Err(e) => return Err(failed(e)),
                    }
                }
                if self.buffer.len() > MOST_KEPT_BYTES {
                    let path = self.path.display();
                    return Err(Error::Failed(format!(
                        "{path}: its reader takes too little: the recording is not whole. Record to a file"
                    )));
                }
            }
            (To::Later, _) => {}
        }
        Ok(())
    }

    /// Everything, with a while for a reader.
    ///
    /// # Errors
    /// As [`Recorder::line`].
    pub fn finish(&mut self) -> Result<()> {
        self.flush()?;
        if let (To::Pipe(sink), false) = (&self.to, self.buffer.is_empty()) {
            sink.write_all(&self.buffer, || true).map_err(|e| Error::io(&self.path, "cannot be written", &e))?;
            self.buffer.clear();
        }
        // A pipe that was opened for both takes lines that nobody will read: with our end closed it is seen whether somebody is there.
        let waited = std::mem::replace(&mut self.to, To::Later);
        let both = matches!((&waited, self.pace), (To::Pipe(_), Pace::Control)) && is_pipe(&self.path);
        drop(waited);
        if both && own(&self.path, false).is_err_and(|e| e.raw_os_error() == Some(libc::ENXIO)) {
            return Err(Error::Failed(format!("{}: nobody reads it: the recording is lost. Record to a file", self.path.display())));
        }
        Ok(())
    }
}

fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo())
}

/// A pipe or a device, never waited for.
fn own(path: &Path, both: bool) -> std::io::Result<File> {
    OpenOptions::new().read(both).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn pipe(dir: &Path) -> PathBuf {
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        pipe
    }

    /// Under control a pipe without a reader is opened and written to without waiting, until as much waits as may.
    #[test]
    fn control_waits_for_no_reader() {
        let dir = tempfile::tempdir().unwrap();
        let mut r = Recorder::open(&pipe(dir.path()), Pace::Control).unwrap();
        r.begin().unwrap();
        let line = "x".repeat(10_000);
        let mut lines = 0;
        let e = loop {
            match r.line(&line) {
                Ok(()) => lines += 1,
                Err(e) => break e,
            }
        };
        // 64 KiB in the pipe, 4 MiB here.
        assert!((420..=427).contains(&lines), "{lines}");
        assert!(e.to_string().contains("its reader takes too little"), "{e}");
    }

    /// A recording that fits into a pipe and that nobody reads is no recording.
    #[test]
    fn what_nobody_reads_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = pipe(dir.path());
        let mut r = Recorder::open(&pipe, Pace::Control).unwrap();
        r.begin().unwrap();
        r.line(&1).unwrap();
        assert!(r.finish().unwrap_err().to_string().contains("nobody reads it"));
        let mut r = Recorder::open(&pipe, Pace::Control).unwrap();
        r.begin().unwrap();
        let mut reader = File::open(&pipe).unwrap();
        r.line(&1).unwrap();
        r.finish().unwrap();
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, "1\n");
    }

    /// Where time is the recording's own, a reader that is slow gets every line, and one that comes late too.
    #[test]
    fn a_slow_reader_gets_all_where_there_is_time() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = pipe(dir.path());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let (mut from, mut all) = (File::open(pipe).unwrap(), String::new());
                let mut some = [0; 1000];
                loop {
                    match from.read(&mut some).unwrap() {
                        0 => return all,
                        n => all += std::str::from_utf8(&some[..n]).unwrap(),
                    }
                }
            }
        });
        let mut r = Recorder::open(&pipe, Pace::Free).unwrap();
        r.begin().unwrap();
        (0..30_000).for_each(|i| r.line(&i).unwrap());
        r.finish().unwrap();
        drop(r);
        let all = reader.join().unwrap();
        assert_eq!(all, (0..30_000).map(|i| format!("{i}\n")).collect::<String>());
    }

    /// Its reader has gone: that is said once, as the recording's end.
    #[test]
    fn a_reader_that_has_gone_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = pipe(dir.path());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || drop(File::open(pipe).unwrap())
        });
        let mut r = Recorder::open(&pipe, Pace::Free).unwrap();
        r.begin().unwrap();
        reader.join().unwrap();
        assert!(r.line(&1).unwrap_err().to_string().contains("its reader has gone"));
    }

    /// What a file held stays until the recording begins, and it has one writer.
    #[test]
    fn a_file_is_as_it_was_until_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "old\n").unwrap();
        let mut r = Recorder::open(&path, Pace::Control).unwrap();
        assert!(Recorder::open(&path, Pace::Control).err().unwrap().to_string().contains("writes there"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old\n");
        r.begin().unwrap();
        r.line(&1).unwrap();
        r.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n");
        let mut full = Recorder::open(Path::new("/dev/full"), Pace::Control).unwrap();
        full.begin().unwrap();
        assert!(full.line(&1).unwrap_err().to_string().contains("the disk is full"));
    }
}
