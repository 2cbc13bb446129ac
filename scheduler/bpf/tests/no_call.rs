//! A look makes no system call and allocates nothing. The kernel says so: it ends a process of ours that makes one.

#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a test's inputs and words are its own")]
#![allow(unsafe_code, reason = "a filter of system calls")]

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use surefoot_bpf::{programs, Feed, Hierarchy, Watch, FORBIDDEN};
use surefoot_mutate::allocations::{allocations, Counting};

const ROLE: &str = "SUREFOOT_BPF_ROLE";
const POLLS: u32 = 10_000;
/// Statuses of the child.
const NOTHING: i32 = 7;
const ALLOCATED: i32 = 8;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn watch() -> Result<Watch, String> {
    let feed = programs(Hierarchy::Unified).map_err(|e| e.to_string()).and_then(|h| Feed::open(h).map_err(|e| e.to_string()))?;
    feed.watch(1, 0).map_err(|e| e.to_string())
}

/// From now on this process may end itself, and do nothing else.
fn forbid() {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let end = |with: u32| op(libc::BPF_RET | libc::BPF_K, 0, 0, with);
    let is_exit = op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_exit_group as u32);
    let number = op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let mut filter = [number, is_exit, end(libc::SECCOMP_RET_ALLOW), end(libc::SECCOMP_RET_KILL_PROCESS)];
    let whole = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers; the filter lives through the call, which copies it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as libc::c_ulong, &whole, 0, 0)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Not a test: the process that looks, and one that makes a call in between.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (mut watch, lock, began) = (watch().unwrap(), Mutex::new(0u64), Instant::now());
    forbid();
    let allocated = allocations(|| {
        for n in 0..POLLS {
            // What a lender does besides: its books behind a lock that has no other user, and the clock.
            let mut held = lock.lock().unwrap();
            *held += (0..64).filter(|cpu| watch.runs_on(*cpu)).count() as u64;
            if n % 100 == 0 {
                *held += watch.waits().dispatches;
            }
            *held += watch.waiting_ns(began.elapsed().as_nanos() as u64);
            if role == "calls" && n == POLLS / 2 {
                std::thread::yield_now();
            }
        }
    });
    let status = if allocated == 0 { NOTHING } else { ALLOCATED };
    // SAFETY: ends the process at once, without handlers that would make calls.
    unsafe { libc::_exit(status) }
}

fn run(role: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--test-threads=1"]).env(ROLE, role).stdout(std::process::Stdio::null());
    child.status().unwrap()
}

/// Ten thousand looks, with waits, without a system call or an allocation; one call among them would have been found.
#[test]
fn a_look_makes_no_call_and_allocates_nothing() {
    if let Err(why) = watch() {
        // Where nothing is missing it is the programs that are wrong.
        let could = std::path::Path::new("/sys/kernel/btf/vmlinux").exists() && nix::unistd::geteuid().is_root();
        assert!(!could || why.starts_with(FORBIDDEN), "{why}");
        return eprintln!("NOT RUN: a_look_makes_no_call_and_allocates_nothing: {why}");
    }
    let clock = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").unwrap_or_default();
    if !["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"].contains(&clock.trim()) {
        return eprintln!("NOT RUN: a_look_makes_no_call_and_allocates_nothing: reading the clock {} is a system call here", clock.trim());
    }
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(run("calls").signal(), Some(libc::SIGSYS), "the filter finds a call");
    let status = run("looks");
    assert_eq!((status.signal(), status.code()), (None, Some(NOTHING)), "{status:?}; {ALLOCATED}: it allocated");
}
