//! Primary VMs behind the port of leases ([`surefoot_server::lease`]): [`CoreUse`] with a clock.

use crate::core_use::CoreUse;
use crate::profile::{BurstWorkload, PrimaryVm, Reassignment};
use surefoot_server::lease::wait_bounds_us;
use surefoot_server::{Lease, LendError, Lender, Lent, Waits};

/// The lender of a lease, as one or several primary VMs that share a group of cores. A core is a CPU: SMT is off, as in the paper.
#[derive(Clone, Debug)]
pub struct VirtualLender {
    lease: Lease,
    primary: CoreUse,
    /// Of all VMs.
    cores: u32,
    now_us: u64,
    ended: Option<String>,
}

impl VirtualLender {
    /// One VM at time 0, with all its cores.
    ///
    /// # Panics
    /// As [`VirtualLender::group`].
    pub fn new(lease: Lease, vm: &PrimaryVm, workload: &BurstWorkload, reassignment: Reassignment, seed: u64) -> Self {
        Self::group(lease, &[(vm, workload)], reassignment, seed)
    }

    /// Several VMs at time 0, with all their cores.
    ///
    /// # Panics
    /// As [`CoreUse::group`], and if the lease leaves the VMs no core.
    pub fn group(lease: Lease, vms: &[(&PrimaryVm, &BurstWorkload)], reassignment: Reassignment, seed: u64) -> Self {
        let cores = vms.iter().map(|(vm, _)| vm.cores).sum();
        assert!(lease.cpus.len() < cores, "a lease of {} cores of primary VMs of {cores}", lease.cpus.len());
        VirtualLender { lease, primary: CoreUse::group(vms, reassignment, seed), cores, now_us: 0, ended: None }
    }

    /// What an experiment may know and a policy may not: latencies, core-seconds.
    pub fn truth(&self) -> &CoreUse {
        &self.primary
    }

    /// The load of VM `vm`, from now on.
    pub fn set_rate_rps(&mut self, vm: usize, rate_rps: f64) {
        self.primary.set_rate_rps(vm, rate_rps);
    }

    /// Forget the latencies so far: an experiment measures from now on.
    pub fn reset_latencies(&mut self) {
        self.primary.reset_latencies();
    }

    /// As the slow loop does it: everything on its way back, and nothing lent any more.
    pub fn end(&mut self, why: &str) {
        if self.ended.is_none() {
            // All its cores are always a number that it can have.
            let _ = self.primary.request_cores(self.cores);
            self.ended = Some(why.into());
        }
    }

    fn in_force(&self) -> Result<(), LendError> {
        match &self.ended {
            None => Ok(()),
            Some(why) => Err(LendError::Ended { lender: self.lease.lender.clone(), why: why.clone() }),
        }
    }
}

impl Lender for VirtualLender {
    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn advance_to(&mut self, t_us: u64) {
        self.now_us = self.now_us.max(t_us);
        self.primary.step_to(self.now_us as f64 * 1e-6);
        // A harvester reads for itself: the plant's own samples would grow without end.
        self.primary.start_window();
    }

    fn busy(&mut self) -> Result<u32, LendError> {
        self.in_force()?;
        Ok(self.primary.cores().busy)
    }

    fn waits(&mut self) -> Result<Waits, LendError> {
        self.in_force()?;
        let waits = self.primary.waits_ns();
        let over = wait_bounds_us().map(|us| waits.len() - waits.count_between(0, (us * 1e3) as u64));
        let sum = Waits { dispatches: waits.len(), over: Some(over), total_us: waits.mean() * 1e-3 * waits.len() as f64 };
        self.primary.reset_waits();
        Ok(sum)
    }

    fn waiting_us(&mut self) -> Result<f64, LendError> {
        self.in_force()?;
        Ok(self.primary.longest_wait_s() * 1e6)
    }

    fn lent(&mut self) -> Lent {
        let now = self.primary.cores();
        Lent { cores: now.lent(), to_come: now.leaving + now.arriving, returning: now.returning }
    }

    fn lend(&mut self, cores: u32) -> Result<Lent, LendError> {
        self.in_force()?;
        let most = self.lease.cpus.len();
        if cores > most {
            return Err(LendError::TooMany { asked: cores, most });
        }
        // The VMs keep at least one, so this cannot be refused.
        self.primary.request_cores(self.cores - cores).map_err(|e| LendError::Write { what: "cores".into(), cause: e.to_string() })?;
        Ok(self.lent())
    }
}
