//! Rows of all seeds as a page: rise of P99 over no harvesting of the same case and seed, and cores lent.

use super::cases::EXPERIMENTS;
use super::run::Row;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// P99 may rise by a tenth (SmartHarvest, section 5.1).
const ALLOWED: f64 = 1.10;
const BASE: &str = "no-harvest";

/// Mean and range over seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    pub mean: f64,
    pub least: f64,
    pub most: f64,
}

impl Range {
    fn of(values: &[f64]) -> Self {
        let sum: f64 = values.iter().sum();
        let fold = |f: fn(f64, f64) -> f64, from| values.iter().copied().fold(from, f);
        Range { mean: sum / values.len().max(1) as f64, least: fold(f64::min, f64::INFINITY), most: fold(f64::max, f64::NEG_INFINITY) }
    }
}

/// One policy in one case.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub experiment: String,
    pub case: String,
    pub mover: String,
    pub policy: String,
    pub variant: String,
    pub seeds: usize,
    /// Of each stage and VM: mean P99, µs, and P99 over that without harvesting, where that was run.
    pub p99_us: Vec<f64>,
    pub rise: Vec<Option<Range>>,
    /// Whether the mean rise of every stage and VM is within a tenth; None where it is not known.
    pub kept: Option<bool>,
    pub cores_lent: Range,
    pub cores_busy: f64,
    pub peak_busy: f64,
    pub exhausted_per_s: f64,
    pub stops: f64,
    pub long_waits: f64,
    pub hdinsight: f64,
    pub terasort: f64,
}

type Key = (String, String, String);

/// Cells in the order of the rows.
pub fn cells(rows: &[Row]) -> Vec<Cell> {
    let mut order: Vec<(Key, String, String)> = vec![];
    let mut of: BTreeMap<(Key, String, String), Vec<&Row>> = BTreeMap::new();
    for r in rows {
        let key = ((r.experiment.clone(), r.case.clone(), r.mover.clone()), r.policy.clone(), r.variant.clone());
        let all = of.entry(key.clone()).or_default();
        if all.is_empty() {
            order.push(key);
        }
        all.push(r);
    }
    order.iter().map(|key| cell(key, &of[key], of.get(&(key.0.clone(), BASE.into(), String::new())))).collect()
}

fn cell(key: &(Key, String, String), rows: &[&Row], base: Option<&Vec<&Row>>) -> Cell {
    let ((experiment, case, mover), policy, variant) = key.clone();
    let mean = |of: fn(&Row) -> f64| rows.iter().map(|r| of(r)).sum::<f64>() / rows.len().max(1) as f64;
    let mut places: Vec<(u32, u32)> = rows.iter().map(|r| (r.stage, r.vm)).collect();
    places.sort_unstable();
    places.dedup();
    let at = |(stage, vm): (u32, u32)| rows.iter().filter(move |r| (r.stage, r.vm) == (stage, vm));
    let p99_us = places.iter().map(|p| Range::of(&at(*p).map(|r| r.p99_us).collect::<Vec<_>>()).mean).collect();
    let rise: Vec<Option<Range>> = places
        .iter()
        .map(|p| {
            let ratio = |r: &&Row| {
                let same = base?.iter().find(|b| (b.stage, b.vm, b.seed) == (r.stage, r.vm, r.seed))?;
                (same.p99_us > 0.0).then(|| r.p99_us / same.p99_us)
            };
            let ratios: Vec<f64> = at(*p).filter_map(ratio).collect();
            (!ratios.is_empty()).then(|| Range::of(&ratios))
        })
        .collect();
    let known = !rise.is_empty() && rise.iter().all(Option::is_some);
    // A run's stages by their length: cores of one run, then their range over seeds.
    let mut by_seed: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for r in rows.iter().filter(|r| r.vm == 0) {
        let sum = by_seed.entry(r.seed).or_default();
        sum.0 += r.cores_lent * r.seconds;
        sum.1 += r.seconds;
    }
    let lent: Vec<f64> = by_seed.values().map(|(core_s, s)| core_s / s.max(1e-9)).collect();
    let seconds: f64 = rows.iter().filter(|r| r.vm == 0).map(|r| r.seconds).sum();
    let exhausted: u64 = rows.iter().filter(|r| r.vm == 0).map(|r| r.exhausted).sum();
    let stops: u64 = rows.iter().filter(|r| r.vm == 0).map(|r| r.stops).sum();
    Cell {
        kept: known.then(|| rise.iter().flatten().all(|r| r.mean <= ALLOWED)),
        rise,
        experiment,
        case,
        mover,
        policy,
        variant,
        seeds: by_seed.len(),
        p99_us,
        cores_lent: Range::of(&lent),
        cores_busy: mean(|r| r.cores_busy),
        peak_busy: mean(|r| r.peak_busy),
        exhausted_per_s: exhausted as f64 / seconds.max(1e-9),
        stops: stops as f64 / by_seed.len().max(1) as f64,
        long_waits: mean(|r| r.long_waits),
        hdinsight: mean(|r| r.hdinsight),
        terasort: mean(|r| r.terasort),
    }
}

/// The page: a table for each experiment, what the paper says above it, and sums over all cases.
pub fn page(rows: &[Row]) -> String {
    let cells = cells(rows);
    let mut out = String::from("# Policies below a tick\n\nRise: P99 over that of no harvesting with the same seed, mean over seeds (least to most), of each stage and VM. Lent: cores that the job used beside its own.\n");
    let mut experiments: Vec<&str> = cells.iter().map(|c| c.experiment.as_str()).collect();
    experiments.dedup();
    for e in experiments {
        let of: Vec<&Cell> = cells.iter().filter(|c| c.experiment == e).collect();
        let _ = writeln!(out, "\n## {e}\n");
        if let Some((_, published)) = EXPERIMENTS.iter().find(|(n, _)| *n == e) {
            let _ = writeln!(out, "Published: {published}.\n");
        }
        let _ = writeln!(
            out,
            "| case | policy | P99, us | rise, % | kept | lent, cores | busy / peak | exhausted, 1/s | stops a run | hdinsight, terasort |"
        );
        let _ = writeln!(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
        for c in of {
            let _ = writeln!(out, "{}", line(c));
        }
    }
    out + &sums(&cells)
}

fn line(c: &Cell) -> String {
    let percent = |r: f64| (r - 1.0) * 100.0;
    let rise = |r: &Option<Range>| match r {
        Some(r) => format!("{:+.1} ({:+.1} to {:+.1})", percent(r.mean), percent(r.least), percent(r.most)),
        None => "-".into(),
    };
    let name = if c.variant.is_empty() { c.policy.clone() } else { format!("{}, {}", c.policy, c.variant) };
    let case = if c.mover == "cpugroups" || c.case.contains(&c.mover) { c.case.clone() } else { format!("{}, {}", c.case, c.mover) };
    format!(
        "| {case} | `{name}` | {} | {} | {} | {:.2} ({:.2} to {:.2}) | {:.2} / {:.1} | {:.1} | {:.1} | {:.2}, {:.2} |",
        c.p99_us.iter().map(|x| format!("{x:.0}")).collect::<Vec<_>>().join("; "),
        c.rise.iter().map(rise).collect::<Vec<_>>().join("; "),
        c.kept.map_or("-", |k| if k { "yes" } else { "no" }),
        c.cores_lent.mean,
        c.cores_lent.least,
        c.cores_lent.most,
        c.cores_busy,
        c.peak_busy,
        c.exhausted_per_s,
        c.stops,
        c.hdinsight,
        c.terasort
    )
}

/// Of each policy without a variant: in how many cases P99 was kept, and cores lent in sum, all cases counted and those kept alone.
fn sums(cells: &[Cell]) -> String {
    let judged: Vec<&Cell> = cells.iter().filter(|c| c.variant.is_empty() && c.kept.is_some()).collect();
    let mut policies: Vec<&str> = vec![];
    for c in &judged {
        if !policies.contains(&c.policy.as_str()) {
            policies.push(&c.policy);
        }
    }
    let mut out = String::from(
        "\n## All cases\n\nF6 is indexserve of F5 again, and so is F15 at its own load.\n\n| policy | cases | P99 kept in | worst rise, % | lent in sum, cores |\n| --- | --- | --- | --- | --- |\n",
    );
    for p in policies {
        let of: Vec<&&Cell> = judged.iter().filter(|c| c.policy == p).collect();
        let kept = of.iter().filter(|c| c.kept == Some(true)).count();
        let worst = of.iter().flat_map(|c| c.rise.iter().flatten()).map(|r| r.mean).fold(0.0, f64::max);
        let lent: f64 = of.iter().map(|c| c.cores_lent.mean).sum();
        let _ = writeln!(out, "| `{p}` | {} | {kept} | {:+.1} | {lent:.2} |", of.len(), (worst - 1.0) * 100.0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, seed: u64, stage: u32, p99_us: f64, cores_lent: f64) -> Row {
        let text = |s: &str| s.to_string();
        Row {
            experiment: text("t2"),
            case: text("memcached"),
            policy: text(policy),
            mover: text("cpugroups"),
            seed,
            stage,
            p99_us,
            cores_lent,
            seconds: 10.0,
            ..Row::default()
        }
    }

    /// Each seed is compared with its own run without harvesting; cores are those of the whole run.
    #[test]
    fn seeds_are_compared_with_themselves() {
        let mut rows = vec![];
        for seed in 1..=2 {
            let base = 100.0 * seed as f64;
            rows.extend([row(BASE, seed, 0, base, 0.0), row(BASE, seed, 1, base, 0.0)]);
            rows.extend([
                row("smartharvest", seed, 0, base * 1.05, 1.0),
                row("smartharvest", seed, 1, base * (1.0 + 0.1 * seed as f64), 3.0),
            ]);
        }
        let all = cells(&rows);
        let c = &all[1];
        let [a, b] = [c.rise[0].unwrap(), c.rise[1].unwrap()];
        assert!((a.mean - 1.05).abs() < 1e-9 && (b.least - 1.1).abs() < 1e-9 && (b.most - 1.2).abs() < 1e-9);
        assert_eq!((c.kept, c.cores_lent.mean, c.seeds), (Some(false), 2.0, 2));
        let page = page(&rows);
        assert!(page.contains("Published: memcached at 80,000") && page.contains("| `smartharvest` | 1 | 0 | +15.0 | 2.00 |"), "{page}");
    }
}
