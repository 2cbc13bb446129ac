//! Cases that do not disturb each other: each thread takes shard after shard, measures and encodes it; one more thread
//! writes them in order. Which thread makes a shard changes no bit of it, and a thread that is slow at one holds the others
//! up only when they are [`AHEAD`] shards further: so much memory is needed, whatever the campaign's size.

use super::job::{Job, Worker};
use super::rows::{without_measuring, Marks, Row};
use super::shard::{Done, Keeper, Maker};
use crate::base::error::{Error, Result};
use crate::base::progress::Progress;
use crate::base::stop;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{mpsc, Mutex};

/// Shards that are begun and not yet on disk, for each thread.
const AHEAD: usize = 4;

/// Makes a whole shard.
pub type Make<'a> = Box<dyn FnMut(u32) -> Result<Done> + 'a>;

/// Makes shards of fixed ranges of cases.
pub fn ranges<'a>(job: &'a Job, range: &'a dyn Fn(u32) -> Range<u64>, worker: Worker<'a>, progress: &'a Progress) -> Make<'a> {
    let mut bench = Bench { walk: job.cases.walk(), worker, maker: Maker::new(job), rows: vec![] };
    Box::new(move |shard| bench.make(shard, range(shard), progress))
}

/// Run the shards `todo`, as many at a time as the thread pool has threads.
pub fn run<'a>(todo: &[u32], maker: &(dyn Fn() -> Make<'a> + Sync), keeper: &mut Keeper) -> Result<()> {
    let threads = rayon::current_num_threads().min(todo.len());
    let (permit, permits) = mpsc::channel::<()>();
    for _ in 0..AHEAD * threads {
        // The receiver is still here.
        let _ = permit.send(());
    }
    // One lock for both: shards are begun in the order of the permits.
    let next = Mutex::new((permits, todo.iter().copied().enumerate()));
    let (send, receive) = mpsc::channel::<(usize, Result<Done>)>();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                let mut make = maker();
                while let Some((i, shard)) = take(next) {
                    let made = catch_unwind(AssertUnwindSafe(|| make(shard)));
                    let panicked =
                        || Error::Failed(format!("shard {shard}: the measuring thread panicked. Please report it; --resume goes on"));
                    let made = made.unwrap_or_else(|_| Err(panicked()));
                    let failed = made.is_err();
                    if send.send((i, made)).is_err() || failed {
                        break;
                    }
                }
            });
        }
        drop(send);
        let outcome = write(receive, &permit, keeper);
        // Whoever waits for a permit now learns that there will be none.
        drop(permit);
        outcome
    })
}

/// The next shard, once there is room for it. None at the end, on a stop signal, and when the writer has left.
fn take(next: &Mutex<(mpsc::Receiver<()>, impl Iterator<Item = (usize, u32)>)>) -> Option<(usize, u32)> {
    let mut next = next.lock().ok()?;
    next.0.recv().ok()?;
    if stop::requested() {
        return None;
    }
    next.1.next()
}

/// Keep shards in order, several at a time where several have come.
fn write(receive: mpsc::Receiver<(usize, Result<Done>)>, permit: &mpsc::Sender<()>, keeper: &mut Keeper) -> Result<()> {
    let mut waiting = BTreeMap::new();
    let mut first = 0;
    while let Ok(one) = receive.recv() {
        waiting.extend(std::iter::once(one).chain(receive.try_iter()));
        let mut run = vec![];
        let mut outcome = Ok(());
        while let Some(done) = waiting.remove(&(first + run.len())) {
            match done {
                Ok(d) => run.push(d),
                Err(e) => {
                    outcome = Err(e);
                    break;
                }
            }
        }
        first += run.len();
        let n = run.len();
        keeper.keep(run)?;
        outcome?;
        for _ in 0..n {
            // Nobody waits for one after the last shard.
            let _ = permit.send(());
        }
    }
    Ok(())
}

struct Bench<'a> {
    walk: crate::sweep::expand::Walk<'a>,
    worker: Worker<'a>,
    maker: Maker,
    rows: Vec<Row>,
}

impl Bench<'_> {
    fn make(&mut self, shard: u32, cases: Range<u64>, progress: &Progress) -> Result<Done> {
        for i in cases {
            let case = self.walk.at(i);
            self.rows.clear();
            let (state, reason) = match without_measuring(case) {
                Some((state, why)) => (state, Some(why)),
                None => (self.worker)(case, &mut self.rows),
            };
            self.maker.add(shard, case, state, reason.as_deref(), &self.rows, &Marks::default())?;
            progress.case();
        }
        self.maker.finish(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{run as sweep, Bench, Job};
    use crate::base::progress::Mode;
    use crate::stage::target::{LcService, Target};
    use crate::sweep::campaign::Campaign;
    use crate::sweep::expand::{Case, Expansion};
    use crate::sweep::rows::{Row, State};
    use std::collections::BTreeMap;
    use std::path::Path;
    use surefoot_server::{Platform, Sending, Verdict};
    use surefoot_vserver::EDITION;

    /// A worker that panics ends the sweep with one message, whoever waits for it then; what was kept stays, and resume
    /// finishes.
    #[test]
    fn a_panic_ends_the_sweep() {
        let lc = LcService { qos_target_ms: 1.0, max_load_rps: None, rps_levels: vec![100.0], working_set_bytes: None };
        let target = Target {
            plant: Some(EDITION),
            platform: Platform::regular("p", 8, 1, 11, 2.0),
            services: BTreeMap::from([("a".to_string(), lc)]),
            jobs: vec![],
            feature_set: "full".into(),
            sources: BTreeMap::new(),
            traces: BTreeMap::new(),
            paged: Default::default(),
            memory: Default::default(),
        };
        // 88 cells x 2 repeats = 176 cases; 32,768 samples a case make each its own shard.
        let text = "name = \"t\"\n[targets]\nvirtual = [\"p\"]\n[sweep]\nservices = \"all\"\n[sampling]\nsamples = 32768\nrepeats = 2";
        let campaign = Campaign::parse(Path::new("c.toml"), text).unwrap();
        let cases = Expansion::new(&campaign, &target).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let row = Row {
            t_ms: 1,
            features: [None; 13],
            mean_ms: None,
            p50_ms: None,
            p95_ms: None,
            p99_ms: None,
            p99_low_ms: None,
            p99_high_ms: None,
            achieved_rps: None,
            errors: 0,
            count: 0,
            verdict: Verdict::Valid,
            sending: Sending::default(),
            memory: Default::default(),
        };
        let run = |resume: bool, bad: u64| {
            let job = Job {
                campaign: &campaign,
                target: &target,
                cases: &cases,
                out: dir.path(),
                resume,
                progress: Mode::None,
                host: BTreeMap::new(),
                software: BTreeMap::new(),
            };
            let row = &row;
            let worker = || -> super::Worker {
                Box::new(move |case: &Case, rows: &mut Vec<Row>| {
                    assert!(case.index != bad, "as the test wants it");
                    rows.push(row.clone());
                    (State::Measured, None)
                })
            };
            sweep(&job, Bench::Parallel(&worker))
        };
        let says = run(true, 30).unwrap_err().to_string();
        assert!(says.contains("shard 30") && says.contains("panicked"), "{says}");
        let m = run(true, u64::MAX).unwrap();
        assert_eq!((m.cases.measured, m.shards.len()), (176, 176));
        let journal = std::fs::read_to_string(dir.path().join("journal.jsonl")).unwrap();
        let shards: Vec<u64> =
            journal.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["shard"].as_u64().unwrap()).collect();
        assert_eq!(shards, (0..176).collect::<Vec<_>>(), "in order, none twice");
    }
}
