//! Virtual servers as targets: where profiles are found, and one case of a sweep on them.

use crate::base::digest::sha256_hex;
use crate::base::error::{nearest, Error, Result};
use crate::base::files::Sources;
use crate::base::places::profile_folders;
use crate::stage::drawn::check_folder;
use crate::stage::load::{traces, Trace};
use crate::stage::target::{LcService, Target, VIRTUAL_SERVER};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_server::Platform;
use surefoot_vserver::{platform_of, rps_at_full_load, PlatformProfile, Profiles, VirtualServer, EDITION};

/// Bytes of a GB, as profiles have it.
/// Bytes of what profiles and workloads call GB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// A platform and all profiles at hand.
#[derive(Clone, Debug)]
pub struct VirtualTarget {
    pub profiles: Profiles,
    pub profile: Arc<PlatformProfile>,
    pub platform: Platform,
    /// Shapes of load, by name.
    pub traces: BTreeMap<String, Arc<Trace>>,
    /// Files and folders that it was made of.
    pub read: Sources,
    /// Its servers simulate every request by itself.
    pub exact: bool,
}

impl VirtualTarget {
    /// `name` is a platform file, or the name of a platform in the profile folders.
    ///
    /// # Errors
    /// [`Error::BadInput`] names file or name, and remedy.
    pub fn open(name: &str, given: Option<&Path>) -> Result<Self> {
        Self::given_by(&format!("--server virtual:{name}"), name, given)
    }

    /// As [`VirtualTarget::open`], for a command that takes the name with --platform.
    ///
    /// # Errors
    /// [`Error::BadInput`] names file or name, and remedy.
    pub fn of_platform(name: &str, given: Option<&Path>) -> Result<Self> {
        Self::given_by(&format!("--platform {name}"), name, given)
    }

    fn given_by(option: &str, name: &str, given: Option<&Path>) -> Result<Self> {
        let file = Path::new(name);
        let is_file = file.is_file();
        let looks_like_file = name.ends_with(".toml") || name.contains('/');
        if looks_like_file && !is_file {
            return Err(Error::BadInput(format!("{option}: no such platform file. Give a path, or the bare name of a shipped platform")));
        }
        if let Some(dir) = given.filter(|d| !d.is_dir()) {
            return Err(Error::BadInput(format!(
                "--profiles {}: no such folder. Give one with platforms/, services/, batch/, loads/ or bursts.toml",
                dir.display()
            )));
        }
        let folders = profile_folders(is_file.then_some(file), given);
        folders.iter().try_for_each(|dir| check_folder(dir))?;
        let mut profiles = Profiles::load(&folders).map_err(bad)?;
        let traces = traces(&folders)?;
        let profile = if is_file {
            let p = Arc::new(PlatformProfile::read(file).map_err(bad)?);
            profiles.platforms.insert(p.name.clone(), p.clone());
            p
        } else {
            let known = profiles.platforms.keys().map(String::as_str);
            profiles.platforms.get(name).cloned().ok_or_else(|| unknown_platform(option, name, known))?
        };
        if !profiles.services.values().any(|s| s.lc().is_some()) {
            return Err(Error::BadInput(
                "no service profile was found. Point --profiles or SUREFOOT_PROFILES at a folder with services/".into(),
            ));
        }
        let parts = |d: &PathBuf| ["platforms", "services", "batch", "loads", "bursts.toml"].map(|part| d.join(part));
        let read = Sources::default().and("platform", is_file.then_some(file));
        let read = folders.iter().flat_map(parts).fold(read, |read, part| read.and("profiles", Some(&part)));
        Ok(VirtualTarget { platform: platform_of(&profile), profiles, profile, traces, read, exact: false })
    }

    /// One run on this platform.
    pub fn server(&self, seed: u64) -> VirtualServer {
        let server = VirtualServer::new(self.profile.clone(), Some(seed));
        if self.exact {
            server.exact()
        } else {
            server
        }
    }

    /// The target of a campaign; only the profiles of `wanted` services need a max load (None = all).
    pub fn target(&self) -> Target {
        let mut services = BTreeMap::new();
        let mut jobs = vec![];
        let mut sources = BTreeMap::new();
        let hash = |text: String| sha256_hex(text.as_bytes());
        sources.insert(format!("platform {}", self.profile.name), hash(format!("{:?}", self.profile)));
        for (name, s) in &self.profiles.services {
            let Some(lc) = s.lc() else {
                jobs.push(name.clone());
                continue;
            };
            sources.insert(name.clone(), hash(format!("{s:?}")));
            let max_load_rps = rps_at_full_load(&self.profile, s);
            let working_set_bytes = s.paging.as_ref().map(|m| (m.ws_gb * GIB).round() as u64);
            let (qos_target_ms, rps_levels) = (lc.qos_target_ms, lc.rps_levels.clone());
            services.insert(name.clone(), LcService { qos_target_ms, max_load_rps, rps_levels, working_set_bytes });
        }
        // What is measured by one plant does not go on with another.
        sources.insert(VIRTUAL_SERVER.into(), hash(EDITION.to_string()));
        Target {
            plant: Some(EDITION),
            platform: self.platform.clone(),
            services,
            jobs,
            feature_set: "full".into(),
            sources,
            traces: self.traces.clone(),
            memory: Default::default(),
            paged: self.profiles.services.values().filter(|p| p.paging.is_some()).map(|p| p.name.clone()).collect(),
        }
    }
}

/// What to say of a platform that no profile folder has.
pub fn unknown_platform<'a>(option: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.collect();
    let hint = match known.is_empty() {
        // Not the name is wrong then, but where this runs.
        true => "No profiles are installed here, nor in scheduler/vserver/profiles below this folder.".into(),
        // Near names differ in a digit: all are listed.
        false => {
            let near = nearest(name, known.iter().copied()).map_or(String::new(), |n| format!("Did you mean \"{n}\"? "));
            format!("{near}Known: {}.", known.join(", "))
        }
    };
    Error::BadInput(format!("{option}: unknown platform. {hint} Give a platform file, or --profiles"))
}

/// A profile error is bad input, on one line.
pub fn bad(e: surefoot_vserver::ProfileError) -> Error {
    Error::BadInput(e.to_string())
}
