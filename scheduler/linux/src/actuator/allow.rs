//! The allow-list: which path may be changed how, and to which values. Pure: a function of the request and of what the
//! root-owned configuration and the mounts said at the start; nothing here asks the client or the file system.
//!
//! A path is taken apart into names first. What has an empty name, "." or "..", a control character, or is too long is
//! refused before any rule looks at it; symbolic links are refused where the path is opened (`beneath`).

use super::value::{Grammar, MAX_VALUE};
use crate::cgroup::Mounts;
use crate::resctrl::{Resctrl, PREFIX};
use std::fmt;
use std::path::{Path, PathBuf};
use surefoot_server::CpuSet;

/// Files of a cgroup that may be written.
const CGROUP_FILES: [(&str, Grammar); 13] = [
    // Both versions.
    ("cpuset.cpus", Grammar::List),
    ("cpuset.mems", Grammar::List),
    // v2.
    (PARTITION, Grammar::Partition),
    ("cpu.max", Grammar::Quota),
    ("cpu.weight", Grammar::Number),
    ("memory.max", Grammar::Limit),
    ("memory.high", Grammar::Limit),
    ("memory.zswap.max", Grammar::Limit),
    ("memory.reclaim", Grammar::Reclaim),
    // v1.
    ("cpu.cfs_quota_us", Grammar::Signed),
    ("cpu.cfs_period_us", Grammar::Number),
    ("cpu.shares", Grammar::Number),
    ("memory.limit_in_bytes", Grammar::Signed),
];
/// Only where the configuration says `partitions = true`: it takes CPUs from everybody else.
pub(super) const PARTITION: &str = "cpuset.cpus.partition";

/// Files of a control group of ours. CPUs only to take them away (whoever runs on one of them would be in the group), and the mode only to end
/// another (ways of an exclusive group can be given to nobody else).
const RESCTRL_FILES: [(&str, Grammar); 4] =
    [("schemata", Grammar::Schemata), ("tasks", Grammar::Thread), (MODE, Grammar::Shareable), (CPUS, Grammar::NoCpu)];
const MODE: &str = "mode";
const CPUS: &str = "cpus_list";

const MON_GROUPS: &str = "mon_groups";
const MAX_PATH: usize = 4095;
const MAX_NAME: usize = 255;

/// Which cgroups: one name or pattern a level, `*` for any run of characters within a name. "/docker/*" is every cgroup
/// right below "/docker", not "/docker" itself and nothing deeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    said: String,
    names: Vec<String>,
    /// `*` is a character like any other.
    exact: bool,
}

impl Pattern {
    /// # Errors
    /// Why the text is no pattern, and what is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| Err(format!("\"{text}\" {why}. Write e.g. \"/system.slice/web.service\" or \"/docker/*\""));
        let Some(rest) = text.strip_prefix('/') else { return bad("does not begin with /") };
        let names: Vec<String> = rest.split('/').map(str::to_string).collect();
        if names.iter().any(|n| !plain(n)) {
            return bad("has a name that is empty, \".\", \"..\", too long or not plain text");
        }
        Ok(Pattern { said: text.into(), names, exact: false })
    }

    /// The one cgroup of this name.
    ///
    /// # Errors
    /// See [`Pattern::parse`].
    pub fn literal(text: &str) -> Result<Self, String> {
        Ok(Pattern { exact: true, ..Self::parse(text)? })
    }

    /// Names of a cgroup from the root of its hierarchy. `below`: also what is inside a cgroup that matches.
    fn matches(&self, names: &[&str], below: bool) -> bool {
        let same_depth = names.len() == self.names.len() || below && names.len() > self.names.len();
        let same = |p: &str, n: &str| if self.exact { p == n } else { glob(p.as_bytes(), n.as_bytes()) };
        same_depth && self.names.iter().zip(names).all(|(p, n)| same(p, n))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

/// `*` is any run, everything else itself. Linear in memory, at most quadratic in time.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            p += 1;
            n += 1;
        } else if let Some((sp, sn)) = star {
            star = Some((sp, sn + 1));
            p = sp + 1;
            n = sn + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// A name that a path may be made of.
fn plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name.len() <= MAX_NAME && !name.chars().any(|c| c == '/' || c.is_control())
}

/// The name of a group of ours; `~` is in names of classes whose plain name is taken.
fn ours(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| word(&rest.replace('~', "-")))
}

fn word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tree {
    /// Names of the cgroup that the mount point shows.
    Cgroups(Vec<String>),
    Resctrl,
}

/// A mount below which something may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    dir: PathBuf,
    tree: Tree,
}

/// The rule that refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

fn refuse<T>(rule: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(rule.into()))
}

/// What has to be asked besides before a write may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    Nothing,
    /// A file of a cgroup: what it had is recorded, and bounds what it may get.
    Cgroup,
    /// A control group of resctrl gets ways and bandwidth.
    Ways,
    /// This thread must run in a cgroup of the allow-list.
    Thread(u32),
}

/// What the configuration says besides the cgroups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// CPUs may be taken from everybody else for one group.
    pub partitions: bool,
    /// CPUs that services may get which they did not have; None: any.
    pub cpus: Option<CpuSet>,
    /// How many services there are at most, which bounds the groups of resctrl; None: no bound.
    pub services: Option<usize>,
    /// Cgroups of BE jobs: they may be held at less than they had when no daemon decides any more.
    pub be: Vec<Pattern>,
}

/// The rules.
#[derive(Clone, Debug)]
pub struct Allow {
    places: Vec<Place>,
    cgroups: Vec<Pattern>,
    terms: Terms,
}

impl Allow {
    /// The cgroups that `cgroups` names in the hierarchies of these mounts, and groups of ours in this resctrl.
    pub fn new(mounts: &Mounts, resctrl: Option<&Resctrl>, cgroups: Vec<Pattern>) -> Self {
        let names = |shown: &str| shown.split('/').filter(|n| !n.is_empty()).map(str::to_string).collect();
        let cgroup_dirs = mounts.hierarchies().into_iter().map(|(dir, shown)| Place { dir: dir.into(), tree: Tree::Cgroups(names(shown)) });
        let resctrl_dir = resctrl.map(|r| Place { dir: r.dir().into(), tree: Tree::Resctrl });
        Allow { places: cgroup_dirs.chain(resctrl_dir).collect(), cgroups, terms: Terms::default() }
    }

    #[must_use]
    pub fn with_terms(self, terms: Terms) -> Self {
        Allow { terms, ..self }
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Mount points below which something may be changed.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.places.iter().map(|p| p.dir.as_path())
    }

    pub fn cgroups(&self) -> &[Pattern] {
        &self.cgroups
    }

    /// Names of files that may be written, for people: in cgroups, in groups of ours.
    pub fn files(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let of_cgroups = CGROUP_FILES.iter().map(|f| f.0).filter(|f| *f != PARTITION || self.terms.partitions);
        (of_cgroups.collect(), RESCTRL_FILES.map(|f| f.0).to_vec())
    }

    /// Mount point of resctrl.
    pub fn resctrl(&self) -> Option<&Path> {
        self.places.iter().find(|p| p.tree == Tree::Resctrl).map(|p| p.dir.as_path())
    }

    /// Whether a folder is that of a cgroup which the configuration names.
    pub fn names(&self, dir: &Path) -> bool {
        self.in_patterns(dir, &self.cgroups, false)
    }

    /// Whether a folder is, or lies in, that of a BE job.
    pub fn is_be(&self, dir: &Path) -> bool {
        self.in_patterns(dir, &self.terms.be, true)
    }

    fn in_patterns(&self, dir: &Path, patterns: &[Pattern], deeper: bool) -> bool {
        let Some((place, below)) = dir.to_str().and_then(|d| self.locate(d).ok()) else { return false };
        let Tree::Cgroups(shown) = &place.tree else { return false };
        let names: Vec<&str> = shown.iter().map(String::as_str).chain(below).collect();
        patterns.iter().any(|p| p.matches(&names, deeper))
    }

    /// The place of a path and the names below it.
    fn locate<'a>(&self, path: &'a str) -> Result<(&Place, Vec<&'a str>), Refused> {
        if path.len() > MAX_PATH {
            return refuse("the path is too long");
        }
        let Some(rest) = path.strip_prefix('/') else { return refuse("the path is not absolute") };
        if rest.split('/').any(|n| !plain(n)) {
            return refuse("the path has a name that is empty, \".\", \"..\", too long or not plain text");
        }
        // The longest match: one mount may lie inside another.
        let inside = |p: &&Place| Path::new(path).starts_with(&p.dir);
        match self.places.iter().filter(inside).max_by_key(|p| p.dir.as_os_str().len()) {
            None => refuse("the path is not below a mount of cgroups or resctrl"),
            Some(place) => {
                let below = Path::new(path).strip_prefix(&place.dir).unwrap_or(Path::new(""));
                Ok((place, below.iter().filter_map(|n| n.to_str()).collect()))
            }
        }
    }

    fn in_cgroups(&self, shown: &[String], below: &[&str], deeper: bool) -> bool {
        let names: Vec<&str> = shown.iter().map(String::as_str).chain(below.iter().copied()).collect();
        self.cgroups.iter().any(|p| p.matches(&names, deeper))
    }

    /// The grammar of a file that may be written.
    fn writable(&self, path: &str) -> Result<Grammar, Refused> {
        let (place, names) = self.locate(path)?;
        let Some((file, dirs)) = names.split_last() else { return refuse("the path is a mount point") };
        match &place.tree {
            Tree::Cgroups(shown) => {
                if !self.in_cgroups(shown, dirs, false) {
                    return refuse("the configuration names no such cgroup");
                }
                if *file == PARTITION && !self.terms.partitions {
                    return refuse("CPU partitions take CPUs from everybody, and the configuration does not say partitions = true");
                }
                let grammar = CGROUP_FILES.iter().find(|(name, _)| name == file).map(|f| f.1);
                grammar.map_or_else(|| refuse("this file of a cgroup is not on the list"), Ok)
            }
            Tree::Resctrl => match dirs {
                [group] if ours(group) => {
                    let grammar = RESCTRL_FILES.iter().find(|(name, _)| name == file).map(|f| f.1);
                    grammar.map_or_else(|| refuse("this file of a resctrl group is not on the list"), Ok)
                }
                // Threads go to monitoring groups of ours, and back to the default group.
                [] if *file == "tasks" => Ok(Grammar::Thread),
                _ if *file == "tasks" && monitoring(dirs) => Ok(Grammar::Thread),
                _ if *file == CPUS && monitoring(dirs) => Ok(Grammar::NoCpu),
                _ => refuse(format!("only resctrl groups named {PREFIX}* may be written")),
            },
        }
    }

    /// # Errors
    /// The rule that refuses it.
    pub fn open(&self, path: &str) -> Result<(), Refused> {
        self.writable(path).map(|_| ())
    }

    /// # Errors
    /// The rule that refuses it.
    pub fn write(&self, path: &str, text: &str) -> Result<Further, Refused> {
        let grammar = self.writable(path)?;
        if !grammar.takes(text) {
            return refuse(format!("the value is not {}, of at most {MAX_VALUE} bytes", grammar.wants()));
        }
        Ok(match (grammar, text.trim_end().parse()) {
            (Grammar::Thread, Ok(tid)) => Further::Thread(tid),
            (Grammar::Thread, Err(_)) => return refuse("the value is no thread id"),
            (Grammar::Schemata, _) => Further::Ways,
            // An action, which leaves nothing behind; and what every new group has.
            (Grammar::Reclaim | Grammar::Shareable | Grammar::NoCpu, _) => Further::Nothing,
            _ => Further::Cgroup,
        })
    }

    /// Groups of ours in resctrl may be made and removed.
    ///
    /// # Errors
    /// The rule that refuses it.
    pub fn group(&self, path: &str) -> Result<(), Refused> {
        let (place, names) = self.locate(path)?;
        let own = place.tree == Tree::Resctrl && (matches!(names.as_slice(), [g] if ours(g)) || monitoring(&names));
        if own {
            return Ok(());
        }
        refuse(format!("only resctrl groups named {PREFIX}* may be made or removed"))
    }

    /// Monitoring groups of ours move between groups of ours and the default group.
    ///
    /// # Errors
    /// The rule that refuses it.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Refused> {
        for path in [from, to] {
            let (place, names) = self.locate(path)?;
            if place.tree != Tree::Resctrl || !monitoring(&names) {
                return refuse(format!("only monitoring groups of resctrl groups named {PREFIX}* may be renamed"));
            }
        }
        Ok(())
    }

    /// All of resctrl, and the files of allowed cgroups, may be read: for hosts where these are not world-readable.
    ///
    /// # Errors
    /// The rule that refuses it.
    pub fn read(&self, file: &str) -> Result<(), Refused> {
        self.seen(file, 1)
    }

    /// As [`Allow::read`], for a folder.
    ///
    /// # Errors
    /// The rule that refuses it.
    pub fn look(&self, dir: &str) -> Result<(), Refused> {
        self.seen(dir, 0)
    }

    /// The last `own` names are not the cgroup's.
    fn seen(&self, path: &str, own: usize) -> Result<(), Refused> {
        let (place, names) = self.locate(path)?;
        match &place.tree {
            Tree::Resctrl => Ok(()),
            Tree::Cgroups(shown) if self.in_cgroups(shown, &names[..names.len().saturating_sub(own)], true) => Ok(()),
            Tree::Cgroups(_) => refuse("the configuration names no such cgroup"),
        }
    }

    /// Whether a file lies in a cgroup that is named, whatever the file is.
    pub fn governs(&self, file: &str) -> bool {
        let located = self.locate(file).ok();
        let in_named = |(place, names): (&Place, Vec<&str>)| match (&place.tree, names.split_last()) {
            (Tree::Cgroups(shown), Some((_, dirs))) => self.in_cgroups(shown, dirs, false),
            _ => false,
        };
        located.is_some_and(in_named)
    }

    /// A cgroup folder in which threads of an allowed service may run.
    pub fn holds(&self, dir: &Path) -> bool {
        let located = dir.to_str().and_then(|d| self.locate(d).ok());
        located.is_some_and(|(place, names)| matches!(&place.tree, Tree::Cgroups(shown) if self.in_cgroups(shown, &names, true)))
    }
}

/// A monitoring group in a control group of ours, or one named as ours in the default group.
fn monitoring(names: &[&str]) -> bool {
    match names {
        [group, mid, name] => ours(group) && *mid == MON_GROUPS && word(name),
        [mid, name] => *mid == MON_GROUPS && ours(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{intel, ModelFiles};

    fn allow(cgroups: &[&str]) -> Allow {
        let (_dir, root) = crate::cgroup::tests::v1();
        let (_files, root) = ModelFiles::mount(&root, intel(1, 11), "");
        let patterns = cgroups.iter().map(|c| Pattern::parse(c).unwrap()).collect();
        let mut a = Allow::new(&Mounts::read(&root), Resctrl::find(&root).as_ref(), patterns);
        // As on a host: without the temporary folder.
        let at = root.path("/");
        a.places.iter_mut().for_each(|p| p.dir = Path::new("/").join(p.dir.strip_prefix(&at).unwrap()));
        a
    }

    /// Just the listed files of just the named cgroups.
    #[test]
    fn cgroups_by_name_and_pattern() {
        let a = allow(&["/docker/*", "/system.slice/web-*.service"]);
        let cg = |p: &str| format!("/sys/fs/cgroup/{p}");
        for good in ["cpuset/docker/c/cpuset.cpus", "cpu/docker/c/cpu.cfs_quota_us", "cpu/system.slice/web-1.service/cpu.shares"] {
            a.open(&cg(good)).unwrap();
        }
        for bad in [
            "cpuset/docker/cpuset.cpus",
            "cpuset/cpuset.cpus",
            "cpuset/docker/c/d/cpuset.cpus",
            "cpuset/docker2/c/cpuset.cpus",
            "cpuset/system.slice/web.service/cpuset.cpus",
            "cpuset/docker/c/cgroup.procs",
            "cpuset/docker/c/cpuset.cpus.exclusive",
            "cpuset/docker/c/cpuset.cpus.partition",
            "cpuset/docker/c/memory.soft_limit_in_bytes",
            "cpuset/docker/c/tasks",
            "cpuset/docker/c/release_agent",
            "cpuset/docker/c/../../x/cpuset.cpus",
            "cpuset/docker/c//cpuset.cpus",
            "cpuset/docker/./cpuset.cpus",
            "cpuset/docker/c/cpuset.cpus/",
            "cpuset",
            "devices/docker/c/devices.allow",
            "devices/docker/c/cpuset.cpus",
            "cpuset/docker/c\n/cpuset.cpus",
        ] {
            assert!(a.open(&cg(bad)).is_err(), "{bad}");
        }
        assert!(a.open("sys/fs/cgroup/cpuset/docker/c/cpuset.cpus").is_err());
        assert!(a.open(&cg(&format!("cpuset/docker/{}/cpuset.cpus", "x".repeat(300)))).is_err());
        assert!(a.open("/etc/passwd").is_err() && a.open("").is_err() && a.open("/").is_err());
        let f = cg("cpuset/docker/c/cpuset.cpus");
        assert_eq!(a.write(&f, "0-1\n"), Ok(Further::Cgroup));
        assert!(a.write(&f, "all").unwrap_err().to_string().contains("a list such as"));
        // What is inside an allowed cgroup may be read, and its threads may be moved.
        a.read(&cg("cpuset/docker/c/d/cgroup.procs")).unwrap();
        a.look(&cg("cpuset/docker/c/d")).unwrap();
        assert!(a.read(&cg("cpuset/docker/cgroup.procs")).is_err() && a.look(&cg("cpuset/docker")).is_err());
        assert!(a.holds(Path::new("/sys/fs/cgroup/cpuset/docker/c/d")) && !a.holds(Path::new("/sys/fs/cgroup/cpuset/docker")));
    }

    /// Just groups of ours, and of the default group just its task list.
    #[test]
    fn resctrl_groups_of_ours() {
        let a = allow(&[]);
        let at = |p: &str| format!("/sys/fs/resctrl/{p}");
        for good in ["surefoot.a/schemata", "surefoot.a/tasks", "surefoot.a/mon_groups/m/tasks", "mon_groups/surefoot.m/tasks", "tasks"] {
            a.open(&at(good)).unwrap();
        }
        for bad in [
            "schemata",
            "mode",
            "cpus",
            "surefoot.a/cpus",
            "other/mode",
            "other/cpus_list",
            "mon_groups/m/cpus_list",
            "other/schemata",
            "surefoot./schemata",
            "surefoot/schemata",
            "surefoot.a/../other/schemata",
            "surefoot.a/mon_data/mon_L3_00/llc_occupancy",
            "surefoot.a/mon_groups/m/schemata",
            "surefoot.a/mon_groups/../tasks",
            "mon_groups/m/tasks",
            "info/L3/cbm_mask",
            "info/last_cmd_status",
            "info/L3_MON/max_threshold_occupancy",
            "surefoot.a",
            "surefoot.a b/schemata",
        ] {
            assert!(a.open(&at(bad)).is_err(), "{bad}");
        }
        // What somebody did to a group of ours is undone, and no more.
        for (file, text) in [("surefoot.a/mode", "shareable"), ("surefoot.a/cpus_list", "\n"), ("mon_groups/surefoot.m/cpus_list", "\n")] {
            assert_eq!(a.write(&at(file), text), Ok(Further::Nothing));
            for other in ["exclusive", "pseudo-locksetup", "", "0", "0-3", "all", "shareable\nexclusive"] {
                assert!(a.write(&at(file), other).is_err(), "{file} {other:?}");
            }
        }
        for good in ["surefoot.a", "surefoot.a/mon_groups/m", "mon_groups/surefoot.m"] {
            a.group(&at(good)).unwrap();
        }
        for bad in ["", "other", "mon_groups", "mon_groups/m", "surefoot.a/mon_groups", "surefoot.a/b", "info", "surefoot.a/mon_groups/m/x"]
        {
            assert!(a.group(&at(bad)).is_err(), "{bad}");
        }
        a.rename(&at("surefoot.a/mon_groups/m"), &at("surefoot.b/mon_groups/m")).unwrap();
        a.rename(&at("mon_groups/surefoot.m"), &at("surefoot.b/mon_groups/m")).unwrap();
        for (from, to) in
            [("surefoot.a", "surefoot.b"), ("surefoot.a/mon_groups/m", "other/mon_groups/m"), ("surefoot.a/mon_groups/m", "x")]
        {
            assert!(a.rename(&at(from), &at(to)).is_err(), "{from} {to}");
        }
        assert!(a.rename(&at("surefoot.a/mon_groups/m"), "/etc/mon_groups/surefoot.x").is_err());
        assert_eq!(a.write(&at("tasks"), "42\n"), Ok(Further::Thread(42)));
        assert!(a.write(&at("tasks"), "9999999999\n").is_err());
        a.read(&at("info/L3/cbm_mask")).unwrap();
        a.look("/sys/fs/resctrl").unwrap();
        assert!(a.group("/sys/fs/cgroup/cpuset/surefoot.a").is_err());
    }

    /// A mount that shows a part of the hierarchy is judged by the cgroup's full name.
    #[test]
    fn names_count_from_the_root_of_the_hierarchy() {
        let place = Place { dir: "/cg".into(), tree: Tree::Cgroups(vec!["docker".into(), "outer".into()]) };
        let a = Allow { places: vec![place], cgroups: vec![Pattern::parse("/docker/outer/in").unwrap()], terms: Terms::default() };
        a.open("/cg/in/cpu.max").unwrap();
        assert!(a.open("/cg/docker/outer/in/cpu.max").is_err() && a.open("/cg/cpu.max").is_err());
    }

    /// A star is any run of characters of one name, and in a service's own cgroup nothing but a star.
    #[test]
    fn patterns() {
        let star = Pattern::literal("/a*").unwrap();
        assert!(star.matches(&["a*"], false) && !star.matches(&["ab"], false) && Pattern::parse("/a*").unwrap().matches(&["ab"], false));
        for bad in ["", "docker", "/", "//", "/a/", "/a/../b", "/./a", "/a\nb"] {
            assert!(Pattern::parse(bad).is_err(), "{bad:?}");
        }
        for (p, n, want) in [
            ("*", "x", true),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "axxbc", false),
            ("*-*.scope", "docker-1.scope", true),
            ("*", "", true),
            ("", "x", false),
            ("**", "abc", true),
            ("a*a*a*b", "aaaaaaaaaaaa", false),
        ] {
            assert_eq!(glob(p.as_bytes(), n.as_bytes()), want, "{p} {n}");
        }
    }
}
