//! Whether groups of ours are as they were left, and how they become so again.
//!
//! What is compared is what the kernel showed when a setting came into force: no unit, no rounding and no resource that nobody here knows comes
//! between. CPUs and mode are those of a new group: none, and shareable.

use super::classes::{Place, Setting};
use super::refusal::{Attempt, Refusal};
use super::schemata::Schemata;
use super::Resctrl;
use std::path::Path;

/// Mode of every group of ours.
const SHAREABLE: &str = "shareable";

/// What can be other than it was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The group itself is not there.
    Class,
    Mode,
    /// Every task that runs on these CPUs would be in the group.
    Cpus,
    Schemata,
    Monitor,
    Threads,
}

impl Part {
    /// In metrics.
    pub fn name(self) -> &'static str {
        match self {
            Part::Class => "class",
            Part::Mode => "mode of its class",
            Part::Cpus => "CPUs of its class",
            Part::Schemata => "schemata of its class",
            Part::Monitor => "monitoring group",
            Part::Threads => "class of its threads",
        }
    }
}

/// A control group as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub schemata: Schemata,
    /// None where the kernel has no such file.
    pub mode: Option<String>,
    pub cpus: Option<String>,
}

impl Shown {
    /// What is not as it was left, in the order in which it is put back: schemata of an exclusive group may be refused. `left` is what its
    /// schemata showed.
    pub fn strayed(&self, left: &Schemata) -> Vec<Part> {
        let mode = self.mode.as_ref().is_some_and(|m| m != SHAREABLE);
        let cpus = self.cpus.as_ref().is_some_and(|c| !c.is_empty());
        let schemata = !left.lost_in(&self.schemata).is_empty();
        let all = [(mode, Part::Mode), (cpus, Part::Cpus), (schemata, Part::Schemata)];
        all.into_iter().filter(|(is, _)| *is).map(|(_, part)| part).collect()
    }

    /// For people.
    pub fn of(&self, part: Part, left: &Schemata) -> String {
        match part {
            Part::Mode => self.mode.clone().unwrap_or_default(),
            Part::Cpus => self.cpus.clone().unwrap_or_default(),
            // Of what was lost: what is there now.
            _ => self.schemata.lost_in(left).to_write().trim_end().replace('\n', " "),
        }
    }
}

impl Resctrl {
    /// A class of ours as it is; None where it is not there.
    pub fn shown(&self, class: &str) -> Option<Shown> {
        let dir = self.class_dir(class);
        let schemata = Schemata::parse(&self.read(dir.join("schemata"))?);
        Some(Shown { schemata, mode: self.read(dir.join("mode")), cpus: self.read(dir.join("cpus_list")) })
    }

    /// Ways and bandwidth that a class shows; None while domains are missing of those that it was set for.
    pub fn setting_shown(&self, shown: &Schemata, left: &Schemata) -> Option<Setting> {
        let ids = |s: &Schemata| self.info().domain_line().and_then(|l| s.line(l)).map(|l| l.keys().copied().collect::<Vec<u32>>());
        let domains = ids(shown)?;
        if Some(&domains) != ids(left).as_ref() {
            return None;
        }
        let mut setting = self.setting(shown, &domains);
        // Where CDP's two lines do not agree: what serves code and data alike, else whatever there is.
        for (ways, id) in setting.ways.iter_mut().zip(&domains).filter(|(w, _)| **w == 0) {
            let masks: Vec<u32> = self.info().l3.iter().flat_map(|l| l.lines).filter_map(|l| shown.mask(l, *id)).collect();
            let both = masks.iter().copied().reduce(|a, b| a & b).unwrap_or(0);
            *ways = if both == 0 { masks.iter().fold(0, |a, b| a | b) } else { both };
        }
        Some(setting)
    }

    /// One part of a class becomes again what it was left as. To be called under the lock.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn put_part_back(&self, class: &str, part: Part, shown: &Shown, left: &Schemata) -> Result<(), Refusal> {
        let dir = self.class_dir(class);
        match part {
            Part::Mode => self.put(&dir.join("mode"), &format!("{SHAREABLE}\n")),
            Part::Cpus => self.put(&dir.join("cpus_list"), "\n"),
            Part::Schemata => self.put(&dir.join("schemata"), &left.lost_in(&shown.schemata).to_write()),
            Part::Class | Part::Monitor | Part::Threads => Ok(()),
        }
    }

    /// Whether a service has counters of its own there.
    pub fn has_monitor(&self, id: &str, place: &Place) -> bool {
        self.files.is_dir(&self.monitor(id, place))
    }

    /// CPUs of a service's monitoring group: every task that runs on them is counted as the service. Given back; those that it had.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn free_monitor_of_cpus(&self, id: &str, place: &Place) -> Result<Option<String>, Refusal> {
        let file = self.monitor(id, place).join("cpus_list");
        let Some(cpus) = self.read(&file).filter(|c| !c.is_empty()) else { return Ok(None) };
        self.put(&file, "\n").map(|()| Some(cpus))
    }

    fn put(&self, path: &Path, text: &str) -> Result<(), Refusal> {
        let what = || format!("{} <- {:?}", path.display(), text.trim_end());
        self.files.write(path, text).map_err(|e| self.refused(Attempt::Schemata, what(), &e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that differs is lost, a domain that is not shown is not; what is written has bandwidth last and nothing else.
    #[test]
    fn only_what_differs_is_written() {
        let left = Schemata::parse("    MB:0=  50;1=  50\n    L3:0=00f;1=0f0\n    L2:0=ff;1=ff\n");
        let now = Schemata::parse("    MB:0= 100;1=  50\n    L3:0=00f;1=fff\n    L2:0=ff;1=ff\n");
        assert_eq!(left.lost_in(&now).to_write(), "L3:1=0f0\nMB:0=50\n");
        assert!(left.lost_in(&Schemata::parse("MB:0=50\nL3:0=f\n").clone()).to_write() == "L3:0=00f\n");
        assert!(left.lost_in(&Schemata::parse("MB:0=50\nL3:0=00f\n")).is_empty());
        let shown = Shown { schemata: now, mode: Some("exclusive".into()), cpus: Some("1-2".into()) };
        assert_eq!(shown.strayed(&left), [Part::Mode, Part::Cpus, Part::Schemata]);
        assert_eq!(shown.of(Part::Schemata, &left), "L3:1=fff MB:0=100");
        assert_eq!(Shown { schemata: left.clone(), ..Shown::default() }.strayed(&left), []);
    }
}
