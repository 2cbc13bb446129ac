//! Core use of one primary VM below a millisecond (SPEC.md, section 8; SmartHarvest, EuroSys 2021).
//!
//! Requests arrive in batches, each makes `fanout` tasks, and tasks run to their end, first come first served, on the
//! cores that the VM has at the moment. The harvester asks for a number of cores: cores are taken when idle, or at the end
//! of the task that runs on them, never from a running task; cores that are given back serve the VM after the
//! reassignment delay. No policy here: it reads busy cores as a monitor does (one sample a poll), dispatch waits and
//! latencies, and calls [`CoreUse::request_cores`].
//!
//! Event-driven: cost follows requests and polls, not time. Memory is bounded but for the queue of an overloaded VM (16
//! bytes a batch) and the samples of a window that is never ended. Units: seconds; histograms in nanoseconds.

use crate::profile::{BurstWorkload, PrimaryVm, Reassignment};
use crate::requests::{Arrivals, Batch, ServiceTimes, Time};
use hdrhistogram::Histogram;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use thiserror::Error;

/// Two instants closer than this are one, seconds.
const SAME_INSTANT_S: f64 = 1e-9;
/// Longer times count as this, ns: 1000 s, as in the latency feed.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Significant digits of the histograms.
const DIGITS: u8 = 3;

/// A request for cores that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{asked} cores asked for a primary VM of {cores}. Ask for 1 to {cores}.")]
pub struct CoresError {
    pub asked: u32,
    pub cores: u32,
}

/// Where the VM's cores are; `busy + idle + harvested` is all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// Run a task of the VM.
    pub busy: u32,
    /// Wait for one.
    pub idle: u32,
    /// The harvester's.
    pub harvested: u32,
    /// Of those harvested, on the way back.
    pub returning: u32,
    /// Of those busy, to be taken when the first tasks end.
    pub leaving: u32,
}

impl Cores {
    /// Cores that the VM has or will have once everything asked for has happened.
    pub fn assigned(&self) -> u32 {
        self.busy - self.leaving + self.idle + self.returning
    }
}

/// Core-seconds since the start; `used + idle + harvested` is all cores times the time passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreSeconds {
    pub used: f64,
    pub idle: f64,
    pub harvested: f64,
    /// Of those harvested, while the core was on the way back.
    pub returning: f64,
}

/// A request of which some tasks have begun.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    arrival_s: f64,
    /// Tasks that have not ended.
    left: u32,
}

/// One primary VM.
#[derive(Clone, Debug)]
pub struct CoreUse {
    total: u32,
    fanout: u32,
    return_delay_s: f64,
    poll_s: f64,
    arrivals: Arrivals,
    services: ServiceTimes,
    now_s: f64,
    next_arrival_s: f64,
    cores: Cores,
    /// When each returning core is back, in order.
    back_s: VecDeque<f64>,
    /// End of each running task, and the request it belongs to.
    running: BinaryHeap<Reverse<(Time, usize)>>,
    /// Requests of which no task, or not every task, has begun.
    queue: VecDeque<Batch>,
    /// The first request of the queue, if some of its tasks have begun: where it is, and how many have not.
    head: Option<(usize, u32)>,
    open: Vec<Open>,
    unused: Vec<usize>,
    begun: u64,
    /// When each of the last tasks ended, one per core.
    ended_s: Vec<f64>,
    ended: u64,
    polls: u64,
    next_poll_s: f64,
    samples: Vec<u16>,
    spent: CoreSeconds,
    latencies_ns: Histogram<u64>,
    waits_ns: Histogram<u64>,
}

impl CoreUse {
    /// An empty VM that has all its cores, at time 0.
    ///
    /// # Panics
    /// If the VM has no core or more than 65,535, the request no task, or the polls no distance.
    pub fn new(vm: &PrimaryVm, workload: &BurstWorkload, reassignment: Reassignment, seed: u64) -> Self {
        assert!(vm.cores > 0 && vm.cores <= u32::from(u16::MAX), "a primary VM has 1 to 65,535 cores");
        assert!(workload.fanout > 0, "a request makes at least one task");
        assert!(vm.poll_us > 0.0, "polls need a distance");
        let total = vm.cores as usize;
        let arrivals = Arrivals::new(workload.qps, workload.scv_arrival, seed);
        // Requests with a running task, and one whose last tasks have not begun.
        let most_open = total + 1;
        CoreUse {
            total: vm.cores,
            fanout: workload.fanout,
            return_delay_s: reassignment.return_ms * 1e-3,
            poll_s: vm.poll_us * 1e-6,
            services: ServiceTimes::new(workload.task_us * 1e-6, workload.scv_service, seed),
            now_s: 0.0,
            next_arrival_s: arrivals.next_s(),
            arrivals,
            cores: Cores { idle: vm.cores, ..Cores::default() },
            back_s: VecDeque::with_capacity(total),
            running: BinaryHeap::with_capacity(total),
            queue: VecDeque::with_capacity(256),
            head: None,
            open: vec![Open::default(); most_open],
            unused: (0..most_open).collect(),
            begun: 0,
            ended_s: vec![0.0; total],
            ended: 0,
            polls: 0,
            next_poll_s: 0.0,
            samples: Vec::with_capacity((vm.window_ms * 1e3 / vm.poll_us) as usize + 1),
            spent: CoreSeconds::default(),
            latencies_ns: histogram(),
            waits_ns: histogram(),
        }
    }

    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Core-seconds since the start.
    pub fn spent(&self) -> CoreSeconds {
        self.spent
    }

    /// Busy cores at each poll since [`CoreUse::start_window`].
    pub fn samples(&self) -> &[u16] {
        &self.samples
    }

    /// Most busy cores of the window's samples; 0 without samples.
    pub fn peak(&self) -> u16 {
        self.samples.iter().copied().max().unwrap_or(0)
    }

    /// Mean busy cores of the window's samples; None without samples.
    pub fn mean_busy(&self) -> Option<f64> {
        let sum: u64 = self.samples.iter().map(|x| u64::from(*x)).sum();
        (!self.samples.is_empty()).then(|| sum as f64 / self.samples.len() as f64)
    }

    /// Forget the samples so far.
    pub fn start_window(&mut self) {
        self.samples.clear();
    }

    /// Response times (ns, from arrival to the end of the last task) of the requests answered since
    /// [`CoreUse::reset_latencies`], to three digits.
    pub fn latencies_ns(&self) -> &Histogram<u64> {
        &self.latencies_ns
    }

    /// Dispatch waits (ns) of the tasks begun since [`CoreUse::reset_waits`]: from the time that one of the VM's virtual
    /// CPUs (as many as it has cores of its own) was ready to run the task until it had a core. What the hypervisor's
    /// wait counter shows; time in a queue inside the VM is not in it.
    pub fn waits_ns(&self) -> &Histogram<u64> {
        &self.waits_ns
    }

    pub fn reset_latencies(&mut self) {
        self.latencies_ns.reset();
    }

    pub fn reset_waits(&mut self) {
        self.waits_ns.reset();
    }

    /// Requests that have arrived and are not answered.
    pub fn outstanding(&self) -> u64 {
        let waiting: u64 = self.queue.iter().map(|b| b.requests).sum();
        // The head of the queue may be open already.
        let open = (self.open.len() - self.unused.len()) as u64;
        waiting + open - u64::from(self.head.is_some())
    }

    /// Change the load, from now on; 0 stops it.
    pub fn set_rate_rps(&mut self, rate_rps: f64) {
        self.arrivals.set_rate_rps(rate_rps, self.now_s);
        self.next_arrival_s = self.arrivals.next_s();
    }

    /// Ask that the VM have `k` cores; the latest request counts.
    ///
    /// Fewer: returns under way are called off first (those cores have not moved), then idle cores go at once, then those
    /// whose tasks end first. More: cores that were to go stay, the others are back after the reassignment delay.
    ///
    /// # Errors
    /// If `k` is 0 or more than the VM's size; nothing is changed then.
    pub fn request_cores(&mut self, k: u32) -> Result<(), CoresError> {
        if k == 0 || k > self.total {
            return Err(CoresError { asked: k, cores: self.total });
        }
        let c = &mut self.cores;
        let mut less = c.assigned().saturating_sub(k);
        let called_off = less.min(c.returning);
        c.returning -= called_off;
        self.back_s.truncate(c.returning as usize);
        less -= called_off;
        let taken = less.min(c.idle);
        c.idle -= taken;
        c.harvested += taken;
        c.leaving += less - taken;

        let mut more = k.saturating_sub(c.assigned());
        let stay = more.min(c.leaving);
        c.leaving -= stay;
        more -= stay;
        c.returning += more;
        self.back_s.extend((0..more).map(|_| self.now_s + self.return_delay_s));
        Ok(())
    }

    /// Let time pass until `t_s`. A poll at `t_s` itself belongs to what comes after.
    pub fn step_to(&mut self, t_s: f64) {
        self.pass(t_s, false);
    }

    /// Let time pass until `t_s`, or until the first poll that finds no idle core in the VM; true if one did.
    pub fn step_to_exhaustion(&mut self, t_s: f64) -> bool {
        self.pass(t_s, true)
    }

    fn pass(&mut self, t_s: f64, stop_if_exhausted: bool) -> bool {
        let last_poll_s = t_s - SAME_INSTANT_S;
        loop {
            let end_s = self.running.peek().map_or(f64::INFINITY, |Reverse((at, _))| at.0);
            let back_s = self.back_s.front().copied().unwrap_or(f64::INFINITY);
            let event_s = end_s.min(back_s).min(self.next_arrival_s);
            while self.next_poll_s < event_s.min(last_poll_s) {
                let poll_s = self.next_poll_s;
                self.samples.push(self.cores.busy as u16);
                self.polls += 1;
                self.next_poll_s = self.polls as f64 * self.poll_s;
                if stop_if_exhausted && self.cores.idle == 0 {
                    self.spend_until(poll_s);
                    return true;
                }
            }
            if event_s > t_s {
                self.spend_until(t_s);
                return false;
            }
            self.spend_until(event_s);
            if end_s <= event_s {
                self.end_task();
            } else if back_s <= event_s {
                self.back_s.pop_front();
                self.cores.returning -= 1;
                self.cores.harvested -= 1;
                self.cores.idle += 1;
            } else {
                self.queue.extend(self.arrivals.next());
                self.next_arrival_s = self.arrivals.next_s();
            }
            self.begin_tasks();
        }
    }

    fn spend_until(&mut self, t_s: f64) {
        // A poll may lie behind by a rounding error.
        let h = (t_s - self.now_s).max(0.0);
        self.spent.used += h * f64::from(self.cores.busy);
        self.spent.idle += h * f64::from(self.cores.idle);
        self.spent.harvested += h * f64::from(self.cores.harvested);
        self.spent.returning += h * f64::from(self.cores.returning);
        self.now_s = self.now_s.max(t_s);
    }

    fn end_task(&mut self) {
        let Some(Reverse((_, slot))) = self.running.pop() else { return };
        let c = &mut self.cores;
        c.busy -= 1;
        if c.leaving > 0 {
            c.leaving -= 1;
            c.harvested += 1;
        } else {
            c.idle += 1;
        }
        let ring = self.ended_s.len() as u64;
        self.ended_s[(self.ended % ring) as usize] = self.now_s;
        self.ended += 1;
        let request = &mut self.open[slot];
        request.left -= 1;
        if request.left == 0 {
            self.latencies_ns.saturating_record(nanoseconds(self.now_s - request.arrival_s));
            self.unused.push(slot);
        }
    }

    fn begin_tasks(&mut self) {
        while self.cores.idle > 0 {
            let Some(batch) = self.queue.front_mut() else { return };
            let arrival_s = batch.at_s;
            let (slot, left) = match self.head {
                Some(head) => head,
                None => {
                    let Some(slot) = self.unused.pop() else { unreachable!("more open requests than cores") };
                    self.open[slot] = Open { arrival_s, left: self.fanout };
                    (slot, self.fanout)
                }
            };
            self.head = (left > 1).then_some((slot, left - 1));
            if left == 1 {
                batch.requests -= 1;
                if batch.requests == 0 {
                    self.queue.pop_front();
                }
            }
            // Its virtual CPU was ready when fewer than `total` tasks before it were left: with `busy` of them running now,
            // that was `total - 1 - busy` ends of tasks ago, or at its arrival.
            let ring = self.ended_s.len() as u64;
            let ago = u64::from(self.total - 1 - self.cores.busy);
            let ready_s = if ago < self.ended { arrival_s.max(self.ended_s[((self.ended - 1 - ago) % ring) as usize]) } else { arrival_s };
            self.waits_ns.saturating_record(nanoseconds(self.now_s - ready_s));
            self.running.push(Reverse((Time(self.now_s + self.services.of(self.begun)), slot)));
            self.begun += 1;
            self.cores.idle -= 1;
            self.cores.busy += 1;
        }
    }
}

fn nanoseconds(s: f64) -> u64 {
    (s * 1e9 + 0.5) as u64
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds are valid")
}
