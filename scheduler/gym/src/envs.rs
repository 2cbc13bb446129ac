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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::reward::named;

    fn envs(count: usize, threads: usize) -> Envs {
        let scenario = Arc::new(Scenario::open("tune:3..4", None, None).unwrap());
        let settings = Settings { rows: 10, step_ms: 1000, action: Action::Steps, weights: named("safe").unwrap() };
        Envs::new(&scenario, settings, count, threads).unwrap()
    }

    /// Choices that follow from `n` alone.
    fn actions(n: usize, count: usize) -> Vec<f64> {
        let choice = |i: usize| ((i / PER_ROW + i % PER_ROW * 2 + n) % 7) as f64;
        (0..count * 10 * PER_ROW).map(|i| choice(i).min(Action::Steps.highest()[i % PER_ROW])).collect()
    }

    /// Whether one thread or three compute a step, and however many others there are, an environment goes the way of its seed.
    #[test]
    fn neither_threads_nor_neighbours_have_a_part_in_it() {
        let (mut many, mut threaded) = (envs(4, 1), envs(4, 3));
        let mut alone = envs(1, 1);
        let seeds = [Some(5), Some(6), Some(7), Some(8)];
        many.reset(&seeds, &[true; 4], None);
        threaded.reset(&seeds, &[true; 4], None);
        alone.reset(&seeds[2..3], &[true], None);
        for n in 0..130 {
            let all = actions(n, 4);
            many.step(Some(&all), Autoreset::NextStep);
            threaded.step(Some(&all), Autoreset::NextStep);
            let each = all.len() / 4;
            alone.step(Some(&all[2 * each..3 * each]), Autoreset::NextStep);
            let (a, b, c) = (many.frame(), threaded.frame(), alone.frame());
            assert_eq!((&a.services, &a.marks, &a.over, &a.refused), (&b.services, &b.marks, &b.over, &b.refused));
            let rows = c.services.len();
            assert_eq!(a.services[2 * rows..3 * rows], c.services);
            assert_eq!(a.marks[2 * MARKS..3 * MARKS], c.marks);
        }
        // 120 steps of a second, then the next episode: none is over, and each has begun twice.
        assert!(many.frame().over.iter().all(|over| !over));
    }

    /// Before the first reset, and with a scene that there is none of, every step is over at once, and says why.
    #[test]
    fn what_cannot_be_run_is_over() {
        let mut one = envs(1, 1);
        one.step(Some(&actions(0, 1)), Autoreset::Disabled);
        assert!(one.frame().over[0] && one.env(0).error().is_some_and(|e| e.contains("reset()")));
        one.reset(&[Some(1)], &[true], Some(99));
        assert!(one.frame().over[0] && one.env(0).error().is_some_and(|e| e.contains("scene 99 of 4")));
        one.step(None, Autoreset::NextStep);
        assert!(!one.frame().over[0]);
    }
}
