//! Children that never outlive us.

#![allow(unsafe_code, reason = "what a child does between fork and exec")]

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
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

/// What a program answers, which is not waited for any longer than this: one that hangs must not hang its caller.
///
/// # Errors
/// It cannot be started, or did not end in time.
pub fn answer(mut command: Command, patience: Duration) -> Result<Output, String> {
    // In a group of its own: Ctrl-C at the terminal ends this process, in order, and not what it is asking meanwhile.
    command.process_group(0);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|e| e.to_string())?;
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    if let Ok(out) = told.recv_timeout(patience) {
        return out.map_err(|e| e.to_string());
    }
    // Still ours: nobody else waits for it.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    Err(format!("no answer within {} s", patience.as_secs_f64()))
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

/// The last line of what a program wrote that is not empty.
pub fn last_line(text: &[u8]) -> Option<String> {
    String::from_utf8_lossy(text).lines().map(str::trim).rfind(|l| !l.is_empty()).map(str::to_string)
}

/// So much of what a child says is kept.
const SAID_BYTES: usize = 4096;

/// The end of what a child writes to stderr. It is read all the time, so that the child never waits for a reader.
#[derive(Debug)]
pub struct Said {
    kept: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Said {
    /// Its reader ends with the last process that holds the other end.
    pub fn of(mut from: ChildStderr) -> Self {
        let kept = Arc::new(Mutex::new(vec![]));
        let to = kept.clone();
        let reader = std::thread::spawn(move || {
            let mut buf = [0; SAID_BYTES];
            while let Ok(n @ 1..) = from.read(&mut buf) {
                let mut kept = to.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buf[..n]);
                let more = kept.len().saturating_sub(SAID_BYTES);
                kept.drain(..more);
            }
        });
        Said { kept, reader }
    }

    /// Its last line that is not empty. A child that has ended is heard to its end, but no longer than this: a process that it
    /// started may live on and hold the other end.
    pub fn last_line(&self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        while !self.reader.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        last_line(&kept)
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

    /// The last words of a child that has ended are had, also while a process that it left behind holds the other end.
    #[test]
    fn last_words_are_had() {
        let run = |script: &str| {
            let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let said = Said::of(child.stderr.take().unwrap());
            let mut out = String::new();
            child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
            child.wait().unwrap();
            (said.last_line(Duration::from_millis(500)), out)
        };
        assert_eq!(run("echo first >&2; echo ' last ' >&2; echo >&2").0.as_deref(), Some("last"));
        assert_eq!(run("true").0, None);
        // Far more than a pipe holds.
        assert_eq!(run("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done >&2").0.as_deref(), Some("line 19999"));
        let (said, pid) = run("sleep 60 >/dev/null & echo $!; echo held >&2");
        let killed = Command::new("kill").arg(pid.trim()).status().unwrap().success();
        assert_eq!((said.as_deref(), killed), (Some("held"), true), "it is still there");
    }

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
