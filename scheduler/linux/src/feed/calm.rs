//! Who takes the datagrams: the feed's own thread as they come, or, in calm times, each decision what waits for it.
//!
//! A thread that wakes for each datagram costs more than reading it does. Where the same few processes have sent for a while, and
//! decisions come often, nothing is lost by leaving datagrams where they are until the next decision: the kernel stamps each with
//! its time. The thread comes back at the first sign of another sender, of more than a few datagrams, or of a decision that is late.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Decisions come at least so often.
const OFTEN_US: u64 = 250_000;
/// For so long nothing was out of the ordinary. A sender that ends after each datagram has to be looked at while it is there.
const STEADY_US: u64 = 10_000_000;
/// Senders that are silent for longer need no look at each decision.
const SILENT_US: u64 = 2_000_000;

/// What was last seen, microseconds since boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// A new sender, one that cannot be told, or a refusal.
    pub unsteady_us: u64,
    pub heard_us: u64,
}

impl Seen {
    fn is_steady(&self, steady_us: u64, now_us: u64) -> bool {
        now_us >= self.unsteady_us + steady_us && now_us < self.heard_us + SILENT_US
    }
}

#[derive(Debug)]
pub(super) struct Calm {
    often_us: u64,
    steady_us: u64,
    /// The last decision, and the time between it and the one before.
    at_us: AtomicU64,
    gap_us: AtomicU64,
    lasts: AtomicBool,
}

impl Default for Calm {
    fn default() -> Self {
        Calm::new(OFTEN_US, STEADY_US)
    }
}

impl Calm {
    /// Of decisions at least so often, and senders that have been the same for so long.
    pub fn new(often_us: u64, steady_us: u64) -> Self {
        let (at_us, gap_us, lasts) = Default::default();
        Calm { often_us, steady_us, at_us, gap_us, lasts }
    }

    /// A decision is made now.
    pub fn decides(&self, now_us: u64) {
        let before_us = self.at_us.swap(now_us, Ordering::Relaxed);
        self.gap_us.store(now_us.saturating_sub(before_us), Ordering::Relaxed);
    }

    /// Whether decisions come so often that datagrams can wait for them.
    fn is_often(&self, now_us: u64) -> bool {
        let last_us = now_us.saturating_sub(self.at_us.load(Ordering::Relaxed));
        last_us.max(self.gap_us.load(Ordering::Relaxed)) <= self.often_us
    }

    /// Leave datagrams to the decisions from now on, where that can be.
    pub fn may_begin(&self, seen: Seen, now_us: u64) {
        if self.may_last(seen, now_us) && self.is_often(now_us) {
            self.lasts.store(true, Ordering::Release);
        }
    }

    /// Whether datagrams are left to the decisions. Ends where those do not come.
    pub fn lasts(&self, now_us: u64) -> bool {
        let lasts = self.lasts.load(Ordering::Acquire);
        if lasts && !self.is_often(now_us) {
            self.end();
            return false;
        }
        lasts
    }

    /// Whether what was seen is no reason to end it.
    pub fn may_last(&self, seen: Seen, now_us: u64) -> bool {
        seen.is_steady(self.steady_us, now_us)
    }

    pub fn end(&self) {
        self.lasts.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    /// Calm begins after ten steady seconds in which decisions came often, and ends with them.
    #[test]
    fn calm_needs_steady_senders_and_frequent_decisions() {
        let begins = |steady_for_us: u64, silent_us: u64, gaps_us: [u64; 2], last_us: u64| {
            let (c, now) = (Calm::default(), 100 * S);
            let first = now - last_us - gaps_us[1];
            [first - gaps_us[0], first, now - last_us].iter().for_each(|at| c.decides(*at));
            c.may_begin(Seen { unsteady_us: now - steady_for_us, heard_us: now - silent_us }, now);
            c.lasts(now)
        };
        assert!(begins(10 * S, 0, [S / 10; 2], S / 10));
        assert!(!begins(10 * S - 1, 0, [S / 10; 2], S / 10));
        assert!(!begins(10 * S, 2 * S, [S / 10; 2], S / 10));
        assert!(!begins(10 * S, 0, [S / 10, S], S / 10));
        assert!(!begins(10 * S, 0, [S / 10; 2], S / 2));

        let c = Calm::default();
        (0..3).for_each(|k| c.decides(20 * S + k * S / 10));
        let now = 20 * S + S / 5;
        assert!(!c.lasts(now));
        c.may_begin(Seen { unsteady_us: 0, heard_us: now }, now);
        assert!(c.lasts(now) && c.lasts(now + S / 4));
        // No decision came: its end is for good, until the thread begins it anew.
        assert!(!c.lasts(now + S / 4 + 1) && !c.lasts(now));
    }
}
