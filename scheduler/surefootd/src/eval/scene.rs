//! Where an evaluation runs: workload files on one platform, or the workloads of drawn worlds, each on its own.

use crate::base::cli;
use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files::Sources;
use crate::stage::virtual_target::VirtualTarget;
use crate::stage::workload::{self, Workload};
use crate::stage::world;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use surefoot_vserver::world::{World, WorldId, Worlds};

/// A server, and the workloads that run on it once they are read.
pub struct Place {
    pub at: Arc<VirtualTarget>,
    pub world: Option<World>,
}

/// A workload where it runs.
#[derive(Clone)]
pub struct Scene {
    pub at: Arc<VirtualTarget>,
    /// None for files.
    pub world: Option<WorldId>,
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
        return Ok(vec![Place { at: Arc::new(at), world: None }]);
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
            "--bundle: is of one platform, and {n} worlds have {n}. Evaluate the world that it was made for alone (docs/worlds.md)"
        )));
    }
    let place = |id: &WorldId| {
        let world = world::draw(*id)?;
        let at = VirtualTarget { exact: args.exact, ..world::target(&world) };
        Ok(Place { at: Arc::new(at), world: Some(world) })
    };
    ids.par_iter().map(place).collect()
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
            Ok(Scene { at: place.at.clone(), world, workload, sha256: sha256_hex(text.as_bytes()) })
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
            all.push(Scene { at: place.at.clone(), world: None, workload: w, sha256: sha256_hex(text.as_bytes()) });
        }
    }
    Ok((all, read))
}
