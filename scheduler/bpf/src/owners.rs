//! CPUs that change their owner in well under a millisecond, by a scheduler of our own in the kernel (`bpf/owners.bpf.c`, sched_ext).
//!
//! What holds: a thread of a class runs on CPUs of its class alone, within its own mask. What is given to a class whose threads are keepers
//! is left by others at once. Where the scheduler has ended, for whatever reason, threads are on every CPU of their mask ([`Owners::ended`]).
//! A thread belongs to a class once it is in the cgroup of the class **and** was let in ([`let_in`]); its children are from birth.

use crate::classes::CLASSES;
use crate::object::{self, Refused};
use crate::words::Words;
use libbpf_rs::{MapCore, OpenObject};
use nix::errno::Errno;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{fence, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use surefoot_server::CpuSet;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/owners.bpf.o"));
/// Where a kernel that has sched_ext says so.
const KERNEL: &str = "/sys/kernel/sched_ext";
/// Of what it says there, bytes.
const LONGEST: u64 = 256;

// As in `bpf/owners.h`, in words.
const CPU_WORDS: usize = 16;
/// Of `struct shared`.
const HIGHEST: usize = 0;
const KEEPERS: usize = 1;
const ENDED: usize = 2;
const STRAYS: usize = 3;
const WATCHED: usize = 8;
const TO: usize = WATCHED + 2 * CLASSES;
const TO_CPUS: usize = TO + 1;
const SHARED: usize = TO_CPUS + CPU_WORDS;
/// Of `struct cpu`.
const CPU: usize = 8;
const OWNER: usize = 0;
const RUNS: usize = 1;
const PICKS: usize = 2;

/// All that a user of the scheduler needs. They may be sent to another process; the scheduler is in charge as long as any process has `link`.
#[derive(Debug)]
pub struct Parts {
    pub shared: OwnedFd,
    pub cpus: OwnedFd,
    pub order: OwnedFd,
    pub link: OwnedFd,
    /// CPUs that may come.
    pub number: usize,
}

/// Puts the scheduler in charge of the threads that are let in. There are none at first.
///
/// # Errors
/// [`Refused`]: in one line why not.
pub fn scheduler() -> Result<Parts, Refused> {
    scheduler_by(Path::new(KERNEL))
}

/// What is known to speak against the scheduler before it is loaded. `kernel` is /sys/kernel/sched_ext, or a stand-in's.
pub fn hindrance(kernel: &Path) -> Option<Refused> {
    let says = |file: &str| {
        let mut text = String::new();
        std::fs::File::open(kernel.join(file)).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
        Some(text.trim().to_string())
    };
    let Some(state) = says("state") else {
        return Some(Refused {
            cause: "this kernel has no sched_ext".into(),
            remedy: "Use a kernel from 6.12 on with CONFIG_SCHED_CLASS_EXT; until then cores are lent by cpuset".into(),
        });
    };
    if state != "disabled" {
        let name = says("root/ops").unwrap_or_else(|| "another scheduler".into());
        return Some(Refused {
            cause: format!("sched_ext is in use: {name}"),
            remedy: "The kernel has one at a time. End that one first".into(),
        });
    }
    None
}

fn scheduler_by(kernel: &Path) -> Result<Parts, Refused> {
    if let Some(hindrance) = hindrance(kernel) {
        return Err(hindrance);
    }
    let number = libbpf_rs::num_possible_cpus().unwrap_or(CpuSet::CAPACITY as usize).min(CpuSet::CAPACITY as usize);
    let set = |open: &mut OpenObject| {
        open.maps_mut().filter(|map| map.name().to_str() == Some("cpus")).try_for_each(|mut map| map.set_max_entries(number as u32))
    };
    let mut object = object::load(OBJECT, set)?;
    let (shared, cpus) = (object::map(&object, ".bss")?, object::map(&object, "cpus")?);
    let order = object.progs().find(|p| p.name().to_str() == Some("move")).ok_or_else(|| object::fault("a program is missing", &"move"))?;
    let order = order.as_fd().try_clone_to_owned().map_err(|e| object::fault("move", &e))?;
    let mut ops =
        object.maps_mut().find(|m| m.name().to_str() == Some("surefoot")).ok_or_else(|| object::fault("a map is missing", &"surefoot"))?;
    let link = ops.attach_struct_ops().map_err(|e| Refused {
        cause: format!("the kernel does not take the scheduler: {e}"),
        remedy: "Run the process as root; the kernel's log may say more".into(),
    })?;
    let link = link.as_fd().try_clone_to_owned().map_err(|e| object::fault("surefoot", &e))?;
    Ok(Parts { shared, cpus, order, link, number })
}

/// The scheduler in charge, as one process sees it. One process at a time uses it: it numbers the classes.
#[derive(Debug)]
pub struct Owners {
    shared: Words,
    cpus: Words,
    order: OwnedFd,
    #[allow(dead_code, reason = "held open")]
    link: OwnedFd,
    number: usize,
    in_use: Mutex<[bool; CLASSES]>,
}

impl Owners {
    /// # Errors
    /// The kernel's.
    pub fn open(parts: Parts) -> io::Result<Arc<Self>> {
        let Parts { shared, cpus, order, link, number } = parts;
        let mut in_use = [false; CLASSES];
        in_use[0] = true;
        let (shared, cpus) = (Words::map(&shared, SHARED)?, Words::map(&cpus, CPU * number)?);
        let owners = Owners { shared, cpus, order, link, number, in_use: Mutex::new(in_use) };
        // What a process before this one left.
        (1..CLASSES).for_each(|class| owners.id(class).store(0, Relaxed));
        Ok(Arc::new(owners))
    }

    fn id(&self, class: usize) -> &AtomicU64 {
        &self.shared.get()[WATCHED + 2 * class]
    }

    /// A service: the number of its cgroup's folder, and how many folders below the root of cgroup v2 that is. Whether its running
    /// threads keep a CPU that is given away until they leave it, as those of a lender do. It has no CPU at first.
    ///
    /// # Errors
    /// There are as many as can be.
    pub fn class(self: &Arc<Self>, id: u64, level: usize, keeps: bool) -> io::Result<Class> {
        let index = {
            let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
            let free = in_use.iter().position(|used| !used);
            let free =
                free.ok_or_else(|| io::Error::other(format!("{} services lend and borrow, and no more can. End a lease", CLASSES - 1)))?;
            in_use[free] = true;
            free
        };
        let (keepers, bit) = (&self.shared.get()[KEEPERS], 1 << index);
        if keeps {
            keepers.fetch_or(bit, SeqCst)
        } else {
            keepers.fetch_and(!bit, SeqCst)
        };
        self.shared.get()[WATCHED + 2 * index + 1].store(level as u64, Relaxed);
        self.id(index).store(id, Release);
        self.shared.get()[HIGHEST].fetch_max(index as u64, SeqCst);
        Ok(Class { owners: self.clone(), index })
    }

    /// The kernel's number of the reason why the scheduler is not in charge any more: 64 and above on request, 1024 and above by a fault.
    pub fn ended(&self) -> Option<u64> {
        Some(self.shared.get()[ENDED].load(Acquire)).filter(|kind| *kind != 0)
    }

    /// Times that a thread began to run on a CPU of another class, and was sent away at once.
    pub fn strays(&self) -> u64 {
        self.shared.get()[STRAYS].load(Relaxed)
    }

    fn cpu(&self, cpu: u32, word: usize) -> u64 {
        self.cpus.get().get(CPU * cpu as usize + word).map_or(0, |word| word.load(SeqCst))
    }
}

/// A service that the scheduler knows, until this value goes. Its CPUs have no owner then, and its threads are as others.
#[derive(Debug)]
pub struct Class {
    owners: Arc<Owners>,
    index: usize,
}

impl Class {
    /// These CPUs are the class's from now on. A thread of a class that does not keep them is on its way when this returns; [`Class::uses`]
    /// of that class says when it has left.
    ///
    /// # Errors
    /// The kernel's, or the scheduler has ended.
    pub fn give(&self, cpus: &CpuSet) -> io::Result<()> {
        self.owners.give(self.index, cpus)
    }

    /// Whether a thread of the class runs there, or is about to.
    pub fn uses(&self, cpu: u32) -> bool {
        fence(SeqCst);
        let class = self.index as u64;
        self.owners.cpu(cpu, PICKS) == class || self.owners.cpu(cpu, RUNS) == class
    }

    /// Its CPUs.
    pub fn owns(&self) -> CpuSet {
        (0..self.owners.number as u32).filter(|cpu| self.owners.cpu(*cpu, OWNER) == self.index as u64).collect()
    }
}

impl Owners {
    fn give(&self, class: usize, cpus: &CpuSet) -> io::Result<()> {
        if let Some(kind) = self.ended() {
            return Err(io::Error::other(format!("the kernel ended the scheduler of lent cores (reason {kind}; its log says more)")));
        }
        // One order at a time.
        let _guard = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.get()[TO].store(class as u64, Relaxed);
        self.shared.get()[TO_CPUS..].iter().zip(cpus.words()).for_each(|(to, word)| to.store(*word, SeqCst));
        object::run(self.order.as_fd())
    }
}

impl Drop for Class {
    fn drop(&mut self) {
        let _ = self.owners.give(0, &self.owns());
        self.owners.id(self.index).store(0, SeqCst);
        self.owners.in_use.lock().unwrap_or_else(PoisonError::into_inner)[self.index] = false;
    }
}

/// The scheduling policy of threads that a sched_ext scheduler has (`SCHED_EXT`).
const SCHED_EXT: i32 = 7;

/// What became of a thread that was to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Let {
    New,
    /// It was in already, or has ended.
    In,
    /// It has a policy that is not ours to change (real time, batch, idle): the kernel's own scheduler keeps it.
    Not(i32),
}

/// Lets a thread under the scheduler.
///
/// # Errors
/// The kernel's, e.g. without CAP_SYS_NICE.
pub fn let_in(tid: u32) -> io::Result<Let> {
    or_gone(
        Let::In,
        (|| match parts(crate::policy::policy(tid)?) {
            (SCHED_EXT, _) => Ok(Let::In),
            (nix::libc::SCHED_OTHER, flag) => crate::policy::set_policy(tid, SCHED_EXT | flag).map(|()| Let::New),
            (other, _) => Ok(Let::Not(other)),
        })(),
    )
}

/// Gives a thread back to the kernel's own scheduler, if it was let in.
///
/// # Errors
/// As [`let_in`].
pub fn let_out(tid: u32) -> io::Result<bool> {
    or_gone(
        false,
        (|| match parts(crate::policy::policy(tid)?) {
            (SCHED_EXT, flag) => crate::policy::set_policy(tid, nix::libc::SCHED_OTHER | flag).map(|()| true),
            _ => Ok(false),
        })(),
    )
}

/// A policy, and the flag that children do not inherit it.
fn parts(policy: i32) -> (i32, i32) {
    (policy & !nix::libc::SCHED_RESET_ON_FORK, policy & nix::libc::SCHED_RESET_ON_FORK)
}

fn or_gone<T>(gone: T, done: Result<T, Errno>) -> io::Result<T> {
    match done {
        Err(Errno::ESRCH) => Ok(gone),
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classes::defined;

    /// The user's constants are those of the scheduler.
    #[test]
    fn both_sides_have_one_layout() {
        assert_eq!(defined(include_str!("../bpf/owners.h"), "CPU_WORDS"), CPU_WORDS as u64);
        assert_eq!(CPU_WORDS * 64, CpuSet::CAPACITY as usize);
    }

    /// A kernel without sched_ext and one that has another scheduler say so in a line.
    #[test]
    fn a_kernel_without_it_says_so() {
        let dir = std::env::temp_dir().join(format!("surefoot-owners-{}", std::process::id()));
        let says = || scheduler_by(&dir).unwrap_err().to_string();
        assert!(says().contains("no sched_ext"), "{}", says());
        std::fs::create_dir_all(dir.join("root")).unwrap();
        std::fs::write(dir.join("state"), "enabled\n").unwrap();
        std::fs::write(dir.join("root/ops"), "simple\n").unwrap();
        assert!(says().contains("in use: simple"), "{}", says());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
