//! Taking memory back from a group without hurting it: in small steps, off the control path.
//!
//! Whoever lowers `memory.max` or `memory.high` below what is in use does the reclaiming himself, in that one write: seconds for
//! gigabytes, while the group is slowed down, and with `memory.max` a kill where reclaim does not suffice. [`lower`] takes at
//! most [`Pace::step_frac`] of what is in use a step, holds still while the group stalls, and gives up where nothing more can be
//! had. A step still blocks its caller for as long as the kernel reclaims that much, so it belongs into a thread of its own
//! ([`Lowering`]), never into the 100 ms loop.

use crate::cgroup::{Cgroup, Knob};
use crate::psi::Resource;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most that one step takes, bytes: how long a stop may have to wait. The actuator takes no more at once from anybody.
pub const MOST_STEP_BYTES: u64 = 64 << 20;

/// What a step is done with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// `memory.reclaim`: leaves no limit behind (Linux 5.19).
    Reclaim,
    /// `memory.high`, put back in the end.
    High,
}

/// How fast memory is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Most that one step takes, as a share of what is in use.
    pub step_frac: f64,
    /// Most that one step takes, bytes: how long a stop may have to wait.
    pub step_bytes: u64,
    /// Between two steps.
    pub interval: Duration,
    /// No step while tasks stalled for memory more than this share of the time since the last one.
    pub stall_frac: f64,
    /// Gives up after so many steps in a row that took nothing.
    pub fruitless: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { step_frac: 0.02, step_bytes: MOST_STEP_BYTES, interval: Duration::from_millis(100), stall_frac: 0.1, fruitless: 20 }
    }
}

/// Bytes that the next step takes; 0 at the goal.
pub fn step(in_use_bytes: u64, goal_bytes: u64, pace: &Pace) -> u64 {
    let most = ((in_use_bytes as f64 * pace.step_frac) as u64).clamp(1 << 16, pace.step_bytes.max(1 << 16));
    in_use_bytes.saturating_sub(goal_bytes).min(most)
}

/// Lower what a group has in memory to `goal_bytes`; the copies that zswap keeps of it count as well. Blocks until then, until `stop`, or until it gives up.
///
/// # Errors
/// What the kernel said; `TimedOut` where no more can be reclaimed (no swap, all of it in use).
pub fn lower(group: &Cgroup, goal_bytes: u64, hand: Hand, pace: &Pace, stop: &AtomicBool) -> io::Result<()> {
    let former = group.get(Knob::High);
    let done = lower_by(group, goal_bytes, hand, pace, stop);
    // A limit below what is in use would slow the group down for ever.
    let given_back = match former.filter(|_| hand == Hand::High) {
        Some(high) => group.set(Knob::High, &high),
        None => Ok(()),
    };
    done.and(given_back)
}

fn lower_by(group: &Cgroup, goal_bytes: u64, hand: Hand, pace: &Pace, stop: &AtomicBool) -> io::Result<()> {
    let in_use = || group.memory_bytes().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "memory.current: cannot be read"));
    let stalled_us = || group.pressure(Resource::Memory).map(|p| p.some.total_us);
    let (mut fruitless, mut last) = (0, (Instant::now(), stalled_us()));
    while !stop.load(Ordering::Relaxed) {
        let now = in_use()?;
        let take = step(now, goal_bytes, pace);
        if take == 0 {
            return Ok(());
        }
        let stall_frac = match (last, stalled_us()) {
            ((at, Some(then)), Some(us)) => us.saturating_sub(then) as f64 * 1e-6 / at.elapsed().as_secs_f64().max(1e-6),
            _ => 0.0,
        };
        last = (Instant::now(), stalled_us());
        if stall_frac <= pace.stall_frac {
            match hand {
                Hand::Reclaim => match group.reclaim(take) {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                },
                Hand::High => group.set(Knob::High, &(now - take).to_string())?,
            }
        }
        // Our own reclaim is stall too, but of this thread, which is not in the group.
        fruitless = if in_use()? + take / 2 >= now { fruitless + 1 } else { 0 };
        if fruitless >= pace.fruitless {
            let what = format!("{} bytes are in use, {goal_bytes} were wanted, and no more can be reclaimed", in_use()?);
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        std::thread::park_timeout(pace.interval);
    }
    Ok(())
}

/// A [`lower`] in a thread of its own, after which `memory.max` is the goal. Ends with its owner.
#[derive(Debug)]
pub struct Lowering {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Lowering {
    /// # Errors
    /// The system's, where no thread can be had.
    pub fn start(group: Cgroup, goal_bytes: u64, pace: Pace) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let run = move || {
            // Asked for nothing, it says whether it is there.
            let hand = match group.reclaim(0) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Hand::High,
                _ => Hand::Reclaim,
            };
            lower(&group, goal_bytes, hand, &pace, &asked)?;
            if asked.load(Ordering::Relaxed) {
                return Ok(());
            }
            group.set(Knob::Memory, &goal_bytes.to_string())
        };
        let thread = std::thread::Builder::new().name("lower-memory".into()).spawn(run)?;
        Ok(Lowering { stop, thread: Some(thread) })
    }

    /// Its thread; None once it has told how it ended.
    #[cfg(test)]
    pub(crate) fn thread_id(&self) -> Option<std::thread::ThreadId> {
        self.thread.as_ref().map(|t| t.thread().id())
    }

    /// How it ended; None while it runs. Tells once.
    pub fn ended(&mut self) -> Option<io::Result<()>> {
        if !self.thread.as_ref()?.is_finished() {
            return None;
        }
        Some(self.thread.take()?.join().unwrap_or_else(|_| Err(io::Error::other("the thread ended by itself"))))
    }
}

impl Drop for Lowering {
    /// Waits for the step that it is at, at most [`Pace::step_bytes`].
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            t.thread().unpark();
            let _ = t.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step is bounded by a share, by bytes and by the goal, and ends at it.
    #[test]
    fn steps_are_bounded_and_end_at_the_goal() {
        let pace = Pace { step_frac: 0.02, step_bytes: 64 << 20, ..Pace::default() };
        // 2 % of 1 GiB; 64 MiB of 100 GiB; what is left to the goal; nothing at or below it.
        assert_eq!(step(1 << 30, 0, &pace), (1u64 << 30) / 50);
        assert_eq!(step(100 << 30, 0, &pace), 64 << 20);
        assert_eq!(step(1 << 30, (1 << 30) - 4096, &pace), 4096);
        assert_eq!((step(4096, 4096, &pace), step(0, 4096, &pace)), (0, 0));
        // From any use to any goal in a bounded number of steps: each takes 2 % or 64 KiB.
        let (mut use_bytes, goal, mut n) = (10u64 << 30, 1u64 << 30, 0);
        while step(use_bytes, goal, &pace) > 0 {
            use_bytes -= step(use_bytes, goal, &pace);
            n += 1;
            assert!(use_bytes >= goal && n < 400, "{use_bytes} after {n}");
        }
        assert_eq!(use_bytes, goal);
    }
}
