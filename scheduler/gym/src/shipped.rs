//! The profiles and workload sets of this repository, as they were when this was built.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use surefoot_vserver::{PlatformProfile, Profile, Profiles};
use surefoot_workload::load::Trace;

include!(concat!(env!("OUT_DIR"), "/shipped.rs"));

type Traces = BTreeMap<String, Arc<Trace>>;

fn read<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(Profiles, Traces), String> {
    let (mut all, mut traces) = (Profiles::default(), Traces::new());
    for (name, text) in files {
        let file = Path::new(name);
        match name.split('/').next() {
            Some("platforms") => {
                let p = PlatformProfile::parse(file, text).map_err(|e| e.to_string())?;
                all.platforms.insert(p.name.clone(), Arc::new(p));
            }
            Some("services" | "batch") => {
                let p = Profile::parse(file, text).map_err(|e| e.to_string())?;
                all.services.insert(p.name.clone(), Arc::new(p));
            }
            Some("loads") => {
                let t = Trace::parse(file, text).map_err(|e| e.to_string())?;
                traces.insert(t.name.clone(), Arc::new(t));
            }
            // Bursts below a tick are no matter of cores and ways.
            _ => {}
        }
    }
    Ok((all, traces))
}

/// Services, jobs, platforms and traces of load.
///
/// # Errors
/// For a shipped file that is no profile, which a test excludes.
pub fn profiles() -> Result<&'static (Profiles, Traces), String> {
    static ALL: OnceLock<Result<(Profiles, Traces), String>> = OnceLock::new();
    ALL.get_or_init(|| read(PROFILES.iter().copied())).as_ref().map_err(String::clone)
}

/// Services and jobs that a shipped set has beside them, in its folder `profiles`.
///
/// # Errors
/// As [`profiles`].
pub fn profiles_of(set: &str) -> Result<Profiles, String> {
    let own = |name: &'static str| name.strip_prefix(set)?.strip_prefix("/profiles/");
    Ok(read(WORKLOADS.iter().filter_map(|(name, text)| Some((own(name)?, *text))))?.0)
}

/// Workloads of a set, or one (`set/name`): their names and texts.
pub fn workloads(name: &str) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let all = WORKLOADS.iter().filter_map(|(path, text)| Some((path.strip_suffix(".toml")?, *text)));
    all.filter(move |(path, _)| *path == name || path.rsplit_once('/').is_some_and(|(set, _)| set == name))
}
