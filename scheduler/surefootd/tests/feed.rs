//! Who is heard at the latency socket of a daemon: real processes of other users and cgroups, honest ones and such that lie or flood.
//!
//! Everything is counted, nothing timed: what a sender got rid of, what the daemon took and what it refused.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use base64::Engine as _;
use common::node::{may_run, Cgroup, Running};
use common::{path, surefootd};
use hdrhistogram::serialization::{Serializer, V2Serializer};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;

/// A datagram of some answers within 5 ms.
fn datagram(service: &str, count: u64, window_ms: u64) -> String {
    let mut h: Histogram<u64> = Histogram::new_with_bounds(1, 1_000_000_000_000, 3).unwrap();
    h.record_n(5_000_000, count).unwrap();
    let mut raw = vec![];
    V2Serializer::new().serialize(&h, &mut raw).unwrap();
    let text = base64::engine::general_purpose::STANDARD.encode(raw);
    format!(r#"{{"service":"{service}","window_ms":{window_ms},"count":{count},"unit":"ns","histogram":"{text}"}}"#)
}

/// A process that sends: this program once more, with what it is to do in its environment.
struct Sender {
    child: Child,
    from: BufReader<std::process::ChildStdout>,
}

/// What a sender does.
struct Task<'a> {
    socket: &'a Path,
    /// Cgroups to go to first.
    dirs: &'a [PathBuf],
    uid: u32,
    what: String,
    /// Datagrams; None: until it is ended.
    times: Option<u64>,
    /// A second.
    rate: u64,
    nested: bool,
}

impl Sender {
    fn start(t: &Task<'_>) -> Self {
        let me = std::env::current_exe().unwrap();
        let mut c = if t.nested { Command::new("unshare") } else { Command::new(&me) };
        if t.nested {
            c.args(["--pid", "--fork"]).arg(&me);
        }
        let dirs: Vec<&str> = t.dirs.iter().map(|d| path(d)).collect();
        c.args(["--exact", "sender_process", "--ignored", "--nocapture"])
            .env("SENDER_SOCKET", t.socket)
            .env("SENDER_DIRS", dirs.join(":"))
            .env("SENDER_UID", t.uid.to_string())
            .env("SENDER_WHAT", &t.what)
            .env("SENDER_TIMES", t.times.map(|n| n.to_string()).unwrap_or_default())
            .env("SENDER_RATE", t.rate.to_string());
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Sender { child, from }
    }

    /// Until it has tried a thousand times.
    fn wait_until_on(&mut self) {
        let mut line = String::new();
        while !line.contains("ON") {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "a sender ended before its flood");
        }
    }

    /// End it, or wait for its end; how many datagrams it got rid of, and how many not.
    fn end(mut self, at_once: bool) -> (u64, u64) {
        let word = self.child.stdin.take();
        if at_once {
            drop(word);
        }
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "a sender ended without a word");
            if let Some(said) = line.trim().rsplit("SENT ").next().filter(|_| line.contains("SENT ")) {
                let (sent, lost) = said.split_once(" LOST ").unwrap();
                let _ = self.child.wait();
                return (sent.parse().unwrap(), lost.parse().unwrap());
            }
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: what [`Sender`] starts.
#[test]
#[ignore = "a process of the other tests"]
fn sender_process() {
    let var = |name: &str| std::env::var(format!("SENDER_{name}")).unwrap_or_default();
    let Ok(socket) = std::env::var("SENDER_SOCKET") else { return };
    for d in var("DIRS").split(':').filter(|d| !d.is_empty()) {
        // 0 is the writer, whatever its number is in another namespace.
        fs::write(Path::new(d).join("cgroup.procs"), "0").unwrap();
    }
    let uid: u32 = var("UID").parse().unwrap();
    if uid > 0 {
        nix::unistd::setgroups(&[]).unwrap();
        nix::unistd::setgid(uid.into()).unwrap();
        nix::unistd::setuid(uid.into()).unwrap();
    }
    let what = match var("WHAT").split_once(' ') {
        Some(("longest", n)) => "x".repeat(n.parse().unwrap()),
        _ => var("WHAT"),
    };
    let (times, rate) = (var("TIMES").parse().unwrap_or(u64::MAX), var("RATE").parse::<u64>().unwrap());
    // Whoever started it says when to end by closing its input.
    let ended = std::thread::spawn(|| drop(std::io::stdin().read_to_end(&mut vec![])));
    let to = UnixDatagram::unbound().unwrap();
    to.set_nonblocking(true).unwrap();
    let (begun, mut sent, mut lost) = (Instant::now(), 0u64, 0u64);
    let mut told = false;
    while sent + lost < times && !(times == u64::MAX && ended.is_finished()) {
        let due = (begun.elapsed().as_secs_f64() * rate as f64) as u64;
        while sent + lost < due.min(times) {
            match to.send_to(what.as_bytes(), &socket) {
                Ok(_) => sent += 1,
                Err(_) => lost += 1,
            }
        }
        if !told && sent + lost > 1000 {
            println!("ON");
            told = true;
        }
        std::thread::park_timeout(Duration::from_micros(500));
    }
    println!("SENT {sent} LOST {lost}");
}

/// One daemon at a time has this machine's CPUs.
static MACHINE: Mutex<()> = Mutex::new(());

/// A daemon with two LC services, each a cgroup of its own.
struct Node {
    daemon: Running,
    cgroups: [Cgroup; 2],
    dir: tempfile::TempDir,
    port: u16,
    _machine: MutexGuard<'static, ()>,
}

impl Node {
    fn start(test: &str, feed_of_web: &str) -> Option<Self> {
        let hierarchies = may_run(test)?;
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let cgroups = ["web", "db"].map(|id| Cgroup::new(&hierarchies, &format!("{}-{id}", &test[..12])));
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut text = format!("metrics_port = {port}\nstate_dir = \"state\"\nfeed_mode = \"0666\"\n");
        for (id, c) in ["web", "db"].iter().zip(&cgroups) {
            let feed = if *id == "web" { feed_of_web } else { "" };
            text += &format!("[[service]]\nservice = \"{id}\"\nkind = \"lc\"\nqos_target_ms = 10.0\ncgroup = \"/{}\"\n{feed}\n", c.name);
        }
        fs::write(dir.path().join("node.toml"), text).unwrap();
        let mut c = surefootd();
        c.args(["run", "--server", "local", "--policy", "unmanaged", "--config", path(&dir.path().join("node.toml"))])
            .env("SUREFOOT_LOG", "info");
        let daemon = Running::start(c, " on local:");
        Some(Node { daemon, cgroups, dir, port, _machine: machine })
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join("state").join(name)
    }

    fn metrics(&self) -> String {
        let mut s = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        s.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        s.read_to_string(&mut page).unwrap();
        page
    }

    /// What is known of an LC service; None where nothing is.
    fn known(&self, metric: &str, service: &str) -> Option<f64> {
        let name = format!("surefoot_{metric}{{service=\"{service}\",kind=\"lc\"}} ");
        self.metrics().lines().find_map(|l| l.strip_prefix(&name)?.parse().ok())
    }

    /// Counters of the feed: what was taken by service, what was refused by reason.
    fn counts(&self) -> BTreeMap<String, u64> {
        let page = self.metrics();
        let one = |line: &str| {
            let (name, n) = line.strip_prefix("surefoot_feed_")?.rsplit_once(' ')?;
            Some((name.split('"').nth(1)?.to_string(), n.parse().ok()?))
        };
        page.lines().filter_map(one).collect()
    }

    /// Counters once they are as they should be, or what they are instead.
    fn counted(&self, is_so: impl Fn(&BTreeMap<String, u64>) -> bool) -> BTreeMap<String, u64> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let now = self.counts();
            if is_so(&now) || Instant::now() > deadline {
                return now;
            }
            std::thread::yield_now();
        }
    }
}

fn of(counts: &BTreeMap<String, u64>, what: &str) -> u64 {
    counts.get(what).copied().unwrap_or(0)
}

/// A case of who may speak: who it is, where, in which cgroups, as which user, in a pid namespace of its own or not, for which service.
type Case<'a> = (&'a str, &'a Path, &'a [PathBuf], u32, bool, &'a str);

/// Send twenty datagrams of each, well within a share, and for longer than a process is young: all are taken, or all are refused. Adds
/// up what was taken of web and of db and what was refused.
fn send_and_count(node: &Node, cases: &[Case<'_>], may: bool, so_far: &mut [u64; 3]) {
    for (who, socket, dirs, uid, nested, service) in cases {
        let what = datagram(service, 20, 100);
        let sender = Sender::start(&Task { socket, dirs, uid: *uid, what, times: Some(20), rate: 50, nested: *nested });
        assert_eq!(sender.end(false), (20, 0), "{who}");
        so_far[if !may { 2 } else { usize::from(*service == "db") }] += 20;
        let all = |c: &BTreeMap<String, u64>| ["web", "db", "sender"].map(|what| of(c, what));
        let now = node.counted(|c| all(c).iter().sum::<u64>() >= so_far.iter().sum());
        assert_eq!(all(&now), *so_far, "{who}: {now:?}");
    }
}

/// A tenant who may write to the socket speaks for his own service and for no other; nor does root of a container. Operators do.
#[test]
fn a_tenant_speaks_for_nobody_else() {
    let Some(mut node) = Node::start("a_tenant_speaks_for_nobody_else", "") else { return };
    let socket = node.socket("feed.sock");
    let db = node.cgroups[1].dirs.clone();
    let (mut so_far, sock) = ([0; 3], &*socket);
    let lie = Sender::start(&Task {
        socket: sock,
        dirs: &db,
        uid: NOBODY,
        what: datagram("web", 20, 100),
        times: Some(20),
        rate: 50,
        nested: false,
    });
    assert_eq!(lie.end(false), (20, 0));
    // Nothing of it is believed at any look.
    node.counted(|c| of(c, "sender") == 20);
    assert_eq!(node.known("latency_heard", "web"), Some(0.0));
    so_far[2] = 20;
    let never: [Case<'_>; 5] = [
        ("root of a tenant's container for another's", sock, &db, 0, true, "web"),
        ("a tenant's root for another's", sock, &db, 0, false, "web"),
        ("a user who is nobody's tenant", sock, &[], NOBODY, false, "web"),
        ("the same for the other service", sock, &[], NOBODY, false, "db"),
        ("root of some container", sock, &[], 0, true, "web"),
    ];
    send_and_count(&node, &never, false, &mut so_far);
    let always: [Case<'_>; 3] = [
        ("a tenant for his own", sock, &db, NOBODY, false, "db"),
        ("root of a tenant's container for his own", sock, &db, 0, true, "db"),
        ("an operator", sock, &[], 0, false, "web"),
    ];
    send_and_count(&node, &always, true, &mut so_far);
    let said = node.daemon.end(nix::sys::signal::Signal::SIGTERM);
    let told: Vec<&str> = said.lines().filter(|l| l.contains("latency datagram") && l.contains("WARN")).collect();
    // Once for each service, with who it was and what to do.
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].contains("\"web\" from process") && told[0].contains(&format!("of user {NOBODY} in cgroup")), "{told:#?}");
    assert!(told[0].contains("Name the sender in `feed` of \"web\""), "{told:#?}");
}

/// Whoever may write to a service's own socket speaks for that service and for no other; whom its `feed` names does so over the common one. The
/// sockets go with the daemon.
#[test]
fn a_service_may_have_a_socket_and_friends() {
    let feed = format!("feed = {{ socket = true, socket_mode = \"0666\", users = [\"{NOBODY}\"] }}");
    let Some(mut node) = Node::start("a_service_may_have_a_socket_and_friends", &feed) else { return };
    let (all, own) = (node.socket("feed.sock"), node.socket("feed/web.sock"));
    let db = node.cgroups[1].dirs.clone();
    let mut so_far = [0; 3];
    let always: [Case<'_>; 2] = [
        ("anybody over the service's own socket", &own, &[], NOBODY - 1, true, "web"),
        ("a user whom it names", &all, &[], NOBODY, true, "web"),
    ];
    send_and_count(&node, &always, true, &mut so_far);
    let never: [Case<'_>; 4] = [
        ("anybody over its socket for another service", &own, &[], NOBODY - 1, true, "db"),
        ("a user whom it does not name", &all, &[], NOBODY - 1, false, "web"),
        ("a user whom another service names", &all, &[], NOBODY, false, "db"),
        ("a tenant who takes the number of a user whom it names", &all, &db, NOBODY, false, "web"),
    ];
    send_and_count(&node, &never, false, &mut so_far);
    node.daemon.end(nix::sys::signal::Signal::SIGTERM);
    assert!(!all.exists() && !own.parent().unwrap().exists());
}

/// Counts that no window can hold are refused and counted, whoever sends them.
#[test]
fn what_cannot_be_is_refused_by_the_daemon() {
    let Some(node) = Node::start("what_cannot_be_is_refused_by_the_daemon", "") else { return };
    let to = UnixDatagram::unbound().unwrap();
    let send = |text: &str| assert!(to.send_to(text.as_bytes(), node.socket("feed.sock")).is_ok());
    send(&datagram("web", 1 << 61, 100));
    send(&datagram("web", 10_000_001, 100));
    send(&datagram("web", 200, 100).replace("\"unit\"", "\"oldest_ms\":-1,\"unit\""));
    (0..5).for_each(|_| send(&datagram("web", 200, 60_000)));
    send(&datagram("web", 200, 100));
    let deadline = Instant::now() + Duration::from_secs(20);
    let rps = loop {
        match node.known("achieved_requests_per_second", "web") {
            None if Instant::now() < deadline => std::thread::yield_now(),
            rps => break rps,
        }
    };
    assert!(rps.is_some_and(|r| r < 1e4), "{rps:?} requests a second are believed");
    let now = node.counted(|c| of(c, "web") == 2);
    // Of the windows of a minute the first is believed.
    assert_eq!((of(&now, "impossible"), of(&now, "window"), of(&now, "web")), (3, 4, 2), "{now:?}");
}

/// Honest senders lose nothing beside floods: neither in the kernel's queue, which they would see, nor in the daemon. The floods are of valid
/// datagrams of a service's own process, of malformed and of the largest ones, and of many processes of one user.
#[test]
fn honest_senders_lose_nothing_beside_a_flood() {
    let Some(node) = Node::start("honest_senders_lose_nothing_beside_a_flood", "") else { return };
    let socket = node.socket("feed.sock");
    let [web, db] = &node.cgroups;
    // Each process: its cgroups, and what it sends.
    type Flood<'a> = (&'a str, Vec<(&'a [PathBuf], String)>, u64);
    let floods: [Flood<'_>; 4] = [
        ("of a service's own process", vec![(&db.dirs, datagram("db", 20, 1))], 50_000),
        ("of malformed datagrams", vec![(&[], "{\"service\":\"web\",".into())], 50_000),
        ("of the largest datagrams", vec![(&[], "longest 200000".into())], 50_000),
        ("of sixteen processes of one user", vec![(&[], datagram("web", 20, 1)); 16], 5_000),
    ];
    let (mut sent, mut flooded) = (0, 0);
    for (flood, processes, rate) in &floods {
        let flood_of = |(dirs, what): &(&[PathBuf], String)| {
            let what = what.clone();
            Sender::start(&Task { socket: &socket, dirs, uid: NOBODY, what, times: None, rate: *rate, nested: false })
        };
        let mut flooders: Vec<Sender> = processes.iter().map(flood_of).collect();
        flooders.iter_mut().for_each(Sender::wait_until_on);
        // A process of the service's own cgroup, of a user who floods elsewhere; and a load generator of root's.
        let honest = [(&web.dirs[..], NOBODY), (&[][..], 0)];
        let honest = honest.map(|(dirs, uid)| {
            let what = datagram("web", 20, 1);
            Sender::start(&Task { socket: &socket, dirs, uid, what, times: Some(100), rate: 50, nested: false })
        });
        for h in honest {
            assert_eq!(h.end(false), (100, 0), "a flood {flood}: what an honest sender got rid of, and what not");
            sent += 100;
        }
        let now = node.counted(|c| of(c, "web") >= sent);
        assert_eq!(of(&now, "web"), sent, "a flood {flood}: {now:?}");
        flooded += flooders.into_iter().map(|f| f.end(true).0).sum::<u64>();
    }
    assert!(flooded > 10 * sent, "{flooded} beside {sent}: that was no flood");
    // What was beyond a share was counted, not read.
    let now = node.counts();
    assert!(of(&now, "rate") + of(&now, "sender") + of(&now, "format") > 5 * sent && of(&now, "rate") > 0, "{now:?}");
}
