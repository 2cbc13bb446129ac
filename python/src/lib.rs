//! `surefoot_gym._native`: environments behind one object, which fills arrays that Python made.
//!
//! Time passes without the interpreter's lock. Arrays are filled and never kept, so none that was handed out changes later.

#![forbid(unsafe_code)]

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use surefoot_gym::{action, columns, episode, reward, scenario};
use surefoot_gym::{Action, Autoreset, Envs, Refused, Scenario, Settings};

fn bad(e: String) -> PyErr {
    PyValueError::new_err(e)
}

/// Environments with one scenario and the same settings.
#[pyclass(module = "surefoot_gym._native")]
#[derive(Clone)]
struct Servers {
    envs: Envs,
    scenes: usize,
}

/// Arrays that a call fills, in the order of `surefoot_gym.frame.Frame`.
#[derive(FromPyObject)]
struct Arrays(PyBuffer<f32>, PyBuffer<i8>, PyBuffer<f32>, PyBuffer<f64>, PyBuffer<f64>, PyBuffer<u8>, PyBuffer<u8>, PyBuffer<u8>);

/// Scene, platform, ids of services and jobs, seed of the run.
type Told = (String, String, Vec<String>, u64);

fn fill<T: Element>(py: Python<'_>, to: &PyBuffer<T>, from: &[T]) -> PyResult<()> {
    to.copy_from_slice(py, from)
}

#[pymethods]
impl Servers {
    /// `scenario`, `platform` and `profiles` as `surefoot_gym.make_scenario` has them; `weights`: of the reward's parts.
    #[new]
    #[pyo3(signature = (scenario, *, platform, profiles, count, threads, rows, step_ms, shares, weights))]
    #[allow(clippy::too_many_arguments, reason = "one keyword each in Python")]
    fn new(
        py: Python<'_>,
        scenario: String,
        platform: Option<String>,
        profiles: Option<PathBuf>,
        count: usize,
        threads: usize,
        rows: usize,
        step_ms: u64,
        shares: bool,
        weights: Vec<(String, f64)>,
    ) -> PyResult<Self> {
        let weights = reward::weights(weights.iter().map(|(name, w)| (name.as_str(), *w))).map_err(bad)?;
        let action = if shares { Action::Shares } else { Action::Steps };
        let settings = Settings { rows, step_ms, action, weights };
        py.detach(|| {
            let scenario = Arc::new(Scenario::open(&scenario, platform.as_deref(), profiles.as_deref())?);
            let scenes = scenario.len();
            Ok(Servers { envs: Envs::new(&scenario, settings, count, threads)?, scenes })
        })
        .map_err(bad)
    }

    /// Workloads that an episode may be of.
    #[getter]
    fn scenes(&self) -> usize {
        self.scenes
    }

    /// Begin anew where `which` says so: with its seed the first episode of that, else the next one; with `scene` that scene.
    fn reset(&mut self, py: Python<'_>, seeds: Vec<Option<u64>>, which: Vec<bool>, scene: Option<usize>) -> PyResult<()> {
        if let Some(scene) = scene.filter(|s| *s >= self.scenes) {
            return Err(PyIndexError::new_err(format!("scene {scene} of {}. Give 0 to {}", self.scenes, self.scenes - 1)));
        }
        py.detach(|| self.envs.reset(&seeds, &which, scene));
        Ok(())
    }

    /// One step of each environment. `numbers`: float64, one action behind the other; None: they have not the shape of the space.
    fn step(&mut self, py: Python<'_>, numbers: Option<PyBuffer<f64>>, autoreset: bool) -> PyResult<()> {
        let numbers = numbers.map(|n| n.to_vec(py)).transpose()?;
        let after = if autoreset { Autoreset::NextStep } else { Autoreset::Disabled };
        py.detach(|| self.envs.step(numbers.as_deref(), after));
        Ok(())
    }

    /// Write what all environments show.
    fn show(&self, py: Python<'_>, to: Arrays) -> PyResult<()> {
        let f = self.envs.frame();
        let bytes = |all: &[bool]| all.iter().map(|x| u8::from(*x)).collect::<Vec<u8>>();
        fill(py, &to.0, &f.services)?;
        fill(py, &to.1, &f.known)?;
        fill(py, &to.2, &f.server)?;
        fill(py, &to.3, &f.marks)?;
        fill(py, &to.4, &f.told)?;
        fill(py, &to.5, &f.refused)?;
        fill(py, &to.6, &bytes(&f.over))?;
        fill(py, &to.7, &bytes(&f.began))
    }

    /// Of the episode of one environment: scene, platform, ids of its services and jobs, seed of its run.
    fn scene(&self, env: usize) -> PyResult<Option<Told>> {
        self.known(env)?;
        let e = self.envs.env(env);
        let of = |s: &Arc<surefoot_gym::Scene>| (s.name.clone(), s.platform.name.clone(), s.ids.clone(), e.run_seed().unwrap_or(0));
        Ok(e.scene().map(of))
    }

    /// Why the episode of an environment cannot be run.
    fn error(&self, env: usize) -> PyResult<Option<String>> {
        self.known(env)?;
        Ok(self.envs.env(env).error().map(Into::into))
    }

    /// What a policy makes of the episode of one environment: the marks of each step, one step behind the other.
    fn follow(&self, py: Python<'_>, env: usize, policy: String) -> PyResult<Vec<f64>> {
        self.known(env)?;
        let all = py.detach(|| self.envs.env(env).follow(&policy)).map_err(bad)?;
        Ok(all.into_iter().flatten().collect())
    }

    /// The same environments once more, which go their own way from here.
    fn fork(&self) -> Self {
        self.clone()
    }
}

impl Servers {
    fn known(&self, env: usize) -> PyResult<()> {
        let count = self.envs.frame().over.len();
        if env < count {
            return Ok(());
        }
        Err(PyIndexError::new_err(format!("environment {env} of {count}. Give 0 to {}", count - 1)))
    }
}

/// One agent on a node: rows and actions as in an environment, of observations that come in questions of surefootd.
#[pyclass(module = "surefoot_gym._native")]
struct Seat {
    seat: surefoot_gym::Seat,
}

/// Ids with core units, ways and bandwidth; ids of the crowd; bandwidth of the BE jobs.
type Holds = (Vec<surefoot_gym::seat::Held>, Vec<String>, u8);

#[pymethods]
impl Seat {
    /// `platform`: JSON, as a node greets with it.
    #[new]
    fn new(platform: &str, rows: usize, shares: bool) -> PyResult<Self> {
        let platform = serde_json::from_str(platform).map_err(|e| bad(format!("platform: {e}")))?;
        let action = if shares { Action::Shares } else { Action::Steps };
        Ok(Seat { seat: surefoot_gym::Seat::new(&platform, rows, action).map_err(bad)? })
    }

    /// Look at an observation (JSON, `seen` of a question); whether somebody has come or gone.
    fn look(&mut self, seen: &str) -> PyResult<bool> {
        let seen = serde_json::from_str(seen).map_err(|e| bad(format!("seen: {e}")))?;
        Ok(self.seat.look(seen))
    }

    /// Write what is seen.
    fn show(&self, py: Python<'_>, to: (PyBuffer<f32>, PyBuffer<i8>, PyBuffer<f32>)) -> PyResult<()> {
        let rows = self.seat.rows().len();
        let (mut services, mut known) = (vec![0.0; rows * columns::COLUMNS], vec![0; rows * columns::COLUMNS]);
        let mut server = vec![0.0; columns::SERVER_COLUMNS.len()];
        self.seat.show(&mut services, &mut known, &mut server);
        fill(py, &to.0, &services)?;
        fill(py, &to.1, &known)?;
        fill(py, &to.2, &server)
    }

    /// Enter an action; what became of each row.
    fn act(&mut self, py: Python<'_>, numbers: Option<PyBuffer<f64>>) -> PyResult<Vec<u8>> {
        let numbers = numbers.map(|n| n.to_vec(py)).transpose()?;
        Ok(self.seat.act(numbers.as_deref().unwrap_or_default()))
    }

    /// What is to be held now.
    fn holds(&self) -> Holds {
        self.seat.holds()
    }
}

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::Seat;
    #[pymodule_export]
    use super::Servers;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("PLANT", surefoot_vserver::EDITION)?;
        m.add("WORLDS", surefoot_vserver::world::EDITION)?;
        m.add("COLUMNS", columns::names())?;
        m.add("SERVER_COLUMNS", columns::SERVER_COLUMNS.to_vec())?;
        m.add("MARKS", episode::mark_names())?;
        m.add("PARTS", reward::PARTS.to_vec())?;
        m.add("TOLD", episode::TOLD.to_vec())?;
        m.add("REFUSED", Refused::ALL.map(Refused::as_str).to_vec())?;
        m.add("UNKNOWN", surefoot_gym::UNKNOWN)?;
        m.add("POLICIES", surefoot_gym::policies())?;
        m.add("PER_ROW", action::PER_ROW)?;
        m.add("HIGHEST_STEPS", Action::Steps.highest().to_vec())?;
        m.add("SETS", scenario::sets())?;
        let rewards = reward::NAMED.map(|(name, parts)| (name, parts.to_vec()));
        m.add("REWARDS", rewards.to_vec())
    }
}
