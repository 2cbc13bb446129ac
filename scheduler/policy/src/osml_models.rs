//! What OSML asks of its Models A, A', B, B' and C, and the answer of a bundle's networks.
//!
//! Inputs go by name, as in [`crate::models`]; besides those there is `qos_slowdown`, the QoS that may be lost (0.05: 5 %). QoS
//! counts up to 1: a p99 below the target is what was promised.

use crate::books::Amount;
use crate::models::{Area, Experience, State, EXPECTED_CACHE, EXPECTED_CORES};
use std::cell::RefCell;
use surefoot_learn::{Bundle, DqnAgent, Model, OsmlModels as Networks, Scratch};
use surefoot_server::Platform;

/// Model-B's answer: cores (not units) and ways that can be taken away at the slowdown asked about, as predicted (not rounded).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BPoint {
    pub cores: f64,
    /// 0 where the LLC cannot be partitioned.
    pub ways: f64,
}

/// The three trading angles (OSML paper, Sec. 4.2): most of the machine; most cores, then ways; most ways, then cores.
pub type BPoints = [BPoint; 3];

/// The angles' names, in the order of [`BPoints`].
pub const ANGLES: [&str; 3] = ["default", "cores dominated", "ways dominated"];

/// Models A, A', B, B' and C. An Err says in one line why a model has no answer (a feature is missing, ...).
///
/// A service's name is passed along for implementations that know services; the networks do not use it.
pub trait OsmlModels {
    /// Model-A, or its shadow A' for a service that has neighbours.
    fn area(&self, service: &str, s: &State, neighbours: bool) -> Result<Area, String>;

    /// Model-B: what the service can give away, if it may lose so much QoS (0.05: 5 % of its target's).
    fn b_points(&self, service: &str, s: &State, slowdown: f64) -> Result<BPoints, String>;

    /// Model-B's shadow B': QoS lost (0.05: 5 %) on so many cores (not units) and ways.
    fn slowdown(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String>;

    /// Model-C: one of those actions ([`surefoot_learn::dqn::change`]) that `possible` lets through, now and then a random one; None
    /// where none is possible.
    fn choose(&mut self, service: &str, s: &State, possible: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String>;

    /// Model-C's Q of an action, for people to read; None where it cannot say.
    fn worth(&mut self, _service: &str, _s: &State, _action: usize) -> Option<f64> {
        None
    }

    /// Feed what is random: Model-C's exploration, and what it learns from first.
    fn reseed(&mut self, _seed: u64) {}

    /// What the p99 of an overloaded service counts as in Model-C's reward, QoS targets.
    fn latency_cap(&self) -> f64;

    /// Put an experience (`action`: number of one of the 49) into Model-C's pool. False if it could not be used.
    fn remember(&mut self, e: &Experience) -> bool;

    /// One step of learning from the pool. False if the pool is too small, or the step was refused.
    fn learn(&mut self) -> bool;

    /// Steps of learning so far.
    fn steps(&self) -> u64 {
        0
    }
}

/// Where a Model-A has its outputs: OAA and RCliff in cores, in ways, and bandwidth in the OAA.
#[derive(Clone, Copy, Debug)]
struct AreaOutputs([Option<usize>; 5]);

impl AreaOutputs {
    fn of(m: &Model) -> Self {
        AreaOutputs(["oaa_cores", "rcliff_cores", "oaa_ways", "rcliff_ways", "oaa_mbl_mbps"].map(|n| m.output_index(n)))
    }

    fn read(self, y: &[f64]) -> Option<Area> {
        let [oaa_cores, rcliff_cores, oaa_ways, rcliff_ways, oaa_mbps] = self.0.map(|o| y.get(o?).copied());
        Some(Area { oaa_cores: oaa_cores?, rcliff_cores: rcliff_cores?, oaa_ways, rcliff_ways, oaa_mbps })
    }
}

/// A bundle's networks.
pub struct BundleOsml {
    net: Networks,
    mb_per_way: f64,
    a: AreaOutputs,
    ap: AreaOutputs,
    /// Cores and ways of each angle.
    b: [[Option<usize>; 2]; 3],
    bp: usize,
    scratch: RefCell<Scratch>,
}

impl BundleOsml {
    /// None where the bundle has none of OSML's models.
    ///
    /// # Errors
    /// One line, where a model lacks an output that every platform has.
    pub fn new(bundle: &Bundle, platform: &Platform) -> Result<Option<Self>, String> {
        bundle.osml.clone().map(|net| Self::from_networks(net, platform)).transpose()
    }

    /// # Errors
    /// As [`BundleOsml::new`].
    pub fn from_networks(net: Networks, platform: &Platform) -> Result<Self, String> {
        const B: [[&str; 2]; 3] = [
            ["default_cores", "default_ways"],
            ["cores_dominated_cores", "cores_dominated_ways"],
            ["cache_dominated_cores", "cache_dominated_ways"],
        ];
        let area = ["oaa_cores", "rcliff_cores", "oaa_ways", "rcliff_ways"];
        let wanted =
            [("A", &net.a, &area[..]), ("A'", &net.ap, &area), ("B", &net.b, B.as_flattened()), ("B'", &net.bp, &["qos_slowdown"])];
        for (model, m, names) in wanted {
            let needed = names.iter().filter(|n| platform.ways() > 0 || !n.ends_with("_ways"));
            if let Some(name) = needed.into_iter().find(|n| m.output_index(n).is_none()) {
                return Err(format!(
                    "bundle: OSML's Model-{model} has no output `{name}`. Build the bundle again with this version of surefoot"
                ));
            }
        }
        Ok(BundleOsml {
            mb_per_way: platform.mb_per_way(),
            a: AreaOutputs::of(&net.a),
            ap: AreaOutputs::of(&net.ap),
            b: B.map(|pair| pair.map(|n| net.b.output_index(n))),
            bp: net.bp.output_index("qos_slowdown").unwrap_or_default(),
            net,
            scratch: RefCell::default(),
        })
    }

    /// Model-C as it has become.
    pub fn agent(&self) -> &DqnAgent {
        &self.net.c
    }

    pub fn agent_mut(&mut self) -> &mut DqnAgent {
        &mut self.net.c
    }
}

impl OsmlModels for BundleOsml {
    fn area(&self, _service: &str, s: &State, neighbours: bool) -> Result<Area, String> {
        let (name, model, outputs) = match neighbours {
            true => ("Model-A'", &self.net.ap, self.ap),
            false => ("Model-A", &self.net.a, self.a),
        };
        let mut scratch = self.scratch.borrow_mut();
        let y = model.predict_by(|n| s.get(n), &mut scratch).map_err(|e| format!("{name}: {e}"))?;
        outputs.read(y).ok_or_else(|| format!("{name}: no output"))
    }

    fn b_points(&self, _service: &str, s: &State, slowdown: f64) -> Result<BPoints, String> {
        let value = |n: &str| if n == "qos_slowdown" { Some(slowdown) } else { s.get(n) };
        let mut scratch = self.scratch.borrow_mut();
        let y = self.net.b.predict_by(value, &mut scratch).map_err(|e| format!("Model-B: {e}"))?;
        let at = |o: Option<usize>| o.and_then(|o| y.get(o)).copied().unwrap_or(0.0);
        Ok(self.b.map(|[cores, ways]| BPoint { cores: at(cores), ways: at(ways) }))
    }

    fn slowdown(&self, _service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        let value = |n: &str| match n {
            EXPECTED_CORES => Some(cores),
            EXPECTED_CACHE => Some(ways * self.mb_per_way),
            _ => s.get(n),
        };
        let mut scratch = self.scratch.borrow_mut();
        let y = self.net.bp.predict_by(value, &mut scratch).map_err(|e| format!("Model-B': {e}"))?;
        y.get(self.bp).copied().ok_or_else(|| "Model-B': no output".into())
    }

    fn choose(&mut self, _service: &str, s: &State, possible: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String> {
        let state = self.net.c.state_by(|n| s.get(n)).map_err(|e| format!("Model-C: {e}"))?;
        Ok(self.net.c.choose(&state, possible))
    }

    fn worth(&mut self, _service: &str, s: &State, action: usize) -> Option<f64> {
        let state = self.net.c.state_by(|n| s.get(n)).ok()?;
        self.net.c.q_values(&state).get(action).map(|q| f64::from(*q))
    }

    fn reseed(&mut self, seed: u64) {
        self.net.c.reseed(seed);
    }

    fn latency_cap(&self) -> f64 {
        self.net.latency_cap
    }

    fn remember(&mut self, e: &Experience) -> bool {
        let state = |s: &State| self.net.c.state_by(|n| s.get(n));
        let (Ok(before), Ok(after)) = (state(&e.before), state(&e.after)) else { return false };
        self.net.c.remember(&before, &[e.action as f32], e.reward as f32, &after)
    }

    fn learn(&mut self) -> bool {
        // A refused step leaves no trace; the next one draws another batch.
        matches!(self.net.c.learn_step(), Ok(Some(_)))
    }

    fn steps(&self) -> u64 {
        self.net.c.steps()
    }
}

impl BPoint {
    /// Whole units and ways that this allows to take.
    pub fn amount(self, p: &Platform) -> Amount {
        let whole = |x: f64| if x.is_finite() { (x + 0.3).floor().max(0.0) as u32 } else { 0 };
        Amount::new(whole(self.cores / p.core_step), if p.ways() > 0 { whole(self.ways) } else { 0 })
    }
}
