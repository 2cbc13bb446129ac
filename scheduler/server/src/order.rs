//! In which order the changes of several holders are written, so that at every moment each of them holds something and, where
//! that is possible at all, none is given what another still holds.
//!
//! Three passes: all shrink to what they keep, those that keep nothing move, all grow. Two that swap places overlap for one
//! write: the alternative would be to hold nothing.

use crate::cpuset::CpuSet;

/// What can be held: CPUs, or a mask in each L3 domain.
pub trait Holdable: Clone + PartialEq {
    /// The part of `self` that stays in `to`; a part (domain) of which too little would stay is kept as it is.
    fn kept(&self, to: &Self) -> Self;

    /// `self`, with the parts that are not within `to` replaced by those of `to`.
    fn moved(&self, to: &Self) -> Self;

    fn overlaps(&self, other: &Self) -> bool;
}

impl Holdable for CpuSet {
    fn kept(&self, to: &Self) -> Self {
        let both = self.intersection(*to);
        if both.is_empty() {
            *self
        } else {
            both
        }
    }

    fn moved(&self, to: &Self) -> Self {
        if self.is_subset(to) {
            *self
        } else {
            *to
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        !self.intersection(*other).is_empty()
    }
}

/// A CBM in each L3 domain, with the fewest bits that the hardware takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masks {
    pub ways: Vec<u32>,
    pub min_ways: u32,
}

impl Masks {
    fn zip(&self, other: &Self, f: impl Fn(u32, u32) -> u32) -> Self {
        let ways = self.ways.iter().zip(&other.ways).map(|(a, b)| f(*a, *b)).collect();
        Masks { ways, min_ways: self.min_ways }
    }
}

impl Holdable for Masks {
    fn kept(&self, to: &Self) -> Self {
        self.zip(to, |a, b| if (a & b).count_ones() >= self.min_ways.max(1) { a & b } else { a })
    }

    fn moved(&self, to: &Self) -> Self {
        self.zip(to, |a, b| if a & !b == 0 { a } else { b })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.ways.iter().zip(&other.ways).any(|(a, b)| a & b != 0)
    }
}

/// Which pass a write belongs to: those of several resources are merged by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    Shrink,
    Move,
    Grow,
}

/// The pass of a limit on memory; None is no limit.
///
/// The other way round than with what can be held: raised first, lowered last. To raise a limit takes memory from no other
/// service, and its own may be short of it now. To lower one reclaims, which takes seconds and may fail. Until then the sum of limits may be
/// above what there is: it bounds what may be used, not what is.
pub fn limit_pass(from: Option<u64>, to: Option<u64>) -> Pass {
    let bytes = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    if bytes(to) < bytes(from) {
        Pass::Grow
    } else {
        Pass::Shrink
    }
}

/// One write: which holder, from what, to what.
#[derive(Clone, Debug, PartialEq)]
pub struct Write<T> {
    pub holder: usize,
    pub pass: Pass,
    pub from: T,
    pub to: T,
}

/// Writes that turn the first of each pair into the second; at most three a holder.
pub fn order<T: Holdable>(changes: &[(T, T)]) -> Vec<Write<T>> {
    let mut now: Vec<T> = changes.iter().map(|(from, _)| from.clone()).collect();
    let mut out = vec![];
    let mut write = |now: &mut Vec<T>, holder: usize, pass: Pass, to: T| {
        if now[holder] != to {
            let from = std::mem::replace(&mut now[holder], to.clone());
            out.push(Write { holder, pass, from, to });
        }
    };
    for (i, (from, to)) in changes.iter().enumerate() {
        write(&mut now, i, Pass::Shrink, from.kept(to));
    }
    let mut moving: Vec<usize> = (0..changes.len()).filter(|i| now[*i].moved(&changes[*i].1) != now[*i]).collect();
    while !moving.is_empty() {
        let target = |i: usize| now[i].moved(&changes[i].1);
        let free = |i: &usize| (0..now.len()).all(|j| j == *i || !target(*i).overlaps(&now[j]));
        // None is free where places are swapped.
        let at = moving.iter().position(free).unwrap_or(0);
        let i = moving.remove(at);
        let to = target(i);
        write(&mut now, i, Pass::Move, to);
    }
    for (i, (_, to)) in changes.iter().enumerate() {
        write(&mut now, i, Pass::Grow, to.clone());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        CpuSet::parse(list).unwrap()
    }

    /// The holder that gives comes before the one that takes.
    #[test]
    fn a_cpu_is_given_up_before_it_is_taken() {
        let got = order(&[(cpus("0"), cpus("0-1")), (cpus("1-2"), cpus("2"))]);
        assert_eq!(got.iter().map(|w| (w.holder, w.to)).collect::<Vec<_>>(), [(1, cpus("2")), (0, cpus("0-1"))]);
    }

    /// A chain of moves starts at its free end.
    #[test]
    fn moves_go_to_free_places_first() {
        let got = order(&[(cpus("0"), cpus("1")), (cpus("1"), cpus("2")), (cpus("2"), cpus("3"))]);
        assert_eq!(got.iter().map(|w| w.holder).collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(order(&[(cpus("0"), cpus("1")), (cpus("1"), cpus("0"))]).len(), 2);
        assert!(order(&[(cpus("0-3"), cpus("0-3"))]).is_empty());
    }

    /// One domain of a mask may shrink while another has to move.
    #[test]
    fn domains_shrink_and_move_apart() {
        let m = |a: u32, b: u32| Masks { ways: vec![a, b], min_ways: 2 };
        let got = order(&[(m(0xf, 0x3), m(0x3, 0x30))]);
        assert_eq!(got.iter().map(|w| w.to.ways.clone()).collect::<Vec<_>>(), [vec![0x3, 0x3], vec![0x3, 0x30]]);
        // A single way in common is narrower than the hardware takes.
        assert_eq!(order(&[(m(0x3, 0x3), m(0x6, 0x3))]).len(), 1);
    }

    /// Limits that are raised or lifted come before those that are lowered or set anew.
    #[test]
    fn limits_are_raised_before_others_are_lowered() {
        let mut all = [(Some(4), Some(2)), (None, Some(9)), (Some(2), Some(4)), (Some(1), None)];
        all.sort_by_key(|(from, to)| limit_pass(*from, *to));
        assert_eq!(all, [(Some(2), Some(4)), (Some(1), None), (Some(4), Some(2)), (None, Some(9))]);
    }

    /// Whatever the change: each always holds something, the end is what was asked for, and only swaps overlap.
    #[test]
    fn nobody_is_ever_without() {
        let mut bits = 7u64;
        let mut random = |n: u64| {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (bits >> 33) % n
        };
        let mut swaps = 0;
        for _ in 0..20_000 {
            // Two random partitions of 12 CPUs among four holders.
            let mut partition = || {
                let mut sets = [CpuSet::empty(); 4];
                (0..12).for_each(|c| sets[if c < 4 { c as usize } else { random(4) as usize }].insert(c));
                let turn = random(12) as u32;
                sets.map(|s| s.iter().map(|c| (c + turn) % 12).collect::<CpuSet>())
            };
            let (a, b) = (partition(), partition());
            let changes: Vec<(CpuSet, CpuSet)> = a.into_iter().zip(b).collect();
            let mut now = a;
            for w in order(&changes) {
                assert_eq!(now[w.holder], w.from);
                now[w.holder] = w.to;
                assert!(!w.to.is_empty());
                let clash = (0..4).any(|j| j != w.holder && now[j].overlaps(&w.to));
                assert!(!clash || w.pass == Pass::Move, "{changes:?}");
                swaps += usize::from(clash);
            }
            assert_eq!(now, b);
        }
        assert!(swaps > 0, "the test must see swaps too");
    }
}
