//! Ways and memory bandwidth through resctrl: one control group a service, under a prefix of our own.
//!
//! Ids of domains come from `schemata`, never from counting. L3 and MB go in one write, which the kernel parses whole
//! before it applies any of it. Foreign groups are left alone.

use crate::files::{number, text, SharedFiles};
use crate::root::Root;
use crate::safe::Op;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use surefoot_server::ServerError;

/// Names of our groups begin so.
pub const PREFIX: &str = "surefoot.";
/// Passes over the threads of a service before it counts as restless.
const MAX_PASSES: u32 = 16;

/// A mounted resctrl.
#[derive(Clone, Debug)]
pub struct Resctrl {
    dir: PathBuf,
    files: SharedFiles,
}

/// Values of one resource line by domain id.
type Line = BTreeMap<u32, String>;

/// "L3:0=7ff;1=7ff" lines, padded or indented as the kernel likes, by resource.
fn parse_schemata(text: &str) -> BTreeMap<String, Line> {
    text.lines()
        .filter_map(|l| {
            let (name, rest) = l.trim().split_once(':')?;
            let line = rest.split(';').filter_map(|p| {
                let (id, v) = p.split_once('=')?;
                Some((id.trim().parse().ok()?, v.trim().to_string()))
            });
            Some((name.trim().to_string(), line.collect()))
        })
        .collect()
}

/// Options resctrl is mounted with; None where it is not mounted.
pub fn mount_options(root: &Root) -> Option<String> {
    root.read("/proc/mounts")?.lines().find_map(|l| {
        let f: Vec<&str> = l.split_whitespace().collect();
        (f.len() > 3 && f[2] == "resctrl").then(|| f[3].to_string())
    })
}

impl Resctrl {
    /// The mounted file system; None where there is none.
    pub fn find(root: &Root) -> Option<Self> {
        let at = root.read("/proc/mounts").and_then(|t| {
            t.lines().find_map(|l| {
                let f: Vec<&str> = l.split_whitespace().collect();
                (f.len() > 2 && f[2] == "resctrl").then(|| f[1].to_string())
            })
        });
        let dir = root.path(at.unwrap_or_else(|| "/sys/fs/resctrl".into()));
        root.files.is_file(&dir.join("schemata")).then(|| Resctrl { dir, files: root.files.clone() })
    }

    fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        text(self.files.as_ref(), path)
    }

    fn info(&self, path: &str) -> Option<String> {
        self.read(self.dir.join("info").join(path))
    }

    /// Bits of a CBM; None without L3 CAT.
    pub fn cbm_bits(&self) -> Option<u32> {
        u32::from_str_radix(&self.info("L3/cbm_mask")?, 16).ok().map(u32::count_ones).filter(|b| *b > 0)
    }

    pub fn min_cbm_bits(&self) -> u32 {
        self.info("L3/min_cbm_bits").and_then(|t| t.parse().ok()).unwrap_or(1)
    }

    /// Control groups that the hardware has, the default group included.
    pub fn num_closids(&self) -> Option<u32> {
        ["L3/num_closids", "MB/num_closids"].iter().filter_map(|p| self.info(p)?.parse().ok()).min()
    }

    /// Bytes that all bits of the first domain stand for.
    pub fn root_bytes(&self) -> Option<u64> {
        let size = parse_schemata(&self.read(self.dir.join("size"))?);
        size.get("L3")?.values().next()?.parse().ok()
    }

    /// Least value and step in per cent; None without MBA, or where its unit is not per cent (AMD, `mba_MBps`).
    pub fn mba_percent(&self) -> Option<(u8, u8)> {
        let min = self.info("MB/min_bandwidth")?.parse().ok()?;
        let step = self.info("MB/bandwidth_gran")?.parse().ok()?;
        let lines = parse_schemata(&self.read(self.dir.join("schemata"))?);
        let percent = lines.get("MB")?.values().all(|v| v == "100");
        (percent && step > 0).then_some((min, step))
    }

    pub fn monitors(&self) -> Vec<String> {
        self.info("L3_MON/mon_features").map(|t| t.lines().map(str::to_string).collect()).unwrap_or_default()
    }

    /// Folder of a service's group.
    pub fn group(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{PREFIX}{id}"))
    }

    /// Our groups, by service.
    pub fn groups(&self) -> Vec<String> {
        let names = self.files.list(&self.dir).unwrap_or_default();
        names.iter().filter_map(|n| n.strip_prefix(PREFIX)).map(str::to_string).collect()
    }

    fn status(&self) -> String {
        match self.info("last_cmd_status") {
            Some(s) if s != "ok" && !s.is_empty() => format!(" (kernel: {s})"),
            _ => String::new(),
        }
    }

    fn failed(&self, what: String, e: &io::Error, remedy: &str) -> ServerError {
        ServerError::Write { what, cause: format!("{e}{}", self.status()), remedy: remedy.into() }
    }

    /// Put a service's threads under these masks and this bandwidth. Creates the group where it is missing.
    ///
    /// `ways` in the order of domains, `tids` lists the service's threads anew at each call (threads that are born while
    /// others are moved inherit either group, so the list is read until a pass moves nobody).
    ///
    /// # Errors
    /// [`ServerError::Write`] with path, value and the kernel's own words.
    pub fn set(&self, id: &str, ways: &[u32], mba_pct: u8, tids: impl Fn() -> Vec<u32>) -> Result<(), ServerError> {
        let dir = self.group(id);
        if !self.files.is_dir(&dir) {
            self.files.make_dir(&dir).map_err(|e| {
                let limit = self.num_closids().map_or(String::new(), |n| format!("; the hardware has {n} classes"));
                self.failed(format!("mkdir {}", dir.display()), &e, &format!("Remove groups that nobody needs{limit}"))
            })?;
        }
        let path = dir.join("schemata");
        let now = parse_schemata(&self.read(&path).or_else(|| self.read(self.dir.join("schemata"))).unwrap_or_default());
        let mut text = String::new();
        let mut want: Vec<(&str, u32, String)> = vec![];
        if let Some(l3) = now.get("L3").filter(|_| !ways.is_empty()) {
            if l3.len() != ways.len() {
                return Err(ServerError::Invalid(format!(
                    "{id}: {} way masks, but {} has {} domains",
                    ways.len(),
                    path.display(),
                    l3.len()
                )));
            }
            want.extend(l3.keys().zip(ways).map(|(d, m)| ("L3", *d, format!("{m:x}"))));
        }
        if let Some(mb) = now.get("MB").filter(|_| self.mba_percent().is_some()) {
            want.extend(mb.keys().map(|d| ("MB", *d, mba_pct.to_string())));
        }
        for res in ["L3", "MB"] {
            let parts: Vec<String> = want.iter().filter(|w| w.0 == res).map(|(_, d, v)| format!("{d}={v}")).collect();
            if !parts.is_empty() {
                text += &format!("{res}:{}\n", parts.join(";"));
            }
        }
        if !text.is_empty() {
            self.files.write(&path, &text).map_err(|e| {
                self.failed(format!("{} <- {}", path.display(), text.trim().replace('\n', " ")), &e, "Check the masks against info/L3")
            })?;
            self.read_back(&path, &want)?;
        }
        self.move_tasks(&dir, tids)
    }

    /// The kernel rounds and widens in silence: what it took must be what was asked for.
    fn read_back(&self, path: &Path, want: &[(&str, u32, String)]) -> Result<(), ServerError> {
        let got = parse_schemata(&self.read(path).unwrap_or_default());
        for (res, d, v) in want {
            let have = got.get(*res).and_then(|l| l.get(d)).map_or("", String::as_str);
            let same = match *res {
                "L3" => u32::from_str_radix(have, 16).ok() == u32::from_str_radix(v, 16).ok(),
                _ => have == v,
            };
            if !same {
                return Err(ServerError::Write {
                    what: format!("{}: {res} of domain {d}", path.display()),
                    cause: format!("wrote {v}, the kernel keeps {have}"),
                    remedy: "Ask for values that the hardware has (contention bits may widen masks)".into(),
                });
            }
        }
        Ok(())
    }

    fn move_tasks(&self, dir: &Path, tids: impl Fn() -> Vec<u32>) -> Result<(), ServerError> {
        let path = dir.join("tasks");
        for _ in 0..MAX_PASSES {
            let inside: Vec<u32> = self.read(&path).unwrap_or_default().lines().filter_map(|l| l.trim().parse().ok()).collect();
            let outside: Vec<u32> = tids().into_iter().filter(|t| !inside.contains(t)).collect();
            if outside.is_empty() {
                return Ok(());
            }
            for tid in outside {
                match self.files.write(&path, &format!("{tid}\n")) {
                    // Threads come and go.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) => {
                        return Err(self.failed(format!("{} <- {tid}", path.display()), &e, "Run as root in the host's pid namespace"))
                    }
                    Ok(()) => {}
                }
            }
        }
        Err(ServerError::Write {
            what: path.display().to_string(),
            cause: format!("new threads kept appearing for {MAX_PASSES} passes"),
            remedy: "Place the service again once it has started up".into(),
        })
    }

    /// Remove a service's group; its threads fall back to the default group.
    ///
    /// # Errors
    /// [`ServerError::Write`] where the kernel refuses.
    pub fn remove(&self, id: &str) -> Result<(), ServerError> {
        let dir = self.group(id);
        match self.files.remove_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(self.failed(format!("rmdir {}", dir.display()), &e, "Remove what other tools made in it")),
            Ok(()) => Ok(()),
        }
    }

    /// What leaves a service safe without us: an LC service goes back to the default group, a BE job keeps the least.
    pub fn safe_ops(&self, id: &str, lc: bool) -> Vec<Op> {
        let group = self.group(id);
        if lc {
            return vec![Op::RemoveDir { path: group }];
        }
        let least = (1u32 << self.min_cbm_bits()) - 1;
        let lines = parse_schemata(&self.read(self.dir.join("schemata")).unwrap_or_default());
        let Some(l3) = lines.get("L3") else { return vec![] };
        let all: Vec<String> = l3.keys().map(|d| format!("{d}={least:x}")).collect();
        vec![Op::Write { path: group.join("schemata"), text: format!("L3:{}\n", all.join(";")) }]
    }

    /// Local memory traffic so far, bytes, over all domains; None where any domain has no figure ("Unavailable").
    pub fn mbm_local_bytes(&self, id: &str) -> Option<u64> {
        let mut sum = 0;
        let mut any = false;
        let data = self.group(id).join("mon_data");
        for name in self.files.list(&data).ok()?.iter().filter(|n| n.starts_with("mon_L3_")) {
            sum += number(self.files.as_ref(), data.join(name).join("mbm_local_bytes"))?;
            any = true;
        }
        any.then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{intel, mounted, ModelFiles};
    use std::cell::Cell;
    use surefoot_resctrlfs::hardware::{CacheDomain, Hardware};

    fn with(hw: Hardware, tids: &[u32]) -> (tempfile::TempDir, ModelFiles, Resctrl) {
        let (dir, files, root) = mounted(hw);
        tids.iter().for_each(|t| files.machine().spawn(*t, *t, 1, 0));
        let r = Resctrl::find(&root).unwrap();
        (dir, files, r)
    }

    /// Masks and bandwidth of all domains go into the group by their own ids, and every thread is moved.
    #[test]
    fn a_service_gets_its_own_group() {
        let mut hw = intel(2, 11);
        hw.domains[1] = CacheDomain { id: 16, ..hw.domains[1].clone() };
        let (_dir, _files, r) = with(hw, &[10, 11]);
        r.set("moses", &[0x3, 0x70], 40, || vec![10, 11]).unwrap();
        let group = r.group("moses");
        assert_eq!(r.read(group.join("schemata")).unwrap(), "MB:0= 40;16= 40\n    L3:0=003;16=070");
        assert_eq!(r.read(group.join("tasks")).unwrap(), "10\n11");
        assert_eq!(r.groups(), ["moses"]);
    }

    /// A thread born during a pass is moved by the next; one that keeps spawning is an error, not an endless loop.
    #[test]
    fn tasks_are_moved_until_stable() {
        let (_dir, files, r) = with(intel(1, 11), &[1, 2]);
        let calls = Cell::new(0);
        let tids = || {
            calls.set(calls.get() + 1);
            if calls.get() == 1 {
                vec![1]
            } else {
                vec![1, 2]
            }
        };
        r.set("a", &[0x1], 100, tids).unwrap();
        assert_eq!(r.read(r.group("a").join("tasks")).unwrap(), "1\n2");
        let next = Cell::new(100);
        let err = r
            .set("a", &[0x1], 100, || {
                next.set(next.get() + 1);
                files.machine().spawn(next.get(), next.get(), 1, 0);
                vec![next.get()]
            })
            .unwrap_err();
        assert!(err.to_string().contains("new threads"), "{err}");
    }

    /// A refused write names path, value, and the kernel's status.
    #[test]
    fn refusals_carry_the_kernels_words() {
        let (_dir, _files, r) = with(intel(1, 11), &[]);
        (0..7).for_each(|n| r.set(&format!("g{n}"), &[0x1], 100, Vec::new).unwrap());
        let err = r.set("b", &[0x1], 100, Vec::new).unwrap_err().to_string();
        assert!(err.contains("Out of CLOSIDs") && err.contains("8 classes"), "{err}");
        let err = r.set("g0", &[0x1, 0x1], 100, Vec::new).unwrap_err().to_string();
        assert!(err.contains("2 way masks"), "{err}");
    }
}
