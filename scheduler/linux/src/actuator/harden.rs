//! What the actuator gives up before it serves anybody, so that a flaw in it is worth little.
//!
//! It stays user 0, who owns the kernel's files, but without a single capability: nothing else that root may do is left
//! except root's own files, and Landlock takes those away too. Only resctrl needs one, CAP_DAC_OVERRIDE: the kernel shows its
//! folders as read-only to everybody. A seccomp filter leaves the few system calls that it needs:
//! no new processes, no new sockets, no executable memory. By hand and not through a crate: both are a screenful, and this
//! process should be short to read.
//!
//! A kernel that lacks a measure is no error: [`Measure`] says what is in force.

#![allow(unsafe_code, reason = "system calls that nix has not: capset, Landlock, seccomp, prctl")]

use crate::procfs::capabilities;
use nix::errno::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use surefoot_io::input::{self, KERNEL_BYTES};

/// One thing given up: how, or why it could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    pub name: &'static str,
    pub done: Result<String, String>,
}

/// Folders that stay open to this process.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// Read, write existing files, make and remove folders.
    pub kernel: &'a [BorrowedFd<'a>],
    /// The same, and make, replace and remove files.
    pub state: Option<BorrowedFd<'a>>,
    /// One of them is resctrl, in which groups are made.
    pub resctrl: bool,
}

/// Give up everything that serving does not need. Irrevocable, for this thread and those it starts from now on: call it before
/// there are others, and [`restrict_calls`] in each of them when it has started.
pub fn give_up(open: Open<'_>) -> Vec<Measure> {
    vec![
        Measure { name: "no-new-privileges", done: prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(|()| "in force".into()) },
        Measure { name: "not-dumpable", done: prctl(libc::PR_SET_DUMPABLE, 0).map(|()| "in force".into()) },
        Measure { name: "capabilities", done: drop_capabilities(if open.resctrl { 1 << CAP_DAC_OVERRIDE } else { 0 }) },
        Measure { name: "landlock", done: landlock(open) },
    ]
}

/// The system calls that serving needs and no others, for this thread alone. Last: it forbids what the others need.
pub fn restrict_calls() -> Measure {
    Measure { name: "seccomp", done: seccomp() }
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<(), String> {
    // SAFETY: both options take plain numbers.
    check(unsafe { libc::prctl(option, value, 0, 0, 0) }.into()).map(|_| ()).map_err(|e| e.to_string())
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    Errno::result(result).map_err(io::Error::from)
}

/// Header and data of capset(2), version 3: two words of 32 capabilities each.
#[repr(C)]
struct CapHeader {
    version: u32,
    pid: libc::c_int,
}
const CAP_VERSION_3: u32 = 0x2008_0522;
/// linux/capability.h: all are below 64.
const CAP_DAC_OVERRIDE: u32 = 1;

const STATUS: &str = "/proc/thread-self/status";

fn status() -> Result<String, String> {
    input::text(Path::new(STATUS), KERNEL_BYTES).map_err(|e| format!("{STATUS}: {e}"))
}

/// All but those of `keep` that there are.
fn drop_capabilities(keep: u32) -> Result<String, String> {
    let effective = capabilities(&status()?, "CapEff").ok_or_else(|| format!("{STATUS} has no CapEff"))?;
    let keep = keep & effective as u32;
    // The bounding set first: dropping from it is a right of its own. Without it nothing that is run could gain one; and
    // nothing can be run. EPERM: there was no such right, hence nothing worth bounding that no_new_privs would not bound.
    for capability in 0..64 {
        // SAFETY: a plain number.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) } != 0 {
            break;
        }
    }
    // SAFETY: an empty list needs no memory. Refused where there is no right to it; then groups are the service manager's choice.
    // The call itself: the C library's is for all threads, and aborts where their rights differ.
    let groups = unsafe { libc::syscall(libc::SYS_setgroups, 0usize, std::ptr::null::<libc::gid_t>()) } == 0;
    let header = CapHeader { version: CAP_VERSION_3, pid: 0 };
    let left = [[keep, keep, 0], [0; 3]];
    // SAFETY: header and two words of (effective, permitted, inheritable), as version 3 wants. Ambient ones go with permitted.
    check(unsafe { libc::syscall(libc::SYS_capset, &header, left.as_ptr()) }).map_err(|e| e.to_string())?;
    let status = status()?;
    let want = |key: &str| if ["CapPrm", "CapEff"].contains(&key) { u64::from(keep) } else { 0 };
    let other: Vec<&str> =
        ["CapInh", "CapPrm", "CapEff", "CapAmb"].into_iter().filter(|k| capabilities(&status, k).is_some_and(|c| c != want(k))).collect();
    if !other.is_empty() {
        return Err(format!("{} not as it should be", other.join(", ")));
    }
    let left = if keep == 0 { "none left" } else { "CAP_DAC_OVERRIDE left, for resctrl" };
    Ok(if groups { format!("{left}, no further groups") } else { left.into() })
}

// Landlock (landlock(7)): rights on files, by the version of its interface that has them.
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
/// All of version 1, bits 0 to 12.
const FILES_1: u64 = (1 << 13) - 1;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
/// TCP: bind and connect.
const NET: u64 = 3;
/// Abstract sockets and signals.
const SCOPES: u64 = 3;

#[repr(C)]
struct RulesetAttr {
    files: u64,
    net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

fn landlock(open: Open<'_>) -> Result<String, String> {
    let lacks = |e: io::Error| format!("this kernel has none ({e}): boot with landlock in lsm=, or take Linux 5.13 or later");
    // SAFETY: by landlock_create_ruleset(2) a null pointer with flag 1 asks for the version.
    let version =
        check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32) }).map_err(lacks)?;
    let from = |v: libc::c_long, rights: u64| if version >= v { rights } else { 0 };
    let files = FILES_1 | from(2, REFER) | from(3, TRUNCATE) | from(5, IOCTL_DEV);
    let attr = RulesetAttr { files, net: from(4, NET), scoped: from(6, SCOPES) };
    // Older kernels know only the first fields.
    let size = match version {
        ..=3 => 8,
        4..=5 => 16,
        _ => 24usize,
    };
    let words = |e: io::Error| format!("version {version}: {e}");
    // SAFETY: `attr` is as long as `size` says, and lives through the call.
    let ruleset = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &attr, size, 0u32) }).map_err(words)?;
    // SAFETY: a descriptor that the kernel has just made, and that nobody else knows.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as libc::c_int) };
    let look = READ_FILE | READ_DIR;
    let kernel = look | WRITE_FILE | MAKE_DIR | REMOVE_DIR | REFER | TRUNCATE;
    let state = look | WRITE_FILE | MAKE_REG | REMOVE_FILE | TRUNCATE;
    debug_assert!((kernel | state) & EXECUTE == 0);
    let proc = fs::File::open("/proc").map_err(|e| format!("/proc: {e}"))?;
    let mut rules: Vec<(libc::c_int, u64)> = open.kernel.iter().map(|fd| (fd.as_raw_fd(), kernel)).collect();
    rules.extend(open.state.map(|fd| (fd.as_raw_fd(), state)));
    // Which cgroup a thread is in.
    rules.push((proc.as_raw_fd(), look));
    for (parent, rights) in rules {
        let rule = PathBeneath { allowed: rights & files, parent };
        // SAFETY: type 1 takes a path_beneath, which lives through the call.
        check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), 1u32, &rule, 0u32) }).map_err(words)?;
    }
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) }).map_err(words)?;
    Ok(format!("in force (version {version})"))
}

#[cfg(target_arch = "x86_64")]
const ARCH: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCH: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: Option<u32> = None;

/// What serving needs: files, the one client, the clock, memory and logs.
const CALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_fcntl,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    // Descriptors of programs go with an answer.
    libc::SYS_sendmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_clock_gettime,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    // Reclaim on the CPUs of the group that loses memory.
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Allowed as long as the memory will not be executable.
const MEMORY_CALLS: &[libc::c_long] = &[libc::SYS_mmap, libc::SYS_mprotect];

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
/// The call fails with EPERM: a call forgotten here must not end the actuator.
const DENY: u32 = 0x0005_0000 | libc::EPERM as u32;

/// The filter for an architecture, as classic BPF over `struct seccomp_data` (nr at 0, arch at 4, third argument at 32).
fn program(arch: u32) -> Vec<libc::sock_filter> {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let end = |with: u32| op(libc::BPF_RET | libc::BPF_K, 0, 0, with);
    let equal = |to: u32, jt: u8, jf: u8| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, to);
    // Another architecture's calls have other numbers; x32 (bit 30) matches nothing below.
    let mut p = vec![load(4), equal(arch, 1, 0), end(KILL_PROCESS), load(0)];
    for call in CALLS {
        p.extend([equal(*call as u32, 0, 1), end(ALLOW)]);
    }
    for call in MEMORY_CALLS {
        let executable = op(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0, 1, libc::PROT_EXEC as u32);
        p.extend([equal(*call as u32, 0, 4), load(32), executable, end(DENY), end(ALLOW)]);
    }
    p.push(end(DENY));
    p
}

fn seccomp() -> Result<String, String> {
    let Some(arch) = ARCH else { return Err("not written for this architecture".into()) };
    let mut filter = program(arch);
    let calls = CALLS.len() + MEMORY_CALLS.len();
    let whole = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as libc::c_ulong, &whole, 0, 0) };
    check(set.into()).map_err(|e| format!("this kernel has none ({e})"))?;
    Ok(format!("in force ({calls} system calls)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// After hardening only the open folders can be changed, and nothing can be run, connected to or gained. In a thread of its
    /// own: all of it is for one thread and for ever.
    #[test]
    fn what_is_given_up_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, state, outside) = (dir.path().join("in"), dir.path().join("state"), dir.path().join("out"));
        for d in [&inside, &state, &outside] {
            fs::create_dir(d).unwrap();
            fs::write(d.join("f"), "old").unwrap();
        }
        let (kernel, kept) = (fs::File::open(&inside).unwrap(), fs::File::open(&state).unwrap());
        let work = move || {
            let mut all = give_up(Open { kernel: &[kernel.as_fd()], state: Some(kept.as_fd()), resctrl: false });
            all.push(restrict_calls());
            let done = |name: &str| all.iter().any(|m| m.name == name && m.done.is_ok());
            // What works goes on working.
            fs::write(inside.join("f"), "new").unwrap();
            fs::create_dir(inside.join("d")).unwrap_or_else(|e| assert_eq!(e.raw_os_error(), Some(libc::EPERM), "mkdir(2)"));
            fs::write(state.join("new"), "x").unwrap();
            assert!(fs::read_to_string("/proc/thread-self/status").unwrap().contains("NoNewPrivs:\t1"));
            let mut missing = vec![];
            if done("landlock") {
                assert_eq!(fs::write(outside.join("f"), "new").unwrap_err().raw_os_error(), Some(libc::EACCES));
                assert_eq!(fs::write(inside.join("new"), "x").unwrap_err().raw_os_error(), Some(libc::EACCES));
                assert_eq!(fs::read("/etc/hostname").unwrap_err().raw_os_error(), Some(libc::EACCES));
            } else {
                missing.push("landlock");
            }
            if done("seccomp") {
                assert_eq!(std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err().raw_os_error(), Some(libc::EPERM));
                assert_eq!(std::process::Command::new("/bin/true").status().unwrap_err().raw_os_error(), Some(libc::EPERM));
                // SAFETY: a null hint and plain numbers; it fails.
                let p = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_EXEC, libc::MAP_ANONYMOUS | libc::MAP_PRIVATE, -1, 0) };
                assert_eq!(p, libc::MAP_FAILED);
            } else {
                missing.push("seccomp");
            }
            assert!(done("no-new-privileges") && done("not-dumpable") && done("capabilities"), "{all:?}");
            missing
        };
        for lacks in std::thread::spawn(work).join().unwrap() {
            eprintln!("NOT RUN: {lacks}: this kernel lacks it");
        }
        assert_eq!(fs::read_to_string(dir.path().join("in/f")).unwrap(), "new");
    }

    /// In a folder that is read-only to everybody, as resctrl's are, root makes another only with the capability that is kept for it.
    #[test]
    fn read_only_folders_need_the_one_capability() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("NOT RUN: only root has capabilities to keep");
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(0), Some(0)).unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
        let at = dir.path().to_path_buf();
        let make = |resctrl: bool, name: &'static str| {
            let at = at.clone();
            let work = move || {
                let open = fs::File::open(&at).unwrap();
                let all = give_up(Open { kernel: &[open.as_fd()], state: None, resctrl });
                assert!(all.iter().any(|m| m.name == "capabilities" && m.done.is_ok()), "{all:?}");
                fs::create_dir(at.join(name)).map_err(|e| e.raw_os_error())
            };
            std::thread::spawn(work).join().unwrap()
        };
        assert_eq!(make(false, "a"), Err(Some(libc::EACCES)));
        assert_eq!(make(true, "b"), Ok(()));
    }

    /// The filter, run by hand: allowed calls, executable memory, foreign architectures.
    #[test]
    fn the_filter_says_what_it_should() {
        let run = |arch: u32, nr: u32, third: u32| {
            let p = program(0xc000_003e);
            let (mut at, mut a) = (0usize, 0u32);
            loop {
                let i = p[at];
                at += 1;
                let jump = |yes: bool| usize::from(if yes { i.jt } else { i.jf });
                match u32::from(i.code) {
                    c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                        a = match i.k {
                            0 => nr,
                            4 => arch,
                            32 => third,
                            other => panic!("loads from {other}"),
                        }
                    }
                    c if c == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(a == i.k),
                    c if c == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => at += jump(a & i.k != 0),
                    c if c == libc::BPF_RET | libc::BPF_K => return i.k,
                    other => panic!("operation {other}"),
                }
            }
        };
        let x86 = 0xc000_003e;
        for call in CALLS {
            assert_eq!(run(x86, *call as u32, u32::MAX), ALLOW, "{call}");
            assert_eq!(run(x86, *call as u32 | 1 << 30, 0), DENY, "x32 {call}");
            assert_eq!(run(0x4000_0003, *call as u32, 0), KILL_PROCESS);
        }
        for call in MEMORY_CALLS {
            let (rw, rx) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_READ | libc::PROT_EXEC);
            assert_eq!((run(x86, *call as u32, rw as u32), run(x86, *call as u32, rx as u32)), (ALLOW, DENY));
        }
        for call in
            [libc::SYS_execve, libc::SYS_socket, libc::SYS_connect, libc::SYS_clone, libc::SYS_ptrace, libc::SYS_mount, libc::SYS_kill]
        {
            assert_eq!(run(x86, call as u32, 0), DENY, "{call}");
        }
    }
}
