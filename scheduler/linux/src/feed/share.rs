//! Shares of the feed's budget: what one sender gets, whatever others send. Pure; times are given.
//!
//! * A pool of senders (a service's processes, a user's, those of a socket, all strangers together) has so many datagrams and bytes a second.
//! * Within a pool every process gets the same: its part of the pool by the processes that speak, and never more than a process may.
//! * So no sender that stays within its part loses anything to others, in other pools or its own.

use super::MAX_DATAGRAM;

/// So much a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub datagrams: f64,
    pub bytes: f64,
}

/// What a pool gets, and one process of it at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget {
    pub pool: Rate,
    pub process: Rate,
}

const MIB: f64 = (1 << 20) as f64;

/// Of senders that may speak for a service. A load generator sends ten datagrams a second for each service, of some kilobytes.
pub(super) const SPEAKERS: Budget =
    Budget { pool: Rate { datagrams: 5000.0, bytes: 8.0 * MIB }, process: Rate { datagrams: 1000.0, bytes: 4.0 * MIB } };
/// Of strangers: enough to say in the log what they wanted.
pub(super) const STRANGERS: Budget =
    Budget { pool: Rate { datagrams: 100.0, bytes: MIB }, process: Rate { datagrams: 20.0, bytes: 0.5 * MIB } };

/// A sender with so much of its share left is heard also where newcomers, not counted yet, have exhausted the pool.
const RESTED: f64 = 0.75;

impl Budget {
    /// Of one process among so many that speak.
    pub fn of_one(&self, active: usize) -> Rate {
        let n = active.max(1) as f64;
        Rate { datagrams: (self.pool.datagrams / n).min(self.process.datagrams), bytes: (self.pool.bytes / n).min(self.process.bytes) }
    }
}

/// Fills up with time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub level: f64,
    at_us: u64,
}

impl Bucket {
    pub fn new(level: f64, now_us: u64) -> Self {
        Bucket { level, at_us: now_us }
    }

    pub fn fill(&mut self, now_us: u64, per_s: f64, most: f64) {
        let dt_s = now_us.saturating_sub(self.at_us) as f64 * 1e-6;
        self.at_us = self.at_us.max(now_us);
        self.level = (self.level + per_s * dt_s).min(most);
    }
}

/// What is left of a second's worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    datagrams: Bucket,
    bytes: Bucket,
}

impl Share {
    pub fn full(rate: Rate, now_us: u64) -> Self {
        let (datagrams, bytes) = Share::most(rate);
        Share { datagrams: Bucket::new(datagrams, now_us), bytes: Bucket::new(bytes, now_us) }
    }

    /// One of the largest datagrams fits into a share that nothing was taken from, however small it is.
    fn most(rate: Rate) -> (f64, f64) {
        (rate.datagrams.max(1.0), rate.bytes.max(MAX_DATAGRAM as f64))
    }

    pub fn has_room(&mut self, now_us: u64, rate: Rate, bytes: usize) -> bool {
        let most = Share::most(rate);
        self.datagrams.fill(now_us, rate.datagrams, most.0);
        self.bytes.fill(now_us, rate.bytes, most.1);
        self.datagrams.level >= 1.0 && self.bytes.level >= bytes as f64
    }

    /// Whether little of it has been used, as of when it was last asked for room.
    pub fn is_rested(&self, rate: Rate) -> bool {
        let most = Share::most(rate);
        self.datagrams.level >= RESTED * most.0 && self.bytes.level >= RESTED * most.1
    }

    pub fn take(&mut self, bytes: usize) {
        self.datagrams.level -= 1.0;
        self.bytes.level -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { datagrams: 10.0, bytes: MAX_DATAGRAM as f64 / 4.0 };

    /// A share gives a second's worth at once, then as much as time brings; bytes count as datagrams do, and one of the largest always fits.
    #[test]
    fn a_share_fills_up_with_time() {
        let mut s = Share::full(RATE, 0);
        let mut taken = |now_us: u64, bytes: usize| {
            let room = s.has_room(now_us, RATE, bytes);
            if room {
                s.take(bytes);
            }
            room
        };
        // 10 at once; in the 499 ms after that 4 more, however many ask.
        assert_eq!((0..100).filter(|_| taken(0, 10)).count(), 10);
        assert_eq!((0..500).filter(|ms| taken(ms * 1000, 10)).count(), 4);
        // A minute later one of the largest; its bytes take 4 s to come back.
        let largest = [60_000_000, 60_100_000, 63_900_000, 64_000_001].map(|t| taken(t, MAX_DATAGRAM));
        assert_eq!(largest, [true, false, false, true]);
    }

    /// A process gets its part of the pool, and no more than a process may; parts add up to the pool.
    #[test]
    fn parts_of_a_pool_are_equal() {
        for n in 1..1000u32 {
            let one = SPEAKERS.of_one(n as usize);
            assert!(one.datagrams <= 1000.0 && one.datagrams * f64::from(n) <= 5000.0 * (1.0 + 1e-12));
            assert!(one.bytes <= 4.0 * MIB && one.bytes * f64::from(n) <= 8.0 * MIB * (1.0 + 1e-12));
        }
        assert_eq!(SPEAKERS.of_one(0), SPEAKERS.process);
        // Beside 99 flooding processes of its user an honest process has five times the ten datagrams that it sends.
        assert_eq!(SPEAKERS.of_one(100).datagrams, 50.0);
    }
}
