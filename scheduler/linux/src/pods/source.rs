//! Where lists of pods come from: a file that a companion keeps, or the kubelet's read-only port on this machine.

use super::layout::find;
use super::{read, Refused, Wanted};
use crate::cgroup::Mounts;
use crate::feed::scrape::{get_bounded, Refusal, Url};
use crate::root::Root;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use surefoot_io::input;

/// Longest list: a node has some hundred pods, of some ten thousand bytes each.
const MOST_BYTES: u64 = 16 << 20;
/// What the kubelet has for its answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the list is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Page(Url),
}

impl Source {
    /// For how long a file has been as it is; None for a page, which is made when it is asked for, and where there is no file.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        let Source::File(path) = self else { return None };
        let written = std::fs::metadata(path).and_then(|m| m.modified()).ok()?;
        // A clock that was put back makes nothing old.
        Some(now.duration_since(written).unwrap_or_default())
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::File(p) => write!(f, "{}", p.display()),
            Source::Page(u) => f.write_str(u.as_str()),
        }
    }
}

/// A pod with its cgroup.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub wanted: Wanted,
    pub cgroup: String,
}

/// Whether cgroups are shown from another place than their root: a mount of the host's begins above that place.
fn hides_the_host(root: &Root) -> bool {
    let info = root.read("/proc/self/mountinfo").unwrap_or_default();
    info.lines().any(|l| {
        let kind = l.split_once(" - ").map_or("", |(_, rest)| rest);
        kind.starts_with("cgroup") && l.split(' ').nth(3).is_some_and(|shown| shown.starts_with("/.."))
    })
}

/// What is to be held on this host now.
///
/// # Errors
/// Why the list cannot be had, with what to do.
pub fn look(source: &Source, below: &str, root: &Root) -> Result<(Vec<Found>, Vec<Refused>), String> {
    let text = match source {
        Source::File(path) => input::text(path, MOST_BYTES)
            .map_err(|e| format!("{source}: cannot be read: {e}. It is what a companion writes (docs/kubernetes.md)"))?,
        Source::Page(url) => get_bounded(url, PATIENCE, MOST_BYTES as usize).map_err(|e| match e {
            Refusal::Long => {
                format!("{source}: more than {MOST_BYTES} bytes. Use a file with the pods of this node alone (docs/kubernetes.md)")
            }
            Refusal::Other(e) => format!("{source}: {e}. Set readOnlyPort: 10255 for the kubelet, or use a file (docs/kubernetes.md)"),
        })?,
    };
    let reading = read(&text).map_err(|e| format!("{source}: {e}. Write it whole, under another name first (docs/kubernetes.md)"))?;
    if hides_the_host(root) {
        return Err(
            "this container has a cgroup namespace of its own, in which no pod has its name. Give it the host's: privileged: true in its \
                    securityContext (docs/kubernetes.md)"
                .into(),
        );
    }
    let mounts = Mounts::read(root);
    let Some(version) = mounts.version() else {
        return Err("this host has no cgroups with cpu and cpuset. Mount them, or give the container the host's /sys/fs/cgroup".into());
    };
    let is_there = |name: &str| mounts.named(name).is_some_and(|g| g.cpuset.is_dir());
    let (mut found, mut refused) = (vec![], reading.refused);
    for wanted in reading.wanted {
        match find(&wanted.pod, &wanted.group, below, version, &is_there) {
            Ok(cgroup) => found.push(Found { wanted, cgroup }),
            Err(r) => refused.push(r),
        }
    }
    refused.sort();
    Ok((found, refused))
}
