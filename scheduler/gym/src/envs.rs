//! Many environments in one call, on as many threads as are asked for.

use crate::action::PER_ROW;
use crate::columns::{COLUMNS, SERVER_COLUMNS};
use crate::episode::{Episode, Settings, Shown, TOLD};
use crate::reward::{MARKS, UNKNOWN};
use crate::scenario::Scenario;
use std::sync::Arc;

/// What follows the end of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoreset {
    /// The next step begins a new one, whatever its action.
    NextStep,
    /// Nothing: whoever steps resets.
    Disabled,
}

/// What all environments show: one behind the other in each field.
#[derive(Clone, Debug)]
pub struct Frame {
    pub services: Vec<f32>,
    pub known: Vec<i8>,
    pub server: Vec<f32>,
    pub marks: Vec<f64>,
    pub told: Vec<f64>,
    pub refused: Vec<u8>,
    pub over: Vec<bool>,
    /// Whether the last step was a reset.
    pub began: Vec<bool>,
}

/// Environments with the same settings.
#[derive(Clone, Debug)]
pub struct Envs {
    all: Vec<Episode>,
    settings: Arc<Settings>,
    threads: usize,
    frame: Frame,
}

/// What a step asks of one environment.
#[derive(Clone, Copy)]
enum Asked<'a> {
    Act(Option<&'a [f64]>),
    Begin(Option<u64>, Option<usize>),
    Leave,
}

impl Envs {
    /// # Errors
    /// One line for a setting out of range.
    pub fn new(scenario: &Arc<Scenario>, settings: Settings, count: usize, threads: usize) -> Result<Self, String> {
        settings.check()?;
        if !(1..=65_536).contains(&count) {
            return Err(format!("num_envs: {count} is out of range. Give 1 to 65536"));
        }
        if !(1..=1024).contains(&threads) {
            return Err(format!("threads: {threads} is out of range. Give 1 to 1024"));
        }
        let settings = Arc::new(settings);
        let rows = settings.rows;
        let frame = Frame {
            services: vec![0.0; count * rows * COLUMNS],
            known: vec![0; count * rows * COLUMNS],
            server: vec![0.0; count * SERVER_COLUMNS.len()],
            marks: vec![0.0; count * MARKS],
            told: vec![UNKNOWN; count * rows * TOLD.len()],
            refused: vec![0; count * rows],
            over: vec![true; count],
            began: vec![false; count],
        };
        let all = vec![Episode::new(scenario.clone(), settings.clone()); count];
        Ok(Envs { all, settings, threads: threads.min(count), frame })
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    pub fn env(&self, i: usize) -> &Episode {
        &self.all[i]
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Begin anew where `which` says so: with its seed the first episode of that, else the next one; with `scene` that scene.
    pub fn reset(&mut self, seeds: &[Option<u64>], which: &[bool], scene: Option<usize>) {
        self.each(|i, _| match which.get(i) {
            Some(true) => Asked::Begin(seeds.get(i).copied().flatten(), scene),
            _ => Asked::Leave,
        });
    }

    /// One step of each; `numbers`: their actions, one behind the other. None: they have not the shape of the space.
    pub fn step(&mut self, numbers: Option<&[f64]>, autoreset: Autoreset) {
        let each = self.settings.rows * PER_ROW;
        let numbers = numbers.filter(|n| n.len() == each * self.all.len());
        self.each(|i, over| match autoreset {
            Autoreset::NextStep if over => Asked::Begin(None, None),
            _ => Asked::Act(numbers.map(|n| &n[i * each..(i + 1) * each])),
        });
    }

    fn each<'a>(&mut self, asked: impl Fn(usize, bool) -> Asked<'a> + Sync) {
        let (rows, f) = (self.settings.rows, &mut self.frame);
        let mut jobs: Vec<_> = self
            .all
            .iter_mut()
            .zip(f.services.chunks_mut(rows * COLUMNS))
            .zip(f.known.chunks_mut(rows * COLUMNS))
            .zip(f.server.chunks_mut(SERVER_COLUMNS.len()))
            .zip(f.marks.chunks_mut(MARKS))
            .zip(f.told.chunks_mut(rows * TOLD.len()))
            .zip(f.refused.chunks_mut(rows))
            .zip(f.over.iter_mut())
            .zip(f.began.iter_mut())
            .map(|((((((((env, services), known), server), marks), told), refused), over), began)| {
                (env, Shown { services, known, server, marks, told, refused, over }, began)
            })
            .enumerate()
            .collect();
        let one = |(i, (env, shown, began)): &mut (usize, (&mut Episode, Shown, &mut bool))| {
            **began = false;
            match asked(*i, *shown.over) {
                Asked::Leave => return,
                Asked::Act(numbers) => env.step(numbers, shown.refused),
                Asked::Begin(seed, scene) => {
                    shown.refused.fill(0);
                    env.reset(seed, scene);
                    **began = true;
                }
            }
            env.show(shown);
        };
        if self.threads == 1 {
            jobs.iter_mut().for_each(one);
            return;
        }
        // Threads of a call end with it: a process that forks finds none of them.
        let part = jobs.len().div_ceil(self.threads);
        std::thread::scope(|scope| {
            let mut parts = jobs.chunks_mut(part);
            let own = parts.next();
            for part in parts {
                scope.spawn(|| part.iter_mut().for_each(one));
            }
            own.into_iter().flatten().for_each(one);
        });
    }
}
