//! Services and daemons of tests on this host: cgroups of the test's own, and processes that end with it.

use nix::mount::{mount, MsFlags};
use nix::sched::{unshare, CloneFlags};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Root and a hierarchy that is written, or why not: a test that cannot run says so.
pub fn may_run(test: &str) -> Option<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v1 = |controller: &str| {
        mounts.lines().find_map(|l| {
            let (left, right) = l.split_once(" - cgroup ")?;
            right.rsplit(' ').next()?.split(',').any(|o| o == controller).then(|| PathBuf::from(left.split(' ').nth(4).unwrap()))
        })
    };
    let why = match (nix::unistd::geteuid().is_root(), v1("cpuset"), v1("cpu")) {
        (true, Some(cpuset), Some(cpu)) => {
            own_locks();
            return Some((cpuset, cpu));
        }
        (false, ..) => "needs root: run the tests as root",
        _ => "needs cgroup v1 with cpu and cpuset (version 2 is tested by make test-kernel)",
    };
    eprintln!("NOT RUN: {test}: {why}");
    None
}

/// Other suites and whoever works on this machine claim the same CPUs for longer than a daemon waits for them: this thread, and all that
/// it starts, sees a folder of locks of its own.
fn own_locks() {
    thread_local! { static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) } }
    if DONE.replace(true) {
        return;
    }
    let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(none, "/", none, private, none).unwrap();
    mount(Some("none"), "/run/lock", Some("tmpfs"), MsFlags::empty(), none).unwrap();
}

/// A cgroup of our own with a process in it; both go with this value.
pub struct Cgroup {
    pub name: String,
    /// In the cpuset and in the cpu hierarchy.
    pub dirs: [PathBuf; 2],
    pub process: Child,
}

impl Cgroup {
    pub fn new(hierarchies: &(PathBuf, PathBuf), tag: &str) -> Self {
        let name = format!("surefoot-test-{}-{tag}", std::process::id());
        let dirs = [hierarchies.0.join(&name), hierarchies.1.join(&name)];
        dirs.iter().for_each(|d| fs::create_dir(d).unwrap());
        for f in ["cpuset.cpus", "cpuset.mems"] {
            fs::write(dirs[0].join(f), fs::read_to_string(hierarchies.0.join(f)).unwrap()).unwrap();
        }
        let process = Command::new("sleep").arg("600").spawn().unwrap();
        dirs.iter().for_each(|d| fs::write(d.join("cgroup.procs"), process.id().to_string()).unwrap());
        Cgroup { name, dirs, process }
    }

    pub fn cpus(&self) -> String {
        fs::read_to_string(self.dirs[0].join("cpuset.cpus")).unwrap().trim().into()
    }

    pub fn quota_us(&self) -> i64 {
        fs::read_to_string(self.dirs[1].join("cpu.cfs_quota_us")).unwrap().trim().parse().unwrap()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let deadline = Instant::now() + Duration::from_secs(10);
        for d in &self.dirs {
            while fs::remove_dir(d).is_err() && d.exists() && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
    }
}

/// The stand-in for resctrl, run by the binary. Its mount goes with this value, also where a test fails or a file there is still open.
pub struct StandIn {
    pub mount: PathBuf,
    pub server: Running,
}

impl StandIn {
    /// On `mount`, an empty folder.
    pub fn start(mount: &Path, platform: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_surefootd"));
        command.args(["resctrlfs", "--die-with-parent", "--platform"]).args([platform, mount]);
        StandIn { mount: mount.into(), server: Running::start(command, "ends it") }
    }
}

impl Drop for StandIn {
    /// Before its server is killed, which could not do it any more.
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.mount, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// Whether something is mounted on a folder.
pub fn mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
    mounts.lines().any(|l| l.split(' ').nth(1).is_some_and(|m| Path::new(m) == at))
}

/// A child whose standard error is kept, and which does not outlive the test.
pub struct Running {
    pub child: Child,
    said: Option<JoinHandle<String>>,
}

impl Running {
    /// Start, and wait until it says so.
    pub fn start(mut command: Command, until: &str) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut from = BufReader::new(child.stderr.take().unwrap());
        let (mut all, mut line) = (String::new(), String::new());
        while !line.contains(until) {
            line.clear();
            assert!(from.read_line(&mut line).unwrap() > 0, "it ended before \"{until}\": {all}");
            all += &line;
        }
        let said = std::thread::spawn(move || {
            from.read_to_string(&mut all).unwrap();
            all
        });
        Running { child, said: Some(said) }
    }

    /// End it, and hear what it said.
    pub fn end(&mut self, signal: nix::sys::signal::Signal) -> String {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap();
        self.said.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
