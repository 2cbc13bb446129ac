//! Inputs that are nearly right, by the thousands: whatever a file holds, a command ends with 0, 1 or 2, says why in one line, says
//! nothing that acts on a terminal, and takes bounded memory and time.
//!
//! Each test mutates a valid specimen of one format and runs the real binary on each mutation, as nobody where the tests are
//! root's. 60 of each; `SUREFOOT_MUTATIONS=10000` (make test-mutations) for more.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::root;
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signer, SigningKey};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use surefoot_learn::canonical;
use surefoot_mutate::{how_many, watch, Form, Mutator};

const EVERY_DAY: usize = 60;
const WORKLOAD: &str = "platform = \"server-1\"\nduration_s = 3\n[[lc]]\nservice = \"moses\"\nload = 0.4\nthreads = 8\n[[lc.change]]\nat_s = 1\nload = 0.7\n[[lc]]\nservice = \"xapian\"\nrps = 2000\narrive_s = 0.5\nleave_s = 2.5\n[[be]]\njob = \"stream\"\narrive_s = 0.2\n";
const NODE: &str = "workload = \"w.toml\"\nrealtime = false\nmetrics_port = 0\njournal = \"j.jsonl\"\n";
const CAMPAIGN: &str = "name = \"c\"\nstrategy = \"exhaustive\"\nseed = 1\n[targets]\nvirtual = [\"server-1\"]\n[sweep]\nservices = [\"moses\", \"xapian\"]\nrps = [2200, 2600]\nthreads = [8]\ncores = \"1..3\"\nways = \"1..2\"\nmba_pct = [100]\nneighbours = { count = [0, 1], draws = 1 }\n[sampling]\nwarmup_ms = 2000\ninterval_ms = 100\nsamples = 3\nrepeats = 1\n";

/// A folder with the program and what it needs, which nobody may write to.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        // Not by this process: what it forks meanwhile would hold the file open for writing.
        let cp = Command::new("cp").args([env!("CARGO_BIN_EXE_surefootd")]).arg(at("surefootd")).status().unwrap();
        assert!(cp.success());
        copy(&root().join("scheduler/vserver/profiles"), &at("scheduler/vserver/profiles"));
        copy(&root().join("tests/vectors/bundle-small"), &at("bundle"));
        fs::copy(root().join("tests/vectors/bundle-small.tar"), at("bundle.tar")).unwrap();
        copy(&root().join("tests/vectors/keys/trusted"), &at("keys"));
        fs::create_dir(at("work")).unwrap();
        let place = Place { dir };
        place.open();
        place.put("w.toml", WORKLOAD);
        place.put("node.toml", NODE);
        place.put("c.toml", CAMPAIGN);
        place
    }

    /// Others may look; the folder for work is theirs who run the mutations.
    fn open(&self) {
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        hand_over(&self.at("work"));
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// In the folder for work.
    fn work(&self, name: &str) -> PathBuf {
        self.at("work").join(name)
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        let at = self.work(name);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        // Made anew: the last may be somebody else's, or a folder.
        let _ = fs::remove_file(&at);
        fs::write(&at, content).unwrap();
        hand_over(&at);
        hand_over(at.parent().unwrap());
    }

    /// A command line; `@` is the folder for work.
    fn command(&self, line: &str) -> Command {
        let mut c = Command::new(self.at("surefootd"));
        let work = self.at("work");
        c.args(line.split(' ').map(|w| w.replace('@', work.to_str().unwrap())));
        c.current_dir(self.dir.path()).env_clear().env("SUREFOOT_LOG", "off").env("HOME", self.at("work")).env("RAYON_NUM_THREADS", "1");
        c.env("RUST_BACKTRACE", "0").env("PATH", "/usr/bin:/bin");
        c
    }

    /// A command that must succeed, as whom the mutations will be run.
    fn ok(&self, line: &str) -> Vec<u8> {
        let e = watch::run(self.command(line)).unwrap();
        assert!(e.status.success(), "{line}: {}", String::from_utf8_lossy(&e.stderr));
        e.stdout
    }

    /// Mutations of a file, each read by a command.
    fn mutate(&self, format: &str, form: Form, file: &str, specimen: impl Into<Vec<u8>>, line: &str) {
        let mut m = Mutator::new(seed(format), form, specimen);
        self.each(
            format,
            || m.draw(),
            |_, mutation| {
                self.put(file, mutation);
                self.command(line)
            },
        );
    }

    fn each(&self, format: &str, draw: impl FnMut() -> Vec<u8>, command: impl FnMut(usize, &[u8]) -> Command) {
        let keep = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
        watch::all(format, how_many(EVERY_DAY), &keep, draw, command);
    }
}

/// To whoever runs the mutations, and nobody else may write: or it would be refused for that, unread.
fn hand_over(path: &Path) {
    let mode = if path.is_dir() { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(watch::NOBODY), Some(watch::NOBODY)).unwrap();
    }
}

/// A folder with all in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    hand_over(to);
    for e in fs::read_dir(from).unwrap().flatten() {
        if e.path().is_dir() {
            copy(&e.path(), &to.join(e.file_name()));
        } else {
            fs::copy(e.path(), to.join(e.file_name())).unwrap();
            hand_over(&to.join(e.file_name()));
        }
    }
}

/// Each format its own, the same every time.
fn seed(format: &str) -> u64 {
    format.bytes().fold(0x5eed, |s: u64, b| s.wrapping_mul(31).wrapping_add(u64::from(b)))
}

/// A campaign is read, expanded and planned.
#[test]
fn campaigns() {
    let p = Place::new();
    p.mutate("campaign.toml", Form::Toml, "m.toml", CAMPAIGN, "sweep @/m.toml --server virtual:server-1 --plan --json");
    let frontier = CAMPAIGN.replace("exhaustive", "frontier");
    let memory = CAMPAIGN
        .replace("server-1", "cosmos-server")
        .replace("\"moses\", \"xapian\"", "\"silo-cosmos\"")
        .replace("count = [0, 1]", "count = [0]");
    let memory = memory.replace(
        "mba_pct = [100]",
        "mba_pct = [100]\nmemory = [\"none\", \"60%..80% step 10%\", \"40 GiB\"]\npool = \"10%..20% step 10%\"",
    );
    p.mutate("campaign.toml memory", Form::Toml, "m.toml", memory, "sweep @/m.toml --server virtual:cosmos-server --plan --json");
    p.mutate("campaign.toml frontier", Form::Toml, "m.toml", frontier, "sweep @/m.toml --server virtual:server-1 --plan");
}

/// A node's configuration is read and run; and only looked at by `top`, `check` and `explain`.
#[test]
fn node_configurations() {
    let p = Place::new();
    let node = NODE.to_string() + "interval_ms = 100\nseed = 3\njournal_mb = 1\nmem_bw_mbps = 1000.0\nfeed_mode = \"0660\"\ncpus = \"0-1\"\n[learning]\non = true\nevery_ms = 500\nexperience = \"x\"\nsave_every_s = 60\n[upper]\non = true\nsocket = \"u.sock\"\nmode = \"0600\"\n[actuator]\nsocket = \"a.sock\"\nuser = \"nobody\"\ncgroups = [\"/docker/*\"]\n[[service]]\nid = \"a\"\nservice = \"a\"\nkind = \"lc\"\nqos_target_ms = 5.0\nthreads = 2\ncgroup = \"/a\"\n[service.prometheus]\nurl = \"http://127.0.0.1:1/metrics\"\nhistogram = \"h\"\nunit = \"ms\"\ninterval_ms = 250\nlabels = { path = \"/x\" }\n[[service]]\nservice = \"b\"\nkind = \"be\"\npid = 1\n";
    let run = "run --policy unmanaged --server virtual:server-1 --duration-s 1 --config @/m.toml";
    p.mutate("node.toml", Form::Toml, "m.toml", node.as_str(), run);
    p.mutate("node.toml of check", Form::Toml, "m.toml", node, "check --config @/m.toml --json");
}

/// A workload is read and run.
#[test]
fn workloads() {
    let p = Place::new();
    p.mutate(
        "workload",
        Form::Toml,
        "w.toml",
        WORKLOAD,
        "run --policy parties-be --server virtual:server-1 --duration-s 2 --config @/node.toml",
    );
    p.put("small.toml", small_platform());
    let oracle = "oracle --workload @/o.toml --platform @/small.toml --most-judged 50 --json";
    p.mutate("workload of oracle", Form::Toml, "o.toml", WORKLOAD, oracle);
}

/// A server with few allocations to search: what is read counts here, not how long the best of many takes to find.
fn small_platform() -> String {
    let whole = fs::read_to_string(root().join("scheduler/vserver/profiles/platforms/server-2.toml")).unwrap();
    let fewer = ["physical_cores = 4", "smt = 1", "turbo_ghz = [3.2, 3.1, 3.0, 2.9]", "ways = 5"];
    let key = |line: &str| line.split_once(" = ").map(|(k, _)| k.to_string());
    let lines = whole.lines().map(|l| fewer.iter().find(|f| key(l).is_some() && key(f) == key(l)).copied().unwrap_or(l));
    lines.collect::<Vec<_>>().join("\n")
}

/// Profiles of platforms, services, jobs and core use are read, and simulated.
#[test]
fn profiles() {
    let p = Place::new();
    let shipped = |n: &str| fs::read(root().join("scheduler/vserver/profiles").join(n)).unwrap();
    let platform = shipped("platforms/server-2.toml");
    fs::create_dir_all(p.work("profiles/platforms")).unwrap();
    p.put("any.toml", WORKLOAD.replace("platform = \"server-1\"\n", ""));
    p.put("any-node.toml", NODE.replace("w.toml", "any.toml"));
    let run = "run --policy equal-share --server virtual:@/m.toml --duration-s 2 --config @/any-node.toml";
    p.mutate("platform profile", Form::Toml, "m.toml", platform.as_slice(), run);
    p.mutate("platform of resctrlfs", Form::Toml, "m.toml", platform, "resctrlfs @ --platform @/m.toml -o nonempty,colour");
    let run = "run --policy equal-share --server virtual:server-1 --duration-s 2 --config @/node.toml --profiles @/profiles";
    p.mutate("service profile", Form::Toml, "profiles/services/moses.toml", shipped("services/moses.toml"), run);
    fs::remove_dir_all(p.work("profiles")).unwrap();
    p.mutate("job profile", Form::Toml, "profiles/batch/stream.toml", shipped("batch/stream.toml"), run);
    fs::remove_dir_all(p.work("profiles")).unwrap();
    p.mutate(
        "bursts.toml",
        Form::Toml,
        "profiles/bursts.toml",
        shipped("bursts.toml"),
        "check --server virtual:server-1 --profiles @/profiles",
    );
}

/// An entry of the catalogue is read and planned with.
#[test]
fn catalogue_entries() {
    let p = Place::new();
    let entry = fs::read(root().join("workloads/memcached/workload.toml")).unwrap();
    p.put("c.toml", "name = \"c\"\n[targets]\nlocal = true\n[sweep]\nservices = [\"memcached\"]\n[sampling]\nsamples = 2\n");
    p.mutate(
        "workload.toml",
        Form::Toml,
        "catalogue/memcached/workload.toml",
        entry,
        "sweep @/c.toml --server local --plan --catalogue @/catalogue --state @/state",
    );
}

const WITH_BUNDLE: &str = "run --policy surefoot --server virtual:server-1 --duration-s 1 --config @/node.toml --trust";

/// A bundle is read whole or refused, as a tar and as a folder; so is a public key.
#[test]
fn bundles() {
    let p = Place::new();
    p.mutate("bundle tar", Form::Bytes, "m.tar", fs::read(p.at("bundle.tar")).unwrap(), &format!("{WITH_BUNDLE} keys --bundle @/m.tar"));
    let names = ["manifest.json", "manifest.sig", "platform.toml", "services/moses.toml", "models/c.safetensors"];
    let mut all: Vec<(&str, Mutator)> = names
        .iter()
        .map(|n| {
            (
                *n,
                Mutator::new(
                    seed(n),
                    if n.ends_with("json") { Form::Json } else { Form::Bytes },
                    fs::read(p.at("bundle").join(n)).unwrap(),
                ),
            )
        })
        .collect();
    copy(&p.at("bundle"), &p.work("bundle"));
    let mut turn = 0;
    let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    p.each(
        "bundle folder",
        || {
            turn += 1;
            let n = all.len();
            let (_, m) = &mut all[turn % n];
            m.draw()
        },
        |i, mutation| {
            copy(&p.at("bundle"), &p.work("bundle"));
            p.put(&format!("bundle/{}", names[(i + 1) % names.len()]), mutation);
            p.command(&format!("{WITH_BUNDLE} keys --bundle @/bundle"))
        },
    );
    let key = fs::read(p.at("keys").join("TEST-ONLY.pub.pem")).unwrap();
    p.mutate("public key", Form::Bytes, "m.pub.pem", key, &format!("{WITH_BUNDLE} @/m.pub.pem --bundle bundle"));
}

/// What a trusted signer signed may be wrong, too: it is refused, or runs.
#[test]
fn signed_bundles() {
    let p = Place::new();
    let pem = fs::read_to_string(root().join("tests/vectors/keys/TEST-ONLY-signing.pem")).unwrap();
    let key = SigningKey::from_pkcs8_pem(&pem).unwrap();
    let read = |n: &str| fs::read(p.at("bundle").join(n)).unwrap();
    let manifest: Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    let files = [
        ("manifest.json", Form::Json),
        ("platform.toml", Form::Toml),
        ("services/moses.toml", Form::Toml),
        ("models/a.safetensors", Form::Bytes),
        ("models/c.safetensors", Form::Bytes),
    ];
    let mut all: Vec<Mutator> = files.iter().map(|(n, form)| Mutator::new(seed(n) + 1, *form, read(n))).collect();
    let mut turn = 0;
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    p.each(
        "bundle signed",
        || {
            // Most of what can be wrong is in the manifest.
            turn += 1;
            all[[0, 0, 0, 1, 2, 3, 4][turn % 7]].draw()
        },
        |i, mutation| {
            copy(&p.at("bundle"), &p.work("bundle"));
            let (name, _) = files[[0, 0, 0, 1, 2, 3, 4][(i + 1) % 7]];
            let whole = if name == "manifest.json" {
                // In its one form, or only that would be found wrong.
                match serde_json::from_slice::<Value>(mutation) {
                    Ok(v) => canonical::to_bytes(&v),
                    Err(_) => mutation.to_vec(),
                }
            } else {
                p.put(&format!("bundle/{name}"), mutation);
                let mut m = manifest.clone();
                m["files"][name] = serde_json::json!({ "bytes": mutation.len(), "sha256": hex(&Sha256::digest(mutation)) });
                canonical::to_bytes(&m)
            };
            let digest = hex(&Sha256::digest(&whole));
            let line = format!("surefoot-bundle-v1 {digest}");
            let signature = hex(&key.sign(line.as_bytes()).to_bytes());
            p.put("bundle/manifest.json", &whole);
            p.put("bundle/manifest.sig", format!("{line} {signature}\n"));
            p.command(&format!("{WITH_BUNDLE} keys --bundle @/bundle"))
        },
    );
}

/// A sweep that was begun is gone on with, or refused: manifest, journal and shards.
#[test]
fn begun_sweeps() {
    for (strategy, title) in [("exhaustive", ""), ("frontier", " frontier")] {
        let p = Place::new();
        p.put("c.toml", CAMPAIGN.replace("exhaustive", strategy));
        let line = "sweep @/c.toml --server virtual:server-1 --threads 1 --progress none --resume --out @/out";
        p.ok(&line.replace(" --resume", ""));
        let whole = p.at("whole");
        copy(&p.work("out"), &whole);
        let shard = fs::read_dir(whole.join("shards")).unwrap().next().unwrap().unwrap().path();
        let files = [
            ("manifest.json".to_string(), Form::Json),
            ("journal.jsonl".to_string(), Form::JsonLines),
            (format!("shards/{}", shard.file_name().unwrap().to_str().unwrap()), Form::Bytes),
        ];
        for (file, form) in files {
            let mut m = Mutator::new(seed(&file), form, fs::read(whole.join(&file)).unwrap());
            let format = format!("sweep {}{title}", file.split('/').next().unwrap());
            p.each(
                &format,
                || m.draw(),
                |_, mutation| {
                    let _ = fs::remove_dir_all(p.work("out"));
                    copy(&whole, &p.work("out"));
                    p.put(&format!("out/{file}"), mutation);
                    p.command(line)
                },
            );
        }
    }
}

/// An evaluation that was cut off is gone on with, or refused; what stands there of another is replaced.
#[test]
fn begun_evaluations() {
    let p = Place::new();
    let line =
        "eval --workloads @/w.toml --policies unmanaged,parties-be --platform server-1 --seeds 6 --threads 1 --progress none --out @/out";
    let partial = || fs::read(p.work("out/eval.partial.jsonl")).unwrap_or_default();
    let lines = |bytes: &[u8]| bytes.iter().filter(|b| **b == b'\n').count();
    let deadline = Instant::now() + Duration::from_secs(120);
    let begun = loop {
        assert!(Instant::now() < deadline, "it cannot be cut off");
        let _ = fs::remove_dir_all(p.work("out"));
        let mut child = p.command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while lines(&partial()) < 3 && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = child.kill();
        child.wait().unwrap();
        let all = partial();
        if lines(&all) >= 3 {
            break all.split_inclusive(|b| *b == b'\n').take(3).collect::<Vec<_>>().concat();
        }
    };
    let mut m = Mutator::new(seed("eval"), Form::JsonLines, begun);
    p.each(
        "eval.partial.jsonl",
        || m.draw(),
        |_, mutation| {
            let _ = fs::remove_dir_all(p.work("out"));
            p.put("out/eval.partial.jsonl", mutation);
            p.command(line)
        },
    );
}

/// A journal of decisions is shown as far as it can be read, and gone on with by a daemon.
#[test]
fn journals_of_decisions() {
    let p = Place::new();
    let run = "run --policy parties-be --server virtual:server-1 --duration-s 3 --config @/node.toml";
    p.ok(run);
    let journal = fs::read(p.work("j.jsonl")).unwrap();
    p.mutate("decisions.jsonl", Form::JsonLines, "m.jsonl", journal.as_slice(), "explain --file @/m.jsonl --since 1000d");
    p.mutate("decisions.jsonl json", Form::JsonLines, "m.jsonl", journal.as_slice(), "explain --file @/m.jsonl --json");
    p.mutate("decisions.jsonl one", Form::JsonLines, "m.jsonl", journal.as_slice(), "explain --file @/m.jsonl --id 2");
    p.mutate("decisions.jsonl of run", Form::JsonLines, "j.jsonl", journal, &run.replace("--duration-s 3", "--duration-s 1"));
}

/// A recorded stream is replayed, by many policies, or refused.
#[test]
fn streams() {
    let p = Place::new();
    p.ok("run --policy parties-be --server virtual:server-1 --duration-s 3 --config @/node.toml --stream @/s.jsonl");
    let stream = fs::read(p.work("s.jsonl")).unwrap();
    let policies = "unmanaged,equal-share,heracles,clite";
    p.mutate("stream", Form::JsonLines, "m.jsonl", stream.as_slice(), &format!("replay @/m.jsonl --policies {policies}"));
    p.mutate("stream cut", Form::JsonLines, "m.jsonl", stream, &format!("replay @/m.jsonl --cut --json --policies {policies}"));
    p.ok("run --policy surefoot --server virtual:server-1 --duration-s 3 --config @/node.toml --stream @/models.jsonl --bundle bundle --trust keys");
    let stream = fs::read(p.work("models.jsonl")).unwrap();
    p.mutate(
        "stream of models",
        Form::JsonLines,
        "m.jsonl",
        stream,
        "replay @/m.jsonl --cut --policies osml-plus --bundle bundle --trust keys",
    );
}

/// Experience that is damaged is no experience.
#[test]
fn experience() {
    let p = Place::new();
    p.put("node.toml", NODE.to_string() + "[learning]\nexperience = \"x.safetensors\"\n");
    p.put("w.toml", WORKLOAD.replace("duration_s = 3", "duration_s = 60"));
    let run = "run --policy osml-plus --server virtual:server-1 --duration-s 60 --config @/node.toml --bundle bundle --trust keys";
    p.ok(run);
    let experience = fs::read(p.work("x.safetensors")).unwrap();
    p.mutate("experience", Form::Bytes, "x.safetensors", experience, &run.replace("--duration-s 60", "--duration-s 1"));
}

/// A state folder whose journal or safe layout is damaged is refused, or reset. The commands are nobody's, or not run: they carry out
/// what stands there.
#[test]
fn state_folders() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("NOT RUN: state_folders: only root can become nobody, who has no rights to lose");
    }
    let p = Place::new();
    let target = p.work("group");
    fs::create_dir_all(&target).unwrap();
    p.put("group/cpu.weight", "100");
    let safe = serde_json::json!({ "version": 1, "boot_id": fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim(),
        "ops": [{ "op": "write", "path": target.join("cpu.weight"), "text": "1" }, { "op": "remove-dir", "path": target.join("none") }] });
    p.mutate("safe.json", Form::Json, "state/safe.json", safe.to_string(), "reset --safe --state @/state");
    let boot = r#"{"event":"boot","boot_id":"x"}"#;
    let touch = r#"{"event":"touch","id":"a","target":{"cgroup":"/surefoot-test-none"},"saved":{"cpu.weight":"100"}}"#;
    let apply = r#"{"event":"apply","t_ms":1,"allocations":{"a":{"cpus":"0","shared_cpus":"","quota_cores":null,"ways":[],"shared_ways":[],"mba_pct":100,"mem_limit_bytes":null,"zswap_max_bytes":null}},"changed":["a"]}"#;
    let journal = format!("{boot}\n{touch}\n{apply}\n{{\"event\":\"release\",\"id\":\"a\"}}\n");
    fs::remove_file(p.work("state/safe.json")).unwrap();
    p.mutate("state journal", Form::JsonLines, "state/journal.jsonl", journal, "reset --state @/state");
}

/// Whatever answers in the place of a daemon, `top` ends in order.
#[test]
fn pages_that_top_reads() {
    let p = Place::new();
    let answer: Arc<Mutex<Vec<u8>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let given = answer.clone();
    std::thread::spawn(move || {
        for mut s in listener.incoming().flatten() {
            let _ = s.read(&mut [0; 1024]);
            let bytes = given.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let _ = s.write_all(&bytes);
        }
    });
    let (page, _) = with_daemon(&p, "parties-be", |port, _| (ask(port, b"GET /status HTTP/1.1\r\n\r\n"), ()));
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    for (format, once) in [("status of top", "--once"), ("status of top json", "--json")] {
        let mut m = Mutator::new(seed(format), Form::Json, body);
        let line = format!("top {once} --url http://127.0.0.1:{port}");
        p.each(
            format,
            || m.draw(),
            |_, mutation| {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", mutation.len());
                *answer.lock().unwrap() = [head.as_bytes(), mutation].concat();
                p.command(&line)
            },
        );
    }
    let mut m = Mutator::new(seed("http"), Form::Bytes, page);
    p.each(
        "http of top",
        || m.draw(),
        |_, mutation| {
            mutation.clone_into(&mut answer.lock().unwrap());
            p.command(&format!("top --once --url http://127.0.0.1:{port}"))
        },
    );
}

/// What comes back for a request; the connection ends, whatever was asked.
fn ask(port: u16, bytes: &[u8]) -> String {
    let mut s = TcpStream::connect(("127.0.0.1", port)).unwrap();
    s.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let _ = s.write_all(bytes);
    let _ = s.shutdown(std::net::Shutdown::Write);
    let mut all = vec![];
    let _ = s.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// A daemon in real time, with its port and the socket for upper schedulers; it must end in order.
fn with_daemon<T, U>(p: &Place, policy: &str, work: impl FnOnce(u16, &Path) -> (T, U)) -> (T, U) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let node = NODE.replace("metrics_port = 0", &format!("metrics_port = {port}")).replace("realtime = false", "realtime = true");
    p.put("w.toml", WORKLOAD.replace("duration_s = 3", "duration_s = 80000"));
    p.put("live.toml", node + "interval_ms = 10\n[upper]\nsocket = \"u.sock\"\n");
    let mut c = p.command(&format!("run --die-with-parent --policy {policy} --server virtual:server-1 --config @/live.toml"));
    let mut child = c.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(("127.0.0.1", port)).is_err() || !ask(port, b"GET /status HTTP/1.1\r\n\r\n").contains("moses") {
        assert!(Instant::now() < deadline, "no daemon answers");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let done = work(port, &p.work("u.sock"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    p.put("w.toml", WORKLOAD);
    done
}

/// Whatever is asked of a daemon's port, or said to its socket, it answers the next who asks, and ends in order.
#[test]
fn requests_to_a_daemon() {
    let p = Place::new();
    let n = how_many(EVERY_DAY);
    with_daemon(&p, "unmanaged", |port, socket| {
        let request =
            "GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nUser-Agent: Prometheus/2.45\r\nAccept: text/plain;version=0.0.4\r\n\r\n";
        let mut m = Mutator::new(seed("request"), Form::Bytes, request);
        let mut codes = std::collections::BTreeMap::new();
        for i in 0..n {
            let mut mutation = m.draw();
            // What is beyond what a request may have is cut off by the daemon.
            mutation.truncate(20_000);
            let got = ask(port, &mutation);
            *codes.entry(got.split(' ').nth(1).unwrap_or("none").to_string()).or_insert(0) += 1;
            if i % 50 == 0 {
                assert!(ask(port, request.as_bytes()).starts_with("HTTP/1.1 200 OK\r\n"), "mutation {i}: {mutation:?}");
            }
        }
        println!("mutations metrics request           {codes:?}");
        let mut m = Mutator::new(seed("upper"), Form::Bytes, "{\"hello\": 1}\n");
        for i in 0..n.min(500) {
            let mut s = UnixStream::connect(socket).unwrap();
            s.set_nonblocking(true).unwrap();
            let mutation = m.draw();
            let _ = s.write(&mutation[..mutation.len().min(100_000)]);
            if i % 50 == 0 {
                assert!(ask(port, request.as_bytes()).contains("surefoot_ticks_total"), "mutation {i}");
            }
        }
        ((), ())
    });
}

/// Endless, missing, deep, long and strange inputs of every command: each ends with 2 or 1, one line, and soon.
#[test]
fn endless_and_strange_inputs() {
    let p = Place::new();
    let put = |name: &str, content: Vec<u8>| p.put(name, content);
    put("deep.toml", format!("x = {}{}\n", "[".repeat(1_000_000), "]".repeat(1_000_000)).into_bytes());
    put("keys.toml", format!("x{} = 1\n", ".a".repeat(300_000)).into_bytes());
    put("deep.json", "[".repeat(1_000_000).into_bytes());
    put("objects.json", "{\"a\":".repeat(500_000).into_bytes());
    put("bytes", vec![0xff; 1000]);
    put("nul", vec![0; 1000]);
    put("bom.toml", "\u{feff}name = \"x\"\r\n".as_bytes().to_vec());
    put("escape.toml", b"na\x1b[31mme = \"\x1b[2J\"\n\"\\u001b[0m\\u202e\" = 1\n".to_vec());
    put("name.toml", format!("{} = 1\n", "n".repeat(100_000)).into_bytes());
    put("numbers.toml", format!("seed = {}\nduration_s = 1e999\n", "9".repeat(100_000)).into_bytes());
    put("twice.json", b"{\"a\":1,\"a\":2}\n".to_vec());
    fs::create_dir_all(p.work("folder")).unwrap();
    nix::unistd::mkfifo(&p.work("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(p.work("socket")).unwrap();
    // A line of 2 GB that takes no room on the disk.
    fs::File::create(p.work("long")).unwrap().set_len(2 << 30).unwrap();
    for f in ["fifo", "long", "socket"] {
        fs::set_permissions(p.work(f), fs::Permissions::from_mode(0o666)).unwrap();
    }
    let inputs = [
        "/dev/zero",
        "@/long",
        "@/folder",
        "@/fifo",
        "@/socket",
        "@/deep.toml",
        "@/keys.toml",
        "@/deep.json",
        "@/objects.json",
        "@/bytes",
        "@/nul",
        "@/bom.toml",
        "@/escape.toml",
        "@/name.toml",
        "@/numbers.toml",
        "@/twice.json",
    ];
    let commands = [
        "sweep X --server virtual:server-1 --plan",
        "check --config X",
        "run --policy parties-be --server virtual:server-1 --config X",
        "run --policy parties-be --server virtual:X --config @/node.toml",
        "run --policy parties-be --server virtual:server-1 --config @/node.toml --profiles X",
        "run --policy surefoot --server virtual:server-1 --config @/node.toml --bundle X --trust keys",
        "run --policy surefoot --server virtual:server-1 --config @/node.toml --bundle bundle --trust X",
        "eval --workloads X --policies unmanaged --platform server-1 --out @/out",
        "eval --workloads @/w.toml --policies unmanaged --platform X --out @/out",
        "oracle --workload X --platform server-1",
        "replay X",
        "explain --file X",
        "top --once --config X",
        "reset --config X",
        "reset --state X",
        "actuate --list --config X",
        "resctrlfs @/folder --platform X",
    ];
    let mut wrong = vec![];
    for command in commands {
        for input in inputs {
            // Each waits for a silent pipe in the same way, and long.
            if input == "@/fifo" && !["check --config X", "replay X", "oracle --workload X --platform server-1"].contains(&command) {
                continue;
            }
            let line = command.replace('X', input);
            let e = watch::run(p.command(&line)).unwrap();
            let code = e.status.code();
            if let Some(why) = watch::broken(&e) {
                wrong.push(format!("{line}: {why}"));
            } else if code == Some(0) {
                wrong.push(format!("{line}: is taken"));
            } else if e.took > Duration::from_secs(60) {
                wrong.push(format!("{line}: took {:?}", e.took));
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
