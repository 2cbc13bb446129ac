//! Who takes the datagrams: the feed's own thread as they come, or, in calm times, each decision what waits for it.
//!
//! A thread that wakes for each datagram costs more than reading it does. Where the same few processes have sent for a while, and
//! decisions come often, nothing is lost by leaving datagrams where they are until the next decision: the kernel stamps each with
//! its time. The thread comes back at the first sign of another sender, of the end of one, of more than a few datagrams, or of a
//! decision that is late. Only a control loop may ask for it: whoever waits for windows between two decisions needs the thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use surefoot_server::window::LONGEST_WINDOW_MS;

/// Calm begins where decisions come at least so often, and ends where one is as late as [`LATE_US`].
const OFTEN_US: u64 = 150_000;
pub(super) const LATE_US: u64 = 250_000;
/// For so long nothing was out of the ordinary. A sender that ends after each datagram has to be looked at while it is there, also one that
/// sends only once in the longest window.
const STEADY_US: u64 = (LONGEST_WINDOW_MS + 5000) * 1000;
/// Senders that are silent for longer need no look at each decision.
const SILENT_US: u64 = 2_000_000;

/// What was last seen, microseconds since boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// A new sender, the end of one, a refusal, or too much for a decision.
    pub unsteady_us: u64,
    pub heard_us: u64,
}

#[derive(Debug)]
pub(super) struct Calm {
    steady_us: u64,
    often_us: u64,
    late_us: u64,
    /// A control loop has asked for it.
    wanted: AtomicBool,
    /// The last decision, and the time between it and the one before.
    at_us: AtomicU64,
    gap_us: AtomicU64,
    lasts: AtomicBool,
}

impl Default for Calm {
    fn default() -> Self {
        Calm::new(STEADY_US, OFTEN_US, LATE_US)
    }
}

impl Calm {
    /// After senders have been the same for so long, while decisions come at least so often, until one is so late.
    pub fn new(steady_us: u64, often_us: u64, late_us: u64) -> Self {
        let (wanted, at_us, gap_us, lasts) = Default::default();
        Calm { steady_us, often_us, late_us, wanted, at_us, gap_us, lasts }
    }

    /// From now on there may be calm.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// A decision is made now. Returns whether datagrams were left to it, and whether it is late, with which calm ends.
    pub fn decides(&self, now_us: u64) -> (bool, bool) {
        let before_us = self.at_us.swap(now_us, Ordering::Relaxed);
        let gap_us = now_us.saturating_sub(before_us);
        self.gap_us.store(gap_us, Ordering::Relaxed);
        let late = gap_us > self.late_us;
        (if late { self.end() } else { self.lasts.load(Ordering::Acquire) }, late)
    }

    /// Leave datagrams to the decisions from now on, where that can be.
    pub fn may_begin(&self, seen: Seen, now_us: u64) -> bool {
        let last_us = now_us.saturating_sub(self.at_us.load(Ordering::Relaxed));
        let is_often = last_us.max(self.gap_us.load(Ordering::Relaxed)) <= self.often_us;
        let begins = self.wanted.load(Ordering::Relaxed) && is_often && self.may_last(seen, now_us);
        if begins {
            self.lasts.store(true, Ordering::Release);
        }
        begins
    }

    /// Whether what was seen is no reason to end it.
    pub fn may_last(&self, seen: Seen, now_us: u64) -> bool {
        now_us >= seen.unsteady_us + self.steady_us && now_us < seen.heard_us + SILENT_US
    }

    /// Whether datagrams are left to the decisions, which come.
    pub fn lasts(&self, now_us: u64) -> bool {
        let last_us = now_us.saturating_sub(self.at_us.load(Ordering::Relaxed));
        self.lasts.load(Ordering::Acquire) && last_us <= self.late_us
    }

    /// Returns whether it lasted until now.
    pub fn end(&self) -> bool {
        self.lasts.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000;

    /// Calm begins where it is wanted, after steady seconds in which decisions came often, and ends with a late one.
    #[test]
    fn calm_needs_steady_senders_and_frequent_decisions() {
        let begins = |steady_for_us: u64, silent_us: u64, gap_us: u64, last_us: u64| {
            let (c, now) = (Calm::default(), 100 * S);
            c.want();
            [now - last_us - gap_us, now - last_us].iter().for_each(|at| assert!(!c.decides(*at).0));
            let begins = c.may_begin(Seen { unsteady_us: now - steady_for_us, heard_us: now - silent_us }, now);
            assert_eq!(c.lasts(now), begins);
            begins
        };
        assert!(begins(STEADY_US, 0, S / 10, S / 10));
        assert!(!begins(STEADY_US - 1, 0, S / 10, S / 10));
        assert!(!begins(STEADY_US, 2 * S, S / 10, S / 10));
        assert!(!begins(STEADY_US, 0, S / 5, S / 10));
        assert!(!begins(STEADY_US, 0, S / 10, S / 5));

        let c = Calm::default();
        (0..3).for_each(|k| assert_eq!(c.decides(60 * S + k * S / 10), (false, k == 0)));
        let now = 60 * S + S / 5;
        let seen = Seen { unsteady_us: 0, heard_us: now };
        assert!(!c.may_begin(seen, now));
        c.want();
        assert!(c.may_begin(seen, now) && c.lasts(now + LATE_US) && !c.lasts(now + LATE_US + 1));
        assert_eq!(c.decides(now + S / 5), (true, false));
        // A late decision takes what waits, and is the last.
        assert_eq!(c.decides(now + S / 5 + LATE_US + 1), (true, true));
        assert_eq!((c.decides(now + S), c.lasts(now + S)), ((false, true), false));
    }
}
