//! All states of a workload in steady state: what the best of them reaches.

use std::sync::Arc;
use surefoot_server::CpuSet;
use surefoot_vserver::{Profile, Steady, Tenant, HORIZON_S};
use surefootd::base::error::{Error, Result};
use surefootd::eval::run::alone_instr_per_s;
use surefootd::stage::virtual_target::{bad, VirtualTarget};
use surefootd::stage::workload::Workload;

/// Of the LC service: the job has the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    pub cores: u32,
    pub memory_gb: f64,
    pub pool_gb: f64,
}

/// Judges states of one workload with one service and one job.
pub struct Judge {
    steady: Steady,
    lc: Arc<Profile>,
    be: Arc<Profile>,
    rps: f64,
    load: f64,
    alone: f64,
    cpus: u32,
    ways: u32,
    memory_gb: f64,
}

impl Judge {
    pub fn new(at: &VirtualTarget, w: &Workload) -> Result<Self> {
        let (Some(l), Some(b)) = (w.lc.first(), w.be.first()) else {
            return Err(Error::BadInput(format!("workload {}: give one service and one job", w.name)));
        };
        let of = |name: &str, ws_gb: Option<f64>| at.profiles.service_of_size(name, ws_gb).map_err(bad);
        let rps = l.rps[0].1;
        Ok(Judge {
            steady: Steady::new(at.profile.clone()),
            lc: of(&l.service, l.ws_gb)?,
            be: of(&b.job, b.ws_gb)?,
            rps,
            load: rps / l.max_load_rps,
            alone: alone_instr_per_s(at, at.profiles.service(&b.job).map_err(bad)?),
            cpus: at.platform.logical_cpus(),
            ways: surefoot_server::allocation::full_mask(at.platform.ways()),
            memory_gb: at.profile.mem.capacity_gb - at.profile.mem.reserved_gb,
        })
    }

    /// The same at another load.
    pub fn at_rps(mut self, rps: f64) -> Self {
        self.load *= rps / self.rps;
        self.rps = rps;
        self
    }

    /// EMU of a state; 0 where it misses the target.
    pub fn emu(&mut self, s: State) -> f64 {
        let of = |profile: &Arc<Profile>, rps: f64, cpus: CpuSet| Tenant::new(profile.clone(), rps, self.cpus, cpus, self.ways);
        let lc = Tenant { mem_gb: Some(s.memory_gb), cms_gb: s.pool_gb, ..of(&self.lc, self.rps, CpuSet::range(0, s.cores)) };
        let be = Tenant { mem_gb: Some(self.memory_gb - s.memory_gb), ..of(&self.be, 0.0, CpuSet::range(s.cores, self.cpus)) };
        let seen = self.steady.case(&[lc, be], HORIZON_S);
        let target_ms = self.lc.lc().map_or(f64::INFINITY, |l| l.qos_target_ms);
        let met = seen[0].latency.is_some_and(|l| l.p99 <= target_ms);
        if met {
            self.load + seen[1].instr_per_s / self.alone
        } else {
            0.0
        }
    }

    /// The best state, its EMU, and how many there are.
    pub fn best(&mut self) -> (State, f64, usize) {
        let sizes = |p: &Profile| p.paging.as_ref().map_or((0.0, 1.0), |m| (m.ws_gb, m.compress_ratio));
        let ((lc_gb, gamma), (be_gb, _)) = (sizes(&self.lc), sizes(&self.be));
        let (mut best, mut n) = ((State::default(), 0.0), 0);
        let left_gb = self.memory_gb - be_gb;
        for k in -20..=20 {
            let memory_gb = left_gb + 0.05 * f64::from(k) * lc_gb;
            if memory_gb < lc_gb / gamma || memory_gb > 0.95 * self.memory_gb {
                continue;
            }
            let most_gb = surefoot_policy::cosmos::largest_pool(lc_gb, memory_gb, gamma);
            // All that is resident needs no pool: one state, not three.
            for part in if most_gb > 0.0 { &[1.0, 0.5, 0.0][..] } else { &[0.0][..] } {
                for cores in 1..self.cpus {
                    let state = State { cores, memory_gb, pool_gb: part * most_gb };
                    let emu = self.emu(state);
                    n += 1;
                    if emu > best.1 {
                        best = (state, emu);
                    }
                }
            }
        }
        (best.0, best.1, n)
    }
}
