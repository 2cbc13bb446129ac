//! The resctrl adapter of `surefoot-linux` on the stand-in: real system calls, the kernel's answers.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::Root;
use surefoot_resctrlfs::fuse::{lock, show, Shared};
use surefoot_resctrlfs::hardware::{from_platform, CacheDomain, Fault};
use surefoot_resctrlfs::host::Host;
use surefoot_resctrlfs::{Hardware, Kernel, Machine};

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
    let mut hw = from_platform(&file, Kernel::V6_12).unwrap();
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
    fs::write(dir.path().join("proc/mounts"), "resctrl /sys/fs/resctrl resctrl rw,relatime 0 0\n").unwrap();
    let machine: Shared = Arc::new(Mutex::new(Machine::new(hardware(dir.path()))));
    {
        let mut m = lock(&machine);
        m.mount("", false).unwrap();
        m.spawn(500, 500, 0, 0);
        m.spawn(501, 500, 500, 0);
    }
    let session = match show(machine.clone(), Box::new(Still), &at, false) {
        Ok(s) => s,
        Err(e) => return eprintln!("SKIPPED: cannot mount FUSE here ({e}); needs /dev/fuse, and root or fusermount3"),
    };

    let r = Resctrl::find(&Root::at(dir.path())).unwrap();
    assert_eq!((r.cbm_bits(), r.min_cbm_bits(), r.num_closids()), (Some(11), 1, Some(8)));
    assert_eq!((r.mba_percent(), r.root_bytes()), (Some((10, 10)), Some(22 << 20)));

    // 502 is gone before it can be moved: no error.
    r.set("moses", &[0x3, 0x70], 40, || {
        if lock(&machine).task_groups(501).unwrap().contains("moses") {
            vec![500, 501]
        } else {
            vec![500, 501, 502]
        }
    })
    .unwrap();
    assert_eq!(fs::read_to_string(r.group("moses").join("schemata")).unwrap(), "    MB:0= 40;16= 40\n    L3:0=003;16=070\n");
    assert_eq!(fs::read_to_string(r.group("moses").join("tasks")).unwrap(), "500\n501\n");
    assert_eq!(r.mbm_local_bytes("moses"), Some(0));

    // The kernel rounds 45 % up to 50: the adapter reads back and says so.
    let err = r.set("moses", &[0x3, 0x70], 45, Vec::new).unwrap_err().to_string();
    assert!(err.contains("wrote 45, the kernel keeps 50"), "{err}");
    let err = r.set("moses", &[0x5, 0x70], 40, Vec::new).unwrap_err().to_string();
    assert!(err.contains("The mask 5 has non-consecutive 1-bits"), "{err}");

    // 8 classes: the root's, moses and 6 more; the second group has RMID 2, whose counters are unavailable.
    for n in 0..6 {
        r.set(&format!("s{n}"), &[0x1, 0x1], 100, Vec::new).unwrap();
    }
    assert_eq!(r.mbm_local_bytes("s0"), None);
    let err = r.set("s6", &[0x1, 0x1], 100, Vec::new).unwrap_err().to_string();
    assert!(err.contains("Out of CLOSIDs") && err.contains("8 classes"), "{err}");

    for id in r.groups() {
        r.remove(&id).unwrap();
    }
    assert_eq!(r.groups(), Vec::<String>::new());
    assert_eq!(lock(&machine).task_groups(500).unwrap(), "res:/\nmon:\n");
    session.join();
}
