//! `surefootd sweep` on virtual servers, as a process.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, one_line, path, run, surefootd};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const CAMPAIGN: &str = r#"
name = "test"
strategy = "exhaustive"
seed = 7
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "img-dnn"]
rps = "catalogue"
threads = [16]
cores = "1..36"
ways = "1..20"
neighbours = { count = [0, 1, 2], draws = 2 }
[sampling]
samples = 20
"#;

fn campaign(dir: &Path, text: &str) -> PathBuf {
    let file = dir.join("campaign.toml");
    fs::write(&file, text).unwrap();
    file
}

fn small() -> String {
    CAMPAIGN.replace("\"1..36\"", "[1, 8, 30]").replace("\"1..20\"", "[2, 15]").replace("samples = 20", "samples = 200")
}

/// Shards by name, as bytes.
fn shards(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for e in fs::read_dir(out.join("shards")).unwrap() {
        let e = e.unwrap();
        all.insert(e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap());
    }
    all
}

fn manifest(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap()
}

fn journal(out: &Path) -> Vec<Value> {
    fs::read_to_string(out.join("journal.jsonl")).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn add_up(out: &Path) {
    let m = manifest(out);
    let n = |k: &str| m["cases"][k].as_u64().unwrap();
    let states = n("measured") + n("infeasible") + n("client_limited") + n("overloaded") + n("failed");
    assert_eq!(states, n("planned"));
    assert_eq!(journal(out).len() as u64, n("planned"));
    let ids: std::collections::BTreeSet<String> = journal(out).iter().map(|l| l["case_id"].to_string()).collect();
    assert_eq!(ids.len() as u64, n("planned"), "no case twice");
    let rows: u64 = journal(out).iter().map(|l| l["rows"].as_u64().unwrap()).sum();
    assert_eq!(rows, m["shards"].as_array().unwrap().iter().map(|s| s["rows"].as_u64().unwrap()).sum::<u64>());
    assert_eq!(m["complete"], true);
}

/// 2 services x 5 RPS levels x 5 neighbour sets (none, 2 x one, 2 x two) x 36 x 20 cells; states add up to the plan.
#[test]
fn expansion_counts_and_states_add_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), "--server", "virtual:server-1", "--plan", "--json"])).unwrap();
    let levels = plan["by_service"]["moses"].as_u64().unwrap() / (5 * 720);
    assert_eq!(levels, 5);
    assert_eq!(plan["cases"], plan["by_service"]["moses"].as_u64().unwrap() + plan["by_service"]["img-dnn"].as_u64().unwrap());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a plan writes nothing");

    let out = dir.path().join("out");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
    add_up(&out);
    let m = manifest(&out);
    assert_eq!(m["cases"]["planned"], plan["cases"]);
    assert_eq!(m["cases"]["infeasible"], plan["infeasible"]["cases"]);
    for state in ["measured", "infeasible", "overloaded"] {
        assert!(m["cases"][state].as_u64().unwrap() > 0, "{state}");
    }
    assert_eq!(m["services"]["moses"]["qos_target_ms"], 10.0);
    assert_eq!((&m["platform"]["cores"], &m["platform"]["ways"]), (&Value::from(36), &Value::from(20)));
}

/// A data set says which program measured, by version and commit, in the words of `--version`.
#[test]
fn a_data_set_names_the_program_that_measured() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), &small());
    let out = dir.path().join("out");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
    let software = &manifest(&out)["software"];
    let commit = software["commit"].as_str().map_or_else(String::new, |c| format!(" (commit {c})"));
    assert_eq!(ok(&["--version"]), format!("surefootd {}{commit}\n", software["surefootd"].as_str().unwrap()));
    let told =
        std::process::Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "ls-files", "--error-unmatch", "Cargo.toml"]).output();
    if told.is_ok_and(|t| t.status.success()) {
        assert!(!commit.is_empty(), "a checkout has a commit");
    }
}

/// Results depend on the campaign only: on 1, 2 or 3 threads, or run again, every byte of shards, journal and manifest is the
/// same.
#[test]
fn threads_do_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), &CAMPAIGN.replace("\"1..36\"", "\"1..36 step 3\""));
    let everything = |run: &str, threads: &str| {
        let out = dir.path().join(run);
        ok(&["sweep", path(&file), "--server", "virtual:server-1", "--threads", threads, "--out", path(&out)]);
        let text = |name: &str| fs::read_to_string(out.join(name)).unwrap();
        (shards(&out), text("journal.jsonl"), text("manifest.json"))
    };
    let once = everything("a", "1");
    assert!(once.0.len() >= 4, "{} shards are too few for three threads", once.0.len());
    for (run, threads) in [("b", "1"), ("c", "2"), ("d", "3")] {
        assert!(once == everything(run, threads), "{threads} threads");
    }
}

/// A random sweep measures so many cells, each with its repeats, and cut off it goes on to the same end.
#[test]
fn random() {
    let dir = tempfile::tempdir().unwrap();
    let text = CAMPAIGN.replace("exhaustive", "random").replace("samples = 20", "samples = 20\nrepeats = 2\n[random]\ncells = 1500");
    let file = campaign(dir.path(), &text);
    let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), "--server", "virtual:server-1", "--plan", "--json"])).unwrap();
    let out = dir.path().join("out");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
    add_up(&out);
    let m = manifest(&out);
    assert_eq!((&m["cases"]["planned"], &m["cases"]["planned"]), (&plan["cases"], &Value::from(3000)));
    assert_eq!(m["cases"]["infeasible"], plan["infeasible"]["cases"]);
    let (want, lines) = (shards(&out), journal(&out));
    let whole = fs::read(out.join("journal.jsonl")).unwrap();
    fs::write(out.join("journal.jsonl"), &whole[..whole.len() / 2]).unwrap();
    assert!(resume(&file, &out).status.success());
    assert_eq!((shards(&out), journal(&out)), (want, lines));
}

const FINDS_LOADS: &str = r#"
name = "found"
seed = 7
[targets]
virtual = ["server-1"]
[sweep]
services = ["moses", "xapian"]
rps = "saturation:25,50,100,120"
threads = [36]
cores = [4, 8, 36]
ways = [5, 20]
neighbours = { count = [0, 1], draws = 2 }
[sampling]
interval_ms = 1000
samples = 3
"#;

/// Loads that are found on the target: per cent of the highest rate that meets the target alone on everything, about that of the profile.
/// Rows say the share and the rate; every strategy, cut off at any place, comes to the same; other campaigns have no such column.
#[test]
fn loads_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let known = campaign(dir.path(), &FINDS_LOADS.replace("saturation:25,50,100,120", "100%").replace("[36]", "\"cores\""));
    let profile = dir.path().join("profile");
    ok(&["sweep", path(&known), "--server", "virtual:server-1", "--out", path(&profile)]);
    let most = |out: &Path, service: &str| manifest(out)["services"][service]["max_load_rps"].as_f64().unwrap();
    assert!(rows(&profile, &["load_pct"]).is_none(), "a campaign that says its loads has the columns that it had before");

    for strategy in ["exhaustive", "frontier", "random"] {
        let more = if strategy == "random" { "[random]\ncells = 60\n" } else { "" };
        let text = format!("strategy = \"{strategy}\"{FINDS_LOADS}{more}");
        let (file, out) = (campaign(dir.path(), &text), dir.path().join(strategy));
        let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), "--server", "virtual:server-1", "--plan", "--json"])).unwrap();
        assert!(plan["loads_to_find"].as_array().unwrap().len() >= 2 && plan["preview"][0]["rps"].is_null(), "{plan}");
        assert!(!out.exists(), "a plan writes nothing");
        ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
        let (m, want) = (manifest(&out), shards(&out));
        let max_loads = m["max_loads"].as_array().unwrap();
        assert_eq!(max_loads.len(), plan["loads_to_find"].as_array().unwrap().len());
        for service in ["moses", "xapian"] {
            let ratio = most(&out, service) / most(&profile, service);
            assert!((0.85..1.15).contains(&ratio), "{service}: {ratio} of the profile's max load");
        }
        let all = rows(&out, &["rps", "load_pct"]).unwrap();
        assert!(!all.is_empty());
        for row in all {
            let is = |m: &&Value| m["service"] == *row.0 && m["threads"] == 36;
            let most = max_loads.iter().find(is).unwrap()["max_load_rps"].as_f64().unwrap();
            assert!((row.1[0] - most * row.1[1] / 100.0).abs() < 1e-6, "{row:?} of {most}");
        }
        // Cut off with what it had found: nothing is looked for again, and the end is the same.
        let journal = fs::read(out.join("journal.jsonl")).unwrap();
        for keep in [0, journal.len() / 2] {
            fs::write(out.join("journal.jsonl"), &journal[..keep]).unwrap();
            let again = surefootd()
                .args(["sweep", path(&file), "--server", "virtual:server-1", "--progress", "json", "--resume", "--out", path(&out)])
                .output()
                .unwrap();
            assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
            assert!(!String::from_utf8_lossy(&again.stderr).contains("max load of"), "nothing is looked for again");
            assert_eq!((shards(&out) == want, manifest(&out)["max_loads"].as_array().unwrap()), (true, max_loads));
        }
    }
}

const MEMORY: &str = r#"
name = "memory"
seed = 7
[targets]
virtual = ["cosmos-server"]
[sweep]
services = ["silo-cosmos"]
rps = [2000]
threads = [16]
cores = [6, 8, 16]
ways = [2, 11]
memory = ["none", "60%..110% step 25%"]
pool = ["0%", "40%"]
[sampling]
interval_ms = 1000
samples = 3
"#;

/// All samples, in the order of the shards.
fn batches(out: &Path) -> Vec<arrow_array::RecordBatch> {
    let read = |name: &String| {
        let file = fs::File::open(out.join("shards").join(name)).unwrap();
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect()
    };
    shards(out).keys().flat_map(|name| -> Vec<_> { read(name) }).collect()
}

/// Limits on memory are an axis: rows say what was asked for, what was in force and what came of it. Less memory is never faster, and a pool
/// helps a service that has too little. Every strategy, cut off, comes to the same end.
#[test]
fn limits_on_memory() {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};
    use arrow_array::Array;
    const GIB: f64 = (1u64 << 30) as f64;
    let dir = tempfile::tempdir().unwrap();
    let server = ["--server", "virtual:cosmos-server"];
    for strategy in ["exhaustive", "frontier", "random"] {
        let more = if strategy == "random" { "[random]\ncells = 30\n" } else { "" };
        let (file, out) = (campaign(dir.path(), &format!("strategy = \"{strategy}\"{MEMORY}{more}")), dir.path().join(strategy));
        let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), server[0], server[1], "--plan", "--json"])).unwrap();
        // 3 cores x 2 ways, without a limit and under three of them with two pools each.
        assert_eq!(plan["cases"], if strategy == "random" { 30 } else { 42 });
        assert!(ok(&["sweep", path(&file), server[0], server[1], "--plan"]).contains("to measure"));
        ok(&["sweep", path(&file), server[0], server[1], "--out", path(&out)]);
        if strategy != "frontier" {
            add_up(&out);
        }
        let (want, whole) = (shards(&out), fs::read(out.join("journal.jsonl")).unwrap());
        fs::write(out.join("journal.jsonl"), &whole[..whole.len() / 2]).unwrap();
        ok(&["sweep", path(&file), server[0], server[1], "--resume", "--out", path(&out)]);
        assert!(shards(&out) == want, "{strategy}");
    }
    let mut p99: BTreeMap<(u64, u64, u64), f64> = BTreeMap::new();
    for batch in batches(&dir.path().join("exhaustive")) {
        let bytes = |name: &str, i: usize| {
            let column = batch.column_by_name(name).unwrap().as_primitive::<Int64Type>();
            column.is_valid(i).then(|| column.value(i) as f64)
        };
        let number = |name: &str, i: usize| {
            let column = batch.column_by_name(name).unwrap().as_primitive::<Float64Type>();
            column.is_valid(i).then(|| column.value(i))
        };
        for i in 0..batch.num_rows() {
            let (limit, pool) = (bytes("mem_limit_bytes", i), bytes("zswap_max_bytes", i));
            assert_eq!((bytes("mem_limit_in_force_bytes", i), bytes("zswap_max_in_force_bytes", i)), (limit, pool));
            let (in_use, swapped) = (number("memory_in_use_bytes", i).unwrap(), number("memory_swapped_bytes", i).unwrap());
            let roomy = limit.is_none_or(|l| l > 45.2 * GIB);
            assert!(limit.is_none_or(|l| in_use <= l + 4096.0) && (swapped == 0.0) == roomy, "{limit:?} {in_use} {swapped}");
            assert_eq!(batch.column_by_name("memory_binds").unwrap().as_boolean().value(i), !roomy);
            assert!((number("memory_footprint_bytes", i).unwrap() / GIB - 45.2).abs() < 0.01);
            let ratio = number("memory_compression_ratio", i);
            assert_eq!(ratio.is_some(), !roomy && pool.unwrap() > 0.0);
            assert!(ratio.is_none_or(|r| (r - 1.9).abs() < 1e-3), "{ratio:?}");
            assert_eq!(
                number("memory_disk_swap_ins_per_s", i).unwrap() > 1.0,
                !roomy && (pool == Some(0.0) || limit.unwrap() < 30.0 * GIB)
            );
            let key = |b: Option<f64>| (b.unwrap_or(1e3 * GIB) / GIB) as u64;
            let at = (number("alloc_cores", i).unwrap() as u64, key(limit), key(pool));
            if number("alloc_ways", i) == Some(11.0) {
                p99.insert(at, number("latency_p99_ms", i).unwrap_or(f64::INFINITY));
            }
        }
    }
    let at = |cores: u64, limit_gib: u64, pool_gib: u64| p99[&(cores, limit_gib, pool_gib)];
    for cores in [8, 16] {
        // 27.1 and 38.4 GiB of 45.2, without a pool and with 40 %.
        assert!(at(cores, 27, 0) >= 0.9 * at(cores, 38, 0) && at(cores, 38, 0) > 0.75 * at(cores, 49, 0), "less is faster: {p99:?}");
        assert!(at(cores, 27, 0) > at(cores, 27, 10) && at(cores, 38, 0) > at(cores, 38, 15), "a pool helps: {p99:?}");
        assert!((at(cores, 49, 0) / at(cores, 1000, 1000) - 1.0).abs() < 0.25, "room that is not needed: {p99:?}");
    }
}

/// A campaign without limits has the columns, the description and the shards that it had before there was such an axis; what a limit cannot
/// be set for is told before anything is written.
#[test]
fn without_limits_on_memory_all_is_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let plain = MEMORY.replace("memory = [\"none\", \"60%..110% step 25%\"]\npool = [\"0%\", \"40%\"]\n", "");
    let (file, out) = (campaign(dir.path(), &plain), dir.path().join("plain"));
    ok(&["sweep", path(&file), "--server", "virtual:cosmos-server", "--out", path(&out)]);
    let all = batches(&out);
    assert!(all[0].schema().fields().iter().all(|f| !f.name().starts_with("mem") && !f.name().starts_with("zswap")));
    let keys: Vec<String> = manifest(&out)["spec"]["sweep"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["cores", "mba_pct", "neighbours", "rps", "services", "threads", "ways"]);
    // The same cases with the axis: same ids, same numbers, more columns.
    let with = campaign(dir.path(), &plain.replace("ways = [2, 11]", "ways = [2, 11]\nmemory = \"none\""));
    let other = dir.path().join("none");
    ok(&["sweep", path(&with), "--server", "virtual:cosmos-server", "--out", path(&other)]);
    assert_ne!(manifest(&out)["campaign_hash"], manifest(&other)["campaign_hash"]);
    for (a, b) in all.iter().zip(batches(&other)) {
        for (i, field) in a.schema().fields().iter().enumerate() {
            assert_eq!(a.column(i), b.column_by_name(field.name()).unwrap(), "{}", field.name());
        }
    }
    for (server, services, axis, says) in [
        ("server-1", "moses", "memory = \"80%\"", "sweep.memory: the profile of \"moses\" does not say how it pages"),
        ("cosmos-server", "silo-cosmos", "memory = \"140%\"", "sweep.memory: 140% of \"silo-cosmos\", 63."),
        ("cosmos-server", "silo-cosmos", "memory = 400", "sweep.memory"),
        ("cosmos-server", "silo-cosmos", "pool = \"10%\"", "sweep.pool: is a part of a limit on memory"),
    ] {
        let text = plain.replace("cosmos-server", server).replace("silo-cosmos", services).replace("ways = [2, 11]", axis);
        let file = campaign(dir.path(), &text);
        let nowhere = dir.path().join("nowhere");
        let (code, said) = one_line(&run(&["sweep", path(&file), "--server", &format!("virtual:{server}"), "--out", path(&nowhere)]));
        assert!(code == 2 && said.contains("campaign.toml:") && said.contains(says) && !nowhere.exists(), "{said}");
    }
}

/// Service and numbers of each row; None: there is no such column.
fn rows(out: &Path, columns: &[&str]) -> Option<Vec<(String, Vec<f64>)>> {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Float64Type;
    let mut all = vec![];
    for (name, _) in shards(out) {
        let file = fs::File::open(out.join("shards").join(name)).unwrap();
        for batch in parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap() {
            let batch = batch.unwrap();
            let numbers: Option<Vec<_>> = columns.iter().map(|c| batch.column_by_name(c).cloned()).collect();
            let (numbers, services) = (numbers?, batch.column_by_name("service").unwrap().as_string::<i32>().clone());
            all.extend((0..batch.num_rows()).map(|i| {
                let row = numbers.iter().map(|n| n.as_primitive::<Float64Type>().value(i)).collect();
                (services.value(i).to_string(), row)
            }));
        }
    }
    Some(all)
}

/// What a plan says of the disk is what the sweep then takes, within a fifth: the samples in them decide, not the footers.
#[test]
fn planned_size_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let plan: Value = serde_json::from_str(&ok(&["sweep", path(&file), "--server", "virtual:server-1", "--plan", "--json"])).unwrap();
    let out = dir.path().join("out");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
    let took: usize = shards(&out).values().map(Vec::len).sum();
    let ratio = plan["estimated_disk_bytes"].as_f64().unwrap() / took as f64;
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    assert_eq!(plan["rows"], manifest(&out)["shards"].as_array().unwrap().iter().map(|s| s["rows"].as_u64().unwrap()).sum::<u64>());
}

/// kill -9 at five moments, each followed by a resume that is killed as well, then one that may finish, on one and two
/// threads in turn: the shards are those of an undisturbed run to the last bit, no case is lost, none is there twice.
#[test]
fn killed_and_resumed_equals_undisturbed() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let server = ["--server", "virtual:server-1", "--threads", "1"];
    let whole = dir.path().join("whole");
    ok(&[&["sweep", path(&file)], &server[..], &["--out", path(&whole)]].concat());
    let want = shards(&whole);
    assert!(want.len() >= 8, "{} shards are too few to be hit between", want.len());

    let out = dir.path().join("killed");
    // SplitMix64 of a fixed seed: the moments, as bytes that the folder has grown to.
    let mut state = 0x5EED_u64;
    let mut random = |below: u64| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    };
    let size = |dir: &Path| -> u64 {
        let files =
            |d: PathBuf| fs::read_dir(d).into_iter().flatten().flatten().filter_map(|e| Some(e.metadata().ok()?.len())).sum::<u64>();
        files(dir.join("shards")) + files(dir.to_path_buf())
    };
    let total = size(&whole);
    let (mut killed, mut rounds) = (0u64, 0);
    while killed < 5 {
        rounds += 1;
        assert!(rounds <= 40, "only {killed} of 40 runs were still going when their moment came");
        let mut args = vec!["sweep", path(&file), "--out", path(&out)];
        args.extend(["--server", "virtual:server-1", "--threads", ["1", "2"][rounds % 2]]);
        if out.exists() {
            args.push("--resume");
        }
        let mut child = surefootd().args(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // A moment within the round's fifth of the work, so that every kill leaves something to do.
        let moment = total * killed / 5 + random(total / 6);
        let deadline = Instant::now() + Duration::from_secs(120);
        while size(&out) < moment && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the sweep does not get on");
            std::thread::yield_now();
        }
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        if child.wait().unwrap().signal() == Some(libc::SIGKILL) {
            killed += 1;
        } else {
            // It was through first: that must be right too, and the next moment is drawn on a fresh folder.
            assert_eq!(shards(&out), want);
            fs::remove_dir_all(&out).unwrap();
        }
    }
    ok(&[&["sweep", path(&file), "--resume", "--out", path(&out)], &server[..]].concat());
    assert_eq!(shards(&out), want);
    assert_eq!(journal(&out), journal(&whole));
    assert_eq!(manifest(&out)["cases"], manifest(&whole)["cases"]);
    assert_eq!(manifest(&out)["shards"], manifest(&whole)["shards"]);
    add_up(&out);
}

fn finished(dir: &Path) -> (PathBuf, PathBuf) {
    let file = campaign(dir, &small());
    let out = dir.join("out");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]);
    (file, out)
}

fn resume(file: &Path, out: &Path) -> std::process::Output {
    run(&["sweep", path(file), "--server", "virtual:server-1", "--out", path(out), "--resume"])
}

/// What one edition of the virtual server measured does not go on with another.
#[test]
fn another_plant_is_another_campaign() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let mut of_old = manifest(&out);
    assert!(of_old["sources"]["virtual server"].is_string(), "{}", of_old["sources"]);
    (of_old["sources"]["virtual server"], of_old["campaign_hash"]) = ("0".repeat(64).into(), "0".repeat(64).into());
    fs::write(out.join("manifest.json"), of_old.to_string()).unwrap();
    let (code, says) = one_line(&resume(&file, &out));
    assert!(code == 2 && says.contains("changed: edition of the virtual server. Put that back, or use another --out"), "{says}");
}

/// A journal that a crash cut in the middle of a line is trimmed, and the sweep goes on to the same result.
#[test]
fn torn_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let (want, lines) = (shards(&out), journal(&out));
    let path = out.join("journal.jsonl");
    let text = fs::read(&path).unwrap();
    for cut in [1, 40, text.len() / 2, text.len()] {
        fs::write(&path, &text[..text.len() - cut]).unwrap();
        assert!(resume(&file, &out).status.success());
        assert_eq!((shards(&out), journal(&out)), (want.clone(), lines.clone()), "{cut} bytes cut");
    }
}

/// Temporary files and shards that no journal line vouches for go away.
#[test]
fn orphans_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let want = shards(&out);
    fs::write(out.join("shards/part-00099.parquet"), b"x").unwrap();
    fs::write(out.join("shards/part-00000.parquet.tmp"), b"x").unwrap();
    fs::write(out.join("manifest.json.tmp"), b"x").unwrap();
    assert!(resume(&file, &out).status.success());
    assert_eq!(shards(&out), want);
    assert!(!out.join("manifest.json.tmp").exists());
}

/// A truncated shard is named with its remedy, and the remedy works.
#[test]
fn truncated_shard() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let want = shards(&out);
    let shard = out.join("shards/part-00000.parquet");
    fs::write(&shard, &want["part-00000.parquet"][..1000]).unwrap();
    let (code, says) = one_line(&resume(&file, &out));
    assert_eq!(code, 2);
    assert!(says.contains("part-00000.parquet") && says.contains("sha256") && says.contains("Remove that file"), "{says}");
    fs::remove_file(&shard).unwrap();
    assert!(resume(&file, &out).status.success());
    assert_eq!(shards(&out), want);
    add_up(&out);
}

/// Several shards that were removed are measured again, all in one resume.
#[test]
fn removed_shards() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let want = shards(&out);
    assert!(want.len() >= 2);
    for name in want.keys().step_by(2) {
        fs::remove_file(out.join("shards").join(name)).unwrap();
    }
    assert!(resume(&file, &out).status.success());
    assert_eq!(shards(&out), want);
    add_up(&out);
    // And once more: what the first resume left is whole.
    assert!(resume(&file, &out).status.success());
    assert_eq!(shards(&out), want);
}

/// A manifest that is no JSON, or of another version, or gone, is named with its remedy; nothing is changed.
#[test]
fn corrupt_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let path = out.join("manifest.json");
    let good = fs::read_to_string(&path).unwrap();
    let want = shards(&out);
    let version = good.replace("\"schema_version\": 1", "\"schema_version\": 9");
    for (bad, word) in [(&good[..100], "corrupt manifest"), (&version, "schema_version"), ("{}", "missing field"), ("", "corrupt manifest")]
    {
        fs::write(&path, bad).unwrap();
        let (code, says) = one_line(&resume(&file, &out));
        assert_eq!(code, 2);
        assert!(says.contains("manifest.json") && says.contains(word), "{says}");
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
    fs::remove_file(&path).unwrap();
    let (code, says) = one_line(&resume(&file, &out));
    assert!(code == 2 && says.contains("manifest.json: is missing"), "{says}");
    assert_eq!(shards(&out), want);
}

/// A started folder is not overwritten without --resume, and not continued with another campaign.
#[test]
fn started_folder_and_drift() {
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let (code, says) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]));
    assert!(code == 2 && says.contains("--resume"), "{says}");
    fs::write(&file, small().replace("seed = 7", "seed = 8")).unwrap();
    let (code, says) = one_line(&resume(&file, &out));
    assert!(code == 2 && says.contains("changed: seed (was 7, is 8)"), "{says}");
}

/// A sweep does not go on with files that are links (DVC makes them, to its cache): it says so in one line, and writes nothing.
#[test]
fn nothing_is_written_through_links() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (file, out) = finished(dir.path());
    let journal = fs::read(out.join("journal.jsonl")).unwrap();
    // As a kill leaves it: there is something to go on with.
    fs::write(out.join("journal.jsonl"), &journal[..journal.len() / 2]).unwrap();
    let cache = dir.path().join("cache");
    fs::create_dir(&cache).unwrap();
    let ways: [fn(&Path, &Path) -> std::io::Result<()>; 2] = [|a, b| symlink(a, b), |a, b| fs::hard_link(a, b)];
    for name in ["journal.jsonl", "manifest.json", "shards/part-00000.parquet"] {
        for link in ways {
            let (at, kept) = (out.join(name), cache.join("object"));
            let bytes = fs::read(&at).unwrap();
            fs::rename(&at, &kept).unwrap();
            link(&kept, &at).unwrap();
            let (code, says) = one_line(&resume(&file, &out));
            assert!(code == 2 && says.contains(name) && says.contains("dvc unprotect"), "{name}: {says}");
            assert_eq!(fs::read(&kept).unwrap(), bytes, "{name}");
            fs::remove_file(&at).unwrap();
            fs::rename(&kept, &at).unwrap();
        }
    }
    assert!(resume(&file, &out).status.success());
    add_up(&out);
}

/// A folder with anything that no sweep left stays as it is, with --resume too; what a kill before the manifest left is gone on with.
#[test]
fn a_folder_of_others_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), &small());
    let out = dir.path().join("out");
    for theirs in ["node.toml", "shards/part-00000.parquet", "shards/notes", ".lock.bak"] {
        let at = out.join(theirs);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, "mine").unwrap();
        for more in [&[][..], &["--resume"]] {
            let args = ["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)];
            let (code, says) = one_line(&run(&[&args, more].concat()));
            assert!(code == 2 && says.contains("is not empty and holds no campaign. Give another folder"), "{theirs} {more:?}: {says}");
            assert_eq!(fs::read_to_string(&at).unwrap(), "mine");
            assert!(!out.join(".lock").exists() && !out.join("manifest.json").exists());
        }
        fs::remove_dir_all(&out).unwrap();
    }
    fs::create_dir_all(out.join("shards")).unwrap();
    fs::write(out.join(".lock"), "1").unwrap();
    fs::write(out.join("journal.jsonl"), "").unwrap();
    fs::write(out.join("manifest.json.tmp"), "{").unwrap();
    assert!(resume(&file, &out).status.success());
    add_up(&out);
}

/// A second sweep on the same folder is refused with the pid of the first.
/// Two hosts share a campaign: same hash, other cases; neither goes on with the other's folder.
#[test]
fn parts_of_a_campaign() {
    let dir = tempfile::tempdir().unwrap();
    let text = small().replace("virtual = [\"server-1\"]", "hosts = \"lab\"\nserver = \"virtual:server-1\"");
    let file = campaign(dir.path(), &text);
    let outs: Vec<PathBuf> = ["whole", "one", "two"].iter().map(|n| dir.path().join(n)).collect();
    let sweep = |out| vec!["sweep", path(&file), "--server", "virtual:server-1", "--out", path(out)];
    ok(&sweep(&outs[0]));
    ok(&[sweep(&outs[1]), vec!["--part", "1/2"]].concat());
    ok(&[sweep(&outs[2]), vec!["--part", "2/2"]].concat());
    outs.iter().for_each(|o| add_up(o));
    let ids = |out: &Path| journal(out).iter().map(|l| l["case_id"].to_string()).collect::<Vec<_>>();
    assert_eq!([ids(&outs[1]), ids(&outs[2])].concat(), ids(&outs[0]));
    assert_eq!(manifest(&outs[1])["campaign_hash"], manifest(&outs[0])["campaign_hash"]);
    assert_eq!(manifest(&outs[2])["part"], serde_json::json!({ "number": 2, "of": 2 }));
    let (code, text) = one_line(&run(&[sweep(&outs[1]), vec!["--part", "2/2", "--resume"]].concat()));
    assert!(code == 2 && text.contains("part (was 1/2, is 2/2)"), "{code} {text}");
    let (code, text) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-2", "--plan"]));
    assert!(code == 2 && text.contains("does not name \"server-2\""), "{code} {text}");
}

#[test]
fn one_sweep_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), &small());
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let lock = fs::File::create(out.join(".lock")).unwrap();
    let _held = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusiveNonblock).map_err(|e| e.1).unwrap();
    fs::write(out.join(".lock"), "4711").unwrap();
    let (code, says) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]));
    assert!(code == 1 && says.contains("pid 4711"), "{says}");
}

/// A mount that is gone when the test is.
struct Tmpfs(PathBuf);

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = nix::mount::umount(&self.0);
    }
}

/// On a full disk the sweep says so and ends with 1; with more room, resume ends as an undisturbed run does.
#[test]
fn disk_full() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), CAMPAIGN);
    let at = dir.path().join("disk");
    fs::create_dir(&at).unwrap();
    let mount = |flags, size| nix::mount::mount(Some("tmpfs"), &at, Some("tmpfs"), flags, Some(size));
    mount(nix::mount::MsFlags::empty(), "size=256k").expect("this test mounts a small tmpfs: run it as root (CAP_SYS_ADMIN)");
    let _mounted = Tmpfs(at.clone());
    let out = at.join("out");
    let (code, says) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]));
    assert!(code == 1 && says.contains("disk is full") && says.contains("--resume"), "{says}");
    for name in shards(&out).keys() {
        assert!(!name.ends_with(".tmp"), "{name} is half-written");
    }
    mount(nix::mount::MsFlags::MS_REMOUNT, "size=256m").unwrap();
    let again = resume(&file, &out);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    add_up(&out);
    let whole = dir.path().join("whole");
    ok(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&whole)]);
    assert_eq!(shards(&out), shards(&whole));
}

/// Each kind of bad input: exit code 2, one line, the file, the field and the remedy; nothing is written.
#[test]
fn bad_input() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("\"moses\"", "\"mosess\"", "sweep.services", "Did you mean \"moses\"?"),
        ("\"moses\"", "\"stream\"", "sweep.services", "BE job"),
        ("rps = \"catalogue\"", "rps = [100, -5]", "sweep.rps", "above 0"),
        ("rps = \"catalogue\"", "rps = [0]", "sweep.rps", "above 0"),
        ("rps = \"catalogue\"", "rps = [nan]", "sweep.rps", "finite"),
        ("rps = \"catalogue\"", "rps = \"saturation:0\"", "sweep.rps", "at most 200 %"),
        ("rps = \"catalogue\"", "rps = \"saturation:201\"", "sweep.rps", "at most 200 %"),
        ("rps = \"catalogue\"", "rps = \"saturation:\"", "sweep.rps", "saturation:20,40,60,80,100"),
        ("rps = \"catalogue\"", "rps = \"saturation:20,40,20\"", "sweep.rps", "stands there twice"),
        ("1..36", "1..40", "sweep.cores", "the 36 cores of server-1"),
        ("\"1..36\"", "[0]", "sweep.cores", "Start at 1"),
        ("\"1..36\"", "[1.5]", "sweep.cores", "multiple"),
        ("1..20", "1..21", "sweep.ways", "1 to 20 ways"),
        ("1..20", "20..1", "sweep.ways", "smaller bound first"),
        ("1..20", "some", "sweep.ways", "1..36"),
        ("threads = [16]", "threads = [0]", "sweep.threads", "1 to 4096"),
        ("threads = [16]", "threads = [16, 16]", "sweep.threads", "twice"),
        ("threads = [16]", "mba_pct = [50]", "sweep.mba_pct", "no MBA"),
        ("draws = 2", "draws = 0", "sweep.neighbours.draws", "1 to 10000"),
        ("samples = 20", "samples = 0", "sampling.samples", "1 to 100000"),
        ("samples = 20", "sample = 20", "sampling.sample", "Did you mean \"samples\"?"),
        ("seed = 7", "seed = -7", "seed", "from 0"),
        ("\"exhaustive\"", "\"random\"", "random", "cells = 5000"),
        ("samples = 20", "samples = 20\n[random]\ncells = 5", "random", "for strategy = \"random\" only"),
        ("exhaustive", "clever", "strategy", "exhaustive"),
        ("exhaustive", "exhaustiev", "strategy", "Did you mean \"exhaustive\"?"),
        ("\"server-1\"", "\"server-2\"", "targets.virtual", "does not name \"server-1\""),
        ("name = \"test\"", "", "name", "missing field"),
        ("name = \"test\"", "name = \"a/b\"", "name", "letters, digits"),
        ("[sampling]", "[sampling", "]", "Mend that line"),
    ];
    for (from, to, field, remedy) in cases {
        assert!(CAMPAIGN.contains(from), "{from}");
        let file = campaign(dir.path(), &CAMPAIGN.replacen(from, to, 1));
        let out = dir.path().join("out");
        let (code, says) = one_line(&run(&["sweep", path(&file), "--server", "virtual:server-1", "--out", path(&out)]));
        assert_eq!(code, 2, "{says}");
        assert!(says.contains("campaign.toml") && says.contains(field) && says.contains(remedy), "{to}: {says}");
        assert!(!out.exists(), "{to}: something was written");
    }
    let file = campaign(dir.path(), CAMPAIGN);
    for (server, word) in
        [("virtual:server-9", "Did you mean"), ("virtual:none.toml", "no such platform file"), ("cloud", "virtual:PLATFORM")]
    {
        let (code, says) = one_line(&run(&["sweep", path(&file), "--server", server, "--plan"]));
        assert!(code == 2 && says.contains(server.trim_start_matches("virtual:")) && says.contains(word), "{says}");
    }
    let (code, says) = one_line(&run(&["sweep", "/nowhere/c.toml", "--server", "virtual:server-1", "--plan"]));
    assert!(code == 2 && says.contains("/nowhere/c.toml"), "{says}");
}

/// Progress for programs: JSON lines on stderr, from 0 to all.
#[test]
fn progress_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), &small());
    let out = run(&["sweep", path(&file), "--server", "virtual:server-1", "--progress", "json", "--out", path(&dir.path().join("out"))]);
    assert!(out.status.success());
    let text = String::from_utf8(out.stderr).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((&lines[0]["event"], &lines[0]["done"]), (&Value::from("start"), &Value::from(0)));
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["done"]), (&Value::from("end"), &last["planned"]));
}

/// A sweep ends when its parent does (the lab's process that was killed leaves nobody behind).
#[test]
fn dies_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let text = CAMPAIGN.replace("samples = 20", "samples = 20\nrepeats = 200");
    let file = campaign(dir.path(), &text);
    let out = dir.path().join("out");
    // The shell starts the sweep, writes its pid and ends at once.
    let script = format!(
        "'{}' sweep '{}' --server virtual:server-1 --threads 1 --out '{}' --die-with-parent >/dev/null 2>&1 & echo $!; while ! [ -e '{}/journal.jsonl' ]; do :; done",
        env!("CARGO_BIN_EXE_surefootd"),
        path(&file),
        path(&out),
        path(&out)
    );
    let shell = std::process::Command::new("sh").arg("-c").arg(script).current_dir(common::root()).output().unwrap();
    let pid: i32 = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let gone = |pid: i32| match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        // Ended, and nobody has collected it yet.
        Ok(s) => s.rsplit(')').next().is_some_and(|s| s.trim_start().starts_with('Z')),
    };
    while !gone(pid) {
        assert!(Instant::now() < deadline, "the sweep outlives its parent");
        std::thread::sleep(Duration::from_millis(5));
    }
    let m = manifest(&out);
    assert_eq!(m["complete"], false);
}

const LOCAL: &str = r#"
name = "local"
[targets]
local = true
[sweep]
services = ["memcached"]
rps = [500]
cores = "all"
[sampling]
samples = 5
"#;

/// Cases of this machine are planned without an engine; core steps and errors are those of this machine.
#[test]
fn local_plan() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |text: &str| run(&["sweep", path(&campaign(dir.path(), text)), "--server", "local", "--cpus", "0", "--plan", "--json"]);
    let done = plan(LOCAL);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let v: Value = serde_json::from_slice(&done.stdout).unwrap();
    // One managed CPU: one case in steps of a core, ten in steps of a tenth.
    assert!(v["cases"] == 1 || v["cases"] == 10, "{v}");
    for (from, to, field, remedy) in [
        ("\"memcached\"", "\"memcachd\"", "sweep.services", "Did you mean \"memcached\"?"),
        ("\"memcached\"", "\"stream\"", "sweep.services", "BE job"),
        ("\"all\"", "[2]", "sweep.cores", "the 1 cores of local"),
        ("\"all\"", "[0.15]", "sweep.cores", "0.1"),
        ("local = true", "virtual = [\"server-1\"]", "targets", "local = true"),
    ] {
        let (code, says) = one_line(&plan(&LOCAL.replacen(from, to, 1)));
        if field == "sweep.cores" && v["cases"] == 1 && to == "[0.15]" {
            assert_eq!(code, 2, "{says}");
            continue;
        }
        assert!(code == 2 && says.contains(field) && says.contains(remedy), "{says}");
    }
    let (code, says) = one_line(&run(&["sweep", path(&campaign(dir.path(), LOCAL)), "--server", "local", "--cpus", "9999", "--plan"]));
    assert!(code == 2 && says.contains("9999"), "{says}");
}

/// Without a container engine or a load generator a local sweep says which is missing and how to get it; nothing is written.
#[test]
fn local_without_engine() {
    let dir = tempfile::tempdir().unwrap();
    let file = campaign(dir.path(), LOCAL);
    let (out, state) = (dir.path().join("out"), dir.path().join("state"));
    let mut sweep = surefootd();
    sweep.args(["sweep", path(&file), "--server", "local", "--out", path(&out), "--state", path(&state)]);
    sweep.env("SUREFOOT_ENGINE", "/nowhere/docker").env("PATH", "/nowhere").env("SUREFOOT_LOADGEN", env!("CARGO_BIN_EXE_surefootd"));
    let (code, says) = one_line(&sweep.output().unwrap());
    assert!(code == 1 && says.contains("/nowhere/docker"), "{says}");
    sweep.env("SUREFOOT_LOADGEN", "/nowhere/loadgen");
    let (code, says) = one_line(&sweep.output().unwrap());
    assert!(code == 1 && says.contains("/nowhere/loadgen") && says.contains("the package has both"), "{says}");
    assert!(!out.exists());
}
