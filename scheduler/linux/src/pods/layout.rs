//! Which cgroup a pod has.
//!
//! The kubelet makes a cgroup for each QoS class and each pod, the runtime one for each container below it. With the driver `systemd` they
//! are slices and scopes, whose names repeat their parents'; with `cgroupfs` they are plain folders. Guaranteed pods stand beside the
//! classes.

use super::Refused;
use crate::cgroup::Version;

/// The kubelet's class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Qos {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Guaranteed" => Some(Qos::Guaranteed),
            "Burstable" => Some(Qos::Burstable),
            "BestEffort" => Some(Qos::BestEffort),
            _ => None,
        }
    }

    /// Its folder; none for pods that stand beside the others.
    fn folder(self) -> Option<&'static str> {
        match self {
            Qos::Guaranteed => None,
            Qos::Burstable => Some("burstable"),
            Qos::BestEffort => Some("besteffort"),
        }
    }
}

/// A container by runtime and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// What begins the name of its scope.
    scope: &'static str,
    id: String,
}

impl Container {
    /// "containerd://ID", as the status of a pod has it.
    pub fn parse(text: &str) -> Option<Self> {
        let (runtime, id) = text.split_once("://")?;
        let scope = match runtime {
            "containerd" => "cri-containerd",
            "cri-o" => "crio",
            "docker" => "docker",
            _ => return None,
        };
        (!id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric())).then(|| Container { scope, id: id.into() })
    }

    fn scope(&self) -> String {
        format!("{}-{}.scope", self.scope, self.id)
    }

    /// With the driver cgroupfs; CRI-O has a prefix there, too.
    fn folder(&self) -> String {
        if self.scope == "crio" {
            format!("crio-{}", self.id)
        } else {
            self.id.clone()
        }
    }
}

/// By what the cgroup of a pod is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub uid: String,
    pub qos: Qos,
    /// The one that is meant; None: the pod has several, and none is named.
    pub container: Option<Container>,
    /// An annotation names it.
    pub named: bool,
    /// Containers that run in the pod.
    pub of: usize,
}

/// Names of a pod's cgroup with each driver: systemd's, cgroupfs's. `below` is the kubelet's --cgroup-root, "/" where there is none.
pub fn of_pod(group: &Group, below: &str) -> [String; 2] {
    let root: Vec<&str> = below.split('/').filter(|p| !p.is_empty()).map(|p| p.strip_suffix(".slice").unwrap_or(p)).collect();
    let class = group.qos.folder();
    // Each slice has the names of those above it in its own: a-b.slice stands in a.slice.
    let mut slices = String::new();
    let mut name = String::new();
    let uid = group.uid.replace('-', "_");
    // "a-b" of a slice of one's own is two floors already.
    let floors = root.iter().flat_map(|r| r.rsplit('-').next()).chain(["kubepods"]).chain(class);
    for part in floors.map(str::to_string).chain([format!("pod{uid}")]) {
        name = if name.is_empty() { part } else { format!("{name}-{part}") };
        slices = format!("{slices}/{name}.slice");
    }
    let mut folders: Vec<String> = below.split('/').filter(|p| !p.is_empty()).map(str::to_string).collect();
    folders.push("kubepods".into());
    folders.extend(class.map(str::to_string));
    folders.push(format!("pod{}", group.uid));
    [slices, format!("/{}", folders.join("/"))]
}

/// The cgroup to set for a pod.
///
/// On cgroup v2 it is the pod's: the kubelet sets no CPUs there, and all containers are inside. On v1 it is the container's, because
/// a pod's CPUs cannot be fewer than those of a container in it. A container that an annotation names is it on both.
///
/// # Errors
/// Why there is none.
pub fn find(pod: &str, group: &Group, below: &str, version: Version, is_there: &dyn Fn(&str) -> bool) -> Result<String, Refused> {
    let refuse = |key: &str, why: String, remedy: &str| Refused { pod: pod.into(), key: key.into(), why, remedy: remedy.into() };
    let names = of_pod(group, below);
    let Some(at) = names.iter().position(|n| is_there(n)) else {
        let [systemd, cgroupfs] = &names;
        let remedy = "Name the kubelet's --cgroup-root as pods.below; where Surefoot is a container, give it the host's /sys/fs/cgroup";
        return Err(refuse("", format!("neither {systemd} nor {cgroupfs} is a cgroup of this host"), remedy));
    };
    if version == Version::V2 && !group.named {
        return Ok(names[at].clone());
    }
    let Some(container) = &group.container else {
        let why = format!("is missing: the pod has {} containers, and on cgroup v1 one of them is set", group.of);
        return Err(refuse("surefoot/container", why, "Name the one that serves"));
    };
    let folder = if at == 0 { container.scope() } else { container.folder() };
    let path = format!("{}/{folder}", names[at]);
    if is_there(&path) {
        return Ok(path);
    }
    // Where the kubelet's driver is systemd and the runtime's is not, the runtime takes the name for a folder's.
    let slice = names[0].rsplit('/').next().unwrap_or_default();
    let odd = format!("/{slice}:{}:{}", container.scope, container.id);
    let remedy = if is_there(&odd) || is_there(&format!("/system.slice{odd}")) {
        "Give kubelet and runtime one driver: SystemdCgroup = true in containerd's config.toml"
    } else {
        "Look at the pod: kubectl describe pod. A container that is started anew has another id, and the next list has it"
    };
    Err(refuse("", format!("{path} is no cgroup of this host"), remedy))
}
