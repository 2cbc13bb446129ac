//! The tree as a file system asks for it.

use crate::errno::{Errno, Result};
use crate::hardware::Kernel;
use crate::machine::{Caller, GroupId, Machine, Schema};
use crate::rmid::Event;
use crate::tree::{Attr, Dir, File, InfoFile, Node, Tree, What, ROOT};
use std::ffi::OsStr;
use std::path::{Component, Path};

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
        let gone = m.tree.counters_of(domain);
        gone.into_iter().for_each(|n| m.tree.remove(n));
    }
}
