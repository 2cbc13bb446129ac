//! The actuator's side: judge, carry out, answer. One client at a time, which may have a second line: what waits for the kernel to
//! move memory is asked there and carried out in a thread of its own, so that no other write has to wait for it.
//!
//! Beside the allow-list there is what a file had before its first write ([`record`](super::record)): it bounds what the file may get, and is put
//! back when the client is gone.

#![allow(unsafe_code, reason = "descriptors that the kernel or the service manager hands over")]

use super::allow::{Allow, Further, Refused};
use super::deadman::DeadMan;
use super::known::Known;
use super::limits::{Making, Watchful};
use super::line::Line;
use super::protocol::{decode, Reply, Request, SafeOp, MAX_REQUEST};
use super::record::{knob_of, no_more, Key, Record};
use crate::cgroup::{Knob, Mounts};
use crate::files::{text as text_of, Files, SharedFiles};
use crate::handed::Handed;
use crate::memory::OnCpus;
use crate::own::Folder;
use crate::resctrl::{held_by_others, PREFIX};
use crate::root::Root;
use crate::safe::{Op, SafeLayout, SafeReport};
use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::socket::sockopt::{PeerCredentials, SendTimeout};
use nix::sys::socket::{accept4, bind, getsockopt, listen, recv, send, sendmsg, setsockopt, socket, ControlMessage};
use nix::sys::socket::{AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr};
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the loop looks whether it should end.
const LOOK: Duration = Duration::from_millis(500);
/// Between two words on how many more were refused.
const SAID_AGAIN: Duration = Duration::from_secs(60);
/// Users whose first refusal is said; a user can have thousands of ids (user namespaces).
const MOST_SAID: usize = 64;
/// A client that does not take its answer for so long is gone.
const PATIENCE_S: i64 = 2;

/// Judges and carries out. Knows nothing of sockets; each thread has its own.
#[derive(Clone, Debug)]
pub(super) struct Hands {
    pub(super) allow: Allow,
    pub(super) files: SharedFiles,
    /// Where the cgroup of a thread is looked up.
    root: Root,
    mounts: Mounts,
    /// What there was before; None: nobody keeps it.
    /// It acts on what another user could have written: what is known of former values without that user's word.
    pub(super) word_of_others: Option<Arc<Known>>,
    record: Option<Arc<Mutex<Record>>>,
    making: Arc<Mutex<Making>>,
    /// Whether the client that asks is still served; None: always.
    served: Option<Arc<AtomicBool>>,
    /// Programs in the kernel for the client, or why there are none.
    running: Arc<Result<Handed, String>>,
    /// It has been said that reclaim costs other CPUs than those of the group.
    elsewhere: Arc<AtomicBool>,
}

/// Carries out what the allow-list lets through.
#[derive(Debug)]
pub struct Actuator {
    hands: Hands,
    dead_man: Option<DeadMan>,
    aside: Option<Aside>,
}

/// The thread for the second line of a client.
#[derive(Debug)]
struct Aside {
    lines: Sender<(Line, Arc<AtomicBool>)>,
    /// It has a line.
    busy: Arc<AtomicBool>,
}

impl Actuator {
    /// `files` carries out; `root` is where /proc is read.
    pub fn new(allow: Allow, files: SharedFiles, root: Root) -> Self {
        Actuator { hands: Hands::new(allow, files, root), dead_man: None, aside: None }
    }

    /// Keep what was there before the first write of each file, and go on from what an actuator of the same boot kept: its client counts as
    /// one that has just gone. To be called after [`Actuator::with_dead_man`] and before [`Actuator::with_aside`].
    ///
    /// # Errors
    /// Of the disk.
    pub fn with_record(mut self, mut record: Record) -> io::Result<Self> {
        if let Some(d) = self.dead_man.as_mut() {
            let ops = &d.layout().ops;
            if record.is_new() && !ops.is_empty() {
                // Left with an earlier release, which kept no record: the layout is all that is known.
                let keys = ops.iter().filter_map(|op| Some(knob_of(op.path(), &self.hands.files, &self.hands.mounts)?.0));
                let groups = ops.iter().filter(|op| matches!(op, Op::RemoveDir { .. })).map(|op| op.path().to_path_buf());
                record.changed_before(keys.collect::<Vec<_>>().into_iter(), groups.collect::<Vec<_>>().into_iter())?;
            }
            d.client_left(Instant::now(), !record.is_empty());
        }
        self.hands.record = Some(Arc::new(Mutex::new(record)));
        Ok(self)
    }

    /// Keep a layout for when a client dies.
    pub fn with_dead_man(self, dead_man: DeadMan) -> Self {
        Actuator { dead_man: Some(dead_man), ..self }
    }

    /// Hand these programs to clients. To be called before [`Actuator::with_aside`].
    pub fn with_running(mut self, running: Result<Handed, String>) -> Self {
        self.hands.running = Arc::new(running);
        self
    }

    /// Give clients a second line, served by a thread that first does `begin`. Without it there is none.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn with_aside(self, begin: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let (lines, taken) = channel::<(Line, Arc<AtomicBool>)>();
        let busy = Arc::new(AtomicBool::new(false));
        let (mut hands, idle) = (self.hands.clone(), busy.clone());
        let run = move || {
            begin();
            let mut buffer = vec![0u8; MAX_REQUEST + 1];
            for (line, served) in taken {
                hands.served = Some(served);
                while hands.answer(&line, &mut buffer, MsgFlags::empty(), &mut |_| Err(unable())) {}
                drop(line);
                idle.store(false, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("aside".into()).spawn(run)?;
        Ok(Actuator { aside: Some(Aside { lines, busy }), ..self })
    }

    /// Answer one message. Everything refused is logged with path and rule.
    pub fn handle(&mut self, message: &[u8]) -> Reply {
        let (hands, dead_man) = (&self.hands, &mut self.dead_man);
        hands.handle(message, &mut |ops| hands.keep(dead_man.as_mut(), ops)).0
    }
}

/// Leaves a layout for later.
type Keep<'a> = &'a mut dyn FnMut(&[SafeOp<'_>]) -> io::Result<()>;

fn unable() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}

impl Hands {
    pub(super) fn new(allow: Allow, files: SharedFiles, root: Root) -> Self {
        let mounts = Mounts::read(&root);
        let making = Making::new(allow.terms().services);
        Hands {
            allow,
            files,
            root,
            mounts,
            record: None,
            word_of_others: None,
            making: Arc::new(Mutex::new(making)),
            served: None,
            running: Arc::new(Err("it has loaded none".into())),
            elsewhere: Arc::default(),
        }
    }

    fn record(&self) -> Option<MutexGuard<'_, Record>> {
        self.record.as_ref().map(|r| r.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a client leaves for later; and what it does not speak of any more need not be known any more, once it is in force again.
    fn keep(&self, dead_man: Option<&mut DeadMan>, ops: &[SafeOp<'_>]) -> io::Result<()> {
        dead_man.ok_or_else(unable)?.keep(ops)?;
        if let Some(mut record) = self.record() {
            record.spoken_of(&ops.iter().filter_map(|op| Some(knob_of(op.path().as_ref(), &self.files, &self.mounts)?.0)).collect());
        }
        Ok(())
    }

    /// The reply, and descriptors that go along.
    fn handle(&self, message: &[u8], keep: Keep<'_>) -> (Reply, &[OwnedFd]) {
        let request = match decode(message) {
            Ok(r) => r,
            Err(e) => {
                tracing::warn!("refused a message of {} bytes: {e}", message.len());
                return (Reply::refused(libc::EPROTO, e.to_string()), &[]);
            }
        };
        if request == Request::Running {
            return match self.running.as_ref() {
                Ok(handed) => (Reply::done(handed.said.as_bytes()), &handed.descriptors),
                Err(why) => (Reply::refused(libc::EOPNOTSUPP, why.as_str()), &[]),
            };
        }
        let reply = match self.carry_out(&request, keep) {
            Ok(Ok(payload)) => Reply::done(payload),
            Ok(Err(e)) => Reply::failed(&e),
            Err((path, rule)) => {
                // Escaped: a path of the client's must not forge lines of the log.
                let words = format!("{}: {rule}", path.escape_debug());
                tracing::warn!("refused {words}");
                Reply::refused(libc::EPERM, words)
            }
        };
        (reply, &[])
    }

    /// The outer error is a refusal, the inner one the kernel's.
    #[allow(clippy::type_complexity)]
    fn carry_out<'a>(&self, request: &Request<'a>, keep: Keep<'_>) -> Result<io::Result<Vec<u8>>, (&'a str, Refused)> {
        if self.served.as_ref().is_some_and(|s| !s.load(Ordering::Acquire)) {
            // What it left behind counts now.
            return Ok(Err(io::Error::from_raw_os_error(libc::ESHUTDOWN)));
        }
        let f = &self.files;
        let nothing = |()| vec![];
        let truth = |yes: bool| Ok(vec![u8::from(yes)]);
        let named = |path: &'a str| move |rule: Refused| (path, rule);
        Ok(match *request {
            Request::Read(p) => self.allow.read(p).map(|()| f.read(p.as_ref())).map_err(named(p))?,
            Request::List(p) => {
                let names = self.allow.look(p).map(|()| f.list(p.as_ref())).map_err(named(p))?;
                names.map(|n| n.iter().flat_map(|n| n.bytes().chain([0])).collect())
            }
            Request::IsDir(p) => self.allow.look(p).map(|()| truth(f.is_dir(p.as_ref()))).map_err(named(p))?,
            Request::IsFile(p) => self.allow.read(p).map(|()| truth(f.is_file(p.as_ref()))).map_err(named(p))?,
            Request::Writable(p) => self.allow.open(p).map(|()| truth(f.writable(p.as_ref()))).map_err(named(p))?,
            Request::Write { path, text } => self.write(path, text).map_err(named(path))?.map(nothing),
            Request::MakeDir(p) => self.allow.group(p).map(|()| self.make(p.as_ref())).map_err(named(p))?.map(nothing),
            Request::RemoveDir(p) => self.allow.group(p).map(|()| self.remove(p.as_ref())).map_err(named(p))?.map(nothing),
            Request::Rename { from, to } => {
                self.allow.rename(from, to).map(|()| self.rename(from.as_ref(), to.as_ref())).map_err(named(from))?.map(nothing)
            }
            Request::KeepSafe(ref ops) => {
                for op in ops {
                    match *op {
                        SafeOp::Write { path, text } => self.allow.write(path, text).map(|_| ()).map_err(named(path))?,
                        SafeOp::RemoveDir { path } => self.allow.group(path).map_err(named(path))?,
                    }
                }
                keep(ops).map(nothing)
            }
            // Answered where descriptors can go along.
            Request::Running => Err(unable()),
        })
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<io::Result<()>, Refused> {
        let watchful = Watchful { allow: &self.allow, files: &self.files, mounts: &self.mounts };
        let mut of_cgroup = None;
        match self.allow.write(path, text)? {
            Further::Nothing => {}
            Further::Thread(tid) => match self.may_move(tid) {
                None => return Ok(Err(io::Error::from_raw_os_error(libc::ESRCH))),
                Some(false) => return Err(Refused(format!("thread {tid} runs in no cgroup that the configuration names"))),
                Some(true) => self.leaves_none_of_others(tid)?,
            },
            Further::Ways => watchful.ways(path.as_ref())?,
            Further::Cgroup => {
                let Some((key, group)) = knob_of(path.as_ref(), &self.files, &self.mounts) else {
                    return Err(Refused("this file of a cgroup is no knob".into()));
                };
                let mut former = None;
                if let Some(mut record) = self.record() {
                    if let Err(e) = record.before(&key, &group) {
                        return Ok(Err(e));
                    }
                    former = record.former(&key).map(str::to_string);
                }
                if let Some(known) = &self.word_of_others {
                    former = known.former(&key, &group);
                }
                watchful.value(&key, &group, text.trim_end(), former.as_deref())?;
                of_cgroup = Some(key);
            }
        }
        let there = self.at_the_expense_of(path.as_ref());
        let done = self.files.write(path.as_ref(), text);
        drop(there);
        if let Some(key) = of_cgroup.filter(|_| self.served.as_ref().is_some_and(|s| !s.load(Ordering::Acquire))) {
            // Its client has gone while this waited for the kernel, and what was there before is in force again: but for this.
            if let Err(e) = self.record().map_or(Ok(()), |r| r.put_one_back(&key)) {
                tracing::warn!("{}: {e}", key.dir.display());
            }
        }
        Ok(done)
    }

    /// What the kernel does for a write that takes memory from a group is done on that group's CPUs, where this process may use them.
    fn at_the_expense_of(&self, path: &Path) -> Option<OnCpus> {
        if !path.file_name().is_some_and(|f| f == "memory.reclaim" || f == "memory.high") {
            return None;
        }
        let list = text_of(self.files.as_ref(), path.parent()?.join("cpuset.cpus.effective"))?;
        match OnCpus::of(&list) {
            Ok(there) => Some(there),
            Err(e) => {
                if !self.elsewhere.swap(true, Ordering::Relaxed) {
                    tracing::warn!("{}: memory is reclaimed on other CPUs than {list}, those of the group: {e}", path.display());
                }
                None
            }
        }
    }

    /// A group of resctrl, within the bounds.
    pub(super) fn make(&self, path: &Path) -> io::Result<()> {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        making.may(Instant::now(), || count(self.files.as_ref(), self.allow.resctrl()))?;
        if let Some(mut record) = self.record() {
            record.group(path, true)?;
        }
        self.files.make_dir(path).inspect(|()| making.made())
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.remove_dir(path)?;
        self.record().map_or(Ok(()), |mut r| r.group(path, false))
    }

    pub(super) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if let Some(mut record) = self.record() {
            record.group(to, true)?;
        }
        self.files.rename(from, to)?;
        self.record().map_or(Ok(()), |mut r| r.group(from, false))
    }

    /// Whether a thread belongs to an allowed cgroup; None where there is no such thread.
    /// A thread that somebody else has put into a group of resctrl stays there: nobody could put it back.
    fn leaves_none_of_others(&self, tid: u32) -> Result<(), Refused> {
        let Some(mount) = self.allow.resctrl() else { return Ok(()) };
        match held_by_others(self.files.as_ref(), mount, &[tid]).into_keys().next() {
            None => Ok(()),
            Some(group) => Err(Refused(format!("thread {tid} is in {}, which somebody else has made", group.display()))),
        }
    }

    fn may_move(&self, tid: u32) -> Option<bool> {
        match self.mounts.of_pid(&self.root, tid) {
            Some(g) => Some(self.allow.holds(&g.cpuset) && self.allow.holds(&g.cpu)),
            None => self.root.read(format!("/proc/{tid}/cgroup")).map(|_| false),
        }
    }

    /// One message of a client; false where it has gone.
    fn answer(&self, client: &Line, buffer: &mut [u8], how: MsgFlags, keep: Keep<'_>) -> bool {
        let n = match recv(client.as_raw_fd(), buffer, how) {
            Ok(0) => return false,
            Ok(n) => n,
            Err(Errno::EINTR | Errno::EAGAIN) => return true,
            Err(_) => return false,
        };
        match self.handle(&buffer[..n], keep) {
            (reply, []) => tell(client, &reply),
            (reply, along) => hand_over(client, &reply, along),
        }
    }
}

impl Actuator {
    /// Serve until `stop` says so. `uid` may connect, and root.
    ///
    /// # Errors
    /// Where the socket itself fails.
    pub fn serve(&mut self, listener: &Listener, uid: u32, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        let mut buffer = vec![0u8; MAX_REQUEST + 1];
        let mut client: Option<Client> = None;
        let mut refusals = Refusals::new(Instant::now());
        loop {
            // Asked before the last look, so that a client that went before us has gone.
            let last = stop();
            let due = self.dead_man.as_ref().and_then(|d| d.due_in(Instant::now()));
            let (knock, call) = wait(listener, client.as_ref(), if last { Some(Duration::ZERO) } else { due })?;
            let before = client.is_some();
            if call {
                let (hands, dead_man) = (&self.hands, &mut self.dead_man);
                let mut keep = |ops: &[SafeOp<'_>]| hands.keep(dead_man.as_mut(), ops);
                let served = client.as_ref().map(|c| c.served.clone());
                client = client.take().filter(|c| hands.answer(&c.line, &mut buffer, MsgFlags::MSG_DONTWAIT, &mut keep));
                if client.is_none() {
                    // Its second line ends with it.
                    served.iter().for_each(|s| s.store(false, Ordering::Release));
                }
            }
            let left = before && client.is_none();
            if knock {
                client = admit(listener, uid, client.take(), self.aside.as_ref(), &mut refusals);
            }
            refusals.say_more(if last { None } else { Some(Instant::now()) });
            if let Some(d) = self.dead_man.as_mut() {
                match (&client, left) {
                    (Some(_), _) => d.client_came(),
                    (None, true) => d.client_left(Instant::now(), self.hands.record().is_some_and(|r| !r.is_empty())),
                    (None, false) => {}
                }
                if d.due_in(Instant::now()).is_some_and(|left| left.is_zero()) {
                    self.put_in_force();
                }
            }
            if last {
                break;
            }
        }
        // Whoever waits for a decider that has gone waits no longer.
        if self.dead_man.as_ref().is_some_and(|d| d.due_in(Instant::now()).is_some()) {
            self.put_in_force();
        }
        Ok(())
    }

    /// What the client left, as far as the record bears it out: BE jobs are held at less than they had, every other value that was changed
    /// is put back, and groups of resctrl go, but for those of such jobs. Without a record it is the layout as it stands, each part by the
    /// same rules as any other request. What fails is said, and the rest is done.
    fn put_in_force(&mut self) {
        let Some(d) = self.dead_man.as_mut() else { return };
        d.done();
        let layout = d.layout().clone();
        let word = if layout.ops.is_empty() { "without a layout" } else { "without a goodbye" };
        tracing::warn!("the decider has gone {word}: putting its safe layout in force, and what was there before");
        let start = Instant::now();
        let report = self.hands.put_in_force(&layout);
        report.failed.iter().for_each(|why| tracing::error!("safe layout: {why}"));
        let ms = start.elapsed().as_secs_f64() * 1e3;
        tracing::warn!("safe layout: {} done, {} not needed, {} failed, in {ms:.1} ms", report.done, report.gone, report.failed.len());
    }
}

impl Hands {
    fn put_in_force(&self, layout: &SafeLayout) -> SafeReport {
        let Some(mut record) = self.record() else { return self.carry_out_all(layout) };
        // What nobody recorded: only the client knows of it.
        let unrecorded = |op: &&Op| match op {
            Op::Write { path, .. } => knob_of(path, &self.files, &self.mounts).is_some_and(|(key, _)| record.is_unknown(&key)),
            Op::RemoveDir { .. } => false,
        };
        let unrecorded = SafeLayout::new(layout.ops.iter().filter(unrecorded).cloned().collect());
        let held = self.held_less(layout, &record);
        let mut report = record.put_back(&held);
        let groups = self.groups_go(layout, &mut record);
        drop(record);
        for more in [groups, self.carry_out_all(&unrecorded)] {
            report.done += more.done;
            report.gone += more.gone;
            report.failed.extend(more.failed);
        }
        report
    }

    /// Values of the layout that may stand: of BE jobs, and no more than they had.
    fn held_less(&self, layout: &SafeLayout, record: &Record) -> BTreeMap<Key, String> {
        // A value may be more than one write, and more than one file: what counts is where they end.
        let mut last: BTreeMap<&Path, &str> = BTreeMap::new();
        for op in &layout.ops {
            if let Op::Write { path, text } = op {
                last.insert(path, text.trim_end());
            }
        }
        let mut held = BTreeMap::new();
        for (path, text) in &last {
            let Some((key, _)) = knob_of(path, &self.files, &self.mounts).filter(|(key, _)| self.allow.is_be(&key.dir)) else { continue };
            let beside = |file: &str| last.get(key.dir.join(file).as_path()).copied();
            let value = match (key.knob, beside("cpu.cfs_quota_us"), beside("cpu.cfs_period_us")) {
                (Knob::Quota, Some("-1"), _) => continue,
                (Knob::Quota, Some(quota), Some(period)) => format!("{quota} {period}"),
                (Knob::Quota, None, None) | (Knob::Weight | Knob::Cpus, ..) => (*text).to_string(),
                _ => continue,
            };
            if record.former(&key).is_some_and(|former| no_more(key.knob, &value, former)) {
                held.insert(key, value);
            }
        }
        held
    }

    /// Groups of resctrl that were made through this process: those of BE jobs alone may stay, with the ways of the layout.
    fn groups_go(&self, layout: &SafeLayout, record: &mut Record) -> SafeReport {
        let mut report = SafeReport::default();
        let stays = |dir: &Path| {
            let schemata = dir.join("schemata");
            let text = layout.ops.iter().rev().find_map(|op| match op {
                Op::Write { path, text } if *path == schemata => Some(text.as_str()),
                _ => None,
            })?;
            let tasks = crate::files::text(self.files.as_ref(), dir.join("tasks"))?;
            let be =
                |tid: u32| self.mounts.of_pid(&self.root, tid).is_some_and(|g| self.allow.is_be(&g.cpuset) && self.allow.is_be(&g.cpu));
            let all = !tasks.is_empty() && tasks.lines().all(|t| t.trim().parse().is_ok_and(be));
            all.then(|| (schemata, text.to_string()))
        };
        let mut kept: Vec<PathBuf> = vec![];
        for dir in record.made().clone() {
            if kept.iter().any(|k| dir.starts_with(k)) {
                continue;
            }
            if let Some((schemata, text)) = stays(&dir) {
                match self.write(&schemata.to_string_lossy(), &text) {
                    Ok(Ok(())) => {
                        report.done += 1;
                        kept.push(dir);
                        continue;
                    }
                    // It goes like the others then.
                    Ok(Err(e)) => tracing::warn!("{}: {e}", schemata.display()),
                    Err(rule) => tracing::warn!("{}: {rule}", schemata.display()),
                }
            }
            match self.files.remove_dir(&dir) {
                Ok(()) => report.done += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => report.gone += 1,
                Err(e) => {
                    report.failed.push(format!("rmdir {}: {e}", dir.display()));
                    continue;
                }
            }
            let _ = record.group(&dir, false);
        }
        report
    }

    /// Each part by the same rules as any other request.
    fn carry_out_all(&self, layout: &SafeLayout) -> SafeReport {
        layout.each(|op| {
            let path = op.path().to_string_lossy();
            let done = match op {
                Op::Write { text, .. } => self.write(&path, text),
                Op::RemoveDir { path: p } => self.allow.group(&path).map(|()| self.remove(p)),
            };
            let named = |kind, why: &dyn std::fmt::Display| io::Error::new(kind, format!("{}: {why}", path.escape_debug()));
            match done {
                // Without a kind of its own, so it must stay what it is: a group that goes while it is written.
                Ok(Err(e)) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ESRCH)) => Err(e),
                Ok(d) => d.map_err(|e| named(e.kind(), &e)),
                Err(rule) => Err(named(io::ErrorKind::PermissionDenied, &rule)),
            }
        })
    }
}

/// Control groups and monitoring groups of ours that there are.
fn count(files: &dyn Files, mount: Option<&Path>) -> (usize, usize) {
    let Some(mount) = mount else { return (0, 0) };
    let ours: Vec<String> = files.folders(mount).into_iter().filter(|n| n.starts_with(PREFIX)).collect();
    let within = |group: &str| files.folders(&mount.join(group).join("mon_groups")).len();
    let in_default = files.folders(&mount.join("mon_groups")).iter().filter(|n| n.starts_with(PREFIX)).count();
    (ours.len(), in_default + ours.iter().map(|g| within(g)).sum::<usize>())
}

/// Whether somebody connects, and whether the client has sent something (or gone); or the safe layout is due.
fn wait(listener: &Listener, client: Option<&Client>, due: Option<Duration>) -> io::Result<(bool, bool)> {
    // Rounded up: a millisecond early would be a loop that only turns.
    let most = due.map_or(LOOK, |d| LOOK.min(d + Duration::from_millis(1)));
    let mut fds = vec![PollFd::new(listener.socket.as_fd(), PollFlags::POLLIN)];
    fds.extend(client.map(|c| PollFd::new(c.line.as_fd(), PollFlags::POLLIN)));
    match poll(&mut fds, PollTimeout::try_from(most).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    let ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
    Ok((ready(fds.first()), ready(fds.get(1))))
}

/// False where the client does not listen.
fn tell(client: &Line, reply: &Reply) -> bool {
    reply.messages().all(|m| loop {
        match send(client.as_raw_fd(), &m, MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => return true,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    })
}

/// A reply of one message, with descriptors; false where the client does not listen.
fn hand_over(client: &Line, reply: &Reply, descriptors: &[OwnedFd]) -> bool {
    let fds: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let message: Vec<u8> = reply.messages().take(1).flatten().collect();
    let along = [ControlMessage::ScmRights(&fds)];
    loop {
        match sendmsg::<()>(client.as_raw_fd(), &[IoSlice::new(&message)], &along, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            done => return done.is_ok(),
        }
    }
}

const BUSY: &str = "another client is being served. Stop that one first";

/// Whoever is served.
#[derive(Debug)]
struct Client {
    line: Line,
    pid: i32,
    /// False from when it has gone.
    served: Arc<AtomicBool>,
}

/// What the log hears of clients that are refused. Everybody may connect, as often as it likes: a line for each would be a flood.
#[derive(Debug)]
struct Refusals {
    /// User and kind of refusal; what is in here was said.
    said: BTreeSet<(u32, i32)>,
    more: u64,
    /// When the log last heard how many.
    told: Instant,
}

impl Refusals {
    fn new(now: Instant) -> Self {
        Refusals { said: BTreeSet::new(), more: 0, told: now }
    }

    /// Whether this one is the first of its user and kind, to be said; else it is counted.
    fn is_first(&mut self, who: u32, errno: i32) -> bool {
        let first = self.said.len() < MOST_SAID && self.said.insert((who, errno));
        self.more += u64::from(!first);
        first
    }

    /// How many were not said, where it is time; `now` is None at the end.
    fn due(&mut self, now: Option<Instant>) -> Option<u64> {
        if self.more == 0 || now.is_some_and(|now| now.saturating_duration_since(self.told) < SAID_AGAIN) {
            return None;
        }
        self.told = now.unwrap_or(self.told);
        Some(std::mem::take(&mut self.more))
    }

    fn say_more(&mut self, now: Option<Instant>) {
        if let Some(more) = self.due(now) {
            let (users, s) = (self.said.iter().map(|(who, _)| who).collect::<BTreeSet<_>>().len(), SAID_AGAIN.as_secs());
            tracing::warn!("refused {more} more clients, of {users} users or more (said every {s} s at most)");
        }
    }
}

/// Who is the client after somebody has knocked.
fn admit(listener: &Listener, uid: u32, client: Option<Client>, aside: Option<&Aside>, refusals: &mut Refusals) -> Option<Client> {
    let new = match accept4(listener.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
        // SAFETY: a descriptor that the kernel has just made, and that nobody else knows.
        Ok(fd) => Line::from(unsafe { OwnedFd::from_raw_fd(fd) }),
        Err(_) => return client,
    };
    if setsockopt(&new, SendTimeout, &TimeVal::seconds(PATIENCE_S)).is_err() {
        return client;
    }
    let peer = getsockopt(&new, PeerCredentials).map(|c| (c.uid(), c.pid()));
    // No user has this id: the kernel's word for none.
    let from = peer.map_or(u32::MAX, |(who, _)| who);
    let mut refuse = |errno: i32, why: String| {
        if refusals.is_first(from, errno) {
            tracing::warn!("refused a client of user {from}: {why}");
        }
        tell(&new, &Reply::refused(errno, why));
    };
    match (peer, &client) {
        (Err(e), _) => refuse(libc::EPERM, format!("no credentials: {e}")),
        (Ok((who, _)), _) if who != uid && who != 0 => {
            refuse(libc::EPERM, format!("user {who} is not served, only user {uid}. See actuator.user in node.toml"));
        }
        (Ok((_, pid)), Some(c)) if c.pid == pid => match aside {
            Some(a) if !a.busy.swap(true, Ordering::Acquire) => {
                // A client or a thread that has gone: nobody is served, and the next may be.
                if !(tell(&new, &Reply::done(vec![])) && a.lines.send((new, c.served.clone())).is_ok()) {
                    a.busy.store(false, Ordering::Release);
                }
            }
            _ => refuse(libc::EBUSY, BUSY.into()),
        },
        (Ok(_), Some(_)) => refuse(libc::EBUSY, BUSY.into()),
        (Ok((who, pid)), None) => {
            if tell(&new, &Reply::done(vec![])) {
                tracing::info!("serving process {pid} of user {who}");
                return Some(Client { line: new, pid, served: Arc::new(AtomicBool::new(true)) });
            }
        }
    }
    client
}

/// A socket that clients connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Make the socket. Everybody may connect to it; who is served is decided by the kernel's word on who connects.
    ///
    /// # Errors
    /// What the kernel says; a path at which something else than a socket lies is left alone.
    pub fn bind(at: &Path) -> io::Result<Self> {
        let (folder, name) = Folder::of(at)?;
        folder.remove_socket(name)?;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        bind(socket.as_raw_fd(), &UnixAddr::new(&folder.bind_path(name))?)?;
        folder.open_socket_to(name, 0o666, None)?;
        listen(&socket, Backlog::new(8)?)?;
        Ok(Listener { socket })
    }

    /// The socket that the service manager made for this process (LISTEN_FDS); None where it made none. Call once.
    ///
    /// # Errors
    /// A socket of another kind than ours.
    pub fn inherited() -> io::Result<Option<Self>> {
        let set = |name: &str| std::env::var(name).ok();
        let for_us = set("LISTEN_PID").and_then(|p| p.parse().ok()) == Some(std::process::id());
        if !for_us || set("LISTEN_FDS").as_deref() != Some("1") {
            return Ok(None);
        }
        // SAFETY: by systemd's protocol (sd_listen_fds(3)) descriptor 3 is ours, and this is the one place that takes it.
        let socket = unsafe { OwnedFd::from_raw_fd(3) };
        if getsockopt(&socket, nix::sys::socket::sockopt::SockType)? == SockType::SeqPacket {
            return Ok(Some(Listener { socket }));
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "the inherited socket is of another kind. Use ListenSequentialPacket="))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{connect, socketpair};

    /// Whoever connects over and over is said once and then counted, and the count is said once a minute; so many users take no memory.
    #[test]
    fn a_flood_of_clients_is_no_flood_of_the_log() {
        let start = Instant::now();
        let at = |s: u64| Some(start + Duration::from_secs(s));
        let mut r = Refusals::new(start);
        assert_eq!((0..1000).filter(|_| r.is_first(7, libc::EPERM)).count(), 1);
        assert!(r.is_first(8, libc::EPERM) && r.is_first(8, libc::EBUSY), "another user, another reason");
        assert_eq!((r.due(at(59)), r.due(at(60)), r.due(at(61))), (None, Some(999), None));
        assert!(!r.is_first(7, libc::EPERM));
        assert_eq!((r.due(at(119)), r.due(at(120)), r.due(at(600))), (None, Some(1), None));
        let said = (100..100_000).filter(|who| r.is_first(*who, libc::EPERM)).count();
        assert_eq!((said, r.said.len()), (MOST_SAID - 3, MOST_SAID));
        // What was not said yet is said at the end.
        assert_eq!((r.due(None), r.due(None)), (Some(99_900 - said as u64), None));
    }

    /// A client that has gone before its second line was taken: the place is free for the next.
    #[test]
    fn a_second_line_whose_client_has_gone_keeps_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("actuator");
        let listener = Listener::bind(&at).unwrap();
        let (ours, _theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (served, mut refusals) = (Arc::new(AtomicBool::new(true)), Refusals::new(Instant::now()));
        let mut client = Some(Client { line: Line::from(ours), pid: std::process::id() as i32, served });
        let (lines, taken) = channel();
        let aside = Aside { lines, busy: Arc::new(AtomicBool::new(false)) };
        let uid = nix::unistd::getuid().as_raw();
        let dial = || {
            let line = Line::from(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap());
            connect(line.as_raw_fd(), &UnixAddr::new(&at).unwrap()).unwrap();
            line
        };
        drop(dial());
        client = admit(&listener, uid, client, Some(&aside), &mut refusals);
        assert!(!aside.busy.load(Ordering::Acquire) && taken.try_recv().is_err());
        let _second = dial();
        client = admit(&listener, uid, client, Some(&aside), &mut refusals);
        assert!(client.is_some() && aside.busy.load(Ordering::Acquire) && taken.try_recv().is_ok());
    }
}
