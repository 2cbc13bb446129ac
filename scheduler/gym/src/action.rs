//! What an agent may do: more or less of cores, ways and bandwidth for each LC service, or shares of the server.
//!
//! BE jobs together hold whatever no LC service holds, as under every policy of ours. Of their row bandwidth alone counts. What is given up
//! is given up first. Then, in steps, services of upper rows take before those of lower ones.

use surefoot_learn::dqn::REACH;
use surefoot_policy::books::{Amount, Books};
use surefoot_server::{Platform, ServiceId};

/// Numbers of an action for each row: cores, ways, bandwidth.
pub const PER_ROW: usize = 3;

/// How the numbers of an action are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Choices: cores and ways 0 to 6, of which 3 leaves as it is (Model-C's reach); bandwidth 0 to 2, of which 1 does.
    Steps,
    /// Shares of the server from 0 to 1: what fits nearest is held.
    Shares,
}

/// What became of a row of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Refused {
    /// Done as asked, or no LC service and no BE job is in the row.
    #[default]
    No = 0,
    /// NaN or infinite: the row holds what it held.
    NoNumber = 1,
    /// Outside of the space, or no whole number where choices are asked: the row holds what it held.
    OutOfRange = 2,
    /// Less than was asked for is free: the row got what was.
    NothingFree = 3,
    /// It asks for less than a service must hold: the row holds the least.
    BelowLeast = 4,
    /// The server refused the plan: all rows hold what they held.
    ByServer = 5,
    /// The action has not the shape of the space: all rows hold what they held.
    Malformed = 6,
}

impl Refused {
    pub const ALL: [Refused; 7] = [
        Refused::No,
        Refused::NoNumber,
        Refused::OutOfRange,
        Refused::NothingFree,
        Refused::BelowLeast,
        Refused::ByServer,
        Refused::Malformed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Refused::No => "no",
            Refused::NoNumber => "no-number",
            Refused::OutOfRange => "out-of-range",
            Refused::NothingFree => "nothing-free",
            Refused::BelowLeast => "below-least",
            Refused::ByServer => "by-server",
            Refused::Malformed => "malformed",
        }
    }
}

/// Choices of cores and of ways that leave them as they are, and of bandwidth.
const STAY: (f64, f64) = (REACH as f64, 1.0);

impl Action {
    /// Highest number of each of a row's entries: choices count from 0.
    pub fn highest(self) -> [f64; PER_ROW] {
        match self {
            Action::Steps => [2.0 * STAY.0, 2.0 * STAY.0, 2.0 * STAY.1],
            Action::Shares => [1.0; PER_ROW],
        }
    }

    fn row(self, row: &[f64]) -> Result<[f64; PER_ROW], Refused> {
        let mut asked = [0.0; PER_ROW];
        for ((x, highest), asked) in row.iter().zip(self.highest()).zip(&mut asked) {
            if !x.is_finite() {
                return Err(Refused::NoNumber);
            }
            if !(0.0..=highest).contains(x) || self == Action::Steps && x.fract() != 0.0 {
                return Err(Refused::OutOfRange);
            }
            *asked = *x;
        }
        Ok(asked)
    }

    /// Enter an action in the books; `rows`: the services and jobs that are there, by row, and whether each is an LC service.
    /// Says whether anything is to be changed.
    pub fn enter(self, books: &mut Books, rows: &[Option<(&ServiceId, bool)>], numbers: &[f64], refused: &mut [u8]) -> bool {
        let before = (books.slots().to_vec(), books.be_mba_pct);
        let mut wanted: Vec<(usize, &ServiceId, Amount)> = vec![];
        let mut be_asked = false;
        for (i, row) in rows.iter().enumerate() {
            let Some((id, is_lc)) = *row else { continue };
            let asked = match self.row(&numbers[i * PER_ROW..(i + 1) * PER_ROW]) {
                Ok(asked) => asked,
                Err(why) => {
                    refused[i] = why as u8;
                    continue;
                }
            };
            if !is_lc {
                // One holding, one bandwidth: the first row of a job says it.
                if !std::mem::replace(&mut be_asked, true) {
                    books.be_mba_pct = self.bandwidth(books, books.be_mba_pct, asked[2]);
                }
                continue;
            }
            let Some(slot) = books.slot(id).cloned() else { continue };
            let pct = self.bandwidth(books, slot.mba_pct, asked[2]);
            books.set_mba(id, pct);
            let (total, least) = (books.total(), books.least());
            let count = |asked: f64, held: u32, total: u32| match self {
                Action::Steps => i64::from(held) + asked as i64 - i64::from(REACH),
                Action::Shares => (asked * f64::from(total)).round() as i64,
            };
            let (cores, ways) = (count(asked[0], slot.own.cores, total.cores), count(asked[1], slot.own.ways, total.ways));
            // Nothing else stands for the least in shares.
            if self == Action::Steps && (cores < i64::from(least.cores) || ways < i64::from(least.ways)) {
                refused[i] = Refused::BelowLeast as u8;
            }
            wanted.push((i, id, Amount::new(cores.max(0) as u32, ways.max(0) as u32).at_least(least)));
        }
        if self == Action::Shares {
            fit(books, &mut wanted, refused);
        }
        for (_, id, own) in &wanted {
            if let Some(held) = books.slot(id).map(|s| s.own) {
                books.set(id, held.at_most(*own));
            }
        }
        for (i, id, own) in wanted {
            let Some(held) = books.slot(id).map(|s| s.own) else { continue };
            let more = own.minus(held).at_most(books.free());
            books.set(id, held.plus(more));
            if held.plus(more) != own {
                refused[i] = Refused::NothingFree as u8;
            }
        }
        before.0 != books.slots() || before.1 != books.be_mba_pct
    }

    fn bandwidth(self, books: &Books, now: u8, asked: f64) -> u8 {
        match self {
            Action::Steps if asked == STAY.1 => now,
            Action::Steps => books.mba_step(now, asked > STAY.1).unwrap_or(now),
            Action::Shares => nearest_pct(&books.platform, asked),
        }
    }
}

/// Shares that are more than the server together: the largest gives up one by one, whatever is held now.
fn fit(books: &Books, wanted: &mut [(usize, &ServiceId, Amount)], refused: &mut [u8]) {
    let held = wanted.iter().filter_map(|(_, id, _)| books.slot(id)).fold(Amount::default(), |sum, s| sum.plus(s.own));
    let most = books.free().plus(held);
    loop {
        let sum = wanted.iter().fold(Amount::default(), |sum, (_, _, own)| sum.plus(*own));
        let over = sum.minus(most);
        let by = if over.cores > 0 { Amount::new(1, 0) } else { Amount::new(0, u32::from(over.ways > 0)) };
        let size = |own: &Amount| if by.cores > 0 { own.cores } else { own.ways };
        // The lowest of equal rows gives.
        let Some((i, _, own)) = wanted.iter_mut().max_by_key(|(_, _, own)| size(own)).filter(|_| !by.is_zero()) else { return };
        *own = own.minus(by);
        refused[*i] = Refused::NothingFree as u8;
    }
}

/// The bandwidth that comes nearest to a share; 100 where a platform hands out none.
fn nearest_pct(p: &Platform, share: f64) -> u8 {
    let Some(m) = p.mba else { return 100 };
    let step = f64::from(m.step_pct.max(1));
    ((share * 100.0 / step).round() * step).clamp(f64::from(m.min_pct), 100.0) as u8
}

/// Cores and ways of a newcomer: an equal share of the server as far as it is free, else the least, which the largest holder gives.
pub fn admit(books: &mut Books, id: &str, holders: u32) {
    let (total, least) = (books.total(), books.least());
    while !least.fits_in(books.free()) {
        let lacks = least.minus(books.free());
        let by = if lacks.cores > 0 { Amount::new(1, 0) } else { Amount::new(0, 1) };
        let size = |own: Amount| if by.cores > 0 { own.cores } else { own.ways };
        let largest = books.slots().iter().filter(|s| least.plus(by).fits_in(s.own)).max_by_key(|s| size(s.own)).map(|s| s.id.clone());
        if !largest.is_some_and(|from| books.shrink(&from, by)) {
            books.crowd_in(id);
            return;
        }
    }
    let share = Amount::new(total.cores / holders.max(1), total.ways / holders.max(1));
    if !books.admit(id, share.at_most(books.free()).at_least(least)) {
        books.crowd_in(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two services of 5 cores and 5 ways on a server of 12 and 11: 2 cores and 1 way are free.
    fn books() -> Books {
        let mut b = Books::new(&Platform::regular("t", 12, 1, 11, 2.0));
        assert!(b.admit("a", Amount::new(5, 5)) && b.admit("b", Amount::new(5, 5)));
        b
    }

    fn act(action: Action, numbers: &[f64]) -> (Vec<(u32, u32, u8)>, Vec<u8>) {
        let mut b = books();
        let (one, two) = ("a".to_string(), "b".to_string());
        let mut refused = vec![0; 3];
        action.enter(&mut b, &[Some((&one, true)), Some((&two, true)), None], numbers, &mut refused);
        (b.slots().iter().map(|s| (s.own.cores, s.own.ways, s.mba_pct)).collect(), refused)
    }

    /// What one gives up another has in the same step; what is not free is not given, and said.
    #[test]
    fn steps_move_cores_and_ways() {
        let held = |x: [[f64; 3]; 3]| act(Action::Steps, &x.concat());
        assert_eq!(held([[3.0, 3.0, 1.0]; 3]), (vec![(5, 5, 100), (5, 5, 100)], vec![0, 0, 0]));
        // a takes 2 + 1 that b gives; b gives 1 core and 3 ways, and loses a step of bandwidth.
        assert_eq!(held([[6.0, 6.0, 1.0], [2.0, 0.0, 0.0], [9.0; 3]]), (vec![(8, 8, 100), (4, 2, 90)], vec![0, 0, 0]));
        assert_eq!(held([[6.0, 3.0, 2.0], [3.0, 3.0, 1.0], [0.0; 3]]), (vec![(7, 5, 100), (5, 5, 100)], vec![3, 0, 0]));
    }

    /// What is no number or outside of the space leaves its row alone, and only it.
    #[test]
    fn what_cannot_be_read_is_refused() {
        let (held, refused) = act(Action::Steps, &[f64::NAN, 3.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!((held[0], held[1], refused), ((5, 5, 100), (4, 5, 100), vec![1, 0, 0]));
        let (held, refused) = act(Action::Steps, &[7.0, 3.0, 1.0, 3.5, 3.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!((held, refused), (vec![(5, 5, 100); 2], vec![2, 2, 0]));
        let (held, refused) = act(Action::Shares, &[f64::INFINITY, 0.1, 1.0, 1.5, 0.1, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!((held, refused), (vec![(5, 5, 100); 2], vec![1, 2, 0]));
    }

    /// Shares are of the whole server; together more than it has is cut where most was asked.
    #[test]
    fn shares_are_of_the_server() {
        let (held, refused) = act(Action::Shares, &[0.5, 0.5, 0.52, 0.25, 0.2, 1.0, 0.0, 0.0, 0.0]);
        // 12 x 0.5, 11 x 0.5 = 5.5 -> 6; 12 x 0.25, 11 x 0.2 = 2.2 -> 2.
        assert_eq!((held, refused), (vec![(6, 6, 50), (3, 2, 100)], vec![0, 0, 0]));
        let (held, refused) = act(Action::Shares, &[1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!((held, refused), (vec![(6, 1, 100), (6, 1, 100)], vec![3, 3, 0]));
    }

    /// A newcomer has an equal share as far as it is free; where nothing is, the largest holder gives it the least.
    #[test]
    fn newcomers_are_let_in() {
        let mut b = books();
        admit(&mut b, "c", 3);
        assert_eq!(b.slot("c").map(|s| s.own), Some(Amount::new(2, 1)));
        admit(&mut b, "d", 4);
        assert_eq!(b.slot("d").map(|s| s.own), Some(Amount::new(1, 1)));
        assert_eq!(b.slots().iter().map(|s| s.own.cores).sum::<u32>(), 12);
    }
}
