//! Ways, memory bandwidth and their counters through resctrl.
//!
//! Map: [`info`] what the kernel offers · [`schemata`] its lines · [`mba`] units of bandwidth · [`masks`] which masks are legal ·
//! [`classes`] what shares a class · [`steps`] from one layout to another · [`groups`] what is there, and how it is changed · [`tasks`]
//! threads follow their service · [`watch`] what others change · [`monitor`] counters · [`offer`] what others leave · [`lock`] the protocol
//! between tools · [`refusal`] what errors mean.
//!
//! Ids of domains come from `schemata`, never from counting. L3 and MB go in one write, which the kernel parses whole before it
//! applies any of it. Groups without our prefix are never changed, and neither is the default group's setting.

pub mod classes;
pub mod groups;
pub mod info;
pub mod lock;
pub mod masks;
pub mod mba;
pub mod monitor;
pub mod offer;
pub mod refusal;
pub mod schemata;
pub mod steps;
mod tasks;
pub mod watch;
pub use tasks::{held_by_others, Before, Moved};
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trees;

use self::info::Info;
use self::lock::{Lock, Patience, Turn, PATIENCE};
use self::refusal::{Attempt, Refusal};
use self::schemata::Schemata;
use crate::files::{text, SharedFiles};
use crate::root::Root;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use surefoot_server::{Mba, ServerError};

/// Names of our groups begin so.
pub const PREFIX: &str = "surefoot.";

/// A mounted resctrl.
#[derive(Clone, Debug)]
pub struct Resctrl {
    /// Where it is mounted, as `/proc/mounts` shows it, and its folder on this host.
    at: PathBuf,
    dir: PathBuf,
    files: SharedFiles,
    info: Arc<Info>,
    /// Not the kernel's: a mount that was named (docs/resctrlfs.md).
    stand_in: bool,
    /// Peak memory bandwidth of the platform, MB/s (10^6): what per cent are of where MBA is in absolute units.
    peak_mbps: Option<f64>,
    /// Messages that were logged and are not to be again.
    said: Arc<Mutex<BTreeSet<String>>>,
    /// With whoever else holds the lock.
    patience: Arc<Mutex<Patience>>,
    /// Services have no monitoring groups of their own: their ids (RMIDs) are needed for the classes.
    no_monitors: Arc<AtomicBool>,
}

/// Mount point, type and options of a line of `/proc/mounts`.
fn mounts(root: &Root) -> Vec<(PathBuf, String, String)> {
    let line = |l: &str| {
        let mut f = l.split_whitespace().skip(1).map(str::to_string);
        Some((PathBuf::from(unescape(&f.next()?)), f.next()?, f.next()?))
    };
    root.read("/proc/mounts").unwrap_or_default().lines().filter_map(line).collect()
}

/// Blanks in `/proc/mounts` are octal ("\040").
fn unescape(field: &str) -> String {
    let mut out = String::new();
    let mut rest = field;
    while let Some(at) = rest.find('\\') {
        out += &rest[..at];
        let code = rest.get(at + 1..at + 4).and_then(|o| u8::from_str_radix(o, 8).ok());
        out.push(code.map_or('\\', char::from));
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    out + rest
}

/// Options resctrl is mounted with; None where it is not mounted.
pub fn mount_options(root: &Root) -> Option<String> {
    mounts(root).into_iter().find(|m| m.1 == "resctrl").map(|m| m.2)
}

/// False where this kernel has no resctrl that could be mounted.
pub fn may_be_mounted(root: &Root) -> bool {
    root.read("/proc/filesystems").is_none_or(|known| known.split_whitespace().any(|word| word == "resctrl"))
}

impl Resctrl {
    /// The kernel's, where it is mounted.
    pub fn find(root: &Root) -> Option<Self> {
        let (at, _, options) = mounts(root).into_iter().find(|m| m.1 == "resctrl")?;
        let dir = root.path(&at);
        root.files.is_file(&dir.join("schemata")).then(|| Self::at(root, at, &options, false))
    }

    /// The one at `at` and no other: the kernel's, or a stand-in.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where no resctrl is mounted there.
    pub fn named(root: &Root, at: &Path) -> Result<Self, ServerError> {
        let dir = root.path(at);
        let mount = mounts(root).into_iter().rev().find(|m| m.0 == at);
        if mount.is_none() || !root.files.is_file(&dir.join("schemata")) {
            return Err(ServerError::Unavailable {
                what: format!("resctrl = \"{}\"", at.display()),
                cause: "nothing like resctrl is mounted there".into(),
                remedy: "Mount it first (docs/resctrlfs.md), name its mount point as /proc/mounts shows it, or leave resctrl out".into(),
            });
        }
        let (_, kind, options) = mount.unwrap_or_default();
        let r = Self::at(root, at.into(), &options, kind != "resctrl");
        if r.stand_in {
            tracing::warn!("{}: is a stand-in for resctrl ({kind}): ways and bandwidth are bookkept, not enforced", at.display());
        }
        Ok(r)
    }

    fn at(root: &Root, at: PathBuf, options: &str, stand_in: bool) -> Self {
        let dir = root.path(&at);
        let info = Info::read(root.files.as_ref(), &dir, options);
        Resctrl {
            at,
            dir,
            files: root.files.clone(),
            info: Arc::new(info),
            stand_in,
            peak_mbps: None,
            said: Arc::default(),
            patience: Arc::default(),
            no_monitors: Arc::default(),
        }
    }

    /// With the peak memory bandwidth of this platform, MB/s.
    #[must_use]
    pub fn with_peak(self, peak_mbps: Option<f64>) -> Self {
        Resctrl { peak_mbps, ..self }
    }

    /// What is there instead where it was mounted anew: its options are others, or one of `classes`, which were ours, has gone (an
    /// unmount takes all groups), or it was found not to be mounted (`was_unmounted`). None where all is as it was, and where nothing is mounted now. Cheap: one file and a look at each class.
    pub fn mounted_anew<'a>(&self, root: &Root, was_unmounted: bool, mut classes: impl Iterator<Item = &'a String>) -> Option<Self> {
        let (_, _, options) = mounts(root).into_iter().rev().find(|m| m.0 == self.at)?;
        let same = !was_unmounted && options == self.info.options && classes.all(|c| self.files.is_dir(&self.class_dir(c)));
        if same || !self.files.is_file(&self.dir.join("schemata")) {
            return None;
        }
        Some(Resctrl { info: Arc::new(Info::read(self.files.as_ref(), &self.dir, &options)), ..self.clone() })
    }

    /// Whether something is mounted there now.
    pub fn is_mounted(&self, root: &Root) -> bool {
        mounts(root).iter().any(|m| m.0 == self.at)
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn is_stand_in(&self) -> bool {
        self.stand_in
    }

    /// To be held while what is read decides what is written; waits for nobody ([`lock`]).
    pub fn turn(&self) -> Turn {
        self.ask(Duration::ZERO)
    }

    /// The same, for whoever may wait; never for longer than [`PATIENCE`].
    pub fn lock(&self) -> Lock {
        match self.ask(2 * PATIENCE) {
            Turn::Now(lock) => lock,
            // Its bound is the wait's.
            Turn::Later => Lock::none(),
        }
    }

    /// The same where nothing may wait: with the lock if it is free.
    pub fn lock_now(&self) -> Lock {
        match self.turn() {
            Turn::Now(lock) => lock,
            Turn::Later => Lock::none(),
        }
    }

    fn ask(&self, most: Duration) -> Turn {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        patience.ask(&self.dir, most, |why| tracing::warn!("{why}"))
    }

    /// Changes that were made without the lock because another process held it.
    pub fn unlocked_changes(&self) -> u64 {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner).without
    }

    /// Bits of a CBM; None without L3 CAT.
    pub fn cbm_bits(&self) -> Option<u32> {
        self.info.l3.as_ref().map(|l| l.cbm_mask.count_ones())
    }

    pub fn min_cbm_bits(&self) -> u32 {
        self.info.l3.as_ref().map_or(1, |l| l.min_cbm_bits)
    }

    /// Bytes that all bits of a domain stand for, by its id; of domains whose size is not told nothing.
    pub fn domain_bytes(&self) -> BTreeMap<u32, u64> {
        let read = |file: &str| Schemata::parse(&self.read(self.dir.join(file)).unwrap_or_default());
        let (size, schemata) = (read("size"), read("schemata"));
        let Some((line, l3)) = self.info.domain_line().zip(self.info.l3.as_ref()) else { return BTreeMap::new() };
        let bytes = |domain: u32| {
            // A bit's worth: the default group need not hold all bits.
            let held = schemata.mask(line, domain)?.count_ones();
            let bytes: u64 = size.value(line, domain)?.parse().ok()?;
            bytes.checked_mul(u64::from(l3.cbm_mask.count_ones()))?.checked_div(u64::from(held))
        };
        size.line(line).into_iter().flatten().filter_map(|(id, _)| Some((*id, bytes(*id)?))).collect()
    }

    /// Bytes that all bits of a domain stand for, of the smallest: a way is worth no less anywhere.
    pub fn root_bytes(&self) -> Option<u64> {
        self.domain_bytes().into_values().min()
    }

    /// Ids of the L3 domains that are on line.
    pub fn l3_domains(&self) -> Vec<u32> {
        let schemata = Schemata::parse(&self.read(self.dir.join("schemata")).unwrap_or_default());
        self.info.domain_line().and_then(|l| schemata.line(l)).map(|l| l.keys().copied().collect()).unwrap_or_default()
    }

    /// Peak memory bandwidth of one L3 domain, MB/s: an equal part of the platform's. Limits in absolute units are for each domain.
    fn domain_peak_mbps(&self) -> Option<f64> {
        let domains = self.info.mba.as_ref().map_or(1, |m| m.domains.max(1));
        self.peak_mbps.map(|p| p / f64::from(domains))
    }

    /// Steps of bandwidth in per cent; None without MBA, or where its unit is absolute and the peak is not known.
    pub fn mba_steps(&self) -> Option<Mba> {
        self.info.mba.as_ref()?.steps(self.domain_peak_mbps())
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.files.as_ref(), path)
    }

    /// Text of the schemata of every group, the default one as "".
    pub fn schemata(&self) -> BTreeMap<String, String> {
        let groups = self.files.folders(&self.dir).into_iter().chain([String::new()]);
        groups.filter_map(|g| Some((g.clone(), self.read(self.dir.join(&g).join("schemata"))?))).collect()
    }

    /// Folder of a class of ours.
    pub fn class_dir(&self, class: &str) -> PathBuf {
        self.dir.join(format!("{PREFIX}{class}"))
    }

    fn refused(&self, attempt: Attempt, what: String, e: &io::Error) -> Refusal {
        Refusal::new(attempt, what, e, &self.read(self.dir.join("info/last_cmd_status")).unwrap_or_default())
    }

    /// Give up the monitoring groups of services, of which each has an id (RMID) that a class may need; false where that was done before.
    /// A service that is alone in its class is counted by the class's own.
    pub fn give_up_monitors(&self) -> bool {
        if self.info.monitoring.is_none() || self.no_monitors.swap(true, Ordering::Relaxed) {
            return false;
        }
        tracing::warn!(
            "{}: monitoring ids (RMIDs) have run out: services go on without monitoring groups of their own until there are enough. \
             Remove monitoring groups that nobody needs",
            self.dir.display()
        );
        for class in self.files.folders(&self.dir).iter().filter(|n| n.starts_with(PREFIX)) {
            let monitors = self.dir.join(class).join("mon_groups");
            self.files.folders(&monitors).iter().for_each(|m| drop(self.files.remove_dir(&monitors.join(m))));
        }
        let monitors = self.dir.join("mon_groups");
        let ours = self.files.folders(&monitors).into_iter().filter(|n| n.starts_with(PREFIX));
        ours.for_each(|m| drop(self.files.remove_dir(&monitors.join(m))));
        true
    }

    /// Services may have monitoring groups of their own again: no class lacks an id.
    pub fn take_up_monitors(&self) {
        self.no_monitors.store(false, Ordering::Relaxed);
    }

    /// Log `message` as a warning, the first time for this `key`.
    pub(crate) fn say_once(&self, key: String, message: impl FnOnce() -> String) {
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            tracing::warn!("{}", message());
        }
    }
}
