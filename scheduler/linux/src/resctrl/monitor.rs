//! Counters of one service: monitoring groups, also where services share a class.

use super::classes::Place;
use super::{Resctrl, PREFIX};
use crate::gauge::Gauge;
use std::path::PathBuf;
use surefoot_server::features::BYTES_PER_MB_S;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes to and from the memory of the cache's own node, counting up.
    MbmLocal,
    /// Bytes to and from all memory, counting up.
    MbmTotal,
    /// Bytes in the cache now.
    LlcOccupancy,
}

impl Event {
    pub fn file(self) -> &'static str {
        match self {
            Event::MbmLocal => "mbm_local_bytes",
            Event::MbmTotal => "mbm_total_bytes",
            Event::LlcOccupancy => "llc_occupancy",
        }
    }
}

impl Resctrl {
    /// Folder of a service's monitoring group: under our own class by its id, in the default group under our prefix.
    pub fn monitor(&self, id: &str, place: &Place) -> PathBuf {
        match place {
            Place::Class(c) => self.class_dir(c).join("mon_groups").join(id),
            Place::Default => self.dir.join("mon_groups").join(format!("{PREFIX}{id}")),
        }
    }

    /// The files of a counter of a service, one for each L3 domain. None without a group of its own (`alone` in its class it may
    /// use the class's).
    ///
    /// With sub-NUMA clusters a domain's own file is the sum; the files of its nodes below are not counted again.
    fn domains(&self, id: &str, place: &Place, alone: bool, event: Event) -> Option<Vec<Gauge>> {
        let own = self.monitor(id, place).join("mon_data");
        let class = || match place {
            Place::Class(c) if alone => Some(self.class_dir(c).join("mon_data")),
            _ => None,
        };
        let (data, names) = match self.files.list(&own) {
            Ok(names) => (own, names),
            Err(_) => {
                let data = class()?;
                let names = self.files.list(&data).ok()?;
                (data, names)
            }
        };
        let domains = names.iter().filter(|n| n.starts_with("mon_L3_"));
        Some(domains.map(|d| Gauge::unheld(self.files.clone(), data.join(d).join(event.file()))).collect())
    }

    /// A counter of a service, summed over the L3 domains. None where any domain has no figure: "Unavailable", "Error" and
    /// "Unassigned" are ordinary content.
    pub fn counter(&self, id: &str, place: &Place, alone: bool, event: Event) -> Option<u64> {
        sum(&mut self.domains(id, place, alone, event)?)
    }
}

fn sum(domains: &mut [Gauge]) -> Option<u64> {
    let figures = domains.iter_mut().map(Gauge::number);
    figures.reduce(|a, b| Some(a?.saturating_add(b?))).flatten()
}

/// Local memory traffic of one service, read at every tick.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Where its files were found.
    of: Option<(Place, bool)>,
    domains: Vec<Gauge>,
}

impl Traffic {
    /// Bytes so far, as [`Resctrl::counter`].
    pub fn bytes(&mut self, r: &Resctrl, id: &str, place: Place, alone: bool) -> Option<u64> {
        let of = Some((place, alone));
        let same = self.of == of;
        if same {
            if let Some(sum) = sum(&mut self.domains) {
                return Some(sum);
            }
        }
        // Another place, or a group that was made anew.
        let (place, alone) = of.as_ref()?;
        self.domains = r.domains(id, place, *alone, Event::MbmLocal).unwrap_or_default();
        self.of = of;
        // Where the group was removed the figure is of another one now: no rate leads from one to the other.
        if same {
            return None;
        }
        sum(&mut self.domains)
    }
}

/// Finds counters that stand still while the cache misses.
///
/// Some processors and kernels count no bandwidth at all for some monitoring ids, without an error.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeadCounter {
    still: u32,
}

/// Intervals in a row.
const DEAD_INTERVALS: u32 = 20;
/// Traffic by misses (64 bytes each) that no counter can overlook, MB/s.
const DEAD_MBPS: f64 = 10.0;

impl DeadCounter {
    /// One interval; true when the counter has just been found dead. What is unknown proves nothing.
    pub fn look(&mut self, mbl_mbps: Option<f64>, llc_misses_per_s: Option<f64>) -> bool {
        let (Some(mbl), Some(misses)) = (mbl_mbps, llc_misses_per_s) else { return false };
        if mbl > 0.0 {
            self.still = 0;
        } else if misses * 64.0 / BYTES_PER_MB_S >= DEAD_MBPS {
            self.still = self.still.saturating_add(1);
            return self.still == DEAD_INTERVALS;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000,000 misses a second are 64 MB/s: a counter that shows 0 beside them for 20 intervals is dead, and that is said once.
    #[test]
    fn a_dead_counter_is_found_once() {
        let mut d = DeadCounter::default();
        let said = |d: &mut DeadCounter, mbl, misses, n| (0..n).filter(|_| d.look(mbl, misses)).count();
        assert_eq!(said(&mut d, Some(0.0), Some(1e3), 100), 0);
        assert_eq!(said(&mut d, None, Some(1e6), 100) + said(&mut d, Some(0.0), None, 100), 0);
        assert_eq!(said(&mut d, Some(0.0), Some(1e6), 19), 0);
        assert_eq!(said(&mut d, Some(0.5), Some(1e6), 1), 0);
        assert_eq!(said(&mut d, Some(0.0), Some(1e6), 500), 1);
    }
}
