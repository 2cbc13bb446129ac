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

/// All readings of a cell. A cell is what most of its cases say; on a tie the worse. Its p99 is the geometric mean of theirs, each with the
/// same weight, as the label stage has it (`pipelines/samples.py`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Series {
    pub cases: u32,
    overloaded: u32,
    measured: u32,
    sum_ln: f64,
    /// Sum of the squared standard errors.
    sum_variance: f64,
}

impl Series {
    pub fn add(&mut self, r: Reading) {
        self.cases += 1;
        match r {
            Reading::Overloaded => self.overloaded += 1,
            Reading::P99 { ms, se_ln } if ms > 0.0 => {
                self.measured += 1;
                self.sum_ln += ms.ln();
                self.sum_variance += se_ln * se_ln;
            }
            Reading::P99 { .. } | Reading::Nothing => {}
        }
    }

    /// ln of the p99, and its standard error; None if most cases say otherwise.
    fn estimate(&self) -> Option<(f64, f64)> {
        let n = f64::from(self.measured);
        (self.measured > self.overloaded).then(|| (self.sum_ln / n, self.sum_variance.sqrt() / n))
    }

    /// Standard error of ln p99; 0 where nothing is known of any, or there is no p99.
    pub fn se_ln(&self) -> f64 {
        self.estimate().map_or(0.0, |(_, se)| se)
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
