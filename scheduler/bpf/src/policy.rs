//! The scheduling policy of a thread, which no safe wrapper has.

#![allow(unsafe_code, reason = "two calls of the kernel without memory of ours but a number")]

use nix::errno::Errno;
use nix::libc;

pub fn policy(tid: u32) -> Result<i32, Errno> {
    // SAFETY: takes and returns numbers alone.
    Errno::result(unsafe { libc::sched_getscheduler(tid as libc::pid_t) })
}

/// Its nice value stays.
pub fn set_policy(tid: u32, policy: i32) -> Result<(), Errno> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the one number, which lives through the call.
    Errno::result(unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &none) }).map(drop)
}
