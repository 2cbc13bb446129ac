//! A policy of `surefoot-harvest` on the two CPUs of one service, for `scripts/bench/lend_memcached.py`.
//!
//!     lend_two_cpus POLICY PRIMARY BULLY POLL_US        # as root; names of cgroups of version 1, e.g. /bench/primary
//!
//! The daemon lends by disjoint lists, and a borrower has a CPU of its own. With two CPUs nothing would be left. Here the borrower has the
//! second CPU alone and is frozen while nothing is lent. The lender has both CPUs then, and the first one else.
//!
//! It is to be pinned to the second CPU: no thread of the primary runs where a look is taken, since the look has just preempted it. On that
//! CPU one counts as running that waits. A look from the first CPU would find it idle whatever happens there.
//! A line on stdin asks for a line of counts (JSON). At the end of stdin everything goes back.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "an example's input and output are its own")]

use serde::Serialize;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use surefoot_harvest::{drive, Harvester, Settings};
use surefoot_linux::cgroup::{Cgroup, Knob, Mounts, Version};
use surefoot_linux::local::wait_until;
use surefoot_linux::procfs::{self, FileWaits};
use surefoot_linux::running::{self, Watched};
use surefoot_linux::Root;
use surefoot_server::{CpuSet, Lease, LendError, Lender, Lent, Waits};

const CPUS: u32 = 2;
/// As the daemon's.
const REPORT_US: u64 = 100_000;

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    at_us: u64,
    /// Time for which the second CPU was lent.
    lent_us: u64,
    looks: u64,
    /// Of these, by the number of CPUs that were busy.
    busy: [u64; CPUS as usize + 1],
    /// Looks that came later than a whole pause after they were due, and the latest of all.
    late: u64,
    latest_us: u64,
    moves: u64,
    moves_us: u64,
    longest_move_us: u64,
    exhausted: u64,
    stops: u64,
    predicted: u64,
    by_files: bool,
}

/// How threads of the primary are seen.
enum Sight {
    Programs { primary: Watched, bully: Box<Watched> },
    Files { waited: FileWaits },
}

struct TwoCpus {
    lease: Lease,
    begun: Instant,
    root: Root,
    primary: Cgroup,
    all: CpuSet,
    kept: CpuSet,
    /// The state of the bully, frozen or not.
    freezer: PathBuf,
    sight: Sight,
    poll_us: u64,
    is_lent: bool,
    since_us: u64,
    counts: Counts,
}

impl TwoCpus {
    fn new(primary: &str, bully: &str, poll_us: u64) -> Result<Self, String> {
        let root = Root::default();
        let mounts = Mounts::read(&root);
        if mounts.version() != Some(Version::V1) {
            return Err("cgroups of version 1 with cpu and cpuset are needed, and this host has none".into());
        }
        let group = |name: &str| mounts.named(name).filter(|g| g.identity().is_some()).ok_or(format!("there is no cgroup {name}"));
        let (lender, borrower) = (group(primary)?, group(bully)?);
        let list = lender.get(Knob::Cpus).unwrap_or_default();
        let all = CpuSet::of_kernel(&list).map_err(|e| format!("CPUs of {primary}: {e}"))?;
        let [first, second] = all.iter().collect::<Vec<_>>()[..] else {
            return Err(format!("{primary} has CPUs {list}. Give it two"));
        };
        // Neither the knobs nor their readers need it elsewhere, so the mounts do not name it.
        let freezer = root.path("/sys/fs/cgroup/freezer").join(bully.trim_start_matches('/')).join("freezer.state");
        if !freezer.is_file() {
            return Err(format!("{} is not there. Mount the freezer of cgroup version 1", freezer.display()));
        }
        let programs = running::programs(&root, Version::V1).and_then(|programs| {
            let watch = |g: &Cgroup| programs.watch(&root, &mounts, g);
            Ok(Sight::Programs { primary: watch(&lender)?, bully: Box::new(watch(&borrower)?) })
        });
        let sight = programs.unwrap_or_else(|why| {
            eprintln!("lend_two_cpus: threads are seen by files, each look takes long: {why}");
            Sight::Files { waited: FileWaits::default() }
        });
        let one = |cpu| {
            let mut set = CpuSet::empty();
            set.insert(cpu);
            set
        };
        Ok(TwoCpus {
            lease: Lease { lender: "primary".into(), borrower: "bully".into(), cpus: one(second) },
            begun: Instant::now(),
            root,
            primary: lender,
            all,
            kept: one(first),
            freezer,
            poll_us,
            is_lent: false,
            since_us: 0,
            counts: Counts { by_files: matches!(sight, Sight::Files { .. }), ..Counts::default() },
            sight,
        })
    }

    fn at_hand(&self) -> CpuSet {
        if self.is_lent {
            self.kept
        } else {
            self.all
        }
    }

    fn freeze(&self, freeze: bool) -> std::io::Result<()> {
        std::fs::write(&self.freezer, if freeze { "FROZEN" } else { "THAWED" })
    }

    /// The one that has less afterwards goes first.
    fn give(&self, lend: bool) -> std::io::Result<()> {
        if lend {
            self.primary.set(Knob::Cpus, &self.kept.to_string())?;
            self.freeze(false)
        } else {
            self.freeze(true)?;
            self.primary.set(Knob::Cpus, &self.all.to_string())
        }
    }

    fn counts(&self, harvester: &Harvester) -> Counts {
        let (at_us, tally) = (self.now_us(), harvester.tally());
        let lent_us = self.counts.lent_us + if self.is_lent { at_us.saturating_sub(self.since_us) } else { 0 };
        let (exhausted, stops, predicted) = (tally.exhausted, tally.stops, tally.predicted);
        Counts { at_us, lent_us, looks: tally.readings, exhausted, stops, predicted, ..self.counts }
    }
}

impl Lender for TwoCpus {
    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn advance_to(&mut self, t_us: u64) {
        wait_until(self.begun, t_us);
        // The first look is due at 0.
        let late_us = if t_us == 0 { 0 } else { self.now_us().saturating_sub(t_us) };
        self.counts.late += u64::from(late_us > self.poll_us);
        self.counts.latest_us = self.counts.latest_us.max(late_us);
    }

    fn busy(&mut self) -> Result<u32, LendError> {
        let own = self.at_hand();
        let mut on = CpuSet::empty();
        match &self.sight {
            Sight::Programs { primary, .. } => {
                own.iter().filter(|cpu| primary.runs_on(*cpu)).for_each(|cpu| on.insert(cpu));
                if !self.is_lent && primary.waiting_us() > 0.0 {
                    on = on.union(self.lease.cpus);
                }
            }
            Sight::Files { .. } => {
                let tids = self.primary.tids();
                let runs = tids.iter().filter_map(|tid| procfs::runs_on(&self.root, *tid).flatten());
                runs.filter(|cpu| own.contains(*cpu)).for_each(|cpu| on.insert(cpu));
            }
        }
        self.counts.busy[on.len().min(CPUS) as usize] += 1;
        Ok(on.len())
    }

    fn waits(&mut self) -> Result<Waits, LendError> {
        match &mut self.sight {
            Sight::Programs { primary, .. } => Ok(primary.waits()),
            Sight::Files { waited } => {
                let cause = "no /proc/TID/schedstat of its threads can be read".into();
                waited.look(&self.root, &self.primary.tids()).ok_or(LendError::Unknown { what: "waits of the primary".into(), cause })
            }
        }
    }

    fn waiting_us(&mut self) -> Result<f64, LendError> {
        match &self.sight {
            Sight::Programs { primary, .. } => Ok(primary.waiting_us()),
            Sight::Files { .. } => {
                let cause = "no file says how long a thread has waited that waits now".into();
                Err(LendError::Unknown { what: "the longest wait".into(), cause })
            }
        }
    }

    fn lent(&mut self) -> Lent {
        let runs = |bully: &Watched| self.lease.cpus.iter().any(|cpu| bully.runs_on(cpu));
        let leaves = !self.is_lent && matches!(&self.sight, Sight::Programs { bully, .. } if runs(bully));
        Lent { cores: u32::from(self.is_lent || leaves), to_come: 0, returning: u32::from(leaves) }
    }

    fn lend(&mut self, cores: u32) -> Result<Lent, LendError> {
        if cores > 1 {
            return Err(LendError::TooMany { asked: cores, most: 1 });
        }
        let lend = cores == 1;
        if lend != self.is_lent {
            let before_us = self.now_us();
            if let Err(e) = self.give(lend) {
                // What failed is undone as far as the kernel lets it.
                let _ = self.give(self.is_lent);
                return Err(LendError::Write { what: "CPUs of the two".into(), cause: e.to_string() });
            }
            let now_us = self.now_us();
            if lend {
                self.since_us = now_us;
            } else {
                self.counts.lent_us += now_us.saturating_sub(self.since_us);
            }
            self.is_lent = lend;
            self.counts.moves += 1;
            self.counts.moves_us += now_us - before_us;
            self.counts.longest_move_us = self.counts.longest_move_us.max(now_us - before_us);
        }
        Ok(self.lent())
    }
}

impl Drop for TwoCpus {
    fn drop(&mut self) {
        let _ = self.give(false);
    }
}

/// Until it is told to stop. As the daemon's thread: what is kept is said again in each slice of time.
fn lend(lender: &mut TwoCpus, harvester: &mut Harvester, stop: &AtomicBool, said: &Mutex<Counts>) -> Result<(), LendError> {
    while !stop.load(Ordering::Relaxed) {
        let until_us = lender.now_us() + REPORT_US;
        drive(lender, harvester, until_us)?;
        lender.lend(harvester.cores() - harvester.kept())?;
        *said.lock().unwrap_or_else(PoisonError::into_inner) = lender.counts(harvester);
    }
    Ok(())
}

fn run(policy: &str, primary: &str, bully: &str, poll_us: &str) -> Result<(), String> {
    let mut settings = Settings::default();
    let poll_us = poll_us.parse().ok().filter(|us| (1..=100_000).contains(us));
    settings.window.poll_us = poll_us.ok_or("POLL_US is a number from 1 to 100000")?;
    settings.caladan.poll_us = settings.window.poll_us;
    let mut harvester = Harvester::named(policy, CPUS, 1, &settings)?;
    let mut lender = TwoCpus::new(primary, bully, settings.window.poll_us)?;
    let (stop, said) = (AtomicBool::new(false), Mutex::new(Counts::default()));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| lend(&mut lender, &mut harvester, &stop, &said));
        for _line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if thread.is_finished() {
                break;
            }
            let counts = *said.lock().unwrap_or_else(PoisonError::into_inner);
            println!("{}", serde_json::to_string(&counts).unwrap_or_default());
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map_err(|e| e.to_string())
    })
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [policy, primary, bully, poll_us] = args.as_slice() else {
        eprintln!("usage: lend_two_cpus POLICY PRIMARY BULLY POLL_US");
        return ExitCode::from(2);
    };
    match run(policy, primary, bully, poll_us) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lend_two_cpus: {e}");
            ExitCode::FAILURE
        }
    }
}
