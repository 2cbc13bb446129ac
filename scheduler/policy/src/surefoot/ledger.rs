//! What a service was seen to do on what it held: the part of the cores x ways plane that needs no model.
//!
//! Latency falls with cores and with ways and rises with load. So a cell that missed its target speaks against every smaller one at
//! the same load or more, and one that met it speaks for every larger one at the same load or less. Neighbours change, so both are
//! forgotten after a while; a miss (of a cold cache, say) at once when a cell that is no larger is seen to be well.

use super::settings::Settings;
use crate::books::Amount;

#[derive(Clone, Copy, Debug)]
struct Cell {
    held: Amount,
    rps: f64,
    qos: f64,
    until_ms: u64,
}

/// Cells of one service that are remembered; the oldest goes first. A minute of decisions has fewer.
const MOST_CELLS: usize = 48;

/// Cells of one service.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Loads closer than this are the same.
    same_load: f64,
    /// From here an earlier miss on as much or more had another cause.
    well_qos: f64,
    cells: Vec<Cell>,
}

impl Ledger {
    pub fn new(set: &Settings) -> Self {
        Ledger { same_load: set.readings.load_change, well_qos: set.sure_qos(), cells: vec![] }
    }

    /// QoS (target / p99) was seen on `held` at a load; remembered for `keep_ms`.
    pub fn note(&mut self, now_ms: u64, held: Amount, rps: f64, qos: f64, keep_ms: u64) {
        let (same_load, well_qos) = (self.same_load, self.well_qos);
        self.cells.retain(|c| c.until_ms > now_ms);
        let until_ms = now_ms + keep_ms;
        if qos >= well_qos {
            self.cells.retain(|c| c.qos >= 1.0 || !held.fits_in(c.held) || c.rps > rps * (1.0 + same_load));
        }
        let same = |c: &&mut Cell| c.held == held && (c.rps / rps.max(1e-9) - 1.0).abs() <= same_load && (c.qos < 1.0) == (qos < 1.0);
        if let Some(c) = self.cells.iter_mut().find(same) {
            // The worst that was seen there is what one has to expect; a miss speaks of the lowest load at which it was one.
            let rps = if qos < 1.0 { c.rps.min(rps) } else { c.rps.max(rps) };
            *c = Cell { held, rps, qos: c.qos.min(qos), until_ms: c.until_ms.max(until_ms) };
            return;
        }
        if self.cells.len() >= MOST_CELLS {
            self.cells.remove(0);
        }
        self.cells.push(Cell { held, rps, qos, until_ms });
    }

    /// Whether a cell at least as large was seen below `qos` at this load or less.
    pub fn forbids(&self, now_ms: u64, to: Amount, rps: f64, qos: f64) -> bool {
        self.least_seen(now_ms, to, rps).is_some_and(|q| q < qos)
    }

    /// The worst QoS that a cell at least as large was seen to have at this load or less; None where there is no such cell.
    pub fn least_seen(&self, now_ms: u64, to: Amount, rps: f64) -> Option<f64> {
        let larger = |c: &&Cell| c.until_ms > now_ms && to.fits_in(c.held) && c.rps <= rps * (1.0 + self.same_load);
        self.cells.iter().filter(larger).map(|c| c.qos).min_by(f64::total_cmp)
    }

    /// Cells that were seen to have at least `qos` at this load or more.
    pub fn proven(&self, now_ms: u64, rps: f64, qos: f64) -> impl Iterator<Item = Amount> + '_ {
        self.cells.iter().filter(move |c| c.until_ms > now_ms && c.qos >= qos && c.rps >= rps * (1.0 - self.same_load)).map(|c| c.held)
    }

    /// The best QoS that a cell no larger was seen to have at this load or more; None where there is no such cell.
    pub fn vouches(&self, now_ms: u64, to: Amount, rps: f64) -> Option<f64> {
        let for_it = |c: &&Cell| c.until_ms > now_ms && c.qos >= 1.0 && c.held.fits_in(to) && c.rps >= rps * (1.0 - self.same_load);
        self.cells.iter().filter(for_it).map(|c| c.qos).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(cores: u32, ways: u32) -> Amount {
        Amount::new(cores, ways)
    }

    fn ledger() -> Ledger {
        Ledger::new(&Settings::default())
    }

    /// A miss speaks against what is smaller at no less load; a hit for what is larger at no more load; neither beyond.
    #[test]
    fn cells_speak_for_their_quadrant() {
        let mut l = ledger();
        l.note(0, cell(6, 4), 1000.0, 0.4, 60_000);
        l.note(0, cell(8, 6), 1000.0, 1.5, 60_000);
        let forbids = |to, rps| l.forbids(100, to, rps, 1.0);
        assert!(forbids(cell(6, 4), 1000.0) && forbids(cell(5, 4), 1200.0) && forbids(cell(6, 1), 1000.0));
        assert!(!forbids(cell(7, 3), 1000.0) && !forbids(cell(5, 4), 800.0));
        assert_eq!((l.least_seen(100, cell(5, 4), 1000.0), l.least_seen(100, cell(9, 9), 1000.0)), (Some(0.4), None));
        assert_eq!(l.vouches(100, cell(9, 6), 900.0), Some(1.5));
        assert_eq!(l.proven(100, 900.0, 1.05).collect::<Vec<_>>(), [cell(8, 6)]);
        assert!(l.vouches(100, cell(9, 5), 900.0).is_none() && l.vouches(100, cell(9, 6), 1200.0).is_none());
    }

    /// What is old is forgotten, and never more than so many cells are kept.
    #[test]
    fn it_forgets() {
        let mut l = ledger();
        l.note(0, cell(6, 4), 1000.0, 0.4, 5_000);
        assert!(l.forbids(4_999, cell(6, 4), 1000.0, 1.0) && !l.forbids(5_000, cell(6, 4), 1000.0, 1.0));
        for i in 0..200 {
            l.note(6_000, cell(i, 1), 1000.0, 2.0, 60_000);
        }
        assert_eq!(l.cells.len(), MOST_CELLS);
    }

    /// Seen to be well on no more: what was missed there before (with a cold cache, say) says nothing; but it does about less, and about more load.
    #[test]
    fn a_miss_that_is_contradicted_goes() {
        let mut l = ledger();
        l.note(0, cell(8, 6), 1000.0, 0.4, 60_000);
        l.note(0, cell(6, 6), 1000.0, 0.6, 60_000);
        l.note(0, cell(9, 6), 2000.0, 0.3, 60_000);
        l.note(100, cell(8, 6), 1000.0, 1.1, 60_000);
        assert!(l.forbids(200, cell(8, 5), 1000.0, 1.0), "met by too little");
        l.note(100, cell(7, 6), 1000.0, 1.3, 60_000);
        assert!(!l.forbids(200, cell(7, 5), 1000.0, 1.0));
        assert!(l.forbids(200, cell(6, 5), 1000.0, 1.0) && l.forbids(200, cell(8, 5), 2000.0, 1.0));
    }

    /// Readings of one load scatter: a miss speaks of the lowest at which it was one, a hit of the highest.
    #[test]
    fn a_cell_speaks_of_all_loads_it_was_seen_at() {
        let mut l = ledger();
        for rps in [1000.0, 950.0, 980.0] {
            l.note(0, cell(6, 4), rps, 0.8, 60_000);
            l.note(0, cell(8, 6), rps, 1.5, 60_000);
        }
        assert!(l.forbids(1, cell(6, 4), 900.0, 1.0) && !l.forbids(1, cell(6, 4), 800.0, 1.0));
        assert_eq!((l.vouches(1, cell(8, 6), 1050.0), l.vouches(1, cell(8, 6), 1150.0)), (Some(1.5), None));
    }

    /// The worst that was seen on a cell is what counts.
    #[test]
    fn the_worst_of_a_cell_counts() {
        let mut l = ledger();
        for qos in [1.6, 1.2, 1.9] {
            l.note(0, cell(6, 4), 1000.0, qos, 60_000);
        }
        assert_eq!(l.vouches(1, cell(6, 4), 1000.0), Some(1.2));
    }
}
