//! Every number of the policies below a tick: name, value, bounds, unit, meaning, source (docs/smartharvest.md).

use surefoot_server::settable::settings;

settings! {
    "smartharvest"

    /// What is read, and when.
    window: Window {
        poll_us: u64 = 50, 1..=100_000, "us", "between two readings of busy cores", SmartHarvest;
        length_ms: f64 = 25.0, 0.1..=10_000, "ms", "of one window: one prediction", SmartHarvest;
        settle_ms: f64 = 10.0, 0..=1000, "ms", "after cores have been moved in which nothing is decided", SmartHarvest;
        settle_polls: u8 = 1, 0..=1, "0 or 1", "whether readings go on in that time and count in the next window", TuneWorlds;
        quiet_ms: f64 = 0.0, 0..=60_000, "ms", "in which two of the cores at hand idled at every reading, after which it is quiet; 0: it never is", TuneWorlds;
        quiet_poll_us: u64 = 500, 1..=100_000, "us", "between two readings while it is quiet", TuneWorlds;
    }

    /// The learner.
    learn: Learn {
        rule: u8 = 3, 0..=3, "number", "of the update: 0 plain, 1 normalised, 2 adaptive, 3 adaptive, normalised and invariant, as Vowpal Wabbit's", SmartHarvestOpen;
        rate: f64 = 0.1, 0.0001..=10, "rate", "of learning, constant", SmartHarvest;
        cost: u8 = 0, 0..=2, "number", "of the cost function: 0 skewed, 1 symmetric, 2 hinged", SmartHarvest;
        under: f64 = 1.0, 0..=100, "share", "of all cores that a class below the peak costs beside its distance", SmartHarvest;
        warm_windows: u32 = 40, 0..=100_000, "windows", "that are learnt from before a core is lent", SmartHarvestOpen;
    }

    /// The safeguards.
    guard: Guard {
        aggressive: u8 = 0, 0..=1, "0 or 1", "1: all cores come back when those at hand are exhausted; 0: one more than the latest peak", SmartHarvest;
        peak_s: f64 = 1.0, 0.001..=60, "s", "in which that peak is looked for", SmartHarvest;
        waits: u8 = 1, 0..=1, "0 or 1", "whether waits of virtual CPUs are watched", SmartHarvest;
        waits_ms: f64 = 500.0, 1..=60_000, "ms", "between two looks at waits", SmartHarvest;
        long_share: f64 = 0.01, 0..=1, "share", "of dispatches that may wait long", SmartHarvest;
        looks: u32 = 2, 1..=100, "looks", "in a row with more than that: all cores come back", SmartHarvest;
        stop_s: f64 = 10.0, 0.1..=3600, "s", "in which nothing is lent then", SmartHarvest;
        stop_grows: f64 = 1.0, 1..=10, "factor", "by which a stop is longer that comes as long as the last one took, or sooner, after its end; up to an hour", TuneWorlds;
        sure: f64 = 16.0, 0..=100, "deviations", "by which the number of long waits must be above that share to say something", TuneWorlds;
        least_dispatches: u64 = 100, 1..=1_000_000, "dispatches", "in a look that say something of a share", SmartHarvestOpen;
        mean_wait_us: f64 = 10.0, 0.1..=100_000, "us", "of the mean wait that count as too long where a host knows sums alone", SmartHarvestOpen;
    }

    /// Our own law.
    budget: Budget {
        share: f64 = 0.003, 0..=1, "share", "of dispatches that may wait long in the mean", TuneWorlds;
        long: f64 = 0.4, 0..=100, "share", "of the mean time that a thread runs at a time from which a wait is long; 12.5 us at least", TuneWorlds;
        length_s: f64 = 2.0, 0.1..=600, "s", "of waits that a full budget holds, and in which peaks are forgotten", TuneWorlds;
        debt: f64 = 30.0, 0..=1000, "budgets", "of long waits above the share that are remembered", TuneWorlds;
        usual: f64 = 0.6, 0..=1, "share", "of windows whose peak a full budget keeps", TuneWorlds;
    }

    /// The baselines.
    baseline: Baseline {
        buffer: u32 = 4, 1..=1024, "cores", "beside the busy ones that `fixed-buffer` keeps", SmartHarvest;
    }

    /// Caladan's control law.
    caladan: Caladan {
        poll_us: u64 = 10, 1..=100_000, "us", "between two decisions", Caladan;
        delay_us: f64 = 10.0, 0.1..=100_000, "us", "that a thread may wait before a core is given", Caladan;
        bandwidth: f64 = 0.8, 0.01..=1, "share", "of the memory bandwidth above which the job loses a core at each look", Caladan;
        bandwidth_us: u64 = 10, 1..=1_000_000, "us", "between two looks at bandwidth", Caladan;
        sibling_us: f64 = 100.0, 1..=1_000_000, "us", "that a request may run before the sibling of its core idles", Caladan;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use surefoot_server::settable::{text, Settable};

    /// docs/smartharvest.md has the table of all settings.
    #[test]
    fn the_documented_settings_are_the_table() {
        let page = include_str!("../../../docs/smartharvest.md");
        let mut wanted = String::from("| name | value | bounds | unit | meaning | source |\n| --- | --- | --- | --- | --- | --- |\n");
        for s in Settings::table() {
            let value = text(&(s.get)(&Settings::default()), s.len.is_some());
            let (name, source) = (s.name(), s.source.as_str());
            wanted += &format!("| `{name}` | {value} | {} to {} | {} | {} | {source} |\n", s.low, s.high, s.unit, s.meaning);
        }
        assert!(page.contains(&wanted), "docs/smartharvest.md, section Settings: put this table there\n{wanted}");
    }
}
