//! Co-locations from which the papers' PARTIES had to move cores and ways: equal shares must leave some service short.

use super::g_colocation::FIG_7;
use super::lab::Lab;
use super::{list, Fact, Kind};
use surefoot_vserver::{place, stack_ways, Tenant};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let fig_11 = [("masstree", 0.3), ("specjbb", 0.3), ("xapian", 0.9), ("mongodb", 0.5)];
    let mut fact = |source, mix: &[(&'static str, f64)], platform, moved: &str| {
        let short = short_of_target(lab, mix, platform);
        let loads: Vec<String> = mix.iter().map(|(service, load)| format!("{service} {:.0} %", 100.0 * load)).collect();
        let text = format!("{} on {platform}: services short of their target with equal shares ({moved})", loads.join(", "));
        Fact::new(Kind::Pred, source, text, "at least one", list(&short), !short.is_empty())
    };
    vec![
        fact("OSML+ Fig. 7", &FIG_7, "server-2", "PARTIES: 8 core and 3 way actions from there"),
        fact("OSML Fig. 11", &fig_11, "server-1", "PARTIES: 11 core and 8 way actions"),
    ]
}

/// Services that miss their target where each has as many CPUs and ways as every other.
fn short_of_target(lab: &mut Lab, mix: &[(&'static str, f64)], platform: &'static str) -> Vec<&'static str> {
    let p = lab.platform(platform);
    let (n, threads) = (mix.len() as u32, p.logical_cpus());
    let cpus = place(&p, &vec![threads / n; mix.len()]);
    let masks = stack_ways(&p, &vec![p.llc.ways / n; mix.len()]);
    let rps: Vec<f64> = mix.iter().map(|(service, load)| load * lab.max_load_rps(service, platform)).collect();
    let tenant = |i: usize| Tenant::new(lab.profile(mix[i].0), rps[i], threads, cpus[i], masks[i]);
    let tenants: Vec<Tenant> = (0..mix.len()).map(tenant).collect();
    let p99_ms: Vec<f64> = lab.case(platform, &tenants).iter().map(|s| s.latency.expect("LC").p99).collect();
    let short = mix.iter().zip(p99_ms).filter(|((service, _), p99_ms)| *p99_ms > lab.qos_target_ms(service));
    short.map(|((service, _), _)| *service).collect()
}
