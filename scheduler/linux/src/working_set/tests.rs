use super::*;
use crate::cgroup::tests::v2;
use crate::cgroup::Mounts;
use crate::files::{Files, HostFiles};
use crate::hand_on;
use crate::root::tests::put;
use std::path::Path;

const LRU_GEN: &str = "/sys/kernel/debug/lru_gen";
const SWITCH: &str = "/sys/kernel/mm/lru_gen/enabled";
const GROUP: &str = "/sys/fs/cgroup/app.slice/c";

/// A host with one process in a group, of which 64 MiB are resident; nothing tells of accesses yet.
fn host() -> (tempfile::TempDir, Root) {
    let (dir, root) = v2();
    put(&root, "/proc/42/statm", "40000 16384 0 0 0 0 0\n");
    put(&root, &format!("{GROUP}/cgroup.procs"), "42\n");
    put(&root, &format!("{GROUP}/memory.current"), &(64u64 << 20).to_string());
    (dir, root)
}

fn watched(root: &Root) -> Watched {
    let mounts = Mounts::read(root);
    let group = mounts.of_pid(root, 42).unwrap();
    let name = mounts.name_of(&group);
    Watched { group, name, identity: None, is_lc: true }
}

fn measure(root: &Root) -> Outcome {
    Look { root, window: Duration::ZERO, shared: &Shared::default() }.measure(&watched(root))
}

fn found(bytes: u64, by: Way) -> Outcome {
    Ok(Measured { bytes, by })
}

/// Half of 64 MiB in two windows of two, the rest in one of them; the monitor has been asked for a thousand regions, and is gone afterwards.
#[test]
fn damon_comes_first() {
    let (_dir, root) = host();
    damon::tests::interface(&root, &[(0, 32 << 20, 2), (32 << 20, 64 << 20, 1)]);
    put(&root, LRU_GEN, "");
    put(&root, SWITCH, "0x0007");
    assert_eq!(measure(&root), found(48 << 20, Way::Damon));
    let set = |file: &str| damon::tests::set(&root, file);
    let attrs = "0/contexts/0/monitoring_attrs";
    assert_eq!((&*set("nr_kdamonds"), &*set("0/contexts/0/targets/0/pid_target")), ("0", "42"));
    assert_eq!((&*set(&format!("{attrs}/nr_regions/min")), &*set(&format!("{attrs}/intervals/sample_us"))), ("1000", "7"));
}

/// Where most of the address space has nothing in memory a region is too large to tell: 64 MiB in 300. Nor does a monitor that saw nothing tell.
#[test]
fn damon_is_not_asked_about_sparse_processes() {
    let (_dir, root) = host();
    damon::tests::interface(&root, &[(0, 32 << 20, 2)]);
    put(&root, "/proc/42/statm", "76800 16384 0 0 0 0 0\n");
    assert!(measure(&root).unwrap_err().contains("DAMON: 64 MiB in an address space of 300"));
    let (_dir, root) = host();
    damon::tests::interface(&root, &[]);
    assert!(measure(&root).unwrap_err().contains("no access was seen"));
}

/// What no page table shows counts as touched: 8 MiB of files that are read, and the kernel's.
#[test]
fn what_cannot_be_seen_counts() {
    let (_dir, root) = host();
    damon::tests::interface(&root, &[(0, 16 << 20, 2)]);
    let mib = |n: u64| n << 20;
    put(&root, &format!("{GROUP}/memory.stat"), &format!("anon 1\nfile {}\nfile_mapped {}\nkernel {}\nsock 0\n", mib(10), mib(2), mib(3)));
    assert_eq!(measure(&root), found(mib(16 + 8 + 3), Way::Damon));
}

/// A failure or two leave what was known; a third one does not.
#[test]
fn what_was_known_stays_through_a_failure() {
    let mut state = State::default();
    let (known, fails) = (found(7, Way::Damon), || Err("busy".to_string()));
    state.keep("web", fails());
    assert_eq!(state.found["web"], fails());
    state.keep("web", known.clone());
    (0..MOST_FAILS).for_each(|_| state.keep("web", fails()));
    assert_eq!(state.found["web"], known);
    state.keep("web", fails());
    assert_eq!(state.found["web"], fails());
}

/// More than there is cannot be touched.
#[test]
fn no_more_is_touched_than_there_is() {
    let (_dir, root) = host();
    damon::tests::interface(&root, &[(0, 1 << 30, 2)]);
    assert_eq!(measure(&root), found(64 << 20, Way::Damon));
}

/// Generations as a kernel keeps them: to begin one moves the pages in `touched` into the youngest so far.
#[derive(Debug)]
struct Aging {
    inner: HostFiles,
    touched: u64,
    text: Mutex<(u64, u64)>,
}

impl Aging {
    fn text(&self) -> String {
        let (youngest, hot) = *self.text.lock().unwrap();
        format!(
            "memcg     9 /app.slice/c\n node     0\n {} 900 {} 0 \n {} 30 {hot} 0 \n {youngest} 1 0 0 \n",
            youngest - 2,
            16_384 - hot,
            youngest - 1
        )
    }
}

impl Files for Aging {
    hand_on!(inner: make_dir, remove_dir, rename, list, is_dir, is_file, writable);

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path.ends_with("lru_gen") && path.to_str().unwrap().contains("debug") {
            return Ok(self.text().into_bytes());
        }
        self.inner.read(path)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        assert!(path.ends_with("lru_gen"), "{path:?}");
        let mut now = self.text.lock().unwrap();
        assert_eq!(text, format!("+ 9 0 {} 1 1", now.0));
        *now = (now.0 + 1, self.touched);
        Ok(())
    }
}

/// What was hot before the window is not counted for that: 600 pages are touched in it.
#[test]
fn generations_come_second() {
    let (dir, plain) = host();
    put(&plain, LRU_GEN, "");
    put(&plain, SWITCH, "0x0007");
    let root = Root::with(dir.path(), Arc::new(Aging { inner: HostFiles, touched: 600, text: Mutex::new((12, 5000)) }));
    assert_eq!(measure(&root), found(600 * page_bytes(), Way::Generations));
    // Another program's monitor is left alone.
    damon::tests::interface(&plain, &[]);
    put(&plain, "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1");
    put(&plain, "/sys/kernel/mm/damon/admin/kdamonds/0/contexts/nr_contexts", "1");
    assert_eq!(measure(&root), found(600 * page_bytes(), Way::Generations));
}

/// With two lists the bits may be cleared, for a small service; with generations they may not.
#[test]
fn clear_refs_comes_third() {
    let (_dir, root) = host();
    put(&root, "/proc/42/clear_refs", "");
    put(&root, "/proc/42/smaps_rollup", "Rss: 65536 kB\nReferenced: 25600 kB\n");
    put(&root, SWITCH, "0x0000");
    assert_eq!(measure(&root), found(25 << 20, Way::Referenced));
    assert_eq!(root.read("/proc/42/clear_refs").as_deref(), Some("1"));
    put(&root, "/proc/42/statm", "900000 400000 0 0 0 0 0\n");
    let why = measure(&root).unwrap_err();
    assert!(why.contains("a process of 1562 MiB would stand still") && why.contains("DAMON: this kernel has none"), "{why}");
    put(&root, SWITCH, "0x0007");
    assert!(measure(&root).unwrap_err().contains("reclaim would then take pages in use"));
}

/// With 40 MiB out, and next to nothing of it back, 24 MiB are enough; with nothing out nobody knows.
#[test]
fn refaults_give_a_bound() {
    let (_dir, root) = host();
    assert!(measure(&root).unwrap_err().ends_with("refaults: too little is out to tell"));
    put(&root, &format!("{GROUP}/memory.swap.current"), &(40u64 << 20).to_string());
    put(&root, &format!("{GROUP}/memory.stat"), &format!("zswap {}\nworkingset_refault_anon 100\n", 40u64 << 20));
    assert_eq!(measure(&root), found(24 << 20, Way::Refaults));
    let now = MemoryReading::of(&watched(&root).group, None, Instant::now());
    let later = |refaults| MemoryReading { refaults, ..now };
    assert_eq!(bound(&now, &later(Some(100 + 256))), Some(25 << 20));
    assert_eq!(bound(&now, &later(Some(u64::MAX))), Some(64 << 20));
    assert_eq!((bound(&now, &later(Some(99))), bound(&now, &later(None))), (None, None));
}

/// Groups are looked at in the background; what was found of one that is another now is forgotten; the end does not wait for a window.
#[test]
fn the_end_does_not_wait() {
    let (_dir, root) = host();
    damon::tests::interface(&root, &[(0, 32 << 20, 2)]);
    let sets = WorkingSets::start(root.clone(), Pace { window: Duration::ZERO, rest: Duration::ZERO }).unwrap();
    let groups = BTreeMap::from([("web".to_string(), watched(&root))]);
    sets.watch(groups.clone());
    let outcome = loop {
        if let Some(found) = sets.of("web") {
            break found;
        }
        std::thread::yield_now();
    };
    assert_eq!((outcome, sets.of("other")), (found(32 << 20, Way::Damon), None));
    sets.watch(BTreeMap::new());
    assert_eq!(sets.of("web"), None);
    drop(sets);
    let day = Duration::from_secs(86_400);
    let sets = WorkingSets::start(root.clone(), Pace { window: day, rest: day }).unwrap();
    sets.watch(groups);
    drop(sets);
    assert_eq!(damon::tests::set(&root, "nr_kdamonds"), "0");
}

/// A daemon beside an actuator asks it for nothing of DAMON's: the actuator would refuse, with a warning in two logs.
#[test]
fn an_actuator_is_not_asked_for_damon() {
    #[derive(Debug)]
    struct Elsewhere(HostFiles, Mutex<Vec<String>>);
    impl Files for Elsewhere {
        hand_on!(0: open, write, make_dir, remove_dir, rename, list, is_dir, is_file, writable, keep_safe, running);
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.1.lock().unwrap().push(path.display().to_string());
            self.0.read(path)
        }
        fn is_here(&self) -> bool {
            false
        }
    }
    let (dir, root) = host();
    damon::tests::interface(&root, &[(0, 32 << 20, 2)]);
    let files = Arc::new(Elsewhere(HostFiles, Mutex::default()));
    let why = measure(&Root::with(dir.path(), files.clone())).unwrap_err();
    assert!(why.contains("DAMON: only root may, without an actuator"), "{why}");
    let read = files.1.lock().unwrap().clone();
    assert!(!read.is_empty() && !read.iter().any(|path| path.contains("damon")), "{read:?}");
}
