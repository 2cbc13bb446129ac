//! What the daemon itself costs: time to observe, to decide, to apply and to learn; CPU time and memory of the process.

#![allow(unsafe_code, reason = "sysconf")]

use hdrhistogram::Histogram;
use serde_json::{json, Value};
use std::path::Path;
use std::time::{Duration, Instant};
use surefoot_io::input::{self, KERNEL_BYTES};

/// Longest time that is told apart from longer ones.
const MOST_NS: u64 = 60_000_000_000;

/// One part of every tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Observe,
    Decide,
    /// Only of ticks with a plan.
    Apply,
    /// Only of ticks after which a policy learnt; the plan is in force by then.
    Learn,
    /// Only of looks at how models do, once a second; the plan is in force by then.
    Watch,
}

impl Phase {
    pub const ALL: [Phase; 5] = [Phase::Observe, Phase::Decide, Phase::Apply, Phase::Learn, Phase::Watch];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Observe => "observe",
            Phase::Decide => "decide",
            Phase::Apply => "apply",
            Phase::Learn => "learn",
            Phase::Watch => "watch",
        }
    }
}

/// Upper bounds of the buckets that Prometheus is shown; one more has what is longer.
pub const BOUNDS_S: [f64; 12] = [50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 1.0];

/// Durations as Prometheus is shown them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Above the bound before, and up to the own one.
    buckets: [u64; BOUNDS_S.len() + 1],
    sum_s: f64,
}

impl Seen {
    fn add(&mut self, s: f64) {
        self.buckets[BOUNDS_S.partition_point(|bound| *bound < s)] += 1;
        self.sum_s += s;
    }

    /// Durations up to each bound, the last of which is none.
    pub fn up_to(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.iter().scan(0, |sum, n| {
            *sum += n;
            Some(*sum)
        })
    }

    pub fn sum_s(&self) -> f64 {
        self.sum_s
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// Durations by phase: to two digits, and as Prometheus is shown them.
#[derive(Debug)]
pub struct Phases([(Histogram<u64>, Seen); Phase::ALL.len()]);

impl Default for Phases {
    fn default() -> Self {
        // Two digits up to a minute: 30 kB each, made once.
        let histogram = || Histogram::new_with_bounds(100, MOST_NS, 2).unwrap_or_else(|e| unreachable!("constant bounds: {e}"));
        Phases(Phase::ALL.map(|_| (histogram(), Seen::default())))
    }
}

impl Phases {
    pub fn record(&mut self, phase: Phase, took: Duration) {
        let (exact, seen) = &mut self.0[phase as usize];
        exact.saturating_record(took.as_nanos() as u64);
        seen.add(took.as_secs_f64());
    }

    /// Seconds at a quantile; None where the phase never ran.
    pub fn quantile_s(&self, phase: Phase, q: f64) -> Option<f64> {
        let (h, _) = &self.0[phase as usize];
        (!h.is_empty()).then(|| h.value_at_quantile(q) as f64 * 1e-9)
    }

    pub fn count(&self, phase: Phase) -> u64 {
        self.seen(phase).count()
    }

    pub fn seen(&self, phase: Phase) -> &Seen {
        &self.0[phase as usize].1
    }

    /// p50 and p99 of each phase, microseconds.
    pub fn json(&self) -> Value {
        let us = |p, q| self.quantile_s(p, q).map(|s| (s * 1e7).round() / 10.0);
        Phase::ALL.iter().map(|p| (p.name(), json!({ "count": self.count(*p), "p50_us": us(*p, 0.5), "p99_us": us(*p, 0.99) }))).collect()
    }
}

/// Run some work and say how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = Instant::now();
    let result = work();
    (result, begin.elapsed())
}

/// What the process has cost, by the names of Prometheus' `process_*`; None where /proc does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    pub cpu_s: Option<f64>,
    pub rss_bytes: Option<u64>,
    pub virtual_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    pub max_fds: Option<u64>,
    /// When it started, since 1970.
    pub start_s: Option<f64>,
}

pub fn own() -> Own {
    // SAFETY: sysconf only reads constants.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    let ticks = ticks.max(1) as f64;
    let read = |name: &str| input::text(Path::new(name), KERNEL_BYTES).ok();
    // From the third field on: the second is a name in brackets.
    let stat = read("/proc/self/stat");
    let fields: Vec<&str> = stat.iter().filter_map(|t| t.rsplit_once(')')).flat_map(|(_, t)| t.split_whitespace()).collect();
    let time = |i: usize| Some(fields.get(i)?.parse::<f64>().ok()? / ticks);
    let boot_s = || {
        let text = read("/proc/stat")?;
        text.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse::<f64>().ok()
    };
    let pages = read("/proc/self/statm").and_then(|t| t.split_whitespace().nth(1)?.parse::<u64>().ok());
    let most = || {
        let text = read("/proc/self/limits")?;
        text.lines().find_map(|l| l.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
    };
    Own {
        cpu_s: time(11).zip(time(12)).map(|(user, system)| user + system),
        rss_bytes: pages.map(|n| n * page.max(1) as u64),
        virtual_bytes: fields.get(20).and_then(|f| f.parse().ok()),
        // One is that of the folder itself.
        open_fds: std::fs::read_dir("/proc/self/fd").ok().map(|d| (d.count() as u64).saturating_sub(1)),
        max_fds: most(),
        start_s: time(19).zip(boot_s()).map(|(after, boot)| boot + after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a phase took is found again to two digits; a phase that never ran has no figure.
    #[test]
    fn durations_are_kept() {
        let mut phases = Phases::default();
        let begin = Instant::now();
        let (x, took) = timed(|| (0..2000u64).map(std::hint::black_box).sum::<u64>());
        assert!(x == 1999 * 1000 && took <= begin.elapsed());
        let took = Duration::from_nanos(1_234_567);
        phases.record(Phase::Decide, took);
        let kept = phases.quantile_s(Phase::Decide, 0.99).unwrap();
        assert!((kept / took.as_secs_f64() - 1.0).abs() < 0.02, "{kept} {took:?}");
        assert_eq!((phases.quantile_s(Phase::Apply, 0.5), phases.count(Phase::Decide)), (None, 1));
        assert_eq!(phases.json()["apply"]["p99_us"], Value::Null);
    }

    /// Buckets add up from the least bound on; a duration that is a bound counts below it.
    #[test]
    fn buckets_are_cumulative() {
        let mut seen = Seen::default();
        // Up to 50 us one, up to 100 us another, up to 1 s a third; the last is longer.
        [50e-6, 51e-6, 0.5, 2.0].iter().for_each(|s| seen.add(*s));
        assert_eq!(seen.up_to().collect::<Vec<_>>(), [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 4]);
        assert_eq!((seen.count(), seen.sum_s()), (4, 50e-6 + 51e-6 + 0.5 + 2.0));
    }

    /// This process has used some CPU time and some memory, holds some files, and has not started in the future.
    #[test]
    fn own_cost_is_known() {
        let own = own();
        assert!(own.cpu_s.unwrap() >= 0.0 && own.rss_bytes.unwrap() > 100_000 && own.virtual_bytes > own.rss_bytes, "{own:?}");
        assert!(own.open_fds.unwrap() >= 3 && own.open_fds < own.max_fds, "{own:?}");
        let now_s = crate::base::utc::now_ms() as f64 / 1000.0;
        let age_s = now_s - own.start_s.unwrap();
        assert!((-2.0..86_400.0).contains(&age_s), "{own:?} {now_s}");
    }
}
