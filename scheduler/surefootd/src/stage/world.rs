//! Worlds as targets (docs/worlds.md): drawn in memory, or written as a folder of profiles and workloads.

use crate::base::digest::sha256_hex;
use crate::base::error::{Error, Result};
use crate::base::files::Sources;
pub use crate::stage::drawn::MANIFEST;
use crate::stage::virtual_target::VirtualTarget;
use serde_json::{json, Value};
use std::collections::BTreeMap;
use surefoot_vserver::platform_of;
use surefoot_vserver::world::{World, WorldId, EDITION};

/// The folder of a world's workloads in it.
pub const WORKLOADS: &str = "workloads";

/// # Errors
/// [`Error::Failed`] for a world that cannot be drawn, which is a fault of the ranges of its quantities.
pub fn draw(id: WorldId) -> Result<World> {
    World::draw(id).map_err(|e| Error::Failed(format!("world {id}: {e} This is a fault of surefootd, please report it")))
}

/// The server of a world, which knows the world's own services and jobs and no shipped ones.
pub fn target(world: &World) -> VirtualTarget {
    VirtualTarget {
        profiles: world.profiles.clone(),
        profile: world.platform.clone(),
        platform: platform_of(&world.platform),
        // A world's loads have no recorded days.
        traces: BTreeMap::new(),
        read: Sources::default(),
        exact: false,
    }
}

/// What world.json says: equal for equal worlds of one version of this program.
pub fn manifest(world: &World) -> Value {
    let names = |has: fn(&surefoot_vserver::world::Workload) -> bool| {
        world.workloads.iter().filter(|w| has(w)).map(|w| w.name.clone()).collect::<Vec<_>>()
    };
    let services = world.profiles.services.values().filter(|s| s.lc().is_some()).count();
    let files = world.files.iter().map(|(path, text)| (path.clone(), Value::from(sha256_hex(text.as_bytes()))));
    json!({
        "format": 1,
        "edition": EDITION,
        "plant": surefoot_vserver::EDITION,
        "range": world.id.range.as_str(),
        "number": world.id.number,
        "surefootd": env!("CARGO_PKG_VERSION"),
        "host_seed": world.host_seed,
        "counts": {
            "platforms": world.profiles.platforms.len(),
            "services": services,
            "jobs": world.profiles.services.len() - services,
            "workloads": world.workloads.len(),
        },
        "holds": {
            "floor": world.floor,
            "sheds": world.sheds,
            "spikes": names(|w| w.has_spike),
            "unserved": names(|w| w.is_unserved),
        },
        "files": files.collect::<serde_json::Map<String, Value>>(),
    })
}
