//! The highest load that meets a QoS target, and the knee of the latency-load curve.
//!
//! A rate *holds* if the share of requests slower than the target (lost ones included) is below 1 - q, q = 0.99. It is judged
//! sequentially: runs of growing length add up until a binomial test on the effective counts decides with the wanted confidence,
//! at most [`LOOKS`] runs and `longest` in all; the confidence is shared among the looks, so stopping early costs nothing of it.
//! Slow requests come in bursts, and a short run may have none: what the samples are worth is taken from the look that says least, and
//! a share near the allowed one needs three looks.
//! Requests too few for a p99 within `longest` are judged by their p95, and the point says so. A rate that stays undecided moves the
//! search by its observed share and is reported as undecided: it is never the max load, for which a sure rate below it is looked for.
//!
//! The search doubles the rate from `from` until one fails (or halves it until one holds), then halves the gap until it is narrower
//! than `resolution`. A rate whose runs the client shaped ([`VerdictKind::ClientLimited`]) is tried again twice, then bounds the search like a
//! failing one, and the result says that the client, not the service, is the limit.
//!
//! Everything is decided by the looks alone, whose seeds are fixed: the same looks give the same search. So a search that was killed goes
//! on from its journal by replaying it ([`Journal`]).

use crate::config::Config;
use crate::error::{bad, failed, LoadgenError};
use crate::load::{check_rps, LoadProfile};
use crate::output::plain;
use crate::quantile::binomial_cdf;
use crate::random::draw;
use crate::run::run;
use crate::verdict::VerdictKind;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use surefoot_io::input::{self, SUMMARY_BYTES};

/// Runs that may judge one rate.
pub const LOOKS: u32 = 8;
/// Looks before a share near the allowed one decides (nearer than a factor of [`NEAR`]).
const NEAR_LOOKS: usize = 3;
const NEAR: f64 = 5.0;
/// The variance between batches of a queue's run says too little of longer bursts: at the edge of M/M/1 and M/M/4 a rate was taken to
/// hold in 5 to 7 % of 200 searches without this factor, in 2 to 3 % (half of the stated risk) with it.
const SHY: f64 = 1.25;
const CLIENT_RETRIES: u32 = 2;
const HALVINGS_DOWN: u32 = 8;
const STREAM_LOOK: u64 = 7;
pub const FORMAT: &str = "surefoot-saturation/1";

/// A way to load a service once.
pub trait Probe {
    /// Load it with `rps` for `duration_ns`.
    ///
    /// # Errors
    /// `Failed` if the service could not be loaded at all; slow replies are no error.
    fn look(&mut self, rps: f64, duration_ns: u64, seed: u64) -> Result<Look, LoadgenError>;
}

/// One run at one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub rps: f64,
    pub duration_ns: u64,
    pub seed: u64,
    pub offered_rps: f64,
    pub achieved_rps: f64,
    pub completed: u64,
    /// Requests, lost ones included.
    pub count: u64,
    /// Of these, slower than the target or lost.
    pub above: u64,
    /// Independent samples that they are worth.
    pub effective_count: u64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub verdict: VerdictKind,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub target_ms: f64,
    /// First rate.
    pub from_rps: f64,
    /// Never more.
    pub max_rps: f64,
    /// Width of the last gap, as a share of the rate.
    pub resolution: f64,
    pub confidence: f64,
    /// A rate fails if it fails so many times in a row; more than 1 where other work spoils single runs.
    pub tries: u32,
    /// Requests of the first look.
    pub samples: f64,
    pub shortest_ns: u64,
    /// All looks of one try together.
    pub longest_ns: u64,
    /// Evenly spaced rates that the curve has besides those of the search.
    pub points: u32,
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            target_ms: 10.0,
            from_rps: 50.0,
            max_rps: 5e6,
            resolution: 0.05,
            confidence: 0.95,
            tries: 1,
            samples: 1000.0,
            shortest_ns: 2_000_000_000,
            longest_ns: 60_000_000_000,
            points: 10,
            seed: 1,
        }
    }
}

impl Settings {
    /// # Errors
    /// `BadInput` naming the option that makes no sense.
    pub fn check(&self) -> Result<(), LoadgenError> {
        let positive = |v: f64| v.is_finite() && v > 0.0;
        if !positive(self.target_ms) {
            return Err(bad(format!("--qos-target-ms {} must be above 0, e.g. 10", self.target_ms)));
        }
        check_rps(self.from_rps).map_err(|e| bad(format!("--from: {e}")))?;
        check_rps(self.max_rps).map_err(|e| bad(format!("--max-rps: {e}")))?;
        if !(0.001..=1.0).contains(&self.resolution) {
            return Err(bad(format!("--resolution {} is not a share of the rate: give 0.001 to 1, e.g. 0.05", self.resolution)));
        }
        if !(1..=10).contains(&self.tries) || self.points > 1000 {
            return Err(bad("--tries must be 1 to 10, --points at most 1000"));
        }
        if !(positive(self.samples) && self.samples <= 1e9) {
            return Err(bad(format!("--samples {} must be above 0, e.g. 1000", self.samples)));
        }
        if self.shortest_ns < 1_000_000 || self.longest_ns < self.shortest_ns {
            return Err(bad("--shortest must be at least 1ms and --longest no less than it"));
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    Holds,
    Fails,
    /// Too near the edge for the time allowed; its observed share was within the target.
    UndecidedWithin,
    UndecidedBeyond,
    /// The client shaped the result.
    ClientLimited,
}

impl Finding {
    /// Search above (true) or below.
    fn within(self) -> bool {
        matches!(self, Finding::Holds | Finding::UndecidedWithin)
    }
}

/// One rate of the curve. Latencies are those of its longest look.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub rps: f64,
    pub offered_rps: f64,
    pub achieved_rps: f64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub finding: Finding,
    /// Level that the finding is about: 0.99 or 0.95.
    pub judged_q: f64,
    /// Replies of its longest look.
    pub completed: u64,
    /// Requests of the deciding try, those slower than the target among them, and what they are worth.
    pub count: u64,
    pub above: u64,
    pub effective_count: u64,
    pub looks: u32,
    pub verdict: VerdictKind,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The service missed its target above the max load.
    Service,
    /// The client could not send more; the service's own limit is at least the max load.
    Client,
    /// `max_rps` held.
    MaxRps,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub rps: f64,
    pub p99_ms: f64,
}

/// What a search found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saturation {
    pub format: String,
    pub settings: Settings,
    /// Highest rate that holds with the confidence; none if even the lowest tried does not.
    pub max_load_rps: Option<f64>,
    /// Highest rate whose observed share was within the target: the best guess where time was short.
    pub observed_max_rps: Option<f64>,
    pub limited_by: Limit,
    /// Lowest rate above it that does not hold (or that the client could not send).
    pub beyond_rps: Option<f64>,
    pub knee: Option<Knee>,
    /// In plain words.
    pub summary: String,
    /// By rising rate.
    pub curve: Vec<Point>,
}

/// Does the share above the target lie below `allowed` (Some(true)), above it (Some(false)), or can these looks not tell?
fn decide(looks: &[Look], allowed: f64, confidence: f64) -> Option<bool> {
    if looks.iter().any(|l| l.verdict == VerdictKind::ServerOverloaded) {
        return Some(false);
    }
    let (n, share) = worth(looks);
    // A short run without a burst looks good and knows nothing of bursts: wait for more where it matters.
    if looks.len() < NEAR_LOOKS && share > allowed / NEAR && share < allowed * NEAR {
        return None;
    }
    // Two sides, and as many looks as there may be.
    let risk = (1.0 - confidence) / (2.0 * f64::from(LOOKS));
    let above = share * n as f64;
    if binomial_cdf(above.ceil() as i64, n, allowed) <= risk {
        return Some(true);
    }
    (1.0 - binomial_cdf(above.floor() as i64 - 1, n, allowed) <= risk).then_some(false)
}

/// Independent samples, by the look whose samples are worth least, and the share above the target.
fn worth(looks: &[Look]) -> (u64, f64) {
    let count: u64 = looks.iter().map(|l| l.count).sum();
    let above: u64 = looks.iter().map(|l| l.above).sum();
    let design = looks.iter().map(|l| l.count as f64 / l.effective_count.max(1) as f64).fold(1.0, f64::max);
    ((count as f64 / (SHY * design)) as u64, above as f64 / count.max(1) as f64)
}

/// The level that `count` requests can be judged at with all looks: no bad one among them must be enough.
fn judged_q(count: f64, confidence: f64) -> f64 {
    let need = SHY * ((1.0 - confidence) / (2.0 * f64::from(LOOKS))).ln() / 0.99f64.ln();
    if count >= need {
        0.99
    } else {
        0.95
    }
}

/// Three digits, so that rates read well.
fn rounded(rps: f64) -> f64 {
    let unit = 10f64.powi(rps.log10().floor() as i32 - 2);
    // Division by a power of ten written as such: 0.1 has no exact value.
    if unit < 1.0 {
        let per = (1.0 / unit).round();
        (rps * per).round() / per
    } else {
        (rps / unit).round() * unit
    }
}

/// Judge one rate with one try.
fn attempt(probe: &mut dyn Probe, s: &Settings, rps: f64, looks_done: &mut u64) -> Result<Point, LoadgenError> {
    let longest_s = s.longest_ns as f64 * 1e-9;
    let q = judged_q(rps * longest_s, s.confidence);
    let mut looks: Vec<Look> = Vec::new();
    let mut spent_ns = 0;
    let mut strikes = 0;
    let mut next_ns = ((s.samples / rps * 1e9) as u64).clamp(s.shortest_ns.min(s.longest_ns), s.longest_ns);
    let finding = loop {
        let look = probe.look(rps, next_ns, draw(s.seed, STREAM_LOOK, *looks_done))?;
        *looks_done += 1;
        if look.verdict == VerdictKind::ClientLimited {
            strikes += 1;
            if strikes > CLIENT_RETRIES {
                looks = vec![look];
                break Finding::ClientLimited;
            }
            continue;
        }
        looks.push(look);
        spent_ns += next_ns;
        match decide(&looks, 1.0 - q, s.confidence) {
            Some(true) => break Finding::Holds,
            Some(false) => break Finding::Fails,
            None => {}
        }
        next_ns = spent_ns.min(s.longest_ns.saturating_sub(spent_ns));
        if looks.len() as u32 >= LOOKS || next_ns < s.shortest_ns.min(s.longest_ns) {
            let (n, share) = worth(&looks);
            break if share <= 1.0 - q && n > 0 { Finding::UndecidedWithin } else { Finding::UndecidedBeyond };
        }
    };
    let shown = looks.iter().max_by_key(|l| l.duration_ns).expect("at least one look");
    Ok(Point {
        rps,
        offered_rps: shown.offered_rps,
        achieved_rps: shown.achieved_rps,
        p50_ms: shown.p50_ms,
        p95_ms: shown.p95_ms,
        p99_ms: shown.p99_ms,
        finding,
        judged_q: q,
        completed: shown.completed,
        count: looks.iter().map(|l| l.count).sum(),
        above: looks.iter().map(|l| l.above).sum(),
        effective_count: worth(&looks).0,
        looks: looks.len() as u32,
        verdict: looks.iter().map(|l| l.verdict).find(|&v| v == VerdictKind::ServerOverloaded).unwrap_or(shown.verdict),
        reason: shown.reason.clone(),
    })
}

/// Search. `seen` gets each rate as it is judged.
///
/// # Errors
/// What the probe reports.
pub fn search(probe: &mut dyn Probe, s: &Settings, mut seen: impl FnMut(&Point)) -> Result<Saturation, LoadgenError> {
    let mut curve: Vec<Point> = Vec::new();
    let mut looks_done = 0;
    let mut judge = |probe: &mut dyn Probe, curve: &mut Vec<Point>, rps: f64| -> Result<Finding, LoadgenError> {
        let mut point = attempt(probe, s, rps, &mut looks_done)?;
        for _ in 1..s.tries {
            if point.finding.within() || point.finding == Finding::ClientLimited {
                break;
            }
            point = attempt(probe, s, rps, &mut looks_done)?;
        }
        seen(&point);
        let finding = point.finding;
        curve.push(point);
        Ok(finding)
    };

    // Bracket: `low` is within the target, `high` is not.
    let first = s.from_rps.min(s.max_rps);
    let (mut low, mut high) = (None, None);
    if judge(probe, &mut curve, first)?.within() {
        low = Some(first);
        let mut rate = first;
        while high.is_none() && rate < s.max_rps {
            rate = rounded(rate * 2.0).min(s.max_rps);
            if judge(probe, &mut curve, rate)?.within() {
                low = Some(rate);
            } else {
                high = Some(rate);
            }
        }
    } else {
        high = Some(first);
        let mut rate = first;
        for _ in 0..HALVINGS_DOWN {
            rate = rounded(rate / 2.0);
            if judge(probe, &mut curve, rate)?.within() {
                low = Some(rate);
                break;
            }
            high = Some(rate);
        }
    }
    if let (Some(mut lo), Some(mut hi)) = (low, high) {
        while hi > lo * (1.0 + s.resolution) {
            let middle = rounded(0.5 * (lo + hi));
            if middle <= lo || middle >= hi {
                break;
            }
            if judge(probe, &mut curve, middle)?.within() {
                lo = middle;
            } else {
                hi = middle;
            }
        }
        (low, high) = (Some(lo), Some(hi));
    }

    // The edge is where the share is the allowed one, so the last rate within may be undecided: step down to one that is sure to hold.
    if let Some(edge) = low {
        let mut step = s.resolution;
        while step < 0.9 {
            let rate = rounded(edge * (1.0 - step));
            let sure = curve.iter().any(|p| p.finding == Finding::Holds && p.rps >= rate && p.rps <= edge);
            if sure || judge(probe, &mut curve, rate)? == Finding::Holds {
                break;
            }
            step *= 2.0;
        }
    }

    // The rest of the curve, up to the edge.
    if let Some(top) = high.or(low) {
        for i in 1..=s.points {
            let rps = rounded(top * f64::from(i) / f64::from(s.points));
            let near = curve.iter().any(|p| (p.rps / rps - 1.0).abs() < 0.25 / f64::from(s.points));
            if low.is_some_and(|l| rps < l) && !near {
                judge(probe, &mut curve, rps)?;
            }
        }
    }
    curve.sort_by(|a, b| a.rps.total_cmp(&b.rps));
    Ok(conclude(s, curve, high))
}

fn conclude(s: &Settings, curve: Vec<Point>, high: Option<f64>) -> Saturation {
    // Below every rate that fails: a rate that holds above a failing one was luck.
    let lowest = |wanted: fn(Finding) -> bool| curve.iter().find(|p| wanted(p.finding)).map_or(f64::INFINITY, |p| p.rps);
    let failing = lowest(|f| f == Finding::Fails);
    let max_load_rps = curve.iter().rev().find(|p| p.finding == Finding::Holds && p.rps < failing).map(|p| p.rps);
    let observed_max_rps = curve.iter().rev().find(|p| p.finding.within() && p.rps < failing).map(|p| p.rps);
    let beyond_rps = curve.iter().find(|p| p.rps > max_load_rps.unwrap_or(0.0) && !p.finding.within()).map(|p| p.rps);
    let limited_by = match high.and_then(|h| curve.iter().find(|p| p.rps == h)) {
        None => Limit::MaxRps,
        Some(p) if p.finding == Finding::ClientLimited => Limit::Client,
        Some(_) => Limit::Service,
    };
    let reached: Vec<(f64, f64)> = curve
        .iter()
        .filter(|p| p.verdict != VerdictKind::ServerOverloaded && p.finding != Finding::ClientLimited)
        .filter_map(|p| Some((p.rps, p.p99_ms?)))
        .collect();
    let knee = knee(&reached);
    let target = s.target_ms;
    let summary = match (max_load_rps, limited_by) {
        (None, Limit::Client) => "the client was the limit at every rate: give it more --threads and CPUs (--cpu), or another host".into(),
        (None, _) => match observed_max_rps {
            Some(o) => format!("{o} rps seems to meet {target} ms, but no rate is sure to: measure longer (--longest)"),
            None => format!("no rate tried meets {target} ms: raise the target, or lower --from"),
        },
        (Some(m), Limit::Client) => format!(
            "the service meets {target} ms at {m} rps; above, the client was the limit: give it more --threads and CPUs (--cpu), more --connections, or another host"
        ),
        (Some(m), Limit::MaxRps) => format!("the service meets {target} ms at {m} rps, the most that --max-rps allows"),
        (Some(m), Limit::Service) => format!(
            "the service meets {target} ms at {m} rps and not at {} rps",
            beyond_rps.map_or("more".into(), |b| b.to_string())
        ),
    };
    Saturation { format: FORMAT.into(), settings: *s, max_load_rps, observed_max_rps, limited_by, beyond_rps, knee, summary, curve }
}

/// The knee of a curve (rate, latency) of rising rates: where it lies furthest below the straight line from its first to its last point, both
/// axes scaled to 0..1 (Satopää et al., "Finding a 'kneedle' in a haystack", ICDCSW 2011, without smoothing). Latency counts as
/// never falling. None with fewer than five points, or if the curve bends by less than a tenth.
pub fn knee(points: &[(f64, f64)]) -> Option<Knee> {
    let (first, last) = (points.first()?, points.last()?);
    if points.len() < 5 || last.0 <= first.0 {
        return None;
    }
    let mut top = f64::NEG_INFINITY;
    let rising: Vec<(f64, f64)> = points
        .iter()
        .map(|p| {
            top = p.1.max(top);
            (p.0, top)
        })
        .collect();
    let (low, high) = (rising[0].1, top);
    if high <= low {
        return None;
    }
    let bend = |p: &(f64, f64)| (p.0 - first.0) / (last.0 - first.0) - (p.1 - low) / (high - low);
    let (at, _) = rising.iter().enumerate().max_by(|a, b| bend(a.1).total_cmp(&bend(b.1)))?;
    (bend(&rising[at]) >= 0.1).then_some(Knee { rps: points[at].0, p99_ms: points[at].1 })
}

/// A service behind a socket.
pub struct Service<'a> {
    /// Load, duration and seed are set for each look.
    pub config: Config,
    pub stop: &'a AtomicBool,
}

impl Probe for Service<'_> {
    fn look(&mut self, rps: f64, duration_ns: u64, seed: u64) -> Result<Look, LoadgenError> {
        let c = &mut self.config;
        c.load = LoadProfile::constant(rps)?;
        (c.duration_ns, c.seed) = (duration_ns, seed);
        let r = run(c, self.stop)?.report;
        // The keys are there now.
        c.preload = false;
        if r.interrupted {
            return Err(failed("interrupted; with the same --journal the search goes on from here"));
        }
        if let Some(why) = r.unanswered() {
            return Err(failed(format!("{why} (at {rps} rps)")));
        }
        let share = r.above_target.ok_or_else(|| failed("no QoS target was given to the run"))?;
        let reason = r.first_error.map_or(r.verdict.reason.clone(), |e| format!("{} (first error: {e})", r.verdict.reason));
        Ok(Look {
            rps,
            duration_ns,
            seed,
            offered_rps: r.offered_rps,
            achieved_rps: r.achieved_rps,
            completed: r.completed,
            count: share.count,
            above: share.above,
            effective_count: share.effective_count,
            p50_ms: r.response_time.p50.value_ms,
            p95_ms: r.response_time.p95.value_ms,
            p99_ms: r.response_time.p99.value_ms,
            verdict: r.verdict.kind,
            reason,
        })
    }
}

/// A probe that remembers its looks in a file, and gives those of an earlier, killed search first.
pub struct Journal<P> {
    probe: P,
    path: PathBuf,
    file: std::fs::File,
    earlier: std::collections::VecDeque<Look>,
}

impl<P: Probe> Journal<P> {
    /// `about`: what the search is of, one line; a journal of anything else is refused.
    ///
    /// # Errors
    /// `Failed` naming the file and the remedy.
    pub fn open(path: &Path, about: &str, probe: P) -> Result<Self, LoadgenError> {
        let wrong = |e: &dyn std::fmt::Display| failed(format!("--journal {}: {e}", path.display()));
        plain(path).map_err(|why| bad(format!("--journal {}: {why}", path.display())))?;
        // Neither a link nor a pipe that has come since: the one is not followed, the other not waited for.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).custom_flags(flags).open(path);
        let mut file = file.map_err(|e| wrong(&e))?;
        let text = input::all(&file, SUMMARY_BYTES).and_then(input::utf8).map_err(|e| wrong(&e))?;
        // A kill may have torn the last line.
        let whole = text.rfind('\n').map_or(0, |n| n + 1);
        // Its first line may have been cut short; whatever else has no line is somebody's.
        if whole == 0 && !about.starts_with(&text) {
            return Err(wrong(&"it is no journal of a search; give a path that is free"));
        }
        let mut lines = text[..whole].lines();
        let mut earlier = std::collections::VecDeque::new();
        if let Some(head) = lines.next() {
            if head != about {
                return Err(wrong(&"it is of another search; remove it, or give another file"));
            }
            for line in lines {
                earlier.push_back(serde_json::from_str(line).map_err(|e| wrong(&format!("{e}; remove it, or give another file")))?);
            }
        }
        file.set_len(whole as u64).map_err(|e| wrong(&e))?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(|e| wrong(&e))?;
        if whole == 0 {
            writeln!(file, "{about}").map_err(|e| wrong(&e))?;
        }
        Ok(Journal { probe, path: path.into(), file, earlier })
    }

    /// Looks that will be given again.
    pub fn remembered(&self) -> usize {
        self.earlier.len()
    }
}

impl<P: Probe> Probe for Journal<P> {
    fn look(&mut self, rps: f64, duration_ns: u64, seed: u64) -> Result<Look, LoadgenError> {
        if let Some(look) = self.earlier.pop_front() {
            if (look.rps, look.duration_ns, look.seed) == (rps, duration_ns, seed) {
                return Ok(look);
            }
            return Err(failed(format!("--journal {}: it is of another search; remove it, or give another file", self.path.display())));
        }
        let look = self.probe.look(rps, duration_ns, seed)?;
        let mut line = serde_json::to_vec(&look).expect("a look is plain data");
        line.push(b'\n');
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        written.map_err(|e| failed(format!("--journal {}: {e}", self.path.display())))?;
        Ok(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service whose share above the target is a function of the rate; the client is the limit from some rate on.
    struct Fake {
        share: fn(f64) -> f64,
        client_from: f64,
        calls: Vec<(f64, u64, u64)>,
        die_after: usize,
    }

    fn fake(share: fn(f64) -> f64) -> Fake {
        Fake { share, client_from: f64::INFINITY, calls: Vec::new(), die_after: usize::MAX }
    }

    impl Probe for Fake {
        fn look(&mut self, rps: f64, duration_ns: u64, seed: u64) -> Result<Look, LoadgenError> {
            if self.calls.len() >= self.die_after {
                return Err(failed("killed"));
            }
            self.calls.push((rps, duration_ns, seed));
            let count = (rps * duration_ns as f64 * 1e-9).round() as u64;
            let share = (self.share)(rps);
            let above = (0..count).filter(|&i| crate::random::unit(draw(seed, 1, i)) <= share).count() as u64;
            let verdict = if rps >= self.client_from {
                VerdictKind::ClientLimited
            } else if share > 0.5 {
                VerdictKind::ServerOverloaded
            } else {
                VerdictKind::Valid
            };
            let p99_ms = (share <= 0.5).then_some(1.0 + 100.0 * share);
            Ok(Look {
                rps,
                duration_ns,
                seed,
                offered_rps: rps,
                achieved_rps: rps,
                completed: count,
                count,
                above,
                effective_count: count,
                p50_ms: Some(0.5),
                p95_ms: Some(0.8),
                p99_ms,
                verdict,
                reason: "fake".into(),
            })
        }
    }

    /// 1 % at 1000 rps, steep.
    fn cliff(rps: f64) -> f64 {
        (0.01 * (rps / 1000.0).powi(12)).min(1.0)
    }

    fn settings() -> Settings {
        Settings { points: 0, resolution: 0.03, ..Settings::default() }
    }

    #[test]
    fn the_edge_is_found_from_below_and_from_above() {
        for (from_rps, max_rps) in [(10.0, 5e6), (900.0, 5e6), (1001.0, 5e6), (50_000.0, 5e6)] {
            let s = Settings { from_rps, max_rps, ..settings() };
            let found = search(&mut fake(cliff), &s, |_| {}).unwrap();
            let max = found.max_load_rps.unwrap();
            // The share doubles within 6 %: the edge is 1000, undecided rates lie around it.
            assert!((900.0..=1000.0).contains(&max), "{from_rps}: {max}");
            assert!(found.beyond_rps.unwrap() > max && found.beyond_rps.unwrap() <= 1100.0, "{found:?}");
            assert_eq!(found.limited_by, Limit::Service);
            assert!(found.curve.windows(2).all(|w| w[0].rps < w[1].rps));
        }
    }

    /// A wrong finding is as rare as the confidence says, although each rate is looked at up to four times.
    #[test]
    fn findings_are_wrong_as_rarely_as_stated() {
        let s = settings();
        let rate = |share: fn(f64) -> f64, wrong: Finding| {
            let n = (0..400)
                .filter(|&seed| attempt(&mut fake(share), &Settings { seed, ..s }, 500.0, &mut 0).unwrap().finding == wrong)
                .count();
            n as f64 / 400.0
        };
        // On the edge itself either finding is wrong.
        assert!(rate(|_| 0.010_001, Finding::Holds) <= 0.04);
        assert!(rate(|_| 0.009_999, Finding::Fails) <= 0.04);
        // Well away from it the right one comes.
        assert!(rate(|_| 0.002, Finding::Holds) == 1.0 && rate(|_| 0.05, Finding::Fails) == 1.0);
    }

    /// Where the client cannot follow, the result says so, and gives what did hold.
    #[test]
    fn a_client_limit_is_no_service_limit() {
        let mut f = Fake { client_from: 600.0, ..fake(cliff) };
        let found = search(&mut f, &settings(), |_| {}).unwrap();
        assert_eq!(found.limited_by, Limit::Client);
        assert!((550.0..600.0).contains(&found.max_load_rps.unwrap()), "{:?}", found.max_load_rps);
        assert!(found.summary.contains("the client was the limit") && found.summary.contains("--threads"), "{}", found.summary);
        // Each such rate had three chances.
        assert_eq!(f.calls.iter().filter(|c| c.0 == 800.0).count(), 3);
        // Only where nothing holds there is no figure at all.
        let found = search(&mut Fake { client_from: 0.0, ..fake(cliff) }, &settings(), |_| {}).unwrap();
        assert_eq!((found.max_load_rps, found.limited_by), (None, Limit::Client));
    }

    #[test]
    fn bounds_are_kept_and_told() {
        let s = Settings { max_rps: 700.0, ..settings() };
        let found = search(&mut fake(cliff), &s, |_| {}).unwrap();
        assert_eq!((found.max_load_rps, found.limited_by, found.beyond_rps), (Some(700.0), Limit::MaxRps, None));
        let found = search(&mut fake(|_| 1.0), &settings(), |_| {}).unwrap();
        assert_eq!((found.max_load_rps, found.limited_by), (None, Limit::Service));
        assert!(found.summary.contains("--from"));
    }

    /// A service of one request a second is judged by its p95 within a minute, and the point says so.
    #[test]
    fn few_requests_are_judged_by_their_p95() {
        let s = Settings { from_rps: 1.0, max_rps: 4.0, longest_ns: 200_000_000_000, ..settings() };
        let found = search(&mut fake(|rps| if rps > 2.0 { 0.4 } else { 0.0 }), &s, |_| {}).unwrap();
        assert_eq!(found.max_load_rps, Some(2.0));
        assert!(found.curve.iter().find(|p| p.rps == 1.0).unwrap().judged_q == 0.95);
    }

    /// The curve has its points, each rate once.
    #[test]
    fn the_curve_is_filled() {
        let s = Settings { points: 10, ..settings() };
        let found = search(&mut fake(cliff), &s, |_| {}).unwrap();
        for k in 1..10 {
            let at = found.beyond_rps.unwrap() * f64::from(k) / 10.0;
            assert!(found.curve.iter().any(|p| (p.rps / at - 1.0).abs() < 0.04), "{at}: {:?}", found.curve);
        }
        assert!(found.curve.windows(2).all(|w| w[0].rps < w[1].rps));
    }

    /// y = 1 / (1 - x) from 0 to 0.9: the chord rises by 10, so does the curve at x = 1 - 1 / sqrt(10) = 0.684.
    #[test]
    fn the_knee_of_a_hyperbola() {
        let curve: Vec<(f64, f64)> = (0..=90).map(|i| (f64::from(i), 1.0 / (1.0 - 0.01 * f64::from(i)))).collect();
        assert_eq!(knee(&curve).unwrap().rps, 68.0);
        // A straight line, a flat one, and four points have none.
        assert_eq!(knee(&(0..20).map(|i| (f64::from(i), f64::from(i))).collect::<Vec<_>>()), None);
        assert_eq!(knee(&(0..20).map(|i| (f64::from(i), 1.0)).collect::<Vec<_>>()), None);
        assert_eq!(knee(&curve[..4]), None);
        // A dip in a noisy curve does not count as below.
        let mut dip = curve.clone();
        dip[30].1 = 0.0;
        assert_eq!(knee(&dip).unwrap().rps, 68.0);
    }

    /// A search killed after any look goes on where it was and ends the same; a torn line is looked at again.
    #[test]
    fn a_killed_search_goes_on() {
        let whole = search(&mut fake(cliff), &settings(), |_| {}).unwrap();
        let mut full = fake(cliff);
        search(&mut full, &settings(), |_| {}).unwrap();
        for die_after in 0..full.calls.len() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("search.jsonl");
            let mut first = Journal::open(&path, "about", Fake { die_after, ..fake(cliff) }).unwrap();
            assert!(search(&mut first, &settings(), |_| {}).is_err());
            // Killed while it wrote.
            let mut text = std::fs::read(&path).unwrap();
            text.extend_from_slice(b"{\"rps\":");
            std::fs::write(&path, text).unwrap();
            let mut second = Journal::open(&path, "about", fake(cliff)).unwrap();
            assert_eq!(second.remembered(), die_after);
            assert_eq!(search(&mut second, &settings(), |_| {}).unwrap(), whole);
            assert_eq!(second.probe.calls, full.calls[die_after..]);
            assert!(Journal::open(&path, "something else", fake(cliff)).err().unwrap().to_string().contains("another search"));
            let mut other = Journal::open(&path, "about", fake(cliff)).unwrap();
            assert!(search(&mut other, &Settings { seed: 2, ..settings() }, |_| {}).is_err(), "looks of another seed");
        }
    }

    #[test]
    fn rates_have_three_digits() {
        assert_eq!([12345.0, 0.012_345, 1.0, 999.6, 0.1].map(rounded), [12300.0, 0.0123, 1.0, 1000.0, 0.1]);
    }
}
