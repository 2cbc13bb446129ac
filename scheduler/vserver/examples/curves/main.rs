//! What the figures of docs/virtual-server.md show, as JSON on stdout (`make figures`).

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

#[allow(dead_code)]
#[path = "../validate/facts/lab.rs"]
mod lab;

use lab::{in_parallel, Alone, Lab};
use serde_json::{json, Value};
use surefoot_server::CpuSet;
use surefoot_vserver::math::QUANTILES;
use surefoot_vserver::queue::{lognormal_factors, wait_law, Compose, Moments, Part, Station, ABOVE};
use surefoot_vserver::requests::{quantiles, RequestModel};
use surefoot_vserver::{Change, Plant, Solver, Tenant};

fn main() -> Result<(), surefoot_vserver::ProfileError> {
    let mut lab = Lab::open(None, 1)?;
    let platforms = ["server-1", "server-2", "server-3"];
    let all = json!({
        "cliffs": cliffs(&mut lab),
        "plane": plane(&mut lab),
        "backlog": backlog(&lab),
        "load_step": load_step(&lab),
        "equilibrium": equilibrium(),
        "transients": vec![from_empty(), draining()],
        "memory": platforms.map(|p| memory(&lab, p)).to_vec(),
    });
    println!("{all}");
    Ok(())
}

/// p99 over cores, all ways.
fn cliffs(lab: &mut Lab) -> Value {
    let services =
        [("moses", 2800.0), ("xapian", 5200.0), ("img-dnn", 5000.0), ("specjbb", 11_000.0), ("mongodb", 9000.0), ("sphinx", 8.0)];
    let line = |(service, rps): (&'static str, f64)| {
        let p99_ms: Vec<f64> = (1..=36).map(|c| lab.p99_ms(&Alone::new(service, rps).cores(c))).collect();
        json!({ "service": service, "rps": rps, "qos_target_ms": lab.qos_target_ms(service), "p99_ms": p99_ms })
    };
    services.map(line).to_vec().into()
}

/// p99 of Moses over cores (rows, from 1) and ways (columns, from 1), and the RCliff.
fn plane(lab: &mut Lab) -> Value {
    let a = Alone::new("moses", 3000.0);
    let p99_ms: Vec<Vec<f64>> = (1..=36).map(|c| (1..=20).map(|w| lab.p99_ms(&a.cores(c).ways(w))).collect()).collect();
    json!({
        "service": a.service, "rps": a.rps, "platform": a.platform, "threads": a.threads,
        "qos_target_ms": lab.qos_target_ms(a.service), "p99_ms": p99_ms,
        "rcliff_cores": (1..=20).map(|w| lab.cliff(&a.ways(w)).cores).collect::<Vec<_>>(),
    })
}

/// p99 (ms) of the only tenant over `ticks` ticks, with changes at given ticks.
fn run(lab: &Lab, seed: Option<u64>, tenant: &Tenant, ticks: usize, changes: &[(usize, Change)]) -> Vec<Option<f64>> {
    let mut plant = Plant::new(lab.platform("server-1"), seed, 0.1);
    plant.add("a", tenant.clone(), true).expect("a valid tenant");
    (0..ticks)
        .map(|tick| {
            for (_, change) in changes.iter().filter(|(at, _)| *at == tick) {
                plant.change("a", *change).expect("a valid change");
            }
            plant.step()[0].latency.map(|l| l.p99)
        })
        .collect()
}

fn time_line(lab: &Lab, tenant: &Tenant, ticks: usize, changes: &[(usize, Change)]) -> Value {
    json!({
        "service": tenant.profile.name, "qos_target_ms": tenant.profile.lc().expect("LC").qos_target_ms,
        "t_s": (1..=ticks).map(|t| t as f64 / 10.0).collect::<Vec<_>>(),
        "ensemble_p99_ms": run(lab, None, tenant, ticks, changes),
        "one_run_p99_ms": run(lab, Some(1), tenant, ticks, changes),
    })
}

/// Facts 82 and 83: five cores too few for 30 s.
fn backlog(lab: &Lab) -> Value {
    let tenant = Tenant::new(lab.profile("img-dnn"), 5000.0, 36, CpuSet::range(0, 12), 0xfff);
    let cores = |n| Change::Cpus(CpuSet::range(0, n));
    time_line(lab, &tenant, 600, &[(50, cores(7)), (350, cores(13))])
}

/// Ten seconds of a load that the cores do not carry.
fn load_step(lab: &Lab) -> Value {
    let tenant = Tenant::new(lab.profile("xapian"), 4400.0, 36, CpuSet::range(0, 6), 0xfff);
    time_line(lab, &tenant, 400, &[(50, Change::RateRps(6000.0)), (150, Change::RateRps(4400.0))])
}

/// p50, p95, p99 (ms) of the response time at one station, as the model has them.
fn model_ms(at: &RequestModel, from: Moments, t_s: f64) -> [f64; 3] {
    let st = Station::new(at.rate_rps, at.service_s, at.servers, at.scv_service + at.scv_arrival, f64::INFINITY);
    let (to, law, _) = st.advance(from, t_s);
    let mut sum = Compose::default();
    sum.add(&wait_law(to, law, ABOVE));
    sum.add(&Part { mean: at.service_s, q: lognormal_factors(at.scv_service).map(|f| at.service_s * f) });
    sum.total().q.map(|q| 1e3 * q)
}

/// Six servers, service of 2 ms (scv 0.3), Poisson arrivals, from `start_work_s` of backlog.
fn six(rho: f64, start_work_s: f64) -> RequestModel {
    RequestModel { start_work_s, ..RequestModel::new(rho * 3000.0, 2e-3, 6, 0.3, 1.0) }
}

fn equilibrium() -> Value {
    const REQUESTS: usize = 400_000;
    let points = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97];
    let simulated: Vec<[f64; 3]> = points
        .iter()
        .map(|rho| {
            let runs = in_parallel(6, |seed| {
                let of = six(*rho, 0.0).run(seed + 1).take(REQUESTS).skip(REQUESTS / 4);
                quantiles(&mut of.map(|r| 1e3 * r.response_s).collect::<Vec<_>>(), QUANTILES).expect("requests")
            });
            std::array::from_fn(|i| runs.iter().map(|r| r[i]).sum::<f64>() / runs.len() as f64)
        })
        .collect();
    let fine: Vec<f64> = (30..=97).map(|x| f64::from(x) / 100.0).collect();
    let model: Vec<[f64; 3]> = fine.iter().map(|rho| model_ms(&six(*rho, 0.0), Moments::default(), 1e7)).collect();
    json!({ "rho": fine, "model_ms": model, "simulated_rho": points, "simulated_ms": simulated })
}

fn from_empty() -> Value {
    transient("load 1.1, from empty", &six(1.1, 0.0), &[0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0])
}

fn draining() -> Value {
    transient("load 0.8, from 1 s of backlog", &six(0.8, 1.0), &[0.25, 1.0, 2.0, 3.0, 4.0, 4.5, 5.0, 5.25, 5.5, 5.75, 6.0])
}

/// Responses to requests that arrive within 0.05 s of each instant, over many runs, against the model.
fn transient(name: &str, at: &RequestModel, instants_s: &[f64]) -> Value {
    let end_s = instants_s.last().expect("instants") + 0.05;
    let runs = in_parallel(600, |seed| {
        let mut seen = vec![vec![]; instants_s.len()];
        for r in at.run(seed + 1).take_while(|r| r.arrival_s < end_s) {
            if let Some(i) = instants_s.iter().position(|t| (r.arrival_s - t).abs() < 0.05) {
                seen[i].push(1e3 * r.response_s);
            }
        }
        seen
    });
    let over_runs = |i: usize| runs.iter().flat_map(|r: &Vec<Vec<f64>>| r[i].iter().copied()).collect::<Vec<f64>>();
    let simulated: Vec<Option<[f64; 3]>> = (0..instants_s.len()).map(|i| quantiles(&mut over_runs(i), QUANTILES)).collect();
    let from = Moments { m: at.start_work_s, v: 0.0 };
    let fine: Vec<f64> = (1..).map(|i| f64::from(i) * 0.05).take_while(|t| *t < end_s).collect();
    let model: Vec<[f64; 3]> = fine.iter().map(|t| model_ms(at, from, *t)).collect();
    json!({ "name": name, "t_s": fine, "model_ms": model, "simulated_t_s": instants_s, "simulated_ms": simulated })
}

/// Memory latency over bandwidth: the law, and where STREAM on 1, 2, 4, ... cores ends up.
fn memory(lab: &Lab, name: &str) -> Value {
    let p = lab.platform(name);
    let curve: Vec<[f64; 2]> =
        (0..=99).map(|u| f64::from(u) / 100.0).map(|u| [u * p.mem.bw_gbs * p.mem.usable, p.mem_latency_ns(u)]).collect();
    let mut solver = Solver::new(p.clone());
    let full = surefoot_server::allocation::full_mask(p.llc.ways);
    let stream: Vec<(u32, f64, f64)> = [1, 2, 4, 8, p.cpu.physical_cores]
        .iter()
        .map(|n| {
            solver.solve(&[lab.job("stream", *n, CpuSet::range(0, *n), full)], None);
            (*n, solver.speeds()[0].mbl_gbs, solver.shared().mem_ns)
        })
        .collect();
    json!({ "platform": name, "peak_gbs": p.mem.bw_gbs, "curve_gbs_ns": curve, "stream_cores_gbs_ns": stream })
}
