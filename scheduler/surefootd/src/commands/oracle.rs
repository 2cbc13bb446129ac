//! `surefootd oracle`: the best exclusive partition for every phase of a workload.

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::files::{Output, Sources};
use crate::base::say;
use crate::eval::phases::{most_judged, phases, settled_emu_of, solve, Company, Phase, Seat};
use crate::stage::virtual_target::VirtualTarget;
use crate::stage::workload::check_platform;
use crate::stage::workload::Workload;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use surefoot_io::out::stderr_is_terminal;
use surefoot_search::partition::{Goal, Outcome};
use surefoot_server::CpuSet;

/// The whole answer (docs/oracle.md).
#[derive(Serialize)]
struct Report {
    workload: String,
    platform: String,
    /// As eval's column `oracle_emu`.
    settled_emu: Option<f64>,
    exact: bool,
    judged: u64,
    phases: Vec<PhaseReport>,
}

#[derive(Serialize)]
struct PhaseReport {
    from_s: f64,
    to_s: f64,
    offered_load: f64,
    emu: f64,
    emu_bound: f64,
    be_throughput: Option<f64>,
    be_throughput_bound: Option<f64>,
    exact: bool,
    judged: u64,
    lc: Vec<LcReport>,
    be: Option<BeReport>,
}

#[derive(Serialize)]
struct LcReport {
    id: String,
    service: String,
    load: f64,
    rps: f64,
    cores: u32,
    ways: u32,
    cpus: CpuSet,
    way_mask: String,
    p99_ms: Option<f64>,
    qos_target_ms: Option<f64>,
    met: bool,
    /// Null where everybody has what it touches.
    mem_limit_gb: Option<f64>,
    pool_gb: Option<f64>,
}

/// All BE jobs hold the same.
#[derive(Serialize)]
struct BeReport {
    cores: u32,
    ways: u32,
    mba_pct: u8,
    cpus: CpuSet,
    way_mask: String,
    jobs: Vec<JobReport>,
}

#[derive(Serialize)]
struct JobReport {
    id: String,
    throughput: Option<f64>,
    mem_limit_gb: Option<f64>,
}

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Oracle) -> Result<()> {
    if let Some(n) = args.threads {
        // Err only if a pool exists already, which then has the default size.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(n.into()).build_global();
    }
    let at = VirtualTarget::of_platform(&args.platform, args.profiles.as_deref())?;
    let w = Workload::read(&args.workload, &at.target())?;
    check_platform(&w, &at.platform.name);
    // Before the search, which may take long.
    let read = Sources::default().and("--workload", Some(&args.workload)).with(&at.read);
    let out = args.out.as_deref().map(|file| Output::create("--out", file, &read, args.overwrite)).transpose()?;
    let all = phases(&w, at.platform.logical_cpus());
    let bar = stderr_is_terminal().then(ProgressBar::new_spinner);
    let told = |n: u64| {
        if let Some(b) = &bar {
            b.inc(n);
        }
    };
    let mut solved: Vec<(Outcome, Vec<Seat>)> = vec![];
    for (i, phase) in all.iter().enumerate() {
        if let Some(b) = &bar {
            let style = indicatif::ProgressStyle::with_template("oracle: phase {msg}, {human_pos} judged, {elapsed}");
            b.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()));
            b.set_message(format!("{} of {}", i + 1, all.len()));
            b.enable_steady_tick(std::time::Duration::from_millis(200));
        }
        // A phase that comes again has the same answer.
        if let Some(before) = all[..i].iter().position(|p| p.lc == phase.lc && p.be == phase.be) {
            solved.push(solved[before].clone());
            continue;
        }
        let mut company = Company::new(&at, phase, &told)?;
        let found = solve(&mut company, Goal::All, most_judged(phase, args.most_judged));
        let found = found.map_err(|e| {
            let file = args.workload.display();
            Error::BadInput(format!("{file}: from {} s on: {e}", phase.from_ms as f64 / 1e3))
        })?;
        let seats = company.seats(&found.partition);
        solved.push((found, seats));
    }
    if let Some(b) = &bar {
        b.finish_and_clear();
    }
    let emus: Vec<f64> = solved.iter().map(|(o, _)| o.emu).collect();
    let report = Report {
        workload: w.name.clone(),
        platform: at.platform.name.clone(),
        settled_emu: settled_emu_of(&w, &all, &emus),
        exact: solved.iter().all(|(o, _)| o.exact),
        judged: solved.iter().map(|(o, _)| o.judged).sum(),
        phases: all.iter().zip(&solved).map(|(p, (o, seats))| phase_report(p, o, seats)).collect(),
    };
    let json =
        serde_json::to_string(&report).map_err(|e| Error::Failed(format!("JSON: {e}. This is a fault of surefootd, please report it")))?;
    if let Some(mut out) = out {
        out.write_all((json.clone() + "\n").as_bytes()).map_err(|e| Error::io(out.path(), "cannot be written", &e))?;
        out.finish()?;
    }
    if args.json {
        say::json(&report)
    } else {
        say::print(&table(&report))
    }
}

fn phase_report(phase: &Phase, o: &Outcome, seats: &[Seat]) -> PhaseReport {
    let mask = |s: &Seat| s.allocation.ways.first().map_or(String::new(), |m| format!("{m:#x}"));
    let (lc_seats, be_seats) = seats.split_at(phase.lc.len());
    let lc = phase.lc.iter().zip(lc_seats).enumerate().map(|(i, (l, s))| LcReport {
        id: l.id.clone(),
        service: l.service.clone(),
        load: l.load,
        rps: l.rps,
        cores: o.partition.lc[i].cores,
        ways: o.partition.lc[i].ways,
        cpus: s.allocation.cpus,
        way_mask: mask(s),
        p99_ms: s.latency.map(|x| x.p99),
        qos_target_ms: s.qos_target_ms,
        met: o.met[i],
        mem_limit_gb: s.memory.map(|m| m.limit_gb),
        pool_gb: s.memory.map(|m| m.pool_gb),
    });
    let be = be_seats.first().map(|s| BeReport {
        cores: o.partition.rest.cores,
        ways: o.partition.rest.ways,
        mba_pct: o.partition.mba_pct,
        cpus: s.allocation.cpus,
        way_mask: mask(s),
        jobs: phase
            .be
            .iter()
            .zip(be_seats)
            .map(|(b, s)| JobReport { id: b.id.clone(), throughput: s.throughput, mem_limit_gb: s.memory.map(|m| m.limit_gb) })
            .collect(),
    });
    PhaseReport {
        from_s: phase.from_ms as f64 / 1e3,
        to_s: phase.to_ms as f64 / 1e3,
        offered_load: phase.lc.iter().map(|l| l.load).sum(),
        emu: o.emu,
        emu_bound: o.emu_bound,
        be_throughput: be.is_some().then_some(o.answer.be_throughput),
        be_throughput_bound: o.be_bound,
        exact: o.exact,
        judged: o.judged,
        lc: lc.collect(),
        be,
    }
}

fn table(r: &Report) -> String {
    let show = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.2}"));
    let mut out = format!("{} on {}\n", r.workload, r.platform);
    for p in &r.phases {
        let be = p.be_throughput.map_or(String::new(), |x| format!(", BE throughput {x:.3}"));
        let _ = writeln!(out, "\n{} s to {} s: EMU {:.2} of {:.2} offered{be}", p.from_s, p.to_s, p.emu, p.offered_load);
        let _ = writeln!(
            out,
            "  {:<20} {:>5} {:>5} {:>5} {:>4} {:>10} {:>10}  QoS",
            "service", "load", "cores", "ways", "MBA", "p99 ms", "target ms"
        );
        for l in &p.lc {
            let met = if l.met { "met" } else { "cannot be met" };
            let _ = writeln!(
                out,
                "  {:<20} {:>5.2} {:>5} {:>5} {:>4} {:>10} {:>10}  {met}",
                l.id,
                l.load,
                l.cores,
                l.ways,
                "",
                show(l.p99_ms),
                show(l.qos_target_ms)
            );
        }
        if let Some(be) = &p.be {
            let jobs: Vec<&str> = be.jobs.iter().map(|j| j.id.as_str()).collect();
            let _ = writeln!(out, "  {:<20} {:>5} {:>5} {:>5} {:>4}", jobs.join("+"), "-", be.cores, be.ways, be.mba_pct);
        }
        let gb = |id: &str, limit: Option<f64>, pool: Option<f64>| {
            let pool = pool.filter(|p| *p > 0.0).map_or(String::new(), |p| format!(", {p:.1} of it a pool"));
            limit.map(|limit| format!("{id} {limit:.1}{pool}"))
        };
        let jobs = p.be.iter().flat_map(|be| &be.jobs).filter_map(|j| gb(&j.id, j.mem_limit_gb, None));
        let memory: Vec<String> = p.lc.iter().filter_map(|l| gb(&l.id, l.mem_limit_gb, l.pool_gb)).chain(jobs).collect();
        if !memory.is_empty() {
            let _ = writeln!(out, "  memory, GB: {}", memory.join("; "));
        }
        let proof = if p.exact {
            "exact".to_string()
        } else {
            let be = p.be_throughput_bound.map_or(String::new(), |x| format!(", BE throughput at this EMU at most {x:.3}"));
            format!("not proven best: EMU at most {:.2}{be}", p.emu_bound)
        };
        let _ = writeln!(out, "  {proof}; {} judged", p.judged);
    }
    let _ = writeln!(out, "\nEMU of the settled part: {}", show(r.settled_emu));
    out
}
