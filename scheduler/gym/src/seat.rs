//! An agent on a node: the same rows and the same actions as in an episode, of observations that somebody else makes.
//!
//! What is seen is shown as [`crate::episode`] shows it, what an agent does is entered as it is there, and newcomers are let in by the
//! same rule. What only an environment knows is not known here: the highest load of a service, and the throughput of a job alone.

use crate::action::{admit, Action, PER_ROW};
use crate::columns::{Scale, COLUMNS, SERVER_COLUMNS};
use surefoot_policy::books::Books;
use surefoot_server::{Observation, Platform, ServiceId};

/// What an LC service is to hold: id, core units, ways, bandwidth in per cent.
pub type Held = (ServiceId, u32, u32, u8);

/// Where one agent sits.
#[derive(Clone, Debug)]
pub struct Seat {
    action: Action,
    scale: Scale,
    books: Books,
    seen: Observation,
    /// Who has which row; a row is kept until its service leaves.
    rows: Vec<Option<ServiceId>>,
}

impl Seat {
    /// # Errors
    /// One line for a number of rows out of range, or a platform that cannot be.
    pub fn new(platform: &Platform, rows: usize, action: Action) -> Result<Self, String> {
        if !(1..=64).contains(&rows) {
            return Err(format!("max_services: {rows} is out of range. Give 1 to 64"));
        }
        platform.check().map_err(|(field, what)| format!("platform.{field}: {what}"))?;
        let (scale, books) = (Scale::of(platform), Books::new(platform));
        Ok(Seat { action, scale, books, seen: Observation::default(), rows: vec![None; rows] })
    }

    /// Look: who has come is let in, and everybody who is here has a row while there are any.
    ///
    /// True where somebody has come or gone: then there is something to hold otherwise before an agent has acted.
    pub fn look(&mut self, seen: Observation) -> bool {
        self.seen = seen;
        let news = self.books.follow(&self.seen);
        let holders = self.seen.lc().count() as u32 + u32::from(self.books.has_be());
        for id in &news.lc_arrived {
            admit(&mut self.books, id, holders);
        }
        for row in &mut self.rows {
            if row.as_ref().is_some_and(|id| self.seen.get(id).is_none()) {
                *row = None;
            }
        }
        for s in self.seen.lc().chain(self.seen.be()) {
            if !self.rows.iter().flatten().any(|id| *id == s.id) {
                if let Some(row) = self.rows.iter_mut().find(|row| row.is_none()) {
                    *row = Some(s.id.clone());
                }
            }
        }
        !(news.lc_arrived.is_empty() && news.be_arrived.is_empty() && news.left.is_empty())
    }

    /// Write what is seen: rows x [`COLUMNS`], the same, and [`SERVER_COLUMNS`].
    pub fn show(&self, services: &mut [f32], known: &mut [i8], server: &mut [f32]) {
        services.fill(0.0);
        known.fill(0);
        for (i, s) in self.rows.iter().enumerate().filter_map(|(i, id)| Some((i, self.seen.get(id.as_deref()?)?))) {
            let (from, until) = (i * COLUMNS, (i + 1) * COLUMNS);
            self.scale.row(s, None, None, &mut services[from..until], &mut known[from..until]);
        }
        let share = |x: u32, of: u32| (f64::from(x) / f64::from(of.max(1))) as f32;
        let (free, total) = (self.books.free(), self.books.total());
        server.copy_from_slice(&[share(free.cores, total.cores), share(free.ways, total.ways)]);
        const { assert!(SERVER_COLUMNS.len() == 2) };
    }

    /// Enter an action of all rows; what became of each of them ([`crate::Refused`]).
    pub fn act(&mut self, numbers: &[f64]) -> Vec<u8> {
        let mut refused = vec![0; self.rows.len()];
        if numbers.len() != self.rows.len() * PER_ROW {
            refused.fill(crate::Refused::Malformed as u8);
            return refused;
        }
        let here = |id: &Option<ServiceId>| id.as_deref().and_then(|id| self.seen.get(id)).map(|s| (&s.id, s.is_lc()));
        let rows: Vec<Option<(&ServiceId, bool)>> = self.rows.iter().map(here).collect();
        self.action.enter(&mut self.books, &rows, numbers, &mut refused);
        refused
    }

    /// What is to be held: by LC services, by those that have nothing of their own, and the bandwidth of the BE jobs.
    pub fn holds(&self) -> (Vec<Held>, Vec<ServiceId>, u8) {
        let held = self.books.slots().iter().map(|s| (s.id.clone(), s.own.cores, s.own.ways, s.mba_pct)).collect();
        let crowd = self.seen.lc().map(|s| s.id.clone()).filter(|id| self.books.is_crowded(id)).collect();
        (held, crowd, self.books.be_mba_pct)
    }

    /// Ids by row.
    pub fn rows(&self) -> &[Option<ServiceId>] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Episode, Scenario, Settings};
    use std::sync::Arc;

    /// A seat shows of each service what the environment shows, but for what only that knows; the same action is the same to hold.
    #[test]
    fn a_seat_shows_what_an_environment_does() {
        let scenario = Arc::new(Scenario::open("demo/two-lc-steady", None, None).unwrap());
        let weights = crate::reward::named("emu").unwrap();
        let settings = Arc::new(Settings { rows: 10, step_ms: 100, action: Action::Steps, weights });
        let mut env = Episode::new(scenario, settings);
        env.reset(Some(1), None);
        let platform = env.scene().unwrap().platform.clone();
        let mut seat = Seat::new(&platform, 10, Action::Steps).unwrap();
        let stay = [3.0, 3.0, 1.0].repeat(10);
        let mut more = stay.clone();
        (more[0], more[4]) = (1.0, 5.0);
        // `load` and `throughput`.
        let only_an_environment = [COLUMNS - 2, COLUMNS - 1];
        for t in 0..30 {
            seat.look(env.seen().unwrap().clone());
            let (mut services, mut known) = (vec![0.0; 10 * COLUMNS], vec![0; 10 * COLUMNS]);
            let mut server = vec![0.0; 2];
            let mut shown = (services.clone(), known.clone(), server.clone());
            let (mut marks, mut told) = (vec![0.0; crate::reward::MARKS], vec![0.0; 10 * crate::episode::TOLD.len()]);
            env.show(&mut crate::episode::Shown {
                services: &mut services,
                known: &mut known,
                server: &mut server,
                marks: &mut marks,
                told: &mut told,
                refused: &mut [0; 10],
                over: &mut false,
            });
            seat.show(&mut shown.0, &mut shown.1, &mut shown.2);
            // A row of an environment waits for a service that has not come yet.
            let ids = &env.scene().unwrap().ids;
            for (here, id) in seat.rows().iter().enumerate().filter_map(|(i, id)| Some((i, id.as_ref()?))) {
                let there = ids.iter().position(|other| other == id).unwrap();
                for column in (0..COLUMNS).filter(|c| !only_an_environment.contains(c)) {
                    let (i, j) = (here * COLUMNS + column, there * COLUMNS + column);
                    assert_eq!((shown.0[i].to_bits(), shown.1[i]), (services[j].to_bits(), known[j]), "{t}: {id}: {column}");
                }
            }
            assert_eq!(shown.2, server, "{t}");
            let action = if t == 5 { &more } else { &stay };
            seat.act(action);
            env.step(Some(action), &mut [0; 10]);
            for (id, cores, _, _) in seat.holds().0 {
                assert_eq!(platform.cores(cores), env.seen().unwrap().get(&id).unwrap().allocation.cores(), "{t}");
            }
        }
        assert_eq!(seat.act(&[1.0]), [crate::Refused::Malformed as u8; 10]);
    }
}
