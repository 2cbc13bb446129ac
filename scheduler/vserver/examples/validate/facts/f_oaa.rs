//! The OAA sits a little off the RCliff (OSML paper, Sec. 4.1): two cores and one way off the edge, any single loss is harmless.

use super::lab::{Alone, Lab};
use super::{Fact, Kind};

const CASES: [(&str, f64); 5] = [("img-dnn", 2000.0), ("login", 1500.0), ("moses", 2800.0), ("xapian", 5200.0), ("specjbb", 11000.0)];

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    CASES.iter().map(|(service, rps)| robust(lab, service, *rps)).collect()
}

fn robust(lab: &mut Lab, service: &'static str, rps: f64) -> Fact {
    let a = Alone::new(service, rps);
    let target_ms = lab.qos_target_ms(service);
    let mb_per_way = lab.platform(a.platform).llc.mb_per_way;
    let with_all = lab.cores_needed(&a).unwrap_or(99);
    // Fewest ways that cost at most one core more.
    let ways = (1..=20).find(|w| lab.cores_needed(&a.ways(*w)).unwrap_or(99) <= with_all + 1).unwrap_or(20);
    let cores = lab.cores_needed(&a.ways(ways)).unwrap_or(99);
    let losses = [(0, 0), (1, 0), (0, 1), (1, 1)];
    let holds = losses.iter().all(|(c, w)| lab.p99_ms(&a.cores(cores + 2 - c).ways((ways + 1).min(20) - w)) <= target_ms);
    let got = format!("{} (edge {cores} cores {} MB)", if holds { "yes" } else { "no" }, f64::from(ways) * mb_per_way);
    let text = format!("{service} at {rps} RPS: the edge +2 cores +1 way still meets the target after any single loss");
    Fact::new(Kind::Pred, "OSML 4.1", text, "yes", got, holds)
}
