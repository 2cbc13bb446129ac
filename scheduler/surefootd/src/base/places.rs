//! Where things are kept and found: state, catalogue, profiles.

use std::path::{Path, PathBuf};
use surefoot_linux::own;

/// Where this node keeps what it changed: given, else SUREFOOT_STATE/node, else the system's or the user's place.
pub fn state_dir(given: Option<&Path>) -> PathBuf {
    let env = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(dir) = given {
        return dir.into();
    }
    if let Some(dir) = env("SUREFOOT_STATE") {
        return dir.join("node");
    }
    if nix::unistd::geteuid().is_root() {
        return "/var/lib/surefoot".into();
    }
    let home = env("XDG_STATE_HOME").or_else(|| Some(env("HOME")?.join(".local/state")));
    home.map_or_else(|| std::env::temp_dir().join("surefoot"), |h| h.join("surefoot"))
}

/// Where a package puts the catalogue.
const INSTALLED: &str = "/usr/share/surefoot/workloads";

/// Catalogue folder: given, else `workloads/` here or above the executable (where it is nobody else's), else the installed one.
pub fn catalogue_dir(given: Option<&Path>) -> PathBuf {
    if let Some(dir) = given {
        return dir.into();
    }
    let holds = |d: &PathBuf| std::fs::read_dir(d).is_ok_and(|mut l| l.any(|e| e.is_ok_and(|e| e.path().join("workload.toml").is_file())));
    let above = std::env::current_exe().ok().into_iter().flat_map(|exe| exe.ancestors().map(|a| a.join("workloads")).collect::<Vec<_>>());
    // Root starts what it names: not from a folder that happens to be there and that somebody else can write in.
    let ours = |d: &PathBuf| match own::way(d, own::open_to_others()).map(|way| way.weak.into_iter().next()) {
        Ok(None) => true,
        Ok(Some(weak)) => {
            let dir = d.display();
            tracing::warn!("{dir}: {weak}, so this catalogue is passed over. Give --catalogue {dir} if it is what it should be");
            false
        }
        Err(e) => {
            tracing::warn!("{}: this catalogue is passed over: {e}", d.display());
            false
        }
    };
    let known = [PathBuf::from("workloads")].into_iter().chain(above);
    known.filter(holds).find(ours).unwrap_or_else(|| INSTALLED.into())
}

/// Where profiles come from; later folders override earlier ones by name.
///
/// The shipped ones (under the current folder, above the executable, or installed), those named in SUREFOOT_PROFILES,
/// those beside the platform file, those given by --profiles.
pub fn profile_folders(platform_file: Option<&Path>, given: Option<&Path>) -> Vec<PathBuf> {
    let holds = |d: &Path| ["platforms", "services", "batch"].iter().any(|part| d.join(part).is_dir());
    let shipped = Path::new("scheduler/vserver/profiles");
    let above = std::env::current_exe().ok().into_iter().flat_map(|exe| exe.ancestors().map(|a| a.join(shipped)).collect::<Vec<_>>());
    let bases = std::iter::once(shipped.to_path_buf()).chain(above).chain([PathBuf::from("/usr/share/surefoot/profiles")]);
    let mut folders: Vec<PathBuf> = bases.into_iter().find(|d| holds(d)).into_iter().collect();
    if let Some(list) = std::env::var_os("SUREFOOT_PROFILES") {
        folders.extend(std::env::split_paths(&list).filter(|d| !d.as_os_str().is_empty()));
    }
    let beside = platform_file.and_then(Path::parent).map(|d| d.join(".."));
    folders.extend(beside.filter(|d| d.join("services").is_dir() || d.join("batch").is_dir()));
    folders.extend(given.map(Path::to_path_buf));
    folders
}
