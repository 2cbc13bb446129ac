//! The server in 100 ms ticks: accumulated requests (OSML paper, Fig. 4; OSML+ paper, Sec. 4.3 and 4.4), cache warm-up, determinism.

use super::lab::Lab;
use super::{ascending, Fact, Kind};
use surefoot_server::CpuSet;
use surefoot_vserver::{Change, Plant, Sample, Tenant, MAX_DOMAINS};

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let mut out = backlog(lab);
    out.extend(cache(lab));
    out.push(determinism(lab));
    out
}

fn plant(lab: &Lab, seed: Option<u64>) -> Plant {
    Plant::new(lab.platform("server-1"), seed, 0.1)
}

fn add(lab: &Lab, plant: &mut Plant, service: &str, rps: f64, cpus: CpuSet, ways: u32, warm: bool) {
    plant.add(service, Tenant::new(lab.profile(service), rps, 36, cpus, ways), warm).expect("a valid tenant");
}

/// `ticks` ticks; the only tenant's sample of each.
fn run(plant: &mut Plant, ticks: usize) -> Vec<Sample> {
    (0..ticks).map(|_| plant.step()[0]).collect()
}

fn p99_ms(s: &Sample) -> f64 {
    s.latency.expect("LC").p99
}

/// Img-dnn at 5000 RPS: 12 cores, then 7 for 30 s, then 13.
fn backlog(lab: &mut Lab) -> Vec<Fact> {
    let target_ms = lab.qos_target_ms("img-dnn");
    let mut s = plant(lab, None);
    let cores = |s: &mut Plant, n| s.change("img-dnn", Change::Cpus(CpuSet::range(0, n))).expect("valid");
    add(lab, &mut s, "img-dnn", 5000.0, CpuSet::range(0, 12), 0xfff, true);
    let normal_ms = p99_ms(&run(&mut s, 20)[19]);
    cores(&mut s, 7);
    let times = p99_ms(&run(&mut s, 300)[299]) / normal_ms;
    cores(&mut s, 13);
    let cured = run(&mut s, 1200).iter().position(|x| p99_ms(x) <= target_ms).unwrap_or(1200) as f64 / 10.0;
    vec![
        Fact::new(
            Kind::Pred,
            "OSML Fig. 4",
            "img-dnn 30 s below the cliff (7 cores): latency over its normal value",
            "100-2000x",
            format!("{times:.0}x"),
            (100.0..=2000.0).contains(&times),
        ),
        Fact::new(
            Kind::Pred,
            "OSML+ 4.3-4.4",
            "accumulated requests keep QoS violated for tens of seconds after the cure (13 cores)",
            "5-120 s",
            format!("{cured:.1} s"),
            (5.0..=120.0).contains(&cured),
        ),
    ]
}

/// Specjbb starts cold, then loses ways to a job that arrives later.
fn cache(lab: &mut Lab) -> Vec<Fact> {
    let mut s = plant(lab, None);
    add(lab, &mut s, "specjbb", 11000.0, CpuSet::range(0, 12), 0x3fff, false);
    let misses = |s: &Sample| s.llc_misses_per_s;
    let cold = run(&mut s, 60);
    let settled = misses(&cold[59]);
    let warm_s = cold.iter().position(|x| misses(x) < 1.05 * settled).unwrap_or(60) as f64 / 10.0;
    let first = misses(&cold[0]) / settled;

    s.change("specjbb", Change::Ways([0xf; MAX_DOMAINS])).expect("valid");
    let at_once = misses(&run(&mut s, 1)[0]) / settled;
    s.add("stream", lab.job("stream", 6, CpuSet::range(12, 18), 0xffff0), false).expect("valid");
    let after = run(&mut s, 40);
    let (soon, later) = (misses(&after[0]) / settled, misses(&after[39]) / settled);
    vec![
        Fact::new(
            Kind::Check,
            "physics",
            "cold start: misses of the first 100 ms over those after 6 s; time to within 5 %",
            ">1.3x, 0.2-5 s",
            format!("{first:.2}x, {warm_s:.1} s"),
            first > 1.3 && (0.2..=5.0).contains(&warm_s),
        ),
        Fact::new(
            Kind::Check,
            "physics",
            "taken ways are lost as the new owner fills them, not at once (misses: same tick, 0.1 s, 4 s later)",
            "rising",
            format!("{at_once:.2}x, {soon:.2}x, {later:.2}x"),
            at_once < soon && ascending(&[soon, 1.02 * later]),
        ),
    ]
}

fn determinism(lab: &mut Lab) -> Fact {
    let mut twins = [plant(lab, Some(7)), plant(lab, Some(7))];
    for s in &mut twins {
        add(lab, s, "xapian", 4400.0, CpuSet::range(0, 9), 0xfff, false);
        add(lab, s, "sphinx", 4.0, CpuSet::range(9, 18), 0xff000, false);
    }
    let [a, b] = &mut twins;
    // Debug prints every bit of a float.
    let same = (0..50).all(|_| format!("{:?}", a.step()) == format!("{:?}", b.step()));
    Fact::new(Kind::Check, "determinism", "same seed, same bits, 50 ticks", "equal", same.to_string(), same)
}
