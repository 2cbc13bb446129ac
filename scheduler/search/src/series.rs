//! Readings of one cell, until its verdict is decided.

/// What one case says of its cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// p99, and the standard error of its logarithm as far as the case itself shows it (0: nothing is known of any error).
    P99 { ms: f64, se_ln: f64 },
    /// The server could not carry the load: QoS is missed.
    Overloaded,
    /// The case cannot say: too few requests, or it failed.
    Nothing,
}

/// All readings of a cell. A cell is what most of its cases say; on a tie the worse.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Series {
    pub cases: u32,
    overloaded: u32,
    measured: u32,
    weight: f64,
    weighted_ln: f64,
    /// Readings that came with no error: they count as they are.
    plain: u32,
    plain_ln: f64,
}

impl Series {
    pub fn add(&mut self, r: Reading) {
        self.cases += 1;
        match r {
            Reading::Overloaded => self.overloaded += 1,
            Reading::P99 { ms, se_ln } if ms > 0.0 => {
                self.measured += 1;
                if se_ln > 0.0 {
                    let weight = 1.0 / (se_ln * se_ln);
                    self.weight += weight;
                    self.weighted_ln += weight * ms.ln();
                } else {
                    self.plain += 1;
                    self.plain_ln += ms.ln();
                }
            }
            Reading::P99 { .. } | Reading::Nothing => {}
        }
    }

    /// ln of the p99, and its standard error; None if most cases say otherwise.
    fn estimate(&self) -> Option<(f64, f64)> {
        if self.measured == 0 || self.measured <= self.overloaded {
            return None;
        }
        if self.plain > 0 {
            return Some((self.plain_ln / f64::from(self.plain), 0.0));
        }
        Some((self.weighted_ln / self.weight, (1.0 / self.weight).sqrt()))
    }

    /// p99 as far as is known: infinite if overloaded, NaN if nothing can be said.
    pub fn p99_ms(&self) -> f64 {
        match self.estimate() {
            Some((ln, _)) => ln.exp(),
            None if self.overloaded > 0 => f64::INFINITY,
            None => f64::NAN,
        }
    }

    /// How far the target is from the p99, in standard errors; 0 where the cases disagree. None if nothing can be said yet.
    pub fn distance(&self, target_ms: f64) -> Option<f64> {
        match self.estimate() {
            Some((ln, se)) => Some(if self.overloaded > 0 { 0.0 } else { (ln - target_ms.ln()).abs() / se }),
            None if self.overloaded > self.measured + 1 || (self.overloaded > 0 && self.measured == 0) => Some(f64::INFINITY),
            None if self.overloaded > 0 => Some(0.0),
            None => None,
        }
        .map(|d| if d.is_nan() { f64::INFINITY } else { d })
    }
}
