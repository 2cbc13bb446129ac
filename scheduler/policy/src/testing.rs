//! A tiny plant for the tests: services whose latency follows from cores, ways and a queue, in closed form.
//!
//! Service time S = base (1 + miss), miss = (lacking ways) / (wanted ways); rho = demand (1 + miss) / cores; a queue of work
//! grows with rho - 1 and is waited for; p99 = 3 S + S / (1 - rho) (while rho < 1) + queue.

use surefoot_server::validate::validate;
use surefoot_server::window::{merge, SILENT_MS};
use surefoot_server::{Allocation, Features, FeedState, Kind, Latency, MemoryView, Observation, Plan, Platform, ServiceView, Verdict};

pub const TICK_MS: u64 = 100;

/// An LC service on nothing in particular, for tests that only look at counts.
pub fn lc(id: &str) -> ServiceView {
    ServiceView {
        id: id.into(),
        service: id.into(),
        kind: Kind::Lc { qos_target_ms: 10.0 },
        threads: 8,
        allocation: Allocation::everything(&Platform::regular("t", 10, 1, 11, 2.0)),
        placed: false,
        features: Features::default(),
        feed: FeedState::Idle,
        interval: None,
        window: None,
        instr_per_s: None,
        memory: MemoryView::default(),
    }
}

pub fn be(id: &str) -> ServiceView {
    ServiceView { kind: Kind::Be, feed: FeedState::NotNeeded, ..lc(id) }
}

pub fn observation(services: Vec<ServiceView>) -> Observation {
    Observation { t_ms: 0, services, ..Observation::default() }
}

/// Percentiles of an interval with this p99, in the proportions of an exponential law above a floor.
pub fn latency(p99_ms: f64) -> Latency {
    Latency {
        count: 500,
        mean_ms: p99_ms * 0.4,
        p50_ms: p99_ms * 0.33,
        p95_ms: p99_ms * 0.75,
        p99_ms,
        p99_low_ms: None,
        p99_high_ms: None,
        achieved_rps: 5000.0,
        errors: 0,
        verdict: Verdict::Valid,
    }
}

#[derive(Clone, Debug)]
pub struct Tenant {
    pub id: String,
    pub kind: Kind,
    /// Busy cores at full cache.
    pub demand: f64,
    pub wanted_ways: f64,
    pub base_ms: f64,
    pub silent: bool,
    queue_ms: f64,
    last: Vec<Latency>,
    allocation: Allocation,
    placed: bool,
}

impl Tenant {
    /// Stationary p99 on so many cores and ways; infinite when overloaded.
    pub fn p99_ms(&self, cores: f64, ways: f64, has_ways: bool) -> f64 {
        let miss = if has_ways { ((self.wanted_ways - ways) / self.wanted_ways).max(0.0) } else { 0.0 };
        let s = self.base_ms * (1.0 + miss);
        let rho = self.demand * (1.0 + miss) / cores.max(1e-9);
        if rho >= 1.0 {
            f64::INFINITY
        } else {
            3.0 * s + s / (1.0 - rho)
        }
    }

    pub fn qos_on(&self, cores: f64, ways: f64, has_ways: bool) -> f64 {
        match self.kind {
            Kind::Lc { qos_target_ms } => qos_target_ms / self.p99_ms(cores, ways, has_ways),
            Kind::Be => 1.0,
        }
    }
}

#[derive(Clone)]
pub struct Plant {
    pub platform: Platform,
    pub tenants: Vec<Tenant>,
    pub t_ms: u64,
    /// False: what was not served is forgotten, and latency follows from the allocation alone.
    pub queues: bool,
}

impl Plant {
    pub fn new(platform: &Platform) -> Self {
        Plant { platform: platform.clone(), tenants: vec![], t_ms: 0, queues: true }
    }

    /// The same services on the same platform, to look things up in.
    pub fn twin(&self) -> Self {
        Plant { tenants: self.tenants.clone(), ..Plant::new(&self.platform) }
    }

    pub fn add(&mut self, id: &str, kind: Kind, demand: f64) {
        self.tenants.push(Tenant {
            id: id.into(),
            kind,
            demand,
            wanted_ways: 4.0,
            base_ms: 1.0,
            silent: false,
            queue_ms: 0.0,
            last: vec![],
            allocation: Allocation::everything(&self.platform),
            placed: false,
        });
    }

    /// A service with this demand in cores (at full cache) and this target; alone it has p99 = 4 ms and more.
    pub fn lc(mut self, id: &str, demand: f64, qos_target_ms: f64) -> Self {
        self.add(id, Kind::Lc { qos_target_ms }, demand);
        self
    }

    pub fn be(mut self, id: &str) -> Self {
        self.add(id, Kind::Be, 0.0);
        self
    }

    pub fn tenant(&mut self, id: &str) -> &mut Tenant {
        self.tenants.iter_mut().find(|t| t.id == id).unwrap()
    }

    pub fn cores(&self, id: &str) -> f64 {
        self.tenants.iter().find(|t| t.id == id).unwrap().allocation.cores()
    }

    pub fn ways(&self, id: &str) -> f64 {
        self.tenants.iter().find(|t| t.id == id).unwrap().allocation.n_ways()
    }

    pub fn all_met(&self) -> bool {
        self.observe().lc().all(|s| s.qos_met() == Some(true))
    }

    /// Effective cores and ways: what is shared counts by the number of its users.
    fn effective(&self, t: &Tenant) -> (f64, f64) {
        let users = |f: &dyn Fn(&Allocation) -> bool| self.tenants.iter().filter(|o| f(&o.allocation)).count().max(1) as f64;
        let cpus: f64 = t.allocation.cpus.iter().map(|c| 1.0 / users(&|a: &Allocation| a.cpus.contains(c))).sum();
        let cores = t.allocation.quota_cores.unwrap_or(cpus);
        let mask = t.allocation.ways.first().copied().unwrap_or(0);
        let ways: f64 = (0..32)
            .filter(|b| mask >> b & 1 == 1)
            .map(|b| 1.0 / users(&|a: &Allocation| a.ways.first().is_some_and(|m| m >> b & 1 == 1)))
            .sum();
        (cores, ways)
    }

    pub fn tick(&mut self) {
        let has_ways = self.platform.ways() > 0;
        let h = TICK_MS as f64;
        for i in 0..self.tenants.len() {
            let (cores, ways) = self.effective(&self.tenants[i]);
            let t = &mut self.tenants[i];
            let Kind::Lc { .. } = t.kind else { continue };
            let miss = if has_ways { ((t.wanted_ways - ways) / t.wanted_ways).max(0.0) } else { 0.0 };
            let rho = t.demand * (1.0 + miss) / cores;
            t.queue_ms = if self.queues { (t.queue_ms + (rho - 1.0) * h).clamp(0.0, 60_000.0) } else { 0.0 };
            let s = t.base_ms * (1.0 + miss);
            let p99 = 3.0 * s + s / (1.0 - rho.min(0.98)) + t.queue_ms;
            t.last.push(latency(p99));
            if t.last.len() > 10 {
                t.last.remove(0);
            }
        }
        self.t_ms += TICK_MS;
    }

    pub fn observe(&self) -> Observation {
        let services = self
            .tenants
            .iter()
            .map(|t| {
                let known = !t.silent && !t.last.is_empty();
                let (cores, ways) = self.effective(t);
                let busy = if t.kind == Kind::Be { cores } else { t.demand.min(cores) };
                ServiceView {
                    id: t.id.clone(),
                    service: t.id.clone(),
                    kind: t.kind,
                    threads: 8,
                    allocation: t.allocation.clone(),
                    placed: t.placed,
                    features: Features {
                        ipc: Some(1.0),
                        cpu_usage_cores: Some(busy),
                        alloc_cores: Some(t.allocation.cores()),
                        alloc_ways: Some(ways),
                        ..Features::default()
                    },
                    feed: match (t.kind, t.silent) {
                        (Kind::Be, _) => FeedState::NotNeeded,
                        (_, true) => FeedState::Unknown { since_ms: self.t_ms.saturating_sub(SILENT_MS), heard: false },
                        (_, false) => FeedState::heard(t.last.last()),
                    },
                    interval: t.last.last().copied().filter(|_| known),
                    window: if known { merge(&t.last, TICK_MS as f64) } else { None },
                    instr_per_s: (t.kind != Kind::Be).then_some(1e9 * busy),
                    memory: MemoryView::default(),
                }
            })
            .collect();
        Observation { t_ms: self.t_ms, services, ..Observation::default() }
    }

    /// As a server does: refuse a plan that breaks a rule (here: fail the test).
    pub fn apply(&mut self, plan: &Plan) {
        for t in &mut self.tenants {
            if let Some(a) = plan.wants(&t.id, &t.allocation) {
                t.placed = t.placed || plan.places(&t.id).unwrap();
                t.allocation = a;
            }
        }
        let placed = self.tenants.iter().filter(|t| t.placed);
        validate(&self.platform, &placed.map(|t| (t.id.clone(), t.allocation.clone())).collect()).unwrap();
    }

    /// Run a policy; returns the time at which all targets were met and then stayed met for 3 s, from the start of the run.
    pub fn run(&mut self, policy: &mut dyn crate::Policy, seconds: u64) -> Option<u64> {
        let start = self.t_ms;
        let mut since = None;
        let mut converged = None;
        for _ in 0..seconds * 1000 / TICK_MS {
            self.tick();
            let plan = policy.step(self.t_ms, &self.observe());
            self.apply(&plan);
            if self.all_met() {
                let from = *since.get_or_insert(self.t_ms);
                if self.t_ms - from >= 3000 {
                    converged.get_or_insert(from - start);
                }
            } else {
                since = None;
            }
        }
        converged
    }
}
