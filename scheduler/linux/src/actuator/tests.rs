//! Client and actuator together, over a real socket; and hostile requests against a real tree.

#![allow(unsafe_code, reason = "a test that becomes another user")]

use super::protocol::{decode_reply, Request, SafeOp, VERSION};
use super::*;
use crate::cgroup::Mounts;
use crate::files::{Files, HostFiles, SharedFiles};
use crate::hand_on;
use crate::resctrl::Resctrl;
use crate::root::Root;
use crate::safe::{Op, SafeLayout};
use crate::testing::{intel, BeforeWrite, ModelFiles};
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{bind, connect, listen, recv, send, socket, AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

/// A v1 host with the cgroups /docker/c (allowed) and /docker2/c (not), threads 42 and 43 in the first and 7 in the second.
fn host() -> (tempfile::TempDir, Root) {
    let (dir, root) = crate::cgroup::tests::v1();
    let put = |path: &str, text: &str| {
        let p = root.path(path);
        fs::create_dir_all(p.parent().unwrap()).unwrap();
        fs::write(p, text).unwrap();
    };
    for (tid, cgroup) in [(7, "/docker2/c"), (43, "/docker/c")] {
        put(&format!("/proc/{tid}/cgroup"), &format!("3:cpuset:{cgroup}\n2:cpuacct:{cgroup}\n1:cpu:{cgroup}\n0::/\n"));
    }
    for c in ["cpu/docker2/c/cpu.cfs_quota_us", "cpuset/docker2/c/cpuset.cpus", "cpuset/docker/cpuset.cpus", "cpuset/cpuset.cpus"] {
        put(&format!("/sys/fs/cgroup/{c}"), "0-3\n");
    }
    (dir, root)
}

fn allowed(root: &Root) -> Allow {
    Allow::new(&Mounts::read(root), Resctrl::find(root).as_ref(), vec![Pattern::parse("/docker/*").unwrap()])
}

/// As in production: below the mounts of `root`.
fn actuator(root: &Root) -> Actuator {
    let allow = allowed(root);
    let files = Beneath::open(allow.dirs()).unwrap();
    Actuator::new(allow, Arc::new(files), root.clone())
}

pub(super) struct Serving {
    pub at: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Actuator>>,
}

impl Serving {
    pub fn start(mut a: Actuator, at: &Path, uid: u32) -> Self {
        let listener = Listener::bind(at).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let seen = stop.clone();
        let thread = std::thread::spawn(move || {
            a.serve(&listener, uid, || seen.load(Ordering::Relaxed)).unwrap();
            a
        });
        Serving { at: at.into(), stop, thread: Some(thread) }
    }

    pub fn end(mut self) -> Actuator {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub(super) fn own_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// What the model holds is read there; changes go through the actuator.
#[derive(Debug)]
struct Split {
    reads: ModelFiles,
    changes: RemoteFiles,
}

impl Files for Split {
    hand_on!(reads: read, list, is_dir, is_file);
    hand_on!(changes: write, make_dir, remove_dir, rename, writable);
}

/// Every operation does through the actuator what it does without, with the kernel's errno.
#[test]
fn a_cgroup_is_set_through_the_actuator() {
    let (dir, root) = host();
    let serving = Serving::start(actuator(&root), &dir.path().join("sock"), own_uid());
    let remote = Arc::new(RemoteFiles::connect(&serving.at).unwrap());
    let far = Root::with(root.path("/"), remote.clone());
    let c = Mounts::read(&far).named("/docker/c").unwrap();
    assert!(c.writable());
    c.set(crate::cgroup::Knob::Cpus, "1-2").unwrap();
    c.set(crate::cgroup::Knob::Quota, "3000 10000").unwrap();
    let at = |p: &str| root.path(format!("/sys/fs/cgroup/{p}"));
    assert_eq!(fs::read_to_string(at("cpuset/docker/c/cpuset.cpus")).unwrap(), "1-2");
    assert_eq!(fs::read_to_string(at("cpu/docker/c/cpu.cfs_period_us")).unwrap(), "10000");
    // A cgroup that nobody allowed cannot be taken under control at all.
    assert!(!Mounts::read(&far).named("/docker2/c").unwrap().writable());
    let e = remote.write(&at("cpuset/docker2/c/cpuset.cpus"), "1").unwrap_err();
    assert_eq!((e.raw_os_error(), e.kind()), (Some(libc::EPERM), io::ErrorKind::PermissionDenied));
    // An allowed file that is not there fails as it would here.
    let gone = at("cpu/docker/gone/cpu.shares");
    let (far, near) = (remote.write(&gone, "2").unwrap_err(), HostFiles.write(&gone, "2").unwrap_err());
    assert_eq!((far.raw_os_error(), far.to_string()), (near.raw_os_error(), near.to_string()));
    assert_eq!(remote.make_dir(&at("cpuset/docker/new")).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(remote.list(&at("cpuset/docker")).unwrap(), ["c", "cpuset.cpus"]);
    assert!(remote.is_dir(&at("cpuset/docker")) && remote.is_file(&at("cpuset/docker/cpuset.cpus")));
    let past_utf8 = Path::new(std::ffi::OsStr::new("/x")).join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff"));
    assert_eq!(remote.write(&past_utf8, "1").unwrap_err().raw_os_error(), Some(libc::EINVAL));
    drop(remote);
    serving.end();
}

/// A write that waits for the kernel on the second line keeps nothing else waiting; there is one such line.
#[test]
fn slow_writes_keep_nobody_waiting() {
    let (dir, root) = host();
    let at = |p: &str| root.path(format!("/sys/fs/cgroup/{p}"));
    fs::write(at("cpuset/docker/c/cpuset.mems"), "0").unwrap();
    let allow = allowed(&root);
    let (go, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    // Memory nodes are set only when somebody says so.
    let files = BeforeWrite(Arc::new(Beneath::open(allow.dirs()).unwrap()), move |path: &Path, _: &str| {
        if path.ends_with("cpuset.mems") {
            wait.lock().unwrap().recv().unwrap();
        }
    });
    let a = Actuator::new(allow, Arc::new(files), root.clone()).with_aside(|| {}).unwrap();
    let serving = Serving::start(a, &dir.path().join("sock"), own_uid());
    let remote = RemoteFiles::connect(&serving.at).unwrap();
    let aside = remote.aside().unwrap();
    // The line is there from the first word on.
    assert!(aside.writable(&at("cpuset/docker/c/cpuset.cpus")));
    let slow = std::thread::spawn({
        let (aside, path) = (aside.clone(), at("cpuset/docker/c/cpuset.mems"));
        move || aside.write(&path, "1")
    });
    remote.write(&at("cpuset/docker/c/cpuset.cpus"), "2").unwrap();
    assert!(!slow.is_finished() && fs::read_to_string(at("cpuset/docker/c/cpuset.mems")).unwrap() == "0");
    let third = remote.aside().unwrap().write(&at("cpuset/docker/c/cpuset.cpus"), "1").unwrap_err();
    assert!(third.to_string().contains("another client"), "{third}");
    go.send(()).unwrap();
    slow.join().unwrap().unwrap();
    assert_eq!(fs::read_to_string(at("cpuset/docker/c/cpuset.mems")).unwrap(), "1");
    // Free again for the next one, once the actuator has seen that it has gone.
    drop(aside);
    let again = remote.aside().unwrap();
    while !again.writable(&at("cpuset/docker/c/cpuset.cpus")) {
        std::thread::yield_now();
    }
    drop((again, remote));
    serving.end();
}

/// resctrl's groups through the actuator: made, filled, moved, removed; a thread of a foreign cgroup is not moved.
#[test]
fn resctrl_is_set_through_the_actuator() {
    let (dir, root) = host();
    let (files, root) = ModelFiles::mount(&root, intel(1, 11), "");
    [7u32, 42, 43].iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
    let a = Actuator::new(allowed(&root), Arc::new(files.clone()), root.clone());
    let serving = Serving::start(a, &dir.path().join("sock"), own_uid());
    let changes = RemoteFiles::connect(&serving.at).unwrap();
    let split: SharedFiles = Arc::new(Split { reads: files.clone(), changes });
    let at = |p: &str| root.path("/sys/fs/resctrl").join(p);
    split.make_dir(&at("surefoot.moses")).unwrap();
    split.write(&at("surefoot.moses/schemata"), "L3:0=30\nMB:0=40\n").unwrap();
    ["42\n", "43\n"].iter().for_each(|t| split.write(&at("surefoot.moses/tasks"), t).unwrap());
    let shown = |p: &str| String::from_utf8(files.read(&at(p)).unwrap()).unwrap();
    assert!(shown("surefoot.moses/schemata").contains("L3:0=030") && shown("surefoot.moses/schemata").contains("MB:0= 40"));
    assert_eq!(shown("surefoot.moses/tasks"), "42\n43\n");
    // A thread that is not of an allowed service stays; one that has gone says so.
    assert_eq!(split.write(&at("surefoot.moses/tasks"), "7\n").unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(split.write(&at("surefoot.moses/tasks"), "99\n").unwrap_err().raw_os_error(), Some(libc::ESRCH));
    // The kernel's own refusals keep their errno, and its words can be read.
    assert_eq!(split.write(&at("surefoot.moses/schemata"), "L3:0=5\n").unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert!(shown("info/last_cmd_status").contains("non-consecutive"));
    split.make_dir(&at("surefoot.moses/mon_groups/m")).unwrap();
    split.write(&at("surefoot.moses/mon_groups/m/tasks"), "42\n").unwrap();
    split.make_dir(&at("surefoot.b")).unwrap();
    split.rename(&at("surefoot.moses/mon_groups/m"), &at("surefoot.b/mon_groups/m")).unwrap();
    assert_eq!(shown("surefoot.b/tasks"), "42\n");
    split.make_dir(&at("foreign")).unwrap_err();
    files.make_dir(&at("foreign")).unwrap();
    assert_eq!(split.remove_dir(&at("foreign")).unwrap_err().raw_os_error(), Some(libc::EPERM));
    (0..4).for_each(|n| split.make_dir(&at(&format!("surefoot.{n}"))).unwrap());
    assert_eq!(split.make_dir(&at("surefoot.full")).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    let ours = || files.list(&at("")).unwrap().into_iter().filter(|n| n.starts_with("surefoot."));
    ours().for_each(|g| split.remove_dir(&at(&g)).unwrap());
    assert_eq!(ours().count(), 0);
    serving.end();
}

fn dial(at: &Path) -> OwnedFd {
    let line = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(line.as_raw_fd(), &UnixAddr::new(at).unwrap()).unwrap();
    line
}

fn hear(line: &OwnedFd) -> Option<(i32, String)> {
    let mut buffer = vec![0; 1 << 17];
    let n = recv(line.as_raw_fd(), &mut buffer, MsgFlags::empty()).ok().filter(|n| *n > 0)?;
    let (errno, _, payload) = decode_reply(&buffer[..n]).unwrap();
    Some((errno, String::from_utf8_lossy(payload).into_owned()))
}

/// Bytes that are no request are answered with EPROTO, and the client is served on; so is one after a client that vanished.
#[test]
fn malformed_messages_harm_nobody() {
    let (dir, root) = host();
    let serving = Serving::start(actuator(&root), &dir.path().join("sock"), own_uid());
    let f = root.path("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus");
    let good = Request::Write { path: f.to_str().unwrap(), text: "3" }.encode().unwrap();
    let line = dial(&serving.at);
    assert_eq!(hear(&line).unwrap().0, 0);
    let long = vec![VERSION; protocol::MAX_REQUEST + 1];
    for bad in [&[0u8][..], &[VERSION], &[VERSION, 200], &[VERSION, 2, 255, 255, 255, 255], &[9, 9, 9], &long, &good[..good.len() - 1]] {
        send(line.as_raw_fd(), bad, MsgFlags::empty()).unwrap();
        assert_eq!(hear(&line).unwrap().0, libc::EPROTO);
    }
    send(line.as_raw_fd(), &good, MsgFlags::empty()).unwrap();
    assert_eq!((hear(&line).unwrap().0, fs::read_to_string(&f).unwrap().as_str()), (0, "3"));
    // A client that goes with its answer unread.
    send(line.as_raw_fd(), &good, MsgFlags::empty()).unwrap();
    drop(line);
    RemoteFiles::connect(&serving.at).unwrap().write(&f, "0").unwrap();
    serving.end();
}

/// The second client is told why it is not served, and is once the first has gone.
#[test]
fn one_client_at_a_time() {
    let (dir, root) = host();
    let serving = Serving::start(actuator(&root), &dir.path().join("sock"), own_uid());
    let first = RemoteFiles::connect(&serving.at).unwrap();
    let e = RemoteFiles::connect(&serving.at).unwrap_err();
    assert!(e.kind() == io::ErrorKind::ResourceBusy && e.to_string().contains("another client") && e.raw_os_error().is_none(), "{e}");
    let f = root.path("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus");
    first.write(&f, "1").unwrap();
    drop(first);
    let second = RemoteFiles::connect(&serving.at).unwrap();
    second.write(&f, "2").unwrap();
    drop(second);
    serving.end();
}

/// A client outlives its actuator: the line is dialled anew, and an actuator that is away is no file's error.
#[test]
fn the_actuator_may_be_restarted() {
    let (dir, root) = host();
    let at = dir.path().join("sock");
    let f = root.path("/sys/fs/cgroup/cpuset/docker/c/cpuset.cpus");
    assert!(RemoteFiles::connect(&at).unwrap_err().to_string().contains("sock: "));
    let serving = Serving::start(actuator(&root), &at, own_uid());
    let remote = RemoteFiles::connect(&at).unwrap();
    remote.write(&f, "1").unwrap();
    let a = serving.end();
    let e = remote.write(&f, "2").unwrap_err();
    assert!(e.raw_os_error().is_none() && e.kind() == io::ErrorKind::NotConnected, "{e:?}");
    let serving = Serving::start(a, &at, own_uid());
    remote.write(&f, "3").unwrap();
    assert_eq!(fs::read_to_string(&f).unwrap(), "3");
    drop(remote);
    serving.end();
}

/// Who is let in by an actuator that goes away before it has said a word has asked nothing of anybody.
#[test]
fn an_actuator_may_go_before_it_greets() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("sock");
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&at).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let client = std::thread::spawn(move || RemoteFiles::connect(&at).map(|_| ()).unwrap_err());
    poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
    drop(listener);
    let e = client.join().unwrap();
    assert!(e.raw_os_error().is_none() && e.kind() == io::ErrorKind::NotConnected, "{e:?}");
}

/// The kernel's word on who connects decides: another user is refused, the configured one served.
#[test]
fn only_the_configured_user_is_served() {
    const NOBODY: u32 = 65_534;
    if own_uid() != 0 {
        eprintln!("NOT RUN: only_the_configured_user_is_served: needs root to become another user. Run the tests as root");
        return;
    }
    let (dir, root) = host();
    let at = dir.path().join("sock");
    nix::sys::stat::fchmodat(
        nix::fcntl::AT_FDCWD,
        dir.path(),
        nix::sys::stat::Mode::from_bits_truncate(0o755),
        nix::sys::stat::FchmodatFlags::FollowSymlink,
    )
    .unwrap();
    let as_nobody = |at: PathBuf| {
        let become_nobody = move || {
            // SAFETY: the system call itself, and not libc's function, changes this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
            RemoteFiles::connect(&at).map(|r| r.write(Path::new("/etc/passwd"), "x").unwrap_err().raw_os_error())
        };
        std::thread::spawn(become_nobody).join().unwrap()
    };
    let serving = Serving::start(actuator(&root), &at, 1234);
    let e = as_nobody(at.clone()).unwrap_err();
    assert!(e.kind() == io::ErrorKind::PermissionDenied && e.to_string().contains("user 65534 is not served"), "{e}");
    let a = serving.end();
    let serving = Serving::start(a, &at, NOBODY);
    assert_eq!(as_nobody(at.clone()).unwrap(), Some(libc::EPERM));
    serving.end();
}

/// Where this process may not look, the actuator does; what it may not tell stays EACCES.
#[test]
fn reads_fall_back_on_the_actuator() {
    if own_uid() != 0 {
        eprintln!("NOT RUN: reads_fall_back_on_the_actuator: needs root to become another user. Run the tests as root");
        return;
    }
    let (dir, root) = host();
    let at = dir.path().join("sock");
    let long: String = (0..40_000).map(|n| format!("{n}\n")).collect();
    fs::write(root.path("/sys/fs/cgroup/cpuset/docker/c/tasks"), &long).unwrap();
    let shut = |p: PathBuf| fs::set_permissions(p, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let open = |p: &Path| fs::set_permissions(p, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    open(dir.path());
    ["cpuset/docker/c", "cpuset/docker2/c"].iter().for_each(|d| shut(root.path(format!("/sys/fs/cgroup/{d}"))));
    let serving = Serving::start(actuator(&root), &at, 65_534);
    let look = move || {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        let remote = RemoteFiles::connect(&at).unwrap();
        let c = root.path("/sys/fs/cgroup/cpuset/docker/c");
        assert_eq!(HostFiles.read(&c.join("tasks")).unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert_eq!(remote.read(&c.join("tasks")).unwrap(), long.as_bytes());
        assert_eq!(remote.list(&c).unwrap(), ["cgroup.procs", "cpuset.cpus", "sub", "tasks"]);
        assert!(remote.is_dir(&c.join("sub")) && remote.is_file(&c.join("tasks")) && !remote.is_file(&c.join("no")));
        let other = root.path("/sys/fs/cgroup/cpuset/docker2/c");
        assert_eq!(remote.read(&other.join("cpuset.cpus")).unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert!(!remote.is_file(&other.join("cpuset.cpus")));
    };
    std::thread::spawn(look).join().unwrap();
    serving.end();
}

/// A client that dies leaves its safe layout in force; one that says goodbye leaves things as they are. A layout with one
/// write that is not allowed is not kept at all.
#[test]
fn a_client_that_dies_leaves_the_safe_layout() {
    let (dir, root) = host();
    let at = |p: &str| root.path(format!("/sys/fs/cgroup/{p}"));
    let (cpus, quota) = (at("cpuset/docker/c/cpuset.cpus"), at("cpu/docker/c/cpu.cfs_quota_us"));
    let dead_man = || DeadMan::open(&dir.path().join("state"), "boot", std::time::Instant::now()).unwrap();
    let serving = Serving::start(actuator(&root).with_dead_man(dead_man()), &dir.path().join("sock"), own_uid());
    let write = |path: &Path, text: &str| Op::Write { path: path.into(), text: text.into() };
    // The service of the second has gone, which is no reason not to make the third.
    let safe = SafeLayout::new(vec![write(&cpus, "0-3"), write(&at("cpu/docker/gone/cpu.shares"), "2"), write(&quota, "-1")]);
    let remote = RemoteFiles::connect(&serving.at).unwrap();
    remote.keep_safe(&safe).unwrap();
    for bad in [write(&at("cpuset/docker2/c/cpuset.cpus"), "1"), Op::RemoveDir { path: at("cpuset/docker/c") }] {
        let foreign = SafeLayout::new(vec![write(&cpus, "1"), bad]);
        assert_eq!(remote.keep_safe(&foreign).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    remote.write(&cpus, "1").unwrap();
    remote.write(&quota, "5000").unwrap();
    drop(remote);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fs::read_to_string(&quota).unwrap() != "-1" {
        assert!(std::time::Instant::now() < deadline, "the safe layout never came");
        std::thread::yield_now();
    }
    assert_eq!(fs::read_to_string(&cpus).unwrap(), "0-3");
    // After a goodbye what is there stays, also when the actuator ends and begins anew.
    let remote = RemoteFiles::connect(&serving.at).unwrap();
    remote.write(&cpus, "2").unwrap();
    remote.keep_safe(&SafeLayout::default()).unwrap();
    drop(remote);
    serving.end();
    assert!(dead_man().layout().ops.is_empty() && fs::read_to_string(&cpus).unwrap() == "2");
    // An actuator that is ended while it waits for a decider does not wait on.
    let serving = Serving::start(actuator(&root).with_dead_man(dead_man()), &dir.path().join("sock"), own_uid());
    let remote = RemoteFiles::connect(&serving.at).unwrap();
    remote.keep_safe(&SafeLayout::new(safe.ops[..1].to_vec())).unwrap();
    drop(remote);
    serving.end();
    assert_eq!(fs::read_to_string(&cpus).unwrap(), "0-3");
}

/// Files and folders with what they hold, links by name.
pub(super) fn snapshot(dir: &Path, into: &mut BTreeMap<PathBuf, String>) {
    for e in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let kind = e.file_type().unwrap();
        let text = if kind.is_symlink() {
            format!("-> {}", fs::read_link(e.path()).unwrap().display())
        } else if kind.is_dir() {
            snapshot(&e.path(), into);
            "folder".into()
        } else {
            fs::read_to_string(e.path()).unwrap()
        };
        into.insert(e.path(), text);
    }
}

/// A tree with everything that a hostile client could hope for: links out of it, foreign groups, neighbours with like names.
fn trap() -> (tempfile::TempDir, Root) {
    let (dir, root) = host();
    let at = |p: &str| root.path(p);
    for d in
        ["surefoot.x/mon_groups/m", "surefoot.y/mon_groups", "foreign/mon_groups/m", "mon_groups/surefoot.m", "mon_groups/m", "info/L3"]
    {
        fs::create_dir_all(at("/sys/fs/resctrl").join(d)).unwrap();
    }
    for f in
        ["schemata", "tasks", "mode", "info/L3/cbm_mask", "foreign/schemata", "foreign/tasks", "surefoot.x/schemata", "surefoot.x/tasks"]
    {
        fs::write(at("/sys/fs/resctrl").join(f), "old\n").unwrap();
    }
    for f in ["surefoot.x/mode", "surefoot.x/size", "surefoot.x/mon_groups/m/tasks", "mon_groups/m/tasks", "mon_groups/surefoot.m/tasks"] {
        fs::write(at("/sys/fs/resctrl").join(f), "old\n").unwrap();
    }
    fs::create_dir(at("/etc")).unwrap();
    for f in ["passwd", "schemata", "cpuset.cpus", "tasks"] {
        fs::write(at("/etc").join(f), "old\n").unwrap();
    }
    symlink("/etc", at("/sys/fs/resctrl/surefoot.link")).unwrap();
    symlink("../../../etc", at("/sys/fs/resctrl/surefoot.up")).unwrap();
    symlink("../foreign/schemata", at("/sys/fs/resctrl/surefoot.y/schemata")).unwrap();
    symlink("../../../../../etc", at("/sys/fs/cgroup/cpuset/docker/link")).unwrap();
    symlink("../../docker2/c/cpuset.cpus", at("/sys/fs/cgroup/cpuset/docker/c/cpuset.mems")).unwrap();
    fs::write(at("/proc/mounts"), "resctrl /sys/fs/resctrl resctrl rw 0 0\n").unwrap();
    (dir, root)
}

/// Names that hostile paths are made of.
fn name() -> impl Strategy<Value = String> {
    let known = [
        "",
        ".",
        "..",
        "...",
        "sys",
        "fs",
        "cgroup",
        "resctrl",
        "cpuset",
        "cpu",
        "docker",
        "docker2",
        "c",
        "link",
        "sub",
        "surefoot.x",
        "surefoot.y",
        "surefoot.link",
        "surefoot.up",
        "surefoot.",
        "surefoot",
        "surefoot.new",
        "foreign",
        "mon_groups",
        "m",
        "surefoot.m",
        "info",
        "L3",
        "cbm_mask",
        "schemata",
        "tasks",
        "mode",
        "cpuset.cpus",
        "cpuset.mems",
        "cgroup.procs",
        "etc",
        "passwd",
        "proc",
        "self",
        "root",
        "surefoot.x\0",
        "c\n",
        "*",
        "surefoot.x/../foreign",
        "é",
    ];
    prop_oneof![20 => proptest::sample::select(known.to_vec()).prop_map(str::to_string), 1 => Just("n".repeat(300)), 1 => ".{0,8}"]
}

/// Mostly below the mounts, where the rules have to tell.
fn path() -> impl Strategy<Value = String> {
    let base = proptest::sample::select(
        &["/sys/fs/resctrl", "/sys/fs/cgroup/cpuset/docker", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/cpu/docker", "", "/etc"][..],
    );
    (base, proptest::collection::vec(name(), 0..5)).prop_map(|(b, names)| names.iter().fold(b.to_string(), |p, n| p + "/" + n))
}

fn value() -> impl Strategy<Value = String> {
    let known =
        ["0-1", "1", "3\n", "42\n", "7\n", "43", "L3:0=3\n", "exclusive", "pseudo-locksetup", "max", "-1", "", "+cpu", "0\n1\n", "\0"];
    prop_oneof![8 => proptest::sample::select(known.to_vec()).prop_map(str::to_string), 1 => ".{0,12}", 1 => Just("1,".repeat(4000))]
}

/// Paths as they are, or below the temporary folder (most): number of the operation, path, path or value.
fn request() -> impl Strategy<Value = (u8, bool, String, String, String)> {
    (0u8..9, proptest::bool::weighted(0.95), path(), path(), value())
}

/// What may differ afterwards: an oracle that shares nothing with the rules but the words of the documentation.
fn may_change(below: &str) -> bool {
    let names: Vec<&str> = below.split('/').collect();
    let ours = |n: &str| n.len() > 9 && n.starts_with("surefoot.");
    match names.as_slice() {
        ["sys", "fs", "cgroup", "cpuset", "docker", "c", file] => ["cpuset.cpus", "cpuset.mems"].contains(file),
        ["sys", "fs", "cgroup", "cpu", "docker", "c", file] => ["cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"].contains(file),
        ["sys", "fs", "resctrl", "tasks"] => true,
        ["sys", "fs", "resctrl", "mon_groups", m] | ["sys", "fs", "resctrl", "mon_groups", m, "tasks"] => ours(m),
        ["sys", "fs", "resctrl", g] => ours(g),
        ["sys", "fs", "resctrl", g, "schemata" | "tasks"] => ours(g),
        ["sys", "fs", "resctrl", g, "mon_groups", _] | ["sys", "fs", "resctrl", g, "mon_groups", _, "tasks"] => ours(g),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    /// 120 times 120 hostile requests, with openat2 and without: nothing outside the allow-list changes, and links stay links.
    #[test]
    fn hostile_requests_change_nothing_outside(walking in any::<bool>(), requests in proptest::collection::vec(request(), 120)) {
        let (dir, root) = trap();
        let allow = allowed(&root);
        let files = Beneath::open(allow.dirs()).unwrap();
        let files = if walking { files.walking() } else { files };
        let mut a = Actuator::new(allow, Arc::new(files), root.clone());
        let mut before = BTreeMap::new();
        snapshot(dir.path(), &mut before);
        for (operation, inside, one, two, text) in &requests {
            let full = |p: &str| if *inside { format!("{}{p}", dir.path().display()) } else { p.to_string() };
            let (one, two) = (full(one), full(two));
            let request = match operation {
                0 | 1 => Request::Write { path: &one, text },
                2 => Request::MakeDir(&one),
                3 => Request::RemoveDir(&one),
                4 => Request::Rename { from: &one, to: &two },
                5 => Request::Read(&one),
                6 => Request::List(&one),
                7 => Request::Writable(&one),
                _ => Request::KeepSafe(vec![SafeOp::Write { path: &one, text }, SafeOp::RemoveDir { path: &two }]),
            };
            let Ok(message) = request.encode() else { continue };
            let reply = a.handle(&message);
            // Not a word of what lies outside.
            if matches!(request, Request::Read(_)) && reply.errno == 0 {
                prop_assert!(one.contains("/sys/fs/resctrl") || one.contains("/sys/fs/cgroup/cpu"), "{} was read", one);
            }
        }
        let mut now = BTreeMap::new();
        snapshot(dir.path(), &mut now);
        let paths: std::collections::BTreeSet<&PathBuf> = before.keys().chain(now.keys()).collect();
        for p in paths.into_iter().filter(|p| before.get(*p) != now.get(*p)) {
            let below = p.strip_prefix(dir.path()).unwrap().to_str().unwrap();
            prop_assert!(may_change(below), "{} was {:?}, is {:?}", below, before.get(p), now.get(p));
            prop_assert!(!before.get(p).is_some_and(|t| t.starts_with("-> ")), "{} is a link and was touched", below);
        }
    }
}

/// The property test has teeth: the same hostile requests without the rules do change what lies outside.
#[test]
fn without_rules_the_trap_springs() {
    let (dir, root) = trap();
    let mut before = BTreeMap::new();
    snapshot(dir.path(), &mut before);
    HostFiles.write(&root.path("/sys/fs/resctrl/surefoot.up/schemata"), "x").unwrap();
    HostFiles.write(&root.path("/sys/fs/resctrl/surefoot.x/../foreign/schemata"), "x").unwrap();
    let mut now = BTreeMap::new();
    snapshot(dir.path(), &mut now);
    let changed: Vec<&PathBuf> = now.keys().filter(|p| before.get(*p) != now.get(*p)).collect();
    let outside = |p: &&&PathBuf| !may_change(p.strip_prefix(dir.path()).unwrap().to_str().unwrap());
    assert_eq!(changed.iter().filter(outside).count(), 2, "{changed:?}");
}

/// A process with the rights that goes by the list changes what a client of the actuator could, and nothing else; links lead it nowhere.
#[test]
fn a_guarded_process_is_bound_by_the_list() {
    let (dir, root) = host();
    let allow = allowed(&root);
    let guarded = Guarded::new(allow, root.clone(), None).unwrap();
    let at = |p: &str| root.path(format!("/sys/fs/cgroup/{p}"));
    let (good, foreign, victim) = (at("cpuset/docker/c/cpuset.cpus"), at("cpuset/docker2/c/cpuset.cpus"), dir.path().join("victim"));
    fs::write(&victim, "precious").unwrap();
    guarded.write(&good, "1").unwrap();
    assert!(fs::read_to_string(&good).unwrap() == "1" && guarded.writable(&good) && guarded.read(&root.path("/proc/43/cgroup")).is_ok());
    let said = guarded.write(&foreign, "1").unwrap_err();
    assert!(said.kind() == io::ErrorKind::PermissionDenied && said.to_string().contains("names no such cgroup"), "{said}");
    for path in
        [victim.clone(), at("cpuset/docker/../../../../victim"), at("cpuset/docker/c/cgroup.procs"), at("cpuset/docker/c/x/../cpuset.cpus")]
    {
        assert!(guarded.write(&path, "1").is_err() && !guarded.writable(&path), "{path:?}");
        assert!(guarded.make_dir(&path).is_err() && guarded.remove_dir(&path).is_err() && guarded.rename(&path, &good).is_err());
    }
    fs::remove_file(&good).unwrap();
    symlink(&victim, &good).unwrap();
    assert!(guarded.write(&good, "1").is_err() && guarded.read(&good).is_err() && !guarded.is_file(&good));
    assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), fs::read_to_string(&foreign).unwrap().as_str()), ("precious", "0-3\n"));
}
