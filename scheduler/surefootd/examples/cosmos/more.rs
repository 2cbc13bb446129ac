//! E3 (fewer states), E4 (a day), and what the paper leaves out: a kept state that stays, and wrong readings.

use crate::{is_met, last_state, mean, one, policy_of, ticks, workloads, Args, Counted, Judge, Outcome, State};
use rayon::prelude::*;
use std::collections::BTreeMap;
use surefoot_policy::{Policy, Settings};
use surefoot_server::{Observation, Plan, Resource};
use surefootd::base::error::Result;
use surefootd::eval::run::run;
use surefootd::stage::virtual_target::VirtualTarget;
use surefootd::stage::workload::Workload;

/// Loads of memcached in the paper's Table 1, requests/s.
const LOADS_RPS: [(&str, f64); 3] = [("EX-L", 37_500.0), ("EX-M", 75_000.0), ("EX-H", 150_000.0)];
/// After a change of load so long misses do not count.
const ALLOWED_MS: i64 = 30_000;
/// The search without skipping has a hundred states, and takes its time.
const WITHOUT_SKIPPING_MS: u64 = 7_200_000;
/// A search may take so long, then ten minutes count.
const SEARCH_MS: u64 = 360_000;
const STILL_MS: u64 = 600_000;

fn named(policy: &str, w: &Workload, judge: &mut Judge, at: &VirtualTarget, settings: &Settings, seed: u64) -> Result<Outcome> {
    one(at, w, judge, policy_of(at, policy, State::default(), settings.clone(), seed)?, seed)
}

/// E3: states that are judged at medium load and over-commitment, with and without skipping.
pub fn skipping(at: &VirtualTarget, a: &Args) -> Result<()> {
    let mixes: Vec<Workload> = workloads(at, "cosmos-e2", &a.only)?.into_iter().filter(|w| w.name.contains("-medium-medium")).collect();
    let rows: Vec<(String, f64, f64, f64, f64)> = mixes
        .par_iter()
        .map(|w| {
            let mut judge = Judge::new(at, w)?;
            let mut all = Settings::default();
            all.cosmos.step.skips = 0;
            let long = Workload { duration_ms: WITHOUT_SKIPPING_MS, ..w.clone() };
            let of = |settings: &Settings, judge: &mut Judge| -> Result<Vec<Outcome>> {
                (1..=a.seeds).map(|seed| named("cosmos", &long, judge, at, settings, seed)).collect()
            };
            let (with, without) = (of(&Settings::default(), &mut judge)?, of(&all, &mut judge)?);
            let steps = |of: &[Outcome]| mean(of.iter().map(|o| o.steps as f64));
            let emu = |of: &[Outcome]| mean(of.iter().filter_map(|o| o.steady_emu));
            Ok((w.name.clone(), steps(&with), steps(&without), emu(&with), emu(&without)))
        })
        .collect::<Result<_>>()?;
    println!("| mix | steps | without skipping | fewer | EMU, steady | without skipping |\n| --- | --- | --- | --- | --- | --- |");
    for (name, with, without, emu, emu_without) in &rows {
        println!("| {name} | {with:.1} | {without:.1} | {:.1} % | {emu:.3} | {emu_without:.3} |", 100.0 * (1.0 - with / without));
    }
    let fewer = mean(rows.iter().map(|r| 1.0 - r.1 / r.2));
    println!("\nFewer in the mean: {:.1} % (published: 79.6 %), {} seeds.", 100.0 * fewer, a.seeds);
    Ok(())
}

/// What a run of the day showed.
#[derive(Clone, Debug, Default)]
struct Day {
    /// Ticks within the target, those that miss it, of these the ones later than 30 s after a change, and of these the ones after the first hour.
    met: u64,
    missed: u64,
    late: u64,
    later: u64,
    emu: f64,
    /// EMU by hour, missed ticks as 0.
    hours: BTreeMap<i64, (f64, u64)>,
}

fn lived(at: &VirtualTarget, w: &Workload, policy: &mut dyn Policy, seed: u64) -> Result<Day> {
    let (_, moments) = run(at, w, policy, seed, true)?;
    let mut day = Day::default();
    for (t_ms, (met, emu)) in ticks(at, w, &moments, -1)?.into_iter().filter(|(t_ms, _)| *t_ms <= w.duration_ms as i64) {
        let change = w.lc[0].rps.iter().map(|(t, _)| *t as i64).filter(|t| *t < t_ms).max().unwrap_or(0);
        day.later += u64::from(!met && t_ms - change > ALLOWED_MS && change > 0);
        let emu = if met { emu } else { 0.0 };
        day.met += u64::from(met);
        day.missed += u64::from(!met);
        day.late += u64::from(!met && t_ms - change > ALLOWED_MS);
        day.emu += emu;
        let hour = day.hours.entry(change).or_default();
        *hour = (hour.0 + emu, hour.1 + 1);
    }
    day.emu /= (day.met + day.missed).max(1) as f64;
    Ok(day)
}

/// E4: a day's load for memcached beside STREAM; one state for good, found at low, medium or high load, and the search.
pub fn day(at: &VirtualTarget, a: &Args) -> Result<()> {
    let w = &workloads(at, "cosmos-e4", &a.only)?[0];
    let mut policies: Vec<(&str, &str, State)> =
        ["cosmos", "cosmos-ca", "cosmos-cma"].map(|p| (p, p, State::default())).into_iter().collect();
    for (name, rps) in LOADS_RPS {
        policies.push((name, "cosmos-static", Judge::new(at, w)?.at_rps(rps).best().0));
    }
    let late = "of these later than 30 s after a change | and after the first hour";
    println!("| policy | state (cores, GB, of which pool) | ticks within the target | missed | {late} | EMU |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let done: Vec<(&str, State, Vec<Day>)> = policies
        .par_iter()
        .map(|(name, policy, s)| {
            let days = (1..=a.seeds)
                .map(|seed| lived(at, w, &mut *policy_of(at, policy, *s, Settings::default(), seed)?, seed))
                .collect::<Result<Vec<_>>>()?;
            Ok((*name, *s, days))
        })
        .collect::<Result<_>>()?;
    for (name, s, days) in &done {
        let of = |f: fn(&Day) -> f64| mean(days.iter().map(f));
        let ticks = of(|d| (d.met + d.missed) as f64);
        println!(
            "| {name} | {}, {:.1}, {:.1} | {:.2} % | {:.0} | {:.0} | {:.0} | {:.3} |",
            s.cores,
            s.memory_gb,
            s.pool_gb,
            100.0 * of(|d| d.met as f64) / ticks,
            of(|d| d.missed as f64),
            of(|d| d.late as f64),
            of(|d| d.later as f64),
            of(|d| d.emu)
        );
    }
    println!("\nEMU by hour, seed 1:\n\n| hour | requests/s | {} |", done.iter().map(|d| d.0).collect::<Vec<_>>().join(" | "));
    println!("| --- | --- |{}", " --- |".repeat(done.len()));
    for (n, (from_ms, rps)) in w.lc[0].rps.iter().enumerate() {
        let of = |days: &[Day]| days[0].hours.get(&(*from_ms as i64)).map_or("-".into(), |(emu, n)| format!("{:.2}", emu / *n as f64));
        println!("| {n} | {rps:.0} | {} |", done.iter().map(|d| of(&d.2)).collect::<Vec<_>>().join(" | "));
    }
    Ok(())
}

/// Ten minutes after the search, at a load that does not change.
pub fn still(at: &VirtualTarget, a: &Args) -> Result<()> {
    let rows = watched(at, a, &[("as it is", 1.0, 1.0)])?;
    println!("| mix | steps in ten minutes after the search | missed ticks of 6,000 |\n| --- | --- | --- |");
    for r in &rows {
        println!("| {} | {:.1} | {:.1} |", r.mix, r.late_steps, r.missed);
    }
    let calm = rows.iter().filter(|r| r.late_steps == 0.0).count();
    println!("\nWithout a step in all {} seeds: {calm} of {}.", a.seeds, rows.len());
    Ok(())
}

/// Footprints, or what the pool holds, are read 10 % too high or too low.
pub fn wrong(at: &VirtualTarget, a: &Args) -> Result<()> {
    let readings = [
        ("as it is", 1.0, 1.0),
        ("w 10 % too high", 1.1, 1.0),
        ("w 10 % too low", 0.9, 1.0),
        ("gamma 10 % too high", 1.0, 1.1),
        ("gamma 10 % too low", 1.0, 0.9),
    ];
    let rows = watched(at, a, &readings)?;
    println!("| reading | runs whose p99 is within the target in 95 % of ten minutes | missed ticks of 6,000 | EMU, steady |\n| --- | --- | --- | --- |");
    for (name, ..) in readings {
        let of: Vec<&Watched> = rows.iter().filter(|r| r.reading == name).collect();
        let held: usize = of.iter().map(|r| r.held).sum();
        let (missed, emu) = (mean(of.iter().map(|r| r.missed)), mean(of.iter().map(|r| r.emu)));
        println!("| {name} | {held} of {} | {missed:.1} | {emu:.3} |", of.len() as u64 * a.seeds);
    }
    Ok(())
}

/// A policy that reads footprints and ratios wrongly.
struct Misread {
    inner: Box<dyn Policy>,
    w: f64,
    gamma: f64,
}

impl Policy for Misread {
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
        let mut wrong = seen.clone();
        for m in wrong.services.iter_mut().map(|s| &mut s.memory) {
            // What is swapped out takes up the difference, w being its sum with what is resident; where that is too little, what is resident does.
            let resident = m.in_use_bytes.unwrap_or(0).saturating_sub(m.pool_bytes.unwrap_or(0));
            let w = ((resident + m.swapped_bytes.unwrap_or(0)) as f64 * self.w) as u64;
            m.swapped_bytes = m.swapped_bytes.map(|_| w.saturating_sub(resident));
            m.in_use_bytes = m.in_use_bytes.map(|b| b - resident.saturating_sub(w));
            m.stored_bytes = m.stored_bytes.map(|b| (b as f64 * self.gamma) as u64);
        }
        self.inner.step(now_ms, &wrong)
    }
}

/// A name, and by how much footprint and compression ratio are misread.
type Reading = (&'static str, f64, f64);

/// What ten minutes after the search showed, in the mean over seeds.
struct Watched {
    mix: String,
    reading: &'static str,
    late_steps: f64,
    missed: f64,
    emu: f64,
    held: usize,
}

fn watched(at: &VirtualTarget, a: &Args, readings: &[Reading]) -> Result<Vec<Watched>> {
    let mixes = workloads(at, "cosmos-e2", &a.only)?;
    let all: Vec<(&Workload, &Reading)> = mixes.iter().flat_map(|w| readings.iter().map(move |r| (w, r))).collect();
    all.par_iter()
        .map(|(w, (reading, of_w, of_gamma))| {
            let long = Workload { duration_ms: SEARCH_MS + STILL_MS, ..(*w).clone() };
            let mut judge = Judge::new(at, w)?;
            let (mut steps, mut missed, mut emu, mut held) = (vec![], vec![], vec![], 0);
            for seed in 1..=a.seeds {
                let inner = policy_of(at, "cosmos", State::default(), Settings::default(), seed)?;
                let mut policy = Counted { inner: Box::new(Misread { inner, w: *of_w, gamma: *of_gamma }), steps_ms: vec![] };
                let (_, moments) = run(at, &long, &mut policy, seed, true)?;
                let late: Vec<_> = moments.iter().filter(|m| m.t_ms > SEARCH_MS as i64 && m.t_ms <= long.duration_ms as i64).collect();
                let lc: Vec<_> = late.iter().filter(|m| m.is_lc).collect();
                let of = lc.iter().filter(|m| !is_met(m)).count();
                steps.push(policy.steps_ms.iter().filter(|t| **t > SEARCH_MS && **t <= long.duration_ms).count() as f64);
                held += usize::from((of as f64) <= 0.05 * lc.len() as f64);
                missed.push(of as f64);
                emu.extend(last_state(&moments).map(|s| judge.emu(s)));
            }
            let of = |x: &[f64]| mean(x.iter().copied());
            Ok(Watched { mix: w.name.clone(), reading, late_steps: of(&steps), missed: of(&missed), emu: of(&emu), held })
        })
        .collect()
}
