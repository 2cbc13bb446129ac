//! A program that reads a mutation: bounded in memory and time, and judged by how it ends and by what it says.

#![allow(unsafe_code, reason = "bounds are set between fork and exec, and the child is waited for without blocking")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

/// Address space of a program: threads' stacks are most of it.
const MEMORY_BYTES: u64 = 4 << 30;
/// What it may really have of that.
const RESIDENT_BYTES: i64 = 768 << 20;
/// CPU time, s.
const CPU_S: u64 = 60;
/// Largest file that it may write.
const FILE_BYTES: u64 = 256 << 20;
/// By the wall: a machine may be busy.
const WALL: Duration = Duration::from_secs(300);
/// Worth a line of its own.
const SLOW: Duration = Duration::from_secs(10);
/// Who runs it where the tests are root's: a mutated path then is nobody's.
pub const NOBODY: u32 = 65534;

/// What came of the mutations of a format.
#[derive(Debug, Default)]
pub struct Tally {
    pub codes: BTreeMap<i32, u64>,
    pub worst_rss_bytes: i64,
    pub worst_s: f64,
}

impl Tally {
    /// A line for the report.
    pub fn print(&self, format: &str) {
        let code = |c: i32| self.codes.get(&c).copied().unwrap_or(0);
        println!(
            "mutations {format:<24} 0: {:>6}  1: {:>6}  2: {:>6}  most memory {:>4} MiB, longest {:.1} s",
            code(0),
            code(1),
            code(2),
            self.worst_rss_bytes >> 20,
            self.worst_s
        );
    }
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub rss_bytes: i64,
    pub took: Duration,
}

/// Run a command within bounds.
///
/// # Errors
/// It cannot be started, or does not end.
pub fn run(mut command: Command) -> io::Result<Ended> {
    let file = || -> io::Result<File> { temporary() };
    let (mut out, mut err) = (file()?, file()?);
    command.stdin(std::process::Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let limit = |what, soft: u64| {
        let l = libc::rlimit { rlim_cur: soft, rlim_max: soft };
        // SAFETY: a plain structure that lives through the call; setrlimit is async-signal-safe.
        if unsafe { libc::setrlimit(what, &l) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            limit(libc::RLIMIT_AS, MEMORY_BYTES)?;
            limit(libc::RLIMIT_CPU, CPU_S)?;
            limit(libc::RLIMIT_FSIZE, FILE_BYTES)?;
            limit(libc::RLIMIT_CORE, 0)?;
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
        if libc::geteuid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
    }
    let begin = Instant::now();
    let child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    let (mut status, mut rss_bytes) = (0, 0);
    loop {
        // SAFETY: it lives through the call; nobody else waits for this process.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 if begin.elapsed() > WALL => {
                // SAFETY: our child, which nobody has waited for.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            0 => {
                rss_bytes = rss_bytes.max(resident(pid));
                std::thread::sleep(Duration::from_millis(1));
            }
            p if p == pid => break,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    let took = begin.elapsed();
    let read = |f: &mut File| -> io::Result<Vec<u8>> {
        let mut all = vec![];
        f.rewind()?;
        f.read_to_end(&mut all)?;
        Ok(all)
    };
    let (stdout, stderr) = (read(&mut out)?, read(&mut err)?);
    Ok(Ended { status: ExitStatus::from_raw(status), stdout, stderr, rss_bytes, took })
}

/// The most that a process has had since it began its program, as far as one may look. What wait4(2) says counts its parent's, too.
fn resident(pid: libc::pid_t) -> i64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mine = status.lines().next().is_some_and(|l| l.ends_with("surefootd") || l.ends_with("surefoot-loadge"));
    let kb = status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<i64>().ok());
    if mine {
        kb.unwrap_or(0) << 10
    } else {
        0
    }
}

/// A file without a name, in memory where there is such a folder.
fn temporary() -> io::Result<File> {
    // SAFETY: a constant name; the descriptor is new and ours.
    unsafe {
        let fd = libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(std::os::fd::FromRawFd::from_raw_fd(fd))
    }
}

/// What is wrong with how a program ended; None where it kept its promises: exit code 0, 1 or 2, with 1 and 2 exactly one line on
/// standard error, nothing anywhere that acts on a terminal, and bounded memory.
pub fn broken(e: &Ended) -> Option<String> {
    let Some(code) = e.status.code() else { return Some(format!("ended by a signal: {:?}", e.status)) };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&e.stderr);
    if !(0..=2).contains(&code) {
        return Some(format!("exit code {code}: {}", said.chars().take(400).collect::<String>()));
    }
    if code > 0 && (said.lines().count() != 1 || !said.ends_with('\n') || said.trim().is_empty()) {
        return Some(format!("exit code {code} and {} lines: {}", said.lines().count(), said.chars().take(400).collect::<String>()));
    }
    if said.lines().any(|l| l.len() > 8192) {
        return Some(format!("a line of {} bytes", said.len()));
    }
    for (name, bytes) in [("standard output", &e.stdout), ("standard error", &e.stderr)] {
        let Ok(all) = std::str::from_utf8(bytes) else { return Some(format!("{name} is no UTF-8")) };
        if let Some(c) = all.chars().find(|c| acts(*c)) {
            return Some(format!("{name} holds U+{:04X}", u32::from(c)));
        }
    }
    if e.rss_bytes > RESIDENT_BYTES {
        return Some(format!("took {} MiB", e.rss_bytes >> 20));
    }
    None
}

/// Characters that a terminal acts on, or that hide: spelt out here once more, as a judge must not ask the accused.
fn acts(c: char) -> bool {
    let bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (c.is_control() && c != '\n') || bidi || matches!(c, '\u{200b}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

/// Run `n` mutations; `command` gets each with its number, and makes a command of it. What breaks a promise is kept in `keep`.
///
/// # Panics
/// Where one does, with the reason and the place of the mutation.
pub fn all(
    format: &str,
    n: usize,
    keep: &Path,
    mut draw: impl FnMut() -> Vec<u8>,
    mut command: impl FnMut(usize, &[u8]) -> Command,
) -> Tally {
    let mut tally = Tally::default();
    let mut faults: Vec<String> = vec![];
    for i in 0..n {
        let mutation = draw();
        let ended = match run(command(i, &mutation)) {
            Ok(e) => e,
            Err(e) => panic!("{format}: mutation {i}: {e}"),
        };
        *tally.codes.entry(ended.status.code().unwrap_or(-1)).or_insert(0) += 1;
        tally.worst_rss_bytes = tally.worst_rss_bytes.max(ended.rss_bytes);
        tally.worst_s = tally.worst_s.max(ended.took.as_secs_f64());
        if ended.took > SLOW {
            println!("mutations {format}: {i} took {:.1} s: {}", ended.took.as_secs_f64(), kept(keep, format, i, &mutation).display());
        }
        if let Some(why) = broken(&ended) {
            let at = kept(keep, format, i, &mutation);
            faults.push(format!("mutation {i} ({}): {why}", at.display()));
            if faults.len() == 20 {
                break;
            }
        }
    }
    tally.print(format);
    assert!(faults.is_empty(), "{format}: {}\n{}", faults.len(), faults.join("\n"));
    tally
}

/// Keep a mutation to look at.
fn kept(folder: &Path, format: &str, i: usize, mutation: &[u8]) -> PathBuf {
    let at = folder.join(format!("{}-{i}", format.replace([' ', '/'], "-")));
    let _ = std::fs::create_dir_all(folder);
    let _ = std::fs::write(&at, mutation);
    at
}
