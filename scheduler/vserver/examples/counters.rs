//! What `perf stat` and resctrl's monitoring would show of a shipped service during a way sweep (a second for each number of
//! ways), as CSV on stdout: input of `python -m collection.derive`, from a service whose profile is known.
//!
//! Usage: counters SERVICE PLATFORM RPS CORES

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

use std::path::PathBuf;
use surefoot_server::CpuSet;
use surefoot_vserver::math::{gauss, ident_hash};
use surefoot_vserver::{check_tenants, Profiles, Solver, Tenant};

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match counters(&args) {
        Ok(csv) => {
            print!("{csv}");
            std::process::ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("{what}");
            std::process::ExitCode::from(2)
        }
    }
}

fn counters(args: &[String]) -> Result<String, String> {
    let [service, platform, rps, cores] = args else { return Err("usage: counters SERVICE PLATFORM RPS CORES".into()) };
    let rps: f64 = rps.parse().map_err(|_| format!("{rps}: give requests/s, e.g. 1000"))?;
    let cores: u32 = cores.parse().map_err(|_| format!("{cores}: give a number of cores"))?;
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let profiles = Profiles::load(&[dir]).map_err(|e| e.to_string())?;
    let p = profiles.platform(platform).map_err(|e| e.to_string())?;
    let profile = profiles.service(service).map_err(|e| e.to_string())?;
    let mut solver = Solver::new(p.clone());
    let mut out = String::from("ways,threads,rps,busy_cores,instructions_per_s,cycles_per_s,llc_refs_per_s,llc_misses_per_s,mem_mbps\n");
    for ways in p.llc.min_ways..=p.llc.ways {
        let tenant = [Tenant::new(profile.clone(), rps, cores, CpuSet::range(0, cores), ((1u64 << ways) - 1) as u32)];
        check_tenants(p, &tenant).map_err(|e| e.to_string())?;
        solver.solve(&tenant, None);
        let r = solver.speeds()[0];
        // Ten readings of 100 ms, each with the platform's error.
        let reading = |x: f64, cv: f64, i: u64| x * (1.0 + cv / 10f64.sqrt() * gauss(&[ident_hash(service), u64::from(ways), i]));
        let instr = reading(r.instr_per_s, p.noise.ipc, 0);
        let cycles = reading(r.instr_per_s / r.ipc, p.noise.cpu, 1);
        let refs = reading(r.misses_per_s / r.miss_ratio, p.noise.misses, 2);
        let misses = reading(r.misses_per_s, p.noise.misses, 3);
        let (busy, mbps) = (reading(r.busy_cores, p.noise.cpu, 4), reading(1e3 * r.mbl_gbs, p.noise.mbl, 5));
        out += &format!("{ways},{cores},{rps},{busy:.4},{instr:.4e},{cycles:.4e},{refs:.4e},{misses:.4e},{mbps:.1}\n");
    }
    Ok(out)
}
