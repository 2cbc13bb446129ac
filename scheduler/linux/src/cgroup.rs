//! CPUs, memory nodes, CPU quota and memory limits of one cgroup, v1 and v2 behind one set of knobs.
//!
//! v1 hosts have CPUs, quota, weight and the memory limit; memory nodes, partitions, `memory.high`, zswap, reclaim and pressure
//! are v2 only, and read as None where they are not there. A change is written only where it changes something, and read back.
//!
//! Quotas run over a period of 10 ms: with the kernel's default of 100 ms a service on 0.1 core would stall for 90 ms once
//! its 10 ms are used up, and every p99 would measure that. 1 ms, which 0.1 core is worth, is the kernel's least quota.

use crate::files::{number, text, Files, SharedFiles};
use crate::gauge::Gauge;
use crate::psi::{Pressure, Resource};
use crate::root::Root;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use surefoot_server::CpuSet;

/// Period of CPU quotas, microseconds.
pub const PERIOD_US: u64 = 10_000;
/// Longest that the kernel takes.
const MOST_PERIOD_US: u64 = 1_000_000;

/// What can be set on a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Knob {
    /// "member", "root" or "isolated": whether the CPUs are a scheduling domain of their own, taken from every neighbour; v2 only.
    /// First of all: giving it back makes the others free to change.
    Partition,
    /// List of CPUs, "0-3".
    Cpus,
    /// List of NUMA nodes that memory comes from, "0"; v2 only here. Setting it moves what lies elsewhere, and the write waits for that.
    Mems,
    /// "QUOTA PERIOD" in microseconds, or "max PERIOD", as cgroup v2 writes it.
    Quota,
    /// Bytes above which the group is slowed down and reclaimed from, or "max"; v2 only. See [`crate::memory`] for lowering it.
    High,
    /// Bytes above which the group is killed from, or "max".
    Memory,
    /// Bytes, or "max"; v2 only.
    Zswap,
    /// Share of contested CPU time, as the kernel counts it: cpu.weight (v2) or cpu.shares (v1).
    Weight,
}

impl Knob {
    pub const ALL: [Knob; 8] = [Knob::Partition, Knob::Cpus, Knob::Mems, Knob::Quota, Knob::High, Knob::Memory, Knob::Zswap, Knob::Weight];

    pub fn name(self) -> &'static str {
        match self {
            Knob::Partition => "CPU partition",
            Knob::Cpus => "CPUs",
            Knob::Mems => "memory nodes",
            Knob::Quota => "CPU quota",
            Knob::High => "memory throttle",
            Knob::Memory => "memory limit",
            Knob::Zswap => "zswap limit",
            Knob::Weight => "CPU weight",
        }
    }

    /// Whether two values of it mean the same to the kernel, which rewrites lists, rounds limits down to pages and stretches the
    /// periods of quotas.
    pub fn same(self, asked: &str, kept: &str) -> bool {
        match self {
            Knob::Cpus | Knob::Mems => {
                asked == kept || CpuSet::parse(asked).ok().zip(CpuSet::parse(kept).ok()).is_some_and(|(a, k)| a == k)
            }
            Knob::High | Knob::Memory | Knob::Zswap => {
                let bytes = |t: &str| t.parse::<u64>().ok();
                asked == kept || bytes(asked).zip(bytes(kept)).is_some_and(|(a, k)| a >= k && a - k < 1 << 16)
            }
            Knob::Quota => asked == kept || stretched(asked, kept),
            Knob::Partition | Knob::Weight => asked == kept,
        }
    }
}

/// Value of [`Knob::Quota`] for a number of cores.
pub fn quota_value(cores: Option<f64>) -> String {
    match cores {
        None => format!("max {PERIOD_US}"),
        Some(c) => format!("{} {PERIOD_US}", (c * PERIOD_US as f64).round() as u64),
    }
}

/// Cores of a value of [`Knob::Quota`]; None without a limit.
pub fn quota_cores(value: &str) -> Option<f64> {
    let (quota, period) = value.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok().filter(|p| *p > 0.0)?)
}

/// Whether `kept` is what the kernel itself makes of the quota `asked`: where a period ends before its timer has been dealt with on every
/// CPU, it stretches period and quota by the same factor and says so in its log ("period too short, scaling up"): by 2 since Linux 5.4,
/// by 147/128 before, at most to a second. The cores stay the same.
fn stretched(asked: &str, kept: &str) -> bool {
    let us = |t: &str| {
        let (quota, period) = t.split_once(' ')?;
        Some((quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)).filter(|(q, p)| *q > 0 && (1..=MOST_PERIOD_US).contains(p))
    };
    let (Some(asked), Some(kept)) = (us(asked), us(kept)) else { return false };
    // As the kernel counts, in nanoseconds.
    let steps = |step: fn(u128) -> u128| {
        let (mut quota, mut period) = (u128::from(asked.0) * 1000, u128::from(asked.1) * 1000);
        std::iter::from_fn(move || {
            let longer = step(period).min(u128::from(MOST_PERIOD_US) * 1000);
            if longer <= period {
                return None;
            }
            (quota, period) = (quota * longer / period, longer);
            Some((quota / 1000, period / 1000))
        })
    };
    let kept = (u128::from(kept.0), u128::from(kept.1));
    steps(|p| p * 2).any(|s| s == kept) || steps(|p| p * 147 / 128).any(|s| s == kept)
}

/// Least value of [`Knob::Weight`].
pub fn least_weight(version: Version) -> &'static str {
    match version {
        Version::V1 => "2",
        Version::V2 => "1",
    }
}

/// Lists of all CPUs and memory nodes that there can ever be on this host, those that are off line included; where sysfs says so.
#[derive(Debug, Default)]
struct Possible {
    cpus: Option<String>,
    nodes: Option<String>,
}

/// Where the controllers are mounted.
#[derive(Clone, Debug)]
pub struct Mounts {
    files: SharedFiles,
    possible: Arc<Possible>,
    /// Mount point and the cgroup that it shows, of v2.
    v2: Option<(PathBuf, String)>,
    /// The same for each v1 controller.
    v1: BTreeMap<String, (PathBuf, String)>,
}

/// Which hierarchy holds the CPU controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl Mounts {
    pub fn read(root: &Root) -> Self {
        // Read with the mounts: a process that has given up its rights by then can look at nothing else.
        let of = |kind: &str| root.read(format!("/sys/devices/system/{kind}/possible")).filter(|t| !t.is_empty());
        let possible = Arc::new(Possible { cpus: of("cpu"), nodes: of("node") });
        let mut m = Mounts { files: root.files.clone(), possible, v2: None, v1: BTreeMap::new() };
        for line in root.read("/proc/self/mountinfo").unwrap_or_default().lines() {
            // id parent dev ROOT MOUNTPOINT options... - TYPE source SUPER-OPTIONS
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let (l, r): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
            if l.len() < 5 || r.len() < 3 {
                continue;
            }
            let at = (root.path(l[4]), l[3].to_string());
            match r[0] {
                "cgroup2" => m.v2 = m.v2.or(Some(at)),
                "cgroup" => {
                    for c in r[2].split(',') {
                        m.v1.entry(c.to_string()).or_insert_with(|| at.clone());
                    }
                }
                _ => {}
            }
        }
        m
    }

    /// Whether version 2 is mounted and offers these controllers.
    fn v2_has(&self, controllers: &[&str]) -> bool {
        let there = self.v2.as_ref().and_then(|(dir, _)| text(self.files.as_ref(), dir.join("cgroup.controllers")));
        there.is_some_and(|there| controllers.iter().all(|c| there.split_whitespace().any(|x| x == *c)))
    }

    /// Whether groups can have a limit on their memory.
    pub fn has_memory(&self) -> bool {
        match self.version() {
            Some(Version::V2) => self.v2_has(&["memory"]),
            _ => self.v1.contains_key("memory"),
        }
    }

    /// A cgroup below the root of version 2, where files of controllers are (the root has few).
    pub(crate) fn a_child(&self) -> Option<PathBuf> {
        let dir = self.dir("")?;
        let names = self.files.list(dir).ok()?;
        names.iter().map(|n| dir.join(n)).find(|d| self.files.is_file(&d.join("cgroup.procs")))
    }

    /// None where neither version offers cpu and cpuset.
    pub fn version(&self) -> Option<Version> {
        if self.v2_has(&["cpu", "cpuset"]) {
            return Some(Version::V2);
        }
        (self.v1.contains_key("cpu") && self.v1.contains_key("cpuset")).then_some(Version::V1)
    }

    /// Mount point of a controller (v1), or of v2 for an empty name.
    pub fn dir(&self, controller: &str) -> Option<&Path> {
        let at = if controller.is_empty() { self.v2.as_ref() } else { self.v1.get(controller) };
        at.map(|(p, _)| p.as_path())
    }

    /// Mount points of what Surefoot may set (v2; cpu, cpuset and memory of v1), each once, with the cgroup that it shows.
    pub fn hierarchies(&self) -> BTreeMap<&Path, &str> {
        let v1 = ["cpu", "cpuset", "memory"].iter().filter_map(|c| self.v1.get(*c));
        self.v2.iter().chain(v1).map(|(dir, shown)| (dir.as_path(), shown.as_str())).collect()
    }

    fn below(at: Option<&(PathBuf, String)>, cgroup: &str) -> Option<PathBuf> {
        let (dir, shown) = at?;
        // A mount may show only a part of the hierarchy (containers). "/a" shows nothing of "/ab".
        let rest =
            if shown == "/" { cgroup } else { cgroup.strip_prefix(shown.as_str()).filter(|r| r.is_empty() || r.starts_with('/'))? };
        Some(dir.join(rest.trim_start_matches('/')))
    }

    /// Folders of the cgroups that a process is in, of cpu and of cpuset, by the text of its /proc/PID/cgroup: no other file is looked at.
    pub(crate) fn place(&self, version: Version, text: &str) -> Option<[PathBuf; 2]> {
        let paths = paths_of(text);
        let at = |c: &str| {
            let mount = if c.is_empty() { self.v2.as_ref() } else { self.v1.get(c) };
            Self::below(mount, paths.get(c)?)
        };
        match version {
            Version::V2 => Some([at("")?, at("")?]),
            Version::V1 => Some([at("cpu")?, at("cpuset")?]),
        }
    }

    /// The cgroup of a process.
    pub fn of_pid(&self, root: &Root, pid: u32) -> Option<Cgroup> {
        let text = root.read(format!("/proc/{pid}/cgroup"))?;
        let paths = paths_of(&text);
        self.group(|c| paths.get(c).copied())
    }

    /// The cgroup with this path in every hierarchy ("/docker/0123").
    pub fn named(&self, cgroup: &str) -> Option<Cgroup> {
        self.group(|_| Some(cgroup))
    }

    /// Path of a cgroup as the kernel names it; None where its hierarchies do not agree, or do not show it.
    pub fn name_of(&self, group: &Cgroup) -> Option<String> {
        let name = |at: Option<&(PathBuf, String)>, dir: &Path| {
            let (mount, shown) = at?;
            let rest = dir.strip_prefix(mount).ok()?;
            Some(Path::new(shown).join(rest).to_str()?.to_string())
        };
        match group.version {
            Version::V2 => name(self.v2.as_ref(), &group.cpuset),
            Version::V1 => {
                let cpuset = name(self.v1.get("cpuset"), &group.cpuset)?;
                (name(self.v1.get("cpu"), &group.cpu)? == cpuset).then_some(cpuset)
            }
        }
    }

    /// Folders between the root of the hierarchy and a cgroup, its own included; of version 1 in the tree of cpuset.
    pub fn depth_of(&self, group: &Cgroup) -> Option<usize> {
        let (mount, shown) = if group.version == Version::V2 { self.v2.as_ref() } else { self.v1.get("cpuset") }?;
        let name = Path::new(shown).join(group.cpuset.strip_prefix(mount).ok()?);
        let parts = name.components().map(|c| match c {
            Component::Normal(_) => Some(1),
            Component::RootDir => Some(0),
            _ => None,
        });
        parts.sum()
    }

    /// True where a folder of a cgroup has gone while its hierarchy is there: one that was unmounted proves nothing. To be asked of mounts
    /// that have just been read.
    pub fn prove_absent(&self, dir: &Path) -> bool {
        self.v2.iter().chain(self.v1.values()).any(|(mount, _)| dir.starts_with(mount) && self.files.is_dir(mount)) && absent(dir)
    }

    /// True where the mounts prove that no such cgroup is left; false where they cannot tell. To be asked of mounts that have just been read.
    pub fn lacks(&self, cgroup: &str) -> bool {
        let at = |c: &str| Self::below(self.v1.get(c), cgroup);
        let dirs = match self.version() {
            Some(Version::V2) => vec![Self::below(self.v2.as_ref(), cgroup)],
            Some(Version::V1) => vec![at("cpu"), at("cpuset")],
            None => return false,
        };
        dirs.iter().all(|d| d.as_deref().is_some_and(absent))
    }

    fn group<'a>(&self, path_of: impl Fn(&str) -> Option<&'a str>) -> Option<Cgroup> {
        let dirs = match self.version()? {
            Version::V2 => {
                let dir = Self::below(self.v2.as_ref(), path_of("")?)?;
                ["cpu", "cpuset", "cpuacct", "memory"].map(|_| Some(dir.clone()))
            }
            // A hierarchy of its own may have it in another cgroup, with other programs: that memory is not its own.
            Version::V1 => ["cpu", "cpuset", "cpuacct", "memory"].map(|c| {
                let own = c != "memory" || path_of(c) == path_of("cpuset");
                Self::below(self.v1.get(c), path_of(c).filter(|_| own)?)
            }),
        };
        let [cpu, cpuset, cpuacct, memory] = dirs.map(|d| d.filter(|d| self.files.is_dir(d)));
        let (files, possible) = (self.files.clone(), self.possible.clone());
        Some(Cgroup { files, possible, version: self.version()?, cpu: cpu?, cpuset: cpuset?, cpuacct, memory })
    }
}

/// Paths in a /proc/PID/cgroup by controller; that of v2 under "".
pub(crate) fn paths_of(text: &str) -> BTreeMap<&str, &str> {
    let mut paths = BTreeMap::new();
    for line in text.lines() {
        let mut f = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (f.next(), f.next(), f.next()) else { continue };
        controllers.split(',').for_each(|c| {
            paths.insert(c, path);
        });
    }
    paths
}

/// One cgroup: its folders in the hierarchies of its controllers.
#[derive(Clone, Debug)]
pub struct Cgroup {
    files: SharedFiles,
    possible: Arc<Possible>,
    pub version: Version,
    pub cpu: PathBuf,
    pub cpuset: PathBuf,
    pub cpuacct: Option<PathBuf>,
    pub memory: Option<PathBuf>,
}

impl PartialEq for Cgroup {
    fn eq(&self, other: &Self) -> bool {
        (self.version, &self.cpu, &self.cpuset) == (other.version, &other.cpu, &other.cpuset)
    }
}

impl Cgroup {
    /// The part of a cgroup that lies in one folder: all of it on v2, one hierarchy's on v1.
    pub(crate) fn of_folder(files: SharedFiles, mounts: &Mounts, version: Version, dir: &Path) -> Self {
        let possible = mounts.possible.clone();
        Cgroup { files, possible, version, cpu: dir.into(), cpuset: dir.into(), cpuacct: None, memory: Some(dir.into()) }
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.files.as_ref(), path)
    }

    pub(crate) fn files(&self) -> &SharedFiles {
        &self.files
    }

    /// For a thread whose writes may block for long.
    pub fn aside(&self) -> Self {
        Cgroup { files: self.files.aside().unwrap_or_else(|| self.files.clone()), ..self.clone() }
    }

    /// Number of its folder, which one of the same name that is made later does not have; None where it has gone.
    pub fn identity(&self) -> Option<u64> {
        fs::metadata(&self.cpuset).ok().map(|m| m.ino())
    }

    /// True for the hierarchy's root, which is no service's.
    pub fn is_root(&self, mounts: &Mounts) -> bool {
        let at = if self.version == Version::V2 { mounts.dir("") } else { mounts.dir("cpuset") };
        at == Some(self.cpuset.as_path())
    }

    /// The file that holds a knob; None where this host has none.
    pub fn file(&self, knob: Knob) -> Option<PathBuf> {
        self.path(knob).filter(|path| self.files.is_file(path))
    }

    /// Where such a file would be.
    fn path(&self, knob: Knob) -> Option<PathBuf> {
        let v2 = self.version == Version::V2;
        Some(match knob {
            Knob::Cpus => self.cpuset.join("cpuset.cpus"),
            Knob::Partition if v2 => self.cpuset.join("cpuset.cpus.partition"),
            Knob::Mems if v2 => self.cpuset.join("cpuset.mems"),
            Knob::High if v2 => self.memory.as_ref()?.join("memory.high"),
            Knob::Partition | Knob::Mems | Knob::High => return None,
            Knob::Quota => self.cpu.join(if v2 { "cpu.max" } else { "cpu.cfs_quota_us" }),
            Knob::Memory => self.memory.as_ref()?.join(if v2 { "memory.max" } else { "memory.limit_in_bytes" }),
            Knob::Zswap if v2 => self.memory.as_ref()?.join("memory.zswap.max"),
            Knob::Zswap => return None,
            Knob::Weight => self.cpu.join(if v2 { "cpu.weight" } else { "cpu.shares" }),
        })
    }

    /// CPUs that its processes may use, also where a cgroup above it decides; None where the host does not say.
    pub fn effective_cpus(&self) -> Option<String> {
        let file = match self.version {
            Version::V1 => "cpuset.effective_cpus",
            Version::V2 => "cpuset.cpus.effective",
        };
        self.read(self.cpuset.join(file)).or_else(|| self.get(Knob::Cpus))
    }

    /// Current value in the words of [`Knob`]; None where the host has no such knob.
    pub fn get(&self, knob: Knob) -> Option<String> {
        let text = self.read(self.path(knob)?)?;
        Some(match (knob, self.version) {
            (Knob::Quota, Version::V1) => {
                let period = number(self.files.as_ref(), self.cpu.join("cpu.cfs_period_us"))?;
                if text.starts_with('-') {
                    format!("max {period}")
                } else {
                    format!("{text} {period}")
                }
            }
            // v1 shows "no limit" as the largest multiple of a page.
            (Knob::Memory, Version::V1) => match text.parse::<u64>() {
                Ok(b) if b < 1 << 62 => text,
                _ => "max".into(),
            },
            _ => text,
        })
    }

    /// Set a knob and read it back; nothing is written where it has that value.
    ///
    /// # Errors
    /// The kernel's error with what it means for that file, or `InvalidData` where it keeps another value than it was given.
    pub fn set(&self, knob: Knob, value: &str) -> io::Result<()> {
        let path = self.file(knob).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("this cgroup has no {}", knob.name())))?;
        let now = self.get(knob);
        if now.as_deref() == Some(value) {
            return Ok(());
        }
        match (knob, self.version) {
            (Knob::Quota, Version::V1) => {
                let (quota, period) = value.split_once(' ').unwrap_or((value, "100000"));
                let period_file = self.cpu.join("cpu.cfs_period_us");
                if self.read(&period_file).as_deref() != Some(period) {
                    // Quota and period are two files: no limit in between, so that no mixture of old and new is too small.
                    self.write(&path, "-1")?;
                    self.write(&period_file, period)?;
                }
                self.write(&path, if quota == "max" { "-1" } else { quota })?;
            }
            (Knob::Memory, Version::V1) if value == "max" => self.write(&path, "-1")?,
            // A write of no bytes never reaches the kernel. It refuses to empty the list of a group with processes (ENOSPC): what
            // the group inherits means the same.
            (Knob::Cpus | Knob::Mems, _) if value.is_empty() => {
                if self.write(&path, "\n").is_err() {
                    let parent = self.inherited(&path);
                    if !parent.is_empty() && !now.is_some_and(|n| knob.same(&n, &parent)) {
                        self.write(&path, &parent)?;
                    }
                    return Ok(());
                }
            }
            // What was no valid partition before, and why, is not for us to judge.
            (Knob::Partition, _) if value.contains("invalid") => {
                return self.write(&path, value.split(' ').next().unwrap_or(value));
            }
            _ => self.write(&path, value)?,
        }
        let got = self.get(knob).unwrap_or_default();
        if knob.same(value, &got) {
            return Ok(());
        }
        if knob == Knob::Partition && got.contains("invalid") {
            // The kernel takes the word and says only here that it does not hold.
            self.write(&path, now.as_deref().and_then(|n| n.split(' ').next()).unwrap_or("member"))?;
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("wrote \"{value}\", the kernel keeps \"{got}\"")))
    }

    /// That a knob has this value. One that the kernel does not take back reads as what it means: the list of a group with processes cannot
    /// be emptied, and a partition that was invalid before is as valid as the kernel finds it now.
    ///
    /// # Errors
    /// `InvalidData` with both values; `NotFound` where it cannot be read.
    pub fn check_holds(&self, knob: Knob, value: &str) -> io::Result<()> {
        let file = || self.file(knob).map_or_else(|| knob.name().into(), |f| f.display().to_string());
        let Some(got) = self.get(knob) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("{}: cannot be read", file())));
        };
        let first = |t: &str| t.split(' ').next().map(str::to_string);
        let same = knob.same(value, &got)
            || match (knob, self.file(knob)) {
                (Knob::Cpus | Knob::Mems, Some(path)) if value.is_empty() => knob.same(&self.inherited(&path), &got),
                (Knob::Partition, _) => value.contains("invalid") && first(value) == first(&got),
                _ => false,
            };
        if same {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: is \"{got}\", and was \"{value}\" before", file())))
    }

    /// Give a former value back and read it back. Of a list what cannot be had now is left out, and returned: CPUs that are off line or that
    /// the group above has lost (v1), and those that another group's partition has taken (v2). None: all of it is in force.
    ///
    /// # Errors
    /// As [`Cgroup::set`] and [`Cgroup::check_holds`].
    pub fn give_back(&self, knob: Knob, value: &str) -> io::Result<Option<CpuSet>> {
        let set = self.set(knob, value);
        let Err(is) = self.check_holds(knob, value) else { return Ok(None) };
        // Why it could not be set says more than what it is instead.
        let why = set.err().unwrap_or(is);
        let Some(path) = self.file(knob).filter(|_| matches!(knob, Knob::Cpus | Knob::Mems)) else { return Err(why) };
        let whole = if value.is_empty() { self.inherited(&path) } else { value.into() };
        let Some((fits, lacks)) = parted(self.files.as_ref(), &path, &whole) else { return Err(why) };
        self.set(knob, &fits.to_string()).map_err(|_| why)?;
        Ok(Some(lacks))
    }

    /// That the CPUs which were set are those in force: groups above may allow fewer, and the kernel does not say so.
    ///
    /// # Errors
    /// `InvalidData` with both lists.
    pub fn check_in_force(&self, wanted: &str) -> io::Result<()> {
        match self.effective_cpus() {
            Some(e) if !e.is_empty() && !Knob::Cpus.same(wanted, &e) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("wrote \"{wanted}\", in force is \"{e}\": a group above allows no more, or a partition has taken the others"),
            )),
            _ => Ok(()),
        }
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.files.write(path, text).map_err(|e| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let meaning = e.raw_os_error().and_then(|n| meaning(&file, n)).map(|m| format!(": {m}")).unwrap_or_default();
            io::Error::new(e.kind(), format!("{} <- \"{}\": {e}{meaning}", path.display(), text.trim_end()))
        })
    }

    /// Bytes in use, of groups below too; swapped out ones are not.
    pub fn memory_bytes(&self) -> Option<u64> {
        let file = if self.version == Version::V2 { "memory.current" } else { "memory.usage_in_bytes" };
        number(self.files.as_ref(), self.memory.as_ref()?.join(file))
    }

    /// Bytes that zswap's pool holds for it; v2 only.
    pub fn zswap_bytes(&self) -> Option<u64> {
        number(self.files.as_ref(), self.memory.as_ref()?.join("memory.zswap.current")).filter(|_| self.version == Version::V2)
    }

    /// Bytes of it that are swapped out, uncompressed, those in zswap included; v2 only.
    pub fn swapped_bytes(&self) -> Option<u64> {
        number(self.files.as_ref(), self.memory.as_ref()?.join("memory.swap.current")).filter(|_| self.version == Version::V2)
    }

    /// What its memory consists of and what became of its pages, in lines of "key number"; v2 only. The kernel adds it up at each read.
    pub fn memory_stat(&self) -> Option<String> {
        self.read(self.memory.as_ref().filter(|_| self.version == Version::V2)?.join("memory.stat"))
    }

    /// On which memory nodes its pages are, in lines of "key N0=bytes N1=bytes"; v2 only.
    pub fn numa_stat(&self) -> Option<String> {
        self.read(self.memory.as_ref().filter(|_| self.version == Version::V2)?.join("memory.numa_stat"))
    }

    /// How long its tasks stalled for lack of a resource; None on v1 and where the kernel does not count it.
    pub fn pressure(&self, of: Resource) -> Option<Pressure> {
        let file = self.cpu.join(format!("{}.pressure", of.name()));
        Pressure::parse(&self.read(file).filter(|_| self.version == Version::V2)?)
    }

    /// Take up to so many bytes back from it at once; v2 from Linux 5.19. An action, no limit: nothing is left to give back.
    /// Blocks while the kernel reclaims: see [`crate::memory`].
    ///
    /// # Errors
    /// `WouldBlock` where less could be reclaimed; `NotFound` where the kernel cannot be asked.
    pub fn reclaim(&self, bytes: u64) -> io::Result<()> {
        let file = self.memory.as_ref().filter(|_| self.version == Version::V2).map(|m| m.join("memory.reclaim"));
        let file = file.filter(|f| self.files.is_file(f));
        let file = file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "this kernel has no memory.reclaim (Linux 5.19)"))?;
        self.write(&file, &bytes.to_string())
    }

    /// What an empty list in `path` stands for, which a group with processes refuses: the own list of the nearest group above that has one,
    /// else all that there can be. Never what is in force at the moment: that leaves out what is off line, and what partitions have taken.
    fn inherited(&self, path: &Path) -> String {
        let Some(file) = path.file_name().and_then(|f| f.to_str()) else { return String::new() };
        let mut effective = None;
        for dir in self.cpuset.ancestors().skip(1) {
            let own = self.read(dir.join(file));
            if let Some(own) = own.as_ref().filter(|t| !t.is_empty()) {
                return own.clone();
            }
            effective = self.read(dir.join(format!("{file}.effective"))).or(effective);
        }
        // The root has no list of its own (v2).
        let all = if file == "cpuset.mems" { &self.possible.nodes } else { &self.possible.cpus };
        all.clone().or(effective).unwrap_or_default()
    }

    /// The plain writes that [`Cgroup::set`] makes of a value, for whoever has only files.
    pub fn writes(&self, knob: Knob, value: &str) -> Vec<(PathBuf, String)> {
        let Some(path) = self.file(knob) else { return vec![] };
        match (knob, self.version) {
            (Knob::Quota, Version::V1) => {
                let (quota, period) = value.split_once(' ').unwrap_or((value, "100000"));
                let period_file = self.cpu.join("cpu.cfs_period_us");
                let quota = if quota == "max" { "-1" } else { quota };
                vec![(path.clone(), "-1".into()), (period_file, period.into()), (path, quota.into())]
            }
            (Knob::Memory, Version::V1) if value == "max" => vec![(path, "-1".into())],
            // The second is refused to a group with processes, which then keeps the first.
            (Knob::Cpus | Knob::Mems, _) if value.is_empty() => vec![(path.clone(), self.inherited(&path)), (path, "\n".into())],
            (Knob::Partition, _) => vec![(path, value.split(' ').next().unwrap_or(value).into())],
            _ => vec![(path, value.into())],
        }
    }

    /// True where CPUs and quota can be opened for writing.
    pub fn writable(&self) -> bool {
        [Knob::Cpus, Knob::Quota].iter().all(|k| self.file(*k).is_some_and(|p| self.files.writable(&p)))
    }

    /// Its counter of CPU time; None where the host counts none.
    pub fn usage(&self) -> Option<Usage> {
        let file = match self.version {
            Version::V2 => self.cpu.join("cpu.stat"),
            Version::V1 => self.cpuacct.as_ref()?.join("cpuacct.usage"),
        };
        Some(Usage { version: self.version, file: Gauge::new(self.files.clone(), file) })
    }

    /// Processes, also of groups below.
    pub fn pids(&self) -> Vec<u32> {
        collect(self.files.as_ref(), &self.cpuset, "cgroup.procs")
    }

    /// Threads, also of groups below.
    pub fn tids(&self) -> Vec<u32> {
        collect(self.files.as_ref(), &self.cpuset, if self.version == Version::V2 { "cgroup.threads" } else { "tasks" })
    }
}

/// CPU time of one cgroup.
#[derive(Debug)]
pub struct Usage {
    version: Version,
    file: Gauge,
}

impl Usage {
    /// Used so far, microseconds.
    pub fn us(&mut self) -> Option<f64> {
        match self.version {
            Version::V2 => self.file.read(|t| t.lines().find_map(|l| l.strip_prefix("usage_usec ")?.trim().parse().ok())),
            Version::V1 => self.file.number().map(|ns| ns as f64 * 1e-3),
        }
    }
}

/// What an errno of a write to a cgroup file means; the same number says different things in different files.
fn meaning(file: &str, errno: i32) -> Option<&'static str> {
    Some(match (file, errno) {
        (_, libc::ENODEV | libc::ENOENT) => "the group has gone",
        (_, libc::EROFS) => "cgroups are mounted read-only here",
        ("cpuset.cpus" | "cpuset.mems", libc::ENOSPC) => "a group with processes needs at least one of them",
        ("cpuset.cpus" | "cpuset.mems", libc::EACCES | libc::EPERM) => {
            "the group above lacks some of them, or the right to write is missing"
        }
        ("cpuset.cpus" | "cpuset.mems", libc::EBUSY) => "a group below, or a task with a deadline, needs more than these",
        ("cpuset.cpus" | "cpuset.mems", libc::EINVAL | libc::ERANGE) => "not on this host, or exclusive to another group",
        ("cpuset.cpus.partition", libc::EINVAL | libc::EBUSY) => "this kernel cannot make this partition here",
        ("cpu.max" | "cpu.cfs_quota_us" | "cpu.cfs_period_us", libc::EINVAL) => {
            "a quota is at least 1 ms, a period 1 ms to 1 s, and on v1 no more than the group above has"
        }
        ("cpu.weight", libc::EINVAL | libc::ERANGE) => "a weight is 1 to 10000",
        ("memory.max" | "memory.high" | "memory.limit_in_bytes", libc::EBUSY) => "more than this is in use and cannot be reclaimed",
        ("memory.reclaim", libc::EAGAIN) => "less than this could be reclaimed",
        _ => return None,
    })
}

/// A list for the file `path` of a cgroup: what the group above can give of it now, and what it cannot; None where that is all or nothing.
pub(crate) fn parted(files: &dyn Files, path: &Path, list: &str) -> Option<(CpuSet, CpuSet)> {
    let (above, file) = (path.parent()?.parent()?, path.file_name()?.to_str()?);
    // v1 has its own list cut by the kernel; that of v2 may be empty.
    let there = text(files, above.join(format!("{file}.effective"))).or_else(|| text(files, above.join(file)))?;
    let (list, there) = (CpuSet::parse(list).ok()?, CpuSet::parse(&there).ok()?);
    let (fits, lacks) = (list.intersection(there), list.difference(there));
    (!fits.is_empty() && !lacks.is_empty()).then_some((fits, lacks))
}

/// True only where the kernel says that a path is not there.
pub fn absent(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

fn collect(files: &dyn Files, dir: &Path, file: &str) -> Vec<u32> {
    let mut all: Vec<u32> = text(files, dir.join(file)).unwrap_or_default().lines().filter_map(|l| l.trim().parse().ok()).collect();
    for name in files.folders(dir) {
        all.extend(collect(files, &dir.join(name), file));
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::root::tests::tree;

    /// A v1 host with one container `c` (process 42). Files only.
    pub(crate) fn v1() -> (tempfile::TempDir, Root) {
        let mut files: Vec<(String, String)> = vec![
            (
                "/proc/self/mountinfo".into(),
                ["cpu", "cpuset", "cpuacct"].map(|c| format!("30 1 0:2 / /sys/fs/cgroup/{c} rw - cgroup cgroup rw,{c}\n")).concat()
                    + "31 1 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("/sys/fs/cgroup/unified/cgroup.controllers".into(), "hugetlb\n".into()),
            ("/proc/42/cgroup".into(), "3:cpuset:/docker/c\n2:cpuacct:/docker/c\n1:cpu:/docker/c\n0::/\n".into()),
        ];
        for (f, text) in [
            ("cpu/docker/c/cpu.cfs_quota_us", "-1\n"),
            ("cpu/docker/c/cpu.cfs_period_us", "100000\n"),
            ("cpuset/docker/c/cpuset.cpus", "0-3\n"),
            ("cpuset/docker/c/tasks", "42\n43\n"),
            ("cpuset/docker/c/cgroup.procs", "42\n"),
            ("cpuset/docker/c/sub/cgroup.procs", "50\n"),
            ("cpuacct/docker/c/cpuacct.usage", "5000000\n"),
        ] {
            files.push((format!("/sys/fs/cgroup/{f}"), text.into()));
        }
        tree(&files)
    }

    pub(crate) fn v2() -> (tempfile::TempDir, Root) {
        let g = "/sys/fs/cgroup/app.slice/c";
        tree(&[
            ("/proc/self/mountinfo".into(), "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".into()),
            ("/sys/fs/cgroup/cgroup.controllers".into(), "cpuset cpu io memory\n".into()),
            ("/proc/42/cgroup".into(), "0::/app.slice/c\n".into()),
            (format!("{g}/cpuset.cpus"), "\n".into()),
            (format!("{g}/cpu.max"), "max 100000\n".into()),
            (format!("{g}/memory.max"), "max\n".into()),
            (format!("{g}/memory.zswap.max"), "max\n".into()),
            (format!("{g}/memory.high"), "max\n".into()),
            (format!("{g}/memory.current"), "8192\n".into()),
            (format!("{g}/memory.pressure"), "some avg10=1.50 avg60=0.00 avg300=0.00 total=9\n".into()),
            (format!("{g}/cpuset.mems"), "\n".into()),
            (format!("{g}/cpuset.cpus.effective"), "0-3\n".into()),
            (format!("{g}/cpuset.cpus.partition"), "member\n".into()),
            (format!("{g}/cpu.stat"), "usage_usec 777\nuser_usec 700\n".into()),
            (format!("{g}/cgroup.procs"), "42\n".into()),
        ])
    }

    /// v1: a hybrid host counts as v1; quota and period are one value; 0.3 cores are 3 ms in 10 ms.
    #[test]
    fn v1_quota_and_cpus() {
        let (_dir, root) = v1();
        let m = Mounts::read(&root);
        assert_eq!(m.version(), Some(Version::V1));
        let c = m.of_pid(&root, 42).unwrap();
        assert_eq!((c.get(Knob::Cpus).as_deref(), c.get(Knob::Quota).as_deref()), (Some("0-3"), Some("max 100000")));
        c.set(Knob::Quota, &quota_value(Some(0.3))).unwrap();
        assert_eq!(c.get(Knob::Quota).unwrap(), "3000 10000");
        c.set(Knob::Quota, "max 100000").unwrap();
        assert_eq!(c.read(c.cpu.join("cpu.cfs_quota_us")).unwrap(), "-1");
        c.set(Knob::Cpus, "1-2").unwrap();
        assert_eq!((c.pids(), c.tids(), c.usage().and_then(|mut u| u.us())), (vec![42, 50], vec![42, 43], Some(5000.0)));
        assert!(c.get(Knob::Memory).is_none() && c.writable() && !c.is_root(&m));
    }

    /// v2: `cpu.max` in one write; an empty list of CPUs is a value like any other.
    #[test]
    fn v2_quota_and_cpus() {
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        assert_eq!((c.version, c.get(Knob::Cpus).as_deref(), c.usage().and_then(|mut u| u.us())), (Version::V2, Some(""), Some(777.0)));
        c.set(Knob::Quota, &quota_value(Some(1.5))).unwrap();
        assert_eq!(c.read(c.cpu.join("cpu.max")).unwrap(), "15000 10000");
        c.set(Knob::Cpus, "0,2").unwrap();
        c.set(Knob::Cpus, "").unwrap();
        assert_eq!(c.get(Knob::Cpus).unwrap(), "");
        c.set(Knob::Memory, "4096").unwrap();
    }

    /// A quota that the kernel has stretched is the one that was asked for; any other ratio or period is another's.
    #[test]
    fn a_stretched_quota_is_the_same() {
        let same = |kept: &str| Knob::Quota.same("3000 10000", kept);
        for kept in ["3000 10000", "6000 20000", "12000 40000", "192000 640000", "3445 11484", "3956 13189"] {
            assert!(same(kept), "{kept}");
        }
        for kept in ["max 10000", "30000 100000", "6001 20000", "3000 20000", "1500 5000", "3446 11484", "3000", "", "x 10000"] {
            assert!(!same(kept), "{kept}");
        }
        assert!(!Knob::Quota.same("max 10000", "max 20000") && !Knob::Quota.same("0 10000", "0 20000"));
    }

    /// A value that the kernel does not keep is an error that names both.
    #[test]
    fn a_value_not_kept_is_an_error() {
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        // A device that swallows everything stands in for a kernel that ignores the write.
        let f = c.cpu.join("cpu.max");
        fs::remove_file(&f).unwrap();
        std::os::unix::fs::symlink("/dev/null", &f).unwrap();
        assert!(c.set(Knob::Quota, "1000 10000").is_err());
        assert!(Mounts::read(&Root::at("/nonexistent")).version().is_none());
    }

    /// v2 has memory nodes, a memory throttle, partitions and pressure; v1 has none of them, and says so by having no such knob.
    #[test]
    fn v2_has_more_knobs_than_v1() {
        let (_dir, root) = v2();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        for (knob, value) in [(Knob::Mems, "0-1"), (Knob::High, "1048576"), (Knob::Zswap, "0"), (Knob::Partition, "root")] {
            c.set(knob, value).unwrap();
            assert_eq!(c.get(knob).as_deref(), Some(value));
        }
        assert_eq!((c.memory_bytes(), c.zswap_bytes()), (Some(8192), None));
        assert_eq!(c.pressure(Resource::Memory).unwrap().some.avg10_pct, 1.5);
        assert_eq!(c.pressure(Resource::Io), None);
        assert_eq!(c.reclaim(1).unwrap_err().kind(), io::ErrorKind::NotFound);
        c.check_in_force("0-3").unwrap();
        assert!(c.check_in_force("4").unwrap_err().to_string().contains("in force is \"0-3\""));
        let (_dir, root) = v1();
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        assert!([Knob::Mems, Knob::High, Knob::Zswap, Knob::Partition].iter().all(|k| c.get(*k).is_none() && c.set(*k, "0").is_err()));
        assert!(c.pressure(Resource::Memory).is_none() && c.zswap_bytes().is_none() && c.reclaim(1).is_err());
    }

    /// An errno means what it means for that file, and only what changes is written.
    #[test]
    fn errors_are_explained_by_file_and_equal_values_not_written() {
        let (_dir, root) = v2();
        let files = crate::testing::Faulty::new(root.files.clone());
        let root = Root::with(root.path("/"), files.clone());
        let c = Mounts::read(&root).of_pid(&root, 42).unwrap();
        c.set(Knob::Quota, "max 100000").unwrap();
        assert_eq!(files.changes(), 0);
        for (knob, value, errno, meaning) in [
            (Knob::Cpus, "1", libc::ENOSPC, "needs at least one"),
            (Knob::Cpus, "1", libc::ENODEV, "the group has gone"),
            (Knob::Mems, "9", libc::EINVAL, "not on this host"),
            (Knob::Quota, "500 10000", libc::EINVAL, "at least 1 ms"),
            (Knob::Memory, "4096", libc::EBUSY, "cannot be reclaimed"),
            (Knob::Zswap, "4096", libc::EROFS, "read-only"),
            (Knob::Partition, "root", libc::EINVAL, "cannot make this partition"),
        ] {
            files.arm(BTreeMap::from([(0, errno)]));
            let e = c.set(knob, value).unwrap_err();
            assert_eq!(e.kind(), io::Error::from_raw_os_error(errno).kind());
            let file = c.file(knob).unwrap().display().to_string();
            assert!(e.to_string().contains(meaning) && e.to_string().contains(&file), "{e}");
            assert!(e.to_string().contains(&format!("os error {errno}")), "{e}");
        }
    }

    /// A mount that shows only a part of the hierarchy maps paths below that part.
    #[test]
    fn partial_mounts_are_mapped() {
        let at = (PathBuf::from("/cg"), "/docker/outer".to_string());
        assert_eq!(Mounts::below(Some(&at), "/docker/outer/in").unwrap(), PathBuf::from("/cg/in"));
        assert_eq!(Mounts::below(Some(&at), "/other"), None);
    }
}
