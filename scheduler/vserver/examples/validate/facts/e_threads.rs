//! More threads than cores (OSML paper, Sec. 3.2).

use super::lab::{Alone, Lab};
use super::{ascending, list, three, Fact, Kind};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let with = |threads| Alone { threads, ..Alone::new("moses", 2600.0).ways(13) };
    let p99: Vec<f64> = [8, 20, 28, 36].iter().map(|t| lab.p99_ms(&with(*t).cores(8))).collect();
    let needed: Vec<u32> = [20, 28, 36].iter().map(|t| lab.cores_needed(&with(*t)).unwrap_or(u32::MAX)).collect();
    let spread = needed.iter().max().zip(needed.iter().min()).map_or(0, |(a, b)| a - b);
    vec![
        Fact::new(
            Kind::Fit,
            "OSML 3.2",
            "moses at 8 cores: latency rises with 8/20/28/36 threads",
            "rising",
            list(p99.iter().map(|x| three(*x))),
            ascending(&p99) && p99[3] > 1.02 * p99[0],
        ),
        Fact::new(
            Kind::Pred,
            "OSML 3.2",
            "moses: cores needed with 20/28/36 threads",
            "within 1 core",
            list(&needed),
            needed.iter().all(|c| *c < u32::MAX) && spread <= 1,
        ),
    ]
}
