//! Algorithm 3 of the OSML+ paper: who gives up what, so that somebody else gets M core units and N ways.
//!
//! BE jobs give first (the books count what they can give as free). What is still lacking, `<M', N'>`, comes from LC services:
//! each neighbour has a table of what it would be like with `m` units and `n` ways less (Model-B); the best fit takes exactly
//! `<M', N'>` from at most three neighbours, all of which keep an allowable QoS, with the least slowdown in sum.

use crate::books::Amount;
use surefoot_server::ServiceId;

/// At most so many LC services give (OSML+ paper, Algorithm 3, line 10).
pub const MAX_DONORS: usize = 3;

/// One way to take from one neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    pub amount: Amount,
    /// Predicted QoS afterwards.
    pub qos: f64,
    /// Share of its QoS that the neighbour loses, 0..1.
    pub slowdown: f64,
}

/// A neighbour and all that it can be deprived of with an allowable QoS.
#[derive(Clone, Debug)]
pub struct Donor {
    pub id: ServiceId,
    pub offers: Vec<Offer>,
}

/// Besides the slowdown, disturbing one more service has a price: with equal slowdowns the fewer services the better.
const PRICE_OF_A_DONOR: f64 = 0.01;

/// The best fit: who gives what, together exactly `need`; None if no three neighbours can.
///
/// Dynamic programming over neighbours: `best[k][m][n]` = least price to gather `m` units and `n` ways from `k` of those seen.
pub fn best_fit(donors: &[Donor], need: Amount) -> Option<Vec<(ServiceId, Offer)>> {
    if need.is_zero() {
        return Some(vec![]);
    }
    let (rows, columns) = (need.cores as usize + 1, need.ways as usize + 1);
    let cells = rows * columns;
    let at = |k: usize, a: Amount| k * cells + a.cores as usize * columns + a.ways as usize;
    // Price, and the last offer taken (donor, offer).
    let mut best: Vec<Option<(f64, usize, usize)>> = vec![None; (MAX_DONORS + 1) * cells];
    let mut trail: Vec<Vec<Option<(f64, usize, usize)>>> = vec![];
    best[at(0, Amount::default())] = Some((0.0, usize::MAX, usize::MAX));
    for (d, donor) in donors.iter().enumerate() {
        trail.push(best.clone());
        let before = &trail[d];
        for (o, offer) in donor.offers.iter().enumerate() {
            if offer.amount.is_zero() || !offer.amount.fits_in(need) {
                continue;
            }
            let reach = need.minus(offer.amount);
            for k in 0..MAX_DONORS {
                for cores in 0..=reach.cores {
                    for ways in 0..=reach.ways {
                        let from = Amount::new(cores, ways);
                        let Some((price, ..)) = before[at(k, from)] else { continue };
                        let price = price + offer.slowdown.max(0.0) + PRICE_OF_A_DONOR;
                        let to = &mut best[at(k + 1, from.plus(offer.amount))];
                        if to.is_none_or(|(p, ..)| price < p) {
                            *to = Some((price, d, o));
                        }
                    }
                }
            }
        }
    }
    let price = |k: usize| best[at(k, need)].map(|b| b.0);
    let mut k = (1..=MAX_DONORS).filter(|k| price(*k).is_some()).min_by(|a, b| price(*a).partial_cmp(&price(*b)).expect("finite"))?;
    // Walk back: a cell's last offer was taken on top of the state before its donor.
    let mut left = need;
    let mut table = &best;
    let mut out = vec![];
    while k > 0 {
        let (_, d, o) = table[at(k, left)]?;
        let offer = donors[d].offers[o];
        out.push((donors[d].id.clone(), offer));
        left = left.minus(offer.amount);
        k -= 1;
        table = &trail[d];
    }
    out.reverse();
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn donor(id: &str, offers: &[(u32, u32, f64)]) -> Donor {
        let offers = offers.iter().map(|(c, w, s)| Offer { amount: Amount::new(*c, *w), qos: 1.2, slowdown: *s }).collect();
        Donor { id: id.into(), offers }
    }

    /// The least total slowdown wins; one donor is better than two of the same price.
    #[test]
    fn the_least_slowdown_wins() {
        let a = donor("a", &[(1, 0, 0.05), (2, 0, 0.30)]);
        let b = donor("b", &[(1, 0, 0.10), (2, 0, 0.14)]);
        // Two units: a + b cost 0.15 + 2 x 0.01, b alone 0.14 + 0.01.
        let got = best_fit(&[a, b], Amount::new(2, 0)).unwrap();
        assert_eq!(got.iter().map(|(id, o)| (id.as_str(), o.amount.cores)).collect::<Vec<_>>(), [("b", 2)]);
    }

    /// Cores may come from one service and ways from another; together they are exactly what is needed.
    #[test]
    fn cores_and_ways_may_come_from_different_services() {
        let a = donor("a", &[(1, 0, 0.0), (2, 0, 0.0)]);
        let b = donor("b", &[(0, 1, 0.0)]);
        let got = best_fit(&[a, b], Amount::new(2, 1)).unwrap();
        assert_eq!(got.iter().fold(Amount::default(), |s, (_, o)| s.plus(o.amount)), Amount::new(2, 1));
        assert_eq!(got.len(), 2);
    }

    /// At most three LC services are deprived: four that give one unit each are no solution for four units.
    #[test]
    fn never_more_than_three_donors() {
        let donors: Vec<Donor> = ["a", "b", "c", "d"].iter().map(|id| donor(id, &[(1, 0, 0.0)])).collect();
        assert_eq!(best_fit(&donors, Amount::new(3, 0)).unwrap().len(), 3);
        assert!(best_fit(&donors, Amount::new(4, 0)).is_none());
    }

    /// No donor gives twice, and the answer agrees with trying everything (seeded, 300 random cases).
    #[test]
    fn it_agrees_with_trying_everything() {
        let mut x = 11u64;
        let mut next = move |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for _ in 0..300 {
            let donors: Vec<Donor> = (0..4)
                .map(|d| {
                    let offers: Vec<(u32, u32, f64)> =
                        (0..next(5)).map(|_| (next(3) as u32, next(3) as u32, next(100) as f64 / 100.0)).collect();
                    donor(&format!("s{d}"), &offers)
                })
                .collect();
            let need = Amount::new(next(4) as u32, next(3) as u32);
            let got = best_fit(&donors, need);
            let price = |v: &[(ServiceId, Offer)]| v.iter().map(|(_, o)| o.slowdown + PRICE_OF_A_DONOR).sum::<f64>();
            let brute = everything(&donors, need, MAX_DONORS);
            match (&got, brute) {
                (Some(g), Some(b)) => {
                    assert!((price(g) - b).abs() < 1e-9);
                    assert_eq!(g.iter().fold(Amount::default(), |s, (_, o)| s.plus(o.amount)), need);
                    let mut ids: Vec<_> = g.iter().map(|x| &x.0).collect();
                    ids.dedup();
                    assert_eq!(ids.len(), g.len());
                }
                (None, None) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn everything(donors: &[Donor], need: Amount, k: usize) -> Option<f64> {
        if need.is_zero() {
            return Some(0.0);
        }
        let (first, rest) = donors.split_first()?;
        let mut best = everything(rest, need, k);
        for o in first.offers.iter().filter(|o| k > 0 && !o.amount.is_zero() && o.amount.fits_in(need)) {
            if let Some(p) = everything(rest, need.minus(o.amount), k - 1) {
                let p = p + o.slowdown + PRICE_OF_A_DONOR;
                best = Some(best.map_or(p, |b| b.min(p)));
            }
        }
        best
    }
}
