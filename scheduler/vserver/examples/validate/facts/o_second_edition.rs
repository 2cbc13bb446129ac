//! What makes a server less kind than the first edition of the virtual server was: each with the number that a server, or every request
//! by itself (`--exact`), gives.

use super::lab::in_parallel;
use super::{Fact, Kind, Lab};
use std::collections::VecDeque;
use std::sync::Arc;
use surefoot_server::window::merge;
use surefoot_server::{CpuSet, Latency, Verdict};
use surefoot_vserver::requests::quantiles;
use surefoot_vserver::{place, rps_at_full_load, Change, Plant, PlatformProfile, Sample, Steady, Tenant, HORIZON_S};

const BY_REQUEST: &str = "request-level simulation";
const PHYSICS: &str = "physics";
const TICK_S: f64 = 0.1;

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut out = backlog(lab);
    out.extend(WINDOWS.iter().map(|w| w.fact(lab)));
    out.push(counts(lab));
    out.extend(readings(lab));
    out.extend(sizes(lab));
    out.push(a_move(lab));
    out.push(monotony(lab));
    out
}

/// img-dnn at 5,000 RPS on Server 1: cores 20, from 1 s on 7, from 6 s on 14. Latency is that of requests that complete.
fn backlog(lab: &Lab) -> Vec<Fact> {
    const INSTANTS: [(u64, f64); 5] = [(6000, 829.0), (6100, 829.0), (6200, 750.0), (6500, 564.0), (7000, 243.0)];
    let platform = lab.platform("server-1");
    let tenant = Tenant::new(lab.profile("img-dnn"), 5000.0, 20, CpuSet::range(0, 20), (1 << platform.llc.ways) - 1);
    let runs = in_parallel(12, |run| {
        let mut plant = Plant::new(platform.clone(), Some(lab.run_seed(run)), TICK_S);
        plant.add("a", tenant.clone(), true).expect("a valid tenant");
        let mut seen = vec![];
        for tick in 1..=70 {
            if let Some((_, n)) = [(11, 7), (61, 14)].into_iter().find(|(at, _)| *at == tick) {
                plant.change("a", Change::Cpus(CpuSet::range(0, n))).expect("CPUs of the platform");
            }
            let p99 = plant.step()[0].latency.map_or(f64::NAN, |l| l.p99);
            if INSTANTS.iter().any(|(ms, _)| *ms == tick * 100) {
                seen.push(p99);
            }
        }
        seen
    });
    let mean = |i: usize| runs.iter().map(|r| r[i]).sum::<f64>() / runs.len() as f64;
    let fact = |(i, (ms, want)): (usize, &(u64, f64))| {
        let text = format!("img-dnn behind a backlog, cores 7 -> 14 at 6 s: p99 of the tick that ends at {:.1} s, ms", *ms as f64 * 1e-3);
        Fact::near(Kind::Check, BY_REQUEST, text, *want, 1.1, mean(i))
    };
    INSTANTS.iter().enumerate().map(fact).collect()
}

/// p99 of windows of a second, on as few cores as a service can do with: by law, and request by request.
struct Windows {
    service: &'static str,
    platform: &'static str,
    load: f64,
}

const WINDOWS: [Windows; 8] = [
    Windows { service: "img-dnn", platform: "server-1", load: 0.9 },
    Windows { service: "img-dnn", platform: "server-2", load: 0.9 },
    Windows { service: "moses", platform: "server-1", load: 0.9 },
    Windows { service: "moses", platform: "server-2", load: 0.9 },
    Windows { service: "xapian", platform: "server-1", load: 0.6 },
    Windows { service: "specjbb", platform: "server-1", load: 0.6 },
    Windows { service: "masstree", platform: "server-1", load: 0.3 },
    Windows { service: "mongodb", platform: "server-2", load: 0.3 },
];

impl Windows {
    fn fact(&self, lab: &Lab) -> Fact {
        let p = Arc::new(lab.platform(self.platform).without_faults());
        let profile = lab.profile(self.service);
        let rps = self.load * rps_at_full_load(&p, &profile).expect("a load that it can carry");
        let target_ms = profile.lc().expect("LC").qos_target_ms;
        let on = |cores: u32| Tenant::new(profile.clone(), rps, 36, place(&p, &[cores])[0], 0xff);
        let mut steady = Steady::new(p.clone());
        let mut meets = |cores: u32| steady.case(&[on(cores)], HORIZON_S)[0].latency.is_some_and(|l| l.p99 <= target_ms);
        let cores = (1..p.logical_cpus()).find(|c| meets(*c)).expect("cores that are enough");
        let over_windows = |exact: bool| {
            let runs = in_parallel(10, |run| windows_ms(&p, &on(cores), lab.run_seed(run), exact));
            quantiles(&mut runs.concat(), [0.05, 0.5, 0.95]).expect("windows")
        };
        let (law, requests) = (over_windows(false), over_windows(true));
        let e: Vec<f64> = law.iter().zip(requests).map(|(l, r)| l / r - 1.0).collect();
        let text = format!(
            "{}, {} at {:.0} %, {cores} cores: p99 of a second, by law over by request, its 5 % / median / 95 % point",
            self.platform,
            self.service,
            100.0 * self.load
        );
        let got = e.iter().map(|x| format!("{:+.0} %", 100.0 * x)).collect::<Vec<_>>().join(" / ");
        Fact::new(Kind::Check, BY_REQUEST, text, "each within 15 %", got, e.iter().all(|x| x.abs() < 0.15))
    }
}

/// p99 of each second, ms, after ten.
fn windows_ms(p: &Arc<PlatformProfile>, tenant: &Tenant, seed: u64, exact: bool) -> Vec<f64> {
    let plant = Plant::new(p.clone(), Some(seed), TICK_S);
    let mut plant = if exact { plant.exact() } else { plant };
    plant.add("a", tenant.clone(), true).expect("a valid tenant");
    let mut last = VecDeque::new();
    let mut out = vec![];
    for tick in 0..400 {
        last.extend(latency(&plant.step()[0]));
        if last.len() > 10 {
            last.pop_front();
        }
        if tick >= 100 && tick % 10 == 0 {
            out.extend(merge(last.make_contiguous(), 1e3 * TICK_S).map(|w| w.p99_ms));
        }
    }
    out
}

fn latency(s: &Sample) -> Option<Latency> {
    let l = s.latency?;
    Some(Latency {
        count: s.count as u64,
        mean_ms: l.mean,
        p50_ms: l.p50,
        p95_ms: l.p95,
        p99_ms: l.p99,
        p99_low_ms: None,
        p99_high_ms: None,
        achieved_rps: s.achieved_rps,
        errors: 0,
        verdict: Verdict::Valid,
    })
}

/// img-dnn at rest on 14 cores of Server 1, 40 s of each of several runs.
fn at_rest(lab: &Lab, runs: u64) -> Vec<Vec<Sample>> {
    let platform = lab.platform("server-1");
    let tenant = Tenant::new(lab.profile("img-dnn"), 5000.0, 20, CpuSet::range(0, 14), (1 << platform.llc.ways) - 1);
    in_parallel(runs, |run| {
        let mut plant = Plant::new(platform.clone(), Some(lab.run_seed(run)), TICK_S);
        plant.add("a", tenant.clone(), true).expect("a valid tenant");
        (0..400).map(|_| plant.step()[0]).collect()
    })
}

fn mean_and_cv(of: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let n = of.clone().count() as f64;
    let mean = of.clone().sum::<f64>() / n;
    (mean, (of.map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt() / mean)
}

/// Poisson arrivals: a tick of n requests scatters by 1/sqrt(n).
fn counts(lab: &Lab) -> Fact {
    let runs = at_rest(lab, 4);
    let (mean, cv) = mean_and_cv(runs.iter().flatten().map(|s| s.count));
    let text = "img-dnn at 5000 RPS: completions of a tick, scatter over 1/sqrt(mean)";
    Fact::near(Kind::Check, PHYSICS, text, 1.0, 1.15, cv * mean.sqrt())
}

/// Errors of readings that last as long as a run, and readings that are late or missing, as the platform's `[faults]` say.
fn readings(lab: &Lab) -> Vec<Fact> {
    let runs = at_rest(lab, 40);
    let f = &lab.platform("server-1").faults;
    let of_run = |of: fn(&Sample) -> f64| {
        let means: Vec<f64> = runs.iter().map(|r| mean_and_cv(r[100..].iter().map(of)).0).collect();
        100.0 * mean_and_cv(means.into_iter()).1
    };
    let missed = runs.iter().flatten().filter(|s| s.missed).count() as f64 / (40.0 * 400.0);
    let spread = |what: &str| format!("img-dnn at rest: spread of a run's mean {what} between 40 runs, %");
    vec![
        Fact::new(
            Kind::Check,
            PHYSICS,
            spread("IPC"),
            format!("{:.0} of the counter and what cores differ by", 100.0 * f.ipc_bias),
            super::three(of_run(|s| s.ipc)),
            (0.5..=3.0).contains(&(of_run(|s| s.ipc) / (100.0 * f.ipc_bias))),
        ),
        Fact::new(
            Kind::Check,
            PHYSICS,
            spread("misses"),
            format!("{:.0} of the counter and what ways differ by", 100.0 * f.misses_bias),
            super::three(of_run(|s| s.llc_misses_per_s)),
            (0.5..=3.0).contains(&(of_run(|s| s.llc_misses_per_s) / (100.0 * f.misses_bias))),
        ),
        Fact::near(Kind::Check, PHYSICS, "share of ticks without a reading of the counters, %", 100.0 * f.missed, 1.5, 100.0 * missed),
    ]
}

/// Resident memory: differs between runs of one service, and never shrinks at once.
fn sizes(lab: &Lab) -> Vec<Fact> {
    let runs = at_rest(lab, 40);
    let sizes: Vec<f64> = runs.iter().map(|r| r[399].res_mem_mb).collect();
    let falls = runs.iter().flat_map(|r| r.windows(2)).map(|w| 1.0 - w[1].res_mem_mb / w[0].res_mem_mb).fold(0.0, f64::max);
    let want = 100.0 * lab.platform("server-1").faults.data;
    vec![
        Fact::near(
            Kind::Check,
            PHYSICS,
            "img-dnn: resident memory between 40 runs, spread, %",
            want,
            1.5,
            100.0 * mean_and_cv(sizes.into_iter()).1,
        ),
        Fact::new(
            Kind::Check,
            PHYSICS,
            "img-dnn: greatest fall of resident memory within a tick, %",
            "<5",
            super::three(100.0 * falls),
            falls < 0.05,
        ),
    ]
}

/// All CPUs of a service for others: private caches are cold for a while.
fn a_move(lab: &Lab) -> Fact {
    let platform = lab.platform("server-1");
    let tenant = Tenant::new(lab.profile("xapian"), 3000.0, 20, CpuSet::range(0, 9), (1 << platform.llc.ways) - 1);
    let runs = in_parallel(20, |run| {
        let mut plant = Plant::new(platform.clone(), Some(lab.run_seed(run)), TICK_S);
        plant.add("a", tenant.clone(), true).expect("a valid tenant");
        let before = (0..100).map(|_| plant.step()[0].ipc).skip(50).sum::<f64>() / 50.0;
        plant.change("a", Change::Cpus(CpuSet::range(9, 18))).expect("CPUs of the platform");
        let after: Vec<f64> = (0..30).map(|_| plant.step()[0].ipc).collect();
        (after[1] / before, after[20..].iter().sum::<f64>() / 10.0 / before)
    });
    let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
    let (soon, later) = (mean(|r| r.0), mean(|r| r.1));
    Fact::new(
        Kind::Check,
        PHYSICS,
        "xapian moved to other cores: IPC after 0.2 s and after 2 to 3 s, over that before",
        "lower at first, then back within 3 %",
        format!("{} then {}", super::three(soon), super::three(later)),
        soon < 0.99 * later && (later - 1.0).abs() < 0.03,
    )
}

/// One CPU or one way more hurts here and there, on a machine that is not alike in all places, and only a little.
fn monotony(lab: &Lab) -> Fact {
    let platform = lab.platform("server-1");
    let (mut worse, mut all, mut most) = (0u32, 0u32, 0.0f64);
    for (host, service) in (0..6u64).flat_map(|h| ["moses", "xapian", "img-dnn", "specjbb"].map(|s| (h, s))) {
        let profile = lab.profile(service);
        let rps = 0.5 * rps_at_full_load(&platform, &profile).expect("a load that it can carry");
        let mut steady = Steady::on_host(platform.clone(), Some(host));
        let mut p99 = |cores: u32, ways: u32| {
            let t = Tenant::new(profile.clone(), rps, 36, CpuSet::range(0, cores), (1 << ways) - 1);
            steady.case(&[t], HORIZON_S)[0].latency.map_or(f64::INFINITY, |l| l.p99)
        };
        for (cores, ways) in (6..18).flat_map(|c| (2..20).map(move |w| (c, w))) {
            let here = p99(cores, ways);
            for more in [p99(cores + 1, ways), p99(cores, ways + 1)] {
                all += 1;
                if more > here * (1.0 + 1e-9) {
                    worse += 1;
                    most = most.max(more / here - 1.0);
                }
            }
        }
    }
    let share = 100.0 * f64::from(worse) / f64::from(all);
    Fact::new(
        Kind::Check,
        PHYSICS,
        "hosts 0 to 5: cells where a core or a way more raises p99; greatest rise",
        "0.1 to 20 % of cells, below 10 %",
        format!("{share:.1} %, {:.1} %", 100.0 * most),
        (0.1..=20.0).contains(&share) && most < 0.1,
    )
}
