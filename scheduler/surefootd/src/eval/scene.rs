//! Where an evaluation runs: workload files on one platform, or the workloads of drawn worlds, each on its own.

use crate::base::cli;
use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files::Sources;
use crate::stage::models::load_bundle;
use crate::stage::virtual_target::VirtualTarget;
use crate::stage::workload::{self, Workload};
use crate::stage::world;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_learn::{Bundle, Expect};
use surefoot_vserver::world::{World, WorldId, Worlds};
use surefoot_vserver::EDITION;

/// A server, and the workloads that run on it once they are read.
pub struct Place {
    pub at: Arc<VirtualTarget>,
    pub world: Option<World>,
    /// Models of this server; None: policies have none.
    pub bundle: Option<Arc<Bundle>>,
}

/// A workload where it runs.
#[derive(Clone)]
pub struct Scene {
    pub at: Arc<VirtualTarget>,
    /// None for files.
    pub world: Option<WorldId>,
    pub bundle: Option<Arc<Bundle>>,
    pub workload: Workload,
    pub sha256: String,
}

/// The servers that the options name.
///
/// # Errors
/// [`Error::BadInput`] names the option.
pub fn places(args: &cli::Eval) -> Result<Vec<Place>> {
    if args.worlds.is_empty() {
        let Some(platform) = &args.platform else {
            return Err(Error::BadInput("--platform: is missing. Give a platform file or the name of a shipped platform".into()));
        };
        let at = VirtualTarget { exact: args.exact, ..VirtualTarget::of_platform(platform, args.profiles.as_deref())? };
        return Ok(vec![with_bundle(args, at, None)?]);
    }
    let own = |option: &str, what: &str| {
        Err(Error::BadInput(format!("{option}: a world has {what} of its own. Leave {option} out, or --worlds (docs/worlds.md)")))
    };
    if args.platform.is_some() {
        return own("--platform", "a server");
    }
    if !args.workloads.is_empty() {
        return own("--workloads", "workloads");
    }
    if args.profiles.is_some() {
        return own("--profiles", "profiles");
    }
    let ids = ids(&args.worlds)?;
    if args.bundle.is_some() && ids.len() > 1 && args.harm != Some(cli::Harm::ForeignBundle) {
        let n = ids.len();
        return Err(Error::BadInput(format!(
            "--bundle: is of one platform, and {n} worlds have {n}. Evaluate the world that it was made for alone, or give each its own with \
             --bundles (docs/worlds.md)"
        )));
    }
    let place = |id: &WorldId| {
        let world = world::draw(*id)?;
        let at = VirtualTarget { exact: args.exact, ..world::target(&world) };
        with_bundle(args, at, Some(world))
    };
    // Of several that are wrong the first is named, whichever thread was faster.
    ids.par_iter().map(place).collect::<Vec<_>>().into_iter().collect()
}

/// A server with the models that the options name for it.
///
/// # Errors
/// [`Error::BadInput`] names what was refused of a bundle, or the one that is not there.
fn with_bundle(args: &cli::Eval, at: VirtualTarget, world: Option<World>) -> Result<Place> {
    let own = Expect::virtual_platform(&at.platform);
    let foreign = args.harm == Some(cli::Harm::ForeignBundle);
    let path = match (&args.bundle, &args.bundles) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(folder)) => Some(bundle_of(folder, &at.platform.name)?),
        (None, None) => None,
    };
    let expected = if foreign { Expect::default() } else { own.clone() };
    let bundle = path.as_deref().map(|b| load_bundle(b, args.trust.as_deref(), &expected.feature_set("full"))).transpose()?;
    let option = if args.bundle.is_some() { "--bundle" } else { "--bundles" };
    if let (Some(b), Some(path), false) = (&bundle, &path, foreign) {
        of_this_plant(b, option, path)?;
    }
    let is_asked = args.policies.iter().any(|p| surefoot_policy::takes(p).is_some());
    if foreign && is_asked && bundle.as_ref().is_some_and(|b| own.check(&b.manifest).is_ok()) {
        let name = &at.platform.name;
        return Err(Error::BadInput(format!(
            "--harm foreign-bundle: {option} is for {name}, and not foreign there. Give another platform's"
        )));
    }
    Ok(Place { at: Arc::new(at), world, bundle: bundle.map(Arc::new) })
}

/// The bundle of a platform in a folder of bundles.
fn bundle_of(folder: &Path, platform: &str) -> Result<PathBuf> {
    let tar = folder.join(format!("{platform}.tar"));
    if tar.is_file() {
        return Ok(tar);
    }
    Err(Error::BadInput(format!(
        "--bundles {}: has no {platform}.tar. Make it with `surefoot bundle worlds`, or leave that world out",
        folder.display()
    )))
}

/// Models of another edition of the plant know another server. A bundle that says nothing of it is taken: its data may be of a machine.
fn of_this_plant(bundle: &Bundle, option: &str, path: &Path) -> Result<()> {
    match bundle.manifest.provenance.software.get("plant_version") {
        Some(made) if *made != EDITION.to_string() => Err(Error::BadInput(format!(
            "{option} {}: provenance.software.plant_version: its models are of plant {made}, and this surefootd has plant {EDITION}. Train \
             on data of this plant, or measure the bundle as a foreign one: --harm foreign-bundle",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Worlds of one range, each once, in order.
fn ids(named: &[String]) -> Result<Vec<WorldId>> {
    let wrong = |e: String| Error::BadInput(format!("--worlds {e}"));
    let mut all: Vec<WorldId> = vec![];
    for text in named {
        let worlds: Worlds = text.parse().map_err(wrong)?;
        if let Some(other) = all.first().filter(|id| id.range != worlds.range) {
            let (one, two) = (other.range, worlds.range);
            return Err(wrong(format!(
                "{text} is of the range {two}, and the worlds before it are of {one}. One evaluation is of one range: give each its own --out"
            )));
        }
        all.extend(worlds.ids());
    }
    all.sort_unstable();
    match all.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(wrong(format!("names {} twice. Name each world once", twice[0]))),
        None => Ok(all),
    }
}

/// Read the workloads of all places; and what was read.
///
/// # Errors
/// [`Error::BadInput`] names file or world, field and remedy.
pub fn scenes(args: &cli::Eval, places: &[Place], mut read: Sources) -> Result<(Vec<Scene>, Sources)> {
    let mut all: Vec<Scene> = vec![];
    for place in places {
        let target = place.at.target();
        let of = |text: &str, file: &Path, world: Option<WorldId>| -> Result<Scene> {
            let workload = Workload::parse(file, text, &target)?;
            Ok(Scene { at: place.at.clone(), world, bundle: place.bundle.clone(), workload, sha256: sha256_hex(text.as_bytes()) })
        };
        if let Some(world) = &place.world {
            for w in &world.workloads {
                all.push(of(&w.text, Path::new(&format!("world {}/{}.toml", world.id, w.name)), Some(world.id))?);
            }
            continue;
        }
        for file in workload::files(&args.workloads)? {
            let (w, text) = Workload::read_with_text(&file, &target)?;
            workload::check_platform(&w, &place.at.platform.name);
            if all.iter().any(|o| o.workload.name == w.name) {
                let (file, name) = (file.display(), &w.name);
                return Err(Error::BadInput(format!(
                    "--workloads: {file}: a workload `{name}` is there already. Name each file once; of two with one name rename one"
                )));
            }
            read = read.and("--workloads", Some(&file));
            let (at, bundle) = (place.at.clone(), place.bundle.clone());
            all.push(Scene { at, world: None, bundle, workload: w, sha256: sha256_hex(text.as_bytes()) });
        }
    }
    Ok((all, read))
}
