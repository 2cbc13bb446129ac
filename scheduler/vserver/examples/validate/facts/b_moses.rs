//! Moses, the most cache-sensitive service (OSML paper, Fig. 1-a and 2, Sec. 3.1 and 3.2), at the assumed 3000 RPS.

use super::lab::{Alone, Lab};
use super::{ascending, list, Fact, Kind};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let moses = Alone::new("moses", 3000.0);
    let mut p99 = |cores, ways| lab.p99_ms(&moses.cores(cores).ways(ways));
    let (edge, fewer_ways, wide, fewer_cores) = (p99(6, 10), p99(6, 9), p99(6, 13), p99(5, 13));
    let oaa = [p99(8, 11), p99(9, 11)];
    let near = |source, text, want, factor, got| Fact::near(Kind::Fit, source, text, want, factor, got);
    let mut out = vec![
        near("OSML Fig. 1-a", "moses 6 cores 10 ways, p99 ms", 34.0, 2.0, edge),
        near("OSML Fig. 1-a", "moses 6 cores 9 ways, p99 ms", 4644.0, 1.5, fewer_ways),
        near("OSML 3.1", "moses 6 cores 13 ways, p99 ms", 13.0, 1.5, wide),
        near("OSML 3.1", "moses 5 cores 13 ways, p99 ms", 5662.0, 1.5, fewer_cores),
        slowdown("OSML+ 3.1", "moses: 10 -> 9 ways at 6 cores, slowdown", fewer_ways / edge),
        slowdown("OSML 3.1", "moses: 6 -> 5 cores at 13 ways, slowdown", fewer_cores / wide),
        Fact::new(
            Kind::Fit,
            "OSML 3.2",
            "moses below 10 ms at 8 and 9 cores with 11 ways (OAA)",
            "<10 ms",
            format!("{:.1}, {:.1}", oaa[0], oaa[1]),
            oaa.iter().all(|x| *x < 10.0),
        ),
    ];
    let cores: Vec<u32> = [2200.0, 2400.0, 2600.0, 2800.0, 3000.0]
        .iter()
        .map(|rps| lab.cores_needed(&Alone::new("moses", *rps)).unwrap_or(u32::MAX))
        .collect();
    let moved = cores[4].saturating_sub(cores[0]);
    let text = "moses: RCliff cores shift up as RPS goes 2200 -> 3000";
    let holds = ascending(&cores) && (1..=2).contains(&moved);
    out.push(Fact::new(Kind::Pred, "OSML Fig. 2", text, "monotone, 1-2 cores", list(&cores), holds));
    let ways: Vec<u32> = [2200.0, 2600.0, 3000.0]
        .iter()
        .map(|rps| (1..=20).find(|w| lab.p99_ms(&Alone::new("moses", *rps).cores(6).ways(*w)) <= 34.0).unwrap_or(u32::MAX))
        .collect();
    let text = "moses: RCliff ways at 6 cores shift with RPS 2200/2600/3000";
    let holds = ascending(&ways) && ways[2] > ways[0];
    out.push(Fact::new(Kind::Pred, "OSML Fig. 2", text, "monotone", list(&ways), holds));
    out
}

fn slowdown(source: &'static str, text: &str, x: f64) -> Fact {
    Fact::new(Kind::Fit, source, text, ">100x", format!("{x:.0}x"), x > 100.0)
}
