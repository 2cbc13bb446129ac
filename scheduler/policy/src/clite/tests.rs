use super::*;
use crate::testing::Plant;
use surefoot_server::Kind;

fn clite(p: &Platform, seed: u64) -> Clite {
    Clite::new(p, CliteSettings::default(), seed)
}

fn step(plant: &mut Plant, policy: &mut Clite) -> Plan {
    plant.tick();
    let plan = policy.step(plant.t_ms, &plant.observe());
    plant.apply(&plan);
    plan
}

fn held(plant: &Plant) -> Vec<(f64, f64)> {
    plant.tenants.iter().map(|t| (plant.cores(&t.id), plant.ways(&t.id))).collect()
}

/// A plant without queues: those that the bootstrap leaves take this one minutes to serve.
fn fresh(p: &Platform) -> Plant {
    Plant { queues: false, ..Plant::new(p) }
}

/// Three services, one of which needs 3 of 8 cores (p99 = 3 + 1 / (1 - 1.8 / c): 13 ms on an equal share of 2), and a job.
fn three(p: &Platform) -> Plant {
    fresh(p).lc("a", 1.8, 10.0).lc("b", 0.5, 10.0).lc("c", 0.4, 10.0).be("x")
}

fn server() -> Platform {
    Platform::regular("t", 8, 1, 16, 2.0)
}

/// The first samples are the equal partition and everybody's extreme, and every sample lasts its 2 s.
#[test]
fn a_search_begins_with_the_bootstrap_and_gives_every_sample_its_period() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = fresh(&p).lc("a", 7.0, 10.0).lc("b", 3.0, 10.0).be("x");
    let mut policy = clite(&p, 1);
    let (mut at, mut tried) = (vec![], vec![]);
    for _ in 0..300 {
        if !step(&mut plant, &mut policy).is_empty() {
            at.push(plant.t_ms);
            tried.push(held(&plant));
        }
    }
    let (most, least) = ((10.0, 7.0), (1.0, 1.0));
    assert_eq!(tried[..4], [vec![(4.0, 3.0); 3], vec![most, least, least], vec![least, most, least], vec![least, least, most]]);
    assert!(at.len() > 4 && at.windows(2).all(|w| w[1] - w[0] >= 2000), "{at:?}");
    assert!(tried.iter().all(|t| t.iter().map(|h| h.0).sum::<f64>() == 12.0 && t.iter().map(|h| h.1).sum::<f64>() == 9.0));
}

/// It finds a partition that meets all targets where the equal one does not, ends its search and holds what it found.
#[test]
fn it_converges_and_holds() {
    let p = server();
    for seed in 1..=3 {
        let mut plant = three(&p);
        let mut policy = clite(&p, seed);
        let at = plant.run(&mut policy, 180);
        assert!(at.is_some_and(|t| t > 8_000), "{at:?}");
        assert!(plant.all_met() && matches!(policy.phase, Phase::Holding { .. }), "{:?}", policy.phase);
        assert!((0..300).all(|_| step(&mut plant, &mut policy).is_empty() && plant.all_met()));
    }
}

/// The search goes on while no sample meets all targets, however little it hopes for, and ends with its last sample: then it says
/// so of everybody whom the partition that it holds leaves short, and begins again later.
#[test]
fn without_success_the_search_ends_with_its_budget() {
    let p = Platform::regular("t", 8, 1, 8, 2.0);
    // 6 + 6 busy cores on 8: whatever is held leaves both short, and c well.
    let mut plant = fresh(&p).lc("a", 6.0, 10.0).lc("b", 6.0, 10.0).lc("c", 0.3, 10.0);
    let set = CliteSettings { most_samples: 12, stop: 10.0, ..CliteSettings::default() };
    let mut policy = Clite::new(&p, set, 1);
    let (mut told, mut held_at, mut sampled_again) = (vec![], None, None);
    for _ in 0..700 {
        let plan = step(&mut plant, &mut policy);
        told.extend(plan.reports.iter().map(|r| match r {
            Report::Migrate { service, why } => (plant.t_ms, service.clone(), why.contains("best of 12 partitions")),
            other => panic!("{other:?}"),
        }));
        match policy.phase {
            Phase::Holding { .. } => held_at = held_at.or(Some(plant.t_ms)),
            Phase::Sampling if held_at.is_some() => sampled_again = sampled_again.or(Some(plant.t_ms)),
            Phase::Sampling => {}
        }
    }
    // 12 samples of 2 s; the next search 30 s later.
    assert_eq!((held_at, sampled_again), (Some(24_100), Some(54_100)));
    assert_eq!(told, ["a", "b"].map(|id| (24_100, id.to_string(), true)));
}

/// Dropout-copy keeps the part of an LC service that does best, of a sample in which it does, and everything else is open.
#[test]
fn who_does_best_keeps_its_part() {
    let p = server();
    let mut policy = clite(&p, 1);
    let space = Space::new(&p, 2, 1).unwrap();
    (policy.lc, policy.be) = (vec!["a".into(), "b".into()], vec!["x".into()]);
    let sample = |partition: Partition, qos: [f64; 2]| Sample {
        point: space.point(&partition),
        partition,
        p99_ms: vec![Some(1.0); 2],
        qos: qos.to_vec(),
        work: vec![1.0],
        requests: vec![100; 2],
    };
    // Nobody meets its target: b is the closest, in the second one.
    policy.samples = vec![sample(space.equal(), [0.5, 0.2]), sample(space.extreme(1), [0.1, 0.9])];
    assert_eq!(policy.dropout(&space, &[0.1, 0.2]), Some((1, 1)));
    // Above the target more is not better: the sample with the best score counts, and of the two services in it one by chance.
    policy.samples = vec![sample(space.extreme(0), [9.0, 0.2]), sample(space.equal(), [1.0, 1.2]), sample(space.extreme(1), [0.3, 8.0])];
    let drawn: std::collections::BTreeSet<_> = (0..40).filter_map(|_| policy.dropout(&space, &[0.2, 0.7, 0.3])).collect();
    assert_eq!(drawn, [(0, 1), (1, 1)].into());
    // Of two holders one is what the other leaves.
    assert_eq!(policy.dropout(&Space::new(&p, 1, 1).unwrap(), &[0.2, 0.7, 0.3]), None);
}

/// Where all is met and hardly any improvement is expected the search ends at once.
#[test]
fn expected_improvement_ends_the_search() {
    let p = server();
    let held_after = |stop: f64| {
        let mut plant = fresh(&p).lc("a", 0.5, 10.0).lc("b", 0.5, 10.0).be("x");
        let mut policy = Clite::new(&p, CliteSettings { stop, ..CliteSettings::default() }, 1);
        (0..1500).find(|_| {
            step(&mut plant, &mut policy);
            matches!(policy.phase, Phase::Holding { .. })
        })
    };
    // The equal partition, two services' and the jobs' extreme: 4 samples, 8 s; nothing more where no improvement is enough.
    assert_eq!(held_after(10.0), Some(80));
    assert!(held_after(0.0).is_none_or(|t| t > 80));
}

/// Who arrives or leaves, and another load, start the search anew; a steady load does not.
#[test]
fn the_search_starts_anew_with_the_mix_and_the_load() {
    let p = server();
    let mut plant = fresh(&p).lc("a", 1.0, 10.0).be("x");
    let mut policy = clite(&p, 1);
    assert!(plant.run(&mut policy, 150).is_some());
    assert!(matches!(policy.phase, Phase::Holding { .. }));
    plant.add("b", Kind::Lc { qos_target_ms: 10.0 }, 1.0);
    step(&mut plant, &mut policy);
    assert_eq!((policy.phase.clone(), policy.ahead.len(), policy.samples.len()), (Phase::Sampling, 3, 0));
    assert_eq!(held(&plant), [(2.0, 5.0), (3.0, 6.0), (3.0, 5.0)]);
    assert!(plant.run(&mut policy, 150).is_some() && matches!(policy.phase, Phase::Holding { .. }));
    plant.tenants.remove(0);
    step(&mut plant, &mut policy);
    assert_eq!(policy.ahead.len(), 2);
    let before = [1000, 20];
    // 20 % less is another load, but not of 20 requests.
    assert!(!policy.differ(&before, &[1000, 20]) && !policy.differ(&before, &[810, 14]) && policy.differ(&before, &[790, 20]));
}

/// A held partition that misses a target is measured again, and the search goes on from all samples.
#[test]
fn a_held_partition_that_fails_sends_it_searching() {
    let p = server();
    let mut plant = three(&p);
    let mut policy = clite(&p, 1);
    assert!(plant.run(&mut policy, 180).is_some());
    let samples = policy.samples.len();
    plant.tenant("b").demand = plant.cores("b") * 0.9;
    let resumed = (0..100).find(|_| {
        step(&mut plant, &mut policy);
        policy.phase == Phase::Sampling
    });
    assert!(resumed.is_some_and(|t| t >= 20), "two periods, {resumed:?}");
    assert!(policy.samples.len() >= samples);
    // The plant's requests do not follow its demand.
    assert!(plant.run(&mut policy, 180).is_some());
}

/// A service that falls silent keeps what it has, and nothing is tried while it is silent.
#[test]
fn nothing_is_taken_from_the_silent() {
    let p = server();
    for silent_at in [10, 30, 60, 90, 130] {
        let mut plant = three(&p);
        let mut policy = clite(&p, 1);
        for _ in 0..silent_at {
            step(&mut plant, &mut policy);
        }
        plant.tenant("a").silent = true;
        let (cores, ways) = (plant.cores("a"), plant.ways("a"));
        let mut plans = 0;
        for t in 0..100 {
            plans += usize::from(!step(&mut plant, &mut policy).is_empty());
            assert!(plant.cores("a") >= cores && plant.ways("a") >= ways, "{silent_at} {t}");
        }
        assert!(plans <= 1, "{plans}");
        let (cores, ways) = (plant.cores("a"), plant.ways("a"));
        plant.add("d", Kind::Lc { qos_target_ms: 10.0 }, 0.3);
        let placed = !step(&mut plant, &mut policy).is_empty();
        assert!(plant.cores("a") >= cores && plant.ways("a") >= ways, "{silent_at}");
        // Beside the extreme of the silent one there is no room for one more.
        assert_eq!(placed, cores <= 4.0 && ways <= 12.0, "{silent_at}");
        plant.tenant("a").silent = false;
        assert!(plant.run(&mut policy, 180).is_some());
    }
}

/// The same seed decides the same, another one something else.
#[test]
fn decisions_follow_from_the_seed() {
    let run = |seed| {
        let p = server();
        let mut plant = three(&p);
        let mut policy = clite(&p, seed);
        (0..400).map(|_| step(&mut plant, &mut policy)).collect::<Vec<Plan>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// On a host with few cores the unit is a tenth of a core, and BE jobs that split a quota each have one.
#[test]
fn it_works_in_tenths_of_a_core() {
    let p = Platform { core_step: 0.1, managed: surefoot_server::CpuSet::range(0, 2), mba: None, ..Platform::regular("q", 2, 1, 0, 0.0) };
    let mut plant = fresh(&p).lc("a", 0.6, 10.0).be("x").be("y");
    assert!(plant.run(&mut clite(&p, 1), 120).is_some());
    assert!(plant.cores("a") > 0.6 && plant.cores("x") >= 0.1 && plant.cores("y") >= 0.1);
}

/// More services than ways: everything is shared, and it says so once.
#[test]
fn without_a_partition_everything_is_shared() {
    let p = Platform::regular("t", 12, 1, 2, 2.0);
    let mut plant = fresh(&p).lc("a", 1.0, 10.0).lc("b", 1.0, 10.0).lc("c", 1.0, 10.0);
    let mut policy = clite(&p, 1);
    let reports: usize = (0..50).map(|_| step(&mut plant, &mut policy).reports.len()).sum();
    assert_eq!((held(&plant), reports), (vec![(12.0, 2.0); 3], 1));
}
