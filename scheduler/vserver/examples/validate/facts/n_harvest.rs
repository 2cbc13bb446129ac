//! Harvesting cores of primary VMs (SmartHarvest paper): how the plant answers the paper's simple baselines. Figures 8, 9
//! and 15 were used for no parameter.

use super::harvesters::{run, Baseline};
use super::lab::{in_parallel, Lab};
use super::{list, three, Fact, Kind};
use std::collections::BTreeMap;
use surefoot_vserver::{BurstWorkload, CoreUse, PrimaryVm, Reassignment};

/// Table 2, figure 5: P99 may rise by a tenth.
const ALLOWED: f64 = 1.10;
/// Of each load of Table 2, seconds; the paper's minute resolves no more.
const LOAD_S: f64 = 20.0;
/// Requests of a run at one load: 4,000 beyond P99, of which those of one burst come together.
const RUN_REQUESTS: f64 = 400_000.0;
/// A run has at least so many seconds, and at most so many.
const RUN_S: [f64; 2] = [30.0, 200.0];
/// The paper's.
const RUNS: u64 = 3;
/// A second of requests before anything counts.
const WARM_S: f64 = 1.0;
/// Queries/s of Table 2, in its order, and P99 without harvesting, us.
const TABLE_2: [(f64, f64); 3] = [(80_000.0, 477.0), (20_000.0, 300.0), (160_000.0, 943.0)];
/// Its rows: P99 against no harvesting, us, and mean cores harvested.
const TABLE_2_ROWS: [(Baseline, [f64; 3], f64); 4] = [
    (Baseline::Fixed(5), [53.0, 400.0, 158.0], 2.4),
    (Baseline::Fixed(6), [14.0, 150.0, 19.0], 1.6),
    (Baseline::Fixed(7), [8.0, 28.0, 8.0], 1.1),
    (Baseline::PrevPeak, [19.0, 15.0, 18.0], 1.4),
];

/// Means over the runs of one baseline.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Of each VM at each load, in order.
    p99_us: Vec<f64>,
    /// Cores.
    harvested: f64,
    /// Of the dispatches: P99 of the wait, us, and the share that waited more than 50 us.
    wait_p99_us: f64,
    long: f64,
}

/// An experiment: VMs, each with a workload of its own, and a way to move cores.
#[derive(Clone)]
struct Trial<'a> {
    lab: &'a Lab,
    vm: PrimaryVm,
    workloads: Vec<&'a BurstWorkload>,
    /// Of the first VM, one after the other, queries/s.
    loads: Vec<f64>,
    load_s: f64,
    reassignment: Reassignment,
    settle_s: f64,
}

impl<'a> Trial<'a> {
    fn new(lab: &'a Lab, names: &[&str]) -> Self {
        let bursts = &lab.profiles.bursts;
        let workloads: Vec<&BurstWorkload> = names.iter().map(|n| &**bursts.workload(n).expect("a shipped workload")).collect();
        let run_s = (RUN_REQUESTS / workloads[0].qps).clamp(RUN_S[0], RUN_S[1]);
        Trial {
            lab,
            vm: bursts.primary().expect("a primary VM"),
            loads: vec![workloads[0].qps],
            workloads,
            load_s: run_s,
            reassignment: bursts.reassignment("cpugroups").expect("shipped"),
            // Section 5.1: 10 ms after each reassignment.
            settle_s: 10e-3,
        }
    }

    /// With interrupts: no pause after a reassignment (section 5.1).
    fn by_interrupts(mut self) -> Self {
        self.reassignment = self.lab.profiles.bursts.reassignment("interrupts").expect("shipped");
        self.settle_s = 0.0;
        self
    }

    fn at(mut self, qps: f64) -> Self {
        self.loads = vec![qps];
        self
    }

    fn of(&self, baseline: Baseline) -> Outcome {
        let runs = in_parallel(RUNS, |i| self.once(baseline, self.lab.run_seed(i)));
        let n = RUNS as f64;
        let mut mean = Outcome { p99_us: vec![0.0; runs[0].p99_us.len()], ..Outcome::default() };
        for r in &runs {
            mean.p99_us.iter_mut().zip(&r.p99_us).for_each(|(m, x)| *m += x / n);
            mean.harvested += r.harvested / n;
            mean.wait_p99_us += r.wait_p99_us / n;
            mean.long += r.long / n;
        }
        mean
    }

    fn once(&self, baseline: Baseline, seed: u64) -> Outcome {
        let vms: Vec<(&PrimaryVm, &BurstWorkload)> = self.workloads.iter().map(|w| (&self.vm, *w)).collect();
        let mut cores = CoreUse::group(&vms, self.reassignment, seed);
        let mut p99_us = vec![];
        cores.set_rate_rps(0, self.loads[0]);
        run(&mut cores, &self.vm, baseline, self.settle_s, WARM_S);
        cores.reset_waits();
        let (from_s, before) = (cores.now_s(), cores.spent().lent);
        for (i, qps) in self.loads.iter().enumerate() {
            cores.set_rate_rps(0, *qps);
            cores.reset_latencies();
            run(&mut cores, &self.vm, baseline, self.settle_s, WARM_S + (i + 1) as f64 * self.load_s);
            p99_us.extend((0..vms.len()).map(|vm| cores.latencies_ns(vm).value_at_quantile(0.99) as f64 * 1e-3));
        }
        let waits = cores.waits_ns();
        Outcome {
            p99_us,
            harvested: (cores.spent().lent - before) / (cores.now_s() - from_s),
            wait_p99_us: waits.value_at_quantile(0.99) as f64 * 1e-3,
            long: 1.0 - waits.count_between(0, 50_000) as f64 / waits.len() as f64,
        }
    }

    /// The smallest fixed buffer of 1 to `most` that keeps P99 within a tenth, for each VM; None if none does. By halving:
    /// a buffer larger than one that suffices does, too.
    fn smallest_buffers(&self, most: u32) -> Vec<Option<u32>> {
        let base = self.of(Baseline::NoHarvest).p99_us;
        let mut seen: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let mut p99_us = |buffer: u32| seen.entry(buffer).or_insert_with(|| self.of(Baseline::Fixed(buffer)).p99_us).clone();
        let smallest = |vm: usize| {
            let mut enough = |buffer: u32| p99_us(buffer)[vm] <= ALLOWED * base[vm];
            let (mut low, mut high) = (1, most + 1);
            while low < high {
                let middle = (low + high) / 2;
                if enough(middle) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            (low <= most).then_some(low)
        };
        (0..base.len()).map(smallest).collect()
    }
}

fn percent(x: f64, base: f64) -> String {
    format!("{:+.0} %", (x / base - 1.0) * 100.0)
}

fn buffer(b: Option<u32>) -> String {
    b.map_or("none".into(), |b| b.to_string())
}

pub fn facts(lab: &mut Lab) -> Vec<Fact> {
    let lab = &*lab;
    let mut out = table_2(lab);
    out.extend(figure_5(lab));
    out.extend(waits(lab));
    out.extend(figures_8_and_9(lab));
    out.extend(figure_15(lab));
    out
}

/// Table 2 and the load of figure 4.
fn table_2(lab: &Lab) -> Vec<Fact> {
    const SOURCE: &str = "SmartHarvest Table 2";
    let memcached = Trial::new(lab, &["memcached"]);
    let base_40 = memcached.of(Baseline::NoHarvest).p99_us[0];
    let trial = Trial { loads: TABLE_2.map(|t| t.0).into(), load_s: LOAD_S, ..memcached };
    let base = trial.of(Baseline::NoHarvest).p99_us;
    let text = |qps: f64| format!("memcached at {qps} QPS, no harvesting: P99, us");
    let mut out = vec![Fact::near(Kind::Fit, "SmartHarvest Fig. 4", text(40_000.0), 421.0, 1.2, base_40)];
    for ((qps, p99_us), got) in TABLE_2.iter().zip(&base) {
        out.push(Fact::near(Kind::Fit, SOURCE, text(*qps), *p99_us, 1.2, *got));
    }
    for (baseline, more_us, cores) in TABLE_2_ROWS {
        let got = trial.of(baseline);
        for (((qps, paper_base), more_us), (x, b)) in TABLE_2.iter().zip(more_us).zip(got.p99_us.iter().zip(&base)) {
            // As a share of P99 without harvesting: the model's own P99 is judged above. A run of a minute resolves 3 %.
            let (want, got) = (more_us / paper_base, x / b - 1.0);
            out.push(Fact::new(
                Kind::Fit,
                SOURCE,
                format!("memcached at {qps} QPS, {}: rise of P99", baseline.name()),
                format!("{:+.0} % (± 3 and a third of it)", want * 100.0),
                format!("{:+.0} %", got * 100.0),
                (got - want).abs() <= 0.03 + want / 3.0,
            ));
        }
        let text = format!("memcached at 80, 20, 160 k QPS, {}: mean cores harvested", baseline.name());
        out.push(Fact::near(Kind::Fit, SOURCE, text, cores, 1.2, got.harvested));
    }
    out
}

/// Figure 5, as section 5.3 tells it.
fn figure_5(lab: &Lab) -> Vec<Fact> {
    const SOURCE: &str = "SmartHarvest Sec. 5.3, Fig. 5";
    let mut out = vec![];
    for (name, want, cores_text, cores_ok) in [
        ("memcached", 7, "up to just 2 (1.5 to 2.2)", (|c: f64| (1.5..=2.2).contains(&c)) as fn(f64) -> bool),
        ("indexserve", 4, "more than 5", |c| c > 5.0),
    ] {
        let trial = Trial::new(lab, &[name]);
        let base = trial.of(Baseline::NoHarvest).p99_us[0];
        let (smaller, enough) = (trial.of(Baseline::Fixed(want - 1)), trial.of(Baseline::Fixed(want)));
        out.push(Fact::new(
            Kind::Fit,
            SOURCE,
            format!("{name}: a fixed buffer of {want} keeps P99 within +10 %, {} does not", want - 1),
            format!("{want}: up to +10 %, {}: more", want - 1),
            format!("{}, {}", percent(enough.p99_us[0], base), percent(smaller.p99_us[0], base)),
            enough.p99_us[0] <= ALLOWED * base && smaller.p99_us[0] > ALLOWED * base,
        ));
        out.push(Fact::new(
            Kind::Pred,
            SOURCE,
            format!("{name}: mean cores harvested with it"),
            cores_text,
            three(enough.harvested),
            cores_ok(enough.harvested),
        ));
    }
    for name in ["moses", "img-dnn"] {
        let trial = Trial::new(lab, &[name]);
        let (base, got) = (trial.of(Baseline::NoHarvest).p99_us[0], trial.of(Baseline::PrevPeak).p99_us[0]);
        let text = format!("{name}: rise of P99 with PrevPeak");
        out.push(Fact::new(Kind::Fit, SOURCE, text, "more than 50 %", percent(got, base), got > 1.5 * base));
    }
    let trials = ["indexserve", "memcached", "moses", "img-dnn"].map(|name| Trial::new(lab, &[name]).smallest_buffers(9)[0]);
    out.push(Fact::new(
        Kind::Pred,
        SOURCE,
        "smallest fixed buffer of indexserve, memcached, moses, img-dnn: none serves all and harvests what each allows",
        "they differ by 3 or more",
        list(trials.map(buffer)),
        trials.iter().all(Option::is_some) && trials.iter().max() >= trials.iter().min().map(|b| b.map(|b| b + 3)).as_ref(),
    ));
    out
}

/// The signal of the long-term safeguard.
fn waits(lab: &Lab) -> Vec<Fact> {
    const SOURCE: &str = "SmartHarvest Sec. 3.4";
    let trials = ["indexserve", "memcached", "moses", "img-dnn"].map(|name| Trial::new(lab, &[name]));
    let rest = trials.each_ref().map(|t| t.of(Baseline::NoHarvest));
    let short = trials.each_ref().map(|t| t.of(Baseline::Keep(3)));
    vec![
        Fact::new(
            Kind::Fit,
            SOURCE,
            "P99 of the wait per dispatch with idle cores, us: indexserve, memcached, moses, img-dnn",
            "below 6",
            list(rest.each_ref().map(|r| three(r.wait_p99_us))),
            rest.iter().all(|r| r.wait_p99_us < 6.0),
        ),
        Fact::new(
            Kind::Check,
            SOURCE,
            "dispatches that wait more than 50 us with all cores, and with 3 of 10: each workload",
            "below 1 %, from 1 % on",
            format!(
                "{}, {}",
                list(rest.each_ref().map(|r| format!("{:.1} %", r.long * 100.0))),
                list(short.each_ref().map(|r| format!("{:.0} %", r.long * 100.0)))
            ),
            rest.iter().all(|r| r.long < 0.01) && short.iter().all(|r| r.long >= 0.01),
        ),
    ]
}

/// Two VMs in one group; the plant was fitted to single VMs only.
fn figures_8_and_9(lab: &Lab) -> Vec<Fact> {
    // None counts as more than any.
    let twins =
        Trial::new(lab, &["memcached", "memcached"]).smallest_buffers(19).into_iter().max_by_key(|b| b.unwrap_or(u32::MAX)).flatten();
    let each = Trial::new(lab, &["memcached", "indexserve"]).smallest_buffers(19);
    let apart = match each[..] {
        [Some(a), Some(b)] => a.abs_diff(b),
        _ => 0,
    };
    vec![
        Fact::new(
            Kind::Pred,
            "SmartHarvest Sec. 5.4, Fig. 8",
            "memcached + memcached, 20 cores: smallest fixed buffer that keeps both P99s within +10 %",
            "17 (± 1)",
            buffer(twins),
            twins.is_some_and(|b| (16..=18).contains(&b)),
        ),
        Fact::new(
            Kind::Pred,
            "SmartHarvest Sec. 5.4, Fig. 9",
            "memcached + indexserve, 20 cores: smallest fixed buffer for each; no single one works well for both",
            "they differ by 3 or more",
            list(each.iter().map(|b| buffer(*b))),
            apart >= 3,
        ),
    ]
}

/// Interrupts against cpugroups. The paper's server has 2.6 GHz there; task times were left as they are.
fn figure_15(lab: &Lab) -> Vec<Fact> {
    const SOURCE: &str = "SmartHarvest Sec. 5.8, Fig. 15";
    const LOADS: [f64; 3] = [250.0, 500.0, 1000.0];
    let (mut lower, mut more, mut pairs) = (0, 0, 0);
    let (mut slow, mut fast) = (vec![], vec![]);
    for qps in LOADS {
        let groups = Trial::new(lab, &["indexserve"]).at(qps);
        let interrupts = groups.clone().by_interrupts();
        for b in 1..=6 {
            let (x, y) = (groups.of(Baseline::Fixed(b)), interrupts.of(Baseline::Fixed(b)));
            pairs += 1;
            // Equal to the histogram's digit.
            lower += u32::from(y.p99_us[0] <= x.p99_us[0] * 1.001);
            more += u32::from(y.harvested >= x.harvested);
        }
        slow.push(groups.smallest_buffers(9)[0]);
        fast.push(interrupts.smallest_buffers(9)[0]);
    }
    let fewer = slow.iter().zip(&fast).all(|(s, f)| matches!((s, f), (Some(s), Some(f)) if f < s));
    vec![
        Fact::new(
            Kind::Pred,
            SOURCE,
            "indexserve at 250, 500, 1000 QPS, fixed buffers of 1 to 6: cases in which interrupts give no higher P99 than cpugroups",
            format!("{pairs} of {pairs}"),
            format!("{lower} of {pairs}"),
            lower == pairs,
        ),
        Fact::new(
            Kind::Pred,
            SOURCE,
            "the same: cases in which interrupts harvest as much or more",
            format!("{pairs} of {pairs}"),
            format!("{more} of {pairs}"),
            more == pairs,
        ),
        Fact::new(
            Kind::Pred,
            SOURCE,
            "the same loads: smallest fixed buffer within +10 %, cpugroups and interrupts",
            "smaller with interrupts at each load",
            format!("{}, {}", list(slow.iter().map(|b| buffer(*b))), list(fast.iter().map(|b| buffer(*b)))),
            fewer,
        ),
        Fact::new(
            Kind::Pred,
            SOURCE,
            "with interrupts, too, no fixed buffer suits every load: the smallest ones differ",
            "not all equal",
            list(fast.iter().map(|b| buffer(*b))),
            fast.iter().any(|b| *b != fast[0]),
        ),
    ]
}
