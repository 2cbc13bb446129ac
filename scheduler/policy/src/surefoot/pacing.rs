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
    (r.smooth_intervals, r.enough_intervals) = (count(r.smooth_intervals), count(r.enough_intervals));
    set.patience.strikes = few(set.patience.strikes);
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
        assert_eq!((slow.readings.smooth_intervals, slow.patience.strikes, slow.readings.enough_intervals), (1, 1, 1));
        let fast = paced(&set, Pace::every(20).unwrap());
        assert_eq!((fast.readings.smooth_intervals, fast.readings.enough_intervals, fast.patience.strikes), (25, 15, 5));
        assert!(fast.latest_weight() < 0.1 && slow.latest_weight() > 0.8);
    }
}
