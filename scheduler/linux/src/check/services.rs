//! Whether the services that a configuration names are there, as a daemon would find them.

use super::Area;
use crate::cgroup::Mounts;
use crate::discover::online;
use crate::engine::Engine;
use crate::local::{locate, Target};
use crate::root::Root;
use surefoot_server::{CpuSet, ServerError, ServiceId};

pub(super) fn look(root: &Root, services: &[(ServiceId, Target)]) -> Area {
    let mut a = Area::new("services");
    let (mounts, cpus) = (Mounts::read(root), online(root).unwrap_or(CpuSet::empty()));
    for (id, target) in services {
        const WHY: &str = "controlling it; a daemon starts without it and takes it on when it comes";
        let name = format!("service-{id}");
        match locate(root, &mounts, cpus, &mut Engine::find, id, target) {
            Ok((Some(g), ..)) => a.have(&name, WHY, format!("its cgroup is {}", g.cpuset.display())),
            Ok((None, ..)) => a.have(&name, WHY, "the container engine controls it: its cgroup cannot be seen"),
            Err(ServerError::Unavailable { what, cause, remedy }) => a.lack(&name, WHY, format!("{what}: {cause}"), remedy),
            Err(e) => a.lack(&name, WHY, e.to_string(), "Mend it in the configuration"),
        }
    }
    a
}
