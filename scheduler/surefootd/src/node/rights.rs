//! What a node.toml lets be changed, and whose word is acted on: the same list for the actuator's clients and for a process that has
//! the rights itself but acts on what another user could have written.

use crate::base::error::server_error;
use crate::base::error::{Error, Result};
use crate::stage::config::{ActuatorConfig, How, NodeConfig};
use std::path::Path;
use std::sync::Arc;
use surefoot_linux::actuator::{Allow, Guarded, Pattern, Terms};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::files::{HostFiles, SharedFiles};
use surefoot_linux::local::by_whom;
use surefoot_linux::own::{self, Author, Folder};
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::unit::usual_cgroup;
use surefoot_linux::{Root, Target};
use surefoot_server::Kind;

/// Bits of a mode by which others could change a configuration.
const OTHERS: u32 = 0o022;

/// Whoever can change the configuration could change what root writes: the file and everything on the way to it, links too, must be
/// root's (or ours) alone. As nobody else can change what was seen, it is so still when the file is read.
///
/// # Errors
/// [`Error::BadInput`] names the first place that is not, and the remedy.
pub fn trusted(file: &Path) -> Result<()> {
    let way = own::way(file, OTHERS).map_err(|e| Error::unreadable(file, "a node.toml", &e))?;
    if let Some(w) = way.weak.last() {
        let at = w.at.display();
        return Err(Error::BadInput(format!("{w}, so it cannot say what may be changed. Run: chown root {at}; chmod go-w {at}")));
    }
    match way.missing.as_slice() {
        [] => Ok(()),
        _ => Err(Error::unreadable(file, "a node.toml", &std::io::ErrorKind::NotFound.into())),
    }
}

/// The cgroup that the configuration names for a service.
fn cgroup_of(how: &How) -> Option<Pattern> {
    match how {
        How::Adopt { target: Target::Cgroup(path), .. } => Pattern::literal(path.to_str()?).ok(),
        // Where systemd puts a unit that names no other slice; one that does is named in actuator.cgroups.
        How::Adopt { target: Target::Unit(unit), .. } => Pattern::literal(&usual_cgroup(unit)).ok(),
        _ => None,
    }
}

/// Cgroups that the configuration names, by themselves or for a service.
fn patterns(config: &NodeConfig, own: Option<&ActuatorConfig>) -> Vec<Pattern> {
    let of_services = config.services.iter().filter_map(|s| cgroup_of(&s.how));
    own.into_iter().flat_map(|o| o.cgroups.iter().cloned()).chain(of_services).collect()
}

/// What else it says of what may be written.
fn terms(config: &NodeConfig) -> Terms {
    let is_be = |how: &How| matches!(how, How::Adopt { kind: Kind::Be, .. });
    Terms {
        partitions: config.partitions,
        cpus: config.cpus,
        services: Some(config.services.len()),
        be: config.services.iter().filter(|s| is_be(&s.how)).filter_map(|s| cgroup_of(&s.how)).collect(),
    }
}

/// The resctrl that a configuration names, else the host's.
///
/// # Errors
/// [`Error`] where nothing like it is mounted at the named place.
pub fn resctrl(config: &NodeConfig, root: &Root) -> Result<Option<Resctrl>> {
    match &config.resctrl {
        None => Ok(Resctrl::find(root)),
        Some(at) => Resctrl::named(root, at).map(Some).map_err(server_error),
    }
}

/// The list that a configuration makes on this host.
pub fn allowed(config: &NodeConfig, root: &Root, resctrl: Option<&Resctrl>) -> Allow {
    Allow::new(&Mounts::read(root), resctrl, patterns(config, config.actuator.as_ref())).with_terms(terms(config))
}

/// What may be done for what the state folder says: None where it is this user's or root's alone, and for one that is not there yet.
///
/// # Errors
/// [`Error::BadInput`] for another's folder where there is no configuration, or none that can be trusted.
pub fn for_state(dir: &Path, config: Option<&NodeConfig>) -> Result<Option<Allow>> {
    let folder = match Folder::open(dir) {
        Ok(folder) => folder,
        Err(e) if e.get_ref().is_some_and(|e| e.is::<own::Refusal>()) => {
            return Err(Error::BadInput(format!("state folder {}: {e}", dir.display())));
        }
        // Whether it can be made is seen when it is.
        Err(_) => return Ok(None),
    };
    let Author::Others(weak) = folder.author() else { return Ok(None) };
    let Some(config) = config.filter(|c| !c.file.as_os_str().is_empty()) else {
        return by_whom(&folder, None).map_err(server_error);
    };
    trusted(&config.file)?;
    tracing::info!("{weak}: only what {} names is changed", config.file.display());
    let root = Root::default();
    // One that has gone took along what was set in it.
    let resctrl = resctrl(config, &root).unwrap_or_else(|e| {
        tracing::warn!("{e}");
        None
    });
    Ok(Some(allowed(config, &root, resctrl.as_ref())))
}

/// Kernel files of a process that changes them itself: all of them, or what the list lets through.
///
/// # Errors
/// [`Error::Failed`] where a mount of the list cannot be opened.
pub fn own_files(allow: Option<&Allow>, config: Option<&NodeConfig>) -> Result<SharedFiles> {
    let Some(allow) = allow else { return Ok(Arc::new(HostFiles)) };
    let actuator = config.and_then(|c| c.actuator.as_ref()).map(|a| a.state_dir.as_path());
    let guarded = Guarded::new(allow.clone(), Root::default(), actuator);
    Ok(Arc::new(guarded.map_err(|e| Error::Failed(format!("{e}. Check that the mounts are there, and actuator.state_dir")))?))
}
