//! One run: a policy below a tick on virtual primary VMs.

use super::cases::{bad, Case, Entry};
use crate::base::error::{Error, Result};
use crate::eval::columns::quoted;
use serde::{Deserialize, Serialize};
use surefoot_harvest::window::Readings;
use surefoot_harvest::{drive, Harvester, Tally};
use surefoot_server::{CpuSet, Lease, LendError, Lender, Lent, Waits};
use surefoot_vserver::profile::{BurstWorkload, Bursts, PrimaryVm};
use surefoot_vserver::VirtualLender;

/// Time before anything counts, s: two looks of the long-term safeguard and the learner's first windows.
const WARM_S: f64 = 2.0;
/// Times that f14 moves a core.
const MOVES: u32 = 500;
/// Between two looks of f14 at where a core is, µs.
const MOVE_LOOK_US: u64 = 10;

/// One VM in one stage of one run (docs/smartharvest.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub experiment: String,
    pub case: String,
    pub policy: String,
    pub variant: String,
    pub mover: String,
    pub seed: u64,
    pub stage: u32,
    pub vm: u32,
    pub workload: String,
    pub load_rps: f64,
    pub seconds: f64,
    pub requests: u64,
    pub mean_us: f64,
    pub p99_us: f64,
    /// Of the group, as all that follows: cores that the job used, on average.
    pub cores_lent: f64,
    pub cores_busy: f64,
    /// Mean of the most busy cores of each window of 25 ms.
    pub peak_busy: f64,
    /// Share of dispatches that waited more than 50 µs.
    pub long_waits: f64,
    /// Readings of busy cores.
    pub readings_per_s: f64,
    pub moves: u64,
    pub exhausted: u64,
    pub stops: u64,
    pub predicted: u64,
    pub short: u64,
    pub spare: u64,
    /// Speed of a job against its own core alone.
    pub hdinsight: f64,
    pub terasort: f64,
}

/// Columns of rows.csv, in order.
pub const COLUMNS: [&str; 27] = [
    "experiment",
    "case",
    "policy",
    "variant",
    "mover",
    "seed",
    "stage",
    "vm",
    "workload",
    "load_rps",
    "seconds",
    "requests",
    "mean_us",
    "p99_us",
    "cores_lent",
    "cores_busy",
    "peak_busy",
    "long_waits",
    "readings_per_s",
    "moves",
    "exhausted",
    "stops",
    "predicted",
    "short",
    "spare",
    "hdinsight",
    "terasort",
];

impl Row {
    /// Its line of rows.csv.
    pub fn csv(&self) -> Result<String> {
        let fault = || Error::Failed("rows: no object of columns. This is a fault of surefootd, please report it".into());
        let value = serde_json::to_value(self).map_err(|_| fault())?;
        let cell = |name: &&str| match value.get(*name) {
            Some(serde_json::Value::String(s)) => Ok(quoted(s.clone())),
            Some(v) => Ok(v.to_string()),
            None => Err(fault()),
        };
        Ok(COLUMNS.iter().map(cell).collect::<Result<Vec<_>>>()?.join(",") + "\n")
    }
}

/// A lender whose readings are counted by windows of 25 ms on the way.
struct Watched {
    inner: VirtualLender,
    window_us: u64,
    readings: Readings,
    window: u64,
    peaks: f64,
    windows: u64,
    /// Dispatches, and those that waited long.
    waits: [u64; 2],
}

impl Watched {
    fn start(&mut self) {
        self.readings.clear();
        (self.peaks, self.windows, self.waits) = (0.0, 0, [0; 2]);
        self.inner.reset_latencies();
    }
}

impl Lender for Watched {
    fn lease(&self) -> &Lease {
        self.inner.lease()
    }

    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn advance_to(&mut self, t_us: u64) {
        self.inner.advance_to(t_us);
    }

    fn busy(&mut self) -> std::result::Result<u32, LendError> {
        let busy = self.inner.busy()?;
        let window = self.inner.now_us() / self.window_us;
        if window != self.window && !self.readings.is_empty() {
            self.peaks += f64::from(self.readings.peak());
            self.windows += 1;
            self.readings.clear();
        }
        self.window = window;
        self.readings.add(busy);
        Ok(busy)
    }

    fn waits(&mut self) -> std::result::Result<Waits, LendError> {
        let waits = self.inner.waits()?;
        self.waits[0] += waits.dispatches;
        self.waits[1] += waits.long().unwrap_or(0);
        Ok(waits)
    }

    fn waiting_us(&mut self) -> std::result::Result<f64, LendError> {
        self.inner.waiting_us()
    }

    fn lent(&mut self) -> Lent {
        self.inner.lent()
    }

    fn lend(&mut self, cores: u32) -> std::result::Result<Lent, LendError> {
        self.inner.lend(cores)
    }
}

/// Core-seconds so far.
struct Spent {
    used: f64,
    lent: f64,
    lent_s: Vec<f64>,
    taken: u64,
}

impl Spent {
    fn of(lender: &VirtualLender) -> Self {
        let truth = lender.truth();
        let spent = truth.spent();
        Spent { used: spent.used, lent: spent.lent, lent_s: truth.lent_s().to_vec(), taken: truth.taken() }
    }
}

/// The VMs of a case, and the number of their cores.
fn lender(case: &Case, bursts: &Bursts, seed: u64) -> Result<(VirtualLender, PrimaryVm, u32)> {
    let vm = bursts.primary().map_err(bad)?;
    let workloads = case.vms.iter().map(|(name, _)| bursts.workload(name).map_err(bad)).collect::<Result<Vec<_>>>()?;
    let vms: Vec<(&PrimaryVm, &BurstWorkload)> = workloads.iter().map(|w| (&vm, &***w)).collect();
    let cores = vm.cores * vms.len() as u32;
    let mut cpus = CpuSet::empty();
    (1..cores).for_each(|c| {
        cpus.insert(c);
    });
    let lease = Lease { lender: "primaries".into(), borrower: "job".into(), cpus };
    let reassignment = bursts.reassignment(&case.mover).map_err(bad)?;
    let mut lender = VirtualLender::group(lease, &vms, reassignment, seed);
    for (i, (_, load)) in case.vms.iter().enumerate() {
        if let Some(load) = load {
            lender.set_rate_rps(i, *load);
        }
    }
    Ok((lender, vm, cores))
}

/// One run of one policy; a row for each stage and VM.
///
/// # Errors
/// [`Error::BadInput`] for names that there are not.
pub fn run(case: &Case, entry: &Entry, bursts: &Bursts, seed: u64) -> Result<Vec<Row>> {
    let (inner, vm, cores) = lender(case, bursts, seed)?;
    let mut harvester = Harvester::named(&entry.policy, cores, cores - 1, &entry.settings).map_err(Error::BadInput)?;
    let window_us = (vm.window_ms * 1e3) as u64;
    let mut lender = Watched { inner, window_us, readings: Readings::new(cores), window: 0, peaks: 0.0, windows: 0, waits: [0; 2] };
    let jobs = ["hdinsight", "terasort"].map(|name| bursts.batch(name).ok());
    let failed = |e: LendError| Error::Failed(e.to_string());
    let us = |s: f64| (s * 1e6).round() as u64;
    let mut end_s = WARM_S;
    if let Some(first) = case.stages.first() {
        lender.inner.set_rate_rps(0, first.load_rps);
    }
    drive(&mut lender, &mut harvester, us(end_s)).map_err(failed)?;
    let mut rows = vec![];
    let mut at = 0;
    while at < case.stages.len() {
        let parts = 1 + case.stages[at + 1..].iter().take_while(|s| s.goes_on).count();
        lender.start();
        if at == 0 {
            // Those of before count for no stage.
            lender.inner.waits().map_err(failed)?;
        }
        let (from, tally) = (Spent::of(&lender.inner), *harvester.tally());
        let mut s = 0.0;
        for stage in &case.stages[at..at + parts] {
            lender.inner.set_rate_rps(0, stage.load_rps);
            s += stage.s;
            end_s += stage.s;
            drive(&mut lender, &mut harvester, us(end_s)).map_err(failed)?;
        }
        lender.waits().map_err(failed)?;
        let truth = lender.inner.truth();
        let to = Spent::of(&lender.inner);
        let lent_s: Vec<f64> = to.lent_s.iter().zip(&from.lent_s).map(|(a, b)| a - b).collect();
        let speed = |i: usize| jobs[i].as_ref().map_or(0.0, |j| j.speed_up(&lent_s, to.taken - from.taken));
        let now = *harvester.tally();
        let since = |of: fn(&Tally) -> u64| of(&now) - of(&tally);
        for (i, (name, load)) in case.vms.iter().enumerate() {
            let latencies = truth.latencies_ns(i);
            rows.push(Row {
                experiment: case.experiment.clone(),
                case: case.name.clone(),
                policy: entry.policy.clone(),
                variant: entry.variant.clone(),
                mover: case.mover.clone(),
                seed,
                stage: rows.len() as u32 / case.vms.len() as u32,
                vm: i as u32,
                workload: name.clone(),
                load_rps: if i == 0 { case.stages[at].load_rps } else { load.unwrap_or(bursts.workload(name).map_err(bad)?.qps) },
                seconds: s,
                requests: latencies.len(),
                mean_us: latencies.mean() * 1e-3,
                p99_us: latencies.value_at_quantile(0.99) as f64 * 1e-3,
                cores_lent: (to.lent - from.lent) / s,
                cores_busy: (to.used - from.used) / s,
                peak_busy: lender.peaks / lender.windows.max(1) as f64,
                long_waits: lender.waits[1] as f64 / lender.waits[0].max(1) as f64,
                readings_per_s: since(|t| t.readings) as f64 / s,
                moves: since(|t| t.moves),
                exhausted: since(|t| t.exhausted),
                stops: since(|t| t.stops),
                predicted: since(|t| t.predicted),
                short: since(|t| t.short),
                spare: since(|t| t.spare),
                hdinsight: speed(0),
                terasort: speed(1),
            });
        }
        at += parts;
    }
    Ok(rows)
}

/// Times that a core takes to move (figure 14): to the job and back, as two rows.
///
/// # Errors
/// As [`run`].
pub fn moves(case: &Case, bursts: &Bursts, seed: u64) -> Result<Vec<Row>> {
    let quiet = Case { vms: case.vms.iter().map(|(n, _)| (n.clone(), Some(0.0))).collect(), ..case.clone() };
    let (mut lender, _, _) = lender(&quiet, bursts, seed)?;
    let failed = |e: LendError| Error::Failed(e.to_string());
    let mut took: [Vec<f64>; 2] = [vec![], vec![]];
    let mut busy_us = 0;
    lender.advance_to(1_000_000);
    for _ in 0..MOVES {
        for (i, lent) in [1, 0].into_iter().enumerate() {
            let from_us = lender.now_us();
            lender.lend(lent).map_err(failed)?;
            while {
                let now = lender.lent();
                now.cores != lent || now.to_come + now.returning > 0
            } {
                lender.advance_to(lender.now_us() + MOVE_LOOK_US);
            }
            took[i].push((lender.now_us() - from_us) as f64);
            busy_us += lender.now_us() - from_us;
        }
    }
    let row = |(i, times): (usize, &mut Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        Row {
            experiment: case.experiment.clone(),
            case: case.name.clone(),
            policy: if i == 0 { "to the job" } else { "back" }.into(),
            mover: case.mover.clone(),
            seed,
            workload: "none".into(),
            seconds: busy_us as f64 * 1e-6,
            requests: u64::from(MOVES),
            mean_us: times.iter().sum::<f64>() / times.len() as f64,
            p99_us: times[(times.len() * 99).div_ceil(100) - 1],
            ..Row::default()
        }
    };
    Ok(took.iter_mut().enumerate().map(row).collect())
}
