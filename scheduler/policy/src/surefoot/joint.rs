//! One choice for every service at once: the cheapest cells that fit on the server together.

use crate::books::Amount;

/// A cell that a service could hold, and what that costs (any unit; lower is better).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub held: Amount,
    pub price: f64,
}

/// For each service the index of its choice, so that all fit in `total` and the sum of prices is least; None where nothing fits.
///
/// Dynamic programming over services: lowest price of those seen so far on at most so many core units and ways. The
/// first of equal choices wins, so that the answer depends on the order of choices alone.
pub fn cheapest(choices: &[Vec<Choice>], total: Amount) -> Option<Vec<usize>> {
    // Only sums in the inner loop, which so becomes one of vectors; what was chosen is found on the way back.
    // Rows are of cores, which are more than ways.
    let row = total.cores as usize + 1;
    let cells = row * (total.ways as usize + 1);
    let at = |a: Amount| a.ways as usize * row + a.cores as usize;
    // One table for each service, those before it included; the first is of no service.
    let mut least = vec![f64::INFINITY; (choices.len() + 1) * cells];
    least[..cells].fill(0.0);
    for (k, of_one) in choices.iter().enumerate() {
        // Of the last service only what all of it comes to is asked.
        let asked = if k + 1 == choices.len() { total } else { Amount::default() };
        let (before, after) = least[k * cells..(k + 2) * cells].split_at_mut(cells);
        for (i, choice) in of_one.iter().enumerate() {
            if !choice.held.fits_in(total) || is_beaten(of_one, i) {
                continue;
            }
            for ways in choice.held.ways.max(asked.ways)..=total.ways {
                let to = Amount::new(choice.held.cores.max(asked.cores), ways);
                let end = (ways as usize + 1) * row;
                for (after, before) in after[at(to)..end].iter_mut().zip(&before[at(to.minus(choice.held))..]) {
                    let price = before + choice.price;
                    *after = if price < *after { price } else { *after };
                }
            }
        }
    }
    let mut left = total;
    let mut out = vec![0; choices.len()];
    for (k, of_one) in choices.iter().enumerate().rev() {
        let (before, after) = least[k * cells..(k + 2) * cells].split_at(cells);
        let price = after[at(left)];
        let is_it =
            |(i, c): (usize, &Choice)| c.held.fits_in(left) && before[at(left.minus(c.held))] + c.price == price && !is_beaten(of_one, i);
        out[k] = of_one.iter().enumerate().position(is_it).filter(|_| price.is_finite())?;
        left = left.minus(of_one[out[k]].held);
    }
    Some(out)
}

/// Another choice needs no more and costs less (or as much, and comes first): this one is never taken.
fn is_beaten(of_one: &[Choice], i: usize) -> bool {
    let c = of_one[i];
    of_one.iter().enumerate().any(|(j, o)| j != i && o.held.fits_in(c.held) && (o.price < c.price || o.price == c.price && j < i))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(cores: u32, ways: u32, price: f64) -> Choice {
        Choice { held: Amount::new(cores, ways), price }
    }

    /// Cores for one and ways for the other, where both cannot have their first wish.
    #[test]
    fn wishes_are_traded() {
        let a = vec![choice(6, 2, 1.0), choice(3, 6, 1.2)];
        let b = vec![choice(6, 2, 1.0), choice(3, 6, 1.5)];
        assert_eq!(cheapest(&[a.clone(), b.clone()], Amount::new(12, 8)), Some(vec![0, 0]));
        assert_eq!(cheapest(&[a.clone(), b.clone()], Amount::new(9, 8)), Some(vec![1, 0]));
        assert_eq!(cheapest(&[a, b], Amount::new(5, 8)), None);
    }

    /// The answer is as good as trying everything (seeded, 300 random cases).
    #[test]
    fn it_agrees_with_trying_everything() {
        let mut x = 5u64;
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for _ in 0..300 {
            let total = Amount::new(next(8) as u32 + 1, next(5) as u32);
            let all: Vec<Vec<Choice>> = (0..next(4) + 1)
                .map(|_| (0..next(4) + 1).map(|_| choice(next(5) as u32, next(3) as u32, next(50) as f64)).collect())
                .collect();
            let price = |picks: &[usize]| picks.iter().zip(&all).map(|(i, c)| c[*i].price).sum::<f64>();
            let fits = |picks: &[usize]| picks.iter().zip(&all).fold(Amount::default(), |sum, (i, c)| sum.plus(c[*i].held)).fits_in(total);
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
            let got = cheapest(&all, total);
            assert_eq!(got.is_some(), best.is_some());
            if let (Some(got), Some(best)) = (got, best) {
                assert!(fits(&got) && (price(&got) - best).abs() < 1e-9, "{got:?}");
            }
        }
    }
}
