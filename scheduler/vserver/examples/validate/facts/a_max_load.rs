//! Maximum loads: OSML+ paper, Table 2 (Server 1), and the authors' public configuration (Servers 2 and 3, which no
//! calibration used).

use super::lab::{Alone, Lab, LC, UNSEEN};
use super::{Fact, Kind};

/// Maximum load of each of [`LC`] in the authors' configuration, RPS.
const CONFIGURED_RPS: [(&str, [f64; 11]); 2] = [
    ("server-2", [3000.0, 2000.0, 1310720.0, 9000.0, 1000.0, 307200.0, 7500.0, 25.0, 2000.0, 2000.0, 600.0]),
    ("server-3", [1000.0, 1200.0, 1310720.0, 9000.0, 800.0, 307200.0, 6000.0, 15.0, 1800.0, 800.0, 300.0]),
];

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let listed = LC.iter().map(|n| ("OSML+ Table 2", *n)).chain(UNSEEN.iter().map(|n| ("unseen", *n)));
    let mut out: Vec<Fact> = listed.map(|(source, service)| of_server_1(lab, source, service)).collect();
    for (platform, table) in CONFIGURED_RPS {
        for (service, want_rps) in LC.iter().zip(table) {
            let text = format!("{service}: maximum load on {platform}, RPS");
            out.push(Fact::near(Kind::Pred, "authors' configuration", text, want_rps, 1.5, lab.max_load_rps(service, platform)));
        }
    }
    out
}

/// The model's maximum load alone on all resources, over the published one (the highest catalogue level).
fn of_server_1(lab: &mut Lab, source: &'static str, service: &'static str) -> Fact {
    let target_ms = lab.qos_target_ms(service);
    let published_rps = *lab.rps_levels(service).last().expect("levels");
    let (mut lo, mut hi) = (0.3, 4.0);
    for _ in 0..22 {
        let mid = 0.5 * (lo + hi);
        if lab.p99_ms(&Alone::new(service, published_rps * mid)) <= target_ms {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    let text = format!("{service}: highest RPS meeting {target_ms} ms p99 alone on all of Server 1, over the published maximum");
    Fact::new(Kind::Fit, source, text, "1.00-1.20", format!("{lo:.2}"), (1.0..=1.2).contains(&lo))
}
