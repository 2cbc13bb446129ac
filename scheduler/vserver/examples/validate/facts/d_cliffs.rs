//! Cliffs of the other services (OSML paper, Sec. 3.1; OSML+ paper, Sec. 3.1).

use super::lab::{Alone, Lab, LC};
use super::{ascending, list, three, Fact, Kind};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut out: Vec<Fact> = ["xapian", "specjbb", "sphinx"].iter().map(|n| line_moves(lab, n)).collect();
    out.extend(["moses", "xapian", "sphinx"].iter().map(|n| steep(lab, n)));

    let (short, long) = (Alone::new("sphinx", 8.0), Alone { horizon_s: 3600.0, ..Alone::new("sphinx", 8.0) });
    let (short, long) = (lab.cliff(&short).slowdown, lab.cliff(&long).slowdown);
    let text = "sphinx at 8 RPS, case of one hour instead of 120 s";
    out.push(Fact::new(Kind::Pred, "OSML 3.1", text, "grows with the length", format!("{short:.1}x -> {long:.1}x"), long > 2.0 * short));

    let c = lab.cliff(&Alone::new("mongodb", 9000.0));
    let got = format!("{:.1}x at {} cores", c.slowdown, c.cores);
    let holds = (2.0..=10.0).contains(&c.slowdown);
    out.push(Fact::new(Kind::Fit, "OSML Fig. 1-f", "mongodb: mild cliff, slowdown by one core", "2-10x", got, holds));

    out.extend(LC.iter().map(|n| exists(lab, n)));
    out
}

/// The fewest cores that meet the target grow with the load.
fn line_moves(lab: &mut Lab, service: &'static str) -> Fact {
    let needed: Vec<Option<u32>> = lab.rps_levels(service).iter().map(|rps| lab.cores_needed(&Alone::new(service, *rps))).collect();
    let lines: Vec<u32> = needed.iter().flatten().copied().collect();
    let holds = lines.len() == needed.len() && ascending(&lines) && lines.last() > lines.first();
    Fact::new(Kind::Pred, "OSML 3.1", format!("{service}: RCliff cores move with RPS"), "monotone", list(&lines), holds)
}

/// At the second highest level.
fn steep(lab: &mut Lab, service: &'static str) -> Fact {
    let levels = lab.rps_levels(service);
    let c = lab.cliff(&Alone::new(service, levels[levels.len() - 2]));
    let text = format!("{service}: slowdown by one core at the RCliff, 120 s case");
    let got = format!("{:.0}x at {} cores", c.slowdown, c.cores);
    Fact::new(Kind::Pred, "OSML 3.1", text, ">100x", got, c.slowdown > 100.0)
}

fn exists(lab: &mut Lab, service: &'static str) -> Fact {
    let c = lab.cliff(&Alone::new(service, *lab.rps_levels(service).last().expect("levels")));
    let text = format!("{service}: an RCliff exists at maximum load");
    let got = format!("{}x at {} cores", three(c.slowdown), c.cores);
    Fact::new(Kind::Pred, "OSML+ 3.1", text, ">2x for one core", got, c.slowdown > 2.0)
}
