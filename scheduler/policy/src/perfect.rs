//! Models that know the test plant: perfect ones, and wrong or missing ones made from them.

use crate::models::{Area, Experience, ModelSet, Models, State};
use crate::testing::Plant;
use std::cell::RefCell;
use std::rc::Rc;
use surefoot_learn::ACTIONS;

/// What a test can read and change while the policy owns the models.
#[derive(Default)]
pub struct Notes {
    pub experiences: Vec<Experience>,
    pub learnt: u64,
    /// Demand in cores now, by service.
    pub demand: Vec<(String, f64)>,
}

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
}

impl Perfect {
    /// Knows the services of this plant (their demand as it is now; follow changes with `notes.demand`).
    pub fn of(plant: &Plant) -> Self {
        let mut copy = Plant::new(&plant.platform);
        copy.tenants = plant.tenants.clone();
        Perfect { plant: copy, notes: Rc::default(), error_cores: 0.0, b_factor: 1.0, b_says: None, mute: false }
    }

    /// For a policy by its name.
    pub fn set(self) -> ModelSet {
        ModelSet { plus: Some(Box::new(self)), osml: None }
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

impl Models for Perfect {
    fn area(&self, service: &str, _s: &State) -> Result<Area, String> {
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

    fn qos(&self, service: &str, _s: &State, cores: f64, ways: f64) -> Result<f64, String> {
        Ok(self.b_says.unwrap_or(self.on(service, cores, ways)? * self.b_factor))
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
