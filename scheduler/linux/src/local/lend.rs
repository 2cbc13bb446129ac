//! Leases of CPUs on this machine ([`surefoot_server::lease`]): granted by the control loop, used by a thread of its own.
//!
//! Cores move by their owner in the kernel where that is asked for and this process may load a scheduler ([`Moves`]): the borrower's list has
//! the CPUs of the lease from its start to its end, and single moves write no file. Else they move by `cpuset.cpus` of the two groups; the
//! service that gets a core is written last. A lease is in the journal before a core moves. Single moves are not: a plan, a `reset` and the
//! safe layout bring everything back anyhow. The keeper looks at what is lent now.
//! A lease ends with a plan that moves the CPUs of one of the two, and with either service. It ends with its [`LocalLender`], and where that
//! was silent for [`MOST_SILENT`]. Where the kernel does not let all of it back, nothing more is lent, and that is tried again at every tick.

use super::control::Control;
use super::limits::Value;
use super::LocalServer;
use crate::cgroup::{Cgroup, Knob, Mounts};
use crate::child::pin;
use crate::journal::Entry;
use crate::owners::{self, Moves};
use crate::procfs::{self, FileWaits};
use crate::root::Root;
use crate::running::{self, Programs, Watched};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use surefoot_server::{Allocation, CpuSet, Lease, LendError, Lender, Lent, ServerError, ServiceId, Waits};

/// A lender that has asked for nothing for so long hangs: 40 windows of SmartHarvest.
pub const MOST_SILENT: Duration = Duration::from_secs(1);

/// Between two looks at a file of each thread, at least: one takes about as long.
pub const LEAST_BETWEEN_FILES: Duration = Duration::from_millis(1);

/// Shorter pauses are spent waiting on the CPU: a sleep takes some 60 µs more than was asked for.
const SPIN: Duration = Duration::from_micros(100);

/// For so long a move waits for the borrower's threads to leave; later ones are seen by [`Lender::lent`].
const MOST_WAITED: Duration = Duration::from_micros(500);

/// Programs that could not be had are asked for again after so long.
const PROGRAMS_AGAIN: Duration = Duration::from_secs(60);

/// One of the two services of a lease.
#[derive(Debug)]
struct Party {
    group: Cgroup,
    /// Its number: one that was made anew under its name is another's.
    identity: Option<u64>,
    /// By the plan in force.
    cpus: CpuSet,
}

#[derive(Debug)]
struct Loan {
    lease: Lease,
    /// In the order in which they are lent.
    cores: Vec<CpuSet>,
    /// How many of them are.
    lent: usize,
    number: u64,
    heard: Instant,
    /// It has ended, for this reason, but not all of it is back.
    ending: Option<String>,
    /// Its CPUs are in both lists, and their owners tell whose they are.
    by_owner: bool,
    /// A list of its services is not as it should be: the kernel refused it.
    stale: bool,
}

impl Loan {
    fn cpus_lent(&self) -> CpuSet {
        self.cores[..self.lent].iter().fold(CpuSet::empty(), |all, core| all.union(*core))
    }
}

/// Leases in force, by lender, and what is lent of each.
#[derive(Debug, Default)]
pub(super) struct Loans {
    of: BTreeMap<ServiceId, Loan>,
    parties: BTreeMap<ServiceId, Party>,
    granted: u64,
    /// Why the last lease of each lender ended.
    ended: BTreeMap<ServiceId, String>,
    /// All leases move by owner, or none does.
    moves: Option<Moves>,
}

/// To be held while a core moves, or while it is compared where cores are. Leases come and go in the control loop alone.
pub(super) type SharedLoans = Arc<Mutex<Loans>>;

/// A thread that panicked in a write leaves books that the next write or look mends.
fn lock(loans: &SharedLoans) -> MutexGuard<'_, Loans> {
    loans.lock().unwrap_or_else(PoisonError::into_inner)
}

/// None while a lender writes: a control loop does not wait for a write of another thread.
pub(super) fn look(loans: &SharedLoans) -> Option<MutexGuard<'_, Loans>> {
    match loans.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Loans {
    /// What the list of CPUs of a service is to hold now; None for one of no lease.
    pub(super) fn list_of(&self, id: &str) -> Option<CpuSet> {
        let held = self.parties.get(id)?.cpus;
        Some(self.of.values().fold(held, |cpus, loan| match id {
            _ if loan.lease.lender == id && !loan.by_owner => cpus.difference(loan.cpus_lent()),
            _ if loan.lease.borrower == id && loan.by_owner => cpus.union(loan.lease.cpus),
            _ if loan.lease.borrower == id => cpus.union(loan.cpus_lent()),
            _ => cpus,
        }))
    }

    /// CPUs that a service may use now, with what is lent; None for one of no lease.
    fn cpus_of(&self, id: &str) -> Option<CpuSet> {
        let held = self.parties.get(id)?.cpus;
        Some(self.of.values().fold(held, |cpus, loan| match id {
            _ if loan.lease.lender == id => cpus.difference(loan.cpus_lent()),
            _ if loan.lease.borrower == id => cpus.union(loan.cpus_lent()),
            _ => cpus,
        }))
    }

    /// Lend so many cores of a lease: the one that has less afterwards gives first. Nothing is changed where the kernel refuses.
    fn move_to(&mut self, lender: &str, lent: usize) -> io::Result<()> {
        let ended = self.moves.as_ref().and_then(Moves::ended).filter(|_| self.of.get(lender).is_some_and(|loan| loan.by_owner));
        if let Some(why) = ended {
            self.fall_back(&why)?;
        }
        let Some(loan) = self.of.get_mut(lender) else { return Ok(()) };
        let (before, stale) = (std::mem::replace(&mut loan.lent, lent), std::mem::replace(&mut loan.stale, false));
        if before == lent && !stale {
            return Ok(());
        }
        let borrower = loan.lease.borrower.clone();
        if loan.by_owner {
            let moved = loan.cores[lent.min(before)..lent.max(before)].iter().fold(CpuSet::empty(), |all, core| all.union(*core));
            match self.move_by_owner(lender, &borrower, moved, lent > before) {
                Ok(()) => return Ok(()),
                Err(e) => return self.fall_back(&e.to_string()),
            }
        }
        let [giver, taker] = if lent > before { [lender, borrower.as_str()] } else { [borrower.as_str(), lender] };
        let moved = self.write(giver).and_then(|()| self.write(taker));
        if moved.is_err() {
            if let Some(loan) = self.of.get_mut(lender) {
                (loan.lent, loan.stale) = (before, stale);
            }
            // What stays otherwise is found by the keeper.
            for id in [taker, giver] {
                let _ = self.write(id);
            }
        }
        moved
    }

    /// What comes back is the lender's when this returns, but for a thread of the borrower that takes longer than [`MOST_WAITED`] to leave.
    fn move_by_owner(&self, lender: &str, borrower: &str, cpus: CpuSet, lends: bool) -> io::Result<()> {
        let Some(moves) = &self.moves else { return Err(io::Error::other("the scheduler has gone")) };
        moves.give(if lends { borrower } else { lender }, cpus)?;
        let end = Instant::now() + MOST_WAITED;
        while !lends && moves.uses(borrower, &cpus) && Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Where the cores of a lease are at this instant.
    fn lent_of(&self, loan: &Loan) -> Lent {
        let (lender, borrower) = (&loan.lease.lender, &loan.lease.borrower);
        let uses = |id: &str, cores: &[CpuSet]| match &self.moves {
            Some(moves) if loan.by_owner => cores.iter().filter(|core| moves.uses(id, core)).count() as u32,
            _ => 0,
        };
        let (to_come, returning) = (uses(lender, &loan.cores[..loan.lent]), uses(borrower, &loan.cores[loan.lent..]));
        Lent { cores: loan.lent as u32 - to_come + returning, to_come, returning }
    }

    /// From now on a lease moves by owner, or an error says why not: then all do by lists.
    fn enter(&mut self, root: &Root, mounts: &Mounts, lease: &Lease) -> Result<(), String> {
        let parties = [(&lease.lender, true), (&lease.borrower, false)];
        if self.moves.is_none() {
            if self.of.len() > 1 {
                return Err("another lease moves by lists already".into());
            }
            let version = self.parties.get(&lease.lender).map(|party| party.group.version).ok_or("the lender has gone")?;
            self.moves = Some(Moves::load(root, version)?);
        }
        let entered = parties.iter().try_for_each(|(id, keeps)| {
            let (Some(moves), Some(party)) = (&mut self.moves, self.parties.get(*id)) else { return Err("a service has gone".into()) };
            moves.enter(root, mounts, id, &party.group, *keeps, party.cpus)
        });
        let entered = entered.and_then(|()| {
            self.of.get_mut(&lease.lender).into_iter().for_each(|loan| loan.by_owner = true);
            self.write(&lease.borrower).map_err(|e| format!("{} gets no longer list of CPUs: {e}", lease.borrower))
        });
        if let Err(why) = &entered {
            if let Err(e) = self.fall_back(why) {
                tracing::warn!("lists of CPUs of {} and {} are not as they should be yet: {e}", lease.lender, lease.borrower);
            }
        }
        entered
    }

    /// Cores move by lists from now on, for this reason. What is lent stays lent.
    fn fall_back(&mut self, why: &str) -> io::Result<()> {
        // It goes at the end, when lists hold again.
        let Some(_moves) = self.moves.take() else { return Ok(()) };
        if self.of.values().any(|loan| loan.by_owner) {
            tracing::warn!("cores are lent by lists of CPUs from now on, some milliseconds each: {why}");
        }
        self.of.values_mut().for_each(|loan| loan.by_owner = false);
        // Borrowers first: it is their lists that were long.
        let ids: Vec<ServiceId> =
            self.of.values().map(|l| &l.lease.borrower).chain(self.of.values().map(|l| &l.lease.lender)).cloned().collect();
        let mut written = Ok(());
        for id in ids {
            // Each is tried, whatever became of the others. What is refused is tried again by the next move, and at the end.
            let done = self.write(&id);
            if done.is_err() {
                let of_it = |l: &&mut Loan| l.lease.borrower == id || l.lease.lender == id;
                self.of.values_mut().filter(of_it).for_each(|l| l.stale = true);
            }
            written = written.and(done);
        }
        written
    }

    /// At every tick: threads that came from elsewhere, and whether the scheduler is in charge.
    fn look_after(&mut self) {
        let Some(moves) = &self.moves else { return };
        let why = moves.ended().map_or_else(|| moves.let_all_in(), Err);
        if let Err(why) = why {
            if let Err(e) = self.fall_back(&why) {
                tracing::warn!("lists of CPUs are not as they should be yet: {e}");
            }
        }
    }

    fn write(&self, id: &str) -> io::Result<()> {
        let (Some(party), Some(cpus)) = (self.parties.get(id), self.list_of(id)) else { return Ok(()) };
        // With its group its CPUs went.
        if party.group.identity() != party.identity {
            return Ok(());
        }
        if cpus.is_empty() {
            // The kernel would take that for all CPUs.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{id} would have no CPU left")));
        }
        party.group.set(Knob::Cpus, &cpus.to_string())
    }

    /// Everything back, and forgotten; None where the kernel does not let it back yet, unless whole lists are about to be set.
    fn end(&mut self, lender: &str, why: &str, lists_follow: bool) -> Option<Lease> {
        let back = self.move_to(lender, 0).and_then(|()| self.shorten(lender));
        let loan = self.of.get_mut(lender)?;
        if let Err(e) = back {
            if loan.ending.is_none() {
                tracing::warn!("CPUs that {lender} lent are not back yet: {e}. It is tried again");
            }
            loan.ending.get_or_insert_with(|| why.into());
            if !lists_follow {
                return None;
            }
        }
        let Loan { lease, ending, .. } = self.of.remove(lender)?;
        self.ended.insert(lender.into(), ending.unwrap_or_else(|| why.into()));
        let parties: BTreeSet<ServiceId> = self.of.values().flat_map(|l| [l.lease.lender.clone(), l.lease.borrower.clone()]).collect();
        let out: Vec<ServiceId> = self.parties.keys().filter(|id| !parties.contains(*id)).cloned().collect();
        for id in out {
            self.moves.iter_mut().for_each(|moves| moves.leave(&id));
            self.parties.remove(&id);
        }
        // The scheduler goes with the last lease.
        self.moves = self.moves.take().filter(|_| !self.of.is_empty());
        Some(lease)
    }

    /// The borrower's list without the CPUs of a lease that is about to end.
    fn shorten(&mut self, lender: &str) -> io::Result<()> {
        let Some(loan) = self.of.get_mut(lender).filter(|loan| loan.by_owner) else { return Ok(()) };
        loan.by_owner = false;
        let borrower = loan.lease.borrower.clone();
        let written = self.write(&borrower);
        if written.is_err() {
            self.of.get_mut(lender).into_iter().for_each(|loan| loan.by_owner = true);
        }
        written
    }
}

/// Until so long after `begun`; short pauses are spent waiting on the CPU.
pub fn wait_until(begun: Instant, t_us: u64) {
    let until = begun + Duration::from_micros(t_us);
    let left = until.saturating_duration_since(Instant::now());
    if left >= SPIN {
        return std::thread::sleep(left);
    }
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// CPUs from which a lender with these CPUs is looked at: of those allowed the ones that no service has, else other services'.
pub(super) fn looks_on(allowed: CpuSet, managed: CpuSet, own: CpuSet) -> CpuSet {
    let [nobodys, others] = [managed.union(own), own].map(|taken| allowed.difference(taken));
    if nobodys.is_empty() {
        others
    } else {
        nobodys
    }
}

impl LocalServer {
    /// Let CPUs of one service be lent to another, until the lease ends. An earlier lease of the same lender ends first.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for a lease that must not be granted: nothing is changed then. [`ServerError::Unavailable`] where it cannot
    /// be journaled; an earlier lease of the lender has ended.
    pub fn grant(&mut self, lease: Lease) -> Result<LocalLender, ServerError> {
        self.settle()?;
        lease.check(&self.platform, &self.placed()).map_err(ServerError::Invalid)?;
        let (lender, borrower) = (self.may_lend(&lease.lender)?, self.may_lend(&lease.borrower)?);
        self.check_roles(&lease)?;
        self.check_bounds(&lease, lender.cpus)?;
        self.end_leases("another one was granted", |l| l.lender == lease.lender);
        if lock(&self.loans).of.contains_key(&lease.lender) {
            return Err(ServerError::Invalid(format!("{}: not all of its last lease is back yet. Ask again", lease.lender)));
        }
        self.journal.append(&Entry::Lease { lease: lease.clone() })?;
        // The kernel would refuse its neighbours what it lends.
        self.end_partition(&lease.lender);
        let sight = self.sight(&lender.group);
        let mut loans = lock(&self.loans);
        loans.granted += 1;
        let number = loans.granted;
        let cores = lease.cores(&self.platform);
        let loan =
            Loan { cores, lease: lease.clone(), lent: 0, number, heard: Instant::now(), ending: None, by_owner: false, stale: false };
        let (group, own) = (lender.group.clone(), lender.cpus);
        loans.parties.entry(lease.lender.clone()).or_insert(lender);
        loans.parties.entry(lease.borrower.clone()).or_insert(borrower);
        loans.of.insert(lease.lender.clone(), loan);
        self.lending = loans.parties.keys().cloned().collect();
        let shares = [&lease.lender, &lease.borrower].into_iter().find(|id| !self.services[*id].allocation.shared_cpus.is_empty());
        let way = match shares {
            Some(id) => Err(format!("{id} shares CPUs with others")),
            None if !self.config.sched_ext => Err("node.toml has no sched_ext = true".into()),
            None => loans.enter(&self.config.root, &self.mounts, &lease),
        };
        drop(loans);
        let said =
            way.map_or_else(|why| format!("lists of CPUs, some milliseconds each: {why}"), |()| "owner in the kernel (sched_ext)".into());
        if self.way_said.as_ref() != Some(&said) {
            tracing::info!("cores are lent by {said}");
            self.way_said = Some(said);
        }
        Ok(LocalLender {
            looks_on: looks_on(procfs::may_run_on(0).unwrap_or_default(), self.platform.managed, own),
            lease,
            number,
            loans: self.loans.clone(),
            root: self.config.root.clone(),
            group,
            core_of_cpu: self.platform.core_of_cpu.clone(),
            granted: Instant::now(),
            waited: FileWaits::default(),
            sight,
        })
    }

    /// Programs in the kernel where there are some, else files of each thread. Which it is, and why, is said when it is another than before.
    fn sight(&mut self, group: &Cgroup) -> Sight {
        // What was refused may be given later, e.g. by an actuator that has started since.
        self.programs.take_if(|(asked, got)| got.is_err() && asked.elapsed() > PROGRAMS_AGAIN);
        let (_, loaded) = self.programs.get_or_insert_with(|| (Instant::now(), running::programs(&self.config.root, group.version)));
        let watched = loaded.as_ref().map_err(Clone::clone).and_then(|p| p.watch(&self.config.root, &self.mounts, group));
        let sight = match watched {
            Ok(watched) => Sight::Programs(watched),
            Err(why) => Sight::Files { why },
        };
        let said = sight.to_string();
        if self.sight_said.as_ref() != Some(&said) {
            tracing::info!("threads of lenders are seen by {said}");
            self.sight_said = Some(said);
        }
        sight
    }

    /// The largest lease that may be granted now, and the cores that its lender holds, shared ones too.
    ///
    /// # Errors
    /// One line: why there is none.
    pub fn could_lend(&self, lender: &str, borrower: &str) -> Result<(Lease, u32), String> {
        let placed = self.placed();
        let lease = Lease::most(lender, borrower, &self.platform, &placed)?;
        let all = Lease { cpus: placed[lender].cpus, ..lease.clone() };
        Ok((lease, all.cores(&self.platform).len() as u32))
    }

    /// A service whose CPUs can be set at any time.
    fn may_lend(&self, id: &str) -> Result<Party, ServerError> {
        let Control::Files(group) = &self.services[id].control else {
            return Err(ServerError::Invalid(format!(
                "{id}: a container engine sets its CPUs, which takes too long to lend. Give this user its cgroup files"
            )));
        };
        if self.limits.keeps(id, Value::Knob(Knob::Cpus)) {
            return Err(ServerError::Invalid(format!(
                "{id}: the kernel refused other CPUs for it. See what bounds it (surefootd top), and ask again"
            )));
        }
        // What the keeper holds it to: another look at the bounds might say otherwise.
        let cpus = self.keeper.cpus_of(id).unwrap_or_else(|| self.cpus_to_set(id, self.services[id].allocation.cpus));
        Ok(Party { group: group.clone(), identity: self.services[id].identity, cpus })
    }

    /// What groups above the two services leave them.
    fn check_bounds(&self, lease: &Lease, lenders: CpuSet) -> Result<(), ServerError> {
        let Lease { lender, borrower, cpus } = lease;
        let with_them = self.cpus_to_set(borrower, self.services[borrower].allocation.cpus.union(*cpus));
        let short = [(lender, lenders), (borrower, with_them)].into_iter().find(|(_, has)| !cpus.is_subset(has));
        if let Some((id, has)) = short {
            let lacks = cpus.difference(has);
            return Err(ServerError::Invalid(format!("{id} cannot be on CPU {lacks}: a group above it bounds it. Lend others")));
        }
        if lenders == *cpus {
            return Err(ServerError::Invalid(format!(
                "{lender} would have no CPU left: a group above it bounds it to {lenders}. Lend fewer"
            )));
        }
        Ok(())
    }

    /// A service that lends what it borrowed would have to get it back first.
    fn check_roles(&self, lease: &Lease) -> Result<(), ServerError> {
        let loans = lock(&self.loans);
        let others = || loans.of.values().map(|l| &l.lease).filter(|l| l.lender != lease.lender);
        if others().any(|l| l.borrower == lease.lender || l.lender == lease.borrower) {
            let (lender, borrower) = (&lease.lender, &lease.borrower);
            return Err(ServerError::Invalid(format!(
                "{lender} to {borrower}: a service lends or borrows, not both. End the other lease first"
            )));
        }
        Ok(())
    }

    /// Leases in force, each with the CPUs that are lent now.
    pub fn leases(&self) -> Vec<(Lease, CpuSet)> {
        lock(&self.loans).of.values().map(|l| (l.lease.clone(), l.cpus_lent())).collect()
    }

    /// Whether a service is in a lease, as lender or borrower. A thread that lends is not waited for.
    pub fn is_in_a_lease(&self, id: &str) -> bool {
        self.lending.contains(id)
    }

    /// Everything of these leases back, and no more of it lent. Where the kernel refuses that, it is tried again at every tick.
    pub fn end_leases(&mut self, why: &str, these: impl Fn(&Lease) -> bool) {
        self.end_these(why, false, these);
    }

    fn end_these(&mut self, why: &str, lists_follow: bool, these: impl Fn(&Lease) -> bool) {
        if self.lending.is_empty() {
            return;
        }
        let mut loans = lock(&self.loans);
        let lenders: Vec<ServiceId> = loans.of.values().map(|l| &l.lease).filter(|l| these(l)).map(|l| l.lender.clone()).collect();
        let ended: Vec<Lease> = lenders.iter().filter_map(|id| loans.end(id, why, lists_follow)).collect();
        self.lending = loans.parties.keys().cloned().collect();
        drop(loans);
        for Lease { lender, borrower, .. } in ended {
            tracing::info!("{lender} lends no CPUs to {borrower} any more: {why}");
            self.journal_the_end(lender);
        }
    }

    /// Of services whose whole lists are about to be set, or whose groups have gone.
    pub(super) fn end_leases_of(&mut self, ids: &BTreeSet<ServiceId>, why: &str) {
        self.end_these(why, true, |l| ids.contains(&l.lender) || ids.contains(&l.borrower));
    }

    /// A plan is about to change what leases rest on.
    pub(super) fn end_leases_before(&mut self, new: &BTreeMap<ServiceId, Allocation>) {
        let place = |a: &Allocation| (a.cpus, a.shared_cpus, a.quota_cores);
        let moved = |(id, a): &(&ServiceId, &Allocation)| place(&self.services[*id].allocation) != place(a);
        let moved: BTreeSet<ServiceId> = new.iter().filter(moved).map(|(id, _)| id.clone()).collect();
        self.end_leases_of(&moved, "a plan changes the CPUs of one of them");
    }

    /// A lender that does not ask does not watch either; and what could not be put back yet. To be called at every tick.
    pub(super) fn end_silent_leases(&mut self, now: Instant) {
        if self.lending.is_empty() {
            return;
        }
        // One that writes now is heard of.
        let Some(mut loans) = look(&self.loans) else { return };
        loans.look_after();
        let silent = |l: &&Loan| l.ending.is_some() || now.saturating_duration_since(l.heard) > MOST_SILENT;
        let lenders: BTreeSet<ServiceId> = loans.of.values().filter(silent).map(|l| l.lease.lender.clone()).collect();
        drop(loans);
        if !lenders.is_empty() {
            self.end_leases(&format!("its lender was silent for more than {} s", MOST_SILENT.as_secs()), |l| lenders.contains(&l.lender));
        }
    }

    /// Threads that a process which died had let under its scheduler, of services that have their own CPUs again.
    pub(super) fn let_out_left<'a>(&self, of: impl Iterator<Item = (&'a ServiceId, &'a Control)>) {
        for (id, control) in of {
            let left = self.leases_left.values().any(|l| l.lender == *id || l.borrower == *id);
            if let Control::Files(group) = control {
                if left {
                    owners::let_out(group);
                }
            }
        }
    }

    /// Leases of a process that died: with the values of a plan, or those of before, all of theirs is back.
    pub(super) fn forget_left_leases(&mut self) -> Vec<Lease> {
        self.let_out_left(self.services.iter().map(|(id, s)| (id, &s.control)));
        let left: Vec<Lease> = std::mem::take(&mut self.leases_left).into_values().collect();
        for Lease { lender, borrower, cpus } in &left {
            tracing::info!("{lender} lent CPUs of {cpus} to {borrower} when the run before this one ended: all of them are back");
            self.journal_the_end(lender.clone());
        }
        left
    }

    fn journal_the_end(&mut self, lender: ServiceId) {
        if let Err(e) = self.journal.append_or_owe(&Entry::LeaseEnd { lender: lender.clone() }) {
            tracing::warn!("{e}. The next reset says once more that the lease of {lender} has ended");
        }
    }
}

/// How a lender sees its threads.
#[derive(Debug)]
enum Sight {
    Programs(Watched),
    Files { why: String },
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sight::Programs(_) => f.write_str("programs in the kernel"),
            Sight::Files { why } => write!(f, "a file of each thread, which takes milliseconds: {why}"),
        }
    }
}

/// When the programs were asked for, and they or why there are none; None before the first lease.
pub(super) type Loaded = Option<(Instant, Result<Programs, String>)>;

/// A lease of this machine's CPUs in use. Where it goes out of use everything is back.
///
/// A move takes one call of the kernel where cores move by owner, else two writes of `cpuset.cpus`, some milliseconds together. Which thread
/// runs where is read from memory that programs in the kernel write, without a system call or an allocation. Where there are no such programs
/// it is read from a file of each thread.
#[derive(Debug)]
pub struct LocalLender {
    /// See [`LocalLender::keep_off`].
    looks_on: CpuSet,
    lease: Lease,
    number: u64,
    loans: SharedLoans,
    root: Root,
    group: Cgroup,
    core_of_cpu: Vec<u32>,
    granted: Instant,
    waited: FileWaits,
    sight: Sight,
}

impl LocalLender {
    /// Why its threads are read from files; None where programs in the kernel tell.
    pub fn reads_files(&self) -> Option<&str> {
        match &self.sight {
            Sight::Programs(_) => None,
            Sight::Files { why } => Some(why),
        }
    }

    /// Keep this thread off the lender's CPUs, for good: a look interrupts what runs where it is taken, and that CPU would seem idle. To be
    /// called by the thread that looks.
    ///
    /// # Errors
    /// Why it looks from a CPU of the lender now and then; it may lend a core too many then.
    pub fn keep_off(&self) -> io::Result<()> {
        if self.looks_on.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "this process may run on no others"));
        }
        pin(&self.looks_on)
    }

    /// The books, while the lease is in force.
    fn books(&self) -> Result<MutexGuard<'_, Loans>, LendError> {
        let mut loans = lock(&self.loans);
        match loans.of.get_mut(&self.lease.lender).filter(|l| l.number == self.number) {
            Some(Loan { ending: Some(why), .. }) => Err(LendError::Ended { lender: self.lease.lender.clone(), why: why.clone() }),
            Some(loan) => {
                loan.heard = Instant::now();
                Ok(loans)
            }
            None => {
                let why = loans.ended.get(&self.lease.lender).cloned().unwrap_or_else(|| "another one was granted".into());
                Err(LendError::Ended { lender: self.lease.lender.clone(), why })
            }
        }
    }

    fn unknown(&self, what: &str, file: &str) -> LendError {
        LendError::Unknown { what: format!("{what} of {}", self.lease.lender), cause: format!("no {file} of its threads can be read") }
    }
}

impl Lender for LocalLender {
    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn now_us(&self) -> u64 {
        self.granted.elapsed().as_micros() as u64
    }

    fn advance_to(&mut self, t_us: u64) {
        wait_until(self.granted, t_us);
    }

    fn busy(&mut self) -> Result<u32, LendError> {
        let own = self.books()?.cpus_of(&self.lease.lender).unwrap_or_default();
        let core = |cpu: u32| self.core_of_cpu.get(cpu as usize).copied();
        if let Sight::Programs(watched) = &self.sight {
            let mut cores = CpuSet::empty();
            own.iter().filter(|cpu| watched.runs_on(*cpu)).filter_map(core).for_each(|core| cores.insert(core));
            return Ok(cores.len());
        }
        let tids = self.group.tids();
        let seen: Vec<Option<u32>> = tids.iter().filter_map(|tid| procfs::runs_on(&self.root, *tid)).collect();
        if seen.is_empty() && !tids.is_empty() {
            return Err(self.unknown("what runs", "/proc/TID/stat"));
        }
        let cores: BTreeSet<u32> = seen.into_iter().flatten().filter(|cpu| own.contains(*cpu)).filter_map(core).collect();
        Ok(cores.len() as u32)
    }

    fn waits(&mut self) -> Result<Waits, LendError> {
        drop(self.books()?);
        if let Sight::Programs(watched) = &mut self.sight {
            return Ok(watched.waits());
        }
        let seen = self.waited.look(&self.root, &self.group.tids());
        seen.ok_or_else(|| self.unknown("waits", "/proc/TID/schedstat"))
    }

    fn waiting_us(&mut self) -> Result<f64, LendError> {
        drop(self.books()?);
        if let Sight::Programs(watched) = &self.sight {
            return Ok(watched.waiting_us());
        }
        let cause = "no file says how long a thread has waited that waits now".into();
        Err(LendError::Unknown { what: format!("the longest wait of {}", self.lease.lender), cause })
    }

    fn lent(&mut self) -> Lent {
        let loans = lock(&self.loans);
        let loan = loans.of.get(&self.lease.lender).filter(|l| l.number == self.number);
        loan.map_or(Lent::default(), |loan| loans.lent_of(loan))
    }

    fn lend(&mut self, cores: u32) -> Result<Lent, LendError> {
        let mut loans = self.books()?;
        let most = loans.of.get(&self.lease.lender).map_or(0, |l| l.cores.len() as u32);
        if cores > most {
            return Err(LendError::TooMany { asked: cores, most });
        }
        let moved = loans.move_to(&self.lease.lender, cores as usize);
        moved.map_err(|e| LendError::Write {
            what: format!("CPUs of {} and {}", self.lease.lender, self.lease.borrower),
            cause: e.to_string(),
        })?;
        Ok(loans.of.get(&self.lease.lender).map_or(Lent::default(), |loan| loans.lent_of(loan)))
    }
}

impl Drop for LocalLender {
    fn drop(&mut self) {
        // The journal hears of it at the next tick: it is silent from now on.
        let number = self.number;
        let mut loans = lock(&self.loans);
        if loans.of.get(&self.lease.lender).is_some_and(|l| l.number == number) {
            if let Err(e) = loans.move_to(&self.lease.lender, 0) {
                tracing::warn!("CPUs that {} lent are not back yet: {e}", self.lease.lender);
            }
        }
    }
}
