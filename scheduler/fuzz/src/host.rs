//! Files of sysfs, procfs and resctrl as some kernel might show them: topology, caches, resctrl's info, schemata and counters.
//!
//! The input is text, `PATH=CONTENT` a line, where `~` stands for a line's end (`seeds/host`). A pattern `*` in PATH is every CPU.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use surefoot_linux::files::Files;
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::{discover, procfs, Root};
use surefoot_server::{CpuSet, ServerError};

/// A host in memory; nothing of it can be changed.
#[derive(Debug)]
struct Memory(BTreeMap<PathBuf, Vec<u8>>);

fn absent<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().map_or_else(absent, Ok)
    }
    fn write(&self, _: &Path, _: &str) -> io::Result<()> {
        absent()
    }
    fn make_dir(&self, _: &Path) -> io::Result<()> {
        absent()
    }
    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        absent()
    }
    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        absent()
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let below = self.0.keys().filter_map(|p| p.strip_prefix(dir).ok()?.iter().next());
        let mut names: Vec<String> = below.map(|n| n.to_string_lossy().into_owned()).collect();
        names.dedup();
        Ok(names)
    }
    fn is_dir(&self, path: &Path) -> bool {
        self.0.keys().any(|p| p != path && p.starts_with(path))
    }
    fn is_file(&self, path: &Path) -> bool {
        self.0.contains_key(path)
    }
    fn writable(&self, path: &Path) -> bool {
        self.is_file(path)
    }
}

pub fn run(data: &[u8]) {
    let mut files = BTreeMap::new();
    for line in data.split(|b| *b == b'\n').take(100) {
        let Some(at) = line.iter().position(|b| *b == b'=') else { continue };
        let Ok(path) = std::str::from_utf8(&line[..at]) else { continue };
        let content: Vec<u8> = line[at + 1..].iter().map(|b| if *b == b'~' { b'\n' } else { *b }).collect();
        if path.contains('*') {
            (0..8).for_each(|cpu| drop(files.insert(path.replace('*', &cpu.to_string()).into(), content.clone())));
        } else {
            files.insert(path.into(), content);
        }
    }
    let root = Root::with("/", Arc::new(Memory(files)));
    match discover(&root, None) {
        Ok(p) => {
            let n = p.core_of_cpu.len();
            assert_eq!(p.l3_domain_of_cpu.len(), n);
            assert!(!p.managed.is_empty() && p.managed.iter().all(|c| (c as usize) < n));
            assert!(p.smt >= 1 && p.core_of_cpu.iter().all(|c| *c < p.physical_cores));
            // Domains and cores are numbered without gaps, whatever the kernel calls them.
            assert!((0..p.l3_domains()).all(|d| p.l3_domain_of_cpu.contains(&d)));
            if let Some(l) = p.llc {
                assert!((1..=32).contains(&l.ways) && l.mb_per_way.is_finite() && l.mb_per_way >= 0.0, "{l:?}");
            }
            if let Some(m) = p.mba {
                assert!(m.step_pct > 0, "{m:?}");
            }
            assert!(p.max_freq_mhz.is_none_or(|f| !f.is_nan()));
        }
        Err(ServerError::Invalid(text)) => panic!("CPUs that nobody named: {text}"),
        Err(e) => crate::one_line(&e.to_string()),
    }
    let _ = (discover::host_facts(&root), procfs::start_time(&root, 7));
    if let Some((virt, res)) = procfs::memory_mb(&root, &[7, 8]) {
        assert!(!virt.is_nan() && !res.is_nan());
    }
    let cpus = CpuSet::range(0, 4);
    let _ = procfs::Frequencies::read(&root, &cpus).mean_mhz(&cpus);
    if let Some(r) = Resctrl::find(&root) {
        let _ = (r.cbm_bits(), r.min_cbm_bits(), r.root_bytes(), r.mba_steps(), r.info().domain_line());
        // What others made there is looked at, never followed out of the mount.
        let _ = r.survey();
    }
}
