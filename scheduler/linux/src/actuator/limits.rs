//! What no write may take from others. The allow-list says which files may be written at all; here is what a value must not do to cgroups and
//! groups of resctrl that the configuration does not name.
//!
//! | file | what could be taken | rule |
//! | --- | --- | --- |
//! | `cpuset.cpus` | CPUs that others have by name, where the group is a partition | only those that it had, and those of `cpus` in node.toml |
//! | `cpuset.cpus.partition` | its CPUs, from everybody | only with `partitions = true`, CPUs of `cpus`, and none that a group of others names |
//! | `cpu.weight`, `cpu.shares` | a share of contested CPU time | no more than it had |
//! | `schemata` | ways, where the group is exclusive | only of shareable groups |
//! | groups | classes and monitoring ids | so many a service, and so many a second |
//!
//! Quotas, memory limits and memory nodes bound the group itself; `memory.reclaim` takes from it alone.

use super::allow::{Allow, Refused};
use super::record::Key;
use crate::cgroup::{Cgroup, Knob, Mounts, Version};
use crate::discover::default_managed;
use crate::files::{text, SharedFiles};
use std::io;
use std::path::Path;
use std::time::Instant;
use surefoot_server::CpuSet;

fn refuse<T>(rule: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(rule.into()))
}

/// Groups that are looked through for CPUs of others.
const MOST_GROUPS: usize = 16 << 10;
const DEPTH: usize = 32;

/// Looks before a value is written.
pub struct Watchful<'a> {
    pub allow: &'a Allow,
    pub files: &'a SharedFiles,
    pub mounts: &'a Mounts,
}

impl Watchful<'_> {
    /// # Errors
    /// The rule that refuses it. `former`: what the file had before its first write, where that is known.
    pub fn value(&self, key: &Key, group: &Cgroup, value: &str, former: Option<&str>) -> Result<(), Refused> {
        match key.knob {
            Knob::Cpus => self.cpus(key, group, value, former),
            Knob::Weight => match (value.parse::<u64>(), former.and_then(|f| f.parse::<u64>().ok())) {
                (Ok(v), Some(had)) if v > had => refuse(format!("a weight above the {had} that the group had takes CPU time from others")),
                _ => Ok(()),
            },
            Knob::Partition if value != "member" => {
                let was = former.and_then(|f| f.split(' ').next()) == Some(value);
                if value != "root" && !was {
                    return refuse("only partitions of kind root are made");
                }
                let cpus = group.get(Knob::Cpus).and_then(|c| CpuSet::parse(&c).ok()).unwrap_or_default();
                if was {
                    return Ok(());
                }
                self.may_be_alone(&key.dir, cpus)
            }
            _ => Ok(()),
        }
    }

    fn cpus(&self, key: &Key, group: &Cgroup, value: &str, former: Option<&str>) -> Result<(), Refused> {
        let Ok(cpus) = CpuSet::parse(value) else { return refuse("the value is no list of CPUs") };
        let had = former.and_then(|f| CpuSet::parse(f).ok());
        if had == Some(cpus) {
            return Ok(());
        }
        if let (Some(own), Some(had)) = (self.own_cpus(), had) {
            // An empty list stands for all that there are.
            let any = had.is_empty();
            let more = cpus.difference(own).difference(had);
            if !any && cpus.is_empty() {
                return refuse("an empty list stands for all CPUs, and the group did not have them");
            }
            if !any && !more.is_empty() {
                return refuse(format!("CPUs {more} are neither among `cpus` of the configuration nor did the group have them"));
            }
        }
        // Whatever it is called: a partition that is invalid may become valid by this.
        let partition = (group.version == Version::V2).then(|| group.get(Knob::Partition)).flatten();
        match partition.as_deref() {
            None | Some("member") => Ok(()),
            Some(_) if !self.allow.terms().partitions => refuse(
                "the group is a CPU partition: its CPUs are taken from everybody, and the configuration does not say partitions = true",
            ),
            Some(_) => self.may_be_alone(&key.dir, cpus),
        }
    }

    /// CPUs for services: those of the configuration, else all that there are now but the last, as the daemon takes them.
    fn own_cpus(&self) -> Option<CpuSet> {
        let all = || {
            let (v2, v1) =
                (self.mounts.dir("").map(|m| m.join("cpuset.cpus.effective")), self.mounts.dir("cpuset").map(|m| m.join("cpuset.cpus")));
            let said = [v2, v1].into_iter().flatten().find_map(|f| text(self.files.as_ref(), f));
            said.and_then(|t| CpuSet::parse(&t).ok()).filter(|c| !c.is_empty())
        };
        self.allow.terms().cpus.or_else(|| all().map(|a| default_managed(&a)))
    }

    /// That these CPUs may be taken from everybody else.
    fn may_be_alone(&self, dir: &Path, cpus: CpuSet) -> Result<(), Refused> {
        let Some(own) = self.own_cpus() else { return refuse("no CPUs are known that may be taken from everybody") };
        if cpus.is_empty() || !cpus.is_subset(&own) {
            return refuse(format!(
                "a partition of CPUs {cpus}: only CPUs {own} (`cpus` of the configuration) may be taken from everybody"
            ));
        }
        let Some(mount) = self.mounts.dir("") else { return refuse("cgroup v2 is not mounted here") };
        let mut left = MOST_GROUPS;
        match self.holder(mount, dir, cpus, DEPTH, &mut left) {
            Some(holder) => refuse(format!("a partition of CPUs {cpus}: {holder} has some of them by name")),
            None if left == 0 => refuse("there are too many cgroups to see who has these CPUs"),
            None => Ok(()),
        }
    }

    /// A group of others below `at` that names one of these CPUs, other than `group` and those above it.
    fn holder(&self, at: &Path, group: &Path, cpus: CpuSet, depth: usize, left: &mut usize) -> Option<String> {
        for name in self.files.folders(at) {
            *left = left.checked_sub(1).filter(|_| depth > 0).unwrap_or(0);
            if *left == 0 {
                return None;
            }
            let dir = at.join(name);
            // A group of the configuration, with what is in it, is the client's to place.
            if dir == group || self.allow.names(&dir) {
                continue;
            }
            let above = group.starts_with(&dir);
            let named = || text(self.files.as_ref(), dir.join("cpuset.cpus")).and_then(|t| CpuSet::parse(&t).ok());
            if !above && named().is_some_and(|n| !n.intersection(cpus).is_empty()) {
                return Some(dir.display().to_string());
            }
            if let Some(found) = self.holder(&dir, group, cpus, depth - 1, left) {
                return Some(found);
            }
        }
        None
    }

    /// # Errors
    /// For the schemata of a group whose ways nobody else may have.
    pub fn ways(&self, schemata: &Path) -> Result<(), Refused> {
        let mode = schemata.parent().and_then(|group| text(self.files.as_ref(), group.join("mode")));
        match mode.as_deref() {
            None | Some("shareable") => Ok(()),
            Some(mode) => refuse(format!("the group is {mode}: what it has nobody else can get")),
        }
    }
}

/// How many groups of resctrl may be made: classes and monitoring ids are few, and one that was freed is not free at once.
#[derive(Debug)]
pub struct Making {
    services: Option<usize>,
    tokens: f64,
    last: Option<Instant>,
}

/// Groups that may be made in a second, on the average: an id that was freed may wait for seconds.
const PER_S: f64 = 2.0;

impl Making {
    /// `services`: how many there are at most; None: no bound.
    pub fn new(services: Option<usize>) -> Self {
        Making { services, tokens: Self::most(services), last: None }
    }

    /// Each service anew, class and counters, and that twice in a row.
    fn most(services: Option<usize>) -> f64 {
        (4 * services.unwrap_or(0) + 4) as f64
    }

    /// Whether another may be made, where there are so many control groups and monitoring groups of ours.
    ///
    /// # Errors
    /// `ENOSPC` where there are two of each for every service, `EBUSY` where too many were made just now: as the kernel says it of classes and
    /// monitoring ids, so that a client does what it does then.
    pub fn may(&mut self, now: Instant, count: impl FnOnce() -> (usize, usize)) -> io::Result<()> {
        let Some(services) = self.services else { return Ok(()) };
        let since = self.last.replace(now).map_or(0.0, |last| now.duration_since(last).as_secs_f64());
        self.tokens = (self.tokens + since * PER_S).min(Self::most(self.services));
        if self.tokens < 1.0 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let (controls, monitors) = count();
        // A class is made before another goes, and a service has its new counters before the old ones go.
        let most = 2 * services.max(1);
        if controls >= most || monitors >= most {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(())
    }

    /// One was.
    pub fn made(&mut self) {
        self.tokens -= 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Two control groups and two monitoring groups for each service; and no more than two in a second once the store is used up.
    #[test]
    fn making_is_bounded_in_number_and_rate() {
        let t = Instant::now();
        let mut m = Making::new(Some(2));
        let errno = |r: io::Result<()>| r.err().and_then(|e| e.raw_os_error());
        assert_eq!(errno(m.may(t, || (3, 3))), None);
        assert_eq!((errno(m.may(t, || (4, 0))), errno(m.may(t, || (0, 4)))), (Some(libc::ENOSPC), Some(libc::ENOSPC)));
        let mut made = 0;
        while m.may(t, || (0, 0)).is_ok() {
            m.made();
            made += 1;
        }
        assert_eq!((made, errno(m.may(t, || (0, 0)))), (12, Some(libc::EBUSY)));
        for s in 1..100 {
            let now = t + Duration::from_secs(s);
            while m.may(now, || (0, 0)).is_ok() {
                m.made();
                made += 1;
            }
        }
        assert_eq!(made, 12 + 2 * 99);
        assert!(Making::new(None).may(t, || (1000, 1000)).is_ok());
    }
}
