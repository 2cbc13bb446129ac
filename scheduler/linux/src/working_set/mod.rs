//! The working set of a group: bytes that it touches within a while. What is resident is none: it holds pages that are never touched again.
//!
//! A page tells by its "accessed" bit that it was touched, and several things of a kernel read that bit. In this order the first that is there is
//! asked ([`Way`]): DAMON looks at samples of pages and disturbs nothing; the generations of the LRU (MGLRU) look at all pages, as reclaim itself
//! does; `clear_refs` clears all bits and counts those that are set again, for which the service stands still. All three are root's. Without them
//! refaults give a bound: where pages are out and few of them come back, what is resident is enough.
//!
//! All of it takes the window and longer, so it is done in a thread of its own, one group after another ([`WorkingSets`]).

pub mod damon;
mod generations;
mod referenced;

pub use generations::{is_off, LISTS, SWITCH};

use crate::cgroup::Cgroup;
use crate::memory_use::{value, MemoryReading};
use crate::procfs::page_bytes;
use crate::root::Root;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Refaults give a bound where so much of the footprint is out: before, nothing was asked of the service.
const OUT_FRAC: f64 = 0.02;
/// Looks in a row without a result, through which the last one holds.
const MOST_FAILS: u32 = 2;
/// The end waits no longer for a command that the kernel is carrying out.
const END: Duration = Duration::from_secs(3);

/// What tells which pages were touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// `/sys/kernel/mm/damon`, Linux 6.2.
    Damon,
    /// `/sys/kernel/debug/lru_gen`, Linux 6.1.
    Generations,
    /// `/proc/PID/clear_refs` and `smaps_rollup`.
    Referenced,
    /// `memory.stat`: at most so much is touched.
    Refaults,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Damon => "by DAMON",
            Way::Generations => "by the generations of the LRU",
            Way::Referenced => "by clear_refs",
            Way::Refaults => "at most, by refaults",
        })
    }
}

/// Bytes that a group touched within [`Pace::window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub bytes: u64,
    pub by: Way,
}

/// Or why that is unknown.
pub type Outcome = Result<Measured, String>;

type How<'a> = &'a dyn Fn() -> Result<u64, String>;

/// How long and how often is looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A page that is touched once in it counts.
    pub window: Duration,
    /// Between two rounds over all groups.
    pub rest: Duration,
}

impl Default for Pace {
    /// A batch job passes over its data in seconds to minutes. A round looks at every page once or twice, so that minutes between two cost nothing.
    fn default() -> Self {
        Pace { window: Duration::from_secs(30), rest: Duration::from_secs(120) }
    }
}

/// A group to look at.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    pub group: Cgroup,
    /// As the kernel names it.
    pub name: Option<String>,
    /// Number of its folder: one that is made anew under its name is another one.
    pub identity: Option<u64>,
    /// It has a latency to keep: nothing is done for which it would stand still for long.
    pub is_lc: bool,
}

/// What one look may use.
struct Look<'a> {
    root: &'a Root,
    window: Duration,
    shared: &'a Shared,
}

impl Look<'_> {
    /// Waits, unless the owner ends meanwhile.
    fn wait(&self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        let mut state = self.shared.lock();
        while !state.stop {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) else { return Ok(()) };
            state = self.shared.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Err("ended".into())
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.root.files.write(&self.root.path(path), text)
    }

    /// Whether processes that were there before still have nearly all that is resident.
    fn still_there(&self, w: &Watched, before: &[u32]) -> bool {
        let resident = |pids: &[u32]| crate::procfs::memory_mb(self.root, pids).map_or(0.0, |(_, resident)| resident);
        let now = w.group.pids();
        let both: Vec<u32> = now.iter().copied().filter(|pid| before.contains(pid)).collect();
        resident(&both) >= damon::LEAST_FRAC * resident(&now)
    }

    fn writable(&self, path: &str) -> bool {
        let at = self.root.path(path);
        self.root.files.is_here() && self.root.files.is_file(&at) && self.root.files.writable(&at)
    }

    /// By the first way that is there; the others' reasons otherwise.
    fn measure(&self, w: &Watched) -> Outcome {
        let look = || MemoryReading::of(&w.group, None, Instant::now());
        let (before, pids) = (look(), w.group.pids());
        let ways: [(Way, How<'_>); 3] = [
            (Way::Damon, &|| damon::measure(self, &pids)),
            (Way::Generations, &|| generations::measure(self, w)),
            (Way::Referenced, &|| referenced::measure(self, w)),
        ];
        let mut reasons = Vec::new();
        for (by, way) in ways {
            match way() {
                Ok(_) if by != Way::Generations && !self.still_there(w, &pids) => {
                    reasons.push(format!("{by}: most of its processes are others by now"));
                }
                // Pages that several processes share are counted once for each.
                Ok(bytes) => {
                    let bytes = bytes.saturating_add(unseen(&w.group.memory_stat().unwrap_or_default(), by));
                    return Ok(Measured { bytes: look().view(None).footprint_bytes().map_or(bytes, |f| bytes.min(f)), by });
                }
                Err(why) => reasons.push(why),
            }
            self.wait(Duration::ZERO)?;
        }
        self.wait(self.window.saturating_sub(before.at.elapsed()))?;
        match bound(&before, &look()) {
            Some(bytes) => Ok(Measured { bytes, by: Way::Refaults }),
            None => Err(reasons.into_iter().chain(["refaults: too little is out to tell".into()]).collect::<Vec<_>>().join("; ")),
        }
    }
}

/// Bytes that a way cannot see, as if all were touched: what no page table shows (page cache that is read, memory of the kernel), and what is locked.
fn unseen(stat: &str, by: Way) -> u64 {
    let of = |key: &str| value(stat, key).unwrap_or(0);
    let kernel = of("kernel").max(of("slab") + of("kernel_stack") + of("pagetables")) + of("sock");
    match by {
        Way::Generations => kernel + of("unevictable"),
        _ => kernel + of("file").saturating_sub(of("file_mapped")),
    }
}

/// What is touched at most between two readings: what is resident, and what came back meanwhile. None where next to nothing is out, or that is
/// not counted.
fn bound(before: &MemoryReading, after: &MemoryReading) -> Option<u64> {
    let seen = after.view(None);
    let (footprint, out) = (seen.footprint_bytes()?, seen.swapped_bytes?);
    let resident = footprint.saturating_sub(out);
    let back = after.refaults?.checked_sub(before.refaults?)?.saturating_mul(page_bytes());
    (out as f64 >= OUT_FRAC * footprint as f64).then(|| resident.saturating_add(back).min(footprint))
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    watched: BTreeMap<String, Watched>,
    found: BTreeMap<String, Outcome>,
    /// Looks in a row that found nothing.
    fails: BTreeMap<String, u32>,
}

impl State {
    /// What was known stays through a failure or two: something came between.
    fn keep(&mut self, id: &str, outcome: Outcome) {
        let fails = self.fails.entry(id.to_string()).or_default();
        *fails = if outcome.is_ok() { 0 } else { *fails + 1 };
        if *fails == 0 || *fails > MOST_FAILS || !self.found.get(id).is_some_and(Result::is_ok) {
            say(id, self.found.get(id), &outcome);
            self.found.insert(id.to_string(), outcome);
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at some groups in turn, until it goes.
#[derive(Debug)]
pub struct WorkingSets {
    root: Root,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl WorkingSets {
    /// # Errors
    /// The system's, where no thread can be had.
    pub fn start(root: Root, pace: Pace) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (to, mine) = (root.clone(), shared.clone());
        let run = move || {
            damon::end_left(&to);
            let look = Look { root: &to, window: pace.window, shared: &mine };
            loop {
                let watched = mine.lock().watched.clone();
                for (id, w) in &watched {
                    let outcome = look.measure(w);
                    let mut state = mine.lock();
                    if state.stop {
                        return;
                    }
                    // Gone meanwhile, or another group by now.
                    if state.watched.get(id) == Some(w) {
                        state.keep(id, outcome);
                    }
                }
                // The first round does not wait for groups that are not there yet.
                let rest = if watched.is_empty() { pace.rest.min(Duration::from_secs(1)) } else { pace.rest };
                if look.wait(rest).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("working-set".into()).spawn(run)?;
        Ok(WorkingSets { root, shared, thread: Some(thread) })
    }

    /// The groups to look at from now on. What was found of others is forgotten.
    pub fn watch(&self, groups: BTreeMap<String, Watched>) {
        let mut state = self.shared.lock();
        if state.watched != groups {
            let State { watched, found, .. } = &mut *state;
            found.retain(|id, _| groups.contains_key(id) && groups.get(id) == watched.get(id));
            *watched = groups;
        }
    }

    /// What was found last; None before the first look has ended.
    pub fn of(&self, id: &str) -> Option<Outcome> {
        self.shared.lock().found.get(id).cloned()
    }
}

/// One line when it becomes known how a working set is seen, or why not.
fn say(id: &str, before: Option<&Outcome>, now: &Outcome) {
    let how = |o: &Outcome| o.as_ref().map(|m| m.by).map_err(Clone::clone);
    if before.map(how) == Some(how(now)) {
        return;
    }
    match now {
        Ok(m) => tracing::info!("{id}: its working set is seen {}: {} MiB", m.by, m.bytes >> 20),
        Err(why) => tracing::info!("{id}: its working set is unknown: {why}"),
    }
}

impl Drop for WorkingSets {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_all();
        let Some(thread) = self.thread.take() else { return };
        let deadline = Instant::now() + END;
        while !thread.is_finished() {
            if Instant::now() > deadline {
                tracing::warn!("a look at a working set goes on until the kernel answers; what is left of it the next start ends");
                return;
            }
            // A command to DAMON waits for the end of its window, unless it is switched off.
            damon::switch_off(&self.root);
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests;
