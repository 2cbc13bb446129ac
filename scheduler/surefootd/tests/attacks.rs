//! What a lesser user could have put in the way of root: state folders, locks, sockets and outputs. Root neither follows, opens, empties
//! nor carries out any of it. The attacker is user nobody; the prize a file of root's.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod common;

use common::node::{may_run, mounted, Cgroup, Running, StandIn};
use common::{path, root, run};
use std::fs;
use std::os::unix::fs::{chown, symlink, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NOBODY: u32 = 65_534;
const PRECIOUS: &str = "root:x:0:0\n";

/// Root, or why not.
fn as_root(test: &str) -> bool {
    let is = nix::unistd::geteuid().is_root();
    if !is {
        eprintln!("NOT RUN: {test}: needs root: run the tests as root");
    }
    is
}

/// Followed by a configuration.
const RUN: [&str; 8] = ["run", "--policy", "unmanaged", "--server", "local", "--duration-s", "1", "--config"];

/// A folder of root's with a file worth attacking, a node.toml of root's, and a state folder of nobody's.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(scene.at("victim"), PRECIOUS).unwrap();
        fs::set_permissions(scene.at("victim"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(scene.at("state")).unwrap();
        scene.config("/no/such/group");
        scene.hand_over("state");
        scene
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, cgroup: &str) {
        let text =
            format!("metrics_port = 0\nstate_dir = \"state\"\n[[service]]\nservice = \"job\"\nkind = \"be\"\ncgroup = \"{cgroup}\"\n");
        fs::write(self.at("node.toml"), text).unwrap();
    }

    /// Of root's own: what a run of a second's configuration is, in the state folder `own`.
    fn own_config(&self) -> PathBuf {
        fs::create_dir(self.at("own")).unwrap();
        let text = fs::read_to_string(self.at("node.toml")).unwrap().replace("\"state\"", "\"own\"");
        fs::write(self.at("own.toml"), format!("cpus = \"0\"\n{text}")).unwrap();
        self.at("own.toml")
    }

    /// As nobody writes it.
    fn plant(&self, name: &str, text: &str) {
        fs::write(self.at("state").join(name), text).unwrap();
        self.hand_over(&format!("state/{name}"));
    }

    fn hand_over(&self, name: &str) {
        std::os::unix::fs::lchown(self.at(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }

    /// Root's `reset`, which must end within a minute; exit code and all that it said.
    fn reset(&self, more: &[&str]) -> (i32, String) {
        let state = self.at("state");
        self.said(&[&["reset", "--state", path(&state)], more].concat())
    }

    fn said(&self, args: &[&str]) -> (i32, String) {
        let out = limited(args).output().unwrap();
        let said = text(&out);
        assert_ne!(out.status.code(), Some(124), "{args:?} hangs: {said}");
        (out.status.code().expect("no signal"), said)
    }

    fn unharmed(&self, of: &str) {
        let m = fs::symlink_metadata(self.at("victim")).unwrap();
        assert_eq!((fs::read_to_string(self.at("victim")).unwrap().as_str(), m.mode() & 0o7777, m.uid()), (PRECIOUS, 0o644, 0), "{of}");
    }
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
}

/// The binary, killed after a minute (exit code 124).
fn limited(args: &[&str]) -> Command {
    let mut c = Command::new("timeout");
    c.args(["60", env!("CARGO_BIN_EXE_surefootd")]).args(args).current_dir(root()).env("SUREFOOT_LOG", "warn");
    c.env_remove("SUREFOOT_PROFILES");
    c
}

fn safe_json(ops: &[(&Path, &str)]) -> String {
    let ops: Vec<_> = ops.iter().map(|(path, text)| serde_json::json!({ "op": "write", "path": path, "text": text })).collect();
    serde_json::json!({ "version": 1, "ops": ops }).to_string()
}

fn touch(target: serde_json::Value, saved: serde_json::Value) -> String {
    serde_json::json!({ "event": "touch", "id": "job", "target": target, "saved": saved }).to_string() + "\n"
}

/// A safe layout in another user's folder is not carried out by root: not at all without a configuration, and with one of root's only what
/// that lets be changed.
#[test]
fn a_strangers_safe_layout_is_not_carried_out() {
    if !as_root("a_strangers_safe_layout_is_not_carried_out") {
        return;
    }
    let scene = Scene::new();
    let evil = "mallory:x:0:0\n";
    scene.plant("safe.json", &safe_json(&[(&scene.at("victim"), evil)]));
    let (code, said) = scene.reset(&["--safe"]);
    scene.unharmed("without a configuration");
    assert!(code == 2 && said.contains("belongs to user 65534") && said.contains("--config") && said.lines().count() == 1, "{said}");
    let config = scene.at("node.toml");
    let with = ["--safe", "--config", path(&config)];
    let (code, said) = scene.reset(&with);
    scene.unharmed("with a configuration");
    assert!(code == 1 && said.contains("1 of 1 writes were refused") && said.contains("not below a mount"), "{said}");
    // By way of a link, and of a path that climbs out of the mount.
    symlink(scene.at("victim"), scene.at("state/link")).unwrap();
    for name in ["/sys/fs/cgroup/../../..".into(), scene.at("state/link").display().to_string()] {
        let at = PathBuf::from(format!("{name}{}", if name.ends_with("link") { "" } else { path(&config).trim_end_matches("node.toml") }));
        scene.plant("safe.json", &safe_json(&[(&at.join("victim"), evil), (&at, evil)]));
        assert_eq!(scene.reset(&with).0, 1);
        scene.unharmed(&name);
    }
    // A configuration that the same user could have written says nothing; nor does one behind a link of that user's.
    scene.plant("node.toml", &fs::read_to_string(&config).unwrap());
    symlink(&config, scene.at("state/config")).unwrap();
    scene.hand_over("state/config");
    for theirs in ["state/node.toml", "state/config"] {
        let (code, said) = scene.reset(&["--safe", "--config", path(&scene.at(theirs))]);
        assert!(code == 2 && said.contains("so it cannot say what may be changed"), "{theirs}: {said}");
    }
    scene.unharmed("with a configuration of nobody's");
}

/// Whatever that user does with the names meanwhile: what root judged is what root reads.
#[test]
fn a_folder_that_comes_and_goes_is_not_carried_out() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if !as_root("a_folder_that_comes_and_goes_is_not_carried_out") {
        return;
    }
    let scene = Scene::new();
    let home = scene.at("home");
    fs::create_dir(&home).unwrap();
    scene.plant("safe.json", &safe_json(&[(&scene.at("victim"), "mallory:x:0:0\n")]));
    fs::rename(scene.at("state"), home.join("state")).unwrap();
    scene.hand_over("home");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(home.join("state"), home.join("x"));
                std::thread::yield_now();
                let _ = fs::rename(home.join("x"), home.join("state"));
                std::thread::yield_now();
            }
        });
        for n in 0..400 {
            let (_, said) = scene.said(&["reset", "--safe", "--state", path(&home.join("state"))]);
            if fs::read_to_string(scene.at("victim")).unwrap() != PRECIOUS {
                stop.store(true, Ordering::Relaxed);
                panic!("carried out at try {n}: {said}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    scene.unharmed("a folder that comes and goes");
}

/// The same by the journal: a cgroup that is a folder of the attacker's, whose files are links, named by climbing out of the mount; a
/// process and a container of the attacker's choice.
#[test]
fn a_strangers_journal_is_not_carried_out() {
    let Some(hierarchies) = may_run("a_strangers_journal_is_not_carried_out") else { return };
    let scene = Scene::new();
    let fake = scene.at("state/fake");
    fs::create_dir(&fake).unwrap();
    for file in ["cpuset.cpus", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares"] {
        symlink(scene.at("victim"), fake.join(file)).unwrap();
    }
    let climb = format!("/../../../..{}", fake.display());
    let other = Cgroup::new(&hierarchies, "stranger");
    let before = (other.cpus(), other.quota_us());
    let config = scene.at("node.toml");
    let cases = [
        (serde_json::json!({ "cgroup": climb }), serde_json::json!({ "cpus": "mallory:x:0:0" }), "has no \"..\" in its path"),
        (serde_json::json!({ "cgroup": format!("/{}", other.name) }), serde_json::json!({ "quota": "1000 10000" }), "is not on the list"),
        (serde_json::json!({ "pid": other.process.id() }), serde_json::json!({ "quota": "1000 10000" }), "is not on the list"),
    ];
    for (target, saved, words) in cases {
        for with in [&[][..], &["--config", path(&config)]] {
            scene.plant("journal.jsonl", &touch(target.clone(), saved.clone()));
            let (code, said) = scene.reset(with);
            scene.unharmed(&target.to_string());
            assert_eq!((other.cpus(), other.quota_us()), before, "{target}");
            let expected = if with.is_empty() { (2, "--config") } else { (code.clamp(1, 2), words) };
            assert!(code == expected.0 && said.contains(expected.1), "{target} {with:?}: {code} {said}");
        }
    }
}

/// Containers are a way to more rights as well: root asks no engine to change, read by an option's name or remove one on a stranger's word.
#[test]
fn no_container_is_touched_on_a_strangers_word() {
    let Some(hierarchies) = may_run("no_container_is_touched_on_a_strangers_word") else { return };
    let scene = Scene::new();
    let other = Cgroup::new(&hierarchies, "container");
    let before = (other.cpus(), other.quota_us());
    let (engine, calls) = (scene.at("engine"), scene.at("calls"));
    let inspected = format!("[{{\"Id\":\"c0ffee\",\"Name\":\"/v\",\"State\":{{\"Pid\":{},\"Running\":true}}}}]", other.process.id());
    let script = format!(
        "#!/bin/sh\necho \"$@\" >>{}\ncase \"$1 $4\" in\nversion*) echo 1 ;;\nps*) echo c0ffee ;;\n'inspect -f') echo '0-1|50000|100000|512' ;;\n\
         inspect*) echo '{inspected}' ;;\nesac\n",
        path(&calls)
    );
    fs::write(&engine, script).unwrap();
    fs::set_permissions(&engine, fs::Permissions::from_mode(0o755)).unwrap();
    let (state, config) = (scene.at("state"), scene.at("node.toml"));
    for name in ["c0ffee", "--help", "-f{{.}}"] {
        scene.plant("journal.jsonl", &touch(serde_json::json!({ "container": name }), serde_json::json!({ "quota": "1000 10000" })));
        let mut c = limited(&["reset", "--state", path(&state), "--config", path(&config)]);
        let out = c.env("SUREFOOT_ENGINE", path(&engine)).output().unwrap();
        let (said, called) = (text(&out), fs::read_to_string(&calls).unwrap());
        assert!(out.status.code() == Some(1), "{name}: {said}");
        assert!(said.contains("is left as it is") && said.contains("of what node.toml lets be changed"), "{name}: {said}");
        assert!(name == "c0ffee" || said.contains("no container has such a name"), "{name}: {said}");
        assert!(
            !called.lines().any(|l| l.starts_with("rm") || l.starts_with("update") || l.contains("--help") || l.contains("{{.}}")),
            "{called}"
        );
        assert_eq!((other.cpus(), other.quota_us()), before, "{name}");
    }
}

/// What root's configuration names is given back from another user's folder, beside what is refused; and the folder stays that user's.
#[test]
fn what_the_configuration_names_is_given_back() {
    let Some(hierarchies) = may_run("what_the_configuration_names_is_given_back") else { return };
    let scene = Scene::new();
    let cgroup = Cgroup::new(&hierarchies, "named");
    let shares = cgroup.dirs[1].join("cpu.shares");
    let config = scene.at("node.toml");
    scene.config(&format!("/{}", cgroup.name));
    scene.plant("safe.json", &safe_json(&[(&shares, "2"), (&scene.at("victim"), "x")]));
    let (code, said) = scene.reset(&["--safe", "--config", path(&config)]);
    assert!(code == 1 && said.contains("1 writes done") && said.contains("1 of 2 writes were refused"), "{said}");
    assert_eq!(fs::read_to_string(&shares).unwrap().trim(), "2");
    // The same where an actuator is configured that does not run: root has the rights itself, and the list is the same.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}[actuator]\nsocket = \"none.sock\"\nstate_dir = \"held\"\n")).unwrap();
    for config_text in [text.clone(), fs::read_to_string(&config).unwrap()] {
        fs::write(&config, config_text).unwrap();
        fs::write(&shares, "2").unwrap();
        scene.plant(
            "journal.jsonl",
            &touch(serde_json::json!({ "cgroup": format!("/{}", cgroup.name) }), serde_json::json!({ "weight": "1024" })),
        );
        let (code, said) = scene.reset(&["--config", path(&config)]);
        assert!(code == 0 && said.contains("restored: job"), "{code} {said}");
        assert_eq!(fs::read_to_string(&shares).unwrap().trim(), "1024");
    }
    for entry in fs::read_dir(scene.at("state")).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().uid(), NOBODY, "{:?}", entry.file_name());
    }
    scene.unharmed("beside what is named");
}

/// Every file of a state folder, in the place of which its owner put a link, a second name or a pipe: root follows none, empties none and
/// waits for none.
#[test]
fn no_file_of_a_state_folder_leads_elsewhere() {
    if !as_root("no_file_of_a_state_folder_leads_elsewhere") {
        return;
    }
    let scene = Scene::new();
    // Whatever is longer than this is written anew by whoever opens it.
    let long: String = std::iter::repeat_n("{\"event\":\"release\",\"id\":\"job\"}\n", 150_000).collect();
    let config = scene.at("node.toml");
    for name in ["lock", "safe.json", "journal.jsonl", "journal.new", "journal.jsonl.new"] {
        for kind in ["link", "hard link", "fifo"] {
            for args in [&["--safe", "--config", path(&config)][..], &["--config", path(&config)]] {
                let planted = scene.at("state").join(name);
                scene.plant("safe.json", "{\"version\":1,\"ops\":[]}");
                scene.plant("journal.jsonl", &long);
                // As a file is that a crash cut off: without the end of its line.
                fs::write(scene.at("victim"), PRECIOUS).unwrap();
                let _ = fs::remove_file(&planted);
                match kind {
                    "link" => symlink(scene.at("victim"), &planted).unwrap(),
                    "hard link" => fs::hard_link(scene.at("victim"), &planted).unwrap(),
                    _ => nix::unistd::mkfifo(&planted, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                }
                if kind != "hard link" {
                    scene.hand_over(&format!("state/{name}"));
                }
                let (code, said) = scene.reset(args);
                scene.unharmed(&format!("{name}: {kind} {args:?}: {said}"));
                assert!(code < 2 && said.lines().filter(|l| l.starts_with("surefootd: ")).count() < 2, "{name}: {kind}: {said}");
                let _ = fs::remove_file(&planted);
            }
        }
    }
}

/// Every output and journal that a command opens by its name: a link, a second name of another file and a pipe stay what they are.
#[test]
fn no_journal_of_decisions_leads_elsewhere() {
    if !as_root("no_journal_of_decisions_leads_elsewhere") {
        return;
    }
    let scene = Scene::new();
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let config = scene.at("virtual.toml");
    let text = format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\njournal = \"state/decisions.jsonl\"\n", path(&workload));
    fs::write(&config, text).unwrap();
    let args = ["run", "--policy", "unmanaged", "--server", "virtual:server-1", "--duration-s", "1", "--config", path(&config)];
    for name in ["decisions.jsonl", "decisions.jsonl.1"] {
        for kind in ["link", "hard link", "fifo"] {
            let planted = scene.at("state").join(name);
            match kind {
                "link" => symlink(scene.at("victim"), &planted).unwrap(),
                "hard link" => fs::hard_link(scene.at("victim"), &planted).unwrap(),
                _ => nix::unistd::mkfifo(&planted, nix::sys::stat::Mode::S_IRWXU).unwrap(),
            }
            let (code, said) = scene.said(&args);
            scene.unharmed(&format!("{name}: {kind}"));
            assert!(code == 2 && said.contains(name) && said.contains("Remove"), "{name}: {kind}: {code} {said}");
            fs::remove_file(&planted).unwrap();
            let _ = fs::remove_file(scene.at("state/decisions.jsonl"));
        }
    }
    let (code, said) = scene.said(&args);
    assert!(code == 0 && fs::metadata(scene.at("state/decisions.jsonl")).unwrap().uid() == NOBODY, "{said}");
}

/// A plain file or a link in the place of the latency socket is not taken away, and a state folder that somebody could exchange is not used.
#[test]
fn a_state_folder_is_what_it_seems() {
    if !as_root("a_state_folder_is_what_it_seems") {
        return;
    }
    let scene = Scene::new();
    let own = scene.own_config();
    let feed = scene.at("own/feed.sock");
    for link in [false, true] {
        match link {
            true => symlink(scene.at("victim"), &feed).unwrap(),
            false => fs::write(&feed, PRECIOUS).unwrap(),
        }
        let (code, said) = scene.said(&[&RUN[..], &[path(&own)]].concat());
        assert!(code == 1 && said.contains("feed.sock") && said.contains("is there and no socket"), "{said}");
        assert!(fs::symlink_metadata(&feed).is_ok_and(|m| !m.file_type().is_socket()) && fs::read_to_string(&feed).unwrap() == PRECIOUS);
        fs::remove_file(&feed).unwrap();
    }
    scene.unharmed("a link at feed.sock");
    // A link of nobody's to a state folder of root's, and a folder of root's below one of nobody's.
    fs::write(scene.at("own/safe.json"), safe_json(&[(&scene.at("victim"), "x")])).unwrap();
    symlink(scene.at("own"), scene.at("state/link")).unwrap();
    fs::create_dir(scene.at("state/own")).unwrap();
    fs::write(scene.at("state/own/safe.json"), safe_json(&[(&scene.at("victim"), "x")])).unwrap();
    for theirs in ["state/link", "state/own"] {
        let (code, said) = scene.said(&["reset", "--safe", "--state", path(&scene.at(theirs))]);
        assert!(code == 2 && said.contains("could be exchanged for another folder"), "{theirs}: {said}");
        scene.unharmed(theirs);
    }
    // Nothing is made in a folder of nobody's, and nothing there is followed by what has no configuration that could allow it.
    let campaign = root().join("examples/demo-local.toml");
    let sweep = |state: &str| {
        let (out, state) = (scene.at("out"), scene.at(state));
        let mut c = limited(&["sweep", path(&campaign), "--server", "local", "--out", path(&out), "--state", path(&state)]);
        // One that answers: what is asked of it first is whether it is there.
        let out = c.env("SUREFOOT_ENGINE", "/bin/true").output().unwrap();
        (out.status.code().expect("no signal"), text(&out))
    };
    for (state, words) in [("state", "belongs to user 65534"), ("state/new/deep", "nothing is made in it")] {
        let (code, said) = sweep(state);
        assert!((1..=2).contains(&code) && said.contains(words), "{state}: {code} {said}");
    }
    assert!(!scene.at("state/new").exists() && !scene.at("state/lock").exists() && !scene.at("out").exists());
}

/// The folder of locks is root's: one that somebody made before is not used, whatever lies in it, and that is said; one that root makes is
/// closed to others, whatever the umask.
#[test]
fn the_folder_of_locks_is_roots() {
    if !as_root("the_folder_of_locks_is_roots") {
        return;
    }
    let scene = Scene::new();
    let locks = scene.at("run-lock");
    fs::create_dir(&locks).unwrap();
    fs::set_permissions(&locks, fs::Permissions::from_mode(0o1777)).unwrap();
    let own = scene.own_config();
    // In a namespace of its own, where /run/lock is the folder of the test.
    let run = |umask: &str| {
        let line =
            format!("mount --bind {} /run/lock && umask {umask} && exec timeout 60 \"$0\" {} {}", path(&locks), RUN.join(" "), path(&own));
        let mut c = Command::new("unshare");
        c.args(["--mount", "sh", "-c", &line, env!("CARGO_BIN_EXE_surefootd")]).env("SUREFOOT_LOG", "warn");
        let out = c.output().unwrap();
        (out.status.code(), text(&out))
    };
    let folder = locks.join("surefoot");
    fs::create_dir(&folder).unwrap();
    // Names of this version and of earlier ones.
    for name in ["cpus", "cgroups", "resctrl", "cpu-0.lock", "resctrl-sys-fs-resctrl"] {
        symlink(scene.at("victim"), folder.join(name)).unwrap();
    }
    chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    let (code, said) = run("022");
    if said.contains("unshare") || said.contains("mount:") {
        return eprintln!("NOT RUN: the_folder_of_locks_is_roots: no mount namespaces here: {said}");
    }
    scene.unharmed("a folder of locks of nobody's");
    assert!(code == Some(0) && said.contains("belongs to user 65534") && said.contains("rm -r /run/lock/surefoot"), "{said}");
    assert_eq!(fs::read_link(folder.join("cpus")).unwrap(), scene.at("victim"));
    fs::remove_dir_all(&folder).unwrap();
    for umask in ["000", "077"] {
        let (code, said) = run(umask);
        assert!(code == Some(0) && !said.contains("would not be noticed"), "{said}");
        let m = fs::metadata(&folder).unwrap();
        assert_eq!((m.uid(), m.mode() & 0o7777), (0, 0o755), "umask {umask}");
        let m = fs::metadata(folder.join("cpus")).unwrap();
        assert_eq!((m.uid(), m.mode() & 0o7777), (0, 0o660), "umask {umask}");
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// Results of root's in another user's folder are not led elsewhere, and replace nothing there: not by a link on the way, nor by one at the
/// name that a file has while it is written.
#[test]
fn no_result_is_led_elsewhere() {
    if !as_root("no_result_is_led_elsewhere") {
        return;
    }
    let scene = Scene::new();
    fs::create_dir(scene.at("own")).unwrap();
    fs::write(scene.at("own/rows.csv"), PRECIOUS).unwrap();
    symlink(scene.at("own"), scene.at("state/link")).unwrap();
    scene.hand_over("state/link");
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let (set, campaign) = (scene.at("w"), root().join("examples/demo-virtual.toml"));
    fs::create_dir(&set).unwrap();
    fs::copy(&workload, set.join("w.toml")).unwrap();
    let out = scene.at("state/link");
    let (o, file) = (path(&out), scene.at("state/link/x"));
    let eval = ["eval", "--workloads", path(&set), "--policies", "unmanaged", "--platform", "server-1", "--overwrite", "--out"];
    let oracle = ["oracle", "--workload", path(&workload), "--platform", "server-1", "--out"];
    let sweep = ["sweep", path(&campaign), "--server", "virtual:server-1", "--out"];
    for (args, to) in [(&eval[..], o), (&oracle, path(&file)), (&sweep, o)] {
        let (code, said) = scene.said(&[args, &[to]].concat());
        assert!(code == 2 && said.contains("the link belongs to user 65534"), "{args:?}: {code} {said}");
    }
    assert_eq!(fs::read_dir(scene.at("own")).unwrap().count(), 1);
    // A folder of that user's is one for results, where its files are its files.
    let state = scene.at("state");
    for name in ["rows.csv.tmp", "rows.parquet.tmp", "eval.json.tmp", "timelines.parquet.tmp"] {
        symlink(scene.at("victim"), state.join(name)).unwrap();
        scene.hand_over(&format!("state/{name}"));
    }
    let (code, said) = scene.said(&[&eval[..], &[path(&state)]].concat());
    scene.unharmed("links at the names that results have while they are written");
    assert!(code == 0 && state.join("rows.csv").exists(), "{code} {said}");
    symlink(scene.at("victim"), state.join("eval.partial.jsonl")).unwrap();
    let (code, said) = scene.said(&[&eval[..], &[path(&state)]].concat());
    scene.unharmed("a link at the journal");
    assert!(code == 2 && said.contains("eval.partial.jsonl: is a link"), "{code} {said}");
    // A folder with anything else in it is no sweep's, and what bears no name of ours in that of a sweep is not ours to take away.
    let (code, said) = scene.said(&[&sweep[..], &[path(&scene.at("own"))]].concat());
    assert!(code == 2 && said.contains("holds no campaign"), "{code} {said}");
    let swept = scene.at("swept");
    fs::create_dir(&swept).unwrap();
    fs::write(swept.join(".lock"), PRECIOUS).unwrap();
    let (code, said) = scene.said(&[&sweep[..], &[path(&swept)]].concat());
    assert!(code == 2 && said.contains("no lock of a sweep, so it stays as it is"), "{code} {said}");
    fs::remove_file(swept.join(".lock")).unwrap();
    for more in [&[][..], &["--resume"]] {
        let (code, said) = scene.said(&[&sweep[..], &[path(&swept)], more].concat());
        assert!(code == 0, "{code} {said}");
        if more.is_empty() {
            fs::write(swept.join("mine.tmp"), PRECIOUS).unwrap();
        }
    }
    for kept in [scene.at("own/rows.csv"), swept.join("mine.tmp")] {
        assert_eq!(fs::read_to_string(&kept).unwrap(), PRECIOUS, "{}", kept.display());
    }
    assert_eq!(fs::read_dir(scene.at("own")).unwrap().count(), 1);
}

/// A device that an option names stays a device.
#[test]
fn a_device_stays_a_device() {
    if !as_root("a_device_stays_a_device") {
        return;
    }
    let scene = Scene::new();
    let null = scene.at("null");
    let device = nix::sys::stat::makedev(1, 3);
    if let Err(e) = nix::sys::stat::mknod(&null, nix::sys::stat::SFlag::S_IFCHR, nix::sys::stat::Mode::from_bits_truncate(0o666), device) {
        return eprintln!("NOT RUN: a_device_stays_a_device: no device can be made: {e}");
    }
    let workload = root().join("workloads/sets/demo/two-lc-steady.toml").canonicalize().unwrap();
    let config = scene.at("virtual.toml");
    fs::write(&config, format!("workload = \"{}\"\nrealtime = false\nmetrics_port = 0\n", path(&workload))).unwrap();
    let (oracle, on) =
        (["oracle", "--workload", path(&workload), "--platform", "server-1"], ["--server", "virtual:server-1", "--config", path(&config)]);
    let run_it = [&["run", "--policy", "unmanaged", "--duration-s", "1"], &on[..]].concat();
    let record = [&["record", "--duration-s", "1"], &on[..]].concat();
    for (args, option) in [(&oracle[..], "--out"), (&record, "--out"), (&run_it, "--events"), (&run_it, "--stream")] {
        for more in [&[][..], &["--overwrite"]] {
            let out = run(&[args, &[option, path(&null)], more].concat());
            let said = text(&out);
            assert!(fs::symlink_metadata(&null).unwrap().file_type().is_char_device(), "{args:?}");
            assert!(out.status.code() == Some(2) && said.contains("is a device and no plain file"), "{args:?}: {said}");
        }
    }
}

/// Root's stand-in for resctrl is mounted where root said and nowhere else: not behind another user's link, not below a folder that its owner
/// can exchange; and what is taken away at the end is what was mounted, not what lies there by then.
#[test]
fn no_mount_is_led_elsewhere() {
    use nix::mount::{mount, umount2, MntFlags, MsFlags};
    if !as_root("no_mount_is_led_elsewhere") {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        return eprintln!("NOT RUN: no_mount_is_led_elsewhere: needs /dev/fuse (modprobe fuse)");
    }
    let scene = Scene::new();
    let at = |name: &str| scene.at(name);
    for name in ["prize", "mnt", "tmp", "tmp/theirs", "state/p", "state/p/mnt"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::set_permissions(at("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    ["state/link", "tmp/link"].iter().for_each(|n| symlink(at("prize"), at(n)).unwrap());
    ["tmp/theirs", "tmp/link", "state/p", "state/link"].iter().for_each(|n| scene.hand_over(n));
    let cases = [
        ("tmp/link", "the link belongs to user 65534. Give the path that it leads to"),
        ("state/link", "the folder belongs to user 65534, who could exchange what is mounted on"),
        ("state/p/mnt", "the folder belongs to user 65534, who could exchange what is mounted on"),
        ("state/p", "the folder belongs to user 65534"),
        // Its owner may rename it, and what is in /tmp is like that.
        ("tmp/theirs", "the folder belongs to user 65534"),
    ];
    for (name, words) in cases {
        let mountpoint = at(name);
        let mut command = Command::new("timeout");
        command.args(["-s", "TERM", "20", env!("CARGO_BIN_EXE_surefootd"), "resctrlfs", "--platform", "server-1", path(&mountpoint)]);
        let out = command.current_dir(root()).env_remove("SUREFOOT_PROFILES").output().unwrap();
        let said = text(&out);
        assert!(out.status.code() == Some(2) && said.contains(words) && said.lines().count() == 1, "{name}: {:?} {said}", out.status);
    }
    // What root has mounted over it meanwhile stays, and is named.
    let mut command = Command::new(env!("CARGO_BIN_EXE_surefootd"));
    let args = ["resctrlfs", "--die-with-parent", "--platform", "server-1", path(&at("mnt"))].map(String::from);
    command.args(args).current_dir(root()).env_remove("SUREFOOT_PROFILES");
    let mut served = Running::start(command, "ends it");
    mount(Some("tmpfs"), &at("mnt"), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    fs::write(at("mnt/precious"), PRECIOUS).unwrap();
    let said = served.end(nix::sys::signal::Signal::SIGTERM);
    let stayed = fs::read_to_string(at("mnt/precious"));
    let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap().lines().filter(|l| l.contains(path(&at("mnt")))).count();
    (0..2).for_each(|_| umount2(&at("mnt"), MntFlags::MNT_DETACH).unwrap_or_default());
    assert_eq!((stayed.ok().as_deref(), mounts), (Some(PRECIOUS), 2), "{said}");
    assert!(said.contains("stays mounted: something else is mounted over it. Unmount it"), "{said}");
    // And without such it goes.
    let mut served = StandIn::start(&at("mnt"), &root().join("scheduler/vserver/profiles/platforms/server-1.toml"));
    assert!(mounted(&at("mnt")));
    let said = served.server.end(nix::sys::signal::Signal::SIGTERM);
    assert!(!mounted(&at("mnt")), "{said}");
}

/// A catalogue above the executable that somebody else could have written is passed over, as one in the current folder is, and both are named.
#[test]
fn nobodys_catalogue_is_passed_over() {
    if !as_root("nobodys_catalogue_is_passed_over") {
        return;
    }
    let scene = Scene::new();
    let (exe, campaign) = (scene.at("state/bin/surefootd"), root().join("examples/demo-local.toml"));
    for name in ["state/bin", "state/workloads", "state/workloads/planted", "empty"] {
        fs::create_dir(scene.at(name)).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_surefootd"), &exe).unwrap();
    scene.plant("workloads/planted/workload.toml", "planted\n");
    for cwd in ["empty", "state"] {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&exe).args(["sweep", path(&campaign), "--server", "local", "--plan"]).current_dir(scene.at(cwd));
        let said = text(&command.output().unwrap());
        let words = "the folder belongs to user 65534, so this catalogue is passed over. Give --catalogue";
        assert!(said.contains(words) && !said.contains("planted"), "{cwd}: {said}");
    }
}

/// What a configuration itself is wrong about is said before anything is made: no state folder is left of it.
#[test]
fn a_wrong_configuration_leaves_no_state_folder() {
    let dir = tempfile::tempdir().unwrap();
    let service = |id: &str, more: &str| {
        format!("metrics_port = 0\nstate_dir = \"made\"\ncpus = \"0\"\n{more}[[service]]\nid = \"{id}\"\nservice = \"job\"\nkind = \"be\"\ncgroup = \"/no/such/group\"\n")
    };
    let launch = |service: &str, more: &str| {
        let catalogue = root().join("workloads").canonicalize().unwrap();
        let head = format!("metrics_port = 0\nstate_dir = \"made\"\ncpus = \"0\"\ncatalogue = \"{}\"\n", path(&catalogue));
        format!("{head}[[service]]\nservice = \"{service}\"\n{more}")
    };
    let cases = [
        (service("../../etc", ""), "service.id: \"../../etc\" is no id"),
        (service("a b", ""), "service.id: \"a b\" is no id"),
        (service("", ""), "service.id: \"\" is no id"),
        (service("job", "feed_group = \"no-such-group\"\n"), "feed_group: no group"),
        (service("job", "[upper]\ngroup = \"no-such-group\"\n"), "upper.group: no group"),
        (launch("no-such-service", ""), "no-such-service"),
        (launch("stream", "feed = { users = [\"root\"] }\n"), "has no latency to send"),
    ];
    for (text, words) in cases {
        let config = dir.path().join("node.toml");
        fs::write(&config, &text).unwrap();
        let out = run(&[&RUN[..], &[path(&config)]].concat());
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.code() == Some(2) && said.contains(words) && said.contains("node.toml"), "{text}: {said}");
        assert!(!dir.path().join("made").exists(), "{text}: {said}");
    }
}
