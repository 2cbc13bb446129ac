//! The kernel's documented protocol between users of resctrl: flock(2) on the mount point.
//!
//! Exclusive around a change that rests on what was read, shared around reads of several files that must fit together. Single
//! counters need none. It is advisory: others may not take it, so what was written is read back as well.

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use surefoot_server::ServerError;

/// Other tools hold it for single commands; a plan must not wait longer than some intervals.
pub const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Held while this lives.
#[derive(Debug)]
pub struct Lock {
    _file: Option<Flock<File>>,
}

/// # Errors
/// [`ServerError::Unavailable`] where another process holds it for longer than `patience`.
pub fn lock(dir: &Path, exclusive: bool, patience: Duration) -> Result<Lock, ServerError> {
    let end = Instant::now() + patience;
    let fail =
        |cause: String, remedy: &str| ServerError::Unavailable { what: format!("lock on {}", dir.display()), cause, remedy: remedy.into() };
    let mut file = match File::open(dir) {
        Ok(f) => f,
        // Unmounted: whatever comes next says so.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Lock { _file: None }),
        Err(e) => return Err(fail(e.to_string(), "Run as root")),
    };
    loop {
        match Flock::lock(file, if exclusive { FlockArg::LockExclusiveNonblock } else { FlockArg::LockSharedNonblock }) {
            Ok(held) => return Ok(Lock { _file: Some(held) }),
            Err((f, Errno::EWOULDBLOCK | Errno::EINTR)) => file = f,
            Err((_, e)) => return Err(fail(e.to_string(), "Check how resctrl is mounted")),
        }
        if Instant::now() >= end {
            let cause = format!("another process has held it for more than {} ms", patience.as_millis());
            return Err(fail(
                cause,
                &format!("Find it with: lslocks, or fuser -v {}. It keeps all tools from changing resctrl", dir.display()),
            ));
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers share, a writer waits for them and says who to look for; a lock that has been dropped is free.
    #[test]
    fn a_lock_held_too_long_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let readers = [lock(dir.path(), false, Duration::ZERO).unwrap(), lock(dir.path(), false, Duration::ZERO).unwrap()];
        let said = lock(dir.path(), true, Duration::from_millis(12)).unwrap_err().to_string();
        assert!(said.contains("more than 12 ms") && said.contains("lslocks"), "{said}");
        drop(readers);
        let writer = lock(dir.path(), true, Duration::ZERO).unwrap();
        assert!(lock(dir.path(), false, Duration::ZERO).is_err());
        // A writer that ends while another waits lets it in.
        std::thread::scope(|s| {
            let waiting = s.spawn(|| lock(dir.path(), true, Duration::from_secs(30)).is_ok());
            drop(writer);
            assert!(waiting.join().unwrap());
        });
        assert!(lock(&dir.path().join("none"), true, Duration::ZERO).is_ok());
    }
}
