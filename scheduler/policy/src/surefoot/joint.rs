//! One choice for every service at once: the cheapest cells that fit on the server together.

use crate::books::Amount;

/// What a service could hold, and what that costs (any unit; lower is better).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub held: Amount,
    /// Units of memory; 0 where memory is not planned.
    pub memory: u32,
    pub price: f64,
}

impl Choice {
    fn fits_in(&self, total: Amount, memory: u32) -> bool {
        self.held.fits_in(total) && self.memory <= memory
    }
}

/// For each service the index of its choice, so that all fit in `total` and in so many units of memory and the sum of prices is least;
/// None where nothing fits.
///
/// Dynamic programming over services: lowest price of those seen so far on at most so many core units, ways and units of memory. The
/// first of equal choices wins, so that the answer depends on the order of choices alone. Without memory there is one layer.
pub fn cheapest(choices: &[Vec<Choice>], total: Amount, memory: u32) -> Option<Vec<usize>> {
    // Only sums in the inner loop, which so becomes one of vectors; what was chosen is found on the way back.
    // Rows are of cores, which are more than ways.
    let row = total.cores as usize + 1;
    let layer = row * (total.ways as usize + 1);
    let cells = layer * (memory as usize + 1);
    let at = |a: Amount, m: u32| m as usize * layer + a.ways as usize * row + a.cores as usize;
    // One table for each service, those before it included; the first is of no service.
    let mut least = vec![f64::INFINITY; (choices.len() + 1) * cells];
    least[..cells].fill(0.0);
    for (k, of_one) in choices.iter().enumerate() {
        // Of the last service only what all of it comes to is asked.
        let (asked, from) = if k + 1 == choices.len() { (total, memory) } else { (Amount::default(), 0) };
        let (before, after) = least[k * cells..(k + 2) * cells].split_at_mut(cells);
        for (i, choice) in of_one.iter().enumerate() {
            if !choice.fits_in(total, memory) || is_beaten(of_one, i) {
                continue;
            }
            for m in choice.memory.max(from)..=memory {
                for ways in choice.held.ways.max(asked.ways)..=total.ways {
                    let to = Amount::new(choice.held.cores.max(asked.cores), ways);
                    let end = m as usize * layer + (ways as usize + 1) * row;
                    let rest = at(to.minus(choice.held), m - choice.memory);
                    for (after, before) in after[at(to, m)..end].iter_mut().zip(&before[rest..]) {
                        let price = before + choice.price;
                        *after = if price < *after { price } else { *after };
                    }
                }
            }
        }
    }
    let (mut left, mut free) = (total, memory);
    let mut out = vec![0; choices.len()];
    for (k, of_one) in choices.iter().enumerate().rev() {
        let (before, after) = least[k * cells..(k + 2) * cells].split_at(cells);
        let price = after[at(left, free)];
        let is_it = |(i, c): (usize, &Choice)| {
            c.fits_in(left, free) && before[at(left.minus(c.held), free - c.memory)] + c.price == price && !is_beaten(of_one, i)
        };
        out[k] = of_one.iter().enumerate().position(is_it).filter(|_| price.is_finite())?;
        (left, free) = (left.minus(of_one[out[k]].held), free - of_one[out[k]].memory);
    }
    Some(out)
}

/// Another choice needs no more and costs less (or as much, and comes first): this one is never taken.
fn is_beaten(of_one: &[Choice], i: usize) -> bool {
    let c = of_one[i];
    let beats = |(j, o): (usize, &Choice)| j != i && o.fits_in(c.held, c.memory) && (o.price < c.price || o.price == c.price && j < i);
    of_one.iter().enumerate().any(beats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(cores: u32, ways: u32, price: f64) -> Choice {
        Choice { held: Amount::new(cores, ways), memory: 0, price }
    }

    /// Cores for one and ways for the other, where both cannot have their first wish.
    #[test]
    fn wishes_are_traded() {
        let a = vec![choice(6, 2, 1.0), choice(3, 6, 1.2)];
        let b = vec![choice(6, 2, 1.0), choice(3, 6, 1.5)];
        assert_eq!(cheapest(&[a.clone(), b.clone()], Amount::new(12, 8), 0), Some(vec![0, 0]));
        assert_eq!(cheapest(&[a.clone(), b.clone()], Amount::new(9, 8), 0), Some(vec![1, 0]));
        assert_eq!(cheapest(&[a, b], Amount::new(5, 8), 0), None);
    }

    /// A GiB for one and a core for the other: memory is a third resource, and plans without it are those of two.
    #[test]
    fn a_core_is_traded_for_memory() {
        let with = |memory, c: Choice| Choice { memory, ..c };
        let a = vec![with(2, choice(2, 1, 1.0)), with(1, choice(3, 1, 1.1))];
        let b = vec![with(2, choice(2, 1, 1.0)), with(1, choice(4, 1, 1.1))];
        let (five, six) = (Amount::new(5, 2), Amount::new(6, 2));
        assert_eq!(cheapest(&[a.clone(), b.clone()], five, 4), Some(vec![0, 0]));
        assert_eq!(cheapest(&[a.clone(), b.clone()], five, 3), Some(vec![1, 0]));
        assert_eq!(cheapest(&[a.clone(), b.clone()], six, 2), None);
        let without = |all: &[Choice]| all.iter().map(|c| with(0, *c)).collect::<Vec<Choice>>();
        assert_eq!(cheapest(&[without(&a), without(&b)], five, 0), cheapest(&[without(&a), without(&b)], five, 3));
    }

    /// The answer is as good as trying everything (seeded, 600 random cases).
    #[test]
    fn it_agrees_with_trying_everything() {
        let mut x = 5u64;
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        let one =
            |next: &mut dyn FnMut(u64) -> u64| Choice { memory: next(3) as u32, ..choice(next(5) as u32, next(3) as u32, next(50) as f64) };
        for _ in 0..600 {
            let (total, memory) = (Amount::new(next(8) as u32 + 1, next(5) as u32), next(5) as u32);
            let all: Vec<Vec<Choice>> = (0..next(4) + 1).map(|_| (0..next(4) + 1).map(|_| one(&mut next)).collect()).collect();
            let price = |picks: &[usize]| picks.iter().zip(&all).map(|(i, c)| c[*i].price).sum::<f64>();
            let held = |picks: &[usize]| picks.iter().zip(&all).fold(Amount::default(), |sum, (i, c)| sum.plus(c[*i].held));
            let units = |picks: &[usize]| picks.iter().zip(&all).map(|(i, c)| c[*i].memory).sum::<u32>();
            let fits = |picks: &[usize]| held(picks).fits_in(total) && units(picks) <= memory;
            let mut best: Option<f64> = None;
            let mut picks = vec![0; all.len()];
            loop {
                if fits(&picks) {
                    best = Some(best.map_or(price(&picks), |b| b.min(price(&picks))));
                }
                let Some(k) = (0..picks.len()).find(|k| picks[*k] + 1 < all[*k].len()) else { break };
                picks[k] += 1;
                picks[..k].fill(0);
            }
            let got = cheapest(&all, total, memory);
            assert_eq!(got.is_some(), best.is_some());
            if let (Some(got), Some(best)) = (got, best) {
                assert!(fits(&got) && (price(&got) - best).abs() < 1e-9, "{got:?}");
            }
        }
    }
}
