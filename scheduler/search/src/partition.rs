//! ORACLE: the best exclusive partition of a server for what runs on it, found off line (OSML paper, Sec. 6.1: "exhaustive
//! offline sampling").
//!
//! Problem: every LC service gets cores and ways of its own, the BE jobs together get the rest and a bandwidth limit (without
//! BE jobs the rest stays idle). Best means, in this order: largest EMU (sum of the loads of the LC services whose p99 meets
//! the target); largest BE throughput; fewest cores and ways for the LC services; weakest bandwidth limit; least in the order
//! of [`Partition`]. EMU and throughput that differ by less than 1e-9 are equal.
//!
//! Units: cores and ways are counts, loads and throughputs are shares (1 = max load, 1 = running alone).
//!
//! Approach: branch and bound on what a [`Bench`] answers. It loses nothing if the bench keeps its promises: the bounds that
//! it gives are bounds ([`Bench::lc_alone`], [`Bench::be_alone`], [`Bench::lc_beside`], [`Bench::be_beside`]), and with one BE
//! job a lower bandwidth limit never raises a p99, nor the job's throughput.
//!
//! Nothing is assumed of how latency depends on a service's own cores and ways: where a service can live by itself is asked
//! cell by cell.
//!
//! Sets of LC services are tried from the largest load down. A set whose cells do not fit beside the rest is refuted by
//! counting. For the others a local search finds a good partition first; then every partition of that set is judged, best
//! bound on the BE jobs first, down to the bound that what was found beats. Cores are dealt before ways: where a deal of cores
//! is refuted by its bounds, no deal of ways is looked at. Where `most_judged` ends this early, the outcome says what may have
//! been missed.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::ops::ControlFlow;
use surefoot_server::Amount;

type Flow = ControlFlow<()>;

/// Most LC services: all their sets are looked at.
pub const MOST_LC: usize = 12;
/// Up to so many LC services a search to the end is a matter of seconds.
pub const EXACT_LC: usize = 3;
/// Partitions that are judged together.
const BATCH: usize = 2048;
/// What a bound must exceed a promise by: models answer with rounding errors.
const TOLERANCE: f64 = 1e-6;
/// Steps of a local search; it ends before in practice.
const MOST_STEPS: usize = 500;
/// LC services up to which a local search also tries pairs of moves.
const PAIRS_UP_TO: usize = 8;

/// What there is to hand out.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    pub cores: u32,
    /// 0 where the LLC cannot be partitioned; at most 32.
    pub ways: u32,
    /// Least ways of a holder.
    pub min_ways: u32,
    /// Bandwidth limits of the BE jobs, per cent, from 100 down; one entry where there is no MBA.
    pub mba_pct: Vec<u8>,
}

/// Who shares the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub space: Space,
    /// Offered load of each LC service, a share of its max load.
    pub loads: Vec<f64>,
    /// Number of BE jobs.
    pub jobs: usize,
}

/// Who holds what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    pub lc: Vec<Amount>,
    /// The BE jobs' together; idle without BE jobs.
    pub rest: Amount,
    pub mba_pct: u8,
}

impl Partition {
    fn size(&self) -> u32 {
        self.lc.iter().map(|h| h.cores + h.ways).sum()
    }
}

/// What comes of a partition.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// p99 / QoS target of each LC service; met up to 1.
    pub p99_ratio: Vec<f64>,
    /// Mean over the BE jobs of throughput relative to running alone on everything; 0 without jobs.
    pub be_throughput: f64,
}

/// Cores of every LC service, and what is left beside them; the LC services' ways are open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deal {
    pub lc_cores: Vec<u32>,
    pub rest: Amount,
}

/// Answers questions about one server; many at a time, so that it can use several threads. Answers come in order and depend
/// on nothing but the question.
///
/// `set` has a bit for each LC service that meets its target; bounds need to hold for partitions where these do.
pub trait Bench {
    fn judge(&mut self, partitions: &[Partition]) -> Vec<Answer>;

    /// p99 / QoS target of LC service `lc` with nobody else on the server, on the best places for that many cores. If it
    /// misses its target there, it does so in every partition where it holds as much.
    fn lc_alone(&mut self, lc: usize, holds: &[Amount]) -> Vec<f64>;

    /// No partition with this rest and limit lets the BE jobs reach more throughput.
    fn be_alone(&mut self, rests: &[(Amount, u8)]) -> Vec<f64>;

    /// No deal of ways, and no bandwidth limit, brings the largest p99 / QoS target in `set` below this (the rest's ways do
    /// not count).
    fn lc_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64>;

    /// No deal of ways to the LC services, and no bandwidth limit, lets the BE jobs reach more throughput.
    fn be_beside(&mut self, set: u32, deals: &[Deal]) -> Vec<f64>;
}

/// What the search is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Only EMU has to be the best; the rest is what came along.
    Emu,
    All,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub goal: Goal,
    /// End the exhaustive part after so many partitions.
    pub most_judged: u64,
}

/// What was found, and what may have been missed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub partition: Partition,
    pub answer: Answer,
    /// QoS of each LC service.
    pub met: Vec<bool>,
    pub emu: f64,
    /// No partition has a larger EMU.
    pub emu_bound: f64,
    /// No partition with the EMU found has a larger BE throughput. None without BE jobs, or if only EMU was looked for.
    pub be_bound: Option<f64>,
    /// Proven best in every respect that was looked for.
    pub exact: bool,
    /// Partitions and single holders judged.
    pub judged: u64,
}

/// How much better a partition is, the first difference counts.
type Rank = (i64, i64, Reverse<u32>, u8, Reverse<Vec<Amount>>);

/// How good a partition is for a local search.
type Score = (bool, i64, Reverse<u32>);

/// EMU and throughput in steps of 1e-9.
pub(crate) fn steps(x: f64) -> i64 {
    (x * 1e9).round() as i64
}

impl Problem {
    /// EMU and QoS of an answer.
    pub fn emu(&self, a: &Answer) -> (f64, Vec<bool>) {
        let met: Vec<bool> = a.p99_ratio.iter().map(|r| *r <= 1.0).collect();
        // A sum of nothing would be -0.
        (self.loads.iter().zip(&met).filter(|(_, m)| **m).fold(0.0, |sum, (l, _)| sum + l), met)
    }

    /// Order of partitions, best last.
    pub fn compare(&self, a: (&Partition, &Answer), b: (&Partition, &Answer)) -> Ordering {
        self.rank(a.0, a.1).cmp(&self.rank(b.0, b.1))
    }

    fn rank(&self, p: &Partition, a: &Answer) -> Rank {
        (steps(self.emu(a).0), steps(a.be_throughput), Reverse(p.size()), p.mba_pct, Reverse(p.lc.clone()))
    }

    fn least(&self) -> Amount {
        Amount::new(1, self.space.min_ways)
    }

    fn rest_least(&self) -> Amount {
        if self.jobs > 0 {
            self.least()
        } else {
            Amount::default()
        }
    }

    fn check(&self) -> Result<(), String> {
        let (n, s) = (self.loads.len() as u32, &self.space);
        if self.loads.len() > MOST_LC {
            return Err(format!("{n} LC services at a time, the search takes {MOST_LC}. Leave some out"));
        }
        let holders = n + u32::from(self.jobs > 0);
        if holders == 0 {
            return Err("no service and no job".into());
        }
        if holders > s.cores || holders * s.min_ways > s.ways {
            return Err(format!(
                "{n} LC services{} do not fit on {} cores and {} ways with a core and {} ways each. Leave some out",
                if self.jobs > 0 { " and the BE jobs" } else { "" },
                s.cores,
                s.ways,
                s.min_ways
            ));
        }
        Ok(())
    }
}

/// Find the best partition.
///
/// # Errors
/// One line if not everybody can have a core and the least ways, or for more than [`MOST_LC`] LC services.
pub fn search(problem: &Problem, bench: &mut dyn Bench, settings: &Settings) -> Result<Outcome, String> {
    problem.check()?;
    let mut s = Search::new(problem, bench);
    let n = problem.loads.len();
    let load = |set: u32| -> f64 { (0..n).filter(|i| set >> i & 1 == 1).map(|i| problem.loads[i]).sum() };
    let mut sets: Vec<(Reverse<i64>, u32)> = (0..1u32 << n).map(|set| (Reverse(steps(load(set))), set)).collect();
    sets.sort_unstable();
    // Sets that were not searched to the end: level, load, what the BE jobs might reach there.
    let mut open: Vec<(i64, f64, i64)> = vec![];
    for (Reverse(level), set) in sets {
        let found = s.best_emu();
        if found > level || (found == level && settings.goal == Goal::Emu) {
            break;
        }
        let cells = s.cells(set);
        let reach = Reach::new(&cells, &problem.space);
        let rests = s.rests(&reach);
        let Some(first) = rests.first() else { continue };
        s.climb(set, level, &reach, &rests);
        if s.best_emu() >= level && settings.goal == Goal::Emu {
            break;
        }
        // A set not met so far: leave something for smaller ones, and do not begin what cannot be ended.
        let unmet = s.best_emu() < level;
        let most = if unmet { s.judged + settings.most_judged.saturating_sub(s.judged) / 2 } else { settings.most_judged };
        let left = if unmet && s.judged as f64 + count_deals(&cells, &rests, problem.space.cores) > most as f64 {
            Some(s.bound_from(0, *first))
        } else {
            s.exhaust(Walk::new(set, level, &cells, most), &reach, &rests)
        };
        open.extend(left.map(|be| (level, load(set), be)));
    }
    let judged = s.judged;
    let (partition, answer) = s.best.ok_or("no partition was judged. This is a fault of the search, please report it")?;
    let (emu, met) = problem.emu(&answer);
    let all = settings.goal == Goal::All;
    let emu_open = open.iter().filter(|o| o.0 > steps(emu)).map(|o| o.1).max_by(f64::total_cmp);
    let here = open.iter().filter(|o| o.0 == steps(emu)).map(|o| o.2).max();
    let be_bound = here.map_or(answer.be_throughput, |be| (be as f64 * 1e-9).max(answer.be_throughput));
    Ok(Outcome {
        emu_bound: emu_open.unwrap_or(emu),
        be_bound: (all && problem.jobs > 0).then_some(be_bound),
        exact: emu_open.is_none() && (!all || here.is_none()),
        partition,
        answer,
        met,
        emu,
        judged,
    })
}

/// Ways (bit w = w ways) that each number of cores goes with.
type Cells = Vec<u64>;

/// Sums of one element of each.
fn sums(a: u64, b: u64) -> u64 {
    (0..=32).filter(|w| a >> w & 1 == 1).fold(0, |s, w| s | b << w)
}

/// What services `k..` can hold together: ways that each number of cores goes with, `k` = 0..=n.
struct Reach(Vec<Cells>);

impl Reach {
    fn new(cells: &[Cells], space: &Space) -> Self {
        let (cores, within) = (space.cores as usize, (1u64 << (space.ways + 1)) - 1);
        let mut after = vec![0u64; cores + 1];
        after[0] = 1;
        let mut all = vec![after];
        for mine in cells.iter().rev() {
            let after = &all[all.len() - 1];
            let mut here = vec![0u64; cores + 1];
            for (c, ways) in mine.iter().enumerate().filter(|(_, w)| **w != 0) {
                for (d, others) in after[..=cores - c].iter().enumerate().filter(|(_, w)| **w != 0) {
                    here[c + d] |= sums(*ways, *others) & within;
                }
            }
            all.push(here);
        }
        all.reverse();
        Reach(all)
    }

    fn holds(&self, k: usize, cores: u32, ways: u32) -> bool {
        self.0[k][cores as usize] >> ways & 1 == 1
    }
}

/// Deals of cores that leave one of `rests`, counted once for all ways.
fn count_deals(cells: &[Cells], rests: &[Amount], cores: u32) -> f64 {
    let mut after = vec![0.0; cores as usize + 1];
    after[0] = 1.0;
    for mine in cells {
        let mut here = vec![0.0; after.len()];
        for c in (0..mine.len()).filter(|c| mine[*c] != 0) {
            (0..after.len() - c).for_each(|d| here[c + d] += after[d]);
        }
        after = here;
    }
    let mut left: Vec<u32> = rests.iter().map(|r| cores - r.cores).collect();
    left.sort_unstable();
    left.dedup();
    left.iter().map(|c| after[*c as usize]).sum()
}

/// Every deal of `left` cores to services `holds.len()..` for which there are ways; in order.
fn each_cores(cells: &[Cells], reach: &Reach, left: u32, cores: &mut Vec<u32>, f: &mut dyn FnMut(&[u32]) -> Flow) -> Flow {
    let k = cores.len();
    if k == cells.len() {
        return if left == 0 { f(cores) } else { Flow::Continue(()) };
    }
    for c in 0..=left {
        if cells[k][c as usize] != 0 && reach.0[k + 1][(left - c) as usize] != 0 {
            cores.push(c);
            let flow = each_cores(cells, reach, left - c, cores, f);
            cores.pop();
            flow?;
        }
    }
    Flow::Continue(())
}

/// Every choice of one of `open[k]` for each `k` that adds up to `left`; in order.
fn each_ways(open: &[u64], left: u32, f: &mut dyn FnMut(&[u32]) -> Flow) -> Flow {
    fn walk(open: &[u64], tail: &[u64], left: u32, ways: &mut Vec<u32>, f: &mut dyn FnMut(&[u32]) -> Flow) -> Flow {
        let k = ways.len();
        if tail[k] >> left & 1 == 0 {
            return Flow::Continue(());
        }
        if k == open.len() {
            return f(ways);
        }
        for w in (0..=left).filter(|w| open[k] >> w & 1 == 1) {
            ways.push(w);
            let flow = walk(open, tail, left - w, ways, f);
            ways.pop();
            flow?;
        }
        Flow::Continue(())
    }
    // What those from k on can add up to.
    let mut tail = vec![1u64];
    open.iter().rev().for_each(|mine| tail.push(sums(*mine, tail[tail.len() - 1])));
    tail.reverse();
    walk(open, &tail, left, &mut Vec::with_capacity(open.len()), f)
}

struct Search<'a> {
    p: &'a Problem,
    bench: &'a mut dyn Bench,
    /// Where each LC service meets its target by itself.
    alone: Vec<Cells>,
    /// Where an LC service may be at all.
    anywhere: Cells,
    /// Bounds on BE throughput: limit, cores, ways.
    be_alone: Vec<Vec<Vec<i64>>>,
    best: Option<(Partition, Answer)>,
    rank: Option<Rank>,
    closed: Vec<Closed>,
    judged: u64,
}

/// A set that was searched to the end.
struct Closed {
    set: u32,
    level: i64,
    /// Deals of cores on which its partitions were judged; on the others it was refuted.
    possible: HashMap<Vec<u32>, bool>,
}

/// One set's way through its partitions.
struct Walk<'a> {
    set: u32,
    level: i64,
    cells: &'a [Cells],
    most_judged: u64,
    /// Deals of cores on which the set might meet its targets, and others.
    possible: HashMap<Vec<u32>, bool>,
    deals: Vec<Deal>,
    batch: Vec<Partition>,
    /// Bound of what was left.
    open: Option<i64>,
}

impl<'a> Walk<'a> {
    fn new(set: u32, level: i64, cells: &'a [Cells], most_judged: u64) -> Self {
        Walk { set, level, cells, most_judged, possible: HashMap::new(), deals: vec![], batch: vec![], open: None }
    }

    fn leave(&mut self, bound: i64) {
        self.open = self.open.max(Some(bound));
    }
}

impl<'a> Search<'a> {
    fn new(p: &'a Problem, bench: &'a mut dyn Bench) -> Self {
        let (space, least, rest) = (&p.space, p.least(), p.rest_least());
        let others = (p.loads.len() as u32).saturating_sub(1);
        let most_cores = space.cores - rest.cores - others * least.cores;
        let most_ways = space.ways - rest.ways - others * least.ways;
        let mut holds = vec![];
        for cores in least.cores..=most_cores {
            holds.extend((least.ways..=most_ways).map(|ways| Amount { cores, ways }));
        }
        let none = || vec![0u64; space.cores as usize + 1];
        let mut anywhere = none();
        holds.iter().for_each(|h| anywhere[h.cores as usize] |= 1 << h.ways);
        let mut judged = 0;
        let mut alone = vec![];
        for i in 0..p.loads.len() {
            let mut mine = none();
            for (h, ratio) in holds.iter().zip(bench.lc_alone(i, &holds)) {
                if ratio <= 1.0 + TOLERANCE {
                    mine[h.cores as usize] |= 1 << h.ways;
                }
            }
            judged += holds.len() as u64;
            alone.push(mine);
        }
        let mut be_alone = vec![vec![vec![0; space.ways as usize + 1]; space.cores as usize + 1]; space.mba_pct.len()];
        if p.jobs > 0 {
            let n = p.loads.len() as u32;
            let mut rests = vec![];
            for cores in rest.cores..=space.cores - n * least.cores {
                for ways in rest.ways..=space.ways - n * least.ways {
                    rests.extend(space.mba_pct.iter().map(|pct| (Amount { cores, ways }, *pct)));
                }
            }
            judged += rests.len() as u64;
            for (j, (at, x)) in rests.iter().zip(bench.be_alone(&rests)).enumerate() {
                be_alone[j % space.mba_pct.len()][at.0.cores as usize][at.0.ways as usize] = steps(x * (1.0 + TOLERANCE));
            }
        }
        Search { p, bench, alone, anywhere, be_alone, best: None, rank: None, closed: vec![], judged }
    }

    /// -1 before anything was found.
    fn best_emu(&self) -> i64 {
        self.rank.as_ref().map_or(-1, |r| r.0)
    }

    /// Where the services may be if those of `set` are to meet their targets.
    fn cells(&self, set: u32) -> Vec<Cells> {
        (0..self.p.loads.len()).map(|i| if set >> i & 1 == 1 { self.alone[i].clone() } else { self.anywhere.clone() }).collect()
    }

    fn bound(&self, limit: usize, rest: Amount) -> i64 {
        self.be_alone[limit][rest.cores as usize][rest.ways as usize]
    }

    /// Highest bound over all limits from `limit` on.
    fn bound_from(&self, limit: usize, rest: Amount) -> i64 {
        (limit..self.p.space.mba_pct.len()).map(|l| self.bound(l, rest)).max().unwrap_or(0)
    }

    /// What can be left for the BE jobs, most promising first.
    fn rests(&self, reach: &Reach) -> Vec<Amount> {
        let (s, least) = (&self.p.space, self.p.rest_least());
        let mut out = vec![];
        for cores in least.cores..=s.cores {
            let left = (least.ways..=s.ways).filter(|w| reach.holds(0, s.cores - cores, s.ways - w));
            out.extend(left.map(|ways| Amount { cores, ways }));
        }
        out.sort_by_key(|r| (Reverse(self.bound_from(0, *r)), Reverse(r.cores + r.ways), *r));
        out
    }

    /// True if no partition with this rest and a limit from `limit` on can be better than what was found.
    fn hopeless(&self, level: i64, limit: usize, rest: Amount) -> bool {
        self.beaten(level, self.bound_from(limit, rest), rest)
    }

    /// True if what was found is better than anything with this rest and at most this BE throughput.
    fn beaten(&self, level: i64, be: i64, rest: Amount) -> bool {
        let Some(best) = &self.rank else { return false };
        let size = self.p.space.cores + self.p.space.ways - rest.cores - rest.ways;
        (best.0, best.1, best.2) > (level, be, Reverse(size))
    }

    fn ask(&mut self, list: &[Partition]) -> Vec<Answer> {
        self.judged += list.len() as u64;
        let answers = self.bench.judge(list);
        for (p, a) in list.iter().zip(&answers) {
            let rank = self.p.rank(p, a);
            if self.rank.as_ref().is_none_or(|r| rank > *r) {
                (self.rank, self.best) = (Some(rank), Some((p.clone(), a.clone())));
            }
        }
        answers
    }

    fn meets(&self, set: u32, a: &Answer) -> bool {
        (0..self.p.loads.len()).all(|i| set >> i & 1 == 0 || a.p99_ratio[i] <= 1.0)
    }

    /// Judge partitions (given without a bandwidth limit) under every limit that can matter.
    fn settle(&mut self, set: u32, level: i64, list: &[Partition]) {
        let answers = self.ask(list);
        let limits = self.p.space.mba_pct.clone();
        if limits.len() == 1 || self.p.jobs == 0 {
            return;
        }
        let under = |p: &Partition, limit: usize| Partition { mba_pct: limits[limit], ..p.clone() };
        if self.p.jobs > 1 {
            // Who of them gains from a limit is not known: look at all.
            for limit in 1..limits.len() {
                let list: Vec<_> = list.iter().filter(|p| !self.hopeless(level, limit, p.rest)).map(|p| under(p, limit)).collect();
                self.ask(&list);
            }
            return;
        }
        // One job: the weakest limit that helps is the best one. First the strongest, then halving.
        let last = limits.len() - 1;
        let missed: Vec<&Partition> =
            list.iter().zip(&answers).filter(|(p, a)| !self.meets(set, a) && !self.hopeless(level, 1, p.rest)).map(|(p, _)| p).collect();
        let strongest: Vec<_> = missed.iter().map(|p| under(p, last)).collect();
        let answers = self.ask(&strongest);
        // Partition, a limit under which the set is not met, one under which it is.
        let mut open: Vec<(&Partition, usize, usize)> =
            missed.iter().zip(&answers).filter(|(_, a)| self.meets(set, a)).map(|(p, _)| (*p, 0, last)).collect();
        loop {
            open.retain(|(p, no, yes)| yes - no > 1 && !self.hopeless(level, no + 1, p.rest));
            if open.is_empty() {
                return;
            }
            let middle: Vec<_> = open.iter().map(|(p, no, yes)| under(p, (no + yes) / 2)).collect();
            let answers = self.ask(&middle);
            for ((_, no, yes), a) in open.iter_mut().zip(&answers) {
                let at = (*no + *yes) / 2;
                *(if self.meets(set, a) { yes } else { no }) = at;
            }
        }
    }

    /// Judge every partition that has `set` in its cells and is not beaten by its bound. Some(bound) if it ended early: what
    /// the BE jobs might reach in those not judged.
    fn exhaust(&mut self, mut walk: Walk, reach: &Reach, rests: &[Amount]) -> Option<i64> {
        let (set, level, cells) = (walk.set, walk.level, walk.cells);
        for rest in rests {
            if self.hopeless(level, 0, *rest) {
                continue;
            }
            if self.judged >= walk.most_judged {
                walk.leave(self.bound_from(0, *rest));
                continue;
            }
            let _ = each_cores(cells, reach, self.p.space.cores - rest.cores, &mut vec![], &mut |cores| {
                walk.deals.push(Deal { lc_cores: cores.to_vec(), rest: *rest });
                if walk.deals.len() < BATCH {
                    return Flow::Continue(());
                }
                self.deal_ways(&mut walk);
                if self.judged >= walk.most_judged {
                    walk.leave(self.bound_from(0, *rest));
                    return Flow::Break(());
                }
                if self.hopeless(level, 0, *rest) {
                    return Flow::Break(());
                }
                Flow::Continue(())
            });
        }
        self.deal_ways(&mut walk);
        self.settle(set, level, &walk.batch);
        // What was found on the way may beat what was left.
        let best = self.rank.as_ref().map_or(-1, |r| r.1);
        let open = walk.open.filter(|b| self.best_emu() < level || *b >= best);
        if open.is_none() {
            self.closed.push(Closed { set, level, possible: walk.possible });
        }
        open
    }

    /// Judge every deal of ways that goes with the deals of cores collected, as far as bounds do not refute them.
    fn deal_ways(&mut self, walk: &mut Walk) {
        let (set, level) = (walk.set, walk.level);
        let mut deals = std::mem::take(&mut walk.deals);
        // With one service there is one deal of ways, and bounds would cost as much as the answer.
        let worth_it = self.p.loads.len() > 1;
        if worth_it {
            let mut new: Vec<Deal> = deals.clone();
            new.retain(|d| !walk.possible.contains_key(&d.lc_cores));
            new.dedup_by(|a, b| a.lc_cores == b.lc_cores);
            self.judged += new.len() as u64;
            for (d, ratio) in new.iter().zip(self.bench.lc_beside(set, &new)) {
                walk.possible.insert(d.lc_cores.clone(), ratio <= 1.0 + TOLERANCE);
            }
            deals.retain(|d| walk.possible.get(&d.lc_cores) == Some(&true));
        }
        let mut bounds: Vec<i64> = deals.iter().map(|d| self.bound_from(0, d.rest)).collect();
        if worth_it && self.p.jobs > 0 && self.best_emu() == level {
            self.judged += deals.len() as u64;
            for (b, x) in bounds.iter_mut().zip(self.bench.be_beside(set, &deals)) {
                *b = (*b).min(steps(x * (1.0 + TOLERANCE)));
            }
        }
        let (ways, mba_pct) = (self.p.space.ways, self.p.space.mba_pct[0]);
        for (d, bound) in deals.iter().zip(bounds) {
            if self.beaten(level, bound, d.rest) {
                continue;
            }
            if self.judged >= walk.most_judged {
                walk.leave(bound);
                continue;
            }
            let open: Vec<u64> = d.lc_cores.iter().zip(walk.cells).map(|(c, cells)| cells[*c as usize]).collect();
            let _ = each_ways(&open, ways - d.rest.ways, &mut |ways| {
                let lc: Vec<Amount> = d.lc_cores.iter().zip(ways).map(|(c, w)| Amount::new(*c, *w)).collect();
                if self.judged_before(level, &d.lc_cores, &lc) {
                    return Flow::Continue(());
                }
                walk.batch.push(Partition { lc, rest: d.rest, mba_pct });
                if walk.batch.len() < BATCH {
                    return Flow::Continue(());
                }
                self.settle(set, level, &std::mem::take(&mut walk.batch));
                if self.judged >= walk.most_judged {
                    walk.leave(bound);
                    return Flow::Break(());
                }
                if self.beaten(level, bound, d.rest) {
                    return Flow::Break(());
                }
                Flow::Continue(())
            });
        }
    }

    /// True if the partition was judged for a set of larger load, under the only limit there is.
    fn judged_before(&self, level: i64, cores: &[u32], lc: &[Amount]) -> bool {
        self.p.space.mba_pct.len() == 1
            && self.closed.iter().any(|c| {
                let inside = |(i, h): (usize, &Amount)| c.set >> i & 1 == 0 || self.alone[i][h.cores as usize] >> h.ways & 1 == 1;
                c.level > level && lc.iter().enumerate().all(inside) && c.possible.get(cores) == Some(&true)
            })
    }

    /// Local search: single moves of one to four cores or ways between two holders, then pairs of moves, always the best one.
    fn climb(&mut self, set: u32, level: i64, reach: &Reach, rests: &[Amount]) {
        let cells = self.cells(set);
        let s = self.p.space.clone();
        let mut starts = vec![self.even()];
        if let Some(rest) = rests.first() {
            // The least that the services could do with.
            let _ = each_cores(&cells, reach, s.cores - rest.cores, &mut vec![], &mut |cores| {
                let open: Vec<u64> = cores.iter().zip(&cells).map(|(c, cells)| cells[*c as usize]).collect();
                each_ways(&open, s.ways - rest.ways, &mut |ways| {
                    let lc = cores.iter().zip(ways).map(|(c, w)| Amount::new(*c, *w)).collect();
                    starts.push(Partition { lc, rest: *rest, mba_pct: s.mba_pct[0] });
                    Flow::Break(())
                })
            });
        }
        for start in starts {
            let mut at = start;
            let mut score = self.score(set, &at, None);
            for _ in 0..MOST_STEPS {
                let single = self.moves(&at, &[1, 2, 4]);
                if let Some((p, x)) = self.best_of(set, single, score) {
                    (at, score) = (p, x);
                    continue;
                }
                if self.p.loads.len() > PAIRS_UP_TO {
                    break;
                }
                let mut pairs: Vec<Partition> = self.moves(&at, &[1]).iter().flat_map(|p| self.moves(p, &[1])).collect();
                pairs.sort_unstable();
                pairs.dedup();
                let Some((p, x)) = self.best_of(set, pairs, score) else { break };
                (at, score) = (p, x);
            }
            if self.best_emu() > level {
                return;
            }
        }
    }

    /// Larger is better: the set is met, by what the BE jobs reach and how little is used; or how far it is from that.
    fn score(&mut self, set: u32, p: &Partition, answer: Option<&Answer>) -> Score {
        let asked;
        let a = match answer {
            Some(a) => a,
            None => {
                asked = self.ask(std::slice::from_ref(p)).remove(0);
                &asked
            }
        };
        if self.meets(set, a) {
            return (true, steps(a.be_throughput), Reverse(p.size()));
        }
        let lack = (0..self.p.loads.len()).filter(|i| set >> i & 1 == 1).map(|i| a.p99_ratio[i].clamp(1.0, 1e6).ln());
        (false, -steps(lack.sum()), Reverse(p.size()))
    }

    fn best_of(&mut self, set: u32, list: Vec<Partition>, than: Score) -> Option<(Partition, Score)> {
        let answers = self.ask(&list);
        let mut best: Option<(usize, Score)> = None;
        for (i, a) in answers.iter().enumerate() {
            let x = self.score(set, &list[i], Some(a));
            if x > best.map_or(than, |b| b.1) {
                best = Some((i, x));
            }
        }
        best.map(|(i, x)| (list[i].clone(), x))
    }

    /// Nearly everything to the LC services, in equal shares.
    fn even(&self) -> Partition {
        let (s, n) = (&self.p.space, self.p.loads.len() as u32);
        let mut rest = self.p.rest_least();
        if n == 0 {
            rest = Amount::new(s.cores, s.ways);
        }
        let share = |all: u32, i: u32| all / n + u32::from(i < all % n);
        let lc = (0..n).map(|i| Amount::new(share(s.cores - rest.cores, i), share(s.ways - rest.ways, i))).collect();
        Partition { lc, rest, mba_pct: s.mba_pct[0] }
    }

    /// Partitions one move away: cores or ways from one holder to another, or the next bandwidth limit.
    fn moves(&self, from: &Partition, units: &[u32]) -> Vec<Partition> {
        let n = from.lc.len();
        let hold = |i: usize| if i < n { from.lc[i] } else { from.rest };
        let least = |i: usize| if i < n { self.p.least() } else { self.p.rest_least() };
        let mut out = vec![];
        for giver in 0..=n {
            for taker in (0..=n).filter(|t| *t != giver) {
                for by in units.iter().flat_map(|u| [Amount::new(*u, 0), Amount::new(0, *u)]) {
                    let (has, keeps) = (hold(giver), least(giver));
                    if has.cores < keeps.cores + by.cores || has.ways < keeps.ways + by.ways {
                        continue;
                    }
                    let mut to = from.clone();
                    let mut change = |i: usize, h: Amount| *(if i < n { &mut to.lc[i] } else { &mut to.rest }) = h;
                    change(giver, Amount::new(has.cores - by.cores, has.ways - by.ways));
                    let has = hold(taker);
                    change(taker, Amount::new(has.cores + by.cores, has.ways + by.ways));
                    out.push(to);
                }
            }
        }
        let limits = &self.p.space.mba_pct;
        if let Some(at) = limits.iter().position(|m| *m == from.mba_pct).filter(|_| self.p.jobs > 0) {
            let near = [at.checked_sub(1), (at + 1 < limits.len()).then_some(at + 1)];
            out.extend(near.into_iter().flatten().map(|l| Partition { mba_pct: limits[l], ..from.clone() }));
        }
        out
    }
}
