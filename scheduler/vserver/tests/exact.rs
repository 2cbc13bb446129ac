//! The plant's laws beside every request by itself: plant.md's example of a backlog, and services at rest.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::profiles;
use surefoot_server::CpuSet;
use surefoot_vserver::{Change, Plant, Tenant};

/// Mean p99 (ms) of several seeds in the interval that ends at each of these instants.
fn p99_ms(exact: bool, at_ms: &[u64]) -> Vec<f64> {
    const SEEDS: u64 = 12;
    let profiles = profiles();
    let platform = profiles.platform("server-1").unwrap();
    let mut sum = vec![0.0; at_ms.len()];
    for seed in 1..=SEEDS {
        let plant = Plant::new(platform.clone(), Some(seed), 0.1);
        let mut plant = if exact { plant.exact() } else { plant };
        let service = profiles.service("img-dnn").unwrap().clone();
        let mask = (1 << platform.llc.ways) - 1;
        plant.add("img-dnn", Tenant::new(service, 5000.0, 20, CpuSet::range(0, 20), mask), true).unwrap();
        let end = *at_ms.last().unwrap();
        for ms in (100..=end).step_by(100) {
            // What is decided at 1 s and at 6 s.
            let cores = [(1000, 7), (6000, 14)].into_iter().find(|(at, _)| *at == ms - 100).map(|(_, n)| n);
            if let Some(n) = cores {
                plant.change("img-dnn", Change::Cpus(CpuSet::range(0, n))).unwrap();
            }
            let seen = plant.step()[0];
            if let Some(i) = at_ms.iter().position(|at| *at == ms) {
                sum[i] += seen.latency.unwrap().p99 / SEEDS as f64;
            }
        }
    }
    sum
}

/// img-dnn at 5,000 RPS, cores 20 -> 7 at 1 s -> 14 at 6 s: a backlog is told of by the requests that leave it.
///
/// The values are of a simulation that was written apart from this one.
#[test]
fn a_backlog_is_seen_by_those_that_complete() {
    let expected = [(6000, 829.0), (6100, 829.0), (6200, 750.0), (6500, 564.0), (7000, 243.0)];
    for exact in [true, false] {
        let got = p99_ms(exact, &expected.map(|(at_ms, _)| at_ms));
        println!("exact {exact}: {got:?}");
        for ((at_ms, expected), got) in expected.into_iter().zip(&got) {
            assert!((got / expected - 1.0).abs() < 0.1, "exact {exact}, at {at_ms} ms: {got} of {expected}");
        }
    }
}

/// At rest the laws and the requests agree: no backlog, no change.
#[test]
fn at_rest_the_laws_say_the_same() {
    let profiles = profiles();
    let platform = profiles.platform("server-1").unwrap();
    let mask = (1 << platform.llc.ways) - 1;
    for (name, rps, cores) in [("img-dnn", 3000.0, 14), ("xapian", 2000.0, 12), ("memcached", 200_000.0, 20)] {
        let p99 = |exact: bool| {
            let mut p99s: Vec<f64> = vec![];
            for seed in 1..=6 {
                let plant = Plant::new(platform.clone(), Some(seed), 0.1);
                let mut plant = if exact { plant.exact() } else { plant };
                let service = profiles.service(name).unwrap().clone();
                plant.add(name, Tenant::new(service, rps, 20, CpuSet::range(0, cores), mask), true).unwrap();
                p99s.extend((0..40).map(|_| plant.step()[0].latency.unwrap().p99).skip(20));
            }
            p99s.sort_by(f64::total_cmp);
            p99s[p99s.len() / 2]
        };
        let (exact, law) = (p99(true), p99(false));
        println!("{name}: {exact:.3} ms, by law {law:.3} ms");
        assert!((law / exact - 1.0).abs() < 0.1, "{name}: {exact} ms, by law {law} ms");
    }
}

/// The same seed gives the same bits, whichever services were there before.
#[test]
fn the_same_seed_gives_the_same_bits() {
    let profiles = profiles();
    let platform = profiles.platform("server-1").unwrap();
    let mask = (1 << platform.llc.ways) - 1;
    let bits = |others: &[&str], seed: u64| {
        let mut plant = Plant::new(platform.clone(), Some(seed), 0.1).exact();
        let mut add = |name: &str| {
            let service = profiles.service(name).unwrap().clone();
            plant.add(name, Tenant::new(service, 2000.0, 20, CpuSet::range(0, 12), mask), true).unwrap();
        };
        others.iter().for_each(|name| add(name));
        add("img-dnn");
        others.iter().for_each(|name| assert!(plant.remove(name)));
        (0..20).map(|_| plant.step()[0].latency.unwrap().p99.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(bits(&[], 1), bits(&["xapian", "moses"], 1));
    assert_ne!(bits(&[], 1), bits(&[], 2));
}
