//! Memory in the joint plan, on the services of `cosmos-per-service`'s tests: three of 40 GB and two jobs of 24 on 16 cores and 60 GB.

use super::*;
use crate::cosmos::per_service::tests::World;
use crate::ModelSet;
use surefoot_server::Limit;

const G: f64 = (1u64 << 30) as f64;

fn policy(w: &World) -> Surefoot {
    let models = ModelSet::mute().plus_for("surefoot-memory").unwrap();
    Surefoot::with_memory(&w.platform, models, Settings::default(), crate::cosmos::Settings::default())
}

/// The same with 7 GB more of jobs.
fn tight() -> World {
    let mut w = World::new();
    w.be[0].1 = 21.0;
    w
}

/// What of memory is named of a service in plans, in GB.
fn limits(plans: &[Plan], id: &str) -> Vec<f64> {
    let of = |p: &Plan| p.changes.get(id)?.mem_limit?.bytes().map(|b| b as f64 / G);
    plans.iter().filter_map(of).collect()
}

/// The jobs have all of their pages, off the pool, and no service is below what its pages compress to. Then nothing moves any more.
#[test]
fn the_jobs_pages_fit() {
    let mut w = World::new();
    let mut policy = policy(&w);
    w.run(&mut policy, 120);
    assert!(w.memory("x").0 >= 13.9 && w.memory("y").0 >= 9.9, "{:?} {:?}", w.memory("x"), w.memory("y"));
    assert_eq!((w.memory("x").1, w.memory("y").1), (0.0, 0.0));
    for (id, gb) in [("a", 20.0), ("b", 10.0), ("c", 10.0)] {
        let (m, pool) = w.memory(id);
        assert!(m >= gb / 2.0 * 1.04 && m + pool >= gb, "{id}: {m} {pool}");
    }
    let later = w.run(&mut policy, 120);
    assert!(later.iter().flat_map(|p| &p.actions).filter(|a| a.why.contains("memory, ")).count() <= 2);
}

/// Memory begins where the kernel left it: the first limits take nothing from any service, and each later one a unit at most.
#[test]
fn memory_moves_by_units() {
    let mut w = tight();
    let mut policy = policy(&w);
    let plans = w.run(&mut policy, 60);
    let unit = 60.0 / f64::from(Settings::default().pages.units);
    for id in ["a", "b", "c"] {
        let all = limits(&plans, id);
        let uses = [("a", 20.0), ("b", 10.0), ("c", 10.0)].iter().find(|s| s.0 == id).unwrap().1 * 60.0 / 71.0;
        assert!((all[0] - uses).abs() < 0.1, "{id}: {all:?}");
        assert!(all.windows(2).all(|w| (w[1] - w[0]).abs() <= unit + 0.01), "{id}: {all:?}");
    }
    assert!(limits(&plans, "a").len() > 2, "{:?}", limits(&plans, "a"));
}

/// A policy whose services are at rest, just before a plan that may move memory.
fn open(w: &mut World) -> Surefoot {
    let mut policy = policy(w);
    w.run(&mut policy, 30);
    w.tick();
    let (t_ms, seen) = (w.seen.t_ms, w.seen.clone());
    policy.look(t_ms, &seen);
    let set = policy.set.pages;
    let pages = policy.pages.as_mut().unwrap();
    pages.next_ms = 0;
    pages.look(t_ms, &seen, &set);
    policy
}

/// A unit less of memory is offered with the cores that make up for it, and taken where the jobs lack pages: a core goes for a GiB. Where they lack
/// none, or no core is free, nothing is given.
#[test]
fn a_core_is_traded_for_memory() {
    let mut w = World::new();
    // The jobs have not all of their pages: 14 GB of 24.
    let plan_of = |w: &mut World, jobs_gb: f64, k: f64| {
        let mut policy = open(w);
        let pages = policy.pages.as_mut().unwrap();
        for (id, m) in [("a", (60.0 - jobs_gb) * 0.5), ("b", (60.0 - jobs_gb) * 0.25), ("c", (60.0 - jobs_gb) * 0.25)] {
            pages.held.insert(id.into(), m.min(20.0) * G);
            pages.used.insert(id.into(), m.min(20.0) * G);
            pages.k.insert(id.into(), if id == "a" { k } else { 0.0 });
        }
        for s in w.seen.services.iter_mut().filter(|s| s.is_lc()) {
            // Met by some per cent.
            s.window.as_mut().unwrap().p99_ms = 9.3;
        }
        let all = policy.ask_all(w.seen.t_ms, &w.seen);
        let chosen = policy.joint(&all, |_, _| Role::Keeps, Pass::Trade, 0.0).unwrap();
        let of = |id: &str| chosen.iter().find(|(i, _)| i == id).map(|(_, c)| *c).unwrap();
        (of("a").units, of("a").held.cores as i32 - policy.books.usable("a").cores as i32, of("b").units)
    };
    // A hundred thousand times -ln(r / w): a GB less is a third of a core more.
    assert_eq!(plan_of(&mut w, 20.0, 600_000.0), (-1, 1, -1));
    let mut w = World::new();
    assert_eq!(plan_of(&mut w, 20.0, 1000.0), (-1, 0, -1));
    let mut w = World::new();
    let (a, cores, b) = plan_of(&mut w, 26.0, 600_000.0);
    assert!(a >= 0 && cores == 0 && b >= 0, "{a} {cores} {b}");
    let mut w = World::new();
    // Two cores are the most that a unit may cost.
    assert_eq!(plan_of(&mut w, 20.0, 60_000_000.0), (0, 0, -1));
}

/// A host whose memory is unknown has cores and ways alone, and decides as `surefoot`.
#[test]
fn without_memory_it_is_surefoot() {
    let mut plans = vec![];
    for with in [true, false] {
        let mut w = World::new();
        w.platform.memory = None;
        let models = ModelSet::mute().plus_for("surefoot").unwrap();
        let mut policy = if with { policy(&w) } else { Surefoot::new(&w.platform, models, Settings::default()) };
        let mut all = w.run(&mut policy, 20);
        w.lc[0].needs = 6.0;
        all.extend(w.run(&mut policy, 40));
        assert!(all.iter().flat_map(|p| p.changes.values()).all(|c| c.mem_limit.is_none() && c.zswap_max.is_none()) || with);
        all.iter_mut().flat_map(|p| p.changes.values_mut()).for_each(|c| {
            assert!(c.mem_limit.is_none_or(|l| l == Limit::None));
            (c.mem_limit, c.zswap_max) = (None, None);
        });
        plans.push(all);
    }
    assert!(plans[0].iter().filter(|p| !p.is_empty()).count() > 3 && plans[0] == plans[1]);
}

/// A service of unknown latency, or one that misses its target, gives nothing; once it is well it does.
#[test]
fn the_silent_and_the_late_give_nothing() {
    for silent in [true, false] {
        let mut w = tight();
        let mut policy = policy(&w);
        w.run(&mut policy, 3);
        let before = w.memory("a").0;
        assert!(before > 15.0, "{before}");
        if silent {
            w.lc[0].silent = true;
        } else {
            w.lc[0].needs = 40.0;
        }
        let plans = w.run(&mut policy, 30);
        assert!(limits(&plans, "a").iter().all(|m| *m >= before - 0.1), "{silent}: {before} {:?}", limits(&plans, "a"));
        // The others have given all that the jobs lacked: now these need more.
        (w.lc[0].silent, w.lc[0].needs, w.be[0].1) = (false, 3.0, 25.0);
        w.run(&mut policy, 90);
        assert!(w.memory("a").0 < before, "{silent}: {before} {:?}", w.memory("a"));
    }
}

/// A service that missed its target after a loss gives nothing for a while, and then again.
#[test]
fn what_hurt_is_not_taken_again_soon() {
    let mut w = tight();
    let mut policy = policy(&w);
    w.run(&mut policy, 3);
    let before = w.memory("a").0;
    // It has given since the beginning.
    assert!(before < 16.5, "{before}");
    w.lc[0].needs = 40.0;
    w.run(&mut policy, 3);
    (w.lc[0].needs, w.be[0].1) = (3.0, 25.0);
    let plans = w.run(&mut policy, 15);
    assert!(limits(&plans, "a").iter().all(|m| *m >= before - 0.1), "{before} {:?}", limits(&plans, "a"));
    w.run(&mut policy, 90);
    assert!(w.memory("a").0 < before - 0.5, "{before} {:?}", w.memory("a"));
}

/// A job that comes later has no limit until its footprint was measured, and then room for all of it.
#[test]
fn a_job_that_comes_later_has_room() {
    let mut w = World::new();
    let mut policy = policy(&w);
    w.run(&mut policy, 60);
    w.be.push(("z", 5.0));
    let everything = surefoot_server::Allocation::everything(&w.platform);
    w.seen.services.push(ServiceView { allocation: everything, ..crate::testing::be("z") });
    w.run(&mut policy, 60);
    assert!(w.memory("z").0 >= 4.9 && w.memory("x").0 >= 13.9, "{:?} {:?}", w.memory("z"), w.memory("x"));
}

/// Each step of memory says w, gamma, M, the pool, and the price of each.
#[test]
fn steps_of_memory_say_their_prices() {
    let mut w = tight();
    let mut policy = policy(&w);
    let plans = w.run(&mut policy, 60);
    let steps: Vec<&Action> = plans.iter().flat_map(|p| &p.actions).filter(|a| a.why.contains("memory, ")).collect();
    assert!(steps.len() > 2);
    for a in steps {
        let said = |what: &str| a.because.said.iter().any(|s| s.what.starts_with(what) && s.value.is_finite());
        let all = [
            "w, ",
            "gamma",
            "M, ",
            "the pool",
            "price of its memory",
            "price of its pool",
            "price of cores",
            "price of what the jobs lack",
        ];
        assert!(all.iter().all(|what| said(what)), "{a:?}");
    }
}

/// Pages that become more have their floor at the next look, not a unit at a time; fewer pages take no limit down by more than a unit.
#[test]
fn floors_follow_the_pages() {
    let mut w = World::new();
    let mut policy = policy(&w);
    w.run(&mut policy, 60);
    w.lc[1].gb = 30.0;
    w.run(&mut policy, 3);
    assert!(w.memory("b").0 >= 15.0, "{:?}", w.memory("b"));
    let mut w = World::new();
    let mut policy = self::policy(&w);
    w.run(&mut policy, 60);
    let before = w.memory("a").0;
    w.lc[0].gb = 1.0;
    let unit = 60.0 / f64::from(Settings::default().pages.units);
    let all = limits(&w.run(&mut policy, 20), "a");
    let steps = std::iter::once(before).chain(all.iter().copied()).collect::<Vec<_>>();
    assert!(steps.windows(2).all(|w| w[0] - w[1] <= unit + 0.01), "{steps:?}");
}

/// Where the floors of all do not fit there are no limits: one below its floor would kill.
#[test]
fn floors_that_do_not_fit_are_no_limits() {
    let mut w = World::new();
    (w.lc[0].gb, w.lc[1].gb) = (80.0, 40.0);
    let mut policy = policy(&w);
    let plans = w.run(&mut policy, 20);
    assert!(["a", "b", "c"].iter().all(|id| limits(&plans, id).is_empty()), "{:?}", limits(&plans, "a"));
}

/// A service that misses its target after it gave a unit has it back at the next look.
#[test]
fn what_hurt_comes_back() {
    let mut w = tight();
    let mut policy = policy(&w);
    w.run(&mut policy, 3);
    let gave = w.memory("a").0;
    assert!(policy.pages.as_ref().unwrap().gave.contains_key("a"));
    w.lc[0].needs = 40.0;
    w.run(&mut policy, 2);
    let unit = 60.0 / f64::from(Settings::default().pages.units);
    assert!(w.memory("a").0 >= gave + 0.9 * unit, "{gave} {:?}", w.memory("a"));
}
