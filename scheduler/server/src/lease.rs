//! The second port: CPUs that are lent for less than a tick.
//!
//! [`Server`](crate::Server) decides once an interval and waits for the disk at each plan. Idle CPUs of a service come and go within
//! milliseconds. So the slow loop grants a [`Lease`], which is written down once: up to these CPUs may be lent. Within it a [`Lender`]
//! lends and takes back as often as it likes, and writes nothing down.
//!
//! What must hold: nothing outside a lease is lent, the lender keeps a core, and a lease ends with everything back, whatever ends it.

use crate::allocation::Allocation;
use crate::cpuset::CpuSet;
use crate::platform::Platform;
use crate::ServiceId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Dispatches that waited longer count as long, µs (SmartHarvest, Sec. 4.2: the long-term safeguard).
pub const LONG_WAIT_US: f64 = 50.0;

/// Up to these CPUs of one service may be lent to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    pub lender: ServiceId,
    pub borrower: ServiceId,
    /// Whole physical cores that the lender holds for itself alone.
    pub cpus: CpuSet,
}

impl Lease {
    /// Whether it may be granted where services hold `layout`.
    ///
    /// # Errors
    /// One line: which rule it breaks, and what would be right.
    pub fn check(&self, p: &Platform, layout: &BTreeMap<ServiceId, Allocation>) -> Result<(), String> {
        let Lease { lender, borrower, cpus } = self;
        let of = |id: &ServiceId| layout.get(id).ok_or_else(|| format!("{id} is not placed. Place lender and borrower first"));
        let (from, to) = (of(lender)?, of(borrower)?);
        if lender == borrower {
            return Err(format!("{lender} cannot lend to itself. Name another service"));
        }
        if let Some(id) = [(lender, from), (borrower, to)].into_iter().find_map(|(id, a)| a.quota_cores.map(|_| id)) {
            return Err(format!("{id} holds its cores by a quota, not by CPUs of its own. Lend between services without one"));
        }
        if cpus.is_empty() {
            return Err(format!("a lease of {lender} without a CPU. Name at least one of {}", from.cpus));
        }
        let own = from.cpus.difference(from.shared_cpus);
        if !cpus.is_subset(&own) {
            let others = cpus.difference(own);
            return Err(format!("{lender} does not hold CPU {others} for itself alone. Choose from {own}"));
        }
        if let Some(core) = self.cores(p).iter().find(|core| !core.is_subset(cpus)) {
            return Err(format!("CPU {} is a part of the core {core}. A core is lent whole or not", core.intersection(*cpus)));
        }
        let left = own.difference(*cpus);
        let whole = |core: &CpuSet| core.is_subset(&left);
        if !(Lease { cpus: left, ..self.clone() }).cores(p).iter().any(whole) {
            return Err(format!("{lender} would have no core left. Keep one of {own}"));
        }
        Ok(())
    }

    /// The largest that may be granted where services hold `layout`: all whole cores that the lender has for itself alone, but the lowest.
    ///
    /// # Errors
    /// One line: why there is none, and what would have to be otherwise.
    pub fn most(lender: &str, borrower: &str, p: &Platform, layout: &BTreeMap<ServiceId, Allocation>) -> Result<Self, String> {
        let from = layout.get(lender);
        let own = from.map_or(CpuSet::empty(), |a| a.cpus.difference(a.shared_cpus));
        let all = Lease { lender: lender.into(), borrower: borrower.into(), cpus: own };
        let mut whole: Vec<CpuSet> = all.cores(p).into_iter().filter(|core| core.is_subset(&own)).collect();
        if from.is_some_and(|a| a.quota_cores.is_none()) && whole.len() < 2 {
            let has = if whole.is_empty() { "no whole core" } else { "one whole core" };
            return Err(format!("{lender} has {has} for itself alone, and a lender keeps one. It lends once it has two"));
        }
        whole.pop();
        let lease = Lease { cpus: whole.into_iter().fold(CpuSet::empty(), |all, core| all.union(core)), ..all };
        lease.check(p, layout).map(|()| lease)
    }

    /// Its physical cores, each with all its CPUs, in the order in which they are lent: the highest first.
    pub fn cores(&self, p: &Platform) -> Vec<CpuSet> {
        let mut by_core: BTreeMap<u32, CpuSet> = BTreeMap::new();
        for cpu in 0..p.logical_cpus() {
            by_core.entry(p.core_of_cpu[cpu as usize]).or_default().insert(cpu);
        }
        let mut cores: Vec<CpuSet> = by_core.into_values().filter(|core| !core.intersection(self.cpus).is_empty()).collect();
        cores.sort_by_key(|core| std::cmp::Reverse(core.iter().next()));
        cores
    }
}

/// Where the cores of a lease are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Used by the borrower now; those on the way back too, as long as they are not the lender's.
    pub cores: u32,
    /// Still to come: a task of the lender runs on them to its end.
    pub to_come: u32,
    /// On the way back.
    pub returning: u32,
}

/// Waits are counted by so many bounds, each twice the one before: 12.5 µs to 51 ms.
pub const WAIT_BOUNDS: usize = 13;
/// Which of them is [`LONG_WAIT_US`].
const LONG: usize = 2;

/// The bounds that [`Waits::over`] counts by, µs.
pub fn wait_bounds_us() -> [f64; WAIT_BOUNDS] {
    std::array::from_fn(|i| LONG_WAIT_US / f64::from(1u32 << LONG) * f64::from(1u32 << i))
}

/// How long threads that could have run waited for a core, since this was asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// Times that a thread was given a core.
    pub dispatches: u64,
    /// Of those, after more than each of [`wait_bounds_us`]; None where only sums are known.
    pub over: Option<[u64; WAIT_BOUNDS]>,
    /// All waits together, µs.
    pub total_us: f64,
}

impl Waits {
    /// These and more of them. Counts by bounds are known where both have them, or where one has no dispatch.
    #[must_use]
    pub fn and(self, more: &Waits) -> Waits {
        let over = match (self.over, more.over) {
            (Some(a), Some(b)) => Some(std::array::from_fn(|i| a[i] + b[i])),
            (None, b) if self.dispatches == 0 => b,
            (a, None) if more.dispatches == 0 => a,
            _ => None,
        };
        Waits { dispatches: self.dispatches + more.dispatches, over, total_us: self.total_us + more.total_us }
    }

    /// Dispatches after more than [`LONG_WAIT_US`]; None where only sums are known.
    pub fn long(&self) -> Option<u64> {
        self.over.map(|over| over[LONG])
    }
}

/// Why a lender did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LendError {
    #[error("{asked} cores asked for of a lease of {most}. Ask for 0 to {most}.")]
    TooMany { asked: u32, most: u32 },
    /// Everything is back, or is tried to be put back at every tick.
    #[error("the lease of {lender} has ended: {why}. Ask for another one.")]
    Ended { lender: ServiceId, why: String },
    /// What was lent before is lent now.
    #[error("{what}: {cause}. As many cores are lent as before.")]
    Write { what: String, cause: String },
    #[error("{what} cannot be told here: {cause}.")]
    Unknown { what: String, cause: String },
}

/// One lease in use. Adapters: the virtual server's primary VM, and Linux.
///
/// It belongs to a thread of its own, and is never asked for anything that waits for a disk. When it goes, everything is back.
pub trait Lender {
    fn lease(&self) -> &Lease;

    /// Time on its clock, µs.
    fn now_us(&self) -> u64;

    /// Let time pass until `t_us`: a virtual lender computes it, a real one waits for it.
    fn advance_to(&mut self, t_us: u64);

    /// The lender's physical cores, lent ones left out, on which one of its threads runs at this instant.
    ///
    /// # Errors
    /// [`LendError::Ended`]; [`LendError::Unknown`] where threads cannot be seen.
    fn busy(&mut self) -> Result<u32, LendError>;

    /// Of the lender's threads.
    ///
    /// # Errors
    /// As [`Lender::busy`].
    fn waits(&mut self) -> Result<Waits, LendError>;

    /// For how long that thread of the lender has waited for a core that has waited longest, µs; 0 if none waits.
    ///
    /// # Errors
    /// As [`Lender::busy`]; [`LendError::Unknown`] where only waits that are over can be told.
    fn waiting_us(&mut self) -> Result<f64, LendError>;

    /// Where the cores are at this instant. An ended lease has none.
    fn lent(&mut self) -> Lent;

    /// Ask that so many physical cores be lent; the latest request counts. 0 takes all back.
    ///
    /// # Errors
    /// [`LendError::TooMany`] for more than the lease has, [`LendError::Write`] where the kernel refuses; nothing is changed then.
    /// [`LendError::Ended`] once the lease has.
    fn lend(&mut self, cores: u32) -> Result<Lent, LendError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(p: &Platform, cpus: &str) -> Allocation {
        Allocation { cpus: CpuSet::parse(cpus).unwrap(), shared_cpus: CpuSet::empty(), ..Allocation::everything(p) }
    }

    /// Counts by bounds stay known as long as every dispatch is counted so.
    #[test]
    fn waits_add_up() {
        let some = |dispatches, over: Option<u64>| Waits { dispatches, over: over.map(|n| [n; WAIT_BOUNDS]), total_us: 2.0 };
        let both = some(3, Some(1)).and(&some(4, Some(2)));
        assert_eq!((both.dispatches, both.long(), both.total_us), (7, Some(3), 4.0));
        assert_eq!(Waits::default().and(&both), both);
        assert_eq!(both.and(&Waits::default()), both);
        assert_eq!(both.and(&some(1, None)).long(), None);
    }

    /// Each broken rule gives one line; whole cores of the lender alone are lent, all but one of them at most.
    #[test]
    fn a_lease_is_of_whole_cores_that_the_lender_has_alone() {
        // CPU c and c + 4 are one core.
        let p = Platform::regular("t", 4, 2, 0, 0.0);
        let lease = |cpus: &str| Lease { lender: "web".into(), borrower: "batch".into(), cpus: CpuSet::of_kernel(cpus).unwrap() };
        let layout = |web: Allocation| BTreeMap::from([("web".to_string(), web), ("batch".to_string(), holds(&p, "3,7"))]);
        let mine = holds(&p, "0-2,4-6");
        let check = |lease: &Lease, web: Allocation| lease.check(&p, &layout(web));
        assert_eq!(check(&lease("1-2,5-6"), mine.clone()), Ok(()));
        let says = |cpus: &str| check(&lease(cpus), mine.clone()).unwrap_err();
        assert!(says("").contains("without a CPU"));
        assert!(says("3,7").contains("does not hold CPU 3,7 for itself"));
        assert!(says("1-2,6").contains("CPU 1 is a part of the core 1,5"), "{}", says("1-2,6"));
        assert!(says("0-2,4-6").contains("would have no core left"));
        let shared = Allocation { shared_cpus: CpuSet::parse("2,6").unwrap(), ..mine.clone() };
        assert!(check(&lease("2,6"), shared).unwrap_err().contains("does not hold CPU 2,6 for itself"));
        let quota = Allocation { quota_cores: Some(2.0), ..mine.clone() };
        assert!(check(&lease("2,6"), quota).unwrap_err().contains("web holds its cores by a quota"));
        let to = |borrower: &str| Lease { borrower: borrower.into(), ..lease("2,6") };
        assert!(check(&to("web"), mine.clone()).unwrap_err().contains("cannot lend to itself"));
        assert!(check(&to("nobody"), mine).unwrap_err().contains("nobody is not placed"));
    }

    /// Of the whole cores that the lender has alone the lowest stays; without a second one there is no lease, and it is said why.
    #[test]
    fn the_most_that_may_be_lent_leaves_a_core() {
        // CPU c and c + 4 are one core.
        let p = Platform::regular("t", 4, 2, 0, 0.0);
        let most =
            |web: Allocation| Lease::most("web", "batch", &p, &BTreeMap::from([("web".into(), web), ("batch".into(), holds(&p, "3,7"))]));
        let cpus = |web: &str| most(holds(&p, web)).map(|l| l.cpus.to_string());
        assert_eq!(cpus("0-2,4-6"), Ok("1-2,5-6".into()));
        // Of core 2 the lender has one thread only.
        assert_eq!(cpus("0-2,4-5"), Ok("1,5".into()));
        for (web, has) in [("0,4", "one whole core"), ("0-2", "no whole core")] {
            assert_eq!(cpus(web), Err(format!("web has {has} for itself alone, and a lender keeps one. It lends once it has two")));
        }
        let shared = Allocation { shared_cpus: CpuSet::parse("2,6").unwrap(), ..holds(&p, "0-2,4-6") };
        assert_eq!(most(shared).unwrap().cpus.to_string(), "1,5");
        let quota = Allocation { quota_cores: Some(0.5), ..holds(&p, "0-2,4-6") };
        assert!(most(quota).unwrap_err().contains("web holds its cores by a quota"));
        assert!(Lease::most("web", "batch", &p, &BTreeMap::new()).unwrap_err().contains("web is not placed"));
    }

    /// The highest core goes first, with both of its threads.
    #[test]
    fn cores_are_lent_from_the_end() {
        let p = Platform::regular("t", 4, 2, 0, 0.0);
        let lease = Lease { lender: "web".into(), borrower: "batch".into(), cpus: CpuSet::parse("0,2,4,6").unwrap() };
        let cores: Vec<String> = lease.cores(&p).iter().map(ToString::to_string).collect();
        assert_eq!(cores, ["2,6", "0,4"]);
    }
}
