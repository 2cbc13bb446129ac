//! RMIDs: handing them out, keeping freed ones back while their lines are still in the cache, and what their counters show.
//!
//! Allocation and the waiting list ("limbo") are the kernel's. Counter values are a plain model: a running task fills its
//! group's ways and moves bytes at a fixed rate, what does not run decays.

use crate::errno::{Errno, Result};
use crate::hardware::{Fault, Kernel, Monitoring};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often the kernel looks at RMIDs that wait, ms.
const LIMBO_CHECK_MS: u64 = 1000;
/// Time in which a cache turns over but for 1/e, ms; and the traffic of a running task. As in the recordings.
const TURNOVER_MS: f64 = 195.0;
const TOTAL_BYTES_PER_MS: f64 = 2_000_000.0;
const LOCAL_BYTES_PER_MS: f64 = 1_750_000.0;

/// Which counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Occupancy,
    TotalBytes,
    LocalBytes,
}

impl Event {
    pub const ALL: [Self; 3] = [Self::Occupancy, Self::TotalBytes, Self::LocalBytes];

    pub fn name(self) -> &'static str {
        match self {
            Self::Occupancy => "llc_occupancy",
            Self::TotalBytes => "mbm_total_bytes",
            Self::LocalBytes => "mbm_local_bytes",
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Counter {
    occupancy_bytes: f64,
    total_bytes: f64,
    local_bytes: f64,
    at_ms: u64,
}

/// All RMIDs of a machine. They outlive a mount.
#[derive(Clone, Debug)]
pub struct Rmids {
    kernel: Kernel,
    hw: Monitoring,
    threshold_bytes: u32,
    free: VecDeque<u32>,
    /// Waiting RMIDs, with the domains (by index) where they may have lines.
    limbo: BTreeMap<u32, BTreeSet<usize>>,
    /// Next check of each domain that has waiting RMIDs, ms.
    check_ms: BTreeMap<usize, u64>,
    counters: BTreeMap<(usize, u32), Counter>,
    now_ms: u64,
}

impl Rmids {
    pub fn new(kernel: Kernel, hw: &Monitoring) -> Self {
        // RMID 0 is the root group's for ever.
        Self {
            kernel,
            threshold_bytes: hw.threshold_bytes,
            free: (1..hw.rmids).collect(),
            hw: hw.clone(),
            limbo: BTreeMap::new(),
            check_ms: BTreeMap::new(),
            counters: BTreeMap::new(),
            now_ms: 0,
        }
    }

    /// The longest free RMID.
    ///
    /// # Errors
    /// ENOSPC where all are in use, EBUSY where one waits.
    pub fn alloc(&mut self) -> Result<u32> {
        match self.free.pop_front() {
            Some(rmid) => Ok(rmid),
            None if self.limbo.is_empty() => Err(Errno::ENOSPC),
            None => Err(Errno::EBUSY),
        }
    }

    /// Give an RMID back. `here` is the domain of the CPU that does it, `domains` are those online.
    pub fn release(&mut self, rmid: u32, here: Option<usize>, domains: &[usize]) {
        let mut busy = BTreeSet::new();
        for d in domains {
            // 6.1 looks at its own cache at once, where a failing counter counts as clean; 6.12 leaves all to the worker.
            let clean = self.kernel == Kernel::V6_1 && Some(*d) == here && self.occupied(*d, rmid).is_none_or(|b| b <= self.threshold());
            if !clean {
                self.check_ms.entry(*d).or_insert(self.now_ms + LIMBO_CHECK_MS);
                busy.insert(*d);
            }
        }
        if busy.is_empty() {
            self.free.push_back(rmid);
        } else {
            self.limbo.insert(rmid, busy);
        }
    }

    fn threshold(&self) -> f64 {
        f64::from(self.threshold_bytes)
    }

    /// None where the counter fails.
    fn occupied(&self, domain: usize, rmid: u32) -> Option<f64> {
        (!self.hw.faults.contains_key(&rmid)).then(|| self.counter(domain, rmid).occupancy_bytes)
    }

    fn counter(&self, domain: usize, rmid: u32) -> Counter {
        let mut c = self.counters.get(&(domain, rmid)).cloned().unwrap_or_default();
        c.occupancy_bytes *= (-(self.now_ms.saturating_sub(c.at_ms) as f64) / TURNOVER_MS).exp();
        c.at_ms = self.now_ms;
        c
    }

    /// Time passes; waiting RMIDs whose lines are gone become free.
    pub fn advance(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while let Some((domain, at)) = self.check_ms.iter().map(|(d, t)| (*d, *t)).min_by_key(|(d, t)| (*t, *d)).filter(|(_, t)| *t <= end)
        {
            self.now_ms = self.now_ms.max(at);
            self.check(domain, false);
        }
        self.now_ms = end;
    }

    /// The kernel's worker for one domain, which comes back while an RMID waits.
    fn check(&mut self, domain: usize, force: bool) {
        let waiting: Vec<u32> = self.limbo.iter().filter(|(_, d)| d.contains(&domain)).map(|(r, _)| *r).collect();
        for rmid in waiting {
            if !force && self.occupied(domain, rmid).is_none_or(|b| b >= self.threshold()) {
                continue;
            }
            let Some(busy) = self.limbo.get_mut(&rmid) else { continue };
            busy.remove(&domain);
            if busy.is_empty() {
                self.limbo.remove(&rmid);
                self.free.push_back(rmid);
            }
        }
        if self.limbo.values().any(|d| d.contains(&domain)) {
            self.check_ms.insert(domain, self.now_ms + LIMBO_CHECK_MS);
        } else {
            self.check_ms.remove(&domain);
        }
    }

    /// A domain goes offline: nothing waits for it any more, and its counts are lost.
    pub fn drop_domain(&mut self, domain: usize) {
        self.check(domain, true);
        self.counters.retain(|(d, _), _| *d != domain);
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// RMIDs wait for their lines to leave the cache.
    pub fn any_waiting(&self) -> bool {
        !self.limbo.is_empty()
    }

    /// A new owner starts its bandwidth counters at 0.
    pub fn restart(&mut self, rmid: u32) {
        for ((_, r), c) in &mut self.counters {
            if *r == rmid {
                (c.total_bytes, c.local_bytes) = (0.0, 0.0);
            }
        }
    }

    /// A task of this RMID ran for `ms` in ways that hold `room_bytes`.
    pub fn ran(&mut self, domain: usize, rmid: u32, ms: u64, room_bytes: u64) {
        let mut c = self.counter(domain, rmid);
        let left = (-(ms as f64) / TURNOVER_MS).exp();
        c.occupancy_bytes = c.occupancy_bytes * left + room_bytes as f64 * (1.0 - left);
        c.total_bytes += TOTAL_BYTES_PER_MS * ms as f64;
        c.local_bytes += LOCAL_BYTES_PER_MS * ms as f64;
        self.counters.insert((domain, rmid), c);
    }

    /// A counter, bytes, in the hardware's steps.
    ///
    /// # Errors
    /// The fault of a counter that fails.
    pub fn read(&self, domain: usize, rmid: u32, event: Event) -> std::result::Result<u64, Fault> {
        if let Some(fault) = self.hw.faults.get(&rmid) {
            return Err(*fault);
        }
        let c = self.counter(domain, rmid);
        let bytes = match event {
            Event::Occupancy => c.occupancy_bytes,
            Event::TotalBytes => c.total_bytes,
            Event::LocalBytes => c.local_bytes,
        };
        Ok(bytes as u64 / u64::from(self.hw.scale_bytes) * u64::from(self.hw.scale_bytes))
    }

    /// `max_threshold_occupancy`, bytes.
    pub fn threshold_bytes(&self) -> u32 {
        self.threshold_bytes
    }

    /// # Errors
    /// EINVAL over the limit.
    pub fn set_threshold(&mut self, bytes: u32) -> Result<()> {
        if bytes > self.hw.threshold_limit_bytes {
            return Err(Errno::EINVAL);
        }
        self.threshold_bytes = bytes / self.hw.scale_bytes * self.hw.scale_bytes;
        Ok(())
    }
}
