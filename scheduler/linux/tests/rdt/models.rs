//! Policies with models on a kernel that answers: the daemon with the bundle of scripts/vm/rdt-vm/bundle.sh, beside a load that rises and falls.

use crate::bed::{bandwidth, groups_of, masks, options, Machine, NothingLeft};
use crate::support::{until, Group, Process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long each policy is looked at on the machine that the bundle is for; on others that can take it (without MBA, with other mounts) less.
const LOOK_S: u64 = 60;
const LOOK_ELSEWHERE_S: u64 = 15;
const PORT: u16 = 19464;

/// The daemon as the checkout has built it; stopped at the end, whatever happens.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Beside the folder of this program.
fn surefootd() -> Command {
    Command::new(std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("surefootd"))
}

/// What the daemon answers; None while it is not there.
fn get(path: &str) -> Option<String> {
    let mut s = TcpStream::connect(("127.0.0.1", PORT)).ok()?;
    write!(s, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    s.read_to_string(&mut text).ok()?;
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_string())
}

/// What the kernel gives a service: cores of its quota (None without), masks and bandwidth of the class that all its threads are in.
#[derive(Clone, Debug, PartialEq)]
struct InForce {
    cores: Option<f64>,
    ways: Vec<u32>,
    mba_pct: Vec<u64>,
}

/// None where its threads are not all in one class: they are just being moved.
fn in_force(group: &Group, p: &Process) -> Option<InForce> {
    let quota = group.says("cpu.max");
    let (quota, period) = quota.split_once(' ').unwrap();
    let classes: BTreeSet<String> = p.tids().into_iter().filter_map(groups_of).collect();
    let [only] = classes.iter().collect::<Vec<_>>()[..] else { return None };
    let class = only.split(' ').next()?.trim_start_matches("res:").trim_matches('/').to_string();
    let cores = quota.parse::<f64>().ok().map(|q| q / period.parse::<f64>().unwrap());
    Some(InForce { cores, ways: masks(&class), mba_pct: bandwidth(&class) })
}

/// A metric of a service.
fn metric(text: &str, name: &str, service: &str) -> Option<f64> {
    let head = format!("{name}{{");
    let line = text.lines().find(|l| l.starts_with(&head) && l.contains(&format!("service=\"{service}\"")))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

fn number(v: &Value) -> Option<f64> {
    v.as_f64()
}

/// On a machine that the bundle is not for it is refused, with the field. Else, while the load rises and falls, `/status`, `/metrics` and the journal of decisions say of each service what the kernel has in force, at every
/// look at which nothing moved meanwhile; the models were asked; and everything is given back.
fn drives(policy: &str) {
    let machine = Machine::here();
    let look_s = if machine.name == "one" && options().is_empty() { LOOK_S } else { LOOK_ELSEWHERE_S };
    let _nothing_left = NothingLeft;
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let groups: BTreeMap<&str, Group> = ["xapian", "img-dnn", "job"].map(|id| (id, Group::new(id))).into();
    let config = format!(
        "state_dir = \"{}\"\nmetrics_port = {PORT}\n{}[[service]]\nservice = \"job\"\nkind = \"be\"\ncgroup = \"/job\"\n",
        state.display(),
        ["xapian", "img-dnn"]
            .map(|id| format!("[[service]]\nservice = \"{id}\"\nkind = \"lc\"\nqos_target_ms = 50.0\ncgroup = \"/{id}\"\n"))
            .concat(),
    );
    std::fs::write(dir.path().join("node.toml"), config).unwrap();
    let feed = state.join("feed.sock");
    let serve = |id: &str, rps: u32| Process::start(&groups[id], &format!("serve {rps} {id} {}", feed.display()));
    let processes: BTreeMap<&str, Process> =
        [("xapian", serve("xapian", 20)), ("img-dnn", serve("img-dnn", 10)), ("job", Process::start(&groups["job"], "burn 1"))].into();

    let mut command = surefootd();
    command.args(["run", "--server", "local", "--policy", policy, "--config"]).arg(dir.path().join("node.toml"));
    command.arg("--bundle").arg(checkout("tests/vectors/bundle-rdt-guest.tar")).arg("--trust").arg(checkout("tests/vectors/keys/trusted"));
    if machine.cpus != 4 {
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("platform.cores: ") && said.contains(&format!("{}", machine.cpus - 1)), "{said}");
        return;
    }
    let mut daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
    until("the daemon has all three services", || {
        assert!(daemon.0.try_wait().unwrap().is_none(), "the daemon has ended");
        let status: Option<Value> = get("/status").and_then(|s| serde_json::from_str(&s).ok());
        status.is_some_and(|s| s["services"].as_array().is_some_and(|all| all.len() == groups.len()))
    });

    let (mut looks, mut moved, mut explained_looks) = (0, 0, 0);
    let end = Instant::now() + Duration::from_secs(look_s);
    while Instant::now() < end {
        let of_all =
            || -> Option<BTreeMap<&str, InForce>> { groups.iter().map(|(id, g)| Some((*id, in_force(g, &processes[id])?))).collect() };
        let before = of_all();
        let status_now = || -> Value { serde_json::from_str(&get("/status").unwrap()).unwrap() };
        // What is told is what the last tick saw: the second one from here has seen the layout of now.
        let first = status_now();
        let mut status = first.clone();
        until("two ticks have passed", || {
            status = status_now();
            status["ticks"].as_u64().unwrap() >= first["ticks"].as_u64().unwrap() + 2
        });
        let metrics = get("/metrics").unwrap();
        // A layout that changed meanwhile is nobody's fault, nor is one that changed and came back: then there are newer actions.
        let now = before.filter(|b| of_all().as_ref() == Some(b));
        let Some(now) = now.filter(|_| status_now()["actions"] == first["actions"]) else {
            moved += 1;
            continue;
        };
        for (id, kernel) in &now {
            let said = status["services"].as_array().unwrap().iter().find(|s| s["id"] == **id);
            let Some(said) = said else { panic!("{id} is not in /status: {status}") };
            let about = format!("{policy}, {id}: kernel {kernel:?}, /status {said}");
            if let Some(cores) = kernel.cores {
                assert_eq!(number(&said["cores"]), Some(cores), "{about}");
            }
            let ways = kernel.ways.iter().map(|m| m.count_ones()).sum::<u32>() as f64 / kernel.ways.len() as f64;
            assert_eq!(number(&said["ways"]), Some(ways), "{about}");
            // What the default group has is no limit, in whichever unit.
            let limit = kernel.mba_pct.first().filter(|_| kernel.mba_pct != bandwidth(""));
            assert_eq!(number(&said["mba_pct"]), Some(limit.map_or(100.0, |b| *b as f64)), "{about}");
            for (name, field, by) in
                [("surefoot_cores", "cores", 1.0), ("surefoot_ways", "ways", 1.0), ("surefoot_mba_ratio", "mba_pct", 100.0)]
            {
                assert_eq!(metric(&metrics, name, id), number(&said[field]).map(|v| v / by), "{about}: {name}");
            }
            // The newest action tells what its service was given; an older one may have been followed by a neighbour's.
            let newest = status["actions"].as_array().unwrap().iter().rev().find(|a| a["applied"] == true);
            if let Some(given) = newest.filter(|a| a["service"] == **id).and_then(|a| a["ways"].as_array()) {
                let given: Vec<u32> = given.iter().map(|m| m.as_u64().unwrap() as u32).collect();
                assert_eq!(given, kernel.ways, "{about}: action {newest:?} of {}", status["actions"]);
                explained_looks += 1;
            }
        }
        looks += 1;
    }
    let journal = explained(&state);
    println!(
        "{policy}: {looks} looks agreed, {explained_looks} with the newest action, too, {moved} saw a change on its way; {} actions, models \
         asked in {}",
        journal.0, journal.1
    );
    assert!(looks >= look_s / 4 && explained_looks > 0 && journal.0 > 0 && journal.1 > 0, "{looks} looks, {journal:?}");
    drop(daemon);
    for (id, p) in &processes {
        let all: BTreeSet<String> = p.tids().into_iter().filter_map(groups_of).collect();
        assert_eq!((all, groups[id].says("cpu.max")), (BTreeSet::from(["res:/ mon:".to_string()]), "max 100000".into()), "{id}");
    }
}

/// Actions that `surefootd explain` tells of, and those of them for which a model spoke.
fn explained(state: &Path) -> (usize, usize) {
    let out = surefootd().args(["explain", "--json", "--last", "1000", "--file"]).arg(state.join("decisions.jsonl")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let story: Value = serde_json::from_slice(&out.stdout).unwrap();
    let actions = story["records"].as_array().unwrap_or_else(|| panic!("{story}"));
    (actions.len(), actions.iter().filter(|a| a["because"]["said"].as_array().is_some_and(|s| !s.is_empty())).count())
}

/// osml-plus with the guest's bundle.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn osml_plus_agrees_with_the_kernel() {
    drives("osml-plus");
}

/// The policy of this project with the guest's bundle.
#[test]
#[ignore = "needs the guest: make test-rdt"]
fn surefoot_agrees_with_the_kernel() {
    drives("surefoot");
}
