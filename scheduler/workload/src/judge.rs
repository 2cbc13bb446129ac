//! What a server is worth at one tick: loads that are served, and work of BE jobs beside them (docs/eval-output.md).

use crate::load::{Loads, STEP_MS};
use std::collections::BTreeMap;
use surefoot_server::window::WINDOW_MS;
use surefoot_server::{Observation, ServiceView};

/// A service within its max load, which is the highest that meets its target alone on the whole server, can be served.
const SCHEDULABLE_LOAD: f64 = 1.0;

/// One tick, as the columns of an evaluation of the same names have it before they are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Marks {
    /// Sum of the loads of LC services.
    pub offered: f64,
    /// The same of those whose target is met.
    pub emu: f64,
    /// Mean over BE jobs of their instructions/s relative to running alone; None without jobs.
    pub be_throughput: Option<f64>,
    /// The same, and 0 while an LC service misses its target that could be served.
    pub be_throughput_met: Option<f64>,
    /// Loads and throughputs added up where every target is met, else 0 (COSMOS's EMU).
    pub emu_cosmos: f64,
}

/// Whether an LC service could be served all the time that its window is of.
fn schedulable(loads: &Loads, id: &str, now_ms: u64) -> bool {
    let recent = (0..WINDOW_MS / STEP_MS).map(|k| now_ms.saturating_sub(k * STEP_MS));
    recent.filter_map(|t| loads.load_at(id, t)).all(|load| load <= SCHEDULABLE_LOAD)
}

/// The load of an LC service, and whether its target is met.
pub fn served(s: &ServiceView, loads: &Loads, t_ms: u64) -> (f64, bool) {
    (loads.load_at(&s.id, t_ms).unwrap_or(0.0), s.qos_met() == Some(true))
}

/// `alone`: instructions/s of each BE job alone on the server.
pub fn marks(seen: &Observation, loads: &Loads, alone: &BTreeMap<String, f64>) -> Marks {
    let mut marks = Marks::default();
    let (mut all_met, mut avoidable_miss) = (true, false);
    for s in seen.lc() {
        let (offered, met) = served(s, loads, seen.t_ms);
        marks.offered += offered;
        all_met &= met;
        avoidable_miss |= !s.at_ease() && schedulable(loads, &s.id, seen.t_ms);
        if met {
            marks.emu += offered;
        }
    }
    let (mut sum, mut jobs) = (0.0, 0u32);
    for s in seen.be() {
        if let Some(share) = throughput(s.instr_per_s, alone.get(&s.id)) {
            (sum, jobs) = (sum + share, jobs + 1);
        }
    }
    if jobs > 0 {
        let mean = sum / f64::from(jobs);
        marks.be_throughput = Some(mean);
        marks.be_throughput_met = Some(if avoidable_miss { 0.0 } else { mean });
    }
    if all_met {
        marks.emu_cosmos = marks.offered + sum;
    }
    marks
}

/// Of a BE job, relative to running alone; None while it is unknown.
pub fn throughput(instr_per_s: Option<f64>, alone_instr_per_s: Option<&f64>) -> Option<f64> {
    Some(instr_per_s? / alone_instr_per_s.filter(|a| **a > 0.0)?)
}
