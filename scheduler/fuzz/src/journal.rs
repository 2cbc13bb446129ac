//! The journal, as crashes and bad disks leave it.

use arbitrary::{Arbitrary, Unstructured};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use surefoot_linux::cgroup::Knob;
use surefoot_linux::journal::{Entry, Former, Journal, Recalled};
use surefoot_linux::Target;
use surefoot_server::{Allocation, CpuSet, Lease};

/// First byte 0: the rest is a sequence of entries and places to cut. Anything else: the whole is a journal's content.
pub fn run(data: &[u8]) {
    match data.split_first() {
        Some((0, rest)) => cut(rest),
        _ => damaged(data),
    }
}

/// In memory where the host has such a folder: a fuzzer opens some thousand a second.
fn folder() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || {
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            tempfile::tempdir_in(shm)
        } else {
            tempfile::tempdir()
        }
    };
    DIR.get_or_init(|| make().expect("a temporary folder")).path()
}

fn written(content: &[u8]) -> PathBuf {
    let path = folder().join("journal.jsonl");
    std::fs::write(&path, content).expect("a temporary file");
    path
}

/// Any content: refused in one line, or opened, and then the file is a whole journal that says the same.
fn damaged(content: &[u8]) {
    let path = written(content);
    let touched = match Journal::open(&path) {
        Ok((_, t)) => t,
        Err(e) => {
            assert_eq!(std::fs::read(&path).expect("still there"), content, "a refused journal was changed");
            return crate::one_line(&e.to_string());
        }
    };
    let left = std::fs::read(&path).expect("still there");
    assert!(left.is_empty() || left.ends_with(b"\n"), "a cut line stays");
    assert!(content.starts_with(&left), "more than the cut line was taken away, or something was added");
    assert_eq!(Journal::open(&path).expect("once opened, always opened").1, touched);
}

#[derive(Arbitrary, Debug)]
enum Step {
    Touch { id: u8, container: bool, start: Option<u64>, saved: [Option<u8>; 5] },
    Apply { t_ms: u64, ids: Vec<u8>, cpus: u64, quota: Option<u16>, ways: Vec<u32> },
    Release { id: u8 },
    Boot { id: u8 },
    Lease { lender: u8, borrower: u8, cpus: u64 },
    LeaseEnd { lender: u8 },
}

/// Names with all that JSON must escape.
fn name(id: u8) -> String {
    const ODD: [&str; 8] = ["", "a", "b\n", "\"", "\\", "\u{0}", "\u{fffd}", "\u{e9}\u{1f9e6}"];
    format!("{}{}", ODD[usize::from(id % 8)], id / 8)
}

fn set(bits: u64) -> CpuSet {
    (0..64).filter(|c| bits >> c & 1 == 1).collect()
}

fn entry(step: &Step) -> Entry {
    match step {
        Step::Touch { id, container, start, saved } => {
            let target = if *container { Target::Container(name(*id)) } else { Target::Cgroup(format!("/x/{}", name(*id)).into()) };
            let saved = Knob::ALL.iter().zip(saved).filter_map(|(k, v)| Some((*k, name((*v)?)))).collect();
            Entry::Touch {
                id: name(*id % 16),
                former: Former { target, start_ticks: *start, group: *start, cgroup: None, threads: BTreeMap::new(), saved },
            }
        }
        Step::Apply { t_ms, ids, cpus, quota, ways } => {
            let cpus = set(*cpus);
            let a = Allocation {
                cpus,
                shared_cpus: CpuSet::empty(),
                quota_cores: quota.map(|q| f64::from(q) * 0.05),
                ways: ways.clone(),
                shared_ways: ways.clone(),
                mba_pct: 100,
                mem_limit_bytes: Some(*t_ms),
                zswap_max_bytes: None,
            };
            let ids: Vec<String> = ids.iter().map(|i| name(i % 16)).collect();
            Entry::Apply { t_ms: *t_ms, allocations: ids.iter().map(|i| (i.clone(), a.clone())).collect(), changed: ids }
        }
        Step::Release { id } => Entry::Release { id: name(*id % 16) },
        Step::Boot { id } => Entry::Boot { boot_id: name(*id) },
        Step::Lease { lender, borrower, cpus } => {
            Entry::Lease { lease: Lease { lender: name(*lender % 16), borrower: name(*borrower % 16), cpus: set(*cpus) } }
        }
        Step::LeaseEnd { lender } => Entry::LeaseEnd { lender: name(*lender % 16) },
    }
}

/// What is under control after these entries, told again in the plainest way.
fn expected(entries: &[Entry]) -> Recalled {
    let mut now = Recalled::default();
    for e in entries {
        match e {
            Entry::Touch { id, former } => match now.touched.get_mut(id) {
                None => drop(now.touched.insert(id.clone(), former.clone())),
                // What was there first is what there was.
                Some(known) => {
                    for (knob, value) in &former.saved {
                        if !known.saved.contains_key(knob) {
                            known.saved.insert(*knob, value.clone());
                        }
                    }
                }
            },
            Entry::Release { id } => {
                now.touched.remove(id);
                now.in_force.remove(id);
                now.leases.retain(|_, l| l.lender != *id && l.borrower != *id);
            }
            Entry::Lease { lease } => drop(now.leases.insert(lease.lender.clone(), lease.clone())),
            Entry::LeaseEnd { lender } => drop(now.leases.remove(lender)),
            Entry::Apply { allocations, .. } => {
                for (id, a) in allocations {
                    now.in_force.insert(id.clone(), a.clone());
                }
            }
            Entry::Boot { boot_id } => now.boot_id = Some(boot_id.clone()),
        }
    }
    now.in_force.retain(|id, _| now.touched.contains_key(id));
    now.leases.retain(|_, l| [&l.lender, &l.borrower].iter().all(|id| now.touched.contains_key(*id)));
    now
}

/// However many bytes of a journal reached the disk: it opens, says what its whole lines say, and goes on.
fn cut(rest: &[u8]) {
    let mut u = Unstructured::new(rest);
    let Ok((at, steps)) = <(u16, Vec<Step>)>::arbitrary(&mut u) else { return };
    let entries: Vec<Entry> = steps.iter().take(32).map(entry).collect();
    let mut content = vec![];
    let mut ends = vec![0];
    for e in &entries {
        content.extend(serde_json::to_vec(e).expect("every entry can be written"));
        content.push(b'\n');
        ends.push(content.len());
    }
    let at = usize::from(at) % (content.len() + 1);
    let whole = ends.iter().filter(|e| **e <= at).count() - 1;
    let path = written(&content[..at]);
    let (mut journal, touched) = Journal::open(&path).expect("a prefix of a journal is a journal");
    assert_eq!(touched, expected(&entries[..whole]));
    // The next process goes on where this one was cut short.
    let Some(next) = entries.get(whole) else { return };
    journal.append(next).expect("a temporary file");
    drop(journal);
    assert_eq!(Journal::open(&path).expect("it went on").1, expected(&entries[..=whole]));
}
