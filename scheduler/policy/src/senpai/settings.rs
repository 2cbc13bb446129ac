//! Every number of the policy `senpai`: name, value, bounds, unit, meaning, source.

use surefoot_server::settable::settings;

settings! {
    "senpai"

    /// How far limits go down and up.
    limit: LimitStep {
        period_ms: u64 = 6000, 100..=600_000, "ms", "between two steps", Senpai;
        pressure_ms: f64 = 10.0, 0.1..=10_000, "ms", "that some task may wait for memory in a period", Senpai;
        most_probe: f64 = 0.01, 0.0001..=0.5, "share", "of a limit that is taken at once, at most", Senpai;
        most_backoff: f64 = 1.0, 0.01..=10, "share", "of a limit that is given back at once, at most", Senpai;
        probe: f64 = 10.0, 1..=1000, "ratio", "of allowed to seen waiting from which as much as may be is taken", Senpai;
        backoff: f64 = 20.0, 1..=1000, "ratio", "of seen to allowed waiting at which a whole limit is given back", Senpai;
        least: f64 = 0.1, 0..=1, "share", "of its footprint that a service keeps", Plant;
    }
}
