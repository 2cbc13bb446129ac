//! What one window says of the cores that were busy in it: five numbers (SmartHarvest, section 3.3); and when it is over.

use crate::settings;

/// Numbers that a window is known by: least, most, mean, standard deviation, median; and a constant 1.
pub const INPUTS: usize = 6;

/// Features of a window as shares of all cores, and the constant 1 at the end.
pub type Features = [f32; INPUTS];

/// How often each number of busy cores was read. Memory is that of the number of cores, whatever the number of readings.
#[derive(Clone, Debug)]
pub struct Readings {
    count: Vec<u32>,
    all: u32,
}

impl Readings {
    /// Of a group of `cores` cores, at least 1.
    pub fn new(cores: u32) -> Self {
        Readings { count: vec![0; cores.max(1) as usize + 1], all: 0 }
    }

    pub fn add(&mut self, busy: u32) {
        let most = self.count.len() - 1;
        self.count[(busy as usize).min(most)] += 1;
        self.all += 1;
    }

    pub fn clear(&mut self) {
        self.count.fill(0);
        self.all = 0;
    }

    pub fn is_empty(&self) -> bool {
        self.all == 0
    }

    /// Most busy cores; 0 without readings.
    pub fn peak(&self) -> u32 {
        self.count.iter().rposition(|n| *n > 0).unwrap_or(0) as u32
    }

    /// Mean busy cores; 0 without readings.
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.count.iter().enumerate().map(|(busy, n)| busy as u64 * u64::from(*n)).sum();
        sum as f64 / f64::from(self.all.max(1))
    }

    /// None without readings. The median of an even number is the mean of the two in the middle.
    pub fn features(&self) -> Option<Features> {
        if self.all == 0 {
            return None;
        }
        let (mut sum, mut squares) = (0u64, 0u64);
        for (busy, n) in self.count.iter().enumerate() {
            sum += busy as u64 * u64::from(*n);
            squares += (busy * busy) as u64 * u64::from(*n);
        }
        let all = f64::from(self.all);
        let mean = sum as f64 / all;
        let deviation = (squares as f64 / all - mean * mean).max(0.0).sqrt();
        let least = self.count.iter().position(|n| *n > 0).unwrap_or(0);
        let median = f64::from(self.at(u64::from(self.all - 1) / 2) + self.at(u64::from(self.all) / 2)) / 2.0;
        let cores = (self.count.len() - 1) as f64;
        let share = |x: f64| (x / cores) as f32;
        Some([share(least as f64), share(f64::from(self.peak())), share(mean), share(deviation), share(median), 1.0])
    }

    /// The reading at a place of all of them in order.
    fn at(&self, place: u64) -> u32 {
        let mut seen = 0;
        for (busy, n) in self.count.iter().enumerate() {
            seen += u64::from(*n);
            if seen > place {
                return busy as u32;
            }
        }
        0
    }
}

/// The window that goes on.
#[derive(Clone, Debug)]
pub struct Running {
    pub readings: Readings,
    length_us: u64,
    /// Its first reading that was not in the time after a move.
    from_us: Option<u64>,
}

impl Running {
    pub fn new(cores: u32, s: &settings::Window) -> Self {
        Running { readings: Readings::new(cores), length_us: (s.length_ms * 1e3) as u64, from_us: None }
    }

    /// One reading; true: the window is over.
    pub fn poll(&mut self, now_us: u64, busy: u32) -> bool {
        self.readings.add(busy);
        now_us >= *self.from_us.get_or_insert(now_us) + self.length_us
    }

    /// The next window begins with the next reading.
    pub fn end(&mut self) {
        self.readings.clear();
        self.from_us = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_read_says_nothing() {
        let mut r = Readings::new(10);
        assert!(r.is_empty() && r.features().is_none() && r.peak() == 0 && r.mean() == 0.0);
        r.add(3);
        r.clear();
        assert!(r.is_empty() && r.features().is_none());
    }

    proptest! {
        /// The same as from the list of readings, for any list.
        #[test]
        fn features_are_those_of_the_list(mut list in prop::collection::vec(0u32..=10, 1..600)) {
            let mut r = Readings::new(10);
            list.iter().for_each(|b| r.add(*b));
            list.sort_unstable();
            let n = list.len();
            let mean = list.iter().sum::<u32>() as f64 / n as f64;
            let deviation = (list.iter().map(|b| (f64::from(*b) - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
            let median = f64::from(list[(n - 1) / 2] + list[n / 2]) / 2.0;
            let want = [f64::from(list[0]), f64::from(list[n - 1]), mean, deviation, median].map(|x| x / 10.0);
            let got = r.features().unwrap();
            for (g, w) in got.iter().zip(want) {
                prop_assert!((f64::from(*g) - w).abs() < 1e-5, "{got:?} {want:?}");
            }
            prop_assert_eq!(got[INPUTS - 1], 1.0);
            prop_assert_eq!(r.peak(), list[n - 1]);
            prop_assert!((r.mean() - mean).abs() < 1e-9);
        }
    }
}
