//! Whether the services that a configuration names are there, as a daemon would find them.

use super::{Area, Node};
use crate::cgroup::Mounts;
use crate::discover::online;
use crate::engine::Engine;
use crate::local::locate;
use crate::root::Root;
use std::path::Path;
use surefoot_server::{CpuSet, ServerError};

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
            Ok((Some(g), ..)) => a.have(&name, WHY, format!("its cgroup is {}", g.cpuset.display())),
            Ok((None, ..)) => a.have(&name, WHY, "the container engine controls it: its cgroup cannot be seen"),
            Err(ServerError::Unavailable { what, cause, remedy }) => a.lack(&name, WHY, format!("{what}: {cause}"), remedy),
            Err(e) => a.lack(&name, WHY, e.to_string(), "Mend it in the configuration"),
        }
    }
    a
}
