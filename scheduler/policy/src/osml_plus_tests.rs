use super::*;
use crate::perfect::{Notes, Perfect};
use crate::testing::{latency, Plant};
use std::cell::RefCell;
use std::rc::Rc;
use surefoot_server::{CpuSet, FeedState, Kind, Latency, Llc, Word};

fn osml(plant: &Plant, change: impl Fn(&mut Perfect)) -> (OsmlPlus, Rc<RefCell<Notes>>) {
    let mut models = Perfect::of(plant);
    change(&mut models);
    let notes = models.notes.clone();
    (OsmlPlus::new(&plant.platform, Box::new(models), Settings::default(), 1), notes)
}

fn perfect(plant: &Plant) -> OsmlPlus {
    osml(plant, |_| ()).0
}

/// Run for so long; every action with its time.
fn follow(plant: &mut Plant, policy: &mut OsmlPlus, seconds: f64) -> Vec<(u64, Action)> {
    let mut out = vec![];
    for _ in 0..(seconds * 10.0) as u64 {
        plant.tick();
        let plan = policy.step(plant.t_ms, &plant.observe());
        plant.apply(&plan);
        out.extend(plan.actions.into_iter().map(|a| (plant.t_ms, a)));
    }
    out
}

/// A new LC service is watched on idle resources for 300 ms, then has its OAA (Algorithm 1).
#[test]
fn a_new_service_goes_to_its_oaa_after_the_sampling_time() {
    let p = Platform::regular("t", 12, 1, 10, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 8.0).be("x");
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 0.3);
    // Three quarters of 12 cores; one of 10 ways stays with the BE job.
    assert_eq!((plant.cores("a"), plant.ways("a")), (9.0, 9.0));
    follow(&mut plant, &mut policy, 0.1);
    // Watched since 100 ms. p99 = 3s + s/(1 - 3(1+m)/c) <= 8; cheapest in shares of 12 cores and 10 ways:
    // 4 ways (m = 0): 3 + 1/(1 - 3/c) <= 8 from c = 3.75, so RCliff (4, 4), OAA one beyond: (5, 5).
    assert_eq!((plant.cores("a"), plant.ways("a")), (5.0, 5.0));
    assert_eq!((plant.cores("x"), plant.ways("x")), (7.0, 5.0));
}

/// Who is still watched when the next one comes gives it of what was idle, down to an equal share, and is placed by what is seen of it
/// on the rest.
#[test]
fn who_is_still_watched_yields_to_the_next() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 8.0);
    let mut policy = perfect(&plant);
    plant.add("b", Kind::Lc { qos_target_ms: 8.0 }, 2.0);
    policy.models = Box::new(Perfect::of(&plant));
    let b = plant.tenants.pop().unwrap();
    follow(&mut plant, &mut policy, 0.2);
    assert_eq!(policy.books.usable("a"), Amount::new(12, 12));
    plant.tenants.push(b);
    let actions = follow(&mut plant, &mut policy, 0.1);
    assert_eq!(["a", "b"].map(|id| policy.books.usable(id)), [Amount::new(8, 6); 2]);
    let (_, gives) = actions.iter().find(|(_, a)| a.kind == ActionKind::Deprive).unwrap();
    assert_eq!((gives.service.as_str(), gives.why.as_str()), ("a", "still watched: 4 cores, 6 ways of what was idle to b"));
    // a came at 100 ms and gave at 300 ms.
    follow(&mut plant, &mut policy, 0.2);
    assert_eq!(policy.books.usable("a"), Amount::new(8, 6));
    let placed = follow(&mut plant, &mut policy, 0.1);
    assert!(placed.iter().any(|(t, a)| *t == 600 && a.service == "a" && a.why.starts_with("Model-A: OAA")), "{placed:?}");
}

/// Of two that come at once each has what the watched one gave for it.
#[test]
fn who_is_still_watched_yields_to_each_of_two() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 8.0);
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 0.2);
    for id in ["b", "c"] {
        plant.add(id, Kind::Lc { qos_target_ms: 8.0 }, 2.0);
    }
    follow(&mut plant, &mut policy, 0.1);
    assert_eq!(["a", "b", "c"].map(|id| policy.books.usable(id)), [Amount::new(6, 4), Amount::new(5, 4), Amount::new(5, 4)]);
}

/// What a plant of few requests says: one that answers 20 in a second, well within its target.
fn slowly(mut seen: Observation) -> Observation {
    for w in seen.services.iter_mut().flat_map(|s| [&mut s.interval, &mut s.window].into_iter().flatten()) {
        (w.count, w.achieved_rps, w.verdict) = (w.count.min(20), 20.0, Verdict::NotResolvable);
    }
    seen
}

/// A slow service gets more as soon as all its cores are busy, though its target is met; one whose p99 is that of now does not. Nor is
/// a step withdrawn from it that p99 cannot show yet.
#[test]
fn a_slow_service_is_short_as_soon_as_all_its_cores_are_busy() {
    let p = Platform::regular("t", 16, 1, 0, 0.0);
    for (slow, cores) in [(true, 5), (false, 4)] {
        let mut plant = Plant::new(&p).lc("a", 3.99, 60_000.0);
        let mut policy = perfect(&plant);
        follow(&mut plant, &mut policy, 3.0);
        policy.books.set("a", Amount::new(4, 0));
        plant.apply(&policy.books.plan(&plant.observe()).unwrap());
        let look = |plant: &Plant| if slow { slowly(plant.observe()) } else { plant.observe() };
        for _ in 0..12 {
            plant.tick();
            policy.look(plant.t_ms, &look(&plant));
        }
        let (seen, mut plan) = (look(&plant), Plan::default());
        assert_eq!(seen.get("a").unwrap().qos_met(), Some(true));
        policy.under_provisioned(plant.t_ms, &seen, &mut plan);
        assert_eq!(policy.books.usable("a").cores, cores, "{plan:?}");

        let start_p99_ms = policy.lives["a"].recent_p99_ms().unwrap_or(1.0);
        policy.books.set("a", Amount::new(12, 0));
        let series = Series { action: CORES_UP, steps: 3, units: 3, start_p99_ms, last_ms: plant.t_ms - 500 };
        policy.lives.get_mut("a").unwrap().series = Some(series);
        policy.judge_steps(plant.t_ms, seen.get("a").unwrap(), false, &mut plan);
        assert_eq!(policy.books.usable("a").cores, if slow { 12 } else { 9 });
    }
}

/// A neighbour is not asked for ways that are expected to bring nothing.
#[test]
fn no_neighbour_is_asked_for_what_is_of_no_use() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    for (worth_qos, given) in [(0.05, 0), (0.0, 1)] {
        // b's cores are all busy and its ways as many as it wants; a has no core to give, and eight ways of which it wants four.
        let mut plant = Plant::new(&p).lc("a", 10.0, 1000.0).lc("b", 3.99, 10.0);
        let mut policy = perfect(&plant);
        policy.set.worth_qos = worth_qos;
        follow(&mut plant, &mut policy, 0.5);
        for (id, cores, ways) in [("a", 1, 1), ("b", 4, 4), ("a", 12, 8)] {
            assert!(policy.books.set(id, Amount::new(cores, ways)));
        }
        plant.apply(&policy.books.plan(&plant.observe()).unwrap());
        policy.lives.values_mut().for_each(|l| (l.sampling_since_ms, l.watch, l.target) = (None, None, None));
        for _ in 0..12 {
            plant.tick();
            policy.look(plant.t_ms, &plant.observe());
        }
        let (seen, mut plan) = (plant.observe(), Plan::default());
        assert_eq!(["a", "b"].map(|id| seen.get(id).unwrap().qos_met()), [Some(true), Some(false)]);
        policy.lives.values_mut().for_each(|l| l.asked_ms = plant.t_ms);
        policy.under_provisioned(plant.t_ms, &seen, &mut plan);
        assert_eq!(8 - policy.books.usable("a").ways, given, "{plan:?}");
    }
}

/// With perfect models it converges within seconds where trial and error takes tens (OSML+ paper, Sec. 4.3).
#[test]
fn it_converges_faster_than_parties() {
    let p = Platform::regular("t", 24, 1, 16, 2.0);
    let fresh = || Plant::new(&p).lc("a", 10.0, 10.0).lc("b", 3.0, 10.0).lc("c", 1.5, 10.0).be("x");
    let mut plant = fresh();
    let mut policy = perfect(&plant);
    let ours = plant.run(&mut policy, 60).unwrap();
    let theirs = fresh().run(&mut crate::PartiesBe::new(&p, Default::default()), 60).unwrap();
    assert!(ours <= 3000 && ours < theirs, "{ours} {theirs}");
    assert!(plant.all_met());
}

/// It also converges when Model-A is three cores too low or too high, and when Model-B is 20 % too bright or too dark.
#[test]
fn it_converges_with_wrong_models() {
    let p = Platform::regular("t", 24, 1, 16, 2.0);
    for (error_cores, b_factor) in [(-3.0, 1.0), (3.0, 1.0), (0.0, 1.2), (0.0, 0.8), (-3.0, 1.2), (-3.0, 0.8)] {
        let mut plant = Plant::new(&p).lc("a", 8.0, 10.0).lc("b", 3.0, 10.0).lc("c", 1.5, 10.0).be("x");
        let (mut policy, _) = osml(&plant, |m| (m.error_cores, m.b_factor) = (error_cores, b_factor));
        let at = plant.run(&mut policy, 60);
        assert!(at.is_some_and(|t| t < 15_000), "{error_cores} {b_factor}: {at:?}");
        assert!(plant.all_met(), "{error_cores} {b_factor}");
    }
}

/// Models that cannot answer are replaced by rules of thumb, the actions say so, and it still converges.
#[test]
fn without_answers_it_goes_by_rules_of_thumb() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 6.0, 10.0).lc("b", 2.0, 10.0).be("x");
    let (mut policy, _) = osml(&plant, |m| m.mute = true);
    let actions = follow(&mut plant, &mut policy, 30.0);
    assert!(plant.all_met());
    let placed = actions.iter().find(|(_, a)| a.why.contains("rule of thumb")).unwrap();
    assert!(placed.1.why.contains("input `ipc` is missing"), "{:?}", placed.1);
}

/// Where no model answers, who comes gets half an equal share from those who hold more than one, and they keep theirs.
#[test]
fn without_answers_newcomers_get_half_an_equal_share() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    // Just within its target: by its QoS it has nothing to give.
    let mut plant = Plant::new(&p).lc("a", 1.0, 2.3);
    let (mut policy, _) = osml(&plant, |m| m.mute = true);
    follow(&mut plant, &mut policy, 3.0);
    policy.books.set("a", Amount::new(16, 12));
    plant.add("b", surefoot_server::Kind::Lc { qos_target_ms: 10.0 }, 1.0);
    let (seen, mut plan) = (plant.observe(), Plan::default());
    // Three quarters of both are left.
    let left = seen.get("a").unwrap().qos().unwrap() * 0.75f64.powi(4);
    let (mut asked, _) = osml(&plant, |m| m.mute = true);
    asked.books = policy.books.clone();
    asked.take_beyond_share(plant.t_ms, "b", Amount::new(4, 3), Amount::new(8, 6), &seen, &mut plan);
    assert_eq!(plan.reports, [Report::ExpectedSlowdown { service: "a".into(), qos: left }]);
    let actions = follow(&mut plant, &mut policy, 0.3);
    let given: Vec<&Action> = actions.iter().map(|(_, a)| a).filter(|a| a.why.contains("more than an equal share")).collect();
    assert!(given.len() == 1 && given[0].service == "a" && given[0].kind == ActionKind::Deprive, "{actions:?}");
    assert_eq!((policy.books.usable("a"), policy.books.usable("b")), (Amount::new(12, 9), Amount::new(4, 3)));
}

/// Who gives by the rule of thumb is not said to give by Model-B's leave.
#[test]
fn what_the_rule_of_thumb_says_is_not_said_to_be_model_bs() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 1.0, 10.0);
    let (mut policy, _) = osml(&plant, |m| m.mute = true);
    policy.set.reclaim_after_ms = 60_000;
    follow(&mut plant, &mut policy, 3.0);
    policy.books.set("a", Amount::new(16, 12));
    follow(&mut plant, &mut policy, 1.5);
    plant.add("b", surefoot_server::Kind::Lc { qos_target_ms: 10.0 }, 1.0);
    let actions = follow(&mut plant, &mut policy, 0.1);
    let (_, gives) = actions.iter().find(|(_, a)| a.kind == ActionKind::Deprive).unwrap();
    assert!(gives.why.contains("; rule of thumb: QoS"), "{}", gives.why);
    assert!(gives.because.rejected.iter().any(|r| r.what == "Model-B" && r.why.contains("a rule of thumb stands in")), "{gives:?}");
    assert!(gives.because.said.iter().all(|s| s.by != "Model-B"), "{gives:?}");
}

/// Who misses its target, but not for want of cores, gives those that it leaves idle: that was measured, and Model-B never asked.
#[test]
fn idle_cores_are_not_given_by_model_bs_word() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    // No p99 is below 4 ms: QoS 0.74 on whatever it holds, with one core busy.
    let mut plant = Plant::new(&p).lc("a", 1.0, 3.0);
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 3.0);
    policy.books.set("a", Amount::new(16, 12));
    follow(&mut plant, &mut policy, 1.5);
    let (seen, mut plan) = (plant.observe(), Plan::default());
    assert!(policy.deprive_for(plant.t_ms, "b", Amount::new(4, 0), &seen, &mut plan));
    let gives = &plan.actions[0];
    assert_eq!((gives.service.as_str(), gives.kind), ("a", ActionKind::Deprive));
    assert_eq!(gives.why, "4 cores, 0 ways to b; measured: they are left idle, QoS 0.74 as it is");
    assert!(gives.because.said.iter().all(|s| s.by == "measured"), "{:?}", gives.because.said);
    assert!(gives.because.said.iter().any(|s| s.what == "busy cores" && s.value == 1.0), "{:?}", gives.because.said);
    assert!(gives.because.bound.as_ref().is_some_and(|b| b.ends_with("a neighbour keeps what it has use of")), "{:?}", gives.because.bound);
    assert_eq!(plan.reports, []);
}

/// Who misses its target gives ways, too, but only those without which Model-B expects no less of it, and none while it is slow: what
/// it answers now it began seconds ago. Readings from before are forgotten.
#[test]
fn who_misses_its_target_gives_ways_that_are_of_no_use() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    // As above, but half of two cores is busy: none is idle. Four ways are wanted, and two of six of no use.
    let mut plant = Plant::new(&p).lc("a", 1.0, 3.0);
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 3.0);
    policy.books.set("a", Amount::new(2, 6));
    plant.apply(&policy.books.plan(&plant.observe()).unwrap());
    (0..12).for_each(|_| plant.tick());
    let seen = plant.observe();
    policy.look(plant.t_ms, &seen);
    let mut plan = Plan::default();
    let mut slow = seen.clone();
    slow.services.iter_mut().filter_map(|s| s.window.as_mut()).for_each(|w| w.achieved_rps = 20.0);
    assert!(!policy.deprive_for(plant.t_ms, "b", Amount::new(0, 2), &slow, &mut plan) && plan.actions.is_empty());
    assert!(!policy.deprive_for(plant.t_ms, "b", Amount::new(0, 3), &seen, &mut plan) && plan.actions.is_empty());
    assert!(!policy.lives["a"].points.is_empty());
    assert!(policy.deprive_for(plant.t_ms, "b", Amount::new(0, 2), &seen, &mut plan));
    let gives = &plan.actions[0];
    assert!(gives.why.starts_with("0 cores, 2 ways to b; Model-B: of no use, QoS 0."), "{}", gives.why);
    assert_eq!(policy.books.usable("a"), Amount::new(2, 4));
    assert!(policy.lives["a"].points.is_empty() && policy.lives["a"].changed_ms == plant.t_ms);
    assert_eq!(plan.reports, []);
}

/// Models that answer are asked: who was deprived for a newcomer as far as Model-B allows is not deprived of what is beyond its share.
#[test]
fn beyond_an_equal_share_is_taken_only_where_no_model_answers() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    // p99 = 3 + 1/(1 - 10/c): QoS 1.15 on 14 cores, 1.02 on 13, where 1.1 is allowable.
    let mut plant = Plant::new(&p).lc("a", 10.0, 7.5);
    let mut policy = perfect(&plant);
    policy.set.reclaim_after_ms = 60_000;
    follow(&mut plant, &mut policy, 3.0);
    policy.books.set("a", Amount::new(16, 12));
    follow(&mut plant, &mut policy, 1.5);
    plant.add("b", surefoot_server::Kind::Lc { qos_target_ms: 10.0 }, 1.0);
    // Seen before it has cost a anything.
    let actions = policy.step(plant.t_ms + 100, &plant.observe()).actions;
    let deprived: Vec<&str> = actions.iter().filter(|a| a.kind == ActionKind::Deprive).map(|a| a.why.as_str()).collect();
    assert_eq!(deprived, ["2 cores, 1 ways to b; Model-B: QoS 1.15 left"]);
    assert_eq!((policy.books.usable("a").cores, policy.books.usable("b").cores), (14, 2));
}

/// When an LC service misses its target and nothing is idle, the BE job yields before any LC service (Algorithm 3, line 2).
#[test]
fn the_be_job_yields_before_any_lc_service() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).lc("b", 2.0, 10.0).be("x");
    let (mut policy, notes) = osml(&plant, |_| ());
    follow(&mut plant, &mut policy, 5.0);
    let b = (plant.cores("b"), plant.ways("b"));
    let be = plant.cores("x");
    // Load of a doubles: 3 -> 6 cores.
    plant.tenant("a").demand = 6.0;
    notes.borrow_mut().demand = vec![("a".into(), 6.0)];
    let actions = follow(&mut plant, &mut policy, 5.0);
    assert!(plant.all_met());
    assert!(actions.iter().all(|(_, a)| a.kind != ActionKind::Deprive), "{actions:?}");
    assert!(plant.cores("x") < be && plant.cores("x") >= 1.0);
    assert!((plant.cores("b"), plant.ways("b")) <= b);
}

/// LC services are deprived only as far as Model-B allows, and at most three for one need (Algorithm 3, line 10).
#[test]
fn at_most_three_lc_services_are_deprived_and_stay_allowable() {
    let p = Platform::regular("t", 12, 1, 0, 0.0);
    let mut plant = Plant::new(&p);
    for id in ["a", "b", "c", "d"] {
        plant.add(id, Kind::Lc { qos_target_ms: 10.0 }, 0.5);
    }
    let mut policy = perfect(&plant);
    let seen = |plant: &Plant| plant.observe();
    for _ in 0..2 {
        plant.tick();
        policy.step(plant.t_ms, &seen(&plant));
    }
    // Three cores each, none free. With 0.5 busy cores each is fine on one core (p99 = 3 + 1/(1 - 0.5) = 5 ms, QoS 2).
    for id in ["a", "b", "c", "d"] {
        assert!(policy.books.set(id, Amount::new(3, 0)));
        policy.lives.get_mut(id).unwrap().sampling_since_ms = None;
    }
    plant.apply(&policy.books.plan(&seen(&plant)).unwrap());
    (0..12).for_each(|_| plant.tick());
    policy.look(plant.t_ms, &seen(&plant));
    let now = plant.observe();
    let mut plan = Plan::default();
    // d needs 6: all that the three others can give (2 each).
    assert!(policy.deprive_for(plant.t_ms, "d", Amount::new(6, 0), &now, &mut plan));
    assert_eq!(plan.actions.len(), 3);
    assert!(plan.reports.iter().all(|r| matches!(r, Report::ExpectedSlowdown { qos, .. } if *qos >= 1.1)));
    // Seven would leave one of them without a core.
    let mut again = Plan::default();
    assert!(!policy.deprive_for(plant.t_ms, "d", Amount::new(7, 0), &now, &mut again) && again.actions.is_empty());
}

/// Where no neighbour can be deprived, resources are shared with the one that suffers least, and the upper scheduler is told.
#[test]
fn sharing_is_the_last_resort_and_is_reported() {
    let p = Platform::regular("t", 8, 1, 0, 0.0);
    // a needs p99 = 3 + 1/(1 - 3/c) <= 10: 3.5 cores; b, on 4.6 busy cores, 5.4: together more than 8 whole cores.
    let mut plant = Plant::new(&p).lc("a", 2.6, 10.0).lc("b", 4.6, 10.0);
    let mut policy = perfect(&plant);
    let mut reports = vec![];
    let mut shared_at = None;
    for _ in 0..100 {
        plant.tick();
        let plan = policy.step(plant.t_ms, &plant.observe());
        plant.apply(&plan);
        if plan.actions.iter().any(|a| a.kind == ActionKind::Share) {
            shared_at.get_or_insert(plant.t_ms);
            assert!(plan.reports.iter().any(|r| matches!(r, Report::ExpectedSlowdown { .. })), "{:?}", plan.reports);
        }
        reports.extend(plan.reports);
    }
    assert!(shared_at.is_some() || reports.iter().any(|r| matches!(r, Report::CannotPlace { .. } | Report::Migrate { .. })), "{reports:?}");
}

/// Of the neighbours that stay allowable, the one with the least QoS slowdown shares, not the one with the best QoS (line 13).
#[test]
fn the_neighbour_with_the_least_slowdown_shares() {
    // Two cores shared cost the owner one. p99 = 3 + 1/(1 - demand/cores).
    // x, demand 1, 20 ms: 3 cores 4.5 ms, 2 cores 5 ms: QoS 4.44 -> 4.00, 10 % less.
    // y, demand 0.4, 6 ms: 4 cores 4.11 ms, 3 cores 4.15 ms: QoS 1.46 -> 1.44, 1 % less.
    for (shared_qos, owner, qos) in [(0.8, Some("y"), 1.444), (2.0, Some("x"), 4.0), (4.1, None, 0.0)] {
        let p = Platform::regular("t", 12, 1, 0, 0.0);
        let mut plant = Plant::new(&p).lc("x", 1.0, 20.0).lc("y", 0.4, 6.0).lc("d", 0.5, 10.0);
        let mut policy = perfect(&plant);
        policy.set.shared_qos = shared_qos;
        for _ in 0..2 {
            plant.tick();
            policy.step(plant.t_ms, &plant.observe());
        }
        for (id, cores) in [("x", 3), ("y", 4), ("d", 4)] {
            assert!(policy.books.set(id, Amount::new(cores, 0)), "{id}");
            policy.lives.get_mut(id).unwrap().sampling_since_ms = None;
        }
        plant.apply(&policy.books.plan(&plant.observe()).unwrap());
        (0..12).for_each(|_| plant.tick());
        let now = plant.observe();
        policy.look(plant.t_ms, &now);
        let mut plan = Plan::default();
        // Moved in this very step: Model-B will answer in the next, and no rule of thumb stands in until then.
        let read: Vec<_> = ["x", "y"].map(|id| std::mem::take(&mut policy.lives.get_mut(id).unwrap().features)).into();
        assert!(!policy.share_for(plant.t_ms, "d", Amount::new(2, 0), &now, &mut plan) && plan.actions.is_empty());
        for (id, features) in ["x", "y"].into_iter().zip(read) {
            policy.lives.get_mut(id).unwrap().features = features;
        }
        // Where the upper scheduler is asked, nothing is shared before it has said so, nor after it has said no.
        let word = |allowed: bool| owner.map(|with| Word { service: "d".into(), with: with.into(), allowed });
        for words in [vec![], word(false).into_iter().collect()] {
            let mut asked = Plan::default();
            let seen = Observation { words: Some(words.clone()), ..now.clone() };
            assert!(!policy.share_for(plant.t_ms, "d", Amount::new(2, 0), &seen, &mut asked), "{words:?}");
            let with: Vec<&str> = asked.questions.iter().map(|q| q.with.as_str()).collect();
            // After a no the next best neighbour is asked about.
            let next = (owner == Some("y")).then_some("x");
            assert_eq!(with, Vec::from_iter(if words.is_empty() { owner } else { next }));
            assert!(asked.actions.is_empty() && asked.reports.is_empty());
        }
        let now = Observation { words: Some(word(true).into_iter().collect()), ..now };
        assert_eq!(policy.share_for(plant.t_ms, "d", Amount::new(2, 0), &now, &mut plan), owner.is_some());
        let told = plan.reports.iter().map(|r| match r {
            Report::ExpectedSlowdown { service, qos } => (service.as_str(), *qos),
            other => panic!("{other:?}"),
        });
        let told: Vec<(&str, f64)> = told.collect();
        assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), owner.into_iter().collect::<Vec<_>>());
        assert!(told.iter().all(|t| (t.1 - qos).abs() < 0.02), "{told:?}");
    }
}

/// Cores that are busy are not shared, whatever Model-B says of half of them.
#[test]
fn busy_cores_are_not_shared() {
    for (demand, shares) in [(1.0, true), (4.8, false)] {
        let p = Platform::regular("t", 12, 1, 0, 0.0);
        let mut plant = Plant::new(&p).lc("x", demand, 100.0).lc("d", 0.5, 10.0);
        let (mut policy, _) = osml(&plant, |m| m.b_says = Some(2.0));
        follow(&mut plant, &mut policy, 0.2);
        for id in ["x", "d"] {
            assert!(policy.books.set(id, Amount::new(6, 0)), "{id}");
            policy.lives.get_mut(id).unwrap().sampling_since_ms = None;
        }
        plant.apply(&policy.books.plan(&plant.observe()).unwrap());
        (0..12).for_each(|_| plant.tick());
        let now = plant.observe();
        policy.look(plant.t_ms, &now);
        // Two cores shared leave the owner five.
        assert_eq!(policy.share_for(plant.t_ms, "d", Amount::new(2, 0), &now, &mut Plan::default()), shares, "{demand}");
    }
}

/// A sharing ends when its owner misses its target with it, or its guest still does and p99 has not fallen; not before a second, and
/// then the guest is alone for a minute.
#[test]
fn a_sharing_that_hurts_ends() {
    // No p99 is below 4 ms, so that a target of 1 ms is missed whoever holds what.
    for (owner_target_ms, guest_target_ms, p99_before_ms, whose) in
        [(20.0, 10.0, 4.2, None), (1.0, 10.0, 4.2, Some("x")), (20.0, 1.0, 4.2, Some("d")), (20.0, 1.0, 50.0, None)]
    {
        let p = Platform::regular("t", 12, 1, 0, 0.0);
        let mut plant = Plant::new(&p).lc("x", 1.0, 20.0).lc("d", 0.5, 10.0);
        let mut policy = perfect(&plant);
        follow(&mut plant, &mut policy, 0.2);
        for (id, cores) in [("x", 6), ("d", 6)] {
            assert!(policy.books.set(id, Amount::new(cores, 0)), "{id}");
            policy.lives.get_mut(id).unwrap().sampling_since_ms = None;
        }
        plant.apply(&policy.books.plan(&plant.observe()).unwrap());
        (0..12).for_each(|_| plant.tick());
        let now = plant.observe();
        policy.look(plant.t_ms, &now);
        let mut plan = Plan::default();
        assert!(policy.share_for(plant.t_ms, "d", Amount::new(2, 0), &now, &mut plan));
        policy.lives.get_mut("d").unwrap().shares = Some((plant.t_ms, p99_before_ms));
        for (id, qos_target_ms) in [("x", owner_target_ms), ("d", guest_target_ms)] {
            plant.tenant(id).kind = Kind::Lc { qos_target_ms };
        }
        let (since_ms, mut ended) = (plant.t_ms, None);
        for _ in 0..30 {
            plant.tick();
            let (seen, mut plan) = (plant.observe(), Plan::default());
            policy.look(plant.t_ms, &seen);
            policy.end_sharing(plant.t_ms, &seen, &mut plan);
            if let Some(a) = plan.actions.first() {
                assert!(plan.actions.iter().all(|a| a.kind == ActionKind::Rollback) && plan.actions.len() == 2, "{plan:?}");
                assert!(a.why.contains(&format!("for {} misses", whose.unwrap_or("nobody"))), "{}", a.why);
                assert_eq!(ended.replace(plant.t_ms), None);
            }
        }
        assert_eq!(ended.is_some(), whose.is_some(), "{owner_target_ms} {guest_target_ms}");
        if let Some(t) = ended {
            assert!(t >= since_ms + 1000 && policy.lives["d"].alone_until_ms == t + 60_000, "{since_ms} {t}");
            // The guest has what it held alone, the owner all that it held before.
            assert_eq!([policy.books.usable("x").cores, policy.books.usable("d").cores], [6, 6]);
        }
    }
}

/// r_resource counts what is under control: cores, ways where there is CAT, the MBA limit where there is MBA.
#[test]
fn the_reward_counts_what_is_under_control() {
    let regular = Platform { mem_bw_mbps: Some(10_000.0), ..Platform::regular("t", 10, 1, 8, 2.0) };
    // a holds 4 of 10 cores and 6 of 8 ways: 0.6 and 0.25 unused. Measured bandwidth alone adds nothing.
    let no_mba = Platform { mba: None, ..regular.clone() };
    let no_cat = Platform { llc: None, mba: None, ..regular.clone() };
    for (p, mba_pct, unused) in [(&regular, 100, 0.85 / 3.0), (&regular, 70, 1.15 / 3.0), (&no_mba, 100, 0.85 / 2.0), (&no_cat, 100, 0.6)] {
        let plant = Plant::new(p).lc("a", 2.0, 10.0);
        let mut policy = perfect(&plant);
        policy.books.follow(&plant.observe());
        assert!(policy.books.admit("a", Amount::new(4, 6.min(p.ways()))));
        policy.books.set_mba("a", mba_pct);
        assert!((policy.unused_share("a") - unused).abs() < 1e-9, "{} {mba_pct}", policy.unused_share("a"));
    }
}

/// What the load generator does not vouch for is not learnt, neither of the service itself nor in another's reward.
#[test]
fn a_doubtful_p99_teaches_nothing_and_is_counted() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    for (verdict, learns) in
        [(Verdict::Valid, true), (Verdict::ServerOverloaded, true), (Verdict::ClientLimited, false), (Verdict::NotResolvable, false)]
    {
        let mut plant = Plant::new(&p).lc("a", 3.0, 8.0).lc("b", 2.0, 10.0).be("x");
        let (mut policy, notes) = osml(&plant, |m| m.error_cores = 3.0);
        for _ in 0..200 {
            plant.tick();
            let mut seen = plant.observe();
            // a misses its target by far if this is to be believed; b is fine.
            let a = seen.services.iter_mut().find(|s| s.id == "a").unwrap();
            (a.interval, a.window) = (Some(latency(80.0)), Some(Latency { verdict, ..latency(80.0) }));
            plant.apply(&policy.step(plant.t_ms, &seen));
        }
        let notes = notes.borrow();
        assert_eq!(notes.experiences.iter().any(|e| e.after.qos == Some(0.1)), learns, "{verdict:?}");
        assert_eq!(policy.experiences_left_out() == 0, learns, "{verdict:?}");
        // b, when met, earns more than 2 only where a's miss is not believed.
        let mut met = notes.experiences.iter().filter(|e| e.after.qos.is_some_and(|q| q >= 1.0)).peekable();
        assert!(met.peek().is_some() && met.all(|e| (e.reward > 2.0) != learns), "{verdict:?}");
    }
}

/// A reclaim after which QoS is violated is withdrawn, and not repeated for a while (Algorithm 2, line 11).
#[test]
fn a_reclaim_that_hurts_is_withdrawn() {
    let p = Platform::regular("t", 12, 1, 0, 0.0);
    let mut plant = Plant::new(&p).lc("a", 2.6, 10.0).be("x");
    // Model-B says 1.5 to everything, Model-A's RCliff is three cores too low: one core (of 4) too many is taken.
    let (mut policy, _) = osml(&plant, |m| (m.b_says, m.error_cores) = (Some(1.5), -3.0));
    let actions = follow(&mut plant, &mut policy, 60.0);
    let hurt: Vec<&(u64, Action)> = actions.iter().filter(|(_, a)| a.kind == ActionKind::Rollback).collect();
    assert!(!hurt.is_empty(), "{actions:?}");
    assert!(hurt.windows(2).all(|w| w[1].0 - w[0].0 >= 20_000), "{hurt:?}");
    assert!(plant.all_met());
}

/// Three steps that did not lower p99 are withdrawn near the target; far behind they stay, and cores are left alone for
/// one second instead of five.
#[test]
fn steps_without_effect_are_withdrawn_but_from_who_is_far_behind() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    // No p99 is below 4 ms, and of twelve cores one is busy.
    for (target_ms, held, left_alone_ms) in [(3.0, 9, 5000), (1.9, 12, 1000)] {
        let mut plant = Plant::new(&p).lc("a", 1.0, target_ms);
        let mut policy = perfect(&plant);
        follow(&mut plant, &mut policy, 3.0);
        assert!(policy.books.set("a", Amount::new(12, 12)));
        let (seen, mut plan, now_ms) = (plant.observe(), Plan::default(), plant.t_ms);
        let life = policy.lives.get_mut("a").unwrap();
        let start_p99_ms = life.recent_p99_ms().unwrap();
        life.series = Some(Series { action: CORES_UP, steps: 3, units: 3, start_p99_ms, last_ms: now_ms - 500 });
        life.banned_until_ms = [0; 3];
        assert!(!policy.judge_steps(now_ms, seen.get("a").unwrap(), false, &mut plan));
        assert_eq!(policy.books.usable("a").cores, held, "{target_ms}");
        assert_eq!(plan.actions.iter().filter(|a| a.kind == ActionKind::Rollback).count(), usize::from(held < 12), "{target_ms}");
        assert_eq!(policy.lives["a"].banned_until_ms, [now_ms + left_alone_ms, 0, 0]);
        assert!(policy.lives["a"].series.is_none());
    }
}

/// What is reclaimed goes to the BE job, and nobody misses its target for it.
#[test]
fn over_provision_feeds_the_be_job() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 6.0, 10.0).be("x");
    let (mut policy, notes) = osml(&plant, |_| ());
    follow(&mut plant, &mut policy, 5.0);
    let units = |plant: &Plant| plant.cores("x") + plant.ways("x");
    let before = units(&plant);
    plant.tenant("a").demand = 2.0;
    notes.borrow_mut().demand = vec![("a".into(), 2.0)];
    let mut met = true;
    for _ in 0..200 {
        follow(&mut plant, &mut policy, 0.1);
        met &= plant.all_met();
    }
    // From 8 to 11 cores and ways, in steps that each prove harmless for a second and a half.
    assert!(units(&plant) >= before + 3.0 && met, "{before} {} {met}", units(&plant));
}

/// A silent feed takes nothing from a service, and it is neither deprived nor asked to share.
#[test]
fn unknown_latency_takes_nothing_away() {
    let p = Platform::regular("t", 12, 1, 10, 2.0);
    let mut plant = Plant::new(&p).lc("a", 2.0, 10.0).lc("b", 2.0, 10.0).be("x");
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 3.0);
    let held = (plant.cores("a"), plant.ways("a"));
    plant.tenant("a").silent = true;
    plant.tenant("b").demand = 20.0;
    follow(&mut plant, &mut policy, 20.0);
    assert_eq!((plant.cores("a"), plant.ways("a")), held);
}

/// Accumulated requests are given time: once the queue shrinks fast enough nothing more is added.
#[test]
fn a_draining_queue_is_not_fed_for_ever() {
    let p = Platform::regular("t", 30, 1, 0, 0.0);
    let mut plant = Plant::new(&p).lc("a", 4.0, 10.0);
    let (mut policy, notes) = osml(&plant, |_| ());
    follow(&mut plant, &mut policy, 3.0);
    plant.tenant("a").demand = 8.0;
    notes.borrow_mut().demand = vec![("a".into(), 8.0)];
    follow(&mut plant, &mut policy, 10.0);
    assert!(plant.all_met());
    // OAA of 8 busy cores: 3 + 1/(1 - 8/c) <= 10 from c = 9.3, so RCliff 10, OAA 11; half as much again is 17.
    assert!(plant.cores("a") <= 17.0, "{}", plant.cores("a"));
}

/// Each action is credited with the reward of OSML+ (Sec. 3.2): below 2 while a target is missed, above 2 when all are met.
#[test]
fn experiences_carry_the_piecewise_reward() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).lc("b", 2.0, 10.0).be("x");
    let (mut policy, notes) = osml(&plant, |m| m.error_cores = 3.0);
    follow(&mut plant, &mut policy, 10.0);
    plant.tenant("a").demand = 7.0;
    follow(&mut plant, &mut policy, 10.0);
    let notes = notes.borrow();
    assert!(notes.learnt > 10);
    assert!(notes.experiences.iter().any(|e| e.reward > 2.0) && notes.experiences.iter().any(|e| e.reward < 2.0));
    for e in &notes.experiences {
        assert!((0.0..=3.0).contains(&e.reward), "{e:?}");
        // In this plant every service is met or missed as `after` says; with one missed the reward is r_QoS <= 2.
        if e.after.qos.is_some_and(|q| q < 1.0) {
            assert!(e.reward <= 2.0, "{e:?}");
        }
    }
}

/// Short of memory bandwidth a service gets it from the BE job, which gets it back when all targets are met.
#[test]
fn memory_bandwidth_is_taken_from_the_be_job_first() {
    let p = Platform { mem_bw_mbps: Some(10_000.0), ..Platform::regular("t", 8, 1, 0, 0.0) };
    let mut plant = Plant::new(&p).lc("a", 2.0, 10.0).be("x");
    let (mut policy, _) = osml(&plant, |m| m.b_factor = 1.5);
    let mut lowest = 100;
    for t in 0..300 {
        plant.tick();
        let mut seen = plant.observe();
        let pct = seen.get("x").unwrap().allocation.mba_pct;
        lowest = lowest.min(pct);
        for s in &mut seen.services {
            s.features.mbl_mbps = Some(if s.is_lc() { 2000.0 } else { 80.0 * f64::from(pct) });
            // In the first ten seconds a is slow while the BE job draws more than 5000 MB/s.
            if s.is_lc() && t < 100 && pct > 60 {
                (s.interval, s.window) = (Some(latency(20.0)), Some(latency(20.0)));
            }
        }
        plant.apply(&policy.step(plant.t_ms, &seen));
    }
    assert!(lowest <= 60, "{lowest}");
    assert!(plant.observe().get("x").unwrap().allocation.mba_pct > lowest);
}

/// In tenths of a core, without ways, MBA and counters, a load step is followed within seconds and the BE job keeps its least.
#[test]
fn a_small_host_with_quotas_is_held() {
    let p = Platform { core_step: 0.1, managed: CpuSet::range(0, 2), mba: None, ..Platform::regular("q", 2, 1, 0, 0.0) };
    for mute in [false, true] {
        let mut plant = Plant::new(&p).lc("a", 0.4, 10.0).be("x");
        let (mut policy, notes) = osml(&plant, |m| m.mute = mute);
        follow(&mut plant, &mut policy, 5.0);
        assert!(plant.all_met() && plant.cores("x") > 0.8, "{mute}: BE {}", plant.cores("x"));
        plant.tenant("a").demand = 1.2;
        notes.borrow_mut().demand = vec![("a".into(), 1.2)];
        follow(&mut plant, &mut policy, 10.0);
        assert!(plant.all_met() && plant.cores("x") >= 0.1, "{mute}: {}", plant.cores("a"));
    }
}

/// Two runs with one seed are the same run.
#[test]
fn the_same_seed_gives_the_same_run() {
    let p = Platform::regular("t", 16, 1, 12, 2.0);
    let run = || {
        let mut plant = Plant::new(&p).lc("a", 6.0, 10.0).lc("b", 2.0, 10.0).be("x");
        let mut policy = perfect(&plant);
        follow(&mut plant, &mut policy, 20.0).into_iter().map(|(t, a)| format!("{t} {a:?}")).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// A BE job that arrives on a full server gets one core unit and the least ways; a second one shares them.
#[test]
fn a_late_be_job_gets_the_least_and_a_second_one_shares_it() {
    let p = Platform::regular("t", 4, 1, 4, 2.0);
    let mut plant = Plant::new(&p).lc("a", 1.0, 5.0).lc("b", 1.0, 5.0);
    let mut policy = perfect(&plant);
    follow(&mut plant, &mut policy, 3.0);
    plant.add("x", Kind::Be, 0.0);
    follow(&mut plant, &mut policy, 0.2);
    plant.add("y", Kind::Be, 0.0);
    follow(&mut plant, &mut policy, 0.2);
    let seen = plant.observe();
    let x = &seen.get("x").unwrap().allocation;
    assert!(x.cores() >= 1.0 && x.n_ways() >= 1.0);
    assert_eq!(x, &seen.get("y").unwrap().allocation);
}

/// Whatever is observed, no plan breaks a rule: random services, latencies and gaps, 5,000 steps on each kind of host.
#[test]
fn no_observation_leads_to_an_invalid_plan() {
    let quota = Platform { core_step: 0.1, managed: CpuSet::range(0, 2), mba: None, ..Platform::regular("quota", 2, 1, 0, 0.0) };
    let wide = Platform {
        llc: Some(Llc { ways: 16, mb_per_way: 1.0, min_ways: 2 }),
        mem_bw_mbps: Some(50_000.0),
        l3_domain_of_cpu: (0..24).map(|c| (c % 12) / 6).collect(),
        ..Platform::regular("wide", 12, 2, 16, 1.0)
    };
    let hosts = [
        Platform::regular("server", 18, 2, 20, 2.25),
        wide,
        Platform { mba: None, ..Platform::regular("no-mba", 8, 1, 11, 2.0) },
        Platform::regular("no-cat", 8, 1, 0, 0.0),
        Platform::regular("tiny", 3, 1, 3, 1.0),
        quota,
    ];
    for (h, p) in hosts.iter().enumerate() {
        for name in crate::NAMES {
            let mut known = Plant::new(p);
            for id in 0..8 {
                known.add(&format!("s{id}"), Kind::Lc { qos_target_ms: 10.0 }, 0.3 * p.cores(p.core_units()) / 2.0);
            }
            let mut policy = crate::by_name(name, p, Perfect::of(&known).set(), 1).unwrap();
            let mut plant = Plant::new(p);
            let mut rng = Rng::new(h as u64 + 1);
            for step in 0..5000 {
                let id = format!("s{}", rng.below(8));
                let be = id == "s6" || id == "s7";
                match (plant.tenants.iter().position(|t| t.id == id), rng.below(100)) {
                    (None, 0..=9) => plant.add(&id, if be { Kind::Be } else { Kind::Lc { qos_target_ms: 10.0 } }, 1.0),
                    (Some(i), 0..=1) => {
                        plant.tenants.remove(i);
                    }
                    _ => {}
                }
                plant.tick();
                let mut seen = plant.observe();
                for s in seen.services.iter_mut().filter(|s| s.is_lc()) {
                    // From far too slow to far too fast, now and then silent; counters partly unknown.
                    let p99 = 10.0 * (4.0 * (rng.uniform() - 0.6)).exp();
                    s.window = (rng.below(10) > 0).then(|| latency(p99));
                    s.feed = match (s.window, rng.below(2)) {
                        (None, 0) => FeedState::Unknown { since_ms: 0, heard: true },
                        (window, _) => FeedState::heard(window.as_ref()),
                    };
                    s.interval = (rng.below(5) > 0).then(|| latency(p99 * (0.5 + rng.uniform())));
                    s.features.cpu_usage_cores = (rng.below(4) > 0).then(|| rng.uniform() * s.allocation.cores());
                    s.features.mbl_mbps = (rng.below(4) > 0).then(|| rng.uniform() * 30_000.0);
                }
                let plan = policy.step(plant.t_ms, &seen);
                plant.apply(&plan);
                let least = p.core_step.min(1.0);
                for s in plant.observe().services {
                    assert!(s.allocation.cores() >= least - 1e-9, "{name} on {}, step {step}: {s:?}", p.name);
                    assert!(p.ways() == 0 || s.allocation.n_ways() >= f64::from(p.min_ways()), "{name} on {}: {s:?}", p.name);
                }
                assert!(!plan.reports.iter().any(|r| matches!(r, Report::CannotPlace { service, .. } if service == "all")), "{plan:?}");
            }
        }
    }
}
