//! What the groups around a cgroup let be set of it, and whose doing that is: read from the tree.
//!
//! The kernel says only EBUSY, EINVAL or EACCES, and v2 does not even refuse: it takes a value that the groups above do not let come into
//! force. Which group it is stands in the tree.
//!
//! | bound | v1 | v2 |
//! | --- | --- | --- |
//! | CPUs at least | those of the groups directly below (EBUSY) | none |
//! | CPUs at most | those of the group above (EACCES), without those of exclusive siblings (EINVAL) | those in force in the group above |
//! | quota at most | the least of the groups above (EINVAL) | the same, and not refused |
//! | quota at least | the most of the groups below (EINVAL); the burst (EINVAL) | the burst (EINVAL) |
//!
//! Reading is bounded in groups and in time, so that a control loop can ask ([`MOST_GROUPS`], [`MOST_TIME`]).

use crate::cgroup::{quota_cores, Cgroup, Knob, Mounts, Version, PERIOD_US};
use crate::files::{number, text, SharedFiles};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use surefoot_server::{Bounds, CpuSet};

/// Groups that one look reads.
pub const MOST_GROUPS: usize = 256;
/// How long one look may take; the group that is being read is read to its end.
pub const MOST_TIME: Duration = Duration::from_millis(4);
/// Groups that are read however late it is: on a machine that is overloaded there is a look, too.
const LEAST_GROUPS: usize = 32;

/// One bound: of what, whose doing, and what lifts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub knob: Knob,
    pub what: String,
    pub remedy: String,
}

/// All bounds of one cgroup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Around {
    /// Without the words, which are in `causes`.
    pub bounds: Bounds,
    pub causes: Vec<Cause>,
}

impl Around {
    fn add(&mut self, knob: Knob, what: String, remedy: String) {
        self.causes.push(Cause { knob, what, remedy });
    }

    /// What bounds a knob; None: nothing.
    pub fn cause(&self, knob: Knob) -> Option<&Cause> {
        self.causes.iter().find(|c| c.knob == knob)
    }

    /// Whether a value of a knob breaks one of these bounds.
    pub fn forbids(&self, knob: Knob, value: &str) -> bool {
        match knob {
            Knob::Cpus => CpuSet::parse(value).is_ok_and(|c| !c.is_empty() && !self.bounds.allow_cpus(&c)),
            Knob::Quota => !self.bounds.allow_quota(quota_cores(value)),
            _ => false,
        }
    }
}

/// What is left of a look.
struct Budget {
    groups: usize,
    until: Instant,
}

impl Budget {
    fn new() -> Self {
        Budget { groups: MOST_GROUPS, until: Instant::now() + MOST_TIME }
    }

    fn one_more(&mut self) -> bool {
        let more = self.groups > MOST_GROUPS - LEAST_GROUPS || self.groups > 0 && Instant::now() < self.until;
        self.groups = self.groups.saturating_sub(1);
        more
    }
}

/// Look at what is above, beside and below a cgroup. `managed`: CPUs that are ours to give; a bound beyond them is none. `ours`: CPUs that
/// partitions of ours have taken from the group above.
pub fn around(mounts: &Mounts, group: &Cgroup, managed: CpuSet, ours: CpuSet) -> Around {
    let mut a = Around::default();
    let mut budget = Budget::new();
    let tree = Tree { files: group.files(), version: group.version };
    cpus_above(&tree, mounts, group, managed, ours, &mut budget, &mut a);
    quota_above(&tree, mounts, group, managed, &mut budget, &mut a);
    if group.version == Version::V1 {
        cpus_below(&tree, group, &mut budget, &mut a);
        quota_below(&tree, group, &mut budget, &mut a);
    }
    burst(&tree, group, &mut a);
    a
}

struct Tree<'a> {
    files: &'a SharedFiles,
    version: Version,
}

impl Tree<'_> {
    fn text(&self, path: PathBuf) -> Option<String> {
        text(self.files.as_ref(), path)
    }

    fn cpus(&self, path: PathBuf) -> CpuSet {
        self.text(path).and_then(|t| CpuSet::parse(&t).ok()).unwrap_or_default()
    }

    /// Cores of a group's quota; None without one.
    fn quota(&self, dir: &Path) -> Option<f64> {
        match self.version {
            Version::V2 => quota_cores(&self.text(dir.join("cpu.max"))?),
            Version::V1 => {
                // "-1" is no limit, and no number.
                let quota = number(self.files.as_ref(), dir.join("cpu.cfs_quota_us"))?;
                let period = number(self.files.as_ref(), dir.join("cpu.cfs_period_us")).filter(|p| *p > 0)?;
                Some(quota as f64 / period as f64)
            }
        }
    }

    fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
        self.files.folders(dir).into_iter().map(|n| dir.join(n))
    }
}

/// The group above in a hierarchy; None above its mount point.
fn above<'a>(dir: &'a Path, mount: Option<&Path>) -> Option<&'a Path> {
    let mount = mount?;
    dir.parent().filter(|p| dir != mount && p.starts_with(mount))
}

fn cpus_above(tree: &Tree<'_>, mounts: &Mounts, group: &Cgroup, managed: CpuSet, ours: CpuSet, budget: &mut Budget, a: &mut Around) {
    let dir = &group.cpuset;
    let v1 = tree.version == Version::V1;
    let Some(parent) = above(dir, mounts.dir(if v1 { "cpuset" } else { "" })) else { return };
    let file = parent.join(if v1 { "cpuset.cpus" } else { "cpuset.cpus.effective" });
    let mut most = tree.cpus(file.clone());
    if most.is_empty() {
        return;
    }
    if !v1 {
        // What a partition has was taken from the group above it.
        let is_partition = group.get(Knob::Partition).is_some_and(|p| p != "member" && !p.contains("invalid"));
        let own = if is_partition { tree.cpus(dir.join("cpuset.cpus.effective")) } else { CpuSet::empty() };
        most = most.union(ours).union(own);
    }
    if !managed.is_subset(&most) {
        let what = format!("the group above it, {}, has only CPUs {most}", parent.display());
        let wider = managed.union(most);
        let remedy = if v1 {
            format!("Widen that group first: echo {wider} > {}", file.display())
        } else {
            format!(
                "Widen that group, and see who has taken CPUs from it (cpuset.cpus, partitions beside it): echo {wider} > {}/cpuset.cpus",
                parent.display()
            )
        };
        a.add(Knob::Cpus, what, remedy);
        a.bounds.cpus_at_most = Some(most);
    }
    if !v1 {
        return;
    }
    let alone = |d: &Path| tree.text(d.join("cpuset.cpu_exclusive")).as_deref() == Some("1");
    let all = alone(dir);
    for other in tree.below(parent).filter(|d| d != dir) {
        if !budget.one_more() {
            break;
        }
        if !all && !alone(&other) {
            continue;
        }
        let theirs = tree.cpus(other.join("cpuset.cpus"));
        if theirs.intersection(managed).is_empty() {
            continue;
        }
        let whose = if all { dir } else { &other };
        a.add(
            Knob::Cpus,
            format!("CPUs {theirs} are those of {}, and {} is exclusive (cpuset.cpu_exclusive)", other.display(), whose.display()),
            format!("Let them be shared: echo 0 > {}/cpuset.cpu_exclusive", whose.display()),
        );
        a.bounds.cpus_at_most = Some(a.bounds.cpus_at_most.unwrap_or(most).difference(theirs));
    }
}

fn quota_above(tree: &Tree<'_>, mounts: &Mounts, group: &Cgroup, managed: CpuSet, budget: &mut Budget, a: &mut Around) {
    let mount = mounts.dir(if tree.version == Version::V1 { "cpu" } else { "" });
    let mut least: Option<(f64, PathBuf)> = None;
    let mut dir = group.cpu.as_path();
    while let Some(parent) = above(dir, mount).filter(|_| budget.one_more()) {
        if let Some(q) = tree.quota(parent).filter(|q| least.as_ref().is_none_or(|(l, _)| q < l)) {
            least = Some((q, parent.to_path_buf()));
        }
        dir = parent;
    }
    let Some((q, at)) = least.filter(|(q, _)| *q < f64::from(managed.len())) else { return };
    let lift = if tree.version == Version::V1 { "echo -1 > cpu.cfs_quota_us there" } else { "echo max > cpu.max there" };
    let what = format!("the group above it, {}, has a quota of {} cores", at.display(), short(q));
    a.add(Knob::Quota, what, format!("Give that group more ({lift}), or start the service outside it"));
    a.bounds.quota_at_most = Some(q);
}

fn cpus_below(tree: &Tree<'_>, group: &Cgroup, budget: &mut Budget, a: &mut Around) {
    let mut least = CpuSet::empty();
    let mut widest: Option<(CpuSet, PathBuf)> = None;
    for child in tree.below(&group.cpuset) {
        if !budget.one_more() {
            break;
        }
        let cpus = tree.cpus(child.join("cpuset.cpus"));
        least = least.union(cpus);
        if widest.as_ref().is_none_or(|(w, _)| cpus.len() > w.len()) {
            widest = Some((cpus, child));
        }
    }
    let Some((cpus, child)) = widest.filter(|(w, _)| !w.is_empty()) else { return };
    let others = if cpus == least { String::new() } else { format!(" (with others below: {least})") };
    let what = format!("a group below it, {}, is on CPUs {cpus}{others}", child.display());
    a.add(
        Knob::Cpus,
        what,
        format!("Narrow that one first (echo LIST > {}/cpuset.cpus), or remove it if nothing runs there", child.display()),
    );
    a.bounds.cpus_at_least = least;
}

fn quota_below(tree: &Tree<'_>, group: &Cgroup, budget: &mut Budget, a: &mut Around) {
    let mut most: Option<(f64, PathBuf)> = None;
    let mut open: Vec<PathBuf> = tree.below(&group.cpu).collect();
    while let Some(dir) = open.pop().filter(|_| budget.one_more()) {
        match tree.quota(&dir) {
            // Those below it have no more.
            Some(q) if most.as_ref().is_none_or(|(m, _)| q > *m) => most = Some((q, dir)),
            Some(_) => {}
            None => open.extend(tree.below(&dir)),
        }
    }
    let Some((q, at)) = most else { return };
    let what = format!("a group below it, {}, has a quota of {} cores", at.display(), short(q));
    a.add(Knob::Quota, what, format!("Lower that one first (echo US > {}/cpu.cfs_quota_us), or lift it (-1)", at.display()));
    a.bounds.quota_at_least = Some(q);
}

/// A quota below the burst is refused. Periods are ours, so the least in cores is known.
fn burst(tree: &Tree<'_>, group: &Cgroup, a: &mut Around) {
    let file = group.cpu.join(if tree.version == Version::V1 { "cpu.cfs_burst_us" } else { "cpu.max.burst" });
    let Some(us) = number(tree.files.as_ref(), &file).filter(|us| *us > 0) else { return };
    let cores = us as f64 / PERIOD_US as f64;
    if a.bounds.quota_at_least.is_none_or(|l| cores > l) {
        let what = format!("its burst is {us} us ({}), and a quota of a period of {PERIOD_US} us cannot be less", file.display());
        a.add(Knob::Quota, what, format!("Do without: echo 0 > {}", file.display()));
        a.bounds.quota_at_least = Some(cores);
    }
}

/// Cores in messages.
fn short(cores: f64) -> String {
    format!("{}", (cores * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Files, HostFiles};
    use crate::root::tests::tree;
    use crate::root::Root;
    use std::io;

    fn host(v1: bool, files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let info = if v1 {
            ["cpu", "cpuset"].map(|c| format!("30 1 0:2 / /sys/fs/cgroup/{c} rw - cgroup cgroup rw,{c}\n")).concat()
        } else {
            "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()
        };
        let mut all = vec![("/proc/self/mountinfo".to_string(), info)];
        if !v1 {
            all.push(("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu\n".into()));
        }
        all.extend(files.iter().map(|(f, t)| (format!("/sys/fs/cgroup/{f}"), format!("{t}\n"))));
        tree(&all)
    }

    fn look(root: &Root, name: &str) -> Around {
        let mounts = Mounts::read(root);
        around(&mounts, &mounts.named(name).unwrap(), CpuSet::range(0, 4), CpuSet::empty())
    }

    /// v1: each of the four bounds is found, with the group whose doing it is and what to do there; groups that bound nothing are not named.
    #[test]
    fn the_tree_of_v1_says_who_bounds() {
        let (_dir, root) = host(
            true,
            &[
                ("cpuset/cpuset.cpus", "0-3"),
                ("cpuset/a/cpuset.cpus", "0-2"),
                ("cpuset/a/beside/cpuset.cpus", "2"),
                ("cpuset/a/beside/cpuset.cpu_exclusive", "1"),
                ("cpuset/a/open/cpuset.cpus", "0-2"),
                ("cpuset/a/s/cpuset.cpus", "0-1"),
                ("cpuset/a/s/c1/cpuset.cpus", "0-1"),
                ("cpuset/a/s/c2/cpuset.cpus", ""),
                ("cpu/cpu.cfs_quota_us", "-1"),
                ("cpu/cpu.cfs_period_us", "100000"),
                ("cpu/a/cpu.cfs_quota_us", "50000"),
                ("cpu/a/cpu.cfs_period_us", "100000"),
                ("cpu/a/s/cpu.cfs_quota_us", "-1"),
                ("cpu/a/s/cpu.cfs_period_us", "100000"),
                ("cpu/a/s/c1/cpu.cfs_quota_us", "-1"),
                ("cpu/a/s/c1/d/cpu.cfs_quota_us", "20000"),
                ("cpu/a/s/c1/d/cpu.cfs_period_us", "100000"),
                ("cpuset/free/cpuset.cpus", "0-3"),
                ("cpu/free/cpu.cfs_quota_us", "-1"),
            ],
        );
        let a = look(&root, "/a/s");
        let b = &a.bounds;
        assert_eq!((b.cpus_at_least, b.cpus_at_most), (CpuSet::range(0, 2), Some(CpuSet::range(0, 2))));
        assert_eq!((b.quota_at_least, b.quota_at_most), (Some(0.2), Some(0.5)));
        let said: Vec<String> = a.causes.iter().map(|c| format!("{} {} {}", c.knob.name(), c.what, c.remedy)).collect();
        for (part, of) in [
            ("cpuset/a, has only CPUs 0-2", "CPUs"),
            ("/a/beside is exclusive", "CPUs"),
            ("cpuset/a/s/c1, is on CPUs 0-1", "CPUs"),
            ("cpu/a, has a quota of 0.5 cores", "CPU quota"),
            ("s/c1/d, has a quota of 0.2 cores", "CPU quota"),
        ] {
            assert!(said.iter().any(|s| s.starts_with(of) && s.contains(part) && s.contains("echo")), "{part}: {said:?}");
        }
        assert_eq!(said.len(), 5, "{said:?}");
        assert!(
            a.forbids(Knob::Cpus, "0")
                && !a.forbids(Knob::Cpus, "0-1")
                && a.forbids(Knob::Quota, "6000 10000")
                && !a.forbids(Knob::Quota, "max 10000")
        );
        assert_eq!(look(&root, "/free"), Around::default());
    }

    /// v2: what the group above has in force bounds CPUs, the least quota above bounds quotas, and a burst is a least; our own partitions
    /// beside it bound nothing.
    #[test]
    fn the_tree_of_v2_says_who_bounds() {
        let (_dir, root) = host(
            false,
            &[
                ("cpuset.cpus.effective", "0-3"),
                ("a/cpuset.cpus.effective", "0-1"),
                ("a/cpu.max", "150000 100000"),
                ("a/s/cpuset.cpus", "0-3"),
                ("a/s/cpuset.cpus.effective", "0-1"),
                ("a/s/cpu.max", "max 100000"),
                ("a/s/cpu.max.burst", "12000"),
            ],
        );
        let a = look(&root, "/a/s");
        let b = &a.bounds;
        assert_eq!((b.cpus_at_least, b.cpus_at_most), (CpuSet::empty(), Some(CpuSet::range(0, 2))));
        assert_eq!((b.quota_at_least, b.quota_at_most), (Some(1.2), Some(1.5)));
        let mounts = Mounts::read(&root);
        let ours = around(&mounts, &mounts.named("/a/s").unwrap(), CpuSet::range(0, 4), CpuSet::range(2, 4));
        assert_eq!(ours.bounds.cpus_at_most, None, "what partitions of ours have taken can be had again");
    }

    /// Thousands of groups do not hold up whoever asks: so many are read, and no more.
    #[test]
    fn a_look_is_bounded() {
        let names: Vec<String> = (0..3000).map(|n| format!("cpuset/s/c{n}/cpuset.cpus")).collect();
        let mut files: Vec<(&str, &str)> = names.iter().map(|n| (n.as_str(), "1")).collect();
        files.extend([("cpuset/cpuset.cpus", "0-3"), ("cpuset/s/cpuset.cpus", "0-3"), ("cpu/s/cpu.cfs_quota_us", "-1")]);
        let (_dir, root) = host(true, &files);
        let files = std::sync::Arc::new(Counting::default());
        let root = Root::with(root.path("/"), files.clone());
        let a = look(&root, "/s");
        assert_eq!(a.bounds.cpus_at_least, CpuSet::range(1, 2));
        let read = files.0.load(std::sync::atomic::Ordering::Relaxed);
        assert!(read <= 3 * MOST_GROUPS, "{read} files were read");
    }

    /// The host's files, counted.
    #[derive(Debug, Default)]
    struct Counting(std::sync::atomic::AtomicUsize);

    impl Files for Counting {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            HostFiles.read(path)
        }

        fn write(&self, path: &Path, text: &str) -> io::Result<()> {
            HostFiles.write(path, text)
        }

        fn make_dir(&self, path: &Path) -> io::Result<()> {
            HostFiles.make_dir(path)
        }

        fn remove_dir(&self, path: &Path) -> io::Result<()> {
            HostFiles.remove_dir(path)
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            HostFiles.rename(from, to)
        }

        fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
            HostFiles.list(dir)
        }

        fn folders(&self, dir: &Path) -> Vec<String> {
            HostFiles.folders(dir)
        }

        fn is_dir(&self, path: &Path) -> bool {
            path.is_dir()
        }

        fn is_file(&self, path: &Path) -> bool {
            path.is_file()
        }

        fn writable(&self, path: &Path) -> bool {
            HostFiles.writable(path)
        }
    }
}
