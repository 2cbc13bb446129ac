//! Memory limits and compressed swap (CMS): the COSMOS paper's Fig. 1 to 4, memcached beside STREAM on 60 GB.

use super::lab::{first_max, Lab};
use super::{ascending, list, Fact, Kind};
use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::{Profile, Sample, Tenant};

pub const PLATFORM: &str = "cosmos-server";
const CORES: [u32; 5] = [2, 4, 6, 8, 10];
pub const MEMORY_GB: f64 = 60.0;
pub const ALL_WAYS: u32 = (1 << 11) - 1;
/// The five jobs, with their working sets at medium over-commitment, GB.
pub const JOBS: [(&str, f64); 5] = [("bc", 24.0), ("bfs", 24.1), ("canneal", 24.2), ("cc", 24.1), ("stream", 24.0)];

#[derive(Clone, Copy)]
pub enum Load {
    Low,
    High,
}

/// Memory over-commitment: working sets against the 60 GB that there are.
#[derive(Clone, Copy)]
pub enum Mor {
    Low,
    High,
}

use Load as L;
use Mor as M;

impl Load {
    fn rps(self) -> f64 {
        match self {
            Load::Low => 37_500.0,
            Load::High => 150_000.0,
        }
    }
}

impl Mor {
    /// Working sets of the LC service and the BE job, GB.
    fn working_sets_gb(self) -> (f64, f64) {
        match self {
            Mor::Low => (42.1, 22.5),
            Mor::High => (51.1, 27.0),
        }
    }

    /// Memory of the LC service in each of the four columns, GB.
    fn memory_gb(self) -> [f64; 4] {
        match self {
            Mor::Low => [35.7, 37.3, 38.9, 40.5],
            Mor::High => [30.6, 32.2, 33.8, 35.4],
        }
    }
}

/// One configuration: cores and memory of the LC service, EMU (0 where QoS is missed).
#[derive(Clone, Copy)]
pub struct Cell {
    pub cores: u32,
    pub mem_gb: f64,
    pub emu: f64,
}

pub fn with_working_set(profile: &Arc<Profile>, ws_gb: f64) -> Arc<Profile> {
    Arc::new(profile.with_working_set(ws_gb).expect("a profile with [paging]"))
}

/// The 20 configurations with `cms_frac` of the useful CMS, in steady state.
fn grid(lab: &mut Lab, load: Load, mor: Mor, cms_frac: f64) -> Vec<Cell> {
    grid_by(lab, load, mor, cms_frac, |lab, tenants| lab.case(PLATFORM, tenants).to_vec())
}

/// The same, as `judge` sees a service and a job.
pub fn grid_by(lab: &mut Lab, load: Load, mor: Mor, cms_frac: f64, mut judge: impl FnMut(&mut Lab, &[Tenant]) -> Vec<Sample>) -> Vec<Cell> {
    let (lc_gb, be_gb) = mor.working_sets_gb();
    let lc = with_working_set(&lab.profile("memcached-lancet"), lc_gb);
    let be = with_working_set(&lab.profile("stream"), be_gb);
    let job = |cpus, mem_gb| Tenant { mem_gb, ..Tenant::new(be.clone(), 0.0, 16, cpus, ALL_WAYS) };
    let alone = lab.case(PLATFORM, &[job(CpuSet::range(0, 16), None)])[0].instr_per_s;
    let target_ms = lc.lc().expect("LC").qos_target_ms;
    let full_rps = lc.lc().expect("LC").max_load_rps[PLATFORM];
    let gain = lc.paging.as_ref().expect("paging").compress_ratio - 1.0;
    let mut cells = Vec::new();
    for mem_gb in mor.memory_gb() {
        for cores in CORES {
            let service = Tenant {
                mem_gb: Some(mem_gb),
                cms_gb: cms_frac * ((lc_gb - mem_gb) / gain).min(mem_gb),
                ..Tenant::new(lc.clone(), load.rps(), 16, CpuSet::range(0, cores), ALL_WAYS)
            };
            let rest = job(CpuSet::range(cores, 16), Some(MEMORY_GB - mem_gb));
            let s = judge(lab, &[service, rest]);
            let met = s[0].latency.expect("LC").p99 <= target_ms;
            let emu = if met { load.rps() / full_rps + s[1].instr_per_s / alone } else { 0.0 };
            cells.push(Cell { cores, mem_gb, emu });
        }
    }
    cells
}

pub fn met(g: &[Cell]) -> usize {
    g.iter().filter(|c| c.emu > 0.0).count()
}

pub fn best(g: &[Cell]) -> Cell {
    first_max(g.iter().copied(), |c| c.emu).expect("20 cells")
}

pub fn emu(g: &[Cell], cores: u32, mem_gb: f64) -> f64 {
    g.iter().find(|c| c.cores == cores && c.mem_gb == mem_gb).expect("a configuration").emu
}

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut full = |load, mor| grid(lab, load, mor, 1.0);
    let (low, low_high) = (full(L::Low, M::Low), full(L::Low, M::High));
    let (high, high_high) = (full(L::High, M::Low), full(L::High, M::High));
    let mut out = counts(lab, &low);

    let gradual = [10, 8, 6, 4].map(|c| emu(&low, c, 37.3));
    out.push(Fact::new(
        Kind::Pred,
        "COSMOS Fig. 1",
        "EMU rises gradually as LC cores go 10 -> 4 at 37.3 GB (paper: 66.3 -> 82.5 %)",
        "rising",
        list(gradual.iter().map(|x| format!("{:.0}", 100.0 * x))),
        ascending(&gradual) && gradual[0] > 0.0,
    ));
    let (before, fits) = (emu(&low, 6, 38.9), emu(&low, 6, 37.3));
    out.push(Fact::new(
        Kind::Pred,
        "COSMOS Fig. 1",
        "EMU jumps when the batch working set fits (38.9 -> 37.3 GB, 6 cores)",
        ">1.5x",
        format!("{:.0} -> {:.0} %", 100.0 * before, 100.0 * fits),
        fits > 1.5 * before && before > 0.0,
    ));
    let (b, h) = (best(&low), best(&low_high));
    out.push(Fact::new(
        Kind::Fit,
        "COSMOS Fig. 1",
        "best state at low load, low MOR (paper: 4 cores, 37.3 GB)",
        "4 cores, 37.3",
        format!("({}, {})", b.cores, b.mem_gb),
        b.cores == 4 && b.mem_gb == 37.3,
    ));
    out.push(Fact::new(
        Kind::Fit,
        "COSMOS Fig. 2",
        "best state at low load, high MOR (paper: 6 cores, 30.6 GB): more cores, less memory",
        "more than low MOR",
        format!("({}, {})", h.cores, h.mem_gb),
        h.emu > 0.0 && h.cores > b.cores && h.mem_gb < 35.0,
    ));
    let top = [&low, &high, &high_high, &low_high].map(|g| best(g).emu);
    out.push(Fact::new(
        Kind::Fit,
        "COSMOS Fig. 3-4",
        "highest EMU: high load/low MOR > low load/low MOR; high load/high MOR between",
        "ordered",
        list(top.iter().map(|x| format!("{:.0}", 100.0 * x))),
        top[1] > top[0] && top[1] > top[2] && top[2] > top[3],
    ));
    let n = [&low, &low_high, &high, &high_high].map(|g| met(g));
    out.push(Fact::new(
        Kind::Fit,
        "COSMOS Fig. 4",
        "configurations that meet QoS: fewest at high load, high MOR",
        "fewest, > 0",
        list(n),
        n[3] > 0 && n[..3].iter().all(|x| n[3] <= *x),
    ));
    out
}

/// How many of 20 configurations meet QoS with all, half and no CMS.
fn counts(lab: &mut Lab, low: &[Cell]) -> Vec<Fact> {
    let (half, none) = (met(&grid(lab, L::Low, M::Low, 0.5)), met(&grid(lab, L::Low, M::Low, 0.0)));
    let high_half = met(&grid(lab, L::Low, M::High, 0.5));
    let text = "low load, low MOR, CMS at maximum: configurations of 20 that meet QoS";
    [
        ("COSMOS Fig. 1-a", text, 18, 2, met(low)),
        ("COSMOS Fig. 1-b", "same with half the CMS", 8, 3, half),
        ("COSMOS Fig. 1-c", "same without CMS", 0, 0, none),
        ("COSMOS Fig. 2-b", "low load, high MOR, half the CMS", 0, 0, high_half),
    ]
    .map(|(source, text, want, off, got): (_, _, usize, usize, usize)| {
        let expected = if off > 0 { format!("{want} (+-{off})") } else { want.to_string() };
        Fact::new(Kind::Fit, source, text, expected, got.to_string(), got.abs_diff(want) <= off)
    })
    .into()
}
