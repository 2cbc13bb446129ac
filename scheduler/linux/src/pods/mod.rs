//! Pods of a Kubernetes node as services: which are latency-critical, which best-effort, and the cgroup of each (docs/kubernetes.md).
//!
//! Units and names: targets in ms, cgroups as the kernel names them, pods as `namespace/name`. Approach: a list of pods, as the API server
//! and the kubelet's read-only port give it, is read for annotations ([`read`]); a cgroup is found by trying the few names that the
//! kubelet's two drivers and three runtimes give it ([`layout`]). Both are functions of what they are given; [`source`] alone reads.
//!
//! What must hold: a pod without our annotations is none of ours; one with a wrong annotation is left out with one clear word, and takes no
//! other pod down.

pub mod layout;
pub mod source;
#[cfg(test)]
mod tests;

use layout::{Container, Group, Qos};
use serde::Deserialize;
use std::collections::BTreeMap;
use surefoot_server::Kind;

/// Annotations (or labels) of ours begin so.
pub const PREFIX: &str = "surefoot/";
/// What stands behind it.
pub const KEYS: [&str; 6] = ["kind", "qos-target-ms", "service", "id", "container", "threads"];
/// Of a static pod: the kubelet names its cgroup after this, whatever uid the API server gave its mirror.
const STATIC_UID: &str = "kubernetes.io/config.hash";
/// Of such a mirror, which the kubelet makes.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// What a pod's program is usually called by.
const NAME_LABEL: &str = "app.kubernetes.io/name";

/// What Go writes for an empty list or map is null.
fn or_nothing<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(field: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

#[derive(Debug, Deserialize)]
struct List {
    #[serde(deserialize_with = "or_nothing")]
    items: Vec<Pod>,
}

/// The few fields of a pod that are looked at.
#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_nothing")]
    status: Status,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
    #[serde(default, deserialize_with = "or_nothing")]
    namespace: String,
    uid: String,
    #[serde(default, deserialize_with = "or_nothing")]
    annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_nothing")]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default, deserialize_with = "or_nothing")]
    phase: String,
    /// RFC 3339 in UTC: the order of texts is that of times.
    #[serde(default, deserialize_with = "or_nothing")]
    start_time: String,
    #[serde(default, deserialize_with = "or_nothing")]
    qos_class: String,
    #[serde(default, deserialize_with = "or_nothing")]
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default, deserialize_with = "or_nothing", rename = "containerID")]
    container_id: String,
}

/// A pod that is to be held.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// `namespace/name`.
    pub pod: String,
    pub id: String,
    /// By which models and max loads know it.
    pub service: String,
    pub kind: Kind,
    pub threads: Option<u32>,
    pub group: Group,
}

/// A pod that cannot be held as its annotations say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refused {
    pub pod: String,
    /// The annotation; empty where it is none's doing.
    pub key: String,
    pub why: String,
    pub remedy: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) };
        write!(f, "pod {}: {key}{}. {}", self.pod, self.why, self.remedy)
    }
}

/// What a list says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// By namespace and name.
    pub wanted: Vec<Wanted>,
    pub refused: Vec<Refused>,
}

/// Annotations of ours of one pod: what a label says counts where no annotation says it.
struct Ours<'a> {
    pod: &'a str,
    said: BTreeMap<&'a str, &'a str>,
}

impl Ours<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.said.get(key).copied()
    }

    fn refuse(&self, key: &str, why: String, remedy: &str) -> Refused {
        Refused { pod: self.pod.into(), key: format!("{PREFIX}{key}"), why, remedy: remedy.into() }
    }

    fn kind(&self) -> Result<Kind, Refused> {
        const TARGET: &str = "qos-target-ms";
        match (self.get("kind"), self.get(TARGET)) {
            (Some("lc"), Some(t)) => match t.parse::<f64>() {
                Ok(t) if t.is_finite() && t > 0.0 => Ok(Kind::Lc { qos_target_ms: t }),
                _ => Err(self.refuse(TARGET, format!("is {t:?}"), "Give the p99 target in ms, e.g. \"10\"")),
            },
            (Some("lc"), None) => Err(self.refuse(TARGET, "is missing".into(), "Give the p99 target in ms, e.g. \"10\"")),
            (Some("be"), None) => Ok(Kind::Be),
            (Some("be"), Some(_)) => Err(self.refuse(TARGET, "a BE job has none".into(), "Remove it, or write surefoot/kind: lc")),
            (Some(k), _) => Err(self.refuse("kind", format!("is {k:?}"), "Write lc or be")),
            (None, _) => Err(self.refuse("kind", "is missing".into(), "Write lc or be, or remove the others")),
        }
    }

    fn wanted(&self, pod: &Pod) -> Result<Wanted, Refused> {
        if let Some(odd) = self.said.keys().find(|k| !KEYS.contains(k)) {
            return Err(self.refuse(odd, "is no annotation of Surefoot's".into(), &format!("There are: {}", KEYS.join(", "))));
        }
        let kind = self.kind()?;
        let id = self.get("id").unwrap_or(&pod.metadata.name);
        crate::local::check_id_form(id).map_err(|why| self.refuse("id", why, "Give the pod a shorter name with surefoot/id"))?;
        let threads = match self.get("threads").map(|t| (t, t.parse::<u32>())) {
            None => None,
            Some((_, Ok(n))) if (1..=crate::local::MOST_THREADS).contains(&n) => Some(n),
            Some((t, _)) => {
                return Err(self.refuse("threads", format!("is {t:?}"), &format!("Give 1 to {}", crate::local::MOST_THREADS)));
            }
        };
        let name = pod.metadata.labels.get(NAME_LABEL).map_or(id, String::as_str);
        let containers: Vec<&ContainerStatus> = pod.status.container_statuses.iter().filter(|c| !c.container_id.is_empty()).collect();
        let named = self.get("container");
        let chosen = match named {
            None if containers.len() == 1 => Some(containers[0]),
            None => None,
            Some(n) => Some(*containers.iter().find(|c| c.name == n).ok_or_else(|| {
                let there: Vec<&str> = containers.iter().map(|c| c.name.as_str()).collect();
                self.refuse("container", format!("no container {n:?} runs in it"), &format!("There are: {}", there.join(", ")))
            })?),
        };
        let container = chosen.map(|c| {
            Container::parse(&c.container_id).ok_or_else(|| Refused {
                pod: self.pod.into(),
                key: String::new(),
                why: format!("container {} has the id {:?}, which is none of containerd, CRI-O or Docker", c.name, c.container_id),
                remedy: "Use one of these runtimes, or name its cgroup in node.toml".into(),
            })
        });
        let qos = Qos::parse(&pod.status.qos_class).ok_or_else(|| Refused {
            pod: self.pod.into(),
            key: String::new(),
            why: format!("its qosClass is {:?}", pod.status.qos_class),
            remedy: "Give a list of pods with their status (kubectl get pods -o json)".into(),
        })?;
        // Of a mirror of a static pod alone: anybody may write that annotation, and it would name another pod's group.
        let fixed = pod.metadata.annotations.get(STATIC_UID).filter(|_| pod.metadata.annotations.contains_key(MIRROR));
        let uid = fixed.unwrap_or(&pod.metadata.uid);
        if uid.is_empty() || !uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
            return Err(Refused {
                pod: self.pod.into(),
                key: String::new(),
                why: format!("its uid is {uid:?}"),
                remedy: "Give the list as the API server or the kubelet makes it".into(),
            });
        }
        let group = Group { uid: uid.clone(), qos, container: container.transpose()?, named: named.is_some(), of: containers.len() };
        let service = self.get("service").unwrap_or(name).to_string();
        Ok(Wanted { pod: self.pod.into(), id: id.into(), service, kind, threads, group })
    }
}

/// Pods of a list (`v1` PodList, JSON) that are to be held. Pods that do not run yet, or no more, are passed over.
///
/// # Errors
/// What is wrong with the text, which is no list of pods.
pub fn read(text: &str) -> Result<Reading, String> {
    let list: List = serde_json::from_str(text).map_err(|e| format!("is no list of pods: {e}"))?;
    let mut out = Reading::default();
    let mut pods: Vec<(String, Pod)> =
        list.items.into_iter().map(|p| (format!("{}/{}", p.metadata.namespace, p.metadata.name), p)).collect();
    // Of two with one id the one that was first stays: a newcomer takes nothing from it.
    pods.sort_by(|a, b| (&a.1.status.start_time, &a.0).cmp(&(&b.1.status.start_time, &b.0)));
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for (name, pod) in &pods {
        let m = &pod.metadata;
        let said: BTreeMap<&str, &str> =
            m.labels.iter().chain(&m.annotations).filter_map(|(k, v)| Some((k.strip_prefix(PREFIX)?, v.as_str()))).collect();
        if said.is_empty() || pod.status.phase != "Running" {
            continue;
        }
        let ours = Ours { pod: name, said };
        match ours.wanted(pod) {
            Ok(w) => match ids.get(&w.id) {
                Some(other) => {
                    out.refused.push(ours.refuse("id", format!("{:?} is that of pod {other}, too", w.id), "Give one of them another"))
                }
                None => {
                    ids.insert(w.id.clone(), name.clone());
                    out.wanted.push(w);
                }
            },
            Err(r) => out.refused.push(r),
        }
    }
    Ok(out)
}
