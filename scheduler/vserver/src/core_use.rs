//! Core use of primary VMs below a millisecond (SmartHarvest, EuroSys 2021).
//!
//! Several primary VMs share one group of cores, as many as their own sizes add up to. No VM runs on more cores at a time
//! than its size. Requests come singly and in bursts that last ([`BurstWorkload`]), and each makes `fanout` tasks.
//! A VM's threads run them, either from one queue or each from a queue of its own. A thread that is ready waits for a core
//! in order of readiness, over all VMs. It costs `wake_us` if it slept, and `cold_us` on a core with another VM's data.
//!
//! The harvester asks for a number of cores for the group. Cores are taken when idle, or at the end of the task that runs
//! on them, never from a running task. Cores that are given back serve the group after the reassignment delay. No policy
//! here: a policy reads busy cores as a monitor does (one sample a poll), and dispatch waits, and calls
//! [`CoreUse::request_cores`].
//!
//! What holds at any instant: `busy + idle + harvested` is all cores; no VM is busy on more cores than its size; no core
//! of the group is idle while a thread is ready.
//!
//! Event-driven: cost follows requests and polls, not time. Memory is bounded but for the queue of an overloaded VM (24
//! bytes a request) and the samples of a window that is never ended. Units: seconds; histograms in nanoseconds.

mod batch;
mod traffic;

pub use batch::BatchSide;

use crate::math::Draws;
use crate::profile::{BurstWorkload, PrimaryVm, Reassignment};
use crate::requests::{Batch, ServiceTimes, Time};
use hdrhistogram::Histogram;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use thiserror::Error;
use traffic::Traffic;

/// Two instants closer than this are one, seconds.
const SAME_INSTANT_S: f64 = 1e-9;
/// Longer times count as this, ns: 1000 s, as in the latency feed.
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Significant digits of the histograms.
const DIGITS: u8 = 3;
/// Requests that a queue holds without new memory.
const USUAL_QUEUE: usize = 1024;

/// Independent streams of random numbers of one seed; those of requests and bursts are 1 to 6.
const THREADS: u64 = 7;
const DISPATCHES: u64 = 8;
const RETURNS: u64 = 9;
const TAKES: u64 = 10;

/// A request for cores that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{asked} cores asked for primary VMs of {cores}. Ask for 1 to {cores}.")]
pub struct CoresError {
    pub asked: u32,
    pub cores: u32,
}

/// Where the group's cores are; `busy + idle + harvested` is all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// Run a task of a primary VM.
    pub busy: u32,
    /// Wait for one.
    pub idle: u32,
    /// The harvester's.
    pub harvested: u32,
    /// Of those harvested, on the way back. The harvester uses them meanwhile.
    pub returning: u32,
    /// Of those harvested, taken so lately that the harvester cannot use them.
    pub arriving: u32,
    /// Of those busy, to be taken when the first tasks end.
    pub leaving: u32,
}

impl Cores {
    /// Cores that the group has or will have once everything asked for has happened.
    pub fn assigned(&self) -> u32 {
        self.busy - self.leaving + self.idle + self.returning
    }

    /// Cores that the harvester uses.
    pub fn lent(&self) -> u32 {
        self.harvested - self.arriving
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
    /// Of those harvested, while the harvester could use the core.
    pub lent: f64,
}

/// A request of which some tasks have begun.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    arrival_s: f64,
    /// Tasks that have not ended.
    left: u32,
}

/// A task in the hands of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    service_s: f64,
    /// Its request.
    slot: usize,
}

/// A request that waits for the one thread that may serve it.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    arrival_s: f64,
    service_s: f64,
}

/// A thread of a VM, on a virtual CPU of its own.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// What it runs, or will run once it has a core.
    task: Task,
    /// Of a workload with one queue a thread.
    queue: VecDeque<Pinned>,
    /// When it was last given a core.
    since_s: f64,
}

/// A thread that waits for a core.
#[derive(Clone, Copy, Debug)]
struct Ready {
    vm: usize,
    thread: usize,
    at_s: f64,
    /// It slept before.
    woken: bool,
}

/// A primary VM of the group.
#[derive(Clone, Debug)]
struct Vm {
    fanout: u32,
    pinned: bool,
    wake_s: f64,
    traffic: Traffic,
    next_arrival_s: f64,
    services: ServiceTimes,
    threads: Vec<Thread>,
    asleep: Vec<usize>,
    /// Requests of which no task, or not every task, has a thread.
    queue: VecDeque<Batch>,
    /// The first request of the queue, if some of its tasks have a thread: where it is, and how many have none.
    head: Option<(usize, u32)>,
    open: Vec<Open>,
    unused: Vec<usize>,
    /// Requests that wait for their thread.
    behind: u64,
    /// Tasks that were given to a thread.
    tasks: u64,
    /// Which thread a request waits for.
    owners: Draws,
    busy: u32,
    used_s: f64,
    latencies_ns: Histogram<u64>,
}

/// The primary VMs of a server and the cores that they share.
#[derive(Clone, Debug)]
pub struct CoreUse {
    total: u32,
    vms: Vec<Vm>,
    returns: Delays,
    takes: Delays,
    dispatch_s: f64,
    dispatch_draws: Draws,
    dispatches: u64,
    quantum_s: f64,
    cold_s: f64,
    poll_s: f64,
    now_s: f64,
    cores: Cores,
    /// Idle cores by the VM that ran on them last; the last entry: those that no VM ran on since they came.
    idle_of: Vec<u32>,
    /// When each returning core is back, in order.
    back_s: VecDeque<f64>,
    /// When the harvester can use each arriving core, in order.
    usable_s: VecDeque<f64>,
    /// End of each running task: VM and thread.
    running: BinaryHeap<Reverse<(Time, usize, usize)>>,
    ready: VecDeque<Ready>,
    polls: u64,
    next_poll_s: f64,
    samples: Vec<u16>,
    spent: CoreSeconds,
    /// Seconds with so many cores in use by the harvester.
    lent_s: Vec<f64>,
    taken: u64,
    waits_ns: Histogram<u64>,
}

impl CoreUse {
    /// One empty VM that has all its cores, at time 0.
    ///
    /// # Panics
    /// As [`CoreUse::group`].
    pub fn new(vm: &PrimaryVm, workload: &BurstWorkload, reassignment: Reassignment, seed: u64) -> Self {
        Self::group(&[(vm, workload)], reassignment, seed)
    }

    /// Empty VMs that have all their cores, at time 0. Polls, dispatch, quantum and caches are those of the first VM's
    /// entry: they are the server's. VM 0 has the seed's own requests, each other one those of a seed made from it.
    ///
    /// # Panics
    /// Without VMs; if a VM has no core, or all have more than 65,535; if requests have no task or polls no distance.
    pub fn group(vms: &[(&PrimaryVm, &BurstWorkload)], reassignment: Reassignment, seed: u64) -> Self {
        let (server, _) = vms.first().expect("a group has a VM");
        let total: u32 = vms.iter().map(|(vm, _)| vm.cores).sum();
        assert!(total <= u32::from(u16::MAX) && vms.iter().all(|(vm, _)| vm.cores > 0), "VMs have 1 to 65,535 cores");
        assert!(server.poll_us > 0.0, "polls need a distance");
        let most = total as usize;
        let mut idle_of = vec![0; vms.len() + 1];
        for (idle, (vm, _)) in idle_of.iter_mut().zip(vms) {
            *idle = vm.cores;
        }
        let own_seed = |i: usize| if i == 0 { seed } else { crate::math::mix64(&[seed, i as u64]) };
        CoreUse {
            total,
            vms: vms.iter().enumerate().map(|(i, (vm, w))| Vm::new(vm, w, own_seed(i))).collect(),
            returns: Delays::new(reassignment.return_least_ms, reassignment.return_ms, Draws::new(&[seed, RETURNS])),
            takes: Delays::new(reassignment.take_least_ms, reassignment.take_ms, Draws::new(&[seed, TAKES])),
            dispatch_s: server.dispatch_us * 1e-6,
            dispatch_draws: Draws::new(&[seed, DISPATCHES]),
            dispatches: 0,
            quantum_s: server.quantum_ms * 1e-3,
            cold_s: server.cold_us * 1e-6,
            poll_s: server.poll_us * 1e-6,
            now_s: 0.0,
            cores: Cores { idle: total, ..Cores::default() },
            idle_of,
            back_s: VecDeque::with_capacity(most),
            usable_s: VecDeque::with_capacity(most),
            running: BinaryHeap::with_capacity(most),
            ready: VecDeque::with_capacity(most),
            polls: 0,
            next_poll_s: 0.0,
            samples: Vec::with_capacity((server.window_ms * 1e3 / server.poll_us) as usize + 1),
            spent: CoreSeconds::default(),
            lent_s: vec![0.0; most + 1],
            taken: 0,
            waits_ns: histogram(),
        }
    }

    pub fn now_s(&self) -> f64 {
        self.now_s
    }

    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// Cores on which VM `vm` (in the order of [`CoreUse::group`]) runs.
    pub fn busy_of(&self, vm: usize) -> u32 {
        self.vms[vm].busy
    }

    /// Core-seconds since the start.
    pub fn spent(&self) -> CoreSeconds {
        self.spent
    }

    /// Core-seconds that VM `vm` used since the start.
    pub fn used_of(&self, vm: usize) -> f64 {
        self.vms[vm].used_s
    }

    /// Seconds since the start with 0, 1, ... cores in use by the harvester.
    pub fn lent_s(&self) -> &[f64] {
        &self.lent_s
    }

    /// Cores taken since the start, each time one was. As many have come back, but for those harvested now.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// For how long the thread has waited for a core that has waited longest, seconds; 0 if none waits.
    pub fn longest_wait_s(&self) -> f64 {
        self.ready.front().map_or(0.0, |r| (self.now_s - r.at_s).max(0.0))
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

    /// Response times (ns, from arrival to the end of the last task) of VM `vm`'s requests that were answered since
    /// [`CoreUse::reset_latencies`], to three digits.
    pub fn latencies_ns(&self, vm: usize) -> &Histogram<u64> {
        &self.vms[vm].latencies_ns
    }

    /// Waits (ns) of the dispatches since [`CoreUse::reset_waits`], over all VMs: from the time that a virtual CPU was
    /// ready until it ran on a core. What the hypervisor's wait counter shows. Time in a queue inside the VM is not in
    /// it, and a thread that goes on with its next task is no dispatch.
    pub fn waits_ns(&self) -> &Histogram<u64> {
        &self.waits_ns
    }

    pub fn reset_latencies(&mut self) {
        for vm in &mut self.vms {
            vm.latencies_ns.reset();
        }
    }

    pub fn reset_waits(&mut self) {
        self.waits_ns.reset();
    }

    /// Requests of VM `vm` that have arrived and are not answered.
    pub fn outstanding(&self, vm: usize) -> u64 {
        let vm = &self.vms[vm];
        let waiting: u64 = vm.queue.iter().map(|b| b.requests).sum();
        // The head of the queue may be open already.
        let open = (vm.open.len() - vm.unused.len()) as u64;
        waiting + vm.behind + open - u64::from(vm.head.is_some())
    }

    /// Tasks of VM `vm` that were given to a thread since the start.
    pub fn tasks(&self, vm: usize) -> u64 {
        self.vms[vm].tasks
    }

    /// Change the load of VM `vm`, from now on; 0 stops it once the bursts that go on are over.
    pub fn set_rate_rps(&mut self, vm: usize, rate_rps: f64) {
        let vm = &mut self.vms[vm];
        vm.traffic.set_rate_rps(rate_rps, self.now_s);
        vm.next_arrival_s = vm.traffic.next_s();
    }

    /// Ask that the group have `k` cores; the latest request counts.
    ///
    /// Fewer: returns under way are called off first (those cores have not moved), then idle cores go at once, then those
    /// whose tasks end first. More: cores that were to go stay, the others are back after the reassignment delay. Cores that
    /// the harvester uses come back before those that it cannot use yet.
    ///
    /// # Errors
    /// If `k` is 0 or more than the group's size; nothing is changed then.
    pub fn request_cores(&mut self, k: u32) -> Result<(), CoresError> {
        if k == 0 || k > self.total {
            return Err(CoresError { asked: k, cores: self.total });
        }
        let mut less = self.cores.assigned().saturating_sub(k);
        let called_off = less.min(self.cores.returning);
        self.cores.returning -= called_off;
        // Those that would be back last.
        self.back_s.truncate(self.cores.returning as usize);
        less -= called_off;
        let idle = less.min(self.cores.idle);
        for _ in 0..idle {
            self.take_idle();
        }
        self.cores.leaving += less - idle;

        let mut more = k.saturating_sub(self.cores.assigned());
        let stay = more.min(self.cores.leaving);
        self.cores.leaving -= stay;
        more -= stay;
        for _ in 0..more {
            insert(&mut self.back_s, self.now_s + self.returns.next_s());
        }
        self.cores.returning += more;
        Ok(())
    }

    /// Give an idle core to the harvester: first one whose caches hold no VM's data, then of the VM with most idle ones.
    fn take_idle(&mut self) {
        let cold = self.idle_of.len() - 1;
        let from = if self.idle_of[cold] > 0 { cold } else { most_of(&self.idle_of) };
        self.idle_of[from] -= 1;
        self.cores.idle -= 1;
        self.take();
    }

    /// A core becomes the harvester's.
    fn take(&mut self) {
        self.cores.harvested += 1;
        self.taken += 1;
        let delay_s = self.takes.next_s();
        if delay_s > 0.0 {
            self.cores.arriving += 1;
            insert(&mut self.usable_s, self.now_s + delay_s);
        }
    }

    /// Let time pass until `t_s`. A poll at `t_s` itself belongs to what comes after.
    pub fn step_to(&mut self, t_s: f64) {
        self.pass(t_s, false);
    }

    /// Let time pass until `t_s`, or until the first poll that finds no idle core in the group; true if one did.
    pub fn step_to_exhaustion(&mut self, t_s: f64) -> bool {
        self.pass(t_s, true)
    }

    fn pass(&mut self, t_s: f64, stop_if_exhausted: bool) -> bool {
        let last_poll_s = t_s - SAME_INSTANT_S;
        loop {
            let end_s = self.running.peek().map_or(f64::INFINITY, |Reverse((at, _, _))| at.0);
            let back_s = self.back_s.front().copied().unwrap_or(f64::INFINITY);
            let (mut arrival_s, mut arrives) = (f64::INFINITY, 0);
            for (i, vm) in self.vms.iter().enumerate() {
                if vm.next_arrival_s < arrival_s {
                    (arrival_s, arrives) = (vm.next_arrival_s, i);
                }
            }
            let usable_s = self.usable_s.front().copied().unwrap_or(f64::INFINITY);
            let event_s = end_s.min(back_s).min(arrival_s).min(usable_s);
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
                // With no other left, it comes back before the harvester had it.
                if self.cores.arriving > self.cores.harvested {
                    self.cores.arriving -= 1;
                    self.usable_s.pop_back();
                }
                self.cores.idle += 1;
                *self.idle_of.last_mut().expect("an entry for cold cores") += 1;
            } else if usable_s <= event_s {
                self.usable_s.pop_front();
                self.cores.arriving -= 1;
            } else {
                self.arrive(arrives);
            }
            self.dispatch();
        }
    }

    fn spend_until(&mut self, t_s: f64) {
        // A poll may lie behind by a rounding error.
        let h = (t_s - self.now_s).max(0.0);
        self.spent.used += h * f64::from(self.cores.busy);
        self.spent.idle += h * f64::from(self.cores.idle);
        self.spent.harvested += h * f64::from(self.cores.harvested);
        self.spent.returning += h * f64::from(self.cores.returning);
        self.spent.lent += h * f64::from(self.cores.lent());
        self.lent_s[self.cores.lent() as usize] += h;
        for vm in &mut self.vms {
            vm.used_s += h * f64::from(vm.busy);
        }
        self.now_s = self.now_s.max(t_s);
    }

    /// The next requests of VM `i` come.
    fn arrive(&mut self, i: usize) {
        let vm = &mut self.vms[i];
        let Some(batch) = vm.traffic.next() else { return };
        vm.next_arrival_s = vm.traffic.next_s();
        if vm.pinned {
            for _ in 0..batch.requests {
                let thread = (vm.owners.uniform(vm.tasks) * vm.threads.len() as f64) as usize;
                let request = Pinned { arrival_s: batch.at_s, service_s: vm.services.of(vm.tasks) };
                vm.tasks += 1;
                vm.behind += 1;
                vm.threads[thread].queue.push_back(request);
                if let Some(place) = vm.asleep.iter().position(|t| *t == thread) {
                    vm.asleep.swap_remove(place);
                    vm.next_of(thread);
                    self.ready.push_back(Ready { vm: i, thread, at_s: self.now_s, woken: true });
                }
            }
            return;
        }
        vm.queue.push_back(batch);
        while let Some(task) = (!vm.asleep.is_empty()).then(|| vm.next_task()).flatten() {
            let thread = vm.asleep.pop().expect("a thread sleeps");
            vm.threads[thread].task = task;
            self.ready.push_back(Ready { vm: i, thread, at_s: self.now_s, woken: true });
        }
    }

    /// The first task to end ends: its thread goes on, waits for a core, or sleeps.
    fn end_task(&mut self) {
        let Some(Reverse((_, i, t))) = self.running.pop() else { return };
        let now_s = self.now_s;
        let vm = &mut self.vms[i];
        vm.finish(t, now_s);
        let goes_on = if vm.pinned { vm.next_of(t) } else { vm.next_task().map(|task| vm.threads[t].task = task).is_some() };
        // A worker of a common queue lets others run after each task; the one thread of a connection after its quantum.
        let yields = !self.ready.is_empty() && (!vm.pinned || now_s - vm.threads[t].since_s >= self.quantum_s);
        if goes_on && self.cores.leaving == 0 && !yields {
            let end_s = now_s + vm.threads[t].task.service_s;
            self.running.push(Reverse((Time(end_s), i, t)));
            return;
        }
        if goes_on {
            self.ready.push_back(Ready { vm: i, thread: t, at_s: now_s, woken: false });
        } else {
            vm.asleep.push(t);
        }
        vm.busy -= 1;
        self.cores.busy -= 1;
        if self.cores.leaving > 0 {
            self.cores.leaving -= 1;
            self.take();
        } else {
            self.cores.idle += 1;
            self.idle_of[i] += 1;
        }
    }

    /// Idle cores run what is ready, in order of readiness.
    fn dispatch(&mut self) {
        while self.cores.idle > 0 {
            let Some(Ready { vm: i, thread, at_s, woken }) = self.ready.pop_front() else { return };
            let cold = self.idle_of.len() - 1;
            let from = if self.idle_of[i] > 0 {
                i
            } else if self.idle_of[cold] > 0 {
                cold
            } else {
                most_of(&self.idle_of)
            };
            self.idle_of[from] -= 1;
            self.cores.idle -= 1;
            self.cores.busy += 1;
            let delay_s = if self.dispatch_s > 0.0 { -self.dispatch_s * self.dispatch_draws.uniform(self.dispatches).ln() } else { 0.0 };
            self.dispatches += 1;
            self.waits_ns.saturating_record(nanoseconds(self.now_s - at_s + delay_s));
            let vm = &mut self.vms[i];
            vm.busy += 1;
            vm.threads[thread].since_s = self.now_s;
            let extra_s = delay_s + if woken { vm.wake_s } else { 0.0 } + if from == i { 0.0 } else { self.cold_s };
            let end_s = self.now_s + extra_s + vm.threads[thread].task.service_s;
            self.running.push(Reverse((Time(end_s), i, thread)));
        }
    }
}

impl Vm {
    fn new(vm: &PrimaryVm, w: &BurstWorkload, seed: u64) -> Self {
        assert!(w.fanout > 0, "a request makes at least one task");
        assert!(!w.pinned || w.fanout == 1, "a request of one thread has one task");
        let threads = w.threads.map_or(vm.cores, |t| t.min(vm.cores)) as usize;
        let traffic = Traffic::new(w, seed);
        // Requests with a running task, and one whose last tasks have no thread.
        let most_open = threads + 1;
        let queue = if w.pinned { USUAL_QUEUE } else { 0 };
        Vm {
            fanout: w.fanout,
            pinned: w.pinned,
            wake_s: w.wake_us * 1e-6,
            next_arrival_s: traffic.next_s(),
            traffic,
            services: ServiceTimes::new(w.task_us * 1e-6, w.scv_service, seed),
            threads: (0..threads).map(|_| Thread { queue: VecDeque::with_capacity(queue), ..Thread::default() }).collect(),
            asleep: (0..threads).rev().collect(),
            queue: VecDeque::with_capacity(if w.pinned { 0 } else { USUAL_QUEUE }),
            head: None,
            open: vec![Open::default(); most_open],
            unused: (0..most_open).collect(),
            behind: 0,
            tasks: 0,
            owners: Draws::new(&[seed, THREADS]),
            busy: 0,
            used_s: 0.0,
            latencies_ns: histogram(),
        }
    }

    fn open_slot(&mut self, arrival_s: f64, tasks: u32) -> usize {
        let Some(slot) = self.unused.pop() else { unreachable!("more open requests than threads") };
        self.open[slot] = Open { arrival_s, left: tasks };
        slot
    }

    /// The next task of the common queue.
    fn next_task(&mut self) -> Option<Task> {
        let arrival_s = self.queue.front()?.at_s;
        let (slot, left) = match self.head {
            Some(head) => head,
            None => (self.open_slot(arrival_s, self.fanout), self.fanout),
        };
        self.head = (left > 1).then_some((slot, left - 1));
        if left == 1 {
            let batch = self.queue.front_mut()?;
            batch.requests -= 1;
            if batch.requests == 0 {
                self.queue.pop_front();
            }
        }
        let task = Task { service_s: self.services.of(self.tasks), slot };
        self.tasks += 1;
        Some(task)
    }

    /// Thread `t` turns to the next request of its own queue; false if there is none.
    fn next_of(&mut self, t: usize) -> bool {
        let Some(request) = self.threads[t].queue.pop_front() else { return false };
        self.behind -= 1;
        let slot = self.open_slot(request.arrival_s, 1);
        self.threads[t].task = Task { service_s: request.service_s, slot };
        true
    }

    /// The task of thread `t` has ended.
    fn finish(&mut self, t: usize, now_s: f64) {
        let slot = self.threads[t].task.slot;
        let request = &mut self.open[slot];
        request.left -= 1;
        if request.left == 0 {
            self.latencies_ns.saturating_record(nanoseconds(now_s - request.arrival_s));
            self.unused.push(slot);
        }
    }
}

/// Delays of cores that move, one after the other: even between two bounds.
#[derive(Clone, Debug)]
struct Delays {
    least_s: f64,
    spread_s: f64,
    draws: Draws,
    drawn: u64,
}

impl Delays {
    fn new(least_ms: f64, most_ms: f64, draws: Draws) -> Self {
        Delays { least_s: least_ms * 1e-3, spread_s: (most_ms - least_ms) * 1e-3, draws, drawn: 0 }
    }

    fn next_s(&mut self) -> f64 {
        self.drawn += 1;
        self.least_s + if self.spread_s > 0.0 { self.draws.uniform(self.drawn) * self.spread_s } else { 0.0 }
    }
}

/// Keep `times_s` in order.
fn insert(times_s: &mut VecDeque<f64>, at_s: f64) {
    let place = times_s.partition_point(|s| *s <= at_s);
    times_s.insert(place, at_s);
}

/// Index of the largest; the first of equal ones.
fn most_of(of: &[u32]) -> usize {
    let mut best = 0;
    for (i, x) in of.iter().enumerate() {
        if *x > of[best] {
            best = i;
        }
    }
    best
}

fn nanoseconds(s: f64) -> u64 {
    (s * 1e9 + 0.5) as u64
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("constant bounds are valid")
}
