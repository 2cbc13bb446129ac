//! The kernel's documented protocol between users of resctrl: flock(2) on the mount point.
//!
//! Exclusive around a change that rests on what was read. Single counters need none. It is advisory, and whoever may read the folder may
//! hold it, so nothing here depends on it: the control loop never waits for it ([`Turn::Later`]), and where it is held for longer than
//! [`PATIENCE`] the change is made without it. That is sound, because only groups of ours are written, the kernel takes each write whole
//! and refuses what clashes with others, and what was written is read back. What the lock gives beyond that is courtesy: a tool that has
//! just looked for a free class finds it free. Without the lock that tool may be told ENOSPC, which it must be ready for anyhow.

use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Other tools hold it for single commands.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// A holder that was not waited for is not waited for again so soon: each change would be late by [`PATIENCE`].
const GRUDGE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// Held while this lives; or gone on without, which is said when it begins.
#[derive(Debug)]
pub struct Lock {
    file: Option<Flock<File>>,
}

impl Lock {
    pub(super) fn none() -> Self {
        Lock { file: None }
    }

    pub fn is_held(&self) -> bool {
        self.file.is_some()
    }
}

/// What came of asking without waiting.
#[derive(Debug)]
pub enum Turn {
    /// With the lock, or without it after [`PATIENCE`].
    Now(Lock),
    /// Another process holds it: ask again.
    Later,
}

/// Whether to go on without the lock. Pure: told what was found, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// Of a row of refusals without long gaps: the first, and the last.
    refused: Option<(Instant, Instant)>,
    /// Until then nobody is waited for.
    unheeded_until: Option<Instant>,
    /// Changes that were made without it.
    pub without: u64,
}

/// What [`Patience`] says of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    /// `first`: of this holder.
    GoOn {
        first: bool,
    },
}

impl Patience {
    fn granted(&mut self) {
        self.refused = None;
    }

    fn refused(&mut self, now: Instant) -> Verdict {
        let (since, _) = self.refused.filter(|(_, last)| now.duration_since(*last) < 2 * PATIENCE).unwrap_or((now, now));
        self.refused = Some((since, now));
        let unheeded = self.unheeded_until.is_some_and(|until| now < until);
        if !unheeded && now.duration_since(since) < PATIENCE {
            return Verdict::Wait;
        }
        self.unheeded_until = Some(now + GRUDGE);
        self.without += 1;
        Verdict::GoOn { first: !unheeded }
    }

    /// Ask for the lock of `dir`, and wait for no more than `most`; `say` is told why there is none, once for each holder.
    pub fn ask(&mut self, dir: &Path, most: Duration, say: impl Fn(String)) -> Turn {
        let end = Instant::now() + most;
        let held_by_another = format!(
            "another process has held it for more than {} ms (find it with: lslocks, or fuser -v {})",
            PATIENCE.as_millis(),
            dir.display()
        );
        loop {
            let why = match lock(dir) {
                Ok(file) => {
                    self.granted();
                    return Turn::Now(Lock { file });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => &held_by_another,
                Err(e) => &e.to_string(),
            };
            let now = Instant::now();
            match self.refused(now) {
                Verdict::GoOn { first } => {
                    if first {
                        say(format!("lock on {}: {why}: groups of ours are changed without it", dir.display()));
                    }
                    return Turn::Now(Lock { file: None });
                }
                Verdict::Wait if now < end => std::thread::sleep(PAUSE.min(end - now)),
                Verdict::Wait => return Turn::Later,
            }
        }
    }
}

/// None where nothing is mounted there: whatever comes next says so.
fn lock(dir: &Path) -> io::Result<Option<Flock<File>>> {
    let file = match File::open(dir) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Some(held)),
        Err((_, e)) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::FlockArg::{LockExclusive, LockShared};

    fn hold(dir: &Path, how: FlockArg) -> Flock<File> {
        Flock::lock(File::open(dir).unwrap(), how).unwrap()
    }

    /// Nobody waits without being asked to; a free lock is taken, and one that is free again within the wait too.
    #[test]
    fn a_lock_that_is_held_is_asked_for_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut p = Patience::default();
        let quiet = |why: String| panic!("{why}");
        for how in [LockShared, LockExclusive] {
            let other = hold(dir.path(), how);
            assert!(matches!(p.ask(dir.path(), Duration::ZERO, quiet), Turn::Later));
            drop(other);
            assert!(matches!(p.ask(dir.path(), Duration::ZERO, quiet), Turn::Now(l) if l.is_held()));
        }
        let other = hold(dir.path(), LockExclusive);
        std::thread::scope(|s| {
            let waiting = s.spawn(|| Patience::default().ask(dir.path(), PATIENCE / 2, |_| {}));
            drop(other);
            assert!(matches!(waiting.join().unwrap(), Turn::Now(l) if l.is_held()));
        });
        assert!(matches!(p.ask(&dir.path().join("none"), Duration::ZERO, quiet), Turn::Now(l) if !l.is_held()));
        assert_eq!(p.without, 0);
    }

    /// After a second the change is made without it, which is said once; who holds on is not waited for again, also where it lets go for
    /// an instant; a minute without a refusal, and everybody is waited for anew.
    #[test]
    fn a_holder_is_waited_for_once() {
        let t = Instant::now();
        let at = |ms: u64| t + Duration::from_millis(ms);
        let go_on = |first| Verdict::GoOn { first };
        let mut p = Patience::default();
        let seen: Vec<Verdict> = (0..=10).map(|n| p.refused(at(n * 100))).collect();
        assert!(seen[..10].iter().all(|v| *v == Verdict::Wait) && seen[10] == go_on(true), "{seen:?}");
        assert_eq!(p.refused(at(1_100)), go_on(false));
        p.granted();
        assert_eq!(p.refused(at(1_200)), go_on(false));
        assert_eq!(p.without, 3);
        assert_eq!(p.refused(at(62_000)), Verdict::Wait);
        // Refusals that lie far apart are of different holders.
        assert_eq!(p.refused(at(65_000)), Verdict::Wait);
        assert_eq!(p.refused(at(66_000)), go_on(true));
    }

    /// A wait ends at its bound, with words that say whom to look for.
    #[test]
    fn a_wait_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let _other = hold(dir.path(), LockShared);
        let said = std::cell::RefCell::new(vec![]);
        let turn = Patience::default().ask(dir.path(), 2 * PATIENCE, |why| said.borrow_mut().push(why));
        assert!(matches!(turn, Turn::Now(l) if !l.is_held()));
        let said = said.into_inner();
        assert!(said.len() == 1 && said[0].contains("more than 1000 ms") && said[0].contains("lslocks"), "{said:?}");
        assert!(matches!(Patience::default().ask(dir.path(), Duration::from_millis(12), |_| {}), Turn::Later));
    }
}
