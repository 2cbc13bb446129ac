//! Which CPUs run threads of a group, and how long such threads waited: read from memory that `bpf/feed.bpf.c` writes.
//!
//! What holds: a look makes no system call and allocates nothing, whatever the programs do. A group that is watched is seen on the CPUs where it
//! runs at that instant (`seed` in `feed.bpf.c`), not from the next switch on. Cgroups below a watched one count as it.

use crate::classes::CLASSES;
use crate::object::{self, Refused};
use crate::words::Words;
use libbpf_rs::OpenObject;
use nix::errno::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use surefoot_server::lease::WAIT_BOUNDS;
use surefoot_server::CpuSet;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/feed.bpf.o"));

// As in `bpf/feed.h`, in words.
const WAITING: usize = 4096;
const TID_SHIFT: u32 = 42;
const CLASS_SHIFT: u32 = 37;
const TIME_MASK: u64 = (1 << CLASS_SHIFT) - 1;
const CLASS_MASK: u64 = (1 << 8) - 1;
/// Of `struct shared`.
const HIGHEST: usize = 0;
const BACKWARDS: usize = 1;
const WATCHED: usize = 8;
const WAITS_NOW: usize = WATCHED + 2 * CLASSES;
const SHARED: usize = WAITS_NOW + WAITING;
/// Of `struct slot`, `struct waits` and `struct bank`.
const SLOT: usize = 8;
const WAITS: usize = 3 + WAIT_BOUNDS;
const BANK: usize = WAITS * CLASSES;

/// The programs that are hooks, by name.
const HOOKS: [&str; 3] = ["switches", "wakeups", "births"];

/// Which cgroup of a thread counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    Unified,
    /// Of version 1, where controllers have trees of their own.
    Cpuset,
}

/// All that a reader needs. They may be sent to another process, and the programs stay as long as any process has them.
#[derive(Debug)]
pub struct Handles {
    pub shared: OwnedFd,
    pub slots: OwnedFd,
    pub banks: OwnedFd,
    pub seed: OwnedFd,
    pub hooks: Vec<OwnedFd>,
    /// Slots: one a CPU that may come.
    pub cpus: usize,
}

/// Loads the programs and hooks them in.
///
/// # Errors
/// [`Refused`]: in one line why not.
pub fn programs(hierarchy: Hierarchy) -> Result<Handles, Refused> {
    programs_for(hierarchy, libbpf_rs::num_possible_cpus().unwrap_or(CpuSet::CAPACITY as usize))
}

/// The same with slots for so many CPUs, as a larger host would have.
///
/// # Errors
/// As [`programs`].
pub fn programs_for(hierarchy: Hierarchy, cpus: usize) -> Result<Handles, Refused> {
    let cpus = cpus.min(CpuSet::CAPACITY as usize);
    let set = |open: &mut OpenObject| {
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("slots" | "banks") => map.set_max_entries(cpus as u32)?,
                // The one constant is `by_cpuset`.
                Some(name) if name.ends_with(".rodata") => {
                    if let Some(bytes) = map.initial_value_mut() {
                        bytes[0] = u8::from(hierarchy == Hierarchy::Cpuset);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    };
    let object = object::load(OBJECT, set)?;
    let mut hooks = vec![];
    let mut seed = None;
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if name == "seed" {
            seed = Some(program.as_fd().try_clone_to_owned().map_err(|e| object::fault("seed", &e))?);
        } else {
            let link = program.attach().map_err(|e| Refused {
                cause: format!("the kernel does not let {name} be hooked in: {e}"),
                remedy: "Give the process CAP_BPF and CAP_PERFMON, or run it as root".into(),
            })?;
            hooks.push(link.as_fd().try_clone_to_owned().map_err(|e| object::fault(&name, &e))?);
        }
    }
    let seed = seed.ok_or_else(|| object::fault("a program is missing", &"seed"))?;
    let map = |name| object::map(&object, name);
    Ok(Handles { shared: map(".bss")?, slots: map("slots")?, banks: map("banks")?, seed, hooks, cpus })
}

/// The programs at work, as one process sees them. One process at a time reads: it numbers the groups that are watched.
#[derive(Debug)]
pub struct Feed {
    shared: Words,
    slots: Words,
    banks: Words,
    seed: OwnedFd,
    /// Held open: with the last of them the programs go.
    _hooks: Vec<OwnedFd>,
    cpus: usize,
    /// Which cgroup each number stands for, and how many watches have it.
    numbers: Mutex<[(u64, usize); CLASSES]>,
}

impl Feed {
    /// # Errors
    /// The kernel's.
    pub fn open(handles: Handles) -> io::Result<Arc<Self>> {
        let Handles { shared, slots, banks, seed, hooks, cpus } = handles;
        let feed = Feed {
            shared: Words::map(&shared, SHARED)?,
            slots: Words::map(&slots, SLOT * cpus)?,
            banks: Words::map(&banks, BANK * cpus)?,
            seed,
            _hooks: hooks,
            cpus,
            numbers: Mutex::new([(0, 0); CLASSES]),
        };
        // What a process before this one watched.
        (1..CLASSES).for_each(|index| feed.id(index).store(0, Ordering::Relaxed));
        Ok(Arc::new(feed))
    }

    fn id(&self, index: usize) -> &AtomicU64 {
        &self.shared.get()[WATCHED + 2 * index]
    }

    /// Watch a cgroup: the number of its folder, and how many folders below the root of its hierarchy that is.
    ///
    /// # Errors
    /// As many are watched as can be, or the kernel does not say what runs now.
    pub fn watch(self: &Arc<Self>, id: u64, level: usize) -> io::Result<Watch> {
        let (index, is_new) = self.number(id)?;
        if is_new {
            // Of the group that had the number before.
            let of_class = |entry: u64| (entry >> CLASS_SHIFT) as usize % CLASSES == index;
            for entry in &self.shared.get()[WAITS_NOW..] {
                let _ = entry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |e| of_class(e).then_some(0));
            }
            self.shared.get()[WATCHED + 2 * index + 1].store(level as u64, Ordering::Relaxed);
            self.id(index).store(id, Ordering::Release);
            self.shared.get()[HIGHEST].fetch_max(index as u64, Ordering::Release);
        }
        let mut watch = Watch { feed: self.clone(), index, before: Counts::default() };
        for cpu in 0..self.cpus as u32 {
            match object::run_on(self.seed.as_fd(), cpu) {
                // Off line, and its first thread will be a switch; or not there.
                Err(e) if e.raw_os_error() != Some(Errno::ENXIO as i32) => return Err(e),
                _ => {}
            }
        }
        watch.before = watch.all();
        Ok(watch)
    }

    /// The number of a cgroup, and whether it had none. A thread has one number: two leases of one group share it.
    fn number(&self, id: u64) -> io::Result<(usize, bool)> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |id: u64, users: fn(usize) -> bool| (1..CLASSES).find(|n| numbers[*n].0 == id && users(numbers[*n].1));
        let (index, is_new) = match (of(id, |users| users > 0), of(0, |_| true)) {
            (Some(index), _) => (index, false),
            (None, Some(index)) => (index, true),
            (None, None) => {
                let most = CLASSES - 1;
                return Err(io::Error::other(format!("{most} cgroups are watched, and no more can be. End one of the leases")));
            }
        };
        numbers[index] = (id, numbers[index].1 + 1);
        Ok((index, is_new))
    }

    /// Pairs of timestamps of two CPUs that ran backwards, and count for nothing.
    pub fn backwards(&self) -> u64 {
        self.shared.get()[BACKWARDS].load(Ordering::Relaxed)
    }

    /// How often CPUs were switched, all together.
    pub fn switches(&self) -> u64 {
        (0..self.cpus).map(|cpu| self.slots.get()[SLOT * cpu].load(Ordering::Relaxed) >> CLASS_MASK.count_ones()).sum()
    }
}

/// Runs of the hooks and time in them, of every process's; both 0 where the kernel does not count ([`crate::Stats`]).
pub fn spent() -> (u64, Duration) {
    let ours = libbpf_rs::query::ProgInfoIter::default().filter(|p| p.name.to_str().is_some_and(|name| HOOKS.contains(&name)));
    ours.fold((0, Duration::ZERO), |(runs, time), p| (runs + p.run_cnt, time + Duration::from_nanos(p.run_time_ns)))
}

/// Waits of threads that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub dispatches: u64,
    pub total_ns: u64,
    /// After more than each of [`surefoot_server::lease::wait_bounds_us`].
    pub over: [u64; WAIT_BOUNDS],
}

/// A cgroup that is watched, until this value goes.
#[derive(Debug)]
pub struct Watch {
    feed: Arc<Feed>,
    index: usize,
    before: Counts,
}

impl Watch {
    /// Whether a thread of the group runs there at this instant.
    pub fn runs_on(&self, cpu: u32) -> bool {
        let slot = self.feed.slots.get().get(SLOT * cpu as usize);
        slot.is_some_and(|slot| slot.load(Ordering::Relaxed) & CLASS_MASK == self.index as u64)
    }

    /// Waits that ended since this was asked for last.
    pub fn waits(&mut self) -> Counts {
        let now = self.all();
        let Counts { dispatches, total_ns, over } = std::mem::replace(&mut self.before, now);
        Counts {
            dispatches: now.dispatches.saturating_sub(dispatches),
            total_ns: now.total_ns.saturating_sub(total_ns),
            over: std::array::from_fn(|i| now.over[i].saturating_sub(over[i])),
        }
    }

    fn all(&self) -> Counts {
        let mut sum = Counts::default();
        for cpu in 0..self.feed.cpus {
            let at = BANK * cpu + WAITS * self.index;
            let waits = &self.feed.banks.get()[at..at + WAITS];
            sum.dispatches += waits[0].load(Ordering::Relaxed);
            sum.total_ns += waits[1].load(Ordering::Relaxed);
            sum.over.iter_mut().zip(&waits[2..]).for_each(|(sum, over)| *sum += over.load(Ordering::Relaxed));
        }
        sum
    }

    /// The longest wait of a thread that waits now, where `now_ns` is CLOCK_MONOTONIC; 0 if none waits. Up to half of 137 s.
    pub fn waiting_ns(&self, now_ns: u64) -> u64 {
        let entries = self.feed.shared.get()[WAITS_NOW..].iter().map(|e| e.load(Ordering::Relaxed)).filter(|e| *e != 0);
        let ours = entries.filter(|e| (e >> CLASS_SHIFT) as usize % CLASSES == self.index && e >> TID_SHIFT != 0);
        // One that began since `now_ns` was read waits for nothing yet.
        ours.map(|e| now_ns.wrapping_sub(e) & TIME_MASK).filter(|ns| *ns <= TIME_MASK / 2).max().unwrap_or(0)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut numbers = self.feed.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, users) = &mut numbers[self.index];
        *users -= 1;
        if *users == 0 {
            *id = 0;
            self.feed.id(self.index).store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::defined;

    /// The reader's constants are those of the programs.
    #[test]
    fn both_sides_have_one_layout() {
        let says = |name: &str| defined(include_str!("../bpf/feed.h"), name);
        for (name, here) in [
            ("WAITING", WAITING as u64),
            ("WAIT_BOUNDS", WAIT_BOUNDS as u64),
            ("TID_SHIFT", u64::from(TID_SHIFT)),
            ("CLASS_SHIFT", u64::from(CLASS_SHIFT)),
            ("CLASS_BITS", u64::from(CLASS_MASK.count_ones())),
        ] {
            assert_eq!(says(name), here, "{name}");
        }
        let bounds = surefoot_server::lease::wait_bounds_us();
        assert_eq!(says("FIRST_BOUND_NS") as f64 * 1e-3, bounds[0]);
        assert!(bounds.windows(2).all(|b| b[1] == b[0] * 2.0));
    }
}
