//! The laws of waiting against request-by-request simulation: in equilibrium, on the way to it, and the seeded plant in
//! ticks. Seeds and runs are such that the sampling error of a row is well inside its tolerance.

use super::lab::{in_parallel, Lab};
use super::{Fact, Kind};
use surefoot_server::CpuSet;
use surefoot_vserver::math::{upper_z, QUANTILES};
use surefoot_vserver::queue::{lognormal_factors, wait_law, Compose, Moments, Part, Station, ABOVE};
use surefoot_vserver::requests::{quantiles, Arrivals, Fcfs, RequestModel, ServiceTimes};
use surefoot_vserver::{Plant, Solver, Tenant};

const SOURCE: &str = "request-level simulation";

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut out: Vec<Fact> = EQUILIBRIA.iter().map(|x| x.fact(lab)).collect();
    out.extend(TRANSIENTS.iter().map(|x| x.fact(lab)));
    out.extend(PLANTS.iter().map(|x| x.fact(lab)));
    out
}

/// p50, p95 and p99 of the response time that the model computes, seconds.
fn model(at: &RequestModel, from: Moments, t_s: f64) -> [f64; 3] {
    let st = Station::new(at.rate_rps, at.service_s, at.servers, at.scv_service + at.scv_arrival, f64::INFINITY);
    let (to, law, _) = st.advance(from, t_s);
    let factors = if at.scv_service == 1.0 { QUANTILES.map(|q| -(1.0 - q).ln()) } else { lognormal_factors(at.scv_service) };
    let mut sum = Compose::default();
    sum.add(&wait_law(to, law, ABOVE));
    sum.add(&Part { mean: at.service_s, q: factors.map(|f| at.service_s * f) });
    sum.total().q
}

fn errors(got: [f64; 3], want: [f64; 3]) -> [f64; 3] {
    std::array::from_fn(|i| got[i] / want[i] - 1.0)
}

fn per_cent(e: [f64; 3]) -> String {
    e.map(|x| format!("{:+.0} %", 100.0 * x)).join(" / ")
}

/// G/G/k in the long run, service of 1 ms.
struct Equilibrium {
    servers: u32,
    rho: f64,
    scv_service: f64,
    scv_arrival: f64,
}

const fn g_g(servers: u32, rho: f64, scv_service: f64, scv_arrival: f64) -> Equilibrium {
    Equilibrium { servers, rho, scv_service, scv_arrival }
}

const EQUILIBRIA: [Equilibrium; 7] = [
    g_g(1, 0.8, 1.0, 1.0),
    g_g(6, 0.6, 0.5, 1.0),
    g_g(6, 0.9, 0.15, 1.0),
    g_g(6, 0.9, 0.5, 1.0),
    g_g(12, 0.8, 1.5, 1.0),
    g_g(12, 0.95, 0.35, 1.0),
    g_g(24, 0.9, 0.3, 2.0),
];

impl Equilibrium {
    fn fact(&self, lab: &Lab) -> Fact {
        const RUNS: u64 = 8;
        const REQUESTS: usize = 300_000;
        let (k, s) = (self.servers, 1e-3);
        let at = RequestModel::new(self.rho * f64::from(k) / s, s, k, self.scv_service, self.scv_arrival);
        let runs = in_parallel(RUNS, |run| {
            // The first fifth is warm-up.
            let mut s: Vec<f64> = at.run(lab.run_seed(run)).take(REQUESTS).skip(REQUESTS / 5).map(|r| r.response_s).collect();
            quantiles(&mut s, QUANTILES).expect("requests")
        });
        let mean = |i: usize| runs.iter().map(|r| r[i]).sum::<f64>() / RUNS as f64;
        let e = errors(model(&at, Moments::default(), 1e7), std::array::from_fn(mean));
        Fact::new(
            Kind::Check,
            SOURCE,
            format!("G/G/{k} rho={} scv service {} arrival {}: p50/p95/p99 error", self.rho, self.scv_service, self.scv_arrival),
            "p50 within 25 %, p95 and p99 within 15 %",
            per_cent(e),
            e[0].abs() < 0.25 && e[1].abs().max(e[2].abs()) < 0.15,
        )
    }
}

/// A station some time after it started empty or with a backlog.
struct Transient {
    name: &'static str,
    at: RequestModel,
    t_s: f64,
    tolerance: f64,
    /// All requests of one run wait behind the same work: the number of runs decides the error.
    runs: u64,
}

const fn transient(name: &'static str, rate_rps: f64, start_work_s: f64, t_s: f64, tolerance: f64, runs: u64) -> Transient {
    let at = RequestModel { rate_rps, service_s: 2e-3, servers: 6, scv_service: 0.3, scv_arrival: 1.0, fanout: 1, start_work_s };
    Transient { name, at, t_s, tolerance, runs }
}

const TRANSIENTS: [Transient; 7] = [
    transient("overload 1.05, 20 s from empty", 3150.0, 0.0, 20.0, 0.10, 200),
    transient("overload 1.3, 5 s", 3900.0, 0.0, 5.0, 0.10, 60),
    transient("critical 1.0, 10 s", 3000.0, 0.0, 10.0, 0.15, 800),
    transient("draining at 0.8, 3 s after 1 s of backlog", 2400.0, 1.0, 3.0, 0.10, 400),
    transient("end of the drain (5.0 s)", 2400.0, 1.0, 5.0, 0.15, 300),
    transient("draining at 0.95 from 0.2 s, 3 s", 2850.0, 0.2, 3.0, 0.15, 12_000),
    Transient {
        name: "120000 RPS, overload 1.2",
        at: RequestModel {
            rate_rps: 120_000.0,
            service_s: 1e-4,
            servers: 10,
            scv_service: 0.5,
            scv_arrival: 1.0,
            fanout: 1,
            start_work_s: 0.0,
        },
        t_s: 1.0,
        tolerance: 0.10,
        runs: 20,
    },
];

impl Transient {
    /// Responses to the requests that arrive within 0.05 s of `t_s`, over all runs, seconds.
    ///
    /// Runs differ mostly in how much work happened to arrive. The law of that is known (compound Poisson: normal with a
    /// little skew), so runs are weighted to follow it: post-stratification with some ten runs a stratum.
    fn simulated(&self, lab: &Lab) -> [f64; 3] {
        let (from_s, to_s) = (self.t_s - 0.05, self.t_s + 0.05);
        let runs = in_parallel(self.runs, |run| {
            let (mut work_s, mut seen) = (0.0, vec![]);
            for r in self.at.run(lab.run_seed(run)).take_while(|r| r.arrival_s < to_s) {
                if r.arrival_s < self.t_s {
                    work_s += r.response_s - r.wait_s;
                }
                if r.arrival_s > from_s {
                    seen.push(r.response_s);
                }
            }
            (work_s, seen)
        });
        let strata = (self.runs / 10).max(1);
        let (requests, scv) = (self.at.rate_rps * self.t_s, self.at.scv_service);
        let (mean_s, sd_s) = (requests * self.at.service_s, self.at.service_s * (requests * (1.0 + scv)).sqrt());
        // Third moment of a lognormal law: mean^3 (1 + scv)^3.
        let skew = ((1.0 + scv).powi(3) / requests).sqrt();
        let edge_s = |z: f64| mean_s + sd_s * (z + (z * z - 1.0) * skew / 6.0);
        let edges_s: Vec<f64> = (1..strata).rev().map(|i| edge_s(upper_z(i as f64 / strata as f64))).collect();
        let stratum = |work_s: f64| edges_s.partition_point(|edge| *edge < work_s);
        let mut size = vec![0.0; edges_s.len() + 1];
        runs.iter().for_each(|r| size[stratum(r.0)] += 1.0);
        let weighted = runs.iter().flat_map(|(work_s, seen)| {
            let weight = 1.0 / size[stratum(*work_s)];
            seen.iter().map(move |s| (*s, weight))
        });
        weighted_quantiles(weighted.collect())
    }

    fn fact(&self, lab: &Lab) -> Fact {
        let from = Moments { m: self.at.start_work_s, v: 0.0 };
        let e = errors(model(&self.at, from, self.t_s), self.simulated(lab));
        Fact::new(
            Kind::Check,
            SOURCE,
            format!("transient: {}: p50/p95/p99 error", self.name),
            format!("p95 and p99 within {:.0} %", 100.0 * self.tolerance),
            per_cent(e),
            e[1].abs().max(e[2].abs()) < self.tolerance,
        )
    }
}

/// [`QUANTILES`] of (value, weight).
fn weighted_quantiles(mut of: Vec<(f64, f64)>) -> [f64; 3] {
    of.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = of.iter().map(|x| x.1).sum();
    QUANTILES.map(|q| {
        let mut left = q * all;
        let at = of.iter().position(|x| {
            left -= x.1;
            left <= 0.0
        });
        of[at.unwrap_or(of.len() - 1)].0
    })
}

/// The seeded plant against its two stations, request by request: how p99 varies from tick to tick.
struct InTicks {
    service: &'static str,
    rps: f64,
    cores: u32,
    runs: u64,
}

const PLANTS: [InTicks; 4] = [
    InTicks { service: "xapian", rps: 5200.0, cores: 9, runs: 8 },
    InTicks { service: "xapian", rps: 5200.0, cores: 7, runs: 16 },
    InTicks { service: "moses", rps: 2800.0, cores: 6, runs: 80 },
    InTicks { service: "img-dnn", rps: 5000.0, cores: 10, runs: 16 },
];

const TICK_S: f64 = 0.1;
/// The first 10 s are warm-up.
const WARM_UP_TICKS: usize = 100;
const TICKS: usize = 600;
const SPREAD: [f64; 3] = [0.05, 0.5, 0.95];

impl InTicks {
    fn fact(&self, lab: &Lab) -> Fact {
        let p = lab.platform("server-1");
        let tenant = Tenant::new(lab.profile(self.service), self.rps, 36, CpuSet::range(0, self.cores), 0xfff);
        let plants = in_parallel(self.runs, |run| {
            let mut plant = Plant::new(p.clone(), Some(lab.run_seed(run)), TICK_S);
            plant.add("a", tenant.clone(), true).expect("a valid tenant");
            (0..TICKS).map(|_| plant.step()[0].latency.expect("LC").p99).skip(WARM_UP_TICKS).collect::<Vec<_>>()
        });
        let mut solver = Solver::new(p.clone());
        solver.solve(std::slice::from_ref(&tenant), None);
        let r = solver.speeds()[0];
        let q = &tenant.profile.lc().expect("LC").queue;
        let front_s = q.dispatch_us * 1e-6 * p.cpu.cpi_scale * 2.8 / r.freq_ghz;
        let front = RequestModel::new(self.rps, front_s, 1, q.dispatch_scv, 1.0);
        let workers = RequestModel::new(self.rps, r.service_s, r.workers, q.scv_service, 1.0);
        let simulated = in_parallel(self.runs, |run| tandem_p99_ms(&front, &workers, q.net_us * 1e-6, lab.run_seed(run)));
        let over_ticks = |runs: Vec<Vec<f64>>| quantiles(&mut runs.concat(), SPREAD).expect("ticks");
        let e = errors(over_ticks(plants), over_ticks(simulated));
        let text = format!(
            "seeded plant, {} {} RPS {} cores: p99 of a tick, error of its 5 % / median / 95 % point over 50 s",
            self.service, self.rps, self.cores
        );
        Fact::new(Kind::Check, SOURCE, text, "each within 15 %", per_cent(e), e.iter().all(|x| x.abs() < 0.15))
    }
}

/// p99 (ms) of each tick of two stations in series; a request belongs to the tick in which it leaves the first.
fn tandem_p99_ms(front: &RequestModel, workers: &RequestModel, net_s: f64, seed: u64) -> Vec<f64> {
    let services = [front, workers].map(|m| ServiceTimes::new(m.service_s, m.scv_service, seed ^ (u64::from(m.servers) << 32)));
    let mut stations = [front, workers].map(|m| Fcfs::new(m.servers, 0.0));
    let mut ticks: Vec<Vec<f64>> = vec![vec![]; TICKS];
    for (n, batch) in (0..).zip(Arrivals::new(front.rate_rps, front.scv_arrival, seed)) {
        let left_s = stations[0].serve(batch.at_s, services[0].of(n)).1;
        let tick = (left_s / TICK_S) as usize;
        if tick >= TICKS {
            break;
        }
        let done_s = stations[1].serve(left_s, services[1].of(n)).1;
        ticks[tick].push(1e3 * (done_s - batch.at_s + net_s));
    }
    ticks.drain(WARM_UP_TICKS..).filter_map(|mut t| quantiles(&mut t, [0.99])).map(|[p99]| p99).collect()
}
