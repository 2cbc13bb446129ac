//! The machine that a test runs on, and resctrl on it as the kernel shows it: nothing here goes through the code under test.

use crate::support::{read, write};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub const RESCTRL: &str = "/sys/fs/resctrl";

/// What `MB` lines are in, without mount options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bandwidth {
    None,
    Percent,
    EighthsOfGb,
}

/// One of the configurations of scripts/vm/rdt-vm.sh: what its hardware was given.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    pub name: &'static str,
    pub cpus: u32,
    pub l3_domains: usize,
    pub ways: u32,
    pub bandwidth: Bandwidth,
    /// Classes of the file system: the least over its resources.
    pub classes: u32,
    pub classes_with_cdp: u32,
    pub rmids: u32,
}

const INTEL: Machine =
    Machine { name: "one", cpus: 4, l3_domains: 1, ways: 20, bandwidth: Bandwidth::Percent, classes: 8, classes_with_cdp: 8, rmids: 176 };

pub const MACHINES: [Machine; 5] = [
    INTEL,
    Machine { name: "two", cpus: 8, l3_domains: 2, ..INTEL },
    Machine { name: "e5", bandwidth: Bandwidth::None, classes: 16, rmids: 144, ..INTEL },
    Machine { name: "icx11", cpus: 8, l3_domains: 2, ways: 11, rmids: 224, ..INTEL },
    Machine { name: "amd", cpus: 8, l3_domains: 2, ways: 16, bandwidth: Bandwidth::EighthsOfGb, classes: 16, rmids: 256, ..INTEL },
];

impl Machine {
    /// This one, by the processor that the kernel sees. A name on the kernel's command line must be the same.
    pub fn here() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let of = |key: &str| cpuinfo.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix(": ")).unwrap_or_default();
        let cpus = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
        let ways = read("/sys/devices/system/cpu/cpu0/cache/index3/ways_of_associativity");
        let name = match (of("vendor_id"), of("model\t"), ways.as_str()) {
            ("AuthenticAMD", _, "16") => "amd",
            (_, "79", "20") => "e5",
            (_, "106", "11") => "icx11",
            (_, "106", "20") if cpus == 4 => "one",
            (_, "106", "20") => "two",
            other => panic!("{other:?} with {cpus} CPUs is no machine of scripts/vm/rdt-vm.sh"),
        };
        let asked = read("/proc/cmdline").split(' ').find_map(|w| w.strip_prefix("surefoot.config=")).map(str::to_string);
        assert!(asked.as_deref().is_none_or(|a| a == name), "asked for {asked:?}, but this is {name}");
        MACHINES.into_iter().find(|m| m.name == name).unwrap()
    }
}

/// Options that resctrl is mounted with, of those that change it; None where it is not mounted.
pub fn mounted() -> Option<String> {
    let mounts = read("/proc/mounts");
    let options = mounts.lines().find_map(|l| {
        let words: Vec<&str> = l.split(' ').collect();
        (words[1] == RESCTRL && words[2] == "resctrl").then(|| words[3].to_string())
    })?;
    Some(options.split(',').filter(|o| ["cdp", "mba_MBps"].contains(o)).collect::<Vec<_>>().join(","))
}

/// Options that the runner mounted resctrl with.
pub fn options() -> String {
    mounted().expect("resctrl is not mounted")
}

/// Groups of the node that a test leaves when it fails are none of the next test's.
pub struct NothingLeft;

impl Drop for NothingLeft {
    fn drop(&mut self) {
        for folder in [RESCTRL.to_string(), format!("{RESCTRL}/mon_groups")] {
            for e in fs::read_dir(folder).into_iter().flatten().flatten() {
                if e.file_name().to_string_lossy().starts_with("surefoot.") {
                    let _ = fs::remove_dir(e.path());
                }
            }
        }
    }
}

/// A group of somebody else, gone after the test.
pub struct Other(pub PathBuf);

impl Other {
    /// `name` may be a monitoring group: "mon_groups/NAME".
    pub fn make(name: &str) -> std::io::Result<Other> {
        let path = Path::new(RESCTRL).join(name);
        fs::create_dir(&path).map(|()| Other(path))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// `group` "" is the default one.
pub fn file(group: &str, name: &str) -> PathBuf {
    Path::new(RESCTRL).join(group).join(name)
}

/// Values of a line of a group's schemata, by domain.
pub fn values(group: &str, line: &str) -> BTreeMap<u32, String> {
    values_in(&read(file(group, "schemata")), line)
}

fn values_in(schemata: &str, line: &str) -> BTreeMap<u32, String> {
    let of = schemata.lines().find_map(|l| l.trim().strip_prefix(line)?.strip_prefix(':'));
    let pair = |p: &str| p.split_once('=').map(|(d, v)| (d.trim().parse().unwrap(), v.trim().to_string())).unwrap();
    of.map(|l| l.split(';').map(pair).collect()).unwrap_or_default()
}

/// Masks of every domain, in order; both lines of CDP must say the same.
pub fn masks(group: &str) -> Vec<u32> {
    // Read once: a plan may come between two readings.
    let text = read(file(group, "schemata"));
    let of = |line: &str| -> Vec<u32> { values_in(&text, line).values().map(|v| u32::from_str_radix(v, 16).unwrap()).collect() };
    if mounted().is_some_and(|o| o.contains("cdp")) {
        assert_eq!(of("L3CODE"), of("L3DATA"), "{group}");
        of("L3CODE")
    } else {
        of("L3")
    }
}

/// Bandwidth of every domain, in the kernel's unit; empty without MBA.
pub fn bandwidth(group: &str) -> Vec<u64> {
    values(group, "MB").values().map(|v| v.parse().unwrap()).collect()
}

pub fn set(group: &str, schemata: &str) {
    write(file(group, "schemata"), &format!("{schemata}\n")).unwrap();
}

/// Groups that a thread is in, as the kernel names them: "res:NAME mon:NAME"; None where it has ended.
pub fn groups_of(tid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{tid}/cpu_resctrl_groups")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Every group with what is set in it; counters, tasks and the log of commands apart.
pub fn tree() -> BTreeMap<PathBuf, String> {
    fn walk(dir: &Path, all: &mut BTreeMap<PathBuf, String>) {
        for e in fs::read_dir(dir).unwrap().map(|e| e.unwrap()) {
            let (path, name) = (e.path(), e.file_name().to_string_lossy().into_owned());
            if e.metadata().unwrap().is_dir() {
                if !["info", "mon_data"].contains(&name.as_str()) {
                    all.insert(path.clone(), "folder".into());
                    walk(&path, all);
                }
            } else if ["schemata", "mode", "cpus"].contains(&name.as_str()) {
                all.insert(path.clone(), read(&path));
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(Path::new(RESCTRL), &mut all);
    all
}
