//! Every recorded operation, replayed through a real mount: the kernel's VFS and FUSE before the model.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]
#![allow(unsafe_code, reason = "system calls as a program would make them")]

mod replay;

use fuser::BackgroundSession;
use replay::{hardware, Outcome, Replay, Subject, WriteFailure, RUNS};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{chown, symlink, DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use surefoot_resctrlfs::fuse::{self, Shared};
use surefoot_resctrlfs::host::Host;
use surefoot_resctrlfs::{Caller, Errno, Machine, Tid};

/// Tasks and time come from the recording.
struct Still;

impl Host for Still {
    fn sync(&mut self, _machine: &mut Machine, _tasks: bool) {}
}

struct Mounted {
    machine: Shared,
    dir: tempfile::TempDir,
    session: Option<BackgroundSession>,
    open: BTreeMap<String, File>,
}

fn errno(e: &io::Error) -> &'static str {
    Errno(e.raw_os_error().unwrap_or(0)).name()
}

fn name<T>(r: io::Result<T>) -> Outcome<T> {
    r.map_err(|e| errno(&e))
}

fn gettid() -> Tid {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() as Tid }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

impl Mounted {
    fn new(run: &str) -> Self {
        let machine = Arc::new(Mutex::new(Machine::new(hardware(run))));
        Self { machine, dir: tempfile::tempdir().unwrap(), session: None, open: BTreeMap::new() }
    }

    fn path(&self, path: &str) -> PathBuf {
        // No trailing slash: the kernel would ask for a directory.
        if path.is_empty() {
            self.dir.path().into()
        } else {
            self.dir.path().join(path)
        }
    }

    fn c_path(&self, path: &str) -> CString {
        CString::new(self.path(path).into_os_string().into_encoded_bytes()).unwrap()
    }

    /// Act as this caller: for another user than root, on a thread of its own that is a task of that user.
    fn as_user<T: Send>(&self, who: Caller, act: impl FnOnce() -> T + Send) -> T {
        if who.uid == 0 {
            return act();
        }
        let machine = &self.machine;
        std::thread::scope(|s| {
            let thread = s.spawn(|| {
                let tid = gettid();
                fuse::lock(machine).spawn(tid, tid, 0, who.uid);
                // SAFETY: the raw calls change this thread's ids only; it ends after `act`.
                unsafe {
                    assert_eq!(libc::syscall(libc::SYS_setresgid, who.gid, who.gid, who.gid), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, who.uid, who.uid, who.uid), 0);
                }
                let result = act();
                fuse::lock(machine).exit(tid);
                result
            });
            thread.join().unwrap()
        })
    }
}

fn options(flags: &str) -> OpenOptions {
    let mut o = OpenOptions::new();
    o.read(flags.contains("RDONLY") || flags.contains("RDWR"));
    o.write(!flags.contains("RDONLY"));
    let mut more = 0;
    for (name, bit) in [("O_TRUNC", libc::O_TRUNC), ("O_APPEND", libc::O_APPEND), ("O_CREAT", libc::O_CREAT), ("O_EXCL", libc::O_EXCL)] {
        if flags.split('|').any(|f| f == name) {
            more |= bit;
        }
    }
    o.custom_flags(more);
    o
}

impl Subject for Mounted {
    fn writer(&self) -> Tid {
        gettid()
    }

    /// The kernel's FUSE answers them itself.
    fn takes_empty_writes(&self) -> bool {
        false
    }

    fn machine(&mut self, act: &mut dyn FnMut(&mut Machine)) {
        act(&mut fuse::lock(&self.machine));
    }

    fn mount(&mut self, options: &str, read_only: bool) -> Outcome<()> {
        fuse::lock(&self.machine).mount(options, read_only).map_err(Errno::name)?;
        self.session = Some(name(fuse::show(self.machine.clone(), Box::new(Still), self.dir.path(), read_only))?);
        Ok(())
    }

    fn umount(&mut self) -> Outcome<()> {
        self.session.take().ok_or("EINVAL")?.join();
        fuse::lock(&self.machine).umount().map_err(Errno::name)
    }

    fn read(&mut self, path: &str, who: Caller) -> Outcome<Vec<u8>> {
        let path = self.path(path);
        name(self.as_user(who, || fs::read(path)))
    }

    fn read_at(&mut self, path: &str, offset: usize, size: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; size];
        let n = name(File::open(self.path(path)).and_then(|f| f.read_at(&mut bytes, offset as u64)))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn write(&mut self, path: &str, data: &[u8], flags: &str, offset: Option<i64>, who: Caller) -> Result<usize, WriteFailure> {
        let path = self.path(path);
        self.as_user(who, || {
            let mut file = options(flags).open(path).map_err(|e| ("open", errno(&e)))?;
            let written = match offset {
                Some(at) => file.write_at(data, at as u64),
                None => file.write(data),
            };
            written.map_err(|e| ("write", errno(&e)))
        })
    }

    fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        let mut names = vec![];
        for e in name(fs::read_dir(self.path(path)))? {
            names.push(name(e)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn mkdir(&mut self, path: &str, mode: u32, who: Caller) -> Outcome<()> {
        let path = self.path(path);
        name(self.as_user(who, || fs::DirBuilder::new().mode(mode).create(path)))
    }

    fn rmdir(&mut self, path: &str, who: Caller) -> Outcome<()> {
        let path = self.path(path);
        name(self.as_user(who, || fs::remove_dir(path)))
    }

    fn rename(&mut self, from: &str, to: &str) -> Outcome<()> {
        name(fs::rename(self.path(from), self.path(to)))
    }

    fn unlink(&mut self, path: &str) -> Outcome<()> {
        // SAFETY: a C string that lives through the call. std's remove_file is the same call.
        name(check(unsafe { libc::unlink(self.c_path(path).as_ptr()) }).map(|_| ()))
    }

    fn stat(&mut self, path: &str) -> Outcome<(u32, u32, u32, u32)> {
        let m = name(fs::metadata(self.path(path)))?;
        assert_eq!(m.len(), 0);
        Ok((m.mode() & 0o7777, m.uid(), m.gid(), m.nlink() as u32))
    }

    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()> {
        name(fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)))
    }

    fn chown(&mut self, path: &str, id: u32) -> Outcome<()> {
        name(chown(self.path(path), Some(id), Some(id)))
    }

    fn open(&mut self, fd: &str, path: &str, flags: &str) -> Outcome<()> {
        let file = name(options(flags).open(self.path(path)))?;
        self.open.insert(fd.into(), file);
        Ok(())
    }

    fn fd_read(&mut self, fd: &str, size: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; size];
        let n = name(self.open.get_mut(fd).unwrap().read(&mut bytes))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn fd_write(&mut self, fd: &str, data: &[u8]) -> Outcome<usize> {
        name(self.open.get_mut(fd).unwrap().write(data))
    }

    fn fd_seek(&mut self, fd: &str, offset: u64) -> Outcome<()> {
        name(self.open.get_mut(fd).unwrap().seek(SeekFrom::Start(offset)).map(|_| ()))
    }

    fn close(&mut self, fd: &str) -> Outcome<()> {
        self.open.remove(fd).map(|_| ()).ok_or("EBADF")
    }

    fn other(&mut self, op: &str, path: &str) -> Option<Outcome<String>> {
        let (at, c) = (self.path(path), self.c_path(path));
        let xattr = |name: &str| {
            let name = CString::new(name).unwrap();
            // SAFETY: C strings and one byte that live through the call.
            check(unsafe { libc::setxattr(c.as_ptr(), name.as_ptr(), b"1".as_ptr().cast(), 1, 0) })
        };
        let result = match op {
            "create" => OpenOptions::new().write(true).create(true).truncate(false).open(at).map(|_| 0),
            "symlink" => symlink("schemata", at).map(|()| 0),
            "link" => fs::hard_link(self.path("schemata"), at).map(|()| 0),
            // SAFETY: a C string that lives through the call.
            "mknod" => check(unsafe { libc::mkfifo(c.as_ptr(), 0o600) }),
            // SAFETY: as above.
            "truncate" => check(unsafe { libc::truncate(c.as_ptr(), 0) }),
            // SAFETY: as above; no times means now.
            "utime" => check(unsafe { libc::utimes(c.as_ptr(), std::ptr::null()) }),
            "open-O_TMPFILE" => OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(at).map(|_| 0),
            "setxattr" if path == "g1" => xattr("user.x"),
            "setxattr-trusted" => xattr("trusted.x"),
            // Python refuses to map an empty file.
            "mmap-read" if fs::metadata(&at).unwrap().len() == 0 => {
                return Some(Err("ValueError('mmap length is greater than file size')"));
            }
            "poll" => {
                use std::os::fd::AsRawFd;
                let file = File::open(&at).unwrap();
                let mut p = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN | libc::POLLPRI, revents: 0 };
                // SAFETY: one pollfd, as said.
                check(unsafe { libc::poll(&raw mut p, 1, 0) }).unwrap();
                return Some(Ok(format!("[{}]", p.revents)));
            }
            "flock-twice" => {
                use std::os::fd::AsRawFd;
                let (first, second) = (File::open(&at).unwrap(), File::open(&at).unwrap());
                // SAFETY: open descriptors.
                let lock = |f: &File| check(unsafe { libc::flock(f.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) });
                lock(&first).unwrap();
                return Some(match lock(&second) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err("EAGAIN"),
                    _ => Ok(String::new()),
                });
            }
            _ => return None,
        };
        Some(name(result.map(|_| String::new())))
    }
}

/// All ten runs through a mount: operations that only the model saw are here too, the VFS's own included.
#[test]
fn every_recorded_operation_is_equal_through_a_mount() {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let probe = Mounted::new(RUNS[0]);
    fuse::lock(&probe.machine).mount("", false).unwrap();
    match fuse::show(probe.machine.clone(), Box::new(Still), probe.dir.path(), false) {
        Ok(session) if root => session.join(),
        Ok(_) => return eprintln!("SKIPPED: the recordings change users; run as root"),
        Err(e) => return eprintln!("SKIPPED: cannot mount FUSE here ({e}); needs /dev/fuse, and root"),
    }
    // SAFETY: sets the mask that the recordings were made under.
    unsafe { libc::umask(0o022) };
    let (mut different, mut equal, mut outside) = (vec![], 0, 0);
    for run in RUNS {
        let score = Replay::run(run, &mut Mounted::new(run));
        println!("{}", score.line(run));
        score.different.iter().take(20).for_each(|d| println!("  {d}"));
        equal += score.equal;
        outside += score.outside.values().sum::<usize>();
        different.extend(score.different);
    }
    println!("all: {equal} equal, {outside} outside, {} different", different.len());
    assert_eq!(different, Vec::<String>::new());
}
