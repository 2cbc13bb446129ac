//! The state behind the files: a machine with resctrl, its tasks and, while mounted, the tree of groups.
//!
//! Pure: no clock, no files. Every operation returns what the kernel returns, an errno included; what it writes into
//! `info/last_cmd_status` is part of the behaviour. Names follow the kernel's: CLOSID (class), RMID (what is monitored), CBM.

use crate::cpus::Cpus;
use crate::errno::{Errno, Result};
pub use crate::group::GroupId;
pub(crate) use crate::group::DEFAULT;
use crate::hardware::{Hardware, Kernel, Mba};
use crate::rmid::Rmids;
use crate::status::Status;
use crate::tree::{Attr, Dir, File, Node, Tree, What, ROOT};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// A task's id.
pub type Tid = u32;
/// Value of `MB` under `mba_MBps` that sets no limit.
pub(crate) const NO_LIMIT_MBPS: u32 = u32::MAX;
/// The kernel takes no longer writes.
const MAX_WRITE_BYTES: usize = 4096;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The task that id 0 in `tasks` stands for.
    pub tid: Tid,
    pub uid: u32,
    pub gid: u32,
}

impl Caller {
    pub const ROOT: Self = Self { tid: 1, uid: 0, gid: 0 };
}

/// What resctrl keeps of a task.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// Its process, by the id of the first thread.
    tgid: Tid,
    uid: u32,
    /// Tasks are shown in order of birth.
    born: u64,
    closid: u32,
    rmid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Shareable,
    Exclusive,
    PseudoLocksetup,
    PseudoLocked,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shareable => "shareable",
            Self::Exclusive => "exclusive",
            Self::PseudoLocksetup => "pseudo-locksetup",
            Self::PseudoLocked => "pseudo-locked",
        }
    }

    /// The group holds ways, not tasks.
    pub(crate) fn pseudo(self) -> bool {
        matches!(self, Self::PseudoLocksetup | Self::PseudoLocked)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) name: OsString,
    /// The control group of a monitoring group.
    pub(crate) parent: Option<GroupId>,
    pub(crate) closid: u32,
    pub(crate) rmid: u32,
    pub(crate) cpus: Cpus,
    pub(crate) mode: Mode,
    pub(crate) dir: Node,
    /// Domain (by index) and ways of a pseudo-locked group.
    pub(crate) locked: Option<(usize, u32)>,
}

/// What one L3 domain is told: values by CLOSID.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// L3 (or L3DATA), and L3CODE.
    pub(crate) l3: [Vec<u32>; 2],
    pub(crate) mb: Vec<u32>,
    pub(crate) mbps: Vec<u32>,
    /// Ways under a pseudo-locked region.
    pub(crate) locked: Option<u32>,
}

/// A line of `schemata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Schema {
    Mb,
    L3,
    L3Data,
    L3Code,
}

impl Schema {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mb => "MB",
            Self::L3 => "L3",
            Self::L3Data => "L3DATA",
            Self::L3Code => "L3CODE",
        }
    }

    /// Which masks: data and unified share a register.
    pub(crate) fn kind(self) -> usize {
        usize::from(self == Self::L3Code)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Options {
    cdp: bool,
    mbps: bool,
    debug: bool,
    read_only: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Mount {
    options: Options,
    pub(crate) tree: Tree,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    next_group: GroupId,
}

/// A machine with resctrl.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(crate) hw: Hardware,
    pub(crate) online: Cpus,
    tasks: BTreeMap<Tid, Task>,
    births: u64,
    pub(crate) rmids: Option<Rmids>,
    pub(crate) status: Status,
    pub(crate) settings: Vec<Settings>,
    pub(crate) mount: Option<Mount>,
}

impl Machine {
    /// All CPUs online, nothing mounted, no tasks.
    pub fn new(hw: Hardware) -> Self {
        let settings = hw.domains.iter().map(|_| fresh(&hw)).collect();
        Self {
            online: hw.domains.iter().flat_map(|d| d.cpus.iter()).collect(),
            rmids: hw.monitoring.as_ref().map(|m| Rmids::new(hw.kernel, m)),
            hw,
            tasks: BTreeMap::new(),
            births: 0,
            status: Status::default(),
            settings,
            mount: None,
        }
    }

    pub fn hardware(&self) -> &Hardware {
        &self.hw
    }

    pub fn is_mounted(&self) -> bool {
        self.mount.is_some()
    }

    pub(crate) fn mounted(&self) -> Result<&Mount> {
        self.mount.as_ref().ok_or(Errno::ENOENT)
    }

    pub(crate) fn mounted_mut(&mut self) -> Result<&mut Mount> {
        self.mount.as_mut().ok_or(Errno::ENOENT)
    }

    fn option(&self, which: impl Fn(Options) -> bool) -> bool {
        self.mount.as_ref().is_some_and(|m| which(m.options))
    }

    pub(crate) fn cdp(&self) -> bool {
        self.option(|o| o.cdp)
    }

    /// `MB` is in MB/s.
    pub(crate) fn in_mbps(&self) -> bool {
        self.option(|o| o.mbps)
    }

    // ---- Mounting.

    /// Mount with these options ("cdp,debug").
    ///
    /// # Errors
    /// EINVAL for options that this kernel or hardware has not, EBUSY where it is mounted.
    pub fn mount(&mut self, options: &str, read_only: bool) -> Result<()> {
        let mut wanted = Options { read_only, ..Options::default() };
        for o in options.split(',').filter(|o| !o.is_empty()) {
            match o {
                "cdp" if self.hw.cdp => wanted.cdp = true,
                "mba_MBps" if self.hw.mba_in_mbps() => wanted.mbps = true,
                "debug" if self.hw.kernel != Kernel::V6_1 => wanted.debug = true,
                _ => return Err(Errno::EINVAL),
            }
        }
        self.status.clear();
        if self.mount.is_some() {
            return Err(Errno::EBUSY);
        }
        self.settings = self.hw.domains.iter().map(|_| fresh(&self.hw)).collect();
        let root = Group {
            name: OsString::new(),
            parent: None,
            closid: 0,
            rmid: 0,
            cpus: self.online.clone(),
            mode: Mode::Shareable,
            dir: ROOT,
            locked: None,
        };
        let groups = BTreeMap::from([(DEFAULT, root)]);
        self.mount = Some(Mount { options: wanted, tree: Tree::new(), groups, next_group: DEFAULT + 1 });
        self.plant_info();
        self.plant_group(DEFAULT);
        Ok(())
    }

    /// As `/proc/mounts` shows them; None while not mounted.
    pub fn mount_options(&self) -> Option<String> {
        let o = self.mount.as_ref()?.options;
        let mut text = String::from(if o.read_only { "ro,relatime" } else { "rw,relatime" });
        for (on, name) in [(o.cdp, ",cdp"), (o.mbps, ",mba_MBps"), (o.debug, ",debug")] {
            text += if on { name } else { "" };
        }
        Some(text)
    }

    /// Everything goes back to its default; what was monitored is kept back like after rmdir.
    ///
    /// # Errors
    /// EINVAL while not mounted.
    pub fn umount(&mut self) -> Result<()> {
        let m = self.mount.take().ok_or(Errno::EINVAL)?;
        for t in self.tasks.values_mut() {
            (t.closid, t.rmid) = (0, 0);
        }
        for (id, g) in m.groups.iter().rev() {
            if *id != DEFAULT && g.mode != Mode::PseudoLocked && g.mode != Mode::PseudoLocksetup {
                self.release_rmid(g.rmid);
            }
        }
        self.settings = self.hw.domains.iter().map(|_| fresh(&self.hw)).collect();
        Ok(())
    }

    // ---- Tasks, CPUs, time: what happens to the machine outside resctrl.

    /// A task is born; it inherits the groups of `parent`. A thread has its process's `tgid`.
    pub fn spawn(&mut self, tid: Tid, tgid: Tid, parent: Tid, uid: u32) {
        let (closid, rmid) = self.tasks.get(&parent).map_or((0, 0), |t| (t.closid, t.rmid));
        self.births += 1;
        self.tasks.insert(tid, Task { tgid, uid, born: self.births, closid, rmid });
    }

    /// A task is gone (a zombie is not).
    pub fn exit(&mut self, tid: Tid) {
        self.tasks.remove(&tid);
    }

    pub fn knows_task(&self, tid: Tid) -> bool {
        self.tasks.contains_key(&tid)
    }

    pub fn task_ids(&self) -> Vec<Tid> {
        self.tasks.keys().copied().collect()
    }

    /// As `/proc/PID/cpu_resctrl_groups` shows it.
    pub fn task_groups(&self, tid: Tid) -> Option<String> {
        let t = self.tasks.get(&tid)?;
        let Some(m) = &self.mount else { return Some("res:\nmon:\n".into()) };
        let Some((id, g)) = m.groups.iter().find(|(_, g)| g.parent.is_none() && !g.mode.pseudo() && g.closid == t.closid) else {
            return Some("res:\nmon:\n".into());
        };
        let name = if *id == DEFAULT { "/".into() } else { g.name.to_string_lossy() };
        let mon = m.groups.values().find(|c| c.parent == Some(*id) && c.rmid == t.rmid).map_or("".into(), |c| c.name.to_string_lossy());
        Some(format!("res:{name}\nmon:{mon}\n"))
    }

    /// A CPU goes offline or comes back, to the root group.
    pub fn set_online(&mut self, cpu: u32, online: bool) {
        let before: Vec<usize> = self.online_domains();
        if online {
            self.online.insert(cpu);
        } else {
            self.online.remove(cpu);
        }
        let after = self.online_domains();
        if let Some(m) = &mut self.mount {
            match m.groups.get_mut(&DEFAULT) {
                Some(root) if online => root.cpus.insert(cpu),
                _ => m.groups.values_mut().for_each(|g| {
                    g.cpus.remove(cpu);
                }),
            }
        }
        for d in before.iter().filter(|d| !after.contains(d)) {
            if let Some(r) = &mut self.rmids {
                r.drop_domain(*d);
            }
            self.prune_domain(*d);
        }
        for d in after.iter().filter(|d| !before.contains(d)) {
            self.settings[*d] = fresh(&self.hw);
            self.plant_domain(*d);
        }
    }

    /// Domains (by index) with a CPU online.
    pub(crate) fn online_domains(&self) -> Vec<usize> {
        (0..self.hw.domains.len()).filter(|d| !self.hw.domains[*d].cpus.and(&self.online).is_empty()).collect()
    }

    /// Time passes: RMIDs of removed groups become free.
    pub fn advance(&mut self, ms: u64) {
        if let Some(r) = &mut self.rmids {
            r.advance(ms);
        }
    }

    /// A task ran on `cpu` for `ms`: its group's counters move.
    pub fn ran(&mut self, tid: Tid, cpu: u32, ms: u64) {
        let Some(t) = self.tasks.get(&tid) else { return };
        let Some(d) = self.hw.domains.iter().position(|d| d.cpus.has(cpu)) else { return };
        let ways = self.settings[d].l3[0].get(t.closid as usize).map_or(self.hw.cbm_bits, |m| m.count_ones());
        let room = self.hw.llc_bytes / u64::from(self.hw.cbm_bits) * u64::from(ways);
        if let Some(r) = &mut self.rmids {
            r.ran(d, t.rmid, ms, room);
        }
    }

    /// RMIDs that the next mkdir could take.
    pub fn rmids_free(&self) -> usize {
        self.rmids.as_ref().map_or(0, Rmids::free)
    }

    /// RMIDs of removed groups that are not free yet.
    pub fn rmids_waiting(&self) -> bool {
        self.rmids.as_ref().is_some_and(Rmids::any_waiting)
    }

    /// Names under `/dev/pseudo_lock`.
    pub fn pseudo_lock_devices(&self) -> Vec<OsString> {
        let Some(m) = &self.mount else { return vec![] };
        m.groups.values().filter(|g| g.mode == Mode::PseudoLocked).map(|g| g.name.clone()).collect()
    }

    // ---- Classes.

    pub(crate) fn schemas(&self) -> Vec<Schema> {
        let mut all = if self.hw.mba.is_some() { vec![Schema::Mb] } else { vec![] };
        all.extend(if self.cdp() { &[Schema::L3Data, Schema::L3Code][..] } else { &[Schema::L3][..] });
        all
    }

    /// CLOSIDs of one resource.
    pub(crate) fn closids(&self, s: Schema) -> u32 {
        match (s, &self.hw.mba) {
            (Schema::Mb, Some(mba)) => mba.closids,
            (Schema::Mb, None) => 0,
            (Schema::L3, _) => self.hw.l3_closids,
            (Schema::L3Data | Schema::L3Code, _) => self.hw.l3_closids / 2,
        }
    }

    /// Modes of the classes in use. A pseudo-locked group has given its class back.
    pub(crate) fn classes(&self) -> Vec<(u32, Mode)> {
        let Some(m) = &self.mount else { return vec![] };
        m.groups.values().filter(|g| g.parent.is_none() && g.mode != Mode::PseudoLocked).map(|g| (g.closid, g.mode)).collect()
    }

    fn free_closid(&self) -> Option<u32> {
        let most = self.schemas().into_iter().map(|s| self.closids(s)).min().unwrap_or(1);
        let used = self.classes();
        (0..most).find(|c| used.iter().all(|(u, _)| u != c))
    }

    pub(crate) fn alloc_rmid(&mut self) -> Result<u32> {
        let Some(r) = &mut self.rmids else { return Ok(0) };
        let rmid = r.alloc().inspect_err(|_| self.status.add(b"Out of RMIDs\n"))?;
        r.restart(rmid);
        Ok(rmid)
    }

    pub(crate) fn release_rmid(&mut self, rmid: u32) {
        let online = self.online_domains();
        if let Some(r) = &mut self.rmids {
            r.release(rmid, online.first().copied(), &online);
        }
    }

    pub(crate) fn group(&self, id: GroupId) -> Result<&Group> {
        self.mounted()?.groups.get(&id).ok_or(Errno::ENODEV)
    }

    pub(crate) fn group_mut(&mut self, id: GroupId) -> Result<&mut Group> {
        self.mounted_mut()?.groups.get_mut(&id).ok_or(Errno::ENODEV)
    }

    /// Monitoring groups of a control group.
    pub(crate) fn children(&self, id: GroupId) -> Vec<GroupId> {
        self.mount.as_ref().map_or(vec![], |m| m.groups.iter().filter(|(_, g)| g.parent == Some(id)).map(|(c, _)| *c).collect())
    }

    fn in_group(t: &Task, g: &Group) -> bool {
        match g.parent {
            None => t.closid == g.closid,
            Some(_) => t.rmid == g.rmid,
        }
    }

    /// Tasks of a group as `tasks` lists them: processes by birth, threads within.
    pub(crate) fn members(&self, g: &Group) -> Vec<Tid> {
        let mut list: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, t)| Self::in_group(t, g))
            .map(|(tid, t)| (self.tasks.get(&t.tgid).map_or(t.born, |p| p.born), t.born, *tid))
            .collect();
        list.sort_unstable();
        list.into_iter().map(|(_, _, tid)| tid).collect()
    }

    fn move_members(&mut self, from: GroupId, to: GroupId) -> Result<()> {
        let from = self.group(from)?.clone();
        let (closid, rmid) = self.group(to).map(|g| (g.closid, g.rmid))?;
        for t in self.tasks.values_mut().filter(|t| Self::in_group(t, &from)) {
            (t.closid, t.rmid) = (closid, rmid);
        }
        Ok(())
    }

    // ---- Directories.

    /// Make a control group (in the root) or a monitoring group (in a `mon_groups`). `mode` is that of the directory.
    ///
    /// # Errors
    /// EEXIST, EPERM where no group can be, EINVAL for a newline in the name, ENOSPC and EBUSY without a free CLOSID or RMID.
    pub fn mkdir(&mut self, parent: Node, name: &OsStr, mode: u32, who: Caller) -> Result<Node> {
        let m = self.mounted()?;
        let what = m.tree.what(parent)?.clone();
        let What::Dir(dir) = what else { return Err(Errno::ENOTDIR) };
        if m.tree.child(parent, name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.writable_fs()?;
        self.may(parent, 0o3, who)?;
        if name.as_bytes().contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        let owner = match dir {
            Dir::Group(DEFAULT) => None,
            Dir::MonGroups(g) if self.rmids.is_some() && name != "mon_groups" => Some(g),
            _ => return Err(Errno::EPERM),
        };
        if let Some(g) = owner {
            if self.group(g)?.mode.pseudo() {
                self.status.add(b"Pseudo-locking in progress\n");
                return Err(Errno::EINVAL);
            }
        }
        // 6.1 takes the RMID before the CLOSID, 6.12 after it.
        let early = (self.hw.kernel == Kernel::V6_1).then(|| self.alloc_rmid()).transpose()?;
        let closid = match owner {
            Some(g) => self.group(g)?.closid,
            None => match self.free_closid() {
                Some(c) => c,
                None => {
                    self.status.add(b"Out of CLOSIDs\n");
                    early.into_iter().for_each(|r| self.release_rmid(r));
                    return Err(Errno::ENOSPC);
                }
            },
        };
        let rmid = match early {
            Some(r) => r,
            None => self.alloc_rmid()?,
        };
        if owner.is_none() {
            if let Err(e) = self.init_class(closid) {
                self.release_rmid(rmid);
                return Err(e);
            }
        }
        let attr = Attr { mode, uid: who.uid, gid: who.gid };
        let m = self.mounted_mut()?;
        let id = m.next_group;
        m.next_group += 1;
        let dir = m.tree.add(parent, name, What::Dir(Dir::Group(id)), attr)?;
        let group = Group {
            name: name.to_os_string(),
            parent: owner,
            closid,
            rmid,
            cpus: Cpus::default(),
            mode: Mode::Shareable,
            dir,
            locked: None,
        };
        m.groups.insert(id, group);
        self.plant_group(id);
        Ok(dir)
    }

    /// Remove a group, whatever it holds: tasks and CPUs go to its parent.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EPERM for a directory that is no group, EBUSY for the mount point.
    pub fn rmdir(&mut self, parent: Node, name: &OsStr, who: Caller) -> Result<()> {
        let m = self.mounted()?;
        let node = m.tree.child(parent, name).ok_or(Errno::ENOENT)?;
        let What::Dir(dir) = m.tree.what(node)?.clone() else { return Err(Errno::ENOTDIR) };
        self.writable_fs()?;
        self.may(parent, 0o3, who)?;
        let Dir::Group(id) = dir else { return Err(Errno::EPERM) };
        let g = self.group(id)?.clone();
        if g.mode.pseudo() {
            if let Some((d, _)) = g.locked {
                self.settings[d].locked = None;
            }
        } else {
            let to = g.parent.unwrap_or(DEFAULT);
            self.move_members(id, to)?;
            if g.parent.is_none() {
                for child in self.children(id) {
                    self.move_members(child, DEFAULT)?;
                }
                self.group_mut(DEFAULT)?.cpus.add(&g.cpus);
            }
            self.release_rmid(g.rmid);
        }
        for child in self.children(id) {
            let rmid = self.group(child)?.rmid;
            self.release_rmid(rmid);
            self.mounted_mut()?.groups.remove(&child);
        }
        let m = self.mounted_mut()?;
        m.groups.remove(&id);
        m.tree.remove(node);
        Ok(())
    }

    /// Rename, or move, a monitoring group (6.12).
    ///
    /// # Errors
    /// ENOENT, EEXIST, EPERM for all that is no monitoring group.
    pub fn rename(&mut self, parent: Node, name: &OsStr, to: Node, to_name: &OsStr, who: Caller) -> Result<()> {
        let m = self.mounted()?;
        let node = m.tree.child(parent, name).ok_or(Errno::ENOENT)?;
        let (from, dest) = (m.tree.what(node)?.clone(), m.tree.what(to)?.clone());
        let taken = m.tree.child(to, to_name).is_some_and(|n| n != node);
        self.writable_fs()?;
        self.may(parent, 0o3, who)?;
        self.may(to, 0o3, who)?;
        if self.hw.kernel == Kernel::V6_1 {
            return Err(Errno::EPERM);
        }
        let in_info = |w: &What| matches!(w, What::Dir(Dir::Info | Dir::InfoOf) | What::File(File::Info(_) | File::LastStatus));
        if in_info(&from) || in_info(&dest) {
            return Err(Errno::ENOENT);
        }
        self.status.clear();
        let refuse = |this: &mut Self, why: &[u8]| {
            this.status.add(why);
            Err(Errno::EPERM)
        };
        let (What::Dir(from), What::Dir(dest)) = (from, dest) else {
            return refuse(self, b"Source and destination must be directories");
        };
        let moving = match from {
            Dir::Group(g) if self.group(g)?.parent.is_some() => g,
            _ => return refuse(self, b"Source must be a MON group\n"),
        };
        let new_parent = match dest {
            Dir::MonGroups(g) if to_name != "mon_groups" => g,
            _ => return refuse(self, b"Destination must be a mon_groups subdirectory\n"),
        };
        let g = self.group(moving)?.clone();
        if !g.cpus.is_empty() && g.parent != Some(new_parent) {
            return refuse(self, b"Cannot move a MON group that monitors CPUs\n");
        }
        if taken {
            return Err(Errno::EEXIST);
        }
        let closid = self.group(new_parent)?.closid;
        let m = self.mounted_mut()?;
        m.tree.rename(node, to, to_name)?;
        if let Some(g) = m.groups.get_mut(&moving) {
            g.name = to_name.to_os_string();
            g.parent = Some(new_parent);
            g.closid = closid;
        }
        for t in self.tasks.values_mut().filter(|t| t.rmid == g.rmid) {
            t.closid = closid;
        }
        Ok(())
    }

    /// resctrl has no other names to take away than groups.
    ///
    /// # Errors
    /// Always: ENOENT, EISDIR, EPERM.
    pub fn unlink(&self, parent: Node, name: &OsStr) -> Result<()> {
        let tree = &self.mounted()?.tree;
        match tree.what(tree.child(parent, name).ok_or(Errno::ENOENT)?)? {
            What::Dir(_) => Err(Errno::EISDIR),
            What::File(_) => Err(Errno::EPERM),
        }
    }

    // ---- Files.

    /// May this caller open this file so? A file without a reader or writer refuses root too.
    ///
    /// # Errors
    /// ENODEV once the group is gone, EISDIR, EROFS, EACCES.
    pub fn open(&self, node: Node, read: bool, write: bool, who: Caller) -> Result<()> {
        let tree = &self.mounted()?.tree;
        let What::File(file) = tree.what(node)? else {
            return if write { Err(Errno::EISDIR) } else { self.may(node, 0o4, who) };
        };
        if write {
            self.writable_fs()?;
        }
        self.may(node, u32::from(read) * 0o4 + u32::from(write) * 0o2, who)?;
        let mode = tree.attr(node)?.mode;
        if write && (mode & 0o222 == 0 || !file.writable()) || read && mode & 0o444 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(())
    }

    fn writable_fs(&self) -> Result<()> {
        if self.option(|o| o.read_only) {
            return Err(Errno::EROFS);
        }
        Ok(())
    }

    /// Permission bits of a node (`want`: 4 read, 2 write, 1 search) for a caller.
    ///
    /// # Errors
    /// EACCES.
    pub fn may(&self, node: Node, want: u32, who: Caller) -> Result<()> {
        let a = self.mounted()?.tree.attr(node)?;
        let shift = if who.uid == a.uid {
            6
        } else if who.gid == a.gid {
            3
        } else {
            0
        };
        if who.uid == 0 || a.mode >> shift & want == want {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    /// The whole content of a file, as one read from its start gives it.
    ///
    /// # Errors
    /// ENODEV once the group is gone, EISDIR.
    pub fn read(&self, node: Node) -> Result<Vec<u8>> {
        match self.mounted()?.tree.what(node)? {
            What::File(file) => self.show(*file),
            What::Dir(_) => Err(Errno::EISDIR),
        }
    }

    /// One write(2): one command.
    ///
    /// # Errors
    /// What the kernel answers; `info/last_cmd_status` says more.
    pub fn write(&mut self, node: Node, data: &[u8], who: Caller) -> Result<usize> {
        let What::File(file) = *self.mounted()?.tree.what(node)? else { return Err(Errno::EISDIR) };
        if data.len() > MAX_WRITE_BYTES {
            return Err(Errno::E2BIG);
        }
        match file {
            File::Cpus(g) => self.write_cpus(g, data, false)?,
            File::CpusList(g) => self.write_cpus(g, data, true)?,
            File::Mode(g) => self.write_mode(g, data)?,
            File::Schemata(g) => self.write_schemata(g, data)?,
            File::Tasks(g) => self.write_tasks(g, data, who)?,
            File::Info(crate::tree::InfoFile::Threshold) => self.write_threshold(data)?,
            _ => return Err(Errno::EACCES),
        }
        Ok(data.len())
    }

    /// A task joins a group.
    pub(crate) fn join(&mut self, tid: Tid, id: GroupId, who: Caller) -> Result<()> {
        let tid = if tid == 0 { who.tid } else { tid };
        let g = self.group(id)?.clone();
        let Some(t) = self.tasks.get_mut(&tid) else {
            self.status.add(format!("No task {tid}\n").as_bytes());
            return Err(Errno::ESRCH);
        };
        if who.uid != 0 && who.uid != t.uid {
            self.status.add(format!("No permission to move task {tid}\n").as_bytes());
            return Err(Errno::EPERM);
        }
        if g.parent.is_some() && t.closid != g.closid {
            self.status.add(b"Can't move task to different control group\n");
            return Err(Errno::EINVAL);
        }
        (t.closid, t.rmid) = (g.closid, g.rmid);
        Ok(())
    }
}

/// Defaults of a domain: all ways and all bandwidth for every class.
fn fresh(hw: &Hardware) -> Settings {
    let n = hw.l3_closids.max(hw.mba.as_ref().map_or(0, |m| m.closids)) as usize;
    let most = |m: &Mba| m.max;
    Settings {
        l3: [vec![hw.cbm_mask(); n], vec![hw.cbm_mask(); n]],
        mb: vec![hw.mba.as_ref().map_or(0, most); n],
        mbps: vec![NO_LIMIT_MBPS; n],
        locked: None,
    }
}

impl Machine {
    pub(crate) fn shows_debug_files(&self) -> bool {
        self.option(|o| o.debug)
    }

    /// Reading or writing this file depends on which tasks there are.
    pub(crate) fn shows_tasks(&self, node: Node) -> bool {
        let what = self.mount.as_ref().map(|m| m.tree.what(node));
        matches!(what, Some(Ok(What::File(File::Tasks(_) | File::Counter(..) | File::Mode(_)))))
    }
}
