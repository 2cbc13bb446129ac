use super::*;
use crate::perfect::Perfect;
use crate::testing::{be, lc, observation, Plant};
use surefoot_learn::rng::Rng;
use surefoot_server::layout::{pack, Holding, Share};
use surefoot_server::{Action, ActionKind, Change, Kind, Memory};

/// CPUs `lo..hi` and the same of the ways, alone.
fn hold(p: &Platform, lo: u32, hi: u32) -> Allocation {
    let ways = if p.ways() > 0 { vec![((1 << hi) - 1) & !((1 << lo) - 1)] } else { vec![] };
    Allocation {
        cpus: CpuSet::range(lo, hi),
        shared_cpus: CpuSet::empty(),
        shared_ways: vec![0; ways.len()],
        ways,
        ..Allocation::everything(p)
    }
}

fn placed(view: ServiceView, a: Allocation) -> ServiceView {
    ServiceView { allocation: a, placed: true, ..view }
}

fn silent(view: ServiceView) -> ServiceView {
    ServiceView { feed: FeedState::Unknown { since_ms: 0, heard: true }, ..view }
}

fn plan(list: &[(&str, Allocation)]) -> Plan {
    let action = |id: &str| Action { service: id.into(), kind: ActionKind::Shrink, why: "test".into(), because: Default::default() };
    Plan {
        changes: list.iter().map(|(id, a)| (id.to_string(), Change::all(a))).collect(),
        actions: list.iter().map(|(id, _)| action(id)).collect(),
        reports: vec![],
        ..Plan::default()
    }
}

fn names<T>(of: &BTreeMap<String, T>) -> Vec<&str> {
    of.keys().map(String::as_str).collect()
}

/// Whoever would have gained from a silent service keeps what it has too; the rest of the plan goes on.
#[test]
fn what_is_taken_from_a_silent_service_is_put_off() {
    let p = Platform::regular("t", 12, 1, 12, 1.0);
    let seen = observation(vec![
        silent(placed(lc("quiet"), hold(&p, 0, 4))),
        placed(lc("greedy"), hold(&p, 4, 8)),
        placed(lc("modest"), hold(&p, 8, 11)),
        placed(be("job"), hold(&p, 11, 12)),
    ]);
    // quiet gives one to greedy; modest gives one to the job.
    let wanted = plan(&[("quiet", hold(&p, 0, 3)), ("greedy", hold(&p, 3, 8)), ("modest", hold(&p, 8, 10)), ("job", hold(&p, 10, 12))]);
    let got = protect(&p, &seen, wanted);
    assert_eq!(names(&got.plan.changes), ["job", "modest"]);
    assert_eq!(got.plan.actions.len(), 2);
    assert_eq!(got.spared, BTreeMap::from([("quiet".to_string(), "cores")]));
    // A chain: quiet's is to go to greedy, and greedy's to modest: nobody moves.
    let wanted = plan(&[("quiet", hold(&p, 0, 3)), ("greedy", hold(&p, 3, 7)), ("modest", hold(&p, 7, 11))]);
    assert!(protect(&p, &seen, wanted).plan.changes.is_empty());
    // It may be given, and moved.
    let wanted = plan(&[("greedy", hold(&p, 5, 8)), ("quiet", hold(&p, 0, 5))]);
    assert_eq!(protect(&p, &seen, wanted.clone()).plan, wanted);
    // Once it speaks, and as long as it only idles, plans pass.
    for feed in [FeedState::Fresh, FeedState::Idle] {
        let mut seen = seen.clone();
        seen.services[0].feed = feed;
        let wanted = plan(&[("quiet", hold(&p, 0, 1))]);
        assert_eq!(protect(&p, &seen, wanted.clone()).plan, wanted);
    }
}

/// Every resource counts, and so does company.
#[test]
fn nothing_that_it_holds_goes() {
    let p = Platform::regular("t", 12, 1, 12, 1.0);
    let held = Allocation { mem_limit_bytes: Some(1 << 30), ..hold(&p, 0, 4) };
    let seen = observation(vec![silent(placed(lc("quiet"), held.clone())), placed(lc("other"), hold(&p, 4, 8)), lc("new")]);
    let spared = |to: Allocation| protect(&p, &seen, plan(&[("quiet", to)])).spared.get("quiet").copied();
    assert_eq!(spared(Allocation { ways: vec![0x7], ..held.clone() }), Some("ways"));
    assert_eq!(spared(Allocation { mba_pct: 90, ..held.clone() }), Some("memory bandwidth"));
    assert_eq!(spared(Allocation { mem_limit_bytes: Some(1 << 29), ..held.clone() }), Some("memory"));
    assert_eq!(spared(Allocation { mem_limit_bytes: None, mba_pct: 100, ..held.clone() }), None);
    assert_eq!(spared(Allocation { quota_cores: Some(3.9), ..held.clone() }), Some("cores"));

    // A newcomer may not be crowded in on it, but it may on another.
    let with = |id: &str, a: &Allocation| {
        let both = Allocation { shared_cpus: a.cpus, shared_ways: a.ways.clone(), ..a.clone() };
        plan(&[(id, both.clone()), ("new", both)])
    };
    assert!(protect(&p, &seen, with("quiet", &held)).plan.changes.is_empty());
    assert_eq!(protect(&p, &seen, with("other", &hold(&p, 4, 8))).plan.changes.len(), 2);
    // A third user of what two share is one more, unless it has run there all along and goes on to.
    let both = Allocation { shared_cpus: held.cpus, shared_ways: held.ways.clone(), ..held.clone() };
    let seen = observation(vec![silent(placed(lc("quiet"), both.clone())), placed(lc("other"), both.clone()), lc("new")]);
    assert!(protect(&p, &seen, plan(&[("new", both)])).plan.changes.is_empty());
    let all = Allocation::everything(&p);
    let new = ServiceView { allocation: all.clone(), ..lc("new") };
    let seen = observation(vec![silent(placed(lc("quiet"), all.clone())), placed(lc("other"), all.clone()), new]);
    assert_eq!(protect(&p, &seen, plan(&[("new", all)])).plan.changes.len(), 1);
}

/// Quotas are sums: what a silent service keeps, nobody gains, and the sum stays right.
#[test]
fn quotas_stay_within_what_there_is() {
    let p = Platform { core_step: 0.1, managed: CpuSet::range(0, 2), mba: None, ..Platform::regular("q", 2, 1, 0, 0.0) };
    let quota = |q: f64| Allocation { quota_cores: Some(q), ..Allocation::everything(&p) };
    let seen = observation(vec![silent(placed(lc("quiet"), quota(1.0))), placed(lc("greedy"), quota(0.6)), placed(be("job"), quota(0.4))]);
    let got = protect(&p, &seen, plan(&[("quiet", quota(0.5)), ("greedy", quota(1.3)), ("job", quota(0.2))]));
    assert_eq!(names(&got.plan.changes), ["job"]);
}

/// Nothing is taken from a service whose feed is doubtful; the doubt is told at once and once, also where nothing was to be taken.
#[test]
fn a_doubtful_service_keeps_what_it_has() {
    let p = Platform::regular("t", 12, 1, 12, 1.0);
    let in_doubt = |why| ServiceView { feed: FeedState::Doubtful { since_ms: 0, why }, ..placed(lc("web"), hold(&p, 0, 4)) };
    let seen = |why| observation(vec![in_doubt(why), placed(be("job"), hold(&p, 4, 12))]);
    let got = protect(&p, &seen(Doubt::Workers), plan(&[("web", hold(&p, 0, 3)), ("job", hold(&p, 3, 12))]));
    assert!(got.plan.changes.is_empty() && got.spared == BTreeMap::from([("web".to_string(), "cores")]));
    struct Content;
    impl Policy for Content {
        fn name(&self) -> &str {
            "content"
        }
        fn step(&mut self, _: u64, _: &Observation) -> Plan {
            Plan::default()
        }
    }
    let mut policy = Guarded::new(Box::new(Content), &p);
    let mut said = |t_ms, why| policy.step(t_ms, &seen(why)).reports;
    let first = said(100, Doubt::Workers);
    let Report::Withheld { service, why } = &first[0] else { panic!("{first:?}") };
    assert!(service == "web" && why.starts_with("latency doubtful: its counts fall to and fro"), "{why}");
    assert!(said(200, Doubt::Workers).is_empty());
    assert_eq!(said(300, Doubt::Unit).len(), 1);
}

/// What is put off is told once, and again when the service falls silent again.
#[test]
fn a_report_is_made_once_a_silence() {
    struct Taker(Platform);
    impl Policy for Taker {
        fn name(&self) -> &str {
            "taker"
        }
        fn owns(&self) -> &[Resource] {
            &Resource::ALL
        }
        fn step(&mut self, _: u64, _: &Observation) -> Plan {
            plan(&[("quiet", hold(&self.0, 0, 3)), ("job", hold(&self.0, 3, 12))])
        }
    }
    let p = Platform::regular("t", 12, 1, 12, 1.0);
    let quiet = || placed(lc("quiet"), hold(&p, 0, 4));
    let seen = |quiet: ServiceView| observation(vec![quiet, placed(be("job"), hold(&p, 4, 12))]);
    let mut policy = Guarded::new(Box::new(Taker(p.clone())), &p);
    let mut reports = |t_ms, s| policy.step(t_ms, &seen(s)).reports;
    let said = reports(2500, silent(quiet()));
    let Report::Withheld { service, why } = &said[0] else { panic!("{said:?}") };
    assert_eq!((service.as_str(), why.as_str()), ("quiet", "latency unknown for 2.5 s: it keeps its cores; put off for it: job"));
    assert!(reports(2600, silent(quiet())).is_empty());
    assert!(reports(2700, quiet()).is_empty());
    assert_eq!(reports(2800, silent(quiet())).len(), 1);
}

/// One that was never heard is placed on a fair share of everything, or stays where it is while the rest of the plan goes on.
#[test]
fn an_unheard_newcomer_gets_a_fair_share_or_stays() {
    let p = Platform::regular("t", 12, 1, 12, 1.0);
    let new =
        || ServiceView { feed: FeedState::Unknown { since_ms: 0, heard: false }, allocation: Allocation::everything(&p), ..lc("new") };
    let seen = observation(vec![new(), placed(lc("other"), Allocation::everything(&p)), placed(be("job"), Allocation::everything(&p))]);
    // Two LC services and the jobs: four cores and four ways each.
    assert_eq!(fair_share(&p, &seen), (4.0, 4.0));
    let try_it = |to: Allocation| protect(&p, &seen, plan(&[("new", to), ("other", hold(&p, 4, 10)), ("job", hold(&p, 10, 12))]));
    assert_eq!(names(&try_it(hold(&p, 0, 4)).plan.changes), ["job", "new", "other"]);
    let short = try_it(hold(&p, 0, 3));
    assert_eq!(names(&short.plan.changes), ["job", "other"]);
    assert_eq!(short.spared, BTreeMap::from([("new".to_string(), "cores")]));
    let spared = |to: Allocation| try_it(to).spared.get("new").copied();
    assert_eq!(spared(Allocation { ways: vec![0x7], ..hold(&p, 0, 4) }), Some("ways"));
    assert_eq!(spared(Allocation { mba_pct: 90, ..hold(&p, 0, 4) }), Some("memory bandwidth"));
    assert_eq!(spared(Allocation { mem_limit_bytes: Some(1), ..hold(&p, 0, 4) }), Some("memory"));
    // Six cores that two use are three.
    let six = hold(&p, 0, 6);
    let both = Allocation { shared_cpus: six.cpus, shared_ways: six.ways.clone(), ..six };
    let wanted = plan(&[("new", both.clone()), ("other", both)]);
    assert!(!protect(&p, &seen, wanted).plan.changes.contains_key("new"));
    // One that speaks is the policy's affair.
    let mut idle = seen.clone();
    idle.services[0].feed = FeedState::Idle;
    let wanted = plan(&[("new", hold(&p, 0, 1)), ("other", hold(&p, 4, 10))]);
    assert_eq!(protect(&p, &idle, wanted.clone()).plan, wanted);
}

/// From the very first tick, under every policy: services that never say a word have a fair share or run everywhere, and lose nothing
/// of it to one that misses its target all the time; and this is reported once, where something was withheld.
#[test]
fn no_policy_takes_from_the_unheard() {
    for (ways, platform) in [(11, "cat"), (0, "no-cat")] {
        let p = Platform::regular(platform, 12, 1, ways, 1.0);
        for name in crate::NAMES {
            for greedy_first in [true, false] {
                let mut plant = Plant::new(&p).lc("greedy", 11.0, 10.0).be("job");
                let mut policy = crate::by_name(name, &p, Perfect::of(&plant).set(), 1).unwrap();
                let (mut had, mut reports) = (BTreeMap::new(), 0);
                for tick in 0..300 {
                    if tick == if greedy_first { 100 } else { 0 } {
                        for id in ["mute", "dumb"] {
                            plant.add(id, Kind::Lc { qos_target_ms: 10.0 }, 1.0);
                            plant.tenant(id).silent = true;
                        }
                    }
                    plant.tick();
                    let seen = plant.observe();
                    let plan = policy.step(plant.t_ms, &seen);
                    plant.apply(&plan);
                    reports += plan.reports.iter().filter(|r| matches!(r, Report::Withheld { service, .. } if service != "greedy")).count();
                    let now = plant.observe();
                    for s in now.lc().filter(|s| s.never_heard()) {
                        let got = (s.allocation.cores(), s.allocation.n_ways(), s.allocation.mba_pct);
                        let (cores, ways) = fair_share(&p, &now);
                        let fair = got.0 >= cores && got.1 >= ways && got.2 == 100;
                        assert!(fair, "{name} on {platform}, tick {tick}: {} has {got:?} of {cores}, {ways}", s.id);
                        // Once it has something of its own, that stays.
                        if s.placed {
                            let before = *had.entry(s.id.clone()).or_insert(got);
                            assert!(got.0 >= before.0 && got.1 >= before.1, "{name}, tick {tick}: {} {before:?} -> {got:?}", s.id);
                        }
                    }
                }
                assert!(reports <= 4, "{name}: {reports} reports");
            }
        }
    }
}

/// Chooses holdings, shares, bandwidth and memory by lot.
struct Hostile {
    platform: Platform,
    rng: Rng,
}

impl Policy for Hostile {
    fn name(&self) -> &str {
        "hostile"
    }

    fn owns(&self) -> &[Resource] {
        &Resource::ALL
    }

    fn step(&mut self, _: u64, seen: &Observation) -> Plan {
        let (p, rng) = (&self.platform, &mut self.rng);
        let mut ids: Vec<&ServiceView> = seen.services.iter().collect();
        for i in (1..ids.len()).rev() {
            ids.swap(i, rng.below(i + 1));
        }
        // Some hold together; all get something.
        let mut holdings: Vec<Holding> = vec![];
        for s in ids {
            match holdings.len() {
                n if n > 0 && (rng.below(4) == 0 || n as u32 + 1 >= p.ways().max(3).min(p.core_units())) => {
                    holdings[rng.below(n)].members.push(s.id.clone());
                }
                _ => holdings.push(Holding { members: vec![s.id.clone()], cores: 1, ways: p.min_ways(), mba_pct: 100 }),
            }
        }
        if p.by_quota() {
            holdings.iter_mut().for_each(|h| h.cores = h.members.len() as u32);
        }
        if holdings.is_empty() {
            return Plan::default();
        }
        let (mut cores, mut ways) = (holdings.iter().map(|h| h.cores).sum::<u32>(), holdings.iter().map(|h| h.ways).sum::<u32>());
        let mut shares = vec![];
        if !p.by_quota() && holdings.len() > 1 && rng.below(3) == 0 && cores + 2 <= p.core_units() {
            let w = if ways < p.ways() { 1 } else { 0 };
            shares.push(Share { between: (0, 1), cores: 2, ways: w });
            (cores, ways) = (cores + 2, ways + w);
        }
        for _ in 0..rng.below(30) {
            let i = rng.below(holdings.len());
            if cores < p.core_units() {
                (holdings[i].cores, cores) = (holdings[i].cores + 1, cores + 1);
            }
            let i = rng.below(holdings.len());
            if ways < p.ways() {
                (holdings[i].ways, ways) = (holdings[i].ways + 1, ways + 1);
            }
        }
        if p.mba.is_some() {
            holdings.iter_mut().for_each(|h| h.mba_pct = 10 * (1 + rng.below(10)) as u8);
        }
        let in_force = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
        let mut allocations = pack(p, &in_force, &holdings, &shares).unwrap();
        for a in allocations.values_mut() {
            a.mem_limit_bytes = (rng.below(4) == 0).then(|| (1 + rng.below(4) as u64) << 30);
        }
        Plan::whole(allocations)
    }
}

/// What a service has of the machine, from what everybody holds and not from what anybody says.
fn has(p: &Platform, seen: &Observation, id: &str) -> [f64; 7] {
    let me = &seen.get(id).unwrap().allocation;
    let users = |f: &dyn Fn(&Allocation) -> bool| seen.services.iter().filter(|s| f(&s.allocation)).count() as f64;
    let alone = |u: f64| f64::from(u8::from(u == 1.0));
    let cpus: Vec<f64> = me.cpus.iter().map(|c| users(&|a| a.cpus.contains(c))).collect();
    let bit = |a: &Allocation, d: usize, b: u32| a.ways[d] >> b & 1 == 1;
    let ways: Vec<f64> = (0..me.ways.len())
        .flat_map(|d| (0..p.ways()).filter(move |b| bit(me, d, *b)).map(move |b| (d, b)))
        .map(|(d, b)| users(&|a| bit(a, d, b)))
        .collect();
    let sum = |of: &[f64], f: &dyn Fn(f64) -> f64| of.iter().map(|u| f(*u)).sum::<f64>();
    // On a host that hands out quota all CPUs are everybody's: the quota is what it has.
    let placed_cpus = if p.by_quota() { [0.0; 2] } else { [sum(&cpus, &|u| 1.0 / u), sum(&cpus, &alone)] };
    [
        me.cores(),
        placed_cpus[0],
        placed_cpus[1],
        sum(&ways, &|u| 1.0 / u),
        sum(&ways, &alone),
        f64::from(me.mba_pct),
        me.mem_limit_bytes.map_or(f64::INFINITY, |b| b as f64),
    ]
}

/// Cores and ways (of the domain with least), each divided by the placed services that use it.
fn has_of_the_placed(p: &Platform, seen: &Observation, id: &str) -> (f64, f64) {
    let me = &seen.get(id).unwrap().allocation;
    let users = |f: &dyn Fn(&Allocation) -> bool| seen.services.iter().filter(|s| s.placed && f(&s.allocation)).count() as f64;
    let cores = me.cpus.iter().map(|c| 1.0 / users(&|a| a.cpus.contains(c))).sum();
    let bit = |a: &Allocation, d: usize, b: u32| a.ways[d] >> b & 1 == 1;
    let of = |d: usize| (0..p.ways()).filter(|b| bit(me, d, *b)).map(|b| 1.0 / users(&|a| bit(a, d, b))).sum::<f64>();
    let ways = (0..me.ways.len()).map(of).fold(f64::INFINITY, f64::min);
    (if p.by_quota() { me.cores() } else { cores }, if me.ways.is_empty() { 0.0 } else { ways })
}

/// Whatever a policy wants, and whoever falls silent when: a silent service loses nothing of anything, every plan stays valid (the
/// plant refuses others), and what is not about it still happens.
#[test]
fn no_plan_shrinks_a_silent_service() {
    let quota = Platform { core_step: 0.1, managed: CpuSet::range(0, 3), mba: None, ..Platform::regular("quota", 3, 1, 0, 0.0) };
    let domains = Platform { l3_domain_of_cpu: (0..24).map(|c| (c % 12) / 6).collect(), ..Platform::regular("domains", 12, 2, 16, 1.0) };
    let server = Platform { memory: Some(Memory { capacity_bytes: 6 << 30 }), ..Platform::regular("server", 18, 2, 20, 2.25) };
    let hosts = [server, domains, Platform::regular("no-cat", 8, 1, 0, 0.0), quota];
    let (mut spared, mut changed, mut newcomers, mut limited) = (0u32, 0u32, 0u32, 0u32);
    for (h, p) in hosts.iter().enumerate() {
        for (n, name) in ["hostile"].iter().chain(crate::NAMES).enumerate() {
            let mut known = Plant::new(p);
            for id in 0..8 {
                known.add(&format!("s{id}"), Kind::Lc { qos_target_ms: 10.0 }, 0.1 * p.cores(p.core_units()));
            }
            let mut rng = Rng::new((17 * h + n) as u64 + 1);
            let mut policy: Box<dyn Policy> = match *name {
                "hostile" => Box::new(Guarded::new(Box::new(Hostile { platform: p.clone(), rng: Rng::new(h as u64) }), p)),
                name => crate::by_name(name, p, Perfect::of(&known).set(), 1).unwrap(),
            };
            let mut plant = Plant::new(p);
            for step in 0..2000 {
                let id = format!("s{}", rng.below(8));
                let kind = if id.as_str() >= "s6" { Kind::Be } else { Kind::Lc { qos_target_ms: 10.0 } };
                match (plant.tenants.iter().position(|t| t.id == id), rng.below(100)) {
                    (None, 0..=9) => {
                        plant.add(&id, kind, 0.3 * p.cores(p.core_units()) * rng.uniform());
                        plant.tenant(&id).silent = rng.below(3) == 0;
                    }
                    (Some(i), 0..=1) => {
                        plant.tenants.remove(i);
                    }
                    (Some(i), 2..=9) => plant.tenants[i].silent ^= true,
                    (Some(i), 10..=19) => plant.tenants[i].demand = 0.5 * p.cores(p.core_units()) * rng.uniform(),
                    _ => {}
                }
                plant.tick();
                let seen = plant.observe();
                let quiet: Vec<&str> = seen.lc().filter(|s| s.placed && s.latency_unknown()).map(|s| s.id.as_str()).collect();
                let new: Vec<&str> = seen.lc().filter(|s| !s.placed && s.latency_unknown()).map(|s| s.id.as_str()).collect();
                let plan = policy.step(plant.t_ms, &seen);
                let before = seen.services.iter().filter(|s| s.placed).map(|s| (s.id.clone(), s.allocation.clone())).collect();
                check_plan(p, &plan, &before, &plan.layout(&seen)).unwrap();
                limited += u32::from(plan.reports.iter().any(|r| matches!(r, Report::Withheld { service, .. } if service == Report::ALL)));
                plant.apply(&plan);
                let now = plant.observe();
                for id in new
                    .iter()
                    .filter(|id| plan.wants(id, &seen.get(id).unwrap().allocation).is_some_and(|a| a != Allocation::everything(p)))
                {
                    let (got, fair) = (has_of_the_placed(p, &now, id), fair_share(p, &seen));
                    assert!(got.0 >= fair.0 - 1e-9 && got.1 >= fair.1 - 1e-9, "{name} on {}, step {step}: {id} {got:?} {fair:?}", p.name);
                    newcomers += 1;
                }
                for id in &quiet {
                    let (had, got) = (has(p, &seen, id), has(p, &now, id));
                    let fewer = had.iter().zip(&got).any(|(a, b)| *b < a - 1e-9);
                    assert!(!fewer, "{name} on {}, step {step}: {id} had {had:?}, has {got:?}\n{plan:?}", p.name);
                }
                spared += plan.reports.iter().filter(|r| matches!(r, Report::Withheld { .. })).count() as u32;
                changed += u32::from(!quiet.is_empty() && !plan.is_empty());
            }
        }
    }
    assert!(limited > 0, "no limits were left out");
    // The guard had work, and did not end all work.
    assert!(spared > 100 && changed > 1000 && newcomers > 30, "{spared} {changed} {newcomers}");
}

/// Whatever bounds one service, under every policy: its neighbours are placed, it is given nothing outside its bounds, what is called
/// exclusive is nobody else's (the plant refuses other plans), and the bound is told once.
#[test]
fn a_bounded_service_stops_nobody_else() {
    use surefoot_server::Bounds;
    let quota = Platform { core_step: 0.1, managed: CpuSet::range(0, 2), mba: None, ..Platform::regular("quota", 2, 1, 0, 0.0) };
    let hosts = [Platform::regular("server", 8, 1, 11, 2.0), quota];
    let cpus = |list: &str| CpuSet::parse(list).unwrap();
    let cases = [
        Bounds { cpus_at_least: cpus("0-1"), ..Bounds::default() },
        Bounds { cpus_at_least: cpus("0-7"), ..Bounds::default() },
        Bounds { cpus_at_most: Some(cpus("1")), ..Bounds::default() },
        Bounds { cpus_at_most: Some(cpus("9")), ..Bounds::default() },
        Bounds { quota_at_most: Some(0.5), ..Bounds::default() },
        Bounds { quota_at_most: Some(0.05), ..Bounds::default() },
        Bounds { quota_at_least: Some(1.5), ..Bounds::default() },
        Bounds { no_quota: true, ..Bounds::default() },
        Bounds { ways: Some(vec![0x7ff]), ..Bounds::default() },
        Bounds { ways: Some(vec![0x3]), cpus_at_most: Some(cpus("0-1")), ..Bounds::default() },
    ];
    for p in &hosts {
        for (name, bound) in crate::NAMES.iter().flat_map(|n| cases.iter().map(move |b| (n, b))) {
            let of = format!("{name} on {}: {bound:?}", p.name);
            let bound = Bounds { why: vec!["it is so".into()], ..bound.clone() };
            let demand = 0.2 * p.cores(p.core_units());
            let mut plant = Plant::new(p).lc("bad", demand, 10.0).lc("good", demand, 10.0).be("job");
            let mut policy = crate::by_name(name, p, Perfect::of(&plant).set(), 1).unwrap();
            let mut told = 0;
            for _ in 0..150 {
                plant.tick();
                let mut seen = plant.observe();
                seen.bounds.insert("bad".into(), bound.clone());
                let plan = policy.step(plant.t_ms, &seen);
                told += plan.reports.iter().filter(|r| matches!(r, Report::Withheld { service, .. } if service == "bad")).count();
                if let Some(a) = plan.wants("bad", &seen.get("bad").unwrap().allocation) {
                    let within = Bounds { cpus_at_least: bound.cpus_at_least.intersection(p.managed), ..bound.clone() };
                    assert!(within.allow_cpus(&a.cpus) && within.allow_quota(a.quota_cores), "{of}: {a:?}");
                    assert!(p.llc.is_none() || bound.ways.as_ref().is_none_or(|w| *w == a.ways), "{of}: {a:?}");
                }
                plant.apply(&plan);
            }
            let seen = plant.observe();
            assert!(seen.get("good").unwrap().placed && seen.get("job").unwrap().placed, "{of}");
            assert_eq!(seen.get("bad").unwrap().placed, bound.cpus_at_most != Some(cpus("9")), "{of}");
            assert_eq!(told, 1, "{of}");
        }
    }
}

/// Bounds move CPUs and nothing else: a limit that is in force stays, and one that is said is passed on.
#[test]
fn bounds_leave_memory_alone() {
    use surefoot_server::{bounding::keep, Bounds, Limit};
    let p = Platform::regular("t", 4, 1, 0, 0.0);
    let limited = Allocation { mem_limit_bytes: Some(1 << 30), ..hold(&p, 0, 2) };
    let mut seen = observation(vec![placed(lc("bad"), limited), placed(lc("good"), hold(&p, 2, 4))]);
    seen.bounds.insert("bad".into(), Bounds { cpus_at_most: CpuSet::parse("2-3").ok(), ..Bounds::default() });
    let limit = Change { mem_limit: Some(Limit::Bytes(2 << 30)), ..Change::default() };
    let got = keep(&p, &seen, Plan { changes: BTreeMap::from([("good".into(), limit)]), ..Plan::default() }).plan;
    let named = |id: &str| got.changes[id].resources().collect::<Vec<_>>();
    assert_eq!((named("bad"), named("good")), (vec![Resource::Cpu], vec![Resource::Cpu, Resource::Memory]));
    let after = got.layout(&seen);
    assert_eq!((after["bad"].mem_limit_bytes, after["good"].mem_limit_bytes), (Some(1 << 30), Some(2 << 30)));
    assert_eq!(after["bad"].cpus, CpuSet::range(2, 4));
}
