//! What a service shows at one tick: a line of a time line and of an event log.

use surefoot_server::held::Values;
use surefoot_server::{Held, Observation};

/// One service at one tick.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(into = "Short", from = "Short")]
pub struct Moment {
    pub t_ms: i64,
    pub service: String,
    pub is_lc: bool,
    pub p99_ms: Option<f64>,
    pub qos_target_ms: Option<f64>,
    pub load: Option<f64>,
    /// What it holds, in the order of [`surefoot_server::QUANTITIES`].
    pub held: Values,
    pub instr_per_s: Option<f64>,
}

/// A moment without the names of its fields: a journal has many of them.
type Short = (i64, String, bool, Option<f64>, Option<f64>, Option<f64>, Values, Option<f64>);

impl From<Moment> for Short {
    fn from(m: Moment) -> Self {
        (m.t_ms, m.service, m.is_lc, m.p99_ms, m.qos_target_ms, m.load, m.held, m.instr_per_s)
    }
}

impl From<Short> for Moment {
    fn from((t_ms, service, is_lc, p99_ms, qos_target_ms, load, held, instr_per_s): Short) -> Self {
        Moment { t_ms, service, is_lc, p99_ms, qos_target_ms, load, held, instr_per_s }
    }
}

/// What every service shows in an observation.
pub fn moments<'a>(seen: &'a Observation, load: impl Fn(&str) -> Option<f64> + 'a) -> impl Iterator<Item = Moment> + 'a {
    seen.services.iter().map(move |s| Moment {
        t_ms: seen.t_ms as i64,
        service: s.id.clone(),
        is_lc: s.is_lc(),
        p99_ms: s.window.map(|w| w.p99_ms),
        qos_target_ms: s.qos_target_ms(),
        load: load(&s.id),
        held: Held::of(&s.allocation).values(),
        instr_per_s: s.instr_per_s,
    })
}
