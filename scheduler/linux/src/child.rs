//! Children that never outlive us.

#![allow(unsafe_code, reason = "what a child does between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use surefoot_server::CpuSet;

/// How a child competes for its CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    Normal,
    /// Before all normal processes (SCHED_RR), where we may; else normal. For a load generator, whose schedule must not wait
    /// for a compiler that happens to run: it uses little CPU, and the kernel keeps 5 % for others.
    Realtime,
}

/// Where this thread, and what it starts from now on, may run.
///
/// # Errors
/// What the kernel says.
pub fn pin(cpus: &CpuSet) -> io::Result<()> {
    // The kernel takes a set of any size.
    let bits = cpus.words();
    // SAFETY: plain bits, whose size is stated.
    match unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(bits), bits.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child process: killed when this value goes, and by the kernel when our thread dies (SIGKILL included).
///
/// The kernel counts the *thread* that spawned it as the parent: spawn from a thread that lives as long as the child should.
#[derive(Debug)]
pub struct Guarded(pub Child);

impl Guarded {
    /// Spawn with its CPUs set before it runs; empty = wherever we may run.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn spawn(mut cmd: Command, cpus: CpuSet, priority: Priority) -> io::Result<Self> {
        let parent = std::process::id();
        // SAFETY: only async-signal-safe calls between fork and exec; nothing allocates.
        unsafe {
            cmd.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before prctl.
                if libc::getppid() as u32 != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                if !cpus.is_empty() {
                    pin(&cpus)?;
                }
                if priority == Priority::Realtime {
                    let param = libc::sched_param { sched_priority: 1 };
                    // Without the right to it the child runs as any other, and its own verdict tells whether it kept up.
                    libc::sched_setscheduler(0, libc::SCHED_RR, &param);
                }
                Ok(())
            });
        }
        cmd.spawn().map(Guarded)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Already dead is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    /// A child runs only where it was put, and is gone once its guard is.
    #[test]
    fn pinned_and_reaped() {
        let mut cmd = Command::new("grep");
        cmd.args(["Cpus_allowed_list", "/proc/self/status"]).stdout(Stdio::piped());
        let mut child = Guarded::spawn(cmd, CpuSet::range(0, 1), Priority::Realtime).unwrap();
        let mut text = String::new();
        child.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text.split_whitespace().last(), Some("0"));
        let mut cmd = Command::new("sleep");
        cmd.arg("600");
        let child = Guarded::spawn(cmd, CpuSet::empty(), Priority::Normal).unwrap();
        let pid = child.0.id();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
