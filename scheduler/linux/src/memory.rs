//! Taking memory back from a group without hurting it: in small steps, off the control path.
//!
//! Whoever lowers `memory.max` or `memory.high` below what is in use does the reclaiming himself, in that one write: seconds for
//! gigabytes, while the group is slowed down, and with `memory.max` a kill where reclaim does not suffice. [`lower`] takes at
//! most [`Pace::step_frac`] of what is in use a step, holds still while the group stalls or fetches back what was taken, and gives up where
//! nothing more can be had. A step still blocks its caller for as long as the kernel reclaims that much, so it belongs into a thread of its own
//! ([`Lowering`]), never into the 100 ms loop. It runs on the CPUs of the group that loses memory: what is compressed for one service costs no
//! other its time (COSMOS, result C4).

use crate::cgroup::{Cgroup, Knob};
use crate::child::pin;
use crate::floor;
use crate::memory_use::MemoryReading;
use crate::procfs::{may_run_on, page_bytes};
use crate::psi::Resource;
use crate::root::Root;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use surefoot_server::{CpuSet, MemoryView};

/// Most that one step takes, bytes: how long a stop may have to wait. The actuator takes no more at once from anybody.
pub const MOST_STEP_BYTES: u64 = 64 << 20;

/// A step is worth it where it frees this part of what it takes: taking N bytes at a compression ratio r frees N (1 - 1/r), and below 8/7 there
/// is nothing to be gained. Half of N would be too much to ask: at 1.9, the mean of the COSMOS paper's programs, 0.47 N are freed.
const WORTH: u64 = 8;

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
    /// No step while tasks stalled for memory more than this share of the time since the last look.
    pub stall_frac: f64,
    /// No step while pages come back from zswap at more than this share of the rate at which the last step took them. Linux 6.1 does not count
    /// the time in which tasks wait for them.
    pub back_frac: f64,
    /// Gives up after so many steps in a row that were not worth it ([`WORTH`]).
    pub fruitless: u32,
    /// After so many looks in a row without a step one is made all the same: who asks for less than what is touched gets it, only later.
    pub patience: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            step_frac: 0.02,
            step_bytes: MOST_STEP_BYTES,
            interval: Duration::from_millis(100),
            stall_frac: 0.1,
            back_frac: 0.5,
            fruitless: 20,
            patience: 5,
        }
    }
}

/// Bytes that the next step takes; 0 at the goal.
pub fn step(in_use_bytes: u64, goal_bytes: u64, pace: &Pace) -> u64 {
    let most = ((in_use_bytes as f64 * pace.step_frac) as u64).clamp(1 << 16, pace.step_bytes.max(1 << 16));
    in_use_bytes.saturating_sub(goal_bytes).min(most)
}

/// Whether what is seen of a group since the last look says that it wants back what is taken from it, at `took_per_s` bytes.
pub fn holds_back(seen: &MemoryView, took_per_s: f64, pace: &Pace) -> bool {
    let stalls = seen.stall_frac.is_some_and(|frac| frac > pace.stall_frac);
    let back = seen.pool_swap_ins_per_s.is_some_and(|pages| pages * page_bytes() as f64 > pace.back_frac * took_per_s);
    // Before the first step nothing of ours comes back.
    stalls || (back && took_per_s > 0.0)
}

/// Whether a step that was to take `take` bytes of `before` was worth it.
fn is_worth_it(before: u64, after: u64, take: u64) -> bool {
    after + take / WORTH < before
}

/// The limit that keeps what a step has gained. Above what is in use: below it, whoever writes it waits, and the group with him.
fn kept_bytes(before: u64, after: u64) -> u64 {
    after + before.saturating_sub(after) / 4
}

/// This thread on other CPUs, until this goes.
#[derive(Debug)]
pub struct OnCpus(Option<CpuSet>);

impl OnCpus {
    /// On those of a list in the kernel's form, of which this thread's own group may allow a part.
    ///
    /// # Errors
    /// What the kernel says: none of them is allowed to this process.
    pub fn of(list: &str) -> io::Result<Self> {
        let cpus = CpuSet::of_kernel(list).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let now = may_run_on(0).unwrap_or_default();
        if cpus.is_empty() || now == cpus {
            return Ok(OnCpus(None));
        }
        pin(&cpus)?;
        Ok(OnCpus(Some(now).filter(|c| !c.is_empty())))
    }
}

impl Drop for OnCpus {
    fn drop(&mut self) {
        if let Some(e) = self.0.take().and_then(|former| pin(&former).err()) {
            tracing::warn!("a thread stays on the CPUs of the service that it reclaimed from: {e}");
        }
    }
}

/// Lower what a group has in memory to `goal_bytes`; the copies that zswap keeps of it count as well. Blocks until then, until `stop`, or until it gives up.
///
/// # Errors
/// What the kernel said; `TimedOut` where no more can be reclaimed (no swap, all of it in use).
pub fn lower(group: &Cgroup, goal_bytes: u64, hand: Hand, pace: &Pace, stop: &AtomicBool) -> io::Result<()> {
    lower_to(group, &|| goal_bytes, hand, pace, stop, &|_| Ok(())).map(|_| ())
}

/// Told after each step that was worth it: what is to be had now, bytes.
type Gained<'a> = &'a dyn Fn(u64) -> io::Result<()>;

/// The goal may change meanwhile; the last one.
fn lower_to(group: &Cgroup, goal: &dyn Fn() -> u64, hand: Hand, pace: &Pace, stop: &AtomicBool, gained: Gained<'_>) -> io::Result<u64> {
    let former = group.get(Knob::High);
    let done = lower_by(group, goal, hand, pace, stop, gained);
    // A limit below what is in use would slow the group down for ever.
    let given_back = match former.filter(|_| hand == Hand::High) {
        Some(high) => group.set(Knob::High, &high),
        None => Ok(()),
    };
    done.and_then(|goal| given_back.map(|()| goal))
}

fn lower_by(group: &Cgroup, goal: &dyn Fn() -> u64, hand: Hand, pace: &Pace, stop: &AtomicBool, gained: Gained<'_>) -> io::Result<u64> {
    let in_use = || group.memory_bytes().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "memory.current: cannot be read"));
    let look = || MemoryReading::of(group, group.pressure(Resource::Memory).map(|p| p.some.total_us), Instant::now());
    let (mut fruitless, mut held, mut told) = (0, 0, false);
    let (mut last, mut took_per_s): (Option<MemoryReading>, f64) = (None, 0.0);
    while !stop.load(Ordering::Relaxed) {
        let (now, goal_bytes) = (in_use()?, goal());
        let take = step(now, goal_bytes, pace);
        if take == 0 {
            return Ok(goal_bytes);
        }
        let seen = look();
        if holds_back(&seen.view(last.as_ref()), took_per_s, pace) && held < pace.patience {
            held += 1;
        } else {
            held = 0;
            // Where another process makes the write, that one goes there.
            let there = group.effective_cpus().filter(|_| group.files().is_here()).map(|list| OnCpus::of(&list));
            if let Some(Err(e)) = there.as_ref().filter(|_| !told) {
                tracing::warn!("{}: memory is reclaimed on other CPUs than those of the service: {e}", group.cpuset.display());
                told = true;
            }
            let begun = Instant::now();
            match hand {
                Hand::Reclaim => match group.reclaim(take) {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                    _ => {}
                },
                Hand::High => group.set(Knob::High, &(now - take).to_string())?,
            }
            took_per_s = take as f64 / (begun.elapsed() + pace.interval).as_secs_f64();
            let after = in_use()?;
            if is_worth_it(now, after, take) {
                fruitless = 0;
                gained(kept_bytes(now, after).max(goal_bytes))?;
            } else {
                fruitless += 1;
            }
        }
        if fruitless >= pace.fruitless {
            let what = format!("{} bytes are in use, {goal_bytes} were wanted, and no more can be reclaimed", in_use()?);
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        // Our own reclaim is stall too, but of this thread, which is not in the group.
        last = Some(look());
        std::thread::park_timeout(pace.interval);
    }
    Ok(goal())
}

/// A [`lower`] in a thread of its own, after which `memory.max` is the goal. Ends with its owner. The goal is what is wanted, and no less than the
/// [`floor`], which moves as pages do.
///
/// The limit follows each step: what a busy service fetches back at once would otherwise be taken for ever. Where the goal is not reached, the
/// limit is again what it was, or the floor where that is more by now.
#[derive(Debug)]
pub struct Lowering {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

impl Lowering {
    /// # Errors
    /// The system's, where no thread can be had.
    pub fn start(root: Root, group: Cgroup, wanted_bytes: u64, pace: Pace) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let run = move || {
            // Asked for nothing, it says whether it is there.
            let hand = match group.reclaim(0) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Hand::High,
                _ => Hand::Reclaim,
            };
            let former = group.get(Knob::Memory);
            let now = || group.get(Knob::Memory).and_then(|t| t.parse().ok()).unwrap_or(u64::MAX);
            let keep = |bytes: u64| if bytes < now() { group.set(Knob::Memory, &bytes.to_string()) } else { Ok(()) };
            let done = lower_to(&group, &|| floor::of(&root, &group).unwrap_or(0).max(wanted_bytes), hand, &pace, &asked, &keep);
            match (done, former) {
                (Ok(goal), _) if !asked.load(Ordering::Relaxed) => group.set(Knob::Memory, &goal.to_string()).map(|()| goal),
                // Pages may need more by now than the former limit gives them.
                (done, Some(former)) => {
                    let least = floor::of(&root, &group).filter(|f| former.parse().is_ok_and(|bytes: u64| bytes < *f));
                    group.set(Knob::Memory, &least.map_or(former, |bytes| bytes.to_string())).and(done)
                }
                (done, None) => done,
            }
        };
        let thread = std::thread::Builder::new().name("lower-memory".into()).spawn(run)?;
        Ok(Lowering { stop, thread: Some(thread) })
    }

    /// Its thread; None once it has told how it ended.
    #[cfg(test)]
    pub(crate) fn thread_id(&self) -> Option<std::thread::ThreadId> {
        self.thread.as_ref().map(|t| t.thread().id())
    }

    /// How it ended, and the limit in force; None while it runs. Tells once.
    pub fn ended(&mut self) -> Option<io::Result<u64>> {
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
    use crate::cgroup::tests::v2;
    use crate::cgroup::Mounts;
    use crate::root::tests::put;

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

    /// Taking N bytes frees N (1 - 1/r) of them: at each ratio that is worth compressing for, no step is given up for that. One that frees less
    /// than an eighth is.
    #[test]
    fn a_step_is_worth_what_compression_leaves_of_it() {
        let take = 16u64 << 20;
        for (ratio, worth) in [(3.0, true), (2.0, true), (1.9, true), (1.5, true), (1.2, true), (1.1, false), (1.0, false)] {
            let freed = (take as f64 * (1.0 - 1.0 / ratio)) as u64;
            assert_eq!(is_worth_it(1 << 30, (1 << 30) - freed, take), worth, "{ratio}");
        }
        assert!(!is_worth_it(100, 120, 64), "it has grown meanwhile");
    }

    /// A quarter of what a step gained is left as room, and a limit is never below what is in use.
    #[test]
    fn the_limit_follows_a_step_from_above() {
        assert_eq!((kept_bytes(1000, 600), kept_bytes(1000, 1000), kept_bytes(1000, 1200)), (700, 1000, 1200));
    }

    /// Waiting holds a step back, and so do pages that come back from zswap at half the rate at which the last step took them: 10 MB in 100 ms
    /// are 25,600 pages a second. What came back before the first step, and what the kernel does not count, hold nothing back.
    #[test]
    fn pages_that_come_back_hold_the_next_step_back() {
        let pace = Pace::default();
        let seen = |stall_frac, pool_swap_ins_per_s| MemoryView { stall_frac, pool_swap_ins_per_s, ..MemoryView::default() };
        let took_per_s = 25_600.0 * 4096.0;
        for (stalled, pages, holds) in [
            (None, None, false),
            (Some(0.0), Some(0.0), false),
            (Some(0.1), Some(12_800.0), false),
            (Some(0.11), None, true),
            (Some(0.0), Some(12_801.0), true),
            (None, Some(20_000.0), true),
        ] {
            assert_eq!(holds_back(&seen(stalled, pages), took_per_s, &pace), holds, "{stalled:?} {pages:?}");
        }
        assert!(!holds_back(&seen(None, Some(1e6)), 0.0, &pace) && holds_back(&seen(Some(0.5), None), 0.0, &pace));
    }

    /// A thread goes where the list says and comes back; a list of which it may have nothing is refused, and it stays where it is.
    #[test]
    fn a_thread_goes_to_other_cpus_and_back() {
        let all = may_run_on(0).unwrap();
        let one = all.iter().next().unwrap();
        {
            let _there = OnCpus::of(&one.to_string()).unwrap();
            assert_eq!(may_run_on(0).unwrap(), CpuSet::range(one, one + 1));
        }
        assert_eq!(may_run_on(0).unwrap(), all);
        let none = CpuSet::CAPACITY - 1;
        assert!(OnCpus::of(&none.to_string()).is_err() && OnCpus::of("").is_ok() && OnCpus::of("x").is_err());
        assert_eq!(may_run_on(0).unwrap(), all);
    }

    /// Pages that become more while memory is taken need room also after that fails or is stopped: the former limit is put back, but not below
    /// the floor.
    #[test]
    fn a_lowering_that_fails_leaves_no_limit_below_the_floor() {
        const MIB: u64 = 1 << 20;
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        let g = "/sys/fs/cgroup/app.slice/c";
        let says = || root.read(format!("{g}/memory.max")).unwrap();
        put(&root, "/proc/meminfo", "MemTotal: 4194304 kB\nSwapFree: 0 kB\n");
        put(&root, &format!("{g}/memory.current"), &(40 * MIB).to_string());
        let pages = |mib: u64| put(&root, &format!("{g}/memory.stat"), &format!("active_anon {}\ninactive_anon 0\n", mib * MIB));
        let pace = |fruitless| Pace { interval: Duration::from_millis(1), fruitless, ..Pace::default() };
        for (former, pages_mib, after) in [(10 * MIB, 20, 21 * MIB), (30 * MIB, 20, 30 * MIB)] {
            pages(pages_mib);
            put(&root, &format!("{g}/memory.max"), &former.to_string());
            let mut l = Lowering::start(root.clone(), c.clone(), MIB, pace(3)).unwrap();
            let ended = loop {
                if let Some(ended) = l.ended() {
                    break ended;
                }
                std::thread::yield_now();
            };
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(says(), after.to_string());
            // Stopped in the middle.
            put(&root, &format!("{g}/memory.max"), &former.to_string());
            drop(Lowering::start(root.clone(), c.clone(), MIB, pace(u32::MAX)).unwrap());
            assert_eq!(says(), after.to_string());
        }
        // No limit at all stays none.
        put(&root, &format!("{g}/memory.max"), "max");
        drop(Lowering::start(root.clone(), c.clone(), MIB, pace(u32::MAX)).unwrap());
        assert_eq!(says(), "max");
    }
}
