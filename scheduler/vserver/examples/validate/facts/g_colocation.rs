//! Co-locations that the OSML+ paper reports to be schedulable (Fig. 7, 10 and 12).

use super::lab::{first_max, Alone, Lab};
use super::{list, Fact, Kind};
use surefoot_vserver::{place, stack_ways, Tenant};

/// Services and their loads, as shares of the maximum on the platform.
type Mix = [(&'static str, f64); 5];

pub const FIG_7: Mix = [("moses", 0.9), ("specjbb", 0.6), ("masstree", 0.9), ("ads", 0.6), ("login", 0.1)];
const FIG_10: Mix = [("img-dnn", 0.6), ("login", 0.6), ("ads", 0.6), ("specjbb", 0.3), ("xapian", 0.3)];
const PLATFORMS: [&str; 3] = ["server-1", "server-2", "server-3"];

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut out = Vec::new();
    let fit = split(lab, &FIG_7, "server-2", 64, 12);
    out.push(Fact::new(
        Kind::Pred,
        "OSML+ Fig. 7",
        "moses 90 %, specjbb 60 %, masstree 90 %, ads 60 %, login 10 % on Server 2: fits in 41 cores, 11 ways",
        "<=41, <=11, all meet QoS",
        say(&fit),
        fit.as_ref().is_some_and(|f| f.cores <= 41 && f.ways <= 11 && f.missed.is_empty()),
    ));
    let mut shares = Vec::new();
    for platform in PLATFORMS {
        let p = lab.platform(platform);
        let fit = split(lab, &FIG_10, platform, p.logical_cpus(), p.llc.ways);
        out.push(Fact::new(
            if platform == "server-1" { Kind::Fit } else { Kind::Pred },
            "OSML+ Fig. 10",
            format!("img-dnn, login, ads 60 %, specjbb, xapian 30 % schedulable on {platform}"),
            "yes",
            say(&fit),
            fit.as_ref().is_some_and(|f| f.cores <= p.logical_cpus() && f.missed.is_empty()),
        ));
        shares.push(fit.map_or(0.0, |f| beside(lab, platform, f.cores)));
    }
    out.push(Fact::new(
        Kind::Pred,
        "OSML+ Fig. 12",
        "normalised blackscholes throughput beside that mix is highest on Server 2",
        "Server 2 first",
        list(shares.iter().map(|x| format!("{x:.2}"))),
        shares[1] >= shares[0] && shares[1] >= shares[2],
    ));
    out
}

/// An exclusive split, and the services that miss the QoS target in it.
struct Fit {
    cores: u32,
    ways: u32,
    missed: Vec<&'static str>,
}

fn say(fit: &Option<Fit>) -> String {
    fit.as_ref().map_or("none".into(), |f| format!("({}, {}, {})", f.cores, f.ways, list(&f.missed)))
}

#[derive(Clone, Copy)]
struct Share {
    service: &'static str,
    rps: f64,
    cores: u32,
    ways: u32,
}

/// The exclusive split of at most `ways` ways with fewest cores, from what each service needs alone (and one core more); then
/// cores are added until a joint run meets every target, because siblings slow each other down.
fn split(lab: &mut Lab, mix: &Mix, platform: &'static str, cores: u32, ways: u32) -> Option<Fit> {
    let p = lab.platform(platform);
    // Fewest cores for each number of ways used, in the order found.
    let mut best: Vec<(u32, u32, Vec<Share>)> = vec![(0, 0, vec![])];
    for (service, load) in mix {
        let rps = load * lab.max_load_rps(service, platform);
        let needed: Vec<Option<u32>> = (1..=p.llc.ways)
            .map(|w| lab.cores_needed(&Alone { platform, threads: p.logical_cpus(), ..Alone::new(service, rps).ways(w) }))
            .collect();
        let mut next: Vec<(u32, u32, Vec<Share>)> = Vec::new();
        for (used, sum, plan) in &best {
            for (w, k) in (1..).zip(&needed).filter_map(|(w, k)| k.map(|k| (w, k + 1))) {
                if used + w > ways {
                    continue;
                }
                let better = |plan: &[Share]| [plan, &[Share { service, rps, cores: k, ways: w }]].concat();
                match next.iter_mut().find(|x| x.0 == used + w) {
                    Some(x) if sum + k < x.1 => (x.1, x.2) = (sum + k, better(plan)),
                    Some(_) => {}
                    None => next.push((used + w, sum + k, better(plan))),
                }
            }
        }
        best = next;
    }
    let (_, _, mut plan) = best.into_iter().min_by_key(|x| x.1)?;
    let masks = stack_ways(&p, &plan.iter().map(|x| x.ways).collect::<Vec<_>>());
    loop {
        let cpus = place(&p, &plan.iter().map(|x| x.cores).collect::<Vec<_>>());
        let tenant = |i: usize| Tenant::new(lab.profile(plan[i].service), plan[i].rps, p.logical_cpus(), cpus[i], masks[i]);
        let tenants: Vec<Tenant> = (0..plan.len()).map(tenant).collect();
        let p99: Vec<f64> = lab.case(platform, &tenants).iter().map(|s| s.latency.expect("LC").p99).collect();
        let over: Vec<f64> = plan.iter().zip(&p99).map(|(x, p99)| p99 / lab.qos_target_ms(x.service)).collect();
        let missed: Vec<&str> = plan.iter().zip(&over).filter(|(_, o)| **o > 1.0).map(|(x, _)| x.service).collect();
        let used: u32 = plan.iter().map(|x| x.cores).sum();
        if missed.is_empty() || used + 1 > cores {
            return Some(Fit { cores: used, ways: plan.iter().map(|x| x.ways).sum(), missed });
        }
        plan[first_max(0..over.len(), |i| over[i])?].cores += 1;
    }
}

/// Throughput of blackscholes on the CPUs that `used` leave, with one way, relative to alone on everything.
fn beside(lab: &mut Lab, platform: &'static str, used: u32) -> f64 {
    let p = lab.platform(platform);
    let (n, ways) = (p.logical_cpus(), p.llc.ways);
    if used >= n {
        return 0.0;
    }
    let alone = lab.job("blackscholes", n, p.all_cpus(), stack_ways(&p, &[ways])[0]);
    let rest = lab.job("blackscholes", n, place(&p, &[used, n - used])[1], stack_ways(&p, &[ways - 1, 1])[1]);
    let mut instr_per_s = |t: Tenant| lab.case(platform, &[t])[0].instr_per_s;
    instr_per_s(rest) / instr_per_s(alone)
}
