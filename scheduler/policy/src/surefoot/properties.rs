//! What holds at each step, whatever comes: the properties that the module's page names, on random plants, models and settings.

use super::*;
use crate::perfect::Perfect;
use crate::testing::Plant;
use proptest::prelude::*;
use surefoot_server::settable::Settable;
use surefoot_server::Kind;

const IDS: [&str; 7] = ["a", "b", "c", "d", "slow", "x", "y"];

/// One thing that happens to the plant, and for how many intervals nothing else does.
#[derive(Clone, Debug)]
struct Event {
    what: u8,
    on: usize,
    demand: f64,
    intervals: u32,
}

#[derive(Clone, Debug)]
struct World {
    platform: Platform,
    events: Vec<Event>,
    /// Model-B's factor, Model-A's error in cores, and whether models are silent.
    models: (f64, f64, bool),
    /// Settings at one of their bounds.
    extremes: Vec<(usize, bool)>,
}

fn worlds() -> impl Strategy<Value = World> {
    let platform = (4..25u32, prop_oneof![Just(0u32), 2..12u32], prop_oneof![3 => Just(1.0), 1 => Just(0.25)])
        .prop_map(|(cores, ways, core_step)| Platform { core_step, ..Platform::regular("t", cores, 1, ways, 2.0) });
    let event =
        (0..6u8, 0..IDS.len(), 0.2..9.0f64, 1..25u32).prop_map(|(what, on, demand, intervals)| Event { what, on, demand, intervals });
    let models = (prop_oneof![Just(1.0), 0.2..3.0f64], prop_oneof![Just(0.0), -3.0..3.0f64], prop::bool::weighted(0.2));
    let extremes = prop::collection::vec((0..Settings::table().len(), any::<bool>()), 0..4);
    (platform, prop::collection::vec(event, 1..14), models, extremes).prop_map(|(platform, events, models, extremes)| World {
        platform,
        events,
        models,
        extremes,
    })
}

/// Run a world; `look` is given the observation of each step, the plan, and the policy before and after it.
fn run(
    world: &World,
    mut look: impl FnMut(&Observation, &Plan, &Books, &Surefoot) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut settings = Settings::default();
    for (i, high) in &world.extremes {
        let s = &Settings::table()[*i];
        let at = vec![if *high { s.high } else { s.low }; s.len.unwrap_or(1)];
        settings.assign(&s.name(), &at).map_err(TestCaseError::fail)?;
    }
    let mut plant = Plant::new(&world.platform);
    // Models know every service that may come.
    let mut all = Plant::new(&world.platform);
    let kind = |id: &str| match id {
        "x" | "y" => Kind::Be,
        "slow" => Kind::Lc { qos_target_ms: 2000.0 },
        _ => Kind::Lc { qos_target_ms: 10.0 },
    };
    IDS.iter().for_each(|id| all.add(id, kind(id), 2.0));
    let mut models = Perfect::of(&all);
    (models.b_factor, models.error_cores, models.mute) = world.models;
    let notes = models.notes.clone();
    let mut policy = Surefoot::new(&world.platform, Box::new(models), settings);
    for event in &world.events {
        let id = IDS[event.on];
        let here = plant.tenants.iter().any(|t| t.id == id);
        match event.what {
            0..=2 if !here => plant.add(id, kind(id), event.demand),
            0 => plant.tenants.retain(|t| t.id != id),
            1 if here => plant.tenant(id).silent ^= true,
            _ if here => plant.tenant(id).demand = event.demand,
            _ => {}
        }
        notes.borrow_mut().demand = plant.tenants.iter().map(|t| (t.id.clone(), t.demand)).collect();
        for _ in 0..event.intervals {
            plant.tick();
            let (seen, before) = (plant.observe(), policy.books.clone());
            let plan = policy.step(plant.t_ms, &seen);
            look(&seen, &plan, &before, &policy)?;
            // A plan that breaks a rule of servers fails the test here.
            plant.apply(&plan);
        }
    }
    Ok(())
}

/// What a service holds alone in the books; nothing before it is placed.
fn own(books: &Books, id: &str) -> Amount {
    books.slot(id).map_or(Amount::default(), |s| s.own)
}

proptest! {
    // A fixed seed: the same cases every time.
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(2026),
        ..ProptestConfig::default()
    })]

    /// No service that is placed holds less than the least, and together they hold no more than there is.
    #[test]
    fn no_service_is_below_its_least(world in worlds()) {
        run(&world, |_, _, _, after| {
            let (least, total) = (after.books.least(), after.books.total());
            let sum = after.books.slots().iter().fold(Amount::default(), |sum, s| sum.plus(s.own));
            prop_assert!(after.books.slots().iter().all(|s| least.fits_in(s.own)) && sum.fits_in(total), "{:?}", after.books.slots());
            Ok(())
        })?;
    }

    /// What no service gains none loses: a plan for services that miss their targets leaves none of a resource free that it took from another.
    /// Newcomers and services without models aside: what they will need is not known yet.
    #[test]
    fn what_no_service_gains_none_loses(world in worlds()) {
        prop_assume!(!world.models.2);
        run(&world, |seen, plan, before, after| {
            let is_for_others = |a: &Action| a.kind == ActionKind::Deprive && a.why.starts_with("target missed");
            let others = plan.actions.iter().all(|a| matches!(a.kind, ActionKind::Deprive | ActionKind::Grow));
            let newcomer = after.lives.values().any(|l| l.features.is_empty() && l.is_new());
            if !plan.actions.iter().any(is_for_others) || !others || newcomer {
                return Ok(());
            }
            let free = after.books.free();
            for a in plan.actions.iter().filter(|a| is_for_others(a)) {
                let lost = own(before, &a.service).minus(own(&after.books, &a.service));
                prop_assert!(lost.at_most(free).is_zero(), "{}: {:?} of {:?} is free; {:?}", a.service, lost, free, seen.t_ms);
            }
            Ok(())
        })?;
    }

    /// A service whose latency is unknown loses nothing, by the policy's own choice and not by the guard's.
    #[test]
    fn unknown_latency_loses_nothing(world in worlds()) {
        run(&world, |seen, plan, before, after| {
            for s in seen.lc().filter(|s| s.latency_unknown()) {
                let lost = own(before, &s.id).minus(own(&after.books, &s.id));
                prop_assert!(lost.is_zero(), "{} loses {:?}: {:?}", s.id, lost, plan.actions.iter().map(|a| &a.why).collect::<Vec<_>>());
            }
            Ok(())
        })?;
    }

    /// The same observations in the same order give the same plans.
    #[test]
    fn the_same_state_gives_the_same_plan(world in worlds()) {
        let mut plans = vec![];
        run(&world, |_, plan, _, _| {
            plans.push(plan.clone());
            Ok(())
        })?;
        let mut first = plans.into_iter();
        run(&world, |_, plan, _, _| {
            prop_assert_eq!(Some(plan.clone()), first.next());
            Ok(())
        })?;
    }
}
