//! Whether the services that a configuration names are there, as a daemon would find them, and what the groups around them let be set.

use super::{Area, Node};
use crate::bound::around;
use crate::cgroup::{Cgroup, Mounts};
use crate::discover::{default_managed, online};
use crate::engine::Engine;
use crate::local::locate;
use crate::root::Root;
use std::path::Path;
use surefoot_server::{CpuSet, ServerError};

/// What bounds a service before anything is set.
fn bounds(mounts: &Mounts, group: &Cgroup, managed: CpuSet, id: &str, a: &mut Area) {
    const WHY: &str = "giving it what a policy wants it to have; it is placed within this, and the others around it";
    let found = around(mounts, group, managed, CpuSet::empty());
    if found.causes.is_empty() {
        return;
    }
    let all: Vec<String> = found.causes.iter().map(|c| format!("{}: {}", c.knob.name(), c.what)).collect();
    let remedy = found.causes.iter().map(|c| c.remedy.as_str()).collect::<Vec<_>>().join(". ");
    a.lack(&format!("bounds-{id}"), WHY, all.join("; "), remedy);
}

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    let mut a = Area::new("services");
    let (mounts, cpus) = (Mounts::read(root), online(root).unwrap_or(CpuSet::empty()));
    let listed = |dir: &Path| node.by_actuator.is_none_or(|allow| dir.join("any").to_str().is_some_and(|file| allow.governs(file)));
    for (id, target) in node.services {
        const WHY: &str = "controlling it; a daemon starts without it and takes it on when it comes";
        let name = format!("service-{id}");
        match locate(root, &mounts, cpus, &mut Engine::find, id, target) {
            Ok((Some(g), ..)) if !(listed(&g.cpuset) && listed(&g.cpu)) => {
                let what = format!("its cgroup {} is not on the list of what the actuator changes", g.cpuset.display());
                a.lack(&name, WHY, what, "Name it in node.toml: as the service's cgroup, or in actuator.cgroups");
            }
            Ok((Some(g), ..)) => {
                a.have(&name, WHY, format!("its cgroup is {}", g.cpuset.display()));
                bounds(&mounts, &g, node.managed.unwrap_or_else(|| default_managed(&cpus)), id, &mut a);
            }
            Ok((None, ..)) => a.have(&name, WHY, "the container engine controls it: its cgroup cannot be seen"),
            Err(ServerError::Unavailable { what, cause, remedy }) => a.lack(&name, WHY, format!("{what}: {cause}"), remedy),
            Err(e) => a.lack(&name, WHY, e.to_string(), "Mend it in the configuration"),
        }
    }
    a
}
