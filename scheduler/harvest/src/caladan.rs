//! The control law of Caladan (OSDI 2020), without its system: threads wait in the kernel's queues here, not in a library's.
//!
//! Every 10 us: a core more where a thread has waited for as long, and every idle core away at once. Two rules protect against
//! what cores share. Where memory bandwidth is short, the job loses one core at each look. Where a request has run long, the
//! sibling of its core idles. Where nothing tells of bandwidth or requests, these rules do nothing.

use crate::settings;

/// Its decisions as functions of what was seen.
#[derive(Clone, Copy, Debug)]
pub struct Caladan {
    s: settings::Caladan,
    /// Cores that the job does not use for the sake of bandwidth.
    idled: u32,
    looked_us: u64,
}

impl Caladan {
    pub fn new(s: settings::Caladan) -> Self {
        Caladan { s, idled: 0, looked_us: 0 }
    }

    /// Cores to keep, where `kept` are kept, `busy` run, and the oldest thread has waited for `waiting_us`.
    pub fn keep(&self, kept: u32, busy: u32, waiting_us: f64) -> u32 {
        if waiting_us >= self.s.delay_us {
            kept.max(busy) + 1
        } else if waiting_us > 0.0 {
            kept.max(busy)
        } else {
            busy.max(1)
        }
    }

    /// Cores that the job must leave idle, of `lent` ones: one more at each look while bandwidth is short, one less while it is not.
    pub fn idled(&mut self, now_us: u64, lent: u32, bandwidth: Option<f64>) -> u32 {
        let Some(share) = bandwidth else { return 0 };
        if now_us >= self.looked_us + self.s.bandwidth_us {
            self.looked_us = now_us;
            self.idled = if share > self.s.bandwidth { self.idled + 1 } else { self.idled.saturating_sub(1) };
        }
        self.idled = self.idled.min(lent);
        self.idled
    }

    /// Whether the sibling of a core must idle whose request has run for `running_us`.
    pub fn idles_sibling(&self, running_us: f64) -> bool {
        running_us >= self.s.sibling_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_for_a_wait_and_none_without_work() {
        let law = Caladan::new(settings::Caladan::default());
        assert_eq!(law.keep(4, 4, 12.0), 5);
        assert_eq!(law.keep(4, 4, 5.0), 4);
        assert_eq!(law.keep(4, 2, 0.0), 2);
        assert_eq!(law.keep(4, 0, 0.0), 1);
        // Cores on their way count: no second one for the same wait is asked below what runs.
        assert_eq!(law.keep(3, 5, 12.0), 6);
    }

    #[test]
    fn scarce_bandwidth_idles_the_jobs_cores() {
        let mut law = Caladan::new(settings::Caladan::default());
        assert_eq!(law.idled(10, 3, None), 0);
        let seen: Vec<u32> = (2..8).map(|n| law.idled(n * 10, 3, Some(0.9))).collect();
        assert_eq!(seen, [1, 2, 3, 3, 3, 3]);
        assert_eq!(law.idled(75, 3, Some(0.1)), 3);
        assert_eq!([80, 90, 100, 110].map(|t| law.idled(t, 3, Some(0.1))), [2, 1, 0, 0]);
        assert!(law.idles_sibling(100.0) && !law.idles_sibling(99.0));
    }
}
