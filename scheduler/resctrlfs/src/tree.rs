//! The tree of files: names, modes, owners. What a file shows and takes is in `show` and `command`.

use crate::errno::{Errno, Result};
use crate::group::{GroupId, DEFAULT};
use crate::rmid::Event;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

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
    /// Folders of a domain's counters, in every group.
    pub(crate) fn counters_of(&self, domain: usize) -> Vec<Node> {
        let of_it = |what: &What| matches!(what, What::Dir(Dir::MonDomain(_, d)) if *d == domain);
        self.entries.iter().filter(|(_, e)| of_it(&e.what)).map(|(n, _)| *n).collect()
    }

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
