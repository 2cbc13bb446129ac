//! When each request is due: an absolute-time schedule, a pure function of seed, load profile and load changes.
//!
//! Request `i` draws everything it needs (gap, key, operation, thread) from a counter-based generator (SplitMix64's finaliser over
//! seed, stream and `i`), so the schedule does not depend on the number of threads, on timing, or on a library's version.
//! Changing rates use time rescaling: unit-rate gaps are stretched by the rate in force, which is exact for Poisson arrivals, bursty
//! ones included.

use crate::load::{LoadProfile, Piece};
use crate::mmpp::{Mmpp, Position};
use crate::random::{draw, unit};
use serde::{Deserialize, Serialize};

/// The law of the gaps between requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Exponential gaps: what many independent users look like.
    Poisson,
    /// Equal gaps.
    Constant,
    /// Poisson at a rate that jumps: bursts and lulls around the wanted rate.
    Mmpp(Mmpp),
}

/// One request's place in the schedule. Times are ns from the start of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub index: u64,
    pub intended_ns: u64,
}

const STREAM_GAP: u64 = 1;
const STREAM_THREAD: u64 = 2;
const STREAM_OP: u64 = 3;
const STREAM_KEY: u64 = 4;

/// Which of `threads` sends request `index`. A random split of Poisson arrivals is Poisson again.
pub fn owner(seed: u64, index: u64, threads: usize) -> usize {
    if threads == 1 {
        0
    } else {
        (draw(seed, STREAM_THREAD, index) % threads as u64) as usize
    }
}

/// Is request `index` a SET?
pub fn is_set(seed: u64, index: u64, set_ratio: f64) -> bool {
    set_ratio > 0.0 && unit(draw(seed, STREAM_OP, index)) <= set_ratio
}

/// The key that request `index` asks for, uniform over the key space.
pub fn key_of(seed: u64, index: u64, key_space: u64) -> u64 {
    draw(seed, STREAM_KEY, index) % key_space.max(1)
}

/// What fixes a stream. Times are ns from its start.
#[derive(Debug, Clone)]
pub struct Plan {
    pub arrivals: Arrivals,
    pub load: LoadProfile,
    pub seed: u64,
    pub warmup_ns: u64,
    pub end_ns: u64,
    /// Rates set while running, rising in time: (from when on, requests per second). They replace the load profile.
    pub changes: Vec<(u64, f64)>,
}

impl Plan {
    /// The wanted rate around `at_ns`, bursts aside, and until when this holds.
    fn level(&self, at_ns: u64) -> (Piece, u64) {
        let i = self.changes.partition_point(|c| c.0 <= at_ns);
        let next_ns = self.changes.get(i).map_or(u64::MAX, |c| c.0);
        if i > 0 {
            let (begin_ns, rps) = self.changes[i - 1];
            return (Piece { begin_ns, end_ns: u64::MAX, begin_rps: rps, end_rps: rps }, next_ns);
        }
        let mut piece = self.load.piece(at_ns.saturating_sub(self.warmup_ns));
        if at_ns < self.warmup_ns {
            if !piece.is_flat() {
                piece.end_ns = 0;
            }
            piece.end_rps = piece.begin_rps;
            piece.begin_ns = 0;
        } else {
            piece.begin_ns += self.warmup_ns;
        }
        piece.end_ns = piece.end_ns.saturating_add(self.warmup_ns);
        (piece, piece.end_ns.min(next_ns))
    }

    /// The wanted rate at a time, bursts aside.
    pub fn rps_at(&self, at_ns: u64) -> f64 {
        self.level(at_ns).0.rps_at(at_ns as f64)
    }

    /// Requests expected in a part of the stream.
    pub fn expected(&self, from_ns: u64, to_ns: u64) -> f64 {
        let (mut t, mut sum) = (from_ns, 0.0);
        while t < to_ns {
            let (piece, until_ns) = self.level(t);
            let end = until_ns.min(to_ns);
            sum += (end - t) as f64 * 1e-9 * (0.5 * (piece.rps_at(t as f64) + piece.rps_at(end as f64)));
            t = end;
        }
        sum
    }
}

/// A place in a stream.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    index: u64,
    at_ns: f64,
    burst: Option<Position>,
}

impl Cursor {
    pub fn start(plan: &Plan) -> Self {
        let burst = match &plan.arrivals {
            Arrivals::Mmpp(m) => Some(m.start(plan.seed)),
            _ => None,
        };
        Cursor { index: 0, at_ns: 0.0, burst }
    }

    /// The next arrival; none once the stream has ended.
    pub fn advance(&mut self, plan: &Plan) -> Option<Arrival> {
        let mut gap = match plan.arrivals {
            Arrivals::Constant => 1.0,
            _ => -unit(draw(plan.seed, STREAM_GAP, self.index)).ln(),
        };
        let end_ns = plan.end_ns as f64;
        while self.at_ns < end_ns {
            let (piece, until_ns) = plan.level(self.at_ns as u64);
            let mut until_ns = until_ns as f64;
            let mut factor = 1.0;
            if let (Arrivals::Mmpp(m), Some(p)) = (&plan.arrivals, &mut self.burst) {
                m.follow(p, plan.seed, self.at_ns);
                factor = m.factor(p);
                until_ns = until_ns.min(p.until_ns);
            }
            // Requests in the first x ns from here: per_ns x + slope x^2 / 2.
            let per_ns = piece.rps_at(self.at_ns) * factor * 1e-9;
            let slope = if piece.is_flat() {
                0.0
            } else {
                (piece.end_rps - piece.begin_rps) * factor * 1e-9 / (piece.end_ns - piece.begin_ns) as f64
            };
            let wait_ns = if slope == 0.0 {
                gap / per_ns
            } else {
                let root = per_ns * per_ns + 2.0 * slope * gap;
                if root < 0.0 {
                    f64::INFINITY
                } else {
                    2.0 * gap / (per_ns + root.sqrt())
                }
            };
            let at = self.at_ns + wait_ns;
            if at < until_ns {
                self.at_ns = at;
                if at >= end_ns {
                    break;
                }
                let arrival = Arrival { index: self.index, intended_ns: at as u64 };
                self.index += 1;
                return Some(arrival);
            }
            let x = until_ns.min(end_ns) - self.at_ns;
            gap = (gap - (per_ns + 0.5 * slope * x) * x).max(0.0);
            self.at_ns = until_ns;
        }
        None
    }
}

/// Iterator over all arrivals of a stream that nobody changes, in order.
#[derive(Debug, Clone)]
pub struct Schedule {
    plan: Plan,
    cursor: Cursor,
}

impl Schedule {
    /// A stream of `warmup_ns + duration_ns`.
    pub fn new(arrivals: Arrivals, load: &LoadProfile, warmup_ns: u64, duration_ns: u64, seed: u64) -> Self {
        let plan = Plan { arrivals, load: load.clone(), seed, warmup_ns, end_ns: warmup_ns + duration_ns, changes: Vec::new() };
        Schedule { cursor: Cursor::start(&plan), plan }
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.cursor.advance(&self.plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Step;

    const SEC: u64 = 1_000_000_000;

    fn poisson(rps: f64, seconds: u64, seed: u64) -> Vec<Arrival> {
        let load = LoadProfile::constant(rps).unwrap();
        Schedule::new(Arrivals::Poisson, &load, 0, seconds * SEC, seed).collect()
    }

    /// The same seed gives the same schedule, another seed another one.
    #[test]
    fn the_seed_fixes_the_schedule() {
        assert_eq!(poisson(1000.0, 5, 7), poisson(1000.0, 5, 7));
        assert_ne!(poisson(1000.0, 5, 7), poisson(1000.0, 5, 8));
    }

    /// Splitting over threads neither loses nor moves a request.
    #[test]
    fn threads_partition_one_schedule() {
        let whole = poisson(1000.0, 5, 7);
        let mut parts: Vec<Arrival> = (0..3).flat_map(|t| whole.iter().copied().filter(move |a| owner(7, a.index, 3) == t)).collect();
        parts.sort_by_key(|a| a.index);
        assert_eq!(parts, whole);
    }

    /// Poisson counts and gaps have the right mean and variance.
    #[test]
    fn poisson_gaps_have_mean_and_deviation_of_one_period() {
        let all = poisson(1000.0, 200, 3);
        let n = all.len() as f64;
        // 200,000 expected, standard deviation sqrt(200,000) = 447; four of them.
        assert!((n - 200_000.0).abs() < 4.0 * 447.0, "{n}");
        let gaps: Vec<f64> = all.windows(2).map(|w| (w[1].intended_ns - w[0].intended_ns) as f64 * 1e-6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((var - 1.0).abs() < 0.03, "{var}");
    }

    /// A load step changes the rate at its instant, warm-up excluded from the count of time.
    #[test]
    fn load_steps_take_effect_at_their_time() {
        let load = LoadProfile::new(vec![Step { at_ns: 0, rps: 100.0 }, Step { at_ns: 2 * SEC, rps: 1000.0 }]).unwrap();
        let all: Vec<u64> = Schedule::new(Arrivals::Constant, &load, SEC, 3 * SEC, 1).map(|a| a.intended_ns).collect();
        // Warm-up 1 s and 2 s at 100, then 1 s at 1000.
        let before = all.iter().filter(|&&t| t < 3 * SEC).count();
        let after = all.len() - before;
        assert!((299..=300).contains(&before), "{before}");
        assert!((999..=1001).contains(&after), "{after}");
        let plan = Plan { arrivals: Arrivals::Constant, load, seed: 1, warmup_ns: SEC, end_ns: 4 * SEC, changes: vec![] };
        assert_eq!(plan.expected(SEC, 4 * SEC), 1200.0);
    }

    fn count(arrivals: &Arrivals, load: &LoadProfile, duration_ns: u64, seed: u64) -> f64 {
        Schedule::new(arrivals.clone(), load, 0, duration_ns, seed).count() as f64
    }

    /// Bursty arrivals keep the mean rate: over many seeds the count is the wanted one within its own standard error, in a run much
    /// longer than a burst and in one shorter than it.
    #[test]
    fn bursts_keep_the_mean_rate() {
        let load = LoadProfile::constant(1000.0).unwrap();
        for mmpp in [
            Mmpp::bursty(4.0, 0.1, 100_000_000).unwrap(),
            Mmpp::bursty(10.0, 0.1, 20_000_000).unwrap(),
            Mmpp::new(&[(0.0, 50_000_000), (1.0, 200_000_000), (9.0, 10_000_000)]).unwrap(),
        ] {
            for (seconds, seeds) in [(0.02, 4000), (5.0, 200)] {
                let arrivals = Arrivals::Mmpp(mmpp.clone());
                let counts: Vec<f64> = (0..seeds).map(|s| count(&arrivals, &load, (seconds * 1e9) as u64, s)).collect();
                let n = counts.len() as f64;
                let mean = counts.iter().sum::<f64>() / n;
                let error = (counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / (n * (n - 1.0))).sqrt();
                assert!((mean - 1000.0 * seconds).abs() < 4.0 * error, "{mean} +- {error}, {seconds} s, {mmpp:?}");
                // Burstier than Poisson, whose error would be this.
                assert!(error > 1.3 * (1000.0 * seconds / n).sqrt(), "{error}");
            }
        }
    }

    /// The variance of counts follows theory. Two states, rates r1 and r2, shares p and 1 - p, relaxation rate a = 1/d1 + 1/d2: the
    /// count in a time t has mean m = r t and variance m + 2 p (1-p) (r1-r2)^2 (t/a - (1 - e^-at)/a^2).
    #[test]
    fn bursts_have_the_variance_of_theory() {
        let (rate, t_s, seeds) = (1000.0, 1.0, 4000);
        let arrivals = Arrivals::Mmpp(Mmpp::bursty(4.0, 0.1, 50_000_000).unwrap());
        let load = LoadProfile::constant(rate).unwrap();
        let counts: Vec<f64> = (0..seeds).map(|s| count(&arrivals, &load, (t_s * 1e9) as u64, s)).collect();
        let n = counts.len() as f64;
        let mean = counts.iter().sum::<f64>() / n;
        let var = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let (a, apart) = (1.0 / 0.05 + 1.0 / 0.45, rate * (4.0 - 2.0 / 3.0));
        let exact = rate * t_s + 2.0 * 0.1 * 0.9 * apart * apart * (t_s / a - (1.0 - (-a * t_s).exp()) / (a * a));
        // A variance from 4000 nearly normal counts is good to sqrt(2 / 4000) = 2.2 %; four of them, and some for the skew.
        assert!((var / exact - 1.0).abs() < 0.12, "{var} {exact}");
    }

    /// A day's arrivals follow its curve: each eighth of the periods has its share, and the whole has the mean.
    #[test]
    fn a_wave_shapes_the_arrivals() {
        let wave = crate::load::Wave::new(0.8, 8 * SEC, 0.0).unwrap();
        let load = LoadProfile::constant(2000.0).unwrap().with_wave(wave).unwrap();
        // Warm-up at the rate of time 0.
        let all: Vec<Arrival> = Schedule::new(Arrivals::Poisson, &load, 5 * SEC, 80 * SEC, 3).collect();
        let warm = all.iter().filter(|a| a.intended_ns < 5 * SEC).count() as f64;
        assert!((warm - 10_000.0).abs() < 400.0, "{warm}");
        for eighth in 0..8u64 {
            let got =
                all.iter().filter(|a| a.intended_ns >= 5 * SEC && (a.intended_ns - 5 * SEC) % (8 * SEC) / SEC == eighth).count() as f64;
            let turn = |k: u64| (std::f64::consts::TAU * k as f64 / 8.0).cos();
            let exact = 10.0 * 2000.0 * (1.0 + 0.8 * 8.0 / std::f64::consts::TAU * (turn(eighth) - turn(eighth + 1)));
            assert!((got - exact).abs() < 4.0 * exact.sqrt(), "{eighth}: {got} {exact}");
        }
    }

    /// Equal gaps along a slope: arrival k is due when the area under the rate is k.
    #[test]
    fn constant_gaps_follow_a_line() {
        // 0 to 200 rps in 10 s: 10 t^2 requests by t.
        let load = LoadProfile::lines(vec![Step { at_ns: 0, rps: 0.0 }, Step { at_ns: 10 * SEC, rps: 200.0 }]).unwrap();
        let all: Vec<f64> = Schedule::new(Arrivals::Constant, &load, 0, 10 * SEC, 1).map(|a| a.intended_ns as f64 * 1e-9).collect();
        assert!((999..=1000).contains(&all.len()), "{}", all.len());
        for (k, t) in all.iter().enumerate() {
            assert!((t - ((k + 1) as f64 / 10.0).sqrt()).abs() < 1e-6, "{k}: {t}");
        }
        // Downhill to nothing: it ends by itself.
        let load = LoadProfile::lines(vec![Step { at_ns: 0, rps: 200.0 }, Step { at_ns: 10 * SEC, rps: 0.0 }]).unwrap();
        assert!((999..=1000).contains(&Schedule::new(Arrivals::Constant, &load, 0, 100 * SEC, 1).count()));
    }

    /// A change of the rate moves nothing before it, and the arrivals after it have the new rate: the gap that it falls into is stretched
    /// by the rates on both sides.
    #[test]
    fn a_change_leaves_the_past_alone() {
        let load = LoadProfile::constant(1000.0).unwrap();
        let plain = Plan { arrivals: Arrivals::Constant, load, seed: 1, warmup_ns: SEC, end_ns: 4 * SEC, changes: vec![] };
        let changed = Plan { changes: vec![(2 * SEC + 400_000, 4000.0), (3 * SEC, 500.0)], ..plain.clone() };
        let all = |plan: &Plan| -> Vec<u64> {
            let mut c = Cursor::start(plan);
            std::iter::from_fn(|| c.advance(plan)).map(|a| a.intended_ns).collect()
        };
        let (before, after) = (all(&plain), all(&changed));
        let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        assert!((1999..=2000).contains(&same), "{same}");
        // 0.4 of a gap at 1000 rps, the other 0.6 at 4000.
        let first = after[2000] as i64 - (2 * SEC + 400_000 + 150_000) as i64;
        assert!(first.abs() <= 2, "{first}");
        // 3998 more in the rest of the second, 500 in the last.
        assert!((2000 + 3998 + 498..=2000 + 3999 + 500).contains(&after.len()), "{}", after.len());
        // 1000 from 1 to 2, 0.4 + 3998.4 from 2 to 3, 500 after.
        assert!((changed.expected(SEC, 4 * SEC) - 5498.8).abs() < 1e-6, "{}", changed.expected(SEC, 4 * SEC));
    }
}
