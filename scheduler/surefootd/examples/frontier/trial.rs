//! The frontier strategy against the exhaustive one on a virtual server, in this process: the same cases, the same search and the same
//! label definition as in a sweep, without files.

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use surefoot_search::{label, Found, Question, Series};
use surefoot_server::{Sending, Verdict};
use surefootd::stage::virtual_target::VirtualTarget;
use surefootd::sweep::campaign::Campaign;
use surefootd::sweep::chain::{reading, Chain, Step};
use surefootd::sweep::expand::{Case, Expansion};
use surefootd::sweep::rows::Row;
use surefootd::sweep::virtual_bench::VirtualBench;

/// What a reading of p99 is off by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    None,
    /// Relative standard deviation of every reading; a case has `sampling.samples` of them, seeded by the case.
    OfEachReading(f64),
    /// Of the case as a whole: all its readings are off by the same.
    OfEachCase(f64),
}

/// What came of some planes. Exhaustive labels are those without noise: what is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub planes: u64,
    /// RCliff and OAA as the exhaustive sweep finds them (or no feasible cell, as there).
    pub same: u64,
    /// Off by one core or way at most.
    pub one_step: u64,
    pub further: u64,
    /// Labels that say of themselves that they are not exact.
    pub bounded: u64,
    pub cases: u64,
    /// Cases of the exhaustive sweep, each cell once.
    pub grid: u64,
    /// Labels of an exhaustive sweep with the same noise, each cell once, that are not the true ones.
    pub exhaustive_wrong: u64,
}

impl Outcome {
    pub fn add(mut self, o: Outcome) -> Outcome {
        self.planes += o.planes;
        self.same += o.same;
        self.one_step += o.one_step;
        self.further += o.further;
        self.bounded += o.bounded;
        self.cases += o.cases;
        self.grid += o.grid;
        self.exhaustive_wrong += o.exhaustive_wrong;
        self
    }
}

struct Noisy<'a> {
    bench: VirtualBench<'a>,
    noise: Noise,
    samples: u32,
}

impl Noisy<'_> {
    /// p99 of the steady state; infinite where it is overloaded.
    fn truth_ms(&mut self, case: &Case) -> f64 {
        let (steady, overloaded) = self.bench.steady(case).expect("a case of the campaign");
        let p99_ms = steady.latency.map_or(f64::INFINITY, |l| l.p99);
        if overloaded {
            f64::INFINITY
        } else {
            p99_ms
        }
    }

    fn rows(&mut self, case: &Case, rows: &mut Vec<Row>) {
        let truth_ms = self.truth_ms(case);
        let factor = |sd: f64, j: u64| (sd * gauss(case.seed, j)).exp();
        rows.clear();
        for j in 0..u64::from(self.samples) {
            let p99_ms = match self.noise {
                Noise::None => truth_ms,
                Noise::OfEachReading(sd) => truth_ms * factor(sd, j + 1),
                Noise::OfEachCase(sd) => truth_ms * factor(sd, 0),
            };
            let overloaded = truth_ms.is_infinite();
            // One p99 for the whole case comes with its interval, as a real machine's does.
            let interval = match self.noise {
                Noise::OfEachCase(sd) => Some(((-1.96 * sd).exp() * p99_ms, (1.96 * sd).exp() * p99_ms)),
                _ => None,
            };
            rows.push(Row {
                t_ms: j as i64,
                features: [None; 13],
                mean_ms: None,
                p50_ms: None,
                p95_ms: None,
                p99_ms: (!overloaded).then_some(p99_ms),
                p99_low_ms: interval.filter(|_| !overloaded).map(|i| i.0),
                p99_high_ms: interval.filter(|_| !overloaded).map(|i| i.1),
                achieved_rps: None,
                errors: 0,
                count: 1000,
                verdict: if overloaded { Verdict::ServerOverloaded } else { Verdict::Valid },
                sending: Sending::OPEN,
                memory: Default::default(),
            });
        }
    }
}

/// Standard normal number of (seed, index): SplitMix64 and Box-Muller.
fn gauss(seed: u64, index: u64) -> f64 {
    let uniform = |n: u64| {
        let mut z = seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    (-2.0 * (1.0 - uniform(2 * index + 1)).ln()).sqrt() * (std::f64::consts::TAU * uniform(2 * index + 2)).cos()
}

/// Try the campaign (its strategy does not matter) on the virtual server of that name; what came of each service.
pub fn run(server: &str, text: &str, noise: Noise) -> BTreeMap<String, Outcome> {
    let virtual_server = VirtualTarget::open(server, None).expect("a shipped platform");
    let campaign = Campaign::parse(Path::new("trial.toml"), text).expect("a campaign");
    let cases = Expansion::new(&campaign, &virtual_server.target()).expect("a campaign of this server");
    let outcomes: Vec<(String, Outcome)> = (0..cases.chains())
        .into_par_iter()
        .map(|chain| {
            let bench = VirtualBench::new(&virtual_server, &campaign.sampling);
            let mut noisy = Noisy { bench, noise, samples: if noise == Noise::None { 1 } else { campaign.sampling.samples } };
            chain_outcome(&cases, chain, &mut noisy)
        })
        .collect();
    let mut all: BTreeMap<String, Outcome> = BTreeMap::new();
    for (service, o) in outcomes {
        let sum = all.entry(service).or_default();
        *sum = sum.add(o);
    }
    all
}

fn chain_outcome(cases: &Expansion, number: u32, noisy: &mut Noisy) -> (String, Outcome) {
    let mut out = Outcome::default();
    // What the search measured, by (plane, cores, ways).
    let mut seen: BTreeMap<(u64, u64, u32), Series> = BTreeMap::new();
    let mut chain = Chain::new(cases, number);
    let (mut walk, mut rows) = (cases.walk(), vec![]);
    let planes: Vec<u64> = cases.chain(number).into_iter().flatten().collect();
    let cells = cases.number(1, 0, 0, 0, 0);
    loop {
        match chain.step() {
            Step::Case(i) => {
                let case = walk.at(i);
                noisy.rows(case, &mut rows);
                let heard = reading(&rows);
                seen.entry((i / cells, case.cores.to_bits(), case.ways)).or_default().add(heard);
                chain.tell(heard);
                out.cases += 1;
            }
            Step::Tally(_) => {}
            Step::End => break,
        }
    }
    let mut service = String::new();
    for plane in planes {
        let shape = cases.plane(plane);
        service.clone_from(&shape.service);
        let q = Question {
            rows: shape.cores.len(),
            columns: shape.ways.len(),
            target_ms: shape.qos_target_ms,
            from_least: cases.from_least(),
            margin: (1, 1),
            kink_row: None,
        };
        let (mut truth, mut noisy_grid, mut found) = (vec![], vec![], vec![]);
        for (cores, at_cores) in &shape.cores {
            for (ways, at_ways) in &shape.ways {
                let case = walk.at(cases.number(plane, *at_cores, *at_ways, 0, 0));
                truth.push(noisy.truth_ms(case));
                if noisy.noise != Noise::None {
                    noisy.rows(case, &mut rows);
                    let mut cell = Series::default();
                    cell.add(reading(&rows));
                    noisy_grid.push(cell.p99_ms());
                }
                found.push(seen.get(&(plane, cores.to_bits(), *ways)).map_or(f64::NAN, Series::p99_ms));
            }
        }
        let (truth, found) = (label(&q, &truth), label(&q, &found));
        out.planes += 1;
        out.grid += q.cells() as u64;
        out.bounded += u64::from(matches!(&found, Found::Label(l) if !l.exact) || found == Found::NoFeasibleCell { exact: false });
        match truth.steps_from(&found) {
            Some(0) => out.same += 1,
            Some(1) => out.one_step += 1,
            _ => out.further += 1,
        }
        out.exhaustive_wrong += u64::from(!noisy_grid.is_empty() && truth.steps_from(&label(&q, &noisy_grid)) != Some(0));
    }
    (service, out)
}
