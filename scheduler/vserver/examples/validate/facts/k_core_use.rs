//! Core use of primary VMs below a millisecond (SmartHarvest paper, Table 1): 10 cores, polled every 50 us, 25 ms windows.

use super::lab::{in_parallel, Lab};
use super::{Fact, Kind};
use surefoot_vserver::{CoreUse, Reassignment};

const SOURCE: &str = "SmartHarvest Table 1";
/// A run, seconds; the prototype's.
const RUN_S: f64 = 20.0;
const RUNS: u64 = 4;

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    ["indexserve", "memcached", "moses", "img-dnn"].iter().flat_map(|w| workload(lab, w)).collect()
}

fn workload(lab: &Lab, name: &str) -> [Fact; 2] {
    let w = lab.profiles.bursts.workload(name).expect("a shipped workload");
    let vm = lab.profiles.bursts.primary().expect("a primary VM");
    let runs = in_parallel(RUNS, |run| {
        // The VM keeps all its cores: how fast they would come back plays no part.
        let mut cores = CoreUse::new(&vm, w, Reassignment::constant(0.0), lab.run_seed(run));
        let (mut peaks, mut windows) = (0.0, 0.0);
        while cores.now_s() < RUN_S {
            cores.start_window();
            cores.step_to((windows + 1.0) * vm.window_ms * 1e-3);
            peaks += f64::from(cores.peak());
            windows += 1.0;
        }
        (cores.spent().used / cores.now_s(), peaks / windows)
    });
    let mean = runs.iter().map(|r| r.0).sum::<f64>() / RUNS as f64;
    let peak = runs.iter().map(|r| r.1).sum::<f64>() / RUNS as f64;
    let text = format!("{name} at {} QPS: mean busy cores of {}", w.qps, vm.cores);
    [
        Fact::near(Kind::Fit, SOURCE, text, w.paper_mean.expect("a published mean"), 1.1, mean),
        Fact::near(
            Kind::Fit,
            SOURCE,
            format!("{name}: mean of the peaks per {} ms window, polled every {} us", vm.window_ms, vm.poll_us),
            w.paper_peak.expect("a published peak"),
            1.12,
            peak,
        ),
    ]
}
