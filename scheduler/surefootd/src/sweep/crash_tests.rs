//! Crash schedules: a sweep that dies at drawn writes, is resumed, dies again, and so on, ends as one that was left alone. The number of
//! schedules is SUREFOOT_CRASHES (`make test-crashes`: 10,000), else a slice.

use super::rows::{Marks, Measured, Row, State};
use super::{run, Bench, Job};
use crate::base::error::Result;
use crate::base::files::fault;
use crate::base::progress::Mode;
use crate::stage::target::{LcService, Target};
use crate::sweep::campaign::{Campaign, Sampling};
use crate::sweep::expand::{Case, Expansion};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use surefoot_server::{Platform, Sending, Verdict};

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

fn target() -> Target {
    let lc = LcService { qos_target_ms: 10.0, max_load_rps: None, rps_levels: vec![100.0, 300.0], working_set_bytes: None };
    Target {
        plant: None,
        platform: Platform::regular("p", 8, 1, 11, 2.0),
        services: BTreeMap::from([("a".to_string(), lc.clone()), ("b".to_string(), lc)]),
        jobs: vec![],
        feature_set: "full".into(),
        sources: BTreeMap::new(),
        traces: BTreeMap::new(),
        paged: Default::default(),
        memory: Default::default(),
    }
}

/// Five cases a shard: 11.51 s each, and a shard is cut after a minute. 2 services x 2 loads x 2 thread counts.
fn campaign(strategy: &str) -> Campaign {
    let (axes, more) = match strategy {
        "exhaustive" => ("cores = [1, 5]\nways = [2, 9]", ""),
        "random" => ("cores = \"1..8\"\nways = \"1..11\"", "repeats = 2\n[random]\ncells = 30"),
        _ => ("cores = \"1..8\"\nways = \"1..11\"", "repeats = 3"),
    };
    let text = format!(
        "name = \"crash\"\nstrategy = \"{strategy}\"\nseed = 3\n[targets]\nlocal = true\n[sweep]\nservices = \"all\"\nthreads = [2, 8]\n{axes}\n\
         neighbours = {{ count = [1], draws = 1 }}\n[sampling]\nwarmup_ms = 10000\ninterval_ms = 10\nsamples = 1\n{more}\n"
    );
    Campaign::parse(Path::new("c.toml"), &text).expect("a campaign")
}

/// A surface with a cliff, and noise from the case's seed: another seed would be another row.
fn measured(case: Case) -> Measured {
    let noise = (case.seed % 1000) as f64 / 1e4;
    let p99_ms = case.rps * 6.0 / (case.cores * (3.0 + f64::from(case.ways))) * (1.0 + noise);
    let overloaded = p99_ms > 100.0;
    let row = Row {
        t_ms: 1,
        features: [None; 13],
        mean_ms: None,
        p50_ms: None,
        p95_ms: None,
        p99_ms: Some(p99_ms),
        p99_low_ms: Some(p99_ms * 0.9),
        p99_high_ms: Some(p99_ms * 1.1),
        achieved_rps: None,
        errors: 0,
        count: 1000,
        verdict: if overloaded { Verdict::ServerOverloaded } else { Verdict::Valid },
        sending: Sending::OPEN,
        memory: Default::default(),
    };
    let mark = |of: u64, what: &str| case.seed.is_multiple_of(of).then(|| what.to_string());
    let marks = Marks { disturbed: mark(3, "a neighbour"), unsettled: mark(5, "the backlog") };
    let state = if overloaded { State::Overloaded } else { State::Measured };
    Measured { case, state, reason: overloaded.then(|| "too slow".into()), rows: vec![row], marks, others_frac: None }
}

/// Sweep, with a plan for its death; how many cases were measured, and what came of it.
fn sweep(campaign: &Campaign, target: &Target, cases: &Expansion, out: &Path, death: Option<(u64, u8)>) -> (u64, u64, Result<()>) {
    let job = Job { campaign, target, cases, out, resume: true, progress: Mode::None, host: BTreeMap::new(), software: BTreeMap::new() };
    let mut n = 0;
    fault::plan(death);
    let mut measure = |case: Case, _: &Sampling| {
        n += 1;
        Ok(measured(case))
    };
    let outcome = run(&job, Bench::Serial(&mut measure)).map(|_| ());
    let steps = fault::plan(None);
    (n, steps, outcome)
}

/// As [`campaign`], with loads that are per cent of what is found, and no neighbours or one.
fn finding(neighbours: u32) -> Campaign {
    let text = format!(
        "name = \"finding\"\nseed = 3\n[targets]\nlocal = true\n[sweep]\nservices = \"all\"\nrps = \"saturation:40,120\"\nthreads = [2, 8]\n\
         cores = [1, 5]\nways = [2, 9]\nneighbours = {{ count = [{neighbours}], draws = 1 }}\n[sampling]\nwarmup_ms = 10000\n\
         interval_ms = 10\nsamples = 1\n"
    );
    Campaign::parse(Path::new("c.toml"), &text).expect("a campaign")
}

fn is_look(case: &Case) -> bool {
    case.case_id.starts_with("max-load")
}

/// Loads are shares of max loads that are found once: whenever the sweep dies, and however else the host is by then, what was found stays,
/// and each case has the load of its beginning.
#[test]
fn loads_that_were_found_stay() {
    let (target, campaign) = (target(), finding(1));
    let cases = Expansion::new(&campaign, &target).expect("a campaign of this target");
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder");
    let mut found_at = BTreeSet::new();
    for schedule in 0..60u64 {
        let mut rng = Rng(schedule ^ 0xf1d);
        let out = dir.path().join("out");
        let mut rates: BTreeMap<(String, u32), BTreeSet<u64>> = BTreeMap::new();
        let mut kept: Vec<serde_json::Value> = vec![];
        for death in 0..9u32 {
            // The host is twice as fast whenever it is looked at again.
            let faster = f64::from(1 << death);
            let mut measure = |mut case: Case, _: &Sampling| {
                if is_look(&case) {
                    case.rps /= faster;
                } else {
                    let share = case.rps / case.load_pct.expect("a share") * 100.0;
                    rates.entry((case.service.clone(), case.threads)).or_default().insert(share.round() as u64);
                }
                Ok(measured(case))
            };
            let (out, host, software) = (&out, BTreeMap::new(), BTreeMap::new());
            let job = Job { campaign: &campaign, target: &target, cases: &cases, out, resume: true, progress: Mode::None, host, software };
            fault::plan((death < 4).then(|| (1 + rng.below(60), rng.below(256) as u8)));
            let outcome = run(&job, Bench::Serial(&mut measure));
            fault::plan(None);
            if let Ok(text) = std::fs::read(out.join("manifest.json")) {
                let manifest: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
                let now = manifest["max_loads"].as_array().cloned().unwrap_or_default();
                assert_eq!(now[..kept.len()], kept[..], "schedule {schedule}: what was found stays");
                (kept.len() < now.len()).then(|| found_at.insert(death));
                kept = now;
            }
            if outcome.is_ok() {
                break;
            }
            assert!(death < 4, "schedule {schedule}: {outcome:?}");
        }
        // Two services with 2 and with 8 threads; as a neighbour each has as many as there are cores at most, 5.
        assert_eq!(kept.len(), 6, "{kept:?}");
        let (_, lines, manifest) = everything(&out);
        assert!(lines.len() == 2 * 2 * 2 * 4 && manifest["complete"] == true);
        for ((service, threads), shares) in rates {
            let m = kept.iter().find(|m| m["service"] == service && m["threads"] == threads).expect("its max load");
            let rps = m["max_load_rps"].as_f64().expect("found").round() as u64;
            assert_eq!(shares, BTreeSet::from([rps]), "schedule {schedule}: {service} with {threads} threads");
        }
        std::fs::remove_dir_all(&out).expect("a folder");
    }
    assert!(found_at.len() >= 3, "deaths fell before, among and after the searches: {found_at:?}");
}

/// A service that never meets its target has no cases that can be, one that cannot be measured has failed ones; the other goes on. The first
/// thing that does not work at all ends the sweep.
#[test]
fn a_service_without_a_max_load() {
    let (target, campaign) = (target(), finding(0));
    let cases = Expansion::new(&campaign, &target).expect("a campaign of this target");
    let sweep = |bad: &dyn Fn(Case) -> Result<Measured>| {
        let dir = tempfile::tempdir().expect("a folder");
        let mut looks = 0;
        let mut measure = |case: Case, _: &Sampling| {
            looks += u32::from(is_look(&case) && case.service == "b");
            if case.service == "b" {
                bad(case)
            } else {
                Ok(measured(case))
            }
        };
        let (out, host, software) = (dir.path(), BTreeMap::new(), BTreeMap::new());
        let job = Job { campaign: &campaign, target: &target, cases: &cases, out, resume: true, progress: Mode::None, host, software };
        let outcome = run(&job, Bench::Serial(&mut measure));
        (outcome, looks)
    };
    let slow = |case: Case| {
        let mut m = measured(case);
        m.rows[0].p99_ms = Some(1e3);
        Ok(Measured { state: State::Measured, ..m })
    };
    let (m, looks) = sweep(&slow);
    let m = m.expect("the other service goes on");
    assert_eq!((m.cases.planned, m.cases.measured + m.cases.overloaded, m.cases.infeasible, m.cases.failed), (32, 16, 16, 0));
    let why: Vec<&str> = m.cases.reasons.iter().filter(|r| r.state == State::Infeasible).map(|r| r.reason.as_str()).collect();
    assert!(
        why.len() == 2 && why[0].starts_with("b with 2 threads has no max load, it misses its QoS target of 10 ms even at 1 RPS"),
        "{why:?}"
    );
    assert!(looks < 2 * 48, "{looks} looks at two thread counts");

    let broken = |case: Case| Ok(Measured::without_rows(case, State::Failed, "no such image".into()));
    let (m, looks) = sweep(&broken);
    let m = m.expect("the other service goes on");
    assert_eq!((m.cases.infeasible, m.cases.failed, looks), (0, 16, 2));
    assert!(m.cases.reasons.iter().any(|r| r.state == State::Failed && r.reason.contains("cannot be measured")), "{:?}", m.cases.reasons);
    let (m, _) = sweep(&|_| Err(crate::base::error::Error::Failed("no engine".into())));
    assert!(m.is_err_and(|e| e.to_string().contains("no engine")));
}

/// Shards by name, journal lines, and the manifest without what a checkpoint's moment decides.
fn everything(out: &Path) -> (BTreeMap<PathBuf, Vec<u8>>, BTreeSet<String>, serde_json::Value) {
    let shards = std::fs::read_dir(out.join("shards")).expect("shards").map(|e| e.expect("an entry").path());
    let shards = shards.map(|p| (p.file_name().expect("a name").into(), std::fs::read(&p).expect("a shard"))).collect();
    let journal = std::fs::read_to_string(out.join("journal.jsonl")).expect("a journal");
    let lines: BTreeSet<String> = journal.lines().map(String::from).collect();
    assert_eq!(lines.len(), journal.lines().count(), "no case twice");
    let mut manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("manifest.json")).expect("a manifest")).expect("JSON");
    // Reasons stand in the order in which they came.
    manifest["cases"]["reasons"].as_array_mut().expect("reasons").sort_by_key(ToString::to_string);
    (shards, lines, manifest)
}

/// Die after any write, in the middle of one, or with the newest shard gone, up to four times a schedule: no case is lost, none is
/// there twice, the plan and its seeds are those of an undisturbed sweep, and a death costs one shard's cases at most.
#[test]
fn any_crash_schedule_ends_as_undisturbed() {
    let schedules: u64 = std::env::var("SUREFOOT_CRASHES").map_or(240, |n| n.parse().expect("SUREFOOT_CRASHES is a number"));
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.expect("a folder");
    let target = target();
    let all: Vec<_> = ["exhaustive", "frontier", "random"]
        .into_iter()
        .map(|strategy| {
            let campaign = campaign(strategy);
            let cases = Expansion::new(&campaign, &target).expect("a campaign of this target");
            let out = dir.path().join(strategy);
            let (n, steps, outcome) = sweep(&campaign, &target, &cases, &out, None);
            outcome.expect("nothing disturbs it");
            let want = everything(&out);
            assert!(want.0.len() >= 4 && n >= 10, "{strategy}: {} shards, {n} cases", want.0.len());
            (campaign, cases, n, steps, want)
        })
        .collect();
    let (mut deaths, mut torn_shards) = (0u64, 0u64);
    for schedule in 0..schedules {
        let (campaign, cases, n, steps, want) = &all[schedule as usize % all.len()];
        let mut rng = Rng(schedule);
        let out = dir.path().join("crash");
        let (mut total, mut allowed) = (0, *n);
        for death in 0.. {
            let plan = (death < 4).then(|| (1 + rng.below(steps + steps / 4), rng.below(256) as u8));
            let (measured, _, outcome) = sweep(campaign, &target, cases, &out, plan);
            total += measured;
            if outcome.is_ok() {
                break;
            }
            assert!(plan.is_some(), "schedule {schedule}: {outcome:?}");
            deaths += 1;
            allowed += 5;
            // The folder of a power cut: the newest shard is not there, whatever the journal says.
            let newest = std::fs::read_dir(out.join("shards")).ok().and_then(|l| l.flatten().map(|e| e.path()).max());
            if let Some(newest) = newest.filter(|_| rng.below(8) == 0) {
                std::fs::remove_file(newest).expect("a file");
                torn_shards += 1;
                allowed += 5;
            }
        }
        assert!(everything(&out) == *want, "schedule {schedule}");
        assert!(total <= allowed, "schedule {schedule}: {total} cases measured, {allowed} allowed");
        std::fs::remove_dir_all(&out).expect("a folder");
    }
    assert!(deaths >= schedules && torn_shards * 20 >= schedules, "{deaths} deaths, {torn_shards} shards taken away");
}
