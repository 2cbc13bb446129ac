//! COSMOS's second service: silo beside each of the paper's five jobs, at medium load and medium memory over-commitment.

use super::j_cosmos::{with_working_set, ALL_WAYS, JOBS, MEMORY_GB, PLATFORM};
use super::lab::Lab;
use super::{list, Fact, Kind};
use surefoot_server::CpuSet;
use surefoot_vserver::Tenant;

/// Memory of the LC service in each column, GB: from what its pages compress to to all of it.
const COLUMNS: u32 = 12;
const LEAST_GB: f64 = 29.2;
const STEP_GB: f64 = 1.6;

/// The best of all states of a service with each job.
struct Best {
    emu: Vec<f64>,
    /// Fewest cores with which QoS is met beside any of the jobs, all memory given.
    cores: u32,
}

fn best(lab: &mut Lab, service: &str, rps: f64, ws_gb: f64, with_pool: bool) -> Best {
    let lc = with_working_set(&lab.profile(service), ws_gb);
    let spec = lc.lc().expect("LC");
    let (target_ms, full_rps) = (spec.qos_target_ms, spec.max_load_rps[PLATFORM]);
    let gain = lc.paging.as_ref().expect("paging").compress_ratio - 1.0;
    let (mut emu, mut cores) = (vec![], u32::MAX);
    for (name, gb) in JOBS {
        let be = with_working_set(&lab.profile(name), gb);
        let job = |cpus, mem_gb| Tenant { mem_gb, ..Tenant::new(be.clone(), 0.0, 16, cpus, ALL_WAYS) };
        let alone = lab.case(PLATFORM, &[job(CpuSet::range(0, 16), None)])[0].instr_per_s;
        let mut top = 0.0f64;
        for n in 1..=12 {
            for column in 0..COLUMNS {
                let mem_gb = LEAST_GB + STEP_GB * f64::from(column);
                let cms_gb = if with_pool { ((ws_gb - mem_gb) / gain).clamp(0.0, mem_gb) } else { 0.0 };
                let tenant = Tenant { mem_gb: Some(mem_gb), cms_gb, ..Tenant::new(lc.clone(), rps, 16, CpuSet::range(0, n), ALL_WAYS) };
                let s = lab.case(PLATFORM, &[tenant, job(CpuSet::range(n, 16), Some(MEMORY_GB - mem_gb))]);
                if s[0].latency.expect("LC").p99 <= target_ms {
                    top = top.max(rps / full_rps + s[1].instr_per_s / alone);
                    cores = cores.min(n);
                }
            }
        }
        emu.push(top);
    }
    Best { emu, cores }
}

fn percent(of: &[f64]) -> String {
    list(of.iter().map(|x| format!("{:.0}", 100.0 * x)))
}

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let silo = best(lab, "silo-cosmos", 2_000.0, 45.2, true);
    let disk = best(lab, "silo-cosmos", 2_000.0, 45.2, false);
    let memcached = best(lab, "memcached-lancet", 75_000.0, 45.0, true);
    let met = silo.emu.iter().filter(|x| **x > 0.0).count();
    let above = silo.emu.iter().zip(&memcached.emu).filter(|(a, b)| a > b).count();
    let gains: Vec<f64> = silo.emu.iter().zip(&disk.emu).map(|(a, b)| a / b).collect();
    vec![
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 7",
            "silo at 2,000 RPS with each of five jobs, 45.2 and 24 GB in 60: mixes of which a state meets QoS with the pool, without it",
            "5, 5",
            list([met, disk.emu.iter().filter(|x| **x > 0.0).count()]),
            met == 5 && disk.emu.iter().all(|x| *x > 0.0),
        ),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 8",
            "fewest cores that meet QoS at medium load: silo, memcached (paper: silo needs fewer)",
            "fewer",
            list([silo.cores, memcached.cores]),
            silo.cores < memcached.cores,
        ),
        Fact::new(
            Kind::Fit,
            "COSMOS Fig. 8",
            "the best state's EMU (%) with each of five jobs: silo's above memcached's",
            "5 of 5",
            format!("{above} of 5: {} and {}", percent(&silo.emu), percent(&memcached.emu)),
            above == 5,
        ),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 8",
            "silo, best EMU with the pool over that without (paper: 4.5x in the mean of both services)",
            "> 2 each",
            list(gains.iter().map(|x| format!("{x:.2}"))),
            gains.iter().all(|x| *x > 2.0),
        ),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 8",
            "silo without the pool: EMU (%) with each of five jobs (paper: highest with BC, some of whose pages are often used)",
            "bc highest",
            percent(&disk.emu),
            disk.emu.iter().skip(1).all(|x| disk.emu[0] > *x),
        ),
    ]
}
