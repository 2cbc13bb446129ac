//! A recording of a host's resctrl for the tests of this project (docs/give-a-recording.md): one text, which its giver can read.
//!
//! What must hold: nothing in it names the host, its groups, its tasks or what else it has mounted; the same tree gives the same text,
//! also while its counters move. So groups are numbered, lists of tasks are left out, and numbers of counters are 0. A file that says a
//! name of the host or of a group is left out, and told.
//!
//! The form is that of `resctrl/trees`: a line `== PATH` before the text of each file, remarks behind `#`.

use crate::resctrl::{Resctrl, PREFIX};
use crate::root::Root;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

const AT: &str = "sys/fs/resctrl";
const CPU: &str = "sys/devices/system/cpu";
/// Files of resctrl that say ids of tasks, or whatever a program wrote last.
const NEVER: [&str; 2] = ["tasks", "last_cmd_status"];
const MON_GROUPS: &str = "mon_groups";
const MON_DATA: &str = "mon_data";
/// Folders of a group that are no groups.
const OWN_FOLDERS: [&str; 3] = ["info", MON_DATA, MON_GROUPS];
const CPU_LISTS: [&str; 3] = ["online", "present", "possible"];
const TOPOLOGY: [&str; 5] = ["core_cpus_list", "thread_siblings_list", "physical_package_id", "die_id", "core_id"];
const CACHE: [&str; 7] = ["level", "type", "id", "size", "shared_cpu_list", "ways_of_associativity", "number_of_sets"];
const PER_CPU: [&str; 2] = ["cpufreq/cpuinfo_max_freq", "cpu_capacity"];
const KINDS: [&str; 3] = ["cpu_core", "cpu_atom", "cpu_lowpower"];
/// Lines of /proc/cpuinfo; others have a serial number, or a version that no test needs.
const CPUINFO: [&str; 6] = ["vendor_id", "cpu family", "model", "model name", "stepping", "flags"];
/// resctrl has four floors at most; a folder that is deeper is none of it.
const DEPTH: usize = 6;
/// No file of resctrl is longer by far.
const MOST_BYTES: usize = 64 << 10;

/// A file that is there and not in the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub path: String,
    pub why: String,
}

/// A recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub text: String,
    pub files: usize,
    pub groups: usize,
    pub left_out: Vec<LeftOut>,
}

/// Words of which none may be in a recording.
fn is_said(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    let apart = |c: Option<char>| c.is_none_or(|c| !part(c));
    // Names of one or two letters are in every hexadecimal number.
    word.len() > 2
        && text.match_indices(word).any(|(at, _)| apart(text[..at].chars().next_back()) && apart(text[at + word.len()..].chars().next()))
}

struct Recorder<'a> {
    root: &'a Root,
    resctrl: &'a Resctrl,
    /// Names of groups, of any floor, and what stands for each.
    names: BTreeMap<String, String>,
    /// Names of the host.
    host: Vec<String>,
    made: Recording,
}

impl Recorder<'_> {
    fn put(&mut self, path: &str, text: &str) {
        let _ = writeln!(self.made.text, "== {path}");
        self.made.text.push_str(text);
        if !text.ends_with('\n') {
            self.made.text.push('\n');
        }
        self.made.files += 1;
    }

    fn leave_out(&mut self, path: &str, why: &str) {
        self.made.left_out.push(LeftOut { path: path.into(), why: why.into() });
    }

    /// A file of the host by its path below the root; none where it is not there.
    fn host_file(&mut self, path: &str, kept: impl FnOnce(String) -> Option<String>) {
        if let Some(text) = self.root.read(format!("/{path}")).and_then(kept) {
            self.put(path, &text);
        }
    }

    /// Names for the groups below a folder, and below each of them.
    fn name_groups(&mut self, dir: &Path, letter: &str, depth: usize) {
        let folders = self.root.files.folders(dir);
        let groups = folders.into_iter().filter(|f| depth > 0 || !OWN_FOLDERS.contains(&f.as_str()));
        for (n, name) in (1..).zip(groups) {
            self.made.groups += 1;
            let ours = if name.starts_with(PREFIX) { PREFIX } else { "" };
            // The same name may stand on two floors: then it is the same word of the host's.
            self.names.entry(name.clone()).or_insert_with(|| format!("{ours}{letter}{n}"));
            if depth == 0 {
                self.name_groups(&dir.join(name).join(MON_GROUPS), "m", 1);
            }
        }
        if depth == 0 {
            self.name_groups(&dir.join(MON_GROUPS), "m", 1);
        }
    }

    /// A folder of resctrl with all that is in it; `path` as it stands in the recording.
    fn folder(&mut self, dir: &Path, path: &str, depth: usize) {
        let Ok(names) = self.root.files.list(dir) else {
            return self.leave_out(path, "cannot be read");
        };
        let own = path.contains("/info") || path.contains(MON_DATA);
        let shown = |name: &String| match self.names.get(name).filter(|_| !own && !OWN_FOLDERS.contains(&name.as_str())) {
            Some(ours) => ours.clone(),
            None => name.clone(),
        };
        // In the order of what is shown: the order of the names themselves would tell something of them.
        let all: BTreeMap<String, String> = names.iter().map(|n| (shown(n), n.clone())).collect();
        for (shown, name) in all {
            let (at, shown) = (dir.join(&name), format!("{path}/{shown}"));
            if self.root.files.is_dir(&at) {
                if depth < DEPTH {
                    self.folder(&at, &shown, depth + 1);
                }
            } else if !NEVER.contains(&name.as_str()) {
                self.file(&at, &shown);
            }
        }
    }

    fn file(&mut self, at: &Path, shown: &str) {
        let Ok(bytes) = self.root.files.read(at) else {
            return self.leave_out(shown, "cannot be read");
        };
        let Some(text) = String::from_utf8(bytes).ok().filter(|t| t.len() <= MOST_BYTES) else {
            return self.leave_out(shown, "is no text, or a long one");
        };
        let counts = shown.contains(MON_DATA) && text.trim().parse::<f64>().is_ok();
        if counts {
            return self.put(shown, "0");
        }
        if self.names.keys().any(|n| is_said(&text, n)) {
            return self.leave_out(shown, "says the name of a group");
        }
        if self.host.iter().any(|n| is_said(&text, n)) {
            return self.leave_out(shown, "says the name of this host");
        }
        if text.lines().any(|l| l.starts_with("== ") || l.starts_with('#')) {
            return self.leave_out(shown, "has a line that the form of recordings has a meaning for");
        }
        self.put(shown, &text);
    }

    /// What the kernel says of the processors, as far as the caches and the ways go by it.
    fn processors(&mut self) {
        let keep = |t: String| Some(t);
        for list in CPU_LISTS {
            self.host_file(&format!("{CPU}/{list}"), keep);
        }
        let numbered = |dir: &str, prefix: &str, root: &Root| {
            let names = root.files.folders(&root.path(format!("/{dir}")));
            let mut all: Vec<u32> = names.iter().filter_map(|n| n.strip_prefix(prefix)?.parse().ok()).collect();
            all.sort_unstable();
            all
        };
        for cpu in numbered(CPU, "cpu", self.root) {
            let at = format!("{CPU}/cpu{cpu}");
            for file in TOPOLOGY {
                self.host_file(&format!("{at}/topology/{file}"), keep);
            }
            for index in numbered(&format!("{at}/cache"), "index", self.root) {
                for file in CACHE {
                    self.host_file(&format!("{at}/cache/index{index}/{file}"), keep);
                }
            }
            for file in PER_CPU {
                self.host_file(&format!("{at}/{file}"), keep);
            }
        }
        for node in numbered("sys/devices/system/node", "node", self.root) {
            self.host_file(&format!("sys/devices/system/node/node{node}/cpulist"), keep);
        }
        for kind in KINDS {
            self.host_file(&format!("sys/devices/{kind}/cpus"), keep);
        }
        self.host_file("proc/cpuinfo", |t| Some(one_processor(&t)));
        // A kernel of one's own may be named after its maker.
        self.host_file("proc/sys/kernel/osrelease", |t| {
            Some(t.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default().trim_end_matches('.').into())
        });
        self.host_file("proc/cmdline", |t| {
            let rdt: Vec<&str> = t.split_whitespace().filter(|w| w.starts_with("rdt=")).collect();
            (!rdt.is_empty()).then(|| rdt.join(" "))
        });
    }
}

/// The first processor of /proc/cpuinfo, by the lines that are known.
fn one_processor(text: &str) -> String {
    let first = text.split("\n\n").next().unwrap_or_default();
    let known = |l: &&str| l.split_once(':').is_some_and(|(key, _)| CPUINFO.contains(&key.trim()));
    first.lines().filter(known).fold(String::new(), |all, l| all + l + "\n")
}

/// The recording of a host whose resctrl is mounted.
pub fn recording(root: &Root, resctrl: &Resctrl) -> Recording {
    let host = ["/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/etc/hostname"];
    let names = host.iter().filter_map(|f| root.read(f)).flat_map(|name| {
        let short = name.split('.').next().unwrap_or_default().to_string();
        [name, short]
    });
    // What the kernel has where there is no name.
    let host = names.filter(|n| n != "(none)" && n != "localhost").collect();
    let mut r = Recorder { root, resctrl, names: BTreeMap::new(), host, made: Recording::default() };
    r.made.text = "# A tree of resctrl, made by `surefootd check --pack-tree` (docs/give-a-recording.md). Groups are numbered; lists of tasks, the last\n\
                   # status and the host's names are left out; numbers of counters are 0.\n"
        .into();
    let dir = resctrl.dir().to_path_buf();
    r.name_groups(&dir, "g", 0);
    let options = r.resctrl.info().options.clone();
    let kind = if resctrl.is_stand_in() { "fuse.resctrl" } else { "resctrl" };
    r.put("proc/mounts", &format!("resctrl /{AT} {kind} {options} 0 0"));
    r.folder(&dir, AT, 0);
    r.processors();
    r.made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::discover_with;
    use crate::resctrl::testing::unpacked;
    use crate::root::tests::{put, tree};

    const MINE: &str = "surefoot.billing-db";

    /// A host that says names wherever it can.
    fn host() -> (tempfile::TempDir, Root) {
        let mut files: Vec<(String, String)> = vec![];
        let mut file = |path: &str, text: &str| files.push((path.into(), format!("{text}\n")));
        file("/proc/mounts", "resctrl /srv/acme/rdt resctrl rw,relatime,cdp 0 0\n/dev/sdb1 /srv/acme ext4 rw 0 0");
        file("/proc/sys/kernel/hostname", "db7.acme.example");
        file("/proc/sys/kernel/osrelease", "6.12.4-acme1");
        file("/proc/cmdline", "root=UUID=4711 rdt=l3cat,!mba quiet");
        file("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Some CPU\nSerial\t: 0badcafe\nflags\t: cat_l3 cdp_l3\n\nprocessor\t: 1");
        for cpu in 0..2 {
            let at = format!("/sys/devices/system/cpu/cpu{cpu}");
            for (name, text) in [("level", "3"), ("id", "0"), ("size", "11264K"), ("shared_cpu_list", "0-1")] {
                file(&format!("{at}/cache/index3/{name}"), text);
            }
            file(&format!("{at}/topology/core_cpus_list"), &cpu.to_string());
        }
        file("/sys/devices/system/cpu/online", "0-1");
        for (path, text) in [
            ("info/L3CODE/cbm_mask", "7ff"),
            ("info/L3CODE/min_cbm_bits", "1"),
            ("info/L3CODE/num_closids", "8"),
            ("info/L3DATA/cbm_mask", "7ff"),
            ("info/L3DATA/num_closids", "8"),
            ("info/L3_MON/mon_features", "llc_occupancy"),
            ("info/L3_MON/num_rmids", "16"),
            ("info/L3_MON/new_in_7", "billing-web=1"),
            ("info/L3_MON/newer", "of db7"),
            ("info/last_cmd_status", "no such task 4711 in billing-web"),
        ] {
            file(&format!("/srv/acme/rdt/{path}"), text);
        }
        for group in
            ["", "billing-web/", "surefoot.billing-db/", "billing-web/mon_groups/alice/", "surefoot.billing-db/mon_groups/surefoot.bob/"]
        {
            let at = format!("/srv/acme/rdt/{group}");
            file(&format!("{at}tasks"), "4711\n4712");
            file(&format!("{at}cpus_list"), "0-1");
            file(&format!("{at}mon_data/mon_L3_00/llc_occupancy"), "123456");
            if !group.contains("mon_groups") {
                file(&format!("{at}schemata"), "L3CODE:0=7ff\nL3DATA:0=0ff");
                file(&format!("{at}mode"), "shareable");
            }
        }
        file("/srv/acme/rdt/billing-web/mon_data/mon_L3_00/mbm_total_bytes", "Unavailable");
        tree(&files)
    }

    fn recorded(root: &Root) -> Recording {
        recording(root, &Resctrl::find(root).unwrap())
    }

    /// No name of the host, of a group, a user, a mount or a firm is in it, and no number of a task.
    #[test]
    fn it_names_nobody() {
        let (_dir, root) = host();
        let made = recorded(&root);
        for word in ["acme", "db7", "billing", "alice", "bob", "471", "0badcafe", "sdb1", "quiet", "123456", "/srv", "tasks\n", "last_cmd"]
        {
            assert!(!made.text.contains(word), "{word}: {}", made.text);
        }
        let left: Vec<(&str, &str)> = made.left_out.iter().map(|l| (l.path.as_str(), l.why.as_str())).collect();
        assert_eq!(
            left,
            [
                ("sys/fs/resctrl/info/L3_MON/new_in_7", "says the name of a group"),
                ("sys/fs/resctrl/info/L3_MON/newer", "says the name of this host"),
            ]
        );
        assert_eq!(made.groups, 4);
    }

    /// What the tests need of it is there: ours are told from others, words of counters stay, the kernel and the options are said.
    #[test]
    fn it_says_what_readers_need() {
        let (_dir, root) = host();
        let text = recorded(&root).text;
        for line in [
            "== sys/fs/resctrl/g1/schemata\nL3CODE:0=7ff\nL3DATA:0=0ff\n",
            "== sys/fs/resctrl/surefoot.g2/mon_groups/surefoot.m1/mon_data/mon_L3_00/llc_occupancy\n0\n",
            "== sys/fs/resctrl/g1/mon_data/mon_L3_00/mbm_total_bytes\nUnavailable\n",
            "== proc/mounts\nresctrl /sys/fs/resctrl resctrl rw,relatime,cdp 0 0\n",
            "== proc/sys/kernel/osrelease\n6.12.4\n",
            "== proc/cmdline\nrdt=l3cat,!mba\n",
            "== proc/cpuinfo\nvendor_id\t: GenuineIntel\nmodel name\t: Some CPU\nflags\t: cat_l3 cdp_l3\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    /// The same tree gives the same bytes, whatever its counters and tasks do, and whatever its groups are called while their order stays.
    #[test]
    fn the_same_tree_gives_the_same_bytes() {
        let (dir, root) = host();
        let before = recorded(&root);
        put(&root, "/srv/acme/rdt/mon_data/mon_L3_00/llc_occupancy", "9");
        put(&root, "/srv/acme/rdt/tasks", "8\n9\n");
        let at = dir.path().join("srv/acme/rdt");
        std::fs::rename(at.join(MINE), at.join("surefoot.other")).unwrap();
        assert_eq!(recorded(&root), before);
    }

    /// What is read from an unpacked recording is what is read from the host: caches, ways, classes, what groups hold.
    #[test]
    fn an_unpacked_recording_reads_as_the_host() {
        let (_dir, root) = host();
        let (_there, copy) = unpacked(&recorded(&root).text);
        let (a, b) = (Resctrl::find(&root).unwrap(), Resctrl::find(&copy).unwrap());
        assert_eq!(a.info(), b.info());
        let platform = |root: &Root, r: &Resctrl| discover_with(root, None, Some(r)).unwrap().platform;
        assert_eq!(platform(&root, &a), platform(&copy, &b));
        assert_eq!(platform(&copy, &b).ways(), 11);
        let (mine, theirs) = (a.survey().unwrap(), b.survey().unwrap());
        assert_eq!((mine.foreign.len(), mine.layout.classes.len()), (theirs.foreign.len(), theirs.layout.classes.len()));
        assert_eq!(theirs.foreign, ["g1"]);
        // A recording of the recording is the recording.
        assert_eq!(recorded(&copy).text, recorded(&root).text);
    }

    /// A group that is called as a word of the kernel's takes no known file away, and a form that could not be read back is not written.
    #[test]
    fn what_cannot_be_told_is_left_out() {
        let (_dir, root) = host();
        put(&root, "/srv/acme/rdt/ff/schemata", "L3CODE:0=ff\n");
        put(&root, "/srv/acme/rdt/info/L3_MON/odd", "== x\n");
        let made = recorded(&root);
        assert!(made.text.contains("/info/L3CODE/cbm_mask\n7ff\n"), "{}", made.text);
        assert!(made.left_out.iter().any(|l| l.path.ends_with("/odd")), "{:?}", made.left_out);
        assert!(is_said("a billing b", "billing") && !is_said("billings", "billing") && !is_said("0=ff", "ff"));
    }
}
