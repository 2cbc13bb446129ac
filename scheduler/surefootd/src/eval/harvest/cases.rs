//! The published experiments of SmartHarvest as cases, and cases that a command line names.

use crate::base::error::{Error, Result};
use surefoot_harvest::Settings;
use surefoot_server::settable::Settable;
use surefoot_vserver::profile::Bursts;
use surefoot_vserver::world::{primary, Worlds};

/// Experiments by name: what is run, and what the paper says of it.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("t1", "mean of the busy cores, and of their peaks per 25 ms: 1.3/7 IndexServe, 2.3/7.7 memcached, 1.5/5.2 moses, 1.7/6.9 img-dnn"),
    ("f4", "windows of 15 to 35 ms, memcached at 40,000 QPS: 25 ms is the best trade"),
    ("f5", "SmartHarvest keeps P99 within 10 % and lends 1.5 to 3.5 cores; IndexServe needs a fixed buffer of 4, memcached of 7; PrevPeak costs moses and img-dnn more than 50 %"),
    ("f6", "jobs beside IndexServe run 2 to 3 times as fast as on their own core"),
    ("t2", "memcached at 80,000, 20,000, 160,000 QPS: P99 477, 300, 943 us; rises SmartHarvest 10, 4, 5 and 1.6 cores; PrevPeak 19, 15, 18 and 1.4; fixed 5 53, 400, 158 and 2.4; 6 14, 150, 19 and 1.6; 7 8, 28, 8 and 1.1"),
    ("f7", "a square wave: SmartHarvest lends more than PrevPeak10 at less P99"),
    ("f8", "memcached and memcached: a fixed buffer must be 17 of 20; SmartHarvest keeps P99"),
    ("f9", "memcached and IndexServe: no fixed buffer suits both; SmartHarvest keeps P99"),
    ("f10", "conservative and aggressive short-term safeguard: the same P99, conservative lends more"),
    ("f11", "two memcached without and with the long-term safeguard: without, more than 50 % of P99"),
    ("f13", "skewed, symmetric, hinged costs: symmetric has the worse P99, hinged lends less"),
    ("f14", "time to move a core: hypercalls up to 5 and 10 ms, interrupts 100 us, P99 130 us"),
    ("f15", "IndexServe at several loads: interrupts lend more at less P99; learning is needed at medium and high load"),
];

/// Ways to move cores (`bursts.toml`).
pub const MOVERS: [&str; 2] = ["cpugroups", "interrupts"];
/// Policies of an experiment that compares them all.
const ALL: &[&str] = &[
    "no-harvest",
    "smartharvest",
    "wait-budget",
    "prev-peak",
    "prev-peak-10",
    "fixed-buffer-1",
    "fixed-buffer-2",
    "fixed-buffer-3",
    "fixed-buffer-4",
    "fixed-buffer-5",
    "fixed-buffer-6",
    "fixed-buffer-7",
    "fixed-buffer-8",
    "fixed-buffer-9",
];
/// The same for two VMs.
const PAIR: &[&str] = &[
    "no-harvest",
    "smartharvest",
    "wait-budget",
    "prev-peak",
    "prev-peak-10",
    "fixed-buffer-4",
    "fixed-buffer-6",
    "fixed-buffer-7",
    "fixed-buffer-8",
    "fixed-buffer-9",
    "fixed-buffer-10",
    "fixed-buffer-12",
    "fixed-buffer-14",
    "fixed-buffer-16",
    "fixed-buffer-17",
];
/// Requests of a run at one load: 4,000 beyond P99, of which those of one burst come together.
const RUN_REQUESTS: f64 = 400_000.0;
/// A run has at least so many seconds, and at most so many.
const RUN_S: [f64; 2] = [30.0, 200.0];
/// The same for drawn workloads.
const WORLD_S: [f64; 2] = [60.0, 600.0];

/// A policy, what differs, and the settings that make the difference.
type Variant<'a> = (&'a str, &'a str, &'a [(&'a str, f64)]);

/// A load of the first VM, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    pub load_rps: f64,
    pub s: f64,
    /// Whether it is part of the stage before: its latencies and cores count there.
    pub goes_on: bool,
}

/// One policy with settings of a variant.
#[derive(Clone, Debug)]
pub struct Entry {
    pub policy: String,
    /// What differs from the settings of the command; empty: nothing.
    pub variant: String,
    pub settings: Settings,
}

/// Primary VMs under loads, and the policies to be compared on them.
#[derive(Clone, Debug)]
pub struct Case {
    pub experiment: String,
    pub name: String,
    /// Workload of each VM, and its load where it is not the workload's own.
    pub vms: Vec<(String, Option<f64>)>,
    pub stages: Vec<Stage>,
    pub mover: String,
    pub entries: Vec<Entry>,
}

/// What the command line says of all cases.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub bursts: &'a Bursts,
    /// None: the policies of each experiment.
    pub policies: Option<Vec<String>>,
    /// None: long enough for the workload.
    pub duration_s: Option<f64>,
    pub settings: Settings,
    /// Whether `settings` name the time after a move; else it is none with interrupts (section 5.1).
    pub settle_is_set: bool,
    /// None: that of each experiment.
    pub mover: Option<String>,
}

impl Asked<'_> {
    fn run_s(&self, qps: f64) -> f64 {
        self.duration_s.unwrap_or_else(|| (RUN_REQUESTS / qps).clamp(RUN_S[0], RUN_S[1]))
    }

    fn entry(&self, policy: &str, variant: &str, set: &[(&str, f64)]) -> Entry {
        let mut settings = self.settings;
        for (name, x) in set {
            // Names of the table below, which a test assigns.
            let _ = settings.assign(name, &[*x]);
        }
        Entry { policy: policy.into(), variant: variant.into(), settings }
    }

    fn entries(&self, policies: &[&str]) -> Vec<Entry> {
        match &self.policies {
            None => policies.iter().map(|p| self.entry(p, "", &[])).collect(),
            Some(own) => own.iter().map(|p| self.entry(p, "", &[])).collect(),
        }
    }

    /// VMs at their workloads' own loads.
    fn case(&self, experiment: &str, name: &str, vms: &[(&str, Option<f64>)], entries: Vec<Entry>) -> Result<Case> {
        let qps = |(name, load): &(&str, Option<f64>)| Ok(load.unwrap_or(self.bursts.workload(name).map_err(bad)?.qps));
        // The slowest workload says how long; the first one's load is that of the stage.
        let all: Vec<f64> = vms.iter().map(qps).collect::<Result<_>>()?;
        let slowest = all.iter().copied().fold(f64::INFINITY, f64::min);
        let s = if vms.len() == 1 { self.run_s(slowest) } else { self.duration_s.unwrap_or(60.0) };
        Ok(Case {
            experiment: experiment.into(),
            name: name.into(),
            vms: vms.iter().map(|(n, load)| ((*n).to_string(), *load)).collect(),
            stages: vec![Stage { load_rps: all[0], s, goes_on: false }],
            mover: self.mover.clone().unwrap_or_else(|| MOVERS[0].into()),
            entries,
        })
    }

    /// The time after a move is that of the way in which cores move.
    fn settled(&self, mut case: Case) -> Case {
        if case.mover == "interrupts" && !self.settle_is_set {
            case.entries.iter_mut().for_each(|e| e.settings.window.settle_ms = 0.0);
        }
        case
    }

    /// The cases of a published experiment.
    ///
    /// # Errors
    /// [`Error::BadInput`] where profiles lack a workload.
    pub fn experiment(&self, name: &str) -> Result<Vec<Case>> {
        Ok(self.published(name)?.into_iter().map(|c| self.settled(c)).collect())
    }

    fn published(&self, name: &str) -> Result<Vec<Case>> {
        const FOUR: [&str; 4] = ["indexserve", "memcached", "moses", "img-dnn"];
        let single = |w: &str, entries: Vec<Entry>| self.case(name, w, &[(w, None)], entries);
        let with = |base: &[Variant]| base.iter().map(|(p, v, set)| self.entry(p, v, set)).collect::<Vec<_>>();
        match name {
            "t1" => FOUR.iter().map(|w| single(w, self.entries(&["no-harvest"]))).collect(),
            "f4" => {
                let mut entries = self.entries(&["no-harvest"]);
                for ms in [15.0, 20.0, 25.0, 30.0, 35.0] {
                    entries.push(self.entry("smartharvest", &format!("window {ms} ms"), &[("window.length_ms", ms)]));
                }
                Ok(vec![single("memcached", entries)?])
            }
            "f5" => FOUR.iter().map(|w| single(w, self.entries(ALL))).collect(),
            "f6" => Ok(vec![single("indexserve", self.entries(&["no-harvest", "smartharvest", "wait-budget"]))?]),
            "t2" => {
                let mut case = single("memcached", self.entries(ALL))?;
                let s = self.duration_s.unwrap_or(60.0);
                case.stages = [80_000.0, 20_000.0, 160_000.0].map(|load_rps| Stage { load_rps, s, goes_on: false }).into();
                Ok(vec![case])
            }
            "f7" => {
                let mut case = single("memcached", self.entries(&["no-harvest", "smartharvest", "wait-budget", "prev-peak-10"]))?;
                // The figure's period is not printed: half a second each, which windows of 250 ms remember.
                let s = self.duration_s.map_or(0.5, |d| d / 120.0);
                let half = |load_rps, goes_on| Stage { load_rps, s, goes_on };
                case.stages = (0..60).flat_map(|n| [half(20_000.0, n > 0), half(120_000.0, true)]).collect();
                Ok(vec![case])
            }
            "f8" => Ok(vec![self.case(name, "memcached+memcached", &[("memcached", None), ("memcached", None)], self.entries(PAIR))?]),
            "f9" => Ok(vec![self.case(name, "memcached+indexserve", &[("memcached", None), ("indexserve", None)], self.entries(PAIR))?]),
            "f10" => FOUR
                .iter()
                .map(|w| {
                    let entries = with(&[
                        ("no-harvest", "", &[]),
                        ("smartharvest", "conservative", &[("guard.aggressive", 0.0)]),
                        ("smartharvest", "aggressive", &[("guard.aggressive", 1.0)]),
                    ]);
                    single(w, entries)
                })
                .collect(),
            "f11" => {
                let entries = with(&[
                    ("no-harvest", "", &[]),
                    ("smartharvest", "with long-term safeguard", &[("guard.waits", 1.0)]),
                    ("smartharvest", "without long-term safeguard", &[("guard.waits", 0.0)]),
                ]);
                let pair = self.case(name, "memcached+memcached", &[("memcached", None), ("memcached", None)], entries.clone())?;
                let mut all = vec![pair];
                for w in FOUR {
                    all.push(single(w, entries.clone())?);
                }
                Ok(all)
            }
            "f13" => FOUR
                .iter()
                .map(|w| {
                    let entries = with(&[
                        ("no-harvest", "", &[]),
                        ("smartharvest", "skewed", &[("learn.cost", 0.0)]),
                        ("smartharvest", "symmetric", &[("learn.cost", 1.0)]),
                        ("smartharvest", "hinged", &[("learn.cost", 2.0)]),
                    ]);
                    single(w, entries)
                })
                .collect(),
            "f14" => {
                MOVERS.iter().map(|m| Ok(Case { mover: (*m).into(), ..self.case(name, m, &[("memcached", None)], vec![])? })).collect()
            }
            "f15" => {
                let policies =
                    ["no-harvest", "smartharvest", "wait-budget", "fixed-buffer-1", "fixed-buffer-2", "fixed-buffer-4", "fixed-buffer-6"];
                let mut all = vec![];
                for load in [250.0, 500.0, 1000.0] {
                    for mover in MOVERS {
                        let mut policies = policies.to_vec();
                        if mover == "interrupts" {
                            policies.push("caladan");
                        }
                        let case = self.case(
                            name,
                            &format!("indexserve at {load}, {mover}"),
                            &[("indexserve", Some(load))],
                            self.entries(&policies),
                        )?;
                        all.push(Case { mover: mover.into(), ..case });
                    }
                }
                Ok(all)
            }
            _ => {
                let known: Vec<&str> = EXPERIMENTS.iter().map(|(n, _)| *n).collect();
                let near =
                    crate::base::error::nearest(name, known.iter().copied()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
                Err(Error::BadInput(format!("--experiments {name}: is no experiment.{near} Choose of: {}, all", known.join(", "))))
            }
        }
    }

    /// `memcached@80000,indexserve`: VMs of one group.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn group(&self, text: &str) -> Result<Case> {
        let mut vms = vec![];
        for part in text.split(',').map(str::trim) {
            let (name, load) = match part.split_once('@') {
                None => (part, None),
                Some((name, load)) => {
                    let load = load.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0 && *x <= 1e9);
                    let wrong = || Error::BadInput(format!("--primaries {text}: {part}: no load. Write e.g. memcached@80000"));
                    let load = load.ok_or_else(wrong)?;
                    let most = self.most_rps(name)?;
                    if load > most {
                        return Err(Error::BadInput(format!(
                            "--primaries {text}: {part}: its queue would grow without end. Give at most {most:.0} requests/s, which its threads serve"
                        )));
                    }
                    (name, Some(load))
                }
            };
            vms.push((name, load));
        }
        // The same VMs have one name, however they are written.
        let name = text.split(',').map(str::trim).collect::<Vec<_>>().join(",");
        let case = self.case("primaries", &name, &vms, self.entries(&["no-harvest", "smartharvest", "wait-budget", "prev-peak-10"]))?;
        Ok(self.settled(case))
    }

    /// Requests a second that the threads of a VM with this workload serve, all of them busy.
    fn most_rps(&self, name: &str) -> Result<f64> {
        let (w, vm) = (self.bursts.workload(name).map_err(bad)?, self.bursts.primary().map_err(bad)?);
        let threads = w.threads.map_or(vm.cores, |t| t.min(vm.cores));
        Ok(f64::from(threads) / (w.task_us * 1e-6 * f64::from(w.fanout)))
    }

    /// The drawn workloads of worlds, each alone at each share of its load; [`drawn`] has them. A light load runs for longer.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn worlds(&self, worlds: Worlds, load_shares: &[f64]) -> Result<Vec<Case>> {
        let policies = [
            "no-harvest",
            "smartharvest",
            "wait-budget",
            "prev-peak",
            "prev-peak-10",
            "fixed-buffer-7",
            "fixed-buffer-8",
            "fixed-buffer-9",
        ];
        let one = |(id, share): (surefoot_vserver::world::WorldId, f64)| {
            let world = id.prefix();
            let (qps, most) = (self.bursts.workload(&world).map_err(bad)?.qps, self.most_rps(&world)?);
            let load = qps * share;
            if share > 1.0 && load > most {
                return Err(Error::BadInput(format!(
                    "--load-shares {share}: the queue of {world} would grow without end. Give at most {:.2}, which its threads serve",
                    most / qps
                )));
            }
            let (name, load) = if share == 1.0 { (world.clone(), None) } else { (format!("{world}@{share}"), Some(load)) };
            let case = self.case("worlds", &name, &[(&world, load)], self.entries(&policies))?;
            let s = self.duration_s.unwrap_or((60.0 / share).clamp(WORLD_S[0], WORLD_S[1]));
            let stages = case.stages.iter().map(|x| Stage { s, ..*x }).collect();
            Ok(self.settled(Case { stages, ..case }))
        };
        worlds.ids().flat_map(|id| load_shares.iter().map(move |share| (id, *share))).map(one).collect()
    }
}

/// The drawn workloads of worlds, by the worlds' names.
///
/// # Errors
/// [`Error::Failed`] for a draw that the loader refuses.
pub fn drawn(worlds: Worlds, into: &mut Bursts) -> Result<()> {
    for id in worlds.ids() {
        let fault = |e| Error::Failed(format!("world {id}: {e} This is a fault of surefootd, please report it"));
        into.workloads.extend(primary::draw(id).map_err(fault)?.workloads);
    }
    Ok(())
}

pub fn bad(e: surefoot_vserver::ProfileError) -> Error {
    crate::stage::virtual_target::bad(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_harvest::Harvester;
    use surefoot_vserver::Profiles;

    /// Every experiment has cases whose policies there are, and a variant's settings are in force.
    #[test]
    fn every_experiment_can_be_run() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../vserver/profiles");
        let profiles = Profiles::load(&[folder]).unwrap();
        let asked = Asked {
            bursts: &profiles.bursts,
            policies: None,
            duration_s: None,
            settings: Settings::default(),
            settle_is_set: false,
            mover: None,
        };
        for (name, _) in EXPERIMENTS {
            let cases = asked.experiment(name).unwrap();
            assert!(!cases.is_empty());
            for case in cases {
                assert!(profiles.bursts.reassignment(&case.mover).is_ok());
                for e in &case.entries {
                    let cores = 10 * case.vms.len() as u32;
                    assert!(Harvester::named(&e.policy, cores, cores - 1, &e.settings).is_ok(), "{name} {e:?}");
                }
            }
        }
        let variants = asked.experiment("f13").unwrap().remove(0).entries;
        assert_eq!(variants.iter().map(|e| e.settings.learn.cost).collect::<Vec<_>>(), [0, 0, 1, 2]);
        let off = asked.experiment("f11").unwrap().remove(0).entries;
        assert_eq!(off.iter().map(|e| e.settings.guard.waits).collect::<Vec<_>>(), [1, 1, 0]);
        assert!(asked.experiment("f12").unwrap_err().to_string().contains("Choose of: t1, f4"));
        let pair = asked.group("memcached@80000, indexserve").unwrap();
        assert_eq!((pair.vms.len(), pair.name.as_str()), (2, "memcached@80000,indexserve"));
        let refused = asked.group("memcached@5000000").unwrap_err().to_string();
        assert!(refused.contains("Give at most 250000 requests/s"), "{refused}");
        // No pause after interrupts, unless it was asked for.
        let settle_ms =
            |asked: &Asked| asked.experiment("f15").unwrap().iter().map(|c| c.entries[0].settings.window.settle_ms).collect::<Vec<_>>();
        assert_eq!(settle_ms(&asked), [10.0, 0.0, 10.0, 0.0, 10.0, 0.0]);
        assert_eq!(settle_ms(&Asked { settle_is_set: true, ..asked.clone() }), [10.0; 6]);
        assert!(asked.group("memcached@x").unwrap_err().to_string().contains("memcached@80000"));
        assert!(asked.group("memcache").unwrap_err().to_string().contains("memcached"));
    }
}
