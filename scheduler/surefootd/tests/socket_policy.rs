//! Policies in another process, over a socket: what honest ones get, and what becomes of killed, hung and lying ones.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{one_line, path, root, surefootd};
use serde_json::{json, Value};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// What a policy does when it is asked.
enum Says {
    Line(Value),
    Bytes(Vec<u8>),
    /// It goes, and listens no more where `for_good`.
    Goes {
        for_good: bool,
    },
    Nothing,
}

const WELCOME: &str = r#"{"surefoot":"policy","protocol":1,"name":"test"}"#;

/// A policy that listens in this process. `decide` gets a question and the number of its connection, from 1 on.
fn listen<F>(dir: &Path, welcome: &str, decide: F) -> String
where
    F: Fn(&Value, usize) -> Says + Send + Sync + 'static,
{
    let at = dir.join("policy.sock");
    let listener = UnixListener::bind(&at).unwrap();
    let (decide, welcome, count) = (Arc::new(decide), welcome.to_string(), Arc::new(AtomicUsize::new(0)));
    let name = format!("socket:{}", path(&at));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (decide, welcome, at) = (decide.clone(), welcome.clone(), at.clone());
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            std::thread::spawn(move || speak(stream.unwrap(), &welcome, &at, |q| decide(q, number)));
        }
    });
    name
}

fn speak(stream: UnixStream, welcome: &str, at: &Path, decide: impl Fn(&Value) -> Says) {
    let mut to = stream.try_clone().unwrap();
    for (i, line) in BufReader::new(stream).lines().enumerate() {
        let Ok(line) = line else { return };
        let said: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(said["surefoot"], if i == 0 { "hello" } else { "decide" });
        let says = if i == 0 { Says::Bytes(format!("{welcome}\n").into_bytes()) } else { decide(&said) };
        let bytes = match says {
            Says::Line(v) => format!("{v}\n").into_bytes(),
            Says::Bytes(bytes) => bytes,
            Says::Nothing => continue,
            Says::Goes { for_good } => {
                if for_good {
                    let _ = fs::remove_file(at);
                }
                return;
            }
        };
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// Equal shares, by what stands in the question alone; `has_be` decides what becomes of what does not divide.
fn equal_shares(q: &Value, cores: u64, ways: u64) -> Value {
    let services = q["seen"]["services"].as_array().unwrap();
    let lc: Vec<&Value> = services.iter().filter(|s| s["kind"]["kind"] == "lc").collect();
    let has_be = lc.len() < services.len();
    let holders = (lc.len() + usize::from(has_be)) as u64;
    let part = |of: u64, i: u64| of / holders + u64::from(!has_be && i < of % holders);
    let silent = |s: &Value| ["unknown", "doubtful", "coarse"].contains(&s["feed"]["state"].as_str().unwrap());
    let held = |s: &Value, of: &str| q["held"][s["id"].as_str().unwrap()][of].as_u64().unwrap_or(0);
    let hold = lc.iter().zip(0u64..).map(|(s, i)| {
        // Nothing is taken from who is silent.
        let keep = |of: &str, share: u64| if silent(s) { share.max(held(s, of)) } else { share };
        let own = json!({ "core_units": keep("core_units", part(cores, i)), "ways": keep("ways", part(ways, i)) });
        (s["id"].as_str().unwrap().to_string(), own)
    });
    json!({ "seq": q["seq"], "hold": hold.collect::<serde_json::Map<_, _>>() })
}

/// Server 1 has 36 CPUs and 20 ways.
fn honest(q: &Value) -> Says {
    Says::Line(equal_shares(q, 36, 20))
}

fn demo(name: &str) -> PathBuf {
    root().join("workloads/sets/demo").join(name).canonicalize().unwrap()
}

fn eval(out: &Path, policies: &str, workload: &str, more: &[&str]) -> Output {
    let mut command = surefootd();
    command.args(["eval", "--platform", "server-1", "--policies", policies, "--seeds", "2", "--timelines", "all"]);
    command.args(["--workloads", path(&demo(workload)), "--out", path(out)]).args(more);
    command.output().unwrap()
}

/// Rows without what is measured in real time, and without the policy's name.
fn rows(out: &Path) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(out.join("rows.csv")).unwrap();
    let cells = |line: &str| {
        let (mut all, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => all.push(String::new()),
                c => all.last_mut().unwrap().push(c),
            }
        }
        all
    };
    let names = cells(text.lines().next().unwrap());
    let of = |line: &str| names.iter().cloned().zip(cells(line)).filter(|(n, _)| n != "policy" && !n.starts_with("decision_us")).collect();
    text.lines().skip(1).map(of).collect()
}

/// Equal shares over a socket have the figures of `equal-share`, to the last bit, as often as they are asked.
#[test]
fn the_same_policy_has_the_same_figures() {
    let dir = tempfile::tempdir().unwrap();
    let name = listen(dir.path(), WELCOME, |q, _| honest(q));
    let at = |n: &str| dir.path().join(n);
    for (out, policy) in [("inside", "equal-share"), ("outside", &name), ("again", &name)] {
        let done = eval(&at(out), policy, "three-lc-arrivals.toml", &[]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let held = |row: &[(String, String)]| row.iter().find(|(n, _)| n == "held_decisions").unwrap().1.clone();
    let without = |out: &str| -> Vec<Vec<(String, String)>> {
        rows(&at(out)).into_iter().map(|r| r.into_iter().filter(|(n, _)| n != "held_decisions").collect()).collect()
    };
    assert_eq!(without("inside"), without("outside"));
    assert_eq!(rows(&at("outside")), rows(&at("again")));
    assert!(rows(&at("inside")).iter().all(|r| held(r).is_empty()) && rows(&at("outside")).iter().all(|r| held(r) == "0"));
    let timeline = |out: &str| fs::read(at(out).join("timelines.parquet")).unwrap();
    assert_eq!(timeline("outside"), timeline("again"));
}

/// A run of a minute on a virtual server: its summary, its log, and what each service held at each tick.
fn run(dir: &Path, policy: &str, settings: &str, more: &[&str]) -> (Value, String, Vec<Value>) {
    let config = dir.join("node.toml");
    let workload = demo("two-lc-steady.toml");
    fs::write(&config, format!("workload = \"{}\"\nmetrics_port = 0\n{settings}", path(&workload))).unwrap();
    let stream = dir.join("stream.jsonl");
    let mut command = surefootd();
    command.args(["run", "--policy", policy, "--server", "virtual:server-1", "--config", path(&config)]);
    command.args(["--stream", path(&stream), "--overwrite"]).args(more).env("SUREFOOT_LOG", "info");
    let out = command.output().unwrap();
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{log}");
    let lines = fs::read_to_string(&stream).unwrap();
    let held = |l: &str| {
        let seen: Value = serde_json::from_str(l).unwrap();
        let of = |s: &Value| (s["id"].as_str().unwrap().to_string(), s["allocation"].clone());
        Some(seen["seen"]["services"].as_array()?.iter().map(of).collect::<serde_json::Map<_, _>>().into())
    };
    (serde_json::from_slice(&out.stdout).unwrap(), log, lines.lines().filter_map(held).collect())
}

const VIRTUAL: &str = "realtime = false\n[policy.settings]\nsocket.limit.virtual_ms = 1000\n";

fn warnings<'a>(log: &'a str, policy: &str) -> Vec<&'a str> {
    log.lines().filter(|l| l.contains("WARN") && l.contains(policy)).collect()
}

/// An honest policy decides every tick, and nothing is said of it.
#[test]
fn an_honest_policy_decides() {
    let dir = tempfile::tempdir().unwrap();
    let name = listen(dir.path(), WELCOME, |q, _| honest(q));
    let (summary, log, held) = run(dir.path(), &name, VIRTUAL, &["--shadow", "equal-share"]);
    let asked = &summary["asked"][&name];
    assert_eq!((asked["decisions"].as_u64().unwrap(), &asked["connections"]), (held.len() as u64, &json!(1)));
    assert!(asked["held"].as_object().unwrap().values().all(|n| n == 0), "{asked}");
    assert_eq!(warnings(&log, &name).len(), 0, "{log}");
    // The shadow of the same kind wants something else only in the interval in which both have just decided it.
    assert!(summary["shadows"][0]["disagreement_cores"].as_f64() < Some(0.5), "{summary}");
}

/// From question 100 on a policy is dead, hangs or lies: what was held goes on being held to the end, and one line says why.
#[test]
fn the_safe_plan_holds() {
    let lie = |hold: Value| move |q: &Value| Says::Line(json!({ "seq": q["seq"], "hold": hold }));
    type Does = Box<dyn Fn(&Value) -> Says + Send + Sync>;
    let bytes = |text: &'static str| -> Does { Box::new(move |_| Says::Bytes(text.into())) };
    let cases: Vec<(&str, &str, Does)> = vec![
        (
            "gone",
            "gone: it has closed the connection. The last safe plan holds, for the rest of this run",
            Box::new(|_| Says::Goes { for_good: true }),
        ),
        ("late", "late: no answer within 1000 ms. The last safe plan holds", Box::new(|_| Says::Nothing)),
        ("refused", "core units and 3 ways, but", Box::new(lie(json!({ "moses": { "core_units": 37, "ways": 3 } })))),
        ("refused", "service \\\"nobody\\\" is not here", Box::new(lie(json!({ "nobody": { "core_units": 1, "ways": 1 } })))),
        ("malformed", "invalid type: null", Box::new(lie(json!({ "moses": { "core_units": f64::NAN, "ways": 3 } })))),
        ("malformed", "its answer is none", bytes("{\"seq\":100,\"hold\":{\"moses\":{\"core_units\":NaN,\"ways\":1}}}\n")),
        ("malformed", "key \\\"seq\\\" stands there twice", bytes("{\"seq\":1,\"seq\":100}\n")),
        ("malformed", "its answer is none", bytes("\u{1b}[2J\n")),
        ("malformed", "a line of more than 64 KiB", Box::new(|_| Says::Bytes(vec![b'x'; 4 << 20]))),
        ("malformed", "it answers question", Box::new(|q| Says::Line(json!({ "seq": q["seq"].as_u64().unwrap() + 7 })))),
        ("failed", "it could not decide: KeyError: 'x'", Box::new(|q| Says::Line(json!({ "seq": q["seq"], "error": "KeyError: 'x'" })))),
    ];
    for (kind, why, does) in cases {
        let dir = tempfile::tempdir().unwrap();
        let name = listen(dir.path(), WELCOME, move |q, _| if q["seq"].as_u64() < Some(100) { honest(q) } else { does(q) });
        let (summary, log, held) = run(dir.path(), &name, VIRTUAL, &[]);
        assert!(held.len() > 500 && held[99] != held[0]);
        assert!(held[99..].iter().all(|h| *h == held[99]), "{kind}: {why}: something changed");
        let said = warnings(&log, &name);
        let why = why.replace("\\\"", "\"");
        assert!(said.iter().filter(|l| l.contains(kind) && l.contains(&why)).count() == 1, "{kind}: {why}: {log}");
        assert_eq!(said.len(), 1, "{kind}: {log}");
        assert!(!log.contains('\u{1b}'), "{log:?}");
        let asked = &summary["asked"][&name];
        let all: u64 = asked["held"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(all, held.len() as u64 - 99, "{kind}: {asked}");
        assert!(asked["held"][kind].as_u64() >= Some(1), "{kind}: {asked}");
    }
}

/// An evaluation of a policy that ends goes on without it, and says that these are not its figures.
#[test]
fn an_evaluation_says_what_was_not_decided() {
    let dir = tempfile::tempdir().unwrap();
    let name = listen(dir.path(), WELCOME, |q, _| if q["seq"].as_u64() < Some(50) { honest(q) } else { Says::Goes { for_good: false } });
    let out = dir.path().join("out");
    let done = eval(&out, &name, "two-lc-steady.toml", &["--set", "socket.limit.virtual_ms=2000"]);
    let log = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{log}");
    assert!(log.contains("decisions of 2 runs were not its own (column held_decisions)"), "{log}");
    for row in rows(&out) {
        let held: u64 = row.iter().find(|(n, _)| n == "held_decisions").unwrap().1.parse().unwrap();
        assert!(held > 500, "{held}");
    }
}

/// Where time is real, a late answer is thrown away by its number, and a policy that went is found again when it is back.
#[test]
fn a_policy_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let name = listen(dir.path(), WELCOME, |q, connection| {
        match (connection, q["seq"].as_u64()) {
            // Slow once: its answer comes into the next interval.
            (1, Some(5)) => std::thread::sleep(Duration::from_millis(250)),
            (1, Some(8)) => return Says::Goes { for_good: false },
            _ => {}
        }
        honest(q)
    });
    let settings = "realtime = true\ninterval_ms = 200\n[policy.settings]\nsocket.limit.interval_share = 0.5\n";
    let (summary, log, _) = run(dir.path(), &name, settings, &["--duration-s", "7"]);
    let asked = &summary["asked"][&name];
    let count = |of: &Value| of.as_u64().unwrap();
    assert!(count(&asked["discarded"]) >= 1 && count(&asked["connections"]) >= 2, "{asked}");
    assert!(count(&asked["held"]["late"]) >= 1 && count(&asked["held"]["gone"]) >= 1, "{asked}");
    let say = |text: &str| log.lines().filter(|l| l.contains(&name) && l.contains(text)).count();
    assert_eq!(
        (say("gone: it has closed the connection. The last safe plan holds"), say("late: no answer within 100 ms")),
        (1, 1),
        "{log}"
    );
    assert_eq!(say("it decides again"), 1, "{log}");
}

/// A shadow on a socket begins anew every ten seconds, on a connection of its own; when it has gone, the run goes on.
#[test]
fn a_shadow_may_go() {
    let dir = tempfile::tempdir().unwrap();
    let name = listen(dir.path(), WELCOME, |q, connection| if connection < 4 { honest(q) } else { Says::Goes { for_good: true } });
    let (summary, log, held) = run(dir.path(), "parties", VIRTUAL, &["--shadow", &name]);
    let asked = &summary["asked"][&name];
    assert_eq!((&asked["decisions"], &asked["connections"]), (&json!(held.len()), &json!(4)), "{asked}");
    assert_eq!((asked["held"]["gone"].as_u64(), warnings(&log, &name).len()), (Some(held.len() as u64 - 300), 1), "{asked} {log}");
}

/// What cannot be a policy is said before anything begins, in one line that says what to do.
#[test]
fn what_is_no_policy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let eval = |policy: &str| eval(&dir.path().join("out"), policy, "two-lc-steady.toml", &[]);
    let said = |policy: &str, code: i32| {
        let out = eval(policy);
        assert_eq!(out.status.code(), Some(code), "{policy}: {}", String::from_utf8_lossy(&out.stderr));
        one_line(&out).1
    };
    let none = format!("socket:{}", path(&dir.path().join("none.sock")));
    assert!(said(&none, 1).contains("there is no such socket. Start the policy first"));
    let dead = dir.path().join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    assert!(said(&format!("socket:{}", path(&dead)), 1).contains("nobody listens there. Start the policy first"));
    assert!(said("socket:", 2).contains("names no socket"));
    assert!(said("socket:/a+parties", 2).contains("without them"));
    assert!(said("parties+socket:/a", 2).contains("decides alone"));
    assert!(said("socet:/a", 2).contains("socket:PATH"));
    for (welcome, why) in [
        (
            r#"{"surefoot":"policy","protocol":2,"name":"x","more":1}"#,
            "it speaks protocol 2, and this surefootd 1. Take both of one release",
        ),
        (r#"{"surefoot":"upper","protocol":1,"name":"x"}"#, "its greeting is none"),
        (r#"{"surefoot":"policy","protocol":1,"name":""}"#, "1 to 64 characters"),
        ("HTTP/1.1 400 Bad Request", "its greeting is none"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let name = listen(dir.path(), welcome, |q, _| honest(q));
        assert!(said(&name, 1).contains(why), "{welcome}: {}", said(&name, 1));
    }
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let name = listen(&open, WELCOME, |q, _| honest(q));
    assert!(said(&name, 2).contains("chmod go-w"), "{}", said(&name, 2));
    assert!(!dir.path().join("out").exists());
}
