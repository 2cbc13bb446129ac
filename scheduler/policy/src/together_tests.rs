use super::*;
use crate::testing::Plant;
use crate::{EqualShare, Guarded};
use surefoot_server::{Change, Limit, Platform};

/// Says the same of some services at every step, and owns what it is told.
struct Says {
    name: &'static str,
    owns: Vec<Resource>,
    of: &'static str,
    change: Change,
}

impl Says {
    fn memory(owns: &[Resource], of: &'static str, change: Change) -> Box<dyn Policy> {
        Box::new(Says { name: "mem", owns: owns.to_vec(), of, change })
    }
}

impl Policy for Says {
    fn name(&self) -> &str {
        self.name
    }

    fn owns(&self) -> &[Resource] {
        &self.owns
    }

    fn step(&mut self, _: u64, _: &Observation) -> Plan {
        Plan { changes: [(self.of.to_string(), self.change.clone())].into(), ..Plan::default() }
    }
}

const MEMORY: [Resource; 2] = [Resource::Memory, Resource::Zswap];

fn limit() -> Change {
    Change { mem_limit: Some(Limit::Bytes(1 << 30)), ..Change::default() }
}

fn cores_and(p: &Platform, other: Box<dyn Policy>) -> Guarded {
    Guarded::new(Box::new(Together::new(vec![Box::new(EqualShare::new(p)), other]).unwrap()), p)
}

fn step(plant: &mut Plant, policy: &mut dyn Policy) -> Plan {
    plant.tick();
    let plan = policy.step(plant.t_ms, &plant.observe());
    plant.apply(&plan);
    plan
}

/// Cores by one, memory by another on one service: each keeps what the other says, and a limit is no reason for a layout.
#[test]
fn each_keeps_what_the_other_says() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = Plant::new(&p).lc("a", 1.0, 5.0).lc("b", 1.0, 5.0);
    let mut policy = cores_and(&p, Says::memory(&MEMORY, "a", limit()));
    assert_eq!((policy.name(), policy.owns().len()), ("equal-share+mem", 5));
    for tick in 0..10 {
        let plan = step(&mut plant, &mut policy);
        assert_eq!(plan.changes["a"].names(Resource::Cpu), tick == 0, "{plan:?}");
        assert!(plan.reports.is_empty(), "{plan:?}");
        let held = plant.observe().get("a").unwrap().allocation.clone();
        assert_eq!((held.cores(), held.mem_limit_bytes, held.zswap_max_bytes), (6.0, Some(1 << 30), None));
        assert_eq!(plant.observe().get("b").unwrap().allocation.mem_limit_bytes, None);
    }
    // Half of it for a newcomer: the limit stays.
    plant.add("x", surefoot_server::Kind::Be, 0.0);
    step(&mut plant, &mut policy);
    let held = plant.observe().get("a").unwrap().allocation.clone();
    assert_eq!((held.cores(), held.mem_limit_bytes), (4.0, Some(1 << 30)));
}

/// A plan that names what another policy owns changes nothing, and is told once; the other policies' plans go on.
#[test]
fn a_trespass_changes_nothing() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = Plant::new(&p).lc("a", 1.0, 5.0);
    let mut policy = cores_and(&p, Says::memory(&MEMORY, "a", Change { mba_pct: Some(50), ..limit() }));
    let plan = step(&mut plant, &mut policy);
    let why = "policy mem names memory bandwidth of a, which policy equal-share owns; it owns memory, zswap: its plan is left out";
    assert_eq!(plan.reports, [Report::Withheld { service: "a".into(), why: why.into() }]);
    let held = plant.observe().get("a").unwrap().allocation.clone();
    assert_eq!((held.cores(), held.mba_pct, held.mem_limit_bytes), (12.0, 100, None));
    assert_eq!(step(&mut plant, &mut policy), Plan::default());
    // One that stands alone is held to the same.
    let mut alone = Guarded::new(Says::memory(&MEMORY, "a", Change { mba_pct: Some(50), ..limit() }), &p);
    let plan = step(&mut plant, &mut alone);
    let why = "policy mem names memory bandwidth of a, which no policy here owns; it owns memory, zswap: its plan is left out";
    assert_eq!(plan, Plan { reports: vec![Report::Withheld { service: "a".into(), why: why.into() }], ..Plan::default() });
}

/// A limit on a service that nothing has placed waits for its CPUs.
#[test]
fn memory_waits_for_cores() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = Plant::new(&p).lc("a", 1.0, 5.0);
    let mut alone = Guarded::new(Says::memory(&MEMORY, "a", limit()), &p);
    assert!(step(&mut plant, &mut alone).is_empty() && !plant.observe().get("a").unwrap().placed);
    step(&mut plant, &mut EqualShare::new(&p));
    step(&mut plant, &mut alone);
    assert_eq!(plant.observe().get("a").unwrap().allocation.mem_limit_bytes, Some(1 << 30));
}

/// No resource has two owners, and each policy owns one at least.
#[test]
fn overlaps_are_refused() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let with = |owns: &[Resource]| Together::new(vec![Box::new(EqualShare::new(&p)), Says::memory(owns, "a", limit())]).err();
    assert_eq!(with(&MEMORY), None);
    assert_eq!(with(&[Resource::Memory, Resource::Llc]).unwrap(), "policies equal-share and mem both own ways. Give it to one");
    assert_eq!(with(&[]).unwrap(), "policy mem owns nothing. Leave it out");
    assert_eq!(Together::new(vec![]).err().unwrap(), "no policy. Give at least one");
}
