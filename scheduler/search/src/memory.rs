//! ORACLE where working sets do not fit into memory: how it is divided, beside the best [partition](crate::partition) for each division.
//!
//! Every LC service has a limit in steps of [`STEP`] of its footprint, from the least that it can have up to all of it, and a pool of compressed
//! pages in it: as large as is of use, half of that, none. The BE jobs have the rest, off the pool: by footprint, or whole one after the other but for
//! the last. (COSMOS paper, Sec. III: cores, memory and pool are one state.)
//!
//! More memory never hurts its holder, but a job or an overloaded service that pages leaves more to others. So EMU has no bound but all loads; and the
//! best partition where everybody has everything bounds BE throughput only of one job beside services that all meet their targets: these serve the same
//! requests, and paging adds to their work. The search ends where the bound is reached. With one LC service every division is looked at. With more of them a local search goes from
//! three divisions on: to the LC services what they touch, to the jobs, and half-way between. What may have been missed is then said by the bound.
//!
//! Units: GB (GiB) of memory.

use crate::partition::{steps, Outcome};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Of the footprint, between two limits of a service.
pub const STEP: f64 = 0.05;
/// Pools of an LC service, as shares of the largest that is of use.
const POOLS: [f64; 3] = [1.0, 0.5, 0.0];
/// Divisions that are looked at, with one LC service: all of them beside up to two jobs.
const MOST_OF_ONE: u64 = 200;
/// Steps that a local search takes at once.
const LEAPS: [i64; 4] = [1, -1, 4, -4];

/// A service or job that shares memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holder {
    pub footprint_gb: f64,
    /// It cannot live with less.
    pub least_gb: f64,
    /// Whether its pages can be compressed.
    pub compresses: bool,
}

/// What there is, and who shares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub capacity_gb: f64,
    pub lc: Vec<Holder>,
    pub jobs: Vec<Holder>,
}

/// Memory of one LC service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub memory_gb: f64,
    /// Of the largest pool that is of use under this limit.
    pub pool: f64,
}

/// Memory of everybody.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    pub lc: Vec<Share>,
    pub jobs_gb: Vec<f64>,
}

/// A division as the search counts: steps above the least of each LC service, which of [`POOLS`], and who of the jobs comes last (0: by footprint).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Deal {
    levels: Vec<u32>,
    pools: Vec<usize>,
    last: usize,
}

/// How well the best partition for a division has to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A good one, to compare divisions by.
    Quick,
    /// As the search for partitions has it.
    Whole,
}

/// Answers with the best partition for a division.
pub type Solve<'a> = dyn FnMut(&Division, Effort) -> Result<Outcome, String> + 'a;

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    pub division: Division,
    pub outcome: Outcome,
    /// Divisions whose best partition was looked for.
    pub divisions: u64,
}

/// How much better an outcome is, the first difference counts: EMU, BE throughput, fewer cores and ways, less memory of the LC services.
type Rank = (i64, i64, Reverse<u32>, Reverse<i64>, Reverse<Deal>);

impl Machine {
    /// Whether everybody has what it touches.
    pub fn fits(&self) -> bool {
        self.lc.iter().chain(&self.jobs).map(|h| h.footprint_gb).sum::<f64>() <= self.capacity_gb
    }

    fn least_gb(&self) -> f64 {
        self.jobs.iter().map(|h| h.least_gb).sum()
    }

    /// Steps of an LC service up to its footprint.
    fn top(&self, i: usize) -> u32 {
        let h = &self.lc[i];
        ((h.footprint_gb - h.least_gb) / (STEP * h.footprint_gb)).max(0.0).ceil() as u32
    }

    fn memory_gb(&self, i: usize, level: u32) -> f64 {
        let h = &self.lc[i];
        (h.least_gb + f64::from(level) * STEP * h.footprint_gb).min(h.footprint_gb.max(h.least_gb))
    }

    fn rest_gb(&self, levels: &[u32]) -> f64 {
        self.capacity_gb - levels.iter().enumerate().map(|(i, l)| self.memory_gb(i, *l)).sum::<f64>()
    }

    /// Who of the jobs can come last: nobody, or any of several.
    fn lasts(&self) -> usize {
        if self.jobs.len() > 1 {
            self.jobs.len() + 1
        } else {
            1
        }
    }

    /// None where the jobs would have less than they can live with, or a pool is named that would stay empty.
    fn division(&self, d: &Deal) -> Option<Division> {
        let rest_gb = self.rest_gb(&d.levels);
        let spare_gb = rest_gb - self.least_gb();
        // Rounding of sums is not want.
        if spare_gb < -1e-9 {
            return None;
        }
        let lc = (0..self.lc.len()).map(|i| Share { memory_gb: self.memory_gb(i, d.levels[i]), pool: POOLS[d.pools[i]] });
        let lc: Vec<Share> = lc.collect();
        let needless = |(s, h): (&Share, &Holder)| s.pool < 1.0 && (!h.compresses || s.memory_gb >= h.footprint_gb);
        if lc.iter().zip(&self.lc).any(needless) {
            return None;
        }
        let mut jobs_gb: Vec<f64> = self.jobs.iter().map(|h| h.least_gb).collect();
        let wants = |j: usize| (self.jobs[j].footprint_gb - self.jobs[j].least_gb).max(0.0);
        let all: f64 = (0..self.jobs.len()).map(wants).sum();
        let mut left_gb = spare_gb.max(0.0).min(all);
        if d.last == 0 {
            let share = if all > 0.0 { left_gb / all } else { 0.0 };
            jobs_gb.iter_mut().enumerate().for_each(|(j, gb)| *gb += wants(j) * share);
        } else {
            let mut order: Vec<usize> = (0..self.jobs.len()).filter(|j| *j != d.last - 1).collect();
            order.push(d.last - 1);
            for j in order {
                let gb = wants(j).min(left_gb);
                jobs_gb[j] += gb;
                left_gb -= gb;
            }
        }
        Some(Division { lc, jobs_gb })
    }

    /// Levels of the LC services that leave the jobs `of_jobs_gb`, or the least: who has most of its footprint gives first.
    fn levels_beside(&self, of_jobs_gb: f64) -> Vec<u32> {
        let mut levels: Vec<u32> = (0..self.lc.len()).map(|i| self.top(i)).collect();
        while self.rest_gb(&levels) < of_jobs_gb - 1e-9 {
            let share = |i: &usize| self.memory_gb(*i, levels[*i]) / self.lc[*i].footprint_gb;
            let most = (0..levels.len()).filter(|i| levels[*i] > 0).max_by(|a, b| share(a).total_cmp(&share(b)).then(b.cmp(a)));
            let Some(i) = most else { break };
            levels[i] -= 1;
        }
        levels
    }

    fn starts(&self) -> Vec<Deal> {
        let ours = self.levels_beside(self.least_gb());
        let theirs = self.levels_beside(self.jobs.iter().map(|h| h.footprint_gb).sum());
        let middle = ours.iter().zip(&theirs).map(|(a, b)| u32::midpoint(*a, *b)).collect();
        [ours, theirs, middle].map(|levels: Vec<u32>| Deal { pools: vec![0; levels.len()], levels, last: 0 }).to_vec()
    }

    /// Every deal, for one LC service.
    fn all(&self) -> Vec<Deal> {
        let one = |level: u32| {
            (0..POOLS.len()).flat_map(move |pool| {
                (0..self.lasts()).map(move |last| Deal { levels: vec![level; self.lc.len()], pools: vec![pool; self.lc.len()], last })
            })
        };
        (0..=self.lc.iter().enumerate().map(|(i, _)| self.top(i)).max().unwrap_or(0)).flat_map(one).collect()
    }

    fn neighbours(&self, d: &Deal) -> Vec<Deal> {
        let moved = |moves: &[(usize, i64)]| {
            let mut next = d.clone();
            for (i, by) in moves {
                let level = i64::from(next.levels[*i]) + by;
                if level < 0 || level > i64::from(self.top(*i)) {
                    return None;
                }
                next.levels[*i] = level as u32;
                // With all of it resident there is no pool.
                if next.levels[*i] == self.top(*i) {
                    next.pools[*i] = 0;
                }
            }
            Some(next)
        };
        let n = self.lc.len();
        let mut list: Vec<Deal> = (0..n).flat_map(|i| LEAPS.iter().filter_map(move |by| moved(&[(i, *by)]))).collect();
        for i in 0..n {
            list.extend((0..n).filter(|j| *j != i).filter_map(|j| moved(&[(i, 1), (j, -1)])));
            // Another pool makes another limit the best one.
            for pool in (0..POOLS.len()).filter(|p| *p != d.pools[i]) {
                list.extend([0].iter().chain(&LEAPS).filter_map(|by| moved(&[(i, *by)])).map(|mut next| {
                    next.pools[i] = pool;
                    next
                }));
            }
        }
        list.extend((0..self.lasts()).filter(|last| *last != d.last).map(|last| Deal { last, ..d.clone() }));
        list
    }
}

/// A search that is under way.
struct Walk<'a> {
    machine: &'a Machine,
    solve: &'a mut Solve<'a>,
    effort: Effort,
    seen: BTreeSet<Deal>,
    best: Option<(Rank, Deal, Division, Outcome)>,
    divisions: u64,
    /// No division reaches more.
    most: (i64, i64),
    /// All inner searches so far have proven what they found.
    proven: bool,
    most_emu: f64,
}

impl Walk<'_> {
    fn ask(&mut self, d: &Deal) -> Result<(), String> {
        if !self.seen.insert(d.clone()) {
            return Ok(());
        }
        let Some(division) = self.machine.division(d) else { return Ok(()) };
        let outcome = (self.solve)(&division, self.effort)?;
        self.divisions += 1;
        self.proven &= outcome.exact;
        self.most_emu = self.most_emu.max(outcome.emu_bound);
        let size = outcome.partition.lc.iter().map(|h| h.cores + h.ways).sum();
        let memory = division.lc.iter().map(|s| steps(s.memory_gb)).sum();
        let rank: Rank = (steps(outcome.emu), steps(outcome.answer.be_throughput), Reverse(size), Reverse(memory), Reverse(d.clone()));
        if self.best.as_ref().is_none_or(|b| rank > b.0) {
            self.best = Some((rank, d.clone(), division, outcome));
        }
        Ok(())
    }

    /// Nothing better is possible.
    fn is_done(&self) -> bool {
        self.best.as_ref().is_some_and(|b| (b.0 .0, b.0 .1) >= self.most)
    }
}

/// The best division and partition. `unlimited` is the best partition where everybody has what it touches, `offered` the sum of all loads, `solve` the best for a division; where
/// `for_emu`, BE throughput does not matter. After `most_divisions` a local search ends.
///
/// # Errors
/// One line where not everybody can have its least, or of `solve`.
pub fn search<'a>(
    machine: &'a Machine,
    unlimited: &Outcome,
    offered: f64,
    for_emu: bool,
    most_divisions: u64,
    solve: &'a mut Solve<'a>,
) -> Result<Found, String> {
    let jobs = !machine.jobs.is_empty() && !for_emu;
    let all_met = unlimited.met.iter().all(|m| *m) && machine.jobs.len() <= 1;
    let be_most = if all_met { unlimited.be_bound.unwrap_or(unlimited.answer.be_throughput) } else { f64::INFINITY };
    let most = (steps(offered), if jobs { steps(be_most) } else { i64::MIN });
    let mut whole = machine.lc.len() <= 1;
    let effort = if whole { Effort::Whole } else { Effort::Quick };
    let (seen, most_emu) = (BTreeSet::new(), f64::NEG_INFINITY);
    let mut walk = Walk { machine, solve, effort, seen, best: None, divisions: 0, most, proven: true, most_emu };
    if whole {
        for d in machine.all().iter().rev() {
            whole = walk.divisions < MOST_OF_ONE;
            if !whole || walk.is_done() {
                break;
            }
            walk.ask(d)?;
        }
    } else {
        for d in machine.starts() {
            if !walk.is_done() {
                walk.ask(&d)?;
            }
        }
        while !walk.is_done() && walk.divisions < most_divisions {
            let Some((rank, here)) = walk.best.as_ref().map(|b| (b.0.clone(), b.1.clone())) else { break };
            for d in machine.neighbours(&here) {
                if !walk.is_done() && walk.divisions < most_divisions {
                    walk.ask(&d)?;
                }
            }
            if walk.best.as_ref().is_none_or(|b| b.0 <= rank) {
                break;
            }
        }
    }
    if let (Some((_, here, ..)), true) = (walk.best.clone(), walk.effort == Effort::Quick && !(for_emu && walk.is_done())) {
        // The best of a quick look is looked at again: it is what is told.
        walk.seen.remove(&here);
        walk.effort = Effort::Whole;
        walk.ask(&here)?;
    }
    let done = walk.is_done();
    let (proven, most_emu, divisions) = (walk.proven, walk.most_emu, walk.divisions);
    let (_, _, division, mut outcome) = walk.best.ok_or_else(|| {
        format!(
            "the least that everybody can live with, {:.1} GB, does not fit into {:.1} GB. Leave some out",
            machine.lc.iter().chain(&machine.jobs).map(|h| h.least_gb).sum::<f64>(),
            machine.capacity_gb
        )
    })?;
    outcome.exact = done || whole && proven;
    outcome.emu_bound = if outcome.exact {
        outcome.emu
    } else if whole {
        most_emu
    } else {
        offered
    };
    if outcome.be_bound.is_some() && !outcome.exact {
        // Where the bound is not of the same services, a job is never faster than alone.
        let same = steps(outcome.emu) == steps(unlimited.emu);
        outcome.be_bound = Some(if same { be_most.min(1.0) } else { 1.0 });
    } else if outcome.be_bound.is_some() {
        outcome.be_bound = Some(outcome.answer.be_throughput);
    }
    Ok(Found { division, outcome, divisions })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::{Answer, Partition};
    use surefoot_server::Amount;

    fn holder(footprint_gb: f64, least_gb: f64) -> Holder {
        Holder { footprint_gb, least_gb, compresses: true }
    }

    /// Each service is met from `needs` of its footprint on, a half pool takes a tenth off that; throughput is the jobs' memory.
    fn toy<'a>(machine: &'a Machine, needs: &'a [f64]) -> impl Fn(&Division, Effort) -> Result<Outcome, String> + 'a {
        move |d, _| {
            let met: Vec<bool> =
                d.lc.iter()
                    .zip(&machine.lc)
                    .zip(needs)
                    .map(|((s, h), need)| {
                        let helped = if s.pool == 0.5 { 0.1 } else { 0.0 };
                        s.memory_gb / h.footprint_gb >= need - helped
                    })
                    .collect();
            let emu = met.iter().enumerate().map(|(i, m)| if *m { 0.5 + 0.1 * i as f64 } else { 0.0 }).sum();
            let jobs: f64 = d.jobs_gb.iter().zip(&machine.jobs).map(|(gb, h)| (gb / h.footprint_gb).powi(2)).sum();
            let be = jobs / machine.jobs.len().max(1) as f64;
            Ok(outcome(emu, be, met))
        }
    }

    fn outcome(emu: f64, be: f64, met: Vec<bool>) -> Outcome {
        let n = met.len();
        let partition = Partition { lc: vec![Amount::new(1, 1); n], rest: Amount::new(1, 1), mba_pct: 100 };
        let answer = Answer { p99_ratio: vec![1.0; n], be_throughput: be };
        Outcome { partition, answer, met, emu, emu_bound: emu, be_bound: Some(be), exact: true, judged: 1 }
    }

    fn every_deal(m: &Machine) -> Vec<Deal> {
        let mut lists = vec![(vec![], vec![])];
        for i in 0..m.lc.len() {
            let longer = lists.iter().flat_map(|(l, p): &(Vec<u32>, Vec<usize>)| {
                (0..=m.top(i)).flat_map(move |level| (0..3).map(move |pool| ([&l[..], &[level]].concat(), [&p[..], &[pool]].concat())))
            });
            lists = longer.collect();
        }
        lists
            .into_iter()
            .flat_map(|(levels, pools)| (0..m.lasts()).map(move |last| Deal { levels: levels.clone(), pools: pools.clone(), last }))
            .collect()
    }

    /// With one service the best of all divisions is found; with more of them that of the toy server, whose hills have one top.
    #[test]
    fn the_best_division_is_found() {
        for (n, needs) in [(1, vec![0.8]), (1, vec![0.3]), (2, vec![0.9, 0.6]), (3, vec![0.7, 0.95, 0.6])] {
            let sizes = [20.0, 10.0, 16.0];
            let lc: Vec<Holder> = (0..n).map(|i| holder(sizes[i], sizes[i] / 2.0)).collect();
            let jobs = vec![holder(12.0, 1.0), holder(18.0, 1.0)];
            let total: f64 = lc.iter().chain(&jobs).map(|h| h.footprint_gb).sum();
            let m = Machine { capacity_gb: 0.75 * total, lc, jobs };
            assert!(!m.fits());
            let solve = toy(&m, &needs);
            let best = every_deal(&m)
                .iter()
                .filter_map(|d| m.division(d))
                .map(|d| solve(&d, Effort::Whole).unwrap())
                .max_by(|a, b| (steps(a.emu), steps(a.answer.be_throughput)).cmp(&(steps(b.emu), steps(b.answer.be_throughput))));
            let best = best.unwrap();
            let unlimited = outcome(0.5 * n as f64 + 0.1 * (0..n).sum::<usize>() as f64, 1.0, vec![true; n]);
            let found = search(&m, &unlimited, unlimited.emu, false, 10_000, &mut |d, e| solve(d, e)).unwrap();
            assert_eq!(steps(found.outcome.emu), steps(best.emu), "{needs:?}");
            let (is, most) = (found.outcome.answer.be_throughput, best.answer.be_throughput);
            assert!(is >= 0.999 * most && is <= most + 1e-9, "{needs:?}: {is}, not {most}");
            assert_eq!(found.outcome.exact, n == 1);
            assert!(n == 1 || found.outcome.be_bound == Some(1.0));
        }
    }

    /// Nobody has less than it can live with, and no more is given than there is.
    #[test]
    fn a_division_keeps_to_the_machine() {
        let m = Machine {
            capacity_gb: 40.0,
            lc: vec![holder(20.0, 11.0), holder(8.0, 4.5)],
            jobs: vec![holder(12.0, 2.0), Holder { compresses: false, ..holder(18.0, 3.0) }],
        };
        let mut n = 0;
        for d in every_deal(&m).iter().filter_map(|d| m.division(d)) {
            n += 1;
            let all: f64 = d.lc.iter().map(|s| s.memory_gb).chain(d.jobs_gb.iter().copied()).sum();
            assert!(all <= 40.0 + 1e-9, "{d:?}");
            assert!(d.lc.iter().zip(&m.lc).all(|(s, h)| s.memory_gb >= h.least_gb && s.memory_gb <= h.footprint_gb + 1e-9));
            assert!(d.jobs_gb.iter().zip(&m.jobs).all(|(gb, h)| *gb >= h.least_gb && *gb <= h.footprint_gb + 1e-9), "{d:?}");
        }
        assert!(n > 1000, "{n}");
    }

    /// Where EMU is what counts, the first division that has all of it ends the search; where nobody can live, one line says so.
    #[test]
    fn the_search_ends_where_nothing_is_to_be_gained() {
        let m = Machine { capacity_gb: 30.0, lc: vec![holder(20.0, 10.0), holder(8.0, 4.0)], jobs: vec![holder(12.0, 1.0)] };
        let solve = toy(&m, &[0.9, 0.9]);
        let unlimited = outcome(1.1, 1.0, vec![true, true]);
        let found = search(&m, &unlimited, unlimited.emu, true, 100, &mut |d, e| solve(d, e)).unwrap();
        assert_eq!((found.divisions, found.outcome.exact), (1, true));
        let small = Machine { capacity_gb: 10.0, ..m.clone() };
        let e = search(&small, &unlimited, unlimited.emu, true, 100, &mut |d, e| solve(d, e)).unwrap_err();
        assert!(e.starts_with("the least that everybody can live with, 15.0 GB, does not fit into 10.0 GB"), "{e}");
    }
}
