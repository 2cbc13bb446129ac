use super::*;
use crate::node::follower::tests::seen;
use crate::node::upper::conditions::What;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use surefoot_server::{Plan, Report};

fn open(path: &Path) -> Result<Socket> {
    let config = NodeConfig { file: "node.toml".into(), ..NodeConfig::none() };
    Socket::open(path, &config, Hello { node: "n".into(), policy: "p".into(), ..Hello::default() })
}

/// A socket in a folder of the test's own, and the conditions that it tells.
struct Bench {
    dir: tempfile::TempDir,
    socket: Socket,
    conditions: Conditions,
    t_ms: u64,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = open(&dir.path().join("upper.sock")).unwrap();
        Bench { dir, socket, conditions: Conditions::default(), t_ms: 0 }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("upper.sock")).unwrap()
    }

    /// A tick at which this service is to migrate, for this reason; none at all for "".
    fn tick(&mut self, service: &str, why: &str) {
        self.t_ms += 2000;
        let mut plan = Plan::default();
        if !why.is_empty() {
            plan.reports.push(Report::Migrate { service: service.into(), why: why.into() });
        }
        let now = seen(self.t_ms, &[("a", 40.0), ("b", 40.0)]);
        let events = self.conditions.tick(self.t_ms, &now, &plan, false, || None);
        self.socket.tick(&events, (&[], &[]), self.t_ms, &self.conditions, || None);
    }
}

fn next(from: &mut BufReader<UnixStream>) -> serde_json::Value {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
}

/// A client hears who speaks and what is in force, then what comes; a second one, later, the same without the past.
#[test]
fn a_client_hears_how_things_stand_and_what_comes() {
    let mut bench = Bench::new();
    bench.tick("a", "first");
    let mut one = BufReader::new(bench.connect());
    bench.tick("", "");
    let hello: HelloLine = serde_json::from_value(next(&mut one)).unwrap();
    assert_eq!((hello.schema, hello.seq, hello.t_ms, hello.in_force), (SCHEMA, 1, 4000, 1));
    assert_eq!((hello.who.node.as_str(), hello.who.policy.as_str()), ("n", "p"));
    let event: Event = serde_json::from_value(next(&mut one)).unwrap();
    assert_eq!((event.event, event.service.as_str(), event.seq), (What::Migrate, "a", 1));

    bench.tick("b", "second");
    let mut two = BufReader::new(bench.connect());
    bench.tick("a", "another");
    assert_eq!(bench.socket.counts(), (2, [0, 0]));
    let seqs = |from: &mut _, n: usize| (0..n).map(|_| next(from)["seq"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(seqs(&mut one, 2), [2, 3]);
    // Hello, b as told, and a as told last.
    let hello = next(&mut two);
    assert_eq!((&hello["event"], &hello["seq"], &hello["in_force"]), (&"hello".into(), &3.into(), &2.into()));
    assert_eq!(seqs(&mut two, 2), [2, 3]);

    drop(one);
    bench.tick("b", "third");
    bench.tick("", "");
    assert_eq!(bench.socket.counts(), (1, [0, 0]));
    assert_eq!(next(&mut two)["why"], "third");
}

/// Who does not read is cut off when its share of memory is used up, and nobody waits for it; who reads loses nothing meanwhile.
#[test]
fn who_does_not_read_is_cut_off() {
    let mut bench = Bench::new();
    bench.socket.most_pending_bytes = 10_000;
    let mut slow = bench.connect();
    let mut reader = BufReader::new(bench.connect());
    bench.tick("", "");
    next(&mut reader);
    let long = |n: u64| format!("{}{}", "x".repeat(999), "yz".repeat(n as usize % 2));
    let mut n = 0;
    // A write that waited would wait for ever: nobody reads while a tick runs.
    while bench.socket.counts().1 == [0, 0] {
        n += 1;
        bench.tick("a", &long(n));
        assert_eq!(next(&mut reader)["seq"], n);
        assert!(n < 10_000, "it is never cut off");
    }
    assert_eq!(bench.socket.counts(), (1, [1, 0]));
    assert_eq!(bench.conditions.seq(), n);
    // It has what the kernel held, then the end; and how things stand when it comes again.
    let mut got = vec![];
    slow.read_to_end(&mut got).unwrap();
    let whole = got.split(|b| *b == b'\n').filter(|l| l.ends_with(b"}")).count() as u64;
    assert!(whole > 1 && whole < n, "{whole} of {n}");
    let mut again = BufReader::new(bench.connect());
    bench.tick("", "");
    assert_eq!(next(&mut again)["seq"], n);
    assert_eq!(next(&mut again)["seq"], n);
}

/// What clients write is thrown away, also the end of it: who shuts one direction hears on.
#[test]
fn what_clients_write_is_thrown_away() {
    let mut bench = Bench::new();
    let mut writer = bench.connect();
    bench.tick("", "");
    writer.write_all(&[b'{'; 3 * READ_BYTES]).unwrap();
    writer.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..6 {
        bench.tick("", "");
    }
    assert!(bench.socket.clients[0].silent);
    bench.tick("a", "still heard");
    let mut from = BufReader::new(writer);
    next(&mut from);
    assert_eq!(next(&mut from)["why"], "still heard");
}

/// There is room for eight; the ninth is told so, and has the place of one who leaves.
#[test]
fn clients_are_counted() {
    let mut bench = Bench::new();
    let mut clients: Vec<UnixStream> = (0..MOST_CLIENTS).map(|_| bench.connect()).collect();
    bench.tick("", "");
    let mut ninth = BufReader::new(bench.connect());
    bench.tick("", "");
    assert_eq!(bench.socket.counts(), (8, [0, 1]));
    assert_eq!(next(&mut ninth)["event"], "refused");
    assert_eq!(ninth.read_line(&mut String::new()).unwrap(), 0);
    clients.pop();
    bench.tick("", "");
    let mut ninth = BufReader::new(bench.connect());
    bench.tick("", "");
    assert_eq!((next(&mut ninth)["event"].clone(), bench.socket.counts().0), ("hello".into(), 8));
}

/// The file of a process that died is replaced; one where somebody listens, one that is no socket, and a folder that is not there
/// are refused on one line. In order it goes with its owner.
#[test]
fn what_is_at_the_path_decides() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("upper.sock");
    let refused = |path: &Path, code: u8, words: &str| {
        let e = open(path).err().unwrap();
        let said = e.to_string();
        assert!(e.exit_code() == code && said.starts_with("node.toml: upper.socket: ") && said.contains(words), "{said}");
    };
    // As a kill leaves it: a file, and nobody behind it.
    drop(UnixListener::bind(&at).unwrap());
    let socket = open(&at).unwrap();
    assert_eq!(std::fs::metadata(&at).unwrap().permissions().mode() & 0o777, MODE);
    refused(&at, 1, "another process listens there");
    drop(socket);
    assert!(!at.exists());
    std::fs::write(&at, "precious").unwrap();
    refused(&at, 2, "no socket. Remove it");
    assert_eq!(std::fs::read(&at).unwrap(), b"precious");
    refused(&dir.path().join("none/upper.sock"), 1, "in a folder that is there");
    refused(&dir.path().join("x".repeat(120)), 1, "below 100 bytes");
}

/// Mode and group are as the configuration says; a group that is not there is bad input, and leaves nothing.
#[test]
fn mode_and_group_are_as_configured() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("upper.sock");
    let mut config = NodeConfig { file: "node.toml".into(), ..NodeConfig::none() };
    config.upper.mode = 0o600;
    config.upper.group = Some(nix::unistd::getegid().to_string());
    let socket = Socket::open(&at, &config, Hello::default()).unwrap();
    assert_eq!(std::fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o600);
    drop(socket);
    config.upper.group = Some("no such group".into());
    let e = Socket::open(&at, &config, Hello::default()).err().unwrap();
    assert!(e.exit_code() == 2 && e.to_string().contains("upper.group: no group"), "{e}");
    assert!(!at.exists());
}

/// What a tick costs: `cargo test --release -p surefootd --lib upper -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn what_a_tick_costs() {
    let mut bench = Bench::new();
    let spent = |bench: &mut Bench, what: &str, mut readers: Vec<UnixStream>, report: bool| {
        let now = seen(0, &[("a", 40.0), ("b", 40.0)]);
        let (mut took, mut buf) = (vec![], vec![0; 1 << 16]);
        for n in 0..20_000u64 {
            bench.t_ms += 2000;
            let mut plan = Plan::default();
            if report {
                plan.reports.push(Report::Migrate { service: "a".into(), why: ["this", "that"][n as usize % 2].into() });
            }
            let start = std::time::Instant::now();
            let events = bench.conditions.tick(bench.t_ms, &now, &plan, false, || None);
            bench.socket.tick(&events, (&[], &[]), bench.t_ms, &bench.conditions, || None);
            took.push(start.elapsed().as_nanos() as u64);
            for r in &mut readers {
                r.set_nonblocking(true).unwrap();
                while r.read(&mut buf).is_ok_and(|n| n > 0) {}
            }
        }
        took.sort_unstable();
        println!("{what}: median {} ns, p99 {} ns", took[took.len() / 2], took[took.len() * 99 / 100]);
    };
    spent(&mut bench, "no clients, nothing to say", vec![], false);
    let eight: Vec<UnixStream> = (0..8).map(|_| bench.connect()).collect();
    bench.tick("", "");
    let again = eight.iter().map(|c| c.try_clone().unwrap()).collect();
    spent(&mut bench, "8 clients, nothing to say", again, false);
    spent(&mut bench, "8 clients, an event every tick", eight, true);
}
