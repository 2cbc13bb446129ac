//! Hosts that are not as one expects: ways that others hold alone, bandwidth in absolute units on several domains, CPUs off line, and a
//! resctrl with other L3 domains than the CPUs have.

use crate::support::{read, until, write, Group, Process};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use surefoot_linux::{LocalConfig, LocalServer, Target};
use surefoot_resctrlfs::hardware::{from_platform, Vendor};
use surefoot_resctrlfs::host::Host;
use surefoot_resctrlfs::{fuse, Kernel, Machine};
use surefoot_server::{Allocation, Applied, Kind, Plan, Server};

const RESCTRL: &str = "/sys/fs/resctrl";
/// MB/s of memory bandwidth where the kernel counts in absolute units.
const PEAK_MBPS: f64 = 1e5;

/// resctrl freshly mounted with these options, without groups; plain afterwards. None where this hardware does not take them.
struct Mounted;

impl Mounted {
    fn with(options: &str) -> Option<Self> {
        umount();
        let options = if options.is_empty() { "defaults" } else { options };
        let done = Command::new("mount").args(["-t", "resctrl", "-o", options, "resctrl", RESCTRL]).output().unwrap();
        if !done.status.success() {
            remount();
            return None;
        }
        Some(Mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount();
        remount();
    }
}

fn umount() {
    let _ = Command::new("umount").arg(RESCTRL).output().unwrap();
}

fn remount() {
    assert!(Command::new("mount").args(["-t", "resctrl", "resctrl", RESCTRL]).status().unwrap().success());
}

fn at(path: &str) -> PathBuf {
    Path::new(RESCTRL).join(path)
}

/// Values of a line of a group's schemata, by domain; None without such a line.
fn line(group: &str, name: &str) -> Option<BTreeMap<u32, String>> {
    let text = read(at(group).join("schemata"));
    let values = text.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'))?;
    Some(values.split(';').filter_map(|p| p.split_once('=')).map(|(d, v)| (d.trim().parse().unwrap(), v.trim().to_string())).collect())
}

/// Lines of L3 masks: two with CDP.
fn lines() -> Vec<&'static str> {
    ["L3", "L3CODE", "L3DATA"].into_iter().filter(|l| line("", l).is_some()).collect()
}

/// The mask of every domain, the same for code and data.
fn masks(group: &str) -> Vec<u32> {
    let all: Vec<Vec<u32>> =
        (lines().iter()).map(|l| line(group, l).unwrap().values().map(|v| u32::from_str_radix(v, 16).unwrap()).collect()).collect();
    assert!(all.windows(2).all(|w| w[0] == w[1]), "{group}: {all:x?}");
    all[0].clone()
}

/// This mask in every domain.
fn set(group: &str, mask: u32) {
    for name in lines() {
        let each: Vec<String> = line("", name).unwrap().keys().map(|d| format!("{d}={mask:x}")).collect();
        write(at(group).join("schemata"), &format!("{name}:{}\n", each.join(";"))).unwrap();
    }
}

/// Somebody's group that has its ways alone, gone after the test.
struct Exclusive(PathBuf);

impl Exclusive {
    /// The default group keeps `rest`.
    fn make(name: &str, mask: u32, rest: u32) -> Self {
        set("", rest);
        fs::create_dir(at(name)).unwrap();
        set(name, mask);
        write(at(name).join("mode"), "exclusive\n").unwrap();
        Exclusive(at(name))
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn config(state: &Path) -> LocalConfig {
    LocalConfig { mem_bw_mbps: Some(PEAK_MBPS), look_every: Duration::ZERO, ..LocalConfig::new(state) }
}

/// A server with one BE job, and a plan that gives it these ways.
struct Node {
    server: LocalServer,
    state: tempfile::TempDir,
    _process: Process,
    _group: Group,
}

impl Node {
    fn open(name: &str, more: impl FnOnce(LocalConfig) -> LocalConfig) -> Self {
        let group = Group::new(name);
        let process = Process::start(&group, "burn 0");
        let state = tempfile::tempdir().unwrap();
        let mut server = LocalServer::open(more(config(state.path()))).unwrap();
        server.adopt("job", "job", Kind::Be, 1, Target::Pid(process.pid())).unwrap();
        Node { server, state, _process: process, _group: group }
    }

    fn plan(&self, mask: u32, mba_pct: u8) -> Plan {
        let p = self.server.platform();
        let n = p.l3_domains() as usize;
        let quota_cores = p.by_quota().then_some(1.0);
        let (ways, shared_ways) = if p.ways() > 0 { (vec![mask; n], vec![0; n]) } else { (vec![], vec![]) };
        let a = Allocation { quota_cores, ways, shared_ways, mba_pct, ..Allocation::everything(p) };
        Plan::whole(BTreeMap::from([("job".into(), a)]))
    }

    fn apply(&mut self, mask: u32, mba_pct: u8) {
        let plan = self.plan(mask, mba_pct);
        self.server.apply(&plan).unwrap();
    }

    fn says(&mut self) -> Allocation {
        self.server.observe().get("job").unwrap().allocation.clone()
    }
}

fn bits(mask: &str) -> u32 {
    u32::from_str_radix(mask, 16).unwrap().count_ones()
}

/// Beside an exclusive group the ways that are left are offered and placed, on every mount; what is told is what is in force, in the plan's
/// words; when the group goes, or takes more, the server says so within some looks; a reset leaves the group alone.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn ways_beside_an_exclusive_group_are_placed() {
    for options in ["", "cdp", "mba_MBps"] {
        let Some(_mounted) = Mounted::with(options) else { continue };
        let all = bits(line("", lines()[0]).unwrap().values().next().unwrap());
        let n = masks("").len();
        let full = (1u32 << all) - 1;
        let others = Exclusive::make("kvm", 0xf, full & !0xf);
        let mut node = Node::open("hosts/exclusive", |c| c);
        assert_eq!(node.server.platform().ways(), all - 4, "{options}");
        node.apply(0x3, 100);
        assert_eq!((masks("surefoot.job"), masks("kvm")), (vec![0x30; n], vec![0xf; n]), "{options}");
        for _ in 0..10 {
            assert_eq!((node.says().ways, node.server.resctrl_changed()), (vec![0x3; n], None), "{options}");
            let again = node.plan(0x3, 100);
            assert_eq!(node.server.apply(&again).unwrap(), Applied::default(), "{options}");
        }
        node.apply(full >> 4, 100);
        assert_eq!(masks("surefoot.job"), vec![full & !0xf; n], "{options}");
        drop(others);
        (0..5).for_each(|_| drop(node.server.observe()));
        let said = node.server.resctrl_changed().unwrap().to_string();
        assert!(said.contains(&format!("{} ways were on offer and {all} are now", all - 4)), "{said}");
        assert_eq!(node.server.reset().unwrap().groups_removed, ["job"], "{options}");
        drop(node);
    }
}

/// A group that takes ways alone while a server runs: it is told with its name and its ways, and no plan goes against the kernel.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn an_exclusive_group_that_comes_later_is_told() {
    let _mounted = Mounted::with("").unwrap();
    let all = masks("")[0].count_ones();
    let full = (1u32 << all) - 1;
    let mut node = Node::open("hosts/later", |c| c);
    node.apply(0x30, 100);
    let _others = Exclusive::make("kvm", 0xf, full & !0xf);
    let plan = node.plan(0x3f, 100);
    let said = node.server.apply(&plan).unwrap_err().to_string();
    assert!(said.contains("exclusive group kvm"), "{said}");
    (0..5).for_each(|_| drop(node.server.observe()));
    let said = node.server.resctrl_changed().unwrap().to_string();
    assert!(said.contains("exclusive group kvm has ways 0xf of L3 domain 0"), "{said}");
    node.server.reset().unwrap();
}

/// A region that is locked into the cache counts as its group's, where this hardware locks any (e5).
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn ways_beside_a_locked_region_are_placed() {
    let _mounted = Mounted::with("").unwrap();
    let all = masks("")[0].count_ones();
    set("", ((1u32 << all) - 1) & !0x3);
    fs::create_dir(at("locked")).unwrap();
    let locked = write(at("locked/mode"), "pseudo-locksetup\n").and_then(|()| write(at("locked/schemata"), "L3:0=3\n"));
    if let Err(e) = locked {
        eprintln!("NOT RUN: this hardware or kernel locks no region: {e}, {}", read(at("info/last_cmd_status")));
        return fs::remove_dir(at("locked")).unwrap();
    }
    let mut node = Node::open("hosts/locked", |c| c);
    assert_eq!(node.server.platform().ways(), all - 2);
    node.apply(0x1, 100);
    assert_eq!(masks("surefoot.job"), [0x4]);
    let seen = surefoot_linux::check(&surefoot_linux::Root::default(), &surefoot_linux::check::Node::at(node.state.path()));
    let others = seen.iter().find(|c| c.name == "ways-of-others").unwrap();
    assert!(others.detail.contains("pseudo-locked group locked has ways 0x3 of L3 domain 0"), "{others:?}");
    node.server.reset().unwrap();
    fs::remove_dir(at("locked")).unwrap();
}

/// Half of the machine's bandwidth is half of each domain's part, in the kernel's own unit; all of it is no limit, as the default group has.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_share_of_bandwidth_is_each_domains_share() {
    for options in ["", "mba_MBps"] {
        let Some(_mounted) = Mounted::with(options) else { continue };
        let Some(root) = line("", "MB") else { continue };
        let n = root.len() as f64;
        let amd = root.values().any(|v| v == "2048");
        // Bytes a second of one domain's half: in eighths of a GB/s, or in MB/s of 2^20 bytes, rounded up.
        let half = PEAK_MBPS * 1e6 / n / 2.0;
        let expected = match (amd, options) {
            (true, _) => (half / 125e6).ceil() as u64,
            (false, "mba_MBps") => (half / f64::from(1 << 20)).ceil() as u64,
            _ => 50,
        };
        let mut node = Node::open("hosts/bandwidth", |c| c);
        node.apply(0x3, 50);
        let held: Vec<u64> = line("surefoot.job", "MB").unwrap().values().map(|v| v.parse().unwrap()).collect();
        assert_eq!(held, vec![expected; root.len()], "{options}");
        assert_eq!(node.says().mba_pct, 50, "{options}");
        node.apply(0x3, 100);
        assert_eq!(line("surefoot.job", "MB").unwrap(), root, "{options}");
        node.server.reset().unwrap();
    }
}

/// A CPU, switched on again when this goes.
struct Off(Vec<u32>);

fn switch(cpu: u32, to: &str) -> std::io::Result<()> {
    write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), to)
}

impl Off {
    fn these(cpus: impl IntoIterator<Item = u32>) -> Self {
        let cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.iter().for_each(|c| switch(*c, "0").unwrap());
        Off(cpus)
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        self.0.iter().for_each(|c| drop(switch(*c, "1")));
        let want = self.0.clone();
        until("CPUs are on line", || {
            let on = surefoot_server::CpuSet::parse(&read("/sys/devices/system/cpu/online")).unwrap();
            want.iter().all(|c| on.contains(*c))
        });
    }
}

/// CPUs that are off line are in no core and no domain: with one off its core is smaller, with a socket off its domain is none, and plans
/// are in force all the same. A socket that goes while the server runs stops no plan until the server is opened anew.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn cpus_off_line_count_nowhere() {
    let _mounted = Mounted::with("").unwrap();
    let n = masks("").len();
    let whole = Node::open("hosts/on", |c| c).server.platform().clone();
    let last = whole.logical_cpus() - 1;
    {
        let _off = Off::these([last]);
        let mut node = Node::open("hosts/one-off", |c| c);
        let p = node.server.platform().clone();
        assert_eq!((p.logical_cpus(), p.l3_domains() as usize), (last, n));
        assert!(p.physical_cores <= whole.physical_cores && !p.managed.contains(last));
        node.apply(0x3, 100);
        assert_eq!((masks("surefoot.job"), p.check()), (vec![0x3; n], Ok(())));
        node.server.reset().unwrap();
    }
    if n < 2 {
        return;
    }
    let of_last: Vec<u32> = (0..=last).filter(|c| whole.l3_domain_of_cpu[*c as usize] == n as u32 - 1).collect();
    {
        let mut node = Node::open("hosts/goes", |c| c);
        node.apply(0x3, 100);
        let _off = Off::these(of_last.iter().copied());
        // The job may run on fewer CPUs by now; its ways are those of the domains that are left.
        node.apply(0xc, 100);
        assert_eq!(masks("surefoot.job"), vec![0xc; n - 1]);
        (0..4).for_each(|_| drop(node.server.observe()));
        assert!(node.server.cpus_changed().is_some());
        node.server.reset().unwrap();
    }
    let _off = Off::these(of_last);
    let mut node = Node::open("hosts/socket-off", |c| c);
    assert_eq!(node.server.platform().l3_domains() as usize, n - 1);
    node.apply(0x3, 100);
    assert_eq!((masks("surefoot.job"), node.says().ways), (vec![0x3; n - 1], vec![0x3; n - 1]));
    node.server.reset().unwrap();
}

/// Tasks are those of the test.
struct Still;

impl Host for Still {
    fn sync(&mut self, _machine: &mut Machine, _tasks: bool) {}
}

/// The stand-in of a platform with one L3 cache (as `resctrlfs --platform server-1`), on whatever host: plans are in force on it, at every
/// tick, and what differs is no error.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn a_stand_in_with_other_domains_is_managed() {
    let _ = Command::new("modprobe").arg("fuse").status();
    let dir = tempfile::tempdir().unwrap();
    let (mount, file) = (dir.path().join("resctrl"), dir.path().join("platform.toml"));
    fs::create_dir(&mount).unwrap();
    for domains in [1, 3] {
        let text =
            format!("[cpu]\nphysical_cores = 18\nsmt = 2\n[llc]\nways = 20\nmb_per_way = 2.25\ndomains = {domains}\n[mem]\nmba = true\n");
        fs::write(&file, text).unwrap();
        let mut machine = Machine::new(from_platform(&file, Kernel::V6_12, Vendor::Intel).unwrap());
        machine.mount("", false).unwrap();
        let session = match fuse::show(Arc::new(Mutex::new(machine)), Box::new(Still), &mount, false) {
            Ok(s) => s,
            Err(e) => return eprintln!("NOT RUN: cannot mount FUSE here: {e}"),
        };
        let mut node = Node::open("hosts/stand-in", |c| LocalConfig { resctrl: Some(mount.clone()), ..c });
        let n = node.server.platform().l3_domains() as usize;
        node.apply(0x3, 100);
        let shown: Vec<String> = (0..domains).map(|d| format!("{d}=00003")).collect();
        let schemata = read(mount.join("surefoot.job/schemata"));
        assert!(schemata.contains(&format!("L3:{}", shown.join(";"))), "{schemata}");
        for mask in [0x3, 0x7, 0xf, 0x3] {
            node.apply(mask, 100);
            assert_eq!(node.says().ways, vec![mask; n]);
        }
        node.server.reset().unwrap();
        drop(node);
        assert!(Command::new("umount").arg("-l").arg(&mount).status().unwrap().success());
        session.join();
    }
}
