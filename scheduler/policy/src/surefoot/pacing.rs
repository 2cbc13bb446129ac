//! Settings that count intervals, for intervals of another length: the same times.

use super::Settings;
use crate::pace::Pace;

/// `set`, whose intervals are the usual ones, for intervals as long as `pace` says.
pub(super) fn paced(set: &Settings, pace: Pace) -> Settings {
    let mut set = *set;
    let count = |n: usize| match n {
        0 => 0,
        n => pace.steps(n as u64 * Pace::USUAL_MS),
    };
    let few = |n: u32| u32::try_from(count(n as usize)).unwrap_or(u32::MAX);
    let r = &mut set.readings;
    for n in [&mut r.smooth_intervals, &mut r.saturated_intervals, &mut r.calm_intervals, &mut r.watched_intervals] {
        *n = count(*n);
    }
    // A fall is seen between two.
    r.drain_intervals = count(r.drain_intervals).max(2);
    (r.least_weight, r.most_weight) = (pace.weight(r.least_weight), pace.weight(r.most_weight));
    let p = &mut set.patience;
    for n in [&mut p.strikes, &mut p.burst_intervals, &mut p.hurt_strikes] {
        *n = few(*n);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing changes at the usual pace; at another every count keeps its time, and none that was something becomes nothing.
    #[test]
    fn counts_keep_their_time() {
        let set = Settings::default();
        assert_eq!(paced(&set, Pace::default()), set);
        let slow = paced(&set, Pace::every(500).unwrap());
        assert_eq!((slow.readings.smooth_intervals, slow.patience.strikes, slow.readings.drain_intervals), (1, 1, 2));
        let fast = paced(&set, Pace::every(20).unwrap());
        assert_eq!((fast.readings.smooth_intervals, fast.patience.burst_intervals, fast.patience.hurt_strikes), (25, 15, 10));
        assert!(fast.readings.most_weight < 0.1 && slow.readings.most_weight > 0.8);
    }
}
