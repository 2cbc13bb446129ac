//! What measured cells say about the others: latency falls with cores and with ways, so a cell lies between what was measured with no
//! less and with no more of either.

use crate::Question;

/// Whether a cell meets QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Met,
    Missed,
    /// Could be either.
    Unknown,
}

/// Bounds of every cell's p99, row by row. Both are the measured value where there is one.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub low_ms: Vec<f64>,
    pub high_ms: Vec<f64>,
    pub state: Vec<State>,
    pub measured: Vec<bool>,
    /// Logarithms of both.
    pub(crate) low_ln: Vec<f64>,
    pub(crate) high_ln: Vec<f64>,
}

impl Bounds {
    /// `p99_ms`: row by row; NaN where a cell was not measured, infinite where the server was overloaded.
    pub fn of(q: &Question, p99_ms: &[f64]) -> Self {
        let n = q.cells();
        // At most: from cells with no more of either. At least: from cells with no less of either.
        let (mut high, mut low) = (vec![f64::INFINITY; n], vec![0.0f64; n]);
        for row in 0..q.rows {
            for column in 0..q.columns {
                let at = q.at((row, column));
                let mut least = if p99_ms[at].is_nan() { f64::INFINITY } else { p99_ms[at] };
                if row > 0 {
                    least = least.min(high[at - q.columns]);
                }
                if column > 0 {
                    least = least.min(high[at - 1]);
                }
                high[at] = least;
            }
        }
        for row in (0..q.rows).rev() {
            for column in (0..q.columns).rev() {
                let at = q.at((row, column));
                let mut most = if p99_ms[at].is_nan() { 0.0 } else { p99_ms[at] };
                if row + 1 < q.rows {
                    most = most.max(low[at + q.columns]);
                }
                if column + 1 < q.columns {
                    most = most.max(low[at + 1]);
                }
                low[at] = most;
            }
        }
        let mut state = vec![State::Unknown; n];
        for at in 0..n {
            if !p99_ms[at].is_nan() {
                (low[at], high[at]) = (p99_ms[at], p99_ms[at]);
            } else if low[at] > high[at] {
                // Measurements need not be monotone: between two that contradict each other nothing is certain.
                (low[at], high[at]) = (high[at], low[at]);
            }
            if high[at] <= q.target_ms {
                state[at] = State::Met;
            } else if low[at] > q.target_ms {
                state[at] = State::Missed;
            }
        }
        let measured = p99_ms.iter().map(|p| !p.is_nan()).collect();
        let (low_ln, high_ln) = (logarithms(&low), logarithms(&high));
        Bounds { low_ms: low, high_ms: high, state, measured, low_ln, high_ln }
    }
}

/// Neighbours mostly share a bound, and its logarithm.
fn logarithms(ms: &[f64]) -> Vec<f64> {
    let mut last = (f64::NAN, f64::NAN);
    let ln = ms.iter().map(|x| {
        if x.to_bits() != last.0.to_bits() {
            last = (*x, x.ln());
        }
        last.1
    });
    ln.collect()
}
