//! `surefootd eval` that is cut off: what was finished is kept, and the same command goes on.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::{ok, one_line, path, run, surefootd};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const JOURNAL: &str = "eval.partial.jsonl";
const WORKLOAD: &str = r#"
duration_s = 120
[[lc]]
service = "moses"
load = 0.5
[[lc]]
service = "img-dnn"
load = 0.6
arrive_s = 2
[[be]]
job = "blackscholes"
"#;

struct Scene {
    dir: tempfile::TempDir,
    workload: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let workload = dir.path().join("w.toml");
        fs::write(&workload, WORKLOAD).unwrap();
        Scene { dir, workload }
    }

    fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args<'a>(&'a self, out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
        let all = ["eval", "--workloads", path(&self.workload), "--platform", "server-1", "--threads", "1", "--out", path(out)];
        let usual = ["--policies", "unmanaged,parties-be", "--seeds", "12", "--timelines", "all"];
        let given = |option: &str| more.contains(&option);
        let usual = usual.chunks(2).filter(|o| !given(o[0])).flatten().copied();
        all.into_iter().chain(usual).chain(more.iter().copied()).collect()
    }

    /// Start it without word of its progress, and send a signal once two cases are kept.
    fn cut_off(&self, out: &Path, signal: Signal) -> Output {
        self.cut_off_with(out, signal, &[])
    }

    fn cut_off_with(&self, out: &Path, signal: Signal, more: &[&str]) -> Output {
        let args = self.args(out, &[&["--progress", "none"], more].concat()).into_iter().map(String::from).collect::<Vec<_>>();
        let child = surefootd().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while lines(out) < 3 {
            assert!(Instant::now() < deadline, "two cases within a minute");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// Whole lines of the journal.
fn lines(out: &Path) -> usize {
    fs::read(out.join(JOURNAL)).map_or(0, |text| text.iter().filter(|b| **b == b'\n').count())
}

/// What must be equal however often it was cut off: all but the times of decisions. No cell before them is quoted.
fn results(out: &Path) -> (Vec<String>, Vec<u8>) {
    let text = fs::read_to_string(out.join("rows.csv")).unwrap();
    let names: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let measured: Vec<usize> = (0..names.len()).filter(|i| names[*i].starts_with("decision_us")).collect();
    assert_eq!(measured.len(), 2);
    let without = |l: &str| l.split(',').enumerate().filter(|(i, _)| !measured.contains(i)).map(|(_, c)| c).collect::<Vec<_>>().join(",");
    (text.lines().map(without).collect(), fs::read(out.join("timelines.parquet")).unwrap())
}

/// Killed, interrupted and asked to end, with a torn last line: the same command takes what is there, and what comes of it in the end
/// is equal to the last bit.
#[test]
fn a_run_that_is_cut_off_goes_on() {
    let scene = Scene::new();
    let (whole, out) = (scene.out("whole"), scene.out("out"));
    ok(&scene.args(&whole, &[]));
    assert!(!whole.join(JOURNAL).exists());
    let killed = scene.cut_off(&out, Signal::SIGKILL);
    assert_eq!(killed.status.code(), None);
    let before = lines(&out);
    assert!((3..20).contains(&before) && !out.join("rows.csv").exists(), "{before}");
    OpenOptions::new().append(true).open(out.join(JOURNAL)).unwrap().write_all(b"{\"row\":{\"work").unwrap();
    let said = surefootd().env("SUREFOOT_LOG", "info").args(scene.args(&out, &["--json"])).output().unwrap();
    let first: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&first["runs"], &first["resumed"]), (&Value::from(24), &Value::from(before - 1)));
    let told = String::from_utf8(said.stderr).unwrap();
    assert!(told.contains(&format!("{} of 24 cases are taken from {}", before - 1, path(&out.join(JOURNAL)))), "{told}");
    assert_eq!(results(&out), results(&whole));
    assert!(!out.join(JOURNAL).exists());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // Rows of the run before are there, and are not taken for this one's.
        let (code, says) = one_line(&scene.cut_off_with(&out, signal, &["--overwrite"]));
        let kept =
            format!("{}: interrupted, {} of 24 cases are kept. Go on with the same command", path(&out.join(JOURNAL)), lines(&out) - 1);
        assert!(code == 1 && says.contains(&kept) && says.contains("rows.* there are still those of an older run"), "{says}");
        ok(&scene.args(&out, &[]));
        assert_eq!(results(&out), results(&whole));
    }
}

/// The same with loads that have shapes: what is run again has the course that it had.
#[test]
fn shaped_loads_go_on_as_they_were() {
    let scene = Scene::new();
    let shape = "load = 0.5\n[lc.bursts]\nlevels = [0.8, 1.6]\ndwell_s = [1.5, 0.5]\n[lc.drift]\npct_per_min = 10\nbound_pct = 20\n";
    fs::write(&scene.workload, WORKLOAD.replacen("load = 0.5\n", shape, 1)).unwrap();
    let (whole, out) = (scene.out("whole"), scene.out("out"));
    ok(&scene.args(&whole, &[]));
    scene.cut_off(&out, Signal::SIGKILL);
    assert!((3..20).contains(&lines(&out)));
    ok(&scene.args(&out, &[]));
    assert_eq!(results(&out), results(&whole));
}

/// What is left of one command is not mixed with another's, and not lost to it.
#[test]
fn another_command_is_refused() {
    let scene = Scene::new();
    let out = scene.out("out");
    scene.cut_off(&out, Signal::SIGKILL);
    let kept = fs::read(out.join(JOURNAL)).unwrap();
    let other = [
        ("--policies", "parties-be", "policies"),
        ("--seeds", "11", "seeds"),
        ("--harm", "no-counters", "harm"),
        ("--timelines", "none", "timelines"),
    ];
    for (option, value, differs) in other {
        let (code, says) = one_line(&run(&scene.args(&out, &[option, value])));
        assert!(code == 2 && says.contains(path(&out.join(JOURNAL))) && says.contains(&format!("other: {differs})")), "{says}");
        assert!(says.contains("its own command") && says.contains("another --out") && says.contains("remove this file"), "{says}");
    }
    fs::write(&scene.workload, WORKLOAD.replace("0.6", "0.5")).unwrap();
    let (code, says) = one_line(&run(&scene.args(&out, &[])));
    assert!(code == 2 && says.contains("other: workloads)"), "{says}");
    assert_eq!(fs::read(out.join(JOURNAL)).unwrap(), kept);
    // Damage is not a crash.
    fs::write(&scene.workload, WORKLOAD).unwrap();
    let damaged = String::from_utf8(kept).unwrap().replacen("{\"row\":", "{\"raw\":", 1);
    fs::write(out.join(JOURNAL), &damaged).unwrap();
    let (code, says) = one_line(&run(&scene.args(&out, &[])));
    assert!(code == 1 && says.contains("eval.partial.jsonl:2: ") && says.contains("damaged"), "{says}");
    assert_eq!(fs::read_to_string(out.join(JOURNAL)).unwrap(), damaged);
    // Where no case was kept there is nothing to lose.
    fs::write(out.join(JOURNAL), "{\"format\":1,\"policies\":[],\"surefootd\":\"0.0.1\"}\n").unwrap();
    ok(&scene.args(&out, &["--seeds", "1"]));
    assert!(!out.join(JOURNAL).exists());
    // What is no journal of eval's is somebody's, and stays.
    for foreign in ["{\"format\":1}\n", "no line", "{\"bundle\": precious}\n", "\n"] {
        fs::write(out.join(JOURNAL), foreign).unwrap();
        let (code, says) = one_line(&run(&scene.args(&out, &["--overwrite"])));
        assert!(code == 2 && says.contains("no journal of an eval, so it stays as it is"), "{foreign:?}: {says}");
        assert_eq!(fs::read_to_string(out.join(JOURNAL)).unwrap(), foreign);
    }
}

/// Results give way only when told; what an interrupted run was told to replace, the same command goes on replacing.
#[test]
fn results_give_way_when_told() {
    let scene = Scene::new();
    let out = scene.out("out");
    ok(&scene.args(&out, &["--seeds", "1"]));
    let rows = || fs::read(out.join("rows.csv")).unwrap();
    let before = rows();
    for (more, words) in [("1", "rows.parquet: is there already"), ("2", "eval.json: there are results of another eval")] {
        let (code, says) = one_line(&run(&scene.args(&out, &["--seeds", more])));
        assert!(code == 2 && says.contains("--out") && says.contains(words) && says.contains("Give --overwrite to replace that"), "{says}");
        assert!(rows() == before && !out.join(JOURNAL).exists());
    }
    // A result that is no plain file is not replaced by anybody.
    for (name, link) in [("rows.csv", true), ("eval.json", false)] {
        fs::remove_file(out.join(name)).unwrap();
        match link {
            true => std::os::unix::fs::symlink(&scene.workload, out.join(name)).unwrap(),
            false => nix::unistd::mkfifo(&out.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap(),
        }
        let (code, says) = one_line(&run(&scene.args(&out, &["--seeds", "1", "--overwrite"])));
        assert!(code == 2 && says.contains(name) && says.contains(if link { "is a link" } else { "is a FIFO" }), "{says}");
        fs::remove_file(out.join(name)).unwrap();
    }
    assert_eq!(fs::read_to_string(&scene.workload).unwrap(), WORKLOAD);
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("rows.csv"), "precious").unwrap();
    let (code, says) = one_line(&run(&scene.args(&out, &[])));
    assert!(code == 2 && says.contains("rows.csv: is there already"), "{says}");
    scene.cut_off_with(&out, Signal::SIGKILL, &["--overwrite"]);
    assert_eq!(fs::read_to_string(out.join("rows.csv")).unwrap(), "precious");
    ok(&scene.args(&out, &[]));
    assert_ne!(fs::read_to_string(out.join("rows.csv")).unwrap(), "precious");
}

/// Two at the same time into the same folder: the second is told.
#[test]
fn a_folder_in_use_is_refused() {
    let scene = Scene::new();
    let out = scene.out("out");
    fs::create_dir(&out).unwrap();
    let file = fs::File::create(out.join(JOURNAL)).unwrap();
    let _held = nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).map_err(|e| e.1).unwrap();
    let (code, says) = one_line(&run(&scene.args(&out, &[])));
    assert!(code == 1 && says.contains("another eval is writing there"), "{says}");
}

/// Beside its rows stands what was run, and when that was done; of a run of before nothing stays.
#[test]
fn what_was_run_is_recorded() {
    let scene = Scene::new();
    let out = scene.out("out");
    let table = ok(&scene.args(&out, &["--seeds", "1", "--harm", "no-counters"]));
    assert!(table.starts_with("--harm no-counters: policies were told untruths\nruns with seed 1:\n"), "{table}");
    let read = || -> Value { serde_json::from_slice(&fs::read(out.join("eval.json")).unwrap()).unwrap() };
    let misled = read();
    assert_eq!(
        (&misled["harm"], &misled["bundle"], &misled["surefootd"]),
        (&"no-counters".into(), &Value::Null, &env!("CARGO_PKG_VERSION").into())
    );
    assert_eq!((&misled["policies"], &misled["seeds"]), (&serde_json::json!(["unmanaged", "parties-be"]), &1.into()));
    assert_eq!((&misled["workloads"][0]["name"], &misled["workloads"][0]["duration_s"]), (&"w".into(), &120.0.into()));
    assert!(misled["workloads"][0]["sha256"].as_str().is_some_and(|s| s.len() == 64));
    assert!(misled["finished_utc"].as_str().is_some_and(|t| t.len() == 19));
    assert!(!fs::read_to_string(out.join("eval.json")).unwrap().contains(path(scene.dir.path())), "no paths of this machine");
    let said = |more: &[&str]| String::from_utf8(surefootd().args(scene.args(&out, more)).output().unwrap().stderr).unwrap();
    assert_eq!(said(&["--seeds", "1", "--harm", "no-counters", "--overwrite"]), "", "the same once more: nothing is lost");
    let replaced = said(&["--seeds", "1", "--timelines", "none", "--overwrite"]);
    let older =
        "eval.json: there are results of another eval (policies unmanaged, parties-be; 1 seed; --harm no-counters; other: harm, timelines)";
    assert!(replaced.contains("WARN") && replaced.contains(older) && replaced.lines().count() == 1, "{replaced}");
    let honest = read();
    assert_eq!((&honest["harm"], &honest["timelines"]), (&Value::Null, &"none".into()));
    assert!(!out.join("timelines.parquet").exists());
}
