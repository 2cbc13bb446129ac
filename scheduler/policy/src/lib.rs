//! Policies: from an observation of a server to a plan for it.
//!
//! A policy is a function of what it observes and of its own past: no files, no clock, no threads, seeded randomness. It is
//! called every 100 ms. An unknown latency (a silent feed) never counts as met or as violated, and while it lasts nothing is taken
//! away from the service: policies do not choose it, and [`guard`] stands behind every one of them.
//!
//! | name | what it does | source |
//! | --- | --- | --- |
//! | `unmanaged` | everything is shared by everybody | the operating system's default |
//! | `equal-share` | cores and ways split equally at arrivals, and then left alone | the least that partitioning can do |
//! | `parties` | one resource, one service, one step at a time, by trial | PARTIES (ASPLOS 2019), as the OSML+ paper's heuristic baseline |
//! | `clite` | whole partitions tried by Bayesian optimisation, the best one held | CLITE (HPCA 2020), as the OSML+ paper's BO-baseline |
//! | `heracles` | BE jobs grow while the LC services have slack | Heracles (ISCA 2015) |
//! | `parties-100ms`, `clite-100ms`, `heracles-100ms` | the same, deciding every 100 ms | ours |
//! | `osml` | Models A, A', B, B' and C (DQN) under the central logic, every second | OSML paper, Sec. 5, Algorithms 1 to 4 |
//! | `osml-plus` | Models A, B and C under one control logic | OSML+ paper, Sec. 3.3, Algorithms 1 to 3 |
//! | `surefoot` | Models A and B, joint plans for all services, what was seen counts more than what is predicted | our own |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod books;
pub mod clite;
pub mod deprive;
pub mod equal_share;
pub mod guard;
pub mod heracles;
mod model_set;
pub mod models;
pub mod oracle;
pub mod osml;
pub mod osml_models;
pub mod osml_plus;
pub mod pace;
pub mod parties;
mod policy;
pub mod shadow;
pub mod surefoot;
pub mod unmanaged;

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod perfect;
#[cfg(test)]
mod testing;

pub use clite::{Clite, CliteSettings};
pub use equal_share::EqualShare;
pub use guard::Guarded;
pub use heracles::{Heracles, HeraclesSettings};
pub use osml_plus::OsmlPlus;
pub use parties::{Parties, PartiesSettings};
pub use shadow::{Opinion, Shadows};
pub use surefoot::Surefoot;
pub use unmanaged::Unmanaged;

pub use model_set::ModelSet;
pub use models::{Area, BundleModels, Experience, Models, State};
pub use osml::Osml;
pub use osml_models::{BPoint, BPoints, BundleOsml, OsmlModels};
pub use policy::Policy;

use surefoot_server::{names, Platform};

/// Every policy's name, as `--policy` takes it.
pub const NAMES: &[&str] = &[
    "unmanaged",
    "equal-share",
    "parties",
    "parties-100ms",
    "clite",
    "clite-100ms",
    "heracles",
    "heracles-100ms",
    "osml",
    "osml-plus",
    "surefoot",
];

/// Whether there is such a policy: a name can be looked at before there is a platform to make it for.
///
/// # Errors
/// One line with the names that there are.
pub fn check_name(name: &str) -> Result<(), String> {
    NAMES.contains(&name).then_some(()).ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> String {
    // It stands beside policies in every table (`oracle_emu`), and is none.
    let what = if name == "oracle" { "is a search and no policy: run `surefootd oracle`" } else { "is unknown" };
    let near = names::nearest(name, NAMES.iter().copied()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
    format!("policy \"{name}\" {what}.{near} Choose one of: {}", NAMES.join(", "))
}

/// Whose models a policy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// [`Models`].
    OsmlPlus,
    /// [`OsmlModels`].
    Osml,
}

/// Whose models a policy takes; None: it decides without any.
pub fn takes(name: &str) -> Option<Family> {
    match name {
        "osml" => Some(Family::Osml),
        "osml-plus" | "surefoot" => Some(Family::OsmlPlus),
        _ => None,
    }
}

/// Whose Model-C learns on line under a policy; None: nothing learns.
pub fn learns(name: &str) -> Option<Family> {
    // `surefoot` does not ask its Model-C.
    takes(name).filter(|_| name != "surefoot")
}

/// What can be set of the policies that [`by_name_with`] makes; those that are not here run by their defaults.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub osml: osml::Settings,
    pub osml_plus: osml_plus::Settings,
}

impl Settings {
    /// The defaults, with so much time between two steps of on-line learning.
    pub fn learning_every(ms: u64) -> Self {
        Settings {
            osml: osml::Settings { learn_every_ms: ms, ..osml::Settings::default() },
            osml_plus: osml_plus::Settings { learn_every_ms: ms, ..osml_plus::Settings::default() },
        }
    }
}

/// A policy by its name, under the [`guard`]. It takes those of `models` that it needs; `seed` feeds what is random in it (Model-C's
/// exploration).
///
/// # Errors
/// One line for an unknown name (lists the known ones), or for a policy that needs models and got none.
pub fn by_name(name: &str, platform: &Platform, models: ModelSet, seed: u64) -> Result<Box<dyn Policy>, String> {
    by_name_with(name, platform, models, Settings::default(), seed)
}

/// The same with other settings.
///
/// # Errors
/// As [`by_name`].
pub fn by_name_with(name: &str, platform: &Platform, models: ModelSet, settings: Settings, seed: u64) -> Result<Box<dyn Policy>, String> {
    let policy: Box<dyn Policy> = match name {
        "unmanaged" => Box::new(Unmanaged::new(platform)),
        "equal-share" => Box::new(EqualShare::new(platform)),
        "parties" => Box::new(Parties::new(platform, PartiesSettings::default())),
        "parties-100ms" => Box::new(Parties::new(platform, PartiesSettings::every_100_ms())),
        "clite" => Box::new(Clite::new(platform, CliteSettings::default(), seed)),
        "clite-100ms" => Box::new(Clite::new(platform, CliteSettings::every_100_ms(), seed)),
        "heracles" => Box::new(Heracles::new(platform, HeraclesSettings::default())),
        "heracles-100ms" => Box::new(Heracles::new(platform, HeraclesSettings::every_100_ms())),
        "osml" => Box::new(Osml::new(platform, models.osml_for(name)?, settings.osml, seed)),
        "osml-plus" => Box::new(OsmlPlus::new(platform, models.plus_for(name)?, settings.osml_plus, seed)),
        "surefoot" => Box::new(Surefoot::new(platform, models.plus_for(name)?, surefoot::Settings::default())),
        _ => return Err(unknown(name)),
    };
    Ok(Box::new(Guarded::new(policy, platform)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/policy-parameters.md has every setting of ours and no other, with the value that the code has.
    #[test]
    fn the_documented_parameters_are_the_defaults() {
        let text = include_str!("../../../docs/policy-parameters.md");
        let documented = |policy: &str| -> Vec<(String, String)> {
            let section =
                text.split("\n## ").find(|s| s.starts_with(&format!("{policy}\n"))).unwrap_or_else(|| panic!("no section {policy}"));
            let rows = section.lines().filter_map(|l| l.strip_prefix("| `")).map(|l| l.split(" | ").collect::<Vec<_>>());
            rows.map(|cells| (cells[0].trim_end_matches('`').into(), cells[1].into())).collect()
        };
        // "Settings { a: 1, b: [1.0, 0.3] }": what stands between commas outside brackets.
        let coded = |debug: String| -> Vec<(String, String)> {
            let mut depth = 0;
            let mut between = |c: char| {
                depth += i32::from(c == '[') - i32::from(c == ']');
                c == ',' && depth == 0
            };
            let inner = debug.strip_prefix("Settings { ").and_then(|d| d.strip_suffix(" }")).unwrap();
            inner.split(&mut between).map(|f| f.trim().split_once(": ").map(|(n, v)| (n.into(), v.into())).unwrap()).collect()
        };
        for (policy, defaults) in [
            ("osml-plus", format!("{:?}", osml_plus::Settings::default())),
            ("osml", format!("{:?}", osml::Settings::default())),
            ("surefoot", format!("{:?}", surefoot::Settings::default())),
        ] {
            let (said, is) = (documented(policy), coded(defaults));
            let names = |l: &[(String, String)]| l.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
            assert_eq!(names(&said), names(&is), "{policy}: docs/policy-parameters.md against the code, in its order");
            for ((name, value), (_, right)) in said.iter().zip(&is) {
                assert_eq!(value, right, "{policy}: {name}: docs/policy-parameters.md against the code");
            }
        }
    }

    /// Every listed policy can be had by its name, an unknown one is refused with the list, osml-plus without a bundle with a remedy.
    #[test]
    fn policies_go_by_name() {
        let p = Platform::regular("t", 8, 1, 11, 2.0);
        for name in NAMES {
            let plant = testing::Plant::new(&p);
            let policy = by_name(name, &p, perfect::Perfect::of(&plant).set(), 1).unwrap();
            assert_eq!(policy.name(), *name);
            assert_eq!(by_name(name, &p, ModelSet::default(), 1).is_err(), takes(name).is_some(), "{name}");
        }
        let error = |name| by_name(name, &p, ModelSet::default(), 1).err().unwrap();
        assert!(NAMES.iter().all(|n| error("partes").contains(n)));
        assert!(error("oracle").contains("run `surefootd oracle`") && !error("partes").contains("surefootd oracle"));
        assert!(error("osml-plus").contains("surefoot bundle build") && error("osml").contains("surefoot bundle build"));
        // A bundle without OSML's models.
        let plus = ModelSet { osml: None, ..perfect::Perfect::of(&testing::Plant::new(&p)).set() };
        assert!(by_name("osml", &p, plus, 1).err().unwrap().contains("`osml_datasets` in params.yaml"));
    }

    /// A service that runs here already and cannot be held is one to migrate, each time anew after it was well; it is no newcomer.
    #[test]
    fn who_cannot_be_held_is_to_migrate() {
        use surefoot_server::Report;
        let p = Platform::regular("t", 12, 1, 0, 2.0);
        for name in ["parties", "osml", "osml-plus", "surefoot"] {
            // a and b need 3 + 1/(1 - d/c) <= 10: 1.17 times their demand. 10 and 4 busy cores are more than there are.
            let mut plant = testing::Plant::new(&p).lc("a", 4.0, 10.0).lc("b", 4.0, 10.0);
            // A backlog would take longer to drain than the load is low.
            plant.queues = false;
            let mut policy = by_name(name, &p, perfect::Perfect::of(&plant).set(), 1).unwrap();
            let mut told = [0; 4];
            for tick in 0..1600 {
                plant.tenant("a").demand = if tick / 400 % 2 == 1 { 10.0 } else { 4.0 };
                plant.tick();
                let plan = policy.step(plant.t_ms, &plant.observe());
                plant.apply(&plan);
                assert!(!plan.reports.iter().any(|r| matches!(r, Report::CannotPlace { .. })), "{name}: {:?}", plan.reports);
                told[tick / 400] += plan.reports.iter().filter(|r| matches!(r, Report::Migrate { .. })).count();
            }
            assert!(told[0] == 0 && told[1] > 0 && told[3] > 0, "{name}: {told:?}");
            assert!(told[1] < 20 && told[3] < 20, "{name} says it again and again: {told:?}");
        }
    }

    /// Whatever a policy does to a service that it sees, it says on what grounds: the service as it was seen, what spoke against
    /// doing otherwise or what bound, and what is expected of it; models' answers where it has models.
    #[test]
    fn every_action_is_explained() {
        use std::collections::BTreeSet;
        let p = Platform::regular("t", 12, 1, 11, 2.0);
        let mut kinds = BTreeSet::new();
        for name in NAMES {
            let mut plant = testing::Plant::new(&p).lc("a", 4.0, 8.0).lc("b", 1.0, 12.0).be("x");
            let mut models = perfect::Perfect::of(&plant);
            models.error_cores = -2.0;
            let mut policy = by_name(name, &p, models.set(), 1).unwrap();
            for tick in 0..400 {
                // A rise of load that the first placement does not carry, and a fall.
                plant.tenant("a").demand = if (100..250).contains(&tick) { 6.0 } else { 3.0 };
                plant.tick();
                let seen = plant.observe();
                let plan = policy.step(plant.t_ms, &seen);
                for a in &plan.actions {
                    kinds.insert((*name, a.kind.as_str()));
                    let (view, b) = (seen.get(&a.service).unwrap(), &a.because);
                    let of = format!("policy {name}, {} {} \"{}\"", a.kind.as_str(), a.service, a.why);
                    let sight = b.seen.unwrap_or_else(|| panic!("{of}: what was seen is missing. Begin with Because::seen(view)"));
                    assert_eq!(
                        (sight.p99_ms, sight.cores),
                        (view.window.map(|w| w.p99_ms), view.allocation.cores()),
                        "{of}: p99 and cores are not those of the observation. Give Because::seen the view of this step"
                    );
                    assert!(
                        b.bound.is_some() || !b.rejected.is_empty() || !b.said.is_empty(),
                        "{of}: no reason. Call at least one of Because's say, reject and bind"
                    );
                    assert!(
                        b.rejected.iter().all(|r| !r.what.is_empty() && !r.why.is_empty()),
                        "{of}: something rejected without saying what or why. Because::reject wants both"
                    );
                    if matches!(a.kind, surefoot_server::ActionKind::Grow | surefoot_server::ActionKind::Shrink) && view.is_lc() {
                        assert!(!b.said.is_empty(), "{of}: nothing said. Who grows or shrinks an LC service calls Because::say");
                        assert!(b.expected.holds_if != Default::default(), "{of}: no expectation. Call Because::expect");
                        assert!(*name != "osml-plus" || b.said.iter().any(|s| s.by == "Model-B"), "{of}: Model-B said nothing");
                        let c_or_a = |by: &str| by == "Model-C" || by == "Model-A'";
                        assert!(*name != "osml" || b.said.iter().any(|s| c_or_a(&s.by)), "{of}: neither Model-C nor A' said anything");
                    }
                }
                plant.apply(&plan);
            }
        }
        for kind in ["place", "grow", "shrink"] {
            for name in ["parties", "osml", "osml-plus"] {
                assert!(kinds.contains(&(name, kind)), "{name} {kind}: {kinds:?}");
            }
        }
    }
}
