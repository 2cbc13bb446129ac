//! Worlds: a server, services, jobs and workloads drawn from a seed (docs/worlds.md).
//!
//! A world is a function of its range and number. Each draw is keyed by the world's seed, by the thing it is of and by the name of
//! the quantity. So adding a quantity moves no other, and no order and no thread moves any.
//!
//! Everything drawn is written as TOML and read by the loader of profiles: there is one source, and one set of checks.

pub mod id;
pub mod primary;
pub mod quantities;
pub mod quantity;

mod job;
mod memory;
mod platform;
mod service;
mod workload;

pub use id::{Range, WorldId, Worlds};
pub use service::{company_ms, Wanted};
pub use workload::Workload;

use crate::profile::{PlatformProfile, Profile, ProfileError, Profiles};
use quantity::Stream;
use service::Site;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use workload::Cast;

/// What the numbers of worlds mean. It grows when any draw changes: worlds of two editions are different worlds.
pub const EDITION: u32 = 1;

/// A server with its services, jobs and workloads.
#[derive(Clone, Debug)]
pub struct World {
    pub id: WorldId,
    /// For the faults of measuring on this server; 53 bits.
    pub host_seed: u64,
    pub platform: Arc<PlatformProfile>,
    pub profiles: Profiles,
    pub workloads: Vec<Workload>,
    /// The service that neighbours move past its target, whatever it holds.
    pub floor: Option<String>,
    /// The service that refuses requests instead of queueing them.
    pub sheds: Option<String>,
    /// Every file, by its path in the folder of the world, and its text.
    pub files: Vec<(String, String)>,
}

impl World {
    /// Draw a world.
    ///
    /// # Errors
    /// [`ProfileError`] where the loader of profiles refuses what was drawn: a fault of the ranges, not of the caller.
    pub fn draw(id: WorldId) -> Result<World, ProfileError> {
        let s = Stream::new(&[u64::from(EDITION), id.seed()]);
        let prefix = id.prefix();
        let pages = id.range.is_over_committed();
        let mut files = vec![];
        let mut profiles = Profiles::default();

        let platform_name = format!("{prefix}-p");
        let (path, text) = (format!("platforms/{platform_name}.toml"), platform::toml(s.part("platform", 0), &platform_name, pages));
        let platform = Arc::new(PlatformProfile::parse(Path::new(&path), &text)?);
        profiles.platforms.insert(platform_name.clone(), platform.clone());
        files.push((path, text));

        let mut jobs = vec![];
        for n in 0..quantities::JOBS_OF_A_WORLD {
            let name = format!("{prefix}-b{}", n + 1);
            let (path, text) = (format!("batch/{name}.toml"), job::toml(s.part("job", n), &name, n, pages));
            profiles.services.insert(name.clone(), Arc::new(Profile::parse(Path::new(&path), &text)?));
            files.push((path, text));
            jobs.push(name);
        }

        let order = s.part("wanted", 0).order(quantities::SERVICES_OF_A_WORLD);
        let (floor_at, sheds_at) = (order[0], order[1]);
        let (wants_floor, wants_shed) = (s.is(&quantities::FLOOR) && !pages, s.is(&quantities::SHEDS) && !pages);
        let site = Site { platform: platform.clone(), streams: profiles.services[&jobs[0]].clone(), is_over_committed: pages };
        let mut services = vec![];
        for n in 0..quantities::SERVICES_OF_A_WORLD {
            let wanted = match n {
                n if n == floor_at && wants_floor => Wanted::Floor,
                n if n == sheds_at && wants_shed => Wanted::Sheds,
                _ => Wanted::Any,
            };
            let name = format!("{prefix}-s{}", n + 1);
            let drawn = site.service(s.part("service", n), &name, wanted)?;
            profiles.services.insert(name.clone(), drawn.profile.clone());
            files.push((format!("services/{name}.toml"), drawn.text.clone()));
            services.push(drawn);
        }
        let the = |has: Wanted| services.iter().position(|d| d.has == has);
        let (floor, sheds) = (the(Wanted::Floor), the(Wanted::Sheds));

        let cast = Cast { platform: &platform_name, logical_cpus: platform.logical_cpus(), services: &services, jobs: &jobs };
        let mut workloads = vec![];
        for n in 0..quantities::WORKLOADS_OF_A_WORLD {
            // What a world has, one of its workloads shows: the floor beside the job that moves it.
            let member = if n == 0 { floor } else { sheds };
            let (own, name) = (s.part("workload", n), format!("{prefix}-{:02}", n + 1));
            let w = if pages {
                let ws_gb = |name: &str| profiles.services[name].paging.as_ref().map_or(0.0, |p| p.ws_gb);
                cast.over_committed(own, &name, platform.mem.capacity_gb - platform.mem.reserved_gb, ws_gb)
            } else {
                cast.workload(own, &name, member, n == 0 && floor.is_some())
            };
            files.push((format!("workloads/{}.toml", w.name), w.text.clone()));
            workloads.push(w);
        }
        files.push(("campaign.toml".into(), campaign(id, &platform, &services)));
        files.sort();
        let name = |i: Option<usize>| i.map(|i| services[i].profile.name.clone());
        let host_seed = s.seed("host");
        Ok(World { id, host_seed, platform, profiles, workloads, floor: name(floor), sheds: name(sheds), files })
    }
}

/// A coarse sweep of every service: what a laboratory measures of a new server in an afternoon.
fn campaign(id: WorldId, p: &PlatformProfile, services: &[service::Drawn]) -> String {
    let names: Vec<String> = services.iter().map(|d| format!("\"{}\"", d.profile.name)).collect();
    let mut text = format!("# A coarse sweep of the services of world {id} (docs/worlds.md, docs/campaign-format.md).\n");
    let _ = write!(text, "name = \"{}\"\nstrategy = \"exhaustive\"\nseed = {}\n", id.prefix(), id.number);
    let _ = write!(text, "\n[targets]\nvirtual = [\"{}\"]\n\n[sweep]\nservices = [{}]\n", p.name, names.join(", "));
    let _ = write!(text, "rps = \"catalogue\"\nthreads = [{}]\n", p.logical_cpus());
    let _ = write!(text, "cores = {:?}\nways = {:?}\n", ladder(1, p.logical_cpus()), ladder(p.llc.min_ways, p.llc.ways));
    text + "\n[sampling]\ninterval_ms = 1000\nsamples = 3\n"
}

/// From the first to the last, each about a third more than the one before.
fn ladder(first: u32, last: u32) -> Vec<u32> {
    let mut all = vec![first];
    while let Some(n) = all.last().copied().filter(|n| *n < last) {
        all.push((n + 1).max(n * 4 / 3).min(last));
    }
    all
}
