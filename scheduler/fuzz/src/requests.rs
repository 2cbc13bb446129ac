//! Messages to the actuator from a client that has been taken over: whatever the bytes, what reaches the kernel's files is on
//! the allow-list.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use surefoot_linux::actuator::protocol::{decode, decode_reply, Reply, Request, SafeOp, MAX_PAYLOAD};
use surefoot_linux::actuator::{Actuator, Allow, Pattern};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::files::Files;
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::Root;

const MOUNTS: &str = "30 1 0:2 / /cg rw - cgroup2 cgroup2 rw\n";

/// A host of one cgroup hierarchy and resctrl that takes everything, and remembers what it was told to change.
#[derive(Debug, Default)]
struct Host(Mutex<Vec<(PathBuf, Option<String>)>>);

impl Host {
    fn told(&self, path: &Path, text: Option<&str>) -> io::Result<()> {
        self.0.lock().unwrap().push((path.into(), text.map(str::to_string)));
        Ok(())
    }
}

impl Files for Host {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("/proc/self/mountinfo") => Ok(MOUNTS.into()),
            Some("/proc/mounts") => Ok("resctrl /rc resctrl rw 0 0\n".into()),
            Some("/cg/cgroup.controllers") => Ok("cpuset cpu memory\n".into()),
            // Thread 7 is a stranger, 8 is of an allowed service, others have gone.
            Some("/proc/7/cgroup") => Ok("0::/other\n".into()),
            Some("/proc/8/cgroup") => Ok("0::/a/b/c\n".into()),
            _ => Err(io::Error::from_raw_os_error(2)),
        }
    }
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.told(path, Some(text))
    }
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.told(path, None)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.told(path, None)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.told(from, None)?;
        self.told(to, None)
    }
    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(vec![])
    }
    fn is_dir(&self, _: &Path) -> bool {
        true
    }
    fn is_file(&self, _: &Path) -> bool {
        true
    }
    fn writable(&self, _: &Path) -> bool {
        true
    }
}

/// What docs/privileges.md promises of one change.
fn promised(path: &Path, text: Option<&str>) -> bool {
    let Some(path) = path.to_str() else { return false };
    let names: Vec<&str> = path.split('/').skip(1).collect();
    let ours = |n: &str| n.starts_with("surefoot.") && n.len() > 9;
    let plain = names.iter().all(|n| !n.is_empty() && *n != "." && *n != ".." && !n.chars().any(char::is_control));
    let place = match (names.as_slice(), text) {
        (["cg", "a", _, file], Some(_)) => {
            let takes = file.contains("exclusive") || file.contains("partition") || file.contains("soft");
            !takes && (file.starts_with("cpu") || file.starts_with("memory."))
        }
        (["rc", "tasks"], Some(t)) => t.trim_end() == "8",
        (["rc", "mon_groups", m, "tasks"], Some(t)) => ours(m) && t.trim_end() == "8",
        (["rc", g, "tasks"] | ["rc", g, "mon_groups", _, "tasks"], Some(t)) => ours(g) && t.trim_end() == "8",
        (["rc", g, "schemata"], Some(_)) => ours(g),
        (["rc", g] | ["rc", g, "mon_groups", _], None) if *g != "mon_groups" => ours(g),
        (["rc", "mon_groups", m], None) => ours(m),
        _ => false,
    };
    let value = text.is_none_or(|t| t.len() <= 4096 && t.bytes().all(|b| b.is_ascii_alphanumeric() || b" ,-:;=\n".contains(&b)));
    plain && place && value
}

pub fn run(data: &[u8]) {
    if let Ok(request) = decode(data) {
        assert_eq!(request.encode().expect("what was taken fits"), data, "decode, encode");
    }
    if let Ok((errno, more, payload)) = decode_reply(data) {
        if !more && payload.len() <= MAX_PAYLOAD {
            let reply = Reply { errno, payload: payload.to_vec() };
            let again: Vec<Vec<u8>> = reply.messages().collect();
            assert_eq!((again.len(), decode_reply(&again[0])), (1, Ok((errno, false, payload))));
        }
    }
    let host = Arc::new(Host::default());
    let root = Root::with("/", host.clone());
    let patterns = vec![Pattern::parse("/a/*").expect("a pattern")];
    let allow = Allow::new(&Mounts::read(&root), Resctrl::find(&root).as_ref(), patterns);
    let mut actuator = Actuator::new(allow, host.clone(), root);
    let reply = actuator.handle(data);
    if reply.errno != 0 {
        crate::one_line(&String::from_utf8_lossy(&reply.payload));
    }
    for (path, text) in host.0.lock().unwrap().iter() {
        assert!(promised(path, text.as_deref()), "{path:?} <- {text:?}");
    }
}

/// A request of each kind, let through and refused.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let all = [
        ("write", Request::Write { path: "/cg/a/b/cpu.max", text: "1000 10000" }),
        ("schemata", Request::Write { path: "/rc/surefoot.x/schemata", text: "L3:0=7f;1=3\nMB:0=40\n" }),
        ("thread", Request::Write { path: "/rc/surefoot.x/tasks", text: "8\n" }),
        ("stranger", Request::Write { path: "/rc/tasks", text: "7\n" }),
        ("up", Request::Write { path: "/rc/surefoot.x/../info/last_cmd_status", text: "1" }),
        ("make", Request::MakeDir("/rc/surefoot.x")),
        ("remove", Request::RemoveDir("/rc/other")),
        ("rename", Request::Rename { from: "/rc/surefoot.x/mon_groups/m", to: "/rc/surefoot.y/mon_groups/m" }),
        (
            "safe",
            Request::KeepSafe(vec![
                SafeOp::Write { path: "/cg/a/b/cpuset.cpus", text: "0-3" },
                SafeOp::RemoveDir { path: "/rc/surefoot.x" },
            ]),
        ),
        ("goodbye", Request::KeepSafe(vec![])),
    ];
    all.into_iter().map(|(name, r)| (name, r.encode().expect("it fits"))).collect()
}
