//! A quantity that is drawn: its law, what it goes with, and where its range comes from.

use crate::math::{gauss, ident_hash, mix64};

/// What several quantities of one thing have in common: a standard normal number, which has no unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// Of a platform: newer ones have more cores, more L2, more bandwidth and fewer cycles per instruction.
    Era,
    /// Of a service: how much work a request is.
    Size,
    /// Of a service or job: how much memory its instructions touch.
    Memory,
}

impl Common {
    pub fn as_str(self) -> &'static str {
        match self {
            Common::Era => "era",
            Common::Size => "size",
            Common::Memory => "memory",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Law {
    /// All values between two are equally likely.
    Even(f64, f64),
    /// All ratios are equally likely.
    Log(f64, f64),
    /// Whole numbers, ends included.
    Whole(u32, u32),
    /// One of a list, in ascending order; a value that stands there twice is twice as likely.
    OneOf(&'static [f64]),
    /// 1 with this probability, else 0.
    Share(f64),
}

impl Law {
    /// The value at a quantile in (0, 1). It grows with the quantile.
    pub fn at(self, quantile: f64) -> f64 {
        match self {
            Law::Even(low, high) => low + quantile * (high - low),
            Law::Log(low, high) => low * (high / low).powf(quantile),
            Law::Whole(low, high) => f64::from(low) + (quantile * f64::from(high - low + 1)).floor().min(f64::from(high - low)),
            Law::OneOf(list) => list[((quantile * list.len() as f64) as usize).min(list.len() - 1)],
            Law::Share(share) => f64::from(u8::from(quantile >= 1.0 - share)),
        }
    }

    /// As docs/worlds.md has it.
    pub fn text(self) -> String {
        match self {
            Law::Even(low, high) => format!("{low} to {high}"),
            Law::Log(low, high) => format!("{low} to {high}, by ratio"),
            Law::Whole(low, high) => format!("{low} to {high}, whole"),
            Law::OneOf(list) => format!("one of {}", list.iter().map(f64::to_string).collect::<Vec<_>>().join(", ")),
            Law::Share(share) => format!("in {:.0} %", share * 100.0),
        }
    }
}

/// One row of the table in docs/worlds.md.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// The field of the profile, or what it becomes.
    pub name: &'static str,
    pub unit: &'static str,
    pub law: Law,
    /// Correlation with what its thing has in common, -1 to 1.
    pub with: &'static [(Common, f64)],
    /// Why this range, and from where.
    pub source: &'static str,
}

/// The draws of one thing: a platform, a service, a job or a workload.
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    /// `key` names the thing among all things of all worlds.
    pub fn new(key: &[u64]) -> Self {
        Stream(mix64(key))
    }

    /// A stream of its own for a part of the thing.
    pub fn part(self, name: &str, index: usize) -> Self {
        Stream::new(&[self.0, ident_hash(name), index as u64])
    }

    fn normal(self, name: &str) -> f64 {
        gauss(&[self.0, ident_hash(name)])
    }

    /// The value of a quantity, at four significant digits: profiles are read by people, too.
    pub fn draw(self, q: &Quantity) -> f64 {
        let (mut z, mut rest) = (0.0, 1.0);
        for (common, rho) in q.with {
            z += rho * self.normal(common.as_str());
            rest -= rho * rho;
        }
        z += rest.max(0.0).sqrt() * self.normal(q.name);
        digits(q.law.at(share_below(z)), 4)
    }

    pub fn is(self, q: &Quantity) -> bool {
        self.draw(q) > 0.5
    }

    pub fn count(self, q: &Quantity) -> u32 {
        self.draw(q) as u32
    }

    /// 0..n in an order of this stream's.
    pub fn order(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by_key(|i| mix64(&[self.0, ident_hash("order"), *i as u64]));
        order
    }

    /// 53 random bits: a number that every reader of JSON keeps whole.
    pub fn seed(self, name: &str) -> u64 {
        mix64(&[self.0, ident_hash(name)]) >> 11
    }
}

/// Share of a standard normal law below `z`, to 2e-4 (Page's logistic approximation, 1977): ranks need no more.
fn share_below(z: f64) -> f64 {
    (1.0 / (1.0 + (-1.5976 * z - 0.070565989 * z * z * z).exp())).clamp(1e-9, 1.0 - 1e-9)
}

/// The nearest number with so many significant digits.
pub fn digits(x: f64, n: usize) -> f64 {
    format!("{x:.*e}", n - 1).parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Quantity = Quantity { name: "x", unit: "", law: Law::Even(2.0, 4.0), with: &[], source: "" };
    const TIED: Quantity = Quantity { name: "y", with: &[(Common::Memory, -0.8)], ..PLAIN };
    const OTHER: Quantity = Quantity { name: "z", with: &[(Common::Memory, 0.8)], law: Law::Log(1.0, 100.0), ..PLAIN };

    /// A law keeps to its ends and is even between them; what goes with the same thing is correlated as it says.
    #[test]
    fn draws_have_their_law_and_their_correlation() {
        let n = 4000;
        let of = |q: &Quantity| (0..n).map(|i| Stream::new(&[7, i]).draw(q)).collect::<Vec<f64>>();
        let (plain, tied, other) = (of(&PLAIN), of(&TIED), of(&OTHER));
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        assert!(plain.iter().all(|x| (2.0..=4.0).contains(x)) && other.iter().all(|x| (1.0..=100.0).contains(x)));
        assert!((mean(&plain) - 3.0).abs() < 0.04, "{}", mean(&plain));
        let below_10 = other.iter().filter(|x| **x < 10.0).count() as f64 / n as f64;
        assert!((below_10 - 0.5).abs() < 0.04, "{below_10}");
        let logs: Vec<f64> = other.iter().map(|x| x.ln()).collect();
        let cov = |a: &[f64], b: &[f64]| mean(&a.iter().zip(b).map(|(x, y)| (x - mean(a)) * (y - mean(b))).collect::<Vec<_>>());
        let rho = cov(&tied, &logs) / (cov(&tied, &tied) * cov(&logs, &logs)).sqrt();
        // -0.8 x 0.8 of the normal numbers, a little less of ranks.
        assert!((rho + 0.62).abs() < 0.05, "{rho}");
        let none = cov(&plain, &logs) / (cov(&plain, &plain) * cov(&logs, &logs)).sqrt();
        assert!(none.abs() < 0.05, "{none}");
    }

    /// A share is as frequent as it says, a list's entries are equally likely, a whole number reaches both ends.
    #[test]
    fn shares_lists_and_whole_numbers() {
        let of = |law| (0..4000).map(move |i| Stream::new(&[9, i]).draw(&Quantity { law, ..PLAIN })).collect::<Vec<f64>>();
        let share = of(Law::Share(0.3)).iter().sum::<f64>() / 4000.0;
        assert!((share - 0.3).abs() < 0.03, "{share}");
        let ones = of(Law::OneOf(&[1.0, 2.0, 2.0, 3.0])).iter().filter(|x| **x == 2.0).count();
        assert!((1900..2100).contains(&ones), "{ones}");
        let whole = of(Law::Whole(2, 6));
        assert!([2.0, 3.0, 4.0, 5.0, 6.0].iter().all(|n| whole.iter().filter(|x| *x == n).count() > 600));
        assert_eq!((digits(0.123456, 4), digits(98765.0, 2)), (0.1235, 99_000.0));
    }
}
