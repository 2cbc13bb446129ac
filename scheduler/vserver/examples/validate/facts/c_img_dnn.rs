//! Img-dnn, bound by cores (OSML paper, Fig. 1-b, Sec. 3.1), at the assumed 5000 RPS.

use super::lab::{Alone, Lab};
use super::{ascending, list, Fact, Kind};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let at = |rps| Alone::new("img-dnn", rps);
    let mut p99 = |cores, ways| lab.p99_ms(&at(5000.0).cores(cores).ways(ways));
    let (nine, eight) = (p99(9, 12), p99(8, 12));
    let fewer_ways = p99(12, 4) / p99(12, 20);
    let lines: Vec<u32> = [2000.0, 3000.0, 4000.0, 5000.0, 6000.0].iter().map(|rps| lab.cliff(&at(*rps).ways(12)).cores).collect();
    let source = "OSML Fig. 1-b";
    vec![
        Fact::near(Kind::Fit, source, "img-dnn 9 cores (5000 RPS), p99 ms", 56.0, 2.0, nine),
        Fact::near(Kind::Fit, source, "img-dnn 8 cores (5000 RPS), p99 ms", 15000.0, 2.0, eight),
        Fact::new(Kind::Fit, source, "img-dnn: 9 -> 8 cores, slowdown", ">100x", format!("{:.0}x", eight / nine), eight / nine > 100.0),
        Fact::new(
            Kind::Pred,
            "OSML 3.1",
            "img-dnn: 4 instead of 20 ways at 12 cores changes p99 by",
            "<1.2x",
            format!("{fewer_ways:.2}x"),
            fewer_ways < 1.2,
        ),
        Fact::new(
            Kind::Fit,
            "OSML 3.1",
            "img-dnn RCliff core line from 3 to 11 as RPS goes 2000 -> 6000",
            "3 ... 11 (+-1)",
            list(&lines),
            lines[0].abs_diff(3) <= 1 && lines[4].abs_diff(11) <= 1 && ascending(&lines),
        ),
    ]
}
