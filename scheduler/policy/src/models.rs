//! What a policy asks of Models A, B and C, and the answer of a bundle's networks.
//!
//! Inputs go by name: the names of [`surefoot_server::FEATURE_NAMES`], `expected_cores` (cores) and `expected_cache_mb`
//! (MB = 2^20 bytes) of an allocation in question, and `qos` = min(1, QoS target / p99).

use std::cell::RefCell;
use surefoot_learn::ddpg::one_hot;
use surefoot_learn::{Agent, Bundle, Model, Scratch, ACTIONS};
use surefoot_server::{Features, Platform, ServiceView, Verdict};

/// Model-B's inputs of an allocation in question.
pub(crate) const EXPECTED_CORES: &str = "expected_cores";
pub(crate) const EXPECTED_CACHE: &str = "expected_cache_mb";

/// Model-A's answer: cores (not units) and ways, as predicted (not rounded).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub oaa_cores: f64,
    /// None where the LLC cannot be partitioned.
    pub oaa_ways: Option<f64>,
    /// Bandwidth that the OAA needs, MB/s; None where the host cannot measure it.
    pub oaa_mbps: Option<f64>,
    pub rcliff_cores: f64,
    pub rcliff_ways: Option<f64>,
}

/// An interval that covers what is asked about so often as the bundle's makers say (90 %), and Model-A's or B's answer always.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub lower: f64,
    pub upper: f64,
}

impl Interval {
    /// Ends as a network says them, so that they hold the answer itself and lie within what can be. The lab measures them so
    /// (`models/intervals.py`).
    fn settled(answer: f64, lower: f64, upper: f64, least: f64, most: f64) -> Self {
        Interval { lower: lower.min(answer).max(least).min(most), upper: upper.max(answer).max(least).min(most) }
    }
}

/// Intervals of the OAA that [`Models::area`] says: cores (not units) and ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AreaInterval {
    pub oaa_cores: Interval,
    /// None where the LLC cannot be partitioned.
    pub oaa_ways: Option<Interval>,
}

/// What a model is asked about: a service as it was seen, with its QoS of that moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    pub features: Features,
    /// QoS target / p99 (above 1 = met); None while latency is unknown.
    pub qos: Option<f64>,
    /// None for BE jobs.
    pub qos_target_ms: Option<f64>,
    /// p99 and completed requests/s of the last interval, as models are taught; where that has too few requests for a p99, of the
    /// window. None while latency is unknown.
    pub p99_ms: Option<f64>,
    pub achieved_rps: Option<f64>,
}

impl State {
    pub fn of(s: &ServiceView) -> Self {
        State::with(s, s.features)
    }

    /// With features that were smoothed.
    pub(crate) fn with(s: &ServiceView, features: Features) -> Self {
        let qos = s.qos();
        // A window still has requests from before the last change; features have none.
        let heard = qos.and(s.interval.filter(|l| l.verdict == Verdict::Valid).or(s.window));
        State {
            features,
            qos,
            qos_target_ms: s.qos_target_ms(),
            p99_ms: heard.map(|l| l.p99_ms),
            achieved_rps: heard.map(|l| l.achieved_rps),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        match name {
            "qos" => self.qos.map(|q| q.min(1.0)),
            "qos_target_ms" => self.qos_target_ms,
            "p99_ms" => self.p99_ms,
            "achieved_rps" => self.achieved_rps,
            "all_mbl_mbps" => Some(self.features.mbl_mbps? + self.features.nb_mbl_mbps?),
            _ => self.features.get(name),
        }
    }
}

/// One experience of a Model-C (OSML+ paper, Sec. 3.2; OSML paper, Sec. 4.3): what was seen, done, gained, and seen then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experience {
    pub before: State,
    /// OSML+: index into Table 5 (cores up, down; ways up, down; bandwidth up, down; idle). OSML: number of one of 49 changes
    /// ([`surefoot_learn::dqn::change`]).
    pub action: usize,
    /// OSML+: what the actor said where that is what the pool is to keep, as in the paper; None: the action alone, as one-hot vector.
    pub vector: Option<[f32; ACTIONS]>,
    pub reward: f64,
    pub after: State,
}

/// Models A, B and C. An Err says in one line why a model has no answer (a feature is missing, ...).
///
/// A service's name is passed along for implementations that know services; the networks do not use it.
pub trait Models {
    /// Model-A.
    fn area(&self, service: &str, s: &State) -> Result<Area, String>;

    /// Model-B: QoS = target / p99 on so many cores (not units) and ways, at the load of `s`.
    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String>;

    /// The largest QoS that Model-B was taught; above it "met" is all that it can say.
    fn qos_cap(&self) -> f64 {
        f64::INFINITY
    }

    /// Interval of [`Models::qos`]; its lower end at 1 or more says "met" more carefully, its upper end at [`Models::qos_cap`] says "or
    /// more". None where there is no interval or no answer.
    fn qos_interval(&self, _service: &str, _s: &State, _cores: f64, _ways: f64) -> Option<Interval> {
        None
    }

    /// Intervals of [`Models::area`]. None where there are none or no answer.
    fn area_interval(&self, _service: &str, _s: &State) -> Option<AreaInterval> {
        None
    }

    /// How unlike what the models were taught an observation is: at most 1 for the usual nine of ten. None where there is no score.
    fn strangeness(&self, _s: &State) -> Option<f64> {
        None
    }

    /// Model-B's inputs that lie outside what it was taught with, asked about so many cores and ways.
    fn outside(&self, _s: &State, _cores: f64, _ways: f64) -> Vec<String> {
        vec![]
    }

    /// Model-C's actor: probabilities of the seven actions.
    fn act(&mut self, service: &str, s: &State) -> Result<[f32; ACTIONS], String>;

    /// Model-C's critic: Q of an action, for people to read; None where it cannot say.
    fn worth(&mut self, _service: &str, _s: &State, _action: usize) -> Option<f64> {
        None
    }

    /// Put an experience into Model-C's pool. False if it could not be used (a feature is missing).
    fn remember(&mut self, e: &Experience) -> bool;

    /// One step of learning from the pool. False if the pool is too small, or the step was refused.
    fn learn(&mut self) -> bool;

    /// Steps of learning so far.
    fn steps(&self) -> u64 {
        0
    }
}

/// A bundle's networks.
pub struct BundleModels {
    a: Model,
    b: Model,
    c: Agent,
    qos_cap: f64,
    size: Size,
    scratch: RefCell<Scratch>,
    b_asked: RefCell<LastAsked>,
    /// Places of Model-B's inputs that are about the allocation in question.
    b_expects: Vec<usize>,
    out: [Option<usize>; 6],
    /// Places of the ends of intervals: of Model-A's OAA in cores and in ways, and of Model-B's QoS.
    ends: [Option<(usize, usize)>; 3],
}

/// Quantities of the platform.
#[derive(Clone, Copy)]
struct Size {
    cores: f64,
    core_step: f64,
    ways: f64,
    cache_mb: f64,
    mb_per_way: f64,
}

impl Size {
    fn of(platform: &Platform) -> Self {
        let mb_per_way = platform.mb_per_way();
        let ways = f64::from(platform.ways());
        Size { cores: platform.cores(platform.core_units()), core_step: platform.core_step, ways, cache_mb: ways * mb_per_way, mb_per_way }
    }

    fn get(&self, name: &str) -> Option<f64> {
        match name {
            "platform_cores" => Some(self.cores),
            "platform_cache_mb" => Some(self.cache_mb),
            "platform_mb_per_way" => Some(self.mb_per_way),
            _ => None,
        }
    }
}

/// Model-B is asked about many allocations of one state in a row: its other inputs are looked up and scaled once.
#[derive(Default)]
struct LastAsked {
    of: Option<State>,
    scratch: Scratch,
}

impl BundleModels {
    /// # Errors
    /// One line, where Models A and B lack an output that every platform has.
    pub fn new(bundle: &Bundle, platform: &Platform) -> Result<Self, String> {
        let cap = bundle.manifest.models.b.qos_cap;
        Self::from_parts(bundle.a.clone(), bundle.b.clone(), bundle.c.clone(), cap, platform)
    }

    /// # Errors
    /// As [`BundleModels::new`].
    pub fn from_parts(a: Model, b: Model, c: Agent, qos_cap: Option<f64>, platform: &Platform) -> Result<Self, String> {
        let of = |name: &str| a.output_index(name);
        let out = [of("oaa_cores"), of("rcliff_cores"), of("oaa_ways"), of("rcliff_ways"), of("oaa_mbl_mbps"), b.output_index("qos")];
        let named = [("A", "oaa_cores"), ("A", "rcliff_cores"), ("A", "oaa_ways"), ("A", "rcliff_ways"), ("", ""), ("B", "qos")];
        for (i, (model, name)) in named.iter().enumerate() {
            let needed = !(name.is_empty() || name.ends_with("ways") && platform.ways() == 0);
            if needed && out[i].is_none() {
                return Err(format!("bundle: Model-{model} has no output `{name}`. Build the bundle again with this version of surefoot"));
            }
        }
        let pair = |model: &Model, name: &str| {
            Some((model.output_index(&format!("{name}_lower"))?, model.output_index(&format!("{name}_upper"))?))
        };
        let ends = [pair(&a, "oaa_cores"), pair(&a, "oaa_ways"), pair(&b, "qos")];
        let qos_cap = qos_cap.unwrap_or(f64::INFINITY);
        let b_expects = b.expecting(&[EXPECTED_CORES, EXPECTED_CACHE]);
        Ok(BundleModels {
            a,
            b,
            c,
            b_expects,
            qos_cap,
            size: Size::of(platform),
            scratch: RefCell::default(),
            b_asked: RefCell::default(),
            out,
            ends,
        })
    }

    /// A quantity of what Model-B is asked.
    fn asked(&self, s: &State, cores: f64, ways: f64, name: &str) -> Option<f64> {
        match name {
            EXPECTED_CORES => Some(cores),
            EXPECTED_CACHE => Some(ways * self.size.mb_per_way),
            _ => self.size.get(name).or_else(|| s.get(name)),
        }
    }

    /// Model-C as it has become.
    pub fn agent(&self) -> &Agent {
        &self.c
    }

    pub fn agent_mut(&mut self) -> &mut Agent {
        &mut self.c
    }

    /// Model-B's outputs; asked about the same state again, what does not change is not looked up again.
    fn ask_b<R>(&self, s: &State, cores: f64, ways: f64, take: impl FnOnce(&[f64]) -> R) -> Result<R, String> {
        let LastAsked { of, scratch } = &mut *self.b_asked.borrow_mut();
        let value = |n: &str| self.asked(s, cores, ways, n);
        let y = if *of == Some(*s) {
            // What was there for the last question is there for this one.
            let others = self.b_expects.iter().map(|i| (*i, self.b.raw(*i, value).unwrap_or(f64::NAN)));
            self.b.predict_again(others, scratch)
        } else {
            *of = None;
            self.b.predict_by(value, scratch)
        };
        let y = y.map_err(|e| format!("Model-B: {e}"))?;
        *of = Some(*s);
        Ok(take(y))
    }

    /// Model-A's outputs.
    fn ask_a<R>(&self, s: &State, take: impl FnOnce(&[f64]) -> R) -> Result<R, String> {
        let mut scratch = self.scratch.borrow_mut();
        let y = self.a.predict_by(|n| self.size.get(n).or_else(|| s.get(n)), &mut scratch).map_err(|e| format!("Model-A: {e}"))?;
        Ok(take(y))
    }

    /// The interval around an output, within `least` and `most`; None where the network has no such ends.
    fn interval(&self, y: &[f64], output: usize, ends: usize, least: f64, most: f64) -> Option<Interval> {
        let (lower, upper) = self.ends[ends]?;
        Some(Interval::settled(*y.get(self.out[output]?)?, *y.get(lower)?, *y.get(upper)?, least, most))
    }
}

impl Models for BundleModels {
    fn area(&self, _service: &str, s: &State) -> Result<Area, String> {
        self.ask_a(s, |y| {
            let at = |i: usize| self.out[i].and_then(|o| y.get(o)).copied();
            let missing = || "Model-A: no output".to_string();
            Ok(Area {
                oaa_cores: at(0).ok_or_else(missing)?,
                rcliff_cores: at(1).ok_or_else(missing)?,
                oaa_ways: at(2),
                rcliff_ways: at(3),
                oaa_mbps: at(4),
            })
        })?
    }

    fn qos(&self, _service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        self.ask_b(s, cores, ways, |y| self.out[5].and_then(|o| y.get(o)).copied())?.ok_or_else(|| "Model-B: no output".into())
    }

    fn qos_interval(&self, _service: &str, s: &State, cores: f64, ways: f64) -> Option<Interval> {
        self.ends[2]?;
        self.ask_b(s, cores, ways, |y| self.interval(y, 5, 2, 0.0, self.qos_cap)).ok()?
    }

    fn area_interval(&self, _service: &str, s: &State) -> Option<AreaInterval> {
        self.ends[0]?;
        let Size { cores, core_step, ways, .. } = self.size;
        let found = self.ask_a(s, |y| {
            let oaa_cores = self.interval(y, 0, 0, core_step, cores)?;
            Some(AreaInterval { oaa_cores, oaa_ways: self.interval(y, 2, 1, 1.0, ways) })
        });
        found.ok()?
    }

    fn strangeness(&self, s: &State) -> Option<f64> {
        self.a.strangeness(|n| self.size.get(n).or_else(|| s.get(n)), &mut self.scratch.borrow_mut())
    }

    fn qos_cap(&self) -> f64 {
        self.qos_cap
    }

    fn outside(&self, s: &State, cores: f64, ways: f64) -> Vec<String> {
        self.b.beyond(|n| self.asked(s, cores, ways, n)).map(Into::into).collect()
    }

    fn act(&mut self, _service: &str, s: &State) -> Result<[f32; ACTIONS], String> {
        let state = self.c.state_by(|n| s.get(n)).map_err(|e| format!("Model-C: {e}"))?;
        Ok(self.c.act(&state))
    }

    fn worth(&mut self, _service: &str, s: &State, action: usize) -> Option<f64> {
        let state = self.c.state_by(|n| s.get(n)).ok()?;
        Some(f64::from(self.c.q(&state, &one_hot(action))))
    }

    fn remember(&mut self, e: &Experience) -> bool {
        let state = |s: &State| self.c.state_by(|n| s.get(n));
        let (Ok(before), Ok(after)) = (state(&e.before), state(&e.after)) else { return false };
        self.c.remember(&before, &e.vector.unwrap_or_else(|| one_hot(e.action)), e.reward as f32, &after)
    }

    fn learn(&mut self) -> bool {
        // A refused step leaves no trace; the next one draws another batch.
        matches!(self.c.learn_step(), Ok(Some(_)))
    }

    fn steps(&self) -> u64 {
        self.c.steps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plant;
    use crate::{osml_plus::Settings, OsmlPlus, Policy};
    use surefoot_learn::{rng::Rng, Hyper, InputSpec, Mlp, Output, OutputSpec};

    fn inputs(names: &[&str]) -> Vec<InputSpec> {
        names.iter().map(|n| InputSpec { name: (*n).into(), min: 0.0, max: 10.0 }).collect()
    }

    fn outputs(names: &[&str]) -> Vec<OutputSpec> {
        names.iter().map(|n| OutputSpec { name: (*n).into(), offset: 0.0, scale: 10.0 }).collect()
    }

    /// Model-A passes busy cores on as OAA cores; Model-B says expected cores / 10 + expected MB / 10; Model-C is random.
    fn bundle_like(p: &Platform, batch: usize) -> BundleModels {
        let a = Mlp::from_layers(&[1, 4], Output::Linear, &[(&[1.0, 0.5, 0.2, 0.1], &[0.0; 4])]).unwrap();
        let a = Model::new(inputs(&["cpu_usage_cores"]), outputs(&["oaa_cores", "rcliff_cores", "oaa_ways", "rcliff_ways"]), a).unwrap();
        let b = Mlp::from_layers(&[2, 1], Output::Linear, &[(&[0.1, 0.1], &[0.0])]).unwrap();
        let b = Model::new(inputs(&["expected_cores", "expected_cache_mb"]), outputs(&["qos"]), b).unwrap();
        let mut rng = Rng::new(3);
        let actor = Mlp::random(&[3, 8, ACTIONS], Output::Softmax, 0.003, &mut rng);
        let critic = Mlp::random(&[3 + ACTIONS, 8, 1], Output::Linear, 0.003, &mut rng);
        let hyper = Hyper { batch, replay: 10 * batch, ..Hyper::default() };
        let names = inputs(&["cpu_usage_cores", "alloc_cores", "qos"]);
        let c = Agent::from_networks(names, actor.clone(), critic.clone(), actor, critic, hyper).unwrap();
        BundleModels::from_parts(a, b, c, Some(2.0), p).unwrap()
    }

    fn state(busy: Option<f64>, qos: Option<f64>) -> State {
        State {
            features: Features { cpu_usage_cores: busy, alloc_cores: Some(4.0), ..Features::default() },
            qos,
            qos_target_ms: None,
            p99_ms: None,
            achieved_rps: None,
        }
    }

    /// Inputs and outputs go by name: expected cache is ways times MB per way, outputs land in their fields.
    #[test]
    fn inputs_and_outputs_go_by_name() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let m = bundle_like(&p, 8);
        let area = m.area("a", &state(Some(4.0), None)).unwrap();
        // 4 of 10 busy cores: input 0.4; outputs 0.4 x (1, 0.5, 0.2, 0.1) x 10.
        let close = |x: f64, y: f64| (x - y).abs() < 1e-5;
        assert!(close(area.oaa_cores, 4.0) && close(area.rcliff_cores, 2.0), "{area:?}");
        assert!(close(area.oaa_ways.unwrap(), 0.8) && area.oaa_mbps.is_none());
        // 3 cores and 2 ways of 2 MB: 0.1 x 0.3 + 0.1 x 0.4, times 10.
        assert!(close(m.qos("a", &state(Some(4.0), None), 3.0, 2.0).unwrap(), 0.7));
        assert_eq!(m.qos_cap(), 2.0);
    }

    /// Ends go by name, hold the answer and lie within what can be: 0 and the cap, a step and all cores, one way and all. A bundle of before
    /// has no interval and no score.
    #[test]
    fn intervals_hold_the_answer() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let (m, s) = (bundle_like(&p, 8), state(Some(4.0), None));
        assert!(m.qos_interval("a", &s, 3.0, 2.0).is_none() && m.area_interval("a", &s).is_none() && m.strangeness(&s).is_none());
        let with = |a_ends: [f32; 4], b_ends: [f32; 2]| {
            let m = bundle_like(&p, 8);
            let weights = [[1.0, 0.5, 0.2, 0.1].as_slice(), &a_ends].concat();
            let a = Mlp::from_layers(&[1, 8], Output::Linear, &[(&weights, &[0.0; 8])]).unwrap();
            let names = ["oaa_cores", "rcliff_cores", "oaa_ways", "rcliff_ways", "oaa_cores_lower", "oaa_cores_upper"];
            let names = [names.as_slice(), &["oaa_ways_lower", "oaa_ways_upper"]].concat();
            let layer = Mlp::from_layers(&[1, 1], Output::Linear, &[(&[-2.0], &[0.2])]).unwrap();
            let a = Model::new(inputs(&["cpu_usage_cores"]), outputs(&names), a).unwrap().with_strangeness(layer).unwrap();
            let b = Mlp::from_layers(&[1, 3], Output::Linear, &[(&[0.4, b_ends[0], b_ends[1]], &[0.0; 3])]).unwrap();
            let b = Model::new(inputs(&["expected_cores"]), outputs(&["qos", "qos_lower", "qos_upper"]), b).unwrap();
            BundleModels::from_parts(a, b, m.c, Some(2.0), &p).unwrap()
        };
        let is = |found: Interval, lower: f64, upper: f64| {
            assert!((found.lower - lower).abs() < 1e-5 && (found.upper - upper).abs() < 1e-5, "{found:?}, want {lower} to {upper}")
        };
        // 4 of 10 busy cores: 0.4 x weight x 10. Expected 3 of 10 cores: 0.3 x weight x 10, and so is the answer 1.2.
        let m = with([0.5, 1.5, 0.3, 2.0], [0.3, 0.5]);
        let area = m.area_interval("a", &s).unwrap();
        is(area.oaa_cores, 2.0, 6.0);
        is(area.oaa_ways.unwrap(), 1.0, 8.0);
        is(m.qos_interval("a", &s, 3.0, 2.0).unwrap(), 0.9, 1.5);
        assert_eq!(m.qos("a", &s, 3.0, 2.0), with([0.0; 4], [0.0; 2]).qos("a", &s, 3.0, 2.0));
        // z = 0.2 - 2 x 0.4
        assert!((m.strangeness(&s).unwrap() - 0.6).abs() < 1e-6);
        // Ends on the wrong side of the answer give way to it; none leaves the machine or the cap.
        let m = with([2.0, 0.5, -1.0, 9.0], [-0.5, 2.0]);
        let area = m.area_interval("a", &s).unwrap();
        is(area.oaa_cores, 4.0, 4.0);
        is(area.oaa_ways.unwrap(), 1.0, 11.0);
        is(m.qos_interval("a", &s, 3.0, 2.0).unwrap(), 0.0, 2.0);
        // Without what the models are asked with there is nothing.
        let blind = state(None, None);
        assert!(m.area_interval("a", &blind).is_none() && m.strangeness(&blind).is_none());
    }

    /// Asked about one state after another, Model-B never answers with what it heard of the last one.
    #[test]
    fn no_state_is_taken_for_another() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let fresh = || {
            let m = bundle_like(&p, 8);
            let b = Mlp::from_layers(&[3, 1], Output::Linear, &[(&[0.1, 0.1, 0.3], &[0.0])]).unwrap();
            let b = Model::new(inputs(&["expected_cores", "expected_cache_mb", "cpu_usage_cores"]), outputs(&["qos"]), b).unwrap();
            BundleModels::from_parts(m.a, b, m.c, None, &p).unwrap()
        };
        let m = fresh();
        let (a, b, blind) = (state(Some(4.0), None), state(Some(6.0), None), state(None, None));
        let questions = [(a, 3.0), (a, 5.0), (b, 5.0), (a, 2.0), (a, f64::NAN), (a, 4.0), (blind, 4.0), (b, 1.0), (b, 2.0)];
        for (state, cores) in questions {
            assert_eq!(m.qos("x", &state, cores, 2.0), fresh().qos("x", &state, cores, 2.0), "{state:?} {cores}");
        }
        assert!(m.qos("x", &a, 3.0, 2.0) != m.qos("x", &b, 3.0, 2.0) && m.qos("x", &blind, 3.0, 2.0).is_err());
    }

    /// Inputs that carry over are computed of features, target, throughput, platform and the allocation in question; asked again, the
    /// same as asked afresh. Without a latency there is no answer.
    #[test]
    fn inputs_that_carry_over_are_computed() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let names = ["headroom_log", "expected_busy_share", "expected_cores_share", "expected_cache_share", "request_cpu_over_target_log"];
        let fresh = |place: usize| {
            let m = bundle_like(&p, 8);
            let inputs: Vec<InputSpec> = names
                .iter()
                .map(|n| surefoot_learn::relative::find(n).unwrap())
                .map(|r| InputSpec { name: r.name.clone(), min: r.min, max: r.max })
                .collect();
            // Passes one input on, in the units of its range.
            let weights: Vec<f32> = (0..names.len()).map(|k| f32::from(u8::from(k == place))).collect();
            let net = Mlp::from_layers(&[names.len(), 1], Output::Linear, &[(&weights, &[0.0])]).unwrap();
            let (low, high) = (inputs[place].min, inputs[place].max);
            let outputs = vec![OutputSpec { name: "qos".into(), offset: low, scale: high - low }];
            BundleModels::from_parts(m.a, Model::new(inputs, outputs, net).unwrap(), m.c, None, &p).unwrap()
        };
        let mut s = state(Some(4.0), Some(2.0));
        (s.qos_target_ms, s.p99_ms, s.achieved_rps) = (Some(10.0), Some(5.0), Some(500.0));
        // p99 5 ms of 10; 4 busy cores on 5 and then on 8 of 10; 3 and then 6 of 11 ways; 8 ms of CPU a request.
        let wants = [[2.0f64.ln(), 4.0 / 5.0, 0.5, 3.0 / 11.0, 0.8f64.ln()], [2.0f64.ln(), 4.0 / 8.0, 0.8, 6.0 / 11.0, 0.8f64.ln()]];
        for place in 0..names.len() {
            let m = fresh(place);
            for (want, (cores, ways)) in wants.iter().zip([(5.0, 3.0), (8.0, 6.0)]) {
                let got = m.qos("a", &s, cores, ways).unwrap();
                assert!((got - want[place]).abs() < 1e-5, "{}: {got}, want {}", names[place], want[place]);
            }
        }
        s.p99_ms = None;
        assert!(fresh(0).qos("a", &s, 5.0, 3.0).unwrap_err().contains("input `headroom_log` is missing"));
    }

    /// An input beyond what Model-B was taught with is named, also one of the allocation in question.
    #[test]
    fn inputs_outside_are_named() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let m = bundle_like(&p, 8);
        let s = state(Some(4.0), None);
        // Bounds 0 to 10: 11 cores; 6 ways of 2 MB.
        assert_eq!((m.outside(&s, 10.0, 5.0), m.outside(&s, 11.0, 5.0)), (vec![], vec![EXPECTED_CORES.to_string()]));
        assert_eq!(m.outside(&s, 1.0, 6.0), [EXPECTED_CACHE]);
    }

    /// A feature that the host did not measure gives no answer, and the reason names it.
    #[test]
    fn a_missing_feature_is_named() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let mut m = bundle_like(&p, 8);
        assert!(m.area("a", &state(None, None)).unwrap_err().contains("Model-A: input `cpu_usage_cores` is missing"));
        assert!(m.act("a", &state(Some(1.0), None)).unwrap_err().contains("Model-C: input `qos` is missing"));
        let gone = Experience { before: state(Some(1.0), None), action: 0, vector: None, reward: 1.0, after: state(Some(1.0), None) };
        assert!(!m.remember(&gone));
    }

    /// A bundle whose Model-A lacks an output is refused, and the output is named.
    #[test]
    fn a_bundle_without_an_output_is_refused() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let m = bundle_like(&p, 8);
        let short = Model::new(m.a.inputs.clone(), outputs(&["oaa_cores"]), Mlp::zeros(&[1, 1], Output::Linear)).unwrap();
        let refused = BundleModels::from_parts(short, m.b, m.c, None, &p).err().unwrap();
        assert!(refused.contains("`rcliff_cores`"), "{refused}");
    }

    /// In the closed loop the experience pool fills and Model-C learns on line: when the plan is in force, and not while it is waited
    /// for. Where nobody asks for it, the next step learns first and decides the same.
    #[test]
    fn model_c_learns_while_it_runs() {
        let p = Platform::regular("t", 10, 1, 11, 2.0);
        let run = |asked: bool| {
            let mut plant = Plant::new(&p).lc("a", 2.0, 10.0).lc("b", 2.0, 10.0).be("x");
            let mut policy = OsmlPlus::new(&p, Box::new(bundle_like(&p, 16)), Settings::default(), 1);
            let mut plans = vec![];
            for _ in 0..300 {
                plant.tick();
                let before = policy.learning_steps();
                let plan = policy.step(plant.t_ms, &plant.observe());
                assert!(!asked || policy.learning_steps() == before, "{} ms: it learnt before its plan was in force", plant.t_ms);
                plant.apply(&plan);
                plans.push(plan);
                if asked {
                    policy.between();
                }
            }
            policy.between();
            (plans, policy.learning_steps())
        };
        let (plans, steps) = run(true);
        // Two services, every 500 ms for 30 s, less the first 16 experiences: some 50 steps.
        assert!(steps > 20, "{steps}");
        assert_eq!((plans, steps), run(false));
    }
}
