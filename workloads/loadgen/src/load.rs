//! How the wanted rate changes with time: steps, straight lines between points (a recorded day), or a sine around a mean.
//!
//! Every profile is a row of straight pieces, so that the schedule's time rescaling has a closed form in each. A sine becomes
//! [`WAVE_PIECES`] pieces a period: their mean over a period is exactly the given one, and no rate is off by more than 8e-5 of it.

use crate::error::{bad, LoadgenError};
use std::path::Path;
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_io::shown;

/// Straight pieces of one period of a sine.
pub const WAVE_PIECES: u64 = 256;
/// Most points of a load file.
const MAX_POINTS: usize = 1_000_000;
const MAX_RPS: f64 = 5e6;

/// From `at_ns` on (or, between points, at `at_ns`) `rps` requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub at_ns: u64,
    pub rps: f64,
}

/// A day: rate = mean (1 + amplitude sin(2 pi (t / period + phase))).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wave {
    /// Share of the mean, above 0 and at most 1.
    pub amplitude: f64,
    pub period_ns: u64,
    /// Where in the period time 0 lies, 0 to 1.
    pub phase: f64,
}

impl Wave {
    /// # Errors
    /// `BadInput` naming the part that makes no sense.
    pub fn new(amplitude: f64, period_ns: u64, phase: f64) -> Result<Self, LoadgenError> {
        if !(amplitude > 0.0 && amplitude <= 1.0) {
            return Err(bad(format!("--diurnal amplitude {amplitude} is not a share of the mean: give above 0 to 1, e.g. 0.5:10min")));
        }
        if period_ns < 1_000_000_000 {
            return Err(bad("--diurnal period must be at least 1s, e.g. 0.5:10min"));
        }
        if !(0.0..=1.0).contains(&phase) {
            return Err(bad(format!("--diurnal phase {phase} is not between 0 and 1 (0.25 starts at the peak)")));
        }
        Ok(Wave { amplitude, period_ns, phase })
    }

    fn boundary_ns(&self, piece: u64) -> u64 {
        (u128::from(piece) * u128::from(self.period_ns) / u128::from(WAVE_PIECES)) as u64
    }

    fn factor(&self, piece: u64) -> f64 {
        let turn = (piece % WAVE_PIECES) as f64 / WAVE_PIECES as f64 + self.phase;
        (1.0 + self.amplitude * (std::f64::consts::TAU * turn).sin()).max(0.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    Steps,
    Lines,
    Wave(Wave),
}

/// A time in which the rate is a straight line. Ends before `end_ns`; `u64::MAX` is never.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    pub begin_ns: u64,
    pub end_ns: u64,
    pub begin_rps: f64,
    pub end_rps: f64,
}

impl Piece {
    pub fn is_flat(&self) -> bool {
        self.begin_rps == self.end_rps
    }

    /// Rate at a time in the piece.
    pub fn rps_at(&self, t_ns: f64) -> f64 {
        if self.is_flat() {
            return self.begin_rps;
        }
        let share = (t_ns - self.begin_ns as f64) / (self.end_ns - self.begin_ns) as f64;
        (self.begin_rps + (self.end_rps - self.begin_rps) * share).max(0.0)
    }
}

/// The wanted rate. Times count from the end of the warm-up; the warm-up runs at the rate of time 0.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadProfile {
    steps: Vec<Step>,
    shape: Shape,
}

impl LoadProfile {
    /// # Errors
    /// `BadInput` if a rate is not finite and positive.
    pub fn constant(rps: f64) -> Result<Self, LoadgenError> {
        Self::new(vec![Step { at_ns: 0, rps }])
    }

    /// Steps.
    ///
    /// # Errors
    /// `BadInput` if empty, not starting at 0, not rising in time, or with a rate that is not finite and positive.
    pub fn new(steps: Vec<Step>) -> Result<Self, LoadgenError> {
        match steps.first() {
            None => return Err(bad("--load: no steps; give for example 0s:2000,10s:6000")),
            Some(s) if s.at_ns != 0 => return Err(bad("--load: the first step must start at 0s, e.g. 0s:2000,10s:6000")),
            _ => {}
        }
        for s in &steps {
            check_rps(s.rps)?;
        }
        if steps.windows(2).any(|w| w[1].at_ns <= w[0].at_ns) {
            return Err(bad("--load: step times must rise, e.g. 0s:2000,10s:6000"));
        }
        Ok(LoadProfile { steps, shape: Shape::Steps })
    }

    /// Straight lines between points; the last rate stays. A rate may be 0, not all of them.
    ///
    /// # Errors
    /// `BadInput` naming what is wrong with the points.
    pub fn lines(points: Vec<Step>) -> Result<Self, LoadgenError> {
        let wrong = |what: String| Err(bad(format!("--load-file: {what}")));
        if points.first().is_none_or(|p| p.at_ns != 0) {
            return wrong("the first line must be for time 0, e.g. 0,2000".into());
        }
        if points.windows(2).any(|w| w[1].at_ns <= w[0].at_ns) {
            return wrong("times must rise from line to line".into());
        }
        if let Some(p) = points.iter().find(|p| !(0.0..=MAX_RPS).contains(&p.rps)) {
            return wrong(format!("{} requests per second: give 0 to {MAX_RPS}", p.rps));
        }
        if points.iter().all(|p| p.rps == 0.0) {
            return wrong("every rate is 0: give at least one above 0".into());
        }
        Ok(LoadProfile { steps: points, shape: Shape::Lines })
    }

    /// A load file: `seconds,requests per second` on each line; empty lines, lines that begin with `#` and a header in words are skipped.
    ///
    /// # Errors
    /// `BadInput` naming the file and the line.
    pub fn read(path: &Path) -> Result<Self, LoadgenError> {
        let text = input::text(path, WRITTEN_BYTES)
            .map_err(|e| bad(format!("--load-file {}: {e}; give a file of lines SECONDS,RPS", path.display())))?;
        let mut points = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || (points.is_empty() && line.starts_with(|c: char| c.is_ascii_alphabetic())) {
                continue;
            }
            let parsed = line.split_once(',').and_then(|(t, r)| Some((t.trim().parse::<f64>().ok()?, r.trim().parse::<f64>().ok()?)));
            let Some((seconds, rps)) = parsed.filter(|(s, _)| (0.0..=7.0 * 86_400.0).contains(s)) else {
                return Err(bad(format!(
                    "--load-file {} line {}: `{}` is not SECONDS,RPS, e.g. 60,2000",
                    path.display(),
                    i + 1,
                    shown::message(line)
                )));
            };
            points.push(Step { at_ns: (seconds * 1e9).round() as u64, rps });
            if points.len() > MAX_POINTS {
                return Err(bad(format!("--load-file {}: more than {MAX_POINTS} lines; thin it out", path.display())));
            }
        }
        Self::lines(points).map_err(|e| bad(format!("{e} ({})", path.display())))
    }

    /// The same steps, each swinging around its rate.
    ///
    /// # Errors
    /// `BadInput` if this is not made of steps, or a peak is beyond one client.
    pub fn with_wave(mut self, wave: Wave) -> Result<Self, LoadgenError> {
        if self.shape != Shape::Steps {
            return Err(bad("--diurnal needs --rps or --load; a --load-file has its own shape"));
        }
        for s in &self.steps {
            check_rps(s.rps * (1.0 + wave.amplitude))?;
        }
        self.shape = Shape::Wave(wave);
        Ok(self)
    }

    /// The steps, points, or means that this was made of.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn wave(&self) -> Option<Wave> {
        match self.shape {
            Shape::Wave(w) => Some(w),
            _ => None,
        }
    }

    /// "steps", "lines" or "wave".
    pub fn shape(&self) -> &'static str {
        match self.shape {
            Shape::Steps => "steps",
            Shape::Lines => "lines",
            Shape::Wave(_) => "wave",
        }
    }

    /// The straight piece that `t_ns` lies in.
    pub fn piece(&self, t_ns: u64) -> Piece {
        let i = self.steps.partition_point(|s| s.at_ns <= t_ns).saturating_sub(1);
        let step = self.steps[i];
        let next = self.steps.get(i + 1);
        let end_ns = next.map_or(u64::MAX, |n| n.at_ns);
        match self.shape {
            Shape::Steps => Piece { begin_ns: step.at_ns, end_ns, begin_rps: step.rps, end_rps: step.rps },
            Shape::Lines => {
                let end_rps = next.map_or(step.rps, |n| n.rps);
                Piece { begin_ns: step.at_ns, end_ns, begin_rps: step.rps, end_rps }
            }
            Shape::Wave(w) => {
                let mut k = (u128::from(t_ns) * u128::from(WAVE_PIECES) / u128::from(w.period_ns)) as u64;
                // Boundaries are rounded down, so the quotient may be one too small.
                if w.boundary_ns(k + 1) <= t_ns {
                    k += 1;
                }
                let whole =
                    Piece { begin_ns: w.boundary_ns(k), end_ns: w.boundary_ns(k + 1), begin_rps: w.factor(k), end_rps: w.factor(k + 1) };
                let begin_ns = whole.begin_ns.max(step.at_ns);
                let end_ns = whole.end_ns.min(end_ns);
                let at = |t_ns: u64| step.rps * whole.rps_at(t_ns as f64);
                Piece { begin_ns, end_ns, begin_rps: at(begin_ns), end_rps: at(end_ns) }
            }
        }
    }
}

/// # Errors
/// `BadInput` if `rps` is not a rate that one client could send.
pub fn check_rps(rps: f64) -> Result<(), LoadgenError> {
    if !(rps.is_finite() && rps > 0.0) {
        return Err(bad(format!("load {rps} requests per second is not positive: give --rps or --load a rate above 0")));
    }
    if rps > MAX_RPS {
        return Err(bad(format!("load {rps} requests per second is beyond one client (limit {MAX_RPS}): lower --rps or --load")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEC: u64 = 1_000_000_000;

    /// Requests that the pieces hold from 0 to `end_ns`, and whether they follow one another without a gap.
    fn area(load: &LoadProfile, end_ns: u64) -> f64 {
        let (mut t, mut sum) = (0, 0.0);
        while t < end_ns {
            let p = load.piece(t);
            assert!(p.begin_ns <= t && t < p.end_ns, "{t} {p:?}");
            let end = p.end_ns.min(end_ns);
            sum += 0.5 * (p.rps_at(t as f64) + p.rps_at(end as f64)) * (end - t) as f64 * 1e-9;
            t = end;
        }
        sum
    }

    /// Rates that mean nothing are refused.
    #[test]
    fn a_rate_must_be_positive() {
        for rps in [0.0, -5.0, f64::NAN, f64::INFINITY, 6e6] {
            assert!(LoadProfile::constant(rps).is_err(), "{rps}");
        }
        assert!(LoadProfile::new(vec![]).is_err());
        assert!(LoadProfile::new(vec![Step { at_ns: 5, rps: 1.0 }]).is_err());
    }

    /// A sine's mean over whole periods is the given mean, also with a period that its pieces do not divide; its peak is where it should be.
    #[test]
    fn a_wave_keeps_its_mean() {
        for period_ns in [SEC, 7 * SEC + 13, 86_400 * SEC] {
            let load = LoadProfile::constant(1000.0).unwrap().with_wave(Wave::new(0.8, period_ns, 0.0).unwrap()).unwrap();
            let mean = area(&load, 3 * period_ns) / (3.0 * period_ns as f64 * 1e-9);
            assert!((mean / 1000.0 - 1.0).abs() < 1e-7, "{period_ns}: {mean}");
            let peak = load.piece(period_ns / 4).rps_at((period_ns / 4) as f64);
            assert!((peak - 1800.0).abs() < 0.2, "{peak}");
        }
        // Quarter of a period of 1 + sin: 1/4 + 1/(2 pi) of a period.
        let load = LoadProfile::constant(100.0).unwrap().with_wave(Wave::new(1.0, 8 * SEC, 0.0).unwrap()).unwrap();
        let exact = 800.0 * (0.25 + 1.0 / std::f64::consts::TAU);
        assert!((area(&load, 2 * SEC) / exact - 1.0).abs() < 1e-4);
    }

    /// Steps under a wave change at their own time.
    #[test]
    fn a_wave_over_steps() {
        let steps = vec![Step { at_ns: 0, rps: 100.0 }, Step { at_ns: 3 * SEC + 1, rps: 1000.0 }];
        let load = LoadProfile::new(steps).unwrap().with_wave(Wave::new(0.5, 2 * SEC, 0.0).unwrap()).unwrap();
        // 3 s are one and a half periods: 300 + 100 * 0.5 * 2 / (2 pi) * 2 s; then one whole period at 1000.
        let exact = 300.0 + 100.0 / std::f64::consts::PI + 2000.0;
        // The second step begins in the sine's lower half, and a whole period later the sum is the same.
        assert!((area(&load, 5 * SEC + 1) / exact - 1.0).abs() < 1e-3, "{}", area(&load, 5 * SEC + 1));
    }

    /// A file's lines are joined by straight lines; what is wrong is named with its line.
    #[test]
    fn load_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("day.csv");
        std::fs::write(&file, "time_s,rps\n# a day\n0,0\n10, 100\n\n20,50\n").unwrap();
        let load = LoadProfile::read(&file).unwrap();
        // Triangle 500, trapezoid 750, then 50 a second.
        assert!((area(&load, 30 * SEC) - 1750.0).abs() < 1e-6);
        for (text, says) in [
            ("1,5\n", "time 0"),
            ("0,5\n0,6\n", "rise"),
            ("0,5\n1,x\n", "line 2"),
            ("0,5\n1\n", "line 2"),
            ("0,-5\n", "-5"),
            ("0,0\n", "above 0"),
            ("0,nan\n", "NaN"),
            ("", "time 0"),
        ] {
            std::fs::write(&file, text).unwrap();
            let e = LoadProfile::read(&file).unwrap_err();
            assert!(e.exit_code() == 2 && e.to_string().contains(says) && e.to_string().contains("day.csv"), "{text:?}: {e}");
        }
        assert!(LoadProfile::read(&dir.path().join("none")).unwrap_err().to_string().contains("SECONDS,RPS"));
    }

    #[test]
    fn waves_that_make_no_sense() {
        assert!(Wave::new(1.1, SEC, 0.0).is_err() && Wave::new(0.0, SEC, 0.0).is_err() && Wave::new(f64::NAN, SEC, 0.0).is_err());
        assert!(Wave::new(0.5, SEC - 1, 0.0).is_err() && Wave::new(0.5, SEC, 2.0).is_err());
        let w = Wave::new(0.5, SEC, 0.0).unwrap();
        assert!(LoadProfile::constant(4e6).unwrap().with_wave(w).is_err());
        let lines = LoadProfile::lines(vec![Step { at_ns: 0, rps: 1.0 }]).unwrap();
        assert!(lines.with_wave(w).is_err());
    }
}
