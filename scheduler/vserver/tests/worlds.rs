//! Worlds drawn from a seed: what holds of each of three hundred, and of all together.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use surefoot_server::allocation::full_mask;
use surefoot_vserver::world::quantities as q;
use surefoot_vserver::world::quantity::Law;
use surefoot_vserver::world::{company_ms, Range, World, WorldId};
use surefoot_vserver::{max_load_rps, rps_at_full_load, Profile, Profiles, Sample, Steady, Tenant, HORIZON_S};

/// Worlds of each range: 300 in all.
const OF_A_RANGE: u32 = 100;

fn worlds() -> &'static [World] {
    static ALL: OnceLock<Vec<World>> = OnceLock::new();
    ALL.get_or_init(|| {
        let ids = Range::PLAIN.into_iter().flat_map(|range| (1..=OF_A_RANGE).map(move |number| WorldId { range, number }));
        ids.map(|id| World::draw(id).unwrap_or_else(|e| panic!("{id}: {e}"))).collect()
    })
}

fn services(w: &World) -> impl Iterator<Item = &Arc<Profile>> {
    w.profiles.services.values().filter(|p| p.lc().is_some())
}

/// A service alone on the whole server.
fn alone(w: &World, s: &Arc<Profile>, rps: f64) -> Sample {
    let p = &w.platform;
    let tenant = [Tenant::new(s.clone(), rps, p.logical_cpus(), p.all_cpus(), full_mask(p.llc.ways))];
    Steady::new(p.clone()).case(&tenant, HORIZON_S)[0]
}

fn p99(s: &Sample) -> f64 {
    s.latency.unwrap_or_default().p99
}

/// Every file loads as a profile, with what the world has in memory; a world has a server, services, jobs and workloads of its own.
#[test]
fn every_drawn_profile_loads() {
    let dir = tempfile::tempdir().unwrap();
    for w in worlds().iter().step_by(10) {
        let folder = dir.path().join(w.id.prefix());
        for (path, text) in &w.files {
            let file = folder.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        let read = Profiles::load(&[folder]).unwrap_or_else(|e| panic!("{}: {e}", w.id));
        assert_eq!((&read.platforms, &read.services), (&w.profiles.platforms, &w.profiles.services), "{}", w.id);
    }
    for w in worlds() {
        assert_eq!(services(w).count(), q::SERVICES_OF_A_WORLD);
        assert_eq!(w.profiles.services.len(), q::SERVICES_OF_A_WORLD + q::JOBS_OF_A_WORLD);
        assert_eq!(w.workloads.len(), q::WORKLOADS_OF_A_WORLD);
    }
}

/// Alone on the whole server each service meets its target at low load, and its max load is finite: it is met there, and missed (or
/// requests are lost) a little above.
#[test]
fn max_loads_are_finite_and_right() {
    let mut all = vec![];
    for w in worlds() {
        for s in services(w) {
            let lc = s.lc().unwrap();
            let max = rps_at_full_load(&w.platform, s).unwrap();
            assert!(lc.max_load_rps.contains_key(&w.platform.name), "{}: its max load is of its own server", s.name);
            for load in [0.05, 1.0] {
                let at = alone(w, s, load * max);
                assert!(p99(&at) <= lc.qos_target_ms && at.lost_frac <= 0.01, "{} at {load}: {at:?}", s.name);
            }
            let above = alone(w, s, 1.02 * max);
            assert!(p99(&above) > lc.qos_target_ms || above.lost_frac > 0.01, "{}: {max} RPS is not the most", s.name);
            assert!((0.05..2e7).contains(&max) && lc.qos_target_ms < 60_000.0, "{}: {max} RPS, {} ms", s.name, lc.qos_target_ms);
            assert_eq!(lc.rps_levels.last(), Some(&max));
            all.push(max);
        }
    }
    all.sort_by(f64::total_cmp);
    // Services of all sizes: four decades between the hundredth from below and from above.
    assert!(all[all.len() - 100] / all[100] > 1e3, "{} to {}", all[100], all[all.len() - 100]);
}

/// What a service with a floor meets alone it misses beside the job that streams, on half the cores and most ways.
#[test]
fn floors_are_floors() {
    let mut seen = 0;
    for w in worlds() {
        let Some(name) = &w.floor else { continue };
        let (s, jobs) = (&w.profiles.services[name], &w.workloads[0].jobs);
        let target = s.lc().unwrap().qos_target_ms;
        let low = 0.05 * rps_at_full_load(&w.platform, s).unwrap();
        assert!(p99(&alone(w, s, low)) <= target, "{name}");
        let streams = jobs.first().map(|j| &w.profiles.services[j]).unwrap();
        assert!(w.workloads[0].services.contains(name) && streams.name.ends_with("-b1"), "{name} runs beside the job that streams");
        assert!(company_ms(&w.platform, streams, s, low) > target, "{name}");
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

/// What sheds is lost and never late: at twice its max load p99 still meets the target. Its max load was 5.5e11 RPS before.
#[test]
fn what_sheds_is_never_late() {
    for w in worlds() {
        let Some(name) = &w.sheds else { continue };
        let s = &w.profiles.services[name];
        let lc = s.lc().unwrap();
        let over = alone(w, s, 2.0 * rps_at_full_load(&w.platform, s).unwrap());
        assert!(p99(&over) <= lc.qos_target_ms && over.lost_frac > 0.1, "{name}: {over:?}");
        assert!(lc.queue.max_outstanding <= q::SHED_OUTSTANDING.1);
        assert!(w.workloads[1].services.contains(name), "{name} runs in a workload");
    }
}

/// Nothing is drawn twice: no number of any profile's demands, name or file is that of another world's, in no range.
#[test]
fn ranges_share_nothing() {
    let mut names = BTreeSet::new();
    let mut texts = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    for w in worlds() {
        for s in services(w) {
            let lc = s.lc().unwrap();
            assert!(names.insert(s.name.clone()));
            // Four digits each of three quantities: equal by chance once in 10^11.
            assert!(texts.insert(format!("{} {} {}", lc.minstr_per_req, s.cache.apki, s.cache.mrc[0].c_mb)), "{}", s.name);
        }
        assert!(names.insert(w.platform.name.clone()) && hosts.insert(w.host_seed) && w.host_seed < 1 << 53);
    }
    let shipped = Profiles::load(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles")]).unwrap();
    for s in shipped.services.values() {
        let copied = worlds().iter().flat_map(|w| w.profiles.services.values()).any(|d| d.name == s.name || d.cache == s.cache);
        assert!(!copied, "{}", s.name);
    }
}

/// The same world has the same bytes, in any order and on any thread.
#[test]
fn a_world_is_a_function_of_its_name() {
    let again = |id| World::draw(id).unwrap().files;
    let threads: Vec<_> = worlds().iter().rev().step_by(37).map(|w| (w, std::thread::spawn(move || again(w.id)))).collect();
    for (w, thread) in threads {
        assert_eq!(thread.join().unwrap(), w.files, "{}", w.id);
    }
}

/// How often is what a world may hold: within four standard errors of the named probability.
#[test]
fn worlds_hold_what_they_say_as_often_as_they_say() {
    let share = |law: Law| match law {
        Law::Share(p) => p,
        other => panic!("{other:?}"),
    };
    let near = |what: &str, seen: usize, of: usize, p: f64| {
        let (seen, of) = (seen as f64, of as f64);
        let error = (of * p * (1.0 - p)).sqrt();
        assert!((seen - of * p).abs() <= 4.0 * error, "{what}: {seen} of {of}, {} expected", of * p);
    };
    let n = worlds().len();
    near("floor", worlds().iter().filter(|w| w.floor.is_some()).count(), n, share(q::FLOOR.law));
    near("sheds", worlds().iter().filter(|w| w.sheds.is_some()).count(), n, share(q::SHEDS.law));
    let all: Vec<_> = worlds().iter().flat_map(|w| &w.workloads).collect();
    near("spike", all.iter().filter(|w| w.has_spike).count(), all.len(), share(q::SPIKE.law));
    near("unserved", all.iter().filter(|w| w.is_unserved).count(), all.len(), share(q::UNSERVED.law));
    let sizes: BTreeMap<usize, usize> = all.iter().fold(BTreeMap::new(), |mut m, w| {
        *m.entry(w.services.len()).or_default() += 1;
        m
    });
    assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
    sizes.iter().for_each(|(size, seen)| near(&format!("{size} services"), *seen, all.len(), 0.2));
    let many = worlds().iter().filter(|w| w.platform.llc.domains > 1).count();
    near("several L3 domains", many, n, share(q::MANY_DOMAINS.law));
}

/// A spike is past max load; where nothing serves the demand, some service misses its target or loses requests even with all CPUs and
/// ways shared by all; elsewhere loads are at most max load.
#[test]
fn demands_are_what_they_say() {
    let mut served = 0;
    for w in worlds() {
        for load in &w.workloads {
            let file: toml::Table = load.text.parse().unwrap();
            let number = |t: &toml::Value, key: &str| t.get(key).and_then(|v| v.as_float().or(v.as_integer().map(|i| i as f64)));
            let lc = file["lc"].as_array().unwrap();
            let changes = |l: &toml::Value| l.get("change").and_then(toml::Value::as_array).cloned().unwrap_or_default();
            let spikes = lc.iter().flat_map(changes).filter(|c| number(c, "load").unwrap() > 1.0).count();
            assert!((spikes >= 1) == load.has_spike || load.is_unserved, "{}", load.name);
            let tenants: Vec<Tenant> = lc
                .iter()
                .map(|l| {
                    let s = &w.profiles.services[l["service"].as_str().unwrap()];
                    let (at, p) = (number(l, "load").unwrap(), &w.platform);
                    assert!(load.is_unserved || (0.05..=1.0).contains(&at), "{}: {at}", load.name);
                    let rps = at * rps_at_full_load(p, s).unwrap();
                    Tenant::new(s.clone(), rps, p.logical_cpus(), p.all_cpus(), full_mask(p.llc.ways))
                })
                .collect();
            if load.is_unserved {
                let mut cases = Steady::new(w.platform.clone());
                let seen = cases.case(&tenants, HORIZON_S);
                let misses = |(s, t): (&Sample, &Tenant)| p99(s) > t.profile.lc().unwrap().qos_target_ms || s.lost_frac > 0.01;
                assert!(seen.iter().zip(&tenants).any(misses), "{}", load.name);
            } else {
                served += 1;
            }
        }
    }
    assert!(served > 400, "{served}");
}

/// A drawn service whose queue is short: its max load is where it begins to lose requests, not where its p99 rises.
#[test]
fn losses_count_against_max_load() {
    let w = worlds().iter().find(|w| w.sheds.is_some()).unwrap();
    let mut s = (*w.profiles.services[w.sheds.as_ref().unwrap()]).clone();
    if let surefoot_vserver::ProfileKind::Lc(lc) = &mut s.kind {
        lc.max_load_rps.clear();
    }
    let s = Arc::new(s);
    let max = max_load_rps(&w.platform, &s).unwrap();
    assert!(alone(w, &s, 0.99 * max).lost_frac < 0.01 && alone(w, &s, 1.03 * max).lost_frac > 0.01);
}

/// The page has the table of what is drawn, as the code has it.
#[test]
fn the_page_has_every_quantity() {
    let page = include_str!("../../../docs/worlds.md");
    for (title, list) in q::ALL {
        let mut table = format!("### {title}\n\n| quantity | unit | range | goes with | source |\n| --- | --- | --- | --- | --- |\n");
        for d in list {
            let with: Vec<String> = d.with.iter().map(|(c, rho)| format!("{} {rho:+}", c.as_str())).collect();
            table += &format!("| `{}` | {} | {} | {} | {} |\n", d.name, d.unit, d.law.text(), with.join(", "), d.source);
        }
        assert!(page.contains(&table), "docs/worlds.md: put this there\n{table}");
        let names: BTreeSet<_> = list.iter().map(|d| d.name).collect();
        assert_eq!(names.len(), list.len(), "{title}: a name keys the draws of a quantity, so it stands once");
    }
}

/// Where memory is over-committed, two to four services and two jobs say how they page, all of them begin at once, and their working sets are 1.05 to 1.3 times
/// the server's memory. Ranges with memory enough have none of this, and their draws are keyed by other seeds.
#[test]
fn working_sets_exceed_memory() {
    let (mut mors, mut sizes) = (vec![], BTreeSet::new());
    for range in [Range::MemoryTune, Range::MemoryTest] {
        for w in (1..=15).map(|number| World::draw(WorldId { range, number }).unwrap()) {
            let have_gb = w.platform.mem.capacity_gb - w.platform.mem.reserved_gb;
            assert!(w.platform.os.disk_iops > 10_000.0 && w.profiles.services.values().all(|s| s.paging.is_some()), "{}", w.id);
            for load in &w.workloads {
                let file: toml::Table = load.text.parse().unwrap();
                let gb = |t: &toml::Value| t["ws_gb"].as_float().unwrap_or_else(|| t["ws_gb"].as_integer().unwrap() as f64);
                let sets = |of: &str| file[of].as_array().unwrap().iter().map(gb).collect::<Vec<f64>>();
                let (lc, be) = (sets("lc"), sets("be"));
                assert!((2..=4).contains(&lc.len()) && be.len() == 2 && !load.text.contains("arrive_s"), "{}", load.text);
                mors.push(lc.iter().chain(&be).sum::<f64>() / have_gb);
                sizes.insert(lc.len());
            }
        }
    }
    mors.sort_by(f64::total_cmp);
    let (least, most) = (mors[0], mors[mors.len() - 1]);
    assert!(least > 1.045 && least < 1.1 && most > 1.25 && most < 1.305, "{least} to {most}");
    assert_eq!(sizes, BTreeSet::from([2, 3, 4]));
}
