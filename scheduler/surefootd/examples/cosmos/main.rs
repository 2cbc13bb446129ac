//! The COSMOS paper's experiments in closed loop on virtual `cosmos-server`, beside its figures (docs/cosmos.md).
//!
//!     cargo run --release --locked -p surefootd --example cosmos -- [mixes|skipping|day|still|wrong] [--seeds N] [--policies A,B] [--only TEXT]
//!
//! `mixes`: E1 and E2. `skipping`: E3. `day`: E4. `still`: ten minutes after the search. `wrong`: footprint or ratio read 10 % too high or low.
//!
//! Every workload of the folder (workloads/sets/cosmos-e2) runs under every policy with every seed. What is said of a run is of its last
//! minute: *met* is a p99 (of the last second) within the target in more than half of its ticks; *EMU* is COSMOS's: the load and the job's
//! throughput, both as shares of what each does alone, and 0 in ticks that miss the target.
//!
//! *Exhaustive* is the best of all states (cores, memory in steps of 5 % of the footprint from what the job leaves, the whole pool of Eq. 2,
//! half of it, none) in steady state, without noise. A policy's last state is judged in the same way, so that both are compared by one judge.
//! The policy `exhaustive` holds that state (`cosmos-static`) in closed loop, where noise counts against it as against the others.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

mod exhaustive;
mod more;

use exhaustive::{Judge, State};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use surefoot_policy::{by_name_with, ModelSet, Policy, Settings};
use surefoot_server::{Observation, Plan, Resource};
use surefootd::base::error::{Error, Result};
use surefootd::eval::run::{alone_instr_per_s, run};
use surefootd::stage::moment::Moment;
use surefootd::stage::virtual_target::{bad, VirtualTarget};
use surefootd::stage::workload::{files, Workload};

/// The part of a run that is judged, and in which a kept state should stay.
const LAST_MS: i64 = 60_000;
const STILL_MS: i64 = 120_000;
const EXHAUSTIVE: &str = "exhaustive";

/// A policy whose steps are counted.
struct Counted {
    inner: Box<dyn Policy>,
    /// Times of plans with an action for an LC service.
    steps_ms: Vec<u64>,
}

impl Policy for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn owns(&self) -> &[Resource] {
        self.inner.owns()
    }

    fn called_every(&mut self, interval_ms: u64) -> std::result::Result<(), String> {
        self.inner.called_every(interval_ms)
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let plan = self.inner.step(now_ms, seen);
        if plan.is_step() {
            self.steps_ms.push(now_ms);
        }
        plan
    }
}

/// A policy by its name; `exhaustive` holds `best`.
fn policy_of(at: &VirtualTarget, name: &str, best: State, mut settings: Settings, seed: u64) -> Result<Box<dyn Policy>> {
    let name = if name == EXHAUSTIVE { "cosmos-static" } else { name };
    (settings.cosmos.fixed.cores, settings.cosmos.fixed.memory_gb, settings.cosmos.fixed.pool_gb) =
        (best.cores, best.memory_gb, best.pool_gb);
    // No policy of COSMOS has models; `surefoot-memory` goes by its rules of thumb.
    by_name_with(name, &at.platform, ModelSet::mute(), settings, seed).map_err(Error::BadInput)
}

/// What came of one run.
#[derive(Clone, Debug)]
struct Outcome {
    met: bool,
    emu: f64,
    /// Of the last state, in steady state; None without limits, of which no steady state is computed.
    steady_emu: Option<f64>,
    last: State,
    steps: usize,
    /// Steps in the last two minutes.
    late_steps: usize,
    violation_s: f64,
}

/// The state at the end of a run; None where cores or memory are not divided.
fn last_state(moments: &[Moment]) -> Option<State> {
    let held = |is_lc: bool| moments.iter().rev().find(|m| m.is_lc == is_lc).map(|m| m.held);
    let gb = |bytes: Option<f64>| bytes.map(|b| b / f64::from(1u32 << 30));
    let (lc, be) = (held(true)?, held(false)?);
    let divided = be[3].is_some() && lc[0]? + be[0]? <= 16.0;
    let state = State { cores: lc[0]? as u32, memory_gb: gb(lc[3])?, pool_gb: gb(lc[4]).unwrap_or(0.0) };
    divided.then_some(state)
}

/// Whether a service's p99 is within its target.
fn is_met(m: &Moment) -> bool {
    m.p99_ms.zip(m.qos_target_ms).is_some_and(|(p99, target)| p99 <= target)
}

/// By time, of what comes later than `from_ms`: whether all targets are met, and the sum of load and the jobs' throughput, as shares of alone.
fn ticks(at: &VirtualTarget, w: &Workload, moments: &[Moment], from_ms: i64) -> Result<BTreeMap<i64, (bool, f64)>> {
    let alone = alone_instr_per_s(at, at.profiles.service(&w.be[0].job).map_err(bad)?);
    let mut ticks: BTreeMap<i64, (bool, f64)> = BTreeMap::new();
    for m in moments.iter().filter(|m| m.t_ms > from_ms) {
        let tick = ticks.entry(m.t_ms).or_insert((true, 0.0));
        if m.is_lc {
            tick.0 &= is_met(m);
            tick.1 += m.load.unwrap_or(0.0);
        } else {
            tick.1 += m.instr_per_s.unwrap_or(0.0) / alone;
        }
    }
    Ok(ticks)
}

fn one(at: &VirtualTarget, w: &Workload, judge: &mut Judge, inner: Box<dyn Policy>, seed: u64) -> Result<Outcome> {
    let mut counted = Counted { inner, steps_ms: vec![] };
    let (row, moments) = run(at, w, &mut counted, seed, true)?;
    let from_ms = w.duration_ms as i64 - LAST_MS;
    let ticks = ticks(at, w, &moments, from_ms)?;
    let n = ticks.len().max(1) as f64;
    let met = ticks.values().filter(|t| t.0).count() as f64 > 0.5 * n;
    let emu = ticks.values().map(|t| if t.0 { t.1 } else { 0.0 }).sum::<f64>() / n;
    let last = last_state(&moments);
    let still_from = w.duration_ms.saturating_sub(STILL_MS as u64);
    Ok(Outcome {
        met,
        emu,
        steady_emu: last.map(|s| judge.emu(s)),
        last: last.unwrap_or_default(),
        steps: counted.steps_ms.len(),
        late_steps: counted.steps_ms.iter().filter(|t| **t > still_from && **t <= w.duration_ms).count(),
        violation_s: row.qos_violation_s.unwrap_or(f64::NAN),
    })
}

struct Args {
    experiment: String,
    seeds: u64,
    policies: Vec<String>,
    only: String,
}

fn args() -> Args {
    let mut a = Args {
        experiment: "mixes".into(),
        seeds: 5,
        policies: ["unmanaged", "cosmos-ca", "cosmos-cma", "cosmos", EXHAUSTIVE].map(String::from).to_vec(),
        only: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word.as_str() {
            "--seeds" => a.seeds = value().parse().unwrap_or(5),
            "--policies" => a.policies = value().split(',').map(String::from).collect(),
            "--only" => a.only = value(),
            experiment => a.experiment = experiment.into(),
        }
    }
    a
}

/// Checked workloads of a set whose names have `only`.
fn workloads(at: &VirtualTarget, set: &str, only: &str) -> Result<Vec<Workload>> {
    let found = files(&[PathBuf::from("workloads/sets").join(set)])?;
    let all: Vec<Workload> = found.iter().map(|f| Workload::read(f, &at.target())).collect::<Result<_>>()?;
    Ok(all.into_iter().filter(|w| w.name.contains(only)).collect())
}

/// Geometric mean of what is above 0; 0 where something is not.
fn geometric(of: &[f64]) -> f64 {
    if of.is_empty() || of.iter().any(|x| *x <= 0.0) {
        return 0.0;
    }
    (of.iter().map(|x| x.ln()).sum::<f64>() / of.len() as f64).exp()
}

fn mean(of: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = of.collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// One row a policy, over the workloads whose names have `part`.
fn table(
    title: &str,
    part: &str,
    results: &BTreeMap<(String, String), Vec<Outcome>>,
    best: &BTreeMap<String, (State, f64, usize)>,
    policies: &[String],
) {
    let names: Vec<&String> = best.keys().filter(|n| n.contains(part)).collect();
    println!("\n{title}: {} workloads", names.len());
    println!("| policy | QoS met in every seed | runs that met it | EMU, closed loop | EMU, steady | of exhaustive | states | steps in the last 2 min | violation a run |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let exhaustive: Vec<f64> = names.iter().map(|n| best[*n].1).collect();
    let states = mean(names.iter().map(|n| best[*n].2 as f64));
    println!(
        "| exhaustive | {} | | | {:.3} | 100 % | {states:.0} | | |",
        exhaustive.iter().filter(|e| **e > 0.0).count(),
        mean(exhaustive.iter().copied())
    );
    for policy in policies {
        let of = |n: &String| &results[&(n.clone(), policy.clone())];
        let all: Vec<&Outcome> = names.iter().flat_map(|n| of(n)).collect();
        let met = names.iter().filter(|n| of(n).iter().all(|o| o.met)).count();
        let steady: Vec<f64> = all.iter().filter_map(|o| o.steady_emu).collect();
        let ratios: Vec<f64> = names.iter().flat_map(|n| of(n).iter().filter_map(|o| Some(o.steady_emu? / best[*n].1))).collect();
        let said = |x: f64| if steady.is_empty() { "-".into() } else { format!("{x:.3}") };
        println!(
            "| {policy} | {met} | {} of {} | {:.3} | {} | {} ({} geometric) | {:.1} | {:.1} | {:.1} s |",
            all.iter().filter(|o| o.met).count(),
            all.len(),
            mean(all.iter().map(|o| o.emu)),
            said(mean(steady.iter().copied())),
            said(mean(ratios.iter().copied())),
            said(geometric(&ratios)),
            mean(all.iter().map(|o| o.steps as f64)),
            mean(all.iter().map(|o| o.late_steps as f64)),
            mean(all.iter().map(|o| o.violation_s)),
        );
    }
}

/// E1 and E2.
fn mixes(at: &VirtualTarget, a: &Args) -> Result<()> {
    let all = workloads(at, "cosmos-e2", &a.only)?;
    type Of = (String, (State, f64, usize), Vec<(String, Vec<Outcome>)>);
    let of_one = |w: &Workload| -> Result<Of> {
        let mut judge = Judge::new(at, w)?;
        let best = judge.best();
        let mut outcomes = vec![];
        for policy in &a.policies {
            let runs = (1..=a.seeds)
                .map(|seed| one(at, w, &mut judge, policy_of(at, policy, best.0, Settings::default(), seed)?, seed))
                .collect::<Result<Vec<_>>>()?;
            outcomes.push((policy.clone(), runs));
        }
        eprintln!("{} done", w.name);
        Ok((w.name.clone(), best, outcomes))
    };
    let done: Vec<Of> = all.par_iter().map(of_one).collect::<Result<_>>()?;
    let (mut best, mut results) = (BTreeMap::new(), BTreeMap::new());
    println!("| workload | exhaustive | policy: EMU closed loop / steady, last state (cores, GB, of which pool), runs that met QoS |");
    println!("| --- | --- | --- |");
    for (name, of_all, outcomes) in done {
        let (s, emu, _) = of_all;
        let mut line = format!("| {name} | {emu:.3} ({}, {:.1}, {:.1}) |", s.cores, s.memory_gb, s.pool_gb);
        for (policy, runs) in outcomes {
            let (o, met) = (&runs[0], runs.iter().filter(|o| o.met).count());
            let steady = o.steady_emu.map_or("-".into(), |e| format!("{e:.3}"));
            let emu = mean(runs.iter().map(|o| o.emu));
            line += &format!(
                " {policy}: {emu:.3} / {steady} ({}, {:.1}, {:.1}) {met}/{};",
                o.last.cores,
                o.last.memory_gb,
                o.last.pool_gb,
                runs.len()
            );
            results.insert((name.clone(), policy), runs);
        }
        println!("{line} |");
        best.insert(name, of_all);
    }
    table("E1, medium load, medium over-commitment", "-medium-medium", &results, &best, &a.policies);
    table("E2", "mix-", &results, &best, &a.policies);
    println!("\nPublished, E1: QoS met in LD 0, CA 0, CMA 10, COSMOS 10 of 10; EMU of COSMOS +351.1 % over CMA, -0.31 % of exhaustive.");
    println!("Published, E2: COSMOS meets QoS in 90 of 90, near exhaustive.");
    Ok(())
}

fn main() -> Result<()> {
    let a = args();
    let at = VirtualTarget::of_platform("cosmos-server", None)?;
    match a.experiment.as_str() {
        "mixes" => mixes(&at, &a),
        "skipping" => more::skipping(&at, &a),
        "day" => more::day(&at, &a),
        "still" => more::still(&at, &a),
        "wrong" => more::wrong(&at, &a),
        other => Err(Error::BadInput(format!("experiment \"{other}\" is unknown: mixes, skipping, day, still or wrong"))),
    }
}
