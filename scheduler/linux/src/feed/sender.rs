//! Which senders may speak for a service.
//!
//! The kernel attaches to each datagram the process that sent it, and its user and group. These senders are believed of a service:
//!
//! 1. those that may write to the service's own socket;
//! 2. processes of its cgroup, and of cgroups below;
//! 3. those that its `feed` in node.toml names: users, groups, other cgroups, or all;
//! 4. root and the daemon's own user, as load generators run. Not from a nested pid namespace, whose root is a container's, and not from
//!    the cgroup of another service.
//!
//! A named user or group does not count in another service's cgroup, nor of a process that has ended unseen: root of a container can take any
//! number. The rules are pure; [`Facts::read`] is the one look at the kernel.

use crate::cgroup::{paths_of, Mounts, Version};
use crate::procfs::{start_time, Process};
use crate::root::Root;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Of /proc/PID/stat: a clock tick as user space counts it, microseconds.
const TICK_US: u64 = 10_000;
/// The last datagrams of a process count if it was seen alive at most so long before.
const LAST_WORDS_US: u64 = 1_000_000;

/// What the kernel attached to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credentials {
    /// 0 where the sender is outside of this process's pid namespace.
    pub pid: u32,
    /// Real ids: a set-user-id program is its caller's.
    pub uid: u32,
    pub gid: u32,
}

/// A cgroup: its folders in the hierarchies of cpu and cpuset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place(pub [PathBuf; 2]);

impl Place {
    fn holds(&self, other: &Place) -> bool {
        // As `Path::starts_with`, for each datagram: these paths have neither "." nor "//".
        let is_above = |(ours, theirs): (&PathBuf, &PathBuf)| {
            let rest = theirs.as_os_str().as_bytes().strip_prefix(ours.as_os_str().as_bytes());
            rest.is_some_and(|r| r.is_empty() || r[0] == b'/' || ours.as_os_str().as_bytes().ends_with(b"/"))
        };
        self.0.iter().zip(&other.0).all(is_above)
    }
}

/// The senders that node.toml names for a service, besides those that may always speak for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trusted {
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
    /// As /proc/PID/cgroup has them, with those below.
    pub cgroups: Vec<PathBuf>,
    /// Every process that may write to the socket.
    pub anybody: bool,
}

impl Trusted {
    fn names_owner(&self, c: &Credentials, process: Option<&Facts>) -> bool {
        let of_group = |g: &u32| *g == c.gid || process.is_some_and(|p| p.groups.contains(g));
        self.users.contains(&c.uid) || self.groups.iter().any(of_group)
    }

    fn names_cgroup(&self, process: &Facts) -> bool {
        self.cgroups.iter().any(|at| process.paths.iter().any(|path| path.starts_with(at)))
    }
}

/// What /proc says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Since boot, by the clock of /proc.
    pub started_us: u64,
    /// In a pid namespace below this process's.
    pub nested: bool,
    /// Supplementary ones too.
    pub groups: Vec<u32>,
    pub place: Option<Place>,
    /// Its cgroup of v2, or those of cpu and cpuset of v1.
    pub paths: Vec<PathBuf>,
    /// The text that both come from.
    cgroup: String,
}

impl Facts {
    /// None where the process has gone or is hidden.
    pub fn read(root: &Root, mounts: &Mounts, version: Option<Version>, pid: u32) -> Option<Self> {
        let started_us = start_time(root, pid)?.checked_mul(TICK_US)?;
        let status = root.read(format!("/proc/{pid}/status"))?;
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::split_ascii_whitespace);
        let text = root.read(format!("/proc/{pid}/cgroup"))?;
        let facts = Facts {
            started_us,
            // A number for each namespace that it is in, ours first. A kernel that does not say so might hide a container.
            nested: field("NSpid").is_none_or(|numbers| numbers.count() > 1),
            groups: field("Groups").into_iter().flatten().filter_map(|g| g.parse().ok()).collect(),
            place: None,
            paths: vec![],
            cgroup: String::new(),
        };
        Some(facts.in_cgroup(mounts, version, text))
    }

    /// The same in the cgroup of this /proc/PID/cgroup.
    fn in_cgroup(self, mounts: &Mounts, version: Option<Version>, text: String) -> Self {
        let paths = paths_of(&text);
        let held: &[&str] = match version {
            Some(Version::V2) => &[""],
            Some(Version::V1) => &["cpu", "cpuset"],
            None => &[],
        };
        Facts {
            place: version.and_then(|v| mounts.place(v, &text)).map(Place),
            paths: held.iter().filter_map(|c| paths.get(c)).map(PathBuf::from).collect(),
            cgroup: text,
            ..self
        }
    }

    /// Whether the process was there at some instant, for certain.
    pub fn was_there(&self, at_us: u64) -> bool {
        self.started_us + TICK_US <= at_us
    }
}

/// The processes that can be looked at.
#[derive(Clone, Debug)]
pub(super) struct Host {
    root: Root,
    mounts: Mounts,
    version: Option<Version>,
    /// False where /proc is another pid namespace's: its numbers are not those of datagrams.
    own_proc: bool,
}

impl Host {
    pub fn new(root: Root, mounts: Mounts) -> Self {
        let own = root.path("/proc/self").read_link().ok().and_then(|p| p.to_str()?.parse::<u32>().ok());
        let own_proc = !root.is_host() || own == Some(std::process::id());
        if !own_proc {
            tracing::warn!("/proc is not this process's own: senders of latency are known by user and group alone (docs/latency-feed.md)");
        }
        Host { version: mounts.version(), mounts, root, own_proc }
    }

    /// False where the numbers of processes say nothing.
    pub fn sees_processes(&self) -> bool {
        self.own_proc
    }

    /// A process, and a hold on it by which its end is seen.
    pub fn look(&self, pid: u32) -> Option<(Facts, Process)> {
        if pid == 0 {
            return None;
        }
        let process = Process::find(&self.root, pid)?;
        let facts = Facts::read(&self.root, &self.mounts, self.version, pid)?;
        // Asked after it was read: until then its number was its own.
        (!self.has_ended(&process)).then_some((facts, process))
    }

    /// Make the facts of a process those of now; false, and they stay, where it has ended. Its cgroup may be another: its start and its
    /// namespaces stay, and a change of its user makes it another sender.
    pub fn look_again(&self, process: &Process, facts: &mut Facts) -> bool {
        let Some(text) = self.root.read(format!("/proc/{}/cgroup", process.pid)) else { return false };
        // Asked after it was read: until then its number was its own.
        let is_there = !self.has_ended(process);
        if is_there && text != facts.cgroup {
            *facts = facts.clone().in_cgroup(&self.mounts, self.version, text);
        }
        is_there
    }

    pub fn has_ended(&self, process: &Process) -> bool {
        process.has_ended(&self.root)
    }

    /// Whether a datagram that waited is one of the last of a process that has ended: it was seen alive shortly before, and no other process
    /// has its number by now.
    pub fn may_have_sent(&self, ended: &Process, alive_us: u64, now_us: u64) -> bool {
        let is_replaced = || start_time(&self.root, ended.pid).is_some_and(|t| t != ended.start_ticks);
        now_us.saturating_sub(alive_us) <= LAST_WORDS_US && !is_replaced()
    }
}

/// A service that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub place: Place,
    /// An LC service, whose latency is heard.
    pub lc: bool,
}

/// Which senders may speak for which service.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// The daemon's own user.
    pub uid: u32,
    pub homes: BTreeMap<String, Home>,
    pub trusted: BTreeMap<String, Trusted>,
    /// Another number after each change.
    pub generation: u64,
}

impl Rules {
    /// The service in whose cgroup a process runs; of several the innermost.
    fn home(&self, p: &Facts) -> Option<(&str, &Home)> {
        let place = p.place.as_ref()?;
        let inside = self.homes.iter().filter(|(_, h)| h.place.holds(place));
        inside.max_by_key(|(_, h)| h.place.0.iter().map(|d| d.components().count()).sum::<usize>()).map(|(id, h)| (id.as_str(), h))
    }

    fn is_operator(&self, c: &Credentials, p: &Facts) -> bool {
        (c.uid == 0 || c.uid == self.uid) && !p.nested && self.home(p).is_none()
    }

    /// Whether node.toml names a sender for a service.
    fn is_named(&self, service: &str, c: &Credentials, process: Option<&Facts>) -> bool {
        let Some(t) = self.trusted.get(service) else { return false };
        let at_large = match process {
            Some(p) => self.home(p).is_none_or(|(id, _)| id == service),
            // From outside of this pid namespace there is nothing else to go by.
            None => c.pid == 0,
        };
        t.anybody || process.is_some_and(|p| t.names_cgroup(p)) || at_large && t.names_owner(c, process)
    }

    pub fn may_speak(&self, service: &str, c: &Credentials, process: Option<&Facts>) -> bool {
        let at_home = |p: &Facts| self.homes.get(service).is_some_and(|h| p.place.as_ref().is_some_and(|at| h.place.holds(at)));
        process.is_some_and(|p| at_home(p) || self.is_operator(c, p)) || self.is_named(service, c, process)
    }

    /// Whose share a sender draws on.
    pub fn pool(&self, c: &Credentials, process: Option<&Facts>) -> Pool {
        match process.and_then(|p| self.home(p)) {
            Some((id, Home { lc: true, .. })) => return Pool::Service(id.into()),
            _ if self.trusted.keys().any(|s| self.is_named(s, c, process)) => {}
            _ if process.is_some_and(|p| self.is_operator(c, p)) => {}
            _ => return Pool::Strangers,
        }
        Pool::User(c.uid)
    }
}

/// Senders that share a budget.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pool {
    /// Processes of a service's cgroup.
    Service(String),
    /// Others that may speak for some service, by user.
    User(u32),
    /// Processes that write to a service's own socket.
    Socket(String),
    /// Processes that may speak for no service.
    Strangers,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::root::tests::tree;

    const V2: &str = "30 1 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "30 1 0:2 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n31 1 0:3 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n";

    /// Files of a process: number, when it started in ticks, its cgroup file, and the rest of its status.
    pub(in crate::feed) fn process(pid: u32, ticks: u64, cgroup: &str, status: &str) -> Vec<(String, String)> {
        let stat = format!("{pid} (a (b) c) S 1 {}{ticks} 0", "0 ".repeat(17));
        vec![
            (format!("/proc/{pid}/stat"), stat),
            (format!("/proc/{pid}/status"), format!("Name:\tx\n{status}")),
            (format!("/proc/{pid}/cgroup"), format!("{cgroup}\n")),
        ]
    }

    /// A host with cgroup v2 and these processes.
    pub(in crate::feed) fn host(processes: &[Vec<(String, String)>]) -> (tempfile::TempDir, Root, Host) {
        host_with(V2, processes)
    }

    fn host_with(mounts: &str, processes: &[Vec<(String, String)>]) -> (tempfile::TempDir, Root, Host) {
        let mut files = vec![("/proc/self/mountinfo".to_string(), mounts.to_string())];
        files.push(("/sys/fs/cgroup/cgroup.controllers".into(), if mounts == V2 { "cpu cpuset" } else { "" }.into()));
        files.extend(processes.iter().flatten().cloned());
        let (dir, root) = tree(&files);
        let mounts = Mounts::read(&root);
        (dir, root.clone(), Host::new(root, mounts))
    }

    pub(in crate::feed) fn home(root: &Root, cgroup: &str, lc: bool) -> Home {
        let at = root.path("/sys/fs/cgroup").join(cgroup.trim_start_matches('/'));
        Home { place: Place([at.clone(), at]), lc }
    }

    fn by(uid: u32) -> Credentials {
        Credentials { pid: 10, uid, gid: uid }
    }

    const OURS: &str = "NSpid:\t10\nGroups:\t5 6\n";
    const OPERATOR: &str = "0::/user.slice";

    /// A service is spoken for by its own cgroup and those below, by root and the daemon's user. Processes of
    /// another service may not, also as root, and root of a container may not.
    #[test]
    fn a_service_is_spoken_for_by_its_own() {
        let look = |cgroup: &str, status: &str| {
            let (dir, root, host) = host(&[process(10, 7, cgroup, status)]);
            let facts = host.look(10).unwrap().0;
            let homes = [("web", "/web.slice", true), ("db", "/db", true), ("batch", "/batch", false), ("nested", "/db/nested", true)];
            let homes = homes.map(|(id, at, lc)| (id.to_string(), home(&root, at, lc))).into();
            (dir, Rules { uid: 900, homes, ..Rules::default() }, facts)
        };
        let may = |cgroup: &str, status: &str, uid: u32| {
            let (_dir, rules, facts) = look(cgroup, status);
            ["web", "db", "batch", "nested"].map(|id| rules.may_speak(id, &by(uid), Some(&facts)))
        };
        const NESTED: &str = "NSpid:\t10\t1\n";
        for (cgroup, status, uid, want) in [
            ("0::/web.slice", OURS, 1000, [true, false, false, false]),
            ("0::/web.slice/worker", NESTED, 0, [true, false, false, false]),
            ("0::/web.slicer", OURS, 1000, [false; 4]),
            ("0::/", OURS, 1000, [false; 4]),
            ("0::/../web.slice", OURS, 1000, [false; 4]),
            // Of another service, as root or as the daemon's user: its own alone.
            ("0::/db", OURS, 0, [false, true, false, false]),
            ("0::/db/nested", OURS, 900, [false, true, false, true]),
            // A BE job has no word of its own, and none for others. That it is no LC service is for the windows to say.
            ("0::/batch", OURS, 0, [false, false, true, false]),
            (OPERATOR, OURS, 0, [true; 4]),
            (OPERATOR, OURS, 900, [true; 4]),
            (OPERATOR, NESTED, 0, [false; 4]),
            (OPERATOR, NESTED, 900, [false; 4]),
            // A kernel that does not say in which namespaces a process is.
            (OPERATOR, "", 0, [false; 4]),
            (OPERATOR, OURS, 65534, [false; 4]),
        ] {
            assert_eq!(may(cgroup, status, uid), want, "{cgroup} {status:?} {uid}");
        }
        let (_dir, rules, _) = look(OPERATOR, OURS);
        // A process that cannot be looked at has no right, as root neither.
        assert!(!rules.may_speak("web", &by(0), None));
        // Shares: processes of a service draw on the service's, others on their user's, strangers on one of their own.
        let pool = |cgroup: &str, status: &str, uid: u32| {
            let (_dir, rules, facts) = look(cgroup, status);
            rules.pool(&by(uid), Some(&facts))
        };
        assert_eq!(pool("0::/web.slice/x", OURS, 0), Pool::Service("web".into()));
        assert_eq!(pool("0::/db/nested", OURS, 7), Pool::Service("nested".into()));
        assert_eq!(pool(OPERATOR, OURS, 900), Pool::User(900));
        assert_eq!(pool(OPERATOR, NESTED, 0), Pool::Strangers);
        assert_eq!(pool("0::/batch", OURS, 0), Pool::Strangers);
    }

    /// Senders that node.toml names may speak: by user, by group (supplementary groups too), by cgroup and below, or all.
    #[test]
    fn whom_the_configuration_names_may_speak() {
        let (_dir, _root, host) = host(&[process(10, 7, "0::/load.slice/gen", OURS)]);
        let facts = host.look(10).unwrap().0;
        let far = Credentials { pid: 0, ..by(1000) };
        // Without facts: the sender is in another pid namespace.
        let may = |whom: Trusted, facts: Option<&Facts>| {
            let rules = Rules { uid: 900, trusted: [("web".into(), whom)].into(), ..Rules::default() };
            let c = if facts.is_some() { by(1000) } else { far };
            assert!(!rules.may_speak("db", &c, facts));
            let may = rules.may_speak("web", &c, facts);
            assert_eq!(rules.pool(&c, facts) == Pool::User(1000), may);
            may
        };
        let seen = Some(&facts);
        let users = |ids: &[u32]| Trusted { users: ids.into(), ..Trusted::default() };
        let groups = |ids: &[u32]| Trusted { groups: ids.into(), ..Trusted::default() };
        let cgroups = |at: &str| Trusted { cgroups: vec![at.into()], ..Trusted::default() };
        assert!(may(users(&[7, 1000]), seen) && may(users(&[1000]), None) && !may(users(&[7]), seen));
        assert!(may(groups(&[1000]), None) && may(groups(&[6]), seen) && !may(groups(&[6]), None) && !may(groups(&[7]), seen));
        assert!(may(cgroups("/load.slice"), seen) && may(cgroups("/load.slice/gen"), seen));
        assert!(!may(cgroups("/load"), seen) && !may(cgroups("/load.slice/gen/x"), seen) && !may(cgroups("/load.slice"), None));
        assert!(may(Trusted { anybody: true, ..Trusted::default() }, None) && !may(Trusted::default(), seen));
    }

    /// Root of a container may take any user's number: a named user or group does not count in another service's cgroup, nor of a process that
    /// has ended unseen.
    #[test]
    fn a_named_user_is_not_whoever_has_the_number() {
        let of = |cgroup: &str| {
            let (_dir, root, host) = host(&[process(10, 7, cgroup, OURS)]);
            let homes = ["web", "db"].map(|id| (id.to_string(), home(&root, &format!("/{id}"), true))).into();
            let whom = Trusted { users: vec![1000], groups: vec![6], ..Trusted::default() };
            let rules = Rules { uid: 900, homes, trusted: [("web".into(), whom)].into(), ..Rules::default() };
            let facts = host.look(10).unwrap().0;
            [
                rules.may_speak("web", &by(1000), Some(&facts)),
                rules.may_speak("web", &by(7), Some(&facts)),
                rules.may_speak("web", &by(1000), None),
            ]
        };
        assert_eq!(of("0::/elsewhere"), [true, true, false]);
        assert_eq!(of("0::/web/x"), [true, true, false]);
        assert_eq!(of("0::/db/x"), [false, false, false]);
    }

    /// On cgroup v1 a process is a service's own where cpu and cpuset both say so; another cgroup may be named as either has it.
    #[test]
    fn both_hierarchies_of_v1_count() {
        let at = |cpu: &str, cpuset: &str| {
            let text = format!("4:cpuset:{cpuset}\n3:name=systemd:/web\n2:cpu,cpuacct:{cpu}\n0::/web");
            let (dir, root, host) = host_with(V1, &[process(10, 7, &text, OURS)]);
            let facts = host.look(10).unwrap().0;
            let place = Place(["cpu", "cpuset"].map(|c| root.path("/cg").join(c).join("web")));
            let homes = [("web".to_string(), Home { place, lc: true })].into();
            let trusted = [("db".to_string(), Trusted { cgroups: vec!["/load".into()], ..Trusted::default() })].into();
            let rules = Rules { uid: 900, homes, trusted, generation: 0 };
            drop(dir);
            ["web", "db"].map(|id| rules.may_speak(id, &by(1000), Some(&facts)))
        };
        assert_eq!(at("/web", "/web/x"), [true, false]);
        assert_eq!([at("/web", "/"), at("/", "/web"), at("/", "/")], [[false, false]; 3]);
        assert_eq!([at("/load/x", "/"), at("/", "/load")], [[false, true]; 2]);
    }

    /// A mount that shows a part of the hierarchy shows nothing of a neighbour whose name begins alike.
    #[test]
    fn a_part_of_the_hierarchy_is_not_its_neighbour() {
        let mounts = "30 1 0:2 /part /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let place = |path: &str| {
            let (_dir, root, _) = host_with(mounts, &[]);
            Mounts::read(&root)
                .place(Version::V2, &format!("0::{path}"))
                .map(|p| p[0].strip_prefix(root.path("/sys/fs/cgroup")).unwrap().to_path_buf())
        };
        assert_eq!(place("/part/web"), Some("web".into()));
        assert_eq!(place("/part"), Some("".into()));
        assert_eq!((place("/partweb"), place("/part2/web"), place("/")), (None, None, None));
    }
}
