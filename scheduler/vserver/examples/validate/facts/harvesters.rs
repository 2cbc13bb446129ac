//! The simple baselines of SmartHarvest, section 5.1, to judge the plant. No policy is built here.

use surefoot_vserver::{CoreUse, PrimaryVm};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Baseline {
    NoHarvest,
    /// The group keeps so many cores, whatever they do.
    Keep(u32),
    /// PerfIso: the group keeps its busy cores and so many more, judged at each poll.
    Fixed(u32),
    /// The group keeps the peak of the window before, or all cores after a window that exhausted them.
    PrevPeak,
}

impl Baseline {
    pub fn name(self) -> String {
        match self {
            Baseline::NoHarvest => "no harvesting".into(),
            Baseline::Keep(k) => format!("{k} cores kept"),
            Baseline::Fixed(b) => format!("fixed buffer {b}"),
            Baseline::PrevPeak => "PrevPeak".into(),
        }
    }
}

/// Run until `end_s`; after each change of cores `settle_s` passes without a reading (10 ms with cpugroups).
pub fn run(cores: &mut CoreUse, vm: &PrimaryVm, baseline: Baseline, settle_s: f64, end_s: f64) {
    let all = cores.cores();
    let total = all.busy + all.idle + all.harvested;
    let poll_s = vm.poll_us * 1e-6;
    match baseline {
        Baseline::NoHarvest => cores.step_to(end_s),
        Baseline::Keep(keep) => {
            cores.request_cores(keep.min(total)).expect("1 to all cores");
            cores.step_to(end_s);
        }
        Baseline::Fixed(buffer) => {
            while cores.now_s() < end_s {
                let now = cores.cores();
                let keep = (now.busy + buffer).min(total);
                let moves = keep != now.assigned();
                if moves {
                    cores.request_cores(keep).expect("1 to all cores");
                }
                cores.step_to(cores.now_s() + if moves { settle_s.max(poll_s) } else { poll_s });
                cores.start_window();
            }
        }
        Baseline::PrevPeak => {
            let window_s = vm.window_ms * 1e-3;
            while cores.now_s() < end_s {
                cores.start_window();
                // Cores on their way are the group's; with all of them there is nothing to return.
                let full = cores.cores().assigned() == total;
                let until_s = cores.now_s() + window_s;
                let exhausted = if full {
                    cores.step_to(until_s);
                    false
                } else {
                    cores.step_to_exhaustion(until_s)
                };
                let now = cores.cores();
                let keep = if exhausted { total } else { u32::from(cores.peak()).max(now.busy + 1).min(total) };
                if keep != now.assigned() {
                    cores.request_cores(keep).expect("1 to all cores");
                    cores.step_to(cores.now_s() + settle_s);
                }
            }
        }
    }
}
