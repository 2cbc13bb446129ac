//! Stand-ins for the kernel in tests: resctrl's model behind [`Files`], and files that fail on demand.

use crate::files::{Files, HostFiles, SharedFiles};
use crate::hand_on;
use crate::root::Root;
use crate::safe::SafeLayout;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use surefoot_resctrlfs::hardware::{CacheDomain, Hardware, Mba, Monitoring};
use surefoot_resctrlfs::{Caller, Errno, Kernel, Machine, Node, What, ROOT};

/// resctrl's model at `at`, the host's own files elsewhere.
#[derive(Clone)]
pub struct ModelFiles {
    at: PathBuf,
    pub machine: Arc<Mutex<Machine>>,
}

impl std::fmt::Debug for ModelFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "resctrl's model at {}", self.at.display())
    }
}

fn kernel_error(e: Errno) -> io::Error {
    io::Error::from_raw_os_error(e.0)
}

impl ModelFiles {
    /// `root` with resctrl mounted at /sys/fs/resctrl: `mounts` is its line in /proc/mounts.
    pub fn mount(root: &Root, hardware: Hardware, options: &str) -> (Self, Root) {
        let mut machine = Machine::new(hardware);
        machine.mount(options, false).unwrap();
        let proc = root.path("/proc");
        std::fs::create_dir_all(&proc).unwrap();
        let shown = machine.mount_options().unwrap_or_default();
        std::fs::write(proc.join("mounts"), format!("resctrl /sys/fs/resctrl resctrl {} 0 0\n", mounts_options(&shown))).unwrap();
        let files = ModelFiles { at: root.path("/sys/fs/resctrl"), machine: Arc::new(Mutex::new(machine)) };
        let root = Root::with(root.path("/"), Arc::new(files.clone()));
        (files, root)
    }

    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, m: &Machine, path: &Path) -> Option<io::Result<Node>> {
        let rest = path.strip_prefix(&self.at).ok()?;
        Some(rest.iter().try_fold(ROOT, |n, name| m.tree().ok()?.child(n, name)).ok_or_else(|| kernel_error(Errno::ENOENT)))
    }

    /// Parent and name of a path in the model.
    fn place<'a>(&self, m: &Machine, path: &'a Path) -> Option<io::Result<(Node, &'a OsStr)>> {
        let parent = self.node(m, path.parent()?)?;
        Some(parent.map(|p| (p, path.file_name().unwrap_or_default())))
    }
}

/// A host with nothing but this resctrl.
pub fn mounted(hardware: Hardware) -> (tempfile::TempDir, ModelFiles, Root) {
    let dir = tempfile::tempdir().unwrap();
    let (files, root) = ModelFiles::mount(&Root::at(dir.path()), hardware, "");
    (dir, files, root)
}

fn mounts_options(shown: &str) -> String {
    if shown.is_empty() {
        "rw,relatime".into()
    } else {
        format!("rw,relatime,{}", shown.trim_start_matches(','))
    }
}

impl Files for ModelFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let m = self.machine();
        match self.node(&m, path) {
            None => HostFiles.read(path),
            Some(n) => m.read(n?).map_err(kernel_error),
        }
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut m = self.machine();
        match self.node(&m, path) {
            None => HostFiles.write(path, text),
            Some(n) => {
                let n = n?;
                m.open(n, false, true, Caller::ROOT).map_err(kernel_error)?;
                m.write(n, text.as_bytes(), Caller::ROOT).map(|_| ()).map_err(kernel_error)
            }
        }
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut m = self.machine();
        match self.place(&m, path) {
            None => HostFiles.make_dir(path),
            Some(at) => at.and_then(|(p, name)| m.mkdir(p, name, 0o755, Caller::ROOT).map(|_| ()).map_err(kernel_error)),
        }
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut m = self.machine();
        match self.place(&m, path) {
            None => HostFiles.remove_dir(path),
            Some(at) => at.and_then(|(p, name)| m.rmdir(p, name, Caller::ROOT).map_err(kernel_error)),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut m = self.machine();
        match (self.place(&m, from), self.place(&m, to)) {
            (Some(a), Some(b)) => {
                let ((p, name), (q, to_name)) = (a?, b?);
                m.rename(p, name, q, to_name, Caller::ROOT).map_err(kernel_error)
            }
            _ => HostFiles.rename(from, to),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let m = self.machine();
        match self.node(&m, dir) {
            None => HostFiles.list(dir),
            Some(n) => {
                let all = {
                    let n = n?;
                    m.tree().and_then(|t| t.list(n)).map_err(kernel_error)?
                };
                let mut names: Vec<String> = all.into_iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
                names.retain(|n| n != "." && n != "..");
                names.sort();
                Ok(names)
            }
        }
    }

    fn is_dir(&self, path: &Path) -> bool {
        let m = self.machine();
        match self.node(&m, path) {
            None => HostFiles.is_dir(path),
            Some(n) => n.is_ok_and(|n| m.tree().and_then(|t| t.what(n).map(|w| matches!(w, What::Dir(_)))).unwrap_or(false)),
        }
    }

    fn is_file(&self, path: &Path) -> bool {
        let m = self.machine();
        match self.node(&m, path) {
            None => HostFiles.is_file(path),
            Some(n) => n.is_ok_and(|n| m.tree().and_then(|t| t.what(n).map(|w| !matches!(w, What::Dir(_)))).unwrap_or(false)),
        }
    }

    fn writable(&self, path: &Path) -> bool {
        let m = self.machine();
        match self.node(&m, path) {
            None => HostFiles.writable(path),
            Some(n) => n.is_ok_and(|n| m.open(n, false, true, Caller::ROOT).is_ok()),
        }
    }
}

/// Intel-like: `domains` L3 domains of four CPUs, 2 MB a way, MBA in per cent, sixteen classes (eight with MBA).
pub fn intel(domains: u32, ways: u32) -> Hardware {
    Hardware {
        kernel: Kernel::parse("6.12").unwrap(),
        domains: (0..domains).map(|id| CacheDomain { id, cpus: (id * 4..id * 4 + 4).collect() }).collect(),
        llc_bytes: u64::from(ways) << 21,
        cbm_bits: ways,
        min_cbm_bits: 1,
        shareable_bits: 0,
        sparse_masks: false,
        l3_closids: 16,
        cdp: true,
        mba: Some(Mba { closids: 8, min: 10, step: 10, max: 100, linear: true, throttle_mode: Some("max") }),
        monitoring: Some(Monitoring {
            rmids: 64,
            scale_bytes: 65536,
            threshold_bytes: 65536,
            threshold_limit_bytes: ways << 21,
            faults: BTreeMap::new(),
        }),
        pseudo_locking: false,
    }
}

/// Called with the path of every write that was tried below.
type Look = Box<dyn Fn(&Path) + Send + Sync>;

/// What is changed through it, counted; one change of them fails.
pub struct Faulty {
    inner: SharedFiles,
    state: Mutex<Faults>,
    look: Look,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} with {:?}", self.inner, self.state)
    }
}

#[derive(Debug, Default)]
struct Faults {
    changes: u64,
    /// Number of the change (from 0) that fails, and how.
    fail: BTreeMap<u64, i32>,
    /// Number of the change before which the process ends.
    die_at: Option<u64>,
}

/// What a process that [`Faulty::die_at`] ended leaves for [`outlived`].
#[derive(Debug)]
struct Died;

/// What `f` returns; None where the process that it plays died in it.
pub fn outlived<T>(f: impl FnOnce() -> T) -> Option<T> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(done) => Some(done),
        Err(why) if why.is::<Died>() => None,
        Err(why) => std::panic::resume_unwind(why),
    }
}

impl Faulty {
    pub fn new(inner: SharedFiles) -> Arc<Self> {
        Self::watched(inner, Box::new(|_| {}))
    }

    pub fn watched(inner: SharedFiles, look: Look) -> Arc<Self> {
        Arc::new(Faulty { inner, state: Mutex::default(), look })
    }

    /// Count anew; the changes of these numbers fail with these errnos, and have no effect.
    pub fn arm(&self, fail: BTreeMap<u64, i32>) {
        *self.state.lock().unwrap() = Faults { fail, ..Faults::default() };
    }

    /// Count anew; the process ends before the change of this number, as by a kill: nothing of its own is done any more.
    pub fn die_at(&self, n: u64) {
        *self.state.lock().unwrap() = Faults { die_at: Some(n), ..Faults::default() };
    }

    /// Changes since [`Faulty::arm`], failed ones included.
    pub fn changes(&self) -> u64 {
        self.state.lock().unwrap().changes
    }

    fn step(&self) -> io::Result<()> {
        let mut s = self.state.lock().unwrap();
        let n = s.changes;
        s.changes += 1;
        if s.die_at.is_some_and(|at| n >= at) {
            drop(s);
            std::panic::resume_unwind(Box::new(Died));
        }
        s.fail.get(&n).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(*errno)))
    }
}

impl Files for Faulty {
    hand_on!(inner: read, list, is_dir, is_file, writable);
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.step()?;
        let done = self.inner.write(path, text);
        (self.look)(path);
        done
    }
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.inner.make_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        self.inner.remove_dir(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        self.inner.rename(from, to)
    }
    fn keep_safe(&self, layout: &SafeLayout) -> io::Result<()> {
        self.step()?;
        self.inner.keep_safe(layout)
    }
}

/// Groups of others in resctrl cannot be written, as by an actuator.
#[derive(Debug)]
pub struct Shut(pub SharedFiles);

impl Files for Shut {
    hand_on!(0: read, make_dir, remove_dir, rename, list, is_dir, is_file);
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        if self.writable(path) {
            return self.0.write(path, text);
        }
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
    fn writable(&self, path: &Path) -> bool {
        let other = path.iter().any(|n| n == "resctrl") && !path.iter().any(|n| n.to_string_lossy().starts_with("surefoot."));
        (!other || path.ends_with("resctrl/tasks")) && self.0.writable(path)
    }
}

/// Files of another, with something done before each write.
pub struct BeforeWrite<F>(pub SharedFiles, pub F);

impl<F> std::fmt::Debug for BeforeWrite<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BeforeWrite").field(&self.0).finish()
    }
}

impl<F: Fn(&Path, &str) + Send + Sync> Files for BeforeWrite<F> {
    hand_on!(0: read, make_dir, remove_dir, rename, list, is_dir, is_file, writable);
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        (self.1)(path, text);
        self.0.write(path, text)
    }
}

/// Lists of cpusets as the kernel takes them: a group with processes (every group here) keeps at least one CPU, and on v1 has no more than the
/// group above.
#[derive(Debug)]
pub struct Cpusets {
    pub inner: SharedFiles,
    pub v1: bool,
}

impl Cpusets {
    fn refuses(&self, path: &Path, text: &str) -> Option<i32> {
        if !path.ends_with("cpuset.cpus") && !path.ends_with("cpuset.mems") {
            return None;
        }
        let set = |t: &str| surefoot_server::CpuSet::parse(t.trim()).unwrap();
        if text.trim().is_empty() {
            return Some(libc::ENOSPC);
        }
        let above = path.parent()?.parent()?.join(path.file_name()?);
        let above = crate::files::text(self.inner.as_ref(), above).filter(|_| self.v1)?;
        (!set(text).is_subset(&set(&above))).then_some(libc::EACCES)
    }
}

impl Files for Cpusets {
    hand_on!(inner: read, make_dir, remove_dir, rename, list, is_dir, is_file, writable);
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.refuses(path, text).map_or_else(|| self.inner.write(path, text), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}
