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
//! | `parties` | one resource, one service, one step at a time, by trial | PARTIES (ASPLOS 2019), as its authors' program decides |
//! | `parties-keep` | the same without giving: once all targets are met it stops | the same, as the OSML, OSML+ and CLITE papers ran it |
//! | `parties-be` | the rule of PARTIES without its states, for BE jobs | ours |
//! | `parties-stop` | `parties-be` that gives never | ours, a stronger `parties-keep` |
//! | `clite` | whole partitions tried by Bayesian optimisation, the best one held | CLITE (HPCA 2020), as the OSML+ paper's BO-baseline |
//! | `olpart` | bandits over cores, ranges of ways and bandwidth | OLPart (EuroSys 2023), as its authors' program decides |
//! | `heracles` | BE jobs grow while the LC services have slack | Heracles (ISCA 2015) |
//! | `cosmos` | cores, memory and compressed memory of an LC service and a job, by search | COSMOS (2023), Algorithms 1 and 2 |
//! | `cosmos-ca`, `cosmos-cma` | cores, or cores and memory, by slack | COSMOS's baselines CA and CMA |
//! | `cosmos-per-service` | a state of COSMOS for each of several LC services; memory alone beside a policy of cores | COSMOS; ours |
//! | `cosmos-static` | one division of cores and memory for good | COSMOS's EX-L, EX-M, EX-H and exhaustive |
//! | `senpai` | memory, by how long tasks wait for it; everything else is shared | Senpai (TMO, ASPLOS 2022) |
//! | `parties-be-100ms`, `clite-100ms`, `heracles-100ms` | the same, deciding every 100 ms | ours |
//! | `osml` | Models A, A', B, B' and C (DQN) under the central logic, every second | OSML paper, Sec. 5, Algorithms 1 to 4 |
//! | `osml-plus` | Models A, B and C under one control logic | OSML+ paper, Sec. 3.3, Algorithms 1 to 3 |
//! | `socket:PATH` | whatever another process says that listens there; made by who has sockets | [`Remote`] |
//! | `A+B` | two or more of these that own different resources, e.g. `parties+senpai` | [`Together`] |
//! | `osml-plus-literal` | the same models under the paper's steps alone | OSML+ paper, Sec. 3.3, as printed |
//! | `surefoot` | Models A and B, joint plans for all services, what was seen counts more than what is predicted | our own |
//! | `surefoot-memory` | the same with memory and pools in the joint plan, by one price list | our own |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's inputs are its own"))]
#![forbid(unsafe_code)]

pub mod books;
pub mod clite;
pub mod cosmos;
pub mod deprive;
pub mod equal_share;
pub mod guard;
pub mod heracles;
mod model_set;
pub mod models;
pub mod olpart;
pub mod osml;
mod osml_literal;
pub mod osml_models;
pub mod osml_plus;
pub mod pace;
pub mod parties;
mod policy;
pub mod remote;
pub mod senpai;
pub mod shadow;
pub mod suppress;
pub mod surefoot;
pub mod together;
pub mod unmanaged;
pub mod watch;

#[cfg(test)]
mod perfect;
#[cfg(test)]
mod testing;

pub use clite::{Clite, CliteSettings};
pub use cosmos::per_service::PerService;
pub use cosmos::Cosmos;
pub use equal_share::EqualShare;
pub use guard::Guarded;
pub use heracles::{Heracles, HeraclesSettings};
pub use olpart::{Olpart, OlpartSettings};
pub use osml_literal::OsmlLiteral;
pub use osml_plus::OsmlPlus;
pub use parties::{Parties, PartiesBe, PartiesBeSettings, PartiesSettings};
pub use senpai::Senpai;
pub use shadow::{Opinion, Shadows};
pub use suppress::Suppress;
pub use surefoot::Surefoot;
pub use together::Together;
pub use unmanaged::Unmanaged;
pub use watch::Watch;

pub use model_set::ModelSet;
pub use models::{Area, AreaInterval, BundleModels, Experience, Interval, Models, State};
pub use osml::Osml;
pub use osml_models::{BPoint, BPoints, BundleOsml, OsmlModels};
pub use policy::Policy;
pub use remote::{Asked, Remote};

pub use surefoot_server::settable;

use pace::Pace;
use settable::Settable;
use std::collections::BTreeMap;
use surefoot_server::{names, Platform};

/// Every policy's name, as `--policy` takes it.
pub const NAMES: &[&str] = &[
    "unmanaged",
    "equal-share",
    "parties",
    "parties-keep",
    "parties-be",
    "parties-be-100ms",
    "parties-stop",
    "clite",
    "clite-100ms",
    "olpart",
    "heracles",
    "heracles-100ms",
    "be-suppress",
    "cosmos",
    "cosmos-ca",
    "cosmos-cma",
    "cosmos-static",
    "cosmos-per-service",
    "senpai",
    "osml",
    "osml-plus",
    "osml-plus-literal",
    "surefoot",
    "surefoot-memory",
];

/// Between names of policies that decide side by side.
const BESIDE: char = '+';

/// Whether there is such a policy: a name can be looked at before there is a platform to make it for.
///
/// # Errors
/// One line with the names that there are.
pub fn check_name(name: &str) -> Result<(), String> {
    name.split(BESIDE).try_for_each(|one| NAMES.contains(&one).then_some(()).ok_or_else(|| unknown(one)))
}

fn unknown(name: &str) -> String {
    let what = match name {
        // It stands beside policies in every table (`oracle_emu`), and is none.
        "oracle" => "is a search and no policy: run `surefootd oracle`",
        "parties-100ms" => "is now called \"parties-be-100ms\"; \"parties\" is the authors' program, and polls every 100 ms",
        _ => "is unknown",
    };
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
    // Of policies side by side one at most owns cores, and only such take models.
    name.split(BESIDE).find_map(|one| match one {
        "osml" => Some(Family::Osml),
        "osml-plus" | "osml-plus-literal" | "surefoot" | "surefoot-memory" => Some(Family::OsmlPlus),
        _ => None,
    })
}

/// Whose Model-C learns on line under a policy; None: nothing learns.
pub fn learns(name: &str) -> Option<Family> {
    // `surefoot` does not ask its Model-C.
    takes(name).filter(|_| name.split(BESIDE).all(|one| !one.starts_with("surefoot")))
}

/// What can be set of the policies that [`by_name_with`] makes; those that are not here run by their defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// How often the policy is called.
    pub pace: Pace,
    pub osml: osml::Settings,
    pub osml_plus: osml_plus::Settings,
    pub osml_plus_with: osml_plus::switches::Settings,
    pub surefoot: surefoot::Settings,
    pub cosmos: cosmos::Settings,
    pub cosmos_per_service: cosmos::per_service::Settings,
    pub senpai: senpai::Settings,
    pub socket: remote::Settings,
    /// What a policy in another process is asked for, and whether time waits for its answer.
    pub role: remote::wire::Role,
    pub real_time: bool,
}

/// A line of the tables of all policies.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// `POLICY.GROUP.NAME`.
    pub name: String,
    pub default: Vec<f64>,
    /// Bounds, both allowed, of each number.
    pub low: f64,
    pub high: f64,
    pub whole: bool,
    pub is_list: bool,
    pub unit: &'static str,
    pub meaning: &'static str,
    pub source: &'static str,
}

/// Policies whose every number can be set.
const SETTABLE: [&str; 6] = [
    cosmos::Settings::POLICY,
    cosmos::per_service::Settings::POLICY,
    osml_plus::switches::Settings::POLICY,
    senpai::Settings::POLICY,
    remote::Settings::POLICY,
    surefoot::Settings::POLICY,
];

impl Settings {
    /// Set one by its full name, e.g. `surefoot.prices.move`; says that name.
    ///
    /// # Errors
    /// One line that names the setting, its bounds or the nearest name; nothing is set then.
    pub fn assign(&mut self, name: &str, numbers: &[f64]) -> Result<String, String> {
        let assigned = name.split_once('.').and_then(|(policy, of_policy)| {
            let set = match policy {
                surefoot::Settings::POLICY => match surefoot::settings::became(of_policy) {
                    Some(what) => Err(format!("{name}: there is no such setting any more. It {what} (docs/policy-parameters.md)")),
                    None => self.surefoot.assign(of_policy, numbers),
                },
                cosmos::Settings::POLICY => self.cosmos.assign(of_policy, numbers),
                osml_plus::switches::Settings::POLICY => self.osml_plus_with.assign(of_policy, numbers),
                cosmos::per_service::Settings::POLICY => self.cosmos_per_service.assign(of_policy, numbers),
                senpai::Settings::POLICY => self.senpai.assign(of_policy, numbers),
                remote::Settings::POLICY => self.socket.assign(of_policy, numbers),
                _ => return None,
            };
            Some(set.map(|name| format!("{policy}.{name}")))
        });
        assigned.unwrap_or_else(|| {
            let policy = name.split('.').next().unwrap_or(name);
            let near =
                names::nearest(policy, SETTABLE).filter(|n| *n != policy).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
            let known = if SETTABLE.contains(&policy) { policy } else { "POLICY" };
            let all = SETTABLE.join(", ");
            Err(format!("{name}: only {all} have settings of that kind.{near} Write {known}.GROUP.NAME (docs/policy-parameters.md)"))
        })
    }

    /// The same from `NAME=VALUE`, as command lines have it: a number, or numbers with commas between them.
    ///
    /// # Errors
    /// As [`Settings::assign`].
    pub fn assign_text(&mut self, text: &str) -> Result<String, String> {
        let wanted = format!("Write NAME=VALUE, e.g. {}.prices.move=0.05", surefoot::Settings::POLICY);
        let (name, value) = text.split_once('=').ok_or_else(|| format!("\"{text}\" has no \"=\". {wanted}"))?;
        let (name, value) = (name.trim(), value.trim());
        let numbers = settable::numbers(value).map_err(|x| format!("{name}: \"{x}\" is no number. {wanted}"))?;
        self.assign(name, &numbers)
    }

    /// Those that a record names ([`Settings::changed`]), and the default of all others.
    ///
    /// # Errors
    /// As [`Settings::assign`].
    pub fn of(record: &BTreeMap<String, Vec<f64>>) -> Result<Self, String> {
        let mut settings = Settings::default();
        record.iter().try_for_each(|(name, numbers)| settings.assign(name, numbers).map(|_| ()))?;
        Ok(settings)
    }

    /// What is not the default, by full name: records of a run say so.
    pub fn changed(&self) -> BTreeMap<String, Vec<f64>> {
        let changed = [
            (cosmos::Settings::POLICY, self.cosmos.changed()),
            (cosmos::per_service::Settings::POLICY, self.cosmos_per_service.changed()),
            (osml_plus::switches::Settings::POLICY, self.osml_plus_with.changed()),
            (senpai::Settings::POLICY, self.senpai.changed()),
            (remote::Settings::POLICY, self.socket.changed()),
            (surefoot::Settings::POLICY, self.surefoot.changed()),
        ];
        let named = changed.into_iter().flat_map(|(policy, all)| all.into_iter().map(move |(name, x)| (format!("{policy}.{name}"), x)));
        named.collect()
    }

    /// Every setting that can be set, by full name: programs that choose values read bounds and defaults here.
    pub fn listed() -> Vec<Listed> {
        fn of<S: Settable>() -> impl Iterator<Item = Listed> {
            S::table().iter().map(|s| Listed {
                name: format!("{}.{}", S::POLICY, s.name()),
                default: (s.get)(&S::default()),
                low: s.low,
                high: s.high,
                whole: s.whole,
                is_list: s.len.is_some(),
                unit: s.unit,
                meaning: s.meaning,
                source: s.source.as_str(),
            })
        }
        let ours = of::<surefoot::Settings>().chain(of::<cosmos::Settings>()).chain(of::<cosmos::per_service::Settings>());
        ours.chain(of::<osml_plus::switches::Settings>()).chain(of::<senpai::Settings>()).chain(of::<remote::Settings>()).collect()
    }

    /// With so much time between two steps of on-line learning.
    pub fn learning_every(mut self, ms: u64) -> Self {
        (self.osml.learn_every_ms, self.osml_plus.learn_every_ms) = (ms, ms);
        self
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
pub fn by_name_with(
    name: &str,
    platform: &Platform,
    mut models: ModelSet,
    settings: Settings,
    seed: u64,
) -> Result<Box<dyn Policy>, String> {
    let pace = settings.pace;
    let members: Vec<&str> = name.split(BESIDE).collect();
    let mut policy: Box<dyn Policy> = match &members[..] {
        // Nothing is decided of what is not placed: alone it shares everything.
        ["senpai"] => Box::new(Together::named(
            "senpai",
            vec![Box::new(Unmanaged::new(platform)), one(name, platform, &mut models, &settings, seed)?],
        )?),
        [_] => one(name, platform, &mut models, &settings, seed)?,
        all => {
            let members = all.iter().map(|name| beside(name, platform, &mut models, &settings, seed)).collect::<Result<_, _>>()?;
            // The search of `cosmos` owns the cores that it trades for memory.
            let others = ". Beside a policy of cores: cosmos-per-service, senpai";
            let is_cosmos = all.iter().any(|name| name.starts_with("cosmos"));
            Box::new(Together::new(members).map_err(|e| if is_cosmos { e + others } else { e })?)
        }
    };
    policy.called_every(pace.interval_ms()).map_err(|e| format!("policy {name}: interval_ms: {e}"))?;
    Ok(Box::new(Guarded::new(policy, platform)))
}

/// One policy of several that decide side by side: `cosmos-per-service` leaves cores to another one.
fn beside(name: &str, platform: &Platform, models: &mut ModelSet, settings: &Settings, seed: u64) -> Result<Box<dyn Policy>, String> {
    match name {
        "cosmos-per-service" => Ok(Box::new(PerService::new(platform, settings.cosmos, settings.cosmos_per_service, false))),
        _ => one(name, platform, models, settings, seed),
    }
}

/// One policy by its name, without the guard.
fn one(name: &str, platform: &Platform, models: &mut ModelSet, settings: &Settings, seed: u64) -> Result<Box<dyn Policy>, String> {
    Ok(match name {
        "unmanaged" => Box::new(Unmanaged::new(platform)),
        "equal-share" => Box::new(EqualShare::new(platform)),
        "parties" => Box::new(Parties::new(platform, PartiesSettings::default(), seed)),
        "parties-keep" => Box::new(Parties::new(platform, PartiesSettings::that_keeps(), seed)),
        "parties-be" => Box::new(PartiesBe::new(platform, PartiesBeSettings::default())),
        "parties-be-100ms" => Box::new(PartiesBe::new(platform, PartiesBeSettings::every_100_ms())),
        "parties-stop" => Box::new(PartiesBe::new(platform, PartiesBeSettings::that_stops())),
        "be-suppress" => Box::new(Suppress::new(platform)),
        "clite" => Box::new(Clite::new(platform, CliteSettings::default(), seed)),
        "clite-100ms" => Box::new(Clite::new(platform, CliteSettings::every_100_ms(), seed)),
        "olpart" => Box::new(Olpart::new(platform, OlpartSettings::default(), seed)),
        "heracles" => Box::new(Heracles::new(platform, HeraclesSettings::default())),
        "heracles-100ms" => Box::new(Heracles::new(platform, HeraclesSettings::every_100_ms())),
        "osml" => Box::new(Osml::new(platform, std::mem::take(models).osml_for(name)?, settings.osml.clone(), seed)),
        "osml-plus" => {
            let policy = OsmlPlus::new(platform, std::mem::take(models).plus_for(name)?, settings.osml_plus.clone(), seed);
            Box::new(policy.with(settings.osml_plus_with))
        }
        "osml-plus-literal" => {
            Box::new(OsmlLiteral::new(platform, std::mem::take(models).plus_for(name)?, settings.osml_plus.clone(), seed))
        }
        "surefoot" => Box::new(Surefoot::new(platform, std::mem::take(models).plus_for(name)?, settings.surefoot)),
        "surefoot-memory" => {
            Box::new(Surefoot::with_memory(platform, std::mem::take(models).plus_for(name)?, settings.surefoot, settings.cosmos))
        }
        "cosmos" => Box::new(Cosmos::new(platform, settings.cosmos)),
        "cosmos-ca" => Box::new(cosmos::slack::Slack::cores(platform)),
        "cosmos-cma" => Box::new(cosmos::slack::Slack::cores_and_memory(platform)),
        "cosmos-static" => Box::new(cosmos::fixed::Static::new(platform, &settings.cosmos)),
        "cosmos-per-service" => Box::new(PerService::new(platform, settings.cosmos, settings.cosmos_per_service, true)),
        "senpai" => Box::new(Senpai::new(platform, settings.senpai)),
        _ => return Err(unknown(name)),
    })
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
            // Below, what can be left out has a table of its own.
            let section = section.split("\n### ").next().unwrap_or_default();
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
        for (policy, defaults) in
            [("osml-plus", format!("{:?}", osml_plus::Settings::default())), ("osml", format!("{:?}", osml::Settings::default()))]
        {
            let (said, is) = (documented(policy), coded(defaults));
            let names = |l: &[(String, String)]| l.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
            assert_eq!(names(&said), names(&is), "{policy}: docs/policy-parameters.md against the code, in its order");
            for ((name, value), (_, right)) in said.iter().zip(&is) {
                assert_eq!(value, right, "{policy}: {name}: docs/policy-parameters.md against the code");
            }
        }
    }

    /// The page's section on a policy is the table of its settings.
    #[test]
    fn the_documented_settings_are_the_tables() {
        fn check<S: Settable>() {
            let page = include_str!("../../../docs/policy-parameters.md");
            let policy = S::POLICY;
            let section = page.split("\n## ").find(|s| s.starts_with(&format!("{policy}\n"))).unwrap_or_default();
            let mut wanted = String::from("| name | value | bounds | unit | meaning | source |\n| --- | --- | --- | --- | --- | --- |\n");
            for s in S::table() {
                let value = settable::text(&(s.get)(&S::default()), s.len.is_some());
                let (name, source) = (s.name(), s.source.as_str());
                wanted += &format!("| `{name}` | {value} | {} to {} | {} | {} | {source} |\n", s.low, s.high, s.unit, s.meaning);
            }
            assert!(section.contains(&wanted), "docs/policy-parameters.md, section {policy}: put this table there\n{wanted}");
        }
        check::<surefoot::Settings>();
        check::<cosmos::Settings>();
        check::<cosmos::per_service::Settings>();
        check::<senpai::Settings>();
        check::<remote::Settings>();
        check::<osml_plus::switches::Settings>();
    }

    /// Every default lies within its bounds, and can be set by its full name; a setting that is not the default is listed.
    #[test]
    fn every_setting_can_be_set() {
        every_one_of::<surefoot::Settings>();
        every_one_of::<cosmos::Settings>();
        every_one_of::<senpai::Settings>();
        every_one_of::<remote::Settings>();
        every_one_of::<osml_plus::switches::Settings>();
    }

    fn every_one_of<S: Settable>() {
        let mut names = std::collections::BTreeSet::new();
        for s in S::table() {
            let name = format!("{}.{}", S::POLICY, s.name());
            let mut settings = Settings::default();
            let default = (s.get)(&S::default());
            settings.assign(&name, &default).unwrap_or_else(|e| panic!("{e}"));
            assert!(settings.changed().is_empty() && names.insert(name.clone()), "{name}");
            assert!(!s.meaning.is_empty() && !s.unit.is_empty() && s.low < s.high, "{name}");
            // The other end of its bounds is another value, and the only one that is.
            let other: Vec<f64> = default.iter().map(|x| if *x == s.low { s.high } else { s.low }).collect();
            settings.assign(&name, &other).unwrap();
            assert_eq!(settings.changed(), BTreeMap::from([(name.clone(), other.clone())]));
            let text = format!("{name} = {}", settable::text(&default, s.len.is_some()));
            settings.assign_text(&text).unwrap();
            assert!(settings.changed().is_empty(), "{text}");
        }
    }

    /// What cannot be set is said in one line with the name, the bounds and the nearest name, and sets nothing.
    #[test]
    fn what_cannot_be_set_is_said() {
        for (text, said) in [
            ("surefoot.prices.mvoe=0.1", "surefoot.prices.mvoe: there is no such setting. Did you mean \"surefoot.prices.move\"?"),
            ("surefoot.margn=0.1", "Did you mean \"surefoot.trust.margin\"?"),
            ("surefoot.grudge=1", "Did you mean \"surefoot.memory.grudge_ms\"?"),
            ("surefoot.busy.most=7", "surefoot.busy.most: 7 is out of its bounds. Give one number from 0.01 to 1 (busy share)"),
            ("surefoot.busy.most=nan", "is out of its bounds"),
            ("surefoot.patience.refines=1.5", "Give one whole number from 0 to 1000 (plans)"),
            ("surefoot.offers.step_qos=1,2", "2 numbers are given. Give one number from 0 to 1 (QoS)"),
            (
                "surefoot.offers.levels=0,0.2,0.4",
                "surefoot.offers.levels: there is no such setting any more. It follows from surefoot.offers.step_qos",
            ),
            ("surefoot.margin=much", "surefoot.margin: \"much\" is no number. Write NAME=VALUE"),
            ("surefoot.margin", "has no \"=\""),
            ("surefot.margin=1", "Did you mean \"surefoot\"?"),
            ("parties.x=1", "only cosmos, cosmos-per-service, osml-plus, senpai, socket, surefoot have settings of that kind"),
            ("=", "is no number"),
        ] {
            let mut settings = Settings::default();
            let error = settings.assign_text(text).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
            assert_eq!(settings, Settings::default(), "{text}");
        }
        let mut settings = Settings::default();
        settings.assign_text("surefoot.margin=0.2").unwrap();
        assert_eq!(settings.surefoot.trust.margin, 0.2);
    }

    /// Names with a plus between them are policies side by side: those that own the same are refused, and one that is unknown is named.
    #[test]
    fn policies_go_side_by_side() {
        let p = Platform::regular("t", 8, 1, 11, 2.0);
        let made = |name: &str| by_name(name, &p, ModelSet::default(), 1).map(|policy| policy.name().to_string());
        assert_eq!(made("parties+senpai").unwrap(), "parties+senpai");
        assert!(made("parties+heracles").unwrap_err().contains("both own cores"));
        assert!(made("parties+senpia").unwrap_err().contains("Did you mean \"senpai\"?"));
        assert_eq!((check_name("parties+senpai"), check_name("parties+").is_err()), (Ok(()), true));
        assert_eq!((takes("osml-plus+senpai"), learns("surefoot+senpai")), (Some(Family::OsmlPlus), None));
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
        assert!(error("parties-100ms").contains("now called \"parties-be-100ms\""));
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
        for name in ["parties", "parties-be", "osml", "osml-plus", "surefoot"] {
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
                        (sight.p99_ms, sight.held.cores),
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
            for name in ["parties", "parties-be", "osml", "osml-plus"] {
                assert!(kinds.contains(&(name, kind)), "{name} {kind}: {kinds:?}");
            }
        }
    }
}
