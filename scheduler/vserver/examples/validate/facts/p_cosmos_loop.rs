//! COSMOS in closed loop: runs of ticks with readings that err, memory that moves in its own time, a machine that is too small.

use super::j_cosmos::{best, emu, grid_by, met, with_working_set, Cell, Load, Mor, ALL_WAYS, JOBS, PLATFORM};
use super::lab::Lab;
use super::{ascending, list, three, Fact, Kind};
use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::{Change, Plant, Sample, Tenant};

const TICK_S: f64 = 0.1;
/// Memory has moved by then.
const SETTLED_TICKS: usize = 400;
const SEEN_TICKS: usize = 100;

/// The last ten of fifty seconds: the median of p99, the mean of instructions.
fn run(lab: &Lab, tenants: &[Tenant]) -> Vec<Sample> {
    let mut plant = Plant::new(lab.platform(PLATFORM), Some(lab.seed), TICK_S);
    for (i, t) in tenants.iter().enumerate() {
        plant.add(&i.to_string(), t.clone(), true).expect("a valid tenant");
    }
    let seen: Vec<Vec<Sample>> = (0..SETTLED_TICKS + SEEN_TICKS).map(|_| plant.step().to_vec()).skip(SETTLED_TICKS).collect();
    let mut out = seen[0].clone();
    for (i, s) in out.iter_mut().enumerate() {
        s.instr_per_s = seen.iter().map(|x| x[i].instr_per_s).sum::<f64>() / seen.len() as f64;
        if let Some(l) = &mut s.latency {
            let mut p99: Vec<f64> = seen.iter().filter_map(|x| x[i].latency).map(|l| l.p99).collect();
            p99.sort_by(f64::total_cmp);
            l.p99 = p99[p99.len() / 2];
        }
    }
    out
}

fn grid(lab: &mut Lab, load: Load, mor: Mor, cms_frac: f64) -> Vec<Cell> {
    grid_by(lab, load, mor, cms_frac, |lab, tenants| run(lab, tenants))
}

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let low = grid(lab, Load::Low, Mor::Low, 1.0);
    let low_high = grid(lab, Load::Low, Mor::High, 1.0);
    let high = grid(lab, Load::High, Mor::Low, 1.0);
    let high_high = grid(lab, Load::High, Mor::High, 1.0);
    let mut out = c1(lab, &low);
    out.extend(c2(lab, &low, &low_high));
    let top = [&high, &high_high, &low, &low_high].map(|g| best(g).emu);
    out.push(Fact::new(
        Kind::Pred,
        "COSMOS Fig. 3-4",
        "closed loop: best EMU at high load and low MOR, then high load and high MOR, then low load (low, high MOR)",
        "ordered",
        list(top.iter().map(|x| format!("{:.0}", 100.0 * x))),
        top[0] > top[1] && top[1] > top[2] && top[1] > top[3],
    ));
    let n = [&low, &low_high, &high, &high_high].map(|g| met(g));
    out.push(Fact::new(
        Kind::Pred,
        "COSMOS Fig. 4",
        "closed loop: states of 20 that meet QoS: fewest at high load, high MOR",
        "fewest, > 0",
        list(n),
        n[3] > 0 && n[..3].iter().all(|x| n[3] <= *x),
    ));
    out.extend(without_memory(lab));
    out.extend(moves(lab));
    out
}

fn c1(lab: &mut Lab, low: &[Cell]) -> Vec<Fact> {
    let half = grid(lab, Load::Low, Mor::Low, 0.5);
    let none = grid(lab, Load::Low, Mor::Low, 0.0);
    let count = |source, text: &str, want: usize, off: usize, got: usize| {
        let expected = if off > 0 { format!("{want} (+-{off})") } else { want.to_string() };
        Fact::new(
            Kind::Pred,
            source,
            format!("closed loop, low load, low MOR: {text}"),
            expected,
            got.to_string(),
            got.abs_diff(want) <= off,
        )
    };
    let gradual = [10, 8, 6, 4].map(|c| emu(low, c, 37.3));
    let b = best(low);
    vec![
        count("COSMOS Fig. 1-a", "states of 20 that meet QoS with all of the CMS", 18, 2, met(low)),
        count("COSMOS Fig. 1-b", "with half of it", 8, 3, met(&half)),
        count("COSMOS Fig. 1-c", "without", 0, 0, met(&none)),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 1",
            "closed loop: EMU rises as LC cores go 10 -> 4 at 37.3 GB (paper: 66.3 -> 82.5 %)",
            "rising",
            list(gradual.iter().map(|x| format!("{:.0}", 100.0 * x))),
            ascending(&gradual) && gradual[0] > 0.0,
        ),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 1",
            "closed loop: best state at low load, low MOR (paper: 4 cores, 37.3 GB)",
            "4 cores, 37.3",
            format!("({}, {})", b.cores, b.mem_gb),
            b.cores == 4 && b.mem_gb == 37.3,
        ),
    ]
}

fn c2(lab: &mut Lab, low: &[Cell], low_high: &[Cell]) -> Vec<Fact> {
    let half = met(&grid(lab, Load::Low, Mor::High, 0.5));
    let (b, h) = (best(low), best(low_high));
    vec![
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 2-b",
            "closed loop: low load, high MOR, half the CMS: states that meet QoS",
            "0",
            half.to_string(),
            half == 0,
        ),
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 2",
            "closed loop: best state at low load, high MOR (paper: 6 cores, 30.6 GB): more cores, less memory",
            "more than low MOR",
            format!("({}, {})", h.cores, h.mem_gb),
            h.emu > 0.0 && h.cores > b.cores && h.mem_gb < 35.0,
        ),
    ]
}

/// The paper's five mixes with memcached at medium load and medium MOR, without limits of memory: everything shared, and cores dealt out.
fn without_memory(lab: &mut Lab) -> Vec<Fact> {
    let lc = with_working_set(&lab.profile("memcached-lancet"), 45.0);
    let target_ms = lc.lc().expect("LC").qos_target_ms;
    let p99_ms = |job: &str, ws_gb: f64, of_lc: CpuSet, of_be: CpuSet| {
        let be = with_working_set(&lab.profile(job), ws_gb);
        let tenants = [Tenant::new(lc.clone(), 75_000.0, 16, of_lc, ALL_WAYS), Tenant::new(be, 0.0, 16, of_be, ALL_WAYS)];
        run(lab, &tenants)[0].latency.expect("LC").p99
    };
    let all = CpuSet::range(0, 16);
    let ld: Vec<f64> = JOBS.iter().map(|(job, gb)| p99_ms(job, *gb, all, all)).collect();
    let dealt = |job: &str, gb: f64| {
        let each = (2..=14).step_by(2).map(|n| p99_ms(job, gb, CpuSet::range(0, n), CpuSet::range(n, 16)));
        each.fold(f64::INFINITY, f64::min)
    };
    let ca: Vec<f64> = JOBS.iter().map(|(job, gb)| dealt(job, *gb)).collect();
    let fact = |text: &str, of: &[f64]| {
        Fact::new(
            Kind::Pred,
            "COSMOS Fig. 7",
            format!("closed loop: memcached with each of five jobs, {text}: mixes that meet QoS; p99 over target"),
            "0 of 5",
            format!("{} of 5; {}", of.iter().filter(|x| **x <= target_ms).count(), list(of.iter().map(|x| three(x / target_ms)))),
            of.iter().all(|x| *x > target_ms),
        )
    };
    vec![fact("everything shared (LD)", &ld), fact("the best of seven deals of cores (CA)", &ca)]
}

/// What memory costs on its way. Nothing is published of it: the rates are the platform's own costs of a page.
fn moves(lab: &mut Lab) -> Vec<Fact> {
    let lc = with_working_set(&lab.profile("memcached-lancet"), 45.0);
    let mut plant = Plant::new(Arc::new(lab.platform(PLATFORM).without_faults()), None, TICK_S);
    plant.add("a", Tenant::new(lc, 75_000.0, 16, CpuSet::range(0, 8), ALL_WAYS), true).expect("a valid tenant");
    let before = (0..50).map(|_| plant.step()[0].latency.expect("LC").p99).fold(0.0, f64::max);
    plant.change("a", Change::CmsGb(8.0 / 0.9)).expect("a pool");
    plant.change("a", Change::MemGb(Some(45.0 - 8.0))).expect("a limit");
    let in_use = |s: &Sample| s.memory.in_use_mb / 1024.0;
    let (mut took_s, mut worst) = (f64::INFINITY, 0.0f64);
    for tick in 1..=600 {
        let s = plant.step()[0];
        worst = worst.max(s.latency.expect("LC").p99);
        if in_use(&s) <= 37.0 + 0.01 {
            took_s = f64::from(tick) * TICK_S;
            break;
        }
    }
    vec![Fact::new(
        Kind::Check,
        "physics",
        "memcached, 45 -> 37 GB with the pool that holds it, 16.9 GB of pages at 3.5 us: seconds until the limit is kept; worst p99 over that before",
        "15 to 20 s, above 1",
        format!("{took_s:.1} s, {:.2}x", worst / before),
        (15.0..20.0).contains(&took_s) && worst > before,
    )]
}
