//! When a case on a real machine is measured again: where the client could not keep its schedule or something else disturbed the host,
//! unless that did not help so many times in a row. Then the machine is busy, and trying only takes time.

use surefoot_linux::BenchResult;
use surefoot_server::Verdict;

/// Most tries of one case, if nobody says otherwise.
pub const MOST_TRIES: u32 = 2;
/// Cases in a row that stayed spoilt.
const MOST_FRUITLESS: u32 = 3;

/// How far a case can be believed, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quality {
    Clean,
    /// It has its rows, and a mark.
    Disturbed,
    /// It has no place in a data set.
    ClientLimited,
}

impl Quality {
    pub fn of(r: &BenchResult) -> Self {
        match (r.verdict, &r.disturbed) {
            (Verdict::ClientLimited, _) => Quality::ClientLimited,
            (_, Some(_)) => Quality::Disturbed,
            (_, None) => Quality::Clean,
        }
    }
}

/// What the cases so far came to.
#[derive(Debug)]
pub struct Tries {
    most: u32,
    fruitless: u32,
    /// Of the case at hand.
    tries: u32,
}

impl Tries {
    /// At most so many a case.
    pub fn up_to(most: u32) -> Self {
        Tries { most, fruitless: 0, tries: 0 }
    }

    /// Whether to measure the case again after a try of this quality; None: it failed, which another try does not mend.
    pub fn again(&mut self, quality: Option<Quality>) -> bool {
        let spoilt = quality.is_some_and(|q| q > Quality::Clean);
        self.tries += 1;
        if spoilt && self.tries < self.most && self.fruitless < MOST_FRUITLESS {
            return true;
        }
        // One clean case says that the machine is quiet again.
        self.fruitless = if spoilt { self.fruitless.saturating_add(1) } else { 0 };
        self.tries = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measure cases whose tries have these qualities in turn; how many tries each took.
    fn tries(cases: &[&[Quality]]) -> Vec<usize> {
        tries_up_to(MOST_TRIES, cases)
    }

    fn tries_up_to(most: u32, cases: &[&[Quality]]) -> Vec<usize> {
        let mut t = Tries::up_to(most);
        cases.iter().map(|c| 1 + c.iter().take_while(|q| t.again(Some(**q))).count()).collect()
    }

    /// A clean case is measured once, a spoilt one twice, whatever spoilt it; a failed one is not tried again.
    #[test]
    fn a_spoilt_case_is_measured_again_once() {
        use Quality::{Clean, ClientLimited, Disturbed};
        assert_eq!(tries(&[&[Clean], &[Disturbed, Clean], &[ClientLimited, Clean], &[Disturbed, ClientLimited]]), [1, 2, 2, 2]);
        assert!(!Tries::up_to(MOST_TRIES).again(None));
        assert_eq!(tries_up_to(1, &[&[Clean], &[Disturbed, Clean]]), [1, 1]);
        assert_eq!(tries_up_to(3, &[&[Disturbed, ClientLimited, Clean]]), [3]);
        assert!(Clean < Disturbed && Disturbed < ClientLimited);
    }

    /// After three cases that a second try did not mend there are no second tries, until a case is clean by itself.
    #[test]
    fn a_busy_machine_is_not_asked_twice() {
        use Quality::{Clean, Disturbed};
        let bad: &[Quality] = &[Disturbed, Disturbed];
        assert_eq!(tries(&[bad, bad, bad, bad, bad, &[Clean], bad]), [2, 2, 2, 1, 1, 1, 2]);
    }
}
