//! How an object comes into the kernel, and what a program in it costs.

#![allow(unsafe_code, reason = "calls of libbpf that its safe wrapper lacks")]

use libbpf_rs::{ErrorKind, MapCore, Object, ObjectBuilder, OpenObject, PrintLevel};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How the cause begins where only rights are missing.
pub const FORBIDDEN: &str = "programs may not be loaded into the kernel";

/// Why a program is not in the kernel: one line, with what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub cause: String,
    pub remedy: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}. {}", self.cause, self.remedy)
    }
}

impl std::error::Error for Refused {}

/// What libbpf said of the load under way: its errors are numbers alone.
static SAID: Mutex<String> = Mutex::new(String::new());

fn say(_: PrintLevel, line: String) {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
}

/// Loads the bytes of an object. `before` sets constants and sizes of maps, between opening and loading.
///
/// # Errors
/// [`Refused`]: without BTF, without the rights, or the verifier's word.
pub fn load(bytes: &[u8], before: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>) -> Result<Object, Refused> {
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Refused {
            cause: "this kernel does not describe its types (no /sys/kernel/btf/vmlinux)".into(),
            remedy: "Use a kernel with CONFIG_DEBUG_INFO_BTF; in a container mount /sys/kernel/btf".into(),
        });
    }
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let print = libbpf_rs::set_print(Some((PrintLevel::Warn, say)));
    let loaded = ObjectBuilder::default().open_memory(bytes).and_then(|mut open| {
        before(&mut open)?;
        open.load()
    });
    libbpf_rs::set_print(print);
    loaded.map_err(|e| {
        let said = SAID.lock().unwrap_or_else(PoisonError::into_inner).clone();
        refused(&e, &said)
    })
}

fn refused(e: &libbpf_rs::Error, said: &str) -> Refused {
    if e.kind() == ErrorKind::PermissionDenied && !said.contains("PROG LOAD LOG") {
        return Refused {
            cause: FORBIDDEN.into(),
            remedy:
                "Give the process CAP_BPF and CAP_PERFMON, or run it as root; a lockdown of the kernel (confidentiality) forbids it to all"
                    .into(),
        };
    }
    // The verifier's reason is its last line but its statistics.
    let last = said.lines().rev().map(str::trim).find(|l| {
        let statistics = ["processed ", "-- END", "libbpf: failed to load", "libbpf: prog"].iter().any(|s| l.starts_with(s));
        !l.is_empty() && !statistics
    });
    Refused {
        cause: format!("this kernel refuses the programs: {e}{}", last.map(|l| format!(" ({l})")).unwrap_or_default()),
        remedy: "Use a kernel from 6.1 on that was built with CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT".into(),
    }
}

/// What should not be, in an object of ours.
pub fn fault(what: &str, e: &dyn std::fmt::Display) -> Refused {
    Refused { cause: format!("{what}: {e}"), remedy: "Please report it".into() }
}

/// A map of a loaded object, by its name or the end of it.
///
/// # Errors
/// There is none, or the kernel gives no further descriptor of it.
pub fn map(object: &Object, name: &str) -> Result<OwnedFd, Refused> {
    let found = object.maps().find(|m| m.name().to_str().is_some_and(|n| n == name || n.ends_with(name)));
    let map = found.ok_or_else(|| fault("a map is missing", &name))?;
    map.as_fd().try_clone_to_owned().map_err(|e| fault(name, &e))
}

/// Runs a program of the kind SEC("raw_tp") once on a CPU, in an interrupt of the thread that runs there.
///
/// # Errors
/// The kernel's; ENXIO for a CPU that is off line.
pub fn run_on(program: BorrowedFd<'_>, cpu: u32) -> io::Result<()> {
    let mut o = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        flags: libbpf_sys::BPF_F_TEST_RUN_ON_CPU,
        cpu,
        ..Default::default()
    };
    // SAFETY: the options are of the size that they state, and name no other memory.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut o) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// Runs a program of the kind SEC("syscall") once, here and now.
///
/// # Errors
/// The kernel's.
pub fn run(program: BorrowedFd<'_>) -> io::Result<()> {
    let mut o =
        libbpf_sys::bpf_test_run_opts { sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t, ..Default::default() };
    // SAFETY: the options are of the size that they state, and name no other memory.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut o) } {
        0 => Ok(()),
        e => Err(io::Error::from_raw_os_error(-e)),
    }
}

/// The kernel counts runs of every program and their time, as long as this value lives.
#[derive(Debug)]
pub struct Stats(#[allow(dead_code, reason = "held open")] OwnedFd);

impl Stats {
    /// # Errors
    /// The kernel's.
    pub fn count() -> io::Result<Self> {
        // SAFETY: the kernel returns a new descriptor, or an error below 0.
        match unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) } {
            // SAFETY: a descriptor of our own, just opened.
            fd if fd >= 0 => Ok(Stats(unsafe { OwnedFd::from_raw_fd(fd) })),
            e => Err(io::Error::from_raw_os_error(-e)),
        }
    }
}
