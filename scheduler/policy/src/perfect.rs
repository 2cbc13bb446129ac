//! Models that know the test plant: perfect ones, and wrong or missing ones made from them.

use crate::models::{Area, Experience, Models, State};
use crate::osml_models::{BPoint, BPoints, OsmlModels};
use crate::testing::Plant;
use crate::ModelSet;
use std::cell::RefCell;
use std::rc::Rc;
use surefoot_learn::{dqn, ACTIONS};

/// What a test can read and change while the policy owns the models.
#[derive(Default)]
pub struct Notes {
    pub experiences: Vec<Experience>,
    pub learnt: u64,
    /// Demand in cores now, by service.
    pub demand: Vec<(String, f64)>,
}

#[derive(Clone)]
pub struct Perfect {
    plant: Plant,
    pub notes: Rc<RefCell<Notes>>,
    /// Added to Model-A's OAA and RCliff, cores.
    pub error_cores: f64,
    /// Model-B's answers are multiplied with this.
    pub b_factor: f64,
    /// Model-B says this, whatever it is asked.
    pub b_says: Option<f64>,
    /// Every model answers "no".
    pub mute: bool,
    /// Model-B answers no more.
    pub cap: f64,
}

impl Perfect {
    /// Knows the services of this plant (their demand as it is now; follow changes with `notes.demand`).
    pub fn of(plant: &Plant) -> Self {
        let mut copy = Plant::new(&plant.platform);
        copy.tenants = plant.tenants.clone();
        Perfect { plant: copy, notes: Rc::default(), error_cores: 0.0, b_factor: 1.0, b_says: None, mute: false, cap: f64::INFINITY }
    }

    /// For a policy by its name.
    pub fn set(self) -> ModelSet {
        ModelSet { osml: Some(Box::new(PerfectOsml::of(self.clone()))), plus: Some(Box::new(self)) }
    }

    fn on(&self, service: &str, cores: f64, ways: f64) -> Result<f64, String> {
        if self.mute {
            return Err("input `ipc` is missing".into());
        }
        let mut t = self.plant.tenants.iter().find(|t| t.id == service).ok_or("unknown service")?.clone();
        if let Some((_, d)) = self.notes.borrow().demand.iter().find(|(id, _)| id == service) {
            t.demand = *d;
        }
        Ok(t.qos_on(cores, ways, self.plant.platform.ways() > 0))
    }
}

/// As networks do: no answer of a service of which nothing has been read (since it was moved).
fn heard(s: &State) -> Result<(), String> {
    s.features.ipc.map(|_| ()).ok_or_else(|| "input `ipc` is missing".into())
}

impl Models for Perfect {
    fn area(&self, service: &str, s: &State) -> Result<Area, String> {
        heard(s)?;
        let p = &self.plant.platform;
        let most_ways = p.ways();
        let mut best: Option<(f64, f64, f64)> = None;
        for units in 1..=p.core_units() {
            for ways in most_ways.min(1)..=most_ways {
                let (cores, ways) = (p.cores(units), f64::from(ways));
                if self.on(service, cores, ways)? < 1.0 {
                    continue;
                }
                let price = cores / p.cores(p.core_units()) + ways / f64::from(most_ways.max(1));
                if best.is_none_or(|b| price < b.0) {
                    best = Some((price, cores, ways));
                }
            }
        }
        let (_, cores, ways) = best.unwrap_or((0.0, p.cores(p.core_units()), f64::from(most_ways)));
        Ok(Area {
            rcliff_cores: cores + self.error_cores,
            rcliff_ways: (most_ways > 0).then_some(ways),
            oaa_cores: cores + p.core_step + self.error_cores,
            oaa_ways: (most_ways > 0).then_some(ways + 1.0),
            oaa_mbps: None,
        })
    }

    fn qos(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        heard(s)?;
        Ok(self.b_says.unwrap_or(self.on(service, cores, ways)? * self.b_factor).min(self.cap))
    }

    fn qos_cap(&self) -> f64 {
        self.cap
    }

    fn act(&mut self, _service: &str, s: &State) -> Result<[f32; ACTIONS], String> {
        if self.mute {
            return Err("input `ipc` is missing".into());
        }
        // Cores a little more likely than ways; down when met, up when missed.
        Ok(if s.qos.is_some_and(|q| q >= 1.0) { [0.05, 0.4, 0.05, 0.35, 0.0, 0.0, 0.15] } else { [0.4, 0.05, 0.35, 0.05, 0.1, 0.0, 0.05] })
    }

    fn remember(&mut self, e: &Experience) -> bool {
        self.notes.borrow_mut().experiences.push(*e);
        true
    }

    fn learn(&mut self) -> bool {
        self.notes.borrow_mut().learnt += 1;
        true
    }
}

/// OSML's models: B-points, slowdowns and actions as the plant has them, or as a test wants them.
pub struct PerfectOsml {
    pub on: Perfect,
    /// Model-B says this, whatever it is asked.
    pub b_says: Option<(f64, f64)>,
    /// Model-B' says this.
    pub bp_says: Option<f64>,
    /// Model-C wants this change, wherever it is possible.
    pub c_says: Option<(i32, i32)>,
    /// The OAA needs so much bandwidth, by service, MB/s.
    pub mbps: Vec<(&'static str, f64)>,
    /// Whether Model-A' was asked, and not Model-A.
    pub shadow: Rc<RefCell<Vec<bool>>>,
}

impl PerfectOsml {
    pub fn of(on: Perfect) -> Self {
        PerfectOsml { on, b_says: None, bp_says: None, c_says: None, mbps: vec![], shadow: Rc::default() }
    }

    fn held(s: &State) -> (f64, f64) {
        (s.features.alloc_cores.unwrap_or(0.0), s.features.alloc_ways.unwrap_or(0.0))
    }
}

impl OsmlModels for PerfectOsml {
    fn area(&self, service: &str, s: &State, neighbours: bool) -> Result<Area, String> {
        self.shadow.borrow_mut().push(neighbours);
        let oaa_mbps = self.mbps.iter().find(|m| m.0 == service).map(|m| m.1);
        Ok(Area { oaa_mbps, ..self.on.area(service, s)? })
    }

    fn b_points(&self, service: &str, s: &State, slowdown: f64) -> Result<BPoints, String> {
        if let Some((cores, ways)) = self.b_says {
            return Ok([BPoint { cores, ways }; 3]);
        }
        let (cores, ways) = Self::held(s);
        let mut all = vec![];
        for c in 0..cores as u32 {
            for w in 0..(ways as u32).max(1) {
                let (c, w) = (f64::from(c), f64::from(w));
                if self.on.on(service, cores - c, ways - w)?.min(1.0) >= 1.0 - slowdown {
                    all.push(BPoint { cores: c, ways: w });
                }
            }
        }
        let most = |f: fn(&BPoint) -> f64| all.iter().copied().max_by(|a, b| f(a).total_cmp(&f(b))).unwrap_or_default();
        Ok([most(|b| b.cores + b.ways), most(|b| 100.0 * b.cores + b.ways), most(|b| b.cores + 100.0 * b.ways)])
    }

    fn slowdown(&self, service: &str, s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        let (c, w) = Self::held(s);
        let lost = self.on.on(service, c, w)?.min(1.0) - self.on.on(service, cores, ways)?.min(1.0);
        Ok(self.bp_says.unwrap_or(lost))
    }

    fn choose(&mut self, service: &str, s: &State, possible: &dyn Fn(usize) -> bool) -> Result<Option<usize>, String> {
        let (cores, ways) = Self::held(s);
        let wanted = self.c_says.and_then(|(m, n)| dqn::action(m, n)).filter(|a| possible(*a));
        let mut best = None;
        for a in (0..dqn::ACTIONS).filter(|a| possible(*a)) {
            let (m, n) = dqn::change(a);
            let q = self.on.on(service, cores + f64::from(m), ways + f64::from(n))?;
            // Met with a tenth to spare, on as little as can be; else as near as can be.
            let worth = if q >= 1.1 { 100.0 - f64::from(m + n) } else { q };
            if best.is_none_or(|(w, _)| worth > w) {
                best = Some((worth, a));
            }
        }
        Ok(wanted.or(best.map(|b| b.1)))
    }

    fn worth(&mut self, _service: &str, _s: &State, action: usize) -> Option<f64> {
        Some(action as f64)
    }

    fn latency_cap(&self) -> f64 {
        1000.0
    }

    fn remember(&mut self, e: &Experience) -> bool {
        Models::remember(&mut self.on, e)
    }

    fn learn(&mut self) -> bool {
        Models::learn(&mut self.on)
    }
}
