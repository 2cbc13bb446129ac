//! What episodes are of: shipped workloads by name, files, or drawn worlds.
//!
//! | name | scenes |
//! | --- | --- |
//! | `demo`, `lc3-be-server-2` | every workload of a shipped set |
//! | `demo/spike` | one of them |
//! | `tune:7`, `train:1..500` | the workloads of drawn worlds, as `surefootd eval --worlds` draws them |
//! | `out/mine`, `out/mine/a.toml` | workload files of a folder, or one |

use crate::shipped;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use surefoot_server::names::suggest;
use surefoot_server::Platform;
use surefoot_vserver::world::{World, WorldId, Worlds};
use surefoot_vserver::{alone_instr_per_s, platform_of, PlatformProfile, Profiles};
use surefoot_workload::known::Site;
use surefoot_workload::load::traces;
use surefoot_workload::workload::{files, Workload};

/// Scenes that are kept once they were made; of more, each is made again for each episode (some milliseconds).
const KEPT: usize = 4096;

/// One server with one workload.
#[derive(Clone, Debug)]
pub struct Scene {
    /// E.g. `demo/spike`, `tune:7/tune-7-01`.
    pub name: String,
    pub site: Site,
    pub platform: Platform,
    pub workload: Workload,
    /// LC services, then BE jobs, in the order of the file: a service keeps its row whether it is there or not.
    pub ids: Vec<String>,
    /// p99, ms; None for BE jobs.
    pub targets_ms: Vec<Option<f64>>,
    /// Instructions/s of each BE job alone on the server.
    pub alone: BTreeMap<String, f64>,
}

/// Where a scene comes from.
#[derive(Clone, Debug)]
enum Source {
    Text { name: String, file: PathBuf, text: String },
    World { id: WorldId, nth: usize },
}

/// Scenes, one of which is drawn for each episode.
#[derive(Debug)]
pub struct Scenario {
    sources: Vec<Source>,
    kept: Vec<OnceLock<Result<Arc<Scene>, String>>>,
    platform: Option<String>,
    profiles: Profiles,
    traces: BTreeMap<String, Arc<surefoot_workload::load::Trace>>,
}

/// Names of the shipped sets.
pub fn sets() -> Vec<&'static str> {
    let mut all: Vec<&str> = shipped::WORKLOADS.iter().filter_map(|(path, _)| path.split_once('/')).map(|(set, _)| set).collect();
    all.dedup();
    all
}

fn shipped_sources(name: &str) -> Vec<Source> {
    let of = |(name, text): (&str, &str)| Source::Text { name: name.into(), file: format!("{name}.toml").into(), text: text.into() };
    shipped::workloads(name).map(of).collect()
}

fn file_sources(path: &Path) -> Result<Vec<Source>, String> {
    let of = |file: PathBuf| {
        let text = surefoot_workload::workload::text(&file).map_err(|e| e.to_string())?;
        let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Source::Text { name, file, text })
    };
    files(&[path.to_path_buf()]).map_err(|e| e.to_string())?.into_iter().map(of).collect()
}

impl Scenario {
    /// `platform`: in place of the one that a workload file names. `profiles`: a folder of profiles beside the shipped ones.
    ///
    /// # Errors
    /// One line with what is wrong and what to do: the name, the folder, or the first scene that cannot be made.
    pub fn open(name: &str, platform: Option<&str>, profiles: Option<&Path>) -> Result<Self, String> {
        let (mut known, mut shapes) = shipped::profiles()?.clone();
        if let Some(folder) = profiles {
            let more = Profiles::load(&[folder.to_path_buf()]).map_err(|e| e.to_string())?;
            known.platforms.extend(more.platforms);
            known.services.extend(more.services);
            shapes.extend(traces(&[folder.to_path_buf()]).map_err(|e| e.to_string())?);
        }
        let path = Path::new(name);
        let shipped = shipped_sources(name);
        if let Some(set) = shipped.first().and(name.split('/').next()) {
            known.services.extend(shipped::profiles_of(set)?.services);
        }
        let sources = if !shipped.is_empty() {
            shipped
        } else if name.contains(':') {
            let worlds: Worlds = name.parse()?;
            let nth = |id| (0..surefoot_vserver::world::quantities::WORKLOADS_OF_A_WORLD).map(move |nth| Source::World { id, nth });
            worlds.ids().flat_map(nth).collect()
        } else if path.exists() {
            file_sources(path)?
        } else {
            let near = suggest(name, sets());
            return Err(format!(
                "scenario \"{name}\" is no shipped set and no file. {near} Or name worlds, e.g. train:1..100, or a workload file"
            ));
        };
        let kept = (0..sources.len()).map(|_| OnceLock::new()).collect();
        let scenario = Scenario { sources, kept, platform: platform.map(Into::into), profiles: known, traces: shapes };
        if scenario.sources.len() <= KEPT && !name.contains(':') {
            (0..scenario.len()).try_for_each(|i| scenario.scene(i).map(|_| ()))?;
        } else {
            scenario.scene(0)?;
        }
        Ok(scenario)
    }

    pub fn len(&self) -> usize {
        self.sources.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Scene number `i`, made when it is first asked for.
    ///
    /// # Errors
    /// One line: there is no such number, or the workload cannot be read on its server.
    pub fn scene(&self, i: usize) -> Result<Arc<Scene>, String> {
        let (Some(source), Some(kept)) = (self.sources.get(i), self.kept.get(i)) else {
            return Err(format!("scene {i} of {}. Give 0 to {}", self.len(), self.len().saturating_sub(1)));
        };
        let make = || self.make(source).map(Arc::new);
        if self.len() > KEPT {
            return make();
        }
        kept.get_or_init(make).clone()
    }

    fn make(&self, source: &Source) -> Result<Scene, String> {
        match source {
            Source::World { id, nth } => {
                let world = World::draw(*id).map_err(|e| format!("world {id}: {e}"))?;
                let site = Site { platform: world.platform, profiles: world.profiles, traces: BTreeMap::new() };
                let w = &world.workloads[*nth];
                Scene::new(format!("{id}/{}", w.name), site, Path::new(&format!("{}.toml", w.name)), &w.text)
            }
            Source::Text { name, file, text } => {
                let named = toml::from_str::<toml::Table>(text).ok().and_then(|t| t.get("platform")?.as_str().map(String::from));
                let Some(wanted) = self.platform.clone().or(named) else {
                    return Err(format!("{}: platform: the file names none. Name one with platform=", file.display()));
                };
                let platform = match self.profiles.platforms.get(&wanted) {
                    Some(p) => p.clone(),
                    None if wanted.ends_with(".toml") => Arc::new(PlatformProfile::read(Path::new(&wanted)).map_err(|e| e.to_string())?),
                    None => {
                        let near = suggest(&wanted, self.profiles.platforms.keys().map(String::as_str));
                        return Err(format!("{}: unknown platform \"{wanted}\". {near}", file.display()));
                    }
                };
                let site = Site { platform, profiles: self.profiles.clone(), traces: self.traces.clone() };
                Scene::new(name.clone(), site, file, text)
            }
        }
    }
}

impl Scene {
    fn new(name: String, mut site: Site, file: &Path, text: &str) -> Result<Self, String> {
        let workload = Workload::parse(file, text, &site).map_err(|e| e.to_string())?;
        let mut ids: Vec<String> = workload.lc.iter().map(|l| l.id.clone()).collect();
        ids.extend(workload.be.iter().map(|b| b.id.clone()));
        let profile = |name: &str| site.profiles.service(name).map_err(|e| e.to_string()).cloned();
        let target = |l: &surefoot_workload::workload::Lc| Ok(profile(&l.service)?.lc().map(|lc| lc.qos_target_ms));
        let mut targets_ms: Vec<Option<f64>> = workload.lc.iter().map(target).collect::<Result<_, String>>()?;
        targets_ms.resize(ids.len(), None);
        let alone = |b: &surefoot_workload::workload::Be| Ok((b.id.clone(), alone_instr_per_s(&site.platform, &profile(&b.job)?)));
        let alone = workload.be.iter().map(alone).collect::<Result<_, String>>()?;
        // What the workload does not name it does not need: thousands of scenes are kept.
        let used: Vec<&String> = workload.lc.iter().map(|l| &l.service).chain(workload.be.iter().map(|b| &b.job)).collect();
        site.profiles.services.retain(|name, _| used.contains(&name));
        site.profiles.platforms.clear();
        Ok(Scene { name, platform: platform_of(&site.platform), site, workload, ids, targets_ms, alone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every shipped set opens, each of its workloads with its platform; one of them can be named alone.
    #[test]
    fn shipped_sets_open() {
        assert!(sets().contains(&"demo"));
        let demo = Scenario::open("demo", None, None).unwrap();
        assert_eq!(demo.len(), 7);
        let one = Scenario::open("demo/spike", None, None).unwrap();
        assert_eq!((one.len(), one.scene(0).unwrap().name.as_str()), (1, "demo/spike"));
        for set in sets() {
            Scenario::open(set, None, None).unwrap();
        }
    }

    /// Worlds are those that `surefootd world draw` draws, with as many workloads each.
    #[test]
    fn worlds_are_drawn() {
        let two = Scenario::open("tune:7..8", None, None).unwrap();
        assert_eq!(two.len(), 4);
        assert_eq!(two.scene(0).unwrap().name, "tune:7/tune-7-01");
        let many = Scenario::open("train:1..100000", None, None).unwrap();
        assert_eq!(many.len(), 200_000);
    }

    /// What cannot be opened is said in one line with a remedy.
    #[test]
    fn errors_have_remedies() {
        for (name, platform, says) in [
            ("dem", None, "Did you mean \"demo\"?"),
            ("tune:0", None, "numbered from 1"),
            ("demo/spike", Some("server-9"), "unknown platform \"server-9\""),
        ] {
            let e = Scenario::open(name, platform, None).unwrap_err();
            assert!(e.contains(says) && !e.contains('\n'), "{name}: {e}");
        }
    }
}
