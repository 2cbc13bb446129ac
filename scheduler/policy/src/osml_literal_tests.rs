use super::*;
use crate::models::{Area, Experience};
use crate::perfect::Perfect;
use crate::testing::Plant;

/// Models that know the plant, with a Model-C that always says the same.
struct Says {
    of: Perfect,
    action: usize,
}

impl Models for Says {
    fn area(&self, service: &str, s: &State) -> Result<Area, String> {
        self.of.area(service, s)
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.of.qos(service, s, cores, ways)
    }

    fn act(&mut self, _service: &str, _s: &State) -> Result<[f32; ACTIONS], String> {
        let mut p = [0.1; ACTIONS];
        p[self.action] = 0.4;
        Ok(p)
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.of.remember(e)
    }

    fn learn(&mut self) -> bool {
        self.of.learn()
    }
}

fn policy(plant: &Plant, models: Box<dyn Models>) -> OsmlLiteral {
    OsmlLiteral::new(&plant.platform, models, Settings { noise: 0.0, ..Settings::default() }, 1)
}

fn run(plant: &mut Plant, policy: &mut OsmlLiteral, ticks: u32) -> Vec<(u64, surefoot_server::Action)> {
    let mut all = vec![];
    for _ in 0..ticks {
        plant.tick();
        let plan = policy.step(plant.t_ms, &plant.observe());
        plant.apply(&plan);
        all.extend(plan.actions.into_iter().map(|a| (plant.t_ms, a)));
    }
    all
}

/// A newcomer is watched on what is idle and then holds Model-A's OAA; BE jobs have the rest.
#[test]
fn a_newcomer_goes_from_idle_resources_to_its_oaa() {
    let p = Platform::regular("t", 12, 1, 11, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
    let models = Perfect::of(&plant);
    let mut policy = policy(&plant, Box::new(Says { of: models.clone(), action: IDLE }));
    run(&mut plant, &mut policy, 1);
    assert_eq!(plant.cores("a"), 11.0);
    let actions = run(&mut plant, &mut policy, 10);
    let s = plant.observe();
    let oaa = models.area("a", &State::of(s.get("a").unwrap())).unwrap();
    assert_eq!((plant.cores("a"), plant.ways("a")), (oaa.oaa_cores, oaa.oaa_ways.unwrap()));
    assert_eq!((actions.len(), actions[0].0, plant.cores("x")), (1, 400, 12.0 - oaa.oaa_cores));
}

/// The likeliest action is conducted, whatever it is: who misses its target gives cores if Model-C says so. It comes back: the target is missed.
#[test]
fn the_likeliest_action_is_conducted_and_withdrawn() {
    let p = Platform::regular("t", 12, 1, 11, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
    let mut policy = policy(&plant, Box::new(Says { of: Perfect::of(&plant), action: CORES_DOWN }));
    run(&mut plant, &mut policy, 20);
    let held = plant.cores("a");
    plant.tenant("a").demand = held - 0.2;
    let actions = run(&mut plant, &mut policy, 30);
    let kinds: Vec<ActionKind> = actions.iter().map(|(_, a)| a.kind).collect();
    assert_eq!(kinds[..2], [ActionKind::Shrink, ActionKind::Rollback], "{kinds:?}");
    assert!(actions[1].0 > actions[0].0 && plant.cores("a") >= held - 1.0);
    // Up, where it says so: each step a unit, from the BE job.
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
    let mut up = self::policy(&plant, Box::new(Says { of: Perfect::of(&plant), action: CORES_UP }));
    run(&mut plant, &mut up, 20);
    let held = plant.cores("a");
    plant.tenant("a").demand = held + 1.0;
    let actions = run(&mut plant, &mut up, 60);
    assert!(plant.cores("a") > held + 1.0 && plant.all_met());
    assert!(actions.iter().all(|(_, a)| a.kind == ActionKind::Grow));
}

/// With nothing idle neighbours give, by Model-B's leave: at most three that go on meeting their targets; where none can, one shares.
#[test]
fn neighbours_give_what_model_b_allows() {
    let p = Platform::regular("t", 12, 1, 0, 0.0);
    let mut plant = Plant::new(&p).lc("a", 2.0, 10.0);
    let mut policy = policy(&plant, Box::new(Says { of: Perfect::of(&plant.clone().lc("b", 7.0, 10.0)), action: IDLE }));
    run(&mut plant, &mut policy, 2);
    // While it is watched it holds everything: nobody gives, and the newcomer is crowded in.
    plant.add("b", surefoot_server::Kind::Lc { qos_target_ms: 10.0 }, 7.0);
    run(&mut plant, &mut policy, 30);
    assert!(plant.cores("a") >= 3.0 && plant.cores("b") >= 8.0 && plant.all_met(), "{} {}", plant.cores("a"), plant.cores("b"));
}

/// The pool keeps the actor's probabilities with the reward of Sec. 3.2, and learns when Model-C was asked.
#[test]
fn the_pool_keeps_what_the_actor_said() {
    let p = Platform::regular("t", 12, 1, 11, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
    let models = Perfect::of(&plant);
    let mut policy = policy(&plant, Box::new(Says { of: models.clone(), action: CORES_UP }));
    run(&mut plant, &mut policy, 20);
    let demand = plant.cores("a") + 1.0;
    plant.tenant("a").demand = demand;
    models.notes.borrow_mut().demand = vec![("a".into(), demand)];
    run(&mut plant, &mut policy, 60);
    let notes = models.notes.borrow();
    let first = notes.experiences.first().unwrap();
    assert_eq!((first.action, first.vector.map(|v| v[CORES_UP])), (CORES_UP, Some(0.4)));
    // Missed: between 0 and 2; all met: 2 and more.
    assert!(notes.experiences.iter().all(|e| (0.0..3.0).contains(&e.reward)) && notes.learnt > 0);
}

/// Whose latency is unknown is left alone.
#[test]
fn who_is_silent_is_left_alone() {
    let p = Platform::regular("t", 12, 1, 11, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 10.0).be("x");
    let mut policy = policy(&plant, Box::new(Says { of: Perfect::of(&plant), action: CORES_DOWN }));
    run(&mut plant, &mut policy, 20);
    let held = (plant.cores("a"), plant.ways("a"));
    plant.tenant("a").silent = true;
    assert!(run(&mut plant, &mut policy, 50).is_empty());
    assert_eq!((plant.cores("a"), plant.ways("a")), held);
}
