//! The resctrl adapter of `surefoot-linux` on the stand-in: real system calls, the kernel's answers.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::node::{mounted, StandIn};
use common::{one_line, path, run};
use nix::mount::{umount2, MntFlags};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use surefoot_linux::resctrl::classes::{Layout, Place, Setting};
use surefoot_linux::resctrl::monitor::Event;
use surefoot_linux::resctrl::steps::Op;
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::Root;
use surefoot_resctrlfs::fuse::{lock as lock_machine, show, Shared};
use surefoot_resctrlfs::hardware::{from_platform, CacheDomain, Fault, Vendor};
use surefoot_resctrlfs::host::Host;
use surefoot_resctrlfs::{Hardware, Kernel, Machine};
use surefoot_server::Mba;

/// Tasks are those that the test makes.
struct Still;

impl Host for Still {
    fn sync(&mut self, _machine: &mut Machine, _tasks: bool) {}
}

/// Two L3 domains of 8 CPUs and 11 ways with MBA; the counters of RMID 2 are unavailable.
fn hardware(dir: &Path) -> Hardware {
    let file = dir.join("platform.toml");
    let text = "[cpu]\nphysical_cores = 16\n[llc]\nways = 11\nmb_per_way = 2.0\ndomains = 2\n[mem]\nmba = true\n";
    fs::write(&file, text).unwrap();
    let mut hw = from_platform(&file, Kernel::V6_12, Vendor::Intel).unwrap();
    // Ids of caches have gaps on real machines.
    hw.domains[1] = CacheDomain { id: 16, ..hw.domains[1].clone() };
    hw.monitoring.as_mut().unwrap().faults.insert(2, Fault::Unavailable);
    hw
}

/// The adapter discovers, allocates, moves threads and removes as on a kernel, and its errors carry the kernel's words.
#[test]
fn the_adapter_works_on_the_stand_in() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("sys/fs/resctrl");
    fs::create_dir_all(&at).unwrap();
    fs::create_dir(dir.path().join("proc")).unwrap();
    fs::write(dir.path().join("proc/mounts"), "resctrl /sys/fs/resctrl fuse.resctrl rw,nosuid,nodev,relatime 0 0\n").unwrap();
    let machine: Shared = Arc::new(Mutex::new(Machine::new(hardware(dir.path()))));
    {
        let mut m = lock_machine(&machine);
        m.mount("", false).unwrap();
        m.spawn(500, 500, 0, 0);
        m.spawn(501, 500, 500, 0);
    }
    let session = match show(machine.clone(), Box::new(Still), &at, false) {
        Ok(s) => s,
        Err(e) => return eprintln!("SKIPPED: cannot mount FUSE here ({e}); needs /dev/fuse, and root or fusermount3"),
    };

    // A mount of type fuse is used only where it is named, and known for what it is.
    let root = Root::at(dir.path());
    assert!(Resctrl::find(&root).is_none());
    let r = Resctrl::named(&root, Path::new("/sys/fs/resctrl")).unwrap();
    assert!(r.is_stand_in());
    assert_eq!((r.cbm_bits(), r.min_cbm_bits(), r.info().num_closids), (Some(11), 1, 8));
    assert_eq!((r.mba_steps(), r.root_bytes()), (Some(Mba { min_pct: 10, step_pct: 10 }), Some(22 << 20)));

    let setting = |a: u32, b: u32, pct: u8| Setting { ways: vec![a, b], mba_pct: Some(pct) };
    let make = |class: &str, setting: Setting| r.execute(&Op::Make { class: class.into(), setting }, &Vec::new);
    let class = |name: &str| Place::Class(name.into());
    let lock = r.lock();
    make("moses", setting(0x3, 0x70, 40)).unwrap();
    // 502 is gone before it can be moved: no error.
    let come = Op::Move { id: "moses".into(), from: None, to: Some(class("moses")) };
    r.execute(&come, &|| vec![500, 501, 502]).unwrap();
    let show = |path: &str| fs::read_to_string(at.join(path)).unwrap();
    assert_eq!(show("surefoot.moses/schemata"), "    MB:0= 40;16= 40\n    L3:0=003;16=070\n");
    assert_eq!(show("surefoot.moses/mon_groups/moses/tasks"), "500\n501\n");

    // 45 % come out as 50, the next step: no error. A mask with a gap is one.
    let set = |to: Setting| r.execute(&Op::Set { class: "moses".into(), from: Setting::default(), to }, &Vec::new);
    set(setting(0x3, 0x70, 45)).unwrap();
    assert_eq!(show("surefoot.moses/schemata"), "    MB:0= 50;16= 50\n    L3:0=003;16=070\n");
    let err = set(setting(0x5, 0x70, 40)).unwrap_err().error.to_string();
    assert!(err.contains("The mask 5 has non-consecutive 1-bits") && err.contains("os error 22"), "{err}");

    // The group has RMID 1, its monitoring group 2, whose counters are unavailable, and so has the group none.
    assert_eq!(r.counter("moses", &class("moses"), true, Event::MbmLocal), None);
    // 8 classes: the default group's, moses and 6 more.
    for n in 0..6 {
        make(&format!("s{n}"), setting(0x1, 0x1, 100)).unwrap();
    }
    let refused = make("s6", setting(0x1, 0x1, 100)).unwrap_err();
    assert!(refused.is_shortage() && refused.error.to_string().contains("Out of CLOSIDs"), "{refused:?}");

    // The monitoring group takes its threads along to another class.
    let to_s0 = Op::Move { id: "moses".into(), from: Some(class("moses")), to: Some(class("s0")) };
    r.execute(&to_s0, &|| vec![500, 501]).unwrap();
    assert_eq!(lock_machine(&machine).task_groups(501).unwrap(), "res:surefoot.s0\nmon:moses\n");
    let found = r.survey().unwrap();
    assert_eq!((found.bounds.classes, found.layout.place("moses")), (7, Some(class("s0"))));

    drop(lock);
    assert_eq!(r.clear(|_| false).unwrap().len(), 7);
    assert_eq!(r.survey().unwrap().layout, Layout::default());
    assert_eq!(lock_machine(&machine).task_groups(500).unwrap(), "res:/\nmon:\n");
    // A child that the other test forks holds what is open here until its exec: a plain umount finds the mount busy, and nothing ends.
    let _ = umount2(&at, MntFlags::MNT_DETACH);
    session.join();
}

/// A mount whose server was killed is named as such and not covered by another; a test that ends takes its mount along.
#[test]
fn a_dead_mount_is_named_and_goes_with_its_guard() {
    if !nix::unistd::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return eprintln!("NOT RUN: a_dead_mount_is_named_and_goes_with_its_guard: needs root and /dev/fuse (modprobe fuse)");
    }
    let dir = tempfile::tempdir().unwrap();
    let (mount, platform) = (dir.path().join("resctrl"), dir.path().join("platform.toml"));
    fs::create_dir(&mount).unwrap();
    hardware(dir.path());
    let mut stand_in = StandIn::start(&mount, &platform);
    assert!(mounted(&mount));
    stand_in.server.end(nix::sys::signal::Signal::SIGKILL);
    assert!(mounted(&mount), "whoever is killed cannot unmount");
    let (code, said) = one_line(&run(&["resctrlfs", path(&mount), "--platform", path(&platform)]));
    assert!(code == 2 && said.contains("was killed") && said.contains("umount -l"), "{code}: {said}");
    drop(stand_in);
    assert!(!mounted(&mount));
}

/// A recording is a new file, of what the configuration names; its groups have no names, and a file that is there stays.
#[test]
fn a_recording_of_the_stand_in_names_no_group() {
    if !Path::new("/dev/fuse").exists() || !nix::unistd::geteuid().is_root() {
        return eprintln!("SKIPPED: cannot mount FUSE here; needs /dev/fuse and root");
    }
    let dir = tempfile::tempdir().unwrap();
    let (mount, platform, tree) = (dir.path().join("resctrl"), dir.path().join("platform.toml"), dir.path().join("tree.txt"));
    fs::create_dir(&mount).unwrap();
    hardware(dir.path());
    let _stand_in = StandIn::start(&mount, &platform);
    fs::create_dir(mount.join("payments")).unwrap();
    fs::create_dir(mount.join("payments/mon_groups/alice")).unwrap();
    let config = dir.path().join("node.toml");
    fs::write(&config, format!("resctrl = \"{}\"\n", path(&mount))).unwrap();
    let pack = || run(&["check", "--config", path(&config), "--pack-tree", path(&tree), "--json"]);
    let out = pack();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&said["packed"]["groups"], &said["packed"]["left_out"]), (&2.into(), &serde_json::json!([])));
    let text = fs::read_to_string(&tree).unwrap();
    assert!(text.contains("== sys/fs/resctrl/g1/schemata\n    MB:0=100;1=100\n    L3:0=7ff;1=7ff\n"), "{text}");
    assert!(text.contains("== sys/fs/resctrl/g1/mon_groups/m1/mon_data/mon_L3_00/llc_occupancy\n"), "{text}");
    for word in ["payments", "alice", path(dir.path()), "/tasks\n"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    // What is a stand-in is said first.
    let again = pack();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(2) && said.contains("tree.txt: is there already. Give --overwrite"), "{said}");
}
