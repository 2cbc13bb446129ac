//! Policies in the shadow, and the stream of a run that is replayed bit for bit.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, one_line, path, root, surefootd};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A minute of two services under a policy, with shadows; what it said at the end, and the stream.
fn minute(dir: &Path, policy: &str, shadows: &str) -> (Value, PathBuf) {
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let config = dir.join("node.toml");
    fs::write(&config, format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\n", path(&workload))).unwrap();
    let stream = dir.join("stream.jsonl");
    let mut command = surefootd();
    command.args([
        "run",
        "--policy",
        policy,
        "--server",
        "virtual:server-1",
        "--config",
        path(&config),
        "--stream",
        path(&stream),
        "--overwrite",
    ]);
    if !shadows.is_empty() {
        command.args(["--shadow", shadows]);
    }
    let out = with_bundle(&mut command).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    (serde_json::from_slice(&out.stdout).unwrap(), stream)
}

fn with_bundle(command: &mut std::process::Command) -> &mut std::process::Command {
    let vectors = root().join("tests/vectors");
    command.args(["--bundle", path(&vectors.join("bundle-small")), "--trust", path(&vectors.join("keys/trusted"))])
}

fn replay(stream: &Path, policies: &str) -> std::process::Output {
    replay_with(stream, policies, &[])
}

fn replay_with(stream: &Path, policies: &str, more: &[&str]) -> std::process::Output {
    let mut command = surefootd();
    command.args(["replay", path(stream), "--json"]).args(more);
    if !policies.is_empty() {
        command.args(["--policies", policies]);
    }
    with_bundle(&mut command).output().unwrap()
}

/// Whoever acted decides the same again, on-line learning included, whoever looks on; and what looks on changes nothing.
#[test]
fn a_stream_replays_bit_for_bit() {
    for policy in ["osml-plus", "surefoot", "parties-be"] {
        let dir = tempfile::tempdir().unwrap();
        let (alone, stream) = minute(dir.path(), policy, "");
        let bytes = fs::read(&stream).unwrap();
        let others: Vec<&str> = ["parties-be", "surefoot", "unmanaged"].into_iter().filter(|p| *p != policy).collect();
        let others = others.join(",");
        let (watched, _) = minute(dir.path(), policy, &others);
        assert_eq!(fs::read(&stream).unwrap(), bytes, "{policy}: shadows change nothing");
        assert_eq!(alone["qos_violation_s"], watched["qos_violation_s"]);
        // What a run says at its end of those who looked on is what its stream says of them.
        let again: Value = serde_json::from_slice(&replay(&stream, &others).stdout).unwrap();
        assert_eq!((&watched["shadows"], &alone["shadows"]), (&again["shadows"], &Value::Array(vec![])));
        let out = replay(&stream, "unmanaged,parties-be");
        assert!(out.status.success(), "{policy}: {}", String::from_utf8_lossy(&out.stderr));
        let said: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(said["ticks_that_differ"], 0, "{said}");
        assert!(said["ticks"].as_u64() >= alone["ticks"].as_u64() && said["ticks"].as_u64() > Some(500), "{said}");
        let others = said["shadows"].as_array().unwrap();
        assert_eq!(others.len(), 2);
        // A plan without an action only says again what was decided before.
        let steps = |line: &str| {
            let v: Value = serde_json::from_str(line).unwrap();
            let plan = &v["plan"];
            v["end"].is_null() && !plan["actions"].as_array().unwrap().is_empty() && !plan["changes"].as_object().unwrap().is_empty()
        };
        let taken = std::str::from_utf8(&bytes).unwrap().lines().skip(1).filter(|l| steps(l)).count();
        assert_eq!(said["ticks_with_a_plan"], taken, "{said}");
        assert!(others[1]["ticks_with_a_plan"].as_u64() < Some(300), "it holds its layout most of the time: {said}");
        assert!(others[0]["disagreement_cores"].as_f64().unwrap() > 1.0 && others[0]["regret_qos"].is_number(), "{said}");
        assert!(others[0]["disagreement_frac"].as_f64().is_some_and(|f| f > 0.5 && f <= 1.0), "{said}");
        // The same again is the same, to the last bit.
        assert_eq!(replay(&stream, "unmanaged,parties-be").stdout, out.stdout);
    }
}

/// A bundle's models are watched once a second under every policy, also one that takes none. What no service holds alone is not compared,
/// and without a bundle nothing is watched.
#[test]
fn models_are_watched_whatever_decides() {
    for (policy, compares) in [("surefoot", true), ("parties-be", true), ("unmanaged", false)] {
        let dir = tempfile::tempdir().unwrap();
        let (said, _) = minute(dir.path(), policy, "");
        let models = said["models"].as_array().unwrap();
        assert_eq!(models.iter().map(|m| m["service"].as_str().unwrap()).collect::<Vec<_>>(), ["img-dnn", "moses"]);
        let held: u64 = models.iter().map(|m| m["held"]["comparisons"].as_u64().unwrap()).sum();
        assert!((held > 20) == compares && (compares || held == 0), "{policy}: {said}");
        assert!((58..=62).contains(&said["phases"]["watch"]["count"].as_u64().unwrap()), "{policy}: {said}");
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    fs::write(&config, format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\n", path(&workload))).unwrap();
    let run = ["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", path(&config), "--duration-s", "3"];
    let said: Value = serde_json::from_str(&ok(&run)).unwrap();
    assert!(said["models"].is_null() && said["phases"]["watch"]["count"] == 0, "{said}");
}

/// A stream that was cut, wherever, is refused, unless asked for as one; then it ends with its last whole line.
#[test]
fn a_stream_that_was_cut_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "parties-be", "");
    let text = fs::read_to_string(&stream).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let ticks = lines.len() - 2;
    assert_eq!(lines[ticks + 1], format!("{{\"end\":{{\"ticks\":{ticks}}}}}\n"));
    let last = text.len() - lines[ticks + 1].len();
    // Within the last line, before it, within the last tick, in the middle of all.
    let cuts = [(text.len() - 5, ticks), (last, ticks), (last - 40, ticks - 1), (lines[..101].concat().len(), 100)];
    for (bytes, whole) in cuts {
        fs::write(&stream, &text[..bytes]).unwrap();
        let (code, line) = one_line(&replay(&stream, ""));
        assert!(code == 2 && line.contains("the stream was cut or changed (--cut replays what is there)"), "{bytes}: {code} {line}");
        let out = replay_with(&stream, "", &["--cut"]);
        let said: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((out.status.code(), &said["ticks"]), (Some(0), &Value::from(whole)), "{bytes}");
    }
    // A tick that is missing is no end that is missing.
    let fewer = [&lines[..5], &lines[6..]].concat().concat().replacen("\"is_virtual\":true,", "", 1);
    fs::write(&stream, fewer).unwrap();
    let (code, line) = one_line(&replay_with(&stream, "", &["--cut"]));
    assert!(code == 2 && line.contains(&format!("{ticks} ticks were recorded, {} are here", ticks - 1)), "{code} {line}");
    fs::write(&stream, text.clone() + lines[1]).unwrap();
    let (code, line) = one_line(&replay(&stream, ""));
    assert!(code == 2 && line.contains("more follows the end"), "{code} {line}");
    // Streams of the version before had no end.
    fs::write(&stream, text[..last].replacen("\"format\":3", "\"format\":1", 1)).unwrap();
    assert_eq!(one_line(&replay(&stream, "")).0, 2);
    assert_eq!(replay_with(&stream, "", &["--cut"]).status.code(), Some(0));
}

/// What is said of it, and a change of a line.
type Change<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// A stream whose platform, services or numbers no run writes is refused by the field, and nothing in it ends the program.
#[test]
fn what_policies_could_not_work_on_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "parties-be", "");
    let text = fs::read_to_string(&stream).unwrap();
    let (head, rest) = text.split_once('\n').unwrap();
    let (tick, rest_after) = rest.split_once('\n').unwrap();
    let with = |line: &str, change: &dyn Fn(&mut Value)| {
        let mut v: Value = serde_json::from_str(line).unwrap();
        change(&mut v);
        v.to_string()
    };
    let heads: [Change; 6] = [
        ("platform.core_of_cpu: ", &|v| v["platform"]["core_of_cpu"] = serde_json::json!([0, 1])),
        ("platform.l3_domain_of_cpu: ", &|v| v["platform"]["l3_domain_of_cpu"] = serde_json::json!([])),
        ("platform.numa_of_cpu: ", &|v| v["platform"]["numa_of_cpu"] = serde_json::json!(vec![4_000_000_000u32; 36])),
        ("platform.core_step: ", &|v| v["platform"]["core_step"] = 0.into()),
        ("platform.llc.ways: ", &|v| v["platform"]["llc"]["ways"] = 4_000_000_000u32.into()),
        ("interval_ms", &|v| v["interval_ms"] = 0.into()),
    ];
    for (says, change) in heads {
        fs::write(&stream, format!("{}\n{rest}", with(head, change))).unwrap();
        let (code, line) = one_line(&replay(&stream, "surefoot,parties-be,clite"));
        assert!(code == 2 && line.contains(&format!("line 1: {says}")), "{says}: {code} {line}");
    }
    let ticks: [Change; 3] = [
        ("services.allocation.ways: ", &|v| v["seen"]["services"][0]["allocation"]["ways"] = serde_json::json!([1, 1, 1])),
        ("services.allocation.cpus: ", &|v| v["seen"]["services"][0]["allocation"]["cpus"] = "0-1023".into()),
        ("services.id: ", &|v| v["seen"]["services"][1]["id"] = v["seen"]["services"][0]["id"].clone()),
    ];
    for (says, change) in ticks {
        fs::write(&stream, format!("{head}\n{}\n{rest_after}", with(tick, change))).unwrap();
        let (code, line) = one_line(&replay(&stream, "surefoot,parties-be,clite"));
        assert!(code == 2 && line.contains(&format!("line 2: {says}")), "{says}: {code} {line}");
    }
}

/// A stream in which a decision was changed is found out.
#[test]
fn what_does_not_replay_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "parties-be", "");
    let text = fs::read_to_string(&stream).unwrap();
    let at = text.find("\"mba_pct\":100").unwrap();
    let at = at + text[at..].find("\"plan\":{\"changes\":{\"").unwrap();
    let at = at + text[at..].find("\"mba_pct\":100").unwrap();
    fs::write(&stream, format!("{}\"mba_pct\":90{}", &text[..at], &text[at + 13..])).unwrap();
    let (code, line) = one_line(&replay(&stream, ""));
    assert!(code == 1 && line.contains("decides otherwise") && line.contains(path(&stream)), "{code} {line}");
    assert!(line.contains("Another version (") && line.contains("a stream that was changed or is not whole"), "{line}");
}

/// A stream of an older version, whose plans hold whole allocations, replays to the same decisions.
#[test]
fn streams_with_whole_allocations_replay() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "parties-be", "");
    let said = |out: &std::process::Output| -> Value { serde_json::from_slice(&out.stdout).unwrap() };
    let now = said(&replay(&stream, ""));
    let text = fs::read_to_string(&stream).unwrap();
    let mut named = 0;
    let mut older = |line: &str| {
        let Some((seen, plan)) = line.strip_suffix('}').and_then(|l| l.rsplit_once(",\"plan\":")) else {
            return line.replacen("\"format\":3", "\"format\":2", 1);
        };
        let mut plan: Value = serde_json::from_str(plan).unwrap();
        let changes = plan.as_object_mut().unwrap().remove("changes").unwrap();
        let mut allocations = serde_json::Map::new();
        for (id, change) in changes.as_object().unwrap() {
            let mut whole = change["cpu"].as_object().unwrap().clone();
            whole.extend(change["llc"].as_object().unwrap().clone());
            whole.insert("mba_pct".into(), change["mba_pct"].clone());
            whole.extend(["mem_limit_bytes", "zswap_max_bytes"].map(|limit| (limit.to_string(), Value::Null)));
            allocations.insert(id.clone(), whole.into());
            named += 1;
        }
        plan["allocations"] = allocations.into();
        format!("{seen},\"plan\":{plan}}}")
    };
    let old: Vec<String> = text.lines().map(&mut older).collect();
    fs::write(&stream, old.join("\n") + "\n").unwrap();
    let out = replay(&stream, "");
    assert!(out.status.success() && named > 2, "{named}: {}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(said(&out), now);
}

/// A virtual server's ticks are an interval apart from 0 on, and any others were not recorded so.
#[test]
fn ticks_that_no_run_wrote_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "unmanaged", "");
    let text = fs::read_to_string(&stream).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let late = lines[5].replacen("\"t_ms\":400", "\"t_ms\":450", 1);
    let (head, cut) = (lines[0], &lines[1][..40]);
    let cases = [
        (vec![head], "line 1: what says that the run has ended is missing"),
        (vec![head, r#"{"end":{"ticks":0}}"#], "line 1: no tick follows"),
        (vec![head, cut], "line 2: ends within this line"),
        ([&[head], &lines[2..]].concat(), "line 2: t_ms is 100 where 0 is due"),
        ([&lines[..5], &lines[6..]].concat(), "line 6: t_ms is 500 where 400 is due"),
        ([&lines[..6], &lines[5..]].concat(), "line 7: t_ms is 400 where 500 is due"),
        ([&lines[..5], &[lines[6], lines[5]], &lines[7..]].concat(), "line 6: t_ms is 500 where 400 is due"),
        ([&lines[..5], &[&late], &lines[6..]].concat(), "line 6: t_ms is 450 where 400 is due"),
    ];
    for (changed, says) in cases {
        fs::write(&stream, changed.join("\n")).unwrap();
        let (code, line) = one_line(&replay(&stream, ""));
        assert!(code == 2 && line.contains(says), "{says}: {code} {line}");
        assert!(line.contains("was cut or changed") && line.contains("Record it again with `surefootd run --stream`"), "{line}");
    }
}

/// A host may miss ticks and is never quite on time: what is missing is counted. Time does not stand still there, either.
#[test]
fn ticks_that_a_host_missed_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "unmanaged", "");
    let text = fs::read_to_string(&stream).unwrap().replacen("\"is_virtual\":true,", "", 1);
    let lines: Vec<&str> = text.lines().collect();
    let late = lines[10].replacen("\"t_ms\":900", "\"t_ms\":960", 1);
    let (end, lines) = lines.split_last().unwrap();
    assert!(end.starts_with("{\"end\""));
    let missing = |lines: &[&str]| {
        fs::write(&stream, format!("{}\n{{\"end\":{{\"ticks\":{}}}}}\n", lines.join("\n"), lines.len() - 1)).unwrap();
        let out = replay(&stream, "");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let said: Value = serde_json::from_slice(&out.stdout).unwrap();
        said["ticks_missing"].as_u64().unwrap()
    };
    assert_eq!(missing(lines), 0);
    assert_eq!(missing(&[&lines[..10], &[&late], &lines[11..]].concat()), 0);
    let gaps = [&lines[..5], &lines[7..20], &lines[21..]].concat();
    assert_eq!(missing(&gaps), 3);
    let said = with_bundle(surefootd().args(["replay", path(&stream)])).output().unwrap().stdout;
    let summary = String::from_utf8(said).unwrap();
    assert!(summary.contains(&format!("{} ticks (3 missing), ", gaps.len() - 1)), "{summary}");
    for (changed, says) in [
        ([&lines[..6], &lines[5..]].concat(), "line 7: t_ms is 400 after 400"),
        ([&lines[..5], &[lines[6], lines[5]], &lines[7..]].concat(), "line 7: t_ms is 400 after 500"),
    ] {
        fs::write(&stream, changed.join("\n")).unwrap();
        let (code, line) = one_line(&replay(&stream, ""));
        assert!(code == 2 && line.contains(says) && line.contains("was cut or changed"), "{says}: {code} {line}");
    }
}

/// What is no stream, or not this bundle's, is refused in one line with a remedy.
#[test]
fn bad_streams_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, stream) = minute(dir.path(), "osml-plus", "");
    let text = fs::read_to_string(&stream).unwrap();
    let out = surefootd().args(["replay", path(&stream)]).output().unwrap();
    let (code, line) = one_line(&out);
    assert!(code == 2 && line.contains("--bundle"), "{code} {line}");
    let cases = [
        ("".to_string(), "empty"),
        ("{}\n".into(), "head"),
        (text.replacen("\"format\":3", "\"format\":9", 1), "format 9"),
        (text.replacen("{\"seen\"", "{\"sean\"", 1), "line 2"),
        (text.replacen("{\"seen\"", "{\"sean\"", 1), "at column 7"),
    ];
    for (bad, word) in cases {
        fs::write(&stream, bad).unwrap();
        let (code, line) = one_line(&replay(&stream, ""));
        assert!(code == 2 && line.contains(word) && line.contains("surefootd run --stream"), "{word}: {code} {line}");
        assert!(!line.contains(" at line "), "the stream's line alone: {line}");
    }
    // Of another platform: a stream has its own in it, so only the bundle can be another one.
    let (head, ticks) = text.split_once('\n').unwrap();
    let mut head: Value = serde_json::from_str(head).unwrap();
    head["platform"]["managed"] = "0-3".into();
    for (bundle, remedy) in [(head["bundle"].clone(), "that the stream was recorded with"), (Value::Null, "data of `server-1`")] {
        head["bundle"] = bundle;
        fs::write(&stream, format!("{head}\n{ticks}")).unwrap();
        let (code, line) = one_line(&replay(&stream, ""));
        assert!(code == 2 && line.contains("platform.cores") && line.contains(remedy), "{code} {line}");
        assert!(!line.contains("Name ") && !line.contains("this platform"), "{line}");
    }
    // Before its port, which is taken here, its socket or its journal are.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = dir.path().join("node.toml");
    let port = format!("metrics_port = {}\njournal = \"j.jsonl\"\n[upper]\nsocket = \"u.sock\"\n", taken.local_addr().unwrap().port());
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("metrics_port = 0\n", &port)).unwrap();
    let refused = |more: &[&str]| {
        let run = ["run", "--policy", "parties-be", "--server", "virtual:server-1", "--config", path(&config)];
        one_line(&surefootd().args(run).args(more).output().unwrap())
    };
    let (code, line) = refused(&["--shadow", "nobody"]);
    assert!(code == 2 && line.contains("--shadow") && line.contains("nobody"), "{code} {line}");
    for option in ["--stream", "--events"] {
        let (code, line) = refused(&[option, "/proc/none/file"]);
        assert!(code == 1 && line.contains("/proc/none/file"), "{code} {line}");
        // The other way round, nothing recorded is lost for a run that does not come to be.
        let before = fs::read(&stream).unwrap();
        let (code, line) = refused(&[option, path(&stream), "--overwrite"]);
        assert!(code == 1 && line.contains("metrics_port"), "{code} {line}");
        assert!(fs::read(&stream).unwrap() == before, "{option}");
        // And nothing is left of what was to be recorded.
        let (code, _) = refused(&[option, path(&dir.path().join("new"))]);
        assert!(code == 1 && fs::read_dir(dir.path()).unwrap().all(|f| !f.unwrap().file_name().to_string_lossy().starts_with("new")));
    }
    assert!(!dir.path().join("u.sock").exists() && !dir.path().join("j.jsonl").exists());
}
