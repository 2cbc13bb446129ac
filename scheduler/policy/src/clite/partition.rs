//! The space that CLITE searches: who gets how many cores, how many ways, and what memory bandwidth.

use crate::books::Amount;
use surefoot_learn::rng::Rng;
use surefoot_server::Platform;

/// What one holder gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub own: Amount,
    pub mba_pct: u8,
}

/// One part for each LC service, and one, the last, for all BE jobs where there are any.
pub type Partition = Vec<Part>;

/// All partitions of a server among so many holders. Cores and ways are shared out to the last one, as in the paper; MBA is a cap
/// on each holder and no share, so caps are free of each other (to make them sum to 100 % would throttle everybody).
#[derive(Clone, Debug)]
pub struct Space {
    total: Amount,
    least: Vec<Amount>,
    /// Levels of MBA, rising; only 100 without MBA.
    levels: Vec<u8>,
}

impl Space {
    /// `be_members`: BE jobs that share the last part; 0 = there is none. None where not everybody can have the least.
    pub fn new(p: &Platform, lc: usize, be_members: usize) -> Option<Self> {
        let mut least = vec![Amount::new(1, p.min_ways()); lc];
        if be_members > 0 {
            // A quota is split among the members, CPUs are not.
            least.push(Amount::new(if p.by_quota() { be_members as u32 } else { 1 }, p.min_ways()));
        }
        let total = Amount::new(p.core_units(), p.ways());
        let needed = least.iter().fold(Amount::default(), |a, l| a.plus(*l));
        let levels = p.mba.map_or(vec![100], |m| {
            // Ten levels, as in the paper, or as many as the hardware has.
            let step = m.step_pct.max(10).div_ceil(m.step_pct.max(1)) * m.step_pct.max(1);
            let mut levels: Vec<u8> =
                (0..).map_while(|i| 100u8.checked_sub(step.checked_mul(i)?)).take_while(|l| *l >= m.min_pct.max(1)).collect();
            levels.reverse();
            levels
        });
        (!least.is_empty() && needed.fits_in(total)).then_some(Space { total, least, levels })
    }

    pub fn holders(&self) -> usize {
        self.least.len()
    }

    /// Equal shares, nothing throttled. What does not divide goes to the last ones, the BE jobs first.
    pub fn equal(&self) -> Partition {
        self.equal_beside(&vec![None; self.holders()]).unwrap_or_default()
    }

    /// The same of what is left where some keep what they have. None where that is too little.
    pub fn equal_beside(&self, kept: &[Option<Part>]) -> Option<Partition> {
        let held = kept.iter().flatten().fold(Amount::default(), |a, p| a.plus(p.own));
        let (left, open) = (self.total.minus(held), kept.iter().filter(|k| k.is_none()).count() as u32);
        let mut nth = 0;
        let mut share = |total: u32, step: u32| {
            nth += step;
            total / open + u32::from(nth > open - total % open)
        };
        let part =
            |k: &Option<Part>| k.unwrap_or_else(|| Part { own: Amount::new(share(left.cores, 1), share(left.ways, 0)), mba_pct: 100 });
        let mut all: Partition = kept.iter().map(part).collect();
        // A quota is the only least above one: shift from the richest.
        for i in 0..all.len() {
            while all[i].own.cores < self.least[i].cores {
                let gives = |j: &usize| kept[*j].is_none() && all[*j].own.cores > self.least[*j].cores;
                let from = (0..all.len()).filter(gives).max_by_key(|j| all[*j].own.cores)?;
                all[from].own.cores -= 1;
                all[i].own.cores += 1;
            }
        }
        all.iter().zip(&self.least).all(|(p, l)| l.fits_in(p.own)).then_some(all)
    }

    /// All that `most` can have while the others keep the least.
    pub fn extreme(&self, most: usize) -> Partition {
        let others = self.least.iter().enumerate().filter(|(i, _)| *i != most).fold(Amount::default(), |a, (_, l)| a.plus(*l));
        let part = |(i, least): (usize, &Amount)| match i == most {
            true => Part { own: self.total.minus(others), mba_pct: 100 },
            false => Part { own: *least, mba_pct: self.levels[0] },
        };
        self.least.iter().enumerate().map(part).collect()
    }

    /// The paper's first samples: equal shares, then each holder's extreme.
    pub fn bootstrap(&self) -> Vec<Partition> {
        let extremes = (0..self.holders()).filter(|_| self.holders() > 1).map(|i| self.extreme(i));
        std::iter::once(self.equal()).chain(extremes).collect()
    }

    /// Any partition, each as likely as the other; `kept` has this part.
    pub fn random(&self, rng: &mut Rng, kept: Option<(usize, Part)>) -> Partition {
        let cores = self.divide(rng, kept.map(|(i, p)| (i, p.own.cores)), |a| a.cores);
        let ways = self.divide(rng, kept.map(|(i, p)| (i, p.own.ways)), |a| a.ways);
        (0..self.holders())
            .map(|i| match kept {
                Some((k, part)) if k == i => part,
                _ => Part { own: Amount::new(cores[i], ways[i]), mba_pct: self.levels[rng.below(self.levels.len())] },
            })
            .collect()
    }

    /// Cut what is left after everybody's least at random places (stars and bars).
    fn divide(&self, rng: &mut Rng, kept: Option<(usize, u32)>, of: fn(&Amount) -> u32) -> Vec<u32> {
        let mut out: Vec<u32> = self.least.iter().map(of).collect();
        if let Some((i, units)) = kept {
            out[i] = units;
        }
        let free = of(&self.total).saturating_sub(out.iter().sum());
        let open: Vec<usize> = (0..out.len()).filter(|i| kept.is_none_or(|(k, _)| k != *i)).collect();
        if open.is_empty() {
            return out;
        }
        // The places of open - 1 bars among free + open - 1 places.
        let places = free as usize + open.len() - 1;
        let mut bars: Vec<usize> = vec![];
        while bars.len() + 1 < open.len() {
            let bar = rng.below(places);
            if !bars.contains(&bar) {
                bars.push(bar);
            }
        }
        bars.sort_unstable();
        let mut from = 0;
        for (n, i) in open.iter().enumerate() {
            let to = bars.get(n).copied().unwrap_or(places);
            out[*i] += (to - from) as u32;
            from = to + 1;
        }
        out
    }

    /// A partition a few units away: `steps` times something moves from one holder to another, or a cap by one level.
    pub fn near(&self, rng: &mut Rng, from: &Partition, steps: usize, kept: Option<usize>) -> Partition {
        let mut all = from.clone();
        let open: Vec<usize> = (0..all.len()).filter(|i| kept != Some(*i)).collect();
        for _ in 0..steps {
            let kinds = if self.levels.len() > 1 { 3 } else { 2 };
            let (kind, i) = (rng.below(kinds), open[rng.below(open.len())]);
            if kind == 2 {
                let at = self.levels.iter().position(|l| *l >= all[i].mba_pct).unwrap_or(self.levels.len() - 1);
                let to = if rng.below(2) == 0 { at.saturating_sub(1) } else { (at + 1).min(self.levels.len() - 1) };
                all[i].mba_pct = self.levels[to];
                continue;
            }
            let j = open[rng.below(open.len())];
            if i == j {
                continue;
            }
            // Cores move by more than one where there are many, or the neighbourhood would be a point.
            let most = if kind == 0 { 1 + rng.below((self.total.cores as usize / 16).max(1)) as u32 } else { 1 };
            let (have, least) = (all[i].own, self.least[i]);
            let unit = match kind {
                0 => Amount::new(most.min(have.cores - least.cores), 0),
                _ => Amount::new(0, most.min(have.ways - least.ways)),
            };
            all[i].own = have.minus(unit);
            all[j].own = all[j].own.plus(unit);
        }
        all
    }

    /// As the Gaussian process sees it: shares of everything, 0 to 1.
    pub fn point(&self, all: &Partition) -> Vec<f64> {
        let share = |a: u32, of: u32| f64::from(a) / f64::from(of.max(1));
        let mut x: Vec<f64> = vec![];
        for p in all {
            x.push(share(p.own.cores, self.total.cores));
            if self.total.ways > 0 {
                x.push(share(p.own.ways, self.total.ways));
            }
            if self.levels.len() > 1 {
                x.push(f64::from(p.mba_pct) / 100.0);
            }
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(lc: usize, be: usize) -> Space {
        Space::new(&Platform::regular("t", 12, 1, 9, 2.0), lc, be).unwrap()
    }

    fn sound(s: &Space, all: &Partition) -> bool {
        let sum = all.iter().fold(Amount::default(), |a, p| a.plus(p.own));
        sum == s.total && all.iter().zip(&s.least).all(|(p, l)| l.fits_in(p.own) && s.levels.contains(&p.mba_pct))
    }

    /// Equal shares first, then for each holder the most while the others keep the least.
    #[test]
    fn the_bootstrap_is_the_equal_partition_and_the_extremes() {
        let s = space(2, 1);
        let part = |cores, ways, mba_pct| Part { own: Amount::new(cores, ways), mba_pct };
        let (least, most) = (part(1, 1, 10), part(10, 7, 100));
        assert_eq!(s.bootstrap(), [vec![part(4, 3, 100); 3], vec![most, least, least], vec![least, most, least], vec![least, least, most]]);
        // 12 over 5: what is left goes to the last ones.
        assert_eq!(
            space(4, 1).equal().iter().map(|p| (p.own.cores, p.own.ways)).collect::<Vec<_>>(),
            [(2, 1), (2, 2), (2, 2), (3, 2), (3, 2)]
        );
        // Who keeps 7 of 12 cores and 2 of 9 ways leaves 5 and 7 to two.
        let beside = space(3, 0).equal_beside(&[None, Some(part(7, 2, 60)), None]).unwrap();
        assert_eq!(beside, [part(2, 3, 100), part(7, 2, 60), part(3, 4, 100)]);
        assert!(space(3, 0).equal_beside(&[None, Some(part(11, 2, 60)), None]).is_none());
        // One holder has one partition.
        assert_eq!(space(1, 0).bootstrap(), [vec![part(12, 9, 100)]]);
    }

    /// Whatever is drawn adds up to the server, leaves everybody the least, and what is to be kept is kept.
    #[test]
    fn every_draw_is_a_partition() {
        let s = space(3, 2);
        let mut rng = Rng::new(1);
        let mut drawn = s.equal();
        let mut different = std::collections::BTreeSet::new();
        for n in 0..500 {
            let i = rng.below(s.holders());
            let kept = drawn[i];
            let (free, bound, near) =
                (s.random(&mut rng, None), s.random(&mut rng, Some((i, kept))), s.near(&mut rng, &drawn, 1 + n % 5, Some(i)));
            assert!(sound(&s, &free) && sound(&s, &bound) && sound(&s, &near), "{free:?} {bound:?} {near:?}");
            assert_eq!((bound[i], near[i]), (kept, kept));
            different.insert(free.iter().map(|p| p.own).collect::<Vec<_>>());
            assert!(s.point(&free).len() == 12 && s.point(&free).iter().all(|x| (0.0..=1.0).contains(x)));
            drawn = bound;
        }
        assert!(different.len() > 400, "{}", different.len());
    }

    /// More holders than ways have no partition; a host without ways and MBA is partitioned by cores alone.
    #[test]
    fn the_server_sets_the_dimensions() {
        assert!(Space::new(&Platform::regular("t", 12, 1, 2, 2.0), 3, 0).is_none());
        let p = Platform { mba: None, ..Platform::regular("t", 12, 1, 0, 0.0) };
        let s = Space::new(&p, 2, 1).unwrap();
        assert_eq!((s.point(&s.equal()), s.levels.clone()), (vec![4.0 / 12.0; 3], vec![100]));
        let mut rng = Rng::new(3);
        assert!((0..100).all(|_| sound(&s, &s.near(&mut rng, &s.equal(), 3, None))));
        // Steps of 5 % are taken two at a time, steps of 20 % as they are.
        let coarse = |step_pct, min_pct| {
            let p = Platform { mba: Some(surefoot_server::Mba { min_pct, step_pct }), ..p.clone() };
            Space::new(&p, 1, 0).unwrap().levels
        };
        assert_eq!((coarse(20, 20), coarse(5, 5)), (vec![20, 40, 60, 80, 100], (1..=10).map(|i| i * 10).collect()));
    }
}
