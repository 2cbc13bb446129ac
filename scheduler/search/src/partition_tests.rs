//! The search against brute force over toy servers that keep the promises of [`Bench`], and nothing else.

use crate::partition::{search, Answer, Bench, Deal, Goal, Outcome, Partition, Problem, Settings, Space};
use proptest::prelude::*;
use std::cmp::Ordering;
use surefoot_server::Amount;

/// An LC service of a toy server.
#[derive(Clone, Debug)]
struct Toy {
    /// p99 / target by itself = demand / cores x (1 + lack / ways) x bump.
    demand: f64,
    lack: f64,
    /// How much it hurts others and is hurt.
    pressure: f64,
    sensitive: f64,
}

#[derive(Clone, Debug)]
struct ToyServer {
    lc: Vec<Toy>,
    jobs: usize,
    /// Of the whole server.
    ways: u32,
    be_pressure: f64,
    /// Bumps make latency and throughput anything but monotone in a service's own cores and ways.
    seed: u64,
    partitions: u64,
}

impl ToyServer {
    /// 0.7 to 1.3.
    fn bump(&self, who: u64, h: Amount) -> f64 {
        let mut x = self.seed ^ who << 40 ^ u64::from(h.cores) << 20 ^ u64::from(h.ways);
        for _ in 0..3 {
            x = (x ^ x >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9).wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
        0.7 + 0.6 * (x >> 11) as f64 / (1u64 << 53) as f64
    }

    fn alone(&self, i: usize, h: Amount) -> f64 {
        let t = &self.lc[i];
        t.demand / f64::from(h.cores) * (1.0 + t.lack / f64::from(h.ways)) * self.bump(i as u64, h)
    }

    fn least_pressure(&self, i: usize, d: &Deal) -> f64 {
        self.lc[i].pressure * f64::from(d.lc_cores[i]) / f64::from(self.ways)
    }

    fn be_by_itself(&self, rest: Amount, pct: u8) -> f64 {
        let m = f64::from(pct) / 100.0;
        // Several jobs: one may gain from a limit on the other.
        let limited = if self.jobs > 1 { 0.5 + 0.5 * (9.0 * m).sin().abs() } else { 0.3 + 0.7 * m };
        0.05 * f64::from(rest.cores) * (1.0 - 0.5 / f64::from(rest.ways)) * limited * self.bump(99, rest)
    }

    fn one(&self, p: &Partition) -> Answer {
        let m = f64::from(p.mba_pct) / 100.0;
        let be = if self.jobs > 0 { self.be_pressure * m * f64::from(p.rest.cores) } else { 0.0 };
        let mine = |i: usize| self.lc[i].pressure * f64::from(p.lc[i].cores) / f64::from(p.lc[i].ways);
        let total: f64 = (0..p.lc.len()).map(mine).sum();
        let ratio = |i: usize| self.alone(i, p.lc[i]) * (1.0 + self.lc[i].sensitive * (total - mine(i) + be));
        let be_throughput = if self.jobs > 0 { self.be_by_itself(p.rest, p.mba_pct) / (1.0 + total) } else { 0.0 };
        Answer { p99_ratio: (0..p.lc.len()).map(ratio).collect(), be_throughput }
    }
}

impl Bench for ToyServer {
    fn judge(&mut self, partitions: &[Partition]) -> Vec<Answer> {
        self.partitions += partitions.len() as u64;
        partitions.iter().map(|p| self.one(p)).collect()
    }

    fn lc_alone(&mut self, lc: usize, holds: &[Amount]) -> Vec<f64> {
        holds.iter().map(|h| self.alone(lc, *h)).collect()
    }

    fn be_alone(&mut self, rests: &[(Amount, u8)]) -> Vec<f64> {
        let slack = if self.jobs > 1 { 1.3 } else { 1.0 };
        rests.iter().map(|(h, pct)| slack * self.be_by_itself(*h, *pct)).collect()
    }

    fn lc_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64> {
        let met: Vec<usize> = (0..self.lc.len()).filter(|i| set >> i & 1 == 1).collect();
        let of = |i: usize, d: &Deal| {
            let alone = (1..=self.ways).map(|w| self.alone(i, Amount::new(d.lc_cores[i], w))).fold(f64::INFINITY, f64::min);
            let others = met.iter().filter(|j| **j != i).map(|j| self.least_pressure(*j, d));
            alone * (1.0 + self.lc[i].sensitive * others.sum::<f64>())
        };
        deals.iter().map(|d| met.iter().map(|i| of(*i, d)).fold(0.0, f64::max)).collect()
    }

    fn be_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64> {
        let limits: Vec<u8> = (1..=10).map(|x| 10 * x).collect();
        let of = |d: &Deal| {
            let by_itself = limits.iter().map(|pct| self.be_by_itself(d.rest, *pct)).fold(0.0, f64::max);
            let least: f64 = (0..self.lc.len()).filter(|i| set >> i & 1 == 1).map(|i| self.least_pressure(i, d)).sum();
            by_itself / (1.0 + least)
        };
        deals.iter().map(of).collect()
    }
}

/// Every partition under every limit.
fn everything(p: &Problem) -> Vec<Partition> {
    let (s, be) = (&p.space, u32::from(p.jobs > 0));
    let mut lists: Vec<(Vec<Amount>, Amount)> = vec![(vec![], Amount::new(s.cores, s.ways))];
    for _ in &p.loads {
        let mut longer = vec![];
        for (lc, left) in lists {
            for cores in 1..=left.cores {
                for ways in s.min_ways..=left.ways {
                    let lc = lc.iter().copied().chain([Amount { cores, ways }]).collect();
                    longer.push((lc, Amount::new(left.cores - cores, left.ways - ways)));
                }
            }
        }
        lists = longer;
    }
    lists.retain(|(_, rest)| rest.cores >= be && rest.ways >= be * s.min_ways);
    let limits = if p.jobs > 0 { &s.mba_pct[..] } else { &s.mba_pct[..1] };
    lists.iter().flat_map(|(lc, rest)| limits.iter().map(|m| Partition { lc: lc.clone(), rest: *rest, mba_pct: *m })).collect()
}

fn brute_force(p: &Problem, server: &ToyServer) -> (Partition, Answer) {
    let all = everything(p).into_iter().map(|x| (x.clone(), server.one(&x)));
    all.max_by(|a, b| p.compare((&a.0, &a.1), (&b.0, &b.1))).expect("there is a partition")
}

fn run(p: &Problem, server: &ToyServer, goal: Goal, most_judged: u64) -> Outcome {
    search(p, &mut server.clone(), &Settings { goal, most_judged }).expect("it can be partitioned")
}

fn toys(services: std::ops::RangeInclusive<usize>, cores: u32, ways: u32) -> impl Strategy<Value = (Problem, ToyServer)> {
    let toy = (0.2..3.5f64, 0.0..2.0f64, 0.0..0.3f64, 0.0..1.0f64);
    // Loads that collide now and then, so that sets tie.
    let lc = prop::collection::vec((toy, prop_oneof![Just(0.25), Just(0.5), 0.1..1.0f64]), services);
    (lc, 0usize..=2, 0.0..0.2f64, any::<u64>(), any::<bool>(), 1u32..=2).prop_map(move |(lc, jobs, be_pressure, seed, mba, min_ways)| {
        let jobs = if lc.is_empty() { jobs.max(1) } else { jobs };
        let loads = lc.iter().map(|l| l.1).collect();
        let lc = lc.into_iter().map(|(t, _)| Toy { demand: t.0, lack: t.1, pressure: t.2, sensitive: t.3 }).collect();
        let mba_pct = if mba { vec![100, 70, 50, 40, 20, 10] } else { vec![100] };
        // Five holders of two ways must fit.
        let space = Space { cores, ways: if min_ways == 2 { 10 } else { ways }, min_ways, mba_pct };
        let ways = space.ways;
        (Problem { space, loads, jobs }, ToyServer { lc, jobs, ways, be_pressure, seed, partitions: 0 })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Up to three LC services: the search finds what brute force finds, to the last tie-break, and says that it is exact.
    #[test]
    fn the_search_equals_brute_force((p, server) in toys(0..=3, 7, 6)) {
        let (partition, answer) = brute_force(&p, &server);
        let got = run(&p, &server, Goal::All, u64::MAX);
        prop_assert_eq!(&got.partition, &partition, "{:?} against {:?}", got.answer, answer);
        prop_assert!(got.exact);
        prop_assert_eq!(got.emu_bound, got.emu);
        prop_assert_eq!(got.be_bound, (p.jobs > 0).then_some(answer.be_throughput));
        let emu = run(&p, &server, Goal::Emu, u64::MAX);
        prop_assert!(emu.exact && (emu.emu - got.emu).abs() < 1e-9);
    }

    /// Ended early: what is found is no better than the best, the bounds are no worse, and "exact" is not said in vain.
    #[test]
    fn bounds_hold_when_the_search_ends_early((p, server) in toys(3..=4, 7, 7), most_judged in 1u64..3000) {
        let (partition, answer) = brute_force(&p, &server);
        let best_emu = p.emu(&answer).0;
        for goal in [Goal::All, Goal::Emu] {
            let got = run(&p, &server, goal, most_judged);
            prop_assert!(p.compare((&got.partition, &got.answer), (&partition, &answer)) != Ordering::Greater);
            prop_assert!(got.emu <= best_emu + 1e-9 && got.emu_bound >= best_emu - 1e-9, "{} {best_emu} {}", got.emu, got.emu_bound);
            if let (Some(bound), true) = (got.be_bound, (got.emu - best_emu).abs() < 1e-9) {
                prop_assert!(bound >= answer.be_throughput - 1e-9, "{bound} {}", answer.be_throughput);
            }
            if got.exact && goal == Goal::All {
                prop_assert_eq!(&got.partition, &partition);
            }
            prop_assert!(!got.exact || got.emu_bound == got.emu);
        }
    }
}

fn space(cores: u32, ways: u32) -> Space {
    Space { cores, ways, min_ways: 1, mba_pct: vec![100] }
}

fn calm(demand: f64) -> Toy {
    Toy { demand, lack: 0.0, pressure: 0.0, sensitive: 0.0 }
}

fn server(lc: Vec<Toy>, jobs: usize) -> ToyServer {
    ToyServer { lc, jobs, ways: 20, be_pressure: 0.0, seed: 7, partitions: 0 }
}

/// Three services that want 4, 4 and 2 of 8 cores: the two with the largest loads together are met, the third is named.
#[test]
fn the_best_set_is_met_when_not_all_can_be() {
    let p = Problem { space: space(8, 4), loads: vec![0.5, 0.3, 0.4], jobs: 0 };
    let toys = server(vec![calm(3.0), calm(8.0), calm(2.0)], 0);
    let got = run(&p, &toys, Goal::All, u64::MAX);
    // The second needs 8 x 0.7 = 5.6 cores at least, hence 6 of 8; the first 2.1 at least, hence 3. Not both.
    assert_eq!(got.met, [true, false, true]);
    assert!((got.emu - 0.9).abs() < 1e-12 && got.exact);
    // Fewest cores and ways: at most what the largest bumps ask for, 4 + 1 + 3 cores and one way each.
    let size: u32 = got.partition.lc.iter().map(|h| h.cores + h.ways).sum();
    assert!(size <= 4 + 1 + 3 + 3, "{size}");
}

/// A server of real size is searched to the end with a small part of its six million partitions.
#[test]
fn most_partitions_are_never_judged() {
    let p = Problem { space: space(36, 20), loads: vec![0.5, 0.5, 0.5], jobs: 1 };
    let toy = |demand| Toy { demand, lack: 1.0, pressure: 0.005, sensitive: 0.2 };
    let mut toys = server(vec![toy(5.0), toy(6.0), toy(4.0)], 1);
    let got = search(&p, &mut toys, &Settings { goal: Goal::All, most_judged: u64::MAX }).unwrap();
    assert!(got.exact && got.met.iter().all(|m| *m));
    assert!(toys.partitions < 600_000, "{}", toys.partitions);
}

/// Too many services for one core or one way each, or for the search, and nobody at all: one line.
#[test]
fn what_cannot_be_searched_is_refused() {
    let says = |cores, ways, n: usize, jobs| {
        let p = Problem { space: space(cores, ways), loads: vec![0.1; n], jobs };
        search(&p, &mut server(vec![calm(1.0); n], jobs), &Settings { goal: Goal::All, most_judged: 10 }).unwrap_err()
    };
    assert!(says(3, 9, 3, 1).contains("3 LC services and the BE jobs do not fit on 3 cores and 9 ways"));
    assert!(says(9, 2, 3, 0).contains("3 LC services do not fit on 9 cores and 2 ways"));
    assert!(says(64, 32, 13, 0).contains("takes 12"));
    assert!(says(4, 4, 0, 0).contains("no service and no job"));
}
