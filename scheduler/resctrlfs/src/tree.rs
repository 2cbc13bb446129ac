//! The tree of files: names, modes, owners. What a file shows and takes is in `show` and `command`.

use crate::errno::{Errno, Result};
use crate::hardware::Kernel;
use crate::machine::{Caller, GroupId, Machine, Schema, DEFAULT};
use crate::rmid::Event;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};

/// A file or directory, never used twice; the inode number.
pub type Node = u64;
/// The mount point.
pub const ROOT: Node = 1;

/// Mode bits, owner and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A directory's meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dir {
    Group(GroupId),
    MonGroups(GroupId),
    MonData(GroupId),
    /// One L3 domain (by index) of a group's `mon_data`.
    MonDomain(GroupId, usize),
    Info,
    InfoOf,
}

/// A file's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    Cpus(GroupId),
    CpusList(GroupId),
    Mode(GroupId),
    Schemata(GroupId),
    Size(GroupId),
    Tasks(GroupId),
    CtrlHwId(GroupId),
    MonHwId(GroupId),
    Counter(GroupId, usize, Event),
    Info(InfoFile),
    LastStatus,
}

/// A file below `info/RESOURCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoFile {
    /// With the masks that it speaks of: 0 is L3 or L3DATA, 1 is L3CODE.
    BitUsage(usize),
    CbmMask,
    MinCbmBits,
    NumClosids(u32),
    ShareableBits,
    SparseMasks,
    BandwidthGran,
    DelayLinear,
    MinBandwidth,
    ThrottleMode,
    Threshold,
    MonFeatures,
    NumRmids,
}

impl File {
    pub(crate) fn writable(self) -> bool {
        matches!(
            self,
            Self::Cpus(_) | Self::CpusList(_) | Self::Mode(_) | Self::Schemata(_) | Self::Tasks(_) | Self::Info(InfoFile::Threshold)
        )
    }
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Dir(Dir),
    File(File),
}

#[derive(Clone, Debug)]
struct Entry {
    parent: Node,
    name: OsString,
    what: What,
    attr: Attr,
    children: BTreeMap<OsString, Node>,
}

/// Names and attributes of one mount.
#[derive(Clone, Debug)]
pub struct Tree {
    entries: BTreeMap<Node, Entry>,
    next: Node,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root = Entry {
            parent: ROOT,
            name: OsString::new(),
            what: What::Dir(Dir::Group(DEFAULT)),
            attr: Attr { mode: 0o555, uid: 0, gid: 0 },
            children: BTreeMap::new(),
        };
        Self { entries: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    fn entry(&self, node: Node) -> Result<&Entry> {
        self.entries.get(&node).ok_or(Errno::ENODEV)
    }

    /// # Errors
    /// ENODEV once it is removed.
    pub fn what(&self, node: Node) -> Result<&What> {
        Ok(&self.entry(node)?.what)
    }

    /// # Errors
    /// ENODEV once it is removed.
    pub fn attr(&self, node: Node) -> Result<Attr> {
        Ok(self.entry(node)?.attr)
    }

    pub(crate) fn attr_mut(&mut self, node: Node) -> Result<&mut Attr> {
        self.entries.get_mut(&node).map(|e| &mut e.attr).ok_or(Errno::ENODEV)
    }

    pub fn child(&self, parent: Node, name: &OsStr) -> Option<Node> {
        self.entries.get(&parent)?.children.get(name).copied()
    }

    /// # Errors
    /// ENODEV once it is removed.
    pub fn parent(&self, node: Node) -> Result<Node> {
        Ok(self.entry(node)?.parent)
    }

    /// Names and nodes in a directory, sorted by name.
    ///
    /// # Errors
    /// ENODEV once it is removed, ENOTDIR.
    pub fn list(&self, node: Node) -> Result<Vec<(OsString, Node)>> {
        let e = self.entry(node)?;
        match e.what {
            What::Dir(_) => Ok(e.children.iter().map(|(n, c)| (n.clone(), *c)).collect()),
            What::File(_) => Err(Errno::ENOTDIR),
        }
    }

    /// Hard links, as stat(2) counts them.
    ///
    /// # Errors
    /// ENODEV once it is removed.
    pub fn links(&self, node: Node) -> Result<u32> {
        let e = self.entry(node)?;
        let is_dir = |n: &Node| matches!(self.entries.get(n).map(|e| &e.what), Some(What::Dir(_)));
        Ok(if is_dir(&node) { 2 + e.children.values().filter(|c| is_dir(c)).count() as u32 } else { 1 })
    }

    pub(crate) fn add(&mut self, parent: Node, name: &OsStr, what: What, attr: Attr) -> Result<Node> {
        let node = self.next;
        let up = self.entries.get_mut(&parent).ok_or(Errno::ENODEV)?;
        up.children.insert(name.to_os_string(), node);
        self.entries.insert(node, Entry { parent, name: name.to_os_string(), what, attr, children: BTreeMap::new() });
        self.next += 1;
        Ok(node)
    }

    /// With all that is below it.
    pub(crate) fn remove(&mut self, node: Node) {
        let Some(e) = self.entries.remove(&node) else { return };
        if let Some(up) = self.entries.get_mut(&e.parent) {
            up.children.remove(&e.name);
        }
        for child in e.children.values() {
            self.remove(*child);
        }
    }

    pub(crate) fn rename(&mut self, node: Node, to: Node, name: &OsStr) -> Result<()> {
        let e = self.entries.get_mut(&node).ok_or(Errno::ENODEV)?;
        let (old_parent, old_name) = (e.parent, std::mem::replace(&mut e.name, name.to_os_string()));
        e.parent = to;
        if let Some(up) = self.entries.get_mut(&old_parent) {
            up.children.remove(&old_name);
        }
        self.entries.get_mut(&to).ok_or(Errno::ENODEV)?.children.insert(name.to_os_string(), node);
        Ok(())
    }
}

impl Machine {
    /// The tree; ENOENT while nothing is mounted.
    ///
    /// # Errors
    /// ENOENT.
    pub fn tree(&self) -> Result<&Tree> {
        Ok(&self.mounted()?.tree)
    }

    /// The node of a path below the mount point.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EACCES without the right to search a directory on the way.
    pub fn resolve(&self, path: &Path, who: Caller) -> Result<Node> {
        let mut at = ROOT;
        for part in path.components() {
            let Component::Normal(name) = part else { return Err(Errno::EINVAL) };
            if let What::File(_) = self.tree()?.what(at)? {
                return Err(Errno::ENOTDIR);
            }
            self.may(at, 0o1, who)?;
            at = self.tree()?.child(at, name).ok_or(Errno::ENOENT)?;
        }
        self.tree()?;
        Ok(at)
    }

    /// Change mode (the lowest 12 bits), owner or group.
    ///
    /// # Errors
    /// EPERM for others than the owner and root, ENODEV, EROFS.
    pub fn set_attr(&mut self, node: Node, mode: Option<u32>, uid: Option<u32>, gid: Option<u32>, who: Caller) -> Result<Attr> {
        let owner = self.tree()?.attr(node)?.uid;
        if who.uid != 0 && (who.uid != owner || uid.is_some_and(|u| u != owner)) {
            return Err(Errno::EPERM);
        }
        let a = self.mounted_mut()?.tree.attr_mut(node)?;
        a.mode = mode.map_or(a.mode, |m| m & 0o7777);
        a.uid = uid.unwrap_or(a.uid);
        a.gid = gid.unwrap_or(a.gid);
        Ok(*a)
    }

    /// `name` in `parent`, owned like it, a directory with its mode.
    fn plant(&mut self, parent: Node, name: &str, what: What) -> Node {
        let Ok(m) = self.mounted_mut() else { return ROOT };
        let Ok(up) = m.tree.attr(parent) else { return ROOT };
        let mode = match &what {
            What::Dir(_) => up.mode,
            What::File(f) if f.writable() => 0o644,
            What::File(_) => 0o444,
        };
        m.tree.add(parent, OsStr::new(name), what, Attr { mode, ..up }).unwrap_or(ROOT)
    }

    pub(crate) fn plant_info(&mut self) {
        let info = self.plant(ROOT, "info", What::Dir(Dir::Info));
        self.plant(info, "last_cmd_status", What::File(File::LastStatus));
        for s in self.schemas() {
            let closids = self.closids(s);
            let dir = self.plant(info, s.name(), What::Dir(Dir::InfoOf));
            let mut files = vec![("num_closids", InfoFile::NumClosids(closids))];
            if s == Schema::Mb {
                files.extend([
                    ("bandwidth_gran", InfoFile::BandwidthGran),
                    ("delay_linear", InfoFile::DelayLinear),
                    ("min_bandwidth", InfoFile::MinBandwidth),
                ]);
                if self.hw.mba.as_ref().is_some_and(|m| m.throttle_mode.is_some()) {
                    files.push(("thread_throttle_mode", InfoFile::ThrottleMode));
                }
            } else {
                files.extend([
                    ("bit_usage", InfoFile::BitUsage(s.kind())),
                    ("cbm_mask", InfoFile::CbmMask),
                    ("min_cbm_bits", InfoFile::MinCbmBits),
                    ("shareable_bits", InfoFile::ShareableBits),
                ]);
                if self.hw.kernel != Kernel::V6_1 {
                    files.push(("sparse_masks", InfoFile::SparseMasks));
                }
            }
            for (name, file) in files {
                self.plant(dir, name, What::File(File::Info(file)));
            }
        }
        if self.hw.monitoring.is_some() {
            let dir = self.plant(info, "L3_MON", What::Dir(Dir::InfoOf));
            for (name, file) in [
                ("max_threshold_occupancy", InfoFile::Threshold),
                ("mon_features", InfoFile::MonFeatures),
                ("num_rmids", InfoFile::NumRmids),
            ] {
                self.plant(dir, name, What::File(File::Info(file)));
            }
        }
    }

    /// Files and directories of a new group.
    pub(crate) fn plant_group(&mut self, id: GroupId) {
        let Ok(g) = self.group(id) else { return };
        let (dir, control) = (g.dir, g.parent.is_none());
        let monitors = self.hw.monitoring.is_some();
        let mut files = vec![("cpus", File::Cpus(id)), ("cpus_list", File::CpusList(id)), ("tasks", File::Tasks(id))];
        if control {
            files.extend([("mode", File::Mode(id)), ("schemata", File::Schemata(id)), ("size", File::Size(id))]);
        }
        if self.shows_debug_files() {
            if control {
                files.push(("ctrl_hw_id", File::CtrlHwId(id)));
            }
            if monitors {
                files.push(("mon_hw_id", File::MonHwId(id)));
            }
        }
        for (name, file) in files {
            self.plant(dir, name, What::File(file));
        }
        if !monitors {
            return;
        }
        if control {
            self.plant(dir, "mon_groups", What::Dir(Dir::MonGroups(id)));
        }
        self.plant(dir, "mon_data", What::Dir(Dir::MonData(id)));
        for d in self.online_domains() {
            self.plant_counters(id, d);
        }
    }

    fn plant_counters(&mut self, id: GroupId, domain: usize) {
        let Ok(g) = self.group(id) else { return };
        let Some(data) = self.tree().ok().and_then(|t| t.child(g.dir, OsStr::new("mon_data"))) else { return };
        let name = format!("mon_L3_{:02}", self.hw.domains[domain].id);
        let dir = self.plant(data, &name, What::Dir(Dir::MonDomain(id, domain)));
        for e in Event::ALL {
            self.plant(dir, e.name(), What::File(File::Counter(id, domain, e)));
        }
    }

    /// A domain comes online: every group gets its counters.
    pub(crate) fn plant_domain(&mut self, domain: usize) {
        if self.hw.monitoring.is_none() {
            return;
        }
        let ids: Vec<GroupId> = self.mount.as_ref().map_or(vec![], |m| m.groups.keys().copied().collect());
        ids.into_iter().for_each(|id| self.plant_counters(id, domain));
    }

    /// A domain went offline: its counters go.
    pub(crate) fn prune_domain(&mut self, domain: usize) {
        let Ok(m) = self.mounted_mut() else { return };
        let gone: Vec<Node> = m
            .tree
            .entries
            .iter()
            .filter(|(_, e)| matches!(e.what, What::Dir(Dir::MonDomain(_, d)) if d == domain))
            .map(|(n, _)| *n)
            .collect();
        gone.into_iter().for_each(|n| m.tree.remove(n));
    }
}
