//! What a client of the actuator can take from others on real cgroup v2 files: by the kernel's word, not by the list's.

use crate::support::{settings, write, Group, Process, MOUNT};
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use surefoot_linux::actuator::protocol::Request;
use surefoot_linux::actuator::{record, Actuator, Allow, DeadMan, Pattern, Record, Terms};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::files::HostFiles;
use surefoot_linux::Root;
use surefoot_server::CpuSet;

/// What is set, wherever it is; a service whose memory is taken is killed, which its own decider may do.
fn everything() -> BTreeMap<PathBuf, String> {
    let mut all = settings();
    all.retain(|p, _| !p.ends_with("cgroup.procs") && !p.ends_with("cgroup.threads"));
    all
}

/// Of all groups but `own`.
fn of_others(own: &Path) -> (BTreeMap<PathBuf, String>, BTreeMap<PathBuf, CpuSet>) {
    let mut all = settings();
    all.retain(|p, _| p != own && p.parent() != Some(own));
    let effective = |dir: &Path| std::fs::read_to_string(dir.join("cpuset.cpus.effective")).ok().and_then(|t| CpuSet::parse(&t).ok());
    let dirs: Vec<PathBuf> = all.keys().filter(|p| p.is_dir()).cloned().collect();
    let effective = dirs.into_iter().filter_map(|d| effective(&d).map(|c| (d, c))).collect();
    (all, effective)
}

/// Every file of the group that it may place, and of its neighbours, is written with every value that could take something: no setting of
/// others is another, nobody else has fewer CPUs (with `partitions = true`: but for those of `cpus`, where nobody names them), and in the end
/// every value is what it was.
#[test]
#[ignore = "needs root and a machine of its own; run by make test-kernel"]
fn nothing_is_taken_from_others() {
    let (own, by_name, any, inner) = (Group::new("own"), Group::new("named"), Group::new("any"), Group::new("plain.slice/inner"));
    write(own.file("cpuset.cpus"), "0-7").unwrap();
    write(by_name.file("cpuset.cpus"), "2-3").unwrap();
    let _all = [&own, &by_name, &any, &inner].map(|g| Process::start(g, "burn 0"));
    let cpus = CpuSet::range(0, 6);
    let was = everything();
    for partitions in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let (root, files) = (Root::default(), Arc::new(HostFiles));
        let terms = Terms { partitions, cpus: Some(cpus), services: Some(1), be: vec![] };
        let allow = Allow::new(&Mounts::read(&root), None, vec![Pattern::literal(&own.name()).unwrap()]).with_terms(terms);
        let dir = state.path().join("held");
        let dead_man = DeadMan::open(&dir, "boot", Instant::now()).unwrap();
        let record = Record::open(dead_man.folder().as_fd().try_clone_to_owned().unwrap(), "boot", files.clone(), root.clone()).unwrap();
        let mut a = Actuator::new(allow, files, root.clone()).with_dead_man(dead_man).with_record(record).unwrap();
        let (before, effective) = of_others(&own.0);
        let mut taken = 0;
        for group in [&own, &by_name, &any, &inner] {
            for file in std::fs::read_dir(&group.0).unwrap().flatten().map(|e| e.path()).filter(|p| p.is_file()) {
                for text in
                    ["1", "0-1", "1-4", "2", "0-7", "7", "\n", "200", "max", "1000 10000", "member", "root", "isolated", "1-4", "root"]
                {
                    let path = file.to_str().unwrap();
                    // What kills or freezes the test's own processes is not on the list, and must not be.
                    taken += i32::from(a.handle(&Request::Write { path, text }.encode().unwrap()).errno == 0);
                    let (now, has) = of_others(&own.0);
                    assert_eq!(now, before, "{path} <- {text:?}, partitions = {partitions}");
                    for (dir, had) in &effective {
                        let lost = had.difference(has[dir]);
                        let given = partitions && *dir != by_name.0 && lost.is_subset(&cpus);
                        assert!(lost.is_empty() || given, "{path} <- {text:?}: {} lost CPUs {lost}", dir.display());
                    }
                }
            }
        }
        assert!(taken > 10, "{taken} writes were taken");
        assert_ne!(everything(), was);
        drop(a);
        let report = record::put_back_alone(&dir, "boot", &root).unwrap().unwrap();
        assert!(report.failed.is_empty(), "{report:?}");
        let now = everything();
        let differ: Vec<&PathBuf> = was.keys().chain(now.keys()).filter(|k| was.get(*k) != now.get(*k)).collect();
        assert!(differ.is_empty(), "partitions = {partitions}: {differ:?} below {MOUNT}");
    }
}
