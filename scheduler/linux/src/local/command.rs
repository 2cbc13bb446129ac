//! Services that are plain processes of ours: started in a cgroup of their own, and ended with all that they started.
//!
//! What must hold: nothing of such a service outlives its end, or the process that started it. The kernel ends the first process with us; what
//! that one started stays in the cgroup, whose name says whose it is, and is ended by whoever comes next with the same state folder.

#![allow(unsafe_code, reason = "what a child does between fork and exec, and signals to processes of a cgroup of ours")]

use super::{port_free, serves, unavailable, LocalServer, Target, READY};
use crate::cgroup::{Mounts, Version};
use crate::child::{Guarded, Priority, Said};
use crate::engine::in_path;
use crate::files::Files;
use crate::procfs::Process;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use surefoot_server::{CpuSet, Kind, ServerError, ServiceId};

/// How long processes that were killed may take to go.
const END: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// Controllers that a service's group is made in, where they are hierarchies of their own (v1).
const V1: [&str; 5] = ["cpuset", "cpu", "cpuacct", "memory", "perf_event"];

/// A service to start as a process.
#[derive(Clone, Debug, PartialEq)]
pub struct CommandSpec {
    /// Unique here; also its name in the latency feed.
    pub id: ServiceId,
    pub service: String,
    pub kind: Kind,
    pub threads: u32,
    /// Where it answers on 127.0.0.1 once it is ready; None: nowhere.
    pub port: Option<u16>,
    /// Argument vector; `{threads}` and `{port}` are filled in. Never a shell string.
    pub command: Vec<String>,
}

/// A process of ours, with its cgroup.
#[derive(Debug)]
pub(super) struct Started {
    child: Guarded,
    group: Group,
    said: Option<Said>,
}

impl Started {
    /// The last line that it wrote to stderr, for messages.
    pub(super) fn last_line(&self) -> String {
        self.said.as_ref().and_then(|s| s.last_line(Duration::ZERO)).map_or_else(String::new, |l| format!(": {l}"))
    }
}

/// A cgroup of ours: its name, and its folders in every hierarchy.
#[derive(Clone, Debug)]
struct Group {
    path: String,
    dirs: Vec<PathBuf>,
}

/// Where groups are made: the cgroup that the mount shows, and the folder of each hierarchy.
fn places(mounts: &Mounts) -> Result<(Version, String, Vec<PathBuf>), ServerError> {
    let lacks = |cause: &str| unavailable("a cgroup for a command", cause, "Mount cgroups with cpu and cpuset, or name a running service");
    let version = mounts.version().ok_or_else(|| lacks("this host offers no cpu and cpuset cgroups"))?;
    let shown = |dir: &Path| mounts.hierarchies().get(dir).map(|shown| (*shown).to_string());
    match version {
        Version::V2 => {
            let dir = mounts.dir("").ok_or_else(|| lacks("cgroup v2 is not mounted"))?;
            Ok((version, shown(dir).unwrap_or_else(|| "/".into()), vec![dir.into()]))
        }
        Version::V1 => {
            let mut dirs: Vec<PathBuf> = V1.iter().filter_map(|c| mounts.dir(c)).map(Path::to_path_buf).collect();
            dirs.dedup();
            let of = |c: &str| mounts.dir(c).and_then(shown);
            if of("cpu") != of("cpuset") {
                return Err(lacks("cpu and cpuset are mounted from different cgroups"));
            }
            Ok((version, of("cpu").unwrap_or_else(|| "/".into()), dirs))
        }
    }
}

fn named(what: &Path, e: &io::Error) -> ServerError {
    let remedy = match e.kind() {
        io::ErrorKind::PermissionDenied => "Run as root, or name a running service instead of a command",
        _ => "Look for what else uses that cgroup",
    };
    unavailable(what.display().to_string(), e, remedy)
}

/// A group with its controllers; what is there of that name is a leftover, and is ended first.
fn make(files: &dyn Files, mounts: &Mounts, name: &str) -> Result<Group, ServerError> {
    let (version, shown, roots) = places(mounts)?;
    let group = Group { path: format!("{}/{name}", shown.trim_end_matches('/')), dirs: roots.iter().map(|r| r.join(name)).collect() };
    end(files, &group)?;
    if version == Version::V2 {
        for root in &roots {
            let at = root.join("cgroup.subtree_control");
            let has = crate::files::text(files, &at).unwrap_or_default();
            for c in ["cpu", "cpuset", "memory"].iter().filter(|c| !has.split_whitespace().any(|h| h == **c)) {
                // Memory is only counted: without it there is a feature less.
                match files.write(&at, &format!("+{c}")) {
                    Err(e) if *c != "memory" => return Err(named(&at, &e)),
                    _ => {}
                }
            }
        }
    }
    let made = group.dirs.iter().zip(&roots).try_for_each(|(dir, root)| {
        match files.make_dir(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(named(dir, &e)),
            _ => {}
        }
        // A v1 cpuset takes no process before it has CPUs and memory.
        for file in ["cpuset.cpus", "cpuset.mems"].iter().filter(|f| version == Version::V1 && files.is_file(&dir.join(f))) {
            let all = crate::files::text(files, root.join(file)).unwrap_or_default();
            files.write(&dir.join(file), &all).map_err(|e| named(&dir.join(file), &e))?;
        }
        Ok(())
    });
    made.inspect_err(|_| drop(end(files, &group))).map(|()| group)
}

/// Processes of a folder and of those below.
fn pids(files: &dyn Files, dir: &Path) -> Vec<i32> {
    let own = crate::files::text(files, dir.join("cgroup.procs")).unwrap_or_default();
    let mut all: Vec<i32> = own.lines().filter_map(|l| l.trim().parse().ok()).filter(|p| *p > 0).collect();
    all.extend(files.folders(dir).iter().flat_map(|below| pids(files, &dir.join(below))));
    all
}

fn remove(files: &dyn Files, dir: &Path) -> io::Result<()> {
    files.folders(dir).iter().try_for_each(|below| remove(files, &dir.join(below)))?;
    match files.remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Kill whatever is in a group, and remove it.
fn end(files: &dyn Files, group: &Group) -> Result<(), ServerError> {
    let deadline = Instant::now() + END;
    for dir in group.dirs.iter().filter(|d| files.is_dir(d)) {
        loop {
            for pid in pids(files, dir) {
                // SAFETY: a signal to a process that this cgroup of ours names at this moment.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            match remove(files, dir) {
                Ok(()) => break,
                Err(e) if Instant::now() > deadline => return Err(named(dir, &e)),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
    Ok(())
}

/// Start it inside the group, on any CPU: this process keeps off the services' CPUs, and a child would inherit that.
fn spawn(spec: &CommandSpec, group: &Group, cpus: CpuSet) -> io::Result<Guarded> {
    let port = spec.port.unwrap_or(0).to_string();
    let filled = |a: &String| a.replace("{threads}", &spec.threads.to_string()).replace("{port}", &port);
    let argv: Vec<String> = spec.command.iter().map(filled).collect();
    let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let open = |dir: &PathBuf| OpenOptions::new().write(true).open(dir.join("cgroup.procs"));
    let doors: Vec<File> = group.dirs.iter().map(open).collect::<io::Result<_>>()?;
    let mut cmd = Command::new(program);
    cmd.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: only write(2) between fork and exec, of a constant to files that were opened before.
    unsafe {
        cmd.pre_exec(move || {
            for door in &doors {
                if libc::write(door.as_raw_fd(), b"0".as_ptr().cast(), 1) != 1 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Guarded::spawn(cmd, cpus, Priority::Normal)
}

impl LocalServer {
    fn command_group(&self, id: &str) -> String {
        format!("{}{id}", self.command_prefix())
    }

    fn command_prefix(&self) -> String {
        format!("surefoot-{}-", self.owner)
    }

    /// Start a service as a process in a cgroup of its own, and wait until its port answers. It ends with this server.
    ///
    /// # Errors
    /// One for each: an id that is taken, a program that is not there, a port in use, no right to make cgroups, a service that ends at once.
    pub fn run_command(&mut self, spec: &CommandSpec) -> Result<(), ServerError> {
        self.check_id(&spec.id)?;
        let program = spec.command.first().map_or("", String::as_str);
        let what = || format!("command {program} of {}", spec.id);
        if in_path(program).is_none() {
            return Err(unavailable(what(), "there is no such program", "Install it, or give its absolute path (service.command)"));
        }
        port_free(spec.port, &spec.id, "service.port")?;
        let group = make(self.config.root.files.as_ref(), &self.mounts, &self.command_group(&spec.id))?;
        let started = spawn(spec, &group, self.online).map_err(|e| unavailable(what(), e, "Start it by hand to see more"));
        let mut started = match started {
            Ok(mut child) => {
                let said = child.0.stderr.take().map(Said::of);
                Started { child, group: group.clone(), said }
            }
            Err(e) => {
                let _ = end(self.config.root.files.as_ref(), &group);
                return Err(e);
            }
        };
        let target = Target::Cgroup(group.path.clone().into());
        let ready = wait_ready(&mut started, spec).and_then(|()| self.add(&spec.id, &spec.service, spec.kind, spec.threads, target));
        match (ready, self.services.get_mut(&spec.id)) {
            (Ok(()), Some(s)) => {
                s.process = Process::find(&self.config.root, started.child.0.id());
                s.port = spec.port;
                s.started = Some(started);
                Ok(())
            }
            (ready, _) => {
                // Nothing half-started stays behind.
                drop(started.child);
                end(self.config.root.files.as_ref(), &group)?;
                ready
            }
        }
    }

    /// End a service that was started as a process, with whatever it started.
    pub(super) fn end_command(&mut self, id: &str) -> Result<(), ServerError> {
        let Some(started) = self.services.get_mut(id).and_then(|s| s.started.take()) else { return Ok(()) };
        drop(started.child);
        end(self.config.root.files.as_ref(), &started.group)
    }

    /// Processes that a run left which died: their cgroups have the name of this state folder. Returns their services.
    pub(super) fn end_left_commands(&mut self) -> Result<Vec<ServiceId>, ServerError> {
        let Ok((_, shown, roots)) = places(&self.mounts) else { return Ok(vec![]) };
        let (files, prefix) = (self.config.root.files.clone(), self.command_prefix());
        let names = roots.iter().flat_map(|r| files.folders(r)).filter(|n| n.starts_with(&prefix));
        let names: std::collections::BTreeSet<String> = names.collect();
        let mut ended = vec![];
        for name in names {
            let id = name[prefix.len()..].to_string();
            if self.services.get(&id).is_some_and(|s| s.started.is_some()) {
                continue;
            }
            let path = format!("{}/{name}", shown.trim_end_matches('/'));
            end(files.as_ref(), &Group { path, dirs: roots.iter().map(|r| r.join(&name)).collect() })?;
            ended.push(id);
        }
        Ok(ended)
    }
}

/// Until the port answers, or the process has ended.
fn wait_ready(started: &mut Started, spec: &CommandSpec) -> Result<(), ServerError> {
    let deadline = Instant::now() + READY;
    let what = || format!("command {} of {}", spec.command.first().map_or("", String::as_str), spec.id);
    loop {
        if let Ok(Some(status)) = started.child.0.try_wait() {
            let cause = format!("it ended at once ({status}){}", started.last_line());
            return Err(unavailable(what(), cause, "Start it by hand to see more. It is not to put itself in the background"));
        }
        let Some(p) = spec.port else { return Ok(()) };
        if serves(p) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let cause = format!("nothing listened on port {p} within {} s{}", READY.as_secs(), started.last_line());
            return Err(unavailable(what(), cause, "Check service.port, or give it more CPU"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
