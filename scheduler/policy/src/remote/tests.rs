use super::*;
use crate::testing::Plant;
use crate::{EqualShare, Guarded};
use serde_json::{json, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use surefoot_server::{Bounds, CpuSet, FeedState, Kind, Latency, MemoryView, Verdict};

type Decide = Box<dyn FnMut(&Value) -> Result<Value, Miss>>;

/// Questions and answers go through JSON, as they do over a socket.
struct Told {
    decide: Decide,
    misses: Rc<RefCell<Vec<Option<Miss>>>>,
}

impl Answers for Told {
    fn ask(&mut self, _now_ms: u64, question: &Question) -> Result<Answer, Miss> {
        let question: Value = serde_json::from_str(&serde_json::to_string(question).unwrap()).unwrap();
        let answer = (self.decide)(&question)?;
        serde_json::from_value(answer).map_err(|e| Miss::new(Held::Malformed, e.to_string()))
    }

    fn became(&mut self, _now_ms: u64, miss: Option<&Miss>) {
        self.misses.borrow_mut().push(miss.cloned());
    }

    fn asked(&self) -> Asked {
        Asked::default()
    }
}

type Misses = Rc<RefCell<Vec<Option<Miss>>>>;

fn remote(p: &Platform, decide: impl FnMut(&Value) -> Result<Value, Miss> + 'static) -> (Remote, Misses) {
    let misses = Misses::default();
    let told = Told { decide: Box::new(decide), misses: misses.clone() };
    (Remote::new("socket:/t", p, Box::new(told)), misses)
}

fn step(plant: &mut Plant, policy: &mut dyn Policy) -> Plan {
    plant.tick();
    let plan = policy.step(plant.t_ms, &plant.observe());
    plant.apply(&plan);
    plan
}

/// Equal shares as somebody else would write them, by what stands in the question alone.
fn equal_shares(q: &Value, p: &Platform) -> Value {
    let services = q["seen"]["services"].as_array().unwrap();
    let lc: Vec<&Value> = services.iter().filter(|s| s["kind"]["kind"] == "lc").collect();
    let has_be = lc.len() < services.len();
    let holders = (lc.len() + usize::from(has_be)) as u64;
    let part = |of: u32, i: usize| u64::from(of) / holders + u64::from(!has_be && (i as u64) < u64::from(of) % holders);
    let hold: serde_json::Map<String, Value> = lc
        .iter()
        .enumerate()
        .map(|(i, s)| (s["id"].as_str().unwrap().to_string(), json!({ "core_units": part(p.core_units(), i), "ways": part(p.ways(), i) })))
        .collect();
    json!({ "seq": q["seq"], "hold": hold })
}

/// Equal shares from outside are equal shares, plan by plan, through arrivals and departures.
#[test]
fn equal_shares_from_outside_are_equal_shares() {
    for core_step in [1.0, 0.1] {
        let p = Platform { core_step, ..Platform::regular("t", 12, 1, 9, 2.0) };
        let plant = || Plant::new(&p).lc("a", 9.0, 5.0).lc("b", 1.0, 5.0);
        let (mut ours, mut theirs) = (plant(), plant());
        let mut inside = EqualShare::new(&p);
        let of = p.clone();
        let (mut outside, misses) = remote(&p, move |q| Ok(equal_shares(q, &of)));
        for t in 0..60 {
            for plant in [&mut ours, &mut theirs] {
                match t {
                    10 => plant.add("x", Kind::Be, 0.0),
                    20 => plant.add("c", Kind::Lc { qos_target_ms: 5.0 }, 1.0),
                    40 => drop(plant.tenants.remove(0)),
                    _ => {}
                }
            }
            let (a, b) = (step(&mut ours, &mut inside), step(&mut theirs, &mut outside));
            assert_eq!(a.changes, b.changes, "{t}");
            let kinds = |p: &Plan| p.actions.iter().map(|a| (a.service.clone(), a.kind)).collect::<Vec<_>>();
            assert_eq!(kinds(&a), kinds(&b), "{t}");
        }
        assert!(misses.borrow().iter().all(Option::is_none), "{:?}", misses.borrow());
    }
}

/// An answer that asks for what there is not counts in no part of it, is said in one line, and told with the next question.
#[test]
fn lies_change_nothing() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let sound = json!({ "a": { "core_units": 4, "ways": 3 }, "b": { "core_units": 5, "ways": 3 } });
    let hold = |h: Value| json!({ "seq": 1, "hold": h });
    let many: Vec<Value> = (0..65).map(|_| json!({ "report": "migrate", "service": "a", "why": "" })).collect();
    let lies = [
        // 12 cores, of which the job keeps one.
        (
            hold(json!({ "a": { "core_units": 7, "ways": 3 }, "b": { "core_units": 5, "ways": 3 } })),
            "a: 7 core units and 3 ways, but 2 core units",
        ),
        (hold(json!({ "a": { "core_units": 4_000_000_000u32, "ways": 4_000_000_000u32 } })), "but 2 core units and 2 ways are free"),
        (hold(json!({ "zz\u{1b}": { "core_units": 1, "ways": 1 } })), "service \"zz\\u{1b}\" is not here"),
        (hold(json!({ "x": { "core_units": 1, "ways": 1 } })), "\"x\" is a BE job"),
        (hold(json!({ "a": { "core_units": 0, "ways": 3 } })), "but 1 core units and 1 ways are the least"),
        (hold(json!({ "a": { "core_units": -1, "ways": 3 } })), "invalid value: integer `-1`"),
        (hold(json!({ "a": { "core_units": 1.5, "ways": 3 } })), "floating point"),
        (hold(json!({ "a": { "core_units": null, "ways": 3 } })), "null"),
        (hold(json!({ "a": { "core_units": 4, "ways": 3, "cpus": "0-3" } })), "unknown field `cpus`"),
        (hold(json!({ "a": { "core_units": 4, "ways": 3, "mba_pct": 7 } })), "a: mba_pct 7. Give 10 to 100, in steps of 10"),
        (json!({ "seq": 1, "be_mba_pct": 0 }), "be_mba_pct: mba_pct 0"),
        (json!({ "seq": 1, "crowd": ["a"] }), "a: is in `crowd`, but holds something"),
        (json!({ "seq": 1, "hold": { "a": { "core_units": 4, "ways": 3 } }, "crowd": ["a"] }), "in `hold` and in `crowd`"),
        (json!({ "seq": 1, "reports": [{ "report": "migrate", "service": "q", "why": "" }] }), "a report is of service \"q\""),
        (json!({ "seq": 1, "reports": many }), "65 reports"),
        (json!({ "seq": 1, "error": "KeyError: 'a'" }), "it could not decide: KeyError: 'a'"),
        (json!([]), "invalid"),
    ];
    for (lie, why) in lies {
        let mut plant = Plant::new(&p).lc("a", 3.0, 5.0).lc("b", 3.0, 5.0).be("x");
        let (asked, first) = (Rc::new(RefCell::new(vec![])), sound.clone());
        let (told, all) = (lie.clone(), asked.clone());
        let (policy, misses) = remote(&p, move |q| {
            all.borrow_mut().push(q["refused"].clone());
            Ok(if all.borrow().len() == 3 { told.clone() } else { json!({ "seq": 1, "hold": first }) })
        });
        let mut policy = Guarded::new(Box::new(policy), &p);
        step(&mut plant, &mut policy);
        step(&mut plant, &mut policy);
        let before: Vec<f64> = plant.tenants.iter().map(|t| plant.cores(&t.id)).collect();
        let plan = step(&mut plant, &mut policy);
        assert!(plan.is_empty() && plan.actions.is_empty() && plan.reports.is_empty(), "{lie}: {plan:?}");
        assert_eq!(before, [4.0, 5.0, 3.0], "{lie}");
        assert_eq!(plant.tenants.iter().map(|t| plant.cores(&t.id)).collect::<Vec<_>>(), before, "{lie}");
        step(&mut plant, &mut policy);
        let missed = misses.borrow()[2].clone().unwrap_or_else(|| panic!("{lie}: nothing was wrong"));
        assert!(missed.why.contains(why) && !missed.why.contains('\n'), "{lie}: {missed:?}");
        assert_eq!(misses.borrow().iter().filter(|m| m.is_some()).count(), 1, "{lie}");
        let again = asked.borrow()[3].clone();
        assert_eq!(again.is_null(), missed.held == Held::Failed, "{lie}: {again}");
    }
}

/// While nobody answers, the last counts go on; a newcomer uses what the jobs use and isolates nobody else; who leaves frees what it held.
#[test]
fn silence_holds_the_last_plan() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 5.0).lc("b", 3.0, 5.0).be("x");
    let mut answers = 0;
    let (mut policy, misses) = remote(&p, move |q| {
        answers += 1;
        let hold = json!({ "a": { "core_units": 4, "ways": 3 }, "b": { "core_units": 5, "ways": 3 } });
        match answers {
            1 => Ok(json!({ "seq": q["seq"], "hold": hold })),
            _ => Err(Miss::new(Held::Gone, "nobody listens")),
        }
    });
    for _ in 0..20 {
        step(&mut plant, &mut policy);
    }
    let held = |plant: &Plant, id: &str| (plant.cores(id), plant.ways(id));
    assert_eq!([held(&plant, "a"), held(&plant, "b"), held(&plant, "x")], [(4.0, 3.0), (5.0, 3.0), (3.0, 3.0)]);
    plant.add("c", Kind::Lc { qos_target_ms: 5.0 }, 1.0);
    for _ in 0..20 {
        step(&mut plant, &mut policy);
    }
    assert_eq!([held(&plant, "a"), held(&plant, "b"), held(&plant, "c")], [(4.0, 3.0), (5.0, 3.0), (3.0, 3.0)]);
    plant.tenants.remove(1);
    step(&mut plant, &mut policy);
    assert_eq!([held(&plant, "a"), held(&plant, "x"), held(&plant, "c")], [(4.0, 3.0), (8.0, 6.0), (8.0, 6.0)]);
    assert_eq!(misses.borrow().iter().filter(|m| m.is_none()).count(), 1);
}

fn leaves(v: &Value, path: &str, to: &mut BTreeSet<String>) {
    match v {
        Value::Object(map) => map.iter().for_each(|(k, v)| {
            let by_id = path.ends_with("held") || path.ends_with("bounds");
            let key = if by_id { "ID" } else { k };
            leaves(v, &if path.is_empty() { key.into() } else { format!("{path}.{key}") }, to);
        }),
        Value::Array(all) => all.iter().for_each(|v| leaves(v, path, to)),
        _ => drop(to.insert(path.to_string())),
    }
}

/// Every number that can stand in a question has a unit in the greeting, and nothing else has.
#[test]
fn every_number_has_a_unit() {
    let p = Platform::regular("t", 12, 1, 9, 2.0);
    let mut plant = Plant::new(&p).lc("a", 3.0, 5.0).be("x");
    plant.tick();
    let mut seen = plant.observe();
    let latency = Latency {
        count: 1,
        mean_ms: 1.0,
        p50_ms: 1.0,
        p95_ms: 1.0,
        p99_ms: 1.0,
        p99_low_ms: Some(1.0),
        p99_high_ms: Some(1.0),
        achieved_rps: 1.0,
        errors: 0,
        verdict: Verdict::Valid,
    };
    let memory = MemoryView {
        in_use_bytes: Some(1),
        pool_bytes: Some(1),
        stored_bytes: Some(1),
        swapped_bytes: Some(1),
        working_set_bytes: Some(1),
        pool_swap_ins_per_s: Some(1.0),
        disk_swap_ins_per_s: Some(1.0),
        refaults_per_s: Some(1.0),
        stall_frac: Some(1.0),
    };
    let s = &mut seen.services[0];
    (s.interval, s.window, s.memory) = (Some(latency), Some(latency), memory);
    s.feed = FeedState::Unknown { since_ms: 1, heard: true };
    let cpus = CpuSet::range(0, 2);
    let bounds = Bounds {
        cpus_at_least: cpus,
        cpus_at_most: Some(cpus),
        quota_at_least: Some(1.0),
        quota_at_most: Some(2.0),
        no_quota: true,
        ways: Some(vec![1]),
        why: vec!["x".into()],
    };
    seen.bounds.insert("a".into(), bounds);
    let mut books = Books::new(&p);
    books.admit("a", Amount::new(2, 2));
    let mut found = BTreeSet::new();
    leaves(&serde_json::to_value(question(&books, None, &seen)).unwrap(), "", &mut found);
    // Words, flags and names are no numbers.
    let words = [
        "surefoot",
        "refused",
        "seen.bounds.ID.no_quota",
        "seen.bounds.ID.why",
        "seen.services.id",
        "seen.services.service",
        "seen.services.kind.kind",
        "seen.services.placed",
        "seen.services.feed.state",
        "seen.services.feed.heard",
        // Of a job, which has none.
        "seen.services.interval",
        "seen.services.window",
        "seen.services.interval.verdict",
        "seen.services.window.verdict",
    ];
    let wanted: BTreeSet<String> = UNITS.iter().map(|(path, _)| path.to_string()).chain(words.map(String::from)).collect();
    assert_eq!(found, wanted);
    assert!(UNITS.windows(2).all(|w| w[0].0 < w[1].0));
}
