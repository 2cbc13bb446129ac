//! The price of a wrong model (docs/eval-output.md): policies are told untruths, and what comes of it is measured as ever.

use crate::base::cli::Harm;
use clap::ValueEnum;
use std::cell::RefCell;
use std::collections::BTreeMap;
use surefoot_learn::rng::Rng;
use surefoot_learn::{dqn, ACTIONS};
use surefoot_policy::{learns, takes, Area, Asked, BPoints, Experience, ModelSet, Models, OsmlModels, Policy, State};
use surefoot_server::{Features, FeedState, Observation, Plan, Platform, Resource, ServiceId, ServiceView};

/// A feed that dies does so after this time.
const DEAD_FROM_MS: u64 = 10_000;
/// Answers of Model-A that are shuffled among each other.
const ANSWERS: usize = 32;

/// A policy that sees what harm leaves of an observation. The server is judged by what it really does.
pub struct Misled {
    pub inner: Box<dyn Policy>,
    pub harm: Harm,
    pub silent: BTreeMap<ServiceId, u64>,
}

impl Policy for Misled {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn called_every(&mut self, interval_ms: u64) -> Result<(), String> {
        self.inner.called_every(interval_ms)
    }

    fn between(&mut self) -> bool {
        self.inner.between()
    }

    fn asked(&self) -> Option<Asked> {
        self.inner.asked()
    }

    fn owns(&self) -> &[Resource] {
        self.inner.owns()
    }

    fn step(&mut self, now_ms: u64, seen: &Observation) -> Plan {
        let mut told = seen.clone();
        match self.harm {
            Harm::DeadFeed => {
                // That of the first service.
                if let Some(s) = told.services.iter_mut().find(|s| s.is_lc()).filter(|_| now_ms >= DEAD_FROM_MS) {
                    let since_ms = *self.silent.entry(s.id.clone()).or_insert(now_ms);
                    (s.feed, s.interval, s.window) = (FeedState::Unknown { since_ms, heard: true }, None, None);
                }
            }
            Harm::NoCounters => told.services.iter_mut().for_each(without_counters),
            Harm::ShuffledA | Harm::ForeignBundle | Harm::NoModels | Harm::NoC | Harm::UniformC => {}
        }
        self.inner.step(now_ms, &told)
    }
}

/// Harm to models is none to a policy that has none: its rows are those of an honest run, and would be read as robustness.
pub fn warn_of_untouched(harm: Harm, policies: &[String]) {
    let of = match harm {
        Harm::ShuffledA | Harm::ForeignBundle | Harm::NoModels => takes,
        // Policies that ask no Model-C do not teach it either.
        Harm::NoC | Harm::UniformC => learns,
        Harm::DeadFeed | Harm::NoCounters => return,
    };
    let untouched: Vec<&str> = policies.iter().map(String::as_str).filter(|p| of(p).is_none()).collect();
    if !untouched.is_empty() {
        let model = if matches!(harm, Harm::NoC | Harm::UniformC) { "a Model-C that they ask" } else { "models" };
        let (harm, who) = (harm.to_possible_value(), untouched.join(", "));
        let harm = harm.as_ref().map_or("", |h| h.get_name());
        tracing::warn!("--harm {harm}: does nothing to policies without {model}, whose rows are those of an honest run: {who}");
    }
}

/// What is known without asking the hardware or the kernel's accounts: what was handed out.
fn without_counters(s: &mut ServiceView) {
    let f = s.features;
    s.features = Features {
        alloc_cores: f.alloc_cores,
        alloc_ways: f.alloc_ways,
        alloc_cache_mb: f.alloc_cache_mb,
        nb_cores: f.nb_cores,
        nb_cache_mb: f.nb_cache_mb,
        ..Features::default()
    };
    s.instr_per_s = None;
}

/// Models whose A gives another service's answer.
pub fn shuffled(models: ModelSet, platform: &Platform, seed: u64) -> ModelSet {
    let a = || Answers::new(platform, seed);
    ModelSet {
        plus: models.plus.map(|inner| Box::new(Shuffled { inner, answers: a() }) as Box<dyn Models>),
        osml: models.osml.map(|inner| Box::new(ShuffledOsml { inner, answers: a() }) as Box<dyn OsmlModels>),
    }
}

/// The last answers, of all services; at first random ones.
struct Answers(RefCell<(Rng, Vec<Area>)>);

impl Answers {
    fn new(p: &Platform, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut upto = |most: f64| 1.0 + rng.uniform() * (most - 1.0);
        let one = |_| {
            let (cores, ways) = (upto(p.cores(p.core_units())), upto(f64::from(p.ways().max(1))));
            let some = |w: f64| (p.ways() > 0).then_some(w);
            Area {
                oaa_cores: cores,
                oaa_ways: some(ways),
                oaa_mbps: None,
                rcliff_cores: (cores - p.core_step).max(p.core_step),
                rcliff_ways: some((ways - 1.0).max(1.0)),
            }
        };
        let first = (0..8).map(one).collect();
        Answers(RefCell::new((rng, first)))
    }

    fn instead_of(&self, right: Area) -> Area {
        let (rng, all) = &mut *self.0.borrow_mut();
        if all.len() == ANSWERS {
            all.remove(0);
        }
        all.push(right);
        all[(rng.uniform() * all.len() as f64) as usize % all.len()]
    }
}

/// Models without a Model-C, or with one that knows no difference.
pub fn without_c(models: ModelSet, uniform: bool, seed: u64) -> ModelSet {
    ModelSet {
        plus: models.plus.map(|inner| Box::new(WithoutC { inner, uniform, rng: Rng::new(seed) }) as Box<dyn Models>),
        osml: models.osml.map(|inner| Box::new(WithoutC { inner, uniform, rng: Rng::new(seed) }) as Box<dyn OsmlModels>),
    }
}

struct WithoutC<M> {
    inner: M,
    uniform: bool,
    rng: Rng,
}

const NO_C: &str = "Model-C is left out";

impl Models for WithoutC<Box<dyn Models>> {
    fn area(&self, service: &str, s: &State) -> Result<Area, String> {
        self.inner.area(service, s)
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.inner.qos(service, s, cores, ways)
    }

    fn qos_cap(&self) -> f64 {
        self.inner.qos_cap()
    }

    fn act(&mut self, _: &str, _: &State) -> Result<[f32; ACTIONS], String> {
        // Equal probabilities would be one order all the time; so every action is the likeliest in its turn.
        let mut drawn = [(); ACTIONS].map(|()| 1e-6 + self.rng.uniform() as f32);
        let sum: f32 = drawn.iter().sum();
        drawn.iter_mut().for_each(|p| *p /= sum);
        self.uniform.then_some(drawn).ok_or_else(|| NO_C.into())
    }

    /// What is done at random is experience, too.
    fn remember(&mut self, e: &Experience) -> bool {
        self.uniform && self.inner.remember(e)
    }

    fn learn(&mut self) -> bool {
        false
    }
}

impl OsmlModels for WithoutC<Box<dyn OsmlModels>> {
    fn area(&self, service: &str, s: &State, neighbours: bool) -> Result<Area, String> {
        self.inner.area(service, s, neighbours)
    }

    fn b_points(&self, service: &str, s: &State, slowdown: f64) -> Result<BPoints, String> {
        self.inner.b_points(service, s, slowdown)
    }

    fn slowdown(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.inner.slowdown(service, s, cores, ways)
    }

    fn choose(&mut self, _: &str, _: &State, possible: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String> {
        if !self.uniform {
            return Err(NO_C.into());
        }
        let all: Vec<usize> = (0..dqn::ACTIONS).filter(|a| possible(*a)).collect();
        Ok((!all.is_empty()).then(|| all[self.rng.below(all.len())]))
    }

    fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
        self.inner.reseed(seed);
    }

    fn latency_cap(&self) -> f64 {
        self.inner.latency_cap()
    }

    fn remember(&mut self, _: &Experience) -> bool {
        false
    }

    fn learn(&mut self) -> bool {
        false
    }
}

struct Shuffled {
    inner: Box<dyn Models>,
    answers: Answers,
}

impl Models for Shuffled {
    fn area(&self, service: &str, s: &State) -> Result<Area, String> {
        self.inner.area(service, s).map(|a| self.answers.instead_of(a))
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.inner.qos(service, s, cores, ways)
    }

    fn qos_cap(&self) -> f64 {
        self.inner.qos_cap()
    }

    fn act(&mut self, service: &str, s: &State) -> Result<[f32; ACTIONS], String> {
        self.inner.act(service, s)
    }

    fn worth(&mut self, service: &str, s: &State, action: usize) -> Option<f64> {
        self.inner.worth(service, s, action)
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.inner.remember(e)
    }

    fn learn(&mut self) -> bool {
        self.inner.learn()
    }

    fn steps(&self) -> u64 {
        self.inner.steps()
    }
}

struct ShuffledOsml {
    inner: Box<dyn OsmlModels>,
    answers: Answers,
}

impl OsmlModels for ShuffledOsml {
    fn area(&self, service: &str, s: &State, neighbours: bool) -> Result<Area, String> {
        self.inner.area(service, s, neighbours).map(|a| self.answers.instead_of(a))
    }

    fn b_points(&self, service: &str, s: &State, slowdown: f64) -> Result<BPoints, String> {
        self.inner.b_points(service, s, slowdown)
    }

    fn slowdown(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.inner.slowdown(service, s, cores, ways)
    }

    fn choose(&mut self, service: &str, s: &State, possible: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String> {
        self.inner.choose(service, s, possible)
    }

    fn worth(&mut self, service: &str, s: &State, action: usize) -> Option<f64> {
        self.inner.worth(service, s, action)
    }

    fn reseed(&mut self, seed: u64) {
        self.inner.reseed(seed);
    }

    fn latency_cap(&self) -> f64 {
        self.inner.latency_cap()
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.inner.remember(e)
    }

    fn learn(&mut self) -> bool {
        self.inner.learn()
    }

    fn steps(&self) -> u64 {
        self.inner.steps()
    }
}
