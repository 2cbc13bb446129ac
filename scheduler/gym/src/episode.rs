//! One environment: a scene of its scenario on a virtual server, from the start of the workload to its end, over and over.

use crate::action::{admit, Action, Refused, PER_ROW};
use crate::columns::{Scale, COLUMNS, SERVER_COLUMNS};
use crate::reward::{Step, Weights, BESIDE, MARKS, UNKNOWN};
use crate::scenario::{Scenario, Scene};
use std::sync::Arc;
use surefoot_policy::books::Books;
use surefoot_policy::{by_name, ModelSet};
use surefoot_server::window::Tells;
use surefoot_server::{Amount, Observation, Plan, Server, ServiceId, Tick};
use surefoot_vserver::math::mix64;
use surefoot_vserver::VirtualServer;
use surefoot_workload::judge::{marks, throughput};
use surefoot_workload::load::Loads;

/// Numbers of each row that are told beside the observation: what a judge knows, in units.
pub const TOLD: [&str; 8] = ["p99_ms", "qos_target_ms", "violation", "load", "cores", "ways", "mba_pct", "throughput"];
/// How often a policy of ours decides, ms: as eval asks it.
const TICK_MS: u64 = 100;
/// Seeds that episodes draw for their runs have so many bits: any reader of numbers can keep them.
const SEED_BITS: u32 = 53;

/// What is the same in every episode.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rows of observations and actions.
    pub rows: usize,
    /// Time between two decisions, ms.
    pub step_ms: u64,
    pub action: Action,
    pub weights: Weights,
}

impl Settings {
    /// # Errors
    /// One line for a number out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.rows) {
            return Err(format!("max_services: {} is out of range. Give 1 to 64", self.rows));
        }
        if !(100..=10_000).contains(&self.step_ms) || !self.step_ms.is_multiple_of(100) {
            return Err(format!("step_ms: {} is out of range. Give 100 to 10000, in steps of 100", self.step_ms));
        }
        Ok(())
    }
}

/// Where one environment writes what it shows. Every slice is written whole.
pub struct Shown<'a> {
    /// `rows` x [`COLUMNS`].
    pub services: &'a mut [f32],
    pub known: &'a mut [i8],
    /// [`SERVER_COLUMNS`].
    pub server: &'a mut [f32],
    /// [`MARKS`].
    pub marks: &'a mut [f64],
    /// `rows` x [`TOLD`]; [`UNKNOWN`] where there is none.
    pub told: &'a mut [f64],
    /// `rows`: [`Refused`].
    pub refused: &'a mut [u8],
    /// Whether the workload has ended.
    pub over: &'a mut bool,
}

/// An episode that runs.
#[derive(Clone, Debug)]
struct Run {
    scene: Arc<Scene>,
    seed: u64,
    scale: Scale,
    server: VirtualServer,
    loads: Loads,
    books: Books,
    seen: Observation,
}

/// An environment.
#[derive(Clone, Debug)]
pub struct Episode {
    scenario: Arc<Scenario>,
    settings: Arc<Settings>,
    seed: u64,
    /// Episodes since it was seeded.
    count: u64,
    run: Result<Run, String>,
    last: Step,
}

impl Episode {
    /// It shows nothing before it was reset.
    pub fn new(scenario: Arc<Scenario>, settings: Arc<Settings>) -> Self {
        Episode { scenario, settings, seed: 0, count: 0, run: Err("not reset yet. Call reset()".into()), last: Step::default() }
    }

    /// Begin anew: with `seed` the first episode of that seed, else the next one of the seed before.
    ///
    /// Which scene comes and what happens in it follow from the seed and the number of the episode alone. The first is the run that
    /// `surefootd eval` makes of this seed.
    /// `scene`: the number of the scene, in place of a drawn one.
    pub fn reset(&mut self, seed: Option<u64>, scene: Option<usize>) {
        if let Some(seed) = seed {
            (self.seed, self.count) = (seed, 0);
        }
        let drawn = mix64(&[self.seed, self.count]);
        let run_seed = if self.count == 0 { self.seed } else { drawn >> (64 - SEED_BITS) };
        let scene = scene.unwrap_or((mix64(&[drawn, 1]) % self.scenario.len().max(1) as u64) as usize);
        self.count += 1;
        self.last = Step::default();
        self.run = self.scenario.scene(scene).and_then(|scene| Run::begin(scene, self.settings.rows, run_seed));
    }

    /// Carry out an action (`rows` x [`PER_ROW`] numbers; None: one that has not the shape of the space), and let a step's time pass.
    pub fn step(&mut self, numbers: Option<&[f64]>, refused: &mut [u8]) {
        refused.fill(0);
        let Ok(run) = &mut self.run else { return };
        let before: Vec<Option<(Option<f64>, Amount)>> = run.scene.ids.iter().map(|id| run.judged(id)).collect();
        match numbers.filter(|n| n.len() == self.settings.rows * PER_ROW) {
            Some(numbers) => run.act(self.settings.action, numbers, refused),
            None => refused.fill(Refused::Malformed as u8),
        }
        // A newcomer's first holding is the environment's doing, and no move of the agent's.
        let decided: Vec<Option<Amount>> = run.scene.ids.iter().map(|id| run.books.slot(id).map(|s| s.own)).collect();
        run.server.advance(Tick { ms: self.settings.step_ms });
        run.look();
        let mut step = Step::default();
        let total = run.books.total();
        let mut moved = 0.0;
        for ((id, before), decided) in run.scene.ids.iter().zip(before).zip(decided) {
            let (Some((was_ms, from)), Some(to)) = (before, decided) else { continue };
            let is_ms = run.judged(id).and_then(|(ms, _)| ms);
            step.of_service(was_ms.zip(is_ms), from, to);
            let share = |x: u32, y: u32, of: u32| f64::from(x.abs_diff(y)) / f64::from(of.max(1));
            moved += (share(from.cores, to.cores, total.cores) + share(from.ways, to.ways, total.ways)) / 2.0;
        }
        step.moved = moved;
        self.last = step;
    }

    /// What a policy of ours makes of the episode, from its start to its end: the marks at the end of each step. It decides as often as on a
    /// node. Parts that are of an agent's action are [`UNKNOWN`].
    ///
    /// # Errors
    /// One line: the episode could not be run, the policy is unknown, or it needs models.
    pub fn follow(&self, policy: &str) -> Result<Vec<[f64; MARKS]>, String> {
        let run = self.run.as_ref().map_err(String::clone)?;
        let (scene, mut all) = (&run.scene, vec![]);
        let mut policy = by_name(policy, &scene.platform, ModelSet::default(), run.seed)?;
        let mut server = scene.site.server(run.seed);
        let loads = scene.workload.announce(&mut server, &scene.site.profiles, run.seed).map_err(|e| e.to_string())?;
        let step = Step { held: (UNKNOWN, UNKNOWN), moved: UNKNOWN, model_c: UNKNOWN };
        while server.now_ms() < scene.workload.duration_ms {
            let plan = policy.step(server.now_ms(), &server.observe());
            // A plan that is refused changes nothing.
            let _ = if plan.is_empty() { Ok(Default::default()) } else { server.apply(&plan) };
            policy.between();
            server.advance(Tick { ms: TICK_MS });
            if server.now_ms().is_multiple_of(self.settings.step_ms) {
                let seen = server.observe();
                all.push(step.marks(&seen, &marks(&seen, &loads, &scene.alone), &self.settings.weights));
            }
        }
        Ok(all)
    }

    /// Whether the workload has ended, or could not be run.
    pub fn is_over(&self) -> bool {
        self.run.as_ref().map_or(true, Run::is_over)
    }

    /// Why the episode could not be run; None where it could.
    pub fn error(&self) -> Option<&str> {
        self.run.as_ref().err().map(String::as_str)
    }

    pub fn scene(&self) -> Option<&Arc<Scene>> {
        self.run.as_ref().ok().map(|r| &r.scene)
    }

    /// Of the run: another environment, or `surefootd eval`, makes the same of it.
    pub fn run_seed(&self) -> Option<u64> {
        self.run.as_ref().ok().map(|r| r.seed)
    }

    /// What is seen now, as policies see it.
    pub fn seen(&self) -> Option<&Observation> {
        self.run.as_ref().ok().map(|r| &r.seen)
    }

    /// Write what is seen now; `refused` is left as [`Episode::step`] wrote it.
    pub fn show(&self, to: &mut Shown) {
        to.services.fill(0.0);
        to.known.fill(0);
        to.server.fill(0.0);
        to.told.fill(UNKNOWN);
        to.marks.fill(0.0);
        *to.over = self.is_over();
        let Ok(run) = &self.run else { return };
        let mut step = self.last;
        let total = run.books.total();
        let share = |x: u32, of: u32| f64::from(x) / f64::from(of.max(1));
        for (i, id) in run.scene.ids.iter().enumerate() {
            let Some(s) = run.seen.get(id) else { continue };
            let lc = run.scene.workload.lc.get(i);
            let work = if s.is_lc() { None } else { throughput(s.instr_per_s, run.scene.alone.get(id)) };
            let (from, until) = (i * COLUMNS, (i + 1) * COLUMNS);
            run.scale.row(s, lc.map(|l| l.max_load_rps), work, &mut to.services[from..until], &mut to.known[from..until]);
            let or = |x: Option<f64>| x.filter(|x| x.is_finite()).unwrap_or(UNKNOWN);
            let told = [
                or(s.window.filter(|_| !s.latency_unknown()).map(|w| w.p99_ms)),
                or(run.scene.targets_ms[i]),
                or(s.qos_met().map(|met| f64::from(u8::from(!met)))),
                or(run.loads.load_at(id, run.seen.t_ms)),
                s.allocation.cores(),
                s.allocation.n_ways(),
                f64::from(s.allocation.mba_pct),
                or(work),
            ];
            to.told[i * TOLD.len()..(i + 1) * TOLD.len()].copy_from_slice(&told);
            if let Some(slot) = run.books.slot(id) {
                step.held.0 += share(slot.own.cores, total.cores);
                step.held.1 += share(slot.own.ways, total.ways);
            }
        }
        let free = run.books.free();
        to.server.copy_from_slice(&[share(free.cores, total.cores) as f32, share(free.ways, total.ways) as f32]);
        const { assert!(SERVER_COLUMNS.len() == 2) };
        let now = marks(&run.seen, &run.loads, &run.scene.alone);
        to.marks.copy_from_slice(&step.marks(&run.seen, &now, &self.settings.weights));
    }
}

impl Run {
    fn begin(scene: Arc<Scene>, rows: usize, seed: u64) -> Result<Self, String> {
        if scene.ids.len() > rows {
            return Err(format!(
                "{}: {} services and jobs, but max_services is {rows}. Give {}",
                scene.name,
                scene.ids.len(),
                scene.ids.len()
            ));
        }
        let mut server = scene.site.server(seed).telling(Tells::P99);
        let loads = scene.workload.announce(&mut server, &scene.site.profiles, seed).map_err(|e| e.to_string())?;
        let (books, scale) = (Books::new(&scene.platform), Scale::of(&scene.platform));
        let mut run = Run { scene, seed, scale, server, loads, books, seen: Observation::default() };
        run.look();
        Ok(run)
    }

    fn is_over(&self) -> bool {
        self.server.now_ms() >= self.scene.workload.duration_ms
    }

    /// p99 and holding of an LC service that has a slot.
    fn judged(&self, id: &str) -> Option<(Option<f64>, Amount)> {
        let own = self.books.slot(id)?.own;
        let s = self.seen.get(id)?;
        Some((s.window.filter(|_| !s.latency_unknown()).map(|w| w.p99_ms), own))
    }

    /// See what has become of the server, and let newcomers in.
    fn look(&mut self) {
        self.seen = self.server.observe();
        let news = self.books.follow(&self.seen);
        let holders = self.seen.lc().count() as u32 + u32::from(self.books.has_be());
        for id in &news.lc_arrived {
            admit(&mut self.books, id, holders);
        }
        let changed = !(news.lc_arrived.is_empty() && news.be_arrived.is_empty() && news.left.is_empty());
        if changed && self.put_in_force() {
            self.seen = self.server.observe();
        }
    }

    fn act(&mut self, action: Action, numbers: &[f64], refused: &mut [u8]) {
        let before = self.books.clone();
        let rows: Vec<Option<(&ServiceId, bool)>> = self.scene.ids.iter().map(|id| self.seen.get(id).map(|s| (&s.id, s.is_lc()))).collect();
        if action.enter(&mut self.books, &rows, numbers, refused) && !self.put_in_force() {
            self.books = before;
            refused.fill(Refused::ByServer as u8);
        }
    }

    fn put_in_force(&mut self) -> bool {
        let plan: Result<Plan, String> = self.books.plan(&self.seen);
        plan.is_ok_and(|plan| plan.is_empty() || self.server.apply(&plan).is_ok())
    }
}

/// Name of each mark, in order.
pub fn mark_names() -> Vec<&'static str> {
    let all: Vec<&str> = BESIDE.into_iter().chain(crate::reward::PARTS).collect();
    debug_assert_eq!(all.len(), MARKS);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window that tells p99 alone tells it to the last bit as one that tells all, with the same count; it has no other percentile.
    #[test]
    fn p99_alone_is_the_same_p99() {
        let scenario = Scenario::open("demo/cache-pressure", None, None).unwrap();
        let scene = scenario.scene(0).unwrap();
        let run = |tells| {
            let mut server = scene.site.server(3).telling(tells);
            scene.workload.announce(&mut server, &scene.site.profiles, 3).unwrap();
            let mut step = || {
                server.advance(Tick { ms: 100 });
                server.observe().lc().filter_map(|s| s.window).map(|w| (w.p99_ms.to_bits(), w.count, w.p50_ms.is_nan())).collect::<Vec<_>>()
            };
            (0..80).flat_map(|_| step()).collect::<Vec<_>>()
        };
        let (all, alone) = (run(Tells::All), run(Tells::P99));
        assert!(all.len() > 100 && all.iter().all(|(_, _, nan)| !nan) && alone.iter().all(|(_, _, nan)| *nan));
        assert!(all.iter().zip(&alone).all(|(a, b)| (a.0, a.1) == (b.0, b.1)));
    }

    /// A policy of ours is followed through the same run, from its start, whatever was done in it since.
    #[test]
    fn a_policy_is_followed_from_the_start() {
        let scenario = Arc::new(Scenario::open("demo/two-lc-steady", None, None).unwrap());
        let weights = crate::reward::named("emu").unwrap();
        let settings = Arc::new(Settings { rows: 10, step_ms: 1000, action: Action::Steps, weights });
        let mut env = Episode::new(scenario, settings);
        assert!(env.follow("parties").unwrap_err().contains("reset()"));
        env.reset(Some(1), None);
        let first = env.follow("parties").unwrap();
        env.step(None, &mut [0; 10]);
        assert_eq!(first, env.follow("parties").unwrap());
        assert_eq!(first.len(), 60);
        assert!(env.follow("surefoot").is_err() && env.follow("partis").unwrap_err().contains("Did you mean"));
        assert!(first.iter().all(|marks| marks[0].is_finite() && marks[0] >= 0.0));
    }
}
