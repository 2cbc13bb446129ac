//! Where the knobs of a service are: its cgroup files, else the container engine; and how a target is found.

use super::{unavailable, LocalServer, Target};
use crate::cgroup::{least_weight, quota_cores, Cgroup, Knob, Mounts, Version, PERIOD_US};
use crate::discover::online;
use crate::engine::Engine;
use crate::procfs;
use crate::root::Root;
use crate::unit;
use std::io;
use std::path::{Component, Path};
use surefoot_server::{Allocation, CpuSet, Platform, ServerError};

/// Where the knobs of a service are.
#[derive(Clone, Debug)]
pub(super) enum Control {
    Files(Cgroup),
    /// `all` are the CPUs of this host, also those off line: an engine cannot go back to its default, an empty list, and these mean the same.
    Engine {
        engine: Engine,
        container: String,
        all: CpuSet,
    },
    /// Only looked at: nothing is written through it. The cgroup where it can be seen.
    Watched(Option<Cgroup>),
}

impl Control {
    pub(super) fn get(&self, knob: Knob) -> Option<String> {
        match self {
            Control::Files(c) => c.get(knob),
            Control::Watched(c) => c.as_ref()?.get(knob),
            Control::Engine { engine, container, .. } => {
                let l = engine.limits(container).ok()?;
                let period = if l.period_us > 0 { l.period_us } else { 100_000 };
                match knob {
                    Knob::Cpus => Some(l.cpus),
                    Knob::Quota if l.quota_us > 0 => Some(format!("{} {period}", l.quota_us)),
                    Knob::Quota => Some(format!("max {period}")),
                    // Engines count as v1 does; 0 is their word for the default.
                    Knob::Weight => Some(if l.shares > 0 { l.shares } else { 1024 }.to_string()),
                    Knob::Partition | Knob::Mems | Knob::High | Knob::Memory | Knob::Zswap => None,
                }
            }
        }
    }

    pub(super) fn set(&self, knob: Knob, value: &str) -> io::Result<()> {
        let (engine, container, all) = match self {
            Control::Files(c) => return c.set(knob, value),
            Control::Watched(_) => return Err(io::Error::new(io::ErrorKind::Unsupported, "it is only watched")),
            Control::Engine { engine, container, all } => (engine, container, all),
        };
        let all = all.to_string();
        let value = if knob == Knob::Cpus && value.is_empty() { all.as_str() } else { value };
        let other = |e: ServerError| io::Error::other(e.to_string().trim_end_matches('.').to_string());
        let now = engine.limits(container).map_err(other)?;
        let period = if now.period_us > 0 { now.period_us } else { PERIOD_US };
        match knob {
            Knob::Cpus => engine.update(container, value, if now.quota_us > 0 { now.quota_us } else { -1 }, period),
            Knob::Quota => {
                let (q, p) = value.split_once(' ').unwrap_or((value, "10000"));
                engine.update(container, "", q.parse().unwrap_or(-1), p.parse().unwrap_or(PERIOD_US))
            }
            Knob::Weight => engine.update_shares(container, value),
            Knob::Partition | Knob::Mems | Knob::High | Knob::Memory | Knob::Zswap => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, "only cgroup files can set it"))
            }
        }
        .map_err(other)?;
        let got = self.get(knob).unwrap_or_default();
        let same = match knob {
            Knob::Cpus => CpuSet::parse(&got).ok() == CpuSet::parse(value).ok(),
            _ => got == value,
        };
        if same {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("gave \"{value}\", the engine keeps \"{got}\"")))
        }
    }

    /// A former value is in force again, and read back. What could not be had of a list of CPUs (`on_line`: those that there are now); None:
    /// nothing is missing.
    pub(super) fn give_back(&self, knob: Knob, value: &str, on_line: CpuSet) -> io::Result<Option<CpuSet>> {
        let all = match self {
            Control::Files(c) => return c.give_back(knob, value),
            Control::Engine { all, .. } => *all,
            Control::Watched(_) => CpuSet::empty(),
        };
        let set = self.set(knob, value);
        let Err(is) = self.check_holds(knob, value) else { return Ok(None) };
        let why = set.err().unwrap_or(is);
        let whole = if value.is_empty() { all } else { CpuSet::parse(value).unwrap_or_default() };
        let (fits, lacks) = (whole.intersection(on_line), whole.difference(on_line));
        if knob != Knob::Cpus || fits.is_empty() || lacks.is_empty() {
            return Err(why);
        }
        self.set(knob, &fits.to_string()).map_err(|_| why)?;
        Ok(Some(lacks))
    }

    /// That a knob has this value.
    pub(super) fn check_holds(&self, knob: Knob, value: &str) -> io::Result<()> {
        let error = |kind, why: String| Err(io::Error::new(kind, why));
        match self {
            Control::Files(c) => c.check_holds(knob, value),
            Control::Watched(_) => error(io::ErrorKind::Unsupported, "it is only watched".into()),
            Control::Engine { all, .. } => {
                let all = all.to_string();
                let value = if knob == Knob::Cpus && value.is_empty() { all.as_str() } else { value };
                match self.get(knob) {
                    None => error(io::ErrorKind::NotFound, "the engine does not say".into()),
                    Some(got) if knob.same(value, &got) => Ok(()),
                    Some(got) => error(io::ErrorKind::InvalidData, format!("the engine keeps \"{got}\", and it was \"{value}\" before")),
                }
            }
        }
    }

    /// That nothing above the service's group takes away what was set.
    pub(super) fn check_in_force(&self, knob: Knob, value: &str) -> io::Result<()> {
        match self {
            Control::Files(c) if knob == Knob::Cpus => c.check_in_force(value),
            _ => Ok(()),
        }
    }

    pub(super) fn least_weight(&self) -> &'static str {
        match self {
            Control::Files(c) => least_weight(c.version),
            Control::Watched(Some(c)) => least_weight(c.version),
            Control::Engine { .. } | Control::Watched(None) => least_weight(Version::V1),
        }
    }

    pub(super) fn describe(&self, id: &str, knob: Knob) -> String {
        let file = match self {
            Control::Files(c) => c.file(knob).map(|f| f.display().to_string()),
            Control::Watched(_) => Some("only watched".into()),
            Control::Engine { container, .. } => Some(format!("container {}", &container[..container.len().min(12)])),
        };
        format!("{} of {id} ({})", knob.name(), file.unwrap_or_else(|| "no file".into()))
    }
}

/// CPUs that there are, those off line included.
pub(super) fn present(root: &Root) -> Result<CpuSet, ServerError> {
    let said = root.read("/sys/devices/system/cpu/present").and_then(|t| CpuSet::parse(&t).ok()).filter(|c| !c.is_empty());
    said.map_or_else(|| online(root), Ok)
}

impl LocalServer {
    /// How a target is controlled, its cgroup and its first process.
    pub(super) fn control(&mut self, id: &str, target: &Target) -> Result<(Control, Option<Cgroup>, Option<u32>), ServerError> {
        let (cgroup, pid, container) = self.find(id, target)?;
        self.allowed(&said(id, target), cgroup.as_ref())?;
        let control = match (&cgroup, container) {
            (Some(g), _) if g.writable() => Control::Files(g.clone()),
            (_, Some(container)) => Control::Engine { engine: self.engine()?, container, all: present(&self.config.root)? },
            _ => {
                return Err(unavailable(
                    said(id, target),
                    "its CPU and cpuset files cannot be written",
                    "Run as root, or give this user the cgroup (systemd: Delegate=yes)",
                ))
            }
        };
        Ok((control, cgroup, pid))
    }

    /// Where another user's word is acted on: that this cgroup is on the list. Without a cgroup that can be seen nothing is: what a container
    /// engine does for us it would do with all its rights.
    fn allowed(&self, name: &str, cgroup: Option<&Cgroup>) -> Result<(), ServerError> {
        let Some(allow) = &self.config.allow else { return Ok(()) };
        let listed = |dir: &Path| dir.join("any").to_str().is_some_and(|file| allow.governs(file));
        if cgroup.is_some_and(|g| listed(&g.cpuset) && listed(&g.cpu)) {
            return Ok(());
        }
        let at =
            cgroup.map_or_else(|| "its cgroup is not known".into(), |g| format!("its cgroup {} is not on the list", g.cpuset.display()));
        let remedy = "Name it in node.toml (a service's cgroup, or actuator.cgroups), or act as the user of the state folder";
        Err(unavailable(name, format!("{at} of what node.toml lets be changed"), remedy))
    }

    /// Whether a container that carries our label may go: where another user could have written the state folder, whose path the label is
    /// made of, only one of an allowed cgroup.
    pub(super) fn may_remove(&mut self, id: &str) -> Result<(), ServerError> {
        if self.config.allow.is_none() {
            return Ok(());
        }
        let target = Target::Container(id.into());
        let (cgroup, ..) = self.find(id, &target)?;
        self.allowed(&format!("container {id}"), cgroup.as_ref())
    }

    pub(super) fn find(&mut self, id: &str, target: &Target) -> Result<Found, ServerError> {
        let (root, mounts, managed) = (self.config.root.clone(), self.mounts.clone(), self.platform.managed);
        locate(&root, &mounts, managed, &mut || self.engine(), id, target)
    }
}

/// The cgroup of a target, its first process, and its full id if it is a container.
pub(crate) type Found = (Option<Cgroup>, Option<u32>, Option<String>);

/// Where a target is; looks only. `managed`: CPUs to name in a remedy.
///
/// # Errors
/// [`ServerError::Unavailable`] where it is not there or lacks controllers, [`ServerError::Invalid`] for what can be no service.
pub(crate) fn locate(
    root: &Root,
    mounts: &Mounts,
    managed: CpuSet,
    engine: &mut dyn FnMut() -> Result<Engine, ServerError>,
    id: &str,
    target: &Target,
) -> Result<Found, ServerError> {
    let name = said(id, target);
    match target {
        Target::Container(name) => {
            let c = engine()?.inspect(name)?;
            let cgroup = mounts.of_pid(root, c.pid).filter(|g| !g.is_root(mounts));
            Ok((cgroup, Some(c.pid), Some(c.id)))
        }
        Target::Cgroup(path) => {
            if path.components().any(|c| c == Component::ParentDir) {
                return Err(ServerError::Invalid(format!("{name}: a cgroup has no \"..\" in its path. List cgroups with: systemd-cgls")));
            }
            let g = mounts.named(&path.to_string_lossy()).filter(|g| g.cpuset.is_dir());
            let g = g.ok_or_else(|| {
                unavailable(&name, "it is not there, or cpu and cpuset are not enabled for it", "List cgroups with: systemd-cgls")
            })?;
            if g.is_root(mounts) {
                return Err(ServerError::Invalid(format!("{name}: the root is no service. Give a cgroup below it")));
            }
            Ok((Some(g), None, None))
        }
        Target::Unit(unit) => {
            unit::check_name(unit).map_err(ServerError::Invalid)?;
            let Some(mount) = mounts.dir("").filter(|_| mounts.version() == Some(Version::V2)) else {
                let remedy = "Give its cgroup (systemd-cgls) or a process id";
                return Err(unavailable(&name, "units are looked for on cgroup v2 only, and this host has v1", remedy));
            };
            let Some(path) = unit::find(root, mount, unit) else {
                let remedy = format!("Look with: systemctl status {unit}. Units of users are not looked for: give their cgroup");
                return Err(unavailable(&name, "it does not run here", remedy));
            };
            let g = mounts.named(&path).filter(|g| g.file(Knob::Cpus).is_some() && g.file(Knob::Quota).is_some());
            let g = g.ok_or_else(|| {
                let remedy =
                    format!("Let systemd enable them: systemctl set-property --runtime {unit} AllowedCPUs={} CPUWeight=100", managed);
                unavailable(&name, format!("cpu and cpuset are not enabled for its cgroup {path}"), remedy)
            })?;
            Ok((Some(g), None, None))
        }
        Target::Pid(pid) => {
            if procfs::is_zombie(root, *pid) {
                let cause = "it has ended, and its parent has not asked for it yet";
                return Err(unavailable(&name, cause, "Name the process that serves now, or its cgroup or unit"));
            }
            let g = mounts
                .of_pid(root, *pid)
                .ok_or_else(|| unavailable(&name, "it is not there, or has no cpu and cpuset cgroup", "Check the process id"))?;
            if g.is_root(mounts) || mounts.of_pid(root, std::process::id()).as_ref() == Some(&g) {
                return Err(ServerError::Invalid(format!(
                    "{name}: it shares its cgroup with the system or with us. Start it in a container, or by systemd-run --scope"
                )));
            }
            Ok((Some(g), Some(*pid), None))
        }
    }
}

/// A target in messages.
pub(super) fn said(id: &str, target: &Target) -> String {
    match target {
        Target::Container(name) => format!("container {name} of {id}"),
        Target::Cgroup(path) => format!("cgroup {} of {id}", path.display()),
        Target::Unit(unit) => format!("unit {unit} of {id}"),
        Target::Pid(pid) => format!("process {pid} of {id}"),
    }
}

/// What a service holds that another program confines, by the CPUs and the quota of its cgroup.
pub(super) fn confined(p: &Platform, cpus: Option<String>, quota: Option<String>) -> Allocation {
    let mut a = Allocation::everything(p);
    // All managed CPUs and more mean no bound: what a service that was not placed holds.
    if let Some(cpus) = cpus.and_then(|t| CpuSet::of_kernel(&t).ok()).filter(|c| !c.is_empty() && !p.managed.is_subset(c)) {
        (a.cpus, a.shared_cpus) = (cpus, cpus);
    }
    a.quota_cores = quota.as_deref().and_then(quota_cores);
    a
}
